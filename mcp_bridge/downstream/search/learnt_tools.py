"""The tools that something was learnt of (`word_vectors`): what was learnt says more about these than about others."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple, Self

from mcp_bridge.downstream.search.words import split

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class LearntTools:
    """Tools by their keys."""

    def __init__(self, tools: Iterable[ToolKey]) -> None:
        self._begins: dict[str, set[str]] = {}
        self._servers = set[str]()
        for tool in tools:
            self._begins.setdefault(tool.name, set()).add(tool.begins)
            self._servers.add(tool.server)

    def __contains__(self, tool: ToolKey) -> bool:
        """Whether something was learnt of a tool.

        A name alone doesn't tell: many servers have a `list_emails`. The server must have been learnt from, too. Since
        it may have another name elsewhere, the beginning of the description may stand for it.
        """
        begins = self._begins.get(tool.name)
        return begins is not None and (tool.server in self._servers or (tool.begins != "" and tool.begins in begins))


@functools.cache
def learnt_tools() -> LearntTools:
    """Those of the vectors that ship with the package; read once."""
    lines = resources.files(__package__).joinpath("learnt_tools.txt").read_text("utf-8").splitlines()
    return LearntTools(ToolKey(*line.split(" | ")) for line in lines if line[0] != "#")
