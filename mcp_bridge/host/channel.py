"""The host's end of the channel to one guest.

Everything that the guest sends is untrusted: it is decoded strictly into a type and counted against the execution's
limits before it is used. An invalid frame ends the sandbox, never the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.lowlevel

from mcp_bridge import fair_share, large_json
from mcp_bridge.errors import TOO_LARGE_HINT, BridgeError
from mcp_bridge.gate.request_context import RequestContext
from mcp_bridge.host.frame_writer import FrameWriter
from mcp_bridge.offload import LARGE_CHARS, is_large, on_thread
from mcp_bridge.wire import base64_frames, jsonrpc, messages
from mcp_bridge.wire.errors import LocalMessageError, WireError
from mcp_bridge.wire.framing import LineDecoder, excerpt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.abc import ByteReceiveStream, ByteSendStream, TaskGroup

    from mcp_bridge.error_codes import Code
    from mcp_bridge.wire.json_codec import Encoder

logger = logging.getLogger(__name__)

HOST_BEAT_SECONDS = 15.0
"""Interval of the host's heartbeat to the guest."""

MAX_QUEUED = 1000
"""Most requests that wait for a slot. Beyond that the channel isn't read, and the guest's writes block."""

MIN_REFUSALS = 1000
"""Least number of refused requests after which a script is ended as a flood; `max_calls` if that is more."""

MAX_HELD_BYTES = 64 << 20
"""Most memory of requests that wait or are worked on. Beyond that the channel isn't read."""

MAX_AHEAD_BYTES = 16 << 20
"""Most bytes that are read ahead while requests wait for a slot."""

VALUE_BYTES = 64
"""Estimated memory of a value besides its text: an empty list or a short number is two bytes in a frame."""

FEW_REQUESTS = 4
"""Requests in progress, or in one chunk, beyond which each further one is charged."""

REQUEST_SECONDS, NOTIFICATION_SECONDS, BYTE_SECONDS = 0.002, 0.0001, 60e-9
"""The charges for a small request, a notification, and a byte of either: about their time on the event loop."""

AT_ONCE = 20
"""Frames that are handled before other tasks run."""

SMALL_FRAME_BYTES = 1 << 10
"""The first step of a request smaller than this takes no longer than other steps of the event loop."""

SMALL_AT_ONCE = 8
"""How many small requests are started together; a larger one is started alone. The first step of some, such as a check
of arguments, takes time, and starting a whole chunk at once would delay every other execution."""

IDLE_WORKERS = 32
"""Most idle tasks that are kept for further requests: creating one takes as long as decoding a request."""

MAX_UNSENT_BYTES = 32 << 20
"""Most bytes of answers that the guest hasn't read. Beyond that no further request is worked on."""


async def _waits_for_no_effect() -> bool:
    return False


async def _takes_no_note(_params: Any, _request: RequestContext) -> None:
    pass


class TooManyRequestsError(Exception):
    """The guest didn't stop although its requests were refused."""


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Bounds on what one execution may ask of the host.

    Attributes:
        in_flight: Requests worked on at once.
        total: Requests in all.
        size: Bytes of requests in all.
    """

    in_flight: int
    total: int
    size: int


class _Amount:
    """Bytes of something, and a wait for room. When empty, one item of any size is admitted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._now = 0
        self._less: anyio.Event | None = None
        """Set when there is less, if somebody waits for that."""

    def add(self, size: int) -> None:
        self._now += size
        if size < 0 and self._less is not None:
            self._less.set()
            self._less = None

    def has_room(self, size: int) -> bool:
        return not self._now or self._now + size <= self._limit

    async def room(self, size: int) -> None:
        while not self.has_room(size):
            if self._less is None:
                self._less = anyio.Event()
            await self._less.wait()


class _Job(NamedTuple):
    """A request to be worked on: with its parameters, and with the memory that it takes."""

    request: _Request
    params: Any
    size: int


