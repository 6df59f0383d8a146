"""Compensation: when a program ends in any way but success, what its steps did is undone, the last step first.

A step's compensation is recorded when the step succeeds, with its arguments filled in. `step_types.COMPENSATION` says
how often an undoing call is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.kernel.language.references import TextTooLongError
from mcp_bridge.kernel.program_flow import Leaf
from mcp_bridge.kernel.step_types import CompensationStep, Instruction

if TYPE_CHECKING:
    from mcp_bridge.kernel.events import StepResult
    from mcp_bridge.kernel.program_flow import Level, Scope
    from mcp_bridge.kernel.step_types import Compensation


def record_compensation(
    level: Level, instruction: Instruction, compensation: Compensation, result: StepResult, scope: Scope | None
) -> None:
    """Record how a step that has succeeded is undone. The level has taken its output already.

    Args:
        level: The program under way.
        instruction: The step.
        compensation: What undoes it.
        result: The step's result.
        scope: The names that only the step knows (a map's item), or None.
    """
    lookup = level.within((scope or {}) | ({instruction.id: result.output} if instruction.id else {}))
    try:
        arguments = compensation.args.fill(lookup)
    except TextTooLongError:
        arguments = None
    level.undo.append((result.id, compensation.tool, arguments))


def compensation_for(level: Level) -> Leaf:
    """A new task that undoes what a level has done last."""
    path, tool, arguments = level.undo[-1]
    return Leaf(Instruction(CompensationStep(tool, arguments)), level, f"{path}.compensate")
