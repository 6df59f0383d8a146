"""A transition under way: the state that it changes, the effects that it asks for, and the work that it may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.events import Effect, EffectKind, StepResult, new
from mcp_bridge.kernel.language.references import Lookup, measured
from mcp_bridge.kernel.program_limits import MAX_WORK

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.kernel.program_flow import Level, Task

MAX_REASONS = 100
"""Conditions of which a machine keeps why they failed, or counted a reference as None."""

_UNWEIGHED_STEPS = 2
"""The first steps of a transition, whose values aren't weighed. In most programs there are no more."""

WEIGHED_BELOW = MAX_WORK - _UNWEIGHED_STEPS
"""The work left from which on values are weighed."""


class Transition:
    """The state of an execution, and what every part of a transition does to it.

    Attributes:
        level: Of the program itself.
        rows: The trace so far.
        effects: What the last event, or the start, asks for.
        waiting: Effects whose outcome is awaited, by number: the tasks that wait.
        deadlines: Effects that end a group or nested program if they fire, by number: those tasks.
        pending: Of the effects in `waiting` those that are pending, in the order in which they became so: number to
            the outcome's code (`approval` for a call that a person has to allow first, `in_doubt` for one of which a
            person has to say whether it has happened).
        last_effect: Number of the last effect made.
        reasons: Why conditions failed, by the index of their row: for people, and not a part of the state.
    """

    level: Level
    rows: list[StepResult]
    effects: list[Effect]
    waiting: dict[int, Task]
    deadlines: dict[int, Task]
    pending: dict[int, str]
    last_effect: int
    reasons: dict[int, str]

    _work_left = MAX_WORK
    """Of the transition under way."""

    _read: Callable[[str], Any]
    """Parses texts, for the transition under way."""

    # --- effects ---

    def _emit(
        self, task: Task, kind: EffectKind, name: str, arguments: dict[str, Any], timeout: float | None = None
    ) -> None:
        self.last_effect = number = self.last_effect + 1
        effect = new(Effect, (number, kind, task.path, task.attempt, name, arguments, timeout))
        task.effect = effect
        if self._work_left < WEIGHED_BELOW:
            self._weigh(arguments)
        self.waiting[number] = task
        self.effects.append(effect)

    def _forget(self, number: int, task: Task) -> None:
        """Await an effect's outcome no longer."""
        del self.waiting[number]
        if number in self.pending:
            del self.pending[number]
        task.effect = None

    def _set_deadline(self, task: Task) -> None:
        if task.step.timeout is not None and task.deadline is None:
            self.last_effect = number = self.last_effect + 1
            seconds = {"seconds": task.step.timeout}
            task.deadline = Effect(number, "wait", task.path, task.attempt, "timeout", seconds)
            self.deadlines[number] = task
            self.effects.append(task.deadline)

    def _drop_deadline(self, task: Task) -> None:
        if task.deadline is not None:
            number = task.deadline.id
            del self.deadlines[number]
            task.deadline = None
            self._emit_cancel(task, number)

    def _emit_cancel(self, task: Task, number: int) -> None:
        self.last_effect += 1
        self.effects.append(Effect(self.last_effect, "cancel", task.path, task.attempt, "", {"effects": [number]}))

    # --- the bound on one transition ---

    def _weigh(self, value: Any) -> None:
        """Count a value that the transition moves after its first steps."""
        characters, values = measured(value)
        self._work_left -= characters // 1000 + values // 50

    def _weighed(self, lookup: Lookup) -> Lookup:
        """The lookup, or after the transition's first steps one that counts what it gives."""
        if self._work_left >= WEIGHED_BELOW:
            return lookup

        def weighed(root: str, path: tuple[str, ...]) -> Any:
            value = lookup(root, path)
            self._weigh(value)
            return value

        return weighed

    # --- why conditions failed ---

    def _explain(self, why: str) -> None:
        """Keep why the condition whose row is the next one failed."""
        if why and len(self.reasons) < MAX_REASONS:
            self.reasons[len(self.rows)] = why
