"""Sessions in JavaScript: what stays from cell to cell, how cells end, and how sessions are rebuilt."""

from contextlib import asynccontextmanager

import pytest
from execution_fixtures import lines, printed, until
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.session_limits import SessionSettings

pytestmark = [pytest.mark.xdist_group("sessions"), pytest.mark.usefixtures("no_internal_errors")]


@asynccontextmanager
async def opened(both, **settings):
    """What runs a cell of the session `s`; its `bridge`."""
    async with both.open(faulty(), **settings) as bridge:

        async def run(code, **options):
            return await bridge.run(code, **{"session": "s", "language": "javascript", **options})

        run.bridge = bridge
        yield run


async def refused(run, code, **options):
    with pytest.raises(BridgeError) as caught:
        await run(code, **options)
    return caught.value


def put_away(cells):
    for key in cells.bridge._shared.live_sessions.idle:
        assert cells.bridge._shared.live_sessions.end(key)


async def well(cells, code, **options):
    record = await cells(code, **options)
    assert record.status == "success", f"{code}\n{record.error}\n{record.stderr.decode()}"
    return record


async def test_cells_whose_text_comes_in_several_pieces_are_run(both):
    async with opened(both) as cells:
        for name in ("s", "t"):
            for number in (1, 2):
                record = await well(
                    cells, f"//{'x' * 300_000}\nglobalThis.n = (globalThis.n ?? 0) + 1; n", session=name
                )
                assert record.value == str(number)


async def test_a_cell_that_waits_for_an_answer_of_a_person_is_told_that_there_is_none(both):
    async with opened(both) as cells:
        await well(cells, "const asking = require('readline').createInterface({ input: process.stdin }); 1")
        for _ in range(2):
            record = await cells("await new Promise((done) => asking.question('Your name? ', done))")
            assert "nobody can answer here" in record.error["message"]


ODD = [
    # What each cell is, and what its value is.
    ("const a = 1, b = [2, 3]; let c; var d = {e: 4}", None),
    ("[a, b, c, d]", "[ 1, [ 2, 3 ], undefined, { e: 4 } ]"),
    ("const {e, f: [g, ...h] = [5, 6, 7], ...rest} = {e: 1, i: 2, j: 3}", None),
    ("[e, g, h, rest]", "[ 1, 5, [ 6, 7 ], { i: 2, j: 3 } ]"),
    ("let [k, , l = 9] = [1, 2]\nconst m = `const n = ${k}; ${[1].map((x) => { const y = x; return y })}`", None),
    ("[k, l, m]", "[ 1, 9, 'const n = 1; 1' ]"),
    ("// const no1 = 1\n/* let no2 = 2 */\nconst text = 'const no3 = 3', re = /let no4 = \"/, after = 4 / 2 / 1", None),
    ("[typeof no1, typeof no2, typeof no3, text, re.source, after]", None),
    (
        "function f() { return g() * 2 }\nasync function* gen() { yield 1 }\nclass C extends Map { static x = 1; #y = 2; y() { return this.#y } }",
        None,
    ),
    ("function g() { return 21 }", None),
    ("[f(), f.name, new C().y(), C.name, (await gen().next()).value]", "[ 42, 'f', 2, 'C', 1 ]"),
    ("g = () => 1; f()", "2"),
    ("function g() { return 2 }\nf()", "4"),
    ("const a = 'again'; a", "'again'"),
    ("let a = `${a}!`; a", "'again!'"),
    (
        "for (var i = 0, {z} = {z: 5}; i < 3; i++) { var last = i }\nfor (var one of [7, 8]);\nfor (var {q} of [{q: 3}]);\n[i, z, last, one, q]",
        "[ 3, 5, 2, 8, 3 ]",
    ),
    ("for (var async of [1, 2]);\nfor (var key in {p: 1});\n[async, key]", "[ 2, 'p' ]"),
    (
        "if (true) var inIf = 1; else var inElse = 2\ndo var inDo = 3; while (false)\n[inIf, inElse, inDo]",
        "[ 1, undefined, 3 ]",
    ),
    ("const s = 1\nconst [t] = [2]\nlet u = s\n;[s, t, u]", "[ 1, 2, 1 ]"),
    (
        "interface P { x: number }\ntype Q = P | null\nconst p: P = { x: 1 }\nfunction id<T>(x: T): T { return x }\nlet w = id<number>(p.x) as number; w",
        "1",
    ),
    ("import fs, { readFileSync as read } from 'node:fs'\nimport * as path from 'node:path'", None),
    ("[fs.readFileSync === read, path.join('a', 'b')]", "[ true, 'a/b' ]"),
    ("const os = await import('node:os'); typeof os.cpus", "'function'"),
    ("export const exported = 1; export default function named() { return 2 }\nexport { exported as other }", None),
    ("[exported, named()]", "[ 1, 2 ]"),
    ("const later = async () => { const { sep } = await import('node:path'); return sep }\nlater()", "'/'"),
    ("label: for (const x of [1]) { for (;;) { let hidden = x; break label } }\ntypeof hidden", "'undefined'"),
    ("[this, typeof import.meta.url]", "[ undefined, 'string' ]"),
    ("const process = 4, Buffer = 5, URL = 6, setImmediate = 10\nconst crypto = { mine: true }", None),
    ("[process, Buffer, URL, crypto.mine]", "[ 4, 5, 6, true ]"),
    ("import { faulty } from 'mcp/servers'\nawait faulty.echo({ text: 'x' })", "'x'"),
    ("await faulty.echo({ text: 'y' })", "'y'"),
    ("#!/usr/bin/env node\n({ a: 1 })", "{ a: 1 }"),
    ("```js\nconst fenced = 1\nfenced\n```", "1"),
    ("'use strict'", "'use strict'"),
    ("", None),
]


