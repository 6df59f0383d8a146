"""Learn `associations.txt` from queries, where scipy is installed: `python -m tests.support.tool_search.learning`.

A query's words speak for words that tools have. How much is fitted so that right tools win beside what the search says
without it (a softmax over all tools; Adam, weights kept small). Pairs with a small weight are left out.
To fit the rest again would make it know the queries by heart. The same queries give the same file.

With `--without server` or `--without tool` it is told, and nothing is written, what is found for a fifth of the servers (or
tools) while nothing was learnt from them.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from mcp_bridge.downstream.search import associations as module
from mcp_bridge.downstream.search import search as search_module
from mcp_bridge.downstream.search.associations import Associations
from mcp_bridge.downstream.search.documents import fields
from mcp_bridge.downstream.search.index import CLEAR_IMPACT, MOST_IMPACT
from mcp_bridge.downstream.search.query import query_words
from mcp_bridge.downstream.search.search import SearchIndex
from mcp_bridge.downstream.search.words import is_stop_word, split, stem
from tests.support import tool_search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.tool_search import Query

Matrix = Any
"""An array of numpy or scipy: the checks run where neither is installed."""

HEAD = """\
# What a query's words tell of the tools that are meant, as stems: a word of queries, and words of tools that it speaks for,
# or against, in fortieths of what the best tool's words are worth. Learnt: `tests/support/tool_search/learning.py`.
"""
# What the search says beside what is learnt, and how small weights are kept.
_SURE = 4.0
_SMALL = 0.0009
_STEPS, _STEP = 30, 0.1
# The least weight of a pair that is kept, the most pairs of a word, and by how much these make up for the others.
_LEAST = 0.09
_PAIRS = 22
_KEPT = 1.25
_UNIT = 40
# These stop words tell something.
_TELLING = frozenset(["who", "how", "which", "what", "where", "when", "why", "all", "more", "many", "much", "out", "off", "up", "down", "over"])  # fmt: skip
_FOLDS = 5


def training() -> list[Query]:
    """The queries from which is learnt: none that anybody is to be judged by."""
    sets = tool_search.sets()
    known = [query for which in ("tuned to", "drawn", "unseen", "paraphrases") for query in sets[which]]
    return known + tool_search.phrases()


class Data:
    """Queries as matrices: their words, what the search without associations gives each tool, and which are right."""

    def __init__(self, index: SearchIndex, queries: Sequence[Query], parts: dict[str, int]) -> None:
        numbers = {f"{tool.server}.{tool.name}": number for number, tool in enumerate(index.tools)}
        words = np.zeros((len(queries), len(parts)), np.float32)
        self.base = np.zeros((len(queries), len(numbers)), np.float32)
        self.right = np.zeros((len(queries), len(numbers)), np.float32)
        for row, query in enumerate(queries):
            for part in stems(query.text):
                if part in parts:
                    words[row, parts[part]] = 1
            for hit in index.search(query.text, len(index)):
                self.base[row, numbers[f"{hit.tool.server}.{hit.tool.name}"]] = hit.score
            for name in query.right:
                self.right[row, numbers[name]] = 1
        self.words = sparse.csr_matrix(words)


def stems(text: str) -> list[str]:
    """The stems of a query that count."""
    return [stem(word) for word in query_words(text) if word.isalpha() and (word in _TELLING or not is_stop_word(word))]


def places(index: SearchIndex) -> tuple[list[str], Matrix]:
    """The terms that tools have clearly, and by tool and term how clearly."""
    rows = {}
    # No identifier of several words: that is one tool.
    words = {word for tool in index.tools for text in fields(tool).values() for word in split(text) if word.isalpha()}
    for term in sorted(map(stem, words)):
        found = index.inverted.postings(term)
        if found is not None and max(found.impacts) >= CLEAR_IMPACT and not is_stop_word(term):
            rows[term] = found
    matrix = np.zeros((len(index), len(rows)), np.float32)
    for column, found in enumerate(rows.values()):
        for number, impact in zip(found.tools, found.impacts, strict=True):
            if impact >= CLEAR_IMPACT:
                matrix[number, column] = impact / MOST_IMPACT
    return list(rows), matrix


def fitted(data: Data, rows: Matrix, has: Matrix, allowed: Matrix) -> Matrix:
    """The weights of the allowed pairs, by rows of the data: of each word of queries and term of tools."""
    words, base, right = data.words[rows], data.base[rows] * _SURE, data.right[rows]
    of_words, of_tools = words.T.tocsr(), sparse.csr_matrix(has.T)
    weights, mean, square = (np.zeros(allowed.shape, np.float32) for _ in range(3))
    for step in range(1, _STEPS + 1):
        scores = base + (words @ weights) @ of_tools
        likely = np.exp(scores - scores.max(1, keepdims=True))
        of_right = likely * right
        likely /= likely.sum(1, keepdims=True)
        of_right /= np.maximum(of_right.sum(1, keepdims=True), 1e-20)
        gradient = (of_words @ ((likely - of_right) @ has) / 1000 + _SMALL * weights) * allowed
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        weights -= _STEP * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-4)
    return weights


def learnt(data: Data, rows: Matrix, has: Matrix) -> Matrix:
    """The weights that are kept, in units."""
    weights = fitted(data, rows, has, (data.words[rows].T @ data.right[rows]) @ has > 0)
    order = np.argsort(np.argsort(-np.abs(weights), axis=1, kind="stable"), axis=1, kind="stable")
    kept = (np.abs(weights) >= _LEAST) & (order < _PAIRS)
    return np.round(weights * kept * _KEPT * _UNIT / _SURE).astype(int)


def as_mapping(weights: Matrix, parts: Sequence[str], terms: Sequence[str]) -> dict[str, dict[str, int]]:
    """By a word of queries the terms with a weight."""
    return {
        part: {terms[column]: int(row[column]) for column in row.nonzero()[0]}
        for part, row in zip(parts, weights, strict=True)
        if row.any()
    }


def written(weights: dict[str, dict[str, int]]) -> str:
    """The text of the file."""
    lines = []
    for part, row in sorted(weights.items()):
        by_weight: dict[int, list[str]] = {}
        for term, weight in sorted(row.items(), key=lambda item: (-item[1], item[0])):
            by_weight.setdefault(weight, []).append(term)
        lines.append(" ".join([part, *(f"{weight} {' '.join(terms)}" for weight, terms in by_weight.items())]))
    return HEAD + "\n".join(lines) + "\n"


def fold(query: Query, by: str) -> int:
    """The part that a query belongs to, by the tool that it was written for or by that one's server."""
    key = query.tool if by == "tool" else query.tool.partition(".")[0]
    return hashlib.sha256(f"fold {key}".encode()).digest()[0] % _FOLDS


