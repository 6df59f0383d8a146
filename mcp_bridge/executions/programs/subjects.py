"""Whose data an execution is about: the people by whom it is erased, from the fields that the operator names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.secrets.value_references import fill_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.executions.programs.program_run import Effects

MAX_SUBJECTS = 1000
"""Most people that one context, or the arguments of one call, may name. Each takes a row that is never removed."""


class Subject(NamedTuple):
    """A person.

    Attributes:
        name: The person's name, with the sensitive values in it.
        is_value: Whether there are any.
    """

    name: str
    is_value: bool = False


async def subjects_of(values: Any, subject_fields: Sequence[str], effects: Effects) -> list[Subject]:
    """The subjects of a context or of a tool's arguments.

    Args:
        values: The context or the arguments.
        subject_fields: Names of fields in it, at any depth. A text or integer that is the value of one of them names a
            subject, and so does each in a list that is.
        effects: Knows the execution's sensitive values.

    Raises:
        BridgeError: `too_many_subjects`.
    """
    if not subject_fields:
        return []
    named = await off_loop(values, _named, values, frozenset(subject_fields))
    if not named:
        return []
    behind = effects.values_behind(named)
    names = list(dict.fromkeys(str(fill_in(name, behind)) for name in named))
    if len(names) > MAX_SUBJECTS:
        raise BridgeError(
            "too_many_subjects",
            f"{len(names)} people are named at once; the limit is {MAX_SUBJECTS}.",
            hint=f"Pass fewer at a time in these fields: {', '.join(subject_fields)}.",
        )
    shown = await effects.project(names)
    if not isinstance(shown, list):
        # Too many sensitive values to be told apart: whichever it is, it is found by its name, and forgotten with it.
        shown = [None] * len(names)
    return [Subject(name, name != other) for name, other in zip(names, shown, strict=True)]


def _named(values: Any, fields: frozenset[str]) -> list[str | int]:
    """What stands in some fields, in the order of the values."""
    found: dict[str | int, None] = {}
    left: list[tuple[Any, bool]] = [(values, False)]
    while left:
        value, is_named = left.pop()
        if isinstance(value, dict):
            # An object in such a field is no name: what it has in it isn't told apart.
            left += [(one, name in fields) for name, one in reversed(value.items())]
        elif isinstance(value, list | tuple):
            left += [(one, is_named) for one in reversed(value)]
        elif is_named and value != "" and isinstance(value, str | int) and not isinstance(value, bool):
            found[value] = None
    return list(found)
