"""Which addresses the requests of a login may go to.

Addresses of an authorization server come from the server that asks for a token, and from what these addresses answer.
So they can't lead to plain HTTP, to this machine or to a private address, unless the server itself is there.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from mcp_bridge.downstream.configuration.remote_entries import MAX_URL_CHARS, is_loopback

_NAT64, _COMPATIBLE = ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96")
"""Addresses of IPv6 that stand for one of IPv4 (RFC 6052; RFC 4291, section 2.5.5.1), besides mapped ones and 6to4."""

_PROTOCOL_ASSIGNMENTS = ipaddress.ip_network("192.0.0.0/24")
"""RFC 6890. Not all releases of Python know that they aren't global."""


def url_problem(url: str, server_url: str) -> str | None:
    """Why a request of a login to `server_url` can't go to `url`, to follow what it is the address of; or None."""
    if len(url) > MAX_URL_CHARS:
        return f"has more than {MAX_URL_CHARS} characters"
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return "is not a valid address"
    if not host or parts.scheme not in {"http", "https"} or any(character <= " " for character in url):
        return "is not a valid address"
    if parts.username is not None or parts.password is not None:
        return "contains a user or password"
    at_home = is_loopback(server_url)
    if parts.scheme != "https" and not (at_home and is_loopback(url)):
        return "is not encrypted (https)"
    address = _address(host)
    is_here = is_loopback(url) or (address is not None and address.is_loopback)
    if (is_here or f".{host}".rstrip(".").endswith(".localhost")) and not at_home:
        return "leads to this machine"
    if (
        address is not None
        and not _is_public(address)
        and not is_loopback(url)
        and not (_is_private(url) and _is_private(server_url))
    ):
        return "leads to a private address"
    return None


def may_carry_tokens(url: str) -> bool:
    """Whether a server at this address can be given a token: over TLS, or on this machine."""
    return urlsplit(url).scheme == "https" or is_loopback(url)


def _is_private(url: str) -> bool:
    """Whether an address names a machine of a private network. A link-local one is that of a cloud's own services."""
    address = _address(urlsplit(url).hostname or "")
    if address is None or address.is_loopback or address.is_link_local or address.is_unspecified:
        return False
    return address.is_private


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_global and not address.is_multicast and address not in _PROTOCOL_ASSIGNMENTS


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is written as; of one of IPv6 that stands for one of IPv4, that one."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            # What else the system takes for an IPv4 address: `127.1`, `0x7f000001`, `2130706433`.
            address = ipaddress.ip_address(socket.inet_aton(host.rstrip(".")))
        except (OSError, ValueError):
            return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is None and (address in _NAT64 or address in _COMPATIBLE) and int(address) > 1:
        embedded = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return embedded or address
