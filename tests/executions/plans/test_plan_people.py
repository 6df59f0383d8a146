"""The list of a dry run, as people are shown it and decide on it; and hosts that are killed meanwhile.

`MCP_BRIDGE_TEST_LONG=1` has them killed at each point with a key and without one, in sessions that are new and that aren't.
"""

import json
import re
import subprocess
import time
import uuid
from types import MappingProxyType

import mcp_types as types
import pytest
from approval_tools import RULES
from bridge_fixtures import COMMAND
from crash_fixtures import LONG
from script_hosts import HEAD, ended, make_hosts, source  # noqa: F401  (fixtures)

from mcp_bridge.executions.approvals import approval_requests
from mcp_bridge.executions.approvals import decide as approve
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.kernel.events import Resume
from mcp_bridge.server.ui.page_data import question

pytestmark = [pytest.mark.usefixtures("whole_ledgers"), pytest.mark.timeout(300)]

CODE = """
print(await local.careful(text="a"))
again = await local.again(text="b")
print(again)
print(await local.once(text="c"))
"""
MADE = ["careful a", "again b", "once c"]
PRINTED = "careful:a\nagain:b\nonce:c\n"


@pytest.fixture
def hosts(make_hosts):
    return make_hosts("hosts")


def dry_run(hosts, code=CODE, key=None, session=None, **more):
    return ended(hosts.start(run={"code": HEAD + code, "key": key, "session": session, "dry_run": True}, **more))


def decide(hosts, execution, effect=1, *, approved=True):
    asked = {"execution": execution, "effect": effect, "approved": approved, "by": "anna"}
    return ended(hosts.start(decide=asked))


KILLED = [
    (f"{point}:{made}", key)
    for each, made in enumerate(MADE)
    for number, point in enumerate(("before", "in", "outcome", "after"))
    for key in ("key", None)
    # Each point with one of them; each kind of point, and each call, with both.
    if LONG or (each + number) % 2 == (key is None)
]


@pytest.mark.parametrize(("die", "key"), [*KILLED, ("end", "key"), ("end", None)])
def test_wherever_its_host_is_killed_each_call_of_the_list_happens_once(hosts, die, key):
    is_killed(hosts, die, key)


KILLED_IN_SESSIONS = [
    (die, before, key)
    for number, die in enumerate(
        ["before:careful a", "in:once c", "outcome:once c", "after:once c", "end", "taken", "moved"]
    )
    for before in (True, False)
    for key in ("key", None)
    # Each point in a new session and in one that isn't, once with a key and once without.
    if LONG or (number + before) % 2 == (key is None)
]


@pytest.mark.parametrize(("die", "before", "key"), KILLED_IN_SESSIONS)
def test_so_it_does_in_a_session(hosts, die, before, key):
    if before:
        hosts.run("n = 1", None, session="s")
    is_killed(hosts, die, key, "s")
    names = hosts.run("print(n, again)" if before else "print(again)", None, session="s")
    assert names["stdout"] == ("1 again:b\n" if before else "again:b\n"), names
    assert names["session"]["cell"] == 2 + before


def is_killed(hosts, die, key, session=None):
    first = dry_run(hosts, key=key, session=session)
    assert hosts.done == []
    decide(hosts, first["execution"])
    hosts.run(CODE, key, die=die, session=session)
    last = hosts.run(CODE, key, session=session)
    if last["status"] == "suspended":
        (call,) = last["error"]["calls"]
        text = f"{call['tool'].removeprefix('local.')} {call['arguments']['text']}"
        happened = text in hosts.done
        word = {"how": "happened", "value": text.replace(" ", ":")} if happened else {"how": "not_done"}
        hosts.settle(first["execution"], call["call"], **word)
        last = hosts.run(CODE, key, session=session)
    assert (last["status"], last["stdout"]) == ("success", PRINTED)
    # What says that it is idempotent may be made again, without another question.
    assert [line for number, line in enumerate(hosts.done) if line not in hosts.done[:number]] == MADE
    assert hosts.done.count("careful a") == hosts.done.count("once c") == 1


@pytest.mark.parametrize("key", ["key", None])
def test_a_dry_run_whose_host_is_killed_has_listed_nothing_and_begins_anew(hosts, key):
    hosts.start(run={"code": HEAD + CODE, "key": key, "dry_run": True}, die="end")
    out = hosts.start(run={"code": HEAD + CODE, "key": key, "dry_run": True}, die="end")
    ended(out, die="end")
    first = dry_run(hosts, key=key)
    assert (first["status"], len(first["planned"]), hosts.done) == ("suspended", 3, [])
    decide(hosts, first["execution"], first["waiting"][0]["effect"])
    assert hosts.run(CODE, key)["stdout"] == PRINTED
    assert hosts.done == MADE


def test_a_decision_while_the_run_is_under_way_comes_too_late(hosts):
    # The policy allows all of it, so the run goes on without a decision.
    code = 'print(await local.once(text="a", seconds=1.0))\nprint(await local.once(text="b"))\n'
    first = dry_run(hosts, code)
    out = hosts.start(run={"code": HEAD + code, "key": None})
    decided = decide(hosts, first["execution"])
    assert ended(out)["status"] == "success"
    assert decided.get("code") in {None, "not_suspended"}
    assert hosts.done == ["once a", "once b"]


