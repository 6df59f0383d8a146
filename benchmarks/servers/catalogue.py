"""A server of listed tools, `python -m benchmarks.servers.catalogue FILE.json`: no SDK, so that many can be started."""

import json
import sys
from pathlib import Path
from typing import Any

METHOD_NOT_FOUND = -32601


def _answer(method: str, params: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "catalogue", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": tools}
    return {} if method == "ping" else None


def main() -> None:
    tools = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = _answer(message["method"], message.get("params") or {}, tools)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            answer["error"] = {"code": METHOD_NOT_FOUND, "message": "method not found"}
        else:
            answer["result"] = result
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
