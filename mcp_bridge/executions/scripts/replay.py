"""Replay of a script against its record: every call is answered from the record, and none is made."""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import ArtifactWriter
from mcp_bridge.executions.client import Client
from mcp_bridge.executions.replay_result import NOT_YET, Difference, Replayed, not_replayable
from mcp_bridge.executions.reruns.error_comparison import is_same_error, shown_error
from mcp_bridge.executions.scripts.answer_order import may_depend_on_pace
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.lifecycle import ActiveScript
from mcp_bridge.executions.scripts.lost_sandboxes import MAX_LOST, is_lost
from mcp_bridge.executions.scripts.script_job import Job
from mcp_bridge.executions.scripts.script_run import ScriptRun
from mcp_bridge.executions.sessions.cell import is_of_this_rendering
from mcp_bridge.executions.status import ENDED_BY_ITSELF, effective_status
from mcp_bridge.ledger.storage.schema import ERASED
from mcp_bridge.policy.secrets.value_references import equal_by_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.executions.scripts.divergence import Divergence
    from mcp_bridge.executions.scripts.lifecycle import SandboxRunner
    from mcp_bridge.ledger.log.entries import Entry, Recorded
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution
    from mcp_bridge.policy.secrets.known_values import Scalar

COMPARED = ("status", "exit_code", "stdout", "stderr", "value")
"""The fields of a record that are compared whole: those that don't depend on time. The error is compared in parts."""

_NOTES = re.compile(r"^(?:\[not (?:handed in|provided|kept): .*\]|save_tool: .*)$\n?", re.MULTILINE)
"""Lines that the guest itself writes to standard error. Another version of the bridge may word them otherwise."""


class ReadingRecorder:
    """A recorder that only reads: no request of a replay's sandbox can change the record."""

    def __init__(self, recorder: Recorder) -> None:
        self.read = recorder.read

    async def append(self, *entries: Entry) -> None:
        """As `post`."""
        self.post(*entries)

    def post(self, *entries: Entry) -> None:
        """Refuse to record.

        Raises:
            BridgeError: `not_recorded`, always.
        """
        kinds = ", ".join(entry.kind for entry in entries) or "nothing"
        raise BridgeError("not_recorded", f"A replay records nothing, and was to record {kinds}.")


async def replayed_script(
    store: ProgramStore, recorder: Recorder, runner: SandboxRunner, stored: StoredExecution
) -> Replayed:
    """Replay a script in a sandbox with the recorded answers, and compare what it does with the record.

    The functions of a server are made of the tools that it has now, which may start it; lookups that weren't recorded
    are repeated. Nothing else outside of the sandbox is used. A script that does something else is replayed once more,
    with its calls answered as late as they were: a timer of it may have been faster than a call.

    Args:
        store: The store of executions.
        recorder: Reads the script's entries.
        runner: Runs the sandbox.
        stored: The script's execution.

    Raises:
        BridgeError: `not_replayable`: it hasn't ended, never ran, is erased, or one of its servers isn't configured any
            more; `packages_incompatible`; as `SandboxRunner.sandboxed`.
    """
    entries = await recorder.read(stored.id)
    _require(stored)
    history = CallHistory(entries)
    record = stored.record or {}
    job = Job.from_stored(stored, Client(began=time.monotonic()))
    reading = ReadingRecorder(recorder)
    try:
        gate = runner.gate(stored.id, job.client, job.servers, reading)
    except BridgeError as exc:
        if exc.code != "unknown_server":
            raise
        # The names and schemas of the server's tools aren't recorded.
        why = f"it was given the server {exc.details['server']!r}, which isn't configured any more"
        raise not_replayable(stored, why, "Configure it again: it is asked for nothing but its tools.") from None
    gate.values.adopt(await store.values(stored.id))
    is_same_version = is_of_this_rendering(stored)

    async def run(*, at_pace: bool) -> Difference | None:
        for _ in range(MAX_LOST + 1):
            script = ScriptRun(stored.id, store, reading, gate, "", history, live=False, at_pace=at_pace)
            artifacts = ArtifactWriter(None, stored.id, runner.max_artifact_size)
            now = await runner.sandboxed(ActiveScript(script, gate, job), artifacts)
            if not is_lost(now):
                break
        return difference(entries, record, script, now, gate.values.values_behind, is_same_version=is_same_version)

    found = await run(at_pace=False)
    if found is not None and may_depend_on_pace(found.what, history):
        found = await run(at_pace=True)
    answered = sum(call.is_answered for call in history.calls.values())
    return Replayed(
        stored.id,
        "script",
        events=answered,
        effects=len(history.calls),
        status=stored.status,
        transitions=_digest(history, record),
        difference=found,
    )


