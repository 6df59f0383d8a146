"""Secrets are resolved on the host, for one tool, at its call: nothing else ever holds them.

The bytes are searched: of every frame to and from the container, of what the script can read of its own memory, of
the answer, of the database with its log of writes, and of the logs; in plain text and in every encoding that is
claimed. (Not claimed: what a tool has reversed, compressed, encrypted or cut into pieces.)
"""

import base64
import hashlib
import html
import json
import logging
import sys
import urllib.parse
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from execution_fixtures import lines, printed
from kept_files import kept_files
from ledger_fixtures import plaintext
from mcp_clients import WAYS, connected

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.channel import HostChannel
from mcp_bridge.host.frame_writer import FrameWriter
from mcp_bridge.kernel.events import Resume
from mcp_bridge.ledger.storage.schema import FILE_NAME

SECRETS = {
    "api-key": 'pä"ss/wo+rd%41&<x>\\_Zq9!kQ7t',
    "db": "correct-horse-battery-91827",
}
"""By id. The first is of the environment, and looks different in every encoding; the second is in the file."""


def forms(text):
    """The bytes that a text is written as: plain, and in each encoding that is claimed."""
    data = text.encode()
    found = {data, data.hex().encode(), data.hex().upper().encode()}
    for offset in range(3):
        # Without the characters that hold bits of what stands before and after.
        whole = base64.b64encode(bytes(offset) + data + bytes(3))
        core = whole[-(-8 * offset // 6) : (offset + len(data)) * 8 // 6]
        found |= {core, core.replace(b"+", b"-").replace(b"/", b"_")}
    quoted = {urllib.parse.quote(text, safe=""), urllib.parse.quote(text), urllib.parse.quote_plus(text)}
    escaped = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1], html.escape(text)}
    twice = {json.dumps(each)[1:-1] for each in quoted | escaped}
    return found | {each.encode() for each in quoted | escaped | twice}


FORMS = {name: forms(text) for name, text in SECRETS.items()}


def leaks(data):
    """Ids of the secrets that are in some bytes or text."""
    data = data if isinstance(data, bytes) else data.encode()
    return sorted(name for name, found in FORMS.items() if any(form in data for form in found))


def test_the_search_finds_every_form():
    for name, text in SECRETS.items():
        for form in forms(text):
            assert leaks(b"before" + form + b"after") == [name]
        assert len(forms(text)) >= 6
    assert leaks("nothing of that kind: correct-horse-battery") == []


TOOLS = """
import base64, json, pathlib, urllib.parse
import mcp_bridge

@mcp_bridge.tool
def received(text: str) -> bool:
    import hashlib
    return hashlib.sha256(text.encode()).hexdigest()

@mcp_bridge.tool
def echo(value: object):
    return value

@mcp_bridge.tool
def encoded(text: str):
    data = text.encode()
    plain = [text, text * 3, f"Bearer {{text}}!", repr(text), json.dumps(text), json.dumps({{text: [text]}})]
    b64 = [base64.b64encode(b"x" * n + data + b"y" * m).decode() for n in range(4) for m in range(4)]
    b64 += [base64.urlsafe_b64encode(b"x" * n + data).decode().rstrip("=") for n in range(4)]
    b64 += [base64.encodebytes(b"x" * 50 + data * 3).decode()]
    hexa = [data.hex(), data.hex().upper(), "0x" + (b"a" + data + b"b").hex()]
    urls = [urllib.parse.quote(text), urllib.parse.quote(text, safe=""), urllib.parse.quote_plus(text)]
    urls += ["https://x/?" + urllib.parse.urlencode({{"key": text}})]
    both = [json.dumps(each) for each in b64 + urls] + [base64.b64encode(json.dumps(text).encode()).decode()]
    return {{"plain": plain, "b64": b64, "hex": hexa, "urls": urls, "both": both, text: {{"key": {{text: 1}}}}}}

@mcp_bridge.tool
def boom(text: str) -> str:
    try:
        raise KeyError(text)
    except KeyError as exc:
        raise ValueError(f"can't use {{text!r}}") from exc

@mcp_bridge.tool
def odd(text: str):
    return {{text}}

@mcp_bridge.tool
def number(text: str) -> int:
    return text

@mcp_bridge.tool
def pay(text: str) -> str:
    return f"paid with {{text}}"

@mcp_bridge.tool
def later(text: str):
    return mcp_bridge.PENDING

@mcp_bridge.tool
def stranger(text: object) -> object:
    return text

@mcp_bridge.tool
def customer() -> list[str]:
    return pathlib.Path({customer!r}).read_text().splitlines()

@mcp_bridge.tool
def order() -> str:
    return '{{"card": 4111111111111111, "total": 61}}'

@mcp_bridge.tool
def is_paid(card: int) -> bool:
    return card == 4111111111111111

@mcp_bridge.tool
def is_customers(text: str) -> bool:
    return text in pathlib.Path({customer!r}).read_text().splitlines()
"""

