"""Groups of tasks, of parallel and map steps: how many run at a time, and the result when all have ended."""

from __future__ import annotations

from mcp_bridge.kernel.awaited_effects import AwaitedEffects
from mcp_bridge.kernel.compensation import record_compensation
from mcp_bridge.kernel.events import StepResult
from mcp_bridge.kernel.program_flow import Group, Parallel, Task
from mcp_bridge.kernel.program_limits import exceeded_token_limit


class GroupExecution(AwaitedEffects):
    """What happens to groups. What happens to one task is in `step_execution`."""

    def _attempt(self, task: Task) -> StepResult | None:
        """Begin an attempt; the result if there is one at once."""
        raise NotImplementedError

    def _failed(self, task: Task, code: str, message: str) -> StepResult | None:
        """The result of a task that has failed, or None if it is to be tried again."""
        raise NotImplementedError

    def _abort_task(self, task: Task, code: str, message: str) -> StepResult | None:
        """Fail a task from outside; None if programs beneath it have to undo something first."""
        raise NotImplementedError

    def _spread(self, group: Group) -> StepResult | None:
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
            self._work_left -= 1
            group.active += 1
            group.tasks[slot] = task = group.task_for(slot)
            result = self._attempt(task)
            if result is not None:
                group.settle(slot, result)
        return None if group.active else self._join(group)

    def _join(self, group: Group) -> StepResult | None:
        """The result of a group of which all tasks have ended, or None if it is to be tried again."""
        rows = [row for row in group.results if row is not None]
        failed = [row for row in rows if row.status == "failed"]
        aborted = group.phase == "aborted"
        if failed and (aborted or group.step.on_error != "skip"):
            code, message = "sub_steps_failed", f"sub-steps failed: {', '.join(row.id for row in failed)}"
            if aborted:
                code, message = failed[0].code or code, failed[0].error or message
            elif any(row.code == "budget_exceeded" for row in failed) and exceeded_token_limit(group.level):
                code = "budget_exceeded"
            result = self._failed(group, code, message)
            if result is None:
                return None
        else:
            self._drop_deadline(group)
            rows = [row._replace(status="skipped") if row.status == "failed" else row for row in rows]
            result = StepResult(group.path, "success", group.joined(rows), retries=group.attempt - 1)
        self._keep(group, rows)
        return result

    def _keep(self, group: Group, rows: list[StepResult]) -> None:
        """Keep what the tasks of a group gave, whether the group has succeeded or not."""
        self.rows += rows
        is_parallel = isinstance(group, Parallel)
        for slot, row in enumerate(rows):
            if row.status == "success" or (row.status == "skipped" and is_parallel):
                instruction, scope, _ = group.child(slot)
                if is_parallel:
                    group.level.take_output(instruction, row.output)
                elif instruction.output_key:
                    # The body of a map can't be referred to by its id.
                    group.level.context[instruction.output_key] = row.output
                if instruction.compensation is not None and row.status == "success":
                    record_compensation(group.level, instruction, instruction.compensation, row, scope)
            elif is_parallel and self.version > 1:
                # The group may be skipped.
                group.level.drop_output(group.child(slot)[0])

    def _abort_group(self, group: Group, code: str, message: str) -> StepResult | None:
        for slot, task in enumerate(group.tasks):
            if task is not None and (result := self._abort_task(task, code, message)) is not None:
                group.settle(slot, result)
        for slot, row in enumerate(group.results):
            if row is None and group.tasks[slot] is None:
                group.results[slot] = StepResult(group.child(slot)[-1], "failed", None, message, code)
        return None if group.active else self._join(group)
