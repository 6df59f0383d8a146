"""The names that somebody may have meant by a wrong one: the matcher behind every "did you mean" on the host.

What runs in the container has the standard library alone, and uses `difflib`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# It runs on the event loop: it is bounded.
_CHARS = 200
_OPTIONS = 5_000

_CUTOFF = 0.6
_KEY_CUTOFF = 0.5
_ORDERED_CUTOFF = 0.8
_SAME_CUTOFF = 0.9
_WORD = re.compile(r"[A-Z]*[a-z0-9]+|[A-Z]+")
_WORD_CHARS = 3

# How many names are listed when none is near.
_NAMES_SHOWN = 20


def spelled_like(name: str, options: Iterable[str], *, count: int = 1, cutoff: float = _CUTOFF) -> list[str]:
    """Up to `count` of `options` that are spelled like `name`, best first.

    Args:
        name: The wrong name; nothing is near one of more than 200 characters.
        options: The names that there are; of more than 5,000 the others are left out.
        count: The most names.
        cutoff: How similar the spelling must be: 1 is the same, 0 has no character in common.
    """
    if len(name) > _CHARS:
        return []
    by_folded = _folded(options)
    # Imported late: most processes are never given a wrong name.
    from rapidfuzz import fuzz, process  # noqa: PLC0415

    close = process.extract(name.casefold(), list(by_folded), scorer=fuzz.ratio, score_cutoff=100 * cutoff, limit=count)
    return [by_folded[folded] for folded, _, _ in close]


def nearest(name: str, options: Iterable[str], *, count: int = 3) -> list[str]:
    """Up to `count` of `options` that a person may have meant by `name`, best first.

    Words in another order are near, too: `read_file` and `fileRead`. When no option is spelled similarly, options that
    share a telling word are returned: `source` and `source_timezone`. As to its bounds, see `spelled_like`.
    """
    if len(name) > _CHARS:
        return []
    known = list(_folded(options).values())
    if close := _similar(name, known, count):
        return close
    words = {option: _words(option) for option in known}
    # A word that most of them have says nothing: all of a server's tools may begin with its name.
    telling = {word for word in _words(name) if sum(word in each for each in words.values()) <= max(1, len(known) / 2)}
    shared = {option: len(telling & each) for option, each in words.items()}
    best = sorted((option for option, number in shared.items() if number), key=lambda option: (-shared[option], option))
    return best[:count]


def is_misspelt(name: str, option: str) -> bool:
    """Whether a wrong name is this one misspelt, word for word: `git_lgo` and `git_log`, not `list_commits`.

    Any other name that is spelled similarly may as well be that of something else, in words of its own.
    """
    from rapidfuzz import fuzz  # noqa: PLC0415 - as above

    said, known = ([word.lower() for word in _WORD.findall(text[:_CHARS])] for text in (name, option))
    if fuzz.ratio("".join(said), "".join(known)) >= 100 * _SAME_CUTOFF or sorted(said) == sorted(known):
        return True
    return len(said) == len(known) and all(fuzz.ratio(*pair) >= 100 * _CUTOFF for pair in zip(said, known, strict=True))


def _similar(name: str, known: list[str], count: int) -> list[str]:
    """The names that are spelled similarly, as they are or with their words in order."""
    from rapidfuzz import fuzz, process  # noqa: PLC0415 - as above

    scores: dict[str, float] = {}
    # With its words in order a name is like many that it shares one word with.
    for form, cutoff in ((str.casefold, _CUTOFF), (_in_order, _ORDERED_CUTOFF)):
        forms = [form(option) for option in known]
        close = process.extract(form(name), forms, scorer=fuzz.ratio, score_cutoff=100 * cutoff, limit=count)
        for _, score, place in close:
            scores[known[place]] = max(score, scores.get(known[place], 0.0))
    return sorted(scores, key=lambda option: -scores[option])[:count]


def _in_order(name: str) -> str:
    return " ".join(sorted(word.lower() for word in _WORD.findall(name)))


def _folded(options: Iterable[str]) -> dict[str, str]:
    """The options by their case-folded form, at most `_OPTIONS`, without those that are too long."""
    by_folded: dict[str, str] = {}
    for option in options:
        if len(option) <= _CHARS:
            by_folded.setdefault(option.casefold(), option)
            if len(by_folded) >= _OPTIONS:
                break
    return by_folded


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
    listed = ", ".join(name[:_CHARS] for name in names[:_NAMES_SHOWN])
    return f"There are: {listed}{', …' if len(names) > _NAMES_SHOWN else ''}."


def suggestion(name: str, known: Iterable[str], label: str = "There are", prefix: str = "") -> str:
    """A hint for a wrong key or choice of a configuration: the name that is spelled like it, or all of them.

    Args:
        name: The wrong name.
        known: All names, which are ours and few.
        label: What they are, before the list of all.
        prefix: Shown before each name and not compared, because it would make all names seem near.
    """
    known = list(known)
    if close := spelled_like(name, known, cutoff=_KEY_CUTOFF):
        return f"Did you mean {prefix}{close[0]}?"
    return f"{label}: {', '.join(prefix + option for option in known)}."
