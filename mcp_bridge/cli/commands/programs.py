"""`mcp-bridge program run|validate|graph|list|show|save|from-execution|delete|plan`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from mcp_bridge.cli import argument_decoding, configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import (
    drive,
    finish,
    print_json,
    read_database,
    refuse_without_ledger,
    run_with_bridge,
)
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL

if TYPE_CHECKING:
    from mcp_bridge.cli.program_sources import ProgramFile, Sources
    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.ledger.storage.database import Database

programs = typer.Typer(
    help="Run, check, draw and keep programs: steps that are governed one by one.",
    no_args_is_help=True,
    epilog="Exit status of run: 0 success; 1 the program failed; 5 it is suspended; 2 usage; 4 refused.",
)

Source: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE|NAME", help="A .yaml, .json or .toml file, - for standard input, or a name.")
]
RUN_AS_FILE = "this is the operator's program {!r}, and run as a file it is the agent's to the policy. By its name: {}"
"""Said before a configured program is run by its file, as a format: it has the rights of anybody's file."""

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="As `program list` has it.")]


@programs.command(
    epilog="Examples:\n\n"
    "mcp-bridge program run refund.yaml --context '{\"order\": 7}'\n\n"
    "mcp-bridge program run refund --context @order.json --key order-7"
)
def run(
    ctx: typer.Context,
    program: Source,
    context: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="Names and values that its steps refer to.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Idempotency key: with the same one it runs once.")
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Run a program, without a sandbox: nothing of it is code."""
    named = config or ctx.obj

    def work() -> int:
        from mcp_bridge.cli import program_sources
        from mcp_bridge.cli.terminal_prompts import terminal

        values = argument_decoding.json_object(context, "--context")
        if key == "":
            raise BridgeError("bad_argument", "--key is empty.", hint="Leave it out, or name what is to be done once.")
        is_file = program_sources.is_file(program)
        requested = _as_object(program_sources.read(program), program) if is_file else program

        async def started(bridge: Bridge) -> dict[str, Any]:
            return await bridge.run_program(requested, values, key, starter="operator", asker=terminal())

        configuration = configuration_loading.configure(named)
        # Whoever pipes a program in has no file to name instead.
        is_named = is_file and program != program_sources.STDIN
        if is_named and (own := program_sources.configured_name(configuration.governance, program, requested)):
            by_name = terminal_output.command(f"program run {shlex.quote(own)}", named)
            terminal_output.echo_err(f"mcp-bridge: {RUN_AS_FILE.format(own, by_name)}")
        return terminal_output.status_of(drive(configuration, started, named, as_json=as_json))

    finish(work, as_json=as_json)


@programs.command(epilog="Example:\n\nmcp-bridge program validate programs/*.yaml")
def validate(
    ctx: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Program files, or - for standard input.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Find every fault of programs, before anything runs. Exit status 1 if there is one, 2 if a file is missing."""

    def work() -> int:
        from mcp_bridge.cli import program_sources as sources

        # The files, and perhaps the folder, are a stranger's: the folder's configuration is ignored.
        loaded = configuration_loading.load(config or ctx.obj, folder=False)
        read: list[ProgramFile | dict[str, Any]] = []
        missing = [file for file in files if file != sources.STDIN and not Path(file).is_file()]
        for file in files:
            if file in missing:
                read.append(_finding(file, [{"path": "", "code": "bad_argument", "message": "there is no such file"}]))
                continue
            try:
                read.append(sources.ProgramFile(file, sources.read(file)))
            except BridgeError as exc:
                read.append(_finding(file, [{"path": "", "code": exc.code, "message": exc.message}]))
        known = sources.Sources(loaded, [row for row in read if isinstance(row, sources.ProgramFile)], lenient=True)
        rows = [_validated(known, row) if isinstance(row, sources.ProgramFile) else row for row in read]
        if known.problem is not None:
            terminal_output.echo_err(f"mcp-bridge: the configured programs are left out: {known.problem}")
        if as_json:
            print_json(rows)
        else:
            for row in rows:
                _print_validated(row)
        if missing:
            return exit_statuses.USAGE
        return exit_statuses.FAILED if any(row["faults"] for row in rows) else exit_statuses.OK

    finish(work, as_json=as_json)


def _validated(sources: Sources, file: ProgramFile) -> dict[str, Any]:
    from mcp_bridge.kernel.language import program_warnings
    from mcp_bridge.kernel.language.program_parser import InvalidProgramError

    try:
        program = sources.parse(file)
    except InvalidProgramError as exc:
        return _finding(file.label, [fault._asdict() for fault in exc.faults])
    warnings = [fault._asdict() for fault in program_warnings.warnings(program)]
    return _finding(file.label, []) | {"warnings": warnings, "hash": program.hash, "steps": len(program.steps)}


def _finding(file: str, faults: list[dict[str, Any]]) -> dict[str, Any]:
    return {"file": file, "faults": faults, "warnings": [], "hash": None, "steps": None}


