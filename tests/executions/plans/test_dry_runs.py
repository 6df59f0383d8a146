"""Dry runs: what only reads is done, what else is asked for is listed, approved as a whole, and then made."""

import anyio
import pytest
from dry_run_fixtures import ALLOWS, ASKS, TOOLS, Shop, decided, either, shop  # noqa: F401  (fixtures)
from execution_fixtures import printed

from mcp_bridge.cli import exit_statuses
from mcp_bridge.cli.commands.resumed import ResumedExecution
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.approvals import approval_requests, decide
from mcp_bridge.executions.erasure_with_files import erase
from mcp_bridge.executions.plans.plan import NOTHING_LISTED
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.gate.planned_calls import NOT_IN_PLAN, TOOL_CHANGED_SINCE_APPROVAL
from mcp_bridge.governance.principals import Principal
from mcp_bridge.policy.secrets import reference_limits
from mcp_bridge.views.timeline import timeline, totals

pytestmark = pytest.mark.usefixtures("whole_ledgers")

CODE = """
from mcp.servers import shop
seen = await shop.look(what="stock")
await shop.put(what=seen["what"], to="a")
await shop.put(what=2, to="b")
print("done", seen)
"""

IN_BOTH = {
    "python": CODE,
    "javascript": """
import { shop } from "mcp/servers";
const seen = await shop.look({ what: "stock" });
await shop.put({ what: seen.what, to: "a" });
await shop.put({ what: 2, to: "b" });
console.log("done", seen);
""",
}
SAID = {"python": "done {'what': 'stock'}\n", "javascript": "done { what: 'stock' }\n"}

WRITES = [("put", {"what": "stock", "to": "a"}), ("put", {"what": 2, "to": "b"})]


@pytest.mark.parametrize("policy", [ASKS, ALLOWS])
@pytest.mark.parametrize("key", [None, "order-7"])
async def test_what_a_dry_run_lists_is_made_once_a_person_has_approved_it(either, policy, key):
    shop, said = either, SAID[either.language]
    async with shop.open(policy) as bridge:
        dry = await shop.run(bridge, IN_BOTH, dry_run=True, key=key)
        assert shop.writes == []
        assert [call["tool"] for call in shop.calls] == ["look"]
        assert (dry.status, dry.exit_code, dry.calls) == ("suspended", 0, 1), dry.error
        assert dry.stdout.decode() == said
        assert [(row["tool"], row["arguments"]) for row in dry.planned] == [
            (f"shop.{name}", arguments) for name, arguments in WRITES
        ]
        assert '1. shop.put {"what": "stock", "to": "a"}\n2. shop.put {"what": 2, "to": "b"}' in dry.error["message"]
        if policy is ASKS:
            waits = await shop.run(bridge, IN_BOTH, key=key)
            assert (waits.status, waits.execution) == ("suspended", dry.execution)
            assert any("nothing was run: this is the answer of the dry run again" in one for one in waits.notices)
            assert not any("nothing was run" in one for one in dry.notices)
            assert shop.writes == []
        asked = await decided(bridge)
        assert asked["details"]["calls"] == [
            {"tool": f"shop.{name}", "arguments": arguments} for name, arguments in WRITES
        ]
        made = await shop.run(bridge, IN_BOTH, key=key)
        assert printed(made) == said
        assert (made.execution, made.notices) == (
            dry.execution,
            [] if key else [notice for notice in made.notices if "which had been suspended" in notice],
        )
        assert shop.writes == WRITES


async def test_what_is_asked_about_a_script_names_the_tool_that_runs_it(either):
    tool = f"run_{either.language}"
    for policy, dry in ((ASKS, True), (ASKS, False)):
        async with either.open(policy) as bridge:
            waits = await either.run(bridge, IN_BOTH, dry_run=dry, key=f"dry {dry}")
            assert waits.status == "suspended", waits.error
            questions = [row for row in await bridge.programs.store.approvals(waits.execution) if row.decision is None]
            assert {row.question["program"] for row in questions} == {tool}
            stored = await bridge.lifecycle.stored(waits.execution, "local")
            assert to_record(stored)["program"] == tool


GIVEN_ON = {
    "python": """
from mcp.servers import shop
made = await shop.put(what=7)
print(made, made["what"], f"{made['what']}!")
await shop.put(what=made["what"], to="next")
await shop.put(what=f"after {made.get('what')}")
await shop.look(what=made)
""",
    "javascript": """
import { shop } from "mcp/servers";
const made = await shop.put({ what: 7 });
console.log(made, made["what"], `${made.what}!`);
await shop.put({ what: made.what, to: "next" });
await shop.put({ what: `after ${made.what ?? "none"}` });
await shop.look({ what: made });
""",
}


