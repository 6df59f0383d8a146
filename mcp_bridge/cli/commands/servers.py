"""`mcp-bridge servers`: which there are, and those of the bridge's own configuration."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcp_bridge import escaping
from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import finish
from mcp_bridge.cli.options import Config, Json, Program  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.configured_values import expanded_home
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.downstream.client.fleet import Fleet

servers = typer.Typer(help="The servers behind the bridge: list, add, remove, import.", no_args_is_help=True)


@servers.command("list")
def list_(
    ctx: typer.Context,
    start: Annotated[
        bool, typer.Option("--start", help="Start each one, and count its tools. Exit status 1 if one can't be used.")
    ] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List the servers, where each is configured, and what was left out."""
    import anyio

    try:
        configuration = configuration_loading.configure(config or ctx.obj, quiet=True)
        configuration_loading.warn_ignored_files(configuration.ignored_files)
        rows = anyio.run(_rows, configuration, start)
    except BridgeError as exc:
        raise typer.Exit(exit_statuses.print_error(exc)) from None
    found = configuration.discovery
    skipped = [{"name": row.name, "file": row.file, "reason": row.reason} for row in found.skipped]
    problems = [{"file": row.file, "line": row.line, "message": row.message} for row in found.problems]
    if as_json:
        sys.stdout.write(json.dumps({"servers": rows, "skipped": skipped, "problems": problems}) + "\n")
        raise typer.Exit(_status(rows, start=start))
    if rows:
        cells = [
            (
                row["name"],
                row["alias"],
                row["error"] or ("ready, without tools" if _is_empty(row) else row["state"]),
                "" if row["tools"] is None else str(row["tools"]),
                row["source"],
            )
            for row in rows
        ]
        terminal_output.table(("server", "import as", "state", "tools", "configured in"), cells)
    else:
        terminal_output.echo("No server is configured: see [servers.NAME] in docs/configuration.md.")
    for row in rows:
        for name, value in row["details"].items():
            shown = f" {terminal_output.hung(str(value))}"
            if isinstance(value, (list, tuple)):
                shown = "".join(f"\n  {terminal_output.hung(line)}" for line in value)
            terminal_output.print_styled(f"{row['name']}: {name}:{shown}", "dim")
    for problem in problems:
        where = f"{problem['file']}, line {problem['line']}" if problem["line"] else problem["file"]
        terminal_output.print_styled(f"{where}: {problem['message']}", "yellow")
    for row in skipped:
        terminal_output.print_styled(f"{row['name']} in {row['file']} left out: {row['reason']}", "dim")
    raise typer.Exit(_status(rows, start=start))


@servers.command(
    epilog="Examples:\n\nmcp-bridge servers add git -- uvx mcp-server-git\n\n"
    "mcp-bridge servers add github --url https://api.githubcopilot.com/mcp/ "
    "--header 'Authorization=Bearer ${GITHUB_TOKEN}'\n\n"
    "mcp-bridge servers add petstore --openapi https://petstore.example.com/openapi.json --operation 'GET /pets/*'"
)
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND ARGS]", help="What starts it.", show_default=False)
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The address of a remote server.")] = None,
    openapi: Annotated[str | None, typer.Option(metavar="FILE|URL", help="The OpenAPI document of a service.")] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="Where that service is called.")] = None,
    operation: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="An operation of it that is a tool; repeatable.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable; repeatable.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; repeatable.")] = None,
    cwd: Annotated[str | None, typer.Option(metavar="FOLDER", help="The folder to start it in.")] = None,
    config: Config = None,
) -> None:
    """Write a server into your configuration. ${NAME} in it is taken from the environment when the server starts."""
    from mcp_bridge.cli.configuration_edits import own_servers

    def done() -> int:
        table: dict[str, Any] = {}
        if command:
            table = {"command": command[0], "args": command[1:]} if command[1:] else {"command": command[0]}
        if url is not None:
            table["url"] = url
        if openapi is not None:
            # The configuration's folder isn't the one that the command is written in.
            is_address = openapi.startswith(("http://", "https://", "$"))
            table["openapi"] = openapi if is_address else str(_path(openapi).absolute())
        if not table:
            raise BridgeError("bad_argument", "There is nothing to start.", hint=f"Write `{_ADD.format(name)}`.")
        for key, rows in (("env", env), ("headers", header)):
            if rows:
                table[key] = dict(_pair(row) for row in rows)
        for key, value in (("cwd", cwd), ("base_url", base_url), ("operations", operation)):
            if value:
                table[key] = value
        named = config or ctx.obj
        return own_servers.add(configuration_loading.load(named, folder=False), named, name, table)

    finish(done)


def _is_empty(row: dict[str, Any]) -> bool:
    """Whether a server runs and has nothing that could be called."""
    return bool(row["state"] == "ready" and row["tools"] == 0)


_ADD = "mcp-bridge servers add {} -- COMMAND ARGS"


