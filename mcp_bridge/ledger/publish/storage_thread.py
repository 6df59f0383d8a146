"""Work with a storage that may hang, in a thread that nobody has to wait for.

anyio's worker threads are not daemons: the interpreter waits for them at its end, and so would whoever has asked a
storage that doesn't answer.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

T = TypeVar("T")

_LOOK_SECONDS = 0.01

_left: dict[Path, threading.Thread] = {}
"""Threads that nobody waits for any more, by the file that they have to do with: each may still have it locked."""


async def at_storage(path: Path, work: Callable[[], T]) -> T:
    """What work gives, which may be left to itself: a cancellation doesn't wait for its end.

    Args:
        path: The file that it has to do with.
        work: Runs in a thread of its own.

    Work of before that was left to itself is waited for first: for how long is the caller's to say.

    Raises:
        Exception: As the work.
    """
    while (before := _left.get(path)) is not None and before.is_alive():  # noqa: ASYNC110  (a thread that hangs)
        # It may be about to end, as the last attempt before a bridge's end is.
        await asyncio.sleep(_LOOK_SECONDS)
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as exc:  # noqa: BLE001  (whatever it is: somebody waits for it)
            error = exc
        # The loop may have been closed: nobody waits then.
        try:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)
        finally:
            # Else this frame, and what the work had, is kept by its own error.
            del error

    thread = threading.Thread(target=run, name="storage", daemon=True)
    thread.start()
    try:
        return await outcome
    except asyncio.CancelledError:
        _left[path] = thread
        raise


def in_loop(loop: asyncio.AbstractEventLoop, made: Coroutine[Any, Any, T]) -> T:
    """From such a thread: what a coroutine gives, in the event loop.

    Raises:
        RuntimeError: The loop is closed.
        Exception: As the coroutine.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(made, loop)
    except RuntimeError:
        made.close()
        raise
    return future.result()
