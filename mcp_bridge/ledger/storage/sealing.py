"""Encryption of payloads and states: envelope encryption under a master key, erased by destroying data keys.

Every execution has its own data key (AES-256-GCM, NIST SP 800-38D), stored wrapped by a key that is derived from the
master key. Without its data key nothing of an execution can be read, by anybody: that is how it is erased.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import importlib
import json
import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import KEY_BYTES, private_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE_NAME = "master.key"
"""The master key, in the state directory."""

COMMAND_SECONDS = 30.0
"""How long a command may take to print the master key."""

KEYRING_SERVICE, KEYRING_NAME = "mcp-bridge", "ledger master key"

OWN_SOURCES = frozenset({"file", "keyring"})
"""Sources whose master key the bridge makes and stores itself; every other source is a command."""

NONCE_BYTES, _TAG_BYTES = 12, 16

NAME_BYTES = 16
"""The size of the name of a piece of a payload."""

_LOST = "Without it nothing that is recorded of executions can be read."


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


def master_key(source: str | Sequence[str], directory: Path, *, make: bool) -> MasterKey:
    """The master key.

    Args:
        source: `file`, `keyring`, or a command with its arguments.
        directory: The state directory.
        make: Whether it may be made if it is missing: only for a store that has none yet.

    Raises:
        BridgeError: `key_missing`, `key_unusable`, `keyring_missing`.
    """
    return MasterKey(read_master(source, directory, make=make))


def read_master(source: str | Sequence[str], directory: Path, *, make: bool) -> bytes:
    """The bytes of the master key; arguments and errors are those of `master_key`."""
    if source == "file":
        return private_key(directory / FILE_NAME, _LOST, make=make)
    if source == "keyring":
        return _from_keyring(make=make)
    command = [source] if isinstance(source, str) else list(source)
    return _from_command(command)


def store_in_keyring(key: bytes) -> None:
    """Store a master key in the system's keyring.

    Raises:
        BridgeError: `keyring_missing`, `key_unusable`.
    """
    try:
        _keyring().set_password(KEYRING_SERVICE, KEYRING_NAME, key.hex())
    except BridgeError:
        raise
    except Exception as exc:  # noqa: BLE001  (backends let through what their systems raise)
        raise _no_keyring(exc) from None


def _derived(key: bytes, label: str) -> bytes:
    return hmac.digest(key, f"mcp-bridge ledger: {label}".encode(), "sha256")


def _keyring() -> Any:
    try:
        return importlib.import_module("keyring")
    except ImportError:
        raise BridgeError(
            "keyring_missing",
            "The library for the system's keyring isn't installed.",
            hint='Install mcp-code-bridge[keyring], or set master_key = "file" in [ledger].',
        ) from None


def _no_keyring(exc: Exception) -> BridgeError:
    return BridgeError("key_unusable", f"The system's keyring can't be used ({type(exc).__name__}).", hint="Unlock it.")


def _from_keyring(*, make: bool) -> bytes:
    keyring = _keyring()
    try:
        kept = keyring.get_password(KEYRING_SERVICE, KEYRING_NAME)
        if kept is None and make:
            keyring.set_password(KEYRING_SERVICE, KEYRING_NAME, os.urandom(KEY_BYTES).hex())
            kept = keyring.get_password(KEYRING_SERVICE, KEYRING_NAME)
    except Exception as exc:  # noqa: BLE001  (backends let through what their systems raise)
        raise _no_keyring(exc) from None
    if kept is None:
        raise BridgeError("key_missing", "The system's keyring has no key for the ledger.", hint=_LOST)
    return _decoded(kept, "The keyring's entry")


def _from_command(command: list[str]) -> bytes:
    shown = command[0] if command else "nothing"
    if _key_in(shown) is not None:
        # The error for a missing command would show it.
        raise BridgeError(
            "key_unusable",
            "What stands in master_key is a key, and has to be the name of a command that prints one.",
            hint="See master_key in [ledger]. Whoever could read the configuration could read that key.",
        )
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=COMMAND_SECONDS, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as exc:
        # Its output may be the key.
        raise BridgeError(
            "key_unusable",
            f"The command {shown!r} gave no master key ({type(exc).__name__}).",
            hint="See master_key in [ledger].",
        ) from None
    return _decoded(done.stdout.decode("ascii", "replace"), f"The output of {shown!r}")


def _decoded(text: str, what: str) -> bytes:
    if (key := _key_in(text)) is not None:
        return key
    raise BridgeError("key_unusable", f"{what} is no key.", hint=f"It has to be {KEY_BYTES} bytes in hex or base64.")


def _key_in(text: str) -> bytes | None:
    """The key that a text encodes in hex or base64; None if it doesn't."""
    for decode in (bytes.fromhex, lambda value: base64.b64decode(value, validate=True)):
        with suppress(ValueError, binascii.Error):
            if len(key := decode(text.strip())) == KEY_BYTES:
                return key
    return None


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
        hint="Go on with a backup: `mcp-bridge restore FILE --check` tries one.",
    )


def naming_file(path: Path, error: BridgeError) -> BridgeError:
    """The same error; that of a damaged file names the file."""
    if error.code != "ledger_damaged":
        return error
    return BridgeError(error.code, f"{path}: {error.message}", hint=error.hint, **error.details)
