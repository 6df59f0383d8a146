"""Sessions: cells that run one after the other in one namespace, and what a cell can't do to the next."""

import asyncio
import json
import os
import sys
from collections import deque
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from execution_fixtures import printed, until
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.lifecycle import Scripts
from mcp_bridge.executions.sessions.sessions import end_session, ended_sessions
from mcp_bridge.host.bridge import Bridge
from mcp_bridge.host.channel import HostChannel
from mcp_bridge.host.sessions import session_sandbox
from mcp_bridge.host.sessions.live_sessions import SessionKey
from mcp_bridge.host.sessions.session_sandbox import SessionSandbox, _CellFrames, _Spending
from mcp_bridge.ledger.log.session_store import SessionStore
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.sandbox.pipes import PipeReader, drain
from mcp_bridge.sandbox.session_limits import SessionSettings
from mcp_bridge.server import resources
from mcp_bridge.wire import jsonrpc, messages
from mcp_bridge.wire.errors import WireError
from mcp_bridge.wire.framing import MAX_FRAME_BYTES, LineDecoder

pytestmark = pytest.mark.xdist_group("sessions")


@asynccontextmanager
async def opened(sandboxes):
    """What runs a cell of the session `s`; its `bridge`."""
    async with sandboxes.open(faulty()) as bridge:

        async def run(code, **options):
            return await bridge.run(code, **{"session": "s", **options})

        run.bridge = bridge
        yield run


async def refused(run, code, **options):
    with pytest.raises(BridgeError) as caught:
        await run(code, **options)
    return caught.value


async def test_a_failed_task_is_named_by_its_own_cell_and_once(sandboxes):
    async with opened(sandboxes) as cells:
        first = await cells(
            "import asyncio\nasync def work(): raise ValueError(7)\n"
            "task = asyncio.create_task(work())\nawait asyncio.wait([task])"
        )
        assert first.status == "success"
        assert b"ValueError: 7" in first.stderr
        second = await cells("await asyncio.sleep(0)")
        assert (second.status, second.stderr) == ("success", b"")
        assert (await cells("await task")).error["type"] == "ValueError"


async def test_names_functions_classes_imports_open_objects_and_files_stay(sandboxes):
    async with opened(sandboxes) as cells:
        await cells(
            "import json as j, asyncio\nx = [1]\ndef f(n): return n + len(x)\nclass C: pass\n"
            "opened = open('/workspace/kept', 'w+')\nopened.write('there')\nlock = asyncio.Lock()"
        )
        record = await cells(
            "x.append(2)\nc = C()\nopened.seek(0)\nasync with lock: pass\n"
            "print(f(1), j.dumps(x), type(c).__name__, opened.read(), open('/workspace/kept').read() or 'unflushed')"
        )
        assert printed(record).split() == ["3", "[1,", "2]", "C", "there", "there"]
        assert record.session == {"name": "s", "cell": 2}
        assert (await cells("x", session="other")).error["type"] == "NameError"
        assert (await cells.bridge.run("x")).error["type"] == "NameError"


async def test_the_event_loop_and_what_waits_in_it_stay(sandboxes):
    async with opened(sandboxes) as cells:
        await cells("import asyncio\nq = asyncio.Queue()\nawait q.put(1)\nloop = asyncio.get_running_loop()")
        assert (await cells("await q.get(), loop is asyncio.get_running_loop()")).value == "(1, True)"


async def test_advice_on_an_unknown_name_knows_of_the_cells_before(sandboxes):
    async with opened(sandboxes) as cells:
        await cells("customers = 1; globals()[1] = 2")
        assert "No cell of this session has left it" in (await cells("zzz")).error["message"]
        if sys.version_info < (3, 12):
            assert "Did you mean: 'customers'?" in (await cells("custmers")).error["message"]


async def test_advice_on_a_missing_file_knows_that_files_of_a_session_stay(sandboxes):
    async with opened(sandboxes) as cells:
        await cells("open('there', 'w').write('x')")
        said = (await cells("open('missing')")).error["message"]
        assert "No cell of this session has left that file" in said
        assert "begin empty" not in said


