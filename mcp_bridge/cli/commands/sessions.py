"""`mcp-bridge session list|show|end`."""

from __future__ import annotations

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
from mcp_bridge.escaping import escape_invisible
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL

if TYPE_CHECKING:
    from mcp_bridge.errors import BridgeError
    from mcp_bridge.executions.sessions.sessions import SessionRow
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.execution_store import StoredExecution

sessions = typer.Typer(
    help="Look at sessions of run_python, and end them.",
    no_args_is_help=True,
    epilog="A session is named as the agent has named it.",
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="As `session list` has it.")]
NameOrCell: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="As `session list` has it; the last cell of one whose name is erased.")
]


@sessions.command("list", epilog="Example:\n\nmcp-bridge session list --json")
def list_(ctx: typer.Context, principal: Principal = None, config: Config = None, as_json: Json = False) -> None:
    """List sessions, the one used last first.

    One that can't be rebuilt by its record is `lost`, also while a bridge still has its sandbox.
    """

    def work() -> int:
        from mcp_bridge.executions.sessions.sessions import session_rows
        from mcp_bridge.ledger.log.session_store import SessionStore
        from mcp_bridge.ledger.storage.execution_store import ProgramStore

        settings = configuration_loading.load(config or ctx.obj).settings

        async def listed(database: Database) -> list[tuple[SessionRow, str]]:
            store, can_rebuild = ProgramStore(database), settings.sessions.rebuild
            rows = await session_rows(store, SessionStore(database), principal, can_rebuild=can_rebuild)
            return [(row, await argument_decoding.short_id(store, row.execution)) for row in rows]

        rows = read_database(settings, listed)
        if as_json:
            print_json({"sessions": [row._asdict() for row, _ in rows]})
        elif not rows:
            terminal_output.echo("No session.")
        else:
            whose = {row.principal for row, _ in rows} != {LOCAL_PRINCIPAL.name}
            cells = [
                (
                    row.name or "(erased)",
                    *((row.principal,) if whose else ()),
                    str(row.cells),
                    row.state,
                    terminal_output.moment(row.changed),
                    ident,
                )
                for row, ident in rows
            ]
            terminal_output.table(
                ("name", *(("principal",) if whose else ()), "cells", "state", "used", "last cell"), cells
            )
        return exit_statuses.OK

    finish(work, as_json=as_json)


@sessions.command(epilog="Example:\n\nmcp-bridge session show NAME")
def show(
    ctx: typer.Context, name: Name, principal: Principal = None, config: Config = None, as_json: Json = False
) -> None:
    """List a session's cells, how each has ended, and what it has left: names, nothing, or what is lost."""

    def work() -> int:
        async def found(database: Database) -> list[tuple[StoredExecution, str]]:
            from mcp_bridge.executions.sessions.sessions import chain
            from mcp_bridge.ledger.log.session_store import SessionStore
            from mcp_bridge.ledger.storage.execution_store import ProgramStore
            from mcp_bridge.views.overview import Overview

            store, whose = ProgramStore(database), principal or LOCAL_PRINCIPAL.name
            head = await SessionStore(database).head(whose, name)
            if not head:
                raise await _unknown(database, name, principal)
            overview = Overview(database, LOCAL_PRINCIPAL)
            cells = [await overview.as_recorded(stored) async for stored in chain(store, whose, head)]
            return [(stored, await argument_decoding.short_id(store, stored.id)) for stored in reversed(cells)]

        cells = read_database(configuration_loading.load(config or ctx.obj).settings, found)
        rows = [_cell(stored) for stored, _ in cells]
        if as_json:
            print_json({"name": name, "cells": rows})
        else:
            table = [
                (
                    str(row["cell"] or "?"),
                    ident,
                    row["status"],
                    row["left"],
                    terminal_output.moment(row["started"]),
                    "" if row["rebuilt"] is None else str(row["rebuilt"]),
                    _summary_line(row["code"]),
                )
                for row, (_, ident) in zip(rows, cells, strict=True)
            ]
            terminal_output.table(("cell", "id", "status", "left", "began", "cells rebuilt before", "code"), table)
        return exit_statuses.OK

    finish(work, as_json=as_json)