SERVER = """
import json, os, sys
TEXT = {"type": "object", "properties": {"text": {}}}
NAMES = ["echo", "structured", "image", "refuse", "fault", "stderr", "die", "malformed", "garbage", "rename", "stranger"]
tools = [{"name": name, "description": f"The tool {name}.", "inputSchema": TEXT} for name in NAMES]
renamed = []

def say(message):
    sys.stdout.write(json.dumps(message) + chr(10))
    sys.stdout.flush()

def text(value, **more):
    return {"content": [{"type": "text", "text": value}], **more}

def call(name, value):
    shown = value if isinstance(value, str) else json.dumps(value)
    if name == "structured": return text(shown, structuredContent={"value": value, shown: [shown]})
    if name == "image": return {"content": [{"type": "image", "mimeType": "image/png", "data": __import__("base64").b64encode(b"PNG" + shown.encode()).decode()}]}
    if name == "refuse": return text(f"not with {shown}", isError=True)
    if name == "fault": raise ValueError(f"no {shown}")
    if name == "stderr": print("got", shown, file=sys.stderr, flush=True)
    if name == "die":
        print("dying of", shown, file=sys.stderr, flush=True)
        os._exit(7)
    if name == "malformed": return {"content": shown}
    if name == "garbage": print("debug:", shown, flush=True)
    if name == "rename":
        renamed.append({"name": "renamed", "description": f"As told: {shown}", "inputSchema": {**TEXT, "title": shown}})
        say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "error", "data": shown}})
    return text(shown)

for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    if "id" not in message: continue
    body = {"error": {"code": -32601, "message": "Method not found"}}
    if method == "initialize":
        info = {"name": "mirror", "version": "1"}
        capabilities = {"tools": {"listChanged": True}, "logging": {}}
        body = {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
    elif method == "tools/list":
        body = {"result": {"tools": tools + renamed}}
    elif method == "tools/call":
        try:
            body = {"result": call(params["name"], params.get("arguments", {}).get("text"))}
        except ValueError as exc:
            body = {"error": {"code": -32000, "message": str(exc), "data": {"with": str(exc)}}}
    say({"jsonrpc": "2.0", "id": message["id"], **body})
"""

POLICY = {"rules": [{"tools": ["local.pay"], "effect": "approve"}]}


@dataclass
class Watched:
    """A bridge, and everything that has passed between it and its sandboxes."""

    bridge: object
    governance: object
    state_dir: object
    frames: list[bytes] = field(default_factory=list)

    def stored(self):
        """All bytes in the state directory, but for the secrets' own file; what is encrypted, opened, too."""
        files = kept_files(self.state_dir)
        opened = plaintext(self.state_dir / FILE_NAME)
        assert b'"arguments"' in opened
        return b"\n".join([opened, *(data for path, data in files.items() if path.name != "secrets.json")])


