"""A call of a registered tool, bounded in time whatever the tool does.

The tool's code runs in its own task or thread, and the caller waits for it no longer than the limit. A task is then
cancelled. A task that ignores cancellation, or a thread, which can't be cancelled, is abandoned and counted. Anything
that a tool raises, including SystemExit, becomes an error of the call and ends nothing else.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import off_loop
from mcp_bridge.registered import printing
from mcp_bridge.registered.pending import is_pending
from mcp_bridge.registered.return_values import MAX_RESULT_BYTES, ResultError, Results
from mcp_bridge.registered.signatures import Arguments, ArgumentsError, resolved_hints

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code
    from mcp_bridge.registered.declaring import Declaration
    from mcp_bridge.registered.threads import Threads

logger = logging.getLogger(__name__)

SERVER = "local"
"""The name of the server that lists registered tools."""

MAX_ABANDONED = 4
"""How many abandoned calls of a tool may still be running; at this number the tool is refused until one ends."""

# How long a cancelled tool may take to clean up.
_CLEAN_UP = 1.0

# Maximum characters of an exception's message.
_TEXT = 2000


class CallOutcome(NamedTuple):
    """The result of a call.

    Attributes:
        value: The result as plain JSON; None if it is pending.
        pending: Whether the tool's outcome arrives later.
    """

    value: Any = None
    pending: bool = False


class _Returned(NamedTuple):
    """The return value of the tool's code."""

    value: Any


