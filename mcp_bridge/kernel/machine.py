"""The machine δ: a program, a state and an event give a state and effects. All transitions are in this file.

A `Level` is one program under way: its position, its context, the outputs of its steps. What its current step does is a
tree of tasks: a `Leaf` waits for one effect, a `Group` (parallel, map) has tasks beneath it, a `Nested` has another
level. An outcome goes to its leaf; what a leaf, group or level results in climbs to what is above it; then the levels
advance until every task waits again.

Rules that everything here keeps:
1. No event that is refused changes anything: `Machine.apply` checks before it touches the state.
2. Nothing is looked up outside of the state: no clock, no randomness, no iteration over sets. Effects are numbered in
   the order in which they are made, so that two machines given the same events are byte for byte the same.
3. A transition takes time in proportion to the values that it moves, not to the length of the program or of the
   history. No recursion grows with either: steps that end at once are a loop in `_advance`.
4. The flow is that of llm-nano-vm 0.8.9, but for the documented differences: a condition's target runs inline and ends
   the program, unless it has `next_step`, or is a condition, whose own target then goes on in the order of the list.
"""

from collections.abc import Callable
from typing import Any

from mcp_bridge.kernel.conditions import ConditionError, Reference, condition
from mcp_bridge.kernel.events import (
    PENDING,
    Cancel,
    Effect,
    EffectKind,
    Event,
    IllegalEventError,
    Outcome,
    Redo,
    Resume,
    StepResult,
    StepStatus,
    Usage,
)
from mcp_bridge.kernel.format import MAX_SECONDS
from mcp_bridge.kernel.program import Program, Step
from mcp_bridge.kernel.reasons import counted_as_none, reason
from mcp_bridge.kernel.references import MISSING, Lookup, TextTooLongError, measured, quoted, written
from mcp_bridge.kernel.tasks import UNDO, Group, Leaf, Level, Nested, Task
from mcp_bridge.kernel.values import NotJSONError, ValueFaultError, normal, parsed, same

MAX_ITEMS = 10_000
"""Longest list that a map step goes over."""

MAX_REASONS = 100
"""Conditions of which a machine keeps why they had no answer, or had one with nothing."""

MAX_USAGE = 10**15
"""Most tokens, or dollars, that one answer of a model may have taken."""

MAX_WORK = 50_000
"""Steps that may follow one event without waiting for anything; nothing interrupts a transition, and all that it wants
has to be held. What they move counts, too: 1,000 characters, or 50 values, as one step."""

_SHOWN_CHARS = 200

_UNWEIGHED_STEPS = 2
"""So many of them are counted only, as in most programs no more follow at once."""

RESUMABLE = frozenset({"tool", "event"})
"""Effects that a resume may end. An approval takes a decision, a wait its time."""

APPROVAL = "approval"
"""The code of a pending outcome: the call has not been made, and waits for a person's decision."""

IN_DOUBT = "in_doubt"
"""The code of a pending outcome: the call may have been made, and nobody has seen how it ended."""

PERSONS = frozenset({APPROVAL, IN_DOUBT})
"""Codes of pending outcomes that a person's word ends, and nothing else: no resume does."""

_NEVER_AGAIN = frozenset({"denied", "cancelled", "violation", "interrupted"})
"""Failures that another attempt can't mend, or after which the effect may have happened unseen."""


