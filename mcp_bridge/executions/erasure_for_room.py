"""Erases payloads of ended executions before their time, when the ledger has nearly reached its `max_size`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.erasure_with_files import START_SECONDS, erase_old, finish, under_way
from mcp_bridge.ledger.erasure import execution_erasure, retention
from mcp_bridge.ledger.erasure.session_cells import SessionCells

if TYPE_CHECKING:
    from mcp_bridge.executions.artifacts import Files
    from mcp_bridge.ledger.config import LedgerConfig
    from mcp_bridge.ledger.storage.database import Database

logger = logging.getLogger(__name__)

FULL, ENOUGH = 0.9, 0.8
"""Shares of the quota. Above FULL, executions that may be erased are erased until ENOUGH is reached."""

SESSIONS_SHARE = 0.25
"""The share of the quota that cells of listed sessions may take and be erased after all else. What sessions have beyond
that is as any other execution, so that one that fills the ledger doesn't displace the records of others."""

LARGE_SHARE = 64
"""An execution larger than one part in so many of the ledger's limit is erased first when space is needed."""


async def make_room(database: Database, files: Files, config: LedgerConfig) -> None:
    """Erase old executions, then ended ones, until a nearly full ledger has space again.

    Large executions are erased first, so that a run that fills the ledger doesn't displace the records of others; then
    those that ended first; and last what sessions are rebuilt from. With `keep_payloads_days = "forever"` nothing is
    erased. Errors are logged: callers that need space check for it themselves.
    """
    try:
        await _make_room(database, files, config)
    except BridgeError as exc:
        logger.warning("no room could be made in the ledger: %s", exc)


async def _make_room(database: Database, files: Files, config: LedgerConfig) -> None:
    most = database.quota.max_bytes
    try:
        await erase_old(database, files, config)
    except BridgeError as exc:
        if exc.code != "erasure_unfinished":
            raise
    if config.keep_payloads_days == "forever" or most is None:
        return
    cells: SessionCells | None = SessionCells(database, most=SESSIONS_SHARE * most)
    spared: set[str] = set()
    while (await database.measure()).used > ENOUGH * most:
        if await _erase_some(database, files, most // LARGE_SHARE, cells, spared):
            continue
        if cells is None:
            break
        cells = None


async def _erase_some(
    database: Database, files: Files, large: int, cells: SessionCells | None, spared: set[str]
) -> bool:
    """Erase a large execution, or some of those that ended first; False if there are none left.

    Args:
        database: The ledger.
        files: The store of artifacts and outputs.
        large: From how many bytes on one is large.
        cells: Those that are kept; None for none.
        spared: Those that were found to be needed, which are added here.
    """
    kept = set(spared)
    if cells is not None:
        await cells.read()
        kept |= await database.run_read(cells.kept)
    chosen = await retention.candidates_for_room(database, large, kept)
    if not chosen:
        return False
    erased = await execution_erasure.erase_ended(
        database, chosen, by="max_size", under_way=under_way(database), cells=cells
    )
    if not erased.executions:
        spared.update(chosen)
        return True
    try:
        await finish(database, files, START_SECONDS)
    except BridgeError as exc:
        # The execution is erased. A reader prevents the completion, which the next erasure repeats.
        logger.warning("%s", exc)
    logger.warning(
        "the ledger is nearly full: erased the payloads of %d executions that had ended%s",
        len(erased.executions),
        "" if cells else ", also of cells that sessions are rebuilt from",
    )
    return True


async def keep_room(database: Database, files: Files, config: LedgerConfig) -> None:
    """As `make_room`, ahead of need, if the ledger is fuller than `FULL`."""
    most = database.quota.max_bytes
    try:
        is_full = most is not None and (await database.measure()).used > FULL * most
    except BridgeError:
        # The calls that can't be recorded because of it fail with that error.
        return
    if is_full:
        await make_room(database, files, config)
