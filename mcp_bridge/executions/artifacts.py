"""The store of files that outlive a sandbox: artifacts, and full outputs of truncated answers.

They are in the state directory. No name from a script becomes a file name unchecked.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import heapq
import os
import re
import shutil
import stat
import time
from collections import OrderedDict
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from mcp_bridge.atomic_files import sync_directory, sync_file, write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.memories import MEMORY_FOLDER, PRINCIPALS_FOLDER
from mcp_bridge.file_locks import locked
from mcp_bridge.governance.principals import PRINCIPAL_NAME
from mcp_bridge.private_files import opened_regular, private_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from io import BufferedReader

TOTAL_NAME = "files.total"
"""File in the state directory with the total size of artifacts and outputs, in bytes. Changed only under its lock."""

FILE_BYTES = 4096
"""Bytes that each file counts for besides its content: an empty file takes space, too."""

MAX_URI_CHARS = 4000
MAX_ARTIFACTS = 1000

ARTIFACT_SCHEME = "artifact"
OUTPUT_SCHEME = "output"

OUTPUT_PART_BYTES = 1 << 20
"""Most bytes of a stored output that are read at once."""

INCOMPLETE_SECONDS = 3600.0
"""After so long without a part, an incomplete artifact is one that a killed bridge has left."""

MAX_POSITION = 1 << 62
"""Largest position in a file that every system accepts."""

MAX_ARTIFACTS_LISTED = 100
"""On one page of a list."""

MAX_HASHED_BYTES = 256 << 20
"""Most bytes that are hashed for one list of artifacts; of those beyond that, the hash isn't listed yet."""

MAX_NAMED = 10
"""Most artifacts that a message lists by their URIs."""

MAX_DIGESTS = 20 * MAX_ARTIFACTS_LISTED
"""Most hashes that are kept for further lists, for all principals together."""

_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff/\\]{1,200}")
"""No path separator, no character that changes how a terminal displays the rest of a line, no surrogate."""

_NO_REGULAR_FILE = {errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.ENXIO}
"""Errors of opening what is a link, a folder, a FIFO or a socket in place of a file."""

_EXECUTION = re.compile(r"[0-9a-f]{16}")
_OUTPUT = re.compile(r"[a-z]{1,20}(-[0-9]{1,4})?")
_ID = re.compile(r"[0-9a-f]+")
_MEMORY = re.compile(r"[0-9a-f]{64}\.json")

FOLDERS = ("files", "outputs", MEMORY_FOLDER, PRINCIPALS_FOLDER)
"""The folders of this store and of the store of memories, in the state directory."""


def is_kept(name: str) -> bool:
    """Whether a path in the state directory is that of a complete file of these two stores."""
    match name.split("/"):
        case ["files", execution, file]:
            return bool(_ID.fullmatch(execution)) and _valid_name(file)
        case ["outputs", execution, file]:
            # A name that begins with a dot is of a file that is still being written.
            return bool(_ID.fullmatch(execution)) and _valid_name(file) and not file.startswith(".")
        case ["memory", file]:
            return bool(_MEMORY.fullmatch(file))
        case ["memory-of", principal, file]:
            return bool(PRINCIPAL_NAME.fullmatch(principal) and _MEMORY.fullmatch(file))
    return False


class Place(NamedTuple):
    """Where an artifact is in the list of all, which has the newest first. No two have the same.

    Attributes:
        modified: When it was kept, in seconds since 1970.
        uri: Its URI.
    """

    modified: float
    uri: str


class FoundArtifact(NamedTuple):
    """An artifact that was found.

    Attributes:
        place: Its place.
        size: Bytes.
        identity: What a change of the file changes.
        execution, name: Whose it is, and its own name.
    """

    place: Place
    size: int
    identity: tuple[int, ...]
    execution: str
    name: str


class StoredArtifact(NamedTuple):
    """An artifact in a list.

    Attributes:
        uri: Its URI.
        size: Bytes.
        modified: When it was kept, in seconds since 1970.
        sha256: Of its content, in hexadecimal; None if it isn't known.
    """

    uri: str
    size: int
    modified: float
    sha256: str | None


class ReadArtifact(NamedTuple):
    """An artifact that was read.

    Attributes:
        data: Its content.
        sha256: Of its content, in hexadecimal.
        is_recorded: Whether that hash is in the ledger: as of the end of its execution, and not before.
    """

    data: bytes
    sha256: str
    is_recorded: bool


