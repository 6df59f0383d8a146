"""Standard error whose reader has stopped holds up nobody, and what is lost of it is counted."""

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import textwrap
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
    queue = QueuedStream(writing)
    text = queue.text()
    for number in range(1000):
        print(number, file=text)
    queue.drain(DEADLINE_SECONDS)
    print("and the last words: \N{SNOWMAN} \ud83d", file=text)
    writing.close()
    assert (
        reading.read() == "".join(f"{number}\n" for number in range(1000)) + "and the last words: \N{SNOWMAN} \\ud83d\n"
    )


def test_what_does_not_fit_is_lost_by_whole_lines_and_the_log_says_how_many(pipe, caplog):
    reading, writing = pipe
    size = fill(writing.fileno())
    queue = QueuedStream(writing, max_waiting=100)
    text = queue.text()
    caplog.set_level(logging.WARNING)
    for number in range(30):
        print(f"line {number:03}", file=text)
    # Nobody reads: its end doesn't wait for longer than it is told to.
    queue.drain(0.01)
    assert reading.read(size) == "x" * size
    read = [reading.readline() for _ in range(11)]
    assert read == [f"line {number:03}\n" for number in range(11)]
    queue.drain(DEADLINE_SECONDS)
    assert [record.getMessage() for record in caplog.records] == [
        "19 lines were lost here, because nobody read standard error"
    ]
    print("further ones aren't", file=text)
    assert reading.readline() == "further ones aren't\n"


def test_what_is_lost_of_a_line_counts_as_one_and_is_told_on_a_line_of_its_own(pipe, caplog):
    reading, writing = pipe
    size = fill(writing.fileno())
    queue = QueuedStream(writing, max_waiting=100)
    queue.write(b"a line's begin")
    queue.write(b"y" * 100)
    queue.write(b"")
    assert reading.read(size) == "x" * size
    assert reading.readline() == "a line's begin\n"
    queue.drain(DEADLINE_SECONDS)
    assert [record.getMessage() for record in caplog.records] == [
        "1 lines were lost here, because nobody read standard error"
    ]


def test_a_text_larger_than_what_may_wait_is_taken_while_nothing_waits_and_others_are_after_it(pipe, caplog):
    reading, writing = pipe
    queue = QueuedStream(writing, max_waiting=100)
    text = queue.text()
    # More than a pipe takes; its end comes by itself, while it waits.
    print("y" * 200_000, file=text)
    print("lost", file=text)
    assert reading.readline() == "y" * 200_000 + "\n"
    queue.drain(DEADLINE_SECONDS)
    print("and what comes later", file=text)
    assert reading.readline() == "and what comes later\n"
    assert [record.getMessage() for record in caplog.records] == [
        "1 lines were lost here, because nobody read standard error"
    ]


def test_bytes_for_the_text_are_an_error_of_whoever_wrote_them_and_the_buffer_takes_them(pipe):
    reading, writing = pipe
    queue = QueuedStream(writing)
    text = queue.text()
    with pytest.raises(TypeError):
        text.write(b"bytes")
    with pytest.raises(TypeError):
        text.buffer.write("text")
    assert text.buffer.write(memoryview(b"by the buffer\n")) == 14
    text.reconfigure(errors="replace")
    print("and \ud83d", file=text)
    assert (text.encoding, text.errors, text.fileno()) == ("utf-8", "replace", writing.fileno())
    assert [reading.readline() for _ in range(2)] == ["by the buffer\n", "and ?\n"]


def test_a_text_that_cannot_be_written_does_not_silence_those_after_it(pipe):
    reading, writing = pipe

    class Failing:
        encoding = "utf-8"
        was_asked = False

        def fileno(self):
            if not self.was_asked:
                self.was_asked = True
                raise ValueError("I/O operation on closed file")
            return writing.fileno()

    text = QueuedStream(Failing()).text()
    print("one", file=text)
    print("two", file=text)
    assert reading.readline() == "two\n"


def test_where_no_thread_can_be_started_the_text_is_written_at_once(pipe, monkeypatch):
    reading, writing = pipe
    text = QueuedStream(writing).text()

    def no_thread(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        print("one", file=text)
    print("two", file=text)
    assert [reading.readline() for _ in range(2)] == ["one\n", "two\n"]


def ended(code, **streams):
    """A process that has queued its standard error and run this code."""
    begin = "import os, sys, threading\nfrom mcp_bridge.cli.streams import queue_errors\nqueue_errors()\n"
    return subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(code)],
        check=False,
        text=True,
        timeout=DEADLINE_SECONDS,
        **streams,
    )


def test_children_that_fork_write_for_themselves_whoever_is_printing_meanwhile():
    process = ended(
        """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        print("the parent", file=sys.stderr)

        def spam():
            while True:
                print("spam", file=sys.stderr)

        def child():
            print("the first child", file=sys.stderr)
            raise RuntimeError("dies of this")

        def work(number):
            print("of the pool", number, file=sys.stderr)

        forked = multiprocessing.get_context("fork")
        one = forked.Process(target=child)
        one.start()
        one.join()
        with ProcessPoolExecutor(1, mp_context=forked) as pool:
            list(pool.map(work, range(2)))
        for _ in range(2):
            threading.Thread(target=spam, daemon=True).start()
        for number in range(10):
            if not (pid := os.fork()):
                print("forked child", number, file=sys.stderr)
                sys.exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        """,
        stderr=subprocess.PIPE,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    for line in ("the parent", "the first child", "RuntimeError: dies of this", "of the pool 0", "of the pool 1"):
        assert f"{line}\n" in process.stderr
    assert all(f"forked child {number}\n" in process.stderr for number in range(10))


def test_an_operators_tool_may_write_bytes_to_the_buffer_of_standard_output():
    process = ended(
        """
        from mcp_bridge.registered.printing import as_tool

        with as_tool():
            sys.stdout.buffer.write(b"bytes of a tool\\n")
            sys.stderr.buffer.write(b"and its errors\\n")
        """,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert (process.returncode, process.stdout) == (0, "")
    assert process.stderr == "bytes of a tool\nand its errors\n"


def test_what_is_written_at_the_end_of_a_process_waits_no_longer_for_a_reader_than_the_rest(pipe):
    _, writing = pipe
    process = ended(
        """
        import logging

        # As at its end.
        sys.stderr.buffer.drain(1)
        logging.basicConfig()
        thread = threading.Thread(target=logging.error, args=("y" * 300_000,), daemon=True)
        thread.start()
        thread.join()
        print("z" * 300_000, file=sys.stderr)
        """,
        stderr=writing,
    )
    assert process.returncode == 0


def test_a_description_that_others_have_made_non_blocking_loses_nothing(pipe):
    reading, writing = pipe
    size = fill(writing.fileno())
    os.set_blocking(writing.fileno(), False)
    queue = QueuedStream(writing)
    text = "y" * (2 * size)
    threading.Thread(target=print, args=(text,), kwargs={"file": queue.text()}).start()
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