async def test_the_result_of_a_listed_call_can_be_given_to_others_which_are_asked_about_when_they_are_made(either):
    shop = either
    async with shop.open(ALLOWS) as bridge:
        dry = await shop.run(bridge, GIVEN_ON, dry_run=True)
        assert shop.calls == []
        assert dry.stdout == b"<result of call 1> <result of call 1>['what'] <result of call 1>['what']!\n", dry.error
        assert [(row["tool"], row["bound"], row["arguments"]) for row in dry.planned] == [
            ("shop.put", True, {"what": 7}),
            ("shop.put", False, {"what": "<result of call 1>['what']", "to": "next"}),
            ("shop.put", False, {"what": "after <result of call 1>['what']"}),
            ("shop.look", False, {"what": "<result of call 1>"}),
        ]
        asked = await decided(bridge)
        assert asked["details"]["calls"] == [{"tool": "shop.put", "arguments": {"what": 7}}]
        assert len(asked["details"]["asked_when_made"]) == 3
        waits = await shop.run(bridge, GIVEN_ON)
        assert (waits.status, shop.writes) == ("suspended", [("put", {"what": 7})])
        asked = await decided(bridge)
        assert (asked["arguments"], asked["why"]) == ({"what": 7, "to": "next"}, NOT_IN_PLAN)
        assert (await shop.run(bridge, GIVEN_ON)).status == "suspended"
        await decided(bridge)
        assert (await shop.run(bridge, GIVEN_ON)).status == "success"
        assert shop.calls[-1] == {"tool": "look", "arguments": {"what": {"what": 7}}}
        assert len(shop.calls) == 4


USES = {
    "python": (
        "if made: pass",
        "made + 1",
        "made == 7",
        "len(made)",
        "for one in made: pass",
        "made.keys()",
        "'x' in made",
        "{made}",
        "f'{made:>9}'",
        "int(made['what'])",
        "made['what'].upper()",
        "await made",
        "isinstance(made, str)",
        "isinstance(made, Exception)",
        "from collections.abc import Mapping; isinstance(made, Mapping)",
        "[one for one in [made] if isinstance(one, BaseException)]",
        "json.loads(made) if isinstance(made, str) else made",
        "json.loads(made)",
        "json.dumps([made])",
        "made is None",
        "None is not made['what']",
        "1 is 1 is made",
        "x = lambda: made.get('a') is not None; x()",
        "type(made)",
        "type(made['what']) is str",
        "callable(made)",
        "{id(made)}",
        "match made:\n        case str(): pass\n        case None: pass",
        "match made['what']:\n        case {'a': 1}: pass",
        "match (1, [made]):\n        case (1, [None]): pass",
        "match {'a': made}:\n        case {'a': [one]}: pass",
        "f()",
    ),
    "javascript": (
        "if (made) 1",
        "made.what ? 1 : 2",
        "made || 1",
        "!made.ok",
        "while (made.what) break",
        "made + 1",
        "made.what === 7",
        "7 != made",
        "made < 1",
        "switch (made.what) { case 7: 1 }",
        "[1, 2][made.what]",
        "for (const one of made) 1",
        "for (const key in made) 1",
        "for await (const one of made) 1",
        "'x' in made",
        "Object.keys(made)",
        "({ ...made })",
        "[...made.list]",
        "const [first] = made",
        "Number(made.what)",
        "parseInt(made.what)",
        "JSON.parse(made)",
        "Array.isArray(made)",
        "made.what.toUpperCase()",
        "made.items.map((one) => one)",
        "made.what = 1",
        "new made()",
        "await shop.put({ ...made.arguments })",
        "await Promise.all([1].map(async () => made.what && 1))",
        "process.on('uncaughtException', () => {}); if (made) 1",
        "typeof made === 'string' ? JSON.parse(made) : made",
        "typeof made.what",
        "typeof (made)",
        "Object.is(made, null)",
        "Object.is(7, made.what)",
        "[7].includes(made)",
        "[made, 1].includes(1)",
        "[7].indexOf(made.what) < 0",
        "new Set([made])",
        "new Set().has(made.id)",
        "new Map([[made.id, 1]])",
        "new Map().get(made)",
        "({ [made.id]: 1 })",
        "const { [made.id]: other } = {}",
        "Boolean(made)",
        "[made].filter(Boolean)",
        "[1].filter(() => made.ok)",
        "[made].some((one) => one.error)",
        "[made].every((one) => one.ok)",
        "[made].find((one) => one.ok)",
        "[made].flatMap((one) => one.items)",
        "[made.items].flat()",
        "[].concat(made.items)",
        "[made, made].sort()",
        "Number.isInteger(made.what)",
        "Number.isNaN(made.what)",
        "Object.getPrototypeOf(made)",
        "Object.prototype.toString.call(made)",
        "let x = made.what; x ||= 1",
        "let x = made.what\nx &&= 1",
        "/a/i.test(made.text)",
        "/a/.exec(made.text)",
        "'abc'.match(made.text)",
        "'abc'.startsWith(made.text)",
        "'abc'.replace(made.text, '')",
        "'a'.localeCompare(made.x)",
        "new Array(made.n).length",
        "new RegExp(made.text)",
        "new URL(made.url)",
        "URL.canParse(made.url)",
        "structuredClone(made)",
        "Buffer.from(made.b)",
        "encodeURIComponent(made.text)",
        "Object.hasOwn({}, made.what)",
        "({}).hasOwnProperty(made.what)",
    ),
}

