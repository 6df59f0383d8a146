"""Generated sessions, whose hosts are killed wherever it hurts: rebuilt, they have the names of one that wasn't."""

import os
import random

import pytest
from generated_javascript_sessions import JavascriptCells
from generated_sessions import Cells
from script_hosts import make_hosts, make_javascript_hosts, source  # noqa: F401  (fixtures)

pytestmark = pytest.mark.xdist_group("generated sessions")

SESSIONS = 200 if os.environ.get("MCP_BRIDGE_TEST_LONG") else 6

CELLS = 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SESSIONS))
def test_a_session_whose_hosts_are_killed_has_the_names_of_one_that_was_not_and_no_effect_twice(make_hosts, seed):
    rng = random.Random(seed)  # noqa: S311
    _kill_hosts(make_hosts, rng, Cells(rng))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SESSIONS))
def test_so_has_a_session_in_javascript(make_javascript_hosts, seed):
    rng = random.Random(seed)  # noqa: S311
    _kill_hosts(make_javascript_hosts, rng, JavascriptCells(rng))


def _kill_hosts(make_hosts, rng, made):
    codes = made.cells(CELLS)
    session_seed = f"{rng.getrandbits(256):064x}"

    calm = make_hosts("calm")
    records = calm.cells(codes, seed=session_seed)
    assert isinstance(records, list), records
    expected = [(record["status"], record["stdout"], record.get("value")) for record in records]
    assert records[-1]["status"] == "success", records[-1]

    killed = make_hosts("killed")
    for number, code in enumerate(codes):
        options = {"key": f"cell {number}", "session": "s", "seed": session_seed}
        reached = [effect for effect in made.effects[number] if effect in calm.done]
        if reached and rng.random() < 0.7:
            killed.run(code, die=f"{rng.choice(('before', 'in', 'outcome'))}:{rng.choice(reached)}", **options)
        elif rng.random() < 0.3:
            killed.run(code, die="end", **options)
        record = killed.finish(code, **options)
        assert (record["status"], record["stdout"], record.get("value")) == expected[number], (number, record)
        assert record["session"]["cell"] == number + 1
    once, again = ([line for line in hosts.done if line.startswith("once ")] for hosts in (calm, killed))
    assert sorted(again) == sorted(once)
    assert len(set(again)) == len(again)
