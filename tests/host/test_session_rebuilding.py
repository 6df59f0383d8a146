"""Sessions whose sandbox, host or bridge is gone: rebuilt from the record, without a second effect, or told lost."""

import ast
import sys
import time
from functools import partial

import anyio
import pytest
from execution_fixtures import printed, until
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.erasure_with_files import erase, under_way
from mcp_bridge.executions.scripts import answer_order
from mcp_bridge.executions.scripts import lifecycle as scripts_lifecycle
from mcp_bridge.executions.scripts.lifecycle import Scripts
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import MAX_MOVES, Bridge
from mcp_bridge.ledger.erasure.execution_erasure import erase_ended
from mcp_bridge.ledger.log.payloads import ScriptEnd, ScriptStart, understood
from mcp_bridge.sandbox.session_limits import SessionSettings
from mcp_bridge.server.ui import page_data

pytestmark = pytest.mark.xdist_group("sessions")

EDIT = """
from mcp.servers import filesystem
def append(text):
    return filesystem.edit_file(path={path!r}, edits=[{{"oldText": "END", "newText": text + "\\nEND"}}])
"""
"""An effect that shows how often it was made: a line a call, of a real server."""

EXITS = "import os; os._exit(1)"
"""A cell that ends its sandbox, and leaves nothing."""


def put_away(bridge):
    bridge._shared.live_sessions.end_all()


async def all_put_away(sandboxes, *bridges):
    """Two bridges of one process: each would find the other's containers at its end."""
    for bridge in bridges:
        put_away(bridge)

    async def are_gone():
        return await sandboxes.containers() == []

    await until(are_gone)


async def refused(work, *args, **options):
    with pytest.raises(BridgeError) as caught:
        await work(*args, **options)
    return caught.value


@pytest.fixture
def effects(tmp_path, filesystem_server):
    path = tmp_path / "files" / "effects.txt"
    path.write_text("END\n")
    return filesystem_server, path, lambda: path.read_text().split()[:-1]


FIFTY = {
    "python": {
        "first": "from mcp.servers import filesystem\ndef append(text):\n    return filesystem.edit_file(path=PATH,"
        ' edits=[{"oldText": "END", "newText": text + "\\nEND"}])\nimport random, uuid, json\nseen, names = [], {}',
        "cell": "seen.append(random.random()); names[uuid.uuid4().hex] = {'n': N, 'all': set('abcdef')}\n",
        "effect": "await append('N')\n",
        "error": "raise ValueError(seen[-1])",
        "look": "print(json.dumps([seen, list(names), [list(n['all']) for n in names.values()]]))",
        "out of memory": "lost = True\nb = b'x' * (2 << 30)",
        "exit": "lost = True\nimport os; os._exit(7)",
    },
    "javascript": {
        "first": "import { filesystem } from 'mcp/servers'\nimport { randomUUID } from 'node:crypto'\n"
        "const append = (text) => filesystem.edit_file({ path: PATH, edits: [{ oldText: 'END', newText: `${text}\\nEND` }] })\n"
        "const seen = [], names = new Map()",
        "cell": "seen.push(Math.random()); names.set(randomUUID(), { n: N, all: new Set('abcdef') })\n",
        "effect": "await append('N')\n",
        "error": "throw new RangeError(`${seen.at(-1)}`)",
        "look": "console.log(JSON.stringify([seen, [...names.keys()], [...names.values()].map((one) => "
        "[...one.all])]))",
        "out of memory": "const all = []; while (true) all.push(new Array(1e6).fill(1.5))",
        "exit": "process.kill(process.pid, 'SIGKILL')",
    },
}
"""A session's cells, as the tests below put them together, in each language."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("language", FIFTY)
async def test_fifty_cells_are_rebuilt_equal_after_every_kind_of_loss_and_no_effect_is_made_twice(
    both, effects, language
):
    server, path, made = effects
    texts = FIFTY[language]
    expected = [str(number) for number in range(8, 49, 8)]

    async def cell(bridge, code):
        return await bridge.run(code, session="s", language=language)

    async def is_whole(bridge, before, cells, *, is_rebuilt=True):
        record = await cell(bridge, texts["look"])
        assert printed(record) == before
        assert record.session.get("rebuilt") == (cells if is_rebuilt else None), record.session
        assert made() == expected
        return cells + 1

    async with both.open(server, bounded=False) as bridge:
        await cell(bridge, texts["first"].replace("PATH", repr(str(path))))
        for number in range(1, 49):
            code = texts["cell"] + (texts["effect"] if number % 8 == 0 else "")
            await cell(bridge, (code + (texts["error"] if number % 11 == 0 else "")).replace("N", str(number)))
        before = printed(await cell(bridge, texts["look"]))
        (name,) = await both.containers()
        await both.prepared.engine.kill(name)
        await until(lambda: not bridge._shared.live_sessions.idle)
        cells = await is_whole(bridge, before, 50)
        for end, statuses in (("out of memory", {"out_of_memory"}), ("exit", {"killed"})):
            assert (await cell(bridge, texts[end])).status in statuses
            cells = await is_whole(bridge, before, cells)
        async with both.open(server, bounded=False) as other:
            cells = await is_whole(other, before, cells)
            cells = await is_whole(bridge, before, cells)
            await all_put_away(both, bridge, other)
    # Another bridge, as after the first one's end; and a time after which it puts the sandbox away.
    async with both.open(server, bounded=False, sessions=SessionSettings(idle_timeout=0.2)) as bridge:
        for _ in range(2):
            cells = await is_whole(bridge, before, cells)
            await until(lambda: not bridge._shared.live_sessions.idle)
        assert (await cell(bridge, texts["effect"].replace("N", "more"))).status == "success"
        assert made() == [*expected, "more"]


FORKS = """
import multiprocessing, os, random, secrets, tempfile, uuid
def drawn(*_):
    return [str(uuid.uuid4()), secrets.token_hex(8), os.urandom(8).hex(), random.random(), random.SystemRandom().random()]
