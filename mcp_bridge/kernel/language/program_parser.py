"""Programs: from untrusted data to steps that the machine can run, or to a list of everything that is wrong with it."""

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mcp_bridge.kernel.language import format_faults
from mcp_bridge.kernel.language import step_fields as form
from mcp_bridge.kernel.language.conditions import ConditionSyntaxError, condition
from mcp_bridge.kernel.language.format_faults import Fault
from mcp_bridge.kernel.language.references import STANDALONE
from mcp_bridge.kernel.step_types import (
    ApprovalStep,
    ConditionStep,
    EventStep,
    MapStep,
    ModelStep,
    ParallelStep,
    Program,
    ProgramStep,
    Row,
    Step,
    ToolStep,
    WaitStep,
)
from mcp_bridge.kernel.values import ValueFaultError, canonical, normal

__all__ = [
    "MAX_BYTES", "MAX_CACHED_CHARS", "MAX_FAULTS", "MAX_NESTED_PROGRAMS", "InvalidProgramError", "Program", "Resolve",
    "bundle", "parse", "unbundle",
]  # fmt: skip

MAX_BYTES = 8 << 20
"""Largest program, in canonical bytes."""

MAX_CACHED_CHARS = 64 << 10
"""Largest program, as JSON text, that is cached."""

MAX_NESTED_PROGRAMS = 8
"""Deepest chain of programs that run programs."""

MAX_FAULTS = 200
"""Most faults that are reported of one program; after that many the rest of it isn't read."""

_MAX_HINTS, _MAX_HINT_IDS, _MAX_HINT_CHARS = 20, 200, 60
"""Bounds on the search for the id that was meant: faults with a hint, ids compared, characters of an id."""

_TARGETS = ("next_step", "then", "otherwise")
"""Fields of a row that name another step."""

Resolve = Callable[[str], "Program | None"]
"""The program with this name, or None. An `InvalidProgramError` becomes a fault of the step that runs it."""


class InvalidProgramError(ValueError):
    """Data that isn't a valid program.

    Attributes:
        faults: Everything that is wrong with it (at most `MAX_FAULTS`), in the order of the data.
    """

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = tuple(faults)
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(f"the program is not valid: {faults[0]}{more}")


def bundle(program: Program) -> dict[str, Any]:
    """A program with all that it runs by name, innermost first: `{"program": …, "uses": [[name, program], …]}`."""
    found: dict[str, Any] = {}

    def collect(outer: Program) -> None:
        for name, inner in outer.uses.items():
            if name not in found:
                collect(inner)
                found[name] = inner.data

    collect(program)
    return {"program": program.data, "uses": [[name, data] for name, data in found.items()]}


def unbundle(data: dict[str, Any]) -> Program:
    """The program that `bundle` wrote down; the last ones that were read are cached.

    Raises:
        InvalidProgramError: As `parse`.
    """
    try:
        text = json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        return _unbundle(data)
    return _unbundle(data) if len(text) > MAX_CACHED_CHARS else _cached(text)


@functools.lru_cache(maxsize=32)
def _cached(text: str) -> Program:
    return _unbundle(json.loads(text))


def _unbundle(data: dict[str, Any]) -> Program:
    known: dict[str, Program] = {}
    for name, inner in data["uses"]:
        known[name] = parse(inner, known.get)
    return parse(data["program"], known.get)


def parse(data: Any, resolve: Resolve | None = None) -> Program:
    """Read a program.

    Args:
        data: Untrusted.
        resolve: Finds the programs that its steps run by name.

    Raises:
        InvalidProgramError: With all of its faults.
    """
    try:
        data = normal(data)
    except ValueFaultError as exc:
        raise InvalidProgramError([Fault(exc.path, "not_json", exc.reason)]) from None
    if not isinstance(data, dict):
        raise InvalidProgramError([Fault("", "bad_type", "a program is an object with a list of 'steps'")])
    size = len(canonical(data))
    if size > MAX_BYTES:
        raise InvalidProgramError([Fault("", "too_large", f"the program has {size} bytes; the limit is {MAX_BYTES}")])
    # Cached, so that a name stands for one program throughout, even if the store changes meanwhile.
    return _Parser(functools.cache(resolve or _resolve_nothing), 0).program(data)


def _resolve_nothing(_name: str) -> None:
    return None


