"""A bridge with everything real but the container, for one case after the other.

The servers are processes that live as long as the world does; each case has a bridge of its own over them, since a
bridge has one policy. All write into one ledger.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import sys
import tempfile
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import mcp_types as types

from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import approvals
from mcp_bridge.executions.client import Client
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.host import script_activity
from mcp_bridge.host.bridge import Bridge, Shared
from mcp_bridge.kernel import step_types
from mcp_bridge.kernel.events import Resume
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.policy.rules.policy_settings import read
from mcp_bridge.policy.rules.policy_snapshot import freeze
from mcp_bridge.sandbox.ownership import owner_label
from mcp_bridge.server.questions import Questions
from mcp_bridge.settings import Settings
from mcp_bridge.wire import messages

from .arguments import Erased, Foreign, Hidden, Secret, clear, joined, mapped, parts
from .generator import GRANTS, LOCAL_TOOLS, PEM, SECRETS, SERVERS, SOURCE_TOOLS, TICKET
from .guest import Engine, Guest, RefusedError
from .programs import GIVE, call_of, operators, program_of, running
from .scripts import code_of
from .shown import Shown, read_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.host.engine_setup import Prepared
    from mcp_bridge.ledger.log.entries import Recorded

    from .generator import Attack, Case, Change

HERE = Path(__file__).resolve().parent

DEADLINE_SECONDS = 60.0
"""For one case: far above what any takes."""

NEEDED_BYTES = 4 << 30
"""Room that there has to be in memory: a campaign of many thousand cases has a large ledger."""

SLOW_SECONDS = 0.1
"""How long a slow listing takes: long enough for another call to be made meanwhile."""

BROKEN = "broken off"

NOBODY: dict[str, Any] = {}
OPERATOR: dict[str, Any] = {"starter": "operator"}
"""Who has something begun."""


@dataclass
class Arrival:
    """What has reached a tool.

    Attributes:
        server, tool, arguments: As they came.
        listed: The newest listing of its server that the bridge could know.
    """

    server: str
    tool: str
    arguments: dict[str, Any]
    listed: list[dict[str, Any]]


@dataclass
class Seen:
    """What was seen of one attack.

    Attributes:
        attack: It.
        arrivals: What reached the tools.
        shown: What the person was shown.
        executions: Whose entries tell of it.
        error: The code of the error that it ended with, or None.
        program: The operator's program in whose text the step stands, or None.
        policy: The policy in force when it was made.
        scope: Of the executions that share what a rule's `max_calls` counts.
        left: The program that its script has left suspended, or None.
        tampered: Whether a listing has changed in the case so far.
    """

    attack: Attack
    arrivals: list[Arrival] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    executions: list[str] = field(default_factory=list)
    error: str | None = None
    program: str | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    scope: int = 0
    left: str | None = None
    tampered: bool = False


@dataclass
class Outcome:
    """What was seen of a case.

    Attributes:
        seen: Of each attack, in order.
        again: What reached tools when nothing was to be done anew.
        entries: The executions' entries.
        values: The values behind the references in them, by execution.
        mistaken: Values that aren't sensitive, and that references were made of.
        narrowed: Whether the first of the attacks was made without any servers.
        passed_off: Names of agents' programs that pass for an operator's.
        refused: Names that were refused, and pass for nobody's.
        spent: Whether an operator's run was given what an agent's had come to.
    """

    seen: list[Seen] = field(default_factory=list)
    again: list[Arrival] = field(default_factory=list)
    entries: dict[str, list[Recorded]] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    mistaken: list[str] = field(default_factory=list)
    narrowed: bool = False
    passed_off: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    spent: bool = False


class Person(Questions):
    """A client's person, asked as any client's is, who says what the case wants."""

    def __init__(self, meanwhile: Callable[[], Any], *, answer: bool | None) -> None:
        capabilities = types.ClientCapabilities(
            elicitation=types.ElicitationCapability(form=types.FormElicitationCapability())
        )
        session = SimpleNamespace(client_capabilities=capabilities)
        super().__init__(SimpleNamespace(session=session, request=None))  # type: ignore[arg-type]
        self.may_approve = _is_approver
        self.answer = answer
        self.shown: list[Shown] = []
        self._meanwhile = meanwhile

    async def _answer(self, request: Any, kind: type[Any]) -> Any:
        await self._meanwhile()
        self.shown.append(read_message(request.params.message, approved=self.answer is True))
        if self.answer is None:
            return types.ElicitResult(action="cancel")
        return types.ElicitResult(action="accept" if self.answer else "decline", content={"approve": self.answer})


async def _is_approver() -> bool:
    return True


class CaseBridge(Bridge):
    """A bridge that tells of its gates."""

    latest: Any = None
    latest_execution = ""

    def gate(self, execution: str, *arguments: Any, **more: Any) -> Any:
        self.latest, self.latest_execution = super().gate(execution, *arguments, **more), execution
        return self.latest


class World:
    """Servers, ledger and engine. Made by `world`."""

    def __init__(self, folder: Path, fleet: Fleet, database: Database, tasks: Any) -> None:
        self.folder = folder
        self.fleet = fleet
        self.database = database
        self.tasks = tasks
        self.engine = Engine(tasks)
        self.containers: Prepared | None = None
        """Where scripts run, if not in this process."""
        self.settings = Settings(state_dir=folder)
        self.listings: list[list[dict[str, Any]]] = [LOCAL_TOOLS]
        self.runs = 0
        self._log = folder / "arrivals"
        self._read = 0
        tables = {
            "tools": {"modules": ["attack_till"], "path": [str(HERE / "registered")], "entry_points": False},
            "secrets": {name: {"env": f"ATTACK_{name.upper()}", "tools": GRANTS[name]} for name in SECRETS},
            "projection": {
                "patterns": ["card", "iban", "api_key", "jwt", "private_key", "email"],
                "custom": {"ticket": TICKET},
            },
        }
        os.environ.update({f"ATTACK_{name.upper()}": value for name, value in SECRETS.items()})
        self.governance = load_governance(tables, None, folder, folder)
        function = self.governance.registry.tools["wipe"].declaration.function
        self._local: list[dict[str, Any]] = function.__globals__["ARRIVALS"]

    # --- listings ---

    async def list_tools(self, server: str, tools: list[dict[str, Any]], *, announce: bool, seconds: float = 0) -> None:
        """Give a server other tools, which it takes some time to tell of."""
        number = len(self.listings)
        self.listings.append(tools)
        listing = {"number": number, "tools": tools, "slow": seconds}
        (self.folder / f"{server}.listing").write_text(json.dumps(listing))
        found = self.fleet.servers[server]
        if found.running:
            await found._connection.call("__control", {"listing": listing, "announce": announce})
            with anyio.fail_after(DEADLINE_SECONDS):
                while announce and not found.stale:
                    await anyio.lowlevel.checkpoint()
            if announce:
                await found._connection.call("__control", {"known": number})

    async def prepare(self, case: Case) -> None:
        """Have a server list a case's tools, and the bridge know them."""
        for server in SERVERS:
            if not self.fleet.servers[server].running:
                await self.fleet.servers[server].start()
        await self.list_tools(case.server, case.tools, announce=False)
        self.fleet.servers[case.server]._connection.stale = True
        await self.fleet.servers[case.server].tools()

    async def change(self, server: str, change: Change) -> None:
        """What happens to a listing."""
        if change.how == "restart":
            found = self.fleet.servers[server]
            found.stop()
            await found.wait_ended()
        seconds = SLOW_SECONDS if change.how == "slow" else 0
        await self.list_tools(server, change.tools, announce=change.how in {"announced", "slow"}, seconds=seconds)

    def arrivals(self) -> list[Arrival]:
        """What has reached the tools since this was asked last."""
        rows, self._local[:] = list(self._local), []
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(self._read)
                found = log.read()
            self._read += len(found)
            rows += [json.loads(line) for line in found.splitlines()]
        return [Arrival(row["server"], row["tool"], row["arguments"], self.listings[row["listed"]]) for row in rows]

    # --- bridges ---

    def bridge(self, case: Case, policy: dict[str, Any]) -> CaseBridge:
        """A bridge with a policy, and the programs of the case's operator."""
        programs = {name: parse(data) for name, data in operators(case).items()}
        rules = [{name: value for name, value in rule.items() if name != "tree"} for rule in policy["rules"]]
        table = read({**policy, "rules": rules})
        governance = dataclasses.replace(
            self.governance,
            snapshot=freeze(table, {name: program.hash for name, program in programs.items()}),
            programs=programs,
        )
        self.fleet._listeners.clear()
        bridge = CaseBridge(Shared(self.settings, self.fleet, self.tasks, self.database, governance))
        bridge.sandboxes.prepared = self.containers or self.engine.prepared()
        for name, server in self.fleet.servers.items():
            bridge.catalog._tools[name] = server.listing.tools if server.listing else ()
        return bridge

    async def run(self, case: Case) -> Outcome:
        """Carry out a case."""
        with anyio.fail_after(DEADLINE_SECONDS):
            return await _Run(self, case).run()


