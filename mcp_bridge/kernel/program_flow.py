"""A program under way: its position. Which step comes next, and how the program ends.

Its steps under way are a tree of tasks: a leaf waits for an effect, a group for its tasks, a nested task for a program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.context import Context
from mcp_bridge.kernel.language.value_texts import quoted
from mcp_bridge.kernel.step_types import (
    END,
    AnyLeaf,
    ApprovalStep,
    Instruction,
    MapStep,
    ParallelStep,
    ProgramStep,
    Step,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.kernel.events import Effect, StepResult, Usage
    from mcp_bridge.kernel.step_types import Program

Undo = tuple[str, str, dict[str, Any] | None]
"""Path, tool and filled-in arguments of a compensation; None where the arguments were too large."""

Ending = tuple[str, str, str | None]
"""Final status, error code and message of a program that is winding down."""

_SUCCESS: Ending = ("success", "", None)


class Level(Context):
    """A program under way, with its values.

    Attributes:
        owner: The task that runs it, or None for the outermost program.
        prefix: Of its steps' paths.
        position: Index of the current step.
        branch: Whether the current step is the target of a condition (or of a denial).
        steps: How many have been executed.
        tokens: Used so far, nested programs' included.
        last_output: Of the step that succeeded last.
        stalled: Consecutive steps that changed no output.
        has_token_budget: Whether it, or a level above it, has a limit on tokens.
        checked_from: How many steps may have been executed before its limits have to be looked at.
        undo: The compensations of what has been done, latest last.
        ending: How it will end once everything is undone, or None while it goes on.
        status: `running`, or how it has ended.
        task: Of the current step, or of the compensation under way.
    """

    __slots__ = (
        "branch", "checked_from", "ending", "has_token_budget", "last_output", "owner", "position", "prefix", "stalled",
        "status", "steps", "task", "tokens", "undo",
    )  # fmt: skip

    def __init__(self, program: Program, context: dict[str, Any], owner: Nested | None, prefix: str) -> None:
        Context.__init__(self, program, context)
        self.owner = owner
        self.prefix = prefix
        self.position = 0
        self.branch = False
        self.steps = 0
        self.tokens = 0
        self.last_output: Any = None
        self.stalled = 0
        self.has_token_budget: bool = program.max_tokens is not None or (
            owner is not None and owner.level.has_token_budget
        )
        self.checked_from: int = 0 if self.has_token_budget else program.step_limit
        self.undo: list[Undo] = []
        self.ending: Ending | None = None
        self.status = "running"
        self.task: Task | None = None

    @property
    def outer(self) -> Level | None:
        """The level of the program that runs this one."""
        return self.owner.level if self.owner is not None else None

    def end(self, status: str, code: str = "", message: str | None = None) -> None:
        """Begin to wind down: what has to be undone is undone first."""
        self.ending = (status, code, message)

    def follow(self, instruction: Instruction, result: StepResult) -> None:
        """Go to the step after this one, or end.

        | the step | reached in sequence | reached as a branch |
        |---|---|---|
        | a condition that has chosen | its target, as a branch | its target, in sequence |
        | an approval that was denied | its target, as a branch | its target, as a branch |
        | another, with `is_terminal` | the end | as without it |
        | another, with `next_step` | that step | that step |
        | another | the next of the list | the end |

        A terminal step that was reached in sequence ends the program whatever it is.
        """
        was_branch = self.branch
        if was_branch:
            self.branch = False
        if instruction.chooses and (was_branch or not instruction.step.is_terminal):
            step = instruction.step
            if instruction.condition is not None and result.status == "success":
                chosen = None if result.output is None else self.program.index[result.output]
                self._branch_to(step, chosen, as_branch=not was_branch)
                return
            if isinstance(step, ApprovalStep) and not result.output["approved"]:
                self._branch_to(step, step.otherwise, as_branch=True)
                return
        target = instruction.after_branch if was_branch else instruction.after
        if target == END:
            self.ending = _SUCCESS
        else:
            self.position = target

    def _branch_to(self, step: Step, target: int | None, *, as_branch: bool) -> None:
        if target is None:
            self.end("failed", "no_target", f"step {quoted(step.id)}: the condition has no target for this case")
        else:
            self.position = target
            self.branch = as_branch


Scope = dict[str, Any]
"""Names that only one task knows: a map's item and its index."""


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
    assert isinstance(step, ParallelStep)  # conditions have no tasks
    return Parallel(instruction, level, path)
