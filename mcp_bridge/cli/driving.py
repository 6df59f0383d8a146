"""Drives executions from the command line, and prints their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.cli import inputs, showing
from mcp_bridge.cli.opening import print_json, run_with_bridge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from mcp_bridge.cli.common import Configuration
    from mcp_bridge.host.service import Bridge


def drive(
    configuration: Configuration,
    work: Callable[[Bridge], Awaitable[dict[str, Any]]],
    named: Path | None,
    *,
    as_json: bool,
    settled: bool = False,
) -> dict[str, Any]:
    """Run work on an execution with an open bridge; print and return the execution's record.

    Args:
        configuration: The configuration.
        work: Returns the execution's record.
        named: The file given by `--config`, or None.
        as_json: Whether to print the record as JSON.
        settled: Whether the work has only settled a call, so that an interrupted execution has to be resumed.

    Raises:
        BridgeError: As `run_with_bridge` and the work.
    """

    async def driven(bridge: Bridge) -> tuple[dict[str, Any], str]:
        record = await work(bridge)
        return record, await inputs.short_id(bridge.programs.store, record["trace_id"])

    record, ident = run_with_bridge(configuration, driven)
    if as_json:
        print_json(record)
    elif settled and record["status"] == "interrupted":
        showing.echo(f"settled; it goes on with: {showing.command(f'execution resume {ident}', named)}")
    else:
        showing.outcome(record, ident, named)
    return record
