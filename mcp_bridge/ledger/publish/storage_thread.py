"""Runs file operations that may hang in a daemon thread, which nobody has to wait for.

anyio's worker threads are not daemons: the interpreter would wait at its end for a storage that doesn't answer.
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
"""Abandoned threads, by the file that they work on: each may still hold a lock on it."""


async def run_on_storage_thread(path: Path, work: Callable[[], T]) -> T:
    """Run work in a daemon thread and give its result. A cancellation abandons the thread.

    Earlier work on the same file that was abandoned is waited for first; the caller limits for how long.

    Args:
        path: The file that it works on.
        work: The work.

    Raises:
        Exception: As the work.
    """
    while (before := _left.get(path)) is not None and before.is_alive():  # noqa: ASYNC110  (a thread that hangs)
        # It may be about to end.
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
        except Exception as exc:  # noqa: BLE001  (the waiter gets it)
            error = exc
        # The loop may be closed by now: nobody waits then.
        try:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)
        finally:
            # Otherwise the error would keep this frame, and all that the work holds, alive.
            del error

    thread = threading.Thread(target=run, name="storage", daemon=True)
    thread.start()
    try:
        return await outcome
    except asyncio.CancelledError:
        _left[path] = thread
        raise


def run_in_loop(loop: asyncio.AbstractEventLoop, made: Coroutine[Any, Any, T]) -> T:
    """From such a thread, run a coroutine in the event loop and give its result.

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
