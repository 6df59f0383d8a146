"""One execution of a program on the host: the machine that decides, and the effects that it lets happen.

The guest drives by asking for effects; this side knows, from its own machine and from outcomes that it saw itself,
which there are. An effect that the machine did not just emit is refused, recorded as a violation, and fails the
execution. Where there is no guest (a program that a client runs directly, or what has to be undone after a violation)
`drive` asks in its place.
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

    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.kernel.events import Event, Redo
    from mcp_bridge.kernel.machine import Machine
    from mcp_bridge.kernel.program_parser import Program
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.policy.secrets.value_references import Ids, Scalar

    Read = Callable[[str], Any]

logger = logging.getLogger(__name__)


class Effects(Protocol):
    """Does what programs ask for, through the gate."""

    @property
    def servers(self) -> frozenset[str] | None:
        """The servers that whoever asks was given, by their configured names; None for all."""

    async def perform(
        self,
        run: ProgramRun,
        effect: Effect,
        request: RequestContext,
        *,
        approved: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Do it, or refuse it. Raises nothing but cancellation.

        Args:
            run: The program's execution.
            effect: What its machine wants.
            request: The request that it is done for.
            approved: The question that a person has approved of already, or None.

        Returns:
            The outcome, projected: both machines take it as it is.
        """

    async def project(self, value: Any) -> Any:
        """A value as it may enter a state: without secrets and sensitive values."""

    def values_behind(self, value: Any) -> Mapping[str, Scalar]:
        """The sensitive values that a projected value refers to, by the ids of their references."""

    def adopt(self, execution: str, values: Mapping[str, Scalar | None], spent: Mapping[str, Any]) -> None:
        """Go on with an execution of which a part was done elsewhere.

        Args:
            execution: Its id.
            values: Those behind the references that were given out there.
            spent: What it has used of its limits, as `Budget.adopt` takes it.
        """

    def records(self, execution: str) -> None:
        """What is recorded of an execution counts for the run that these are the effects of."""

    async def repeatable(self, run: ProgramRun, effect: Effect) -> bool:
        """Whether an effect of a program that may have happened may be done again."""


class Journal(Protocol):
    """Hears of everything that an execution does. The recorder."""

    def event(self, run: ProgramRun, event: Event, effects: list[Effect] | None, step: str | None = None) -> None:
        """What came in, and what the machine wants now; None for an outcome that it wants no more.

        Args:
            run: Whose.
            event: What came in.
            effects: What the machine wants now.
            step: The path of the step that it is an outcome of, if the machine still knows.
        """

    def violation(self, run: ProgramRun, message: str) -> None:
        """The guest asked for what the machine had not emitted."""


class Earlier(NamedTuple):
    """What a run that goes on has from before.

    Attributes:
        references: Those that it has had elsewhere.
        waited: Rows of its record of an earlier suspension: what waited then is due when it was due then.
        approved: The questions about calls that a person has allowed, by their effects.
        unresolved: Rows of effects that were in doubt when the machine wanted them no more.
    """

    references: Ids
    waited: Sequence[dict[str, Any]]
    approved: Mapping[int, QuestionFields]
    unresolved: list[dict[str, Any]]


