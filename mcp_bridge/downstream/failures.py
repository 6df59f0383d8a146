"""What went wrong with a server, in words and codes for its user.

These errors reach the sandbox, whole but for `private`: what a server wrote to stderr may hold its secrets, and where
it is configured tells of the host. Both are for the operator.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.downstream.connection import Connection
    from mcp_bridge.downstream.spec import ServerSpec
    from mcp_bridge.downstream.tools import ToolInfo

logger = logging.getLogger(__name__)

# How a process ended is known a moment after its pipes have.
_EXIT_STATUS_WAIT = 0.2
_EXIT_STATUS_POLL = 0.01

_INVALID_PARAMS = -32602

# How much of a decoder's complaint is passed on.
_REASON = 500

_SHOW_MORE = "`mcp-bridge servers list --start` shows more"


def error(
    spec: ServerSpec,
    code: str,
    message: str,
    *,
    hint: str | None = None,
    private: Mapping[str, Any] | None = None,
    **details: Any,
) -> BridgeError:
    """An error about one server."""
    return BridgeError(code, message, hint=hint, private=private, server=spec.name, **details)


def again(original: BridgeError) -> BridgeError:
    """A copy to raise: one exception raised in several tasks would mix up their tracebacks."""
    return BridgeError(
        original.code, original.message, hint=original.hint, private=original.private, **original.details
    )


def log(failure: BridgeError) -> None:
    """Tell the operator of a server's failure; what may hold secrets only to one who asked for more than warnings."""
    known = {key: value for key, value in failure.private.items() if key != "stderr"}
    logger.warning("%s%s", failure.message, "".join(f" ({key}: {value})" for key, value in known.items()))
    for line in failure.private.get("stderr", ()):
        logger.info("server %r wrote: %s", failure.details.get("server"), line)


def refusal(spec: ServerSpec) -> BridgeError | None:
    """Why a server can never be started as it is configured, or None."""
    name = spec.name
    if spec.problem is not None:
        message = f"server {name!r} is misconfigured: {spec.problem}"
        hint = f"Mend its configuration; {_SHOW_MORE}."
        private = {"source": spec.source}
        return error(spec, "server_unavailable", message, hint=hint, private=private, reason="misconfigured")
    if not spec.enabled:
        return error(spec, "server_unavailable", f"server {name!r} is disabled.", reason="disabled")
    if spec.type != "stdio":
        message = f"server {name!r} is reached by {spec.type}, which is not supported yet."
        return error(spec, "server_unavailable", message, reason="unsupported")
    return None


def backoff(spec: ServerSpec, wait: float, last: BridgeError | None) -> BridgeError:
    """It failed, and is not tried again yet."""
    message = f"server {spec.name!r} is not running and is tried again in {wait:.1f} s"
    message += f"; last: {last.message}" if last else "."
    extras = {"exit": last.details["exit"]} if last and "exit" in last.details else {}
    private = last.private if last else None
    retry_in = round(wait, 3)
    return error(spec, "server_unavailable", message, private=private, reason="backoff", retry_in=retry_in, **extras)


def start_failure(spec: ServerSpec, connection: Connection) -> BridgeError:
    """It was started and did not get ready."""
    failure = connection.failure
    hint: str | None = f"Mend its configuration; {_SHOW_MORE}."
    private = _private(spec, connection)
    if isinstance(failure, FileNotFoundError | NotADirectoryError) and failure.filename == spec.cwd is not None:
        why = "its working directory is not there."
        private["cwd"] = spec.cwd
    elif isinstance(failure, FileNotFoundError):
        why = f"there is no command {_name(spec.command)!r}."
        private["command"] = spec.command
        hint = "Install it, or give its full path in the configuration."
    elif isinstance(failure, OSError):
        private["command"] = spec.command
        why = f"{_name(spec.command)!r} cannot be run: {failure.strerror or type(failure).__name__}."
    elif large := _too_large(failure, connection):
        # Before how its process ended: we have ended it for that.
        why = f"its listing is too large: {large}."
        hint = f"It has to list less, or in pages; {_SHOW_MORE}."
    elif not connection.settled.is_set():
        why = f"it was not ready after {spec.start_timeout:g} s."
        hint = f"A slow server needs a longer start_timeout in its configuration; {_SHOW_MORE}."
    elif status := connection.transport.exit_status():
        why = f"it ended with {status} before it was ready."
    else:
        why = f"{connection.transport.end_reason or failure or 'its connection ended'}."
    message = f"server {spec.name!r} did not start: {why}"
    return error(spec, "server_start_failed", message, hint=hint, private=private, **_exit(connection))


