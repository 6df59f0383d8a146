"""Errors about logins. None repeats what a server has sent, beyond a short code or description: that may be a token."""

from __future__ import annotations

import json
import re
import shlex

from mcp_bridge.downstream.http.escaped_text import replaced
from mcp_bridge.errors import BridgeError

_CODE = re.compile(r"[\x20-\x21\x23-\x5b\x5d-\x7e]{1,200}")
"""What OAuth's `error` and `error_description` may be made of (RFC 6749, section 5.2), and how much of it is shown."""

_PART_CHARS = 16
"""A scope of so many characters may be a part of a token."""


class UnreachableError(Exception):
    """An authorization server gave no usable answer.

    Attributes:
        reason: Why, in half a sentence without its subject.
        was_sent: Whether the request may have reached the server.
    """

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent


def login_command(server: str) -> str:
    """What a person types to log in."""
    return f"mcp-bridge servers login {shlex.quote(server)}"


def login_needed(server: str, why: str = "has no login") -> BridgeError:
    """The error for a call that a person must log in for first."""
    return BridgeError(
        "login_needed",
        f"server {server!r} {why}.",
        hint=f"The user logs in with: {login_command(server)}",
        server=server,
    )


def shown_scopes(scopes: str | None, credential: str) -> str:
    """The scopes that a server asks for, to show; empty if it says none, or what are none.

    Args:
        scopes: As the server has them.
        credential: What was sent: scopes with a part of it aren't shown.
    """
    shown = _shown(scopes, ())
    return "" if any(part in credential for part in shown.split() if len(part) >= _PART_CHARS) else shown


def rights(scopes: str) -> str:
    """`more rights`, with the scopes if they are known."""
    return f"more rights ({scopes})" if scopes else "more rights"


def machine_refused(server: str, *, wanted: str | None = None) -> BridgeError:
    """The error for a server that refuses the tokens of a client that logs in by itself: nobody can do it for it."""
    if wanted is None:
        what, wrong = "refuses the tokens of its client", "check client_id, issuer and scopes"
    else:
        what, wrong = f"wants {rights(wanted)} than the tokens of its client have", "add them to scopes"
    return BridgeError(
        "server_unauthorized",
        f"server {server!r} {what}, which logs in automatically. Nothing was called.",
        hint=f"In the server's oauth table of the configuration, the operator has to {wrong}.",
        server=server,
    )


def login_failed(server: str, why: str, hint: str | None = None) -> BridgeError:
    """The error for a login that didn't succeed."""
    return BridgeError("login_failed", f"The login to {server!r} failed: {why}.", hint=hint, server=server)


def login_unavailable(server: str, why: str) -> BridgeError:
    """The error for a token that can't be had at the moment."""
    return BridgeError(
        "login_unavailable",
        f"The authorization server of {server!r} gives no token at the moment: {why}.",
        hint="Try again later.",
        server=server,
    )


def oauth_error(body: bytes, secrets: tuple[str, ...] = ()) -> tuple[str, str]:
    """The `error` of an OAuth error response, and how to show it.

    Args:
        body: The response's JSON.
        secrets: What was sent: a description that repeats one of them isn't shown.

    Returns:
        The code, empty if there is none; and the code with its description.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    return shown_error(content, secrets) if isinstance(content, dict) else ("", "")


def shown_error(content: dict[str, object], secrets: tuple[str, ...] = ()) -> tuple[str, str]:
    """As `oauth_error`, of decoded parameters."""
    code, description = (_shown(content.get(key), secrets) for key in ("error", "error_description"))
    return code, f"{code} ({description})" if code and description else code


def _shown(value: object, secrets: tuple[str, ...]) -> str:
    if not isinstance(value, str) or not _CODE.fullmatch(value):
        return ""
    sent = [secret.encode("utf-8", "replace") for secret in secrets if secret]
    return "" if replaced(value.encode(), sent, b"") != value.encode() else value
