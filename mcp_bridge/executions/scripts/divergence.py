"""A script that is run again from its record, and makes other calls than were recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.executions.scripts.call_history import CallRequest

MAX_SHOWN_CHARS = 300
"""Most characters of each side of a divergence in its message."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A script went another way than it had.

    Attributes:
        call: Where.
        recorded: What was asked for there; None for nothing.
        asked: What is asked for now; None for nothing.
        instead_of: The recorded call that `recorded` is of, where that is another one: it wasn't asked for.
    """

    call: str
    recorded: CallRequest | None
    asked: CallRequest | None
    instead_of: str | None = None

    def error(self) -> BridgeError:
        """The divergence as an error, with both sides in the details."""
        if self.instead_of is not None:
            what = (
                f"the call {self.instead_of} is recorded and was not asked for: {_shown(self.recorded)};"
                f" the call {self.call} is not recorded, or its outcome isn't: {_shown(self.asked)}"
            )
        elif self.asked is None:
            what = f"the call {self.call} is recorded and was not asked for: {_shown(self.recorded)}"
        elif self.recorded is None:
            what = f"the call {self.call} is not recorded: {_shown(self.asked)}"
        else:
            what = f"recorded as {self.call} is {_shown(self.recorded)}, and asked for was {_shown(self.asked)}"
        error = BridgeError(
            "divergence",
            f"The script doesn't do what it did: {what}.",
            hint="It depends on something that changes: the time, chance, the order of a set. Nothing was done twice.",
            call=self.call,
            recorded=self.recorded and self.recorded.abridged(),
            asked=self.asked and self.asked.abridged(),
        )
        if self.instead_of is not None:
            error.details["instead_of"] = self.instead_of
        return error


def _shown(asked: CallRequest | None) -> str:
    text = "nothing" if asked is None else f"{asked.name} with {asked.abridged()['arguments']}"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
