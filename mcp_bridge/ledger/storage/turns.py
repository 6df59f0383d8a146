"""How processes that write to one file take turns.

SQLite's own waiting looks ten times a second: beside a process that writes without a pause it would take seconds.
"""

from __future__ import annotations

import random
import sqlite3
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY_SECONDS = 30.0
"""How long to wait for another process that is writing."""

_LOOK_SECONDS = 0.001
"""How often to look whether it has done: about as long as a transaction takes."""


def take_turn(connection: sqlite3.Connection) -> None:
    """Begin to write, when no other process does.

    Args:
        connection: With a `busy_timeout` of 0.

    Raises:
        sqlite3.OperationalError: SQLITE_BUSY: another was at it for BUSY_SECONDS.
    """
    _patiently(lambda: connection.execute("BEGIN IMMEDIATE"), BUSY_SECONDS)


def in_turn(write: Callable[[], object]) -> None:
    """Do what is a transaction by itself, when no other process writes.

    Args:
        write: Does it, by a connection with a `busy_timeout` of 0.

    Raises:
        sqlite3.OperationalError: As `take_turn`; as SQLite gives it.
    """
    _patiently(write, BUSY_SECONDS)


def use_wal(connection: sqlite3.Connection, seconds: float) -> None:
    """Change the journal's mode, which SQLite doesn't wait for when several processes begin one file at once.

    Args:
        connection: To the file.
        seconds: How long to wait.

    Raises:
        sqlite3.OperationalError: As `take_turn`; as SQLite gives it.
    """
    _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"), seconds)


def _patiently(attempt: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            attempt()
        except sqlite3.OperationalError as error:
            # The low byte is the primary code (sqlite.org/rescode.html).
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            # Not in step with whoever else waits.
            time.sleep(_LOOK_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311
        else:
            return


def take_first_turn(connection: sqlite3.Connection) -> None:
    """As `take_turn`, of a connection that otherwise waits as SQLite does."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        take_turn(connection)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_SECONDS)}")
