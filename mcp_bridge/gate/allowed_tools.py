"""The tools that one execution may use: those of the servers that it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import LOCAL
from mcp_bridge.governance.tool_names import resolve, split
from mcp_bridge.near_names import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mcp_bridge.downstream.catalog.bound_tool import BoundTool
    from mcp_bridge.downstream.catalog.catalog import Catalog

_NAMED = 3
"""Most tools of one name that an error names."""


def narrowed(everything: Mapping[str, str], servers: Sequence[str] | None, missing: Sequence[str]) -> dict[str, str]:
    """The servers that an execution may use, with their aliases.

    Args:
        everything: Configured names of all servers, with their aliases.
        servers: Names or aliases of those that are asked for, which can only leave servers out; None for all.
        missing: What to say of servers that couldn't be read, where one isn't found.

    Raises:
        BridgeError: `unknown_server`.
    """
    if servers is None:
        return dict(everything)
    try:
        return {(name := resolve(asked, everything)): everything[name] for asked in servers}
    except BridgeError as exc:
        if exc.code == "unknown_server" and missing:
            exc.hint = " ".join([exc.hint or "", *missing]).strip()
        raise


class AllowedTools:
    """Finds tools by the names that scripts and programs write.

    Args:
        catalog: All servers and their tools.
        servers: Configured names of the servers that may be used, with their aliases.
        functions: Names of the operator's own tools, which programs may leave the server out of.

    Attributes:
        catalog: All servers and their tools.
        servers: Configured names of the servers that may be used, with their aliases.
    """

    def __init__(self, catalog: Catalog, servers: Mapping[str, str], functions: Collection[str]) -> None:
        self.catalog = catalog
        self.servers = servers
        self._functions = functions

    async def of_step(self, name: str, servers: frozenset[str] | None = None) -> BoundTool:
        """The tool that a step names: `server.tool`, or the plain name of one of the operator's tools.

        Args:
            name: As the step has it.
            servers: The servers that are left to its program; None for all.

        Raises:
            BridgeError: `unknown_tool`, `unknown_server`; as `Catalog.bind`.
        """
        allowed = self.servers
        if servers is not None:
            allowed = {server: alias for server, alias in allowed.items() if server in servers}
        functions = self._functions if LOCAL in allowed else ()
        if name in functions:
            return await self.catalog.bind(LOCAL, name)
        try:
            server, tool = split(name, allowed)
        except BridgeError:
            if "." in name:
                raise
            close = self._listed_by(name, allowed) or nearest(name, functions)
            hint = f"Did you mean {', '.join(close)}?" if close else "A step names server.tool, or a tool of local."
            raise BridgeError("unknown_tool", f"There is no tool {name[:100]!r}.", hint=hint, nearest=close) from None
        if not tool:
            raise BridgeError("unknown_tool", f"{name[:100]!r} is a server; a step names server.tool.")
        return await self.catalog.bind(server, tool)

    def _listed_by(self, name: str, servers: Iterable[str]) -> list[str]:
        """The tools of this plain name, as a step names them. No server is started for that."""
        return [f"{server}.{name}" for server in servers if self.catalog.listed_tool(server, name)][:_NAMED]