class _Request(RequestContext):
    """A request of the guest that waits for its turn or is worked on. It has a place in the queue, and a slot in turn.

    Args:
        channel: The channel that it came by.
        number: Its id on the wire.

    Attributes:
        scope: Everything that is done for it.
        has_effect: Whether it has an effect, or is about to.
        was_cancelled: Whether the guest has cancelled it.
    """

    __slots__ = (
        "_channel",
        "_effect_over",
        "_has_slot",
        "_is_queued",
        "_is_working",
        "has_effect",
        "number",
        "scope",
        "was_cancelled",
    )

    def __init__(self, channel: HostChannel, number: int) -> None:
        self._channel = channel
        self.has_effect = False
        self._effect_over: anyio.Event | None = None
        """Set when its effect is over, if somebody waits for that."""
        self._has_slot = False
        self._is_queued = True
        self._is_working = True
        self.number = number
        self.scope = anyio.CancelScope()
        self.was_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        return self.was_cancelled or self._channel.finished

    def cancel(self) -> None:
        """The guest no longer wants the answer."""
        self.was_cancelled = True
        self.scope.cancel()

    def release_slot(self) -> None:
        channel = self._channel
        if self._is_working:
            self._is_working = False
            channel.working -= 1
            channel.moved_at = time.monotonic()
        if self._is_queued:
            self._is_queued = False
            channel.queue.release()
        if self._has_slot:
            self._has_slot = False
            channel.slots.release()

    async def reacquire_slot(self) -> None:
        if not self._has_slot:
            # Counted before it has a slot, because it may be cancelled while it waits for one.
            self._channel.working += not self._is_working
            self._is_working = True
            try:
                self._channel.slots.acquire_nowait()
            except anyio.WouldBlock:
                await self._channel.slots.acquire()
            self._has_slot = True

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._channel.on_cancel[self.number] = callback

    async def effect_begins(self) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        # Work that outlives its request isn't waited for.
        if self._channel.requests.get(self.number) is self:
            self.has_effect = True

    def effect_ended(self) -> None:
        self.has_effect = False
        if self._effect_over is not None:
            self._effect_over.set()
            self._effect_over = None

    async def effect_over(self) -> None:
        """Wait for the end of its effect, if it has one."""
        if self.has_effect:
            if self._effect_over is None:
                self._effect_over = anyio.Event()
            await self._effect_over.wait()


