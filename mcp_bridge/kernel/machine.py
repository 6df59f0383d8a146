"""The machine: a program, a state and an event give the next state and effects.

The state
---------
A `Level` is a program under way. Its current step is a tree of tasks: a `Leaf` waits for one effect, a `Group`
(parallel, map) for the tasks beneath it, a `Nested` for the level of another program. The machine keeps the effects
that are awaited, and which of them are pending. Three small state machines work together:

1. The execution: `running`, `winding_down` (how it ends is settled, what was done is undone), `ended`. Which of them
   takes which kind of event: `EVENTS`.
2. Each effect, from the time when it is asked for to its last outcome: `EFFECTS`. What kinds of effects may be pending,
   and as what: `PENDABLE`.
3. Each task: `run` (an attempt is under way), `backoff` (it waits for the next attempt), `aborted` (there will be
   none). What the outcome of its effect means to it: `TASKS`.

An event is legal if these tables say so and its values are well-formed (`events.checked_outcome`). A cell names the
function that takes the event: a method of `Machine` below (what happens to effects) or of `Interpreter` (what follows
for tasks and levels), without its underscore. What a kind of step asks for, and which outputs it accepts, is in
`step_types`, where also stands what follows from a step alone and is found once for all of its executions
(`Instruction`); which step comes next, in `program_flow`, and when a budget is used up, in `program_limits`.

The rules
---------
1. An illegal event raises and changes nothing: everything is checked before the state is touched.
2. A transition depends on the state and the event alone: no clock, no randomness, no iteration over sets. Effects are
   numbered in the order in which they are made. So two machines that take the same events are byte for byte the same.
3. A transition takes time in proportion to the values that it moves, not to the length of the program or of the
   history. No recursion grows with either.
4. The flow is that of llm-nano-vm 0.8.9, except for the documented differences: a condition's target runs inline and
   ends the program, unless it has `next_step`, or is a condition: then that one's target goes on in the order of the
   list (see `Level.follow`).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from mcp_bridge.kernel.awaited_effects import VERSION
from mcp_bridge.kernel.events import (
    PENDING,
    Cancel,
    Effect,
    EffectKind,
    Event,
    IllegalEventError,
    Outcome,
    OutcomeStatus,
    Redo,
    Resume,
    StepResult,
    StepStatus,
    check_texts,
    checked_outcome,
    checked_value,
)
from mcp_bridge.kernel.json_parsing import Read, parsed
from mcp_bridge.kernel.language.program_parser import Program
from mcp_bridge.kernel.program_flow import Group, Leaf, Level, Nested, Task
from mcp_bridge.kernel.program_limits import MAX_WORK, count_tokens
from mcp_bridge.kernel.step_execution import Interpreter, late
from mcp_bridge.kernel.step_types import CompensationStep
from mcp_bridge.kernel.values import normal

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code

APPROVAL = "approval"
"""The code of a pending outcome: the call has not been made, and waits for a person's decision."""

IN_DOUBT = "in_doubt"
"""The code of a pending outcome: the call may have been made, and nobody has seen how it ended."""

HUMAN_DECIDED_CODES = frozenset({APPROVAL, IN_DOUBT})
"""Codes of pending outcomes that only a person's word ends."""

RESUMABLE = frozenset({"tool", "event"})
"""Kinds of effects that a resume may end. An approval takes a decision, a wait its time."""


class Refusal(NamedTuple):
    """Why an event is illegal.

    Attributes:
        code: Of the `IllegalEventError`.
        message: Its text; `{}` stands for the effect's number.
    """

    code: "Code"
    message: str


# --- the execution --------------------------------------------------------------------------------------------------

ExecutionState = Literal["running", "winding_down", "ended"]

EVENTS: Mapping[ExecutionState, Mapping[type[Event], str]] = {
    "running":      {Outcome: "take_outcome", Resume: "take_resume", Redo: "take_redo", Cancel: "cancel"},
    "winding_down": {Outcome: "take_outcome", Resume: "take_resume", Redo: "take_redo", Cancel: "disregard"},
    "ended":        {},
}  # fmt: skip
"""What an execution does with an event. Where a cell is missing, the event is illegal (`ended`)."""


# --- effects --------------------------------------------------------------------------------------------------------

EffectState = Literal[
    "unknown",  # never asked for, or not awaited any more
    "awaited",
    "suspended",  # pending until it is resumed
    "held",  # pending until its time has come, or a person has decided on an approval step
    "approval",  # pending: a person has to allow the call first
    "in_doubt",  # pending: a person has to say whether the call has happened
    "deadline",  # the time by which a group or nested program has to end
]

Signal = Literal["ok", "failed", "timeout", "denied", "pending", "approval", "in_doubt", "resume", "redo"]
"""An event that concerns one effect: an outcome by its status (if that is `pending`, by its code), a resume, a redo."""