async def test_names_stay_whatever_declares_them(both):
    async with opened(both) as cells:
        for code, value in ODD:
            if not code:
                continue
            record = await well(cells, code)
            if value is not None:
                assert record.value == value, code
        put_away(cells)
        record = await well(cells, "[w, k, fenced, f(), h, URL]")
        assert record.value == "[ 1, 1, 1, 4, [ 6, 7 ], 6 ]"
        assert record.session["rebuilt"] == len(ODD) - 1


async def test_what_a_declaration_means_is_as_in_a_module(both):
    async with opened(both) as cells:
        for code, kind, words in (
            ("const x = 1; x = 2", "TypeError", "Cannot assign to read only property 'x'"),
            ("x++", "TypeError", "Cannot assign to read only"),
            ("y; let y = 1", "ReferenceError", "Cannot access 'y' before initialization"),
            ("y", "ReferenceError", "y is not defined"),
            ("let z = nope()", "ReferenceError", "nope is not defined"),
            ("z", "ReferenceError", "z is not defined"),
            ("undeclared = 1", "ReferenceError", "undeclared is not defined"),
            ("let v = 1; let v = 2", "SyntaxError", "already been declared"),
            ("const undefined = 1", "SyntaxError", "can't be declared"),
            ("class Map {}", "SyntaxError", "'Map' is JavaScript's own"),
            ("return 1", "SyntaxError", "'return' outside of function"),
            ("import { nope } from 'node:fs'", "SyntaxError", "does not provide an export named 'nope'"),
            ("enum E { A }", "SyntaxError", "only types that can be left out"),
        ):
            record = await cells(code)
            assert (record.status, record.error["type"]) == ("error", kind), (code, record.error)
            assert words in record.error["message"], (code, record.error)
        assert (await well(cells, "[x, typeof z, typeof v]")).value == "[ 1, 'undefined', 'undefined' ]"


async def test_an_error_names_its_line_in_the_cell_that_runs_and_in_the_one_that_has_the_function(both):
    async with opened(both) as cells:
        await well(cells, "const seen = [1]\nfunction f() {\n  throw new RangeError('low')\n}")
        record = await cells("\n\nconst x = 1; f()")
        assert (record.status, record.error["type"], record.error["line"]) == ("error", "RangeError", 3)
        assert "cell-1.js:3:9" in record.error["traceback"]
        assert "cell-2.js:3:14" in record.error["traceback"]
        assert "__mcp" not in record.error["traceback"]
        assert (await cells("const = 1")).error["line"] == 1
        assert (await well(cells, "seen")).value == "[ 1 ]"


