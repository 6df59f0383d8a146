"""A sandbox that is lost, and not by its script's doing: the script is run again from its record.

A container, monitor or client that was killed, a machine without memory, a sandbox that fell silent: none is the
script's end. So the script is run again at once, a bounded number of times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp_bridge.executions.record import ExecutionRecord

T = TypeVar("T")

MAX_LOST = 2
"""How often a script is run again at once after its sandbox is lost, or after the script has made that look so."""

LOST_CODES = frozenset({"sandbox_lost", "sandbox_silent"})
"""Error codes of a run that was ended by something other than its script. It is run again."""

KEY_RETAINING_CODES = LOST_CODES | {"sandbox_start_timeout"}
"""Error codes of a run that keeps its key: a request with the key resumes it from its record."""


async def run_with_sandbox_recovery(
    script: T,
    run: Callable[[T], Awaitable[ExecutionRecord]],
    recover: Callable[[T, ExecutionRecord | None, str], Awaitable[T | None]],
) -> tuple[T, ExecutionRecord]:
    """Run a script, and again from its record if its sandbox is lost.

    Args:
        script: What is run.
        run: Runs it once, in a sandbox of its own.
        recover: The same script from its record, by the lost run's record, or None where no sandbox was started, and
            the cause; None if it isn't to be run again.

    Returns:
        What was run last, and its record.

    Raises:
        BridgeError: As `run`; `sandbox_start_failed` each time.
    """
    for lost in range(MAX_LOST + 1):
        record = None
        try:
            record = await run(script)
        except BridgeError as exc:
            if exc.code != "sandbox_start_failed" or lost == MAX_LOST:
                raise
            cause = exc.message
        else:
            if lost:
                record.notices.append(_again(lost))
            if lost == MAX_LOST:
                break
            cause = record.error["message"] if record.error else ""
        recovered = await recover(script, record, cause)
        if recovered is None:
            break
        script = recovered
    assert record is not None  # the last round returns or raises
    return script, record


def is_lost(record: ExecutionRecord) -> bool:
    """Whether something else than the script has ended its run."""
    return record.error is not None and record.error["code"] in LOST_CODES


def as_lost_unless_waiting(record: ExecutionRecord, *, is_waiting: bool) -> ExecutionRecord:
    """A record; of a run that was ended for waiting, and doesn't wait any more, that its sandbox is lost.

    Nothing is down that it could go on by, but what it has done.
    """
    if record.status == "suspended" and not is_waiting:
        message = "The sandbox was ended in the moment in which the script no longer waited."
        record.status, record.exit_code = "sandbox_lost", 137
        record.error = BridgeError("sandbox_lost", message).record()
    return record


def _again(lost: int) -> str:
    times = "once" if lost == 1 else "twice" if lost == 2 else f"{lost} times"  # noqa: PLR2004
    return f"its sandbox was lost {times}, and not by the script's doing: it was run again from its record"
