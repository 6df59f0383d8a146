"""An MCP server that means harm, `python -m benchmarks.servers.hostile MODE [SCALE]`. Standard library only.

MODE says what is wrong with its listing or its life, SCALE (0 to 1) how large it is, 1 by default:

| mode | what it does |
|---|---|
| `tools` | an honest listing of tools whose answers are the attack |
| `pages` | its listing never ends, each page is almost as large as a message may be |
| `schema` | one tool, whose schema is 1.8 MB |
| `properties` | one tool, whose schema has 100,000 properties |
| `thousands` | 5,000 tools with 100 properties each |
| `dying` | dies in the midst of every third call, and comes back |
| `shifting` | lists other tools each time, and says all the time that they have changed |
| `babbling` | what it writes beside its answers is no protocol: garbage, half messages, answers that nobody asked for |
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODE = sys.argv[1] if len(sys.argv) > 1 else "tools"
SCALE = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0

METHOD_NOT_FOUND = -32601

MAX_RESULT_BYTES = 8 << 20
"""What the bridge takes of a result; a little less is the most that is looked at."""

SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "x" * 1000}}], "maxTokens": 1}

lock = threading.Lock()
calls = itertools.count(1)


def scaled(usual: int) -> int:
    """So many of something, by the scale."""
    return max(1, int(usual * SCALE))


def write(data: bytes) -> None:
    with lock:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def send(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def notify(method: str, **params: Any) -> None:
    send(method=f"notifications/{method}", params=params)


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


@cache
def cards(size: int) -> str:
    """So many characters of payment card numbers, 5,000 different ones."""

    def number(index: int) -> str:
        digits = f"4{index:014d}"
        doubled = [int(digit) * (2 if place % 2 == 0 else 1) for place, digit in enumerate(digits)]
        return digits + str(-sum(each - 9 if each > 9 else each for each in doubled) % 10)

    block = " ".join(number(index) for index in range(5000)) + " "
    return (block * (size // len(block) + 1))[:size]


# What its tools answer with.


def cards_(arguments: dict[str, Any]) -> dict[str, Any]:
    return text(cards(arguments.get("bytes", scaled(MAX_RESULT_BYTES - 4096))))


def structured(_: dict[str, Any]) -> dict[str, Any]:
    rows = [{"card": cards(16 * 40), "n": number} for number in range(scaled(10_000))]
    return {**text("rows"), "structuredContent": {"rows": rows}}


def blocks(_: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "b"}] * scaled(200_000)}


def oversized(_: dict[str, Any]) -> dict[str, Any]:
    return text("x" * (MAX_RESULT_BYTES * 3))


def deep(_: dict[str, Any]) -> dict[str, Any]:
    value: Any = 0
    for _level in range(500):
        value = {"a": value}
    return {**text("deep"), "structuredContent": value}


def bottomless(_: dict[str, Any]) -> None:
    """More levels than any reader's stack has, as bytes: no writer could write it."""
    write(b'{"jsonrpc": "2.0", "id": 0, "result": ' + b'{"a":' * 100_000 + b"0" + b"}" * 100_000 + b"}\n")


def progress(arguments: dict[str, Any]) -> dict[str, Any]:
    for number in range(scaled(20_000)):
        notify("progress", progressToken=arguments.get("token", number), progress=number, message="m" * 500)
    return text("told")


def logs(_: dict[str, Any]) -> dict[str, Any]:
    for _number in range(scaled(20_000)):
        notify("message", level="emergency", logger="l" * 100, data="d" * 500)
    return text("told")


def changes(_: dict[str, Any]) -> dict[str, Any]:
    for _number in range(scaled(20_000)):
        notify("tools/list_changed")
    return text("told")


def resources(_: dict[str, Any]) -> dict[str, Any]:
    for number in range(scaled(20_000)):
        notify("resources/updated", uri=f"file:///{number}")
    return text("told")


def stderr(_: dict[str, Any]) -> dict[str, Any]:
    for _number in range(scaled(400)):
        sys.stderr.write("e" * 100_000 + ("\n" if _number % 2 else ""))
    sys.stderr.flush()
    return text("shouted")


def malformed(_: dict[str, Any]) -> dict[str, Any]:
    garbage = b'\xff\xfe\n{not json}\n[]\n[[[[\n{"jsonrpc":"2.0"}\n{"id":1}\n"x"\n1e999\n' + b"\x00" * 1000 + b"\n"
    for _number in range(scaled(2_000)):
        write(garbage)
    write(b"x" * scaled(20 << 20) + b"\n")
    return text("babbled")


def strangers(_: dict[str, Any]) -> dict[str, Any]:
    for number in range(scaled(20_000)):
        send(id=10**6 + number, result=text("nobody asked"))
    return text("answered")


def questions(_: dict[str, Any]) -> dict[str, Any]:
    """Requests of its own, of every kind that a client may answer."""
    for number in range(scaled(2_000)):
        send(id=f"q{number}", method="sampling/createMessage", params=SAMPLING)
        send(id=f"e{number}", method="elicitation/create", params={"message": "m", "requestedSchema": {}})
        send(id=f"r{number}", method="roots/list")
        send(id=f"p{number}", method="ping")
    return text("asked")


