"""What runs alongside a bridge's executions: checkpoints are published, and what is older than it may be is erased."""

from __future__ import annotations

import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.erasure_for_room import keep_room
from mcp_bridge.executions.erasure_with_files import sweep, tidy
from mcp_bridge.ledger.erasure.clock_jump_guard import JUMP_SECONDS, is_clock_doubted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup

    from mcp_bridge.executions.artifacts import Files
    from mcp_bridge.ledger.config import LedgerConfig
    from mcp_bridge.ledger.publish.publish_loop import Publisher
    from mcp_bridge.ledger.storage.database import Database

logger = logging.getLogger(__name__)

TIDY_SECONDS = 300.0
"""Interval between two checks for executions that have passed their retention time."""

ROOM_SECONDS = 15.0
"""Interval between two checks of the ledger's size."""


START_SECONDS = 2.0
"""How long a bridge's start may wait for erasures. What takes longer goes on while the bridge serves."""


async def tidy_at_start(database: Database, files: Files, config: LedgerConfig) -> bool:
    """As `tidy`, for a short time. Returns whether that was enough.

    Raises:
        BridgeError: As `tidy`.
    """
    with anyio.move_on_after(START_SECONDS):
        await tidy(database, files, config)
        return True
    return False


@asynccontextmanager
async def upkeep(
    database: Database,
    files: Files,
    config: LedgerConfig,
    publisher: Publisher | None,
    tasks: TaskGroup,
    *,
    is_tidy: bool,
) -> AsyncGenerator[None]:
    """Publish checkpoints and erase what has passed its retention time, until the context is left.

    Args:
        database: The ledger.
        files: The store of artifacts and outputs.
        config: The retention times.
        publisher: Publishes the checkpoints, or None.
        tasks: In which this runs.
        is_tidy: What `tidy_at_start` has returned.
    """
    if publisher is not None:
        tasks.start_soon(publisher.run)
    tidying = anyio.CancelScope()

    async def tidy_until_left() -> None:
        with tidying:
            await _tidy_at_intervals(database, files, config, is_tidy=is_tidy)

    tasks.start_soon(tidy_until_left)
    try:
        yield
    finally:
        tidying.cancel()
        if publisher is not None:
            publisher.close()


async def _tidy_at_intervals(database: Database, files: Files, config: LedgerConfig, *, is_tidy: bool) -> None:
    """Run `tidy`, `keep_room` and `sweep` at intervals: a bridge may run for months."""
    if not is_tidy:
        await _tidy(database, files, config)
    looked, clock = time.monotonic(), time.time()
    while True:
        await anyio.sleep(min(ROOM_SECONDS, TIDY_SECONDS))
        before, clock = clock, time.time()
        if clock - before > JUMP_SECONDS:
            # There may be entries of the new time by now, of which it isn't ahead.
            await is_clock_doubted(database, before)
        await keep_room(database, files, config)
        if time.monotonic() - looked >= TIDY_SECONDS:
            looked = time.monotonic()
            await _tidy(database, files, config)


async def _tidy(database: Database, files: Files, config: LedgerConfig) -> None:
    try:
        await tidy(database, files, config)
        await sweep(database, files, config)
    except (BridgeError, OSError) as exc:
        # The calls that can't be recorded because of it fail with that error.
        logger.warning("what is older than it may be could not be erased: %s", exc)
