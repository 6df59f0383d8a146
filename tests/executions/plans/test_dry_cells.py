"""A session's cell that is run dry: in a copy of the session, which stays as it is until the cell is run."""

import anyio
import pytest
from dry_run_fixtures import ALLOWS, ASKS, TOOLS, Shop, decided, either, shop  # noqa: F401  (fixtures)
from execution_fixtures import printed

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.approvals import approval_requests, decide
from mcp_bridge.executions.scripts.record import was_run_dry
from mcp_bridge.executions.sessions.cell_placement import CellPlacement
from mcp_bridge.host.bridge import Bridge
from mcp_bridge.sandbox.session_limits import SessionSettings

pytestmark = [pytest.mark.usefixtures("whole_ledgers"), pytest.mark.xdist_group("sessions")]

BEFORE = {
    "python": """
from mcp.servers import shop
n = 1
class Item:
    to = "a"
item = Item()
def is_there(made):
    return made is not None
open("/workspace/left", "w").write("kept")
seen = await shop.look(what="stock")
""",
    "javascript": """
import { shop } from "mcp/servers";
import fs from "node:fs";
let n = 1;
class Item { to = "a" }
const item = new Item();
function isThere(made) {
  return made !== null;
}
fs.writeFileSync("/workspace/left", "kept");
const seen = await shop.look({ what: "stock" });
""",
}

CELL = {
    "python": """
n += 1
item.to = "b"
await shop.put(what=seen["what"], to=open("/workspace/left").read())
open("/workspace/left", "w").write("changed")
await shop.put(what=n)
print("done", n)
""",
    "javascript": """
n += 1;
item.to = "b";
await shop.put({ what: seen.what, to: fs.readFileSync("/workspace/left", "utf8") });
fs.writeFileSync("/workspace/left", "changed");
await shop.put({ what: n });
console.log("done", n);
""",
}

WRITES = [("put", {"what": "stock", "to": "kept"}), ("put", {"what": 2})]

NAMES = {
    "python": 'print(n, item.to, open("/workspace/left").read())',
    "javascript": 'console.log(n, item.to, fs.readFileSync("/workspace/left", "utf8"))',
}


async def open_plans(bridge):
    asked = await approval_requests(bridge.programs.store, bridge.principal.name, open_only=True)
    return [row for row in asked if row.status == "open"]


async def sessions(bridge):
    return [(row["name"], row["cells"], row["state"]) for row in await bridge.listed_sessions()]


@pytest.mark.parametrize("policy", [ASKS, ALLOWS])
@pytest.mark.parametrize("key", [None, "order-7"])
async def test_a_cell_that_is_run_dry_changes_nothing_and_is_made_once_approved(either, policy, key):
    shop = either
    async with shop.open(policy) as bridge:
        await shop.run(bridge, BEFORE, session="s")
        dry = await shop.run(bridge, CELL, session="s", dry_run=True, key=key)
        assert (dry.status, dry.stdout, dry.artifacts) == ("suspended", b"done 2\n", []), dry.error
        assert [(row["tool"], row["arguments"]) for row in dry.planned] == [(f"shop.{n}", g) for n, g in WRITES]
        assert "in the same session" in dry.error["hint"]
        assert any("in a copy of the session 's'" in notice for notice in dry.notices)
        assert shop.writes == []
        assert await sessions(bridge) == [("s", 1, "ready")]
        if policy is ASKS:
            waits = await shop.run(bridge, CELL, session="s", key=key)
            assert (waits.status, waits.execution, shop.writes) == ("suspended", dry.execution, [])
            # What waits for a decision on its list isn't in the session: that goes on.
            assert await sessions(bridge) == [("s", 1, "ready")]
        await decided(bridge)
        made = await shop.run(bridge, CELL, session="s", key=key)
        assert (made.status, made.execution, printed(made)) == ("success", dry.execution, "done 2\n"), made.error
        assert made.session == {"name": "s", "cell": 2}
        assert shop.writes == WRITES
        after = await shop.run(bridge, NAMES, session="s")
        assert (printed(after), after.session) == ("2 b changed\n", {"name": "s", "cell": 3})
        # The look before the dry run is that of the first cell alone.
        assert [call["tool"] for call in shop.calls] == ["look", "put", "put"]


