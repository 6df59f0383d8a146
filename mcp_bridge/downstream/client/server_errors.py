"""Errors about a server: codes, messages and hints for its user.

The sandbox sees these errors except for `private`, which is for the operator: a server's stderr may contain secrets,
and the path of its configuration reveals the host. If a server fails to start, or dies, the error quotes the first
and last lines of its output, provided that a function is given that masks its secrets (`MaskOutput`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.downstream.catalog.resource_tools import ResourceTool
from mcp_bridge.downstream.client.log_tail import logger
from mcp_bridge.downstream.configuration.remote_entries import shown_origin
from mcp_bridge.errors import TOO_LARGE_HINT, BridgeError
from mcp_bridge.escaping import escape_name, one_line

if TYPE_CHECKING:
    from pydantic import ValidationError

    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.downstream.client.connection_interface import ServerConnection
    from mcp_bridge.downstream.configuration.inherited_environment import InheritedEnvironment
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.http.http_client import RemoteFailure
    from mcp_bridge.error_codes import Code

# The exit status of a process is known shortly after its pipes have closed.
_EXIT_STATUS_WAIT = 0.2
_EXIT_STATUS_POLL = 0.01

INVALID_PARAMS = -32602

# How protocol versions before 2026-07-28 say that there is no such resource, which is INVALID_PARAMS since.
_RESOURCE_NOT_FOUND = -32002

# Maximum characters of a decoder's message in an error.
_REASON = 200

# Maximum characters of what a server says with an error of its own that are looked at.
_QUOTED = 4_000

# Maximum characters of the data of a JSON-RPC error in an error's details, as JSON.
_DATA_CHARS = 8_000

# A listing of so many pages before a server was ready is what it wasn't ready for.
_MANY_PAGES = 10

_OUTPUT_LINES = 8
_OUTPUT_COLUMNS = 240
"""How much of the end of a server's output the error of a failed start, or of a death, quotes, beside its beginning."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|.)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Terminal escape sequences and other control characters."""

_FRAME = re.compile(r"\s+at .*\)?$|\s*\^+\s*$")
"""Lines of a JavaScript stack trace, which follow the message."""

LOGIN_CODES: frozenset[Code] = frozenset({"login_needed", "login_unavailable"})
"""Failures that end when a person has logged in, or an authorization server answers again."""

MaskOutput = Callable[["ServerSpec", Mapping[str, str], str], str]
"""Masks the secrets in a server's output: called with the server, its environment variables and its output."""

_SHOW_MORE = "`mcp-bridge servers list --start` shows more"


def error(
    spec: ServerSpec,
    code: Code,
    message: str,
    *,
    hint: str | None = None,
    private: Mapping[str, Any] | None = None,
    **details: Any,
) -> BridgeError:
    """An error about one server."""
    return BridgeError(code, message, hint=hint, private=private, server=spec.name, **details)


def copy_to_raise(original: BridgeError) -> BridgeError:
    """A copy of an error to raise: one exception raised in several tasks would mix up their tracebacks."""
    return BridgeError(
        original.code, original.message, hint=original.hint, private=original.private, **original.details
    )


def log(failure: BridgeError) -> None:
    """Log a server's failure. Details that may contain secrets are logged below the level of warnings."""
    known = {key: value for key, value in failure.private.items() if key != "stderr"}
    logger.warning("%s%s", failure.message, "".join(f" ({key}: {value})" for key, value in known.items()))
    for line in failure.private.get("stderr", ()):
        logger.info("server %r wrote: %s", failure.details.get("server"), line)


class NotSentError(BridgeError):
    """A call that certainly hasn't reached the server's tools, and may be made on another connection."""


def configuration_error(spec: ServerSpec, environment: InheritedEnvironment) -> BridgeError | None:
    """Why a server can't be started as configured, or None.

    Args:
        spec: The server.
        environment: The environment that servers are given.
    """
    name = spec.name
    if not spec.enabled:
        return error(spec, "server_unavailable", f"server {name!r} is disabled.", reason="disabled")
    if spec.problem is not None:
        message = f"server {name!r} is misconfigured: {spec.problem}"
        hint = f"Mend its configuration; {_SHOW_MORE}."
        private = {"source": spec.source}
        return error(spec, "server_unavailable", message, hint=hint, private=private, reason="misconfigured")
    return withheld_variable(spec, environment)


