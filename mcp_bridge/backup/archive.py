"""A backup's content: a tar of plain files, whose last ones say what has to be in it.

`tar` unpacks it. It is read by rules of our own, which are fewer than tar's: regular files alone, under names that the
reader knows, each with the size and hash that the manifest at the end says. So one that was cut off has no manifest.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mcp_bridge.backup.age import damaged
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.ledger.storage.sealing import MasterKey

FIRST_NAME = "backup.json"
MANIFEST_NAME = "manifest.json"
MAC_NAME = "manifest.mac"

FORMAT = "mcp-bridge backup"
VERSION = 1

BLOCK_BYTES = tarfile.BLOCKSIZE
PIECE_BYTES = 1 << 20
"""Bytes of a file that are in memory at once."""

MAX_META_BYTES = 64 << 20
"""Largest manifest: some hundred bytes for each file."""

_MAX_NAME_BYTES = 1024


class Source(Protocol):
    """What is read."""

    def read(self, size: int, /) -> bytes:
        """So many bytes; fewer at the end only."""


class Target(Protocol):
    """What is written to."""

    def write(self, data: bytes, /) -> int:
        """All of it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive.

    Attributes:
        name: Its path in the state directory.
        size: In bytes.
        changed: When it was changed last, in seconds since 1970.
    """

    name: str
    size: int
    changed: int


class Writer:
    """Writes an archive.

    Args:
        target: Where to.
        first: What a reader is told at once, beside format and version.
    """

    def __init__(self, target: Target, first: dict[str, Any]) -> None:
        self._target = target
        self._files: dict[str, dict[str, Any]] = {}
        self._first = {"format": FORMAT, "version": VERSION, **first}
        self._add(FIRST_NAME, _json(self._first))

    def add(self, name: str, size: int, changed: float, source: Source) -> None:
        """Add a file.

        Raises:
            BridgeError: `backup_failed`: it is shorter than that.
            OSError: As source and target give it.
        """
        self._target.write(_header(Member(name, size, int(changed))))
        digest, left = hashlib.sha256(), size
        while left:
            piece = source.read(min(left, PIECE_BYTES))
            if not piece:
                raise BridgeError("backup_failed", f"{name} became shorter while it was copied.", hint="Try again.")
            digest.update(piece)
            self._target.write(piece)
            left -= len(piece)
        self._target.write(bytes(-size % BLOCK_BYTES))
        self._files[name] = {"size": size, "sha256": digest.hexdigest()}

    def close(self, facts: dict[str, Any], master: MasterKey) -> None:
        """Write the manifest, with a MAC under the master key, and the end.

        Raises:
            OSError: As the target gives it.
        """
        manifest = _json({**facts, "first": self._first, "files": self._files})
        self._add(MANIFEST_NAME, manifest)
        self._add(MAC_NAME, _mac(master, manifest).encode())
        self._target.write(bytes(2 * BLOCK_BYTES))

    def _add(self, name: str, data: bytes) -> None:
        self._target.write(_header(Member(name, len(data), 0)) + data + bytes(-len(data) % BLOCK_BYTES))


class Reader:
    """Reads an archive from its beginning to its end.

    Args:
        source: It.

    Attributes:
        first: What it says at once.
        manifest: What it says at the end, once that was read.

    Raises:
        BridgeError: `backup_newer`; `backup_damaged`, as by everything that is done with it.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = self._padding = 0
        self._digest = hashlib.sha256()
        self._read: dict[str, dict[str, Any]] = {}
        self._manifest = b""
        self._mac = b""
        self.manifest: dict[str, Any] = {}
        member = self._header()
        if member is None or member.name != FIRST_NAME:
            raise damaged("it doesn't begin as one")
        self.first = _object(self._small(member, PIECE_BYTES))
        if self.first.get("format") != FORMAT or type(self.first.get("version")) is not int:
            raise damaged("it doesn't begin as one")
        if self.first["version"] > VERSION:
            raise BridgeError(
                "backup_newer", "The backup was written by a later version of this program.", hint="Use that version."
            )

    def members(self) -> Iterator[Member]:
        """Its files; each has to be read with `read` before the next."""
        while (member := self._header()) is not None:
            if member.name == MANIFEST_NAME:
                self._end(member)
                return
            self._begin(member)
            yield member
            while self.read(PIECE_BYTES):
                pass
            self._read[member.name] = {"size": member.size, "sha256": self._digest.hexdigest()}
        raise damaged("its end is missing")

    def read(self, size: int) -> bytes:
        """So many bytes of the file that `members` gave last; fewer at its end only."""
        wanted = min(size, self._left)
        data = self._source.read(wanted)
        if len(data) != wanted:
            raise damaged("it ends too soon")
        self._left -= wanted
        self._digest.update(data)
        if wanted and not self._left:
            self._skip_padding()
        return data

    def check_mac(self, master: MasterKey) -> None:
        """See that whoever wrote it had the master key.

        Raises:
            BridgeError: `backup_damaged`.
        """
        if _mac(master, self._manifest).encode() != self._mac:
            raise damaged("its manifest was changed, or is another ledger's")

    def _end(self, member: Member) -> None:
        self._manifest = self._small(member, MAX_META_BYTES)
        self.manifest = _object(self._manifest)
        last = self._header()
        if last is None or last.name != MAC_NAME:
            raise damaged("its end is missing")
        self._mac = self._small(last, BLOCK_BYTES)
        if self._header() is not None or self._source.read(BLOCK_BYTES + 1) != bytes(BLOCK_BYTES):
            raise damaged("there is something behind its end")
        if self.manifest.get("files") != self._read or self.manifest.get("first") != self.first:
            raise damaged("its files are not those that it says")

    def _begin(self, member: Member) -> None:
        if member.name in self._read:
            raise damaged(f"{member.name!r:.300} is in it twice")
        self._left, self._digest, self._padding = member.size, hashlib.sha256(), -member.size % BLOCK_BYTES

    def _small(self, member: Member, limit: int) -> bytes:
        if member.size > limit:
            raise damaged(f"{member.name} is too large")
        self._begin(member)
        return self.read(member.size)

    def _skip_padding(self) -> None:
        if self._source.read(self._padding) != bytes(self._padding):
            raise damaged("it ends too soon")

    def _header(self) -> Member | None:
        """The next file; None at the end."""
        name = None
        while True:
            block = self._source.read(BLOCK_BYTES)
            if len(block) != BLOCK_BYTES:
                raise damaged("it ends too soon")
            if not any(block):
                return None
            try:
                # A name that was long is cut off here, in the midst of a character perhaps.
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except (tarfile.HeaderError, ValueError):
                raise damaged("it has an invalid header") from None
            if info.type == tarfile.GNUTYPE_LONGNAME and name is None and 0 < info.size <= _MAX_NAME_BYTES:
                name = self._long_name(info.size)
            elif info.type == tarfile.REGTYPE and info.size >= 0:
                return Member(info.name if name is None else name, info.size, int(info.mtime))
            else:
                raise damaged("it contains something that isn't a regular file")

    def _long_name(self, size: int) -> str:
        data = self._source.read(size + -size % BLOCK_BYTES)
        try:
            if data[size - 1 :].rstrip(b"\0") == b"":
                return data[: size - 1].decode()
        except UnicodeDecodeError:
            pass
        raise damaged("it contains an invalid file name")


def _header(member: Member) -> bytes:
    info = tarfile.TarInfo(member.name)
    info.size, info.mtime, info.mode = member.size, member.changed, 0o600
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _mac(master: MasterKey, manifest: bytes) -> str:
    return master.mac("backup", manifest).hex()


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True).encode()


def _object(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise damaged("what it says of itself can't be read")
    return parsed
