"""Ranked search for tools: an in-memory SQLite FTS5 index, scored by BM25."""

from __future__ import annotations

import re
import sqlite3
import threading
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mcp_bridge.downstream.catalog.tools import ToolInfo

# Weights of a tool's name, its server's name, its title and description, and its parameter names.
_WEIGHTS = "12.0, 5.0, 3.0, 1.0"

# Longer queries are cut: every word adds two terms.
_WORDS_USED = 24

# How much of a tool is indexed: longer descriptions or more parameter names would dominate the index.
_CHARS_USED = 10_000
_PARAMS_USED = 500

# Groups of synonyms, since authors and users choose different words. A word also finds the others of its group.
_SYNONYMS = (
    ("history", "log"),
    ("delete", "remove"),
    ("find", "search", "query"),
    ("create", "add", "new"),
    ("edit", "update", "modify", "change"),
    ("directory", "folder"),
    ("get", "fetch", "read"),
    ("run", "execute"),
    ("send", "post"),
    ("picture", "image", "photo"),
    ("issue", "ticket"),
)
_SAME = {word: group for group in _SYNONYMS for word in group}

# Factor for a tool whose whole name, or its server's, is in the query.
_NAMED = 2.0

# Factor for a tool whose description says that it is deprecated.
_DEPRECATED = 0.5

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The words of an identifier or text: `getUserID`, `get_user_id` and `get-user-id` give `get user id`, in order."""
    return [word.lower() for part in _WORD.findall(text) for word in _CAMEL.split(part)]


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching tool and its score: higher is better, and comparable within one search only."""

    tool: ToolInfo
    score: float


