"""One script in JavaScript from request to record: values, output, errors, exits, limits, calls, files."""

import json

import anyio
import pytest
from execution_fixtures import lines, printed
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.packages.install_settings import InstallSettings
from mcp_bridge.server.answers.render import error_text

pytestmark = pytest.mark.usefixtures("no_internal_errors")


class Runs:
    def __init__(self, sandboxes):
        self._sandboxes = sandboxes

    async def all(self, *codes, specs=(), settings=None, **options):
        """Several scripts at once, each in its own sandbox; their records in order."""
        records = [None] * len(codes)

        async with self._sandboxes.open(*specs, **settings or {}) as bridge, anyio.create_task_group() as tasks:

            async def one(place, code):
                records[place] = await bridge.run(code, language="javascript", **options)

            for place, code in enumerate(codes):
                tasks.start_soon(one, place, code)
        return records


@pytest.fixture
def bridge(both):
    return Runs(both)


async def run(both, code, *specs, **options):
    return await both.run(code, *specs, language="javascript", **options)


# --- values ---

VALUES = {
    "1 + 1": "2",
    "const x = 1": None,
    "undefined": None,
    "null": "null",
    "'text'": "'text'",
    "console.log('a')": None,
    "const x = 3\nx": "3",
    "const x = 3;\nx;": "3",
    "await new Promise((done) => setTimeout(done, 1, 'awaited'))": "'awaited'",
    "async function f() { return 7 }\nawait f()": "7",
    "async function main() { return 7 }\nmain()": "7",
    "async function main() {}\nmain();": None,
    "if (true) { 5 }": None,
    "for (const x of [1, 2]) x": None,
    "function f() { return 1 }": None,
    "class A { b = [1, {c: 'd'}] }\nnew A()": "A { b: [ 1, { c: 'd' } ] }",
    "// only a comment\n": None,
    "'use strict'": "'use strict'",
    "(1, 2) // a comment": "2",
    "5 // a comment": "5",
    "({a: 1n << 70n})": "{ a: 1180591620717411303424n }",
    "'a\\ud800'": "'a\\ud800'",
    "const add = (a: number, b: number): number => a + b;\nadd(1, 2)": "3",
    "function id<T>(x: T): T { return x }\nid<string>('a')": "'a'",
    "interface A { a: number }\nconst a = { a: 1 } satisfies A;\n(a as A).a": "1",
    "import fs from 'node:fs';\nfs.existsSync('/workspace')": "true",
    "const path = require('path');\npath.join('a', 'b')": "'a/b'",
    "const { readFile } = await import('node:fs/promises');\ntypeof readFile": "'function'",
    "process.argv.slice(1)": "[ '/workspace/script.js' ]",
    "```js\n6 * 7\n```": "42",
    "#!/usr/bin/env node\n6 * 7": "42",
    "#!/usr/bin/env node\nimport.meta.main": "true",
    "let ran = [];\nif (require.main === module) ran.push(1);\nif (import.meta.main) ran.push(2);\n"
    "if (!module.parent) ran.push(3);\nif (process.argv[1] === __filename) ran.push(4);\nran": "[ 1, 2, 3, 4 ]",
    "[__filename, __dirname, module.id, require.main.filename, exports === module.exports]": (
        "[ '/workspace/script.js', '/workspace', '.', '/workspace/script.js', true ]"
    ),
    "import fs from 'node:fs';\nfs.writeFileSync('a.cjs', 'module.exports = require.main === module');\n"
    "fs.writeFileSync('b.mjs', 'export const main = import.meta.main');\n[require('./a.cjs'), (await import('/workspace/b.mjs')).main]": (
        "[ false, false ]"
    ),
    "process.on('unhandledRejection', () => {})": None,
    "globalThis": None,
    "setTimeout(() => {}, 1)": None,
    "setImmediate(() => {})": None,
    "const { PassThrough } = require('stream');\nnew PassThrough().on('data', () => {})": None,
    "const lines = require('readline').createInterface({ input: process.stdin });\nlines.on('line', () => {})": None,
    "new (require('worker_threads').Worker)('1', { eval: true }).on('exit', () => {})": None,
    "const Emitter = require('events');\nclass A extends Emitter { [require('util').inspect.custom]() { return 'an A' } }\n"
    "new A()": "an A",
    "const Emitter = require('events');\nfunction A() {}\nA.prototype = Object.create(Emitter.prototype);\nnew A()": (
        "EventEmitter {}"
    ),
    "[typeof runtime, typeof mcp, typeof display, typeof artifact, typeof progress]": (
        "[ 'object', 'object', 'function', 'function', 'function' ]"
    ),
}


async def test_the_last_expressions_value_is_shown(bridge):
    records = await bridge.all(*VALUES)
    for record, (code, value) in zip(records, VALUES.items(), strict=True):
        assert (code, record.status, record.value) == (code, "success", value), record.error


async def test_a_long_value_is_cut_in_the_middle_and_says_so(bridge):
    for record in await bridge.all("'x'.repeat(20_000_000)", "'\\x01'.repeat(9_000_000)"):
        assert record.status == "success", record.error
        assert "characters cut" in record.value


# The text that comes to Node in one piece ends before 64 KiB.
LONG_TEXTS = ["//" + "x" * size + "\n'end'" for size in (66_000, 200_000, 8_000_000)] + [
    "let a = 0;\n" + "a++;\n" * 50_000 + "if (a === 50_000) 'end'; 'end'"
]


