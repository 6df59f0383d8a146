"""An MCP server that lists what a file says, anew each time it is asked, and writes down what exactly reaches its tools.

`recording.py LISTING CALLS`: a JSON array of tools; and a file to which each call is appended as a line of JSON. A tool
answers with its arguments. `relist` announces that the tools have changed; with `tools`, these are listed from then on,
which is announced unless `silent` is given. It doesn't list what is `null`, and refuses a call with `refuse`;
one with `fail` has an error as its result. `count` says how often it was called with the same arguments.
"""

import json
import pathlib
import sys

listing, calls = map(pathlib.Path, sys.argv[1:])


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    if "id" not in message:
        continue
    body = {"error": {"code": -32601, "message": "Method not found"}}
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        info = {"name": "recording", "version": "1"}
        body = {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
    elif method == "ping":
        body = {"result": {}}
    elif method == "tools/list":
        tools = json.loads(listing.read_text())
        body = (
            {"result": {"tools": tools}}
            if tools is not None
            else {"error": {"code": -32603, "message": "the list is away"}}
        )
    elif method == "tools/call":
        with calls.open("a") as file:
            file.write(json.dumps({"tool": params["name"], "arguments": params.get("arguments")}) + "\n")
        given = params.get("arguments") or {}
        if params["name"] == "relist" and "tools" in given:
            listing.write_text(json.dumps(given["tools"]))
        if params["name"] == "relist" and not given.get("silent"):
            send(method="notifications/tools/list_changed")
        told = params.get("arguments")
        if params["name"] == "count":
            row = {"tool": "count", "arguments": told}
            told = {"count": sum(json.loads(line) == row for line in calls.read_text().splitlines())}
        body = {"result": {"content": [{"type": "text", "text": json.dumps(told)}], "structuredContent": told}}
        if "fail" in given:
            said = {"type": "text", "text": f"Unknown tool: {params['name']}"}
            body = {"result": {"content": [said], "isError": True}}
        if "refuse" in given:
            body = {"error": {"code": -32602, "message": f"Unknown tool: {params['name']}"}}
    send(id=message["id"], **body)
