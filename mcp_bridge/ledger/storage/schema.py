"""The tables of the SQLite file, its migrations, and names in its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.storage.write_lock import take_first_turn

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

FILE_NAME = "ledger.sqlite"
"""The ledger's file, in the state directory."""

ERASED = "erased"
"""The status of an execution whose data was erased."""

UNFINISHED = "unfinished erasure"
"""With the number of its entry: the name in `meta` of an unfinished erasure."""

OLD_REQUESTS = "requests"
"""The name in `meta` of the wrapped key of the request MACs that earlier versions stored; the value is empty if there
are none. Where the row exists, what those versions left of erased values has been removed."""

CELLS_LINKED = "cells"
"""The name in `meta` of a row that says that each cell of a session has one in `holders` of the cell before."""

OLD_REQUESTS_GONE = "gone"
"""The value in place of that key if it is needed and was missing. The key is imported once it is put back."""

OLD_REQUESTS_LOST = "lost requests"
"""The name in `meta` of a row that says that a person has given up that key: no backup asks for it any more."""

_FORGETTING = (
    # For an erased value: the token by which its entry names it. The rest of the row goes with the execution.
    "ALTER TABLE reference_values ADD COLUMN erased TEXT",
    "CREATE INDEX holders_by_holder ON holders (holder)",
    "DROP TRIGGER data_keys_are_only_destroyed",
    """CREATE TRIGGER data_keys_are_only_destroyed BEFORE UPDATE ON data_keys
            WHEN NEW.execution <> OLD.execution OR NEW.subject NOT IN (OLD.subject, '') OR (NEW.wrapped IS NOT NULL
                AND NOT (NEW.wrapped IS OLD.wrapped AND NEW.subject = '' AND substr(OLD.subject, 1, 1) = 'v'))
            BEGIN SELECT RAISE(ABORT, 'the key of an execution is destroyed, and never changed'); END""",
    "DROP TRIGGER holders_are_not_removed",
    """CREATE TRIGGER holders_are_not_removed BEFORE DELETE ON holders
            WHEN substr(OLD.subject, 1, 1) <> 'v'
                AND NOT EXISTS (SELECT 1 FROM data_keys WHERE execution = OLD.holder AND wrapped IS NULL)
            BEGIN SELECT RAISE(ABORT, 'what is held of another is forgotten with its holder, and not before'); END""",
)
"""After this migration, no stored data depends on an erased value."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        """CREATE TABLE entries (
            sequence INTEGER PRIMARY KEY, execution TEXT NOT NULL, kind TEXT NOT NULL, entry BLOB NOT NULL,
            nodes BLOB NOT NULL
        ) STRICT""",
        "CREATE INDEX entries_of_execution ON entries (execution, sequence)",
        "CREATE TABLE payloads (sequence INTEGER PRIMARY KEY, sealed BLOB NOT NULL) STRICT",
        "CREATE TABLE data_keys (execution TEXT PRIMARY KEY, subject TEXT NOT NULL, wrapped BLOB, mac BLOB) STRICT",
        "CREATE INDEX data_keys_of_subject ON data_keys (subject)",
        """CREATE TABLE holders (
            holder TEXT NOT NULL, subject TEXT NOT NULL, mac BLOB, PRIMARY KEY (subject, holder)
        ) STRICT""",
        """CREATE TABLE head (
            one INTEGER PRIMARY KEY CHECK (one = 1), size INTEGER NOT NULL, root BLOB NOT NULL, note TEXT NOT NULL,
            vkey TEXT NOT NULL
        ) STRICT""",
        """CREATE TABLE checkpoints (
            size INTEGER NOT NULL, note TEXT NOT NULL, mac BLOB, PRIMARY KEY (size, note)
        ) STRICT""",
        """CREATE TABLE published (
            target TEXT PRIMARY KEY, size INTEGER NOT NULL, state TEXT NOT NULL, mac BLOB
        ) STRICT""",
        """CREATE TABLE programs (
            principal TEXT NOT NULL, name TEXT NOT NULL, hash TEXT NOT NULL, data BLOB NOT NULL, saved REAL NOT NULL,
            mac BLOB, PRIMARY KEY (principal, name)
        ) STRICT""",
        """CREATE TABLE executions (
            id TEXT PRIMARY KEY, kind TEXT NOT NULL, principal TEXT NOT NULL, key TEXT, request TEXT NOT NULL,
            status TEXT NOT NULL, program TEXT NOT NULL, bundle BLOB, origin TEXT NOT NULL, owner TEXT NOT NULL,
            state BLOB, record BLOB, due REAL, started REAL NOT NULL, changed REAL NOT NULL, mac BLOB
        ) STRICT""",
        "CREATE UNIQUE INDEX executions_by_key ON executions (principal, key) WHERE key IS NOT NULL",
        "CREATE INDEX executions_by_time ON executions (principal, started)",
        """CREATE TABLE approvals (
            id INTEGER PRIMARY KEY, execution TEXT NOT NULL, effect INTEGER NOT NULL, asked REAL NOT NULL,
            question BLOB, status TEXT NOT NULL, decided REAL, decision BLOB, mac BLOB, UNIQUE (execution, effect)
        ) STRICT""",
        """CREATE TABLE reference_values (
            execution TEXT NOT NULL, id TEXT NOT NULL, value BLOB, PRIMARY KEY (execution, id)
        ) STRICT""",
        "CREATE INDEX reference_values_by_id ON reference_values (id)",
        """CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries
            BEGIN SELECT RAISE(ABORT, 'an entry of the ledger is never changed'); END""",
        """CREATE TRIGGER entries_are_not_removed BEFORE DELETE ON entries
            BEGIN SELECT RAISE(ABORT, 'an entry of the ledger is never removed'); END""",
        """CREATE TRIGGER entries_are_not_replaced BEFORE INSERT ON entries
            WHEN NEW.sequence <> (SELECT coalesce(max(sequence), -1) + 1 FROM entries)
            BEGIN SELECT RAISE(ABORT, 'an entry of the ledger follows the last one'); END""",
        # REPLACE removes a row without firing a trigger, so it has to be refused before.
        """CREATE TRIGGER payloads_are_not_replaced BEFORE INSERT ON payloads
            WHEN EXISTS (SELECT 1 FROM payloads WHERE sequence = NEW.sequence)
            BEGIN SELECT RAISE(ABORT, 'a payload is never changed'); END""",
        """CREATE TRIGGER data_keys_are_not_replaced BEFORE INSERT ON data_keys
            WHEN EXISTS (SELECT 1 FROM data_keys WHERE execution = NEW.execution)
            BEGIN SELECT RAISE(ABORT, 'the key of an execution is destroyed, and never changed'); END""",
        """CREATE TRIGGER payloads_are_not_changed BEFORE UPDATE ON payloads
            BEGIN SELECT RAISE(ABORT, 'a payload is never changed'); END""",
        """CREATE TRIGGER payloads_are_not_removed BEFORE DELETE ON payloads
            WHEN NOT EXISTS (
                SELECT 1 FROM entries JOIN data_keys USING (execution)
                WHERE entries.sequence = OLD.sequence AND data_keys.wrapped IS NULL
            )
            BEGIN SELECT RAISE(ABORT, 'a payload is removed when its key is destroyed, and not before'); END""",
        """CREATE TRIGGER data_keys_are_only_destroyed BEFORE UPDATE ON data_keys
            WHEN NEW.wrapped IS NOT NULL OR NEW.execution <> OLD.execution OR NEW.subject <> OLD.subject
            BEGIN SELECT RAISE(ABORT, 'the key of an execution is destroyed, and never changed'); END""",
        # An execution that has lost the race for an idempotency key was never stored.
        """CREATE TRIGGER data_keys_are_not_removed BEFORE DELETE ON data_keys
            WHEN EXISTS (SELECT 1 FROM entries WHERE execution = OLD.execution)
                OR EXISTS (SELECT 1 FROM executions WHERE id = OLD.execution)
                OR OLD.execution LIKE 'programs/%'
            BEGIN SELECT RAISE(ABORT, 'that a key was there is never forgotten'); END""",
        """CREATE TRIGGER holders_are_not_changed BEFORE UPDATE ON holders
            BEGIN SELECT RAISE(ABORT, 'what an execution holds of another is never changed'); END""",
        """CREATE TRIGGER holders_are_not_removed BEFORE DELETE ON holders
            BEGIN SELECT RAISE(ABORT, 'what an execution holds of another is never forgotten'); END""",
    ),
    (
        """CREATE TABLE pieces (
            id INTEGER PRIMARY KEY, execution TEXT NOT NULL, name BLOB NOT NULL, size INTEGER NOT NULL,
            sealed BLOB NOT NULL
        ) STRICT""",
        # With the size: an execution's total is computed from the index alone.
        "CREATE UNIQUE INDEX pieces_by_name ON pieces (execution, name, size)",
        "CREATE INDEX executions_by_change ON executions (changed, id)",
        """CREATE TRIGGER pieces_are_not_replaced BEFORE INSERT ON pieces
            WHEN EXISTS (SELECT 1 FROM pieces WHERE id = NEW.id)
                OR EXISTS (SELECT 1 FROM pieces WHERE execution = NEW.execution AND name = NEW.name)
            BEGIN SELECT RAISE(ABORT, 'a piece of a payload is never changed'); END""",
        """CREATE TRIGGER pieces_are_not_changed BEFORE UPDATE ON pieces
            BEGIN SELECT RAISE(ABORT, 'a piece of a payload is never changed'); END""",
        """CREATE TRIGGER pieces_are_not_removed BEFORE DELETE ON pieces
            WHEN NOT EXISTS (SELECT 1 FROM data_keys WHERE execution = OLD.execution AND wrapped IS NULL)
            BEGIN SELECT RAISE(ABORT, 'a piece is removed when its key is destroyed, and not before'); END""",
    ),
    (*_FORGETTING,),
    (
        # What a principal's executions have used, of all that a budget bounds; the cost in billionths of a dollar.
        """CREATE TABLE usages (
            principal TEXT PRIMARY KEY, calls INTEGER NOT NULL, bytes INTEGER NOT NULL, model_tokens INTEGER NOT NULL,
            model_cost_usd INTEGER NOT NULL, mac BLOB
        ) STRICT""",
    ),
    (
        # A principal's sessions: the MAC of the name, and the execution that is the last cell, or empty.
        """CREATE TABLE sessions (
            principal TEXT NOT NULL, name TEXT NOT NULL, head TEXT NOT NULL, changed REAL NOT NULL, mac BLOB,
            PRIMARY KEY (principal, name)
        ) STRICT""",
    ),
)
"""The statements that take the file from each version to the next. A migration and its record are one transaction."""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file to this version, in one transaction: all of it, or nothing.

    Raises:
        sqlite3.Error: As SQLite raises it.
    """
    take_first_turn(connection)
    try:
        # Checked inside the transaction: another process may have been quicker.
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for migration in MIGRATIONS[version:]:
            for statement in migration:
                connection.execute(statement)
        if version < len(MIGRATIONS):
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        # After some errors SQLite has rolled back itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of a later version.

    Raises:
        BridgeError: `database_newer`.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise BridgeError(
            "database_newer",
            f"{path} was written by a later version of this program.",
            hint="Use that version, or another state_dir.",
        )
