"""Statistics of a ledger: how many entries and executions it has, its sizes, and how publishing goes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.entry_encoding import decode
from mcp_bridge.ledger.publish.protocol import TargetState
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    from mcp_bridge.ledger.log.reading import Ledger


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """Numbers of a ledger.

    Attributes:
        origin: The log's name.
        entries: How many entries it has.
        kinds: How many entries there are of each kind.
        executions: How many executions there are of each status.
        erased: How many executions are erased.
        payload_bytes, file_bytes: Sizes, in bytes.
        first, last: When the first and the last entry were written, in seconds since 1970; None if there is none.
        key: The public key that signs it.
        published: How publishing goes, by the ids of the targets.
    """

    origin: str
    entries: int
    kinds: dict[str, int]
    executions: dict[str, int]
    erased: int
    payload_bytes: int
    file_bytes: int
    first: float | None
    last: float | None
    key: str
    published: dict[str, TargetState]

    def to_json(self) -> dict[str, Any]:
        """The numbers as a JSON object, by these names."""
        return asdict(self)


def stats(ledger: Ledger) -> LedgerStats:
    """Count what is in a ledger.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    connection = ledger.connection

    def counts(query: str) -> dict[str, int]:
        numbers: dict[str, int] = dict(connection.execute(query).fetchall())
        if not all(isinstance(name, str) for name in numbers):
            raise damaged("a name in it is no text")
        return numbers

    first, last = (
        connection.execute(f"SELECT CAST(entry AS BLOB) FROM entries ORDER BY sequence {order} LIMIT 1").fetchone()  # noqa: S608
        for order in ("ASC", "DESC")
    )
    pages, page = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return LedgerStats(
        origin=ledger.origin,
        entries=ledger.size,
        kinds=counts("SELECT kind, count(*) FROM entries GROUP BY kind ORDER BY kind"),
        executions=counts("SELECT status, count(*) FROM executions GROUP BY status ORDER BY status"),
        erased=connection.execute("SELECT count(*) FROM data_keys WHERE wrapped IS NULL").fetchone()[0],
        payload_bytes=connection.execute("SELECT coalesce(sum(length(sealed)), 0) FROM payloads").fetchone()[0],
        file_bytes=pages * page,
        first=_time(first[0]) if first else None,
        last=_time(last[0]) if last else None,
        key=ledger.vkey,
        published=published(ledger),
    )


def published(ledger: Ledger) -> dict[str, TargetState]:
    """The states of the targets of its checkpoints, by their ids.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    rows = ledger.connection.execute("SELECT target, state FROM published ORDER BY target")
    return {target: _target_state(state) for target, state in rows}


def _time(entry: bytes) -> float:
    try:
        return decode(entry).time / 1e6
    except BridgeError as exc:
        raise damaged(f"its first or last entry is invalid ({exc.message.rstrip('.')})") from None


def _target_state(record: str) -> TargetState:
    """The state of a stored record. Everything of it that is displayed has been checked."""
    try:
        state = TargetState.parse(record)
        alarm = state.conflict
        values = state.size, state.status, *((alarm["time"], alarm["message"]) if alarm is not None else ())
        if [type(value) for value in values] not in ([int, str], [int, str, float, str]):
            raise TypeError
        if alarm is not None:
            # A number that is no time can't be displayed as one.
            time.localtime(alarm["time"])
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        raise damaged("what it says of a target of its checkpoints can't be read") from None
    return state
