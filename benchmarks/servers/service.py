"""A service with an OpenAPI document and no MCP. The port that it listens on is the first line that it prints."""

import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "service", "version": "1"},
    "paths": {
        "/things/{id}": {
            "get": {
                "operationId": "get_thing",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                "responses": {"200": {"description": "It", "content": {"application/json": {"schema": {}}}}},
            }
        }
    },
}


async def thing(request: Request) -> JSONResponse:
    """One thing."""
    return JSONResponse({"id": int(request.path_params["id"])})


async def document(_: Request) -> JSONResponse:
    """What the service can do."""
    return JSONResponse(DOCUMENT)


def main() -> None:
    """Serve on a free port of this machine."""
    # With the protocol named, asyncio sets TCP_NODELAY on its connections.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    app = Starlette(routes=[Route("/openapi.json", document), Route("/things/{id}", thing)])
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listening])


if __name__ == "__main__":
    main()
