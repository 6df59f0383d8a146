"""`mcp-bridge policy show|check|explain`: the policy, its contradictions, and its decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from mcp_bridge.cli import argument_decoding, configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import finish, print_json
from mcp_bridge.cli.configuration_loading import listed
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.tool_names import tool_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.governance.governance import WrittenPolicy
    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.kernel.step_types import Step
    from mcp_bridge.policy.redaction.projection import Projector
    from mcp_bridge.policy.rules.call import StepContext
    from mcp_bridge.policy.rules.policy_settings import Policy, Source
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot
    from mcp_bridge.settings import Loaded

ForPrincipal: TypeAlias = Annotated[
    str | None,
    typer.Option("--principal", metavar="NAME", help="For that principal, whose own policy lies over everybody's."),
]

policy = typer.Typer(help="Look at the policy, and at what it decides.", no_args_is_help=True)

LIST_SECONDS = 60.0
"""How long servers may take to list their tools with --start."""


class _Read(NamedTuple):
    """The policies as configured, the resulting snapshot, and what its layers are called, from the lowest floor up."""

    written: tuple[WrittenPolicy, ...]
    snapshot: PolicySnapshot
    layers: tuple[str, ...]

    def of_principal(self, name: str, loaded: Loaded) -> _Read:
        """The same with a principal's own policy over it.

        Raises:
            BridgeError: `bad_config`, `bad_principal`.
        """
        from mcp_bridge.governance.principals import policy_source
        from mcp_bridge.policy.rules.floor import layered
        from mcp_bridge.policy.rules.policy_settings import read
        from mcp_bridge.policy.rules.policy_snapshot import freeze

        table = _principal(name, loaded).policy
        if not table:
            return self
        source = policy_source(name, loaded.layers[0].file)
        own = freeze(read(table, source), _hashes(self.written[-1].programs), source)
        return self._replace(
            snapshot=layered(self.snapshot, own), layers=(*self.layers, f"the policy of the principal {name}")
        )


class _Written(NamedTuple):
    """A policy to check: its table, unless that is `[policy]`; its place; and the hashes of its programs, by name."""

    table: str
    policy: Policy
    source: Source
    programs: Mapping[str, str]


def _read(loaded: Loaded) -> _Read:
    """Load the policy without the operator's tools.

    Raises:
        BridgeError: `bad_config`, `bad_program`.
    """
    from mcp_bridge.governance.governance import snapshot_of, written_policies

    written = written_policies(
        loaded.layers, configuration_loading.folder_servers(loaded, configuration_loading.discover_servers(loaded))
    )
    snapshot = snapshot_of(written)
    return _Read(
        written,
        snapshot,
        ("everybody's policy",) if snapshot.floor is None else ("your own policy", "the folder's policy"),
    )


def _principal(name: str, loaded: Loaded) -> Principal:
    """A principal as configured; one without a table has the rights common to all.

    Raises:
        BridgeError: `bad_config`, `bad_principal`.
    """
    from mcp_bridge.governance.principals import LOCAL_PRINCIPAL, Principal, check_principal_name, load_principals

    if name == LOCAL_PRINCIPAL.name:
        return LOCAL_PRINCIPAL
    check_principal_name(name)
    found = load_principals(loaded.layers).get(name)
    if found is None:
        terminal_output.echo_err(
            f"mcp-bridge: there is no table [principals.{name}]: everybody's policy is the only one."
        )
    return found or Principal(name)


@policy.command()
def show(ctx: typer.Context, principal: ForPrincipal = None, config: Config = None, as_json: Json = False) -> None:
    """Show the policy as it is in force: preset, rules in their order, limits, and its hash."""

    def work() -> int:
        loaded = configuration_loading.load(config or ctx.obj)
        read = _read(loaded)
        if principal is not None:
            read = read.of_principal(principal, loaded)
        if as_json:
            print_json(_record(read.snapshot))
            return exit_statuses.OK
        snapshots = list(_from_floor(read.snapshot))
        for name, snapshot in zip(read.layers, snapshots, strict=True):
            if snapshot.floor is not None:
                terminal_output.echo(f"{name} over it, with the lower limits of both:")
            elif len(snapshots) > 1:
                terminal_output.echo(f"{name}, which is a floor:")
            for line in _described(snapshot):
                terminal_output.echo(line)
        return exit_statuses.OK

    finish(work, as_json=as_json)


def _from_floor(snapshot: PolicySnapshot) -> Iterator[PolicySnapshot]:
    if snapshot.floor is not None:
        yield from _from_floor(snapshot.floor)
    yield snapshot


def _record(snapshot: PolicySnapshot) -> dict[str, Any]:
    data = snapshot.model_dump(mode="json", exclude={"floor"}) | {"hash": snapshot.hash}
    return data | ({"floor": _record(snapshot.floor)} if snapshot.floor else {})


def _described(snapshot: PolicySnapshot) -> Iterator[str]:
    yield f"preset {snapshot.preset}, hash {snapshot.hash}"
    if snapshot.trust_hints:
        yield f"the hints of these servers are believed: {', '.join(snapshot.trust_hints)}"
    for compiled in snapshot.compiled.rules:
        number, rule = compiled.number, compiled.rule
        parts = [f"{number}. {rule.effect}{f' ({rule.name})' if rule.name else ''}: {', '.join(rule.tools)}"]
        if rule.programs:
            parts.append(f"as steps of {', '.join(rule.programs)}")
        if rule.when is not None:
            parts.append(f"when {rule.when}")
        if rule.max_calls is not None:
            parts.append(f"at most {rule.max_calls} in one execution")
        yield "; ".join(parts)
        if rule.reason:
            yield f"   {rule.reason}"
    for whose, limits in (("one execution", snapshot.limits), ("one principal", snapshot.limits.principal)):
        told = [
            f"{name} {value:g}" for name, value in limits.model_dump(exclude={"principal"}).items() if value is not None
        ]
        if told:
            yield f"limits of {whose}: {', '.join(told)}"
    for program in snapshot.programs:
        yield f"pinned: {program.name}, {program.hash}"


@policy.command(epilog="Example:\n\nmcp-bridge policy check --start --strict")
def check(
    ctx: typer.Context,
    start: Annotated[bool, typer.Option("--start", help="Start servers whose tools haven't been listed yet.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Find what is wrong with the policy (exit status 1), and warn of what is probably not meant."""

    def work() -> int:
        loaded = configuration_loading.load(config or ctx.obj)
        try:
            policies = _policies(loaded, _read(loaded))
        except BridgeError as exc:
            if not str(exc.details.get("key", "")).startswith("policy"):
                raise
            rows = [_row("error", exc.message + (f" {exc.hint}" if exc.hint else ""), exc.details.get("line"))]
        else:
            rows = _warnings(policies, configuration_loading.configure(config or ctx.obj), start=start)
        errors = [row for row in rows if row["level"] == "error"]
        if as_json:
            print_json({"ok": not errors, "findings": rows})
        else:
            for row in rows:
                terminal_output.echo(f"{row['level']}: {row['message']}")
            if not rows:
                terminal_output.echo("Nothing is wrong with the policy.")
        warned = any(row["level"] == "warning" for row in rows)
        return exit_statuses.FAILED if errors or (strict and warned) else exit_statuses.OK

    finish(work, as_json=as_json)


