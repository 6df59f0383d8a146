"""Memories: JSON values that a script stores by key, and that later scripts read.

Each is a file in the state directory, named by the hash of its key. Each principal has a folder of its own.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.atomic_files import sync_directory, write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import locked
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.large_json import dumps, loads
from mcp_bridge.private_files import opened_regular, private_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEMORY_LOCK_NAME = "memory.lock"
"""File in the state directory whose lock protects the memories."""

MEMORY_FOLDER = "memory"
PRINCIPALS_FOLDER = "memory-of"
"""Folders in the state directory: the memories of `local`, and those of other principals in a folder by name each."""

MAX_MEMORY_BYTES = 4 << 20
MAX_MEMORIES = 1000
MAX_MEMORIES_BYTES = 64 << 20
MAX_KEY_CHARS = 200
MAX_MARKS = 64
"""Most marks of conditional saves that a memory's file keeps."""

_HEAD_BYTES = 2048
"""Bytes at the beginning of a memory's file that contain its key."""

_encoder, _decoder = json.JSONEncoder(ensure_ascii=False), json.JSONDecoder()


class Memories:
    """The store of memories: JSON values by key, each in a file.

    Args:
        state_dir: The state directory.
        principal: Whose they are. The limits are for each principal.
    """

    def __init__(self, state_dir: Path, principal: str = LOCAL_PRINCIPAL.name) -> None:
        is_local = principal == LOCAL_PRINCIPAL.name
        self._root = state_dir / MEMORY_FOLDER if is_local else state_dir / PRINCIPALS_FOLDER / principal
        self._lock = state_dir / MEMORY_LOCK_NAME
        self.turn = anyio.Lock()
        """Held by callers around every call, because a merge reads and then writes."""
        self.updates = anyio.Lock()
        """Held by callers around a look at a memory and `save_unless_changed`. It is taken before `turn`."""

    def save(self, key: str, value: Any, *, update: bool) -> None:
        """Store a value; with `update`, an object is merged into the stored object.

        Raises:
            BridgeError: `bad_memory` (the key, or too large), `too_many_memories`, `disk_full`.
        """
        path = self._path(key)
        private_directory(self._root, durable=True)
        try:
            # Merging and checking the limits read and then write, and other processes may do so, too.
            with locked(self._lock):
                self._save(path, key, value, update=update)
        except OSError as exc:
            raise BridgeError("disk_full", f"The memory {key!r} can't be written: {exc.strerror}.") from None

    def save_unless_changed(self, key: str, value: Any, *, since: bytes | None, mark: str) -> dict[str, Any]:
        """Store a value, if what is stored is still what it was.

        Args:
            key: The key.
            value: The value.
            since: The digest of what was stored, as `digest` gives it; None if nobody knows what was.
            mark: Names this save. It is kept with the value, also with those that later conditional saves put in its
                place: who saves again, and doesn't know that it was done already, changes nothing.

        Returns:
            Whether it was `saved`, and what is stored now: whether the key is `found`, and its `value`.

        Raises:
            BridgeError: As `save`.
        """
        path = self._path(key)
        private_directory(self._root, durable=True)
        try:
            with locked(self._lock):
                found, old, marks = self._stored(key)
                if mark in marks:
                    return {"saved": True, "found": True, "value": value}
                if digest(old, found=found) != since:
                    return {"saved": False, "found": found, "value": old}
                self._write(path, key, value, [*marks, mark][-MAX_MARKS:])
        except OSError as exc:
            raise BridgeError("disk_full", f"The memory {key!r} can't be written: {exc.strerror}.") from None
        return {"saved": True, "found": True, "value": value}

    def _save(self, path: Path, key: str, value: Any, *, update: bool) -> None:
        marks: list[str] = []
        if update and isinstance(value, dict):
            exists, old, marks = self._stored(key)
            if exists and isinstance(old, dict):
                value = old | value
        self._write(path, key, value, marks)

    def _write(self, path: Path, key: str, value: Any, marks: list[str]) -> None:
        stored = {"key": key, "value": value, "marks": marks} if marks else {"key": key, "value": value}
        data = dumps(stored, _encoder).encode()
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
                    # Its writer was killed: under the lock, no other process writes it.
                    other.unlink()
                elif other != but:
                    yield other.stat().st_size

    def load(self, key: str) -> tuple[bool, Any]:
        """Whether the key exists, and its value.

        Raises:
            BridgeError: `bad_memory`.
        """
        found, value, _ = self._stored(key)
        return found, value

    def _stored(self, key: str) -> tuple[bool, Any, list[str]]:
        try:
            with opened_regular(self._path(key)) as file:
                stored = loads(file.read(MAX_MEMORY_BYTES + 1), _decoder)
            return True, stored["value"], stored.get("marks", [])
        except FileNotFoundError:
            return False, None, []
        except (OSError, ValueError, KeyError, TypeError):
            raise BridgeError(
                "bad_memory", f"The file of the memory {key!r} is damaged.", hint="Save it again."
            ) from None

    def delete(self, key: str) -> bool:
        """Delete a key; whether it existed."""
        path = self._path(key)
        # What another process has read and is about to write isn't deleted before that.
        try:
            with locked(self._lock):
                path.unlink()
                sync_directory(self._root)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise BridgeError("disk_full", f"The memory {key!r} can't be deleted: {exc.strerror}.") from None
        return True

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, sorted."""
        keys = []
        for path in self._root.glob("*.json") if self._root.is_dir() else ():
            try:
                with opened_regular(path) as file:
                    head = file.read(_HEAD_BYTES).decode("utf-8", "ignore")
                # The key comes first, so the value, which may be long, is not read.
                key, _ = json.JSONDecoder().raw_decode(head, head.index(":") + 2)
            except (OSError, ValueError):
                continue
            if isinstance(key, str) and key.startswith(prefix):
                keys.append(key)
        return sorted(keys)

    def _path(self, key: str) -> Path:
        if not 0 < len(key) <= MAX_KEY_CHARS:
            raise BridgeError("bad_memory", f"A memory's key has 1 to {MAX_KEY_CHARS} characters; this one {len(key)}.")
        return self._root / (hashlib.sha256(key.encode()).hexdigest() + ".json")


def digest(value: Any, *, found: bool) -> bytes:
    """What is the same only for the same stored value; `found` is false for none."""
    return hashlib.sha256(dumps(value, _encoder).encode("utf-8", "surrogatepass")).digest() if found else b""
