"""The files of the key that the log is signed with, next to the ledger's own file."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcp_bridge.atomic_files import sync_directory, write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs.signing import Signer, Verifier
from mcp_bridge.ledger.storage.log_head import read_head
from mcp_bridge.ledger.storage.sealing import damaged
from mcp_bridge.private_files import private_key, read_whole

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

KEY_FILE = "checkpoint.key"
"""The private key, in the state directory."""

NEXT_KEY_FILE = "checkpoint.key.next"
"""The private key that replaces KEY_FILE as soon as the log says so."""

PUBLIC_KEY_FILE = "checkpoint.pub"
"""The public key of KEY_FILE, on one line: verifying doesn't need the private key."""

_MAX_PUBLIC_KEY_BYTES = 1024

_LOST = (
    "Without it the log can't be continued by the same signer. If it is lost for good: mcp-bridge audit "
    "rotate-key --lost."
)


def own_signer(directory: Path, origin: str, vkey: str) -> Signer:
    """The private key that the log is signed with.

    Raises:
        BridgeError: `key_missing`, `key_unusable`.
    """
    with suppress(BridgeError):
        # A rotation may have been killed before it moved the key into place, or is about to.
        following = load_signer(directory / NEXT_KEY_FILE, origin)
        if following.vkey == vkey:
            return following
    signer = load_signer(directory / KEY_FILE, origin)
    if signer.vkey != vkey:
        raise BridgeError(
            "key_unusable",
            f"{directory / KEY_FILE} is not the key that the log is signed with, {vkey}.",
            hint=f"Put it back. {_LOST}",
        )
    return signer


def load_signer(path: Path, origin: str, *, make: bool = False) -> Signer:
    """The signer of the private key in a file.

    Raises:
        BridgeError: `key_missing`, `key_unusable`.
    """
    return Signer(origin, Ed25519PrivateKey.from_private_bytes(private_key(path, _LOST, make=make)))


def own_vkey(path: Path) -> str:
    """The public key of the private key beside a ledger.

    Raises:
        BridgeError: `key_missing`, `key_unusable`; as `reading.open_ledger`.
    """
    for again in (True, False):
        with open_ledger(path) as ledger:
            try:
                return own_signer(path.parent, ledger.origin, ledger.vkey).vkey
            except BridgeError:
                # A reader has no lock: the key may have been rotated since the head was read.
                if not again:
                    raise
    raise AssertionError


def known_vkey(path: Path) -> str:
    """The public key to verify a ledger with: that of the private key beside it, or the one in PUBLIC_KEY_FILE.

    Raises:
        BridgeError: As `own_vkey`.
    """
    try:
        return own_vkey(path)
    except BridgeError as exc:
        if exc.code != "key_missing":
            raise
        with open_ledger(path) as ledger:
            vkey = _public_key(path.parent)
            if vkey is not None and vkey != ledger.vkey:
                raise BridgeError(
                    "key_unusable",
                    f"{path.parent / PUBLIC_KEY_FILE} is not the key that the log is signed with, {ledger.vkey}.",
                    hint="Name the key that you trust with --key.",
                ) from None
        if vkey is None:
            hint = f"{exc.hint} To verify, the public key is enough: name it with --key."
            raise BridgeError(exc.code, exc.message, hint=hint) from None
        return vkey


def _public_key(directory: Path) -> str | None:
    """The key in PUBLIC_KEY_FILE; None if the file is missing or holds no key."""
    try:
        text = read_whole(directory / PUBLIC_KEY_FILE, _MAX_PUBLIC_KEY_BYTES).decode(errors="replace").strip()
        return Verifier.parse(text).vkey
    except (OSError, BridgeError):
        return None


def foreign_public_key(directory: Path, vkey: str) -> str | None:
    """The key in PUBLIC_KEY_FILE, if it is another than the log's; None if it is that, or no key."""
    found = _public_key(directory)
    return None if found == vkey else found


def keep_public_key(directory: Path, vkey: str) -> None:
    """Keep PUBLIC_KEY_FILE up to date. Only verification elsewhere needs it, so a failure is ignored."""
    if _public_key(directory) != vkey:
        with suppress(OSError):
            write_private(directory / PUBLIC_KEY_FILE, f"{vkey}\n".encode())


def take_next_key(connection: sqlite3.Connection, directory: Path) -> None:
    """Move the next key into place, if the log is signed with it.

    Args:
        connection: In a write transaction: no other process makes another next key meanwhile.
        directory: The state directory.

    Raises:
        BridgeError: `key_unusable`, `ledger_damaged`.
    """
    named = connection.execute("SELECT value FROM meta WHERE name = 'origin'").fetchone()
    if named is None or not isinstance(named[0], str):
        raise damaged("its name is missing")
    (origin,), vkey = named, read_head(connection).vkey
    try:
        following = load_signer(directory / NEXT_KEY_FILE, origin)
    except BridgeError:
        # It doesn't exist, or was never used.
        return
    if following.vkey != vkey:
        return
    try:
        (directory / NEXT_KEY_FILE).replace(directory / KEY_FILE)
        sync_directory(directory)
    except OSError as exc:
        raise BridgeError(
            "key_unusable", f"{directory / NEXT_KEY_FILE} can't be renamed: {exc.strerror}.", hint="Rename it."
        ) from None
    keep_public_key(directory, vkey)
