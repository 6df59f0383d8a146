"""Two policies in force together, one of them a floor: a call has to pass both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.policy.rules.policy_settings import Limits, PolicyLimits

if TYPE_CHECKING:
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot


def layered(floor: PolicySnapshot, snapshot: PolicySnapshot) -> PolicySnapshot:
    """A policy over another, its floor: calls have to pass both, and the lower limits hold.

    Of a policy that has a floor itself, the floor goes between the two.
    """
    if snapshot.floor is not None:
        floor = layered(floor, snapshot.floor)
    limits = snapshot.limits.model_dump() | {
        "principal": _lower(floor.limits.principal, snapshot.limits.principal).model_dump(),
        **_lower(floor.limits, snapshot.limits).model_dump(exclude={"principal"}),
    }
    return snapshot.model_copy(update={"floor": floor, "limits": PolicyLimits.model_validate(limits)})


def _lower(one: Limits, other: Limits) -> Limits:
    limits = {}
    for name in Limits.model_fields:
        values = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        limits[name] = min(values, default=None)
    return Limits.model_validate(limits)
