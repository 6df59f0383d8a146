"""`mcp.programs` and `mcp.traces`: governed programs, driven from here.

The machine in this process says what comes next; the host's machine, which knows the same program and saw every
outcome itself, lets it happen or doesn't.
"""

import functools
import hashlib
import queue
import types
from collections.abc import Callable
from typing import Any

from mcp_bridge.guest.channel import Channel, RequestError
from mcp_bridge.guest.proxies import Calls, MCPError
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Effect, Outcome, Usage
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.program import unbundle
from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import (
    ProgramDelete,
    ProgramEffect,
    ProgramFinish,
    ProgramGet,
    ProgramList,
    ProgramPlan,
    ProgramResume,
    ProgramSave,
    ProgramStart,
    ProgramValidate,
    TraceGet,
)

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


# --- the modules ------------------------------------------------------------------------------------------------------


class Faults(list[Any]):
    """What is wrong with a program, a dict each: `path`, `code`, `message`. Empty and false for a valid one."""

    def __repr__(self) -> str:
        return "\n".join(": ".join(filter(None, (row["path"], row["message"]))) for row in self) or "valid"


class Listed(list[Any]):
    """Programs, a dict each; prints as a line each."""

    def __repr__(self) -> str:
        return "\n".join(f"{row['name']} ({row['owner']}) {row['description']}".rstrip() for row in self) or "(none)"


def _trace(answer: Any) -> Any:
    return Trace(answer)


_PLAIN: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], str]] = {
    "save": (
        ProgramSave,
        lambda answer: answer["hash"],
        "Keep a program (an object) under a name; gives its hash. Raises MCPError `invalid_program` with all faults.",
    ),
    "list": (ProgramList, lambda answer: Listed(answer["programs"]), "The programs that can be run by name."),
    "get": (ProgramGet, lambda answer: answer["program"], "A program by name, as an object."),
    "delete": (
        ProgramDelete,
        lambda answer: answer["found"],
        "Forget a saved program; whether there was one. Its traces stay.",
    ),
    "validate": (
        ProgramValidate,
        lambda answer: Faults(answer["faults"]),
        "Everything that is wrong with a program, each with its path; an empty list if nothing is.",
    ),
    "plan": (
        ProgramPlan,
        lambda answer: answer["program"],
        "Have the configured model write a program for what is to be done; gives it as an object, valid and not run.",
    ),
}


def build(channel: Channel, calls: Calls, name: str) -> types.ModuleType:
    """`mcp.programs`, `mcp.traces`, or the same beneath `mcp.sync` in their blocking form."""
    module = types.ModuleType(name, __doc__)
    blocking = name.startswith("mcp.sync.")

    def offer(short: str, request: Callable[..., Any], result: Callable[[Any], Any], doc: str, *, driven: bool) -> None:
        def call_blocking(*args: Any, **kwargs: Any) -> Any:
            params = request(*args, **kwargs)
            try:
                answer = channel.request(params)
                return drive(channel, answer) if driven else result(answer)
            except (RequestError, LocalMessageError) as exc:
                raise _error(exc) from None

        async def work(params: Any) -> Any:
            try:
                answer = await channel.request_async(params)
                return await drive_async(channel, answer) if driven else result(answer)
            except (RequestError, LocalMessageError) as exc:
                raise _error(exc) from None

        def call(*args: Any, **kwargs: Any) -> Any:
            return calls.pending(work(request(*args, **kwargs)), f"{name.rpartition('.')[2]}.{short}", 2)

        function = call_blocking if blocking else call
        function.__name__ = function.__qualname__ = short
        function.__doc__, function.__module__ = doc, name
        function.__wrapped__ = request  # type: ignore[attr-defined]  # inspect.signature follows it
        setattr(module, short, function)

    if name.endswith("traces"):
        offer("get", TraceGet, _trace, "The trace of an execution, by its id.", driven=False)
        return module
    offer("run", _start, _trace, _start.__doc__ or "", driven=True)
    offer("resume", _resume, _trace, _resume.__doc__ or "", driven=True)
    for short, (request, result, doc) in _PLAIN.items():
        offer(short, request, result, doc, driven=False)
    module.__dict__.update(Trace=Trace, StepView=StepView)
    return module


def _start(program: Any, context: dict[str, Any] | None = None, idempotency_key: str | None = None) -> ProgramStart:
    """Run a program: an object, or the name of one. Gives its trace, and never raises for a program that failed.

    `context` has the values of its `$references`. With an `idempotency_key` it runs once, however often that is asked.
    Raises MCPError if it could not begin: `invalid_program` (`.details["faults"]` has all), `unknown_program`, ….
    """
    return ProgramStart(program, {} if context is None else context, idempotency_key)


def _resume(trace_id: str, payload: Any = None) -> ProgramResume:
    """Go on with a suspended program; the payload is `$__webhook__` in it. Gives its trace."""
    return ProgramResume(trace_id, payload)


def _error(exc: RequestError | LocalMessageError) -> MCPError:
    if isinstance(exc, LocalMessageError):
        return MCPError(str(exc), code=exc.code)
    data = dict(exc.data)
    return MCPError(exc.message, code=data.pop("code", "error"), details=data)
