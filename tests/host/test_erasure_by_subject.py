"""Who is erased by name: whom calls, steps and contexts name, and the cells that have what an erased cell left."""

import hashlib
import json
import sqlite3
from contextlib import asynccontextmanager, closing

import anyio
import pytest
from execution_fixtures import printed, until

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import erasure_with_files
from mcp_bridge.executions.programs.subjects import MAX_SUBJECTS
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import CELLS_LINKED, FILE_NAME

pytestmark = [pytest.mark.xdist_group("sessions"), pytest.mark.usefixtures("whole_ledgers")]

TOOLS = """
import mcp_bridge

@mcp_bridge.tool(read_only=True)
def card(customer: str) -> dict:
    return {"email": customer, "city": "Paris"}

@mcp_bridge.tool(read_only=True)
def visit(customer: str, patient: str) -> str:
    return "seen"

@mcp_bridge.tool(read_only=True)
def visits(patient: list) -> int:
    return len(patient)

@mcp_bridge.tool(read_only=True)
def nested(order: dict) -> str:
    return "ordered"

@mcp_bridge.tool
def change(customer: str) -> str:
    return "changed"
"""

FIELDS = ("customer", "patient")

FIND = "from mcp.servers import local\nr = await local.card(customer='{}')"


@asynccontextmanager
async def bridge_of(runs, folder, *, patterns=(), **changes):
    (folder / "tools").mkdir(parents=True, exist_ok=True)
    # A name of its own: a process loads each once.
    name = f"subjects_{hashlib.sha256(bytes(folder)).hexdigest()}.py"
    (folder / "tools" / name).write_text(TOOLS)
    tables = {"tools": {"path": ["tools"], "entry_points": False}, "projection": {"patterns": list(patterns)}}
    governance = load_governance(tables, None, folder, folder / "state")
    ledger = LedgerConfig(subject_fields=FIELDS)
    options = {"governance": governance, "ledger": ledger, "state_dir": folder / "state", **changes}
    async with runs.open(**options) as bridge:
        yield bridge


async def erase(bridge, what, name):
    erased = await erasure_with_files.erase(bridge.database, bridge.files, what, name, by="me", reason=None)
    return set(erased.executions)


async def nothing_is_left(bridge, name):
    with pytest.raises(BridgeError) as caught:
        await erase(bridge, "subject", name)
    return caught.value.code == "nothing_to_erase"


async def programs_of(bridge):
    rows = await ProgramStore(bridge.database).executions(None, 50)
    return [row.id for row in rows if row.kind == "program"]


async def cells_of_dora(bridge):
    """A session with a fork from each side of the cell that has called for Dora; the cells that have her data."""
    await bridge.run("a = 1", session="s")
    data = [
        await bridge.run(FIND.format("Dora Smith"), session="s"),
        await bridge.run("print(r['email'])", session="s"),
        await bridge.run("print(r['email'])", session="t", fork="s@2"),
        await bridge.run("print(r['email'])", session="t"),
        await bridge.run("print('nothing of hers')", session="s"),
    ]
    await bridge.run("print(a)", session="u", fork="s@1")
    assert [printed(record).strip() for record in data[1:4]] == ["Dora Smith"] * 3
    return {record.execution for record in data}


async def test_cells_and_forks_that_have_what_an_erased_cell_left_are_erased_with_it(sandboxes, tmp_path):
    async with bridge_of(sandboxes, tmp_path) as bridge:
        data = await cells_of_dora(bridge)
        assert await erase(bridge, "subject", "Dora Smith") == data
        with pytest.raises(BridgeError) as caught:
            await bridge.run("r", session="s")
        assert caught.value.code == "session_lost"
        assert (await bridge.run("a", session="u")).value == "1"

        async def has_only_the_other_sandbox():
            return len(await sandboxes.containers()) == 1

        await until(has_only_the_other_sandbox)
        assert await bridge.end_session("s")
        assert (await bridge.run("1", session="s")).session == {"name": "s", "cell": 1}


async def test_later_cells_of_another_language_are_erased_too(both, tmp_path):
    async with bridge_of(both, tmp_path) as bridge:
        codes = (
            "import { local } from 'mcp/servers'; const r = await local.card({customer: 'Dora Smith'});",
            "console.log(r.email);",
        )
        data = [await bridge.run(code, session="s", language="javascript") for code in codes]
        assert printed(data[1]) == "Dora Smith\n"
        assert await erase(bridge, "subject", "Dora Smith") == {record.execution for record in data}