async def test_a_text_that_comes_in_several_pieces_is_run(bridge):
    for record in await bridge.all(*LONG_TEXTS):
        assert (record.status, record.value) == ("success", "'end'"), record.error


# None is walked, nor written, item by item.
HUGE = {
    "Array(1e9)": "[ <1000000000 empty items> ]",
    "const a = []; a[2 ** 31] = 1; a": "[ <2147483648 empty items>, 1 ]",
    "({ rows: new Array(5e8) })": "{ rows: [ <500000000 empty items> ] }",
    "display(Array(1e9), { rows: [Array(5e8)] })": "[ <1000000000 empty items> ]\n{ rows: [ [ <500000000 empty items> ] ] }\n",
    "console.log(Array(1e9))": "[ <1000000000 empty items> ]\n",
}


async def test_an_array_of_more_places_than_items_is_shown_at_once(bridge):
    for record, (code, text) in zip(await bridge.all(*HUGE), HUGE.items(), strict=True):
        assert (code, record.status) == (code, "success"), record.error
        assert (code, (record.value or "") + printed(record)) == (code, text)


async def test_of_an_array_of_millions_of_items_the_first_are_shown(bridge):
    items = {
        "new Uint8Array(2e8)": "199000000 more items",
        "display(new Uint8Array(2e8))": "199000000 more items",
        "console.log(new Uint8Array(2e8))": "199000000 more items",
        "new ArrayBuffer(2e8)": "199000000 more bytes",
        "new Array(1e6 + 1).fill(0)": "1 more item",
    }
    for record, (code, text) in zip(await bridge.all(*items), items.items(), strict=True):
        assert (code, record.status) == (code, "success"), record.error
        assert text in (record.value or "") + printed(record)[-200:]


async def test_images_beside_much_else_and_within_what_is_odd_are_shown(bridge):
    png = "Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB', 'base64')"
    codes = {
        f"const a = [{png}]; a[5] = 1; Object.freeze(a)": "[ <image/png, 24 bytes>, <4 empty items>, 1 ]",
        f"({{ get x() {{ throw 1 }}, [Symbol('s')]: 1, png: {png}, ['__proto__']: 2 }})": (
            "{ x: [Getter], png: <image/png, 24 bytes>, ['__proto__']: 2, Symbol(s): 1 }"
        ),
        f"class Mine extends Array {{}}; Mine.of({png})": "Mine(1) [ <image/png, 24 bytes> ]",
    }
    for record, (code, text) in zip(await bridge.all(*codes), codes.items(), strict=True):
        # Versions of Node write symbols in either way.
        value = (record.value or "").replace("[Symbol(s)]", "Symbol(s)")
        assert (code, record.status, value) == (code, "success", text), record.error
        assert [list(shown) for shown in record.displays] == [["image/png"]]


# Whatever it does when it is asked, it is shown as `console.log` shows it.
ODD_VALUES = [
    "{ get x() { console.log('called'); return 1 } }",
    "{ get x() { throw new Error('no') }, set x(value) {}, y: { get z() { throw 1 } } }",
    "[{ get x() { throw 1 } }, { get x() { throw 1 } }]",
    "Object.defineProperty([1, 2], 1, { get() { throw 1 }, enumerable: true })",
    "Object.defineProperty([{ a: 1 }, 0], 1, { get() { throw 1 }, enumerable: true })",
    "{ get mimeType() { throw 1 }, get data() { throw 2 }, get mime_type() { throw 3 }, get blob() { throw 4 } }",
    "new (class A { get mimeType() { throw 1 } get data() { throw 2 } })()",
    "{ toJSON() { throw 1 }, toString() { throw 2 }, valueOf() { throw 3 }, then: 4 }",
    "{ get [Symbol.toStringTag]() { return 'tag' }, get [Symbol.iterator]() { throw 1 }, get [Symbol.toPrimitive]() { throw 2 } }",
    "Object.assign([{ a: 1 }, { a: 2 }], { constructor: { get [Symbol.species]() { throw 1 } }, map: null, slice: null })",
    "new Proxy({ a: 1 }, new Proxy({}, { get() { throw 1 } }))",
    "[new Proxy([1], new Proxy({}, { get() { throw 1 } }))]",
    "(() => { const { proxy, revoke } = Proxy.revocable({}, {}); revoke(); return proxy })()",
    "new (class B extends Uint8Array { get buffer() { throw 1 } get byteOffset() { throw 2 } })(2)",
    "(() => { const one = new ArrayBuffer(8); structuredClone(one, { transfer: [one] }); return [one, new DataView(new ArrayBuffer(1))] })()",
    "(() => { const one = new Uint8Array(8); structuredClone(one, { transfer: [one.buffer] }); return one })()",
]


async def test_what_is_shown_is_asked_no_more_than_where_it_is_printed(bridge):
    printing = [f"console.log({value})" for value in ODD_VALUES]
    told = [printed(record) for record in await bridge.all(*printing)]
    assert all(told)
    for show in ("({})", "display({})"):
        records = await bridge.all(*(show.replace("{}", value) for value in ODD_VALUES))
        for record, code, text in zip(records, ODD_VALUES, told, strict=True):
            assert (code, record.status) == (code, "success"), record.error
            # A table is one of display's own forms.
            shown = printed(record) + (f"{record.value}\n" if record.value is not None else "")
            assert shown == text or (code.startswith("Object.assign") and shown == "a\n1\n2\n"), code


