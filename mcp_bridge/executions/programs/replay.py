"""Replay of a program's execution against its record.

A new machine starts with the recorded context and applies every recorded event in order. After each, it must emit the
effects that are recorded, and its final state must be the recorded one. With another version of the program, a second
machine applies the same events, which shows whether that version would have done the same.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.programs.recovery import state_hash
from mcp_bridge.executions.replay_result import Difference, Replayed, not_replayable
from mcp_bridge.kernel import state
from mcp_bridge.kernel.awaited_effects import VERSION, known_version
from mcp_bridge.kernel.events import Cancel, IllegalEventError, Outcome
from mcp_bridge.kernel.language import program_parser as programs
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
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.storage.execution_store import StoredExecution

_SHOWN_CHARS = 2000


def replayed_program(stored: StoredExecution, entries: Sequence[Recorded], other: Program | None = None) -> Replayed:
    """Replay a program's execution.

    Args:
        stored: The execution.
        entries: All of its entries.
        other: Another version of the program, or None; as in `replayed`.

    Raises:
        BridgeError: `not_replayable`: the record isn't complete enough; `bad_state`: the stored program is invalid.
    """
    return _Replay(stored, entries, other).result()


def transitions_hash(entries: Sequence[Recorded]) -> str:
    """SHA-256 over an execution's start and transitions, independent of its id and of times.

    Args:
        entries: All entries of the execution.
    """
    digest = hashlib.sha256()
    for row in entries:
        match understood(row):
            case ProgramStart(context=dict(context), effects=effects):
                content: Any = [row.entry.program, context, effects]
            case Transition():
                content = row.entry.payload
            case EffectOutcome(effects=wanted) if wanted is not None:
                content = row.entry.payload
            case _:
                continue
        digest.update(hashlib.sha256(canonical([row.entry.kind, content])).digest())
    return digest.hexdigest()


class _DifferenceFoundError(Exception):
    def __init__(self, difference: Difference) -> None:
        self.difference = difference


class _Replay:
    """A replay in progress."""

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
        if not known_version(start.machine):
            is_later = type(start.machine) is int and start.machine > VERSION
            why = "it is of a later version" if is_later else "it names an unknown version of the rules"
            raise not_replayable(stored, why)
        try:
            self._program = programs.unbundle(stored.bundle)
        except (ValueError, KeyError, TypeError) as exc:
            raise BridgeError("bad_state", f"The program of {stored.id} can't be used: {exc}.") from None
        self._begun, self._start = begun, start
        self._history = [(row, understood(row)) for row in entries]
        self._machine = Machine(self._program, start.context, start.machine)
        self._other = None if other is None else _Other(Machine(other, start.context, start.machine))

    def result(self) -> Replayed:
        """Run the replay; returns its result."""
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
        _require_equal(self._begun, None, "program", self._begun.entry.program, self._program.hash)
        self._check_effects(self._begun, self._start.effects, self._machine.effects)
        for row, said in self._history:
            match said:
                case EffectOutcome(event, wanted) | Transition(event, wanted):
                    self._take(row, event, wanted)
                case ToolIntent(effect=number):
                    self._check_intent(row, "tool", number)
                case ModelIntent(effect=number):
                    self._check_intent(row, "llm", number)
                case Violation():
                    self._violated = True
                case ProgramSuspension(status, digest) | ProgramEnd(status, state=digest):
                    self._check_left(row, status, digest)
        self._check_end(self._history[-1][0])

    def _take(self, row: Recorded, event: Event, wanted: Sequence[int] | None) -> None:
        awaited = {effect.id: effect for effect, _ in self._machine.awaited()}
        number = event.effect if isinstance(event, Outcome) else None
        if wanted is None:
            if number in awaited:
                raise _difference(row, awaited[number].step, f"effect {number}", "no longer wanted", "wanted")
            return
        step = awaited[number].step if number in awaited else None
        self._events += 1
        try:
            effects = self._machine.apply(event)
        except IllegalEventError as exc:
            raise _difference(row, step, "event", _shown(row.entry.payload), f"refused: {exc}") from None
        self._check_effects(row, wanted, effects, event, step)

    def _check_effects(
        self,
        row: Recorded,
        wanted: Sequence[int],
        effects: list[Effect],
        event: Event | None = None,
        step: str | None = None,
    ) -> None:
        """Compare the machine's new effects with the recorded ones, and those of the other version with them."""
        self._effects += len(effects)
        _require_equal(row, step, "effects", wanted, [effect.id for effect in effects])
        if self._other is not None:
            self._other.follow(row, event, effects, step)

    def _check_intent(self, row: Recorded, kind: str, number: int | None) -> None:
        """Check that the machine waits for a call whose intent is recorded."""
        awaited = {effect.id: effect for effect, _ in self._machine.awaited()}
        if number is None or number not in awaited:
            raise _difference(row, row.entry.step, "intent", f"effect {number} is wanted", "it isn't")
        _require_equal(row, row.entry.step, "intent", kind, awaited[number].kind)
        _require_equal(row, row.entry.step, "intent", row.entry.step, awaited[number].step)

    def _check_left(self, row: Recorded, left: str, digest: str | None) -> None:
        """Check that the machine has the status and state of a recorded end or suspension."""
        status = "interrupted" if self._machine.status == "running" else self._machine.status
        # After a violation the host decided the status, not the machine.
        if not (self._violated and left == "failed"):
            _require_equal(row, None, "status", left, status)
        if digest is not None:
            _require_equal(row, None, "state", digest, self._state())

    def _check_end(self, last: Recorded) -> None:
        """Compare the machine's final state with the stored state and record."""
        record = self._stored.record
        if last.entry.kind == "suspension" and self._stored.state is not None:
            _require_equal(last, None, "kept state", state_hash(self._stored.state), self._state())
        if record is not None and last.entry.kind in {"end", "suspension"}:
            _require_equal(last, None, "output", record["output"], self._machine.output)
            rows = [state.row_json(row) for row in self._machine.rows]
            _require_equal(last, None, "steps", [row["id"] for row in record["steps"]], [row["id"] for row in rows])
            for step, row in zip(record["steps"], rows, strict=True):
                # `why` explains a condition's result. It isn't part of the machine's state.
                expected = {name: value for name, value in step.items() if name != "why"}
                _require_equal(last, step["id"], "step", expected, row)
        if self._other is not None:
            self._other.end(last, self._machine)

    def _state(self) -> str:
        return state_hash(state.dump(self._machine))


