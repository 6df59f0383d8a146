"""The result of a replay: an execution run again against its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.ledger.storage.execution_store import StoredExecution


NOT_YET = "Try again when it has ended."


class Difference(NamedTuple):
    """The first difference between a replay and the record. Later ones would follow from it.

    Attributes:
        sequence: The entry's number.
        step: The path of the step, or None.
        what: What is compared.
        expected: The recorded value; in a replay with another program, the value of the original one.
        found: The replay's value.
    """

    sequence: int
    step: str | None
    what: str
    expected: Any
    found: Any


class Replayed(NamedTuple):
    """The result of a replay.

    Attributes:
        execution: The execution's id.
        kind: `program` or `script`.
        events: How many events the machine applied; of a script, how many calls were answered.
        effects: How many effects it emitted; of a script, how many calls it made.
        status: The execution's status.
        transitions: The hash of all transitions; equal for two executions in which the same happened.
        difference: The first difference, or None.
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
        """Whether the record follows from the program."""
        return self.difference is None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        fields = self._asdict() | {"agrees": self.agrees}
        return fields | {"difference": self.difference and self.difference._asdict()}


def not_replayable(stored: StoredExecution, why: str, hint: str | None = None) -> BridgeError:
    """The error for an execution whose record isn't enough for a replay, or not yet."""
    message = f"The execution {stored.id} can't be run again against its record: {why}."
    return BridgeError("not_replayable", message, hint=hint)