# --- output ---


async def test_everything_printed_arrives_in_order(both):
    record = await run(
        both,
        """
import { execFileSync, spawn } from "node:child_process";
import { writeSync } from "node:fs";
console.log("one");
console.log();
writeSync(1, "two\\n");
execFileSync("python3", ["-c", "print('three')"], { stdio: "inherit" });
process.stdout.write("fo");
process.stdout.write(Buffer.from("ur\\n"));
const child = spawn("python3", ["-c", "print('five')"], { stdio: ["ignore", "inherit", "inherit"] });
await new Promise((done) => child.on("close", done));
console.error("of another stream");
console.log("six \\u20ac", { a: [1, { b: { c: { d: { e: 1 } } } }] });
process.on("exit", () => console.log("seven"));
""",
    )
    assert (
        printed(record) == "one\n\ntwo\nthree\nfour\nfive\nsix € { a: [ 1, { b: { c: { d: { e: 1 } } } } ] }\nseven\n"
    )
    assert record.stderr == b"of another stream\n"


async def test_much_output_of_the_script_and_of_a_child_neither_blocks_nor_is_lost(both):
    record = await run(
        both,
        """
import { execFileSync } from "node:child_process";
for (let n = 0; n < 20000; n++) console.log("x".repeat(99));
execFileSync(process.execPath, ["-e", "process.stdout.write('y'.repeat(3e6))"], { stdio: "inherit" });
process.stdout.write(Buffer.from([0xff, 0x0a]));
""",
    )
    assert record.status == "success", record.error
    assert record.stdout == (b"x" * 99 + b"\n") * 20000 + b"y" * 3_000_000 + b"\xff\n"


async def test_a_crash_loses_no_earlier_output(bridge):
    for record in await bridge.all(
        "console.log('before'); process.kill(process.pid, 'SIGKILL')",
        "console.log('before'); console.error('e'); process.abort()",
        "console.log('before'); while (true) {}",
        timeout=2,
    ):
        assert record.status in {"killed", "timeout"}
        assert record.stdout == b"before\n"


# --- errors ---


async def test_an_error_is_told_with_type_message_line_and_the_users_frames_only(bridge):
    plain, awaited, thrown, cause, shifted = await bridge.all(
        "function f() {\n  return null.x;\n}\nconsole.log('x');\nf();",
        "async function f() {\n  await null;\n  throw new RangeError('too far');\n}\nawait f();",
        "throw { a: 1 }",
        "try { JSON.parse('{') } catch (error) { throw new Error('second', { cause: error }) }",
        "const a = 1;\na.b.c",
    )
    assert plain.exit_code == 1
    assert plain.error["code"] == "script_error"
    assert (plain.error["type"], plain.error["line"]) == ("TypeError", 2)
    assert plain.error["message"] == "Cannot read properties of null (reading 'x')"
    assert plain.error["traceback"] == (
        "script.js:2\n      return null.x;\n                  ^\n"
        "TypeError: Cannot read properties of null (reading 'x')\n    at f (script.js:2:15)\n    at script.js:5:1"
    )
    assert (awaited.error["type"], awaited.error["message"], awaited.error["line"]) == ("RangeError", "too far", 3)
    assert thrown.error["message"] == "{ a: 1 }"
    assert (cause.error["message"], cause.error["line"]) == ("second", 1)
    assert "SyntaxError: Expected property name" in cause.error["traceback"]
    assert "at script.js:2:5" in shifted.error["traceback"]
    for record in (plain, awaited, thrown, cause, shifted):
        assert record.status == "error"
        assert "mcp-bridge:" not in record.error["traceback"]
        assert "node:internal" not in record.error["traceback"]


ODD_ERRORS = {
    "throw new AggregateError([new Error('a'), new Error('b')], 'several')": ("AggregateError", "several"),
    "await Promise.any([Promise.reject(new Error('a'))])": ("AggregateError", "All promises were rejected"),
    "class Bad extends Error {}\nthrow new Bad('own')": ("Bad", "own"),
    "const e = new Error('m'); Object.defineProperty(e, 'stack', {get() { throw 1 }}); throw e": ("Error", ...),
    "const e = new Error('m'); Object.defineProperty(e, 'message', {get() { throw 1 }}); throw e": ("Error", ...),
    "throw new Proxy(new Error('m'), {get() { throw new Error('inner') }})": ("Error", ...),
    "throw undefined": ("Error", "undefined"),
    "throw null": ("Error", "null"),
    "throw 'text'": ("Error", "'text'"),
    "throw new Error('a\\ud800')": ("Error", "a\ufffd"),
    "throw new Error('x'.repeat(50_000_000))": ("Error", ...),
    "function f() { f() }\nf()": ("RangeError", "Maximum call stack size exceeded"),
    "let e; for (let n = 0; n < 5000; n++) e = new Error(n, {cause: e});\nthrow e": ("Error", "4999"),
    "eval('null.x')": ("TypeError", ...),
    "({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('shown') } })": ("Error", "shown"),
    "Promise.reject(new Error('nobody'));\nawait new Promise((done) => setTimeout(done, 100))": ("Error", "nobody"),
    "setTimeout(() => { throw new Error('late') }, 1)": ("Error", "late"),
    "process.on('exit', () => { throw new Error('at exit') })": ("Error", "at exit"),
    "await new Promise(() => {})": ("NotAwaitedError", ...),
    "import nothing from 'lodash'": ("Error", ...),
    "import nothing from './nothing.js'": ("Error", ...),
    "import { nothing } from 'node:fs'": ("SyntaxError", ...),
    "x = 5": ("ReferenceError", "x is not defined"),
    "fetch('https://example.org')": ("TypeError", ...),
}