_UNKNOWN = Refusal("unknown_effect", "no effect {} is awaited")
_PASSES = Refusal("bad_value", "a deadline passes, and nothing else happens to it")
_ALREADY = Refusal("already_pending", "effect {} is pending already")
_NOT_PENDING = Refusal("not_pending", "effect {} isn't pending")
_NOT_RESUMABLE = Refusal("not_resumable", "effect {} waits for a person or for its time")
_NO_DOUBT = Refusal("not_in_doubt", "effect {} isn't in doubt")

_COLUMNS: tuple[Signal, ...] = (
             "ok",      "failed",  "timeout", "denied",  "pending",  "approval", "in_doubt", "resume",        "redo",
)  # fmt: skip
_ROWS: dict[EffectState, tuple[str | Refusal, ...]] = {
"unknown":   (_UNKNOWN, _UNKNOWN,  _UNKNOWN,  _UNKNOWN,  _UNKNOWN,   _UNKNOWN,   _UNKNOWN,   _NOT_PENDING,   _NO_DOUBT),
"awaited":   ("settle", "settle",  "settle",  "settle",  "suspend",  "suspend",  "suspend",  _NOT_PENDING,   _NO_DOUBT),
"suspended": ("settle", "settle",  "settle",  "settle",  _ALREADY,   _ALREADY,   _ALREADY,   "resume",       _NO_DOUBT),
"held":      ("settle", "settle",  "settle",  "settle",  _ALREADY,   _ALREADY,   _ALREADY,   _NOT_RESUMABLE, _NO_DOUBT),
"approval":  ("settle", "settle",  "settle",  "settle",  "suspend",  _ALREADY,   "suspend",  _NOT_RESUMABLE, _NO_DOUBT),
"in_doubt":  ("settle", "settle",  "settle",  "settle",  "suspend",  "suspend",  _ALREADY,   _NOT_RESUMABLE, "redo"),
"deadline":  ("expire", _PASSES,   _PASSES,   _PASSES,   "ignore",   "ignore",   "ignore",   _NOT_PENDING,   _NO_DOUBT),
}  # fmt: skip

EFFECTS: Mapping[EffectState, Mapping[Signal, str | Refusal]] = {
    state: dict(zip(_COLUMNS, row, strict=True)) for state, row in _ROWS.items()
}
"""What happens to an effect on a signal, or why the signal is illegal.

After `settle`, `resume` and `expire` the effect is unknown, after `redo` it is awaited again. After `suspend` it is
what the signal says; `pending` leads to `suspended` where the kind of the effect is in `RESUMABLE`, else to `held`.
"""

PENDABLE: Mapping[EffectKind, frozenset[Signal]] = {
    "tool": frozenset({"pending", "approval", "in_doubt"}),
    "event": frozenset({"pending", "approval"}),
    "approval": frozenset({"pending", "approval"}),
    "wait": frozenset({"pending", "approval"}),
    "llm": frozenset(),
}
"""The signals by which an effect of a kind may become pending."""


# --- tasks ----------------------------------------------------------------------------------------------------------

TASKS: Mapping[str, Mapping[OutcomeStatus, str]] = {
    "run":     {"ok": "complete", "failed": "fail",    "denied": "fail",    "timeout": "time_out"},
    "backoff": {"ok": "retry",    "failed": "give_up", "denied": "give_up", "timeout": "give_up"},
    "aborted": {},
}  # fmt: skip
"""What a task in a phase does when its effect is settled; an aborted task has no effect.

`retry` leads to `run`. A failure leads to `backoff` while attempts are left, and else to the end of the task.
"""


