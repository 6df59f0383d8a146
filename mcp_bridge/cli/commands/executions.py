"""`mcp-bridge execution list|show|resume|settle|cancel`."""

from __future__ import annotations

import enum
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from mcp_bridge.cli import argument_decoding, configuration_loading, exit_statuses, terminal_output, terminal_prompts
from mcp_bridge.cli.command_runner import (
    drive,
    find_execution,
    finish,
    print_json,
    read_database,
    refuse_without_ledger,
    run_with_bridge,
)
from mcp_bridge.cli.options import Config, Json, Principal  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_name
from mcp_bridge.executions.decision_comments import check_text
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.cli.commands.resumed import ResumedExecution
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.record import WaitingRow
    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.kernel.events import Resume
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.execution_store import StoredExecution
    from mcp_bridge.views.timeline import TimelineRow

executions = typer.Typer(
    help="Look at executions of programs and scripts, and resume those that wait.",
    no_args_is_help=True,
    epilog="An execution is named by its id, or by as much of its beginning as no other one has.",
)


class Status(enum.StrEnum):
    """The status of an execution."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    INTERRUPTED = "interrupted"
    SUCCESS = "success"
    FAILED = "failed"
    BUDGET_EXCEEDED = "budget_exceeded"
    STALLED = "stalled"
    CANCELLED = "cancelled"
    ERROR = "error"
    EXIT = "exit"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    CHANNEL_CLOSED = "channel_closed"
    SANDBOX_LOST = "sandbox_lost"
    PROTOCOL_ERROR = "protocol_error"
    OUTPUT_LIMIT = "output_limit"
    CALL_LIMIT = "call_limit"
    REFUSED = "refused"
    ERASED = "erased"


Id: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The execution's id, or any unique prefix of it.")]

_KEPT_AS = {"interrupted": ("interrupted", "running")}
"""Stored statuses of a displayed status: an execution whose process has died is still stored as running."""


@executions.command("list", epilog="Example:\n\nmcp-bridge execution list --status suspended")
def list_(
    ctx: typer.Context,
    status: Annotated[list[Status] | None, typer.Option(help="Only those; repeatable.")] = None,
    principal: Principal = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the latest.")] = 50,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List executions, the latest first."""

    def work() -> int:
        from mcp_bridge.executions.approvals import with_decisions
        from mcp_bridge.executions.status import effective_status
        from mcp_bridge.executions.trace_record import to_record
        from mcp_bridge.ledger.storage.execution_store import ProgramStore

        statuses = set(status or Status)

        async def listed(database: Database) -> list[tuple[StoredExecution, str, list[WaitingRow]]]:
            store = ProgramStore(database)
            stored_statuses = sorted({name for one in statuses for name in _KEPT_AS.get(one, (one,))})
            most = min(limit, sys.maxsize)
            # Of those stored as running, some are interrupted: more are read while that leaves too few.
            while True:
                rows = await store.executions(principal, most, stored_statuses)
                executions_found = [row for row in rows if effective_status(row) in statuses][:limit]
                if len(executions_found) == limit or len(rows) < most:
                    break
                most = min(4 * most, sys.maxsize)
            return [
                (
                    row,
                    await argument_decoding.short_id(store, row.id),
                    await with_decisions(store, row.id, to_record(row)["waiting"]),
                )
                for row in executions_found
            ]

        rows = read_database(configuration_loading.load(config or ctx.obj).settings, listed)
        if as_json:
            facts = [
                {
                    "id": row.id,
                    "principal": row.principal,
                    "program": to_record(row)["program"],
                    **({"dry_run": True} if "dry_run" in to_record(row) else {}),
                    "status": effective_status(row),
                    "started": row.started,
                    "due": row.due,
                    "waiting": waiting,
                }
                for row, _, waiting in rows
            ]
            print_json({"executions": facts})
        elif not rows:
            terminal_output.echo("No execution." if status is None else "No execution of that status.")
        else:
            # One person's bridge has no others to tell them from.
            whose = len({row.principal for row, _, _ in rows} - {LOCAL_PRINCIPAL.name}) > 0
            terminal_output.table(
                ("id", *(("principal",) if whose else ()), "program", "status", "started", "waits for"),
                [
                    (
                        ident,
                        *((row.principal,) if whose else ()),
                        _called(to_record(row)),
                        effective_status(row),
                        terminal_output.moment(row.started),
                        _waits(waiting),
                    )
                    for row, ident, waiting in rows
                ],
            )
        return exit_statuses.OK

    finish(work, as_json=as_json)