def test_the_command_line_makes_dry_runs_and_shows_the_list_whole(hosts, tmp_path):
    config = tmp_path / "mcp-bridge.toml"
    first = dry_run(hosts, 'await local.careful(text="x\\u202e\\u0430\\n1. y")')
    config.write_text(f'state_dir = "{hosts.state}"\n')
    shown = command(config, "approvals", "show", f"{first['execution']}.1")
    assert "Allow this call?" in shown
    assert '"tool": "local.careful"' in shown
    # As text, and nothing that isn't seen.
    assert "\\u202e" in shown
    assert "\u202e" not in shown
    assert '\\n1. y"' in shown
    assert "it is final" in shown
    assert f"{first['execution'][:6]}.1" in command(config, "approvals", "list")
    assert "local.careful" in command(config, "execution", "show", first["execution"])
    assert "run_python, run dry" in command(config, "execution", "list")
    (row,) = json.loads(command(config, "execution", "list", "--json"))["executions"]
    assert (row["status"], row["dry_run"]) == ("suspended", True)
    approved = command(config, "approvals", "approve", f"{first['execution']}.1")
    assert "approved" in approved
    ended(hosts.start(run={"code": HEAD + 'await local.careful(text="x\\u202e\\u0430\\n1. y")', "key": None}))
    # It has made its calls since.
    assert "run dry" not in command(config, "execution", "list")


def test_a_dry_run_that_has_listed_nothing_is_told_from_a_run(hosts, tmp_path):
    config = tmp_path / "mcp-bridge.toml"
    config.write_text(f'state_dir = "{hosts.state}"\n')
    first = ended(hosts.start(run={"code": "print(1)", "key": None, "dry_run": True}))
    assert (first["status"], first["dry_run"]) == ("success", True)
    assert "dry_run" not in ended(hosts.start(run={"code": "print(1)", "key": None}))
    is_dry = [row.get("dry_run") for row in json.loads(command(config, "execution", "list", "--json"))["executions"]]
    assert is_dry == [None, True]


def command(config, *words):
    done = subprocess.run(
        [COMMAND, "--config", str(config), *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done
    return done.stdout


TOOLS = """
import pathlib
import mcp_bridge

@mcp_bridge.tool
def delete(name: str) -> str:
    with pathlib.Path(__file__).with_suffix(".log").open("a") as log:
        log.write(name + "\\n")
    return f"deleted {name}"

@mcp_bridge.tool(read_only=True)
def who() -> str:
    return "anna@example.org"
"""


@pytest.fixture
def governed(tmp_path, sandboxes):
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / f"deleting_{uuid.uuid4().hex}.py").write_text(TOOLS)

    def opened(tables=MappingProxyType({})):
        own = {"tools": {"path": ["tools"], "entry_points": False}, "policy": RULES}
        governance = load_governance({**own, **tables}, None, tmp_path, sandboxes.settings.state_dir)
        return sandboxes.open(governance=governance)

    return opened


def deleted(tmp_path):
    (log,) = (tmp_path / "tools").glob("*.log")
    return log.read_text().splitlines()


class Person:
    """Answers every question alike, and remembers what it was asked."""

    def __init__(self, *, approve=True):
        self.asked = []
        self._approve = approve

    async def __call__(self, context, params):
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content={"approve": self._approve})


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_asks_its_user_once_for_the_whole_list(governed, mode, connect):
    code = "from mcp.servers import local\nprint([await local.delete(name=n) for n in 'abc'])"
    async with governed() as bridge:
        person = Person()
        async with connect(bridge, mode=mode, elicitation_callback=person) as client:
            dry = await client.call_tool("run_python", {"code": code, "dry_run": True})
            assert not dry.is_error
            assert person.asked == []
            (text,) = [block.text for block in dry.content]
            assert 'Dry run: 3 calls listed, and not made.\n1. local.delete {"name": "a"}\n2. local.delete' in text
            assert '\n3. local.delete {"name": "c"}\nA person decides on them' in text
            made = await client.call_tool("run_python", {"code": code})
        assert "['deleted a', 'deleted b', 'deleted c']" in made.content[0].text
        (asked,) = person.asked
        assert asked.startswith("A dry run of a script:\n> Allow all of these 3 calls?")
        assert json.loads(re.search(r"^\{.*?^\}", asked, re.MULTILINE | re.DOTALL)[0])["calls"] == [
            {"tool": "local.delete", "arguments": {"name": name}} for name in "abc"
        ]
        assert "deletions are final" in asked


