"""The commands and their options."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from mcp_bridge import __version__
from mcp_bridge.cli.command_runner import finish
from mcp_bridge.cli.commands.backups import backup, backup_key, restore
from mcp_bridge.cli.options import Config, Json, Program  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.cli.usage_errors import Commands
from mcp_bridge.sandbox.languages import Language  # noqa: TC001  (typer reads the annotations)

app = typer.Typer(
    name="mcp-bridge",
    cls=Commands,
    help="One MCP tool, run_python, in front of every other MCP server. Without a command, it serves MCP on stdio; "
    "if started in a terminal, it prints a hint instead.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: run returns the script's own; programs return 0 (success) or 1 (failed); both return 5 if "
    "suspended. Otherwise: 1 failure; 2 usage; 3 no working sandbox or ledger; 4 refused; 124 time-out; 130 "
    "interrupted.",
)


def _version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    config: Config = None,
    _: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that come before a command."""
    ctx.obj = config
    if ctx.invoked_subcommand is None:
        serve(ctx)


@app.command(epilog="Examples:\n\nmcp-bridge serve --tools programs\n\nmcp-bridge serve --transport http --port 8350")
def serve(
    ctx: typer.Context,
    tools: Annotated[
        Literal["run_python", "programs"],
        typer.Option(help="programs: also offer the tools that run programs, for clients that don't write Python."),
    ] = "run_python",
    transport: Annotated[
        Literal["stdio", "http"],
        typer.Option(help="stdio: standard input and output. http: streamable HTTP, for clients that connect."),
    ] = "stdio",
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="The address to listen on. Any address but loopback requires authentication."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="The port of http; 0 takes a free one.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate chain of https (PEM). Default: plain HTTP.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key, without passphrase.")] = None,
    config: Config = None,
) -> None:
    """Serve MCP on standard input and output (the default), or over HTTP."""
    from mcp_bridge.bridge_identity import PORT
    from mcp_bridge.cli.commands import serve as commands

    programs = tools == "programs"
    if transport == "http":
        finish(
            lambda: commands.serve_http(
                config or ctx.obj,
                host=commands.HOST if host is None else host,
                port=PORT if port is None else port,
                certificate=tls_cert,
                key=tls_key,
                programs=programs,
            )
        )
    if {host, port, tls_cert, tls_key} != {None}:
        raise typer.BadParameter("--host, --port, --tls-cert and --tls-key belong to --transport http.")
    # Without a command, typer passes the context of the whole group.
    raise typer.Exit(commands.serve(config or ctx.obj, programs=programs, bare=ctx.parent is None))