def _row(level: str, message: str, line: int | None) -> dict[str, Any]:
    return {"level": level, "message": message, "line": line}


def _policies(loaded: Loaded, read: _Read) -> list[_Written]:
    """The policies of the layers and of the principals, whose programs are the operator's.

    Raises:
        BridgeError: `bad_config`.
    """
    from mcp_bridge.governance.principals import load_principals, policy_source
    from mcp_bridge.policy.rules import policy_settings
    from mcp_bridge.policy.rules.policy_snapshot import freeze

    found = [_Written("", each.policy, each.source, _hashes(each.programs)) for each in read.written]
    hashes = found[-1].programs
    for name, principal in load_principals(loaded.layers).items():
        source = policy_source(name, loaded.layers[0].file)
        written = policy_settings.read(principal.policy, source)
        freeze(written, hashes, source)
        found.append(_Written(f"principals.{name}: ", written, source, hashes))
    return found


def _hashes(programs: Mapping[str, Program]) -> dict[str, str]:
    return {name: program.hash for name, program in programs.items()}


def _warnings(
    policies: Sequence[_Written], configuration: configuration_loading.Configuration, *, start: bool
) -> list[dict[str, Any]]:
    import anyio

    from mcp_bridge.policy.rules.policy_warnings import warnings

    servers, listed, silent = anyio.run(_tools, configuration, start)
    tools = {name: [(tool_names(tool), tool.input_schema) for tool in found] for name, found in listed.items()}
    rows = []
    for table, written, source, programs in policies:
        rows += [
            _row("warning", f"{table}{found}", found.line)
            for found in warnings(written, source, programs=programs, servers=servers, tools=tools)
        ]
    if silent and any(each.policy.rules for each in policies):
        why = "they could not be listed" if start else "they haven't been listed yet; --start does"
        rows.append(_row("note", f"rules weren't checked against the tools of {', '.join(silent)}: {why}.", None))
    return rows


