"""The programs that one sandbox drives, and the answers to its requests about programs and traces."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from mcp_bridge.errors import BridgeError, log_failure
from mcp_bridge.executions.idempotency.keys import Key
from mcp_bridge.executions.programs.memory_bound import HeldMemory, held_bytes
from mcp_bridge.executions.status import effective_status, not_suspended
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.governance.denied_steps import DeniedStep, denied_steps_message
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Resume
from mcp_bridge.kernel.language import program_parser as programs
from mcp_bridge.kernel.values import canonical
from mcp_bridge.ledger.log.payloads import Transition, decoded
from mcp_bridge.ledger.storage.execution_store import StoredExecution
from mcp_bridge.offload import off_loop
from mcp_bridge.telemetry.observed_runs import ObservedProgram
from mcp_bridge.wire import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp_bridge.executions.programs.library import Planner
    from mcp_bridge.executions.programs.lifecycle import Programs
    from mcp_bridge.executions.programs.program_run import Effects, ProgramRun
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.log.entries import Entry

logger = logging.getLogger(__name__)

MAX_RUNS = 10_000
"""Most programs that one sandbox may drive at once."""

MAX_NOTICES = 20
"""Most warnings about programs in a script's record."""

_CLOSED_AT_ONCE = 32
"""How many programs that a sandbox leaves unfinished are undone and suspended at a time."""


