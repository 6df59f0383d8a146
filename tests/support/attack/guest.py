"""A sandbox without a container: the far end of the channel, in this process, speaking frames like any guest.

All of the host's side is as it is in service: `Execution`, `HostChannel`, `Requests`. A guest here is a coroutine that
asks what it likes, well or ill. `test_attack_sandboxed` takes some cases through real containers.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from mcp_bridge.host.engine_setup import Prepared
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Outcome
from mcp_bridge.kernel.language.program_parser import unbundle
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.sandbox.engine import ExitStatus
from mcp_bridge.wire import jsonrpc, messages
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.framing import LineDecoder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BUFFER = 1000


class RefusedError(Exception):
    """The host has answered with an error.

    Attributes:
        code: Its code.
    """

    def __init__(self, answer: jsonrpc.ErrorResponse) -> None:
        super().__init__(answer.message)
        self.code = str(answer.data.get("code"))


class Guest:
    """What a script can do: ask, one thing after the other."""

    def __init__(self, sent: Any, received: Any) -> None:
        self._out, self._in = sent, received
        self._number = self._calls = 0
        self._decoder = LineDecoder()
        self._lines: list[bytes] = []

    async def ask(self, params: Any) -> Any:
        """The answer to a request.

        Raises:
            RefusedError: The host's error.
        """
        (answer,) = await self.ask_all(params)
        if isinstance(answer, jsonrpc.ErrorResponse):
            raise RefusedError(answer)
        return answer.result

    async def ask_all(self, *asked: Any) -> list[Any]:
        """The answers to requests that are under way at the same time."""
        waiting: dict[int, Any] = {}
        for params in asked:
            self._number += 1
            waiting[self._number] = params
            request = jsonrpc.Request(self._number, messages.NAMES[type(params)], messages.encode_params(params))
            try:
                frame = jsonrpc.encode(request)
            except LocalMessageError as exc:
                # A guest that sent it all the same would be ended, and with it the attacks that follow.
                raise RefusedError(jsonrpc.ErrorResponse(0, 0, str(exc), {"code": exc.code})) from None
            await self._out.send(frame)
        answers: dict[int, Any] = {}
        while len(answers) < len(waiting):
            while not self._lines:
                self._lines += self._decoder.feed(await self._in.receive())
            answer = jsonrpc.decode(self._lines.pop(0))
            if not isinstance(answer, (jsonrpc.Response, jsonrpc.ErrorResponse)) or answer.id not in waiting:
                continue
            answers[answer.id] = answer
            if (call := getattr(waiting[answer.id], "call", None)) is not None:
                await self._out.send(jsonrpc.encode(messages.notification(messages.CallTaken(call))))
        return [answers[number] for number in waiting]

    def name(self) -> messages.CallId:
        """A name for a call: the next one of the main task."""
        self._calls += 1
        return messages.CallId(f"0#{self._calls}")

    async def call(self, server: str, tool: str, arguments: dict[str, Any], *, raw: bool = False) -> Any:
        """Call a tool."""
        return await self.ask(messages.ToolCall(server, tool, arguments, raw, self.name()))

    async def drive(self, program: Any, context: dict[str, Any], key: str | None = None) -> dict[str, Any]:
        """Run a program; its record."""
        began = await self.ask(messages.ProgramStart(program, context, key, self.name()))
        if "record" in began:
            return dict(began["record"])
        machine = Machine(unbundle(began), began["context"])
        queue = list(machine.effects)
        while queue:
            effect = queue.pop(0)
            if effect.kind == "cancel":
                continue
            told = await self.ask(messages.ProgramEffect(began["execution"], effect.id))
            outcome = Outcome(
                effect.id, told["status"], told.get("value"), told.get("code", ""), told.get("message", "")
            )
            queue += machine.apply(outcome)
        finish = messages.ProgramFinish(began["execution"], hashlib.sha256(state.dump(machine)).hexdigest())
        return dict(await self.ask(finish)) | {"steps": [state.row_json(row) for row in machine.rows]}

    async def finish(self) -> None:
        """Say that the script has ended."""
        await self.ask(messages.ExecutionFinish(0))


class Process:
    """As `SandboxProcess`."""

    def __init__(self) -> None:
        self.stdin, self.received = anyio.create_memory_object_stream[bytes](BUFFER)
        self.sent, self.stdout = anyio.create_memory_object_stream[bytes](BUFFER)
        self._reports, self.stderr = anyio.create_memory_object_stream[bytes](1)
        self._reports.close()

    async def run(self, code: Callable[[Guest], Awaitable[None]]) -> None:
        """Be the guest."""
        try:
            await self.received.receive()  # the runtime and the script, which a guest here has got already
            await self.sent.send(jsonrpc.encode(messages.notification(messages.ExecutionBegun())))
            guest = Guest(self.sent, self.received)
            await code(guest)
            await guest.finish()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the host has ended it
        finally:
            self.sent.close()

    async def container_id(self) -> str:
        return "none"

    async def wait(self) -> ExitStatus:
        return ExitStatus(0)

    async def aclose(self) -> None:
        for stream in (self.stdin, self.received, self.sent, self.stdout, self.stderr):
            stream.close()
        await anyio.lowlevel.checkpoint()


class Engine:
    """As `sandbox.engine.Engine`: runs `code` in the place of every container.

    Args:
        tasks: Where the guests run.
    """

    name = "none"

    def __init__(self, tasks: Any) -> None:
        self._tasks = tasks
        self.code: Callable[[Guest], Awaitable[None]] | None = None

    async def start(self, spec: Any) -> Process:
        process = Process()
        self._tasks.start_soon(process.run, self.code)
        return process

    def prepared(self) -> Prepared:
        """As `host.engine_setup.prepare` gives it."""
        enforced = SimpleNamespace(memory=True, pids=True, cpus=True)
        report = SimpleNamespace(choice=SimpleNamespace(enforced=enforced, seccomp=True), findings=())
        return Prepared(report, self, SimpleNamespace(magic="", reference="none", packages=()))  # type: ignore[arg-type]
