"""A folder's configuration file, and everything that it makes the bridge load or start: the subject of trust.

Standard library only, because the settings are read through this module.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

CONFIG_NAME = "mcp-bridge.toml"
PROJECT_NAME = ".mcp.json"
"""Claude Code's file for the servers of a project."""

CLIENT_FILES = (
    PROJECT_NAME,
    ".cursor/mcp.json",
    ".vscode/mcp.json",
    ".codex/config.toml",
    ".gemini/settings.json",
    "opencode.json",
    "opencode.jsonc",
    ".zed/settings.json",
)
"""Files of a folder in which clients look for servers, relative to the folder."""

SERVERS_DIRECTORY = "mcp-servers"
"""A directory of a folder whose JSON files list servers; it is no client's."""

ENTRIES = "entries"
"""The key of `content_of`'s table for what becomes `Content.entries`. It is no key of a file's."""

MAX_DIRECTORY_ENTRIES = 500
"""How many entries of such a directory are looked at: whoever made the folder may have made millions."""

_IN_FOLDERS = frozenset(tuple(name.split("/")) for name in CLIENT_FILES if "/" in name)

MAX_FILE_BYTES = 1 << 20
"""Size limit of a folder's configuration file."""

MAX_FILES = 2000
"""Maximum files that a configuration file may make the bridge load: a person has to review the list."""

MAX_FOLDERS = 5000
"""Maximum folders that are searched for such files: `path = ["/"]` is a simple mistake."""

MAX_LOADED_BYTES = 256 << 20
"""Maximum total size of these files: they are hashed at every start."""

_CHUNK = 1 << 20

_MAX_PATH_CHARS = 4096
"""Linux's PATH_MAX: nothing longer is a path. Following links takes time with the square of its parts."""

# `${NAME:-default}`, as our own TOML and Claude Code's files have it.
_DEFAULT = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:-([^}]*)\}")

TLS_KEYS = ("ca_file", "client_cert", "client_key")
"""The keys of a server that name files of its TLS connection, relative to the configuration file."""

DOCUMENT_KEY = "openapi"
"""The key of a server that names the document of its operations, likewise; or its address."""

PROGRAM_SUFFIXES = frozenset({".yaml", ".yml", ".json", ".toml"})
_CODE_SUFFIXES = frozenset(
    {".bash", ".bat", ".cjs", ".cmd", ".jar", ".js", ".mjs", ".mts", ".php", ".pl", ".ps1", ".py", ".pyz", ".rb", ".sh"}
    | {".ts", ".wasm", ".zsh"}
)


def read_regular(path: Path, limit: int) -> bytes:
    """The bytes of a regular file. Never blocks on a FIFO or device.

    Raises:
        OSError: The system's error; or it is not a regular file, or larger than `limit` bytes.
    """
    with _opened(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(0, f"it has more than {limit} bytes")
    return data


def _opened(path: Path) -> IO[bytes]:
    # Checked before opening, which may have an effect on a device. O_NONBLOCK: it may have been replaced by a FIFO.
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(0, "it is no regular file")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "it is no regular file")
    return os.fdopen(fd, "rb")


def why(error: OSError) -> str:
    """The description of an `OSError`."""
    return error.strerror or str(error)


@dataclass(frozen=True, slots=True)
class Content:
    """The subject of trust: a configuration file and the files that it makes the bridge load or start.

    Attributes:
        file: The configuration file: its folder's real path, and its name.
        data: Its bytes. The same bytes are hashed and parsed.
        files: Maps the path of each file that it makes the bridge load to the SHA-256 of its bytes, in hexadecimal.
        entries: Maps the name of each server whose entry isn't told by the bytes alone to the SHA-256 of the whole:
            one that changes a part of another, which is in another file.
    """

    file: Path
    data: bytes
    files: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder that the file belongs to."""
        return folder_of(self.file)

    @property
    def hash(self) -> str:
        """The SHA-256 of the configuration file's bytes."""
        return hashlib.sha256(self.data).hexdigest()

    def read(self, path: Path, limit: int) -> bytes:
        """The bytes of one of the files, if they are still the trusted ones.

        Raises:
            OSError: As `read_regular`.
            BridgeError: `folder_changed`.
        """
        data = read_regular(path, limit)
        if self.files.get(str(path)) != hashlib.sha256(data).hexdigest():
            raise BridgeError(
                "folder_changed",
                f"{path} isn't what was trusted: it was changed while it was read.",
                hint="`mcp-bridge trust` shows what it would do now, and asks.",
                file=str(path),
            )
        return data


