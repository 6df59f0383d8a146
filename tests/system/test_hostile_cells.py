"""What an earlier cell of a session has left, and forges frames while a later one runs: what it can't make the record say."""

import json
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.governance.principals import Principal

pytestmark = pytest.mark.usefixtures("whole_ledgers", "no_internal_errors")

RECORDING = Path(__file__).parents[1] / "support" / "servers" / "recording.py"
PUT = {"name": "put", "inputSchema": {"type": "object", "properties": {"what": {}}}}

FINISH = {"id": 10_000_000, "method": "execution.finish", "params": {"exit_code": 0, "value": "forged"}}
FAILED = {"type": "Forged", "message": "forged", "line": None, "traceback": "forged"}
FAIL = {**FINISH, "params": {"exit_code": 1, "error": FAILED}}
PARAMETERS = {"server": "shop", "tool": "put", "arguments": {"what": "sneaked"}, "raw": False, "call": "0#900"}
SNEAK = {"id": 9_000_000, "method": "tool.call", "params": PARAMETERS}
PRINT = {"method": "output.write", "params": {"stream": "stdout", "text": "forged"}}

# What is sent during the later cell, and how that can end: its status and its value. `EARLIER` is the first cell.
FORGERIES = {
    "a result": ([FINISH], {("success", "forged")}),
    "a failure": ([FAIL], {("error", None)}),
    "an output and a result": ([PRINT, FINISH], {("success", "forged")}),
    "a call and a result": ([SNEAK, FINISH], {("success", "forged")}),
    "two results": ([FINISH, FAIL], {("success", "forged"), ("protocol_error", None)}),
    "the beginning of the earlier cell": (
        [{"method": "execution.begun", "params": {"execution": "EARLIER"}}, SNEAK, FINISH],
        {("success", "forged"), ("protocol_error", None)},
    ),
    "no message": ([{"method": "no.method", "params": {}}], {("protocol_error", None)}),
}

LEAVE = {
    "python": """
import os, stat, threading, time
from mcp.servers import shop
await shop.put(what="own 1")
out = [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) >= 100 and stat.S_ISFIFO(os.fstat(int(fd)).st_mode)]
go = threading.Event()
forged = b""
def forge():
    go.wait()
    for fd in out:
        try:
            os.set_blocking(fd, True)
            os.write(fd, forged)
        except OSError:
            pass
threading.Thread(target=forge, daemon=True).start()
"kept"
""",
    "javascript": """
import { Worker } from "node:worker_threads";
import { shop } from "mcp/servers";
await shop.put({ what: "own 1" });
const flag = new Int32Array(new SharedArrayBuffer(4)), text = new Uint8Array(new SharedArrayBuffer(4000));
new Worker(`
const { flag, text } = require("node:worker_threads").workerData;
Atomics.wait(flag, 0, 0);
require("node:fs").writeSync(4, Buffer.from(text.slice(0, flag[0])));
`, { eval: true, workerData: { flag, text } }).unref();
"kept"
""",
}
# It would end by its time-out.
VICTIM = {
    "python": 'await shop.put(what="own 2")\nforged = FRAMES\ngo.set()\ntime.sleep(60)',
    "javascript": 'await shop.put({ what: "own 2" });\nconst sent = Buffer.from(FRAMES);\ntext.set(sent);\n'
    "Atomics.store(flag, 0, sent.length); Atomics.notify(flag, 0);\nawait new Promise((done) => setTimeout(done, 60_000));",
}
ANOTHER = {
    "python": 'from mcp.servers import shop\nawait shop.put(what="another")\n6 * 7',
    "javascript": 'import { shop } from "mcp/servers";\nawait shop.put({ what: "another" });\n6 * 7',
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_what_an_earlier_cell_forges_during_a_later_one_is_that_ones_outcome_and_nothing_else(
    bilingual, tmp_path, forgery
):
    (tmp_path / "listing.json").write_text(json.dumps([PUT]))
    (tmp_path / "calls").touch()
    arguments = (str(RECORDING), str(tmp_path / "listing.json"), str(tmp_path / "calls"))
    frames, ends = FORGERIES[forgery]
    shop = ServerSpec(name="shop", command=sys.executable, args=arguments)
    async with bilingual.open(shop, state_dir=tmp_path / "state") as opened:
        bridge, language = opened.bridge, opened.language

        async def entries(execution):
            return [
                (row.sequence, row.entry.kind, row.entry.payload)
                for row in await bridge.programs.recorder.read(execution)
            ]

        first = await opened.run(LEAVE, session="s")
        assert first.value.strip("'") == "kept", first.error
        before = await entries(first.execution)
        sent = "".join(json.dumps({"jsonrpc": "2.0", **frame}) + "\n" for frame in frames)
        sent = sent.replace("EARLIER", first.execution)
        code = VICTIM[language].replace("FRAMES", repr(sent.encode()) if language == "python" else json.dumps(sent))
        others, anna = [], bridge.for_principal(Principal("anna"))

        async def run(of, **options):
            others.append(await of.run(ANOTHER[language], language=language, **options))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run(bridge, session="t"))
            tasks.start_soon(lambda: run(anna, session="s"))
            victim = await opened.run(code, session="s", timeout=20)
        await run(bridge, session="t")

        # It ends the cell that runs, with what its own code might have said, also in its place.
        assert (victim.status, victim.value) in ends, victim.error
        assert (victim.session, victim.execution != first.execution) == ({"name": "s", "cell": 2}, True)
        # Other sessions, other principals, and the earlier cell are as they were.
        assert [(one.status, one.value) for one in others] == [("success", "42")] * 3
        assert await entries(first.execution) == before
        # What the record has of calls is what the host has made, and each is the cell's that ran then.
        made = Counter(json.loads(line)["arguments"]["what"] for line in (tmp_path / "calls").read_text().splitlines())
        intents = Counter()
        for row in await bridge.programs.store.executions(None, 50):
            for _, kind, payload in await entries(row.id):
                if kind == "intent":
                    what = payload["arguments"]["what"]
                    intents[what] += 1
                    assert what != "sneaked" or row.id == victim.execution
        assert made <= intents
        assert {what: count for what, count in intents.items() if what != "sneaked"} == {
            "own 1": 1,
            "own 2": 1,
            "another": 3,
        }
        assert intents["sneaked"] <= frames.count(SNEAK)
