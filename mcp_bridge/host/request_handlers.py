"""What the guest may ask for, and the answers. Each request has been decoded into its type before it comes here."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import logging
import time
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import anyio

from mcp_bridge import fair_share
from mcp_bridge.downstream.catalog import describe
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import OUTPUT_PART_BYTES
from mcp_bridge.executions.idempotency.keys import program_key
from mcp_bridge.executions.memories import MAX_MEMORY_BYTES, digest
from mcp_bridge.executions.plans.dry_memories import DryMemories, not_saved
from mcp_bridge.executions.programs.lifecycle import MAX_CONTEXT_BYTES
from mcp_bridge.executions.programs.planning import plan_program
from mcp_bridge.executions.programs.sandbox_programs import SandboxPrograms
from mcp_bridge.executions.reruns.recorded_tools import RecordedTools
from mcp_bridge.executions.scripts.call_recorder import CallRecorder
from mcp_bridge.executions.waits.taken_events import WAIT
from mcp_bridge.governance.tool_names import dotted, resolve, split
from mcp_bridge.guest.near_names import near
from mcp_bridge.kernel.language.program_parser import MAX_BYTES as MAX_PROGRAM_BYTES
from mcp_bridge.offload import is_large, is_over, off_loop, on_blocking_thread, on_thread
from mcp_bridge.policy.redaction.json_walk import leaves
from mcp_bridge.policy.secrets.vault_uris import REFERENCE_PREFIX, SECRET_PREFIX
from mcp_bridge.wire import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.executions.artifacts import ArtifactWriter
    from mcp_bridge.executions.inputs.execution_inputs import ExecutionInputs
    from mcp_bridge.executions.memories import Memories
    from mcp_bridge.executions.principal_artifacts import OwnFiles
    from mcp_bridge.executions.programs.lifecycle import Programs
    from mcp_bridge.executions.programs.program_run import Effects
    from mcp_bridge.executions.scripts.script_run import ScriptRun
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.host.packages.running_installs import RunningInstalls

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_SEARCH_HITS = 100

FEW_TOOLS = 30
FEW_VALUES = 200
"""Tools that are described at once, and values of the schemas of each."""

MAX_TOOLS_COMPARED = 500
"""Saved tools that a wrong name is compared with."""

NAMES_MEANT = 5
"""Tools that are told of where a name is no server's."""

_NOT_RECORDED = frozenset({"call", "since", "refusal", "room"})
"""Fields of a request that its record doesn't compare: its name is that of the record, earlier builds had neither
`since` nor `refusal`, and how much `room` there is may differ a little from run to run."""

_MARK_CHARS = 16

MAX_NAME_CHARS = 1000
"""Longest name or query that is looked at: the search for near names, and for words, takes its time."""


class SessionAccess(Protocol):
    """What scripts may do about their principal's sessions. The bridge."""

    async def listed_sessions(self) -> list[dict[str, Any]]:
        """The sessions, as `messages.SessionList` has them."""

    async def end_session(self, session: str, cell: str | None = None) -> bool:
        """End a session; False if there is none.

        Args:
            session: Its name.
            cell: The execution of its cell that runs, if that ends its own; else None.
        """


