"""The MCP server: the tools that run scripts, in both protocol eras.

The same server is served on stdio, by this module, and over HTTP, by `server.http`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import signal
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_bridge import __version__
from mcp_bridge.bridge_identity import (
    INSTANCE_ID,
    INSTANCE_KEY,
    MAX_BRIDGES,
    NAME,
    VIA_KEY,
    decode_via,
    via,
)
from mcp_bridge.errors import BridgeError, RunInterruptedError
from mcp_bridge.executions.scripts.live_output import LiveOutput
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.near_names import nearest
from mcp_bridge.offload import off_loop, on_thread
from mcp_bridge.server import process_memory
from mcp_bridge.server.answers import displays, render
from mcp_bridge.server.answers.cut_output import cut
from mcp_bridge.server.answers.structured_content import add_record, add_refusal
from mcp_bridge.server.bridge_supervisor import keep_open
from mcp_bridge.server.configuration_reload import INTERNAL_ERROR
from mcp_bridge.server.ending_signals import terminations
from mcp_bridge.server.messages.argument_faults import argument_faults
from mcp_bridge.server.messages.stdio import stdio_transport
from mcp_bridge.server.principal_calls import PrincipalCalls, cancelled_call
from mcp_bridge.server.progress import LIVE_SECONDS, ProgressReporter
from mcp_bridge.server.questions import Conversations, Questions, take_unreadable
from mcp_bridge.server.request_telemetry import RequestTelemetry
from mcp_bridge.server.tool_description import (
    LANGUAGES,
    TOOL,
    error_instructions,
    instructions,
    names,
    tools,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from types import ModuleType

    from mcp.server.context import ServerRequestContext

    from mcp_bridge.error_codes import Code
    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.sandbox.languages import Language
    from mcp_bridge.server.bridge_supervisor import BridgeSupervisor
    from mcp_bridge.server.configuration_reload import Configured, Source
    from mcp_bridge.settings import Settings

logger = logging.getLogger(__name__)

LEAST_SHOWN_CHARS = 300
"""A displayed text that would be cut to less than this is left out."""

_MAX_NAME_CHARS = 100
"""Of a name that is repeated in an error."""

CONVERSATIONS = "conversations"

_ENDED: tuple[Code, str] = "not_a_principal", "Its principal may not use this bridge any more."
_STOPPED: tuple[Code, str] = "cancelled", "The bridge is being stopped."

PRINCIPAL_KEY = "mcp_bridge.principal"
"""Whose request it is, in the scope of a request over HTTP (ASGI)."""


class RunArguments(BaseModel):
    """Arguments of the tools that run scripts."""

    model_config = ConfigDict(extra="forbid", strict=True)

    code: str
    servers: list[str] | None = None
    timeout: Annotated[float, Field(allow_inf_nan=False)] | None = None
    idempotency_key: str | None = None
    session: str | None = None
    fork: str | None = None
    dry_run: bool = False
    files: list[str] | None = None
    packages: list[str] | None = None


@contextlib.asynccontextmanager
async def _conversations(_: Server[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """The lifespan of the server: its task group runs calls that wait for answers."""
    async with anyio.create_task_group() as tasks:
        yield {CONVERSATIONS: Conversations(tasks)}
        tasks.cancel_scope.cancel()


async def _listed_resources(bridge: Bridge, cursor: str | None) -> types.ListResourcesResult:
    """A page of the resources.

    Raises:
        MCPError: The cursor isn't one.
    """
    from mcp_bridge.server import resources  # noqa: PLC0415  (many clients list none)

    try:
        return await resources.listed(bridge, cursor)
    except BridgeError as exc:
        raise MCPError(types.INVALID_PARAMS, str(exc), {"code": exc.code}) from None


def mcp_server(
    supervisor: BridgeSupervisor,
    begun: anyio.Event,
    *,
    programs: bool,
    calls: PrincipalCalls | None = None,
) -> Server[dict[str, Any]]:
    """The server.

    Args:
        supervisor: Has the bridge.
        begun: Set once the client has been told the tools, or has called one.
        programs: Whether it has the tools for programs too.
        calls: Has each call while it is under way; for whoever may have to end those of a principal.
    """
    under_way = calls or PrincipalCalls()
    # Only imported if it is used.
    offered = importlib.import_module("mcp_bridge.server.program_tools") if programs else None

    async def list_tools(
        ctx: ServerRequestContext[dict[str, Any]], _: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        begun.set()
        return types.ListToolsResult(
            tools=[*tools(supervisor.settings), *(offered.tools() if offered else ())],
            # For bridges alone: others have no use for it, and may show it to their model.
            _meta={INSTANCE_KEY: INSTANCE_ID} if (_client(ctx) or "").startswith(NAME) else None,
        )

    async def call_tool(
        ctx: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        begun.set()
        name = params.name
        scripted = names(supervisor.settings)
        offered_names = [*scripted, *(offered.NAMES if offered else ())]
        if name not in offered_names:
            raise MCPError(types.INVALID_PARAMS, _no_such_tool(name, offered_names))

        async def work(questions: Questions) -> types.CallToolResult:
            questions.may_approve = functools.partial(_may_approve, supervisor, ctx)
            begin = functools.partial(_call, supervisor, ctx, questions, offered, params)
            result = await under_way.run(principal_of(ctx).name, begin)
            if result is not None:
                return result
            why = cancelled_call(*(_STOPPED if under_way.is_over else _ENDED), execution=questions.execution)
            if offered is not None and name not in scripted:
                ended: types.CallToolResult = offered.refused(why, supervisor.settings)
                return ended
            return _refused(supervisor.settings, ctx, why, "cancelled", questions.execution)

        conversations: Conversations = ctx.lifespan_context[CONVERSATIONS]
        return await conversations.call(ctx, params, work, principal_of(ctx).name)

    async def read_resource(
        ctx: ServerRequestContext[dict[str, Any]], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        from mcp_bridge.server import resources  # noqa: PLC0415  (most clients read none)

        bridge = await _opened(supervisor, ctx)
        try:
            contents = await resources.read(bridge, str(params.uri))
        except BridgeError as exc:
            raise MCPError(types.INVALID_PARAMS, str(exc), {"code": exc.code}) from None
        return types.ReadResourceResult(contents=[contents])

    async def list_resources(
        ctx: ServerRequestContext[dict[str, Any]], params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        try:
            bridge = await _bridge_of(supervisor, ctx)
        except BridgeError:
            # Not an error: when listing resources fails, Claude Code ignores the server's tools as well.
            return types.ListResourcesResult(resources=[])
        return await _listed_resources(bridge, None if params is None else params.cursor)

    async def list_templates(
        _: ServerRequestContext[dict[str, Any]], __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        from mcp_bridge.server import resources  # noqa: PLC0415

        return types.ListResourceTemplatesResult(resource_templates=resources.templates())

    server = Server(
        NAME,
        version=__version__,
        instructions=server_instructions(supervisor),
        lifespan=_conversations,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    server.middleware.insert(0, RequestTelemetry({*LANGUAGES, *(offered.NAMES if offered else ())}))
    server.middleware.append(take_unreadable)
    return server


def _no_such_tool(name: str, known: Sequence[str]) -> str:
    close = nearest(name, known, count=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    *others, last = known
    listed = f"the tools are {', '.join(others)} and {last}" if others else f"the one tool is {last}"
    return f"There is no tool {name[:_MAX_NAME_CHARS]!r}{meant}; {listed}."


def principal_of(ctx: ServerRequestContext[dict[str, Any]]) -> Principal:
    """Whose request it is. On stdio there is no HTTP request, and one client, whose process this is."""
    if ctx.request is None:
        return LOCAL_PRINCIPAL
    principal: Principal = ctx.request.scope[PRINCIPAL_KEY]
    return principal


async def _bridge_of(supervisor: BridgeSupervisor, ctx: ServerRequestContext[dict[str, Any]]) -> Bridge:
    """What the request's principal has of the bridge.

    Raises:
        BridgeError: As `BridgeSupervisor.bridge` and `Bridge.for_principal`.
    """
    return _view(await supervisor.bridge(), principal_of(ctx))


async def _bridge_for_call(supervisor: BridgeSupervisor, ctx: ServerRequestContext[dict[str, Any]]) -> Bridge:
    """As `_bridge_of`, for a call that has come through the bridges `via`.

    Raises:
        BridgeError: `bridge_cycle`; as `_bridge_of`.
    """
    came = via.get()
    instances = [instance for instance, _ in came]
    if INSTANCE_ID in instances:
        way, problem = came[instances.index(INSTANCE_ID) :], "has come back to the bridge that has made it"
    elif len(came) >= MAX_BRIDGES:
        way, problem = came, f"has already come through {MAX_BRIDGES} bridges, which is the most"
    else:
        return await _bridge_of(supervisor, ctx)
    named = " -> ".join(repr(server) for _, server in way)
    raise BridgeError(
        "bridge_cycle",
        f"This call {problem}. The way is: {named}, each a server of the one before it. Nothing was run.",
        hint="Take one of these bridges out of another's servers.",
    )


async def _may_approve(supervisor: BridgeSupervisor, ctx: ServerRequestContext[dict[str, Any]]) -> bool:
    """Whether the request's principal decides what waits for a person, by the configuration of now."""
    try:
        return (await _bridge_of(supervisor, ctx)).principal.may_approve
    except BridgeError:
        return False