def withheld_variable(spec: ServerSpec, environment: InheritedEnvironment) -> BridgeError | None:
    """Why a folder's entry of a remote server may not be used: a variable in it is none for it; or None."""
    if spec.comes_with_folder and (withheld := spec.variables - environment.of(spec).keys()):
        # A folder's entry says where they would be sent.
        message = f"server {spec.name!r} comes with the folder, and may not have the variable {min(withheld)}."
        hint = "Write the server into your own configuration, if it is to have it."
        private = {"source": spec.source}
        return error(spec, "server_unavailable", message, hint=hint, private=private, reason="misconfigured")
    return None


def remote_failure(failure: BaseException | None) -> RemoteFailure | None:
    """What a request to a remote server failed with, if that is why a connection did."""
    # The SDK is loaded already: a connection exists.
    from mcp_bridge.downstream.http.http_client import RemoteFailure, RequestFailedError  # noqa: PLC0415

    if isinstance(failure, RequestFailedError):
        return failure.failure
    data = getattr(failure, "data", None)
    return data if isinstance(data, RemoteFailure) else None


def backoff(spec: ServerSpec, wait: float, last: BridgeError | None) -> BridgeError:
    """The error for a server that failed and isn't started again before the wait has passed."""
    if last is not None and last.code in LOGIN_CODES:
        # It says what to do, and that doesn't depend on the wait.
        return copy_to_raise(last)
    message = f"server {spec.name!r} is not running and is tried again in {wait:.1f} s"
    if last is not None:
        # What a process has printed that was at work is of whoever it worked for.
        message += f"; last: {first_line(last.message) if last.code == 'server_died' else last.message}"
    else:
        message += "."
    extras = {"exit": last.details["exit"]} if last and "exit" in last.details else {}
    private = last.private if last else None
    retry_in = round(wait, 3)
    return error(spec, "server_unavailable", message, private=private, reason="backoff", retry_in=retry_in, **extras)


def start_failure(
    spec: ServerSpec, launched: Sequence[ServerConnection], mask_output: MaskOutput | None = None
) -> BridgeError:
    """The error for a server that was started and did not become ready.

    Args:
        spec: The server's configuration.
        launched: The processes of this start; the last one determines the error.
        mask_output: Masks the server's output; None if output may not be quoted.
    """
    connection = launched[-1]
    failure = connection.failure
    if isinstance(failure, BridgeError):
        return copy_to_raise(failure)
    hint: str | None = f"Mend its configuration; {_SHOW_MORE}."
    private = _private(spec, connection)
    if spec.is_remote:
        return _connect_failure(spec, launched)
    outputs = [lines for each in reversed(launched) if (lines := _masked_output(spec, each, mask_output))]
    output = outputs[0] if outputs else []
    if not_run := _not_run(spec, failure, connection.transport.environment, private):
        why = not_run
        if isinstance(failure, FileNotFoundError) and "command" in private:
            hint = _missing_command_hint(spec, connection.transport.environment)
    elif large := _too_large(failure, connection):
        # Comes before the exit status: the bridge has ended the process because of it.
        why = f"its listing is too large: {large}."
        hint = f"It has to list less, or in pages; {_SHOW_MORE}."
    elif not connection.settled.is_set():
        why, hint = _not_ready(spec, launched)
    elif answered := wrong_answer(failure):
        # So does this. What it quotes is masked as the server's output is.
        why, quoted = answered
        private |= {"answer": quoted[:_REASON]} if quoted else {}
        shown = mask_output(spec, connection.transport.environment, quoted)[:_REASON] if mask_output else ""
        why = f"{why}: {shown}." if shown else f"{why}."
    elif status := connection.transport.exit_status():
        why = f"it ended with {status} before it was ready."
        if _could_not_fetch(spec, connection.transport.log.text()):
            why = f"{_runner(spec)} could not fetch its package ({status})."
            hint = (
                "Check the package's name, the registry, and the proxy and certificate variables of the network "
                f"that the bridge is started with; {_SHOW_MORE}."
            )
    else:
        why = _ended(connection)
    message = f"server {spec.name!r} did not start: {why}"
    if output:
        message = _with_output(message, output)
    details = _exit(connection) | ({"output": output} if output else {})
    return error(spec, "server_start_failed", message, hint=hint, private=private, **details)


def _ended(connection: ServerConnection) -> str:
    # The SDK's errors repeat what a server says, such as the version of the protocol.
    return f"{one_line(str(connection.transport.end_reason or connection.failure or 'its connection ended'), _REASON)}."


