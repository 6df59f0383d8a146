"""Each kind of attack once, beside a well-behaved script: it ends with a stable code, and nobody else notices.

The attacks are those of the benchmark `hostile`, which makes them for half an hour and measures. Nothing is measured here.
"""

import json
import logging
import os
import re
import shutil
import sys
import uuid

import anyio
import pytest
from arena_fixtures import Victims
from execution_fixtures import printed

from benchmarks.attacks import ATTACKS, ENDED, hostile_server, outcome, tally
from benchmarks.bridge import REPOSITORY, Bench, ours
from benchmarks.hostile import Soak
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.governance.governance import load_governance

pytestmark = pytest.mark.usefixtures("whole_ledgers")

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))

SCALE = 1.0 if LONG else 0.02
"""Of the benchmark's sizes: the small ones show how an attack ends, the whole ones that it is stood."""

IN_TURN = 1 if LONG else 5
"""How many attacks share a bridge at most, one after the other."""

NEVER = {"internal_error", "None", ""}
"""Codes that no attack may be answered with: they say that the bridge didn't foresee it."""

VICTIM = """
import asyncio, time
from mcp.servers import good, local
began, turns = time.monotonic(), 0
while turns < 5 or (time.monotonic() - began < 5 and await local.goes_on()):
    assert await good.echo(text=f"turn {turns}") == f"turn {turns}"
    assert (await local.audit(step="s"))["logged"]
    turns += 1
    progress(turns)
    await asyncio.sleep(0.05)
"""

TOOLS = """
import mcp_bridge, pathlib

@mcp_bridge.tool
def audit(step: str) -> dict:
    return {"logged": True, "step": step}

@mcp_bridge.tool
def goes_on() -> bool:
    return not pathlib.Path(%r).exists()
"""


@pytest.fixture
def open_bridge(sandboxes, tmp_path):
    """Opens a bridge with the well-behaved server, the hostile ones and the operator's tools."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / f"victims_{uuid.uuid4().hex}.py").write_text(TOOLS % str(tmp_path / "over"))
    tables = {"tools": {"path": ["tools"], "entry_points": False}}

    def opened(servers, wall_timeout):
        specs = [ServerSpec(name="good", command=sys.executable, args=tuple(ours("honest")[1:]), cwd=str(REPOSITORY))]
        for name in servers:
            command = hostile_server(name, SCALE)
            specs.append(
                ServerSpec(
                    name=name, command=command[0], args=tuple(command[1:]), cwd=str(REPOSITORY), call_timeout=1.0
                )
            )
        state_dir = tmp_path / "state"
        governance = load_governance(tables, None, tmp_path, state_dir)
        settings = {
            "state_dir": state_dir,
            "max_artifact_size": 4 << 20,
            "max_output_size": 1 << 20,
            "wall_timeout": wall_timeout,
        }
        return sandboxes.open(*specs, governance=governance, **settings)

    return opened


def _groups():
    """Attacks that need the same servers, a few at a time; apart from them those that the host has to end."""
    alike = {}
    for name, attack in ATTACKS.items():
        alike.setdefault((attack.servers, bool(attack.ends & ENDED)), []).append(name)
    for (servers, ends), names in alike.items():
        what = f"{'+'.join(servers) or 'no server'}, {'which end' if ends else 'without end'}"
        for number, start in enumerate(range(0, len(names), IN_TURN), 1):
            yield pytest.param(names[start : start + IN_TURN], id=f"{what}, {number}")


@pytest.mark.parametrize("names", list(_groups()))
async def test_an_attack_ends_with_a_stable_code_and_its_neighbour_does_not_notice(
    names, open_bridge, tmp_path, caplog
):
    first = ATTACKS[names[0]]
    ends = bool(first.ends & ENDED)
    # A flood's own time stands still while others take their turn: this ends it.
    wall_timeout = 30 if ends else 15
    async with open_bridge(first.servers, wall_timeout) as bridge:
        victims = Victims(bridge, VICTIM)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(victims.live)
            for name in names:
                await victims.go_on()
                record = await bridge.run(ATTACKS[name].script(0, SCALE), timeout=20 if ends else 3)
                await victims.go_on()
                judged(name, record)
            victims.over = True
            (tmp_path / "over").touch()
        assert victims.harmed is None, victims.harmed
        # The bridge still does what it is there for.
        assert printed(await bridge.run("from mcp.servers import good\nprint(await good.echo(text='still there'))"))
    # Nothing that comes from a guest or a server may be an internal error of the host.
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR] == []


def judged(name, record):
    told = outcome(record.to_json())
    assert record.status in ATTACKS[name].ends, (name, told, record.error, record.stderr[-2000:])
    codes = tally(record.stdout.decode())
    assert not NEVER & codes.keys(), (name, codes)
    assert all(re.fullmatch("[a-z_ ]+", code) for code in codes), (name, codes)
    if record.status == "success":
        assert codes, f"{name}: it has tried nothing"
    if record.error:
        assert re.fullmatch("[a-z_]+", record.error["code"]), name
    json.dumps(record.to_json(), allow_nan=False)


async def test_the_benchmark_leaves_nothing_behind_and_no_call_of_the_victim_fails(sandbox_state_dir, tmp_path):
    known = tmp_path / "known"
    known.mkdir(mode=0o700)
    for probed in sandbox_state_dir.glob("*.json"):
        shutil.copy(probed, known)
    bench = Bench(state_dir=known, work=tmp_path, quick=True)
    names = ["64 calls in flight, all the time", "a server that dies and comes back", "printing at full speed"]
    soak = Soak(bench, minutes=1 / 30, guests=2, attacks=[ATTACKS[name] for name in names], scale=0.02)
    rows = {row.what: row for row in await soak.measure()}
    # What takes how long is for the benchmark to judge, on a machine of its own.
    assert rows["victim, failed calls and runs"].met, rows["victim, failed calls and runs"].note
    assert rows["containers and processes left"].met, rows["containers and processes left"].note
    assert rows["victim, a server's tool, p99"].ours > 0
    assert rows["bridge, longest silence"].ours > 0
    assert rows["host, RSS, highest"].ours > 0
    assert sum(made.times for made in soak.made.values()) >= 2
    assert not soak.state_dir.exists()
