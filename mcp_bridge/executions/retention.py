"""Erases what executions have left, in the store and beside it: on request, by age, and to make room in the ledger."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.status import is_under_way
from mcp_bridge.ledger.storage import erasure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_bridge.executions.artifacts import Files
    from mcp_bridge.ledger.config import LedgerConfig
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.erasure import Erased, What

logger = logging.getLogger(__name__)

TIDY_SECONDS = 300.0
"""Interval between two checks for executions that have passed their retention time."""

ROOM_SECONDS = 15.0
"""Interval between two checks of the ledger's size."""

FULL, TIDY = 0.9, 0.8
"""Shares of the quota. Above FULL, executions that may be erased are erased until TIDY is reached."""

LARGE_SHARE = 64
"""An execution larger than one part in so many of the ledger's limit is erased first when space is needed."""

_DAY_SECONDS = 24 * 3600.0

_START_SECONDS = 1.0
"""How long to wait for readers of the write-ahead log at the start. What isn't finished then is finished later."""


async def erase(
    database: Database, files: Files, what: What, name: str | float, *, by: str, reason: str | None
) -> Erased:
    """Erase executions with their artifacts and outputs.

    Args:
        database: The ledger.
        files: The store of artifacts and outputs.
        what: As in `erasure.erase`.
        name: As in `erasure.erase`.
        by: As in `erasure.erase`.
        reason: As in `erasure.erase`.

    Raises:
        BridgeError: As `erasure.erase`; `erasure_unfinished`: files can't be removed.
    """
    erased = await erasure.erase(database, what, name, by=by, reason=reason, under_way=_under_way(database))
    await finish(database, files)
    return erased


def _under_way(database: Database) -> Callable[[str, str], bool]:
    return lambda status, owner: is_under_way(status, owner, is_held=status == "running" and database.is_present(owner))


async def finish(database: Database, files: Files, seconds: float | None = None) -> None:
    """Complete unfinished erasures, of any process.

    Args:
        database: The ledger.
        files: The store of artifacts and outputs.
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
    """Complete unfinished erasures, and erase executions that have passed their retention time.

    Raises:
        BridgeError: As `erase`, except that `erasure_unfinished` and `clock_went_back` are logged: a process that
            reads the file for long must not stop the others, and the command that corrects the clock calls this, too.
    """
    try:
        await finish(database, files, _START_SECONDS)
        await _erase_old(database, files, config)
    except BridgeError as exc:
        if exc.code not in {"erasure_unfinished", "clock_went_back"}:
            raise
        logger.warning("%s", exc)


async def _erase_old(database: Database, files: Files, config: LedgerConfig) -> None:
    if config.keep_payloads_days != "forever":
        before = time.time() - config.keep_payloads_days * _DAY_SECONDS
        await erase(database, files, "age", before, by="keep_payloads_days", reason=None)


async def make_room(database: Database, files: Files, config: LedgerConfig) -> None:
    """Erase old executions, then ended ones, until a nearly full ledger has space again.

    Large executions are erased first, so that a run that fills the ledger doesn't displace the records of others; then
    those that ended first. With `keep_payloads_days = "forever"` nothing is erased. Errors are logged: callers that
    need space check for it themselves.
    """
    try:
        await _make_room(database, files, config)
    except BridgeError as exc:
        logger.warning("no room could be made in the ledger: %s", exc)


async def _make_room(database: Database, files: Files, config: LedgerConfig) -> None:
    most = database.quota.max_bytes
    try:
        await _erase_old(database, files, config)
    except BridgeError as exc:
        if exc.code != "erasure_unfinished":
            raise
    if config.keep_payloads_days == "forever" or most is None:
        return
    while (await database.measure()).used > TIDY * most:
        chosen = await erasure.erasure_candidates(database, most // LARGE_SHARE)
        erased = chosen and await _erase_ended(database, files, chosen)
        if not erased:
            break
        logger.warning("the ledger is nearly full: erased the payloads of %d executions that had ended", len(erased))


async def _erase_ended(database: Database, files: Files, chosen: Sequence[str]) -> Sequence[str]:
    erased = await erasure.erase_ended(database, chosen, by="max_size", under_way=_under_way(database))
    try:
        await finish(database, files, _START_SECONDS)
    except BridgeError as exc:
        # The execution is erased. A reader prevents the completion, which the next erasure repeats.
        logger.warning("%s", exc)
    return erased.executions


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


async def keep_tidy(database: Database, files: Files, config: LedgerConfig) -> None:
    """Run `tidy`, `keep_room` and `sweep` at intervals: a bridge may run for months."""
    looked = time.monotonic()
    while True:
        await anyio.sleep(min(ROOM_SECONDS, TIDY_SECONDS))
        await keep_room(database, files, config)
        if time.monotonic() - looked < TIDY_SECONDS:
            continue
        looked = time.monotonic()
        try:
            await tidy(database, files, config)
            await sweep(database, files, config)
        except (BridgeError, OSError) as exc:
            # The calls that can't be recorded because of it fail with that error.
            logger.warning("what is older than it may be could not be erased: %s", exc)


async def sweep(database: Database, files: Files, config: LedgerConfig) -> None:
    """Remove artifacts and outputs that have passed their retention time, except those of unfinished executions.

    Raises:
        OSError: A file can't be removed.
        BridgeError: As `Database.read`.
    """
    if config.keep_files_days == "forever":
        return
    wanted = await erasure.unfinished_executions(database)
    before = time.time() - config.keep_files_days * _DAY_SECONDS
    await anyio.to_thread.run_sync(files.sweep, before, wanted)
