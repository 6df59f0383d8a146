"""Hostile scripts in JavaScript: each ends itself alone, with a true status, and gets nothing that Python's wouldn't."""

import anyio
import pytest
from execution_fixtures import lines
from servers.specs import faulty

pytestmark = pytest.mark.usefixtures("no_internal_errors")

STAY = "await new Promise((done) => setTimeout(done, 60_000));"
SEND = """
const fs = require("node:fs");
const send = (message) => fs.writeSync(4, typeof message === "string" || Buffer.isBuffer(message)
  ? message : JSON.stringify({ jsonrpc: "2.0", ...message }) + "\\n");
"""

# Those that any guest may send are in `test_hostile.py`.
FRAMES = {
    "an endless line": ("const part = Buffer.alloc(1 << 20, 0x20); while (true) send(part);", {"protocol_error"}),
    "half a line": ("send('{');", {"timeout"}),
    "an approval": ("send({ id: 9, method: 'approval.give', params: {} });", {"protocol_error"}),
    "a name twice": (
        "send({ id: 8, method: 'memory.list', params: { call: '0#9' } });"
        "send({ id: 9, method: 'memory.list', params: { call: '0#9' } });",
        # Each is refused, and nothing in here waits for that.
        {"protocol_error", "timeout"},
    ),
    "a result that is none": (
        "send({ id: 7, method: 'execution.finish', params: { exit_code: 'x' } });",
        {"protocol_error"},
    ),
    "a flood of empty lines": ("while (true) send('\\n');", {"timeout"}),
    "closed": ("fs.closeSync(4);\nawait runtime.list_memories();", {"channel_closed", "killed", "error"}),
    "its input closed": (
        "fs.closeSync(3);\nawait runtime.list_memories();",
        {"channel_closed", "killed", "error", "timeout"},
    ),
    "its bytes closed": ("fs.closeSync(5);\nconsole.log(1);\nconsole.error(2);", {"error", "success", "killed"}),
}


async def test_what_is_written_to_the_channels_descriptor_harms_nobody_else(both):
    async with both.open(faulty()) as bridge, anyio.create_task_group() as tasks:

        async def attack(name):
            code, statuses = FRAMES[name]
            record = await bridge.run(f"{SEND}{code}\n{STAY}", language="javascript", timeout=3)
            assert record.status in statuses, (name, record.status, record.error)

        for name in FRAMES:
            tasks.start_soon(attack, name)
        for _ in range(5):
            code = "await mcp.servers.faulty.echo({ text: 'well' })"
            assert (await bridge.run(code, language="javascript")).value == "'well'"


async def test_a_forged_result_counts_for_the_script_itself_alone(both):
    """What the guest says of itself is the script's own word: once, and nothing after it."""
    record = await both.run(
        SEND
        + "send({ id: 77, method: 'execution.finish', params: { exit_code: 0, value: 'forged' } });"
        + "await runtime.save_memory('late', 1);",
        language="javascript",
    )
    assert (record.status, record.value) == ("success", "forged")


KILLS = {
    "all but itself": ("try { process.kill(-1, 'SIGKILL') } catch {}", {"killed"}),
    "what is between": ("process.kill(process.ppid, 'SIGKILL');", {"killed"}),
    "process 1": (
        "for (let n = 1; n < 65; n++) try { process.kill(1, n) } catch {}\nconsole.log('alone');",
        {"success"},
    ),
}


async def test_it_can_end_itself_and_no_more(both):
    async with both.open() as bridge:
        for name, (code, statuses) in KILLS.items():
            end = "" if statuses == {"success"} else STAY
            record = await bridge.run(f"{code}\n{end}", language="javascript", timeout=10)
            assert record.status in statuses, (name, record.status, record.error)


RESOURCES = {
    "a fork bomb": ("const { spawn } = require('child_process');\nwhile (true) try { spawn(process.execPath, ['-e', 'setInterval(() => {}, 1e6)']) } catch {}", {"timeout", "out_of_memory", "killed", "error"}),
    "a thread bomb": ("const { Worker } = require('worker_threads');\nconst all = []; while (true) { all.push(new Worker('setInterval(() => {}, 1e6)', { eval: true })); await null }", {"timeout", "out_of_memory", "killed", "error"}),
    "ten gigabytes": ("const x = []; while (true) x.push(Buffer.alloc(1 << 26, 1))", {"out_of_memory"}),
    "a full disk": ("const fs = require('fs'); const all = Buffer.alloc(1 << 20, 1); for (let n = 0; n < 4096; n++) fs.appendFileSync('/tmp/x', all)", {"error", "out_of_memory"}),
    "every descriptor": ("const fs = require('fs'); while (true) fs.openSync('/dev/null')", {"error"}),
}  # fmt: skip


@pytest.mark.parametrize("attack", RESOURCES)
async def test_using_up_everything_ends_only_itself(both, attack):
    code, statuses = RESOURCES[attack]
    async with both.open() as bridge:
        record = await bridge.run(code, language="javascript", timeout=4)
        assert record.status in statuses, (record.status, record.error)
        assert (await bridge.run("6 * 7", language="javascript")).value == "42"