HANDLED = {
    "throw new Error('u')": "uncaughtException unhandledRejection u",
    "await null; throw new Error('u')": "uncaughtException unhandledRejection u",
    "await Promise.reject(new Error('u'))": "uncaughtException unhandledRejection u",
    "async function main() { throw new Error('u') }\nmain()": "uncaughtException unhandledRejection u",
    "setTimeout(() => { throw new Error('u') }, 1)": "uncaughtException uncaughtException u",
}


async def test_handlers_of_uncaught_errors_come_first_as_in_node(bridge):
    following = "process.on('uncaughtException', (e, of) => { console.log('uncaughtException', of, e.message); setTimeout(() => console.log('on'), 1) })\n"
    for record, (code, said) in zip(
        await bridge.all(*(following + code for code in HANDLED)), HANDLED.items(), strict=True
    ):
        assert (code, record.status, lines(record)) == (code, "success", [said, "on"]), record.error
    rejected, not_rejected, failing, monitored = await bridge.all(
        "process.on('unhandledRejection', (e) => console.log(e.message))\nasync function main() { throw new Error('u') }\nmain()",
        "process.on('unhandledRejection', (e) => console.log(e.message))\nthrow new Error('u')",
        "process.on('uncaughtException', () => { throw new Error('of the handler') })\nthrow new Error('u')",
        "process.on('uncaughtExceptionMonitor', (e) => console.log(e.message))\nthrow new Error('u')",
    )
    assert (rejected.status, lines(rejected)) == ("success", ["u"])
    # As in Node, it is none of a top level.
    assert (not_rejected.error["message"], not_rejected.stdout) == ("u", b"")
    assert failing.error["message"] == "of the handler"
    assert (monitored.error["message"], monitored.stdout) == ("u", b"u\n")


async def test_odd_errors_are_told_as_well_as_they_can_be(bridge):
    records = await bridge.all(*ODD_ERRORS)
    for record, (code, (kind, message)) in zip(records, ODD_ERRORS.items(), strict=True):
        assert (code, record.status) == (code, "error"), record
        assert record.exit_code == 1
        assert record.error["type"] == kind, (code, record.error)
        assert message is ... or record.error["message"] == message, (code, record.error)
        assert len(record.error["message"]) < 50_000
        assert len(record.error["traceback"]) < 50_000
        assert "mcp-bridge:" not in record.error["traceback"], code


BAD_SYNTAX = {
    "const x = 1;\nlet y = = 2": 2,
    "function f() {\nreturn 1": 2,
    "return 5": 1,
    "const a = 1;\nconst a = 2": 2,
    "const s = 'open": 1,
    "let x: = 5": 1,
    "enum A { B }\nA.B": 1,
    "def f():\n    return 1": 1,
    "print('a'": 1,
    "await = 3": 1,
    # The first type is not what is wrong.
    "const a: number = 1;\nconst b = {\n  x: 1\n  y: 2,\n};": 4,
    "interface P { a: string }\nconst x: P = {a: 'b'};\n\nconsole.log(x.a;": 4,
    "const a: number = 1;\nconst b = 2;\nconst a = 3;": 3,
    "const a: number = 1;\nconst s = 'open;\n1": 2,
    "const a: number = 1;\nconst s = `open;\n1": 2,
    "const a: number = 1;\nfunction f() { await g(); }": 2,
    "const a: number = 1;\n}\n1": 2,
    "function f(a: number) {}\n@dec class A {}": 2,
    "const n: number = 1;\nenum A { B }": 2,
    "const n: number = 1;\nconst b = <any>n;": 2,
    "const n: number = 1;\nclass A { constructor(private x: number) {} }": 2,
    "const n: number = 1;\nimport fs = require('fs');": 2,
    "const a = 1;\nimport { nothing } from 'node:fs'": 2,
    "const a = 1;\nexport { b }": 2,
    "\x00": None,
    "(".ljust(3000, "("): None,
}


async def test_a_syntax_error_names_its_line(bridge):
    records = await bridge.all(*BAD_SYNTAX)
    for record, (code, line) in zip(records, BAD_SYNTAX.items(), strict=True):
        assert (code, record.status, record.exit_code) == (code, "error", 1), record
        if line is not None:
            assert record.error["code"] == "syntax_error", (code, record.error)
            assert record.error["line"] == line, (code, record.error)


