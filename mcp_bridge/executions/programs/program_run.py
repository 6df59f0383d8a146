"""One execution of a program on the host: the machine that decides, and the effects that it lets happen.

The guest drives the program by requesting effects. The host knows from its own machine, and from outcomes that it has
seen itself, which effects there are. A request for an effect that the machine did not just emit is refused, recorded as
a violation, and fails the execution. Without a guest (a program that a client runs directly, or compensation after a
violation) `drive` requests the effects.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import in_doubt
from mcp_bridge.executions.programs import waits
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Cancel, Effect, IllegalEventError, Outcome, Resume
from mcp_bridge.kernel.json_parsing import NotJSONError, parsed
from mcp_bridge.kernel.machine import IN_DOUBT
from mcp_bridge.kernel.values import canonical
from mcp_bridge.ledger.log.payloads import outcome_object
from mcp_bridge.offload import is_large, off_loop, on_thread
from mcp_bridge.policy.secrets.value_references import renamed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from mcp_bridge.executions.record import InDoubtRow, WaitingRow
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.kernel.events import Event, Redo
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.kernel.machine import Machine
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.policy.secrets.known_values import Scalar
    from mcp_bridge.policy.secrets.value_references import Ids

    Read = Callable[[str], Any]

logger = logging.getLogger(__name__)


class Effects(Protocol):
    """Carries out the effects of programs, through the gate."""

    @property
    def servers(self) -> frozenset[str] | None:
        """The configured names of the servers that the caller may use; None for all."""

    async def perform(
        self,
        run: ProgramRun,
        effect: Effect,
        request: RequestContext,
        *,
        approved: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Carry out an effect, or refuse it. Raises nothing but cancellation.

        Args:
            run: The program's execution.
            effect: The effect that its machine has emitted.
            request: The context of the request for it.
            approved: The question that a person has already approved, or None.

        Returns:
            The outcome, projected; both machines apply it unchanged.
        """

    async def project(self, value: Any) -> Any:
        """The value without secrets and sensitive values, as it may enter a state."""

    def values_behind(self, value: Any) -> Mapping[str, Scalar]:
        """The sensitive values that a projected value refers to, by the ids of their references."""

    def adopt(self, execution: str, values: Mapping[str, Scalar | None], spent: Mapping[str, Any]) -> None:
        """Take over an execution that another run has begun.

        Args:
            execution: Its id.
            values: The values behind its references.
            spent: Its usage so far, as `Budget.adopt` takes it.
        """

    def records(self, execution: str) -> None:
        """Count what is recorded of an execution towards the limits of this run."""

    async def repeatable(self, run: ProgramRun, effect: Effect) -> bool:
        """Whether an effect that may have happened can be repeated."""


class Journal(Protocol):
    """Records the events of an execution."""

    def event(self, run: ProgramRun, event: Event, effects: list[Effect] | None, step: str | None = None) -> None:
        """Record an event, and the effects that the machine has emitted for it.

        Args:
            run: The program's execution.
            event: The event.
            effects: The effects that the machine has emitted; None for an outcome that it no longer awaits.
            step: The path of the step whose outcome the event is, if the machine still knows it.
        """

    def violation(self, run: ProgramRun, message: str) -> None:
        """Record that the guest requested an effect that the machine had not emitted."""


class PriorRun(NamedTuple):
    """What a resumed run has from earlier runs.

    Attributes:
        references: Its references, by their values.
        waited: The rows of its record at its last suspension. What waited then keeps its due time.
        approved: The questions that a person has approved, by their effects.
        unresolved: Rows of the effects that were in doubt when the machine stopped awaiting them.
        asked: When waits that the machine still awaits were asked for, in seconds since 1970, by their effects.
    """

    references: Ids
    waited: Sequence[WaitingRow]
    approved: Mapping[int, QuestionFields]
    unresolved: list[InDoubtRow[int]]
    asked: Mapping[int, float]


