"""fastmcp's code mode over one tool that does nothing. For the Python of an environment that has fastmcp."""

from fastmcp import FastMCP
from fastmcp.experimental.transforms.code_mode import CodeMode

server = FastMCP("monty", transforms=[CodeMode()])


@server.tool
def noop() -> str:
    """Do nothing."""
    return "ok"


if __name__ == "__main__":
    server.run(show_banner=False, log_level="ERROR")