def _require(stored: StoredExecution) -> None:
    status = effective_status(stored)
    if status == ERASED:
        raise not_replayable(stored, "it is erased")
    if status == "running":
        raise not_replayable(stored, "it is under way", NOT_YET)
    if status in {"interrupted", "suspended"}:
        hint = f"mcp-bridge execution show {stored.id} has what it waits for; mcp-bridge execution cancel ends it."
        raise not_replayable(stored, f"it has not ended: {status}", hint)
    if stored.record is None or "stdout" not in stored.record or status == "cancelled":
        raise not_replayable(stored, f"it has not run to an end: {status}")


def difference(
    entries: list[Recorded],
    record: dict[str, Any],
    script: ScriptRun,
    now: ExecutionRecord,
    values_behind: Callable[[Any], Mapping[str, Scalar]],
    normal: Callable[[Any], Any] = lambda value: value,
    compared: Collection[str] = COMPARED,
    *,
    is_same_version: bool = True,
) -> Difference | None:
    """The first difference between a script's record and another run of it: a call, or a field of the record.

    Args:
        entries: The script's entries.
        record: Its record, as it is stored.
        script: The run.
        now: The run's record.
        values_behind: The values behind the references in a value.
        normal: Gives a field without what may differ.
        compared: The fields.
        is_same_version: As for `is_same_error`. Of another version, the guest's own notes aren't compared either.
    """
    divergence_detector = script.divergence_detector
    parted = (
        divergence_detector.final_divergence()
        if now.status in ENDED_BY_ITSELF
        else divergence_detector.divergence or divergence_detector.suspected
    )
    if parted is not None:
        return difference_at(parted, entries, script.history)
    last = _last(entries)
    was = record.get("error") if record.get("status") == now.status == "error" else None
    if (
        was is not None
        and now.error is not None
        and not is_same_error(was, now.error, values_behind, is_same_version=is_same_version)
    ):
        return Difference(last, None, "error", shown_error(was), shown_error(now.error))
    replayed = now.to_json()
    for name in compared:
        # A sensitive value that the script itself generates gets another reference each time.
        before, after = normal(record.get(name)), normal(replayed.get(name))
        if name == "stderr" and not is_same_version:
            before, after = _NOTES.sub("", before or ""), _NOTES.sub("", after or "")
        if not equal_by_values(before, after, values_behind([before, after])):
            return Difference(last, None, name, before, after)
    return None


def difference_at(parted: Divergence, entries: list[Recorded], history: CallHistory) -> Difference:
    """A divergence as a difference from the record.

    Args:
        parted: The divergence.
        entries: The script's entries.
        history: Its calls.
    """
    known = history.calls.get(parted.call)
    expected = None if parted.recorded is None else parted.recorded.encode()
    actual = None if parted.asked is None else parted.asked.encode()
    sequence = _last(entries) if known is None else known.sequence
    return Difference(sequence, parted.call, parted.what, expected, actual)


def _last(entries: list[Recorded]) -> int:
    return entries[-1].sequence if entries else 0


def _digest(history: CallHistory, record: dict[str, Any]) -> str:
    """SHA-256 over the requests and outcomes of all calls, and the compared fields of the record."""
    calls = {
        name: [call.asked.encode(), {} if call.outcome is None else call.outcome.encode()]
        for name, call in history.calls.items()
    }
    whole = [calls, {name: record.get(name) for name in COMPARED}]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