def _not_run(
    spec: ServerSpec, failure: BaseException | None, environment: Mapping[str, str], private: dict[str, Any]
) -> str:
    """Why a server's process could not be made; empty if it was. What it names of the host is put into `private`."""
    if isinstance(failure, FileNotFoundError | NotADirectoryError) and failure.filename == spec.cwd is not None:
        private["cwd"] = spec.cwd
        return "its working directory is not there."
    if isinstance(failure, FileNotFoundError):
        private["command"] = spec.command
        if _is_there(spec, environment):
            return f"the interpreter that {_name(spec.command)!r} names in its first line (#!) isn't there."
        if "/" in spec.command:
            return f"there is no {_name(spec.command)!r} at its command's path."
        return f"there is no command {spec.command!r}."
    if where := _unpassable(spec):
        return f"{where} has a character that no process can be given."
    if isinstance(failure, OSError):
        private["command"] = spec.command
        return f"{_name(spec.command)!r} cannot be run: {failure.strerror or type(failure).__name__}."
    return ""


def _missing_command_hint(spec: ServerSpec, environment: Mapping[str, str]) -> str:
    if _is_there(spec, environment):
        return f"Mend the first line of that file, or install what it names; {_SHOW_MORE}."
    if "/" in spec.command:
        return f"Mend the path of its command in the configuration; {_SHOW_MORE}."
    return "Install it, or give its full path in the configuration."


def _is_there(spec: ServerSpec, environment: Mapping[str, str]) -> bool:
    """Whether a command that wasn't found is there: its interpreter isn't, then, for which the system has no error."""
    if "/" in spec.command:
        return Path(spec.cwd or "", spec.command).is_file()
    return shutil.which(spec.command, path=environment.get("PATH")) is not None


def _unpassable(spec: ServerSpec) -> str | None:
    """What of a server's entry can't be handed to a process: a NUL, half a surrogate pair, `=` in a variable's name."""
    texts = [("command", spec.command), ("cwd", spec.cwd)]
    texts += [(f"args[{number}]", text) for number, text in enumerate(spec.args)]
    texts += [("the name of a variable in env", name.replace("=", "\0")) for name in spec.env]
    texts += [(f"env.{escape_name(name)}", value) for name, value in spec.env.items()]
    for where, text in texts:
        try:
            if b"\0" in os.fsencode(text or ""):
                return where
        except UnicodeEncodeError:
            return where
    return None


def _connect_failure(spec: ServerSpec, launched: Sequence[ServerConnection]) -> BridgeError:
    """The error for a remote server that did not become ready."""
    connection = launched[-1]
    failure = connection.failure
    data = getattr(failure, "data", None)
    refused = failure if isinstance(failure, BridgeError) else data if isinstance(data, BridgeError) else None
    if refused is not None:
        return copy_to_raise(refused)
    remote = remote_failure(failure)
    if remote is not None and remote.kind == "unauthorized":
        return _unauthorized(spec, remote)
    hint: str | None = f"Check its url; {_SHOW_MORE}."
    extras: dict[str, Any] = {}
    if not connection.settled.is_set():
        why, hint = _not_ready(spec, launched)
    elif remote is not None:
        why = f"it {remote.reason}.{_wait_wanted(remote)}{_saying(remote)}"
        if remote.settings:
            hint = f"Check {remote.settings} of its entry; {_SHOW_MORE}."
        extras = _retry_in(remote)
    elif large := _too_large(failure, connection):
        why = f"its listing is too large: {large}."
        hint = f"It has to list less, or in pages; {_SHOW_MORE}."
    elif isinstance(failure, OSError):
        why = f"{failure.strerror or type(failure).__name__}."
    elif answered := wrong_answer(failure):
        why = f"{_told(answered)}."
    else:
        why = _ended(connection)
    message = f"server {spec.name!r} at {shown_origin(spec.address or '')} can't be used: {why}"
    private = {"source": spec.source} if spec.source else {}
    return error(spec, "server_start_failed", message, hint=hint, private=private, **extras)