class ProgramRun:
    """A program under way.

    Args:
        program: The program.
        machine: Its machine, in its first state or restored.
        effects: Carries out its effects.
        journal: Records its events.
        tasks: The task group for its deadlines.
        principal: The execution's owner.
        origin: The program's owner: `operator` or `agent`.
        execution: The execution's id, which is also its trace's; a new one by default.
        servers: The servers that it may use, whoever drives it; None for all.
        context: The context that its machine was made with; None for a restored machine.
        warnings: Rows of the steps that the policy denied in any case at its start.
        earlier: What a restored run has from earlier runs.

    Attributes:
        effects: Carries out its effects.
        questions: The questions to a person about calls, by the effects that wait for them.
        violated: The violation, as a message; or None.
        resumed: Whether its machine has been restored.
        moved: Whether its machine has applied an event in this run.
        waited, approved, references: As in `PriorRun`.
        asked: When waits were asked for, in seconds since 1970, by their effects: in this run, or an earlier one.
        doubts: Rows of the effects in doubt, by their numbers.
        unresolved: As in `PriorRun`. Nobody has settled these effects.
    """

    def __init__(
        self,
        program: Program,
        machine: Machine,
        effects: Effects,
        journal: Journal,
        tasks: TaskGroup,
        *,
        principal: str,
        origin: Literal["operator", "agent"],
        execution: str | None = None,
        servers: frozenset[str] | None = None,
        context: Mapping[str, Any] = MappingProxyType({}),
        warnings: Sequence[dict[str, Any]] = (),
        earlier: PriorRun | None = None,
    ) -> None:
        self.program = program
        self.machine = machine
        self.execution = execution or secrets.token_hex(16)
        self.principal = principal
        self.origin: Literal["operator", "agent"] = origin
        self.servers = servers
        self.context = context
        self.warnings = warnings
        self.resumed = earlier is not None
        earlier = earlier or PriorRun({}, (), {}, [], {})
        self.references, self.waited, self.approved, self.unresolved, asked = earlier
        self.asked = dict(asked)
        self.violated: str | None = None
        self.moved = False
        self.questions: dict[int, QuestionFields] = {}
        self.doubts: dict[int, InDoubtRow[int]] = {}
        self.effects = effects
        self._journal = journal
        self._tasks = tasks
        self._sequence = 0
        self._offered: dict[int, Effect] = {}
        self._begun: dict[int, float] = {}
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._fired: dict[int, dict[str, Any]] = {}
        self._deadlines: dict[int, anyio.Event] = {}
        self._withdrawn: set[int] = set()
        self._digest: str | None = None
        self._transitions = 0
        self._changed: anyio.Event | None = None
        self._offer(effect for effect, pending in machine.awaited() if not pending)

    async def own(self, value: Any) -> Any:
        """A projected value with this run's own references, as it enters the state.

        The process that resumes a run may have other references for the same values. Within a state, equal values have
        equal references.
        """
        if not self.references:
            return value
        return await off_loop(value, renamed, value, self.effects.values_behind(value), self.references)

    # --- the guest's requests ---

    async def effect(self, number: int, request: RequestContext = NO_REQUEST) -> dict[str, Any]:
        """Carry out an effect. Returns its outcome as a JSON object, with its place in the order of outcomes.

        Args:
            number: The effect's number.
            request: The context of the request for it.

        Raises:
            BridgeError: `violation`: the machine has not emitted it, or it was requested before.
        """
        if number in self._deadlines or number in self._fired:
            return await self._deadline(number, request)
        if number in self._withdrawn:
            # Requested before the guest could know that it is no longer awaited.
            self._withdrawn.remove(number)
            raise BridgeError("effect_cancelled", f"Effect {number} is no longer wanted.")
        effect = None if self.violated else self._offered.pop(number, None)
        if effect is None:
            raise self.violation(f"effect {number} was asked for, which the program doesn't allow now")
        told = await self._perform(effect, request)
        if told is None:
            raise BridgeError("effect_cancelled", f"Effect {number} is no longer wanted.")
        return told

    def resume(self, event: Resume) -> None:
        """Apply a payload that a suspended execution waits for.

        Raises:
            BridgeError: As the machine's refusal: `not_pending`, `not_resumable`, `bad_value`, `ended`.
        """
        try:
            self._apply(event)
        except IllegalEventError as exc:
            raise BridgeError(exc.code, f"The execution can't be resumed so: {exc}.") from None

    def cancel(self, reason: str) -> None:
        """End the program; `drive` then carries out its compensation. No effect on a program that is ending already."""
        if not self.machine.ended:
            self._apply(Cancel(reason))

    async def settle(self, number: int, decision: dict[str, Any] | None) -> None:
        """End a pending effect that can't be resumed: by a person's decision, or because it is due.

        Args:
            number: The effect's number.
            decision: The person's decision; None for an effect that is due.
        """
        effect = next(effect for effect, _ in self.machine.awaited() if effect.id == number)
        if decision is None:
            outcome = waits.over(effect) if effect.kind == "wait" else Outcome(number, "timeout")
        elif effect.kind == "approval":
            outcome = Outcome(number, "ok", decision)
        elif decision["approved"]:
            approved: Outcome | None = None
            try:
                approved = await self.effects.perform(self, effect, NO_REQUEST, approved=self.approved.get(number, {}))
            finally:
                if approved is None and number in self._begun:
                    self.doubt(number)
            outcome = approved
        else:
            outcome = Outcome(number, "denied", None, "denied", "a person has denied the call")
        self._end(outcome, await self._read(outcome))

    def begins(self, number: int) -> None:
        """Mark an effect as begun. If its outcome is never seen, it is in doubt."""
        self._begun[number] = time.time()

    def doubt(self, number: int, since: float | None = None) -> None:
        """Put an effect in doubt that may have happened, until a person settles it.

        Args:
            number: The effect's number.
            since: When its intent was recorded; by default, when this run began it.
        """
        effect = self.machine.waiting[number].effect
        assert effect is not None  # it is among those that wait
        self._offered.pop(number, None)
        self.doubts[number] = in_doubt.doubt_row(
            effect, self._begun.get(number, time.time()) if since is None else since
        )
        self._end(Outcome(number, "pending", code=IN_DOUBT))

    def resolve(self, event: Outcome | Redo) -> None:
        """Settle an effect in doubt by a person's statement.

        Raises:
            BridgeError: As the machine's refusal: `bad_value`, `not_in_doubt`.
        """
        try:
            self._apply(event)
        except IllegalEventError as exc:
            raise BridgeError(exc.code, f"The doubt can't be settled so: {exc}.") from None
        self.doubts.pop(event.effect)
        self._begun.pop(event.effect, None)

    async def finish(self, digest: str) -> None:
        """Compare the guest's final state with the host's.

        Raises:
            BridgeError: `violation`: they differ, or the program is still running.
        """
        if not self.machine.ended and self.machine.status != "suspended":
            raise self.violation("the program was called finished while it was running")
        if digest != await self.digest():
            raise self.violation("the sandbox's state of the program is not the host's")

    async def digest(self) -> str:
        """SHA-256 of the current state's canonical bytes."""
        if self._digest is not None:
            return self._digest
        tree, transitions = state.tree(self.machine), self._transitions
        digest = hashlib.sha256(await off_loop(tree, canonical, tree)).hexdigest()
        if transitions == self._transitions:
            self._digest = digest
        return digest

    def violation(self, message: str) -> BridgeError:
        """Record a violation and fail the execution; the error for the guest."""
        self._journal.violation(self, message)
        if self.violated is None:
            self.violated = message
            logger.warning("execution %s: violation: %s", self.execution, message)
            if not self.machine.ended:
                self._apply(Cancel(f"violation: {message}"))
        return BridgeError("violation", f"This is no step of the program: {message}.")

    # --- without a guest ---

    async def drive(self) -> None:
        """Request every effect, until the program has ended or is suspended."""
        async with anyio.create_task_group() as tasks:
            while not self.machine.ended and self.machine.status != "suspended":
                for number in list(self._offered):
                    effect = self._offered.pop(number)
                    tasks.start_soon(self._perform, effect, NO_REQUEST)
                self._changed = anyio.Event()
                await self._changed.wait()

    async def wind_down(self) -> None:
        """Carry out the compensation of a program that has failed; a program that can be resumed is left as it is."""
        if self.machine.level.ending is not None:
            await self.drive()

    def leave(self) -> None:
        """Stop its deadlines, since nobody drives it any more. They begin anew when it is resumed."""
        for deadline in self._deadlines.values():
            deadline.set()
        self._deadlines.clear()

    # --- transitions ---

    async def _perform(self, effect: Effect, request: RequestContext) -> dict[str, Any] | None:
        """Carry out an effect and apply its outcome; None if the machine no longer awaits it."""
        number = effect.id
        if number not in self.machine.waiting:
            # Withdrawn since `drive` has begun this task: until now, there was nothing to cancel.
            return None
        outcome: Outcome | None = None
        read: Read | None = None
        with anyio.CancelScope() as scope:
            self._scopes[number] = scope
            try:
                outcome = await self.effects.perform(self, effect, request, approved=self.approved.get(number))
                read = await self._read(outcome)
            finally:
                del self._scopes[number]
                if outcome is None:
                    self._cut_off(effect)
        return None if outcome is None else self._take(outcome, read)

    async def _read(self, outcome: Outcome) -> Read | None:
        """The parser for an outcome's large text, with its result computed off the event loop."""
        text = outcome.value
        if not isinstance(text, str) or not is_large(text) or not self.machine.parses(outcome.effect):
            return None
        found: Any = None
        failed: NotJSONError | None = None
        # An effect that has happened is recorded, even if its caller was cancelled.
        with anyio.CancelScope(shield=True):
            try:
                found = await on_thread(parsed, text)
            except NotJSONError as exc:
                failed = exc

        def read(_: str) -> Any:
            if failed is not None:
                raise failed
            return found

        return read

    def _cut_off(self, effect: Effect) -> None:
        """Handle an effect without an outcome: its caller is gone, or the machine no longer awaits it."""
        begun, wanted = effect.id in self._begun, effect.id in self.machine.waiting
        if begun and wanted:
            self.doubt(effect.id)
        elif begun:
            self._end(_interrupted(effect.id))
        elif wanted:
            self._offered[effect.id] = effect

    def _take(self, outcome: Outcome, read: Read | None = None) -> dict[str, Any] | None:
        """Apply an outcome and number it, without an await between the two.

        Returns:
            The outcome as a JSON object, with its number; None if the machine no longer awaits the effect. Such an
            outcome has no number: the guest's machine would refuse it.
        """
        taken = self._end(outcome, read)
        if taken is None:
            return None
        self._sequence += 1
        return {"sequence": self._sequence, **outcome_object(taken)}

    def _end(self, outcome: Outcome, read: Read | None = None) -> Outcome | None:
        """Apply an outcome.

        Returns:
            What was applied: a failure, if the machine refuses the outcome itself; None if it no longer awaits one.
        """
        if outcome.effect not in self.machine.waiting and outcome.effect not in self.machine.deadlines:
            self._journal.event(self, outcome, None)
            return None
        try:
            self._apply(outcome, read)
        except IllegalEventError as exc:
            logger.warning("effect %s of %s: %s", outcome.effect, self.execution, exc)
            outcome = Outcome(outcome.effect, "failed", code="bad_outcome", message="its outcome can't be taken")
            self._apply(outcome)
        return outcome

    def _apply(self, event: Event, read: Read | None = None) -> None:
        step = self._step(event)
        effects = self.machine.apply(event, read)
        self.moved, self._digest = True, None
        self._transitions += 1
        self._journal.event(self, event, effects, step)
        self._offer(effects)
        if self._changed is not None:
            self._changed.set()

    def _step(self, event: Event) -> str | None:
        if not isinstance(event, Outcome):
            return None
        task = self.machine.waiting.get(event.effect) or self.machine.deadlines.get(event.effect)
        return None if task is None else task.path

    def _offer(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if effect.kind == "cancel":
                for number in effect.arguments["effects"]:
                    self._withdraw(number)
            elif effect.kind == "wait" and effect.name == "timeout":
                # Started by the host: a guest could leave the request out.
                self._deadlines[effect.id] = withdrawn = anyio.Event()
                self._tasks.start_soon(self._watch, effect, withdrawn)
            else:
                if effect.kind == "wait":
                    # From now on, whenever it is requested or the program is suspended. The time of a question or an
                    # event begins when the program is suspended: nobody can answer before.
                    self.asked.setdefault(effect.id, time.time())
                self._offered[effect.id] = effect

    def _withdraw(self, number: int) -> None:
        if self._offered.pop(number, None) is not None or number in self._deadlines:
            self._withdrawn.add(number)
        if (doubt := self.doubts.pop(number, None)) is not None:
            self.unresolved.append(doubt)
        if (scope := self._scopes.get(number)) is not None:
            scope.cancel()
        if (deadline := self._deadlines.pop(number, None)) is not None:
            deadline.set()

    async def _watch(self, effect: Effect, withdrawn: anyio.Event) -> None:
        with anyio.move_on_after(effect.arguments["seconds"]):
            await withdrawn.wait()
            return
        self._pass(effect.id)

    def _pass(self, number: int) -> None:
        """End what a deadline is for, unless it is withdrawn by now."""
        if (deadline := self._deadlines.pop(number, None)) is None:
            return
        if (told := self._take(Outcome(number, "ok"))) is not None:
            self._fired[number] = told
        deadline.set()

    async def _deadline(self, number: int, request: RequestContext) -> dict[str, Any]:
        if (deadline := self._deadlines.get(number)) is not None:
            request.release_slot()
            await deadline.wait()
        if (told := self._fired.pop(number, None)) is None:
            raise BridgeError("effect_cancelled", f"Effect {number} is no longer wanted.")
        return told


_INTERRUPTED = "interrupted while under way, as it was wanted no more: it may have happened"


def _interrupted(number: int) -> Outcome:
    return Outcome(number, "failed", code="interrupted", message=_INTERRUPTED)
