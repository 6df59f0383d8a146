"""One call of a registered tool, bounded in time whatever the tool does.

The tool's own code runs in a task or a thread of its own, and the caller waits for that no longer than the limit. A
task is cancelled; one that won't be, and a thread, which can't be, are left behind and counted. What a tool raises, an
attempt to leave the interpreter included, becomes an error of the call and ends nothing else.
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
from mcp_bridge.registered.results import MAX_RESULT_BYTES, ResultError, Results
from mcp_bridge.registered.signatures import Arguments, ArgumentsError, resolved_hints

if TYPE_CHECKING:
    from mcp_bridge.registered.declaring import Declaration
    from mcp_bridge.registered.threads import Threads

logger = logging.getLogger(__name__)

SERVER = "local"
"""The server that registered tools are presented as."""

MAX_LEFT_BEHIND = 4
"""Calls of one tool that may run on after their time; with so many the tool is refused until one of them ends."""

# What a cancelled tool may take to clean up.
_CLEAN_UP = 1.0

# How much of an exception's text is passed on.
_TEXT = 2000


class Called(NamedTuple):
    """What came of a call.

    Attributes:
        value: The result as plain JSON, bare; None when it is pending.
        pending: Whether the tool said that its outcome comes later.
    """

    value: Any = None
    pending: bool = False


class _Returned(NamedTuple):
    """What a tool's own code has returned."""

    value: Any


class RegisteredTool:
    """A declaration, compiled.

    Attributes:
        declaration: What the operator said.
        arguments: Its parameters.
        results: Its results.
        left_behind: Calls whose time was over and that are still running.
    """

    def __init__(self, declaration: Declaration, max_result_bytes: int = MAX_RESULT_BYTES) -> None:
        """Compile a declaration.

        Raises:
            BridgeError: `bad_tools`: its annotations make no schema.
        """
        hints = resolved_hints(declaration)
        self.declaration = declaration
        self.arguments = Arguments(declaration, hints)
        self.results = Results(declaration, hints, max_result_bytes)
        self.left_behind = 0

    async def prepare(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The function's keyword arguments, from a call's.

        Raises:
            BridgeError: `bad_arguments`; what a validator raises.
        """
        # Where they are large, their validators run on a thread as well.
        return await off_loop(arguments, self._checked, arguments)

    async def call(self, keywords: dict[str, Any], timeout: float | None, threads: Threads) -> Called:  # noqa: ASYNC109
        """Call it, with keyword arguments of `prepare`; see `Registry.call`."""
        declared = self.declaration
        limit = declared.timeout if timeout is None else min(timeout, declared.timeout)
        self._refuse_when_stuck()
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

    # The tool's own code, in whatever runs it. These return errors, since nobody may be left to raise them to.

    def _run(self, keywords: dict[str, Any]) -> Called | BridgeError:
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

    def _taken(self, value: Any) -> Called | BridgeError:
        try:
            # Serializers are the operator's code as well.
            with printing.as_tool():
                return self._converted(value)
        except BaseException as error:  # noqa: BLE001 - see the module's first lines
            return self._raised(error)

    def _run_in_thread(self, keywords: dict[str, Any]) -> Called | BridgeError:
        try:
            # Others of its calls may have got stuck while this one waited for a thread.
            self._refuse_when_stuck()
        except BridgeError as error:
            return error
        return self._run(keywords)

    def _converted(self, value: Any) -> Called | BridgeError:
        if is_pending(value):
            return Called(pending=True)
        if inspect.iscoroutine(value):
            value.close()
            return self.error("bad_tool_result", "it returned a coroutine: declare the function itself async.")
        try:
            return Called(self.results.plain(value))
        except ResultError as error:
            return self.error("bad_tool_result", f"{error}.")

    # Where it runs.

    async def _in_task(self, keywords: dict[str, Any], limit: float) -> Called | BridgeError:
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
            # Late as it may be: its effect has taken place. The tool's time is over: what is large waits for its turn.
            return await off_loop(outcome.value, self._taken, outcome.value)
        return outcome if in_time and outcome else self._timed_out(limit, still_running=not task.done())

    async def _stop(self, task: asyncio.Task[_Returned | BridgeError]) -> None:
        """Cancel a task and see to its end, for a while. After that not even the event loop's end waits for it."""
        task.cancel()
        try:
            with anyio.CancelScope(shield=True):
                await _wait(task, _CLEAN_UP)
        finally:
            if not task.done():
                self._leave_behind(task)
                # Or `asyncio.run` would cancel it once more and wait for ever. Documented, for all its underscore.
                asyncio._unregister_task(task)  # noqa: SLF001

    async def _in_thread(self, keywords: dict[str, Any], limit: float, threads: Threads) -> Called | BridgeError:
        with printing.as_tool():
            context = contextvars.copy_context()
        job = threads.submit(functools.partial(self._run_in_thread, keywords), context)
        try:
            await _wait(job.outcome, limit)
        finally:
            if not job.outcome.done():
                threads.give_up(job)
                if job.started:
                    self._leave_behind(job.outcome)
        if job.outcome.cancelled():
            message = f"every thread for synchronous tools was busy for {limit:g} s; the call was not started."
            return self.error("tool_busy", message, timeout=limit)
        if not job.outcome.done():
            return self._timed_out(limit, still_running=True)
        return job.outcome.result()

    def _leave_behind(self, outcome: asyncio.Future[Any]) -> None:
        self.left_behind += 1
        outcome.add_done_callback(self._caught_up)

    def _caught_up(self, _outcome: object) -> None:
        self.left_behind -= 1

    # Errors.

    def error(self, code: str, message: str, *, hint: str | None = None, **details: Any) -> BridgeError:
        """An error of a call, which names the tool."""
        name = self.declaration.name
        return BridgeError(code, f"{SERVER}.{name}: {message}", hint=hint, server=SERVER, tool=name, **details)

    def _refuse_when_stuck(self) -> None:
        if self.left_behind >= MAX_LEFT_BEHIND:
            raise self.error(
                "tool_unavailable",
                f"{self.left_behind} calls of it are still running after their time was over; it is refused until "
                "one of them ends.",
                hint="Its operator should see why it hangs; an async function could be cancelled.",
            )

    def _timed_out(self, limit: float, *, still_running: bool) -> BridgeError:
        what = "it is still running and can't be stopped" if still_running else "it was cancelled"
        message = f"gave no answer within {limit:g} s; {what}."
        return self.error("tool_timeout", message, timeout=limit, still_running=still_running)

    def _raised(self, error: BaseException) -> BridgeError:
        name = type(error).__name__
        # Not the text of the exception: it may hold a secret, and the caller gets it masked.
        logger.debug("%s.%s raised %s\n%s", SERVER, self.declaration.name, name, _frames(error))
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - an exception that can't even be told
            text = ""
        text = text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
        told = f"{name}: {text}" if text else name
        return self.error("tool_error", told.encode("utf-8", "replace").decode(), exception=name)


async def _wait(future: asyncio.Future[Any], limit: float) -> None:
    """Return when it is done or the time is over. Like `asyncio.wait` with one future, in half its time."""
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
    """Where it and its causes were raised, without our own frames and without any value."""
    parts: list[str] = []
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = [frame for frame in traceback.extract_tb(current.__traceback__) if frame.filename != __file__]
        parts.append(f"{type(current).__name__}:\n{''.join(traceback.format_list(frames))}")
        current = current.__cause__ or current.__context__
    return "".join(parts)