def _view(bridge: Bridge, principal: Principal) -> Bridge:
    return bridge if principal is LOCAL_PRINCIPAL else bridge.for_principal(principal)


async def _opened(supervisor: BridgeSupervisor, ctx: ServerRequestContext[dict[str, Any]]) -> Bridge:
    """The bridge, for a request other than a tool call; raises protocol errors."""
    try:
        return await _bridge_of(supervisor, ctx)
    except BridgeError as exc:
        raise MCPError(types.INTERNAL_ERROR, f"[{exc.code}] {exc}", {"code": exc.code}) from None


def server_instructions(supervisor: BridgeSupervisor, principal: Principal | None = LOCAL_PRINCIPAL) -> str:
    """The instructions for a principal's clients, which name its servers if they are known; None names none."""
    if supervisor.error is not None:
        return error_instructions(supervisor.settings, supervisor.error)
    aliases = None
    if supervisor.current is not None and principal is not None:
        # A policy that can't be used is told by each call.
        with contextlib.suppress(BridgeError):
            aliases = _view(supervisor.current, principal).aliases()
    return instructions(supervisor.settings, aliases)


async def serve_stdio(source: Source, first: Configured | BridgeError, *, programs: bool = False) -> BridgeError | None:
    """Serve until standard input ends, or SIGTERM, SIGHUP or SIGINT is received; then end everything that was started.

    Args:
        source: The configuration's files.
        first: The configuration if it was already read, or the error.
        programs: Whether it has the tools for programs too.

    Returns:
        The error because of which nothing could be run at the end, or None.
    """
    process_memory.configure_interpreter()
    begun = anyio.Event()
    async with keep_open(source, first, functools.partial(prepare_ahead, begun)) as supervisor:
        server = mcp_server(supervisor, begun, programs=programs)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_on_signal, scope)
                tasks.start_soon(process_memory.release_memory)
                async with stdio_transport() as (read, write):
                    await server.run(read, write, server.create_initialization_options())
                scope.cancel()
    return supervisor.error


