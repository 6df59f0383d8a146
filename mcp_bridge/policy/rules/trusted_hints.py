"""What servers claim of their tools, counted only for the servers in `trust_hints` (MCP: tool annotations)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.policy.rules.call import Call
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot


def is_trusted_read_only(snapshot: PolicySnapshot, call: Call) -> bool:
    """Whether a trusted server's hints say that the tool is read-only, and don't also say that it is destructive."""
    if call.names.server not in snapshot.trust_hints:
        return False
    return call.hints.get("readOnlyHint") is True and call.hints.get("destructiveHint") is not True


def only_reads(snapshot: PolicySnapshot, call: Call) -> bool:
    """As `is_trusted_read_only`, by the policy and by every floor beneath it."""
    is_read = is_trusted_read_only(snapshot, call)
    return is_read and (snapshot.floor is None or only_reads(snapshot.floor, call))


def is_trusted_idempotent(snapshot: PolicySnapshot, server: str, hints: Mapping[str, object]) -> bool:
    """Whether a server that the policy, and the floor beneath it, trust says that the tool is idempotent.

    Args:
        snapshot: The policy.
        server: The server's configured name.
        hints: The tool's annotations.
    """
    if hints.get("idempotentHint") is not True or server not in snapshot.trust_hints:
        return False
    return snapshot.floor is None or is_trusted_idempotent(snapshot.floor, server, hints)