async def test_what_a_cell_declares_is_not_what_the_bridge_uses(both):
    async with opened(both) as cells:
        for code in (
            "const require = (m: string) => { throw new Error('ESM only') }; 1",
            "function require(x) { return {} }\nfunction structuredClone() {}\nconst URL = 5, performance = 6, module = 7",
        ):
            await well(cells, code)
            assert (await well(cells, "const x: number = 6 * 7; x")).value == "42"
            assert (await well(cells, "2 ** 3; display([{ a: 1 }])", session="copy", fork="s")).status == "success"
            await cells.bridge.run("await runtime.end_session('copy')")


async def test_guards_of_an_entry_point_hold_in_cells_and_dry_runs(both):
    code = "const ran = [];\nif (require.main === module) ran.push(1);\nif (import.meta.main) ran.push(2);\nran"
    async with opened(both) as cells:
        assert (await well(cells, code)).value == "[ 1, 2 ]"
        for place in ("s", None):
            assert (await well(cells, code, session=place, dry_run=True)).value == "[ 1, 2 ]"


async def test_an_import_that_fails_and_a_constant_are_told_with_their_line_and_what_to_write(both):
    async with opened(both) as cells:
        bad = (await cells("const a = 1;\nimport { nope } from 'node:fs'")).error
        assert (bad["line"], bad["traceback"].split("\n")[0]) == (2, "cell-1.js:2")
        missing = (await cells("import x from 'lodash'")).error
        assert (missing["line"], "Session" in missing["traceback"]) == (1, False)
        await well(cells, "const fixed = 1")
        assert "a cell may declare it again: let fixed = ..." in (await cells("fixed = 2")).error["message"]
        assert (await well(cells, "export { fixed as other };\nlet fixed = 2; fixed")).value == "2"
        await well(cells, "export { fixed }")


async def test_advice_on_a_missing_file_knows_that_files_of_a_session_stay(both):
    async with opened(both) as cells:
        record = await cells("const fs = require('node:fs'); fs.readFileSync('missing')")
        assert "no cell of this session has left that file" in record.error["message"]


async def test_an_exit_ends_its_cell_at_once_and_no_other(both):
    async with opened(both) as cells:
        for code in (
            "let x = 1; process.exit(3); x = 2",
            "try { process.exit(3) } catch { x = 3 } finally { x = 4 }",
            "await null; process.exit(3)",
            "setTimeout(() => process.exit(3), 5); await new Promise(() => {})",
            "process.exitCode = 3",
        ):
            record = await cells(code)
            assert (record.status, record.exit_code) == ("exit", 3), (code, record.error)
        assert (await well(cells, "x")).value == "1"
        put_away(cells)
        assert (await well(cells, "x")).value == "1"


@pytest.mark.parametrize(
    "code",
    [
        "while (true);",
        "await null; while (true) { try { while (true); } catch {} }",
        "setTimeout(() => { while (true); }, 1)",
        "await new Promise((done) => setTimeout(done, 100_000))",
        "setInterval(() => {}, 10)",
        "while (true) await null",
        "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
        "import { faulty } from 'mcp/servers'\nwhile (true) await faulty.echo({ text: 'x' })",
        "process.nextTick(() => { while (true); }); await new Promise(() => {})",
    ],
    ids=["loop", "stubborn", "timer", "sleep", "interval", "microtasks", "blocking", "calls", "tick"],
)
async def test_a_time_out_interrupts_the_cell_and_the_session_goes_on(both, code):
    async with opened(both) as cells:
        await well(cells, "let x = 1")
        record = await cells(code, timeout=1)
        assert (record.status, record.exit_code, record.error["code"]) == ("timeout", 124, "script_timeout")
        assert record.session == {"name": "s", "cell": 2, "interrupted": True}
        for number in (3, 4):
            after = await well(
                cells,
                "await new Promise((done) => setTimeout(done, 5))\nimport { faulty } from 'mcp/servers'\n"
                "[x, await faulty.echo({ text: 'y' })]",
            )
            assert (after.value, after.session) == ("[ 1, 'y' ]", {"name": "s", "cell": number})


