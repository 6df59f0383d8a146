"""Whether a call may be made: decided, and if the policy wants it asked of a person, on what the tool is going to get.

That is: by its exact name, as its server lists it now; with the values behind references; and with the defaults that
its schema has in arguments that a condition asks about, where they make a difference to the decision. Other defaults
are left to the tool; a person is told of them. For not every server means by a default what it does without one: that
of Notion announces `archived: true` for the update of a block, and archives the block only where that is sent.

What isn't known of a call (a secret, a default that its own tool refuses) helps no call. If the server lists the tool
otherwise by the time at which the call could be made, it is decided anew.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.gate.planned_calls import (
    ApprovedCall,
    PlannedCallError,
    depends_on_results,
    is_read,
    listing_hash,
)
from mcp_bridge.governance.tool_names import tool_names
from mcp_bridge.large_json import is_same_json
from mcp_bridge.ledger.log.payloads import ToolIntent
from mcp_bridge.offload import is_large, off_loop
from mcp_bridge.policy.redaction.projection import is_blanked
from mcp_bridge.policy.rules.call import Call
from mcp_bridge.policy.rules.comparisons import Unknown
from mcp_bridge.policy.rules.decision import arguments_in_conditions, decide, unconditional_denial
from mcp_bridge.policy.rules.schema_defaults import Filled, is_plain, with_defaults, with_unknown_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.downstream.catalog.bound_tool import BoundTool
    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.gate.callers import Caller
    from mcp_bridge.gate.execution_values import ExecutionValues
    from mcp_bridge.gate.planned_calls import ApprovedCalls
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.policy.redaction.projection import Projector
    from mcp_bridge.policy.rules.budgets import Budget
    from mcp_bridge.policy.rules.call import StepContext
    from mcp_bridge.policy.rules.decision import Decision
    from mcp_bridge.policy.rules.globs import ToolNames
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot

MAX_DECISIONS = 5
"""Most decisions about one call: it is decided again if the server's listing has changed."""


class Asker(Protocol):
    """Asks a person."""

    @property
    def may_vanish(self) -> bool:
        """Whether the person may go without a word, so that a question that is cancelled stays open."""

    async def ask(self, question: QuestionFields) -> bool | None:
        """Whether the person approves; None if nobody can be asked now."""


