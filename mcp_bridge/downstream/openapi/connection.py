"""A connection to a service that an OpenAPI document describes: its operations are tools, and each call is a request.

A request is sent again only if it certainly hasn't reached the service, or the service has refused it unread (429), as
one to an MCP server: that a method is idempotent says nothing of what has happened in the meantime. Nothing is kept
between calls: a service's cookies, such as of a login, would be of one call's caller and come with another's.

Loads the MCP SDK: import this module only where a service is connected to.
"""

from __future__ import annotations

import functools
import logging
import re
from contextlib import AsyncExitStack
from dataclasses import replace
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from mcp_bridge.downstream.catalog.listing_limits import BoundedListing
from mcp_bridge.downstream.catalog.tools import Listing, listing_from_wire
from mcp_bridge.downstream.client.connection_interface import ServerConnection
from mcp_bridge.downstream.client.log_tail import LogRing
from mcp_bridge.downstream.client.server_spans import server_span
from mcp_bridge.downstream.configuration.remote_entries import value_problem
from mcp_bridge.downstream.configuration.spec import TlsFiles
from mcp_bridge.downstream.configuration.tool_filter import lets_through
from mcp_bridge.downstream.http.hidden_credentials import HiddenCredentials
from mcp_bridge.downstream.http.http_client import (
    Attempt,
    RemoteFailure,
    RequestFailedError,
    failure_of,
    is_encoded,
    open_client,
    opened,
    refusal,
    renew_headers,
)
from mcp_bridge.downstream.http.retries import sent_until_read
from mcp_bridge.downstream.oauth.authenticated_requests import BearerAuth
from mcp_bridge.downstream.openapi.document_errors import UnusableDocumentError
from mcp_bridge.downstream.openapi.document_fetching import DocumentReader, Found
from mcp_bridge.downstream.openapi.requests import Credentials, Request, build
from mcp_bridge.downstream.openapi.responses import (
    ERROR_BYTES,
    AnswerError,
    Response,
    leaves_doubt,
    said,
    to_result,
    visible_headers,
)
from mcp_bridge.downstream.transports.http_transport import start_of_body
from mcp_bridge.downstream.transports.server_messages import OversizedResult
from mcp_bridge.errors import BridgeError, log_failure
from mcp_bridge.offload import is_large, off_loop, on_thread
from mcp_bridge.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2
    from mcp_types import CallToolResult

    from mcp_bridge import fair_share
    from mcp_bridge.downstream.catalog.bound_tool import Listener
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.http.remote_auth import RemoteAccess
    from mcp_bridge.downstream.openapi.compiled_service import SecurityScheme, Service

logger = logging.getLogger(__name__)

_COOKIE_VALUE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
"""A cookie's value (RFC 6265, section 4.1.1)."""

_CLOSE_TIMEOUT = 5.0
"""How long the end of a connection waits for a token that is being replaced, and for its connections to close."""


class ServiceTransport:
    """What a supervisor knows of the way to a service: as `ConnectionTransport`. There is no process."""

    process = None
    end_reason: str | None = None
    retired: str | None = None

    def __init__(self, max_message: int, tenant: fair_share.Tenant) -> None:
        self.environment: dict[str, str] = {}
        self.log = LogRing()
        self.closed = anyio.Event()
        self.max_message = max_message
        self.tenant = tenant

    def exit_status(self) -> str | None:
        """A service has none."""
        return None


