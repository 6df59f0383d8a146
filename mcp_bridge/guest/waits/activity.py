"""What a script does while it waits: the host asks, and ends no sandbox in which something still runs."""

from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.waits.processor_time import processor_seconds
from mcp_bridge.wire.annotations import Any
from mcp_bridge.wire.messages import ActivityReport


def tell(number: int, channel: Channel) -> None:
    """Report the script's activity to the host. A script that can't report is treated as computing.

    Args:
        number: The question's.
        channel: The channel, by whose answers the script's event loops are known.
    """
    try:
        processor = processor_seconds()
    except OSError:
        return
    timers = [seconds for loop in set(channel.loops()) if (seconds := _next_timer(loop)) is not None]
    channel.notify(ActivityReport(number, processor, min(timers, default=None)))


def _next_timer(loop: Any) -> float | None:
    """How soon the next timer of an event loop ends; None without one, and for a loop that isn't asyncio's own."""
    # Copied: the loop goes on meanwhile.
    timers = list(getattr(loop, "_scheduled", ()))
    ends = [timer.when() for timer in timers if not timer.cancelled()]
    return max(0.0, min(ends) - loop.time()) if ends else None
