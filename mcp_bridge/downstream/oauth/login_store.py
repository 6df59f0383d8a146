"""Where logins to remote servers are kept: with the secrets, in a file of the state directory or in the keyring.

A login belongs to one entry of the configuration: its name, its URL, the client's id, and, for an entry that comes with
a folder, the file that it is in. No other entry gets its tokens, not even one of the same name.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread

from mcp_bridge.downstream.oauth.login_errors import login_unavailable
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import try_lock
from mcp_bridge.private_files import private_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mcp_bridge.downstream.configuration.spec import ServerSpec

LOCKS = "login-locks"
"""The folder of the state directory with a file for each login, locked while its tokens are replaced."""

LOCK_SECONDS = 60.0
"""How long another process may take to replace a login's tokens: a few requests, each with its own time-out."""

_LOCK_POLL_SECONDS = 0.02


class SecretStore(Protocol):
    """Where logins are kept. Its methods may block."""

    def stamp(self) -> object | None:
        """A value that differs once something was written; None if that isn't known."""

    def get(self, secret_id: str) -> str | None:
        """What is kept under an id, or None."""

    def set(self, secret_id: str, plaintext: str) -> None:
        """Keep a text under an id."""

    def remove(self, secret_id: str) -> bool:
        """Forget what is kept under an id; whether there was something."""


def login_key(spec: ServerSpec) -> str:
    """The id of a server's login in the store. No `[secrets.NAME]` can have it: it contains a colon."""
    owner = spec.source if spec.comes_with_folder else ""
    client = spec.oauth.client_id if spec.oauth else None
    identity = json.dumps([owner, spec.name, spec.url, client])
    return f"login:{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


class LoginStore:
    """The logins of this user.

    Args:
        store: Where they are kept.
        state_dir: The state directory, for locks.
    """

    def __init__(self, store: SecretStore, state_dir: Path) -> None:
        self._store = store
        self._state_dir = state_dir

    def stamp(self) -> object | None:
        """As `SecretStore.stamp`. Doesn't block for long."""
        return self._store.stamp()

    async def get(self, spec: ServerSpec) -> str | None:
        """What is kept of a server's login, or None.

        Raises:
            BridgeError: As the store.
        """
        return await anyio.to_thread.run_sync(self._store.get, login_key(spec))

    async def put(self, spec: ServerSpec, text: str) -> None:
        """Keep a server's login, in place of an earlier one. It is on the disk when this returns.

        Raises:
            BridgeError: As the store.
        """
        await anyio.to_thread.run_sync(self._store.set, login_key(spec), text)

    async def remove(self, spec: ServerSpec) -> None:
        """Forget a server's login.

        Raises:
            BridgeError: As the store.
        """
        await anyio.to_thread.run_sync(self._store.remove, login_key(spec))

    @asynccontextmanager
    async def lock(self, spec: ServerSpec) -> AsyncIterator[None]:
        """Hold a login's lock, across processes: whoever replaces its tokens holds it.

        Raises:
            BridgeError: `login_unavailable`: another process holds it for too long; `state_unusable`.
        """
        folder = private_directory(private_directory(self._state_dir) / LOCKS)
        path = folder / login_key(spec).removeprefix("login:")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise BridgeError("state_unusable", f"{path} can't be made: {exc.strerror}.") from None
        try:
            with anyio.move_on_after(LOCK_SECONDS) as waiting:
                while not _locks(fd, path):  # noqa: ASYNC110  (nothing announces it)
                    await anyio.sleep(_LOCK_POLL_SECONDS)
            if waiting.cancelled_caught:
                raise login_unavailable(spec.name, f"another process has been at it for {LOCK_SECONDS:g} s")
            yield
        finally:
            os.close(fd)


def _locks(fd: int, path: Path) -> bool:
    try:
        return try_lock(fd)
    except OSError as exc:
        # Without locks two processes could use one refresh token.
        raise BridgeError("state_unusable", f"{path} can't be locked: {exc.strerror}.") from None
