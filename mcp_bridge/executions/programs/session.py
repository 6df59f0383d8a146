"""The programs that one sandbox drives: what its requests about programs and traces are answered with."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from mcp_bridge.errors import BridgeError, log_failure
from mcp_bridge.executions.idempotency_key import Key
from mcp_bridge.executions.status import effective_status, not_suspended
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.governance.denied_steps import DeniedStep, told_denied
from mcp_bridge.kernel import program_parser as programs
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Resume
from mcp_bridge.kernel.references import measured
from mcp_bridge.kernel.values import canonical
from mcp_bridge.ledger.log.payloads import Transition, decoded
from mcp_bridge.ledger.storage.execution_store import StoredExecution
from mcp_bridge.offload import off_loop
from mcp_bridge.wire import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from mcp_bridge.executions.programs.library import Planner
    from mcp_bridge.executions.programs.lifecycle import Programs
    from mcp_bridge.executions.programs.run import Effects, ProgramRun
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.log.entries import Entry

logger = logging.getLogger(__name__)

MAX_RUNS = 10_000
"""Programs that one sandbox may have under way."""

MAX_HELD_BYTES = 64 << 20
"""Memory that the programs and contexts which one sandbox has under way may take together, by `_held_bytes`. One alone
may take more: it is bounded by what a program and a context may be."""

MAX_NOTICES = 20
"""Programs that a script's record warns of."""

_VALUE_BYTES = 200
"""Of a value in memory, whatever it is, and of what a program's machine makes of it."""

_CLOSED_AT_ONCE = 32
"""Of the programs that a sandbox leaves unfinished, so many are undone and kept at a time."""