class OpenApiConnection(ServerConnection):
    """A service whose document has been read.

    Args:
        spec: The server.
        alias: Its Python identifier.
        tenant: The server as a tenant that shares the interpreter.
        max_message: The largest answer that is accepted from it, in bytes.
        access: What its requests are authenticated with.
    """

    def __init__(
        self, spec: ServerSpec, alias: str, tenant: fair_share.Tenant, *, max_message: int, access: RemoteAccess
    ) -> None:
        assert spec.openapi is not None  # of this type
        super().__init__(spec, alias, "openapi", ServiceTransport(max_message, tenant))
        self._document = spec.openapi
        self._access = access
        self._hidden = HiddenCredentials(spec, access)
        self._found: Found | None = None
        self._credentials = Credentials()
        self._client: httpx2.AsyncClient | None = None
        self._reader: DocumentReader | None = None
        self._values: dict[str, str] = {}

    @property
    def _is_ready(self) -> bool:
        return self._found is not None

    @property
    def protocol(self) -> str | None:
        """The version of OpenAPI that the document is written in."""
        return f"OpenAPI {self._found.service.version}" if self._found is not None else None

    def _forget(self) -> None:
        self._found = None
        self.transport.closed.set()

    async def _run(self, idle_timeout: float) -> None:
        spec, document = self._spec, self._document
        self._values = await anyio.to_thread.run_sync(self._resolved_credentials)
        async with AsyncExitStack() as stack:
            client = None if spec.url is None else await self._opened_client(stack, spec)
            public = client
            if document.is_remote:
                # Without credentials, for a document that is elsewhere than the service.
                tls = TlsFiles(ca_file=spec.tls.ca_file)
                public = await self._opened_client(
                    stack, replace(spec, url=document.location, headers={}, oauth=None, tls=tls)
                )
            self._reader = DocumentReader(spec, client, public, self._hidden.hide_text)
            found = await self._read()
            self._client = client or await self._opened_client(stack, replace(spec, url=found.base_url))
            await self._set(found)
            self.settled.set()
            self.last_used = anyio.current_time()
            await self._closed_or_idle(idle_timeout)

    async def _opened_client(self, stack: AsyncExitStack, spec: ServerSpec) -> httpx2.AsyncClient:
        client = await anyio.to_thread.run_sync(open_client, spec, self._access)
        client.cookies.jar = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        client.event_hooks["request"].append(self._hidden.note_request)
        stack.push_async_callback(_close, client)
        return client

    def _resolved_credentials(self) -> dict[str, str]:
        """The credentials with their secrets put in. Blocks.

        Raises:
            BridgeError: `secret_missing`, `secret_denied`; `server_unavailable`: no request could carry one.
        """
        values = {name: self._access.resolve(self._spec, text) for name, text in self._document.credentials.items()}
        for name, value in values.items():
            if wrong := value_problem(value):
                raise self._unusable(f"credentials.{name} {wrong}")
            # In what the service answers.
            self._hidden.note(value)
        return values

    async def _read(self) -> Found:
        assert self._reader is not None  # while it runs
        try:
            return await self._reader.read()
        except UnusableDocumentError as error:
            message = f"server {self._spec.name!r} did not start: {error.reason}"
            private = {"source": self._spec.source} | error.private
            name = self._spec.name
            raise BridgeError("server_start_failed", message, hint=error.hint, private=private, server=name) from None

    async def _set(self, found: Found) -> None:
        if found.base_url != (self._found or found).base_url:
            # The client that is open is that address's.
            raise self._unusable("its document names another address now; it is read again at the next start.")
        listing = await on_thread(self._listed, found.service)
        self._use_credentials(found.service.schemes)
        self._found = found
        self.listing = listing
        self.listed_at = anyio.current_time()

    def _use_credentials(self, schemes: Mapping[str, SecurityScheme]) -> None:
        """Send the credentials where the document's security schemes say.

        Raises:
            BridgeError: `server_unavailable`: one of them is for no scheme, or can't be sent.
        """
        if unknown := self._values.keys() - schemes.keys():
            known = ", ".join(sorted(schemes)[:20]) or "none"
            raise self._unusable(f"credentials.{min(unknown)} is no security scheme of its document; it has {known}.")
        for name, value in self._values.items():
            if schemes[name].place == "cookie" and not _COOKIE_VALUE.fullmatch(value):
                raise self._unusable(f"credentials.{name} contains a character that no cookie may have.")
        self._credentials = Credentials(schemes, self._values)

    def _listed(self, service: Service) -> Listing:
        gathered = BoundedListing()
        gathered.add(tool for tool in service.tools if lets_through(self._spec, tool["name"]))
        listing = listing_from_wire(self._spec.name, self._alias, gathered.tools)
        return Listing(listing.tools, (*listing.notices, *service.notices, *gathered.notices(self._spec.name)))

    def _unusable(self, problem: str) -> BridgeError:
        message = f"server {self._spec.name!r} is misconfigured: {problem}"
        return BridgeError("server_unavailable", message, server=self._spec.name, reason="misconfigured")

    async def ping(self) -> None:
        """There is nothing that could have stopped answering but one request's connection."""

    async def relist(self) -> Listing:
        """Read the document again; if it can't be read any more, what was known stays.

        Raises:
            BridgeError: As at the start.
        """
        await self._set(await self._read())
        return self.listing

    # Calls.

    async def call(self, name: str, arguments: dict[str, Any], listener: Listener | None = None) -> CallToolResult:
        """Call an operation.

        Args:
            name: The tool's name.
            arguments: Argument values by the schema's names.
            listener: Who it is made for. A service says nothing while it works.

        Raises:
            ValueError: An argument can't be sent. Nothing was.
            RequestFailedError: There is no answer; its failure says whether the call may have happened.
            MCPError: The answer is too large, or the connection has ended.
            BridgeError: From the authentication.
        """
        del listener
        found = self._found
        plan = found.service.operations.get(name) if found is not None else None
        if found is None or plan is None:
            raise MCPError(code=0, message="Connection closed")
        if is_large(arguments):
            request = await on_thread(build, plan, found.base_url, arguments, self._credentials)
        else:
            request = build(plan, found.base_url, arguments, self._credentials)
        with server_span(name, self._spec, self.protocol or "") as span:
            response = await sent_until_read(functools.partial(self._sent, request))
            if response.status >= HTTPStatus.BAD_REQUEST and span is not None:
                tracing.failed(span, str(response.status))
        if leaves_doubt(request.method, response):
            raise RequestFailedError(RemoteFailure("lost", f"answered {said(response)}", response.status))
        try:
            if len(response.body) > ERROR_BYTES:
                return await on_thread(to_result, request.method, response)
            return to_result(request.method, response)
        except AnswerError as error:
            raise RequestFailedError(RemoteFailure("bad_answer", str(error), response.status)) from None

    async def _sent(self, request: Request) -> Response:
        attempt = Attempt()
        assert self._client is not None  # while it runs
        client, url, headers = self._client, request.url, {**request.headers, **tracing.carrier()}
        try:
            async with opened(
                client,
                request.method,
                url,
                headers=headers,
                content=request.content,
                attempt=attempt,
                hide=self._hidden.hide_text,
                answers=True,
                setting="base_url",
                tenant=self.transport.tenant,
            ) as response:
                status = response.status_code
                if status == HTTPStatus.UNAUTHORIZED:
                    await self._renew_credentials(client)
                if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS}:
                    body = await start_of_body(response)
                    said = await off_loop(body, self._hidden.shown, body)
                    raise RequestFailedError(replace(refusal(response, "", in_session=False), said=said))
                return await self._received(response, request.method)
        except (BridgeError, MCPError, RequestFailedError):
            raise
        except Exception as error:  # noqa: BLE001 - the library's, and of the authentication
            raise RequestFailedError(failure_of(error, attempt)) from None

    async def _renew_credentials(self, client: httpx2.AsyncClient) -> None:
        """Put the secrets in again, for the next call. This one isn't sent again: 401 may be the operation's answer."""
        await renew_headers(client, self._spec, self._access, ())
        try:
            values = await anyio.to_thread.run_sync(self._resolved_credentials)
        except BridgeError as error:
            # The call's error is what the service has answered.
            log_failure(logger, error, "the credentials of server %r can't be renewed", self._spec.name)
            return
        if values != self._values and self._found is not None:
            self._values = values
            self._use_credentials(self._found.service.schemes)

    async def _received(self, response: httpx2.Response, method: str) -> Response:
        """Read a response, up to its limit."""
        status = response.status_code
        headers = visible_headers(response.headers.multi_items())
        headers = await off_loop(headers, self._with_hidden, headers)
        if is_encoded(response) and method != "HEAD":
            raise RequestFailedError(
                RemoteFailure("bad_answer", "sent an encoded answer, which it wasn't asked for", status)
            )
        is_error = status >= HTTPStatus.BAD_REQUEST
        limit = ERROR_BYTES if is_error else self.transport.max_message
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > limit:
                break
        if len(body) > limit and not is_error:
            data = OversizedResult(len(body))
            raise MCPError(code=INTERNAL_ERROR, message="oversized", data=data)
        is_cut = len(body) > limit
        read = bytes(body[:limit])
        shown = await off_loop(read, self._hidden.hide, read)
        return Response(status, headers, shown, is_cut, self._hidden.hide_text)

    def _with_hidden(self, headers: dict[str, str]) -> dict[str, str]:
        return {name: self._hidden.hide_text(value) for name, value in headers.items()}


async def _close(client: httpx2.AsyncClient) -> None:
    with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True):
        if isinstance(client.auth, BearerAuth):
            await client.auth.settle()
        await client.aclose()
