"""Proofs that one entry is in a log, as self-contained files (C2SP's tlog-proof, version 1).

A proof is made of the entry (as the extra data, which nothing authenticates: its hash is what the proof proves), its
index, the hashes from its leaf up to the root, and a checkpoint with that root.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log import entry_encoding
from mcp_bridge.ledger.proofs import disclosures, merkle, notes, signing
from mcp_bridge.ledger.proofs.checkpoints import check_origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcp_bridge.ledger.proofs.disclosures import Disclosed
    from mcp_bridge.ledger.proofs.notes import Checkpoint
    from mcp_bridge.ledger.proofs.signing import Verifier

HEADER = "c2sp.org/tlog-proof@v1"

MAX_PROOF_BYTES = 96 << 20
"""Enough for an entry with the largest payload that an export may have, in base64."""

_INDEX = re.compile(r"index (0|[1-9][0-9]{0,15})")
_HASH_CHARS = 44
_SIZES_TOLD = 10


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of one entry, not verified.

    Attributes:
        index: The entry's position in the log, from 0.
        hashes: The audit path, from the leaf's sibling up.
        note: The signed checkpoint.
        extra: The extra data, or None; here the entry, as `disclosures.encode` returns it.
    """

    index: int
    hashes: tuple[bytes, ...]
    note: str
    extra: bytes | None = None


@dataclass(frozen=True, slots=True)
class VerifiedProof:
    """A verified proof.

    Attributes:
        leaf: The entry.
        disclosed: Its bytes, and its payload if the proof discloses it.
        checkpoint: The checkpoint of the log that contains it.
        signatures: The keys with valid signatures of the checkpoint; a witness's with its time, in seconds since 1970.
        authenticated: Whether a known key of the log is among them. If not, the proof agrees with itself, and anyone
            may have made it.
        compared: How many checkpoints from elsewhere agree with it.
    """

    leaf: entry_encoding.Leaf
    disclosed: Disclosed
    checkpoint: Checkpoint
    signatures: tuple[tuple[Verifier, int | None], ...]
    authenticated: bool
    compared: int = 0


def encode(proof: Proof) -> bytes:
    """The proof as the bytes of a file, whose name ends with `.tlog-proof`."""
    lines = [HEADER]
    if proof.extra is not None:
        lines.append(f"extra {base64.b64encode(proof.extra).decode()}")
    lines.append(f"index {proof.index}")
    lines += (base64.b64encode(each).decode() for each in proof.hashes)
    return "\n".join([*lines, "", proof.note]).encode()


def decode(data: bytes) -> Proof:
    """Parse a proof's file, which must be in canonical form. Nothing else is verified.

    Raises:
        BridgeError: `bad_proof`: it is invalid.
    """
    if len(data) > MAX_PROOF_BYTES:
        raise _bad(f"it has more than {MAX_PROOF_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _bad("it is not in UTF-8") from None
    head, separator, note = text.partition("\n\n")
    if not separator:
        raise _bad("it has no empty line with a checkpoint after it")
    # No more lines are looked at than a proof can have.
    lines = head.split("\n", merkle.MAX_PROOF_HASHES + 3)
    if lines.pop(0) != HEADER:
        raise _bad(f"its first line is not {HEADER}")
    extra = None
    if lines and lines[0].startswith("extra "):
        extra = signing.decode_base64(lines.pop(0).removeprefix("extra "))
        if extra is None:
            raise _bad("its extra data are not base64")
    index = _INDEX.fullmatch(lines.pop(0)) if lines else None
    if index is None:
        raise _bad("it has no line with the entry's index where it should be")
    if len(lines) > merkle.MAX_PROOF_HASHES:
        raise _bad(f"it has more than {merkle.MAX_PROOF_HASHES} hashes")
    hashes = [signing.decode_base64(line) if len(line) == _HASH_CHARS else None for line in lines]
    if any(each is None or len(each) != merkle.HASH_BYTES for each in hashes):
        raise _bad("one of its hashes is not 32 bytes in base64")
    return Proof(int(index[1]), tuple(each for each in hashes if each), note, extra)


def verify(data: bytes, verifiers: Iterable[Verifier] | None, against: Sequence[str] = ()) -> VerifiedProof:
    """What a proof proves, by the keys that are known.

    Args:
        data: The proof, as its file has it.
        verifiers: Keys of logs and witnesses; None for no more than whether the proof agrees with itself.
        against: Signed checkpoints of the log that were kept elsewhere. Those of as many entries as the proof's, of
            which there has to be one, must agree with it; of another size they say nothing of it.

    Raises:
        BridgeError: `bad_proof`: it is invalid, or doesn't prove its entry. `bad_entry`: the entry is. `tampered`: its
            payload is another. `bad_note`, `bad_signature`, `bad_key`: as notes.open_note. `unknown_key`: no known key
            of the log has signed its checkpoint, or one that was kept elsewhere. `other_log`: one of these is
            another's. `bad_argument`: none of them can be compared with the proof.
    """
    proof = decode(data)
    known = None if verifiers is None else notes.keyring(verifiers)
    checkpoint, signers = _signed(proof.note, known)
    if proof.extra is None:
        raise _bad("it doesn't have the entry that it proves")
    disclosed, leaf = disclosures.decode(proof.extra)
    if leaf.sequence != proof.index:
        raise _bad(f"it has entry {leaf.sequence}, and proves entry {proof.index}")
    merkle.verify_inclusion(
        entry_encoding.leaf_hash(disclosed.entry), proof.index, checkpoint.size, proof.hashes, checkpoint.root
    )
    elsewhere = [_signed(note, known)[0] for note in against]
    for known_checkpoint in elsewhere:
        check_origin(known_checkpoint, checkpoint.origin)
        if known_checkpoint.size == checkpoint.size and known_checkpoint.root != checkpoint.root:
            raise BridgeError(
                "tampered", f"A checkpoint kept elsewhere has another root of {known_checkpoint.size} entries."
            )
    compared = sum(known_checkpoint.size == checkpoint.size for known_checkpoint in elsewhere)
    if elsewhere and not compared:
        raise BridgeError(
            "bad_argument",
            f"A proof from a log of {checkpoint.size} entries can't be checked against a checkpoint of "
            f"{', '.join(str(known_checkpoint.size) for known_checkpoint in elsewhere[:_SIZES_TOLD])}.",
            hint="Hold an export against it (audit verify), or the log itself (audit consistency).",
        )
    return VerifiedProof(leaf, disclosed, checkpoint, tuple(signers), verifiers is not None, compared)


def _signed(
    note: str, known: Mapping[tuple[str, bytes], Verifier] | None
) -> tuple[Checkpoint, list[tuple[Verifier, int | None]]]:
    """A note's checkpoint, and the keys with valid signatures: a known key of the log must be one, if any is known."""
    text, signatures = notes.split_note(note)
    checkpoint = notes.parse_checkpoint(text)
    if known is None:
        return checkpoint, []
    signers = notes.in_use(checkpoint, notes.check_signatures(text, signatures, known))
    if not any(by.is_of_log(checkpoint.origin) for by, _ in signers):
        raise BridgeError("unknown_key", f"No known key of the log {checkpoint.origin!a} has signed the checkpoint.")
    return checkpoint, signers


def _bad(why: str) -> BridgeError:
    return BridgeError("bad_proof", f"This is no proof of an entry of a ledger: {why}.")
