"""How to get OAuth tokens for a remote server: `[servers.NAME.oauth]`, decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from mcp_bridge.downstream.configuration.remote_entries import is_loopback, url_problem

if TYPE_CHECKING:
    from collections.abc import Callable

Grant = Literal["authorization_code", "client_credentials"]

_GRANTS: tuple[Grant, ...] = ("authorization_code", "client_credentials")
_KEYS = ("client_id", "client_secret", "client_metadata_url", "issuer", "redirect_uri", "scopes", "grant")

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,500}")
"""A scope (RFC 6749, section 3.3)."""


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
        client_metadata_url: Where the operator publishes who the client is (a client id metadata document); used in
            place of registration where the authorization server reads such documents.
        issuer: The authorization server; None for the one that the server names.
        redirect_uri: The address on loopback that a registered client's logins come back to; None for any free port.
        scopes: The scopes to ask for; empty for those that the server names.
        grant: Whether a person logs in, or the client by itself.
    """

    client_id: str | None = None
    client_secret: str | None = None
    client_metadata_url: str | None = None
    issuer: str | None = None
    redirect_uri: str | None = None
    scopes: tuple[str, ...] = ()
    grant: Grant = "authorization_code"

    def __repr__(self) -> str:
        return f"OAuthSettings(client_id={self.client_id!r}, scopes={self.scopes!r}, grant={self.grant!r})"

    def expanded(self, expand: Callable[[str, str], str]) -> OAuthSettings:
        """The settings with `${VAR}` expanded by `expand(key, text)`. An id that is empty then is none."""
        client_id = None if self.client_id is None else expand("oauth.client_id", self.client_id)
        if self.client_id and not client_id:
            return replace(self, client_id=None, client_secret=None, redirect_uri=None)
        return replace(
            self,
            client_id=client_id,
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
    if not isinstance(scopes, list) or not all(isinstance(scope, str) and _SCOPE.fullmatch(scope) for scope in scopes):
        raise OAuthSettingError("must be an array of scopes.", 'Write scopes = ["repo"].', "scopes")
    grant = table.get("grant", _GRANTS[0])
    if grant not in _GRANTS:
        raise OAuthSettingError(f"must be one of {', '.join(_GRANTS)}.", f'Write grant = "{_GRANTS[0]}".', "grant")
    settings = OAuthSettings(
        client_id=_text(table, "client_id"),
        client_secret=_text(table, "client_secret"),
        client_metadata_url=_address(table, "client_metadata_url", "https://example.com/mcp-bridge.json"),
        issuer=_address(table, "issuer", "https://auth.example.com"),
        redirect_uri=_address(table, "redirect_uri", "http://127.0.0.1:8765/callback"),
        scopes=tuple(scopes),
        grant=grant,
    )
    _check_together(settings)
    return settings


def _check_together(settings: OAuthSettings) -> None:
    if settings.grant == "client_credentials":
        for key in ("client_id", "client_secret", "issuer"):
            # Without the issuer, a server could name anybody as the one that the secret is sent to.
            if getattr(settings, key) is None:
                raise OAuthSettingError("is missing for client_credentials.", f'Write {key} = "…".', key)
    if settings.client_secret is not None and settings.client_id is None:
        raise OAuthSettingError("is missing for client_secret.", 'Write client_id = "…".', "client_id")
    document = settings.client_metadata_url
    if document is not None and (urlsplit(document).scheme != "https" or urlsplit(document).path in {"", "/"}):
        hint = 'Write client_metadata_url = "https://example.com/mcp-bridge.json".'
        raise OAuthSettingError("must be the https address of a document.", hint, "client_metadata_url")
    redirect = settings.redirect_uri
    if redirect is not None and not (urlsplit(redirect).scheme == "http" and is_loopback(redirect)):
        hint = 'Write redirect_uri = "http://127.0.0.1:8765/callback".'
        raise OAuthSettingError("must be a http address of this machine.", hint, "redirect_uri")


def _address(table: dict[str, Any], key: str, example: str) -> str | None:
    text = _text(table, key)
    if text is not None and (url_problem(text) or urlsplit(text).query):
        raise OAuthSettingError("must be an address without a query.", f'Write {key} = "{example}".', key)
    return text


def _text(table: dict[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise OAuthSettingError("must be a string that isn't empty.", f'Write {key} = "…".', key)
    return value