async def test_a_session_is_rebuilt_with_a_cell_that_was_run_dry_before(either):
    shop = either
    async with shop.open(ALLOWS) as bridge:
        await shop.run(bridge, BEFORE, session="s")
        await shop.run(bridge, CELL, session="s", dry_run=True)
        made = await shop.run(bridge, CELL, session="s")
        bridge.end_sessions()
        after = await shop.run(bridge, NAMES, session="s")
        assert (printed(after), after.session) == ("2 b changed\n", {"name": "s", "cell": 3, "rebuilt": 2})
        replayed = await bridge.replay_execution(await bridge.lifecycle.stored(made.execution, "local"))
        assert replayed.difference is None
        assert shop.writes == WRITES


async def test_the_end_of_a_dry_cell_prints_nothing(either):
    # What is left to keep gives the interpreter time to end meanwhile.
    code = {
        "python": """
import os
for n in range(40): open(f"/workspace/out/{n}", "w").write("x" * 9999)
made = await shop.put(what=1)
print("cell")
if made: print("never")
""",
        "javascript": """
import fs from "node:fs";
for (let n = 0; n < 40; n++) fs.writeFileSync(`/workspace/out/${n}`, "x".repeat(9999));
const made = await shop.put({ what: 1 });
console.log("cell");
if (made) console.log("never");
""",
    }[either.language]
    async with either.open(ALLOWS) as bridge:
        await either.run(bridge, BEFORE, session="s")
        for _ in range(3):
            dry = await bridge.run(code, session="s", dry_run=True, language=either.language)
            assert (dry.stdout, dry.stderr) == (b"cell\n", b""), dry.error


async def test_what_earlier_cells_define_notices_a_result_that_is_not_there(either):
    shop = either
    name = {"python": "is_there", "javascript": "isThere"}[shop.language]
    put = {"python": "made = await shop.put(what=1)", "javascript": "const made = await shop.put({ what: 1 })"}
    code = f"{put[shop.language]}\n{name}(made)\nprint('went on')"
    async with shop.open(ALLOWS) as bridge:
        await shop.run(bridge, BEFORE, session="s")
        dry = await bridge.run(code, session="s", dry_run=True, language=shop.language)
        assert [row["arguments"] for row in dry.planned] == [{"what": 1}]
        assert "The dry run ended there: PlannedValueError: <result of call 1>" in dry.error["message"]
        assert dry.stdout == b""


@pytest.fixture
def in_node(tmp_path, both):
    made = Shop(tmp_path, both, "javascript")
    made.list(TOOLS)
    return made


SOURCES = [
    "(q)in[1,2]",
    "[...(function*() { yield[q]===q; return`${q}`=='1' })()]",
    "let done; (done)||=q; switch(q){case[1].length:done += 1} typeof{done}+typeof nobody",
    "for (var {at = !q} of [{}, { at: 1 }]) if (at === 1) console.log(at in [0, 1])",
    "class Kept extends(q ? Array : Object) { static [typeof q] = !q }\nKept.number",
    "export default q\n  === 1",
    "if (q) {\n  [0]\n    .find(q)\n}",
    "q\n  ? null.x\n  : 1",
]
"""Cells without calls, after `let q = 1`."""


async def test_what_is_put_into_the_text_of_a_dry_cell_changes_nothing_of_it(in_node):
    async with in_node.open(ALLOWS) as bridge:
        await bridge.run("let q = 1", session="s", language="javascript")
        for code in SOURCES:
            dry = await bridge.run(code, session="s", language="javascript", dry_run=True)
            made = await bridge.run(code, session="s", language="javascript")
            for one in (dry, made):
                one.error = one.error and (one.error["type"], one.error["line"], one.error["message"])
            assert (dry.status, dry.stdout, dry.value, dry.error) == (
                made.status, made.stdout, made.value, made.error,
            ), code  # fmt: skip


async def test_the_value_of_a_dry_cell_may_be_a_result_that_is_not_there(either):
    shop = either
    name = {"python": "from mcp.servers import shop\n", "javascript": "import { shop } from 'mcp/servers';\n"}
    put = {"python": "await shop.put(what=1)", "javascript": "await shop.put({ what: 1 })"}
    async with shop.open(ALLOWS) as bridge:
        dry = await bridge.run(
            name[shop.language] + put[shop.language], session="s", language=shop.language, dry_run=True
        )
        assert (dry.value, dry.error["message"].splitlines()[1:]) == ("<result of call 1>", ['1. shop.put {"what": 1}'])