def main() -> None:
    """Write the file, or tell what it is worth for what it doesn't know."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", choices=["server", "tool"])
    without = parser.parse_args().without
    index, queries = SearchIndex(tool_search.tools()), training()
    parts = {
        part: number for number, part in enumerate(sorted({part for query in queries for part in stems(query.text)}))
    }
    kept, search_module.associations = search_module.associations, lambda: Associations({})
    least, search_module._LEAST_SHARE = search_module._LEAST_SHARE, 0.0
    data = Data(index, queries, parts)
    search_module.associations, search_module._LEAST_SHARE = kept, least
    terms, has = places(index)
    if without is None:
        weights = as_mapping(learnt(data, np.arange(len(queries)), has), list(parts), terms)
        Path(module.__file__).with_name("associations.txt").write_text(written(weights), "utf-8")
        print(sum(map(len, weights.values())), "pairs")
        return
    before = after = total = 0
    for number in range(_FOLDS):
        judged = [query for query in queries if query.kind in tool_search.STYLES and fold(query, without) == number]
        names = {query.tool if without == "tool" else query.tool.partition(".")[0] for query in judged}
        unknown = [
            bool(names & {name if without == "tool" else name.partition(".")[0] for name in query.right})
            for query in queries
        ]
        weights = as_mapping(learnt(data, np.flatnonzero(~np.array(unknown)), has), list(parts), terms)
        for known in (
            Associations({}),
            Associations({part: {term: units / _UNIT for term, units in row.items()} for part, row in weights.items()}),
        ):
            search_module.associations = lambda known=known: known
            good, of = tool_search.found(index.search, judged)["all"]
            before, after = (before + good, after) if not known._weights else (before, after + good)
        total += of
    print(f"of {total}, whose {without} nothing was learnt of: {before} without associations, {after} with them")


if __name__ == "__main__":
    main()
