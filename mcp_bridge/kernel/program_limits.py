"""The limits of a program: `max_steps`, `max_tokens` and `max_stalled_steps`, and the work that one event may cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.language.references import Lookup, measured

if TYPE_CHECKING:
    from mcp_bridge.kernel.program_flow import Level

MAX_ITEMS = 10_000
"""Longest list that a map step goes over."""

MAX_WORK = 50_000
"""Steps that may follow one event without an effect to wait for: nothing interrupts a transition, and all that it makes
is held in memory. The values that they move count too: 1,000 characters, or 50 values, as one step."""

_UNWEIGHED_STEPS = 2
"""The first steps of a transition, whose values aren't weighed. In most programs there are no more."""

WEIGHED_BELOW = MAX_WORK - _UNWEIGHED_STEPS
"""The work left from which on values are weighed."""


class WorkLimit:
    """The bound on one transition: how much work may follow one event."""

    _work_left: int
    """Of the transition under way."""

    def _weigh(self, value: Any) -> None:
        """Count a value that the transition moves after its first steps."""
        characters, values = measured(value)
        self._work_left -= characters // 1000 + values // 50

    def _weighed(self, lookup: Lookup) -> Lookup:
        """The lookup, or after the transition's first steps one that counts what it gives."""
        if self._work_left >= WEIGHED_BELOW:
            return lookup

        def weighed(root: str, path: tuple[str, ...]) -> Any:
            value = lookup(root, path)
            self._weigh(value)
            return value

        return weighed


def exceeded_limit(level: Level) -> str | None:
    """Which limit on steps or tokens is used up, as a message; None if none is."""
    if level.steps >= (limit := level.program.step_limit):
        return f"max_steps={limit} exceeded after {level.steps} step(s)"
    return exceeded_token_limit(level) if level.has_token_budget else None


def exceeded_token_limit(level: Level) -> str | None:
    """Which limit on tokens is used up, the level's own or that of a level above it, as a message; None if none is."""
    each: Level | None = level
    while each is not None:
        limit = each.program.max_tokens
        if limit is not None and each.tokens >= limit:
            return f"max_tokens={limit} exceeded: {each.tokens} tokens consumed"
        each = each.outer
    return None


def count_tokens(level: Level, tokens: int) -> None:
    """Add tokens to the usage of a level and of the levels above it."""
    each: Level | None = level
    while each is not None:
        each.tokens += tokens
        each = each.outer


def ends_stalled(level: Level) -> bool:
    """Count a step that has ended. If it is the last of `max_stalled_steps` that changed no output, end the program.

    Returns:
        Whether the program has been ended, as `stalled`.
    """
    limit = level.program.max_stalled_steps
    if limit is None or level.branch:
        return False
    level.stalled = level.stalled + 1 if level.changed is False else 0
    level.changed = False
    if level.stalled < limit:
        return False
    message = f"max_stalled_steps={limit} exceeded: {level.stalled} consecutive step(s) changed nothing"
    level.end("stalled", code="stalled", message=message)
    return True
