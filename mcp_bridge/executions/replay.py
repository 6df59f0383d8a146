"""Executions run again against their record, with no effects: does what is recorded follow from what was run?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.executions.programs.record import refuse_erased, standing
from mcp_bridge.executions.programs.replay import replayed_program
from mcp_bridge.executions.replay_result import NOT_YET, not_replayable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.executions.replay_result import Replayed
    from mcp_bridge.kernel.program import Program
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.store import ProgramStore, StoredExecution


async def replayed(
    store: ProgramStore, recorder: Recorder, stored: StoredExecution, other: Program | None = None
) -> Replayed:
    """Run a kept execution again against its record, as `replay`.

    Args:
        store: Keeps it.
        recorder: Has its record.
        stored: It.
        other: As `replay`.

    Raises:
        BridgeError: As `replay`; `erased`; `not_replayable`: it is under way.
    """
    refuse_erased(stored)
    entries = await recorder.read(stored.id)
    if standing(stored) == "running" or await store.execution(stored.id) != stored:
        raise not_replayable(stored, "it is under way", NOT_YET)
    return replay(stored, entries, other)


def replay(stored: StoredExecution, entries: Sequence[Recorded], other: Program | None = None) -> Replayed:
    """Run an execution again against its record.

    Args:
        stored: It.
        entries: All of its entries.
        other: Another version of its program, to be held against what happened.

    Raises:
        BridgeError: `not_replayable`: the record doesn't have what is needed; `bad_state`: what is kept of its program
            can't be used.
    """
    if stored.kind != "program":
        raise not_replayable(stored, "it is of a script")
    return replayed_program(stored, entries, other)
