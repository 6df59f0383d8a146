"""Requests over HTTP to a target of publishing.

Answers come from outside: they are bounded in time and size and never decompressed, and no redirect is followed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread
import httpx2

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    import ssl

    from mcp_bridge.ledger.publish.targets import Target

MAX_ANSWER_BYTES = 64 << 10

_TEXT = {"content-type": "text/plain; charset=utf-8", "accept-encoding": "identity"}
_TRIED_AGAIN = "A running bridge retries automatically; `mcp-bridge audit publish` does so now."
_PASSING = frozenset({408, 425, 429})
"""Statuses besides 5xx after which the same may work later (RFC 9110, section 15)."""


class Answer(NamedTuple):
    """A target's answer: its HTTP status and its body, at most MAX_ANSWER_BYTES."""

    status: int
    body: bytes


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


async def open_client(target: Target) -> httpx2.AsyncClient:
    """An HTTP client with the target's timeout and the system's certificates."""
    # To read all certificates of the system takes a while: once, and not in the event loop.
    tls = await anyio.to_thread.run_sync(_tls)
    return httpx2.AsyncClient(timeout=target.timeout, follow_redirects=False, verify=tls)


async def send(
    client: httpx2.AsyncClient, target: Target, method: str, address: str, body: bytes | None = None
) -> Answer:
    """Send a request, and return its answer, which is neither a redirect nor a server's error.

    Raises:
        BridgeError: `publish_unreachable`, `publish_refused`, `publish_bad_answer`.
    """
    try:
        with anyio.fail_after(target.timeout):
            async with client.stream(method, address, content=body, headers=_TEXT) as response:
                parts, size = [], 0
                async for part in response.aiter_raw():
                    size += len(part)
                    if size > MAX_ANSWER_BYTES:
                        raise bad_answer(target, f"with more than {MAX_ANSWER_BYTES} bytes")
                    parts.append(part)
    except TimeoutError:
        raise unreachable(target, f"it has not answered in {target.timeout:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as exc:
        raise unreachable(target, str(exc) or type(exc).__name__) from None
    status = response.status_code
    if httpx2.codes.is_redirect(status):
        raise BridgeError(
            "publish_refused",
            f"The {target.id} sends elsewhere ({status}), and a checkpoint goes nowhere but where it is configured.",
            hint="Write the address that it sends to.",
            target=target.id,
        )
    if httpx2.codes.is_server_error(status) or status in _PASSING:
        raise unreachable(target, f"it has answered {status}")
    return Answer(status, b"".join(parts))


def unreachable(target: Target, why: str) -> BridgeError:
    """The error for a target that may answer later."""
    return BridgeError(
        "publish_unreachable", f"The {target.id} can't be reached: {why}.", hint=_TRIED_AGAIN, target=target.id
    )


def refused(target: Target, status: int) -> BridgeError:
    """The error for a target that doesn't take the checkpoint."""
    known = target.witness is not None and status in {403, 404}
    return BridgeError(
        "publish_refused",
        f"The {target.id} doesn't take the checkpoint: it has answered {status}.",
        hint="Has the witness this log's key (`--log`), and is the address right?" if known else "Look at its log.",
        target=target.id,
    )


def bad_answer(target: Target, what: str) -> BridgeError:
    """The error for an answer that isn't what the protocol says."""
    return BridgeError(
        "publish_bad_answer",
        f"The {target.id} has answered {what}.",
        hint=f"{_TRIED_AGAIN} Is its address right, and is that what answers there?",
        target=target.id,
    )
