"""`mcp-bridge ui`: the trace viewer."""

from __future__ import annotations

import secrets
import signal
import sys
from typing import TYPE_CHECKING

from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.browser import open_via_redirect_file
from mcp_bridge.cli.command_runner import require_ledger, run_with_database
from mcp_bridge.cli.listen_addresses import address, listening, warn_of_plain_http
from mcp_bridge.cli.streams import queue_errors
from mcp_bridge.cli.terminal_prompts import login_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import anyio

    from mcp_bridge.ledger.storage.database import Database


DEFAULT_ADDRESS = "127.0.0.1:0"
"""This machine alone, at any free port."""


def ui(config: Path | None, asked: str | None, *, browser: bool) -> int:
    """Serve the viewer until it is interrupted; return the exit status.

    Args:
        config: The file given by `--config`, or None.
        asked: The address to listen at; None for the default.
        browser: Whether to open a browser.

    Raises:
        BridgeError: `bad_argument`, `cannot_listen`; as `run_with_database`; `nested_bridge`.
    """
    from mcp_bridge.private_files import state_directory
    from mcp_bridge.server.ui.app import Address, build, serve
    from mcp_bridge.server.ui.change_notifications import Live

    queue_errors()
    host, port = address(asked or DEFAULT_ADDRESS)
    loaded = configuration_loading.load(config)
    configuration_loading.refuse_nesting(loaded)
    require_ledger(loaded.settings)
    listener = listening(host, port)
    place = Address(host, listener.getsockname()[1])
    token = secrets.token_urlsafe(32)
    url = place.url(token)

    async def served(database: Database) -> None:
        import anyio

        from mcp_bridge.server.ending_signals import terminations

        leading = open_via_redirect_file(url, state_directory(loaded.settings.state_dir), wanted=browser)
        with leading, anyio.open_signal_receiver(signal.SIGINT, *terminations()) as signals:
            terminal_output.echo(f"The trace viewer: {url}")
            sys.stdout.flush()
            warn_of_plain_http(
                listener,
                "take the token, see everything that is recorded, and approve",
                "listen on this machine alone, and reach it through a tunnel: "
                f"ssh -L {place.port}:127.0.0.1:{place.port} HOST.",
            )
            if port:
                terminal_output.echo_err(
                    f"mcp-bridge: warning: port {port} is the same each time: while no viewer runs, other users of this"
                    " machine can listen there, and leave scripts in your browser that read the next viewer's token."
                    " Better: without --listen, or with port 0, which takes a free one."
                )
            terminal_output.echo_err(
                "Anyone who has this address can see everything that is recorded, and approve. Ctrl-C ends it."
            )
            live = Live(database)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_on_signal, signals, tasks.cancel_scope)
                pages = build(live, token, login_name(), can_rebuild=loaded.settings.sessions.rebuild)
                await serve(pages, live, listener)
                tasks.cancel_scope.cancel()

    with listener:
        run_with_database(loaded.settings, served, allow_read_only=True)
    return exit_statuses.OK


async def _end_on_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()
