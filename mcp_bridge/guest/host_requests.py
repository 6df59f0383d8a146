"""Requests to the host for a script, and the errors that the script gets instead of an answer."""

from mcp_bridge.guest.channel import Channel, RequestError
from mcp_bridge.wire.annotations import Any, Callable
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import ToolCall


class MCPError(Exception):
    """Something that a call to the outside met. `code` is stable; `details` is a dict."""

    def __init__(self, message: str, *, code: str = "error", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = details or {}


class ToolError(MCPError):
    """A tool reported an error, or could not be called."""

    def __init__(
        self, message: str, *, server: str, tool: str, code: str = "tool_error", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message, code=code, details=details)
        self.server = server
        self.tool = tool


def call_host(channel: Channel, params: Any) -> Any:
    """A request's result, for the script.

    Raises:
        MCPError: The host answered with an error, or the request can't be sent.
    """
    return answered(lambda: channel.request(params))


def answered(ask: Callable[[], Any]) -> Any:
    """What `ask` gives, for the script.

    Raises:
        MCPError: As `call_host`.
    """
    try:
        return ask()
    except LocalMessageError as exc:
        raise MCPError(str(exc), code=exc.code) from None
    except RequestError as exc:
        data = dict(exc.data)
        raise MCPError(exc.message, code=data.pop("code", "error"), details=data) from None


def notify_host(channel: Channel, params: Any) -> None:
    """Send a notification for the script.

    Raises:
        MCPError: It can't be sent.
    """
    try:
        channel.notify(params)
    except LocalMessageError as exc:
        raise MCPError(str(exc), code=exc.code) from None


def tool_error(request: ToolCall, exc: RequestError | LocalMessageError) -> ToolError:
    """The error of a call that failed."""
    if isinstance(exc, LocalMessageError):
        return ToolError(
            f"{request.server}.{request.tool}: {exc}", server=request.server, tool=request.tool, code=exc.code
        )
    data = dict(exc.data)
    code = data.pop("code", "tool_error")
    return ToolError(exc.message, server=request.server, tool=request.tool, code=code, details=data)


for _public in (MCPError, ToolError):
    _public.__module__ = "mcp"
