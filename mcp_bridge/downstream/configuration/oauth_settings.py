"""How to get OAuth tokens for a remote server: `[servers.NAME.oauth]`, decoded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Grant = Literal["authorization_code", "client_credentials"]

_GRANTS: tuple[Grant, ...] = ("authorization_code", "client_credentials")
_KEYS = ("client_id", "client_secret", "scopes", "grant")


class OAuthSettingError(Exception):
    """A setting that can't be used.

    Attributes:
        message: What is wrong, to follow the key's name.
        hint: What to write instead.
        keys: The path of the key below `oauth`; empty for the table itself.
    """

    def __init__(self, message: str, hint: str, *keys: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.keys = keys


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """How to get tokens for one remote server. `repr` doesn't show the client's secret.

    Attributes:
        client_id: The id of a client that is registered already; None to have the bridge registered.
        client_secret: Its secret, which may contain `vault://secret/…`, or None for a public client.
        scopes: The scopes to ask for; empty for those that the server names.
        grant: Whether a person logs in, or the client by itself.
    """

    client_id: str | None = None
    client_secret: str | None = None
    scopes: tuple[str, ...] = ()
    grant: Grant = "authorization_code"

    def __repr__(self) -> str:
        return f"OAuthSettings(client_id={self.client_id!r}, scopes={self.scopes!r}, grant={self.grant!r})"

    def expanded(self, expand: Callable[[str, str], str]) -> OAuthSettings:
        """The settings with `${VAR}` expanded by `expand(key, text)`."""
        return replace(
            self,
            client_id=None if self.client_id is None else expand("oauth.client_id", self.client_id),
            client_secret=None if self.client_secret is None else expand("oauth.client_secret", self.client_secret),
        )


def oauth_settings(table: Any) -> OAuthSettings:
    """Decode an `oauth` table. Variables in it are not expanded.

    Raises:
        OAuthSettingError: An unknown key, or a value of the wrong type. No value is repeated: it may be a secret.
    """
    if not isinstance(table, dict):
        raise OAuthSettingError("must be a table.", 'Write oauth = { client_id = "…" }.')
    for key in table:
        if key not in _KEYS:
            raise OAuthSettingError("is not a known key.", f"Known keys: {', '.join(_KEYS)}.", key)
    scopes = table.get("scopes", [])
    if not isinstance(scopes, list) or not all(isinstance(scope, str) and scope for scope in scopes):
        raise OAuthSettingError("must be an array of strings.", 'Write scopes = ["repo"].', "scopes")
    grant = table.get("grant", _GRANTS[0])
    if grant not in _GRANTS:
        raise OAuthSettingError(f"must be one of {', '.join(_GRANTS)}.", f'Write grant = "{_GRANTS[0]}".', "grant")
    return OAuthSettings(_text(table, "client_id"), _text(table, "client_secret"), tuple(scopes), grant)


def _text(table: dict[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise OAuthSettingError("must be a string that isn't empty.", f'Write {key} = "…".', key)
    return value
