"""A machine's state as canonical bytes, and back: an execution is suspended in one process and resumed in another.

Equal states have equal bytes (RFC 8785), and so equal hashes. The program isn't in them, only its hash: the caller of
`restore` brings the program.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, get_args

from mcp_bridge.kernel.awaited_effects import VERSION, known_version
from mcp_bridge.kernel.compensation import compensation_for
from mcp_bridge.kernel.events import Effect, EffectKind, Status, StepResult, StepStatus, Usage
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.program_flow import Group, Leaf, Level, Map, Nested, Task, task_for
from mcp_bridge.kernel.step_types import CompensationStep, MapStep
from mcp_bridge.kernel.values import canonical, normal

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code
    from mcp_bridge.kernel.language.program_parser import Program

Json = dict[str, Any]


class StateError(ValueError):
    """Bytes that aren't a state of this program.

    Attributes:
        code: `bad_state`, `other_version`, `other_program`.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def dump(machine: Machine) -> bytes:
    """The state as canonical JSON."""
    return canonical(tree(machine))


def tree(machine: Machine) -> Json:
    """The state as JSON. It doesn't change when the machine goes on, so another thread may encode it."""
    return {
        "version": machine.version,
        "program": machine.program.hash,
        "last_effect": machine.last_effect,
        "pending": [[number, code] for number, code in machine.pending.items()],
        "rows": [row_json(row) for row in machine.rows],
        "level": _level(machine.level),
    }


def restore(program: Program, data: bytes) -> Machine:
    """A machine in the state that `dump` wrote. Its `effects` are empty: `awaited` has what it waits for.

    The form of the bytes is checked, not their authenticity: the caller has to know their hash.

    Raises:
        StateError: The bytes are damaged, of a later version, or of another program.
    """
    try:
        state = json.loads(data, parse_float=lambda text: normal(float(text)))
        version = state["version"]
        if not known_version(version):
            raise StateError("other_version", f"the state has the version {version}, and not 1 to {VERSION}")
        if state["program"] != program.hash:
            raise StateError(
                "other_program", f"the state belongs to the program {state['program'][:12]}, not {program.hash[:12]}"
            )
        level = Level(program, {}, None, "")
        reader = _Reader()
        reader.level(level, state["level"])
        rows = [_row(row) for row in state["rows"]]
        last = _of(int, state["last_effect"])
        pending = {number: _of(str, code) for number, code in state["pending"]}
        if not all(0 < number <= last for number in reader.numbers) or not pending.keys() <= reader.waiting.keys():
            raise ValueError("effects that there can't be")
        machine = Machine.of_parts(level, rows, last, pending, reader.waiting, reader.deadlines, version)
        if dump(machine) != data:
            raise ValueError("not in canonical form, or with something in them that has no place there")
    except StateError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError) as exc:
        raise StateError("bad_state", f"these bytes are no state: {type(exc).__name__}: {exc}"[:300]) from None
    return machine


def row_json(row: StepResult) -> Json:
    """A row of the trace as a JSON object, without empty fields."""
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


def trace_rows_with_reasons(machine: Machine) -> list[Json]:
    """The rows of the trace for people: as JSON objects, with the reasons why conditions failed as `why`."""
    rows = [row_json(row) for row in machine.rows]
    for index, text in machine.reasons.items():
        # The row of an inner program's condition comes only when that program has ended.
        if index < len(rows):
            rows[index]["why"] = text
    return rows


def _of(kind: type | tuple[type, ...], value: Any) -> Any:
    """The value, if it is of this type."""
    if type(value) not in (kind if isinstance(kind, tuple) else (kind,)):
        raise TypeError(f"a {type(value).__name__} where {kind} should be")
    return value


def _one_of(names: Any, value: Any) -> Any:
    """The value, if it is one of the names of a literal type."""
    if value not in get_args(names):
        raise ValueError(f"{str(value)[:60]!r} isn't one of {', '.join(get_args(names))}")
    return value


def _row(data: Json) -> StepResult:
    return StepResult(
        _of(str, data["id"]),
        _one_of(StepStatus, data["status"]),
        data.get("output"),
        _of(_TEXT, data.get("error")),
        _of(_TEXT, data.get("code")),
        _of(int, data.get("retries", 0)),
        _usage(data.get("usage")),
    )


def _usage(data: Json | None) -> Usage | None:
    if data is None:
        return None
    usage = Usage(**data)
    for count in usage:
        _of((int, float), count)
    return usage


def _effect(data: Json) -> Effect:
    effect = Effect(**data)
    _one_of(EffectKind, effect.kind)
    for text in (effect.step, effect.name):
        _of(str, text)
    _of(int, effect.attempt)
    _of(dict, effect.arguments)
    _of((int, float, type(None)), effect.timeout)
    return effect


