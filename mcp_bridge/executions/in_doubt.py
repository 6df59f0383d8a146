"""Effects in doubt: the intent is recorded, an outcome is not, and the effect may not be repeated.

An execution with such an effect is suspended until a person settles it by saying what happened. No request of a sandbox
or an MCP client leads to a settlement: it takes a process of this user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.events import Outcome, Redo
from mcp_bridge.kernel.machine import IN_DOUBT
from mcp_bridge.ledger.log.payloads import EffectOutcome, ToolIntent, Transition, understood

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.executions.record import Id, InDoubtRow
    from mcp_bridge.executions.scripts.call_history import CallHistory, RecordedCall
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.kernel.events import Effect
    from mcp_bridge.ledger.log.entries import Recorded

_SHOWN = 10


class Settlement(NamedTuple):
    """A person's statement about what happened to an effect.

    Attributes:
        how: `happened`, `failed`, or `not_done`: it did not happen, and is done now.
        by: Who says so.
        value: The effect's result, if it happened.
        message: Why it failed.
        comment: The person's comment, or None.
    """

    how: Literal["happened", "failed", "not_done"]
    by: str
    value: Any = None
    message: str = ""
    comment: str | None = None

    def event(self, effect: int) -> Outcome | Redo:
        """The machine's event for it."""
        match self.how:
            case "happened":
                return Outcome(effect, "ok", self.value)
            case "failed":
                return Outcome(effect, "failed", code="failed", message=self.message)
            case "not_done":
                return Redo(effect)


async def may_be_repeated(kind: str, name: str, gate: Gate, servers: frozenset[str] | None = None) -> bool:
    """Whether an effect that may have happened may happen twice: a model's answer, a wait, an idempotent tool's call.

    Args:
        kind: The effect's, or the kind of a script's call.
        name: The tool's, as a step or a script's record has it.
        gate: Knows the tool.
        servers: The servers that are left to its program; None for all that the gate has.
    """
    return kind != "tool" or await gate.is_idempotent(name, servers)


async def calls_in_doubt(history: CallHistory, gate: Gate) -> list[RecordedCall]:
    """The calls of a script that may have happened, and may not be repeated."""
    return [call for call in history.doubtful() if not await may_be_repeated(call.asked.kind, call.asked.name, gate)]


def doubt_row(effect: Effect, since: float) -> InDoubtRow[int]:
    """The facts that a person needs to settle an effect in doubt.

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
    """The commands by which a person settles an effect in doubt."""
    return f"mcp-bridge execution settle {execution} {effect} --happened [--value JSON] | --failed MESSAGE | --not-done"


def started_calls(entries: Sequence[Recorded]) -> dict[int, InDoubtRow[int]]:
    """A row for each tool call whose intent is recorded, by its effect. The last intent of an effect counts.

    Args:
        entries: All entries of an execution.
    """
    calls: dict[int, InDoubtRow[int]] = {}
    for recorded in entries:
        match understood(recorded):
            case ToolIntent(tool, arguments, effect=int(effect)):
                calls[effect] = {
                    "effect": effect,
                    "step": recorded.entry.step or "",
                    "tool": tool,
                    "arguments": arguments,
                    "since": recorded.time,
                }
    return calls


def effects_in_doubt(entries: Sequence[Recorded]) -> set[int]:
    """The effects that are recorded as in doubt, and as nothing else since.

    Args:
        entries: All entries of an execution.
    """
    effects: set[int] = set()
    for recorded in entries:
        match understood(recorded):
            case EffectOutcome(Outcome(effect=effect, status="pending", code=code)) if code == IN_DOUBT:
                effects.add(effect)
            case EffectOutcome(Outcome(effect=effect)) | Transition(Redo(effect=effect)):
                effects.discard(effect)
    return effects


def find_doubt(rows_by_effect: Mapping[Id, InDoubtRow[Id]], name: str | None, execution: str) -> InDoubtRow[Id]:
    """The effect in doubt that a person names.

    Args:
        rows_by_effect: The effects in doubt, by their numbers.
        name: A step's path or an effect's number; None if there is only one.
        execution: The execution's id, for the message.

    Raises:
        BridgeError: `not_in_doubt`: no effect is; `unknown_doubt`, `ambiguous_id`.
    """
    rows = list(rows_by_effect.values())
    if not rows:
        raise BridgeError("not_in_doubt", f"Nothing of the execution {execution} is in doubt.")
    matching = [known for known in rows if name is None or name in (known["step"], str(known["effect"]))]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(f"{known['step']} ({known['effect']})" for known in rows[:_SHOWN])
    names += ", …" if len(rows) > _SHOWN else ""
    if not matching:
        raise BridgeError("unknown_doubt", f"No {name!r:.100} is in doubt; these are: {names}.")
    raise BridgeError("ambiguous_id", f"More than one effect is in doubt: {names}.", hint="Name one by its number.")
