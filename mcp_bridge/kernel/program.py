"""Programs: from untrusted data to steps that the machine can run, or to a list of everything that is wrong with it."""

import difflib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from mcp_bridge.kernel import format as form
from mcp_bridge.kernel.conditions import ConditionSyntaxError, condition
from mcp_bridge.kernel.format import Fault
from mcp_bridge.kernel.references import NAME, PATH, Template, names_of
from mcp_bridge.kernel.values import ValueFaultError, canonical, digest, normal

MAX_BYTES = 8 << 20
"""Largest program, in canonical bytes."""

MAX_REMEMBERED_CHARS = 64 << 10
"""Largest program, as JSON text, that is kept at hand for being run again."""

MAX_NESTED_PROGRAMS = 8
"""Deepest chain of programs that run programs."""

MAX_FAULTS = 200
"""Faults that are told of one program; after as many it is read no further."""

_MAX_HINTS, _MAX_HINT_IDS, _MAX_HINT_CHARS = 20, 200, 60
"""What finding the id that was meant may cost: in how many faults, among how many ids, of what length."""

BACKOFF_SECONDS = 30.0
"""Longest wait before another attempt, where a step doesn't say."""

_REFERENCE = re.compile(rf"\${PATH}")

Resolve = Callable[[str], "Program | None"]
"""A program by the name that a `program` step uses, or None; an `InvalidProgramError` becomes a fault of that step."""


class InvalidProgramError(ValueError):
    """Data that is no program.

    Attributes:
        faults: Everything that is wrong with it (at most `MAX_FAULTS`), in the order of the data.
    """

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = tuple(faults)
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(f"the program is not valid: {faults[0]}{more}")


class Retry(NamedTuple):
    """When to try again.

    Attributes:
        attempts: In all, the first included.
        schedule: Seconds before the second, third… attempt; empty for exponential waits.
        delay, multiplier, most: Of exponential waits: the first, the factor, the longest.
    """

    attempts: int = 1
    schedule: tuple[float, ...] = ()
    delay: float = 1
    multiplier: float = 2
    most: float = BACKOFF_SECONDS

    def seconds(self, attempt: int) -> float:
        """How long to wait after attempt number `attempt` (from 1) has failed."""
        if self.schedule:
            return self.schedule[attempt - 1]
        seconds = self.delay
        # Not `**`: of a fraction that is the C library's power, whose last digit differs from one to the next.
        for _ in range(attempt - 1):
            if seconds >= self.most:
                break
            seconds *= self.multiplier
        return cast("float", normal(min(seconds, self.most)))


_ONCE = Retry()


class Compensation(NamedTuple):
    """What undoes a step that has succeeded."""

    tool: str
    args: Template


_NOTHING, _NO_FIELDS = Template(None), Template({})
"""What most of a step's templates are: these are shared."""


class Step:
    """A step, ready to run. Only the attributes of its own type are set to something.

    Attributes:
        id: Unique in its program.
        kind: Its type.
        index: Its place in its program's list; -1 inside another step.
        next, then, otherwise: Places in the program's list, or None.
        parses: Whether a text that it gives is read as JSON.
        children: Of a parallel step: what it runs. Of a map step: its body alone.
        timeout: Seconds, or None.
        seconds: Of a wait: a template of a number.
        over: Of a map: a template of a list.
        program: Of a sub-program.
        program_name: Of a sub-program that is run by name; None for one that is written out.
    """

    __slots__ = (
        "allowed_outputs", "args", "children", "compensation", "condition", "context", "details", "event", "id",
        "index", "is_terminal", "item_name", "kind", "max_concurrency", "message", "next", "on_error", "on_timeout",
        "otherwise", "output_key", "over", "parses", "program", "program_name", "prompt", "retry", "seconds",
        "system", "then", "timeout", "tool",
    )  # fmt: skip

    def __init__(self, data: Mapping[str, Any], index: int) -> None:
        self.id: str = data.get("id") or ""
        self.kind: str = data["type"]
        self.index = index
        self.on_error: str = data.get("on_error", "fail")
        self.retry = _retry(data)
        self.timeout: float | None = data.get("timeout_seconds")
        self.is_terminal: bool = data.get("is_terminal", False)
        self.output_key: str | None = data.get("output_key")
        self.next: int | None = None
        self.then: int | None = None
        self.otherwise: int | None = None
        self.children: tuple[Step, ...] = ()
        self.program: Program | None = None
        named = data.get("program")
        self.program_name: str | None = named if isinstance(named, str) else None
        self.condition: str | None = None
        self.compensation: Compensation | None = None
        if undo := data.get("compensate"):
            self.compensation = Compensation(undo["tool"], Template(undo.get("args", {})))
        self.parses: bool = data.get("parse") == "json"
        self.tool: str = data.get("tool") or ""
        self.args = _template(data.get("args", {}))
        self.prompt = _template(data.get("prompt"))
        self.system = _template(data.get("system"))
        allowed = data.get("allowed_outputs")
        self.allowed_outputs: tuple[str, ...] | None = None if allowed is None else tuple(allowed)
        self.on_timeout: str = data.get("on_timeout", "fail")
        self.max_concurrency: int | None = data.get("max_concurrency")
        self.message = _template(data.get("message"))
        self.details = _template(data.get("details"))
        self.seconds = _template(_dotted(data.get("seconds")))
        self.event: str | None = data.get("event")
        self.over = _template(_dotted(data.get("over")))
        self.item_name: str = data.get("as", "item")
        self.context = _template(data.get("context", {}))


