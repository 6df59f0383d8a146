"""Scripts as executions: begun, kept, suspended, gone on with; one a key.

What a script asks for is recorded by its `ScriptRun`; here is what is around it.

A run without a key that is suspended is given one, `waits-` and its id, by which whoever has it goes on with it. It is
also found by its code: who asks for the same code, with the same servers and without a key, goes on with the run that
waits, and is told what came of it once; only then is the same code run anew. Of several runs of the same code that
wait, each is told once, those first that have come to an end or can go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import recovery
from mcp_bridge.executions.idempotency import UNENDED, Executions, Key, once
from mcp_bridge.executions.programs.record import standing
from mcp_bridge.executions.readiness import can_go_on, may_go_on
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.executions.request_identity import Keys, script_macs, whole_key
from mcp_bridge.executions.scripts.call_history import Past, spent
from mcp_bridge.executions.scripts.held_calls import ask, execution_of, if_made, known_by
from mcp_bridge.executions.scripts.job import Job
from mcp_bridge.executions.scripts.record import goes_on, suspend
from mcp_bridge.executions.scripts.run import OWN_END, ScriptRun
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.storage.store import StoredExecution
from mcp_bridge.policy.secrets.references import equal_by_values
from mcp_bridge.sandbox.owner import owner_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcp_bridge.executions.artifacts import ArtifactWriter
    from mcp_bridge.executions.scripts.call_history import PastCall
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.store import ProgramStore

logger = logging.getLogger(__name__)

MAX_LOST = 2
"""How often a script is run again at once whose sandbox is lost. One that makes itself look lost is, too."""

LOST_CODES = frozenset({"sandbox_lost", "sandbox_silent"})
"""Of a run that something else than its script has ended: it is run again."""

UNSPENT_CODES = LOST_CODES | {"sandbox_start_timeout"}
"""Of a run that leaves its key as it is: whoever comes with it goes on from the record."""


class Begun(NamedTuple):
    """An execution that is this process's to run."""

    script: ScriptRun
    gate: Gate
    job: Job
    left: dict[str, Any] | None = None
    """Its record as it was kept, of one that goes on."""


class Surroundings(Protocol):
    """Where scripts run. The bridge."""

    def servers(self, job: Job) -> list[str] | None:
        """The servers that a job was narrowed to, as they are configured; None for all."""

    @property
    def max_artifact_size(self) -> int:
        """Bytes that a run may keep in files."""

    def gate(self, execution: str, job: Job, recorder: Recorder | None = None) -> Gate:
        """What an execution's calls pass.

        Args:
            execution: Its id.
            job: What is to be run.
            recorder: Is told of the calls; by default that of the bridge.
        """

    async def sandboxed(self, begun: Begun, artifacts: ArtifactWriter | None = None) -> ExecutionRecord:
        """Run a script in a sandbox of its own, to its end.

        Args:
            begun: It.
            artifacts: Where its artifacts go; by default they are kept.
        """


