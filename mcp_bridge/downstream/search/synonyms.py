"""Synonyms: words and phrases that people use for others, a thesaurus of tools' vocabulary."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

from mcp_bridge.downstream.search.words import is_stop_word, split, stem, stems

Term = tuple[str, ...]
"""One stem, or several, of which a tool must have all."""

# What another word is worth beside the one that was used (1.0).
_SAME = 0.75
_USED_FOR = 0.65


@dataclass(frozen=True, slots=True)
class Thesaurus:
    """What is used for what.

    Attributes:
        others: By a word's or phrase's stems, the terms that it is used for, each with its weight.
        phrases: By the stems of a phrase's words that say something, if there are several, the phrase.
        words: Every word in it, as it is written.
        longest: The number of words of the longest phrase.
    """

    others: dict[Term, dict[Term, float]]
    phrases: dict[frozenset[str], Term]
    words: frozenset[str]
    longest: int


@functools.cache
def thesaurus() -> Thesaurus:
    """The thesaurus that ships with the package; read once."""
    others: dict[Term, dict[Term, float]] = {}
    words: set[str] = set()
    for line in _data("synonyms.txt"):
        said, directed, meant = line.partition(">")
        from_terms = [_term(entry, words) for entry in said.split(",")]
        to_terms = [_term(entry, words) for entry in meant.split(",")] if directed else from_terms
        weight = _USED_FOR if directed else _SAME
        for term in from_terms:
            row = others.setdefault(term, {})
            for other in to_terms:
                if other != term:
                    row[other] = max(weight, row.get(other, 0.0))
    stop = {stem(word) for word in words if is_stop_word(word)}
    phrases = {frozenset(term) - stop: term for term in others if len(frozenset(term) - stop) > 1}
    return Thesaurus(others, phrases, frozenset(words), max(map(len, others)))


def _data(name: str) -> list[str]:
    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _term(entry: str, words: set[str]) -> Term:
    parts = split(entry)
    words.update(parts)
    return tuple(stems(parts))
