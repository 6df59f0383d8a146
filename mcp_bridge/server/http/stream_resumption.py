"""Events of a session that are kept so that a client can resume a broken stream (MCP 2025-11-25, resumability).

Each session has a store of its own: the SDK names streams by the client's request ids, which two sessions share. An
event's id is valid in its own session only.

A resumed stream is sent by `replay_events_after` to its end, which doesn't return before. The SDK would otherwise
register the stream only after the replay, and an answer that came in between would be sent by nobody.

An answer that there is no room for leaves an error in its place. A client that resumed, and got neither, would wait.
"""

from __future__ import annotations

import collections
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import anyio
import mcp_types as types
from mcp.server.streamable_http import GET_STREAM_KEY, EventMessage, EventStore

from mcp_bridge.server.answers.structured_content import RECORD_META

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.streamable_http import EventCallback

MAX_EVENTS = 1000
"""Events of one session, whatever their size."""

MAX_UNANSWERED = 1000
"""Streams of one session that have had no answer: what a client cancels gets none, and its stream never ends."""

MAX_LOST = 200
"""Streams of one session whose answer was dropped, and which end with an error instead."""

MAX_KEY_CHARS = 200
"""Longer ids of a client's requests are kept as their hash."""

MAX_TOTAL_BYTES = 64 << 20
"""Events of all sessions."""

EVENT_BYTES = 500
"""What an event takes besides its text."""


class _Event(NamedTuple):
    stream: _Stream
    message: types.JSONRPCMessage | None
    size: int


@dataclass(slots=True, eq=False)
class _Stream:
    """The events of one request, or of the session's own stream.

    Attributes:
        number: Its number in the session.
        last: The number of its last event.
        ended: Whether it has had the request's answer.
        lost: The error in place of the answer, which was dropped.
        changed: Set when there is another event, or no further one.
    """

    number: int
    last: int = 0
    ended: bool = False
    lost: types.JSONRPCError | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class ReplayMemory:
    """What all sessions keep together. Where there is no room, the oldest event goes of the owner who has the most.

    Args:
        per_session: Bytes of one session. An answer may be larger: the newest such one of a session is kept besides.
        total: Bytes of all sessions.
    """

    def __init__(self, per_session: int, total: int = MAX_TOTAL_BYTES) -> None:
        self.per_session = per_session
        self.total = total
        self._kept: dict[str, collections.OrderedDict[tuple[SessionEvents, int], int]] = {}
        self._bytes: collections.Counter[str] = collections.Counter()

    def add(self, session: SessionEvents, number: int, size: int) -> None:
        """Count an event, and drop those that it leaves no room for."""
        self._kept.setdefault(session.owner, collections.OrderedDict())[session, number] = size
        self._bytes[session.owner] += size
        while self._bytes.total() > self.total:
            owner = max(self._bytes, key=lambda each: self._bytes[each])
            oldest, position = next(iter(self._kept[owner]))
            oldest.drop(position)

    def remove(self, session: SessionEvents, number: int) -> None:
        """Forget a dropped event."""
        kept = self._kept[session.owner]
        self._bytes[session.owner] -= kept.pop((session, number))
        if not kept:
            del self._kept[session.owner], self._bytes[session.owner]


