"""Hostile code that takes a bridge of its own: with other limits, with other servers, or because its end is looked at.

A flood waits for its turn as long as somebody else is at work, so its neighbour is soon done.
"""

import asyncio
import itertools
import json
import os
import sys
from pathlib import Path

import pytest
from execution_fixtures import BOTH, Peak, Ticker, lines, printed
from hostile_scripts import CHANNEL, MEGABYTE, RESOURCES, on_channel
from servers.specs import faulty

from mcp_bridge.downstream.configuration.spec import ServerSpec

pytestmark = pytest.mark.usefixtures("no_internal_errors")

VICTIM = """
import asyncio
from mcp.servers import faulty
for number in range({turns}):
    assert await faulty.echo(str(number)) == str(number)
    await asyncio.sleep(0.02)
print("unharmed")
"""


async def attacked(sandboxes, code, *, timeout=5, turns=12, language="python", **settings):  # noqa: ASYNC109
    """The record of hostile code that ran beside a well-behaved script, which must not notice."""
    async with sandboxes.open(faulty(), **settings) as bridge, asyncio.TaskGroup() as tasks:
        victim = tasks.create_task(bridge.run(VICTIM.format(turns=turns), timeout=60))
        hostile = tasks.create_task(bridge.run(code, timeout=timeout, language=language))
    assert printed(victim.result()) == "unharmed\n"
    record = hostile.result()
    # Whatever the guest claimed, it can be written down.
    json.dumps(record.to_json(), allow_nan=False).encode()
    return record


# --- floods ---

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))


def in_either(names, floods):
    """Each flood in one of the languages, by turns, for a test of `bilingual` and of what `names` are.

    The host is sent the same, by whichever guest. `MCP_BRIDGE_TEST_LONG=1` asks for each in both.
    """
    turns = itertools.cycle([(language,) for language in BOTH])
    cases = [
        pytest.param(language, *values, id=f"{language}-{name}")
        for name, values in floods.items()
        for language in (BOTH if LONG else next(turns))
    ]
    return pytest.mark.parametrize(("bilingual", *names), cases, indirect=["bilingual"])


@in_either(
    ["request_"],
    {
        "calls": [
            "{'method': 'tool.call', 'params': {'server': 'faulty', 'tool': 'echo', 'arguments': {'text': 'x'}}}"
        ],
        "hanging": ["{'method': 'tool.call', 'params': {'server': 'faulty', 'tool': 'hang', 'arguments': {}}}"],
        "catalog": ["{'method': 'catalog.tools', 'params': {'server': 'faulty'}}"],
        "search": ["{'method': 'catalog.search', 'params': {'query': 'echo text', 'limit': 100}}"],
        "describe": ["{'method': 'catalog.describe', 'params': {'name': 'faulty.' * 100 + 'ehco'}}"],
        "memory": ["{'method': 'memory.list', 'params': {}}"],
    },
)
async def test_a_flood_of_requests_is_held_back_and_holds_nobody_up(bilingual, request_, tmp_path):
    peak, ticker = Peak(), Ticker()
    async with ticker.watch():
        record = await attacked(
            bilingual.sandboxes,
            on_channel(bilingual.language, f"for number in range(1, 100_001): send(id=number, **{request_})\nstay()"),
            language=bilingual.language,
            timeout=4,
            wall_timeout=4.0,
            state_dir=tmp_path,
        )
    assert record.status in {"call_limit", "timeout"}, record.error
    assert record.calls <= 10_000
    assert peak.growth < 300 * MEGABYTE
    assert ticker.longest < 3


