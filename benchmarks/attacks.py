"""What a hostile script, with a hostile server's help, does to the host: one entry an attack, as a script.

Each needs a bridge with the server `good`, with those of `SERVERS`, and with the tools of `benchmarks.tools`. An attack
sends its requests through the channel itself, where the public functions are too well-behaved, and prints a line of
JSON at its end: how often it was answered with which code (`ok` for a result). An attack that the host has ended prints
no such line; its record's status says how it ended.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRELUDE = """
import collections, gc, json, os, random, sys, threading, time
from mcp_bridge.guest.channel import Channel
from mcp_bridge.wire import jsonrpc

SECONDS, SCALE = {seconds}, {scale}
# A little less than a frame may hold.
VALUES = int(jsonrpc.MAX_VALUES * 0.9 * SCALE)
CHANNEL = next(each for each in gc.get_objects() if isinstance(each, Channel))
TALLY = collections.Counter()
BEGAN = time.monotonic()

def scaled(usual): return max(1, int(usual * SCALE))

def more(): return time.monotonic() - BEGAN < SECONDS

def note(answer):
    failed = isinstance(answer, jsonrpc.ErrorResponse)
    TALLY[str(answer.data.get("code")) if failed else "ok"] += 1

def send(method, params, take):
    # As the channel does, without what it checks: whoever is hostile doesn't.
    with CHANNEL._write_lock:
        CHANNEL._next_id += 1
        number = CHANNEL._next_id
    CHANNEL._waiting[number] = take
    raw(frame(id=number, method=method, params=params))
    return number

def ask(method, **params):
    answers, answered = [], threading.Semaphore(0)
    def take(answer):
        note(answer)
        answers.append(answer)
        answered.release()
    send(method, params, take)
    answered.acquire()
    return getattr(answers[0], "result", None)

def at_once(requests):
    # All under way together; returns when all are answered.
    answered, count = threading.Semaphore(0), 0
    def take(answer):
        note(answer)
        answered.release()
    for method, params in requests:
        send(method, params, take)
        count += 1
    for _ in range(count): answered.acquire()

def tool(server, name, **arguments): return ask("tool.call", server=server, tool=name, arguments=arguments)

def calls(server, name, count, **arguments):
    at_once([("tool.call", dict(server=server, tool=name, arguments=arguments))] * count)

def raw(data): CHANNEL._write(data)

def frame(**message): return json.dumps({{"jsonrpc": "2.0", **message}}).encode() + b"\\n"

