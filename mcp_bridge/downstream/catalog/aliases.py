"""Injective mapping from the names of servers, tools and parameters to Python identifiers.

The rules, in order:

1. A name that is already a usable identifier keeps itself: `getUser` stays `getUser`, `a_b_2` stays `a_b_2`.
   For servers a usable identifier is also lower case.
2. Any other name is derived: lower case (servers only), every character outside `[A-Za-z0-9_]` becomes `_`, a
   leading digit gets `_` before it, a keyword gets `_` after it, leading double underscores become one.
3. Where several names are derived to the same, each gets the beginning of its own hash: `del_user_1f0c93ab`. None
   gets `del_user`, which one of them may have had alone before: what is written for one tool must not call another.
4. A single derived name that is another's exact one gets `_2`, `_3`…, the first that is free.

Exact identifiers are placed first, then what is derived and free, so the outcome depends on the set of names alone,
never on their order. A further name gets an identifier that another has had only if that is the further one's own by
rule 1, or a numbered one by rule 2.

Python folds identifiers to NFKC when it parses them, so only a name that NFKC leaves alone counts as exact.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import keyword
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INVALID = re.compile(r"[^A-Za-z0-9_]")
_NAMELESS = "unnamed"
_HASH_CHARS = 8


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
    others = [name for name in ordered if name not in out]
    rivals = collections.Counter(derived[name] for name in others)
    free = [name for name in others if rivals[derived[name]] == 1 and derived[name] not in taken]
    out |= {name: derived[name] for name in free}
    taken.update(derived[name] for name in free)
    for name in others:
        if name in out:
            continue
        base = derived[name].removesuffix("_") + "_"
        suffixes = map(str, itertools.count(2)) if rivals[derived[name]] == 1 else _hashes(name)
        out[name] = next(alias for suffix in suffixes if (alias := base + suffix) not in taken)
        taken.add(out[name])
    return dict(sorted(out.items()))


def _hashes(name: str) -> Iterator[str]:
    """Beginnings of a name's hash, the shortest first: two names may have the same one, and a name may be one."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return (digest[:length] for length in range(_HASH_CHARS, len(digest) + 1))
