"""The MCP server: `run_python`, in both protocol eras."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_bridge import __version__
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.live_output import LiveOutput
from mcp_bridge.offload import off_loop, on_thread
from mcp_bridge.server import displays, process, render
from mcp_bridge.server.keeper import INTERNAL_ERROR, kept
from mcp_bridge.server.presentation import TOOL, instructions, tool, unready
from mcp_bridge.server.questions import Conversations, Questions
from mcp_bridge.server.stdio import stdio_transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.host.service import Bridge
    from mcp_bridge.server.keeper import Configured, Keeper, Source
    from mcp_bridge.settings import Settings

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
"""How often a client that gave a progress token hears that a run goes on; clients give up after sixty."""

LIVE_SECONDS = 1.0
"""How often a client that gave a progress token hears what a script has printed."""

LIVE_CHARS = 2000
"""How much of it, from its end, one message has."""

LEAST_SHOWN_CHARS = 300
"""A displayed text that is cut to less than that is left out."""

RECORD_META = "mcp-code-bridge/record"

CONVERSATIONS = "conversations"


class RunArguments(BaseModel):
    """Arguments of `run_python`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    code: str
    servers: list[str] | None = None
    timeout: Annotated[float, Field(allow_inf_nan=False)] | None = None
    idempotency_key: str | None = None


