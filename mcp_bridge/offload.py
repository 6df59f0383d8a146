"""Work in proportion to a value of somebody else's, kept off the event loop where the value is large.

One loop serves every execution. What takes more than some milliseconds for the largest value that may come is done on
a thread; a small value isn't worth the way there. Its processor time is charged to whom it is done for (`fair_share`),
and whoever has used too much waits for a turn, and then has a thread of its own kind: nobody else waits behind it.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from mcp_bridge import fair_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

LARGE_CHARS = 32 << 10
"""Text of a value, its keys included, from which it is large."""

LARGE_VALUES = 1000
"""Values in a value, itself and its keys included, from which it is large."""

THREADS = 1
"""Threads that may be at such work at once, for those within their share, and for those over it. They share the
interpreter with the loop: more would only slow it, and have more large values in memory at once."""

_limiters: RunVar[dict[bool, anyio.CapacityLimiter]] = RunVar("mcp_bridge_offload")


def is_large(value: Any, *, chars: int = LARGE_CHARS, values: int = LARGE_VALUES) -> bool:
    """Whether a JSON value, or text or bytes, is large; looks at no more of it than it takes to tell.

    Args:
        value: The value.
        chars: Text from which it is.
        values: Values from which it is.
    """
    text = count = 0
    stack = [value]
    while stack:
        node = stack.pop()
        count += 1
        if isinstance(node, (str, bytes)):
            text += len(node)
        elif isinstance(node, dict):
            if count + len(stack) + len(node) > values:
                return True
            stack.extend(node)
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            if count + len(stack) + len(node) > values:
                return True
            stack.extend(node)
        if text > chars or count > values:
            return True
    return False


def is_over(value: Any, limit: int) -> bool:
    """Whether a JSON value certainly takes more bytes as JSON than a limit; looks at no more of it than that takes.

    Certainly: each character and each value is counted as one byte. What isn't over by this may be so by its bytes.
    """
    size = 0
    stack = [value]
    while stack and size <= limit:
        node = stack.pop()
        size += 1
        if isinstance(node, str):
            size += len(node) + 1
        elif isinstance(node, dict):
            size += sum(map(len, node)) + 2 * len(node)
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend(node)
    return size > limit


def is_deep(value: Any, limit: int) -> bool:
    """Whether arrays and objects nest deeper than so many levels; not recursive."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        inner = [node.values() if isinstance(node, dict) else node for node in level]
        level = [child for children in inner for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return bool(level)


def is_idle() -> bool:
    """Whether no such work is under way, in this event loop: so no large value is in memory for it."""
    return not any(limiter.borrowed_tokens for limiter in _limiters.get({}).values())


class _Limit:
    """A time limit that can be stopped, by however many of the tasks that are under it."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self._stopped = 0
        self._left = 0.0

    def stop(self) -> None:
        if not self._stopped:
            self._left = self._scope.deadline - anyio.current_time()
            self._scope.deadline = math.inf
        self._stopped += 1

    def go_on(self) -> None:
        self._stopped -= 1
        if not self._stopped:
            self._scope.deadline = anyio.current_time() + self._left


_limits: ContextVar[tuple[_Limit, ...]] = ContextVar("limits", default=())


@contextmanager
def time_limit(seconds: float | None) -> Iterator[anyio.CancelScope]:
    """As `anyio.move_on_after`, of what somebody else may take: our own large work, and the wait for it, isn't counted.

    What has been answered in time isn't thrown away because its reader had to wait.
    """
    with anyio.move_on_after(seconds) as scope:
        before = _limits.set((*_limits.get(), _Limit(scope)))
        try:
            yield scope
        finally:
            _limits.reset(before)


def leave_limits() -> None:
    """This task goes on for others than who has begun it, and for longer: their time limits aren't its own."""
    _limits.set(())


@contextmanager
def _uncounted() -> Iterator[None]:
    limits = _limits.get()
    for limit in limits:
        limit.stop()
    try:
        yield
    finally:
        for limit in limits:
            limit.go_on()


async def on_thread(function: Callable[..., T], *args: Any) -> T:
    """The result of a function that may take long, from a thread of the few for such work.

    Raises:
        Exception: As the function. A cancellation waits for its end: its work is bounded.
    """
    with _uncounted():
        await fair_share.turn()
        return await _charged(function, args, _limiter())


async def on_waiting_thread(function: Callable[..., T], *args: Any) -> T:
    """As `on_thread`, for what may also wait for a file: on a thread that nobody else's work stands behind.

    It doesn't wait for its turn: whoever holds a lock meanwhile waits for that before (`fair_share.turn`).
    """
    return await _charged(function, args, None)


def _limiter() -> anyio.CapacityLimiter:
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {over: anyio.CapacityLimiter(THREADS) for over in (False, True)}
        _limiters.set(limiters)
    party = fair_share.current.get()
    return limiters[isinstance(party, fair_share.Party) and party.is_over()]


async def _charged(function: Callable[..., T], args: tuple[Any, ...], limiter: anyio.CapacityLimiter | None) -> T:
    party = fair_share.current.get()

    def charged() -> tuple[T, None] | tuple[None, Exception]:
        began = time.thread_time()
        try:
            return function(*args), None
        except Exception as exc:  # noqa: BLE001  (raised below)
            return None, exc
        finally:
            if party is not None:
                party.charge(time.thread_time() - began)

    # An error that leaves the thread by itself refers to itself, by the frames that wait for it: all that they have,
    # the large value too, would be kept until garbage is collected.
    result, error = await anyio.to_thread.run_sync(charged, limiter=limiter)
    if error is not None:
        try:
            raise error
        finally:
            del error
    return result  # type: ignore[return-value]


async def off_loop(value: Any, function: Callable[..., T], *args: Any) -> T:
    """The result of a function whose work grows with a value: at once where the value is small, else from a thread.

    Args:
        value: What the work grows with.
        function: May be called on another thread than the loop's.
        args: Its arguments.

    Raises:
        Exception: As the function.
    """
    if is_large(value):
        return await on_thread(function, *args)
    return function(*args)
