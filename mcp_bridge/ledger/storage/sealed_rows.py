"""What is kept encrypted in rows beside the log, each value bound to its place."""

from __future__ import annotations

import json
import struct
import zlib
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from mcp_bridge.ledger.log.transaction import Seal
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from mcp_bridge.ledger.storage.sealing import DataKey, MasterKey

LIBRARY = "programs/"
"""With a principal's name, the execution under whose key the programs are kept that it has saved."""

LARGE_TEXT_CHARS = 64 << 10
"""A text from this length on is kept apart from the JSON that it was in, where it could take six times its length."""

_MAX_WAY = 5
"""How deep a text is looked for: one of what a script has shown is in `displays`, a place, a kind."""

_MAX_MEMBERS = 128
"""Of an object or an array that is looked into: one with more has no large texts, or keeps them."""

_APART = b"\2"
"""Begins a value with such texts. JSON begins otherwise."""

_Way: TypeAlias = "list[str | int]"
"""Names and places, from the outermost on."""

_LENGTH = struct.Struct(">I")
_PACK_LEVEL = 1


def label_of(*words: str) -> bytes:
    """Where a value belongs: it opens nowhere else."""
    # A text that is no Unicode is refused when it is written as a parameter of its own.
    return "/".join(words).encode(errors="surrogatepass")


def seal(execution: str, what: str, value: Any) -> Seal:
    """A value, to be kept encrypted for an execution as JSON; what is bytes in it is read as text."""
    return Seal(execution, _encoded(value), label_of(execution, what))


def seal_bytes(execution: str, what: str, data: bytes) -> Seal:
    """Bytes, to be kept encrypted for an execution."""
    return Seal(execution, data, label_of(execution, what))


def open_sealed(key: DataKey | None, sealed: bytes | None, label: bytes) -> Any:
    """A value that was kept so; None where there is none, or its key is destroyed.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    if key is None or sealed is None:
        return None
    try:
        return _decoded(key.open(sealed, label))
    except (ValueError, struct.error, zlib.error, LookupError, TypeError) as exc:
        raise damaged(str(exc)) from None


def _encoded(value: Any) -> bytes:
    """A JSON value as bytes.

    One with large texts is a row of parts, each behind its length, and packed as a whole: JSON without these texts, in
    whose place there is null, with the ways to them, and then the texts, each of parts of which the last is empty. So
    of all that a script has printed there is never a second copy, but for what packing leaves of it.
    """
    texts: list[tuple[_Way, str | bytes]] = []
    # In a list, so that a text has a place where it is all that there is.
    rest = _without_texts([value], [], texts)
    if not texts:
        return json.dumps(rest[0]).encode()
    ways = [[type(text) is bytes, *way] for way, text in texts]
    head = json.dumps({"rest": rest, "texts": ways}).encode()
    packer = zlib.compressobj(_PACK_LEVEL)
    parts = chain([head], *(_parts(text) for _, text in texts))
    packed = b"".join(packer.compress(_LENGTH.pack(len(part)) + part) for part in parts)
    return _APART + packed + packer.flush()


def _without_texts(value: Any, way: _Way, texts: list[tuple[_Way, str | bytes]]) -> Any:
    """A value with null in the place of large texts and bytes, which go to `texts`, each with the way to it."""
    if isinstance(value, str | bytes):
        if len(value) < LARGE_TEXT_CHARS:
            return value if isinstance(value, str) else value.decode(errors="backslashreplace")
        texts.append((way, value))
        return None
    if len(way) > _MAX_WAY or (isinstance(value, dict | list) and len(value) > _MAX_MEMBERS):
        return value
    if isinstance(value, dict):
        return {
            # JSON makes another key a text.
            name: _without_texts(member, [*way, name], texts) if type(name) is str else member
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [_without_texts(member, [*way, at], texts) for at, member in enumerate(value)]
    return value


def _parts(text: str | bytes) -> Iterator[bytes]:
    for at in range(0, len(text), LARGE_TEXT_CHARS):
        part = text[at : at + LARGE_TEXT_CHARS]
        # A text that is no Unicode is taken as JSON takes it.
        yield part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
    yield b""


def _decoded(data: bytes) -> Any:
    """What `_encoded` was given; raises an error of whatever kind of other bytes."""
    if data[:1] != _APART:
        return json.loads(data)
    plain = memoryview(zlib.decompress(memoryview(data)[1:]))
    at = 0

    def part() -> memoryview:
        nonlocal at
        (length,) = _LENGTH.unpack_from(plain, at)
        at += _LENGTH.size + length
        return plain[at - length : at]

    head = json.loads(bytes(part()))
    value = head["rest"]
    for was_bytes, *way, last in head["texts"]:
        place = value
        for step in way:
            place = place[step]
        place[last] = b"".join(iter(part, b"")).decode(errors="backslashreplace" if was_bytes else "surrogatepass")
    return value[0]


def check_sealed(connection: sqlite3.Connection, master: MasterKey) -> None:
    """Open whatever is kept encrypted beside the log, to see that it can be.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    for query, labels in _SEALED:
        for execution, wrapped, *columns in connection.execute(query):
            names, values = columns[: -len(labels)], columns[-len(labels) :]
            if wrapped is None:
                if any(value is not None for value in values):
                    raise damaged(f"{execution} is erased, and something of it is there")
                continue
            key = master.open(execution, wrapped)
            for label, value in zip(labels, values, strict=True):
                if value is not None:
                    key.open(value, label.format(execution, *names).encode())


_SEALED = (
    (
        "SELECT id, wrapped, bundle, state, record FROM executions LEFT JOIN data_keys ON id = execution",
        ("{0}/bundle", "{0}/state", "{0}/record"),
    ),
    (
        "SELECT execution, wrapped, effect, question, decision FROM approvals LEFT JOIN data_keys USING (execution)",
        ("{0}/question/{1}", "{0}/decision/{1}"),
    ),
    (
        "SELECT execution, wrapped, id, value FROM reference_values LEFT JOIN data_keys USING (execution)",
        ("value/{0}/{1}",),
    ),
    (
        "SELECT execution, wrapped, principal, name, data FROM programs"  # noqa: ISC004
        " LEFT JOIN data_keys ON execution = 'programs/' || principal",
        ("program/{1}/{2}",),
    ),
)
"""Of each table: an execution, its key, what else is in the labels, and what is sealed; and the labels."""
