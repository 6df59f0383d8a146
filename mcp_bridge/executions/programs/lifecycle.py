"""The lifecycle of programs: started, suspended, resumed, and recorded. `settling` has what a person says of one.

A program that a sandbox has started or resumed can be driven by that sandbox alone, through its `Session`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mcp_bridge.errors import BridgeError, RunInterruptedError
from mcp_bridge.executions import in_doubt
from mcp_bridge.executions.idempotency.keyed_requests import find_or_start
from mcp_bridge.executions.idempotency.keys import Key, whole_key
from mcp_bridge.executions.idempotency.request_identity import ProgramIdentity
from mcp_bridge.executions.lifecycle import new_execution
from mcp_bridge.executions.programs import waits
from mcp_bridge.executions.programs.effects import ProgramEffects
from mcp_bridge.executions.programs.library import ProgramLibrary
from mcp_bridge.executions.programs.program_run import PriorRun, ProgramRun
from mcp_bridge.executions.programs.record import run_record
from mcp_bridge.executions.programs.recovery import apply_recorded, state_hash, waits_since
from mcp_bridge.executions.programs.subjects import subjects_of
from mcp_bridge.executions.readiness import can_resume
from mcp_bridge.executions.status import not_suspended, refuse_erased, require_resumable
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.governance.denied_steps import MAX_LISTED, denied_steps_message
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Outcome, Resume
from mcp_bridge.kernel.language import program_parser as programs
from mcp_bridge.kernel.machine import APPROVAL, IN_DOUBT, Machine
from mcp_bridge.kernel.values import ValueFaultError, canonical, normal
from mcp_bridge.ledger.log.payloads import (
    EffectOutcome,
    ProgramEnd,
    ProgramStart,
    ProgramSuspension,
    Transition,
    Violation,
    start_of,
)
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.secrets.value_references import equal_by_values, fill_in, ids_of
from mcp_bridge.telemetry.observed_runs import observed_run

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.executions.programs.library import Found
    from mcp_bridge.executions.programs.program_run import Effects
    from mcp_bridge.executions.programs.subjects import Subject
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.governance.denied_steps import DeniedStep
    from mcp_bridge.kernel.events import Effect, Event
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.ledger.log.entries import Entry, Recorded
    from mcp_bridge.ledger.log.payload_base import Payload
    from mcp_bridge.ledger.storage.execution_store import Starter, StoredExecution
    from mcp_bridge.policy.rules.call import Origin

logger = logging.getLogger(__name__)

MAX_CONTEXT_BYTES = 4 << 20
"""Largest context that a program is started with, in canonical bytes."""


class ProgramRules(NamedTuple):
    """The operator's rules for programs.

    Attributes:
        denied_steps: Finds the steps of a program that the policy denies in any case; None without a policy.
        refuses_denied_steps: Whether a program with such steps is refused; else it is started with a warning.
        subject_fields: As `subjects_of`.
    """

    denied_steps: Callable[[Program, Origin], Awaitable[list[DeniedStep]]] | None = None
    refuses_denied_steps: bool = False
    subject_fields: Sequence[str] = ()


class Programs:
    """The programs of one bridge, as durable executions.

    Args:
        lifecycle: The lifecycle of the bridge's executions.
        operators: The operator's programs, by name.
        tasks: The task group for deadlines.
        rules: The operator's rules for programs; by default, none.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        operators: Mapping[str, Program],
        tasks: TaskGroup,
        rules: ProgramRules | None = None,
    ) -> None:
        self.lifecycle = lifecycle
        self.store = lifecycle.store
        self.recorder = lifecycle.recorder
        self.library = ProgramLibrary(self.store, operators)
        self._tasks = tasks
        self.rules = rules or ProgramRules()

    def effects(self, gate: Gate) -> ProgramEffects:
        """Carries out the effects of programs, through a gate."""
        return ProgramEffects(gate, self.library.operators, self.recorder, self.holds)

    async def holds(self, execution: str, values: Any, effects: Effects) -> None:
        """Note whose data some arguments or a context are: an execution that has them is erased with that person's.

        Raises:
            BridgeError: As `subjects_of`.
        """
        self._hold(execution, await subjects_of(values, self.rules.subject_fields, effects))

    def _hold(self, execution: str, subjects: Sequence[Subject]) -> None:
        for subject in subjects:
            self.store.hold(execution, subject=subject.name, is_value=subject.is_value)

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
        """Start an execution, or return the execution that has the key.

        Args:
            asked: The program, or the name of one.
            context: Names and values.
            key: The idempotency key; a text is one that its starter chose.
            principal: The execution's owner.
            effects: Carries out its effects.
            starter: Who starts it.
            asker: Asks a person what a suspended execution with the key waits for; or None.
            request: The context of the request.

        Raises:
            BridgeError: As `ProgramLibrary.find`; `reserved_name`: as `ProgramLibrary.check_program`; `bad_context`,
                `context_too_large`; `bad_key`; `program_sensitive`: as `ProgramLibrary.without_values`;
                `key_conflict`: the key belongs to another program or context, to one of another origin, or perhaps to
                another starter; `too_many_subjects`.
        """
        if isinstance(key, str):
            key = Key(key, starter)
        found = await self.library.find(asked, principal)
        if starter == "agent" == found.origin:
            # It was saved before there was such a check, or never.
            self.library.check_program(found.program)
        context = await off_loop(context, checked_context, context)
        # With the values: the references to them differ each time.
        written = programs.bundle(found.program)
        behind = effects.values_behind([written, context])
        asked_for = await off_loop(written, fill_in, written, behind) if effects.values_behind(written) else None
        keys = self.lifecycle.keys
        identity = await ProgramIdentity(keys, asked_for or found.program.hash, context, behind).load()
        if key is not None:
            old = None if keys.before is None else self.store
            key = await whole_key(key, effects.project, effects.values_behind, old)
        keyed = _Request(self, found, context, key, identity, principal, effects, starter, asker)
        return await find_or_start(self.lifecycle, principal, key, keyed, origin=found.origin, request=request)

    async def start_new(
        self,
        found: Found,
        context: dict[str, Any],
        key: Key | None,
        request: ProgramIdentity,
        principal: str,
        effects: Effects,
        starter: Starter,
    ) -> ProgramRun | None:
        """Start an execution; None if its key has one already."""
        denied = [] if self.rules.denied_steps is None else await self.rules.denied_steps(found.program, found.origin)
        if denied:
            self._warn_of(found.program, denied)
        subjects = await subjects_of(context, self.rules.subject_fields, effects)
        context = await effects.project(context)
        if not isinstance(context, dict):
            raise BridgeError(
                "context_too_large",
                "The context has more sensitive values than an execution may have, or is too large with them hidden.",
                hint="Pass less: a program can read large data by a tool.",
            )
        if found.origin == "agent":
            found = await self.library.without_values(found, effects.project)
        machine = await off_loop([context, found.program.data], Machine, found.program, context)
        run = ProgramRun(
            found.program,
            machine,
            effects,
            self,
            self._tasks,
            principal=principal,
            origin=found.origin,
            servers=effects.servers,
            context=context,
            warnings=[row._asdict() for row in denied],
        )
        row = new_execution(
            "program",
            run.execution,
            principal,
            key,
            request=request.mac,
            program=found.program.hash,
            bundle=programs.bundle(found.program),
            origin=found.origin,
            state=await off_loop([context, found.program.data], state.dump, machine),
            subject=subjects[0] if subjects else None,
        )
        effects.records(run.execution)
        # The program itself may contain references, and another process may carry out the step.
        values = effects.values_behind([context, row.bundle])
        began = ProgramStart(
            found.program.name,
            found.origin,
            context,
            [effect.id for effect in machine.effects],
            starter,
            None if run.servers is None else sorted(run.servers),
            run.warnings,
            machine.version,
        )
        added = False
        try:
            added = await self.lifecycle.start(
                row, values, self.entry(began, run), lambda: self._hold(run.execution, subjects[1:])
            )
        finally:
            if not added:
                run.leave()
        return run if added else None

    async def is_same(
        self, known: StoredExecution, program: Program, context: dict[str, Any], effects: Effects
    ) -> bool:
        """Whether an execution has this program and context, except for values that were erased in its own.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        if known.program != program.hash:
            return False
        history = await self.recorder.read(known.id)
        was = _start(history).context
        now = await effects.project(context)
        own = await self.store.values(known.id)
        known_values = {name: value for name, value in own.items() if value is not None}
        values = {**known_values, **effects.values_behind(now)}
        return await off_loop([was, now], equal_by_values, was, now, values)

    def _warn_of(self, program: Program, denied: list[DeniedStep]) -> None:
        """Warn of denied steps before the first step.

        Raises:
            BridgeError: `denied_steps`: such programs are refused.
        """
        what = denied_steps_message(program, denied)
        if not self.rules.refuses_denied_steps:
            logger.warning("%s", what)
            return
        raise BridgeError(
            "denied_steps",
            f"The program was not begun: {what}.",
            hint='Leave these steps out. With denied_steps = "warn" in [programs] they begin, with a warning.',
            steps=[row._asdict() for row in denied[:MAX_LISTED]],
        )

    async def resume(self, execution: str, event: Resume | None, principal: str, effects: Effects) -> ProgramRun:
        """Resume a suspended execution, if what it waits for has happened.

        Args:
            execution: Its id.
            event: The payload for a tool or event that it waits for; None if it waits for decisions or for time.
            principal: The execution's owner.
            effects: Carries out its effects.

        Raises:
            BridgeError: `unknown_trace`; `erased`; `not_suspended`; `narrowed`: it may use servers that
                the caller may not use; `still_waiting`, with what it waits for; as `ProgramRun.resume`.
        """

        async def check(stored: StoredExecution) -> None:
            rows = (stored.record or {}).get("waiting", ())
            takes_payload = event is not None and any(row["kind"] not in _RESUME_HINTS for row in rows)
            # Without rows it can't have been suspended: its state says more.
            is_waiting = stored.status == "suspended" and rows and not takes_payload
            if is_waiting and not await can_resume(self.store, stored):
                raise _still_waiting(stored)

        # Before it is taken: nothing is recorded of it where it stays as it was.
        async with self.taken(execution, principal, effects, check) as (stored, run):
            # If its process died, its current state isn't stored yet.
            went_on = stored.status != "suspended" or run.moved
            went_on = await self._apply_decisions(run, stored) or went_on
            if event is not None and run.machine.can_resume:
                run.resume(event._replace(payload=await run.own(await effects.project(event.payload))))
            elif not went_on and run.machine.status == "suspended":
                raise _still_waiting(stored)
        return run

    @contextlib.asynccontextmanager
    async def taken(
        self,
        execution: str,
        principal: str,
        effects: Effects,
        check: Callable[[StoredExecution], Awaitable[None]] | None = None,
    ) -> AsyncGenerator[tuple[StoredExecution, ProgramRun]]:
        """Take over an execution that can be resumed; after an error its current state is stored.

        Args:
            execution: Its id.
            principal: Its owner.
            effects: Carries out its effects.
            check: Refuses an execution by raising, before it is taken.

        Raises (on entering):
            BridgeError: `unknown_trace`; `erased`; `not_suspended`; `narrowed`: it may use servers that the caller may
                not use; as `check`.
        """
        stored = await self.lifecycle.stored(execution, principal)
        refuse_erased(stored)
        status = require_resumable(stored)
        if stored.state is None:
            raise not_suspended(execution, status)
        if effects.servers is not None:
            # Its steps and their compensation would fail without the servers that its starter gave it.
            servers = _servers_of(await self.recorder.read(execution))
            if servers is None or not servers <= effects.servers:
                raise BridgeError(
                    "narrowed",
                    f"The execution {execution} may use servers that this script was not given.",
                    hint="Resume it without `servers`, or with all that it was started with.",
                )
        if check is not None:
            await check(stored)
        async with self.lifecycle.taken(stored, resumes=True):
            run = await self._restored_run(stored, principal, effects)
            try:
                yield stored, run
            except BaseException:
                run.leave()
                if run.moved:
                    with anyio.CancelScope(shield=True):
                        await self.keep(run)
                raise

    async def _restored_run(self, stored: StoredExecution, principal: str, effects: Effects) -> ProgramRun:
        """The run of a stored execution, suspended or interrupted."""
        assert stored.state is not None  # it can go on
        history = await self.recorder.read(stored.id)
        effects.records(stored.id)
        values = await self.store.values(stored.id)
        effects.adopt(stored.id, values, self.lifecycle.usage(history))
        machine = await off_loop(stored.state, _restored, stored, stored.state)
        doubtful = apply_recorded(machine, stored.state, history)
        decided = await self.store.approvals(stored.id)
        approved = {row.effect: row.question for row in decided if row.decision and row.decision["approved"]}
        began, unsettled = in_doubt.started_calls(history), in_doubt.effects_in_doubt(history)
        unresolved = [began[number] for number in sorted(unsettled - machine.waiting.keys()) if number in began]
        run = ProgramRun(
            machine.program,
            machine,
            effects,
            self,
            self._tasks,
            principal=principal,
            origin=stored.origin,
            execution=stored.id,
            # Whoever resumes it: it never gets servers that its starter didn't give it.
            servers=_servers_of(history),
            warnings=_start(history).denied,
            earlier=PriorRun(
                ids_of(values),
                (stored.record or {}).get("waiting", ()),
                approved,
                unresolved,
                waits_since(machine, history),
            ),
        )
        for effect, _ in machine.awaited():
            since = began[effect.id]["since"] if effect.id in began else None
            if machine.pending.get(effect.id) == IN_DOUBT:
                run.doubts[effect.id] = in_doubt.doubt_row(effect, since or stored.started)
            elif effect.id in doubtful and not await effects.repeatable(run, effect):
                run.doubt(effect.id, since)
        return run

    async def _apply_decisions(self, run: ProgramRun, stored: StoredExecution) -> bool:
        """Apply decisions, and end what is due. Returns whether there was anything."""
        decided = {row.effect: row for row in await self.store.approvals(run.execution)}
        due = {row["effect"]: row["due"] for row in (stored.record or {}).get("waiting", ()) if row.get("due")}
        settled = False
        for effect, pending in run.machine.awaited():
            if effect.id not in run.machine.waiting:
                continue  # its group has timed out while another effect was settled
            # Only for what waits for a decision: a call that was approved and made, and is pending, has had its own.
            wants = effect.kind == "approval" or run.machine.pending.get(effect.id) == APPROVAL
            row, until = decided.get(effect.id), due.get(effect.id, math.inf)
            if effect.kind == "wait" and effect.id not in due:
                # Its process died before that was stored.
                until = waits.due(effect, run.asked.get(effect.id))
            # One that was made too late doesn't count, however late anybody looks.
            decision = row.decision if row and wants and (row.decided or 0) <= until else None
            if pending and (decision is not None or until <= time.time()):
                # A person's comment enters the state too, so it is projected.
                await run.settle(effect.id, decision and await run.own(await run.effects.project(decision)))
                settled = True
        return settled

    async def drive(self, run: ProgramRun) -> dict[str, Any]:
        """Drive a run on the host until it ends or is suspended. Returns its record.

        Raises:
            RunInterruptedError: Its end couldn't be recorded.
        """
        with observed_run("program", run.execution, run.principal) as observed:
            try:
                try:
                    await run.drive()
                finally:
                    with anyio.CancelScope(shield=True):
                        record = await self.keep(run)
                        observed.status = record["status"]
            except BridgeError as exc:
                again = (
                    f"`mcp-bridge execution resume {run.execution}` resumes it, "
                    "and so does its idempotency key, if it has one."
                )
                raise RunInterruptedError(run.execution, exc, again) from exc
        return record

    async def keep(self, run: ProgramRun, *, undo: bool = False) -> dict[str, Any]:
        """Store a run's state and record. A run that can't be stored is recovered from its entries. Returns the record.

        Args:
            run: The program under way.
            undo: Whether to carry out its compensation first, as `ProgramRun.wind_down`.

        Raises:
            BridgeError: `not_recorded`. Waiters for the run get this error, too.
        """
        try:
            if undo:
                await run.wind_down()
            run.leave()
            return await self._keep(run)
        except BaseException:
            run.leave()
            with contextlib.suppress(BridgeError):
                await self.lifecycle.interrupt(run.execution)
            raise

    async def _keep(self, run: ProgramRun) -> dict[str, Any]:
        record = run_record(run)
        # Taken together with the record; a large state is encoded on a thread.
        tree = None if run.machine.ended else state.tree(run.machine)
        digest = await run.digest() if tree is None else ""
        left = None if tree is None else await off_loop(tree, canonical, tree)
        for row in record["waiting"]:
            # Values that an agent passed in are in the state unprojected.
            if row.get("question"):
                row["question"] = await run.effects.project(row["question"])
                await self.store.ask(run.execution, row["effect"], row["question"])
            elif row["kind"] == IN_DOUBT:
                row["arguments"] = await run.effects.project(row["arguments"])
        unresolved = record.get("unresolved", [])
        for row in unresolved:
            row["arguments"] = await run.effects.project(row["arguments"])
        if left is None:
            entry = self.entry(ProgramEnd(record["status"], record["error"], digest, unresolved), run)
        else:
            servers = self.lifecycle.servers_digest()
            entry = self.entry(ProgramSuspension(record["status"], state_hash(left), servers), run)
        await self.lifecycle.leave(
            run.execution,
            entry,
            status=record["status"],
            state=left,
            record=record,
            due=min((row["due"] for row in record["waiting"] if row.get("due")), default=None),
        )
        return record

    # --- as the journal of runs ---

    def event(self, run: ProgramRun, event: Event, effects: list[Effect] | None, step: str | None = None) -> None:
        """As `Journal.event`."""
        wanted = None if effects is None else [effect.id for effect in effects]
        if isinstance(event, Outcome):
            self.store.store_values(run.execution, run.effects.values_behind(event.value))
            self.recorder.post(self.entry(EffectOutcome(event, wanted), run, step))
            return
        payload = event.payload if isinstance(event, Resume) else None
        self.store.store_values(run.execution, run.effects.values_behind(payload))
        self.recorder.post(self.entry(Transition(event, wanted), run))

    def violation(self, run: ProgramRun, message: str) -> None:
        """The guest asked for what the machine had not emitted."""
        self.recorder.post(self.entry(Violation(message), run))

    def record_violation(self, execution: str, message: str) -> None:
        """Record a violation of a script's sandbox that belongs to none of its programs."""
        # Bounded, however many there are: the log may be a person's terminal.
        logger.debug("execution %s: violation: %s", execution, message)
        self.recorder.post(self.lifecycle.entry(Violation(message), execution))

    def entry(self, payload: Payload, run: ProgramRun, step: str | None = None) -> Entry:
        """A payload as an entry of a run."""
        return self.lifecycle.entry(payload, run.execution, step, run.program.hash)


