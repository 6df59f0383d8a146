"""A program under way: its position, its values, its budgets. Which step comes next, and how the program ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.references import MISSING, TextTooLongError, quoted, walk
from mcp_bridge.kernel.steps import ApprovalStep, ConditionStep, ToolStep
from mcp_bridge.kernel.values import same

if TYPE_CHECKING:
    from mcp_bridge.kernel.events import StepResult
    from mcp_bridge.kernel.program import Program
    from mcp_bridge.kernel.references import Lookup
    from mcp_bridge.kernel.steps import Step
    from mcp_bridge.kernel.tasks import Nested, Task

CONTEXT = "ctx"
"""`$ctx.k` reads the context, unless something else has that name."""

DEFAULT_MAX_STEPS = 10_000
"""Steps that a program without `max_steps` may execute beyond the length of its list: the bound on loops."""

Undo = tuple[str, str, dict[str, Any] | None]
"""Path, tool and filled-in arguments of a compensation; None where the arguments were too large."""

Ending = tuple[str, str, str | None]
"""Final status, error code and message of a program that is winding down."""


class Level:
    """A program under way.

    Attributes:
        program: That program.
        owner: The task that runs it, or None for the outermost program.
        prefix: Of its steps' paths.
        context: What it was started with and what `output_key` added; names to normal values.
        outputs: Ids of steps to their latest output.
        position: Index of the current step.
        branch: Whether the current step is the target of a condition (or of a denial).
        steps: How many have been executed.
        tokens: Used so far, nested programs' included.
        last_output: Of the step that succeeded last.
        stalled: Consecutive steps that changed no output.
        changed: Whether an output has changed since the last comparison; None before the first.
        max_steps: Most steps that it may execute.
        has_token_budget: Whether it, or a level above it, has a limit on tokens.
        undo: The compensations of what has been done, latest last.
        ending: How it will end once everything is undone, or None while it goes on.
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

    @property
    def outer(self) -> Level | None:
        """The level of the program that runs this one."""
        return self.owner.level if self.owner is not None else None

    # --- values ---

    def filled(self, root: str, path: tuple[str, ...]) -> Any:
        """What a reference in a template stands for: outputs of steps come before the context."""
        if root in self.outputs:
            return walk(self.outputs[root], path, of_step=True)
        if root in self.context:
            return walk(self.context[root], path, of_step=False)
        return walk(dict(self.context), path, of_step=False) if root == CONTEXT else MISSING

    def compared(self, root: str, path: tuple[str, ...]) -> Any:
        """What a reference in a condition stands for: the context comes before outputs of steps."""
        if root in self.context:
            return walk(self.context[root], path, of_step=False, compares=True)
        if root in self.outputs:
            return walk(self.outputs[root], path, of_step=True, compares=True)
        return walk(dict(self.context), path, of_step=False, compares=True) if root == CONTEXT else MISSING

    def within(self, scope: dict[str, Any] | None) -> Lookup:
        """A lookup for templates, with some more names.

        Args:
            scope: Those names, or None.
        """
        if scope is None:
            return self.filled
        return lambda root, path: walk(scope[root], path, of_step=False) if root in scope else self.filled(root, path)

    def take_output(
        self, step: Step, result: StepResult, scope: dict[str, Any] | None, *, is_referable: bool = True
    ) -> None:
        """Keep what a step has given, and how it is undone.

        Args:
            step: The step.
            result: Of which the output is kept.
            scope: The names that only the step knows (a map's item), or None.
            is_referable: Whether the output can be referred to by the step's id.
        """
        output = result.output
        if is_referable:
            if self.program.max_stalled_steps is not None and not self.changed:
                self.changed = step.id not in self.outputs or not same(self.outputs[step.id], output)
            self.outputs[step.id] = output
        if step.output_key:
            self.context[step.output_key] = output
        if isinstance(step, ToolStep) and step.compensation is not None and result.status != "skipped":
            lookup = self.within((scope or {}) | ({step.id: output} if step.id else {}))
            try:
                arguments = step.compensation.args.fill(lookup)
            except TextTooLongError:
                arguments = None
            self.undo.append((result.id, step.compensation.tool, arguments))

    # --- flow ---

    def end(self, status: str, code: str = "", message: str | None = None) -> None:
        """Begin to wind down: what has to be undone is undone first."""
        self.ending = (status, code, message)

    def follow(self, step: Step, result: StepResult) -> None:
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
        was_branch, self.branch = self.branch, False
        if step.is_terminal and not was_branch:
            self.end("success")
        elif isinstance(step, ConditionStep) and result.status == "success":
            target = None if result.output is None else self.program.index[result.output]
            self._branch_to(step, target, as_branch=not was_branch)
        elif isinstance(step, ApprovalStep) and not result.output["approved"]:
            self._branch_to(step, step.otherwise, as_branch=True)
        elif step.next is not None:
            self.position = step.next
        elif was_branch:
            self.end("success")
        else:
            self.position += 1

    def _branch_to(self, step: Step, target: int | None, *, as_branch: bool) -> None:
        if target is None:
            self.end("failed", "no_target", f"step {quoted(step.id)}: the condition has no target for this case")
        else:
            self.position = target
            self.branch = as_branch

    # --- budgets ---

    def exceeded(self) -> str | None:
        """Which of its budgets is used up, in words; None if none is."""
        if self.steps >= self.max_steps:
            return f"max_steps={self.max_steps} exceeded after {self.steps} step(s)"
        return self.exceeded_tokens() if self.has_token_budget else None

    def exceeded_tokens(self) -> str | None:
        """Which limit on tokens is used up, its own or that of a level above, in words; None if none is."""
        level: Level | None = self
        while level is not None:
            limit = level.program.max_tokens
            if limit is not None and level.tokens >= limit:
                return f"max_tokens={limit} exceeded: {level.tokens} tokens consumed"
            level = level.outer
        return None

    def count_tokens(self, tokens: int) -> None:
        """Count tokens here and in the levels above."""
        level: Level | None = self
        while level is not None:
            level.tokens += tokens
            level = level.outer

    def stalls(self) -> bool:
        """Count a step that has ended; whether it was one too many that changed no output, which ends the program."""
        limit = self.program.max_stalled_steps
        if limit is None or self.branch:
            return False
        self.stalled = self.stalled + 1 if self.changed is False else 0
        self.changed = False
        if self.stalled < limit:
            return False
        message = f"max_stalled_steps={limit} exceeded: {self.stalled} consecutive step(s) changed nothing"
        self.end("stalled", "stalled", message)
        return True