async def _end_on_signal(scope: anyio.CancelScope) -> None:
    try:
        with anyio.open_signal_receiver(*terminations(), signal.SIGINT) as signals:
            logger.info("%s: leaving", (await anext(signals)).name)
            scope.cancel()
    finally:
        # Another one ends the process at once, where asyncio has SIGINT raise KeyboardInterrupt in the midst of ending.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


_OF_A_SANDBOX = ("mcp_bridge.sandbox.open_driver", "mcp_bridge.sandbox.image.image", "mcp_bridge.sandbox.engine_choice")
_OF_A_CALL = ("mcp_bridge.executions.scripts.lifecycle", "mcp_bridge.host.request_handlers", "mcp_bridge.gate.gate")
_OF_A_SERVER = ("mcp_bridge.downstream.client.mcp_connection", "jsonschema.validators", "jsonschema_specifications")
"""Modules that the first sandbox needs, those that the first call imports, and those that the first call of a server's
tool imports."""

BEGIN_SECONDS = 1.0
"""How long nothing is prepared in advance, for a client that hasn't asked for the tools yet."""


async def prepare_ahead(begun: anyio.Event, bridge: Bridge) -> None:
    """Probe, build the image, start containers and import modules in advance. Errors are reported by the first call."""
    # An import on a thread would take the interpreter lock from the answers that the client waits for at its start.
    with anyio.move_on_after(BEGIN_SECONDS):
        await begun.wait()
    await _import_on_threads(_OF_A_SANDBOX)
    with contextlib.suppress(BridgeError):
        await bridge.sandboxes.start_ahead()
    await _import_on_threads((*_OF_A_CALL, *(_OF_A_SERVER if bridge.fleet.servers else ())))
    # Objects that exist now are permanent: scanning them takes the garbage collector 50 ms in any thread.
    gc.freeze()
    # Importing has freed a mebibyte.
    await anyio.to_thread.run_sync(process_memory.return_memory)