class _Request(NamedTuple):
    """As `KeyedRequest`."""

    programs: Programs
    found: Found
    context: dict[str, Any]
    key: Key | None
    request: ProgramIdentity
    principal: str
    effects: Effects
    starter: Starter
    asker: Asker | None

    async def start(self) -> ProgramRun | None:
        return await self.programs.start_new(*self[1:-1])

    async def resume(self, known: StoredExecution) -> ProgramRun | None:
        try:
            return await self.programs.resume(known.id, None, self.principal, self.effects)
        except BridgeError as exc:
            # Another process was quicker, and may have ended it by now.
            if exc.code != "not_suspended" or known.state is None:
                raise
            return None

    async def is_same(self, known: StoredExecution) -> bool:
        if known.request:
            return await self.request.is_of(known, self.programs.store)
        # The MAC was erased with a value of its context.
        return await self.programs.is_same(known, self.found.program, self.context, self.effects)

    async def may_be_operators(self, known: StoredExecution) -> bool:
        # With the same origin the same was allowed. A script's program is never an operator's, and may be narrowed.
        return not await self.programs.store.holders(known.id)


def _start(history: Sequence[Recorded]) -> ProgramStart:
    start = start_of(history)
    return start if isinstance(start, ProgramStart) else ProgramStart("")