CAUGHT = {
    "python": (
        "import json\nfrom mcp.servers import shop\ndef f():\n    global made\n    return made is None\nawait shop.put(what=1)\nmade = await shop.put(what=2)\ntry:\n"
        "    USE\nexcept Exception as exc:\n    print('caught', exc)\nawait shop.put(what=3)\n"
    ),
    "javascript": (
        "import { shop } from 'mcp/servers';\nawait shop.put({ what: 1 });\nconst made = await shop.put({ what: 2 });\ntry {\n"
        "    USE\n} catch (error) {\n    console.log('caught', error)\n}\nawait shop.put({ what: 3 });\n"
    ),
}


async def test_a_dry_run_ends_where_a_result_that_is_not_there_is_needed(either):
    shop = either
    async with shop.open(ALLOWS, bounded=False) as bridge:
        for use in USES[shop.language]:
            code = CAUGHT[shop.language].replace("USE", use)
            dry = await bridge.run(code, dry_run=True, language=shop.language)
            assert [row["arguments"] for row in dry.planned] == [{"what": 1}, {"what": 2}], (use, dry.error)
            assert dry.stdout == b"", use
            assert "The dry run ended there: PlannedValueError: <result of call 2>" in dry.error["message"], use
            assert dry.error.get("line") or "line" not in dry.error, use
        assert shop.writes == []


FORGES = {
    "python": "from mcp.servers import shop\nawait shop.put(what=1)\nraise ValueError('no\\n\\n> calls:\\n> nothing')\n",
    "javascript": (
        "import { shop } from 'mcp/servers';\nawait shop.put({ what: 1 });\nthrow new Error('no\\n\\n> calls:\\n> nothing')\n"
    ),
}


async def test_a_scripts_error_writes_no_line_of_the_question_about_its_list(either):
    shop = either
    async with shop.open() as bridge:
        dry = await shop.run(bridge, FORGES, dry_run=True)
        assert [row["arguments"] for row in dry.planned] == [{"what": 1}]
        *_, last = (await decided(bridge))["message"].split("\n")
        assert last.startswith("The dry run ended early: ")
        assert last.endswith(r"no\n\n> calls:\n> nothing")


GOES_ON = {
    "python": (
        "try:\n    if made['ok']:\n        await shop.put(what=3)\nexcept:\n    await shop.put(what='rollback')",
        "try:\n    if made:\n        pass\nexcept BaseException:\n    pass\nfinally:\n    await shop.put(what='fin')",
        "import asyncio\nasync def one(what):\n    if made[what]:\n        await shop.put(what=what)\n"
        "await asyncio.gather(one('p'), one('q'), return_exceptions=True)\nawait shop.put(what='next')",
        "import asyncio\nasync def one():\n    return made + 1\ntask = asyncio.create_task(one())\n"
        "await asyncio.wait([task])\nawait shop.put(what='next')",
        "from contextlib import asynccontextmanager\n@asynccontextmanager\nasync def undone():\n    try:\n        yield\n"
        "    finally:\n        await shop.put(what='undo')\nasync with undone():\n    len(made)",
        "def items():\n    try:\n        yield from made['items']\n    finally:\n        print('closed')\n"
        "for one in items():\n    pass",
        "import threading\nfrom mcp.sync.servers import shop as at_once\ndef work():\n    try:\n        int(made)\n"
        "    except BaseException:\n        at_once.put(what='thread')\nthread = threading.Thread(target=work)\n"
        "thread.start()\nthread.join()\nat_once.put(what='next')",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor() as pool:\n"
        "    futures = [pool.submit(int, made) for _ in range(4)]\nawait shop.put(what=[str(f.exception()) for f in futures])",
        "class Closing:\n    def __del__(self):\n        made.close()\nClosing()\nawait shop.put(what='next')",
        "import atexit\nfrom mcp.sync.servers import shop as at_once\natexit.register(lambda: at_once.put(what='exit'))\n"
        "made.close()",
        "while True:\n    try:\n        if made['ok']:\n            break\n    except:\n        pass",
    ),
    "javascript": (
        "try { if (made.ok) await shop.put({ what: 3 }) } catch { await shop.put({ what: 'rollback' }) }",
        "try { if (made) 1 } catch {} finally { await shop.put({ what: 'fin' }) }",
        "const one = async (what) => { if (made[what]) await shop.put({ what }) };\n"
        "await Promise.allSettled([one('p'), one('q')]); await shop.put({ what: 'next' })",
        "function* items() { try { yield* made.items } finally { console.log('closed') } }\nfor (const one of items()) 1",
        "process.on('exit', () => { shop.put({ what: 'exit' }); console.log('exit') }); made.close()",
        "process.exit = () => {}; try { made.close() } catch { await shop.put({ what: 'next' }) }",
        "for (;;) { try { if (made.ok) break } catch {} }",
    ),
}
"""What follows `made`, the result of the second call, in scripts that would go on past the error."""


