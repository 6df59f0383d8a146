"""What a sandbox says of its end, right or wrong: by containers that say what a test has them say."""

import asyncio
import json
import time

import anyio
import anyio.lowlevel
import pytest
from claimed_sandboxes import READY, Claimed, Silent, report, told

from mcp_bridge.host import channel as channel_module
from mcp_bridge.host import sandbox_run as execution_module

pytestmark = pytest.mark.usefixtures("no_internal_errors")


EXITED = report("init.exited", code=5, signal=0, oom_kills=0)

CLAIMS = {
    "nothing": [],
    "junk before": [b"\xff" * 3_000_000, b"\n{" + b"x" * 3_000_000, b"\n", b"{" * 100_000 + b"\n", EXITED],
    "deep": [b'{"jsonrpc":"2.0","method":' + b"[" * 500_000 + b"\n", EXITED],
    "an endless number": [b'{"jsonrpc":"2.0","method":"init.exited","params":{"code":' + b"9" * 4000 + b',"signal":0,"oom_kills":0}}\n', EXITED],
    "wrong types": [report("init.exited", code="5", signal=None, oom_kills=[]), EXITED],
    "others' methods": [report("guest.ready", python="x"), report("progress.report", done=1), report("host.beat"), EXITED],
    "an engine's own json": [b'{"level":"warning","msg":"something of runc"}\n', EXITED],
    "an answer": [b'{"jsonrpc":"2.0","id":1,"result":{}}\n', EXITED],
    "output without end": [*[report("output.write", stream="stdout", text="x" * 100_000)] * 1000, EXITED],
    "output that is none": [report("output.write", stream="stdout", base64="*"), EXITED],
    "the last word counts": [report("init.exited", code=0, signal=0, oom_kills=9), EXITED],
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
async def test_whatever_comes_as_a_report_the_ending_is_told_as_it_was(claim):
    record = await told(Claimed(CLAIMS[claim], READY))
    if claim == "output without end":
        assert record.status == "output_limit"
        assert len(record.stdout) == 1 << 20
    else:
        assert (record.status, record.exit_code) == ("killed", 5), record.error
    json.dumps(record.to_json(), allow_nan=False)


@pytest.mark.parametrize("number", [2**62, -(2**62), 256, -1, 999])
async def test_an_exit_that_no_process_can_have_is_told_within_bounds(number):
    record = await told(Claimed([report("init.exited", code=number, signal=number, oom_kills=number)], READY))
    assert record.status in {"killed", "out_of_memory", "channel_closed"}
    assert 0 < record.exit_code < 256


async def test_the_rest_of_the_output_follows_what_came_and_repeats_nothing():
    sent = report("output.write", stream="stdout", text="one two ")
    rest = [
        report("output.write", stream="stdout", text="two three ", offset=4),
        report("output.write", stream="stdout", text="four", offset=14),
        report("output.write", stream="stderr", base64="ZXJy", offset=0),
        EXITED,
    ]
    record = await told(Claimed(rest, READY + sent + b'{"half a frame'))
    assert record.stdout == b"one two three four"
    assert record.stderr == b"err"


async def test_a_sandbox_that_says_nothing_more_is_given_up(monkeypatch):
    monkeypatch.setattr(execution_module, "SILENCE_SECONDS", 0.2)
    process = Claimed([], READY)
    process.stdout = Silent(READY)
    # The loop is held up for long, too: what is left to wait is then less than nothing.
    asyncio.get_running_loop().call_later(0.05, time.sleep, 1.5)
    record = await told(process)
    assert (record.status, record.error["code"]) == ("channel_closed", "sandbox_silent")


async def test_a_sandbox_that_we_do_not_read_is_not_taken_for_silent(monkeypatch):
    monkeypatch.setattr(execution_module, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(channel_module, "MAX_QUEUED", 0)
    released = anyio.Event()

    async def answer(_request, _context):
        await released.wait()
        return {}

    calls = [
        json.dumps({"jsonrpc": "2.0", "id": n, "method": "memory.list", "params": {}}).encode() + b"\n"
        for n in (1, 2, 3)
    ]
    finish = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "execution.finish", "params": {"exit_code": 0}}).encode()
    process = Claimed([], READY)
    process.stdout = Silent(READY, *calls, finish + b"\n")
    # Silence for as long as it likes: what it says waits for us.
    asyncio.get_running_loop().call_later(2, released.set)
    record = await told(process, answer)
    assert record.status == "success", record.error
