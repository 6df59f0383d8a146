"""Inclusion proofs for the viewer: with their entries and a signed checkpoint, for a browser that verifies them.

Nothing is verified here, and nothing that was changed is held back: the reader finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs import merkle

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mcp_bridge.ledger.log.reading import Ledger
    from mcp_bridge.ledger.storage.sealing import MasterKey


@dataclass(frozen=True, slots=True)
class EntryEvidence:
    """The evidence for one entry.

    Attributes:
        sequence: The entry's number.
        data: The entry's stored bytes.
        hashes: The inclusion proof (RFC 6962, section 2.1.1).
        payload, salt: What it commits to; None if the payload is erased, or can't be read.
        fault: Why the proof or the payload is missing though it should be there; empty if nothing is wrong.
    """

    sequence: int
    data: bytes
    hashes: tuple[bytes, ...] = ()
    payload: bytes | None = None
    salt: bytes | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence for some entries, all for one checkpoint.

    Attributes:
        note: The signed checkpoint.
        vkey: The key that signed it.
        entries: The evidence for each entry.
    """

    note: str
    vkey: str
    entries: tuple[EntryEvidence, ...]


def gather(path: Path, master: MasterKey, execution: str, sequences: Iterable[int]) -> Evidence:
    """Collect the evidence that entries of an execution are in the log. Entries of other executions are left out.

    Raises:
        BridgeError: `database_unusable`, `ledger_damaged`: the log has no head.
    """
    with open_ledger(path, master) as ledger:
        entries = [_gathered(ledger, execution, sequence) for sequence in sequences]
        return Evidence(ledger.note, ledger.vkey, tuple(entry for entry in entries if entry is not None))


def _gathered(ledger: Ledger, execution: str, sequence: int) -> EntryEvidence | None:
    row = ledger.connection.execute(
        "SELECT entry FROM entries WHERE sequence = ? AND execution = ?", (sequence, execution)
    ).fetchone()
    if row is None:
        return None
    data: bytes = row[0]
    try:
        hashes = tuple(merkle.inclusion_proof(sequence, ledger.size, ledger.node))
    except (BridgeError, ValueError) as exc:
        return EntryEvidence(sequence, data, fault=str(exc))
    try:
        read = ledger.entry(sequence)
    except BridgeError as exc:
        return EntryEvidence(sequence, data, hashes, fault=exc.message)
    return EntryEvidence(sequence, data, hashes, read.payload, read.salt)