class SessionEvents(EventStore):
    """The events of one session.

    Args:
        memory: What all sessions share.
        owner: Whose session it is.
        answered: Called with the id of a stream before its request's answer is sent.
    """

    def __init__(
        self,
        memory: ReplayMemory,
        owner: str = "",
        answered: Callable[[str], None] = lambda _stream_id: None,
    ) -> None:
        self._memory = memory
        self._answered = answered
        self.owner = owner
        self._events: dict[int, _Event] = {}
        self._bytes = 0
        self._count = 0
        self._current: dict[str, _Stream] = {}
        self._streams: dict[int, _Stream] = {}
        self._lost: collections.deque[_Stream] = collections.deque()
        self._large: int | None = None
        self._closed = False

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        """Keep an event; None begins the stream of a request. Returns the event's id."""
        if is_answer(message):
            self._answered(stream_id)
        if len(stream_id) > MAX_KEY_CHARS:
            stream_id = hashlib.sha256(stream_id.encode("utf-8", "surrogatepass")).hexdigest()
        stream = self._current.get(stream_id)
        if stream is None or (message is None and stream.ended):
            self._count += 1
            stream = _Stream(self._count)
            self._current[stream_id] = self._streams[stream.number] = stream
            if len(self._current) > MAX_UNANSWERED:
                self._give_up(next(key for key in self._current if key != GET_STREAM_KEY))
        self._count += 1
        number = stream.last = self._count
        size = EVENT_BYTES
        if message is not None:
            size += len(message.model_dump_json(by_alias=True, exclude_unset=True))
        stream.ended = is_answer(message)
        if stream.ended and self._current.get(stream_id) is stream:
            del self._current[stream_id]
        if not self._closed:
            self._events[number] = _Event(stream, message, size)
            self._bytes += size
            self._memory.add(self, number, size)
            if stream.ended and number in self._events and size > self._memory.per_session:
                if self._large is not None:
                    self.drop(self._large)
                self._large = number
            self._make_room()
        stream.notify()
        return f"{stream.number}-{number}"

    def is_known(self, event_id: str) -> bool:
        """Whether this is the id of an event, or may have been, of a stream that can be resumed."""
        first, _, second = event_id.partition("-")
        stream = self._streams.get(_number(first))
        return stream is not None and 0 < _number(second) <= stream.last

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        """Send the stream's events after this one, to its end. An unknown id gets none."""
        first, _, second = last_event_id.partition("-")
        stream = self._streams.get(_number(first))
        sent = _number(second)
        while stream is not None and not self._closed:
            for number in [
                number for number, event in self._events.items() if event.stream is stream and number > sent
            ]:
                # It may have been dropped while the client was reading.
                event = self._events.get(number)
                if event is not None and event.message is not None:
                    await send_callback(EventMessage(event.message, f"{stream.number}-{number}"))
                sent = number
            if stream.last > sent and stream.last in self._events:
                continue
            if stream.ended:
                if stream.lost is not None and stream.last > sent:
                    await send_callback(EventMessage(stream.lost, f"{stream.number}-{stream.last}"))
                return
            await stream.changed.wait()

    def _make_room(self) -> None:
        """Drop the oldest events that there are too many of."""
        large = self._events.get(self._large) if self._large is not None else None
        room = self._memory.per_session + (large.size if large is not None else 0)
        while self._bytes > room or len(self._events) > MAX_EVENTS:
            self.drop(next(number for number in self._events if number != self._large))

    def drop(self, number: int) -> None:
        """Drop an event."""
        event = self._events.pop(number)
        self._bytes -= event.size
        self._memory.remove(self, number)
        if number == self._large:
            self._large = None
        stream = event.stream
        if not stream.ended or stream.last != number:
            return
        stream.lost = _lost_answer(event.message)
        if stream.lost is None or self._closed:
            self._streams.pop(stream.number, None)
            return
        self._lost.append(stream)
        if len(self._lost) > MAX_LOST:
            self._streams.pop(self._lost.popleft().number, None)

    def _give_up(self, key: str) -> None:
        """Forget a stream that has had no answer. If there is one yet, it can't be resumed."""
        stream = self._current.pop(key)
        self._streams.pop(stream.number, None)
        stream.ended = True
        stream.notify()

    def close(self) -> None:
        """Drop all events, and end the streams that are being resumed."""
        self._closed = True
        for number in list(self._events):
            self.drop(number)
        for stream in self._streams.values():
            stream.notify()


def is_answer(message: types.JSONRPCMessage | None) -> TypeGuard[types.JSONRPCMessage]:
    """Whether a message answers a request. An error without an id belongs to the session's own stream."""
    return isinstance(message, (types.JSONRPCResponse, types.JSONRPCError)) and message.id is not None


def _lost_answer(answer: types.JSONRPCMessage | None) -> types.JSONRPCError | None:
    """What is sent in place of an answer that was dropped; None for one with an id too long to be kept."""
    if not isinstance(answer, (types.JSONRPCResponse, types.JSONRPCError)) or len(str(answer.id)) > MAX_KEY_CHARS:
        return None
    execution = _execution_of(answer.result) if isinstance(answer, types.JSONRPCResponse) else None
    named = f" It was execution {execution}, which has the result: `mcp-bridge execution show`." if execution else ""
    message = (
        "[events_lost] The request was handled, but its answer isn't kept any longer for a stream that is resumed: "
        f"there was no room for it (http.replay_size).{named} "
        "The same call with the same idempotency_key, if it had one, is answered again and not made again."
    )
    data = {"code": "events_lost"} | ({"execution": execution} if execution else {})
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=message, data=data)
    return types.JSONRPCError(jsonrpc="2.0", id=answer.id, error=error)


def _execution_of(result: dict[str, Any]) -> str | None:
    """The execution that a tool's answer is of."""
    record = result.get("structuredContent") or (result.get("_meta") or {}).get(RECORD_META) or {}
    execution = record.get("execution")
    return execution if isinstance(execution, str) else None


def _number(text: str) -> int:
    """The number, or 0 for any other text: a client may send anything."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0  # noqa: PLR2004
