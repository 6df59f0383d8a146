"""The SDK's server with a run_python that has a bare interpreter run the code: the least that such a tool can cost."""

import subprocess
import sys

import anyio
from mcp.server import MCPServer

server = MCPServer("bare")


@server.tool()
async def run_python(code: str) -> str:
    """Run Python."""
    done = await anyio.run_process([sys.executable, "-I", "-c", code], stdin=subprocess.DEVNULL)
    return done.stdout.decode()


if __name__ == "__main__":
    server.run()
