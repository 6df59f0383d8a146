"""Some of the attacks of `test_attack` through real containers, so that the guest in this process hides nothing."""

import os
from itertools import count

from attack.generator import generate
from attack.harness import world
from attack.judge import judge

ATTACKS = 500 if os.environ.get("MCP_BRIDGE_TEST_LONG") else 30


async def test_attacks_from_real_sandboxes_are_judged_alike(sandboxes):
    done = made = 0
    async with world() as place:
        place.containers = sandboxes.prepared
        for number in count():
            case = generate(401, number)
            if case.kind != "script":
                continue
            case.ending = ""
            outcome = await place.run(case)
            violations = judge(case, outcome)
            assert not violations, (number, violations)
            done += len(outcome.seen)
            made += sum(seen.error is None for seen in outcome.seen)
            if done >= ATTACKS:
                break
    assert made > done / 5
    assert await sandboxes.containers() == []