def forked(depth):
    reader, writer = os.pipe()
    if os.fork() == 0:
        inner = forked(depth - 1) if depth else []
        os.write(writer, repr([*inner, drawn()]).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        return eval(file.read())
"""


async def test_a_random_module_that_is_reloaded_draws_the_same_in_every_rebuilding(sandboxes):
    async with sandboxes.open() as bridge:
        code = """
import importlib, random, sys
drawn = [random.random()]
importlib.reload(random)
drawn += [random.random(), random.Random().random()]
del sys.modules["random"]
import random
drawn += [random.random(), random.Random("seed").random() == random.Random("seed").random()]
print(drawn)
"""
        first = printed(await bridge.run(code, session="s"))
        assert len(set(ast.literal_eval(first))) == 5
        put_away(bridge)
        again = await bridge.run("print(drawn)", session="s")
        assert (printed(again), again.session["rebuilt"]) == (first, 1)


async def test_forked_processes_draw_numbers_of_their_own_and_the_same_in_every_rebuilding(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run(FORKS, session="s")
        code = "all = [*forked(1), *forked(0), drawn(), *forked(0), drawn()]\nfor row in all: print(row)"
        first = await bridge.run(code, session="s")
        rows = [ast.literal_eval(line) for line in printed(first).splitlines()]
        assert len(rows) == 6
        assert all(len(set(column)) == len(rows) for column in zip(*rows, strict=True)), rows
        put_away(bridge)
        again = await bridge.run("for row in all: print(row)\ndrawn()", session="s")
        assert (printed(again), again.session["rebuilt"]) == (printed(first), 2)
        code = """
with multiprocessing.get_context("fork").Pool(4) as pool:
    found = pool.map(drawn, range(8), chunksize=1)
print(*(len({row[at] for row in found}) for at in range(5)))
"""
        assert printed(await bridge.run(code, session="s")).split() == ["8"] * 5


BREAKS = {
    "out of memory": ("x = 0\nb = b'x' * (2 << 30)", {"out_of_memory"}),
    "exit of the interpreter": ("import os; x = 0; os._exit(7)", {"killed"}),
    "signal": ("import os; x = 0; os.kill(os.getpid(), 9)", {"killed"}),
    "too much output": ("x = 0\nwhile True: print('x' * 100000)", {"output_limit"}),
    "closed channel": ("import os; x = 0\nos.closerange(3, 200)", {"channel_closed", "killed", "protocol_error"}),
}


@pytest.mark.parametrize("name", BREAKS)
async def test_a_cell_that_breaks_the_sandbox_leaves_nothing_and_says_so(sandboxes, effects, name):
    server, path, made = effects
    code, statuses = BREAKS[name]
    async with sandboxes.open(server, max_output_size=1 << 20) as bridge:
        await bridge.run(EDIT.format(path=str(path)) + "x = 1", session="s")
        record = await bridge.run("await append('once')\n" + code, session="s")
        assert record.status in statuses, record.error
        assert any("has left nothing" in notice for notice in record.notices)
        after = await bridge.run("x", session="s")
        assert (after.value, after.session) == ("1", {"name": "s", "cell": 3, "rebuilt": 1})
        assert any("without the cell 2" in notice for notice in after.notices)
        assert made() == ["once"]


async def test_a_container_that_is_killed_in_a_cell_costs_nothing(sandboxes, effects):
    server, path, made = effects
    async with sandboxes.open(server) as bridge:
        await bridge.run(EDIT.format(path=str(path)) + "x = 1\nimport asyncio", session="s")
        records = []

        async def cell():
            code = "await append('a')\nx += 1\nawait asyncio.sleep(3)\nawait append('b')\nx"
            records.append(await bridge.run(code, session="s"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cell)
            await until(lambda: made() == ["a"])
            (name,) = await sandboxes.containers()
            await sandboxes.prepared.engine.kill(name)
        (record,) = records
        assert (record.status, record.value) == ("success", "2"), record.error
        assert made() == ["a", "b"]
        assert (await bridge.run("x", session="s")).value == "2"


async def test_a_container_that_is_killed_between_two_cells_is_noticed(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        (name,) = await sandboxes.containers()
        await sandboxes.prepared.engine.kill(name)
        await until(lambda: not bridge._shared.live_sessions.idle)
        record = await bridge.run("x", session="s")
        assert (record.value, record.session["rebuilt"]) == ("1", 1)


async def test_another_bridge_on_the_same_store_goes_on_and_the_first_one_notices(sandboxes, effects):
    server, path, made = effects
    async with sandboxes.open(server) as one:
        await one.run(EDIT.format(path=str(path)) + "x = 1\nawait append('one')", session="s")
        async with sandboxes.open(server) as other:
            record = await other.run("x += 1\nawait append('two')\nx", session="s")
            assert (record.value, record.session["rebuilt"]) == ("2", 1)
            back = await one.run("x", session="s")
            assert (back.value, back.session) == ("2", {"name": "s", "cell": 3, "rebuilt": 2})
            await all_put_away(sandboxes, one, other)
    assert made() == ["one", "two"]


async def test_two_bridges_that_use_a_session_at_once_take_turns_or_are_told_busy(sandboxes):
    async with sandboxes.open() as one, sandboxes.open() as other:
        await one.run("n = 0", session="s")
        done, busy = [], []

        async def work(bridge):
            for _ in range(3):
                try:
                    record = await bridge.run("import time; time.sleep(0.1); n += 1; n", session="s")
                except BridgeError as exc:
                    busy.append(exc.code)
                else:
                    done.append(record.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, one)
            tasks.start_soon(work, other)
        assert done == [str(number) for number in range(1, len(done) + 1)]
        assert set(busy) <= {"busy"}
        assert len(done) >= 3
        await all_put_away(sandboxes, one, other)


async def test_a_key_is_not_spent_by_a_cell_that_finds_its_session_moved(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        # As another bridge does: this one still has the sandbox, and the cell before as it knew it.
        assert await bridge.sessions.end("s")
        record = await bridge.run("y = 5; y", session="s", key="k")
        assert (record.value, record.session) == ("5", {"name": "s", "cell": 1})
        again = await bridge.run("y = 5; y", session="s", key="k")
        assert (again.execution, again.value) == (record.execution, "5")


async def test_a_cell_that_finds_its_session_moved_goes_on_where_it_is_a_few_times(sandboxes, monkeypatch):
    async with sandboxes.open() as bridge, sandboxes.open() as other:
        await bridge.run("n = 0", session="s")
        turn, moves = Bridge._turn, 0

        async def moved_after(self, *given):
            nonlocal moves
            found = await turn(self, *given)
            if moves and self is bridge:
                moves -= 1
                await other.run("n += 1", session="s")
            return found

        monkeypatch.setattr(Bridge, "_turn", moved_after)
        for key in (None, "k"):
            # Which this bridge finds only as it begins: it knew the last cell.
            await other.run("n = 0", session="s")
            moves = MAX_MOVES - 1
            assert (await bridge.run("n", session="s", key=key)).value == str(MAX_MOVES - 1)
        await other.run("n = 0", session="s")
        moves = MAX_MOVES
        with pytest.raises(BridgeError, match="has just used") as caught:
            await bridge.run("n += 10; n", session="s", key="late")
        assert caught.value.code == "busy"
        assert (await other.run("n", session="s")).value == str(MAX_MOVES)
        record = await bridge.run("n += 10; n", session="s", key="late")
        assert (record.value, record.is_previous_result) == (str(MAX_MOVES + 10), False)
        await all_put_away(sandboxes, bridge, other)


async def test_a_refusal_that_leaves_its_key_free_is_nobodys_result(sandboxes, monkeypatch):
    """Another bridge that waits for what the key gives runs the code itself."""
    async with sandboxes.open() as bridge, sandboxes.open() as other:
        await bridge.run("n = 0", session="s")
        # This one knows another last cell than there is by then.
        await other.run("n += 1", session="s")
        refuse, records = Scripts._refuse, []

        async def refused_while_another_waits(self, *given):
            status = await refuse(self, *given)
            records.append(await other.run("n += 1; n", session="s", key="k"))
            return status

        monkeypatch.setattr(Scripts, "_refuse", refused_while_another_waits)
        record = await bridge.run("n += 1; n", session="s", key="k")
        assert [(row.status, row.value, row.is_previous_result) for row in records] == [("success", "2", False)]
        assert (record.execution, record.value, record.is_previous_result) == (records[0].execution, "2", True)
        await all_put_away(sandboxes, bridge, other)


KILLED = """
import os, sys
import anyio
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.ledger.storage import database
from mcp_bridge.settings import Settings

async def main():
    async with open_bridge(Settings(state_dir=sys.argv[1], runtime=sys.argv[2]), ()) as bridge:
        await bridge.run("x = 1", session="s")
        commit = database.commit
        def killed(connection, log, batch):
            written = commit(connection, log, batch)
            if connection.execute("SELECT count(*) FROM executions").fetchone()[0] == 2:
                os.kill(os.getpid(), 9)
            return written
        database.commit = killed
        await bridge.run("x += 1; x", session="s", key="k")

anyio.run(main)
"""


async def test_a_cell_of_a_build_that_showed_values_otherwise_is_rebuilt_with_a_notice(sandboxes, monkeypatch):
    async with sandboxes.open() as bridge:
        with monkeypatch.context() as patch:
            patch.setattr(scripts_lifecycle, "RENDERING_VERSION", 0)
            await bridge.run("import time\nx = 1\ntime.time_ns()", session="s")
        await bridge.run("x += 1", session="s")
        put_away(bridge)
        record = await bridge.run("x", session="s")
        assert (record.value, record.session["rebuilt"]) == ("2", 2)
        assert any(notice.startswith("run again, the value of the cell 1, of another") for notice in record.notices)
        with monkeypatch.context() as patch:
            patch.setattr(scripts_lifecycle, "RENDERING_VERSION", 0)
            await bridge.run("assert time.time_ns() == 0, time.time_ns()", session="s")
        put_away(bridge)
        error = await refused(bridge.run, "x", session="s")
        assert (error.code, error.details["what"]) == ("session_lost", "error"), "that isn't how values are shown"


async def test_what_a_cancelled_cell_had_called_is_told_to_the_next_one_that_leaves_names(sandboxes):
    async with sandboxes.open(faulty()) as bridge:
        await bridge.run("from mcp.servers import faulty\nx = 1", session="s")
        begun = anyio.Event()
        slow = "call = asyncio.ensure_future(faulty.sleep(seconds=60))\nawait asyncio.sleep(0.5)\nprogress(1, 2, '')\nawait call"
        code = f"import asyncio\nawait faulty.echo(text='a')\n{slow}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(bridge.run, code, session="s", progress=lambda *_: begun.set()))
            await begun.wait()
            tasks.cancel_scope.cancel()
        told = [notice for notice in (await bridge.run("x", session="s")).notices if "was cancelled" in notice]
        assert told[0].startswith(
            "the cell 2 was cancelled. These calls of it were answered: faulty.echo (call 0#1)."
            " Nobody has seen whether this has happened: faulty.sleep (call 0.1#1)."
        )
        put_away(bridge)
        assert not [notice for notice in (await bridge.run("x", session="s")).notices if "was cancelled" in notice]


async def test_a_fork_that_is_refused_does_not_wait_for_another_bridges_cell_of_its_name(sandboxes):
    async with sandboxes.open() as bridge, sandboxes.open() as other, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(bridge.run, "import time; time.sleep(60)", session="t"))

        async def runs():
            return await other.sessions._heads.head("local", "t")

        await until(runs)
        # A cell that is under way in this process, or in another, for whose end a turn waits.
        with anyio.fail_after(30):
            await other.sessions.forget_unmade_fork("t")
        assert await runs()
        tasks.cancel_scope.cancel()


async def test_what_interrupts_a_draw_may_draw_and_fork(sandboxes):
    code = """
import os, signal
drawn, held = [], []
def on_alarm(number, frame):
    drawn.append(os.urandom(8))
    if not os.fork():
        os._exit(len(os.urandom(8)))
    held.append(os.waitstatus_to_exitcode(os.wait()[1]))
signal.signal(signal.SIGALRM, on_alarm)
while len(drawn) < 20:
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    os.urandom(1 << 18)
print(len(set(drawn)) == len(drawn), set(held))
"""
    async with sandboxes.open() as bridge:
        record = await bridge.run(code, session="s", timeout=60)
        assert (record.status, printed(record)) == ("success", "True {8}\n"), record.error


async def test_a_keyed_cell_whose_host_is_killed_as_soon_as_it_is_stored_is_its_sessions_and_goes_on(
    sandboxes, tmp_path
):
    state = tmp_path / "killed"
    work = [sys.executable, "-c", KILLED, str(state), sandboxes.settings.runtime]
    ended = await anyio.run_process(work, check=False)
    assert ended.returncode == -9, ended.stderr.decode()
    async with sandboxes.open(state_dir=state) as bridge:
        record = await bridge.run("x += 1; x", session="s", key="k")
        assert (record.value, record.session) == ("2", {"name": "s", "cell": 2, "rebuilt": 1})


async def test_a_cell_that_does_another_thing_stops_the_rebuilding_with_both_sides(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        told = printed(await bridge.run("import time\nprint(time.time_ns())", session="s")).strip()
        await bridge.run("x = 2", session="s")
        put_away(bridge)
        error = await refused(bridge.run, "x = 3", session="s")
        assert error.code == "session_lost"
        assert (error.details["cell"], error.details["what"]) == (2, "stdout")
        assert told in error.details["recorded"]
        assert error.details["actual"].strip() != told
        assert "s@1" in error.hint
        # It stays lost, and a fork from before it goes on.
        assert (await refused(bridge.run, "x", session="s")).code == "session_lost"
        assert [row["state"] for row in await bridge.listed_sessions()] == ["lost"]
        fork = await bridge.run("x", session="t", fork="s@1")
        assert (fork.value, fork.session) == ("1", {"name": "t", "cell": 2, "rebuilt": 1})
        assert await sandboxes.containers(), "the fork's"


async def test_addresses_threads_and_standard_error_may_differ(bilingual):
    cell = {
        "python": """
import sys, threading, time
class Picture:
    def __repr__(self): return f"<Picture at 0x{id(self):X}>"
print(time.time_ns(), file=sys.stderr)
thread = threading.Thread(target=lambda: print(threading.current_thread()))
thread.start()
thread.join()
print(threading.main_thread(), Picture())
Picture()
""",
        "javascript": "console.error(performance.now(), Date.now())",
    }
    async with bilingual.open() as opened:
        first = await opened.run(cell, session="s")
        assert first.status == "success", first.error
        put_away(opened.bridge)
        again = await opened.run({"python": "1", "javascript": "1"}, session="s")
        assert (again.value, again.session["rebuilt"]) == ("1", 1)


async def test_a_cell_that_makes_another_call_stops_the_rebuilding_and_the_call_is_not_made(sandboxes, effects):
    server, path, made = effects
    async with sandboxes.open(server) as bridge:
        await bridge.run(EDIT.format(path=str(path)), session="s")
        await bridge.run("import time\nt = await append(str(time.time_ns()))", session="s")
        put_away(bridge)
        error = await refused(bridge.run, "1", session="s")
        assert (error.code, error.details["cell"], error.details["what"]) == ("session_lost", 2, "call")
        assert len(made()) == 1


async def test_a_session_whose_server_is_gone_is_rebuilt_once_it_is_configured_again(sandboxes, effects):
    server, path, made = effects
    async with sandboxes.open(server) as bridge:
        await bridge.run(EDIT.format(path=str(path)) + "await append('once')", session="s")
    async with sandboxes.open() as bridge:
        error = await refused(bridge.run, "1", session="s")
        assert (error.code, error.details["cell"]) == ("session_not_rebuilt", 1)
        assert "without the server 'filesystem', which isn't configured." in error.message
        assert "Once the server is there again, the session is rebuilt." in error.hint
    async with sandboxes.open(server) as bridge:
        assert (await bridge.run("1", session="s")).session["rebuilt"] == 1
    assert made() == ["once"]


async def test_addresses_in_texts_may_differ(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("o = object()\nprint(o)\nx = 1", session="s")
        put_away(bridge)
        assert (await bridge.run("x", session="s")).value == "1"


async def test_an_interrupted_cell_loses_the_session_once_its_sandbox_is_gone(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        record = await bridge.run("while True: x += 1", session="s", timeout=1)
        assert record.session["interrupted"]
        assert int((await bridge.run("x", session="s")).value) > 1
        put_away(bridge)
        error = await refused(bridge.run, "x", session="s")
        assert (error.code, error.details["cell"]) == ("session_lost", 2)
        assert "interrupted" in error.message
        assert (await bridge.run("x", session="t", fork="s@1")).value == "1"
        assert (await refused(bridge.run, "x", session="u", fork="s@2")).code == "unknown_cell"


async def test_what_is_told_of_a_lost_session_can_be_done(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        assert "the next call has what was there before it" in (await bridge.run(EXITS, session="s")).notices[-1]
        await bridge.run("while True: pass", session="s", timeout=1)
        ended = await bridge.run(EXITS, session="s")
        error = await refused(bridge.run, "await runtime.end_session('s')", session="s")
        assert ended.notices[-1].endswith(f"which has left nothing: {error.message} {error.hint}")
        # Not the cell just before, which has left nothing.
        assert "fork='s@1'" in error.hint
        assert "from a script outside of it: await runtime.end_session('s'); or mcp-bridge session end s." in error.hint
        of_nothing = await refused(bridge.run, "x", session="t", fork="s@2")
        assert (of_nothing.code, "fork='s@1'" in of_nothing.hint) == ("unknown_cell", True)
        assert (await bridge.run("x", session="t", fork="s@1")).value == "1"
        assert (await bridge.run("await runtime.end_session('s')")).value == "True"
        assert (await bridge.run("'anew'", session="s")).value == "'anew'"


async def test_a_session_that_had_nothing_before_it_was_lost_names_no_cell_to_fork(sandboxes):
    async with sandboxes.open(sessions=SessionSettings(rebuild=False)) as bridge:
        await bridge.run(EXITS, session="s")
        await bridge.run("while True: pass", session="s", timeout=1)
        put_away(bridge)
        assert "fork=" not in (await refused(bridge.run, "1", session="s")).hint
        await bridge.run("x = 1", session="t")
        ended = await bridge.run(EXITS, session="t")
        assert "sessions aren't rebuilt here" in ended.notices[-1]


async def test_an_interrupted_cell_of_a_command_says_that_the_session_ends_with_the_command(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run("while True: pass", session="s", timeout=1, starter="operator")
        way = "to start over, end it: mcp-bridge session end s"
        assert record.notices[-1].endswith(f"can't be rebuilt past this cell; {way}")
        await bridge.run("x = 1", session="t")
        for cell in (2, 3):
            record = await bridge.run("while True: pass", session="t", timeout=1, starter="operator")
            assert record.session["cell"] == cell
            # The cell just before has left nothing, the second time.
            way = "to go on from before it, fork it: --session NAME --fork t@1"
            assert record.notices[-1].endswith(f"can't be rebuilt past this cell; {way}")


RACES = {
    "wait": (
        "import asyncio\nfrom mcp.servers import faulty\ntask = asyncio.ensure_future(faulty.sleep(seconds=1.5))\n"
        "done, _ = await asyncio.wait([task], timeout=0.3)\nprint(len(done), await task)"
    ),
    "another call": (
        "import asyncio\nfrom mcp.servers import faulty\ntask = asyncio.ensure_future(faulty.sleep(seconds=1.5))\n"
        "done, _ = await asyncio.wait([task], timeout=0.3)\n"
        "await task\nprint(await faulty.echo('quick' if done else 'slow'))"
    ),
    "clock": (
        "import time\nfrom mcp.sync.servers import faulty\nbegan = time.monotonic()\nfaulty.sleep(seconds=1.5)\n"
        "print('slow' if time.monotonic() - began > 1 else 'quick')"
    ),
}
"""Cells whose output depends on how long a call takes."""


@pytest.mark.parametrize("race", RACES)
async def test_a_timer_that_was_faster_than_a_call_is_so_again_when_the_session_is_rebuilt(sandboxes, race):
    async with sandboxes.open(faulty()) as bridge:
        told = []
        first = await bridge.run(RACES[race], session="s")
        await bridge.run("x = 1", session="s")
        put_away(bridge)
        after = await bridge.run("x", session="s", notify=told.append)
        assert (first.status, after.value, after.session["rebuilt"]) == ("success", "1", 2)
        # Only then do its calls take as long as they did.
        assert [text for text in told if "cell 1 of 2" in text] == ["rebuilding the session s: cell 1 of 2"] * 2
        stored = await bridge.lifecycle.stored(first.execution, "local")
        assert (await bridge.replay_execution(stored)).agrees


async def test_a_cell_that_did_something_else_at_its_pace_too_has_lost_the_session(sandboxes, monkeypatch):
    async with sandboxes.open(faulty()) as bridge:
        await bridge.run(
            "import time\nfrom mcp.servers import faulty\nawait faulty.echo('a')\nprint(time.time())", session="s"
        )
        for most, runs in ((answer_order.MAX_PACED_SECONDS, 2), (0.0, 1)):
            told = []
            monkeypatch.setattr(answer_order, "MAX_PACED_SECONDS", most)
            put_away(bridge)
            error = await refused(bridge.run, "1", session="s", notify=told.append)
            assert (error.code, error.details["what"]) == ("session_lost", "stdout")
            assert len(told) == runs


async def states(bridge):
    """What `runtime.sessions()` and the resource say, and what a command says, which sees no sandbox."""
    here = {row["name"]: row["state"] for row in await bridge.listed_sessions()}
    return here, {row.name: row.state for row in await bridge.sessions.listed()}


async def test_a_session_that_can_not_be_rebuilt_is_listed_as_lost_once_no_sandbox_has_it(sandboxes, tmp_path):
    governance = load_governance({"projection": {"patterns": ["email"]}}, None, tmp_path, tmp_path)
    async with sandboxes.open(governance=governance) as bridge:
        await bridge.run("x = 1\nwhile True: pass", session="interrupted", timeout=1)
        erased = await bridge.run("x = 1", session="erased")
        await bridge.run("x = 'anna@example.com'", session="value")
        for name in ("interrupted", "erased", "value", "whole"):
            await bridge.run("y = 1", session=name)
        await erase(bridge.database, bridge.files, "execution", erased.execution, by="test", reason=None)
        (value,) = await bridge.database.read("SELECT id FROM reference_values")
        await erase(bridge.database, bridge.files, "reference", value[0], by="test", reason=None)
        # One whose last cell is erased, with the one before, has no name any more, and can't go on in its sandbox.
        lost = dict.fromkeys(("interrupted", "", "value"), "lost")
        ready = dict.fromkeys(("interrupted", "value", "whole"), "ready")
        assert await states(bridge) == ({**ready, "": "lost"}, lost | {"whole": "idle"})
        assert (await bridge.run("y", session="interrupted")).value == "1"
        put_away(bridge)
        assert await states(bridge) == (lost | {"whole": "idle"},) * 2
        for name in ("interrupted", "erased", "value"):
            assert (await refused(bridge.run, "y", session=name)).code == "session_lost"
        assert (await bridge.run("y", session="whole")).value == "1"


async def test_where_sessions_are_not_rebuilt_one_without_a_sandbox_is_listed_as_lost(sandboxes):
    async with sandboxes.open(sessions=SessionSettings(rebuild=False)) as bridge:
        await bridge.run("x = 1", session="s")
        await bridge.run("import os; os._exit(1)", session="empty")
        assert (await states(bridge))[0] == {"s": "ready", "empty": "idle"}
        put_away(bridge)
        assert (await states(bridge))[0] == {"s": "lost", "empty": "idle"}
        assert (await refused(bridge.run, "x", session="s")).code == "session_not_rebuilt"
        assert (await bridge.run("1", session="empty")).value == "1"


async def test_an_erased_cell_loses_the_session_although_it_has_its_sandbox(sandboxes):
    async with sandboxes.open() as bridge:
        first = await bridge.run("x = 1", session="s")
        await bridge.run("x += 1", session="s")
        await erase(bridge.database, bridge.files, "execution", first.execution, by="test", reason=None)
        for _ in range(2):
            error = await refused(bridge.run, "x", session="s")
            assert error.code == "session_lost"
            assert "erased" in error.message
        assert await bridge.end_session("s")
        assert (await bridge.run("1", session="s")).session == {"name": "s", "cell": 1}


async def test_a_cell_that_waited_longer_than_payloads_are_kept_goes_on_with_what_the_cells_before_had_left(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        await bridge.run("x += 1", session="s")
        other = await bridge.run("x = 1", session="unused")
        waits = "x += await runtime.wait_event('go')\nx"
        waiting = await bridge.run(waits, session="s")
        assert waiting.status == "suspended"
        by = "keep_payloads_days"
        erased = await erase(bridge.database, bridge.files, "age", time.time() + 100, by=by, reason=None)
        assert erased.executions == (other.execution,)
        await bridge.send_event(waiting.execution, "go", 40, "test", and_resume=False)
        record = await bridge.run(waits, session="s")
        assert (record.value, record.session["rebuilt"]) == ("42", 2)


async def test_a_session_whose_last_cell_is_erased_takes_no_place_and_can_be_ended(sandboxes):
    from mcp_bridge.executions.erasure_with_files import erase

    async with sandboxes.open(sessions=SessionSettings(max_sessions=1)) as bridge:
        told = await bridge.run("x = 1", session="s")
        assert (await refused(bridge.run, "1", session="t")).code == "too_many_sessions"
        put_away(bridge)
        await erase(bridge.database, bridge.files, "execution", told.execution, by="test", reason=None)
        assert (await bridge.run("1", session="t")).session == {"name": "t", "cell": 1}
        assert sorted(row["name"] for row in await bridge.listed_sessions()) == ["", "t"]
        assert (await refused(bridge.run, "x", session="s")).code == "session_lost"
        assert await bridge.end_session(told.execution)
        assert [row["name"] for row in await bridge.listed_sessions()] == ["t"]


async def test_a_cell_with_an_erased_value_loses_the_session_once_its_sandbox_is_gone(sandboxes, tmp_path):
    from mcp_bridge.executions.erasure_with_files import erase

    governance = load_governance({"projection": {"patterns": ["email"]}}, None, tmp_path, tmp_path)
    async with sandboxes.open(governance=governance) as bridge:
        await bridge.run("y = 1", session="s")
        told = await bridge.run("x = 'anna@example.com'", session="s")
        (name,) = await bridge.lifecycle.store.values(told.execution)
        await erase(bridge.database, bridge.files, "reference", name, by="test", reason=None)
        put_away(bridge)
        error = await refused(bridge.run, "x", session="s")
        assert (error.code, error.details["cell"]) == ("session_lost", 2)
        assert "a value of it is erased" in error.message
        assert (await bridge.run("y", session="t", fork="s@1")).value == "1"


async def test_rebuilding_is_bounded_and_can_be_switched_off(sandboxes):
    for changes, words in (
        ({"rebuild": False}, "aren't rebuilt"),
        ({"rebuild_cells": 2}, "More than 2 cells"),
        ({"rebuild_seconds": 0.05}, "the limit"),
    ):
        async with sandboxes.open(sessions=SessionSettings(**changes)) as bridge:
            name = next(iter(changes))
            for _ in range(3):
                await bridge.run("import time; time.sleep(0.05)", session=name)
            put_away(bridge)
            error = await refused(bridge.run, "1", session=name)
            assert error.code == "session_not_rebuilt"
            assert words in error.message


async def test_cells_that_have_left_nothing_are_bounded_too(sandboxes):
    async with sandboxes.open(sessions=SessionSettings(rebuild_cells=1)) as bridge:
        await bridge.run("x = 1", session="s")
        for _ in range(3):
            assert (await bridge.run("import os; os._exit(1)", session="s")).status not in {"success", "error", "exit"}
        assert (await bridge.run("import os; os._exit(1)", session="s")).session == {
            "name": "s",
            "cell": 5,
            "rebuilt": 1,
        }
        error = await refused(bridge.run, "x", session="s")
        assert (error.code, "more than 4 cells" in error.message) == ("session_not_rebuilt", True)


async def test_a_cell_that_takes_longer_than_it_may_when_it_runs_again_is_not_told_lost(sandboxes, tmp_path):
    async with sandboxes.open(state_dir=tmp_path / "state") as bridge:
        await bridge.run("import time; time.sleep(2); x = 1", session="s")
    async with sandboxes.open(state_dir=tmp_path / "state", timeout=1, max_timeout=1) as bridge:
        error = await refused(bridge.run, "x", session="s")
        assert error.code == "session_not_rebuilt"
        assert "1 s" in error.message
        assert "max_timeout" in error.hint
    async with sandboxes.open(state_dir=tmp_path / "state") as bridge:
        assert (await bridge.run("x", session="s")).value == "1"


LARGE = {
    "memory": ("b = b'x' * (200 << 20)", {"memory": 128 << 20}),
    "max_output_size": ("print('x' * 300_000)", {"max_output_size": 1 << 17}),
}


@pytest.mark.parametrize("setting", LARGE)
async def test_a_cell_for_which_the_limits_of_now_are_too_low_is_not_told_lost(sandboxes, tmp_path, setting):
    code, low = LARGE[setting]
    async with sandboxes.open(state_dir=tmp_path / "state") as bridge:
        await bridge.run(code, session="s")
    async with sandboxes.open(state_dir=tmp_path / "state", **low) as bridge:
        error = await refused(bridge.run, "1", session="s")
        assert (error.code, f"raise {setting}." in error.hint) == ("session_not_rebuilt", True)
        assert [row["state"] for row in await bridge.listed_sessions()] == ["idle"]
    async with sandboxes.open(state_dir=tmp_path / "state") as bridge:
        assert (await bridge.run("1", session="s")).session == {"name": "s", "cell": 2, "rebuilt": 1}


async def test_a_cell_that_fails_when_it_runs_again_is_told_with_its_error(sandboxes, tmp_path):
    async with sandboxes.open(state_dir=tmp_path / "state") as bridge:
        await bridge.run("open('a', 'w').write('x' * 3000); artifact('a')", session="s")
    async with sandboxes.open(state_dir=tmp_path / "state", max_artifact_size=1000) as bridge:
        error = await refused(bridge.run, "1", session="s")
        assert (error.code, error.details["what"]) == ("session_lost", "status")
        assert "is error; it ended so: The artifacts of this run are over 1000 bytes" in error.message


async def test_running_again_writes_no_file_that_a_killed_host_would_leave(sandboxes, tmp_path, monkeypatch):
    async with sandboxes.open() as bridge:
        record = await bridge.run(
            "open('/workspace/out/a', 'w').write('x'); open('b', 'w').write('y'); artifact('b')", session="s"
        )
        kept = [path.stat().st_mtime_ns for path in sandboxes.settings.state_dir.glob("files/*/*")]
        assert len(kept) == 2
        put_away(bridge)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
        assert (await bridge.run("1", session="s")).session["rebuilt"] == 1
        replayed = await bridge.replay_execution(await bridge.lifecycle.stored(record.execution, "local"))
        assert replayed.difference is None
        assert [path.stat().st_mtime_ns for path in sandboxes.settings.state_dir.glob("files/*/*")] == kept


async def test_a_fork_by_name_alone_is_not_made_without_what_its_last_cell_has_left(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        await bridge.run("x = 2\nwhile True: pass", session="s", timeout=1)
        error = await refused(bridge.run, "x", session="t", fork="s")
        assert (error.code, error.details["cell"]) == ("session_lost", 2)
        assert "fork='s@1'" in error.hint
        assert (await bridge.run("x", session="s")).value == "2"


async def test_a_fork_past_an_erased_cell_is_refused_by_the_sessions_name(sandboxes):
    async with sandboxes.open() as bridge:
        records = [await bridge.run(f"x = {number}", session="s") for number in range(3)]
        # As where room is needed: the cells after it stay.
        await erase_ended(bridge.database, [records[1].execution], by="max_size", under_way=under_way(bridge.database))
        for fork in ("s@1", "s@2"):
            error = await refused(bridge.run, "x", session="t", fork=fork)
            assert (error.code, "'s' can't be forked there" in error.message) == ("session_lost", True)
        assert [row["name"] for row in await bridge.listed_sessions()] == ["s"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_fork_that_could_not_be_made_leaves_its_name_for_another(sandboxes, key):
    async with sandboxes.open(sessions=SessionSettings(max_sessions=2)) as bridge:
        await bridge.run("x = 1", session="s")
        await bridge.run("import time; print(time.time_ns())", session="s")
        error = await refused(bridge.run, "x", session="t", fork="s@2", key=key)
        assert (error.code, error.details["session"], error.details["cell"]) == ("session_lost", "s", 2)
        assert "The session 't' can't be forked: it needs what the cell 2 of 's' (" in error.message
        assert ("'s' is as it was" in error.hint, "end_session" in error.hint) == (True, False)
        assert (await bridge.run("x", session="s")).session == {"name": "s", "cell": 3}, "which has its sandbox"
        if key is None:
            assert [row["name"] for row in await bridge.listed_sessions()] == ["s"]
            assert (await bridge.run("1", session="t")).session == {"name": "t", "cell": 1}
            assert (await refused(bridge.run, "x", session="t", fork="s@2")).code == "session_exists"
            await bridge.end_session("t")
        fork = await bridge.run("x", session="t", fork="s@1")
        assert (fork.value, fork.session) == ("1", {"name": "t", "cell": 2, "rebuilt": 1})
        if key is not None:
            # The one that its key had begun has no place any more.
            assert (await refused(bridge.run, "x", session="t", fork="s@2", key=key)).code == "not_suspended"
        assert (await refused(bridge.run, "x", session="t", fork="s@1")).code == "session_exists"


async def test_a_fork_that_is_lost_with_a_cell_of_its_origin_is_told_by_its_own_name(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        await bridge.run("import shutil; print(shutil.disk_usage('/workspace').total)", session="s")
        assert (await bridge.run("x", session="t", fork="s")).value == "1"
    async with sandboxes.open(workspace_size=32 << 20) as bridge:
        error = await refused(bridge.run, "x", session="t")
        assert "the session 't' is lost from the cell 2 of 's' (" in error.message
        assert "fork='s@1'" in error.hint
        assert "end_session('t')" in error.hint


async def test_a_fork_that_is_made_again_is_not_given_what_came_of_the_first_one(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        waits = "await runtime.wait_event('go', timeout=1000)"
        first = await bridge.run(waits, session="t", fork="s")
        assert first.status == "suspended"
        await bridge.end_session("t")
        again = await bridge.run(waits, session="t", fork="s")
        assert (again.status, again.execution != first.execution) == ("suspended", True)
        assert (await bridge.run(waits, session="t")).execution == again.execution


async def test_a_fork_goes_on_from_its_cell_and_the_origin_does_not_notice(sandboxes):
    async with sandboxes.open() as bridge:
        for number in range(1, 6):
            await bridge.run(f"x = {number}", session="s")
        fork = await bridge.run("x", session="t", fork="s@3")
        assert (fork.value, fork.session) == ("3", {"name": "t", "cell": 4, "rebuilt": 3})
        await bridge.run("x = 'fork'", session="t")
        assert (await bridge.run("x", session="s")).value == "5"
        put_away(bridge)
        assert (await bridge.run("x", session="t")).value == "'fork'"
        assert (await bridge.run("x", session="v", fork="s")).value == "5"
        for options, code in (
            ({"session": "t", "fork": "s@1"}, "session_exists"),
            ({"session": "w", "fork": "s@99"}, "unknown_cell"),
            ({"session": "w", "fork": "s@x"}, "unknown_cell"),
            ({"session": "w", "fork": "nobody@1"}, "unknown_session"),
            ({"fork": "s@1"}, "bad_arguments"),
        ):
            assert (await refused(bridge.run, "1", **options)).code == code


async def test_a_fork_with_a_key_gives_its_answer_again(sandboxes):
    async with sandboxes.open(sessions=SessionSettings(max_sessions=2)) as bridge:
        await bridge.run("x = 1", session="s")
        fork = {"session": "t", "fork": "s@1", "key": "k"}
        record = await bridge.run("x += 1; x", **fork)
        again = await bridge.run("x += 1; x", **fork)
        assert (again.execution, again.value, again.is_previous_result) == (record.execution, "2", True)
        assert (await bridge.run("x", session="t")).value == "2"
        assert (await refused(bridge.run, "x", session="t", fork="s@1", key="l")).code == "session_exists"
        # Its session has ended, and others have taken the place.
        await bridge.end_session("t")
        await bridge.run("1", session="u")
        assert (await bridge.run("x += 1; x", **fork)).execution == record.execution
        assert (await refused(bridge.run, "1", session="v", key="m")).code == "too_many_sessions"


async def test_the_record_says_where_a_session_was_rebuilt_and_from_what(sandboxes):
    async with sandboxes.open() as bridge:
        first = await bridge.run("x = 1", session="s")
        put_away(bridge)
        second = await bridge.run("x", session="s")
        entries = await bridge.lifecycle.recorder.read(second.execution)
        start, end = (understood(entries[place]) for place in (0, -1))
        assert isinstance(start, ScriptStart)
        assert isinstance(end, ScriptEnd)
        assert (start.cell.session, start.cell.number, start.cell.previous) == ("s", 2, first.execution)
        assert end.rebuilt == 1
        assert len(await bridge.lifecycle.recorder.read(first.execution)) == 2, (
            "nothing was recorded of the cell that ran again"
        )


async def test_the_viewer_shows_a_cells_place_the_cells_before_it_and_where_it_was_rebuilt(sandboxes):
    async with sandboxes.open() as bridge:
        first = await bridge.run("x = 1\nprint('one')", session="s")
        put_away(bridge)
        second = await bridge.run("x", session="s")
        stored = [await bridge.lifecycle.stored(record.execution, "local") for record in (second, first)]
    shown = page_data.session(stored[0], stored[1:])
    assert (shown["name"], shown["cell"], shown["rebuilt"], shown["interrupted"]) == ("s", 2, 1, False)
    (cell,) = shown["before"]
    assert (cell["id"], cell["cell"], cell["status"], cell["left"]) == (first.execution, 1, "success", "names")
    assert (cell["source"]["text"], cell["output"]["text"]) == ("x = 1\nprint('one')", "one\n")


async def test_a_cell_is_replayed_after_the_cells_before_it(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        record = await bridge.run("x + 1", session="s")
        stored = await bridge.lifecycle.stored(record.execution, "local")
        replayed = await bridge.replay_execution(stored)
        assert replayed.difference is None
        assert (await bridge.run("x", session="s")).value == "1"