@asynccontextmanager
async def watched(sandboxes, folder, monkeypatch, *, policy=None, projection=None):
    (folder / "server.py").write_text(SERVER)
    (folder / "tools").mkdir()
    (folder / "tools" / f"mirror_{uuid.uuid4().hex}.py").write_text(TOOLS.format(customer=str(folder / "customer.txt")))
    names = ["echo", "encoded", "boom", "odd", "number", "pay", "later", "received"]
    granted = [f"local.{name}" for name in names] + [f"mirror.{name}" for name in (
        "echo", "structured", "image", "refuse", "fault", "stderr", "die", "malformed", "garbage", "rename")]  # fmt: skip
    tables = {
        "tools": {"path": ["tools"], "entry_points": False},
        "policy": POLICY if policy is None else policy,
        "secrets": {
            "api-key": {"env": "MIRROR_API_KEY", "tools": granted},
            "db": {"file": True, "tools": granted},
            "gone": {"env": "MIRROR_NOT_SET", "tools": granted},
        },
        "projection": projection or {},
        "model": {"provider": "scripted", "default_answer": "as you say"},
    }
    monkeypatch.setenv("MIRROR_API_KEY", SECRETS["api-key"])
    state_dir = folder / "state"
    governance = load_governance(tables, None, folder, state_dir)
    governance.vault.set("db", SECRETS["db"])
    spec = ServerSpec(name="mirror", command=sys.executable, args=(str(folder / "server.py"),))
    async with sandboxes.open(spec, governance=governance, state_dir=state_dir) as bridge:
        seen = Watched(bridge, governance, state_dir)
        post, take = FrameWriter.post, HostChannel._take

        def tapped_post(self, data, *arguments, **more):
            seen.frames.append(data)
            post(self, data, *arguments, **more)

        async def tapped_take(self, line, tasks):
            seen.frames.append(line)
            return await take(self, line, tasks)

        monkeypatch.setattr(FrameWriter, "post", tapped_post)
        monkeypatch.setattr(HostChannel, "_take", tapped_take)
        yield seen
        await bridge.programs.recorder.append()


USES = """
import asyncio, json, os, sys, traceback
from mcp import programs, runtime, sync, MCPError, traces
from mcp.servers import local, mirror
KEYS = ["vault://secret/api-key", "vault://secret/db"]
LOCAL = ["echo", "encoded", "boom", "odd", "number", "received"]
MIRROR = ["echo", "structured", "image", "refuse", "fault", "stderr", "malformed", "garbage", "rename", "die", "echo"]

async def tried(pending):
    try:
        result = await pending
        print(result)
    except MCPError as exc:
        print(exc.code, exc, exc.details)
        traceback.print_exc()
        result = [exc.code, str(exc), exc.details]
    return result

for key in KEYS:
    for text in (key, f"Bearer {key} and more"):
        for name in LOCAL:
            argument = "value" if name == "echo" else "text"
            await tried(local[name](**{argument: text}))
            await tried(local[name].raw(**{argument: text}))
        await tried(local.echo(value={"deep": [{"in": text}], "list": [text]}))
    for name in MIRROR:
        await tried(mirror[name](text=key))
        await tried(mirror[name].raw(text={"deep": [key, {"in": key}]}))
        if name == "rename":
            await asyncio.sleep(0.3)
            for described in ("mirror", "mirror.renamed"):
                for detail in ("line", "signature", "schema"):
                    await tried(runtime.describe(described, detail))
            print(await tried(runtime.search("as told renamed")), await tried(runtime.list_tools("mirror")))
            print("RENAMED" if "renamed" in str(await runtime.list_tools("mirror")) else "")
print(runtime.list_loaded_server_metadata())
await tried(runtime.describe("mirror"))

def tool(name, text="$key", **more):
    argument = "value" if name == "local.echo" else "text"
    return {"id": name.replace(".", "_"), "type": "tool", "tool": name, "args": {argument: text}, "on_error": "skip", **more}

for key in KEYS:
    steps = [tool("local." + name) for name in LOCAL]
    steps += [tool("mirror." + name) for name in MIRROR[:-2]]
    steps += [
        {"id": "fan", "type": "parallel", "parallel_steps": [tool("local.encoded", id="e1"), tool("local.boom", id="e2")], "on_error": "skip"},
        {"id": "each", "type": "map", "over": [key, "x " + key], "step": tool("local.encoded", "$item")},
        {"id": "ask", "type": "llm", "prompt": "Is $local_echo good, and $key? $e1"},
        tool("local.pay"),
        tool("local.echo", "$local_encoded", id="last"),
    ]
    trace = await programs.run({"steps": steps}, {"key": key}, idempotency_key=key)
    print(trace, trace.waiting, [step.output for step in trace.steps])
    trace = await programs.run({"steps": [tool("local.later"), tool("local.boom", "$__webhook__ $key", on_error="fail")]}, {"key": key})
    print(await programs.resume(trace.trace_id, {"told": key}), await traces.get(trace.trace_id))
    failing = {"steps": [tool("local.echo", compensate={"tool": "local.boom", "args": {"text": "$local_echo and $key"}}), tool("local.boom", on_error="fail")]}
    print(await programs.run(failing, {"key": key}))
display({"text/plain": str(KEYS)})
"""

