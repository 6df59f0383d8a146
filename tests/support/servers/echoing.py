"""An MCP server with the tools it is told to have, each of which answers with its name and arguments as JSON.

    python echoing.py TOOLS

TOOLS is a JSON array of tools as `tools/list` gives them. Standard library only.
"""

import json
import sys

TOOLS = json.loads(sys.argv[1])

for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    if "id" not in message:
        continue
    if method == "initialize":
        info = {"name": "echoing", "version": "1"}
        body = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}}
    elif method == "tools/list":
        body = {"result": {"tools": TOOLS}}
    elif method == "tools/call":
        text = json.dumps([params["name"], params.get("arguments")])
        body = {"result": {"content": [{"type": "text", "text": text}]}}
    else:
        body = {"error": {"code": -32601, "message": "Method not found"}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
    sys.stdout.flush()
