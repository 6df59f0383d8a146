"""A small HTTP server that tells each request who it is from, and raw requests to it."""

import asyncio
import contextlib
import json
from dataclasses import dataclass

import anyio
from http_servers import serving
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcp_bridge import settings
from mcp_bridge.governance.principal_tokens import TokenStore
from mcp_bridge.server.http.authentication.authenticator import open_authenticator
from mcp_bridge.server.http.refusals import RefusedRequest

SECONDS = 30


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    @property
    def who(self):
        """The principal that the request was taken for."""
        assert self.status == 200, (self.status, self.body)
        return json.loads(self.body)["principal"]

    @property
    def code(self):
        assert self.status != 200, self.body
        return json.loads(self.body)["error"]["data"]["code"]

    def refused(self, status, code):
        assert (self.status, self.code) == (status, code)
        return self


@dataclass
class Server:
    port: int
    authenticator: object
    tokens: TokenStore

    async def ask(self, *headers, path="/"):
        """One request with exactly these headers: pairs of bytes or texts."""
        lines = [f"GET {path} HTTP/1.1".encode(), b"host: 127.0.0.1", b"connection: close"]
        lines += [b": ".join(part.encode() if isinstance(part, str) else part for part in header) for header in headers]
        with anyio.fail_after(SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
                answer = await reader.read()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        named = (each.partition(": ") for each in fields)
        return Answer(int(status.split()[1]), {name.lower(): value for name, _, value in named}, body)

    async def bearer(self, token):
        return await self.ask(("authorization", f"Bearer {token}" if isinstance(token, str) else b"Bearer " + token))


def app_of(authenticator):
    async def who(request):
        try:
            principal = await authenticator.principal(HTTPConnection(request.scope))
        except RefusedRequest as refusal:
            return refusal.response()
        return JSONResponse({"principal": principal.name})

    return Starlette(routes=[Route("/", who), *authenticator.routes()])


@contextlib.asynccontextmanager
async def authenticating(folder, config=""):
    """A server with this configuration."""
    file = folder / "config.toml"
    file.write_text(config)
    loaded = settings.load(file, environ={"MCP_BRIDGE_STATE_DIR": str(folder / "state")})
    authenticator = open_authenticator(loaded.layers, loaded.settings.state_dir)
    async with serving(app_of(authenticator), proxy_headers=False) as port:
        yield Server(port, authenticator, TokenStore(loaded.settings.state_dir))


@contextlib.asynccontextmanager
async def stream_of(server, token):
    """What waits for the end of a token, as a stream's server does."""
    scope = {"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())]}
    request = HTTPConnection(scope)
    await server.authenticator.principal(request)
    async with anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def wait():
            await server.authenticator.ended(request)
            ended.set()

        tasks.start_soon(wait)
        yield ended
        tasks.cancel_scope.cancel()
