"""A program made from what a script did, or the cells of a session, for a person to correct.

The script's calls become steps: in the order in which they were made, and in parallel where they overlapped. A value
of an argument that came from an earlier outcome becomes a reference to it; calls for each item of an earlier list
become a map; a call that was repeated after an error becomes a retry. What the record doesn't tell is why a call was
made: conditions of the script's are the person's to write, and the remarks say what else isn't in the program.

A reference is only written where filling it in gives the recorded argument, so the program makes the recorded calls as
long as the tools answer as they did.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_name
from mcp_bridge.executions.programs.from_script.argument_sources import ArgumentSources, Code
from mcp_bridge.executions.programs.from_script.call_levels import (
    Call,
    Step,
    by_level,
    folded,
    most_at_once,
    set_levels,
)
from mcp_bridge.executions.replay_result import NOT_YET
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.sessions.cell import Cell
from mcp_bridge.executions.sessions.sessions import chain, left_by
from mcp_bridge.executions.status import effective_status, refuse_erased
from mcp_bridge.executions.waits.taken_events import WAIT, WAIT_EVENT
from mcp_bridge.kernel.json_parsing import NotJSONError, parsed
from mcp_bridge.kernel.language.program_parser import InvalidProgramError, parse, unbundle
from mcp_bridge.kernel.language.references import MISSING
from mcp_bridge.kernel.values import ValueFaultError, normal
from mcp_bridge.ledger.log.payloads import (
    CANCELLED_BY_SCRIPT,
    Failure,
    Planned,
    ProgramEnd,
    RequestOutcome,
    Success,
    understood,
)
from mcp_bridge.wire.messages import NAMES, ProgramStart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.executions.scripts.call_history import RecordedCall
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

MAX_CALLS = 2000
"""Most calls of a script of which a program is made."""

MIN_MAP_CALLS = 2
"""Fewest calls that become a map."""

MAX_COPIES = 20
"""Most values that a remark names as written out."""

MAX_EVENT_CHARS = 40
"""Most characters of an event's name that name its step."""

_LOCAL = "local."
_MAIN = "0"
_RUN_PROGRAM = NAMES[ProgramStart]
_RESERVED = frozenset(("ctx", "index", "item", "output"))


class DerivedProgram(NamedTuple):
    """A program, and what a person should know of how it was made.

    Attributes:
        data: The program, valid.
        remarks: What the record has that the program hasn't, a sentence each.
    """

    data: dict[str, Any]
    remarks: list[str]


class _Script(NamedTuple):
    """A script of which a program is made, or one of its cells.

    Attributes:
        stored: Its execution.
        place: Its place in a session, if several of its cells are taken; else None.
        began: The number of its first entry.
        history: Its calls.
        runs: Where each program that it ran has ended, whether with success, and its output; by the calls.
        named: The programs that it ran by their names.
    """

    stored: StoredExecution
    place: Cell | None
    began: int
    history: CallHistory
    runs: dict[str, tuple[int, bool, Any]]
    named: dict[str, Program]

    @classmethod
    async def of(cls, store: ProgramStore, recorder: Recorder, stored: StoredExecution, place: Cell | None) -> _Script:
        """With its record."""
        entries = await recorder.read(stored.id)
        script = cls(stored, place, entries[0].sequence if entries else 0, CallHistory(entries), {}, {})
        for call in script.history.calls.values():
            if call.asked.name == _RUN_PROGRAM and (child := _child(call)) is not None:
                script.runs[call.call] = await _end_of(store, recorder, child)
                if isinstance(name := (call.asked.arguments or {}).get("program"), str):
                    ran = await store.execution(child)
                    if ran is not None and ran.bundle:
                        script.named[name] = unbundle(ran.bundle)
        return script

    @property
    def cell(self) -> str:
        """What a remark calls it, with a space before."""
        return "" if self.place is None else f" of the cell {self.place.number}"

    def line(self, call: RecordedCall) -> str:
        """The task or thread of a call. A session has one main task."""
        line = call.call.partition("#")[0]
        return line if self.place is None or line == _MAIN else f"{self.place.number}/{line}"


