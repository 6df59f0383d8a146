"""Whose data an execution is about: the person by whom it is erased, from the fields that the operator names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.policy.secrets.value_references import fill_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.executions.programs.program_run import Effects


async def subject_of(values: Mapping[str, Any], subject_fields: Sequence[str], effects: Effects) -> tuple[str, bool]:
    """The subject of a context or of a tool's arguments, and whether the name contains a sensitive value.

    Args:
        values: The context or the arguments.
        subject_fields: Names in it. The value of the first one that is there names the subject.
        effects: Knows the execution's sensitive values.

    Returns:
        The name, empty if there is none, and whether it contains a sensitive value.
    """
    named = next((values[name] for name in subject_fields if isinstance(values.get(name), str | int)), "")
    if named == "":
        return "", False
    whole = fill_in(named, effects.values_behind(named))
    return str(whole), bool(whole) and await effects.project(whole) != whole
