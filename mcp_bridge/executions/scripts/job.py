"""A script to run, and the client that it runs for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mcp_bridge.executions.commands import Client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.ledger.storage.execution_store import StoredExecution


@dataclass(frozen=True, slots=True)
class Job:
    """A script to run.

    Attributes:
        code: Python source.
        servers: Names or aliases of the servers that it may use; None for all.
        timeout: Seconds of its own time; None for the configured ones.
        client: Who has it run.
    """

    code: str
    servers: Sequence[str] | None = None
    timeout: float | None = None
    client: Client = field(default_factory=Client)

    @classmethod
    def from_stored(cls, stored: StoredExecution, client: Client) -> Job:
        """A stored script for a client. Code, servers, time and starter are those that it was started with."""
        bundle = stored.bundle
        client = replace(client, starter=stored.starter)
        return cls(bundle["code"], bundle["servers"], bundle["timeout"], client)
