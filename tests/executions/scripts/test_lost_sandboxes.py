"""Sandboxes that something else than their script ends: what was done is done once, and no key is spent on it."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from claimed_sandboxes import READY, Claimed, Pipe, Silent, report, told
from crash_fixtures import BOUNDED, LONG
from execution_fixtures import Source, printed, source, until

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import approvals
from mcp_bridge.executions.scripts.answer_order import AnswerOrder
from mcp_bridge.executions.scripts.held_calls import HeldCalls
from mcp_bridge.executions.scripts.lost_sandboxes import LOST_CODES, MAX_LOST
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.host import sandbox_run, script_activity
from mcp_bridge.host.channel import HostChannel
from mcp_bridge.host.sandbox_run import SandboxRun
from mcp_bridge.host.warm_pool import WarmPool
from mcp_bridge.kernel.events import Resume
from mcp_bridge.sandbox import cli_engine, container_monitors
from mcp_bridge.sandbox.cli_engine import CliEngine
from mcp_bridge.sandbox.engine import ExitStatus
from mcp_bridge.sandbox.isolation_flags import RuntimeChoice
from mcp_bridge.sandbox.oci import bundle_config
from mcp_bridge.sandbox.oci import engine as oci_engine
from mcp_bridge.sandbox.oci.engine import OciEngine, OciProcess
from mcp_bridge.wire import messages

if TYPE_CHECKING:
    from mcp_bridge.sandbox.cli_engine import CliProcess

TOOLS = '''
import anyio
from pathlib import Path

import mcp_bridge

HERE = Path(__file__).parent


@mcp_bridge.tool
async def write(text: str, seconds: float = 0.0, hold: bool = False) -> str:
    """Write a line; how it ended."""
    await anyio.sleep(seconds)
    if hold:
        (HERE / "held").touch()
        while not (HERE / "released").exists():
            await anyio.sleep(0.01)
    with (HERE / "written").open("a") as file:
        file.write(f"{text}\\n")
    return f"wrote {text}"


@mcp_bridge.tool
async def careful(text: str) -> str:
    """As `write`, when a person has approved of it."""
    return await write(text)


@mcp_bridge.tool
async def later(text: str) -> str:
    """As `write`; what has come of it is said later."""
    await write(text)
    return mcp_bridge.PENDING
'''

HEAD = "import asyncio, os, time\nfrom mcp.servers import local\nfrom mcp import programs\n"
JAVASCRIPT_HEAD = 'import { local } from "mcp/servers";\n'


class Desk:
    """A bridge with a tool that must not be called twice, and the ways to end its sandboxes from outside."""

    def __init__(self, folder: Path, bridge: object, started: list[CliProcess | OciProcess]) -> None:
        self.folder, self.bridge, self.started, self.language = folder, bridge, started, "python"
        self.running = 0
        """How many times a script has said that it runs."""
        self.hasty = False
        """Whether an execution's first client is soon given up: the test removes its container. Another's may be slow to leave."""

    @property
    def written(self) -> list[str]:
        path = self.folder / "written"
        return path.read_text().splitlines() if path.exists() else []

    async def run(self, code: Source, key: str | None = None):
        def count(*_):
            self.running += 1

        head = HEAD if self.language == "python" else JAVASCRIPT_HEAD
        code = head + source(code, self.language)
        return await self.bridge.run(code, key=key, progress=count, language=self.language)

    async def status(self, execution: str) -> str:
        stored = await self.bridge.programs.store.execution(execution)
        assert stored is not None
        assert stored.principal == LOCAL_PRINCIPAL.name
        return stored.status

    async def end(self, how: str, process: CliProcess | OciProcess | None = None) -> bool:
        """End what holds a sandbox, from outside; whether its engine, if that is asked, could. What is gone can't be ended."""
        process = process or self.started[-1]
        pid = await anyio.to_thread.run_sync(PIDS[how], process) if how in PIDS else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        elif how.startswith("engine:"):
            words = how.removeprefix("engine:").split()
            if isinstance(process, OciProcess):
                return await _end_directly(process, words[0])
            argv = [*process._engine.choice.command, *words, await process.container_id()]
            return not (await anyio.run_process(argv, check=False)).returncode
        return True


async def _end_directly(process: OciProcess, word: str) -> bool:
    """What engines have commands for."""
    if word == "pause":
        os.kill(_first(process), signal.SIGSTOP)
    else:
        await getattr(process._engine, {"kill": "kill", "rm": "remove"}[word])(await process.container_id())
    return True


