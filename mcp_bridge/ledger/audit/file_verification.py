"""Verification of a ledger's file: that it is complete and unchanged, and all in it in its place.

A file is verified like its export, by the same code, and then as a database: its schema with its triggers, the hashes
stored with the entries, its keys, erasures, and the tables that are not part of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.ledger.audit.parallel_verification import verified_batches
from mcp_bridge.ledger.audit.table_audit import TableAudit
from mcp_bridge.ledger.log.reading import expected_schema, open_ledger, read_schema
from mcp_bridge.ledger.proofs.export_verification import verify_export
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mcp_bridge.ledger.proofs.export_verification import Progress
    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.proofs.verified_log import VerifiedLog
    from mcp_bridge.ledger.storage.position_file import PositionFile
    from mcp_bridge.ledger.storage.sealing import MasterKey


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The result of verifying a file.

    Attributes:
        log: The result for its log.
        erased: How many executions are erased.
        opened: Whether payloads, states and rows of other tables were decrypted and authenticated, which needs the
            master key.
        artifacts: SHA-256 of the artifacts that are recorded, by their executions and names: of those that were opened.
    """

    log: VerifiedLog
    erased: int
    opened: bool
    artifacts: dict[str, dict[str, str]]


def verify_file(
    path: Path,
    verifiers: Iterable[Verifier] | None,
    against: Sequence[str] = (),
    master: MasterKey | None = None,
    position: PositionFile | None = None,
    progress: Progress | None = None,
) -> FileVerdict:
    """Verify a ledger's file, all of it.

    Args:
        path: The file.
        verifiers: The keys that are trusted; None to trust none.
        against: Signed checkpoints of the log that were kept elsewhere.
        master: Opens payloads and other rows; None to leave them closed.
        position: The recorded position of the log, for the ledger in use.
        progress: As `verify_export`.

    Raises:
        BridgeError: As `open_ledger` and `verify_export`; `ledger_damaged`, `ledger_behind`, `ledger_head_damaged`.
    """
    if position is not None:
        position.load()
    with open_ledger(path, master) as ledger:
        # First: a foreign object in the schema could make the next check take long.
        _check_schema(ledger.connection)
        (verdict,) = ledger.connection.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise damaged(f"SQLite finds: {verdict}")
        tables = TableAudit()
        with verified_batches(ledger) as batches:
            lines = ledger.checked_lines(tables.see, batches or (), tables.see_batch)
            log = verify_export(lines, verifiers, against, progress=progress)
        tables.check(ledger)
        if position is not None:
            position.check(ledger.connection)
        return FileVerdict(log, len(tables.erased), master is not None, tables.artifacts())


def _check_schema(connection: sqlite3.Connection) -> None:
    wanted = expected_schema(connection.execute("PRAGMA user_version").fetchone()[0])
    actual = read_schema(connection)
    for row in wanted:
        if row not in actual:
            raise damaged(f"the {row[0]} {row[1]} is missing or changed")
    for row in actual:
        if row not in wanted:
            raise damaged(f"there is a {row[0]!r:.20} {row[1]!r:.60} that doesn't belong there")
