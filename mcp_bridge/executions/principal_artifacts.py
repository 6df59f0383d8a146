"""One principal's artifacts and kept outputs. Others' are unknown, in the same words as what doesn't exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.executions.artifacts import MAX_ARTIFACTS_LISTED, unknown_artifact, unknown_output
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.ledger.log.payloads import ScriptEnd, decode
from mcp_bridge.offload import on_thread

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mcp_bridge.executions.artifacts import (
        Files,
        FoundArtifact,
        Place,
        ReadArtifact,
        RecordedHashes,
        StoredArtifact,
    )
    from mcp_bridge.ledger.storage.execution_store import ProgramStore

_BATCH = 500
"""Executions whose owners are looked up together."""


class ArtifactPage(NamedTuple):
    """A part of the list of artifacts.

    Attributes:
        rows: The artifacts, newest first.
        last: The place of the last of them if more follow; else None.
    """

    rows: list[StoredArtifact]
    last: Place | None


class OwnFiles:
    """The files of one principal's executions.

    Args:
        files: The store of artifacts and outputs.
        store: The executions.
        principal: The principal's name.
    """

    def __init__(self, files: Files, store: ProgramStore, principal: str) -> None:
        self._files = files
        self._store = store
        self._principal = principal

    async def artifacts(self, after: Place | None = None) -> ArtifactPage:
        """A page of the principal's artifacts, newest first.

        Args:
            after: The place of the last one of the page before; None for the first page.
        """
        found: list[FoundArtifact] = []
        executions = await on_thread(self._files.executions)
        for start in range(0, len(executions), _BATCH):
            batch = executions[start : start + _BATCH]
            own = set(await self._own([execution for _, execution in batch]))
            of_them = [row for row in batch if row[1] in own]
            found, is_complete = await on_thread(self._files.newest, of_them, after, found)
            if is_complete:
                break
        found, rest = found[:MAX_ARTIFACTS_LISTED], found[MAX_ARTIFACTS_LISTED:]
        recorded = await self._recorded({one.execution for one in found})
        rows = await on_thread(self._files.hashed, found, recorded)
        return ArtifactPage(rows, found[-1].place if rest else None)

    async def read(self, uri: str) -> ReadArtifact:
        """As `Files.read`, compared with what is recorded."""
        execution = uri.partition("://")[2].partition("/")[0]
        if not await self._own([execution]):
            raise unknown_artifact(uri)
        recorded = await self._recorded({execution})
        return await on_thread(self._files.read, uri, recorded.get(execution, {}))

    async def read_output(self, execution: str, name: str, start: int, count: int) -> tuple[str, int | None]:
        """As `Files.read_output`."""
        if not await self._own([execution]):
            raise unknown_output(execution, name)
        return await on_thread(self._files.read_output, execution, name, start, count)

    async def _recorded(self, executions: Collection[str]) -> dict[str, RecordedHashes]:
        """The hashes of executions' artifacts that the ledger has, of those that have ended."""
        ends = await self._store.ends(list(executions))
        found = {execution: decode("end", payload) for execution, payload in ends.items()}
        return {execution: end.artifact_hashes for execution, end in found.items() if isinstance(end, ScriptEnd)}

    async def _own(self, executions: Sequence[str]) -> list[str]:
        """Those of some executions that are the principal's. Files of no recorded execution belong to `local`."""
        owners = await self._store.owners(executions)
        return [one for one in executions if owners.get(one, LOCAL_PRINCIPAL.name) == self._principal]
