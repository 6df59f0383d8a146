"""Writes frames to one guest: at once where its pipe takes them, and otherwise in a task that nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.sandbox.engine import InputStream

MAX_TOGETHER_BYTES = 64 << 10
"""Of the frames that are written as one."""


class _Frame(NamedTuple):
    data: bytes
    written: Callable[[], None] | None


class FrameWriter:
    """Frames in the order in which they are posted.

    Those that are posted in one turn of the event loop are written as one: each write wakes the engine's client.

    Args:
        stdin: To the guest. When the guest is gone, frames are dropped: the reader of the channel sees its end.
    """

    def __init__(self, stdin: InputStream) -> None:
        self._stdin = stdin
        self._frames: deque[_Frame] = deque()
        self._is_scheduled = False
        self._rest = memoryview(b"")
        """What a full pipe hasn't taken of the frames that were taken from the queue."""
        self._written: list[Callable[[], None]] = []
        """What is called when that is written."""
        self._has_rest = anyio.Event()

    def post(self, data: bytes, written: Callable[[], None] | None = None) -> None:
        """Write a frame at the end of this turn of the event loop, or as soon as the guest reads.

        Args:
            data: The frame.
            written: Called when it is written, or dropped.
        """
        self._frames.append(_Frame(data, written))
        if not self._is_scheduled and not self._has_rest.is_set():
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    async def send(self, data: bytes) -> None:
        """Return when a frame is written, or dropped."""
        written = anyio.Event()
        self.post(data, written.set)
        await written.wait()

    async def run(self) -> None:
        """Write what the guest's pipe doesn't take at once; runs until cancelled, after which nothing is written."""
        while True:
            await self._has_rest.wait()
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._stdin.send(self._rest)
            self._rest = memoryview(b"")
            self._has_rest = anyio.Event()
            self._finished()
            self._write()

    def _write(self) -> None:
        self._is_scheduled = False
        if not self._frames or self._has_rest.is_set():
            return
        data = self._together()
        # When the guest is gone, nothing is left to be written.
        count = len(data)
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            count = self._stdin.send_nowait(data)
        if count < len(data):
            self._rest = memoryview(data)[count:]
            self._has_rest.set()
            return
        self._finished()
        if self._frames:
            # A guest may read as fast as this writes: others get their turn all the same.
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

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