def _print_validated(row: dict[str, Any]) -> None:
    count = len(row["faults"])
    if count:
        terminal_output.echo(f"{row['file']}: {count} fault{'' if count == 1 else 's'}")
    else:
        terminal_output.echo(
            f"{row['file']}: valid, {row['steps']} step{'' if row['steps'] == 1 else 's'}, {row['hash']}"
        )
    for fault in row["faults"]:
        terminal_output.echo(f"  {fault['path'] + ': ' if fault['path'] else ''}{fault['message']}")
    for fault in row["warnings"]:
        terminal_output.echo(f"  warning: {fault['path']}: {fault['message']}")


@programs.command(
    epilog="Examples:\n\n"
    "mcp-bridge program graph refund.yaml\n\n"
    "mcp-bridge program graph refund --format svg --output refund.svg"
)
def graph(
    ctx: typer.Context,
    program: Source,
    form: Annotated[
        Literal["mermaid", "svg"], typer.Option("--format", help="Mermaid's text, or a picture.")
    ] = "mermaid",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Instead of standard output.")
    ] = None,
    config: Config = None,
) -> None:
    """Draw a program: its steps, and where each may lead."""

    def work() -> int:
        from mcp_bridge.cli import program_sources
        from mcp_bridge.governance.program_files import SUFFIXES
        from mcp_bridge.views import graph as drawing

        if output is not None and output.suffix.lower() in SUFFIXES and output.exists():
            raise BridgeError(
                "bad_argument",
                f"--output: {output} is there, and may be a program.",
                hint=f"Write --output {output.stem}.svg, or another name that doesn't end in {output.suffix}.",
            )

        loaded = configuration_loading.load(config or ctx.obj, folder=not program_sources.is_file(program))
        parsed, _ = program_sources.one(loaded, program)
        drawn = drawing.draw(parsed)
        if form == "svg":
            from mcp_bridge.views.graph_svg import svg

            text = svg(drawn)
        else:
            from mcp_bridge.views.graph_mermaid import mermaid

            text = mermaid(drawn)
        if output is None:
            # Written as UTF-8 bytes, as in a file, whatever the terminal's encoding.
            sys.stdout.buffer.write(text.encode())
            return exit_statuses.OK
        try:
            output.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise BridgeError("bad_argument", f"--output: {output} can't be written: {why}.") from None
        return exit_statuses.OK

    finish(work)


@programs.command("list")
def list_(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """List the programs that can be run by name: the operator's, and those that are kept."""

    def work() -> int:
        from mcp_bridge.cli.program_sources import Sources

        sources = Sources(configuration_loading.load(config or ctx.obj))
        owned = {name: (sources.restored(name), "agent") for name in sources.saved}
        owned |= {name: (program, "operator") for name, program in sources.operators.items()}
        names = sorted(owned)
        if as_json:
            print_json({"programs": [_listed(name, *owned[name]) for name in names]})
        elif not names:
            terminal_output.echo("No program: name a folder in [programs], or keep one with `mcp-bridge program save`.")
        else:
            rows = []
            for name in names:
                program, owner = owned[name]
                about = terminal_output.short_value(program.description)
                rows.append((name, owner, program.version, str(len(program.steps)), program.hash[:12], about))
            terminal_output.table(("name", "whose", "version", "steps", "hash", "description"), rows)
        return exit_statuses.OK

    finish(work, as_json=as_json)


def _listed(name: str, program: Program, owner: str) -> dict[str, Any]:
    return {
        "name": name,
        "owner": owner,
        "version": program.version,
        "description": program.description,
        "steps": len(program.steps),
        "hash": program.hash,
    }


@programs.command(epilog="Example:\n\nmcp-bridge program show refund > refund.json")
def show(ctx: typer.Context, name: Source, config: Config = None) -> None:
    """Print a program as JSON, which `program run` takes."""

    def work() -> int:
        from mcp_bridge.cli import program_sources

        program, owner = program_sources.one(configuration_loading.load(config or ctx.obj), name)
        print_json(program.data, indent=True)
        whose = "from a file" if owner == "file" else f"the {owner}'s"
        terminal_output.echo_err(f"mcp-bridge: {name}: {whose}, hash {program.hash}")
        return exit_statuses.OK

    finish(work)


@programs.command(epilog="Example:\n\nmcp-bridge program save refund refund.yaml")
def save(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name to save it under; operators' names are reserved.")
    ],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A program file, or - for standard input.")],
    config: Config = None,
) -> None:
    """Save a program under a name, as a script's mcp.programs.save does: it doesn't become the operator's."""

    def work() -> int:
        from mcp_bridge.cli import program_sources

        data = program_sources.read(file)
        configuration = configuration_loading.configure(config or ctx.obj)

        async def saved(bridge: Bridge) -> str:
            row = await bridge.programs.library.save(name, _as_object(data, file), LOCAL_PRINCIPAL.name)
            return str(row["hash"])

        terminal_output.echo(f"saved {name}: {run_with_bridge(configuration, saved)}")
        return exit_statuses.OK

    finish(work)


