"""The effects that an execution asks for and awaits, and their deadlines; the state that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.events import Effect, EffectKind, StepResult, new
from mcp_bridge.kernel.program_limits import WEIGHED_BELOW, WorkLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.kernel.program_flow import Level, Task


VERSION = 2
"""Of the rules by which machines go on, and of their states.

A machine goes on by the rules that it was begun with: what it has asked for is recorded. By those of version 1, a step
that is skipped has the output of an earlier turn of its loop, if it had one; and the payload that resumes the last step
of a program isn't its output where a step runs that program.
"""


def known_version(value: object) -> bool:
    """Whether a value, as it is read, is a version of these rules that this build knows."""
    # A boolean is no version, though Python has it for a number.
    return type(value) is int and 1 <= value <= VERSION


class AwaitedEffects(WorkLimit):
    """The state of an execution, and how its effects are asked for, awaited and cancelled.

    Attributes:
        version: Of its rules, from 1 to `VERSION`.
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

    version: int
    level: Level
    rows: list[StepResult]
    effects: list[Effect]
    waiting: dict[int, Task]
    deadlines: dict[int, Task]
    pending: dict[int, str]
    last_effect: int
    reasons: dict[int, str]

    _read: Callable[[str], Any]
    """Parses texts, for the transition under way."""

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