class Requests:
    """Answers one execution's requests.

    Args:
        principal: Whose execution it is.
        memories: What the principal's scripts keep.
        files: What answers of the principal's earlier executions had to cut.
        artifacts: This execution's artifacts.
        gate: What every call passes.
        effects: Does what programs want, through the gate.
        programs: The bridge's.
        script: The script's run, which has its record.
        sessions: The principal's sessions.
        session: The name of the session that the script is a cell of; None for none.
        inputs: The operator's files that the execution may read; None for none.
        packages: Makes what installs the packages that the script asks for; None where there are none.
    """

    def __init__(
        self,
        principal: str,
        memories: Memories,
        files: OwnFiles,
        artifacts: ArtifactWriter,
        gate: Gate,
        effects: Effects,
        programs: Programs,
        script: ScriptRun,
        sessions: SessionAccess | None = None,
        session: str | None = None,
        inputs: ExecutionInputs | None = None,
        packages: Callable[[], Awaitable[RunningInstalls]] | None = None,
    ) -> None:
        self._packages = packages
        self._made_installs: RunningInstalls | None = None
        self._making_installs = anyio.Lock()
        self._sessions, self._session = sessions, session
        self._inputs = inputs
        self.principal = principal
        self._memories = memories
        self._files = files
        self._artifacts = artifacts
        self._catalog, self._allowed = gate.tools.catalog, gate.tools.servers
        self._values = gate.values
        self._script = script
        self._programs = SandboxPrograms(
            programs,
            script.execution,
            principal,
            effects,
            functools.partial(plan_program, gate),
            script.programs.ended,
            script.programs.left,
        )
        self._recorded_tools: RecordedTools | None = None
        self._checked_tools: set[tuple[str, str]] = set()
        """The servers and names of the tools whose rows are in the record, since calls didn't fit them."""
        self._told_memories: dict[str, bytes] = {}
        """Digests of the memories that the script was told of, by the names of the requests."""
        self._repeatable: dict[str, tuple[Sequence[ToolInfo], list[dict[str, Any]], bool]] = {}
        """By server: the tools as they were listed, their rows for the recorded calls, and whether these are others."""
        self._tools_turn = anyio.Lock()
        self.calls = 0
        self._artifact_turn = anyio.Lock()
        self._has_read: set[str] = set()
        """The executions whose outputs the script has."""

    def begun(self) -> None:
        """The sandbox has begun to run the script."""
        self._script.has_begun = True

    async def close(self) -> None:
        """The sandbox has ended."""
        await self._programs.close()

    @property
    def notices(self) -> list[str]:
        """What the reader of the script's record should know."""
        return self._programs.notices + (not_saved(self._memories) if isinstance(self._memories, DryMemories) else [])

    async def project(self, value: Any) -> Any:
        """A value of the script's as it may be shown."""
        return await self._values.project(value)

    def taken(self, call: str) -> None:
        """Whoever waited for the answer to a call has it."""
        self._script.answers.taken(call)

    async def cancelled_before_start(self, request: Any, context: RequestContext) -> None:
        """The script has cancelled a request, or left it at its end, before it was looked at."""
        if (call := getattr(request, "call", None)) is None:
            return
        made = None
        if self._script.live and isinstance(request, messages.ToolCall) and messages.overlong(request) is None:
            with contextlib.suppress(BridgeError):
                await self._programs.holds(request.arguments)
                made = self._script.recorder(resolve(request.server, self._allowed), request, context)
        await self._script.cancelled_before_start(call, made)

    async def answer(self, request: Any, context: RequestContext) -> Any:
        """The result of a request. None is given while a call of the script waits: it is to come to rest.

        Args:
            request: What is asked for.
            context: The request while it is worked on.

        Raises:
            BridgeError: Its code and message go to the guest.
        """
        answer, error = None, None
        try:
            answer = await self._answer(request, context)
        except BridgeError as exc:
            error = exc
        if self._script.hold.calls and not isinstance(request, messages.ProgramLeave):
            # What was done is recorded; the script is told when it goes on.
            context.release_slot()
            context.effect_ended()
            await self._script.hold.over()
        if error is not None:
            try:
                raise error
            finally:
                # Else the request is kept by its own error, through this frame, until garbage is collected.
                del error
        return answer

    async def on_hold(self) -> None:
        """Wait until a call of the script waits for what nobody can give it now."""
        await self._script.hold.begun()

    @property
    def is_on_hold(self) -> bool:
        """Whether a call waits for what nobody can give it now."""
        return not self._script.hold.is_empty

    @property
    def only_waits(self) -> bool:
        """Whether all such calls are waits for times and events, beside which the script goes on."""
        return not self._script.hold.calls

    async def divergence(self) -> BridgeError:
        """Wait until the script goes another way than it had; what it is told of that."""
        return await self._script.divergence_detector.diverged()

    async def _answer(self, request: Any, context: RequestContext) -> Any:
        _check_names(request)
        await self._check_size(request)
        self._refuse_as_before(request)
        match request:
            case messages.ToolCall():
                return await self._call(request, context)
            case messages.MemorySave() | messages.MemoryLoad() | messages.MemoryDelete() | messages.MemoryList():
                return await self._about_memories(request, context)
            case _ if self._script.is_dry and isinstance(request, _NOT_DRY):
                return await self._dry(request, context)
            case messages.SessionList() | messages.SessionEnd():
                call = self._recorder(request, "session", context)
                return await self._script.answer(call, functools.partial(self._about_sessions, request, call))
            case messages.WaitUntil() | messages.WaitEvent():
                return await self._wait(request, context)
            case messages.PackageInstall() | messages.PackageRead():
                return await self._install(request, context)
            case (
                messages.CatalogServers()
                | messages.CatalogTools()
                | messages.CatalogSearch()
                | messages.CatalogDescribe()
                | messages.CatalogCheck()
            ):
                return await self._look_up(request)
            case messages.InputList() | messages.InputOpen() | messages.InputRead():
                return await self._input(request, context)
            case messages.ArtifactWrite() | messages.OutputRead():
                return await self._file(request)
            case messages.ProgramEffect() | messages.ProgramFinish() | messages.ProgramLeave():
                if not self._script.live:
                    # Nothing is driven here, and what is asked for all the same is not for the record.
                    raise BridgeError("violation", f"This sandbox drives no execution {request.execution[:100]!r}.")
                return await self._programs.answer(request, context)
        call = self._recorder(request, "program", context)
        return await self._script.answer(call, functools.partial(self._program, request, call))

    def _refuse_as_before(self, request: Any) -> None:
        """In a run of the record alone, refuse what earlier builds refused: their guests did, and nothing was recorded.

        Raises:
            BridgeError: `bad_params`.
        """
        if not isinstance(request, messages.ProgramSave) or isinstance(request.program, dict):
            return
        if not self._script.live and request.call not in self._script.history.calls:
            kind = type(request.program).__name__
            raise BridgeError("bad_params", f"program.save: 'program' is no dict[str, typing.Any] but {kind}")

    async def _dry(self, request: Any, context: RequestContext) -> Any:
        """What would do more than to read, or would take long, in a dry run."""
        if isinstance(request, messages.WaitUntil):
            return {}
        call = self._recorder(request, "program", context)
        if isinstance(request, messages.ProgramStart | messages.ProgramResume):
            listed = request.context if isinstance(request, messages.ProgramStart) else request.payload
            return await self._script.list_program(call, functools.partial(self._programs.holds, listed))
        return await self._script.answer(call, functools.partial(_refuse_dry, request))

    async def _wait(self, request: messages.WaitUntil | messages.WaitEvent, context: RequestContext) -> Any:
        method, arguments = messages.NAMES[type(request)], self._script.waits.arguments(request)
        call = CallRecorder(self._script, request.call, WAIT, method, arguments, context)
        return await self._script.wait(call, request)

    async def _about_sessions(self, request: Any, call: CallRecorder) -> dict[str, Any]:
        if self._sessions is None:
            raise BridgeError("unknown_session", "There are no sessions here.")
        if isinstance(request, messages.SessionList):
            return {"sessions": await self._sessions.listed_sessions()}
        name = request.name or self._session
        if name is None:
            raise BridgeError("unknown_session", "This script is of no session.", hint="Name one: end_session('NAME').")
        await call.announce()
        # Its own may have ended: what has the name then is another.
        cell = None if request.name else self._script.execution
        return {"found": await self._sessions.end_session(name, cell)}

    async def _input(self, request: Any, context: RequestContext) -> Any:
        inputs = self._inputs or no_inputs()
        if isinstance(request, messages.InputRead):
            # Not recorded: what was opened is, with the hash that this is of.
            return await inputs.read(request.name, request.version, request.number)
        call, is_new = self._recorder(request, "input", context), False

        async def do() -> dict[str, Any]:
            nonlocal is_new
            is_new = True
            if isinstance(request, messages.InputList):
                return await inputs.listed(request.name, max(0, request.start))
            return await inputs.opened(request.name, request.room)

        answer: dict[str, Any] = await self._script.answer(call, do)
        if not is_new and isinstance(request, messages.InputOpen):
            # It is given what it was given, or nothing.
            changed = await inputs.changed(request.name, answer, request.call or "")
            if changed is not None:
                await self._script.divergence_detector.leave(changed)
        return answer

    async def _installs(self) -> RunningInstalls:
        if self._packages is None:
            raise BridgeError("packages_unavailable", "Packages can't be added here.")
        async with self._making_installs:
            if self._made_installs is None:
                self._made_installs = await self._packages()
        return self._made_installs

    async def _install(
        self, request: messages.PackageInstall | messages.PackageRead, context: RequestContext
    ) -> dict[str, Any]:
        installs = await self._installs()
        if isinstance(request, messages.PackageRead):
            return await installs.part(request.sha256, request.start)
        requirements, added = request.requirements, request.added
        call = self._recorder(request, "package", context)

        async def resolve() -> dict[str, Any]:
            await call.announce()
            return {"packages": await installs.resolve(requirements, added)}

        answer: dict[str, Any] = await self._script.answer(call, resolve)
        # Also of a recorded answer: it names the files, and the cache may have lost them since.
        await installs.offer(answer["packages"])
        return answer

    def _recorder(self, request: Any, kind: str, context: RequestContext) -> CallRecorder:
        arguments = {field: value for field, value in request._asdict().items() if field not in _NOT_RECORDED}
        return CallRecorder(self._script, request.call, kind, messages.NAMES[type(request)], arguments, context)

    async def _program(self, request: Any, call: CallRecorder) -> Any:
        match request:
            case messages.ProgramStart() if request.idempotency_key is None:
                key = program_key(self._script.execution, request.call)
                return await self._programs.start(request.program, request.context, key, call.request, of_call=True)
            case messages.ProgramResume():
                # A payload is taken once: whether it was is looked up before it is given again.
                since = await call.announce()
                return await self._programs.resume(request.execution, request.payload, since)
        return await self._programs.answer(request, call.request)

    async def _check_size(self, request: Any) -> None:
        """Refuse what is too large in any case, before it is projected, compared, recorded or counted.

        Raises:
            BridgeError: As what refuses it otherwise, when it has looked at all of it.
        """
        if getattr(request, "call", None) in self._script.history.calls:
            return  # it was answered then, however, and is answered so again
        match request:
            case messages.MemorySave() if await _is_over(request.value, MAX_MEMORY_BYTES):
                raise BridgeError("bad_memory", f"The memory {request.key!r} is over {MAX_MEMORY_BYTES} bytes.")
            case messages.ProgramStart() if await _is_over(request.context, MAX_CONTEXT_BYTES):
                raise BridgeError(
                    "context_too_large", f"The context is too large; the limit is {MAX_CONTEXT_BYTES} bytes."
                )
            case messages.ProgramResume() if await _is_over(request.payload, MAX_CONTEXT_BYTES):
                raise BridgeError(
                    "payload_too_large", f"The payload is too large; the limit is {MAX_CONTEXT_BYTES} bytes."
                )
        match request:
            case messages.ProgramStart() | messages.ProgramSave() if await _is_over(request.program, MAX_PROGRAM_BYTES):
                message = f"The program is not valid: it is too large; the limit is {MAX_PROGRAM_BYTES} bytes."
                fault = {"path": "", "code": "too_large", "message": message}
                raise BridgeError("invalid_program", message, faults=[fault])

    async def _about_memories(self, request: Any, context: RequestContext) -> Any:
        call = self._recorder(request, "memory", context)
        known = self._script.history.calls.get(request.call)
        answer: dict[str, Any] = await self._script.answer(call, functools.partial(self._remember, request, call))
        if "value" in answer:
            told = functools.partial(digest, answer["value"], found=answer["found"])
            self._told_memories[request.call] = await on_blocking_thread(told)
        changes = isinstance(request, messages.MemorySave | messages.MemoryDelete) and answer.get("saved", True)
        if self._script.is_dry and known is not None and changes:
            # A dry run's memories are kept nowhere: repeated from its record, it has them again.
            again = request._replace(since=None) if isinstance(request, messages.MemorySave) else request
            await on_blocking_thread(self._memory, again)
        return answer

    async def _remember(self, request: Any, call: CallRecorder) -> dict[str, Any]:
        if isinstance(request, messages.MemorySave) and request.refusal is not None:
            raise BridgeError("bad_arguments", request.refusal)
        if not isinstance(request, messages.MemorySave) or request.since is None:
            return await self._about_memory(request, call)
        # Who comes too late is told at once: of those that change a memory at once, one is made durable at a time.
        async with self._memories.updates:
            answer = await self._about_memory(messages.MemoryLoad(request.key), call)
            if call.known is None and digest(answer["value"], found=answer["found"]) != self._told(request):
                return {"saved": False} | answer
            return await self._about_memory(request, call)

    def _told(self, request: messages.MemorySave) -> bytes | None:
        """The digest of what the script was told, from which it has made a value."""
        return self._told_memories.get(request.since or "")

    async def _about_memory(self, request: Any, call: CallRecorder) -> dict[str, Any]:
        if isinstance(request, messages.MemorySave | messages.MemoryDelete):
            # With it what was read before becomes durable, on which what is written now may depend: who runs the script
            # again is to write the same.
            await call.announce()
        # Before the lock: nobody waits for it behind somebody who has used too much.
        await fair_share.turn()
        # On a thread, one after the other: files and JSON of some megabytes would hold up every other run.
        async with self._memories.turn:
            answer: dict[str, Any] = await on_blocking_thread(self._memory, request)
            return answer

    def _memory(self, request: Any) -> dict[str, Any]:
        match request:
            case messages.MemorySave(since=str()):
                mark = hashlib.sha256(f"{self._script.execution} {request.call}".encode()).hexdigest()[:_MARK_CHARS]
                since = self._told(request)
                return self._memories.save_unless_changed(request.key, request.value, since=since, mark=mark)
            case messages.MemorySave():
                self._memories.save(request.key, request.value, update=request.update)
                return {}
            case messages.MemoryLoad():
                found, value = self._memories.load(request.key)
                near = {} if found else self._near_tools(request.key)
                return {"found": found, "value": value} | near
            case messages.MemoryDelete():
                return {"found": self._memories.delete(request.key)}
            case messages.MemoryList():
                return {"keys": self._memories.keys(request.prefix)}
        raise AssertionError(request)

    def _near_tools(self, key: str) -> dict[str, list[str]]:
        """For the key of a saved tool that isn't there, the names of tools that may be meant."""
        prefix = next((each for each in messages.SAVED_TOOL_PREFIXES if key.startswith(each)), None)
        if prefix is None:
            return {}
        # Those of another language have a longer prefix.
        names = [kept.removeprefix(prefix) for kept in self._memories.keys(prefix)]
        known = [name for name in names if name.isidentifier()][:MAX_TOOLS_COMPARED]
        return {"near": near(key.removeprefix(prefix), known)}

    async def _call(self, request: messages.ToolCall, context: RequestContext) -> Any:
        server = resolve(request.server, self._allowed)
        self.calls += 1
        began, outcome = time.monotonic(), "failed"
        try:
            answer = await self._script.call(server, request, context, self._programs.holds)
            outcome = "answered"
            if self._script.is_dry and "planned" in answer:
                outcome = "listed"
                self.calls -= 1
        except anyio.get_cancelled_exc_class():
            # The script ends or is suspended; what is held until a person has decided hasn't been made.
            outcome = "waits" if request.call in self._script.hold.calls else "was cut off"
            raise
        finally:
            # Names only: arguments and results may hold what a log shouldn't.
            milliseconds = (time.monotonic() - began) * 1000
            logger.info("%r.%r %s after %.0f ms", server, request.tool, outcome, milliseconds)
        return answer

    async def _look_up(self, request: Any) -> Any:
        async def look() -> Any:
            return await self._values.described(await self._looked_up(request))

        # The tools themselves are for our own modules in the sandbox, which make calls of them: these are recorded.
        is_listing = isinstance(request, messages.CatalogTools) and not request.told
        return await self._script.lookups.answer(*_lookup(request), look, failures_only=is_listing)

    async def _looked_up(self, request: Any) -> dict[str, Any]:
        match request:
            case messages.CatalogServers():
                return {"servers": self._servers()}
            case messages.CatalogTools():
                return await self._tools(request.server)
            case messages.CatalogSearch():
                return await self._search(request)
            case messages.CatalogDescribe():
                return await self._describe(request)
        return await self._checked(request)

    def _servers(self) -> list[dict[str, Any]]:
        return [
            {
                "name": status.name,
                "alias": status.alias,
                "status": status.state,
                "tools": status.tool_count,
                "error": status.error,
            }
            for status in self._catalog.servers()
            if status.name in self._allowed
        ]

    async def _tools(self, server: str) -> dict[str, Any]:
        name = resolve(server, self._allowed)
        try:
            tools = await self._catalog.tools(name)
        except BridgeError as exc:
            self._script.divergence_detector.unlisted[name] = exc.message
            raise
        mark: int | None = self._catalog.mark(name)
        rows = await _rendered(describe.proxy_row, tools)
        if not self._script.history.is_empty:
            # It is run again, perhaps: what it has called it can call, as it did.
            repeatable, differs = await self._repeatable_rows(name, tools, rows)
            if differs:
                self._script.divergence_detector.changed_servers.add(name)
                # Nothing that a cell after it has: it gets the tools as they are.
                rows, mark = repeatable, None
        return {"server": name, "alias": self._allowed[name], "tools": rows, "mark": mark}

    async def _repeatable_rows(
        self, server: str, tools: Sequence[ToolInfo], rows: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], bool]:
        """The rows of a server's tools that take the recorded calls, and whether these are others."""

        def made() -> tuple[list[dict[str, Any]], bool]:
            if self._recorded_tools is None:
                self._recorded_tools = RecordedTools(self._script.history, self._allowed)
            repeatable = self._recorded_tools.repeatable(server, rows)
            return repeatable, repeatable != rows

        # A script may ask as often as it likes, and at once.
        async with self._tools_turn:
            known = self._repeatable.get(server)
            if known is None or known[0] is not tools:
                # The recorded calls may be many, and large.
                known = self._repeatable[server] = (tools, *await on_thread(made))
        return known[1], known[2]

    async def _search(self, request: messages.CatalogSearch) -> dict[str, Any]:
        limit = max(0, min(request.limit, MAX_SEARCH_HITS))
        found = await self._catalog.search(request.query, limit, strict=request.strict, servers=self._allowed.keys())
        lines = await _rendered(describe.search_result_line, [hit.tool for hit in found.hits])
        matches = [
            {
                "server": hit.tool.server,
                "tool": hit.tool.name,
                "name": f"{hit.tool.server_alias}.{hit.tool.alias}",
                "line": line,
            }
            for hit, line in zip(found.hits, lines, strict=True)
        ]
        return {"matches": matches, "notices": found.notices}

    async def _describe(self, request: messages.CatalogDescribe) -> dict[str, Any]:
        try:
            server, tool_name = split(request.name, self._allowed)
        except BridgeError as exc:
            if (name := dotted(request.name, self._allowed)) != request.name:
                return await self._describe(request._replace(name=name))
            if meant := self._of_that_name(request.name):
                exc.hint = f"Did you mean {', '.join(meant)}?"
            raise
        tools = await self._catalog.tools(server) if not tool_name else (await self._find(server, tool_name),)
        if request.detail == "schema":
            schemas = {tool.name: describe.schemas(tool) for tool in tools}
            return {"schema": schemas if not tool_name else schemas[tools[0].name]}
        detail, is_full = request.detail, request.detail == "full"

        def told(tools: Sequence[ToolInfo]) -> dict[str, Any]:
            if not tool_name:
                rows = [describe.call_row(tool, is_whole=is_full) for tool in tools] if request.with_row else []
                return {"text": describe.render_all(tools, detail)} | (
                    {"rows": rows} if rows and detail != "line" else {}
                )
            row = {"row": describe.proxy_row(tools[0], is_whole=is_full)} if request.with_row else {}
            return {"text": _TEXTS[detail](tools[0])} | row

        # In full a small schema, which refers to itself, may take a tenth of a second.
        return await (on_thread(told, tools) if is_full else _off_loop(told, tools))

    def _of_that_name(self, name: str) -> list[str]:
        """The tools that a name without its server stands for, or with a wrong one; of what is listed already."""
        last = name.rpartition(".")[2]
        found = ((alias, self._catalog.listed_tool(server, last)) for server, alias in self._allowed.items())
        return [f"{alias}.{tool.alias}" for alias, tool in found if tool is not None][:NAMES_MEANT]

    async def _checked(self, request: messages.CatalogCheck) -> dict[str, Any]:
        tool = await self._catalog.tool(resolve(request.server, self._allowed), request.tool)
        if self._script.live:
            # Faults that are recorded may quote the arguments.
            await self._programs.holds(request.arguments)
        # What stands behind a reference is known to the gate alone.
        plain = await off_loop(request.arguments, _without_references, request.arguments)
        faults = await self._catalog.faults(tool, plain)
        if (tool.server, tool.name) in self._checked_tools or not (faults or request.arguments):
            return {"faults": faults}
        # For the record: run again, the script finds the tool as it was when a call didn't fit it.
        self._checked_tools.add((tool.server, tool.name))
        [row] = await _rendered(describe.proxy_row, [tool])
        return {"faults": faults, "row": row}

    async def _find(self, server: str, name: str) -> ToolInfo:
        """By name or alias, and where that fails without regard to case."""
        folded = name.casefold()
        for tool in await self._catalog.tools(server):
            if name in {tool.name, tool.alias}:
                return tool
        for tool in await self._catalog.tools(server):
            if folded in {tool.name.casefold(), tool.alias.casefold()}:
                return tool
        return await self._catalog.tool(server, name)

    async def _file(self, request: messages.ArtifactWrite | messages.OutputRead) -> Any:
        if isinstance(request, messages.OutputRead):
            look = functools.partial(self._output, request)
            return await self._script.lookups.answer(*_lookup(request), look)
        # One after the other, in the order in which they came: parts make one file.
        async with self._artifact_turn:
            write = functools.partial(off_loop, request.base64, self._artifact, request)
            asked = {"name": request.name, "first": request.first, "last": request.last}
            # That there was no room, say: where nothing is kept there always is.
            return await self._script.lookups.answer(messages.NAMES[type(request)], asked, write, failures_only=True)

    async def _output(self, request: messages.OutputRead) -> dict[str, Any]:
        asked = (request.execution, request.name, request.start, OUTPUT_PART_BYTES)
        text, following = await self._files.read_output(*asked)
        if self._script.live and request.execution not in self._has_read:
            self._has_read.add(request.execution)
            self._programs.has_read(request.execution)
        return {"text": text, "next": following}

    def _artifact(self, request: messages.ArtifactWrite) -> dict[str, Any]:
        try:
            data = base64.b64decode(request.base64, validate=True)
        except (binascii.Error, ValueError):
            raise BridgeError("bad_artifact", "A part of an artifact is no base64.") from None
        row = self._artifacts.write(request.name, data, first=request.first, last=request.last)
        return {"uri": row["uri"], "size": row["size"]} if row else {}


