"""A restored state directory is put in its place from a staging directory: whole, the ledger last, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge.atomic_files import rename_noreplace, sync_directory, sync_file, write_private
from mcp_bridge.backup.create import (
    CREDENTIALS,
    DATABASES,
    KEYS,
    OF_THIS_LEDGER,
)
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import FOLDERS
from mcp_bridge.file_locks import locked_directory
from mcp_bridge.ledger.storage.restore_staging import (
    PLACING,
    PREVIOUS_PREFIX,
    RESTORING,
    has_ledger,
    is_unfinished,
    move_back,
)
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.private_files import state_directory

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def staging_directory(directory: Path) -> Iterator[Path]:
    """A directory in the state directory, for this restore alone.

    Raises:
        BridgeError: `restore_busy`, `restore_exists`, `restore_failed`.
    """
    is_new = not directory.exists()
    state_directory(directory, durable=True)
    staging = directory / RESTORING
    try:
        with locked_directory(directory) as is_mine:
            if not is_mine:
                raise BridgeError("restore_busy", f"Another restore into {directory} is under way.")
            try:
                _clear(directory, staging)
                # Once more, now that nobody else restores.
                refuse_occupied(directory)
                staging.mkdir(mode=0o700)
            except OSError as exc:
                raise BridgeError("restore_failed", f"{exc.filename} can't be made: {exc.strerror}.") from None
            try:
                yield staging
            finally:
                # Also what another interruption has left undone.
                with suppress(OSError):
                    _clear(directory, staging)
    finally:
        if is_new:
            with suppress(OSError):
                directory.rmdir()


def place_all(staging: Path, directory: Path) -> None:
    """Put everything in its place, the ledger last; or nothing."""
    for at, _, names in os.walk(staging, topdown=False):
        for name in names:
            sync_file(Path(at) / name)
        sync_directory(Path(at))
    order = [name for name in (*FOLDERS, *KEYS, *CREDENTIALS, *reversed(DATABASES)) if (staging / name).exists()]
    marks = {name: _mark(staging / name) for name in order}
    write_private(staging / PLACING, json.dumps(marks).encode(), durable=True)
    try:
        for name in order:
            if (staging / name).is_dir():
                # Onto an empty one at most.
                (staging / name).rename(directory / name)
                continue
            if name == FILE_NAME:
                _put_away(directory, staging)
                # Everything else before it: with it, the directory is a ledger's.
                sync_directory(directory)
            rename_noreplace(staging / name, directory / name)
        sync_directory(directory)
    except BaseException:
        _undo(directory, staging)
        raise


def _mark(path: Path) -> list[int] | None:
    """By which a file is known that nobody has changed or replaced, and a directory; None where nothing is."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return [status.st_ino, 0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns]


def _put_away(directory: Path, staging: Path) -> None:
    """Take the names of another ledger's files away."""
    for name in OF_THIS_LEDGER:
        if os.path.lexists(directory / name):
            (directory / name).rename(staging / f"{PREVIOUS_PREFIX}{name}")


def _undo(directory: Path, staging: Path) -> None:
    """Take back what was put in its place, the ledger first, and put back what was put away.

    What somebody has made or changed since stays. Whoever is interrupted at this can do it again.
    """
    try:
        marks = json.loads((staging / PLACING).read_bytes())
    except (FileNotFoundError, ValueError):
        # That is written first, and whole: nothing was placed.
        marks = {}
    if has_ledger(directory) and _mark(directory / FILE_NAME) != marks.get(FILE_NAME):
        # A bridge has begun to work with it.
        return
    for name in reversed(marks):
        placed, back = directory / name, staging / name
        if _mark(placed) == marks[name]:
            if os.path.lexists(back):
                # Two names of one file, which no renaming makes one.
                placed.unlink()
            else:
                placed.rename(back)
        elif placed.is_file() and not placed.stat().st_size and os.path.lexists(back):
            # Where there are no links, `place` begins with an empty file.
            placed.unlink()
    move_back(directory)


def _clear(directory: Path, staging: Path) -> None:
    """Remove what a restore that has died has left."""
    if not staging.is_dir():
        return
    if is_unfinished(directory) and not has_ledger(directory):
        _undo(directory, staging)
    shutil.rmtree(staging)


def _ours() -> tuple[str, ...]:
    return (*FOLDERS, *KEYS, *CREDENTIALS, *DATABASES, *(f"{name}-wal" for name in DATABASES))


def refuse_occupied(directory: Path) -> None:
    """See that there is nothing where something would be put.

    Raises:
        BridgeError: `restore_exists`.
    """
    if (directory / RESTORING / PLACING).exists() and is_unfinished(directory) and not has_ledger(directory):
        # It is what a restore has left that has died, which takes it back first; the rest is refused then.
        return
    there = [name for name in _ours() if os.path.lexists(directory / name) and not _is_empty(directory / name)]
    if there:
        raise BridgeError(
            "restore_exists",
            f"{directory} has {there[0]} already: a backup is restored into a directory of its own.",
            hint="Move that directory away, or name another one (MCP_BRIDGE_STATE_DIR). Its keys can be used with"
            " --keys.",
        )


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
