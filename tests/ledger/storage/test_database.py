"""The file in which executions are kept: one bad write harms nobody else, and nobody waits for ever."""

import asyncio
import itertools
import os
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from execution_fixtures import until
from tampered_fixtures import Writer, execution

from mcp_bridge.errors import BridgeError
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.log.transaction import commit
from mcp_bridge.ledger.storage import database as database_module
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore, SavedProgram
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.settings import Settings


@pytest.fixture
async def database(tmp_path):
    async with Database(tmp_path / FILE_NAME) as opened:
        yield opened


async def test_a_text_that_is_no_unicode_is_refused_and_the_next_is_taken(database):
    store = ProgramStore(database)
    with pytest.raises(BridgeError, match="lone surrogate"):
        await store.execution("\ud800")
    with pytest.raises(BridgeError, match="lone surrogate"):
        await store.save_program("me", SavedProgram("\udcff", "h", {}, 0.0))
    await store.save_program("me", SavedProgram("né", "h", {}, 0.0))
    assert [kept.name for kept in await store.programs("me")] == ["né"]


async def test_whoever_waits_is_told_when_a_write_fails_whatever_the_fault_is(database):
    recorder = SqliteRecorder(database)
    await recorder.append(Entry("start", "a"))
    database.post("INSERT INTO entries (time) VALUES (?)", (2**70,))
    results = await asyncio.gather(*(recorder.append(Entry("intent", "a")) for _ in range(5)), return_exceptions=True)
    assert [error.code for error in results] == ["not_recorded"] * 5
    with pytest.raises(BridgeError, match="can't be written"):
        await recorder.read("a")


async def test_nothing_is_written_into_a_file_that_was_taken_away(tmp_path):
    place = tmp_path / "state"
    place.mkdir(0o700)
    async with Database(place / FILE_NAME) as database:
        await SqliteRecorder(database).append(Entry("start", "a"))
        place.rename(tmp_path / "moved")
        place.mkdir(0o700)
        worked = []
        for write in (database.transact, database.run_outside_transaction):
            with pytest.raises(BridgeError, match="was taken away") as refused:
                await write(worked.append)
            assert refused.value.code == "not_recorded"
        (place / FILE_NAME).touch()
        with pytest.raises(BridgeError, match="was taken away"):
            await SqliteRecorder(database).append(Entry("intent", "a"))
        assert worked == []


async def test_what_is_begun_is_written_when_somebody_waits_for_it(database, monkeypatch):
    monkeypatch.setattr(database_module, "LAZY_SECONDS", 1000.0)
    commits = []

    def counted(*arguments):
        commits.append(arguments)
        return commit(*arguments)

    monkeypatch.setattr(database_module, "commit", counted)
    recorder = SqliteRecorder(database)
    change = "UPDATE executions SET status = ? WHERE id = ?"
    recorded = database.begin_write(change, ("success", "none"), None, Entry("start", "a"))
    await anyio.wait_all_tasks_blocked()
    assert commits == []
    assert await recorded() == 0
    assert await recorded() == 0
    assert len(commits) == 1
    again = database.begin_write(change, ("success", "none"))
    await recorder.append(Entry("start", "b"))
    assert len(commits) == 2, "what others wait for takes it along"
    assert await again() == 0
    assert len(commits) == 2


async def test_what_is_begun_and_never_waited_for_is_written_too(database):
    recorder = SqliteRecorder(database)
    database.begin_write("UPDATE executions SET status = ? WHERE id = ?", ("success", "none"))
    recorder.post(Entry("start", "a"))
    await until(lambda: database._count_written == 2)
    assert len(await recorder.read("a")) == 1


async def test_each_writer_gets_the_failure_of_its_own_transaction_only(database):
    recorder = SqliteRecorder(database)
    good = database.begin_write("UPDATE executions SET status = ? WHERE id = ?", ("success", "none"))
    await recorder.append(Entry("start", "a"))
    bad = database.begin_write("INSERT INTO entries (time) VALUES (?)", (2**70,))
    with pytest.raises(BridgeError, match="can't be written"):
        await bad()
    assert await good() == 0
    with pytest.raises(BridgeError, match="can't be written"):
        await bad()
    late = database.begin_write("UPDATE executions SET status = ? WHERE id = ?", ("success", "none"))
    with pytest.raises(BridgeError, match="can't be written"):
        await late()


async def test_nothing_of_a_batch_that_fails_is_kept(tmp_path):
    async with Database(tmp_path / FILE_NAME) as database:
        recorder = SqliteRecorder(database)
        await recorder.append(Entry("start", "a"))
        recorder.post(*(Entry("outcome", "a") for _ in range(100)))
        database.post("INSERT INTO nowhere (x) VALUES (?)", (1,))
        with pytest.raises(BridgeError, match="nowhere"):
            await recorder.append(Entry("intent", "a"))
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        assert connection.execute("SELECT kind FROM entries ORDER BY sequence").fetchall() == [("key",), ("start",)]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 83, 84, 85, 5000])
async def test_entries_posted_together_keep_their_order(database, count):
    recorder = SqliteRecorder(database)
    recorder.post(*(Entry("outcome", "a", {"number": number}) for number in range(count)))
    database.post("DELETE FROM programs WHERE name = ?", ("none",))
    await recorder.append(Entry("end", "a"))
    rows = await recorder.read("a")
    assert [row.entry.payload.get("number") for row in rows] == [*range(count), None]
    assert [row.sequence for row in rows] == sorted(row.sequence for row in rows)


