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

import keyword
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_INVALID = re.compile(r"[^A-Za-z0-9_]")
_NAMELESS = "unnamed"


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
