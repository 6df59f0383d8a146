"""`mcp-bridge approvals list|show|approve|deny`: a person decides what the policy, or a program, wants a person for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from mcp_bridge.cli import argument_decoding, configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import (
    finish,
    print_json,
    read_database,
    refuse_without_ledger,
    run_with_database,
)
from mcp_bridge.cli.options import Config, Json, Principal  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.cli.terminal_prompts import login_name
from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_invisible, escape_name
from mcp_bridge.executions.decision_comments import check_text
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.executions.approvals import ApprovalRequest
    from mcp_bridge.ledger.storage.database import Database

approvals = typer.Typer(
    help="Decide what waits for a person.",
    no_args_is_help=True,
    epilog="An approval is named by its execution and the number of its question: 3f9a1c.4. The number may be left out "
    "while only one question of that execution is open.",
)

Id: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="As `approvals list` has it: 3f9a1c.4")]
Reason: TypeAlias = Annotated[
    str | None, typer.Option(help="Recorded with the decision, and passed to a program's approval step.")
]
AndResume: TypeAlias = Annotated[bool, typer.Option("--resume", help="Resume the execution now, in this process.")]


@approvals.command("list", epilog="Example:\n\nmcp-bridge approvals list --all")
def list_(
    ctx: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Include those that are decided or void.")] = False,
    principal: Principal = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List what waits for a decision, oldest first."""

    def work() -> int:
        from mcp_bridge.executions.approvals import approval_requests
        from mcp_bridge.ledger.storage.execution_store import ProgramStore

        async def listed(database: Database) -> list[tuple[ApprovalRequest, str]]:
            store = ProgramStore(database)
            requests = await approval_requests(store, principal)
            return [
                (row, f"{await argument_decoding.short_id(store, row.approval.execution)}.{row.approval.effect}")
                for row in requests
                if everything or row.status == "open"
            ]

        rows = read_database(configuration_loading.load(config or ctx.obj).settings, listed)
        if as_json:
            print_json({"approvals": [_record(row) for row, _ in rows]})
        elif not rows:
            terminal_output.echo("Nothing waits for a decision.")
        else:
            whose = len({_principal(row) for row, _ in rows} - {LOCAL_PRINCIPAL.name}) > 0
            cells = [
                (
                    ident,
                    *((_principal(row),) if whose else ()),
                    row.status,
                    terminal_output.moment(row.approval.asked),
                    _location(row),
                    _summary_line(row),
                )
                for row, ident in rows
            ]
            terminal_output.table(
                ("id", *(("principal",) if whose else ()), "status", "asked", "program", "what"), cells
            )
            if any(gist.endswith(terminal_output.CUT) for *_, gist in cells):
                terminal_output.echo_err(
                    f"mcp-bridge: what ends in {terminal_output.CUT} is shown whole by `mcp-bridge approvals show ID`"
                )
        return exit_statuses.OK

    finish(work, as_json=as_json)


@approvals.command(epilog="Example:\n\nmcp-bridge approvals show 3f9a1c.4")
def show(ctx: typer.Context, approval: Id, config: Config = None, as_json: Json = False) -> None:
    """Show a question: what would be called, on what, and why."""
    named = config or ctx.obj

    def work() -> int:
        row, ident = read_database(
            configuration_loading.load(named).settings, lambda database: _find(database, approval)
        )
        if as_json:
            print_json(_record(row))
            return exit_statuses.OK
        whose = _principal(row)
        by = "" if whose == LOCAL_PRINCIPAL.name else f" by {whose}"
        terminal_output.echo(f"{ident}: {row.status}, asked{by} {terminal_output.moment(row.approval.asked)}")
        _print_question(row)
        _print_decision(row)
        if row.due is not None and row.approval.decision is None:
            terminal_output.echo(
                f"  the step {'has timed out' if row.is_late else 'times out'}: {terminal_output.moment(row.due)}"
            )
        if row.status == "open":
            for verb in ("approve", "deny"):
                terminal_output.echo(terminal_output.command(f"approvals {verb} {ident}", named))
        return exit_statuses.OK

    finish(work, as_json=as_json)


