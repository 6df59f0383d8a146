"""`mcp-bridge replay`: compares an execution with its record, without effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.cli import argument_decoding, configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import print_json, read_database, run_with_bridge
from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_name

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.executions.replay_result import Difference, Replayed
    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.execution_store import StoredExecution


def replay(named: Path | None, execution: str, program: str | None, *, as_json: bool) -> int:
    """Run an execution again and compare it with its record; return the exit status.

    Args:
        named: The file given by `--config`, or None.
        execution: The prefix of the execution's id.
        program: Another version of its program, a file or name, or None.
        as_json: Whether to print JSON.

    Raises:
        BridgeError: As `argument_decoding.execution`, `program_sources.one` and `replaying.replayed`.
    """
    from mcp_bridge.cli import program_sources
    from mcp_bridge.executions.replay import replayed
    from mcp_bridge.ledger.log.recorder import SqliteRecorder
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

    loaded = configuration_loading.load(named)
    other = None if program is None else program_sources.one(loaded, program)[0]

    async def found(database: Database) -> Replayed | StoredExecution:
        store = ProgramStore(database)
        row = await argument_decoding.execution(store, execution)
        return row if row.kind == "script" else await replayed(store, SqliteRecorder(database), row, other)

    result = read_database(loaded.settings, found)
    if isinstance(result, StoredExecution):
        result = _script(named, result, program)
    if as_json:
        print_json(result.to_json())
    else:
        _print_result(result, program)
    return exit_statuses.OK if result.agrees else exit_statuses.FAILED


def _script(named: Path | None, stored: StoredExecution, program: str | None) -> Replayed:
    """Replay a script, which needs a sandbox."""
    if program is not None:
        raise BridgeError("bad_argument", "--program is for executions of programs.")

    async def work(bridge: Bridge) -> Replayed:
        return await bridge.for_owner(stored, resumes=False).replay_execution(stored)

    return run_with_bridge(configuration_loading.configure(named), work)


def _print_result(result: Replayed, program: str | None) -> None:
    done = f"{result.events} events, {result.effects} effects, {result.status}"
    if result.difference is None:
        same = "it agrees with its record" if program is None else f"{program} would have done the same"
        terminal_output.echo(f"{result.execution}: {same}: {done}")
        terminal_output.echo(f"transitions {result.transitions}")
        return
    whose = "it differs from its record" if program is None else f"{program} would not have done the same"
    terminal_output.echo(f"{result.execution}: {whose}, after {done}")
    for line in _difference(result.difference):
        terminal_output.echo(line)


def _difference(difference: Difference) -> list[str]:
    def value(difference_value: Any) -> str:
        return (
            "nothing"
            if difference_value is None
            else terminal_output.hung(terminal_output.whole_value(difference_value))
        )

    step = "" if difference.step is None else f", step {escape_name(difference.step)}"
    return [
        f"at entry {difference.sequence}{step}: {difference.what}",
        f"expected: {value(difference.expected)}",
        f"found: {value(difference.found)}",
    ]
