"""The files of an input as a script gets them: hashed when they are opened, and checked at each read against that.

A snapshot holds no content and no open file. It is a list of files with their SHA-256, and a hash of each part of all
content in a row. A part is given only if it has the hash that it had: a file that changes while it is read is an error,
and never a mixture.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mcp_bridge.inputs.listing import listed
from mcp_bridge.inputs.open_without_links import Identity, RefusedError, opened_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_bridge.inputs.config import InputSource

PART_BYTES = 1 << 20
"""Bytes of a part: what one request reads."""

CHANGED = "has changed while it was read"


class HashedFile(NamedTuple):
    """A file with its hash.

    Attributes:
        path: As `ListedFile.path`.
        size: Bytes.
        modified_ns: As `ListedFile.modified_ns`.
        sha256: The SHA-256 of its content, in hexadecimal.
        identity: The file that it was.
    """

    path: str
    size: int
    modified_ns: int
    sha256: str
    identity: Identity

    def row(self) -> dict[str, Any]:
        """As it is answered and recorded; `modified` is in seconds since 1970."""
        return {"path": self.path, "sha256": self.sha256, "size": self.size, "modified": self.modified_ns / 1e9}


class InputSnapshot:
    """An input, or a folder or file of it, as it was when it was opened.

    Args:
        source: The input.
        within: The path in its folder; empty for all of it.
        kind: What it is.
        files: Its files, in the order of their paths.
        parts: The hash of each part of their content in a row.
        left_out: What isn't handed in, and why.

    Attributes:
        version: A SHA-256 over paths, sizes and hashes: equal for equal content, whenever it was changed.
        size: Bytes of all files.
    """

    def __init__(
        self,
        source: InputSource,
        within: str,
        kind: Literal["file", "folder"],
        files: Sequence[HashedFile],
        parts: Sequence[bytes],
        left_out: Sequence[str],
    ) -> None:
        self._source = source
        self._within = within
        self.kind = kind
        self.files = files
        self._parts = parts
        self.left_out = left_out
        self._ends: list[int] = []
        end = 0
        for file in files:
            end += file.size
            self._ends.append(end)
        self.size = end
        self.version = version_of([file.row() for file in files])

    @property
    def weight(self) -> int:
        """How many files and parts it knows, by which the memory that it takes grows."""
        return len(self.files) + len(self._parts)

    def is_current(self) -> bool:
        """Whether all files are those that were hashed, by their identities, and there is no other."""
        try:
            listing = listed(self._source, self._within)
        except RefusedError:
            return False
        now = [(file.path, file.identity) for file in listing.files]
        return now == [(file.path, file.identity) for file in self.files]

    def read(self, number: int) -> bytes:
        """A part of the content of all files in a row.

        Args:
            number: The part's number, from 0.

        Raises:
            RefusedError: There is no such part; a file isn't what it was (`file_changed`).
        """
        if not 0 <= number < len(self._parts):
            raise RefusedError("has no such part", "bad_request")
        start = number * PART_BYTES
        data = bytearray()
        index = bisect.bisect_right(self._ends, start)
        while len(data) < PART_BYTES and index < len(self.files):
            file = self.files[index]
            begins = self._ends[index] - file.size
            offset = start + len(data) - begins
            data += self._of_file(file, offset, min(PART_BYTES - len(data), file.size - offset))
            index += 1
        if hashlib.sha256(data).digest() != self._parts[number]:
            raise RefusedError(CHANGED, "file_changed")
        return bytes(data)

    def _of_file(self, file: HashedFile, offset: int, count: int) -> bytes:
        if not count:
            return b""
        try:
            with opened_file(self._source, joined(self._within, file.path)) as (fd, status):
                if Identity.of(status) != file.identity:
                    raise RefusedError(CHANGED, "file_changed")
                return _read(fd, offset, count)
        except RefusedError as exc:
            # Gone, or replaced by a link: changed, too.
            raise RefusedError(CHANGED if exc.code == "file_changed" else exc.why, "file_changed") from None


def version_of(rows: Sequence[dict[str, Any]]) -> str:
    """The `InputSnapshot.version` of files, of their rows."""
    told = [[row["path"], row["size"], row["sha256"]] for row in rows]
    return hashlib.sha256(json.dumps(told, separators=(",", ":")).encode()).hexdigest()


def joined(within: str, path: str) -> str:
    """A path in an input, of one in a folder of it."""
    return f"{within}/{path}" if within and path else within or path


def opened(
    source: InputSource, within: str, is_unwanted: Callable[[], bool] = lambda: False, room: int | None = None
) -> InputSnapshot:
    """Hash an input, or a folder or file of it. It reads all of it once.

    Args:
        source: The input.
        within: The path in its folder; empty for all of it.
        is_unwanted: Whether nobody waits for it any more.
        room: The most bytes that it may have; None for any number.

    Raises:
        RefusedError: As `listed`; `workspace_full`: it has more than `room`; `file_changed`: a file was written to
            meanwhile.
    """
    listing = listed(source, within)
    if room is not None and listing.size > room:
        # Known before all of it is read.
        full = f"has {listing.size} bytes, and /workspace has room for {max(0, room)}"
        raise RefusedError(full, "workspace_full", size=listing.size)
    parts = _Parts()
    files = [_hashed(source, joined(within, file.path), file.path, parts, is_unwanted) for file in listing.files]
    left_out = [*listing.left_out]
    if listing.more_left_out:
        left_out.append(f"{listing.more_left_out} more")
    return InputSnapshot(source, within, listing.kind, files, parts.digests(), left_out)


def _hashed(source: InputSource, place: str, path: str, parts: _Parts, is_unwanted: Callable[[], bool]) -> HashedFile:
    whole = hashlib.sha256()
    with opened_file(source, place) as (fd, status):
        identity = Identity.of(status)
        if parts.size + identity.size > source.max_size:
            # It has grown since it was listed.
            raise RefusedError(f"has more than {source.max_size} bytes, its max_size", "input_too_large")
        offset = 0
        while offset < identity.size:
            if is_unwanted():
                raise RefusedError("isn't wanted any more", "interrupted")
            data = _read(fd, offset, min(PART_BYTES, identity.size - offset))
            offset += len(data)
            whole.update(data)
            parts.add(data)
        # What stands beyond its size, as in files that the kernel makes, isn't in it.
        if os.pread(fd, 1, identity.size) or Identity.of(os.fstat(fd)) != identity:
            raise RefusedError(CHANGED, "file_changed")
    return HashedFile(path, identity.size, identity.modified_ns, whole.hexdigest(), identity)


def _read(fd: int, offset: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            more = os.pread(fd, count - len(data), offset + len(data))
        except OSError as exc:
            raise RefusedError(f"can't be read: {exc.strerror or exc}", "input_unavailable") from None
        if not more:
            raise RefusedError(CHANGED, "file_changed")
        data += more
    return bytes(data)


class _Parts:
    """The hashes of the parts of content that comes in a row."""

    def __init__(self) -> None:
        self.size = 0
        self._now = hashlib.sha256()
        self._room = PART_BYTES
        self._digests: list[bytes] = []

    def add(self, data: bytes) -> None:
        self.size += len(data)
        view = memoryview(data)
        while view:
            piece, view = view[: self._room], view[self._room :]
            self._now.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._digests.append(self._now.digest())
                self._now, self._room = hashlib.sha256(), PART_BYTES

    def digests(self) -> list[bytes]:
        return self._digests + ([self._now.digest()] if self._room < PART_BYTES else [])
