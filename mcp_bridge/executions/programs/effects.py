"""The effects of programs' steps: tools, models and people are asked through the gate, times are waited for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.in_doubt import may_be_repeated
from mcp_bridge.executions.programs.step_recorder import StepCall
from mcp_bridge.executions.programs.waits import wait
from mcp_bridge.gate.model_steps import kernel_usage
from mcp_bridge.gate.policy_check import ApprovalNeededError, projected
from mcp_bridge.kernel.events import Outcome
from mcp_bridge.kernel.machine import APPROVAL
from mcp_bridge.kernel.step_types import ToolStep
from mcp_bridge.kernel.values import ValueFaultError, normal
from mcp_bridge.models.model import ModelError
from mcp_bridge.offload import off_loop, time_limit
from mcp_bridge.policy.redaction.json_walk import leaves
from mcp_bridge.policy.rules.call import StepContext, program_ref

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcp_bridge.executions.programs.program_run import Effects, ProgramRun
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.kernel.events import Effect, OutcomeStatus
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.kernel.language.references import Template
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.policy.secrets.known_values import Scalar

logger = logging.getLogger(__name__)


class ProgramEffects:
    """Carries out the effects of programs, as `run.Effects`.

    Args:
        gate: Decides and makes the calls.
        operators: The operator's programs, by name.
        recorder: Takes the entries.
        holds: As `Programs.holds`.
    """

    def __init__(
        self,
        gate: Gate,
        operators: Mapping[str, Program],
        recorder: Recorder,
        holds: Callable[[str, Any, Effects], Awaitable[None]],
    ) -> None:
        self._gate = gate
        self._operators = operators
        self._recorder = recorder
        self._holds = holds

    @property
    def servers(self) -> frozenset[str] | None:
        """As `Effects.servers`."""
        return self._gate.narrowed_to

    async def project(self, value: Any) -> Any:
        """As `Effects.project`."""
        return await self._gate.values.project(value)

    def values_behind(self, value: Any) -> Mapping[str, Scalar]:
        """As `Effects.values_behind`."""
        return self._gate.values.values_behind(value)

    def adopt(self, execution: str, values: Mapping[str, Scalar | None], spent: Mapping[str, Any]) -> None:
        """As `Effects.adopt`."""
        self._gate.values.adopt(values)
        self._gate.adopt(spent, execution)

    def records(self, execution: str) -> None:
        """As `Effects.records`."""
        if self._gate.allowance is not None:
            self._gate.allowance.counts(execution)

    async def repeatable(self, run: ProgramRun, effect: Effect) -> bool:
        """As `Effects.repeatable`."""
        return await may_be_repeated(effect.kind, effect.name, self._gate, run.servers)

    async def perform(
        self,
        run: ProgramRun,
        effect: Effect,
        request: RequestContext,
        *,
        approved: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """As `Effects.perform`."""
        outcome = await self._performed(run, effect, request, approved)
        if not run.references:
            return outcome
        value, message = await run.own([outcome.value, outcome.message])
        return outcome._replace(value=value, message=message)

    async def _performed(
        self, run: ProgramRun, effect: Effect, request: RequestContext, approved: Mapping[str, Any] | None
    ) -> Outcome:
        number = effect.id
        try:
            match effect.kind:
                case "tool":
                    return await self._tool(run, effect, request, approved)
                case "wait":
                    return await wait(effect, run.asked.get(number))
                case "event":
                    return Outcome(number, "pending")
                case "approval":
                    with anyio.fail_after(effect.timeout):
                        return await self._approval(run, effect, request)
            return await self._llm(run, effect, request)
        except TimeoutError:
            return Outcome(number, "timeout")
        except ApprovalNeededError as exc:
            run.questions[number] = exc.question
            return Outcome(number, "pending", code=APPROVAL, message=exc.message)
        except BridgeError as exc:
            return Outcome(number, "denied" if exc.code == "denied" else "failed", None, exc.code, str(exc))
        except Exception:
            # An internal error goes to the operator's log, and not to the sandbox.
            logger.exception("effect %s of %s failed", number, run.execution)
            return Outcome(number, "failed", None, "internal_error", "the bridge met an internal error")

    def _step_call(
        self,
        run: ProgramRun,
        effect: Effect,
        request: RequestContext,
        approved: Mapping[str, Any] | None = None,
        step: StepContext | None = None,
    ) -> StepCall:
        return StepCall(run, effect, self._recorder, self._gate.policy_hash, request, approved, step)

    async def _tool(
        self, run: ProgramRun, effect: Effect, request: RequestContext, approved: Mapping[str, Any] | None
    ) -> Outcome:
        chain = tuple(
            program_ref(program, name, run.origin, self._operators)
            for name, program in run.machine.programs_of(effect.id)
        )
        step = run.machine.waiting[effect.id].step
        undoing = effect.attempt if run.machine.undoes(effect.id) else 0
        call = self._step_call(run, effect, request, approved, StepContext(chain, effect.step, undoing))
        # Before anything of it is recorded.
        await self._holds(run.execution, effect.arguments, self)
        tool = await self._gate.tools.of_step(effect.name, run.servers)
        try:
            if effect.timeout is None:
                result = await self._gate.call(tool, effect.arguments, call)
            else:
                with time_limit(effect.timeout) as limit:
                    result = await self._gate.call(tool, effect.arguments, call)
                if limit.cancelled_caught:
                    raise TimeoutError
        except BridgeError as exc:
            if isinstance(step, ToolStep) and (advice := _about_references(exc, step.args, effect.arguments)):
                exc.hint = f"{advice} {exc.hint}" if exc.hint else advice
            raise
        if result.is_pending:
            return Outcome(effect.id, "pending")
        try:
            return Outcome(effect.id, "ok", await off_loop(result.value, normal, result.value))
        except ValueFaultError as exc:
            raise BridgeError("bad_result", f"The result is no JSON value: {exc}.") from None

    async def _approval(self, run: ProgramRun, effect: Effect, request: RequestContext) -> Outcome:
        """Ask the client's user an approval step's question, if the client can be asked."""
        values, asker = self._gate.values, self._gate.asker
        projector = await values.projector()
        asked = {**effect.arguments, "program": run.program.name, "step": effect.step}
        question: QuestionFields = await off_loop(asked, projector.trace, asked)
        answer = None
        if asker is not None:
            shown: QuestionFields = await off_loop(asked, projector.person, asked, "the question")
            answer = await asker.ask(shown | {"origin": run.origin})
        if answer is None:
            return Outcome(effect.id, "pending")
        values.keep(run.execution, question)
        await self._step_call(run, effect, request).decide_step(question, approved=answer)
        return Outcome(effect.id, "ok", {"approved": answer, "by": "client"})

    async def _llm(self, run: ProgramRun, effect: Effect, request: RequestContext) -> Outcome:
        call = self._step_call(run, effect, request)
        try:
            completion = await self._gate.ask_model(effect.arguments, call, effect.timeout)
        except ModelError as exc:
            error = projected(exc, await self._gate.values.projector())
            status: OutcomeStatus = "timeout" if exc.code == "model_timeout" else "failed"
            return Outcome(effect.id, status, None, error.code, str(error), kernel_usage(exc.usage))
        return Outcome(effect.id, "ok", completion.text, usage=kernel_usage(completion.usage))


def _about_references(error: BridgeError, args: Template, filled: dict[str, Any]) -> str:
    """What references of a step's arguments have to do with the error of its call; empty if they seem to have nothing.

    Args:
        error: Of the call.
        args: The step's arguments.
        filled: What the tool was to get.
    """
    if error.code not in {"bad_arguments", "tool_error"}:
        return ""
    # The most common mistakes: a name that is mistyped, or missing from the context; and a text of something else.
    if empty := args.whole_references.intersection(text for text in leaves(filled) if isinstance(text, str)):
        nothing = f"Nothing is behind {', '.join(sorted(empty))}: neither in the context nor in an output."
        # What a tool says may end without a full stop.
        return f"({nothing})" if error.code == "tool_error" else nothing
    if error.code == "bad_arguments" and "string" in error.message:
        for name, value in filled.items():
            text = args.lone_reference(name)
            if text is not None and not isinstance(value, str) and f"{name}: " in error.message:
                return f"{text} alone is the value itself; within a longer text it is written out."
    return ""
