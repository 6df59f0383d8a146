"""`mcp.programs`: governed programs, driven from here.

The machine in this process says what comes next; the host's machine, which knows the same program and saw every
outcome itself, lets it happen or doesn't.
"""

import functools
import hashlib
import queue
from collections.abc import Callable
from typing import Any

from mcp_bridge.guest.channel import Channel, RequestError
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Effect, Outcome, Usage
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.program import unbundle
from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.messages import ProgramEffect, ProgramFinish

Answer = jsonrpc.Response | jsonrpc.ErrorResponse


class StepView:
    """One step of a trace: `.id .status .output .error .code .retries .usage`."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.id: str = row["id"]
        self.status: str = row["status"]
        self.output: Any = row.get("output")
        self.error: str | None = row.get("error")
        self.code: str | None = row.get("code")
        self.retries: int = row.get("retries", 0)
        self.usage: dict[str, Any] | None = row.get("usage")

    def __repr__(self) -> str:
        shown = f": {self.error}" if self.error else "" if self.output is None else f" → {self.output!r}"
        return f"{self.id} {self.status}{shown}"


class Trace:
    """How a program ended, or where it is suspended: `.status .output .error .code .trace_id .steps .waiting`."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.trace_id: str = record["trace_id"]
        self.program: str = record["program"]
        self.status: str = record["status"]
        self.output: Any = record.get("output")
        self.error: str | None = record.get("error")
        self.code: str | None = record.get("code")
        self.steps = [StepView(row) for row in record["steps"]]
        self.waiting: list[dict[str, Any]] = record.get("waiting", [])

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.status == "success"

    def step(self, name: str) -> StepView:
        """The last row of a step.

        Raises:
            KeyError: It has none.
        """
        for row in reversed(self.steps):
            if row.id == name:
                return row
        raise KeyError(name)

    def __repr__(self) -> str:
        head = f"{self.program}: {self.status}" + (f": {self.error}" if self.error else "")
        return "\n".join([head, *(f"  {step!r}" for step in self.steps), f"  trace {self.trace_id}"])


class Driver:
    """Runs one machine against the host. Answers may come in any order; outcomes are taken in the host's.

    Args:
        channel: To the host.
        started: The result of `program.start` or `program.resume`.
        take: Gets the number of an effect and the answer to it, on the channel's thread; must hand both to `take` here.
    """

    def __init__(self, channel: Channel, started: dict[str, Any], take: Callable[[int, Answer], None]) -> None:
        self._channel = channel
        self._execution: str = started["execution"]
        self._take = take
        self._early: dict[int, Outcome] = {}
        self._next = 1
        self._asked: dict[int, int] = {}
        program = unbundle(started)
        if "state" in started:
            self._machine = state.restore(program, started["state"].encode())
            effects = [effect for effect, pending in self._machine.awaited() if not pending]
        else:
            self._machine = Machine(program, started["context"])
            effects = self._machine.effects
        self._ask(effects)

    @property
    def done(self) -> bool:
        """Whether nothing more is to be waited for."""
        return self._machine.ended or self._machine.status == "suspended"

    def take(self, number: int, answer: Answer) -> None:
        """Take one answer, and ask for what follows from it.

        Raises:
            RequestError: The host refused the effect.
        """
        if self._asked.pop(number, None) is None:
            return
        if isinstance(answer, jsonrpc.ErrorResponse):
            raise RequestError(answer.message, answer.data)
        told = answer.result
        usage = Usage(**told["usage"]) if "usage" in told else None
        self._early[told["sequence"]] = Outcome(
            number, told["status"], told.get("value"), told.get("code", ""), told.get("message", ""), usage
        )
        while (outcome := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._ask(self._machine.apply(outcome))

    def _ask(self, effects: list[Effect]) -> None:
        for effect in effects:
            if effect.kind == "cancel":
                for number in effect.arguments["effects"]:
                    # The host's machine has made the same effect: it need not be told.
                    self._channel.drop(self._asked.pop(number, 0))
            else:
                self._asked[effect.id] = self._channel.send(
                    ProgramEffect(self._execution, effect.id), functools.partial(self._take, effect.id)
                )

    def leave(self) -> None:
        """Take back what is still asked for: the script no longer waits."""
        for request in self._asked.values():
            self._channel.forget(request)
        self._asked.clear()

    def finish(self) -> ProgramFinish:
        """What to tell the host at the end."""
        return ProgramFinish(self._execution, hashlib.sha256(state.dump(self._machine)).hexdigest())


def drive(channel: Channel, started: dict[str, Any]) -> Trace:
    """Run to the end, blocking this thread.

    Raises:
        RequestError: The host refused something.
    """
    if "record" in started:
        return Trace(started["record"])
    answers: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
    driver = Driver(channel, started, lambda number, answer: answers.put((number, answer)))
    try:
        while not driver.done:
            driver.take(*answers.get())
    finally:
        driver.leave()
    return Trace(channel.request(driver.finish()))


async def drive_async(channel: Channel, started: dict[str, Any]) -> Trace:
    """Run to the end, in the running event loop.

    Raises:
        RequestError: The host refused something.
    """
    import asyncio

    if "record" in started:
        return Trace(started["record"])
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[tuple[int, Answer]] = asyncio.Queue()

    def take(number: int, answer: Answer) -> None:
        try:
            loop.call_soon_threadsafe(answers.put_nowait, (number, answer))
        except RuntimeError:
            pass  # the loop was closed; nobody waits

    driver = Driver(channel, started, take)
    try:
        while not driver.done:
            driver.take(*await answers.get())
    finally:
        driver.leave()
    return Trace(await channel.request_async(driver.finish()))