async def test_a_syntax_error_shows_the_scripts_own_line_and_place_and_what_to_write(bridge):
    typed, linked, parameter, brackets = await bridge.all(
        "const a: number = 1;\nconst b = {\n  x: 1\n  y: 2,\n};",
        'import { nope } from "node:fs"; nope.x',
        "const n: number = 1;\nclass A { constructor(private x: number) {} }",
        "const n: number = 1;\n<any>n;",
    )
    assert typed.error["traceback"] == "script.js:4\n      y: 2,\n      ^\nSyntaxError: Expected ',', got 'ident'"
    assert linked.error["traceback"].startswith(
        'script.js:1\n    import { nope } from "node:fs"; nope.x\n             ^\nSyntaxError: The requested module'
    )
    assert parameter.error["message"].endswith("; declare the field, and assign it in the constructor")
    assert "enum" not in brackets.error["message"]


async def test_a_stack_that_the_script_prints_has_no_frames_but_its_own(bridge):
    record, nodes, missing = await bridge.all(
        "import fs from 'node:fs';\nfunction f() {\n  fs.readFileSync('/nope');\n}\nawait null;\n"
        "try { f() } catch (error) { console.log(error.stack); console.error(error) }",
        "try { Buffer.from(1) } catch (error) { console.log(error.stack) }",
        "import './no.js'",
    )
    assert missing.error["traceback"].startswith("Error [ERR_MODULE_NOT_FOUND]: Cannot find module"), missing.error
    assert nodes.stdout.startswith(b"TypeError [ERR_INVALID_ARG_TYPE]: The first argument")
    stack = (
        "Error: ENOENT: no such file or directory, open '/nope'\n    at f (file:///workspace/script.js:3:6)\n"
        "    at file:///workspace/script.js:6:7"
    )
    assert record.stdout.decode() == f"{stack}\n"
    assert record.stderr.decode().startswith(f"{stack} {{\n")


async def test_an_error_without_frames_stands_before_its_properties_without_brackets(bridge):
    code = "import { MCPError } from 'mcp'\nconst error = new MCPError('no', { code: 'x' })\nerror.stack = 'MCPError: no'\nthrow error"
    (record,) = await bridge.all(code)
    assert record.error["traceback"] == "MCPError: no { code: 'x' }", record.error


# --- exits ---

EXITS = {
    "process.exit()": ("success", 0),
    "process.exit(0)": ("success", 0),
    "process.exit(3)": ("exit", 3),
    "process.exit(-1)": ("exit", 255),
    "process.exitCode = 4": ("exit", 4),
    "setTimeout(() => process.exit(5), 1); await new Promise(() => {})": ("exit", 5),
    "process.on('exit', () => { process.exitCode = 6 })": ("exit", 6),
    "process.reallyExit(0)": ("killed", 1),
    "process.reallyExit(5)": ("killed", 5),
    "process.kill(process.pid, 'SIGKILL')": ("killed", 137),
    "process.kill(process.pid, 'SIGTERM')": ("killed", 143),
    "process.abort()": ("killed", 134),
    "process.removeAllListeners(); process.emit = () => {}": ("killed", 1),
    "const x = []; while (true) x.push(new Array(1e5).fill(1.5))": ("out_of_memory", 134),
    "const x = []; while (true) x.push('x'.repeat(1e6) + x.length)": ("out_of_memory", ...),
    "const x = []; while (true) x.push(Buffer.alloc(1e7, 1))": ("out_of_memory", ...),
    "new ArrayBuffer(2 ** 52)": ("out_of_memory", 1),
    "const e = new Error('no memory'); e.code = 'ENOMEM'; throw e": ("out_of_memory", 1),
}


async def test_every_way_out_is_reported_as_what_it_is(bridge):
    # Memory that is soon used up.
    settings = {"memory": 256 << 20}
    records = await bridge.all(*(f"console.log('before');\n{code}" for code in EXITS), timeout=120, settings=settings)
    for record, (code, (status, exit_code)) in zip(records, EXITS.items(), strict=True):
        assert (code, record.status) == (code, status), record.error
        assert exit_code is ... or (code, record.exit_code) == (code, exit_code), record.error
        assert record.stdout == b"before\n", code
    by_code = dict(zip(EXITS, records, strict=True))
    assert by_code["process.reallyExit(5)"].error["code"] == "interpreter_exited"
    aborted = by_code["process.abort()"]
    assert (aborted.error["code"], aborted.stderr) == ("interpreter_killed", b"")


async def test_an_exhausted_heap_is_told_without_the_engines_own_report(bridge):
    full = "const x = []; while (true) x.push(new Array(1e5).fill(1.5))"
    words = "console.error('\\n<--- Last few GCs --->\\n JavaScript heap out of memory');"
    dead, said, flood, other = await bridge.all(
        f"console.error('before');\n{full}",
        f"{words}\nconsole.error('after')",
        f"{words}\nfor (let n = 0; n < 300; n++) console.error('x'.repeat(999))",
        f"{words}\nprocess.kill(process.pid, 'SIGTERM')",
        timeout=20,
    )
    assert (dead.status, dead.stderr) == ("out_of_memory", b"before\n"), dead.error
    assert error_text(dead.error).splitlines() == [
        "RangeError: JavaScript heap out of memory",
        "[out_of_memory] Work in smaller parts, or raise memory in the configuration.",
    ]
    shown = b"\n<--- Last few GCs --->\n JavaScript heap out of memory\n"
    assert (said.status, said.stderr) == ("success", shown + b"after\n"), said.error
    assert flood.stderr == shown + (b"x" * 999 + b"\n") * 300
    assert (other.status, other.stderr) == ("killed", shown)


