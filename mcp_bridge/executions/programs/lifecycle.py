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
from mcp_bridge.executions.idempotency.keyed_requests import find_or_start
from mcp_bridge.executions.idempotency.keys import Key, whole_key
from mcp_bridge.executions.idempotency.request_identity import ProgramIdentity
from mcp_bridge.executions.lifecycle import new_execution
from mcp_bridge.executions.programs.effects import ProgramEffects
from mcp_bridge.executions.programs.library import ProgramLibrary
from mcp_bridge.executions.programs.record import run_record
from mcp_bridge.executions.programs.recovery import apply_recorded, state_hash
from mcp_bridge.executions.programs.run import Earlier, ProgramRun
from mcp_bridge.executions.status import not_suspended, refuse_erased, require_resumable
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.governance.denied_steps import MAX_TOLD, told_denied
from mcp_bridge.kernel import program_parser as programs
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Outcome, Resume
from mcp_bridge.kernel.machine import APPROVAL, IN_DOUBT, Machine
from mcp_bridge.kernel.values import ValueFaultError, canonical, normal
from mcp_bridge.ledger.log.payloads import (
    EffectOutcome,
    EffectSettlement,
    ProgramEnd,
    ProgramStart,
    ProgramSuspension,
    Transition,
    Violation,
    start_of,
)
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.secrets.value_references import equal_by_values, fill_in, ids_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.executions.programs.library import Found
    from mcp_bridge.executions.programs.run import Effects
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.governance.denied_steps import DeniedStep
    from mcp_bridge.kernel.events import Effect, Event
    from mcp_bridge.kernel.program_parser import Program
    from mcp_bridge.ledger.log.entries import Entry, Recorded
    from mcp_bridge.ledger.log.payloads import Payload
    from mcp_bridge.ledger.storage.execution_store import Starter, StoredExecution
    from mcp_bridge.policy.rules.call import Origin

logger = logging.getLogger(__name__)

MAX_CONTEXT_BYTES = 4 << 20
"""Largest context that a program is started with, in canonical bytes."""


class ProgramRules(NamedTuple):
    """What the operator has said of programs.

    Attributes:
        denied_steps: Finds the steps of a program that the policy denies in any case; None where there is no policy.
        refuses_denied_steps: Whether a program that has some is refused; else it is started, with a warning.
        subject_fields: Names in a context: the value of the first that is there says whose data it is.
    """

    denied_steps: Callable[[Program, Origin], Awaitable[list[DeniedStep]]] | None = None
    refuses_denied_steps: bool = False
    subject_fields: Sequence[str] = ()