@approvals.command(epilog="Example:\n\nmcp-bridge approvals approve 3f9a1c.4 --resume")
def approve(
    ctx: typer.Context,
    approval: Id,
    reason: Reason = None,
    and_resume: AndResume = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Approve. It takes effect when the execution is resumed. As JSON: the question, or with --resume the execution."""
    _decide(config or ctx.obj, approval, approved=True, reason=reason, and_resume=and_resume, as_json=as_json)


@approvals.command(epilog="Example:\n\nmcp-bridge approvals deny 3f9a1c.4 --reason 'over the budget'")
def deny(
    ctx: typer.Context,
    approval: Id,
    reason: Reason = None,
    and_resume: AndResume = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Deny. It takes effect when the execution is resumed. As JSON: the question, or with --resume the execution."""
    _decide(config or ctx.obj, approval, approved=False, reason=reason, and_resume=and_resume, as_json=as_json)


def _decide(
    named: Path | None, approval: str, *, approved: bool, reason: str | None, and_resume: bool, as_json: bool
) -> None:
    def work() -> int:
        from mcp_bridge.executions.approvals import decide
        from mcp_bridge.ledger.storage.execution_store import ProgramStore

        check_text(reason, "--reason")
        loaded = configuration_loading.load(named)
        # Not a security boundary, since anyone with a shell can clear the environment. But a server behind the bridge
        # that runs commands for an agent should not be a way to approve by accident.
        configuration_loading.refuse_nesting(loaded)
        # Checked before the decision is made: afterwards it would be too late.
        configuration = configuration_loading.configure(named) if and_resume else None

        async def decided(database: Database) -> tuple[ApprovalRequest, str]:
            row, ident = await _find(database, approval)
            await decide(ProgramStore(database), row, approved=approved, by=login_name(), comment=reason)
            return await _find(database, ident)

        refuse_without_ledger(loaded.settings, decided)
        row, ident = run_with_database(loaded.settings, decided)
        if not as_json:
            terminal_output.echo(f"{'approved' if approved else 'denied'} {ident}:")
            _print_question(row)
        if configuration is not None:
            from mcp_bridge.cli.commands.executions import resumed

            return resumed(configuration, row.approval.execution, None, named, as_json=as_json)
        if as_json:
            print_json(_record(row))
        else:
            resume = terminal_output.command(f"execution resume {ident.rpartition('.')[0]}", named)
            terminal_output.echo(f"Resume it with: {resume}")
        return exit_statuses.OK

    finish(work, as_json=as_json)


async def _find(database: Database, ident: str) -> tuple[ApprovalRequest, str]:
    """An approval by its id, and the id as it is displayed.

    Raises:
        BridgeError: `unknown_approval`, `ambiguous_id`; as `argument_decoding.execution`.
    """
    from mcp_bridge.executions.approvals import approval_requests
    from mcp_bridge.executions.status import RUNNING_APPROVAL_HINT, effective_status
    from mcp_bridge.ledger.storage.execution_store import ProgramStore

    store = ProgramStore(database)
    prefix, dot, number = ident.strip().partition(".")
    execution = await argument_decoding.execution(store, prefix)
    short_id = await argument_decoding.short_id(store, execution.id)
    rows = await approval_requests(store, None, execution.id)
    if dot:
        rows = [row for row in rows if str(row.approval.effect) == number]
    elif len(rows) > 1:
        rows = [row for row in rows if row.status == "open"] or rows
    if not rows and effective_status(execution) == "running":
        raise BridgeError(
            "unknown_approval",
            f"The execution {short_id} is running: no question {ident[:100]!r} of it waits for a decision here.",
            hint=RUNNING_APPROVAL_HINT,
        )
    if not rows:
        raise BridgeError(
            "unknown_approval",
            f"The execution {short_id} has asked no question {ident[:100]!r}.",
            hint="`mcp-bridge approvals list` has those that are open.",
        )
    if len(rows) > 1:
        listed = ", ".join(f"{short_id}.{row.approval.effect}" for row in rows)
        raise BridgeError("ambiguous_id", f"The execution {short_id} asks more than one question: {listed}.")
    return rows[0], f"{short_id}.{rows[0].approval.effect}"


def _principal(row: ApprovalRequest) -> str:
    return row.execution.principal if row.execution else LOCAL_PRINCIPAL.name


def _summary_line(row: ApprovalRequest) -> str:
    question = row.question
    if "tool" in question:
        arguments = escape_invisible(terminal_output.short_value(question.get("arguments") or {}))
        return f"{escape_name(str(question['tool']))} {arguments}"
    return escape_invisible(terminal_output.short_value(question.get("message", "")))


def _location(row: ApprovalRequest) -> str:
    question = row.question
    whose = f" ({row.execution.origin}'s)" if row.execution else ""
    return f"{escape_name(str(question.get('program', '')))}{whose}: {escape_name(str(question.get('step', '')))}"


def _print_question(row: ApprovalRequest) -> None:
    lines = terminal_output.question(row.question, row.execution.origin if row.execution else "")
    for line in terminal_output.folded(lines, sys.stdout, indent="  "):
        terminal_output.echo(line)


def _print_decision(row: ApprovalRequest) -> None:
    decision = row.approval.decision
    if decision:
        comment = f": {decision['comment']}" if decision.get("comment") else ""
        at = terminal_output.moment(row.approval.decided)
        terminal_output.echo(f"  {row.status} by {decision.get('by', 'somebody')}, {at}{comment}")


def _record(row: ApprovalRequest) -> dict[str, Any]:
    return {
        "id": f"{row.approval.execution}.{row.approval.effect}",
        "execution": row.approval.execution,
        "principal": _principal(row),
        "effect": row.approval.effect,
        "status": row.status,
        "asked": row.approval.asked,
        "due": row.due,
        "question": row.question,
        "decided": row.approval.decided,
        "decision": row.approval.decision,
    }
