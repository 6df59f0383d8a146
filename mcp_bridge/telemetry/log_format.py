"""The two formats of log records: text, and JSON with one object a line.

Both name the execution that a record is about, and both are safe to show and to parse whatever a server or a script has
written into a message: control characters are escaped, and no message can begin a record of its own.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

from mcp_bridge.escaping import escape_controls, escape_controls_in_json
from mcp_bridge.telemetry import tracing
from mcp_bridge.telemetry.execution_context import current

LogFormat = Literal["text", "json"]

MAX_TEXT_CHARS = 8_000
"""Most characters of a message, and of a traceback, in a JSON record; the middle of a longer one is left out."""

_TERMINAL = "mcp-bridge: %(levelname)s: %(message)s"
_FILE = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """Text for a terminal or a file.

    Args:
        dated: Whether each record has its time, process and logger.
    """

    def __init__(self, *, dated: bool) -> None:
        super().__init__(_FILE if dated else _TERMINAL)

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, without controls but newlines and tabs, and with all lines but its first indented."""
        return escape_controls(super().format(record)).replace("\n", "\n    ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The record's line, with the execution that it is about."""
        line = super().formatMessage(record)
        context = current.get()
        return line if context is None else f"{line} [execution {context.execution} of {context.principal}]"


class JsonFormatter(logging.Formatter):
    """One JSON object a line (JSON Lines), of bounded length.

    Members: `time` (RFC 3339, UTC), `level`, `logger`, `process`, `message`; where there are such, `exception` (the
    traceback), `execution` and `principal`, `trace_id` and `span_id` (W3C Trace Context, hexadecimal).
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON, without controls."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": _bounded(record.getMessage()),
        }
        if record.exc_info:
            fields["exception"] = _bounded(self.formatException(record.exc_info))
        if (context := current.get()) is not None:
            fields |= context._asdict()
        fields |= tracing.current_ids()
        return escape_controls_in_json(json.dumps(fields, ensure_ascii=False))


def formatter(form: LogFormat, *, dated: bool) -> logging.Formatter:
    """A formatter for one of the formats.

    Args:
        form: The format.
        dated: As `TextFormatter`; a JSON record always has its time.
    """
    return JsonFormatter() if form == "json" else TextFormatter(dated=dated)


def _bounded(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}[… {len(text) - 2 * half} characters …]{text[-half:]}"