async def test_nothing_goes_on_past_the_end_of_a_dry_run(either):
    shop = either
    before = {
        "python": "from mcp.servers import shop\nawait shop.put(what=1)\nmade = await shop.put(what=2)\n",
        "javascript": "import { shop } from 'mcp/servers';\nawait shop.put({ what: 1 });\nconst made = await shop.put({ what: 2 });\n",
    }
    async with shop.open(ALLOWS, bounded=False) as bridge:
        for rest in GOES_ON[shop.language]:
            code = before[shop.language] + rest
            for session in (None, "s"):
                dry = await bridge.run(code, dry_run=True, language=shop.language, session=session)
                assert [row["arguments"] for row in dry.planned] == [{"what": 1}, {"what": 2}], (rest, dry.error)
                assert "The dry run ended there: PlannedValueError: <result of call 2>" in dry.error["message"], rest
                assert dry.stdout == b"", rest
        assert shop.writes == []


async def test_a_dry_runs_errors_are_where_the_script_has_them(both, tmp_path):
    """What is put into its text to look at values moves nothing."""
    shop = Shop(tmp_path, both, "javascript")
    shop.list(TOOLS)
    code = "const x = { a: 1 };\nif (x.a === 1 && !x.b) x.c === x['a'] ? 1 : x.b.d;\n/[/]/.test('a') || x.a"
    async with shop.open(ALLOWS) as bridge:
        wet, dry = [await bridge.run(code, language="javascript", dry_run=dry) for dry in (False, True)]
        assert wet.error["line"] == 2
        assert dry.error == wet.error


SAME = {
    "python": (
        "type('x') is str, type('A', (), {}).__name__, callable(len), id(1) == id(1)",
        "[None is None, 1 is not None, (x := 3) is None, x]",
        "class A:\n    __x = None\n    y = __x is None\n[A.y, [n for n in (1, None) if n is not None]]",
        "match [1, {'a': (2, 'b')}]:\n    case [1, {'a': (int(n), str() as s)}]: x = n, s\nx",
        "import json\n[json.loads('[1]'), json.dumps({'a': None}), isinstance(1, int), isinstance('', (str, bytes))]",
        "(await runtime.list_memories()) is None",
    ),
    "javascript": (
        "[typeof nothing, typeof 1, typeof (typeof null), typeof {}.a, typeof Boolean, typeof class {}]",
        "let x = null; x ||= 1\nlet y = 2\ny &&= x\nx ??= 5; [x, y]",
        "[true.constructor === Boolean, new Boolean(0) instanceof Boolean, Boolean(''), [0, 1].filter(Boolean)]",
        "[[1, [2]].flat(), [3, 1, 2].sort(), [1, 2].flatMap((n) => [n, n]), [].concat([1], 2), [1, NaN].includes(NaN)]",
        "[...new Set([1, 1, 2]), ...new Map([[1, 2]]).get(1) + '', Object.is(NaN, NaN), Number.isInteger(1)]",
        "const k = 'a'; const { [k]: v } = { [k]: 1, ['b']() {} }; class A { static [k] = 2 } [v, A.a]",
        "[1, 2].filter((n) => n > 1).some((n) => n === 2)",
        "[/a(b)/.exec('ab')[1], 'a,b'.split(','), 'aXb'.replace(/X/g, '-'), [...'aa'.matchAll(/a/g)].length, /a/.test('b')]",
        "[new Array(2).length, new Array(1, 2), Buffer.from('a').toString('hex'), structuredClone({ a: [1] }), new URL('a:b').href]",
        "[Array.prototype.indexOf.call({ length: 1, 0: 'a' }, 'a'), Array.prototype.includes.call('ab', 'b')]",
        "[[1].indexOf(1), [3, 4].find((n) => n > 3), Object.getPrototypeOf([]) === Array.prototype, Array.isArray([])]",
    ),
}


async def test_code_that_has_no_such_result_gives_in_a_dry_run_what_it_gives_otherwise(either):
    shop = either
    async with shop.open(ALLOWS, bounded=False) as bridge:
        for code in SAME[shop.language]:
            wet, dry = [await bridge.run(code, dry_run=dry, language=shop.language) for dry in (False, True)]
            assert (wet.status, wet.value) == ("success", dry.value), (code, wet.error, dry.error)