async def _import_on_threads(names: Sequence[str]) -> None:
    """Import modules one at a time on a thread: each takes up to 100 ms, which a call would spend on the event loop."""
    for name in names:
        await on_thread(importlib.import_module, name)


async def _call(
    supervisor: BridgeSupervisor,
    ctx: ServerRequestContext[dict[str, Any]],
    questions: Questions,
    offered: ModuleType | None,
    params: types.CallToolRequestParams,
) -> types.CallToolResult:
    """Call a tool; `offered` has those for programs."""
    name, arguments = params.name, params.arguments or {}
    token = via.set(decode_via((params.meta or {}).get(VIA_KEY)))
    try:
        if offered is None or name in LANGUAGES:
            return await _run(supervisor, ctx, questions, name, arguments)
        try:
            bridge = await _bridge_for_call(supervisor, ctx)
        except BridgeError as exc:
            refused: types.CallToolResult = offered.refused(exc, supervisor.settings)
            return refused
        result: types.CallToolResult = await offered.call(bridge, name, arguments, questions)
        return result
    finally:
        via.reset(token)


async def _run(
    supervisor: BridgeSupervisor,
    ctx: ServerRequestContext[dict[str, Any]],
    questions: Questions,
    name: str,
    arguments: dict[str, Any],
) -> types.CallToolResult:
    # Before the configuration is looked at: meanwhile a container that waits prepares itself.
    with _expected(supervisor.current, arguments) as is_expected:
        try:
            bridge = await _bridge_for_call(supervisor, ctx)
            request = RunArguments.model_validate(arguments)
        except ValidationError as exc:
            return _refused(supervisor.settings, ctx, _bad_arguments(name, exc))
        except BridgeError as exc:
            return _refused(supervisor.settings, ctx, exc)
        return await _run_script(supervisor, bridge, ctx, questions, LANGUAGES[name], request, is_expected=is_expected)


@contextlib.contextmanager
def _expected(bridge: Bridge | None, arguments: dict[str, Any]) -> Iterator[bool]:
    """As `Bridge.expected`; False if there is no bridge yet."""
    if bridge is None:
        yield False
        return
    with bridge.expected(arguments.get("session"), arguments.get("packages")):
        yield True


async def _run_script(
    supervisor: BridgeSupervisor,
    bridge: Bridge,
    ctx: ServerRequestContext[dict[str, Any]],
    questions: Questions,
    language: Language,
    request: RunArguments,
    *,
    is_expected: bool,
) -> types.CallToolResult:
    reporter = ProgressReporter(questions)
    is_reported = _wants_progress(ctx) or questions.continues
    async with _reported(reporter, is_wanted=is_reported):
        try:
            record = await bridge.run(
                request.code,
                servers=request.servers,
                timeout=request.timeout,
                key=request.idempotency_key,
                session=request.session,
                fork=request.fork,
                dry_run=request.dry_run,
                files=request.files,
                packages=request.packages or (),
                language=language,
                is_expected=is_expected,
                progress=reporter.progress,
                notify=reporter.notify,
                asker=questions,
                sampler=questions.sample,
                # Without a progress token, no output is projected while the script runs.
                live=LiveOutput(reporter.printed, LIVE_SECONDS) if _wants_progress(ctx) else None,
                # A server is asked for its progress only if somebody is told of it.
                on_server_message=reporter.notify if is_reported else None,
                on_begun=questions.begun,
            )
            record.notices += questions.notices
            if principal_of(ctx) is LOCAL_PRINCIPAL:
                record.notices += supervisor.configuration_changes()
            # This may take long: it may have to count and store all output.
            result = await off_loop([record.stdout, record.stderr, record.value], _answer, bridge, ctx, record)
        except RunInterruptedError as exc:
            result = _refused(bridge.settings, ctx, exc, "interrupted", exc.execution)
        except BridgeError as exc:
            result = _refused(bridge.settings, ctx, exc)
        except Exception:
            # Internal errors are logged here: the client would only see the task group's exception group.
            logger.exception("running a script failed")
            result = _refused(bridge.settings, ctx, INTERNAL_ERROR)
    return result