class ApprovalNeededError(BridgeError):
    """The policy requires a person's approval, and nobody can be asked now. The call has not been made.

    Attributes:
        question: What the person is to be asked, projected: `tool`, `arguments`, `filled`, `announced`, `why`.
    """

    def __init__(self, decision: Decision, question: QuestionFields) -> None:
        super().__init__("approval_needed", question["why"], hint="Nobody can be asked now.", tool=decision.tool)
        self.question = question


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that may be made.

    Attributes:
        tool: The tool as its server lists it.
        names: The tool's names.
        sent: The arguments that it gets.
        prepared: The same, checked, as the tool takes them.
        asked: The arguments as the caller wrote them, projected.
        recorded: The arguments that it gets, projected.
        decision: What let it through; counted against its rules already.
        approval: The approval of calls as a whole that it has used up, or None.
    """

    tool: BoundTool
    names: ToolNames
    sent: dict[str, Any]
    prepared: dict[str, Any]
    asked: Any
    recorded: Any
    decision: Decision
    approval: ApprovedCall | None = None

    def intent(self) -> ToolIntent:
        """The call, as it is recorded before it is made."""
        sent = None if is_same_json(self.recorded, self.asked) else self.recorded
        return ToolIntent(str(self.names), self.asked, sent=sent, rules=self.decision.counts)


class Admission:
    """Decides the calls of one execution.

    Args:
        snapshot: The policy.
        budget: Counts calls against rules.
        values: The execution's values.
        asker: Asks a person, or None.
        is_dry: Whether calls that don't only read are listed, and not made.

    Attributes:
        approved: The calls that a person has approved as a whole, after a dry run; None if there was none. With them,
            a person is asked about any other call that doesn't only read.
    """

    def __init__(
        self,
        snapshot: PolicySnapshot,
        budget: Budget,
        values: ExecutionValues,
        asker: Asker | None,
        *,
        is_dry: bool = False,
    ) -> None:
        self.approved: ApprovedCalls | None = None
        self._is_dry = is_dry
        self._snapshot = snapshot
        self._budget = budget
        self._values = values
        self._asker = asker

    async def admit(self, tool: BoundTool, arguments: dict[str, Any], caller: Caller) -> Admitted:
        """Decide a call.

        Args:
            tool: The tool; its listing may be older than what the server lists now.
            arguments: By their names in the schema, references unresolved.
            caller: Who makes the call.

        Returns:
            What may be called. Whoever doesn't call it uncounts its decision.

        Raises:
            BridgeError: `denied`, `approval_needed`, `approval_outdated`, `tool_changed`, `bad_arguments`,
                `arguments_unchecked`, `secret_…`, `reference_…`, `unknown_tool`, and what starting a server raises.
            PlannedCallError: In a dry run: it is listed, and not made.
        """
        projector = await self._values.projector()
        if self._is_dry and await off_loop(arguments, depends_on_results, arguments):
            await self._list_unbound(tool, arguments, caller, projector)
        agreed, refuses_defaults = caller.approved, False
        for _ in range(MAX_DECISIONS):
            case = _plain_case(projector, tool, arguments)
            if case is None:
                make = functools.partial(self._case, projector, tool, arguments, refuses_defaults=refuses_defaults)
                case = await off_loop([arguments, tool.info.input_schema], make)
            decision = decide(self._snapshot, case.call(caller.step, self._budget.made))
            if decision.effect == "deny":
                await caller.deny(str(case.names), decision.decider)
                raise decision.error()
            self._budget.count(decision)
            is_counted = True
            try:
                listed = await tool.current()
                if listed is not tool and listed.info != tool.info:
                    tool, refuses_defaults = listed, False
                    continue
                tool = listed
                sent = arguments
                if not case.is_plain:
                    sent = await off_loop([arguments, case.filled.arguments], case.sent, projector)
                prepared = await self._prepared(tool, case, sent, projector)
                if prepared is None:
                    refuses_defaults = True
                    continue
                written = await self._as_written(tool, case, decision, caller.step, projector)
                if written is not None:
                    case, sent, prepared = written
                case, approval, asked = await self._permitted(tool, case, decision, caller, agreed, projector)
                if asked is not None:
                    # The person may have taken long: the tool must still be as they approved it.
                    agreed = asked
                    continue
                is_counted = False
                return Admitted(tool, case.names, sent, prepared, case.asked, case.recorded, decision, approval)
            finally:
                if is_counted:
                    self._budget.uncount(decision)
        names = tool_names(tool.info)
        raise BridgeError(
            "tool_changed",
            f"The server of {names} lists it otherwise each time it is asked.",
            hint="Nothing was called.",
            tool=str(names),
        )

    async def _permitted(
        self,
        tool: BoundTool,
        case: _Case,
        decision: Decision,
        caller: Caller,
        agreed: Mapping[str, Any] | None,
        projector: Projector,
    ) -> tuple[_Case, ApprovedCall | None, QuestionFields | None]:
        """A person's word on a call that needs one; `agreed` is the question that they have approved already.

        Returns:
            The call as a person is shown it; the approval of several calls that it has used up; and the question that
            a person has approved just now, after which the call is decided anew.

        Raises:
            BridgeError: `denied`, `approval_needed`, `approval_outdated`.
            PlannedCallError: As `admit`.
        """
        if decision.effect != "approve" and not self._is_listed(tool, case, caller.step):
            return case, None, None
        case = await off_loop([tool.info.input_schema, case.arguments], case.with_announced, projector)
        if await off_loop([case.arguments, case.recorded], lambda: case.is_blanked):
            raise _too_many_values(case.names)
        question = case.question(decision)
        if self._is_dry:
            # It stays counted: what the rules say of the next one is what they would say in a run.
            self._budget.count(decision)
            raise PlannedCallError(question, listing_hash(tool), asks=decision.effect == "approve")
        approval = await self._approval(tool, case, caller, question)
        if approval is not None or self._covers(agreed, case):
            return case, approval, None
        if caller.approved is not None:
            raise _outdated(case.names)
        await self._ask(decision, question, case, caller, projector)
        return case, None, question

    def give_up(self, admitted: Admitted) -> None:
        """Take back that a call counts, and has used up an approval: it isn't made."""
        self._budget.uncount(admitted.decision)
        if admitted.approval is not None and self.approved is not None:
            self.approved.give_back(admitted.approval)

    async def _approval(
        self, tool: BoundTool, case: _Case, caller: Caller, question: QuestionFields
    ) -> ApprovedCall | None:
        """Use up the approval that a call has as one of several; None without one, and then the question says so."""
        if self.approved is None:
            return None
        values = (str(case.names), case.recorded, case.announced, listing_hash(tool))
        call = await off_loop([case.recorded, case.announced], ApprovedCall.of, *values)
        # The steps of a program weren't listed.
        if caller.step is None and self.approved.take(call):
            return call
        question["why"] = self.approved.why_not(call)
        return None

    def _is_listed(self, tool: BoundTool, case: _Case, step: StepContext | None) -> bool:
        """Whether the call is for the list of a dry run, or, after one, has to be in what a person has approved."""
        if not self._is_dry and self.approved is None:
            return False
        return not is_read(self._snapshot, tool, case.call(step, self._budget.made))

    async def _list_unbound(
        self, tool: BoundTool, arguments: dict[str, Any], caller: Caller, projector: Projector
    ) -> NoReturn:
        """List a call whose arguments aren't known before others were made. No approval of the list covers it."""
        names = tool_names(tool.info)
        call = Call(names, hints=tool.info.annotations, step=caller.step, schema=tool.info.input_schema)
        denial = unconditional_denial(self._snapshot, call, knows_hints=True)
        if denial is not None:
            await caller.deny(str(names), denial.decider)
            raise denial.error()
        shown = await off_loop(arguments, projector.trace, arguments)
        raise PlannedCallError({"tool": str(names), "arguments": shown})

    def _case(
        self, projector: Projector, tool: BoundTool, arguments: dict[str, Any], *, refuses_defaults: bool
    ) -> _Case:
        asked = projector.trace(arguments)
        arguments, filled, judged = judged_arguments(
            self._snapshot,
            projector,
            tool.info,
            arguments,
            is_operators=tool.is_operators,
            refuses_defaults=refuses_defaults,
        )
        is_filled = bool(filled.paths) and not refuses_defaults
        recorded = projector.trace(filled.arguments) if is_filled else asked
        return _Case(tool, tool_names(tool.info), arguments, filled, is_filled, judged, asked, recorded)

    async def _prepared(
        self, tool: BoundTool, case: _Case, sent: dict[str, Any], projector: Projector
    ) -> dict[str, Any] | None:
        """Arguments that fit their tool's schema; None if they do without the tool's own defaults.

        Raises:
            BridgeError: `bad_arguments`, `arguments_unchecked`.
        """
        try:
            return await tool.prepare(sent)
        except BridgeError as exc:
            if case.sends_defaults:
                try:
                    await tool.prepare(await off_loop(case.arguments, case.unfilled, projector))
                except BridgeError as other:
                    raise projected(other, projector) from None
                return None
            raise projected(exc, projector) from None

    async def _as_written(
        self, tool: BoundTool, case: _Case, decision: Decision, step: StepContext | None, projector: Projector
    ) -> tuple[_Case, dict[str, Any], dict[str, Any]] | None:
        """The call without the defaults, and what is sent then, if that is decided alike and fits; else None.

        Nothing is put in that makes no difference to the rules: it might make one to the tool.
        """
        if not case.sends_defaults:
            return None
        written = await off_loop([tool.info.input_schema, case.arguments], case.as_written, projector)
        if written.filled.paths == case.filled.paths:
            return None
        if decide(self._snapshot, written.call(step, self._made_before(decision))) != decision:
            return None
        try:
            sent = await off_loop(case.arguments, written.sent, projector)
            return written, sent, await tool.prepare(sent)
        except BridgeError:
            return None

    def _made_before(self, decision: Decision) -> dict[int, int]:
        """The calls that rules had let through before this decision, which is counted already."""
        made = self._budget.made
        return {**made, **{number: made[number] - 1 for number in decision.counts}}

    def _covers(self, agreed: Mapping[str, Any] | None, case: _Case) -> bool:
        """Whether a person has approved exactly this call."""
        if agreed is None:
            return False
        if "filled" not in agreed:
            # Version 0.1.0 neither filled in defaults nor resolved the names in programs.
            return is_same_json(agreed.get("arguments"), case.asked)
        return (
            agreed["tool"] == str(case.names)
            and is_same_json(agreed["arguments"], case.recorded)
            and is_same_json(agreed.get("announced", {}), case.announced)
        )

    async def _ask(
        self, decision: Decision, question: QuestionFields, case: _Case, caller: Caller, projector: Projector
    ) -> None:
        self._values.keep(caller.execution, [case.recorded, case.announced])
        answer = await caller.decided(question)
        if answer is None:
            if self._asker is not None:
                given = case.filled.arguments if case.is_filled else case.arguments
                shown = await off_loop(given, projector.person, given, case.names)
                try:
                    whose = _asking_program(caller.step)
                    answer = await self._asker.ask(question | whose | {"arguments": shown, "announced": case.left})
                except anyio.get_cancelled_exc_class():
                    if self._asker.may_vanish:
                        caller.left_open(question)
                    raise
            if answer is None:
                raise ApprovalNeededError(decision, question)
            answer = await caller.decide(question, approved=answer)
        if not answer:
            raise BridgeError("denied", f"A person has denied {decision.tool}.", tool=decision.tool)