_NOT_DRY = (
    messages.ProgramStart
    | messages.ProgramResume
    | messages.SessionEnd
    | messages.ProgramSave
    | messages.ProgramDelete
    | messages.ProgramPlan
    | messages.WaitUntil
    | messages.WaitEvent
)
"""What a dry run answers otherwise: what it lists, refuses, or doesn't wait for."""


async def _refuse_dry(request: Any) -> NoReturn:
    raise BridgeError(
        "dry_run",
        f"A dry run doesn't do this: {messages.NAMES[type(request)]}.",
        hint="Run the script without dry_run.",
    )


def _lookup(request: Any) -> tuple[str, dict[str, Any]]:
    """A lookup's method, and what it asks for, without defaults: a later version may know more fields."""
    defaults = type(request)._field_defaults
    return messages.NAMES[type(request)], {
        name: value for name, value in request._asdict().items() if name not in defaults or value != defaults[name]
    }


def no_inputs() -> ExecutionInputs:
    """The inputs of an execution that has none."""
    from mcp_bridge.executions.inputs.execution_inputs import ExecutionInputs  # noqa: PLC0415  (most operators hand none in)

    return ExecutionInputs({})


_TEXTS: dict[str, Callable[[ToolInfo], str]] = {
    "line": describe.line,
    "signature": describe.render,
    "full": describe.full,
}
"""What is told of a tool, by the detail that is asked for; its schemas are no text."""


