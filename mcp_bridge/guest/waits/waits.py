"""`runtime.sleep_until` and `runtime.wait_event`: a long wait gives up the container, and the script resumes later."""

from mcp_bridge.guest.channel import Channel, RequestError
from mcp_bridge.guest.host_requests import MCPError
from mcp_bridge.wire.annotations import Any
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import WaitEvent, WaitUntil


class EventTimeoutError(MCPError, TimeoutError):
    """The event didn't come in time."""


EventTimeoutError.__module__ = "mcp"


def until(when: Any) -> WaitUntil:
    """The request for a time: a datetime with its zone, seconds since 1970, or such a datetime as text (ISO 8601).

    Raises:
        TypeError, ValueError: It is no point in time.
    """
    if isinstance(when, str):
        from datetime import datetime

        try:
            when = datetime.fromisoformat(when.strip())
        except ValueError:
            raise ValueError(
                f"sleep_until(): {when[:100]!r} is no time; write it as '2030-01-31T09:00:00+01:00'"
            ) from None
    if hasattr(when, "timestamp") and hasattr(when, "tzinfo"):
        if when.tzinfo is None or when.utcoffset() is None:
            raise ValueError(
                "sleep_until(): the time has no zone; write datetime.now(timezone.utc) + timedelta(…), or …+01:00"
            )
        return WaitUntil(float(when.timestamp()))
    if isinstance(when, bool) or not hasattr(when, "__float__"):
        raise TypeError(
            f"sleep_until() takes a datetime with its zone, seconds since 1970, or an ISO text, not"
            f" {type(when).__name__}; write: await runtime.sleep_until(time.time() + 3600)"
        )
    return WaitUntil(_finite("sleep_until", "the time", float(when), "time.time() + 3600"))


def event(name: Any, timeout: Any = None) -> WaitEvent:
    """The request for an event.

    Raises:
        TypeError, ValueError: The name is no text, or the time-out is no number of seconds.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"wait_event(): the event's name is a text, not {type(name).__name__}; write: wait_event('paid')"
        )
    if timeout is None:
        return WaitEvent(name)
    if hasattr(timeout, "total_seconds"):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not hasattr(timeout, "__float__"):
        raise TypeError(
            f"wait_event(): timeout is a number of seconds, or None, not {type(timeout).__name__}; write: timeout=3600"
        )
    return WaitEvent(name, _finite("wait_event", "timeout", float(timeout), "timeout=3600, or None for no limit"))


def _finite(function: str, what: str, number: float, example: str) -> float:
    if number - number != 0:  # NaN, or an infinity
        raise ValueError(f"{function}(): {what} is {number}, which is no number of seconds; write: {example}")
    return number


def wait(channel: Channel, request: WaitUntil | WaitEvent) -> Any:
    """Wait, and block this thread. Returns the event's payload; None for a time.

    Raises:
        EventTimeoutError: The event didn't come in time.
        MCPError: The wait was refused.
    """
    try:
        answer = channel.request(request)
    except (RequestError, LocalMessageError) as exc:
        raise _error(exc) from None
    return answer.get("value")


async def wait_async(channel: Channel, request: WaitUntil | WaitEvent) -> Any:
    """As `wait`, without blocking the event loop."""
    try:
        answer = await channel.request_async(request)
    except (RequestError, LocalMessageError) as exc:
        raise _error(exc) from None
    return answer.get("value")


def _error(exc: RequestError | LocalMessageError) -> MCPError:
    if isinstance(exc, LocalMessageError):
        return MCPError(str(exc), code=exc.code)
    data = dict(exc.data)
    code = data.pop("code", "error")
    kind = EventTimeoutError if code == "event_timeout" else MCPError
    return kind(exc.message, code=code, details=data)