class SearchIndex:
    """An immutable index of tools. Build a new one when they change.

    Raises:
        BridgeError: `no_fts5`, when the interpreter's SQLite was built without FTS5.
    """

    def __init__(self, tools: Iterable[ToolInfo]) -> None:
        self._tools = sorted(tools, key=lambda tool: (tool.server, tool.name))
        self._names = [words(tool.name) for tool in self._tools]
        self._servers = [(set(words(tool.server)), set(words(tool.server_alias))) for tool in self._tools]
        self._deprecated = {
            number for number, tool in enumerate(self._tools) if "deprecated" in tool.description[:_CHARS_USED].lower()
        }
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._db.execute(
                "CREATE VIRTUAL TABLE tool USING fts5"
                "(name, server, text, params, tokenize = 'porter unicode61 remove_diacritics 2')"
            )
        except sqlite3.OperationalError as error:
            self._db.close()
            raise BridgeError("no_fts5", f"This Python's SQLite cannot search text: {error}.") from None
        self._db.executemany(
            "INSERT INTO tool (rowid, name, server, text, params) VALUES (?, ?, ?, ?, ?)",
            (_row(number, tool) for number, tool in enumerate(self._tools)),
        )

    def __len__(self) -> int:
        return len(self._tools)

    def close(self) -> None:
        """Free the index's memory."""
        self._db.close()

    def search(
        self,
        query: str,
        limit: int = 10,
        *,
        strict: bool = False,
        allowed: Callable[[ToolInfo], bool] | None = None,
    ) -> list[Hit]:
        """Rank tools by a plain-language query.

        Args:
            query: Words; no search syntax. A query without words matches every tool.
            limit: The maximum number of hits.
            strict: Whether a tool must have every word, or a word that begins with it. Otherwise, if no tool has every
                word, tools match that have every word or a synonym of it, and then tools that have any word. Tools
                whose whole name, or their server's, is in the query match if they have any word, in any case.
            allowed: Returns whether to include a tool; None includes all.

        Returns:
            The best hits first; ties are ordered by server and name.
        """
        if limit <= 0:
            return []
        query_words = list(dict.fromkeys(words(query)[:_WORDS_USED]))
        if not query_words:
            hits = [Hit(tool, 0.0) for tool in self._tools]
            return [hit for hit in hits if allowed is None or allowed(hit.tool)][:limit]
        exact = {word: f'("{word}" OR "{word}"*)' for word in query_words}
        named = self._named(query_words)
        results = self._match(" AND ".join(exact.values()), query_words, allowed, named)
        if strict:
            return results[:limit]
        wider = {
            word: f"({term} OR {' OR '.join(_SAME[word])})" if word in _SAME else term for word, term in exact.items()
        }
        if not results:
            results = self._match(" AND ".join(wider.values()), query_words, allowed, named)
        if not results:
            results = self._match(" OR ".join(wider.values()), query_words, allowed, named)
        elif named:
            # A tool that is named in the query must not be hidden by others that have every word somewhere.
            have_all = {(hit.tool.server, hit.tool.name) for hit in results}
            some = self._match(
                " OR ".join(wider.values()), query_words, allowed, named, self._with_other_words(wider, named)
            )
            results += [hit for hit in some if (hit.tool.server, hit.tool.name) not in have_all]
            results.sort(key=_order)
        return results[:limit]

    def _named(self, query_words: list[str]) -> set[int]:
        """Indices of the tools whose whole name, or their server's, is in the query."""
        wanted = set(query_words)
        return {
            number
            for number, name in enumerate(self._names)
            if (name and wanted.issuperset(name))
            or any(server and wanted >= server for server in self._servers[number])
        }

    def _with_other_words(self, terms: dict[str, str], named: set[int]) -> set[int]:
        """Those of the named tools for which the query has words besides their server's name."""
        rest = terms.keys() - {word for number in named for server in self._servers[number] for word in server}
        if not rest:
            return set()
        with self._lock:
            query = "SELECT rowid FROM tool WHERE tool MATCH ?"
            rows = self._db.execute(query, (" OR ".join(terms[word] for word in sorted(rest)),)).fetchall()
        return named & {number for (number,) in rows}

    def _match(
        self,
        expression: str,
        query_words: list[str],
        allowed: Callable[[ToolInfo], bool] | None,
        named: set[int],
        among: set[int] | None = None,
    ) -> list[Hit]:
        hits: list[Hit] = []
        with self._lock:
            query = f"SELECT rowid, bm25(tool, {_WEIGHTS}) FROM tool WHERE tool MATCH ?"  # noqa: S608 - a constant
            rows = self._db.execute(query, (expression,)).fetchall()
        for number, rank in rows:
            tool = self._tools[number]
            if (among is None or number in among) and (allowed is None or allowed(tool)):
                weight = 1 + self._likeness(number, query_words)
                weight *= _NAMED if number in named else 1
                weight *= _DEPRECATED if number in self._deprecated else 1
                hits.append(Hit(tool, -rank * weight))
        return sorted(hits, key=_order)

    def _likeness(self, number: int, query_words: list[str]) -> float:
        """The similarity of the query and the tool's name, 0 to 1.

        BM25 considers the length of a whole row: alone, it prefers a tool with a short description to one whose exact
        name is in the query.
        """
        name = self._names[number]
        shared = sum(any(part.startswith(word) or word.startswith(part) for part in name) for word in query_words)
        return 2 * shared / (len(query_words) + len(name)) if name else 0.0


def _order(hit: Hit) -> tuple[float, str, str]:
    return -round(hit.score, 9), hit.tool.server, hit.tool.name


def _row(number: int, tool: ToolInfo) -> tuple[int, str, str, str, str]:
    properties = tool.input_schema.get("properties")
    params = properties if isinstance(properties, dict) else {}
    return (
        number,
        _text(tool.name),
        _text(f"{tool.server} {tool.server_alias}"),
        _text(f"{tool.title or ''} {tool.description}"[:_CHARS_USED]),
        _text(" ".join(map(str, islice(params, _PARAMS_USED)))[:_CHARS_USED]),
    )


def _text(text: str) -> str:
    """The split words and the unsplit forms, so that `readfile` finds `readFile`."""
    whole = {part.lower() for part in re.findall(r"\S+", text) if _CAMEL.search(part) or "_" in part or "-" in part}
    joined = [re.sub(r"[\W_]+", "", part) for part in sorted(whole)]
    return " ".join([*words(text), *joined]).encode("utf-8", "replace").decode()
