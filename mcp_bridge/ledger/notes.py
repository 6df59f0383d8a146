"""Signed notes, checkpoints of a log, and witnesses' cosignatures.

By C2SP's signed-note, tlog-checkpoint and tlog-cosignature, with Ed25519 (RFC 8032) alone. A note is a text, an empty
line, and signature lines. A signature by a key that the reader doesn't know says nothing and is passed over; one by a
key that the reader knows has to be right, or the whole note is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.merkle import HASH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

ED25519 = 0x01
"""Signature type: over the note's text (signed-note)."""

COSIGNATURE = 0x04
"""Signature type: a witness's, over a time and the text (tlog-cosignature, version 1)."""

MAX_NOTE_BYTES = 256 << 10
"""Room for 16 signatures of the largest kind that there is, which a reader must accept (signed-note)."""

MAX_SIGNATURES = 64

MAX_CHECKPOINT_SIZE = 2**63 - 1

_MARK = "\u2014 "
_ID_BYTES = 4
_KEY_BYTES = 32
_SIGNATURE_BYTES = 64
_TIME_BYTES = 8
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
# By code points, and not by what a version of Python takes for printable: readers must agree for ever.
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_ID = re.compile(r"[0-9a-f]{8}")


class Signer:
    """A private key under its name, ready to sign: a log's, or a witness's.

    Attributes:
        name: The key's name; of a log, the log's origin.
        vkey: What a reader needs to know of it: name, key id, and public key.
        verifier: The same, ready to check.
    """

    def __init__(self, name: str, key: Ed25519PrivateKey, kind: int = ED25519) -> None:
        """Put a key under a name.

        Args:
            name: Without spaces or a plus.
            key: The private key.
            kind: What it signs: ED25519, texts; COSIGNATURE, the checkpoints of others.

        Raises:
            BridgeError: `bad_key`: the name can be none.
        """
        self.name = name
        self.verifier = Verifier(name, key.public_key().public_bytes_raw(), kind)
        self.vkey = self.verifier.vkey
        self._key = key
        self._prefix = f"{_MARK}{name} "
        self._id = self.verifier.key_id

    def sign(self, text: str) -> str:
        """The signature line of a text, with its newline.

        Raises:
            ValueError: It is a witness's key, which signs no text without a time.
        """
        if self.verifier.kind != ED25519:
            raise ValueError("a witness's key cosigns")
        return self._line(self._key.sign(text.encode()))

    def cosign(self, text: str, time: int) -> str:
        """The signature line of a witness who has seen a checkpoint's text.

        Args:
            text: The checkpoint's, without signatures.
            time: When, in seconds since 1970, UTC.

        Raises:
            ValueError: It is no witness's key, or the time is out of range.
        """
        if self.verifier.kind != COSIGNATURE:
            raise ValueError("a log's key doesn't cosign")
        if not 0 <= time <= MAX_CHECKPOINT_SIZE:
            raise ValueError("a time is from 0 to 2^63 - 1")
        return self._line(time.to_bytes(_TIME_BYTES, "big") + self._key.sign(_cosigned(text, time)))

    def _line(self, signature: bytes) -> str:
        return f"{self._prefix}{base64.b64encode(self._id + signature).decode()}\n"


class Verifier:
    """A public key under its name.

    Attributes:
        name: Of the key.
        kind: ED25519 or COSIGNATURE.
        key_id: Its four bytes in signatures.
        vkey: All of it as one text.
    """

    __slots__ = ("_key", "key_id", "kind", "name", "vkey")

    def __init__(self, name: str, public: bytes, kind: int = ED25519) -> None:
        """Put a public key of 32 bytes under a name.

        Raises:
            BridgeError: `bad_key`: name, key, or kind can be none.
        """
        if not is_key_name(name):
            raise _bad_key("its name is empty, too long, or has a space, a plus, or a control character")
        if kind not in {ED25519, COSIGNATURE}:
            raise _bad_key("it is of another type than Ed25519 (01) or an Ed25519 cosignature (04)")
        if len(public) != _KEY_BYTES:
            raise _bad_key("it has not 32 bytes")
        material = bytes([kind]) + public
        self.name, self.kind = name, kind
        self._key = Ed25519PublicKey.from_public_bytes(public)
        self.key_id = hashlib.sha256(name.encode() + b"\n" + material).digest()[:_ID_BYTES]
        self.vkey = f"{name}+{self.key_id.hex()}+{base64.b64encode(material).decode()}"

    @classmethod
    def parse(cls, vkey: str) -> Verifier:
        """The public key of a text `name+id+base64` (signed-note, verifier keys).

        Raises:
            BridgeError: `bad_key`: it is none, or its id is not its own.
        """
        parts = vkey.split("+", 2)
        if len(parts) != 3 or not _ID.fullmatch(parts[1]):  # noqa: PLR2004 - name, id, key
            raise _bad_key("it has not the form name+id+key")
        material = decode_base64(parts[2])
        if not material:
            raise _bad_key("what follows the id is not base64")
        found = cls(parts[0], material[1:], material[0])
        if found.vkey != vkey:
            raise _bad_key("its id is that of another key")
        return found

    def verify(self, text: str, signature: bytes) -> int | None:
        """Check a signature (what follows the key's id) of a text.

        Returns:
            The time of a cosignature, in seconds since 1970; None of another signature.

        Raises:
            BridgeError: `bad_signature`.
        """
        try:
            if self.kind == ED25519:
                self._key.verify(signature, text.encode())
                return None
            time = int.from_bytes(signature[:_TIME_BYTES], "big")
            if len(signature) != _TIME_BYTES + _SIGNATURE_BYTES or time > MAX_CHECKPOINT_SIZE:
                raise InvalidSignature
            self._key.verify(signature[_TIME_BYTES:], _cosigned(text, time))
        except InvalidSignature:
            raise BridgeError("bad_signature", f"The signature by {_shown(self.name)} is wrong.") from None
        return time

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Verifier) and self.vkey == other.vkey

    def __hash__(self) -> int:
        return hash(self.vkey)

    def __repr__(self) -> str:
        return f"Verifier({self.vkey!r})"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a log says of itself at one size.

    Attributes:
        origin: Which log.
        size: The number of its entries.
        root: The root of its tree, 32 bytes.
    """

    origin: str
    size: int
    root: bytes


def is_key_name(name: str) -> bool:
    """Whether a key may have that name: neither empty nor long, without spaces, pluses and control characters."""
    return _NAME.fullmatch(name) is not None


def decode_base64(text: str) -> bytes | None:
    """The bytes of standard base64 (RFC 4648, section 4) in its one form; None of anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    # Bits that no byte takes, and signs after the padding, would give one content several texts.
    return data if base64.b64encode(data).decode() == text else None