async def _gone(process: CliProcess | OciProcess) -> None:
    """Wait until nothing of ours waits for a container any more."""
    await (process.wait() if isinstance(process, OciProcess) else process._child.wait())


def _is_known(process: CliProcess | OciProcess) -> bool:
    """Whether the engine knows of a container already."""
    return process._started if isinstance(process, OciProcess) else process._read_id() is not None


def _parent(process: CliProcess | OciProcess) -> int:
    """The engine's client, or the supervisor."""
    return process._supervisor.owner.pid if isinstance(process, OciProcess) else process._child._process.pid


def _monitor(process: CliProcess) -> int | None:
    text = container_monitors.text_of(process._folder / container_monitors.MONITOR_NAME)
    return int(text) if text else None


def _first(process: CliProcess | OciProcess) -> int | None:
    if isinstance(process, OciProcess):
        return _first_of_supervisor(process)
    monitor = _monitor(process)
    found = subprocess.run(["pgrep", "-P", str(monitor)], capture_output=True, text=True, check=False).stdout.split()
    return int(found[0]) if found else None


def _first_of_supervisor(process: OciProcess) -> int | None:
    """The supervisor's child that has the number, in its namespace, that the runtime has written down."""
    folder = process._engine._containers / process._id
    inside = container_monitors.text_of(folder / "pid")
    parent = _parent(process)
    for child in container_monitors.text_of(Path(f"/proc/{parent}/task/{parent}/children")).split():
        for line in container_monitors.text_of(Path(f"/proc/{child}/status")).splitlines():
            if line.startswith("NSpid:") and inside and line.split()[2] == inside:
                return int(child)
    return None


PIDS = {"client": _parent, "monitor": _monitor, "first process": _first}

WAYS = ("engine:kill", "engine:kill --signal=KILL", "engine:rm --force", "client", "monitor", "first process")

REMOVES = "engine:rm --force"
"""Podman's client waits for some ten seconds for a container that is removed under its hands, and so does the bridge."""


HASTY_SECONDS = 1.0


@contextlib.asynccontextmanager
async def opened(sandboxes, folder, monkeypatch, **settings):
    tools = folder / "tools"
    tools.mkdir()
    # Imported into this process: each test's is another one.
    module = f"desk_{secrets.token_hex(8)}"
    (tools / f"{module}.py").write_text(TOOLS)
    state = folder / "state"
    state.mkdir(mode=0o700)
    started = []
    driver, patience = type(sandboxes.prepared.engine), cli_engine.EXIT_SECONDS
    start = driver.start

    async def noted(self, spec):
        seconds = HASTY_SECONDS if desk.hasty and not started else patience
        monkeypatch.setattr(cli_engine, "EXIT_SECONDS", seconds)
        process = await start(self, spec)
        started.append(process)
        return process

    monkeypatch.setattr(driver, "start", noted)
    tables = {"tools": {"modules": [module], "path": [str(tools)], "entry_points": False}}
    tables |= {"policy": {"rules": [{"tools": ["local.careful"], "effect": "approve"}]}}
    governance = load_governance(tables, None, folder, state)
    async with sandboxes.open(governance=governance, state_dir=state, **settings) as bridge:
        desk = Desk(tools, bridge, started)
        yield desk


@pytest.fixture
def open_desk(sandboxes, tmp_path, monkeypatch):
    return lambda **settings: opened(sandboxes, tmp_path, monkeypatch, **settings)


@pytest.fixture
def open_either_desk(bilingual, tmp_path, monkeypatch):
    """As `open_desk`, for scripts in one of the languages."""

    @contextlib.asynccontextmanager
    async def in_language(**settings):
        async with opened(bilingual.sandboxes, tmp_path, monkeypatch, **settings) as desk:
            desk.language = bilingual.language
            yield desk

    return in_language


def _ways(engine: CliEngine | OciEngine) -> list[str]:
    """The ways that there are with this engine."""
    lacking = {"monitor"} if isinstance(engine, OciEngine) else set()
    if isinstance(engine, CliEngine) and not engine.has_monitors:
        lacking = {"monitor", "first process"}
    return [how for how in WAYS if how not in lacking]


def only_podman(desk: Desk, how: str) -> None:
    if how not in _ways(desk.bridge.sandboxes.prepared.engine):
        pytest.skip("this engine's monitors are not told by their process ids")


