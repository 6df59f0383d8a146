"""`mcp-bridge ui`: the trace viewer."""

from __future__ import annotations

import contextlib
import html
import os
import secrets
import signal
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING

from mcp_bridge.cli import common, showing
from mcp_bridge.cli.listening import address, listening
from mcp_bridge.cli.opening import run_with_database
from mcp_bridge.cli.people import login_name
from mcp_bridge.governance.tool_names import PRINCIPAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import anyio

    from mcp_bridge.ledger.storage.database import Database

BROWSER_SECONDS = 60.0
"""How long a started browser may take to read the page that redirects to the viewer."""


def ui(config: Path | None, asked: str, *, browser: bool) -> int:
    """Serve the viewer until it is interrupted; return the exit status.

    Args:
        config: The file given by `--config`, or None.
        asked: The address to listen at.
        browser: Whether to open a browser.

    Raises:
        BridgeError: `bad_argument`, `cannot_listen`; as `run_with_database`; `nested_bridge`.
    """
    from mcp_bridge.private_files import state_directory
    from mcp_bridge.server.ui.app import Address, build, serve
    from mcp_bridge.server.ui.live import Live

    host, port = address(asked)
    loaded = common.load(config)
    common.refuse_nesting(loaded)
    listener = listening(host, port)
    place = Address(host, listener.getsockname()[1])
    token = secrets.token_urlsafe(32)
    url = place.url(token)

    async def served(database: Database) -> None:
        import anyio

        leading = _page_that_leads_to(url, state_directory(loaded.settings.state_dir), wanted=browser)
        with leading, anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            showing.echo(f"The trace viewer: {url}")
            sys.stdout.flush()
            if not place.is_loopback:
                showing.echo_err(
                    "mcp-bridge: warning: this is plain HTTP beyond this machine: whoever can read the network can take"
                    " the token, see everything that is recorded, and approve. Better: listen on this machine alone,"
                    f" and reach it through a tunnel: ssh -L {place.port}:127.0.0.1:{place.port} HOST."
                )
            if port:
                showing.echo_err(
                    f"mcp-bridge: warning: port {port} is the same each time: while no viewer runs, other users of this"
                    " machine can listen there, and leave scripts in your browser that read the next viewer's token."
                    " Better: without --listen, or with port 0, which takes a free one."
                )
            showing.echo_err(
                "Whoever has this address can see everything that is recorded, and approve. Ctrl-C ends it."
            )
            live = Live(database)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_on_signal, signals, tasks.cancel_scope)
                await serve(build(live, PRINCIPAL, token, login_name()), live, listener)
                tasks.cancel_scope.cancel()

    with listener:
        run_with_database(loaded.settings, served, allow_read_only=True)
    return common.OK


async def _end_on_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()


@contextlib.contextmanager
def _page_that_leads_to(url: str, directory: Path, *, wanted: bool) -> Iterator[None]:
    """Open a browser through a file that only this user can read.

    All users of the machine can see the browser's arguments, and the viewer's URL contains the token.
    """
    from mcp_bridge.atomic_files import write_private

    if not wanted or not (sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        yield
        return
    page = directory / f"ui-{os.getpid()}.html"
    try:
        write_private(
            page, f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">\n'.encode()
        )
    except OSError:
        # The directory is on read-only media. The address is printed instead.
        yield
        return
    threading.Thread(target=webbrowser.open, args=(page.absolute().as_uri(),), daemon=True).start()
    removal = threading.Timer(BROWSER_SECONDS, page.unlink, kwargs={"missing_ok": True})
    removal.daemon = True
    removal.start()
    try:
        yield
    finally:
        removal.cancel()
        page.unlink(missing_ok=True)