def _asking_program(step: StepContext | None) -> QuestionFields:
    """What a person is told of the program that asks: the outermost, as of one that waits. A script is none."""
    if step is None:
        return {}
    outermost = step.chain[0]
    return {"program": outermost.name or outermost.hash[:12], "step": step.path, "origin": outermost.origin}


def judged_arguments(
    snapshot: PolicySnapshot,
    projector: Projector,
    tool: ToolInfo,
    arguments: dict[str, Any],
    *,
    is_operators: bool,
    refuses_defaults: bool = False,
) -> tuple[dict[str, Any], Filled, dict[str, Any]]:
    """The arguments of a call as the rules see them.

    Args:
        snapshot: The policy.
        projector: Knows the values behind references.
        tool: The tool as it is listed.
        arguments: By their names in the schema, references unresolved.
        is_operators: Whether it is one of the operator's own tools.
        refuses_defaults: Whether the tool refuses its own defaults.

    Returns:
        The arguments without references in their names; the same with the defaults that a condition asks about; and
        those for the rules.

    Raises:
        BridgeError: `arguments_too_deep`, `bad_arguments`.
    """
    names, schema = tool_names(tool), tool.input_schema
    arguments = projector.named(arguments, names)
    # A registered function fills in all of its defaults itself.
    asked_for = None if is_operators else arguments_in_conditions(snapshot, names)
    filled = with_defaults(schema, arguments, asked_for)
    judged = projector.judged(filled.arguments, names)
    if refuses_defaults:
        judged = with_unknown_defaults(judged, filled.roots)
    if is_operators:
        judged = _with_untold(schema, judged)
    return arguments, filled, judged


