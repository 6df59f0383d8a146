"""`mcp.programs` and `mcp.traces`: governed programs, driven from the sandbox.

The machine in this process determines the next effects. The host's machine runs the same program and has seen every
outcome itself; it permits an effect or refuses it.
"""

import functools
import hashlib
import queue
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from mcp_bridge.guest.channel import Channel, InLoop, RequestError
from mcp_bridge.guest.host_requests import MCPError
from mcp_bridge.guest.proxies import ASYNCHRONOUS, Calls
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Effect, Outcome, Usage
from mcp_bridge.kernel.language.program_parser import unbundle
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.values import ValueFaultError, normal
from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import (
    ProgramDelete,
    ProgramEffect,
    ProgramFinish,
    ProgramGet,
    ProgramLeave,
    ProgramList,
    ProgramPlan,
    ProgramResume,
    ProgramSave,
    ProgramStart,
    ProgramValidate,
    TraceGet,
)

Answer = jsonrpc.Response | jsonrpc.ErrorResponse


MAX_SHOWN_ROWS = 20
"""How many steps the text form of a trace shows: models pay for each. All are in `.steps`."""


def _short(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[:length]}… ({len(text)} characters)"


def _awaited(row: dict[str, Any]) -> str:
    """What a suspended step waits for, as one line."""
    question = row.get("question") or {}
    what = question.get("message") or question.get("tool") or row.get("name") or ""
    if row["kind"] == "in_doubt":
        return f"a person's word on whether {what} has happened at {row['step']}"
    who = "a person" if row["kind"] == "approval" else row["kind"]
    return f"{who} at {row['step']}: {what}" if what else f"{who} at {row['step']}"


class StepView:
    """One step of a trace: `.id .status .output .error .code .retries .usage .why`.

    `.status` is `success`, `failed`, `skipped` or `pending`; `.code` is the error's, such as `denied`; `.why` says
    which references of a condition led nowhere.
    """

    def __init__(self, row: dict[str, Any]) -> None:
        self.id: str = row["id"]
        self.status: str = row["status"]
        self.output: Any = row.get("output")
        self.error: str | None = row.get("error")
        self.why: str | None = row.get("why")
        if self.error and self.why:
            self.error += f": {self.why}"
        self.code: str | None = row.get("code")
        self.retries: int = row.get("retries", 0)
        self.usage: dict[str, Any] | None = row.get("usage")

    def __repr__(self) -> str:
        shown = f": {self.error}" if self.error else "" if self.output is None else f" → {self.output!r}"
        why = f" ({self.why})" if self.why and not self.error else ""
        return _short(f"{self.id} {self.status}{shown}{why}")


ATTRIBUTES = ("trace_id", "program", "status", "output", "error", "code", "steps", "waiting", "ok")
"""Of a trace."""


class Trace:
    """How a program ended, or where it is suspended: `.status .output .error .code .trace_id .steps .waiting`.

    `.status` is `success`, `failed`, `suspended`, `budget_exceeded` or `stalled`, and `interrupted` or `running` for
    one that was left; `.ok` is true for `success`. `.steps` has a row for each step that ran, in order, `.step("id")`
    the last one of that id. `.waiting` says of a suspended program what for: dicts with `step`, `kind` (`tool`,
    `event`, `wait`, `approval`, `in_doubt`: a call may have been made, a person has to say), and `question` or `due`.
    """

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
        raise KeyError(f"no step {name!r} has run; these have: {_short(', '.join(row.id for row in self.steps))}")

    def __repr__(self) -> str:
        head = f"{self.program}: {self.status}" + (f": {self.error}" if self.error else "")
        rows = [f"  {step!r}" for step in self.steps]
        if len(rows) > MAX_SHOWN_ROWS:
            half = MAX_SHOWN_ROWS // 2
            rows = [*rows[:half], f"  … {len(rows) - 2 * half} more in .steps", *rows[-half:]]
        waits = [f"  waits for {_short(_awaited(row))}" for row in self.waiting[:MAX_SHOWN_ROWS]]
        return "\n".join([_short(head, 1000), *rows, *waits, f"  trace {self.trace_id}"])


