"""Ranked search over tools: SQLite's FTS5 in memory, scored with BM25."""

from __future__ import annotations

import re
import sqlite3
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mcp_bridge.downstream.tools import ToolInfo

# Name above server above title and description above parameter names.
_WEIGHTS = "12.0, 5.0, 3.0, 1.0"

# Longer queries are cut: every word costs two terms.
_WORDS_USED = 24

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """`getUserID`, `get_user_id` and `get-user-id` as the words `get user id`; lower case, in order."""
    return [word.lower() for part in _WORD.findall(text) for word in _CAMEL.split(part)]


@dataclass(frozen=True, slots=True)
class Hit:
    """A tool found, and its score: higher is better, comparable within one search only."""

    tool: ToolInfo
    score: float


class SearchIndex:
    """An immutable index over some tools; build a new one when they change.

    Raises:
        BridgeError: `no_fts5`, when the interpreter's SQLite was built without FTS5.
    """

    def __init__(self, tools: Iterable[ToolInfo]) -> None:
        self._tools = sorted(tools, key=lambda tool: (tool.server, tool.name))
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
        """Rank tools by a query in plain words.

        Args:
            query: Words; nothing in it is read as search syntax. Without a word in it, every tool matches.
            limit: At most so many hits.
            strict: Only tools that have every word (or a word that begins with it). Otherwise, when there is
                none, those that have any.
            allowed: Leaves out the tools for which it is false.

        Returns:
            The best first; equals by server and name.
        """
        if limit <= 0:
            return []
        terms = [f'("{word}" OR "{word}"*)' for word in dict.fromkeys(words(query)[:_WORDS_USED])]
        if not terms:
            hits = [Hit(tool, 0.0) for tool in self._tools]
            return [hit for hit in hits if allowed is None or allowed(hit.tool)][:limit]
        found = self._match(" AND ".join(terms), limit, allowed)
        if not found and not strict and len(terms) > 1:
            found = self._match(" OR ".join(terms), limit, allowed)
        return found

    def _match(self, expression: str, limit: int, allowed: Callable[[ToolInfo], bool] | None) -> list[Hit]:
        hits: list[Hit] = []
        with self._lock:
            # Rows are numbered by server and name, so the second key settles ties.
            cursor = self._db.execute(
                f"SELECT rowid, bm25(tool, {_WEIGHTS}) AS rank FROM tool WHERE tool MATCH ? ORDER BY rank, rowid",  # noqa: S608
                (expression,),
            )
            for number, rank in cursor:
                tool = self._tools[number]
                if allowed is None or allowed(tool):
                    hits.append(Hit(tool, -rank))
                    if len(hits) == limit:
                        break
            cursor.close()
        return hits


def _row(number: int, tool: ToolInfo) -> tuple[int, str, str, str, str]:
    properties = tool.input_schema.get("properties")
    params = properties if isinstance(properties, dict) else {}
    return (
        number,
        _text(tool.name),
        _text(f"{tool.server} {tool.server_alias}"),
        _text(f"{tool.title or ''} {tool.description}"),
        _text(" ".join(map(str, params))),
    )


def _text(text: str) -> str:
    """The words, then the unsplit forms too, so that `readfile` finds `readFile`."""
    whole = {part.lower() for part in re.findall(r"\S+", text) if _CAMEL.search(part) or "_" in part or "-" in part}
    joined = [re.sub(r"[\W_]+", "", part) for part in sorted(whole)]
    return " ".join([*words(text), *joined]).encode("utf-8", "replace").decode()
