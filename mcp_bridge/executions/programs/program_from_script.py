"""A program made from what a script did, for a person to correct.

The script's calls become steps: in the order in which they were made, and in parallel where they overlapped. A value
of an argument that came from an earlier outcome becomes a reference to it; calls for each item of an earlier list
become a map; a call that was repeated after an error becomes a retry. What the record doesn't tell is why a call was
made: conditions of the script's are the person's to write, and the remarks say what else isn't in the program.

A reference is only written where filling it in gives the recorded argument, so the program makes the recorded calls as
long as the tools answer as they did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_name
from mcp_bridge.executions.programs.argument_sources import ArgumentSources
from mcp_bridge.executions.replay_result import NOT_YET
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.status import effective_status, refuse_erased
from mcp_bridge.executions.waits.taken_events import WAIT, WAIT_EVENT
from mcp_bridge.kernel.json_parsing import NotJSONError, parsed
from mcp_bridge.kernel.language.program_parser import InvalidProgramError, parse, unbundle
from mcp_bridge.kernel.language.references import MISSING
from mcp_bridge.kernel.values import ValueFaultError, canonical, normal
from mcp_bridge.ledger.log.payloads import TAKEN_BACK, Failure, ProgramEnd, RequestOutcome, Success, understood
from mcp_bridge.wire.messages import NAMES, ProgramStart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcp_bridge.executions.scripts.call_history import RecordedCall
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

MAX_CALLS = 2000
"""Most calls of a script of which a program is made."""

MIN_MAP_CALLS = 2
"""Fewest calls that become a map."""

MAX_EVENT_CHARS = 40
"""Most characters of an event's name that name its step."""

_LOCAL = "local."
_RUN_PROGRAM = NAMES[ProgramStart]
_RESERVED = frozenset(("ctx", "index", "item", "output"))

Step: TypeAlias = "dict[str, Any]"
"""A step, as programs are written."""


class DerivedProgram(NamedTuple):
    """A program, and what a person should know of how it was made.

    Attributes:
        data: The program, valid.
        remarks: What the record has that the program hasn't, a sentence each.
    """

    data: dict[str, Any]
    remarks: list[str]


@dataclass(slots=True)
class _Call:
    """A call to become a step.

    Attributes:
        line: Its task or thread, as `CallId` names it.
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


async def program_from_execution(store: ProgramStore, recorder: Recorder, stored: StoredExecution) -> DerivedProgram:
    """Make a program from an execution: a script's calls, or the program that was run.

    Args:
        store: Keeps the execution, and those of the programs that it ran.
        recorder: Has their records.
        stored: The execution.

    Raises:
        BridgeError: `erased`; `not_derivable`: it is under way, made no call, or too many.
    """
    refuse_erased(stored)
    if stored.kind != "script":
        return DerivedProgram(stored.bundle["program"], [])
    if effective_status(stored) == "running":
        raise not_derivable(stored, "it is under way", NOT_YET)
    entries = await recorder.read(stored.id)
    history = CallHistory(entries)
    runs: dict[str, tuple[int, bool, Any]] = {}
    named: dict[str, Program] = {}
    for call in history.calls.values():
        if call.asked.name == _RUN_PROGRAM and (child := _child(call)) is not None:
            runs[call.call] = await _end_of(store, recorder, child)
            if isinstance(name := (call.asked.arguments or {}).get("program"), str):
                ran = await store.execution(child)
                if ran is not None and ran.bundle:
                    named[name] = unbundle(ran.bundle)
    try:
        return _Derivation(stored, history, runs).result(named)
    except InvalidProgramError as exc:
        raise not_derivable(stored, f"it would not be valid: {exc.faults[0].message}", "Write it by hand.") from None


def not_derivable(stored: StoredExecution, why: str, hint: str) -> BridgeError:
    """The error for an execution of which no program can be made."""
    return BridgeError("not_derivable", f"No program can be made from {stored.id}: {why}.", hint=hint)


def _child(call: RecordedCall) -> str | None:
    """The execution of the program that a call has started."""
    if call.outcome is None or not isinstance(call.outcome.result, Success):
        return None
    value = call.outcome.result.value
    child = value.get("execution") or value.get("record", {}).get("trace_id") if isinstance(value, dict) else None
    return child if isinstance(child, str) else None


async def _end_of(store: ProgramStore, recorder: Recorder, execution: str) -> tuple[int, bool, Any]:
    """Where a program's execution has ended, whether with success, and its output."""
    child = await store.execution(execution)
    for row in reversed(await recorder.read(execution)):
        if isinstance(said := understood(row), ProgramEnd):
            record = (child.record if child is not None else None) or {}
            return row.sequence, said.status == "success", record.get("output")
    return 0, False, None


