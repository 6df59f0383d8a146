"""A witness: cosigns the checkpoints of logs that it trusts, as long as each of them only grows (C2SP tlog-witness).

It keeps one checkpoint a log, the last that it has cosigned. Reading that one, checking the new one against it, and
keeping the new one are a single turn that nobody else can come between, in other processes either; and no cosignature
leaves before its checkpoint is durable.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.proofs.merkle import HASH_BYTES, verify_consistency
from mcp_bridge.ledger.proofs.notes import (
    MAX_NOTE_BYTES,
    Checkpoint,
    cosign,
    keyring,
    open_checkpoint,
    parse_checkpoint,
    signed_checkpoint,
    split_note,
)
from mcp_bridge.ledger.proofs.signing import COSIGNATURE, ID_BYTES, MARK, Signer, Verifier, decode_base64
from mcp_bridge.ledger.witness.witness_files import WitnessState, WitnessTurn, open_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

logger = logging.getLogger(__name__)

MAX_PROOF_LINES = 63
"""Most hashes in a request's consistency proof, by the specification."""

MAX_BODY_BYTES = MAX_NOTE_BYTES + (8 << 10)
"""Largest request: a note, the proof's lines, and the line with the old size."""

SIZE_TYPE = "text/x.tlog.size"
"""Content type of the size in an answer 409."""

TEXT_TYPE = "text/plain; charset=utf-8"

_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")
_MAX_SHOWN_CHARS = 200


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        status: By HTTP and the specification: 200 cosigned; 400 no request, or the old size is over the new; 403 no
            trusted key has signed; 404 an unknown log, or one of which nothing was cosigned; 409 another old size than
            the witness's; 422 the proof is wrong, or the root is another one of the same size.
        content_type: SIZE_TYPE with 409, else TEXT_TYPE.
        body: The cosignature's line, or the witness's size, or a sentence about what was wrong.
    """

    status: int
    content_type: str
    body: bytes


class _Request(NamedTuple):
    old: int
    proof: list[bytes]
    note: str


class Witness:
    """A witness with its key, the logs that it trusts, and its state. Thread-safe.

    Args:
        signer: Its key, of the kind COSIGNATURE.
        logs: The keys of the logs. A key's name is its log's origin; a log has several keys after a rotation.
        state: The checkpoints that it has cosigned.
        clock: Returns seconds since 1970, UTC.

    Attributes:
        name: The key name in its cosignatures.
        vkey: The verifier key by which its cosignatures are checked.
    """

    def __init__(
        self,
        signer: Signer,
        logs: Iterable[Verifier],
        state: WitnessState,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._signer = signer
        self.name, self.vkey = signer.name, signer.vkey
        self._logs: dict[str, list[Verifier]] = {}
        for log in logs:
            self._logs.setdefault(log.name, []).append(log)
        self._state = state
        self._clock = clock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the state's file."""
        self._state.close()

    def add_checkpoint(self, body: bytes) -> Answer:
        """Answer a request `add-checkpoint`.

        Args:
            body: The request's body: `old SIZE`, the consistency proof's hashes in base64, an empty line, the note.

        Raises:
            BridgeError: `witness_unusable`: the state can't be read or written; nothing is cosigned.
        """
        try:
            request = _parse(body)
            # Without a valid checkpoint the log is unknown.
            origin = parse_checkpoint(split_note(request.note)[0]).origin
            keys = self._logs.get(origin)
            if keys is None:
                return _error(404, f"This witness knows no log {origin[:_MAX_SHOWN_CHARS]!r}.")
            checkpoint, _ = open_checkpoint(request.note, keys)
        except BridgeError as exc:
            return _error(403 if exc.code in {"unknown_key", "bad_signature"} else 400, exc.message)
        if request.old > checkpoint.size:
            return _error(400, f"The old size, {request.old}, is over the checkpoint's, {checkpoint.size}.")
        with self._state.turn() as turn:
            return self._checked(turn, request, checkpoint)

    def newest(self, origin_hash: str) -> Answer:
        """Answer a request for a log's last cosigned checkpoint, with a new cosignature.

        Args:
            origin_hash: SHA-256 of the log's origin, in hex, so that no path is ambiguous.

        Raises:
            BridgeError: As `add_checkpoint`.
        """
        known = (origin for origin in self._logs if hashlib.sha256(origin.encode()).hexdigest() == origin_hash)
        origin = next(known, None)
        if origin is None:
            return _error(404, "This witness knows no log of that origin.")
        with self._state.turn() as turn:
            note = turn.note(origin)
            # Within the turn: at the cosignature's time it is the largest checkpoint that was seen.
            now = int(self._clock())
        try:
            # Other signatures on the stored note are not vouched for.
            trusted = keyring(self._logs[origin])
            text, signatures = split_note(note)
            own = (
                f"{MARK}{name} {base64.b64encode(one).decode()}\n"
                for name, one in signatures
                if (name, one[:ID_BYTES]) in trusted
            )
            note = f"{text}\n{''.join(dict.fromkeys(own))}"
            signed_checkpoint(note, trusted)
        except BridgeError:
            return _error(
                404, f"This witness has cosigned nothing of {origin[:_MAX_SHOWN_CHARS]!r} by a key it trusts."
            )
        return Answer(200, TEXT_TYPE, f"{note}{cosign(note, self._signer, now)}".encode())

    def _checked(self, turn: WitnessTurn, request: _Request, checkpoint: Checkpoint) -> Answer:
        last = turn.last(checkpoint.origin)
        # Within the turn: a cosignature states that at its time this was the log's largest tree.
        now = int(self._clock())
        if request.old != last.size:
            return Answer(409, SIZE_TYPE, f"{last.size}\n".encode())
        if checkpoint.size == last.size and checkpoint.root != last.root:
            turn.keep_conflict(checkpoint, request.note, now)
            if checkpoint.size:
                logger.error(
                    "the log %s has signed two different histories of %d entries; both are kept as `conflicts`",
                    checkpoint.origin,
                    checkpoint.size,
                )
            return _error(
                422, f"This is not the root of the first {checkpoint.size} entries, as this witness knows it."
            )
        try:
            verify_consistency(last.size, checkpoint.size, last.root, checkpoint.root, request.proof)
        except BridgeError as exc:
            logger.warning("refused a checkpoint of %s: %s", checkpoint.origin, exc.message)
            return _error(422, exc.message)
        if checkpoint.size > last.size:
            turn.keep(checkpoint, request.note)
        return Answer(200, TEXT_TYPE, cosign(request.note, self._signer, now).encode())


