r"""Regular expressions whose search takes time linear in the text, whatever the text: the operator's own patterns.

`re` goes back on its choices, and an innocent pattern such as `(\w+)+!` makes it do so for years. What a pattern looks
for comes from servers that are trusted by half. So the steps that it can take from one place in a text are counted
before it is used, with every choice taken to be tried: repetitions need an upper bound, and the count must stay under
a limit.
"""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any, NamedTuple

MAX_PATTERN_CHARS = 1000

MAX_STEPS = 500
"""From one place in a text. A megabyte that makes a pattern take them all everywhere costs some seconds."""


class _Cost(NamedTuple):
    """What a part of a pattern can come to, from one place.

    Attributes:
        ways: In how many ways it can match.
        steps: How many characters are looked at to try them all.
    """

    ways: int
    steps: int


_NOTHING = _Cost(1, 0)


def compile_bounded(pattern: str) -> re.Pattern[str]:
    """Compile a pattern whose search is linear.

    Allowed: characters, classes, groups, alternatives, repetitions up to a number, possessive ones and atomic groups,
    looking ahead and behind, word boundaries, flags.

    Raises:
        ValueError: It is no regular expression, matches nothing at all, needs the edges of a text (texts are searched
            in pieces), refers back to a group, or could take too many steps.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"it is longer than {MAX_PATTERN_CHARS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # The one parser that agrees with `re` on what a pattern means. It isn't public: the part of its answer that
            # isn't known here is refused.
            tree = importlib.import_module("re._parser").parse(pattern)
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as exc:
        raise ValueError(f"it is no regular expression: {exc}") from None
    if tree.getwidth()[0] == 0:
        raise ValueError("it matches where there is nothing")
    if _sequence(tree).steps > MAX_STEPS:
        raise ValueError(_too_many())
    return compiled


def _too_many() -> str:
    return (
        f"it could take more than {MAX_STEPS} steps from one place; "
        "make repetitions shorter, or possessive, as in '{1,64}+'"
    )


def _sequence(items: Any) -> _Cost:
    ways, steps = _NOTHING
    for op, argument in items:
        cost = _item(str(op), argument)
        steps += ways * cost.steps
        ways *= cost.ways
        if steps > MAX_STEPS:
            raise ValueError(_too_many())
    return _Cost(ways, steps)


def _item(op: str, argument: Any) -> _Cost:
    match op:
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
            return _Cost(1, 1)
        case "AT" if str(argument) in {"AT_BOUNDARY", "AT_NON_BOUNDARY"}:
            return _Cost(1, 1)
        case "AT":
            raise ValueError("it asks for an edge of the text or a line; use \\b")
        case "BRANCH":
            costs = [_sequence(branch) for branch in argument[1]]
            # What alternatives begin with in common the parser has put before them: even an empty one is a try.
            return _Cost(sum(cost.ways for cost in costs), sum(max(cost.steps, 1) for cost in costs))
        case "SUBPATTERN":
            return _sequence(argument[-1])
        case "ATOMIC_GROUP":
            return _Cost(1, _sequence(argument).steps)
        case "ASSERT" | "ASSERT_NOT":
            return _Cost(1, _sequence(argument[1]).steps)
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _repeat(*argument)
        case "POSSESSIVE_REPEAT":
            return _Cost(1, _repeat(*argument).steps)
    raise ValueError("it refers back to a group, or has a part that isn't known here")


def _repeat(least: int, most: Any, item: Any) -> _Cost:
    if str(most) == "MAXREPEAT":
        raise ValueError("a repetition has no upper bound; write '{1,64}' in place of '+', '{0,64}' in place of '*'")
    once = _sequence(item)
    ways, steps, reached = int(least == 0), 0, 1
    for count in range(1, most + 1):
        steps += reached * max(once.steps, 1)
        reached *= once.ways
        if count >= least:
            ways += reached
        if steps > MAX_STEPS:
            raise ValueError(_too_many())
    return _Cost(ways, steps)
