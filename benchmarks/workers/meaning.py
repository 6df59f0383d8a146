"""The tool search with a real embedding model, in the environment that has model2vec."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import anyio

from benchmarks.search import many, resident
from benchmarks.workers import work
from mcp_bridge.downstream.search.config import SearchConfig
from mcp_bridge.downstream.search.meaning_search import MeaningSearch
from mcp_bridge.downstream.search.search import SearchIndex, ordered
from mcp_bridge.governance.search_embedder import search_embedder
from tests.support import tool_search
from tests.support.tool_search import with_model


async def _found(folder: str) -> dict[str, Any]:
    """By set of queries and kind: how many find a right tool, and of how many."""
    index, sets = SearchIndex(tool_search.tools()), tool_search.sets()
    texts = {query.text for chosen in sets.values() for query in chosen}
    hits = await with_model.results(index, _embedder(folder), texts)
    return {which: tool_search.found(hits.__getitem__, chosen) for which, chosen in sets.items()}


async def _cost(folder: str, size: int) -> dict[str, Any]:
    """Processor time and memory of the model, of the vectors of so many tools, and of queries over them."""
    tools = ordered(many(tool_search.tools(), size))
    queries = [query.text for query in tool_search.queries()[:200]]
    embedder = _embedder(folder)
    gc.collect()
    before, began = resident(), time.process_time()
    await embedder.embed(["load"])
    loaded, load_seconds = resident(), time.process_time() - began
    taken = []
    async with anyio.create_task_group() as tasks:
        meaning = MeaningSearch(embedder, None, tasks.start_soon)
        began = time.process_time()
        await meaning.ranking("the first one makes the vectors", tools, lambda _: True)
        vectors_seconds = time.process_time() - began
        gc.collect()
        vectors = resident() - loaded
        for query in queries:
            began = time.process_time()
            await meaning.ranking(query, tools, lambda _: True)
            taken.append(time.process_time() - began)
    return {
        "load_seconds": load_seconds,
        "model_bytes": loaded - before,
        "vectors_seconds": vectors_seconds,
        "vectors_bytes": vectors,
        "query": statistics.median(taken),
        "slow_query": sorted(taken)[int(0.99 * len(taken))],
    }


def _embedder(folder: str) -> Any:
    return search_embedder(SearchConfig(embeddings=folder, timeout=60))


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own: this one hasn't loaded anything of it then.
        subprocess.run([sys.executable, "-m", with_model.__name__, folder], check=True)
        size = asked.get("size")
        return anyio.run(_found, folder) if size is None else anyio.run(_cost, folder, size)


if __name__ == "__main__":
    work.serve(answer)
