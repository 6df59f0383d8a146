"""Standard error whose reader has stopped holds up nobody, and what is lost of it is counted."""

import asyncio
import contextlib
import json
import logging
import os
import threading

import anyio
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS
from http_bridge import serving

from mcp_bridge.cli.streams import QueuedStream

pytestmark = pytest.mark.timeout(120)

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.fixture
def pipe():
    """A pipe's two ends, as streams of text."""
    read_end, write_end = os.pipe()
    # As Python opens standard error.
    as_standard_error = {"encoding": "utf-8", "errors": "backslashreplace", "buffering": 1}
    with os.fdopen(read_end, encoding="utf-8") as reading, os.fdopen(write_end, "w", **as_standard_error) as writing:
        yield reading, writing


def fill(descriptor):
    """Fill a pipe that nobody reads; how many bytes it takes."""
    os.set_blocking(descriptor, False)
    size = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            size += os.write(descriptor, b"x" * 4096)
    os.set_blocking(descriptor, True)
    return size


def test_what_is_written_is_read_in_its_order_and_nothing_is_left_at_the_end(pipe):
    reading, writing = pipe
    queued = QueuedStream(writing)
    for number in range(1000):
        print(number, file=queued)
    queued.drain(DEADLINE_SECONDS)
    print("and the last words: \N{SNOWMAN} \ud83d", file=queued)
    writing.close()
    assert (
        reading.read() == "".join(f"{number}\n" for number in range(1000)) + "and the last words: \N{SNOWMAN} \\ud83d\n"
    )


def test_what_does_not_fit_is_lost_by_whole_lines_and_the_log_says_how_many(pipe, caplog):
    reading, writing = pipe
    size = fill(writing.fileno())
    queued = QueuedStream(writing, max_waiting=100)
    caplog.set_level(logging.WARNING)
    for number in range(30):
        print(f"line {number:03}", file=queued)
    # Nobody reads: its end doesn't wait for longer than it is told to.
    queued.drain(0.01)
    assert reading.read(size) == "x" * size
    read = [reading.readline() for _ in range(11)]
    assert read == [f"line {number:03}\n" for number in range(11)]
    queued.drain(DEADLINE_SECONDS)
    assert [record.getMessage() for record in caplog.records] == [
        "19 lines were lost here, because nobody read standard error"
    ]
    print("further ones aren't", file=queued)
    assert reading.readline() == "further ones aren't\n"


def test_a_description_that_others_have_made_non_blocking_loses_nothing(pipe):
    reading, writing = pipe
    size = fill(writing.fileno())
    os.set_blocking(writing.fileno(), False)
    queued = QueuedStream(writing)
    text = "y" * (2 * size)
    threading.Thread(target=print, args=(text,), kwargs={"file": queued}).start()
    assert reading.read(size) == "x" * size
    assert reading.readline() == f"{text}\n"
    assert not os.get_blocking(writing.fileno())


async def test_a_bridge_over_http_whose_log_nobody_reads_answers_and_ends(configure, pipe):
    _, writing = pipe
    fill(writing.fileno())
    async with serving(configure(), log=writing) as bridge:
        async with bridge.http() as http:
            for _ in range(5):
                assert (await http.get("/mcp")).status_code == 400
            assert (await http.get("/health")).status_code == 200
        bridge.process.terminate()
        assert await bridge.ended() == 0


async def test_a_bridge_on_stdio_whose_log_nobody_reads_answers_and_ends(configure, pipe):
    _, writing = pipe
    fill(writing.fileno())
    setup = configure()
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        *("--config", str(setup.config), "serve"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=writing,
        env=setup.env,
        cwd=setup.home,
    )
    try:
        with anyio.fail_after(DEADLINE_SECONDS):
            process.stdin.write(b"not a message\n" * 20 + json.dumps(INITIALIZE).encode() + b"\n")
            answers = [json.loads(await process.stdout.readline()) for _ in range(21)]
            assert answers[-1]["result"]["serverInfo"]
            process.stdin.close()
            assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
