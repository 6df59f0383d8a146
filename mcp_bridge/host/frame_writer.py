"""Writes frames to one guest: immediately where its pipe takes them, and otherwise in a background task."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import anyio

from mcp_bridge.sandbox.pipes import PipeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio.abc import ByteSendStream, TaskGroup

MAX_TOGETHER_BYTES = 64 << 10
"""Of the frames that are written as one."""


class _Frame(NamedTuple):
    data: bytes
    written: Callable[[], None] | None


class FrameWriter:
    """Frames in the order in which they are posted.

    Those that are posted in one turn of the event loop are written as one: each write wakes the engine's client.

    Args:
        stdin: To the guest. Only a pipe is written at once. When the guest is gone, frames are dropped: the reader of
            the channel sees its end.

    Attributes:
        is_writing: Whether a task writes what the pipe hasn't taken at once.
    """

    def __init__(self, stdin: ByteSendStream) -> None:
        self._stdin = stdin
        self._pipe = stdin if isinstance(stdin, PipeWriter) else None
        self._frames: deque[_Frame] = deque()
        self._is_scheduled = False
        self._rest = b""
        """What a full pipe hasn't taken of the frames that were taken from the queue."""
        self._written: list[Callable[[], None]] = []
        """What is called when that is written."""
        self._tasks: TaskGroup | None = None
        """In which the rest is written."""
        self.is_writing = False
        self._is_closed = False

    async def close(self) -> None:
        """Write no frame that isn't begun: the guest has had what it needs, and whoever writes next begins a frame."""
        self._is_closed = True
        while self._frames:
            if (written := self._frames.popleft().written) is not None:
                written()
        if self._rest:
            is_written = anyio.Event()
            self._written.append(is_written.set)
            await is_written.wait()

    def post(self, data: bytes, written: Callable[[], None] | None = None, *, at_once: bool = False) -> None:
        """Write a frame at the end of this turn of the event loop, or as soon as the guest reads.

        Args:
            data: The frame.
            written: Called when it is written, or dropped.
            at_once: Whether to write it now: no other is to be expected.
        """
        if self._is_closed:
            if written is not None:
                written()
            return
        self._frames.append(_Frame(data, written))
        if at_once:
            self._write()
        elif not self._is_scheduled and not self._rest:
            self._schedule()

    async def send(self, data: bytes) -> None:
        """Return when a frame is written, or dropped."""
        written = anyio.Event()
        self.post(data, written.set)
        await written.wait()

    @contextlib.contextmanager
    def within(self, tasks: TaskGroup) -> Iterator[None]:
        """Meanwhile write in these tasks what the guest's pipe doesn't take at once; after it, write none of that.

        Most guests take all at once, so there is no task until one doesn't.
        """
        self._tasks = tasks
        self._begin_rest()
        try:
            yield
        finally:
            self._tasks = None

    def _begin_rest(self) -> None:
        if self._rest and self._tasks is not None and not self.is_writing:
            self.is_writing = True
            self._tasks.start_soon(self._write_rest)

    async def _write_rest(self) -> None:
        try:
            while self._rest:
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._stdin.send(self._rest)
                self._rest = b""
                self._finished()
                self._write()
        finally:
            self.is_writing = False

    def _write_scheduled(self) -> None:
        self._is_scheduled = False
        self._write()

    def _write(self) -> None:
        if not self._frames or self._rest:
            return
        data = self._together()
        # When the guest is gone, nothing is left to be written.
        count = 0
        if self._pipe is not None:
            count = len(data)
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                count = self._pipe.write_now(data)
        if count < len(data):
            self._rest = data[count:]
            self._begin_rest()
            return
        self._finished()
        if self._frames and not self._is_scheduled:
            # A guest may read as fast as this writes: others get their turn all the same.
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._write_scheduled)

    def _together(self) -> bytes:
        """The next frames, as many as are written as one. Each is given up here: together they may be large."""
        data, written = self._frames.popleft()
        size, parts = len(data), [data]
        if written is not None:
            self._written.append(written)
        while self._frames and size + len(self._frames[0].data) <= MAX_TOGETHER_BYTES:
            data, written = self._frames.popleft()
            parts.append(data)
            size += len(data)
            if written is not None:
                self._written.append(written)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _finished(self) -> None:
        written, self._written = self._written, []
        for call in written:
            call()
