"""Erasure of executions in the ledger together with the files that they have left: on request, and by age."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.status import is_under_way
from mcp_bridge.ledger.erasure import execution_erasure, retention
from mcp_bridge.ledger.erasure.clock_jump_guard import is_clock_doubted
from mcp_bridge.ledger.erasure.value_erasure import erase_behind

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.executions.artifacts import Files
    from mcp_bridge.ledger.config import LedgerConfig
    from mcp_bridge.ledger.erasure.execution_erasure import Erased
    from mcp_bridge.ledger.storage.database import Database

What = Literal[execution_erasure.What, "reference"]
"""What a name is of: executions, or one value."""

logger = logging.getLogger(__name__)

START_SECONDS = 1.0
"""How long to wait for readers of the write-ahead log at the start. What isn't finished then is finished later."""


async def erase(
    database: Database, files: Files, what: What, name: str | float, *, by: str, reason: str | None
) -> Erased:
    """Erase executions with their artifacts and outputs, or one value.

    Args:
        database: The ledger.
        files: The store of artifacts and outputs.
        what: The kind of `name`.
        name: As in `execution_erasure.erase`; or of a value, the id of a reference to it.
        by: As in `execution_erasure.erase`.
        reason: As in `execution_erasure.erase`.

    Raises:
        BridgeError: As `execution_erasure.erase`; `erasure_unfinished`: files can't be removed.
    """
    is_under_way_now = under_way(database)
    if what == "reference":
        erased = await erase_behind(database, str(name), by=by, reason=reason, under_way=is_under_way_now)
    else:
        erased = await execution_erasure.erase(database, what, name, by=by, reason=reason, under_way=is_under_way_now)
    await finish(database, files)
    return erased


def under_way(database: Database) -> Callable[[str, str], bool]:
    """Tells whether an execution of this status and owner is under way in any process."""
    return lambda status, owner: is_under_way(status, owner, is_held=status == "running" and database.is_present(owner))


async def finish(database: Database, files: Files, seconds: float | None = None) -> None:
    """Complete unfinished erasures, of any process.

    Args:
        database: The ledger.
        files: The store of artifacts and outputs.
        seconds: As `execution_erasure.finish`.

    Raises:
        BridgeError: `erasure_unfinished`.
    """
    try:
        await execution_erasure.finish(database, files.remove, seconds)
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
        await finish(database, files, START_SECONDS)
        await erase_old(database, files, config)
    except BridgeError as exc:
        if exc.code not in {"erasure_unfinished", "clock_went_back"}:
            raise
        logger.warning("%s", exc)


async def erase_old(database: Database, files: Files, config: LedgerConfig) -> None:
    """Erase the payloads of executions that have passed `keep_payloads_days`, unless the clock is in doubt.

    Raises:
        BridgeError: As `erase`.
    """
    before = retention.cutoff(config.keep_payloads_days)
    if before is None or (await retention.has_ended_before(database, before) and await is_clock_doubted(database)):
        return
    erased = await erase(database, files, "age", before, by="keep_payloads_days", reason=None)
    if erased.executions:
        logger.info("executions that were erased by their age: %d", len(erased.executions))


async def sweep(database: Database, files: Files, config: LedgerConfig) -> None:
    """Remove artifacts and outputs that have passed their retention time, except those of unfinished executions.

    None are while the clock is in doubt.

    Artifacts that a killed bridge left incomplete are removed, too.

    Raises:
        OSError: A file can't be removed.
        BridgeError: As `Database.read`.
    """
    before = retention.cutoff(config.keep_files_days)
    if before is not None and await is_clock_doubted(database):
        before = None
    wanted = await retention.unfinished_executions(database)
    await anyio.to_thread.run_sync(files.sweep, before, wanted)
