"""Waiting for SQLite's write lock, which several processes share.

SQLite's own busy handler polls ten times a second: beside a process that writes without a pause it would take seconds.
"""

from __future__ import annotations

import random
import sqlite3
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY_SECONDS = 30.0
"""How long to wait for another process that writes."""

_LOOK_SECONDS = 0.001
"""Between two attempts: about as long as a transaction takes."""


def take_turn(connection: sqlite3.Connection) -> None:
    """Begin a write transaction, when no other process has one.

    Args:
        connection: With a `busy_timeout` of 0.

    Raises:
        sqlite3.OperationalError: SQLITE_BUSY: another process has been writing for BUSY_SECONDS.
    """
    _retry_while_locked(lambda: connection.execute("BEGIN IMMEDIATE"), BUSY_SECONDS)


def in_turn(write: Callable[[], object]) -> None:
    """Run a statement that is a transaction by itself, when no other process writes.

    Args:
        write: Runs it, by a connection with a `busy_timeout` of 0.

    Raises:
        sqlite3.OperationalError: As `take_turn`; as SQLite raises it.
    """
    _retry_while_locked(write, BUSY_SECONDS)


def use_wal(connection: sqlite3.Connection, seconds: float) -> None:
    """Switch to a write-ahead log. SQLite doesn't wait when several processes do so at once.

    Args:
        connection: To the file.
        seconds: How long to wait.

    Raises:
        sqlite3.OperationalError: As `take_turn`; as SQLite raises it.
    """
    _retry_while_locked(lambda: connection.execute("PRAGMA journal_mode = WAL"), seconds)


def _retry_while_locked(attempt: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            attempt()
        except sqlite3.OperationalError as error:
            # The low byte is the primary code (sqlite.org/rescode.html).
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            # Out of step with other processes that wait.
            time.sleep(_LOOK_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311
        else:
            return


def take_first_turn(connection: sqlite3.Connection) -> None:
    """As `take_turn`, for a connection that otherwise uses SQLite's busy handler."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        take_turn(connection)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_SECONDS)}")
