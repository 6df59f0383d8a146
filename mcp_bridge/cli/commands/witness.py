"""`mcp-bridge witness`: cosign the checkpoints of other bridges' ledgers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.listen_addresses import address, listening
from mcp_bridge.cli.streams import queue_errors
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def witness(config: Path | None, listen: str, logs: Sequence[str], name: str | None) -> int:
    """Serve a witness until a signal ends it; return the exit status.

    Args:
        config: The file given by `--config`, or None; the witness's files are in its state directory.
        listen: `HOST:PORT`; port 0 for any free port.
        logs: The verifier keys of the trusted logs.
        name: The witness's name, or None to derive one from its key.

    Raises:
        BridgeError: `bad_argument` (an address, a log's key, a name), `cannot_listen`, `state_unusable`; as
            `open_witness`.
    """
    from mcp_bridge.ledger.proofs.signing import Verifier, is_key_name
    from mcp_bridge.ledger.witness.witness import open_witness
    from mcp_bridge.private_files import state_directory
    from mcp_bridge.server.witness_http import serve_witness

    queue_errors()
    host, port = address(listen)
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
    # The witness's key and records must be the same in whatever folder it is started.
    loaded = configuration_loading.load(config, folder=False)
    state_dir = state_directory(loaded.settings.state_dir)
    with ExitStack() as open_things:
        socket = open_things.enter_context(listening(host, port))
        opened = open_things.enter_context(open_witness(state_dir, keys, name))
        at = socket.getsockname()

        def ready() -> None:
            terminal_output.echo(f"listening on http://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]}")
            terminal_output.echo(f"key {opened.vkey}")
            sys.stdout.flush()

        serve_witness(opened, socket, ready)
    return exit_statuses.OK
