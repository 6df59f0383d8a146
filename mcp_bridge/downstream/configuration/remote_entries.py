"""What the address and the headers of a remote server may be, and what of an address may be shown.

An entry that breaks a rule is refused before anything is sent: a header with a line break would be two headers.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_URL_CHARS = 8 << 10
MAX_HEADERS = 100
MAX_HEADER_CHARS = 64 << 10
"""Limits of what one entry may have. Servers refuse less."""

_SCHEMES = ("http", "https")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
"""A header's name (RFC 9110, section 5.6.2)."""

_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""A header's value (RFC 9110, section 5.5)."""

RESERVED_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "host"}
    | {"keep-alive", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"}
    | {"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that the transport sets, or that frame the message."""


def url_problem(url: str) -> str | None:
    """Why an address can't be used, or None. Doesn't quote it."""
    if len(url) > MAX_URL_CHARS:
        return f"url has more than {MAX_URL_CHARS} characters."
    if any(character <= " " or character == "\x7f" for character in url):
        return "url contains a space or a control character."
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
        if host is not None:
            host.encode("idna")
    except ValueError:  # UnicodeError is one.
        return "url is not a valid address."
    if parts.scheme.lower() not in _SCHEMES:
        return "url doesn't begin with https:// or http://."
    if not host:
        return "url names no host."
    if parts.username is not None or parts.password is not None:
        return "url contains a user or password: write them into headers, as Authorization."
    if parts.fragment:
        return "url contains a fragment (#…), which is never sent."
    return None


def headers_problem(headers: Mapping[str, str]) -> str | None:
    """Why headers can't be sent, or None. Doesn't quote a value."""
    if len(headers) > MAX_HEADERS:
        return f"headers has more than {MAX_HEADERS} entries."
    seen: set[str] = set()
    for name, value in headers.items():
        if not is_header_name(name):
            return f"headers has a name that no header may have: {name[:40]!r}."
        if name.lower() in RESERVED_HEADERS:
            return f"headers.{name} is set by the bridge itself: leave it out."
        if name.lower() in seen:
            return f"headers.{name} is there twice."
        if wrong := value_problem(value):
            return f"headers.{name} {wrong}"
        seen.add(name.lower())
    return None


def is_header_name(name: str) -> bool:
    """Whether a header may be called so."""
    return _TOKEN.fullmatch(name) is not None


def value_problem(value: str) -> str | None:
    """Why a header's value can't be sent, to follow its name; or None. Doesn't quote it."""
    if len(value) > MAX_HEADER_CHARS:
        return f"has more than {MAX_HEADER_CHARS} characters."
    if not _VALUE.fullmatch(value):
        return "contains a line break or another character that no header may have."
    if value != value.strip():
        return "begins or ends with a space."
    return None


def shown_url(url: str) -> str:
    """An address for people: without its query, fragment and user, any of which may contain a secret."""
    origin = shown_origin(url)
    return f"{origin}{urlsplit(url).path}" if "://" in origin else origin


def shown_origin(url: str) -> str:
    """An address for scripts: its scheme, host and port. Some services put a credential into the path."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "an invalid address"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{f':{port}' if port is not None else ''}"


def is_loopback(url: str) -> bool:
    """Whether an address names this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_in_the_clear(url: str) -> bool:
    """Whether what is sent to an address can be read by others on the way."""
    return urlsplit(url).scheme.lower() == "http" and not is_loopback(url)