@pytest.mark.parametrize(
    ("code", "notices"),
    [
        ("let n = 1; try { if (n === 1) null.x } catch (error) { console.log(error) }", True),
        ("const rows = [{}]; let at = 0; rows[at].name()", True),
        # What a dry run puts in the place of Node's own is there from the first cell on that looks at values.
        ("console.log(String([].filter))", False),
    ],
)
async def test_a_cell_that_shows_its_own_text_can_be_copied(in_node, code, notices):
    async with in_node.open(ALLOWS) as bridge:
        await in_node.run(bridge, BEFORE, session="s")
        await bridge.run(f"{{{code}}}", session="s", language="javascript")
        again = "const made = await shop.put({ what: 1 }); isThere(made); 'went on'"
        dry = await bridge.run(again, session="s", language="javascript", dry_run=True)
        assert [row["arguments"] for row in dry.planned] == [{"what": 1}], dry.error
        assert any("a cell before shows its own text" in notice for notice in dry.notices)
        # That cell alone doesn't notice.
        assert ("PlannedValueError" in dry.error["message"]) == notices
        failed = await bridge.run("const all = [{}]; let i = 0; all[i].name()", language="javascript", dry_run=True)
        assert failed.error["message"] == "all[…].name is not a function"
        assert "__mcp_need__" not in failed.error["traceback"]


FIRST = {
    "python": 'from mcp.servers import shop\nn = 5\nawait shop.put(what=n)\nprint("first")',
    "javascript": 'import { shop } from "mcp/servers";\nlet n = 5;\nawait shop.put({ what: n });\nconsole.log("first");',
}


@pytest.mark.parametrize("policy", [ASKS, ALLOWS])
async def test_a_first_cell_that_is_run_dry_begins_no_session(either, policy):
    shop = either
    async with shop.open(policy) as bridge:
        dry = await shop.run(bridge, FIRST, session="s", dry_run=True)
        assert (dry.status, await sessions(bridge)) == ("suspended", [])
        assert "the same code without dry_run, with the same session, makes them" in dry.error["hint"]
        assert "dry run: no session 's' has begun with it" in dry.notices
        await decided(bridge)
        made = await shop.run(bridge, FIRST, session="s")
        assert (made.status, made.execution, made.session) == ("success", dry.execution, {"name": "s", "cell": 1})
        assert shop.writes == [("put", {"what": 5})]
        after = await bridge.run("n", session="s", language=shop.language)
        assert (after.value, after.session) == ("5", {"name": "s", "cell": 2})


async def test_a_fork_that_is_run_dry_makes_no_session(either):
    shop = either
    async with shop.open(ALLOWS) as bridge:
        await shop.run(bridge, BEFORE, session="s")
        dry = await shop.run(bridge, CELL, session="t", fork="s", dry_run=True)
        assert [row["arguments"] for row in dry.planned] == [given for _, given in WRITES], dry.error
        assert "the same code without dry_run, with session='t' and fork='s@1', makes them" in dry.error["hint"]
        assert any("a copy of the session 's'" in row and "no session 't' has begun" in row for row in dry.notices)
        assert await sessions(bridge) == [("s", 1, "ready")]
        made = await shop.run(bridge, CELL, session="t", fork="s@1")
        assert (made.status, made.execution, made.session["name"]) == ("success", dry.execution, "t")
        assert printed(await shop.run(bridge, NAMES, session="s")) == "1 a kept\n"
        assert printed(await shop.run(bridge, NAMES, session="t")) == "2 b changed\n"
        assert shop.writes == WRITES


async def test_a_list_is_of_the_names_that_the_session_had_and_ends_when_it_goes_on(shop):
    async with shop.open(ASKS) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        await bridge.run(CELL["python"], session="s", dry_run=True)
        assert len(await open_plans(bridge)) == 1
        await bridge.run("n = 10", session="s")
        assert await open_plans(bridge) == []
        waits = await bridge.run(CELL["python"], session="s")
        (asked,) = await open_plans(bridge)
        assert (waits.status, asked.question["arguments"]) == ("suspended", {"what": "stock", "to": "kept"})
        assert await sessions(bridge) == [("s", 3, "waiting")]
        assert shop.writes == []


