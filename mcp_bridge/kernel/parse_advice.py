"""How a text that is JSON becomes a value: which step has to parse it, or that the context has to have the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.kernel.context import CONTEXT
from mcp_bridge.kernel.language.value_texts import quoted
from mcp_bridge.kernel.step_types import EventStep, Instruction, MapStep, ModelStep, ParallelStep, ToolStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.kernel.context import Context
    from mcp_bridge.kernel.step_types import Program

_OF_CONTEXT = "the context has to have the value itself, and not its text"
_OF_PAYLOAD = "the payload of a resume has to be the value itself, and not its text"


def parse_advice(values: Context, root: str, path: tuple[str, ...], *, compares: bool) -> str:
    """What makes a value of the text that a reference leads to.

    Args:
        values: Of the program under way.
        root: The reference's first name.
        path: The rest of it.
        compares: Whether a condition has the reference, which looks into the context first.

    Returns:
        A clause; empty where nothing does: `parse` reads what a tool or a model gives, and no text within that.
    """
    if root == CONTEXT and path and not (root in values.context or root in values.outputs):
        root, path, compares = path[0], path[1:], True
    is_of_context = root in values.context and (compares or root not in values.outputs)
    if is_of_context:
        step = next((each for each in _all_steps(values.program) if each.output_key == root), None)
        if step is None:
            return _OF_PAYLOAD if root == "__webhook__" else _OF_CONTEXT
    else:
        step = next((each for each in _all_steps(values.program) if each.id == root), None)
        if path[:1] == ("output",):
            path = path[1:]
    which = ""
    if step is not None and path and isinstance(step.step, ParallelStep):
        step, path = next((child for child in step.children if child.id == path[0]), None), path[1:]
    elif step is not None and path and isinstance(step.step, MapStep):
        which = f"the `step` of {quoted(step.id)}"
        step, path = step.children[0], path[1:]
    if step is not None and isinstance(step.step, EventStep) and not path:
        return _OF_PAYLOAD
    if step is None or path or not isinstance(step.step, ToolStep | ModelStep) or step.step.parses:
        return ""
    which = which or ("that step" if step.id == root else f"the step {quoted(step.id)}")
    return f"`parse: json` on {which} makes a value of it"


def _all_steps(program: Program) -> Iterator[Instruction]:
    for step in program.instructions:
        yield step
        yield from step.children
