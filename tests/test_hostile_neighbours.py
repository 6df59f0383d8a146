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
from execution_fixtures import printed

from benchmarks.attacks import ATTACKS, hostile_server, outcome, tally
from benchmarks.bridge import REPOSITORY, Bench, ours
from benchmarks.hostile import Soak
from mcp_bridge.bridge.governance import load_governance
from mcp_bridge.downstream.spec import ServerSpec

pytestmark = pytest.mark.usefixtures("whole_ledgers")

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))

SCALE = 1.0 if LONG else 0.02
"""Of the benchmark's sizes: the small ones show how an attack ends, the whole ones that it is stood."""

NEVER = {"internal_error", "None", ""}
"""Codes that no attack may be answered with: they say that the bridge didn't foresee it."""

VICTIM = """
from mcp.servers import good, local
turns = 0
while await local.goes_on() or turns < 5:
    assert await good.echo(text=f"turn {turns}") == f"turn {turns}"
    assert (await local.audit(step="s"))["logged"]
    turns += 1
print(turns)
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

    def opened(servers):
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
            "wall_timeout": 30.0,
        }
        return sandboxes.open(*specs, governance=governance, **settings)

    return opened


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_ends_with_a_stable_code_and_its_neighbour_does_not_notice(name, open_bridge, tmp_path, caplog):
    attack = ATTACKS[name]
    async with open_bridge(attack.servers) as bridge:
        records = {}

        async def victim():
            records["victim"] = await bridge.run(VICTIM, timeout=60)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(victim)
            record = await bridge.run(attack.script(0, SCALE), timeout=20 if attack.ends & {"success", "error"} else 3)
            (tmp_path / "over").touch()
        # The bridge still does what it is there for.
        assert printed(await bridge.run("from mcp.servers import good\nprint(await good.echo(text='still there'))"))
    assert int(printed(records["victim"])) >= 5
    told = outcome(record.to_json())
    assert record.status in attack.ends, (told, record.error, record.stderr[-2000:])
    codes = tally(record.stdout.decode())
    assert not NEVER & codes.keys(), codes
    assert all(re.fullmatch("[a-z_ ]+", code) for code in codes), codes
    if record.status == "success":
        assert codes, "it has tried nothing"
    if record.error:
        assert re.fullmatch("[a-z_]+", record.error["code"])
    json.dumps(record.to_json(), allow_nan=False)
    # Nothing that comes from a guest or a server may be an internal error of the host.
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR] == []


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