USES_IN_JAVASCRIPT = """
import { local, mirror } from "mcp/servers";
import { MCPError } from "mcp";
import util from "node:util";
const KEYS = ["vault://secret/api-key", "vault://secret/db"];
const LOCAL = ["echo", "encoded", "boom", "odd", "number", "received"];
const MIRROR = ["echo", "structured", "image", "refuse", "fault", "stderr", "malformed", "garbage", "rename", "die", "echo"];

async function tried(pending) {
  try {
    const result = await pending;
    console.log(result);
    return result;
  } catch (error) {
    if (!(error instanceof MCPError)) throw error;
    console.log(error.code, error.message, error.details, error);
    console.error(error.stack);
    return [error.code, error.message, error.details];
  }
}

for (const key of KEYS) {
  for (const text of [key, `Bearer ${key} and more`]) {
    for (const name of LOCAL) {
      const given = { [name === "echo" ? "value" : "text"]: text };
      await tried(local[name](given));
      await tried(local[name].raw(given));
    }
    await tried(local.echo({ value: { deep: [{ in: text }], list: [text] } }));
  }
  for (const name of MIRROR) {
    await tried(mirror[name]({ text: key }));
    await tried(mirror[name].raw({ text: { deep: [key, { in: key }] } }));
    if (name !== "rename") continue;
    await new Promise((done) => setTimeout(done, 300));
    for (const described of ["mirror", "mirror.renamed"]) {
      for (const detail of ["line", "signature", "schema"]) await tried(runtime.describe(described, detail));
    }
    console.log(await tried(runtime.search("as told renamed")), await tried(runtime.list_tools("mirror")));
    console.log(util.inspect(await runtime.list_tools("mirror")).includes("renamed") ? "RENAMED" : "");
  }
}
await tried(runtime.describe("mirror"));
display(String(KEYS));
"""

SCAN_IN_JAVASCRIPT = """
import fs from "node:fs";
import { createHash } from "node:crypto";
// As below; each part of the memory is read once, with some of the part before it.
const OVERLAP = 4096;
const buffer = Buffer.alloc(4 << 20);
const memory = fs.openSync("/proc/self/mem", "r");
const scanned = WANTED.map(() => 0);
const infixes = WANTED.map(([infix]) => Buffer.from(infix, "hex"));
for (const line of fs.readFileSync("/proc/self/maps", "utf8").split("\\n")) {
  const [span, mode] = line.split(" ");
  if (!mode?.includes("r") || line.includes("[v")) continue;
  const [start, end] = span.split("-").map((each) => Number.parseInt(each, 16));
  for (let at = start; at < end; at += buffer.length - OVERLAP) {
    let read;
    try { read = fs.readSync(memory, buffer, 0, Math.min(buffer.length, end - at), at) } catch { break }
    const data = buffer.subarray(0, read);
    infixes.forEach((infix, index) => {
      const [, before, size, digest] = WANTED[index];
      for (let found = data.indexOf(infix); found >= 0; found = data.indexOf(infix, found + 1)) {
        if (found < before) continue;
        const whole = createHash("sha256").update(data.subarray(found - before, found - before + size)).digest("hex");
        if (whole === digest) scanned[index]++;
      }
    });
  }
}
const inside = [process.env, process.argv];
for (const pid of fs.readdirSync("/proc").filter((each) => /^\\d+$/.test(each))) {
  for (const name of ["cmdline", "environ"]) {
    try { inside.push(fs.readFileSync(`/proc/${pid}/${name}`, "utf8")) } catch {}
  }
}
console.log(JSON.stringify(inside));
console.log("SCANNED", JSON.stringify(scanned));
"""

SCAN = """
import gc, hashlib, re
def scan(infix, before, size, digest):
    # The infix alone is in this script; a secret is where what is around it has its digest.
    found = 0
    for line in open("/proc/self/maps"):
        span, mode = line.split()[:2]
        if "r" not in mode or "[v" in line: continue
        start, end = (int(each, 16) for each in span.split("-"))
        try:
            with open("/proc/self/mem", "rb", 0) as memory:
                memory.seek(start)
                data = memory.read(end - start)
        except (OSError, ValueError, OverflowError): continue
        at = data.find(infix)
        while at >= 0:
            found += hashlib.sha256(data[at - before : at - before + size]).hexdigest() == digest
            at = data.find(infix, at + 1)
        del data
    return found

def inside():
    shown = [dict(os.environ), sys.argv]
    for pid in [each for each in os.listdir("/proc") if each.isdigit()]:
        for name in ("cmdline", "environ"):
            try: shown.append(open(f"/proc/{pid}/{name}", "rb").read().decode(errors="replace"))
            except OSError: pass
    return shown
print(json.dumps(inside()))
print("SCANNED", json.dumps([scan(bytes.fromhex(infix), before, size, digest) for infix, before, size, digest in WANTED]))
"""


