"""A script run again against its record: every call is answered from there, and none is made."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import ArtifactWriter, Files
from mcp_bridge.executions.commands import Client
from mcp_bridge.executions.replay_result import NOT_YET, Difference, Replayed, not_replayable
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.job import Job
from mcp_bridge.executions.scripts.lifecycle import ActiveScript
from mcp_bridge.executions.scripts.lost_sandboxes import MAX_LOST, is_lost
from mcp_bridge.executions.scripts.run import OWN_END, ScriptRun
from mcp_bridge.executions.status import effective_status
from mcp_bridge.ledger.storage.schema import ERASED
from mcp_bridge.policy.secrets.value_references import equal_by_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.executions.scripts.lifecycle import SandboxRunner
    from mcp_bridge.ledger.log.entries import Entry, Recorded
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution
    from mcp_bridge.policy.secrets.value_references import Scalar

COMPARED = ("status", "exit_code", "stdout", "stderr", "value")
"""Of a record: all that doesn't depend on how long something has taken."""


class _Reading:
    """As a recorder that records nothing: whatever a replay's sandbox asks for leaves the record as it is."""

    def __init__(self, recorder: Recorder) -> None:
        self.read = recorder.read

    async def append(self, *entries: Entry) -> None:
        self.post(*entries)

    def post(self, *entries: Entry) -> None:
        kinds = ", ".join(entry.kind for entry in entries) or "nothing"
        raise BridgeError("not_recorded", f"A replay records nothing, and was to record {kinds}.")


async def replayed_script(
    store: ProgramStore, recorder: Recorder, runner: SandboxRunner, stored: StoredExecution
) -> Replayed:
    """Run a script in a sandbox, with every call answered as it was, and hold what it does against its record.

    The catalogue of tools is asked as it is now, which may start a server; nothing else outside of the sandbox is.

    Args:
        store: Keeps it.
        recorder: Has its record.
        runner: Runs it.
        stored: The script's execution.

    Raises:
        BridgeError: `not_replayable`: it hasn't ended, never ran, is erased, or a server that it was given isn't there
            any more; as `SandboxRunner.sandboxed`.
    """
    entries = await recorder.read(stored.id)
    _require(stored)
    past = CallHistory(entries)
    record = stored.record or {}
    bundle = stored.bundle
    job = Job(bundle["code"], bundle["servers"], bundle["timeout"], Client(began=time.monotonic()))
    reading = _Reading(recorder)
    try:
        gate = runner.gate(stored.id, job.client, job.servers, reading)
    except BridgeError as exc:
        if exc.code != "unknown_server":
            raise
        # What the server's tools are called, and what they take, isn't recorded.
        why = f"it was given the server {exc.details['server']!r}, which isn't configured any more"
        raise not_replayable(stored, why, "Configure it again: it is asked for nothing but its tools.") from None
    gate.values.adopt(await store.values(stored.id))
    for _ in range(MAX_LOST + 1):
        script = ScriptRun(stored.id, store, reading, gate, "", past, live=False)
        with tempfile.TemporaryDirectory(prefix="mcp-bridge-replay-") as folder:
            artifacts = ArtifactWriter(Files(Path(folder)), stored.id, runner.max_artifact_size)
            now = await runner.sandboxed(ActiveScript(script, gate, job), artifacts)
        if not is_lost(now):
            break
    found = _difference(entries, record, script, now, gate.values.values_behind)
    answered = sum(call.is_answered for call in past.calls.values())
    return Replayed(
        stored.id,
        "script",
        events=answered,
        effects=len(past.calls),
        status=stored.status,
        transitions=_digest(past, record),
        difference=found,
    )


def _require(stored: StoredExecution) -> None:
    status = effective_status(stored)
    if status == ERASED:
        raise not_replayable(stored, "it is erased")
    if status == "running":
        raise not_replayable(stored, "it is under way", NOT_YET)
    if status in {"interrupted", "suspended"}:
        shown = f"mcp-bridge execution show {stored.id} has what it waits for; mcp-bridge execution cancel ends it."
        raise not_replayable(stored, f"it has not ended: {status}", shown)
    if stored.record is None or "stdout" not in stored.record or status == "cancelled":
        raise not_replayable(stored, f"it has not run to an end: {status}")


def _difference(
    entries: list[Recorded],
    record: dict[str, Any],
    script: ScriptRun,
    now: ExecutionRecord,
    values_behind: Callable[[Any], Mapping[str, Scalar]],
) -> Difference | None:
    """The first: a call, or what was given in the end."""
    last = entries[-1].sequence if entries else 0
    parted = script.divergence or (script.missing() if now.status in OWN_END else None)
    if parted is not None:
        known = script.history.calls.get(parted.call)
        expected = None if parted.recorded is None else parted.recorded.encode()
        found = None if parted.asked is None else parted.asked.encode()
        return Difference(last if known is None else known.sequence, parted.call, "call", expected, found)
    given = now.to_json()
    for name in COMPARED:
        # What a script makes up itself gets another reference each time.
        if not equal_by_values(record.get(name), given.get(name), values_behind([record.get(name), given.get(name)])):
            return Difference(last, None, name, record.get(name), given.get(name))
    return None


def _digest(past: CallHistory, record: dict[str, Any]) -> str:
    """Of all that happened: what each call asked for and was given, and what came of it."""
    calls = {
        name: [call.asked.encode(), {} if call.outcome is None else call.outcome.encode()]
        for name, call in past.calls.items()
    }
    whole = [calls, {name: record.get(name) for name in COMPARED}]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
