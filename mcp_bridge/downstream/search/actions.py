"""What a tool does to its object, and what a query wants done: read, make, change, remove, start or stop.

A question wants to read. The words of a query and a tool may be the same and the deed another: `create_issue` is no
answer to "has anyone reported this issue".
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING

from mcp_bridge.downstream.search.words import split, stem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo

# How much of a description is looked at: `Retrieves an issue`.
_BEGINNING_CHARS = 60
_BEGINNING_WORDS = 3

# What `actions.txt` calls words like `history`.
_NOUN = "noun"

# The words with which a question begins. After `how`, some ask how to do something.
_QUESTIONS = frozenset(
    [
        "what",
        "which",
        "who",
        "whom",
        "whose",
        "when",
        "where",
        "why",
        "how",
        "am",
        "is",
        "are",
        "was",
        "were",
        "has",
        "had",
        "does",
        "did",
        "will",
    ]
)
_REQUESTS = frozenset(["can", "could", "do", "should", "to"])

# By pairs of what is wanted and what a tool does, how likely the tool is meant; what isn't here is 1.
_UNLIKE: Mapping[tuple[str, str], float] = {
    ("read", "make"): 0.6,
    ("read", "change"): 0.6,
    ("read", "remove"): 0.5,
    ("read", "start"): 0.8,
    ("read", "stop"): 0.6,
    ("make", "read"): 0.7,
    ("make", "remove"): 0.5,
    ("make", "stop"): 0.6,
    ("change", "read"): 0.7,
    ("change", "remove"): 0.7,
    ("change", "stop"): 0.7,
    ("remove", "read"): 0.6,
    ("remove", "make"): 0.5,
    ("remove", "change"): 0.8,
    ("remove", "start"): 0.5,
    ("start", "remove"): 0.5,
    ("start", "stop"): 0.5,
    ("start", "read"): 0.8,
    ("stop", "read"): 0.7,
    ("stop", "make"): 0.6,
    ("stop", "start"): 0.5,
}


@functools.cache
def _by_stem() -> dict[str, str]:
    """By the stem of a verb what it does, and of a noun for what is read `_NOUN` (`actions.txt`)."""
    lines = resources.files(__package__).joinpath("actions.txt").read_text("utf-8").splitlines()
    rows = (line.split(": ") for line in lines if not line.startswith("#"))
    return {stem(verb): action for action, verbs in rows for verb in verbs.split()}


def action_of(tool: ToolInfo) -> str | None:
    """What a tool does, by the first verb of its name or else of its description's beginning; None if nothing tells.

    A noun at the end of a name tells it where no verb does: `git_log` reads, but `status_delete` removes, and
    `history_entry` may do anything.
    """
    known = _by_stem()
    server = {stem(word) for word in [*split(tool.server), *split(tool.server_alias)]}
    written = list(map(stem, split(tool.name)))
    name = sorted(written, key=lambda part: part in server)
    begins = map(stem, split(tool.description[:_BEGINNING_CHARS])[:_BEGINNING_WORDS])
    told = next((known[part] for part in [*name, *begins] if known.get(part, _NOUN) != _NOUN), None)
    return told or ("read" if known.get(written[-1] if written else "") == _NOUN else None)


def is_question(words: Sequence[str]) -> bool:
    """Whether a query asks for something that there is: `which issues are open`, but not `how do I open an issue`."""
    return bool(words) and words[0] in _QUESTIONS and not (words[0] == "how" and set(words[1:2]) & _REQUESTS)


def wanted_action(words: Sequence[str], meant: Mapping[str, float]) -> dict[str, float]:
    """What a query wants done, each action with its likelihood; empty if it doesn't tell.

    Args:
        words: The query's words.
        meant: The stems that may stand for its first telling word, each with its weight.
    """
    if is_question(words):
        return {"read": 1.0}
    known = _by_stem()
    found: dict[str, float] = {}
    for part, weight in meant.items():
        if part in known:
            action = "read" if known[part] == _NOUN else known[part]
            found[action] = max(found.get(action, 0.0), weight)
    total = sum(found.values())
    return {action: weight / total for action, weight in found.items()}


def likelihood(wanted: Mapping[str, float], action: str | None) -> float:
    """The factor for a tool that does something, 0 to 1."""
    if action is None or not wanted:
        return 1.0
    return sum(share * _UNLIKE.get((want, action), 1.0) for want, share in wanted.items())
