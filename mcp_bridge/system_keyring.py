"""The system's keyring, through the `keyring` library."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError, extra_hint

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code

SERVICE = "mcp-bridge"
"""The service of all that the bridge keeps there; the name is the user's."""


class SystemKeyring:
    """Texts in the system's keyring, by name.

    Calls may wait for a person who unlocks the keyring: not for an event loop's thread.

    Args:
        instead: What to do without a keyring, a clause.
        code: The code of the error for a keyring that is locked or broken, or for none at all.
    """

    def __init__(self, instead: str = "keep the secret in the file", code: Code = "keyring_unusable") -> None:
        self._instead = instead
        self._code: Code = code

    def stamp(self) -> object | None:
        """None: a keyring doesn't tell whether it has changed."""
        return None

    def get(self, name: str) -> str | None:
        """The text, or None if there is none of that name.

        Raises:
            BridgeError: `keyring_missing` (the library isn't installed), or the code for an unusable keyring.
        """
        value = self._call("get_password", name)
        if value is None or isinstance(value, str):
            return value
        # There is something: taken for nothing, it would be overwritten.
        raise self._error(f"it gave no text, but {type(value).__name__}")

    def set(self, name: str, text: str) -> None:
        """Keep a text, in place of one of that name.

        Raises:
            BridgeError: As `get`.
        """
        self._call("set_password", name, text)

    def remove(self, name: str) -> bool:
        """Remove a text; whether there was one.

        Raises:
            BridgeError: As `get`.
        """
        if self.get(name) is None:
            return False
        self._call("delete_password", name)
        return True

    def _call(self, method: str, *arguments: str) -> Any:
        try:
            # An extra, and slow to import.
            keyring = importlib.import_module("keyring")
        except ImportError:
            raise BridgeError(
                "keyring_missing",
                "The library for the system's keyring isn't installed.",
                hint=f"To do without it, {self._instead}. Or: {extra_hint('keyring')}",
            ) from None
        try:
            return getattr(keyring, method)(SERVICE, *arguments)
        except Exception as exc:  # noqa: BLE001  (backends let through what their systems raise)
            # Its text may hold what the backend was given, and stays out of any log.
            raise self._error(type(exc).__name__) from None

    def _error(self, why: str) -> BridgeError:
        return BridgeError(
            self._code,
            f"The system's keyring can't be used ({why}).",
            hint=f"Unlock it, or {self._instead}. `python -m keyring diagnose` says which keyring is used.",
        )