async def program_from_execution(
    store: ProgramStore, recorder: Recorder, stored: StoredExecution, first_cell: int | None = None
) -> DerivedProgram:
    """Make a program from an execution: a script's calls, or the program that was run.

    Of a cell, its session's cells up to it are taken as one script.

    Args:
        store: Keeps the execution, and those of the programs that it ran.
        recorder: Has their records.
        stored: The execution.
        first_cell: Of a cell, the number of the first one that is taken; by default the session's first.

    Raises:
        BridgeError: `bad_argument`: there is no such first cell; `erased`; `not_derivable`: it is under way, made no
            call, or too many.
    """
    refuse_erased(stored)
    place = Cell.of(stored) if stored.kind == "script" else None
    if first_cell is not None and not 1 <= first_cell <= (0 if place is None else place.number):
        last = "it is no cell of a session" if place is None else f"it is the cell {place.number} of its session"
        raise BridgeError("bad_argument", f"{stored.id} can't be taken from a cell {first_cell} on: {last}.")
    if stored.kind != "script":
        return DerivedProgram(stored.bundle["program"], [])
    if effective_status(stored) == "running":
        raise not_derivable(stored, "it is under way", NOT_YET)
    remarks: list[str] = []
    scripts = [
        await _Script.of(store, recorder, stored, None if place is None or place.number == first_cell else place)
    ]
    if place is not None:
        calls, taken = len(scripts[0].history.calls), place.number
        async for cell in chain(store, stored.principal, place.previous):
            at = Cell.of(cell)
            if at is None or at.number < (first_cell or 1) or calls > MAX_CALLS:
                break
            taken = at.number
            earlier = await _Script.of(store, recorder, cell, at)
            if left_by(cell) != "nothing":
                scripts.append(earlier)
                calls += len(earlier.history.calls)
            elif earlier.history.calls:
                ended = effective_status(cell)
                remarks.append(f"The cell {at.number} left nothing ({ended}), so its calls are no steps.")
        if taken > 1:
            remarks.append(f"The cells before the cell {taken} are left out: what came from them is written out here.")
    scripts.reverse()
    try:
        return _Derivation(scripts, remarks[::-1]).result()
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

    def __init__(self, scripts: Sequence[_Script], remarks: list[str]) -> None:
        self._scripts = scripts
        self._stored = stored = scripts[-1].stored
        self._remarks = remarks
        self._others: dict[str, int] = {}
        self._only_listed = False
        of_each = [
            [made for call in script.history.calls.values() if (made := self._made(script, call)) is not None]
            for script in scripts
        ]
        calls = [call for made in of_each for call in made]
        if not calls and self._only_listed:
            hint = "Once they are approved, the same code makes them: then choose it again."
            raise not_derivable(stored, "its dry run has listed its calls, and made none", hint)
        if not calls:
            raise not_derivable(stored, "it made no call", "Choose an execution that called a tool.")
        if len(calls) > MAX_CALLS:
            several = len(scripts) > 1
            why = f"{'these cells' if several else 'it'} made {len(calls)} calls; a program can be made of {MAX_CALLS}"
            hint = "Take fewer cells, with --first-cell." if several else "Choose a shorter one."
            raise not_derivable(stored, why, hint)
        self._calls = folded(sorted(calls, key=lambda call: call.asked))
        last = self._calls[-1]
        if stored.status != "success" and not last.succeeded and last.asked > scripts[-1].began:
            last.is_last = True
        set_levels(self._calls)
        self._name_steps()

    def _made(self, script: _Script, call: RecordedCall) -> Call | None:
        line, named = script.line(call), f"call {call.call}{script.cell}"
        if call.asked.name == _RUN_PROGRAM and call.asked.arguments is not None:
            if call.call not in script.runs:
                self._remarks.append(f"A program was not begun, so it is no step ({named}).")
                return None
            arguments = {name: call.asked.arguments.get(name) for name in ("program", "context")}
            answered, succeeded, value = script.runs[call.call]
            return Call(line, None, arguments, call.sequence, answered, succeeded, value)
        if call.asked.kind == WAIT:
            return self._waited(call, line, named)
        if call.asked.kind != "tool":
            self._others[call.asked.name] = self._others.get(call.asked.name, 0) + 1
            return None
        shown = f"{escape_name(call.asked.name)} ({named})"
        if isinstance(call.outcome, RequestOutcome):
            if isinstance(call.outcome.result, Planned):
                self._only_listed = True
                self._remarks.append(f"{shown} was listed by a dry run and not made, so it is no step.")
            else:
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
        return Call(line, tool, arguments, call.sequence, call.answered, succeeded, value)

    def _waited(self, call: RecordedCall, line: str, named: str) -> Call | None:
        """A wait as a step; None for one that was over at once, was refused, or was taken back by the script."""
        result = None if call.outcome is None else call.outcome.result
        arguments = call.asked.arguments
        refused = isinstance(result, Failure) and result.code != "event_timeout"
        if not isinstance(arguments, dict) or refused or (result is not None and result.status == CANCELLED_BY_SCRIPT):
            return None
        seconds = round(max(0.0, arguments["until"] - call.began), 3) if "until" in arguments else None
        if call.asked.name == WAIT_EVENT:
            wait: Step = {"event": arguments["name"]} | ({"timeout_seconds": seconds} if seconds else {})
        elif seconds:
            wait = {"seconds": seconds}
            self._remarks.append(f"The wait ({named}) was for a time: its step waits for as long as the script did.")
        else:
            return None
        value = result.value.get("value") if isinstance(result, Success) and "event" in wait else MISSING
        return Call(line, None, arguments, call.sequence, call.answered, isinstance(result, Success), value, wait=wait)

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

    def _group_name(self, first: Call) -> str:
        """An id for the step that makes several calls at once."""
        name, taken = f"{first.step}_and_others", {call.step for call in self._calls}
        while name in taken:
            name += "_"
        return name

    def result(self) -> DerivedProgram:
        """The program.

        Raises:
            InvalidProgramError: It would be larger than programs may be, or has a program that there isn't.
        """
        # At first every text that can be JSON is a value; one that no reference leads into is a text after all.
        for call in self._calls:
            if call.wait is None and (value := _json_in(call.value)) is not None:
                call.text, call.value = call.value, value
        _, sources = self._steps()
        copied = sources.copied
        entered = sources.entered.union(*(group for group in self._mapped if not group.isdisjoint(sources.entered)))
        for call in self._calls:
            if call.text is not None and call.step not in entered:
                call.text, call.value = None, call.text
        steps, sources = self._steps()
        data = {
            "name": f"from-{self._stored.id[:8]}",
            "description": f"Made from {self._made_from()}.",
            "steps": steps,
        }
        programs = {name: program for script in self._scripts for name, program in script.named.items()}
        parse(data, programs.get)
        if self._others:
            counted = ", ".join(f"{name} ({count})" for name, count in sorted(self._others.items()))
            self._remarks.append(f"These requests of the script are no steps: {counted}.")
        if sources.context:
            self._remarks.append(f"Sensitive values that the context has to give: {', '.join(sources.context)}.")
        if copied:
            shown = [f"{value} ({place.removeprefix('$')})" for value, place in copied.items()][:MAX_COPIES]
            more = f" and {len(copied) - MAX_COPIES} more" if len(copied) > MAX_COPIES else ""
            self._remarks.append(
                "Perhaps these should be references: the code has written out what an earlier call has given, too:"
                f" {', '.join(shown)}{more}."
            )
        if sources.lists.is_spent:
            self._remarks.append("These calls were too many to look for each map that could be made of them.")
        return DerivedProgram(data, self._remarks)

    def _made_from(self) -> str:
        first, last = (Cell.of(self._scripts[number].stored) for number in (0, -1))
        if len(self._scripts) == 1 or first is None or last is None:
            return f"the script {self._stored.id}"
        cells = f"the cells {first.number} to {last.number} of the session {last.session}"
        return f"{cells}, the last of them {self._stored.id}"

    def _steps(self) -> tuple[list[Step], ArgumentSources]:
        codes = [Code(script.began, script.stored.bundle.get("code") or "") for script in self._scripts]
        sources = ArgumentSources(codes, {call.step for call in self._calls})
        self._mapped: list[set[str]] = []
        steps: list[Step] = []
        levels = by_level(self._calls)
        ends, before = _alike_until(levels), [0, *itertools.accumulate(map(len, levels))]
        at_count = {count: at for at, count in enumerate(before)}
        at = 0
        while at < len(levels):
            # The first of a level was made before all later levels: each of their calls came after one of this one.
            asked = min(call.asked for call in levels[at])
            for length in sources.lists.lengths(asked) if ends[at] > at else ():
                end = at_count.get(before[at] + length, 0)
                if at < end <= ends[at] and length >= MIN_MAP_CALLS:
                    calls = sorted((call for level in levels[at:end] for call in level), key=lambda call: call.asked)
                    if (mapped := self._map(sources, calls)) is not None:
                        steps.append(mapped)
                        at = end
                        break
            else:
                steps += self._level(sources, levels[at])
                at += 1
        return steps, sources

    def _level(self, sources: ArgumentSources, calls: list[Call]) -> list[Step]:
        tools = [call for call in calls if call.tool is not None]
        steps = [_step(sources, call) for call in calls if call.tool is None and call.wait is None]
        if len(tools) > 1:
            step: Step = {"id": self._group_name(tools[0]), "type": "parallel"}
            if (at_once := most_at_once(tools)) < len(tools):
                step["max_concurrency"] = at_once
            steps.append(step | {"parallel_steps": [_step(sources, call) for call in tools]})
        else:
            steps += [_step(sources, call) for call in tools]
        # What was done beside a wait is done before it.
        steps += [_step(sources, call) for call in calls if call.wait is not None]
        for call in calls:
            _publish(sources, call, (call.step,))
        return steps

    def _map(self, sources: ArgumentSources, calls: Sequence[Call]) -> Step | None:
        """One step for calls of one tool, each with an item of a list of an earlier outcome; None if they aren't."""
        first = calls[0]
        found = sources.map_template([call.arguments for call in calls], first.asked)
        if found is None:
            return None
        step: Step = {"id": first.step, "type": "map", "over": found.place.reference}
        if (at_once := most_at_once(calls)) < len(calls):
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


