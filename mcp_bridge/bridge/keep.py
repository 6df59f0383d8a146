"""What outlives a sandbox: artifacts, whole outputs that were cut, and memories. Files under the state directory.

No name from a script becomes a file name as it is: an artifact's is checked, a memory's key is hashed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import private_directory, sync_directory, sync_file, write_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEEP_SECONDS = 7 * 24 * 3600.0
"""Artifacts and outputs older than this are removed at the next start."""

MAX_URI_CHARS = 4000
MAX_MEMORY_BYTES = 4 << 20
MAX_MEMORIES = 1000
MAX_MEMORIES_BYTES = 64 << 20
MAX_KEY_CHARS = 200
_HEAD_BYTES = 2048
"""Enough of a memory's file for its key."""

MAX_ARTIFACTS = 1000

ARTIFACT_SCHEME = "artifact"

_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069/\\]{1,200}")
"""No separator, and nothing that changes how a terminal shows the rest of a line."""

_EXECUTION = re.compile(r"[0-9a-f]{16}")
_ID = re.compile(r"[0-9a-f]+")


class Files:
    """Artifacts and whole outputs, a directory an execution.

    Args:
        state_dir: The state directory.
    """

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / "files"
        self._outputs = state_dir / "outputs"

    def directory(self, execution: str) -> Path:
        """The execution's directory, made if need be."""
        return private_directory(self._root / execution)

    def save_output(self, execution: str, name: str, data: bytes) -> Path:
        """Keep an output whole; returns its path."""
        # Apart from the artifacts, whose names the script chooses.
        path = private_directory(self._outputs / execution) / name
        write_private(path, data)
        return path

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
                with suppress(FileNotFoundError):
                    shutil.rmtree(root / execution)

    def sweep(self) -> None:
        """Remove what is older than KEEP_SECONDS."""
        horizon = time.time() - KEEP_SECONDS
        for path in (*self._root.glob("*"), *self._outputs.glob("*")):
            if path.stat().st_mtime < horizon:
                shutil.rmtree(path, ignore_errors=True)


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
        self._open: _Open | None = None
        self.written: list[dict[str, Any]] = []

    def write(self, name: str, data: bytes, *, first: bool, last: bool) -> dict[str, Any]:
        """Take a part; for the last one, the artifact's `name`, `uri`, `path` and `size`, else an empty dict.

        Raises:
            BridgeError: `bad_artifact_name`, `artifact_too_large`, `too_many_artifacts`, `disk_full`, `bad_artifact`
            (parts out of order).
        """
        if not _valid_name(name):
            raise BridgeError(
                "bad_artifact_name", f"{name[:100]!r} is no name for an artifact.", hint="Use a plain file name."
            )
        if first and len(self.written) >= MAX_ARTIFACTS:
            raise BridgeError("too_many_artifacts", f"This run has kept {MAX_ARTIFACTS} artifacts.")
        self._total += len(data)
        if self._total > self._limit:
            self.abort()
            raise BridgeError(
                "artifact_too_large",
                f"The artifacts of this run are over {self._limit} bytes.",
                hint="Raise max_artifact_size.",
            )
        try:
            if first:
                self.abort()
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
            part.path.replace(final)
        except OSError as exc:
            self.abort()
            raise BridgeError("disk_full", f"The artifact {name!r} can't be written: {exc.strerror}.") from None
        self._open = None
        row = {
            "name": name,
            "uri": f"{ARTIFACT_SCHEME}://{self._execution}/{quote(name, safe='')}",
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


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class Memories:
    """JSON values by key, a file each.

    Args:
        state_dir: The state directory.
    """

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / "memory"
        self.turn = anyio.Lock()
        """To be held around every call: a merge reads and then writes."""

    def save(self, key: str, value: Any, *, update: bool) -> None:
        """Keep a value; with `update`, an object is merged into the object that is there.

        Raises:
            BridgeError: `bad_memory` (the key, or too large), `too_many_memories`, `disk_full`.
        """
        path = self._path(key)
        if update and isinstance(value, dict):
            found, old = self.load(key)
            if found and isinstance(old, dict):
                value = old | value
        data = json.dumps({"key": key, "value": value}, ensure_ascii=False).encode()
        if len(data) > MAX_MEMORY_BYTES:
            raise BridgeError("bad_memory", f"The memory {key!r} is over {MAX_MEMORY_BYTES} bytes.")
        private_directory(self._root, durable=True)
        others = list(self._sizes(path))
        if len(others) >= MAX_MEMORIES or sum(others) + len(data) > MAX_MEMORIES_BYTES:
            raise BridgeError(
                "too_many_memories",
                f"Memories are limited to {MAX_MEMORIES} and {MAX_MEMORIES_BYTES} bytes together.",
                hint="Delete some.",
            )
        try:
            write_private(path, data, durable=True)
        except OSError as exc:
            raise BridgeError("disk_full", f"The memory {key!r} can't be written: {exc.strerror}.") from None

    def _sizes(self, but: Path) -> Iterator[int]:
        for other in self._root.iterdir():
            # Another bridge may remove it meanwhile.
            with suppress(FileNotFoundError):
                if other != but:
                    yield other.stat().st_size

    def load(self, key: str) -> tuple[bool, Any]:
        """Whether there is such a key, and its value.

        Raises:
            BridgeError: `bad_memory`.
        """
        try:
            return True, json.loads(self._path(key).read_bytes())["value"]
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
