"""`mcp-bridge servers list`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_bridge.cli import common
from mcp_bridge.errors import BridgeError

servers = typer.Typer(help="Look at the servers behind the bridge.", no_args_is_help=True)


@servers.command("list")
def list_(
    ctx: typer.Context,
    start: Annotated[bool, typer.Option("--start", help="Start each one and count its tools.")] = False,  # noqa: FBT002
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,  # noqa: FBT002
) -> None:
    """List the servers, where each is configured, and what was left out."""
    try:
        configuration = common.configure(ctx.obj)
        rows = anyio.run(_rows, configuration, start)
    except BridgeError as exc:
        raise typer.Exit(common.complain(exc)) from None
    found = configuration.discovery
    skipped = [{"name": row.name, "file": row.file, "reason": row.reason} for row in found.skipped]
    problems = [{"file": row.file, "line": row.line, "message": row.message} for row in found.problems]
    if as_json:
        sys.stdout.write(json.dumps({"servers": rows, "skipped": skipped, "problems": problems}) + "\n")
        return
    console = Console()
    table = Table("server", "import as", "state", "tools", "configured in")
    for row in rows:
        tools = "" if row["tools"] is None else str(row["tools"])
        cells = (row["name"], row["alias"], row["error"] or row["state"], tools, row["source"])
        table.add_row(*map(Text, cells))  # as text: a name is not markup
    console.print(table if rows else Text("No server is configured: see [servers.NAME] in the README."))
    for problem in problems:
        console.print(f"{problem['file']}: {problem['message']}", style="yellow", markup=False)
    for row in skipped:
        console.print(f"{row['name']} in {row['file']} left out: {row['reason']}", style="dim", markup=False)


async def _rows(configuration: common.Configuration, start: bool) -> list[dict[str, Any]]:  # noqa: FBT001
    from mcp_bridge.downstream.catalog import Catalog  # noqa: PLC0415
    from mcp_bridge.downstream.fleet import Fleet  # noqa: PLC0415

    async with Fleet(configuration.discovery.servers.values()) as fleet:
        catalog = Catalog(fleet, configuration.settings.state_dir)
        if start:
            await catalog.search("", 1, wait=60.0)
        return [
            {
                "name": status.name,
                "alias": status.alias,
                "state": status.state,
                "tools": status.tool_count,
                "error": status.error,
                "source": status.source,
                "scope": status.scope,
            }
            for status in catalog.servers()
        ]
