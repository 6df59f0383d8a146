"""What a script does while it waits: the host asks, and ends no sandbox in which something goes on."""

from mcp_bridge.guest.waits.processor_time import processor_seconds
from mcp_bridge.wire.annotations import Any
from mcp_bridge.wire.messages import ActivityReport


def report(number: int, loops: list[Any]) -> ActivityReport:
    """The answer to a question of the host.

    Args:
        number: The question's.
        loops: The event loops in which something waits for the host.
    """
    timers = [seconds for loop in set(loops) if (seconds := _next_timer(loop)) is not None]
    return ActivityReport(number, processor_seconds(), min(timers, default=None))


def _next_timer(loop: Any) -> float | None:
    """How soon the next timer of an event loop ends; None without one, and for a loop that isn't asyncio's own."""
    # Copied: the loop goes on meanwhile.
    timers = list(getattr(loop, "_scheduled", ()))
    ends = [timer.when() for timer in timers if not timer.cancelled()]
    return max(0.0, min(ends) - loop.time()) if ends else None
