"""What shows that entries are in the log, for whoever checks it by themselves: bytes, hashes, and a signed checkpoint.

Nothing is checked here, and nothing that was changed is held back: a reader who computes it again finds it.
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
    """Of one entry.

    Attributes:
        sequence: Its place in the log.
        data: Its bytes, as they are kept.
        hashes: The inclusion proof (RFC 6962, section 2.1.1).
        payload, salt: What its commitment was made of; None where it is erased, or can't be read.
        fault: Why there is no proof or no payload, though there should be; empty if all is well.
    """

    sequence: int
    data: bytes
    hashes: tuple[bytes, ...] = ()
    payload: bytes | None = None
    salt: bytes | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of some entries, all by one checkpoint.

    Attributes:
        note: The signed checkpoint.
        vkey: The key that signed it.
        entries: They.
    """

    note: str
    vkey: str
    entries: tuple[EntryEvidence, ...]


def gather(path: Path, master: MasterKey, execution: str, sequences: Iterable[int]) -> Evidence:
    """Read what shows that some entries of an execution are in the log. Of others' entries nothing is told.

    Raises:
        BridgeError: `database_unusable`, `ledger_damaged`: the log has no head.
    """
    with open_ledger(path, master) as ledger:
        found = [_gathered(ledger, execution, sequence) for sequence in sequences]
        return Evidence(ledger.note, ledger.vkey, tuple(entry for entry in found if entry is not None))


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
