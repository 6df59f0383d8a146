"""A server that sends as much as it may: results, notifications, listings, its standard error. Uses no package."""

from __future__ import annotations

import json
import sys
from typing import Any

MEGABYTE = 1 << 20

LARGE = {f"property_{number}": {"type": "string", "description": "of many"} for number in range(3000)}
"""Properties of a schema just under what a tool may have."""


def tool(name: str, properties: dict[str, Any] | None = None) -> dict[str, Any]:
    """A tool as it is listed."""
    return {
        "name": name,
        "description": f"The tool {name}.",
        "inputSchema": {"type": "object", "properties": properties or {}},
    }


NAMES = ("echo", "text", "cards", "blocks", "values", "progress", "logs", "changes", "errors")


def tools() -> list[dict[str, Any]]:
    """Those that do something, one with a large schema, and a thousand others."""
    many = [
        tool(f"tool_{number:04}", {"path": {"type": "string"}, "force": {"type": "boolean"}}) for number in range(1000)
    ]
    return [*map(tool, NAMES), tool("large", LARGE), *many]


def send(message: dict[str, Any]) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def notify(method: str, params: dict[str, Any]) -> None:
    """Write a notification."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}) + "\n")


def call(name: str, token: Any) -> dict[str, Any]:
    """What a call gives, after what it sends besides."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": "ok"}]}
    match name:
        case "text":
            result["content"][0]["text"] = "x" * 7 * MEGABYTE
        case "cards":
            result["content"][0]["text"] = "4242424242424242 " * 60_000
        case "blocks":
            result["content"] *= 10_000
        case "values":
            result["structuredContent"] = {"values": [number / 7 for number in range(245_000)]}
        case "progress":
            for number in range(20_000):
                notify("notifications/progress", {"progressToken": token or 1, "progress": number})
        case "logs":
            for number in range(20_000):
                notify("notifications/message", {"level": "info", "data": f"line {number}"})
        case "changes":
            for _ in range(5000):
                notify("notifications/tools/list_changed", {})
        case "errors":
            sys.stderr.write("e" * 20 * MEGABYTE + "\n")
            sys.stderr.flush()
    return result


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        params = message.get("params") or {}
        result: dict[str, Any] = {}
        match message["method"]:
            case "initialize":
                capabilities = {"tools": {"listChanged": True}, "logging": {}}
                info = {"name": "floods", "version": "1"}
                result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
            case "tools/list":
                result = {"tools": tools()}
            case "tools/call":
                result = call(params["name"], (params.get("_meta") or {}).get("progressToken"))
            case "ping":
                pass
            case _:
                send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
                continue
        send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