@contextlib.asynccontextmanager
async def _reported(reporter: ProgressReporter, *, is_wanted: bool) -> AsyncIterator[None]:
    """Send a call's progress meanwhile. To a client that has asked for none, that would be a task without an effect."""
    if not is_wanted:
        yield
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reporter.report)
        yield
        await reporter.finish()
        tasks.cancel_scope.cancel()


def _wants_progress(ctx: ServerRequestContext[dict[str, Any]]) -> bool:
    return ctx.meta is not None and ctx.meta.get("progress_token") is not None


def _bad_arguments(tool: str, exc: ValidationError) -> BridgeError:
    return BridgeError(
        "bad_arguments",
        f"{argument_faults(exc, RunArguments.model_fields)}.",
        hint=f"{tool} takes code, and optionally servers, timeout, idempotency_key, session, fork, dry_run"
        + (", files and packages." if tool == TOOL else " and files."),
    )


def _refused(
    settings: Settings,
    ctx: ServerRequestContext[dict[str, Any]],
    error: BridgeError,
    status: str = "refused",
    execution: str | None = None,
) -> types.CallToolResult:
    """The answer to a call that has no record; `execution` if it had begun one."""
    result = types.CallToolResult(content=[types.TextContent(text=render.refusal(error))], is_error=True)
    begun = {} if execution is None else {"execution": execution}
    add_refusal(result, begun | {"status": status, "error": error.record()}, settings, _client(ctx))
    return result


def _answer(bridge: Bridge, ctx: ServerRequestContext[dict[str, Any]], record: ExecutionRecord) -> types.CallToolResult:
    """The content blocks and record of an answer. What the model may see of them is within `max_output_chars`.

    The record is added as `structured_content` says.
    """
    settings, client = bridge.settings, _client(ctx)
    if ctx.request is not None:
        # Over HTTP.
        record = render.for_elsewhere(record)
    answer = render.Answer(record, settings, bridge.files)
    # A dry run that waits for a decision on its list has done what was asked for.
    limit, is_error = settings.max_output_chars, record.status != "success" and not record.planned
    shown = list(displays.checked(record.displays))
    texts = sum(len(_displayed(one)) for one in shown)
    text = answer.text(limit - min(texts, limit // 2))
    content = _blocks(answer, shown, limit - len(text), images=not is_error or displays.shows_images_of_errors(client))
    if text:
        content.insert(0, types.TextContent(text=text))
    result = types.CallToolResult(content=content, is_error=is_error)
    add_record(result, answer, settings, client)
    return result


def _client(ctx: ServerRequestContext[dict[str, Any]]) -> str | None:
    return ctx.session.client_params.client_info.name if ctx.session.client_params else None


def _displayed(shown: displays.Text | displays.Image | displays.Omitted) -> str:
    """The text to read of a displayed object."""
    match shown:
        case displays.Image():
            return ""
        case displays.Text():
            return shown.text
    return str(shown)


def _blocks(
    answer: render.Answer,
    shown: Sequence[displays.Text | displays.Image | displays.Omitted],
    room: int,
    *,
    images: bool,
) -> list[types.ContentBlock]:
    """Displayed objects as content blocks: images, and texts within `room` characters in total."""
    blocks: list[types.ContentBlock] = []
    whole = "\n".join(text for one in shown if (text := _displayed(one)))
    where = answer.kept.where("displays", whole) if len(whole) > room else ""
    more = f"[… {len(shown)} more texts displayed{where} …]"
    if len(whole) > room:
        room -= len(more)
    unread = 0
    for one in shown:
        if isinstance(one, displays.Image):
            if images:
                blocks.append(types.ImageContent(data=one.data, mime_type=one.mime_type))
                continue
            text = f"[{one.mime_type} of {one.size} bytes: shown only where the script succeeds]"
        else:
            text = _displayed(one)
        if len(text) > room and room < LEAST_SHOWN_CHARS:
            unread += 1
            continue
        blocks.append(types.TextContent(text=cut(text, room, where)))
        room -= min(len(text), room)
    if unread:
        blocks.append(types.TextContent(text=f"[… {unread} more texts displayed{where} …]"))
    return blocks
