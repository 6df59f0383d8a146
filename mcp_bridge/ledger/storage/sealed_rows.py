"""Encrypted values in rows beside the log, each bound to its place."""

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
"""With a principal's name: the execution whose key encrypts the programs that the principal has saved."""

LARGE_TEXT_CHARS = 64 << 10
"""A text from this length on is stored outside of its JSON, in which it could take six times its length."""

_MAX_WAY = 5
"""The greatest depth at which texts are searched: a displayed text is in `displays`, an index, a MIME type."""

_MAX_MEMBERS = 128
"""An object or array with more members isn't searched."""

_APART = b"\2"
"""Begins a value with such texts. No JSON begins with it."""

_Way: TypeAlias = "list[str | int]"
"""The path to a value: names and indexes, from the outermost on."""

_LENGTH = struct.Struct(">I")
_PACK_LEVEL = 1


def label_of(*words: str) -> bytes:
    """The label that binds a value to its place."""
    # Invalid Unicode is refused when it is written as a parameter of its own.
    return "/".join(words).encode(errors="surrogatepass")


def seal(execution: str, what: str, value: Any) -> Seal:
    """A parameter: a JSON value, encrypted for an execution. Bytes in it are read back as text."""
    return Seal(execution, _encoded(value), label_of(execution, what))


def seal_bytes(execution: str, what: str, data: bytes) -> Seal:
    """A parameter: bytes, encrypted for an execution."""
    return Seal(execution, data, label_of(execution, what))


def open_sealed(key: DataKey | None, sealed: bytes | None, label: bytes) -> Any:
    """A value that `seal` encrypted; None if there is none, or its key is destroyed.

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

    A value with large texts is a sequence of parts, each preceded by its length, and compressed as a whole. The first
    part is JSON with null in place of these texts, and the paths to them. The texts follow, each in parts of which the
    last is empty. So a script's output is never copied as a whole, except in its compressed form.
    """
    texts: list[tuple[_Way, str | bytes]] = []
    # In a list, so that a value which is a text itself has a path.
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
    """A value with null in place of large texts and bytes, which are added to `texts` with their paths."""
    if isinstance(value, str | bytes):
        if len(value) < LARGE_TEXT_CHARS:
            return value if isinstance(value, str) else value.decode(errors="backslashreplace")
        texts.append((way, value))
        return None
    if len(way) > _MAX_WAY or (isinstance(value, dict | list) and len(value) > _MAX_MEMBERS):
        return value
    if isinstance(value, dict):
        return {
            # JSON converts keys of other types to texts.
            name: _without_texts(member, [*way, name], texts) if type(name) is str else member
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [_without_texts(member, [*way, at], texts) for at, member in enumerate(value)]
    return value


def _parts(text: str | bytes) -> Iterator[bytes]:
    for at in range(0, len(text), LARGE_TEXT_CHARS):
        part = text[at : at + LARGE_TEXT_CHARS]
        # Invalid Unicode is encoded as JSON encodes it.
        yield part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
    yield b""


def _decoded(data: bytes) -> Any:
    """The value that `_encoded` encoded. Raises any kind of error for other bytes."""
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
    """Check that all encrypted values beside the log can be decrypted.

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
"""For each table: the query for an execution, its key, the rest of the labels and the sealed values; and the labels."""