async def test_one_cell_that_is_erased_takes_those_after_it_along_but_not_while_one_runs(sandboxes, tmp_path):
    async with bridge_of(sandboxes, tmp_path) as bridge:
        first, *later = [await bridge.run(f"x = {number}", session="s") for number in range(3)]
        seen = []

        async def cell_runs():
            rows = await ProgramStore(bridge.database).executions(None, 1)
            seen[:] = [rows[0].id]
            return rows[0].status == "running"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: bridge.run("import time\nwhile True: time.sleep(0.1)", session="s", timeout=15))
            await until(cell_runs)
            with pytest.raises(BridgeError) as caught:
                await erase(bridge, "execution", later[0].execution)
            assert (caught.value.code, caught.value.details["executions"]) == ("execution_running", seen)
            tasks.cancel_scope.cancel()
        erased = await erase(bridge, "execution", later[0].execution)
        assert erased == {record.execution for record in later} | set(seen)
        assert (await bridge.lifecycle.store.execution(first.execution)).status == "success"


async def test_cells_that_an_earlier_version_has_recorded_are_erased_too(sandboxes, tmp_path, monkeypatch):
    hold = ProgramStore.hold

    def as_it_was(self, holder, *, execution="", **of):
        if not execution:
            hold(self, holder, **of)

    async with bridge_of(sandboxes, tmp_path) as bridge:
        monkeypatch.setattr(ProgramStore, "hold", as_it_was)
        data = await cells_of_dora(bridge)
        monkeypatch.undo()
    with closing(sqlite3.connect(tmp_path / "state" / FILE_NAME)) as connection, connection:
        connection.execute("DELETE FROM meta WHERE name = ?", (CELLS_LINKED,))
    async with bridge_of(sandboxes, tmp_path) as bridge:
        assert await erase(bridge, "subject", "Dora Smith") == data


async def test_a_cell_is_found_by_the_name_of_one_before_that_is_erased_by_age(sandboxes, tmp_path):
    async with bridge_of(sandboxes, tmp_path, patterns=["email"]) as bridge:
        first = await bridge.run(FIND.format("dora@example.com"), session="s")
        later = await bridge.run("print(r['city'])", session="s")
        await bridge.end_session("s")
        ended = await bridge.lifecycle.store.execution(later.execution)
        assert await erase(bridge, "age", (await changed(bridge, first.execution)) + 1e-6) == {first.execution}
        assert ended.status == "success"
        assert await erase(bridge, "subject", "dora@example.com") == {later.execution}


async def changed(bridge, execution):
    [(when,)] = await bridge.database.read("SELECT changed FROM executions WHERE id = ?", (execution,))
    return when


async def test_every_field_at_any_depth_and_in_lists_names_whose_data_a_call_has(bilingual, tmp_path):
    code = {
        "python": """
from mcp.servers import local
await local.visit(customer="Payer One", patient="Child Two")
await local.visits(patient=["Twin A", ["Twin B"], 17, True, ""])
await local.nested(order={"customer": "Nina Nest", "lines": [{"patient": "Otto"}, {"name": "not Otto"}]})
""",
        "javascript": """
import { local } from "mcp/servers";
await local.visit({customer: "Payer One", patient: "Child Two"});
await local.visits({patient: ["Twin A", ["Twin B"], 17, true, ""]});
await local.nested({order: {customer: "Nina Nest", lines: [{patient: "Otto"}, {name: "not Otto"}]}});
""",
    }
    names = ("Payer One", "Child Two", "Twin A", "Twin B", "17", "Nina Nest", "Otto")
    async with bridge_of(bilingual, tmp_path) as bridge:
        records = [await bridge.run(code) for _ in names]
        assert {record.status for record in records} == {"success"}, records[0].error
        whole = {record.execution for record in records}
        for name in ("not Otto", "True", "", "Paris"):
            assert await nothing_is_left(bridge.bridge, name)
        assert await erase(bridge.bridge, "subject", names[0]) == whole
    for name in names[1:]:
        async with bridge_of(bilingual, tmp_path / name) as bridge:
            record = await bridge.run(code)
            assert await erase(bridge.bridge, "subject", name) == {record.execution}


PROGRAM = {
    "steps": [
        {"id": "find", "type": "tool", "tool": "local.card", "args": {"customer": "$wanted"}},
        {
            "id": "see",
            "type": "tool",
            "tool": "local.visit",
            "args": {"customer": "Lena Literal", "patient": "$find.output.email"},
        },
    ]
}


