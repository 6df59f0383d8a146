"""The operator's files in scripts: listed, copied, streamed, narrowed, recorded, and compared when a run is run again."""

import contextlib
import hashlib
import json
import os
import sqlite3
import zipfile

import anyio
import pytest
from execution_fixtures import lines, printed, until
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import Principal
from mcp_bridge.ledger.log.payloads import RequestOutcome, ScriptStart, understood

pytestmark = pytest.mark.xdist_group("inputs")


@pytest.fixture
def data(tmp_path):
    """A folder with files, and what makes the operator's word of it: `data.governed(NAME=PATH…)`."""

    class Data:
        folder = tmp_path / "data"

        def write(self, name, content):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            return path

        def governed(self, tables=None, **files):
            table = {name.replace("__", "."): path for name, path in files.items()}
            return load_governance({"files": table} | (tables or {}), None, self.folder, tmp_path / "nowhere")

    Data.folder.mkdir()
    return Data()


async def failure(work, *args, **options):
    with pytest.raises(BridgeError) as caught:
        await work(*args, **options)
    return caught.value


def entries_of(bridge):
    async def read(record):
        return [understood(row) for row in await bridge.lifecycle.recorder.read(record.execution)]

    return read


async def test_a_script_lists_copies_and_streams_what_the_operator_hands_in(sandboxes, data):
    content = os.urandom((2 << 20) + 5)
    data.write("big.bin", content)
    data.write("sales.csv", "a,b\n1,2\n")
    for number in range(3):
        data.write(f"reports/q{number}/r.txt", f"report {number}\n")
    governance = data.governed(sales__csv="sales.csv", big="big.bin", reports="reports/**/*.txt")
    async with sandboxes.open(governance=governance) as bridge:
        record = await bridge.run(
            """
import hashlib, os, io
for row in runtime.files():
    print(row)
print([row["name"] for row in await runtime.files("reports")])
print(open("/workspace/in/sales.csv").read(), end="")
print(open(runtime.input("reports/q1/r.txt")).read(), end="")
path = await runtime.input("reports")
print(path, sorted(os.path.join(at, name) for at, _, names in os.walk(path) for name in names))
print(os.listdir("/workspace/in"), oct(os.stat("/workspace/in/sales.csv").st_mode & 0o777))
with runtime.open_input("big") as file:
    whole = hashlib.sha256()
    while chunk := file.read(300_000):
        whole.update(chunk)
    file.seek(-5, io.SEEK_END)
    print(whole.hexdigest(), file.tell(), file.read().hex(), file.raw.size, file.raw.sha256 == whole.hexdigest())
print(hashlib.sha256(open("in/big", "rb").read()).hexdigest())
print([line for line in runtime.open_input("sales.csv", "r")])
"""
        )
        out = lines(record)
        assert out[:3] == [
            f"big: {len(content)} bytes, application/octet-stream",
            "reports: 3 files, 27 bytes, inode/directory",
            "sales.csv: 8 bytes, text/csv",
        ]
        assert out[3] == str([f"reports/q{number}/r.txt" for number in range(3)])
        assert out[4:7] == ["a,b", "1,2", "report 1"]
        assert out[7].startswith("/workspace/in/reports ")
        assert "q2/r.txt" in out[7]
        assert out[8].endswith(" 0o444")
        digest = hashlib.sha256(content).hexdigest()
        assert out[9] == f"{digest} {len(content) - 5} {content[-5:].hex()} {len(content)} True"
        assert out[10:] == [digest, "['a,b\\n', '1,2\\n']"]
        entries = await entries_of(bridge)(record)
        opened = [
            entry.result.value
            for entry in entries
            if isinstance(entry, RequestOutcome) and entry.request.name == "input.open"
        ]
        [big] = [value["files"] for value in opened if value["size"] == len(content)][:1]
        assert big == [
            {
                "path": "",
                "size": len(content),
                "sha256": digest,
                "modified": (data.folder / "big.bin").stat().st_mtime_ns / 1e9,
            }
        ]
        assert content[:30].hex() not in json.dumps([entry.encode() for entry in entries])


async def test_a_script_in_javascript_lists_copies_and_streams_them(both, data):
    content = os.urandom((2 << 20) + 5)
    data.write("big.bin", content)
    data.write("sales.csv", "a,b\n1,2\n")
    for number in range(3):
        data.write(f"reports/q{number}/r.txt", f"report {number}\n")
    governance = data.governed(sales__csv="sales.csv", big="big.bin", reports="reports/**/*.txt")
    async with both.open(governance=governance) as bridge:
        record = await bridge.run(
            """
import fs, { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createHash } from "node:crypto";
import { pipeline } from "node:stream/promises";
console.log(await runtime.files());
console.log((await runtime.files("reports")).map((row) => row.name).join());
process.stdout.write(readFileSync("/workspace/in/sales.csv", "utf8"));
process.stdout.write(await readFile(await runtime.input("reports/q1/r.txt"), "utf8"));
console.log(await runtime.input("reports"), fs.readdirSync("in/reports", { recursive: true }).length);
console.log(fs.readdirSync("in").sort().join(), (fs.statSync("in/sales.csv").mode & 0o777).toString(8));
const file = await runtime.open_input("big");
const whole = createHash("sha256");
for await (const part of file) whole.update(part);
const digest = whole.digest("hex");
console.log(digest, (await file.read(file.size - 5)).toString("hex"), file.size, file.sha256 === digest);
const again = createHash("sha256");
await pipeline(file, again);
console.log(again.digest("hex") === digest, (await file.read((1 << 20) - 2, (1 << 20) + 3)).toString("hex"));
const sales = await runtime.openInput("sales.csv");
console.log(await sales.text());
for (const range of [[-5, 5], [5, 2], [0.5], [8, 8], [100]]) console.log(await sales.read(...range).then(String, (error) => error.message));
const copied = createHash("sha256");
await pipeline(fs.createReadStream("in/big"), copied);
console.log(copied.digest("hex") === digest);
""",
            language="javascript",
        )
        out = lines(record)
        digest = hashlib.sha256(content).hexdigest()
        middle = content[(1 << 20) - 2 : (1 << 20) + 3].hex()
        assert out == [
            f"big: {len(content)} bytes, application/octet-stream",
            "reports: 3 files, 27 bytes, inode/directory",
            "sales.csv: 8 bytes, text/csv",
            ",".join(f"reports/q{number}/r.txt" for number in range(3)),
            *("a,b", "1,2", "report 1", "/workspace/in/reports 6", "reports,sales.csv 444"),
            f"{digest} {content[-5:].hex()} {len(content)} true",
            *(f"true {middle}", "a,b", "1,2", ""),
            *(f"read(): {start} to {end} is no range of bytes" for start, end in ((-5, 5), (5, 2), (0.5, 8))),
            *("", "", "true"),
        ]
        stored = await bridge.lifecycle.stored(record.execution, "local")
        assert (await bridge.replay_execution(stored)).agrees


async def test_advice_on_what_is_not_fetched_says_how_it_is(both, data):
    data.write("sales.csv", "a,b\n")
    advice = {
        'fs.statSync("/workspace/in/sales.csv")': "is there once it is fetched: await runtime.input('sales.csv')",
        'fs.readFileSync("in/other.csv")': "there is no such file of the operator's",
        'await artifact("in/other.csv")': "there is no such file of the operator's",
        # What opens it there fetches nothing.
        "import { Worker } from \"node:worker_threads\";\nnew Worker(\"require('fs').readFileSync('in/sales.csv')\", { eval: true })": (
            "is there once it is fetched: await runtime.input('sales.csv')"
        ),
        'process.loadEnvFile("/workspace/in/sales.csv")': "is there once it is fetched: await runtime.input('sales.csv')",
        'require("/workspace/in/sub/x.json")': "JSON.parse(fs.readFileSync(await runtime.input('sub/x.json'), 'utf8'))",
        'require("./in/sub/x.json")': "JSON.parse(fs.readFileSync(await runtime.input('sub/x.json'), 'utf8'))",
        'await import("/workspace/in/a.mjs")': "await import(await runtime.input('a.mjs'))",
    }
    async with both.open(governance=data.governed(sales__csv="sales.csv")) as bridge:
        for code, told in advice.items():
            record = await bridge.run(f'import fs from "node:fs";\n{code}', language="javascript")
            assert told in record.error["message"], record.error


