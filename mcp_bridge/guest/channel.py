"""The guest's end of the channel: one reader, writes from any thread, blocking and asynchronous requests.

A thread reads, rather than an event loop, because a blocking call must work inside and outside of a running loop, and
because importing `asyncio` costs more than the rest of the start. But while only one loop waits for answers, that loop
reads them itself: to be woken by a thread takes it longer than to read. The thread takes the reading back when anything
else waits, and when the loop is busy with something else for too long.
"""

import _thread
import os

from mcp_bridge.guest import call_ids
from mcp_bridge.wire import base64_frames, jsonrpc, sandbox_exits
from mcp_bridge.wire.annotations import Any, Callable, NoReturn
from mcp_bridge.wire.errors import LocalMessageError, WireError
from mcp_bridge.wire.framing import LineDecoder
from mcp_bridge.wire.messages import NAMES, CallTaken, RequestCancel, encode_params, notification

READ_BYTES = 262_144

CELL_ENDED = "what makes this call wasn't started by the cell that runs, but left by one before; start it in this one"

OWN_IDS = 2**53 - 2**32
"""The ids of this process's requests are above this, where another process has the channel, too."""

PARKED_SECONDS = 0.5
"""How long an event loop that reads may leave what has come unread, until the thread reads again."""

Answer = jsonrpc.Response | jsonrpc.ErrorResponse


class RequestError(Exception):
    """The host answered with an error. `data["code"]` is its stable code."""

    def __init__(self, message: str, data: dict[str, Any]) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class InLoop:
    """Takes an answer in an event loop.

    Args:
        loop: That event loop.
        settle: Called with the answer, in the loop.
    """

    __slots__ = ("loop", "settle")

    def __init__(self, loop: Any, settle: Callable[[Answer], None]) -> None:
        self.loop = loop
        self.settle = settle


