"""Which transport, and which era of the protocol, a server is spoken to: as configured, or as its starts have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.downstream.client.server_errors import remote_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.downstream.client.connection_interface import ServerConnection
    from mcp_bridge.downstream.configuration.spec import ServerSpec, ServerType


class TransportChoice:
    """What a server is spoken to.

    A remote server of the type `auto` speaks one of the two HTTP transports, streamable HTTP or server-sent events, and
    says which by how it refuses the other (specification, backwards compatibility).

    Args:
        spec: The server's configuration.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._speaks_sse = False
        self._speaks_legacy_only = False
        self._tried_first = 0

    @property
    def kind(self) -> ServerType:
        """The transport."""
        return "sse" if self._speaks_sse or self._spec.type == "sse" else self._spec.type

    @property
    def era(self) -> str:
        """The era of the protocol that a start begins with: `auto`, `legacy` or a modern version."""
        if self._spec.openapi is not None:
            # It speaks none of them: there is nothing to try.
            return "legacy"
        return "legacy" if self._speaks_legacy_only and self._spec.era == "auto" else self._spec.era

    def mode(self, era: str) -> str:
        """The era in which a connection of this transport is made, when a start asks for one."""
        # Server-sent events are of the old era.
        return "legacy" if self.kind == "sse" and era == "auto" else era

    def try_other(self, launched: Sequence[ServerConnection]) -> bool:
        """Choose the other one of the two HTTP transports, if the server may speak that; whether it may.

        Args:
            launched: The connections of a start of which none is ready.
        """
        self._tried_first = 0
        if self._spec.type != "auto" or _transport_mismatch(launched) is None:
            return False
        self._tried_first = len(launched)
        self._speaks_sse = not self._speaks_sse
        return True

    def relevant_attempts(self, launched: Sequence[ServerConnection]) -> Sequence[ServerConnection]:
        """The connections of a start that has failed, up to the one that says why.

        A server that refuses the other transport, too, doesn't speak that: why the first one failed is the reason, and
        the next start begins with it again.
        """
        first, last = _transport_mismatch(launched[: self._tried_first]), _transport_mismatch(launched)
        if first is None or last is None or (first, last) == ("refused", "bad_answer"):
            return launched
        self._speaks_sse = not self._speaks_sse
        return launched[: self._tried_first]

    def learn(self, connection: ServerConnection) -> None:
        """Note in which era a server has become ready."""
        self._speaks_legacy_only = self._spec.era == "auto" and connection.mode == "legacy"


def _transport_mismatch(launched: Sequence[ServerConnection]) -> str | None:
    """How the last of some connections has shown that the server may speak another transport, or None."""
    failure = remote_failure(launched[-1].failure) if launched else None
    return failure.kind if failure is not None and failure.kind in {"refused", "bad_answer"} else None
