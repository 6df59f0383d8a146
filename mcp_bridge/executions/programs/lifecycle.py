"""Programs for one bridge: whose they are, which are under way, and what is kept of them.

A program that a sandbox has started or resumed can be driven by that sandbox alone, through its `Session`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import in_doubt
from mcp_bridge.executions.idempotency import Key, once
from mcp_bridge.executions.programs.library import ProgramLibrary
from mcp_bridge.executions.programs.record import refuse_erased, run_record, standing
from mcp_bridge.executions.programs.run import ProgramRun
from mcp_bridge.executions.readiness import may_go_on
from mcp_bridge.executions.recovery import event_json, replay, spent, state_hash
from mcp_bridge.executions.request_identity import Keys, ProgramAsked, whole_key
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.governance.denied_steps import MAX_TOLD, told_denied
from mcp_bridge.kernel import program as programs
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Outcome, Resume
from mcp_bridge.kernel.machine import APPROVAL, IN_DOUBT, Machine
from mcp_bridge.kernel.values import ValueFaultError, canonical, normal
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.payloads import outcome_object
from mcp_bridge.ledger.storage.store import StoredExecution
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.secrets.references import equal_by_values, fill_in, ids_of
from mcp_bridge.sandbox.owner import owner_label

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.programs.library import Found
    from mcp_bridge.executions.programs.run import Effects
    from mcp_bridge.gate.admission import Asker
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.governance.denied_steps import DeniedStep
    from mcp_bridge.kernel.events import Effect, Event
    from mcp_bridge.kernel.program import Program
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.store import ProgramStore, Starter
    from mcp_bridge.policy.rules.call import Origin

logger = logging.getLogger(__name__)

MAX_CONTEXT_BYTES = 4 << 20
"""Largest context that a program is started with, in canonical bytes."""


class Programs(ProgramLibrary):
    """The programs of one bridge.

    Args:
        store: Keeps programs and executions.
        recorder: Is told of everything.
        operators: The operator's programs, by name.
        tasks: Where deadlines run.
        key: Of the MACs by which equal requests are told.
        policy_hash: Of the policy in force.
        old_key: Of the MACs that version 0.1.0 has kept; None where it has kept none.
    """

    def __init__(
        self,
        store: ProgramStore,
        recorder: Recorder,
        operators: Mapping[str, Program],
        tasks: TaskGroup,
        key: bytes,
        policy_hash: str = "",
        old_key: bytes | None = None,
    ) -> None:
        super().__init__(store, operators)
        self.recorder = recorder
        self.policy_hash = policy_hash
        self.alike_policies: Mapping[str, int] = {}
        """As `recovery.spent`."""
        self.retry_failed = False
        """Whether a key whose execution has failed may be used for another attempt."""
        self.denied_steps: Callable[[Program, Origin], Awaitable[list[DeniedStep]]] | None = None
        """Finds the steps of a program that the policy denies in any case; None where there is no policy."""
        self.refuses_denied_steps = False
        """Whether a program that has some is refused; else it is begun, with a warning."""
        self.subject_fields: Sequence[str] = ()
        """Names in a context, of which the first that is there says whose data it is."""
        self._tasks = tasks
        self._keys = Keys(key, old_key)
        self._under_way: dict[str, anyio.Event] = {}

    async def start(
        self,
        asked: Any,
        context: dict[str, Any],
        key: Key | str | None,
        principal: str,
        effects: Effects,
        starter: Starter = "agent",
        asker: Asker | None = None,
        request: RequestContext = NO_REQUEST,
    ) -> ProgramRun | StoredExecution:
        """Begin an execution; or, of a key that has been used, the execution that has it.

        Args:
            asked: The program, or the name of one.
            context: Names and values.
            key: Idempotency key; a text is one that its starter has given.
            principal: Whose execution it is.
            effects: Does what it asks for.
            starter: Who has it begun.
            asker: Asks a person what it waits for, if its key has one that is suspended; or None.
            request: The request that it is for.

        Raises:
            BridgeError: As `find`; `reserved_name`: as `check_program`; `bad_context`, `context_too_large`; `bad_key`;
                `program_sensitive`: as `without_values`; `key_conflict`: the key belongs to another program or context,
                or to one of another origin, or perhaps to another starter.
        """
        if isinstance(key, str):
            key = Key(key, starter)
        found = await self.find(asked, principal)
        if starter == "agent" == found.origin:
            # Saved before there was such a check, or never saved.
            self.check_program(found.program)
        context = await off_loop(context, checked_context, context)
        # As it was given: without its values it has other references each time.
        written = programs.bundle(found.program)
        behind = effects.values_behind([written, context])
        asked_for = await off_loop(written, fill_in, written, behind) if effects.values_behind(written) else None
        program_asked = await ProgramAsked(self._keys, asked_for or found.program.hash, context, behind).load()
        if key is not None:
            old = None if self._keys.before is None else self.store
            key = await whole_key(key, effects.project, effects.values_behind, old)
        return await once(
            self.store,
            principal,
            key,
            _Starts(self, found, context, key, program_asked, principal, effects, starter, asker),
            origin=found.origin,
            under_way=self._under_way,
            retry_failed=self.retry_failed,
            request=request,
        )

    async def begin(
        self,
        found: Found,
        context: dict[str, Any],
        key: Key | None,
        request: ProgramAsked,
        principal: str,
        effects: Effects,
        starter: Starter,
    ) -> ProgramRun | None:
        """Begin an execution; None if its key has one already."""
        denied = [] if self.denied_steps is None else await self.denied_steps(found.program, found.origin)
        if denied:
            self._warn_of(found.program, denied)
        subject, subject_is_value = await self.subject_of(context, effects)
        context = await effects.project(context)
        if not isinstance(context, dict):
            raise BridgeError(
                "context_too_large",
                "The context has more sensitive values than an execution may have, or is too large with them hidden.",
                hint="Pass less: a program can read large data by a tool.",
            )
        if found.origin == "agent":
            found = await self.without_values(found, effects.project)
        machine = await off_loop([context, found.program.data], Machine, found.program, context)
        run = ProgramRun(found.program, machine, effects, self, self._tasks, principal=principal, origin=found.origin)
        run.servers, run.context = effects.servers, context
        run.warnings = [row._asdict() for row in denied]
        row = StoredExecution(
            id=run.execution,
            kind="program",
            principal=principal,
            key=None if key is None else key.text,
            key_space="" if key is None else key.space,
            whole_key="" if key is None else key.whole,
            request=request.mac,
            # Even of one that its first transition has ended: until it is taken down how, that is still to be done.
            status="running",
            program=found.program.hash,
            bundle=programs.bundle(found.program),
            origin=found.origin,
            owner=owner_label(),
            state=await off_loop([context, found.program.data], state.dump, machine),
            record=None,
            due=None,
            started=time.time(),
            subject=subject,
            subject_is_value=subject_is_value,
        )
        self._under_way[run.execution] = anyio.Event()
        effects.records(run.execution)
        # A reference may stand in the program itself, and the step be done by another process.
        values = effects.values_behind([context, row.bundle])
        began: dict[str, Any] = {"context": context, "effects": [effect.id for effect in machine.effects]}
        began |= {"starter": starter, "servers": _listed(run.servers)}
        if run.warnings:
            began["denied"] = run.warnings
        start = self.entry("start", run, program=found.program.name, origin=found.origin, **began)
        added = False
        try:
            with anyio.CancelScope(shield=True):
                # Once it is kept it has to be somebody's, who takes down its end.
                added = await self.store.add(row, values, start)
        finally:
            if not added:
                run.leave()
                del self._under_way[run.execution]
        return run if added else None

    async def is_same(
        self, known: StoredExecution, program: Program, context: dict[str, Any], effects: Effects
    ) -> bool:
        """Whether an execution is of a program and a context, save for values that are erased in its own.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        if known.program != program.hash:
            return False
        history = await self.recorder.read(known.id)
        was = next((row.entry.payload.get("context") for row in history if row.entry.kind == "start"), None)
        now = await effects.project(context)
        own = await self.store.values(known.id)
        kept = {name: value for name, value in own.items() if value is not None}
        values = {**kept, **effects.values_behind(now)}
        return await off_loop([was, now], equal_by_values, was, now, values)

    def _warn_of(self, program: Program, denied: list[DeniedStep]) -> None:
        """Say before the first step what can't be done.

        Raises:
            BridgeError: `denied_steps`: such programs are refused.
        """
        what = told_denied(program, denied)
        if not self.refuses_denied_steps:
            logger.warning("%s", what)
            return
        raise BridgeError(
            "denied_steps",
            f"The program was not begun: {what}.",
            hint='Leave these steps out. With denied_steps = "warn" in [programs] they begin, with a warning.',
            steps=[row._asdict() for row in denied[:MAX_TOLD]],
        )

    async def subject_of(self, given: Mapping[str, Any], effects: Effects) -> tuple[str, bool]:
        """Whose data a context, or a tool's arguments, are, and whether there is a sensitive value in that name.

        An empty name if they don't say.
        """
        named = next((given[name] for name in self.subject_fields if isinstance(given.get(name), str | int)), "")
        whole = fill_in(named, effects.values_behind(named))
        return str(whole), bool(whole) and await effects.project(whole) != whole

    async def resume(self, execution: str, event: Resume | None, principal: str, effects: Effects) -> ProgramRun:
        """Go on with a suspended execution, as far as what it waits for has come about.

        Args:
            execution: Its id.
            event: What a tool or event that it waits for has given; None if it waits for decisions or for time.
            principal: Whose it has to be.
            effects: Does what it asks for.

        Raises:
            BridgeError: `unknown_trace`; `erased`; `not_suspended`; `narrowed`: it may use servers that
                whoever goes on with it was not given; `still_waiting`, with what it waits for; as `ProgramRun.resume`.
        """
        async with self._taken(execution, principal, effects) as (stored, run):
            # Of one whose process had died, where it stands isn't down yet.
            went_on = stored.status != "suspended" or run.moved
            went_on = await self._settle(run, stored) or went_on
            if event is not None and run.machine.can_resume:
                run.resume(event._replace(payload=await run.own(await effects.project(event.payload))))
            elif not went_on and run.machine.status == "suspended":
                raise _still_waiting(stored)
        return run

    async def settle(
        self, execution: str, asked: str | None, settlement: Settlement, principal: str, effects: Effects
    ) -> ProgramRun:
        """End a doubt by a person's word; to be driven, or kept until somebody goes on with it.

        Args:
            execution: Its id.
            asked: The step's path or the effect's number; None if only one is in doubt.
            settlement: The person's word.
            principal: Whose it has to be.
            effects: Does what the program asks for.

        Raises:
            BridgeError: `unknown_trace`; `erased`; `not_suspended`; as `doubts.pick` and `ProgramRun.resolve`.
        """
        async with self._taken(execution, principal, effects) as (_, run):
            doubt = in_doubt.pick(run.doubts, asked, execution)
            told = await run.own(await effects.project(settlement._asdict()))
            settlement = settlement._replace(**told)
            decision = settlement.decision(doubt | {"arguments": await effects.project(doubt["arguments"])})
            entry = Entry("decision", execution, decision, doubt["step"], self.policy_hash, run.program.hash)
            self.recorder.post(entry)
            run.resolve(settlement.event(doubt["effect"]))
        return run

    async def cancel(self, execution: str, reason: str, principal: str, effects: Effects) -> ProgramRun:
        """End a suspended execution; to be driven, for what has to be undone.

        Raises:
            BridgeError: `unknown_trace`; `erased`; `not_suspended`.
        """
        async with self._taken(execution, principal, effects) as (_, run):
            run.cancel(await run.own(await effects.project(reason)))
        return run

    @contextlib.asynccontextmanager
    async def _taken(
        self, execution: str, principal: str, effects: Effects
    ) -> AsyncGenerator[tuple[StoredExecution, ProgramRun]]:
        """An execution that can go on, to go on with; after an error it is as before."""
        stored = await self.stored(execution, principal)
        refuse_erased(stored)
        status = standing(stored)
        if stored.state is None or status not in {"suspended", "interrupted"}:
            raise BridgeError(
                "not_suspended",
                f"The execution {execution} is not suspended: {status}.",
                hint=f"Look with mcp-bridge execution show {execution}.",
            )
        if effects.servers is not None:
            # Its steps, and what undoes them, would fail for want of servers that whoever began it has given it.
            given = _given(await self.recorder.read(execution))
            if given is None or not given <= effects.servers:
                raise BridgeError(
                    "narrowed",
                    f"The execution {execution} may use servers that this script was not given.",
                    hint="It goes on without `servers`, or with all that it was begun with.",
                )
        with anyio.CancelScope(shield=True):
            taken = await self.store.take(stored, owner_label())
        if not taken:
            raise BridgeError(
                "not_suspended",
                f"The execution {execution} is not suspended: somebody has resumed it.",
                hint=f"Look with mcp-bridge execution show {execution}.",
            )
        self._under_way[execution] = anyio.Event()
        run = None
        # First: from here on its entries say that it may be left in another way than it was.
        again = {"recovered": stored.status == "running"}
        self.recorder.post(Entry("resume", execution, again, None, self.policy_hash, stored.program))
        try:
            run = await self._restored_run(stored, principal, effects)
            try:
                yield stored, run
            except BaseException:
                run.leave()
                raise
        except BaseException:
            try:
                with anyio.CancelScope(shield=True):
                    if run is not None and run.moved:
                        await self._kept(run)
                    else:
                        await self.store.update(
                            stored.id, status=status, state=stored.state, record=stored.record, due=stored.due
                        )
            finally:
                self._under_way.pop(execution).set()
            raise

    async def _restored_run(self, stored: StoredExecution, principal: str, effects: Effects) -> ProgramRun:
        """An execution as its process left it, or lost it."""
        assert stored.state is not None  # noqa: S101 - it can go on
        history = await self.recorder.read(stored.id)
        effects.records(stored.id)
        values = await self.store.values(stored.id)
        effects.adopt(stored.id, values, spent(history, self.policy_hash, self.alike_policies))
        machine = await off_loop(stored.state, _restored, stored, stored.state)
        doubtful = replay(machine, stored.state, history)
        origin = stored.origin
        run = ProgramRun(
            machine.program, machine, effects, self, self._tasks, stored.id, principal=principal, origin=origin
        )
        # Whoever goes on with it: what it wasn't given by whoever began it, nobody gives it.
        run.servers = _given(history)
        run.references = ids_of(values)
        run.warnings = next((row.entry.payload.get("denied", []) for row in history if row.entry.kind == "start"), [])
        run.resumed, run.waited = True, (stored.record or {}).get("waiting", ())
        decided = await self.store.approvals(stored.id)
        run.approved = {row.effect: row.question for row in decided if row.decision and row.decision["approved"]}
        began, unsettled = in_doubt.begun(history), in_doubt.unsettled(history)
        run.unresolved = [began[number] for number in sorted(unsettled - machine.waiting.keys()) if number in began]
        for effect, _ in machine.awaited():
            since = began.get(effect.id, {}).get("since")
            if machine.pending.get(effect.id) == IN_DOUBT:
                run.doubts[effect.id] = in_doubt.row(effect, since or stored.started)
            elif effect.id in doubtful and not await effects.repeatable(run, effect):
                run.doubt(effect.id, since)
        return run

    async def _settle(self, run: ProgramRun, stored: StoredExecution) -> bool:
        """End what decisions and time have ended; whether there was anything."""
        decisions = {row.effect: row.decision for row in await self.store.approvals(run.execution)}
        due = {row["effect"]: row["due"] for row in (stored.record or {}).get("waiting", ()) if row.get("due")}
        settled = False
        for effect, pending in run.machine.awaited():
            if effect.id not in run.machine.waiting:
                continue  # while another was settled, its group's time has passed
            # A decision is for what waits for one: a call that was approved, made, and is pending has had its own.
            wants = effect.kind == "approval" or run.machine.pending.get(effect.id) == APPROVAL
            decision = decisions.get(effect.id) if wants else None
            if pending and (decision is not None or due.get(effect.id, math.inf) <= time.time()):
                # A person's comment is no tool's output, and enters the state all the same.
                await run.settle(effect.id, decision and await run.own(await run.effects.project(decision)))
                settled = True
        return settled

    async def stored(self, execution: str, principal: str) -> StoredExecution:
        """An execution of this principal.

        Raises:
            BridgeError: `unknown_trace`.
        """
        found = await self.store.execution(execution)
        if found is None or found.principal != principal:
            raise BridgeError("unknown_trace", f"There is no trace {execution[:100]!r}.")
        return found

    async def keep(self, run: ProgramRun, *, undo: bool = False) -> dict[str, Any]:
        """Take down where a run stands, as it is left; its record.

        Args:
            run: It.
            undo: Whether what it wants undone is undone first, as `ProgramRun.wind_down`.

        Raises:
            BridgeError: `not_recorded`. Who waits for the run is told so, too.
        """
        try:
            return await self._kept(run, undo=undo)
        finally:
            if (ended := self._under_way.pop(run.execution, None)) is not None:
                ended.set()

    async def _kept(self, run: ProgramRun, *, undo: bool = False) -> dict[str, Any]:
        """As `_keep`; one that can't be taken down as it stands is nobody's, and goes on by its entries."""
        try:
            if undo:
                await run.wind_down()
            run.leave()
            return await self._keep(run)
        except BaseException:
            run.leave()
            with anyio.CancelScope(shield=True), contextlib.suppress(BridgeError):
                await self.store.interrupt(run.execution)
            raise

    async def _keep(self, run: ProgramRun) -> dict[str, Any]:
        record = run_record(run)
        # Now, with the record; it is written down elsewhere, if it is large.
        tree = None if run.machine.ended else state.tree(run.machine)
        digest = await run.digest() if tree is None else ""
        left = None if tree is None else await off_loop(tree, canonical, tree)
        for row in record["waiting"]:
            # What an agent passes in itself is in the state as it is.
            if row.get("question"):
                row["question"] = await run.effects.project(row["question"])
                await self.store.ask(run.execution, row["effect"], row["question"])
            elif row["kind"] == IN_DOUBT:
                row["arguments"] = await run.effects.project(row["arguments"])
        unresolved = record.get("unresolved", [])
        for row in unresolved:
            row["arguments"] = await run.effects.project(row["arguments"])
        sealed = await self.store.sealed_record(run.execution, record)
        if left is None:
            ended = {"status": record["status"], "error": record["error"], "state": digest}
            if unresolved:
                ended["unresolved"] = unresolved
            self.recorder.post(self.entry("end", run, **ended))
        else:
            self.recorder.post(self.entry("suspension", run, status=record["status"], state=state_hash(left)))
        await self.store.update(
            run.execution,
            status=record["status"],
            state=left,
            record=sealed,
            due=min((row["due"] for row in record["waiting"] if row.get("due")), default=None),
        )
        return record

    # --- as the journal of runs ---

    def event(self, run: ProgramRun, event: Event, effects: list[Effect] | None, step: str | None = None) -> None:
        """As `Journal.event`."""
        wanted = None if effects is None else [effect.id for effect in effects]
        if isinstance(event, Outcome):
            self.store.store_values(run.execution, run.effects.values_behind(event.value))
            self.recorder.post(self.entry("outcome", run, step, **outcome_object(event), effects=wanted))
            return
        payload = event_json(event)
        self.store.store_values(run.execution, run.effects.values_behind(payload.get("payload")))
        self.recorder.post(self.entry("transition", run, **payload, effects=wanted))

    def violation(self, run: ProgramRun, message: str) -> None:
        """The guest asked for what the machine had not emitted."""
        self.recorder.post(self.entry("violation", run, message=message))

    def stray(self, execution: str, message: str) -> None:
        """A script's sandbox did what no program of its own can be failed for."""
        # However often it does: no more than that goes to a log that may be somebody's terminal.
        logger.debug("execution %s: violation: %s", execution, message)
        self.recorder.post(Entry("violation", execution, {"message": message}, None, self.policy_hash))

    def entry(self, kind: Any, run: ProgramRun, step: str | None = None, /, **payload: Any) -> Entry:
        """An entry of a run."""
        return Entry(kind, run.execution, payload, step, self.policy_hash, run.program.hash)