def wanted(texts):
    """What `SCAN` looks for: a piece of each form, and what tells the whole of it."""
    rows = []
    for text in texts:
        for form in sorted(text if isinstance(text, set) else {text}):
            before = len(form) // 3
            piece = form[before : before + max(6, len(form) // 3)]
            rows.append([piece.hex(), before, len(form), hashlib.sha256(form).hexdigest()])
    return rows


async def test_a_secret_is_in_no_byte_that_leaves_the_host(bilingual, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    canary = f"canary-{uuid.uuid4().hex}".encode()
    targets = wanted([canary, *FORMS.values()])
    parts = [json.dumps(part.decode()) for part in (canary[:12], canary[12:])]
    language = bilingual.language
    uses = {"python": USES, "javascript": USES_IN_JAVASCRIPT}[language]
    code = {
        "python": f"CANARY = {parts[0]} + {parts[1]}\nWANTED = {targets!r}\n{USES}{SCAN}",
        "javascript": f"globalThis.CANARY = Buffer.from({parts[0]} + {parts[1]});\nconst WANTED = {json.dumps(targets)};\n"
        + USES_IN_JAVASCRIPT
        + SCAN_IN_JAVASCRIPT,
    }[language]
    async with watched(bilingual.sandboxes, tmp_path, monkeypatch) as seen:
        record = await seen.bridge.run(code, timeout=60, language=language)
        out = lines(record)
        scanned = json.loads(out[-1].removeprefix("SCANNED "))
        assert scanned[0] > 0, "the scan doesn't find what is there"
        assert scanned[1:] == [0] * (len(targets) - 1)
        assert "vault://secret/api-key" in record.stdout.decode()
        assert "RENAMED" in out
        assert leaks(json.dumps(record.to_json(), ensure_ascii=False)) == []
        assert leaks(record.stdout + record.stderr) == []
        for name in ("pay", "later"):
            waits = {
                "python": f"from mcp.servers import local\nawait local.{name}(text='vault://secret/api-key')",
                "javascript": f"await mcp.servers.local.{name}({{text: 'vault://secret/api-key'}})",
            }[language]
            record = await seen.bridge.run(waits, timeout=60, language=language)
            assert record.status == "suspended", record.error
            assert leaks(json.dumps(record.to_json(), ensure_ascii=False)) == []
        assert len(seen.frames) > 200
        assert [frame[:300] for frame in seen.frames if leaks(frame)] == []
        program = {"steps": [{"id": "a", "type": "tool", "tool": "encoded", "args": {"text": "vault://secret/db"}}]}
        fails = {"python": "raise ValueError(local.echo)", "javascript": "throw new Error(String(local.echo))"}[
            language
        ]
        for how in WAYS:
            async with connected(how, seen.bridge, programs=True) as client:
                answers = [
                    await client.call_tool(f"run_{language}", {"code": uses}),
                    await client.call_tool(f"run_{language}", {"code": f"{uses}\n{fails}"}),
                    await client.call_tool("run_program", {"program": program}),
                ]
            for answer in answers:
                assert leaks(answer.model_dump_json()) == []
        waiting = await seen.bridge.programs.store.approvals(open_only=True)
        assert waiting
        assert leaks(repr(waiting)) == []
        while_open = seen.stored()
        assert leaks(while_open) == []
    assert leaks(seen.stored()) == []
    told = [
        each for each in caplog.records if leaks(f"{each.getMessage()} {each.args!r} {caplog.handler.format(each)}")
    ]
    assert sorted({(each.name, each.levelname, each.msg) for each in told}) == []


# --- whom a secret goes to ---

REFUSED = {
    "the whole of a text": "key",
    "the middle of a text": "'Bearer ' + key + '!'",
    "two in a text": "key + key",
    "a value inside": "{'deep': [{'in': key}]}",
    "an item": "[1, [key]]",
}
NAMED_ONLY = {
    "a name of an object": "{key: 1}",
    "a name inside": "{'deep': [{key: 'x'}]}",
    "in capitals": "key.upper()",
    "escaped": "key.replace(':', '%3A')",
    "without its scheme": "key.removeprefix('vault://')",
    "with a blank": "key.replace('secret/', 'secret/ ')",
    "another kind": "key.replace('secret/', 'secrets/')",
}
"""References that are none for anybody, the tool that is granted the secret included."""


@pytest.mark.parametrize("key", ["vault://secret/api-key", "vault://secret/db"])
async def test_a_secret_goes_to_no_tool_that_is_not_granted_it(bilingual, tmp_path, monkeypatch, key):
    code = {
        "python": f"""
import json
from mcp import programs, MCPError
from mcp.servers import local, mirror
key, found = {key!r}, []
for value in ({", ".join(REFUSED.values())}):
    for call in (local.stranger, mirror.stranger, local.stranger.raw, mirror.stranger.raw):
        try: found.append(await call(text=value))
        except MCPError as exc: found.append([exc.code, str(exc)])
    for tool in ("stranger", "mirror.stranger"):
        steps = [{{"id": "a", "type": "tool", "tool": tool, "args": {{"text": "$value"}}}}]
        trace = await programs.run({{"steps": steps}}, {{"value": value}})
        found.append([trace.steps[0].code, trace.steps[0].error])
        trace = await programs.run({{"steps": [steps[0] | {{"args": {{"text": value}}}}]}})
        found.append([trace.steps[0].code, trace.steps[0].error])
print(json.dumps(found))
""",
        # In JavaScript there are no programs.
        "javascript": f"""
const {{ local, mirror }} = mcp.servers;
const key = {key!r}, found = [];
for (const value of [key, `Bearer ${{key}}!`, key + key, {{ deep: [{{ in: key }}] }}, [1, [key]]]) {{
  for (const call of [local.stranger, mirror.stranger, local.stranger.raw, mirror.stranger.raw]) {{
    try {{ found.push(await call({{ text: value }})) }} catch (error) {{ found.push([error.code, error.message]) }}
  }}
}}
console.log(JSON.stringify(found));
""",
    }[bilingual.language]
    async with watched(bilingual.sandboxes, tmp_path, monkeypatch) as seen:
        told = json.loads(printed(await seen.bridge.run(code, language=bilingual.language)))
        name = key.rpartition("/")[2]
        assert {code for code, _ in told} == {"secret_denied"}
        assert {message for _, message in told} == {
            f"The tool {server}.stranger may not receive the secret {name!r}." for server in ("local", "mirror")
        }
        assert [frame for frame in seen.frames if leaks(frame)] == []


async def test_what_only_looks_like_a_reference_is_none(sandboxes, tmp_path, monkeypatch):
    async with watched(sandboxes, tmp_path, monkeypatch) as seen:
        record = await seen.bridge.run(f"""
import hashlib
from mcp.servers import local
key = "vault://secret/db"
for value in ({", ".join(NAMED_ONLY.values())}):
    print(await local.echo(value=value) == value, await local.stranger(text=value) == value)
print(await local.received(text=key), await local.received(text="a " + key + " b"))
""")
        *same, received = lines(record)
        assert same == ["True True"] * len(NAMED_ONLY)
        plain = SECRETS["db"]
        assert received.split() == [hashlib.sha256(text.encode()).hexdigest() for text in (plain, f"a {plain} b")]


async def test_a_secret_that_is_missing_or_unknown_says_so_and_calls_nothing(bilingual, tmp_path, monkeypatch):
    code = {
        "python": """
from mcp import programs, MCPError
from mcp.servers import local
for key in ("vault://secret/gone", "vault://secret/nobody-knows"):
    try: print(await local.echo(value=key))
    except MCPError as exc: print(exc.code, exc)
    trace = await programs.run({"steps": [{"id": "a", "type": "tool", "tool": "echo", "args": {"value": key}}]})
    print(trace.steps[0].code, trace.steps[0].error)
""",
        "javascript": """
for (const key of ["vault://secret/gone", "vault://secret/nobody-knows"]) {
  for (const call of [mcp.servers.local.echo, mcp.servers.local.echo.raw]) {
    try { console.log(await call({ value: key })) } catch (error) { console.log(error.code, error.message) }
  }
}
""",
    }[bilingual.language]
    async with watched(bilingual.sandboxes, tmp_path, monkeypatch) as seen:
        record = await seen.bridge.run(code, language=bilingual.language)
        for name, told in zip(("gone", "gone", "nobody-knows", "nobody-knows"), lines(record), strict=True):
            assert told == f"secret_missing There is no secret {name!r} that the tool local.echo could be given."
        assert "MIRROR_NOT_SET" not in record.stdout.decode()


CARD = "4111 1111 1111 1111"
MAIL = "anna.berg@example.org"
PATTERNS = {"patterns": ["card", "email"]}


async def test_a_sensitive_value_is_a_reference_everywhere_but_at_a_tool(sandboxes, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    (tmp_path / "customer.txt").write_text(f"{CARD}\n{MAIL}\n")
    async with watched(sandboxes, tmp_path, monkeypatch, policy={}, projection=PATTERNS) as seen:
        record = await seen.bridge.run("""
from mcp import programs
from mcp.servers import local
print(await local.customer(), await local.is_customers(text=(await local.customer())[0]))
order = await local.order()
print(order["total"], order["card"][:12], await local.is_paid(card=order["card"]))
steps = [
    {"id": "order", "type": "tool", "tool": "order", "parse": "json"},
    {"id": "paid", "type": "tool", "tool": "is_paid", "args": {"card": "$order.card"}},
    {"id": "is_paid", "type": "condition", "condition": "$paid and $order.total == 61", "then": "customer"},
    {"id": "customer", "type": "tool", "tool": "customer"},
    {"id": "same", "type": "condition", "condition": "'vault://ref/' in '$customer.0'", "then": "ask"},
    {"id": "ask", "type": "approval", "message": "Take $customer.0 of $customer.1?", "details": "$customer", "otherwise": "ask"},
    {"id": "wait", "type": "wait", "event": "go"},
    {"id": "right", "type": "tool", "tool": "is_customers", "args": {"text": "$customer.0"}},
]
steps[3]["next_step"] = "same"
steps[5]["next_step"] = "wait"
trace = await programs.run({"steps": steps})
print(trace.status, trace.trace_id)
""")
        first, in_text, second = lines(record)
        assert first.count("vault://ref/") == 2
        assert first.endswith(" True")
        assert in_text == "61 vault://ref/ True"
        status, trace = second.split()
        assert status == "suspended"
        (asked,) = await seen.bridge.programs.store.approvals(trace)
        assert CARD not in repr(asked)
        assert "vault://ref/" in asked.question["message"]
        assert await seen.bridge.programs.store.decide(asked, {"approved": True, "by": "anna"})
        assert (await seen.bridge.resume_execution(trace))["status"] == "suspended"
        ended = await seen.bridge.resume_execution(trace, Resume({"card": CARD}))
        assert (ended["status"], ended["output"]) == ("success", True)
        for data in (*seen.frames, json.dumps(ended).encode(), json.dumps(record.to_json()).encode()):
            assert CARD.encode() not in data
            assert CARD.replace(" ", "").encode() not in data
            assert MAIL.encode() not in data
        entries = await seen.bridge.programs.recorder.read(trace)
        assert CARD not in repr(entries)
        stored = await seen.bridge.programs.store.execution(trace)
        assert CARD not in repr(stored)
    assert CARD not in caplog.text
    assert MAIL not in caplog.text


async def test_what_an_agent_passes_in_is_not_shown_to_those_who_decide(sandboxes, tmp_path, monkeypatch):
    async with watched(sandboxes, tmp_path, monkeypatch) as seen:
        step = {"id": "a", "type": "tool", "tool": "pay", "args": {"text": CARD}}
        asked = {"id": "a", "type": "approval", "message": f"Take {CARD}?", "details": {"card": CARD}}
        for program in ({"steps": [step]}, {"steps": [asked]}, {"steps": [{**step, "args": {"text": "$card"}}]}):
            record = await seen.bridge.run_program(program, {"card": CARD})
            assert record["status"] == "suspended"
            (approval,) = await seen.bridge.programs.store.approvals(record["trace_id"])
            assert CARD not in repr(approval)
            assert CARD not in repr(await seen.bridge.programs.recorder.read(record["trace_id"]))
