"""Saved programs, executions with the states that they resume from, and approvals.

An execution's inputs and outputs are encrypted under its own data key. The other columns of a row are for queries, and
have a MAC. An idempotency key is stored as a MAC, too.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from mcp_bridge.ledger.log.deduplication import payload_of, pieces_of
from mcp_bridge.ledger.log.entries import TOMBSTONE
from mcp_bridge.ledger.log.entry_encoding import LEDGER, decode, leaf_hash
from mcp_bridge.ledger.log.log import INSERT_KEY
from mcp_bridge.ledger.log.log_payloads import AcceptedLoss
from mcp_bridge.ledger.log.transaction import NewKey, RowMac, Seal, check_row, row_mac
from mcp_bridge.ledger.storage.blind_indexes import FORGETTABLE, OF_REQUEST, held_execution_mac, key_mac, subject_mac
from mcp_bridge.ledger.storage.sealed_rows import LIBRARY, label_of, open_sealed, seal, seal_bytes
from mcp_bridge.ledger.storage.sealing import damaged, sealed_bytes
from mcp_bridge.offload import off_loop

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from mcp_bridge.errors import BridgeError
    from mcp_bridge.ledger.log.entries import Entry
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.ledger.storage.blind_indexes import KeySpace
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.sealing import DataKey

Starter: TypeAlias = Literal["operator", "agent"]
"""Who starts an execution: a person at the command line, or an agent, by the MCP server or from a sandbox."""

_NUMBER_BYTES = 16
"""About what a number takes as JSON."""


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A program that an agent has saved.

    Attributes:
        name, hash: The program's.
        data: The program, as `kernel.program_parser.bundle` writes it.
        saved: When, in seconds since 1970.
    """

    name: str
    hash: str
    data: dict[str, Any]
    saved: float


class ProgramHead(NamedTuple):
    """A saved program without its content.

    Attributes:
        name, hash: The program's.
        saved: When, in seconds since 1970.
        size: Its stored size in bytes.
    """

    name: str
    hash: str
    saved: float
    size: int