KEPT_INPUTS = {
    "python": """
print(artifact("/workspace/in/sales.csv") == artifact("in/sales.csv", "sales.csv"), open("/workspace/in/sales.csv").read())
artifact("in/reports/q1.txt")
for path in ("/workspace/in/other.csv", "in/reports", "in/big"):
    try: artifact(path)
    except (OSError, mcp.MCPError) as exc: print(type(exc).__name__)
await runtime.save_memory("k", 1)
""",
    "javascript": """
import fs from "node:fs";
console.log(await artifact("/workspace/in/sales.csv") === await artifact("in/sales.csv", "sales.csv") ? "True" : "False",
  fs.readFileSync("in/sales.csv", "utf8"));
await artifact(new URL("file:///workspace/in/reports/q1.txt"), "q1.txt");
for (const path of ["/workspace/in/other.csv", "in/reports", "in/big"]) {
  try { await artifact(path) } catch (error) {
    console.log({ ENOENT: "FileNotFoundError", EISDIR: "IsADirectoryError", input_refused: "MCPError" }[error.code]);
  }
}
await runtime.save_memory("k", 1);
""",
}


async def test_an_input_is_kept_by_its_path_as_it_is_opened_by_it(bilingual, data):
    data.write("sales.csv", "a,b")
    data.write("reports/q1.txt", "q1")
    (data.folder / "link").symlink_to("/etc/passwd")
    async with bilingual.open(
        governance=data.governed(sales__csv="sales.csv", reports="reports", big="link")
    ) as opened:
        record = await opened.run(KEPT_INPUTS)
        assert lines(record) == ["True a,b", "FileNotFoundError", "IsADirectoryError", "MCPError"], record.error
        assert {(row["name"], row["size"]) for row in record.artifacts} == {("sales.csv", 3), ("q1.txt", 2)}
        stored = await opened.bridge.lifecycle.stored(record.execution, "local")
        assert (await opened.bridge.replay_execution(stored)).agrees
        cell = await opened.run(KEPT_INPUTS, session="s")
        assert lines(cell) == lines(record), cell.error


async def test_what_is_not_handed_in_is_missing_in_javascript_too_and_files_narrows(both, data):
    data.write("a.txt", "a")
    data.write("b.txt", "b")
    (data.folder / "link").symlink_to("/etc/passwd")
    governance = data.governed(alpha="a.txt", beta="b.txt", link="link", gone="gone.txt", folder=".")
    code = """
import fs, { promises } from "node:fs";
for (const name of ["alpha", "beta", "alpa", "link", "gone", "alpha/../beta", "/etc/passwd", 7]) {
  try { console.log(name, fs.readFileSync(await runtime.input(name), "utf8")) } catch (error) { console.log(name, error.code ?? error.name) }
}
const opened = [
  () => fs.openSync("/workspace/in/beta"), () => promises.readFile("/workspace/in/beta"), () => fs.readdirSync("in/beta"),
  () => new Promise((done, fail) => fs.readFile("in/beta", (error, data) => (error ? fail(error) : done(data)))),
  () => fs.readFileSync("/workspace/in/link"), () => promises.open("in/link"),
  () => fs.writeFileSync("/workspace/in/own", "own"), () => fs.readFileSync("in/own", "utf8"),
];
for (const open of opened) try { console.log(await open() ?? "written") } catch (error) { console.log(error.code) }
try { await runtime.open_input("folder") } catch (error) { console.log(error.code) }
"""
    async with both.open(governance=governance) as bridge:
        out = lines(await bridge.run(code, language="javascript", files=["alpha", "link", "gone", "folder"]))
        assert out[:8] == [
            *("alpha a", "beta unknown_input", "alpa unknown_input", "link input_refused", "gone input_unavailable"),
            *("alpha/../beta input_refused", "/etc/passwd unknown_input", "7 TypeError"),
        ]
        assert out[8:] == ["ENOENT"] * 4 + ["input_refused"] * 2 + ["written", "own", "EISDIR"]
        nothing = await bridge.run("(await runtime.files()).length", language="javascript", files=[])
        assert nothing.value == "0"


async def test_a_run_in_javascript_goes_on_with_its_files_beside_calls(both, data):
    """Files are fetched while calls are under way, at once and by promises, and are the same ones on every way."""
    for number in range(4):
        data.write(f"all/{number}", f"{number}" * 400_000)
    code = """
import fs from "node:fs";
import { faulty } from "mcp/servers";
const lengths = await Promise.all([0, 1, 2, 3].map(async (n) => {
  await faulty.echo({ text: `${n}` });
  const text = n % 2 ? fs.readFileSync(`in/all/${n}`, "utf8") : await fs.promises.readFile(`in/all/${n}`, "utf8");
  return text.length + (await faulty.echo({ text: text.slice(0, 1) })).length;
}));
console.log(lengths.join(), await faulty.sleep({ seconds: 0 }));
"""
    tables = {"policy": {"rules": [{"tools": ["faulty.sleep"], "effect": "approve"}]}}

    class Yes:
        may_vanish = False

        async def ask(self, *_):
            return True

    async with both.open(faulty(), governance=data.governed(tables, all="all")) as bridge:
        record = await bridge.run(code, key="k", language="javascript")
        assert record.status == "suspended", record.error
        record = await bridge.run(code, key="k", language="javascript", asker=Yes())
        assert printed(record) == "400001,400001,400001,400001 slept\n"
        stored = await bridge.lifecycle.stored(record.execution, "local")
        assert (await bridge.replay_execution(stored)).agrees
        (data.folder / "all" / "1").write_text("other")
        assert (await bridge.replay_execution(stored)).difference.what == "input"


async def test_a_file_that_does_not_fit_says_so_in_javascript_too(both, data):
    data.write("big", bytes(9 << 20))
    code = """
try { await runtime.input("big") } catch (error) { console.log(error.code, error.details.size) }
let total = 0;
for await (const part of await runtime.open_input("big")) total += part.length;
console.log(total);
"""
    async with both.open(governance=data.governed(big="big"), workspace_size=8 << 20) as bridge:
        assert lines(await bridge.run(code, language="javascript")) == [f"workspace_full {9 << 20}", str(9 << 20)]


async def test_an_input_is_read_at_once_in_javascript_while_large_answers_are_on_their_way(both, data):
    data.write("big", bytes(3 << 20))
    data.write("reports/r1", b"1" * (5 << 20))
    data.write("reports/r2", b"2" * (5 << 20))
    code = """
import fs from "node:fs";
const open = await Promise.all(Array.from({ length: 8 }, () => runtime.open_input("big")));
for await (const part of open[0]) { console.log(part.length); break; }
console.log(fs.readFileSync("/workspace/in/reports/r1", "utf8").length);
const reads = open.map((file) => file.read(0, 5));
console.log(fs.readFileSync("/workspace/in/reports/r2", "utf8").length, (await Promise.all(reads)).map((part) => part.length).join());
for await (const part of open[0]) console.log(part.length);
"""
    async with both.open(governance=data.governed(big="big", reports="reports/*")) as bridge:
        expected = [str(1 << 20), str(5 << 20), f"{5 << 20} 5,5,5,5,5,5,5,5", *[str(1 << 20)] * 3]
        for place in ({}, {"session": "s"}):
            record = await bridge.run(code, language="javascript", timeout=60, **place)
            assert lines(record) == expected


