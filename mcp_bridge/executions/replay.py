"""Replay: an execution run again against its record, without effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.executions.programs.replay import replayed_program
from mcp_bridge.executions.replay_result import NOT_YET, not_replayable
from mcp_bridge.executions.status import effective_status, refuse_erased

if TYPE_CHECKING:
    from mcp_bridge.executions.replay_result import Replayed
    from mcp_bridge.executions.scripts.lifecycle import SandboxRunner
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution


async def replayed(
    store: ProgramStore,
    recorder: Recorder,
    stored: StoredExecution,
    other: Program | None = None,
    runner: SandboxRunner | None = None,
) -> Replayed:
    """Replay a kept execution: a program by its machine, a script in a sandbox.

    Args:
        store: Keeps it.
        recorder: Has its record.
        stored: The execution, as it was read.
        other: Another version of its program, to be compared with what happened.
        runner: Runs scripts; without one, only programs are replayed.

    Raises:
        BridgeError: `erased`; `not_replayable`: it is under way, or the record doesn't have what is needed;
            `bad_state`: what is kept of its program can't be used; as `replayed_script`.
    """
    if stored.kind == "script":
        if runner is None:
            raise not_replayable(stored, "it is of a script")
        from mcp_bridge.executions.scripts.replay import replayed_script  # noqa: PLC0415  (imports what runs scripts)

        return await replayed_script(store, recorder, runner, stored)
    refuse_erased(stored)
    entries = await recorder.read(stored.id)
    if effective_status(stored) == "running" or await store.execution(stored.id) != stored:
        raise not_replayable(stored, "it is under way", NOT_YET)
    return replayed_program(stored, entries, other)