def open_witness(state_dir: Path, logs: Iterable[Verifier], name: str | None = None) -> Witness:
    """The witness whose files are in a directory; they are created if there are none.

    Args:
        state_dir: The directory.
        logs: As in `Witness`.
        name: Its name; by default one derived from its key.

    Raises:
        BridgeError: As `open_files`; `bad_key`: the name can be none.
    """
    key, state = open_files(state_dir)
    try:
        return Witness(Signer(name or _name_of(key), key, COSIGNATURE), logs, state)
    except BaseException:
        state.close()
        raise


def _name_of(key: Ed25519PrivateKey) -> str:
    return f"mcp-code-bridge/witness-{hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()[:16]}"


def _parse(body: bytes) -> _Request:
    if len(body) > MAX_BODY_BYTES:
        raise _bad_request(f"it has more than {MAX_BODY_BYTES} bytes")
    try:
        head, gap, note = body.decode().partition("\n\n")
    except UnicodeDecodeError:
        raise _bad_request("it is not UTF-8") from None
    first, *lines = head.split("\n")
    old = _OLD.fullmatch(first)
    if not gap or old is None:
        raise _bad_request("it doesn't begin with 'old SIZE', a proof, and an empty line")
    if len(lines) > MAX_PROOF_LINES:
        raise _bad_request(f"its proof has more than {MAX_PROOF_LINES} lines")
    proof = []
    for line in lines:
        node = decode_base64(line)
        if node is None or len(node) != HASH_BYTES:
            raise _bad_request("a line of its proof is no hash in base64")
        proof.append(node)
    return _Request(int(old[1]), proof, note)


def _bad_request(why: str) -> BridgeError:
    return BridgeError("bad_request", f"This is no request to add a checkpoint: {why}.")


def _error(status: int, sentence: str) -> Answer:
    return Answer(status, TEXT_TYPE, f"{sentence}\n".encode(errors="replace"))
