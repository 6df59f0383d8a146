"""Sessions whose host dies, or whose cell waits for a person: each host is a process of its own."""

import re

import pytest
from cli_fixtures import run_here
from script_hosts import (  # noqa: F401  (fixtures)
    either,
    ended,
    make_either,
    make_hosts,
    make_javascript_hosts,
    source,
)

pytestmark = pytest.mark.xdist_group("generated sessions")


@pytest.fixture
def hosts(make_hosts):
    return make_hosts("hosts")


def test_a_session_survives_its_host_and_asks_no_tool_again(hosts):
    hosts.run("x = await local.once(text='a')\ny = [x]", key=None, session="s")
    record = hosts.run("y.append(x); y", key=None, session="s")
    assert (record["status"], record["value"]) == ("success", "['once:a', 'once:a']")
    assert record["session"] == {"name": "s", "cell": 2, "rebuilt": 1}
    assert hosts.done == ["once a"]


def test_fifty_cells_survive_a_host_that_is_killed_and_containers_that_are(either):
    python = [
        "import random\nseen = []",
        *["seen.append(random.random())"] * 48,
        "seen.append(await local.once(text='a'))",
    ]
    javascript = ["const seen = []", *["seen.push(Math.random())"] * 48, "seen.push(await local.once({ text: 'a' }))"]
    look = {"python": "import json; print(json.dumps(seen))", "javascript": "console.log(JSON.stringify(seen))"}
    records = either.cells({"python": python, "javascript": javascript}[either.language])
    assert {record["status"] for record in records} == {"success"}
    told = either.run(look, key=None, session="s")
    assert (told["status"], told["session"]["rebuilt"]) == ("success", 50)
    dying = {"python": "seen.append(await local.once(text='b'))", "javascript": "await local.once({ text: 'b' })"}
    either.run(dying, key=None, session="s", die="before:once b")
    again = either.run(look, key=None, session="s", kills={"what": "container", "after": 0.4})
    assert (again["status"], again["stdout"], again["session"]["cell"]) == ("success", told["stdout"], 53)
    assert again["session"]["rebuilt"] == 51
    assert either.done == ["once a"]


@pytest.mark.parametrize("point", ["before", "in", "outcome"])
def test_a_cell_whose_host_dies_has_left_nothing_and_what_it_did_is_not_made_again(hosts, point):
    hosts.run("x = 1", key=None, session="s")
    hosts.run("x = 2\nawait local.once(text='a')\nx = 3", key=None, session="s", die=f"{point}:once a")
    record = hosts.run("x", key=None, session="s")
    assert (record["value"], record["session"]) == ("1", {"name": "s", "cell": 3, "rebuilt": 1})
    assert any("without the cell 2" in notice for notice in record["notices"])
    assert hosts.done == ([] if point == "before" else ["once a"])


def test_a_cell_with_a_key_goes_on_after_its_host_has_died(hosts):
    hosts.run("x = 1", key=None, session="s")
    code = "x += 1\nawait local.once(text='a')\nx += 1\nawait local.once(text='b')\nx"
    hosts.run(code, key="k", session="s", die="before:once b")
    record = hosts.finish(code, "k", session="s")
    assert (record["value"], record["session"]) == ("3", {"name": "s", "cell": 2, "rebuilt": 1})
    assert hosts.done == ["once a", "once b"]
    assert hosts.run("x", key=None, session="s")["value"] == "3"


def test_a_cell_with_a_key_that_the_session_has_left_behind_does_not_go_on(hosts):
    hosts.run("x = 1", key=None, session="s")
    code = "x += 1\nawait local.once(text='a')"
    hosts.run(code, key="k", session="s", die="before:once a")
    assert hosts.run("x", key=None, session="s")["value"] == "1"
    assert hosts.run(code, key="k", session="s")["code"] == "not_suspended"
    assert hosts.done == []


