"""The file that `log_file` names: what is logged, with times, for whoever can't see a client's log."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from logging.handlers import WatchedFileHandler
from typing import TYPE_CHECKING

from mcp_bridge import escaping
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from io import TextIOWrapper
    from pathlib import Path

MAX_BYTES = 10 << 20
"""Of the file; it is then put aside, in the place of the one that was put aside before."""

_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


class LogFile(WatchedFileHandler):
    """Appends to a file that several bridges may write to, and that any of them may put aside."""

    def _open(self) -> TextIOWrapper:
        # A pipe that nobody reads is an error, and no wait.
        descriptor = os.open(
            self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600
        )
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a disk that is full costs the record, and nothing else."""
        with suppress(OSError):
            if os.stat(self.baseFilename).st_size > MAX_BYTES:  # noqa: PTH116
                os.replace(self.baseFilename, f"{self.baseFilename}.1")  # noqa: PTH105
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say nothing: standard error has the record as well."""


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # What others have written can't begin a line of its own, which would pass for a record.
        return escaping.escape_controls(super().format(record)).replace("\n", "\n    ")


def log_to(file: Path) -> None:
    """Log to a file as well.

    Raises:
        BridgeError: `log_unwritable`.
    """
    root = logging.getLogger()
    if any(isinstance(handler, LogFile) and handler.baseFilename == str(file.absolute()) for handler in root.handlers):
        return
    try:
        handler = LogFile(file.absolute())
    except OSError as exc:
        raise BridgeError(
            "log_unwritable",
            f"log_file: {file} can't be written: {exc.strerror}.",
            hint='Name a file in a folder that is there, such as log_file = "~/mcp-bridge.log".',
        ) from None
    handler.setFormatter(_Lines(_FORMAT))
    root.addHandler(handler)
