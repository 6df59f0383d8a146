"""Words, needs and tools as vectors: a need is near to the tools that meet it, also where they share no word.

The thesaurus and the phrasings were written by hand, and know what is said for what. These vectors were learnt from
queries and the tools that are right for them (`tests/support/tool_search/learning.py`): one for each stem, and a text's
is the sum of its stems', as with a supervised embedding model: B. Bai et al.: Learning to Rank with (a Lot of) Word
Features (Information Retrieval 2010). They began as GloVe's vectors (J. Pennington et al., EMNLP 2014;
public domain, PDDL 1.0), so that words which no query for a tool had are near to others of their kind.

A vector's components are bytes, each 128 more than it is worth. The lanes of one large integer hold a component of all
tools, or all components of a word: so the interpreter adds and multiplies many at once, and numpy isn't needed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sys
from array import array
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WORDS_OF_FIELD = {
    "name": 8,
    "server": 4,
    "summary": 32,
    "description": 60,
    "parameters": 30,
    "parameter_descriptions": 40,
    "values": 20,
}
"""So many different stems of each field (`documents.FIELDS`) are in a tool's vector: the first."""

# What is added to a component so that it isn't negative, and the length of the vectors of texts.
_BIAS = 128
_LENGTH = 127
# The type of a lane's number: no sum of components needs more than 32 bits.
_LANE = "I"
_DIGEST_CHARS = 16


class WordVectors:
    """The vectors of stems.

    Args:
        stems: The stems.
        rows: Their components, one stem's after the other's.
        weights: What a stem counts in each of a tool's fields: a small integer.
        key: Tells them from others.
    """

    def __init__(self, stems: Sequence[str], rows: bytes, weights: Mapping[str, int], key: str = "") -> None:
        self.key = key
        self.dimensions = len(rows) // len(stems) if stems else 0
        self._places = {stem: number * self.dimensions for number, stem in enumerate(stems)}
        self._rows = rows
        self._weights = weights

    def __contains__(self, stem: str) -> bool:
        """Whether a stem has a vector."""
        return stem in self._places

    def of_query(self, stems: Iterable[str]) -> bytes:
        """The vector of a query, from its stems; nothing if none is known."""
        return self._vector([(1, stems)], {})

    def of_tools(self, tools: Iterable[Mapping[str, Iterable[str]]]) -> list[bytes]:
        """The vectors of tools, from the stems of each field, in order and each once; nothing for one without any."""
        packed: dict[str, int] = {}
        return [
            self._vector(
                [(self._weights[field], islice(stems, WORDS_OF_FIELD[field])) for field, stems in by_field.items()],
                packed,
            )
            for by_field in tools
        ]

    def _vector(self, parts: Iterable[tuple[int, Iterable[str]]], packed: dict[str, int]) -> bytes:
        total = count = 0
        for weight, stems in parts:
            for stem in stems:
                if stem in self._places:
                    if (lanes := packed.get(stem)) is None:
                        place = self._places[stem]
                        packed[stem] = lanes = _packed(self._rows[place : place + self.dimensions])
                    total += weight * lanes
                    count += weight
        values = [lane - _BIAS * count for lane in _unpacked(total, self.dimensions)]
        length = math.sqrt(sum(value * value for value in values))
        return bytes(round(_LENGTH * value / length) + _BIAS for value in values) if length else b""


class ToolVectors:
    """The vectors of tools, to be compared with a query's.

    Args:
        rows: Each tool's (`WordVectors.of_tools`), in the tools' order.
    """

    def __init__(self, rows: Sequence[bytes]) -> None:
        dimensions = max(map(len, rows), default=0)
        # A tool without a vector gets that of length 0, whose cosine with any is 0.
        filled = [row or bytes([_BIAS]) * dimensions for row in rows]
        self._size = len(rows)
        self._columns = [_packed(column) for column in zip(*filled, strict=True)]
        self._sums = [_BIAS * sum(row) for row in filled]

    def cosines(self, query: bytes) -> list[float]:
        """The cosine of each tool's vector and a query's; none if the query, or every tool, has no vector."""
        if not query or not self._columns:
            return []
        total = sum(value * column for value, column in zip(query, self._columns, strict=True))
        excess = _BIAS * sum(query) - len(query) * _BIAS * _BIAS
        lanes = zip(_unpacked(total, self._size), self._sums, strict=True)
        return [(lane - sum_ - excess) / (_LENGTH * _LENGTH) for lane, sum_ in lanes]


def _packed(values: Iterable[int]) -> int:
    return int.from_bytes(array(_LANE, list(values)).tobytes(), sys.byteorder)


def _unpacked(lanes: int, count: int) -> array[int]:
    values = array(_LANE)
    values.frombytes(lanes.to_bytes(count * values.itemsize, sys.byteorder))
    return values


def to_bytes(stems: Sequence[str], rows: bytes, weights: Mapping[str, int]) -> bytes:
    """Vectors as a file: a line of JSON with weights and the size of the rows; the stems, one a line; the rows."""
    head = json.dumps({"weights": dict(weights), "bytes": len(rows)})
    return "\n".join([head, *stems, ""]).encode() + rows


def from_bytes(data: bytes) -> WordVectors:
    """The vectors that `to_bytes` has written."""
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    middle = len(rest) - head["bytes"]
    key = hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]
    return WordVectors(rest[:middle].decode().split(), rest[middle:], head["weights"], key)


@functools.cache
def word_vectors() -> WordVectors:
    """The vectors that ship with the package; read once."""
    return from_bytes(resources.files(__package__).joinpath("word_vectors.bin").read_bytes())