class Programs:
    """The programs of one bridge, as durable executions.

    Args:
        lifecycle: Of the bridge's executions.
        operators: The operator's programs, by name.
        tasks: Where deadlines run.
        rules: What the operator has said of programs; by default, nothing.
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
        self._rules = rules or ProgramRules()

    def effects(self, gate: Gate) -> ProgramEffects:
        """What does the effects of programs, through a gate."""
        return ProgramEffects(gate, self.library.operators, self.recorder)

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
        """Start an execution; or, of a key that has been used, the execution that has it.

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
            BridgeError: As `ProgramLibrary.find`; `reserved_name`: as `ProgramLibrary.check_program`; `bad_context`,
                `context_too_large`; `bad_key`; `program_sensitive`: as `ProgramLibrary.without_values`;
                `key_conflict`: the key belongs to another program or context, to one of another origin, or perhaps to
                another starter.
        """
        if isinstance(key, str):
            key = Key(key, starter)
        found = await self.library.find(asked, principal)
        if starter == "agent" == found.origin:
            # Saved before there was such a check, or never saved.
            self.library.check_program(found.program)
        context = await off_loop(context, checked_context, context)
        # As it was given: without its values it has other references each time.
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
        denied = [] if self._rules.denied_steps is None else await self._rules.denied_steps(found.program, found.origin)
        if denied:
            self._warn_of(found.program, denied)
        subject = await self.subject_of(context, effects)
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
            subject=subject,
        )
        effects.records(run.execution)
        # A reference may stand in the program itself, and the step be done by another process.
        values = effects.values_behind([context, row.bundle])
        began = ProgramStart(
            found.program.name,
            found.origin,
            context,
            [effect.id for effect in machine.effects],
            starter,
            None if run.servers is None else sorted(run.servers),
            run.warnings,
        )
        added = False
        try:
            added = await self.lifecycle.start(row, values, self.entry(began, run))
        finally:
            if not added:
                run.leave()
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
        was = _start(history).context
        now = await effects.project(context)
        own = await self.store.values(known.id)
        known_values = {name: value for name, value in own.items() if value is not None}
        values = {**known_values, **effects.values_behind(now)}
        return await off_loop([was, now], equal_by_values, was, now, values)

    def _warn_of(self, program: Program, denied: list[DeniedStep]) -> None:
        """Say before the first step what can't be done.

        Raises:
            BridgeError: `denied_steps`: such programs are refused.
        """
        what = told_denied(program, denied)
        if not self._rules.refuses_denied_steps:
            logger.warning("%s", what)
            return
        raise BridgeError(
            "denied_steps",
            f"The program was not begun: {what}.",
            hint='Leave these steps out. With denied_steps = "warn" in [programs] they begin, with a warning.',
            steps=[row._asdict() for row in denied[:MAX_TOLD]],
        )

    async def subject_of(self, fields: Mapping[str, Any], effects: Effects) -> tuple[str, bool]:
        """Whose data a context, or a tool's arguments, are, and whether there is a sensitive value in that name.

        An empty name if they don't say.
        """
        named = next(
            (fields[name] for name in self._rules.subject_fields if isinstance(fields.get(name), str | int)), ""
        )
        if named == "":
            return "", False
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
        self, execution: str, name: str | None, settlement: Settlement, principal: str, effects: Effects
    ) -> ProgramRun:
        """End a doubt by a person's word; to be driven, or kept until somebody goes on with it.

        Args:
            execution: Its id.
            name: The step's path or the effect's number; None if only one is in doubt.
            settlement: The person's word.
            principal: Whose it has to be.
            effects: Does what the program asks for.

        Raises:
            BridgeError: `unknown_trace`; `erased`; `not_suspended`; as `doubts.find_doubt` and `ProgramRun.resolve`.
        """
        async with self._taken(execution, principal, effects) as (_, run):
            doubt = in_doubt.find_doubt(run.doubts, name, execution)
            projected = await run.own(await effects.project(settlement._asdict()))
            settlement = settlement._replace(**projected)
            arguments = await effects.project(doubt["arguments"])
            said = EffectSettlement(doubt["effect"], doubt["step"], doubt["tool"], arguments, **settlement._asdict())
            self.recorder.post(self.entry(said, run, said.step))
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
        """An execution that can go on, as this process's; after an error it is left as it stands then."""
        stored = await self.lifecycle.stored(execution, principal)
        refuse_erased(stored)
        status = require_resumable(stored)
        if stored.state is None:
            raise not_suspended(execution, status)
        if effects.servers is not None:
            # Its steps, and what undoes them, would fail for want of servers that whoever began it has given it.
            servers = _given(await self.recorder.read(execution))
            if servers is None or not servers <= effects.servers:
                raise BridgeError(
                    "narrowed",
                    f"The execution {execution} may use servers that this script was not given.",
                    hint="It goes on without `servers`, or with all that it was begun with.",
                )
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
        """An execution as its process left it, or lost it."""
        assert stored.state is not None  # noqa: S101 - it can go on
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
            # Whoever goes on with it: what it wasn't given by whoever began it, nobody gives it.
            servers=_given(history),
            warnings=_start(history).denied,
            earlier=Earlier(ids_of(values), (stored.record or {}).get("waiting", ()), approved, unresolved),
        )
        for effect, _ in machine.awaited():
            since = began.get(effect.id, {}).get("since")
            if machine.pending.get(effect.id) == IN_DOUBT:
                run.doubts[effect.id] = in_doubt.doubt_row(effect, since or stored.started)
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

    async def drive(self, run: ProgramRun) -> dict[str, Any]:
        """Drive a run on the host, as far as it goes; its record."""
        try:
            await run.drive()
        finally:
            with anyio.CancelScope(shield=True):
                record = await self.keep(run)
        return record

    async def keep(self, run: ProgramRun, *, undo: bool = False) -> dict[str, Any]:
        """Take down where a run stands, as it is left; its record. One that can't be taken down goes on by its entries.

        Args:
            run: The program under way.
            undo: Whether what it wants undone is undone first, as `ProgramRun.wind_down`.

        Raises:
            BridgeError: `not_recorded`. Who waits for the run is told so, too.
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
        if left is None:
            entry = self.entry(ProgramEnd(record["status"], record["error"], digest, unresolved), run)
        else:
            entry = self.entry(ProgramSuspension(record["status"], state_hash(left)), run)
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
        """A script's sandbox did what no program of its own can be failed for."""
        # However often it does: no more than that goes to a log that may be somebody's terminal.
        logger.debug("execution %s: violation: %s", execution, message)
        self.recorder.post(self.lifecycle.entry(Violation(message), execution))

    def entry(self, payload: Payload, run: ProgramRun, step: str | None = None) -> Entry:
        """An entry of a run."""
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
            # Another was quicker, and may have ended it by now.
            if exc.code != "not_suspended" or known.state is None:
                raise
            return None

    async def is_same(self, known: StoredExecution) -> bool:
        if known.request:
            return await self.request.is_of(known, self.programs.store)
        # Forgotten, with a value that was in its context.
        return await self.programs.is_same(known, self.found.program, self.context, self.effects)

    async def may_be_operators(self, known: StoredExecution) -> bool:
        # Of the same origin the same was allowed. What a script has begun is no operator's, and may have been narrowed.
        return not await self.programs.store.holders(known.id)


def _start(history: Sequence[Recorded]) -> ProgramStart:
    start = start_of(history)
    return start if isinstance(start, ProgramStart) else ProgramStart("")


def _given(history: Sequence[Recorded]) -> frozenset[str] | None:
    """The servers that whoever began an execution gave it; None for all. Entries of version 0.1.0 don't say."""
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
    listed = ", ".join(f"{row['step']} ({row['kind']})" for row in rows)
    ways = {row["kind"]: _WAYS_ON.get(row["kind"], "Resume it with a payload.") for row in rows}
    hint = " ".join(dict.fromkeys(ways.values()))
    return BridgeError(
        "still_waiting", f"The execution {stored.id} still waits for: {listed}.", hint=hint, waiting=rows
    )


_WAYS_ON = {
    "approval": "A person decides, with `mcp-bridge approvals`.",
    "wait": "Resume it when the time has come.",
    IN_DOUBT: "A person says what happened, with `mcp-bridge execution settle`.",
}