async def test_a_busy_cell_whose_time_is_up_keeps_its_session_though_large_answers_are_unread(both, data):
    data.write("big", bytes(40 << 20))
    busy = """
const file = await runtime.open_input("big");
const parts = [...Array(PARTS).keys()].map((at) => file.read(at << 20, (at + 1) << 20));
for (;;) {}
"""
    async with both.open(governance=data.governed(big="big")) as bridge:
        assert (await bridge.run("let x = 1", language="javascript", session="s")).status == "success"
        # What the pipe doesn't hold; and what isn't taken from the host as long as Node reads.
        for parts in ("2", "40"):
            record = await bridge.run(busy.replace("PARTS", parts), language="javascript", session="s", timeout=3)
            assert (record.status, record.session.get("interrupted")) == ("timeout", True)
        after = await bridge.run("x", language="javascript", session="s")
        assert (after.value, after.session) == ("1", {"name": "s", "cell": 4})


async def test_what_is_not_handed_in_is_missing_and_the_error_says_what_there_is(sandboxes, data):
    data.write("a.txt", "a")
    data.write("b.txt", "b")
    (data.folder / "link").symlink_to("/etc/passwd")
    governance = data.governed(alpha="a.txt", beta="b.txt", link="link", gone="gone.txt")
    code = """
for name in ("alpha", "beta", "alpa", "link", "gone", "alpha/../beta", "/etc/passwd"):
    try:
        print(name, open(runtime.input(name)).read())
    except mcp.MCPError as exc:
        print(name, exc.code, exc.message)
try:
    open("/workspace/in/beta")
except FileNotFoundError as exc:
    print("none", exc.filename)
print(runtime.files())
"""
    async with sandboxes.open(governance=governance) as bridge:
        out = lines(await bridge.run(code, files=["alpha", "link", "gone"]))
        assert out[0] == "alpha a"
        assert out[1].startswith("beta unknown_input There is no input 'beta'.")
        assert "Did you mean alpha?" in out[2]
        assert out[3].startswith("link input_refused The input 'link' is a symbolic link.")
        assert out[4].startswith("gone input_unavailable The input 'gone' isn't there.")
        assert out[5].startswith("alpha/../beta input_refused")
        assert out[6].startswith("/etc/passwd unknown_input There is no input '/etc/passwd'.")
        assert out[7] == "none /workspace/in/beta"
        assert out[8] == "alpha: 1 bytes, application/octet-stream" or out[8] == "alpha: 1 bytes, text/plain"
        assert str(data.folder) not in "\n".join(out)
        assert (await failure(bridge.run, "1", files=["alpha", "gamma"])).code == "unknown_input"
        assert lines(await bridge.run("print(runtime.files())", files=[])) == ["(none)"]
        narrowed = await bridge.run("1", files=["beta", "alpha"])
        [start] = [e for e in await entries_of(bridge)(narrowed) if isinstance(e, ScriptStart)]
        assert start.files == ["alpha", "beta"]


async def test_a_principal_has_the_files_that_its_table_names(sandboxes, data):
    data.write("a.txt", "a")
    data.write("b.txt", "b")
    governance = data.governed(alpha="a.txt", beta="b.txt")
    async with sandboxes.open(governance=governance) as bridge:
        anna = bridge.for_principal(Principal("anna", files=frozenset({"beta"})))
        assert [line.partition(":")[0] for line in lines(await anna.run("print(runtime.files())"))] == ["beta"]
        assert (await failure(anna.run, "1", files=["alpha"])).code == "unknown_input"
        # What the configuration takes away is away at once; what it adds or changes isn't there.
        changed = {**data.governed(alpha="b.txt", beta="b.txt", gamma="a.txt").inputs}
        bridge.restrict({"local"}, bridge._governance.snapshot, None, changed)
        assert [line.partition(":")[0] for line in lines(await bridge.run("print(runtime.files())"))] == ["beta"]


async def test_a_file_that_does_not_fit_says_so_and_is_streamed_instead(sandboxes, data):
    data.write("big", bytes(9 << 20))
    code = """
try:
    runtime.input("big")
except mcp.MCPError as exc:
    print(exc.code, exc.message)
import os
print(os.listdir("/workspace/in"))
total = 0
for chunk in iter(lambda f=runtime.open_input("big"): f.read(1 << 20), b""):
    total += len(chunk)
print(total)
"""
    async with sandboxes.open(governance=data.governed(big="big"), workspace_size=8 << 20) as bridge:
        out = lines(await bridge.run(code))
        assert out[0].startswith(f"workspace_full 'big' has {9 << 20} bytes, and /workspace has room for ")
        assert "runtime.open_input('big')" in out[0]
        assert out[1:] == ["['big']", str(9 << 20)]


async def test_what_does_not_fit_is_refused_before_it_is_hashed(bilingual, data):
    for name in ("huge", "tree/huge"):
        data.write(name, b"")
        with (data.folder / name).open("wb") as file:
            # Hashing takes minutes.
            file.truncate(400 << 30)
    data.write("small", "s")
    most = 500 << 30
    governance = data.governed(
        huge={"path": "huge", "max_size": most}, tree={"path": "tree", "max_size": most}, small="small"
    )
    code = {
        "python": """
for name in ["huge", "tree", "tree/huge"]:
    try: runtime.input(name)
    except mcp.MCPError as error: print(error.code, error.details["size"])
try: open("/workspace/in/huge")
except mcp.MCPError as error: print(error.code)
print(open(runtime.input("small")).read())
""",
        "javascript": """
import fs from "node:fs";
for (const name of ["huge", "tree", "tree/huge"]) {
  try { await runtime.input(name); } catch (error) { console.log(error.code, error.details.size); }
}
try { fs.readFileSync("/workspace/in/huge"); } catch (error) { console.log(error.code); }
console.log(fs.readFileSync(await runtime.input("small"), "utf8"));
""",
    }
    async with bilingual.open(governance=governance) as runs:
        record = await runs.run(code)
        assert lines(record) == [*[f"workspace_full {400 << 30}"] * 3, "workspace_full", "s"]
        stored = await runs.bridge.lifecycle.stored(record.execution, "local")
        assert (await runs.bridge.replay_execution(stored)).agrees


async def test_what_is_there_already_is_given_again_though_it_would_not_fit_twice(bilingual, data):
    data.write("tree/a", bytes(5 << 20))
    data.write("b", bytes(2 << 20))
    code = {
        "python": """
for name in ["tree", "b", "tree", "b"]: print(runtime.input(name))
""",
        "javascript": """
for (const name of ["tree", "b", "tree", "b"]) console.log(await runtime.input(name));
""",
    }
    async with bilingual.open(governance=data.governed(tree="tree/*", b="b"), workspace_size=9 << 20) as runs:
        assert lines(await runs.run(code)) == [f"/workspace/in/{name}" for name in ("tree", "b", "tree", "b")]


