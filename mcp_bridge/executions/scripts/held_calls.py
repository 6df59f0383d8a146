"""Held calls: calls of a script that can't be answered now, for which the script is suspended.

Such a call needs a person's approval while nobody can be asked, or is of a tool whose outcome comes later, or of a
program that is suspended itself. It gets no answer, and while there is one, no other call gets one, so the script comes
to rest. Then its sandbox is ended. When the script is resumed, it is run again from its record.

A wait for a time or an event is parked: other calls get their answers, and only when none is under way any more is the
sandbox ended.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import anyio

from mcp_bridge.executions.readiness import PROGRAM
from mcp_bridge.executions.record import abridged
from mcp_bridge.large_json import is_same_json
from mcp_bridge.offload import off_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from mcp_bridge.executions.record import WaitingRow
    from mcp_bridge.executions.scripts.call_history import CallRequest
    from mcp_bridge.executions.scripts.call_recorder import CallRecorder
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.ledger.storage.execution_store import Approval, ProgramStore

_NO_PROGRAM: Mapping[str, Any] = MappingProxyType({})

MAX_ASKED = 100
"""Most open questions of one script. Further ones are asked after it is resumed."""

MAX_ASKED_BYTES = 16 << 20
"""Most bytes of these questions together; a single one may have more."""


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call that can't be answered now.

    Attributes:
        call: The call's id.
        asked: Its request.
        kind: What it waits for: a person's approval, the outcome of a tool that was called, a program, a time (`wait`),
            or an event.
        since: When it began to wait, in seconds since 1970.
        question: The question to a person, projected; empty for other kinds.
        program: The program's record; empty for other kinds.
        event: The event's name; empty for other kinds.
        due: When it is over, in seconds since 1970; None if no time ends it.
        after: The number of the last event that was looked at; only a later one ends it. -1 without any.
    """

    call: str
    asked: CallRequest
    kind: Literal["approval", "tool", "program", "wait", "event"]
    since: float
    question: QuestionFields
    program: Mapping[str, Any]
    event: str = ""
    due: float | None = None
    after: int = -1


class HeldCalls:
    """The calls of one run that wait.

    Attributes:
        calls: The held calls by id, in the order in which they began to wait.
        parked: The waits for a time or an event by id, likewise. They hold up no other call.
    """

    def __init__(self) -> None:
        self.calls: dict[str, HeldCall] = {}
        self.parked: dict[str, HeldCall] = {}
        self._begun, self._over = anyio.Event(), anyio.Event()
        self._over.set()

    @property
    def is_empty(self) -> bool:
        """Whether no call waits."""
        return not self.calls and not self.parked

    def add(self, held: HeldCall) -> None:
        """Add a held call."""
        if not self.calls:
            self._over = anyio.Event()
        self.calls[held.call] = held
        self._begun.set()

    def add_wait(self, held: HeldCall) -> None:
        """Add a wait."""
        self.parked[held.call] = held
        self._begun.set()

    def remove(self, call: str) -> None:
        """The script wants it no more, or it is over."""
        if self.calls.pop(call, None) is not None and not self.calls:
            self._over.set()
        self.parked.pop(call, None)
        if self.is_empty and self._begun.is_set():
            self._begun = anyio.Event()

    async def begun(self) -> None:
        """Wait until a call waits. It does so still when this returns."""
        while self.is_empty:
            await self._begun.wait()

    async def over(self) -> None:
        """Wait until none is held."""
        await self._over.wait()


class HoldsCalls(Protocol):
    """The run whose calls are held."""

    hold: HeldCalls

    def generate_key(self) -> None:
        """Give a run without a key one, by which it can be resumed."""

    def release(self, call: str) -> None:
        """Note that a call doesn't wait any more."""