class Scripts:
    """The scripts of one bridge.

    Args:
        store: Keeps executions.
        recorder: Is told of everything.
        principal: Whose they are.
        surroundings: Where they run.
        key: Of the MACs by which equal code is told.
        policy_hash: Of the policy in force.
        old_key: Of the MACs that version 0.1.0 has kept; None where it has kept none.
        retry_failed: Whether a key whose execution has failed may be used for another attempt.
    """

    def __init__(
        self,
        store: ProgramStore,
        recorder: Recorder,
        principal: str,
        surroundings: Surroundings,
        key: bytes,
        policy_hash: str = "",
        *,
        old_key: bytes | None = None,
        retry_failed: bool = False,
    ) -> None:
        self.store = store
        self.recorder = recorder
        self._principal = principal
        self._surroundings = surroundings
        self._keys = Keys(key, old_key)
        self.policy_hash = policy_hash
        self.alike_policies: Mapping[str, int] = {}
        """As `recovery.spent`."""
        self._retry_failed = retry_failed
        self._under_way: dict[str, anyio.Event] = {}

    async def run(self, job: Job, key: str | None) -> ExecutionRecord:
        """Run a script, or give what its key's run has given.

        Raises:
            BridgeError: As `once`; `erased`: what the key's run has given was erased; `ledger_full`. As
                `Surroundings.sandboxed`.
        """
        requests = script_macs(self._keys, job.code)
        named = waiting = None
        if key is not None:
            gate = self._nobodys()
            named = await whole_key(Key(key, job.starter), gate.values.project, gate.values.values_behind)
        elif (waiting := await self._same(job, requests[0])) is not None and waiting.key is not None:
            named = Key(waiting.key, job.starter)
        runs: Executions[Begun | ExecutionRecord] = _Runs(self, job, named, requests)
        found = await once(
            self.store,
            self._principal,
            named,
            runs,
            origin="agent",
            under_way=self._under_way,
            retry_failed=self._retry_failed,
        )
        if isinstance(found, Begun):
            found = await self._run(found)
        record = found if isinstance(found, ExecutionRecord) else _kept(found)
        record.given_before = key is not None and record is not found and record.status not in UNENDED
        if named is not None and execution_of(named.text) == record.execution:
            await self._told(record, by_code=waiting is not None)
        return record

    async def _same(self, job: Job, request: str) -> StoredExecution | None:
        """The run of the same code that waits, or of whose end nobody has been told."""
        names = known_by(request, self._surroundings.servers(job))
        found = await self.store.by_keys(self._principal, names, job.starter)
        for known in found:
            if standing(known) != "suspended" or await can_go_on(self.store, known):
                return known
        return found[0] if found else None

    async def _told(self, record: ExecutionRecord, *, by_code: bool) -> None:
        """Of a run whose key was made, and that has ended: whoever asks for its code from now on wants it run anew.

        One that can go on, whatever its record says of its sandbox, is found by its code still: else all that it has
        done were done again.
        """
        stored = await self.store.execution(record.execution)
        if stored is None or stored.status in UNENDED or stored.status != record.status:
            return
        await self.store.release_key(stored)
        if by_code:
            record.notices.append(
                f"this is what came of the run {record.execution}, which had waited;"
                " the same code is run anew from now on"
            )

    async def resume(self, stored: StoredExecution, job: Job) -> ExecutionRecord:
        """Go on with a script whose process has died, or for which something has come about that it waits for.

        Args:
            stored: Its execution, as it was read.
            job: For whom; its code is not looked at.

        Raises:
            BridgeError: `not_suspended`, `still_waiting`; as `run`.
        """
        status = standing(stored)
        can = status == "interrupted" or (status == "suspended" and await can_go_on(self.store, stored))
        record = stored.record or {}
        if not can and status == "suspended" and record.get("waiting"):
            raise BridgeError(
                "still_waiting",
                f"The execution {stored.id} still waits. {record['error']['message']}",
                hint=record["error"].get("hint"),
                waiting=record["waiting"],
            )
        if not can:
            raise BridgeError(
                "not_suspended",
                f"The execution {stored.id} can't go on: {status}.",
                hint=f"mcp-bridge execution show {stored.id} has what came of it, and what it waits for.",
            )
        if stored.key is None:
            # The programs that it has started would be started anew.
            raise BridgeError(
                "not_suspended",
                f"The execution {stored.id} can't go on: it has no idempotency key.",
                hint=f"mcp-bridge execution cancel {stored.id} ends it; what it did, mcp-bridge execution show has.",
            )
        begun = await self.go_on(stored, job)
        if begun is None:
            raise BridgeError(
                "not_suspended",
                f"The execution {stored.id} is not suspended: somebody has resumed it.",
                hint=f"mcp-bridge execution show {stored.id} has how it stands.",
            )
        return begun if isinstance(begun, ExecutionRecord) else await self._run(begun)

    def _nobodys(self) -> Gate:
        """What projects values of no execution."""
        return self._surroundings.gate(secrets.token_hex(8), Job("", ()))

    async def is_same_code(self, known: StoredExecution, code: str) -> bool:
        """Whether an execution is of some code, save for values that are erased in its own."""
        gate = self._nobodys()
        values = gate.values
        was, now = await values.project(known.bundle.get("code")), await values.project(code)
        return equal_by_values(was, now, values.values_behind([was, now]))

    async def begin(self, job: Job, key: Key | None, request: str) -> Begun | None:
        """Begin an execution; None if its key has one already."""
        execution = secrets.token_hex(8)
        gate = self._surroundings.gate(execution, job)
        if gate.allowance is not None:
            await gate.allowance.require()
        # As they are resolved now: another server may have that name by the time that the script goes on.
        servers = None if gate.narrowed_to is None else sorted(gate.narrowed_to)
        code = await gate.values.project(job.code)
        start: dict[str, Any] = {
            "code": code,
            # Of what is shown: another would tell of a value that is erased whether a guess is right.
            "hash": hashlib.sha256(code.encode()).hexdigest(),
            "servers": servers,
            "timeout": job.timeout,
            "starter": job.starter,
        }
        row = StoredExecution(
            id=execution,
            kind="script",
            principal=self._principal,
            key=None if key is None else key.text,
            key_space="" if key is None else key.space,
            whole_key="" if key is None else key.whole,
            request=request,
            status="running",
            program=request,
            bundle={"code": job.code, "servers": servers, "timeout": job.timeout},
            origin="agent",
            owner=owner_label(),
            state=None,
            record=None,
            due=None,
            started=time.time(),
        )
        self._under_way[execution] = anyio.Event()
        added = False
        try:
            with anyio.CancelScope(shield=True):
                # Once it is kept it has to be somebody's, who takes down its end.
                added = await self.store.add(
                    row, gate.values.values_behind(code), self._entry("start", execution, start | _named(row.key))
                )
        finally:
            if not added:
                del self._under_way[execution]
        return Begun(self._script(execution, gate, row.key), gate, job) if added else None

    async def go_on(self, known: StoredExecution, job: Job) -> Begun | ExecutionRecord | None:
        """Go on with an execution whose process has died; None if another was quicker.

        Its record, if it can't go on: what has happened of it isn't known.
        """
        job = job.of(known)
        with anyio.CancelScope(shield=True):
            if not await self.store.take(known, owner_label()):
                return None
        self._under_way[known.id] = anyio.Event()
        # First: from here on its entries say that it may be left in another way than it was.
        self.recorder.post(self._entry("resume", known.id, {"recovered": True}))
        try:
            history = await self.recorder.read(known.id)
            gate = self._surroundings.gate(known.id, job)
            if gate.allowance is not None:
                gate.allowance.stored = await self.store.recorded_bytes(known.id)
            gate.values.adopt(await self.store.values(known.id))
            gate.adopt(spent(history, self.policy_hash, self.alike_policies))
            for execution in driven(history):
                # What they have used was of the script's limits.
                of_program = await self.recorder.read(execution)
                gate.adopt(recovery.spent(of_program, self.policy_hash, self.alike_policies), execution)
            # Now: no call passes another that waits for it while it is compared with what is recorded.
            await gate.values.projector()
            script = self._script(known.id, gate, known.key, Past(history))
            doubts = await in_doubt(script.past, gate)
            if not doubts:
                return Begun(script, gate, job, known.record)
            record = ExecutionRecord(known.id)
            suspend(record, doubts, _still_waiting(known.record, script.past), if_made(known.key))
            with anyio.CancelScope(shield=True):
                await self._suspended(record, script)
        except BaseException:
            await self._let_go(known.id, record=known.record)
            raise
        self._under_way.pop(known.id).set()
        return record

    async def _run(self, begun: Begun) -> ExecutionRecord:
        execution = begun.script.execution
        try:
            begun, record = await self._to_its_end(begun)
            with anyio.CancelScope(shield=True):
                await self._keep(begun, record)
        except BaseException as exc:
            # A key that is made counts once it is written down.
            await self._let_go(execution, None if begun.script.kept_key else exc, record=begun.left)
            raise
        self._under_way.pop(execution).set()
        return record

    async def _to_its_end(self, begun: Begun) -> tuple[Begun, ExecutionRecord]:
        """Run a script, and again from its record if its sandbox is lost; the last run, and its record."""
        for lost in range(MAX_LOST + 1):
            try:
                record = _as_it_waits(await self._surroundings.sandboxed(begun), begun.script)
            except BridgeError as exc:
                if exc.code != "sandbox_start_failed" or lost == MAX_LOST:
                    raise
                cause = exc.message
            else:
                if lost:
                    record.notices.append(_again(lost))
                if lost == MAX_LOST or not await self._can_run_again(begun, record):
                    break
                cause = record.error["message"] if record.error else ""
            logger.warning("the execution %s is run again from its record: %s", begun.script.execution, cause)
            begun = await self._again(begun)
        return begun, record

    async def _can_run_again(self, begun: Begun, record: ExecutionRecord) -> bool:
        script = begun.script
        if not is_lost(record) or script.divergence or script.has_unnamed or script.hold.calls:
            # What waits is asked about now, and goes on when it can.
            return False
        return not await in_doubt(Past(await self.recorder.read(script.execution)), begun.gate)

    async def _again(self, begun: Begun) -> Begun:
        """The same execution, from its record."""
        execution = begun.script.execution
        self.recorder.post(self._entry("resume", execution, {"recovered": True}))
        past = Past(await self.recorder.read(execution))
        return begun._replace(script=self._script(execution, begun.gate, begun.script.kept_key, past))

    async def _keep(self, begun: Begun, record: ExecutionRecord) -> None:
        """Take down how a run has ended."""
        script = begun.script
        divergence = script.divergence or (script.missing() if record.status in OWN_END else None)
        if divergence is not None:
            record.status, record.exit_code, record.error = "error", 1, divergence.error().record()
            if script.kept_key is not None:
                record.error["hint"] += f" mcp-bridge execution cancel {script.execution} ends it."
                await self._suspended(record, script)
                return
        elif script.key is not None and (record.status not in OWN_END or script.lent):
            await self._rest(begun, record)
            if record.status == "suspended":
                return
            if script.kept_key is not None and record.error is not None and record.error["code"] in UNSPENT_CODES:
                record.error["hint"] = f"Try again: {goes_on(if_made(script.key))}, from its record."
                self.recorder.post(
                    self._entry("suspension", script.execution, {"status": "interrupted", **_error(record)})
                )
                # What it waited for before, it waits for still.
                await self.store.update(script.execution, status="interrupted", state=None, record=begun.left, due=None)
                return
        end = {"status": record.status, "exit_code": record.exit_code, **_error(record)}
        for name in ("stdout", "stderr", "value"):
            if (text := getattr(record, name)) is not None:
                data = text if isinstance(text, bytes) else text.encode()
                end[name] = hashlib.sha256(data).hexdigest()
        sealed = await self.store.sealed_record(script.execution, record.to_keep())
        self.recorder.post(self._entry("end", script.execution, end))
        await self.store.update(script.execution, status=record.status, state=None, record=sealed, due=None)

    async def _rest(self, begun: Begun, record: ExecutionRecord) -> None:
        """Suspend a run that has a key, if something of it is in doubt, or waits."""
        script = begun.script
        doubts: list[PastCall] = []
        if record.status not in OWN_END:
            # Its calls were cut short: nobody knows whether they have happened.
            doubts = await in_doubt(Past(await self.recorder.read(script.execution)), begun.gate)
        held = {held.call: held for held in script.lent.values()}
        held |= script.hold.calls if record.status in _AT_REST or is_lost(record) else {}
        if doubts or held:
            if record.status == "suspended":
                record.error = None
            waiting = await ask(self.store, script.execution, held.values())
            await self._name(script, begun.job)
            suspend(record, doubts, waiting, if_made(script.key))
            await self._suspended(record, script)

    async def _name(self, script: ScriptRun, job: Job) -> None:
        """Keep the key that was made for a run, if that is new."""
        stored = await self.store.execution(script.execution)
        if script.made_now is None or stored is None:
            return
        named = replace(stored, key=script.made_now, key_space=job.starter)
        for name in known_by(stored.request, stored.bundle["servers"]):
            if await self.store.assign_key(named, name):
                return
        await self.store.assign_key(named)

    async def _suspended(self, record: ExecutionRecord, script: ScriptRun) -> None:
        why = {"status": "suspended", **_error(record)}
        held = {call: asked for call, asked in script.past.held.items() if call not in script.past.calls}
        held |= {one.call: one.asked for one in script.hold.calls.values() if one.kind == "approval"}
        if held:
            # A person decides on these, and the script is to ask for the same when it goes on.
            why["held"] = [asked.in_short().payload() | {"call": call} for call, asked in held.items()]
        sealed = await self.store.sealed_record(record.execution, record.to_keep())
        self.recorder.post(self._entry("suspension", record.execution, why))
        await self.store.update(record.execution, status="suspended", state=None, record=sealed, due=None)

    async def _let_go(
        self, execution: str, exc: BaseException | None = None, *, record: dict[str, Any] | None = None
    ) -> None:
        """A run has ended without a record.

        Args:
            execution: Whose.
            exc: Why it is over; None if it has a key, by which it can go on.
            record: As it was kept before, if it has gone on: what it waited for, it waits for still.
        """
        with anyio.CancelScope(shield=True):
            try:
                # A record that can't be written is what has ended it, perhaps.
                with contextlib.suppress(BridgeError):
                    if exc is None:
                        await self.store.update(execution, status="interrupted", state=None, record=record, due=None)
                    else:
                        refused = _refused(execution, exc)
                        self.recorder.post(self._entry("end", execution, {"status": refused["status"]}))
                        await self.store.update(
                            execution, status=refused["status"], state=None, record=refused, due=None
                        )
            finally:
                self._under_way.pop(execution).set()

    def _script(self, execution: str, gate: Gate, key: str | None, past: Past | None = None) -> ScriptRun:
        return ScriptRun(execution, self.store, self.recorder, gate, gate.policy_hash, past, key=key)

    def _entry(self, kind: Any, execution: str, payload: dict[str, Any]) -> Entry:
        return Entry(kind, execution, payload, None, self.policy_hash)


