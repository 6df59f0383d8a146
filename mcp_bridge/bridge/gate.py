"""The gate: every call to the outside passes here, whichever way it comes, and is recorded before and after."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.events import Effect, Outcome
from mcp_bridge.kernel.values import ValueFaultError, normal
from mcp_bridge.ledger.entries import Entry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp_bridge.bridge.program_run import ProgramRun
    from mcp_bridge.ledger.recorder import Recorder

logger = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 30.0
"""A wait of a program up to this is waited for; a longer one suspends it."""


class Gate:
    """What one execution of a script may do.

    Args:
        execution: Its id.
        recorder: Is told first.
        call: Calls a tool: server and tool as the caller names them, arguments; gives the value.
    """

    def __init__(
        self, execution: str, recorder: Recorder, call: Callable[[str, str, dict[str, Any]], Awaitable[Any]]
    ) -> None:
        self._execution = execution
        self._recorder = recorder
        self._call = call

    async def perform(self, run: ProgramRun, effect: Effect) -> Outcome:
        """Do what a program asks for, as `program_run.Effects`."""
        number = effect.id
        intent = {"effect": number, "kind": effect.kind, "name": effect.name, "attempt": effect.attempt}
        try:
            await self._recorder.append(Entry("intent", run.execution, intent, effect.step, "", run.program.hash))
            with anyio.fail_after(effect.timeout):
                outcome = await self._perform(effect)
        except TimeoutError:
            outcome = Outcome(number, "timeout")
        except BridgeError as exc:
            outcome = Outcome(number, "denied" if exc.code == "denied" else "failed", None, exc.code, exc.message)
        except Exception:
            # A fault of ours must reach the operator's log, and not the sandbox.
            logger.exception("effect %s of %s failed", number, run.execution)
            outcome = Outcome(number, "failed", code="internal_error", message="the bridge met an internal error")
        try:
            told = {"effect": number, "status": outcome.status, "code": outcome.code}
            await self._recorder.append(Entry("outcome", run.execution, told, effect.step, "", run.program.hash))
        except BridgeError as exc:
            return Outcome(number, "failed", code=exc.code, message=exc.message)
        return outcome

    async def _perform(self, effect: Effect) -> Outcome:
        match effect.kind:
            case "tool":
                server, _, tool = effect.name.rpartition(".")
                value = await self._call(server, tool, effect.arguments)
                try:
                    return Outcome(effect.id, "ok", normal(value))
                except ValueFaultError as exc:
                    raise BridgeError("bad_result", f"The result is no JSON value: {exc}.") from None
            case "wait":
                seconds = effect.arguments["seconds"]
                if seconds > LONGEST_WAIT_SECONDS:
                    return Outcome(effect.id, "pending")
                await anyio.sleep(seconds)
                return Outcome(effect.id, "ok")
            case "event" | "approval":
                return Outcome(effect.id, "pending")
        raise BridgeError("model_unavailable", "No model is configured for programs.")
