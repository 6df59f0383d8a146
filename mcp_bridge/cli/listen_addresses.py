"""The addresses of commands that serve HTTP."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from mcp_bridge.cli import terminal_output
from mcp_bridge.errors import BridgeError
from mcp_bridge.server.http.listener_check import is_loopback

_BACKLOG = 128


def address(listen: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 address is in brackets.

    Raises:
        BridgeError: `bad_argument`.
    """
    try:
        parts = urlsplit(f"//{listen}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.netloc != listen or "@" in listen:
        raise BridgeError("bad_argument", f"--listen: {listen[:100]!r} is not HOST:PORT, such as 127.0.0.1:8377.")
    return host, port


def listening(host: str, port: int, *, hint: str = "Name another with --listen HOST:PORT.") -> socket.socket:
    """A listening socket; port 0 selects any free port.

    Args:
        host: The host name or address.
        port: The port.
        hint: What to do if it can't be listened on.

    Raises:
        BridgeError: `cannot_listen`.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else exc
        raise BridgeError("cannot_listen", f"{host}:{port} can't be listened on: {why}.", hint=hint) from None
    return listener


def warn_of_plain_http(listener: socket.socket, can: str, better: str) -> None:
    """Warn on standard error if other machines can reach what listens, and speaks plain HTTP.

    Args:
        listener: The listening socket.
        can: What anyone who can read the network can do.
        better: What to do instead: a sentence's end.
    """
    if not is_loopback(listener):
        terminal_output.echo_err(
            f"mcp-bridge: warning: this is plain HTTP beyond this machine: anyone who can read the network can {can}. "
            f"Better: {better}"
        )
