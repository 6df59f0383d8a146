"""A remote server as an MCP transport: HTTP with server-sent events (protocol version 2024-11-05).

One stream carries all that the server says; each message to it is a POST to an address that the stream names first. The
stream can't be resumed: when it breaks, the calls under way are in doubt, and the next call opens another.

Loads the MCP SDK: import this module only where a server is connected to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urljoin

import anyio
import httpx2

from mcp_bridge.downstream.configuration.remote_entries import url_problem
from mcp_bridge.downstream.http.http_client import Attempt, RemoteFailure, RequestFailedError, refusal
from mcp_bridge.downstream.transports.http_transport import HttpTransport, Post, is_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from anyio.abc import TaskStatus

    from mcp_bridge.errors import BridgeError

_STREAM_HEADERS = {"accept": "text/event-stream", "cache-control": "no-store"}


class SseTransport(HttpTransport):
    """As `HttpTransport`, for the transport that came before it."""

    _endpoint: httpx2.URL | None = None

    async def started(self) -> None:
        """Open the stream and wait for the address of messages. The caller bounds the wait.

        Raises:
            RequestFailedError: The stream can't be opened, or it names no address of the server's origin.
            BridgeError: From the authentication flow.
        """
        assert self._tasks is not None  # entered
        result = await self._tasks.start(self._read_stream)
        if isinstance(result, Exception):
            raise result

    @property
    def post_address(self) -> httpx2.URL:
        """The address that the stream has named."""
        assert self._endpoint is not None  # started
        return self._endpoint

    @property
    def in_session(self) -> bool:
        """Always: the session is in the address."""
        return True

    async def end_session(self) -> None:
        """Nothing: the session ends with its stream."""

    async def _read_stream(self, *, task_status: TaskStatus[httpx2.URL | Exception]) -> None:
        """Read the stream until it ends. What goes wrong before the address is the task's status."""
        try:
            async with self.fetch("GET", Attempt(), headers=_STREAM_HEADERS) as response:
                if not response.is_success:
                    raise RequestFailedError(refusal(response, "", in_session=False))
                if not is_stream(response):
                    raise RequestFailedError(RemoteFailure("bad_answer", "answered something that is no event stream"))
                events = self.events(response)
                self._endpoint = await self._named_endpoint(events)
                task_status.started(self._endpoint)
                await self._read(events)
        except Exception as error:  # noqa: BLE001 - told to whoever waits for the address
            if self._endpoint is None:
                task_status.started(error)

    async def _named_endpoint(self, events: AsyncIterator[httpx2.ServerSentEvent]) -> httpx2.URL:
        problem = "ended the stream before it named the address of messages"
        try:
            async for event in events:
                if event.event == "endpoint":
                    if (endpoint := self._own(event.data)) is not None:
                        return endpoint
                    problem = "named an address of messages that isn't its own"
                    break
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            pass
        raise RequestFailedError(RemoteFailure("bad_answer", problem, lasting=True))

    def _own(self, address: str) -> httpx2.URL | None:
        """What the server calls an address, relative to the stream's, or None if it isn't one of the server's own."""
        try:
            endpoint = urljoin(self.url, address)
            is_own = url_problem(endpoint) is None and _origin(endpoint) == _origin(self.url)
            return httpx2.URL(endpoint) if is_own else None
        except (ValueError, httpx2.InvalidURL):
            return None

    async def _read(self, events: AsyncIterator[httpx2.ServerSentEvent]) -> None:
        reason = "it ended its event stream"
        try:
            async for event in events:
                if event.event == "message" and event.data:
                    await self.pass_on(event.data.encode("utf-8", "surrogatepass"))
        except httpx2.SSEError:
            reason = f"it sent an event of more than {self.max_message} bytes"
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            reason = "its event stream broke"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        await self.end_stream(reason)

    async def attempt(
        self, post: Post, body: bytes, headers: Mapping[str, str], *, opens: bool
    ) -> RemoteFailure | BridgeError:
        """Send a request. Its answer comes on the stream, so this returns when that has come.

        Raises:
            RequestFailedError: As `HttpTransport.attempt`.
        """
        del opens
        async with self.fetch("POST", post.attempt, url=self.post_address, content=body, headers=headers) as response:
            if not response.is_success:
                return await self.refused(response, post)
        # Ended by the scope of the request: when it is answered, or nobody waits for it any more.
        await anyio.sleep_forever()
        raise AssertionError


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx2.URL(url)
    return parsed.scheme, parsed.host, parsed.port
