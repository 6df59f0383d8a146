"""One run of a script: what it asks for, answered from the record where that is recorded, and recorded where it isn't.

A script that is run again, because its host has died, asks again for everything that it has asked for, by the same
names (`wire.messages.CallId`). What was answered is answered alike, in the order in which it was; nothing of that
happens again. A script that asks for something else under a name has gone another way than it had: it is stopped before
it does harm. Without an idempotency key a script is run again only when its sandbox is lost under it, or to compare:
then nothing at all is made.

A call that nobody can answer now (`script_waiting`) holds up the run: the script is suspended for it, and from then on
has a key, if it had none.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.idempotency_key import generated_key
from mcp_bridge.executions.scripts.call_history import Asked, Past, failure
from mcp_bridge.executions.scripts.held_calls import HeldCall, Hold, is_same
from mcp_bridge.executions.status import UNFINISHED
from mcp_bridge.gate.admission import ApprovalNeededError
from mcp_bridge.host.channel import come_back, has_come_to_its_end, step_aside, taken_back, when_taken_back
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.payloads import NOT_DONE, PENDING, TAKEN_BACK
from mcp_bridge.wire.messages import NAMES, ProgramResume

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from contextlib import AbstractAsyncContextManager

    from mcp_bridge.executions.scripts.call_history import PastCall
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.store import Approval, ProgramStore
    from mcp_bridge.policy.secrets.references import Scalar

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
"""How much longer than it took at first an answer from the record waits for those that were given before it."""

PATIENCE_SECONDS = 10.0
"""How long nothing may happen before a recorded call that hasn't been asked for again counts as one that won't be."""

SLOWER = 2.0
"""And how many times as long as at first a run may take to ask for it: its machine may be busier."""

TAKEN_SECONDS = 1.0
"""How long to wait for the guest to say that an answer has arrived where it is waited for."""

SETTLE_SECONDS = 0.02
"""How much of the time that passed between two answers passes again: tasks and threads go on in it, as they did."""

MAX_SHOWN_CHARS = 300
"""Of each side of a divergence, in its message."""

NOT_TAKEN = frozenset({"record_limit", "ledger_full"})
"""Codes of calls for which there was no room in the record: nor is there for what they were given."""

OWN_END = frozenset({"success", "error", "exit"})
"""Statuses of a script that has come to its end by itself."""

_RESUMABLE = frozenset({"event", "tool"})
"""Kinds of what a program waits for that a script can bring: `programs.resume`."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Divergence:
    """A script went another way than it had.

    Attributes:
        call: Where.
        recorded: What was asked for there; None for nothing.
        asked: What is asked for now; None for nothing.
        instead_of: The recorded call that `recorded` is of, where that is another one: it wasn't asked for.
    """

    call: str
    recorded: Asked | None
    asked: Asked | None
    instead_of: str | None = None

    def error(self) -> BridgeError:
        """It as an error, with both sides in the details."""
        if self.instead_of is not None:
            what = (
                f"the call {self.instead_of} is recorded and was not asked for: {_shown(self.recorded)};"
                f" the call {self.call} is not recorded, or its outcome isn't: {_shown(self.asked)}"
            )
        elif self.asked is None:
            what = f"the call {self.call} is recorded and was not asked for: {_shown(self.recorded)}"
        elif self.recorded is None:
            what = f"the call {self.call} is not recorded: {_shown(self.asked)}"
        else:
            what = f"recorded as {self.call} is {_shown(self.recorded)}, and asked for was {_shown(self.asked)}"
        error = BridgeError(
            "divergence",
            f"The script doesn't do what it did: {what}.",
            hint="It depends on something that changes: the time, chance, the order of a set. Nothing was done twice.",
            call=self.call,
            recorded=self.recorded and self.recorded.told(),
            asked=self.asked and self.asked.told(),
        )
        if self.instead_of is not None:
            error.details["instead_of"] = self.instead_of
        return error


