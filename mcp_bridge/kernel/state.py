"""A machine's state as canonical bytes, and back: to be suspended here and resumed in another process, another day.

Two states that are equal have equal bytes (RFC 8785), and so equal hashes. The program isn't in them, only its hash:
whoever restores a state brings the program, and gets an error if it is another one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.events import Effect, StepResult, Usage
from mcp_bridge.kernel.machine import UNDO_STEP, Machine
from mcp_bridge.kernel.tasks import UNDO, Group, Leaf, Level, Nested, Task
from mcp_bridge.kernel.values import canonical

if TYPE_CHECKING:
    from mcp_bridge.kernel.program import Program, Step

VERSION = 1

Json = dict[str, Any]


class StateError(ValueError):
    """Bytes that are no state of this program.

    Attributes:
        code: `bad_state`, `other_version`, `other_program`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def dump(machine: Machine) -> bytes:
    """The state as canonical JSON."""
    return canonical(
        {
            "version": VERSION,
            "program": machine.program.hash,
            "last_effect": machine.last_effect,
            "pending": [[number, code] for number, code in machine.pending.items()],
            "rows": [row_json(row) for row in machine.rows],
            "level": _level(machine.level),
        }
    )


def restore(program: Program, data: bytes) -> Machine:
    """A machine in the state that `dump` wrote down. `effects` is empty: `awaited` tells what it waits for.

    Raises:
        StateError: The bytes are damaged, of a later version, or of another program.
    """
    try:
        state = json.loads(data)
        if state["version"] != VERSION:
            raise StateError("other_version", f"the state has the version {state['version']}, and not {VERSION}")
        if state["program"] != program.hash:
            raise StateError(
                "other_program", f"the state belongs to the program {state['program'][:12]}, not {program.hash[:12]}"
            )
        level = Level(program, {}, None, "")
        reader = _Reader()
        reader.level(level, state["level"])
        rows = [_row(row) for row in state["rows"]]
        return Machine.of_parts(
            level,
            rows,
            state["last_effect"],
            dict(state["pending"]),
            reader.waiting,
            reader.deadlines,
        )
    except StateError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError) as exc:
        raise StateError("bad_state", f"these bytes are no state: {type(exc).__name__}: {exc}") from None


def row_json(row: StepResult) -> Json:
    """A row of the trace as a JSON object; what is empty is left out."""
    out: Json = {"id": row.id, "status": row.status}
    if row.status in {"success", "pending"}:
        out["output"] = row.output
    if row.error is not None:
        out["error"], out["code"] = row.error, row.code
    if row.retries:
        out["retries"] = row.retries
    if row.usage is not None:
        out["usage"] = row.usage._asdict()
    return out


def _row(data: Json) -> StepResult:
    usage = Usage(**data["usage"]) if "usage" in data else None
    return StepResult(
        data["id"],
        data["status"],
        data.get("output"),
        data.get("error"),
        data.get("code"),
        data.get("retries", 0),
        usage,
    )


_PLAIN = ("context", "outputs", "position", "branch", "steps", "tokens", "last_output", "stalled", "changed", "status")


def _level(level: Level) -> Json:
    out: Json = {name: getattr(level, name) for name in _PLAIN}
    out["undo"] = [list(undo) for undo in level.undo]
    out["ending"] = level.ending and list(level.ending)
    out["task"] = level.task and _task(level.task)
    return out


def _task(task: Task) -> Json:
    out: Json = {
        "undo": task.slot == UNDO,
        "attempt": task.attempt,
        "phase": task.phase,
        "usage": task.usage and task.usage._asdict(),
        "effect": task.effect and task.effect._asdict(),
        "deadline": task.deadline and task.deadline._asdict(),
    }
    if isinstance(task, Group):
        out["items"], out["next"] = task.items, task.next
        out["tasks"] = {str(slot): _task(child) for slot, child in enumerate(task.tasks) if child is not None}
        out["results"] = {str(slot): row_json(row) for slot, row in enumerate(task.results) if row is not None}
    elif isinstance(task, Nested):
        out["inner"] = task.inner and _level(task.inner)
    return out


class _Reader:
    """Builds levels and tasks, and collects what waits."""

    def __init__(self) -> None:
        self.waiting: dict[int, Task] = {}
        self.deadlines: dict[int, Task] = {}

    def level(self, level: Level, data: Json) -> None:
        for name in _PLAIN:
            setattr(level, name, data[name])
        level.undo = [(path, tool, arguments) for path, tool, arguments in data["undo"]]
        level.ending = tuple(data["ending"]) if data["ending"] else None
        task = data["task"]
        if task is None:
            return
        if task["undo"]:
            path = f"{level.undo[-1][0]}.compensate"
            level.task = self._task(task, Leaf(UNDO_STEP, level, None, UNDO, None, path))
        else:
            step = level.program.steps[level.position]
            level.task = self._task(task, self._empty(step, level, None, 0, None, level.prefix + step.id, data=task))

    def _empty(
        self,
        step: Step,
        level: Level,
        owner: Group | None,
        slot: int,
        scope: Json | None,
        path: str,
        *,
        data: Json,
    ) -> Task:
        if step.kind in {"parallel", "map"}:
            return Group(step, level, owner, slot, scope, path, items=data["items"])
        return (Nested if step.kind == "program" else Leaf)(step, level, owner, slot, scope, path)

    def _task(self, data: Json, task: Task) -> Task:
        task.attempt, task.phase = data["attempt"], data["phase"]
        task.usage = Usage(**data["usage"]) if data["usage"] else None
        if data["effect"]:
            task.effect = Effect(**data["effect"])
            self.waiting[task.effect.id] = task
        if data["deadline"]:
            task.deadline = Effect(**data["deadline"])
            self.deadlines[task.deadline.id] = task
        if isinstance(task, Group):
            task.next, task.active = data["next"], len(data["tasks"])
            for slot, row in data["results"].items():
                task.results[int(slot)] = _row(row)
            for slot, child in data["tasks"].items():
                task.tasks[int(slot)] = self._task(child, self._empty(*task.place(int(slot)), data=child))
        elif isinstance(task, Nested) and data["inner"]:
            assert task.step.program is not None  # noqa: S101 - the validator's word
            task.inner = Level(task.step.program, {}, task, f"{task.path}/")
            self.level(task.inner, data["inner"])
        return task
