"""Splits a byte stream into newline-delimited messages of limited size (sans-IO)."""

from __future__ import annotations

import re
from dataclasses import dataclass

# How much of both ends of an oversized line is kept, to find the request that it answers.
_EDGE = 512

# These match only an id of the message itself: at the first members, or last before the closing brace.
_ID_AT_HEAD = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,')
_ID_AT_TAIL = re.compile(rb'[,}\]"\d]\s*,?\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

# The end of a text is optional, so that one without an end matches too, and the search stays linear.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]|[^\s"{}\[\],:]++', re.DOTALL)

# From inside of a value to the next brackets of one kind.
_TO_BRACKETS = re.compile(rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"?[^"{}\[\]]*+)*+([{\[]++|[}\]]++)', re.DOTALL)

# Half a second. What has more brackets than this before its id is no message that somebody waits for.
_MAX_STEPS = 500_000

_MEMBERS = (b'"jsonrpc"', b'"id"', b'"method"', b'"result"', b'"error"')
_ANSWERED_ID = re.compile(rb'"?(\d{1,18})"?')


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line that exceeded the limit and was discarded.

    Attributes:
        size: Its size in bytes.
        request_id: Its id, or that of the request that it answers; None if unknown.
        is_answer: Whether its beginning shows that it is an answer.
    """

    size: int
    request_id: int | None
    is_answer: bool = False


class LineSplitter:
    """Takes chunks and returns whole lines without newlines; uses at most the limit plus one chunk of memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    @property
    def buffered(self) -> int:
        """Buffered bytes of an incomplete line."""
        return sum(map(len, self._parts))

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """Add the next bytes of the stream; return the lines that they complete."""
        out: list[bytes | Oversized] = []
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            if self._size > self._limit:
                number = _request_id(self._head, self._tail)
                out.append(Oversized(self._size, number, is_answer(outer_members(self._head))))
            else:
                out.append(b"".join(self._parts))
            self._parts, self._size, self._head, self._tail = [], 0, b"", b""
        self._add(rest)
        return out

    def _add(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        if self._size <= self._limit:
            self._parts.append(part)
            return
        if self._parts:
            whole = b"".join(self._parts)
            self._head, self._tail = whole[:_EDGE], whole[-_EDGE:]
            self._parts = []
        if len(self._head) < _EDGE:
            self._head += part[: _EDGE - len(self._head)]
        self._tail = (self._tail + part)[-_EDGE:]


def request_id_of(line: bytes) -> int | None:
    """The id of the request that a line answers, if its ends show it."""
    return _request_id(line[:_EDGE], line[-_EDGE:])


def _request_id(head: bytes, tail: bytes) -> int | None:
    match = _ID_AT_HEAD.match(head) or _ID_AT_TAIL.search(tail)
    return int(match.group(1)) if match else None


def answered_id_of(line: bytes) -> int | None:
    """The id of the request that a line answers, wherever it stands, even if no parser takes the rest.

    Text that stands for a number counts as one: some servers return ids so. The time grows with the line.
    """
    members = outer_members(line)
    if not is_answer(members):
        return None
    match = _ANSWERED_ID.fullmatch(members.get(b'"id"', b""))
    return int(match.group(1)) if match else None


def is_answer(members: dict[bytes, bytes]) -> bool:
    """Whether a message with these members is an answer."""
    return b'"method"' not in members and (b'"result"' in members or b'"error"' in members)


def outer_members(line: bytes) -> dict[bytes, bytes]:
    """The members of a line's outermost object that tell what message it is, each with the first token of its value.

    Reads what no parser takes: lone surrogates, any number, any nesting, bytes that aren't UTF-8, an object without an
    end. The time grows with the line, up to that of _MAX_STEPS; what comes later isn't seen.
    """
    found: dict[bytes, bytes] = {}
    name: bytes | None = None
    depth = position = 0
    for _ in range(_MAX_STEPS):
        if depth > 1:
            # Inside of a member's value only its brackets count.
            match = _TO_BRACKETS.match(line, position)
            if match is None:
                break
            start, position = match.span(1)
            if line[start] in b"{[":
                depth += position - start
            else:
                # The member ends at one of them; the rest are the message's.
                position = min(position, start + depth - 1)
                depth -= position - start
            continue
        match = _TOKEN.search(line, position)
        if match is None:
            break
        token, position = match[0], match.end()
        if depth == 0 and token != b"{":
            break
        if token in (b"}", b"]"):
            depth -= 1
            continue
        if depth == 1 and name is None:
            name = token
        elif depth == 1:
            if name in _MEMBERS:
                found[name] = token
            name = None
        if token in (b"{", b"["):
            depth += 1
    return found
