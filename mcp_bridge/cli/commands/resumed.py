"""What a command prints of an execution that it has resumed: for a script's, what `mcp-bridge run` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.cli import argument_decoding, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import print_json
from mcp_bridge.cli.commands.run import Terminal, print_run
from mcp_bridge.executions.record import ExecutionRecord

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.ledger.storage.execution_store import StoredExecution


class ResumedExecution(NamedTuple):
    """An execution that has gone on.

    Attributes:
        record: Its record, as `trace_record.to_record`.
        ident: Its id, as it is displayed.
        run: Of a script that has gone on, to its end or to where it waits again: the record of its run. Else None.
        made_no_progress: Whether it is a script that was only told something, and can't go on yet.
    """

    record: dict[str, Any]
    ident: str
    run: ExecutionRecord | None = None
    made_no_progress: bool = False

    @property
    def exit_status(self) -> int:
        """The exit status: of a script that has gone on, as of `mcp-bridge run`."""
        return terminal_output.status_of(self.record) if self.run is None else exit_statuses.of_run(self.run)

    def to_json(self) -> dict[str, Any]:
        """Its record; of a script that has gone on, `run` is what `mcp-bridge run --json` prints."""
        if self.run is None:
            return self.record
        return self.record | {"run": self.run.to_json() | {"exit_code": self.exit_status}}

    def print(self, named: Path | None) -> None:
        """Print it: the output on standard output, everything else on standard error.

        Args:
            named: The file given by `--config`, or None.
        """
        if self.run is None:
            terminal_output.outcome(self.record, self.ident, named)
            return
        print_run(self.run, Terminal(), is_others=True)
        # Its output and its error are there.
        terminal_output.outcome(self.record | {"output": None, "error": None}, self.ident, named)


async def resumed_execution(bridge: Bridge, record: Mapping[str, Any], before: StoredExecution) -> ResumedExecution:
    """What there is to print of an execution that was to go on.

    Args:
        bridge: The bridge.
        record: The execution's record, as the bridge has given it.
        before: The execution as it was before. A script that was only told something has the same record still, which
            has been printed.
    """
    store = bridge.programs.store
    stored = await argument_decoding.execution(store, before.id)
    run, made_no_progress = None, False
    if stored.kind == "script" and record["status"] not in {"running", "interrupted"}:
        made_no_progress = stored.record == before.record
        if stored.record is not None and not made_no_progress:
            run = ExecutionRecord.from_json({"execution": stored.id, **stored.record})
    return ResumedExecution(dict(record), await argument_decoding.short_id(store, stored.id), run, made_no_progress)


def print_resumed(ended: ResumedExecution, named: Path | None, *, as_json: bool) -> int:
    """Print an execution that has gone on; return the exit status."""
    if as_json:
        print_json(ended.to_json())
    else:
        ended.print(named)
    return ended.exit_status