def _shown(asked: Asked | None) -> str:
    text = "nothing" if asked is None else f"{asked.name} with {asked.told()['arguments']}"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


class _Given:
    """The answer from the record that was given last."""

    def __init__(self, call: str, ended: float) -> None:
        self.call = call
        self.ended = ended
        self.taken = anyio.Event()
        self.taken_at = 0.0
        if not call:
            self.taken.set()


class Projection(Protocol):
    """What of the gate a script's run needs."""

    async def project(self, value: Any) -> Any:
        """A value without secrets and sensitive values."""

    def values_behind(self, value: Any) -> Mapping[str, Scalar]:
        """The sensitive values that a projected value refers to, by the ids of their references."""


class ScriptRun:
    """A script's execution under way, between what it asks for and who does it.

    Args:
        execution: Its id.
        store, recorder: Where it is kept.
        projection: The gate.
        policy_hash: Of the policy in force.
        past: What is recorded of it already.
        key: Its idempotency key, or None.
        live: Whether what isn't recorded is done; else it is a divergence.

    Attributes:
        halt: To be set: ends the sandbox. Called once, when a divergence has been met.
        divergence: The first one met, or None.
        has_unnamed: Whether a call was made that has no name: the record can't answer it again.
        hold: The calls that nobody can answer now.
        lent: The calls of programs that wait, and of which the script was told that they do, by the programs' ids.
        made_now: The key that it was given in this run, as it has none and waits; or None.
        room: To be set: what may be recorded of it, as `Allowance.room`. A tool's call asks for it at the gate.
    """

    def __init__(
        self,
        execution: str,
        store: ProgramStore,
        recorder: Recorder,
        projection: Projection,
        policy_hash: str,
        past: Past | None = None,
        *,
        key: str | None = None,
        live: bool = True,
    ) -> None:
        self.execution = execution
        self.key = key
        self.live = live
        self.past = past or Past()
        self.halt: Callable[[BridgeError], None] | None = None
        self.room: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
        self.divergence: Divergence | None = None
        self.hold = Hold()
        self.made_now: str | None = None
        self.lent: dict[str, HeldCall] = {}
        self._all_returned = anyio.Event()
        self._is_first = past is None
        self._pending: set[str] = set()
        """Calls of which the outcome comes later, by what their tool has said in this run."""
        self._store = store
        self._recorder = recorder
        self._projection = projection
        self._policy_hash = policy_hash
        self.has_unnamed = False
        self._seen: set[str] = set()
        self._unasked = dict(self.past.calls)
        """The recorded calls that this run hasn't asked for."""
        self._all_asked = anyio.Event()
        self._late = max((known.offset for known in self.past.calls.values()), default=0.0)
        """Seconds after which a run had asked for all of them."""
        self._is_caught_up = not self.past.calls
        self._began: float | None = None
        """When this run has asked for something first."""
        self._moved = 0.0
        """When something recorded was last asked for or given."""
        self._answered: set[str] = set()
        """Calls of which this run has recorded the outcome."""
        self._begun: set[str] = set()
        """Calls, other than of tools, of which this run has recorded an intent."""
        self._programs: dict[str, tuple[str, Asked]] = {}
        self._next = 0
        """The place of the recorded answer that is to be given next."""
        self._given: set[int] = set()
        self._turns: dict[int, anyio.Event] = {}
        self._last = _Given("", 0.0)

    # --- what the sandbox asks for ---

    async def answer(
        self,
        call: str | None,
        kind: str,
        name: str,
        arguments: Any,
        do: Callable[[dict[str, Any]], Awaitable[Any]],
        *,
        raw: bool = False,
    ) -> Any:
        """The answer to a call: the recorded one, or that of `do`, recorded.

        Args:
            call: Its id; None from a guest that gives none.
            kind: As `Asked`, like `name` and `raw`.
            name: What is called.
            arguments: As asked, not projected.
            do: Makes the call. It is given what the call's entries are to carry besides their own.
            raw: Whether the whole result is wanted.

        Raises:
            BridgeError: `violation`: the id has been used in this run, or is missing. What the call gives.
        """
        if call is None or call in self._seen:
            return await self._unnamed(call, do)
        self._seen.add(call)
        if self._began is None:
            self._began = self._moved = time.monotonic()
        if self.divergence is not None:
            await anyio.sleep_forever()

        projected: list[Asked] = []

        async def asked() -> Asked:
            if not projected:
                projected.append(Asked(kind, name, await self._projection.project(arguments), raw))
            return projected[0]

        known = self.past.calls.get(call)
        # What a person was asked about is as good as recorded: they may have decided.
        before = self.past.held.get(call) if known is None else known.asked
        if before is not None:
            await self._asks_the_same(call, before, await asked())
        if known is not None:
            self._asked_again(call)
            if known.outcome is not None:
                return await self._replayed(known)
        if not self.live:
            if known is None:
                await self._diverge(Divergence(call, None, await asked()))
            await anyio.sleep_forever()  # as then: its answer never came
        await self._caught_up(call, asked)
        await self._returned(kind, name, arguments)
        await come_back()
        if known is not None and known.is_pending:
            self._pending.add(call)
        mark = {"call": call, "asked": name}
        return await self._recorded(call, kind, mark | {"raw": True} if raw else mark, do, asked)

    def unbegun(self, call: str) -> None:
        """The script has taken back a call before anything was done for it: it has asked for it all the same."""
        self._seen.add(call)
        self._asked_again(call)
        if (known := self.past.calls.get(call)) is not None and known.outcome is not None:
            self._give(known.place)

    async def _unnamed(self, call: str | None, do: Callable[[dict[str, Any]], Awaitable[Any]]) -> Any:
        if call is None and self.key is None and self.live:
            self.has_unnamed = True
            return await do({})
        message = "a call has no name" if call is None else f"two calls have the name {call}"
        if self.live:
            self._recorder.post(Entry("violation", self.execution, {"message": message}, None, self._policy_hash))
        raise BridgeError("violation", f"This is no call of a script: {message}.")

    async def _recorded(
        self,
        call: str,
        kind: str,
        mark: dict[str, Any],
        do: Callable[[dict[str, Any]], Awaitable[Any]],
        asked: Callable[[], Awaitable[Asked]],
    ) -> Any:
        try:
            if call in self._pending:
                # It was made, in another run.
                await self._wait(call, await asked(), "tool")
            if kind == "memory":
                async with self.room():
                    answer = await do(mark)
                    self.outcome(self._of(call, await asked()) | {"status": "ok", "value": answer})
            elif kind == "tool":
                answer = await do(mark)
            else:
                # It may wait for others of this run, which need room themselves.
                async with self.room():
                    pass
                answer = await do(mark)
        except ApprovalNeededError as exc:
            await self._wait(call, await asked(), "approval", question=exc.question)
        except BridgeError as exc:
            if call not in self._answered:
                # Refused before it began: who runs it again is to be refused as well.
                now = await asked()
                self.outcome(self._of(call, now.in_short() if exc.code in NOT_TAKEN else now) | failure(exc))
            raise
        if call in self._pending:
            await self._wait(call, await asked(), "tool")
        if kind == "program" and self._waits(answer.get("record")):
            return await self._program_waits(call, await asked(), answer)
        if call not in self._answered and not (kind == "program" and self._drives(call, answer, await asked())):
            self.outcome(self._of(call, await asked()) | {"status": "ok", "value": answer})
        return answer

    def _intent(self, call: str, asked: Asked) -> Entry:
        return Entry("intent", self.execution, asked.payload() | {"call": call}, None, self._policy_hash)

    def _of(self, call: str, asked: Asked) -> dict[str, Any]:
        """The beginning of an outcome. What was asked for is in the intent, if there is one."""
        told = asked.payload() | {"call": call}
        if call in self._begun:
            told.pop("arguments", None)
        return told

    async def begins(self, call: str | None, kind: str, name: str, arguments: Any) -> int | None:
        """Record, durably, that something is about to happen that isn't a tool's call.

        Returns:
            The entry in which it was recorded before, of a call that may have happened; None for a new one.
        """
        if call is None:
            return None
        asked = Asked(kind, name, await self._projection.project(arguments))
        self._begun.add(call)
        self._store.store_values(self.execution, self._projection.values_behind(asked.arguments))
        await self._recorder.append(self._intent(call, asked))
        known = self.past.calls.get(call)
        return None if known is None else known.sequence

    @contextlib.contextmanager
    def beginning(self, outcome: dict[str, Any]) -> Generator[None]:
        """While a call's intent is recorded.

        Args:
            outcome: That of a call that is taken back. It is recorded as soon as the guest says so: what it sends after
                that may be the last thing that this process sees.
        """
        outcome = dict(outcome)
        try:
            yield
        except BaseException:
            # It has been announced, and won't be made.
            self.outcome(outcome | {"status": NOT_DONE})
            raise
        if "call" in outcome:
            when_taken_back(lambda: self._take_back(outcome))

    def outcome(self, payload: dict[str, Any]) -> None:
        """Record how a call has ended.

        One that was cut short by the end of its sandbox has no outcome, if there is a key: it is in doubt.
        """
        if payload["status"] != TAKEN_BACK or self.key is None or taken_back():
            self._ended(payload)

    def _take_back(self, outcome: dict[str, Any]) -> None:
        # Whatever has come of it, the script has done without.
        self._answered.add(outcome["call"])
        self._recorder.post(Entry("outcome", self.execution, outcome, None, self._policy_hash))

    def _ended(self, payload: dict[str, Any]) -> None:
        if (call := payload.get("call")) is not None:
            if call in self._answered:
                return  # it was taken back
            (self._pending if payload["status"] == PENDING else self._answered).add(call)
        told = [payload.get("arguments"), payload.get("value", payload.get("details"))]
        self._store.store_values(self.execution, self._projection.values_behind(told))
        self._recorder.post(Entry("outcome", self.execution, payload, None, self._policy_hash))

    # --- what nobody can answer now ---

    async def _wait(
        self,
        call: str,
        asked: Asked,
        kind: Literal["approval", "tool", "program"],
        question: Mapping[str, Any] = _NOTHING,
        program: Mapping[str, Any] = _NOTHING,
    ) -> NoReturn:
        """Give no answer to a call: until its script, which is suspended for it, is ended, or takes it back."""
        if self.key is None:
            self.key = self.made_now = generated_key(self.execution)

        def let_go() -> None:
            # The script does without.
            self.hold.remove(call)
            if not self.hold.calls and not self.lent and self.made_now is not None:
                self.key = self.made_now = None
            if call not in self._answered:
                self._take_back(self._of(call, asked) | {"status": TAKEN_BACK})

        step_aside()
        has_come_to_its_end()
        self.hold.add(HeldCall(call, asked, kind, time.time(), question, program))
        when_taken_back(let_go)
        try:
            await anyio.sleep_forever()
        finally:
            if taken_back() and call in self.hold.calls:
                let_go()
        raise AssertionError

    async def decided(self, call: str, question: Mapping[str, Any]) -> bool | None:
        """As `admission.Decisions`."""
        for row in await self._asked_of(call, question):
            if row.decision is not None:
                return bool(row.decision["approved"])
        return None

    async def decide(self, call: str, question: Mapping[str, Any], *, approved: bool) -> bool | None:
        """As `admission.Decisions`."""
        for row in await self._asked_of(call, question):
            decision = {"approved": approved, "by": "client", "comment": None}
            entry = Entry("decision", self.execution, row.question | decision, None, self._policy_hash)
            return approved if await self._store.decide(row, decision, entry) else await self.decided(call, question)
        return None

    async def _asked_of(self, call: str, question: Mapping[str, Any]) -> list[Approval]:
        """What a person has been asked already about exactly this call: one question, or none."""
        if self._is_first:
            return []
        asked = {**question, "call": call}
        return [row for row in await self._store.approvals(self.execution) if is_same(row.question, asked)]

    # --- programs that it drives ---

    def key_of(self, call: str | None) -> str | None:
        """The idempotency key of a program that a call starts, and that has none of its own.

        Without a key of the script's, too: it is given one when it is suspended.
        """
        return None if call is None else f"{self.execution}/{call}"

    @property
    def kept_key(self) -> str | None:
        """Its key, if that is written down: who comes with it later goes on with it. One that is made may not be."""
        return None if self.made_now is not None else self.key

    def _waits(self, record: Any) -> bool:
        """Whether a program's record is no answer: its script has a key, and goes on when the program has."""
        return self.key is not None and isinstance(record, dict) and record["status"] in UNFINISHED

    def _drives(self, call: str, answer: Any, asked: Asked) -> bool:
        """Whether a program is under way now: then its record is the call's outcome."""
        if "record" in answer:
            return False
        if "execution" not in answer:
            return False
        self._programs[answer["execution"]] = call, asked
        if call not in self._begun:
            # Its outcome may never come, if the script leaves it: then this says that it was asked for, and when.
            self._begun.add(call)
            self._store.store_values(self.execution, self._projection.values_behind(asked.arguments))
            self._recorder.post(self._intent(call, asked))
        return True

    async def program_ended(self, execution: str, record: dict[str, Any]) -> None:
        """The sandbox has driven a program to where it can't go on."""
        call, asked = self._programs.pop(execution, ("", None))
        if asked is not None and self._waits(record):
            await self._program_waits(call, asked, {"record": record})
        elif asked is not None:
            self.outcome(self._of(call, asked) | {"status": "ok", "value": {"record": record}})

    async def _program_waits(self, call: str, asked: Asked, answer: dict[str, Any]) -> dict[str, Any]:
        """What is told of a program that waits: nothing, unless it waits for what the script itself may bring.

        Then it is told, and lent until its script's next call: if that resumes the program, it is the answer. If it is
        any other, or the script comes to its end, the script waits for its program: nothing that it does because the
        program waits is done.
        """
        record = answer["record"]
        if not any(row["kind"] in _RESUMABLE for row in record["waiting"]):
            await self._wait(call, asked, "program", program=record)
        self.lent[record["trace_id"]] = HeldCall(call, asked, "program", time.time(), _NOTHING, record)
        return answer

    async def _returned(self, kind: str, name: str, arguments: Any) -> None:
        """Wait until nothing is lent that a call doesn't take up."""
        if kind == "program" and name == NAMES[ProgramResume] and arguments["execution"] in self.lent:
            held = self.lent.pop(arguments["execution"])
            self.outcome(self._of(held.call, held.asked) | {"status": "ok", "value": {"record": held.program}})
            self.hold.remove(held.call)
            self._all_returned.set()
        while self.lent:
            for held in self.lent.values():
                self.hold.add(held)
            if self._all_returned.is_set():
                # One for all that wait: another in its place would leave those before it waiting.
                self._all_returned = anyio.Event()
            step_aside()
            await self._all_returned.wait()

    def program_left(self, execution: str) -> None:
        """The script no longer waits for a program that its sandbox was driving."""
        call, asked = self._programs.pop(execution, ("", None))
        if asked is not None:
            self._take_back(self._of(call, asked) | {"status": TAKEN_BACK})

    # --- replaying ---

    def _asked_again(self, call: str) -> None:
        self._moved = time.monotonic()
        if self._unasked.pop(call, None) is not None and not self._unasked:
            self._all_asked.set()

    async def _asks_the_same(self, call: str, before: Asked, now: Asked) -> None:
        values = self._projection.values_behind([before.arguments, now.arguments])
        if not before.is_same(now, values):
            await self._diverge(Divergence(call, before, now))

    async def _caught_up(self, call: str, asked: Callable[[], Awaitable[Asked]]) -> None:
        """Wait until this run has asked for everything that is recorded, as it did, and has been given it.

        Until then nobody knows whether it goes the same way, and what it wants to have made now may be what it has had
        made by another name. A script that goes the same way doesn't wait here for itself. What a call has given is
        recorded before the script is given it, and entries become durable in their order: had a recorded call been
        asked for because of this one's answer, that answer would be recorded. So every recorded call was asked for
        while this one was unanswered, at latest when the script had tired of it and taken it back, and will be again.
        What isn't asked for then, long after it was, is a divergence.

        Args:
            call: That isn't recorded, or of which no outcome is.
            asked: What it asks for.
        """
        if self._is_caught_up:
            return
        step_aside()
        while self._unasked:
            latest = max((self._began or 0.0) + SLOWER * self._late, self._moved) + PATIENCE_SECONDS
            if (left := latest - time.monotonic()) <= 0:
                missing = next(iter(self._unasked.values()))
                await self._diverge(Divergence(call, missing.asked, await asked(), missing.call))
            with anyio.move_on_after(left):
                await self._all_asked.wait()
        # All are asked for, and given one after the other: none is waited for in vain.
        await self._turn(self.past.answers, math.inf)
        if self.divergence is not None:
            await anyio.sleep_forever()
        self._is_caught_up = True
        await come_back()

    async def _replayed(self, known: PastCall) -> Any:
        if not known.is_answered:
            # The script took it back, and will again; the others don't wait for that.
            self._give(known.place)
            step_aside()
            await anyio.sleep(known.seconds + GRACE_SECONDS)
            raise BridgeError("interrupted", "The call was taken back when the script first ran: it may have happened.")
        try:
            await self._turn(known.place, known.seconds + GRACE_SECONDS, known.ended)
            self._last = _Given(known.call, known.ended)
            return known.answer()
        finally:
            # Also of one that is taken back meanwhile.
            self._give(known.place)

    async def _turn(self, place: int, patience: float, ended: float = math.inf) -> None:
        """Wait until everything before a place was given and taken, or was not asked for in time.

        Args:
            place: The place.
            patience: Seconds.
            ended: When what is to be given was recorded, in seconds since 1970.
        """
        step_aside()
        if self._next < place:
            turn = self._turns.setdefault(place, anyio.Event())
            with anyio.move_on_after(patience):
                await turn.wait()
            # The others don't wait for what this one has waited for.
            self._advance(place)
        last = self._last
        with anyio.move_on_after(TAKEN_SECONDS):
            await last.taken.wait()
        # What follows from the last one had this time before this one came.
        pause = min(ended - last.ended, SETTLE_SECONDS) - (time.monotonic() - last.taken_at)
        if pause > 0:
            await anyio.sleep(pause)

    def taken(self, call: str) -> None:
        """The guest says that whoever waited for the answer to a call has it."""
        if call == self._last.call:
            self._last.taken_at = time.monotonic()
            self._last.taken.set()

    def _give(self, place: int) -> None:
        self._given.add(place)
        self._moved = time.monotonic()
        self._advance(self._next)

    def _advance(self, place: int) -> None:
        self._next = max(self._next, place)
        while self._next in self._given:
            self._next += 1
        for waiting in [waiting for waiting in self._turns if waiting <= self._next]:
            self._turns.pop(waiting).set()

    async def _diverge(self, divergence: Divergence) -> NoReturn:
        """Stop: the sandbox ends. Nothing is under way: until everything recorded is asked for, nothing is made."""
        if self.divergence is None:
            self.divergence = divergence
            logger.warning("execution %s diverges at the call %s", self.execution, divergence.call)
            if self.halt is not None:
                self.halt(divergence.error())
        await anyio.sleep_forever()
        raise AssertionError

    def missing(self) -> Divergence | None:
        """The first recorded answer that a script, which has ended, has not asked for."""
        for call in self.past.calls.values():
            if call.is_answered and call.call not in self._seen:
                return Divergence(call.call, call.asked, None)
        return None