def _unauthorized(spec: ServerSpec, failure: RemoteFailure, tool: ToolInfo | None = None) -> BridgeError:
    message = f"server {spec.name!r} {failure.reason}: it wants other credentials."
    if tool is not None and failure.status == HTTPStatus.FORBIDDEN:
        # A tool may answer so that has done a part of its work.
        message = f"{spec.name}.{tool.name}: the server {failure.reason}. The call may have happened."
    elif spec.openapi is None:
        # Of a service, this may be an operation's own answer, such as that of a login.
        message += " Nothing was called."
    message += _saying(failure)
    extras: dict[str, Any] = {"tool": tool.name} if tool else {}
    where = "credentials, by the names of the document's security schemes," if spec.openapi else "headers"
    hint = f"The operator puts the credentials into the server's {where} in the configuration."
    return error(spec, "server_unauthorized", message, hint=hint, status=failure.status, **extras)


def _saying(failure: RemoteFailure) -> str:
    """What a remote server says of a failure, as a sentence after others; empty if it says nothing."""
    return f" It says: {failure.said}" if failure.said else ""


def _wait_wanted(failure: RemoteFailure) -> str:
    """When a remote server wants to be asked again, as a sentence after others; empty if it doesn't say."""
    return "" if failure.retry_after is None else f" It wants to be asked again in {failure.retry_after:.0f} s."


def _retry_in(failure: RemoteFailure) -> dict[str, Any]:
    return {} if failure.retry_after is None else {"retry_in": failure.retry_after}


def _remote_call_failure(spec: ServerSpec, failure: RemoteFailure, tool: ToolInfo) -> BridgeError:
    """The error for a call that a remote server gave no result to."""
    what = f"{spec.name}.{tool.name}"
    if failure.kind == "unauthorized":
        return _unauthorized(spec, failure, tool)
    if failure.kind in {"unsent", "session"}:
        message = f"{what} was not called: the server {failure.reason}."
        return NotSentError("server_unavailable", message, server=spec.name, tool=tool.name, reason="unreachable")
    if failure.kind == "busy":
        message = f"{what} was not called: the server {failure.reason}, as it takes no more requests for now."
        message += f"{_wait_wanted(failure)}{_saying(failure)}"
        return error(spec, "server_busy", message, tool=tool.name, **_retry_in(failure))
    if failure.kind == "redirected":
        message = f"{what} was not called: the server {failure.reason}."
        return error(spec, "server_unavailable", message, tool=tool.name, reason="redirected")
    if failure.kind == "lost":
        message = f"{what}: the server {failure.reason}. The call may have happened.{_saying(failure)}"
        return error(spec, "connection_lost", message, tool=tool.name)
    if failure.kind == "bad_answer":
        message = f"{what}: the server {failure.reason}. The call may have happened."
        return error(spec, "bad_result", message, tool=tool.name)
    message = f"{what}: the server {failure.reason}.{_saying(failure)}"
    return error(spec, "tool_failed", message, tool=tool.name, status=failure.status)


def first_line(message: str) -> str:
    """The first line of an error's message, without the server's output."""
    return message.partition("\n")[0].removesuffix(" It printed:")


def _with_output(message: str, output: list[str]) -> str:
    return "\n  ".join([f"{message} It printed:", *output]) + "\n"


def _masked_output(spec: ServerSpec, connection: ServerConnection, mask_output: MaskOutput | None) -> list[str]:
    """The first and the last lines of a process's output, masked; empty if there is no function to mask them."""
    if mask_output is None:
        return []
    # Mask all output before cutting it: a secret that was cut in two can't be recognised.
    text = mask_output(spec, connection.transport.environment, _ESCAPES.sub("", connection.transport.log.text()))
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
    return connection.transport.log.excerpt([line[:_OUTPUT_COLUMNS] for line in lines], _OUTPUT_LINES)


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


def _not_ready(spec: ServerSpec, launched: Sequence[ServerConnection]) -> tuple[str, str]:
    """Why a server wasn't ready in time, and what helps."""
    pages = max(connection.pages_listed for connection in launched)
    if pages >= _MANY_PAGES:
        why = f"its list of tools had {pages} pages after {spec.start_timeout:g} s, and no end."
        return why, f"If the list has an end, a longer start_timeout in its configuration helps; {_SHOW_MORE}."
    return f"it was not ready after {spec.start_timeout:g} s (its start_timeout).", _slow_hint(spec)


def _slow_hint(spec: ServerSpec) -> str:
    if not spec.is_remote and _runner(spec) in _RUNNERS:
        return (
            f"{_runner(spec)} may still be fetching its package: start it once by hand, or give it a longer "
            f"start_timeout in its configuration; {_SHOW_MORE}."
        )
    return f"A slow server needs a longer start_timeout in its configuration; {_SHOW_MORE}."


