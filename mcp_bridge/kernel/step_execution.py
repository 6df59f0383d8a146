"""What a transition does: starts steps, takes their results, and continues until every task waits again.

A result climbs: from a task to the group that it belongs to, or to its level; from a level that has ended to the task
that runs it. Then the levels advance. `machine` says which event leads here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.compensation import compensation_for, record_compensation
from mcp_bridge.kernel.events import StepResult, StepStatus, new
from mcp_bridge.kernel.language.condition_errors import behind, counted_as_none, reason
from mcp_bridge.kernel.language.conditions import ConditionError, condition
from mcp_bridge.kernel.language.references import TextTooLongError
from mcp_bridge.kernel.language.value_texts import quoted, written
from mcp_bridge.kernel.parse_advice import parse_advice
from mcp_bridge.kernel.program_flow import Group, Leaf, Level, Nested, Task, task_for
from mcp_bridge.kernel.program_limits import (
    MAX_ITEMS,
    MAX_WORK,
    WEIGHED_BELOW,
    ends_stalled,
    exceeded_limit,
    exceeded_token_limit,
)
from mcp_bridge.kernel.step_groups import GroupExecution
from mcp_bridge.kernel.step_types import MapStep, ModelStep, StepFailedError, WaitStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.kernel.events import Outcome
    from mcp_bridge.kernel.language.condition_errors import Advice
    from mcp_bridge.kernel.language.references import Lookup
    from mcp_bridge.kernel.program_flow import Scope
    from mcp_bridge.kernel.step_types import ConditionStep, Instruction, Step


_TOO_MUCH = f"more than {MAX_WORK} steps, or as much of values, in a row without an effect to wait for"

MAX_REASONS = 100
"""Steps of which a machine keeps why they failed on what a reference stands for, or counted it as None."""

_FINAL = frozenset({"denied", "cancelled", "violation", "interrupted"})
"""Failures that aren't tried again: it would end alike, or the effect may have happened unseen."""


