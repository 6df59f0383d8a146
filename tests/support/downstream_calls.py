"""Calls of servers' tools without a gate."""


async def call_tool(fleet, server, tool, arguments=None, timeout=None, tell=None):  # noqa: ASYNC109
    """What a server answers to a call of a tool by its name, if the arguments fit the tool's schema."""
    found = fleet.server(server)
    info = await found.listed(tool)
    arguments = arguments or {}
    await found.check(info, arguments)
    return await found.call_tool(info, arguments, timeout, tell)