# --- time ---

OVER = {
    "busy": "while (true) {}",
    "timer": "await new Promise((done) => setTimeout(done, 100_000))",
    "left over": "setInterval(() => {}, 1000)",
    "microtasks": "const f = () => Promise.resolve().then(f); f(); await new Promise(() => {})",
    "expression": "/(a+)+$/.test('a'.repeat(60) + 'b')",
    "signals": "for (const n of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(n, () => {});\nwhile (true) {}",
    "exit": "process.on('exit', () => { while (true) {} })",
    "inspect": "({ [Symbol.for('nodejs.util.inspect.custom')]() { while (true) {} } })",
    "child": "require('child_process').spawnSync('python3', ['-c', 'while True: pass'])",
    "worker": "new (require('worker_threads').Worker)('while (true) {}', { eval: true })",
    "atomics": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
    "stopped": "process.kill(process.pid, 'SIGSTOP')",
    "parent stopped": "process.kill(process.ppid, 'SIGSTOP'); while (true) {}",
}


async def test_a_script_over_its_time_is_ended_and_leaves_no_container(bridge):
    for name, record in zip(OVER, await bridge.all(*OVER.values(), timeout=1), strict=True):
        assert (name, record.status, record.exit_code) == (name, "timeout", 124), record
        assert record.error["code"] == "script_timeout", name


# --- calls ---


async def test_megabytes_pass_both_ways(both):
    record = await run(
        both,
        """
import { faulty } from "mcp/servers";
for (const size of [1 << 20, 3 << 20]) {
  const text = "\\u20ac\\n".repeat(size / 4);
  console.log(await faulty.echo({ text }) === text);
}
""",
        faulty(),
    )
    assert lines(record) == ["true", "true"]


async def test_integers_and_texts_are_what_they_were(both):
    record = await run(
        both,
        """
const value = { large: 12345678901234567890n, small: -9007199254740993n, half: 0.5, text: "\\u{1f600} 12345678901234567890",
  when: new Date(0), list: new Set([1]), map: new Map([["a", 1]]), gone: undefined, ["__proto__"]: 1 };
await runtime.save_memory("k", value);
console.log(await runtime.load_memory("k"));
""",
    )
    assert printed(record) == (
        "{\n  large: 12345678901234567890n,\n  small: -9007199254740993n,\n  half: 0.5,\n"
        "  text: '😀 12345678901234567890',\n  when: '1970-01-01T00:00:00.000Z',\n  list: [ 1 ],\n  map: { a: 1 },\n"
        "  ['__proto__']: 1\n}\n"
    )


REFUSED = {
    "NaN": "not_json",
    "[Infinity]": "not_json",
    "'\\ud800'": "not_json",
    "() => 1": "not_json",
    "Symbol()": "not_json",
    "Promise.resolve(1)": "not_json",
    "Buffer.from('a')": "not_json",
    "new Date(NaN)": "not_json",
    "/a/": "not_json",
    "new Map([[1, 2]])": "not_json",
    "10n ** 4300n": "not_json",
    "[{ a: Object(-(10n ** 4400n)) }]": "not_json",
    "{ toJSON: () => 10n ** 5000n }": "not_json",
    "(() => { const a = []; a.push(a); return a })()": "frame_too_deep",
    "JSON.parse('['.repeat(100) + ']'.repeat(100))": "frame_too_deep",
    "'x'.repeat(17e6)": "frame_too_large",
    "new Array(6e5).fill(0)": "frame_too_large",
    "(() => { let a = {}; for (let n = 0; n < 50; n++) a = { a, b: a }; return a })()": "frame_too_large",
}


async def test_what_is_no_json_or_too_large_is_an_error_that_the_script_can_catch(both):
    values = ",\n".join(f"() => ({value})" for value in REFUSED)
    record = await run(
        both,
        f"""
for (const value of [{values}]) {{
  try {{ await runtime.save_memory("k", value()); console.log("kept") }} catch (error) {{ console.log(error.name, error.code) }}
}}
""",
    )
    assert lines(record) == [f"MCPError {code}" for code in REFUSED.values()]


async def test_a_failing_tool_raises_a_tool_error_and_raw_gives_it_all(both):
    record = await run(
        both,
        """
import { faulty } from "mcp/servers";
import { ToolError } from "mcp";
try { await faulty.refuse() } catch (error) {
  console.log(error instanceof ToolError, error.name, error.server, error.tool, error.code, typeof error.message);
}
console.log((await faulty.echo.raw({ text: "a" })).content[0].text);
""",
        faulty(),
    )
    assert lines(record)[1] == "a"
    assert lines(record)[0].startswith("true ToolError faulty refuse tool_error string")


NOT_AWAITED = {
    "faulty.echo({ text: 'a' }); 1": 2,
    "faulty.echo.raw({ text: 'a' });\nawait null;": 2,
    "const p = faulty.echo({ text: 'a' });\nconsole.log('x');": 2,
    "await null;\nruntime.save_memory('k', 1); await null;": 3,
    "async function main() {\n  faulty.echo({ text: 'a' });\n}\nmain();": 3,
}