@app.command(
    epilog="Examples:\n\nmcp-bridge run -c 'print(6 * 7)'\n\nmcp-bridge run --key order-7 pay.py\n\n"
    "mcp-bridge run --session s -c 'x = 1'"
)
def run(
    ctx: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="[FILE|-]", help="A script, or - for standard input.")] = None,
    code: Annotated[str | None, typer.Option("-c", metavar="CODE", help="The script itself.")] = None,
    server: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Allow only these; repeatable.")] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--file", metavar="NAME", help="Provide only these of your files; repeatable.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(metavar="S", help="Seconds of running time.")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Idempotency key: the script runs once; later calls with the key get the same result. If the "
            "process died, the next call resumes the run.",
        ),
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run it as the next cell of a session, with the names there.")
    ] = None,
    fork: Annotated[
        str | None, typer.Option(metavar="NAME@CELL", help="Begin the session from that cell of another one.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Make only read-only calls, and list the others for approval. Run the same code without --dry-run "
            "to make them.",
        ),
    ] = False,
    package: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Install this package, such as polars==1.2; it must be in install.allow. Repeatable.",
        ),
    ] = None,
    language: Annotated[
        Language | None,
        typer.Option(
            help="By default by the file's name: JavaScript for .js, .ts and their like (.mjs, .cjs, .jsx and so on)."
        ),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Run one script in a fresh sandbox, as run_python would."""
    from mcp_bridge.cli.commands.run import run as work

    status = work(
        config or ctx.obj,
        file,
        code,
        servers=server or [],
        timeout=timeout,
        key=key,
        session=session,
        fork=fork,
        dry_run=dry_run,
        files=inputs,
        packages=package or [],
        language=language,
        as_json=as_json,
    )
    raise typer.Exit(status)


@app.command(epilog="Example:\n\nmcp-bridge ui --no-browser")
def ui(
    ctx: typer.Context,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Default: loopback, on a free port that changes each time. On a fixed port, another user of this "
            "machine could listen while no viewer runs, and leave a script in your browser that reads your "
            "next token.",
        ),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    config: Config = None,
) -> None:
    """Look at executions in a browser: what happened, its proofs, and what waits for a decision."""
    from mcp_bridge.cli.commands.ui import ui as work

    finish(lambda: work(config or ctx.obj, listen, browser=not no_browser))


@app.command(
    epilog="Examples:\n\nmcp-bridge erase --execution 3f9a1c\n\n"
    "mcp-bridge erase --subject anna@example.org --reason 'asked for on 3 May'"
)
def erase(
    ctx: typer.Context,
    execution: Annotated[
        str | None, typer.Option(metavar="ID", help="Erase this execution, and those that hold its data.")
    ] = None,
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="Erase all data about this person.")] = None,
    ref: Annotated[str | None, typer.Option(metavar="REF", help="The value behind a vault://ref/… reference.")] = None,
    reason: Annotated[str | None, typer.Option(help="Recorded with it, in the clear.")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make arguments, results, code and outputs unreadable for good; the record that something happened stays."""
    from mcp_bridge.cli.commands.erase import erase as work

    named = config or ctx.obj
    finish(
        lambda: work(named, execution=execution, subject=subject, ref=ref, reason=reason, as_json=as_json),
        as_json=as_json,
    )


app.command(
    epilog="Examples:\n\nmcp-bridge backup --passphrase /mnt/usb/bridge.backup\n\n"
    "mcp-bridge backup --recipient age1… --json /mnt/usb/bridge.backup"
)(backup)
app.command(
    epilog="Examples:\n\nmcp-bridge restore /mnt/usb/bridge.backup\n\nmcp-bridge restore --check /mnt/usb/bridge.backup"
)(restore)
app.command("backup-key", epilog="Example:\n\nmcp-bridge backup-key ~/safe/backup.key")(backup_key)


@app.command(epilog="Examples:\n\nmcp-bridge replay 3f9a1c\n\nmcp-bridge replay 3f9a1c --program refund-2.yaml")
def replay(
    ctx: typer.Context,
    execution: Annotated[str, typer.Argument(metavar="ID", help="The execution's id, or any unique prefix of it.")],
    program: Annotated[
        str | None, typer.Option(metavar="FILE|NAME", help="Compare with another version of the program.")
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Replay an execution against its record, without effects, and report any difference.

    A script is run in a sandbox, and every call is answered from the record. The servers that it may use have to be
    configured; they are asked what tools they have, and may be started for that.
    """
    from mcp_bridge.cli.commands.replay import replay as work

    finish(lambda: work(config or ctx.obj, execution, program, as_json=as_json), as_json=as_json)


@app.command(epilog="Examples:\n\nmcp-bridge trust\n\nmcp-bridge trust --list\n\nmcp-bridge trust --revoke ~/src/other")
def trust(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="By default the one you are in.")] = Path(),
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask: you have looked at what is there.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Stop trusting the folder's files.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List what is trusted, and whether it has changed.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a folder's mcp-bridge.toml, .mcp.json and other clients' files would do, and trust exactly that.

    They are ignored until you trust them, and again once they or a file that they load changes.
    """
    from mcp_bridge.cli import configuration_loading
    from mcp_bridge.cli.commands import trust as work

    def done() -> int:
        # The folder must not determine where trust in it is stored.
        loaded = configuration_loading.load(ctx.obj, folder=False)
        if list_:
            return work.list_trusted(loaded, as_json=as_json)
        if revoke:
            return work.revoke(loaded, folder)
        return work.trust(loaded, folder, yes=yes, as_json=as_json)

    finish(done, as_json=as_json)


@app.command(
    epilog="Examples:\n\nmcp-bridge install cursor\n\nmcp-bridge install claude-code --take-over\n\n"
    "mcp-bridge install vscode --project\n\nmcp-bridge install cursor --uninstall"
)
def install(
    ctx: typer.Context,
    client: Program,
    project: Annotated[
        bool, typer.Option("--project", help="Edit the file of the current folder instead of your own.")
    ] = False,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the bridge is called there.")] = "bridge",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Move the client's other servers behind the bridge.")
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Remove the entry, and move the servers back.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    config: Config = None,
) -> None:
    """Put the bridge behind a client. Shows the change of the client's file first, asks, and keeps a backup."""
    from mcp_bridge.cli import configuration_loading
    from mcp_bridge.cli.commands import install as work
    from mcp_bridge.cli.configuration_edits.planned_changes import Request

    def done() -> int:
        named = config or ctx.obj
        # The folder must not determine what is written where.
        loaded = configuration_loading.load(named, folder=False)
        folder = Path.cwd() if project else None
        request = Request(client, folder, name, take_over, yes, named and named.absolute())
        return work.uninstall(loaded, request) if uninstall else work.install(loaded, request)

    finish(done)


@app.command()
def doctor(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """Find out what works here, what this host can't enforce, and how to mend it."""
    from mcp_bridge.cli.commands.doctor import doctor as work

    raise typer.Exit(work(config or ctx.obj, as_json=as_json))


@app.command(epilog="Examples:\n\nmcp-bridge uninstall\n\nmcp-bridge uninstall --state --yes")
def uninstall(
    ctx: typer.Context,
    state: Annotated[
        bool,
        typer.Option(
            "--state",
            help="Also delete the state directory (record, keys, secrets, artifacts, memories). This can't be undone.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    config: Config = None,
) -> None:
    """Remove what the bridge has made on this machine: containers, images, caches. Says what is left, and where."""
    from mcp_bridge.cli import configuration_loading
    from mcp_bridge.cli.commands import uninstall as leaving

    # The folder must not determine what is removed.
    finish(lambda: leaving.uninstall(configuration_loading.load(config or ctx.obj, folder=False), state=state, yes=yes))


@app.command()
def demo(ctx: typer.Context, config: Config = None) -> None:
    """Show the main job on real servers."""
    from mcp_bridge.cli.commands.demo import demo as work

    raise typer.Exit(work(config or ctx.obj))


@app.command(
    epilog="Example:\n\nmcp-bridge witness --listen 127.0.0.1:8377 --log 'mcp-code-bridge/1f…+0a1b2c3d+AQ…'",
)
def witness(
    ctx: typer.Context,
    log: Annotated[list[str], typer.Option(metavar="VKEY", help="The key of a ledger to trust; repeatable.")],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="The address to listen on. Plain HTTP: beyond this host, put TLS in front of it."
        ),
    ] = "127.0.0.1:8377",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="By default one made from its key.")] = None,
    config: Config = None,
) -> None:
    """Cosign the checkpoints of other bridges' ledgers: each may only grow (C2SP tlog-witness)."""
    from mcp_bridge.cli.commands.witness import witness as work

    finish(lambda: work(config or ctx.obj, listen, log, name))


@app.command()
def version(as_json: Json = False) -> None:
    """Show the version."""
    if as_json:
        facts = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.write(f"mcp-bridge {__version__}\n")