async def test_a_cell_that_can_not_be_interrupted_costs_the_sandbox_and_the_names_are_rebuilt(both):
    async with opened(both) as cells:
        await well(cells, "let x = 1")
        stubborn = "x = 2; require('child_process').spawnSync(process.execPath, ['-e', 'setInterval(() => {}, 1e6)'])"
        record = await cells(stubborn, timeout=1)
        assert record.status == "timeout"
        assert "interrupted" not in record.session
        after = await well(cells, "x")
        assert (after.value, after.session) == ("1", {"name": "s", "cell": 3, "rebuilt": 1})


async def test_a_cell_ends_when_nothing_of_it_is_left_to_be_done(both):
    async with opened(both) as cells:
        record = await well(cells, "setTimeout(() => console.log('later'), 50); console.log('first')")
        assert lines(record) == ["first", "later"]
        assert "nothing will settle" in (await cells("await new Promise(() => {})")).error["message"]
        forgotten = await cells("import { faulty } from 'mcp/servers'\nfaulty.echo({ text: 'x' })\n1")
        assert (forgotten.status, forgotten.error["type"]) == ("error", "NotAwaitedError")
        uncaught = await cells("setTimeout(() => { throw new TypeError('late') }, 5)")
        assert (uncaught.status, uncaught.error["type"]) == ("error", "TypeError")
        assert (await cells("Promise.reject(new EvalError('alone')); 1")).error["type"] == "EvalError"
        of_handler = await cells(
            "process.once('uncaughtException', () => { throw new URIError('again') })\nsetTimeout(() => { throw new TypeError('late') }, 5)"
        )
        assert (of_handler.status, of_handler.error["type"]) == ("error", "URIError")
        await well(cells, "const server = require('net').createServer().listen('/tmp/socket')\n1")
        assert (await well(cells, "server.listening")).value == "true"


async def test_what_a_cell_has_left_makes_no_call_and_prints_to_no_other(both):
    async with opened(both) as cells:
        record = await cells(
            "import { faulty } from 'mcp/servers'\nimport { EventEmitter } from 'node:events'\nlet told = []\nconst events = new EventEmitter()\n"
            "let go; const gate = new Promise((resolve) => { go = resolve })\n"
            "const left = gate.then(() => faulty.echo({ text: 'left' })).catch((error) => told.push(error.code))\n"
            "setTimeout(() => told.push('timer'), 60_000)\nthrow new Error('end')"
        )
        assert record.error["message"] == "end"
        after = await well(cells, "go(); await left; told")
        assert after.value == "[ 'cell_ended' ]"
        assert after.calls == 0


async def test_a_call_that_is_under_way_when_its_cell_fails_disturbs_no_other(both):
    async with opened(both) as cells:
        record = await cells(
            "import { faulty } from 'mcp/servers'\n"
            "await Promise.all([faulty.echo({ text: 'x' }).then(() => { throw new Error('one') }), (async () => {\n"
            "  while (true) await faulty.echo({ text: 'y' }) })()])"
        )
        assert record.error["message"] == "one"
        for _ in range(3):
            assert (await well(cells, "await faulty.echo({ text: 'z' })")).value == "'z'"


async def test_randomness_is_the_same_in_a_rebuilding_and_nowhere_else(both):
    code = (
        "import crypto, { randomUUID } from 'node:crypto'\n"
        "const drawn = [Math.random(), randomUUID(), crypto.randomBytes(4).toString('hex'), crypto.randomInt(1000), "
        "globalThis.crypto.getRandomValues(new Uint32Array(2)).join(), globalThis.crypto.randomUUID(), "
        "crypto.randomFillSync(Buffer.alloc(4)).toString('hex'), Math.random()]\nconsole.log(drawn.join(' '))"
    )
    async with opened(both) as cells:
        told = printed(await well(cells, code))
        assert len(set(told.split())) == 8
        put_away(cells)
        assert (await well(cells, "drawn.join(' ')")).value == repr(told.strip())
        assert printed(await well(cells, code, session="t")) != told
        fork = await well(cells, "drawn.join(' ')", session="u", fork="s@1")
        assert fork.value == repr(told.strip())


