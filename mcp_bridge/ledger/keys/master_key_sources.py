"""Where the master key comes from: a file in the state directory, the system's keyring, or a command."""

from __future__ import annotations

import base64
import binascii
import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.storage.sealing import MasterKey
from mcp_bridge.private_files import KEY_BYTES, private_key
from mcp_bridge.system_keyring import SystemKeyring

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE_NAME = "master.key"
"""The master key, in the state directory."""

COMMAND_SECONDS = 30.0
"""How long a command may take to print the master key."""

KEYRING_NAME = "ledger master key"

OWN_SOURCES = frozenset({"file", "keyring"})
"""Sources whose master key the bridge makes and stores itself; every other source is a command."""

_KEYRING = SystemKeyring('set master_key = "file" in [ledger]', "key_unusable")

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
    _KEYRING.set(KEYRING_NAME, key.hex())


def _from_keyring(*, make: bool) -> bytes:
    kept = _KEYRING.get(KEYRING_NAME)
    if kept is None and make:
        _KEYRING.set(KEYRING_NAME, os.urandom(KEY_BYTES).hex())
        kept = _KEYRING.get(KEYRING_NAME)
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
