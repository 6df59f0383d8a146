"""The parts of a machine's state: levels (programs under way) and the tree of tasks beneath each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.references import MISSING, walk

if TYPE_CHECKING:
    from mcp_bridge.kernel.events import Effect, StepResult, Usage
    from mcp_bridge.kernel.program import Program, Step
    from mcp_bridge.kernel.references import Lookup

CONTEXT = "ctx"
"""`$ctx.k` reads the context, unless something else has that name."""

DEFAULT_MAX_STEPS = 10_000
"""Steps that a program without `max_steps` may execute beyond the length of its list: the bound on loops."""

UNDO = -1
"""The slot of a task that compensates."""

Undo = tuple[str, str, dict[str, Any] | None]
"""Path, tool and filled-in arguments of a compensation; None where filling them in failed."""

Ending = tuple[str, str, str | None]
"""Final status, error code and message of a level that is winding down."""


class Level:
    """One program under way.

    Attributes:
        program: It.
        owner: The step that runs it, or None for the outermost.
        prefix: Of its steps' paths.
        context: What it was started with and what `output_key` added; names to normal values.
        outputs: Ids of steps to what they gave last.
        position: Place of the current step.
        branch: Whether the current step is a condition's target.
        steps: Executed so far.
        tokens: Used so far, nested programs' included.
        last_output: Of the step that succeeded last.
        stalled: Consecutive steps that changed no output.
        changed: Whether an output has changed since the last comparison; None before the first.
        max_steps: Most steps that it may execute.
        has_token_budget: Whether it, or a level above it, has a bound on tokens.
        undo: What to do, last first, if it doesn't end well.
        ending: How it will end when everything is undone.
        status: `running`, or how it has ended.
        task: Of the current step, or of the compensation under way.
    """

    __slots__ = (
        "branch", "changed", "context", "ending", "has_token_budget", "last_output", "max_steps", "outputs", "owner",
        "position", "prefix", "program", "stalled", "status", "steps", "task", "tokens", "undo",
    )  # fmt: skip

    def __init__(self, program: Program, context: dict[str, Any], owner: Nested | None, prefix: str) -> None:
        self.program = program
        self.owner = owner
        self.prefix = prefix
        self.context = context
        self.outputs: dict[str, Any] = {}
        self.position = 0
        self.branch = False
        self.steps = 0
        self.tokens = 0
        self.last_output: Any = None
        self.stalled = 0
        self.changed: bool | None = None
        limit = program.max_steps
        self.max_steps = DEFAULT_MAX_STEPS + len(program.steps) if limit is None else limit
        self.has_token_budget: bool = program.max_tokens is not None or (
            owner is not None and owner.level.has_token_budget
        )
        self.undo: list[Undo] = []
        self.ending: Ending | None = None
        self.status = "running"
        self.task: Task | None = None

    def filled(self, root: str, path: tuple[str, ...]) -> Any:
        """What a reference in a text or an argument stands for: steps come before the context."""
        if root in self.outputs:
            return walk(self.outputs[root], path, of_step=True)
        if root in self.context:
            return walk(self.context[root], path, of_step=False)
        return walk(dict(self.context), path, of_step=False) if root == CONTEXT else MISSING

    def compared(self, root: str, path: tuple[str, ...]) -> Any:
        """What a reference in a condition stands for: the context comes before steps."""
        if root in self.context:
            return walk(self.context[root], path, of_step=False, compares=True)
        if root in self.outputs:
            return walk(self.outputs[root], path, of_step=True, compares=True)
        return walk(dict(self.context), path, of_step=False, compares=True) if root == CONTEXT else MISSING

    def within(self, scope: dict[str, Any] | None) -> Lookup:
        """A lookup for texts and arguments where some more names are known."""
        if scope is None:
            return self.filled
        return lambda root, path: walk(scope[root], path, of_step=False) if root in scope else self.filled(root, path)


class Task:
    """A step under way: waiting for an effect, or for the tasks beneath it.

    Attributes:
        step: Which.
        level: Where.
        owner: The group it belongs to, or None for a level's own step.
        slot: Its place in the group; `UNDO` for a compensation.
        scope: Names that only it knows (a map's item), or None.
        path: For the trace.
        attempt: From 1.
        usage: Of all attempts, or None.
        phase: `run`, `backoff` (waiting to try again), `aborted` (no further attempt).
        effect: What it waits for, or None.
        deadline: The effect that ends it if it fires first, or None.
    """

    __slots__ = ("attempt", "deadline", "effect", "level", "owner", "path", "phase", "scope", "slot", "step", "usage")

    def __init__(
        self, step: Step, level: Level, owner: Group | None, slot: int, scope: dict[str, Any] | None, path: str
    ) -> None:
        self.step = step
        self.level = level
        self.owner = owner
        self.slot = slot
        self.scope = scope
        self.path = path
        self.attempt = 1
        self.usage: Usage | None = None
        self.phase = "run"
        self.effect: Effect | None = None
        self.deadline: Effect | None = None


class Leaf(Task):
    """A step that waits for one effect."""

    __slots__ = ()


class Group(Task):
    """A parallel or map step.

    Attributes:
        items: Of a map: what it goes over.
        next: The slot to start next.
        active: Tasks under way.
        tasks: By slot, those under way.
        results: By slot, of those that have ended.
    """

    __slots__ = ("active", "items", "next", "results", "tasks")

    def __init__(self, *args: Any, items: list[Any] | None) -> None:
        super().__init__(*args)
        count = len(self.step.children) if items is None else len(items)
        self.items = items
        self.next = 0
        self.active = 0
        self.tasks: list[Task | None] = [None] * count
        self.results: list[StepResult | None] = [None] * count

    def place(self, slot: int) -> tuple[Step, Level, Group, int, dict[str, Any] | None, str]:
        """What the task in a slot is made from: step, level, owner, slot, scope, path."""
        step, level = self.step, self.level
        if self.items is None:
            child = step.children[slot]
            return child, level, self, slot, self.scope, level.prefix + child.id
        scope = (self.scope or {}) | {step.item_name: self.items[slot], "index": slot}
        return step.children[0], level, self, slot, scope, f"{self.path}[{slot}]"


class Nested(Task):
    """A step that runs a program.

    Attributes:
        inner: That program's level, or None between attempts.
    """

    __slots__ = ("inner",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.inner: Level | None = None
