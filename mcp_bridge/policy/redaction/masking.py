"""Secrets' plaintexts replaced by `vault://secret/<id>`, however they are encoded.

Found: the plaintext as it is, and backwards; with any of its characters escaped for JSON, Python, C, URLs or HTML, in
any mixture and in up to five layers; its UTF-8 and UTF-16 bytes in base64 (either alphabet, with or without padding, at
any place in something longer, wrapped into lines) and in hexadecimal (any case, with or without separators); its UTF-8
bytes in base32, and in base64 of base64; its UTF-16 bytes; these again inside of the escapes. Not found: what was
compressed, encrypted, cut into pieces, or encoded in another way. A tool that does that to a secret that it was given
has it: masking keeps accidents in, and grants keep secrets from tools.

Whole texts are masked, not streams of chunks: a secret could be cut between two. A plaintext of fewer than
`MIN_SUBSTRING_CHARS` is masked only where it stands as a word of its own, since "1234" would otherwise be found in
every number; shorter ones than `MIN_SECRET_CHARS` the vault doesn't hold.

Who can have a text masked can ask whether a guess is right, and that as fast as text is masked. So nothing that can be
guessed is given to a masker (`policy.strength`): it would not be hidden by it, but found.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.policy.redaction.encodings import (
    MAX_LAYERS,
    Layer,
    base32_forms,
    base64_alone,
    base64_forms,
    decoded,
    hex_forms,
    readings,
    shuffled_forms,
)
from mcp_bridge.policy.redaction.hex_digits import HexDigits
from mcp_bridge.policy.redaction.literals import GRAM, Literals
from mcp_bridge.policy.secrets.vault_uris import find_references, secret_uri

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

MIN_SECRET_CHARS = GRAM
"""Shorter texts aren't accepted as secrets: they can be guessed, and masking them would corrupt other text."""

MIN_SUBSTRING_CHARS = 8

_MIN_READING_CHARS = 6
"""As MIN_SECRET_CHARS, for a secret's text after decoding escapes that it happens to contain."""

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]")


class _Form(NamedTuple):
    """How a form of a secret is recognised.

    Attributes:
        secret_id: The secret's id.
        word: It is recognised only as a separate word.
        before: As many characters before belong to it, if they are base64.
        after: As many characters after belong to it, if they are base64.
    """

    secret_id: str
    word: bool
    before: int = 0
    after: int = 0


class _Search(NamedTuple):
    """Finds the forms of secrets."""

    literals: Literals[_Form]
    hex_digits: HexDigits[str]


@lru_cache(maxsize=16)
def _search_for(plaintexts: tuple[tuple[str, str], ...]) -> _Search:
    """A search for secrets, by id and plaintext. It takes most of a millisecond a secret to prepare."""
    forms: dict[str, _Form] = {}
    digits: dict[str, str] = {}
    for secret_id, plaintext in plaintexts:
        for text, form in _forms(secret_id, plaintext):
            forms.setdefault(text, form)
        if len(plaintext.strip()) >= MIN_SUBSTRING_CHARS:
            for text in hex_forms(plaintext.strip()):
                digits.setdefault(text, secret_id)
    return _Search(Literals(forms), HexDigits(digits))


