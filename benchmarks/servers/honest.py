"""A well-behaved MCP server, `python -m benchmarks.servers.honest`: `echo` and `noop`. Standard library only.

Without the SDK it starts at once, and costs next to nothing beside what is measured.
"""

from __future__ import annotations

import json
import sys
from typing import Any

METHOD_NOT_FOUND = -32601

TOOLS = [
    {"name": "noop", "description": "Does nothing.", "inputSchema": {"type": "object"}},
    {
        "name": "echo",
        "description": "Gives back a text.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
]


def _result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        about = {"name": "honest", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        text = (params.get("arguments") or {}).get("text", "") if params["name"] == "echo" else "ok"
        return {"content": [{"type": "text", "text": text}]}
    return {} if method == "ping" else None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = _result(message["method"], message.get("params") or {})
        error = {"error": {"code": METHOD_NOT_FOUND, "message": "method not found"}}
        body = error if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)


if __name__ == "__main__":
    main()