class Machine:
    """The state of one execution. `apply` is the only thing that changes it.

    Args:
        program: What to run.
        context: Names to JSON values.

    Raises:
        ValueFaultError: The context isn't JSON.

    Attributes:
        rows: The trace so far.
        effects: What the last event, or the start, asks for.
        level: Of the program itself.
        waiting: Effects whose outcome is awaited, by number: the tasks that wait.
        deadlines: The same of the effects that end a group or nested program if they fire.
        pending: Those effects in `waiting` that are pending, in the order in which they became so: number to the
            outcome's code (`approval` for a call that a person has to allow first, `in_doubt` for one of which a
            person has to say whether it has happened).
        last_effect: Number of the last effect made.
        reasons: Why conditions had no answer, by the place of their row: to be told, and not a part of the state.
    """

    _work_left = MAX_WORK
    """Of the transition that is under way."""

    _read: Callable[[str], Any]
    """How the transition that is under way parses texts."""

    def __init__(self, program: Program, context: dict[str, Any] | None = None) -> None:
        self.rows: list[StepResult] = []
        self.reasons: dict[int, str] = {}
        self.level = Level(program, normal(context or {}, "context"), None, "")
        self.waiting: dict[int, Task] = {}
        self.deadlines: dict[int, Task] = {}
        self.pending: dict[int, str] = {}
        self.last_effect = 0
        self.effects: list[Effect] = []
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
    ) -> "Machine":
        """A machine in the middle of its work; for `state.restore`."""
        machine = cls.__new__(cls)
        machine.rows, machine.effects, machine.reasons = rows, [], {}
        machine.level, machine.last_effect = level, last_effect
        machine.pending, machine.waiting, machine.deadlines = pending, waiting, deadlines
        return machine

    def let_go(self) -> None:
        """Undo the links between its parts: nobody needs it any more.

        They refer to each other, and the program to nobody: all of it would be kept until garbage is collected.
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
        """What it runs."""
        return self.level.program

    @property
    def status(self) -> str:
        """`running`, `suspended`, or how it has ended."""
        if self.level.status == "running" and len(self.pending) == len(self.waiting) > 0:
            return "suspended"
        return self.level.status

    @property
    def ended(self) -> bool:
        """Whether no event can change it any more."""
        return self.level.status != "running"

    @property
    def output(self) -> Any:
        """What the step that succeeded last gave; None unless the program has succeeded."""
        return self.level.last_output if self.level.status == "success" else None

    @property
    def error(self) -> str | None:
        """Why it didn't succeed, or None."""
        return self.level.ending[2] if self.level.ending and self.ended else None

    @property
    def told_error(self) -> str | None:
        """The error, with the reason of the condition that it ends in."""
        error = self.error
        for place, text in reversed(self.reasons.items()):
            row = self.rows[place] if place < len(self.rows) else None
            if error and row and row.error and row.status == "failed" and error.endswith(row.error):
                return f"{error}: {text}"
        return error

    @property
    def tokens(self) -> int:
        """Of models, so far."""
        return self.level.tokens

    @property
    def can_resume(self) -> bool:
        """Whether a resume would end something."""
        return any(self._resumable(number) for number in self.pending)

    def awaited(self) -> list[tuple[Effect, bool]]:
        """The effects without an outcome, and whether each is pending. Deadlines are among them, and never pending."""
        found = {number: task.effect for number, task in self.waiting.items()}
        found |= {number: task.deadline for number, task in self.deadlines.items()}
        return [(effect, number in self.pending) for number, effect in sorted(found.items()) if effect is not None]

    def programs_of(self, number: int) -> list[tuple[str | None, Program]]:
        """The programs that an awaited effect comes through, outermost first, with the names that steps run them by.

        One that is written out inside another's step is a part of that other, and isn't in the list.
        """
        level: Level | None = self.waiting[number].level
        found: list[tuple[str | None, Program]] = []
        while level is not None:
            name = level.owner.step.program_name if level.owner else None
            if name is not None or level.owner is None:
                found.append((name, level.program))
            level = level.owner.level if level.owner else None
        return found[::-1]

    # --- the transition function ---

    def apply(self, event: Event, read: Callable[[str], Any] | None = None) -> list[Effect]:
        """Take an event.

        Args:
            event: It.
            read: Gives what `parsed` gives, which it may know already, of the text of a step with `parse`.

        Returns:
            What is to be done now.

        Raises:
            IllegalEventError: The state has no transition for it, and is as it was.
        """
        if self.level.status != "running":
            raise IllegalEventError("ended", f"the execution has ended: {self.level.status}")
        self.effects = []
        self._read = read or parsed
        self._work_left = MAX_WORK
        if isinstance(event, Outcome):
            self._outcome(event)
        elif isinstance(event, Resume):
            self._resume(event)
        elif isinstance(event, Cancel):
            self._cancel(event)
        else:
            self._redo(event)
        return self.effects

    def _outcome(self, event: Outcome) -> None:
        number = event.effect
        if (late := self.deadlines.get(number)) is not None:
            if event.status == "ok":
                del self.deadlines[number]
                late.deadline = None
                self._expire(late)
            elif event.status != "pending":
                raise IllegalEventError("bad_value", "a deadline passes, and nothing else happens to it")
            return
        task = self.waiting.get(number)
        if task is None:
            raise IllegalEventError("unknown_effect", f"no effect {number} is awaited")
        assert task.effect is not None  # noqa: S101 - it waits for this one
        kind, status = task.effect.kind, event.status
        value = _checked(event.value, kind) if status == "ok" else None
        usage = None if event.usage is None else _checked_usage(event.usage)
        if status != "ok":
            _check_texts(event.code, event.message)
        if status == "pending" or (value == PENDING and kind == "tool"):
            self._suspend(number, task, kind, event.code)
            return
        self._forget(number, task)
        if usage is not None:
            task.usage = usage if task.usage is None else task.usage.plus(usage)
            self._count_tokens(task.level, usage.total_tokens)
        if status != "ok":
            result = self._unsuccessful(task, event)
        elif task.phase == "backoff":
            result = self._again(task)
        else:
            result = self._successful(task, value)
        if result is not None:
            self._climb(task, result)

    def _suspend(self, number: int, task: Task, kind: EffectKind, code: str) -> None:
        if kind == "llm":
            raise IllegalEventError("bad_value", "a model's answer can't be pending")
        if code == IN_DOUBT and kind != "tool":
            raise IllegalEventError("bad_value", "only a tool's call can be in doubt")
        # A call that waited for a person may be made, and then wait for its outcome, or be in doubt.
        if number in self.pending and (self.pending[number] not in PERSONS or code == self.pending[number]):
            raise IllegalEventError("already_pending", f"effect {number} is pending already")
        self.pending[number] = code
        if kind == "tool" and code not in PERSONS and task.owner is None and task.slot != UNDO:
            self.rows.append(StepResult(task.path, "pending", PENDING, retries=task.attempt - 1))

    def _resume(self, event: Resume) -> None:
        number = event.effect
        if number is None:
            numbers = [known for known in self.pending if self._resumable(known)]
            if not numbers:
                raise IllegalEventError("not_pending", "nothing waits to be resumed")
            number = numbers[0]
        if number not in self.pending:
            raise IllegalEventError("not_pending", f"effect {number} isn't pending")
        task = self.waiting[number]
        kind = effect_kind(task)
        if not self._resumable(number):
            raise IllegalEventError("not_resumable", f"effect {number} waits for a person or for its time")
        payload = _checked(event.payload, kind)
        _check_texts(event.source)
        self._forget(number, task)
        context = task.level.context
        context["__webhook__"], context["__webhook_source__"] = payload, event.source
        # A tool that was suspended at its program's own level stays `pending` in the trace: its row is there already.
        status: StepStatus = "pending" if kind == "tool" and task.owner is None and task.slot != UNDO else "success"
        self._climb(task, StepResult(task.path, status, payload, retries=task.attempt - 1))

    def _resumable(self, number: int) -> bool:
        return effect_kind(self.waiting[number]) in RESUMABLE and self.pending[number] not in PERSONS

    def _redo(self, event: Redo) -> None:
        number = event.effect
        if self.pending.get(number) != IN_DOUBT:
            raise IllegalEventError("not_in_doubt", f"effect {number} isn't in doubt")
        del self.pending[number]
        effect = self.waiting[number].effect
        assert effect is not None  # noqa: S101 - it is among those that wait
        self.effects.append(effect)

    def _cancel(self, event: Cancel) -> None:
        level = self.level
        _check_texts(event.reason)
        if level.ending is not None:
            return
        self._end(level, "cancelled", "cancelled", event.reason)
        self._abort_below(level, "cancelled", event.reason)
        if level.task is None:
            self._advance(level)

    # --- leaves ---

    def _successful(self, task: Task, value: Any) -> StepResult | None:
        step = task.step
        if step.kind == "tool":
            pass
        elif step.kind == "llm" and step.allowed_outputs is not None:
            value = value.strip()
            if value not in step.allowed_outputs:
                if step.on_error != "skip":
                    allowed = ", ".join(map(quoted, step.allowed_outputs))
                    message = f"the model's answer {quoted(value[:200])} is none of {allowed}"
                    return self._failed(task, "not_allowed", message)
                value = step.allowed_outputs[0]
        elif step.kind == "approval" and not value["approved"] and step.otherwise is None:
            return self._failed(task, "denied", "the approval was denied")
        return self._given(task, value)

    def _given(self, task: Task, value: Any) -> StepResult | None:
        """The result of a step that has an output."""
        if task.step.parses and isinstance(value, str):
            try:
                value = self._read(value)
            except NotJSONError:
                return self._failed(task, "not_json", f"the output is no JSON: {_beginning(value)}")
        return StepResult(task.path, "success", value, None, None, task.attempt - 1, task.usage)

    def _unsuccessful(self, task: Task, event: Outcome) -> StepResult | None:
        step = task.step
        if task.phase == "backoff":
            return self._give_up(task, event.code or event.status, event.message or "the wait to try again failed")
        if event.status == "timeout":
            if step.kind == "llm" and step.on_timeout == "fallback":
                if step.allowed_outputs:
                    return self._given(task, step.allowed_outputs[0])
                return StepResult(task.path, "success", "", retries=task.attempt - 1, usage=task.usage)
            return self._failed(task, event.code or "timeout", event.message or _late(step))
        return self._failed(task, event.code or event.status, event.message or "the effect failed")

    def _failed(self, task: Task, code: str, message: str) -> StepResult | None:
        """The result of a task that has failed, or None if it is to be tried again."""
        retry = task.step.retry
        if task.attempt < retry.attempts and task.phase != "aborted" and code not in _NEVER_AGAIN:
            over = self._out_of_tokens(task)
            if over is None:
                task.phase = "backoff"
                self._emit(task, "wait", "retry", {"seconds": retry.seconds(task.attempt)})
                return None
            code, message = "budget_exceeded", over
        self._drop_deadline(task)
        status: StepStatus = "skipped" if task.step.on_error == "skip" else "failed"
        return StepResult(task.path, status, None, message, code, task.attempt - 1, task.usage)

    def _give_up(self, task: Task, code: str, message: str) -> StepResult | None:
        """The result of a task that would have been tried again."""
        task.phase = "aborted"
        if isinstance(task, Group):
            self._keep(task, [row for row in task.results if row is not None])
        return self._failed(task, code, message)

    def _again(self, task: Task) -> StepResult | None:
        over = self._out_of_tokens(task)
        if over is not None:
            return self._give_up(task, "budget_exceeded", over)
        task.phase = "run"
        task.attempt += 1
        return self._start(task)

    def _start(self, task: Task) -> StepResult | None:
        """Begin an attempt; the result if there is one at once."""
        over = self._out_of_tokens(task)
        if over is not None:
            return self._refused(task, "budget_exceeded", over)
        try:
            if isinstance(task, Leaf):
                self._issue(task, task.level.filled if task.scope is None else task.level.within(task.scope))
            elif isinstance(task, Group):
                return self._start_group(task)
            elif isinstance(task, Nested):
                return self._start_nested(task)
        except TextTooLongError as exc:
            return self._refused(task, "too_large", str(exc))
        except _BadValueError as exc:
            return self._refused(task, "bad_value", str(exc))
        return None

    def _refused(self, task: Task, code: str, message: str) -> StepResult | None:
        """A failure that lies in the values: another attempt would meet the same."""
        task.phase = "aborted"
        return self._failed(task, code, message)

    def _issue(self, task: Task, lookup: Lookup) -> None:
        step = task.step
        if task.slot == UNDO:
            _, tool, arguments = task.level.undo[-1]
            if arguments is None:
                raise TextTooLongError
            self._emit(task, "tool", tool, arguments)
        elif step.kind == "tool":
            self._emit(task, "tool", step.tool, step.args.fill(lookup), step.timeout)
        elif step.kind == "llm":
            arguments = {"prompt": step.prompt.fill(lookup)}
            system = step.system.fill(lookup)
            if system:
                arguments["system"] = system
            if step.allowed_outputs is not None:
                arguments["allowed_outputs"] = list(step.allowed_outputs)
            self._emit(task, "llm", "", arguments, step.timeout)
        elif step.kind == "approval":
            arguments = {"message": written(step.message.fill(lookup)), "details": step.details.fill(lookup)}
            self._emit(task, "approval", "", arguments, step.timeout)
        elif step.event is not None:
            self._emit(task, "event", step.event, {}, step.timeout)
        else:
            seconds = step.seconds.fill(lookup)
            if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_SECONDS:
                what = quoted(written(seconds)[:60])
                raise _BadValueError(f"'seconds' is {what}, and no number from 0 to {MAX_SECONDS}")
            self._emit(task, "wait", "wait", {"seconds": seconds}, step.timeout)

    def _emit(
        self, task: Task, kind: EffectKind, name: str, arguments: dict[str, Any], timeout: float | None = None
    ) -> None:
        self.last_effect = number = self.last_effect + 1
        task.effect = effect = Effect(number, kind, task.path, task.attempt, name, arguments, timeout)
        self._weigh(arguments)
        self.waiting[number] = task
        self.effects.append(effect)

    def _forget(self, number: int, task: Task) -> None:
        del self.waiting[number]
        if number in self.pending:
            del self.pending[number]
        task.effect = None

    # --- groups and nested programs ---

    def _begin(
        self, step: Step, level: Level, owner: Group | None, slot: int, scope: dict[str, Any] | None, path: str
    ) -> StepResult | None:
        """Begin a step; its result if it has one at once."""
        task: Task
        self._work_left -= 1
        if step.kind == "condition":
            return self._decide(step, level, path)
        if step.kind == "parallel":
            task = Group(step, level, owner, slot, scope, path, items=None)
        elif step.kind == "map":
            items = step.over.fill(level.within(scope))
            task = Group(step, level, owner, slot, scope, path, items=items if isinstance(items, list) else [])
            if not isinstance(items, list) or len(items) > MAX_ITEMS:
                what = f"has {len(items)} items" if isinstance(items, list) else f"is {quoted(written(items)[:60])}"
                return self._refused(task, "bad_value", f"'over' {what}, and is no list of at most {MAX_ITEMS}")
        elif step.kind == "program":
            task = Nested(step, level, owner, slot, scope, path)
        else:
            task = Leaf(step, level, owner, slot, scope, path)
        if owner is None:
            level.task = task
        else:
            owner.tasks[slot] = task
        if self._work_left < 0:
            return self._refused(task, "too_much_at_once", _TOO_MUCH)
        return self._start(task)

    def _decide(self, step: Step, level: Level, path: str) -> StepResult:
        assert step.condition is not None  # noqa: S101 - the validator's word
        # Read where it is needed: of a long one that may be anew each time.
        self._work_left -= len(step.condition) // 500
        read = condition(step.condition)
        lookup = self._weighed(level.compared)
        missing: list[Reference] = []

        def looked_up(root: str, names: tuple[str, ...]) -> Any:
            found = lookup(root, names)
            if found is MISSING and (root, names) in read.equated:
                missing.append((root, names))
            return found

        try:
            target = step.then if read.holds(looked_up) else step.otherwise
        except ConditionError as exc:
            status: StepStatus = "skipped" if step.on_error == "skip" else "failed"
            message = f"the condition {quoted(step.condition)} fails: {exc}"
            self._tell(reason(exc, level.compared))
            return StepResult(path, status, None, message, "bad_condition")
        if missing and level is self.level:
            # Of another program the row tells how it ended.
            self._tell(counted_as_none(missing, level.compared))
        return StepResult(path, "success", None if target is None else level.program.steps[target].id)

    def _tell(self, why: str) -> None:
        """Keep what is told of the condition whose row is the next one."""
        if why and len(self.reasons) < MAX_REASONS:
            self.reasons[len(self.rows)] = why

    def _start_group(self, group: Group) -> StepResult | None:
        self._set_deadline(group)
        group.next = 0
        # Another attempt keeps what has succeeded: its effects must not happen twice.
        group.results = [None if row is not None and row.status == "failed" else row for row in group.results]
        return self._pump(group)

    def _pump(self, group: Group) -> StepResult | None:
        """Start what may start; the group's result when nothing is left."""
        count = len(group.results)
        limit = group.step.max_concurrency or count
        while group.next < count and group.active < limit:
            slot = group.next
            group.next += 1
            if group.results[slot] is not None:
                continue
            group.active += 1
            result = self._begin(*group.place(slot))
            if result is not None:
                self._child_done(group, slot, result)
        return None if group.active else self._group_result(group)

    def _child_done(self, group: Group, slot: int, result: StepResult) -> None:
        group.active -= 1
        group.tasks[slot] = None
        group.results[slot] = result

    def _group_result(self, group: Group) -> StepResult | None:
        step = group.step
        rows = [row for row in group.results if row is not None]
        failed = [row for row in rows if row.status == "failed"]
        aborted = group.phase == "aborted"
        if failed and (step.on_error != "skip" or aborted):
            code, message = ("sub_steps_failed", f"sub-steps failed: {', '.join(row.id for row in failed)}")
            if aborted:
                code, message = failed[0].code or code, failed[0].error or message
            elif any(row.code == "budget_exceeded" for row in failed) and self._over_tokens(group.level):
                code = "budget_exceeded"
            result = self._failed(group, code, message)
            if result is None:
                return None
        else:
            self._drop_deadline(group)
            rows = [row._replace(status="skipped") if row.status == "failed" else row for row in rows]
            output: Any = [row.output for row in rows]
            if group.items is None:
                output = {child.id: row.output for child, row in zip(step.children, rows, strict=True)}
            result = StepResult(group.path, "success", output, retries=group.attempt - 1)
        self._keep(group, rows)
        return result

    def _keep(self, group: Group, rows: list[StepResult]) -> None:
        """What the steps of a group gave, whether the group has succeeded or not."""
        level = group.level
        self.rows += rows
        for slot, row in enumerate(rows):
            if row.status == "success" or (row.status == "skipped" and group.items is None):
                child, _, _, _, scope, _ = group.place(slot)
                self._take_output(level, child, row, scope, own=group.items is None)

    def _start_nested(self, task: Nested) -> StepResult | None:
        self._set_deadline(task)
        assert task.step.program is not None  # noqa: S101 - the validator's word
        context = dict(task.step.context.fill(task.level.within(task.scope)))
        self._weigh(context)
        task.inner = Level(task.step.program, context, task, f"{task.path}/")
        self._advance(task.inner)
        return self._nested_result(task, task.inner) if task.inner.status != "running" else None

    def _nested_result(self, task: Nested, inner: Level) -> StepResult | None:
        task.inner = None
        if inner.status == "success":
            self._drop_deadline(task)
            task.level.undo += inner.undo
            return StepResult(task.path, "success", inner.last_output, retries=task.attempt - 1)
        assert inner.ending is not None  # noqa: S101 - it has ended
        _, code, message = inner.ending
        return self._failed(task, code, f"the program {quoted(inner.program.name)} ended as {inner.status}: {message}")

    def _set_deadline(self, task: Task) -> None:
        if task.step.timeout is not None and task.deadline is None:
            self.last_effect = number = self.last_effect + 1
            seconds = {"seconds": task.step.timeout}
            task.deadline = Effect(number, "wait", task.path, task.attempt, "timeout", seconds)
            self.deadlines[number] = task
            self.effects.append(task.deadline)

    def _drop_deadline(self, task: Task) -> None:
        if task.deadline is not None:
            number = task.deadline.id
            del self.deadlines[number]
            task.deadline = None
            self._emit_cancel(task, [number])

    def _emit_cancel(self, task: Task, numbers: list[int]) -> None:
        self.last_effect = number = self.last_effect + 1
        self.effects.append(Effect(number, "cancel", task.path, task.attempt, "", {"effects": numbers}))

    # --- ending early ---

    def _expire(self, task: Task) -> None:
        result = self._abort(task, "timeout", _late(task.step))
        if result is not None:
            self._climb(task, result)

    def _abort(self, task: Task, code: str, message: str) -> StepResult | None:
        """Fail a task from outside; None if programs beneath it have to undo something first."""
        was = task.phase
        task.phase = "aborted"
        self._drop_deadline(task)
        if task.effect is not None:
            number = task.effect.id
            self._forget(number, task)
            self._emit_cancel(task, [number])
        if was == "backoff":
            return self._give_up(task, code, message)
        if isinstance(task, Leaf):
            return self._failed(task, code, message)
        if isinstance(task, Nested):
            assert task.inner is not None  # noqa: S101 - it is under way
            return self._abort_nested(task, task.inner, code, message)
        assert isinstance(task, Group)  # noqa: S101 - there is no other kind
        for slot, child in enumerate(task.tasks):
            if child is not None and (result := self._abort(child, code, message)) is not None:
                self._child_done(task, slot, result)
        for slot, row in enumerate(task.results):
            if row is None and task.tasks[slot] is None:
                task.results[slot] = StepResult(task.place(slot)[-1], "failed", None, message, code)
        return None if task.active else self._group_result(task)

    def _abort_nested(self, task: Nested, inner: Level, code: str, message: str) -> StepResult | None:
        if inner.ending is None:
            self._end(inner, "cancelled", code, message)
            self._abort_below(inner, code, message)
            if inner.task is None:
                self._advance(inner)
        return self._nested_result(task, inner) if inner.status != "running" else None

    def _abort_below(self, level: Level, code: str, message: str) -> None:
        task = level.task
        if task is not None and (result := self._abort(task, code, message)) is not None:
            level.task = None
            self._finish_step(level, task.step, result, task.scope)

    # --- levels ---

    def _climb(self, task: Task, result: StepResult) -> None:
        """Hand a task's result to what is above it, and that one's to what is above that."""
        above: StepResult | None = result
        while above is not None:
            result = above
            owner = task.owner
            if owner is not None:
                self._child_done(owner, task.slot, result)
                task, above = owner, self._pump(owner)
                continue
            level = task.level
            level.task = None
            if task.slot == UNDO:
                level.undo.pop()
                self.rows.append(result)
            else:
                self._finish_step(level, task.step, result, task.scope)
            self._advance(level)
            if level.status == "running" or level.owner is None:
                return
            task, above = level.owner, self._nested_result(level.owner, level)

    def _advance(self, level: Level) -> None:
        """Go on until a step waits, or the level has ended."""
        steps = level.program.steps
        while level.status == "running":
            if level.ending is not None:
                if level.ending[0] != "success" and level.undo:
                    if self._compensate(level):
                        return
                    continue
                level.status = level.ending[0]
                return
            if level.position >= len(steps):
                self._end(level, "success")
                continue
            if (level.has_token_budget or level.steps >= level.max_steps) and (over := self._over_budget(level)):
                self._end(level, "budget_exceeded", "budget_exceeded", over)
                continue
            if self._work_left < 0:
                self._end(level, "budget_exceeded", "too_much_at_once", _TOO_MUCH)
                continue
            step = steps[level.position]
            level.steps += 1
            result = self._begin(step, level, None, 0, None, level.prefix + step.id)
            if result is None:
                return
            level.task = None
            self._finish_step(level, step, result, None)

    def _compensate(self, level: Level) -> bool:
        """Begin to undo what was done last; whether that has to be waited for."""
        path = f"{level.undo[-1][0]}.compensate"
        task = Leaf(UNDO_STEP, level, None, UNDO, None, path)
        level.task = task
        result = self._start(task)
        if result is None:
            return True
        level.task = None
        level.undo.pop()
        self.rows.append(result)
        return False

    def _finish_step(self, level: Level, step: Step, result: StepResult, scope: dict[str, Any] | None) -> None:
        """Take a step's result, and find the next step."""
        if result.status in {"success", "pending"}:
            self._take_output(level, step, result, scope, own=True)
        if result.status != "pending":
            self.rows.append(result)
            if result.status == "success":
                level.last_output = result.output
        if level.ending is not None:
            return
        if level.program.max_stalled_steps is not None and not level.branch and self._stalls(level):
            return
        if result.status == "failed":
            over = self._over_budget(level) if result.code == "budget_exceeded" else None
            if over is not None:
                self._end(level, "budget_exceeded", "budget_exceeded", over)
            else:
                self._end(level, "failed", result.code or "failed", f"step {quoted(step.id)} failed: {result.error}")
            return
        self._follow(level, step, result)

    def _follow(self, level: Level, step: Step, result: StepResult) -> None:
        was_branch = level.branch
        level.branch = False
        decided = step.kind == "condition" and result.status == "success"
        if step.is_terminal and not was_branch:
            self._end(level, "success")
        elif decided or (step.kind == "approval" and not result.output["approved"]):
            target = step.otherwise
            if decided:
                target = None if result.output is None else level.program.index[result.output]
            if target is None:
                message = f"step {quoted(step.id)}: the condition has no target for this case"
                self._end(level, "failed", "no_target", message)
            else:
                level.position = target
                # The target of a target goes on like any other step.
                level.branch = not (was_branch and decided)
        elif step.next is not None:
            level.position = step.next
        elif was_branch:
            self._end(level, "success")
        else:
            level.position += 1

    def _take_output(
        self, level: Level, step: Step, result: StepResult, scope: dict[str, Any] | None, *, own: bool
    ) -> None:
        output = result.output
        if own:
            if level.program.max_stalled_steps is not None and not level.changed:
                level.changed = step.id not in level.outputs or not same(level.outputs[step.id], output)
            level.outputs[step.id] = output
        if step.output_key:
            level.context[step.output_key] = output
        if step.compensation is not None and result.status != "skipped":
            lookup = level.within((scope or {}) | ({step.id: output} if step.id else {}))
            try:
                arguments = step.compensation.args.fill(lookup)
            except TextTooLongError:
                arguments = None
            level.undo.append((result.id, step.compensation.tool, arguments))

    def _stalls(self, level: Level) -> bool:
        limit = level.program.max_stalled_steps
        assert limit is not None  # noqa: S101 - else nobody asks
        level.stalled = level.stalled + 1 if level.changed is False else 0
        level.changed = False
        if level.stalled < limit:
            return False
        message = f"max_stalled_steps={limit} exceeded: {level.stalled} consecutive step(s) changed nothing"
        self._end(level, "stalled", "stalled", message)
        return True

    def _over_budget(self, level: Level) -> str | None:
        if level.steps >= level.max_steps:
            return f"max_steps={level.max_steps} exceeded after {level.steps} step(s)"
        return self._over_tokens(level) if level.has_token_budget else None

    def _out_of_tokens(self, task: Task) -> str | None:
        """Why a task may not begin, or begin again: siblings and earlier attempts may have used up what was left."""
        return self._over_tokens(task.level) if task.level.has_token_budget and task.slot != UNDO else None

    def _over_tokens(self, level: Level) -> str | None:
        outer: Level | None = level
        while outer is not None:
            most = outer.program.max_tokens
            if most is not None and outer.tokens >= most:
                return f"max_tokens={most} exceeded: {outer.tokens} tokens consumed"
            outer = outer.owner.level if outer.owner else None
        return None

    def _weigh(self, value: Any) -> None:
        """Count a value that a transition moves, beyond its first steps."""
        if self._work_left < MAX_WORK - _UNWEIGHED_STEPS:
            characters, values = measured(value)
            self._work_left -= characters // 1000 + values // 50

    def _weighed(self, lookup: Lookup) -> Lookup:
        if self._work_left >= MAX_WORK - _UNWEIGHED_STEPS:
            return lookup

        def weighed(root: str, path: tuple[str, ...]) -> Any:
            value = lookup(root, path)
            self._weigh(value)
            return value

        return weighed

    def _count_tokens(self, level: Level, tokens: int) -> None:
        outer: Level | None = level
        while outer is not None:
            outer.tokens += tokens
            outer = outer.owner.level if outer.owner else None

    def _end(self, level: Level, status: str, code: str = "", message: str | None = None) -> None:
        level.ending = (status, code, message)