class Driver:
    """Runs one machine against the host. Answers may arrive in any order; outcomes are applied in the host's order.

    Args:
        channel: The channel to the host.
        started: The result of `program.start` or `program.resume`.
        take: Called with the number of an effect and its answer; must pass both to `Driver.take`.
        loop: The event loop in which `take` is called; None for the reader thread.
    """

    def __init__(
        self, channel: Channel, started: dict[str, Any], take: Callable[[int, Answer], None], loop: Any = None
    ) -> None:
        self._channel = channel
        self._execution: str = started["execution"]
        self._take = take
        self._loop = loop
        self._early: dict[int, Outcome] = {}
        self._next = 1
        self._requested: dict[int, int] = {}
        program = unbundle(started)
        if "state" in started:
            self._machine = state.restore(program, started["state"].encode())
            effects = [effect for effect, pending in self._machine.awaited() if not pending]
        else:
            self._machine = Machine(program, started["context"])
            effects = self._machine.effects
        self._request(effects)

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._machine.ended or self._machine.status == "suspended"

    def take(self, number: int, answer: Answer) -> None:
        """Apply one answer, and request the effects that follow from it.

        Raises:
            RequestError: The host refused the effect.
        """
        if self._requested.pop(number, None) is None:
            return
        if isinstance(answer, jsonrpc.ErrorResponse):
            # The host's machine no longer awaits the effect. The outcome that cancels it here is still to come, or
            # nothing is, and then the host has stopped driving the program.
            if answer.data.get("code") == "effect_cancelled" and self._requested:
                return
            raise RequestError(answer.message, answer.data)
        told = answer.result
        usage = Usage(**told["usage"]) if "usage" in told else None
        self._early[told["sequence"]] = Outcome(
            number, told["status"], told.get("value"), told.get("code", ""), told.get("message", ""), usage
        )
        while (outcome := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._request(self._machine.apply(outcome))

    def _request(self, effects: list[Effect]) -> None:
        for effect in effects:
            if effect.kind == "cancel":
                for number in effect.arguments["effects"]:
                    # The host's machine has emitted the same effect and needs no request.
                    self._channel.drop(self._requested.pop(number, 0))
            else:
                number = effect.id
                take = functools.partial(self._take, number)
                self._requested[number] = self._channel.send(
                    ProgramEffect(self._execution, number), take if self._loop is None else InLoop(self._loop, take)
                )

    def leave(self) -> None:
        """Cancel open requests and release the execution on the host: the script no longer waits for it.

        Otherwise anyone who uses its idempotency key, such as this script, would wait until the sandbox ends.
        """
        for request in self._requested.values():
            self._channel.forget(request)
        self._requested.clear()
        self._channel.send(ProgramLeave(self._execution), lambda _: None)

    def finish(self) -> ProgramFinish:
        """The message that reports the end to the host."""
        return ProgramFinish(self._execution, hashlib.sha256(state.dump(self._machine)).hexdigest())

    def record(self, told: dict[str, Any]) -> dict[str, Any]:
        """The record, from the host's answer and this machine's state: together they may exceed a message's limit."""
        return {**told, "output": self._machine.output, "steps": state.trace_rows_with_reasons(self._machine)}


def _planned(number: int) -> Any:
    """What stands for the trace of a program that a dry run has listed."""
    from mcp_bridge.guest.values.planned_values import Planned

    return Planned(number, ATTRIBUTES)


def drive(channel: Channel, started: dict[str, Any]) -> Any:
    """Run a program to its end, blocking this thread. In a dry run its trace is a `Planned`.

    Raises:
        RequestError: The host refused a request.
    """
    if "record" in started:
        return Trace(started["record"])
    if "planned" in started:
        return _planned(started["planned"])
    answers: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
    driver = Driver(channel, started, lambda number, answer: answers.put((number, answer)))
    try:
        while not driver.done:
            driver.take(*answers.get())
        told = channel.request(driver.finish())
    except BaseException:
        driver.leave()
        raise
    return Trace(driver.record(told))


async def drive_async(channel: Channel, started: dict[str, Any]) -> Any:
    """Run a program to its end in the running event loop.

    Raises:
        RequestError: The host refused a request.
    """
    import asyncio

    if "record" in started:
        return Trace(started["record"])
    if "planned" in started:
        return _planned(started["planned"])
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Exception | None] = loop.create_future()

    def take(number: int, answer: Answer) -> None:
        if ended.done():
            return
        # Here, and not in the task that waits for the end: each step would wake it in another turn of the loop.
        try:
            driver.take(number, answer)
        except Exception as exc:  # noqa: BLE001  (raised in the task that waits)
            ended.set_result(exc)
        else:
            if driver.done:
                ended.set_result(None)

    driver = Driver(channel, started, take, loop)
    try:
        if not driver.done and (failure := await ended) is not None:
            raise failure
        told = await channel.request_async(driver.finish())
    except BaseException:
        driver.leave()
        raise
    return Trace(driver.record(told))


# --- the modules ------------------------------------------------------------------------------------------------------