@in_either(
    ["request_"],
    {
        "arguments": [
            "{'method': 'tool.call', 'params': {'server': 'faulty', 'tool': 'hang', 'arguments': {'x': 'x' * (15 << 20)}}}"
        ],
        "server": ["{'method': 'tool.call', 'params': {'server': 'x' * (15 << 20), 'tool': 'hang', 'arguments': {}}}"],
        "describe": ["{'method': 'catalog.describe', 'params': {'name': '.' * (15 << 20)}}"],
        "search": ["{'method': 'catalog.search', 'params': {'query': 'echo ' * (3 << 20)}}"],
        "memory": ["{'method': 'memory.save', 'params': {'key': 'k', 'value': 'x' * (15 << 20)}}"],
        "artifact": [
            "{'method': 'artifact.write', 'params': {'name': 'n', 'base64': 'A' * (15 << 20), 'first': True, 'last': False}}"
        ],
    },
)
async def test_a_flood_of_huge_requests_is_held_back_and_holds_nobody_up(bilingual, request_, tmp_path):
    peak, ticker = Peak(), Ticker()
    async with ticker.watch():
        record = await attacked(
            bilingual.sandboxes,
            on_channel(
                bilingual.language,
                f"body = json.dumps({{'jsonrpc': '2.0', 'id': 1, **{request_}}}).encode().split(b'\"id\": 1', 1)\n"
                "for number in range(1, 1000): raw(body[0] + b'\"id\": %d' % number + body[1] + b'\\n')\nstay()",
            ),
            language=bilingual.language,
            timeout=3,
            wall_timeout=4.0,
            state_dir=tmp_path,
        )
    assert record.status in {"call_limit", "timeout"}, record.error
    assert peak.growth < 500 * MEGABYTE
    assert ticker.longest < 3


async def test_requests_that_take_long_to_answer_hold_nobody_up(sandboxes):
    values = [{"a": number} for number in range(4000)]
    unique = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    node = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["z"]}
    twice = {"properties": {"x": {"$ref": "#/$defs/n"}}, "type": "object", "$defs": {"n": {"anyOf": [node, node]}}}
    tools = [{"name": "unique", "inputSchema": unique}, {"name": "twice", "inputSchema": twice}]
    script = Path(__file__).parents[1] / "support/servers" / "echoing.py"
    slow = ServerSpec(name="slow", command=sys.executable, args=(str(script), json.dumps(tools)))
    code = f"""
import asyncio
from mcp.servers import slow, faulty
from mcp import runtime
deep = {{}}
for _ in range(40): deep = {{"a": deep}}
calls = [slow.unique(x={values}) for _ in range(8)] + [slow.twice(x=deep) for _ in range(8)]
calls += [runtime.list_tools("faulty") for _ in range(32)] + [runtime.describe("faulty", "schema") for _ in range(32)]
calls += [runtime.search("tool value", 100) for _ in range(32)]
results = await asyncio.gather(*calls, return_exceptions=True)
print([str(result)[:40] for result in results[:8] if isinstance(result, Exception)])
print({{result.code for result in results[8:16]}}, sum(isinstance(result, Exception) for result in results[16:]))
"""
    ticker = Ticker()
    async with sandboxes.open(faulty("many", 989), slow) as bridge, asyncio.TaskGroup() as tasks:
        # Listing, and whatever else is done once, is not what is measured.
        await bridge.run("from mcp import runtime\nruntime.list_tools_sync('faulty'), runtime.list_tools_sync('slow')")
        await bridge.run("from mcp import runtime\nruntime.search_sync('a'), runtime.describe_sync('faulty', 'schema')")
        async with ticker.watch():
            victim = tasks.create_task(bridge.run(VICTIM.format(turns=25), timeout=60))
            record = await bridge.run(code, timeout=30)
            await victim
    assert printed(victim.result()) == "unharmed\n"
    # What would take for ever to check isn't called.
    assert printed(record) == "[]\n{'arguments_unchecked'} 0\n"
    assert ticker.longest < 4


async def test_answers_that_nobody_reads_do_not_gather_in_the_host(bilingual, tmp_path):
    peak = Peak()
    asks = """
for number in range(1000, 3000): send(id=number, method="memory.load", params={"key": "big"})
stay()
"""
    code = {
        "python": CHANNEL
        + """
from mcp import runtime
runtime.save_memory_sync("big", "x" * (3 << 20))
os.kill(os.getpid(), 0)
# The runtime's own reader must not take the answers: it reads from another pipe now.
r, w = os.pipe()
os.dup2(r, READ)
"""
        + asks,
        # Node waits for the child that asks, and reads nothing.
        "javascript": 'await runtime.save_memory("big", "x".repeat(3 << 20));\n' + on_channel("javascript", asks),
    }[bilingual.language]
    record = await attacked(
        bilingual.sandboxes,
        code,
        language=bilingual.language,
        timeout=2,
        wall_timeout=4.0,
        state_dir=tmp_path,
    )
    assert record.status in {"timeout", "channel_closed"}, record.error
    assert peak.growth < 400 * MEGABYTE