async def test_a_file_that_changes_while_it_is_read_is_an_error(sandboxes, data):
    path = data.write("big", bytes(3 << 20))
    code = """
import asyncio
file = runtime.open_input("big").raw
file.read(10)
progress(1)
while True:
    file.seek((2 << 20) + 1)
    file._number = -1
    try:
        file.read(10)
    except mcp.MCPError as exc:
        print(exc.code, exc.message)
        break
    await asyncio.sleep(0.05)
"""

    def changed(*_):
        with path.open("r+b") as file:
            file.seek(2 << 20)
            file.write(b"xx")

    async with sandboxes.open(governance=data.governed(big="big")) as bridge:
        out = lines(await bridge.run(code, progress=changed))
        assert out == ["file_changed The input 'big' has changed while it was read."] or out[0].startswith(
            "file_changed"
        )


async def test_a_thousand_names_and_a_thousand_files_are_listed_and_read(sandboxes, data):
    for number in range(1000):
        data.write(f"all/{number:04}.txt", f"{number}\n")
    files = {f"n{number:04}": f"all/{number:04}.txt" for number in range(1000)}
    governance = data.governed(all="all", **files)
    code = """
import os
rows = runtime.files()
print(len(rows), len(runtime.files("all")))
at = runtime.input("all")
print(sum(int(open(f"{at}/{name}").read()) for name in os.listdir(at)))
print(sum(int(open(f"/workspace/in/n{number:04}").read()) for number in range(1000)))
"""
    async with sandboxes.open(governance=governance) as bridge:
        total = str(sum(range(1000)))
        assert lines(await bridge.run(code, timeout=60)) == ["1001 1000", total, total]


async def test_a_replay_gets_the_same_file_or_says_that_it_has_changed(sandboxes, data):
    path = data.write("a.txt", "before")
    async with sandboxes.open(governance=data.governed(a="a.txt", rest="a.txt")) as bridge:
        record = await bridge.run('print(open("/workspace/in/a").read(), runtime.files())')

        async def replayed():
            stored = await bridge.lifecycle.stored(record.execution, "local")
            return await bridge.replay_execution(stored)

        assert (await replayed()).agrees
        path.write_text("after!")
        difference = (await replayed()).difference
        assert difference.what == "input"
        shown = [json.dumps(each) for each in (difference.expected, difference.found)]
        for text, content in zip(shown, (b"before", b"after!"), strict=True):
            assert hashlib.sha256(content).hexdigest() in text
        path.unlink()
        difference = (await replayed()).difference
        assert (difference.what, difference.found) == ("input", None)
        path.write_text("before")
        assert (await replayed()).agrees


async def test_a_session_is_rebuilt_with_the_same_files_or_is_lost_and_says_why(sandboxes, data):
    path = data.write("a.txt", "before")
    async with sandboxes.open(governance=data.governed(a="a.txt")) as bridge:
        await bridge.run('text = open("/workspace/in/a").read()', session="s")
        assert (
            printed(await bridge.run('print(text, open("/workspace/in/a").read())', session="s")) == "before before\n"
        )

        async def put_away():
            bridge._shared.live_sessions.end_all()

            async def is_gone():
                return await sandboxes.containers() == []

            await until(is_gone)

        await put_away()
        rebuilt = await bridge.run('print(text, open("/workspace/in/a").read())', session="s")
        assert (printed(rebuilt), rebuilt.session["rebuilt"]) == ("before before\n", 2)
        path.write_text("after")
        await put_away()
        error = await failure(bridge.run, "print(text)", session="s")
        assert (error.code, error.details["cell"], error.details["what"]) == ("session_lost", 1, "input")
        assert "input_changed" in error.message
        assert "With the file put back" in error.hint
        path.write_text("before")
        assert printed(await bridge.run("print(text)", session="s")) == "before\n"
        await put_away()
    for governance in (None, data.governed(b="a.txt")):
        async with sandboxes.open(governance=governance) as bridge:
            error = await failure(bridge.run, "print(text)", session="s")
            assert (error.code, error.details["what"]) == ("session_lost", "input")
            assert "can't be had now: There is no input 'a'" in error.message


async def test_a_run_that_goes_on_from_its_record_is_stopped_where_its_input_has_changed(sandboxes, data):
    path = data.write("a.txt", "before")
    code = """
from mcp.servers import faulty
text = open("/workspace/in/a").read()
print(text, await faulty.echo(text))
"""
    tables = {"policy": {"rules": [{"tools": ["faulty.*"], "effect": "approve"}]}}

    class Yes:
        may_vanish = False

        async def ask(self, *_):
            return True

    async with sandboxes.open(faulty(), governance=data.governed(tables, a="a.txt")) as bridge:
        record = await bridge.run(code, key="k", files=["a"])
        assert record.status == "suspended", record.error
        path.write_text("after!")
        record = await bridge.run(code, key="k", files=["a"], asker=Yes())
        assert (record.status, record.error["code"]) == ("error", "input_changed")
        assert "'a'" in record.error["message"]
        path.write_text("before")
        record = await bridge.run(code, key="k", files=["a"], asker=Yes())
        assert printed(record) == "before before\n"
        # What was given under the key is given again, whatever the file is by now.
        path.write_text("after!")
        assert printed(await bridge.run(code, key="k", files=["a"])) == "before before\n"


async def test_a_run_that_goes_on_without_any_input_by_now_is_stopped_there_and_can_go_on_later(sandboxes, data):
    """It opens what was handed in by its path, as if nothing were configured otherwise."""
    data.write("a.txt", "before")
    code = """
from mcp.servers import faulty
text = open("/workspace/in/a").read()
print(text, await faulty.echo(text))
"""
    tables = {"policy": {"rules": [{"tools": ["faulty.*"], "effect": "approve"}]}}

    class Yes:
        may_vanish = False

        async def ask(self, *_):
            return True

    governance = data.governed(tables, a="a.txt")
    async with sandboxes.open(faulty(), governance=governance) as bridge:
        assert (await bridge.run(code, key="k")).status == "suspended"
        bridge.restrict({"faulty"}, governance.snapshot, inputs={})
        record = await bridge.run(code, key="k", asker=Yes())
        assert (record.status, record.error["code"]) == ("error", "input_changed")
        bridge.restrict({"faulty"}, governance.snapshot, inputs=governance.inputs)
        assert printed(await bridge.run(code, key="k", asker=Yes())) == "before before\n"


HOSTILE = """
import sys, json
from mcp_bridge.wire.messages import InputList, InputOpen, InputRead
import gc
from mcp_bridge.guest.channel import Channel, RequestError
[channel] = [thing for thing in gc.get_objects() if type(thing) is Channel]
def told(params):
    try:
        return "given " + json.dumps(channel.request(params), default=str)[:60]
    except RequestError as exc:
        return exc.data["code"]
opened = channel.request(InputOpen("a"))
"""


async def test_a_hostile_guest_gets_errors_and_nothing_else(sandboxes, data):
    data.write("a.txt", "the content")
    data.write("secret.txt", "the secret")
    data.write("folder/x", "x")
    governance = data.governed(a="a.txt", folder="folder", hidden="secret.txt")
    asked = [
        "InputRead('a', opened['version'], -1)",
        "InputRead('a', opened['version'], 1)",
        "InputRead('a', opened['version'], 2**62)",
        "InputRead('a', 'f' * 64, 0)",
        "InputRead('hidden', opened['version'], 0)",
        "InputRead('a/../hidden', opened['version'], 0)",
        "InputOpen('')",
        "InputOpen('/')",
        "InputOpen('folder/../../secret.txt')",
        "InputOpen('folder/' + '/'.join('x' * 100))",
        "InputOpen('folder/\\0')",
        "InputOpen('x' * 5000)",
        "InputOpen('hidden')",
        "InputList('folder/..')",
        "InputList(None, -5)",
        "InputList(None, 2**62)",
    ]
    code = HOSTILE + "\n".join(f"print(told({each}))" for each in asked)
    async with sandboxes.open(governance=governance) as bridge:
        out = lines(await bridge.run(code, files=["a", "folder"]))
        assert out[:14] == [
            "bad_request",
            "bad_request",
            "bad_request",
            "file_changed",
            "unknown_input",
            "unknown_input",
            "unknown_input",
            "unknown_input",
            "input_refused",
            "input_refused",
            "input_refused",
            "bad_request",
            "unknown_input",
            "input_refused",
        ]
        assert out[14].startswith('given {"files": [{"name": "a"')
        assert out[15].startswith('given {"files": []')
        # What one run has opened, another hasn't.
        other = await bridge.run(
            HOSTILE.replace('channel.request(InputOpen("a"))', "None") + "print(told(InputRead('a', 'f' * 64, 0)))"
        )
        assert lines(other) == ["unknown_input"]


