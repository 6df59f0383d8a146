"""The kinds of steps: one type each, with the effect that a step of the kind asks for and what an outcome means to it.

The parser makes a step from a row that it has found valid (`step_fields` defines the rows); nothing changes it
afterwards. What happens between steps (their order, retries, deadlines, limits) is in `program_flow`, `program_limits`
and `step_execution`.

These are plain classes: in the container, importing `dataclasses` would cost more than the rest of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

from mcp_bridge.kernel.allowed_outputs import NotAllowedError, accepted, without_answer
from mcp_bridge.kernel.json_parsing import NotJSONError
from mcp_bridge.kernel.language.references import Template, TextTooLongError, lone
from mcp_bridge.kernel.language.step_fields import MAX_SECONDS
from mcp_bridge.kernel.language.value_texts import quoted, written
from mcp_bridge.kernel.retry import Retry
from mcp_bridge.kernel.values import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mcp_bridge.kernel.events import EffectKind
    from mcp_bridge.kernel.json_parsing import Read
    from mcp_bridge.kernel.language.references import Lookup

Kind = Literal["tool", "llm", "condition", "parallel", "approval", "wait", "map", "program"]
"""The `type` of a row."""

Row = dict[str, Any]
"""A step as it stands in a program, found valid."""

Targets = dict[str, int]
"""The fields of a row that name another step (`next_step`, `then`, `otherwise`), with that step's index."""

DEFAULT_MAX_STEPS = 10_000
"""Steps that a program without `max_steps` may execute beyond the length of its list: the bound on loops."""

COMPENSATION: Row = {"retry": {"max_attempts": 3}}
"""The row of every compensation."""

END = -1
"""In place of the index of the next step: the program ends."""

_SHOWN_CHARS = 200