async def test_the_list_of_another_bridge_is_not_made_in_a_session_that_has_gone_on(shop, tmp_path):
    state = tmp_path / "state"
    async with shop.open(ASKS, state_dir=state) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        dry = await bridge.run(CELL["python"], session="s", dry_run=True, key="k")
    async with shop.open(ASKS, state_dir=state) as bridge:
        await bridge.run("n = 10", session="s")
        await decided(bridge)
        with pytest.raises(BridgeError, match="has continued without it") as caught:
            await bridge.run(CELL["python"], session="s", key="k")
        assert caught.value.code == "not_suspended"
        assert (await bridge.run("n", session="s")).value == "10"
        assert (await bridge.lifecycle.stored(dry.execution, "local")).status == "cancelled"
        assert shop.writes == []


async def test_a_list_is_made_by_another_bridge_and_after_a_restart(shop, tmp_path):
    state = tmp_path / "state"
    async with shop.open(ASKS, state_dir=state) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        dry = await bridge.run(CELL["python"], session="s", dry_run=True)
        await decided(bridge)
    async with shop.open(ASKS, state_dir=state) as bridge:
        made = await bridge.run(CELL["python"], session="s")
        assert (made.execution, made.status, shop.writes) == (dry.execution, "success", WRITES)
        assert made.session == {"name": "s", "cell": 2, "rebuilt": 1}


async def test_an_approved_list_is_made_by_a_resumption_too(shop):
    async with shop.open(ASKS) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        dry = await bridge.run(CELL["python"], session="s", dry_run=True)
        await decided(bridge)
        made = await bridge.resume_execution(dry.execution)
        assert (made["status"], shop.writes) == ("success", WRITES)
        assert printed(await bridge.run(NAMES["python"], session="s")) == "2 b changed\n"


async def test_a_denied_list_leaves_the_session_as_it_is(shop):
    async with shop.open(ASKS) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        await bridge.run(CELL["python"], session="s", dry_run=True)
        await decided(bridge, approved=False)
        refused = await bridge.run(CELL["python"], session="s")
        assert (refused.status, refused.error["code"]) == ("refused", "denied")
        assert await sessions(bridge) == [("s", 1, "ready")]
        assert printed(await bridge.run(NAMES["python"], session="s")) == "1 a kept\n"
        assert shop.writes == []


MORE = """
await shop.put(what=1)
if await runtime.load_memory("more", False):
    await shop.put(what=2)
done = True
"""


async def test_a_further_call_of_an_approved_cell_waits_as_a_cells_does(shop):
    async with shop.open(ASKS) as bridge:
        await bridge.run("from mcp.servers import shop", session="s")
        dry = await bridge.run(MORE, session="s", dry_run=True)
        await decided(bridge)
        await bridge.run("await runtime.save_memory('more', True)")
        waits = await bridge.run(MORE, session="s")
        assert (waits.status, waits.execution) == ("suspended", dry.execution)
        assert shop.writes == [("put", {"what": 1})]
        assert await sessions(bridge) == [("s", 2, "waiting")]
        with pytest.raises(BridgeError) as caught:
            await bridge.run("1", session="s")
        assert caught.value.code == "session_waiting"
        await decided(bridge)
        made = await bridge.run(MORE, session="s")
        assert (made.status, made.execution) == ("success", dry.execution)
        assert shop.writes == [("put", {"what": 1}), ("put", {"what": 2})]
        assert (await bridge.run("done", session="s")).value == "True"


async def test_so_does_that_of_a_first_cell(shop):
    code = "from mcp.servers import shop\n" + MORE
    async with shop.open(ASKS) as bridge:
        dry = await bridge.run(code, session="s", dry_run=True)
        await decided(bridge)
        await bridge.run("await runtime.save_memory('more', True)")
        assert (await bridge.run(code, session="s")).status == "suspended"
        await decided(bridge)
        made = await bridge.run(code, session="s")
        assert (made.status, made.execution, made.session["cell"]) == ("success", dry.execution, 1)
        assert shop.writes == [("put", {"what": 1}), ("put", {"what": 2})]


