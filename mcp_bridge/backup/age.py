"""Encrypted files as age writes and reads them (c2sp.org/age, version 1): under a passphrase, or to X25519 recipients.

Whoever has the `age` command can decrypt such a file without this program. What is read may be anybody's: a header is
bounded, and no byte of the content is given before it is authenticated.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INTRO = b"age-encryption.org/v1\n"
"""How such a file begins."""

SCRYPT_LOG_N = 18
"""The work factor's logarithm: 256 MiB and most of a second for each passphrase that is tried."""

MAX_SCRYPT_LOG_N = 20
"""Largest scrypt work factor of a file that is read: an untrusted file could demand any amount of memory."""

_KEY_BYTES = 16
_TAG_BYTES = 16
_NONCE_BYTES = 16
_CHUNK_BYTES = 64 << 10
_SALT_BYTES = 16
_POINT_BYTES = 32
_COLUMNS = 64
_MAC_CHARS = 43

_MAX_LINE_BYTES = 1024
_MAX_HEADER_LINES = 1000
_MAX_STANZAS = 100

_X25519, _SCRYPT = "X25519", "scrypt"
_RECIPIENT_PREFIX, _IDENTITY_PREFIX = "age", "age-secret-key-"
_NO_NONCE = bytes(12)
"""The nonce for a key that encrypts one message only."""

_DECIMAL = re.compile(r"[1-9][0-9]?")


@dataclass(frozen=True, slots=True)
class Recipient:
    """For whom a file is encrypted: an X25519 public key.

    Attributes:
        point: Its 32 bytes.
    """

    point: bytes

    @classmethod
    def parse(cls, text: str) -> Recipient:
        """From `age1…`.

        Raises:
            BridgeError: `bad_recipient`.
        """
        point = _from_bech32(_RECIPIENT_PREFIX, text) if text == text.lower() else None
        if point is None:
            hint = "It begins with age1, and `mcp-bridge backup-key FILE` or age-keygen prints it."
            if is_private(text):
                why, hint = "That is a private key, and no recipient.", f"Name the public one. {hint}"
            else:
                # Of what isn't meant for one not a word: it may be a line of any file.
                why = (
                    f"{text[:100]!r} is no recipient." if text.startswith("age1") else "A line is no recipient of age."
                )
            raise BridgeError("bad_recipient", why, hint=hint)
        return cls(point)

    def __str__(self) -> str:
        return _to_bech32(_RECIPIENT_PREFIX, self.point)


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """The private key of a recipient.

    Attributes:
        secret: Its 32 bytes.
    """

    secret: bytes

    @classmethod
    def parse(cls, text: str) -> Identity:
        """From `AGE-SECRET-KEY-1…`.

        Raises:
            BridgeError: `bad_identity`.
        """
        secret = _from_bech32(_IDENTITY_PREFIX, text.lower()) if text == text.upper() else None
        if secret is None:
            # Not a word of it: it may be a key with a typing error.
            raise BridgeError(
                "bad_identity",
                "A line is no X25519 identity of age.",
                hint="It begins with AGE-SECRET-KEY-1, as `mcp-bridge backup-key FILE` and age-keygen write it.",
            )
        return cls(secret)

    @classmethod
    def new(cls) -> Identity:
        """A random one."""
        return cls(os.urandom(_POINT_BYTES))

    @property
    def recipient(self) -> Recipient:
        """Its public key."""
        return Recipient(X25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw())

    def __str__(self) -> str:
        return _to_bech32(_IDENTITY_PREFIX, self.secret).upper()


class Encrypted:
    """Encrypts what is written to it. What is in the file before `close` is no whole file.

    Args:
        file: Where to.
        key: The file key, whose header is in the file already.
    """

    def __init__(self, file: IO[bytes], key: bytes) -> None:
        nonce = os.urandom(_NONCE_BYTES)
        file.write(nonce)
        self._file = file
        self._cipher = ChaCha20Poly1305(_derived(key, nonce, b"payload"))
        self._rest = bytearray()
        self._count = 0

    def write(self, data: bytes) -> int:
        """Take more; how many bytes that are, which is all of them.

        Raises:
            OSError: As the file gives it.
        """
        self._rest += data
        # One is kept back: the last one says that it is that.
        while len(self._rest) > _CHUNK_BYTES:
            self._seal(last=False)
        return len(data)

    def close(self) -> None:
        """Write the end. The file stays open.

        Raises:
            OSError: As the file gives it.
        """
        self._seal(last=True)

    def _seal(self, *, last: bool) -> None:
        chunk = bytes(self._rest[:_CHUNK_BYTES])
        del self._rest[:_CHUNK_BYTES]
        self._file.write(self._cipher.encrypt(_nonce(self._count, last=last), chunk, None))
        self._count += 1


