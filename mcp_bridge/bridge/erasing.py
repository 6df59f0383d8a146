"""Erasing what executions have left, in the store and beside it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger import erasure

if TYPE_CHECKING:
    from mcp_bridge.bridge.keep import Files
    from mcp_bridge.ledger.config import LedgerConfig
    from mcp_bridge.ledger.database import Database
    from mcp_bridge.ledger.erasure import Erased, What

logger = logging.getLogger(__name__)

TIDY_SECONDS = 3600.0
"""Between two looks for what is older than it may be."""

_DAY_SECONDS = 24 * 3600.0

_START_SECONDS = 1.0
"""For readers of the write-ahead log, at the start: the next one finishes what this one can't."""


async def erase(
    database: Database, files: Files, what: What, name: str | float, *, by: str, reason: str | None
) -> Erased:
    """Erase what is kept of executions, their artifacts and outputs among it.

    Args:
        database: The store.
        files: What is kept beside it.
        what: As `erasure.erase`.
        name: Likewise.
        by: Likewise.
        reason: Likewise.

    Raises:
        BridgeError: As `erasure.erase`; `erasure_unfinished`: files can't be removed.
    """
    # It knows programs, and with them the kernel: a start that erases nothing has no use for them.
    from mcp_bridge.bridge.program_record import is_under_way  # noqa: PLC0415

    def under_way(status: str, owner: str) -> bool:
        return is_under_way(status, owner, is_held=status == "running" and database.is_present(owner))

    erased = await erasure.erase(database, what, name, by=by, reason=reason, under_way=under_way)
    await finish(database, files)
    return erased


async def finish(database: Database, files: Files, seconds: float | None = None) -> None:
    """Do what is left to do of erasures, whoever began them.

    Args:
        database: The store.
        files: What is kept beside it.
        seconds: As `erasure.finish`.

    Raises:
        BridgeError: `erasure_unfinished`.
    """
    try:
        await erasure.finish(database, files.remove, seconds)
    except OSError as exc:
        raise BridgeError(
            "erasure_unfinished",
            f"Files of an erased execution can't be removed: {exc.filename}: {exc.strerror}.",
            hint="They are removed at the next start of the bridge, or by the next `mcp-bridge erase`.",
        ) from None


async def tidy(database: Database, files: Files, config: LedgerConfig) -> None:
    """Finish erasures, and erase what is older than it may be.

    Raises:
        BridgeError: As `erase`, without `erasure_unfinished` and `clock_went_back`: those are warnings. Whoever reads
            the file for long keeps nobody else from working, and a clock is put right by a command that comes here.
    """
    try:
        await finish(database, files, _START_SECONDS)
        if config.keep_payloads_days is not None:
            before = time.time() - config.keep_payloads_days * _DAY_SECONDS
            await erase(database, files, "age", before, by="keep_payloads_days", reason=None)
    except BridgeError as exc:
        if exc.code not in {"erasure_unfinished", "clock_went_back"}:
            raise
        logger.warning("%s", exc)


async def keep_tidy(database: Database, files: Files, config: LedgerConfig) -> None:
    """As `tidy`, again and again: a bridge may live for months."""
    while True:
        await anyio.sleep(TIDY_SECONDS)
        try:
            await tidy(database, files, config)
        except BridgeError as exc:
            # Whatever it is, those whose calls it keeps from being recorded are told.
            logger.warning("what is older than it may be could not be erased: %s", exc)
