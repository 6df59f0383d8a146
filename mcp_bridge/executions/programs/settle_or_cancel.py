"""A person's commands about a suspended program: settle an effect in doubt, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.executions import in_doubt
from mcp_bridge.kernel.machine import IN_DOUBT
from mcp_bridge.ledger.log.payloads import EffectSettlement

if TYPE_CHECKING:
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.programs.lifecycle import Programs
    from mcp_bridge.executions.programs.program_run import Effects, ProgramRun


async def settle_program(
    programs: Programs, execution: str, name: str | None, settlement: Settlement, principal: str, effects: Effects
) -> ProgramRun:
    """Settle an effect in doubt by a person's statement. The run is then driven, or stored until it is resumed.

    Args:
        programs: The bridge's programs.
        execution: The execution's id.
        name: The step's path or the effect's number; None if only one is in doubt.
        settlement: The person's statement.
        principal: The execution's owner.
        effects: Carries out the program's effects.

    Raises:
        BridgeError: As `Programs.taken`, `in_doubt.find_doubt` and `ProgramRun.resolve`.
    """
    stored = await programs.lifecycle.stored(execution, principal)
    if stored.status == "suspended":
        # Before it is taken: nothing is recorded of a name that is mistyped or missing.
        rows = (stored.record or {}).get("waiting", ())
        in_doubt.find_doubt({row["effect"]: row for row in rows if row["kind"] == IN_DOUBT}, name, execution)
    async with programs.taken(execution, principal, effects) as (_, run):
        doubt = in_doubt.find_doubt(run.doubts, name, execution)
        projected = await run.own(await effects.project(settlement._asdict()))
        settlement = settlement._replace(**projected)
        arguments = await effects.project(doubt["arguments"])
        said = EffectSettlement(doubt["effect"], doubt["step"], doubt["tool"], arguments, **settlement._asdict())
        programs.recorder.post(programs.entry(said, run, said.step))
        run.resolve(settlement.event(doubt["effect"]))
    return run


async def cancel_program(
    programs: Programs, execution: str, reason: str, principal: str, effects: Effects
) -> ProgramRun:
    """Cancel a suspended program. The run is then driven, for its compensation.

    Raises:
        BridgeError: As `Programs.taken`.
    """
    async with programs.taken(execution, principal, effects) as (_, run):
        run.cancel(await run.own(await effects.project(reason)))
    return run
