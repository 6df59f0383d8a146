"""The staging directory of a restore, and how to tell from it how far a killed restore has come.

Everything is staged in RESTORING first. Then PLACING is written, and the files are moved into place one by one, the
ledger last: the restore is done as soon as the ledger isn't in the staging directory any more.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from mcp_bridge.file_locks import locked_directory
from mcp_bridge.ledger.storage.schema import FILE_NAME

if TYPE_CHECKING:
    from pathlib import Path

RESTORING = ".restoring"
"""The staging directory, in the state directory. Only a holder of the state directory's lock makes or removes it."""

PLACING = "placing"
"""A file in RESTORING that lists what is about to be moved into place."""

PREVIOUS_PREFIX = "before."
"""The prefix, in RESTORING, of files that belong to the ledger that was there before."""


def has_ledger(directory: Path) -> bool:
    """Whether there is a ledger. An empty file, which a killed process may have left, doesn't count."""
    try:
        return (directory / FILE_NAME).stat().st_size > 0
    except FileNotFoundError:
        return False


def is_unfinished(directory: Path) -> bool:
    """Whether a restore is under way, or was killed before it was done."""
    left = directory / RESTORING
    return left.exists() and not ((left / PLACING).exists() and not (left / FILE_NAME).exists())


def move_back(directory: Path) -> None:
    """Move the files of the earlier ledger back to their places.

    Raises:
        OSError: As the system raises it.
    """
    for path in (directory / RESTORING).glob(f"{PREVIOUS_PREFIX}*"):
        target = directory / path.name.removeprefix(PREVIOUS_PREFIX)
        if not os.path.lexists(target):
            path.rename(target)


def tidy_up(directory: Path) -> None:
    """Before a ledger is opened for writing, remove what a killed restore has left.

    The next restore would mistake it for its own.

    Raises:
        OSError: As the system raises it.
    """
    left = directory / RESTORING
    if not left.exists() or not has_ledger(directory):
        return
    with locked_directory(directory) as is_mine:
        # The restore itself may be about to remove it.
        if is_mine and left.exists():
            if (left / FILE_NAME).exists() and not (left / FILE_NAME).samefile(directory / FILE_NAME):
                # It wasn't finished, and somebody has put the earlier ledger back.
                move_back(directory)
            shutil.rmtree(left, ignore_errors=True)
