"""The gate under attack: cases by the thousand, each of them judged by what reached the servers. See `attack`.

`MCP_BRIDGE_TEST_LONG=1` asks for more of them, and of more seeds.
"""

import copy
import os

import pytest
from attack.campaign import campaign
from attack.found import FOUND
from attack.generator import FOCUSES
from attack.harness import world
from attack.judge import judge
from attack.removed import REMOVED

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))

CASES = 12_000 if LONG else 400
"""Of one campaign; each has one to three attacks, 1.9 on average."""

SEEDS = [101, 102, 103, 104] if LONG else [101, 102]

UNTIL_FOUND = 3000
"""Cases within which a mending that is missing has to be found; most are within a hundred."""


def told(found):
    return "\n".join(
        f"python -m tests.support.attack --seed {failure.seed} --only {failure.case.number}\n"
        + "\n".join(f"  {violation.kind}: {violation.told}" for violation in failure.violations)
        for failure in found.failures
    )


@pytest.mark.timeout(3600 if LONG else 180)
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_generated_attack_gets_past_a_rule_an_approval_or_the_record(seed):
    found = await campaign(seed, range(CASES), 5, smaller=False)
    assert not found.failures, told(found)
    # Not because nothing was let through, nor because nothing was refused.
    assert found.attacks > 1.7 * CASES
    assert found.ends["made"] > 0.4 * CASES
    assert found.ends["denied"] > 0.4 * CASES
    assert found.arrivals > 0.5 * CASES


@pytest.mark.timeout(3600 if LONG else 180)
@pytest.mark.parametrize("focus", FOCUSES[1:])
async def test_no_attack_of_a_kind_gets_past_the_gate(focus):
    found = await campaign(201, range(CASES // 5), 5, focus=focus, smaller=False)
    assert not found.failures, told(found)


@pytest.mark.parametrize("name", FOUND)
async def test_what_the_attacks_have_found_once_stays_mended(name):
    async with world() as place:
        case = copy.deepcopy(FOUND[name])
        violations = judge(case, await place.run(case))
    assert not violations


@pytest.mark.parametrize("mending", REMOVED)
async def test_a_mending_that_is_taken_out_is_found(mending, monkeypatch):
    removed = REMOVED[mending]
    removed.remove(monkeypatch)
    found = await campaign(
        301,
        range(UNTIL_FOUND),
        focus=removed.focus,
        smaller=False,
        wanted=lambda violation: violation.kind in removed.found,
    )
    assert found.failures
