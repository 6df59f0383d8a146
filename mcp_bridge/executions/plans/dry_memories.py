"""Memories as a dry run has them: what it saves, it finds again, and nobody else does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_name
from mcp_bridge.executions.memories import MAX_MEMORY_BYTES, Memories, digest
from mcp_bridge.large_json import dumps

if TYPE_CHECKING:
    from pathlib import Path

MAX_CHANGED_BYTES = 16 << 20
"""Most bytes of memories that one dry run saves."""

MAX_LISTED = 20
"""Most keys that a notice names."""

_encoder = json.JSONEncoder(ensure_ascii=False)


class DryMemories(Memories):
    """As `Memories`, and writes nothing.

    Args:
        state_dir, principal: As `Memories`.

    Attributes:
        changed: The values that the dry run has saved; for a memory that it has deleted, None. As JSON texts.
    """

    def __init__(self, state_dir: Path, principal: str) -> None:
        super().__init__(state_dir, principal)
        self.changed: dict[str, str | None] = {}

    def save(self, key: str, value: Any, *, update: bool) -> None:
        """As `Memories.save`, for this dry run."""
        exists, old = self.load(key)
        if update and exists and isinstance(value, dict) and isinstance(old, dict):
            value = old | value
        text = dumps(value, _encoder)
        if len(text) > MAX_MEMORY_BYTES:
            raise BridgeError("bad_memory", f"The memory {key!r} is over {MAX_MEMORY_BYTES} bytes.")
        if sum(len(other or "") for name, other in self.changed.items() if name != key) + len(text) > MAX_CHANGED_BYTES:
            raise BridgeError("too_many_memories", f"A dry run saves at most {MAX_CHANGED_BYTES} bytes of memories.")
        self.changed[key] = text

    def save_unless_changed(self, key: str, value: Any, *, since: bytes | None, mark: str) -> dict[str, Any]:  # noqa: ARG002
        """As `Memories.save_unless_changed`, for this dry run, whose saves nobody makes again."""
        found, old = self.load(key)
        if digest(old, found=found) != since:
            return {"saved": False, "found": found, "value": old}
        self.save(key, value, update=False)
        return {"saved": True, "found": True, "value": value}

    def load(self, key: str) -> tuple[bool, Any]:
        """As `Memories.load`."""
        if key not in self.changed:
            return super().load(key)
        text = self.changed[key]
        return (False, None) if text is None else (True, json.loads(text))

    def delete(self, key: str) -> bool:
        """As `Memories.delete`, for this dry run."""
        exists, _ = self.load(key)
        self.changed[key] = None
        return exists

    def keys(self, prefix: str) -> list[str]:
        """As `Memories.keys`."""
        found = {key for key in super().keys(prefix) if key not in self.changed}
        found |= {key for key, text in self.changed.items() if text is not None and key.startswith(prefix)}
        return sorted(found)


def not_saved(memories: DryMemories) -> list[str]:
    """The notice of what a dry run would have saved or deleted."""
    if not memories.changed:
        return []
    names = ", ".join(escape_name(key) for key in list(memories.changed)[:MAX_LISTED])
    more = ", …" if len(memories.changed) > MAX_LISTED else ""
    return [f"dry run: these memories are as they were: {names}{more}"]