async def test_folders_made_for_the_moment_have_the_same_names_in_a_rebuilding(both):
    code = """
import fs, { mkdtempSync } from 'node:fs'
import { mkdtemp } from 'node:fs/promises'
import { pathToFileURL } from 'node:url'
const called = (...given) => new Promise((resolve, reject) => fs.mkdtemp(...given, (error, made) => error ? reject(error) : resolve(made)))
const made = [mkdtempSync('/tmp/a-'), await mkdtemp('/tmp/b-'), await called('/tmp/c-'), mkdtempSync(pathToFileURL('/tmp/d-')),
  `${mkdtempSync(Buffer.from('/tmp/e-'), 'buffer')}`, Buffer.from(await called('/tmp/f-', 'hex'), 'hex').toString()]
const failed = []
for (const bad of [() => mkdtempSync('/no/x'), () => mkdtemp('/no/x'), () => called('/no/x'), () => mkdtempSync(3), () => mkdtempSync('/tmp/', 'no')])
  try { failed.push(await bad()) } catch (error) { failed.push(error.message.slice(0, 58)) }
console.log(made.join(' '))
"""
    async with opened(both) as cells:
        told = printed(await well(cells, code)).split()
        assert [name[:7] for name in told] == [f"/tmp/{letter}-" for letter in "abcdef"]
        modes = "made.map((name) => fs.statSync(name).mode & 0o777).every((mode) => mode === 0o700)"
        assert (await well(cells, modes)).value == "true"
        assert (await well(cells, "failed.join('; ')")).value.count(
            "ENOENT: no such file or directory, mkdtemp '/no/xXXXXXX'"
        ) == 3
        put_away(cells)
        assert (await well(cells, "made.join(' ')")).value == repr(" ".join(told))


async def test_a_session_has_one_language(both):
    async with opened(both) as cells:
        await well(cells, "let x = 1")
        error = await refused(cells, "x", language="python")
        assert (error.code, error.details["language"]) == ("session_language", "javascript")
        assert (await refused(cells, "x", session="t", fork="s@1", language="python")).code == "session_language"
        assert (await well(cells, "x")).session == {"name": "s", "cell": 2}
        await well(cells, "x = 1", session="p", language="python")
        assert (await refused(cells, "x", session="p")).code == "session_language"
        assert await cells.bridge.end_session("s")
        assert (await well(cells, "1", language="python")).session == {"name": "s", "cell": 1}


async def test_it_is_rebuilt_after_every_kind_of_loss_and_forked(both):
    async with opened(both, sessions=SessionSettings(idle_timeout=0.2)) as cells:
        await well(cells, "let x = [1]")
        await until(lambda: not cells.bridge._shared.live_sessions.idle)
        record = await well(cells, "x.push(2); x")
        assert (record.value, record.session["rebuilt"]) == ("[ 1, 2 ]", 1)
    async with opened(both) as cells:
        for number, (end, statuses) in enumerate(
            (
                ("process.kill(process.pid, 'SIGKILL')", {"killed"}),
                ("process.reallyExit(1)", {"killed", "channel_closed", "exit", "error"}),
                ("const all = []; while (true) all.push(new Array(1e6).fill(1.5))", {"out_of_memory"}),
                ("process.abort()", {"killed"}),
            )
        ):
            name = f"s{number}"
            await well(cells, "let x = 1", session=name)
            record = await cells(end, session=name, timeout=20)
            assert record.status in statuses, (end, record.status, record.error)
            assert (record.error["code"] == "interpreter_killed") == end.startswith(("process.kill", "process.abort"))
            after = await well(cells, "x", session=name)
            assert after.value == "1"
        fork = await well(cells, "x += 1; x", session="fork", fork=f"{name}@1")
        assert (fork.value, fork.session) == ("2", {"name": "fork", "cell": 2, "rebuilt": 1})


async def test_a_cell_that_does_another_thing_stops_the_rebuilding_with_both_sides(both):
    async with opened(both) as cells:
        await well(cells, "let x = 1")
        told = printed(await well(cells, "console.log(process.hrtime.bigint())")).strip()
        put_away(cells)
        error = await refused(cells, "x")
        assert (error.code, error.details["cell"], error.details["what"]) == ("session_lost", 2, "stdout")
        assert told in error.details["recorded"]
        assert (await well(cells, "x", session="t", fork="s@1")).value == "1"


