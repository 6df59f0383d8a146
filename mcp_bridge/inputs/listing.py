"""Lists the files of an input: a walk over its folder, which is bounded, and follows no link."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple

from mcp_bridge.inputs.open_without_links import (
    Identity,
    RefusedError,
    folder_above,
    folder_below,
    kind_of,
    opened_file,
    refuse_private,
    unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mcp_bridge.inputs.config import InputSource

MAX_LOOKED = 200_000
"""Most names that are looked at in the folders of an input."""

MAX_DEPTH = 40
"""How deep folders are walked."""

MAX_PATH_CHARS = 4 << 20
"""Most characters of the paths of an input's files: they are one answer, with their hashes."""

MAX_LEFT_OUT = 20
"""Most of what is left out that is told by its name."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class ListedFile(NamedTuple):
    """A file of an input, as it is listed.

    Attributes:
        path: Its path in the input's folder; empty for an input that is a file.
        identity: The file that it is.
    """

    path: str
    identity: Identity

    @property
    def size(self) -> int:
        """Bytes."""
        return self.identity.size

    @property
    def modified_ns(self) -> int:
        """When its content was last changed, in nanoseconds since 1970."""
        return self.identity.modified_ns


class Listing(NamedTuple):
    """The files of an input, by their paths.

    Attributes:
        kind: What the input is.
        files: Its files.
        left_out: What isn't handed in, and why: a sentence's rest for each, at most MAX_LEFT_OUT.
        more_left_out: How much else isn't.
    """

    kind: Literal["file", "folder"]
    files: tuple[ListedFile, ...]
    left_out: tuple[str, ...] = ()
    more_left_out: int = 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def listed(source: InputSource, within: str = "") -> Listing:
    """List an input, or a folder or file in it.

    Args:
        source: The input.
        within: The path in its folder; empty for all of it.

    Raises:
        RefusedError: It isn't there, is no regular file or folder, or is over its limits.
    """
    parts = parts_of(within)
    status = _status(source, parts)
    if parts and not stat.S_ISDIR(status.st_mode) and not _belongs(source, parts):
        # Of what isn't handed in, it isn't told either that it is there.
        raise RefusedError("isn't there", "input_unavailable")
    if (kind := kind_of(status.st_mode)) is not None:
        raise RefusedError(kind)
    if not stat.S_ISDIR(status.st_mode):
        if not parts and source.glob:
            raise RefusedError("is a file, and its configuration has a pattern for the files of a folder")
        with opened_file(source, within) as (_, status):
            file = ListedFile("", Identity.of(status))
        _require_size(source, file.size)
        return Listing("file", (file,))
    walk = _Walk(source, parts)
    files = sorted(walk.files())
    left = walk.left_out
    if parts and not files and not left:
        raise RefusedError("isn't there, or is an empty folder", "input_unavailable")
    return Listing("folder", tuple(files), tuple(left[:MAX_LEFT_OUT]), max(0, walk.left_out_count - MAX_LEFT_OUT))


def parts_of(within: str) -> tuple[str, ...]:
    """The parts of a path in an input.

    Raises:
        RefusedError: It would lead elsewhere, or can't be a path.
    """
    if not within:
        return ()
    parts = tuple(within.split("/"))
    if len(parts) > MAX_DEPTH or "\0" in within or any(part in {"", ".", ".."} for part in parts):
        raise RefusedError("has a path that isn't followed: no '..', no '.', no empty part")
    if _UNPRINTABLE.search(within):
        # As it is said of it where a folder is listed.
        raise RefusedError("has a path with characters that can't be shown")
    return parts


def _status(source: InputSource, parts: Sequence[str]) -> os.stat_result:
    *above, name = (source.path.name, *parts)
    place = folder_below(source, above[1:]) if parts else folder_above(source.path)
    with place as at:
        try:
            return os.stat(name, dir_fd=at, follow_symlinks=False)
        except OSError as exc:
            raise unreadable(exc) from None


def _belongs(source: InputSource, parts: Sequence[str]) -> bool:
    """Whether a file belongs to an input by its name and the pattern."""
    if not source.dot_files and any(part.startswith(".") and not _names_hidden(source.glob, part) for part in parts):
        return False
    return not source.glob or _matches(source.glob, tuple(parts))


def _names_hidden(glob: Sequence[str], part: str) -> bool:
    """Whether a pattern says expressly that it means names with a dot first."""
    return any(each.startswith(".") and _part(each)(part) is not None for each in glob)


def _require_size(source: InputSource, size: int) -> None:
    if size > source.max_size:
        raise RefusedError(f"has {size} bytes, over its max_size of {source.max_size}", "input_too_large")


class _Walk:
    def __init__(self, source: InputSource, start: Sequence[str]) -> None:
        self._source = source
        self._start = tuple(start)
        self._looked = self._files = self._size = self._chars = 0
        self.left_out: list[str] = []
        self.left_out_count = 0

    def files(self) -> Iterator[ListedFile]:
        """The files.

        Raises:
            RefusedError: As `listed`.
        """
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            here = waiting.pop()
            try:
                with folder_below(self._source, (*self._start, *here)) as at:
                    entries = self._entries(at)
            except RefusedError as exc:
                if not here:
                    raise
                # It may have been replaced since it was listed.
                self._leave_out("/".join(here), exc.why)
                continue
            for name, status in entries:
                path = (*here, name)
                if not self._is_wanted(path, status):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    if len(path) + len(self._start) >= MAX_DEPTH:
                        raise RefusedError(f"has folders in more than {MAX_DEPTH} levels", "input_too_large")
                    waiting.append(path)
                    continue
                yield self._counted("/".join(path), status)

    def _entries(self, at: int) -> list[tuple[str, os.stat_result]]:
        found = []
        try:
            with os.scandir(at) as entries:
                for entry in entries:
                    self._looked += 1
                    if self._looked > MAX_LOOKED:
                        raise RefusedError(f"has more than {MAX_LOOKED} names in its folders", "input_too_large")
                    try:
                        found.append((entry.name, entry.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        continue
        except OSError as exc:
            raise unreadable(exc) from None
        return found

    def _is_wanted(self, path: tuple[str, ...], status: os.stat_result) -> bool:
        """Whether a name belongs to the input; what does, and can't be handed in, is noted."""
        source, whole = self._source, (*self._start, *path)
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_folder:
            if not source.dot_files and path[-1].startswith(".") and not _names_hidden(source.glob, path[-1]):
                return False
            if source.glob and "**" not in source.glob and len(whole) >= len(source.glob):
                return False
            try:
                refuse_private(source, status)
            except RefusedError:
                return False
        elif not _belongs(source, whole):
            return False
        shown = "/".join(path)
        if _UNPRINTABLE.search(shown):
            self._leave_out(ascii(shown)[1:-1], "has a name with characters that can't be shown")
        elif (kind := kind_of(status.st_mode)) is not None:
            self._leave_out(shown, kind)
        elif not is_folder and status.st_nlink > 1 and not source.hard_links:
            self._leave_out(shown, "has another name elsewhere (a hard link)")
        else:
            return True
        return False

    def _counted(self, path: str, status: os.stat_result) -> ListedFile:
        self._files += 1
        self._size += status.st_size
        self._chars += len(path)
        if self._chars > MAX_PATH_CHARS:
            raise RefusedError(f"has paths of more than {MAX_PATH_CHARS} characters together", "input_too_large")
        if self._files > self._source.max_files:
            raise RefusedError(f"has more than {self._source.max_files} files, its max_files", "input_too_large")
        if self._size > self._source.max_size:
            raise RefusedError(f"has more than {self._source.max_size} bytes, its max_size", "input_too_large")
        return ListedFile(path, Identity.of(status))

    def _leave_out(self, path: str, why: str) -> None:
        self.left_out_count += 1
        if len(self.left_out) < MAX_LEFT_OUT:
            self.left_out.append(f"{path[:200]} {why}")


def _matches(glob: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether a path matches a pattern; `**` stands for any number of folders."""
    # The states of the pattern that the path may be in, as of a finite automaton: linear in both.
    states = {0}
    for part in path:
        following: set[int] = set()
        for state in _closed(glob, states):
            if state < len(glob):
                if glob[state] == "**":
                    following.add(state)
                elif _part(glob[state])(part) is not None:
                    following.add(state + 1)
        states = following
    return len(glob) in _closed(glob, states)


def _closed(glob: tuple[str, ...], states: set[int]) -> set[int]:
    """With the states that are reached by `**` for no folder at all."""
    closed = set(states)
    for state in sorted(states):
        at = state
        while at < len(glob) and glob[at] == "**":
            at += 1
            closed.add(at)
    return closed


@functools.lru_cache(maxsize=256)
def _part(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(fnmatch.translate(pattern)).match
