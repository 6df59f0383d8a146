"""A connection to an MCP server from start to end, supervised by one task.

Loads the MCP SDK: import it only where a server is started.
"""

from __future__ import annotations

import errno
import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
from mcp import Client
from mcp.client.subscriptions import ResourcesListChanged
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    CallToolResult,
    DiscoverResult,
    EmptyResult,
    Implementation,
    InputRequiredResult,
    ListToolsRequest,
    ListToolsResult,
    LoggingLevel,
    PaginatedRequestParams,
    PingRequest,
    ResourceListChangedNotification,
    ServerCapabilities,
    ToolListChangedNotification,
)
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from mcp_bridge import __version__, fair_share
from mcp_bridge.bridge_identity import INSTANCE_ID, INSTANCE_KEY, NAME, VIA_KEY, via
from mcp_bridge.downstream.catalog.listing_limits import MAX_PAGES, MAX_TOOLS, BoundedListing
from mcp_bridge.downstream.catalog.resource_tools import free_names, resource_tools
from mcp_bridge.downstream.catalog.tools import Listing, listing_from_wire
from mcp_bridge.downstream.client import resource_requests
from mcp_bridge.downstream.client.call_listeners import CallListeners
from mcp_bridge.downstream.client.connection_interface import ServerConnection
from mcp_bridge.downstream.client.listed_tools import add_page, with_headers
from mcp_bridge.downstream.client.log_tail import logger
from mcp_bridge.downstream.client.resource_requests import MAX_CURSOR_CHARS
from mcp_bridge.downstream.client.server_spans import server_span, with_trace_context
from mcp_bridge.downstream.configuration.tool_filter import lets_through
from mcp_bridge.downstream.transports.http_transport import HttpTransport
from mcp_bridge.downstream.transports.large_parts import detached_parts, known_blocks, reattach
from mcp_bridge.downstream.transports.server_messages import OversizedResult
from mcp_bridge.downstream.transports.sse_transport import SseTransport
from mcp_bridge.downstream.transports.stdio_transport import StdioTransport
from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import on_thread
from mcp_bridge.telemetry import tracing
from mcp_bridge.workspace.folder_content import changed

# Re-exported for the supervisor, which imports this module, and with it the SDK, on first use.
from mcp.shared.exceptions import MCPError  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from anyio.abc import TaskStatus

    from mcp_bridge.downstream.catalog.bound_tool import Listener
    from mcp_bridge.downstream.catalog.resource_tools import ResourceTool
    from mcp_bridge.downstream.configuration.spec import ServerSpec, ServerType
    from mcp_bridge.downstream.http.remote_auth import RemoteAccess
    from mcp_bridge.downstream.transports.pending_requests import Progressed

__all__ = ["CallToolResult", "Connection", "InputRequiredResult", "MCPError", "OversizedResult"]

NESTED_VARIABLE = "MCP_BRIDGE_NESTED"

# Modern servers send log messages only for requests that ask for them.
LOG_LEVEL: LoggingLevel = "info"

# How long a server may take to acknowledge a subscription to changes of its tools.
SUBSCRIBE_TIMEOUT = 2.0

# How long a server that has listed its tools may take to say whether it has resources, twice at most.
RESOURCES_TIMEOUT = 2.0

# How long the first listing waits for the stream of a session's announcements: a server may send its head with the
# first of them.
STREAM_TIMEOUT = 0.5

# How often to look whether the calls of a retired connection have ended.
_RETIRED_POLL = 0.05

# The wait before a remote server is asked again to announce changes; each further one doubles it.
_LISTEN_WAIT = 1.0
_LISTEN_WAIT_CAP = 60.0

_CallResult: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)

# Members of a call's result that only modern versions know: in an earlier one they mean nothing.
_MODERN_FIELDS = frozenset({"resultType", "inputRequests", "requestState"})

_IMPLEMENTATION = Implementation(name=NAME, version=__version__)


