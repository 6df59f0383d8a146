"""Programs that the model writes, from the tools that an execution may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.catalog import describe
from mcp_bridge.offload import off_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.kernel.language.format_faults import Fault

PLANNED_TOOLS = 40
"""Tools that a planner is told of: those nearest to the intent."""

MAX_QUERY_CHARS = 1000


async def plan_program(
    gate: Gate, intent: str, validate: Callable[[Any], Awaitable[Sequence[Fault]]]
) -> dict[str, Any]:
    """Have the model write a program for an intent.

    Args:
        gate: What the model is asked through.
        intent: What the program shall do.
        validate: Gives everything that is wrong with a program.

    Raises:
        BridgeError: As `models.planner.plan`.
    """
    from mcp_bridge.models.planner import plan  # noqa: PLC0415  (rarely needed)

    projector = await gate.values.projector()
    catalog, servers = gate.tools.catalog, gate.tools.servers
    result = await catalog.search(intent[:MAX_QUERY_CHARS], PLANNED_TOOLS, servers=servers.keys())
    tools = [(f"{hit.tool.server}.{hit.tool.name}", describe.line(hit.tool)) for hit in result.hits]
    planned = await plan(
        await off_loop(intent, projector.model, intent),
        await gate.model(),
        tools=await off_loop(tools, projector.model, tools),
        validate=validate,
    )
    return planned.program
