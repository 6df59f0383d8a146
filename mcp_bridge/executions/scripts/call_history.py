"""What is recorded of a script's calls: what each asked for and was given, and in which order."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.rules.uris import REFERENCE, REFERENCE_PREFIX
from mcp_bridge.policy.secrets.references import is_alike

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.policy.secrets.references import Scalar

MAX_ARGUMENT_CHARS = 2000
"""Of a call's arguments that an error names: a model reads it."""

TAKEN_BACK = "interrupted"
"""The status of a call that the script itself took back: it may have happened, and nobody waits for it."""

NOT_DONE = "not_done"
"""The status of a call in doubt of which a person has said that it hasn't happened: it is as if never asked for."""


PENDING = "pending"
"""The status of a call whose tool has been called, and says that its outcome comes later."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asks for.

    Attributes:
        kind: `tool`, or the part of the bridge that answers: `memory`, `program`, `trace`.
        name: `server.tool`, or what the part is asked to do.
        arguments: Projected for the trace.
        raw: Whether the whole result is wanted.
        digest: SHA-256 of the arguments as canonical JSON, any reference to a value being the same, where they
            themselves are not kept; or None.
    """

    kind: str
    name: str
    arguments: Any
    raw: bool = False
    digest: str | None = None

    def payload(self) -> dict[str, Any]:
        """As a part of an entry."""
        told = {"kind": self.kind, "tool": self.name}
        told |= {"arguments": self.arguments} if self.digest is None else {"arguments_sha256": self.digest}
        return told | {"raw": True} if self.raw else told

    def in_short(self) -> Asked:
        """The same, without the arguments: what was refused since there is no room isn't to take any."""
        if self.digest is not None:
            return self
        # Nothing is kept of the values, by which they would have the same references again.
        text = REFERENCE.sub(REFERENCE_PREFIX, json.dumps(self.arguments, sort_keys=True))
        digest = hashlib.sha256(text.encode()).hexdigest()
        return replace(self, arguments=None, digest=digest)

    def told(self) -> dict[str, Any]:
        """As `payload`, for an error: of long arguments, the beginning of their text."""
        text = json.dumps(self.arguments, ensure_ascii=False)
        short = len(text) <= MAX_ARGUMENT_CHARS
        return self.payload() | {"arguments": self.arguments if short else f"{text[:MAX_ARGUMENT_CHARS]}…"}

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Asked:
        """From an entry."""
        name = payload.get("asked", payload["tool"])
        raw, digest = payload.get("raw", False), payload.get("arguments_sha256")
        return cls(payload["kind"], name, payload["arguments"] if digest is None else None, raw, digest)

    def is_same(self, other: Asked, values: Mapping[str, Scalar]) -> bool:
        """Whether both ask for the same, as `is_alike` compares it.

        Args:
            other: What is asked for now.
            values: Those behind references in the arguments of both, by their ids.
        """
        if self.digest is not None or other.digest is not None:
            self, other = self.in_short(), other.in_short()  # noqa: PLW0642  (both as what the one is)
        return is_alike(self.payload(), other.payload(), values)


@dataclass(slots=True)
class PastCall:
    """A call that was made.

    Attributes:
        call: Its id.
        asked: What for.
        sequence: Of its intent's entry; where there is none, of its outcome's.
        began: When that was recorded, in seconds since 1970.
        outcome: The payload of its outcome's entry; None of a call in doubt.
        place: In the order of outcomes, from 0.
        ended: When its outcome was recorded.
        offset: How long the run that asked for it had been going, in seconds; at most.
        is_pending: Whether its tool says that its outcome comes later.
    """

    call: str
    asked: Asked
    sequence: int
    began: float
    outcome: Mapping[str, Any] | None = None
    place: int = -1
    ended: float = 0.0
    offset: float = 0.0
    is_pending: bool = False

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, self.ended - self.began)

    @property
    def is_answered(self) -> bool:
        """Whether the script was given an answer."""
        return self.outcome is not None and self.outcome["status"] != TAKEN_BACK

    def answer(self) -> Any:
        """What the script was given.

        Raises:
            BridgeError: It was given an error.
        """
        outcome = self.outcome or {}
        if outcome["status"] == "ok":
            value = outcome["value"]
            if self.asked.kind != "tool":
                return value
            return {"raw": value} if self.asked.raw else {"value": value}
        details = dict(outcome.get("details", {}))
        if (raw := details.pop("raw", None)) is not None and self.asked.raw:
            # Of a tool that says so itself, an error is a result like any other.
            return {"raw": raw}
        error = BridgeError(outcome["code"], outcome["message"], hint=outcome.get("hint"))
        error.details = details
        raise error


class Past:
    """The calls of an execution.

    Args:
        entries: All of the execution's, in order.

    Attributes:
        calls: By id.
        answers: How many outcomes there are: their places are below this.
        held: What the calls asked for that a person was to decide about, by their ids. None of them was made then.
    """

    def __init__(self, entries: Iterable[Recorded] = ()) -> None:
        self.calls: dict[str, PastCall] = {}
        self.answers = 0
        self.held: dict[str, Asked] = {}
        self._run_began: float | None = None
        for row in entries:
            call = row.entry.payload.get("call")
            if row.entry.kind in {"start", "resume"}:
                self._run_began = row.time
            if row.entry.kind == "suspension":
                self.held |= {held["call"]: Asked.of(held) for held in row.entry.payload.get("held", ())}
            if call is None:
                continue
            if row.entry.kind == "intent":
                self._intent(call, row)
            elif row.entry.kind == "outcome":
                self._outcome(call, row)

    def _intent(self, call: str, row: Recorded) -> None:
        # One that may be repeated may have been begun twice, and it counts that it has.
        if call not in self.calls:
            self._asked(call, row)

    def _asked(self, call: str, row: Recorded) -> PastCall:
        offset = 0.0 if self._run_began is None else max(0.0, row.time - self._run_began)
        known = PastCall(call, Asked.of(row.entry.payload), row.sequence, row.time, offset=offset)
        self.calls[call] = known
        return known

    def _outcome(self, call: str, row: Recorded) -> None:
        payload, known = row.entry.payload, self.calls.get(call)
        if payload["status"] == NOT_DONE:
            if known is not None and known.outcome is None:
                del self.calls[call]
            return
        if known is None:
            known = self._asked(call, row)
        if payload["status"] == PENDING:
            known.is_pending = True
        elif known.outcome is None:
            known.outcome, known.place, known.ended = payload, self.answers, row.time
            self.answers += 1
        elif payload["status"] == TAKEN_BACK:
            # Its answer was on its way when the script no longer wanted it.
            known.outcome, known.ended = payload, row.time

    def doubtful(self) -> list[PastCall]:
        """The calls that were about to happen, and of which no outcome is recorded."""
        return [call for call in self.calls.values() if call.outcome is None and not call.is_pending]

    def pending(self) -> list[PastCall]:
        """The calls whose outcome comes later, the one that has waited longest first."""
        return [call for call in self.calls.values() if call.outcome is None and call.is_pending]


def failure(error: BridgeError, *, raw: bool = True) -> dict[str, Any]:
    """An error as a part of an outcome, from which `PastCall.answer` makes it again; without `raw` less of it."""
    told: dict[str, Any] = {"status": "failed", "code": error.code, "message": error.message}
    if error.hint:
        told["hint"] = error.hint
    details = {name: value for name, value in error.details.items() if raw or name != "raw"}
    return told | {"details": details} if details else told
