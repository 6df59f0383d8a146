"""The programs that a script awaits: their records are the outcomes of its calls, or it waits with them, suspended.

The outcome of the call that starts a program, or has it go on, is the program's record, when the program has ended.
For a program that is suspended the script waits in its turn, and is suspended too, unless it may deliver what the
program waits for (`programs.resume`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from mcp_bridge.executions.scripts.held_calls import HeldCall, HoldsCalls, hold_call
from mcp_bridge.executions.status import UNFINISHED
from mcp_bridge.wire.messages import NAMES, ProgramResume

if TYPE_CHECKING:
    from mcp_bridge.executions.scripts.call_history import CallRequest
    from mcp_bridge.executions.scripts.call_recorder import CallRecorder
    from mcp_bridge.gate.request_context import RequestContext

_RESUMABLE = frozenset({"event", "tool"})
"""What a program can wait for that its script may deliver, with `programs.resume`."""


class DrivingRun(HoldsCalls, Protocol):
    """The run of the script that drives them."""

    key: str | None


class AwaitedPrograms:
    """The programs of one run of a script.

    Args:
        run: The run.

    Attributes:
        lent: The calls of suspended programs whose record the script was given, by the programs' ids.
    """

    def __init__(self, run: DrivingRun) -> None:
        self.lent: dict[str, HeldCall] = {}
        self._run = run
        self._calls: dict[str, tuple[CallRecorder, CallRequest]] = {}
        """The calls of programs that are under way or in `lent`, by the programs' executions."""
        self._all_returned = anyio.Event()

    async def answered(self, call: CallRecorder, asked: CallRequest, answer: dict[str, Any]) -> dict[str, Any]:
        """Take what a program's start, or its going on, has led to. Returns the answer to the script."""
        if self._waits(answer.get("record")):
            return await self._suspended(call, asked, answer, call.request)
        if "record" not in answer and "execution" in answer:
            # The program is under way now: its record will be the call's outcome.
            self._calls[answer["execution"]] = call, asked
            call.drives_program(asked)
        else:
            call.succeeded_with(answer, asked)
        return answer

    async def ended(self, execution: str, record: dict[str, Any], request: RequestContext) -> None:
        """The sandbox has driven a program until it ended or was suspended.

        Args:
            execution: The program's execution.
            record: Its record.
            request: The request that reported it.
        """
        if (found := self._calls.pop(execution, None)) is None:
            return
        call, asked = found
        if self._waits(record):
            await self._suspended(call, asked, {"record": record}, request)
        else:
            call.succeeded_with({"record": record}, asked)

    def left(self, execution: str) -> None:
        """The script no longer waits for a program that its sandbox was driving."""
        if (found := self._calls.pop(execution, None)) is not None:
            call, asked = found
            call.abandoned(asked)

    async def returned(self, call: CallRecorder) -> None:
        """Wait until `lent` has no program but the one that a call resumes."""
        if call.kind == "program" and call.name == NAMES[ProgramResume] and call.arguments["execution"] in self.lent:
            held = self.lent.pop(call.arguments["execution"])
            lender, asked = self._calls.pop(call.arguments["execution"])
            lender.succeeded_with({"record": held.program}, asked)
            self._run.hold.remove(held.call)
            self._all_returned.set()
        while self.lent:
            for held in self.lent.values():
                self._run.hold.add(held)
            if self._all_returned.is_set():
                # One event for all waiters: replacing it would leave earlier waiters waiting.
                self._all_returned = anyio.Event()
            call.request.release_slot()
            await self._all_returned.wait()

    def _waits(self, record: Any) -> bool:
        """Whether the script waits for a program instead of getting its record: it has a key, and resumes later."""
        return self._run.key is not None and isinstance(record, dict) and record["status"] in UNFINISHED

    async def _suspended(
        self, call: CallRecorder, asked: CallRequest, answer: dict[str, Any], request: RequestContext
    ) -> dict[str, Any]:
        """Answer the call of a program that was suspended: not at all, unless the script may deliver what it waits for.

        In that case the script gets the program's record, and the call is in `lent` until the script's next call. That
        call may resume the program. If it is any other call, or the script ends, the script is suspended for its
        program: nothing that it does because the program is suspended takes effect.
        """
        record = answer["record"]
        if not any(row["kind"] in _RESUMABLE for row in record["waiting"]):
            await hold_call(self._run, call, request, "program", program=record)
        execution = record["trace_id"]
        assert call.call is not None  # without a name it has no key
        self._calls[execution] = call, asked
        self.lent[execution] = HeldCall(call.call, asked, "program", time.time(), {}, record)
        return answer