def _path(text: str) -> Path:
    try:
        return expanded_home(Path(text))
    except ValueError as exc:
        raise BridgeError("bad_argument", f"{text}: {exc}.") from None


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise BridgeError("bad_argument", f"{key!r} has no value.", hint="Write NAME=VALUE.")
    return key, value


@servers.command(epilog="Example:\n\nmcp-bridge servers remove git")
def remove(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `mcp-bridge servers list` has it.")],
    config: Config = None,
) -> None:
    """Remove a server from your configuration."""
    from mcp_bridge.cli.configuration_edits import own_servers

    named = config or ctx.obj
    finish(lambda: own_servers.remove(configuration_loading.load(named, folder=False), named, name))


@servers.command(
    "import", epilog="Examples:\n\nmcp-bridge servers import cursor\n\nmcp-bridge servers import codex github --yes"
)
def import_(
    ctx: typer.Context,
    client: Program,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAMES]", help="By default all.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    config: Config = None,
) -> None:
    """Copy a client's servers into your configuration. The client's file stays as it is."""
    from mcp_bridge.cli.configuration_edits import own_servers

    named = config or ctx.obj
    finish(
        lambda: own_servers.import_(
            configuration_loading.load(named, folder=False), named, client, names or [], yes=yes
        )
    )


def _status(rows: list[dict[str, Any]], *, start: bool) -> int:
    """The exit status: 1 if servers should be started, and an enabled one can't be used."""
    broken = [row for row in rows if row["error"] and row["state"] != "disabled"]
    return exit_statuses.FAILED if start and broken else exit_statuses.OK


def _fleet(configuration: configuration_loading.Configuration) -> Fleet:
    from mcp_bridge.downstream.client.fleet import Fleet
    from mcp_bridge.governance.server_credentials import login_store, remote_access
    from mcp_bridge.governance.server_environment import environment

    return Fleet(
        configuration.discovery.servers.values(),
        environment=environment(configuration.settings, configuration.governance),
        access=remote_access(configuration.governance, login_store(configuration.settings)),
    )


async def _rows(configuration: configuration_loading.Configuration, start: bool) -> list[dict[str, Any]]:
    from mcp_bridge.downstream.catalog.catalog import Catalog

    async with _fleet(configuration) as fleet:
        catalog = Catalog(fleet, configuration.settings.state_dir)
        if start:
            # Including servers with a cached listing, which doesn't tell whether they work now.
            await catalog.start_all()
        return [
            {
                "name": status.name,
                "alias": status.alias,
                "state": status.state,
                "tools": status.tool_count,
                "error": status.error,
                "source": status.source,
                "scope": status.scope,
                "url": status.url,
                "details": ({"url": status.url} if status.url else {})
                | _unused(configuration, status.name)
                | dict(status.private),
            }
            for status in catalog.servers()
        ]


def _unused(configuration: configuration_loading.Configuration, name: str) -> dict[str, str]:
    """What of the server's entry in a client's file isn't used, if it can be used itself."""
    spec = configuration.discovery.servers.get(name)
    is_told = spec is not None and spec.enabled and spec.problem is None
    return {"not used": spec.unused} if is_told and spec is not None and spec.unused else {}


@servers.command("search")
def search(
    ctx: typer.Context,
    words: Annotated[list[str], typer.Argument(help="What is to be done, in plain words.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="The most tools that are shown.")] = 5,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Search the tools of all servers, as `runtime.search` does. Starts servers whose tools aren't known yet."""
    import anyio

    try:
        configuration = configuration_loading.configure(config or ctx.obj, quiet=True)
        configuration_loading.warn_ignored_files(configuration.ignored_files)
        rows, notices = anyio.run(_found, configuration, " ".join(words), limit)
    except BridgeError as exc:
        raise typer.Exit(exit_statuses.print_error(exc)) from None
    if as_json:
        sys.stdout.write(json.dumps({"matches": rows, "notices": notices}) + "\n")
        raise typer.Exit(exit_statuses.OK)
    for row in rows:
        terminal_output.echo(escaping.escape_controls(row["line"]))
    if not rows:
        terminal_output.echo("No tool was found.")
    for notice in notices:
        terminal_output.print_styled(notice, "dim", stream=sys.stderr)


async def _found(
    configuration: configuration_loading.Configuration, query: str, limit: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """The matching tools, and notices about servers that weren't searched."""
    from mcp_bridge.downstream.catalog import describe
    from mcp_bridge.downstream.catalog.catalog import Catalog
    from mcp_bridge.governance.search_embedder import search_embedder

    settings = configuration.settings
    async with _fleet(configuration) as fleet:
        catalog = Catalog(fleet, settings.state_dir, search_embedder(settings.search))
        result = await catalog.search(query, limit)
    rows = [
        {
            "server": hit.tool.server,
            "tool": hit.tool.name,
            "name": f"{hit.tool.server_alias}.{hit.tool.alias}",
            "line": describe.search_result_line(hit.tool),
        }
        for hit in result.hits
    ]
    return rows, result.notices
