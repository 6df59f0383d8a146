"""Executions in containers that were started ahead: what one leaves no other finds, and what happens when they are killed."""

import contextlib
import errno
import json
import logging
import os
import random
import re
import signal
import time
from pathlib import Path

import anyio
import pytest
from execution_fixtures import printed, until

from mcp_bridge.errors import BridgeError
from mcp_bridge.host import sandboxes as sandboxes_module
from mcp_bridge.ledger.log import transaction
from mcp_bridge.sandbox.engine import EXECUTION_LABEL, STARTED_AHEAD

pytestmark = pytest.mark.xdist_group("pooled")

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))

IN_A_ROW = 2000 if LONG else 40

MARKED = "mcp-bridge-marker"

LOOK = f"""
import builtins, ctypes, gc, hashlib, json, os, random, secrets, sys, tempfile, threading, time, uuid
MARKED = {MARKED!r}
found = []
if hasattr(builtins, MARKED) or MARKED in sys.modules:
    found.append("memory")
for folder in ("/tmp", "/workspace", "/dev/shm", "/dev/mqueue", "/var/tmp", "/run"):
    if os.path.isdir(folder):
        found += [f"{{folder}}/{{name}}" for name in os.listdir(folder) if MARKED in name]
if MARKED in os.environ:
    found.append("environment")
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) not in (os.getpid(), os.getppid()):
        found.append("process " + open(f"/proc/{{pid}}/cmdline").read())
for kind in ("shm", "sem", "msg"):
    try:
        found += open("/proc/sysvipc/" + kind).read().splitlines()[1:]
    except OSError:
        pass
try:
    found += [line for line in open("/proc/keys").read().splitlines() if MARKED in line]
except OSError:
    pass
told = {{
    "parent": os.getppid(),
    "threads": threading.active_count(),
    "hash": hash(MARKED), "random": random.random(), "uuid": str(uuid.uuid4()), "secret": secrets.token_hex(),
    "name": next(tempfile._get_candidate_names()), "urandom": os.urandom(8).hex(),
    "state": hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
    "processor_seconds": time.process_time(),
}}
# And now leave as much behind as can be.
setattr(builtins, MARKED, True)
sys.modules[MARKED] = sys
os.environ[MARKED] = "1"
for folder in ("/tmp", "/workspace", "/dev/shm", "/dev/mqueue"):
    try:
        open(f"{{folder}}/{{MARKED}}", "w").close()
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
libc.shmget(0x6d6372, 4096, 0o1666)
libc.semget(0x6d6372, 1, 0o1666)
libc.msgget(0x6d6372, 0o1666)
libc.syscall(248, b"user", MARKED.encode(), b"x", 1, -5)
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
print(json.dumps([found, told]))
"""


async def pooled(bridge, count=1):
    """Wait until containers are ready."""
    await until(lambda: bridge.sandboxes.pool is not None and bridge.sandboxes.pool.ready >= count)


@pytest.mark.timeout(1800 if LONG else 180)
async def test_no_execution_finds_anything_of_another_and_all_that_is_random_differs(sandboxes):
    seen = {}
    async with sandboxes.open(pooled=True, bounded=False) as bridge:
        for _ in range(IN_A_ROW):
            # Each gets one of the pool, however busy the machine is.
            await pooled(bridge)
            found, told = json.loads(printed(await bridge.run(LOOK)))
            assert found == []
            assert told["parent"] == 1
            for name in ("hash", "random", "uuid", "secret", "name", "urandom", "state"):
                values = seen.setdefault(name, set())
                assert told[name] not in values, name
                values.add(told[name])
        figures = bridge.sandboxes.pool.figures
        assert figures.hits + figures.waits + figures.misses == IN_A_ROW
        assert figures.misses == 0


LOOK_IN_JAVASCRIPT = f"""
import fs from "node:fs";
import {{ spawn }} from "node:child_process";
import {{ randomUUID, randomBytes }} from "node:crypto";
const MARKED = {MARKED!r}, found = [];
if (globalThis[MARKED] !== undefined) found.push("memory");
for (const folder of ["/tmp", "/workspace", "/dev/shm", "/dev/mqueue", "/var/tmp", "/run"])
  if (fs.existsSync(folder)) found.push(...fs.readdirSync(folder).filter((name) => name.includes(MARKED)));
if (MARKED in process.env) found.push("environment");
for (const pid of fs.readdirSync("/proc").filter((name) => /^\\d+$/.test(name)))
  if (![1, process.pid, process.ppid].includes(Number(pid))) found.push("process " + fs.readFileSync(`/proc/${{pid}}/cmdline`));
for (const kind of ["shm", "sem", "msg"]) {{
  try {{ found.push(...fs.readFileSync(`/proc/sysvipc/${{kind}}`, "utf8").trim().split("\\n").slice(1)); }} catch {{}}
}}
globalThis[MARKED] = true;
process.env[MARKED] = "1";
for (const folder of ["/tmp", "/workspace", "/dev/shm", "/dev/mqueue"])
  try {{ fs.writeFileSync(`${{folder}}/${{MARKED}}`, ""); }} catch {{}}
spawn(process.execPath, ["-e", "setTimeout(() => {{}}, 600000)"], {{ detached: true, stdio: "ignore" }}).unref();
console.log(JSON.stringify([found, {{ random: Math.random(), uuid: randomUUID(), urandom: randomBytes(8).toString("hex") }}]));
"""