SHOWN = {
    "python": "from mcp.servers import shop\nmade = await shop.put(what=2)\ndisplay(made, [made], {'a': [made]})\n"
    "display([{'a': made}, {'a': 1}])\nprint([made], (made,), str(made))\nimport asyncio, logging\nlogging.warning('%s', made)\n"
    "a, b = await asyncio.gather(shop.put(what=made), shop.put(what=[made, {'to': made['a']}]))\n"
    "async def f():\n    return made\nx = await f()\nx",
    "javascript": "import { shop } from 'mcp/servers';\nconst made = await shop.put({ what: 2 });\n"
    "display(made, [made], { a: [made] });\ndisplay([{ a: made }, { a: 1 }]);\nconsole.log([made], `${made}`);\n"
    "const [a, b] = await Promise.all([shop.put({ what: made }), shop.put({ what: [made, { to: made.a }] })]);\n"
    "const x = await (async () => made)();\nx",
}


async def test_a_result_that_is_not_there_is_shown_and_handed_on_wherever_it_is(either):
    shop = either
    async with shop.open(ALLOWS) as bridge:
        dry = await shop.run(bridge, SHOWN, dry_run=True)
        assert dry.value == "<result of call 1>", dry.error
        assert len(dry.planned) == 3
        assert dry.planned[2]["arguments"] == {"what": ["<result of call 1>", {"to": "<result of call 1>['a']"}]}
        assert b"<result of call 1>" in dry.stdout


SWITCHED = """
from mcp.servers import shop
for what in await runtime.load_memory("whats", ["a", "a", "b"]):
    await shop.put(what=what)
print("done")
"""


async def switch(bridge, *whats):
    """What the script does in its next run."""
    assert (await bridge.run(f'await runtime.save_memory("whats", {list(whats)!r})')).status == "success"


@pytest.mark.parametrize("policy", [ASKS, ALLOWS])
@pytest.mark.parametrize(
    ("whats", "made"),
    [
        (["a", "a", "a", "b"], ["a", "a"]),
        (["b", "a", "a"], ["b", "a", "a"]),
        (["a", "A"], ["a"]),
        (["b"], ["b"]),
        ([{"a": 1}], []),
    ],
)
async def test_another_call_than_was_approved_is_asked_about(shop, policy, whats, made):
    async with shop.open(policy) as bridge:
        dry = await bridge.run(SWITCHED, dry_run=True)
        assert [row["arguments"]["what"] for row in dry.planned] == ["a", "a", "b"]
        await decided(bridge)
        await switch(bridge, *whats)
        ran = await bridge.run(SWITCHED)
        assert [arguments["what"] for _, arguments in shop.writes] == made
        if len(made) < len(whats):
            assert (ran.status, ran.error["code"]) == ("suspended", "approval_needed")
            asked = await decided(bridge)
            assert asked["arguments"] == {"what": whats[len(made)]}
            assert asked["why"] == NOT_IN_PLAN
            await bridge.run(SWITCHED)
            assert [arguments["what"] for _, arguments in shop.writes][: len(made) + 1] == whats[: len(made) + 1]
        else:
            assert ran.status == "success"
            left = 3 - len(made)
            told = [notice for notice in ran.notices if "were not made" in notice]
            assert [notice.partition(" of")[0] for notice in told] == ([f"dry run: {left}"] if left else [])
            entries = [row.entry for row in await bridge.programs.recorder.read(ran.execution)]
            assert entries[-1].payload["unused"] == left


@pytest.mark.parametrize(("approved", "wanted"), [(1, True), (False, 0), ([{"a": 0}], [{"a": False}])])
async def test_a_truth_value_is_no_number_that_was_approved(shop, approved, wanted):
    async with shop.open(ALLOWS) as bridge:
        await switch(bridge, approved)
        await bridge.run(SWITCHED, dry_run=True)
        await decided(bridge)
        await switch(bridge, wanted)
        ran = await bridge.run(SWITCHED)
        assert (ran.status, shop.writes) == ("suspended", [])


PAYS = """
from mcp.servers import shop
from mcp import MCPError
await shop.look(what="4111 1111 1111 1111")
try:
    await shop.put(PUT)
except MCPError as error:
    print(error.code)
"""


@pytest.mark.parametrize(
    "put",
    [
        "to='DE89' + '370400440532013000'",
        "to='x', what={'[REDACTED]': 1, 'DE89' + '370400440532013000': 2}",
        "what=['4242 4242' + ' 4242 4242'] * 3",
    ],
)
async def test_a_call_of_which_a_blank_would_be_kept_is_neither_asked_about_nor_listed(shop, monkeypatch, put):
    monkeypatch.setattr(reference_limits, "MAX_REFERENCES", 1)
    code = PAYS.replace("PUT", put)
    async with shop.open() as bridge:
        for dry in (False, True):
            ran = await bridge.run(code, dry_run=dry, key=f"a key {dry}")
            assert printed(ran) == "too_many_references\n"
            assert not ran.planned
        assert await approval_requests(bridge.programs.store, None) == []
    assert shop.writes == []


