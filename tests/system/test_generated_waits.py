"""Generated scripts that wait, whose hosts are killed wherever it hurts: they end as those that were left in peace."""

import os
import random
import time

import pytest
from generated_waits import Waiting
from script_hosts import make_hosts, source  # noqa: F401  (fixtures)

SCRIPTS = 600 if os.environ.get("MCP_BRIDGE_TEST_LONG") else 6

MAX_RUNS = 60
"""More than any of these scripts goes on, with all deaths."""

EARLY = ("before", "in", "outcome", "after")


def run(hosts, made, code, rng=None):
    """Go on until it has ended: send what it waits for, wait for its time, settle what is in doubt; and kill, with rng."""
    sent, kills = set(), 0
    for _ in range(MAX_RUNS):
        die = ""
        reached = [effect for effect in made.effects if effect not in hosts.done]
        if rng is not None and kills < 4 and rng.random() < 0.5:
            kills += 1
            die = "end" if not reached or rng.random() < 0.1 else f"{rng.choice(EARLY)}:{rng.choice(reached[:3])}"
        try:
            record = hosts.run(code, quick=True, die=die)
        except AssertionError:
            if not die:
                raise
            continue  # it was suspended before it came there
        if record is None:
            continue
        if record["status"] != "suspended":
            return record
        settle(hosts, record)
        names = [
            row["name"]
            for row in record.get("waiting", ())
            if row["kind"] == "event" and row["name"] not in sent | {"never"}
        ]
        due = [row["due"] for row in record.get("waiting", ()) if "due" in row]
        if names:
            name = names[0] if rng is None else rng.choice(names)
            hosts.send(record["execution"], name, dict(made.events)[name])
            sent.add(name)
        elif due:
            time.sleep(max(0.0, min(due) - time.time()) + 0.01)
    raise AssertionError("it does not end")


def settle(hosts, record):
    for call in record["error"].get("calls", ()):
        done = f"once {call['arguments']['text']}" in hosts.done
        word = {"how": "happened", "value": f"once:{call['arguments']['text']}"} if done else {"how": "not_done"}
        hosts.settle(record["execution"], call["call"], **word)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_a_script_that_waits_and_whose_hosts_are_killed_ends_as_one_in_peace(make_hosts, seed):
    rng = random.Random(seed)  # noqa: S311
    made = Waiting(rng)
    code = made.script()
    calm, killed = make_hosts("calm"), make_hosts("killed")
    expected = run(calm, made, code)
    record = run(killed, made, code, rng)
    assert (record["status"], record["stdout"]) == (expected["status"], expected["stdout"]), (record["error"], code)
    assert expected["status"] == "success", (expected["error"], code)
    once = [line for line in killed.done if line.startswith("once ")]
    assert sorted(once) == sorted(effect for effect in made.effects if effect.startswith("once "))
    assert set(killed.done) == set(made.effects)
    for hosts, ended in ((calm, expected), (killed, record)):
        replayed = hosts.replay(ended["execution"])
        assert replayed["agrees"], (replayed, code)