def _template(value: Any) -> Template:
    if value is None:
        return _NOTHING
    return Template(value) if value != {} else _NO_FIELDS


def _dotted(value: Any) -> Any:
    """A reference that stands alone, with its indices as texts have them."""
    return "$" + ".".join(names_of(value)) if isinstance(value, str) and _REFERENCE.fullmatch(value) else value


def _retry(data: Mapping[str, Any]) -> Retry:
    told = data.get("retry")
    if told is None:
        attempts = data.get("max_retries")
        return Retry(3 if attempts is None else max(attempts, 1)) if data.get("on_error") == "retry" else _ONCE
    schedule = tuple(told.get("schedule", ()))
    if schedule:
        return Retry(len(schedule) + 1, schedule)
    return Retry(
        told.get("max_attempts", 3),
        (),
        told.get("delay_seconds", 1),
        told.get("multiplier", 2),
        told.get("max_delay_seconds", BACKOFF_SECONDS),
    )


class Program:
    """A program that has been found valid. Immutable; may be run any number of times, at once too.

    Attributes:
        data: What it was made from, in normal form. Don't change it.
        hash: SHA-256 of its canonical form, the programs that it runs included.
        steps: In the order of the list.
        index: Ids of steps to their places.
        uses: The programs that its steps, and programs that they write out, run by name.
        nested: Most programs within programs beneath it.
    """

    __slots__ = (
        "data", "description", "hash", "index", "max_stalled_steps", "max_steps", "max_tokens", "name", "nested",
        "steps", "uses", "version",
    )  # fmt: skip

    def __init__(self, data: dict[str, Any], steps: list[Step], uses: Mapping[str, "Program"]) -> None:
        self.data = data
        self.name: str = data.get("name", "unnamed")
        self.description: str = data.get("description", "")
        self.version: str = data.get("version", "1.0")
        self.max_steps: int | None = data.get("max_steps")
        self.max_stalled_steps: int | None = data.get("max_stalled_steps")
        self.max_tokens: int | None = data.get("max_tokens")
        self.steps = tuple(steps)
        self.index = {step.id: step.index for step in steps}
        self.uses = dict(uses)
        pinned = {name: program.hash for name, program in uses.items()}
        self.hash: str = digest({"program": data, "uses": pinned} if pinned else data)
        self.nested: int = max((step.program.nested + 1 for step in _all_steps(steps) if step.program), default=0)

    @property
    def warnings(self) -> tuple[Fault, ...]:
        """What is legal, and looks like a mistake: steps that nothing leads to, indices in brackets in a text."""
        return (*_unreachable(self.steps), *_bracketed(self.data))

    def tools(self) -> set[str]:
        """Names of the tools that its steps may call, sub-programs' included."""
        found: set[str] = set()
        seen: set[int] = set()
        waiting = [self]
        while waiting:
            program = waiting.pop()
            if id(program) in seen:
                continue
            seen.add(id(program))
            for step in _all_steps(program.steps):
                if step.kind == "tool":
                    found.add(step.tool)
                if step.compensation:
                    found.add(step.compensation.tool)
                if step.program:
                    waiting.append(step.program)
        return found


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
    """The program that `bundle` wrote down. One that was read lately isn't read again.

    Raises:
        InvalidProgramError: As `parse`.
    """
    try:
        text = json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        return _unbundle(data)
    return _unbundle(data) if len(text) > MAX_REMEMBERED_CHARS else _remembered(text)


