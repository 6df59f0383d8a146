"""Which Host and Origin headers are accepted (protection against DNS rebinding).

A web page of another site can make its name resolve to this machine, and then ask as the same origin; its Host header
is that name. So a Host header is an IP address, or a name that is known to be this bridge's: an address can't be made
to resolve to another. A page of another origin is only accepted if the operator lists it.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable


class AllowedHosts:
    """The accepted values.

    Args:
        names: Host names besides `localhost` and this machine's.
        origins: Origins of web pages besides the bridge's own.
    """

    def __init__(self, names: Iterable[str], origins: Iterable[str]) -> None:
        own = {"localhost", socket.gethostname(), socket.getfqdn()}
        self._names = {name.lower().rstrip(".") for name in (*own, *names)}
        self.origins = tuple(_as_browsers_write(origin.lower().rstrip("/")) for origin in origins)

    def accepts_host(self, host: str) -> bool:
        """Whether a Host header names this bridge; any port is accepted."""
        name = _name(host)
        if name is None:
            return False
        if name.rstrip(".") in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def accepts_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may ask.

        Args:
            origin: The Origin header.
            host: The Host header, which was accepted.
        """
        origin = origin.lower()
        # A proxy that ends TLS passes on plain HTTP, so the scheme may differ.
        return origin in self.origins or origin in {f"http://{host.lower()}", f"https://{host.lower()}"}


def _as_browsers_write(origin: str) -> str:
    scheme, _, host = origin.partition("://")
    return f"{scheme}://{host.removesuffix({'http': ':80', 'https': ':443'}[scheme])}"


def _name(host: str) -> str | None:
    """The host name or address without its port, in lower case; None for what is neither."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None