async def test_the_viewer_is_told_how_many_calls_a_question_is_about(governed):
    code = "from mcp.servers import local\nprint([await local.delete(name=n) for n in 'abc'])"
    async with governed() as bridge:
        await bridge.run(code, dry_run=True)
        await bridge.run("from mcp.servers import local\nawait local.delete(name='d')")
        rows = await approval_requests(bridge.programs.store, "local", open_only=True)
        assert sorted((question(row, LOCAL_PRINCIPAL)["listed"] or 0) for row in rows) == [0, 3]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_list_that_is_too_long_for_a_dialogue_waits_for_another_way(governed, mode, connect):
    code = "from mcp.servers import local\nfor n in range(60):\n    await local.delete(name=str(n))"
    async with governed() as bridge:
        person = Person()
        async with connect(bridge, mode=mode, elicitation_callback=person) as client:
            dry = await client.call_tool("run_python", {"code": code, "dry_run": True})
            assert '60. local.delete {"name": "59"}' in dry.content[0].text
            waits = await client.call_tool("run_python", {"code": code})
        assert person.asked == []
        assert waits.content[0].text.startswith("[approval_needed] Dry run: 60 calls")


def test_a_list_that_is_denied_while_it_is_made_says_which_calls_were_denied_and_which_were_made(hosts):
    # The policy allows all of it, so the run goes on without a decision.
    code = """
print(await local.once(text="a"))
print(await local.again(text="b", seconds=3))
try:
    await runtime.wait_event("go")
except Exception:
    pass
print(await local.once(text="c"))
"""
    first = dry_run(hosts, code)
    out = hosts.start(run={"code": HEAD + code, "key": None}, quick=True)
    deadline = time.monotonic() + 60
    while not hosts.done:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    decide(hosts, first["execution"], first["waiting"][0]["effect"], approved=False)
    assert ended(out)["status"] == "suspended"
    hosts.send(first["execution"], "go", 1)
    record = hosts.run(code, None, quick=True)
    assert (record["status"], record["error"]["code"]) == ("refused", "denied"), record
    assert record["error"]["message"] == (
        "A person has denied the calls that the dry run of this script has listed:\n"
        'local.once {"text": "a", "seconds": 0.0} (made before that)\n'
        'local.again {"text": "b", "seconds": 3} (made before that)\n'
        'local.once {"text": "c", "seconds": 0.0}'
    )
    assert hosts.done == ["once a", "again b"]


PENDING_READ = """
import mcp_bridge

@mcp_bridge.tool(read_only=True)
def ask(what: str) -> str:
    return mcp_bridge.PENDING
"""


async def test_a_read_of_a_dry_run_whose_outcome_comes_later_is_given_that_outcome(governed, tmp_path):
    (folder := tmp_path / "tools" / f"asking_{uuid.uuid4().hex}.py").write_text(PENDING_READ)
    assert folder.exists()
    code = """
from mcp.servers import local
await runtime.save_memory("k", 1)
got = [await local.ask(what="a"), await local.ask(what="b")]
print(got, await runtime.load_memory("k"))
await local.delete(name=got[0])
"""
    async with governed() as bridge:
        record = await bridge.run(code, key="k", dry_run=True)
        for told in ("first", "second"):
            assert record.status == "suspended", record
            assert [row["kind"] for row in record.waiting] == ["tool"]
            await bridge.resume_execution(record.execution, Resume(told, "OPERATOR"))
            stored = await bridge.lifecycle.stored(record.execution, "local")
            record = ExecutionRecord.from_json({"execution": record.execution, **stored.record})
        assert record.stdout == b"['first', 'second'] 1\n"
        assert [row["arguments"] for row in record.planned] == [{"name": "first"}]


async def test_a_denied_list_is_told_as_denied(governed, connect):
    code = "from mcp.servers import local\nawait local.delete(name='a')"
    async with governed() as bridge, connect(bridge, elicitation_callback=Person(approve=False)) as client:
        await client.call_tool("run_python", {"code": code, "dry_run": True})
        denied = await client.call_tool("run_python", {"code": code})
        assert denied.is_error
        assert "[denied] A person has denied the calls" in denied.content[0].text
        assert 'local.delete {"name": "a"}' in denied.content[0].text


async def test_a_secret_is_a_reference_and_a_sensitive_value_is_the_same_in_the_run(governed, tmp_path, monkeypatch):
    monkeypatch.setenv("SESAME", "sesame-opens")
    tables = {
        "secrets": {"key": {"env": "SESAME", "tools": ["local.*"]}},
        "projection": {"patterns": ["email"]},
    }
    code = """
from mcp.servers import local
who = await local.who()
print(await local.delete(name=f"{who} vault://secret/key"))
"""
    async with governed(tables) as bridge:
        dry = await bridge.run(code, dry_run=True)
        (row,) = dry.planned
        assert re.fullmatch(r"vault://ref/\S+ vault://secret/key", row["arguments"]["name"])
        (asked,) = await approval_requests(bridge.programs.store, "local", open_only=True)
        # A person sees the value, as for any approval; nobody sees the secret.
        assert asked.question["details"]["calls"][0]["arguments"] == {"name": "anna@example.org vault://secret/key"}
        await approve(bridge.programs.store, asked, approved=True, by="anna", comment=None)
        made = await bridge.run(code)
        assert made.status == "success", made.error
        assert made.stdout.startswith(b"deleted vault://ref/")
        assert deleted(tmp_path) == ["anna@example.org sesame-opens"]