HELD = {
    "python": "print(await local.write(text='a'))\nprint(await local.write(text='b', hold=True))\n"
    "print(await local.write(text='c'))",
    "javascript": "for (const given of [{text: 'a'}, {text: 'b', hold: true}, {text: 'c'}]) console.log(await local.write(given))",
}


@pytest.mark.parametrize("key", ["key", None])
@pytest.mark.parametrize("how", WAYS)
async def test_a_sandbox_that_is_lost_in_mid_call_is_lost_to_nobody(open_either_desk, how, key):
    async with open_either_desk() as desk:
        only_podman(desk, how)
        desk.hasty = how == REMOVES
        records = []
        async with anyio.create_task_group() as tasks:

            async def run():
                records.append(await desk.run(HELD, key))

            tasks.start_soon(run)
            await until((desk.folder / "held").exists)
            await desk.end(how)
            if how not in {"monitor", REMOVES}:
                await _gone(desk.started[-1])
            # Its outcome is waited for, although nobody is there to be told.
            (desk.folder / "released").touch()
        [record] = records
        assert printed(record) == "wrote a\nwrote b\nwrote c\n"
        assert desk.written == ["a", "b", "c"]
        assert record.notices == [
            "its sandbox was lost once, and not by the script's doing: it was run again from its record"
        ]
        assert len(desk.started) == 2
        assert await desk.status(record.execution) == "success"
        if key:
            assert (await desk.run(HELD, key)).to_json() == record.to_json()
        assert desk.written == ["a", "b", "c"]


@pytest.mark.parametrize("key", ["key", None])
async def test_a_program_goes_on_where_its_sandbox_was_lost(open_desk, key):
    async with open_desk() as desk:
        steps = [
            {"id": f"s{n}", "type": "tool", "tool": "write", "args": {"text": f"s{n}", "hold": n == 1}}
            for n in range(3)
        ]
        code = f"record = await programs.run({{'steps': {steps}}})\nprint(record.status)"
        records = []
        async with anyio.create_task_group() as tasks:

            async def run():
                records.append(await desk.run(code, key))

            tasks.start_soon(run)
            await until((desk.folder / "held").exists)
            await desk.end("engine:kill")
            await _gone(desk.started[-1])
            (desk.folder / "released").touch()
        assert printed(records[0]) == "success\n"
        assert desk.written == ["s0", "s1", "s2"]


async def test_a_key_is_not_spent_on_a_sandbox_that_is_lost_each_time(open_desk):
    async with open_desk() as desk:
        code = "print(await local.write(text='a'))\nprogress(1)\ntime.sleep(60)"

        async def end_all():
            for number in range(MAX_LOST + 1):
                await until(lambda number=number: desk.running > number)
                await desk.end("engine:kill")

        async def lost(key):
            desk.running = 0
            desk.started.clear()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(end_all)
                return await desk.run(code, key)

        record = await lost("key")
        assert (record.status, record.error["code"], len(desk.started)) == (
            "sandbox_lost",
            "sandbox_lost",
            MAX_LOST + 1,
        )
        assert await desk.status(record.execution) == "interrupted"
        assert desk.written == ["a"]
        # Whoever comes with the key goes on: here until the script's own time is up.
        again = await desk.bridge.run(HEAD + code, key="key", timeout=2)
        assert (again.execution, again.status) == (record.execution, "timeout")
        assert desk.written == ["a"]
        record = await lost(None)
        assert (record.status, await desk.status(record.execution)) == ("sandbox_lost", "sandbox_lost")
        assert desk.written == ["a", "a"]


async def test_a_script_that_makes_itself_look_lost_gains_nothing(open_either_desk):
    async with open_either_desk() as desk:
        # As if process 1 had heard nothing from the host.
        code = {
            "python": "print(await local.write(text='a'))\nos._exit(79)",
            "javascript": "console.log(await local.write({text: 'a'}));\nprocess.reallyExit(79)",
        }
        record = await desk.run(code, "key")
        assert (record.status, len(desk.started)) == ("sandbox_lost", MAX_LOST + 1)
        assert desk.written == ["a"]


async def test_a_script_that_does_otherwise_when_it_is_run_again_does_nothing_twice(open_desk):
    async with open_desk() as desk:
        code = "print(await local.write(text=os.urandom(4).hex()))\nawait local.write(text='b', hold=True)"
        records = []
        async with anyio.create_task_group() as tasks:

            async def run():
                records.append(await desk.run(code))

            tasks.start_soon(run)
            await until((desk.folder / "held").exists)
            await desk.end("engine:kill")
            await _gone(desk.started[-1])
            (desk.folder / "released").touch()
        [record] = records
        assert (record.status, record.error["code"]) == ("error", "divergence")
        assert await desk.status(record.execution) == "error"
        assert len(desk.written) == 2


