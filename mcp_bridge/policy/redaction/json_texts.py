"""JSON documents in texts, which stay valid JSON when a reference replaces a number.

Only quotes are added to what the projection makes. Work is linear in a text, in steps that hold the interpreter for a
millisecond or so.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right

from mcp_bridge.policy.secrets.vault_uris import REFERENCE_PREFIX, SECRET_PREFIX

_TOKENS = re.compile(
    r'(?:[ \t\r\n,:\[\]{}]++|"(?:[^"\\]++|\\.)*+"|-?[0-9][0-9.eE+-]*+|true\b|false\b|null\b){1,2000}+', re.DOTALL
)

_PARTS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[^"]{1,65536}+[^",\]}\s]*+', re.DOTALL)
"""A quoted text, or the text between two of them up to the end of a value."""

_INTEGER = re.compile(r"0|[1-9][0-9]{0,99}")

_MARKS = (SECRET_PREFIX, REFERENCE_PREFIX, "[REDACTED")

_BARE = re.compile(rf"[-+.0-9eE]*(?:{SECRET_PREFIX}|{REFERENCE_PREFIX}|\[REDACTED\w*\])[-+.\w]*")


def is_document(text: str) -> bool:
    """Whether a text has the tokens of a JSON object or array, and no others."""
    if text.lstrip()[:1] not in {"[", "{"}:
        return False
    at = 0
    while (match := _TOKENS.match(text, at)) is not None:
        at = match.end()
    return at == len(text)


def quoted(text: str) -> str:
    """A document in which every unquoted reference, with the rest of its number, is put into quotes."""
    return "".join(
        part if part[0] == '"' or not any(mark in part for mark in _MARKS) else _BARE.sub(r'"\g<0>"', part)
        for part in (match[0] for match in _PARTS.finditer(text))
    )


class Numbers:
    """The complete numbers of a text, if it is a JSON document. The text is parsed on first use.

    Args:
        text: Any text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._edges: array[int] | None = None
        """The positions where quoted texts begin and end."""

    def value(self, start: int, end: int) -> int | None:
        """The value of a part of the text that is a complete number; else None."""
        text = self._text
        if text[start - 1 : start] not in tuple(" \t\r\n,:[") or text[end : end + 1] not in tuple(" \t\r\n,]}"):
            return None
        if not _INTEGER.fullmatch(text, start, end):
            return None
        if self._edges is None:
            self._edges = self._found()
        return int(text[start:end]) if bisect_right(self._edges, start) % 2 == 0 else None

    def _found(self) -> array[int]:
        # A text that is no document has nothing outside of quotes.
        edges = array("Q") if is_document(self._text) else array("Q", [0])
        if not edges:
            for match in _PARTS.finditer(self._text):
                if self._text[match.start()] == '"':
                    edges.extend(match.span())
        return edges