async def test_who_gives_up_waiting_takes_nothing_from_the_others(database):
    recorder = SqliteRecorder(database)
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(recorder.append, Entry("intent", "a", {"number": number}))
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    await recorder.append(Entry("end", "a"))
    assert [row.entry.payload.get("number") for row in await recorder.read("a")] == [*range(20), None]


async def test_a_write_in_one_database_is_seen_at_once_by_another(tmp_path):
    async with Database(tmp_path / FILE_NAME) as one, Database(tmp_path / FILE_NAME) as two:
        for number in range(50):
            await SqliteRecorder(one).append(Entry("intent", "a"))
            assert len(await SqliteRecorder(two).read("a")) == number + 1


async def test_many_that_begin_one_file_at_once_all_use_it(tmp_path):
    async def use(number):
        async with Database(tmp_path / FILE_NAME) as database:
            await SqliteRecorder(database).append(Entry("intent", "a", {"number": number}))

    async with anyio.create_task_group() as tasks:
        for number in range(24):
            tasks.start_soon(use, number)
    async with Database(tmp_path / FILE_NAME) as database:
        assert len(await SqliteRecorder(database).read("a")) == 24


async def test_a_database_that_is_closed_says_so(tmp_path):
    async with Database(tmp_path / FILE_NAME) as database:
        recorder = SqliteRecorder(database)
        await recorder.append(Entry("start", "a"))
    for asked in (recorder.append(Entry("end", "a")), recorder.read("a"), database.write("DELETE FROM entries", ())):
        with pytest.raises(BridgeError, match="closed"):
            await asked


async def test_who_writes_while_it_is_closed_is_not_left_waiting(tmp_path):
    async def write(recorder, number):
        try:
            await recorder.append(Entry("intent", "a", {"number": number}))
        except BridgeError as exc:
            return exc.code
        return "recorded"

    async with Database(tmp_path / FILE_NAME) as database:
        recorder = SqliteRecorder(database)
        writes = []
        for number in range(20):
            writes.append(asyncio.ensure_future(write(recorder, number)))
            await anyio.lowlevel.checkpoint()
    told = await asyncio.wait_for(asyncio.gather(*writes), 20)
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        (kept,) = connection.execute("SELECT count(*) FROM entries WHERE kind = 'intent'").fetchone()
    assert told.count("recorded") <= kept
    assert set(told) <= {"recorded", "not_recorded"}


async def test_callers_that_shared_a_transaction_go_on_in_turns_of_their_own_if_they_are_slow(tmp_path):
    loop, turns, seen, numbers = asyncio.get_running_loop(), [0], [], itertools.count()

    def turn():
        turns[0] += 1
        ticking[0] = loop.call_soon(turn)

    ticking = [loop.call_soon(turn)]

    async def caller(database):
        database.post(
            "INSERT INTO reference_values (execution, id, value) VALUES ('x', ?, NULL)", (str(next(numbers)),)
        )
        await database.flush()
        seen.append(turns[0])
        time.sleep(0.005)  # noqa: ASYNC251 - it holds the loop up: that is the case

    async with Database(tmp_path / "file") as database:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(6):
                tasks.create_task(caller(database))
        assert len(set(seen)) == len(seen) == 6
    ticking[0].cancel()


async def test_callers_that_are_quick_go_on_together(database, monkeypatch):
    monkeypatch.setattr(database_module, "QUICK_SECONDS", 1000.0)
    recorder, loop, turns, seen = SqliteRecorder(database), asyncio.get_running_loop(), [0], []

    def turn():
        turns[0] += 1
        ticking[0] = loop.call_soon(turn)

    async def caller():
        await recorder.append(Entry("intent", "a"))
        seen.append(turns[0])

    ticking = [loop.call_soon(turn)]
    for _ in range(5):
        seen.clear()
        await asyncio.gather(*(caller() for _ in range(12)))
    ticking[0].cancel()
    assert len(seen) == 12
    assert len(set(seen)) == 2, "the first was written alone, and the others together"


async def test_what_is_posted_together_is_done_together_whatever_is_before_it(tmp_path, monkeypatch):
    batches = []

    def noted(connection, log, batch):
        batches.append(len(batch))
        return commit(connection, log, batch)

    monkeypatch.setattr(database_module, "commit", noted)
    monkeypatch.setattr(database_module, "MAX_BATCH", 5)
    async with Database(tmp_path / FILE_NAME) as database:
        names = map(str, itertools.count())

        async def add(count):
            for _ in range(count):
                database.post("INSERT INTO meta VALUES (?, '')", (next(names),))
            await database.flush()

        await asyncio.gather(*map(add, (4, 3, 7, 2, 2)))
    assert batches == [4, 3, 7, 4]


