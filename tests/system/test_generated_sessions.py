"""Generated sessions, whose hosts and containers are killed where it hurts and at random instants: rebuilt, they have
the names of one that wasn't.

`MCP_BRIDGE_TEST_LONG=1` asks for many more of them, and `MCP_BRIDGE_TEST_SEED=NUMBER` for others.
"""

import asyncio
import os
import random
import time

import pytest
from generated_javascript_sessions import JavascriptCells
from generated_sessions import Cells
from script_hosts import make_hosts, make_javascript_hosts, source  # noqa: F401  (fixtures)

pytestmark = pytest.mark.xdist_group("generated sessions")

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))
FIRST_SEED = int(os.environ.get("MCP_BRIDGE_TEST_SEED", "0"))
SESSIONS = 200 if LONG else 3

CELLS = 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SESSIONS))
def test_a_session_whose_hosts_are_killed_has_the_names_of_one_that_was_not_and_no_effect_twice(make_hosts, seed):
    rng = random.Random(seed)  # noqa: S311
    _Killed(make_hosts, rng, Cells(rng)).run()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SESSIONS))
def test_so_has_a_session_in_javascript(make_javascript_hosts, seed):
    rng = random.Random(seed)  # noqa: S311
    _Killed(make_javascript_hosts, rng, JavascriptCells(rng)).run()


class _Killed:
    """A session that is run twice: in peace, and with kills."""

    def __init__(self, make_hosts, rng, made):
        self._calm, self._hosts = make_hosts("calm"), make_hosts("killed")
        self._rng, self._made = rng, made
        self._codes = made.cells(CELLS)
        self._seed = f"{rng.getrandbits(256):064x}"
        self._lost = 0
        """Cells without a key whose host was killed: they have left nothing, and run again under the next number."""

    def run(self):
        began = time.monotonic()
        records = self._calm.cells(self._codes, seed=self._seed)
        # The instants are within what a host takes that starts a container and runs some cells.
        self._seconds = time.monotonic() - began
        assert isinstance(records, list), records
        assert records[-1]["status"] == "success", records[-1]
        for number, (code, expected) in enumerate(zip(self._codes, map(_told, records), strict=True)):
            record = self._cell(number, code)
            assert _told(record) == expected, (number, record)
            assert record["session"]["cell"] == number + 1 + self._lost
        once, again = ([line for line in hosts.done if line.startswith("once ")] for hosts in (self._calm, self._hosts))
        assert sorted(again) == sorted(once)
        assert len(set(again)) == len(again)

    def _cell(self, number, code):
        options = {"session": "s", "seed": self._seed}
        if self._rng.random() < 0.3:
            return self._without_key(number, code, options)
        options["key"] = f"cell {number}"
        reached = [effect for effect in self._made.effects[number] if effect in self._calm.done]
        fate = self._rng.random()
        if fate < 0.3 and reached:
            point = self._rng.choice(("before", "in", "outcome"))
            self._hosts.run(code, die=f"{point}:{self._rng.choice(reached)}", **options)
        elif fate < 0.4:
            self._hosts.run(code, die="end", **options)
        elif fate < 0.7:
            # One that was killed before it had begun is killed again.
            for _ in range(self._rng.randint(1, 2)):
                self._hosts.run(code, kills=self._kill("host"), **options)
        elif fate < 0.95:
            return self._finished(self._hosts.run(code, kills=self._kill("container"), **options), code, options)
        return self._hosts.finish(code, **options)

    def _without_key(self, number, code, options):
        """A cell that nobody can ask for again: if its host is killed, it has left nothing, unless it had ended."""
        options["key"] = None
        if self._made.effects[number] or self._rng.random() < 0.5:
            # What it has done would be done again.
            return self._hosts.run(code, kills=self._kill("container"), **options)
        record = self._hosts.run(code, kills=self._kill("host"), **options)
        if record is not None:
            return record
        last = asyncio.run(self._hosts.last_cell())
        if last is not None and last[0] == number + 1 + self._lost:
            return last[1]
        after = self._hosts.run(code, **options)
        self._lost = after["session"]["cell"] - number - 1
        assert self._lost >= 0
        return after

    def _finished(self, record, code, options):
        """The record, if a killed container has cost nothing; else after a person has looked up what had happened."""
        return self._hosts.finish(code, **options) if record["status"] == "suspended" else record

    def _kill(self, what):
        return {"what": what, "after": self._rng.random() * self._seconds}


def _told(record):
    return record["status"], record["stdout"], record.get("value")
