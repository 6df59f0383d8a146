"""Text as words, and words as stems: identifiers split, endings removed, words without content told apart."""

from __future__ import annotations

import functools
import re
import threading
import unicodedata
from importlib import resources
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_IDENTIFIER = re.compile(r"[^\W_]+(?:[-_.][^\W_]+)+|[^\W_]+")
_ELISION = re.compile(r"'[a-z]+$")

# Writing without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese), or with endings that are written
# onto them (Korean); and whatever else a word has.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"
)
_RUN = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|[^{_UNSPACED}]+")

# A longer word is a hash, or encoded data. A stemmer takes time in its length.
_WORD_CHARS = 64


# Words that the stemmer brings together with others of another meaning (`customer` and `custom`, `terminal` and
# `terminate`), and forms that it doesn't bring together (`indices`), each with its stem.
_STEMS = {
    "author": "author",
    "authors": "author",
    "commander": "commander",
    "computer": "computer",
    "computers": "computer",
    "container": "container",
    "containers": "container",
    "conversation": "conversation",
    "conversations": "conversation",
    "conversion": "convert",
    "conversions": "convert",
    "customer": "customer",
    "customers": "customer",
    "engineer": "engineer",
    "engineers": "engineer",
    "generally": "general",
    "indexes": "index",
    "indices": "index",
    "initiative": "initiative",
    "initiatives": "initiative",
    "locale": "locale",
    "locales": "locale",
    "organisation": "organization",
    "organisations": "organization",
    "organization": "organization",
    "organizations": "organization",
    "personal": "personal",
    "positive": "positive",
    "production": "production",
    "publication": "publication",
    "publications": "publication",
    "relative": "relative",
    "responsible": "responsible",
    "responsive": "responsive",
    "several": "several",
    "terminal": "terminal",
    "terminals": "terminal",
    "transit": "transit",
    "vertical": "vertical",
    "vertically": "vertical",
    "vertices": "vertex",
}

_stemming = threading.Lock()


class _Stemmer(Protocol):
    def stemWord(self, word: str) -> str:  # noqa: N802 - the library's name
        """The word's stem."""


@functools.cache
def _stemmer() -> _Stemmer:
    # Imported late: the library brings the stemmers of thirty languages.
    import snowballstemmer  # noqa: PLC0415

    stemmer: _Stemmer = snowballstemmer.stemmer("english")
    return stemmer


def split(text: str) -> list[str]:
    """The words of an identifier or text, in order: `getUserID`, `get_user_id` and `get-user-id` give `get user id`.

    Accents are removed, and so are endings after an apostrophe. A word is at most 64 characters long. Where words
    aren't written apart, each two characters that follow one another are one.
    """
    is_ascii = text.isascii()
    if not is_ascii:
        text = unicodedata.normalize("NFKD", text.replace("\u2019", "'"))
        text = unicodedata.normalize("NFC", "".join(char for char in text if not unicodedata.combining(char)))
    words = [part for whole in _WORD.findall(text) for part in _CAMEL.split(_ELISION.sub("", whole))]
    if not is_ascii:
        words = [piece for word in words for piece in _pieces(word)]
    return [word[:_WORD_CHARS].lower() for word in words]


def _pieces(word: str) -> list[str]:
    pieces = []
    for run in _RUN.finditer(word):
        text = run[0]
        is_pairs = run["unspaced"] is not None and len(text) > 1
        pieces += [text[at : at + 2] for at in range(len(text) - 1)] if is_pairs else [text]
    return pieces


def joined(text: str) -> list[str]:
    """The identifiers of a text that consist of several words, written as one: `readFile` gives `readfile`."""
    parts = (part for part in _IDENTIFIER.findall(text) if _CAMEL.search(part) or not part.isalnum())
    return ["".join(_WORD.findall(part))[:_WORD_CHARS].lower() for part in parts]


@functools.lru_cache(maxsize=1 << 15)
def stem(word: str) -> str:
    """The stem of a lower-case word, by the English Snowball stemmer; others are near enough to themselves."""
    if (known := _STEMS.get(word)) is not None:
        return known
    if not word.isalpha():
        return word
    # A stemmer has the word that it works on as its state, and searches run on several threads.
    with _stemming:
        return _stemmer().stemWord(word)


def stems(words: Iterable[str]) -> list[str]:
    """The stems of words, in order."""
    return [stem(word) for word in words]


def is_stop_word(word: str) -> bool:
    """Whether a word says nothing about a tool. Such words count if a query has no others."""
    return len(word) == 1 or word in _stop_words()


@functools.cache
def _stop_words() -> frozenset[str]:
    return frozenset(resources.files(__package__).joinpath("stop_words.txt").read_text("utf-8").split())
