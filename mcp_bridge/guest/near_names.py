"""The names that a script may have meant by an unknown one."""

import difflib
import re

_WORD = re.compile(r"[A-Z]*[a-z0-9]+|[A-Z]+")


def near(name: str, known: list[str]) -> list[str]:
    """Up to three similarly spelled names, or else names that share a word: `source` and `source_timezone`.

    Words in another order are near, too: `read_file` and `fileRead`.
    """
    words = set(name.lower().split("_")) - {""}
    by_order = {_in_order(other): other for other in known}
    spelled = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    # In order a name is like many that it shares one word with.
    ordered = [by_order[other] for other in difflib.get_close_matches(_in_order(name), by_order, n=3, cutoff=0.8)]
    close = sorted({*spelled, *ordered}, key=lambda other: (-_likeness(name, other), other))[:3]
    return close or [other for other in known if words & set(other.lower().split("_"))][:3]


def is_misspelt(name: str, other: str) -> bool:
    """Whether a name is the other one misspelt, word for word: `git_lgo` and `git_log`, not `list_commits`."""
    said, known = ([word.lower() for word in _WORD.findall(text)] for text in (name, other))
    if _ratio("".join(said), "".join(known)) >= 0.9 or sorted(said) == sorted(known):
        return True
    return len(said) == len(known) and all(_ratio(*pair) >= 0.6 for pair in zip(said, known, strict=True))


def _likeness(name: str, other: str) -> float:
    forms = ((name, other), (_in_order(name), _in_order(other)))
    return max(_ratio(*form) for form in forms)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _in_order(name: str) -> str:
    return " ".join(sorted(word.lower() for word in _WORD.findall(name)))


def suggestion(name: str, known: list[str]) -> str:
    """`; nearest: a, b`; or empty if no name is near."""
    close = near(name, known)
    return f"; nearest: {', '.join(close)}" if close else ""


def nearest(name: str, known: list[str]) -> str:
    """`; nearest: a, b`; or all names if none is near; or empty."""
    if near_ones := suggestion(name, known):
        return near_ones
    return f"; there are: {', '.join(known[:20])}{', …' if len(known) > 20 else ''}" if known else ""