def _too_large(failure: BaseException | None, connection: ServerConnection) -> str:
    """The size and limit of an oversized answer before the server was ready; empty if that wasn't the failure."""
    # The SDK is loaded already: a connection exists.
    from mcp_bridge.downstream.transports.server_messages import OversizedResult  # noqa: PLC0415

    data = getattr(failure, "data", None)
    if isinstance(data, OversizedResult):
        limit = f"more than {data.parts}" if data.parts else f"the limit is {connection.transport.max_message}"
        return f"an answer has {data.size} bytes, {limit}"
    return ""


def wrong_answer(failure: BaseException | None) -> tuple[str, str] | None:
    """What is wrong with a server's answer to another request than a call, and what it says; None if it gave none.

    What it says is on one line, and to be cut: a secret in it can be recognised only as a whole.
    """
    # The SDK is loaded already: a connection exists.
    from mcp.shared.exceptions import MCPError  # noqa: PLC0415
    from mcp_types import CONNECTION_CLOSED  # noqa: PLC0415
    from pydantic import ValidationError  # noqa: PLC0415

    from mcp_bridge.downstream.transports.server_messages import UnreadableResult  # noqa: PLC0415

    if isinstance(failure, ValidationError):
        return f"it answered something that is no {failure.title} of the protocol ({_invalid_part(failure)})", ""
    if isinstance(failure, MCPError) and isinstance(failure.data, UnreadableResult):
        return "it answered something that is no JSON-RPC message", ""
    # Servers have errors of the code by which the SDK says that the connection is closed.
    if isinstance(failure, MCPError) and (failure.code, failure.message) != (CONNECTION_CLOSED, "Connection closed"):
        return f"it answered with the error {failure.code}", one_line(failure.message[:_QUOTED].rstrip("."), _QUOTED)
    return None


def not_listed(failure: Exception) -> str:
    """Why a server that works can't list its tools again."""
    return _told(wrong_answer(failure) or (one_line(str(failure), _REASON), ""))


def _told(answered: tuple[str, str]) -> str:
    why, quoted = answered
    return f"{why}: {quoted[:_REASON]}" if quoted else why


def _name(command: str) -> str:
    """A command without its folder, which would reveal the host's file system."""
    return command.rpartition("/")[2]


def death(
    spec: ServerSpec,
    connection: ServerConnection,
    tool: ToolInfo | None = None,
    *,
    mask_output: MaskOutput | None = None,
) -> BridgeError:
    """The error for a server that was ready and ended by itself.

    Args:
        spec: The server.
        connection: Its process.
        tool: The tool that was being called, or None.
        mask_output: As in `start_failure`. What a process has printed that has worked for several principals isn't
            quoted: it may be about another's call.
    """
    if spec.is_remote:
        during = f" in the middle of {tool.name}: the call may have happened" if tool else ""
        message = f"the connection to server {spec.name!r} ended{during}"
        if connection.transport.end_reason:
            message += f" ({connection.transport.end_reason})"
        extras: dict[str, Any] = {"tool": tool.name} if tool else {}
        return error(spec, "connection_lost", f"{message}.", hint="The next call makes another one.", **extras)
    how = connection.transport.exit_status() or connection.transport.end_reason or "it closed its output"
    during = f" in the middle of {tool.name}" if tool else ""
    message = f"server {spec.name!r} died{during} ({how})."
    extras = {"tool": tool.name} if tool else {}
    if output := _masked_output(spec, connection, None if connection.serves_several else mask_output):
        message, extras = _with_output(message, output), extras | {"output": output}
    hint = "The next call starts it again."
    private = _private(spec, connection)
    return error(spec, "server_died", message, hint=hint, private=private, **extras, **_exit(connection))


