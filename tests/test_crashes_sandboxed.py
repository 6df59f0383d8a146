"""Hosts of scripts in containers, killed at random instants and inside transactions: what `test_crashes.py` has of programs.

Named points of scripts are `test_durable_scripts.py`'s.
"""

import shutil
import sys
import time

import pytest
from crash_fixtures import BOUNDED, LONG, lines
from generated_programs import chance
from sandbox_fixtures import RUNTIME

CODE = """
import asyncio
from mcp.servers import local
a = await local.once(step="a", x=1)
b, c = await asyncio.gather(local.once(step="b", x=a), local.again(step="c", x=a))
for number in range(3):
    await local.once(step=f"d{number}", x=[b, c])
print(a, b, c)
"""

pytestmark = [BOUNDED, pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")]


@pytest.fixture
def scripts(runs, sandboxes):
    def make():
        one = runs(None, None)
        for report in sandboxes.settings.state_dir.glob("probe-*.json"):
            shutil.copy(report, one.state)
        return one

    return make


def run(one, kill=None):
    return one.run(kill, code=CODE, runtime=RUNTIME)


def test_scripts_whose_hosts_are_killed_lose_nothing_and_repeat_nothing(scripts):
    whole = scripts()
    began = time.monotonic()
    wanted = run(whole)
    seconds = time.monotonic() - began
    assert wanted["status"] == "success"
    rng = chance(4)
    for number in range(60 if LONG else 6):
        one = scripts()
        for _ in range(2):
            if number % 2:
                run(one, {"operation": rng.choice(["write", "sync"]), "suffix": "-wal", "nth": rng.randint(1, 40)})
            else:
                run(one, {"seconds": seconds * rng.random()})
        record = run(one)
        if one.halves:
            continue
        assert (record["status"], record["stdout"]) == ("success", wanted["stdout"]), record
        begun = [row["step"] for row in lines(one.effects) if row["did"] == "begin" and row["tool"] == "once"]
        assert begun == ["a", "b", "d0", "d1", "d2"]
        assert run(one) == record
