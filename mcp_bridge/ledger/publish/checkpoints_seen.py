"""Asks the targets of publishing for the checkpoints that they have seen, and compares them with the log.

Whoever verifies a ledger does so before they call it whole: a log that was put back to an earlier time, with the
checkpoint of that time, is consistent in itself, and only those who have seen a later one can tell.
"""

from __future__ import annotations

import functools
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.proofs.notes import open_checkpoint
from mcp_bridge.ledger.publish.protocol import CONFLICT, checkpoint_of, error_of, rolled_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.publish.protocol import TargetFailure, TargetState
    from mcp_bridge.ledger.publish.targets import Target

logger = logging.getLogger(__name__)

ASK_SECONDS = 30.0
"""The time-out for all targets together. Each target has its own as well."""


class TargetRecord(TypedDict):
    """A `TargetCheck` as a JSON object."""

    target: str
    status: Literal["agrees", "empty", "unasked"]
    size: int
    error: TargetFailure | None


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """The result of asking a target.

    Attributes:
        target: The target's id.
        status: `agrees`: what it has seen is the log's. `empty`: it has seen nothing of the log, so it vouches for
            nothing. `unasked`: it could not be asked.
        size: The size of the largest checkpoint that it has seen; 0 for none.
        error: Why it could not be asked; or, if it has seen nothing, why the last attempt to publish to it failed.
    """

    target: str
    status: Literal["agrees", "empty", "unasked"]
    size: int = 0
    error: TargetFailure | None = None

    def record(self) -> TargetRecord:
        """As a JSON object."""
        return {"target": self.target, "status": self.status, "size": self.size, "error": self.error}


class FileLog:
    """The log of a ledger's file, as a `Source`. Each answer is read from the file anew.

    So a checkpoint that a bridge publishes meanwhile is no conflict: its entries were in the file before.

    Args:
        path: The file.
        taken: The size of the last checkpoint that each target has taken, by its id.
    """

    def __init__(self, path: Path, taken: Mapping[str, int]) -> None:
        self._path = path
        self._taken = taken

    async def roots(self, sizes: Sequence[int]) -> Sequence[bytes | None]:
        """As `protocol.Source`."""
        with open_ledger(self._path) as ledger:
            # Neighbouring sizes share most of their nodes.
            read = functools.cache(ledger.node)
            return [merkle.root(size, read) if size <= ledger.size else None for size in sizes]

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """As `protocol.Source`."""
        with open_ledger(self._path) as ledger:
            return merkle.consistency_proof(old, new, ledger.node)

    async def keys(self) -> Sequence[Verifier]:
        """As `protocol.Source`."""
        with open_ledger(self._path) as ledger:
            return ledger.signing_keys()

    async def rotations(self) -> Sequence[str]:
        """As `protocol.Source`: none, since nothing is published from here."""
        return ()

    async def is_cosigned(self, size: int, key: Verifier) -> bool:
        """As `protocol.Source`."""
        with open_ledger(self._path) as ledger:
            notes = list(ledger.checkpoints())
        for note in notes:
            with suppress(BridgeError):
                checkpoint, _ = open_checkpoint(note, [key])
                if size <= checkpoint.size and await self.roots([checkpoint.size]) == [checkpoint.root]:
                    return True
        return False

    async def newest(self) -> str:
        """As `protocol.Source`."""
        with open_ledger(self._path) as ledger:
            return ledger.note

    def last(self, target: str) -> int:
        """As `protocol.Source`."""
        return self._taken.get(target, 0)


async def check_targets(
    targets: Iterable[Target], log: FileLog, states: Mapping[str, TargetState] | None = None
) -> list[TargetCheck]:
    """Compare a log with what its targets have seen.

    Args:
        targets: The targets, with absolute file paths.
        log: The log.
        states: How publishing to each target goes, by its id.

    Returns:
        A result for each. A target that doesn't answer delays neither the others nor the caller for long.

    Raises:
        BridgeError: `publish_conflict`: a target has seen another history. All have been asked by then, or the time is
            over.
    """
    targets = tuple(targets)
    checks: dict[str, TargetCheck] = {}
    alarms: list[BridgeError] = []

    async def one(target: Target) -> None:
        try:
            size = await _seen(target, log)
            # If it holds nothing, the last attempt to publish to it may say why.
            state = None if size else (states or {}).get(target.id)
            checks[target.id] = TargetCheck(
                target.id, "agrees" if size else "empty", size, None if state is None else state.error
            )
        except BridgeError as exc:
            if exc.code == CONFLICT:
                alarms.append(exc)
            else:
                checks[target.id] = TargetCheck(target.id, "unasked", error=error_of(exc))
        except Exception as exc:  # the other targets are asked all the same
            logger.exception("the %s could not be asked", target.id)
            error = BridgeError("internal_error", f"Asking the {target.id} failed: {type(exc).__name__}.")
            checks[target.id] = TargetCheck(target.id, "unasked", error=error_of(error))

    with anyio.move_on_after(ASK_SECONDS):
        async with anyio.create_task_group() as tasks:
            for target in targets:
                tasks.start_soon(one, target)
    if alarms:
        raise alarms[0]
    late = BridgeError("publish_unreachable", f"It has not answered in {ASK_SECONDS:g} s.")
    return [checks.get(target.id, TargetCheck(target.id, "unasked", error=error_of(late))) for target in targets]


async def _seen(target: Target, log: FileLog) -> int:
    """The size of the largest checkpoint that a target has seen.

    Raises:
        BridgeError: As `to_target.publish`; `publish_unasked`: an address that takes notes shows none.
    """
    taken = log.last(target.id)
    if taken and await log.roots([taken]) == [None]:
        # It needn't be asked: it has taken that checkpoint.
        raise rolled_back(target, taken, checkpoint_of(await log.newest()))
    # Imported late: the HTTP client takes a tenth of a second to load.
    if target.file is not None:
        from mcp_bridge.ledger.publish.to_file import look_at_file  # noqa: PLC0415

        return await look_at_file(target, log)
    if target.witness is not None:
        from mcp_bridge.ledger.publish.to_witness import look_at_witness  # noqa: PLC0415

        return await look_at_witness(target, log)
    raise BridgeError(
        "publish_unasked",
        f"The {target.id} takes notes and shows none.",
        hint="Hold the ledger against the notes that are kept there, with --checkpoint.",
        target=target.id,
    )