def _servers_of(history: Sequence[Recorded]) -> frozenset[str] | None:
    """The servers that the starter of an execution has left to it; None for all. Entries of version 0.1.0 don't say."""
    servers = _start(history).servers
    return None if servers is None else frozenset(servers)


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
    """The machine of a stored execution.

    Raises:
        BridgeError: `bad_state`.
    """
    try:
        return state.restore(programs.unbundle(stored.bundle), data)
    except (ValueError, KeyError, TypeError) as exc:
        raise BridgeError(
            "bad_state",
            f"The stored state of the execution {stored.id} can't be used: {exc}.",
            hint="It was changed, or written by another version, so the execution can't be resumed.",
        ) from None


def _still_waiting(stored: StoredExecution) -> BridgeError:
    rows = (stored.record or {}).get("waiting", [])
    listed = ", ".join(f"{row['step']} ({row['kind']})" for row in rows)
    ways = {row["kind"]: _RESUME_HINTS.get(row["kind"], "Resume it with a payload.") for row in rows}
    hint = " ".join(dict.fromkeys(ways.values()))
    return BridgeError(
        "still_waiting", f"The execution {stored.id} still waits for: {listed}.", hint=hint, waiting=rows
    )


_RESUME_HINTS = {
    "approval": "A person decides, with `mcp-bridge approvals`.",
    "wait": "Resume it when the time has come.",
    IN_DOUBT: "A person says what happened, with `mcp-bridge execution settle`.",
}