class Machine(Interpreter):
    """One execution of a program. `apply` is the only function that changes its state.

    Args:
        program: What to run.
        context: Names to JSON values.
        version: Of its rules, as `awaited_effects.VERSION` has them.

    Raises:
        ValueFaultError: The context isn't JSON.
    """

    def __init__(self, program: Program, context: dict[str, Any] | None = None, version: int = VERSION) -> None:
        self.version = version
        self.level = Level(program, normal(context or {}, "context"), None, "")
        self.rows = []
        self.effects = []
        self.waiting = {}
        self.deadlines = {}
        self.pending = {}
        self.last_effect = 0
        self.reasons = {}
        self._work_left = MAX_WORK
        self._advance(self.level)

    @classmethod
    def of_parts(
        cls,
        level: Level,
        rows: list[StepResult],
        last_effect: int,
        pending: dict[int, str],
        waiting: dict[int, Task],
        deadlines: dict[int, Task],
        version: int,
    ) -> "Machine":
        """A machine in the middle of its work, for `state.restore`."""
        machine = cls.__new__(cls)
        machine.version, machine.rows, machine.effects, machine.reasons = version, rows, [], {}
        machine.level, machine.last_effect = level, last_effect
        machine.pending, machine.waiting, machine.deadlines = pending, waiting, deadlines
        return machine

    def let_go(self) -> None:
        """Undo the links between its parts, when nobody needs it any more.

        They refer to each other: without this, all of it would be kept until the next garbage collection.
        """
        for waiting in (*self.waiting.values(), *self.deadlines.values()):
            task: Task | None = waiting
            while task is not None:
                task.level.task = None
                if isinstance(task, Group):
                    task.tasks.clear()
                elif isinstance(task, Nested):
                    task.inner = None
                task = task.owner or task.level.owner

    # --- what it shows ---

    @property
    def program(self) -> Program:
        """The program that it runs."""
        return self.level.program

    @property
    def status(self) -> str:
        """`running`, `suspended`, or how it has ended."""
        if self.level.status == "running" and len(self.pending) == len(self.waiting) > 0:
            return "suspended"
        return self.level.status

    @property
    def ended(self) -> bool:
        """Whether every event is illegal."""
        return self.level.status != "running"

    @property
    def output(self) -> Any:
        """The output of the step that succeeded last; None unless the program has succeeded."""
        return self.level.last_output if self.level.status == "success" else None

    @property
    def error(self) -> str | None:
        """Why it didn't succeed, or None."""
        return self.level.ending[2] if self.level.ending and self.ended else None

    @property
    def error_with_reason(self) -> str | None:
        """The error, with the reason why a condition failed if that was its cause."""
        error = self.error
        for index, text in reversed(self.reasons.items()):
            row = self.rows[index] if index < len(self.rows) else None
            if error and row and row.error and row.status == "failed" and error.endswith(row.error):
                return f"{error}: {text}"
        return error

    @property
    def tokens(self) -> int:
        """Tokens that its models have taken so far."""
        return self.level.tokens

    @property
    def can_resume(self) -> bool:
        """Whether a resume would end something."""
        return any(self._state_of(number) == "suspended" for number in self.pending)

    def awaited(self) -> list[tuple[Effect, bool]]:
        """The effects without an outcome, and whether each is pending. Deadlines are among them, and never pending."""
        found = {number: task.effect for number, task in self.waiting.items()}
        found |= {number: task.deadline for number, task in self.deadlines.items()}
        return [(effect, number in self.pending) for number, effect in sorted(found.items()) if effect is not None]

    def programs_of(self, number: int) -> list[tuple[str | None, Program]]:
        """The programs around an awaited effect, outermost first, with the names that steps run them by.

        One that is written out inside another's step is a part of that other, and isn't in the list.
        """
        level: Level | None = self.waiting[number].level
        found: list[tuple[str | None, Program]] = []
        while level is not None:
            name = level.owner.step.program_name if level.owner else None
            if name is not None or level.owner is None:
                found.append((name, level.program))
            level = level.outer
        return found[::-1]

    def undoes(self, number: int) -> bool:
        """Whether an awaited effect undoes a step. Its path doesn't tell: a step may be named like one."""
        return self.waiting[number].instruction.undoes

    def parses(self, number: int) -> bool:
        """Whether a text that an awaited effect gives is parsed as JSON."""
        task = self.waiting.get(number)
        return isinstance(task, Leaf) and task.step.parses

    # --- the transition function ---

    def apply(self, event: Event, read: Read | None = None) -> list[Effect]:
        """Take an event.

        Args:
            event: What has happened.
            read: Used in place of `parsed` for the texts of steps with `parse`; it may know their values already.

        Returns:
            What is to be done now.

        Raises:
            IllegalEventError: The state has no transition for the event, and is as it was.
        """
        level = self.level
        state: ExecutionState = "running" if level.ending is None else "winding_down"
        take = _ON_EVENT[state if level.status == "running" else "ended"].get(type(event))
        if take is None:
            raise IllegalEventError("ended", f"the execution has ended: {level.status}")
        before, self.effects = self.effects, []
        self._read = read or parsed
        self._work_left = MAX_WORK
        try:
            take(self, event)
        except IllegalEventError:
            self.effects = before
            raise
        return self.effects

    def _take_outcome(self, event: Outcome) -> None:
        number = event.effect
        signal: Signal = event.status
        task = self.waiting.get(number)
        if task is None:
            state, signal = self._state_of(number), _as_pending(event.code) if signal == "pending" else signal
            _ON_SIGNAL[state][signal](self, number, event)
            return
        effect = task.effect
        assert effect is not None  # it waits for this one
        kind = effect.kind
        event = checked_outcome(event, kind)
        if signal == "pending" or (kind == "tool" and event.value == PENDING):
            signal = _as_pending(event.code)
            if signal not in PENDABLE[kind]:
                is_answer = kind == "llm"
                why = "a model's answer can't be pending" if is_answer else "only a tool's call can be in doubt"
                raise IllegalEventError("bad_value", why)
        state = self._state_of(number) if number in self.pending else "awaited"
        _ON_SIGNAL[state][signal](self, number, event)

    def _take_resume(self, event: Resume) -> None:
        number = event.effect
        if number is None:
            number = next((known for known in self.pending if self._state_of(known) == "suspended"), None)
        if number is None:
            raise IllegalEventError("not_pending", "nothing waits to be resumed")
        _ON_SIGNAL[self._state_of(number)]["resume"](self, number, event)

    def _take_redo(self, event: Redo) -> None:
        _ON_SIGNAL[self._state_of(event.effect)]["redo"](self, event.effect, event)

    def _cancel(self, event: Cancel) -> None:
        check_texts(event.reason)
        self._abort_level(self.level, "cancelled", event.reason)

    def _disregard(self, event: Cancel) -> None:
        check_texts(event.reason)

    def _state_of(self, number: int) -> EffectState:
        code = self.pending.get(number)
        if code is None:
            return "awaited" if number in self.waiting else "deadline" if number in self.deadlines else "unknown"
        if code in HUMAN_DECIDED_CODES:
            return cast("EffectState", code)
        return "suspended" if effect_kind(self.waiting[number]) in RESUMABLE else "held"

    # --- what effects do ---

    def _settle(self, number: int, event: Outcome) -> None:
        task = self.waiting.pop(number)
        task.effect = None
        if self.pending:
            self.pending.pop(number, None)
        usage = event.usage
        if usage is not None:
            task.usage = usage if task.usage is None else task.usage.plus(usage)
            count_tokens(task.level, usage.total_tokens)
        result: StepResult | None = _ON_OUTCOME[task.phase][event.status](self, task, event)
        if result is not None:
            self._climb(task, result)

    def _suspend(self, number: int, event: Outcome) -> None:
        self.pending[number] = event.code
        task = self.waiting[number]
        if event.code not in HUMAN_DECIDED_CODES and _has_pending_row(task):
            self.rows.append(StepResult(task.path, "pending", PENDING, retries=task.attempt - 1))

    def _resume(self, number: int, event: Resume) -> None:
        task = self.waiting[number]
        payload = checked_value(event.payload, effect_kind(task))
        check_texts(event.source)
        # A step that has a row as `pending` keeps it: there is no other row when it has ended.
        status: StepStatus = "pending" if _has_pending_row(task) else "success"
        self._forget(number, task)
        context = task.level.context
        context["__webhook__"], context["__webhook_source__"] = payload, event.source
        self._climb(task, StepResult(task.path, status, payload, retries=task.attempt - 1))

    def _redo(self, number: int, _event: Redo) -> None:
        del self.pending[number]
        effect = self.waiting[number].effect
        assert effect is not None  # it is awaited
        self.effects.append(effect)

    def _expire(self, number: int, _event: Outcome) -> None:
        task = self.deadlines.pop(number)
        task.deadline = None
        result = self._abort_task(task, "timeout", late(task.step))
        if result is not None:
            self._climb(task, result)

    def _ignore(self, number: int, event: Outcome) -> None:
        """Nothing happens."""


