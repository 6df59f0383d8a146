"""The tables of publishing: the state of each target, and cosigned checkpoints."""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.nodes import read_node
from mcp_bridge.ledger.log.reading import Ledger
from mcp_bridge.ledger.log.transaction import check_row
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.proofs.notes import open_checkpoint, split_note
from mcp_bridge.ledger.proofs.signing import ID_BYTES
from mcp_bridge.ledger.publish.protocol import TargetState

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from mcp_bridge.ledger.log.transaction import Transaction
    from mcp_bridge.ledger.proofs.merkle import NodeReader
    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.publish.protocol import Published
    from mcp_bridge.ledger.storage.database import Database


MAX_COSIGNED = 1000
"""How many of the newest cosigned checkpoints are kept; one may come every minute. Those that vouch for a key stay."""

_FORGET = (
    "DELETE FROM checkpoints WHERE size NOT IN (SELECT sequence + 1 FROM entries WHERE execution = ? AND kind = 'key')"
    " AND size < (SELECT min(size) FROM (SELECT DISTINCT size FROM checkpoints ORDER BY size DESC LIMIT ?))"
)


class PublishedLog:
    """A ledger's log with the states of its targets: a `Source`, and the `newest` and `save` of a `Publisher`.

    Args:
        database: The ledger.
        states: The state of each target, as `read_states` gives it.
    """

    def __init__(self, database: Database, states: Mapping[str, TargetState]) -> None:
        self._database = database
        self._states = dict(states)
        """As they were last written or read."""

    async def roots(self, sizes: Sequence[int]) -> Sequence[bytes | None]:
        """As `protocol.Source`."""

        def work(connection: sqlite3.Connection) -> Sequence[bytes | None]:
            (entries,) = connection.execute("SELECT size FROM head").fetchone()
            # Neighbouring sizes share most of their nodes.
            read = functools.cache(_nodes(connection))
            return [merkle.root(size, read) if size <= entries else None for size in sizes]

        return await self._database.run_read(work)

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """As `protocol.Source`."""
        return await self._database.run_read(lambda connection: merkle.consistency_proof(old, new, _nodes(connection)))

    async def keys(self) -> Sequence[Verifier]:
        """As `protocol.Source`."""
        return await self._database.run_read(lambda connection: Ledger(connection, None).signing_keys())

    async def rotations(self) -> Sequence[str]:
        """As `protocol.Source`."""
        rows = await self._database.read(
            "SELECT size, note FROM checkpoints JOIN entries ON sequence = size - 1"
            " WHERE execution = ? AND kind = 'key' AND sequence > 0 ORDER BY size, length(note)",
            (LEDGER,),
        )
        return list(dict(rows).values())

    async def is_cosigned(self, size: int, key: Verifier) -> bool:
        """As `protocol.Source`."""
        rows = await self._database.read("SELECT note FROM checkpoints WHERE size >= ? ORDER BY size", (size,))
        for (note,) in rows:
            with suppress(BridgeError):
                checkpoint, _ = open_checkpoint(note, [key])
                if size <= checkpoint.size and await self.roots([checkpoint.size]) == [checkpoint.root]:
                    return True
        return False

    def last(self, target: str) -> int:
        """As `protocol.Source`."""
        state = self._states.get(target)
        return 0 if state is None else state.size

    async def newest(self) -> str:
        """As `protocol.Source`."""
        ((note,),) = await self._database.read("SELECT note FROM head")
        return str(note)

    async def save(self, state: TargetState, published: Published | None) -> TargetState:
        """Store the state of a target, and the checkpoint if a witness has cosigned it.

        Returns:
            The state, merged with what other processes have stored.

        Raises:
            BridgeError: As `Database.transact`.
        """
        before = self._states.get(state.target, TargetState(state.target))

        def work(transaction: Transaction) -> TargetState:
            do = transaction.connection.execute
            if published is not None and published.cosignatures and not _is_kept(transaction, published):
                row = (published.size, published.note)
                do("INSERT INTO checkpoints (size, note) VALUES (?, ?) ON CONFLICT DO NOTHING", row)
                transaction.authenticate(("checkpoints", "size = ? AND note = ?", row))
                do(_FORGET, (LEDGER, MAX_COSIGNED))
            row_state = do("SELECT state FROM published WHERE target = ?", (state.target,)).fetchone()
            stored = TargetState(state.target) if row_state is None else TargetState.parse(row_state[0])
            # A stored alarm stays as it is: a person may have acknowledged it, or another process have raised it. Only
            # an alarm that this process hasn't stored yet is new. Times don't decide: a clock may be put back.
            new = state.conflict is not None and state.conflict != before.conflict
            alarm = state.conflict if new else stored.conflict
            merged = replace(state, size=max(state.size, stored.size), conflict=alarm)
            do(
                "INSERT INTO published (target, size, state) VALUES (?, ?, ?) ON CONFLICT (target)"
                " DO UPDATE SET size = excluded.size, state = excluded.state",
                (merged.target, merged.size, json.dumps(merged.record())),
            )
            transaction.authenticate(("published", "target = ?", (state.target,)))
            return merged

        merged = await self._database.transact(work)
        self._states[state.target] = merged
        return merged


def _is_kept(transaction: Transaction, published: Published) -> bool:
    """Whether cosignatures of that checkpoint by the same keys are stored: the earliest ones are enough.

    A witness is asked whenever a bridge starts, even if there is nothing new.
    """
    rows = transaction.connection.execute("SELECT note FROM checkpoints WHERE size = ?", (published.size,)).fetchall()
    stored = {(name, one[:ID_BYTES]) for (note,) in rows for name, one in split_note(note)[1]}
    return {(name, one[:ID_BYTES]) for name, one in split_note(published.note)[1]} <= stored


async def read_states(database: Database) -> dict[str, TargetState]:
    """The states of publishing, by target id.

    Raises:
        BridgeError: As `Database.read`; `ledger_damaged`.
    """
    rows = await database.read("SELECT * FROM published")
    for row in rows:
        check_row(database.master, "published", row)
    return {state.target: state for state in (TargetState.parse(text) for _, _, text, _ in rows)}


async def acknowledge(database: Database) -> None:
    """Clear the alarms of all targets: a person has looked into them.

    Raises:
        BridgeError: As `Database.transact`.
    """

    def work(transaction: Transaction) -> None:
        do = transaction.connection.execute
        for target, text in do("SELECT target, state FROM published").fetchall():
            state = json.dumps(json.loads(text) | {"conflict": None})
            do("UPDATE published SET state = ? WHERE target = ?", (state, target))
            transaction.authenticate(("published", "target = ?", (target,)))

    await database.transact(work)


def _nodes(connection: sqlite3.Connection) -> NodeReader:
    return lambda level, index: read_node(connection, level, index)
