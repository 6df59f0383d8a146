"""What went wrong with a server, in words and codes for its user.

These errors reach the sandbox, whole but for `private`: what a server wrote to stderr may hold its secrets, and where
it is configured tells of the host. Both are for the operator. Of what a server has printed that didn't start, its last
lines are in the error, if there is somebody who takes out its secrets (`Shown`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.downstream.client.connection import Connection
    from mcp_bridge.downstream.configuration.spec import ServerSpec

logger = logging.getLogger(__name__)

# How a process ended is known a moment after its pipes have.
_EXIT_STATUS_WAIT = 0.2
_EXIT_STATUS_POLL = 0.01

_INVALID_PARAMS = -32602

# How much of a decoder's complaint is passed on.
_REASON = 500

_OUTPUT_LINES = 8
_OUTPUT_COLUMNS = 240
"""What of a server's output is in the error of its start."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|.)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Colours, titles and other controls."""

_FRAME = re.compile(r"\s+at .*\)?$|\s*\^+\s*$")
"""Lines of a JavaScript stack, which comes after what has happened."""

Shown = Callable[["ServerSpec", Mapping[str, str], str], str]
"""From a server, the variables that it was given and what it has printed to the same without secrets."""

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


def start_failure(spec: ServerSpec, launched: Sequence[Connection], shown: Shown | None = None) -> BridgeError:
    """It was started and did not get ready.

    Args:
        spec: The server.
        launched: Its processes of this start, of which the last one's end counts.
        shown: What makes its output fit to be told; None if it isn't.
    """
    connection = launched[-1]
    failure = connection.failure
    hint: str | None = f"Mend its configuration; {_SHOW_MORE}."
    private = _private(spec, connection)
    told = [lines for each in reversed(launched) if (lines := _printed(spec, each, shown))]
    output = told[0] if told else []
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
        hint = _slow_hint(spec)
    elif status := connection.transport.exit_status():
        why = f"it ended with {status} before it was ready."
        if _could_not_fetch(spec, connection.transport.log.text()):
            why = f"{_runner(spec)} could not fetch its package ({status})."
            hint = (
                "Check the package's name, the registry, and the proxy and certificate variables of the network "
                f"that the bridge is started with; {_SHOW_MORE}."
            )
    else:
        why = f"{connection.transport.end_reason or failure or 'its connection ended'}."
    message = f"server {spec.name!r} did not start: {why}"
    if output:
        message = "\n  ".join([f"{message} It printed:", *output]) + "\n"
    details = _exit(connection) | ({"output": output} if output else {})
    return error(spec, "server_start_failed", message, hint=hint, private=private, **details)


def first_line(message: str) -> str:
    """An error's message without what the server has printed."""
    return message.partition("\n")[0].removesuffix(" It printed:")


def _printed(spec: ServerSpec, connection: Connection, shown: Shown | None) -> list[str]:
    """The last lines that a process has printed, without secrets; none where nobody takes them out."""
    if shown is None:
        return []
    # All of it first: a secret that was cut through can't be found any more.
    text = shown(spec, connection.transport.environment, _ESCAPES.sub("", connection.transport.log.text()))
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
    return [line[:_OUTPUT_COLUMNS] for line in lines[-_OUTPUT_LINES:]]


_RUNNERS = frozenset({"npx", "npm", "pnpm", "bunx", "uvx", "uv", "pipx"})

_NOT_FETCHED = re.compile(
    r"npm (?:error|ERR!) (?:code )?(?:E404|ENOTFOUND|ETARGET|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|E40[13]"
    r"|SELF_SIGNED_CERT_IN_CHAIN|UNABLE_TO_[A-Z_]*CERT[A-Z_]*|DEPTH_ZERO_SELF_SIGNED_CERT|CERT_[A-Z_]+|ERR_[A-Z_]*TLS[A-Z_]*)\b"
    r"|not found in the (?:package )?registry|No solution found when resolving|Failed to (?:fetch|download)"
    r"|Could not find a version that satisfies|No matching distribution found"
)


def _runner(spec: ServerSpec) -> str:
    return PurePath(spec.command).name


def _could_not_fetch(spec: ServerSpec, printed: str) -> bool:
    return _runner(spec) in _RUNNERS and _NOT_FETCHED.search(printed) is not None


def _slow_hint(spec: ServerSpec) -> str:
    if _runner(spec) in _RUNNERS:
        return (
            f"{_runner(spec)} may still be fetching its package: start it once by hand, or give it a longer "
            f"start_timeout in its configuration; {_SHOW_MORE}."
        )
    return f"A slow server needs a longer start_timeout in its configuration; {_SHOW_MORE}."


def _too_large(failure: BaseException | None, connection: Connection) -> str:
    """The size and the limit of what it answered before it was ready, if it was that; else empty."""
    # Loaded already: a connection exists.
    from mcp_bridge.downstream.client.connection import OversizedResult  # noqa: PLC0415

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
    from mcp_bridge.downstream.client.connection import MCPError, OversizedResult  # noqa: PLC0415

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