_TEXT = (str, type(None))
_PLAIN: dict[str, tuple[type, ...]] = {
    "context": (dict,),
    "outputs": (dict,),
    "position": (int,),
    "branch": (bool,),
    "steps": (int,),
    "tokens": (int,),
    "last_output": (dict, list, str, int, float, bool, type(None)),
    "stalled": (int,),
    "changed": (bool, type(None)),
    "status": (str,),
}
_PHASES = Literal["run", "backoff", "aborted"]


def _level(level: Level) -> Json:
    out: Json = {name: getattr(level, name) for name in _PLAIN}
    # Copied, since names get other values; the values themselves never change.
    out["context"], out["outputs"] = dict(level.context), dict(level.outputs)
    out["undo"] = [list(undo) for undo in level.undo]
    out["ending"] = level.ending and list(level.ending)
    out["task"] = level.task and _task(level.task)
    return out


def _task(task: Task) -> Json:
    out: Json = {
        "undo": isinstance(task.step, CompensationStep),
        "attempt": task.attempt,
        "phase": task.phase,
        "usage": task.usage and task.usage._asdict(),
        "effect": task.effect and task.effect._asdict(),
        "deadline": task.deadline and task.deadline._asdict(),
    }
    if isinstance(task, Group):
        out["items"], out["next"] = task.items if isinstance(task, Map) else None, task.next
        out["tasks"] = {str(slot): _task(child) for slot, child in enumerate(task.tasks) if child is not None}
        out["results"] = {str(slot): row_json(row) for slot, row in enumerate(task.results) if row is not None}
    elif isinstance(task, Nested):
        out["inner"] = task.inner and _level(task.inner)
    return out


class _Reader:
    """Makes levels and tasks, and collects those that wait."""

    def __init__(self) -> None:
        self.waiting: dict[int, Task] = {}
        self.deadlines: dict[int, Task] = {}
        self.numbers: set[int] = set()

    def level(self, level: Level, data: Json) -> None:
        for name, kinds in _PLAIN.items():
            setattr(level, name, _of(kinds, data[name]))
        _one_of(Status, level.status)
        for path, tool, arguments in data["undo"]:
            level.undo.append((_of(str, path), _of(str, tool), _of((dict, type(None)), arguments)))
        if data["ending"]:
            status, code, message = data["ending"]
            level.ending = (_one_of(Status, status), _of(str, code), _of(_TEXT, message))
        task = data["task"]
        if (task is None) is (level.status == "running") or not 0 <= level.position <= len(level.program.steps):
            raise ValueError(f"a program that is {level.status} at step {level.position} can't be so")
        if task is None:
            return
        if task["undo"]:
            level.task = self._task(task, compensation_for(level))
        else:
            instruction = level.program.instructions[level.position]
            items = _of(list, task["items"]) if isinstance(instruction.step, MapStep) else []
            level.task = self._task(task, task_for(level, instruction, items))

    def _task(self, data: Json, task: Task) -> Task:
        task.attempt, task.phase = _of(int, data["attempt"]), _one_of(_PHASES, data["phase"])
        task.usage = _usage(data["usage"])
        if bool(data["effect"]) is bool(data.get("tasks") or data.get("inner")):
            raise ValueError("a step waits for an effect or for what is beneath it")
        if data["effect"]:
            if task.phase != "backoff" and not (task.phase == "run" and isinstance(task, Leaf)):
                raise ValueError("a task waits for an effect that isn't its own")
            task.effect = _effect(data["effect"])
            self._awaits(task.effect.id, task, self.waiting)
        if data["deadline"]:
            task.deadline = _effect(data["deadline"])
            self._awaits(task.deadline.id, task, self.deadlines)
        if isinstance(task, Group):
            if not isinstance(task, Map):
                _of(type(None), data["items"])
            task.next, task.active = _of(int, data["next"]), len(data["tasks"])
            for slot, row in data["results"].items():
                task.results[int(slot)] = _row(row)
            for slot, child in data["tasks"].items():
                task.tasks[int(slot)] = self._task(child, task.task_for(int(slot)))
        elif isinstance(task, Nested) and data["inner"]:
            task.inner = Level(task.step.program, {}, task, f"{task.path}/")
            self.level(task.inner, data["inner"])
        return task

    def _awaits(self, number: int, task: Task, awaited: dict[int, Task]) -> None:
        if _of(int, number) in self.numbers:
            raise ValueError(f"effect {number} is awaited twice")
        self.numbers.add(number)
        awaited[number] = task
