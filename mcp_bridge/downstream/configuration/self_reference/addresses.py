"""Detects an entry that leads to a bridge over HTTP: by this bridge's address, or by a token of a bridge's principal.

A program that connects its client to an address, such as `mcp-remote`, has both in its command line. Undetected cases
are recognised when they are connected to (`bridge_identity`).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_bridge.bridge_identity import PATH, PORT, TOKEN_PREFIX
from mcp_bridge.downstream.configuration.remote_entries import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TOKEN = re.compile(rf"(?<![A-Za-z0-9]){TOKEN_PREFIX}[0-9a-f]{{16}}_")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class OwnAddress:
    """Where a bridge with this configuration serves MCP over HTTP.

    Attributes:
        ports: Its port, and those of other bridges of this user that serve now.
        path: The path of its endpoint.
        names: The names by which clients reach it, at any port, besides this machine's: such as those of a proxy.
    """

    ports: tuple[int, ...] = (PORT,)
    path: str = PATH
    names: tuple[str, ...] = ()

    def is_of(self, text: str) -> bool:
        """Whether a text is this address."""
        try:
            parts = urlsplit(text)
            host, port = (parts.hostname or "").rstrip("."), parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError:
            return False
        if parts.scheme not in _DEFAULT_PORTS or parts.path.rstrip("/") != self.path:
            return False
        if host in {name.lower().rstrip(".") for name in self.names}:
            return True
        return port in self.ports and (is_loopback(text) or host == socket.gethostname().lower() or _is_any(host))


def _is_any(host: str) -> bool:
    """Whether a host is what a server listens at that is reached at all of its machine's addresses."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def has_token(texts: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Whether an entry's texts have a token of a bridge's principal, or name a variable that has one."""
    return any(
        _TOKEN.search(text) or any(_TOKEN.search(environ.get(name, "")) for name in _VARIABLE.findall(text))
        for text in texts
    )


def points_to_this_bridge(texts: Iterable[str], address: OwnAddress, environ: Mapping[str, str]) -> bool:
    """Whether an entry's texts have this bridge's address, or a token for another bridge on this machine."""
    texts = list(texts)
    return any(address.is_of(text) for text in texts) or (
        any(is_loopback(text) for text in texts) and has_token(texts, environ)
    )
