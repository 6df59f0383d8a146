"""The SDK's server with one tool that does nothing."""

from mcp.server import MCPServer

server = MCPServer("noop")


@server.tool()
def noop() -> str:
    """Do nothing."""
    return "ok"


if __name__ == "__main__":
    server.run()
