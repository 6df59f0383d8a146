"""The lifecycle of durable executions, the same for scripts and programs.

    start ──▶ running ──leave──▶ suspended ────┐
                 ▲   ├──leave──▶ interrupted ──┤
                 │   └──leave──▶ ended         │
                 └───────────────take──────────┘

One process works on an execution, from `start` or `take` until `leave`; of several that try to take it at once, the
store lets one. Nothing else but erasure changes the status of an execution.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.status import not_suspended, require_resumable
from mcp_bridge.executions.usage import usage_from_history
from mcp_bridge.executions.waits.wake_times import last_looked
from mcp_bridge.ledger.log.payloads import Resumption, ScriptSuspension, to_entry
from mcp_bridge.ledger.storage.execution_store import NO_KEY_NAMES, StoredExecution
from mcp_bridge.sandbox.ownership import owner_label

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from mcp_bridge.executions.client import Client
    from mcp_bridge.executions.idempotency.keys import Key
    from mcp_bridge.executions.idempotency.request_identity import Keys
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.kernel.events import Resume
    from mcp_bridge.ledger.log.entries import Entry, Recorded
    from mcp_bridge.ledger.log.payload_base import Payload
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import GeneratedKeyNames, ProgramStore
    from mcp_bridge.policy.secrets.known_values import Scalar


class SuspendedRunExistsError(BridgeError):
    """A run of the same code is suspended, or has an undelivered result, so no other was stored. `not_recorded`."""

    def __init__(self) -> None:
        super().__init__("not_recorded", "A run of the same code is suspended, or has an undelivered result.")


class Lifecycle:
    """The transitions between the statuses of a bridge's executions.

    Args:
        store: The store of executions.
        recorder: Records their entries.
        keys: The keys of the MACs by which equal requests are recognised.
        policy_hash: The hash of the policy in force.
        retry_failed: Whether an idempotency key whose execution has failed may be used for another attempt.
        servers_digest: SHA-256, in hexadecimal, of the configurations of all servers that executions may use, and of
            what their principal is given of the secrets and files, unless that is all; None for a process that has
            none, and runs nothing.

    Attributes:
        similar_policies: As `similar` in `usage_from_history`.
    """

    def __init__(
        self,
        store: ProgramStore,
        recorder: Recorder,
        keys: Keys,
        policy_hash: str = "",
        *,
        retry_failed: bool = False,
        servers_digest: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.store = store
        self.recorder = recorder
        self.keys = keys
        self.policy_hash = policy_hash
        self.similar_policies: Mapping[str, int] = {}
        self.retry_failed = retry_failed
        self.servers_digest = servers_digest
        self._active: dict[str, anyio.Event] = {}

    def under_way(self, execution: str) -> anyio.Event | None:
        """The event that is set when this process has left the execution; None if it doesn't work on it."""
        return self._active.get(execution)

    async def stored(self, execution: str, principal: str) -> StoredExecution:
        """An execution of a principal.

        Raises:
            BridgeError: `unknown_trace`: there is none, or it is another's.
        """
        execution_row = await self.store.execution(execution, principal)
        if execution_row is None:
            raise BridgeError("unknown_trace", f"There is no trace {execution[:100]!r}.")
        return execution_row

    async def start(
        self,
        execution: StoredExecution,
        values: Mapping[str, Scalar],
        entry: Entry,
        post: Callable[[], None] | None = None,
    ) -> bool:
        """Store a new execution, owned by this process; False if its key has one already.

        Args:
            execution: The execution's row.
            values: The values behind its references, by their ids.
            entry: Its first entry.
            post: Posts what is written in the same transaction.
        """
        self._active[execution.id] = anyio.Event()
        added = False
        try:
            # Once it is stored, this process has to record its end.
            with anyio.CancelScope(shield=True):
                added = await self.store.add(execution, values, entry, post=post)
        finally:
            if not added:
                self._release(execution.id)
        return added

    async def begin(
        self,
        execution: StoredExecution,
        values: Mapping[str, Scalar],
        entry: Entry,
        unless: GeneratedKeyNames = NO_KEY_NAMES,
    ) -> Callable[[], Awaitable[None]]:
        """As `start`, for an execution without a key, without waiting until it is stored.

        Args:
            execution: As `start`.
            values: As `start`.
            entry: As `start`.
            unless: As `ProgramStore.begin_adding`.

        Returns:
            Waits until it is stored, and durable. Nothing that the execution asks for, tells or gives is taken before.
            Raises BridgeError `not_recorded` if it can't be stored, `SuspendedRunExistsError` if `unless` forbids it.
        """
        self._active[execution.id] = anyio.Event()
        try:
            with anyio.CancelScope(shield=True):
                added = await self.store.begin_adding(execution, values, entry, unless=unless)
        except BaseException:
            self._release(execution.id)
            raise

        async def recorded() -> None:
            # Once it is stored, this process has to record its end.
            with anyio.CancelScope(shield=True):
                if not await added():
                    # Whatever has that id isn't ours to leave.
                    self._release(execution.id)
                    if unless.texts:
                        raise SuspendedRunExistsError
                    raise BridgeError("not_recorded", f"There is an execution {execution.id} already.")

        return recorded

    async def take(self, stored: StoredExecution) -> bool:
        """Make this process the owner of an execution to resume; False if another was quicker.

        Args:
            stored: The execution, as it was read.
        """
        if not await self._take(stored):
            return False
        # Recorded first: from here on the entries are newer than the row.
        recovered = stored.kind == "script" or stored.status == "running"
        resumption = Resumption(recovered, self.servers_digest())
        self.recorder.post(self.entry(resumption, stored.id, program=program_hash(stored)))
        return True

    @asynccontextmanager
    async def taken(self, stored: StoredExecution, *, resumes: bool) -> AsyncGenerator[None]:
        """Take an execution; after an error it is left as it was, unless it has been left otherwise meanwhile.

        Args:
            stored: The row, as it was read.
            resumes: Whether it goes on, which an entry records; else it is only changed by a person's word.

        Raises:
            BridgeError: `not_suspended`.
        """
        require_resumable(stored)
        if not await (self.take(stored) if resumes else self._take(stored)):
            raise not_suspended(stored.id, "somebody has resumed or changed it")
        try:
            yield
        except BaseException:
            if stored.id in self._active:
                await self.restore(stored, resumed=resumes)
            raise

    async def restore(self, stored: StoredExecution, *, resumed: bool) -> None:
        """Leave an execution as it was before it was taken; one whose process had died, as interrupted.

        Args:
            stored: The row, as it was read before.
            resumed: Whether its entries tell that it was taken.
        """
        status = "interrupted" if stored.status == "running" else stored.status
        # Without a `resume` entry, the last entry has to say the status that the row has.
        entries = [] if resumed else self.suspension(stored, status)
        # An event may have come meanwhile.
        after = last_looked(stored.record) if stored.kind == "script" else None
        await self.leave(
            stored.id,
            *entries,
            status=status,
            record=stored.record,
            state=stored.state,
            due=stored.due,
            after=after,
        )

    @staticmethod
    def suspension(stored: StoredExecution, status: str) -> list[Entry]:
        """The entry that an execution, changed by hand, is left with another status; none if it has that already."""
        return [] if status == stored.status else [to_entry(ScriptSuspension(status), stored.id)]

    async def _take(self, stored: StoredExecution) -> bool:
        with anyio.CancelScope(shield=True):
            taken = await self.store.take(stored, owner_label())
        if taken:
            self._active[stored.id] = anyio.Event()
        return taken

    async def leave(
        self,
        execution: str,
        *entries: Entry,
        status: str,
        record: dict[str, Any] | None,
        state: bytes | None = None,
        due: float | None = None,
        after: int | None = None,
    ) -> None:
        """Store how an execution stands, and release it, even if it can't be stored.

        Args:
            execution: The execution's id.
            entries: Entries to record in the same transaction.
            status: The new status, as in `StoredExecution`.
            record: The new record, or None.
            state: The machine's state; None for a script, and for an ended program.
            due: When the next timer fires, in seconds since 1970, or None.
            after: As in `ProgramStore.update`.

        Raises:
            BridgeError: `not_recorded`.
        """
        try:
            with anyio.CancelScope(shield=True):
                sealed = None if record is None else await self.store.sealed_record(execution, record)
                self.recorder.post(*entries)
                await self.store.update(execution, status=status, state=state, record=sealed, due=due, after=after)
        finally:
            self._release(execution)

    async def interrupt(self, execution: str) -> None:
        """Release an execution whose state can't be stored: it is resumed from its entries."""
        try:
            with anyio.CancelScope(shield=True):
                await self.store.interrupt(execution)
        finally:
            self._release(execution)

    def _release(self, execution: str) -> None:
        if (left := self._active.pop(execution, None)) is not None:
            left.set()

    def usage(self, history: Sequence[Recorded]) -> dict[str, Any]:
        """The usage of an execution, under the policy in force."""
        return usage_from_history(history, self.policy_hash, self.similar_policies)

    def entry(self, payload: Payload, execution: str, step: str | None = None, program: str | None = None) -> Entry:
        """An entry under the policy in force."""
        return to_entry(payload, execution, step, self.policy_hash, program)


