"""The SDK's server with no tool: the least that a Python MCP server on this SDK can cost."""

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server


async def _list_tools(_: object, __: object) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[])


async def _main() -> None:
    server = Server("empty", on_list_tools=_list_tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(_main)
