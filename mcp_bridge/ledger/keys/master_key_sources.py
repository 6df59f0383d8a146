"""Where the master key comes from: a file in the state directory, the system's keyring, or a command."""

from __future__ import annotations

import base64
import binascii
import importlib
import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError, extra_hint
from mcp_bridge.ledger.storage.sealing import MasterKey
from mcp_bridge.private_files import KEY_BYTES, private_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE_NAME = "master.key"
"""The master key, in the state directory."""

COMMAND_SECONDS = 30.0
"""How long a command may take to print the master key."""

KEYRING_SERVICE = "mcp-bridge"

KEYRING_NAME = "ledger master key"

OWN_SOURCES = frozenset({"file", "keyring"})
"""Sources whose master key the bridge makes and stores itself; every other source is a command."""

_LOST = "Without it nothing that is recorded of executions can be read."


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


def _keyring() -> Any:
    try:
        return importlib.import_module("keyring")
    except ImportError:
        raise BridgeError(
            "keyring_missing",
            "The library for the system's keyring isn't installed.",
            hint=f'Set master_key = "file" in [ledger]. Or: {extra_hint("keyring")}',
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
            hint="See master_key in [ledger]. Anyone who can read the configuration could read that key.",
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
