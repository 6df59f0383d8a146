"""Injective mapping from the names of servers, tools and parameters to Python identifiers.

The rules, in order:

1. A name that is already a usable identifier keeps itself: `getUser` stays `getUser`, `a_b_2` stays `a_b_2`.
   For servers a usable identifier is also lower case.
2. Any other name is derived: lower case (servers only), every character outside `[A-Za-z0-9_]` becomes `_`, a
   leading digit gets `_` before it, a keyword gets `_` after it, leading double underscores become one.
3. A derived name that is taken gets `_2`, `_3`…, the first that is free. Names are visited in sorted order and
   exact identifiers are placed first, so the outcome depends on the set of names alone, never on their order.

Python folds identifiers to NFKC when it parses them, so only a name that NFKC leaves alone counts as exact.
"""

from __future__ import annotations

import difflib
import keyword
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_INVALID = re.compile(r"[^A-Za-z0-9_]")
_NAMELESS = "unnamed"

# Finding near names only helps with typing mistakes, and it runs on the event loop: it is bounded.
_NEAR_CHARS = 200
_NEAR_MARGIN = 10
_NEAR_OPTIONS = 2_000
_NEAR_COMPARED = 20
_NEAR_CUTOFF = 0.6
_WORD = re.compile(r"[A-Z]*[a-z0-9]+|[A-Z]+")
_WORD_CHARS = 3

# How many names are listed when none is near.
_NAMES_SHOWN = 20


def derive(name: str, *, lower: bool = False, reserved: frozenset[str] = frozenset()) -> str:
    """The identifier for `name` if no other name competes for it. Idempotent."""
    if lower:
        name = unicodedata.normalize("NFKC", name.lower())
    if not (name.isidentifier() and unicodedata.normalize("NFKC", name) == name):
        name = _INVALID.sub("_", name)
    if name.startswith("__"):
        # Dunders belong to Python, and `__x` is mangled inside a class body.
        name = "_" + name.lstrip("_")
    if not name.strip("_"):
        name = _NAMELESS
    if name[0].isdigit():
        name = "_" + name
    while keyword.iskeyword(name) or name in reserved:
        name += "_"
    return name


def assign(names: Iterable[str], *, lower: bool = False, reserved: frozenset[str] = frozenset()) -> dict[str, str]:
    """Assign each name an identifier that no other name has.

    Args:
        names: The names; duplicates count once.
        lower: Whether to lower-case them. Server names become module names, which are lower case.
        reserved: Identifiers that may not be assigned, in addition to keywords and dunders.

    Returns:
        `{name: identifier}`, sorted by name.
    """
    ordered = sorted(set(names))
    derived = {name: derive(name, lower=lower, reserved=reserved) for name in ordered}
    out = {name: name for name in ordered if derived[name] == name}
    taken = set(out)
    # Where the search for a free suffix continues. Starting at 2 each time would take quadratic time.
    numbers: dict[str, int] = {}
    for name in ordered:
        if name in out:
            continue
        base = candidate = derived[name]
        number = numbers.get(base, 1)
        if number > 1:
            candidate = f"{base}_{number}" if not base.endswith("_") else f"{base}{number}"
        while candidate in taken:
            number += 1
            candidate = f"{base}_{number}" if not base.endswith("_") else f"{base}{number}"
        numbers[base] = number
        taken.add(candidate)
        out[name] = candidate
    return dict(sorted(out.items()))


def nearest(name: str, options: Iterable[str], *, count: int = 3) -> list[str]:
    """Up to `count` of `options` that a person may have meant by `name`, best first.

    When no option is spelled similarly, options that share a word are returned: `source` and `source_timezone`.
    """
    if len(name) > _NEAR_CHARS:
        return []
    by_folded: dict[str, str] = {}
    for option in options:
        # Options of a very different length can't be near.
        if len(option) <= 2 * len(name) + _NEAR_MARGIN and len(name) <= 2 * len(option) + _NEAR_MARGIN:
            by_folded.setdefault(option.casefold(), option)
            if len(by_folded) >= _NEAR_OPTIONS:
                break
    folded_name = name.casefold()
    # The full comparison is quadratic in the names: it is limited to the options that share the most characters.
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(folded_name)
    likely = []
    for folded in by_folded:
        matcher.set_seq1(folded)
        if matcher.real_quick_ratio() >= _NEAR_CUTOFF and (ratio := matcher.quick_ratio()) >= _NEAR_CUTOFF:
            likely.append((ratio, folded))
    likely.sort(key=lambda each: (-each[0], each[1]))
    close = difflib.get_close_matches(
        folded_name, [folded for _, folded in likely[:_NEAR_COMPARED]], n=count, cutoff=_NEAR_CUTOFF
    )
    if close:
        return [by_folded[folded] for folded in close]
    name_words = _words(name)
    shared = {option: len(name_words & _words(option)) for option in by_folded.values()}
    best = sorted((option for option, number in shared.items() if number), key=lambda option: (-shared[option], option))
    return best[:count]


def _words(name: str) -> set[str]:
    """The significant words of a name, in lower case."""
    return {word.lower() for word in _WORD.findall(name) if len(word) >= _WORD_CHARS}


def did_you_mean(close: Sequence[str], names: Sequence[str]) -> str | None:
    """A hint for a wrong name: the nearest names, or else a list of all; None when there are no names.

    Args:
        close: The names that `nearest` found.
        names: All names.
    """
    if close:
        return f"Did you mean {', '.join(dict.fromkeys(close))}?"
    if not names:
        return None
    listed = ", ".join(name[:_NEAR_CHARS] for name in names[:_NAMES_SHOWN])
    return f"There are: {listed}{', …' if len(names) > _NAMES_SHOWN else ''}."