@functools.lru_cache(maxsize=32)
def _remembered(text: str) -> Program:
    return _unbundle(json.loads(text))


def _unbundle(data: dict[str, Any]) -> Program:
    known: dict[str, Program] = {}
    for name, inner in data["uses"]:
        known[name] = parse(inner, known.get)
    return parse(data["program"], known.get)


def parse(data: Any, resolve: Resolve | None = None) -> Program:
    """Read a program.

    Args:
        data: What claims to be one.
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
    # Whatever a store does meanwhile, one name is one program throughout.
    return _Reader(functools.cache(resolve or _resolve_nothing), 0).program(data)


def _resolve_nothing(_name: str) -> None:
    return None


class _Reader:
    """Reads one program, going on after each fault."""

    def __init__(self, resolve: Resolve, depth: int) -> None:
        self._resolve = resolve
        self._depth = depth
        self._faults: list[Fault] = []
        self._places: dict[str, str] = {}
        self._uses: dict[str, Program] = {}

    def program(self, data: dict[str, Any]) -> Program:
        properties = {name: fragment for name, (fragment, _) in form.PROGRAM.items()}
        fragment = {"properties": properties, "required": ["steps"], "additionalProperties": False}
        self._add(form.faults(data, fragment, ""))
        rows = data.get("steps")
        rows = rows if isinstance(rows, list) and len(rows) <= form.MAX_STEPS else []
        steps = [self._step(row, f"steps[{index}]", index) for index, row in enumerate(rows)]
        ids = {row["id"]: index for index, row in reversed(list(enumerate(rows))) if _has_id(row)}
        for index, (row, step) in enumerate(zip(rows, steps, strict=True)):
            if isinstance(row, dict):
                self._targets(row, step, ids, f"steps[{index}]")
        if self._faults:
            raise InvalidProgramError(self._faults)
        return Program(data, [step for step in steps if step], self._uses)

    def _step(self, row: Any, path: str, index: int, place: form.Place = "program") -> Step | None:
        """The step, or None after a fault; nested steps are read either way."""
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
        self._add(_in_context(form.faults(row, form.step_fragment(kind, place), path), row, kind, path, place))
        if (one_of := form.TYPES[kind].one_of) and all(row.get(name) is None for name in one_of):
            self._fault(path, "missing_field", f"a {kind} step needs {' or '.join(map(repr, one_of))}")
        if row.get("seconds") is not None and row.get("event") is not None:
            self._fault(path, "bad_value", "a wait is for 'seconds' or for an 'event', not both")
        children = self._children(row, kind, path)
        when = self._condition(row, kind, path)
        program = self._program(row, kind, path)
        self._retry_and_references(row, path)
        if len(self._faults) > before:
            return None
        step = Step(row, index)
        step.children, step.condition, step.program = children, when, program
        return step

    def _take_id(self, row: dict[str, Any], path: str, place: form.Place) -> None:
        if place == "map" or not _has_id(row):
            return
        name = row["id"]
        if name in self._places:
            self._fault(f"{path}.id", "duplicate_id", f"{self._places[name]} has the id {name!r} already")
        else:
            self._places[name] = path

    def _wrong_type(self, row: dict[str, Any], kind: Any, kinds: tuple[str, ...], path: str) -> None:
        listed = ", ".join(kinds)
        if "type" not in row:
            self._fault(path, "missing_field", f"'type' is missing: {listed}")
        elif isinstance(kind, str) and kind in form.TYPES:
            self._fault(f"{path}.type", "bad_value", f"a {kind} step can't stand here: {listed}")
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

    def _condition(self, row: dict[str, Any], kind: str, path: str) -> str | None:
        text = row.get("condition")
        if kind != "condition" or not isinstance(text, str) or not text:
            return None
        try:
            condition(text)
        except ConditionSyntaxError as exc:
            self._fault(f"{path}.condition", "bad_condition", str(exc))
            return None
        return text

    def _program(self, row: dict[str, Any], kind: str, path: str) -> Program | None:
        told = row.get("program")
        if kind != "program" or not isinstance(told, (str, dict)):
            return None
        where = f"{path}.program"
        if isinstance(told, dict):
            if self._depth >= MAX_NESTED_PROGRAMS:
                self._fault(where, "too_large", f"programs nest deeper than {MAX_NESTED_PROGRAMS}")
                return None
            try:
                inner = _Reader(self._resolve, self._depth + 1).program(told)
            except InvalidProgramError as exc:
                self._add(fault._replace(path=f"{where}.{fault.path}".rstrip(".")) for fault in exc.faults)
                return None
            self._uses |= inner.uses
        else:
            found = self._named(told, where)
            if found is None:
                return None
            inner = self._uses[told] = found
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

    def _retry_and_references(self, row: dict[str, Any], path: str) -> None:
        retry = row.get("retry")
        if isinstance(retry, dict) and "schedule" in retry and len(retry) > 1:
            self._fault(f"{path}.retry", "bad_value", "'schedule' says it all: leave the other fields out")
        for name in ("seconds", "over"):
            text = row.get(name)
            if isinstance(text, str) and not _REFERENCE.fullmatch(text):
                self._fault(f"{path}.{name}", "bad_reference", f"{text[:60]!r} is no reference such as '$items'")

    def _targets(self, row: dict[str, Any], step: Step | None, ids: dict[str, int], path: str) -> None:
        for name in ("next_step", "then", "otherwise"):
            target = row.get(name)
            if not isinstance(target, str) or not target:
                continue
            place = ids.get(target)
            if place is None:
                self._fault(f"{path}.{name}", "unknown_step", f"no step {target[:60]!r}{self._meant(target, ids)}")
            elif step is not None:
                setattr(step, {"next_step": "next"}.get(name, name), place)

    def _meant(self, target: str, ids: dict[str, int]) -> str:
        if len(self._faults) >= _MAX_HINTS or len(ids) > _MAX_HINT_IDS or len(target) > _MAX_HINT_CHARS:
            return ""
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
    """A field that is fine in another type of step says so, instead of what it would have to be here."""
    known = {"type", "id", *form.TYPES[kind].required, *form.TYPES[kind].optional}
    for fault in faults:
        name = fault.path[len(path) + 1 :]
        if name in row and name in form.FIELDS and name not in known:
            owners = " and ".join(other for other, spec in form.TYPES.items() if name in spec.required + spec.optional)
            message = f"this belongs to {owners} steps; this step is of type {kind}"
            yield fault._replace(code="unknown_field", message=message)
        elif place != "program" and name in {"is_terminal", "next_step"}:
            yield fault._replace(code="unknown_field", message="a step inside another has no flow of its own")
        else:
            yield fault


def _all_steps(steps: list[Step] | tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from step.children


def edges(step: Step, count: int) -> list[tuple[str, int]]:
    """Where a step may lead, as the kernel's flow has it: label and place; -1 for the end."""
    follow = step.next if step.next is not None else (step.index + 1 if step.index + 1 < count else -1)
    if step.kind == "condition":
        found = [("then", step.then), ("otherwise", step.otherwise)]
        out = [(label, place) for label, place in found if place is not None]
        return [*out, ("skipped", follow)] if step.on_error == "skip" else out
    out = [("", -1 if step.is_terminal and step.next is None else follow)]
    return [*out, ("denied", step.otherwise)] if step.otherwise is not None else out