def _too_large(failure: BaseException | None, connection: Connection) -> str:
    """The size and the limit of what it answered before it was ready, if it was that; else empty."""
    # Loaded already: a connection exists.
    from mcp_bridge.downstream.connection import OversizedResult  # noqa: PLC0415

    data = getattr(failure, "data", None)
    if isinstance(data, OversizedResult):
        limit = f"more than {data.parts}" if data.parts else f"the limit is {connection.transport.max_message}"
        return f"an answer has {data.size} bytes, {limit}"
    return ""


def _name(command: str) -> str:
    """A command without its folder, which is the host's business."""
    return command.rpartition("/")[2]


def death(spec: ServerSpec, connection: Connection, tool: ToolInfo | None = None) -> BridgeError:
    """It ran, and ended by itself."""
    how = connection.transport.exit_status() or connection.transport.end_reason or "it closed its output"
    during = f" in the middle of {tool.name}" if tool else ""
    message = f"server {spec.name!r} died{during} ({how})."
    extras = {"tool": tool.name} if tool else {}
    hint = "The next call starts it again."
    private = _private(spec, connection)
    return error(spec, "server_died", message, hint=hint, private=private, **extras, **_exit(connection))


async def call_failure(
    spec: ServerSpec, connection: Connection, tool: ToolInfo, cause: Exception, *, limit: int
) -> BridgeError:
    """What a call that raised means."""
    # Loaded already: a connection exists.
    from mcp_bridge.downstream.connection import MCPError, OversizedResult  # noqa: PLC0415

    what = f"{spec.name}.{tool.name}"
    if isinstance(cause, MCPError):
        if isinstance(cause.data, OversizedResult):
            if cause.data.parts:
                message = f"{what} answered more than {cause.data.parts}, the limit."
                return error(spec, "result_too_large", message, tool=tool.name, limit=cause.data.parts)
            message = f"{what} answered {cause.data.size} bytes; the limit is {limit}."
            return error(spec, "result_too_large", message, tool=tool.name, limit=limit)
        if connection.stopping is not None:
            message = f"{what} was cancelled: {connection.stopping}."
            return error(spec, "tool_cancelled", message, tool=tool.name)
        if connection.transport.closed.is_set():
            with anyio.move_on_after(_EXIT_STATUS_WAIT):
                while connection.transport.exit_status() is None:  # noqa: ASYNC110 - nothing announces it
                    await anyio.sleep(_EXIT_STATUS_POLL)
            return death(spec, connection, tool)
        code = "bad_arguments" if cause.code == _INVALID_PARAMS else "tool_failed"
        return error(spec, code, f"{what}: {cause.message}", tool=tool.name, rpc_code=cause.code)
    if type(cause).__name__ == "ValidationError":
        message = f"{what} answered something that is not a tool result."
        return error(spec, "bad_result", message, tool=tool.name, reason=str(cause)[:_REASON])
    code = "bad_arguments" if isinstance(cause, ValueError) else "tool_failed"
    return error(spec, code, f"{what}: {cause}", tool=tool.name)


def _exit(connection: Connection) -> dict[str, Any]:
    status = connection.transport.exit_status()
    return {"exit": status} if status else {}


def _private(spec: ServerSpec, connection: Connection) -> dict[str, Any]:
    out: dict[str, Any] = {"source": spec.source} if spec.source else {}
    if stderr := connection.transport.log.tail():
        out["stderr"] = stderr
    return out
