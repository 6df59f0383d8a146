"""Copies of a ledger: an export, which can be verified by itself, and a copy of the file, which is verified."""

from __future__ import annotations

import secrets
import sqlite3
from typing import IO, TYPE_CHECKING

from mcp_bridge.atomic_files import create_private, rename_noreplace, sync_directory, sync_file
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit.file_verification import FileVerdict, verify_file
from mcp_bridge.ledger.log.reading import open_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.ledger.log.reading import Ledger
    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.storage.sealing import MasterKey


def export(ledger: Ledger, file: IO[bytes], *, payloads: bool) -> int:
    """Write the log as one file that can be verified by itself; returns the number of its entries.

    Raises:
        BridgeError: `ledger_damaged`.
        OSError: The file can't be written.
    """
    for line in ledger.lines(payloads=payloads):
        file.write(line)
    return ledger.size


def backup(path: Path, target: Path, verifiers: Sequence[Verifier] | None, master: MasterKey | None) -> FileVerdict:
    """Copy a ledger while it is in use, and verify the copy. The keys are not copied.

    Args:
        path: The file.
        target: The copy, which must not exist yet.
        verifiers: As `verify_file`, like `master`.
        master: Decrypts its content.

    Raises:
        BridgeError: `backup_exists`, `backup_failed`; as `verify_file`, of the copy. Nothing is left then.
    """
    if target.exists():
        raise BridgeError("backup_exists", f"{target} is there already.", hint="Name a file that isn't.")
    new = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
    try:
        # SQLite writes into the empty file, and keeps its mode.
        create_private(new).close()
        with open_ledger(path) as ledger:
            ledger.connection.execute("COMMIT")
            try:
                # A copy of the pages would contain deleted data.
                ledger.connection.execute("VACUUM INTO ?", (str(new),))
            except sqlite3.Error as exc:
                raise BridgeError("backup_failed", f"{target} can't be written: {exc}.") from None
        sync_file(new)
        verdict = verify_file(new, verifiers, (), master)
        rename_noreplace(new, target)
        sync_directory(target.parent)
    except FileExistsError:
        raise BridgeError("backup_exists", f"{target} is there already.", hint="Name a file that isn't.") from None
    except OSError as exc:
        raise BridgeError("backup_failed", f"{target} can't be written: {exc.strerror}.") from None
    finally:
        for leftover in (new, new.with_name(f"{new.name}-wal"), new.with_name(f"{new.name}-shm")):
            leftover.unlink(missing_ok=True)
    return verdict
