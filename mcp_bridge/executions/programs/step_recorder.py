"""Records what happens for a step of a program: decisions, intents, and questions to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.ledger.log.payloads import CallDecision, Denial, ModelIntent, Question, StepDecision, to_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.executions.programs.program_run import ProgramRun
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.kernel.events import Effect
    from mcp_bridge.ledger.log.payload_base import Payload
    from mcp_bridge.ledger.log.payloads import QuestionFields, ToolIntent
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.policy.rules.call import StepContext


class StepCall:
    """A step of a program that has an effect: writes its entries. As `callers.Caller` and `callers.ModelCaller`.

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

    def left_open(self, question: QuestionFields) -> None:
        """As `Caller.left_open`: the program is interrupted, and asks again when it is resumed."""

    async def deny(self, tool: str, decider: str) -> None:
        """As `Caller.deny`."""
        await self._record(Denial(tool, decider))

    async def begin(self, intent: ToolIntent, *, is_repeatable: bool) -> None:
        """As `Caller.begin`. From here on the call may have happened."""
        if not is_repeatable:
            self._run.begins(self.effect.id)
        await self._record(intent.of_effect(self.effect.id))

    async def ask(self, arguments: Any) -> None:
        """As `ModelCaller.ask`."""
        await self._record(ModelIntent(self.effect.id, arguments))

    async def decide_step(self, question: QuestionFields, *, approved: bool) -> None:
        """Record what the client's person says to an approval step."""
        await self._record(StepDecision(Question(question), approved, "client"))

    async def _record(self, payload: Payload) -> None:
        entry = to_entry(payload, self.execution, self.effect.step, self._policy_hash, self.program)
        await self._recorder.append(entry)
