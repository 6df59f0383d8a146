"""What outlives a sandbox: artifacts, whole outputs that were cut, and memories. Files under the state directory.

No name from a script becomes a file name as it is: an artifact's is checked, a memory's key is hashed.
"""

from __future__ import annotations

import codecs
import hashlib
import heapq
import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import anyio

from mcp_bridge.atomic_files import sync_directory, sync_file, write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import locked
from mcp_bridge.large_json import dumps, loads
from mcp_bridge.private_files import private_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

TOTAL_NAME = "files.total"
"""In the state directory: how many bytes artifacts and outputs have. Whoever has it locked may change that."""

MEMORY_LOCK_NAME = "memory.lock"
"""In the state directory: whoever has it locked may change memories."""

FILE_BYTES = 4096
"""What a file counts for besides its content: an empty one takes room, too."""

MAX_URI_CHARS = 4000
MAX_MEMORY_BYTES = 4 << 20
MAX_MEMORIES = 1000
MAX_MEMORIES_BYTES = 64 << 20
MAX_KEY_CHARS = 200
_HEAD_BYTES = 2048
"""Enough of a memory's file for its key."""

MAX_ARTIFACTS = 1000

ARTIFACT_SCHEME = "artifact"
OUTPUT_SCHEME = "output"

OUTPUT_PART_BYTES = 1 << 20
"""The most of a kept output that is read at once."""

MAX_POSITION = 1 << 62
"""In a file: what a system takes for one."""

MAX_ARTIFACTS_LISTED = 100

_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff/\\]{1,200}")
"""No separator, nothing that changes how a terminal shows the rest of a line, and no byte that isn't text."""

_EXECUTION = re.compile(r"[0-9a-f]{16}")
_OUTPUT = re.compile(r"[a-z]{1,20}(-[0-9]{1,4})?")
_ID = re.compile(r"[0-9a-f]+")
_encoder, _decoder = json.JSONEncoder(ensure_ascii=False), json.JSONDecoder()
_MEMORY = re.compile(r"[0-9a-f]{64}\.json")

FOLDERS = ("files", "outputs", "memory")
"""In the state directory: where all of it is."""


def is_kept(name: str) -> bool:
    """Whether a path in the state directory is one that is made here, of a file that is whole."""
    match name.split("/"):
        case ["files", execution, file]:
            return bool(_ID.fullmatch(execution)) and _valid_name(file)
        case ["outputs", execution, file]:
            # One with a dot at its beginning is being written.
            return bool(_ID.fullmatch(execution)) and _valid_name(file) and not file.startswith(".")
        case ["memory", file]:
            return bool(_MEMORY.fullmatch(file))
    return False


