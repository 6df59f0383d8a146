"""The payloads of entries about the log itself: erasures, keys, and clocks and losses that a person has accepted.

They are validated, since a reader may have them from somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.payload_base import Object, Payload, _given, _listed
from mcp_bridge.ledger.proofs import disclosures

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Erasure(Payload):
    """Payloads, or values behind references, were made unreadable.

    Attributes:
        what: The kind of what was named: `execution`, `subject`, `reference`, `age`.
        by: Who requested it.
        reason: The reason, or None.
        at: When it was requested, in seconds since 1970.
        executions: The executions that were erased.
        references: The tokens of the erased values (`MasterKey.erasure_token`); None if there were none.
        withheld: Earlier entries about the log whose payloads this entry replaces; None if there were none.
        reference, holders: A reference that was erased, and the executions that had it, as version 0.1.0 wrote them;
            None in later entries.
    """

    KIND = "erasure"

    what: str
    by: str
    reason: str | None
    at: float
    executions: Sequence[str]
    references: Sequence[str] | None = None
    withheld: Sequence[int] | None = None
    reference: str | None = None
    holders: Sequence[str] | None = None

    def encode(self) -> dict[str, Any]:
        encoded: dict[str, Any] = {"what": self.what, "by": self.by, "reason": self.reason, "at": self.at}
        encoded |= _given(
            reference=self.reference,
            holders=_listed(self.holders),
            references=_listed(self.references),
            withheld=_listed(self.withheld),
        )
        return encoded | {"executions": list(self.executions)}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        """As `Payload.decode`. Values of a wrong type count as left out, except the list of executions."""
        lists = {
            name: payload[name] for name in ("references", "withheld", "holders") if isinstance(payload.get(name), list)
        }
        if not isinstance(payload["executions"], list):
            raise TypeError
        return cls(
            payload.get("what", ""),
            payload.get("by", ""),
            payload.get("reason"),
            payload.get("at", 0.0),
            [one for one in payload["executions"] if isinstance(one, str)],
            reference=payload.get("reference"),
            **lists,
        )


@dataclass(frozen=True, slots=True)
class KeyEvent(Payload):
    """The log's key was created or replaced.

    Attributes:
        event: Whether the first key was created, or a key was replaced that is available or lost.
        vkey: The key from this entry on.
        before: The previous key; None for the first.
    """

    KIND = "key"

    event: Literal["made", "rotated", "lost"]
    vkey: str
    before: str | None = None

    def encode(self) -> dict[str, Any]:
        return {"event": self.event} | _given(**{"from": self.before}) | {"vkey": self.vkey}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["event"], payload["vkey"], payload.get("from"))

    def to_bytes(self) -> bytes:
        """The payload's bytes: canonical JSON, unlike those of other payloads."""
        return disclosures.encode_object(**self.encode())

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """The event of a payload's bytes.

        Raises:
            BridgeError: `bad_entry`: they are not the payload of a key's entry.
        """
        first = payload.startswith(b'{"event":"made"')
        values = disclosures.decode_object(payload, ("event", "vkey") if first else ("event", "from", "vkey"))
        if not all(isinstance(value, str) for value in values) or values[0] not in {"made", "rotated", "lost"}:
            raise BridgeError(
                "bad_entry", "This is no entry of a key: it doesn't say which key, and what became of it."
            )
        event, *before, vkey = cast("list[str]", values)
        if bool(before) != (event != "made"):
            raise BridgeError(
                "bad_entry", "This is no entry of a key: the first one, and no other, has none before it."
            )
        return cls(cast("Literal['made', 'rotated', 'lost']", event), vkey, before[0] if before else None)


@dataclass(frozen=True, slots=True)
class AcceptedClock(Payload):
    """A person has accepted a clock that is behind the last entry.

    Attributes:
        was: The time of the last entry, in seconds since 1970.
        behind: Seconds that the clock was behind it.
        by: Who accepted it.
    """

    KIND = "clock"

    was: float
    behind: float
    by: str

    def encode(self) -> dict[str, Any]:
        return {"was": self.was, "behind": self.behind, "by": self.by}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["was"], payload["behind"], payload["by"])


@dataclass(frozen=True, slots=True)
class AcceptedLoss(Payload):
    """A person has accepted that the log may have had more entries.

    Attributes:
        has: The number of entries that are left.
        by: Who accepted the loss, or restored the backup.
        had: The number of entries that the log had; None if unknown.
        root: The root hash of these entries, in hexadecimal, or None.
        log: The log's name then, or None.
        restored: Whether a backup was restored.
        made: When the backup was made, in seconds since 1970, or None.
    """

    KIND = "loss"

    has: int
    by: str
    had: int | None = None
    root: str | None = None
    log: str | None = None
    restored: bool = False
    made: float | None = None

    def encode(self) -> dict[str, Any]:
        encoded: dict[str, Any] = {"has": self.has, "by": self.by}
        encoded |= _given(had=self.had, root=self.root, log=self.log)
        return encoded | ({"restored": True} | _given(made=self.made) if self.restored else {})

    @classmethod
    def decode(cls, payload: Object) -> Self:
        """As `Payload.decode`. Values of a wrong type count as left out."""
        had = payload.get("had")
        return cls(
            payload.get("has", 0),
            payload.get("by", ""),
            had if type(had) is int and had >= 0 else None,
            payload.get("root"),
            payload.get("log"),
            payload.get("restored") is True,
            payload.get("made"),
        )
