"""The calls of a script in the order in which they can be made again: one after the other, or concurrently."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mcp_bridge.kernel.values import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Step: TypeAlias = "dict[str, Any]"
"""A step, as programs are written."""


@dataclass(slots=True)
class Call:
    """A call to become a step.

    Attributes:
        line: Its task or thread, as `CallId` names it; of a cell, with the cell before it, except for the main task.
        tool: The tool's name in programs; None for a program that the script ran, and for a wait.
        arguments: Its arguments; of a program, its `program` and `context`.
        asked: The number of the intent's entry.
        answered: The number of the outcome's entry; 0 if there is none.
        succeeded: Whether it gave a value.
        value: That value.
        attempts: How often the same call was made in a row.
        level: Its place in the order of steps; calls of one level overlapped.
        step: The id of its step.
        text: The text of which its value is parsed as JSON, or None.
        is_last: Whether the script failed with it.
        wait: Of a wait, the fields of its step; else None.
    """

    line: str
    tool: str | None
    arguments: dict[str, Any]
    asked: int
    answered: int
    succeeded: bool
    value: Any
    attempts: int = 1
    level: int = 0
    step: str = ""
    text: str | None = None
    is_last: bool = False
    wait: Step | None = None

    @property
    def request(self) -> bytes:
        """What is compared to tell whether two calls are the same."""
        return canonical([self.tool, self.arguments])


def folded(calls: Iterable[Call]) -> list[Call]:
    """The calls, a call and its repetitions after an error being one."""
    folded: list[Call] = []
    latest: dict[str, Call] = {}
    for call in calls:
        before = latest.get(call.line)
        again = before is not None and not before.succeeded and 0 < before.answered < call.asked
        if before is not None and again and before.tool is not None and before.request == call.request:
            before.attempts += 1
            before.answered, before.succeeded, before.value = call.answered, call.succeeded, call.value
        else:
            folded.append(call)
            latest[call.line] = call
    return folded


def set_levels(calls: Sequence[Call]) -> None:
    """Give each call the first level after those of all calls that were answered before it was made.

    Calls of sibling tasks that overlapped were begun at once: whichever was answered first, none waited for another,
    even if the bridge let only some of them begin.

    Args:
        calls: In the order in which they were made.
    """
    answered = _Answered(_siblings_at_once(calls))
    under_way: list[tuple[int, int, Call]] = []
    for number, call in enumerate(calls):
        while under_way and under_way[0][0] < call.asked:
            answered.add(heapq.heappop(under_way)[2])
        call.level = answered.latest_before(call.line) + 1
        if call.answered:
            heapq.heappush(under_way, (call.answered, number, call))


class _Answered:
    """The latest levels of the calls that have been answered, by lines and groups of siblings."""

    def __init__(self, siblings: _Siblings) -> None:
        self._siblings = siblings
        self._of_line: dict[str, int] = {}
        """Of the calls of a line itself."""
        self._within: dict[str, int] = {}
        """Of a line and all that it has begun."""
        self._of_groups: dict[str, dict[str, int]] = defaultdict(dict)
        """Of each group of a line's children, with all that these have begun; for no line, of each first line."""

    def add(self, call: Call) -> None:
        _raise(self._of_line, call.line, call.level)
        parent = ""
        for line in _lines_to(call.line):
            _raise(self._within, line, call.level)
            _raise(self._of_groups[parent], self._siblings.find(line), call.level)
            parent = line

    def latest_before(self, line: str) -> int:
        """The latest level of the calls that one of this line came after; -1 if there are none."""
        latest, parent = self._within.get(line, -1), ""
        for part in _lines_to(line):
            own = self._siblings.find(part)
            others = (level for group, level in self._of_groups[parent].items() if group != own)
            latest = max(latest, self._of_line.get(part, -1), max(others, default=-1))
            parent = part
        return latest


def _raise(levels: dict[str, int], name: str, level: int) -> None:
    levels[name] = max(level, levels.get(name, -1))


def _lines_to(line: str) -> list[str]:
    """A line, with those that it is nested in before it."""
    parts = line.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


class _Siblings:
    """Groups of tasks and threads that ran beside each other."""

    def __init__(self) -> None:
        self._group: dict[str, str] = {}

    def find(self, line: str) -> str:
        """The group of a line."""
        above = self._group
        while (up := above.get(line, line)) != line:
            # Each is put nearer to its group's first line, for the next time.
            above[line] = line = above.get(up, up)
        return line

    def join(self, one: str, other: str) -> None:
        """Put two lines into one group."""
        self._group[self.find(one)] = self.find(other)


def _siblings_at_once(calls: Sequence[Call]) -> _Siblings:
    siblings = _Siblings()
    under_way: list[Call] = []
    for call in calls:
        under_way = [earlier for earlier in under_way if not 0 < earlier.answered < call.asked]
        for earlier in under_way:
            if (pair := _where_they_part(earlier.line, call.line)) is not None:
                siblings.join(*pair)
        under_way.append(call)
    return siblings


def _where_they_part(one: str, other: str) -> tuple[str, str] | None:
    """The sibling lines of which these are parts; None if one is within the other, or they have nothing in common."""
    ones, others = one.split("."), other.split(".")
    for depth, (part, opposite) in enumerate(zip(ones, others, strict=False)):
        if part != opposite:
            return (".".join(ones[: depth + 1]), ".".join(others[: depth + 1])) if depth else None
    return None


def by_level(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls of each level, the first level first."""
    levels: dict[int, list[Call]] = {}
    for call in calls:
        levels.setdefault(call.level, []).append(call)
    return [levels[level] for level in sorted(levels)]


def most_at_once(calls: Sequence[Call]) -> int:
    """How many of these calls were under way at once."""
    changes = [(call.asked, 1) for call in calls] + [(call.answered, -1) for call in calls if call.answered]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