async def test_another_dry_run_of_the_same_cell_takes_the_place_of_the_first(shop):
    async with shop.open(ASKS) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        await bridge.run(CELL["python"], session="s", dry_run=True)
        dry = await bridge.run(CELL["python"], session="s", dry_run=True)
        (asked,) = await open_plans(bridge)
        assert asked.execution.id == dry.execution


async def test_a_cell_without_writes_is_run_dry_and_the_session_stays_as_it_is(either):
    shop = either
    code = {"python": "n += 1\nn", "javascript": "n += 1;\nn"}
    async with shop.open(ASKS) as bridge:
        await shop.run(bridge, BEFORE, session="s")
        for _ in range(2):
            dry = await shop.run(bridge, code, session="s", dry_run=True)
            assert (dry.status, dry.value) == ("success", "2")
        assert await sessions(bridge) == [("s", 1, "ready")]
        assert printed(await shop.run(bridge, NAMES, session="s")) == "1 a kept\n"


async def test_a_session_that_can_not_be_copied_is_told_and_goes_on(shop):
    async with shop.open(ASKS, sessions=SessionSettings(rebuild=False)) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        with pytest.raises(BridgeError, match="run dry in a copy of its session") as caught:
            await bridge.run(CELL["python"], session="s", dry_run=True)
        assert caught.value.code == "session_not_rebuilt"
        assert "without dry_run" in caught.value.hint
        assert printed(await bridge.run(NAMES["python"], session="s")) == "1 a kept\n"
        bridge.end_sessions()
        with pytest.raises(BridgeError, match="run dry in a copy of its session") as caught:
            await bridge.run(CELL["python"], session="s", dry_run=True)
        assert "without dry_run" not in caught.value.hint


async def test_a_cell_is_not_run_dry_while_another_waits(shop):
    async with shop.open(ASKS) as bridge:
        await bridge.run("from mcp.servers import shop\nawait shop.put(what=1)", session="s")
        with pytest.raises(BridgeError) as caught:
            await bridge.run("1", session="s", dry_run=True)
        assert caught.value.code == "session_waiting"


async def test_no_container_is_left_of_a_copy(shop, sandboxes):
    async with shop.open(ALLOWS) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        await bridge.run(CELL["python"], session="s", dry_run=True)
        await bridge.run("import os; os._exit(3)", session="s", dry_run=True)
        assert printed(await bridge.run(NAMES["python"], session="s")) == "1 a kept\n"


async def test_a_dry_cell_that_can_not_be_copied_leaves_its_key_to_the_run(shop):
    async with shop.open(ALLOWS, sessions=SessionSettings(rebuild=False)) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        with pytest.raises(BridgeError, match="Sessions aren't rebuilt here"):
            await bridge.run(CELL["python"], session="s", dry_run=True, key="k")
        made = await bridge.run(CELL["python"], session="s", key="k")
        assert (made.status, shop.writes) == ("success", WRITES)


async def test_lists_of_first_cells_make_no_more_sessions_than_there_may_be(shop):
    async with shop.open(ALLOWS, sessions=SessionSettings(max_sessions=1)) as bridge:
        listed = [await bridge.run(FIRST["python"], session=name, dry_run=True) for name in "ab"]
        await bridge.run(FIRST["python"], session="a")
        with pytest.raises(BridgeError) as caught:
            await bridge.run(FIRST["python"], session="b")
        assert caught.value.code == "too_many_sessions"
        # Nor by its id.
        with pytest.raises(BridgeError) as caught:
            await bridge.resume_execution(listed[1].execution)
        assert caught.value.code == "too_many_sessions"
        await bridge.end_session("a")
        assert (await bridge.run(FIRST["python"], session="b")).status == "success"


async def test_a_list_is_made_by_another_bridge_that_has_the_sessions_sandbox(shop, tmp_path):
    state = tmp_path / "state"
    async with shop.open(ALLOWS, state_dir=state) as other, shop.open(ALLOWS, state_dir=state) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        dry = await other.run(CELL["python"], session="s", dry_run=True)
        await decided(other)
        made = await bridge.run(CELL["python"], session="s")
        assert (made.execution, made.status, shop.writes) == (dry.execution, "success", WRITES)
        assert printed(await bridge.run(NAMES["python"], session="s")) == "2 b changed\n"