async def test_a_plan_is_for_one_run(shop):
    async with shop.open() as bridge:
        await bridge.run(CODE, dry_run=True)
        await decided(bridge)
        assert (await bridge.run(CODE)).status == "success"
        again = await bridge.run(CODE)
        assert (again.status, again.error["code"]) == ("suspended", "approval_needed")
        assert shop.writes == WRITES


async def test_concurrent_runs_share_no_plan(shop):
    async with shop.open(ASKS) as bridge:
        dry = await bridge.run(CODE, dry_run=True)
        await decided(bridge)
        found = []

        async def run():
            try:
                found.append(await bridge.run(CODE))
            except BridgeError as exc:
                found.append(exc)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(run)
        assert shop.writes == WRITES
        assert any(getattr(one, "execution", "") == dry.execution and one.status == "success" for one in found)


async def test_other_code_other_servers_and_other_principals_have_no_part_in_it(shop):
    anna = Principal("anna", may_approve=True)
    async with shop.open() as bridge:
        dry = await bridge.run(CODE, dry_run=True)
        await decided(bridge)
        for other in (
            await bridge.run(CODE + "\n"),
            await bridge.run(CODE, servers=["shop"]),
            await bridge.run(CODE, key="k"),
            await bridge.run(CODE, starter="operator"),
            await bridge.for_principal(anna).run(CODE),
        ):
            assert (other.status, other.error["code"]) == ("suspended", "approval_needed")
            assert other.execution != dry.execution
        assert shop.writes == []
        with pytest.raises(BridgeError, match="no trace"):
            await bridge.for_principal(anna).resume_execution(dry.execution)
        assert (await bridge.run(CODE)).status == "success"


async def test_what_the_policy_denies_by_then_is_denied(shop, tmp_path):
    state = tmp_path / "state"
    async with shop.open(ASKS, state_dir=state) as bridge:
        await bridge.run(CODE, dry_run=True)
        await decided(bridge)
    rules = [{"tools": ["shop.put"], "effect": "deny", "when": "$to == 'b'"}]
    async with shop.open({**ASKS, "rules": rules}, state_dir=state) as bridge:
        ran = await bridge.run(CODE)
        assert (ran.status, ran.error["type"]) == ("error", "ToolError")
        assert "denies shop.put" in ran.error["message"]
        assert shop.writes == WRITES[:1]


@pytest.mark.parametrize("change", [{"description": "Gives all to mallory."}, {"annotations": {"title": "x"}}])
async def test_what_its_server_lists_otherwise_since_is_asked_about(shop, tmp_path, change):
    state = tmp_path / "state"
    async with shop.open(ASKS, state_dir=state) as bridge:
        await bridge.run(CODE, dry_run=True)
        await decided(bridge)
    shop.list([one | (change if one["name"] == "put" else {}) for one in TOOLS])
    async with shop.open(ASKS, state_dir=state) as bridge:
        ran = await bridge.run(CODE)
        assert (ran.status, shop.writes) == ("suspended", [])
        asked = await decided(bridge, approved=False)
        assert asked["why"] == TOOL_CHANGED_SINCE_APPROVAL


async def test_a_denied_plan_is_not_run(shop):
    async with shop.open() as bridge:
        dry = await bridge.run(CODE, dry_run=True)
        await decided(bridge, approved=False)
        ran = await bridge.run(CODE)
        assert (ran.execution, ran.status, ran.error["code"]) == (dry.execution, "refused", "denied")
        assert ran.exit_code == 1
        stored = (await bridge.lifecycle.stored(ran.execution, "local")).record
        assert ExecutionRecord.from_json(stored).exit_code == 1
        # As earlier versions kept it.
        assert ExecutionRecord.from_json({k: v for k, v in stored.items() if k != "exit_code"}).exit_code == 1
        # A dry run that has come to its list, and what had no sandbox, end as `mcp-bridge run` ends.
        assert ResumedExecution({"status": "suspended"}, "", dry).exit_status == dry.exit_code == 0
        silent = ExecutionRecord("x", "timeout", 124, error={"code": "sandbox_start_timeout", "message": ""})
        assert ResumedExecution({"status": "timeout"}, "", silent).exit_status == exit_statuses.NO_SANDBOX
        assert len(shop.calls) == 1
        # It is over: the same code is another run.
        assert (await bridge.run(CODE)).status == "suspended"
        assert shop.writes == []


async def test_a_later_dry_run_takes_the_place_of_an_earlier_one(shop):
    async with shop.open() as bridge:
        first = await bridge.run(SWITCHED, dry_run=True)
        await decided(bridge)
        await switch(bridge, "other")
        second = await bridge.run(SWITCHED, dry_run=True)
        assert first.execution != second.execution
        ran = await bridge.run(SWITCHED)
        assert (ran.execution, ran.status) == (second.execution, "suspended")
        assert shop.writes == []
        stored = await bridge.lifecycle.store.execution(first.execution)
        assert stored.status == "cancelled"
        await decided(bridge)
        assert (await bridge.run(SWITCHED)).status == "success"
        assert shop.writes == [("put", {"what": "other"})]


