"""Deduplicated payloads: content that an execution records more than once is stored once.

A payload is JSON. Its large parts (a value that was read, the code, a context) are *pieces*. They are stored in the
table `pieces` under their names, which are MACs of their bytes under the execution's own key. The payload is stored as
a manifest with these names. An entry commits to the bytes of the whole payload: a reader reassembles and checks it.

A reader doesn't depend on which parts are pieces: another version may cut them differently.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import secrets
import struct
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

from mcp_bridge.large_json import compact_encoder, dumps
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.proofs.disclosures import SALT_BYTES, commitment
from mcp_bridge.ledger.storage.sealing import NAME_BYTES, damaged
from mcp_bridge.offload import is_deep, is_large

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from mcp_bridge.ledger.log.entry_encoding import Leaf
    from mcp_bridge.ledger.storage.sealing import DataKey

Parts: TypeAlias = "tuple[bytes, ...]"
"""A payload's bytes: text and pieces alternate, and begin and end with text, which may be empty."""

MIN_PIECE_BYTES = 1024
"""The smallest piece. A shorter part costs as much to look up as to store."""

MAX_DEPTH = 4
"""The greatest depth of a piece: the text of a tool's raw result is in `value`, `content`, an index, `text`."""

MAX_NESTING = 250
"""The deepest nesting of a large payload, more than in anything that comes from outside. A large payload is encoded by
the writer, where an error would count as a failure of the file and stop all writing."""

MAX_MEMBERS = 64
"""An object or array with more members is a piece as a whole."""

MAX_PIECE_BYTES = 64 << 20
"""The largest piece once it is unpacked; nothing half as large passes the channel."""

_PACK_LEVEL = 1
_SAMPLE_BYTES = 4096
_WORTH = 0.9
"""A piece is packed only if a sample of it shrinks below this share."""

_PACKED, _PLAIN = b"\1", b"\0"

IN_PIECES = b"\1"
"""Marks a manifest, after the salt. A payload that is stored whole begins with a brace."""

_REMEMBERED_BYTES = 8 << 20
"""How many bytes of recently read pieces a reader caches."""

_TREE = 2
"""The version of Python's marshal format without references: an object that occurs twice is written twice."""

_BRACKETS = (b"[", b"{")
"""The type codes of an array and an object in that format."""

_LENGTH = struct.Struct(">I")

_encoder = json.JSONEncoder(separators=(",", ":"))
_encode = compact_encoder()


def split(payload: dict[str, Any]) -> Parts:
    """A payload's bytes, cut where a large part begins and ends. Joined, they equal `json.dumps`'s output."""
    return _split(payload) if _may_be_large(payload, 0) else (_encode(payload).encode(),)


def _split(payload: dict[str, Any]) -> Parts:
    found: list[tuple[bool, str]] = []
    _walk(payload, 0, found)
    parts: list[str] = []
    texts: list[str] = []
    for is_piece, text in found:
        if is_piece:
            parts += ("".join(texts), text)
            texts = []
        else:
            texts.append(text)
    return tuple(part.encode() for part in (*parts, "".join(texts)))


class Snapshot:
    """A copy of a large payload, made when it is posted and encoded on another thread.

    The event loop waits for the copy, which takes a hundredth of the time that encoding takes.

    Attributes:
        size: Its size in bytes, about that of the payload.
    """

    __slots__ = ("_data", "size")

    def __init__(self, payload: dict[str, Any]) -> None:
        """Copy a payload.

        Raises:
            ValueError: It isn't JSON.
            RecursionError: It nests too deep to be encoded.
        """
        self._data = marshal.dumps(payload, _TREE)
        # With few brackets it can't nest too deep: most skip the walk.
        if sum(map(self._data.count, _BRACKETS)) > MAX_NESTING and is_deep(payload, MAX_NESTING):
            raise RecursionError(f"a payload nests deeper than {MAX_NESTING} levels")
        self.size = len(self._data)

    def split(self) -> Parts:
        """As `split`."""
        # This process made the bytes itself, and they were never on a disk.
        return split(marshal.loads(self._data))  # noqa: S302


def capture(payload: dict[str, Any]) -> Parts | Snapshot:
    """A payload's current bytes, or a copy of a large payload that another thread encodes.

    Raises:
        RecursionError: It nests too deep.
        ValueError, TypeError: It isn't JSON.
    """
    if not _may_be_large(payload, 0):
        return (_encode(payload).encode(),)
    if is_large(payload):
        # `_split` accepts or refuses what marshal can't write.
        with contextlib.suppress(ValueError):
            return Snapshot(payload)
    return _split(payload)


