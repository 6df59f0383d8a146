"""Newline-delimited messages out of a byte stream, with a limit (sans-IO)."""

from __future__ import annotations

import re
from dataclasses import dataclass

# How much of an oversized line's head and tail is kept to tell which request it answers.
_EDGE = 512

# Only where the id is certainly the message's own: first members, or last before the closing brace.
_ID_AT_HEAD = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,')
_ID_AT_TAIL = re.compile(rb'[,}\]"\d]\s*,?\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line that was over the limit and so was thrown away.

    Attributes:
        size: Its bytes.
        request_id: The request it answers, where that could be told.
    """

    size: int
    request_id: int | None


class LineSplitter:
    """Feed it chunks, get whole lines without their newline; memory stays within the limit plus one chunk."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    @property
    def held(self) -> int:
        """Bytes held back, waiting for the end of their line."""
        return sum(map(len, self._parts))

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """Take the next bytes of the stream; return the lines they complete."""
        out: list[bytes | Oversized] = []
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            if self._size > self._limit:
                out.append(Oversized(self._size, _request_id(self._head, self._tail)))
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
    """The request that a line answers, where that can be told from its ends."""
    return _request_id(line[:_EDGE], line[-_EDGE:])


def _request_id(head: bytes, tail: bytes) -> int | None:
    match = _ID_AT_HEAD.match(head) or _ID_AT_TAIL.search(tail)
    return int(match.group(1)) if match else None
