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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import LOCAL
from mcp_bridge.governance.tool_names import tool_names
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.rules.call import Call
from mcp_bridge.policy.rules.comparisons import Unknown
from mcp_bridge.policy.rules.decision import arguments_in_conditions, decide
from mcp_bridge.policy.rules.schemas import Filled, with_defaults, with_unknown_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.downstream.client.fleet import Fleet
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.policy.redaction.projection import Projector
    from mcp_bridge.policy.rules.budgets import Budget
    from mcp_bridge.policy.rules.call import StepContext
    from mcp_bridge.policy.rules.decision import Decision
    from mcp_bridge.policy.rules.globs import ToolNames
    from mcp_bridge.policy.rules.snapshot import PolicySnapshot

MAX_DECISIONS = 5
"""How often one call is decided: each listing that differs has it decided anew."""


class Asker(Protocol):
    """Asks a person."""

    async def ask(self, question: dict[str, Any]) -> bool | None:
        """Whether the person approves; None if nobody can be asked now."""


class Decisions(Protocol):
    """What people have decided, elsewhere or before, about the calls of a script that was suspended for them."""

    async def decided(self, call: str, question: Mapping[str, Any]) -> bool | None:
        """Whether a person has approved of exactly this call; None if nobody has decided.

        Args:
            call: The call's id.
            question: As a person was to be asked it.
        """

    async def decide(self, call: str, question: Mapping[str, Any], *, approved: bool) -> bool | None:
        """Take down and record what the client's person says, where the question is open elsewhere, too.

        Returns:
            What counts: somebody may have been quicker. None where it isn't asked elsewhere.
        """


class ValueKeeper(Protocol):
    """Keeps what is behind references."""

    def __call__(self, execution: str, value: Any) -> None:
        """Keep the values behind the references in a projected value, with what is recorded next."""


class ApprovalNeededError(BridgeError):
    """The policy wants a person asked, and nobody can be asked now. The call has not been made.

    Attributes:
        question: What the person is to be asked, projected: `tool`, `arguments`, `filled`, `announced`, `why`.
    """

    def __init__(self, decision: Decision, question: dict[str, Any]) -> None:
        super().__init__("approval_needed", decision.message, hint="Nobody can be asked now.", tool=decision.tool)
        self.question = question


