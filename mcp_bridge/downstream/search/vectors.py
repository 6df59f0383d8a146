"""Search by meaning: tools and queries as vectors of an embedding model, and two rankings fused into one.

The fusion is a convex combination of normalised scores, which tells a clear hit from one that is merely first:
S. Bruch, S. Gai, A. Ingber: An Analysis of Fusion Functions for Hybrid Retrieval (TOIS 2023).
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from array import array
from typing import TYPE_CHECKING, Any, Protocol

from mcp_bridge.downstream.search.documents import meaning_text
from mcp_bridge.errors import BridgeError, extra_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo

FUSION_CANDIDATES = 50
"""The best so many of either ranking are fused."""

# What the nearest tool's meaning counts beside the best one's words, which are the surer sign.
_MEANING = 0.25
# A tool is near if its cosine is so many standard deviations above the mean of all; with few tools, fewer.
_ABOVE_MEAN = 1.0
_MANY_TOOLS = 100
# The least difference of cosines that says something.
_SPAN = 0.05

_MAGIC = b"mcp-bridge tool vectors\n"
_FORMAT = 1
_DIGEST_BYTES = 32
# Vectors of tools that are gone are kept, up to so many in all: other folders may have them.
_KEPT = 20_000
_MAX_DIMENSIONS = 8192


class Embedder(Protocol):
    """A model that makes vectors of texts.

    Attributes:
        name: Tells models apart whose vectors can't be compared.
    """

    name: str

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text.

        Raises:
            BridgeError: The model can't be had, or has failed.
        """


class InvalidVectorsError(ValueError):
    """Stored bytes are no vectors of this model."""


def text_key(tool: ToolInfo) -> str:
    """A hash of the text that a tool's vector is made of."""
    return hashlib.sha256(meaning_text(tool).encode("utf-8", "replace")).hexdigest()


def unit_vector(values: Sequence[float]) -> array[float]:
    """A vector of length 1 in the same direction.

    Raises:
        BridgeError: `model_bad_answer`: it isn't one.
    """
    try:
        length = math.sqrt(sum(value * value for value in values))
    except OverflowError:
        # Of integers of hundreds of digits.
        length = math.inf
    if not 0 < length < math.inf or len(values) > _MAX_DIMENSIONS:
        raise BridgeError("model_bad_answer", "The embedding model answered with what is no vector.")
    return array("f", [value / length for value in values])


class VectorIndex:
    """The vectors of tools.

    Args:
        rows: A vector of length 1 for each tool, in the tools' order.

    Raises:
        BridgeError: `model_bad_answer`: they differ in length; `model_unavailable`: numpy isn't installed.
    """

    def __init__(self, rows: Sequence[array[float]]) -> None:
        if len({len(row) for row in rows}) > 1:
            raise BridgeError("model_bad_answer", "The embedding model's vectors differ in length.")
        try:
            import numpy as np  # noqa: PLC0415 - an extra
        except ImportError:
            raise BridgeError(
                "model_unavailable",
                "Search by meaning needs numpy.",
                hint=extra_hint("embeddings"),
            ) from None
        self._matrix: Any = np.frombuffer(b"".join(row.tobytes() for row in rows), dtype=np.float32)
        self._matrix = self._matrix.reshape(len(rows), -1)

    def nearest(self, query: array[float], allowed: Callable[[int], bool]) -> list[tuple[int, float]]:
        """The numbers of the tools near to a query, each with its nearness, best first; at most `FUSION_CANDIDATES`.

        A nearness is 1 for the nearest tool, if it is clearly so, and 0 for tools that are as near as most.

        Args:
            query: A vector of length 1.
            allowed: Returns whether to include a tool.

        Raises:
            BridgeError: `model_bad_answer`: the vector's length is another.
        """
        if len(self._matrix) == 0:
            return []
        if self._matrix.shape[1] != len(query):
            raise BridgeError("model_bad_answer", "The embedding model's vectors differ in length.")
        scores = self._matrix @ query
        common = float(scores.mean() + _ABOVE_MEAN * min(1.0, len(scores) / _MANY_TOOLS) * scores.std())
        found: list[tuple[int, float]] = []
        span = _SPAN
        for number in (-scores).argsort(kind="stable").tolist():
            above = float(scores[number]) - common
            if len(found) == FUSION_CANDIDATES or (found and above <= 0):
                break
            if allowed(number):
                span = span if found else max(span, above)
                found.append((number, max(0.0, above / span)))
        return found


def fused(words: Sequence[tuple[int, float]], meaning: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Two rankings of tools' numbers as one, best first, each number with its score.

    Args:
        words: The tools that words have found, each with its score, best first.
        meaning: Those that are near in meaning, each with its nearness (`VectorIndex.nearest`).
    """
    best = (words[0][1] if words else 0.0) or 1.0
    scores = {number: score / best for number, score in words}
    for number, nearness in meaning:
        scores[number] = scores.get(number, 0.0) + _MEANING * nearness
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def vectors_to_bytes(model: str, vectors: Mapping[str, array[float]]) -> bytes:
    """Vectors of one model by their texts' keys as bytes, the last `_KEPT` of them."""
    kept = list(vectors.items())[-_KEPT:]
    header = {
        "format": _FORMAT,
        "model": model,
        "byteorder": sys.byteorder,
        "dimensions": len(kept[0][1]) if kept else 0,
        "keys": [key for key, _ in kept],
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    body = len(head).to_bytes(8, "big") + head + b"".join(vector.tobytes() for _, vector in kept)
    return _MAGIC + hashlib.sha256(body).digest() + body


def vectors_from_bytes(data: bytes, model: str) -> dict[str, array[float]]:
    """The vectors that `vectors_to_bytes` gave for a model.

    Raises:
        InvalidVectorsError: The bytes, from a file that may be damaged or somebody else's, aren't those.
    """
    begin = len(_MAGIC) + _DIGEST_BYTES
    body = data[begin:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : begin]:
        raise InvalidVectorsError("no vectors, or damaged ones")
    end = 8 + int.from_bytes(body[:8], "big")
    try:
        header = json.loads(body[8:end])
        expected = {"format": _FORMAT, "model": model, "byteorder": sys.byteorder}
        if any(header[name] != value for name, value in expected.items()):
            raise InvalidVectorsError("vectors of another model, or another version's")
        size, keys = header["dimensions"], header["keys"]
        values = array("f")
        values.frombytes(body[end:])
        if type(size) is not int or not 0 <= size <= _MAX_DIMENSIONS or len(values) != size * len(keys):
            raise InvalidVectorsError("vectors that don't fit")
        if not all(isinstance(key, str) for key in keys) or not all(map(math.isfinite, values)):
            raise InvalidVectorsError("vectors with impossible values")
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise InvalidVectorsError(str(error)) from None
    return {key: values[place * size : (place + 1) * size] for place, key in enumerate(keys)}
