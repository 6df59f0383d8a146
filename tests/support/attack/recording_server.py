"""An MCP server that writes down what it gets, and whose tools change when it is told.

    python recording_server.py NAME LOG LISTING

Each call is a line of JSON in the file LOG: `server`, `tool`, `arguments` as they came, and `listed`, the number of the
newest listing that the client could know. A listing with `slow` takes so many seconds to be told. LISTING is a file with the listing that it starts with: `number` and `tools`.
A call of `__control` replaces that listing, and with `announce` tells the client so, as MCP has it; with `known` it says
that the client has heard that: a call that crossed the announcement was right to be made. Standard library only.
"""

import json
import sys
import time
from pathlib import Path

NAME, LOG, LISTING = sys.argv[1:]
listing = json.loads(Path(LISTING).read_text())
known = listing["number"]
log = Path(LOG).open("a", buffering=1)  # noqa: SIM115 - for as long as the process lives


def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(name, arguments):
    global listing, known
    if name == "__control":
        if "known" in arguments:
            known = arguments["known"]
            return {"content": []}
        listing = arguments["listing"]
        if arguments["announce"]:
            send(method="notifications/tools/list_changed")
        return {"content": []}
    log.write(json.dumps({"server": NAME, "tool": name, "arguments": arguments, "listed": known}) + "\n")
    text = arguments.get("value") if name == "give" else "done"
    content = [{"type": "text", "text": text if isinstance(text, str) else json.dumps(text)}]
    return {"content": content, "isError": name == "fail"}


def answer(message):
    global known
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": NAME, "version": "1"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        known = listing["number"]
        time.sleep(listing.get("slow", 0))
        return {"tools": listing["tools"]}
    return call(params["name"], params.get("arguments") or {})


for line in sys.stdin.buffer:
    request = json.loads(line)
    if "id" in request:
        send(id=request["id"], result=answer(request))
