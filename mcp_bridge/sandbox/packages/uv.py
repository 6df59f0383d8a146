"""Runs uv, which finds and fetches packages: wheels alone, bounded in time and in what it may write.

No code of a package runs: nothing is built (`--only-binary :all:`), and uv doesn't follow an address that
a package's metadata gives for a dependency. It runs in a directory of ours: in the bridge's own, which may be a
stranger's, it would take its index from a `uv.toml` or a `pyproject.toml`.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.host_tools import disk_full, run_tool
from mcp_bridge.sandbox.packages.index_settings import index_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.sandbox.image.host_tools import ToolResult

logger = logging.getLogger(__name__)

PROBE_SECONDS = 20.0
"""Bound on `uv --version`."""

WATCH_SECONDS = 0.25
"""How often what uv has written is counted."""

MAX_REASON_CHARS = 1500
"""Longest reason of uv's that an error has."""

_LIMITED = "import os,resource,sys; n=int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_FSIZE,(n,n)); os.execv(sys.argv[2],sys.argv[2:])"  # noqa: E501
"""Starts a program that can't write a file longer than so many bytes."""

_ADDRESS = re.compile(r"(?:https?|file|git|ssh)[+a-z]*://[^\s'\"`)]+")

_UNREACHABLE = (
    "error sending request",
    "could not connect",
    "dns error",
    "connection refused",
    "network is unreachable",
    "operation timed out",
    "timed out",
    "network connectivity is disabled",
    "connect error",
    "invalid peer certificate",
    "500 internal server error",
    "502 bad gateway",
    "503 service unavailable",
    "504 gateway",
    "401 unauthorized",
    "403 forbidden",
    "received some unexpected",
    "failed to fetch",
    "error decoding response body",
    "connection closed",
    "connection reset",
)

_PATH = re.compile(r"(?<![\w.)])/[^\s'\"`]+")

_BAD = ("failed to extract", "failed to read metadata", "invalid wheel", "failed to unzip", "is invalid", "corrupt")

_CHANGED = ("hash mismatch", "no hashes", "in `--require-hashes` mode")


class Uv:
    """uv on this host.

    Args:
        command: Its executable, with an absolute path, and arguments before its own.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)

    @classmethod
    async def find(cls, work: Path) -> Uv:
        """Find a working uv.

        Args:
            work: A directory of ours, in which it is tried.

        Raises:
            BridgeError: `packages_unavailable`.
        """
        candidates: list[tuple[str, ...]] = []
        if found := shutil.which("uv"):
            candidates.append((found,))
        if importlib.util.find_spec("uv"):
            candidates.append((sys.executable, "-m", "uv"))
        for command in candidates:
            try:
                tried = await run_tool([*command, "--version"], seconds=PROBE_SECONDS, directory=work)
            except (OSError, TimeoutError):
                continue
            # A version manager may have a shim on PATH for tools that the selected version lacks.
            if tried.returncode == 0:
                return cls(command)
        raise BridgeError(
            "packages_unavailable",
            "Packages can't be installed here: uv, which finds and fetches them, isn't on this machine.",
            hint="The operator installs it where mcp-bridge is (pip install uv), and then it works immediately.",
        )

    async def run(self, *arguments: str, work: Path, seconds: float, max_bytes: int) -> ToolResult:
        """Run uv.

        Args:
            arguments: Its arguments.
            work: Its working directory, in which it may write.
            seconds: The bound on the run.
            max_bytes: The bound on what is in `work` afterwards; uv is ended when it is over.

        Raises:
            BridgeError: `packages_too_large`, `packages_timeout`, `disk_full`.
        """
        # Its own configuration ends the search for one in the directories above.
        await anyio.to_thread.run_sync((work / "uv.toml").touch)
        argv = [sys.executable, "-I", "-S", "-c", _LIMITED, str(max_bytes), *self._command, *arguments]
        argv += ["--no-progress", "--color", "never", "--no-python-downloads"]
        environment = {**index_environment(), "TMPDIR": str(work)}
        result: ToolResult | None = None
        is_over = False

        async def watch(scope: anyio.CancelScope) -> None:
            nonlocal is_over
            while True:
                await anyio.sleep(WATCH_SECONDS)
                if await anyio.to_thread.run_sync(size_of, work) > max_bytes:
                    is_over = True
                    scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope)
            with suppress(TimeoutError):
                result = await run_tool(argv, seconds=seconds, environment=environment, directory=work)
            tasks.cancel_scope.cancel()
        if result is not None and result.returncode != 0:
            logger.info("uv %s failed: %s", arguments[1], result.tail())
        if is_over or (result is not None and _is_too_large(result)):
            raise too_large(max_bytes)
        if result is None:
            raise BridgeError(
                "packages_timeout",
                f"The packages were not there within {seconds:.0f} s.",
                hint="Try again: the operator's index may be slow. The operator can raise timeout in [install].",
            )
        if result.disk_full:
            raise disk_full("while packages were fetched.")
        return result


def failure(result: ToolResult) -> BridgeError:
    """Why uv could not find or fetch packages: without addresses, which may hold the operator's credentials."""
    said = result.stderr + result.stdout
    lower = said.lower()
    if any(words in lower for words in _CHANGED):
        return BridgeError(
            "package_changed",
            f"The index has other files now than those that were recorded.\n{reason(said)}",
            hint="A package whose files change is not to be trusted: tell the operator.",
        )
    if any(words in lower for words in _BAD):
        return BridgeError(
            "bad_wheel",
            f"A wheel of the index can't be unpacked.\n{reason(said)}",
            hint="Ask for another version or another package, and tell the operator.",
        )
    if any(words in lower for words in _UNREACHABLE):
        return BridgeError(
            "index_unreachable",
            "The operator's package index could not be reached, or gave no usable answer.",
            hint='Try again later. The operator sees why in the bridge\'s log (log_level = "info").',
        )
    return BridgeError(
        "package_unresolved",
        f"No set of packages was found.\n{reason(said)}",
        hint="Check the name and the versions. Only wheels for this Python and platform are used: nothing is built.",
    )


def reason(said: str) -> str:
    """The error that uv has reported, without addresses and paths."""
    said = said[max(said.find("error:"), 0) :]
    text = _PATH.sub("(path)", _ADDRESS.sub("(address)", said)).strip()
    return text if len(text) <= MAX_REASON_CHARS else text[:MAX_REASON_CHARS] + "…"


def too_large(limit: int) -> BridgeError:
    """The error for packages that are over a limit of bytes."""
    return BridgeError(
        "packages_too_large",
        f"The packages are too large: over {limit / 1e6:.0f} MB.",
        hint="Ask for less. The operator can raise max_size in [install].",
    )


def _is_too_large(result: ToolResult) -> bool:
    # SIGXFSZ ends it, or it reports EFBIG.
    return result.returncode == -25 or "file too large" in (result.stderr + result.stdout).lower()  # noqa: PLR2004


def size_of(directory: Path) -> int:
    """The bytes of the files below a directory that may change meanwhile."""
    total = 0
    pending = [str(directory)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += status.st_size
        except OSError:
            continue
    return total