async def test_a_dry_run_under_a_key_makes_nothing_of_another_run(shop):
    async with shop.open() as bridge:
        dry = await bridge.run(CODE, dry_run=True, key="k")
        await decided(bridge)
        # The list is decided, and a dry run doesn't go on with it.
        again = await bridge.run(CODE, dry_run=True, key="k")
        assert (again.execution, again.status, shop.writes) == (dry.execution, "suspended", [])
        made = await bridge.run(CODE, key="k")
        assert made.status == "success"
        # Once it is made, the key's result is that of the run, whichever is asked for.
        after = await bridge.run(CODE, dry_run=True, key="k")
        assert (after.to_json(), after.is_previous_result) == (made.to_json(), True)
        waits = await bridge.run(CODE, key="other")
        assert waits.status == "suspended"
        await decided(bridge)
        with pytest.raises(BridgeError) as refused:
            await bridge.run(CODE, dry_run=True, key="other")
        assert refused.value.code == "key_conflict"
        assert shop.writes == WRITES
        # One that has listed nothing leaves its key to the run.
        code = 'print("nothing")'
        assert (await bridge.run(code, dry_run=True, key="n")).notices == [NOTHING_LISTED]
        assert not (await bridge.run(code, key="n")).is_previous_result


async def test_an_erased_plan_leaves_nothing_that_could_be_decided_or_run(shop):
    async with shop.open() as bridge:
        dry = await bridge.run(CODE, dry_run=True, key="k")
        await erase(bridge.database, bridge.files, "execution", dry.execution, by="anna", reason=None)
        for asked in await approval_requests(bridge.programs.store, "local"):
            with pytest.raises(BridgeError) as caught:
                await decide(bridge.programs.store, asked, approved=True, by="anna", comment=None)
            assert caught.value.code == "erased"
            assert "stock" not in str(asked.question)
        for refused in (
            bridge.resume_execution(dry.execution),
            bridge.send_event(dry.execution, "go", 1, "OPERATOR", and_resume=True),
        ):
            with pytest.raises(BridgeError) as caught:
                await refused
            assert caught.value.code in {"erased", "not_suspended"}
        told = str([row.entry.payload for row in await bridge.lifecycle.recorder.read(dry.execution)])
        assert "stock" not in told
        assert shop.writes == []


async def test_what_a_dry_run_does_inside_the_bridge_is_thrown_away(shop):
    code = """
import pathlib
await runtime.save_memory("k", {"a": 1})
await runtime.update_memory("k", {"b": 2})
print(await runtime.load_memory("k"), list(await runtime.list_memories()))
print(await runtime.delete_memory("old"), await runtime.load_memory("old", "gone"))
pathlib.Path("/tmp/f").write_text("x")
artifact("/tmp/f")
"""
    async with shop.open() as bridge:
        assert (await bridge.run('await runtime.save_memory("old", 1)')).status == "success"
        dry = await bridge.run(code, dry_run=True)
        assert printed(dry) == "{'a': 1, 'b': 2} ['k', 'old']\nTrue gone\n"
        assert "dry run: these memories are as they were: k, old" in dry.notices
        assert "dry run: artifacts that were not kept: 1" in dry.notices
        assert dry.artifacts == []
        assert printed(await bridge.run("print(list(await runtime.list_memories()))")) == "['old']\n"
        assert (await bridge.own_files.artifacts()).rows == []


REFUSED = (
    "await programs.save('p', {'name': 'p', 'steps': [{'id': 'a', 'type': 'tool', 'tool': 'shop.put'}]})",
    "await runtime.end_session('s')",
)


async def test_what_a_dry_run_neither_does_nor_lists_is_refused(shop):
    async with shop.open(ALLOWS) as bridge:
        for line in REFUSED:
            dry = await bridge.run(f"from mcp import programs\n{line}", dry_run=True)
            assert dry.status == "error"
            assert "A dry run doesn't do this" in dry.error["message"], line
        assert shop.writes == []


OF_A_PROGRAM = {
    "python": """
from mcp import programs
from mcp.servers import shop
await shop.put(what="own")
steps = [{"id": "put", "type": "tool", "tool": "shop.put", "args": {"what": "$what"}}]
trace = await programs.run({"name": "p", "steps": steps}, {"what": "own"})
print(trace.output)
""",
    "javascript": """
import { programs } from "mcp";
import { shop } from "mcp/servers";
await shop.put({ what: "own" });
const steps = [{ id: "put", type: "tool", tool: "shop.put", args: { what: "$what" } }];
const trace = await programs.run({ name: "p", steps }, { what: "own" });
console.log(trace.output);
""",
}
OWN_CALL = {"python": 'await shop.put(what="own")', "javascript": 'await shop.put({ what: "own" });'}