def _as_object(data: Any, label: str) -> dict[str, Any]:
    """The program as an object: the bridge would take a text for a program's name."""
    if not isinstance(data, dict):
        raise BridgeError("bad_program", f"{label}: a program is an object with a list of 'steps'.")
    return data


@programs.command(
    epilog="Examples:\n\n"
    "mcp-bridge program from-execution 3f2a91 > refund.yaml\n\n"
    "mcp-bridge program from-execution 3f2a91 --output refund.yaml\n\n"
    "mcp-bridge program from-execution 3f2a91 --first-cell 4"
)
def from_execution(
    ctx: typer.Context,
    execution: Annotated[str, typer.Argument(metavar="ID", help="As `execution list` has it; its beginning will do.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A new file, instead of standard output.")
    ] = None,
    first_cell: Annotated[
        int | None,
        typer.Option("--first-cell", metavar="N", help="For a session: the first cell to include (default: 1)."),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write a program that makes the calls of a script's execution, for you to correct. Nothing is run or kept.

    Of a cell, its session's cells up to it are taken as one script.
    """

    def work() -> int:
        from mcp_bridge.executions.programs.from_script.program_from_script import (
            DerivedProgram,
            program_from_execution,
        )
        from mcp_bridge.governance import yaml_text
        from mcp_bridge.ledger.log.recorder import SqliteRecorder
        from mcp_bridge.ledger.storage.execution_store import ProgramStore

        async def derived(database: Database) -> DerivedProgram:
            store = ProgramStore(database)
            stored = await argument_decoding.execution(store, execution)
            return await program_from_execution(store, SqliteRecorder(database), stored, first_cell)

        loaded = configuration_loading.load(config or ctx.obj)
        made = read_database(loaded.settings, derived)
        if as_json:
            print_json({"program": made.data, "remarks": made.remarks}, indent=True)
            return exit_statuses.OK
        text = yaml_text.dump(made.data, [*made.remarks])
        if output is None:
            # Written as UTF-8 bytes, as in a file, whatever the terminal's encoding.
            sys.stdout.buffer.write(text.encode())
            return exit_statuses.OK
        try:
            with output.open("x", encoding="utf-8") as file:
                file.write(text)
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise BridgeError("bad_argument", f"--output: {output} can't be written: {why}.") from None
        terminal_output.echo_err(
            f"mcp-bridge: {output}: read it, then: {terminal_output.command(f'program run {output}', config)}"
        )
        return exit_statuses.OK

    finish(work, as_json=as_json)


@programs.command()
def delete(ctx: typer.Context, name: Name, config: Config = None) -> None:
    """Delete a saved program. The record of its executions stays."""

    def work() -> int:
        from mcp_bridge.executions.programs.library import ProgramLibrary
        from mcp_bridge.ledger.storage.execution_store import ProgramStore

        configuration = configuration_loading.configure(config or ctx.obj)

        async def deleted_from(library: ProgramLibrary) -> None:
            if not await library.delete(name, LOCAL_PRINCIPAL.name):
                raise BridgeError(
                    "unknown_program",
                    f"There is no program {name[:100]!r}.",
                    hint="`mcp-bridge program list` has them.",
                )

        async def looked(database: Database) -> None:
            operators = configuration.governance.programs if configuration.governance else {}
            await deleted_from(ProgramLibrary(ProgramStore(database), operators))

        async def deleted(bridge: Bridge) -> bool:
            await deleted_from(bridge.programs.library)
            return True

        refuse_without_ledger(configuration.settings, looked)
        run_with_bridge(configuration, deleted)
        terminal_output.echo(f"deleted {name}")
        return exit_statuses.OK

    finish(work)


@programs.command(epilog="Example:\n\nmcp-bridge program plan 'refund order 7 after a person has agreed' --save refund")
def plan(
    ctx: typer.Context,
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="What the program shall do, in words.")],
    save_as: Annotated[
        str | None, typer.Option("--save", metavar="NAME", help="Also save it under this name. The program isn't run.")
    ] = None,
    config: Config = None,
) -> None:
    """Have the configured model write a program; it is checked before it is printed."""

    def work() -> int:
        if not intent.strip():
            raise BridgeError("bad_argument", "The intent is empty.", hint="Say what the program shall do.")
        configuration = configuration_loading.configure(config or ctx.obj)

        async def planned(bridge: Bridge) -> dict[str, Any]:
            if save_as is not None:
                # Checked before the model is paid for.
                bridge.programs.library.check_name(save_as)
            program = await bridge.plan_program(intent)
            if save_as is not None:
                await bridge.programs.library.save(save_as, program, LOCAL_PRINCIPAL.name)
            return program

        print_json(run_with_bridge(configuration, planned), indent=True)
        return exit_statuses.OK

    finish(work)
