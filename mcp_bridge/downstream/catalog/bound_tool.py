"""A tool and the way to call it: what a call is decided on is what it is made with.

Whoever makes a call looks its tool up once, and gets it bound to its server. A server is a process that speaks MCP
(`server_calls`) or the operator's own functions (`registered.registry`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.downstream.catalog.tools import ToolInfo

    MessageSink = Callable[[str, int | None], None]
    """Takes what a server says: a text, and how severe it is for a log message, as a number; None for progress."""


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """Who a call of a tool is made for, and is told what the server says meanwhile.

    Attributes:
        principal: Whose call it is.
        on_message: Called with each message; None if nobody wants them.
    """

    principal: str
    on_message: MessageSink | None = None


class ToolResult(NamedTuple):
    """What a call of a tool gave.

    Attributes:
        value: The value that Python code gets.
        raw: The whole result by its names on the wire; empty unless it was asked for.
        is_pending: Whether the tool says that its outcome comes later.
    """

    value: Any
    raw: dict[str, Any]
    is_pending: bool = False


class BoundTool(Protocol):
    """A tool as its server listed it when it was looked up, and the way to call it."""

    @property
    def info(self) -> ToolInfo:
        """The tool as it was listed."""

    @property
    def is_operators(self) -> bool:
        """Whether it is the operator's own function: its annotations are believed, and it puts in its own defaults."""

    async def current(self) -> BoundTool:
        """The tool of exactly this name as its server lists it now: this one, if nothing has changed.

        Raises:
            BridgeError: `server_start_failed`, `server_unavailable`, `unknown_tool`.
        """

    async def prepare(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments that fit the tool's schema, as `call` takes them.

        Args:
            arguments: JSON values by their names in the schema.

        Raises:
            BridgeError: `bad_arguments`, `arguments_unchecked`; what a validator of the operator's raises.
        """

    async def call(
        self, prepared: dict[str, Any], listener: Listener | None = None, *, raw: bool = False
    ) -> ToolResult:
        """Call it.

        Args:
            prepared: The arguments, from `prepare`.
            listener: Who it is made for; None for the bridge itself.
            raw: Whether the whole result is wanted.

        Raises:
            BridgeError: `tool_changed`: it is listed otherwise by now, and wasn't called; what became of the call.
        """