async def test_an_exception_and_an_exit_end_their_cell_only(sandboxes):
    async with opened(sandboxes) as cells:
        await cells("x = 1")
        failed = await cells("def f():\n    return 1 / 0\nf()")
        assert (failed.status, failed.error["type"], failed.error["line"]) == ("error", "ZeroDivisionError", 2)
        again = await cells("\n\n\nf()")
        assert again.error["line"] == 4
        assert "return 1 / 0" in again.error["traceback"], "the line of the cell that has it"
        left = await cells("import sys; sys.exit(3)")
        assert (left.status, left.exit_code) == ("exit", 3)
        assert (await cells("x =")).status == "error"
        assert (await cells("x")).value == "1"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(100)",
        "import asyncio; await asyncio.sleep(100)",
        "import threading; threading.Thread(target=threading.Event().wait).start()",
        "from mcp.servers import faulty\nwhile True: await faulty.echo('x')",
        "from mcp.sync.servers import faulty\nwhile True: faulty.echo('x')",
    ],
    ids=["loop", "sleep", "await", "thread", "calls", "blocking calls"],
)
async def test_a_time_out_interrupts_the_cell_and_the_session_goes_on(sandboxes, code):
    async with opened(sandboxes) as cells:
        await cells("x = 1")
        record = await cells(code, timeout=1)
        assert (record.status, record.exit_code, record.error["code"]) == ("timeout", 124, "script_timeout")
        assert record.session == {"name": "s", "cell": 2, "interrupted": True}
        assert ("its threads still run" in record.stderr.decode()) is ("Thread" in code)
        after = await cells("from mcp.servers import faulty\nx, await faulty.echo('y')")
        assert (after.value, after.session) == ("(1, 'y')", {"name": "s", "cell": 3})


async def test_a_cell_that_can_not_be_interrupted_costs_the_sandbox_and_the_names_are_rebuilt(sandboxes):
    async with opened(sandboxes) as cells:
        await cells("x = 1")
        stubborn = "x = 2\nsum(range(10**12))"
        record = await cells(stubborn, timeout=1)
        assert record.status == "timeout"
        assert "interrupted" not in record.session
        after = await cells("x")
        assert after.value == "1"
        assert after.session == {"name": "s", "cell": 3, "rebuilt": 1}


async def test_cells_of_one_session_queue_in_order_and_with_a_bound(sandboxes):
    async with sandboxes.open(sessions=SessionSettings(max_waiting=3)) as bridge:
        await bridge.run("seen = []", session="s")
        refusals = []

        async def one(number):
            try:
                await bridge.run(f"seen.append({number})\nimport time; time.sleep(0.2)", session="s")
            except BridgeError as exc:
                refusals.append((number, exc.code))

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(one, number)
        assert refusals == [(4, "busy"), (5, "busy")]
        assert (await bridge.run("seen", session="s")).value == "[0, 1, 2, 3]"


async def test_sessions_have_the_same_names_for_several_principals_and_share_nothing(sandboxes):
    from mcp_bridge.governance.principals import Principal

    async with sandboxes.open() as bridge:
        other = bridge.for_principal(Principal("anna"))
        await bridge.run("x = 'local'", session="s")
        assert (await other.run("x", session="s")).error["type"] == "NameError"
        assert [row["cells"] for row in await other.listed_sessions()] == [1]
        assert await other.end_session("s")
        assert (await bridge.run("x", session="s")).value == "'local'"
        error = await refused(other.run, "1", session="t", fork="s@1")
        assert error.code == "unknown_session"