OWN = {
    "left": ({"python": "os._exit(5)", "javascript": "process.reallyExit(5)"}, "killed", "interpreter_exited"),
    "left as if killed": ({"python": "os._exit(137)", "javascript": "process.reallyExit(137)"}, "killed", "interpreter_exited"),
    "killed": ({"python": "os.kill(os.getpid(), 9)", "javascript": "process.kill(process.pid, 9)"}, "killed", "interpreter_killed"),
    "crashed": ({"python": "os.kill(os.getpid(), 11)", "javascript": "process.kill(process.pid, 11)"}, "killed", "interpreter_killed"),
    "out of memory": (
        {"python": "x = []\nwhile True: x.append(bytes(16 << 20))", "javascript": "const x = []; while (true) x.push(Buffer.alloc(16 << 20, 1))"},
        "out_of_memory", "out_of_memory",
    ),
    # In JavaScript, what stands between Node and the host is killed.
    "channel closed": (
        {
            "python": "for n in range(3, 1024):\n    try: os.close(n)\n    except OSError: pass\ntime.sleep(9)",
            "javascript": "process.kill(process.ppid, 9); await new Promise((done) => setTimeout(done, 9000))",
        },
        None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", OWN)
async def test_what_the_script_does_itself_is_final_and_told_as_it_was(open_either_desk, end):
    async with open_either_desk() as desk:
        codes, status, error = OWN[end]
        code = {
            "python": f"await local.write(text='a')\n{codes['python']}",
            "javascript": f"await local.write({{text: 'a'}});\n{codes['javascript']}",
        }
        record = await desk.run(code, "key")
        assert (record.status, len(desk.started)) == (status or record.status, 1), record.error
        assert status or record.status == {"python": "channel_closed", "javascript": "killed"}[desk.language]
        if error is not None:
            assert record.error["code"] == error
        assert (await desk.run(code, "key")).to_json() == record.to_json()
        assert desk.written == ["a"]


SIGNALS = """
import signal
for number in range(1, 65):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        try:
            os.kill(1, number)
        except OSError:
            pass
time.sleep(0.5)
print("here")
"""


async def test_nothing_inside_ends_process_1(open_desk):
    async with open_desk() as desk:
        assert printed(await desk.run(SIGNALS)) == "here\n"
        assert len(desk.started) == 1


LARGE_CHILD = """
import subprocess, sys
child = subprocess.run([sys.executable, "-c", "x = []\\nwhile True: x.append(bytes(16 << 20))"])
print(child.returncode != 0)
time.sleep(2)
print(await local.write(text="a", hold=True))
"""


@pytest.mark.parametrize("how", ["client", "engine:kill", "first process"])
async def test_a_child_that_is_killed_for_memory_is_no_cause_of_what_comes_later(open_desk, how, monkeypatch):
    # Half of what the script sleeps after its child's end.
    monkeypatch.setattr(cli_engine, "OOM_SECONDS", 1.0)
    beats, hear = [], SandboxRun._take

    def heard(self, report, size):
        hear(self, report, size)
        beats.append(isinstance(report, messages.InitBeat))

    monkeypatch.setattr(SandboxRun, "_take", heard)
    async with open_desk(memory=128 << 20) as desk:
        only_podman(desk, how)
        records = []
        async with anyio.create_task_group() as tasks:

            async def run():
                records.append(await desk.run(LARGE_CHILD))

            tasks.start_soon(run)
            await until((desk.folder / "held").exists)
            if how == "first process":
                # The first beat after the child's end is old enough when the second comes.
                beats.clear()
                await until(lambda: sum(beats) > 1)
            await desk.end(how)
            await _gone(desk.started[-1])
            (desk.folder / "released").touch()
        assert printed(records[0]) == "True\nwrote a\n"
        assert desk.written == ["a"]


GROUPS = Path("/sys/fs/cgroup/memory")


def _is_removed(group: str) -> bool:
    """Whether a control group is gone, of every controller; an engine may leave empty ones beneath it."""
    found = [path for top in GROUPS.parent.glob(f"*/{group}") for path in (top, *top.rglob("*")) if path.is_dir()]
    for path in sorted(found, reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()
    return not any(path.exists() for path in found)


async def test_memory_that_the_machine_hasnt_got_is_no_fault_of_the_scripts(open_desk, monkeypatch):
    async with open_desk() as desk:
        if (
            os.geteuid()
            or not (GROUPS / "memory.limit_in_bytes").exists()
            or desk.bridge.sandboxes.prepared.engine.name == "docker"
        ):
            pytest.skip("needs root, no docker and control groups v1: to be the machine that has none left")
        group = GROUPS / f"mcp-bridge-test-{os.getpid()}"
        group.mkdir()
        try:
            (group / "memory.limit_in_bytes").write_text(str(96 << 20))
            argv = cli_engine.run_argv

            def in_group(*args, **options):
                words = argv(*args, **options)
                return [
                    *words[: words.index("run") + 1],
                    f"--cgroup-parent=/{group.name}",
                    *words[words.index("run") + 1 :],
                ]

            monkeypatch.setattr(cli_engine, "run_argv", in_group)
            render = bundle_config.render

            def rendered_in_group(*args, cgroup, **options):
                return render(*args, cgroup=f"/{group.name}{cgroup}", **options)

            monkeypatch.setattr(bundle_config, "render", rendered_in_group)
            code = (
                "await local.write(text='a')\nx = []\nwhile len(x) < 20: x.append(b'x' * (16 << 20))\nprint('enough')"
            )

            async def more():
                await until(lambda: len(desk.started) > 1)
                (group / "memory.limit_in_bytes").write_text(str(1 << 30))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(more)
                record = await desk.run(code, "key")
            assert printed(record) == "enough\n"
            assert len(desk.started) > 1
            assert desk.written == ["a"]
        finally:
            await until(lambda: _is_removed(group.name))


async def test_process_1_says_whose_memory_was_wanting():
    killed = {"code": 137, "signal": 9, "oom_kills": 1}
    assert (await told(Claimed([report("init.exited", **killed)], READY))).status == "out_of_memory"
    assert (await told(Claimed([report("init.exited", **killed, limit_hits=2)], READY))).status == "out_of_memory"
    record = await told(Claimed([report("init.exited", **killed, limit_hits=0)], READY))
    assert record.status == "sandbox_lost"
    assert "the machine was out of memory" in record.error["message"]


async def test_what_was_killed_for_memory_before_is_no_cause(monkeypatch):
    monkeypatch.setattr(sandbox_run, "OOM_SECONDS", 0.0)
    beat = report("init.beat", oom_kills=1)
    killed = {"code": 137, "signal": 9, "limit_hits": 1}
    record = await told(Claimed([beat, report("init.exited", **killed, oom_kills=1)], READY))
    assert (record.status, record.error["code"]) == ("killed", "interpreter_killed")
    assert (await told(Claimed([beat, report("init.exited", **killed, oom_kills=2)], READY))).status == "out_of_memory"
    for kills, status in ((1, "sandbox_lost"), (2, "out_of_memory")):
        process = Claimed([beat], READY)

        async def wait(kills=kills):
            await anyio.sleep(0.1)
            return ExitStatus(137, oom_killed=True, oom_kills=kills)

        process.wait = wait
        assert (await told(process)).status == status


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (ExitStatus(None), "sandbox_lost"),
        (ExitStatus(137), "sandbox_lost"),
        (ExitStatus(143), "sandbox_lost"),
        (ExitStatus(127), "sandbox_lost"),
        (ExitStatus(137, oom_killed=True), "out_of_memory"),
        (ExitStatus(5), "killed"),
        (ExitStatus(77), "channel_closed"),
    ],
)
async def test_without_a_word_of_process_1_the_engine_says_what_is_known(ended, status):
    process = Claimed([], READY)

    async def wait():
        await anyio.sleep(0.1)
        return ended

    process.wait = wait
    assert (await told(process)).status == status


async def test_a_sandbox_whose_end_the_engine_does_not_report_in_time_is_no_fault_of_the_scripts(monkeypatch):
    monkeypatch.setattr(sandbox_run, "EXIT_AFTER_CLOSE_SECONDS", 0.1)
    process = Claimed([], READY)
    process.wait = anyio.sleep_forever
    assert (await told(process)).status == "sandbox_lost"
    # Process 1 is there: the script has closed its channel.
    process.stdout, process.stderr = Pipe(READY), Silent()
    assert (await told(process)).status == "channel_closed"


async def test_a_script_is_run_again_though_the_supervisor_hangs(open_desk, monkeypatch):
    monkeypatch.setattr(oci_engine, "EXIT_SECONDS", 1.0)
    async with open_desk() as desk:
        if not isinstance(desk.bridge.sandboxes.prepared.engine, OciEngine):
            pytest.skip("this engine has no supervisor")
        records = []
        async with anyio.create_task_group() as tasks:

            async def run():
                records.append(await desk.run(HELD, "key"))

            tasks.start_soon(run)
            await until((desk.folder / "held").exists)
            first = _first(desk.started[-1])
            os.kill(_parent(desk.started[-1]), signal.SIGSTOP)
            os.kill(first, signal.SIGKILL)
            (desk.folder / "released").touch()
        assert printed(records[0]) == "wrote a\nwrote b\nwrote c\n"
        assert desk.written == ["a", "b", "c"]


async def test_a_sandbox_that_is_lost_before_its_script_begins_is_said_to_be():
    process = Claimed([])

    async def wait():
        return ExitStatus(None)

    process.wait = wait
    with pytest.raises(BridgeError) as caught:
        await told(process)
    assert caught.value.code == "sandbox_start_failed"
    assert "was lost by its engine" in caught.value.message
    assert "None" not in caught.value.message


@pytest.mark.parametrize(("says", "is_told"), [("echo 0123", True), ("true", False), ("exit 1", False)])
async def test_docker_is_asked_whether_a_container_was_out_of_memory(tmp_path, says, is_told):
    command = tmp_path / "docker"
    command.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\n{says}\n')
    command.chmod(0o755)
    choice = RuntimeChoice("docker", str(command), "28.2.2", rootless=False)
    engine = cli_engine.CliEngine(choice, tmp_path / "state")
    assert await engine.was_out_of_memory("0123", 1.5) is is_told
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:2] == ["events", "--since=1.500000000"]
    assert {"--filter=container=0123", "--filter=event=oom"} <= set(asked)


