"""Signed notes, checkpoints of a log, and witnesses' cosignatures, by C2SP's specifications of that name.

A note is a text, an empty line, and signature lines. A signature by a key that the reader doesn't know says nothing and
is passed over; one by a key that the reader knows has to be right, or the whole note is refused.
"""

from __future__ import annotations

import base64
import re
import time as clock
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import plain_name
from mcp_bridge.ledger.proofs.merkle import HASH_BYTES
from mcp_bridge.ledger.proofs.signing import ID_BYTES, MARK, decode_base64, is_key_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mcp_bridge.ledger.proofs.signing import Signer, Verifier

MAX_NOTE_BYTES = 256 << 10
"""Enough for 16 signatures of the largest kind, which a reader must accept (signed-note)."""

MAX_SIGNATURES = 64

MAX_CHECKPOINT_SIZE = 2**63 - 1

EARLIEST_COSIGNATURE = 1_672_531_200
"""The beginning of 2023, in seconds since 1970, before the first cosignature. An earlier time is from a clock that was
never set."""

COSIGNATURE_AHEAD_SECONDS = 86_400
"""How far a cosignature's time may be ahead of this machine's clock, which may be slow."""

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The size and root of a log at one time.

    Attributes:
        origin: Which log.
        size: The number of its entries.
        root: The root of its tree, 32 bytes.
    """

    origin: str
    size: int
    root: bytes


def checkpoint_text(checkpoint: Checkpoint) -> str:
    """The text that is signed (tlog-checkpoint)."""
    return f"{checkpoint.origin}\n{checkpoint.size}\n{base64.b64encode(checkpoint.root).decode()}\n"


def parse_checkpoint(text: str) -> Checkpoint:
    """Parse the checkpoint of a note's text; extension lines are ignored.

    Raises:
        BridgeError: `bad_note`: it is no checkpoint's.
    """
    origin, *rest = text.split("\n")
    if len(rest) < 3 or rest.pop() or "" in rest or not origin:  # noqa: PLR2004 - size, root, and the last newline
        raise _bad_note("its text has not three lines or more, none of them empty")
    if not _DECIMAL.fullmatch(rest[0]) or int(rest[0]) > MAX_CHECKPOINT_SIZE:
        raise _bad_note("its second line is no size")
    root = decode_base64(rest[1])
    if root is None or len(root) != HASH_BYTES:
        raise _bad_note("its third line is no hash")
    return Checkpoint(origin, int(rest[0]), root)


def sign_checkpoint(checkpoint: Checkpoint, signer: Signer) -> str:
    """The note of a checkpoint with its log's signature."""
    text = checkpoint_text(checkpoint)
    return f"{text}\n{signer.sign(text)}"