def _called(record: dict[str, Any]) -> str:
    return f"{record['program']}, run dry" if "dry_run" in record else str(record["program"])


def _waits(waiting: Sequence[WaitingRow]) -> str:
    return ", ".join(f"{row['step']} ({_waits_for(row)})" for row in waiting)


def _waits_for(row: WaitingRow) -> str:
    if "decided" in row:
        return f"{row['decided']}, to be resumed"
    if row["kind"] == "wait":
        return terminal_output.moment(row.get("due"))
    return (
        "approval, its time is over" if row["kind"] == "approval" and terminal_output.is_late(row) else str(row["kind"])
    )


@executions.command(epilog="Example:\n\nmcp-bridge execution show 3f9a1c")
def show(
    ctx: typer.Context,
    execution: Id,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show an execution: its steps, what happened when, how each ended, and what it waits for."""
    named = config or ctx.obj

    def work() -> int:
        from mcp_bridge.executions.approvals import with_decisions
        from mcp_bridge.executions.scripts.call_history import CallHistory
        from mcp_bridge.executions.scripts.record import calls_so_far
        from mcp_bridge.executions.sessions.cell_placement import reason_never_resumed
        from mcp_bridge.executions.status import RESUMABLE, effective_status
        from mcp_bridge.executions.trace_record import to_record
        from mcp_bridge.ledger.log.recorder import SqliteRecorder
        from mcp_bridge.ledger.log.session_store import SessionStore
        from mcp_bridge.ledger.storage.execution_store import ProgramStore
        from mcp_bridge.policy.secrets.value_references import fill_in
        from mcp_bridge.views.timeline import as_sent, timeline, totals

        async def found(database: Database) -> tuple[StoredExecution, str, list[Recorded], dict[str, Any]]:
            store = ProgramStore(database)
            row = await argument_decoding.execution(store, execution)
            values = await store.values(row.id)
            recorded = await SqliteRecorder(database).read(row.id)
            entries = as_sent(recorded, values)
            record = to_record(row) | {"status": effective_status(row)}
            record["waiting"] = await with_decisions(store, row.id, record["waiting"])
            if row.kind == "script" and record["status"] in RESUMABLE:
                history = CallHistory(recorded)
                if (why := await reason_never_resumed(SessionStore(database), row, history)) is not None:
                    record["left_behind"] = f"{why}. {calls_so_far(history)}".rstrip()
            # A question is displayed with the arguments that the tool receives, or has received.
            record |= {name: fill_in(record[name], values) for name in ("waiting", "unresolved") if record.get(name)}
            return row, await argument_decoding.short_id(store, row.id), entries, record

        row, ident, entries, record = read_database(configuration_loading.load(named).settings, found)
        rows = timeline(entries)
        if as_json:
            facts = {"started": row.started, "key": row.key, "program_hash": row.program, "origin": row.origin}
            facts |= {"key_of": row.starter if row.key_space else None}
            happened = {"timeline": [asdict(one) for one in rows], "totals": asdict(totals(rows))}
            print_json(record | facts | happened)
        else:
            _print_execution(row, record, ident, named)
            _print_timeline(rows)
        return exit_statuses.OK

    finish(work, as_json=as_json)


def _print_execution(row: StoredExecution, record: dict[str, Any], ident: str, config: Path | None) -> None:
    terminal_output.echo(f"{row.id}: {escape_name(record['program'])} ({row.origin}'s), {record['status']}")
    whose = f" (the {row.starter}'s)" if row.key_space else ""
    keyed = f", key {row.key!r}{whose}" if row.key else ""
    terminal_output.echo(f"started {terminal_output.moment(row.started)}{keyed}")
    if record["steps"]:
        cells = []
        for step in record["steps"]:
            value = step.get("error") if step.get("error") is not None else step.get("output")
            value_text = "" if value is None else terminal_output.short_value(value)
            cells.append((step["id"], step["status"], str(step.get("retries") or ""), value_text))
        terminal_output.table(("step", "status", "retries", "output or error"), cells)
    for name in ("stdout", "stderr", "traceback"):
        if text := record.get(name):
            terminal_output.echo(f"{name}:")
            terminal_output.echo(text.removesuffix("\n"))
    if record["output"] is not None:
        terminal_output.echo(f"output: {terminal_output.whole_value(record['output'])}")
    if record["error"] is not None:
        terminal_output.echo(f"{record['code'] or 'error'}: {terminal_output.hung(record['error'])}")
    for line in terminal_output.folded(terminal_output.next_steps(record["waiting"], ident, config), sys.stdout):
        terminal_output.echo(line)
    for line in terminal_output.unresolved(record):
        terminal_output.echo(line)
    if "left_behind" in record:
        ends = terminal_output.command(f"execution cancel {ident}", config)
        terminal_output.echo(f"{record['status']}: it can't be resumed: {record['left_behind']}")
        terminal_output.echo(f"{ends} cancels it")
    elif record["status"] == "interrupted" and row.kind == "script" and row.key is None:
        ends = terminal_output.command(f"execution cancel {ident}", config)
        terminal_output.echo(f"interrupted: it has no idempotency key, so it can't be resumed; {ends} cancels it")
    elif record["status"] == "interrupted":
        resume = terminal_output.command(f"execution resume {ident}", config)
        terminal_output.echo(f"interrupted: resume it with {resume}")


def _print_timeline(rows: list[TimelineRow]) -> None:
    """Print the timeline, one line an event."""
    from mcp_bridge.views.timeline import totals

    if not rows:
        return
    cells = []
    for row in rows:
        value = row.error["message"] if row.error else row.value if row.value is not None else row.given
        text = "" if value is None else terminal_output.short_value(value)
        cells.append(
            (
                ",".join(str(sequence) for sequence in row.sequences),
                f"+{row.time - rows[0].time:.3f}",
                "" if row.seconds is None else f"{row.seconds:.3f}",
                row.kind,
                " ".join(word for word in (row.step, row.what) if word),
                row.status,
                text,
            )
        )
    terminal_output.echo("")
    terminal_output.table(("entry", "at s", "took s", "what", "which", "how", "gave, or was given"), cells)
    sums = totals(rows)
    counted = [
        (sums.calls, "calls"),
        (sums.models, "model steps"),
        (sums.failed, "failed"),
        (sums.denials, "denied"),
        (sums.violations, "violations"),
        (sums.tokens, "tokens"),
    ]
    words = [f"{number} {word}" for number, word in counted if number]
    cost = [f"{sums.cost_usd:.4f} USD"] if sums.cost_usd else []
    terminal_output.echo(", ".join([*words, *cost, f"{sums.seconds:.3f} s"]))


@executions.command(
    epilog="Examples:\n\n"
    "mcp-bridge execution resume 3f9a1c\n\n"
    "mcp-bridge execution resume 3f9a1c --payload '{\"paid\": true}'"
)
def resume(
    ctx: typer.Context,
    execution: Id,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|@FILE",
            help="The result of the pending tool or event. Without it, resume after a decision or a time-out.",
        ),
    ] = None,
    source: Annotated[
        Literal["operator", "webhook", "timer"], typer.Option(help="Where it is from; $__webhook_source__ in steps.")
    ] = "operator",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Resume an execution in this process: with a payload, after a decision, or because it is time."""
    named = config or ctx.obj

    def work() -> int:
        from mcp_bridge.kernel.events import Resume

        event = None if payload is None else Resume(argument_decoding.json_value(payload, "--payload"), source.upper())
        return resumed(configuration_loading.configure(named), execution, event, named, as_json=as_json)

    finish(work, as_json=as_json)


def resumed(
    configuration: configuration_loading.Configuration,
    execution: str,
    event: Resume | None,
    named: Path | None,
    *,
    as_json: bool,
) -> int:
    """Resume an execution and print what has come of it, of a script as `mcp-bridge run`; return the exit status.

    Raises:
        BridgeError: As `argument_decoding.execution`, `Bridge.for_owner` and `Programs.resume`.
    """
    from mcp_bridge.cli.commands.resumed import print_resumed, resumed_execution
    from mcp_bridge.cli.terminal_prompts import terminal

    async def work(bridge: Bridge) -> ResumedExecution:
        row = await argument_decoding.execution(bridge.programs.store, execution)
        record = await bridge.for_owner(row).resume_execution(row.id, event, asker=terminal())
        return await resumed_execution(bridge, record, row)

    refuse_without_ledger(configuration.settings, partial(find_execution, ident=execution))
    return print_resumed(run_with_bridge(configuration, work), named, as_json=as_json)


@executions.command(
    epilog="Examples:\n\n"
    "mcp-bridge execution settle 3f9a1c --happened --value '{\"paid\": 40}' --resume\n\n"
    "mcp-bridge execution settle 3f9a1c charge --failed 'the bank knows nothing of it'\n\n"
    "mcp-bridge execution settle 3f9a1c 7 --not-done"
)
def settle(
    ctx: typer.Context,
    execution: Id,
    doubt: Annotated[
        str | None,
        typer.Argument(
            metavar="[STEP|EFFECT|CALL]",
            help="The step or its effect's number, or a script's call; not needed if it is the only one.",
        ),
    ] = None,
    happened: Annotated[bool, typer.Option("--happened", help="The call has happened.")] = False,
    value: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="With --happened: its result (default: null).")
    ] = None,
    failed: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="The call failed; the step fails, and may be retried.")
    ] = None,
    not_done: Annotated[bool, typer.Option("--not-done", help="The call didn't happen; make it now.")] = False,
    reason: Annotated[str | None, typer.Option(help="Recorded with the decision.")] = None,
    and_resume: Annotated[bool, typer.Option("--resume", help="Resume the execution now, in this process.")] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Record the outcome of a call that was in progress when its process died: only you can know it."""
    named = config or ctx.obj

    def work() -> int:
        settlement = _settlement(value, failed, reason, happened=happened, not_done=not_done)
        return _settled(named, execution, doubt, settlement, and_resume=and_resume, as_json=as_json)

    finish(work, as_json=as_json)


def _settlement(
    value: str | None, failed: str | None, reason: str | None, *, happened: bool, not_done: bool
) -> Settlement:
    from mcp_bridge.executions.in_doubt import Settlement

    if happened + (failed is not None) + not_done != 1:
        raise BridgeError("bad_argument", "Say one of --happened, --failed MESSAGE and --not-done.")
    if value is not None and not happened:
        raise BridgeError("bad_argument", "--value belongs to --happened.")
    for text, option in ((failed, "--failed"), (reason, "--reason")):
        check_text(text, option)
    by = terminal_prompts.login_name()
    if failed is not None:
        return Settlement("failed", by, message=failed, comment=reason)
    if not_done:
        return Settlement("not_done", by, comment=reason)
    parsed = None if value is None else argument_decoding.json_value(value, "--value")
    return Settlement("happened", by, parsed, comment=reason)


def _settled(
    named: Path | None, execution: str, doubt: str | None, settlement: Settlement, *, and_resume: bool, as_json: bool
) -> int:
    from mcp_bridge.cli.commands.resumed import print_resumed, resumed_execution
    from mcp_bridge.cli.terminal_prompts import terminal

    async def settled(bridge: Bridge, row: StoredExecution) -> dict[str, Any]:
        return await bridge.for_owner(row, resumes=and_resume).settle_execution(
            row.id, doubt, settlement, and_resume=and_resume, asker=terminal()
        )

    async def work(bridge: Bridge) -> dict[str, Any]:
        return await settled(bridge, await argument_decoding.execution(bridge.programs.store, execution))

    async def settled_and_resumed(bridge: Bridge) -> ResumedExecution:
        row = await argument_decoding.execution(bridge.programs.store, execution)
        return await resumed_execution(bridge, await settled(bridge, row), row)

    configuration = configuration_loading.configure(named)
    refuse_without_ledger(configuration.settings, partial(find_execution, ident=execution))
    if and_resume:
        return print_resumed(run_with_bridge(configuration, settled_and_resumed), named, as_json=as_json)
    drive(configuration, work, named, as_json=as_json, settled=True)
    return exit_statuses.OK


@executions.command(epilog="Example:\n\nmcp-bridge execution cancel 3f9a1c --reason 'the customer has left'")
def cancel(
    ctx: typer.Context,
    execution: Id,
    reason: Annotated[str, typer.Option(help="Recorded with the execution.")] = "cancelled by the operator",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Cancel a suspended execution; its compensations run now, in this process."""
    named = config or ctx.obj

    def work() -> int:
        async def cancelled(bridge: Bridge) -> dict[str, Any]:
            row = await argument_decoding.execution(bridge.programs.store, execution)
            # What a program's steps want undone is done.
            owner = bridge.for_owner(row, resumes=row.kind == "program")
            return await owner.cancel_execution(row.id, reason)

        configuration = configuration_loading.configure(named)
        refuse_without_ledger(configuration.settings, partial(find_execution, ident=execution))
        record = drive(configuration, cancelled, named, as_json=as_json)
        return exit_statuses.OK if record["status"] == "cancelled" else terminal_output.status_of(record)

    finish(work, as_json=as_json)