async def test_a_sandbox_that_has_fallen_silent_lets_its_effects_come_to_their_end(monkeypatch):
    monkeypatch.setattr(sandbox_run, "SILENCE_SECONDS", 0.2)
    process = Claimed([], READY)
    process.stdout = Silent(READY)
    assert (await told(process)).error["code"] in LOST_CODES


async def test_a_sandbox_that_is_paused_is_given_up_and_its_script_goes_on_in_another(open_desk, monkeypatch):
    # Process 1 says every five seconds that it lives.
    monkeypatch.setattr(sandbox_run, "SILENCE_SECONDS", 20.0)
    given_up, hang_up = anyio.Event(), HostChannel.hang_up

    def noted(self):
        given_up.set()
        hang_up(self)

    monkeypatch.setattr(HostChannel, "hang_up", noted)
    async with open_desk() as desk:
        records = []
        async with anyio.create_task_group() as tasks:

            async def run():
                records.append(await desk.run(HELD, "key"))

            tasks.start_soon(run)
            await until((desk.folder / "held").exists)
            # Rootless Podman can pause nothing on control groups v1. What its host hears of is process 1 alone.
            assert await desk.end("engine:pause") or await desk.end("engine:kill --signal=STOP")
            await given_up.wait()
            (desk.folder / "released").touch()
        assert printed(records[0]) == "wrote a\nwrote b\nwrote c\n"
        assert desk.written == ["a", "b", "c"]