class ProgramRun:
    """A program under way.

    Args:
        program: What to run.
        machine: In its first state, or restored.
        effects: Does what it asks for.
        journal: Hears of it.
        tasks: Where deadlines run.
        principal: Who runs it.
        origin: `operator` or `agent`: whose program it is.
        execution: Its id, which is its trace's too; a new one by default.
        servers: Those that are left to it, whoever drives it; None for all.
        context: What its machine was made with, unless it was restored.
        warnings: Rows of the steps that the policy was seen to deny in any case when it began.
        earlier: What it has from before, if its machine was restored.

    Attributes:
        effects: Does what it asks for.
        questions: What a person is to be asked about calls, by the effects that wait for it.
        violated: What the guest did, or None.
        resumed: Whether its machine has been restored.
        moved: Whether its machine has taken an event here.
        waited, approved, references: As in `Earlier`.
        doubts: Rows of the effects that are in doubt, by their numbers.
        unresolved: Rows of those that were, when the machine wanted them no more: nobody has said what happened.
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
        earlier: Earlier | None = None,
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
        self.references, self.waited, self.approved, self.unresolved = earlier or Earlier({}, (), {}, [])
        self.violated: str | None = None
        self.moved = False
        self.questions: dict[int, QuestionFields] = {}
        self.doubts: dict[int, dict[str, Any]] = {}
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
        """A projected value as it enters this run's state: with the references that it has had for the same values.

        Whoever goes on with it may have met them before, by other references; and what is equal is to be equal in it.
        """
        if not self.references:
            return value
        return await off_loop(value, renamed, value, self.effects.values_behind(value), self.references)

    # --- the guest's requests ---

    async def effect(self, number: int, request: RequestContext = NO_REQUEST) -> dict[str, Any]:
        """Let an effect happen; its outcome as a JSON object, with its place in the order of outcomes.

        Args:
            number: The effect's.
            request: The request that asks for it.

        Raises:
            BridgeError: `violation`: the machine has not emitted it, or it has been asked for before.
        """
        if number in self._deadlines or number in self._fired:
            return await self._deadline(number, request)
        if number in self._withdrawn:
            # Asked for before the guest could know that it is wanted no more.
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
        """Take a payload that a suspended execution waits for.

        Raises:
            BridgeError: As the machine's refusal: `not_pending`, `not_resumable`, `bad_value`, `ended`.
        """
        try:
            self._apply(event)
        except IllegalEventError as exc:
            raise BridgeError(exc.code, f"The execution can't be resumed so: {exc}.") from None

    def cancel(self, reason: str) -> None:
        """End it; `drive` then does what has to be undone. Nothing happens to one that is ending already."""
        if not self.machine.ended:
            self._apply(Cancel(reason))

    async def settle(self, number: int, decision: dict[str, Any] | None) -> None:
        """End a pending effect that no resume may end: by a person's decision, or because its time has come.

        Args:
            number: The effect.
            decision: The person's; None for what has waited until its time had come.
        """
        effect = next(effect for effect, _ in self.machine.awaited() if effect.id == number)
        if decision is None:
            outcome = Outcome(number, "ok" if effect.kind == "wait" else "timeout")
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
        """A call is about to be made that can't be made again, if nobody hears of its outcome."""
        self._begun[number] = time.time()

    def doubt(self, number: int, since: float | None = None) -> None:
        """Suspend what waits for an effect that may have happened, until a person says whether it has.

        Args:
            number: The effect.
            since: When it was about to happen; by default when this run had it begin.
        """
        effect = self.machine.waiting[number].effect
        assert effect is not None  # noqa: S101 - it is among those that wait
        self._offered.pop(number, None)
        self.doubts[number] = in_doubt.doubt_row(
            effect, self._begun.get(number, time.time()) if since is None else since
        )
        self._end(Outcome(number, "pending", code=IN_DOUBT))

    def resolve(self, event: Outcome | Redo) -> None:
        """End a doubt by a person's word.

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
        """Hold the guest's final state against the host's.

        Raises:
            BridgeError: `violation`: they differ, or the program is still running.
        """
        if not self.machine.ended and self.machine.status != "suspended":
            raise self.violation("the program was called finished while it was running")
        if digest != await self.digest():
            raise self.violation("the sandbox's state of the program is not the host's")

    async def digest(self) -> str:
        """SHA-256 of the state's canonical bytes, as it is now."""
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
        """Ask for every effect, until the program has ended or is suspended."""
        async with anyio.create_task_group() as tasks:
            while not self.machine.ended and self.machine.status != "suspended":
                for number in list(self._offered):
                    effect = self._offered.pop(number)
                    tasks.start_soon(self._perform, effect, NO_REQUEST)
                self._changed = anyio.Event()
                await self._changed.wait()

    async def wind_down(self) -> None:
        """Undo what a program that has failed wants undone; one that can go on is left as it is."""
        if self.machine.level.ending is not None:
            await self.drive()

    def leave(self) -> None:
        """Nobody drives it any more: its deadlines begin anew when it goes on."""
        for deadline in self._deadlines.values():
            deadline.set()
        self._deadlines.clear()

    # --- transitions ---

    async def _perform(self, effect: Effect, request: RequestContext) -> dict[str, Any] | None:
        """Let an effect happen and take its outcome; None if the machine wants it no more."""
        number = effect.id
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
        """For an outcome's large text that its step parses: what the kernel's `parsed` gives, found off the loop."""
        text = outcome.value
        if not isinstance(text, str) or not is_large(text) or not self.machine.parses(outcome.effect):
            return None
        found: Any = None
        failed: NotJSONError | None = None
        # What has happened is taken, whoever doesn't want it any more.
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
        """An effect has ended without an outcome: whoever asked has gone, or the machine wants it no more."""
        begun, wanted = effect.id in self._begun, effect.id in self.machine.waiting
        if begun and wanted:
            self.doubt(effect.id)
        elif begun:
            self._end(_interrupted(effect.id))
        elif wanted:
            self._offered[effect.id] = effect

    def _take(self, outcome: Outcome, read: Read | None = None) -> dict[str, Any]:
        """Apply an outcome; without a pause between that and its place in the order."""
        outcome = self._end(outcome, read)
        self._sequence += 1
        return {"sequence": self._sequence, **outcome_object(outcome)}

    def _end(self, outcome: Outcome, read: Read | None = None) -> Outcome:
        """Apply an outcome; what was applied: of one that no machine can take, that it failed."""
        if outcome.effect in self.machine.waiting or outcome.effect in self.machine.deadlines:
            try:
                self._apply(outcome, read)
            except IllegalEventError as exc:
                logger.warning("effect %s of %s: %s", outcome.effect, self.execution, exc)
                outcome = Outcome(outcome.effect, "failed", code="bad_outcome", message="its outcome can't be taken")
                self._apply(outcome)
        else:
            self._journal.event(self, outcome, None)
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
                # Not at the guest's asking: it could leave that out.
                self._deadlines[effect.id] = anyio.Event()
                self._tasks.start_soon(self._watch, effect)
            else:
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

    async def _watch(self, effect: Effect) -> None:
        withdrawn = self._deadlines[effect.id]
        with anyio.move_on_after(effect.arguments["seconds"]):
            await withdrawn.wait()
            return
        if self._deadlines.pop(effect.id, None) is None:
            return  # withdrawn in the moment in which it passed
        self._fired[effect.id] = self._take(Outcome(effect.id, "ok"))
        withdrawn.set()

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
