"""Which steps of a program the policy denies whatever their arguments are: known before the first of them runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import LOCAL
from mcp_bridge.governance.tool_names import split, tool_names
from mcp_bridge.kernel.step_types import MapStep, ProgramStep, ToolStep
from mcp_bridge.policy.rules.call import Call, StepContext, program_ref
from mcp_bridge.policy.rules.decision import unconditional_denial
from mcp_bridge.policy.rules.globs import ToolNames

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcp_bridge.downstream.catalog.catalog import Catalog
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.kernel.step_types import Step
    from mcp_bridge.policy.rules.call import Origin, ProgramRef

MAX_LISTED = 20
"""Steps that are named one by one."""


class DeniedStep(NamedTuple):
    """A step whose call would be denied.

    Attributes:
        step: Its path, without the numbers of a map's items; of what undoes a step, with `.compensate`.
        tool: As the step names it.
        message: What the agent is told of the denial.
    """

    step: str
    tool: str
    message: str


class _Placed(NamedTuple):
    program: Program
    ref: ProgramRef
    prefix: str


def denied_steps(
    program: Program, origin: Origin, governance: Governance, catalog: Catalog, allowed: Mapping[str, str]
) -> list[DeniedStep]:
    """The steps of a program that the policy denies in any case; of a program that it runs often, the first time.

    Nothing is started to find out: where a tool's server hasn't been listed, what depends on its hints isn't said.

    Args:
        program: It.
        origin: Whose it is.
        governance: The operator's word.
        catalog: The tools.
        allowed: Configured names of the servers, with their aliases.
    """
    snapshot = governance.snapshot
    if not snapshot.may_deny:
        return []
    denied = []
    for path, name, ref in _calls(program, origin, governance):
        known = _known(name, governance, catalog, allowed)
        if known is None:
            continue
        names, hints = known
        call = Call(names, hints=hints or {}, step=StepContext((ref,), path), complete=False)
        decision = unconditional_denial(snapshot, call, knows_hints=hints is not None)
        if decision is not None:
            denied.append(DeniedStep(path, name, decision.message))
    return denied


def denied_steps_message(program: Program, denied: list[DeniedStep]) -> str:
    """In a sentence, for whoever starts it."""
    named = "; ".join(f"{row.step} ({row.tool})" for row in denied[:MAX_LISTED])
    more = f"; … ({len(denied)} in all)" if len(denied) > MAX_LISTED else ""
    whose = f"of the program {program.name!r:.100}"
    return f"the policy denies these steps {whose}, whatever their arguments: {named}{more}"


def _calls(program: Program, origin: Origin, governance: Governance) -> Iterator[tuple[str, str, ProgramRef]]:
    """The tools that steps call: path, name, and the program in whose text the step stands."""
    waiting = [_Placed(program, program_ref(program, None, origin, governance.programs), "")]
    seen: set[tuple[int, ProgramRef]] = set()
    while waiting:
        placed = waiting.pop(0)
        if (id(placed.program), placed.ref) in seen:
            continue
        seen.add((id(placed.program), placed.ref))
        for path, step in _steps(placed):
            if isinstance(step, ToolStep):
                yield path, step.tool, placed.ref
                if step.compensation is not None:
                    yield f"{path}.compensate", step.compensation.tool, placed.ref
            elif isinstance(step, ProgramStep):
                # One that is written out is a part of the program around it.
                name, ref = step.program_name, placed.ref
                if name is not None:
                    ref = program_ref(step.program, name, origin, governance.programs)
                waiting.append(_Placed(step.program, ref, f"{path}/"))


def _steps(placed: _Placed) -> Iterator[tuple[str, Step]]:
    waiting = [(placed.prefix + step.id, step) for step in placed.program.steps]
    while waiting:
        path, step = waiting.pop(0)
        yield path, step
        is_map = isinstance(step, MapStep)
        waiting += [(f"{path}[]" if is_map else placed.prefix + child.id, child) for child in step.children]


def _known(
    name: str, governance: Governance, catalog: Catalog, allowed: Mapping[str, str]
) -> tuple[ToolNames, Mapping[str, object] | None] | None:
    """A tool's names and its hints, None for those that aren't known; None for a tool that can't be told."""
    try:
        server, tool = (LOCAL, name) if LOCAL in allowed and name in governance.registry.tools else split(name, allowed)
    except BridgeError:
        return None
    if not tool:
        return None
    listed = catalog.listed_tool(server, tool)
    if listed is not None:
        return tool_names(listed), listed.annotations
    return ToolNames(server, tool, allowed[server], tool), None