class _Derivation:
    """The making of one program."""

    def __init__(
        self, stored: StoredExecution, history: CallHistory, runs: Mapping[str, tuple[int, bool, Any]]
    ) -> None:
        self._stored = stored
        self._remarks: list[str] = []
        self._others: dict[str, int] = {}
        calls = [made for call in history.calls.values() if (made := self._made(call, runs)) is not None]
        if not calls:
            raise not_derivable(stored, "it made no call", "Choose an execution that called a tool.")
        if len(calls) > MAX_CALLS:
            raise not_derivable(
                stored, f"it made {len(calls)} calls; a program can be made of {MAX_CALLS}", "Choose a shorter one."
            )
        self._calls = _folded(sorted(calls, key=lambda call: call.asked))
        if self._stored.status != "success" and not self._calls[-1].succeeded:
            self._calls[-1].is_last = True
        _set_levels(self._calls)
        self._name_steps()

    def _made(self, call: RecordedCall, runs: Mapping[str, tuple[int, bool, Any]]) -> _Call | None:
        line = call.call.partition("#")[0]
        if call.asked.name == _RUN_PROGRAM and call.asked.arguments is not None:
            if call.call not in runs:
                self._remarks.append(f"A program was not begun, so it is no step (call {call.call}).")
                return None
            arguments = {name: call.asked.arguments.get(name) for name in ("program", "context")}
            answered, succeeded, value = runs[call.call]
            return _Call(line, None, arguments, call.sequence, answered, succeeded, value)
        if call.asked.kind == WAIT:
            return self._waited(call, line)
        if call.asked.kind != "tool":
            self._others[call.asked.name] = self._others.get(call.asked.name, 0) + 1
            return None
        shown = f"{escape_name(call.asked.name)} (call {call.call})"
        if isinstance(call.outcome, RequestOutcome):
            self._remarks.append(f"{shown} was refused and not made, so it is no step.")
            return None
        if not isinstance(call.asked.arguments, dict):
            self._remarks.append(f"{shown} is left out: its arguments were too large to be kept.")
            return None
        if not call.answered:
            self._remarks.append(f"Nobody has seen the outcome of {shown}.")
        result = None if call.outcome is None else call.outcome.result
        succeeded = isinstance(result, Success)
        value = result.value if isinstance(result, Success) and not call.asked.raw else MISSING
        try:
            arguments, value = normal(call.asked.arguments), value if value is MISSING else normal(value)
        except ValueFaultError as exc:
            self._remarks.append(f"{shown} is left out: a program can't have its values: {exc.reason}.")
            return None
        tool = call.asked.name.removeprefix(_LOCAL)
        return _Call(line, tool, arguments, call.sequence, call.answered, succeeded, value)

    def _waited(self, call: RecordedCall, line: str) -> _Call | None:
        """A wait as a step; None for one that was over at once, was refused, or was taken back by the script."""
        result = None if call.outcome is None else call.outcome.result
        arguments = call.asked.arguments
        refused = isinstance(result, Failure) and result.code != "event_timeout"
        if not isinstance(arguments, dict) or refused or (result is not None and result.status == TAKEN_BACK):
            return None
        seconds = round(max(0.0, arguments["until"] - call.began), 3) if "until" in arguments else None
        if call.asked.name == WAIT_EVENT:
            wait: Step = {"event": arguments["name"]} | ({"timeout_seconds": seconds} if seconds else {})
        elif seconds:
            wait = {"seconds": seconds}
            self._remarks.append(f"The wait {call.call} was for a time: its step waits for as long as the script did.")
        else:
            return None
        value = result.value.get("value") if isinstance(result, Success) and "event" in wait else MISSING
        return _Call(line, None, arguments, call.sequence, call.answered, isinstance(result, Success), value, wait=wait)

    def _name_steps(self) -> None:
        taken: dict[str, int] = {}
        for call in sorted(self._calls, key=lambda call: (call.level, call.asked)):
            if call.wait is not None:
                plain = str(call.wait.get("event", "wait"))[:MAX_EVENT_CHARS]
            else:
                plain = "program" if call.tool is None else call.tool.rpartition(".")[2]
            name = re.sub(r"\W", "_", plain) or "step"
            name = f"{name}_call" if name in _RESERVED or name[0].isdecimal() else name
            taken[name] = number = taken.get(name, 0) + 1
            call.step = name if number == 1 else f"{name}_{number}"
            if number > 1 and call.step in taken:
                call.step = f"{name}_call_{number}"
            taken.setdefault(call.step, 1)

    def _group_name(self, first: _Call) -> str:
        """An id for the step that makes several calls at once."""
        name, taken = f"{first.step}_and_others", {call.step for call in self._calls}
        while name in taken:
            name += "_"
        return name

    def result(self, named: Mapping[str, Program]) -> DerivedProgram:
        """The program.

        Args:
            named: The programs that the script ran by their names.

        Raises:
            InvalidProgramError: It would be larger than programs may be, or has a program that there isn't.
        """
        # At first every text that can be JSON is a value; one that no reference leads into is a text after all.
        for call in self._calls:
            if call.wait is None and (value := _json_in(call.value)) is not None:
                call.text, call.value = call.value, value
        _, sources = self._steps()
        entered = sources.entered.union(*(group for group in self._mapped if not group.isdisjoint(sources.entered)))
        for call in self._calls:
            if call.text is not None and call.step not in entered:
                call.text, call.value = None, call.text
        steps, sources = self._steps()
        data = {
            "name": f"from-{self._stored.id[:8]}",
            "description": f"Made from the script {self._stored.id}.",
            "steps": steps,
        }
        parse(data, named.get)
        if self._others:
            counted = ", ".join(f"{name} ({count})" for name, count in sorted(self._others.items()))
            self._remarks.append(f"These requests of the script are no steps: {counted}.")
        if sources.context:
            self._remarks.append(f"Sensitive values that the context has to give: {', '.join(sources.context)}.")
        return DerivedProgram(data, self._remarks)

    def _steps(self) -> tuple[list[Step], ArgumentSources]:
        sources = ArgumentSources(self._stored.bundle.get("code") or "", {call.step for call in self._calls})
        self._mapped: list[set[str]] = []
        steps: list[Step] = []
        levels = _by_level(self._calls)
        while levels:
            for count in range(_same_tool(levels), 0, -1):
                calls = sorted((call for level in levels[:count] for call in level), key=lambda call: call.asked)
                if len(calls) >= MIN_MAP_CALLS and (mapped := self._map(sources, calls)) is not None:
                    steps.append(mapped)
                    del levels[:count]
                    break
            else:
                steps += self._level(sources, levels.pop(0))
        return steps, sources

    def _level(self, sources: ArgumentSources, calls: list[_Call]) -> list[Step]:
        tools = [call for call in calls if call.tool is not None]
        steps = [_step(sources, call) for call in calls if call.tool is None and call.wait is None]
        if len(tools) > 1:
            step: Step = {"id": self._group_name(tools[0]), "type": "parallel"}
            if (at_once := _most_at_once(tools)) < len(tools):
                step["max_concurrency"] = at_once
            steps.append(step | {"parallel_steps": [_step(sources, call) for call in tools]})
        else:
            steps += [_step(sources, call) for call in tools]
        # What was done beside a wait is done before it.
        steps += [_step(sources, call) for call in calls if call.wait is not None]
        for call in calls:
            _publish(sources, call, (call.step,))
        return steps

    def _map(self, sources: ArgumentSources, calls: Sequence[_Call]) -> Step | None:
        """One step for calls of one tool, each with an item of a list of an earlier outcome; None if they aren't."""
        first = calls[0]
        if not all(call.tool == first.tool and call.succeeded and call.attempts == 1 for call in calls):
            return None
        if len(calls) not in sources.list_lengths(first.asked):
            return None
        found = sources.map_template([call.arguments for call in calls], first.asked)
        if found is None:
            return None
        step: Step = {"id": first.step, "type": "map", "over": found.over}
        if (at_once := _most_at_once(calls)) < len(calls):
            step["max_concurrency"] = at_once
        inner: Step = {"type": "tool", "tool": first.tool, "args": found.args}
        if any(call.text is not None for call in calls):
            inner["parse"] = "json"
        self._mapped.append({call.step for call in calls})
        for number, call in enumerate(calls):
            _publish(sources, call, (first.step, str(number)))
        return step | {"step": inner}