def split_note(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    """Split a note into its text and its signatures, each with the key's name and the bytes. Nothing is verified.

    Raises:
        BridgeError: `bad_note`: it is invalid or too large, or has too many signatures.
    """
    if len(note) > MAX_NOTE_BYTES or len(note.encode(errors="replace")) > MAX_NOTE_BYTES:
        raise _bad_note(f"it has more than {MAX_NOTE_BYTES} bytes")
    if _CONTROL.search(note) or not _is_unicode(note):
        raise _bad_note("it has a character that no note may have")
    text, separator, lines = note.rpartition("\n\n")
    if not separator or not lines.endswith("\n"):
        raise _bad_note("it has no signature after an empty line, or doesn't end with a newline")
    parsed = []
    signatures = lines[:-1].split("\n")
    if len(signatures) > MAX_SIGNATURES:
        raise _bad_note(f"it has more than {MAX_SIGNATURES} signatures")
    for line in signatures:
        name, space, encoded = line.removeprefix(MARK).partition(" ")
        signature = decode_base64(encoded)
        if not line.startswith(MARK) or not space or not is_key_name(name):
            raise _bad_note("a line after its empty line is no signature")
        if signature is None or len(signature) <= ID_BYTES:
            raise _bad_note(f"the signature by {plain_name(name)} is not base64 of a key's id and a signature")
        parsed.append((name, signature))
    return text + "\n", parsed


def open_note(note: str, verifiers: Iterable[Verifier]) -> tuple[str, list[tuple[Verifier, int | None]]]:
    """The text of a note that at least one known key has signed.

    Args:
        note: It, with all its signatures.
        verifiers: The known keys.

    Returns:
        The text, and whose signatures hold, each with its time if it is a cosignature.

    Raises:
        BridgeError: `bad_note`: it is invalid. `unknown_key`: no known key has signed it. `bad_signature`: the
            signature of a known one is wrong. `bad_key`: two known keys have the same name and id. A cosignature with
            an impossible time (see `is_timely`) is ignored.
    """
    text, signatures = split_note(note)
    return text, check_signatures(text, signatures, keyring(verifiers))


def keyring(verifiers: Iterable[Verifier]) -> dict[tuple[str, bytes], Verifier]:
    """Keys by name and id, as a signature names its key.

    Raises:
        BridgeError: `bad_key`: two of them can't be told apart by name and id.
    """
    known: dict[tuple[str, bytes], Verifier] = {}
    for verifier in verifiers:
        if known.setdefault((verifier.name, verifier.key_id), verifier) != verifier:
            raise BridgeError("bad_key", f"Two keys have the name {plain_name(verifier.name)} and the same id.")
    return known


def check_signatures(
    text: str, signatures: Collection[tuple[str, bytes]], known: Mapping[tuple[str, bytes], Verifier]
) -> list[tuple[Verifier, int | None]]:
    """The known keys with valid signatures of a split note: see `open_note`.

    A cosignature of a time that can't be is passed over like one by nobody who is known: it says when, or nothing.
    """
    valid, names, untimely = [], [], []
    for name, signature in signatures:
        names.append(plain_name(name))
        if by := known.get((name, signature[:ID_BYTES])):
            time = by.verify(text, signature[ID_BYTES:])
            if time is None or is_timely(time):
                valid.append((by, time))
            else:
                untimely.append((by, time))
    if not valid and untimely:
        by, time = untimely[0]
        raise BridgeError(
            "unknown_key",
            f"The cosignature by {plain_name(by.name)} is of the time {time}, in seconds since 1970: it can't be, and "
            "counts for nothing.",
            hint="Is the witness's clock right, and the one here?",
            time=time,
        )
    if not valid:
        by_whom = ", ".join(names[:4])
        replaced = {name for name, _ in known} & {name for name, _ in signatures}
        raise BridgeError(
            "unknown_key",
            f"No key that is known here has signed the note; it is signed by {by_whom}.",
            hint="By another key of that name: was the one that is known replaced by the next one?"
            if replaced
            else None,
        )
    return valid


def open_checkpoint(note: str, verifiers: Iterable[Verifier]) -> tuple[Checkpoint, list[tuple[Verifier, int | None]]]:
    """The checkpoint of a note that at least one known key has signed, and whose signatures hold.

    Raises:
        BridgeError: As open_note; `retired_key`.
    """
    return signed_checkpoint(note, keyring(verifiers))


def signed_checkpoint(
    note: str, known: Mapping[tuple[str, bytes], Verifier]
) -> tuple[Checkpoint, list[tuple[Verifier, int | None]]]:
    """As `open_checkpoint`, with a keyring. Signatures by a key that was replaced before are ignored.

    Raises:
        BridgeError: As open_checkpoint.
    """
    text, signatures = split_note(note)
    checkpoint = parse_checkpoint(text)
    signers = check_signatures(text, signatures, known)
    return checkpoint, in_use(checkpoint, signers)


def in_use(
    checkpoint: Checkpoint, signers: Collection[tuple[Verifier, int | None]]
) -> list[tuple[Verifier, int | None]]:
    """The signers whose keys are valid for a checkpoint of its size.

    Raises:
        BridgeError: `retired_key`: there are none.
    """
    current = [(by, time) for by, time in signers if by.may_sign(checkpoint.size)]
    if signers and not current:
        (by, _), *_ = signers
        raise BridgeError(
            "retired_key",
            f"A checkpoint of {checkpoint.size} entries is signed with a key of {plain_name(by.name)} that another has "
            f"replaced: it signs none of more than {by.until}.",
            hint="Anyone who has the old key could have made it. Ask for a checkpoint signed with the log's "
            "current key.",
            key=by.vkey,
        )
    return current


def is_timely(time: int) -> bool:
    """Whether a cosignature's time, in seconds since 1970, is plausible by this machine's clock."""
    return EARLIEST_COSIGNATURE <= time <= clock.time() + COSIGNATURE_AHEAD_SECONDS


def cosign(note: str, signer: Signer, time: int) -> str:
    """The signature line of a witness for a checkpoint's note, whose own signatures the witness has checked.

    Args:
        note: The signed checkpoint.
        signer: The witness's key, of the kind COSIGNATURE.
        time: When, in seconds since 1970, UTC.

    Raises:
        BridgeError: `bad_note`: it is no checkpoint.
    """
    text, _ = split_note(note)
    parse_checkpoint(text)
    return signer.cosign(text, time)


def add_signature(note: str, line: str) -> str:
    """The note with one more signature line.

    Raises:
        BridgeError: `bad_note`: with that line it is invalid.
    """
    if line.count("\n") != 1:
        raise _bad_note("what is added is not one line")
    text, signatures = split_note(note)
    added = note + line
    if split_note(added)[0] != text or len(split_note(added)[1]) != len(signatures) + 1:
        raise _bad_note("what is added is no signature line")
    return added


def merged(notes: Sequence[str]) -> str:
    """Combine notes of the same text into one, with the first signature of each key, in order.

    Raises:
        BridgeError: `bad_note`: one is invalid or has another text, or there are too many signatures together.
    """
    text, _ = split_note(notes[0])
    lines: dict[tuple[str, bytes], str] = {}
    for note in notes:
        other, signatures = split_note(note)
        if other != text:
            raise _bad_note("two that are kept of one size are not of one text")
        for name, signature in signatures:
            line = f"{MARK}{name} {base64.b64encode(signature).decode()}\n"
            lines.setdefault((name, signature[:ID_BYTES]), line)
    combined = f"{text}\n{''.join(lines.values())}"
    split_note(combined)
    return combined


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bad_note(why: str) -> BridgeError:
    return BridgeError("bad_note", f"This is no signed note of a ledger: {why}.")
