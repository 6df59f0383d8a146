"""Opens a browser at an address that other users of the machine must not see."""

from __future__ import annotations

import contextlib
import html
import os
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BROWSER_SECONDS = 60.0
"""How long a started browser may take to read the page that leads on."""


@contextlib.contextmanager
def open_via_redirect_file(url: str, directory: Path, *, wanted: bool) -> Iterator[bool]:
    """Open a browser through a file that only this user can read. Yields whether one is opened.

    All users of the machine can see the browser's arguments, and the address contains a token or a login's state.

    Args:
        url: The address.
        directory: The state directory, where the file is for a minute.
        wanted: Whether to open one at all.
    """
    from mcp_bridge.atomic_files import write_private

    if not wanted or not (sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        yield False
        return
    page = directory / f"ui-{os.getpid()}.html"
    try:
        write_private(
            page, f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">\n'.encode()
        )
    except OSError:
        # The directory is on read-only media. The address is printed instead.
        yield False
        return
    threading.Thread(target=webbrowser.open, args=(page.absolute().as_uri(),), daemon=True).start()
    removal = threading.Timer(BROWSER_SECONDS, page.unlink, kwargs={"missing_ok": True})
    removal.daemon = True
    removal.start()
    try:
        yield True
    finally:
        removal.cancel()
        page.unlink(missing_ok=True)
