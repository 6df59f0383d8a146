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

from mcp_bridge.bridge.names import PRINCIPAL
from mcp_bridge.cli import common, showing
from mcp_bridge.cli.approvals import who
from mcp_bridge.cli.opening import in_record
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import anyio

    from mcp_bridge.ledger.database import Database

MAX_PORT = 65535

BROWSER_SECONDS = 60.0
"""Until a browser that was started has read the page that leads to the viewer."""


def address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[::1]:PORT` or `:PORT`; the host is this machine's own by default.

    Raises:
        BridgeError: `bad_argument`.
    """
    host, colon, port = text.strip().rpartition(":")
    is_six = host.startswith("[") and host.endswith("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port[:6]) > MAX_PORT or (":" in host and not is_six):
        raise BridgeError(
            "bad_argument",
            f"--listen: {text[:100]!r} is no address.",
            hint="Write --listen HOST:PORT, such as 127.0.0.1:8808; with port 0 a free one is taken.",
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def ui(config: Path | None, asked: str, *, browser: bool) -> int:
    """Serve the viewer until somebody ends it; the exit status.

    Args:
        config: The configuration file that was named.
        asked: Where to listen.
        browser: Open one.

    Raises:
        BridgeError: `bad_argument`, `address_unusable`; as `in_record`; `nested_bridge`.
    """
    from mcp_bridge.private_files import private_directory  # noqa: PLC0415
    from mcp_bridge.server.ui.app import build, listen, serve  # noqa: PLC0415  (the SDK takes most of a second)

    host, port = address(asked)
    loaded = common.load(config)
    common.refuse_nesting(loaded)
    listener, place = listen(host, port)
    token = secrets.token_urlsafe(32)
    url = place.url(token)

    async def served(database: Database) -> None:
        import anyio  # noqa: PLC0415

        with _page_that_leads_to(url, private_directory(loaded.settings.state_dir), wanted=browser):
            showing.tell(f"The trace viewer: {url}")
            if not place.is_loopback:
                showing.say(
                    "mcp-bridge: warning: this is plain HTTP beyond this machine: whoever can read the network can take"
                    " the token, see everything that is recorded, and approve. Better: listen on this machine alone,"
                    f" and reach it through a tunnel: ssh -L {place.port}:127.0.0.1:{place.port} HOST."
                )
            showing.say("Whoever has this address can see everything that is recorded, and approve. Ctrl-C ends it.")
            sys.stdout.flush()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_on_signal, tasks.cancel_scope)
                await serve(build(database, PRINCIPAL, token, who()), listener)

    with listener:
        in_record(loaded.settings, served)
    return common.OK


async def _end_on_signal(scope: anyio.CancelScope) -> None:
    import anyio  # noqa: PLC0415

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()


@contextlib.contextmanager
def _page_that_leads_to(url: str, directory: Path, *, wanted: bool) -> Iterator[None]:
    """Open a browser, through a file that only this user can read.

    Every user of the machine can see what a browser is started with, and with the address would have the token.
    """
    from mcp_bridge.private_files import write_private  # noqa: PLC0415

    if not wanted or not (sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        yield
        return
    page = directory / f"ui-{os.getpid()}.html"
    write_private(page, f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">\n'.encode())
    threading.Thread(target=webbrowser.open, args=(page.absolute().as_uri(),), daemon=True).start()
    removal = threading.Timer(BROWSER_SECONDS, page.unlink, kwargs={"missing_ok": True})
    removal.daemon = True
    removal.start()
    try:
        yield
    finally:
        removal.cancel()
        page.unlink(missing_ok=True)
