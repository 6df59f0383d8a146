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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from mcp_bridge.downstream.search import associations as module
from mcp_bridge.downstream.search import search as search_module
from mcp_bridge.downstream.search.associations import Associations, ToolKey
from mcp_bridge.downstream.search.documents import fields
from mcp_bridge.downstream.search.index import MOST_IMPACT
from mcp_bridge.downstream.search.query import query_words
from mcp_bridge.downstream.search.search import SearchIndex, name_stems
from mcp_bridge.downstream.search.words import is_stop_word, split, stem
from tests.support import tool_search

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.support.tool_search import Query

Matrix = Any
"""An array of numpy or scipy: the checks run where neither is installed."""

HEAD = """\
# What a query's words tell of the tools that are meant, as stems: a word of queries, and words of tools that it speaks for,
# or against, in fortieths of what the best tool's words are worth; first, after "=", the tools that it was
# learnt from (`ToolKey`). Learnt: `tests/support/tool_search/learning.py`.
"""
# What the search says beside what is learnt, and how small weights are kept.
_SURE = 4.0
_SMALL = 0.0009
_STEPS, _STEP = 30, 0.1
# The least weight of a pair that is kept, the most pairs of a word, and by how much these make up for the others.
_LEAST = 0.05
_PAIRS = 60
_KEPT = 1.25
_UNIT = 40
# These stop words tell something.
_TELLING = frozenset(["who", "how", "which", "what", "where", "when", "why", "all", "more", "many", "much", "out", "off", "up", "down", "over"])  # fmt: skip
_FOLDS = 5


def training() -> dict[str, list[Query]]:
    """The queries from which is learnt, by the tools that they are for: none that anybody is to be judged by."""
    sets = tool_search.sets()
    known = [query for which in ("tuned to", "drawn", "unseen", "paraphrases") for query in sets[which]]
    return {
        "tools": known + tool_search.phrases() + tool_search.paraphrases("more_paraphrase_queries.tsv.gz"),
        "other_tools": tool_search.paraphrases("other_paraphrase_queries.tsv.gz"),
        "further_tools": tool_search.paraphrases("further_paraphrase_queries.tsv.gz"),
    }


@dataclass(frozen=True)
class Data:
    """Queries for the same tools as matrices.

    Attributes:
        words: By query and word of queries, 1 where the query has it.
        base: By query and tool, what the search without associations gives.
        right: By query and tool, 1 where the tool is right.
        has: By tool and term, how clearly the tool has it.
    """

    words: Matrix
    base: Matrix
    right: Matrix
    has: Matrix

    def some(self, rows: Matrix) -> Data:
        """That of some of the queries alone."""
        return Data(self.words[rows], self.base[rows], self.right[rows], self.has)


def data_of(index: SearchIndex, queries: Sequence[Query], parts: dict[str, int], terms: Sequence[str]) -> Data:
    """The matrices of queries for an index's tools: `parts` numbers the words of queries, `terms` are those of tools."""
    numbers = {f"{tool.server}.{tool.name}": number for number, tool in enumerate(index.tools)}
    words = np.zeros((len(queries), len(parts)), np.float32)
    base, right = (np.zeros((len(queries), len(numbers)), np.float32) for _ in range(2))
    for row, query in enumerate(queries):
        for part in stems(query.text):
            if part in parts:
                words[row, parts[part]] = 1
        for hit in index.search(query.text, len(index)):
            base[row, numbers[f"{hit.tool.server}.{hit.tool.name}"]] = hit.score
        for name in query.right:
            right[row, numbers[name]] = 1
    return Data(sparse.csr_matrix(words), base, right, having(index, terms))


def stems(text: str) -> list[str]:
    """The stems of a query that count."""
    return [stem(word) for word in query_words(text) if word.isalpha() and (word in _TELLING or not is_stop_word(word))]


def clear_terms(index: SearchIndex) -> set[str]:
    """The terms that tools have clearly."""
    # No identifier of several words: that is one tool.
    words = {word for tool in index.tools for text in fields(tool).values() for word in split(text) if word.isalpha()}
    return {term for term in map(stem, words) if not is_stop_word(term) and index.inverted.clear_postings(term).tools}


def having(index: SearchIndex, terms: Sequence[str]) -> Matrix:
    """By tool and term how clearly the tool has it."""
    matrix = np.zeros((len(index), len(terms)), np.float32)
    for column, term in enumerate(terms):
        found = index.inverted.clear_postings(term)
        for number, impact in zip(found.tools, found.impacts, strict=True):
            matrix[number, column] = impact / MOST_IMPACT
    return matrix