class _Runs(NamedTuple):
    """As `once.Executions`."""

    scripts: Scripts
    job: Job
    key: Key | None
    requests: Sequence[str]

    async def begin(self) -> Begun | ExecutionRecord | None:
        return await self.scripts.begin(self.job, self.key, self.requests[0])

    async def is_same(self, known: StoredExecution) -> bool:
        if known.request:
            return known.request in self.requests
        # Forgotten, with a value that was written out in it.
        return known.kind == "script" and await self.scripts.is_same_code(known, self.job.code)

    async def go_on(self, known: StoredExecution) -> Begun | ExecutionRecord | None:
        return await self.scripts.go_on(known, self.job)

    async def can_go_on(self, known: StoredExecution) -> bool:
        return await may_go_on(self.scripts.store, known, self.job.asker)

    async def may_be_operators(self, known: StoredExecution) -> bool:
        # With the same servers the same was allowed.
        return bool(known.bundle["servers"] == (None if self.job.servers is None else list(self.job.servers)))


_AT_REST = frozenset({"suspended", "timeout"})
"""How a run ends while calls of it wait: by itself, or because what was still under way took too long."""


def _as_it_waits(record: ExecutionRecord, script: ScriptRun) -> ExecutionRecord:
    """A record; of a run that was ended for waiting, and doesn't wait any more, that its sandbox is lost.

    Nothing is down that it could go on by, but what it has done.
    """
    if record.status == "suspended" and not (script.hold.calls or script.lent):
        message = "The sandbox was ended in the moment in which the script no longer waited."
        record.status, record.exit_code = "sandbox_lost", 137
        record.error = BridgeError("sandbox_lost", message).record()
    return record


