"""uvicorn inside a process that does other things too: no signal handlers, no log of its own, ended by cancellation."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator

    from starlette.types import ASGIApp


class EmbeddedServer(uvicorn.Server):
    """A server that installs no signal handlers: ending the process is its owner's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


def embedded_config(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """What all of our servers have in common, and further options of `uvicorn.Config`."""
    return uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none", **options
    )


async def serve_until_cancelled(
    config: uvicorn.Config, listener: socket.socket, end_streams: Callable[[], None] = lambda: None
) -> None:
    """Serve until cancelled, or until the server has failed, which it logs.

    Args:
        config: What to serve.
        listener: The listening socket.
        end_streams: Ends the responses that would never end by themselves; called before the server ends.
    """
    server = EmbeddedServer(config)
    async with anyio.create_task_group() as tasks:

        async def serving() -> None:
            with anyio.CancelScope(shield=True):
                await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()

        tasks.start_soon(serving)
        try:
            await anyio.sleep_forever()
        finally:
            end_streams()
            server.should_exit = True
