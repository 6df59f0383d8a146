"""What a query's words tell of the tools that are meant: words that tools have, each with a learnt weight.

The thesaurus and the phrasings were written by hand, and know what is said for what. These weights were learnt from
queries and the tools that are right for them (`tests/support/tool_search/learning.py`), as a translation of a query's
words into tools': A. Berger, J. Lafferty: Information Retrieval as Statistical Translation (SIGIR 1999), but trained to
tell right tools from wrong ones. What is learnt from some tools says little about others: weak evidence is left out,
and the names of the tools that something was learnt of are kept beside the weights.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple, Self

from mcp_bridge.downstream.search.index import MOST_IMPACT
from mcp_bridge.downstream.search.words import split, stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mcp_bridge.downstream.search.index import InvertedIndex

# Less evidence than this, or than this share of the most, says nothing.
_LEAST_EVIDENCE = 0.8
_LEAST_SHARE = 0.4
# The unit of the weights in the file.
_UNIT = 40
# How much of a description, and of its digest, tells a tool from others of the same name.
_BEGINNING_CHARS = 200
_BEGINNING_WORDS = 8
_DIGEST_CHARS = 8


class ToolKey(NamedTuple):
    """By what a tool is known again.

    Attributes:
        name: The stems of its name, sorted.
        server: Its server's name.
        begins: A digest of how its description begins; empty if it has none.
    """

    name: str
    server: str
    begins: str

    @classmethod
    def of(cls, name: Iterable[str], server: str, description: str) -> Self:
        """The key of a tool, from the stems of its name in any order."""
        begins = " ".join(split(description[:_BEGINNING_CHARS])[:_BEGINNING_WORDS])
        digest = hashlib.sha256(begins.encode()).hexdigest()[:_DIGEST_CHARS] if begins else ""
        return cls(" ".join(sorted(name)), " ".join(split(server)), digest)


class Associations:
    """By a stem of queries the stems of tools that it speaks for or against.

    Args:
        weights: Of each pair how much; 1 is as much as the best tool's words.
        tools: The tools that this was learnt from.
    """

    def __init__(self, weights: Mapping[str, Mapping[str, float]], tools: Iterable[ToolKey] = ()) -> None:
        self._weights = weights
        self._begins: dict[str, set[str]] = {}
        self._servers = set[str]()
        for tool in tools:
            self._begins.setdefault(tool.name, set()).add(tool.begins)
            self._servers.add(tool.server)

    def knows(self, tool: ToolKey) -> bool:
        """Whether something was learnt of a tool.

        A name alone doesn't tell: many servers have a `list_emails`. The server must have been learnt from, too. Since
        it may have another name elsewhere, the beginning of the description may stand for it.
        """
        begins = self._begins.get(tool.name)
        return begins is not None and (tool.server in self._servers or (tool.begins != "" and tool.begins in begins))

    def evidence(self, words: Iterable[str], index: InvertedIndex) -> dict[int, float]:
        """What the words of a query say for the tools of an index, by their numbers, beside the best tool's words."""
        asked: dict[str, float] = {}
        for part in {stem(word): None for word in words}:
            for term, weight in self._weights.get(part, {}).items():
                asked[term] = asked.get(term, 0.0) + weight
        found: dict[int, float] = {}
        for term, weight in asked.items():
            row = index.clear_postings(term)
            for number, impact in zip(row.tools, row.impacts, strict=True):
                found[number] = found.get(number, 0.0) + weight * impact
        most = max(found.values(), default=0.0) / MOST_IMPACT
        none = max(_LEAST_EVIDENCE, _LEAST_SHARE * most)
        return {number: more for number, sum_ in found.items() if (more := sum_ / MOST_IMPACT - none) > 0}


class _Rows(Mapping[str, Mapping[str, float]]):
    """The rows of the file by their first words, each read when it is asked for: together they would be 10 MB."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._entries: dict[str, str] = {}
        for line in lines:
            part, _, entries = line.partition(" ")
            self._entries[part] = entries

    def __getitem__(self, part: str) -> Mapping[str, float]:
        row: dict[str, float] = {}
        weight = 0.0
        # A number holds for the words after it.
        for entry in self._entries[part].split():
            if entry.lstrip("-").isdigit():
                weight = int(entry) / _UNIT
            else:
                row[entry] = weight
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@functools.cache
def associations() -> Associations:
    """The weights that ship with the package; read once."""
    lines = resources.files(__package__).joinpath("associations.txt").read_text("utf-8").splitlines()
    tools = [ToolKey(*line[2:].split(" | ")) for line in lines if line[0] == "="]
    return Associations(_Rows(line for line in lines if line[0] not in "#="), tools)
