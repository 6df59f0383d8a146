"""A service that OpenAPI describes and that wants tokens of a real authorization server."""

from contextlib import asynccontextmanager

import anyio
import pytest
from downstream_calls import call_tool
from http_servers import serving
from oauth_fixtures import (
    authorization_server,  # noqa: F401
    login_store,
    oauth_servers,  # noqa: F401
)
from petstore_service import Petstore
from starlette.requests import Request
from starlette.responses import JSONResponse

from mcp_bridge.downstream.catalog.tool_results import convert
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
from mcp_bridge.downstream.configuration.spec import OpenApiDocument, ServerSpec
from mcp_bridge.downstream.http.remote_auth import RemoteAccess
from mcp_bridge.errors import BridgeError

pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def guarded(issuer, state, **settings):
    """A fleet of a service whose operations want a token, the service, the tokens that came with its requests, and its address."""
    service, tokens = Petstore(), {}

    async def app(scope, receive, send):
        given = Request(scope).headers.get("authorization", "").removeprefix("Bearer ")
        tokens.setdefault(scope["path"], []).append(given)
        if scope["path"] == "/openapi.json" or (given and await anyio.to_thread.run_sync(issuer.active, given)):
            await service.app(scope, receive, send)
        else:
            await JSONResponse({}, 401, {"www-authenticate": "Bearer"})(scope, receive, send)

    async with serving(app) as port:
        base = f"http://127.0.0.1:{port}"
        document = OpenApiDocument(location=f"{base}/openapi.json", operations=("*",), credentials={})
        spec = ServerSpec(name="petstore", type="openapi", url=base, openapi=document, **settings)
        access = RemoteAccess(lambda _spec, text: text, logins=login_store(state))
        async with Fleet([spec], access=access) as fleet:
            yield fleet, tokens, base


async def test_a_machine_gets_a_token_of_its_own_for_the_service(authorization_server, tmp_path):
    issuer = authorization_server
    oauth = OAuthSettings(
        client_id="machine",
        client_secret="secret-of-the-machine-client-0815",  # noqa: S106 - of this test's server
        # A service that knows nothing of MCP names neither: both are configured.
        issuer=issuer.url,
        scopes=("tools",),
        grant="client_credentials",
    )
    async with guarded(issuer, tmp_path, oauth=oauth) as (fleet, _, base):

        async def named():
            return convert(await call_tool(fleet, "petstore", "get_pet", {"id": 1}))["value"]["name"]

        assert await named() == "Rex"
        assert await named() == "Rex"
        # For this service alone (RFC 8707).
        assert len(issuer.events("granted", grant="client_credentials", resource=base)) == 1


async def test_a_person_who_has_not_logged_in_is_told_how(authorization_server, tmp_path):
    async with guarded(authorization_server, tmp_path, oauth=OAuthSettings()) as (fleet, tokens, _):
        # Anybody may read the document.
        found = await fleet.server("petstore").listed("get_pet")
        with pytest.raises(BridgeError) as caught:
            await fleet.server("petstore").bound(found).call({"id": 1})
    assert caught.value.code == "login_needed"
    assert "mcp-bridge servers login petstore" in str(caught.value)
    assert set(tokens["/pets/1"]) == {""}


async def test_credentials_that_a_service_refuses_are_said_to_belong_into_credentials(authorization_server, tmp_path):
    async with guarded(authorization_server, tmp_path) as (fleet, _, _):
        found = await fleet.server("petstore").listed("get_pet")
        with pytest.raises(BridgeError) as caught:
            await fleet.server("petstore").bound(found).call({"id": 1})
    assert caught.value.code == "server_unauthorized"
    assert "the server's credentials, by the names of the document's security schemes," in caught.value.hint
