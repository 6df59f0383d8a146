"""The log file of the setting `log_file`, with timestamps, for users who can't see their client's log."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from logging.handlers import WatchedFileHandler
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.telemetry.log_format import formatter

if TYPE_CHECKING:
    from io import TextIOWrapper
    from pathlib import Path

    from mcp_bridge.telemetry.log_format import LogFormat

MAX_BYTES = 10 << 20
"""Size at which the file is rotated; one rotated file is kept."""


class LogFile(WatchedFileHandler):
    """Appends to a file that several bridges may write to and rotate."""

    def _open(self) -> TextIOWrapper:
        # O_NONBLOCK: opening a pipe without a reader fails instead of blocking.
        descriptor = os.open(
            self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600
        )
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; if the disk is full, only the record is lost."""
        with suppress(OSError):
            if os.stat(self.baseFilename).st_size > MAX_BYTES:  # noqa: PTH116
                os.replace(self.baseFilename, f"{self.baseFilename}.1")  # noqa: PTH105
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore errors: the record is on standard error as well."""


def log_to(file: Path, form: LogFormat = "text") -> None:
    """Log to a file in addition.

    Args:
        file: The file.
        form: The format of its records.

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
    handler.setFormatter(formatter(form, dated=True))
    root.addHandler(handler)