async def hold_call(
    run: HoldsCalls,
    call: CallRecorder,
    request: RequestContext,
    kind: Literal["approval", "tool", "program"],
    question: QuestionFields | None = None,
    program: Mapping[str, Any] = _NO_PROGRAM,
) -> NoReturn:
    """Hold a call without an answer until the script, which is suspended for it, is ended, or cancels the call.

    Args:
        run: The script's run.
        call: The call.
        request: The request that is held: the call's own, or the one that reported the end of its program.
        kind: As `HeldCall.kind`, like `question` and `program`.
        question: What a person is asked.
        program: The program's record.
    """
    asked = await call.asked()
    assert call.call is not None  # without a name it isn't held
    name = call.call
    run.generate_key()

    def release() -> None:
        # The script goes on without it.
        run.release(name)
        if not call.has_ended:
            call.abandoned(asked)

    request.release_slot()
    request.effect_ended()
    run.hold.add(HeldCall(name, asked, kind, time.time(), question or {}, program))
    request.on_cancel(release)
    try:
        await anyio.sleep_forever()
    finally:
        if request.is_cancelled and name in run.hold.calls:
            release()
    raise AssertionError


async def park_call(run: HoldsCalls, call: CallRecorder, held: HeldCall, pause: Callable[[], Awaitable[None]]) -> None:
    """Wait for a time or an event as `pause` does; the script may be suspended meanwhile.

    Args:
        run: The script's run.
        call: The call that waits.
        held: The same, as it is parked.
        pause: Waits.
    """
    run.generate_key()
    call.request.release_slot()
    run.hold.add_wait(held)
    try:
        await pause()
    except BaseException:
        # When its sandbox is ended, the script is suspended for it.
        if call.request.is_cancelled:
            run.release(held.call)
        raise
    run.release(held.call)
    await call.request.reacquire_slot()


def is_same(question: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two questions are about the same call of a script, with the same arguments."""
    return all(is_same_json(question.get(name), other.get(name)) for name in ("call", "tool", "arguments", "announced"))


async def ask(store: ProgramStore, execution: str, held: Iterable[HeldCall], tool: str) -> list[WaitingRow]:
    """Have a person asked about the calls that wait for one.

    Args:
        store: Keeps the questions.
        execution: The script's.
        held: The calls.
        tool: The tool that runs the script.

    Returns:
        A row for each call that waits, with the fields of what a program waits for, and `call`.
    """
    known = await store.approvals(execution)
    last = max((row.effect for row in known), default=0)
    asked, size = 0, 0
    rows: list[WaitingRow] = []
    for one in held:
        row: WaitingRow = {
            "call": one.call,
            "step": one.call,
            "effect": one.call,
            "kind": one.kind,
            "since": one.since,
            "name": one.asked.name,
            "tool": one.asked.name,
        }
        match one.kind:
            case "approval":
                question = one.question | {"call": one.call, "program": tool, "step": one.call}
                size += await off_loop(question, _size, question)
                if asked and (asked >= MAX_ASKED or size > MAX_ASKED_BYTES):
                    continue
                asked += 1
                number = _number(known, question)
                if number is None:
                    number = last = last + 1
                    await store.ask(execution, number, question)
                row["effect"], row["tool"] = number, question["tool"]
                row["arguments"] = one.asked.abridged()["arguments"]
            case "tool":
                row["arguments"] = one.asked.abridged()["arguments"]
            case "wait" | "event":
                del row["tool"]
                row["name"] = one.event or "wait"
                if one.due is not None:
                    row["due"] = one.due
                if one.kind == "event":
                    row["after"] = one.after
            case _:
                del row["tool"]
                row["kind"], row["name"], row["execution"] = PROGRAM, one.program["program"], one.program["trace_id"]
                row["waiting"] = [abridged(waiting) for waiting in one.program["waiting"]]
        rows.append(row)
    return rows


def _size(question: Mapping[str, Any]) -> int:
    return len(json.dumps(question))


def _number(known: Iterable[Approval], question: Mapping[str, Any]) -> int | None:
    """The number by which the question has been asked already."""
    return next((row.effect for row in known if is_same(row.question, question)), None)
