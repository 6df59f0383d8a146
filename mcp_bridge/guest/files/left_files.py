"""What a script leaves in /workspace/out: kept as artifacts at its end, or at the end of each cell of a session."""

import binascii
import errno
import os
import stat
import sys
from time import monotonic

from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.files.unfetched_inputs import is_name
from mcp_bridge.guest.host_requests import MCPError, call_host
from mcp_bridge.wire.annotations import Any, Callable, Iterator
from mcp_bridge.wire.messages import ArtifactWrite

FOLDER = "/workspace/out"

ARTIFACT_CHUNK_BYTES = 1 << 20

MAX_FILES = 1000
MAX_LOOKED = 10_000
MAX_DEPTH = 20

INTERRUPTED_SECONDS = 3.0
"""How long a cell whose time is up may go on keeping files, from its interruption on. The host ends it after four."""

MAX_LISTED = 20
"""Most lines about what wasn't kept."""

BETWEEN = "__"
"""Stands for the slash in the name of a file in a folder: an artifact's name is a plain file name."""

_HOLE_BYTES = 1 << 20
"""Bytes without content from which a file counts as sparse."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_FOR_ALL = frozenset({"artifact_too_large", "too_many_artifacts", "files_full", "disk_full", "too_many_calls"})
"""Codes after which no further file is kept either."""


def key_of(status: os.stat_result) -> tuple[int, ...]:
    """What tells that a file is the one that was kept, unchanged."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def keep_file(channel: Channel, file: Any, name: str) -> str:
    """Keep an opened file beyond the sandbox's end. Returns the URI by which the client can read it.

    Raises:
        OSError: The file can't be read.
        MCPError: The host refuses it (its size, its name).
    """
    chunk, first = file.read(ARTIFACT_CHUNK_BYTES), True
    while True:
        following = file.read(ARTIFACT_CHUNK_BYTES)
        encoded: Any = binascii.b2a_base64(chunk, newline=False)
        result = call_host(channel, ArtifactWrite(name, encoded, first, not following))
        if not following:
            return str(result["uri"])
        chunk, first = following, False