class Connection(ServerConnection):
    """A connection by MCP, over a process's pipes or HTTP."""

    transport: StdioTransport | HttpTransport

    def __init__(
        self,
        spec: ServerSpec,
        alias: str,
        mode: str,
        tenant: fair_share.Tenant,
        *,
        environment: Mapping[str, str],
        max_message: int,
        access: RemoteAccess,
        kind: ServerType | None = None,
    ) -> None:
        """Describe a connection; `run` makes it.

        Args:
            spec: The server.
            alias: Its Python identifier.
            mode: The protocol era to speak.
            tenant: The server as a tenant that shares the interpreter.
            environment: The variables that its process is given beside those of its entry.
            max_message: The largest message that is accepted from it, in bytes.
            access: What a connection to a remote server is authenticated with.
            kind: The transport of a remote server, if its entry leaves that open.
        """
        self._client: Client | None = None
        self._has_begun_listing = False
        self._meta: dict[str, Any] = {}
        """The part of a request's parameters that the protocol's version wants in each of them."""
        self._capabilities: ServerCapabilities | None = None
        self._has_resources = False
        self._is_bridge = False
        """Whether the server is a bridge, which is told by way of which bridges a call comes."""
        transport: StdioTransport | HttpTransport
        if spec.is_remote:
            make = SseTransport if (kind or spec.type) == "sse" else HttpTransport
            transport = make(spec, access, max_message=max_message, tenant=tenant)
        else:
            transport = StdioTransport(
                [spec.command, *spec.args],
                env={**environment, **spec.env, NESTED_VARIABLE: "1"},
                cwd=spec.cwd,
                max_message=max_message,
                tenant=tenant,
            )
        super().__init__(spec, alias, mode, transport)
        self._listeners = CallListeners(spec.name)
        transport.on_log = self._listeners.on_log

    @property
    def _is_ready(self) -> bool:
        return self._client is not None

    @property
    def serves_several(self) -> bool:
        """As in `ServerConnection`."""
        return self._listeners.serves_several

    @property
    def protocol(self) -> str | None:
        """The negotiated protocol version, once ready."""
        return self._client.protocol_version if self._client else None

    def _forget(self) -> None:
        self._client = None

    async def _run(self, idle_timeout: float) -> None:
        if self._spec.scripts and (path := await anyio.to_thread.run_sync(changed, self._spec.scripts)):
            logger.warning("%s isn't what was trusted any more", path)
            raise PermissionError(errno.EPERM, "a file of its folder isn't what was trusted any more")
        client = Client(
            self.transport,
            mode=self.mode,
            client_info=_IMPLEMENTATION,
            message_handler=self._on_message,
            log_level=LOG_LEVEL,
            cache=None,
        )
        async with client, anyio.create_task_group() as tasks:
            if self._announces_changes(client):
                # The subscription comes before the listing: a change between the two would be missed.
                with anyio.move_on_after(SUBSCRIBE_TIMEOUT):
                    await tasks.start(self._listen_on if self._spec.is_remote else self._listen, client)
            elif (transport := self._announcing_session(client)) is not None:
                transport.on_listening = self._on_listening
                with anyio.move_on_after(STREAM_TIMEOUT):
                    await transport.has_asked_for_announcements.wait()
            self._has_begun_listing = True
            self._meta = _request_meta(client.protocol_version)
            self.listing = await self._list(client)
            self.listed_at = anyio.current_time()
            self._client = client
            self.settled.set()
            self.last_used = anyio.current_time()
            if isinstance(self.transport, HttpTransport):
                tasks.start_soon(self._stop_when_retired, self.transport)
            await self._closed_or_idle(idle_timeout)
            tasks.cancel_scope.cancel()

    async def _stop_when_retired(self, transport: HttpTransport) -> None:
        """Stop a retired connection when the calls under way have ended: their answers may still come."""
        await transport.retirement.wait()
        while self.in_flight:  # noqa: ASYNC110 - each call ends within its own time limit
            await anyio.sleep(_RETIRED_POLL)
        self.stop(transport.retired or "it was retired")

    # Requests by the supervisor.

    async def call(
        self, name: str, arguments: dict[str, Any], listener: Listener | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. The structured result isn't validated against its schema: the side effect has happened.

        Args:
            name: The tool's name.
            arguments: Argument values by the schema's names.
            listener: Who it is made for, and is told what the server says meanwhile (`CallListeners`).

        Raises:
            MCPError: The server answered with an error, or the connection ended.
            pydantic.ValidationError: The server's answer is not a result.
        """
        client = self._open_client()
        with self._told(listener) as progressed, server_span(name, self._spec, client.protocol_version) as span:
            params = self._with_meta({"name": name, "arguments": arguments})
            raw = await self.transport.request("tools/call", params, progressed)
            result = _call_result(raw, client.protocol_version)
            if span is not None and isinstance(result, CallToolResult) and result.is_error:
                tracing.failed(span, "tool_error")
        if isinstance(result, CallToolResult) and (parts := detached_parts(result)):
            objects_only = client.protocol_version not in MODERN_PROTOCOL_VERSIONS
            return await on_thread(functools.partial(reattach, result, parts, objects_only=objects_only))
        return result

    async def call_resource_tool(
        self, tool: ResourceTool, arguments: dict[str, Any], listener: Listener | None = None
    ) -> CallToolResult | InputRequiredResult:
        """As `call`, for a tool that lists or reads resources."""
        version = self._open_client().protocol_version
        with self._told(listener) as progressed:

            async def request(method: str, params: dict[str, Any]) -> dict[str, Any]:
                with server_span(tool.name, self._spec, version, method):
                    return await self.transport.request(method, self._with_meta(params), progressed)

            return await resource_requests.call(tool.method, arguments, request, version)

    @contextmanager
    def _told(self, listener: Listener | None) -> Iterator[Progressed | None]:
        """Tell a listener what the server says during a call; gives what takes its progress with the call."""
        if listener is None:
            yield None
            return
        progressed = self._listeners.add(listener)
        try:
            yield progressed
        finally:
            self._listeners.remove(listener)

    def _with_meta(self, params: dict[str, Any]) -> dict[str, Any]:
        """A request's parameters with all that the server is told beside them."""
        params = with_trace_context(params | self._meta)
        if self._is_bridge:
            came = [*via.get(), (INSTANCE_ID, self._spec.name)]
            params |= {"_meta": {**params.get("_meta", {}), VIA_KEY: came}}
        return params

    async def ping(self) -> None:
        """Return when the server answers a ping, or in modern protocol versions the cheapest request."""
        client = self._open_client()
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            await client.session.send_request(ListToolsRequest(params=None), ListToolsResult)
        else:
            await client.session.send_request(PingRequest(), EmptyResult)

    async def relist(self) -> Listing:
        """List the tools again. If that fails, changes that were announced are still unlisted."""
        announced, self.stale = self.stale, False
        try:
            self.listing = await self._list(self._open_client())
        except BaseException:
            self.stale = self.stale or announced
            raise
        self.listed_at = anyio.current_time()
        return self.listing

    def _open_client(self) -> Client:
        if self._client is None:
            raise MCPError(code=0, message="Connection closed")
        return self._client

    async def _list(self, client: Client) -> Listing:
        # Listing is charged to the server: everybody who uses it waits for the listing, and not only the first.
        with fair_share.billed(self.transport.tenant):
            return await self._listed(client)

    async def _listed(self, client: Client) -> Listing:
        gathered = BoundedListing()
        endless = False
        cursors: set[str] = set()
        cursor: str | None = None
        while True:
            params = PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            try:
                page = await client.session.send_request(ListToolsRequest(params=params), ListToolsResult)
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND and cursor is None:
                    break  # A server of prompts or resources only.
                raise
            self.pages_listed += 1
            self._refuse_bridge((page.meta or {}).get(INSTANCE_KEY))
            await on_thread(add_page, gathered, page, self._spec, client.protocol_version)
            cursor = page.next_cursor
            if cursor is None:
                break
            endless = cursor in cursors or len(cursors) >= MAX_PAGES or len(cursor) > MAX_CURSOR_CHARS
            if endless or gathered.full or len(gathered.tools) >= MAX_TOOLS:
                endless = True
                break
            cursors.add(cursor)
        notices = gathered.notices(self._spec.name)
        own = [str(tool.get("name")) for tool in gathered.tools]
        if isinstance(self.transport, HttpTransport) and client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            gathered.tools, self.transport.tool_headers, more = await on_thread(with_headers, gathered.tools)
            notices += more
        listing = await on_thread(_let_through, self._spec, self._alias, gathered.tools)
        if endless:
            notices.append(f"server {self._spec.name!r} lists without end; cut after {len(gathered.tools)} tools")
        names = free_names([*own, *(tool.alias for tool in listing.tools)])
        names = {method: name for method, name in names.items() if lets_through(self._spec, name)}
        added: tuple[ResourceTool, ...] = ()
        # A server that ends when it is asked for its resources works where they are excluded.
        if names and await self._find_resources(client):
            added = resource_tools(self._spec.name, self._alias, names)
        return Listing((*listing.tools, *added), (*listing.notices, *notices))

    async def _find_resources(self, client: Client) -> bool:
        """Whether the server has resources, or has had some: it announces them, and lists one or a template.

        Servers made with the SDKs announce them whether they have any or not, and most have none.
        """
        if self._capabilities is None:
            self._capabilities = client.server_capabilities
            if self.mode in MODERN_PROTOCOL_VERSIONS:
                # The SDK speaks a version that the configuration names without asking what the server has.
                self._capabilities = await self._discovered(client) or self._capabilities
        if self._capabilities.resources is None or self._has_resources:
            return self._has_resources

        async def request(method: str, params: dict[str, Any]) -> dict[str, Any]:
            # Named as the SDK names its own, such as the one of `tools/list` before: the transport notes the request's
            # id in the current span, which would be that of whoever has the tools listed.
            with tracing.span(f"MCP send {method}", "client", {"mcp.method.name": method}):
                return await self.transport.request(method, self._with_meta(params))

        with anyio.move_on_after(RESOURCES_TIMEOUT):
            has_any = True
            try:
                has_any = await resource_requests.has_any(request, client.protocol_version)
            except (MCPError, ValidationError) as error:
                logger.debug("server %r does not list its resources: %r", self._spec.name, error)
            self._has_resources = has_any
            return has_any
        # It may have some; the next listing asks again.
        return True

    async def _discovered(self, client: Client) -> ServerCapabilities | None:
        """What the server says that it has, or None."""
        with anyio.move_on_after(RESOURCES_TIMEOUT):
            try:
                found = await client.session.send_discover(self.mode)
                return DiscoverResult.model_validate(found).capabilities
            except (MCPError, ValidationError) as error:
                logger.debug("server %r does not say what it has: %r", self._spec.name, error)
        return None

    def _refuse_bridge(self, instance: object) -> None:
        """Refuse a server that turns out to be this bridge, or a bridge that nobody has meant to be a server.

        Args:
            instance: The instance id that its list of tools has; None for a server that is no bridge.

        Raises:
            BridgeError: `server_unavailable`.
        """
        self._is_bridge = self._is_bridge or instance is not None
        if instance is None or (instance != INSTANCE_ID and self._spec.may_be_bridge):
            return
        if instance == INSTANCE_ID:
            what, hint = "this bridge itself", "Take it out of the servers."
        else:
            what = "a bridge, which a client's file has for its client"
            hint = "Write it into [servers] of your own configuration, if it is to be behind this one."
        name, private = self._spec.name, {"source": self._spec.source}
        message = f"server {name!r} is misconfigured: it is {what}."
        raise BridgeError(
            "server_unavailable", message, hint=hint, private=private, server=name, reason="misconfigured"
        )

    # Notifications from the server.

    def _announces_changes(self, client: Client) -> bool:
        return client.protocol_version in MODERN_PROTOCOL_VERSIONS and _has_announcements(client)

    def _announcing_session(self, client: Client) -> HttpTransport | None:
        """The transport, if changes are announced on a stream that was opened with a session; else None."""
        transport = self.transport
        if isinstance(transport, HttpTransport) and transport.session is not None and _has_announcements(client):
            return transport
        return None

    def _on_listening(self) -> None:
        """Have the tools listed again, if they are listed: a change may have been announced to nobody."""
        self.stale = self.stale or self._has_begun_listing

    async def _listen(self, client: Client, *, task_status: TaskStatus[None]) -> None:
        try:
            resources = client.server_capabilities.resources
            of_resources = bool(resources and resources.list_changed)
            async with client.listen(tools_list_changed=True, resources_list_changed=of_resources) as events:
                self._on_listening()
                task_status.started()
                async for event in events:
                    self._on_change(of_resources=isinstance(event, ResourcesListChanged))
        except Exception as error:  # noqa: BLE001 - the listing is then refreshed at the next start
            logger.debug("server %r announces no changes: %r", self._spec.name, error)

    async def _listen_on(self, client: Client, *, task_status: TaskStatus[None]) -> None:
        """As `_listen`, again and again: between a remote server and the bridge, streams are cut as they idle."""
        wait = _LISTEN_WAIT
        status: TaskStatus[None] = task_status
        while self.transport.retired is None and not self.transport.closed.is_set():
            began = anyio.current_time()
            await self._listen(client, task_status=status)
            status = anyio.TASK_STATUS_IGNORED
            # A change may have been announced to nobody.
            self.stale = self.stale or self._client is not None
            wait = _LISTEN_WAIT if anyio.current_time() - began > _LISTEN_WAIT_CAP else min(_LISTEN_WAIT_CAP, wait * 2)
            await anyio.sleep(wait)

    async def _on_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification | ResourceListChangedNotification):
            self._on_change(of_resources=isinstance(message, ResourceListChangedNotification))

    def _on_change(self, *, of_resources: bool) -> None:
        """Have the tools listed again, after a change of these, or of resources where there were none."""
        self.stale = self.stale or not (of_resources and self._has_resources)