def _may_be_large(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return len(value) >= MIN_PIECE_BYTES
    if isinstance(value, dict | list):
        if len(value) > MAX_MEMBERS or depth > MAX_DEPTH:
            return True
        for member in value.values() if type(value) is dict else value:
            # Most are short texts. A call for each would take longer than all the rest.
            if len(member) >= MIN_PIECE_BYTES if type(member) is str else _may_be_large(member, depth + 1):
                return True
        return False
    return isinstance(value, int) and value.bit_length() > MIN_PIECE_BYTES


def _walk(value: Any, depth: int, out: list[tuple[bool, str]]) -> None:
    begin = len(out)
    if depth < MAX_DEPTH and type(value) is dict and 0 < len(value) <= MAX_MEMBERS and _has_names(value):
        before = "{"
        for name, member in value.items():
            out.append((False, f"{before}{_encode(name)}:"))
            _walk(member, depth + 1, out)
            before = ","
        out.append((False, "}"))
    elif depth < MAX_DEPTH and type(value) is list and 0 < len(value) <= MAX_MEMBERS:
        before = "["
        for member in value:
            out.append((False, before))
            _walk(member, depth + 1, out)
            before = ","
        out.append((False, "]"))
    else:
        text = dumps(value, _encoder)
        out.append((len(text) >= MIN_PIECE_BYTES, text))
        return
    if depth and not any(is_piece for is_piece, _ in out[begin:]):
        text = "".join(part for _, part in out[begin:])
        out[begin:] = [(len(text) >= MIN_PIECE_BYTES, text)]


def _has_names(value: dict[Any, Any]) -> bool:
    # The encoder converts keys of other types to texts.
    return all(type(name) is str for name in value)


def manifest(parts: Parts, names: Sequence[bytes]) -> bytes:
    """The stored form of a payload whose large parts are pieces."""
    out = [IN_PIECES]
    for number, text in enumerate(parts[::2]):
        out += (_LENGTH.pack(len(text)), text, *names[number : number + 1])
    return b"".join(out)


def pack(piece: bytes) -> bytes:
    """A piece before it is sealed, compressed if that makes it shorter."""
    middle = len(piece) // 2
    sample = piece[middle : middle + _SAMPLE_BYTES]
    if len(zlib.compress(sample, _PACK_LEVEL)) > _WORTH * len(sample):
        return _PLAIN + piece
    return _PACKED + zlib.compress(piece, _PACK_LEVEL)


def unpack(data: bytes) -> bytes:
    """The piece, uncompressed.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    if data[:1] != _PACKED:
        return data[1:]
    reader = zlib.decompressobj()
    try:
        piece = reader.decompress(data[1:], MAX_PIECE_BYTES)
    except zlib.error as exc:
        raise damaged(f"a piece of a payload can't be unpacked: {exc}") from None
    if not reader.eof or reader.unused_data:
        raise damaged("a piece of a payload is longer than any, or cut off")
    return piece


def label_of(execution: str, name: bytes) -> bytes:
    """The label that a piece is sealed under, which binds it to its name and execution."""
    return f"piece/{execution}/{name.hex()}".encode()


class Pieces:
    """Reads the pieces of one execution.

    Args:
        execution: The execution.
        key: Its data key.
        fetch: Returns the sealed piece with a name; None if it is missing.
    """

    def __init__(self, execution: str, key: DataKey, fetch: Callable[[bytes], Any]) -> None:
        self.key = key
        self._execution = execution
        self._fetch = fetch
        self._seen: OrderedDict[bytes, bytes] = OrderedDict()
        self._size = 0
        self._values: dict[bytes, Any] = {}

    def text(self, name: bytes) -> bytes:
        """A piece.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        if (known := self._seen.get(name)) is not None:
            self._seen.move_to_end(name)
            return known
        sealed = self._fetch(name)
        if sealed is None:
            raise damaged(f"a piece of a payload of {self._execution} is missing")
        piece = unpack(self.key.open(sealed, label_of(self._execution, name)))
        if self.key.name(piece) != name:
            raise damaged(f"a piece of a payload of {self._execution} is another one")
        self._seen[name] = piece
        self._size += len(piece)
        while self._size > _REMEMBERED_BYTES and len(self._seen) > 1:
            self._size -= len(self._seen.popitem(last=False)[1])
        return piece

    def value(self, name: bytes) -> Any:
        """A piece as a JSON value: the same object every time, since an execution may refer to it very often."""
        if name not in self._values:
            self._values[name] = json.loads(self.text(name))
        return self._values[name]


class Payload:
    """A payload as it is read, checked against its commitment.

    Args:
        opened: The unsealed bytes: the salt, then the payload or its manifest.
        wanted: The commitment.
        sequence: The entry's number, for the error.
        pieces: The pieces of its execution; None for an entry about the log itself.

    Raises:
        BridgeError: `ledger_damaged`.
    """

    def __init__(self, opened: bytes, wanted: str, sequence: int, pieces: Pieces | None) -> None:
        self.salt = opened[:SALT_BYTES]
        self._pieces = pieces
        rest = opened[SALT_BYTES:]
        self._texts, self._names = _parse(rest) if rest.startswith(IN_PIECES) else ([rest], [])
        if commitment(self._parts() if self._names else self._texts[0], self.salt) != wanted:
            raise damaged(f"the payload of the entry {sequence} is not the one that it was made for")

    @property
    def data(self) -> bytes:
        """The payload's bytes."""
        return b"".join(self._parts()) if self._names else self._texts[0]

    @property
    def names(self) -> list[bytes]:
        """The names of its pieces."""
        return self._names

    def value(self) -> Any:
        """The payload as a JSON value. Content recorded more than once is one object, which must not be changed."""
        if not self._names or self._pieces is None:
            return json.loads(self._texts[0])
        # Random, so that nothing in the text around it can be mistaken for it.
        mark = secrets.token_hex(16)
        text = self._texts[0].decode()
        for number, after in enumerate(self._texts[1:]):
            text += f'"{mark}{number}"{after.decode()}'
        values = {f"{mark}{number}": self._pieces.value(name) for number, name in enumerate(self._names)}
        return _filled(json.loads(text), values)

    def _parts(self) -> list[bytes]:
        parts = [self._texts[0]]
        for name, text in zip(self._names, self._texts[1:], strict=True):
            parts += (b"" if self._pieces is None else self._pieces.text(name), text)
        return parts


def pieces_of(connection: sqlite3.Connection, execution: str, key: DataKey) -> Pieces:
    """A reader of an execution's pieces over a connection."""

    def fetch(name: bytes) -> Any:
        # A corrupted byte can turn bytes into text, whatever the schema says.
        query = "SELECT CAST(sealed AS BLOB) FROM pieces WHERE execution = ? AND name = ?"
        row = connection.execute(query, (execution, name)).fetchone()
        return None if row is None else row[0]

    return Pieces(execution, key, fetch)


def payload_of(leaf: Leaf, sealed: bytes | None, pieces: Pieces | None) -> Payload | None:
    """The payload of an entry; None if it is erased.

    Args:
        leaf: The entry.
        sealed: Its payload as it is stored.
        pieces: The reader of its execution's pieces, with the data key; None if the key is destroyed.

    Raises:
        BridgeError: `ledger_damaged`: it isn't the payload that the entry commits to.
    """
    if leaf.execution != LEDGER:
        if pieces is None:
            return None
        if sealed is None:
            raise damaged(f"the payload of the entry {leaf.sequence} is missing")
        sealed = pieces.key.open(sealed, leaf.commitment.encode())
    elif sealed == b"":
        # Withheld: it named erased values. Verification checks that another entry says so.
        return None
    if sealed is None:
        raise damaged(f"the payload of the entry {leaf.sequence} is missing")
    return Payload(sealed, leaf.commitment, leaf.sequence, pieces)


def _parse(kept: bytes) -> tuple[list[bytes], list[bytes]]:
    texts: list[bytes] = []
    names: list[bytes] = []
    at = len(IN_PIECES)
    while True:
        if len(kept) < at + _LENGTH.size:
            raise damaged("a payload in pieces is cut off")
        (length,) = _LENGTH.unpack_from(kept, at)
        at += _LENGTH.size
        texts.append(kept[at : at + length])
        at += length
        if at == len(kept):
            return texts, names
        names.append(kept[at : at + NAME_BYTES])
        at += NAME_BYTES


def _filled(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, str):
        return values.get(value, value)
    if isinstance(value, dict):
        for name, member in value.items():
            value[name] = _filled(member, values)
    elif isinstance(value, list):
        value[:] = [_filled(member, values) for member in value]
    return value
