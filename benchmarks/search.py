"""The tool search beside plain BM25, and with an embedding model: what it finds, processor time, and memory."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import sqlite3
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bridge import CACHE
from benchmarks.measure import Row
from benchmarks.tokens import THINGS, about_thing
from benchmarks.worker import worker
from mcp_bridge.downstream.catalog.tools import listing_from_wire
from mcp_bridge.downstream.search.index import InvertedIndex
from mcp_bridge.downstream.search.search import Hit, SearchIndex
from tests.support import tool_search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.bridge import Bench
    from mcp_bridge.downstream.catalog.tools import ToolInfo

SIZES = {1_000: 10.0, 10_000: 100.0}
"""Numbers of tools, and the most milliseconds of a query over so many."""

PAGE = 4096


OF_OTHERS = {
    "other_tools": {"other servers": "other_queries.tsv", "other servers, last": "other_last_queries.tsv"},
    "further_tools": {"further servers": "further_queries.tsv"},
    "untaught_tools": {"untaught servers": "untaught_queries.tsv"},
}
"""By lists of tools the queries for them, by what they are called."""


class PlainBM25:
    """SQLite's FTS5: stems, any word of the query, one row a tool, no weights."""

    def __init__(self, tools: Sequence[ToolInfo]) -> None:
        self._tools = tools
        self._db = sqlite3.connect(":memory:")
        self._db.execute("CREATE VIRTUAL TABLE tool USING fts5(text, tokenize = 'porter unicode61')")
        rows = ((number, self._text(tool)) for number, tool in enumerate(tools))
        self._db.executemany("INSERT INTO tool (rowid, text) VALUES (?, ?)", rows)

    @staticmethod
    def _text(tool: ToolInfo) -> str:
        text = f"{tool.server} {tool.name} {tool.description} {' '.join(tool.input_schema.get('properties') or {})}"
        return re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", text)

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """The best tools, best first."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"[^\W_]+", query))
        statement = "SELECT rowid, rank FROM tool WHERE tool MATCH ? ORDER BY rank LIMIT ?"
        rows = self._db.execute(statement, (words, limit)) if words else ()
        return [Hit(self._tools[number], -rank) for number, rank in rows]


async def search(bench: Bench) -> list[Row]:
    """What is found, and what it takes."""
    tools, queries, sets = tool_search.tools(), tool_search.queries(), tool_search.sets()
    ours, peer = SearchIndex(tools), PlainBM25(tools)
    rows: list[Row] = []
    by_words = {}
    judged = [(which, chosen, ours, peer) for which, chosen in sets.items()]
    for listed, files in OF_OTHERS.items():
        others = tool_search.tools(listed)
        of_others, plain_of_others = SearchIndex(others), PlainBM25(others)
        judged += [(which, tool_search.queries(file), of_others, plain_of_others) for which, file in files.items()]
    for which, chosen, index, plain_index in judged:
        found, plain = tool_search.found(index.search, chosen), tool_search.found(plain_index.search, chosen)
        by_words[which] = found
        for kind, (good, total) in sorted(found.items()):
            least = 90 if kind == "all" else 80
            share, other = 100 * good / total, 100 * plain[kind][0] / total
            what = f"search: a right tool in the top {tool_search.TOP}, {kind}, {which}"
            note = f"{total} queries, {len(index)} tools of real servers"
            rows.append(Row(what, share, other, "%", "plain BM25", f"≥ {least}", share >= least, note))
    asked = [query.text for query in queries[: 60 if bench.quick else None]]
    for size, most in SIZES.items():
        rows += _cost(many(tools, size), asked, most)
    return rows + await _with_model(bench, by_words, len(tools))


async def _with_model(bench: Bench, by_words: dict[str, dict[str, tuple[int, int]]], tools: int) -> list[Row]:
    """The same with the model of `tests.support.tool_search.with_model`, and what that takes besides."""
    python = CACHE / "litellm/bin/python"
    if not python.exists():
        raise RuntimeError(f"there is no {python}: make setup-bench makes it")
    rows = []
    async with worker("meaning", bench, python=str(python)) as with_model:
        # Its first answer is by a process that has nothing of the model yet.
        costs = {size: await with_model.ask(size=size) for size in SIZES}
        for which, found in (await with_model.ask()).items():
            for kind, (good, total) in sorted(found.items()):
                least, (other, _) = 95 if kind == "all" else 80, by_words[which][kind]
                what = f"search: with a model, a right tool in the top {tool_search.TOP}, {kind}, {which}"
                share = 100 * good / total
                note = f"{total} queries, {tools} tools of real servers"
                rows.append(Row(what, share, 100 * other / total, "%", "without", f"≥ {least}", share >= least, note))
        for size, cost in costs.items():
            over = f"over {size:,} tools"
            note = f"processor time; p99 {1000 * cost['slow_query']:.1f} ms"
            rows += [
                Row(f"search: a query's meaning {over}", 1000 * cost["query"], None, "ms", note=note),
                Row(f"search: vectors {over}", cost["vectors_seconds"], None, "s", note="once: they are kept"),
                Row(f"search: memory of vectors {over}", cost["vectors_bytes"] / 2**20, None, "MiB"),
            ]
    first = costs[min(SIZES)]
    note = f"processor time; {first['model_bytes'] / 2**20:.0f} MiB of memory"
    return [*rows, Row("search: to load the model", first["load_seconds"], None, "s", note=note)]


def many(tools: Sequence[ToolInfo], size: int) -> list[ToolInfo]:
    """The tools, and copies of them about other things, so many in all."""
    out = list(tools)
    for copy, thing in enumerate(THINGS):
        for tool in tools:
            if len(out) == size:
                return out
            wire = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
            other: dict[str, Any] = json.loads(about_thing(json.dumps(wire), thing, copy))
            server = f"{tool.server}-{thing}"
            [made] = listing_from_wire(server, server.replace("-", "_"), [other]).tools
            out.append(dataclasses.replace(made, name=f"{made.name}_{thing}"))
    raise RuntimeError(f"there are {len(out)} tools, not {size}")


def _cost(tools: Sequence[ToolInfo], queries: Sequence[str], most: float) -> list[Row]:
    """Processor time of a query and of the index, and its memory."""
    before = resident()
    started = time.process_time()
    ours = SearchIndex(tools)
    built = time.process_time() - started
    memory = resident() - before
    data = ours.inverted.to_bytes("key")
    started = time.process_time()
    InvertedIndex.from_bytes(data, "key")
    read = time.process_time() - started
    started = time.process_time()
    peer = PlainBM25(tools)
    peer_built = time.process_time() - started
    taken: dict[str, list[float]] = {"ours": [], "peer": []}
    ours.search("warm up")
    for query in queries:
        for name, find in (("ours", ours.search), ("peer", peer.search)):
            taken[name].append(_milliseconds(find, query))
    median, other = statistics.median(taken["ours"]), statistics.median(taken["peer"])
    slowest = sorted(taken["ours"])[int(0.99 * len(queries))]
    what, against = f"over {len(tools):,} tools", "plain BM25 (SQLite FTS5)"
    note = f"processor time; p99 {slowest:.1f} ms of {len(queries)} queries"
    return [
        Row(f"search: a query {what}", median, other, "ms", against, f"≤ {most:g} ms", slowest <= most, note),
        Row(f"search: to index {what}", built, peer_built, "s", against, note=f"read from disk: {1000 * read:.0f} ms"),
        Row(f"search: memory {what}", memory / 2**20, None, "MiB", note=f"on disk {len(data) / 2**20:.1f} MiB"),
    ]


def _milliseconds(find: Callable[[str], object], query: str) -> float:
    started = time.process_time()
    find(query)
    return (time.process_time() - started) * 1000


def resident() -> int:
    """The memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
