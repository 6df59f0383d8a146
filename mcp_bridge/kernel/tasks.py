"""The tasks of a step under way: a leaf waits for an effect, a group for its tasks, a nested task for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.step_types import (
    AnyLeaf,
    Instruction,
    MapStep,
    ParallelStep,
    ProgramStep,
    Step,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.kernel.events import Effect, StepResult, Usage
    from mcp_bridge.kernel.program_flow import Level, Scope


class Task:
    """A step under way.

    Attributes:
        instruction: The step.
        step: The same, as it stands in the program.
        level: The program that it belongs to.
        path: The step's path, for effects and the trace.
        owner: The group that it belongs to, or None for a level's own step.
        slot: Its index in that group; 0 outside of one.
        scope: The names that only it knows, or None.
        attempt: From 1.
        usage: Of all attempts, or None.
        phase: `run`, `backoff` (waiting to try again), `aborted` (no further attempt).
        effect: What it waits for, or None.
        deadline: The effect that ends it if it fires first, or None.
    """

    __slots__ = (
        "attempt", "deadline", "effect", "instruction", "level", "owner", "path", "phase", "scope", "slot", "step",
        "usage",
    )  # fmt: skip

    step: Step

    def __init__(
        self,
        instruction: Instruction,
        level: Level,
        path: str,
        owner: Group | None = None,
        slot: int = 0,
        scope: Scope | None = None,
    ) -> None:
        self.instruction = instruction
        self.step = instruction.step
        self.level = level
        self.path = path
        self.owner = owner
        self.slot = slot
        self.scope = scope
        self.attempt = 1
        self.usage: Usage | None = None
        self.phase = "run"
        self.effect: Effect | None = None
        self.deadline: Effect | None = None


class Leaf(Task):
    """A step that waits for one effect."""

    __slots__ = ()

    step: AnyLeaf


class Group(Task):
    """A step that starts tasks, and joins their results to its own.

    Attributes:
        next: The slot to start next.
        active: How many tasks are under way.
        tasks: Those, by slot.
        results: Of the tasks that have ended, by slot.
    """

    __slots__ = ("active", "next", "results", "tasks")

    step: ParallelStep | MapStep

    def __init__(self, instruction: Instruction, level: Level, path: str, count: int) -> None:
        super().__init__(instruction, level, path)
        self.next = 0
        self.active = 0
        self.tasks: list[Task | None] = [None] * count
        self.results: list[StepResult | None] = [None] * count

    def child(self, slot: int) -> tuple[Instruction, Scope | None, str]:
        """Step, scope and path of the task in a slot."""
        raise NotImplementedError

    def joined(self, rows: Sequence[StepResult]) -> Any:
        """The step's output, of the results of all slots."""
        raise NotImplementedError

    def task_for(self, slot: int) -> Task:
        """A new task for a slot."""
        instruction, scope, path = self.child(slot)
        kind = Leaf if instruction.is_leaf else Nested
        return kind(instruction, self.level, path, self, slot, scope)

    def settle(self, slot: int, result: StepResult) -> None:
        """A task has ended."""
        self.active -= 1
        self.tasks[slot] = None
        self.results[slot] = result


class Parallel(Group):
    """A parallel step. Its branches are steps of the program as others are: their outputs can be referred to."""

    __slots__ = ()

    step: ParallelStep

    def __init__(self, instruction: Instruction, level: Level, path: str) -> None:
        super().__init__(instruction, level, path, len(instruction.children))

    def child(self, slot: int) -> tuple[Instruction, Scope | None, str]:
        instruction = self.instruction.children[slot]
        return instruction, None, self.level.prefix + instruction.id

    def joined(self, rows: Sequence[StepResult]) -> Any:
        return {step.id: row.output for step, row in zip(self.step.branches, rows, strict=True)}


class Map(Group):
    """A map step.

    Attributes:
        items: The list that it goes over.
    """

    __slots__ = ("items",)

    step: MapStep

    def __init__(self, instruction: Instruction, level: Level, path: str, items: list[Any]) -> None:
        super().__init__(instruction, level, path, len(items))
        self.items = items

    def child(self, slot: int) -> tuple[Instruction, Scope | None, str]:
        return (
            self.instruction.children[0],
            {self.step.item_name: self.items[slot], "index": slot},
            f"{self.path}[{slot}]",
        )

    def joined(self, rows: Sequence[StepResult]) -> Any:
        return [row.output for row in rows]


class Nested(Task):
    """A step that runs a program.

    Attributes:
        inner: That program's level, or None between attempts.
    """

    __slots__ = ("inner",)

    step: ProgramStep

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.inner: Level | None = None


def task_for(level: Level, instruction: Instruction, items: list[Any]) -> Task:
    """A new task for a level's own step (no condition: it takes no time).

    Args:
        level: The program under way.
        instruction: The step, of that program.
        items: Of a map step: what it goes over.
    """
    path = level.prefix + instruction.id
    if instruction.is_leaf:
        return Leaf(instruction, level, path)
    step = instruction.step
    if isinstance(step, ProgramStep):
        return Nested(instruction, level, path)
    if isinstance(step, MapStep):
        return Map(instruction, level, path, items)
    assert isinstance(step, ParallelStep)  # noqa: S101 - conditions have no tasks
    return Parallel(instruction, level, path)
