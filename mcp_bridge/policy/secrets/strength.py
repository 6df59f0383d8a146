"""How hard a secret is to guess by trying: whether masking it tells more than it hides.

Whoever may write text that is masked may write guesses, a million a second, and sees which of them becomes a reference.
Against a secret of many possibilities that is no help; of one of few it gives the secret away. The measure is of a
search through all texts of that length and those kinds of characters. It knows no words, names or dates: a text of
those is weaker than it says.
"""

from __future__ import annotations

import itertools
import math

MIN_BITS = 50
"""Least strength of a masked secret. At a million guesses a second, half of the possible values take 18 years."""

_KINDS = (
    (10, "0123456789"),
    (6, "abcdef"),
    (20, "ghijklmnopqrstuvwxyz"),
    (6, "ABCDEF"),
    (20, "GHIJKLMNOPQRSTUVWXYZ"),
)

_OTHER_ASCII = 33

_ALPHABET = 100
"""Characters of a script that has letters."""

_IDEOGRAPHS = 1000

_FIRST_IDEOGRAPH = 0x2E80


def bits(text: str) -> float:
    """The logarithm, to base 2, of how many texts of the same length and kinds there are; repetitions count once."""
    text = text.strip()
    alphabet = sum(size for size, chars in _KINDS if set(chars) & set(text))
    if any(char.isascii() and not char.isalnum() for char in text):
        alphabet += _OTHER_ASCII
    if any(not char.isascii() and ord(char) < _FIRST_IDEOGRAPH for char in text):
        alphabet += _ALPHABET
    if any(ord(char) >= _FIRST_IDEOGRAPH for char in text):
        alphabet += _IDEOGRAPHS
    return _length(text) * math.log2(alphabet) if alphabet > 1 else 0.0


def _length(text: str) -> int:
    """Characters that don't follow from those before: by a period, or as 3456, dcba and aaaa do."""
    period = next((n for n in range(1, min(len(text), 200)) if text[n:] == text[:-n]), len(text))
    text = text[:period]
    steps = [ord(after) - ord(before) for before, after in itertools.pairwise(text)]
    runs = sum(step in {-1, 0, 1} and step == before for before, step in itertools.pairwise(steps))
    return len(text) - runs