def _plain_case(projector: Projector, tool: BoundTool, arguments: dict[str, Any]) -> _Case | None:
    """The call, if there is nothing in it to be hidden, resolved or put in; else None, and it is looked at closely."""
    schema = tool.info.input_schema
    if not is_plain(schema) or is_large(arguments) or not projector.is_plain(arguments):
        return None
    judged = _with_untold(schema, arguments) if tool.is_operators else arguments
    names = tool_names(tool.info)
    return _Case(
        tool,
        names,
        arguments,
        Filled(arguments),
        is_filled=False,
        judged=judged,
        asked=arguments,
        recorded=arguments,
        is_plain=True,
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """A call as it is decided.

    Attributes:
        tool, names: The tool and its names.
        arguments: The arguments as the caller wrote them.
        filled: With the tool's defaults that a condition asks about.
        is_filled: Whether they are part of the call.
        judged: For the rules.
        asked: `arguments`, projected.
        recorded: What is sent, projected.
        left: The tool's defaults that are left to it, by their paths; known where a person is asked.
        announced: `left`, projected.
        is_plain: Whether all of these are the arguments as the caller wrote them.
    """

    tool: BoundTool
    names: ToolNames
    arguments: dict[str, Any]
    filled: Filled
    is_filled: bool
    judged: dict[str, Any]
    asked: Any
    recorded: Any
    left: Mapping[str, Any] = field(default_factory=dict)
    announced: Any = field(default_factory=dict)
    is_plain: bool = False

    def as_written(self, projector: Projector) -> _Case:
        """The case without the defaults, except those that the schema requires."""
        filled = with_defaults(self.tool.info.input_schema, self.arguments, ())
        is_filled = bool(filled.paths)
        judged = projector.judged(filled.arguments, self.names)
        recorded = projector.trace(filled.arguments) if is_filled else self.asked
        return replace(self, filled=filled, is_filled=is_filled, judged=judged, recorded=recorded)

    def with_announced(self, projector: Projector) -> _Case:
        """The case with the defaults that aren't sent, for a person."""
        given = self.filled.arguments if self.is_filled else self.arguments
        left = {} if self.tool.is_operators else dict(with_defaults(self.tool.info.input_schema, given).defaults)
        return replace(self, left=left, announced=projector.trace(left))

    @property
    def is_blanked(self) -> bool:
        """Whether nobody can be shown all of it once it waits, nor is it told from other calls then."""
        given = self.filled.arguments if self.is_filled else self.arguments
        return is_blanked(given, self.recorded) or is_blanked(self.left, self.announced)

    def call(self, step: StepContext | None, made: Mapping[int, int]) -> Call:
        info = self.tool.info
        return Call(self.names, self.judged, info.annotations, step, made, info.input_schema, self.filled.whole)

    @property
    def sends_defaults(self) -> bool:
        """Whether defaults are sent. A registered function fills in its own."""
        return self.is_filled and not self.tool.is_operators

    def sent(self, projector: Projector) -> dict[str, Any]:
        """The arguments that the tool gets."""
        return projector.tool(self.filled.arguments if self.sends_defaults else self.arguments, self.names)  # type: ignore[no-any-return]

    def unfilled(self, projector: Projector) -> dict[str, Any]:
        return projector.tool(self.arguments, self.names)  # type: ignore[no-any-return]

    def question(self, decision: Decision) -> QuestionFields:
        filled = list(self.filled.paths) if self.is_filled else []
        return {
            "tool": str(self.names),
            "arguments": self.recorded,
            "filled": filled,
            "announced": self.announced,
            "why": decision.message,
        }


def _with_untold(schema: Mapping[str, Any], judged: dict[str, Any]) -> dict[str, Any]:
    """Add an unknown for each argument of a registered tool whose default has no JSON form."""
    required = schema.get("required", ())
    untold = {
        name: Unknown(f"the default of {name}")
        for name, described in schema.get("properties", {}).items()
        if name not in judged and name not in required and "default" not in described
    }
    return {**judged, **untold} if untold else judged


def _outdated(names: ToolNames) -> BridgeError:
    return BridgeError(
        "approval_outdated",
        f"A person approved a call of {names} as its server listed it then; the server lists it differently now.",
        hint="Nothing was called. Run it again, and have the current version approved.",
        tool=str(names),
    )


def _too_many_values(names: ToolNames) -> BridgeError:
    return BridgeError(
        "too_many_references",
        f"Nobody can be asked about this call of {names}: the execution has too many sensitive values to show its own.",
        hint="Nothing was called. Handle fewer sensitive values in one execution.",
        tool=str(names),
    )


def projected(error: BridgeError, projector: Projector) -> BridgeError:
    """The error without secrets, and without what its tool was given."""
    details = projector.answer(error.details)
    shown = BridgeError(
        error.code,
        projector.answer(error.message),
        hint=None if error.hint is None else projector.answer(error.hint),
        private=error.private,
    )
    shown.details = details if isinstance(details, dict) else {}
    return shown