@in_either(
    ["frame", "statuses"],
    {
        "empty": ("{'method': 'output.write', 'params': {'stream': 'stdout', 'text': ''}}", {"timeout"}),
        "small": (
            "{'method': 'output.write', 'params': {'stream': 'stdout', 'text': 'ab'}}",
            {"timeout", "output_limit"},
        ),
        "displays": (
            "{'method': 'output.display', 'params': {'data': {'k' * 100_000: 'v'}}}",
            {"output_limit", "timeout"},
        ),
        "progress": ("{'method': 'progress.report', 'params': {'done': 1, 'message': 'm' * 100_000}}", {"timeout"}),
        "ready": ("{'method': 'guest.ready', 'params': {'python': 'x' * 1000}}", {"timeout"}),
        "cancel": ("{'method': 'request.cancel', 'params': {'id': 5}}", {"timeout"}),
    },
)
async def test_a_flood_of_notifications_takes_no_memory_and_holds_nobody_up(bilingual, frame, statuses):
    peak, ticker = Peak(), Ticker()
    async with ticker.watch():
        record = await attacked(
            bilingual.sandboxes,
            on_channel(
                bilingual.language,
                f"data = (json.dumps({{'jsonrpc': '2.0', **{frame}}}) + '\\n').encode() * 50\nwhile True: raw(data)",
            ),
            language=bilingual.language,
            timeout=2,
        )
    assert record.status in statuses, record.error
    assert peak.growth < 200 * MEGABYTE
    assert ticker.longest < 3


async def test_a_frame_that_comes_byte_by_byte_takes_no_more_than_its_size(sandboxes):
    peak = Peak()
    record = await attacked(sandboxes, CHANNEL + "while True: os.write(WRITE, b'xy')", timeout=3)
    assert record.status in {"timeout", "protocol_error"}
    assert peak.growth < 150 * MEGABYTE


# --- memory of another size ---


async def test_a_full_tmpfs_is_an_error_that_the_script_sees(sandboxes):
    record = await attacked(
        sandboxes,
        """
import errno
for path in ("/tmp/full", "/workspace/full", "/dev/shm/full"):
    try:
        with open(path, "wb") as file:
            while True:
                file.write(b"x" * (1 << 20))
    except OSError as exc:
        print(path, errno.errorcode[exc.errno], flush=True)
print("goes on")
""",
        timeout=30,
        memory=1 << 30,
    )
    assert lines(record)[:2] == ["/tmp/full ENOSPC", "/workspace/full ENOSPC"]
    assert lines(record)[-1] == "goes on"


async def test_a_tmpfs_fuller_than_the_memory_is_out_of_memory(sandboxes):
    record = await attacked(
        sandboxes,
        "print('before', flush=True)\nwith open('/workspace/full', 'wb') as file:\n    while True: file.write(b'x' * (1 << 20))",
        timeout=30,
        memory=64 * MEGABYTE,
    )
    assert record.status in {"out_of_memory", "error"}
    assert record.stdout == b"before\n"


# --- what is left ---


async def test_a_daemon_does_not_outlive_its_script(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run("import os\nif os.fork() == 0:\n    while True: pass\nprint('x')")
        assert printed(record) == "x\n"
    # `open` has seen that no container is left.


async def test_eight_attacks_at_once_leave_the_host_as_it_was(sandboxes):
    codes = [
        RESOURCES["a fork bomb"][0],
        RESOURCES["ten gigabytes"][0],
        "while True: print('x' * 1000)",
        CHANNEL + "raw(b'[' * (1 << 20) + b'\\n')\nstay()",
        CHANNEL + "for n in range(1, 99999): send(id=n, method='catalog.search', params={'query': 'echo'})\nstay()",
        "import os\nos.closerange(0, 1024)",
        "while True: pass",
    ]
    async with sandboxes.open(faulty(), max_concurrent=8, wall_timeout=8.0) as bridge, asyncio.TaskGroup() as tasks:
        victim = tasks.create_task(bridge.run(VICTIM.format(turns=100), timeout=60))
        attacks = [tasks.create_task(bridge.run(code, timeout=4)) for code in codes]
    assert printed(victim.result()) == "unharmed\n"
    statuses = [attack.result().status for attack in attacks]
    # On a busy machine the time may be up before the harm is done.
    for status, own in zip(statuses[1:4], ["out_of_memory", "output_limit", "protocol_error"], strict=True):
        assert status in {own, "timeout"}
    assert "success" not in statuses
