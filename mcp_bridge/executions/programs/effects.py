"""What the steps of programs want done: tools, models and people are asked through the gate, times are waited for."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.gate.model_steps import kernel_usage
from mcp_bridge.gate.policy_check import ApprovalNeededError, projected
from mcp_bridge.kernel.events import Outcome
from mcp_bridge.kernel.machine import APPROVAL
from mcp_bridge.kernel.references import WHOLE
from mcp_bridge.kernel.values import ValueFaultError, normal
from mcp_bridge.ledger.log.payloads import CallDecision, Denial, ModelIntent, Question, StepDecision, to_entry
from mcp_bridge.models.model import ModelError
from mcp_bridge.offload import off_loop, time_limit
from mcp_bridge.policy.redaction.json_walk import leaves
from mcp_bridge.policy.rules.call import ProgramRef, StepContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.executions.programs.run import ProgramRun
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.kernel.events import Effect, OutcomeStatus
    from mcp_bridge.kernel.program_parser import Program
    from mcp_bridge.ledger.log.payloads import Payload, QuestionFields, ToolIntent
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.policy.rules.call import Origin
    from mcp_bridge.policy.secrets.value_references import Scalar

logger = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 30.0
"""A wait of a program up to this is waited for; a longer one suspends it."""


class StepCall:
    """A step of a program that has an effect, and its entries. As `callers.Caller` and `callers.ModelCaller`.

    Args:
        run: The program's execution.
        effect: What the step wants.
        recorder: Takes the entries.
        policy_hash: Of the policy that decides.
        request: The request that the step is made for.
        approved: The question that a person has approved of already, or None.
        step: The step, for the policy; None where no tool is called.
    """

    __slots__ = ("_policy_hash", "_recorder", "_run", "approved", "effect", "request", "step")

    def __init__(
        self,
        run: ProgramRun,
        effect: Effect,
        recorder: Recorder,
        policy_hash: str,
        request: RequestContext,
        approved: Mapping[str, Any] | None = None,
        step: StepContext | None = None,
    ) -> None:
        self._run = run
        self._recorder = recorder
        self._policy_hash = policy_hash
        self.effect = effect
        self.request = request
        self.approved = approved
        self.step = step

    @property
    def execution(self) -> str:
        """As `Caller.execution`."""
        return self._run.execution

    @property
    def program(self) -> str:
        """As `Caller.program`."""
        return self._run.program.hash

    async def decided(self, _question: QuestionFields) -> None:
        """As `Caller.decided`: what people decide about a suspended program's steps comes as `approved`."""

    async def decide(self, question: QuestionFields, *, approved: bool) -> bool:
        """As `Caller.decide`."""
        await self._record(CallDecision(Question(question), approved, "client"))
        return approved

    async def deny(self, tool: str, decider: str) -> None:
        """As `Caller.deny`."""
        await self._record(Denial(tool, decider))

    async def begin(self, intent: ToolIntent, *, is_repeatable: bool) -> None:
        """As `Caller.begin`. From here on the call may have happened."""
        if not is_repeatable:
            self._run.begins(self.effect.id)
        await self._record(replace(intent, effect=self.effect.id))

    async def ask(self, arguments: Any) -> None:
        """As `ModelCaller.ask`."""
        await self._record(ModelIntent(self.effect.id, arguments))

    async def decide_step(self, question: QuestionFields, *, approved: bool) -> None:
        """Record what the client's person says to an approval step."""
        await self._record(StepDecision(Question(question), approved, "client"))

    async def _record(self, payload: Payload) -> None:
        entry = to_entry(payload, self.execution, self.effect.step, self._policy_hash, self.program)
        await self._recorder.append(entry)


class ProgramEffects:
    """Does what programs ask for, as `program_run.Effects`.

    Args:
        gate: What every effect passes.
        operators: The operator's programs, by name.
        recorder: Takes entries.
    """

    def __init__(self, gate: Gate, operators: Mapping[str, Program], recorder: Recorder) -> None:
        self._gate = gate
        self._operators = operators
        self._recorder = recorder

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
        return effect.kind != "tool" or await self._gate.is_repeatable(effect.name, run.servers)

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
                    return await _wait(effect)
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
            # A fault of ours must reach the operator's log, and not the sandbox.
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
            ProgramRef(self._origin(run, name, program), program.hash, name or program.name)
            for name, program in run.machine.programs_of(effect.id)
        )
        call = self._step_call(run, effect, request, approved, StepContext(chain, effect.step))
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
            empty = [text for text in leaves(effect.arguments) if isinstance(text, str) and WHOLE.fullmatch(text)]
            if exc.code == "bad_arguments" and empty:
                # The commonest mistake: a name that is mistyped, or missing from the context.
                names = ", ".join(sorted(set(empty)))
                nothing = f"Nothing is behind {names}: neither in the context nor in an output."
                exc.hint = f"{nothing} {exc.hint}" if exc.hint else nothing
            raise
        if result.is_pending:
            return Outcome(effect.id, "pending")
        try:
            return Outcome(effect.id, "ok", await off_loop(result.value, normal, result.value))
        except ValueFaultError as exc:
            raise BridgeError("bad_result", f"The result is no JSON value: {exc}.") from None

    def _origin(self, run: ProgramRun, name: str | None, program: Program) -> Origin:
        """Whose a program is: by where the host has taken it from, not by what it says of itself."""
        if name is None:
            return run.origin
        known = self._operators.get(name)
        return "operator" if known is not None and known.hash == program.hash else "agent"

    async def _approval(self, run: ProgramRun, effect: Effect, request: RequestContext) -> Outcome:
        """Ask the client's person, if there is one, what the step asks."""
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


async def _wait(effect: Effect) -> Outcome:
    seconds = effect.arguments["seconds"]
    if seconds > LONGEST_WAIT_SECONDS:
        return Outcome(effect.id, "pending")
    with anyio.fail_after(effect.timeout):
        await anyio.sleep(seconds)
    return Outcome(effect.id, "ok")