def test_what_a_cell_had_called_that_the_session_has_left_behind_is_told_wherever_it_is_looked_for(hosts):
    hosts.run("x = 1", key=None, session="s")
    code = "x += 1\nawait local.once(text='a')\nawait local.once(text='b')"
    hosts.run(code, key="k", session="s", die="in:once b")
    known = (
        "These calls of it were answered: local.once (call 0#1)."
        " Nobody has seen whether this has happened: local.once (call 0#2)."
    )
    told = hosts.run("x", key=None, session="s")
    assert told["value"] == "1"
    (notice,) = [notice for notice in told["notices"] if notice.startswith("the cell 2 was interrupted")]
    assert known in notice
    refused = hosts.run(code, key="k", session="s")
    assert refused["code"] == "not_suspended"
    assert known.removesuffix(".") in refused["message"]
    (execution,) = re.findall("execution show ([0-9a-f]+)", notice)
    shown = run_here(None, "execution", "show", execution, env={"MCP_BRIDGE_STATE_DIR": str(hosts.state)}).out
    assert "can't be resumed: its session 's' has ended, or has continued without it" in shown
    assert known in shown
    assert "execution resume" not in shown
    # Nor is it lost by what is advised.
    run_here(None, "execution", "cancel", execution, env={"MCP_BRIDGE_STATE_DIR": str(hosts.state)})
    shown = run_here(None, "execution", "show", execution, env={"MCP_BRIDGE_STATE_DIR": str(hosts.state)}).out
    assert "cancelled by the operator. Nobody has seen whether this has happened: local.once (call 0#2)." in shown
    # What comes after is told of it no more.
    after = hosts.run("x", key=None, session="s")
    assert not any("was interrupted" in notice for notice in after["notices"])
    assert hosts.done == ["once a", "once b"]


def test_a_cell_that_waits_for_a_person_goes_on_by_the_same_code_and_by_no_other(hosts):
    hosts.run("x = 1\nawait local.once(text='a')", key=None, session="s")
    code = "x += 1\nawait local.careful(text='b')\nx += 1\nx"
    waits = hosts.run(code, key=None, session="s")
    assert waits["status"] == "suspended"
    assert hosts.run("x", key=None, session="s")["code"] == "session_waiting"
    # Outside of the session it is another script.
    assert hosts.run(code, key=None)["status"] == "error"
    (row,) = waits["waiting"]
    word = {"execution": waits["execution"], "effect": row["effect"], "by": "anna", "approved": True}
    ended(hosts.start(decide=word))
    record = hosts.run(code, key=None, session="s")
    assert (record["status"], record["value"]) == ("success", "3"), record
    assert record["session"]["cell"] == 2
    assert hosts.run("x", key=None, session="s")["value"] == "3"
    assert hosts.done == ["once a", "careful b"]


def test_a_waiting_cell_that_is_cancelled_has_left_nothing(hosts):
    hosts.run("x = 1", key=None, session="s")
    waits = hosts.run("x = 2\nawait local.careful(text='b')", key=None, session="s")
    hosts.cancel(waits["execution"])
    assert hosts.run("x", key=None, session="s")["value"] == "1"


DOUBTFUL = {
    "python": """x = 2
import threading, time
from mcp.sync.servers import local as blocking
threading.Thread(target=lambda: blocking.once(text='b', seconds=30), daemon=True).start()
time.sleep(0.3)
while True: pass""",
    "javascript": "x = 2\nlocal.once({text: 'b', seconds: 30})\nawait new Promise((done) => setTimeout(done, 300))\nfor "
    "(;;);",
}
"""Computes beside a call until its time is up, so that nobody sees what becomes of the call."""


def test_a_cell_that_is_interrupted_with_a_call_in_doubt_waits_and_has_left_nothing(either):
    options = {"session": "s", "language": either.language}
    cells = [
        {"code": either.whole({"python": "x = 1", "javascript": "var x = 1"})} | options,
        {"code": either.whole(DOUBTFUL), "key": "k", "timeout": 0.8} | options,
        {"code": either.whole("x")} | options,
    ]
    refused = ended(either.start(cells=cells))
    assert refused["code"] == "session_waiting", refused
    waits = either.run(DOUBTFUL, key="k", session="s")
    assert (waits["status"], waits["error"]["code"]) == ("suspended", "in_doubt")
    assert waits["session"] == {"name": "s", "cell": 2}
    assert not any("continues" in notice for notice in waits.get("notices", ()))
    either.cancel(waits["execution"])
    assert either.run("x", key=None, session="s")["value"] == "1"