def _has_announcements(client: Client) -> bool:
    tools = client.server_capabilities.tools
    return bool(tools and tools.list_changed)


def _request_meta(version: str) -> dict[str, Any]:
    """What the SDK's session adds to the parameters of each request: who asks, in which version, and what it can."""
    if version not in MODERN_PROTOCOL_VERSIONS:
        return {}
    meta = {
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: _IMPLEMENTATION.model_dump(by_alias=True, mode="json", exclude_none=True),
        CLIENT_CAPABILITIES_META_KEY: {},
        LOG_LEVEL_META_KEY: LOG_LEVEL,
    }
    return {"_meta": meta}


def _call_result(raw: dict[str, Any], version: str) -> CallToolResult | InputRequiredResult:
    """A call's result, decoded as the SDK's session does it.

    Raises:
        pydantic.ValidationError: It is no result in that version of the protocol.
    """
    if isinstance(content := raw.get("content"), list):
        raw = raw | {"content": known_blocks(content)}
    validate_server_result("tools/call", version, raw)
    if version not in MODERN_PROTOCOL_VERSIONS and not _MODERN_FIELDS.isdisjoint(raw):
        raw = {name: value for name, value in raw.items() if name not in _MODERN_FIELDS}
    return _CallResult.validate_python(raw, by_name=False)


def _let_through(spec: ServerSpec, alias: str, tools: list[dict[str, Any]]) -> Listing:
    """The tools that the configuration lets through. For the bridge there are no others."""
    named = (raw for raw in tools if not isinstance(raw.get("name"), str) or lets_through(spec, raw["name"]))
    return listing_from_wire(spec.name, alias, list(named))
