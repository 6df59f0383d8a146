"""The values of one execution: references for secrets and sensitive values, and the values behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.to_thread

from mcp_bridge.offload import off_loop
from mcp_bridge.policy.redaction.projection import Projector
from mcp_bridge.policy.secrets.value_references import MemoryReferences
from mcp_bridge.policy.secrets.vault import Secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcp_bridge.policy.redaction.patterns import Pattern
    from mcp_bridge.policy.secrets.known_values import Scalar
    from mcp_bridge.policy.secrets.vault import Vault


class ExecutionValues:
    """The values of a script, and of the programs that it runs, for everybody who may not see all of them.

    Args:
        vault: The secrets.
        patterns: What is sensitive.
        store: Keeps the values behind an execution's references, with what is recorded next; None keeps nothing.
        usable: The ids of the secrets that the execution's principal may use; None for all.
    """

    def __init__(
        self,
        vault: Vault,
        patterns: Sequence[Pattern],
        store: Callable[[str, Mapping[str, Scalar]], None] | None = None,
        usable: frozenset[str] | None = None,
    ) -> None:
        self._vault = vault
        self._usable = usable
        self._patterns = tuple(patterns)
        self._store = store
        self._references = MemoryReferences()
        self._projector: Projector | None = None
        self._describing: Projector | None = None
        self._stored: set[tuple[str, str]] = set()
        self.secrets = Secrets()
        """The secrets that could be read; empty before `projector` was used."""

    async def projector(self) -> Projector:
        """Projects values. The first use reads the secrets, which may wait for a keyring."""
        if self._projector is None:
            # Many secrets take a while to prepare the search for.
            found = self._read() if self._vault.is_empty else await anyio.to_thread.run_sync(self._read)
            self.secrets, self._projector = found
        return self._projector

    def _read(self) -> tuple[Secrets, Projector]:
        secrets = self._vault.load()
        secrets = secrets if self._usable is None else secrets.limited(self._usable)
        return secrets, Projector(secrets, self._references, self._patterns)

    async def project(self, value: Any) -> Any:
        """A value as the agent may see it: without secrets, and with references in the place of sensitive values."""
        return await off_loop(value, (await self.projector()).output, value)

    async def described(self, value: Any) -> Any:
        """A server's text about itself or its tools, without the secrets that it has."""
        await self.projector()
        if not self.secrets.hidden:
            return value
        if self._describing is None:
            # Without patterns: an address in a description isn't a customer's.
            self._describing = Projector(self.secrets, self._references)
        return await off_loop(value, self._describing.output, value)

    def values_behind(self, value: Any) -> Mapping[str, Scalar]:
        """The sensitive values that a projected value refers to, by the ids of their references."""
        return self._references.values_behind(value)

    def adopt(self, values: Mapping[str, Scalar | None]) -> None:
        """Add the values behind references that another process has stored for an execution."""
        self._references.adopt(values)

    def keep(self, execution: str, value: Any) -> None:
        """Store the values behind the references in recorded data, so that a tool's real arguments can be displayed."""
        if self._store is None:
            return
        if not (found := self.values_behind(value)):
            return
        new = {name: value for name, value in found.items() if (execution, name) not in self._stored}
        if new:
            self._store(execution, new)
            self._stored.update((execution, name) for name in new)