async def test_an_execution_in_one_language_finds_nothing_of_one_in_the_other_and_all_that_is_random_differs(both):
    seen = set()
    async with both.open(pooled=True, bounded=False) as bridge:
        for number in range(IN_A_ROW // 2):
            await pooled(bridge)
            language, code = ("python", LOOK) if number % 3 == 2 else ("javascript", LOOK_IN_JAVASCRIPT)
            found, told = json.loads(printed(await bridge.run(code, language=language)))
            assert found == [], language
            drawn = {told[name] for name in ("random", "uuid", "urandom")}
            assert not drawn & seen
            seen |= drawn
        assert bridge.sandboxes.pool.figures.misses == 0


async def test_concurrent_executions_find_nothing_of_each_other(sandboxes):
    async with sandboxes.open(pooled=True) as bridge:
        tokens = []

        async def run():
            found, told = json.loads(printed(await bridge.run(LOOK)))
            assert found == []
            tokens.append(told["urandom"])

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(run)
        assert len(set(tokens)) == 12


CLOCKS = """
import json, os, resource, time
def age(pid):
    try:
        started = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
used = resource.getrusage(resource.RUSAGE_SELF)
processes = {pid: age(pid) for pid in ["1", *filter(str.isdigit, os.listdir("/proc"))]}
threads = [age(f"self/task/{thread}") for thread in os.listdir("/proc/self/task")]
folders = [
    time.time() - moment
    for status in map(os.stat, ["/workspace", "/tmp", "/dev/shm"])
    for moment in (status.st_mtime, status.st_ctime)
]
print(json.dumps([[time.process_time(), used.ru_utime + used.ru_stime, time.thread_time()], processes, threads, folders]))
"""


async def test_a_script_is_told_by_no_clock_of_its_processes_how_long_its_container_has_waited(sandboxes):
    async with sandboxes.open(pooled=True) as bridge:
        await pooled(bridge)
        await anyio.sleep(4)
        began = time.monotonic()
        used, processes, threads, folders = json.loads(printed(await bridge.run(CLOCKS)))
        since = time.monotonic() - began + 0.5  # the kernel counts in hundredths, its cached clock in ticks
        assert bridge.sandboxes.pool.figures.hits == 1
    # Processor time only: what the interpreter's start takes.
    assert max(used) < 1.5
    first = processes.pop("1")
    assert processes
    ages = [*processes.values(), *threads, *folders]
    assert [age for age in ages if age >= since] == [], (processes, threads, folders)
    # Docker can't hide it.
    assert first is None or sandboxes.prepared.report.choice.engine == "docker"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "not_recorded"),
        (BridgeError("clock_went_back", "The clock went back."), "clock_went_back"),
    ],
    ids=["disk", "clock"],
)
async def test_a_script_whose_start_cannot_be_written_is_refused_and_its_container_used_up(
    sandboxes, monkeypatch, caplog, error, code
):
    caplog.set_level(logging.INFO, "mcp_bridge")
    async with sandboxes.open(pooled=True) as bridge:
        await pooled(bridge)
        (name,) = await sandboxes.containers()

        def refused(_connection):
            raise error

        monkeypatch.setattr(transaction, "take_turn", refused)
        for _ in range(2):
            with pytest.raises(BridgeError) as caught:
                await bridge.run("print('well')")
            assert caught.value.code == code
        await until(lambda: is_gone(sandboxes, name))
    assert "was lost before its execution" not in caplog.text, "it was given to another container"


async def test_a_waiting_container_is_labelled_and_gone_with_the_bridge(sandboxes):
    async with sandboxes.open(pooled=True, pool_min=2) as bridge:
        await pooled(bridge, 2)
        rows = await sandboxes.prepared.engine.list(f"{EXECUTION_LABEL}={STARTED_AHEAD}")
        assert {row.name for row in rows} >= set(await sandboxes.containers())
        assert len(await sandboxes.containers()) == 2
    assert await sandboxes.containers() == []


async def test_a_bridge_that_serves_nobody_starts_nothing_ahead(sandboxes):
    async with sandboxes.open(pooled=False) as bridge:
        assert printed(await bridge.run("print(1)")) == "1\n"
        await until(lambda: not bridge.sandboxes.removals.under_way)
        assert bridge.sandboxes.pool is None
        assert await sandboxes.containers() == []