@pytest.mark.parametrize("name", ["dora@example.com", "Lena Literal", "Third One", "Pat"])
async def test_whom_the_steps_of_a_program_name_is_erased_with_the_script_that_ran_it(bilingual, tmp_path, name):
    program = json.dumps(PROGRAM)
    context = json.dumps({"wanted": "dora@example.com", "customer": "Third One", "more": {"patient": ["Pat"]}})
    code = {
        "python": f"from mcp import programs\nprint((await programs.run({program}, {context})).status)",
        "javascript": f"import {{ programs }} from 'mcp';\nconsole.log((await programs.run({program}, {context})).status);",
    }
    async with bridge_of(bilingual, tmp_path, patterns=["email"]) as bridge:
        record = await bridge.run(code)
        assert printed(record) == "success\n"
        [program] = await programs_of(bridge.bridge)
        assert await erase(bridge.bridge, "subject", name) == {record.execution, program}


@pytest.mark.parametrize("name", ["dora@example.com", "Lena Literal", "Third One", "Pat"])
async def test_whom_a_program_without_a_script_names_is_erased_with_it(sandboxes, tmp_path, name):
    context = {"wanted": "dora@example.com", "customer": "Third One", "patient": ["Pat"]}
    async with bridge_of(sandboxes, tmp_path, patterns=["email"]) as bridge:
        told = await bridge.run_program(PROGRAM, context)
        assert await erase(bridge, "subject", name) == {told["trace_id"]}


async def test_what_a_dry_run_lists_names_people_too(bilingual, tmp_path):
    start = f"programs.run({json.dumps(PROGRAM)}, {json.dumps({'patient': 'Pia'})})"
    codes = {
        "python": f"""
import asyncio
from mcp import programs
from mcp.servers import local
await asyncio.gather(local.change(customer="Cleo"), {start}, return_exceptions=True)
""",
        "javascript": f"""
import {{ programs }} from "mcp";
import {{ local }} from "mcp/servers";
await Promise.allSettled([local.change({{customer: "Cleo"}}), {start}]);
""",
    }
    for name in ("Cleo", "Pia"):
        async with bridge_of(bilingual, tmp_path / name) as bridge:
            record = await bridge.run(codes, dry_run=True)
            assert await erase(bridge.bridge, "subject", name) == {record.execution}


async def test_more_people_than_can_be_told_are_refused_and_not_recorded(sandboxes, tmp_path):
    code = f"""
from mcp import programs
from mcp.servers import local
people = [f"person {{number}}" for number in range({MAX_SUBJECTS})]
print(await local.visits(patient=people))
people.append("one more")
for call in (lambda: local.visits(patient=people), lambda: programs.run({PROGRAM!r}, {{"patient": people}})):
    try:
        await call()
    except Exception as exc:
        print(exc.code)
"""
    async with bridge_of(sandboxes, tmp_path) as bridge:
        record = await bridge.run(code)
        assert printed(record).split() == [str(MAX_SUBJECTS), "too_many_subjects", "too_many_subjects"]
        history = await bridge.lifecycle.recorder.read(record.execution)
        recorded = [row.entry.payload for row in history if row.entry.kind != "start"]
        assert "person 999" in str(recorded)
        assert "one more" not in str(recorded)
        assert await erase(bridge, "subject", "person 999") == {record.execution}


UNMADE = {
    "does not fit": "try: await local.card(customer=who, nope=1)\nexcept TypeError: pass",
    "is taken back": "dir(local)\ntask = asyncio.create_task(local.card(customer=who))\n"
    "await asyncio.sleep(0)\ntask.cancel()",
    "is left": "dir(local)\nawait asyncio.sleep(0)\ntask = asyncio.create_task(local.card(customer=who))",
}


@pytest.mark.parametrize("case", UNMADE)
async def test_whom_a_call_names_that_was_never_made_is_in_no_record_that_is_not_erased_by_name(
    sandboxes, tmp_path, case
):
    code = f"import asyncio\nfrom mcp.servers import local\nwho = 'Dora'[:4] + ' Smith'\n{UNMADE[case]}\nprint('ended')"
    async with bridge_of(sandboxes, tmp_path) as bridge:
        record = await bridge.run(code, session="s")
        assert printed(record) == "ended\n", record.error
        recorded = await bridge.lifecycle.recorder.read(record.execution)
        asked = [row.entry.payload.get("arguments") for row in recorded if row.entry.payload.get("call")]
        if case == "does not fit":
            assert [sorted(one) for one in asked] == [["digest", "server", "tool"]]
        # One that is taken back may have been made by then, or have never been sent.
        if case == "does not fit" or "Dora Smith" in str(asked):
            assert await erase(bridge, "subject", "Dora Smith") == {record.execution}