UNDO_STEP = Step({"type": "tool", "retry": {"max_attempts": 3}}, -1)
"""What every compensation is: its tool and arguments were fixed when the step that it undoes had succeeded."""


_TOO_MUCH = f"more than {MAX_WORK} steps, or as much of values, in a row without an effect to wait for"


class _BadValueError(ValueError):
    """A value that a step can't work with."""


def effect_kind(task: Task) -> EffectKind:
    """The kind of the effect that a task waits for."""
    assert task.effect is not None  # noqa: S101 - it is among those that wait
    return task.effect.kind


def _checked(value: Any, kind: str) -> Any:
    """The value of an outcome.

    Raises:
        IllegalEventError: It can't be the value of such an effect.
    """
    try:
        value = normal(value)
    except ValueFaultError as exc:
        raise IllegalEventError("bad_value", f"the outcome is no JSON value: {exc}") from None
    if kind == "llm" and not isinstance(value, str):
        raise IllegalEventError("bad_value", "a model's answer is text")
    if kind == "approval" and not (isinstance(value, dict) and isinstance(value.get("approved"), bool)):
        raise IllegalEventError("bad_value", "a decision is an object with 'approved': true or false")
    return value


def _checked_usage(usage: Usage) -> Usage:
    """What a model took, in normal form.

    Raises:
        IllegalEventError: It is no count.
    """
    try:
        checked = Usage(*normal(list(usage)))
    except ValueFaultError as exc:
        raise IllegalEventError("bad_value", f"a usage is of numbers: {exc}") from None
    kinds = [type(count) for count in checked]
    if kinds[:3] != [int, int, int] or kinds[3] not in (int, float) or not all(0 <= n <= MAX_USAGE for n in checked):
        raise IllegalEventError("bad_value", f"a usage is of whole tokens and a cost, from 0 to {MAX_USAGE}")
    return checked


def _check_texts(*texts: str) -> None:
    for text in texts:
        if not text.isascii():
            try:
                normal(text)
            except ValueFaultError as exc:
                raise IllegalEventError("bad_value", str(exc)) from None


def _beginning(text: str) -> str:
    shown = quoted(text[:_SHOWN_CHARS])
    return shown if len(text) <= _SHOWN_CHARS else f"{shown}… ({len(text)} characters)"


def _late(step: Step) -> str:
    return "timed out" if step.timeout is None else f"timed out after {step.timeout:g} s"
