"""Calls of a server's tools: bound, checked against their schemas, sent, and sent once more if they surely weren't."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, ArgumentError, UncheckedError
from mcp_bridge.downstream.catalog.bound_tool import ToolResult
from mcp_bridge.downstream.catalog.describe import call_hint
from mcp_bridge.downstream.catalog.resource_tools import ResourceTool
from mcp_bridge.downstream.client import server_errors
from mcp_bridge.downstream.client.supervised_server import SupervisedServer
from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import on_thread, time_limit

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from mcp_bridge.downstream.catalog.bound_tool import Listener
    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.downstream.client.connection_interface import ServerConnection


class ListedTool:
    """A tool of a server, as `BoundTool`.

    Args:
        server: The server.
        info: The tool as it lists it, or as it did when it last ran.
    """

    __slots__ = ("_server", "info")

    is_operators = False

    def __init__(self, server: DownstreamServer, info: ToolInfo) -> None:
        self._server = server
        self.info = info

    async def current(self) -> ListedTool:
        """As `BoundTool.current`. Starts the server, if it doesn't run."""
        listed = await self._server.listed(self.info.name)
        return self if listed is self.info else ListedTool(self._server, listed)

    async def prepare(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """As `BoundTool.prepare`."""
        await self._server.check(self.info, arguments)
        return arguments

    async def call(
        self, prepared: dict[str, Any], listener: Listener | None = None, *, raw: bool = False
    ) -> ToolResult:
        """As `BoundTool.call`."""
        result = await self._server.call_tool(self.info, prepared, listener=listener)
        from mcp_bridge.downstream.catalog.tool_results import convert, is_slow_to_convert  # noqa: PLC0415  (needs the SDK, loaded by now)

        converting = functools.partial(convert, result, self.info, raw=raw)
        converted = await on_thread(converting) if is_slow_to_convert(result) else converting()
        if converted["is_error"]:
            value = converted["value"]
            message = value if isinstance(value, str) else "the tool reported an error without a text"
            raw_result = converted["raw"]
            details = {name: raw_result[name] for name in ("content", "structuredContent") if name in raw_result}
            if self._server.spec.openapi is not None:
                from mcp_bridge.downstream.openapi.responses import error_details  # noqa: PLC0415  (as above)

                details |= error_details(result)
            raise BridgeError("tool_error", message, raw=raw_result, **details)
        return ToolResult(converted["value"], converted["raw"] if raw else {})


class DownstreamServer(SupervisedServer):
    """One configured server, and the calls of its tools. Created by a `Fleet`, whose task group runs its tasks."""

    def bound(self, tool: ToolInfo) -> ListedTool:
        """A tool of this server, to be called."""
        return ListedTool(self, tool)

    async def check(self, tool: ToolInfo, arguments: dict[str, Any]) -> None:
        """Return if arguments match a tool's schema.

        Raises:
            BridgeError: `bad_arguments`, with all faults and the tool's signature; `arguments_unchecked`: they can't be
                checked against the schema.
        """
        try:
            await self.argument_check(tool).run(arguments)
        except UncheckedError as error:
            message = f"{self.spec.name}.{tool.name}: the arguments can't be checked, so it isn't called: {error}."
            hint = "Pass less, or have the server's author mend the tool's input schema."
            raise server_errors.error(self.spec, "arguments_unchecked", message, hint=hint, tool=tool.name) from None
        except ArgumentError as error:
            message = f"{self.spec.name}.{tool.name}: {error}."
            raise server_errors.error(
                self.spec, "bad_arguments", message, hint=call_hint(tool), tool=tool.name
            ) from None

    async def call_tool(
        self,
        tool: ToolInfo,
        arguments: dict[str, Any],
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> CallToolResult:
        """Call a tool. Starts the server if necessary.

        Args:
            tool: The tool as it was listed when the call was decided; it is refused if it is listed differently now.
            arguments: Argument values by the schema's names. They have passed `check`.
            timeout: Seconds that the call may take once the server is ready (its start has its own limit); by default
                the configured `call_timeout`.
            listener: Who it is made for, and is told what the server says meanwhile; None for the bridge itself.

        Returns:
            The server's answer, which may have `is_error` set.

        Raises:
            BridgeError: `server_start_failed`, `server_unavailable`, `unknown_tool`, `tool_changed`, `bad_arguments`
                (refused by the server), `tool_timeout`, `server_died`, `tool_cancelled` (the server was stopped
                meanwhile), `result_too_large`, `bad_result` (not a tool result), `tool_failed` (a protocol error as
                answer).
        """
        connection = self._connection
        is_as_listed = self._by_name.get(tool.name) is tool and connection is not None and connection.usable
        if not is_as_listed or connection is None or self._has_unlisted_changes(connection):
            # The decision, or the check of the arguments, may have taken its time.
            now, connection = await self._listed(tool.name)
            if now != tool:
                raise self._changed(now)
        limit = self.spec.call_timeout if timeout is None else timeout
        deadline = anyio.current_time() + limit
        try:
            return await self._call(connection, tool, arguments, limit, listener)
        except server_errors.NotSentError:
            # Nothing of it has reached the server's tools: another connection may be better.
            now, connection = await self._listed(tool.name)
            if now != tool:
                raise self._changed(now) from None
            if (left := deadline - anyio.current_time()) <= 0:
                raise
            return await self._call(connection, tool, arguments, left, listener)

    def _changed(self, now: ToolInfo) -> BridgeError:
        message = f"{self.spec.name} lists {now.name} in another form than when the call was decided."
        hint = f"Nothing was called. Call it as it is now. {call_hint(now)}"
        return server_errors.error(self.spec, "tool_changed", message, hint=hint, tool=now.name)

    async def _parameters_refused(
        self, connection: ServerConnection, tool: ToolInfo, error: BridgeError, deadline: float
    ) -> BridgeError:
        """The error for a call whose parameters a server has refused: it may have changed its tools unannounced.

        Args:
            connection: Where it was refused.
            tool: The tool as it was called.
            error: The error as the server has it.
            deadline: When the call's time is over. A listing that takes longer is not waited for.
        """
        if connection.usable and self._is_due(connection):
            with anyio.move_on_after(max(0.0, deadline - anyio.current_time())):
                await self._relist(connection)
        now = self._by_name.get(tool.name)
        if now is None:
            return self._unknown(tool.name, self._by_name)
        return error if now == tool else self._changed(now)

    def argument_check(self, tool: ToolInfo) -> ArgumentCheck:
        """The compiled check of a tool's arguments; compiled once for each listing."""
        known = self._checks.get(tool.name)
        if known is None or known[0] is not tool:
            known = self._checks[tool.name] = (tool, ArgumentCheck(tool.input_schema))
        return known[1]

    async def _call(
        self,
        connection: ServerConnection,
        tool: ToolInfo,
        arguments: dict[str, Any],
        limit: float,
        listener: Listener | None,
    ) -> CallToolResult:
        began = anyio.current_time()
        while began in connection.in_flight:
            began += 1e-9
        connection.in_flight.add(began)
        result: Any = None
        try:
            with time_limit(limit):
                if isinstance(tool, ResourceTool):
                    result = await connection.call_resource_tool(tool, arguments, listener)
                else:
                    result = await connection.call(tool.name, arguments, listener)
        except Exception as error:  # noqa: BLE001 - each kind gets its code
            failure = await server_errors.call_failure(
                self.spec, connection, tool, error, limit=self._max_result_bytes, mask_output=self._mask_output
            )
            if failure.details.get("rpc_code") == server_errors.INVALID_PARAMS:
                failure = await self._parameters_refused(connection, tool, failure, began + limit)
            raise failure from None
        finally:
            connection.in_flight.discard(began)
            connection.last_used = anyio.current_time()
        if result is None:
            self._spawn(self._check_liveness, connection)
            message = f"{self.spec.name}.{tool.name} gave no answer within {limit:g} s; it was cancelled."
            raise server_errors.error(self.spec, "tool_timeout", message, tool=tool.name, timeout=limit)
        connection.calls_done += 1
        self._failures = 0
        if not hasattr(result, "is_error"):
            message = f"{self.spec.name}.{tool.name} asks for input from a person, which is not supported."
            raise server_errors.error(self.spec, "tool_failed", message, tool=tool.name)
        if result.is_error and self.spec.openapi is None and connection.usable and self._is_due(connection):
            # It may say so of a tool that it has no more. What it says is passed on: there may have been effects.
            self._spawn(self._relist, connection)
        return result  # type: ignore[no-any-return]
