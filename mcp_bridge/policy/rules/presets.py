"""The presets: what happens to a call that no rule decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mcp_bridge.policy.rules.trusted_hints import is_trusted_read_only

if TYPE_CHECKING:
    from mcp_bridge.policy.rules.call import Call
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot

Outcome = Literal["allow", "approve", "deny"]
"""What becomes of a call; `approve` has a person asked."""


def preset_effect(snapshot: PolicySnapshot, call: Call) -> Outcome:
    """What the preset does with a call that no rule decides.

    `open` allows, `locked` denies. `read-only` and `approve-writes` allow what a trusted hint says is read-only; else
    the first denies, and the second has a person asked.
    """
    match snapshot.preset:
        case "open":
            return "allow"
        case "locked":
            return "deny"
    if is_trusted_read_only(snapshot, call):
        return "allow"
    return "deny" if snapshot.preset == "read-only" else "approve"
