"""Runs a host tool to its end, with every wait bounded.

The image build starts container engines, package installers and the ELF loader. All of them are started here: by
argument vectors, without a shell. A tool that is cancelled or late is ended together with its children.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import Process

TERMINATE_SECONDS = 5.0
"""How long a tool may take to clean up after SIGTERM before it is killed."""

_TAIL_LINES = 8
_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's exit status and output."""

    returncode: int
    stdout: str
    stderr: str

    def tail(self) -> str:
        """The last lines of stderr, or of stdout if stderr is empty."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]

    @property
    def disk_full(self) -> bool:
        """Whether the tool failed because the disk is full."""
        return self.returncode != 0 and "no space left on device" in (self.stderr + self.stdout).lower()


def disk_full(message: str) -> BridgeError:
    """The error for ENOSPC."""
    return BridgeError(
        "disk_full",
        f"The disk is full: {message}",
        hint="Free some space, or move the state directory or the engine's storage to a larger disk.",
    )


async def run_tool(
    argv: Sequence[str],
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> ToolResult:
    """Run `argv` and collect its output.

    Args:
        argv: The command; never interpreted by a shell.
        seconds: The bound on the whole run.
        environment: Variables in addition to this process's environment.
        directory: The working directory; by default this process's, which may be untrusted.

    Raises:
        FileNotFoundError: There is no such executable. PermissionError: it may not be run.
        TimeoutError: It was still running after `seconds`, and was ended.
    """
    # Its own process group: an installer's workers are ended with it, and a terminal's Ctrl-C reaches only this
    # process, which then ends the tool in an orderly way.
    # Shielded: a cancellation while the process is being opened would end the tool alone, without its children.
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            argv,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment} if environment else None,
            cwd=directory,
            start_new_session=True,
        )
    out = bytearray()
    err = bytearray()
    try:
        with anyio.fail_after(seconds):
            async with anyio.create_task_group() as group:
                group.start_soon(_collect, process.stdout, out)
                group.start_soon(_collect, process.stderr, err)
                await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    return ToolResult(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


async def _collect(stream: AsyncIterable[bytes] | None, into: bytearray) -> None:
    if stream is not None:
        async for chunk in stream:
            into += chunk


async def _end(process: Process) -> None:
    if process.returncode is None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            # The second signal reaches children that survived the first, whether or not the tool itself has ended.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with anyio.move_on_after(TERMINATE_SECONDS):
                await process.wait()
    await process.aclose()