async def _tools(
    configuration: configuration_loading.Configuration,
    start: bool,
) -> tuple[dict[str, str], dict[str, Sequence[ToolInfo]], list[str]]:
    """Aliases of all servers by name, the tools of the listed servers, and the names of the others."""
    from mcp_bridge.downstream.catalog.catalog import Catalog
    from mcp_bridge.downstream.client.fleet import Fleet
    from mcp_bridge.governance.governance import LOCAL, refuse_local
    from mcp_bridge.governance.server_credentials import login_store, remote_access
    from mcp_bridge.governance.server_environment import environment

    specs = list(configuration.discovery.servers.values())
    local: tuple[ToolInfo, ...] = ()
    if configuration.governance is not None:
        refuse_local(configuration.governance, specs)
        local = configuration.governance.registry.listing().tools
    given = environment(configuration.settings, configuration.governance)
    access = remote_access(configuration.governance, login_store(configuration.settings))
    async with Fleet(specs, environment=given, access=access) as fleet:
        catalog = Catalog(fleet, configuration.settings.state_dir)
        if start:
            await catalog.search("", 1, wait=LIST_SECONDS)
        servers = {name: server.alias for name, server in fleet.servers.items()} | {LOCAL: LOCAL}
        counts = {status.name: status.tool_count for status in catalog.servers()}
        listed: dict[str, Sequence[ToolInfo]] = {LOCAL: local}
        silent = []
        for name in fleet.servers:
            if counts[name] is None:
                silent.append(name)
            else:
                listed[name] = await catalog.tools(name)
    return servers, listed, silent