async def test_a_call_that_was_never_awaited_is_an_error_with_its_line(bridge):
    head = 'import { faulty } from "mcp/servers";\n'
    records = await bridge.all(*(head + code for code in NOT_AWAITED), specs=[faulty()])
    for record, (code, line) in zip(records, NOT_AWAITED.items(), strict=True):
        assert (code, record.status) == (code, "error"), record
        assert record.error["type"] == "NotAwaitedError"
        assert record.error["line"] == line, code
        assert "was never awaited" in record.error["message"]


AWAITED = [
    "await faulty.echo({ text: 'a' })",
    "faulty.echo({ text: 'a' })",
    "const p = faulty.echo({ text: 'a' }); await null; await p",
    "(await Promise.all([faulty.echo({ text: 'a' })]))[0]",
    "await Promise.race([faulty.echo({ text: 'a' })])",
    "let got; faulty.echo({ text: 'a' }).then((text) => { got = text }); while (!got) await new Promise((d) => setTimeout(d, 5)); got",
    "async function main() { return await faulty.echo({ text: 'a' }) }\nmain()",
    "let got = ''; for await (const one of [faulty.echo({ text: 'a' })]) got += one; got",
    "await runtime.call_tool('faulty', 'echo', { text: 'a' })",
    "await runtime.callTool('faulty.echo', { text: 'a' })",
    "await runtime.call_tool('mcp__faulty__echo', { text: 'a' })",
    "await mcp.servers.faulty.echo('a')",
    "await faulty.Echo('a', 1)",
    "(await Promise.allSettled([faulty.echo({ text: 'a' })]))[0].value",
]


async def test_a_call_that_is_awaited_in_any_way_gives_its_value(bridge):
    head = 'import { faulty } from "mcp/servers";\n'
    records = await bridge.all(*(head + code for code in AWAITED), specs=[faulty()])
    for record, code in zip(records, AWAITED, strict=True):
        assert (code, record.status, record.value) == (code, "success", "'a'"), record.error


# --- files, images ---


async def test_artifacts_displays_and_progress(both):
    told = []
    async with both.open() as bridge:
        record = await bridge.run(
            """
import fs from "node:fs";
fs.writeFileSync("/tmp/kept.bin", Buffer.alloc(1_300_000, 7));
console.log(await artifact("/tmp/kept.bin", "other.bin"));
progress(1, 2, "half");
const png = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");
display(png, "text", { a: 1 });
display(png);
[png, 1]
""",
            language="javascript",
            progress=lambda *report: told.append(report),
        )
    assert record.status == "success", record.error
    assert record.artifacts[0]["name"] == "other.bin"
    assert record.artifacts[0]["size"] == 1_300_000
    assert told == [(1, 2, "half")]
    assert [list(shown) for shown in record.displays] == [["image/png"]]
    assert record.stdout.decode().splitlines()[1:] == ["text", "{ a: 1 }"]
    assert record.value == "[ <image/png, 70 bytes>, 1 ]"


async def test_what_is_left_in_workspace_out_is_kept_at_every_end_that_the_script_has(bridge):
    head = """
import fs from "node:fs";
fs.writeFileSync("/workspace/out/a.txt", "a".repeat(1_300_000));
fs.mkdirSync("out/sub");
fs.writeFileSync("out/sub/b.txt", "b");
fs.symlinkSync("/etc/passwd", "/workspace/out/link");
"""
    ends = ["console.log('said')", "process.exit(3)", "throw new Error('bad')"]
    kept = "await artifact('out/a.txt', 'mine.txt');\n"
    changed = "fs.appendFileSync('/workspace/out/a.txt', 'more');\n"
    *records, none = await bridge.all(*(head + end for end in [*ends, kept, kept + changed]), "1")
    for record, status in zip(records, ["success", "exit", "error", "success", "success"], strict=True):
        assert record.status == status, record.error
        assert b"[not kept: /workspace/out/link: it is a link]" in record.stderr
    left = [{row["name"]: row["size"] for row in record.artifacts} for record in records]
    assert left[:3] == [{"a.txt": 1_300_000, "sub__b.txt": 1}] * 3
    assert left[3] == {"mine.txt": 1_300_000, "sub__b.txt": 1}
    assert left[4] == {"mine.txt": 1_300_000, "a.txt": 1_300_004, "sub__b.txt": 1}
    assert none.artifacts == []


# --- what the operator allows ---


async def test_javascript_is_off_unless_the_operator_allows_it(sandboxes, both):
    async with sandboxes.open() as bridge:
        with pytest.raises(BridgeError) as refused:
            await bridge.run("1", language="javascript")
    assert refused.value.code == "language_unavailable"
    async with both.open() as bridge:
        # Python goes on as before, in the same containers.
        assert (await bridge.run("6 * 7")).value == "42"
    async with both.open(languages=("javascript",)) as bridge:
        with pytest.raises(BridgeError) as refused:
            await bridge.run("1")
        assert refused.value.code == "language_unavailable"


PYTHONS_OWN = {
    "packages": ["numpy"],
}


@pytest.mark.parametrize("name", PYTHONS_OWN)
async def test_what_only_python_has_is_refused_and_nothing_is_run_or_recorded(both, name):
    install = InstallSettings(allow=("numpy",))
    async with both.open(install=install) as bridge:
        with pytest.raises(BridgeError) as refused:
            await bridge.run("1", language="javascript", **{name: PYTHONS_OWN[name]})
        assert refused.value.code == "language_unavailable"
        assert f"{name}= is for scripts in Python" in refused.value.message
        assert await bridge.lifecycle.store.executions(None, 10) == []


