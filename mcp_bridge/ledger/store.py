"""Saved programs, and executions of programs with their states: what a suspended one needs to go on another day."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mcp_bridge.ledger.database import Database


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A program that the agent keeps.

    Attributes:
        name, hash: Its own.
        data: As `kernel.program.bundle` writes it.
        saved: Seconds since 1970.
    """

    name: str
    hash: str
    data: dict[str, Any]
    saved: float


@dataclass(frozen=True, slots=True)
class StoredExecution:
    """An execution of a program.

    Attributes:
        id: Its trace's id, too.
        principal: Whose.
        key: Its idempotency key, or None.
        request: MAC of the program and the context that it was asked for with.
        status: As its machine's.
        program: The program's hash.
        bundle: The program, as `kernel.program.bundle` writes it.
        origin: `operator` or `agent`: whose program it is.
        owner: The process that has it under way, or had it last.
        state: The machine's canonical bytes as it began or was left last, while it can go on.
        record: What the agent is told of it.
        due: When its next timer fires, in seconds since 1970, or None.
        started: Seconds since 1970.
    """

    id: str
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


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a person.

    Attributes:
        id: For people to name it by.
        execution, effect: What waits for it.
        asked: Seconds since 1970.
        question: `tool` and `arguments` of a call, or `message` and `details`; `step`, `program`, `why`; projected.
        status: `open`, `approved` or `denied`.
        decided: Seconds since 1970, or None.
        decision: `approved`, `by`, `comment`; or None.
    """

    id: int
    execution: str
    effect: int
    asked: float
    question: dict[str, Any]
    status: Literal["open", "approved", "denied"]
    decided: float | None
    decision: dict[str, Any] | None


class ProgramStore:
    """Both, in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save_program(self, principal: str, program: SavedProgram) -> None:
        """Keep a program, in the place of one with the same name."""
        await self._database.write(
            "INSERT INTO programs (principal, name, hash, data, saved) VALUES (?, ?, ?, ?, ?) ON CONFLICT"
            " (principal, name) DO UPDATE SET hash = excluded.hash, data = excluded.data, saved = excluded.saved",
            (principal, program.name, program.hash, json.dumps(program.data), program.saved),
        )

    async def programs(self, principal: str) -> list[SavedProgram]:
        """By name."""
        rows = await self._database.read(
            "SELECT name, hash, data, saved FROM programs WHERE principal = ? ORDER BY name", (principal,)
        )
        return [SavedProgram(name, digest, _decoded(data), saved) for name, digest, data, saved in rows]

    async def saved(self, principal: str, but: str) -> tuple[int, int]:
        """How many programs are kept beside the one of a name, and how many characters they have."""
        rows = await self._database.read(
            "SELECT count(*), coalesce(sum(length(data)), 0) FROM programs WHERE principal = ? AND name <> ?",
            (principal, but),
        )
        return rows[0][0], rows[0][1]

    async def delete_program(self, principal: str, name: str) -> None:
        """Forget it. Its executions and what is recorded of them stay."""
        await self._database.write("DELETE FROM programs WHERE principal = ? AND name = ?", (principal, name))

    async def add(self, execution: StoredExecution) -> bool:
        """Keep a new execution; False if its key has one already."""
        changed = await self._database.write(
            "INSERT INTO executions (id, principal, key, request, status, program, bundle, origin, owner, state,"
            " record, due, started, changed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                execution.id,
                execution.principal,
                execution.key,
                execution.request,
                execution.status,
                execution.program,
                json.dumps(execution.bundle),
                execution.origin,
                execution.owner,
                execution.state,
                None if execution.record is None else json.dumps(execution.record),
                execution.due,
                execution.started,
                execution.started,
            ),
        )
        return changed == 1

    async def update(
        self, execution: str, *, status: str, state: bytes | None, record: dict[str, Any] | None, due: float | None
    ) -> None:
        """Take down how far an execution is."""
        await self._database.write(
            "UPDATE executions SET status = ?, state = ?, record = ?, due = ?, changed = ? WHERE id = ?",
            (status, state, None if record is None else json.dumps(record), due, time.time(), execution),
        )

    async def take(self, execution: StoredExecution, owner: str) -> bool:
        """Have an execution go on; of several who try at once, one is told that it may.

        Args:
            execution: As it was read: if it has changed since, it is somebody else's.
            owner: The process that goes on with it.
        """
        changed = await self._database.write(
            "UPDATE executions SET status = 'running', owner = ?, changed = ?"
            " WHERE id = ? AND status = ? AND owner = ? AND state IS ?",
            (owner, time.time(), execution.id, execution.status, execution.owner, execution.state),
        )
        return changed == 1

    def keep_values(self, execution: str, values: Mapping[str, str | float]) -> None:
        """Keep the values behind an execution's references, with what is recorded next."""
        for name, value in values.items():
            self._database.post(
                "INSERT INTO reference_values (execution, id, value) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (execution, name, json.dumps(value)),
            )

    def drop_values(self, execution: str) -> None:
        """Forget the values of an execution that was never added."""
        self._database.post("DELETE FROM reference_values WHERE execution = ?", (execution,))

    async def values(self, execution: str) -> dict[str, str | float]:
        """The values behind an execution's references."""
        rows = await self._database.read("SELECT id, value FROM reference_values WHERE execution = ?", (execution,))
        return {name: _decoded(value) for name, value in rows}

    async def ask(self, execution: str, effect: int, question: dict[str, Any]) -> None:
        """Have a person decide about an effect, unless somebody has been asked already."""
        await self._database.write(
            "INSERT INTO approvals (execution, effect, asked, question, status) VALUES (?, ?, ?, ?, 'open')"
            " ON CONFLICT (execution, effect) DO NOTHING",
            (execution, effect, time.time(), json.dumps(question)),
        )

    async def decide(self, approval: int, decision: dict[str, Any]) -> bool:
        """Take down a person's decision; False if there was one already.

        Args:
            approval: Which.
            decision: `approved`, and `by`, `comment`.
        """
        changed = await self._database.write(
            "UPDATE approvals SET status = ?, decided = ?, decision = ? WHERE id = ? AND status = 'open'",
            ("approved" if decision["approved"] else "denied", time.time(), json.dumps(decision), approval),
        )
        return changed == 1

    async def approvals(self, execution: str | None = None, *, open_only: bool = False) -> list[Approval]:
        """The approvals of an execution, or all; oldest first."""
        rows = await self._database.read(
            "SELECT id, execution, effect, asked, question, status, decided, decision FROM approvals"
            " WHERE (?1 IS NULL OR execution = ?1) AND (NOT ?2 OR status = 'open') ORDER BY id",
            (execution, open_only),
        )
        return [
            Approval(number, of, effect, asked, _decoded(question), status, decided, _decoded(decision or "null"))
            for number, of, effect, asked, question, status, decided, decision in rows
        ]

    async def execution(self, execution: str) -> StoredExecution | None:
        """By id."""
        return _first(await self._database.read(f"{_SELECT} WHERE id = ?", (execution,)))

    async def by_key(self, principal: str, key: str) -> StoredExecution | None:
        """By idempotency key."""
        return _first(await self._database.read(f"{_SELECT} WHERE principal = ? AND key = ?", (principal, key)))

    async def executions(
        self, principal: str | None, limit: int, statuses: Collection[str] = ()
    ) -> list[StoredExecution]:
        """The latest, newest first; of everybody without a principal, of any status unless some are named."""
        among = ", ".join("?" * len(statuses)) if statuses else "status"
        rows = await self._database.read(
            f"{_SELECT} WHERE coalesce(?, principal) = principal AND status IN ({among})"
            " ORDER BY started DESC, id LIMIT ?",
            (principal, *statuses, limit),
        )
        return [_execution(row) for row in rows]

    async def ids(self, principal: str, prefix: str, limit: int) -> list[str]:
        """Ids of executions that begin with some characters."""
        rows = await self._database.read(
            "SELECT id FROM executions WHERE principal = ? AND substr(id, 1, ?) = ? ORDER BY id LIMIT ?",
            (principal, len(prefix), prefix, limit),
        )
        return [execution for (execution,) in rows]


_SELECT = (
    "SELECT id, principal, key, request, status, program, bundle, origin, owner, state, record, due, started"
    " FROM executions"
)


def _first(rows: list[tuple[Any, ...]]) -> StoredExecution | None:
    return _execution(rows[0]) if rows else None


def _execution(row: tuple[Any, ...]) -> StoredExecution:
    fields = dict(zip(StoredExecution.__slots__, row, strict=True))
    fields["bundle"] = _decoded(fields["bundle"])
    fields["record"] = None if fields["record"] is None else _decoded(fields["record"])
    return StoredExecution(**fields)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise BridgeError(
            "database_unusable",
            f"The record of executions is damaged: {exc}.",
            hint="Move executions.sqlite in the state directory away to begin a new one.",
        ) from None
