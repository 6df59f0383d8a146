"""The folders' files that the user has trusted, each with its exact content.

A file that comes with a folder (`mcp-bridge.toml`, `.mcp.json`) names commands, modules and rules, and its author may
be anyone. It is used only after the user has trusted its content, as with direnv. A *record* stores the file's path,
the hash of its bytes, the hashes of the files that it makes the bridge load or start, and those of the entries of which
it says only a part. If any of these changes, appears or disappears, the folder is untrusted again.

The records are files in the user's own state directory, and never in one that a folder's file names.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from mcp_bridge.atomic_files import write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import private_directory
from mcp_bridge.workspace.folder_content import MAX_FILE_BYTES, Content, content_of, folder_of, read_regular, why

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp_bridge.error_codes import Code

_RECORD_VERSION = 1
_MAX_RECORD_BYTES = 4 << 20

Status = Literal["trusted", "untrusted", "changed", "unusable"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A trust record.

    Attributes:
        file: The configuration file.
        hash: The SHA-256 of its bytes.
        files: As `Content.files`.
        time: When it was trusted (Unix time in seconds).
        entries: As `Content.entries`; none in records of versions that took each entry for the whole.
    """

    file: Path
    hash: str
    files: Mapping[str, str]
    time: float
    entries: Mapping[str, str]


class TrustStore:
    """The trust records, one file each, so that concurrent writers don't interfere.

    Args:
        state_dir: The user's own state directory, from their configuration, their environment, or the default.
        assumed: Records that count as if they were there.
    """

    def __init__(self, state_dir: Path, assumed: Mapping[Path, Entry] = MappingProxyType({})) -> None:
        self.directory = state_dir / "trust"
        self._assumed = assumed

    def assuming(self, content: Content) -> TrustStore:
        """The records as they would be with this content trusted."""
        entry = Entry(content.file, content.hash, content.files, time.time(), content.entries)
        return TrustStore(self.directory.parent, {**self._assumed, content.file: entry})

    def _path(self, file: Path) -> Path:
        return self.directory / f"{hashlib.sha256(os.fsencode(file)).hexdigest()}.json"

    def refuse_within(self, file: Path) -> None:
        """Refuse a state directory inside the folder: a folder that contains the records could trust itself.

        Raises:
            BridgeError: `trust_unusable`.
        """
        # The home directory and its parents are in nobody's checkout.
        folder = folder_of(file)
        if self.directory.resolve().is_relative_to(folder) and not Path.home().is_relative_to(folder):
            raise BridgeError(
                "trust_unusable",
                f"The list of trusted folders is in {self.directory}, which is in the folder itself.",
                hint="Set MCP_BRIDGE_STATE_DIR to a directory elsewhere, or name the file with --config.",
                file=str(file),
            )

    def entry(self, file: Path) -> Entry | None:
        """The record of a configuration file, or None.

        Raises:
            BridgeError: `trust_unusable`: others could have written the record, or it can't be read.
        """
        self.refuse_within(file)
        if file in self._assumed:
            return self._assumed[file]
        path = self._path(file)
        try:
            for place in (self.directory, path):
                status = place.lstat()
                if status.st_uid not in {os.geteuid(), 0} or status.st_mode & 0o022 or stat.S_ISLNK(status.st_mode):
                    raise _unusable(place, "others could have written it")
            entry = _decoded(json.loads(read_regular(path, _MAX_RECORD_BYTES)))
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise _unusable(path, why(exc)) from None
        except (ValueError, RecursionError):
            entry = None
        if entry is None or entry.file != file:
            raise _unusable(path, "it is damaged")
        return entry

    def record(self, content: Content) -> None:
        """Trust exactly this content.

        Raises:
            BridgeError: `trust_unusable`, `state_unusable`.
        """
        self.refuse_within(content.file)
        record = {
            "version": _RECORD_VERSION,
            "file": str(content.file),
            "sha256": content.hash,
            "files": dict(content.files),
            "entries": dict(content.entries),
            "time": time.time(),
        }
        private_directory(self.directory, durable=True)
        try:
            self.directory.chmod(0o700)
            write_private(self._path(content.file), json.dumps(record).encode(), durable=True)
        except OSError as exc:
            raise _unusable(self._path(content.file), why(exc)) from None

    def revoke(self, file: Path) -> bool:
        """Revoke trust; return whether there was a record.

        Raises:
            BridgeError: `trust_unusable`.
        """
        try:
            self._path(file).unlink()
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise _unusable(self._path(file), why(exc)) from None
        return True

    def entries(self) -> list[Entry]:
        """All readable records, sorted by file."""
        entries = []
        try:
            paths = sorted(self.directory.iterdir())
        except OSError:
            return []
        for path in paths:
            if path.suffix == ".json" and not path.name.startswith("."):
                with suppress(OSError, ValueError, RecursionError):
                    entry = _decoded(json.loads(read_regular(path, _MAX_RECORD_BYTES)))
                    if entry is not None:
                        entries.append(entry)
        return sorted(entries, key=lambda entry: str(entry.file))

    def status(self, file: Path, data: bytes) -> tuple[Status, str | None]:
        """The status of a file with these bytes, before they are parsed.

        Returns:
            The status, and the reason if it is `unusable`. `trusted` refers to the file's own bytes: the files that it
            names must still be compared (`is_trusted`).
        """
        try:
            entry = self.entry(file)
        except BridgeError as exc:
            return "unusable", exc.message.removesuffix(".")
        if entry is None:
            return "untrusted", None
        return ("trusted" if entry.hash == hashlib.sha256(data).hexdigest() else "changed"), None

    def is_trusted(self, content: Content) -> bool:
        """Whether exactly this content is trusted."""
        try:
            entry = self.entry(content.file)
        except BridgeError:
            return False
        if entry is None:
            return False
        return (entry.hash, entry.files, entry.entries) == (content.hash, content.files, content.entries)


