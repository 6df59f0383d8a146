"""The words that a misspelt one may stand for: those within a few typing errors of it.

An error is a letter too many, one too few, another letter, or two that have changed places (optimal string alignment).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Shorter words have too many neighbours.
_LEAST_CHARS = 4
# From so many letters on, a word may have two errors, and three.
_TWO_ERRORS = 6
_THREE_ERRORS = 11

# What an error takes of a word's weight, and one in its first letter, which people seldom get wrong.
_ERROR = 0.18
_FIRST_LETTER = 0.15

# How many words of one length are compared (20,000 take 2 ms, and hold the interpreter), and how many are given.
_COMPARED = 20_000
_GIVEN = 4


class Spelling:
    """Known words, by their length.

    Args:
        known: Lower-case words.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._by_length: dict[int, list[str]] = {}
        for word in known:
            if len(word) >= _LEAST_CHARS - 1 and word.isalpha():
                self._by_length.setdefault(len(word), []).append(word)

    def corrections(self, word: str) -> dict[str, float]:
        """The known words that a lower-case one may have been meant to be, best first, each with its weight.

        A weight is below 1, and above 0.
        """
        if len(word) < _LEAST_CHARS or not word.isalpha():
            return {}
        from rapidfuzz import process  # noqa: PLC0415 - a search without an unknown word doesn't need it
        from rapidfuzz.distance import OSA  # noqa: PLC0415

        errors = 1 + (len(word) >= _TWO_ERRORS) + (len(word) >= _THREE_ERRORS)
        weighed: dict[str, float] = {}
        for length in range(len(word) - errors, len(word) + errors + 1):
            known = self._by_length.get(length, [])[:_COMPARED]
            for other, distance, _ in process.extract(
                word, known, scorer=OSA.distance, score_cutoff=errors, limit=_GIVEN
            ):
                weight = 1 - _ERROR * distance - _FIRST_LETTER * (other[0] != word[0])
                # A longer word bears more errors.
                weighed[other] = weight - 0.5 * distance / max(len(word), len(other))
        best = sorted((other for other in weighed if weighed[other] > 0), key=lambda other: (-weighed[other], other))
        # Of worse ones only those that are nearly as likely.
        return {other: weighed[other] for other in best[:_GIVEN] if weighed[other] >= weighed[best[0]] - 0.2}
