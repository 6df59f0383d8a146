"""The names of inputs that aren't fetched yet, in /workspace/in: each is there with its size and time, and unreadable.

So a path exists and is listed before its content is sent, for this interpreter, C libraries and other processes alike.
Who opens it in this interpreter has it fetched first; who gets past that is refused by the kernel (EACCES), and never
reads wrong bytes. A folder whose files aren't asked for yet is closed in the same way.

Names are asked for once a script, when it first looks, and recorded as any call: a run that is run again sees the same.
"""

import os
import stat
from hashlib import sha256

from mcp_bridge.guest import call_ids
from mcp_bridge.guest.host_requests import MCPError
from mcp_bridge.wire.annotations import Any, Callable, Iterator
from mcp_bridge.wire.messages import CallId

FOLDER = "/workspace/in"
PART = f"{FOLDER}/.part"
"""Where what is fetched is written until it is whole: no input has this name."""

_access = os.access
_lstat = os.lstat
_PERMISSIONS = 0o777


class Names:
    """What of `FOLDER` stands for content that isn't there yet.

    Args:
        rows: Gives the rows of all inputs, or of an input's files; with the names of the calls that ask for them.
        tell: Told what isn't handed in, and of which input.
    """

    def __init__(
        self,
        rows: Callable[[str | None, Callable[[], CallId]], Iterator[dict[str, Any]]],
        tell: Callable[[str, list[str]], None],
    ) -> None:
        self._rows = rows
        self._tell = tell
        self._cell = call_ids.Running.cell
        self._asked: set[str | None] = set()
        """The inputs whose files were asked for; None once the inputs themselves were."""
        self._closed: set[str] = set()
        """The paths of folders whose files weren't."""
        self._files: set[str] = set()
        self._folders: list[str] = []
        """The folders that are made of names, in part at least, in order."""

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def begin_cell(self) -> None:
        """Remove what an earlier cell of a session has left: this one may have other inputs."""
        if self._cell == call_ids.Running.cell:
            return
        self._cell = call_ids.Running.cell
        self._asked.clear()
        for path in list(self._files):
            self.drop(path)
        for path in reversed(self._folders):
            self.open(path)
            try:
                os.rmdir(path)
            except OSError:
                pass  # Something was fetched into it, or written.
        self._folders.clear()

    def place(self, path: str, *, is_whole: Callable[[str], bool]) -> None:
        """Put the names in place among which a path would be.

        Args:
            path: `FOLDER`, or a path in it, that somebody looks at or lists.
            is_whole: Whether all of an input was fetched.
        """
        if call_ids.current().cell != call_ids.Running.cell:
            # Left by an earlier cell: what it looks at isn't for this one's record.
            return
        self._place(None)
        name = path[len(FOLDER) + 1 :].partition("/")[0]
        if name and not is_whole(name):
            self._place(name)

    def _place(self, name: str | None) -> None:
        if name in self._asked or (name is not None and f"{FOLDER}/{name}" not in self._folders):
            return
        # Before: what was interrupted isn't asked for again by the same name.
        self._asked.add(name)
        numbers = iter(range(1, 1 << 30))
        # Not by the order of calls, which the timing of threads decides.
        line = "h" + sha256(f"names of {name or ''}".encode(errors="surrogatepass")).hexdigest()[:32]
        try:
            for row in self._rows(name, lambda: CallId(f"{line}#{next(numbers)}")):
                self._put(row)
        except MCPError as exc:
            self._tell("", [f"{name}: {exc}" if name else str(exc)])
        if name is not None:
            self.open(f"{FOLDER}/{name}")

    def _put(self, row: dict[str, Any]) -> None:
        path = f"{FOLDER}/{row['name']}"
        if "error" in row:
            self._tell("", [f"{row['name']}: {row['error']}"])
        elif row["kind"] == "folder":
            if not exists(path):
                os.mkdir(path, 0)
                self._closed.add(path)
            # Also where some of its files were fetched before: the others aren't there.
            self._folders.append(path)
        elif not exists(path):
            self._make_folders(os.path.dirname(path))
            _put_file(path, row["size"], row["modified"])
            self._files.add(path)

    def _make_folders(self, path: str) -> None:
        self.open(path)
        if path != FOLDER and not exists(path):
            self._make_folders(os.path.dirname(path))
            os.mkdir(path)
            self._folders.append(path)

    def is_closed(self, path: str) -> bool:
        """Whether a path is a folder whose files weren't asked for."""
        return path in self._closed

    def has_names(self, path: str) -> bool:
        """Whether there are names alone in a folder, or will be once its files are asked for."""
        return self.is_closed(path) or any(one.startswith(f"{path}/") for one in self._files)

    def open(self, path: str) -> None:
        """Let a closed folder be used."""
        if path in self._closed:
            self._closed.discard(path)
            os.chmod(path, 0o755)  # noqa: S103 - the sandbox's

    def drop(self, path: str) -> None:
        """Remove a file's name, unless something else is there by now."""
        self._files.discard(path)
        try:
            if not _lstat(path).st_mode & _PERMISSIONS:
                os.unlink(path)
        except OSError:
            pass  # The script has removed it.

    def replaced(self, path: str) -> None:
        """Content has taken the place of a name, or of a folder of names."""
        self._files.discard(path)
        if path in self._folders:
            self._folders = [one for one in self._folders if one != path and not one.startswith(f"{path}/")]
            self._files = {one for one in self._files if not one.startswith(f"{path}/")}