async def test_a_sandbox_that_does_not_answer_in_time_spends_no_key(open_desk):
    async with open_desk(sandbox_start_timeout=0.001) as desk:
        record = await desk.run(HELD, "key")
        assert record.error["code"] == "sandbox_start_timeout"
        assert await desk.status(record.execution) == "interrupted"
        record = await desk.run(HELD)
        assert await desk.status(record.execution) == "timeout"
        assert desk.written == []


async def test_a_replay_is_made_again_when_its_sandbox_is_lost(open_desk, monkeypatch):
    async with open_desk() as desk:
        record = await desk.run("print(await local.write(text='a'))")
        stored = await desk.bridge.programs.store.execution(record.execution)
        before = len(desk.started)
        answer, asked = AnswerOrder.answer, anyio.Event()

        async def held(self, known, request):
            if not asked.is_set():
                # The first of the two goes no further, however late it is ended.
                asked.set()
                await anyio.sleep_forever()
            return await answer(self, known, request)

        monkeypatch.setattr(AnswerOrder, "answer", held)

        async def end():
            await asked.wait()
            await desk.end("engine:kill")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end)
            again = await desk.bridge.replay_execution(stored)
        assert again.difference is None
        assert len(desk.started) == before + 2
        assert desk.written == ["a"]


# --- at any moment ---

