"""`mcp-bridge witness`: cosign the checkpoints of other bridges' ledgers."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_bridge.cli import common, showing
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_BACKLOG = 128


def witness(config: Path | None, listen: str, logs: Sequence[str], name: str | None) -> int:
    """Serve a witness until a signal ends it; the exit status.

    Args:
        config: The configuration file that was named; the witness's files are in its state directory.
        listen: `HOST:PORT`; port 0 for any that is free.
        logs: The verifier keys of the logs that it trusts.
        name: Its name, or None for one made from its key.

    Raises:
        BridgeError: `bad_argument` (an address, a log's key, a name), `cannot_listen`, `state_unusable`; as
            `open_witness`.
    """
    from mcp_bridge.ledger.notes import Verifier  # noqa: PLC0415
    from mcp_bridge.ledger.signing import is_key_name  # noqa: PLC0415
    from mcp_bridge.ledger.witness import open_witness  # noqa: PLC0415
    from mcp_bridge.private_files import private_directory  # noqa: PLC0415
    from mcp_bridge.server.witness import serve_witness  # noqa: PLC0415

    host, port = _address(listen)
    if name is not None and not is_key_name(name):
        raise BridgeError("bad_argument", f"--name: {name[:100]!r} has a space, a plus or a control character in it.")
    keys = []
    for log in logs:
        try:
            keys.append(Verifier.parse(log))
        except BridgeError as exc:
            raise BridgeError(
                "bad_argument", f"--log: {exc.message}", hint="Take the key that the log's bridge shows."
            ) from None
    loaded = common.load(config)
    state_dir = private_directory(loaded.settings.state_dir)
    with ExitStack() as open_things:
        listening = open_things.enter_context(_listening(host, port))
        opened = open_things.enter_context(open_witness(state_dir, keys, name))
        at = listening.getsockname()

        def ready() -> None:
            showing.tell(f"listening on http://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]}")
            showing.tell(f"key {opened.vkey}")
            sys.stdout.flush()

        serve_witness(opened, listening, ready)
    return common.OK


def _address(listen: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{listen}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.netloc != listen or "@" in listen:
        raise BridgeError("bad_argument", f"--listen: {listen[:100]!r} is not HOST:PORT, such as 127.0.0.1:8377.")
    return host, port


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
    except OSError as exc:
        raise BridgeError("cannot_listen", f"{host}:{port} can't be listened on: {exc.strerror or exc}.") from None
    return listening
