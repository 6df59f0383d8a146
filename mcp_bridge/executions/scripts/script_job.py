"""A script to run, and the client that it runs for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mcp_bridge.executions.client import Client
from mcp_bridge.executions.sessions.cell import Cell, stored_packages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.errors import BridgeError
    from mcp_bridge.ledger.storage.execution_store import StoredExecution
    from mcp_bridge.sandbox.languages import Language
    from mcp_bridge.sandbox.packages.package_set import PackageSet


@dataclass(frozen=True, slots=True)
class Job:
    """A script to run.

    Attributes:
        code: Its source.
        servers: Names or aliases of the servers that it may use; None for all.
        timeout: Seconds of its own time; None for the configured ones.
        client: Who has it run.
        cell: Its place in a session, or None.
        head: Of a new cell: the session's last one, which it follows; empty for a new session.
        dry_run: Whether it is only to read, and to list what else it would call. A stored one that began with a dry run
            may be past it.
        has_no_suspended_cell: Of a new cell: as `Turn.has_no_suspended_cell`.
        blocked: Of a new cell: why none can begin now, but one that waits can go on; or None.
        files: Names of the inputs that it may read; None for all.
        requirements: The packages that are asked for, valid, in their normal form; empty for none.
        packages: The package set that its sandbox has, once that is known: of a stored script, what it began with.
        language: What it is written in.
        offered: Of a stored script: the aliases of the servers that it was told of, by their names; None if that isn't
            stored.
    """

    code: str
    servers: Sequence[str] | None = None
    timeout: float | None = None
    client: Client = field(default_factory=Client)
    cell: Cell | None = None
    head: str = ""
    has_no_suspended_cell: bool = False
    blocked: BridgeError | None = None
    dry_run: bool = False
    files: Sequence[str] | None = None
    requirements: tuple[str, ...] = ()
    packages: PackageSet | None = None
    language: Language = "python"
    offered: Mapping[str, str] | None = None

    @classmethod
    def from_stored(cls, stored: StoredExecution, client: Client) -> Job:
        """A stored script for a client. Everything else is as it was started."""
        bundle = stored.bundle
        client = replace(client, starter=stored.starter)
        cell = Cell.of(stored)
        return cls(
            bundle["code"],
            bundle["servers"],
            bundle["timeout"],
            client,
            cell,
            dry_run=bundle.get("dry_run", False),
            files=bundle.get("files"),
            packages=stored_packages(bundle) if cell is None else cell.packages,
            language=bundle.get("language", "python"),
            offered=bundle.get("offered"),
        )
