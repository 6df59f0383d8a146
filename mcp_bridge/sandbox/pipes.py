"""A child process and the three pipes of a sandbox, read and written without an intermediate layer.

All messages to and from a sandbox pass through here. So a receive is one `read` into a fresh buffer when data is
available, without a buffer that could fill up behind a slow reader. The child's exit is observed through a pidfd if the
kernel supports it: no SIGCHLD handler, and no thread for each child.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream

from mcp_bridge.sandbox.engine import SandboxProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

PIPE_SIZE = 1 << 18
"""A message of this size doesn't wait for the other side; unprivileged users may have 1 MiB."""

_TAIL_BYTES = 8192
"""How much of an engine's stderr is kept."""

_SET_PIPE_SIZE = getattr(fcntl, "F_SETPIPE_SZ", None)


class PipeReader(ByteReceiveStream):
    """The reading end of a pipe. One event loop uses it.

    The descriptor is registered with the loop once, and stays registered while somebody comes back for more: to
    register it for every read takes as long as to answer a short message.

    Args:
        descriptor: The file descriptor, which the reader takes over.
        on_data: Called with every chunk before it is returned.
    """

    def __init__(
        self,
        descriptor: int,
        on_data: Callable[[bytes], None] | None = None,
    ) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._on_data = on_data
        self._guard = anyio.ResourceGuard("reading from")
        self._watching: asyncio.AbstractEventLoop | None = None
        """The loop that the descriptor is registered with."""
        self._waiter: asyncio.Future[bytes] | None = None
        self._max_bytes = 0
        self._left = b""
        """What was read for a task that was cancelled in the same moment."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Receive at least one byte and at most `max_bytes`.

        Raises:
            EndOfStream: All writers have closed the pipe. ClosedResourceError, BusyResourceError: as anyio's streams.
        """
        with self._guard:
            await anyio.lowlevel.checkpoint_if_cancelled()
            if self._descriptor < 0:
                raise anyio.ClosedResourceError
            if self._left:
                data, self._left = self._left[:max_bytes], self._left[max_bytes:]
            else:
                data = await self._next(max_bytes)
            if not data:
                raise anyio.EndOfStream
            if self._on_data is not None:
                self._on_data(data)
            return data

    async def _next(self, max_bytes: int) -> bytes:
        """What comes next, empty at the end of the stream.

        Read by the loop, in a turn of its own: a sandbox that floods its output starves nobody.
        """
        loop = asyncio.get_running_loop()
        self._max_bytes = max_bytes
        waiter: asyncio.Future[bytes] = loop.create_future()
        self._waiter = waiter
        if self._watching is None:
            loop.add_reader(self._descriptor, self._readable)
            self._watching = loop
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._left = waiter.result()
            raise
        finally:
            self._waiter = None

    def _readable(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            # Nobody waits for it: until somebody does, it would wake the loop again and again.
            self._unwatch()
            return
        try:
            waiter.set_result(os.read(self._descriptor, self._max_bytes))
        except BlockingIOError:
            pass
        except OSError as exc:
            waiter.set_exception(exc)

    def _unwatch(self) -> None:
        if self._watching is not None:
            self._watching.remove_reader(self._descriptor)
            self._watching = None

    async def aclose(self) -> None:
        """Close the descriptor; a task that waits for data gets ClosedResourceError."""
        self.close()
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """As `aclose`, without a checkpoint."""
        if self._descriptor < 0:
            return
        self._unwatch()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(anyio.ClosedResourceError())
        os.close(self._descriptor)
        self._descriptor = -1


class PipeWriter(ByteSendStream):
    """The writing end of a pipe. Takes over the descriptor."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._guard = anyio.ResourceGuard("writing to")

    async def send(self, item: bytes) -> None:
        """Write all of the data. If cancelled, a part of it may have been written.

        Raises:
            BrokenResourceError: The reader has closed the pipe. ClosedResourceError, BusyResourceError: as anyio's
                streams.
        """
        with self._guard:
            await anyio.lowlevel.checkpoint_if_cancelled()
            left = memoryview(item)
            while left:
                if self._descriptor < 0:
                    raise anyio.ClosedResourceError
                try:
                    left = left[os.write(self._descriptor, left) :]
                    if left:
                        # A reader may be as fast as this loop: others must get their turn all the same.
                        await anyio.lowlevel.checkpoint()
                except BlockingIOError:
                    await anyio.wait_writable(self._descriptor)
                except BrokenPipeError as error:
                    raise anyio.BrokenResourceError from error

    def write_now(self, item: bytes) -> int:
        """Write as much as the pipe takes now; return how many bytes that were.

        Raises:
            BrokenResourceError, ClosedResourceError, BusyResourceError: As `send`.
        """
        with self._guard:
            if self._descriptor < 0:
                raise anyio.ClosedResourceError
            try:
                return os.write(self._descriptor, item)
            except BlockingIOError:
                return 0
            except BrokenPipeError as error:
                raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Close the descriptor, which the child sees as EOF."""
        self.close()
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """As `aclose`, without a checkpoint."""
        self._descriptor = _close(self._descriptor)


def pipe_pairs() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Pipes for the standard streams of a process that somebody else starts: our descriptors, and its.

    Raises:
        OSError: There are no more descriptors; none is left open.
    """
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
            _enlarge(made[-1])
    except OSError:
        for descriptor in made:
            os.close(descriptor)
        raise
    (stdin, our_stdin, our_stdout, stdout, our_stderr, stderr) = made
    return (our_stdin, our_stdout, our_stderr), (stdin, stdout, stderr)


UNREADABLE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.BusyResourceError)
"""What it raises to read from a container that its engine has given up: it has closed the stream, or drains it."""


async def drain(stream: ByteReceiveStream) -> None:
    """Read to the end of a stream unless another task is reading it."""
    with contextlib.suppress(anyio.BusyResourceError, anyio.ClosedResourceError):
        async for _ in stream:
            pass


class Child:
    """A child process that leads its own session, so that a terminal's Ctrl-C doesn't reach it.

    Raises:
        OSError: It could not be started.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        self._process = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
            bufsize=0,
        )
        self._pidfd = -1
        # Without a pidfd (macOS, old kernels) a thread waits instead.
        with contextlib.suppress(AttributeError, OSError):
            self._pidfd = os.pidfd_open(self._process.pid)
        self._turn = anyio.Lock()

    def descriptors(self) -> tuple[int, int, int]:
        """The descriptors of stdin, stdout and stderr, which the caller takes over."""
        process = self._process
        assert process.stdin is not None  # for the type checker
        assert process.stdout is not None
        assert process.stderr is not None
        out = []
        for stream in (process.stdin, process.stdout, process.stderr):
            out.append(os.dup(stream.fileno()))
            stream.close()
            _enlarge(out[-1])
        return out[0], out[1], out[2]

    @property
    def returncode(self) -> int | None:
        """The exit status or None, as `subprocess.Popen.poll`; reaps the child."""
        code = self._process.poll()
        if code is not None and self._pidfd >= 0 and not self._turn.locked():
            os.close(self._pidfd)
            self._pidfd = -1
        return code

    async def wait(self) -> int:
        """Wait for the exit status. Any number of tasks may wait."""
        while (code := self.returncode) is None:
            async with self._turn:
                if self._process.poll() is not None:
                    continue
                if self._pidfd >= 0:
                    await anyio.wait_readable(self._pidfd)
                else:
                    await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        return code

    def kill_session(self) -> None:
        """Send SIGKILL to the child and to the processes in its session's process group."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


class PipedProcess(SandboxProcess):
    """A sandbox behind three pipes.

    Args:
        descriptors: Our ends of the pipes of its standard input, output and error, which it takes over.
        on_output: Called with every chunk of its standard output before it is returned.
    """

    def __init__(self, descriptors: tuple[int, int, int], on_output: Callable[[bytes], None] | None = None) -> None:
        stdin, stdout, stderr = descriptors
        self._tail = bytearray()
        """The end of its standard error, as far as it was read."""
        self._stdin = PipeWriter(stdin)
        self._stdout = PipeReader(stdout, on_data=on_output)
        self._stderr = PipeReader(stderr, on_data=self._on_stderr)

    @property
    def stdin(self) -> ByteSendStream:
        """The container's standard input."""
        return self._stdin

    @property
    def stdout(self) -> ByteReceiveStream:
        """The container's standard output: the channel."""
        return self._stdout

    @property
    def stderr(self) -> ByteReceiveStream:
        """The container's standard error: PID 1's reports, and messages of the engine or the runtime."""
        return self._stderr

    def _on_stderr(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-_TAIL_BYTES]


def _enlarge(descriptor: int) -> None:
    if _SET_PIPE_SIZE is not None:
        # If the user's limit on pipe memory is reached, the default size works too.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, _SET_PIPE_SIZE, PIPE_SIZE)


def _close(descriptor: int) -> int:
    if descriptor >= 0:
        anyio.notify_closing(descriptor)
        os.close(descriptor)
    return -1
