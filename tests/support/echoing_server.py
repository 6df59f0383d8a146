"""A server that lists the tools that it is given, and echoes their arguments."""

import json
import sys
from pathlib import Path

from mcp_bridge.downstream.configuration.spec import ServerSpec


def echoing(*tools, name="odd"):
    script = Path(__file__).parents[1] / "support/servers" / "echoing.py"
    return ServerSpec(name=name, command=sys.executable, args=(str(script), json.dumps(tools)))


def tool(name, properties=None, required=(), **more):
    schema = {"type": "object", "properties": properties or {}, "required": list(required)}
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema, **more}


STRING = {"type": "string"}
