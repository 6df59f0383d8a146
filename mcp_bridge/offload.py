"""Moves work whose duration depends on the size of untrusted values off the event loop.

One event loop serves all executions. Work that may take more than a few milliseconds for the largest accepted value
runs on a thread; for small values a thread would cost more. Its CPU time is charged to the tenant for which it is done
(`fair_share`). A tenant over its share waits for its turn, and uses separate threads, so that nobody waits behind it.
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from mcp_bridge import fair_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

T = TypeVar("T")

LARGE_CHARS = 32 << 10
"""Characters of text, keys included, from which a value counts as large."""

LARGE_VALUES = 1000
"""Number of values, itself and keys included, from which a value counts as large."""

THREADS = 1
"""Threads for such work, for tenants within their share and for those over it, each. They share the interpreter lock
with the event loop: more threads would slow it down, and hold more large values in memory."""

_limiters: RunVar[dict[bool, anyio.CapacityLimiter]] = RunVar("mcp_bridge_offload")


def is_large(value: Any, *, chars: int = LARGE_CHARS, values: int = LARGE_VALUES) -> bool:
    """Whether a JSON value, text or bytes is large. Visits no more of it than necessary.

    Args:
        value: The value.
        chars: Characters of text from which it is large.
        values: Number of values from which it is large.
    """
    text, count = 0, 1
    stack = [value]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is dict or isinstance(node, dict):
            count += 2 * len(node)
            if count > values:
                return True
            for name, member in node.items():
                if type(name) is str:
                    text += len(name)
                else:
                    stack.append(name)
                # Most are of exactly these types, and need no turn of their own.
                kind = type(member)
                if kind is str:
                    text += len(member)
                elif kind is not int and kind is not bool and member is not None:
                    stack.append(member)
        elif kind is str or kind is bytes or isinstance(node, (str, bytes)):
            text += len(node)
        elif isinstance(node, (list, tuple)):
            count += len(node)
            if count > values:
                return True
            stack.extend(node)
        if text > chars:
            return True
    return False


def is_over(value: Any, limit: int) -> bool:
    """Whether a JSON value certainly takes more than `limit` bytes as JSON. Visits no more of it than necessary.

    Each character and each value counts as one byte, so a value that isn't over the limit here may exceed it in bytes.
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
    """Whether arrays and objects nest deeper than `limit` levels. Not recursive."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        inner = [node.values() if isinstance(node, dict) else node for node in level]
        level = [child for children in inner for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return bool(level)


def is_idle() -> bool:
    """Whether this event loop has no such work in progress, and so no large value in memory for it."""
    return not any(limiter.borrowed_tokens for limiter in _limiters.get({}).values())


class _Limit:
    """A time limit that any number of tasks under it can pause."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self._stopped = 0
        self._left = 0.0

    @property
    def left(self) -> float:
        return self._left if self._stopped else self._scope.deadline - anyio.current_time()

    def stop(self) -> None:
        if not self._stopped:
            self._left = self._scope.deadline - anyio.current_time()
            self._scope.deadline = math.inf
        self._stopped += 1

    def resume(self) -> None:
        self._stopped -= 1
        if not self._stopped:
            self._scope.deadline = anyio.current_time() + self._left


_limits: ContextVar[tuple[_Limit, ...]] = ContextVar("limits", default=())


class TimeLimit(AbstractContextManager[anyio.CancelScope, bool | None]):
    """See `time_limit`. A class, since each call has one."""

    __slots__ = ("_before", "_scope")

    def __init__(self, seconds: float | None) -> None:
        self._scope = anyio.move_on_after(seconds)
        self._before: Token[tuple[_Limit, ...]] | None = None

    def __enter__(self) -> anyio.CancelScope:
        self._scope.__enter__()
        self._before = _limits.set((*_limits.get(), _Limit(self._scope)))
        return self._scope

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._before is not None  # entered
        _limits.reset(self._before)
        return self._scope.__exit__(exc_type, exc, traceback)


def time_limit(seconds: float | None) -> TimeLimit:
    """As `anyio.move_on_after`, but without counting the bridge's own large work and the wait for it.

    So an answer that arrived in time isn't dropped because its reader had to wait.
    """
    return TimeLimit(seconds)


def time_left() -> float:
    """The seconds that the time limits leave which the current task is under, or that it was started under."""
    return min((limit.left for limit in _limits.get()), default=math.inf)


def detach_from_time_limits() -> None:
    """Detach the current task from inherited time limits: it continues for others, beyond the task that started it."""
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
            limit.resume()


async def on_thread(function: Callable[..., T], *args: Any) -> T:
    """Run a possibly slow function on one of the threads for such work; return its result.

    Raises:
        Exception: As the function. A cancellation waits for its end, which is bounded.
    """
    with _uncounted():
        await fair_share.turn()
        return await _charged(function, args, _limiter())


async def on_blocking_thread(function: Callable[..., T], *args: Any) -> T:
    """As `on_thread`, for functions that may also wait for a file: on a thread that no other work waits for.

    It doesn't wait for its turn: a caller that holds a lock must wait before it takes the lock (`fair_share.turn`).
    """
    return await _charged(function, args, None)


def _limiter() -> anyio.CapacityLimiter:
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {over: anyio.CapacityLimiter(THREADS) for over in (False, True)}
        _limiters.set(limiters)
    tenant = fair_share.current.get()
    return limiters[isinstance(tenant, fair_share.Tenant) and tenant.is_over()]


async def _charged(function: Callable[..., T], args: tuple[Any, ...], limiter: anyio.CapacityLimiter | None) -> T:
    tenant = fair_share.current.get()

    def charged() -> tuple[T, None] | tuple[None, Exception]:
        began = time.thread_time()
        try:
            return function(*args), None
        except Exception as exc:  # noqa: BLE001  (raised below)
            return None, exc
        finally:
            if tenant is not None:
                tenant.charge(time.thread_time() - began)

    # An exception that leaves the thread would refer to itself through its traceback's frames: their locals, including
    # the large value, would be kept until the next garbage collection.
    result, error = await anyio.to_thread.run_sync(charged, limiter=limiter)
    if error is not None:
        try:
            raise error
        finally:
            del error
    return result  # type: ignore[return-value]


async def off_loop(value: Any, function: Callable[..., T], *args: Any) -> T:
    """Run a function whose duration grows with a value: directly if the value is small, else on a thread.

    Args:
        value: The value that determines the duration.
        function: A function that may be called on another thread than the event loop's.
        args: Its arguments.

    Raises:
        Exception: As the function.
    """
    if is_large(value):
        return await on_thread(function, *args)
    return function(*args)