class _ContentCollector:
    """Collects and hashes files, within limits."""

    def __init__(self, file: Path) -> None:
        self.files: dict[str, str] = {}
        self._file = file
        self._bytes = 0

    def add(self, path: Path) -> None:
        if str(path) in self.files:
            return
        if len(self.files) >= MAX_FILES:
            raise self.too_large(f"more than {MAX_FILES} files")
        hashed = hashlib.sha256()
        try:
            with _opened(path) as file:
                while chunk := file.read(_CHUNK):
                    self._bytes += len(chunk)
                    if self._bytes > MAX_LOADED_BYTES:
                        raise self.too_large(f"more than {MAX_LOADED_BYTES} bytes")
                    hashed.update(chunk)
        except OSError as exc:
            # Not omitted: a file that can't be read now might be readable later.
            self.files[str(path)] = f"unreadable: {why(exc)}"
            return
        self.files[str(path)] = hashed.hexdigest()

    def too_large(self, what: str) -> BridgeError:
        return BridgeError(
            "folder_too_large",
            f"{self._file} would have the bridge load {what}: too much to trust at a look.",
            hint="Give tools and programs folders of their own, and name these.",
            file=str(self._file),
        )


def content_of(file: Path, data: bytes, table: Mapping[str, Any]) -> Content:
    """Collect what a configuration file makes the bridge load or start.

    Args:
        file: The configuration file.
        data: Its bytes.
        table: The decoded TOML or JSON, with `ENTRIES` if there are any. Malformed parts are ignored here: their
            decoder reports them.

    Raises:
        BridgeError: `folder_too_large`.
    """
    collector = _ContentCollector(file)
    base = folder_of(file)
    for folder in _folders(table, "tools", base):
        for path in _modules(folder, collector):
            collector.add(path)
    for folder in _folders(table, "programs", base):
        for path in _entries(folder):
            if path.suffix in PROGRAM_SUFFIXES:
                collector.add(path)
    for path in _scripts(table, base):
        collector.add(path)
    return Content(file, data, collector.files, _table(table, ENTRIES))


def folder_of(file: Path) -> Path:
    """The folder that a configuration file belongs to: for `.cursor/mcp.json`, the folder that has `.cursor`."""
    inner = (file.parent.name, file.name) in _IN_FOLDERS
    return file.parent.parent if inner or (file.parent.name == SERVERS_DIRECTORY and _lists(file.name)) else file.parent


def _lists(name: str) -> bool:
    """Whether a file in a directory of servers lists some: not one that is a client's in this directory."""
    return name.endswith(".json") and not name.startswith(".") and name not in CLIENT_FILES


def listing_files(directory: Path) -> list[Path]:
    """The files of a directory of servers that list some, by name; none if it can't be read."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in itertools.islice(entries, MAX_DIRECTORY_ENTRIES)]
    except OSError:
        return []
    return [directory / name for name in sorted(names) if _lists(name)]


def project_table(content: Any) -> dict[str, Any]:
    """The part of a project's JSON that is used: its servers."""
    return {"mcpServers": dict(_table(content, "mcpServers"))}


def _table(container: Any, key: str) -> Mapping[str, Any]:
    value = container.get(key) if isinstance(container, dict) else None
    return value if isinstance(value, dict) else {}