@contextlib.asynccontextmanager
async def _conversations(_: Server[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """What lives as long as the server: calls that wait for answers go on in it."""
    async with anyio.create_task_group() as tasks:
        yield {CONVERSATIONS: Conversations(tasks)}
        tasks.cancel_scope.cancel()


class _Open:
    """A bridge that somebody else keeps open, as a `Keeper` has it."""

    error: BridgeError | None = None

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self.settings = bridge.settings

    async def bridge(self) -> Bridge:
        return self._bridge

    def aliases(self) -> list[str] | None:
        return self._bridge.aliases()

    def news(self) -> list[str]:
        return []


def build_server(bridge: Bridge, *, programs: bool = False) -> Server[dict[str, Any]]:
    """The server over a bridge; with `programs` there are tools for programs beside the one."""
    return _server(_Open(bridge), programs=programs)


def _server(keeper: Keeper | _Open, *, programs: bool) -> Server[dict[str, Any]]:
    # What isn't offered isn't loaded.
    offered = importlib.import_module("mcp_bridge.server.program_tools") if programs else None

    async def list_tools(
        _: ServerRequestContext[dict[str, Any]], __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool(keeper.settings), *(offered.tools() if offered else ())])

    async def call_tool(
        ctx: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        name, arguments = params.name, params.arguments or {}
        if name != TOOL and not (offered and name in offered.NAMES):
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {name!r}; the one tool is {TOOL}.")

        async def work(questions: Questions) -> types.CallToolResult:
            if offered is None or name == TOOL:
                return await _run(keeper, ctx, questions, arguments)
            try:
                bridge = await keeper.bridge()
            except BridgeError as exc:
                refused: types.CallToolResult = offered.refused(exc, keeper.settings)
                return refused
            result: types.CallToolResult = await offered.call(bridge, name, arguments, questions)
            return result

        conversations: Conversations = ctx.lifespan_context[CONVERSATIONS]
        return await conversations.call(ctx, params, work)

    async def read_resource(
        _: ServerRequestContext[dict[str, Any]], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        from mcp_bridge.server import resources  # noqa: PLC0415  (most clients read none)

        bridge = await _opened(keeper)
        try:
            contents = await resources.read(bridge, str(params.uri))
        except BridgeError as exc:
            raise MCPError(types.INVALID_PARAMS, str(exc), {"code": exc.code}) from None
        return types.ReadResourceResult(contents=[contents])

    async def list_resources(
        _: ServerRequestContext[dict[str, Any]], __: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        from mcp_bridge.server import resources  # noqa: PLC0415

        try:
            bridge = await keeper.bridge()
        except BridgeError:
            # Claude Code leaves out a server's tools, too, where a list of it is an error: nobody would be told why.
            return types.ListResourcesResult(resources=[])
        return types.ListResourcesResult(resources=await resources.listed(bridge))

    async def list_templates(
        _: ServerRequestContext[dict[str, Any]], __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        from mcp_bridge.server import resources  # noqa: PLC0415

        return types.ListResourceTemplatesResult(resource_templates=resources.templates())

    return Server(
        "mcp-code-bridge",
        version=__version__,
        instructions=_instructions(keeper),
        lifespan=_conversations,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


async def _opened(keeper: Keeper | _Open) -> Bridge:
    """The bridge, for a request that isn't a call: what is wrong is the protocol's error."""
    try:
        return await keeper.bridge()
    except BridgeError as exc:
        raise MCPError(types.INTERNAL_ERROR, f"[{exc.code}] {exc}", {"code": exc.code}) from None


def _instructions(keeper: Keeper | _Open) -> str:
    if keeper.error is not None:
        return unready(keeper.settings, keeper.error)
    return instructions(keeper.settings, keeper.aliases())


async def serve_stdio(source: Source, first: Configured | BridgeError, *, programs: bool = False) -> BridgeError | None:
    """Serve until standard input ends, or SIGTERM or SIGINT comes; then leave nothing running.

    Args:
        source: The configuration's files.
        first: What was read of them already, or why that can't be done.
        programs: As `build_server`.

    Returns:
        Why nothing could be run, if that is so at the end.
    """
    process.share()
    async with kept(source, first, _prepare_ahead) as keeper:
        server = _server(keeper, programs=programs)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_on_signal, scope)
                tasks.start_soon(process.give_back)
                async with stdio_transport() as (read, write):
                    await server.run(read, write, server.create_initialization_options())
                scope.cancel()
    return keeper.error


async def _end_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            logger.info("%s: leaving", signal.Signals(number).name)
            scope.cancel()


_OF_A_CALL = ("mcp_bridge.executions.scripts.lifecycle", "mcp_bridge.host.requests", "mcp_bridge.gate.gate")
_OF_A_SERVER = ("mcp_bridge.downstream.client.connection", "jsonschema.validators", "jsonschema_specifications")
"""What the first call imports, and the first of a server's tools."""


async def _prepare_ahead(bridge: Bridge) -> None:
    """The first call shouldn't wait for the probe and the image; what goes wrong is told when there is a call."""
    with contextlib.suppress(BridgeError):
        await bridge.prepare()
    for name in (*_OF_A_CALL, *(_OF_A_SERVER if bridge.fleet.servers else ())):
        # One by one on a thread: each takes up to 100 ms, and the first call would take them on the event loop.
        await on_thread(importlib.import_module, name)
    # What is there now stays; to look through it again takes the collector 50 ms, from whichever thread.
    gc.freeze()


class _Reporter:
    """Progress of one call, as the protocol wants it: only ever rising."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._last = 0.0
        self._total: float | None = None
        self._scripted = False
        self._message: str | None = None
        self._is_told = False
        """Whether the script or the bridge has said something."""
        self._printed = ""
        self._news = anyio.Event()
        self._began = time.monotonic()

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """What the script says."""
        self._scripted = True
        self._last, self._total, self._message = max(done, self._last), total, message
        self._is_told = True
        self._news.set()

    def printed(self, _stream: str, text: str) -> None:
        """What the script has printed."""
        self._printed = (self._printed + text)[-LIVE_CHARS - 1 :]
        self._news.set()

    def notify(self, message: str) -> None:
        """What the bridge does before the script runs."""
        self._message = message
        self._is_told = True
        self._news.set()

    async def report(self) -> None:
        """Send until cancelled: news at once, else a sign of life at intervals."""
        sent = -1.0
        while True:
            self._news = anyio.Event()
            with anyio.move_on_after(HEARTBEAT_SECONDS):
                await self._news.wait()
            printed, self._printed = self._printed, ""
            if not printed or self._is_told:
                sent = await self._send(sent, self._message)
                self._is_told = False
            if printed:
                shown = printed.rstrip("\n") if len(printed) <= LIVE_CHARS else "…" + printed[1:].rstrip("\n")
                sent = await self._send(sent, shown)

    async def _send(self, sent: float, message: str | None) -> float:
        value = self._last if self._scripted else time.monotonic() - self._began
        # A script that reports the same twice, or nothing new for a while, still has to rise.
        sent = value if value > sent else sent + 1e-6
        if (ctx := self._questions.ctx) is not None:
            await ctx.session.report_progress(sent, self._total, message)
        return sent


async def _run(
    keeper: Keeper | _Open, ctx: ServerRequestContext[dict[str, Any]], questions: Questions, arguments: dict[str, Any]
) -> types.CallToolResult:
    try:
        bridge = await keeper.bridge()
        request = RunArguments.model_validate(arguments)
    except ValidationError as exc:
        return _refused(keeper.settings, ctx, _bad_arguments(exc))
    except BridgeError as exc:
        return _refused(keeper.settings, ctx, exc)
    reporter = _Reporter(questions)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reporter.report)
        try:
            record = await bridge.run(
                request.code,
                servers=request.servers,
                timeout=request.timeout,
                key=request.idempotency_key,
                progress=reporter.progress,
                notify=reporter.notify,
                asker=questions,
                sampler=questions.sample,
                # For nobody, nothing is projected meanwhile.
                live=LiveOutput(reporter.printed, LIVE_SECONDS) if _wants_progress(ctx) else None,
                news=reporter.notify,
            )
            record.notices += keeper.news()
            # It may have to count and to keep all that was printed.
            result = await off_loop([record.stdout, record.stderr, record.value], _answer, bridge, ctx, record)
        except BridgeError as exc:
            result = _refused(bridge.settings, ctx, exc)
        except Exception:
            # A fault of ours goes to the operator's log; out of a task group the client would get only its wrapping.
            logger.exception("running a script failed")
            result = _refused(bridge.settings, ctx, INTERNAL_ERROR)
        tasks.cancel_scope.cancel()
    return result


def _wants_progress(ctx: ServerRequestContext[dict[str, Any]]) -> bool:
    return ctx.meta is not None and ctx.meta.get("progress_token") is not None


def _bad_arguments(exc: ValidationError) -> BridgeError:
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    name = ".".join(map(str, first["loc"])) or "arguments"
    return BridgeError(
        "bad_arguments",
        f"{name}: {first['msg']}.",
        hint=f"{TOOL} takes code, and optionally servers, timeout and idempotency_key.",
    )


def _refused(settings: Settings, ctx: ServerRequestContext[dict[str, Any]], error: BridgeError) -> types.CallToolResult:
    result = types.CallToolResult(content=[types.TextContent(text=render.refusal(error))], is_error=True)
    mode = settings.structured
    record = {"status": "refused", "error": error.record()}
    if mode == "always" or (mode == "auto" and not render.shows_structured_content(_client(ctx))):
        result.structured_content = record
    elif mode == "auto":
        result.meta = {RECORD_META: record}
    return result


def _answer(bridge: Bridge, ctx: ServerRequestContext[dict[str, Any]], record: ExecutionRecord) -> types.CallToolResult:
    """The answer's blocks, and its record: all that a model may be shown of it is within `max_output_chars`.

    The record is structured content, unless the model would have to read it besides the text, or instead.
    """
    settings, client = bridge.settings, _client(ctx)
    answer = render.Answer(record, settings, bridge.files)
    limit, is_error = settings.max_output_chars, record.status != "success"
    shown = list(displays.checked(record.displays))
    texts = sum(len(_displayed(one)) for one in shown)
    text = answer.text(limit - min(texts, limit // 2))
    content = _blocks(answer, shown, limit - len(text), images=not is_error or render.shows_images_of_errors(client))
    if text:
        content.insert(0, types.TextContent(text=text))
    result = types.CallToolResult(content=content, is_error=is_error)
    if settings.structured == "always":
        is_read = render.shows_structured_content(client, for_certain=True)
        result.structured_content = answer.record(limit if is_read else render.RECORD_CHARS)
    elif settings.structured == "auto":
        used = sum(len(block.text) for block in content if isinstance(block, types.TextContent))
        made, is_whole = answer.record_within(limit - used)
        if is_whole and not render.shows_structured_content(client):
            result.structured_content = made
        else:
            # A part of a record isn't to be shown instead of the text.
            result.meta = {RECORD_META: made}
    return result


def _client(ctx: ServerRequestContext[dict[str, Any]]) -> str | None:
    return ctx.session.client_params.client_info.name if ctx.session.client_params else None


def _displayed(shown: displays.Text | displays.Image | displays.LeftOut) -> str:
    """What is read of something displayed."""
    match shown:
        case displays.Image():
            return ""
        case displays.Text():
            return shown.text
    return str(shown)


def _blocks(
    answer: render.Answer,
    shown: Sequence[displays.Text | displays.Image | displays.LeftOut],
    room: int,
    *,
    images: bool,
) -> list[types.ContentBlock]:
    """What `display` showed: images as images, text as text, all that is read of it within `room` characters."""
    blocks: list[types.ContentBlock] = []
    whole = "\n".join(text for one in shown if (text := _displayed(one)))
    where = answer.where("displays", whole) if len(whole) > room else ""
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
        blocks.append(types.TextContent(text=render.cut(text, room, where)))
        room -= min(len(text), room)
    if unread:
        blocks.append(types.TextContent(text=f"[… {unread} more texts displayed{where} …]"))
    return blocks
