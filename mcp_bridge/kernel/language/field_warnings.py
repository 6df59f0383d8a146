"""Fields of a valid program's steps that have no effect, or not the one that they seem to have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.language.format_faults import Fault
from mcp_bridge.kernel.language.references import WORD
from mcp_bridge.kernel.language.step_fields import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.kernel.step_types import Row

_NEVER_RETRIED = 1
"""Attempts of a step that isn't tried again."""


def field_warnings(data: dict[str, Any]) -> Iterator[Fault]:
    """The warnings about a valid program's fields, also of steps inside others and of programs that are written out."""
    for path, row in _rows(data, ""):
        for name, message in _of_row(row):
            yield Fault(f"{path}.{name}", "bad_value", message)


def _rows(program: dict[str, Any], path: str) -> Iterator[tuple[str, Row]]:
    for index, row in enumerate(program["steps"]):
        where = f"{path}steps[{index}]"
        inside = [(f"{where}.parallel_steps[{n}]", child) for n, child in enumerate(row.get("parallel_steps") or ())]
        inside += [(f"{where}.step", row["step"])] if row["type"] == "map" else []
        for place, each in ((where, row), *inside):
            yield place, each
            if isinstance(inner := each.get("program"), dict):
                yield from _rows(inner, f"{place}.program.")


def _of_row(row: Row) -> Iterator[tuple[str, str]]:
    """Fields of a step, each with what is said of it."""
    attempts = row.get("max_retries")
    # A program that writes whole records has the default values in it.
    is_whole_record = attempts == FIELDS["max_retries"][1] and "on_error" in row
    if attempts is not None and attempts > _NEVER_RETRIED and not is_whole_record:
        if row.get("retry") is not None:
            yield "max_retries", "'retry' says how often the step is tried: this has no effect"
        elif row.get("on_error") != "retry":
            yield "max_retries", "the step is tried once: this has an effect with on_error: retry only"
    for field in ("as", "output_key"):
        if (name := row.get(field)) is not None and not WORD.fullmatch(name):
            yield field, f"no reference in a text or in arguments leads to {name[:60]!r}: write letters, digits and _"
    if row["type"] == "map" and row["step"].get("id") and not row["step"].get("compensate"):
        # What undoes it can refer to it.
        yield "step.id", "no reference leads to a map's step: this has no effect"
    if row.get("is_terminal") and row.get("next_step") is not None:
        yield "is_terminal", "the program continues at 'next_step': this has no effect"