def _json_in(text: Any) -> Any:
    """The object or list that a text has as JSON, else None."""
    try:
        value = parsed(text) if isinstance(text, str) else None
    except NotJSONError:
        return None
    return value if isinstance(value, (dict, list)) else None


def _publish(sources: ArgumentSources, call: _Call, root: tuple[str, ...]) -> None:
    """Make the outcome of a call known to the calls after it."""
    if call.succeeded and call.value is not MISSING:
        sources.add(call.step, root, call.answered, call.value, call.text)


def _step(sources: ArgumentSources, call: _Call) -> Step:
    if call.wait is not None:
        return {"id": call.step, "type": "wait", **call.wait} | _about_errors(call)
    if call.tool is None:
        step: Step = {"id": call.step, "type": "program", "program": call.arguments["program"]}
        if context := call.arguments["context"]:
            step["context"] = sources.template(context, call.asked)
    else:
        step = {"id": call.step, "type": "tool", "tool": call.tool}
        if call.arguments:
            step["args"] = sources.template(call.arguments, call.asked)
    return step | _about_errors(call)


def _about_errors(call: _Call) -> Step:
    fields: Step = {}
    if call.text is not None:
        fields["parse"] = "json"
    if call.attempts > 1:
        fields["retry"] = {"max_attempts": call.attempts}
    if not call.succeeded and not call.is_last:
        # The script went on.
        fields["on_error"] = "skip"
    return fields


