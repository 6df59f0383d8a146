"""Payloads in pieces: what an execution has recorded once is kept once.

A payload is JSON. Its large parts (a value that was read, the code, a context) are *pieces*. They are kept in the table
`pieces` by their names, MACs of their bytes under the execution's own key; the payload holds the names. The bytes that
an entry commits to are those of the whole payload: a reader puts it together again, and checks it.

Which parts are pieces doesn't matter to anybody who reads: they can be cut otherwise by another version.
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

from mcp_bridge.large_json import dumps
from mcp_bridge.ledger.proofs.disclosures import SALT_BYTES, commitment
from mcp_bridge.ledger.storage.sealing import NAME_BYTES, damaged
from mcp_bridge.offload import is_deep, is_large

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_bridge.ledger.storage.sealing import DataKey

Parts: TypeAlias = "tuple[bytes, ...]"
"""A payload's bytes: text and pieces in turn, the first and the last of them text, which may be empty."""

MIN_PIECE_BYTES = 1024
"""A shorter part costs as much to look up as to keep."""

MAX_DEPTH = 4
"""How deep a part may be: the text of a tool's raw result is in `value`, `content`, a place, `text`."""

MAX_NESTING = 250
"""Of arrays and objects in a large payload: more than in anything that comes from outside. It is encoded where a
failure would be one of the file, after which nothing is written any more."""

MAX_MEMBERS = 64
"""Of an object or an array that is looked into: a larger one is a piece as a whole."""

MAX_PIECE_BYTES = 64 << 20
"""Of what a piece is when it is unpacked; the channel lets nothing in that is half as large."""

_PACK_LEVEL = 1
_SAMPLE_BYTES = 4096
_WORTH = 0.9
"""Of a sample's length, what it has to be packed to: or packing the whole of it takes time for nothing."""

_PACKED, _PLAIN = b"\1", b"\0"

IN_PIECES = b"\1"
"""Follows the salt of a payload that is kept in pieces. One that isn't begins with a brace."""

_REMEMBERED_BYTES = 8 << 20
"""Of pieces that a reader has seen last."""

_TREE = 2
"""The form of what Python keeps of its values that knows no references: an object that is there twice is two."""

_BRACKETS = (b"[", b"{")
"""With which Python begins an array and an object in that form."""

_LENGTH = struct.Struct(">I")

_encoder = json.JSONEncoder(separators=(",", ":"))
_encode = _encoder.encode


def split(payload: dict[str, Any]) -> Parts:
    """A payload as its bytes, cut where something large begins and ends. Joined they are what `json.dumps` gives."""
    if not _may_be_large(payload, 0):
        return (_encode(payload).encode(),)
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
    """A large payload as it was, to be encoded elsewhere: to be cut it is walked through, value by value.

    It is taken in a hundredth of that time: others are waiting for the thread that posts.

    Attributes:
        size: Bytes of it, which are about those of the payload.
    """

    __slots__ = ("_data", "size")

    def __init__(self, payload: dict[str, Any]) -> None:
        """Take a payload.

        Raises:
            ValueError: It isn't JSON.
            RecursionError: It nests too deep to be encoded.
        """
        self._data = marshal.dumps(payload, _TREE)
        # One with few brackets can't be too deep: most skip the walk.
        if sum(map(self._data.count, _BRACKETS)) > MAX_NESTING and is_deep(payload, MAX_NESTING):
            raise RecursionError(f"a payload nests deeper than {MAX_NESTING} levels")
        self.size = len(self._data)

    def split(self) -> Parts:
        """As `split`."""
        # Of this process's own making a moment ago, and never on a disk.
        return split(marshal.loads(self._data))  # noqa: S302


def taken(payload: dict[str, Any]) -> Parts | Snapshot:
    """A payload's bytes, or of a large one what they can be made of later, on another thread.

    Raises:
        RecursionError: It nests too deep.
        ValueError, TypeError: It isn't JSON.
    """
    if _may_be_large(payload, 0) and is_large(payload):
        # What Python doesn't write so is for `split` to take or to refuse.
        with contextlib.suppress(ValueError):
            return Snapshot(payload)
    return split(payload)


def _may_be_large(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return len(value) >= MIN_PIECE_BYTES
    if isinstance(value, dict | list):
        if len(value) > MAX_MEMBERS or depth > MAX_DEPTH:
            return True
        return any(_may_be_large(member, depth + 1) for member in (value.values() if type(value) is dict else value))
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
    # Another key is made a text when it is encoded.
    return all(type(name) is str for name in value)


def skeleton(parts: Parts, names: Sequence[bytes]) -> bytes:
    """What is kept of a payload in pieces, beside them."""
    out = [IN_PIECES]
    for number, text in enumerate(parts[::2]):
        out += (_LENGTH.pack(len(text)), text, *names[number : number + 1])
    return b"".join(out)


def pack(piece: bytes) -> bytes:
    """A piece as it is sealed: packed, where that makes it shorter."""
    middle = len(piece) // 2
    sample = piece[middle : middle + _SAMPLE_BYTES]
    if len(zlib.compress(sample, _PACK_LEVEL)) > _WORTH * len(sample):
        return _PLAIN + piece
    return _PACKED + zlib.compress(piece, _PACK_LEVEL)


def unpack(data: bytes) -> bytes:
    """The piece that was packed.

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
    """Where a piece belongs: it opens nowhere else."""
    return f"piece/{execution}/{name.hex()}".encode()


class Pieces:
    """The pieces of one execution, as they are read.

    Args:
        execution: Whose.
        key: Opens them.
        fetch: The sealed piece of a name; None where there is none.
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
        """The JSON value that a piece is. The same object every time: an execution may have read it very often."""
        if name not in self._values:
            self._values[name] = json.loads(self.text(name))
        return self._values[name]


class Payload:
    """A payload that was read, and held against its commitment.

    Args:
        opened: As it was sealed: the salt, and the payload or what is kept of it beside its pieces.
        wanted: The commitment.
        sequence: The entry's, for the error.
        pieces: Those of its execution; None for one that has none.

    Raises:
        BridgeError: `ledger_damaged`.
    """

    def __init__(self, opened: bytes, wanted: str, sequence: int, pieces: Pieces | None) -> None:
        self.salt = opened[:SALT_BYTES]
        self._pieces = pieces
        rest = opened[SALT_BYTES:]
        self._texts, self._names = _parse(rest) if rest.startswith(IN_PIECES) else ([rest], [])
        if commitment(self._parts(), self.salt) != wanted:
            raise damaged(f"the payload of the entry {sequence} is not the one that it was made for")

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return b"".join(self._parts())

    @property
    def names(self) -> list[bytes]:
        """The names of its pieces."""
        return self._names

    def value(self) -> Any:
        """It as JSON. What was recorded more than once is one object: it isn't to be changed."""
        if not self._names or self._pieces is None:
            return json.loads(self._texts[0])
        # Of its own each time: nothing in the text around it can be taken for it.
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