class HostChannel:
    """Reads a guest's frames and answers its requests.

    Args:
        stdin: The guest's standard input.
        stdout: The guest's standard output.
        limits: The execution's limits.
        answer: Returns the result of a request, given its context; a BridgeError becomes the guest's error.
        on_notification: Called with each notification.
        on_wait: Called with +1 when a request begins, or the guest is blocked by the host, and -1 when that is over.
        on_cancelled_before_start: Called with a request that the guest cancelled, or left at its end, before it was
            worked on, and with its context.
        on_closed: Called when the guest's end is closed without a result, to find out why. Returns whether `serve`
            waits for effects in progress.
        principal: Whose execution it is, for the share of the interpreter.
    """

    def __init__(
        self,
        stdin: ByteSendStream,
        stdout: ByteReceiveStream,
        limits: ChannelLimits,
        answer: Callable[[Any, RequestContext], Awaitable[Any]],
        on_notification: Callable[[Any], None],
        on_wait: Callable[[int], None],
        on_cancelled_before_start: Callable[[Any, RequestContext], Awaitable[None]] = _takes_no_note,
        on_closed: Callable[[], Awaitable[bool]] = _waits_for_no_effect,
        principal: str | None = None,
    ) -> None:
        self._writer = FrameWriter(stdin)
        self._stdout = stdout
        self._limits = limits
        self._answer = answer
        self._on_notification = on_notification
        self._on_wait = on_wait
        self._on_cancelled_before_start = on_cancelled_before_start
        self._on_closed = on_closed
        self._ahead: deque[bytes] = deque()
        self._held = _Amount(MAX_HELD_BYTES)
        self._unsent = _Amount(MAX_UNSENT_BYTES)
        self.requests: dict[int, _Request] = {}
        """The requests that wait for a slot or are worked on, by their numbers."""
        self.on_cancel: dict[int, Callable[[], None]] = {}
        """Callbacks of requests, including answered ones: see `RequestContext.on_cancel`."""
        self.slots = anyio.Semaphore(limits.in_flight, fast_acquire=True)
        self.queue = anyio.Semaphore(limits.in_flight + MAX_QUEUED, fast_acquire=True)
        self.working = 0
        """The number of requests that are worked on or wait for a slot, without those that only wait for others."""
        self.moved_at = time.monotonic()
        """When a request last arrived or ended, on the monotonic clock."""
        self.finished = False
        """Whether the guest has sent its result. It needs no other answers then."""
        self.acknowledgement = b""
        """The answer to the guest's result, upon which it leaves. It is sent when its container is removed."""
        self._total = 0
        self._size = 0
        self._refused = 0
        self._refusing = False
        self._interruption: BridgeError | None = None
        """What an interrupted cell's requests are answered with."""
        self._heard_at = time.monotonic()
        self._deaf = False
        self._tenant = fair_share.Tenant(owner=principal)
        self._together = 0
        self._begun_together = 0
        self._idle: list[asyncio.Future[_Job]] = []
        """The futures on which idle tasks wait for a request."""
        self._reading = anyio.CancelScope()

    def start(self, data: bytes) -> None:
        """Send the guest's code and the script: what the pipe takes at once, and the rest while `serve` runs."""
        self._writer.post(data, at_once=True)

    async def beat(self) -> None:
        """Send the heartbeat at intervals; runs until cancelled."""
        line = jsonrpc.encode(messages.notification(messages.HostBeat()))
        while True:
            await anyio.sleep(HOST_BEAT_SECONDS)
            await self._writer.send(line)

    @property
    def heard_at(self) -> float:
        """When anything last arrived, on the monotonic clock; the current time while the host doesn't read.

        While the host doesn't read, the engine's client can't pass anything on, process 1's heartbeat included.
        """
        return time.monotonic() if self._deaf else self._heard_at

    @property
    def quiet_seconds(self) -> float:
        """Seconds without any request; 0 while one is worked on, and after the result."""
        return 0.0 if self.working or self._ahead or self.finished else time.monotonic() - self.moved_at

    def refuse(self) -> None:
        """Cancel all requests and refuse further ones, a result too. The guest's output is still read."""
        self._refusing = True
        self._interruption = None
        for request in self.requests.values():
            request.scope.cancel()

    def interrupt(self, execution: str, error: BridgeError) -> None:
        """Interrupt a session's cell: as `refuse`, but the guest is told, and its result and files are still taken.

        May be called again: a script can hold off an interruption.

        Args:
            execution: The cell's execution.
            error: What requests are answered with from now on.
        """
        if self._interruption is None:
            # Not again: the guest may keep files by now.
            self.refuse()
        self._interruption = error
        self.notify(messages.ExecutionInterrupt(execution))

    def notify(self, params: Any) -> None:
        """Send the guest a notification."""
        self._writer.post(jsonrpc.encode(messages.notification(params)))

    def hang_up(self) -> None:
        """Stop reading: the guest can't be reached, even if its end isn't closed."""
        self._reading.cancel()

    async def serve(self) -> messages.ExecutionFinish | None:
        """Read until the guest finishes or its end of the channel closes (None).

        Raises:
            WireError: The guest sent an invalid message.
            TooManyRequestsError: The guest kept sending requests after they were refused.
        """
        whose = fair_share.current.set(self._tenant)
        try:
            return await self._serve()
        finally:
            fair_share.current.reset(whose)
            # A client's next script would otherwise wait for its last one.
            self._tenant.mark_ended()

    async def _serve(self) -> messages.ExecutionFinish | None:
        failure: Exception | None = None
        finish: messages.ExecutionFinish | None = None
        async with anyio.create_task_group() as tasks:
            with self._writer.within(tasks):
                try:
                    finish = await self._read(tasks)
                except Exception as exc:  # noqa: BLE001  (raised below: a task group would wrap it in a group)
                    failure = exc
                if finish is None and failure is None:
                    self._begin_nothing()
                    if await self._on_closed():
                        for request in list(self.requests.values()):
                            await request.effect_over()
            if self._total or self._writer.is_writing:
                tasks.cancel_scope.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                # Otherwise the error keeps this stack frame, with the last message, until garbage collection.
                del failure
        return finish

    async def _read(self, tasks: TaskGroup) -> messages.ExecutionFinish | None:
        """Take frames until the guest finishes or its end closes (None)."""
        decoder = LineDecoder()
        try:
            with self._reading:
                while True:
                    self._deaf = False
                    self._heard_at = time.monotonic()
                    chunk = self._ahead.popleft() if self._ahead else await self._stdout.receive()
                    self._deaf = True
                    for number, line in enumerate(decoder.feed(chunk), start=1):
                        self._together = number
                        finish = await self._take(line, tasks)
                        if finish is not None:
                            return finish
                        if number % AT_ONCE == 0:
                            await anyio.lowlevel.checkpoint()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            if decoder.incomplete:
                logger.debug("the channel ended within a frame: %s", excerpt(decoder.incomplete))
        return None

    def _begin_nothing(self) -> None:
        self._refusing = True
        for request in self.requests.values():
            if not request.has_effect:
                request.scope.cancel()

    async def _take(self, line: bytes, tasks: TaskGroup) -> messages.ExecutionFinish | None:
        if len(line) > LARGE_CHARS:
            with self._held_up():
                message = await on_thread(_decoded, line)
        else:
            message = _decoded(line)
        if not isinstance(message, (jsonrpc.Request, jsonrpc.Notification)):
            raise WireError("unexpected_response", "an answer came to a question that was never asked", excerpt(line))
        kind = messages.method_params(message.method)
        is_request = isinstance(message, jsonrpc.Request)
        if message.method not in (messages.GUEST_REQUESTS if is_request else messages.GUEST_NOTIFICATIONS):
            raise WireError("unknown_method", f"a guest may not send {message.method!r} so", excerpt(line))
        params = messages.decode_params(kind, message.params)
        if isinstance(message, jsonrpc.Notification):
            await self._note(params, len(line))
            return None
        return await self._take_request(message.id, params, line, tasks)

    async def _note(self, params: Any, size: int) -> None:
        if isinstance(params, messages.RequestCancel):
            # What it cancels has been begun, and leaves room for the next.
            self._tenant.charge(REQUEST_SECONDS)
            # A script that is being suspended for what it waits for cancels nothing of that.
            await anyio.lowlevel.checkpoint_if_cancelled()
            # Also for a request that was answered: the answer came too late.
            if (callback := self.on_cancel.pop(params.id, None)) is not None:
                callback()
            if (request := self.requests.get(params.id)) is not None:
                request.cancel()
            return
        self._tenant.charge(NOTIFICATION_SECONDS + size * BYTE_SECONDS)
        await self._turn()
        self._on_notification(params)

    async def _take_request(
        self, number: int, params: Any, line: bytes, tasks: TaskGroup
    ) -> messages.ExecutionFinish | None:
        if isinstance(params, messages.ExecutionFinish) and (self._interruption is not None or not self._refusing):
            # As for a cancellation.
            await anyio.lowlevel.checkpoint_if_cancelled()
            # What the script leaves behind at its end, it no longer wants.
            self.finished = True
            self.acknowledgement = jsonrpc.encode(jsonrpc.Response(number, {}))
            await self._writer.close()
            return params
        self._tenant.mark_active()
        # A script that asks one thing after the other can't take more time than its answers do.
        is_flood = max(len(self.requests), self._together) > FEW_REQUESTS
        self._tenant.charge(len(line) * BYTE_SECONDS + (REQUEST_SECONDS if is_flood else 0))
        await self._turn()
        self.moved_at = time.monotonic()
        keeps_file = self._interruption is not None and isinstance(params, messages.ArtifactWrite)
        if self._refusing and not keeps_file:
            if self._interruption is not None:
                self._writer.post(jsonrpc.encode(error_response(number, self._interruption)))
            return None
        if number in self.requests:
            raise WireError("bad_params", f"two requests under way have the id {number}", excerpt(line))
        self._total += 1
        self._size += len(line)
        if (refusal := self._over()) is not None:
            # At once, and before the next frame is read: what is over the limit takes no place and no memory.
            self._refused += 1
            if self._refused > max(self._limits.total, MIN_REFUSALS):
                raise TooManyRequestsError(
                    f"The script continued after {self._refused - 1} refusals: {refusal.message}"
                )
            # Not waited for: podman's monitor takes no input for a container while nobody takes its output.
            self._writer.post(jsonrpc.encode(error_response(number, refusal)))
            return None
        if len(line) > LARGE_CHARS:
            with self._held_up():
                size = len(line) + VALUE_BYTES * await on_thread(jsonrpc.separators, line)
        else:
            size = len(line) + VALUE_BYTES * jsonrpc.separators(line)
        # Acquired here and not in the task: a flood then waits in the pipe and not in our memory.
        await self._take_place(size)
        self._held.add(size)
        self.working += 1
        request = self.requests[number] = _Request(self, number)
        self._on_wait(1)
        self._begin(_Job(request, params, size), tasks)
        self._begun_together += 1
        if len(line) >= SMALL_FRAME_BYTES or self._begun_together >= SMALL_AT_ONCE:
            self._begun_together = 0
            await anyio.lowlevel.checkpoint()
        return None

    async def _turn(self) -> None:
        if not self._tenant.has_turn():
            with self._held_up():
                await self._tenant.turn()

    @contextlib.contextmanager
    def _held_up(self) -> Iterator[None]:
        """The script waits for us: it uses none of its own time, and has not come to rest."""
        began = time.monotonic()
        self.working += 1
        self._on_wait(1)
        try:
            yield
        finally:
            self._on_wait(-1)
            self.working -= 1
            self.moved_at += time.monotonic() - began

    async def _take_place(self, size: int) -> None:
        if not self._held.has_room(size):
            await self._reading_ahead(self._held.room, size)
        try:
            self.queue.acquire_nowait()
        except anyio.WouldBlock:
            await self._reading_ahead(self.queue.acquire)

    async def _reading_ahead(self, wait: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Wait for room, and take what comes meanwhile, as far as memory goes.

        Podman's monitor takes no input for a container while nobody takes its output: requests that wait for room here,
        and answers that would make room, would wait for each other.
        """
        async with anyio.create_task_group() as reading:
            reading.start_soon(self._read_ahead)
            await wait(*args)
            reading.cancel_scope.cancel()

    async def _read_ahead(self) -> None:
        # At the end of the stream, and of a session's frames, the next to receive is told so again.
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, WireError):
            while sum(map(len, self._ahead)) < MAX_AHEAD_BYTES:
                self._ahead.append(await self._stdout.receive())

    def _begin(self, job: _Job, tasks: TaskGroup) -> None:
        """Have a request worked on: by a task that has nothing to do, or by a new one."""
        while self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(job)
                return
        tasks.start_soon(self._work_on, job)

    async def _work_on(self, job: _Job) -> None:
        """Work on one request after the other."""
        while True:
            await self._work(*job)
            # A request holds what was sent with it.
            del job
            if len(self._idle) >= IDLE_WORKERS:
                return
            waiting: asyncio.Future[_Job] = asyncio.get_running_loop().create_future()
            self._idle.append(waiting)
            try:
                job = await waiting
            except asyncio.CancelledError:
                if waiting.done() and not waiting.cancelled():
                    # It was given one in that moment, which is accounted for as any other that is cancelled.
                    await self._work(*waiting.result())
                raise
            del waiting

    async def _work(self, request: _Request, params: Any, size: int) -> None:
        answer: bytes | None = None
        has_started = False
        try:
            try:
                with request.scope:
                    # Cancelled before it began: a request that never waits would be worked on all the same.
                    await anyio.lowlevel.checkpoint_if_cancelled()
                    await request.reacquire_slot()
                    if not self._unsent.has_room(1):
                        await self._unsent.room(1)
                    has_started = True
                    result = await self._result(request, params)
                    answer = await self._encode(result)
            finally:
                # Before the answer is sent: what the guest does with it is its own time.
                self._on_wait(-1)
                del self.requests[request.number]
                request.effect_ended()
                if request.is_cancelled and not has_started:
                    with anyio.CancelScope(shield=True):
                        await self._on_cancelled_before_start(params, request)
        finally:
            if answer is None:
                self._worked(request, size)
            else:
                self._unsent.add(len(answer))
                # After it is sent: a guest that doesn't read its answers gets no more of them.
                sent = functools.partial(self._worked, request, size, len(answer))
                self._writer.post(answer, sent, at_once=not self.requests)

    def _worked(self, request: _Request, size: int, sent: int = 0) -> None:
        """A request has had its answer, of so many bytes, or gets none."""
        self._unsent.add(-sent)
        request.release_slot()
        self._held.add(-size)

    def _over(self) -> BridgeError | None:
        if self._total > self._limits.total:
            return BridgeError(
                "too_many_calls",
                f"This run has made {self._limits.total} requests.",
                hint="Go on in another run, make fewer calls, or have the operator raise max_calls.",
            )
        if self._size > self._limits.size:
            return BridgeError(
                "calls_too_large",
                f"This run's requests are over {self._limits.size} bytes.",
                hint="Go on in another run, pass less, or have the operator raise max_call_size.",
            )
        return None

    async def _encode(self, answer: jsonrpc.Response | jsonrpc.ErrorResponse) -> bytes:
        if isinstance(answer, jsonrpc.Response) and isinstance(answer.result, base64_frames.Base64):
            return base64_frames.encode(answer.id, answer.result)
        given = answer.result if isinstance(answer, jsonrpc.Response) else answer
        return await on_thread(_encoded_large, answer) if is_large(given) else _encoded(answer)

    async def _result(self, request: _Request, params: Any) -> jsonrpc.Response | jsonrpc.ErrorResponse:
        number = request.number
        try:
            return jsonrpc.Response(number, await self._answer(params, request))
        except BridgeError as exc:
            return error_response(number, exc)
        except Exception:
            # A fault of ours must reach the operator's log, and neither the guest nor the other executions.
            logger.exception("answering %s failed", type(params).__name__)
            return error_response(
                number, BridgeError("internal_error", "The bridge met an internal error; its log has the details.")
            )


def start_line(start: messages.ExecutionStart) -> bytes:
    """The frame that starts an execution.

    Raises:
        BridgeError: `code_too_large`, `bad_code` (text that is no Unicode).
    """
    try:
        return jsonrpc.encode(messages.notification(start))
    except LocalMessageError as exc:
        code: Code = "code_too_large" if exc.code == "frame_too_large" else "bad_code"
        raise BridgeError(code, f"The code can't be sent to the sandbox: {exc}.") from None


def error_response(number: int, exc: BridgeError) -> jsonrpc.ErrorResponse:
    """An error with its stable code and JSON-compatible details."""
    return jsonrpc.ErrorResponse(number, jsonrpc.APPLICATION_ERROR, str(exc), {"code": exc.code, **exc.details})


def _decoded(line: bytes) -> jsonrpc.Message:
    return jsonrpc.decode(line, loads=large_json.loads, dumps=large_json.dumps)


def _encoded_large(answer: jsonrpc.Response | jsonrpc.ErrorResponse) -> bytes:
    return _encoded(answer, large_json.dumps)


def _encoded(
    answer: jsonrpc.Response | jsonrpc.ErrorResponse, dumps: Callable[[Any, Encoder], str] = jsonrpc.dumps
) -> bytes:
    try:
        return jsonrpc.encode(answer, dumps=dumps)
    except LocalMessageError as exc:
        too_large = exc.code == "frame_too_large"
        code: Code = "result_too_large" if too_large else "bad_result"
        error = BridgeError(code, f"The result can't be passed on: {exc}.", hint=TOO_LARGE_HINT if too_large else None)
        return jsonrpc.encode(error_response(answer.id, error))