class Session:
    """The programs that one sandbox drives.

    Args:
        service: The bridge's programs.
        script: The execution of the sandbox's script: to it is put down what is no program's.
        principal: Whose they are.
        effects: Does what they ask for.
        planner: Writes programs.
        ended: Told the record of each that it has driven to where it can't go on, and the request that has told so.
        left: Told of each that it has left before.
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
        self._held: dict[object, int] = {}
        """Memory that each run takes, and each that is about to begin."""
        self._under_way: dict[str, int] = {}
        """How many effects of each run are under way."""
        self._at_rest: dict[str, anyio.Event] = {}
        """Of each run that is left, set when none of its effects is under way any more."""
        self.notices: list[str] = []
        """What whoever reads the script's record should know."""

    async def start(
        self,
        asked: Any,
        context: dict[str, Any],
        key: str | None,
        request: RequestContext = NO_REQUEST,
        *,
        of_call: bool = False,
    ) -> dict[str, Any]:
        """The result of `program.start`.

        Args:
            asked: The program, or its name.
            context: Names and values.
            key: Idempotency key.
            request: The request that it is for.
            of_call: Whether the key was made of the call's place in the script, and not given by it.

        Raises:
            BridgeError: `too_many_programs`; as `Programs.start`.
        """
        if len(self._runs) >= MAX_RUNS:
            raise BridgeError("too_many_programs", f"{MAX_RUNS} programs are under way.", hint="Await some of them.")
        with await self._room_for([asked, context]):
            return await self._started(asked, context, key, request, of_call=of_call)

    async def _room_for(self, given: Any) -> contextlib.AbstractContextManager[None]:
        """Room for what is begun next, until it is begun.

        Raises:
            BridgeError: `too_many_programs`.
        """
        size = await off_loop(given, _held_bytes, given)
        held = sum(self._held.values())
        if held and held + size > MAX_HELD_BYTES:
            raise BridgeError(
                "too_many_programs",
                f"The programs that are under way take {held >> 20} MiB of the {MAX_HELD_BYTES >> 20} that they may.",
                hint="Await some of them, or start fewer with large contexts at once.",
            )
        return self._counted(object(), size)

    @contextlib.contextmanager
    def _counted(self, what: object, size: int) -> Iterator[None]:
        self._held[what] = size
        try:
            yield
        finally:
            del self._held[what]

    async def _started(
        self, asked: Any, context: dict[str, Any], key: str | None, request: RequestContext, *, of_call: bool
    ) -> dict[str, Any]:
        await self.holds(context)
        # Whoever has the script run: what is in a sandbox is an agent. And a key that a script gives is never one that
        # is made for it, whatever it is called.
        named = None if key is None else Key(key, "call" if of_call else "agent")
        began = await self._service.start(asked, context, named, self._principal, self._effects, request=request)
        if isinstance(began, StoredExecution):
            return {"record": self._record(began)}
        if began.warnings and len(self.notices) < MAX_NOTICES:
            self.notices.append(told_denied(began.program, [DeniedStep(**row) for row in began.warnings]))
        return await self._driven(began)

    async def holds(self, given: Mapping[str, Any]) -> None:
        """The script has given a program's context, or a tool's arguments: it is erased with whom they are about."""
        subject, is_value = await self._service.subject_of(given, self._effects)
        if subject:
            self._service.store.hold(self._script, subject=subject, is_value=is_value)

    def has_read(self, execution: str) -> None:
        """The script has read an output of another execution: it is erased with that."""
        self._service.store.hold(self._script, execution=execution)

    def _record(self, stored: StoredExecution) -> dict[str, Any]:
        """The record of an execution, of which the script has a part from now on."""
        self._service.store.hold(self._script, execution=stored.id)
        return to_record(stored)

    async def resume(self, execution: str, payload: Any, since: int | None = None) -> dict[str, Any]:
        """The result of `program.resume`.

        Args:
            execution: Which.
            payload: What it waits for.
            since: The entry after which it may have been given that already.
        """
        if execution in self._runs:
            raise not_suspended(execution, "it is under way")
        if since is not None and (joined := await self._joined(execution, since)) is not None:
            return joined
        try:
            with await self._room_for(payload):
                run = await self._service.resume(execution, Resume(payload), self._principal, self._effects)
        except BridgeError as exc:
            if exc.code == "unknown_trace" and await self._service.store.execution(execution) is not None:
                self._service.record_violation(self._script, f"it tried to resume another's execution {execution}")
            raise
        return await self._driven(run)

    async def _joined(self, execution: str, since: int) -> dict[str, Any] | None:
        """A program as it went on after an entry; None if it hasn't."""
        stored = await self._service.lifecycle.stored(execution, self._principal)
        history = await self._service.recorder.read(execution)
        if not any(row.sequence > since and _is_resumed(row.entry) for row in history):
            return None
        if effective_status(stored) != "interrupted":
            return {"record": self._record(stored)}
        return await self._driven(await self._service.resume(execution, None, self._principal, self._effects))

    async def _driven(self, run: ProgramRun) -> dict[str, Any]:
        """What a sandbox needs to drive a run: the program, and where its machine begins."""
        self._runs[run.execution] = run
        held = [run.program.data, run.context]
        size = await off_loop(held, _held_bytes, held)
        if run.execution in self._runs:
            self._held[run.execution] = size
        self._service.store.hold(self._script, execution=run.execution)
        # Not the machine's, which its first transition has changed: the sandbox's makes the same.
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

    async def finish(self, execution: str, told: str, request: RequestContext) -> dict[str, Any]:
        """The result of `program.finish`."""
        run = self._of(execution)
        try:
            await run.finish(told)
        except BridgeError:
            await self._fail(run)
            raise
        # Unless another request has ended it meanwhile.
        run = self._of(execution)
        self._take(execution)
        with anyio.CancelScope(shield=True):
            # A guest that takes the request back must not leave it running for ever.
            record = await self._service.keep(run)
        if self._ended is not None:
            await self._ended(execution, record, request)
        return {name: value for name, value in record.items() if name not in {"output", "steps"}}

    async def leave(self, execution: str) -> dict[str, Any]:
        """The result of `program.leave`: it is kept as it stands. Nothing, of one that isn't driven any more."""
        run = self._take(execution)
        if run is None:
            return {}
        if self._left is not None:
            self._left(execution)
        with anyio.CancelScope(shield=True):
            # They have been taken back; what has become of them is to be in the state.
            if execution in self._under_way:
                await self._at_rest.setdefault(execution, anyio.Event()).wait()
            await self._service.keep(run, undo=True)
        return {}

    async def _fail(self, run: ProgramRun) -> None:
        """After a violation: undo what has to be undone, without the sandbox."""
        if run.violated and self._take(run.execution) is not None:
            with anyio.CancelScope(shield=True):
                await self._service.keep(run, undo=True)

    def _take(self, execution: str) -> ProgramRun | None:
        """A run that this sandbox drives no more; None if it didn't."""
        self._held.pop(execution, None)
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
            request: What is asked for.
            context: The request while it is worked on.
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
        """The sandbox has ended: what it left unfinished is kept, to be resumed."""
        runs, self._runs = list(self._runs.values()), {}
        turns = anyio.Semaphore(_CLOSED_AT_ONCE)

        async def let_go(run: ProgramRun) -> None:
            async with turns:
                try:
                    await self._service.keep(run, undo=True)
                except Exception as exc:  # noqa: BLE001  (the others of this sandbox are to be kept all the same)
                    what = "the execution %s of a sandbox that has ended could not be kept"
                    log_failure(logger, exc, what, run.execution)
                finally:
                    run.machine.let_go()

        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                while runs:
                    tasks.start_soon(let_go, runs.pop())
                    # What each does first takes its time; others get their turn in between.
                    await anyio.lowlevel.checkpoint()


def _is_resumed(entry: Entry) -> bool:
    said = decoded(entry)
    return isinstance(said, Transition) and isinstance(said.event, Resume)


def _held_bytes(value: Any) -> int:
    characters, values = measured(value)
    return characters + _VALUE_BYTES * values