def cards(size):
    # 5,000 different numbers with valid check digits, over and over.
    def number(index):
        digits = "4" + str(index).zfill(14)
        doubled = [int(d) * (2 if place % 2 == 0 else 1) for place, d in enumerate(digits)]
        return digits + str(-sum(each - 9 if each > 9 else each for each in doubled) % 10)
    block = " ".join(map(number, range(5000))) + " "
    return (block * (size // len(block) + 1))[:size]

def program(name, *steps, **more): return {{"name": name, "steps": list(steps), **more}}

def step(name, value, **more):
    return {{"id": name, "type": "tool", "tool": "local.audit", "args": {{"step": value}}, **more}}

def run(steps, context):
    from mcp import ToolError
    from mcp.sync import programs
    try: TALLY[programs.run(steps, context).status] += 1
    except Exception as exc: TALLY[getattr(exc, "code", None) or type(exc).__name__] += 1
"""

EPILOGUE = """
print(json.dumps(TALLY))
"""

SERVERS: Mapping[str, Sequence[str]] = {
    "hostile": ("tools",),
    "pages": ("pages",),
    "schema": ("schema",),
    "properties": ("properties",),
    "thousands": ("thousands",),
    "dying": ("dying",),
    "shifting": ("shifting",),
    "babbling": ("babbling",),
}
"""Names of hostile servers, and their modes."""

ENDED = frozenset({"success", "error"})
"""How an attack ends that the host has only refused things."""

STOPPED = ENDED | {"timeout"}


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of attack.

    Attributes:
        name: For people.
        code: What follows `PRELUDE`.
        ends: Statuses of records that are right for it.
        servers: Hostile servers that it uses.
    """

    name: str
    code: str
    ends: frozenset[str] = STOPPED
    servers: tuple[str, ...] = ()

    def script(self, seconds: float, scale: float) -> str:
        """Its source.

        Args:
            seconds: How long to go on with what can be done over and over; each thing is done once at least.
            scale: Of sizes and counts: 1 for what a guest may ask for at the most, less for a quick look.
        """
        return PRELUDE.format(seconds=seconds, scale=scale) + self.code + EPILOGUE


def hostile_server(name: str, scale: float) -> list[str]:
    """The command line of one of `SERVERS`."""
    return [sys.executable, "-m", "benchmarks.servers.hostile", *SERVERS[name], f"{scale:g}"]


def tally(printed: str) -> Counter[str]:
    """What an attack has told; empty if the host has ended it before."""
    try:
        told = json.loads(printed.strip().rpartition("\n")[2])
    except ValueError:
        return Counter()
    return Counter(told) if isinstance(told, dict) else Counter()


def outcome(record: Mapping[str, Any]) -> Counter[str]:
    """How an attack has ended, `run: STATUS` or `run: STATUS/CODE`, and how its requests were answered."""
    error = record.get("error") or {}
    code = f"/{error['code']}" if error.get("code") else ""
    return Counter({f"run: {record['status']}{code}": 1}) + tally(str(record.get("stdout", "")))


_ATTACKS = (
    # Programs.
    Attack(
        "900 saved programs of 60 KB, listed eight at once",
        """
filler = "x" * 55_000
for number in range(scaled(900)):
    ask("program.save", name=f"p{number}", program=program(f"p{number}", step("a", filler), description="d" * 4000))
while True:
    at_once([("program.list", {})] * 8)
    at_once([("program.get", {"name": f"p{n}"}) for n in range(8)])
    at_once([("program.start", {"program": f"no such {n}", "context": {}}) for n in range(8)])
    if not more(): break
""",
    ),
    Attack(
        "names of 15 MB",
        """
name = "p" * scaled(15 << 20)
requests = [
    ("program.start", dict(program=name, context={})),
    ("program.start", dict(program=program("p", step("a", "1")), context={}, idempotency_key=name)),
    ("program.get", dict(name=name)),
    ("program.delete", dict(name=name)),
    ("program.save", dict(name=name, program=program("p", step("a", 1)))),
    ("program.resume", dict(execution=name)),
    ("program.finish", dict(execution=name, state=name[:100])),
    ("program.plan", dict(intent=name)),
    ("trace.get", dict(trace_id=name)),
    ("catalog.tools", dict(server=name)),
    ("catalog.describe", dict(name=name)),
    ("catalog.check", dict(server=name, tool="noop", arguments={})),
    ("memory.load", dict(key=name)),
    ("tool.call", dict(server=name, tool="noop", arguments={})),
    ("tool.call", dict(server="good", tool=name, arguments={})),
    ("tool.call", dict(server="local", tool=name, arguments={})),
]
# The host may end a run at the first of them.
random.shuffle(requests)
while True:
    for method, params in requests: ask(method, **params)
    if not more(): break
""",
        ends=STOPPED | {"protocol_error"},
    ),
    Attack(
        "programs that are invalid everywhere",
        """
steps = [{"id": f"s{n}", "type": "tool", "nonsense": n, "next_step": f"s{n * 7}x"} for n in range(VALUES // 12)]
while True:
    ask("program.validate", program=program("p", *steps))
    ask("program.validate", program=[[[]]] * (VALUES // 4))
    ask("program.save", name="bad", program=program("p", *steps))
    if not more(): break
""",
    ),
    Attack(
        "programs of as many steps as a frame holds",
        """
steps = [{"id": f"s{n}", "type": "condition", "condition": "$a == 1", "then": f"s{n + 1}", "otherwise": f"s{n // 2}"}
         for n in range(VALUES // 12)] + [step(f"s{VALUES // 12}", "end")]
while True:
    ask("program.validate", program=program("p", *steps))
    ask("program.save", name="long", program=program("p", *steps))
    ask("program.start", program=program("p", *steps, max_steps=10**9), context={"a": 1})
    ask("program.start", program=program("p", *steps, max_steps=10**9), context={"a": 2})
    if not more(): break
""",
    ),
    Attack(
        "large states and many steps",
        """
big = "s" * scaled(2 << 20)
steps = [step(f"s{n}", f"{n}", output_key=f"o{n}") for n in range(scaled(300))]
while True:
    run(program("p", *steps), {"big": [big, [{"n": n} for n in range(VALUES // 4)]]})
    if not more(): break
""",
    ),
    Attack(
        "a small program that asks for 8 MB a step",
        """
steps = [step(f"s{n}", "$cards $cards $cards $cards", on_error="skip") for n in range(scaled(50))]
each = {"id": "m", "type": "map", "over": list(range(scaled(200))), "step": step("e", "$cards", on_error="skip")}
while True:
    run(program("p", *steps), {"cards": cards(scaled(1_900_000))})
    run(program("p", each), {"cards": cards(scaled(1_900_000))})
    if not more(): break
""",
    ),
    Attack(
        "conditions on 4 MB of text",
        """
text = "a" * scaled(3_900_000)
needles = " or ".join(f"$text contains '{'a' * 20}{n}'" for n in range(200))
loop = {"id": "a", "type": "condition", "condition": needles, "then": "b", "otherwise": "a"}
wide = [{"id": f"c{n}", "type": "condition", "condition": "$x in $many", "then": "b"} for n in range(scaled(2000))]
while True:
    ask("program.start", program=program("p", loop, step("b", "1")), context={"text": text})
    ask("program.start", program=program("p", *wide, step("b", "1")),
        context={"x": [[1]], "many": [[[n]] for n in range(VALUES // 6)]})
    if not more(): break
""",
    ),
    Attack(
        "64 programs under way, left in the middle",
        """
steps = [step("a", "$a"), {"id": "w", "type": "wait", "event": "never"}, step("b", "1")]
while True:
    at_once([("program.start", {"program": program("p", *steps), "context": {"a": "x" * scaled(1 << 18)}})] * 64)
    if not more(): break
""",
    ),
    # Calls.
    Attack(
        "12 MiB of card numbers as arguments",
        """
text = cards(scaled(12 << 20))
while True:
    tool("good", "noop", text=text)
    tool("hostile", "echo", text=text)
    tool("local", "audit", step=text)
    ask("program.start", program=program("p", step("a", "1")), context={"text": text})
    if not more(): break
""",
        servers=("hostile",),
    ),
    Attack(
        "results of the largest size, full of card numbers",
        """
while True:
    tool("hostile", "cards")
    tool("hostile", "structured")
    tool("hostile", "fault")
    at_once([("tool.call", dict(server="hostile", tool="cards", arguments={}, raw=True))] * 4)
    if not more(): break
""",
        servers=("hostile",),
    ),
    Attack(
        "64 calls in flight, all the time",
        """
while True:
    calls("good", "noop", scaled(640))
    calls("local", "audit", scaled(640), step="s" * 1000)
    if not more(): break
""",
    ),
    Attack(
        "as many small values as a frame holds",
        """
wide = [[n] for n in range(VALUES // 3)]
keys = {f"k{n}": n for n in range(VALUES // 3)}
while True:
    tool("good", "noop", wide=wide)
    tool("schema", "work", **keys)
    tool("local", "audit", step=wide)
    ask("memory.save", key="wide", value=keys)
    ask("program.start", program=program("p", step("a", "1")), context=keys)
    if not more(): break
""",
        servers=("schema",),
    ),
    Attack(
        "deep nesting",
        """
deep = 0
for _ in range(40): deep = {"a": [deep, deep]} if _ < 12 else {"a": deep}
while True:
    tool("good", "noop", deep=deep)
    tool("hostile", "deep")
    tool("local", "audit", step=deep)
    ask("program.validate", program=deep)
    ask("program.start", program=program("p", step("a", "$d")), context={"d": deep})
    if not more(): break
""",
        servers=("hostile",),
    ),
    Attack(
        "frames nested 100,000 deep",
        """
raw(b'{"jsonrpc":"2.0","id":7,"method":"tool.call","params":' + b'{"a":' * 100_000 + b"0" + b"}" * 100_000 + b"}\\n")
while True: time.sleep(1)
""",
        ends=frozenset({"protocol_error"}),
    ),
    Attack(
        "a frame of more values than it may hold",
        """
raw(frame(id=7, method="program.validate", params={"program": [0] * (jsonrpc.MAX_VALUES * 2)}))
while True: time.sleep(1)
""",
        ends=frozenset({"protocol_error"}),
    ),
    Attack(
        "a frame that never ends",
        "while True: raw(b'x' * 65536)",
        ends=frozenset({"protocol_error", "timeout"}),
    ),
    Attack(
        "requests that are taken back at once",
        """
while True:
    for _ in range(scaled(500)):
        number = send("tool.call", dict(server="good", tool="noop", arguments={"a": "x" * 1000}), note)
        CHANNEL.forget(number)
        TALLY["taken back"] += 1
    if not more(): break
""",
        ends=STOPPED | {"call_limit"},
    ),
    Attack(
        "notifications without end",
        """
some = frame(method="progress.report", params={"done": 1, "message": "m" * 400}) * 50
some += frame(method="request.cancel", params={"id": 5}) * 50 + frame(method="call.taken", params={"call": "0#1"}) * 50
while True:
    for _ in range(100): raw(some)
    TALLY["sent"] += 100
    if not more(): break
""",
    ),
    # What is kept.
    Attack(
        "a memory of 4 MB, read again and again",
        """
ask("memory.save", key="big", value="m" * scaled(4_000_000))
while True:
    at_once([("memory.load", {"key": "big"})] * 8)
    if not more(): break
""",
    ),
    Attack(
        "memories up to the limit and over it",
        """
number = 0
while True:
    for _ in range(scaled(40)):
        ask("memory.save", key=f"k{number % 1200}", value="m" * scaled(3_900_000))
        number += 1
    ask("memory.list", prefix="k")
    ask("memory.save", key="k0", value={str(number): "m" * 1000}, update=True)
    if not more(): break
""",
    ),
    Attack(
        "artifacts up to the limit and over it",
        """
import base64
part = base64.b64encode(os.urandom(3 << 20)).decode()
while True:
    for number in range(scaled(30)):
        ask("artifact.write", name=f"a{number}", base64=part, first=True, last=True)
    for number in range(scaled(2000)):
        ask("artifact.write", name=f"s{number}", base64="AAAA", first=True, last=True)
    if not more(): break
""",
    ),
    Attack(
        "printing at full speed",
        "while True: sys.stdout.write('p' * 100_000)",
        ends=frozenset({"output_limit", "timeout"}),
    ),
    Attack(
        "displays without end",
        "while True: raw(frame(method='output.display', params={'data': {'text/plain': 'd' * 100_000}}) * 10)",
        ends=frozenset({"output_limit", "timeout"}),
    ),
    Attack(
        "an exception of 100 MB",
        "raise ValueError('card ' + cards(scaled(100 << 20)))",
        ends=frozenset({"error", "out_of_memory", "timeout"}),
    ),
    # Looking things up.
    Attack(
        "searches with huge queries",
        """
while True:
    at_once([("catalog.search", {"query": "tool echo noop work page schema " * 30, "limit": 100})] * 64)
    at_once([("catalog.search", {"query": "\\\" OR * NEAR( -a:b ^" * 20, "strict": True})] * 16)
    at_once([("catalog.servers", {})] * 64)
    if not more(): break
at_once([("catalog.search", {"query": "q " * scaled(2 << 20)})] * 4)
""",
        servers=("hostile", "schema", "thousands"),
        ends=STOPPED | {"protocol_error"},
    ),
    Attack(
        "secrets guessed, ten thousand at a time",
        """
number = 0
while True:
    guesses = " ".join(f"{n % 1_000_000:06d}" for n in range(number, number + 10_000))
    tool("good", "noop", guess=guesses)
    tool("local", "audit", step=guesses)
    tool("hostile", "echo", guess=guesses)
    number += 10_000
    if not more(): break
""",
        servers=("hostile",),
    ),
    Attack(
        "texts that are hard on patterns",
        """
size = scaled(2 << 20)
hard = [
    "4" * size, "4 " * (size // 2), "4-" * (size // 2), "eyJ" * (size // 3), ("eyJ" + "a" * 60 + ".") * (size // 64),
    "-----BEGIN PRIVATE KEY-----" * (size // 27), "DE" * (size // 2), "DE00 " * (size // 5), "sk-" * (size // 3),
    "vault://ref/" * (size // 12), "\\\\u0034" * (size // 6), "%34" * (size // 3),
]
while True:
    for text in hard:
        tool("good", "noop", text=text)
        tool("hostile", "echo", text=text)
        ask("memory.save", key="hard", value=text)
    if not more(): break
""",
        servers=("hostile",),
    ),
    Attack(
        "a regular expression that never ends",
        "import re\nre.match('(a+)+$', 'a' * 64 + 'b')",
        ends=frozenset({"timeout"}),
    ),
    # Hostile servers.
    Attack(
        "a listing that never ends",
        """
while True:
    ask("catalog.tools", server="pages")
    tool("pages", "page_0")
    ask("catalog.describe", name="pages")
    if not more(): break
""",
        servers=("pages",),
    ),
    Attack(
        "a schema of 1.8 MB",
        """
while True:
    tool("schema", "work", p00000="x", p00001=list(range(90)))
    ask("catalog.tools", server="schema")
    ask("catalog.describe", name="schema.work")
    ask("catalog.describe", name="schema.work", detail="schema")
    calls("schema", "work", 8, p00002="x")
    if not more(): break
""",
        servers=("schema",),
    ),
    Attack(
        "a schema of 100,000 properties",
        """
while True:
    tool("properties", "work", property_1="x")
    ask("catalog.tools", server="properties")
    ask("catalog.describe", name="properties.work")
    ask("catalog.describe", name="properties.work", detail="schema")
    calls("properties", "work", 8, **{f"property_{n}": "x" for n in range(scaled(10_000))})
    if not more(): break
""",
        servers=("properties",),
    ),
    Attack(
        "5,000 tools",
        """
while True:
    tool("thousands", "tool_1", p1="x")
    ask("catalog.tools", server="thousands")
    at_once([("catalog.describe", {"name": "thousands", "detail": "schema"})] * 4)
    at_once([("catalog.describe", {"name": "thousands"})] * 4)
    at_once([("catalog.describe", {"name": f"thousands.TOOL_{n}"}) for n in range(64)])
    at_once([("tool.call", dict(server="thousands", tool=f"nothing_{n}", arguments={})) for n in range(64)])
    if not more(): break
""",
        servers=("thousands",),
    ),
    Attack(
        "a listing that changes all the time",
        """
while True:
    calls("shifting", "shift", 8)
    calls("shifting", "nothing", 8)
    ask("catalog.tools", server="shifting")
    ask("catalog.search", query="t1 shift")
    if not more(): break
""",
        servers=("shifting",),
    ),
    Attack(
        "floods of notifications from a server",
        """
while True:
    for name in ("progress", "logs", "changes", "resources"): tool("hostile", name)
    if not more(): break
""",
        servers=("hostile",),
    ),
    Attack(
        "floods of questions and strange answers from a server",
        """
while True:
    for name in ("questions", "strangers", "drip"): tool("hostile", name)
    if not more(): break
""",
        servers=("hostile",),
    ),
    Attack(
        "floods of what is no protocol",
        """
while True:
    for name in ("malformed", "stderr", "oversized", "blocks", "deep"): tool("hostile", name)
    tool("babbling", "echo", a=1)
    if not more(): break
""",
        servers=("hostile", "babbling"),
    ),
    Attack(
        "a server that hangs",
        """
while True:
    calls("hostile", "hang", 8)
    if not more(): break
""",
        servers=("hostile",),
    ),
    Attack(
        "a server that dies and comes back",
        """
while True:
    for _ in range(4): tool("dying", "echo", a=1)
    calls("dying", "echo", 8)
    tool("hostile", "die")
    if not more(): break
""",
        servers=("hostile", "dying"),
    ),
    Attack(
        "answers deeper than any stack",
        """
while True:
    tool("hostile", "bottomless")
    tool("hostile", "echo", a=1)
    if not more(): break
""",
        servers=("hostile",),
    ),
)

ATTACKS: Mapping[str, Attack] = {attack.name: attack for attack in _ATTACKS}
"""By name."""