def new_execution(
    kind: Literal["script", "program"],
    execution: str,
    principal: str,
    key: Key | None,
    *,
    request: str,
    program: str,
    bundle: dict[str, Any],
    origin: Literal["operator", "agent"] = "agent",
    state: bytes | None = None,
    subject: tuple[str, bool] | None = None,
) -> StoredExecution:
    """The row of an execution that this process starts.

    Args:
        kind: What is executed.
        execution: The execution's id.
        principal: Its owner.
        key: Its idempotency key, or None.
        request: The MAC of the request.
        program: The program's hash, or the code's MAC.
        bundle: The program, or the script.
        origin: The program's owner.
        state: The machine's state; None for a script.
        subject: A person whose data it contains, and whether that name contains a sensitive value; None for nobody.
    """
    named, is_value = subject or ("", False)
    return StoredExecution(
        id=execution,
        kind=kind,
        principal=principal,
        key=None if key is None else key.text,
        key_space="" if key is None else key.space,
        whole_key="" if key is None else key.whole,
        request=request,
        # Even if its first transition has ended it: its end is recorded later.
        status="running",
        program=program,
        bundle=bundle,
        origin=origin,
        owner=owner_label(),
        state=state,
        record=None,
        due=None,
        started=time.time(),
        subject=named,
        subject_is_value=is_value,
    )


