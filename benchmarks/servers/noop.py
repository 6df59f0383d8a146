"""The SDK's server with one tool that does nothing: over stdio, or with the argument `http` over HTTP.

Over HTTP, the port that it listens on is the first line that it prints.
"""

import socket
import sys

import uvicorn
from mcp.server import MCPServer

server = MCPServer("noop")


@server.tool()
def noop() -> str:
    """Do nothing."""
    return "ok"


def serve_http() -> None:
    """Serve on a free port of this machine."""
    # With the protocol named, asyncio sets TCP_NODELAY on its connections.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        serve_http()
    else:
        server.run()
