"""`mcp-bridge event send`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mcp_bridge.cli import argument_decoding, configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import finish, print_json, refuse_without_ledger, run_with_bridge
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcp_bridge.cli.commands.resumed import ResumedExecution
    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.execution_store import ProgramStore

NOT_SENT = "not sent"
"""In place of an execution's status: it didn't get the event."""

events = typer.Typer(help="Send events to scripts and programs that wait for them.", no_args_is_help=True)


@events.callback()
def _group() -> None:
    """Send events to scripts and programs that wait for them."""


@events.command(
    epilog="Examples:\n\n"
    "mcp-bridge event send paid --payload '{\"amount\": 40}'\n\n"
    "mcp-bridge event send paid --execution 3f9a1c --resume"
)
def send(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As the script or program names it.")],
    payload: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="What the event brings; null by default.")
    ] = None,
    execution: Annotated[
        str | None, typer.Option(metavar="ID", help="Only to that execution; stored until its script waits for it.")
    ] = None,
    principal: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose executions; by default those of this machine's user.")
    ] = None,
    source: Annotated[
        Literal["operator", "webhook", "timer"], typer.Option(help="Where it is from; recorded with it.")
    ] = "operator",
    and_resume: Annotated[
        bool, typer.Option("--resume", help="Resume the scripts that it wakes, in this process.")
    ] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Send an event to all executions that wait for it, or to one. A program resumes now, in this process."""
    named = config or ctx.obj

    def work() -> int:
        from mcp_bridge.executions.waits.taken_events import check_name

        check_name(name)
        value = None if payload is None else argument_decoding.json_value(payload, "--payload")
        unprintable: list[OSError] = []
        recipients = partial(_recipients, execution, principal or LOCAL_PRINCIPAL.name, name)

        async def sent(bridge: Bridge) -> list[ResumedExecution]:
            from mcp_bridge.cli.commands.resumed import ResumedExecution, resumed_execution
            from mcp_bridge.cli.terminal_prompts import terminal

            store = bridge.programs.store
            records = []
            for ident in await recipients(store, bridge.lifecycle.recorder):
                record: Mapping[str, Any] | None = None
                try:
                    stored = await argument_decoding.execution(store, ident)
                    record = await bridge.for_owner(stored).send_event(
                        ident, name, value, source.upper(), and_resume=and_resume, asker=terminal()
                    )
                    one = await resumed_execution(bridge, record, stored)
                except BridgeError as exc:
                    if execution is not None:
                        raise
                    # The others get it all the same. It may have been sent, and what came of it can't be read.
                    failed = {"trace_id": ident, "status": NOT_SENT, "error": exc.message, "code": exc.code}
                    one = ResumedExecution(failed if record is None else dict(record), ident)
                records.append(one)
                if not as_json and not unprintable:
                    # Before the next goes on, which may take long, or ask something.
                    unprintable.extend(_print_sent(one, named))
            return records

        async def looked(database: Database) -> None:
            from mcp_bridge.ledger.log.recorder import SqliteRecorder
            from mcp_bridge.ledger.storage.execution_store import ProgramStore

            await recipients(ProgramStore(database), SqliteRecorder(database))

        configuration = configuration_loading.configure(named)
        refuse_without_ledger(configuration.settings, looked)
        records = run_with_bridge(configuration, sent)
        if unprintable:
            raise unprintable[0]
        if as_json:
            print_json({"executions": [one.to_json() for one in records]})
        if any(one.record["status"] == NOT_SENT for one in records):
            return exit_statuses.FAILED
        if not and_resume:
            # The command has done all that it was to do.
            return exit_statuses.OK
        return next((status for one in records if not one.made_no_progress and (status := one.exit_status)), 0)

    finish(work, as_json=as_json)


async def _recipients(
    execution: str | None, principal: str, name: str, store: ProgramStore, recorder: Recorder
) -> list[str]:
    """The ids of the execution that is named, or of a principal's that wait for an event.

    Raises:
        BridgeError: As `argument_decoding.execution`; `nobody_waits`.
    """
    from mcp_bridge.executions.waits.event_sending import executions_awaiting

    if execution is not None:
        return [(await argument_decoding.execution(store, execution)).id]
    return [row.id for row in await executions_awaiting(store, recorder, principal, name)]


def _print_sent(one: ResumedExecution, named: Path | None) -> list[OSError]:
    """Print what came of one; why it can't be printed, if so: the others get the event all the same."""
    try:
        _print_one(one, named)
    except OSError as exc:
        return [exc]
    return []


def _print_one(one: ResumedExecution, named: Path | None) -> None:
    from mcp_bridge.executions.status import UNFINISHED

    if one.record["status"] == NOT_SENT:
        terminal_output.echo(f"not sent to {one.ident}: {one.record['code']}: {one.record['error']}")
        return
    terminal_output.echo(f"sent to {one.ident}, which is {one.record['status']}")
    if one.run is not None or one.record["status"] not in UNFINISHED:
        one.print(named)
