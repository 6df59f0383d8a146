"""An MCP server whose tool `meet` answers only when as many calls as asked for are under way at once.

    python meeting.py

So a test can tell calls that overlap from calls that wait for one another, without a clock. Standard library only.
"""

import json
import sys
import threading

PATIENCE_SECONDS = 30
TOOLS = [
    {
        "name": "meet",
        "description": "Wait until `count` calls are here at once; the most there ever were.",
        "inputSchema": {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]},
    },
    {"name": "most", "description": "The most calls there ever were at once.", "inputSchema": {"type": "object"}},
]
changed = threading.Condition()
here = most = 0


def send(number, **body):
    with changed:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": number, **body}) + "\n")
        sys.stdout.flush()


def meet(count):
    global here, most
    with changed:
        here += 1
        most = max(most, here)
        changed.notify_all()
        met = changed.wait_for(lambda: most >= count, PATIENCE_SECONDS)
        here -= 1
    return {"content": [{"type": "text", "text": str(most)}], "isError": not met}


def answer(message):
    method = message["method"]
    if method == "initialize":
        info = {"name": "meeting", "version": "1"}
        send(message["id"], result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        send(message["id"], result={"tools": TOOLS})
    elif method == "tools/call":
        count = message["params"].get("arguments", {}).get("count", 0)
        send(message["id"], result=meet(count) if count else {"content": [{"type": "text", "text": str(most)}]})
    else:
        send(message["id"], error={"code": -32601, "message": "Method not found"})


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        threading.Thread(target=answer, args=(request,), daemon=True).start()