class Interpreter(GroupExecution):
    """The functions that change the state of an execution."""

    # --- levels ---

    def _advance(self, level: Level) -> None:
        """Go on until a step waits, or the level has ended. A loop, so that no program's length makes it deeper."""
        instructions = level.program.instructions
        while level.ending is None:
            position, steps, work_left = level.position, level.steps, self._work_left
            if position >= len(instructions):
                level.end("success")
            elif steps >= level.checked_from and (exceeded := exceeded_limit(level)):
                level.end("budget_exceeded", "budget_exceeded", exceeded)
            elif work_left < 0:
                level.end("budget_exceeded", "too_much_at_once", _TOO_MUCH)
            else:
                instruction = instructions[position]
                level.steps = steps + 1
                self._work_left = work_left - 1
                if instruction.is_leaf and work_left:
                    # Its first attempt needs no other look at the limits.
                    level.task = leaf = Leaf(instruction, level, level.prefix + instruction.id)
                    result = self._ask(leaf, instruction, level.filled)
                elif instruction.condition is not None:
                    result = self._decide(level, instruction.condition)
                else:
                    result = self._begin(level, instruction)
                if result is None:
                    return
                level.task = None
                self._finish(level, instruction, result, None)
        status = level.ending[0]
        while level.status == "running":
            if status == "success" or not level.undo:
                level.status = status
            elif self._compensate(level):
                return

    def _begin(self, level: Level, instruction: Instruction) -> StepResult | None:
        """Begin a level's next step, no condition; its result if it has one at once."""
        step = instruction.step
        items: Any = []
        if isinstance(step, MapStep):
            try:
                items = step.over.fill(level.filled)
            except TextTooLongError as exc:
                # This needs no version of its own: builds that raised here instead have recorded nothing after it.
                return self._refused(task_for(level, instruction, []), "too_large", str(exc))
            if not isinstance(items, list) or len(items) > MAX_ITEMS:
                what = f"has {len(items)} items" if isinstance(items, list) else f"is {quoted(written(items)[:60])}"
                message = f"'over' {what}, and is no list of at most {MAX_ITEMS}"
                if not isinstance(items, list):
                    self._explain(behind, step.over, level)
                return self._refused(task_for(level, instruction, []), "bad_value", message)
        level.task = task = task_for(level, instruction, items)
        return self._attempt(task)

    def _compensate(self, level: Level) -> bool:
        """Begin to undo what was done last; whether that has to be waited for."""
        level.task = task = compensation_for(level)
        result = self._attempt(task)
        if result is None:
            return True
        level.task = None
        level.undo.pop()
        self.rows.append(result)
        return False

    def _decide(self, level: Level, step: ConditionStep) -> StepResult:
        path = level.prefix + step.id
        text = step.condition
        # A long condition may have to be parsed anew each time.
        self._work_left -= len(text) // 500
        read = condition(text)
        missing = level.missing
        missing.clear()
        lookup = level.compared if self._work_left >= WEIGHED_BELOW else self._weighed(level.compared)
        try:
            target = step.then if read.holds(lookup) else step.otherwise
        except ConditionError as exc:
            status: StepStatus = "skipped" if step.on_error == "skip" else "failed"
            message = f"the condition {quoted(text)} fails: {exc}"
            self._explain(reason, exc, level, compares=True)
            return StepResult(path, status, None, message, "bad_condition")
        if missing and level is self.level and (equated := [each for each in missing if each in read.equated]):
            # The row of an inner program's step comes when that program has ended.
            self._explain(counted_as_none, equated, level, compares=True)
        chosen = None if target is None else level.program.steps[target].id
        return new(StepResult, (path, "success", chosen, None, None, 0, None))

    def _finish(self, level: Level, instruction: Instruction, result: StepResult, scope: Scope | None) -> None:
        """Take the result of a level's step, and find the next step."""
        status = result.status
        if status == "success" or status == "pending":  # noqa: PLR1714 - a tuple is made and searched
            output = result.output
            level.take_output(instruction, output)
            if instruction.compensation is not None:
                record_compensation(level, instruction, instruction.compensation, result, scope)
            if status == "success":
                self.rows.append(result)
                level.last_output = output
            elif level.owner is not None and self.version > 1:
                # The output of a program that a step runs; the outermost one's is that of the last with `success`.
                level.last_output = output
        else:
            self.rows.append(result)
            if status == "skipped" and self.version > 1:
                level.drop_output(instruction)
        if level.ending is not None or (level.program.max_stalled_steps is not None and ends_stalled(level)):
            return
        if status != "failed":
            level.follow(instruction, result)
            return
        exceeded = exceeded_limit(level) if result.code == "budget_exceeded" else None
        if exceeded is not None:
            level.end("budget_exceeded", "budget_exceeded", exceeded)
        else:
            level.end("failed", result.code or "failed", f"step {quoted(instruction.id)} failed: {result.error}")

    def _climb(self, task: Task, result: StepResult) -> None:
        """Hand a task's result to what is above it, and so on upwards."""
        while True:
            group, level, instruction = task.owner, task.level, task.instruction
            if group is not None:
                group.settle(task.slot, result)
                task, above = group, self._pump(group)
            else:
                level.task = None
                if instruction.undoes:
                    level.undo.pop()
                    self.rows.append(result)
                else:
                    self._finish(level, instruction, result, task.scope)
                self._advance(level)
                caller = level.owner
                if caller is None or level.status == "running":
                    return
                task, above = caller, self._returned(caller, level)
            if above is None:
                return
            result = above

    # --- attempts ---

    def _attempt(self, task: Task) -> StepResult | None:
        """Begin an attempt; the result if there is one at once."""
        level, instruction = task.level, task.instruction
        if self._work_left < 0 and not instruction.undoes:
            return self._refused(task, "too_much_at_once", _TOO_MUCH)
        if level.has_token_budget and (exceeded := self._exceeded_tokens(task)):
            return self._refused(task, "budget_exceeded", exceeded)
        if instruction.is_leaf:
            return self._ask(task, instruction, level.within(task.scope))
        try:
            if isinstance(task, Group):
                return self._spread(task)
            assert isinstance(task, Nested)  # there are no others
            return self._call(task)
        except TextTooLongError as exc:
            return self._refused(task, "too_large", str(exc))

    def _ask(self, task: Task, instruction: Instruction, lookup: Lookup) -> StepResult | None:
        """Ask for a leaf's effect; the leaf's result if its values forbid that."""
        fill = instruction.effect_arguments
        try:
            self._emit(task, instruction.effect_kind, instruction.effect_name, fill(lookup), instruction.timeout)
        except TextTooLongError as exc:
            return self._refused(task, "too_large", str(exc))
        except StepFailedError as exc:
            if isinstance(task.step, WaitStep):
                self._explain(behind, task.step.seconds, task.level)
            return self._refused(task, exc.code, str(exc))
        return None

    def _exceeded_tokens(self, task: Task) -> str | None:
        """Why a task may not begin, or begin again: siblings and earlier attempts may have used up what was left."""
        level = task.level
        return exceeded_token_limit(level) if level.has_token_budget and not task.instruction.undoes else None

    def _complete(self, task: Leaf, event: Outcome) -> StepResult | None:
        """The effect has succeeded."""
        value, output = event.value, task.instruction.output
        if output is not None:
            try:
                value = output(value, self._read)
            except StepFailedError as exc:
                return self._failed(task, exc.code, str(exc))
        return new(StepResult, (task.path, "success", value, None, None, task.attempt - 1, task.usage))

    def _fail(self, task: Task, event: Outcome) -> StepResult | None:
        """The effect has failed."""
        return self._failed(task, event.code or event.status, event.message or "the effect failed")

    def _time_out(self, task: Task, event: Outcome) -> StepResult | None:
        """The effect has taken too long."""
        step = task.step
        if not isinstance(step, ModelStep) or not step.falls_back:
            return self._failed(task, event.code or "timeout", event.message or late(step))
        try:
            value = step.fallback(self._read)
        except StepFailedError as exc:
            return self._failed(task, exc.code, str(exc))
        return StepResult(task.path, "success", value, None, None, task.attempt - 1, task.usage)

    def _retry(self, task: Task, _event: Outcome) -> StepResult | None:
        """The time until the next attempt has passed."""
        exceeded = self._exceeded_tokens(task)
        if exceeded is not None:
            return self._given_up(task, "budget_exceeded", exceeded)
        task.phase = "run"
        task.attempt += 1
        return self._attempt(task)

    def _give_up(self, task: Task, event: Outcome) -> StepResult | None:
        """The wait for the next attempt has failed."""
        return self._given_up(task, event.code or event.status, event.message or "the wait to try again failed")

    def _given_up(self, task: Task, code: str, message: str) -> StepResult | None:
        """The result of a task that would have been tried again."""
        task.phase = "aborted"
        if isinstance(task, Group):
            self._keep(task, [row for row in task.results if row is not None])
        return self._failed(task, code, message)

    def _refused(self, task: Task, code: str, message: str) -> StepResult | None:
        """The result of a task that failed because of its values: another attempt would meet the same."""
        task.phase = "aborted"
        return self._failed(task, code, message)

    def _failed(self, task: Task, code: str, message: str) -> StepResult | None:
        """The result of a task that has failed, or None if it is to be tried again."""
        retry = task.step.retry
        if task.attempt < retry.attempts and task.phase != "aborted" and code not in _FINAL:
            exceeded = self._exceeded_tokens(task)
            if exceeded is None:
                task.phase = "backoff"
                self._emit(task, "wait", "retry", {"seconds": retry.seconds(task.attempt)})
                return None
            code, message = "budget_exceeded", exceeded
        self._drop_deadline(task)
        status: StepStatus = "skipped" if task.step.on_error == "skip" else "failed"
        return StepResult(task.path, status, None, message, code, task.attempt - 1, task.usage)

    # --- nested programs: call and return ---

    def _call(self, task: Nested) -> StepResult | None:
        self._set_deadline(task)
        context = dict(task.step.context.fill(task.level.within(task.scope)))
        if self._work_left < WEIGHED_BELOW:
            self._weigh(context)
        task.inner = level = Level(task.step.program, context, task, f"{task.path}/")
        self._advance(level)
        return self._returned(task, level) if level.status != "running" else None

    def _returned(self, task: Nested, level: Level) -> StepResult | None:
        """The result of a task whose program has ended, or None if it is to be tried again."""
        task.inner = None
        if level.status == "success":
            self._drop_deadline(task)
            task.level.undo += level.undo
            return StepResult(task.path, "success", level.last_output, retries=task.attempt - 1)
        assert level.ending is not None  # it has ended
        _, code, message = level.ending
        return self._failed(task, code, f"the program {quoted(level.program.name)} ended as {level.status}: {message}")

    # --- aborting ---

    def _abort_task(self, task: Task, code: str, message: str) -> StepResult | None:
        """Fail a task from outside; None if programs beneath it have to undo something first."""
        phase, task.phase = task.phase, "aborted"
        self._drop_deadline(task)
        if task.effect is not None:
            number = task.effect.id
            self._forget(number, task)
            self._emit_cancel(task, number)
        if phase == "backoff":
            return self._given_up(task, code, message)
        if isinstance(task, Group):
            return self._abort_group(task, code, message)
        if isinstance(task, Nested):
            assert task.inner is not None  # it is under way
            return self._abort_nested(task, task.inner, code, message)
        return self._failed(task, code, message)

    def _abort_nested(self, task: Nested, level: Level, code: str, message: str) -> StepResult | None:
        if level.ending is None:
            self._abort_level(level, code, message)
        return self._returned(task, level) if level.status != "running" else None

    def _abort_level(self, level: Level, code: str, message: str) -> None:
        """Cancel a program: its current step is aborted, then what was done is undone."""
        level.end("cancelled", code, message)
        task = level.task
        if task is not None and (result := self._abort_task(task, code, message)) is not None:
            level.task = None
            self._finish(level, task.instruction, result, task.scope)
        if level.task is None:
            self._advance(level)

    def _explain(
        self, explanation: Callable[[Any, Lookup, Advice], str], what: Any, level: Level, *, compares: bool = False
    ) -> None:
        """Keep why the step whose row is the next one failed, or what its condition counted as None."""
        if len(self.reasons) >= MAX_REASONS:
            return
        lookup = level.compared if compares else level.filled
        if why := explanation(what, lookup, partial(parse_advice, level, compares=compares)):
            self.reasons[len(self.rows)] = why


def late(step: Step) -> str:
    """What is said of a step that has timed out."""
    return "timed out" if step.timeout is None else f"timed out after {step.timeout:g} s"