async def test_a_list_ends_when_its_session_goes_on_and_not_before(shop):
    async with shop.open(ASKS) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        await bridge.run(CELL["python"], session="s", dry_run=True)
        await decided(bridge, approved=False)
        left = await bridge.run(f"{CELL['python']}\n", session="s", dry_run=True)
        assert (await bridge.run(CELL["python"], session="s")).error["code"] == "denied"
        (asked,) = await open_plans(bridge)
        assert asked.execution.id == left.execution
        other = await bridge.run(FIRST["python"], session="s", dry_run=True)
        (asked,) = [row for row in await open_plans(bridge) if row.execution.id == other.execution]
        await decided_on(bridge, asked)
        assert (await bridge.resume_execution(other.execution))["status"] == "success"
        assert await open_plans(bridge) == []


async def test_a_list_is_made_in_the_place_of_a_cell_that_was_refused(shop, monkeypatch):
    async with shop.open(ASKS) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        dry = await bridge.run(CELL["python"], session="s", dry_run=True)
        await decided(bridge)

        async def refused(*_):
            raise BridgeError("sandbox_start_failed", "There is no place.")

        with monkeypatch.context() as patched:
            patched.setattr(Bridge, "_sandboxed", refused)
            with pytest.raises(BridgeError, match="There is no place"):
                await bridge.run("n = 10", session="s")
        made = await bridge.run(CELL["python"], session="s")
        assert (made.execution, made.status, shop.writes) == (dry.execution, "success", WRITES)
        assert made.session == {"name": "s", "cell": 2}


async def decided_on(bridge, asked):
    await decide(bridge.programs.store, asked, approved=True, by="anna", comment=None)


async def test_an_approved_first_cell_that_was_cut_short_begins_no_ended_session_anew(shop):
    slow = "import asyncio\nif await runtime.load_memory('slow', False):\n    progress(1)\n    await asyncio.sleep(60)"
    code = f"{FIRST['python']}\n{slow}\nawait shop.put(what=6)"
    async with shop.open(ASKS) as bridge:
        dry = await bridge.run(code, session="s", dry_run=True, key="k")
        await decided(bridge)
        await bridge.run("await runtime.save_memory('slow', True)")
        reached = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def run():
                await bridge.run(code, session="s", key="k", progress=lambda *_: reached.set())

            tasks.start_soon(run)
            await reached.wait()
            tasks.cancel_scope.cancel()
        assert (await sessions(bridge))[0][:2] == ("s", 1)
        await bridge.end_session("s")
        with pytest.raises(BridgeError, match="has ended") as caught:
            await bridge.run(code, session="s", key="k")
        assert caught.value.code == "not_suspended"
        assert (await sessions(bridge), shop.writes) == ([], [("put", {"what": 5})])
        assert (await bridge.lifecycle.stored(dry.execution, "local")).status in {"interrupted", "suspended"}


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_list_whose_session_goes_on_elsewhere_just_now_is_not_made(shop, tmp_path, monkeypatch, key):
    state = tmp_path / "state"
    async with shop.open(ASKS, state_dir=state) as bridge, shop.open(ASKS, state_dir=state) as other:
        await other.run(BEFORE["python"], session="s")
        dry = await bridge.run(CELL["python"], session="s", dry_run=True, key=key)
        await decided(bridge)
        move = CellPlacement.move

        async def after_another(self, *given):
            await other.run("n = 10", session="s")
            await move(self, *given)

        monkeypatch.setattr(CellPlacement, "move", after_another)
        with pytest.raises(BridgeError, match="has continued without it"):
            await bridge.run(CELL["python"], session="s", key=key)
        assert (await bridge.lifecycle.stored(dry.execution, "local")).status == "cancelled"
        # As the other bridge has it.
        assert (await other.run("n", session="s")).value == "10"
        assert shop.writes == []


async def test_people_are_told_that_a_dry_cell_is_not_in_its_session(shop):
    async with shop.open(ALLOWS) as bridge:
        await bridge.run(BEFORE["python"], session="s")
        dry = await bridge.run(CELL["python"], session="s", dry_run=True)
        assert (dry.session, dry.dry_run) == ({"name": "s", "cell": 2}, True)
        for is_dry in (True, False):
            stored = await bridge.lifecycle.stored(dry.execution, "local")
            assert was_run_dry(stored, stored.status) is is_dry
            await bridge.run(CELL["python"], session="s")