def checkpoint_text(checkpoint: Checkpoint) -> str:
    """The text that is signed (tlog-checkpoint)."""
    return f"{checkpoint.origin}\n{checkpoint.size}\n{base64.b64encode(checkpoint.root).decode()}\n"


def parse_checkpoint(text: str) -> Checkpoint:
    """The checkpoint of a note's text; extension lines are passed over.

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
    """The text of a note, and of each of its signatures the key's name and the bytes: nothing is verified.

    Raises:
        BridgeError: `bad_note`: it is none, or too large, or has too many signatures.
    """
    if len(note) > MAX_NOTE_BYTES or len(note.encode(errors="replace")) > MAX_NOTE_BYTES:
        raise _bad_note(f"it has more than {MAX_NOTE_BYTES} bytes")
    if _CONTROL.search(note) or not _is_unicode(note):
        raise _bad_note("it has a character that no note may have")
    text, separator, lines = note.rpartition("\n\n")
    if not separator or not lines.endswith("\n"):
        raise _bad_note("it has no signature after an empty line, or doesn't end with a newline")
    found = []
    signatures = lines[:-1].split("\n")
    if len(signatures) > MAX_SIGNATURES:
        raise _bad_note(f"it has more than {MAX_SIGNATURES} signatures")
    for line in signatures:
        name, space, encoded = line.removeprefix(_MARK).partition(" ")
        signature = decode_base64(encoded)
        if not line.startswith(_MARK) or not space or not is_key_name(name):
            raise _bad_note("a line after its empty line is no signature")
        if signature is None or len(signature) <= _ID_BYTES:
            raise _bad_note(f"the signature by {_shown(name)} is not base64 of a key's id and a signature")
        found.append((name, signature))
    return text + "\n", found


def open_note(note: str, verifiers: Iterable[Verifier]) -> tuple[str, list[tuple[Verifier, int | None]]]:
    """The text of a note that at least one known key has signed.

    Args:
        note: It, with all its signatures.
        verifiers: The known keys.

    Returns:
        The text, and whose signatures hold, each with its time if it is a cosignature.

    Raises:
        BridgeError: `bad_note`: it is none. `unknown_key`: no known key has signed it. `bad_signature`: the signature
            of a known one is wrong. `bad_key`: two known keys can't be told apart by name and id.
    """
    known: dict[tuple[str, bytes], Verifier] = {}
    for verifier in verifiers:
        if known.setdefault((verifier.name, verifier.key_id), verifier) != verifier:
            raise _bad_key(f"two keys have the name {_shown(verifier.name)} and the same id")
    text, signatures = split_note(note)
    found = []
    for name, signature in signatures:
        if by := known.get((name, signature[:_ID_BYTES])):
            found.append((by, by.verify(text, signature[_ID_BYTES:])))
    if not found:
        names = ", ".join(_shown(name) for name, _ in signatures[:4])
        raise BridgeError("unknown_key", f"No key that is known here has signed the note; it is signed by {names}.")
    return text, found


def open_checkpoint(note: str, verifiers: Iterable[Verifier]) -> tuple[Checkpoint, list[tuple[Verifier, int | None]]]:
    """The checkpoint of a note that at least one known key has signed, and whose signatures hold.

    Raises:
        BridgeError: As open_note.
    """
    text, found = open_note(note, verifiers)
    return parse_checkpoint(text), found


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
        BridgeError: `bad_note`: with that line it is none.
    """
    if line.count("\n") != 1:
        raise _bad_note("what is added is not one line")
    text, signatures = split_note(note)
    added = note + line
    if split_note(added)[0] != text or len(split_note(added)[1]) != len(signatures) + 1:
        raise _bad_note("what is added is no signature line")
    return added


def _cosigned(text: str, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(name: str) -> str:
    """A name that a stranger chose, fit for a terminal."""
    return name if name.isprintable() else ascii(name)


def _bad_note(why: str) -> BridgeError:
    return BridgeError("bad_note", f"This is no signed note of a ledger: {why}.")


def _bad_key(why: str) -> BridgeError:
    return BridgeError("bad_key", f"This is no key to verify with: {why}.")
