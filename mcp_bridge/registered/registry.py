"""The registered tools, listed as the server `local`."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.catalog.bound_tool import ToolResult
from mcp_bridge.downstream.catalog.describe import call_hint
from mcp_bridge.downstream.catalog.tools import Listing, listing_from_wire
from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import did_you_mean, nearest
from mcp_bridge.registered.calling import SERVER, CallOutcome, RegisteredTool
from mcp_bridge.registered.declaring import bad_tool
from mcp_bridge.registered.return_values import MAX_RESULT_BYTES
from mcp_bridge.registered.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_bridge.downstream.catalog.bound_tool import Listener
    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.registered.declaring import Declaration

MAX_THREADS = 32
"""How many synchronous tools run at the same time; further calls wait for a thread."""


class Registry:
    """The tools by name. May be used from one event loop at a time.

    Attributes:
        tools: The compiled tools in the order of their declaration.
    """

    def __init__(
        self,
        declarations: Iterable[Declaration] = (),
        *,
        max_result_bytes: int = MAX_RESULT_BYTES,
        max_threads: int = MAX_THREADS,
    ) -> None:
        """Compile tools.

        Args:
            declarations: The tools; duplicates count once.
            max_result_bytes: The maximum size of a result, in bytes of JSON.
            max_threads: How many synchronous tools run at the same time.

        Raises:
            BridgeError: `bad_tools`: two tools with one name, or one whose annotations have no JSON Schema.
        """
        tools: dict[str, RegisteredTool] = {}
        for declaration in declarations:
            other = tools.get(declaration.name)
            if other is None:
                tools[declaration.name] = RegisteredTool(declaration, max_result_bytes)
            elif other.declaration is not declaration:
                raise _two_of_one_name(other.declaration, declaration)
        self.tools: Mapping[str, RegisteredTool] = MappingProxyType(tools)
        self._threads = Threads(max_threads)
        self._listing = listing_from_wire(SERVER, SERVER, [_on_the_wire(tool) for tool in tools.values()])
        self._by_alias = {row.alias: tools[row.name] for row in self._listing.tools}
        self._rows = {row.name: row for row in self._listing.tools}

    def listing(self) -> Listing:
        """The tools in the form of a server's listing. Unlike a server's, these annotations are trusted."""
        return self._listing

    def bind(self, name: str) -> BoundFunction:
        """The tool of this name, or else of this alias, as `BoundTool`.

        Raises:
            BridgeError: As `find`.
        """
        tool = self.find(name)
        return BoundFunction(self._rows[tool.declaration.name], tool, self._threads)

    def find(self, name: str) -> RegisteredTool:
        """The tool with this name, or else with this alias.

        Raises:
            BridgeError: `unknown_tool`, with the nearest names.
        """
        tool = self.tools.get(name) or self._by_alias.get(name)
        if tool is None:
            close = nearest(name, [*self.tools, *self._by_alias])
            raise BridgeError(
                "unknown_tool",
                f"server {SERVER!r} has no tool {name[:100]!r}.",
                hint=did_you_mean(close, list(self.tools)),
                server=SERVER,
                tool=name[:100],
                nearest=close,
            )
        return tool

    async def call(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> CallOutcome:
        """Call a tool.

        Args:
            name: The tool's name or alias.
            arguments: JSON values by the schema's names.
            timeout: Seconds that the call may take, if less than the tool's own limit. Waiting for a thread counts.

        Returns:
            The result as plain JSON, or that it is pending. The answer of a tool that returns while it is being
            cancelled is used.

        Raises:
            BridgeError: `unknown_tool`; `bad_arguments`, with the signature; `tool_unavailable`: too many abandoned
                calls; `tool_busy`: no thread was available; `tool_timeout`, with `still_running`; `tool_error`: an
                exception of the tool; `bad_tool_result`: the result isn't JSON.
                After the last three, the tool may have had an effect; with the others it was not started.
        """
        bound = self.bind(name)
        return await bound.called(await bound.prepare(arguments or {}), timeout)


class BoundFunction:
    """A registered tool, as `BoundTool`. It is as it was listed for as long as the process lives.

    Args:
        info: The tool as it is listed.
        tool: The tool itself.
        threads: Where it runs, if it is synchronous.
    """

    __slots__ = ("_threads", "_tool", "info")

    is_operators = True

    def __init__(self, info: ToolInfo, tool: RegisteredTool, threads: Threads) -> None:
        self.info = info
        self._tool = tool
        self._threads = threads

    async def current(self) -> BoundFunction:
        """As `BoundTool.current`."""
        return self

    async def prepare(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """As `BoundTool.prepare`: the function's own parameters."""
        try:
            return await self._tool.prepare(arguments)
        except BridgeError as error:
            if error.code == "bad_arguments":
                error.hint = call_hint(self.info)
            raise

    async def call(
        self, prepared: dict[str, Any], _listener: Listener | None = None, *, raw: bool = False
    ) -> ToolResult:
        """As `BoundTool.call`. A function says nothing while it works."""
        value, is_pending = await self.called(prepared)
        value = "PENDING" if is_pending else value
        if not raw:
            return ToolResult(value, {}, is_pending)
        text = value if isinstance(value, str) else json.dumps(value)
        return ToolResult(value, {"content": [{"type": "text", "text": text}]}, is_pending)

    async def called(self, prepared: dict[str, Any], timeout: float | None = None) -> CallOutcome:
        """Call it; see `Registry.call`."""
        return await self._tool.call(prepared, timeout, self._threads)


def _on_the_wire(tool: RegisteredTool) -> dict[str, Any]:
    declaration = tool.declaration
    return {
        "name": declaration.name,
        "description": declaration.description,
        "inputSchema": tool.arguments.schema,
        "outputSchema": tool.results.schema,
        "annotations": {"readOnlyHint": declaration.read_only, "idempotentHint": declaration.idempotent},
    }


def _two_of_one_name(first: Declaration, second: Declaration) -> BridgeError:
    return bad_tool(
        second.location,
        f"there is a tool {second.name!r} already, at {first.location}",
        "Give one of them another name: @mcp_bridge.tool(name=…).",
        tool=second.name,
        other={"file": first.location.file, "line": first.location.line},
    )