class Decrypted:
    """The content of an encrypted file.

    Args:
        file: It, behind its header.
        key: The file key.

    Raises:
        BridgeError: `backup_damaged`, as by `read`.
    """

    def __init__(self, file: IO[bytes], key: bytes) -> None:
        self._file = file
        nonce = file.read(_NONCE_BYTES)
        if len(nonce) != _NONCE_BYTES:
            raise damaged("it ends too soon")
        self._cipher = ChaCha20Poly1305(_derived(key, nonce, b"payload"))
        self._next = file.read(_CHUNK_BYTES + _TAG_BYTES)
        self._rest = b""
        self._count = 0
        self._ended = False

    def read(self, size: int) -> bytes:
        """So many bytes; fewer at the end only.

        Raises:
            BridgeError: `backup_damaged`: it was changed, or cut off.
            OSError: As the file gives it.
        """
        parts = []
        while size > 0 and (self._rest or not self._ended):
            if not self._rest:
                self._open()
            parts.append(self._rest[:size])
            self._rest = self._rest[size:]
            size -= len(parts[-1])
        return b"".join(parts)

    def _open(self) -> None:
        chunk, self._next = self._next, self._file.read(_CHUNK_BYTES + _TAG_BYTES)
        self._ended = not self._next
        try:
            self._rest = self._cipher.decrypt(_nonce(self._count, last=self._ended), chunk, None)
        except InvalidTag:
            raise damaged("it was changed, or its end is missing") from None
        if self._ended and self._count and not self._rest:
            raise damaged("its end is empty")
        self._count += 1


def encrypt(file: IO[bytes], to: str | Sequence[Recipient]) -> tuple[Encrypted, bytes]:
    """Begin an encrypted file.

    Args:
        file: It, empty.
        to: A passphrase, or one recipient or more.

    Returns:
        What the content is written to, and the file key, which opens this file alone.

    Raises:
        BridgeError: `bad_recipient`.
        OSError: As the file gives it.
    """
    key = os.urandom(_KEY_BYTES)
    stanzas = [_for_passphrase(key, to)] if isinstance(to, str) else [_for_recipient(key, each) for each in to]
    header = INTRO + b"".join(stanzas) + b"---"
    file.write(header + b" " + _encoded(_mac(key, header)) + b"\n")
    return Encrypted(file, key), key


