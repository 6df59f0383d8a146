"""What people say when they need a tool, in words that the tool hasn't: phrases of which a query may have a part.

The thesaurus knows words, and phrases that a query has word by word. Here the words of a phrase count one by one, the
rare ones more; the share of a phrase that a query has tells how likely its need is.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from mcp_bridge.downstream.search.synonyms import thesaurus
from mcp_bridge.downstream.search.words import is_stop_word, split, stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_bridge.downstream.search.synonyms import Term

# What a word without content counts in a phrase, beside another that is as frequent.
_STOP_WORD = 0.25
# These are in too many phrases to say anything.
_IGNORED = frozenset(["a", "an", "and", "for", "in", "is", "it", "my", "of", "on", "the", "to"])
# What another word for the query's counts, and which of the thesaurus's are near enough.
_SYNONYM = 0.3
_LEAST_SYNONYM = 0.7
# A need's strength: the share of a phrase that a query has, to this power, and less if that says little. Two rare words
# together weigh about so much.
_SHARE_POWER = 1.5
_FULL_MATCH_BONUS = 13.0
# What it adds to a strength that all phrases for a need together have much of the query.
_TOGETHER = 0.6
# The most needs of a query, and the least strength beside the strongest.
_NEEDS = 8
_LEAST_NEED = 0.3


@dataclass(frozen=True, slots=True)
class Need:
    """What a query may be after.

    Attributes:
        terms: What a tool for it has: any of them.
        strength: How likely it is, 0 to 1 + `_TOGETHER`.
    """

    terms: tuple[Term, ...]
    strength: float


class Phrasings:
    """Phrases, and what tools have that they ask for.

    Args:
        rows: The terms of each need, and its phrases as words.

    Attributes:
        words: Every word in the phrases, as it is written.
    """

    def __init__(self, rows: Sequence[tuple[tuple[Term, ...], list[list[str]]]]) -> None:
        self._terms = [terms for terms, _ in rows]
        self.words = frozenset(word for _, phrases in rows for phrase in phrases for word in phrase)
        in_rows = Counter(part for _, phrases in rows for part in {stem(word) for phrase in phrases for word in phrase})
        self._weights: dict[str, float] = {}
        for word in sorted(self.words - _IGNORED):
            weight = math.log(1 + len(rows) / (in_rows[stem(word)] + 0.5)) * (_STOP_WORD if is_stop_word(word) else 1.0)
            self._weights[stem(word)] = max(weight, self._weights.get(stem(word), 0.0))
        # By a stem the phrases that have it, and the needs; of each phrase its need's number, and its stems' weight.
        self._phrases: dict[str, array[int]] = {part: array("H") for part in self._weights}
        self._needs: dict[str, array[int]] = {part: array("H") for part in self._weights}
        self._need_of = array("H")
        self._whole = array("f")
        for number, (_, phrases) in enumerate(rows):
            for part in {stem(word) for phrase in phrases for word in phrase} & self._weights.keys():
                self._needs[part].append(number)
            for phrase in phrases:
                stems = {stem(word) for word in phrase} & self._weights.keys()
                if stems:
                    for part in stems:
                        self._phrases[part].append(len(self._whole))
                    self._need_of.append(number)
                    self._whole.append(math.fsum(self._weights[part] for part in stems))

    def needs(self, words: Iterable[str]) -> list[Need]:
        """What a query's words ask for, the likeliest first."""
        stems: dict[str, float] = {}
        for word in words:
            stems[stem(word)] = 1.0
        for word in list(stems):
            for term, weight in thesaurus().others.get((word,), {}).items():
                if len(term) == 1 and weight >= _LEAST_SYNONYM:
                    stems.setdefault(term[0], _SYNONYM)
        whole = sum(self._weights.get(part, 0.0) for part, share in stems.items() if share == 1.0) or 1.0
        had: dict[int, float] = {}
        together: dict[int, float] = {}
        for part, share in stems.items():
            weight = share * self._weights.get(part, 0.0)
            for phrase in self._phrases.get(part, ()):
                had[phrase] = had.get(phrase, 0.0) + weight
            for need in self._needs.get(part, ()):
                together[need] = together.get(need, 0.0) + weight
        strengths = {
            need: _TOGETHER * min(1.0, weight / whole) * min(1.0, weight / _FULL_MATCH_BONUS)
            for need, weight in together.items()
        }
        of_phrases: dict[int, float] = {}
        for phrase, weight in had.items():
            strength = min(1.0, weight / self._whole[phrase]) ** _SHARE_POWER * min(1.0, weight / _FULL_MATCH_BONUS)
            need = self._need_of[phrase]
            of_phrases[need] = max(strength, of_phrases.get(need, 0.0))
        for need, strength in of_phrases.items():
            strengths[need] += strength
        best = sorted(strengths, key=lambda need: (-strengths[need], need))[:_NEEDS]
        return [
            Need(self._terms[need], strengths[need])
            for need in best
            if strengths[need] >= _LEAST_NEED * strengths[best[0]]
        ]


@functools.cache
def phrasings() -> Phrasings:
    """The phrases that ship with the package; read once."""
    text = resources.files(__package__).joinpath("phrasings.txt").read_text("utf-8")
    rows = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            terms, _, phrases = line.partition(" : ")
            had = tuple(tuple(map(stem, split(term))) for term in terms.split(","))
            rows.append((had, [split(phrase) for phrase in phrases.split(",")]))
    return Phrasings(rows)
