"""Checkpoints to an address that takes notes by POST."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

from mcp_bridge.ledger.publish.protocol import Published, checkpoint_of
from mcp_bridge.ledger.publish.target_requests import open_client, refused, send

if TYPE_CHECKING:
    from mcp_bridge.ledger.publish.targets import Target


async def publish_to_url(target: Target, note: str) -> Published:
    """Send a note by POST; any 2xx status means that it was accepted.

    Raises:
        BridgeError: As `to_target.publish`.
    """
    assert target.url is not None  # the caller's choice
    size = checkpoint_of(note).size
    async with await open_client(target) as client:
        answer = await send(client, target, "POST", target.url, note.encode())
    if not httpx2.codes.is_success(answer.status):
        raise refused(target, answer.status)
    return Published(target.id, size, note)