async def call_failure(
    spec: ServerSpec,
    connection: ServerConnection,
    tool: ToolInfo,
    cause: Exception,
    *,
    limit: int,
    mask_output: MaskOutput | None = None,
) -> BridgeError:
    """The error for a call that raised an exception.

    Args:
        spec: The server.
        connection: The connection that it was made on.
        tool: The tool.
        cause: The exception.
        limit: The largest result that is accepted, in bytes.
        mask_output: As in `death`.
    """
    # The SDK is loaded already: a connection exists.
    from mcp.shared.exceptions import MCPError  # noqa: PLC0415
    from pydantic import ValidationError  # noqa: PLC0415

    what = f"{spec.name}.{tool.name}"
    told = cause if isinstance(cause, BridgeError) else getattr(cause, "data", None)
    if isinstance(told, BridgeError):
        return copy_to_raise(told)
    if spec.openapi is not None and connection.stopping is not None:
        return error(spec, "tool_cancelled", f"{what} was cancelled: {connection.stopping}.", tool=tool.name)
    if spec.openapi is not None and (remote := remote_failure(cause)) is not None:
        return _remote_call_failure(spec, remote, tool)
    if isinstance(cause, MCPError):
        if (remote := remote_failure(cause)) is not None:
            return _remote_call_failure(spec, remote, tool)
        if (replaced := _replaced(spec, tool, cause.data, limit)) is not None:
            return replaced
        if connection.stopping is not None:
            message = f"{what} was cancelled: {connection.stopping}."
            return error(spec, "tool_cancelled", message, tool=tool.name)
        if connection.transport.closed.is_set():
            with anyio.move_on_after(0 if spec.is_remote else _EXIT_STATUS_WAIT):
                while connection.transport.exit_status() is None:  # noqa: ASYNC110 - nothing announces it
                    await anyio.sleep(_EXIT_STATUS_POLL)
            return death(spec, connection, tool, mask_output=mask_output)
        code: Code = "bad_arguments" if cause.code == INVALID_PARAMS else "tool_failed"
        hint = None
        if isinstance(tool, ResourceTool):
            code = "bad_arguments" if cause.code == _RESOURCE_NOT_FOUND else code
            hint = _resources_hint(connection, tool)
        # The hint is a sentence after the server's words.
        said = f"{cause.message.rstrip('.')}." if hint else cause.message
        data = _data(cause.data)
        return error(spec, code, f"{what}: {said}", hint=hint, tool=tool.name, rpc_code=cause.code, **data)
    if isinstance(cause, ValidationError):
        message = f"{what} answered something that is not a tool result. The call may have happened."
        return error(spec, "bad_result", message, tool=tool.name, reason=_invalid_part(cause))
    code = "bad_arguments" if isinstance(cause, ValueError) else "tool_failed"
    return error(spec, code, f"{what}: {cause}", tool=tool.name)


def _data(data: object) -> dict[str, Any]:
    """What a server says beside an error's message, for details; cut, as the beginning of its JSON, if it is long."""
    try:
        text = json.dumps(data, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return {}
    if data is None:
        return {}
    return {"data": data if len(text) <= _DATA_CHARS else f"{text[:_DATA_CHARS]}…"}


def _resources_hint(connection: ServerConnection, tool: ResourceTool) -> str | None:
    """How to find out which resources can be read, for an error of reading one."""
    if tool.method != "read":
        return None
    listing = (one for one in connection.listing.tools if isinstance(one, ResourceTool) and one.method == "list")
    return next((f"await {one.server_alias}.{one.alias}() lists what there is to read." for one in listing), None)


def _invalid_part(cause: ValidationError) -> str:
    """Which part of an answer isn't as the protocol has it, and by which rule. A sentence would quote the answer."""
    first = cause.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['type']}"[:_REASON]


def _replaced(spec: ServerSpec, tool: ToolInfo, data: object, limit: int) -> BridgeError | None:
    """The error for an answer in whose place the transport has put another; None if it hasn't."""
    from mcp_bridge.downstream.transports.server_messages import OversizedResult, UnreadableResult  # noqa: PLC0415

    what = f"{spec.name}.{tool.name}"
    if isinstance(data, UnreadableResult):
        message = f"{what} answered something that is no JSON-RPC message. The call may have happened."
        return error(spec, "bad_result", message, tool=tool.name)
    if not isinstance(data, OversizedResult):
        return None
    if data.parts:
        message = f"{what} answered more than {data.parts}, the limit."
        return error(spec, "result_too_large", message, hint=TOO_LARGE_HINT, tool=tool.name, limit=data.parts)
    message = f"{what} answered {data.size} bytes; the limit is {limit}."
    return error(spec, "result_too_large", message, hint=TOO_LARGE_HINT, tool=tool.name, limit=limit)


def _exit(connection: ServerConnection) -> dict[str, Any]:
    status = connection.transport.exit_status()
    return {"exit": status} if status else {}


def _private(spec: ServerSpec, connection: ServerConnection) -> dict[str, Any]:
    out: dict[str, Any] = {"source": spec.source} if spec.source else {}
    if stderr := connection.transport.log.tail():
        out["stderr"] = stderr
    return out