class Pending:
    """A request whose answer this thread waits for later.

    Args:
        channel: The channel.
        params: The request, which is sent at once.
    """

    __slots__ = ("_answers", "_channel", "_done", "_number")

    def __init__(self, channel: "Channel", params: Any) -> None:
        self._channel = channel
        self._answers: list[Answer] = []
        self._done = _thread.allocate_lock()
        self._done.acquire()
        self._number = channel.send(params, self._take)

    def _take(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._done.release()

    def wait_for_answer(self) -> Any:
        """Block this thread until the result arrives.

        Raises:
            RequestError: The host answered with an error.
        """
        try:
            self._done.acquire()
        except BaseException:
            self._channel.forget(self._number)
            raise
        return _result(self._answers[0])

    def drop(self) -> None:
        """Ignore the answer. Sends nothing, so a finalizer may do it wherever it runs."""
        self._channel.drop(self._number)


class _Turn:
    """A reentrant lock, and a wait of the one thread that reads: as `threading.Condition`."""

    def __init__(self) -> None:
        self._lock = _thread.RLock()
        self._told = _thread.allocate_lock()
        self._told.acquire()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Release the lock, which is held once, until `notify`, maybe an old one; return whether that came in time."""
        self._lock.release()
        try:
            return self._told.acquire(timeout=seconds)
        finally:
            self._lock.acquire()

    def notify(self) -> None:
        """Wake the thread that waits, or its next wait. The lock is held."""
        if self._told.locked():
            self._told.release()


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
        self._write_lock = _thread.allocate_lock()
        self._waiting: dict[int, Callable[[Answer], None] | InLoop] = {}
        self._outside: set[int] = set()
        """Those of the requests whose answers no event loop waits for."""
        self._decoder = LineDecoder()
        self._turn = _Turn()
        """Guards who reads."""
        self._loop: Any = None
        """The event loop that reads; None while the thread does."""
        self._handed_over = 0
        """How often a loop was let read. One that was told before the last time that something has come doesn't read:
        the thread may have, and to read what isn't there would block the loop."""
        self._last: Any = None
        """The event loop that the last answer was for; None if it was for none."""
        self._reads = 0
        self._taking: int | None = None
        """The thread that takes answers in its event loop just now: what it writes is collected."""
        self._collected: list[bytes] = []
        self._next_id = 0
        self._forward: Callable[[bytes], bool] | None = None
        self.on_host_gone: Callable[[], None] = lambda: None
        self.replays = False
        """Whether the guest must acknowledge answers by `call.taken`."""
        self.is_between = False
        """Whether a session's cell has ended, and the next one hasn't begun: nothing can be asked for."""
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._after_fork)

    def start(self) -> None:
        """Start the reader thread."""
        # Not by `threading`, whose import takes a tenth of a container's start, and of its memory while it waits.
        _thread.start_new_thread(self._read, ())

    def lend(self, forward: Callable[[bytes], bool]) -> None:
        """Let another process have the channel, which numbers its requests from 1. This one's are over `OWN_IDS`.

        Args:
            forward: Takes the host's frames, without their newlines; False for one that is this process's.
        """
        self._forward = forward
        self._next_id = OWN_IDS

    def notify(self, params: Any) -> None:
        """Send a notification."""
        self._write(jsonrpc.encode(notification(params)))

    def request(self, params: Any) -> Any:
        """Send a request, and block this thread until the result arrives.

        Raises:
            RequestError: The host answered with an error.
        """
        params = named(params)
        pending = Pending(self, params)
        answer = pending.wait_for_answer()
        self._acknowledge(params)
        return answer

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

        params = named(params)
        number = self.send(params, InLoop(loop, settle))
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

    def send(self, params: Any, take: Callable[[Answer], None] | InLoop) -> int:
        """Send a request and return its number. A `take` that is a function is called on the reader thread."""
        if self.is_between:
            raise RequestError(CELL_ENDED, {"code": "cell_ended"})
        data = getattr(params, "base64", None)
        if isinstance(data, bytes):
            params = params._replace(base64="")
        body = encode_params(params)
        with self._write_lock:
            self._next_id += 1
            number = self._next_id
        method = NAMES[type(params)]
        if isinstance(data, bytes):
            line = base64_frames.encode_request(number, method, body, data)
        else:
            line = _line(number, method, body)
        self._waiting[number] = take
        if not isinstance(take, InLoop):
            self._outside.add(number)
            self._take_back()
        elif self._loop is not None and self._loop is not take.loop:
            self._take_back()
        self._write(line)
        return number

    def send_line(self, line: bytes) -> None:
        """Send a frame that is encoded already, with its newline."""
        self._write(line)

    def forget(self, number: int) -> None:
        """Tell the host to cancel the work on a request, unless it is answered."""
        if self.drop(number):
            self.notify(RequestCancel(number))

    def end_cell(self) -> None:
        """Refuse what is asked for until the next cell begins, and what is still waited for."""
        self.is_between = True
        self.refuse_waiting(CELL_ENDED, "cell_ended")

    def refuse_waiting(self, message: str, code: str) -> None:
        """Answer what is waited for with an error: the host won't."""
        for number in list(self._waiting):
            if (take := self._waiting.pop(number, None)) is not None:
                self._outside.discard(number)
                self._settle(take, jsonrpc.ErrorResponse(number, 0, message, {"code": code}), None)

    def drop(self, number: int) -> bool:
        """Ignore a request's answer; return whether the request was still open."""
        self._outside.discard(number)
        return self._waiting.pop(number, None) is not None

    def _write(self, line: bytes) -> None:
        if self._pid != os.getpid():
            raise RuntimeError("the bridge can't be reached from a forked process; call tools in the main process")
        if self._taking == _thread.get_ident():
            self._collected.append(line)
        else:
            self._write_out(line)

    def _write_out(self, line: bytes) -> None:
        try:
            with self._write_lock:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._write_fd, view) :]
        except OSError:
            os._exit(sandbox_exits.CHANNEL_CLOSED)

    # --- who reads ---

    def _read(self) -> NoReturn:
        """The reader thread."""
        while True:
            with self._turn:
                while self._loop is not None:
                    reads = self._reads
                    if not self._turn.wait(PARKED_SECONDS) and reads == self._reads and self._is_left():
                        self._loop = None
            self._receive(None)
            self._hand_over()

    def _is_left(self) -> bool:
        """Whether something has come that the loop doesn't read, or nothing is to be expected."""
        import select

        poll = select.poll()
        poll.register(self._read_fd, select.POLLIN)
        return not self._waiting or bool(poll.poll(0))

    def _hand_over(self) -> None:
        """Let the loop read that the last answer was for, if nothing else waits for one."""
        with self._turn:
            loop = self._last
            if loop is None or self._outside or any(each.loop is not loop for each in self._awaited()):
                return
            self._loop = loop
            self._handed_over += 1
        try:
            loop.call_soon_threadsafe(self._watch, loop, self._handed_over)
        except RuntimeError:
            # It was closed.
            self._take_back()

    def loops(self) -> list[Any]:
        """The event loops in which answers are waited for."""
        return [take.loop for take in self._awaited()]

    def _awaited(self) -> list[InLoop]:
        return [take for take in list(self._waiting.values()) if isinstance(take, InLoop)]

    def _take_back(self) -> None:
        """Have the thread read."""
        with self._turn:
            if self._loop is not None:
                self._loop = None
                self._turn.notify()

    def _watch(self, loop: Any, handed_over: int) -> None:
        try:
            loop.add_reader(self._read_fd, self._readable, loop, handed_over)
        except (NotImplementedError, OSError, ValueError):
            # A loop of another kind.
            self._take_back()

    def _readable(self, loop: Any, handed_over: int) -> None:
        """In the event loop: something has come, unless the thread has read it since."""
        lines: list[bytes] = []
        try:
            with self._turn:
                if self._loop is not loop or self._handed_over != handed_over:
                    loop.remove_reader(self._read_fd)
                    return
                # It doesn't wait: nobody else reads meanwhile.
                self._reads += 1
                self._taking, self._collected = _thread.get_ident(), lines
                try:
                    self._receive(loop)
                finally:
                    self._taking = None
        finally:
            # Not while nobody else can read: writing may wait until the host reads, and the host until this end does.
            if lines:
                self._write_out(b"".join(lines))

    def _receive(self, loop: Any) -> None:
        """Read once; `loop` is the running event loop that does it, or None."""
        try:
            chunk = os.read(self._read_fd, READ_BYTES)
        except OSError:
            os._exit(sandbox_exits.CHANNEL_CLOSED)
        self.take(chunk, loop)

    def take(self, chunk: bytes, loop: Any = None) -> None:
        """Take what was read; nothing is the end of the host's stream.

        Args:
            chunk: What was read.
            loop: The running event loop that has read it, or None.
        """
        if not chunk:
            try:
                self.on_host_gone()
            finally:
                os._exit(sandbox_exits.HOST_GONE)
        self._frames.mark()
        try:
            for line in self._decoder.feed(chunk):
                if self._forward is None or not self._forward(line):
                    self._dispatch(base64_frames.decode(line) or jsonrpc.decode(line), loop)
        except WireError:
            os._exit(sandbox_exits.BAD_FRAME)

    def _dispatch(self, message: jsonrpc.Message, loop: Any) -> None:
        if isinstance(message, (jsonrpc.Response, jsonrpc.ErrorResponse)):
            take = self._waiting.pop(message.id, None)
            self._outside.discard(message.id)
            self._last = take.loop if isinstance(take, InLoop) else None
            if take is not None:
                self._settle(take, message, loop)
        elif isinstance(message, jsonrpc.Notification):
            self._on_notification(message.method, message.params)

    @staticmethod
    def _settle(take: Callable[[Answer], None] | InLoop, answer: Answer, loop: Any) -> None:
        """Give an answer to who waits for it; `loop` is the running event loop that does, or None."""
        if not isinstance(take, InLoop):
            take(answer)
        elif take.loop is loop:
            take.settle(answer)
        else:
            try:
                take.loop.call_soon_threadsafe(take.settle, answer)
            except RuntimeError:
                pass  # The loop was closed: nobody waits.

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
        return _encoded(number, method, body)
    except LocalMessageError as exc:
        if exc.code != "not_json" or isinstance(exc, _TwoKeysError):
            raise
        from mcp_bridge.guest.values.json_equivalents import plain

        try:
            made = plain(body)
        except RecursionError:
            raise exc from None
        except TypeError as told:
            raise LocalMessageError(exc.code, f"the value can't be written as JSON: {told}") from None
        return _encoded(number, method, made)