async def test_what_a_flood_of_openings_keeps_is_bounded(sandboxes, data, monkeypatch):
    monkeypatch.setattr("mcp_bridge.executions.inputs.execution_inputs.MAX_OPEN", 20)
    for number in range(100):
        data.write(f"all/{number}", str(number))
    code = """
streams = [runtime.open_input(f"all/{number}") for number in range(100)]
print([stream.read() for stream in streams[95:]])
try:
    streams[0].read()
except mcp.MCPError as exc:
    print(exc.code)
"""
    async with sandboxes.open(governance=data.governed(all="all")) as bridge:
        assert lines(await bridge.run(code)) == [str([str(n).encode() for n in range(95, 100)]), "unknown_input"]


async def test_a_forked_process_is_told_that_it_gets_no_input_even_while_one_is_fetched(sandboxes, data):
    data.write("a.txt", "a")
    code = """
import gc, os, warnings
from mcp_bridge.guest.files.inputs import Inputs
warnings.simplefilter("ignore")
[inputs] = [thing for thing in gc.get_objects() if type(thing) is Inputs]
with inputs._turn:
    child = os.fork()
    if not child:
        try:
            open("/workspace/in/a")
        except RuntimeError as exc:
            os._exit(7 if "forked process" in str(exc) else 8)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(open("/workspace/in/a").read())
"""
    async with sandboxes.open(governance=data.governed(a="a.txt")) as bridge:
        assert lines(await bridge.run(code, timeout=10)) == ["7", "a"]


async def test_who_can_not_fetch_an_input_is_told_to_have_it_fetched_before(sandboxes, data):
    data.write("a.txt", "a")
    data.write("b.txt", "b")
    open_in_c = """
import ctypes, errno, os
path = "/workspace/in/a.parquet"
os.stat(path)
def read_table(path):
    if ctypes.CDLL(None).open(path.encode(), 0) < 0:
        raise OSError(f"[Errno 13] Failed to open local file '{path}'. Detail: [errno 13] Permission denied")
    return "read"
"""
    in_pool = """
import multiprocessing
def first(number):
    return open("/workspace/in/b").read()
def all():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(first, range(2))
"""
    async with sandboxes.open(governance=data.governed(**{"a.parquet": "a.txt"}, b="b.txt")) as bridge:
        record = await bridge.run(f"{open_in_c}read_table(path)")
        assert "write `await runtime.input('a.parquet')` before" in record.error["message"]
        assert (await bridge.run(f"{open_in_c}read_table(await runtime.input('a.parquet'))")).value == "'read'"
        record = await bridge.run(f"{in_pool}all()")
        assert "write first: runtime.input('b')" in record.error["message"]
        assert (await bridge.run(f"{in_pool}await runtime.input('b')\nall()")).value == "['b', 'b']"


async def test_what_is_not_handed_in_of_a_folder_is_told_in_few_lines(sandboxes, data):
    data.write("tree/a", "a")
    for number in range(30):
        (data.folder / "tree" / f"link{number:02}").symlink_to("a")
    async with sandboxes.open(governance=data.governed(tree="tree")) as bridge:
        record = await bridge.run(
            "import os\nprint(os.listdir('/workspace/in/tree'))\nprint(len(runtime.files('tree')))"
        )
        assert lines(record) == ["['a']", "1"]
        told = record.stderr.decode().splitlines()
        assert len(told) == 4, told
        assert all(line.startswith("[not provided: tree/link") for line in told[:3])
        assert told[3] == "[not provided: 27 more of tree]"


async def test_what_is_not_handed_in_of_a_folder_is_told_in_few_lines_in_javascript_too(both, data):
    data.write("tree/a", "a")
    for number in range(30):
        (data.folder / "tree" / f"link{number:02}").symlink_to("a")
    async with both.open(governance=data.governed(tree="tree")) as bridge:
        code = "await runtime.files('tree'); console.log((await runtime.files('tree')).length)"
        record = await bridge.run(code, language="javascript")
    assert lines(record) == ["1"]
    told = record.stderr.decode().splitlines()
    assert all(line.startswith("[not provided: tree/link") for line in told[:3]), told
    assert told[3:] == ["[not provided: 27 more of tree]"]


async def test_names_that_are_left_out_are_not_taken_for_a_number_of_them(bilingual, data):
    data.write("tree/a", "a")
    for number in range(30):
        (data.folder / "tree" / f"{number} more.txt").symlink_to("a")
    code = {"python": "runtime.files('tree')", "javascript": "await runtime.files('tree'); null"}
    async with bilingual.open(governance=data.governed(tree="tree")) as opened:
        record = await opened.run(code)
    assert record.stderr.decode().splitlines()[3:] == ["[not provided: 27 more of tree]"]


async def test_a_name_that_can_not_be_shown_is_not_handed_in_by_asking_for_it_either(bilingual, data):
    data.write("tree/a\nb", "a")
    code = {
        "python": "try: runtime.input('tree/a\\nb')\nexcept mcp.MCPError as exc: print(exc.code)",
        "javascript": "try { await runtime.input('tree/a\\nb') } catch (error) { console.log(error.code) }",
    }
    async with bilingual.open(governance=data.governed(tree="tree")) as opened:
        assert lines(await opened.run(code)) == ["input_refused"]


async def test_an_input_that_is_written_to_is_not_said_to_be_unfetched(sandboxes, data):
    data.write("a.txt", "x")
    async with sandboxes.open(governance=data.governed(a="a.txt")) as bridge:
        record = await bridge.run("open('/workspace/in/a').close()\nopen('/workspace/in/a', 'a')")
        assert (record.error["type"], "fetched" in record.error["message"]) == ("PermissionError", False)
        for said in (
            "could not open /workspace/in/a: Permission denied",
            "No such file or directory (os error 2): /workspace/in/a",
            "IO Error: No files found that match the pattern '/workspace/in/a'",
        ):
            record = await bridge.run(f"raise OSError({said!r})")
            assert "write `await runtime.input('a')`" in record.error["message"]


