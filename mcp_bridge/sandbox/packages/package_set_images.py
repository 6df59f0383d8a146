"""The images of package sets: how many are kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.store import LABEL_SET

if TYPE_CHECKING:
    from mcp_bridge.sandbox.engine import Engine
    from mcp_bridge.sandbox.image.store import ImageInfo, ImageStore
    from mcp_bridge.sandbox.packages.cache import WheelCache

logger = logging.getLogger(__name__)


async def make_room(store: ImageStore, engine: Engine, cache: WheelCache, most: int, kept: ImageInfo) -> list[str]:
    """Remove images of package sets while they are too large together, those that were used longest ago first.

    One that a sandbox uses stays.

    Args:
        store: Where images are kept.
        engine: What starts sandboxes on them.
        cache: Knows when each was used.
        most: Bytes that they may have.
        kept: The image that is needed now.

    Returns:
        The digests of the sets whose images are removed.
    """
    removed: list[str] = []
    try:
        images = [one for one in await store.images() if LABEL_SET in one.labels]
    except BridgeError as exc:
        logger.warning("the images of package sets can't be listed: %s", exc)
        return removed
    total = sum(one.size for one in images)
    for one in sorted(images, key=lambda image: cache.last_use(image.labels[LABEL_SET])):
        if total <= most:
            break
        if one.id == kept.id:
            continue
        engine.release_image(one.reference)
        try:
            await store.remove(one.reference)
        except BridgeError as exc:
            logger.info("the image %s stays: %s", one.reference, exc.message)
            continue
        total -= one.size
        cache.forget_image(one.labels[LABEL_SET])
        removed.append(one.labels[LABEL_SET])
    return removed
