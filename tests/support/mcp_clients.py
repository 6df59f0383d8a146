"""The SDK's client, connected to the MCP server of an open bridge: in memory, as on stdio, and over HTTP."""

import contextlib
import functools
import warnings
from pathlib import Path

import anyio
import pytest
from bridge_fixtures import DEADLINE_SECONDS, MAX_LINE_BYTES
from http_servers import serving
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import methods

from mcp_bridge.http_settings import HttpSettings
from mcp_bridge.server.app import mcp_server
from mcp_bridge.server.http.app import HttpApp
from mcp_bridge.server.http.authentication.authenticator import open_authenticator
from mcp_bridge.server.http.request_admission import Endpoint
from mcp_bridge.server.http.sessions import Sessions
from mcp_bridge.settings import Layer


class OpenBridge:
    """An already open bridge with the interface of a `BridgeSupervisor`."""

    error = None

    def __init__(self, bridge):
        self.current = bridge
        self.settings = bridge.settings

    async def bridge(self):
        return self.current

    def configuration_changes(self):
        return []


def build_server(bridge, *, programs=False):
    """The MCP server of a bridge; with `programs`, it also has the tools for programs."""
    return mcp_server(OpenBridge(bridge), anyio.Event(), programs=programs)


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


class _Unchecked:
    """The SDK's `methods`, except that a client's answers aren't checked."""

    def __getattr__(self, name):
        return getattr(methods, name)

    def validate_client_result(self, *_):
        pass


@pytest.fixture
def careless_clients(monkeypatch):
    """Has the SDK's clients send what their callbacks give, whatever it is, as clients without types do."""
    monkeypatch.setattr("mcp.client.session._methods", _Unchecked())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Pydantic serializer warnings")
        yield