def is_lost(record: ExecutionRecord) -> bool:
    """Whether something else than the script has ended its run."""
    return record.error is not None and record.error["code"] in LOST_CODES


def _again(lost: int) -> str:
    times = "once" if lost == 1 else "twice" if lost == 2 else f"{lost} times"  # noqa: PLR2004
    return f"its sandbox was lost {times}, and not by the script's doing: it was run again from its record"


def _still_waiting(record: dict[str, Any] | None, past: Past) -> list[dict[str, Any]]:
    """What a run waited for and waits for still, when it can't go on for another reason."""
    rows: list[dict[str, Any]] = (record or {}).get("waiting", [])
    return [row for row in rows if row["call"] not in past.calls or past.calls[row["call"]].outcome is None]


def _named(key: str | None) -> dict[str, Any]:
    return {} if key is None else {"key": key}


def _error(record: ExecutionRecord) -> dict[str, Any]:
    """A record's error as a part of an entry."""
    error = record.error or {"message": None, "code": None}
    return {"error": error["message"], **{name: value for name, value in error.items() if name != "message"}}


def _kept(stored: StoredExecution) -> ExecutionRecord:
    return ExecutionRecord.from_json({"execution": stored.id, **(stored.record or {})})


def _refused(execution: str, exc: BaseException) -> dict[str, Any]:
    if isinstance(exc, BridgeError):
        return {"execution": execution, "status": "refused", "error": exc.record()}
    if isinstance(exc, Exception):
        return {"execution": execution, "status": "refused", "error": {"code": "internal_error", "message": ""}}
    return {"execution": execution, "status": "cancelled"}


def driven(history: Iterable[Recorded]) -> list[str]:
    """The programs that a script has driven to where they couldn't go on; not those that it was only told of.

    Args:
        history: The script's entries.
    """
    begun: set[str] = set()
    ended: dict[str, None] = {}
    for row in history:
        payload = row.entry.payload
        if payload.get("kind") != "program" or "call" not in payload:
            continue
        value = payload.get("value")
        if row.entry.kind == "intent":
            begun.add(payload["call"])
        elif payload["call"] in begun and isinstance(value, dict) and isinstance(value.get("record"), dict):
            ended[value["record"]["trace_id"]] = None
    return list(ended)


async def in_doubt(past: Past, gate: Gate) -> list[PastCall]:
    """The calls that may have happened and must not happen twice."""
    return [
        call for call in past.doubtful() if call.asked.kind == "tool" and not await gate.is_repeatable(call.asked.name)
    ]