class Faults(list[Any]):
    """What is wrong with a program, a dict each: `path`, `code`, `message`. Empty and false for a valid one.

    `.warnings` has what is legal, and looks like a mistake.
    """

    def __init__(self, faults: list[Any], warnings: list[Any]) -> None:
        super().__init__(faults)
        self.warnings = warnings

    def __repr__(self) -> str:
        faults, warnings = (
            [": ".join(filter(None, (row["path"], row["message"]))) for row in rows] for rows in (self, self.warnings)
        )
        return "\n".join([*(faults or ["valid"]), *(f"warning: {text}" for text in warnings)])


class Listed(list[Any]):
    """Programs, a dict each; prints as a line each."""

    def __repr__(self) -> str:
        return "\n".join(f"{row['name']} ({row['owner']}) {row['description']}".rstrip() for row in self) or "(none)"


def _program(value: Any) -> Any:
    """A value that should be a program, converted to JSON.

    Raises:
        MCPError: `invalid_program`, the host's code for all invalid programs.
    """
    try:
        return normal(value)
    except ValueFaultError as exc:
        fault = {"path": exc.path, "code": "not_json", "message": exc.reason}
        told = {"faults": [fault]}
        raise MCPError(f"The program is not valid: {exc}.", code="invalid_program", details=told) from None


def _plain(value: Any, name: str, code: str) -> Any:
    """A value converted to JSON. The channel would accept numeric keys, and its errors don't locate the fault.

    Raises:
        MCPError: With `code` and the location.
    """
    try:
        return normal(value, name)
    except ValueFaultError as exc:
        raise MCPError(f"The {name} can't be taken: {exc}.", code=code) from None


class _Function(NamedTuple):
    """A function of the module.

    Attributes:
        request: Builds the request; scripts see its signature and docstring.
        result: Converts the answer to the function's result; None if the answer starts a program to be driven.
    """

    request: Callable[..., Any]
    result: Callable[[Any], Any] | None


def _run(program: Any, context: dict[str, Any] | None = None, idempotency_key: str | None = None) -> Any:
    """Run a program, an object or a name; gives its Trace, and never raises for a program that failed.

    `context` has the values of its `$references`. With an `idempotency_key` it runs once, however often that is asked.
    Raises MCPError if it could not begin: `invalid_program` (`.details["faults"]` has all), `unknown_program`, ….
    """
    context = _plain({} if context is None else context, "context", "bad_context")
    if not isinstance(context, dict):
        raise MCPError(f"The context is a {type(context).__name__}: pass a dict of values.", code="bad_context")
    return ProgramStart(_program(program), context, idempotency_key)


def _resume(trace_id: str, payload: Any = None) -> Any:
    """Go on with a suspended program; gives its Trace. The payload is `$__webhook__` in it.

    Raises MCPError: `unknown_trace`, `not_suspended`, `still_waiting` (for a person, or for a time).
    """
    return ProgramResume(trace_id, _plain(payload, "payload", "bad_value"))


def _save(name: str, program: Any) -> Any:
    """Keep a program under a name; gives its hash.

    Raises MCPError: `invalid_program` (`.details["faults"]` has all), `reserved_name`.
    """
    return ProgramSave(name, _program(program))


def _list() -> Any:
    """The programs that can be run by name: a list of dicts with name, version, description, hash and owner."""
    return ProgramList()


def _get(name: str) -> Any:
    """A program by name, as an object. Raises MCPError `unknown_program`."""
    return ProgramGet(name)


def _delete(name: str) -> Any:
    """Forget a saved program; gives whether there was one. Its traces stay."""
    return ProgramDelete(name)


def _validate(program: Any) -> Any:
    """Everything that is wrong with a program: a list of dicts with path, code and message; empty if nothing is.

    Its `.warnings` has what is legal, and looks like a mistake.

    Raises MCPError `invalid_program` for what isn't even JSON.
    """
    return ProgramValidate(_program(program))


def _plan(intent: str) -> Any:
    """Have the configured model write a program for what is to be done; gives it as an object, valid and not run."""
    return ProgramPlan(intent)


def _trace(trace_id: str) -> Any:
    """The Trace of an execution, by its id. Raises MCPError `unknown_trace`."""
    return TraceGet(trace_id)


_PROGRAMS = {
    "run": _Function(_run, None),
    "resume": _Function(_resume, None),
    "save": _Function(_save, lambda answer: answer["hash"]),
    "list": _Function(_list, lambda answer: Listed(answer["programs"])),
    "get": _Function(_get, lambda answer: answer["program"]),
    "delete": _Function(_delete, lambda answer: answer["found"]),
    "validate": _Function(_validate, lambda answer: Faults(answer["faults"], answer["warnings"])),
    "plan": _Function(_plan, lambda answer: answer["program"]),
}
_TRACES = {"get": _Function(_trace, Trace)}