@dataclass(frozen=True, slots=True)
class StoredExecution:
    """An execution of a program or of a script.

    Attributes:
        id: Its id, which is its trace's, too.
        kind: What is executed.
        principal: Who it belongs to.
        key: Its idempotency key, or None.
        request: MAC of the request that it was started with: program and context, or code.
        status: The status of its machine or script, or `erased`.
        program: The hash of the program or code.
        bundle: The program, as `kernel.program_parser.bundle` writes it, or the script: `code`, `servers`, `timeout`.
            Empty once it is erased.
        origin: Whether the program is the operator's or the agent's.
        owner: The process that executes it, or did so last.
        state: The machine's canonical bytes at its start or last suspension, while it can be resumed.
        record: The record that the agent gets.
        due: When its next timer fires, in seconds since 1970, or None.
        started: When it was started, in seconds since 1970.
        changed: When it was last written, in seconds since 1970.
        subject: The person whose data it holds, for erasure. Write-only.
        subject_is_value: Whether the subject's name contains a sensitive value: it is then removed by an erasure.
        is_held: Of a running one, whether its owner still uses the store. Read-only.
        key_space: The space of its key.
        whole_key: The key with its sensitive values, if it has any: it is then removed by an erasure. Write-only.
    """

    id: str
    kind: Literal["script", "program"]
    principal: str
    key: str | None
    request: str
    status: str
    program: str
    bundle: dict[str, Any]
    origin: Literal["operator", "agent"]
    owner: str
    state: bytes | None
    record: dict[str, Any] | None
    due: float | None
    started: float
    changed: float = 0.0
    subject: str = ""
    subject_is_value: bool = False
    is_held: bool = False
    key_space: KeySpace = ""
    whole_key: str = ""

    @property
    def starter(self) -> Starter:
        """Who has started it, by the space of its key; an agent if that doesn't tell."""
        return "operator" if self.key_space == "operator" else "agent"


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a person.

    Attributes:
        id: Its number, by which people name it.
        execution, effect: The execution and the effect that wait for it.
        asked: When, in seconds since 1970.
        question: `tool` and `arguments` of a call, or `message` and `details`; `step`, `program`, `why`; projected.
        status: `open`, `approved` or `denied`.
        decided: When, in seconds since 1970, or None.
        decision: `approved`, `by`, `comment`; or None.
    """

    id: int
    execution: str
    effect: int
    asked: float
    question: QuestionFields
    status: Literal["open", "approved", "denied"]
    decided: float | None
    decision: dict[str, Any] | None


_ADD = (
    "INSERT INTO executions (id, kind, principal, key, request, status, program, bundle, origin, owner, state, record,"
    " due, started, changed, mac) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"
    " WHERE NOT EXISTS (SELECT 1 FROM executions WHERE principal = ? AND key IN"
)


class GeneratedKeyNames(NamedTuple):
    """Texts that `ProgramStore.assign_key` is given as `known_by`, and the space of the keys."""

    texts: Sequence[str]
    space: KeySpace


NO_KEY_NAMES = GeneratedKeyNames((), "")


class ProgramStore:
    """Saved programs, executions, the values behind their references, and approvals."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def failure(self) -> BridgeError | None:
        """As `Database.failure`."""
        return self._database.failure

    # --- saved programs ---

    async def save_program(
        self, principal: str, program: SavedProgram, most: int = 1 << 31, most_bytes: int = 1 << 62
    ) -> bool:
        """Save a program, replacing one of the same name; False if there would be too many.

        Args:
            principal: Who it belongs to.
            program: The program.
            most: How many programs the principal may have.
            most_bytes: How many bytes they may have.
        """
        text: str = await off_loop(program.data, json.dumps, program.data)
        data = Seal(LIBRARY + principal, text.encode(), label_of("program", principal, program.name))
        # EntryCounts in the statement itself: another process may save one at the same time.
        changed = await self._database.write(
            "INSERT INTO programs (principal, name, hash, data, saved) SELECT ?1, ?2, ?3, ?4, ?5"
            " WHERE (SELECT count(*) < ?6 AND coalesce(sum(length(data)), 0) + length(?4) <= ?7 FROM programs"
            " WHERE principal = ?1 AND name <> ?2) ON CONFLICT"
            " (principal, name) DO UPDATE SET hash = excluded.hash, data = excluded.data, saved = excluded.saved",
            (principal, program.name, program.hash, data, program.saved, most, most_bytes),
            ("programs", "principal = ? AND name = ?", (principal, program.name)),
        )
        return changed == 1

    async def programs(self, principal: str) -> list[SavedProgram]:
        """A principal's programs, by name.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        rows = await self._database.read("SELECT * FROM programs WHERE principal = ? ORDER BY name", (principal,))
        key = await self._key(LIBRARY + principal)
        found = []
        for row in rows:
            self._check("programs", row)
            _, name, digest, data, saved, _ = row
            found.append(
                SavedProgram(name, digest, open_sealed(key, data, label_of("program", principal, name)), saved)
            )
        return found

    async def program(self, principal: str, name: str) -> SavedProgram | None:
        """The program of a name; None if there is none.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        rows = await self._database.read("SELECT * FROM programs WHERE principal = ? AND name = ?", (principal, name))
        if not rows:
            return None
        key = await self._key(LIBRARY + principal)
        _, _, digest, data, saved, _ = rows[0]

        def opened() -> SavedProgram:
            self._check("programs", rows[0])
            return SavedProgram(name, digest, open_sealed(key, data, label_of("program", principal, name)), saved)

        return await off_loop(data, opened)

    async def program_heads(self, principal: str) -> list[ProgramHead]:
        """A principal's programs without their content, by name. Their MACs are checked when they are read."""
        rows = await self._database.read(
            "SELECT name, hash, saved, length(data) FROM programs WHERE principal = ? ORDER BY name", (principal,)
        )
        return [ProgramHead(*row) for row in rows]

    async def delete_program(self, principal: str, name: str) -> None:
        """Delete a saved program. Its executions and their records stay."""
        await self._database.write("DELETE FROM programs WHERE principal = ? AND name = ?", (principal, name))

    # --- executions ---

    async def add(
        self,
        execution: StoredExecution,
        values: Mapping[str, str | float] | None = None,
        *entries: Entry,
        post: Callable[[], None] | None = None,
    ) -> bool:
        """Store a new execution; False if its key belongs to another one.

        Args:
            execution: The execution.
            values: The values behind its references.
            entries: Recorded in the same transaction.
            post: Posts what else is written in it.
        """
        added = await self.begin_adding(execution, values, *entries)
        if post is not None:
            post()
        return await added()

    async def begin_adding(
        self,
        execution: StoredExecution,
        values: Mapping[str, str | float] | None = None,
        *entries: Entry,
        unless: GeneratedKeyNames = NO_KEY_NAMES,
    ) -> Callable[[], Awaitable[bool]]:
        """As `add`, without waiting until it is durable: that, and what `add` gives, is what the result waits for.

        Args:
            execution: As `add`.
            values: As `add`.
            *entries: As `add`.
            unless: Where an execution of the principal has been given one of these as `known_by`, nothing is stored.
        """
        database, key = self._database, execution.key
        kept = {"key": key, "space": execution.key_space, "bundle": execution.bundle}
        # Before anything is posted: all that follows is one transaction.
        bundle = await off_loop(kept, seal, execution.id, "bundle", kept)
        subject = subject_mac(database.master, execution.subject, is_value=execution.subject_is_value)
        database.post(INSERT_KEY, (execution.id, subject, NewKey(execution.id), RowMac("data_keys")))
        self.store_values(execution.id, values or {})
        changed = database.begin_write(
            f"{_ADD} ({_places(unless.texts)})) ON CONFLICT DO NOTHING",
            (
                execution.id,
                execution.kind,
                execution.principal,
                None if key is None else self._key_name(execution, key),
                execution.request,
                execution.status,
                execution.program,
                bundle,
                execution.origin,
                execution.owner,
                None if execution.state is None else seal_bytes(execution.id, "state", execution.state),
                None if execution.record is None else seal(execution.id, "record", execution.record),
                # As the column has it: the MAC is of that.
                None if execution.due is None else float(execution.due),
                float(execution.started),
                float(execution.started),
                RowMac("executions"),
                execution.principal,
                *self._names_of_request(execution.principal, unless.texts, unless.space),
            ),
            None,
            *entries,
            otherwise=[
                ("DELETE FROM reference_values WHERE execution = ?", (execution.id,)),
                ("DELETE FROM data_keys WHERE execution = ?", (execution.id,)),
            ],
        )

        async def added() -> bool:
            return await changed() == 1

        return added

    async def assign_key(self, execution: StoredExecution, known_by: str | None = None) -> bool:
        """Give an execution without an idempotency key one; False if another execution has the same.

        Args:
            execution: The stored execution, with its new `key` and `key_space`.
            known_by: A text made of the request, by which `by_keys` finds it. None: its key finds it.
        """
        if known_by is None:
            name = self._key_name(execution, execution.key or "")
        else:
            name = OF_REQUEST + self._key_mac(execution.principal, known_by, execution.key_space)
        sealed = {"key": execution.key, "space": execution.key_space, "bundle": execution.bundle}
        changed = await self._database.write(
            "UPDATE OR IGNORE executions SET key = ?, bundle = ?, changed = ? WHERE id = ? AND key IS NULL",
            (name, seal(execution.id, "bundle", sealed), time.time(), execution.id),
            ("executions", "id = ?", (execution.id,)),
        )
        return changed == 1

    def hold(self, holder: str, *, execution: str = "", subject: str = "", is_value: bool = False) -> None:
        """Note that an execution holds data of another one, or of a person: it is erased with that.

        Args:
            holder: The execution that holds the data.
            execution: The other execution.
            subject: The person.
            is_value: Whether the person's name contains a sensitive value.
        """
        master = self._database.master
        for name in ([held_execution_mac(master, execution)] if execution else []) + (
            [subject_mac(master, subject, is_value=is_value)] if subject else []
        ):
            self._database.post(
                # Not for one that lost the race for its key, and isn't there.
                "INSERT INTO holders (holder, subject, mac) SELECT ?1, ?2, ?3"
                " WHERE EXISTS (SELECT 1 FROM data_keys WHERE execution = ?1) ON CONFLICT DO NOTHING",
                (holder, name, row_mac(master, "holders", (holder, name))),
            )

    async def sealed_record(self, execution: str, record: dict[str, Any]) -> Seal:
        """A large record as `update` takes it. Encode it before posting anything that belongs into its transaction."""
        return await off_loop(record, seal, execution, "record", record)

    async def update(
        self,
        execution: str,
        *,
        status: str,
        state: bytes | None,
        record: dict[str, Any] | Seal | None,
        due: float | None,
        after: int | None = None,
    ) -> None:
        """Store an execution's progress, in one transaction with the entries that were posted last.

        Args:
            execution: Its id.
            status: As in `StoredExecution`.
            state: As in `StoredExecution`.
            record: As in `StoredExecution`; a large one as `sealed_record` gives it.
            due: As in `StoredExecution`.
            after: The number of the last event that was looked at: a later one makes it due at once. None if it waits
                for no event.
        """
        # Without an await after the last posted entry: they are one transaction.
        sealed = seal(execution, "record", record) if isinstance(record, dict) else record
        await self._database.write(
            "UPDATE executions SET status = ?1, state = ?2, record = ?3, due = CASE WHEN ?4 IS NOT NULL AND EXISTS"
            " (SELECT 1 FROM entries WHERE execution = ?6 AND kind = 'event' AND sequence > ?4) THEN ?5 ELSE ?7 END,"
            " changed = ?5 WHERE id = ?6 AND status <> 'erased'",
            (
                status,
                None if state is None else seal_bytes(execution, "state", state),
                sealed,
                after,
                time.time(),
                execution,
                due,
            ),
            ("executions", "id = ?", (execution,)),
        )

    async def last_event(self, execution: str) -> int:
        """The number of the last event that was sent to an execution; -1 without any."""
        rows = await self._database.read(
            "SELECT coalesce(max(sequence), -1) FROM entries WHERE execution = ? AND kind = 'event'", (execution,)
        )
        last: int = rows[0][0]
        return last

    async def last_loss(self) -> int:
        """The number of the entry by which the log was last restored, or said to have lost entries; -1 without any."""
        rows = await self._database.read(
            "SELECT coalesce(max(sequence), -1) FROM entries WHERE execution = ? AND kind = ?",
            (LEDGER, AcceptedLoss.KIND),
        )
        last: int = rows[0][0]
        return last

    async def make_due(self, execution: str) -> None:
        """Note that a suspended execution may go on now; one of another status is left as it is."""
        await self._database.write(
            "UPDATE executions SET due = ? WHERE id = ? AND status = 'suspended'",
            (time.time(), execution),
            ("executions", "id = ?", (execution,)),
        )

    async def send(self, execution: str, event: Entry) -> bool:
        """Record an event that is sent to an execution, which may go on now if it is suspended; False if it has ended.

        It ends in a transaction of its own: either it has the event before its end, or the event isn't recorded.
        """
        changed = await self._database.write(
            "UPDATE executions SET due = CASE WHEN status = 'suspended' THEN ? ELSE due END"
            " WHERE id = ? AND status IN ('suspended', 'interrupted', 'running')",
            (time.time(), execution),
            ("executions", "id = ?", (execution,)),
            event,
        )
        return changed == 1

    async def due(self, limit: int) -> list[tuple[str, float]]:
        """The ids of executions that could go on by their time, and since when, in seconds since 1970; earliest first.

        Some of them may be under way: going on with one doesn't change its time.
        """
        return await self._database.read(
            "SELECT id, due FROM executions WHERE due <= ? AND status IN ('suspended', 'interrupted', 'running')"
            " ORDER BY due LIMIT ?",
            (time.time(), limit),
        )

    async def take(self, execution: StoredExecution, owner: str) -> bool:
        """Claim an execution, to continue it. Of several processes that try at once, one succeeds.

        Args:
            execution: As it was read: if it has changed since, another process has claimed it.
            owner: The process that claims it.
        """
        changed = await self._database.write(
            "UPDATE executions SET status = 'running', owner = ?, changed = ?"
            " WHERE id = ? AND status = ? AND owner = ? AND changed = ?",
            (owner, time.time(), execution.id, execution.status, execution.owner, execution.changed),
            ("executions", "id = ?", (execution.id,)),
        )
        return changed == 1

    async def recorded_bytes(self, execution: str) -> int:
        """The stored size of what an execution has recorded."""
        rows = await self._database.read(
            "SELECT (SELECT coalesce(sum(length(sealed)), 0) FROM entries JOIN payloads USING (sequence)"
            " WHERE execution = ?1) + (SELECT coalesce(sum(size), 0) FROM pieces WHERE execution = ?1)",
            (execution,),
        )
        size: int = rows[0][0]
        return size

    async def interrupt(self, execution: str) -> None:
        """Mark a running execution whose state can't be stored as interrupted: it is resumed from its entries."""
        await self._database.write(
            "UPDATE executions SET status = 'interrupted', changed = ? WHERE id = ? AND status = 'running'",
            (time.time(), execution),
            ("executions", "id = ?", (execution,)),
        )

    async def release_key(self, execution: StoredExecution) -> bool:
        """Release an ended execution's idempotency key for another one; False if it has been released already."""
        changed = await self._database.write(
            "UPDATE executions SET key = NULL, changed = ? WHERE id = ? AND changed = ? AND key IS NOT NULL",
            (time.time(), execution.id, execution.changed),
            ("executions", "id = ?", (execution.id,)),
        )
        return changed == 1

    async def execution(self, execution: str, principal: str | None = None) -> StoredExecution | None:
        """The execution of an id; None if there is none.

        Args:
            execution: The id.
            principal: Whose it has to be; None for anybody's. Another's isn't read: that would take longer than one
                that doesn't exist.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        found = await self._executions("WHERE id = ?1 AND coalesce(?2, principal) = principal", (execution, principal))
        return found[0] if found else None

    async def owners(self, executions: Sequence[str]) -> dict[str, str]:
        """Whose executions are, by their ids, without those that there are none of; at most 1,000."""
        among = ", ".join("?" * len(executions))
        query = f"SELECT id, principal FROM executions WHERE id IN ({among})"  # noqa: S608 - question marks
        return dict(await self._database.read(query, executions))

    async def ends(self, executions: Sequence[str]) -> dict[str, Any]:
        """The payloads of the entries by which executions have ended, as JSON, without erased ones; at most 1,000.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        return await self._database.run_read(lambda connection: self._ends(connection, executions))

    def _ends(self, connection: sqlite3.Connection, executions: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for execution, data, kept, sealed, wrapped in connection.execute(
            "SELECT execution, entry, CAST(substr(nodes, 1, 32) AS BLOB), sealed, wrapped"  # noqa: S608 - question marks
            " FROM entries JOIN payloads USING (sequence) JOIN data_keys USING (execution)"
            f" WHERE execution IN ({_places(executions)}) AND kind = 'end' AND wrapped IS NOT NULL ORDER BY sequence",
            executions,
        ).fetchall():
            leaf = decode(data)
            if leaf_hash(data) != kept:
                raise damaged(f"the entry {leaf.sequence} doesn't match its hash")
            pieces = pieces_of(connection, execution, self._database.master.open(execution, wrapped))
            if (payload := payload_of(leaf, sealed, pieces)) is not None:
                found[execution] = payload.value()
        return found

    async def by_key(self, principal: str, key: str, space: KeySpace = "") -> StoredExecution | None:
        """The execution of an idempotency key; None if there is none.

        Args:
            principal: Who it belongs to.
            key: The key, with any sensitive values.
            space: The key's space; by default that of keys of version 0.1.0.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        mac = self._key_mac(principal, key, space)
        query = "WHERE principal = ? AND key IN (?, ?)"
        found = await self._executions(query, (principal, mac, FORGETTABLE + mac))
        return found[0] if found else None

    async def by_keys(self, principal: str, keys: Sequence[str], space: KeySpace) -> list[StoredExecution]:
        """The executions of some texts that `assign_key` was given as `known_by`, the earliest first."""
        return await self._executions(
            f"WHERE principal = ? AND key IN ({_places(keys)}) ORDER BY started, id",
            (principal, *self._names_of_request(principal, keys, space)),
        )

    async def holders(self, execution: str) -> list[str]:
        """The scripts that hold data of an execution: those that started, resumed or read it.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        subject = held_execution_mac(self._database.master, execution)
        rows = await self._database.read("SELECT * FROM holders WHERE subject = ?", (subject,))
        for row in rows:
            self._check("holders", row)
        return [holder for holder, *_ in rows]

    async def executions(
        self, principal: str | None, limit: int, statuses: Collection[str] = ()
    ) -> list[StoredExecution]:
        """The latest executions, newest first; of all principals if that is None, of any status if none is given.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        among = ", ".join("?" * len(statuses)) if statuses else "status"
        return await self._executions(
            f"WHERE coalesce(?, principal) = principal AND status IN ({among}) ORDER BY started DESC, id LIMIT ?",
            (principal, *statuses, limit),
        )

    async def ids(self, prefix: str, limit: int) -> list[str]:
        """Ids of executions, of all principals, that begin with a prefix: for the operator alone."""
        rows = await self._database.read(
            "SELECT id FROM executions WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT ?", (len(prefix), prefix, limit)
        )
        return [execution for (execution,) in rows]

    async def _executions(self, condition: str, parameters: tuple[Any, ...]) -> list[StoredExecution]:
        rows = await self._database.read(
            # The conditions are those of this class.
            f"SELECT *, (SELECT wrapped FROM data_keys WHERE execution = id) FROM executions {condition}",  # noqa: S608
            parameters,
        )
        found = []
        for *row, wrapped in rows:
            self._check("executions", row)
            known = _execution(row, None if wrapped is None else self._database.master.open(row[0], wrapped))
            if known.status == "running" and self._database.is_present(known.owner):
                known = replace(known, is_held=True)
            found.append(known)
        return found

    # --- values behind references ---

    def store_values(self, execution: str, values: Mapping[str, str | float]) -> None:
        """Store the values behind an execution's references, in the transaction of what is recorded next."""
        if not values:
            return

        def rows() -> Iterator[tuple[Any, ...]]:
            for name, value in values.items():
                yield execution, name, Seal(execution, json.dumps(value).encode(), label_of("value", execution, name))

        # A hundred thousand, perhaps, of one text.
        self._database.post_rows(
            "INSERT INTO reference_values (execution, id, value) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            rows,
            sum(len(value) if isinstance(value, str) else _NUMBER_BYTES for value in values.values()),
        )

    async def values(self, execution: str) -> dict[str, str | float | None]:
        """The values behind an execution's references, in the order of their storing; None for an erased one.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        query = "SELECT id, value FROM reference_values WHERE execution = ? ORDER BY rowid"
        rows = await self._database.read(query, (execution,))
        key = await self._key(execution) if rows else None
        return {
            name: None if value is None or key is None else open_sealed(key, value, label_of("value", execution, name))
            for name, value in rows
        }

    async def references_to(self, value: str | float) -> list[str]:
        """The ids of references to a value, in any execution.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        data = json.dumps(value).encode()
        # Sealing keeps lengths: most other values needn't be opened.
        rows = await self._database.read(
            "SELECT execution, id, value, wrapped FROM reference_values JOIN data_keys USING (execution)"
            " WHERE length(value) = ? AND wrapped IS NOT NULL",
            (sealed_bytes(data),),
        )
        opened = self._database.master.open
        return list(
            dict.fromkeys(
                name
                for execution, name, sealed, wrapped in rows
                if opened(execution, wrapped).open(sealed, label_of("value", execution, name)) == data
            )
        )

    # --- approvals ---

    async def ask(self, execution: str, effect: int, question: QuestionFields) -> None:
        """Open an approval for an effect, unless there is one already."""
        row = ("approvals", "execution = ? AND effect = ?", (execution, effect))
        await self._database.write(
            "INSERT INTO approvals (execution, effect, asked, question, status) VALUES (?, ?, ?, ?, 'open')"
            " ON CONFLICT (execution, effect) DO NOTHING",
            (execution, effect, time.time(), seal(execution, f"question/{effect}", question)),
            row,
        )

    async def decide(self, approval: Approval, decision: dict[str, Any], *entries: Entry) -> bool:
        """Store a person's decision; False if there was one already.

        Args:
            approval: The approval.
            decision: `approved`, and `by`, `comment`.
            entries: Recorded in the same transaction.
        """
        sealed = seal(approval.execution, f"decision/{approval.effect}", decision)
        changed = await self._database.write(
            "UPDATE approvals SET status = ?, decided = ?, decision = ? WHERE id = ? AND status = 'open'",
            ("approved" if decision["approved"] else "denied", time.time(), sealed, approval.id),
            ("approvals", "id = ?", (approval.id,)),
            *entries,
        )
        return changed == 1

    async def approvals(
        self, execution: str | None = None, *, open_only: bool = False, principal: str | None = None
    ) -> list[Approval]:
        """The approvals of an execution, or all; of a principal, or of all; oldest first.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        rows = await self._database.read(
            "SELECT *, (SELECT wrapped FROM data_keys WHERE data_keys.execution = approvals.execution) FROM approvals"
            " WHERE (?1 IS NULL OR execution = ?1) AND (NOT ?2 OR status = 'open')"
            " AND (?3 IS NULL OR execution IN (SELECT id FROM executions WHERE principal = ?3)) ORDER BY id",
            (execution, open_only, principal),
        )
        found = []
        for *row, wrapped in rows:
            self._check("approvals", row)
            number, of, effect, asked, question, status, decided, decision, _ = row
            key = None if wrapped is None else self._database.master.open(of, wrapped)
            fields: QuestionFields | None = open_sealed(key, question, label_of(of, f"question/{effect}"))
            found.append(
                Approval(
                    number,
                    of,
                    effect,
                    asked,
                    fields or {"message": TOMBSTONE},
                    status,
                    decided,
                    open_sealed(key, decision, label_of(of, f"decision/{effect}")),
                )
            )
        return found

    # --- keys ---

    async def _key(self, execution: str) -> DataKey | None:
        rows = await self._database.read("SELECT wrapped FROM data_keys WHERE execution = ?", (execution,))
        return self._database.master.open(execution, rows[0][0]) if rows and rows[0][0] is not None else None

    def _key_mac(self, principal: str, key: str, space: KeySpace) -> str:
        return key_mac(self._database.master, principal, key, space)

    def _names_of_request(self, principal: str, texts: Sequence[str], space: KeySpace) -> list[str]:
        return [OF_REQUEST + self._key_mac(principal, text, space) for text in texts]

    def _key_name(self, execution: StoredExecution, key: str) -> str:
        mac = self._key_mac(execution.principal, execution.whole_key or key, execution.key_space)
        return FORGETTABLE + mac if execution.whole_key else mac

    def _check(self, table: str, row: Any) -> None:
        check_row(self._database.master, table, row)


def _places(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _execution(row: list[Any], key: DataKey | None) -> StoredExecution:
    identity, kind, principal, _, request, status, program, bundle, origin, owner, state, record = row[:12]
    opened = open_sealed(key, bundle, label_of(identity, "bundle")) or {"key": None, "bundle": {}}
    return StoredExecution(
        identity,
        kind,
        principal,
        opened["key"],
        request,
        status,
        program,
        opened["bundle"],
        origin,
        owner,
        key.open(state, label_of(identity, "state")) if key is not None and state is not None else None,
        open_sealed(key, record, label_of(identity, "record")),
        row[12],
        row[13],
        row[14],
        key_space=opened.get("space", ""),
    )
