"""Where the steps of a program may lead, and what in a valid program looks like a mistake."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.language.field_warnings import field_warnings
from mcp_bridge.kernel.language.format_faults import Fault
from mcp_bridge.kernel.language.references import NAME, QUOTED, names_of, written_path
from mcp_bridge.kernel.step_types import (
    END,
    ApprovalStep,
    ConditionStep,
    EventStep,
    MapStep,
    ModelStep,
    ParallelStep,
    ProgramStep,
    ToolStep,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.kernel.language.references import Template
    from mcp_bridge.kernel.step_types import Program, Step

_BRACKETED = re.compile(rf"(?<!\$)\$(?:{NAME}(?:\[[0-9]+\]|{QUOTED})|{QUOTED})")
_REFERENCE = re.compile(rf"\$(?![0-9]){NAME}")
"""Not the amounts of money that a name, or an answer, may be."""

_WITH_BRACKETS = frozenset({"condition", "over", "seconds", "program"})
"""Fields whose references may have brackets, and programs inside, which have warnings of their own."""

_COMPOSED = re.compile(r"[./\[\]\s]")
"""What joins ids to paths (`fan.left`, `each[3]`, `inner/hello`), and blanks."""

_MAX_WARNINGS = 20


def edges(step: Step, count: int) -> list[tuple[str, int]]:
    """The steps that may follow a step, each with the case in which it does: label and index, or `END`.

    Args:
        step: Of a program's list.
        count: How many steps that list has.
    """
    follow = step.next if step.next is not None else (step.index + 1 if step.index + 1 < count else END)
    if isinstance(step, ConditionStep):
        found = [("then", step.then), ("otherwise", step.otherwise)]
        out = [(label, index) for label, index in found if index is not None]
        return [*out, ("skipped", follow)] if step.on_error == "skip" else out
    out = [("", END if step.is_terminal and step.next is None else follow)]
    if isinstance(step, ApprovalStep) and step.otherwise is not None:
        out.append(("denied", step.otherwise))
    return out


def warnings(program: Program) -> tuple[Fault, ...]:
    """What is legal, and looks like a mistake: what leads nowhere, such as a step or a reference, and idle fields."""
    found = (kind(program.steps) for kind in (_like_paths, _lost_items, _references_in_names, _concurrent, _undoing))
    few = (fault for each in found for fault in itertools.islice(each, _MAX_WARNINGS))
    fields = itertools.islice(field_warnings(program.data), _MAX_WARNINGS)
    return (*_unreachable(program.steps), *_brackets_in_templates(program.data), *few, *fields)


def _unreachable(steps: tuple[Step, ...]) -> Iterator[Fault]:
    seen: set[int] = set()
    waiting = [0]
    while waiting:
        index = waiting.pop()
        if index in seen or index == END:
            continue
        seen.add(index)
        waiting += [target for _, target in edges(steps[index], len(steps))]
    for step in steps:
        if step.index not in seen:
            yield Fault(f"steps[{step.index}]", "unreachable", f"nothing leads to step {step.id!r}")


def _everywhere(steps: tuple[Step, ...], path: str = "") -> Iterator[tuple[str, Step]]:
    """Every step with its place: also those inside others, and those of programs that are written out."""
    for index, step in enumerate(steps):
        where = f"{path}steps[{index}]"
        for place, each in ((where, step), *_within(step, where)):
            yield place, each
            if isinstance(each, ProgramStep) and each.program_name is None:
                yield from _everywhere(each.program.steps, f"{place}.program.")


def _within(step: Step, path: str) -> Iterator[tuple[str, Step]]:
    if isinstance(step, ParallelStep):
        yield from ((f"{path}.parallel_steps[{number}]", child) for number, child in enumerate(step.children))
    elif isinstance(step, MapStep):
        yield f"{path}.step", step.body


def _like_paths(steps: tuple[Step, ...]) -> Iterator[Fault]:
    """Ids that can be mistaken for a path of steps, or for a line of their own, in a trace."""
    for place, step in _everywhere(steps):
        if _COMPOSED.search(step.id) or not step.id.isprintable():
            message = f"the id {step.id[:60]!r} reads like a path of steps, or several words: it can't be referenced"
            yield Fault(f"{place}.id", "bad_value", message)


def _lost_items(steps: tuple[Step, ...]) -> Iterator[Fault]:
    """Maps whose item has the name of its number."""
    for place, step in _everywhere(steps):
        if isinstance(step, MapStep) and step.item_name == "index":
            message = "$index is the number of the item: with `as: index` the item can't be referenced"
            yield Fault(f"{place}.as", "bad_value", message)


def _references_in_names(steps: tuple[Step, ...]) -> Iterator[Fault]:
    """References where they are text, since what stands there has to be known before the program runs."""
    for place, step in _everywhere(steps):
        for field, text in _names(step):
            if match := _REFERENCE.search(text):
                message = f"{match[0][:60]} is text here: references aren't filled in at this place"
                yield Fault(f"{place}.{field}", "reference_in_text", message)


def _names(step: Step) -> Iterator[tuple[str, str]]:
    """The fields of a step that have a name or a text, and no template."""
    if isinstance(step, ToolStep):
        yield "tool", step.tool
        if step.compensation:
            yield "compensate.tool", step.compensation.tool
    elif isinstance(step, EventStep):
        yield "event", step.event
    elif isinstance(step, ModelStep):
        yield from ((f"allowed_outputs[{number}]", text) for number, text in enumerate(step.allowed_outputs or ()))


def _concurrent(steps: tuple[Step, ...]) -> Iterator[Fault]:
    """References within a parallel step to its own steps: none has an output there before all have ended."""
    for place, step in _everywhere(steps):
        if isinstance(step, ParallelStep):
            own = {step.id, *(child.id for child in step.children)}
            for where, child in _within(step, place):
                for field, template in _templates(child):
                    # Its own name may well be one of the context.
                    if lost := sorted((own & template.roots) - {child.id}):
                        message = f"${lost[0][:60]} has no output before all steps of {step.id[:60]!r} have ended"
                        yield Fault(f"{where}.{field}", "reference_in_text", message)


def _undoing(steps: tuple[Step, ...]) -> Iterator[Fault]:
    """References of what undoes a step inside another to that other one: the arguments are filled in before it ends."""
    for place, step in _everywhere(steps):
        if not isinstance(step, ParallelStep | MapStep):
            continue
        for where, child in _within(step, place):
            if not isinstance(child, ToolStep) or child.compensation is None or step.id == child.id:
                continue
            if step.id in child.compensation.args.roots - {step.item_name if isinstance(step, MapStep) else ""}:
                meant = (
                    f"${child.id[:60]} is what is undone" if child.id else "give this step an 'id', and refer to that"
                )
                message = f"${step.id[:60]} has no output when these are filled in: {meant}"
                yield Fault(f"{where}.compensate.args", "reference_in_text", message)


def _templates(step: Step) -> Iterator[tuple[str, Template]]:
    """What is filled in before a step of a parallel step runs."""
    if isinstance(step, ToolStep):
        yield "args", step.args
    elif isinstance(step, ModelStep):
        yield "prompt", step.prompt
        if step.system is not None:
            yield "system", step.system


def _brackets_in_templates(data: dict[str, Any]) -> Iterator[Fault]:
    """Indices and names in brackets where they are text: only conditions, `over` and `seconds` understand them."""
    waiting: list[tuple[str, Any]] = [(f"steps[{index}]", row) for index, row in enumerate(data["steps"])][::-1]
    found = 0
    while waiting and found < _MAX_WARNINGS:
        path, value = waiting.pop()
        if isinstance(value, dict):
            inner = [(f"{path}.{name}", item) for name, item in value.items() if name not in _WITH_BRACKETS]
            waiting += inner[::-1]
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", item) for index, item in enumerate(value)][::-1]
        elif isinstance(value, str) and "[" in value and (match := _BRACKETED.search(value)):
            found += 1
            yield Fault(path, "index_in_text", _about_brackets(match[0]))


def _about_brackets(reference: str) -> str:
    dotted = written_path(names_of(reference))
    shown = f"the brackets of {reference[:60]} are text here"
    if "[" in dotted:
        return f"{shown}: only a condition, 'over' and 'seconds' can refer to a name that has to be quoted"
    what = "a name" if "'" in reference or '"' in reference else "an index"
    return f"{shown}: {what} is written {dotted[:60]}"
