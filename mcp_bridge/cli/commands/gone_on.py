"""What a command prints of an execution that has gone on at its word: of a script's, what `mcp-bridge run` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.cli import argument_decoding, exit_statuses, showing
from mcp_bridge.cli.command_runner import print_json
from mcp_bridge.cli.commands.run import Terminal, print_run
from mcp_bridge.executions.record import ExecutionRecord

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.ledger.storage.execution_store import StoredExecution


class GoneOn(NamedTuple):
    """An execution that has gone on.

    Attributes:
        record: Its record, as `trace_record.to_record`.
        ident: Its id, as it is displayed.
        run: Of a script that has gone on, to its end or to where it waits again: the record of its run. Else None.
    """

    record: dict[str, Any]
    ident: str
    run: ExecutionRecord | None

    @property
    def exit_status(self) -> int:
        """The exit status: of a script that has ended, as of `mcp-bridge run`."""
        status = showing.status_of(self.record)
        # A script that was refused has no exit code of its own.
        return self.run.exit_code or status if self.run and status != exit_statuses.SUSPENDED else status

    def to_json(self) -> dict[str, Any]:
        """Its record; of a script with what `run --json` has besides, and all of its output."""
        if self.run is None:
            return self.record
        run = self.run.to_json()
        # Under other names in the record.
        more = {name: run[name] for name in run if name not in {"execution", "value"}}
        return more | self.record | {name: run[name] for name in ("stdout", "stderr")}

    def print(self, named: Path | None) -> None:
        """Print it: the output on standard output, everything else on standard error.

        Args:
            named: The file given by `--config`, or None.
        """
        if self.run is None:
            showing.outcome(self.record, self.ident, named)
            return
        print_run(self.run, Terminal())
        # Its output and its error are there.
        showing.outcome(self.record | {"output": None, "error": None}, self.ident, named)


async def gone_on(bridge: Bridge, record: Mapping[str, Any], before: StoredExecution) -> GoneOn:
    """What there is to print of an execution that was to go on.

    Args:
        bridge: The bridge.
        record: The execution's record, as the bridge has given it.
        before: The execution as it was before. A script that was only told something has the same record still, which
            has been printed.
    """
    store = bridge.programs.store
    stored = await argument_decoding.execution(store, before.id)
    run = None
    if (
        stored.kind == "script"
        and record["status"] not in {"running", "interrupted"}
        and stored.record != before.record
    ):
        run = ExecutionRecord.from_json({"execution": stored.id, **(stored.record or {})})
    return GoneOn(dict(record), await argument_decoding.short_id(store, stored.id), run)


def print_gone_on(ended: GoneOn, named: Path | None, *, as_json: bool) -> int:
    """Print an execution that has gone on; return the exit status."""
    if as_json:
        print_json(ended.to_json())
    else:
        ended.print(named)
    return ended.exit_status