def _as_pending(code: str) -> Signal:
    """The signal of a pending outcome."""
    return cast("Signal", code) if code in HUMAN_DECIDED_CODES else "pending"


def _has_pending_row(task: Task) -> bool:
    """Whether the trace shows the task's step as `pending` while it is suspended: a tool at the level of a program."""
    return effect_kind(task) == "tool" and task.owner is None and not isinstance(task.step, CompensationStep)


def effect_kind(task: Task) -> EffectKind:
    """The kind of the effect that a task waits for."""
    assert task.effect is not None  # it is among those that wait
    return task.effect.kind


# --- the tables, with functions in place of their names -------------------------------------------------------------

_Function = Callable[..., Any]


def _functions(row: Mapping[Any, str | Refusal]) -> dict[Any, _Function]:
    """A row of a table, resolved once: a name that is no method fails at import."""
    return {
        event: _refusing(cell) if isinstance(cell, Refusal) else getattr(Machine, f"_{cell}")
        for event, cell in row.items()
    }


def _refusing(refusal: Refusal) -> _Function:
    def refuse(_machine: Machine, number: int, _event: Event) -> None:
        raise IllegalEventError(refusal.code, refusal.message.format(number))

    return refuse


_ON_EVENT = {state: _functions(row) for state, row in EVENTS.items()}
_ON_SIGNAL = {state: _functions(row) for state, row in EFFECTS.items()}
_ON_OUTCOME = {phase: _functions(row) for phase, row in TASKS.items()}
