"""Work in proportion to a value of somebody else's, kept off the event loop where the value is large.

One loop serves every execution. What takes more than some milliseconds for the largest value that may come is done on
a thread; a small value isn't worth the way there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LARGE_CHARS = 32 << 10
"""Text of a value, its keys included, from which it is large."""

LARGE_VALUES = 1000
"""Values in a value, itself and its keys included, from which it is large."""

THREADS = 1
"""Threads that may be at such work at once. They share the interpreter with the loop: more would only slow it, and have
more large values in memory at once."""

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("mcp_bridge_offload")


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


async def on_thread(function: Callable[..., T], *args: Any) -> T:
    """The result of a function that may take long, from a thread of the few for such work.

    Raises:
        Exception: As the function. A cancellation waits for its end: its work is bounded.
    """
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(function, *args, limiter=limiter)


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