async def test_a_sandbox_that_nobody_has_any_more_is_ended(sandboxes, monkeypatch):
    from mcp_bridge.executions.record import ExecutionRecord

    async def fails(*_):
        raise RuntimeError

    async with opened(sandboxes) as cells:
        await cells("x = 1")
        with monkeypatch.context() as patch:
            # As if it were cancelled there.
            patch.setattr(SessionSandbox, "wake", fails)
            with pytest.raises(RuntimeError):
                await cells("x")
        await until_none(sandboxes)
        with monkeypatch.context() as patch:
            patch.setattr(ExecutionRecord, "project", fails)
            with pytest.raises(RuntimeError):
                await cells("x")
        await until_none(sandboxes)
        assert (await cells("x")).value == "1"
        with monkeypatch.context() as patch:
            patch.setattr(cells.bridge, "start_line", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await cells("x")
        await until_none(sandboxes)


async def test_names_of_a_cell_whose_end_could_not_be_recorded_are_not_there(sandboxes, monkeypatch):
    async def fails(*_):
        raise BridgeError("not_recorded", "The disk is full.")

    async with opened(sandboxes) as cells:
        await cells("x = 1")
        with monkeypatch.context() as patch:
            patch.setattr(Scripts, "_keep", fails)
            assert (await refused(cells, "x = 2")).code == "not_recorded"
        after = await cells("x")
        assert (after.value, after.session) == ("1", {"name": "s", "cell": 2, "rebuilt": 1})
        with monkeypatch.context() as patch:
            patch.setattr(Scripts, "_keep", fails)
            await refused(cells, "from mcp.servers import faulty\nx = await faulty.echo('x')")
        # It has made a call, which stays in the session's chain.
        after = await cells("x")
        assert (after.value, after.session) == ("1", {"name": "s", "cell": 4, "rebuilt": 2})
        assert any("without the cell 3" in notice for notice in after.notices)


async def test_a_cell_that_goes_on_takes_its_sessions_turn(sandboxes):
    async with sandboxes.open(sessions=SessionSettings(max_waiting=0)) as bridge:
        record = await bridge.run("x = 1", session="s")
        async with bridge._shared.live_sessions.turn(SessionKey("local", "s")):
            assert (await refused(bridge.resume_execution, record.execution)).code == "busy"
        assert (await refused(bridge.resume_execution, record.execution)).code == "not_suspended"
        after = await bridge.run("x", session="s")
        assert (after.value, "rebuilt" in after.session) == ("1", False)


async def until_none(sandboxes):
    async def are_gone():
        return await sandboxes.containers() == []

    await until(are_gone)


async def test_an_idle_session_is_put_away_and_rebuilt(sandboxes):
    async with sandboxes.open(sessions=SessionSettings(idle_timeout=0.2)) as bridge:
        await bridge.run("x = [1]", session="s")
        await until(lambda: not bridge._shared.live_sessions.idle)
        record = await bridge.run("x", session="s")
        assert record.value == "[1]"
        assert record.session["rebuilt"] == 1
        assert any("was rebuilt" in notice for notice in record.notices)


async def test_a_session_that_another_process_has_ended_is_put_away(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        await bridge.run("y = 1", session="other")
        store, heads = ProgramStore(bridge.database), SessionStore(bridge.database)
        assert await end_session(bridge.lifecycle, heads, "local", "s")
        await until(lambda: [key.name for key in bridge._shared.live_sessions.idle] == ["other"])
        assert (await bridge.run("y", session="other")).session == {"name": "other", "cell": 2}
        assert await ended_sessions(store, heads, {}) == []


async def test_a_session_that_another_process_has_ended_while_a_cell_of_it_ran_is_put_away(sandboxes):
    async with sandboxes.open() as bridge:
        heads = SessionStore(bridge.database)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(bridge.run, "import time\ntime.sleep(3)", session="s"))

            async def has_ended():
                return await end_session(bridge.lifecycle, heads, "local", "s")

            await until(has_ended)
        await until_none(sandboxes)
        assert not bridge._shared.live_sessions.idle


async def test_a_session_that_goes_on_or_was_refused_meanwhile_has_not_ended(sandboxes):
    async with sandboxes.open() as bridge:
        store, heads = ProgramStore(bridge.database), SessionStore(bridge.database)
        last = [(await bridge.run(f"x = {number}", session="s")).execution for number in range(3)]
        session = ("local", "s")
        assert await ended_sessions(store, heads, {session: last[2]}) == []
        assert await ended_sessions(store, heads, {session: last[1]}) == []
        assert await ended_sessions(store, heads, {session: last[0]}) == [session]


SPINS = {
    "python": "import threading\nx = 1\ndef spin():\n    while True: pass\n"
    "threading.Thread(target=spin, daemon=True).start()",
    "javascript": "globalThis.x = 1\nconst { Worker } = await import('node:worker_threads')\n"
    "new Worker('while (true);', { eval: true }).unref()",
}


async def test_what_a_cell_has_left_running_computes_for_a_bounded_time(bilingual):
    limits = SessionSettings(idle_processor_seconds=0.5)
    async with bilingual.open(sessions=limits) as cells:
        await cells.run(SPINS[cells.language], session="s")
        await until(lambda: not cells.bridge._shared.live_sessions.idle)
        record = await cells.run("x", session="s")
        assert record.value == "1"
        assert any("idle_processor_seconds" in notice for notice in record.notices)


def beat(processor):
    return jsonrpc.encode(messages.notification(messages.InitBeat(-1, processor)))


async def test_what_was_used_before_the_first_report_does_not_count_and_a_false_one_hides_nothing():
    scope = anyio.CancelScope()
    spending = _Spending(5.0, scope)
    spending.feed(beat(1e9) + b"no report\n" + beat(100.0)[:20])
    spending.feed(beat(100.0)[20:] + beat(105.0))
    assert not spending.is_over
    spending.feed(beat(0.0)[:-1] + b"x" * 2_000_000)
    spending.feed(b"\n" + beat(105.5))
    assert (spending.is_over, scope.cancel_called) == (True, True)


async def test_only_so_many_idle_sessions_keep_a_sandbox_the_ones_used_last(sandboxes):
    async with sandboxes.open(sessions=SessionSettings(max_idle=2)) as bridge:
        for name in "abc":
            await bridge.run(f"x = {name!r}", session=name)
        assert [key.name for key in bridge._shared.live_sessions.idle] == ["b", "c"]
        assert (await bridge.run("x", session="a")).value == "'a'"
        states = {row["name"]: row["state"] for row in await bridge.listed_sessions()}
        assert states == {"a": "ready", "b": "idle", "c": "ready"}


async def test_a_resource_lists_the_sessions_there_are(sandboxes):
    async with sandboxes.open() as bridge:
        assert "sessions://all" not in [str(row.uri) for row in (await resources.listed(bridge)).resources]
        await bridge.run("x = 1", session="s")
        assert "sessions://all" in [str(row.uri) for row in (await resources.listed(bridge)).resources]
        (row,) = json.loads((await resources.read(bridge, "sessions://all")).text)["sessions"]
        assert (row["name"], row["cells"], row["state"]) == ("s", 1, "ready")


async def test_a_session_that_is_ended_begins_anew_from_inside_too(sandboxes):
    async with opened(sandboxes) as cells:
        await cells("x = 1")
        assert printed(await cells("print([row['name'] for row in await runtime.sessions()])")) == "['s']\n"
        assert (await cells("await runtime.end_session()")).value == "True"
        after = await cells("'x' in globals()")
        assert (after.value, after.session) == ("False", {"name": "s", "cell": 1})
        assert printed(await cells.bridge.run("print(await runtime.end_session('s'))")) == "True\n"
        assert await cells.bridge.listed_sessions() == []
        assert not await cells.bridge.end_session("s")


async def test_ending_a_session_does_not_end_what_has_begun_under_its_name_meanwhile(sandboxes, monkeypatch):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        remove = SessionStore.remove

        async def begun_anew(self, principal, head):
            monkeypatch.setattr(SessionStore, "remove", remove)
            assert await remove(self, principal, head)
            await bridge.run("x = 2", session="s")
            return await remove(self, principal, head)

        monkeypatch.setattr(SessionStore, "remove", begun_anew)
        assert await bridge.end_session("s")
        assert (await bridge.run("x", session="s")).value == "2"


async def test_what_a_cell_has_printed_is_not_told_again_of_one_that_ends_the_interpreter(bilingual):
    prints, ends = {
        "python": ("print('first')", "import os; os._exit(1)"),
        "javascript": ("console.log('first')", "process.reallyExit(1)"),
    }[bilingual.language]
    async with bilingual.open() as bridge:
        assert printed(await bridge.run(prints, session="s")) == "first\n"
        record = await bridge.run(ends, session="s")
        assert (record.status, record.stdout) == ("killed", b"")


async def test_ending_a_fork_does_not_end_the_same_fork_made_again_meanwhile(sandboxes, monkeypatch):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        await bridge.run("x = 2", session="t", fork="s")
        remove = SessionStore.remove

        async def made_again(self, principal, head):
            monkeypatch.setattr(SessionStore, "remove", remove)
            assert await remove(self, principal, head)
            await bridge.run("x = 3", session="t", fork="s")
            return await remove(self, principal, head)

        monkeypatch.setattr(SessionStore, "remove", made_again)
        assert await bridge.end_session("t")
        assert (await bridge.run("x", session="t")).value == "3"


async def test_a_cell_that_ends_its_own_session_ends_no_other_of_that_name(bilingual, monkeypatch):
    async with bilingual.open() as one, bilingual.open() as other:
        end_session = Bridge.end_session

        async def begun_anew(self, *asked):
            monkeypatch.setattr(Bridge, "end_session", end_session)
            assert await end_session(other.bridge, "s")
            await other.run("globalThis.x = 2" if other.language == "javascript" else "x = 2", session="s")
            return await end_session(self, *asked)

        monkeypatch.setattr(Bridge, "end_session", begun_anew)
        record = await one.run("await runtime.end_session()", session="s")
        assert record.value in {"False", "false"}
        assert (await other.run("x", session="s")).value == "2"
        for opened_bridge in (one, other):
            opened_bridge.bridge.end_sessions()

        async def are_gone():
            return await bilingual.sandboxes.containers() == []

        await until(are_gone)


@pytest.mark.parametrize("meanwhile", ["x = 2", "raise SystemExit"])
async def test_ending_a_session_ends_it_too_if_it_goes_on_meanwhile(sandboxes, monkeypatch, meanwhile):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        remove = SessionStore.remove

        async def gone_on(self, principal, head):
            monkeypatch.setattr(SessionStore, "remove", remove)
            await bridge.run(meanwhile, session="s")
            return await remove(self, principal, head)

        monkeypatch.setattr(SessionStore, "remove", gone_on)
        assert await bridge.end_session("s")
        assert await bridge.listed_sessions() == []


@pytest.mark.parametrize("name", ["", "a b", "-a", "a@1", "a/b", "é", "a" * 65])
async def test_a_bad_name_is_refused(sandboxes, name):
    async with opened(sandboxes) as cells:
        assert (await refused(cells, "1", session=name)).code == "bad_session"


async def test_there_are_only_so_many_sessions(sandboxes):
    async with sandboxes.open(sessions=SessionSettings(max_sessions=2)) as bridge:
        for name in "ab":
            await bridge.run("1", session=name)
        assert (await refused(bridge.run, "1", session="c")).code == "too_many_sessions"
        assert (await refused(bridge.run, "1", session="c", fork="a")).code == "too_many_sessions"
        await bridge.end_session("a")
        await bridge.run("1", session="c")


async def test_a_key_gives_a_cells_answer_again_and_belongs_to_its_session(sandboxes):
    async with opened(sandboxes) as cells:
        await cells("n = 0")
        first = await cells("n += 1; n", key="k")
        assert (await cells("n += 1; n", key="k")).to_json() == first.to_json()
        assert (await cells("n")).value == "1"
        assert (await refused(cells, "n += 1; n", key="k", session="t")).code == "key_conflict"
        assert (await refused(cells.bridge.run, "n += 1; n", key="k", session=None)).code == "key_conflict"


async def test_a_cells_servers_can_differ_and_only_leave_servers_out(sandboxes):
    async with opened(sandboxes) as cells:
        await cells("from mcp.servers import faulty\nkept = faulty")
        record = await cells(
            "try:\n    await kept.echo('x')\nexcept Exception as exc:\n    print(type(exc).__name__)", servers=[]
        )
        assert printed(record) in {"MCPError\n", "ToolError\n"}
        assert (await cells("await faulty.echo('y')")).value == "'y'"


async def test_unfinished_tasks_are_cancelled_and_told_and_threads_are_waited_for(sandboxes):
    async with opened(sandboxes) as cells:
        record = await cells(
            "import asyncio, threading, time, concurrent.futures as c\ndone = []\nasync def forever():\n"
            "    try:\n        await asyncio.sleep(1000)\n    finally:\n        done.append('task')\n"
            "t = asyncio.create_task(forever())\nawait asyncio.sleep(0)\n"
            "threading.Thread(target=lambda: (time.sleep(0.2), done.append('thread'))).start()\n"
            "pool = c.ThreadPoolExecutor()\npool.submit(lambda: (time.sleep(0.4), done.append('pool')))"
        )
        assert b"forever(...) had not ended" in record.stderr
        assert (await cells("done, t.cancelled(), pool.submit(lambda: 5).result()")).value == (
            "(['task', 'thread', 'pool'], True, 5)"
        )


@pytest.mark.parametrize(
    "left",
    [
        # More than one: Python 3.11 takes a thread for ended once the wait for it is interrupted.
        "import threading\nfor _ in range(3): threading.Thread(target=threading.Event().wait).start()",
        "import concurrent.futures as c, threading\npool = c.ThreadPoolExecutor(3)\n"
        "for _ in range(3): pool.submit(threading.Event().wait)",
    ],
    ids=["threads", "pool"],
)
async def test_what_an_interrupted_cell_has_left_is_not_waited_for_by_the_next_one(sandboxes, left):
    async with opened(sandboxes) as cells:
        record = await cells(left, timeout=2)
        assert (record.status, record.session["interrupted"]) == ("timeout", True)
        after = await cells("1", timeout=20)
        assert (after.status, after.value) == ("success", "1")


async def test_what_a_pool_has_given_is_not_kept_for_the_cell(sandboxes):
    async with opened(sandboxes) as cells:
        record = await cells(
            "import concurrent.futures as c, gc, weakref\nclass Large: pass\n"
            "with c.ThreadPoolExecutor(1) as pool:\n    kept = weakref.ref(pool.submit(Large).result())\n"
            "gc.collect()\nkept()"
        )
        assert record.value in (None, "None"), record.error


LEFT = """
import threading, time, sys
from mcp.sync.servers import faulty
go, said = threading.Event(), []
def later():
    go.wait()
    try:
        said.append(faulty.echo('stolen'))
    except Exception as exc:
        said.append(exc.code)
threading.Thread(target=later, daemon=True).start()
"""


async def test_what_a_cell_has_left_can_make_no_call_in_a_later_one(sandboxes):
    async with opened(sandboxes) as cells:
        await cells(LEFT)
        assert (await cells("go.set()\nwhile not said: time.sleep(0.01)\nsaid")).value == "['cell_ended']"


RAW = """
import _thread, ctypes, time
from mcp.sync.servers import faulty
said = {}
def call(name):
    try:
        said[name] = faulty.echo(name)
    except Exception as exc:
        said[name] = exc.code
goes = {name: _thread.allocate_lock() for name in ('raw', 'nested')}
for lock in goes.values():
    lock.acquire()
def later(name):
    goes[name].acquire()
    call(name)
_thread.start_new_thread(later, ('raw',))
_thread.start_new_thread(lambda: _thread.start_new_thread(later, ('nested',)), ())
"""

FOREIGN = """
handle = ctypes.c_ulong()
back = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: call('foreign') or 0)
assert ctypes.CDLL(None).pthread_create(ctypes.byref(handle), None, back, None) == 0
while 'foreign' not in said: time.sleep(0.01)
said['foreign']
"""


async def test_a_thread_that_no_module_knows_is_of_the_cell_that_started_it(sandboxes):
    async with opened(sandboxes) as cells:
        await cells(RAW)
        for name in ("raw", "nested"):
            wait = f"goes['{name}'].release()\nwhile '{name}' not in said: time.sleep(0.01)\nsaid['{name}']"
            assert (await cells(wait)).value == "'cell_ended'"
        own = "_thread.start_new_thread(call, ('own',))\nwhile 'own' not in said: time.sleep(0.01)\nsaid['own']"
        assert (await cells(own)).value == "'own'"
        # Nobody knows which cell has started it.
        assert (await cells(FOREIGN)).value == "'cell_ended'"


FORGER = """
import threading, time, os, json
# All that an earlier cell can do: it finds the channel, and answers for the cells to come.
fds = [int(fd) for fd in os.listdir('/proc/self/fd')]
finish = json.dumps({"jsonrpc": "2.0", "id": 10_000_000, "method": "execution.finish",
                     "params": {"exit_code": 0, "value": "forged"}}).encode() + b"\\n"
begun = json.dumps({"jsonrpc": "2.0", "method": "execution.begun", "params": {"execution": "0" * 16}}).encode() + b"\\n"
import stat
out = [fd for fd in fds if fd >= 100 and stat.S_ISFIFO(os.fstat(fd).st_mode)]
def forge():
    # The cell has ended by then.
    time.sleep(3)
    for fd in out:
        try:
            os.set_blocking(fd, True)
            os.write(fd, begun + finish)
        except OSError:
            pass
threading.Thread(target=forge, daemon=True).start()
"""


async def test_a_result_that_was_sent_before_its_cell_is_no_cells(sandboxes, forged):
    async with opened(sandboxes) as cells:
        await cells(FORGER)
        await until(lambda: forged)
        record = await cells("'true'")
        assert record.value == "'true'"


class Flood:
    """A container whose earlier cell floods the channel before the next one begins."""

    max_idle_bytes = 1 << 20

    def __init__(self, *chunks):
        self.decoder = LineDecoder()
        self.process = self.stdout = self
        self.chunks = list(chunks)

    async def receive(self, max_bytes):
        return self.chunks.pop(0)


def begun(execution, extra=""):
    params = {"execution": execution} | ({"extra": extra} if extra else {})
    return json.dumps({"jsonrpc": "2.0", "method": "execution.begun", "params": params}).encode() + b"\n"


async def test_only_a_short_line_begins_a_cell_and_what_comes_before_it_is_bounded():
    execution, long = "0" * 16, begun("0" * 16, "x" * 1000)
    frames = _CellFrames(Flood(long, long + begun(execution)), execution)
    assert await frames.receive() == begun(execution)
    flood = Flood(*[long * 100] * 100)
    with pytest.raises(WireError):
        await _CellFrames(flood, execution).receive()
    assert len(flood.chunks) > 50


async def test_a_line_that_is_too_long_is_told_again_to_who_reads_after_it_was_read_ahead():
    execution = "0" * 16
    flood = Flood(begun(execution), b"x" * (MAX_FRAME_BYTES + 1), begun(execution))
    frames = _CellFrames(flood, execution)
    assert await frames.receive() == begun(execution)
    channel = HostChannel.__new__(HostChannel)
    channel._ahead, channel._stdout = deque(), frames
    await channel._read_ahead()
    for _ in range(2):
        with pytest.raises(WireError):
            await frames.receive()


class Idle:
    """A container that says nothing."""

    is_closed = False

    def __init__(self):
        self.stdout = self.stderr = self

    def __aiter__(self):
        return self

    async def __anext__(self):
        await anyio.sleep_forever()

    async def aclose(self):
        self.is_closed = True


async def test_a_bridge_that_ends_before_its_session_rests_leaves_no_rest_to_begin(monkeypatch):
    monkeypatch.setattr(session_sandbox, "REST_SECONDS", 0.01)
    process, faults = Idle(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with anyio.create_task_group() as tasks:
        SessionSandbox(process, tasks, 1000).rest(60, 60, lambda: faults.append("expired"))
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert process.is_closed
    await anyio.sleep(0.1)
    assert not faults


async def test_a_sandbox_that_never_ran_whose_last_words_its_engine_reads_ends_no_other_task():
    (reading, writing), process = os.pipe(), Idle()
    process.stderr = PipeReader(reading)
    async with anyio.create_task_group() as tasks:
        # As an engine does that has been told that its container can't be started.
        tasks.start_soon(drain, process.stderr)
        await anyio.lowlevel.checkpoint()
        sandbox = SessionSandbox(process, tasks, 1000)
        frames = sandbox.cell("0" * 16)
        os.write(writing, b"exec failed\n")
        os.close(writing)
        with pytest.raises(anyio.EndOfStream):
            await frames.stderr.receive()
        await sandbox.close()
    assert process.is_closed


async def test_what_is_printed_between_two_cells_is_no_cells_and_a_flood_of_it_ends_the_sandbox(sandboxes):
    async with sandboxes.open(max_output_size=1 << 20) as bridge:
        await bridge.run("import threading, time\nx = 1", session="s")
        quiet = "def p():\n    time.sleep(0.3)\n    print('between')\nthreading.Thread(target=p, daemon=True).start()"
        await bridge.run(quiet, session="s")
        await anyio.sleep(0.6)
        assert (await bridge.run("print('mine')", session="s")).stdout == b"mine\n"
        flood = "def p():\n    time.sleep(0.3)\n    while True: print('x' * 1000)\nt = threading.Thread(target=p, daemon=True)\nt.start()"
        await bridge.run(flood, session="s")
        await until(lambda: not bridge._shared.live_sessions.idle)
        assert (await bridge.run("x", session="s")).value == "1"


async def test_a_cell_that_closes_its_output_keeps_its_value_and_a_notice_says_that_none_can_print(bilingual):
    close = {
        "python": "import os\nos.closerange(0, 50)\n1",
        "javascript": "for (let fd = 0; fd < 3; fd++) require('fs').closeSync(fd);\n1",
    }
    show = {"python": "print(5)", "javascript": "console.log(5)"}
    told = "descriptor 1, standard output, is closed: what cells of this session print there isn't received"
    async with bilingual.open() as runs:
        first = await runs.run(close, session="s")
        assert (first.status, first.value) == ("success", "1")
        for record in (first, await runs.run(show, session="s")):
            assert any(told in notice for notice in record.notices)
        other = await runs.run(show, session="other")
        assert (other.stdout, other.notices) == (b"5\n", [])


async def test_a_cell_that_leaves_another_stdout_is_told_where_what_is_printed_goes(sandboxes):
    told = "sys.stdout is a StringIO now: what cells of this session print goes there; write: sys.stdout = sys.__stdout__\n"
    tee = "class Tee:\n    def write(self, text): return sys.__stdout__.write(text)\n    def flush(self): pass\nsys.stdout = Tee()"
    async with sandboxes.open() as bridge:
        first = await bridge.run("import io, sys\nsys.stdout = io.StringIO()\n1 / 0", session="s")
        assert (first.status, first.stderr.decode()) == ("error", told)
        silent = await bridge.run("print(5)", session="s")
        assert (silent.stdout, silent.stderr.decode()) == (b"", told)
        assert (await bridge.run("sys.stdout = sys.__stdout__\nprint(6)", session="s")).stderr == b""
        for code in (
            "import contextlib\nwith contextlib.redirect_stdout(io.StringIO()): print(7)",
            f"{tee}\nprint(8)",
            "sys.stdout = io.TextIOWrapper(sys.__stdout__.buffer)\nprint(9)",
        ):
            assert (await bridge.run(code, session="s")).stderr == b""
        bridge._shared.live_sessions.end_all()
        assert (await bridge.run("print(10)", session="s")).session["rebuilt"] == 6
        assert (await bridge.run("import io, sys\nsys.stdout = io.StringIO()")).stderr == b"", "it ends with the script"


async def test_a_session_whose_standard_error_is_closed_goes_on_and_is_rebuilt(bilingual):
    close = {"python": "import os\nos.close(2)\n1", "javascript": "require('fs').closeSync(2);\n1"}
    show = {"python": "print(5); 6", "javascript": "console.log(5); 6"}
    async with bilingual.open() as runs:
        first = await runs.run(close, session="s")
        assert (first.status, first.value) == ("success", "1")
        assert [notice for notice in first.notices if "descriptor" in notice] == [
            "descriptor 2, standard error, is closed: what cells of this session print there isn't received; "
            "begin another: await runtime.end_session()"
        ]
        for rebuilt in (None, 2):
            record = await runs.run(show, session="s")
            assert (record.status, record.stdout, record.value) == ("success", b"5\n", "6")
            assert record.session.get("rebuilt") == rebuilt
            runs.bridge._shared.live_sessions.end_all()