async def test_what_nobody_waits_for_is_durable_soon(tmp_path):
    async with Database(tmp_path / FILE_NAME) as database:
        database.post("INSERT INTO meta VALUES ('a', '')", ())
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, anyio.fail_after(5):
            while not connection.execute("SELECT count(*) FROM meta WHERE name = 'a'").fetchone()[0]:  # noqa: ASYNC110
                await anyio.sleep(0.01)


async def test_who_has_written_is_not_told_that_a_later_one_failed(database):
    recorder, bad = SqliteRecorder(database), []

    async def write(name):
        await recorder.append(Entry("violation", name))
        if not bad:
            bad.append(asyncio.ensure_future(database.write("INSERT INTO no_such_table VALUES (1)", ())))
        # Those who shared a transaction go on in turns, and this one takes its time.
        time.sleep(0.005)  # noqa: ASYNC251

    await asyncio.gather(*(write("a") for _ in range(50)))
    with pytest.raises(BridgeError, match="no_such_table"):
        await bad[0]


async def test_after_a_disk_has_failed_nothing_is_written_however_it_showed(database):
    def work(connection):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    with pytest.raises(BridgeError, match="disk I/O error"):
        await database.run_outside_transaction(work)
    with pytest.raises(BridgeError, match="disk I/O error"):
        await database.write("INSERT INTO meta VALUES ('a', '')", ())


async def test_who_loses_the_race_for_a_key_leaves_nothing(tmp_path):
    async with Database(tmp_path / FILE_NAME) as one, Database(tmp_path / FILE_NAME) as two:
        writers = [Writer(database) for database in (one, two)]
        rows = [execution(f"{number:032x}", key="k", subject="anna") for number in range(20)]
        added = await asyncio.gather(
            *(writers[number % 2].store.add(row, {"r": "v"}) for number, row in enumerate(rows))
        )
        assert sum(added) == 1
        assert await one.read("SELECT count(*) FROM data_keys") == [(1,)]
        assert await one.read("SELECT count(*) FROM reference_values") == [(1,)]


@pytest.mark.parametrize("reading", [False, True])
async def test_what_fails_on_opening_leaves_nothing_open(tmp_path, monkeypatch, reading):
    async with Database(tmp_path / FILE_NAME):
        pass
    opened = []

    def connect(*arguments, **more):
        made = real(*arguments, **more)
        if not more.get("check_same_thread", True):
            # The others are for one look.
            opened.append(made)
        return made

    def fail(*_):
        raise BridgeError("key_missing", "There is none.")

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    monkeypatch.setattr(database_module, "master_of" if reading else "measure", fail)
    with pytest.raises(BridgeError, match="There is none"):
        async with Database(tmp_path / FILE_NAME, reading=reading):
            pass
    assert opened
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at what the process has open, as Linux shows it")
@pytest.mark.parametrize("amid", ["opening to write", "opening to read", "opening the bridge", "closing"])
async def test_a_task_that_is_cancelled_amid_opening_or_closing_leaves_nothing_open(tmp_path, monkeypatch, amid):
    """By the task's own `cancel`, which no shield of a scope holds off."""
    async with Database(tmp_path / FILE_NAME):
        pass
    before, begun, goes_on = set(threading.enumerate()), threading.Event(), threading.Event()

    def held(work):
        def done(*arguments):
            result = work(*arguments)
            begun.set()
            goes_on.wait()
            return result

        return done

    look = database_module.open_for_inspection

    @contextmanager
    def looking(path):
        with look(path) as opened:
            begun.set()
            goes_on.wait()
            yield opened

    if amid == "opening to read":
        monkeypatch.setattr(database_module, "open_for_inspection", looking)
    elif amid == "closing":
        monkeypatch.setattr(database_module.threading.Thread, "join", held(threading.Thread.join))
    else:
        monkeypatch.setattr(database_module, "_open_both", held(database_module._open_both))

    async def work():
        if amid == "opening the bridge":
            async with open_bridge(Settings(state_dir=tmp_path), []):
                pass
        else:
            async with Database(tmp_path / FILE_NAME, owner="me", reading=amid == "opening to read"):
                pass

    working = asyncio.create_task(work())
    await anyio.to_thread.run_sync(begun.wait)
    for _ in range(3):
        working.cancel()
        await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert not [path for path in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if str(tmp_path) in path]
    assert not {thread for thread in threading.enumerate() if thread.name.startswith("mcp-bridge-")} - before


async def test_a_text_that_is_none_is_told_as_damage(tmp_path):
    async with Database(tmp_path / FILE_NAME) as database:
        with pytest.raises(BridgeError) as caught:
            await database.read("SELECT CAST(x'70ff' AS TEXT)")
    assert caught.value.code == "ledger_damaged"
    assert caught.value.hint
    assert FILE_NAME in caught.value.message
