"""Ed25519 keys under names, as C2SP's signed-note and tlog-cosignature have them (Ed25519 itself: RFC 8032)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import plain_name

ED25519 = 0x01
"""Signature type: over the note's text (signed-note)."""

COSIGNATURE = 0x04
"""Signature type: a witness's, over a time and the text (tlog-cosignature, version 1)."""

MAX_TIME = 2**63 - 1
"""Largest time of a cosignature, in seconds since 1970."""

MARK = "\u2014 "
"""The beginning of a signature line."""

ID_BYTES = 4

SIGNATURE_BYTES = 64
"""Bytes of an Ed25519 signature. A cosignature has a time before it."""

_KEY_BYTES = 32
_PRIME = 2**255 - 19
_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_LOW_ORDER = frozenset({0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8})
"""The y coordinates of the eight points of small order. Anyone can make signatures under such a key."""
_TIME_BYTES = 8
# Fixed code points instead of Python's idea of printable characters, which changes: all readers must agree.
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}")
_ID = re.compile(r"[0-9a-f]{8}")


class Signer:
    """A private key with its name, of a log or a witness.

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
        self._prefix = f"{MARK}{name} "
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
        if not 0 <= time <= MAX_TIME:
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
        until: The size of the largest checkpoint that it may sign: another key has taken its place. None of a key that
            is in use, or of which nothing else is known.
    """

    __slots__ = ("_key", "key_id", "kind", "name", "until", "vkey")

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
        height = int.from_bytes(public, "little") & ((1 << 255) - 1)
        if height >= _PRIME or height in _LOW_ORDER:
            # OpenSSL accepts these. A key must be in canonical form (RFC 8032, section 5.1.3) and not of small order.
            raise _bad_key("its 32 bytes are no key that anyone makes")
        material = bytes([kind]) + public
        self.name, self.kind = name, kind
        self.until: int | None = None
        self._key = Ed25519PublicKey.from_public_bytes(public)
        self.key_id = hashlib.sha256(name.encode() + b"\n" + material).digest()[:ID_BYTES]
        self.vkey = f"{name}+{self.key_id.hex()}+{base64.b64encode(material).decode()}"

    @classmethod
    def parse(cls, vkey: str) -> Verifier:
        """The public key of a text `name+id+base64` (signed-note, verifier keys).

        Raises:
            BridgeError: `bad_key`: it is invalid, or its id is another key's.
        """
        parts = vkey.split("+", 2)
        if len(parts) != 3 or not _ID.fullmatch(parts[1]):  # noqa: PLR2004 - name, id, key
            raise _bad_key("it has not the form name+id+key")
        material = decode_base64(parts[2])
        if not material:
            raise _bad_key("what follows the id is not base64")
        verifier = cls(parts[0], material[1:], material[0])
        if verifier.vkey != vkey:
            raise _bad_key("its id is that of another key")
        return verifier

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
            if len(signature) != _TIME_BYTES + SIGNATURE_BYTES or time > MAX_TIME:
                raise InvalidSignature
            self._key.verify(signature[_TIME_BYTES:], _cosigned(text, time))
        except InvalidSignature:
            raise BridgeError("bad_signature", f"The signature by {plain_name(self.name)} is wrong.") from None
        return time

    def retired(self, until: int) -> Verifier:
        """The same key, not valid for checkpoints of more than `until` entries."""
        retired = Verifier.parse(self.vkey)
        retired.until = until
        return retired

    def may_sign(self, size: int) -> bool:
        """Whether the key is valid for a checkpoint of that size."""
        return self.until is None or size <= self.until

    def is_of_log(self, origin: str) -> bool:
        """Whether this is a log's own key: for texts, and under the log's name."""
        return self.kind == ED25519 and self.name == origin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Verifier) and self.vkey == other.vkey

    def __hash__(self) -> int:
        return hash(self.vkey)

    def __repr__(self) -> str:
        return f"Verifier({self.vkey!r})"


def is_key_name(name: str) -> bool:
    """Whether a key's name is valid: not empty or long, without spaces, pluses and control characters."""
    return _NAME.fullmatch(name) is not None


def decode_base64(text: str) -> bytes | None:
    """Decode standard base64 (RFC 4648, section 4) in canonical form; None for anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    # Unused bits and characters after the padding would give one content several encodings.
    return data if base64.b64encode(data).decode() == text else None


def _cosigned(text: str, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def _bad_key(why: str) -> BridgeError:
    return BridgeError("bad_key", f"This is no key to verify with: {why}.")
