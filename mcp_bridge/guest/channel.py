"""The guest's end of the channel: one reader thread, writes from any thread, blocking and asynchronous requests.

It uses threads rather than an event loop because a blocking call must work inside and outside of a running loop, and
because importing `asyncio` costs more than the rest of the start.
"""

import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from mcp_bridge.guest import lineage
from mcp_bridge.wire import exits, jsonrpc
from mcp_bridge.wire.errors import LocalMessageError, WireError
from mcp_bridge.wire.framing import LineDecoder
from mcp_bridge.wire.messages import NAMES, CallTaken, RequestCancel, encode_params, notification

READ_BYTES = 262_144

Answer = jsonrpc.Response | jsonrpc.ErrorResponse


class RequestError(Exception):
    """The host answered with an error. `data["code"]` is its stable code."""

    def __init__(self, message: str, data: dict[str, Any]) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class Channel:
    """Requests to the host, and notifications in both directions.

    Raises (every method that sends): `LocalMessageError` if the value isn't JSON or exceeds a limit of the channel.
    """

    def __init__(
        self, read_fd: int, write_fd: int, on_notification: Callable[[str, dict[str, Any]], None], frames: Any
    ) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_notification = on_notification
        self._frames = frames
        self._write_lock = threading.Lock()
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self._next_id = 0
        self.replays = False
        """Whether the guest must acknowledge answers by `call.taken`."""
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._after_fork)

    def start(self) -> None:
        """Start the reader thread."""
        threading.Thread(target=self._read, name="bridge-channel", daemon=True).start()

    def notify(self, params: Any) -> None:
        """Send a notification."""
        self._write(jsonrpc.encode(notification(params)))

    def request(self, params: Any) -> Any:
        """Send a request, and block this thread until the result arrives.

        Raises:
            RequestError: The host answered with an error.
        """
        done = threading.Lock()
        done.acquire()
        answers: list[Answer] = []

        def take(answer: Answer) -> None:
            answers.append(answer)
            done.release()

        params = _named(params)
        number = self.send(params, take)
        try:
            done.acquire()
        except BaseException:
            self.forget(number)
            raise
        self._acknowledge(params)
        return _result(answers[0])

    async def request_async(self, params: Any) -> Any:
        """As `request`, for the running event loop. Cancellation cancels the work on the host.

        Raises:
            RequestError: The host answered with an error.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def settle(answer: Answer) -> None:
            if not future.done():
                future.set_result(answer)

        def take(answer: Answer) -> None:
            try:
                loop.call_soon_threadsafe(settle, answer)
            except RuntimeError:
                pass  # The loop was closed: nobody waits.

        params = _named(params)
        number = self.send(params, take)
        try:
            answer = await future
        except BaseException:
            self.forget(number)
            raise
        self._acknowledge(params)
        return _result(answer)

    def _acknowledge(self, params: Any) -> None:
        if self.replays and (call := getattr(params, "call", None)) is not None:
            self.notify(CallTaken(call))

    def send(self, params: Any, take: Callable[[Answer], None]) -> int:
        """Send a request and return its number. `take` is called with the answer on the reader thread."""
        body = encode_params(params)
        with self._write_lock:
            self._next_id += 1
            number = self._next_id
        line = _line(number, NAMES[type(params)], body)
        self._waiting[number] = take
        self._write(line)
        return number

    def forget(self, number: int) -> None:
        """Tell the host to cancel the work on a request, unless it is answered."""
        if self.drop(number):
            self.notify(RequestCancel(number))

    def drop(self, number: int) -> bool:
        """Ignore a request's answer; return whether the request was still open."""
        return self._waiting.pop(number, None) is not None

    def _write(self, line: bytes) -> None:
        if self._pid != os.getpid():
            raise RuntimeError("the bridge can't be reached from a forked process; call tools in the main process")
        try:
            with self._write_lock:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._write_fd, view) :]
        except OSError:
            os._exit(exits.CHANNEL_CLOSED)

    def _read(self) -> NoReturn:
        decoder = LineDecoder()
        while True:
            try:
                chunk = os.read(self._read_fd, READ_BYTES)
            except OSError:
                os._exit(exits.CHANNEL_CLOSED)
            if not chunk:
                os._exit(exits.HOST_GONE)
            self._frames.mark()
            try:
                for line in decoder.feed(chunk):
                    self._dispatch(jsonrpc.decode(line))
            except WireError:
                os._exit(exits.BAD_FRAME)

    def _dispatch(self, message: jsonrpc.Message) -> None:
        if isinstance(message, (jsonrpc.Response, jsonrpc.ErrorResponse)):
            take = self._waiting.pop(message.id, None)
            if take is not None:
                take(message)
        elif isinstance(message, jsonrpc.Notification):
            self._on_notification(message.method, message.params)

    def _after_fork(self) -> None:
        # A forked child that kept the write end open would hide the guest's death from the host.
        for fd in (self._read_fd, self._write_fd):
            try:
                os.close(fd)
            except OSError:
                pass


def _line(number: int, method: str, body: dict[str, Any]) -> bytes:
    """The line of a request, with Python values converted to JSON."""
    try:
        return jsonrpc.encode(jsonrpc.Request(number, method, body))
    except LocalMessageError as exc:
        if exc.code != "not_json":
            raise
        from mcp_bridge.guest.plain import plain

        try:
            made = plain(body)
        except RecursionError:
            raise exc from None
        except TypeError as told:
            raise LocalMessageError(exc.code, f"the value can't be written as JSON: {told}") from None
        return jsonrpc.encode(jsonrpc.Request(number, method, made))


def _named(params: Any) -> Any:
    """A call is named in the task or thread that makes it."""
    return params._replace(call=lineage.current().call()) if getattr(params, "call", "") is None else params


def _result(answer: Answer) -> Any:
    if isinstance(answer, jsonrpc.ErrorResponse):
        raise RequestError(answer.message, answer.data)
    return answer.result
