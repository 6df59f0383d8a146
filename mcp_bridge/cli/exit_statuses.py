"""The exit statuses of commands, and which one an error has."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import RunInterruptedError
from mcp_bridge.escaping import escape_controls

if TYPE_CHECKING:
    from mcp_bridge.errors import BridgeError
    from mcp_bridge.executions.record import ExecutionRecord

OK, FAILED, USAGE, NO_SANDBOX, REFUSED, SUSPENDED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


def error_record(error: BridgeError, status: int) -> dict[str, Any]:
    """What `--json` prints for an error.

    Args:
        error: The error.
        status: The exit status.
    """
    begun = {"status": "refused"}
    if isinstance(error, RunInterruptedError):
        begun = {"execution": error.execution, "status": "interrupted"}
    return {**begun, "exit_code": status, "error": error.record()}


def exit_code(error: BridgeError, other: int = NO_SANDBOX) -> int:
    """The exit status of an error; `other` if the command line isn't at fault, and nothing was run."""
    if isinstance(error, RunInterruptedError):
        return FAILED
    # Only a command that fails loads the descriptions.
    from mcp_bridge.error_codes import DESCRIPTIONS

    described = DESCRIPTIONS.get(error.code)
    return (described and described.exit_status) or other


def of_run(record: ExecutionRecord) -> int:
    """The exit status of a command that has run a script: the script's, if one was run."""
    if record.error is not None and record.error["code"] == "sandbox_start_timeout":
        return NO_SANDBOX
    return record.exit_code


def print_error(error: BridgeError, other: int = NO_SANDBOX) -> int:
    """Print an error on standard error, if that can be written; return its exit status."""
    with contextlib.suppress(OSError):
        print(escape_controls(f"mcp-bridge: {error.code}: {error}"), file=sys.stderr)  # noqa: T201
    return exit_code(error, other)
