"""Hosts of scripts in containers, killed at random instants and inside transactions: what `test_crashes.py` has of programs.

Named points of scripts are `test_durable_scripts.py`'s.
"""

import collections
import sys
import time

import pytest
from crash_fixtures import BOUNDED, LONG, lines
from generated_programs import chance
from generated_scripts import script
from sandbox_fixtures import RUNTIME, knows_the_sandbox

ATTEMPTS = 8
"""Of which one kills: a host may be done before its time, or write less than is needed for the last of its writes."""

MAX_WRITES = 12
"""Before which one of them a host is killed: most scripts write more often."""

pytestmark = [BOUNDED, pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")]


@pytest.fixture
def scripts(runs, sandboxes):
    def make():
        one = runs(None, None)
        knows_the_sandbox(one.state, sandboxes.settings.state_dir)
        return one

    return make


def once(one):
    """The steps that were begun and may be once."""
    return sorted(row["step"] for row in lines(one.effects) if row["did"] == "begin" and row["tool"] == "once")


def killed(scripts, code, rng, seconds, points):
    """Hosts of which one has been killed when something had been done, and perhaps another after it."""

    def kill():
        match rng.randrange(4):
            case 0:
                return {"operation": rng.choice(["write", "sync"]), "suffix": "-wal", "nth": rng.randint(1, MAX_WRITES)}
            case 1:
                return {"seconds": seconds * rng.uniform(0.5, 1)}
        point = rng.choice(sorted(points))
        return {"point": point, "nth": rng.randint(1, points[point])}

    for attempt in range(ATTEMPTS):
        one = scripts()
        # Chance may miss every time. At the script's end all of its work is done.
        last = {"point": "before end", "nth": points["before end"]}
        one.run(kill() if attempt < ATTEMPTS - 1 else last, code=code, runtime=RUNTIME)
        if one.kills and lines(one.effects):
            one.run(kill(), code=code, runtime=RUNTIME)
            return one
    raise AssertionError(f"none of {ATTEMPTS} hosts was killed after something had been done")


@pytest.mark.parametrize("seed", range(60 if LONG else 5))
def test_scripts_whose_hosts_are_killed_lose_nothing_and_repeat_nothing(scripts, seed):
    rng = chance(seed)
    code = script(rng)
    told = f"seed {seed}:\n{code}"
    whole = scripts()
    began = time.monotonic()
    log = whole.folder / "points"
    wanted = whole.run(code=code, runtime=RUNTIME, points=str(log))
    seconds = time.monotonic() - began
    assert wanted["status"] == "success", f"{wanted}\n{told}"
    one = killed(scripts, code, rng, seconds, collections.Counter(lines(log)))
    record = one.run(code=code, runtime=RUNTIME)
    if one.halves:
        return
    assert (record["status"], record["stdout"]) == ("success", wanted["stdout"]), f"{record}\n{told}"
    assert once(one) == once(whole), told
    assert one.run(code=code, runtime=RUNTIME) == record, told