class Place(NamedTuple):
    """Where a call is made.

    Attributes:
        execution: Whose entries tell of it.
        program: The program's hash; None for a script's own call.
        path: The step's path; None for a script's own call.
        step: The step, for the policy.
        mark: What the entries of a script's own call carry besides: `call`, `asked`, `raw`.
    """

    execution: str
    program: str | None
    path: str | None
    step: StepContext | None
    mark: Mapping[str, Any]

    def marks(self, names: ToolNames) -> dict[str, Any]:
        """The mark, without what the tool's own name says already."""
        return {name: value for name, value in self.mark.items() if value != str(names)}


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that may be made.

    Attributes:
        tool: As its server lists it.
        names: The tool's.
        sent: The arguments that it gets.
        asked: The arguments as the caller wrote them, projected.
        recorded: The arguments that it gets, projected.
        decision: What let it through; counted against its rules already.
    """

    tool: ToolInfo
    names: ToolNames
    sent: dict[str, Any]
    asked: Any
    recorded: Any
    decision: Decision


class Admission:
    """Decides the calls of one execution.

    Args:
        snapshot: The policy.
        budget: Counts calls against rules.
        fleet: The servers.
        projector: The execution's.
        recorder: Is told of denials and of a person's decisions.
        keep: Keeps the values behind what is recorded.
        asker: Asks a person, or None.
        decisions: Those about a script's own calls; None for a program's.
    """

    def __init__(
        self,
        snapshot: PolicySnapshot,
        budget: Budget,
        fleet: Fleet,
        projector: Projector,
        recorder: Recorder,
        keep: ValueKeeper,
        asker: Asker | None,
        decisions: Decisions | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._budget = budget
        self._fleet = fleet
        self._projector = projector
        self._recorder = recorder
        self._keep = keep
        self._asker = asker
        self._decisions = decisions

    async def admit(
        self, tool: ToolInfo, arguments: dict[str, Any], place: Place, approved: Mapping[str, Any] | None
    ) -> Admitted:
        """Decide a call.

        Args:
            tool: From the catalogue, which may be older than what the server lists now.
            arguments: By their names in the schema, references unresolved.
            place: Where it is made.
            approved: The question that a person has approved of already, or None.

        Returns:
            What may be called. Whoever doesn't call it uncounts its decision.

        Raises:
            BridgeError: `denied`, `approval_needed`, `approval_outdated`, `tool_changed`, `bad_arguments`, `secret_…`,
                `reference_…`, `unknown_tool`, and what starting a server raises.
        """
        agreed, refuses_defaults = approved, False
        for _ in range(MAX_DECISIONS):
            make = functools.partial(self._case, tool, arguments, refuses_defaults=refuses_defaults)
            case = await off_loop([arguments, tool.input_schema], make)
            decision = decide(self._snapshot, case.call(place.step, self._budget.made))
            if decision.effect == "deny":
                by = {"tool": str(case.names), "by": decision.decider, **place.marks(case.names)}
                await self._record("denial", place, by)
                raise decision.error()
            self._budget.count(decision)
            is_counted = True
            try:
                listed = await self._listed(tool)
                if listed != tool:
                    tool, refuses_defaults = listed, False
                    continue
                sent = await off_loop([arguments, case.filled.arguments], case.sent, self._projector)
                asks = decision.effect == "approve"
                if (case.filled.paths or asks) and not await self._fits(case, sent):
                    refuses_defaults = True
                    continue
                written = await self._as_written(case, decision, place)
                if written is not None:
                    case = written
                    sent = await off_loop(case.arguments, case.sent, self._projector)
                if asks:
                    schema_and_sent = [tool.input_schema, case.arguments]
                    case = await off_loop(schema_and_sent, case.with_announced, self._projector)
                if asks and not self._covers(agreed, case):
                    if approved is not None:
                        raise _outdated(case.names)
                    await self._ask(decision, case, place)
                    # The person has taken their time: what they have approved of is what is still to be called.
                    agreed = case.question(decision)
                    continue
                is_counted = False
                return Admitted(tool, case.names, sent, case.asked, case.recorded, decision)
            finally:
                if is_counted:
                    self._budget.uncount(decision)
        raise BridgeError(
            "tool_changed",
            f"The server of {tool_names(tool)} lists it otherwise each time it is asked.",
            hint="Nothing was called.",
            tool=str(tool_names(tool)),
        )

    def _case(self, tool: ToolInfo, arguments: dict[str, Any], *, refuses_defaults: bool) -> _Case:
        names = tool_names(tool)
        asked = self._projector.trace(arguments)
        arguments = self._projector.named(arguments, names)
        # A registered tool's own signature has its defaults, so that all of them are what it gets.
        asked_for = None if tool.server == LOCAL else arguments_in_conditions(self._snapshot, names)
        filled = with_defaults(tool.input_schema, arguments, asked_for)
        judged = self._projector.judged(filled.arguments, names)
        if refuses_defaults:
            judged = with_unknown_defaults(Filled(judged, filled.paths))
        if tool.server == LOCAL:
            judged = _with_untold(tool.input_schema, judged)
        is_filled = bool(filled.paths) and not refuses_defaults
        recorded = self._projector.trace(filled.arguments) if is_filled else asked
        return _Case(tool, names, arguments, filled, is_filled, judged, asked, recorded)

    async def _listed(self, tool: ToolInfo) -> ToolInfo:
        """The tool of the same name, as its server lists it now."""
        return tool if tool.server == LOCAL else await self._fleet.server(tool.server).listed(tool.name)

    async def _fits(self, case: _Case, sent: dict[str, Any]) -> bool:
        """Whether arguments fit their tool's schema; False if they do without the tool's own defaults.

        Raises:
            BridgeError: `bad_arguments`, `arguments_unchecked`.
        """
        if case.tool.server == LOCAL:
            return True  # its own signature has the defaults, and checks
        server = self._fleet.server(case.tool.server)
        try:
            await server.check(case.tool, sent)
        except BridgeError as exc:
            if case.is_filled:
                try:
                    await server.check(case.tool, await off_loop(case.arguments, case.unfilled, self._projector))
                except BridgeError as other:
                    raise projected(other, self._projector) from None
                return False
            raise projected(exc, self._projector) from None
        return True

    async def _as_written(self, case: _Case, decision: Decision, place: Place) -> _Case | None:
        """The call without the defaults, if that is decided in the same way and fits; else None.

        Nothing is put in that makes no difference to the rules: it might make one to the tool.
        """
        if not case.is_filled or case.tool.server == LOCAL:
            return None
        written = await off_loop([case.tool.input_schema, case.arguments], case.as_written, self._projector)
        if written.filled.paths == case.filled.paths:
            return None
        if decide(self._snapshot, written.call(place.step, self._made_before(decision))) != decision:
            return None
        try:
            sent = await off_loop(case.arguments, written.sent, self._projector)
            await self._fleet.server(case.tool.server).check(case.tool, sent)
        except BridgeError:
            return None
        return written

    def _made_before(self, decision: Decision) -> dict[int, int]:
        """The calls that rules had let through before this decision, which is counted already."""
        made = self._budget.made
        return {**made, **{number: made[number] - 1 for number in decision.counts}}

    def _covers(self, agreed: Mapping[str, Any] | None, case: _Case) -> bool:
        """Whether a person has approved of exactly this call."""
        if agreed is None:
            return False
        if "filled" not in agreed:
            # Of 0.1.0, which neither put in defaults nor resolved the names that programs write.
            return bool(agreed.get("arguments") == case.asked)
        return bool(
            agreed["tool"] == str(case.names)
            and agreed["arguments"] == case.recorded
            and agreed.get("announced", {}) == case.announced
        )

    async def _ask(self, decision: Decision, case: _Case, place: Place) -> None:
        question = case.question(decision)
        self._keep(place.execution, [case.recorded, case.announced])
        call = str(place.mark.get("call", ""))
        decisions = self._decisions if call else None
        answer = None if decisions is None else await decisions.decided(call, question)
        if answer is None:
            if self._asker is not None:
                given = case.filled.arguments if case.is_filled else case.arguments
                shown = await off_loop(given, self._projector.person, given, case.names)
                answer = await self._asker.ask(question | {"arguments": shown, "announced": case.left})
            if answer is None:
                raise ApprovalNeededError(decision, question)
            counts = None if decisions is None else await decisions.decide(call, question, approved=answer)
            if counts is None:
                told = {**question, **place.marks(case.names), "approved": answer, "by": "client"}
                await self._record("decision", place, told)
            else:
                answer = counts
        if not answer:
            raise BridgeError("denied", f"A person has denied {decision.tool}.", tool=decision.tool)

    async def _record(self, kind: Any, place: Place, payload: dict[str, Any]) -> None:
        entry = Entry(kind, place.execution, payload, place.path, self._snapshot.hash, place.program)
        await self._recorder.append(entry)


@dataclass(frozen=True, slots=True)
class _Case:
    """A call as it is decided.

    Attributes:
        tool, names: The tool.
        arguments: As the caller wrote them.
        filled: With the tool's defaults that a condition asks about.
        is_filled: Whether they are sent.
        judged: For the rules.
        asked: `arguments`, projected.
        recorded: What is sent, projected.
        left: The tool's defaults that are left to it, by their paths; known where a person is asked.
        announced: `left`, projected.
    """

    tool: ToolInfo
    names: ToolNames
    arguments: dict[str, Any]
    filled: Filled
    is_filled: bool
    judged: dict[str, Any]
    asked: Any
    recorded: Any
    left: Mapping[str, Any] = field(default_factory=dict)
    announced: Any = field(default_factory=dict)

    def as_written(self, projector: Projector) -> _Case:
        """Without the defaults, save what the schema requires."""
        filled = with_defaults(self.tool.input_schema, self.arguments, ())
        is_filled = bool(filled.paths)
        judged = projector.judged(filled.arguments, self.names)
        recorded = projector.trace(filled.arguments) if is_filled else self.asked
        return replace(self, filled=filled, is_filled=is_filled, judged=judged, recorded=recorded)

    def with_announced(self, projector: Projector) -> _Case:
        """With what a person is told of defaults that aren't sent."""
        given = self.filled.arguments if self.is_filled else self.arguments
        left = {} if self.tool.server == LOCAL else dict(with_defaults(self.tool.input_schema, given).defaults)
        return replace(self, left=left, announced=projector.trace(left))

    def call(self, step: StepContext | None, made: Mapping[int, int]) -> Call:
        return Call(
            self.names, self.judged, self.tool.annotations, step, made, self.tool.input_schema, self.filled.whole
        )

    def sent(self, projector: Projector) -> dict[str, Any]:
        """What the tool gets. A registered tool has its defaults from its own signature."""
        puts_in = self.is_filled and self.tool.server != LOCAL
        return projector.tool(self.filled.arguments if puts_in else self.arguments, self.names)  # type: ignore[no-any-return]

    def unfilled(self, projector: Projector) -> dict[str, Any]:
        return projector.tool(self.arguments, self.names)  # type: ignore[no-any-return]

    def question(self, decision: Decision) -> dict[str, Any]:
        filled = list(self.filled.paths) if self.is_filled else []
        return {
            "tool": str(self.names),
            "arguments": self.recorded,
            "filled": filled,
            "announced": self.announced,
            "why": decision.message,
        }


def _with_untold(schema: Mapping[str, Any], judged: dict[str, Any]) -> dict[str, Any]:
    """With what a registered tool's signature has a default for that no JSON can tell."""
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
        f"What a person has approved of is not what {names} would be given now: its server lists it otherwise.",
        hint="Nothing was called. Start it anew, and have it approved as it is.",
        tool=str(names),
    )


def projected(error: BridgeError, projector: Projector) -> BridgeError:
    """An error in which no secret is."""
    details = projector.output(error.details)
    shown = BridgeError(
        error.code,
        projector.output(error.message),
        hint=None if error.hint is None else projector.output(error.hint),
        private=error.private,
    )
    shown.details = details if isinstance(details, dict) else {}
    return shown