def _folders(table: Mapping[str, Any], name: str, base: Path) -> Iterator[Path]:
    """The folders of `[tools]` or `[programs]`, as resolved by their loaders."""
    paths = _table(table, name).get("path")
    for path in paths if isinstance(paths, list) else ():
        if isinstance(path, str):
            with suppress(OSError, RuntimeError, ValueError):
                yield (base / Path(path).expanduser()).resolve()


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _modules(folder: Path, gathering: _ContentCollector) -> Iterator[Path]:
    """All Python files in a folder and its possible packages; each symbolic link is followed once."""
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        with suppress(OSError):
            status = here.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            if len(seen) > MAX_FOLDERS:
                raise gathering.too_large(f"modules of more than {MAX_FOLDERS} folders")
            for entry in _entries(here):
                if entry.suffix == ".py":
                    yield entry
                elif entry.name.isidentifier() and entry.name != "__pycache__" and entry.is_dir():
                    waiting.append(entry)


def _scripts(table: Mapping[str, Any], base: Path) -> Iterator[Path]:
    """The folder's files that are named by its servers' commands, and by the command for the master key."""
    for key in ("servers", "mcpServers"):
        for server in _table(table, key).values():
            yield from scripts_of(server, base)
    command = _table(table, "ledger").get("master_key")
    if isinstance(command, list):
        yield from _named(command, base, base)


def scripts_of(server: Any, base: Path, started_in: Path | None = None) -> Iterator[Path]:
    """The folder's files that a server's command names, or that a remote server's connection or tools are made with.

    Args:
        server: The server's undecoded entry, with variables not expanded.
        base: The folder.
        started_in: The working directory if the entry doesn't set one; by default the folder.
    """
    if isinstance(server, dict):
        cwd, args = server.get("cwd"), server.get("args")
        words = [server.get("command"), *(args if isinstance(args, list) else ())]
        here = started_in or base
        yield from _named(words, here / cwd if isinstance(cwd, str) else here, base)
        for key in (*TLS_KEYS, DOCUMENT_KEY):
            path = server.get(key)
            if isinstance(path, str):
                # As an executable's path: loaded whatever its name says.
                yield from _named([str(base / path)], base, base)


def changed(files: Mapping[str, str]) -> str | None:
    """The first file whose bytes have changed, or None.

    Args:
        files: Maps paths to SHA-256 hashes, as `Content.files`.
    """
    for path, hashed in files.items():
        collector = _ContentCollector(Path(path))
        collector.add(Path(path))
        if collector.files[path] != hashed:
            return path
    return None


def _named(words: Iterable[Any], cwd: Path, base: Path) -> Iterator[Path]:
    """The command, if it is a file of the folder, and those of its arguments that are code in the folder."""
    for number, word in enumerate(words):
        for text in _readings(word) if isinstance(word, str) else ():
            # A command without a slash is looked up on PATH.
            if number == 0 and "/" not in text:
                continue
            with suppress(OSError, ValueError):
                path = Path(os.path.abspath(cwd / text))  # noqa: PTH100 - links are followed when it is read
                real = (cwd / text).resolve()
                inside = path.is_relative_to(base) or real.is_relative_to(base)
                if path.resolve() != real:
                    # After a link, `..` leads out of the folder that the link leads to.
                    path = real
                if inside and path.is_file() and (number == 0 or _is_code(path)):
                    yield path


def _readings(word: str) -> Iterable[str]:
    """What may be a path in a word of a command: the word, with variables' defaults too, and an option's value."""
    if len(word) > _MAX_PATH_CHARS:
        return ()
    texts = [word, _DEFAULT.sub(r"\1", word)]
    values = [text.partition("=")[2] for text in texts if text.startswith("-") and "=" in text]
    return dict.fromkeys((*texts, *values))


def _is_code(path: Path) -> bool:
    """Whether a file is code, by its name or first bytes: data files, such as a database, change all the time."""
    if path.suffix.lower() in _CODE_SUFFIXES or os.access(path, os.X_OK):
        return True
    with _opened(path) as file:
        return bool(file.read(2) == b"#!")


def real_folder(folder: Path) -> Path:
    """A folder's path with symbolic links resolved, to which records are bound."""
    return folder.resolve()