class _Parser:
    """Parses one program, and goes on after each fault."""

    def __init__(self, resolve: Resolve, depth: int) -> None:
        self._resolve = resolve
        self._depth = depth
        self._faults: list[Fault] = []
        self._paths: dict[str, str] = {}
        """Of the first step with each id."""
        self._index: dict[str, int] = {}
        """The same steps' indices, of those in the list itself."""
        self._uses: dict[str, Program] = {}

    def program(self, data: dict[str, Any]) -> Program:
        properties = {name: fragment for name, (fragment, _) in form.PROGRAM.items()}
        fragment = {"properties": properties, "required": ["steps"], "additionalProperties": False}
        self._add(format_faults.faults(data, fragment, ""))
        rows = data.get("steps")
        rows = rows if isinstance(rows, list) and len(rows) <= form.MAX_STEPS else []
        self._index = {row["id"]: index for index, row in reversed(list(enumerate(rows))) if _has_id(row)}
        steps = [self._step(row, f"steps[{index}]", index) for index, row in enumerate(rows)]
        for index, row in enumerate(rows):
            if isinstance(row, dict):
                self._check_targets(row, f"steps[{index}]")
        if self._faults:
            raise InvalidProgramError(self._faults)
        return Program(data, [step for step in steps if step], self._uses)

    def _step(self, row: Any, path: str, index: int, place: form.Place = "program") -> Step | None:
        """The step, or None if it has a fault; steps inside it are parsed either way."""
        before = len(self._faults)
        if before >= MAX_FAULTS:
            return None
        kinds = {"program": tuple(form.TYPES), "parallel": form.PARALLEL_TYPES, "map": form.MAP_TYPES}[place]
        if not isinstance(row, dict):
            self._fault(path, "bad_type", "a step is an object with 'id' and 'type'")
            return None
        self._take_id(row, path, place)
        kind = row.get("type")
        if kind not in kinds:
            self._wrong_type(row, kind, kinds, path)
            if place != "map" and "id" not in row:
                self._fault(path, "missing_field", "'id' is missing")
            return None
        self._add(_in_context(format_faults.faults(row, form.step_fragment(kind, place), path), row, kind, path, place))
        if (one_of := form.TYPES[kind].one_of) and all(row.get(name) is None for name in one_of):
            self._fault(path, "missing_field", f"a {kind} step needs {' or '.join(map(repr, one_of))}")
        if row.get("seconds") is not None and row.get("event") is not None:
            self._fault(path, "bad_value", "a wait is for 'seconds' or for an 'event', not both")
        children = self._children(row, kind, path)
        self._check_condition(row, kind, path)
        program = self._program(row, kind, path)
        self._check_retry_and_references(row, path)
        return None if len(self._faults) > before else self._made(row, index, children, program)

    def _made(self, row: Row, index: int, children: tuple[Step, ...], program: Program | None) -> Step:
        """The step of a row without a fault. Targets that don't exist are left out, and become faults later."""
        named = {name: row[name] for name in _TARGETS if row.get(name) is not None}
        targets = {name: self._index[target] for name, target in named.items() if target in self._index}
        match row["type"]:
            case "tool":
                return ToolStep(row, index, targets)
            case "llm":
                return ModelStep(row, index, targets)
            case "condition":
                return ConditionStep(row, index, targets)
            case "parallel":
                return ParallelStep(row, index, targets, children)
            case "approval":
                return ApprovalStep(row, index, targets)
            case "wait":
                return WaitStep(row, index, targets) if row.get("event") is None else EventStep(row, index, targets)
            case "map":
                return MapStep(row, index, targets, children[0])
        assert program is not None  # without a program it has a fault
        return ProgramStep(row, index, targets, program)

    def _take_id(self, row: dict[str, Any], path: str, place: form.Place) -> None:
        if place == "map" or not _has_id(row):
            return
        name = row["id"]
        if name in self._paths:
            self._fault(f"{path}.id", "duplicate_id", f"{self._paths[name]} has the id {name!r} already")
        else:
            self._paths[name] = path

    def _wrong_type(self, row: dict[str, Any], kind: Any, kinds: tuple[str, ...], path: str) -> None:
        listed = ", ".join(kinds)
        if "type" not in row:
            self._fault(path, "missing_field", f"'type' is missing: {listed}")
        elif isinstance(kind, str) and kind in form.TYPES:
            self._fault(f"{path}.type", "bad_value", f"a step of type {kind} can't stand here: {listed}")
        else:
            self._fault(f"{path}.type", "bad_value", f"{str(kind)[:60]!r} is no type of step: {listed}")

    def _children(self, row: dict[str, Any], kind: str, path: str) -> tuple[Step, ...]:
        children: list[Step | None] = []
        if kind == "parallel" and isinstance(row.get("parallel_steps"), list):
            rows = enumerate(row["parallel_steps"])
            children = [self._step(child, f"{path}.parallel_steps[{number}]", -1, "parallel") for number, child in rows]
        elif kind == "map" and isinstance(row.get("step"), dict):
            children = [self._step(row["step"], f"{path}.step", -1, "map")]
        return tuple(child for child in children if child)

    def _check_condition(self, row: dict[str, Any], kind: str, path: str) -> None:
        text = row.get("condition")
        if kind != "condition" or not isinstance(text, str) or not text:
            return
        try:
            condition(text)
        except ConditionSyntaxError as exc:
            self._fault(f"{path}.condition", "bad_condition", str(exc))

    def _program(self, row: dict[str, Any], kind: str, path: str) -> Program | None:
        given = row.get("program")
        if kind != "program" or not isinstance(given, (str, dict)):
            return None
        where = f"{path}.program"
        if isinstance(given, dict):
            if self._depth >= MAX_NESTED_PROGRAMS:
                self._fault(where, "too_large", f"programs nest deeper than {MAX_NESTED_PROGRAMS}")
                return None
            try:
                inner = _Parser(self._resolve, self._depth + 1).program(given)
            except InvalidProgramError as exc:
                self._add(fault._replace(path=f"{where}.{fault.path}".rstrip(".")) for fault in exc.faults)
                return None
            self._uses |= inner.uses
        else:
            found = self._named(given, where)
            if found is None:
                return None
            inner = self._uses[given] = found
        if self._depth + inner.nested >= MAX_NESTED_PROGRAMS:
            self._fault(where, "too_large", f"programs nest deeper than {MAX_NESTED_PROGRAMS}")
        return inner

    def _named(self, name: str, where: str) -> Program | None:
        try:
            found = self._resolve(name) if name else None
        except InvalidProgramError as exc:
            first = exc.faults[0]
            self._fault(where, first.code, f"the program {name[:60]!r} can't be run: {first}")
            return None
        if found is None:
            self._fault(where, "unknown_program", f"there is no program {name[:60]!r}")
        return found

    def _check_retry_and_references(self, row: dict[str, Any], path: str) -> None:
        retry = row.get("retry")
        if isinstance(retry, dict) and "schedule" in retry and len(retry) > 1:
            self._fault(f"{path}.retry", "bad_value", "'schedule' says it all: leave the other fields out")
        for name, kind, wanted in (
            ("seconds", "wait", "neither a number nor a reference such as '$pause'"),
            ("over", "map", "no reference such as '$items'"),
        ):
            text, where = row.get(name), f"{path}.{name}"
            if isinstance(text, str) and not STANDALONE.fullmatch(text) and row.get("type") == kind:
                # One fault for one mistake: a text that is too short for a reference has one already.
                known = next((fault.code for fault in self._faults if fault.path == where), None)
                self._faults = [fault for fault in self._faults if fault.path != where]
                self._fault(where, "bad_reference" if known is None else known, f"{text[:60]!r} is {wanted}")

    def _check_targets(self, row: dict[str, Any], path: str) -> None:
        for name in _TARGETS:
            target = row.get(name)
            if isinstance(target, str) and target and target not in self._index:
                self._fault(f"{path}.{name}", "unknown_step", f"no step {target[:60]!r}{self._hint(target)}")

    def _hint(self, target: str) -> str:
        ids = self._index
        if len(self._faults) >= _MAX_HINTS or len(ids) > _MAX_HINT_IDS or len(target) > _MAX_HINT_CHARS:
            return ""
        import difflib  # noqa: PLC0415  (few programs have a fault)

        close = difflib.get_close_matches(target, [name for name in ids if len(name) <= _MAX_HINT_CHARS], n=1)
        return f"; did you mean {close[0]!r}?" if close else ""

    def _fault(self, path: str, code: str, message: str) -> None:
        self._add([Fault(path, code, message)])

    def _add(self, faults: Iterable[Fault]) -> None:
        self._faults += itertools.islice(faults, max(MAX_FAULTS - len(self._faults), 0))


def _has_id(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("id"), str) and bool(row["id"])


def _in_context(
    faults: Iterator[Fault], row: dict[str, Any], kind: str, path: str, place: form.Place
) -> Iterator[Fault]:
    """The faults; one of a field that belongs to another type of step says so, not which value it would need here."""
    known = {"type", "id", *form.TYPES[kind].required, *form.TYPES[kind].optional}
    for fault in faults:
        name = fault.path[len(path) + 1 :]
        if name in row and name in form.FIELDS and name not in known:
            *others, last = (other for other, spec in form.TYPES.items() if name in spec.required + spec.optional)
            owners = f"{', '.join(others)} and {last}" if others else last
            message = f"this belongs to {owners} steps; this step is of type {kind}"
            yield fault._replace(code="unknown_field", message=message)
        elif place != "program" and name in {"is_terminal", "next_step"}:
            yield fault._replace(code="unknown_field", message="a step inside another has no flow of its own")
        else:
            yield fault
