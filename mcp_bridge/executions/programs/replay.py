"""An execution of a program, run again against its record.

A fresh machine begins with the recorded context and takes every recorded event in order. What it wants after each has
to be what was wanted then, and where it stands in the end has to be where the execution stood. With another version of
the program, that one's machine goes along: would it have done the same?
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.programs.recovery import state_hash
from mcp_bridge.executions.replay_result import Difference, Replayed, not_replayable
from mcp_bridge.kernel import program_parser as programs
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Cancel, IllegalEventError, Outcome
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.values import canonical
from mcp_bridge.ledger.log.payloads import (
    EffectOutcome,
    Erased,
    ModelIntent,
    ProgramEnd,
    ProgramStart,
    ProgramSuspension,
    ToolIntent,
    Transition,
    Violation,
    decoded,
    understood,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.kernel.events import Effect, Event
    from mcp_bridge.kernel.program_parser import Program
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.storage.execution_store import StoredExecution

_SHOWN_CHARS = 2000


def replayed_program(stored: StoredExecution, entries: Sequence[Recorded], other: Program | None = None) -> Replayed:
    """Replay a program's execution.

    Args:
        stored: The execution.
        entries: All of its entries.
        other: As `replayed`.

    Raises:
        BridgeError: `not_replayable`: the record doesn't have what is needed; `bad_state`: what is kept of its program
            can't be used.
    """
    return _Replay(stored, entries, other).result()


def transitions_hash(entries: Sequence[Recorded]) -> str:
    """SHA-256 over an execution's start and transitions, whenever and under whatever id they happened.

    Args:
        entries: All of the execution's.
    """
    found = hashlib.sha256()
    for row in entries:
        match understood(row):
            case ProgramStart(context=dict(context), effects=effects):
                told: Any = [row.entry.program, context, effects]
            case Transition():
                told = row.entry.payload
            case EffectOutcome(effects=wanted) if wanted is not None:
                told = row.entry.payload
            case _:
                continue
        found.update(hashlib.sha256(canonical([row.entry.kind, told])).digest())
    return found.hexdigest()


class _DifferenceFoundError(Exception):
    def __init__(self, difference: Difference) -> None:
        self.difference = difference


class _Replay:
    """One replay under way."""

    def __init__(self, stored: StoredExecution, entries: Sequence[Recorded], other: Program | None) -> None:
        self._stored = stored
        self._entries = entries
        self._events = 0
        self._effects = 0
        self._violated = False
        begun = next((row for row in entries if row.entry.kind == "start"), None)
        start = None if begun is None else decoded(begun.entry)
        if begun is None or not isinstance(start, ProgramStart) or start.context is None:
            raise not_replayable(
                stored, "it was erased" if isinstance(start, Erased) else "it is of an earlier version"
            )
        try:
            self._program = programs.unbundle(stored.bundle)
        except (ValueError, KeyError, TypeError) as exc:
            raise BridgeError("bad_state", f"The program of {stored.id} can't be used: {exc}.") from None
        self._begun, self._start = begun, start
        self._history = [(row, understood(row)) for row in entries]
        self._machine = Machine(self._program, start.context)
        self._other = None if other is None else _Other(other, start.context)

    def result(self) -> Replayed:
        """How it ends."""
        difference = None
        try:
            self._run()
        except _DifferenceFoundError as exc:
            difference = exc.difference
        return Replayed(
            self._stored.id,
            self._stored.kind,
            self._events,
            self._effects,
            self._machine.status,
            transitions_hash(self._entries),
            difference,
        )

    def _run(self) -> None:
        _same(self._begun, None, "program", self._begun.entry.program, self._program.hash)
        self._wants(self._begun, self._start.effects, self._machine.effects)
        for row, said in self._history:
            match said:
                case EffectOutcome(event, wanted) | Transition(event, wanted):
                    self._take(row, event, wanted)
                case ToolIntent(effect=number):
                    self._intend(row, "tool", number)
                case ModelIntent(effect=number):
                    self._intend(row, "llm", number)
                case Violation():
                    self._violated = True
                case ProgramSuspension(status, digest) | ProgramEnd(status, state=digest):
                    self._left(row, status, digest)
        self._stands(self._history[-1][0])

    def _take(self, row: Recorded, event: Event, wanted: Sequence[int] | None) -> None:
        awaited = {effect.id: effect for effect, _ in self._machine.awaited()}
        number = event.effect if isinstance(event, Outcome) else None
        if wanted is None:
            if number in awaited:
                raise _found(row, awaited[number].step, f"effect {number}", "no longer wanted", "wanted")
            return
        step = awaited[number].step if number in awaited else None
        self._events += 1
        try:
            effects = self._machine.apply(event)
        except IllegalEventError as exc:
            raise _found(row, step, "event", _shown(row.entry.payload), f"refused: {exc}") from None
        self._wants(row, wanted, effects, event, step)

    def _wants(
        self,
        row: Recorded,
        wanted: Sequence[int],
        effects: list[Effect],
        event: Event | None = None,
        step: str | None = None,
    ) -> None:
        """Hold what the machine wants now against what is recorded, and what the other one does against it."""
        self._effects += len(effects)
        _same(row, step, "effects", wanted, [effect.id for effect in effects])
        if self._other is not None:
            self._other.follow(row, event, effects, step)

    def _intend(self, row: Recorded, kind: str, number: int | None) -> None:
        """A call that was about to be made has to be one that the machine waits for."""
        awaited = {effect.id: effect for effect, _ in self._machine.awaited()}
        if number is None or number not in awaited:
            raise _found(row, row.entry.step, "intent", f"effect {number} is wanted", "it isn't")
        _same(row, row.entry.step, "intent", kind, awaited[number].kind)
        _same(row, row.entry.step, "intent", row.entry.step, awaited[number].step)

    def _left(self, row: Recorded, left: str, digest: str | None) -> None:
        """Where an execution ended or was suspended has to be where the machine is."""
        status = "interrupted" if self._machine.status == "running" else self._machine.status
        # After a violation the host's word was the last one, whatever the machine's.
        if not (self._violated and left == "failed"):
            _same(row, None, "status", left, status)
        if digest is not None:
            _same(row, None, "state", digest, self._state())

    def _stands(self, last: Recorded) -> None:
        """Hold where the machine stands against what is kept of the execution."""
        record = self._stored.record
        if last.entry.kind == "suspension" and self._stored.state is not None:
            _same(last, None, "kept state", state_hash(self._stored.state), self._state())
        if record is not None and last.entry.kind in {"end", "suspension"}:
            _same(last, None, "output", record["output"], self._machine.output)
            rows = [state.row_json(row) for row in self._machine.rows]
            _same(last, None, "steps", [row["id"] for row in record["steps"]], [row["id"] for row in rows])
            for told, row in zip(record["steps"], rows, strict=True):
                # Why a condition had no answer, or which, is told beside what follows from the program.
                kept = {name: value for name, value in told.items() if name != "why"}
                _same(last, told["id"], "step", kept, row)
        if self._other is not None:
            self._other.end(last, self._machine)

    def _state(self) -> str:
        return state_hash(state.dump(self._machine))


class _Other:
    """Another version of a program, to which the same happens.

    Its effects may have other numbers: each is known by the one that it stands for. They are compared by what they do,
    not by the names of their steps.
    """

    def __init__(self, program: Program, context: dict[str, Any]) -> None:
        self._machine = Machine(program, context)
        self._numbers: dict[int, int] = {}

    def follow(self, row: Recorded, event: Event | None, wanted: list[Effect], step: str | None) -> None:
        """Take an event (None at the start), and hold what it wants against what was wanted."""
        effects = self._machine.effects
        if event is not None:
            try:
                effects = self._machine.apply(self._translated(event))
            except IllegalEventError as exc:
                raise _found(row, step, "event", "taken", f"refused: {exc}") from None
        for number, effect in enumerate(wanted):
            now = effects[number] if number < len(effects) else None
            same = now is not None and self._does(effect) == self._own(now)
            if now is None or not same:
                raise _found(row, effect.step, "effect", _told(effect), now and _told(now))
            self._numbers[effect.id] = now.id
        if len(effects) > len(wanted):
            extra = effects[len(wanted)]
            raise _found(row, extra.step, "effect", None, _told(extra))

    def end(self, row: Recorded, machine: Machine) -> None:
        """Hold where it stands against where the one that was run stands."""
        _same(row, None, "status", machine.status, self._machine.status)
        _same(row, None, "output", machine.output, self._machine.output)

    def _translated(self, event: Event) -> Event:
        if isinstance(event, Cancel) or event.effect is None:
            return event
        return event._replace(effect=self._numbers[event.effect])

    def _does(self, effect: Effect) -> tuple[Any, ...]:
        if effect.kind == "cancel":
            return effect.kind, sorted(self._numbers[number] for number in effect.arguments["effects"])
        return self._own(effect)

    @staticmethod
    def _own(effect: Effect) -> tuple[Any, ...]:
        if effect.kind == "cancel":
            return effect.kind, sorted(effect.arguments["effects"])
        return effect.kind, effect.name, canonical(effect.arguments)


def _same(row: Recorded, step: str | None, what: str, expected: Any, found: Any) -> None:
    if canonical([expected]) != canonical([found]):
        raise _found(row, step, what, _shown(expected), _shown(found))


def _found(row: Recorded, step: str | None, what: str, expected: Any, found: Any) -> _DifferenceFoundError:
    return _DifferenceFoundError(Difference(row.sequence, step, what, expected, found))


def _told(effect: Effect) -> dict[str, Any]:
    told: dict[str, Any] = {"step": effect.step, "kind": effect.kind, "name": effect.name}
    return told | {"arguments": _shown(effect.arguments)}


def _shown(value: Any) -> Any:
    """A value, or its beginning."""
    text = canonical([value]).decode()[1:-1]
    return value if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