def fitted(corpora: Sequence[Data], allowed: Matrix) -> Matrix:
    """The weights of the allowed pairs: of each word of queries and term of tools."""
    weights, mean, square = (np.zeros(allowed.shape, np.float32) for _ in range(3))
    prepared = [(data, data.base * _SURE, data.words.T.tocsr(), sparse.csr_matrix(data.has.T)) for data in corpora]
    for step in range(1, _STEPS + 1):
        gradient = _SMALL * weights
        for data, base, of_words, of_tools in prepared:
            scores = base + (data.words @ weights) @ of_tools
            likely = np.exp(scores - scores.max(1, keepdims=True))
            of_right = likely * data.right
            likely /= likely.sum(1, keepdims=True)
            of_right /= np.maximum(of_right.sum(1, keepdims=True), 1e-20)
            gradient += of_words @ ((likely - of_right) @ data.has) / 1000
        gradient *= allowed
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        weights -= _STEP * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-4)
    return weights


def learnt(corpora: Sequence[Data]) -> Matrix:
    """The weights that are kept, in units."""
    weights = fitted(corpora, sum((data.words.T @ data.right) @ data.has for data in corpora) > 0)
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


def written(weights: dict[str, dict[str, int]], tools: Iterable[ToolKey]) -> str:
    """The text of the file."""
    lines = sorted({"= " + " | ".join(key) for key in tools})
    for part, row in sorted(weights.items()):
        by_weight: dict[int, list[str]] = {}
        for term, weight in sorted(row.items(), key=lambda item: (-item[1], item[0])):
            by_weight.setdefault(weight, []).append(term)
        lines.append(" ".join([part, *(f"{weight} {' '.join(terms)}" for weight, terms in by_weight.items())]))
    return HEAD + "\n".join(lines) + "\n"


def group(query: Query, by: str) -> str:
    """The tool that a query was written for, or that one's server."""
    return query.tool if by == "tool" else query.tool.partition(".")[0]


def fold(query: Query, by: str) -> int:
    """The part that a query belongs to, by the tool that it was written for or by that one's server."""
    return hashlib.sha256(f"fold {group(query, by)}".encode()).digest()[0] % _FOLDS


def keys(index: SearchIndex, queries: Sequence[Query]) -> list[ToolKey]:
    """The keys of the tools that are right for some queries."""
    right = {name for query in queries for name in query.right}
    known = [tool for tool in index.tools if f"{tool.server}.{tool.name}" in right]
    return [ToolKey.of(name_stems(tool), tool.server, tool.description) for tool in known]


def tell_without(
    by: str,
    which: str,
    queries: dict[str, list[Query]],
    indexes: dict[str, SearchIndex],
    corpora: dict[str, Data],
    parts: Sequence[str],
    terms: Sequence[str],
) -> None:
    """Tell how many paraphrases are found, a fifth after the other, while nothing is learnt of what they are for."""
    index = indexes[which]
    counts = [0, 0, 0]
    for number in range(_FOLDS):
        judged = [query for query in queries[which] if query.kind in tool_search.STYLES and fold(query, by) == number]
        gone = {group(query, by) for query in judged}
        rest = {
            name: [
                row
                for row, query in enumerate(chosen)
                if name != which or not gone & {group(replace(query, tool=tool), by) for tool in query.right}
            ]
            for name, chosen in queries.items()
        }
        weights = as_mapping(learnt([data.some(rest[name]) for name, data in corpora.items()]), parts, terms)
        tools = [key for name in queries for key in keys(indexes[name], [queries[name][row] for row in rest[name]])]
        as_shares = {part: {term: units / _UNIT for term, units in row.items()} for part, row in weights.items()}
        for place, known in enumerate((Associations({}), Associations(as_shares, tools))):
            search_module.associations = lambda known=known: known
            counts[place] += tool_search.found(index.search, judged)["all"][0]
        counts[2] += len(judged)
    print(f"{which}, of {counts[2]}, whose {by} nothing was learnt of: {counts[0]} without, {counts[1]} with what was")


def main() -> None:
    """Write the file, or tell what it is worth for what it doesn't know."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", choices=["server", "tool"])
    without = parser.parse_args().without
    queries = training()
    indexes = {which: SearchIndex(tool_search.tools(which)) for which in queries}
    every = [query for chosen in queries.values() for query in chosen]
    parts = {
        part: number for number, part in enumerate(sorted({part for query in every for part in stems(query.text)}))
    }
    terms = sorted(set().union(*map(clear_terms, indexes.values())))
    kept, search_module.associations = search_module.associations, lambda: Associations({})
    least, search_module._LEAST_SHARE = search_module._LEAST_SHARE, 0.0
    corpora = {which: data_of(indexes[which], chosen, parts, terms) for which, chosen in queries.items()}
    search_module.associations, search_module._LEAST_SHARE = kept, least
    if without is None:
        weights = as_mapping(learnt(list(corpora.values())), list(parts), terms)
        tools = [key for which, index in indexes.items() for key in keys(index, queries[which])]
        Path(module.__file__).with_name("associations.txt").write_text(written(weights, tools), "utf-8")
        print(sum(map(len, weights.values())), "pairs of", len(weights), "words")
        return
    for which in queries:
        tell_without(without, which, queries, indexes, corpora, list(parts), terms)


if __name__ == "__main__":
    main()