def _publish(sources: ArgumentSources, call: Call, root: tuple[str, ...]) -> None:
    """Make the outcome of a call known to the calls after it."""
    if call.succeeded and call.value is not MISSING:
        sources.add(call.step, root, call.answered, call.value, call.text)


def _step(sources: ArgumentSources, call: Call) -> Step:
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


def _about_errors(call: Call) -> Step:
    fields: Step = {}
    if call.text is not None:
        fields["parse"] = "json"
    if call.attempts > 1:
        fields["retry"] = {"max_attempts": call.attempts}
    if not call.succeeded and not call.is_last:
        # The script went on.
        fields["on_error"] = "skip"
    return fields


def _alike_until(levels: Sequence[Sequence[Call]]) -> list[int]:
    """For each level the end of those from there on that one map could make; its own number if none could.

    These are calls of one tool, each made once, with success.
    """
    ends = list(range(len(levels)))
    for at in range(len(levels) - 1, -1, -1):
        tool = levels[at][0].tool
        if tool is not None and all(call.tool == tool and call.succeeded and call.attempts == 1 for call in levels[at]):
            goes_on = at + 1 < len(levels) and levels[at + 1][0].tool == tool
            ends[at] = max(at + 1, ends[at + 1]) if goes_on else at + 1
    return ends
