"""What is seen of a log where its checkpoints are published, asked for, and held against the log as it is now.

Whoever verifies a ledger asks before they say that it is whole: a log that was put back to an earlier time, with the
checkpoint of that time, agrees with itself, and only who has seen more of it knows.
"""

from __future__ import annotations

import functools
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.proofs.notes import open_checkpoint
from mcp_bridge.ledger.publish.publish import CONFLICT, checkpoint_of, rolled_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.publish.targets import Target

logger = logging.getLogger(__name__)

ASK_SECONDS = 30.0
"""For all targets together, each of which has its own time-out besides."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking a target.

    Attributes:
        target: Its id.
        status: `agrees`: what it has seen is the log's. `unasked`: it could not be asked.
        size: Of the largest checkpoint that it has seen; 0 for none.
        error: Why it could not be asked, as `BridgeError.record`.
    """

    target: str
    status: Literal["agrees", "unasked"]
    size: int = 0
    error: dict[str, Any] | None = None

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class FileLog:
    """The log of a ledger's file, as `publishing.Source`. Each answer is of the file as it is then.

    So what a bridge publishes meanwhile is no sign of anything: it was in the file before.

    Args:
        path: The file.
        taken: The size of the last checkpoint that each target has taken, by its id.
    """

    def __init__(self, path: Path, taken: Mapping[str, int]) -> None:
        self._path = path
        self._taken = taken

    async def roots(self, sizes: Sequence[int]) -> Sequence[bytes | None]:
        """As `publishing.Source`."""
        with open_ledger(self._path) as ledger:
            # Sizes that are near each other have most of their nodes in common.
            read = functools.cache(ledger.node)
            return [merkle.root(size, read) if size <= ledger.size else None for size in sizes]

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """As `publishing.Source`."""
        with open_ledger(self._path) as ledger:
            return merkle.consistency_proof(old, new, ledger.node)

    async def keys(self) -> Sequence[Verifier]:
        """As `publishing.Source`."""
        with open_ledger(self._path) as ledger:
            return ledger.signing_keys()

    async def rotations(self) -> Sequence[str]:
        """As `publishing.Source`: none, since nothing is added here."""
        return ()

    async def is_cosigned(self, size: int, key: Verifier) -> bool:
        """As `publishing.Source`."""
        with open_ledger(self._path) as ledger:
            notes = list(ledger.checkpoints())
        for note in notes:
            with suppress(BridgeError):
                checkpoint, _ = open_checkpoint(note, [key])
                if size <= checkpoint.size and await self.roots([checkpoint.size]) == [checkpoint.root]:
                    return True
        return False

    async def newest(self) -> str:
        """As `publishing.Source`."""
        with open_ledger(self._path) as ledger:
            return ledger.note

    def last(self, target: str) -> int:
        """As `publishing.Source`."""
        return self._taken.get(target, 0)


async def ask(targets: Iterable[Target], log: FileLog) -> list[Asked]:
    """Hold a log against what its targets have seen.

    Args:
        targets: They, their files absolute.
        log: The log.

    Returns:
        What came of each. One that can't be asked holds up neither the others nor the caller for long.

    Raises:
        BridgeError: `publish_conflict`: one has seen another history. All have been asked then, or the time is over.
    """
    targets = tuple(targets)
    found: dict[str, Asked] = {}
    alarms: list[BridgeError] = []

    async def one(target: Target) -> None:
        try:
            found[target.id] = Asked(target.id, "agrees", await _seen(target, log))
        except BridgeError as exc:
            if exc.code == CONFLICT:
                alarms.append(exc)
            else:
                found[target.id] = Asked(target.id, "unasked", error=exc.record())
        except Exception as exc:  # whatever it is: the others are asked all the same
            logger.exception("the %s could not be asked", target.id)
            error = BridgeError("internal_error", f"Asking the {target.id} failed: {type(exc).__name__}.")
            found[target.id] = Asked(target.id, "unasked", error=error.record())

    with anyio.move_on_after(ASK_SECONDS):
        async with anyio.create_task_group() as tasks:
            for target in targets:
                tasks.start_soon(one, target)
    if alarms:
        raise alarms[0]
    late = BridgeError("publish_unreachable", f"It has not answered in {ASK_SECONDS:g} s.")
    return [found.get(target.id, Asked(target.id, "unasked", error=late.record())) for target in targets]


async def _seen(target: Target, log: FileLog) -> int:
    """The size of the largest checkpoint that a target has seen.

    Raises:
        BridgeError: As `publishing.publish`; `publish_unasked`: an address that takes notes shows none.
    """
    taken = log.last(target.id)
    if taken and await log.roots([taken]) == [None]:
        # It needs not be asked: that is what it has said.
        raise rolled_back(target, taken, checkpoint_of(await log.newest()))
    # Each is loaded where it is used: the client for HTTP takes a tenth of a second.
    if target.file is not None:
        from mcp_bridge.ledger.publish.to_file import look_at_file  # noqa: PLC0415

        return await look_at_file(target, log)
    if target.witness is not None:
        from mcp_bridge.ledger.publish.to_http import look_at_witness  # noqa: PLC0415

        return await look_at_witness(target, log)
    raise BridgeError(
        "publish_unasked",
        f"The {target.id} takes notes and shows none.",
        hint="Hold the ledger against the notes that are kept there, with --checkpoint.",
        target=target.id,
    )