async def test_packages_are_pythons_alone_also_where_none_is_allowed(both):
    async with both.open() as bridge:
        with pytest.raises(BridgeError) as refused:
            await bridge.run("1", language="javascript", packages=["lodash"])
    assert refused.value.code == "language_unavailable"


async def test_advice_names_the_tools_that_there_are(both):
    async with both.open(languages=("javascript",)) as bridge:
        for code in ("print('a')", "def f():\n    pass"):
            record = await bridge.run(code, language="javascript")
            assert "Python doesn't run here" in record.error["message"]
            assert "run_python" not in record.error["message"]
    async with both.open() as bridge:
        assert "JavaScript runs with run_javascript." in (await bridge.run("const a = 1")).error["traceback"]


async def test_a_server_is_imported_by_a_name_that_is_none_of_a_variable(both):
    code = 'import { "my-srv.x" as server } from "mcp/servers";\n[(await server.echo("a")), server]'
    record = await run(both, code, faulty(name="my-srv.x"))
    assert record.value == "[ 'a', [MCP server 'my-srv.x'] ]", record.error


async def test_a_container_that_waits_runs_either_language(both):
    async with both.open(pooled=True, pool_min=1) as bridge:
        for _ in range(3):
            # What it runs comes in several pieces.
            text = f"//{'x' * 100_000}\nawait runtime.list_servers(); 6 * 7"
            record = await bridge.run(text, language="javascript")
            assert (record.status, record.value) == ("success", "42"), record.error
            assert (await bridge.run("6 * 7")).value == "42"


async def test_an_image_without_node_says_so(sandboxes):
    """An operator's own image may have none."""
    async with sandboxes.open(languages=("python", "javascript")) as bridge:
        record = await bridge.run("1", language="javascript")
    assert record.status == "error"
    assert record.error["message"] == "the sandbox's image has no Node"


async def test_the_record_is_as_of_python(both):
    record = await run(both, "console.log('a'); 1")
    assert json.loads(json.dumps(record.to_json())) | {"value": "1", "stdout": "a\n"} == record.to_json()


async def test_a_function_is_kept_for_later_scripts_and_cells(both):
    saving = """
function double(x: number) { return x * 2; }
const called = async (text) => { const { faulty } = await import("mcp/servers"); return faulty.echo({ text }); };
class Own { n = 1 }
function* count(n) { for (let at = 0; at < n; at++) yield at; }
[await runtime.save_tool(double), await runtime.save_tool(called), await runtime.save_tool(Own), await runtime.saveTool(count)]
"""
    using = """
const [double, called, Own, count] = await Promise.all(["double", "called", "Own", "count"].map((name) => runtime.load_tool(name)));
[double(4), double.name, await called("a"), new Own().n, [...count(2)], await runtime.list_memories()]
"""
    async with both.open(faulty()) as bridge:
        for session in (None, "s"):
            saved = await bridge.run(saving, language="javascript", session=session)
            assert saved.value == "[ 'double', 'called', 'Own', 'count' ]", saved.error
            used = await bridge.run(using, language="javascript", session=session and "other")
            assert used.value == "[ 8, 'double', 'a', 1, [ 0, 1 ], (none) ]", used.error
        assert printed(await bridge.run("print(runtime.list_memories_sync())")) == "(none)\n"


async def test_what_a_kept_function_would_miss_is_told(both):
    saving = """
import { faulty } from "mcp/servers";
const K = 3;
let inner;
{ const z = 1; inner = function inner() { return z; }; }
function usesK(x) { return x + K; }
async function usesServer(text) { return faulty.echo({ text }); }
const own = (n) => n < 1 ? 0 : own(n - 1);
class Alone { #p = 1; m() { label: for (const a of [1]) continue label; return Alone; } }
function alone({ a = 1, b: [c] = [1], ...rest } = {}, ...more) {
  try { alone.x(); } catch (error) { error.K; }
  return { K: 1, c, of: typeof K, f: () => arguments, m: runtime, r: require, mm: process, t: [btoa, undefined], ...rest, more, a };
}
for (const each of [inner, usesK, usesServer, own, Alone, alone]) {
  console.error(await runtime.save_tool(each));
}
"""
    async with both.open(faulty()) as bridge:
        for session in (None, "s"):
            saved = await bridge.run(saving, language="javascript", session=session)
            assert saved.error is None, saved.error
            *told, last = saved.stderr.decode().split("save_tool: ")
            assert [line.partition(" of this script")[0] for line in [*told[1:], last]] == [
                "'inner' is saved, but uses z",
                "'usesK' is saved, but uses K",
                "'usesServer' is saved, but uses faulty",
                "'own' is saved, but uses own",
            ]
            used = await bridge.run("(await runtime.load_tool('alone'))().c", language="javascript")
            assert used.value == "1", used.error
            for name, inside in (
                ("usesK", "const K = ..."),
                ("usesServer", 'const { faulty } = await import("mcp/servers")'),
            ):
                failed = await bridge.run(f"await (await runtime.load_tool('{name}'))('a')", language="javascript")
                assert f"write inside it, and save it again: {inside}" in failed.error["message"]