class LeftFiles:
    """Keeps what is left in /workspace/out.

    Args:
        keep: Keeps an opened file under a name.
    """

    def __init__(self, keep: Callable[[Any, str], object]) -> None:
        self._keep = keep
        self._kept: dict[str, tuple[int, ...]] = {}
        """What was kept already, by path."""
        self._left_out: dict[str, tuple[object, str]] = {}
        """What wasn't, with why, and was told."""

    def was_kept(self, path: Any, key: tuple[int, ...]) -> None:
        """Note that the script itself has kept a file, with what `key_of` gives for it."""
        try:
            self._kept[os.path.abspath(os.fspath(path))] = key
        except (TypeError, ValueError):
            pass

    def keep_all(self, interrupted_at: Callable[[], float | None]) -> None:
        """Keep what is new or has changed; say on standard error what isn't kept.

        Args:
            interrupted_at: Gives when the cell was interrupted, by `monotonic`; None if it wasn't, by then.
        """
        told = untold = names = 0
        used: dict[str, str] = {}
        files = _walk()
        for path, why in files:
            shown = path[len(FOLDER) + 1 :]
            try:
                if why is not None:
                    raise _LeftOutError(why)
                name = shown.replace("/", BETWEEN)
                if used.setdefault(name, path) != path:
                    raise _LeftOutError(f"another file has the name {name!r}")
                if _has_surrogate(name):
                    # No frame carries it to the host, which refuses others that are no names by this code.
                    raise _LeftOutError("[bad_artifact_name] its name isn't UTF-8")
                names += 1
                if names > MAX_FILES:
                    raise _LeftOutError(f"there are more than {MAX_FILES} files", is_last=True)
                self._keep_one(path, name, interrupted_at)
            except _LeftOutError as exc:
                if not exc.is_last and not self._is_news(path, str(exc)):
                    continue
                if told < MAX_LISTED:
                    print(f"[not kept: {_printable(path)}: {exc}]", file=sys.stderr)  # noqa: T201
                    told += 1
                else:
                    untold += 1
                if exc.is_last:
                    untold += sum(following not in self._kept for following, _ in files)
                    break
        if untold:
            print(f"[not kept: {untold} more files of {FOLDER}]", file=sys.stderr)  # noqa: T201

    def _is_news(self, path: str, why: str) -> bool:
        """Whether no earlier cell was told that a file or folder, as it is now, isn't kept for this reason."""
        try:
            now = (key_of(os.lstat(path)), why)
        except OSError:
            return True
        before, self._left_out[path] = self._left_out.get(path), now
        return before != now

    def _keep_one(self, path: str, name: str, interrupted_at: Callable[[], float | None]) -> None:
        try:
            before = os.lstat(path)
            if not stat.S_ISREG(before.st_mode):
                raise _LeftOutError("it is a link" if stat.S_ISLNK(before.st_mode) else "it is no regular file")
            if is_name(before):
                raise _LeftOutError("it is an input that wasn't fetched")
            if self._kept.get(path) == key_of(before):
                return
            with open(_made_readable(path, lambda: os.open(path, _OPEN)), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise _LeftOutError("it is no regular file")
                if status.st_blocks * 512 + _HOLE_BYTES < status.st_size:
                    raise _LeftOutError(f"it is sparse: {status.st_size} bytes, most of which were never written")
                self._keep(_Hurried(file, interrupted_at), name)
                self._kept[path] = key_of(status)
        except OSError as exc:
            raise _LeftOutError("it is a link" if exc.errno == errno.ELOOP else str(exc.strerror or exc)) from None
        except MCPError as exc:
            raise _LeftOutError(f"[{exc.code}] {exc.message}", is_last=exc.code in _FOR_ALL) from None


class _LeftOutError(Exception):
    def __init__(self, why: str, *, is_last: bool = False) -> None:
        super().__init__(why)
        self.is_last = is_last


class _Hurried:
    """A file that can be read as long as there is time."""

    def __init__(self, file: Any, interrupted_at: Callable[[], float | None]) -> None:
        self._file = file
        self._interrupted_at = interrupted_at

    def read(self, size: int) -> Any:
        at = self._interrupted_at()
        if at is not None and monotonic() > at + INTERRUPTED_SECONDS:
            raise _LeftOutError("the time was up", is_last=True)
        return self._file.read(size)


def _walk() -> Iterator[tuple[str, str | None]]:
    """What isn't a folder, by path, within a folder by name; and the folders that aren't looked into, each with why."""
    waiting, looked = [FOLDER], 0
    while waiting:
        here = waiting.pop()
        if here.count("/") - FOLDER.count("/") > MAX_DEPTH:
            yield here, f"folders nest deeper than {MAX_DEPTH}"
            continue
        try:
            with _made_readable(here, lambda: os.scandir(here)) as entries:  # noqa: B023  (called at once)
                rows = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            # The script, or what it has left running, has removed it.
            continue
        except OSError as exc:
            yield here, str(exc.strerror or exc)
            continue
        looked += len(rows)
        if looked > MAX_LOOKED:
            print(f"[not kept: more than {MAX_LOOKED} names in {FOLDER}]", file=sys.stderr)  # noqa: T201
            return
        for entry in rows:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            else:
                yield entry.path, None


def _made_readable(path: str, open_it: Callable[[], Any]) -> Any:
    """What `open_it` gives. A file or folder that nobody may read is made readable: it was left to be kept."""
    try:
        return open_it()
    except PermissionError:
        # By a descriptor: what the script has left running may put a link there meanwhile.
        here = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            mode = os.fstat(here).st_mode
            if not stat.S_ISLNK(mode):
                os.chmod(f"/proc/self/fd/{here}", stat.S_IMODE(mode) | (0o700 if stat.S_ISDIR(mode) else 0o400))
        finally:
            os.close(here)
        return open_it()


def _has_surrogate(text: str) -> bool:
    """Whether a name isn't UTF-8: Python has each byte that isn't as half of a pair."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