CODE = """
import subprocess, sys
for n in range(3):
    print(await local.write(text=f"one {n}", seconds=0.02))
print(sorted(await asyncio.gather(*(local.write(text=f"many {n}", seconds=0.05) for n in range(6)))))
steps = [{"id": f"s{n}", "type": "tool", "tool": "write", "args": {"text": f"step {n}", "seconds": 0.02}} for n in range(3)]
print((await programs.run({"steps": steps})).status)
time.sleep(0.1)
print(await local.write(text="last"))
"""

ALL = sorted(
    [*(f"one {n}" for n in range(3)), *(f"many {n}" for n in range(6)), *(f"step {n}" for n in range(3)), "last"]
)


@pytest.fixture
def checked_out(monkeypatch):
    """The containers that were taken from a warm pool; None where it had none."""
    found, take = [], WarmPool.take

    async def noted(self, hash_seed=None):
        taken = await take(self, hash_seed)
        found.append(None if taken is None else taken.process)
        return taken

    monkeypatch.setattr(WarmPool, "take", noted)
    return found


@BOUNDED
@pytest.mark.parametrize("pooled", [False, True], ids=["started for it", "from the pool"])
async def test_whatever_is_killed_and_when_each_effect_happens_once(
    open_desk, sandboxes, monkeypatch, checked_out, pooled
):
    monkeypatch.setattr("execution_fixtures.DEADLINE_SECONDS", 7200.0 if LONG else 170.0)
    seed = int(os.environ.get("MCP_BRIDGE_TEST_SEED", "0")) or time.time_ns() % (1 << 30)
    rng = random.Random(seed)  # noqa: S311
    engine = sandboxes.prepared.engine
    ways = _ways(engine)
    lost = 0
    kills = 200 if LONG else 8
    async with open_desk(pool_min=2 * pooled, pool_max=4 * pooled) as desk:
        if pooled:
            await desk.bridge.sandboxes.start_ahead()
        for number in range(4 * kills):
            if number >= kills and lost > kills / 5:
                # On a busy machine many come too early or too late: more are tried.
                break
            how, delay, key = rng.choice(ways), rng.uniform(0, 1.5), rng.choice([None, f"key {number}"])
            case = f"seed {seed}, kill {number}: {how} after {delay:.3f} s, key {key!r}"
            (desk.folder / "written").unlink(missing_ok=True)
            desk.started.clear()
            checked_out.clear()
            desk.hasty = how == REMOVES

            async def end(how=how, delay=delay, desk=desk):
                if pooled:
                    await until(lambda: checked_out)
                # The first of this execution, whatever the pool starts beside it.
                process = checked_out[0] if pooled else None
                if process is None:
                    await until(lambda: desk.started)
                    process = desk.started[-1 if pooled else 0]
                await anyio.sleep(delay)
                if how.startswith("engine:") and not _is_known(process):
                    return
                await desk.end(how, process)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(end)
                record = await desk.run(CODE, key)
            assert record.status == "success", (case, record.error)
            assert sorted(desk.written) == ALL, case
            lines = printed(record).splitlines()
            assert (lines[:3], lines[-2:]) == ([f"wrote one {n}" for n in range(3)], ["success", "wrote last"]), case
            lost += bool(record.notices)
            if key:
                assert (await desk.run(CODE, key)).to_json() == record.to_json(), case
                assert sorted(desk.written) == ALL, case
    assert lost > kills / 5


# --- while it waits ---

WAITS = """
print(await local.write(text="a"))
print(await asyncio.gather(local.write(text="b"), local.{}(text="c")))
"""


@pytest.fixture
def held(monkeypatch):
    """Set when a call waits for what nobody can give it now. Its script doesn't come to rest by itself."""
    event = anyio.Event()
    add = HeldCalls.add

    def noted(self, call):
        add(self, call)
        event.set()

    monkeypatch.setattr(HeldCalls, "add", noted)
    monkeypatch.setattr(script_activity, "QUIET_SECONDS", 3600.0)
    return event