async def test_a_cells_servers_files_and_key_are_its_own(both):
    async with opened(both) as cells:
        await well(cells, "import { faulty } from 'mcp/servers'\nconst kept = faulty")
        record = await well(
            cells, "try { await kept.echo({ text: 'x' }) } catch (error) { console.log(error.name) }", servers=[]
        )
        assert printed(record) in {"ToolError\n", "MCPError\n"}
        assert (await well(cells, "await kept.echo({ text: 'y' })")).value == "'y'"
        first = await cells("let n = 0; n += 1; n", key="k")
        assert (await cells("let n = 0; n += 1; n", key="k")).to_json() == first.to_json()
        code = "import fs from 'node:fs'\nfs.writeFileSync('/workspace/out/a.txt', 'a')"
        assert [one["name"] for one in (await well(cells, code)).artifacts] == ["a.txt"]
        assert (await well(cells, "1")).artifacts == []
        assert (await refused(cells, "1", files=["x"])).code == "unknown_input"


async def test_a_session_that_is_ended_begins_anew_from_inside_too(both):
    async with opened(both) as cells:
        await well(cells, "let x = 1")
        assert (await well(cells, "(await runtime.sessions()).map((row) => row.name)")).value == "[ 's' ]"
        assert (await well(cells, "await runtime.end_session()")).value == "true"
        after = await well(cells, "typeof x")
        assert (after.value, after.session) == ("'undefined'", {"name": "s", "cell": 1})


async def test_a_cell_that_replaces_the_languages_own_json_leaves_the_next_ones_running(both):
    async with opened(both) as cells:
        await well(cells, "JSON.parse = JSON.stringify = () => 'mine'")
        await well(cells, "let x = 1", timeout=5)
        code = "import { faulty } from 'mcp/servers'\nlet y = await faulty.echo({ text: JSON.stringify(1) }); [x, y]"
        assert (await well(cells, code, timeout=5)).value == "[ 1, 'mine' ]"
        assert (await refused(cells, "1", servers=["none"])).code == "unknown_server"
        assert (await cells("import { faulty } from 'mcp/servers'", servers=[], timeout=5)).status == "error"


@pytest.mark.parametrize(
    ("replace", "told", "back"),
    [
        ("const kept = []; console.log = (...a) => kept.push(a)", "console.log", "console.log = console.info"),
        ("globalThis.console = { log() {} }", "console", "console = process.getBuiltinModule('node:console')"),
    ],
)
async def test_a_cell_that_leaves_another_console_is_told_where_what_is_printed_goes(both, replace, told, back):
    said = f"{told} is another one now: what cells of this session print goes there; write: {back}\n"
    async with opened(both) as cells:
        first = await well(cells, f"{replace}; 1")
        silent = await well(cells, "console.log(5)")
        assert [(record.stdout, record.stderr.decode()) for record in (first, silent)] == [(b"", said)] * 2
        again = await well(cells, f"{back}; console.log(6)")
        assert (again.stdout, again.stderr) == (b"6\n", b"")
        tee = await well(cells, "const { log } = console; console.log = (...a) => log('>', ...a); console.log(7)")
        assert (tee.stdout, tee.stderr) == (b"> 7\n", b"")
        put_away(cells)
        assert (await well(cells, "console.log(8)")).session["rebuilt"] == 4


async def test_a_node_that_ends_prints_nothing_of_its_own(both):
    async with opened(both) as cells:
        await well(cells, "var x = 1")
        record = await cells("console.error('bye'); setTimeout(() => process.reallyExit(3), 300)")
        assert (record.status, record.error["code"], record.stderr) == ("killed", "interpreter_exited", b"bye\n")
        assert (await well(cells, "x")).value == "1"


async def test_a_result_that_was_sent_before_its_cell_is_no_cells(both, forged):
    """What is sent during a cell counts as that one's: `tests/system/test_hostile_cells.py`."""
    forged = (
        "{ jsonrpc: '2.0', id: 900, method: 'execution.finish', params: { exit_code: 0, value: 'forged' } }",
        "{ jsonrpc: '2.0', method: 'execution.begun', params: { execution: '0'.repeat(16) } }",
    )
    send = " ".join(f"fs.writeSync(4, JSON.stringify({one}) + String.fromCharCode(10));" for one in forged)
    async with opened(both) as cells:
        await well(
            cells,
            "const { Worker } = require('node:worker_threads');\n"
            "new Worker(`const fs = require('node:fs'); setTimeout(() => { for (let n = 0; n < 200; n++) { "
            f"{send} }} }}, 3000)`, {{ eval: true }}).unref()\nlet x = 1; x",
        )
        await until(lambda: forged)
        assert (await well(cells, "x")).value == "1"
        assert (await well(cells, "x + 1")).value == "2"