class Masker:
    """Masks a fixed set of secrets. The work is linear in the text, whatever the number of secrets.

    Args:
        plaintexts: The secrets by id.
        ids: The ids of all secrets, available or not: text inside of their references is not masked.
    """

    def __init__(self, plaintexts: Mapping[str, str], ids: Collection[str] = ()) -> None:
        self._ids = frozenset(ids) | frozenset(plaintexts)
        self._search = _search_for(tuple(sorted(plaintexts.items()))) if plaintexts else None

    def mask(self, text: str) -> str:
        """The text with references for secrets; the same object if it contains none."""
        spans = self._found(text)
        if not spans:
            return text
        pieces: list[str] = []
        done = 0
        for start, end, secret_id in self._outside_references(text, spans):
            pieces += (text[done:start], secret_uri(secret_id))
            done = end
        return "".join((*pieces, text[done:])) if pieces else text

    def _found(self, text: str) -> list[tuple[int, int, str]]:
        """The spans of secrets, in order. Overlapping ones are merged, and named for the longest."""
        if self._search is None:
            return []
        layers = [Layer(text)]
        spans: list[tuple[int, int, str]] = []
        while True:
            spans.extend(self._in_layer(self._search, layers))
            layer = decoded(layers[-1].text) if len(layers) <= MAX_LAYERS else None
            if layer is None:
                return _merged(spans)
            layers.append(layer)

    def _in_layer(self, search: _Search, layers: list[Layer]) -> Iterator[tuple[int, int, str]]:
        text, top = layers[-1].text, len(layers) - 1
        for start, end, secret_id in search.hex_digits.found(text):
            yield _start_below(layers, top, start), _end_below(layers, top, end), secret_id
        for position, place, literal, form in search.literals.candidates(text):
            start = position - place
            end = start + len(literal)
            if start >= 0 and text.startswith(literal, start):
                if form.word and (_is_word(text[start - 1 : start]) or _is_word(text[end : end + 1])):
                    continue
                for _ in range(form.before):
                    start -= start > 0 and _BASE64.match(text, start - 1) is not None
                for _ in range(form.after):
                    end += _BASE64.match(text, end) is not None
                yield _start_below(layers, top, start), _end_below(layers, top, end), form.secret_id
            elif top and not form.word:
                torn = _torn(layers, position, place, literal)
                if torn is not None:
                    yield *torn, form.secret_id

    def _outside_references(self, text: str, spans: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
        """The spans without their parts inside of references, so that masking is idempotent."""
        references = ((each.start, each.end) for each in find_references(text, self._ids) if each.known)
        reference = next(references, None)
        for start, end, secret_id in spans:
            at = start
            while reference is not None and reference[0] < end:
                if at < reference[0]:
                    yield at, reference[0], secret_id
                at = max(at, reference[1])
                if reference[1] > end:
                    break
                reference = next(references, None)
            if at < end:
                yield at, end, secret_id


def _forms(secret_id: str, plaintext: str) -> Iterator[tuple[str, _Form]]:
    # A newline at the end of a key's file is rarely part of the key where it is used.
    plaintext = plaintext.strip()
    short = len(plaintext) < MIN_SUBSTRING_CHARS
    for text in readings(plaintext):
        if len(text) >= MIN_SECRET_CHARS:
            yield text, _Form(secret_id, word=short or len(text) < _MIN_READING_CHARS)
    if short:
        digits = hex_forms(plaintext)
        for text in digits | {each.upper() for each in digits} | base64_alone(plaintext):
            yield text, _Form(secret_id, word=True)
    else:
        for text in shuffled_forms(plaintext):
            yield text, _Form(secret_id, word=False)
    for form in base64_forms(plaintext) | base32_forms(plaintext):
        if len(form.text) >= MIN_SUBSTRING_CHARS:
            yield form.text, _Form(secret_id, word=False, before=form.before, after=form.after)


def _is_word(char: str) -> bool:
    return char == "_" or char.isalnum()


def _merged(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    merged: list[tuple[int, int, str]] = []
    longest = 0
    for start, end, secret_id in sorted(spans, key=lambda each: (each[0], -each[1], each[2])):
        if merged and start < merged[-1][1]:
            first, last, name = merged[-1]
            if end - start > longest:
                longest, name = end - start, secret_id
            merged[-1] = first, max(last, end), name
        else:
            longest = end - start
            merged.append((start, end, secret_id))
    return merged


def _start_below(layers: list[Layer], level: int, index: int, to: int = 0) -> int:
    for layer in range(level, to, -1):
        index = layers[layer].start_below(index)
    return index


def _end_below(layers: list[Layer], level: int, index: int, to: int = 0) -> int:
    for layer in range(level, to, -1):
        index = layers[layer].end_below(index)
    return index


def _torn(layers: list[Layer], position: int, place: int, literal: str) -> tuple[int, int] | None:
    r"""The span of a text whose middle is in the top layer, and whose ends are unchanged in a layer below.

    What stands before or after a text may make an escape with its first or last characters: in `100%ab\"cd`, where
    `ab"cd` is escaped for JSON, `%ab` is taken for an escape too.
    """
    top = len(layers) - 1
    text = layers[top].text
    start = place
    while start and position - place + start > 0 and text[position - place + start - 1] == literal[start - 1]:
        start -= 1
    end = place + GRAM
    while end < len(literal) and text.startswith(literal[end], position - place + end):
        end += 1
    # An escape may consist of the character it stands for: so shorter matches are tried, too.
    lefts = (_left(layers, position - place + cut, literal[:cut]) for cut in range(start, min(start + 3, place + 1)))
    rights = (
        _right(layers, position - place + cut, literal[cut:]) for cut in range(end, max(end - 3, place + GRAM - 1), -1)
    )
    left = next((each for each in lefts if each is not None), None)
    right = next((each for each in rights if each is not None), None)
    return None if left is None or right is None else (left, right)


def _left(layers: list[Layer], index: int, head: str) -> int | None:
    """The start of a head that ends before a character of the top layer and is complete in a layer below."""
    for level in range(len(layers) - 1, -1, -1):
        start = _start_below(layers, len(layers) - 1, index, level) - len(head)
        if start >= 0 and layers[level].text.startswith(head, start):
            return _start_below(layers, level, start)
    return None


def _right(layers: list[Layer], index: int, tail: str) -> int | None:
    """The end of a tail that begins at a character of the top layer and is complete in a layer below."""
    for level in range(len(layers) - 1, -1, -1):
        start = _start_below(layers, len(layers) - 1, index, level)
        if layers[level].text.startswith(tail, start):
            return _end_below(layers, level, start + len(tail))
    return None