@policy.command(
    epilog="Examples:\n\n"
    "mcp-bridge policy explain github.delete_repo\n\n"
    "mcp-bridge policy explain local.capture_payment --args '{\"amount\": 20}' --program payment_pipeline"
)
def explain(
    ctx: typer.Context,
    tool: Annotated[str, typer.Argument(metavar="SERVER.TOOL", help="As a script or a program's step names it.")],
    args: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="The call's arguments, for rules with conditions.")
    ] = None,
    program: Annotated[
        str | None, typer.Option(metavar="NAME", help="The program that makes the call (default: a script).")
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="ID", help="The step that makes the call; inner/step for a nested program.")
    ] = None,
    principal: ForPrincipal = None,
    start: Annotated[bool, typer.Option("--start", help="Start servers whose tools haven't been listed yet.")] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Say which rule decides a call, and what each of the others says of it. Nothing is called."""

    def work() -> int:
        import anyio

        from mcp_bridge.gate.policy_check import judged_arguments
        from mcp_bridge.governance.governance import LOCAL
        from mcp_bridge.policy.rules import explain as explaining
        from mcp_bridge.policy.rules.call import Call

        arguments = argument_decoding.json_object(args, "--args")
        if step is not None and program is None:
            raise BridgeError(
                "bad_argument", "--step is a program's.", hint="Name that, too: --program NAME --step ID."
            )
        loaded = configuration_loading.load(config or ctx.obj)
        read = _read(loaded)
        servers, listed, _ = anyio.run(_tools, configuration_loading.configure(config or ctx.obj), start)
        found = _tool(tool, servers, listed)
        if principal is not None:
            _check_reaches(_principal(principal, loaded), found.server)
            read = read.of_principal(principal, loaded)
        context = None if program is None else _context(loaded, program, step, found)
        _, filled, judged = judged_arguments(
            read.snapshot, _projector(loaded), found, arguments, is_operators=found.server == LOCAL
        )
        call = Call(
            tool_names(found),
            judged,
            found.annotations,
            context,
            schema=found.input_schema,
            complete=filled.whole,
        )
        explained = explaining.explain(read.snapshot, call)
        if as_json:
            print_json(explained.record())
            return exit_statuses.OK
        terminal_output.echo(explained.text(read.layers))
        if found.server not in listed:
            terminal_output.echo_err(
                f"mcp-bridge: the tools of {found.server} haven't been listed yet, so nothing is known of this one."
            )
        if args is None and any(rule.when for each in _from_floor(read.snapshot) for rule in each.rules):
            terminal_output.echo_err("mcp-bridge: without --args the conditions see a call without arguments.")
        return exit_statuses.OK

    finish(work, as_json=as_json)


def _check_reaches(principal: Principal, server: str) -> None:
    """Refuse a server that a principal doesn't reach: for its calls, there is none.

    Raises:
        BridgeError: `unknown_server`.
    """
    if principal.servers is not None and server not in principal.servers:
        raise BridgeError(
            "unknown_server",
            f"The principal {principal.name!r} doesn't reach the server {server!r}: its calls get unknown_server.",
            hint=f"Add it to servers in [principals.{principal.name}], if it is to.",
        )


def _projector(loaded: Loaded) -> Projector:
    """Knows which references are to secrets, and none of their values: rules don't see those either.

    Raises:
        BridgeError: `bad_config`.
    """
    from mcp_bridge.governance.governance import secrets_of
    from mcp_bridge.policy.redaction.projection import Projector
    from mcp_bridge.policy.secrets.value_references import MemoryReferences
    from mcp_bridge.policy.secrets.vault import Secrets

    configured, _ = secrets_of(loaded.layers)
    return Projector(Secrets(grants=dict.fromkeys(configured, ())), MemoryReferences())


def _tool(asked: str, servers: Mapping[str, str], listed: Mapping[str, Sequence[ToolInfo]]) -> ToolInfo:
    """The tool that a name refers to; if its server isn't listed, a tool with this name is assumed.

    Raises:
        BridgeError: `unknown_server`, `unknown_tool`.
    """
    from mcp_bridge.downstream.catalog.aliases import derive
    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.governance.governance import LOCAL
    from mcp_bridge.governance.tool_names import split
    from mcp_bridge.near_names import nearest

    if "." not in asked:
        # As in a program's step, a name without a server refers to an operator's tool.
        known = [name for tool in listed[LOCAL] for name in (tool.name, tool.alias)]
        if asked not in known and not nearest(asked, known):
            raise _no_tool(asked, servers)
        asked = f"{LOCAL}.{asked}"
    server, name = split(asked, servers)
    if not name:
        raise _no_tool(asked, servers)
    if server not in listed:
        return ToolInfo(server=server, server_alias=servers[server], name=name, alias=derive(name))
    for attribute in ("name", "alias"):
        for tool in listed[server]:
            if getattr(tool, attribute) == name:
                return tool
    close = nearest(name, [tool.name for tool in listed[server]])
    hint = f"Did you mean {', '.join(close)}?" if close else "`mcp-bridge servers list --start` lists its tools again."
    raise BridgeError("unknown_tool", f"The server {server!r} has no tool {name[:100]!r}.", hint=hint)


def _no_tool(asked: str, servers: Mapping[str, str]) -> BridgeError:
    """The error for a name without a tool: that of a server, or of a tool without its server."""
    if asked.strip(".") in {*servers, *servers.values()}:
        name = asked.strip(".")
        return BridgeError(
            "unknown_tool", f"{name!r} is a server.", hint=f"Write `mcp-bridge policy explain {name}.TOOL`."
        )
    names = listed(sorted(servers))
    return BridgeError(
        "unknown_tool",
        f"There is no tool {asked[:100]!r}.",
        hint=f"Write SERVER.TOOL, as in `mcp-bridge policy explain github.delete_repo`. Servers: {names}.",
    )


def _context(loaded: Loaded, name: str, path: str | None, tool: ToolInfo) -> StepContext:
    """The programs that enclose a step, and their owners.

    Raises:
        BridgeError: `unknown_program`, `unknown_step`; as `program_sources.one`.
    """
    from mcp_bridge.cli import program_sources
    from mcp_bridge.kernel.step_types import ProgramStep
    from mcp_bridge.policy.rules.call import ProgramRef, StepContext, program_ref

    sources = program_sources.Sources(loaded)
    found, whose = program_sources.one(loaded, name)
    named = None if whose == "file" else name
    chain = [ProgramRef("operator" if whose == "operator" else "agent", found.hash, named)]
    step: Step | None = None
    for part in path.split("/") if path is not None else ():
        if step is not None and not isinstance(step, ProgramStep):
            raise BridgeError("unknown_step", f"The step {step.id!r} runs no program.")
        if step is not None:
            found = step.program
            if step.program_name is not None:
                chain.append(program_ref(found, step.program_name, chain[0].origin, sources.operators))
        step = _step(found, part)
    if step is not None:
        _check_calls(step, tool)
    return StepContext(tuple(chain), path or "")


def _step(program: Program, part: str) -> Step:
    """A step of a program by its id, without the index of a map's item."""
    from mcp_bridge.kernel.step_types import MapStep

    wanted = part.partition("[")[0]
    every = [step for outer in program.steps for step in (outer, *outer.children)]
    for step in every:
        if step.id == wanted:
            # The body of a map has no id of its own.
            return step.body if isinstance(step, MapStep) and not step.body.id else step
    listed = ", ".join(step.id for step in every if step.id)
    raise BridgeError(
        "unknown_step", f"The program {program.name!r} has no step {part[:100]!r}.", hint=f"Steps: {listed}."
    )


def _check_calls(step: Step, tool: ToolInfo) -> None:
    """Raise unless the step calls a tool.

    Raises:
        BridgeError: `unknown_step`.
    """
    from mcp_bridge.kernel.step_types import ToolStep

    called = [step.tool] if isinstance(step, ToolStep) else []
    called += [step.compensation.tool] if isinstance(step, ToolStep) and step.compensation else []
    names = {tool.name, f"{tool.server}.{tool.name}", f"{tool.server_alias}.{tool.alias}"}
    if not any(name in names or name.casefold() in {one.casefold() for one in names} for name in called):
        does = f"it calls {', '.join(called)}" if called else f"it is a {step.kind} step"
        raise BridgeError("unknown_step", f"The step {step.id!r} doesn't call {tool.server}.{tool.name}: {does}.")
