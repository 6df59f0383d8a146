"""Refuses to listen beyond this machine without authentication: anybody who can connect could run code here."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    import socket

    from mcp_bridge.server.http.authentication.authenticator import Authenticator


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach a listening socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def check_listener(listener: socket.socket, authenticator: Authenticator) -> None:
    """Refuse to listen beyond this machine without authentication.

    Raises:
        BridgeError: `authentication_needed`.
    """
    if not authenticator.authenticates and not is_loopback(listener):
        raise BridgeError(
            "authentication_needed",
            f"{listener.getsockname()[0]} can be reached from other machines, and anybody there could run code here: "
            "no authentication is configured.",
            hint="Use --host 127.0.0.1, or make a token with `mcp-bridge principal add NAME`.",
        )