_TEXT = frozenset({str})
_SCALARS = frozenset({str, int, float, bool, type(None)})


class _TwoKeysError(LocalMessageError):
    """A dict has two keys that are one name in JSON. Nothing that the value is converted to would have both."""


def _encoded(number: int, method: str, body: dict[str, Any]) -> bytes:
    line = jsonrpc.encode(jsonrpc.Request(number, method, body))
    # Encoded first: what contains itself is refused by then.
    waiting: list[Any] = [body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if not _TEXT.issuperset(map(type, node)):
                _check_names(node)
            node = node.values()
        # Most have nothing inside, which is seen at once.
        if not _SCALARS.issuperset(map(type, node)):
            waiting += [child for child in node if isinstance(child, (dict, list, tuple))]
    return line


def _check_names(members: dict[Any, Any]) -> None:
    """Check that no two keys of a dict become one name: the later value alone would arrive.

    Raises:
        LocalMessageError: Two do.
    """
    known: dict[str, Any] = {}
    words = {True: "true", False: "false", None: "null"}
    for key in members:
        if isinstance(key, str):
            name = str.__str__(key)
        elif key is None or isinstance(key, bool):
            name = words[key]
        else:
            name = int.__repr__(key) if isinstance(key, int) else float.__repr__(key)
        if name in known:
            raise _TwoKeysError(
                "not_json",
                f"a dict has the keys {known[name]!r} and {key!r}, which are one name in JSON; write keys as text",
            )
        known[name] = key


def named(params: Any) -> Any:
    """A call is named in the task or thread that makes it.

    Raises:
        RequestError: That belongs to a cell that has ended: the cell that runs now would have its calls.
    """
    if getattr(params, "call", "") is not None:
        return params
    line = call_ids.current()
    if line.cell != call_ids.Running.cell:
        raise RequestError(CELL_ENDED, {"code": "cell_ended"})
    return params._replace(call=line.call())


def _result(answer: Answer) -> Any:
    if isinstance(answer, jsonrpc.ErrorResponse):
        raise RequestError(answer.message, answer.data)
    return answer.result