class _Starts(NamedTuple):
    """As `once.Executions`."""

    programs: Programs
    found: Found
    context: dict[str, Any]
    key: Key | None
    request: ProgramAsked
    principal: str
    effects: Effects
    starter: Starter
    asker: Asker | None

    async def begin(self) -> ProgramRun | None:
        return await self.programs.begin(*self[1:-1])

    async def go_on(self, known: StoredExecution) -> ProgramRun | None:
        try:
            return await self.programs.resume(known.id, None, self.principal, self.effects)
        except BridgeError as exc:
            # Another was quicker, and may have ended it by now.
            if exc.code != "not_suspended" or known.state is None:
                raise
            return None

    async def is_same(self, known: StoredExecution) -> bool:
        if known.request:
            return await self.request.is_of(known, self.programs.store)
        # Forgotten, with a value that was in its context.
        return await self.programs.is_same(known, self.found.program, self.context, self.effects)

    async def can_go_on(self, known: StoredExecution) -> bool:
        return await may_go_on(self.programs.store, known, self.asker)

    async def may_be_operators(self, known: StoredExecution) -> bool:
        # Of the same origin the same was allowed. What a script has begun is no operator's, and may have been narrowed.
        return not await self.programs.store.holders(known.id)


def _listed(servers: frozenset[str] | None) -> list[str] | None:
    return None if servers is None else sorted(servers)


