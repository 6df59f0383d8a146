"""What comes of running an execution again against its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.ledger.storage.execution_store import StoredExecution


NOT_YET = "Try again when it has ended."


class Difference(NamedTuple):
    """Where a replay and the record part. What comes after it isn't looked at: it would be a consequence.

    Attributes:
        sequence: The entry's.
        step: The path of the step, or None.
        what: What is compared.
        expected: As it is recorded; of another version, as the program did that was run.
        found: As it is now.
    """

    sequence: int
    step: str | None
    what: str
    expected: Any
    found: Any


class Replayed(NamedTuple):
    """What a replay has found.

    Attributes:
        execution: The id.
        kind: `program` or `script`.
        events: Taken by the machine.
        effects: Wanted by it.
        status: How the execution stands.
        transitions: Hash of them all; equal for two executions in which the same happened.
        difference: The first, or None.
    """

    execution: str
    kind: str
    events: int
    effects: int
    status: str
    transitions: str
    difference: Difference | None

    @property
    def agrees(self) -> bool:
        """Whether the record is what follows from the program."""
        return self.difference is None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        told = self._asdict() | {"agrees": self.agrees}
        return told | {"difference": self.difference and self.difference._asdict()}


def not_replayable(stored: StoredExecution, why: str, hint: str | None = None) -> BridgeError:
    """The error for an execution of which the record doesn't have, or not yet, what a replay needs."""
    message = f"The execution {stored.id} can't be run again against its record: {why}."
    return BridgeError("not_replayable", message, hint=hint)