def program_hash(stored: StoredExecution) -> str | None:
    """The hash of an execution's program, as its entries name it; None for a script."""
    return stored.program if stored.kind == "program" else None


class Commands(Protocol):
    """The commands about executions of one kind. Each gives the execution's record, as `to_record`."""

    async def resume(self, stored: StoredExecution, event: Resume | None, client: Client) -> dict[str, Any]:
        """Go on with an execution.

        Args:
            stored: The execution, as it was read.
            event: What it waits for; None if that is a decision or time, or if its process has died.
            client: Who has it resumed.

        Raises:
            BridgeError: `erased`, `not_suspended`, `still_waiting`, `bad_value`; as the run.
        """

    async def settle(
        self, stored: StoredExecution, name: str | None, settlement: Settlement, client: Client, *, and_resume: bool
    ) -> dict[str, Any]:
        """Settle a call in doubt by a person's word.

        Args:
            stored: As it was read.
            name: The step's path or the effect's number, or a script's call; None if only one is in doubt.
            settlement: The person's word.
            client: Who has it resumed.
            and_resume: Whether to resume the execution at once.

        Raises:
            BridgeError: `erased`, `not_suspended`, `not_in_doubt`, `unknown_doubt`, `ambiguous_id`, `bad_value`.
        """

    async def cancel(self, stored: StoredExecution, reason: str) -> dict[str, Any]:
        """Cancel an execution that is suspended or interrupted.

        Args:
            stored: As it was read.
            reason: Why; a secret in it is not kept.

        Raises:
            BridgeError: `erased`, `not_suspended`.
        """
