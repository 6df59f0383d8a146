"""Effects in doubt: their intent is recorded, no outcome is, and they must not be done twice.

An execution with such an effect is suspended until a person says what happened. Nothing that a sandbox or an MCP client
can ask for leads to a settlement: only who can start a process as this user can settle an effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.events import Outcome, Redo
from mcp_bridge.kernel.machine import IN_DOUBT
from mcp_bridge.ledger.log.payloads import EffectOutcome, ToolIntent, Transition, understood

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.kernel.events import Effect
    from mcp_bridge.ledger.log.entries import Recorded

_SHOWN = 10


class Settlement(NamedTuple):
    """A person's word on what became of an effect.

    Attributes:
        how: `happened`, `failed`, or `not_done`: it is to be done.
        by: Whose word it is.
        value: What it gave, if it happened.
        message: Why it failed.
        comment: The person's, or None.
    """

    how: Literal["happened", "failed", "not_done"]
    by: str
    value: Any = None
    message: str = ""
    comment: str | None = None

    def event(self, effect: int) -> Outcome | Redo:
        """What the machine takes for it."""
        match self.how:
            case "happened":
                return Outcome(effect, "ok", self.value)
            case "failed":
                return Outcome(effect, "failed", code="failed", message=self.message)
            case "not_done":
                return Redo(effect)


def doubt_row(effect: Effect, since: float) -> dict[str, Any]:
    """What a person has to know of an effect in doubt.

    Args:
        effect: The effect.
        since: When its intent was recorded, in seconds since 1970.
    """
    return {
        "effect": effect.id,
        "step": effect.step,
        "tool": effect.name,
        "arguments": effect.arguments,
        "since": since,
    }


def settle_command(execution: str, effect: int | str) -> str:
    """The commands by which a person settles a doubt."""
    return f"mcp-bridge execution settle {execution} {effect} --happened [--value JSON] | --failed MESSAGE | --not-done"


def started_calls(entries: Sequence[Recorded]) -> dict[int, dict[str, Any]]:
    """A row for each tool call whose intent is recorded, by its effect: as it was recorded last.

    Args:
        entries: All of an execution's.
    """
    found: dict[int, dict[str, Any]] = {}
    for recorded in entries:
        match understood(recorded):
            case ToolIntent(tool, arguments, effect=int(effect)):
                call = {"effect": effect, "step": recorded.entry.step, "tool": tool}
                found[effect] = call | {"arguments": arguments, "since": recorded.time}
    return found


def effects_in_doubt(entries: Sequence[Recorded]) -> set[int]:
    """The effects that are recorded as in doubt, with nothing recorded of them since.

    Args:
        entries: All of an execution's.
    """
    found: set[int] = set()
    for recorded in entries:
        match understood(recorded):
            case EffectOutcome(Outcome(effect=effect, status="pending", code=code)) if code == IN_DOUBT:
                found.add(effect)
            case EffectOutcome(Outcome(effect=effect)) | Transition(Redo(effect=effect)):
                found.discard(effect)
    return found


def find_doubt(doubts: Mapping[int, dict[str, Any]], asked: str | None, execution: str) -> dict[str, Any]:
    """The doubt that a person means.

    Args:
        doubts: Rows by effect.
        asked: A step's path or an effect's number; None where there is only one.
        execution: The id, for the message.

    Raises:
        BridgeError: `not_in_doubt`: nothing is; `unknown_doubt`, `ambiguous_id`.
    """
    rows = list(doubts.values())
    if not rows:
        raise BridgeError("not_in_doubt", f"Nothing of the execution {execution} is in doubt.")
    found = [known for known in rows if asked is None or asked in (known["step"], str(known["effect"]))]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{known['step']} ({known['effect']})" for known in rows[:_SHOWN])
    names += ", …" if len(rows) > _SHOWN else ""
    if not found:
        raise BridgeError("unknown_doubt", f"No {asked!r:.100} is in doubt; these are: {names}.")
    raise BridgeError("ambiguous_id", f"More than one effect is in doubt: {names}.", hint="Name one by its number.")