def clients(name):
    """The process ids of what this process has started for a container: the engine's client, or its monitor."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if name.encode() in b" ".join(words) and int(folder.name) != os.getpid():
                found.append((int(folder.name), Path(os.fsdecode(words[0])).name))
    return found


def inside(identity):
    """The process ids of a container, by its control group; none on a host without."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if identity in (folder / "cgroup").read_text() and "python3" in (folder / "comm").read_text():
                    found.append(int(folder.name))
    return found


def victims(sandboxes, name, what):
    """The process ids of a container's client or monitor (the engines' command lines), or of the supervisor (OCI)."""
    if what == "supervisor":
        supervisor = getattr(sandboxes.prepared.engine, "_supervisor", None)
        return [supervisor.owner.pid] if supervisor is not None else []
    return [pid for pid, program in clients(name) if (program == "conmon") == (what == "monitor")]


@pytest.mark.parametrize("what", ["container", "client", "monitor", "supervisor"])
async def test_a_container_that_is_killed_while_it_waits_is_replaced_and_no_execution_is_lost(sandboxes, what):
    engine = sandboxes.prepared.engine
    async with sandboxes.open(pooled=True) as bridge:
        await pooled(bridge)
        (name,) = await sandboxes.containers()
        if what == "container":
            await engine.kill(name)
        else:
            found = victims(sandboxes, name, what)
            if not found:
                pytest.skip(f"{engine.name} has no {what}")
            for pid in found:
                os.kill(pid, signal.SIGKILL)
        # At once: whether it is noticed before the check-out, at it or after it is not ours to say.
        for _ in range(3):
            assert printed(await bridge.run("print('well')")) == "well\n"
        await pooled(bridge)
        await until(
            lambda: (
                bridge.sandboxes.pool.figures.lost + bridge.sandboxes.pool.figures.retired
                or bridge.sandboxes.pool.figures.hits
            )
        )
        await until(lambda: is_gone(sandboxes, name))


async def is_gone(sandboxes, name):
    return name not in await sandboxes.containers()


async def test_a_container_that_dies_at_its_check_out_is_replaced_by_another(sandboxes, monkeypatch):
    async with sandboxes.open(pooled=True) as bridge:
        await pooled(bridge)
        take = bridge.sandboxes.pool.take
        lost = []

        async def take_a_dead_one(hash_seed=None):
            taken = await take(hash_seed)
            if taken is not None and len(lost) < 2:
                lost.append(taken.process)
                await sandboxes.prepared.engine.kill(await taken.process.container_id())
                await taken.process.wait()
            return taken

        monkeypatch.setattr(bridge.sandboxes.pool, "take", take_a_dead_one)
        record = await bridge.run("print('well')")
        assert printed(record) == "well\n"
        assert len(lost) == 2 or bridge.sandboxes.pool.figures.misses
        # Nothing of it is in the record: the execution had not begun.
        assert record.notices == []


async def test_a_container_that_does_not_begin_in_time_is_replaced_by_another(sandboxes, monkeypatch):
    monkeypatch.setattr(sandboxes_module, "HANDOVER_SECONDS", 0.5)
    async with sandboxes.open(pooled=True) as bridge:
        await pooled(bridge)
        (name,) = await sandboxes.containers()
        stopped = victims(sandboxes, name, "client") or inside(
            await bridge.sandboxes.pool._ready[0].process.container_id()
        )
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert printed(await bridge.run("print('well')")) == "well\n"
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        assert bridge.sandboxes.pool.figures.hits >= 1


async def test_executions_are_answered_and_the_pool_recovers_while_everything_is_killed(sandboxes):
    """Whatever waits is killed again and again while executions come: each has its answer."""
    rounds = 60 if LONG else 8
    chance = random.Random(13)  # noqa: S311
    done = anyio.Event()
    async with sandboxes.open(pooled=True, pool_min=2, bounded=False) as bridge:

        async def kill():
            while not done.is_set():
                for name in await sandboxes.containers():
                    # Whether it still waits is as it may be: an execution that has begun in it ends as killed.
                    what = chance.choice(["client", "monitor", "supervisor"])
                    found = victims(sandboxes, name, what)
                    if found and chance.random() < 0.5:
                        for pid in found:
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(pid, signal.SIGKILL)
                    else:
                        with contextlib.suppress(BridgeError):
                            await sandboxes.prepared.engine.kill(name)
                await anyio.sleep(0.3)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            for _ in range(rounds):
                try:
                    record = await bridge.run("print('well')")
                except BridgeError as exc:
                    assert exc.code == "sandbox_start_failed"  # noqa: PT017
                else:
                    assert record.status == "success" or record.error["code"] in {"sandbox_lost", "interpreter_killed"}
            done.set()
        await pooled(bridge)
        assert printed(await bridge.run("print('well')")) == "well\n"
    assert await sandboxes.containers() == []