def _without_references(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if not any(map(_is_reference, leaves(value)))}


def _is_reference(leaf: Any) -> bool:
    return isinstance(leaf, str) and (SECRET_PREFIX in leaf or REFERENCE_PREFIX in leaf)


async def _is_over(value: Any, limit: int) -> bool:
    return await off_loop(value, is_over, value, limit)


async def _rendered(render: Callable[[ToolInfo], T], tools: Sequence[ToolInfo]) -> list[T]:
    """What is told of tools; on a thread where there are many of them, or one is large."""

    def all_of_them(tools: Sequence[ToolInfo]) -> list[T]:
        return [render(tool) for tool in tools]

    return await _off_loop(all_of_them, tools)


async def _off_loop(function: Callable[..., T], tools: Sequence[ToolInfo], *args: Any) -> T:
    if len(tools) > FEW_TOOLS or any(map(_is_large, tools)):
        return await on_thread(function, tools, *args)
    return function(tools, *args)


def _is_large(tool: ToolInfo) -> bool:
    return is_large([tool.description, tool.input_schema, tool.output_schema], values=FEW_VALUES)


def _check_names(request: Any) -> None:
    if (fault := messages.overlong(request)) is not None:
        raise BridgeError("bad_request", fault)
    for field in _NAMES_OF[type(request)]:
        value = getattr(request, field)
        if isinstance(value, str) and len(value) > MAX_NAME_CHARS:
            raise BridgeError("bad_request", f"{field!r} has {len(value)} characters; the limit is {MAX_NAME_CHARS}.")


_NAMES = ("server", "tool", "name", "query", "key", "prefix", "execution", "trace_id")

_NAMES_OF = {kind: tuple(name for name in _NAMES if name in kind.__annotations__) for kind in messages.NAMES}
