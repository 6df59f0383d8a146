"""Proofs that an entry is in a log, and that a log has only grown: from a ledger, and from an export."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.reading import unknown_entry
from mcp_bridge.ledger.proofs import merkle, notes, tlog_proof
from mcp_bridge.ledger.proofs.checkpoints import Signed, best_note, check_against_log
from mcp_bridge.ledger.proofs.disclosures import Disclosed
from mcp_bridge.ledger.proofs.disclosures import encode as encode_disclosed
from mcp_bridge.ledger.proofs.export_verification import EntryToProve, verify_export
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.ledger.log.entry_encoding import Leaf
    from mcp_bridge.ledger.log.reading import Ledger
    from mcp_bridge.ledger.proofs.export_verification import Progress


def checkpoint(ledger: Ledger) -> str:
    """The signed checkpoint of all entries, with the most signatures that there are.

    Raises:
        BridgeError: `ledger_damaged`: it isn't the log's, or isn't signed by the key that is said to sign it.
    """
    note = ledger.head_note()
    try:
        key = Verifier.parse(ledger.vkey)
        parsed, _ = notes.open_checkpoint(note, [key])
    except BridgeError as exc:
        raise damaged(f"its head can't be taken: {exc.message.rstrip('.')}") from None
    # The log's own note contains nothing else, and can be shown to anyone.
    if not note.startswith(f"{notes.checkpoint_text(parsed)}\n") or (parsed.origin, parsed.size) != (
        key.name,
        ledger.size,
    ):
        raise damaged("its head is another log's, or of another size")
    return note


def prove(ledger: Ledger, sequence: int, *, payload: bool) -> bytes:
    """Prove that an entry is in the log; returns a tlog-proof file.

    Args:
        ledger: The log.
        sequence: The entry's.
        payload: Whether its payload is disclosed, if it can be read.

    Raises:
        BridgeError: `unknown_entry`; `ledger_damaged`.
    """
    entry = ledger.entry(sequence)
    disclosed = Disclosed(entry.data, entry.payload, entry.salt)
    best = _best_note(ledger, sequence)
    hashes = merkle.inclusion_proof(sequence, best.checkpoint.size, ledger.node)
    return _proof(entry.leaf, disclosed, hashes, best.note, payload=payload)


def _best_note(ledger: Ledger, sequence: int) -> Signed:
    """The stored checkpoint for an entry's proof: signed with the current key, and cosigned if one is."""
    key = Verifier.parse(ledger.vkey)
    candidates = []
    for note in ledger.checkpoints():
        text, signatures = notes.split_note(note)
        checkpoint = notes.parse_checkpoint(text)
        if sequence < checkpoint.size <= ledger.size:
            by_key = any((name, one[: len(key.key_id)]) == (key.name, key.key_id) for name, one in signatures)
            candidates.append(Signed(checkpoint, note, ((key, None),) if by_key else ()))
    if not candidates:
        raise damaged("its head is of another size than it says")
    return best_note(candidates, {ledger.vkey})


class ProofWithKeys(NamedTuple):
    """A proof, and the keys of the log that have signed its checkpoint."""

    data: bytes
    keys: tuple[Verifier, ...]


def prove_by(
    source: IO[bytes],
    verifiers: Sequence[Verifier] | None,
    sequence: int,
    *,
    payload: bool,
    progress: Progress | None = None,
) -> ProofWithKeys:
    """As `prove`, from an export, which is verified first.

    A checkpoint signed by a key of `verifiers` is preferred to one by another key that it vouches for.

    Args:
        source: The export.
        verifiers: The keys that are trusted; None to trust none.
        sequence: The entry's.
        payload: Whether its payload is disclosed, if the export has it.
        progress: As `verify_export`.

    Raises:
        BridgeError: `unknown_entry`; as `verify_export`.
    """
    picked = EntryToProve(sequence)
    size = verify_export(source, verifiers, (), picked, progress).size
    if picked.leaf is None or picked.disclosed is None:
        raise unknown_entry(sequence, size)
    return ProofWithKeys(
        _proof(picked.leaf, picked.disclosed, picked.hashes, picked.note, payload=payload), picked.keys
    )


def _proof(leaf: Leaf, disclosed: Disclosed, hashes: Sequence[bytes], note: str, *, payload: bool) -> bytes:
    # The log's own entries are about keys and clocks, and of no use without their payloads.
    content = disclosed if payload or leaf.execution == LEDGER else Disclosed(disclosed.entry)
    return tlog_proof.encode(tlog_proof.Proof(leaf.sequence, tuple(hashes), note, encode_disclosed(content)))


class Consistency(NamedTuple):
    """The log of one checkpoint is the beginning of that of another.

    Attributes:
        old, new: The sizes of the two.
        proof: The consistency proof's hashes, in hex (RFC 6962, section 2.1.2).
    """

    old: int
    new: int
    proof: list[str]


def consistency(
    ledger: Ledger, old: str, new: str | None, verifiers: Sequence[Verifier], before: Sequence[Verifier] = ()
) -> Consistency:
    """Prove that the log of one checkpoint is a prefix of that of another, and both of this log.

    Args:
        ledger: The log.
        old: A signed note.
        new: A later one; None for the log's current one.
        verifiers: The keys that are trusted.
        before: Former keys of the log, valid for notes of the time when they were in use.

    Raises:
        BridgeError: `bad_note`, `unknown_key`, `bad_signature`, `retired_key`; `other_log`; `rolled_back`, `tampered`;
            `bad_proof`.
    """
    named = {by.vkey: by for by in ledger.signing_keys()}
    # With the validity that the log's entries give each key.
    known = {by.vkey: named.get(by.vkey, by) for by in (*verifiers, *before)}.values()
    earlier, _ = notes.open_checkpoint(old, known)
    later, _ = notes.open_checkpoint(ledger.note, verifiers) if new is None else notes.open_checkpoint(new, known)
    for each in (earlier, later):
        check_against_log(each, ledger.origin, ledger.size, ledger.node)
    hashes = merkle.consistency_proof(earlier.size, later.size, ledger.node)
    merkle.verify_consistency(earlier.size, later.size, earlier.root, later.root, hashes)
    return Consistency(earlier.size, later.size, [each.hex() for each in hashes])