_GUIDE = """Governed programs: steps that the host holds to their order, whatever the script does.

    program = {"steps": [
        {"id": "find", "type": "tool", "tool": "shop.find_order", "args": {"number": "$number"}},
        {"id": "small", "type": "condition", "condition": "$find.total <= 50", "then": "pay", "otherwise": "ask"},
        {"id": "ask", "type": "approval", "message": "Pay $find.total?", "next_step": "pay"},
        {"id": "pay", "type": "tool", "tool": "shop.refund", "args": {"order": "$find"}, "is_terminal": True},
    ]}
    trace = await programs.run(program, context={"number": 17})
    print(trace.status, trace.output, trace.error)

"""

STEPS = """A step has an `id` and a `type`, with (optional fields in brackets):
    tool       tool ("server.tool"; a plain name is of `local`, the Python tools that the operator has registered,
               if there are any), [args], [parse: "json"], [compensate: {"tool", "args"} that undo it]
    llm        prompt, [system], [allowed_outputs], [parse: "json"]
    condition  condition, then and/or otherwise
    parallel   parallel_steps, [max_concurrency]
    approval   message, [details], [otherwise]
    wait       seconds, or event
    map        over, step, [as: "item"]
    program    program (a name or an object), [context]
and, where they make sense, next_step, is_terminal, output_key, on_error ("fail", "skip", "retry"), retry,
timeout_seconds. Without next_step the step after it follows; after a branch's target the program ends.
`$name` is a value of the context, or a step's output by its id or output_key; `$name.field` and `$name.0` are parts of
it, and `$$` a dollar sign. Many tools give JSON as text, which has no parts: with `"parse": "json"` a step's output is
the value, and a text that is no JSON fails it.
A condition has references, 'texts', numbers, True, False, None and [lists], joined by == != > >= < <= in, not in,
contains, and, or, not and parentheses: `$found.0.n > 60 and 'open' in $found[0].labels`. An index is `.0`, or `[0]` in
conditions, `over` and `seconds`; a name in quotes, `$mail['content-type']`, is for these, too. What isn't there is
None; `None > 60` fails the step and says what was there instead.
`validate` says what is wrong with a program, without running it.
"""
"""What steps a program can have, whatever language it is written in."""

_HEADINGS = {"programs": _GUIDE + STEPS, "traces": "What programs did: `await traces.get(trace_id)`."}


def build(channel: Channel, calls: Calls, name: str) -> types.ModuleType:
    """Build `mcp.programs`, `mcp.traces`, or their blocking forms under `mcp.sync`."""
    short_name = name.rpartition(".")[2]
    module = types.ModuleType(name, _HEADINGS[short_name])
    blocking = name.startswith("mcp.sync.")

    def offer(short: str, request: Callable[..., Any], result: Callable[[Any], Any] | None) -> None:
        def call_blocking(*args: Any, **kwargs: Any) -> Any:
            params = request(*args, **kwargs)
            try:
                answer = channel.request(params)
                return drive(channel, answer) if result is None else result(answer)
            except (RequestError, LocalMessageError) as exc:
                raise _error(exc) from None

        async def work(params: Any) -> Any:
            try:
                answer = await channel.request_async(params)
                return await drive_async(channel, answer) if result is None else result(answer)
            except (RequestError, LocalMessageError) as exc:
                raise _error(exc) from None

        def call(*args: Any, **kwargs: Any) -> Any:
            return calls.unawaited.track(work(request(*args, **kwargs)), f"{short_name}.{short}", 2)

        function = call_blocking if blocking else call
        # Python's messages about wrong arguments contain the function's own name.
        function.__name__ = function.__qualname__ = request.__qualname__ = short
        function.__doc__, function.__module__ = request.__doc__, name
        function.__wrapped__ = request  # type: ignore[attr-defined]  # inspect.signature follows it
        if not blocking:
            function.__dict__[ASYNCHRONOUS] = True
        setattr(module, short, function)

    for short, (request, result) in (_TRACES if short_name == "traces" else _PROGRAMS).items():
        offer(short, request, result)
    module.__dict__.update(Trace=Trace, StepView=StepView)
    return module


def _error(exc: RequestError | LocalMessageError) -> MCPError:
    if isinstance(exc, LocalMessageError):
        return MCPError(str(exc), code=exc.code)
    data = dict(exc.data)
    return MCPError(exc.message, code=data.pop("code", "error"), details=data)