@BOUNDED
@pytest.mark.parametrize("key", ["key", None])
@pytest.mark.parametrize("tool", ["careful", "later"])
async def test_a_script_whose_sandbox_is_lost_while_it_waits_goes_on_when_that_has_come(open_desk, held, tool, key):
    code = WAITS.format(tool)
    async with open_desk() as desk:
        records = []

        async def first():
            records.append(await desk.run(code, key))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await held.wait()
            await until(lambda: "b" in desk.written)
            await desk.end("engine:kill")
        (record,) = records
        execution = record.execution
        assert (record.status, record.error["code"]) == (
            "suspended",
            "approval_needed" if tool == "careful" else "still_waiting",
        )
        assert await desk.status(execution) == "suspended"
        assert (f"waits-{execution}" in record.error["hint"]) == (key is None)
        assert len(desk.started) == 1
        store = desk.bridge.programs.store
        assert (await desk.run(code, key)).execution == execution
        assert len(desk.started) == 1, "nothing has come about"
        if tool == "careful":
            (question,) = await approvals.approval_requests(store, LOCAL_PRINCIPAL.name, execution)
            await approvals.decide(store, question, approved=True, by="anna", comment=None)
            last = await desk.run(code, key)
        else:
            await desk.bridge.resume_execution(execution, Resume("wrote c"))
            last = await desk.run(code, key)
        assert (last.execution, last.status) == (execution, "success")
        assert last.stdout == b"wrote a\n['wrote b', 'wrote c']\n"
        assert sorted(desk.written) == ["a", "b", "c"]
        assert (await desk.run(code, key)).execution == execution if key else True


class Person:
    """The client's, who looks at a question and says nothing."""

    def __init__(self, *, may_vanish=True):
        self.may_vanish, self.asked = may_vanish, anyio.Event()

    async def ask(self, question):
        self.asked.set()
        await anyio.sleep_forever()


async def run_until_asked(desk, code, key, person):
    """Begin a script, whose client goes when its person is asked."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: desk.bridge.run(HEAD + code, key=key, asker=person))
        await person.asked.wait()
        await until(lambda: "b" in desk.written)
        tasks.cancel_scope.cancel()


@BOUNDED
@pytest.mark.parametrize("key", ["key", None])
async def test_a_question_whose_client_has_gone_waits_for_anybody_else(open_desk, key):
    code = WAITS.format("careful") + "print(await local.write(text='d'))"
    async with open_desk() as desk:
        await run_until_asked(desk, code, key, Person())
        store = desk.bridge.programs.store
        (question,) = await approvals.approval_requests(store, LOCAL_PRINCIPAL.name)
        execution = question.approval.execution
        assert question.question["arguments"] == {"text": "c"}
        assert await desk.status(execution) == "suspended"
        # Whoever asks for it again is told what it waits for, and begins nothing anew.
        waits = await desk.run(code, key)
        assert (waits.execution, waits.status) == (execution, "suspended")
        assert (f"waits-{execution}" in waits.error["hint"]) == (key is None)
        await approvals.decide(store, question, approved=True, by="anna", comment=None)
        last = await desk.run(code, key)
        assert (last.execution, last.status) == (execution, "success")
        assert sorted(desk.written) == ["a", "b", "c", "d"]


async def test_a_question_of_a_script_that_was_run_again_waits_when_its_client_has_gone(open_desk):
    code = "print(await local.write(text='a'))\nawait asyncio.sleep(2)\nprint(await local.careful(text='c'))"
    async with open_desk() as desk:
        person = Person()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: desk.bridge.run(HEAD + code, asker=person))
            await until(lambda: "a" in desk.written)
            await desk.end("engine:kill")
            await until(lambda: len(desk.started) == 2)
            await until(person.asked.is_set)
            tasks.cancel_scope.cancel()
        store = desk.bridge.programs.store
        (question,) = await approvals.approval_requests(store, LOCAL_PRINCIPAL.name)
        await approvals.decide(store, question, approved=True, by="anna", comment=None)
        last = await desk.run(code)
        assert (last.execution, last.status) == (question.approval.execution, "success")
        assert sorted(desk.written) == ["a", "c"]


async def test_who_interrupts_the_command_that_asks_them_wants_no_more_of_it(open_desk):
    async with open_desk() as desk:
        await run_until_asked(desk, WAITS.format("careful"), None, Person(may_vanish=False))
        store = desk.bridge.programs.store
        assert await approvals.approval_requests(store, LOCAL_PRINCIPAL.name) == []
        (execution,) = await store.executions(LOCAL_PRINCIPAL.name, 10)
        assert execution.status == "cancelled"