async def test_a_cancelled_execution_ends_its_own_container_and_no_other(sandboxes):
    async with sandboxes.open(pooled=True, pool_min=3) as bridge:
        await pooled(bridge, 3)
        records = []

        async def survive():
            records.append(await bridge.run("import time; time.sleep(3); print('well')"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(survive)
            for delay in (0.0, 0.001, 0.005, 0.02, 0.3):
                with anyio.move_on_after(delay):
                    await bridge.run("import time; time.sleep(60)")
        assert printed(records[0]) == "well\n"
        await pooled(bridge)
        assert printed(await bridge.run("print('well')")) == "well\n"


async def test_an_idle_container_takes_no_processor_time_even_if_it_was_woken_in_vain(sandboxes):
    async with sandboxes.open(pooled=True, pool_min=2) as bridge:
        await pooled(bridge, 2)
        ids = [await one.process.container_id() for one in bridge.sandboxes.pool._ready]
        if not all(map(inside, ids)):
            pytest.skip("the container's processes are found by its control group")
        woken, other = ids

        def tasks(identity):
            return [task for process in inside(identity) for task in sorted(Path(f"/proc/{process}/task").iterdir())]

        with bridge.sandboxes.pool.execution():
            pass
        # Process 1, and the guest with its threads.
        await until(lambda: len(tasks(woken)) > 2)
        assert len(tasks(other)) == 1

        def switches():
            return [
                re.findall(r"ctxt_switches:\s+(\d+)", (task / "status").read_text())
                for task in [*tasks(woken), *tasks(other)]
            ]

        # What it does once it is awake.
        await anyio.sleep(0.5)
        before = switches()
        # Longer than the heartbeat of a container that has an execution.
        await anyio.sleep(6)
        assert switches() == before
        assert printed(await bridge.run("print('well')")) == "well\n"
        assert (bridge.sandboxes.pool.figures.hits, bridge.sandboxes.pool.figures.lost) == (1, 0)


async def test_beyond_the_queue_an_execution_is_refused_as_busy_and_the_others_end_well(sandboxes):
    async with sandboxes.open(max_concurrent=1, max_queued=1) as bridge:
        records, errors = [], []

        async def run():
            try:
                records.append(await bridge.run("import time; time.sleep(0.2); print('well')"))
            except BridgeError as exc:
                errors.append(exc)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(run)
        assert [printed(record) for record in records] == ["well\n"] * 2
        assert [error.code for error in errors] == ["busy"] * 3
        assert errors[0].message == "1 run is under way, and 1 waits."
        assert printed(await bridge.run("print('again')")) == "again\n"


async def test_an_execution_that_is_cancelled_in_the_queue_does_nothing_and_leaves_its_place_to_the_next(sandboxes):
    async with sandboxes.open(max_concurrent=1, max_queued=1) as bridge, anyio.create_task_group() as tasks:
        ran = []

        async def run(code, key):
            ran.append(printed(await bridge.run(code, key=key)))

        tasks.start_soon(run, "import time; time.sleep(3); print('first')", "one")
        await until(lambda: bridge.runs_under_way()[0] == 1)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(run, "print('later')", "two")
                await until(lambda: bridge.runs_under_way()[1] == 1)
                scope.cancel()
        assert bridge.runs_under_way() == (1, 0)
        # Its place is free, and its key still does what it was for.
        await run("print('later')", "two")
    assert ran == ["first\n", "later\n"]


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_a_new_session_takes_a_container_that_waits_and_is_rebuilt_to_the_same(both, language):
    first, names = {
        # Not of so many digits that it may pass for a card's number.
        "python": (
            "import random\nseen = [list(set('abcdefgh')), random.randrange(10**6)]",
            "seen, hash('x') % 10**6",
        ),
        "javascript": ("const seen = [Math.floor(Math.random() * 1e6)]", "seen"),
    }[language]
    async with both.open(pooled=True, pool_min=1) as bridge:
        await pooled(bridge)
        figures = bridge.sandboxes.pool.figures
        assert (await bridge.run(first, session="s", language=language)).status == "success"
        assert (figures.hits, figures.waits, figures.misses) == (1, 0, 0)
        shown = (await bridge.run(names, session="s", language=language)).value
        bridge.end_sessions()
        await pooled(bridge)
        rebuilt = await bridge.run(names, session="s", language=language)
        assert (rebuilt.value, rebuilt.session["rebuilt"]) == (shown, 2)
        # Python's needs an interpreter with the seed that the session has.
        assert figures.hits == (1 if language == "python" else 2)
        assert figures.lost == 0