@contextmanager
def impatient() -> Iterator[None]:
    """What undoes a step is tried again without a pause: most of it is denied here, and again each time. And a script that
    waits is at rest at once: what it asks for together, it asks for without a pause.
    """
    patient, step_types.COMPENSATION = step_types.COMPENSATION, {"retry": {"schedule": [0, 0]}}
    quiet, script_activity.QUIET_SECONDS = script_activity.QUIET_SECONDS, 0.02
    try:
        yield
    finally:
        step_types.COMPENSATION, script_activity.QUIET_SECONDS = patient, quiet


@asynccontextmanager
async def world(folder: Path | None = None) -> AsyncIterator[World]:
    """Servers and a ledger, in a folder of memory where there is one."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > NEEDED_BYTES
    with impatient(), tempfile.TemporaryDirectory(dir=memory if folder is None and roomy else folder) as name:
        root = Path(name)
        specs = []
        for server in SERVERS:
            (root / f"{server}.listing").write_text(json.dumps({"number": 0, "tools": SOURCE_TOOLS}))
            args = (str(HERE / "recording_server.py"), server, str(root / "arrivals"), str(root / f"{server}.listing"))
            specs.append(ServerSpec(name=server, command=sys.executable, args=("-S", "-E", *args), era="legacy"))
        async with (
            Database(root / FILE_NAME, "file", owner_label()) as database,
            Fleet(specs) as fleet,
            anyio.create_task_group() as tasks,
        ):
            found = World(root, fleet, database, tasks)
            found.listings[0] = SOURCE_TOOLS
            yield found
            tasks.cancel_scope.cancel()


# --- one case ---


class _Run:
    def __init__(self, world: World, case: Case) -> None:
        self.world = world
        self.case = case
        self.outcome = Outcome()
        self.tampered = False
        self.rehearsed = case.attacks
        """Those that came to be asked for by the script that is run again."""
        self.client = Person(self._meanwhile, answer=case.person)
        self._while_asking: tuple[str, Change] | None = None

    async def run(self) -> Outcome:
        world, case = self.world, self.case
        await world.prepare(case)
        world.arrivals()
        self._use(case.policy)
        script = self.script if world.containers is None else self.contained
        await {"script": script, "programs": self.programs, "keys": self.keys, "look-alikes": self.look_alikes}[
            case.kind
        ]()
        for execution in {one for seen in self.outcome.seen for one in seen.executions}:
            self.outcome.entries[execution] = await self.bridge.programs.recorder.read(execution)
            self.outcome.values[execution] = await self.bridge.programs.store.values(execution)
        return self.outcome

    def _use(self, policy: dict[str, Any]) -> None:
        self.policy = policy
        self.bridge = self.world.bridge(self.case, policy)

    async def _meanwhile(self) -> None:
        if self._while_asking is not None:
            (server, change), self._while_asking = self._while_asking, None
            self.tampered = True
            await self.world.change(server, change)

    async def _before(self, attack: Attack) -> None:
        change, self._while_asking = attack.change, None
        if change is None:
            return
        if change.when == "before":
            self.tampered = True
            await self.world.change(self.case.server, change)
        elif change.when == "asking":
            self._while_asking = self.case.server, change

    def _begin(self, attack: Attack, scope: int, program: str | None = None) -> Seen:
        seen = Seen(attack, policy=self.policy, scope=scope, program=program)
        self.outcome.seen.append(seen)
        return seen

    def _end(self, seen: Seen) -> None:
        """Take down what was seen of an attack since it began."""
        seen.arrivals += self.world.arrivals()
        seen.shown += self.client.shown
        self.client.shown = []
        seen.tampered = self.tampered

    # --- scripts ---

    async def script(self) -> None:
        case, world = self.case, self.world
        world.runs += 1
        key = f"key {world.runs}" if case.ending else None
        code = f"case {world.runs}"
        begun: list[Seen] = []
        scope = anyio.CancelScope()

        attacks = functools.partial(self._attacks, begun)

        async def first(guest: Guest) -> None:
            await attacks(guest, case.attacks)
            if case.ending == BROKEN:
                scope.cancel()
                await anyio.sleep_forever()

        world.engine.code = first
        execution = None
        with scope:
            record = await self.bridge.run(code, key=key, asker=self.client, servers=case.servers)
            execution = record.execution
            if any(row["kind"] == "program" for row in record.waiting) and begun[-1].left is None:
                # It was not begun: before it, the script waits for the program that it has left.
                self.outcome.seen.remove(begun.pop())
            self.rehearsed = case.attacks[: len(begun)]
            while record.status == "suspended" and len(begun) < len(case.attacks):
                # For a call that nobody could be asked about, or a program that waits. What follows is another script's.
                self._end_unseen(begun)
                record = await self._rest(case.attacks[len(begun) :], attacks)
        if execution is None:
            # Whatever its end, its entries are those of whoever goes on.
            execution = self.bridge.latest_execution
        for seen in begun:
            if not seen.scope:
                seen.executions.append(execution)
        self._end_unseen(begun)
        for seen in begun:
            if seen.left is not None:
                await self._go_on_with(seen)
        if case.ending == BROKEN:
            await self._goes_on(attacks, code, key, begun)
        elif case.ending:
            world.engine.code = self._rehearsal
            await self._again(code, key, execution)
            self.outcome.again = world.arrivals()

    async def _attacks(self, begun: list[Seen], guest: Guest, wanted: list[Attack]) -> None:
        for attack in wanted:
            await self._before(attack)
            seen = self._begin(attack, 0)
            begun.append(seen)
            try:
                await self._scripted(guest, attack, seen)
            except RefusedError as exc:
                seen.error = exc.code
            self._end(seen)

    async def _rest(self, wanted: list[Attack], attacks: Any) -> Any:
        """The record of a script with the rest of the attacks, in a scope of its own."""
        world, first = self.world, len(self.outcome.seen)
        world.runs += 1
        world.engine.code = lambda guest: attacks(guest, wanted)
        record = await self.bridge.run(f"case {world.runs}", asker=self.client, servers=self.case.servers)
        for seen in self.outcome.seen[first:]:
            # Not that of a program that somebody goes on with.
            seen.scope = 1000 + world.runs
            seen.executions.append(record.execution)
        return record

    async def _again(self, code: str, key: str | None, execution: str) -> None:
        if self.case.ending == "run again":
            await self.bridge.run(code, key=key, asker=self.client, servers=self.case.servers)
        else:
            stored = await self.bridge.lifecycle.stored(execution, LOCAL_PRINCIPAL.name)
            with contextlib.suppress(BridgeError):
                await self.bridge.replay_execution(stored)

    async def _rehearsal(self, guest: Guest) -> None:
        """The same script again, which is to be answered from the record."""
        for attack in self.rehearsed:
            with contextlib.suppress(RefusedError):
                await self._scripted(guest, attack, Seen(attack))

    async def _go_on_with(self, seen: Seen) -> None:
        """Somebody else goes on with a program that a script has left suspended: it is no part of the script's any more."""
        seen.scope = 1 + self.outcome.seen.index(seen)
        try:
            seen.error = _error_of(await self.bridge.resume_execution(seen.left or "", Resume("go"), asker=self.client))
        except BridgeError as exc:
            seen.error = exc.code
        self._end(seen)

    def _end_unseen(self, begun: list[Seen]) -> None:
        if begun:
            self._end(begun[-1])

    async def _goes_on(self, attacks: Any, code: str, key: str | None, begun: list[Seen]) -> None:
        """The same again, which is answered from the record, and then more: under the policy that is in force now."""
        case, world = self.case, self.world
        self._use(case.later or case.policy)
        before = len(begun)
        self.tampered = True  # what is recorded may be asked for by names that are gone

        async def second(guest: Guest) -> None:
            await self._rehearsal(guest)
            self.outcome.again += world.arrivals()
            await attacks(guest, case.attacks)

        world.engine.code = second
        await self.bridge.run(code, key=key, asker=self.client, servers=case.servers)
        self._end_unseen(begun)
        for seen in begun[before:]:
            seen.executions += begun[0].executions

    async def _scripted(self, guest: Guest, attack: Attack, seen: Seen) -> None:
        if attack.path in {"session", "left"}:
            record = await guest.drive(*program_of(attack))
            seen.executions.append(record["trace_id"])
            seen.error = _error_of(record)
            if record["status"] == "suspended":
                seen.left = record["trace_id"]
            return
        arguments = await self._referred(guest, attack)
        if attack.path == "together":
            calls = [messages.ToolCall(attack.server, attack.tool, arguments, call=guest.name()) for _ in range(2)]
            answers = await guest.ask_all(*calls)
            seen.error = next((answer.data["code"] for answer in answers if hasattr(answer, "data")), None)
            return
        await guest.call(attack.server, attack.tool, arguments, raw=attack.path == "raw")

    async def _referred(self, guest: Guest, attack: Attack) -> dict[str, Any]:
        """Arguments with references in the place of sensitive values, as something has given them to the script."""
        known: dict[Any, Any] = {}
        for part in [part for kind in (Hidden, Erased, Foreign) for part in parts(attack.arguments, kind)]:
            if part in known:
                continue
            if isinstance(part, Foreign):
                # Not by its own method, which takes it for the gate of the script.
                gate = Bridge.gate(self.bridge, "0" * 16, Client())
                known[part] = await gate.values.project(part.value)
            elif attack.path == "echoed" and isinstance(part.value, str):
                try:
                    known[part] = (await guest.call("src", "give", {"value": part.value}))["value"]
                except RefusedError:
                    known[part] = part.value
            else:
                known[part] = await self.bridge.latest.values.project(part.value)
            if part.value == PEM and "DROP" not in known[part]:
                self.outcome.mistaken.append(PEM)
            if isinstance(part, Erased):
                self.bridge.latest.values._references.erase(str(known[part]).rpartition("/")[2])
        return mapped(
            attack.arguments,
            lambda text: joined([known[part] if part in known else _told(part) for part in text.parts]),
        )

    async def contained(self) -> None:
        """The attacks of a script, each in a container of its own, by what the guest offers a script."""
        for number, attack in enumerate(self.case.attacks):
            await self._before(attack)
            seen = self._begin(attack, number)
            record = await self.bridge.run(code_of(attack), asker=self.client, servers=self.case.servers)
            told = json.loads(record.stdout.decode().splitlines()[-1]) if record.status == "success" else {}
            seen.error = told.get("error") or (None if told else record.status)
            traces = told.get("traces", [])
            seen.executions += [record.execution, *traces]
            self._end(seen)
            if attack.path == "left" and traces:
                seen.left = traces[0]
                await self._go_on_with(seen)

    # --- programs ---

    async def programs(self) -> None:
        for number, attack in enumerate(self.case.attacks):
            await self._before(attack)
            seen = self._begin(attack, number)
            if attack.path in {"operators", "by a step"} and number < len(operators(self.case)):
                seen.program = f"ops{number}"
            try:
                record = await self._programmed(attack, seen)
                seen.error = _error_of(record)
            except BridgeError as exc:
                seen.error = exc.code
            self._end(seen)

    async def _programmed(self, attack: Attack, seen: Seen) -> dict[str, Any]:
        program, context = program_of(attack)
        payload = None
        if attack.path == "saved":
            await self.bridge.programs.library.save("saved", program, LOCAL_PRINCIPAL.name)
            program = running("saved", context)
        elif attack.path in {"operators", "by a step", "copied"}:
            context = call_of(attack, written=False)[1]
            program = operators(self.case).get(f"ops{self.outcome.seen.index(seen)}", program)
            if seen.program is not None:
                program = running(seen.program, context) if attack.path == "by a step" else seen.program
        elif attack.path == "resumed":
            payload, context = context, {}
        asker = None if attack.path == "suspended" else self.client
        record = await self.bridge.run_program(program, context, asker=asker)
        seen.executions.append(record["trace_id"])
        if payload is not None:
            return await self._resumed(record, Resume(payload), seen)
        if attack.path == "suspended" and record["status"] == "suspended":
            return await self._decided(record, seen)
        return record

    async def _decided(self, record: dict[str, Any], seen: Seen) -> dict[str, Any]:
        """A person decides elsewhere, and somebody goes on."""
        seen.arrivals += self.world.arrivals()
        store = self.bridge.programs.store
        change = seen.attack.change
        if change is not None and change.when == "suspended":
            self.tampered = True
            await self.world.change(self.case.server, change)
        for question in await approvals.approval_requests(store, LOCAL_PRINCIPAL.name, record["trace_id"]):
            told = question.question
            seen.shown.append(Shown(told["tool"], told["arguments"], approved=self.case.person is True))
            if self.case.person is not None:
                await approvals.decide(store, question, approved=self.case.person, by="anna", comment=None)
        return await self._resumed(record, None, seen)

    async def _resumed(self, record: dict[str, Any], event: Resume | None, seen: Seen) -> dict[str, Any]:
        if self.case.later is not None:
            self._use(self.case.later)
            seen.policy = self.policy
        asker = None if seen.attack.path == "suspended" else self.client
        found = await self.bridge.resume_execution(record["trace_id"], event, asker=asker)
        with contextlib.suppress(BridgeError):
            # Once more: what has been done isn't done again.
            await self.bridge.resume_execution(record["trace_id"], event, asker=asker)
        return found

    # --- look-alikes ---

    async def look_alikes(self) -> None:
        """An agent gives its program a name that passes for the operator's, and another that doesn't."""
        for name in (self.case.alike, "shopping"):
            program = {"name": name if self.case.attacks[0].path == "run" else "shopping", "steps": [GIVE]}
            try:
                if self.case.attacks[0].path == "run":
                    await self.bridge.run_program(program)
                else:
                    await self.bridge.programs.library.save(name, program, LOCAL_PRINCIPAL.name)
            except BridgeError as exc:
                if name == "shopping":
                    self.outcome.refused.append(f"{name}: {exc}")
            else:
                if name != "shopping":
                    self.outcome.passed_off.append(name)
        self.world.arrivals()

    # --- keys ---

    async def keys(self) -> None:
        """An agent uses a key for what the operator then uses it for."""
        (attack,) = self.case.attacks
        self.world.runs += 1
        key = f"order {self.world.runs}"
        by_agent = self._begin(attack, 0)
        try:
            by_agent.executions += await self._keyed_by_agent(attack, key, by_agent)
        except (BridgeError, RefusedError) as exc:
            by_agent.error = exc.code
        self._end(by_agent)
        seen = self._begin(attack, 1, None if attack.path == "script" else "ops0")
        try:
            if attack.path == "script":
                execution = (await self._keyed_script(attack, key, seen, OPERATOR)).execution
            else:
                context = call_of(attack, written=False)[1]
                record = await self.bridge.run_program("ops0", context, key, asker=self.client, **OPERATOR)
                execution, seen.error = record["trace_id"], _error_of(record)
        except BridgeError as exc:
            seen.error = exc.code
        else:
            seen.executions.append(execution)
            self.outcome.spent = execution in by_agent.executions
        self._end(seen)

    async def _keyed_by_agent(self, attack: Attack, key: str, seen: Seen) -> list[str]:
        """What an agent does with a key; the executions that it has by that."""
        context = call_of(attack, written=False)[1]
        if attack.path == "script":
            return [(await self._keyed_script(attack, key, seen)).execution]
        asked: Any = "ops0" if attack.path in {"by name", "narrowed"} else operators(self.case)["ops0"]
        if attack.path == "without a sandbox":
            return [(await self.bridge.run_program(asked, context, key, asker=self.client))["trace_id"]]
        if asked == "ops0":
            seen.program = "ops0"
        records: list[dict[str, Any]] = []

        async def code(guest: Guest) -> None:
            with contextlib.suppress(RefusedError):
                records.append(await guest.drive(asked, context, key))

        self.world.engine.code = code
        servers = [] if attack.path == "narrowed" else None
        self.outcome.narrowed = servers is not None
        await self.bridge.run(f"case {self.world.runs}", servers=servers, asker=self.client)
        return [record["trace_id"] for record in records]

    async def _keyed_script(self, attack: Attack, key: str, seen: Seen, starter: Any = NOBODY) -> ExecutionRecord:
        async def code(guest: Guest) -> None:
            try:
                await self._scripted(guest, attack, seen)
            except RefusedError as exc:
                seen.error = exc.code

        self.world.engine.code = code
        return await self.bridge.run(f"case {self.world.runs}", key=key, asker=self.client, **starter)


def _told(part: Any) -> Any:
    return f"vault://secret/{part.name}" if isinstance(part, Secret) else clear(part)


def _error_of(record: dict[str, Any]) -> str | None:
    """The code that the attack's step has ended with."""
    codes = [row.get("code") for row in record.get("steps", ()) if row.get("code")]
    return codes[0] if codes else record.get("code") or (record["status"] if record["status"] != "success" else None)
