"""Calls of servers' tools without a gate."""

from mcp_bridge.downstream.catalog.bound_tool import Listener


async def call_tool(fleet, server, tool, arguments=None, timeout=None, tell=None, principal="local"):  # noqa: ASYNC109
    """What a server answers to a call of a tool by its name, if the arguments fit the tool's schema."""
    found = fleet.server(server)
    info = await found.listed(tool)
    arguments = arguments or {}
    await found.check(info, arguments)
    listener = Listener(principal, None if tell is None else lambda text, _severity: tell(text))
    return await found.call_tool(info, arguments, timeout, listener)