class RegisteredTool:
    """A compiled declaration.

    Attributes:
        declaration: The operator's declaration.
        arguments: The compiled parameters.
        results: The compiled return type.
        abandoned: The number of abandoned calls that are still running.
    """

    def __init__(self, declaration: Declaration, max_result_bytes: int = MAX_RESULT_BYTES) -> None:
        """Compile a declaration.

        Raises:
            BridgeError: `bad_tools`: its annotations have no JSON Schema.
        """
        hints = resolved_hints(declaration)
        self.declaration = declaration
        self.arguments = Arguments(declaration, hints)
        self.results = Results(declaration, hints, max_result_bytes)
        self.abandoned = 0

    async def prepare(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The function's keyword arguments, from a call's.

        Raises:
            BridgeError: `bad_arguments`; what a validator raises.
        """
        # Where they are large, their validators run on a thread as well.
        return await off_loop(arguments, self._checked, arguments)

    async def call(self, keywords: dict[str, Any], timeout: float | None, threads: Threads) -> CallOutcome:
        """Call it, with keyword arguments of `prepare`; see `Registry.call`."""
        declared = self.declaration
        limit = declared.timeout if timeout is None else min(timeout, declared.timeout)
        self._refuse_if_exhausted()
        if declared.is_async:
            outcome = await self._in_task(keywords, limit)
        elif declared.thread:
            outcome = await self._in_thread(keywords, limit, threads)
        else:
            with printing.as_tool():
                outcome = self._run(keywords)
        if isinstance(outcome, BridgeError):
            raise outcome
        return outcome

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            # Validators are the operator's code as well.
            with printing.as_tool():
                return self.arguments.check(arguments)
        except ArgumentsError as error:
            raise self.error("bad_arguments", f"{error}.") from None
        except BaseException as error:  # noqa: BLE001 - see the module's first lines
            raise self._raised(error) from None

    # The tool's own code, in its task or thread. These return errors because the caller may no longer be waiting.

    def _run(self, keywords: dict[str, Any]) -> CallOutcome | BridgeError:
        try:
            return self._converted(self.declaration.function(**keywords))
        except BaseException as error:  # noqa: BLE001 - see the module's first lines
            return self._raised(error)

    async def _run_async(self, keywords: dict[str, Any]) -> _Returned | BridgeError:
        try:
            result = self.declaration.function(**keywords)
            return _Returned(await result if inspect.isawaitable(result) else result)
        except BaseException as error:  # noqa: BLE001 - see the module's first lines
            return self._raised(error)

    def _result(self, value: Any) -> CallOutcome | BridgeError:
        try:
            # Serializers are the operator's code as well.
            with printing.as_tool():
                return self._converted(value)
        except BaseException as error:  # noqa: BLE001 - see the module's first lines
            return self._raised(error)

    def _run_in_thread(self, keywords: dict[str, Any]) -> CallOutcome | BridgeError:
        try:
            # While this call waited for a thread, others may have been abandoned.
            self._refuse_if_exhausted()
        except BridgeError as error:
            return error
        return self._run(keywords)

    def _converted(self, value: Any) -> CallOutcome | BridgeError:
        if is_pending(value):
            return CallOutcome(pending=True)
        if inspect.iscoroutine(value):
            value.close()
            return self.error("bad_tool_result", "it returned a coroutine: declare the function itself async.")
        try:
            return CallOutcome(self.results.plain(value))
        except ResultError as error:
            return self.error("bad_tool_result", f"{error}.")

    # Tasks and threads.

    async def _in_task(self, keywords: dict[str, Any], limit: float) -> CallOutcome | BridgeError:
        with printing.as_tool():
            task = asyncio.get_running_loop().create_task(self._run_async(keywords))
        try:
            await _wait(task, limit)
        except asyncio.CancelledError:
            await self._stop(task)
            raise
        in_time = task.done()
        if not in_time:
            await self._stop(task)
        outcome = task.result() if task.done() and not task.cancelled() else None
        if isinstance(outcome, _Returned):
            # The late result is used: its effect has happened. A large one is converted without counting the time.
            return await off_loop(outcome.value, self._result, outcome.value)
        return outcome if in_time and outcome else self._timed_out(limit, still_running=not task.done())

    async def _stop(self, task: asyncio.Task[_Returned | BridgeError]) -> None:
        """Cancel a task and wait a while for its end. Afterwards even the event loop's shutdown doesn't wait for it."""
        task.cancel()
        try:
            with anyio.CancelScope(shield=True):
                await _wait(task, _CLEAN_UP)
        finally:
            if not task.done():
                self._abandon(task)
                # Otherwise `asyncio.run` would cancel it again and wait forever. Documented, despite its underscore.
                asyncio._unregister_task(task)  # noqa: SLF001

    async def _in_thread(self, keywords: dict[str, Any], limit: float, threads: Threads) -> CallOutcome | BridgeError:
        with printing.as_tool():
            context = contextvars.copy_context()
        job = threads.submit(functools.partial(self._run_in_thread, keywords), context)
        try:
            await _wait(job.outcome, limit)
        finally:
            if not job.outcome.done():
                threads.abandon(job)
                if job.started:
                    self._abandon(job.outcome)
        if job.outcome.cancelled():
            message = f"every thread for synchronous tools was busy for {limit:g} s; the call was not started."
            return self.error("tool_busy", message, timeout=limit)
        if not job.outcome.done():
            return self._timed_out(limit, still_running=True)
        return job.outcome.result()

    def _abandon(self, outcome: asyncio.Future[Any]) -> None:
        self.abandoned += 1
        outcome.add_done_callback(self._abandoned_ended)

    def _abandoned_ended(self, _outcome: object) -> None:
        self.abandoned -= 1

    # Errors.

    def error(self, code: Code, message: str, *, hint: str | None = None, **details: Any) -> BridgeError:
        """An error of a call, which names the tool."""
        name = self.declaration.name
        return BridgeError(code, f"{SERVER}.{name}: {message}", hint=hint, server=SERVER, tool=name, **details)

    def _refuse_if_exhausted(self) -> None:
        if self.abandoned >= MAX_ABANDONED:
            raise self.error(
                "tool_unavailable",
                f"{self.abandoned} calls of it are still running after their time was over; it is refused until "
                "one of them ends.",
                hint="Its operator should see why it hangs; an async function could be cancelled.",
            )

    def _timed_out(self, limit: float, *, still_running: bool) -> BridgeError:
        what = "it is still running and can't be stopped" if still_running else "it was cancelled"
        message = f"gave no answer within {limit:g} s; {what}."
        return self.error("tool_timeout", message, timeout=limit, still_running=still_running)

    def _raised(self, error: BaseException) -> BridgeError:
        name = type(error).__name__
        # Without the exception's message: it may contain a secret. The caller gets it masked.
        logger.debug("%s.%s raised %s\n%s", SERVER, self.declaration.name, name, _frames(error))
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - an exception that can't even be told
            text = ""
        text = text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
        message = f"{name}: {text}" if text else name
        return self.error("tool_error", message.encode("utf-8", "replace").decode(), exception=name)


async def _wait(future: asyncio.Future[Any], limit: float) -> None:
    """Return when the future is done or the time is over. As `asyncio.wait` with one future, in half the time."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(limit, wake)
    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)


def _frames(error: BaseException) -> str:
    """The frames in which an exception and its causes were raised, without our own frames and without values."""
    parts: list[str] = []
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = [frame for frame in traceback.extract_tb(current.__traceback__) if frame.filename != __file__]
        parts.append(f"{type(current).__name__}:\n{''.join(traceback.format_list(frames))}")
        current = current.__cause__ or current.__context__
    return "".join(parts)
