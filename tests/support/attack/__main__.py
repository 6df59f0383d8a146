"""Attack the gate from the command line: `python -m tests.support.attack --cases 50000 --seed 7`."""

from __future__ import annotations

import argparse
import pprint
import sys
import time
from collections import Counter

import anyio

from .campaign import Failure, Found, campaign
from .generator import FOCUSES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what the cases follow from")
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--only", type=int, help="the number of the only one")
    parser.add_argument("--failures", type=int, default=10, help="after how many to stop")
    parser.add_argument("--focus", choices=FOCUSES, default="", help="what there is to be more of")
    parser.add_argument("--but", action="append", default=[], help="a kind of violation to pass over; may be repeated")
    parser.add_argument("--whole", action="store_true", help="show failures as they were found, not made smaller")
    asked = parser.parse_args()
    numbers = range(asked.first, asked.first + asked.cases) if asked.only is None else range(asked.only, asked.only + 1)
    began = time.monotonic()

    def tell(done: int) -> None:
        print(f"{done} cases, {done / (time.monotonic() - began):.0f} a second", file=sys.stderr)

    async def attacked() -> Found:
        return await campaign(
            asked.seed,
            numbers,
            asked.failures,
            focus=asked.focus,
            smaller=not asked.whole,
            wanted=lambda violation: violation.kind not in asked.but,
            tell=tell,
        )

    found = anyio.run(attacked)
    for failure in found.failures:
        show(failure)
    print(
        f"{found.cases} cases, {found.attacks} attacks, {found.arrivals} calls made in {time.monotonic() - began:.0f} s"
    )
    print("ends:", dict(found.ends.most_common()))
    print("violations:", dict(Counter(each.kind for one in found.failures for each in one.violations)))
    return 1 if found.failures else 0


def show(failure: Failure) -> None:
    """A failure, and how to do it again."""
    print(f"--- seed {failure.seed}, case {failure.case.number}: --seed {failure.seed} --only {failure.case.number}")
    for violation in failure.violations:
        print(f"{violation.kind}: {violation.told}")
    print(pprint.pformat(failure.case, width=150))


if __name__ == "__main__":
    sys.exit(main())
