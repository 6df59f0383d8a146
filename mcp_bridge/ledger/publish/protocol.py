"""The types of publishing: its source, its results, the state of a target, and the alarm about another history."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, Protocol, TypedDict, cast

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.proofs.notes import parse_checkpoint, split_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.ledger.proofs.notes import Checkpoint
    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.publish.targets import Target

CONFLICT: Final = "publish_conflict"
"""The code of an error that is an alarm: somebody else has seen another history than the one that is here."""


class Source(Protocol):
    """The log that is published."""

    async def roots(self, sizes: Sequence[int]) -> Sequence[bytes | None]:
        """For each size, the root of the log's first so many entries, 32 bytes; None if it has fewer."""

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """The consistency proof between two sizes that the log has had, 0 < old < new (RFC 6962, section 2.1.2)."""

    async def keys(self) -> Sequence[Verifier]:
        """The keys that the log has been signed with, by its own word, each no longer than it was in use."""

    async def rotations(self) -> Sequence[str]:
        """The checkpoints with which another key took a key's place, signed by both, the first one first."""

    async def is_cosigned(self, size: int, key: Verifier) -> bool:
        """Whether a checkpoint of the log with that size or more is kept that a witness's key has cosigned."""

    async def newest(self) -> str:
        """The signed checkpoint of all entries."""

    def last(self, target: str) -> int:
        """The size of the last checkpoint that a target (by its `Target.id`) has taken; 0 for none."""


@dataclass(frozen=True, slots=True)
class Published:
    """The result of publishing a checkpoint that a target has accepted.

    Attributes:
        target: The target's id.
        size: The size that the target has now; more than the checkpoint's if another process was quicker.
        note: The checkpoint, with the cosignatures.
        cosignatures: Their lines, each with its newline; none but of a witness.
    """

    target: str
    size: int
    note: str
    cosignatures: tuple[str, ...] = ()


class TargetFailure(TypedDict):
    """Why an attempt at a target failed, as `BridgeError.record`."""

    code: str
    message: str
    hint: NotRequired[str]
    target: NotRequired[str]


class Alarm(TargetFailure):
    """A target has seen another history.

    `size` is that of the checkpoint it has seen; `time` is when it said so, in seconds since 1970, UTC.
    """

    size: int
    time: float


@dataclass(frozen=True, slots=True)
class TargetState:
    """How publishing to a target goes.

    Attributes:
        target: The target's id.
        status: `new`: nothing was tried. `ok`. `failing`: the last attempt failed. `conflict`: it was an alarm.
        size: Of the last checkpoint that it has taken; 0 for none.
        time: When it did, in seconds since 1970, UTC.
        error: Why the last attempt failed.
        conflict: The last alarm. It stays when the target takes checkpoints again.
    """

    target: str
    status: Literal["new", "ok", "failing", "conflict"] = "new"
    size: int = 0
    time: float = 0.0
    error: TargetFailure | None = None
    conflict: Alarm | None = None

    def record(self) -> dict[str, Any]:
        """The state as a JSON object."""
        return asdict(self)

    @classmethod
    def parse(cls, record: str) -> TargetState:
        """The state of a stored record, whose values are not checked.

        Raises:
            ValueError, TypeError: It isn't JSON, or not an object with these names.
        """
        return cls(**json.loads(record))


def error_of(error: BridgeError) -> TargetFailure:
    """An error as a target's state has it."""
    return cast("TargetFailure", error.record())


def alarm_of(error: BridgeError, time: float) -> Alarm:
    """A `publish_conflict` as a target's state has it, with the time in seconds since 1970, UTC."""
    return cast("Alarm", error.record() | {"time": time})


def checkpoint_of(note: str) -> Checkpoint:
    """The checkpoint of a note; its signatures are not checked.

    Raises:
        BridgeError: `bad_note`.
    """
    return parse_checkpoint(split_note(note)[0])


def rolled_back(target: Target, size: int, checkpoint: Checkpoint) -> BridgeError:
    """The alarm that a target has seen a longer log."""
    return conflict(
        target,
        f"The {target.id} has seen {size} entries of the log {checkpoint.origin}, and it has {checkpoint.size} now: "
        "it was rolled back.",
        size,
    )


def conflict(target: Target, message: str, size: int) -> BridgeError:
    """An alarm about what a target has seen up to a size."""
    return BridgeError(
        CONFLICT,
        message,
        hint="If you have restored an old backup or accepted a loss (`audit accept-loss`), name a new file or another"
        " witness. Otherwise somebody has changed the ledger: keep both, and compare them.",
        target=target.id,
        size=size,
    )
