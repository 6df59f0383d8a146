"""The SDK's client, connected to the MCP server of an open bridge: in memory, as on stdio, and over HTTP."""

import contextlib
import functools
from pathlib import Path

import pytest
from bridge_fixtures import DEADLINE_SECONDS, MAX_LINE_BYTES
from http_servers import serving
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_bridge.http_settings import HttpSettings
from mcp_bridge.server.app import build_server
from mcp_bridge.server.http.app import HttpApp
from mcp_bridge.server.http.authentication.authenticator import open_authenticator
from mcp_bridge.server.http.request_admission import Endpoint
from mcp_bridge.server.http.sessions import Sessions
from mcp_bridge.settings import Layer


@contextlib.asynccontextmanager
async def over_http(bridge, *, programs=False):
    """The address of a bridge that is served over HTTP by this process, to whoever is on this machine."""
    settings = HttpSettings()
    sessions = Sessions(build_server(bridge, programs=programs), settings)
    authenticator = open_authenticator([Layer(None, Path.cwd(), {}, {})], bridge.settings.state_dir)
    endpoint = Endpoint(sessions.handle_request, authenticator, settings)
    async with sessions.run(), serving(HttpApp(endpoint, settings, authenticator.routes(), lambda: True)) as port:
        yield f"http://127.0.0.1:{port}{settings.path}"
        endpoint.close()


@contextlib.asynccontextmanager
async def connected(how, bridge, *, programs=False, mode="auto", **options):
    """The SDK's own client, connected.

    Args:
        how: `memory` or `http`.
        bridge: The open bridge.
        programs: Whether it offers the tools for programs.
        mode: The era, as `Client` has it.
        options: Of `Client`.
    """
    async with contextlib.AsyncExitStack() as stack:
        if how == "memory":
            target = build_server(bridge, programs=programs)
        else:
            url = await stack.enter_async_context(over_http(bridge, programs=programs))
            target = streamable_http_client(url, max_sse_event_size=MAX_LINE_BYTES)
        options = {"read_timeout_seconds": DEADLINE_SECONDS} | options
        yield await stack.enter_async_context(Client(target, mode=mode, **options))


WAYS = ("memory", "http")


@pytest.fixture(params=WAYS)
def connect(request):
    """Connects a client: `connect(bridge, programs=…, mode=…)`, an asynchronous context manager.

    A test that asks for it runs once for each way: what a client sees is the same.
    """
    return functools.partial(connected, request.param)
