"""A brake for erasure by age, which believes the clock: one that has jumped ahead is believed an hour later.

It looks the same when a bridge was not used for long. Whoever has set the clock wrong has that hour to notice.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio.to_thread

from mcp_bridge.atomic_files import write_private
from mcp_bridge.ledger.log.entry_encoding import decode
from mcp_bridge.private_files import read_whole

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.ledger.storage.database import Database

logger = logging.getLogger(__name__)

JUMP_SECONDS = 7 * 24 * 3600.0
"""How far ahead of the last entry a clock may be, and is believed at once."""

ERASURE_PAUSE_SECONDS = 3600.0
"""For how long nothing is erased by age after a jump was seen, in any process."""

FILE_NAME = "clock.doubted"
"""Has the time, in seconds since 1970, at which a jump was seen last."""

_MAX_BYTES = 100


async def is_clock_doubted(database: Database, last: float | None = None) -> bool:
    """Whether the clock was seen to have jumped ahead less than an hour ago, or is so now.

    Args:
        database: The ledger.
        last: What it said before, in seconds since 1970; by default when the last entry was made.
    """
    now = time.time()
    if last is None:
        rows = await database.read("SELECT entry FROM entries ORDER BY sequence DESC LIMIT 1")
        last = decode(rows[0][0]).time / 1e6 if rows else now
    return await anyio.to_thread.run_sync(_is_doubted, database.path.parent / FILE_NAME, now, last)


def _is_doubted(file: Path, now: float, last: float) -> bool:
    seen = 0.0
    with suppress(OSError, ValueError):
        seen = float(read_whole(file, _MAX_BYTES))
    if seen <= now < seen + ERASURE_PAUSE_SECONDS:
        # Also when there are entries of that time by now.
        return True
    if now - last <= JUMP_SECONDS or last < seen <= now:
        return False
    logger.warning(
        "the clock is %.0f days ahead of when the ledger was used last: nothing is erased by age for an hour. "
        "If it is wrong, set it",
        (now - last) / 86400,
    )
    with suppress(OSError):
        write_private(file, str(now).encode())
    return True
