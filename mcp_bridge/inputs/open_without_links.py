"""Opens files below a folder, one part of the path after the other, without ever following a link.

Each folder is opened relative to the one above it (openat), with O_NOFOLLOW. So whatever is renamed or replaced by a
link meanwhile, what is opened is what these names lead to, or nothing.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mcp_bridge.error_codes import Code
    from mcp_bridge.inputs.config import InputSource

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""O_NONBLOCK: what was a file may have become a FIFO, whose opening would wait."""


class Identity(NamedTuple):
    """What tells that a file is the same, and unchanged.

    The time of change (`changed_ns`) is the kernel's own: whoever writes, or sets the other times, changes it.
    """

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """The identity of an opened file."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class RefusedError(Exception):
    """Something that isn't read. The text says what it is.

    Args:
        why: A clause.
        code: What the script is told.
        details: What the script's error has besides.
    """

    def __init__(self, why: str, code: Code = "input_refused", **details: Any) -> None:
        super().__init__(why)
        self.why = why
        self.code: Code = code
        self.details: dict[str, Any] = details


def error(source: InputSource, within: str, refused: RefusedError) -> BridgeError:
    """A refusal as the script's error. It doesn't tell where on the host the input is."""
    name = f"{source.name}/{within}" if within else source.name
    hints = {
        "input_refused": "The operator hands in regular files and folders alone; a copy of it could be.",
        "input_unavailable": "await runtime.files() lists what there is. The operator configures it in [files].",
        "input_too_large": "Ask for one file of it, as NAME/FILE; or the operator raises its limits in [files].",
        "file_changed": "Open it again, once nobody writes to it.",
        "workspace_full": "Read it as a stream, without a copy: runtime.open_input(NAME).",
    }
    hint, details = hints.get(refused.code), refused.details
    return BridgeError(refused.code, f"The input {name!r} {refused.why}.", hint=hint, input=name, **details)


def unreadable(exc: OSError) -> RefusedError:
    """The refusal for an error of the system."""
    if isinstance(exc, FileNotFoundError | NotADirectoryError):
        return RefusedError("isn't there", "input_unavailable")
    return RefusedError(f"can't be read: {exc.strerror or exc}", "input_unavailable")


def kind_of(mode: int) -> str | None:
    """What a file is that isn't read; None for a regular file or a folder."""
    kinds = (
        (stat.S_ISLNK, "is a symbolic link"),
        (stat.S_ISFIFO, "is a FIFO"),
        (stat.S_ISSOCK, "is a socket"),
        (stat.S_ISBLK, "is a device"),
        (stat.S_ISCHR, "is a device"),
    )
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return next((name for test, name in kinds if test(mode)), "is no regular file")


@contextmanager
def folder_above(path: Path) -> Iterator[int]:
    """The folder that a path's last part is in, opened from the root on.

    Raises:
        RefusedError: A part of it is a link by now, or is gone.
    """
    with _closed_at_end() as opened:
        try:
            opened.append(os.open("/", _FOLDER))
            for part in path.parent.parts[1:]:
                _descend(opened, part)
        except OSError as exc:
            raise unreadable(exc) from None
        yield opened[-1]


@contextmanager
def folder_below(source: InputSource, parts: Sequence[str]) -> Iterator[int]:
    """A folder of an input: its own, and then each of the parts.

    Raises:
        RefusedError: A part of it is no folder, a link, gone, or the state directory.
    """
    with folder_above(source.path) as above, _closed_at_end() as opened:
        try:
            opened.append(os.dup(above))
            for part in (source.path.name, *parts):
                _descend(opened, part)
                refuse_private(source, os.fstat(opened[-1]))
        except OSError as exc:
            raise unreadable(exc) from None
        yield opened[-1]


def refuse_private(source: InputSource, status: os.stat_result) -> None:
    """Refuse the state directory.

    Raises:
        RefusedError: It is that.
    """
    if source.private is not None:
        try:
            private = source.private.stat()
        except OSError:
            return
        if (private.st_dev, private.st_ino) == (status.st_dev, status.st_ino):
            raise RefusedError("is the bridge's own state, which isn't provided to scripts")


def _descend(opened: list[int], name: str) -> None:
    """Replace the last opened folder by one in it."""
    if _is_link(name, opened[-1]):
        raise RefusedError("leads through a symbolic link")
    opened.append(os.open(name, _FOLDER, dir_fd=opened[-1]))
    os.close(opened.pop(-2))


def _is_link(name: str, at: int) -> bool:
    # For the message alone: what is opened isn't a link in any case.
    return stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)


@contextmanager
def _closed_at_end() -> Iterator[list[int]]:
    opened: list[int] = []
    try:
        yield opened
    finally:
        for fd in opened:
            os.close(fd)


@contextmanager
def opened_file(source: InputSource, within: str) -> Iterator[tuple[int, os.stat_result]]:
    """A file of an input, opened, and its status.

    Args:
        source: The input.
        within: The file's path in the input's folder; empty for the input itself.

    Raises:
        RefusedError: It is no regular file, can't be read, or a part of its path is a link.
    """
    *folders, name = within.split("/") if within else (source.path.name,)
    place = folder_below(source, folders) if within else folder_above(source.path)
    with place as at:
        try:
            before = os.stat(name, dir_fd=at, follow_symlinks=False)
            _require_file(source, before)
            fd = os.open(name, _FILE, dir_fd=at)
        except OSError as exc:
            raise unreadable(exc) from None
    try:
        status = os.fstat(fd)
        _require_file(source, status)
        yield fd, status
    finally:
        os.close(fd)


def _require_file(source: InputSource, status: os.stat_result) -> None:
    if (kind := kind_of(status.st_mode)) is not None:
        raise RefusedError(kind)
    if stat.S_ISDIR(status.st_mode):
        raise RefusedError("is a folder")
    if status.st_nlink > 1 and not source.hard_links:
        raise RefusedError("has another name elsewhere (a hard link); hard_links = true in its table allows that")
