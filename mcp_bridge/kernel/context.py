"""The values of a program under way: its context and its steps' outputs, and what references to them stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.language.references import MISSING, walk
from mcp_bridge.kernel.values import same

if TYPE_CHECKING:
    from mcp_bridge.kernel.language.conditions import Reference
    from mcp_bridge.kernel.language.references import Lookup
    from mcp_bridge.kernel.step_types import Instruction, Program

CONTEXT = "ctx"
"""`$ctx.k` reads the context, unless something else has that name."""


class Context:
    """The values of a program under way.

    Attributes:
        program: That program.
        context: What it was started with and what `output_key` added; names to normal values.
        outputs: Ids of steps to their latest output.
        changed: Whether an output has changed since the last comparison; None before the first.
        missing: The references of the last condition that led nowhere, for the explanation of its row.
    """

    __slots__ = ("changed", "context", "missing", "outputs", "program")

    def __init__(self, program: Program, context: dict[str, Any]) -> None:
        self.program = program
        self.context = context
        self.outputs: dict[str, Any] = {}
        self.changed: bool | None = None
        self.missing: list[Reference] = []

    def filled(self, root: str, path: tuple[str, ...]) -> Any:
        """What a reference in a template stands for: outputs of steps come before the context."""
        if root in self.outputs:
            value = self.outputs[root]
            return walk(value, path, of_step=True) if path else value
        if root in self.context:
            value = self.context[root]
            return walk(value, path, of_step=False) if path else value
        return walk(dict(self.context), path, of_step=False) if root == CONTEXT else MISSING

    def compared(self, root: str, path: tuple[str, ...]) -> Any:
        """What a reference in a condition stands for: the context comes before outputs of steps."""
        if root in self.context:
            value = self.context[root]
            found = walk(value, path, of_step=False, compares=True) if path else value
        elif root in self.outputs:
            value = self.outputs[root]
            found = walk(value, path, of_step=True, compares=True) if path else value
        else:
            found = walk(dict(self.context), path, of_step=False, compares=True) if root == CONTEXT else MISSING
        if found is MISSING:
            self.missing.append((root, path))
        return found

    def within(self, scope: dict[str, Any] | None) -> Lookup:
        """A lookup for templates, with some more names.

        Args:
            scope: Those names, or None.
        """
        if scope is None:
            return self.filled
        return lambda root, path: walk(scope[root], path, of_step=False) if root in scope else self.filled(root, path)

    def take_output(self, instruction: Instruction, output: Any) -> None:
        """Keep a step's output, under its id and in the context.

        Args:
            instruction: The step.
            output: Its output, a normal value.
        """
        name, key = instruction.id, instruction.output_key
        if self.program.max_stalled_steps is not None and not self.changed:
            self.changed = name not in self.outputs or not same(self.outputs[name], output)
        self.outputs[name] = output
        if key:
            self.context[key] = output

    def drop_output(self, instruction: Instruction) -> None:
        """Forget what a step gave in an earlier turn of a loop. What its `output_key` names in the context stays.

        Args:
            instruction: The step.
        """
        if instruction.id in self.outputs:
            del self.outputs[instruction.id]
            if self.program.max_stalled_steps is not None:
                self.changed = True