async def test_there_is_no_way_out(both):
    record = await both.run(
        """
import fs from "node:fs";
import net from "node:net";
import dns from "node:dns/promises";
import { execFileSync } from "node:child_process";
const told = async (name, action) => {
  try { console.log(name, "got", await action()) } catch (error) { console.log(name, error.code ?? error.name) }
};
const reach = (options) => new Promise((resolve, reject) => net.connect(options, resolve).on("error", reject));
await told("tcp", () => reach({ host: "1.1.1.1", port: 80 }));
await told("dns", () => dns.lookup("example.org"));
await told("fetch", () => fetch("http://127.0.0.1/"));
await told("root", () => fs.writeFileSync("/usr/local/bin/node", ""));
await told("etc", () => fs.writeFileSync("/etc/passwd", ""));
await told("exec", () => {
  fs.copyFileSync(process.execPath.length ? "/usr/local/bin/python3" : "", "/tmp/python");
  fs.chmodSync("/tmp/python", 0o755);
  return execFileSync("/tmp/python", ["-c", "1"]);
});
await told("uid", () => process.setuid(0));
console.log(process.getuid() > 0, fs.readFileSync("/proc/self/status", "utf8").match(/CapEff:\\s+(\\w+)/)[1]);
console.log(Object.keys(process.env).filter((name) => /MCP_BRIDGE|TOKEN|KEY|AWS/.test(name)).length);
""",
        language="javascript",
    )
    got = lines(record)
    assert not [line for line in got if " got " in line], got
    assert got[-2:] == ["true 0000000000000000", "0"]


async def test_no_memory_grants_a_script_more_than_its_memory(both):
    """The limit that the kernel holds, and V8's below it, told as one."""
    async with both.open(memory=256 << 20) as bridge:
        for code in (
            "const x = []; while (true) x.push({ n: x.length })",
            "const x = []; while (true) x.push(Buffer.alloc(1 << 24, 1))",
            "const m = new WebAssembly.Memory({ initial: 16 }); while (true) { m.grow(64); new Uint8Array(m.buffer).fill(1) }",
        ):
            record = await bridge.run(code, language="javascript", timeout=20)
            assert record.status in {"out_of_memory", "error"}, (code, record.status, record.error)
            assert record.error["code"] in {"out_of_memory", "script_error"}


async def test_a_script_gets_the_memory_that_it_is_allowed(both):
    """V8's own limit follows the sandbox's."""
    code = "const x = []; while (x.length < 60) x.push(new Array(1e6).fill(1.5)); x.length"
    small = await both.run(code, language="javascript", timeout=20)
    assert small.status == "out_of_memory"
    large = await both.run(code, language="javascript", timeout=20, memory=1 << 30)
    assert (large.status, large.value) == ("success", "60"), large.error


LATER = "await new Promise((done) => setTimeout(done, 300));"
OF_PROGRAMS = {
    # What it is, and whether a violation is recorded.
    "an effect of no program": (
        "send({ id: 7, method: 'program.effect', params: { execution: '0'.repeat(32), effect: 1 } });",
        True,
    ),
    "the end of no program": (
        "send({ id: 7, method: 'program.finish', params: { execution: '0'.repeat(32), state: '0'.repeat(64) } });",
        True,
    ),
    "an effect before its turn": (
        """
const { programs } = mcp;
const steps = ["a", "b"].map((text) => ({ id: text, type: "tool", tool: "faulty.echo", args: { text } }));
const found = programs.run({ steps: [{ id: "w", type: "wait", seconds: 1 }, ...steps] }, {}, { idempotencyKey: "k" });
await new Promise((done) => setTimeout(done, 300));
send({ id: 8, method: "program.start", params: { program: { steps }, context: {}, idempotency_key: "k2" } });
found.catch((error) => error.code).then(console.log);
""",
        False,
    ),
    "lines for the process between": (
        "for (const line of ['[\"drive\", 1, {}]', '[\"steps\"]', '[\"steps\", \"x\"]', '[\"steps\", 0]', '[\"steps\", 99]', '[]', '{', '[\"kept\", 1]'])"
        " send(`!${line}\\n`);",
        False,
    ),
    "cancels of what there isn't": (
        'for (const id of [0, -1, 99, \'x\', null, 1.5, 2 ** 60]) send(`{"jsonrpc":"2.0","method":"request.cancel","params":{"id":${JSON.stringify(id)}}}\\n`);',
        None,
    ),
    "a program by another number, twice": (
        "for (const id of [900, 900]) send({ id, method: 'program.start', params: { program: { steps: [] }, context: {}, call: '0#900' } });",
        None,
    ),
}


@pytest.mark.parametrize("attack", OF_PROGRAMS)
async def test_a_script_that_speaks_of_programs_itself_reaches_no_more_than_through_the_library(both, attack):
    code, violates = OF_PROGRAMS[attack]
    async with both.open(faulty()) as bridge:
        record = await bridge.run(f"{SEND}{code}\n{LATER}\n6 * 7", language="javascript", timeout=5)
        assert record.status in {"success", "protocol_error"}, (record.status, record.error)
        if violates is not None:
            assert (record.status, record.value) == ("success", "42"), (record.error, record.stderr)
            entries = [row.entry.kind for row in await bridge.programs.recorder.read(record.execution)]
            assert ("violation" in entries) is violates
        assert (await bridge.run("6 * 7", language="javascript")).value == "42"


async def test_values_that_look_like_the_channels_methods_are_values(both):
    names = [
        "activity.ask",
        "execution.start",
        "execution.interrupt",
        "execution.finish",
        "program.start",
        "request.cancel",
    ]
    code = f"""
for (const name of {names}) {{
  await runtime.save_memory(name, name);
  console.log(await mcp.servers.faulty.echo({{ text: name }}), await runtime.load_memory(name));
}}"""
    async with both.open(faulty()) as bridge:
        for session in (None, "s"):
            record = await bridge.run(code, language="javascript", session=session, timeout=10)
            assert lines(record) == [f"{name} {name}" for name in names]