class StepFailedError(ValueError):
    """A step that can't begin with these values, or whose outcome is no success to it.

    Attributes:
        code: As the step's row of the trace has it.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Compensation(NamedTuple):
    """The call that undoes a step which has succeeded."""

    tool: str
    args: Template


class _Step:
    """What steps of all kinds have.

    Attributes:
        kind: The `type` of its row.
        id: Unique in its program; empty for the body of a map that has none.
        index: Its place in its program's list; -1 inside another step.
        next: Index of the step after it, or None for the one that follows in the list.
        is_terminal: Whether the program has succeeded after it.
        on_error: `fail`, `skip` or `retry`.
        retry: When it is tried again.
        timeout: Seconds, or None.
        output_key: The name that its output gets in the context, or None.
    """

    __slots__ = ("id", "index", "is_terminal", "next", "on_error", "output_key", "retry", "timeout")

    kind: ClassVar[Kind]

    def __init__(self, row: Row, index: int, targets: Targets) -> None:
        self.id: Final[str] = row.get("id") or ""
        self.index: Final = index
        self.next: Final = targets.get("next_step")
        self.is_terminal: Final = bool(row.get("is_terminal"))
        self.on_error: Final[str] = row.get("on_error") or "fail"
        self.retry: Final = Retry.of(row)
        self.timeout: Final[float | None] = row.get("timeout_seconds")
        self.output_key: Final[str | None] = row.get("output_key")

    @property
    def children(self) -> tuple[Step, ...]:
        """The steps inside it."""
        return ()


_NULL, _NO_FIELDS = Template(None), Template({})
"""The templates that most steps have, shared."""


def _template(value: Any) -> Template:
    if value is None:
        return _NULL
    return Template(value) if value != {} else _NO_FIELDS


# --- steps that ask for one effect ---


class LeafStep(_Step):
    """A step that asks for one effect.

    Attributes:
        effect_kind: The kind of that effect.
        parses: Whether an output that is a text is parsed as JSON.
    """

    __slots__ = ("parses",)

    effect_kind: ClassVar[EffectKind]

    def __init__(self, row: Row, index: int, targets: Targets) -> None:
        super().__init__(row, index, targets)
        self.parses: Final = row.get("parse") == "json"

    @property
    def effect_name(self) -> str:
        """The name of the effect that it asks for."""
        return ""

    def effect_arguments(self, lookup: Lookup) -> dict[str, Any]:
        """The arguments of that effect.

        Args:
            lookup: Gives the values that its references stand for.

        Raises:
            StepFailedError: It can't be asked for with these values.
            TextTooLongError: The arguments would be too large.
        """
        raise NotImplementedError

    def output(self, value: Any, _read: Read) -> Any:
        """The step's output.

        Args:
            value: Of the effect's outcome.
            read: Parses the texts of steps that parse.

        Raises:
            StepFailedError: This value is no success.
        """
        return value


class ToolStep(LeafStep):
    """Calls a tool.

    Attributes:
        tool: The tool's name.
        args: A template of the arguments.
        compensation: What undoes it, or None.
    """

    __slots__ = ("args", "compensation", "tool")

    kind = "tool"
    effect_kind = "tool"

    def __init__(self, row: Row, index: int, targets: Targets) -> None:
        super().__init__(row, index, targets)
        self.tool: Final[str] = row["tool"]
        self.args: Final = _template(row.get("args", {}))
        undo = row.get("compensate")
        self.compensation: Final = Compensation(undo["tool"], Template(undo.get("args", {}))) if undo else None

    @property
    def effect_name(self) -> str:
        return self.tool

    def effect_arguments(self, lookup: Lookup) -> dict[str, Any]:
        arguments: dict[str, Any] = self.args.fill(lookup)
        return arguments

    def output(self, value: Any, read: Read) -> Any:
        return _parsed(value, read) if self.parses else value


class ModelStep(LeafStep):
    """Asks a model.

    Attributes:
        prompt: A template of a text.
        system: Another, or None.
        allowed_outputs: The only answers that are accepted, or None for any.
        falls_back: Whether a time-out counts as the first allowed answer (or an empty text).
    """

    __slots__ = ("allowed_outputs", "falls_back", "prompt", "system")

    kind = "llm"
    effect_kind = "llm"

    def __init__(self, row: Row, index: int, targets: Targets) -> None:
        super().__init__(row, index, targets)
        self.prompt: Final = Template(row["prompt"])
        self.system: Final = Template(row["system"]) if row.get("system") else None
        allowed = row.get("allowed_outputs")
        self.allowed_outputs: Final[tuple[str, ...] | None] = None if allowed is None else tuple(allowed)
        self.falls_back: Final = row.get("on_timeout") == "fallback"

    def effect_arguments(self, lookup: Lookup) -> dict[str, Any]:
        arguments = {"prompt": self.prompt.fill(lookup)}
        if self.system is not None and (system := self.system.fill(lookup)):
            arguments["system"] = system
        if self.allowed_outputs is not None:
            arguments["allowed_outputs"] = list(self.allowed_outputs)
        return arguments

    def output(self, value: Any, read: Read) -> Any:
        if self.allowed_outputs is not None:
            try:
                value = accepted(value, self.allowed_outputs, first_instead=self.on_error == "skip")
            except NotAllowedError as exc:
                raise StepFailedError("not_allowed", str(exc)) from None
        return _parsed(value, read) if self.parses else value

    def fallback(self, read: Read) -> Any:
        """The output where the model has timed out and `falls_back` is set.

        Raises:
            StepFailedError: As `output`.
        """
        answer = without_answer(self.allowed_outputs)
        return _parsed(answer, read) if self.parses and self.allowed_outputs else answer


def _parsed(value: Any, read: Read) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read(value)
    except NotJSONError:
        raise StepFailedError("not_json", f"the output is no JSON: {_beginning(value)}") from None


def _beginning(text: str) -> str:
    shown = quoted(text[:_SHOWN_CHARS])
    return shown if len(text) <= _SHOWN_CHARS else f"{shown}… ({len(text)} characters)"


class ApprovalStep(LeafStep):
    """Asks a person.

    Attributes:
        message: A template of the question.
        details: A template of what is shown with it.
        otherwise: Index of the step that follows a denial, or None if a denial fails the step.
    """

    __slots__ = ("details", "message", "otherwise")

    kind = "approval"
    effect_kind = "approval"

    def __init__(self, row: Row, index: int, targets: Targets) -> None:
        super().__init__(row, index, targets)
        self.message: Final = Template(row["message"])
        self.details: Final = _template(row.get("details"))
        self.otherwise: Final = targets.get("otherwise")

    def effect_arguments(self, lookup: Lookup) -> dict[str, Any]:
        return {"message": written(self.message.fill(lookup)), "details": self.details.fill(lookup)}

    def output(self, value: Any, _read: Read) -> Any:
        if not value["approved"] and self.otherwise is None:
            raise StepFailedError("denied", "the approval was denied")
        return value


class WaitStep(LeafStep):
    """Lets time pass.

    Attributes:
        seconds: A template of a number.
    """

    __slots__ = ("seconds",)

    kind = "wait"
    effect_kind = "wait"

    def __init__(self, row: Row, index: int, targets: Targets) -> None:
        super().__init__(row, index, targets)
        self.seconds: Final = lone(row.get("seconds"))

    @property
    def effect_name(self) -> str:
        return "wait"

    def effect_arguments(self, lookup: Lookup) -> dict[str, Any]:
        seconds = self.seconds.fill(lookup)
        if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_SECONDS:
            what = quoted(written(seconds)[:60])
            raise StepFailedError("bad_value", f"'seconds' is {what}, and no number from 0 to {MAX_SECONDS}")
        return {"seconds": seconds}


class EventStep(LeafStep):
    """Waits until it is resumed.

    Attributes:
        event: The name of what it waits for.
    """

    __slots__ = ("event",)

    kind = "wait"
    effect_kind = "event"

    def __init__(self, row: Row, index: int, targets: Targets) -> None:
        super().__init__(row, index, targets)
        self.event: Final[str] = row["event"]

    @property
    def effect_name(self) -> str:
        return self.event

    def effect_arguments(self, _lookup: Lookup) -> dict[str, Any]:
        return {}


class CompensationStep(LeafStep):
    """Undoes a step that has succeeded. It stands in no program: the machine makes it.

    Attributes:
        tool: The tool's name.
        arguments: Filled in when the step that it undoes had succeeded; None where that made too large a value.
    """

    __slots__ = ("arguments", "tool")

    kind = "tool"
    effect_kind = "tool"

    def __init__(self, tool: str, arguments: dict[str, Any] | None) -> None:
        super().__init__(COMPENSATION, -1, {})
        self.tool: Final = tool
        self.arguments: Final = arguments

    @property
    def effect_name(self) -> str:
        return self.tool

    def effect_arguments(self, _lookup: Lookup) -> dict[str, Any]:
        if self.arguments is None:
            raise TextTooLongError
        return self.arguments


# --- steps that ask for none of their own ---


class ConditionStep(_Step):
    """Chooses the next step.

    Attributes:
        condition: Its text.
        then, otherwise: Indices of the steps that it chooses from; None where there is no target.
    """

    __slots__ = ("condition", "otherwise", "then")

    kind = "condition"

    def __init__(self, row: Row, index: int, targets: Targets) -> None:
        super().__init__(row, index, targets)
        self.condition: Final[str] = row["condition"]
        self.then: Final = targets.get("then")
        self.otherwise: Final = targets.get("otherwise")


class ParallelStep(_Step):
    """Runs several steps at once.

    Attributes:
        branches: Those steps.
        max_concurrency: Most that run at once, or None.
    """

    __slots__ = ("branches", "max_concurrency")

    kind = "parallel"

    def __init__(self, row: Row, index: int, targets: Targets, branches: tuple[Step, ...]) -> None:
        super().__init__(row, index, targets)
        self.branches: Final = branches
        self.max_concurrency: Final[int | None] = row.get("max_concurrency")

    @property
    def children(self) -> tuple[Step, ...]:
        return self.branches


class MapStep(_Step):
    """Runs one step for each item of a list.

    Attributes:
        over: A template of the list.
        item_name: The name by which the body refers to its item.
        body: The step that runs.
        max_concurrency: Most that run at once, or None.
    """

    __slots__ = ("body", "item_name", "max_concurrency", "over")

    kind = "map"

    def __init__(self, row: Row, index: int, targets: Targets, body: Step) -> None:
        super().__init__(row, index, targets)
        self.over: Final = lone(row["over"])
        self.item_name: Final[str] = row.get("as") or "item"
        self.body: Final = body
        self.max_concurrency: Final[int | None] = row.get("max_concurrency")

    @property
    def children(self) -> tuple[Step, ...]:
        return (self.body,)


class ProgramStep(_Step):
    """Runs another program.

    Attributes:
        program: That program.
        program_name: The name that it is run by; None for one that is written out.
        context: A template of what it is started with.
    """

    __slots__ = ("context", "program", "program_name")

    kind = "program"

    def __init__(self, row: Row, index: int, targets: Targets, program: Program) -> None:
        super().__init__(row, index, targets)
        self.program: Final = program
        given = row["program"]
        self.program_name: Final[str | None] = given if isinstance(given, str) else None
        self.context: Final = _template(row.get("context", {}))


AnyLeaf = ToolStep | ModelStep | ApprovalStep | WaitStep | EventStep | CompensationStep
Step = AnyLeaf | ConditionStep | ParallelStep | MapStep | ProgramStep
"""A step of any kind."""


class Instruction:
    """A step as it is executed: what follows from the step alone, found once for all of its executions.

    These are all of one class: the interpreter reads their attributes faster than those of the kinds of steps.

    Attributes:
        step: The step.
        id: The step's.
        is_leaf: Whether it asks for one effect.
        condition: The step, if it is a condition, or None.
        effect_kind, effect_name: Of the effect that a leaf asks for; other steps don't have them.
        effect_arguments: Gives the effect's arguments, as `LeafStep.effect_arguments`.
        timeout: Of that effect.
        output: Gives the step's output, as `LeafStep.output`; None where that is the effect's value.
        output_key: The step's.
        undoes: Whether it is a compensation.
        compensation: What undoes it, or None.
        chooses: Whether the step after it may depend on its result.
        after, after_branch: Index of the step after it, in sequence and as a branch, where that doesn't depend on
            its result; `END` where the program then ends.
        children: The steps inside it.
    """

    __slots__ = (
        "after", "after_branch", "children", "chooses", "compensation", "condition", "effect_arguments", "effect_kind",
        "effect_name", "id", "is_leaf", "output", "output_key", "step", "timeout", "undoes",
    )  # fmt: skip

    def __init__(self, step: Step) -> None:
        self.step = step
        self.id = step.id
        self.timeout = step.timeout
        self.output_key = step.output_key
        self.is_leaf = isinstance(step, LeafStep)
        if isinstance(step, LeafStep):
            self.effect_kind: EffectKind = step.effect_kind
            self.effect_name = step.effect_name
            fill: Callable[[Lookup], dict[str, Any]] = step.effect_arguments
            self.effect_arguments = step.args.fill if isinstance(step, ToolStep) else fill
        self.output: Callable[[Any, Read], Any] | None = None
        if isinstance(step, ModelStep | ApprovalStep) or (isinstance(step, ToolStep) and step.parses):
            self.output = step.output
        self.undoes = isinstance(step, CompensationStep)
        self.compensation = step.compensation if isinstance(step, ToolStep) else None
        self.condition = step if isinstance(step, ConditionStep) else None
        self.chooses = isinstance(step, ConditionStep | ApprovalStep)
        self.after_branch: int = END if step.next is None else step.next
        self.after: int = END if step.is_terminal else step.index + 1 if step.next is None else step.next
        self.children: tuple[Instruction, ...] = tuple(map(Instruction, step.children))


class Program:
    """A valid program. Immutable: any number of machines may run it at once.

    Attributes:
        data: The data that it was made from, in normal form. Don't change it.
        hash: SHA-256 of its canonical form, with those of the programs that it runs by name.
        steps: In the order of the list.
        instructions: Of its steps.
        index: From a step's id to its index in the list.
        step_limit: Most steps that it may execute, repetitions counted.
        uses: The programs that its steps (and programs written out in them) run by name.
        nested: Levels of programs beneath it.
    """

    __slots__ = (
        "data", "description", "hash", "index", "instructions", "max_stalled_steps", "max_steps", "max_tokens", "name",
        "nested", "step_limit", "steps", "uses", "version",
    )  # fmt: skip

    def __init__(self, data: dict[str, Any], steps: list[Step], uses: Mapping[str, Program]) -> None:
        self.data = data
        self.name: str = data.get("name", "unnamed")
        self.description: str = data.get("description", "")
        self.version: str = data.get("version", "1.0")
        self.max_steps: int | None = data.get("max_steps")
        self.max_stalled_steps: int | None = data.get("max_stalled_steps")
        self.max_tokens: int | None = data.get("max_tokens")
        self.steps = tuple(steps)
        self.step_limit: int = DEFAULT_MAX_STEPS + len(steps) if self.max_steps is None else self.max_steps
        self.instructions = tuple(map(Instruction, steps))
        self.index = {step.id: step.index for step in steps}
        self.uses = dict(uses)
        pinned = {name: program.hash for name, program in uses.items()}
        self.hash: str = digest({"program": data, "uses": pinned} if pinned else data)
        inner = [step.program for step in _all_steps(steps) if isinstance(step, ProgramStep)]
        self.nested: int = max((program.nested + 1 for program in inner), default=0)

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
                if isinstance(step, ToolStep):
                    found |= {step.tool, step.compensation.tool} if step.compensation else {step.tool}
                elif isinstance(step, ProgramStep):
                    waiting.append(step.program)
        return found


def _all_steps(steps: list[Step] | tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from step.children