WRITES = {
    "python": """
import logging, os, pathlib
at = "/workspace/in/a"
def written(write):
    try: write()
    except OSError as exc: return type(exc).__name__
told = [written(write) for write in (
    lambda: open(at, "a"), lambda: open(at, "a+"), lambda: open(at, "r+"), lambda: open(at, "w"), lambda: open(at, "x"),
    lambda: os.open(at, os.O_WRONLY | os.O_APPEND | os.O_CREAT), lambda: os.open(at, os.O_RDWR | os.O_APPEND),
    lambda: logging.basicConfig(filename=at), lambda: pathlib.Path(at).write_text("x"), lambda: os.truncate(at, 0),
)]
print(" ".join(sorted(set(told))), len(told))
print(open(at).read(), written(lambda: open(at, "a")))
open("/workspace/in/own", "a").write("own")
os.unlink("/workspace/in/b")
print(open("/workspace/in/own").read(), open("/workspace/in/b").read())
""",
    "javascript": """
import fs, { promises } from "node:fs";
const at = "/workspace/in/a", told = [];
for (const write of [
  () => fs.appendFileSync(at, "x"), () => fs.writeFileSync(at, "x"), () => fs.openSync(at, "r+"), () => fs.openSync(at, "a"),
  () => fs.openSync(at, "wx"), () => promises.appendFile(at, "x"), () => promises.writeFile(at, "x"), () => promises.open(at, "a"),
  () => new Promise((done, fail) => fs.appendFile(at, "x", (error) => (error ? fail(error) : done()))),
  () => new Promise((done, fail) => fs.createWriteStream(at).on("error", fail).on("open", done)),
]) try { await write(); told.push("written") } catch (error) { told.push({ EACCES: "PermissionError", EEXIST: "FileExistsError" }[error.code]) }
console.log([...new Set(told)].sort().join(" "), told.length);
let after; try { fs.appendFileSync(at, "x") } catch (error) { after = error.code === "EACCES" ? "PermissionError" : error.code }
console.log(fs.readFileSync(at, "utf8"), after);
fs.appendFileSync("/workspace/in/own", "own");
console.log(fs.readFileSync("/workspace/in/own", "utf8"), fs.readFileSync("/workspace/in/b", "utf8"));
""",
}
TOLD_OF_WRITES = {
    "python": {
        "open('/workspace/in/a', 'r+')": "copy it first, `shutil.copyfile('/workspace/in/a', '/tmp/a')`",
        "import os; os.listdir('in'); open('in/a', 'a')": "copy it first, `shutil.copyfile('/workspace/in/a', '/tmp/a')`",
        "import sqlite3; sqlite3.connect('/workspace/in/shop.db').execute('create table t (x)')": "copy it first, `shutil",
        "import zipfile; zipfile.ZipFile('a.zip')": "`runtime.files()` lists the operator's files, which are in /workspace/in; ",
    },
    "javascript": {
        "import fs from 'node:fs'; fs.openSync('/workspace/in/a', 'r+')": "fs.writeFileSync('/tmp/a', fs.readFileSync('/workspace/in/a'))",
        "import fs from 'node:fs'; fs.appendFileSync('in/a', 'x')": "fs.writeFileSync('/tmp/a', fs.readFileSync('/workspace/in/a'))",
        "import { DatabaseSync } from 'node:sqlite'; new DatabaseSync('in/shop.db').exec('create table t (x)')": (
            "copy it first: fs.copyFileSync(await runtime.input('NAME'), '/tmp/NAME'), then fs.chmodSync('/tmp/NAME', 0o600)"
        ),
        "import fs from 'node:fs'; fs.readFileSync('a.zip')": "await runtime.files() lists the operator's files, which are in /workspace/in; ",
    },
}


async def test_an_input_is_not_written_to_whether_it_is_fetched_or_not(bilingual, data):
    data.write("a", "operator's")
    data.write("b", "b")
    with contextlib.closing(sqlite3.connect(data.folder / "shop.db")) as database:
        database.execute("create table orders (x)")
    async with bilingual.open(governance=data.governed(a="a", b="b", shop__db="shop.db")) as opened:
        record = await opened.run(WRITES)
        assert lines(record) == ["FileExistsError PermissionError 10", "operator's PermissionError", "own b"], (
            record.error
        )
        stored = await opened.bridge.lifecycle.stored(record.execution, "local")
        assert (await opened.bridge.replay_execution(stored)).agrees
        for code, told in TOLD_OF_WRITES[opened.language].items():
            record = await opened.run(code)
            assert told in record.error["message"], record.error


DATABASES = """
import fs from "node:fs";
import { DatabaseSync } from "node:sqlite";
for (const place of ["/workspace/in/shop.db", "in/shop.db", "file:/workspace/in/shop.db?mode=ro", new URL("file:///workspace/in/shop.db")]) {
  const database = new DatabaseSync(place, { readOnly: true });
  console.log(database instanceof DatabaseSync, database.prepare("select x from orders").all().map(({ x }) => x).join());
  fs.unlinkSync("/workspace/in/shop.db");
}
const own = new DatabaseSync(":memory:", { open: false });
own.open();
console.log(own.isOpen, (await fs.openAsBlob("in/shop.db")).size > 0);
"""


async def test_node_s_sqlite_opens_what_is_handed_in_and_no_empty_database_in_its_place(both, data):
    with contextlib.closing(sqlite3.connect(data.folder / "shop.db")) as database:
        database.executescript("create table orders (x); insert into orders values (7);")
    async with both.open(governance=data.governed(shop__db="shop.db")) as bridge:
        record = await bridge.run(DATABASES, language="javascript")
        assert lines(record) == ["true 7"] * 4 + ["true true"], record.error
        stored = await bridge.lifecycle.stored(record.execution, "local")
        assert (await bridge.replay_execution(stored)).agrees


async def test_a_stream_of_an_earlier_cell_is_not_read_by_a_later_one(sandboxes, data):
    data.write("a.txt", "x" * 3_000_000)
    async with sandboxes.open(governance=data.governed(a="a.txt")) as bridge:
        printed(await bridge.run("file = runtime.open_input('a'); file.read(10)", session="s"))
        code = """
codes = []
for _ in range(3):
    try:
        file.seek(2_000_000); file.read(10)
    except mcp.MCPError as exc:
        codes.append(exc.code)
print(codes[-1], runtime.open_input('a').read(3))
"""
        assert lines(await bridge.run(code, session="s")) == ["unknown_input b'xxx'"]
        # The cell narrows what the next one has, and not the session.
        narrowed = "try: runtime.input('a')\nexcept mcp.MCPError as exc: print(exc.code)"
        assert lines(await bridge.run(narrowed, session="s", files=[])) == ["unknown_input"]
        await bridge.end_session("s")


async def test_cells_in_javascript_have_inputs_each_its_own_also_when_they_are_rebuilt(both, data):
    path = data.write("a", "before")
    data.write("b", "b" * 3_000_000)
    async with both.open(governance=data.governed(a="a", b="b")) as bridge:

        async def cell(code, **options):
            record = await bridge.run(code, session="s", language="javascript", **options)
            assert record.status == "success", record.error
            return record.value

        code = "import fs from 'node:fs'\nconst text = fs.readFileSync('/workspace/in/a', 'utf8'); text"
        assert await cell(code) == "'before'"
        opened = "let file = await runtime.open_input('b'); [await fs.promises.readFile('in/b'), await file.read(0, 1)].map(String).map((x) => x.length)"
        assert await cell(opened) == "[ 3000000, 1 ]"
        again = """
const codes = [];
for (const at of [0, 2_000_000]) try { await file.read(at, at + 1) } catch (error) { codes.push(error.code) }
file = await runtime.open_input('b');
[...codes, `${await file.read(0, 3)}`]
"""
        assert await cell(again) == "[ 'unknown_input', 'unknown_input', 'bbb' ]"
        narrowed = """
const found = [(await runtime.files()).length, fs.readFileSync('in/a', 'utf8')];
try { await runtime.input('b') } catch (error) { found.push(error.code) }
found
"""
        assert await cell(narrowed, files=["a"]) == "[ 1, 'before', 'unknown_input' ]"
        bridge.end_sessions()
        assert await cell("[text, found.length, codes.length]") == "[ 'before', 3, 2 ]"
        path.write_text("after")
        bridge.end_sessions()
        error = await failure(bridge.run, "text", session="s", language="javascript")
        assert (error.code, error.details["cell"], error.details["what"]) == ("session_lost", 1, "input")