class SandboxPrograms:
    """The programs that one sandbox drives.

    Args:
        service: The bridge's programs.
        script: The execution of the sandbox's script: violations that concern no program are recorded there.
        principal: The programs' owner.
        effects: Performs their effects.
        planner: Writes programs.
        ended: Called when a program has been driven until it ended or is suspended: with the execution, its record,
            and the request that finished it.
        left: Called with each execution that the sandbox has left before that.

    Attributes:
        notices: Facts for the reader of the script's record.
    """

    def __init__(
        self,
        service: Programs,
        script: str,
        principal: str,
        effects: Effects,
        planner: Planner,
        ended: Callable[[str, dict[str, Any], RequestContext], Awaitable[None]] | None = None,
        left: Callable[[str], None] | None = None,
    ) -> None:
        self._service = service
        self._script = script
        self._planner = planner
        self._effects = effects
        self._principal = principal
        self._ended = ended
        self._left = left
        self._runs: dict[str, ProgramRun] = {}
        self._observed: dict[str, ObservedProgram] = {}
        """Of each run, until it is kept."""
        self._memory = HeldMemory()
        self._under_way: dict[str, int] = {}
        """For each run, the number of its effects in progress."""
        self._at_rest: dict[str, anyio.Event] = {}
        """For each run that is being left, an event that is set when none of its effects is in progress any more."""
        self.notices: list[str] = []
        """What whoever reads the script's record should know."""

    async def start(
        self,
        program: Any,
        context: dict[str, Any],
        key: str | None,
        request: RequestContext = NO_REQUEST,
        *,
        of_call: bool = False,
    ) -> dict[str, Any]:
        """The result of `program.start`.

        Args:
            program: The program, or its name.
            context: Names and values.
            key: The idempotency key, or None.
            request: The request of the channel.
            of_call: Whether the key was derived from the call's position in the script, and not chosen by the script.

        Raises:
            BridgeError: `too_many_programs`; as `Programs.start`.
        """
        # First: what is refused is recorded, too.
        await self.holds(context)
        if len(self._runs) >= MAX_RUNS:
            raise BridgeError("too_many_programs", f"{MAX_RUNS} programs are under way.", hint="Await some of them.")
        with await self._memory.room_for([program, context]):
            return await self._started(program, context, key, request, of_call=of_call)

    async def _started(
        self, program: Any, context: dict[str, Any], key: str | None, request: RequestContext, *, of_call: bool
    ) -> dict[str, Any]:
        # What runs in a sandbox is an agent, whoever started the script. A key that a script chooses never equals a
        # derived one: they are in different spaces.
        named = None if key is None else Key(key, "call" if of_call else "agent")
        began = await self._service.start(program, context, named, self._principal, self._effects, request=request)
        if isinstance(began, StoredExecution):
            return {"record": self._record(began)}
        if began.warnings and len(self.notices) < MAX_NOTICES:
            self.notices.append(denied_steps_message(began.program, [DeniedStep(**row) for row in began.warnings]))
        return await self._driven(began)

    async def holds(self, values: Any) -> None:
        """As `Programs.holds`, for the script."""
        await self._service.holds(self._script, values, self._effects)

    def has_read(self, execution: str) -> None:
        """Note that the script has read an output of another execution: it is erased with that one."""
        self._service.store.hold(self._script, execution=execution)

    def _record(self, stored: StoredExecution) -> dict[str, Any]:
        """The record of an execution for the script, which is erased with that one from now on."""
        self._service.store.hold(self._script, execution=stored.id)
        return to_record(stored)

    async def resume(self, execution: str, payload: Any, since: int | None = None) -> dict[str, Any]:
        """The result of `program.resume`.

        Args:
            execution: The execution's id.
            payload: The value that it waits for.
            since: The number of the entry after which it may have got that value already; None if it can't have.
        """
        if execution in self._runs:
            raise not_suspended(execution, "it is under way")
        if since is not None and (joined := await self._joined(execution, since)) is not None:
            return joined
        try:
            with await self._memory.room_for(payload):
                run = await self._service.resume(execution, Resume(payload), self._principal, self._effects)
        except BridgeError as exc:
            if exc.code == "unknown_trace":
                # Whether it is another's or none at all: the script's owner can read what is recorded of it.
                what = f"it tried to resume an execution that it doesn't have, {execution[:100]!r}"
                self._service.record_violation(self._script, what)
            raise
        return await self._driven(run)

    async def _joined(self, execution: str, since: int) -> dict[str, Any] | None:
        """The answer for a program that was resumed after an entry; None if it wasn't."""
        stored = await self._service.lifecycle.stored(execution, self._principal)
        history = await self._service.recorder.read(execution)
        if not any(row.sequence > since and _is_resumed(row.entry) for row in history):
            return None
        if effective_status(stored) != "interrupted":
            return {"record": self._record(stored)}
        return await self._driven(await self._service.resume(execution, None, self._principal, self._effects))

    async def _driven(self, run: ProgramRun) -> dict[str, Any]:
        """What a sandbox needs to drive a run: the program, and its machine's first state."""
        self._runs[run.execution] = run
        self._observed[run.execution] = ObservedProgram(run.execution, self._principal)
        size = await held_bytes([run.program.data, run.context])
        if run.execution in self._runs:
            self._memory.hold(run.execution, size)
        self._service.store.hold(self._script, execution=run.execution)
        # Not the machine's context, which its first transition has changed: the sandbox's machine does the same.
        began: dict[str, Any] = {"context": run.context}
        if run.resumed:
            tree = state.tree(run.machine)
            began = {"state": (await off_loop(tree, canonical, tree)).decode()}
        return {"execution": run.execution, **programs.bundle(run.program), **began}

    async def effect(self, execution: str, number: int, request: RequestContext) -> dict[str, Any]:
        """The result of `program.effect`."""
        run = self._of(execution)
        self._under_way[execution] = self._under_way.get(execution, 0) + 1
        try:
            with self._observed[execution].meanwhile():
                return await run.effect(number, request)
        except BridgeError:
            await self._fail(run)
            raise
        finally:
            self._under_way[execution] -= 1
            if not self._under_way[execution]:
                del self._under_way[execution]
                if execution in self._at_rest:
                    self._at_rest.pop(execution).set()

    async def finish(self, execution: str, state_hash: str, request: RequestContext) -> dict[str, Any]:
        """The result of `program.finish`."""
        run = self._of(execution)
        try:
            await run.finish(state_hash)
        except BridgeError:
            await self._fail(run)
            raise
        # Raises if another request has ended it meanwhile.
        run = self._of(execution)
        self._take(execution)
        with anyio.CancelScope(shield=True):
            # A guest that cancels the request must not leave it running.
            record = await self._keep(run)
        if self._ended is not None:
            await self._ended(execution, record, request)
        return {name: value for name, value in record.items() if name not in {"output", "steps"}}

    async def leave(self, execution: str) -> dict[str, Any]:
        """The result of `program.leave`: the program is suspended. Nothing happens if it isn't driven any more."""
        run = self._take(execution)
        if run is None:
            return {}
        if self._left is not None:
            self._left(execution)
        with anyio.CancelScope(shield=True):
            # Its effects have been cancelled. Their outcomes must be in the state.
            if execution in self._under_way:
                await self._at_rest.setdefault(execution, anyio.Event()).wait()
            await self._keep(run, undo=True)
        return {}

    async def _fail(self, run: ProgramRun) -> None:
        """After a violation, undo the program's effects without the sandbox."""
        if run.violated and self._take(run.execution) is not None:
            with anyio.CancelScope(shield=True):
                await self._keep(run, undo=True)

    async def _keep(self, run: ProgramRun, *, undo: bool = False) -> dict[str, Any]:
        """As `Programs.keep`, for a run that isn't driven here any more."""
        observed, status = self._observed.pop(run.execution), "interrupted"
        try:
            with observed.meanwhile():
                record = await self._service.keep(run, undo=undo)
            status = record["status"]
        finally:
            observed.end(status)
        return record

    def _take(self, execution: str) -> ProgramRun | None:
        """Stop driving a run; returns it, or None if it wasn't driven."""
        self._memory.release(execution)
        return self._runs.pop(execution, None)

    def _of(self, execution: str) -> ProgramRun:
        run = self._runs.get(execution)
        if run is None:
            message = f"This sandbox drives no execution {execution[:100]!r}."
            self._service.record_violation(self._script, message)
            raise BridgeError("violation", message)
        return run

    async def answer(self, request: Any, context: RequestContext) -> Any:
        """The result of a request that is about programs or traces.

        Args:
            request: The decoded request.
            context: The request's context.
        """
        service, principal = self._service, self._principal
        library = service.library
        match request:
            case messages.ProgramStart():
                return await self.start(request.program, request.context, request.idempotency_key, context)
            case messages.ProgramEffect():
                return await self.effect(request.execution, request.effect, context)
            case messages.ProgramFinish():
                return await self.finish(request.execution, request.state, context)
            case messages.ProgramLeave():
                return await self.leave(request.execution)
            case messages.ProgramSave():
                return await library.save(request.name, request.program, principal)
            case messages.ProgramList():
                return {"programs": await library.listed(principal)}
            case messages.ProgramGet():
                found = await library.find(request.name, principal)
                return {"program": found.program.data, "hash": found.program.hash}
            case messages.ProgramDelete():
                return {"found": await library.delete(request.name, principal)}
            case messages.ProgramValidate():
                return await library.validate(request.program, principal)
            case messages.ProgramPlan():
                return {"program": await library.plan(request.intent, principal, self._planner)}
            case messages.TraceGet():
                return self._record(await service.lifecycle.stored(request.trace_id, principal))
        raise BridgeError("unknown_request", f"The host answers no {type(request).__name__}.")

    async def close(self) -> None:
        """Suspend the programs that an ended sandbox left unfinished, to be resumed."""
        runs, self._runs = list(self._runs.values()), {}
        slots = anyio.Semaphore(_CLOSED_AT_ONCE)

        async def let_go(run: ProgramRun) -> None:
            async with slots:
                try:
                    await self._keep(run, undo=True)
                except Exception as exc:  # noqa: BLE001  (the others of this sandbox are to be kept all the same)
                    what = "the execution %s of a sandbox that has ended could not be kept"
                    log_failure(logger, exc, what, run.execution)
                finally:
                    run.machine.let_go()

        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                while runs:
                    tasks.start_soon(let_go, runs.pop())
                    # Starting each takes time: others run in between.
                    await anyio.lowlevel.checkpoint()


def _is_resumed(entry: Entry) -> bool:
    said = decoded(entry)
    return isinstance(said, Transition) and isinstance(said.event, Resume)
