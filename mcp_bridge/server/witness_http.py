"""A witness over HTTP, according to C2SP tlog-witness; `GET /` returns its identity.

`POST /add-checkpoint` cosigns a checkpoint; `GET /<origin hash>/checkpoint` returns a log's latest one, for monitors.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.witness.witness import MAX_BODY_BYTES, TEXT_TYPE, Answer, Witness

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

T = TypeVar("T")

logger = logging.getLogger(__name__)

READ_SECONDS = 10.0
"""How long a request's body may take: a slow client must not occupy a connection."""

MAX_CONNECTIONS = 200
"""Maximum simultaneous connections; further ones get status 503."""

END_SECONDS = 5
"""How long open requests may take when the witness ends."""


def witness_app(witness: Witness) -> Starlette:
    """The witness as an ASGI application."""

    async def about(_: Request) -> Response:
        return JSONResponse({"name": witness.name, "vkey": witness.vkey})

    async def add_checkpoint(request: Request) -> Response:
        try:
            with anyio.fail_after(READ_SECONDS):
                body = await _body(request)
        except TimeoutError:
            return _plain(408, "The request took too long.")
        except ClientDisconnect:
            return _plain(400, "The request ended early.")
        if body is None:
            return _plain(413, f"The request has more than {MAX_BODY_BYTES} bytes.")
        return await _answered(witness.add_checkpoint, body)

    async def newest(request: Request) -> Response:
        return await _answered(witness.newest, request.path_params["origin_hash"], {"cache-control": "no-store"})

    return Starlette(
        routes=[
            Route("/", about, methods=["GET"]),
            Route("/add-checkpoint", add_checkpoint, methods=["POST"]),
            Route("/{origin_hash}/checkpoint", newest, methods=["GET"]),
        ]
    )


async def _answered(ask: Callable[[T], Answer], what: T, headers: Mapping[str, str] | None = None) -> Response:
    """The witness's answer, obtained in a thread because it waits for the disk."""
    try:
        answer = await anyio.to_thread.run_sync(ask, what)
    except BridgeError as exc:
        logger.error("no checkpoint can be cosigned: %s", exc)  # noqa: TRY400 - what was wrong is in its text
        return _plain(503, "The witness can't keep what it would cosign.")
    # As bytes: the framework would add a character set to the content type of the specification.
    return Response(answer.body, answer.status, {"content-type": answer.content_type, **(headers or {})})


def serve_witness(witness: Witness, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are still answered.

    Args:
        witness: The witness.
        listening: A listening socket.
        ready: Called once, as soon as a signal would end it in an orderly way.
    """
    config = uvicorn.Config(
        witness_app(witness),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=END_SECONDS,
    )
    server = uvicorn.Server(config)

    def end(*_: object) -> None:
        # Needed before uvicorn installs its handlers, and after: it raises the signal again when it has ended.
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ready()
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _body(request: Request) -> bytes | None:
    """A request's body; None if it is too long, which is detected without storing it."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


def _plain(status: int, sentence: str) -> Response:
    return Response(f"{sentence}\n".encode(), status, {"content-type": TEXT_TYPE})