async def test_what_a_cell_in_javascript_has_left_fetches_nothing_for_a_later_one(both, data):
    """Whether it is being fetched when its cell ends, or only asked for later."""
    data.write("a", "a")
    data.write("big", bytes(24 << 20))
    async with both.open(governance=data.governed(a="a", big="big")) as bridge:

        async def cell(code, **options):
            return await bridge.run(code, session="s", language="javascript", **options)

        left = """
import fs from 'node:fs'
let go; const gate = new Promise((resolve) => { go = resolve }), told = [];
const left = [
  gate.then(() => fs.readFileSync('in/a')).catch((error) => told.push(error.code)),
  gate.then(() => fs.promises.readFile('in/a')).catch((error) => told.push(error.code)),
];
runtime.input('big').catch((error) => told.push(error.code));
throw new Error('end')
"""
        assert (await cell(left)).error["message"] == "end"
        after = await cell("go(); await Promise.all(left); told")
        assert (after.value, after.session["cell"]) == ("[ 'cell_ended', 'cell_ended', 'cell_ended' ]", 2), after.error
        entries = await entries_of(bridge)(after)
        assert not [one for one in entries if isinstance(one, RequestOutcome)]
        assert (await cell("fs.readFileSync(await runtime.input('a'), 'utf8')")).value == "'a'"


async def test_a_cell_in_javascript_that_is_interrupted_while_it_fetches_leaves_no_answer_to_the_next(both, data):
    data.write("a", "a")
    code = """
import fs from 'node:fs'
for (;;) {
  for (const until = Date.now() + 1; Date.now() < until;);
  try { fs.readFileSync('in/none') } catch {}
}
"""
    async with both.open(governance=data.governed(a="a")) as bridge:
        # Node's own start, which may take a busy machine longer than the limit below, can't be interrupted.
        await bridge.run("1", session="s", language="javascript")
        for number in (2, 4, 6, 8, 10, 12):
            record = await bridge.run(code, session="s", language="javascript", timeout=0.5)
            assert (record.status, record.session) == ("timeout", {"name": "s", "cell": number, "interrupted": True})
            after = "fs.rmSync('in/a', { force: true }); fs.readFileSync('in/a', 'utf8')"
            record = await bridge.run(after, session="s", language="javascript")
            assert (record.value, record.session) == ("'a'", {"name": "s", "cell": number + 1}), record.error


async def test_a_cancelled_call_ends_the_hashing_of_a_large_file(sandboxes, data):
    with (data.folder / "huge").open("wb") as file:
        file.truncate(400 << 30)
    governance = data.governed(huge={"path": "huge", "max_size": 500 << 30})
    async with sandboxes.open(governance=governance) as bridge:
        begun = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def run():
                await bridge.run("progress(1)\nruntime.open_input('huge')", progress=lambda *_: begun.set())

            tasks.start_soon(run)
            await begun.wait()
            tasks.cancel_scope.cancel()
        # Closing the bridge waits for every thread: the hashing would take minutes.


NAMES = """
import csv, ctypes, errno, glob, os, pathlib, shutil, sqlite3, stat, subprocess, sys, zipfile
at = "/workspace/in"
print(os.path.exists(f"{at}/a b.csv"), os.path.getsize(f"{at}/big"), os.path.exists(f"{at}/none"), os.access(f"{at}/z", os.R_OK))
print(sorted(pathlib.Path(at).iterdir())[0].name, [p.name for p in sorted(pathlib.Path(at, "tree").rglob("*.txt"))])
print(glob.glob("in/tree/**/*.txt", recursive=True) == [f"in/tree/{n}" for n in ("-x.txt",)] + ["in/tree/deep/é.txt"])
print([(where[len(at):], sorted(names)) for where, _, names in os.walk(f"{at}/tree")])
libc = ctypes.CDLL(None, use_errno=True)
def native(path):
    fd = libc.open(os.fsencode(path), 0)
    return os.read(fd, 9) if fd >= 0 else errno.errorcode[ctypes.get_errno()]
print(native(f"{at}/big"), native(f"{at}/tree/-x.txt"))
print(list(csv.reader(open(f"{at}/a b.csv"))), native(f"{at}/a b.csv"))
with zipfile.ZipFile(pathlib.Path(at, "z")) as z: print(z.namelist())
print(sqlite3.connect(f"file:{at}/db?mode=ro", uri=True).execute("SELECT x FROM t").fetchall())
os.chdir(f"{at}/tree")
print(shutil.copy("-x.txt", "/tmp/copy"), open("/tmp/copy").read(), os.stat("-x.txt").st_size)
os.rename("deep/é.txt", "/workspace/moved")
print(open("/workspace/moved").read(), os.path.exists("deep/é.txt"))
print(subprocess.run([sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", f"{at}/child"],
                     capture_output=True, text=True).stdout.strip())
print(open(f"{at}/empty").read() == "", os.path.getsize(f"{at}/empty"))
open(f"{at}/own", "w").write("own")
print(open(f"{at}/own").read(), open(f"{at}/spare").read())
"""


BY_DESCRIPTOR = """
import os
names = os.listdir("/workspace/in")
def read(name, at):
    with open(name, opener=lambda path, flags: os.open(path, flags, dir_fd=at)) as file: return file.read()
print([[read(name, at) for name in sorted(found)] for _, _, found, at in os.fwalk("/workspace/in/tree")])
at = os.open("/workspace/in/other", os.O_RDONLY)
print(os.listdir(at), os.stat("b", dir_fd=at).st_size, os.read(os.open("b", os.O_RDONLY, dir_fd=at), 9))
try: os.open("b", os.O_WRONLY, dir_fd=at)
except PermissionError as error: print(error.strerror)
os.mkdir("/tmp/own")
own = os.open("new", os.O_WRONLY | os.O_CREAT, 0o640, dir_fd=os.open("/tmp/own", os.O_RDONLY))
print(oct(os.fstat(own).st_mode), os.open in os.supports_dir_fd, os.open.__name__)
"""


async def test_what_is_opened_by_the_descriptor_of_its_folder_is_fetched(sandboxes, data):
    for name in ("tree/a", "tree/deep/b", "other/b"):
        data.write(name, name)
    async with sandboxes.open(governance=data.governed(tree="tree", other="other")) as bridge:
        record = await bridge.run(BY_DESCRIPTOR)
        assert lines(record) == [
            "[['tree/a'], ['tree/deep/b']]",
            "['b'] 7 b'other/b'",
            "Permission denied",
            "0o100640 True open",
        ]


async def test_what_is_handed_in_is_there_before_it_is_fetched_and_never_reads_as_something_else(sandboxes, data):
    data.write("a.csv", "1,2\n")
    for name in ("child", "spare"):
        data.write(name, name)
    data.write("empty", "")
    for name in ("-x.txt", "deep/é.txt"):
        data.write(f"tree/{name}", name)
    with (data.folder / "big").open("wb") as file:
        file.truncate(2 << 30)
    with zipfile.ZipFile(data.folder / "z", "w") as archive:
        archive.writestr("inner", "x")
    with contextlib.closing(sqlite3.connect(data.folder / "db")) as database:
        database.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (7)")
    names = {name: name for name in ("child", "spare", "empty", "tree", "big", "z", "db")}
    async with sandboxes.open(governance=data.governed(**{"a.csv": "a.csv"}, **names)) as bridge:
        record = await bridge.run(NAMES.replace("a b.csv", "a.csv"), timeout=60)
        assert lines(record) == [
            f"True {2 << 30} False True",
            "a.csv ['-x.txt', 'é.txt']",
            "True",
            "[('/tree', ['-x.txt']), ('/tree/deep', ['é.txt'])]",
            "EACCES EACCES",
            "[['1', '2']] b'1,2\\n'",
            "['inner']",
            "[(7,)]",
            "/tmp/copy -x.txt 6",
            "deep/é.txt False",
            "child",
            "True 0",
            "own spare",
        ], record.stderr
        opened = [
            said.request.name
            for said in await entries_of(bridge)(record)
            if isinstance(said, RequestOutcome) and said.request.name == "input.open"
        ]
        assert len(opened) == 8, "what nobody opened wasn't read"
        stored = await bridge.lifecycle.stored(record.execution, "local")
        assert (await bridge.replay_execution(stored)).difference is None


