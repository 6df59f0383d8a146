"""MCP over standard input and output, which ends as cleanly on signals as at end of file.

The SDK's transport reads in a worker thread that cancellation has to wait for, so a server can't exit on SIGTERM before
its client sends another line. Here the reading thread is a daemon thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import stat
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.shared.message import SessionMessage

from mcp_bridge.downstream.transports.lines import LineSplitter, Oversized
from mcp_bridge.server.messages.decoding import UnreadableMessage, decode, no_answer, unforeseen

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 16

WAITING_MESSAGES = 64
"""Capacity for messages that were read and not processed; when it is exhausted, the client's writes block."""

MAX_LINE_BYTES = 64 << 20
"""Most of one message: the largest code has an eighth of it, and JSON may escape each character."""

LOGGED_PER_MINUTE = 10
"""Lines that are refused and logged one by one; further ones aren't."""

ReadStream = "MemoryObjectReceiveStream[SessionMessage | Exception]"
WriteStream = "MemoryObjectSendStream[SessionMessage]"


@asynccontextmanager
async def stdio_transport() -> AsyncGenerator[tuple[Any, Any]]:
    """The read and write streams for `Server.run`.

    Descriptors 0 and 1 are moved while it is open, so that a stray print, here or in a child, can't corrupt a message.
    """
    wire_in, wire_out = _claim(0, os.O_RDONLY), _claim(1, None)
    read_send: MemoryObjectSendStream[SessionMessage | Exception]
    read_send, read_receive = anyio.create_memory_object_stream(WAITING_MESSAGES)
    write_send: MemoryObjectSendStream[SessionMessage]
    write_send, write_receive = anyio.create_memory_object_stream(0)
    loop = asyncio.get_running_loop()
    delivery = _Delivery(read_send, write_send, loop)
    reader = threading.Thread(target=_read, args=(wire_in, delivery), name="stdin", daemon=True)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_write, wire_out, write_receive, read_send)
            reader.start()
            yield read_receive, write_send
            tasks.cancel_scope.cancel()
    finally:
        for stream in (read_send, read_receive, write_send, write_receive):
            stream.close()


def _claim(fd: int, null_flags: int | None) -> int:
    """Duplicate a descriptor and redirect the original: 0 to the null device, 1 to standard error."""
    private = os.dup(fd)
    if null_flags is None:
        os.dup2(2, fd)
    else:
        null = os.open(os.devnull, null_flags)
        os.dup2(null, fd)
        os.close(null)
    return private


def _read(fd: int, delivery: _Delivery) -> None:
    splitter = LineSplitter(MAX_LINE_BYTES)
    try:
        while chunk := _read_chunk(fd):
            for line in splitter.feed(chunk):
                if not delivery.take(line):
                    return
    finally:
        # However it ends: the server would wait for messages for ever.
        delivery.end()


def _read_chunk(fd: int) -> bytes:
    try:
        return os.read(fd, READ_BYTES)
    except OSError:
        return b""


class _Delivery:
    """Hands what was read to the server, from the thread that reads. A line that can't be read is answered.

    Args:
        read: Where the server reads messages.
        write: Where answers are written.
        loop: The server's event loop.
        clock: The seconds since some moment.
    """

    def __init__(
        self,
        read: MemoryObjectSendStream[SessionMessage | Exception],
        write: MemoryObjectSendStream[SessionMessage],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._messages = read
        self._answers = write
        self._loop = loop
        self._clock = clock
        self._minute = clock()
        self._logged = 0

    def take(self, line: bytes | Oversized) -> bool:
        """Take a line; False if nothing is left to read for."""
        if isinstance(line, bytes) and not line.strip():
            return True
        try:
            message = _decoded(line)
        except UnreadableMessage as refusal:
            return self._refuse(refusal)
        except Exception as exc:  # noqa: BLE001  (whatever it is, the next line is read)
            return self._refuse(unforeseen(line if isinstance(line, bytes) else b"", exc))
        return self._send(self._messages, message)

    def _refuse(self, refusal: UnreadableMessage) -> bool:
        self._log(refusal)
        answer = refusal.answer()
        # A client that doesn't read its answers isn't read any further: they would take memory without bound.
        return answer is None or self._send(self._answers, answer)

    def end(self) -> None:
        """There are no further lines."""
        try:
            self._loop.call_soon_threadsafe(self._messages.close)
        except RuntimeError:
            logger.debug("the loop ended before standard input")

    def _send(self, stream: MemoryObjectSendStream[Any], message: types.JSONRPCMessage) -> bool:
        sending = stream.send(SessionMessage(message))
        try:
            asyncio.run_coroutine_threadsafe(sending, self._loop).result()
        except Exception as exc:  # noqa: BLE001  (the loop, or the receiver, is gone: nothing is left to read for)
            sending.close()
            logger.debug("a message came after the end: %r", exc)
            return False
        return True

    def _log(self, refusal: UnreadableMessage) -> None:
        """Log it without what it holds, which may be secret."""
        now = self._clock()
        if now - self._minute >= 60:  # noqa: PLR2004 - seconds
            self._minute, self._logged = now, 0
        self._logged += 1
        if self._logged > LOGGED_PER_MINUTE:
            return
        more = " (further ones are not logged for a minute)" if self._logged == LOGGED_PER_MINUTE else ""
        done = "refused" if refusal.is_answered else "left out"
        logger.warning("a message of the client is %s%s: %s", done, more, refusal)


def _decoded(line: bytes | Oversized) -> types.JSONRPCMessage:
    """The message of a line.

    Raises:
        UnreadableMessage: There is none.
    """
    if isinstance(line, Oversized):
        why = f"The message has {line.size} bytes; the limit is {MAX_LINE_BYTES}."
        if line.is_answer:
            return no_answer(types.INVALID_REQUEST, why, line.request_id)
        raise UnreadableMessage(types.INVALID_REQUEST, f"{why} Nothing was run.", line.request_id)
    return decode(line).message


async def _write(
    fd: int,
    receive: MemoryObjectReceiveStream[SessionMessage],
    read_send: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    with _writer(fd) as write_now:
        async for message in receive:
            if _is_of_the_end(message.message) and read_send.statistics().open_send_streams == 0:
                # Nobody would read it, and clients that use SDK 1.x raise an exception when they receive it.
                continue
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            try:
                if rest := data[write_now(data) :]:
                    # In a thread: a client that doesn't read must not block other executions or their heartbeats.
                    await anyio.to_thread.run_sync(_write_all, fd, rest, abandon_on_cancel=True)
            except OSError as exc:
                logger.debug("the client is gone: %s", exc)
                read_send.close()
                return


def _is_of_the_end(message: types.JSONRPCMessage) -> bool:
    """Whether it is the SDK's answer to a request that was in progress when the connection ended."""
    return isinstance(message, types.JSONRPCError) and message.error.code == types.CONNECTION_CLOSED


@contextmanager
def _writer(fd: int) -> Iterator[Callable[[bytes], int]]:
    """Writes as much of a message as the client's end takes without waiting, and returns how many bytes those are.

    The descriptor stays blocking: another process may have it, too. Only this writes to it.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        # What Node's clients have instead of pipes.
        with socket.socket(fileno=os.dup(fd)) as connection:

            def send(data: bytes) -> int:
                try:
                    return connection.send(data, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return 0

            yield send
    elif stat.S_ISFIFO(mode):
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        # A pipe that is ready takes so many bytes at once. One without a reader is ready, too: the write says so.
        yield lambda data: os.write(fd, data) if len(data) <= select.PIPE_BUF and poll.poll(0) else 0
    else:
        yield lambda _: 0


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
