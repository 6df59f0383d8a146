"""Ranks tools by what they mean, while the embedding model can be had; otherwise, a search works without it."""

from __future__ import annotations

import hashlib
import logging
import time
from array import array
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.downstream.search.documents import meaning_text
from mcp_bridge.downstream.search.vectors import (
    InvalidVectorsError,
    VectorIndex,
    text_key,
    unit_vector,
    vectors_from_bytes,
    vectors_to_bytes,
)
from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import on_blocking_thread, on_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.downstream.search.index_cache import IndexStore
    from mcp_bridge.downstream.search.vectors import Embedder

logger = logging.getLogger(__name__)

# How long a search waits for the vectors of tools that have none; they are made in the background.
_WAIT_SECONDS = 10.0

# After a failure the model is left alone for so long: twice as long after each further one, up to the most.
_PAUSE_SECONDS = 2.0
_MOST_PAUSE_SECONDS = 60.0

# More aren't counted: the pause is the longest by then.
_MOST_FAILURES = 10

_QUERY_CHARS = 1_000
_NOTICE_CHARS = 300


class MeaningSearch:
    """The vectors of tools, made once by an embedding model and kept on disk.

    Args:
        embedder: The model.
        store: Where vectors are kept; None keeps them in memory alone.
        start_soon: Starts a task in the background.
    """

    def __init__(self, embedder: Embedder, store: IndexStore | None, start_soon: Callable[..., object]) -> None:
        self._embedder = embedder
        self._store = store
        self._start_soon = start_soon
        self._key = hashlib.sha256(embedder.name.encode("utf-8", "replace")).hexdigest()
        self._known: dict[str, array[float]] | None = None
        self._index: VectorIndex | None = None
        self._of: Sequence[ToolInfo] | None = None
        self._making: anyio.Event | None = None
        self._failure: BridgeError | None = None
        self._failures = 0
        self._paused_until = 0.0

    async def ranking(
        self, query: str, tools: Sequence[ToolInfo], allowed: Callable[[int], bool]
    ) -> tuple[list[tuple[int, float]], str | None]:
        """The tools that are near to a query.

        Args:
            query: The query; its first 1,000 characters count.
            tools: All tools: the same object as long as they are the same.
            allowed: Returns whether to include the tool of a number.

        Returns:
            Their numbers, best first, each with its nearness, and a notice if the model had no part.
        """
        if time.monotonic() < self._paused_until and self._failure is not None:
            return [], _notice(self._failure)
        if self._of is not tools:
            await self._made(tools)
        if self._of is not tools or self._index is None:
            return [], _notice(self._failure) if self._failure else "not searched by meaning: tools are being read"
        index = self._index
        try:
            [vector] = await self._embedder.embed([query[:_QUERY_CHARS]])
            # Nothing but zeros: the query has no word that the model knows.
            near = await on_thread(index.nearest, unit_vector(vector), allowed) if any(vector) else []
        except BridgeError as error:
            self._pause(error)
            return [], _notice(error)
        self._failures = 0
        return near, None

    async def _made(self, tools: Sequence[ToolInfo]) -> None:
        """Wait a while for the vectors of tools, which one task at a time makes."""
        if self._making is None:
            self._making = anyio.Event()
            self._failure = None
            try:
                self._start_soon(self._make, tools, self._making)
            except BridgeError as error:
                self._making = None
                self._pause(error)
                return
        making = self._making
        with anyio.move_on_after(_WAIT_SECONDS):
            await making.wait()

    async def _make(self, tools: Sequence[ToolInfo], done: anyio.Event) -> None:
        try:
            known = await self._load()
            keys = await on_thread(_keys, tools)
            missing = {key: tool for key, tool in zip(keys, tools, strict=True) if key not in known}
            if missing:
                vectors = await self._embedder.embed([meaning_text(tool) for tool in missing.values()])
                if len(vectors) != len(missing):
                    raise BridgeError("model_bad_answer", "The embedding model left texts out.")
                rows = await on_thread(_unit_vectors, vectors, known.values())
                known |= dict(zip(missing, rows, strict=True))
            self._index = await on_thread(VectorIndex, [known[key] for key in keys])
            self._of = tools
            if missing and self._store is not None:
                data = await on_thread(vectors_to_bytes, self._embedder.name, known)
                await on_blocking_thread(self._store.save, self._key, data)
        except BridgeError as error:
            self._pause(error)
        finally:
            self._making = None
            done.set()

    async def _load(self) -> dict[str, array[float]]:
        """The vectors that are known, from the disk at first."""
        if self._known is None:
            self._known = {}
            data = None if self._store is None else await on_blocking_thread(self._store.load, self._key)
            if data is not None and self._store is not None:
                try:
                    self._known = await on_thread(vectors_from_bytes, data, self._embedder.name)
                except InvalidVectorsError:
                    await on_blocking_thread(self._store.discard, self._key)
        return self._known

    def _pause(self, error: BridgeError) -> None:
        logger.warning("tools aren't searched by meaning: %s", error)
        self._failure = error
        self._paused_until = time.monotonic() + min(_PAUSE_SECONDS * 2**self._failures, _MOST_PAUSE_SECONDS)
        self._failures = min(self._failures + 1, _MOST_FAILURES)


def _keys(tools: Sequence[ToolInfo]) -> list[str]:
    return [text_key(tool) for tool in tools]


def _unit_vectors(vectors: Sequence[Sequence[float]], known: Iterable[Sequence[float]]) -> list[array[float]]:
    """The vectors with length 1; nothing but zeros stays so, of a text that has no word that the model knows.

    Raises:
        BridgeError: `model_bad_answer`: one isn't a vector, or it and all others are nothing but zeros.
    """
    some = any(map(any, vectors)) or any(map(any, known))
    return [unit_vector(vector) if any(vector) or not some else array("f", vector) for vector in vectors]


def _notice(error: BridgeError) -> str:
    return f"not searched by meaning: {error.message[:_NOTICE_CHARS]}"
