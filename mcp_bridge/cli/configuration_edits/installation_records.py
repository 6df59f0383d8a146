"""What an installation has done to a client's file, kept in the state directory so that it can be taken back."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.atomic_files import write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import open_locked
from mcp_bridge.private_files import private_directory, state_directory
from mcp_bridge.workspace.folder_content import read_regular, why

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.downstream.configuration.known_clients import ClientName

Table = dict[str, Any]

DIRECTORY = "client-setup"
_MAX_BYTES = 64 << 20


@dataclass(slots=True)
class Installation:
    """A record of one file of a client's.

    Attributes:
        client: The client.
        file: The file.
        original: The backup of the file as it was before the first change, or None if it is lost or there was none.
        was_there: Whether the file was there before.
        sha256: The hash of the file as the last change has left it.
        config: Our configuration file that has the client's servers.
        entries: The entries of the servers that were moved, as they were in the client's file, by name.
        local: Likewise those that were for one folder alone, by its key in the client's file.
        tables: All these servers as they were written into our configuration, by name.
    """

    client: ClientName
    file: str
    original: str | None = None
    was_there: bool = True
    sha256: str = ""
    config: str | None = None
    entries: Table = field(default_factory=dict)
    local: dict[str, Table] = field(default_factory=dict)
    tables: Table = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether a server of this name was moved from the file."""
        return name in self.entries or any(name in entries for entries in self.local.values())

    def original_bytes(self, now: bytes | None) -> bytes | None:
        """The file's first content if nobody has changed the file since; None if that isn't known."""
        if now is None or self.sha256 != hash_of(now):
            return None
        if not self.was_there:
            return b""
        try:
            return None if self.original is None else read_regular(Path(self.original), _MAX_BYTES * 4)
        except OSError:
            return None


def hash_of(data: bytes) -> str:
    """The hash by which a file is known again."""
    return hashlib.sha256(data).hexdigest()


class Installations:
    """The records, one file each.

    Args:
        state_dir: The state directory.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self.directory = state_dir / DIRECTORY
        self.backups = self.directory / "backups"

    def _path(self, file: Path) -> Path:
        return self.directory / f"{hashlib.sha256(os.fsencode(file)).hexdigest()[:24]}.json"

    def prepare(self) -> None:
        """Make the directories.

        Raises:
            BridgeError: `state_unusable`, `state_unsafe`.
        """
        state_directory(self._state_dir, durable=True)
        private_directory(self.directory, durable=True)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Make the directories, and wait for other commands that change our configuration, or a client's.

        It isn't held while a person is asked.

        Raises:
            BridgeError: As `prepare`.
        """
        self.prepare()
        try:
            held = open_locked(self.directory / "lock")
        except OSError as exc:
            where = self.directory
            raise BridgeError("state_unusable", f"{where} can't be written: {why(exc)}.", file=str(where)) from None
        try:
            yield
        finally:
            os.close(held)

    def load(self, file: Path) -> Installation | None:
        """The record of a client's file, or None.

        Raises:
            BridgeError: `state_unusable`: it can't be read.
        """
        return self._read(self._path(file))

    def _read(self, path: Path) -> Installation | None:
        try:
            record = json.loads(read_regular(path, _MAX_BYTES))
            return Installation(**record)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise BridgeError("state_unusable", f"{path} can't be read: {why(exc)}.", file=str(path)) from None
        except (ValueError, TypeError, RecursionError):
            hint = "Remove it; the client's servers that were moved are in the bridge's configuration."
            raise BridgeError("state_unusable", f"{path} is damaged.", hint=hint, file=str(path)) from None

    def others(self, file: Path, config: Path, notes: list[str]) -> list[Installation]:
        """The records of other files whose servers are in the same configuration of ours.

        Args:
            file: The file.
            config: Our configuration.
            notes: As `all`.

        Raises:
            BridgeError: As `all`.
        """
        return [
            record
            for record in self.all(notes)
            if Path(record.file) != file
            and record.config is not None
            and Path(record.config).resolve() == config.resolve()
        ]

    def all(self, notes: list[str]) -> list[Installation]:
        """All records that can be read.

        Args:
            notes: Gets a line for each that can't: it stops nobody from taking back another.

        Raises:
            BridgeError: `state_unusable`: the directory can't be read.
        """
        try:
            paths = sorted(self.directory.glob("*.json"))
        except OSError as exc:
            where = self.directory
            raise BridgeError("state_unusable", f"{where} can't be read: {why(exc)}.", file=str(where)) from None
        records = []
        for path in paths:
            try:
                record = self._read(path)
            except BridgeError as exc:
                notes.append(f"{exc.message} Which servers its client relies on isn't known.")
            else:
                records += [record] if record is not None else []
        return records

    def save(self, record: Installation) -> None:
        """Keep a record.

        Raises:
            BridgeError: `state_unusable`.
        """
        path = self._path(Path(record.file))
        try:
            write_private(path, json.dumps(asdict(record)).encode(), durable=True)
        except OSError as exc:
            raise BridgeError("state_unusable", f"{path} can't be written: {why(exc)}.", file=str(path)) from None

    def forget(self, file: Path) -> None:
        """Remove a record, if there is one."""
        self._path(file).unlink(missing_ok=True)