class Files:
    """Artifacts and whole outputs, a directory an execution.

    Args:
        state_dir: The state directory.
        limit: The most bytes that all of them may have, whichever process keeps them; None for any.
    """

    def __init__(self, state_dir: Path, limit: int | None = None) -> None:
        self._root = state_dir / "files"
        self._outputs = state_dir / "outputs"
        self._total = state_dir / TOTAL_NAME
        self._limit = limit

    def take(self, size: int) -> bool:
        """Count some bytes more; False if there is no room for them, and they don't count.

        Raises:
            OSError: As the system gives it.
        """
        if self._limit is None:
            return True
        private_directory(self._total.parent)
        with locked(self._total) as fd:
            total = _read_number(fd) + size
            if size > 0 and total > self._limit:
                return False
            _write_number(fd, max(0, total))
        return True

    def used(self) -> int:
        """How many bytes are counted."""
        try:
            with locked(self._total) as fd:
                return _read_number(fd)
        except FileNotFoundError:
            return 0

    def recount(self) -> None:
        """Count anew what is there: whoever was killed may not have taken down what it did.

        Raises:
            OSError: As the system gives it.
        """
        if self._limit is None:
            return
        before = self.used()
        found = sum(map(_bytes_in, (self._root, self._outputs)))
        # Not while it is locked: others write meanwhile, and count what they write.
        self.take(found - before)

    def directory(self, execution: str) -> Path:
        """The execution's directory, made if need be."""
        return private_directory(self._root / execution)

    def save_output(self, execution: str, name: str, data: bytes) -> Path:
        """Keep an output whole; returns its path.

        Raises:
            BridgeError: `files_full`.
            OSError: As the system gives it.
        """
        # Apart from the artifacts, whose names the script chooses.
        path = self._outputs / execution / name
        size = len(data) + FILE_BYTES - _bytes_of(path)
        if not self.take(size):
            raise self.full()
        try:
            private_directory(path.parent)
            write_private(path, data)
        except BaseException:
            self.take(-size)
            raise
        return path

    def read_output(self, execution: str, name: str, start: int, count: int) -> tuple[str, int | None]:
        r"""A part of an output that was kept whole.

        Args:
            execution: Whose.
            name: As it was saved, without its ending.
            start: The byte that it begins with.
            count: The most bytes of it, and characters.

        Returns:
            Whole characters, and the byte after them, or None at the end. What is no UTF-8, such as the rest of a
            character that begins before `start`, is written as `\xNN`.

        Raises:
            BridgeError: `unknown_output`.
        """
        if _EXECUTION.fullmatch(execution) and _OUTPUT.fullmatch(name) and 0 <= start < MAX_POSITION:
            try:
                with (self._outputs / execution / f"{name}.txt").open("rb") as file:
                    # Systems differ in how far beyond a file's end they go.
                    file.seek(min(start, os.fstat(file.fileno()).st_size))
                    data = file.read(count + 1)
            except OSError:
                pass
            else:
                part, taken = _whole_characters(data[:count], is_last=len(data) <= count)
                if len(part) > count:
                    # Of what is no text a byte takes four characters.
                    part, taken = _whole_characters(data[: count // 4], is_last=False)
                return part, start + taken if taken < len(data) else None
        raise BridgeError(
            "unknown_output",
            f"No output {name[:50]!r} is kept of the execution {execution[:50]!r}.",
            hint="Only what an answer had to cut is kept, for some days. Run the script again, and print less of it.",
        )

    def artifacts(self) -> list[tuple[str, int]]:
        """The URIs and sizes of the newest artifacts, newest first; at most MAX_ARTIFACTS_LISTED."""
        found: list[tuple[float, str, int]] = []
        for folder in heapq.nlargest(MAX_ARTIFACTS_LISTED, self._root.glob("*"), key=_changed):
            if not _EXECUTION.fullmatch(folder.name):
                continue
            # Another bridge may remove it meanwhile.
            with suppress(OSError):
                for path in folder.iterdir():
                    if _valid_name(path.name):
                        status = path.stat()
                        found.append((status.st_mtime, artifact_uri(folder.name, path.name), status.st_size))
        return [(uri, size) for _, uri, size in heapq.nlargest(MAX_ARTIFACTS_LISTED, found)]

    def full(self) -> BridgeError:
        """Of what there is no room for."""
        return BridgeError(
            "files_full",
            f"Artifacts and kept outputs are limited to {self._limit} bytes, those of all runs together.",
            hint="The operator can remove some (mcp-bridge erase), or raise max_files_size in [ledger].",
        )

    def read(self, uri: str) -> bytes:
        """The bytes behind an artifact's URI.

        Raises:
            BridgeError: `unknown_artifact`.
        """
        scheme, _, rest = uri.partition("://")
        execution, _, quoted = rest.partition("/")
        # A byte that is no UTF-8 becomes a character that no artifact's name is asked for by.
        name = unquote(quoted) if len(quoted) < MAX_URI_CHARS else ""
        if scheme == ARTIFACT_SCHEME and _EXECUTION.fullmatch(execution) and _valid_name(name):
            try:
                return (self._root / execution / name).read_bytes()
            except OSError:
                pass
        raise BridgeError("unknown_artifact", f"There is no artifact {uri[:200]!r}.")

    def remove(self, execution: str) -> None:
        """Remove what is kept of an execution, if anything is.

        Raises:
            OSError: As the system gives it; what is left can be removed by another try.
        """
        if _ID.fullmatch(execution):
            for root in (self._root, self._outputs):
                self._remove(root / execution)

    def _remove(self, folder: Path) -> None:
        size = _bytes_in(folder)
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        if size:
            self.take(-size)

    def sweep(self, before: float, wanted: Collection[str] = ()) -> None:
        """Remove what was changed last before a time.

        Args:
            before: Seconds since 1970.
            wanted: Executions whose files stay.

        Raises:
            OSError: As the system gives it.
        """
        for path in (*self._root.glob("*"), *self._outputs.glob("*")):
            # Another bridge may have been quicker.
            with suppress(FileNotFoundError):
                if path.name not in wanted and path.stat().st_mtime < before:
                    self._remove(path)
        self.recount()


def artifact_uri(execution: str, name: str) -> str:
    """The address of an artifact."""
    return f"{ARTIFACT_SCHEME}://{execution}/{quote(name, safe='')}"


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _whole_characters(data: bytes, *, is_last: bool) -> tuple[str, int]:
    """UTF-8 as text, and how many bytes of it: what its end cuts of a character is left, if something comes after."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    text = decoder.decode(data, final=is_last)
    return text, len(data) - len(decoder.getstate()[0])


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_size + FILE_BYTES
    except FileNotFoundError:
        return 0


def _bytes_in(folder: Path) -> int:
    return sum(_bytes_of(Path(at) / name) for at, _, names in os.walk(folder) for name in names)


def _read_number(fd: int) -> int:
    text = os.pread(fd, _NUMBER_BYTES, 0)
    return int(text) if text.isdigit() else 0


def _write_number(fd: int, number: int) -> None:
    text = str(number).encode()
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))


_NUMBER_BYTES = 20


_PART_NAME = ".part"


def _valid_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name not in {".", "..", _PART_NAME} and len(name.encode()) <= 255  # noqa: PLR2004


@dataclass(slots=True)
class _Open:
    name: str
    path: Path
    file: IO[bytes]
    size: int


class ArtifactWriter:
    """Receives one execution's artifacts, part by part.

    Args:
        files: Where they go.
        execution: Whose they are.
        limit: The most bytes they may have together.
    """

    def __init__(self, files: Files, execution: str, limit: int) -> None:
        self._files = files
        self._execution = execution
        self._limit = limit
        self._total = 0
        self._counted = 0
        """Bytes that are taken for what isn't there, or won't be."""
        self._open: _Open | None = None
        self.written: list[dict[str, Any]] = []

    def write(self, name: str, data: bytes, *, first: bool, last: bool) -> dict[str, Any]:
        """Take a part; for the last one, the artifact's `name`, `uri`, `path` and `size`, else an empty dict.

        Raises:
            BridgeError: `bad_artifact_name`, `artifact_too_large`, `too_many_artifacts`, `files_full`, `disk_full`,
            `bad_artifact` (parts out of order).
        """
        if not _valid_name(name):
            raise BridgeError(
                "bad_artifact_name", f"{name[:100]!r} is no name for an artifact.", hint="Use a plain file name."
            )
        if first and len(self.written) >= MAX_ARTIFACTS:
            raise BridgeError("too_many_artifacts", f"This run has kept {MAX_ARTIFACTS} artifacts.")
        if first:
            self.abort()
        self._total += len(data)
        if self._total > self._limit:
            self.abort()
            raise BridgeError(
                "artifact_too_large",
                f"The artifacts of this run are over {self._limit} bytes.",
                hint="Raise max_artifact_size.",
            )
        try:
            size = len(data) + (FILE_BYTES if first else 0)
            if not self._files.take(size):
                self.abort()
                raise self._files.full()
            self._counted += size
            if first:
                # No artifact can have this name.
                path = self._files.directory(self._execution) / _PART_NAME
                self._open = _Open(
                    name,
                    path,
                    open(path, "wb", opener=_private_opener),  # noqa: SIM115  (Path.open takes no opener; the parts follow)
                    0,
                )
            part = self._open
            if part is None or part.name != name:
                raise BridgeError("bad_artifact", "The parts of an artifact came out of order.")
            part.file.write(data)
            part.size += len(data)
            if not last:
                return {}
            part.file.close()
            final = part.path.with_name(name)
            # What is there is replaced.
            self._counted = _bytes_of(final)
            part.path.replace(final)
            self._uncount()
        except OSError as exc:
            self.abort()
            raise BridgeError("disk_full", f"The artifact {name!r} can't be written: {exc.strerror}.") from None
        self._open = None
        row = {
            "name": name,
            "uri": artifact_uri(self._execution, name),
            "path": str(final),
            "size": part.size,
        }
        self.written = [other for other in self.written if other["name"] != name] + [row]
        return row

    def sync(self) -> None:
        """Have what was written on the disk, before anybody is told that it is kept.

        Raises:
            BridgeError: `disk_full`.
        """
        if not self.written:
            return
        directory = self._files.directory(self._execution)
        try:
            for row in self.written:
                sync_file(directory / row["name"])
            for folder in (directory, *directory.parents[:2]):
                sync_directory(folder)
        except OSError as exc:
            raise BridgeError("disk_full", f"The artifacts can't be written: {exc.strerror}.") from None

    def abort(self) -> None:
        """Drop an artifact that is not complete."""
        if self._open is not None:
            self._open.file.close()
            self._open.path.unlink(missing_ok=True)
            self._open = None
        with suppress(OSError):
            self._uncount()

    def _uncount(self) -> None:
        if self._counted:
            self._files.take(-self._counted)
        self._counted = 0


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class Memories:
    """JSON values by key, a file each.

    Args:
        state_dir: The state directory.
    """

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / "memory"
        self._lock = state_dir / MEMORY_LOCK_NAME
        self.turn = anyio.Lock()
        """To be held around every call: a merge reads and then writes."""

    def save(self, key: str, value: Any, *, update: bool) -> None:
        """Keep a value; with `update`, an object is merged into the object that is there.

        Raises:
            BridgeError: `bad_memory` (the key, or too large), `too_many_memories`, `disk_full`.
        """
        path = self._path(key)
        private_directory(self._root, durable=True)
        try:
            # A merge reads and then writes, and so does the limit, and there may be other processes.
            with locked(self._lock):
                self._save(path, key, value, update=update)
        except OSError as exc:
            raise BridgeError("disk_full", f"The memory {key!r} can't be written: {exc.strerror}.") from None

    def _save(self, path: Path, key: str, value: Any, *, update: bool) -> None:
        if update and isinstance(value, dict):
            found, old = self.load(key)
            if found and isinstance(old, dict):
                value = old | value
        data = dumps({"key": key, "value": value}, _encoder).encode()
        if len(data) > MAX_MEMORY_BYTES:
            raise BridgeError("bad_memory", f"The memory {key!r} is over {MAX_MEMORY_BYTES} bytes.")
        others = list(self._sizes(path))
        if len(others) >= MAX_MEMORIES or sum(others) + len(data) > MAX_MEMORIES_BYTES:
            raise BridgeError(
                "too_many_memories",
                f"Memories are limited to {MAX_MEMORIES} and {MAX_MEMORIES_BYTES} bytes together.",
                hint="Delete some.",
            )
        write_private(path, data, durable=True)

    def _sizes(self, but: Path) -> Iterator[int]:
        for other in self._root.iterdir():
            # Another bridge may remove it meanwhile.
            with suppress(FileNotFoundError):
                if other.name.startswith("."):
                    # Somebody was killed while writing it: nobody else is at it now.
                    other.unlink()
                elif other != but:
                    yield other.stat().st_size

    def load(self, key: str) -> tuple[bool, Any]:
        """Whether there is such a key, and its value.

        Raises:
            BridgeError: `bad_memory`.
        """
        try:
            return True, loads(self._path(key).read_bytes(), _decoder)["value"]
        except FileNotFoundError:
            return False, None
        except (OSError, ValueError, KeyError, TypeError):
            raise BridgeError(
                "bad_memory", f"The file of the memory {key!r} is damaged.", hint="Save it anew."
            ) from None

    def delete(self, key: str) -> bool:
        """Forget a key; whether there was one."""
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        sync_directory(self._root)
        return True

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, sorted."""
        found = []
        for path in self._root.glob("*.json") if self._root.is_dir() else ():
            try:
                with path.open("rb") as file:
                    head = file.read(_HEAD_BYTES).decode("utf-8", "ignore")
                # The key comes first: the values, which may be long, are not read.
                key, _ = json.JSONDecoder().raw_decode(head, head.index(":") + 2)
            except (OSError, ValueError):
                continue
            if isinstance(key, str) and key.startswith(prefix):
                found.append(key)
        return sorted(found)

    def _path(self, key: str) -> Path:
        if not 0 < len(key) <= MAX_KEY_CHARS:
            raise BridgeError("bad_memory", f"A memory's key has 1 to {MAX_KEY_CHARS} characters.")
        return self._root / (hashlib.sha256(key.encode()).hexdigest() + ".json")
