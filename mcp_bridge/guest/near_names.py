"""The names that a script may have meant by an unknown one."""

import difflib


def near(name: str, known: list[str]) -> list[str]:
    """Up to three similarly spelled names, or else names that share a word: `source` and `source_timezone`."""
    words = set(name.lower().split("_")) - {""}
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return close or [other for other in known if words & set(other.lower().split("_"))][:3]


def suggestion(name: str, known: list[str]) -> str:
    """`; nearest: a, b`; or empty if no name is near."""
    close = near(name, known)
    return f"; nearest: {', '.join(close)}" if close else ""


def nearest(name: str, known: list[str]) -> str:
    """`; nearest: a, b`; or all names if none is near; or empty."""
    if near_ones := suggestion(name, known):
        return near_ones
    return f"; there are: {', '.join(known[:20])}{', …' if len(known) > 20 else ''}" if known else ""