def _given(history: Sequence[Recorded]) -> frozenset[str] | None:
    """The servers that whoever began an execution gave it; None for all.

    Args:
        history: Its entries. Those of version 0.1.0 don't say.
    """
    given = next((row.entry.payload.get("servers") for row in history if row.entry.kind == "start"), None)
    return None if given is None else frozenset(given)


def checked_context(context: Any) -> dict[str, Any]:
    """A context in normal form.

    Raises:
        BridgeError: `bad_context`, `context_too_large`.
    """
    try:
        context = normal(context, "context")
    except ValueFaultError as exc:
        raise BridgeError("bad_context", f"The context can't be taken: {exc}.", hint="It is a JSON object.") from None
    if not isinstance(context, dict):
        raise BridgeError("bad_context", "The context is no object.", hint="Pass names and values.")
    size = len(canonical(context))
    if size > MAX_CONTEXT_BYTES:
        raise BridgeError("context_too_large", f"The context has {size} bytes; the limit is {MAX_CONTEXT_BYTES}.")
    return context


def _restored(stored: StoredExecution, data: bytes) -> Machine:
    """The machine of an execution as it was taken down.

    Raises:
        BridgeError: `bad_state`.
    """
    try:
        return state.restore(programs.unbundle(stored.bundle), data)
    except (ValueError, KeyError, TypeError) as exc:
        raise BridgeError(
            "bad_state",
            f"What is kept of the execution {stored.id} can't be used: {exc}.",
            hint="It was changed, or written by another version: it can't go on.",
        ) from None


def _still_waiting(stored: StoredExecution) -> BridgeError:
    rows = (stored.record or {}).get("waiting", [])
    told = ", ".join(f"{row['step']} ({row['kind']})" for row in rows)
    ways = {row["kind"]: _WAYS_ON.get(row["kind"], "Resume it with a payload.") for row in rows}
    hint = " ".join(dict.fromkeys(ways.values()))
    return BridgeError("still_waiting", f"The execution {stored.id} still waits for: {told}.", hint=hint, waiting=rows)


_WAYS_ON = {
    "approval": "A person decides, with `mcp-bridge approvals`.",
    "wait": "Resume it when the time has come.",
    IN_DOUBT: "A person says what happened, with `mcp-bridge execution settle`.",
}