async def test_a_cell_has_the_names_of_its_own_inputs_and_what_earlier_cells_have_fetched(sandboxes, data):
    for name in ("f", "g", "tree/a", "tree/b"):
        data.write(name, name)
    async with sandboxes.open(governance=data.governed(f="f", g="g", tree="tree")) as bridge:

        async def cell(code, **options):
            return (await bridge.run(f"import os\nos.chdir('/workspace/in')\n{code}", session="s", **options)).value

        assert await cell("open('tree/a').read(), sorted(os.listdir()), sorted(os.listdir('tree'))") == str(
            ("tree/a", ["f", "g", "tree"], ["a", "b"])
        )
        assert await cell("sorted(os.listdir()), os.path.exists('f')", files=["g"]) == str((["g", "tree"], False))
        assert await cell("sorted(os.listdir('tree')), open('tree/b').read()") == str((["a", "b"], "tree/b"))
        bridge.end_sessions()
        assert await cell("sorted(os.listdir('tree')), open('f').read()") == str((["a", "b"], "f"))


async def test_an_input_that_is_gone_when_it_is_opened_is_not_found(sandboxes, data):
    data.write("f", "f")
    async with sandboxes.open(faulty(), governance=data.governed(f="f")) as bridge:
        code = (
            "import os, time\nprint(os.path.exists('/workspace/in/f'))\nprogress(1)\nwhile True:\n"
            "    try: runtime.input('f')\n    except mcp.MCPError: break\n    time.sleep(0.05)\n"
            "try: open('/workspace/in/f')\nexcept OSError as exc: print(type(exc).__name__)"
        )

        def gone(*_):
            (data.folder / "f").unlink(missing_ok=True)

        assert lines(await bridge.run(code, progress=gone))[-1:] == ["FileNotFoundError"]


WAYS = """
import os
at = "/workspace/in"
os.chdir(f"{at}/tree/deep")
print(os.listdir(), open("b.txt").read())
with open(f"{at}/tree/own.txt", "w") as file: file.write("own")
os.mkdir(f"{at}/other/new")
print(sorted(os.listdir(f"{at}/tree")), sorted(os.listdir(f"{at}/other")), open(f"{at}/tree/.parts").read())
"""


async def test_a_folder_is_entered_and_written_to_before_anybody_has_looked_at_it(sandboxes, data):
    for name in ("tree/.parts", "tree/a.txt", "tree/deep/b.txt", "other/c"):
        data.write(name, name)
    tables = {"files": {"tree": {"path": "tree", "dot_files": True}, "other": "other"}}
    async with sandboxes.open(governance=data.governed(tables)) as bridge:
        record = await bridge.run(WAYS)
        assert lines(record) == [
            "['b.txt'] tree/deep/b.txt",
            "['.parts', 'a.txt', 'deep', 'own.txt'] ['c', 'new'] tree/.parts",
        ], record.error
        listed = "import os\nprint(len(os.listdir(os.open('/workspace/in', os.O_RDONLY))))"
        assert lines(await bridge.run(listed)) == ["2"]
        stored = await bridge.lifecycle.stored(record.execution, "local")
        assert (await bridge.replay_execution(stored)).agrees


async def test_a_folder_of_which_files_are_there_is_listed_whole_in_javascript(both, data):
    for name in ("tree/.parts", "tree/a.txt", "tree/deep/b.txt", "one"):
        data.write(name, name)
    code = """
import fs from "node:fs";
console.log(fs.readFileSync("in/tree/a.txt", "utf8"), fs.readdirSync("in/tree", { recursive: true }).sort().join());
console.log(fs.readdirSync("in/tree/deep").join(), (await fs.promises.readdir("in/tree")).length, fs.readFileSync("in/tree/.parts", "utf8"));
console.log(fs.readFileSync(Buffer.from("/workspace/in/one"), "utf8"));
try { fs.readFile("/workspace/in/nothing") } catch (error) { console.log(error.code) }
await runtime.sleep_until(Date.now() - 1, null);
"""
    tables = {"files": {"tree": {"path": "tree", "dot_files": True}, "one": "one"}}
    async with both.open(governance=data.governed(tables)) as bridge:
        record = await bridge.run(code, language="javascript")
        assert lines(record) == [
            "tree/a.txt .parts,a.txt,deep,deep/b.txt",
            *("b.txt 3 tree/.parts", "one", "ERR_INVALID_ARG_TYPE"),
        ], record.error
        stored = await bridge.lifecycle.stored(record.execution, "local")
        assert (await bridge.replay_execution(stored)).agrees


MOVED_FOLDERS = {
    "python": """
import os, shutil
shutil.move("/workspace/in/first", "/workspace/out/")
os.path.getsize("/workspace/in/second/a.csv")
os.rename("/workspace/in/second", "/workspace/out/second")
open("/workspace/in/third/a.csv").close()
os.replace("in/third", "out/third")
print(os.listdir("/workspace/in"), open("out/second/b.csv").read())
""",
    "javascript": """
import fs from "node:fs";
fs.renameSync("/workspace/in/first", "/workspace/out/first");
fs.readFileSync("in/second/a.csv");
await fs.promises.rename("in/second", "out/second");
await new Promise((done, fail) => fs.rename("in/third", "out/third", (error) => (error ? fail(error) : done())));
console.log(fs.readdirSync("/workspace/in"), fs.readFileSync("out/second/b.csv", "utf8"));
""",
}


async def test_a_folder_that_is_moved_before_all_of_it_is_fetched_is_moved_whole(bilingual, data):
    folders = ("first", "second", "third")
    for folder in folders:
        data.write(f"{folder}/a.csv", "1")
        data.write(f"{folder}/b.csv", "real")
    async with bilingual.open(governance=data.governed(**{folder: folder for folder in folders})) as opened:
        record = await opened.run(MOVED_FOLDERS)
        assert lines(record) == ["[] real"], record.error
        assert {(row["name"], row["size"]) for row in record.artifacts} == {
            (f"{folder}__{name}", size) for folder in folders for name, size in (("a.csv", 1), ("b.csv", 4))
        }
        stored = await opened.bridge.lifecycle.stored(record.execution, "local")
        assert (await opened.bridge.replay_execution(stored)).agrees


async def test_a_name_that_was_moved_without_its_content_is_not_kept_and_that_is_said(sandboxes, data):
    data.write("a.csv", "real")
    data.write("folder/b.csv", "real")
    code = """
import os
out, here = "/workspace/out/", os.open("/workspace/in", os.O_RDONLY)
os.listdir("/workspace/in/folder")
os.rename("a.csv", out + "moved.csv", src_dir_fd=here)
os.rename("folder", out + "folder", src_dir_fd=here)
"""
    async with sandboxes.open(governance=data.governed(a__csv="a.csv", folder="folder")) as bridge:
        record = await bridge.run(code)
        assert (record.status, record.artifacts) == ("success", []), record.error
        assert sorted(record.stderr.decode().splitlines()) == [
            "[not kept: /workspace/out/folder/b.csv: it is an input that wasn't fetched]",
            "[not kept: /workspace/out/moved.csv: it is an input that wasn't fetched]",
        ]
