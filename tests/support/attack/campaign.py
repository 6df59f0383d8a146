"""Many cases in one world, and failures made smaller."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .generator import generate
from .harness import world
from .judge import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .generator import Case
    from .harness import World
    from .judge import Violation

EVERY = 1000
"""How often to say how far it is."""

MAX_TRIES = 200
"""Of making one failure smaller."""


@dataclass
class Failure:
    """A case in which something was broken.

    Attributes:
        seed: Of the campaign.
        case: Made smaller, perhaps.
        violations: What was broken.
    """

    seed: int
    case: Case
    violations: list[Violation]


@dataclass
class Found:
    """What came of a campaign.

    Attributes:
        cases, attacks: How many there were.
        arrivals: Calls that reached a tool.
        ends: How attacks have ended, by the code of their errors.
        failures: What was broken.
    """

    cases: int = 0
    attacks: int = 0
    arrivals: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


async def campaign(
    seed: int,
    numbers: Iterable[int],
    max_failures: int = 1,
    *,
    focus: str = "",
    smaller: bool = True,
    wanted: Callable[[Violation], bool] = lambda _: True,
    tell: Callable[[int], None] = lambda _: None,
) -> Found:
    """Carry out cases until so many have failed.

    Args:
        seed: What they follow from.
        numbers: Which.
        max_failures: How many failures to look for.
        focus: What there is to be more of.
        smaller: Whether to make failures smaller.
        wanted: Which violations count.
        tell: Told now and then how many are done.
    """
    found = Found()
    async with world() as place:
        for number in numbers:
            case = generate(seed, number, focus)
            outcome = await place.run(case)
            found.cases += 1
            found.attacks += len(outcome.seen)
            found.arrivals += sum(len(seen.arrivals) for seen in outcome.seen)
            found.ends.update(seen.error or "made" for seen in outcome.seen)
            violations = [each for each in judge(case, outcome) if wanted(each)]
            if violations:
                failure = Failure(seed, case, violations)
                found.failures.append(await shrunk(place, failure) if smaller else failure)
                if len(found.failures) >= max_failures:
                    break
            if found.cases % EVERY == 0:
                tell(found.cases)
    return found


async def shrunk(place: World, failure: Failure) -> Failure:
    """A smaller case that breaks the same promise."""
    kinds = {each.kind for each in failure.violations}
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for case in candidates(failure.case):
            if (tries := tries + 1) > MAX_TRIES:
                return failure
            try:
                violations = judge(case, await place.run(case))
            except Exception:  # noqa: BLE001, S112 - what is left of a case may be none
                continue
            if {each.kind for each in violations} & kinds:
                failure = Failure(failure.seed, case, violations)
                smaller = True
                break
    return failure


def candidates(case: Case) -> Iterator[Case]:
    """The case without one of its parts."""

    def without(path: Callable[[Case], list | dict], part: object) -> Case:
        other = copy.deepcopy(case)
        del path(other)[part]  # type: ignore[arg-type]
        return other

    for index in range(len(case.attacks) if len(case.attacks) > 1 else 0):
        yield without(lambda one: one.attacks, index)
    for index in range(len(case.policy["rules"])):
        yield without(lambda one: one.policy["rules"], index)
    for name, value in (("later", None), ("ending", "")):
        if getattr(case, name):
            other = copy.deepcopy(case)
            setattr(other, name, value)
            yield other
    yield from _simpler_attacks(case)
    for index in range(len(case.tools) if len(case.tools) > 1 else 0):
        yield without(lambda one: one.tools, index)
    for index, rule in enumerate(case.policy["rules"]):
        for glob in range(len(rule["tools"]) if len(rule["tools"]) > 1 else 0):
            yield without(lambda one, index=index: one.policy["rules"][index]["tools"], glob)


def _simpler_attacks(case: Case) -> Iterator[Case]:
    for index, attack in enumerate(case.attacks):
        if attack.change is not None:
            other = copy.deepcopy(case)
            other.attacks[index].change = None
            yield other
        for name in attack.arguments:
            other = copy.deepcopy(case)
            del other.attacks[index].arguments[name]
            yield other
