"""Adds packages to a script that runs: the host sends their files, which are put where imports find them.

They go to the end of the path: nothing of Python's own, of the image or of the bridge is hidden by them. The directory
is a tmpfs from which nothing can be executed, so the host sends no package with compiled modules.
"""

import importlib
import os
import sys
import threading
from binascii import a2b_base64
from io import BytesIO

from mcp_bridge.guest.host_requests import MCPError
from mcp_bridge.wire.annotations import Any, Callable
from mcp_bridge.wire.messages import PackageInstall, PackageRead

TARGET = "/tmp/site-packages"  # noqa: S108 - the sandbox's

_turn = threading.Lock()


def _after_fork() -> None:
    # A thread of the parent's may have it, and never gives it back here.
    global _turn  # noqa: PLW0603
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

_added: list[str] = []
"""What was added so far, as `name==version`."""


def install(request: Callable[[Any], Any], requirements: tuple[str, ...]) -> list[str]:
    """Add packages; returns what was added, as `name==version`.

    Args:
        request: Asks the host.
        requirements: What is wanted.

    Raises:
        MCPError: It can't be had: the host's error, or `packages_too_large`.
    """
    # One after the other: the second agrees with what the first has added.
    with _turn:
        rows = request(PackageInstall(list(requirements), list(_added)))["packages"]
        for row in rows:
            _add(request, row)
            _added.append(f"{row['name']}=={row['version']}")
        if rows and TARGET not in sys.path:
            sys.path.append(TARGET)
        importlib.invalidate_caches()
    return [f"{row['name']}=={row['version']}" for row in rows]


def _add(request: Callable[[Any], Any], row: dict[str, Any]) -> None:
    import zipfile

    data = BytesIO()
    start: int | None = 0
    while start is not None:
        part = request(PackageRead(row["sha256"], start))
        data.write(a2b_base64(part["base64"]))
        start = part["next"]
    try:
        os.makedirs(TARGET, exist_ok=True)
        with zipfile.ZipFile(data) as archive:
            archive.extractall(TARGET)
    except OSError as exc:
        name = f"{row['name']}=={row['version']}"
        message = (
            f"there is no room for {name} in {TARGET} ({exc.strerror}); ask for it in the call: packages=[{name!r}]"
        )
        raise MCPError(message, code="packages_too_large") from None