class ComparedArtifacts(NamedTuple):
    """What came of a comparison of artifacts with what the ledger has recorded.

    Attributes:
        number: How many were compared.
        changed: The URIs of those that aren't what was recorded.
        unreadable: Those that couldn't be read, and weren't compared: why not, by their URIs.
    """

    number: int
    changed: list[str]
    unreadable: dict[str, str]

    def require_same(self) -> None:
        """Refuse what is not as it was recorded.

        Raises:
            BridgeError: `artifact_changed`; `artifact_unreadable`.
        """
        if self.changed:
            raise artifacts_changed(self.changed)
        if self.unreadable:
            uri, why = next(iter(self.unreadable.items()))
            raise BridgeError(
                "artifact_unreadable",
                f"{_named(list(self.unreadable))} can't be read, and so not compared with the ledger: {uri}: {why}.",
                hint="Run the command as the user of the bridge, and see to the modes of the files and to the disk.",
            )


RecordedHashes: TypeAlias = "Mapping[str, str]"
"""SHA-256, in hexadecimal, of the artifacts of an execution by their names, as its end has recorded them."""


class Files:
    """The store of artifacts and full outputs, with a directory for each execution.

    Args:
        state_dir: The state directory.
        limit: Most bytes of all files together, over all processes; None for no limit.
    """

    def __init__(self, state_dir: Path, limit: int | None = None) -> None:
        self._root = state_dir / "files"
        self._outputs = state_dir / "outputs"
        self._total = state_dir / TOTAL_NAME
        self._limit = limit
        self._digests: OrderedDict[tuple[str, tuple[int, ...]], str] = OrderedDict()
        """The hashes of artifacts that were listed, by their URIs and what a change of the file changes."""

    def take(self, size: int) -> bool:
        """Add to the total size, unless that would exceed the limit.

        Args:
            size: Bytes to add; negative to release.

        Returns:
            Whether the size was added.

        Raises:
            OSError: The file of the total can't be read or written.
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
        """The total size, in bytes."""
        try:
            with locked(self._total) as fd:
                return _read_number(fd)
        except FileNotFoundError:
            return 0

    def recount(self) -> None:
        """Correct the total to what is on the disk: a process that was killed may not have updated it.

        Raises:
            OSError: A folder or the file of the total can't be read or written.
        """
        if self._limit is None:
            return
        before = self.used()
        size = sum(map(_bytes_in, (self._root, self._outputs)))
        # Without the lock: other processes write meanwhile, and count what they write.
        self.take(size - before)

    def directory(self, execution: str) -> Path:
        """The execution's directory, created if it is missing."""
        return private_directory(self._root / execution)

    def path(self, execution: str, name: str) -> Path:
        """Where an execution's artifact is stored."""
        return self._root / execution / name

    def save_output(self, execution: str, name: str, data: bytes) -> Path:
        """Store a full output.

        Returns:
            Its path.

        Raises:
            BridgeError: `files_full`.
            OSError: It can't be written.
        """
        # In another folder than artifacts, whose names the script chooses.
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
        r"""A part of a stored output.

        Args:
            execution: The execution's id.
            name: The output's name, without `.txt`.
            start: The position of the part's first byte.
            count: Most bytes of the part, and most characters of its text.

        Returns:
            The text, which ends with a whole character, and the position after it; None at the end. Bytes that are
            not UTF-8, such as the rest of a character that begins before `start`, are written as `\xNN`.

        Raises:
            BridgeError: `unknown_output`.
        """
        if _EXECUTION.fullmatch(execution) and _OUTPUT.fullmatch(name) and 0 <= start < MAX_POSITION:
            try:
                with _opened(self._outputs, execution, f"{name}.txt") as file:
                    # Systems differ in how far beyond a file's end they can seek.
                    file.seek(min(start, os.fstat(file.fileno()).st_size))
                    data = file.read(count + 1)
            except OSError:
                pass
            else:
                part, taken = _whole_characters(data[:count], is_last=len(data) <= count)
                if len(part) > count:
                    # A byte that is not UTF-8 takes four characters.
                    part, taken = _whole_characters(data[: count // 4], is_last=False)
                return part, start + taken if taken < len(data) else None
        raise unknown_output(execution, name)

    def executions(self) -> list[tuple[float, str]]:
        """The executions that have artifacts, with when their folder has changed; the one that has last, first."""
        folders = [folder for folder in self._root.glob("*") if _EXECUTION.fullmatch(folder.name)]
        return sorted(((_changed(folder), folder.name) for folder in folders), reverse=True)

    def newest(
        self, executions: Iterable[tuple[float, str]], after: Place | None, known: list[FoundArtifact]
    ) -> tuple[list[FoundArtifact], bool]:
        """The newest artifacts of executions and of those that are known already, newest first.

        Args:
            executions: As `executions` has them.
            after: Only artifacts behind this place.
            known: Of executions that come before.

        Returns:
            One more than MAX_ARTIFACTS_LISTED at most; and whether no later execution has a newer one.
        """
        for changed, execution in executions:
            # What a folder has is no newer than its last change.
            if len(known) > MAX_ARTIFACTS_LISTED and known[-1].place.modified > changed:
                return known, True
            known = heapq.nlargest(MAX_ARTIFACTS_LISTED + 1, [*known, *self._found(execution, after)])
        return known, False

    def _found(self, execution: str, after: Place | None) -> list[FoundArtifact]:
        rows: list[FoundArtifact] = []
        # Another bridge may remove it meanwhile.
        with suppress(OSError), _folder(self._root, execution) as folder, os.scandir(folder) as there:
            for one in there:
                status = one.stat(follow_symlinks=False)
                if _valid_name(one.name) and stat.S_ISREG(status.st_mode):
                    place = Place(status.st_mtime, artifact_uri(execution, one.name))
                    if after is None or place < after:
                        rows.append(FoundArtifact(place, status.st_size, _identity(status), execution, one.name))
        return rows

    def hashed(
        self, found: Iterable[FoundArtifact], recorded: Mapping[str, RecordedHashes] = MappingProxyType({})
    ) -> list[StoredArtifact]:
        """Artifacts with their hashes.

        Args:
            found: The artifacts.
            recorded: The hashes in the ledger, by execution; any other is of what is on the disk.
        """
        rows, room = [], MAX_HASHED_BYTES
        for (modified, uri), size, identity, execution, name in found:
            key = uri, identity
            if (known := recorded.get(execution, {}).get(name)) is None:
                if (known := self._digests.pop(key, None)) is None:
                    room -= size
                    known = self._digest(execution, name) if room >= 0 else None
                if known is not None:
                    self._digests[key] = known
            rows.append(StoredArtifact(uri, size, modified, known))
        while len(self._digests) > MAX_DIGESTS:
            with suppress(KeyError):
                self._digests.popitem(last=False)
        return rows

    def _digest(self, execution: str, name: str) -> str | None:
        try:
            with _opened(self._root, execution, name) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return None

    def compared(self, recorded: Mapping[str, RecordedHashes]) -> ComparedArtifacts:
        """Compare what is there with the ledger. What isn't there may have been removed by age.

        Args:
            recorded: The hashes in the ledger, by execution.
        """
        count = 0
        changed: list[str] = []
        unreadable: dict[str, str] = {}
        for _, execution in self.executions():
            for name, sha256 in recorded.get(execution, {}).items():
                if not _valid_name(name):
                    continue
                uri = artifact_uri(execution, name)
                try:
                    with _opened(self._root, execution, name) as file:
                        is_same = hashlib.file_digest(file, "sha256").hexdigest() == sha256
                except FileNotFoundError:
                    continue
                except OSError as exc:
                    if exc.errno not in _NO_REGULAR_FILE:
                        unreadable[uri] = exc.strerror or str(exc)
                        continue
                    is_same = False
                count += 1
                if not is_same:
                    changed.append(uri)
        return ComparedArtifacts(count, changed, unreadable)

    def full(self) -> BridgeError:
        """The error for a file that exceeds the limit."""
        return BridgeError(
            "files_full",
            f"Artifacts and kept outputs are limited to {self._limit} bytes, those of all runs together.",
            hint="The operator can remove some (mcp-bridge erase), or raise max_files_size in [ledger].",
        )

    def read(self, uri: str, recorded: RecordedHashes = MappingProxyType({})) -> ReadArtifact:
        """An artifact's content.

        Args:
            uri: Its URI.
            recorded: The hashes in the ledger of its execution's artifacts.

        Raises:
            BridgeError: `unknown_artifact`; `artifact_changed`: it isn't what was recorded.
        """
        scheme, _, rest = uri.partition("://")
        execution, _, quoted = rest.partition("/")
        # A byte that is not UTF-8 becomes a character that no artifact's name contains.
        name = unquote(quoted) if len(quoted) < MAX_URI_CHARS else ""
        if scheme != ARTIFACT_SCHEME or not _EXECUTION.fullmatch(execution) or not _valid_name(name):
            raise unknown_artifact(uri)
        try:
            with _opened(self._root, execution, name) as file:
                data = file.read()
        except OSError:
            raise unknown_artifact(uri) from None
        sha256 = hashlib.sha256(data).hexdigest()
        if recorded.get(name, sha256) != sha256:
            raise artifacts_changed([artifact_uri(execution, name)])
        return ReadArtifact(data, sha256, name in recorded)

    def remove(self, execution: str) -> None:
        """Remove the files of an execution, if there are any.

        Raises:
            OSError: A file can't be removed. The call can be repeated.
        """
        if _ID.fullmatch(execution):
            for root in (self._root, self._outputs):
                self._remove(root / execution)

    def _remove(self, folder: Path) -> None:
        if folder.is_symlink() or not folder.is_dir():
            # Somebody has put it there: nothing behind a link is counted or removed.
            folder.unlink(missing_ok=True)
            return
        size = _bytes_in(folder)
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        if size:
            self.take(-size)

    def sweep(self, before: float | None, wanted: Collection[str] = ()) -> None:
        """Remove the files of executions that were last changed before a time, and what killed bridges left incomplete.

        Args:
            before: The time, in seconds since 1970; None for no time.
            wanted: Executions whose files stay.

        Raises:
            OSError: A file can't be removed.
        """
        for path in self._root.glob("*/.part*"):
            if path.name not in _PART_NAMES or path.parent.is_symlink():
                continue
            with suppress(FileNotFoundError):
                if path.lstat().st_mtime < time.time() - INCOMPLETE_SECONDS:
                    path.unlink()
        for path in (*self._root.glob("*"), *self._outputs.glob("*")):
            # Another bridge may have been quicker.
            with suppress(FileNotFoundError):
                if before is not None and path.name not in wanted and path.lstat().st_mtime < before:
                    self._remove(path)
        self.recount()


def unknown_artifact(uri: str) -> BridgeError:
    """The error for an artifact that there isn't, or that is another principal's."""
    return BridgeError("unknown_artifact", f"There is no artifact {uri[:200]!r}.")


def artifacts_changed(uris: Sequence[str]) -> BridgeError:
    """The error for artifacts that aren't what was recorded when their executions ended."""
    return BridgeError(
        "artifact_changed",
        f"What is on the disk isn't what the ledger has recorded of {_named(uris)}.",
        hint="Somebody has changed it, or the disk has. Run the script again, or put the file back from a copy.",
    )


def _named(uris: Sequence[str]) -> str:
    named = ", ".join(uris[:MAX_NAMED])
    return named if len(uris) <= MAX_NAMED else f"{named}, … ({len(uris)} in all)"


def unknown_output(execution: str, name: str) -> BridgeError:
    """The error for an output that isn't kept, or that is of another principal's execution."""
    return BridgeError(
        "unknown_output",
        f"The execution {execution[:50]!r} has no stored output {name[:50]!r}.",
        hint="Only output that an answer had to cut is stored, for some days. Run the script again, and print less "
        "of it.",
    )


def artifact_uri(execution: str, name: str) -> str:
    """The URI of an artifact."""
    return f"{ARTIFACT_SCHEME}://{execution}/{quote(name, safe='')}"


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _whole_characters(data: bytes, *, is_last: bool) -> tuple[str, int]:
    """Decode UTF-8; returns the text and how many bytes it was made of.

    An incomplete character at the end is left out unless `is_last`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    text = decoder.decode(data, final=is_last)
    return text, len(data) - len(decoder.getstate()[0])


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """What a change of a file changes."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextmanager
def _folder(root: Path, execution: str) -> Iterator[int]:
    """An execution's folder, opened; through no link.

    Raises:
        OSError: It can't be opened.
    """
    fd = os.open(root / execution, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _opened(root: Path, execution: str, name: str) -> Iterator[BufferedReader]:
    """A file of an execution, as `opened_regular`, and through no link in place of its folder."""
    with _folder(root, execution) as folder, opened_regular(name, folder) as file:
        yield file


def _bytes_of(path: Path) -> int:
    try:
        return path.lstat().st_size + FILE_BYTES
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


MAX_OPEN = 8
"""Most artifacts of a run that are written at the same time."""

_PART_NAMES = (".part", *(f".part\x01{number}" for number in range(1, MAX_OPEN)))
"""Files of incomplete artifacts. No artifact can have these names."""


def _valid_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name not in {".", "..", *_PART_NAMES} and len(name.encode()) <= 255  # noqa: PLR2004


@dataclass(slots=True)
class _Open:
    file: IO[bytes] | None
    """Where its content goes; None where nothing is kept."""
    size: int
    digest: hashlib._Hash
    counted: int
    """Bytes of the store's total to release when it is complete or dropped."""


class ArtifactWriter:
    """Writes the artifacts of one run, each of which arrives in parts.

    Args:
        files: The store; None for a run whose artifacts are thrown away: it is told the same, and nothing is written.
        execution: The execution's id.
        limit: Most bytes of all artifacts of the run together.

    Attributes:
        written: The complete artifacts: `name`, `uri`, `path` (empty where nothing is kept), `size`, `sha256`.
    """

    def __init__(self, files: Files | None, execution: str, limit: int) -> None:
        self._files = files
        self._execution = execution
        self._limit = limit
        self._total = 0
        self._open: dict[str, _Open] = {}
        """The artifacts that aren't complete, by name."""
        self.written: list[dict[str, Any]] = []

    def write(self, name: str, data: bytes, *, first: bool, last: bool) -> dict[str, Any]:
        """Write a part of an artifact.

        Args:
            name: The artifact's name.
            data: The part.
            first: Whether it is the artifact's first part.
            last: Whether it is the artifact's last part.

        Returns:
            After the last part, the artifact's `name`, `uri`, `path`, `size` and `sha256`; else an empty dict.

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
            self._drop(name)
            if len(self._open) >= MAX_OPEN:
                raise BridgeError(
                    "too_many_artifacts",
                    f"This run writes {MAX_OPEN} artifacts at the same time.",
                    hint="Wait for one before the next begins.",
                )
        self._total += len(data)
        if self._total > self._limit:
            self._drop(name)
            raise BridgeError(
                "artifact_too_large",
                f"The artifacts of this run are over {self._limit} bytes.",
                hint="Raise max_artifact_size.",
            )
        try:
            part = self._begun(len(data)) if first else self._open.get(name)
            if part is None:
                raise BridgeError("bad_artifact", "The parts of an artifact came out of order.")
            if first:
                self._open[name] = part
            else:
                self._count(name, part, len(data))
            if part.file is not None:
                part.file.write(data)
                # What a killed bridge leaves counts by what is on the disk; a buffer holds 128 KiB from Python 3.14 on.
                part.file.flush()
            part.digest.update(data)
            part.size += len(data)
            if not last:
                return {}
            path = "" if part.file is None else str(self._complete(name, part, part.file))
        except OSError as exc:
            self._drop(name)
            raise BridgeError("disk_full", f"The artifact {name!r} can't be written: {exc.strerror}.") from None
        del self._open[name]
        row = {
            "name": name,
            "uri": artifact_uri(self._execution, name),
            "path": path,
            "size": part.size,
            "sha256": part.digest.hexdigest(),
        }
        self.written = [other for other in self.written if other["name"] != name] + [row]
        return row

    def _begun(self, size: int) -> _Open:
        """An artifact that begins, with its first bytes counted.

        Raises:
            BridgeError: `files_full`.
            OSError: The file can't be made.
        """
        if self._files is None:
            return _Open(None, 0, hashlib.sha256(), 0)
        folder = self._files.directory(self._execution)
        used = {Path(part.file.name).name for part in self._open.values() if part.file is not None}
        path = folder / next(name for name in _PART_NAMES if name not in used)
        # What a killed bridge left incomplete is counted, and is replaced.
        size += FILE_BYTES
        left = _bytes_of(path)
        if not self._files.take(size - left):
            raise self._files.full()
        try:
            file = open(path, "wb", opener=_private_opener)  # noqa: SIM115  (open until the artifact is complete)
        except OSError:
            self._files.take(left - size)
            raise
        return _Open(file, 0, hashlib.sha256(), size)

    def _count(self, name: str, part: _Open, size: int) -> None:
        """Count bytes of an artifact.

        Raises:
            BridgeError: `files_full`.
            OSError: They can't be counted.
        """
        if self._files is None:
            return
        if not self._files.take(size):
            self._drop(name)
            raise self._files.full()
        part.counted += size

    def _complete(self, name: str, part: _Open, file: IO[bytes]) -> Path:
        """Give a complete artifact its name; returns its path.

        Raises:
            OSError: It can't be written.
        """
        file.close()
        path = Path(file.name)
        final = path.with_name(name)
        # An artifact of that name is replaced.
        part.counted = _bytes_of(final)
        path.replace(final)
        self._uncount(part)
        return final

    def sync(self) -> None:
        """Make the written artifacts durable. Called before their names are answered.

        Raises:
            BridgeError: `disk_full`.
        """
        if not self.written or self._files is None:
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
        """Drop the artifacts that are not complete."""
        for name in list(self._open):
            self._drop(name)

    def _drop(self, name: str) -> None:
        part = self._open.pop(name, None)
        if part is None:
            return
        if part.file is not None:
            part.file.close()
            Path(part.file.name).unlink(missing_ok=True)
        with suppress(OSError):
            self._uncount(part)

    def _uncount(self, part: _Open) -> None:
        if part.counted and self._files is not None:
            self._files.take(-part.counted)
        part.counted = 0


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