def _decoded(record: Any) -> Entry | None:
    match record:
        case {
            "version": 1,
            "file": str(file),
            "sha256": str(hash_),
            "files": dict(files),
            "time": int() | float() as at,
        }:
            entries = record.get("entries", {})
            if isinstance(entries, dict) and all(isinstance(value, str) for value in files.values()):
                return Entry(Path(file), hash_, files, at, entries)
    return None


def _unusable(path: Path, reason: str) -> BridgeError:
    return BridgeError(
        "trust_unusable",
        f"{path}, which lists what is trusted, can't be used: {reason}.",
        hint="See to the owner and mode of it and of its directory, or remove it and trust the folders again.",
        file=str(path),
    )


@dataclass(frozen=True, slots=True)
class IgnoredFile:
    """A folder's file that is ignored.

    Attributes:
        code: `untrusted_file`, `changed_file`, `unusable_file`.
        file: The file.
        message: Why it is ignored, in one sentence.
        servers: The names of its servers that the user hasn't approved in Claude Code.
        above: Whether it is in a parent of the working directory.
    """

    code: Code
    file: str
    message: str
    servers: tuple[str, ...] = ()
    above: bool = False

    @property
    def hint(self) -> str:
        """What the user can do."""
        if self.code == _CODES["unusable"]:
            return "Mend what the message says first: `mcp-bridge trust` can't judge the file before."
        return f"`{trust_command(Path(self.file), above=self.above)}` shows what it would do, and asks."


def trust_command(file: Path, *, above: bool) -> str:
    """What to write to trust a folder's file.

    Args:
        file: The file.
        above: Whether it is in a parent of the working directory.
    """
    return f"mcp-bridge trust {shlex.quote(str(folder_of(file)))}" if above else "mcp-bridge trust"


_CODES: dict[Status, Code] = {
    "untrusted": "untrusted_file",
    "changed": "changed_file",
    "unusable": "unusable_file",
}

_REASONS: dict[Status, str] = {
    "untrusted": "you haven't trusted its content",
    "changed": "it, a file that it loads, or an entry of which it changes a part, isn't what you have trusted",
}


def ignored_file(
    file: Path, status: Status, reason: str | None = None, servers: tuple[str, ...] = (), *, above: bool = False
) -> IgnoredFile:
    """Describe a folder's file that is ignored."""
    what = f"{file} takes no part"
    because = _REASONS.get(status) or reason or "it can't be read"
    return IgnoredFile(_CODES[status], str(file), f"{what}: {because}.", servers, above)


def trusted(
    file: Path, store: TrustStore, parse: Callable[[bytes], dict[str, Any]]
) -> tuple[Content, dict[str, Any]] | IgnoredFile | None:
    """A folder's file and its parsed content, if exactly its content is trusted.

    Args:
        file: The file: its folder's real path, and its name.
        store: The trust records.
        parse: Parses the file's bytes; called for trusted bytes only.

    Returns:
        The content and the parsed table; why the file is ignored; or None if it doesn't exist.

    Raises:
        BridgeError: As `parse`.
    """
    try:
        data = read_regular(file, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        return ignored_file(file, "unusable", why(exc))
    status, reason = store.status(file, data)
    if status != "trusted":
        return ignored_file(file, status, reason)
    table = parse(data)
    try:
        content = content_of(file, data, table)
    except BridgeError as exc:
        return ignored_file(file, "unusable", exc.message.removesuffix("."))
    if not store.is_trusted(content):
        return ignored_file(file, "changed")
    return content, table
