"""An inverted index of tools, scored by BM25F: each field has its own weight and its own normalisation by length.

S. Robertson, H. Zaragoza: The Probabilistic Relevance Framework: BM25 and Beyond (2009), section 3.6.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mcp_bridge.downstream.search.documents import FIELDS, fields
from mcp_bridge.downstream.search.word_vectors import word_vectors
from mcp_bridge.downstream.search.words import joined, split, stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo

# The weight of each field, and how much its length counts (BM25F's b). Names are short and chosen with care; a long
# description has words that many tools have.
_WEIGHTS = {
    "name": 6.0,
    "server": 2.0,
    "summary": 3.0,
    "description": 1.0,
    "parameters": 2.2,
    "parameter_descriptions": 0.8,
    "values": 0.8,
}
_LENGTH = {
    "name": 0.3,
    "server": 0.0,
    "summary": 0.4,
    "description": 0.75,
    "parameters": 0.6,
    "parameter_descriptions": 0.75,
    "values": 0.75,
}
# BM25's k1: how soon more occurrences of a word count no more.
_SATURATION = 1.6
MOST_IMPACT = _SATURATION + 1
"""What an occurrence is worth at most (`Postings`)."""
CLEAR_IMPACT = 0.6 * MOST_IMPACT
"""What it is worth at least where a tool has a term clearly: in its name, or in a short summary."""

_MAGIC = b"mcp-bridge tool index\n"
_FORMAT = 4
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Postings:
    """The tools that have a term, ascending, and for each what an occurrence is worth: 0 to `MOST_IMPACT`."""

    tools: Sequence[int]
    impacts: Sequence[float]


class InvalidIndexError(ValueError):
    """Stored bytes are no index of these tools."""


class InvertedIndex:
    """Terms (stems) and the tools that have them, and the words as they were written. Immutable.

    Attributes:
        size: The number of tools.
        surfaces: All words as they are written, in lower case and sorted.
        vectors: Each tool's vector (`WordVectors.of_tools`), in their order.
    """

    def __init__(self, size: int, surfaces: list[str], postings: dict[str, Postings], vectors: Sequence[bytes]) -> None:
        self.size = size
        self.surfaces = surfaces
        self.vectors = vectors
        self._postings = postings
        self._clear: dict[str, Postings] = {}

    @classmethod
    def of(cls, tools: Sequence[ToolInfo]) -> Self:
        """Index tools; they are numbered in their order."""
        counted: list[dict[str, Counter[str]]] = []
        lengths: Counter[str] = Counter()
        surfaces: set[str] = set()
        for tool in tools:
            by_field: dict[str, Counter[str]] = {}
            for field, text in fields(tool).items():
                words = split(text)
                lengths[field] += len(words)
                if field in {"name", "parameters", "server"}:
                    words += joined(text)
                surfaces.update(words)
                by_field[field] = Counter(map(stem, words))
            counted.append(by_field)
        means = {field: (lengths[field] / len(tools) if tools else 0.0) or 1.0 for field in FIELDS}
        found: dict[str, tuple[array[int], array[float]]] = {}
        for number, by_field in enumerate(counted):
            weighted: Counter[str] = Counter()
            for field, counts in by_field.items():
                factor = _WEIGHTS[field] / (1 + _LENGTH[field] * (counts.total() / means[field] - 1))
                for term, count in counts.items():
                    weighted[term] += count * factor  # type: ignore[assignment]  # a Counter of floats
            for term, weight in weighted.items():
                numbers, impacts = found.setdefault(term, (array("I"), array("f")))
                numbers.append(number)
                impacts.append(weight * MOST_IMPACT / (_SATURATION + weight))
        postings = {term: Postings(*rows) for term, rows in found.items()}
        return cls(len(tools), sorted(surfaces), postings, word_vectors().of_tools(counted))

    def postings(self, term: str) -> Postings | None:
        """The tools that have a term, or None."""
        return self._postings.get(term)

    def clear_postings(self, term: str) -> Postings:
        """The tools that have a term clearly."""
        if (known := self._clear.get(term)) is None:
            row = self._postings.get(term, Postings((), ()))
            clear = [
                (number, impact)
                for number, impact in zip(row.tools, row.impacts, strict=True)
                if impact >= CLEAR_IMPACT
            ]
            known = Postings(array("I", (number for number, _ in clear)), array("f", (impact for _, impact in clear)))
            self._clear[term] = known
        return known

    def rarity(self, count: int) -> float:
        """BM25's inverse document frequency of a term that `count` tools have; 0 for none."""
        return math.log(1 + (self.size - count + 0.5) / (count + 0.5)) if count else 0.0

    def has_word(self, word: str) -> bool:
        """Whether a tool has exactly this word."""
        place = bisect_left(self.surfaces, word)
        return place < len(self.surfaces) and self.surfaces[place] == word

    def beginning_with(self, prefix: str) -> Iterator[str]:
        """The words that begin with a prefix, sorted."""
        place = bisect_left(self.surfaces, prefix)
        while place < len(self.surfaces) and self.surfaces[place].startswith(prefix):
            yield self.surfaces[place]
            place += 1

    def to_bytes(self, key: str) -> bytes:
        """The index as bytes, which `from_bytes` reads with the same key."""
        terms = sorted(self._postings)
        header = {
            "format": _FORMAT,
            "key": key,
            "vectors": word_vectors().key,
            "byteorder": sys.byteorder,
            "size": self.size,
            "surfaces": self.surfaces,
            "terms": terms,
            "counts": [len(self._postings[term].tools) for term in terms],
        }
        numbers, impacts = array("I"), array("f")
        for term in terms:
            numbers.extend(self._postings[term].tools)
            impacts.extend(self._postings[term].impacts)
        head = json.dumps(header, separators=(",", ":")).encode()
        empty = bytes(word_vectors().dimensions)
        vectors = b"".join(vector or empty for vector in self.vectors)
        body = len(head).to_bytes(8, "big") + head + numbers.tobytes() + impacts.tobytes() + vectors
        return _MAGIC + hashlib.sha256(body).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """The index that `to_bytes` gave.

        Args:
            data: The bytes, from a file that may be damaged or somebody else's.
            key: The key (`tools_key`) that it must have been stored with.

        Raises:
            InvalidIndexError: They aren't an index, or one of other tools, of another version or of another machine.
        """
        begin = len(_MAGIC) + _DIGEST_BYTES
        body = memoryview(data)[begin:]
        if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : begin]:
            raise InvalidIndexError("no index, or a damaged one")
        end = 8 + int.from_bytes(body[:8], "big")
        try:
            header = json.loads(bytes(body[8:end]))
            return cls._decoded(header, body[end:], key)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise InvalidIndexError(str(error)) from None

    @classmethod
    def _decoded(cls, header: dict[str, Any], arrays: memoryview, key: str) -> Self:
        known = word_vectors()
        expected = {"format": _FORMAT, "key": key, "vectors": known.key, "byteorder": sys.byteorder}
        if any(header[name] != value for name, value in expected.items()):
            raise InvalidIndexError("an index of other tools, or another version's")
        size, surfaces, terms, counts = (header[name] for name in ("size", "surfaces", "terms", "counts"))
        texts = isinstance(surfaces, list) and isinstance(terms, list) and isinstance(counts, list)
        if not (texts and all(isinstance(text, str) for text in [*surfaces, *terms]) and len(terms) == len(counts)):
            raise InvalidIndexError("an index without its terms")
        if type(size) is not int or any(type(count) is not int or not 0 < count <= size for count in counts):
            raise InvalidIndexError("an index with impossible counts")
        numbers, impacts = array("I"), array("f")
        middle = sum(counts) * numbers.itemsize
        end = middle + sum(counts) * impacts.itemsize
        numbers.frombytes(arrays[:middle])
        impacts.frombytes(arrays[middle:end])
        vectors = bytes(arrays[end:])
        fit = len(impacts) == len(numbers) == sum(counts) and len(vectors) == size * known.dimensions
        if not fit or max(numbers, default=-1) >= size:
            raise InvalidIndexError("an index whose tables don't fit")
        if not all(map(math.isfinite, impacts)) or surfaces != sorted(surfaces):
            raise InvalidIndexError("an index with impossible values")
        postings, place = {}, 0
        for term, count in zip(terms, counts, strict=True):
            postings[term] = Postings(numbers[place : place + count], impacts[place : place + count])
            place += count
        step = known.dimensions
        rows = [vectors[start : start + step] for start in range(0, len(vectors), step)]
        return cls(size, surfaces, postings, [row if any(row) else b"" for row in rows])


def tools_key(tools: Iterable[ToolInfo]) -> str:
    """A hash of everything of the tools that is indexed, and of their order."""
    digest = hashlib.sha256()
    for tool in tools:
        row = (tool.server, tool.server_alias, tool.name, tool.title, tool.description, tool.input_schema)
        digest.update(json.dumps(row, separators=(",", ":")).encode())
    return digest.hexdigest()