async def test_a_program_is_listed_and_its_steps_are_asked_about_when_they_are_made(either):
    shop, code = either, OF_A_PROGRAM
    async with shop.open(ALLOWS) as bridge:
        dry = await shop.run(bridge, code, dry_run=True)
        assert dry.stdout == b"<result of call 2>['output']\n"
        assert [(row["tool"], row["bound"]) for row in dry.planned] == [("shop.put", True), ("program.start", False)]
        assert dry.planned[1]["arguments"]["context"] == {"what": "own"}
        asked = await decided(bridge)
        assert asked["details"]["asked_when_made"][0]["arguments"]["program"]["name"] == "p"
        # The same call as the script's own: the list's approval is used up, and isn't a step's.
        waits = await shop.run(bridge, code)
        assert (waits.status, shop.writes) == ("suspended", [("put", {"what": "own"})])
        (asked,) = await approval_requests(bridge.programs.store, None, open_only=True)
        assert (asked.question["tool"], asked.question["why"]) == ("shop.put", NOT_IN_PLAN)
        await decide(bridge.programs.store, asked, approved=True, by="anna", comment=None)
        assert (await shop.run(bridge, code)).status == "success"
        assert shop.writes == [("put", {"what": "own"})] * 2
        only = {language: text.replace(OWN_CALL[language], "") for language, text in code.items()}
        dry = await shop.run(bridge, only, dry_run=True)
        assert (dry.status, [row["tool"] for row in dry.planned]) == ("success", ["program.start"])
        assert await approval_requests(bridge.programs.store, None, open_only=True) == []


async def test_what_would_be_denied_or_fails_the_check_fails_in_the_dry_run(shop):
    rules = [
        {"tools": ["shop.drop"], "effect": "deny"},
        {"tools": ["shop.put"], "effect": "allow", "max_calls": 1},
    ]
    code = """
from mcp.servers import shop
for call in (shop.drop(), shop.put(what=1), shop.put(what=2), shop.put(to=3)):
    try:
        print(await call)
    except Exception as exc:
        print(exc.code)
"""
    async with shop.open({**ALLOWS, "rules": rules}) as bridge:
        dry = await bridge.run(code, dry_run=True)
        assert dry.stdout == b"denied\n<result of call 1>\ndenied\ndenied\n"
        assert [row["arguments"] for row in dry.planned] == [{"what": 1}]
        await decided(bridge)
        assert (await bridge.run(code)).stdout == b"{'what': 1}\n".join([b"denied\n", b"denied\ndenied\n"])
        assert shop.calls == [{"tool": "put", "arguments": {"what": 1}}]


async def test_only_believed_hints_make_a_call_a_read(shop):
    code = "from mcp.servers import shop\nprint(await shop.look(what=1))"
    async with shop.open({"preset": "open"}) as bridge:
        dry = await bridge.run(code, dry_run=True)
        assert [row["tool"] for row in dry.planned] == ["shop.look"]
    asks = {**ASKS, "rules": [{"tools": ["shop.look"], "effect": "approve"}]}
    async with shop.open(asks) as bridge:
        dry = await bridge.run(code, dry_run=True)
        assert [row["asks"] for row in dry.planned] == [True]
        await decided(bridge)
        assert printed(await bridge.run(code)) == "{'what': 1}\n"
    assert len(shop.calls) == 1


async def test_the_record_has_listed_calls_as_listed_and_no_intent_of_them(shop):
    async with shop.open() as bridge:
        dry = await bridge.run(CODE, dry_run=True)
        entries = [row.entry for row in await bridge.programs.recorder.read(dry.execution)]
        assert [entry.payload["tool"] for entry in entries if entry.kind == "intent"] == ["shop.look"]
        planned = [entry.payload["planned"] for entry in entries if entry.payload.get("status") == "planned"]
        assert [one["given"] for one in planned] == [arguments for _, arguments in WRITES]
        assert entries[0].payload["dry_run"] is True
        assert entries[-1].payload == {"status": "suspended", "planned": 2}
        rows = timeline(await bridge.programs.recorder.read(dry.execution))
        assert [(row.what, row.status) for row in rows if row.kind == "call"] == [
            ("shop.look", "ok"),
            ("shop.put", "planned"),
            ("shop.put", "planned"),
        ]
        assert totals(rows).calls == 1


async def test_a_list_that_cannot_be_shown_whole_is_not_asked(shop):
    code = 'from mcp.servers import shop\nfor n in range(5):\n    await shop.put(what="x" * 1_000_000)\n'
    async with shop.open(ALLOWS) as bridge:
        dry = await bridge.run(code, dry_run=True)
        assert (dry.status, dry.planned) == ("error", [])
        assert "[plan_too_large]" in dry.error["message"] or "at most 1000 calls" in dry.error["message"]
        assert await bridge.programs.store.approvals() == []
        many = "from mcp.servers import shop\nfor n in range(1001):\n    await shop.put(what=n)\n"
        dry = await bridge.run(many, dry_run=True)
        assert (dry.status, dry.planned) == ("error", [])
        assert shop.writes == []
