"""A script that is run again from its record: whether it repeats the recorded calls, or diverges from them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.reruns.diff_excerpt import shown_sides
from mcp_bridge.offload import off_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from mcp_bridge.executions.scripts.call_history import CallHistory, CallRequest
    from mcp_bridge.policy.secrets.known_values import Scalar

logger = logging.getLogger(__name__)

QUIET_SECONDS = 10.0
"""How long nothing may happen until a recorded call that wasn't repeated counts as missing, and one that isn't recorded
as new."""

MAX_QUIET_SECONDS = 3 * QUIET_SECONDS
"""As `QUIET_SECONDS`, at most, for a call that isn't recorded while there are recorded ones to come."""

MAX_SLOWDOWN_FACTOR = 2.0
"""How many times as long as the recorded run this run may take to repeat a call: its machine may be busier."""

MAX_SHOWN_CHARS = 300
"""Most characters of the arguments of each side of a divergence in its message."""


DIGESTED = "arguments of which only a digest is recorded"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A script went another way than it had.

    Attributes:
        call: Where.
        recorded: What was asked for there; None for nothing.
        asked: What is asked for now; None for nothing.
        instead_of: The recorded call that `recorded` is of, where that is another one: it wasn't asked for.
        what: What differs.
        changed_servers: The servers that list other tools than those of the recorded calls.
    """

    call: str
    recorded: CallRequest | None
    asked: CallRequest | None
    instead_of: str | None = None
    what: str = "call"
    changed_servers: tuple[str, ...] = field(default=(), kw_only=True)

    def error(self) -> BridgeError:
        """The divergence as an error, with both sides in the details."""
        given = shown_sides(_arguments(self.recorded), _arguments(self.asked), MAX_SHOWN_CHARS)
        recorded, asked = (
            "nothing" if one is None else f"{one.name} with {arguments if one.digest is None else DIGESTED}"
            for one, arguments in zip((self.recorded, self.asked), given, strict=True)
        )
        if self.instead_of is not None:
            what = (
                f"the call {self.instead_of} is recorded and was not asked for: {recorded};"
                f" the call {self.call} is not recorded, or its outcome isn't: {asked}"
            )
        elif self.asked is None:
            what = f"the call {self.call} is recorded and was not asked for: {recorded}"
        elif self.recorded is None:
            what = f"the call {self.call} is not recorded: {asked}"
        else:
            what = f"recorded as {self.call} is {recorded}, and asked for was {asked}"
        hint = "It depends on something that changes: the time, chance, the order of a set. Nothing was done twice."
        if changed := other_tools(self.changed_servers):
            what += f". {changed}"
            hint = "It depends on the tools that its servers list, or on something else. Nothing was done twice."
        error = BridgeError(
            "divergence",
            f"The script doesn't do what it did: {what}.",
            hint=hint,
            call=self.call,
            recorded=self.recorded and self.recorded.abridged(),
            asked=self.asked and self.asked.abridged(),
        )
        if self.changed_servers:
            error.details["changed_servers"] = list(self.changed_servers)
        if self.instead_of is not None:
            error.details["instead_of"] = self.instead_of
        return error


def other_tools(servers: Iterable[str]) -> str:
    """A sentence on servers that list other tools than they did, without its full stop; or nothing."""
    names = [repr(name) for name in servers]
    if not names:
        return ""
    lists, it = ("lists", "it") if len(names) == 1 else ("list", "they")
    return f"{' and '.join(names)} {lists} other tools than {it} did"


def _arguments(asked: CallRequest | None) -> str:
    return "" if asked is None else str(asked.arguments)


class DivergenceDetector:
    """The course of a script as its record has it, compared with the calls of another run.

    Args:
        execution: The execution's id.
        history: The recorded calls.

    Attributes:
        divergence: The first divergence, or None.
        made: The names of the calls that this run has made.
        changed_servers: The servers that list other tools by now than those of the recorded calls.
        unlisted: Why servers could not list their tools in this run, by their names.
    """

    def __init__(self, execution: str, history: CallHistory) -> None:
        self.divergence: Divergence | None = None
        self.made: set[str] = set()
        self.changed_servers: set[str] = set()
        self.unlisted: dict[str, str] = {}
        self._execution = execution
        self._history = history
        self._has_diverged = anyio.Event()
        self._unrepeated = dict(history.calls)
        """The recorded calls that this run hasn't repeated."""
        self._all_repeated = anyio.Event()
        self._unrecorded: dict[str, Divergence] = {}
        """The calls that aren't recorded and wait to be taken back, by their names."""
        self._late = max((known.offset for known in history.calls.values()), default=0.0)
        """Seconds after which the recorded run had made all of them."""
        self._began: float | None = None
        """When this run made its first call."""
        self._moved = 0.0
        """When a recorded call was last repeated or answered."""

    def begin(self, call: str) -> None:
        """Note that the run makes a call: the time for all counts from its first."""
        self.made.add(call)
        if self._began is None:
            self._began = self._moved = time.monotonic()

    def moved(self) -> None:
        """Note that a recorded call was repeated or answered: the wait for the next one begins anew."""
        self._moved = time.monotonic()

    def repeated(self, call: str) -> None:
        """Note that a recorded call was made again."""
        self.moved()
        if self._unrepeated.pop(call, None) is not None and not self._unrepeated:
            self._all_repeated.set()

    async def compare(self, call: str, before: CallRequest, now: CallRequest, values: Mapping[str, Scalar]) -> None:
        """Hold a call against the recorded one of its name; `values` are those behind the references of both.

        If they differ, the run diverges, and this doesn't return.
        """
        if not await off_loop(now.arguments, before.is_same, now, values):
            await self.leave(Divergence(call, before, now))

    async def all_repeated(self, call: str, asked: Callable[[], Awaitable[CallRequest]]) -> None:
        """Wait until the run has repeated all recorded calls.

        Until then it is unknown whether the script has diverged: a new call might be a recorded one under another id.
        A script that hasn't diverged doesn't wait here for itself. An answer is recorded before the script gets it, and
        entries become durable in their order: if a recorded call had been made because of this call's answer, that
        answer would be recorded. So every recorded call was made while this one was unanswered, at the latest when the
        script had cancelled it, and will be made again. A recorded call that isn't repeated, long after its time, is a
        divergence, and this doesn't return.

        Args:
            call: The name of a call that isn't recorded, or has no recorded outcome.
            asked: What it asks for.
        """
        while self._unrepeated:
            if (left := self._left(self._late)) <= 0:
                first = next(iter(self._unrepeated.values()))
                await self.leave(Divergence(call, first.asked, await asked(), first.call))
            with anyio.move_on_after(left):
                await self._all_repeated.wait()

    async def wait_for_cancellation(self, call: str, asked: Callable[[], Awaitable[CallRequest]]) -> NoReturn:
        """Wait for the script to take back a call that isn't recorded, in a run that makes none; doesn't return.

        The recorded run may have made it, too, and have taken it back, or left it at its end, before there was anything
        to record. That took a moment: if nothing else happens for long, it is a divergence.

        Args:
            call: The call's name.
            asked: What it asks for.
        """
        began = time.monotonic()
        divergence = self._unrecorded[call] = Divergence(call, None, await asked())
        while (left := self._left_alone(began)) > 0:  # noqa: ASYNC110 - what moves it on sets no event
            await anyio.sleep(left)
        await self.leave(divergence)

    def call_cancelled(self, call: str) -> None:
        """Note that the script has taken back a call that isn't recorded, or has ended without it."""
        self._unrecorded.pop(call, None)

    @property
    def suspected(self) -> Divergence | None:
        """A divergence, if the script waited for a call that isn't recorded when something else ended it; or None."""
        return next(map(self._told, self._unrecorded.values()), None)

    def _left(self, seconds: float) -> float:
        """Seconds until this run should have come as far as the recorded one had after so many."""
        return max((self._began or 0.0) + MAX_SLOWDOWN_FACTOR * seconds, self._moved) + QUIET_SECONDS - time.monotonic()

    def _left_alone(self, began: float) -> float:
        """Seconds until a call that isn't recorded, and was made then, is all that the script waits for."""
        quiet = time.monotonic() - max(began, self._moved)
        if not self._unrepeated:
            return QUIET_SECONDS - quiet
        return min(self._left(self._late), MAX_QUIET_SECONDS - quiet)

    async def leave(self, divergence: Divergence) -> NoReturn:
        """Stop the script: the caller of `diverged` ends the sandbox. No call is under way, and none is made."""
        if self.divergence is None:
            self.divergence = self._told(divergence)
            logger.warning("execution %s diverges at the call %s", self._execution, divergence.call)
            self._has_diverged.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def diverged(self) -> BridgeError:
        """Wait for a divergence; returns it."""
        await self._has_diverged.wait()
        assert self.divergence is not None  # set before
        return self.divergence.error()

    def final_divergence(self) -> Divergence | None:
        """The divergence of a script that has ended: the first, or an answered call that it hasn't made; or None."""
        if self.divergence is not None:
            return self.divergence
        left_out = (one for one in self._history.calls.values() if one.is_answered and one.call not in self.made)
        return next((self._told(Divergence(one.call, one.asked, None)) for one in left_out), None)

    def _told(self, divergence: Divergence) -> Divergence:
        return replace(divergence, changed_servers=tuple(sorted(self.changed_servers)))