def exists(path: str) -> bool:
    """Whether there is anything at a path, content or a name alone."""
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def can_enter(path: str) -> bool:
    """Whether there is a folder at a path, and it isn't closed."""
    return _access(path, os.X_OK)


def can_read(path: str) -> bool:
    """Whether a path can be read without being fetched."""
    return _access(path, os.R_OK)


def is_name(status: os.stat_result) -> bool:
    """Whether what `os.lstat` gives is of a name alone, wherever that was moved: a size, but no content and no mode."""
    is_empty = status.st_size > 0 and status.st_blocks == 0
    return is_empty and stat.S_ISREG(status.st_mode) and not status.st_mode & _PERMISSIONS


def _put_file(path: str, size: int, modified: float) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0)
    try:
        os.ftruncate(file, size)
        os.utime(file, (modified, modified))
    finally:
        os.close(file)


def follow_looks(look: Callable[[str], bool], reach: Callable[[str, int], None]) -> None:
    """From now on, have the names in place before this interpreter looks at a path in `FOLDER`.

    Args:
        look: Called with a path; whether a name alone is there.
        reach: Called with a path, and flags by which it is about to be opened by the descriptor of a folder: the event
            that an audit hook gets doesn't say which folder that is.
    """
    for name in ("stat", "lstat", "access"):
        _replace(name, _looking(getattr(os, name), look))
    _replace("open", _opening(os.open, reach))


def _replace(name: str, replacement: Any) -> None:
    original = getattr(os, name)
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(replacement, attribute, getattr(original, attribute, None))
    replacement.__wrapped__ = original
    setattr(os, name, replacement)
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in known:
            known.add(replacement)


def _looking(original: Callable[..., Any], look: Callable[[str], bool]) -> Callable[..., Any]:
    is_access = original.__name__ == "access"

    def looks(path: Any, *args: Any, **options: Any) -> Any:
        if type(path) is not int:
            is_name = (found := in_folder(path, options.get("dir_fd"))) is not None and look(found)
            if is_name and is_access and (args or (options.get("mode"),))[0] == os.R_OK:
                # It will be readable when it is opened.
                return True
        return original(path, *args, **options)

    return looks


def _opening(original: Callable[..., int], reach: Callable[[str, int], None]) -> Callable[..., int]:
    def opens(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None and (found := in_folder(path, dir_fd)) is not None:
            reach(found, flags)
        return original(path, flags, mode, dir_fd=dir_fd)

    return opens


def in_folder(path: Any, dir_fd: int | None = None) -> str | None:
    """A path in `FOLDER`, or `FOLDER` itself, as an absolute one; None for any other.

    Args:
        path: The path.
        dir_fd: The folder that it is relative to; None for the current one.
    """
    try:
        text = os.fsdecode(path)
        if not text.startswith("/"):
            text = os.path.join(os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}"), text)
    except (TypeError, ValueError, OSError):
        return None
    if not text.startswith("/workspace") and ".." not in text:
        return None
    text = os.path.normpath(text)
    if text != FOLDER and not text.startswith(f"{FOLDER}/"):
        return None
    return None if text == PART or text.startswith(f"{PART}/") else text