_BRACKETED = re.compile(rf"(?<!\$)\${NAME}\[[0-9]+\]")

_MAX_WARNINGS = 20


def _bracketed(data: dict[str, Any]) -> Iterator[Fault]:
    """Texts with an index as only conditions, `over` and `seconds` have it: there it is text, as it always was."""
    waiting: list[tuple[str, Any]] = [(f"steps[{index}]", row) for index, row in enumerate(data["steps"])][::-1]
    found = 0
    while waiting and found < _MAX_WARNINGS:
        path, value = waiting.pop()
        if isinstance(value, dict):
            inner = [(f"{path}.{name}", item) for name, item in value.items() if name not in _REFERRING]
            waiting += inner[::-1]
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", item) for index, item in enumerate(value)][::-1]
        elif isinstance(value, str) and "[" in value and (match := _BRACKETED.search(value)):
            found += 1
            dotted = "$" + ".".join(names_of(match[0]))
            message = f"the brackets of {match[0][:60]} are text here: an index is written {dotted[:60]}"
            yield Fault(path, "index_in_text", message)


_REFERRING = frozenset({"condition", "over", "seconds", "program"})


def _unreachable(steps: tuple[Step, ...]) -> Iterator[Fault]:
    seen: set[int] = set()
    waiting = [0]
    while waiting:
        place = waiting.pop()
        if place in seen or place < 0:
            continue
        seen.add(place)
        waiting += [target for _, target in edges(steps[place], len(steps))]
    for step in steps:
        if step.index not in seen:
            yield Fault(f"steps[{step.index}]", "unreachable", f"nothing leads to step {step.id!r}")
