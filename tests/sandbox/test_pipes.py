"""The ends of a child's pipes, at moments at which data could be lost or nobody would be woken."""

import asyncio
import os

import anyio
import pytest

from mcp_bridge.sandbox.pipes import PIPE_SIZE, PipeReader, PipeWriter


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    reader = PipeReader(reading)
    yield reader, writing
    reader.close()
    os.close(writing)


async def test_what_comes_while_a_task_waits_is_read_and_what_comes_later_too(pipe):
    reader, writing = pipe
    for number in range(3):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receives, reader, b"%d" % number)
            await anyio.wait_all_tasks_blocked()
            os.write(writing, b"%d" % number)


async def receives(reader, data):
    with anyio.fail_after(10):
        assert await reader.receive() == data


async def test_what_was_read_for_a_task_that_is_cancelled_in_that_moment_is_not_lost(pipe):
    reader, writing = pipe
    task = asyncio.create_task(reader.receive())
    await anyio.wait_all_tasks_blocked()
    os.write(writing, b"abcdef")
    # As the loop does it in the turn in which the task is cancelled.
    reader._readable()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [await reader.receive(4), await reader.receive(4)] == [b"abcd", b"ef"]


async def test_a_pipe_that_nobody_reads_does_not_wake_the_loop_again_and_again(pipe):
    reader, writing = pipe
    os.write(writing, b"a")
    assert await reader.receive() == b"a"
    with anyio.move_on_after(0.01):
        await reader.receive()
    os.write(writing, b"b")
    looked = []
    look = reader._readable
    reader._readable = lambda: (looked.append(1), look())
    await anyio.sleep(0.05)
    assert len(looked) <= 1
    assert reader._watching is None
    assert await reader.receive() == b"b"


async def test_the_end_of_the_pipe_and_its_closing_reach_the_task_that_waits():
    reading, writing = os.pipe()
    reader = PipeReader(reading)
    os.close(writing)
    with pytest.raises(anyio.EndOfStream):
        await reader.receive()
    reader.close()
    reading, writing = os.pipe()
    reader = PipeReader(reading)

    async def waits():
        with pytest.raises(anyio.ClosedResourceError):
            await reader.receive()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waits)
        await anyio.wait_all_tasks_blocked()
        await reader.aclose()
    os.close(writing)


async def test_a_full_pipe_takes_a_part_and_then_nothing():
    reading, writing = os.pipe()
    writer = PipeWriter(writing)
    taken = writer.write_now(bytes(PIPE_SIZE * 8))
    assert 0 < taken < PIPE_SIZE * 8
    assert writer.write_now(b"x") == 0
    os.close(reading)
    with pytest.raises(anyio.BrokenResourceError):
        writer.write_now(b"x")
    writer.close()
    with pytest.raises(anyio.ClosedResourceError):
        writer.write_now(b"x")