def hang(_: dict[str, Any]) -> dict[str, Any]:
    time.sleep(3600)
    return text("never")


def die(_: dict[str, Any]) -> dict[str, Any]:
    sys.stderr.write("dying\n")
    sys.stderr.flush()
    os._exit(7)


def drip(_: dict[str, Any]) -> dict[str, Any]:
    """An answer that comes in pieces of one byte, beside those of others."""
    for _number in range(scaled(5_000)):
        write(b" ")
    write(b"\n")
    return text("dripped")


def shift(_: dict[str, Any]) -> dict[str, Any]:
    for _number in range(scaled(200)):
        notify("tools/list_changed")
    return text("shifted")


def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return text(json.dumps(arguments)[: 1 << 20])


TOOLS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "cards": cards_,
    "structured": structured,
    "blocks": blocks,
    "oversized": oversized,
    "deep": deep,
    "bottomless": bottomless,
    "progress": progress,
    "logs": logs,
    "changes": changes,
    "resources": resources,
    "stderr": stderr,
    "malformed": malformed,
    "strangers": strangers,
    "questions": questions,
    "hang": hang,
    "die": die,
    "drip": drip,
    "echo": echo,
    "shift": shift,
}


# Its listing.


def tool(name: str, properties: dict[str, Any] | None = None, description: str = "") -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {}}
    return {"name": name, "description": description or f"The tool {name}.", "inputSchema": schema}


def large_schema(size: int) -> dict[str, Any]:
    """A schema of so many bytes, of what takes a validator its time: alternatives, references, enumerations."""
    value = {"anyOf": [{"type": "string", "maxLength": 9}, {"$ref": "#/$defs/v"}, {"enum": list(range(20))}]}
    one = len(json.dumps({"p00000": value}))
    properties = {f"p{number:05}": value for number in range(size // one)}
    definitions = {"v": {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}}
    return {"type": "object", "properties": properties, "$defs": definitions}


def listing(cursor: str | None) -> dict[str, Any]:
    if MODE == "pages":
        page = int(cursor or "0")
        tools = [tool(f"page_{page}", description="d" * scaled(7 << 20))]
        return {"tools": tools, "nextCursor": str(page + 1)}
    if MODE == "schema":
        return {"tools": [{**tool("work"), "inputSchema": large_schema(scaled(1_800_000))}]}
    if MODE == "properties":
        return {"tools": [tool("work", {f"property_{n}": {"type": "string"} for n in range(scaled(100_000))})]}
    if MODE == "thousands":
        start, of_page = int(cursor or "0"), 1_000
        names = {f"p{n}": {"type": "string", "maxLength": n} for n in range(100)}
        listed = [tool(f"tool_{n}", names) for n in range(start, min(start + of_page, scaled(5_000)))]
        more = {"nextCursor": str(start + of_page)} if start + of_page < scaled(5_000) else {}
        return {"tools": listed, **more}
    if MODE == "shifting":
        return {"tools": [tool("shift"), *(tool(f"t{n}_{time.monotonic_ns()}") for n in range(scaled(1_000)))]}
    return {"tools": [tool(name) for name in (*TOOLS, "fault", "work")]}


def called(number: Any, name: str, arguments: dict[str, Any]) -> None:
    if MODE == "dying" and next(calls) % 3 == 0:
        os._exit(7)
    if name == "fault":
        # A protocol error as large as a message may be, and full of what must not be shown.
        error = {"code": -32000, "message": cards(scaled(7 << 20)), "data": {"cards": cards(1 << 10)}}
        send(id=number, error=error)
    elif (result := TOOLS.get(name, echo)(arguments)) is not None:
        send(id=number, result=result)


def answer(message: dict[str, Any]) -> None:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}, "logging": {}}
        info = {"name": "hostile", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        send(id=message["id"], result=result)
    elif method == "tools/list":
        send(id=message["id"], result=listing(params.get("cursor")))
    elif method == "tools/call":
        called(message["id"], params["name"], params.get("arguments") or {})
    elif method == "ping":
        send(id=message["id"], result={})
    else:
        send(id=message["id"], error={"code": METHOD_NOT_FOUND, "message": "method not found"})


def messages() -> Iterator[dict[str, Any]]:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            yield message


def babble() -> None:
    """Until its process ends, with pauses: it is the bridge that is to be tried, not the processor."""
    while True:
        malformed({})
        strangers({})
        time.sleep(0.5)


def shift_always() -> None:
    while True:
        shift({})
        time.sleep(0.2)


def main() -> None:
    beside = {"babbling": babble, "shifting": shift_always}.get(MODE)
    if beside is not None:
        threading.Thread(target=beside, daemon=True).start()
    for message in messages():
        # Each on a thread of its own: one that hangs holds no other up.
        threading.Thread(target=answer, args=(message,), daemon=True).start()


if __name__ == "__main__":
    main()
