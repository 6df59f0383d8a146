"""An MCP server with tools and resources as it is told. Standard library only.

    python resourceful.py CONFIGURATION

CONFIGURATION is a JSON object:

- `tools`: names of tools that answer with their own name, of which `announce` announces other resources before
- `resources`, `templates`: lists of pages, each a list of rows as the protocol has them; without them the server doesn't
  know the request
- `loops`: whether the last page of resources has the cursor of the second
- `contents`: what reading a URI gives
- `capability`: what the server says of its resources
- `file`: where all of this is, which is read anew with each message
"""

import json
import sys
from pathlib import Path

CONFIGURATION = json.loads(sys.argv[1])


def page(name, kind, params):
    pages = CONFIGURATION.get(kind)
    if pages is None:
        return {"error": {"code": -32601, "message": "Method not found"}}
    number = int(params.get("cursor") or 0)
    result = {name: pages[number] if pages else []}
    if number + 1 < len(pages):
        result["nextCursor"] = str(number + 1)
    elif CONFIGURATION.get("loops") and kind == "resources":
        result["nextCursor"] = "1"
    return {"result": result}


def answer(method, params):
    if method == "initialize":
        capabilities = {"tools": {}, "resources": CONFIGURATION.get("capability", {"listChanged": True})}
        info = {"name": "resourceful", "version": "1"}
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in CONFIGURATION.get("tools", [])]
        return {"result": {"tools": tools}}
    if method == "tools/call":
        if params["name"] == "announce":
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}))
        return {"result": {"content": [{"type": "text", "text": f"its own {params['name']}"}]}}
    if method == "resources/list":
        return page("resources", "resources", params)
    if method == "resources/templates/list":
        return page("resourceTemplates", "templates", params)
    if method == "resources/read":
        contents = CONFIGURATION.get("contents", {}).get(params["uri"])
        if contents is None:
            return {"error": {"code": -32002, "message": "Resource not found"}}
        return {"result": {"contents": contents}}
    return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    message = json.loads(line)
    if "file" in CONFIGURATION:
        CONFIGURATION |= json.loads(Path(CONFIGURATION["file"]).read_text())
    if "id" in message:
        body = answer(message["method"], message.get("params") or {})
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
        sys.stdout.flush()
