"""The registered tools together, presented as the server `local`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.catalog.aliases import did_you_mean, nearest
from mcp_bridge.downstream.catalog.describe import called_as
from mcp_bridge.downstream.catalog.tools import Listing, listing_from_wire
from mcp_bridge.errors import BridgeError
from mcp_bridge.registered.calling import SERVER, Called, RegisteredTool
from mcp_bridge.registered.declaring import bad_tool
from mcp_bridge.registered.results import MAX_RESULT_BYTES
from mcp_bridge.registered.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_bridge.registered.declaring import Declaration

MAX_THREADS = 32
"""Synchronous tools that run at the same time; further calls wait for a thread."""


class Registry:
    """The tools, by name. To be called from one event loop at a time.

    Attributes:
        tools: Compiled, in the order they were declared.
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
            declarations: The tools; one that is there twice counts once.
            max_result_bytes: Bytes of JSON one result may have.
            max_threads: Synchronous tools that run at the same time.

        Raises:
            BridgeError: `bad_tools`: two of one name, or one whose annotations make no schema.
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
        """The tools as a server lists them. Unlike a server's, these annotations are the operator's own word."""
        return self._listing

    def find(self, name: str) -> RegisteredTool:
        """The tool of this name, or else of this alias.

        Raises:
            BridgeError: `unknown_tool`, with the nearest names.
        """
        found = self.tools.get(name) or self._by_alias.get(name)
        if found is None:
            close = nearest(name, [*self.tools, *self._by_alias])
            raise BridgeError(
                "unknown_tool",
                f"server {SERVER!r} has no tool {name[:100]!r}.",
                hint=did_you_mean(close, list(self.tools)),
                server=SERVER,
                tool=name[:100],
                nearest=close,
            )
        return found

    async def call(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Called:
        """Call a tool.

        Args:
            name: Its name, or its alias.
            arguments: JSON values by their names in the schema.
            timeout: Seconds the call may take, if that is less than the tool's own limit. Waiting for a thread counts.

        Returns:
            The result as plain JSON, or that it is pending. A tool that was cancelled for its time and answered while
            it cleaned up has answered.

        Raises:
            BridgeError: `unknown_tool`; `bad_arguments`, with the signature; `tool_unavailable`: too many of its calls
                never ended; `tool_busy`: it was not started, for want of a thread; `tool_timeout`, whose
                `still_running` says whether it runs on; `tool_error`: what it raised; `bad_tool_result`: it returned
                what JSON can't carry.
                The last three leave open what the tool has done; with the others it was not started.
        """
        tool = self.find(name)
        try:
            return await tool.call(arguments or {}, timeout, self._threads)
        except BridgeError as error:
            if error.code == "bad_arguments":
                error.hint = called_as(self._rows[tool.declaration.name])
            raise


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
        second.place,
        f"there is a tool {second.name!r} already, at {first.place}",
        "Give one of them another name: @mcp_bridge.tool(name=…).",
        tool=second.name,
        other={"file": first.place.file, "line": first.place.line},
    )
