"""Encryption of payloads and states: envelope encryption under a master key, erased by destroying data keys.

Every execution has its own data key (AES-256-GCM, NIST SP 800-38D), stored wrapped by a key that is derived from the
master key. Without its data key nothing of an execution can be read, by anybody: that is how it is erased.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import KEY_BYTES

if TYPE_CHECKING:
    from pathlib import Path


NONCE_BYTES, _TAG_BYTES = 12, 16

NAME_BYTES = 16
"""The size of the name of a piece of a payload."""


class MasterKey:
    """The key that wraps all other keys.

    Args:
        key: KEY_BYTES random bytes.

    Attributes:
        key: Its bytes.
        check: A value by which a store recognises its master key: a MAC of nothing secret.
        requests: The key of the MACs by which equal requests are recognised.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._wrap = AESGCM(_derived(key, "wrap data keys"))
        self._mac = _derived(key, "authenticate rows")
        self._subjects = _derived(key, "name subjects")
        self._erased = _derived(key, "name erased references")
        self.requests = _derived(key, "authenticate requests")
        self.check = _derived(key, "check").hex()

    def new(self, execution: str) -> tuple[DataKey, bytes]:
        """A new data key, and its wrapped form."""
        key = os.urandom(KEY_BYTES)
        return DataKey(key), self._wrapped(key, execution)

    def _wrapped(self, key: bytes, label: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._wrap.encrypt(nonce, key, label.encode())

    def wrap(self, key: bytes, name: str) -> bytes:
        """The wrapped form of a key that belongs to no execution."""
        return self._wrapped(key, f"/{name}")

    def unwrap(self, wrapped: str, name: str) -> bytes:
        """The key of a wrapped form, which is in hex.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        try:
            kept = bytes.fromhex(wrapped)
            return self._wrap.decrypt(kept[:NONCE_BYTES], kept[NONCE_BYTES:], f"/{name}".encode())
        except (InvalidTag, ValueError, TypeError):
            raise damaged(f"the key of {name} can't be opened") from None

    def new_row(self, execution: str, subject: str) -> tuple[DataKey, tuple[str, str, bytes, bytes]]:
        """A new data key and its row: execution, subject, wrapped key, MAC."""
        key, wrapped = self.new(execution)
        return key, (execution, subject, wrapped, self.mac("data_keys", execution, subject, wrapped))

    def open(self, execution: str, wrapped: bytes) -> DataKey:
        """The data key of a wrapped form.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        try:
            return DataKey(self._wrap.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], execution.encode()))
        except (InvalidTag, ValueError, TypeError):
            raise damaged(f"the key of {execution} can't be opened") from None

    def mac(self, *values: Any) -> bytes:
        """HMAC-SHA-256 of an unambiguous encoding of values. Bytes enter by their SHA-256: a state may be large."""
        plain = [[hashlib.sha256(value).hexdigest()] if isinstance(value, bytes) else value for value in values]
        return hmac.digest(self._mac, json.dumps(plain).encode(), "sha256")

    def erasure_token(self, execution: str, reference: str) -> str:
        """The token that stands for a reference that was erased in an execution."""
        return hmac.digest(self._erased, f"{execution}/{reference}".encode(), "sha256").hex()[:32]

    def subject(self, subject: str) -> str:
        """The pseudonym of a subject in the store."""
        return hmac.digest(self._subjects, subject.encode(), "sha256").hex()[:32]


class DataKey:
    """The key of one execution.

    Args:
        key: KEY_BYTES bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._key = key

    def name(self, data: bytes) -> bytes:
        """The name of a piece: a MAC of its data, so that nobody can test a guess without the key."""
        # Hashed first: SHA-256 of large data releases the interpreter's lock, and `hmac.digest` doesn't.
        return hmac.digest(_derived(self._key, "name pieces"), hashlib.sha256(data).digest(), "sha256")[:NAME_BYTES]

    def seal(self, data: bytes, label: bytes, nonce: bytes | None = None) -> bytes:
        """Encrypt.

        Args:
            data: The plaintext.
            label: The place it is bound to (additional authenticated data): it opens nowhere else.
            nonce: NONCE_BYTES random bytes that nothing else is sealed with; by default, new ones.
        """
        nonce = nonce or os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, label)

    def open(self, sealed: bytes, label: bytes) -> bytes:
        """Decrypt.

        Raises:
            BridgeError: `ledger_damaged`: it was changed, or belongs elsewhere.
        """
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], label)
        except (InvalidTag, ValueError, TypeError):
            raise damaged(f"{label.decode(errors='replace')[:100]!r} can't be opened: it was changed") from None


def sealed_bytes(data: bytes) -> int:
    """The size of data once it is sealed."""
    return NONCE_BYTES + len(data) + _TAG_BYTES


def _derived(key: bytes, label: str) -> bytes:
    return hmac.digest(key, f"mcp-bridge ledger: {label}".encode(), "sha256")


def wrong_master_key() -> BridgeError:
    """The error for a master key of another ledger."""
    return BridgeError(
        "key_unusable",
        "The master key is not the one that this ledger was begun with.",
        hint="Put the right one back: see master_key in [ledger].",
    )


def damaged(why: str) -> BridgeError:
    """The error for a store whose content can't be what was written."""
    return BridgeError(
        "ledger_damaged",
        f"The record of executions is damaged: {why}.",
        hint="Restore a backup: `mcp-bridge restore FILE --check` tries one.",
    )


def naming_file(path: Path, error: BridgeError) -> BridgeError:
    """The same error; that of a damaged file names the file."""
    if error.code != "ledger_damaged":
        return error
    return BridgeError(error.code, f"{path}: {error.message}", hint=error.hint, **error.details)