async def test_only_the_names_an_earlier_cell_has_left_reach_a_later_one(both):
    async with opened(both) as cells:
        await well(
            cells,
            "JSON.stringify = () => 'x'; Array.prototype.push = () => 0; Promise.prototype.then = undefined\n"
            "globalThis.setTimeout = null; Map.prototype.set = null; 1",
        )
        record = await cells("1 + 1", timeout=3)
        assert record.status in {"success", "error", "timeout", "protocol_error", "killed", "channel_closed"}
        await well(cells, "for (const fd of [3, 5, 6, 7]) require('node:fs').closeSync(fd)", session="closed")
        record = await cells("1 + 1", session="closed", timeout=1)
        assert record.status in {"timeout", "channel_closed"}
        assert b"Traceback" not in record.stderr
        assert (await well(cells, "1 + 1", session="other")).value == "2"


GREET = """{ steps: [
  { id: "one", type: "tool", tool: "faulty.echo", args: { text: "$who" } },
  { id: "two", type: "tool", tool: "faulty.echo", args: { text: "hello $one" } },
] }"""
LEFT = {"interrupted", "suspended"}
PAUSES = """{ steps: [
  { id: "one", type: "tool", tool: "faulty.echo", args: { text: "$who" } },
  { id: "pause", type: "wait", seconds: 8 },
] }"""


async def test_cells_run_programs_and_are_rebuilt_with_what_these_gave(both):
    async with opened(both) as cells:
        await well(
            cells, f"import {{ programs }} from 'mcp'; const greet = {GREET}; await programs.save('greet', greet)"
        )
        await well(cells, "let trace = await programs.run('greet', { who: 'you' }); const id = trace.trace_id")
        assert "await programs.run(program, { number: 17 })" in (await well(cells, "programs")).value
        assert (await well(cells, "trace.output")).value == "'hello you'"
        put_away(cells)
        record = await well(cells, "[trace.output, trace.ok, trace.step('one').output, trace.trace_id === id]")
        assert record.value == "[ 'hello you', true, 'you', true ]"
        assert record.session["rebuilt"] == 4
        stored = await cells.bridge.programs.store.executions(None, 20)
        assert sum(row.kind == "program" for row in stored) == 1


async def test_a_program_that_a_cell_has_left_disturbs_no_later_one_and_can_go_on_by_its_key(both):
    async with opened(both) as cells:
        await well(cells, "import { programs } from 'mcp'")
        keyed = f"programs.run({PAUSES}, {{ who: 'you' }}, {{ idempotencyKey: 'k' }})"
        late = await cells(f"{keyed}; await runtime.list_memories(); while (true);", timeout=1)
        assert late.status == "timeout", late.error
        for _ in range(2):
            many = f"(await Promise.all(['1', '2', '3'].map((who) => programs.run({GREET}, {{ who }})))).map((trace) => trace.output)"
            assert (await well(cells, many)).value == "[ 'hello 1', 'hello 2', 'hello 3' ]"
        left = f"programs.run({PAUSES}, {{ who: 'me' }}); await runtime.list_memories(); throw new Error('enough')"
        assert (await cells(left)).status == "error"
        assert (await well(cells, f"(await programs.run({GREET}, {{ who: '4' }})).output")).value == "'hello 4'"
        rows = [row for row in await cells.bridge.programs.store.executions(None, 20) if row.kind == "program"]
        # The last one may not have begun when its cell ended.
        assert 7 <= sum(row.status == "success" for row in rows) == len(rows) - sum(row.status in LEFT for row in rows)
        entries = [row.entry for one in rows for row in await cells.bridge.programs.recorder.read(one.id)]
        assert [entry for entry in entries if entry.kind == "violation"] == []
        assert (
            await well(cells, f"const trace = await {keyed}; [trace.status, trace.step('one').output]")
        ).value == "[ 'success', 'you' ]"
