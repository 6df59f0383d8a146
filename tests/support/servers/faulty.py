"""A small MCP server with faults to order, for what no real server can be made to do.

    python faulty.py MODE [VALUE]

Standard library only, so that it starts at once. Speaks the 2025-11-25 era. Every mode but those that never answer has
the tools `echo`, `sleep`, `refuse` (isError), `die`, `hang`, `big`, `pid`, `shout`, `grow` and `cancelled`.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

MODE = sys.argv[1] if len(sys.argv) > 1 else "plain"
VALUE = sys.argv[2] if len(sys.argv) > 2 else ""

STRING = {"type": "string"}
NUMBER = {"type": "number"}
lock = threading.Lock()
cancelled: list[int] = []
grown: list[str] = []
answers: queue.SimpleQueue[object] = queue.SimpleQueue()


def tool(name, properties=None, required=(), **more):
    schema = {"type": "object", "properties": properties or {}, "required": list(required)}
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema, **more}


TOOLS = [
    tool("echo", {"text": STRING, "times": {"type": "integer", "minimum": 1, "default": 1}}, ["text"]),
    tool("sleep", {"seconds": NUMBER}, ["seconds"]),
    tool("refuse"),
    tool("die"),
    tool("hang"),
    tool("big", {"bytes": {"type": "integer"}}, ["bytes"]),
    tool("pid"),
    tool("shout", {"bytes": {"type": "integer"}}, ["bytes"]),
    tool("grow"),
    tool("cancelled"),
    tool("environment"),
]
if MODE == "many":
    TOOLS += [tool(f"tool_{number:04}", {"value": STRING}) for number in range(int(VALUE or "989"))]
if MODE == "unchecked":
    FORCE = {"properties": {"force": {"type": "boolean"}, "padding": {}}}
    TOOLS += [
        tool("padded") | {"inputSchema": {"type": "object", **FORCE}},
        tool("elsewhere", {"force": {"$ref": "https://example.org/schema.json"}}),
        tool("typeless", {"force": {"type": "truth"}}),
    ]
if MODE == "talkative":
    TOOLS += [tool("talk"), tool("say")]
if MODE == "encoding" and VALUE == "list":
    TOOLS.append(tool("spoilt", description="SURROGATE"))
if MODE == "fat":
    TOOLS.append(tool("fat", {f"property_{number}": STRING for number in range(50_000)}))
if MODE == "noisy":
    TOOLS += [tool("noise"), tool("blocks")]
if MODE == "deep":
    TOOLS += [tool("deep", {"outer": NUMBER, "padding": NUMBER, "inner": NUMBER, "where": STRING}), tool("bare")]
if MODE == "last":
    TOOLS.append(tool("last"))
if MODE == "asks":
    TOOLS.append(tool("asks"))
if MODE == "values-result":
    TOOLS.append(tool("many"))
if MODE == "twins":
    TOOLS += [tool("a-b"), tool("a_b"), tool("a_b_2"), tool("a-b", description="a second one"), tool("class")]


# What a text is replaced by on the wire.
ENCODINGS = (
    (b"LATIN", b"caf\xe9"),
    (b"SURROGATE", b"\\ud800"),
    (b"QUOTE", b'"'),
    (b'"HUGE"', b"9" * 5000),
    (b'"DEEP"', b"[" * 3000 + b"]" * 3000),
)


def send(message):
    if VALUE == "id-inside" and "result" in message:
        message = {"jsonrpc": "2.0", "result": message["result"], "id": message["id"], "more": None}
    if VALUE == "id-as-text" and "result" in message:
        message = {**message, "id": str(message["id"])}
    data = json.dumps(message).encode()
    if MODE == "encoding":
        for written, sent in ENCODINGS:
            data = data.replace(written, sent)
    with lock:
        if MODE == "garbage":
            sys.stdout.buffer.write(b'Loading\xff\xfe model...\n{not json}\n[]\n\n{"jsonrpc":"2.0"}\n')
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()


def text(value, **more):
    return {"content": [{"type": "text", "text": value}], **more}


def list_tools(params):
    tools = TOOLS + [tool(name) for name in grown]
    if MODE == "flood":
        # Pages of some megabytes each, without end.
        page = [tool(f"t{time.monotonic_ns()}_{n}", description="x" * 200_000) for n in range(20)]
        return {"tools": [*TOOLS, *page], "nextCursor": str(time.monotonic_ns())}
    if MODE == "values":
        return {"tools": [tool("values", {"x": {"enum": [[]] * 600_000}})]}
    if MODE == "no-list":
        return {"tools": VALUE}
    if MODE == "endless":
        return {"tools": TOOLS, "nextCursor": str(time.monotonic_ns())}
    if MODE == "circle":
        return {"tools": TOOLS, "nextCursor": "again"}
    if MODE == "many":
        start = int((params or {}).get("cursor", "0"))
        page = {"tools": tools[start : start + 100]}
        return page | ({"nextCursor": str(start + 100)} if start + 100 < len(tools) else {})
    return {"tools": tools}


def hang():
    if MODE == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)


def deep(outer, padding, inner, where):
    """Lists in lists, with a text between the outer and the inner ones."""
    # To write it.
    sys.setrecursionlimit(10_000)
    value = [[]] if inner else []
    for _ in range(inner - 2):
        value = [value]
    value = ["x" * padding, value]
    for _ in range(outer - 1):
        value = [value]
    if where == "meta":
        return {"content": [{"type": "text", "text": "t", "_meta": {"deep": value}}]}
    return text("t", structuredContent={"deep": value})


def log(level, data):
    send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": level, "data": data}})


def call(name, arguments, meta):  # noqa: C901, PLR0912 - a list of faults
    if name == "echo":
        return text(arguments["text"] * arguments.get("times", 1))
    if name == "sleep":
        time.sleep(arguments["seconds"])
        return text("slept")
    if name == "refuse":
        more = {"structuredContent": {"why": VALUE}} if MODE == "says-why" else {}
        return text("no, I will not", isError=True, **more)
    if name == "die":
        told = f"no use of {os.environ['TOKEN']}" if MODE == "leak-die" else "dying as told"
        print(told, file=sys.stderr, flush=True)
        os._exit(7)
    if name == "hang":
        hang()
    if name == "big":
        return text("x" * arguments["bytes"])
    if name == "pid":
        return text(str(os.getpid()))
    if name == "shout":
        sys.stderr.write("e" * arguments["bytes"] + "\nthe last line\n")
        sys.stderr.flush()
        return text("shouted")
    if name == "noise":
        note = json.dumps(
            {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": ""}}
        )
        sys.stdout.write((note + "\n") * 20_000)
        sys.stdout.flush()
        log("error", "the disk is full")
    if name == "talk":
        first = f"with {os.environ['TOKEN']}" if VALUE == "leak" else "reading"
        for level, data in (("info", first), ("debug", "details"), ("warning", "slow"), ("info", {"rows": 3})):
            log(level, data)
    if name == "say":
        # With progress beside it.
        token = meta.get("progressToken")
        for number in range(40):
            log("error" if number == 7 else "info", f"log {number}")
            params = {"progressToken": token, "progress": number, "total": 40}
            if token is not None:
                send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    if name == "blocks":
        return {"content": [{"type": "text", "text": "x"}] * 5000}
    if name == "last":
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": ""}}
        sys.stdout.write((json.dumps(note) + "\n") * 1500)
        sys.stdout.flush()
        return text("the last")
    if name == "asks":
        send({"jsonrpc": "2.0", "id": "own", "method": "sampling/createMessage", "params": {"x": "x" * 300_000}})
        return text(json.dumps(answers.get(timeout=60)))
    if name == "deep":
        return deep(**arguments)
    if name == "bare":
        # Nobody can tell what it answers.
        with lock:
            sys.stdout.write('{"jsonrpc":"2.0","result":' + "[" * 1000 + '"' + "x" * 300_000 + '"' + "]" * 1000 + "}\n")
    if name == "many":
        return text("many", structuredContent={"values": [1] * 600_000})
    if name == "grow":
        grown.append(f"grown_{len(grown)}")
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        return text(grown[-1])
    if name == "cancelled":
        return text(json.dumps(cancelled))
    if name == "environment":
        return text(json.dumps(dict(os.environ)))
    return text(f"called {name}")


def answer(message):
    reply(message)
    if message.get("params", {}).get("name") == "last":
        os._exit(0)


def reply(message):
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": VALUE if MODE == "no-initialize" else {"name": "faulty", "version": "1"},
        }
    elif method == "ping":
        result = {}
    elif method == "tools/list" and MODE == "refuses-list":
        send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32603, "message": f"no licence for {VALUE}."}})
        return
    elif method == "tools/list":
        result = list_tools(params)
    elif method == "tools/call":
        if MODE == "malformed":
            result = {"content": "not a list"}
        else:
            result = call(params["name"], params.get("arguments") or {}, params.get("_meta") or {})
    else:
        error = {"code": -32601, "message": "Method not found"}
        send({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return
    send({"jsonrpc": "2.0", "id": message["id"], "result": result})


def misbehave():
    """The faults that come before the first message."""
    if MODE == "dead":
        print("cannot find my configuration", file=sys.stderr)
        sys.exit(3)
    if MODE == "leak-dead":
        sys.exit(f"bad token {os.environ['TOKEN']}")
    if MODE == "flaky" and not Path(VALUE).exists():
        print("not yet", file=sys.stderr)
        sys.exit(4)
    if MODE == "silent":
        time.sleep(3600)
    if MODE == "slow":
        time.sleep(float(VALUE))
    if MODE == "together":
        number, _, folder = VALUE.partition(":")
        Path(folder, str(os.getpid())).touch()
        while len(list(Path(folder).iterdir())) < int(number):
            time.sleep(0.02)
    if MODE == "grandchild":
        subprocess.Popen(["sleep", VALUE], stdin=subprocess.DEVNULL)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main():
    misbehave()
    first = True
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if first and message.get("method") != "initialize":
            if MODE == "crash-on-unknown":
                sys.exit("unknown first message")
            if MODE == "hang-on-unknown":
                time.sleep(3600)
        first = False
        if message.get("method") == "notifications/cancelled":
            cancelled.append(message["params"]["requestId"])
        if message.get("id") == "own":
            answers.put(message)
            continue
        if "id" not in message:
            continue
        if MODE == "single" or (MODE == "deaf" and message.get("params", {}).get("name") == "hang"):
            answer(message)
        else:
            threading.Thread(target=answer, args=(message,), daemon=True).start()
    if MODE == "stubborn":
        time.sleep(3600)


main()