class _Other:
    """The machine of another version of the program, which applies the same events.

    Its effects may have other numbers, which are mapped. Effects are compared by what they do, not by their steps.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._numbers: dict[int, int] = {}

    def follow(self, row: Recorded, event: Event | None, wanted: list[Effect], step: str | None) -> None:
        """Apply an event (None at the start), and compare the new effects with the recorded ones."""
        effects = self._machine.effects
        if event is not None:
            try:
                effects = self._machine.apply(self._translated(event))
            except IllegalEventError as exc:
                raise _difference(row, step, "event", "taken", f"refused: {exc}") from None
        for number, effect in enumerate(wanted):
            now = effects[number] if number < len(effects) else None
            same = now is not None and self._recorded_action(effect) == self._action(now)
            if now is None or not same:
                raise _difference(row, effect.step, "effect", _described(effect), now and _described(now))
            self._numbers[effect.id] = now.id
        if len(effects) > len(wanted):
            extra = effects[len(wanted)]
            raise _difference(row, extra.step, "effect", None, _described(extra))

    def end(self, row: Recorded, machine: Machine) -> None:
        """Compare its status and output with those of the original program."""
        _require_equal(row, None, "status", machine.status, self._machine.status)
        _require_equal(row, None, "output", machine.output, self._machine.output)

    def _translated(self, event: Event) -> Event:
        if isinstance(event, Cancel) or event.effect is None:
            return event
        return event._replace(effect=self._numbers[event.effect])

    def _recorded_action(self, effect: Effect) -> tuple[Any, ...]:
        if effect.kind == "cancel":
            return effect.kind, sorted(self._numbers[number] for number in effect.arguments["effects"])
        return self._action(effect)

    @staticmethod
    def _action(effect: Effect) -> tuple[Any, ...]:
        if effect.kind == "cancel":
            return effect.kind, sorted(effect.arguments["effects"])
        return effect.kind, effect.name, canonical(effect.arguments)


def _require_equal(row: Recorded, step: str | None, what: str, expected: Any, actual: Any) -> None:
    if canonical([expected]) != canonical([actual]):
        raise _difference(row, step, what, _shown(expected), _shown(actual))


def _difference(row: Recorded, step: str | None, what: str, expected: Any, actual: Any) -> _DifferenceFoundError:
    return _DifferenceFoundError(Difference(row.sequence, step, what, expected, actual))


def _described(effect: Effect) -> dict[str, Any]:
    fields: dict[str, Any] = {"step": effect.step, "kind": effect.kind, "name": effect.name}
    return fields | {"arguments": _shown(effect.arguments)}


def _shown(value: Any) -> Any:
    """A value, or the beginning of its text if that is long."""
    text = canonical([value]).decode()[1:-1]
    return value if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