def _folded(calls: Iterable[_Call]) -> list[_Call]:
    """The calls, a call and its repetitions after an error being one."""
    folded: list[_Call] = []
    latest: dict[str, _Call] = {}
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


def _set_levels(calls: Sequence[_Call]) -> None:
    """Give each call the first level after those of all calls that were answered before it was made.

    Calls of sibling tasks that overlapped were begun at once: whichever was answered first, none waited for another,
    even if the bridge let only some of them begin.
    """
    groups = _siblings_at_once(calls)
    for number, call in enumerate(calls):
        before = [
            earlier.level
            for earlier in calls[:number]
            if 0 < earlier.answered < call.asked and not groups.are_independent(earlier, call)
        ]
        call.level = max(before, default=-1) + 1


class _Siblings:
    """Tasks and threads that ran beside each other.

    Attributes:
        parent: From a pair of a line and its child to the group's representative.
    """

    def __init__(self) -> None:
        self._group: dict[str, str] = {}

    def find(self, line: str) -> str:
        """The group of a line."""
        while (up := self._group.get(line, line)) != line:
            line = up
        return line

    def join(self, one: str, other: str) -> None:
        """Put two lines into one group."""
        self._group[self.find(one)] = self.find(other)

    def are_independent(self, one: _Call, other: _Call) -> bool:
        """Whether two calls were made by sibling tasks of one group."""
        pair = _where_they_part(one.line, other.line)
        return pair is not None and self.find(pair[0]) == self.find(pair[1])


def _siblings_at_once(calls: Sequence[_Call]) -> _Siblings:
    siblings = _Siblings()
    under_way: list[_Call] = []
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


def _by_level(calls: Sequence[_Call]) -> list[list[_Call]]:
    levels: dict[int, list[_Call]] = {}
    for call in calls:
        levels.setdefault(call.level, []).append(call)
    return [levels[level] for level in sorted(levels)]


def _same_tool(levels: Sequence[Sequence[_Call]]) -> int:
    """With how many levels these begin that have calls of one tool alone."""
    tool = levels[0][0].tool
    if tool is None:
        return 0
    others = (number for number, level in enumerate(levels) if any(call.tool != tool for call in level))
    return next(others, len(levels))


def _most_at_once(calls: Sequence[_Call]) -> int:
    """How many of these calls were under way at once."""
    changes = [(call.asked, 1) for call in calls] + [(call.answered, -1) for call in calls if call.answered]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
