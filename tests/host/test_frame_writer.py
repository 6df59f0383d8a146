"""Frames that are written at once, and those that wait until their guest reads."""

import anyio
import pytest

from mcp_bridge.host.frame_writer import MAX_TOGETHER_BYTES, FrameWriter
from mcp_bridge.sandbox.pipes import PipeWriter


class Pipe(PipeWriter):
    """Takes as much at once as there is room for; whoever sends the rest waits for `reads`."""

    def __init__(self, room):
        self.room = room
        self.written = []
        self.reads = anyio.Event()
        self.is_broken = False

    def write_now(self, item):
        if self.is_broken:
            raise anyio.BrokenResourceError
        taken = min(self.room, len(item))
        self.room -= taken
        self.written.append(bytes(item[:taken]))
        return taken

    async def send(self, item):
        await self.reads.wait()
        self.written.append(bytes(item))

    async def aclose(self):
        pass


async def test_frames_of_one_turn_are_written_as_one_without_a_task():
    pipe = Pipe(1000)
    writer = FrameWriter(pipe)
    seen = []
    for name in ("a\n", "b\n", "c\n"):
        writer.post(name.encode(), lambda name=name: seen.append(name))
    assert not pipe.written
    await anyio.lowlevel.checkpoint()
    assert (pipe.written, seen) == ([b"a\nb\nc\n"], ["a\n", "b\n", "c\n"])


async def test_what_a_full_pipe_does_not_take_comes_before_what_is_posted_later():
    pipe = Pipe(3)
    writer = FrameWriter(pipe)
    seen = []
    async with anyio.create_task_group() as tasks:
        with writer.within(tasks):
            writer.post(b"12345\n", lambda: seen.append(1))
            await anyio.wait_all_tasks_blocked()
            writer.post(b"6789\n", lambda: seen.append(2))
            tasks.start_soon(writer.send, b"0\n")
            await anyio.wait_all_tasks_blocked()
            assert (b"".join(pipe.written), seen) == (b"123", [])
            pipe.room = 1000
            pipe.reads.set()
            with anyio.fail_after(10):
                while len(seen) < 2:
                    await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert b"".join(pipe.written) == b"12345\n6789\n0\n"


async def test_large_frames_are_not_put_together():
    pipe = Pipe(10 * MAX_TOGETHER_BYTES)
    writer = FrameWriter(pipe)
    frames = [bytes([number]) * (MAX_TOGETHER_BYTES // 2 + 1) for number in range(3)]
    for frame in frames:
        writer.post(frame)
    for _ in frames:
        await anyio.lowlevel.checkpoint()
    assert pipe.written == frames


@pytest.mark.parametrize("count", [1, 3])
async def test_when_the_guest_is_gone_frames_are_dropped_and_nobody_waits(count):
    pipe = Pipe(1000)
    pipe.is_broken = True
    writer = FrameWriter(pipe)
    with anyio.fail_after(10):
        for _ in range(count):
            await writer.send(b"x\n")
    assert not pipe.written