@sessions.command(epilog="Example:\n\nmcp-bridge session end NAME")
def end(
    ctx: typer.Context, name: NameOrCell, principal: Principal = None, config: Config = None, as_json: Json = False
) -> None:
    """End a session: its name is free, and what its cells did stays recorded. A cell that waits is cancelled."""

    def work() -> int:
        async def ended(database: Database) -> None:
            from mcp_bridge.executions.idempotency.request_identity import Keys
            from mcp_bridge.executions.lifecycle import Lifecycle
            from mcp_bridge.executions.sessions.sessions import end_session
            from mcp_bridge.ledger.log.recorder import SqliteRecorder
            from mcp_bridge.ledger.log.session_store import SessionStore
            from mcp_bridge.ledger.storage.execution_store import ProgramStore

            keys = Keys(database.master.requests, database.old_requests)
            lifecycle = Lifecycle(ProgramStore(database), SqliteRecorder(database), keys)
            heads, whose = SessionStore(database), principal or LOCAL_PRINCIPAL.name
            if await end_session(lifecycle, heads, whose, name):
                return
            cell = await _erased_cell(database, name, whose)
            if not cell or not await end_session(lifecycle, heads, whose, cell):
                raise await _unknown(database, name, principal)

        settings = configuration_loading.load(config or ctx.obj).settings
        refuse_without_ledger(settings, ended)
        run_with_database(settings, ended)
        if as_json:
            print_json({"name": name, "ended": True})
        else:
            terminal_output.echo(f"The session {escape_invisible(name)} has ended.")
        return exit_statuses.OK

    finish(work, as_json=as_json)


async def _erased_cell(database: Database, typed: str, principal: str) -> str:
    """The last cell of a session that has lost its name with it, by the id that `session list` shows; empty for none.

    Raises:
        BridgeError: `ambiguous_id`.
    """
    from mcp_bridge.executions.sessions.sessions import named_sessions
    from mcp_bridge.ledger.log.session_store import SessionStore
    from mcp_bridge.ledger.storage.execution_store import ProgramStore

    store = ProgramStore(database)
    named = named_sessions(store, SessionStore(database), principal)
    nameless = [head.head async for head, place, _ in named if place is None]
    # `session list` shows no fewer characters, and a name that begins so may be meant.
    if len(typed) < argument_decoding.SHORT_CHARS or not any(head.startswith(typed) for head in nameless):
        return ""
    return (await argument_decoding.execution(store, typed)).id


async def _unknown(database: Database, name: str, principal: str | None) -> BridgeError:
    """The error for a session that there isn't; it says whose there are of that name, unless a principal was named."""
    from mcp_bridge.errors import BridgeError
    from mcp_bridge.executions.sessions.sessions import named_sessions, unknown_session
    from mcp_bridge.ledger.log.session_store import SessionStore
    from mcp_bridge.ledger.storage.execution_store import ProgramStore

    named = named_sessions(ProgramStore(database), SessionStore(database), principal)
    whose = sorted([head.principal async for head, place, _ in named if place is not None and place.session == name])
    if principal is not None or not whose:
        return unknown_session(name)
    return BridgeError(
        "unknown_session",
        f"There is no session {name!r:.100} of {LOCAL_PRINCIPAL.name}, but of {', '.join(whose)}.",
        hint=f"Add --principal {whose[0]}.",
    )


def _cell(stored: StoredExecution) -> dict[str, Any]:
    """A cell, as `Overview.as_recorded` gives it: a sensitive value in its code is a reference."""
    from mcp_bridge.executions.sessions.cell import Cell
    from mcp_bridge.executions.sessions.sessions import left_by
    from mcp_bridge.executions.status import effective_status

    place, record = Cell.of(stored), stored.record or {}
    return {
        "cell": None if place is None else place.number,
        "session": None if place is None else place.session,
        "execution": stored.id,
        "status": effective_status(stored),
        "left": left_by(stored),
        "started": stored.started,
        "rebuilt": record.get("session", {}).get("rebuilt"),
        "code": stored.bundle.get("code"),
        "error": (record.get("error") or {}).get("message"),
    }


def _summary_line(code: str | None) -> str:
    """The first line of a cell's code, as far as it fits."""
    lines = (code or "(erased)").strip().split("\n")
    more = " …" if len(lines) > 1 else ""
    return escape_invisible(lines[0][:60]) + more
