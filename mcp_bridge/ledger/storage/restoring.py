"""What a restore has in a state directory until it has ended, and what is known by that of one that was killed.

Everything is in RESTORING first. Then PLACING is written, one name after the other is taken from there to its place,
and the ledger last: so while the ledger is still there, the restore isn't done, and once it isn't, it is.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.private_files import locked_directory

if TYPE_CHECKING:
    from pathlib import Path

RESTORING = ".restoring"
"""In the state directory: what isn't in its place yet. Whoever makes or removes it has the state directory locked."""

PLACING = "placing"
"""In RESTORING: what is about to be put in its place."""

AWAY = "before."
"""How names begin in RESTORING of what tells of another ledger than the one that is restored."""


def has_ledger(directory: Path) -> bool:
    """Whether there is a ledger in its place. Who was killed may have left an empty file in that of one."""
    try:
        return (directory / FILE_NAME).stat().st_size > 0
    except FileNotFoundError:
        return False


def is_unfinished(directory: Path) -> bool:
    """Whether a restore is under way, or was killed before it was done."""
    left = directory / RESTORING
    return left.exists() and not ((left / PLACING).exists() and not (left / FILE_NAME).exists())


def put_back(directory: Path) -> None:
    """Put back what tells of the ledger that was there before, or is there again.

    Raises:
        OSError: As the system gives it.
    """
    for path in (directory / RESTORING).glob(f"{AWAY}*"):
        target = directory / path.name.removeprefix(AWAY)
        if not os.path.lexists(target):
            path.rename(target)


def tidy_up(directory: Path) -> None:
    """Where there is a ledger, which is about to be written to, remove what a restore has left that was killed.

    The next one would take what is here for its own.

    Raises:
        OSError: As the system gives it.
    """
    left = directory / RESTORING
    if not left.exists() or not has_ledger(directory):
        return
    with locked_directory(directory) as is_mine:
        # The restore that has done this may be about to remove it.
        if is_mine and left.exists():
            if (left / FILE_NAME).exists() and not (left / FILE_NAME).samefile(directory / FILE_NAME):
                # It was never done, and somebody has put the ledger of before back.
                put_back(directory)
            shutil.rmtree(left, ignore_errors=True)