@dataclass(frozen=True, slots=True)
class _Stanza:
    kind: str
    arguments: tuple[str, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an encrypted file, which names nobody.

    Attributes:
        stanzas: What the file key is wrapped in.
        data: What the MAC is of.
        mac: The MAC.
    """

    stanzas: tuple[_Stanza, ...]
    data: bytes
    mac: bytes

    @classmethod
    def read(cls, file: IO[bytes]) -> Header:
        """Read it; the file is behind it then.

        Raises:
            BridgeError: `backup_damaged`: it has none, or none of this version.
            OSError: As the file gives it.
        """
        data = _line(file)
        if data != INTRO:
            raise damaged("it doesn't begin as an encrypted file of age")
        stanzas: list[_Stanza] = []
        for _ in range(_MAX_STANZAS):
            line = _line(file)
            if line.startswith(b"--- "):
                mac = _decoded(line[4:-1])
                if mac is None or len(line) != len("--- \n") + _MAC_CHARS:
                    break
                return cls(tuple(stanzas), data + b"---", mac)
            if not line.startswith(b"-> "):
                break
            words = _text(line[3:-1]).split(" ")
            lines = [line]
            while len(lines) < _MAX_HEADER_LINES:
                lines.append(_line(file))
                if len(lines[-1]) <= _COLUMNS:
                    break
            body = _decoded(b"".join(each[:-1] for each in lines[1:]))
            if body is None or not all(words) or any(len(each) > _COLUMNS + 1 for each in lines[1:]):
                break
            stanzas.append(_Stanza(words[0], tuple(words[1:]), body))
            data += b"".join(lines)
        raise damaged("its header is invalid")

    @property
    def wants_passphrase(self) -> bool:
        """Whether it is a passphrase that opens it."""
        return any(stanza.kind == _SCRYPT for stanza in self.stanzas)

    def open_with_passphrase(self, passphrase: str) -> bytes:
        """The file key.

        Raises:
            BridgeError: `wrong_passphrase`, `backup_damaged`.
        """
        if len(self.stanzas) != 1:
            raise damaged("its header has more than one passphrase")
        (stanza,) = self.stanzas
        match stanza.arguments:
            case (encoded, factor) if _DECIMAL.fullmatch(factor):
                salt = _decoded(encoded.encode())
                if salt is None or len(salt) != _SALT_BYTES or int(factor) > MAX_SCRYPT_LOG_N:
                    raise damaged(f"its passphrase asks for a work factor over {MAX_SCRYPT_LOG_N}, or for a salt amiss")
                key = _unwrapped(_stretched(passphrase, salt, int(factor)), stanza.body)
            case _:
                raise damaged("its header is invalid")
        if key is None:
            raise BridgeError(
                "wrong_passphrase",
                "The passphrase doesn't open it.",
                hint="If it is the right one, the beginning of the file is damaged.",
            )
        return self._checked(key)

    def open_with(self, identities: Iterable[Identity]) -> bytes:
        """The file key.

        Raises:
            BridgeError: `wrong_identity`, `backup_damaged`.
        """
        for identity in identities:
            for stanza in self.stanzas:
                if stanza.kind == _X25519 and (key := _opened(stanza, identity)) is not None:
                    return self._checked(key)
        raise BridgeError(
            "wrong_identity",
            "It is encrypted to recipients of whom none is the identity's.",
            hint="Name the identity's file with --identity; it can be given more than once.",
        )

    def _checked(self, key: bytes) -> bytes:
        if not hmac.compare_digest(_mac(key, self.data), self.mac):
            raise damaged("its header was changed")
        return key


def is_private(text: str) -> bool:
    """Whether a text is meant for an identity, which nobody is to be shown."""
    return text.strip().lower().startswith(_IDENTITY_PREFIX)


def damaged(why: str) -> BridgeError:
    """The error for a damaged backup."""
    return BridgeError(
        "backup_damaged", f"The backup is damaged: {why}.", hint="Nothing was restored. Take another one."
    )


def _line(file: IO[bytes]) -> bytes:
    line = file.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise damaged("its header ends too soon")
    return line


def _text(data: bytes) -> str:
    # Printable ASCII and blanks; what isn't is no argument.
    return data.decode("ascii", "replace") if all(0x20 <= byte < 0x7F for byte in data) else ""  # noqa: PLR2004


def _nonce(count: int, *, last: bool) -> bytes:
    return count.to_bytes(11, "big") + bytes([last])


def _derived(key: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt or None, info).derive(key)


def _mac(key: bytes, header: bytes) -> bytes:
    return hmac.digest(_derived(key, b"", b"header"), header, "sha256")


def _stretched(passphrase: str, salt: bytes, factor: int) -> bytes:
    salt = b"age-encryption.org/v1/scrypt" + salt
    return Scrypt(salt, length=32, n=1 << factor, r=8, p=1).derive(passphrase.encode(errors="surrogateescape"))


def _for_passphrase(key: bytes, passphrase: str) -> bytes:
    salt = os.urandom(_SALT_BYTES)
    body = _wrapped(_stretched(passphrase, salt, SCRYPT_LOG_N), key)
    return f"-> {_SCRYPT} ".encode() + _encoded(salt) + f" {SCRYPT_LOG_N}\n".encode() + body


def _for_recipient(key: bytes, recipient: Recipient) -> bytes:
    once = X25519PrivateKey.generate()
    share = once.public_key().public_bytes_raw()
    try:
        shared = once.exchange(X25519PublicKey.from_public_bytes(recipient.point))
    except ValueError:
        # A point of small order: everybody could decrypt it.
        raise BridgeError("bad_recipient", f"{recipient} is no key that anybody has.") from None
    body = _wrapped(_derived(shared, share + recipient.point, b"age-encryption.org/v1/X25519"), key)
    return f"-> {_X25519} ".encode() + _encoded(share) + b"\n" + body


def _opened(stanza: _Stanza, identity: Identity) -> bytes | None:
    share = _decoded(stanza.arguments[0].encode()) if len(stanza.arguments) == 1 else None
    if share is None or len(share) != _POINT_BYTES:
        raise damaged("its header is invalid")
    try:
        secret = X25519PrivateKey.from_private_bytes(identity.secret)
        shared = secret.exchange(X25519PublicKey.from_public_bytes(share))
    except ValueError:
        raise damaged("its header is invalid") from None
    salt = share + identity.recipient.point
    return _unwrapped(_derived(shared, salt, b"age-encryption.org/v1/X25519"), stanza.body)


def _wrapped(by: bytes, key: bytes) -> bytes:
    # 43 characters: less than a line.
    return _encoded(ChaCha20Poly1305(by).encrypt(_NO_NONCE, key, None)) + b"\n"


def _unwrapped(by: bytes, body: bytes) -> bytes | None:
    # The length first: a longer one could be made to open with many keys.
    if len(body) != _KEY_BYTES + _TAG_BYTES:
        raise damaged("its header is invalid")
    try:
        return ChaCha20Poly1305(by).decrypt(_NO_NONCE, body, None)
    except InvalidTag:
        return None


def _encoded(data: bytes) -> bytes:
    return base64.b64encode(data).rstrip(b"=")


def _decoded(text: bytes) -> bytes | None:
    """Base64 without padding; None if it isn't that, or could be written in another way."""
    try:
        data = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except (ValueError, binascii.Error):
        return None
    return data if _encoded(data) == text else None


# --- Bech32 (BIP 173), without its limit in length ---

_LETTERS = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATOR = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CHECK_CHARS = 6
_MAX_BECH32_CHARS = 200


def _to_bech32(prefix: str, data: bytes) -> str:
    values = _regrouped(data, 8, 5, pad=True)
    check = _polymod([*_spread(prefix), *values, *[0] * _CHECK_CHARS]) ^ 1
    values += [check >> 5 * (_CHECK_CHARS - 1 - place) & 31 for place in range(_CHECK_CHARS)]
    return f"{prefix}1{''.join(_LETTERS[value] for value in values)}"


def _from_bech32(prefix: str, text: str) -> bytes | None:
    """The 32 bytes in a text of lower case; None if it isn't one with that prefix, or is misspelled."""
    actual_prefix, _, letters = text.rpartition("1")
    if actual_prefix != prefix or len(text) > _MAX_BECH32_CHARS or not set(letters) <= set(_LETTERS):
        return None
    values = [_LETTERS.index(letter) for letter in letters]
    if len(values) < _CHECK_CHARS or _polymod([*_spread(prefix), *values]) != 1:
        return None
    regrouped = _regrouped(values[:-_CHECK_CHARS], 5, 8, pad=False)
    data = bytes(regrouped)
    # What is over in the last letter has to be zero, or two texts would be one key.
    return data if len(data) == _POINT_BYTES and _to_bech32(prefix, data) == text else None


def _spread(prefix: str) -> list[int]:
    return [ord(char) >> 5 for char in prefix] + [0] + [ord(char) & 31 for char in prefix]


def _polymod(values: Iterable[int]) -> int:
    check = 1
    for value in values:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for place, generator in enumerate(_GENERATOR):
            check ^= generator if top >> place & 1 else 0
    return check


def _regrouped(values: Iterable[int], size: int, other: int, *, pad: bool) -> list[int]:
    """Numbers of so many bits as numbers of others."""
    held = bits = 0
    regrouped = []
    for value in values:
        held, bits = held << size | value, bits + size
        while bits >= other:
            bits -= other
            regrouped.append(held >> bits & (1 << other) - 1)
    if pad and bits:
        regrouped.append(held << other - bits & (1 << other) - 1)
    return regrouped
