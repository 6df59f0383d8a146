"""The log in its file: what it is made of, who may change what, whose clock and whose keys it takes."""

import asyncio
import json
import multiprocessing
import sqlite3
import sys
import threading
import time
from contextlib import closing

import pytest
from cli_fixtures import tool

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.erasure.execution_erasure import erase
from mcp_bridge.ledger.keys.master_key_sources import FILE_NAME as MASTER_FILE
from mcp_bridge.ledger.keys.signing_key_files import KEY_FILE, PUBLIC_KEY_FILE
from mcp_bridge.ledger.log import log as log_module
from mcp_bridge.ledger.log.entries import TOMBSTONE, Entry
from mcp_bridge.ledger.log.entry_encoding import LEDGER, MAX_TEXT_CHARS, decode, leaf_hash
from mcp_bridge.ledger.log.payloads import Denial, to_entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.log.transaction import Seal
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.proofs.notes import open_checkpoint
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage import execution_store, file_opening, schema
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution
from mcp_bridge.ledger.storage.schema import FILE_NAME

SECOND = 1_000_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / FILE_NAME


async def recorded(path, *entries):
    async with Database(path) as database:
        await SqliteRecorder(database).append(*entries)


def rows(path, query, *parameters):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query, parameters).fetchall()


def leaves(path):
    """Every entry, after its row was held against it, the tree, and its execution's chain."""
    frontier, ends, found = merkle.Frontier(), {}, []
    for number, (sequence, execution, kind, entry, nodes) in enumerate(
        rows(path, "SELECT sequence, execution, kind, entry, nodes FROM entries ORDER BY sequence")
    ):
        leaf = decode(entry)
        assert (sequence, leaf.sequence, leaf.execution, leaf.kind) == (number, number, execution, kind)
        assert frontier.append(leaf_hash(entry)) == nodes
        assert leaf.previous == ends.get(execution)
        assert not found or found[-1].time <= leaf.time
        ends[execution] = leaf_hash(entry).hex()
        found.append(leaf)
    ((size, root, note, vkey),) = rows(path, "SELECT size, root, note, vkey FROM head")
    assert (size, root) == (frontier.size, frontier.root())
    checkpoint, _ = open_checkpoint(note, [Verifier.parse(vkey)])
    assert (checkpoint.size, checkpoint.root) == (size, root)
    assert rows(path, "SELECT value FROM meta WHERE name = 'origin'") == [(checkpoint.origin,)]
    return found


def contents(folder):
    return {child.name: child.read_bytes() for child in sorted(folder.iterdir())}


async def refused(path, *entries, master="file"):
    """The error of who opens the file, and records."""
    with pytest.raises(BridgeError) as caught:
        async with Database(path, master) as database:
            await SqliteRecorder(database).append(*entries)
    return caught.value


# --- what it is made of ---


async def test_a_log_begins_with_the_key_that_it_is_signed_with(path):
    async with Database(path) as database:
        vkey = database.log.signer.vkey
        (row,) = await SqliteRecorder(database).read(LEDGER)
    assert (row.sequence, row.entry.kind, row.entry.payload) == (0, "key", {"event": "made", "vkey": vkey})
    assert [leaf.execution for leaf in leaves(path)] == [LEDGER]
    names = [KEY_FILE, PUBLIC_KEY_FILE, "ledger.head", FILE_NAME, MASTER_FILE]
    assert sorted(child.name for child in path.parent.iterdir()) == names
    assert {child.stat().st_mode & 0o777 for child in path.parent.iterdir()} == {0o600}


async def test_every_execution_has_a_chain_of_its_own(path):
    for _ in range(3):
        await recorded(path, *(Entry("outcome", f"e{number % 3}", {"n": number}) for number in range(10)))
    found = leaves(path)
    assert len(found) == 31
    assert sum(leaf.previous is None for leaf in found) == 4
    async with Database(path) as database:
        numbers = [row.entry.payload["n"] for row in await SqliteRecorder(database).read("e1")]
    assert numbers == [1, 4, 7] * 3


async def test_chains_hold_though_there_are_more_than_are_remembered(path, monkeypatch):
    monkeypatch.setattr(log_module, "MAX_REMEMBERED", 1)
    async with Database(path) as database:
        for _ in range(3):
            await SqliteRecorder(database).append(*(Entry("outcome", name) for name in "abcabacab"))
    assert [leaf.execution for leaf in leaves(path)[1:]] == list("abcabacab" * 3)


@pytest.mark.parametrize(("count", "statements"), [(1, 1), (32, 1), (35, 3), (200, 4)])
async def test_entries_and_their_payloads_take_one_statement_together(path, count, statements):
    seen = []
    async with Database(path) as database:
        await database.run_outside_transaction(lambda connection: connection.set_trace_callback(seen.append))
        await SqliteRecorder(database).append(*(Entry("intent", f"run {number % 3}") for number in range(count)))
        await database.run_outside_transaction(lambda connection: connection.set_trace_callback(None))
    # A statement is told once more for each trigger that it fires.
    inserted = {text for text in seen if text.startswith("INSERT INTO") and "data_keys" not in text}
    assert len(inserted) == statements
    assert len(leaves(path)) == 1 + count
    assert rows(path, "SELECT count(*) FROM payloads") == [(1 + count,)]
    assert rows(path, "SELECT name FROM sqlite_schema WHERE name LIKE 'append%'") == []


@pytest.mark.parametrize(
    "step", ["a\x1b]0;x\x07\x9b31m\u202e", "x" * (MAX_TEXT_CHARS + 1), "\x00" * 10_000, "né/\U0001f600"]
)
async def test_no_name_that_an_agent_gives_a_step_spoils_the_log(path, step):
    await recorded(path, Entry("intent", "a", {"n": 1}, step), Entry("outcome", "a"))
    assert len(leaves(path)) == 3
    async with Database(path) as database:
        (first, _) = await SqliteRecorder(database).read("a")
    assert first.entry.payload == {"n": 1}
    assert first.entry.step is not None
    assert len(first.entry.step) <= MAX_TEXT_CHARS


async def test_large_payloads_are_recorded_in_their_order_among_small_ones(path):
    sizes = [0, 3_000_000, 10, 500_000, 500_000, 500_000, *[1] * 130, 2_000_000]
    await recorded(path, *(Entry("outcome", "a", {"text": "x" * size}) for size in sizes))
    leaves(path)
    async with Database(path) as database:
        assert [len(row.entry.payload["text"]) for row in await SqliteRecorder(database).read("a")] == sizes


APPEND = """
import asyncio, pathlib, sys
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.log.entries import TOMBSTONE, Entry
from mcp_bridge.ledger.erasure.execution_erasure import erase
from mcp_bridge.ledger.log.recorder import SqliteRecorder

async def main(path, name, count):
    async with Database(pathlib.Path(path)) as database:
        for number in range(int(count)):
            await SqliteRecorder(database).append(*(Entry("outcome", each, {"n": number}) for each in (name, "both")))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("begun", [False, True])
async def test_two_processes_append_to_one_file(path, begun):
    if begun:
        await recorded(path, Entry("start", "both"))
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", APPEND, str(path), name, "40") for name in ("a", "b")
    ]
    assert [await process.wait() for process in processes] == [0, 0]
    found = leaves(path)
    assert [leaf.kind for leaf in found].count("key") == 1
    async with Database(path) as database:
        for name in ("a", "b"):
            each = [row.entry.payload["n"] for row in await SqliteRecorder(database).read(name)]
            assert each == list(range(40))
        assert len(await SqliteRecorder(database).read("both")) == 80 + begun


def begin(path, barrier):
    async def opened():
        async with Database(path) as database:
            await SqliteRecorder(database).append(Entry("start", f"{id(database)}"))

    barrier.wait()
    asyncio.run(opened())


def test_processes_that_begin_a_file_at_once_have_one_key_and_one_log(path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    processes = [context.Process(target=begin, args=(path, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert [leaf.kind for leaf in leaves(path)] == ["key", *["start"] * 4]
    names = [KEY_FILE, PUBLIC_KEY_FILE, "ledger.head", FILE_NAME, MASTER_FILE]
    assert sorted(child.name for child in path.parent.iterdir()) == names


# --- what is refused ---


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET kind = 'end'",
        "UPDATE OR REPLACE entries SET sequence = 0 WHERE sequence = 1",
        "DELETE FROM entries",
        "DELETE FROM entries WHERE sequence = 2",
        "INSERT OR REPLACE INTO entries SELECT sequence, 'b', kind, entry, nodes FROM entries WHERE sequence = 1",
        "REPLACE INTO entries SELECT * FROM entries WHERE sequence = 2",
        "INSERT INTO entries SELECT sequence + 10, execution, kind, entry, nodes FROM entries WHERE sequence = 1",
        "INSERT INTO entries SELECT -1, execution, kind, entry, nodes FROM entries WHERE sequence = 1",
        "UPDATE payloads SET sealed = x''",
        "UPDATE OR REPLACE payloads SET sequence = 1 WHERE sequence = 2",
        "DELETE FROM payloads",
        "INSERT OR REPLACE INTO payloads VALUES (1, x'')",
        "REPLACE INTO payloads VALUES (2, x'')",
        "UPDATE data_keys SET wrapped = x''",
        "UPDATE data_keys SET execution = 'b'",
        "UPDATE data_keys SET subject = 'b'",
        "UPDATE data_keys SET subject = 'b', wrapped = NULL",
        "DELETE FROM data_keys",
        "INSERT OR REPLACE INTO data_keys VALUES ('a', '', x'', x'')",
        "REPLACE INTO data_keys VALUES ('a', '', NULL, x'')",
        "INSERT INTO data_keys VALUES ('a', '', x'', x'') ON CONFLICT DO UPDATE SET wrapped = excluded.wrapped",
    ],
)
async def test_the_file_refuses_to_have_its_past_changed(path, statement):
    await recorded(path, Entry("start", "a", {"n": 1}), Entry("end", "a", {"n": 2}))
    tables = ("entries", "payloads", "data_keys")
    before = [rows(path, f"SELECT * FROM {table} ORDER BY 1") for table in tables]  # noqa: S608
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        pytest.raises(sqlite3.IntegrityError, match=r"ledger|never|before"),
    ):
        connection.execute(statement)
    assert [rows(path, f"SELECT * FROM {table} ORDER BY 1") for table in tables] == before  # noqa: S608
    async with Database(path) as database:
        assert [row.entry.payload["n"] for row in await SqliteRecorder(database).read("a")] == [1, 2]


async def test_a_payload_can_be_removed_once_its_key_is_destroyed(path):
    await recorded(path, Entry("start", "a", {"n": 1}), Entry("start", "b", {"n": 1}))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE data_keys SET wrapped = NULL WHERE execution = 'a'")
        connection.execute("DELETE FROM payloads WHERE sequence = 1")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("DELETE FROM payloads WHERE sequence = 2")


UNTRIGGERED = [
    ("UPDATE payloads SET sealed = zeroblob(60) WHERE sequence = 1", "can't be opened"),
    ("UPDATE payloads SET sealed = (SELECT sealed FROM payloads WHERE sequence = 2) WHERE sequence = 1", "opened"),
    ("DELETE FROM payloads WHERE sequence = 1", "payload of the entry 1 is missing"),
    ("UPDATE data_keys SET wrapped = (SELECT wrapped FROM data_keys WHERE execution = 'b')", "key of a can't be"),
    ("UPDATE data_keys SET wrapped = x''", "key of a can't be"),
]


def without_triggers(path, statement):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)


@pytest.mark.parametrize(("statement", "words"), UNTRIGGERED)
async def test_what_was_changed_in_spite_of_the_triggers_is_found_by_who_reads_it(path, statement, words):
    await recorded(path, Entry("start", "a", {"n": 1}), Entry("end", "a", {"n": 2}), Entry("start", "b", {"n": 3}))
    without_triggers(path, statement)
    async with Database(path) as database:
        with pytest.raises(BridgeError, match=words) as caught:
            await SqliteRecorder(database).read("a")
    assert caught.value.code == "ledger_damaged"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE sequence = 3",
        "DELETE FROM entries WHERE sequence >= 2",
        "UPDATE entries SET nodes = zeroblob(length(nodes)) WHERE sequence = 1",
        "UPDATE entries SET entry = (SELECT entry FROM entries WHERE sequence = 2) WHERE sequence = 1",
        "UPDATE entries SET nodes = x'' WHERE sequence = 3",
        "UPDATE entries SET entry = x'' WHERE sequence = 3",
        "UPDATE entries SET entry = (SELECT entry FROM entries WHERE sequence = 2) WHERE sequence = 3",
        "DELETE FROM head",
        "UPDATE head SET size = 3",
        "UPDATE head SET size = 5",
        "UPDATE head SET size = -4",
        "UPDATE head SET size = 0",
        "UPDATE head SET size = 1 << 62",
        "UPDATE head SET root = zeroblob(32)",
    ],
)
async def test_nothing_is_recorded_after_an_end_that_was_changed(path, statement):
    async with Database(path) as database:
        await SqliteRecorder(database).append(*(Entry("start", name) for name in "abc"))
        without_triggers(path, statement)
        before = rows(path, "SELECT * FROM entries"), rows(path, "SELECT * FROM payloads")
        with pytest.raises(BridgeError) as caught:
            await SqliteRecorder(database).append(Entry("end", "a"))
        assert caught.value.code == "ledger_damaged"
        # And so for whoever comes next.
        assert (await refused(path, Entry("end", "a"))).code == "ledger_damaged"
    assert (rows(path, "SELECT * FROM entries"), rows(path, "SELECT * FROM payloads")) == before


async def test_nothing_is_kept_of_an_execution_after_its_erasure_by_the_process_that_has_had_its_key(path):
    async with Database(path) as database:
        await SqliteRecorder(database).append(Entry("start", "a", {"n": 1}))
        await erase(database, "execution", "a", by="me", reason=None, under_way=lambda *_: False)
        await SqliteRecorder(database).append(Entry("end", "a", {"n": 2}))
        assert [row.entry.payload for row in await SqliteRecorder(database).read("a")] == [{"erased": TOMBSTONE}] * 2
    assert rows(path, "SELECT execution FROM payloads JOIN entries USING (sequence)") == [(LEDGER,)] * 2
    assert [leaf.kind for leaf in leaves(path)] == ["key", "start", "erasure", "end"]


# --- versions ---


KILLED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA user_version = 99")
os._exit(9)
"""


def told(folder):
    """What the files say."""
    return {name: data for name, data in contents(folder).items() if data and not name.endswith("-shm")}


@pytest.mark.parametrize("killed", [False, True])
async def test_a_file_of_a_later_version_is_left_as_it_is(path, killed):
    await recorded(path, Entry("start", "a"))
    if killed:
        # What its writer did last is in the write-ahead log.
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(path))
        assert await process.wait() == 9
        assert path.with_name(FILE_NAME + "-wal").stat().st_size
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 99")
    before = told(path.parent)
    error = await refused(path)
    assert (error.code, str(path) in error.message) == ("database_newer", True)
    # Reading makes an index of the write-ahead log, and a log that has nothing in it.
    assert told(path.parent) == before


MORE = "CREATE TABLE more (x INTEGER) STRICT"


async def test_a_migration_that_fails_half_way_leaves_the_file_as_it_was(path, monkeypatch):
    await recorded(path, Entry("start", "a", {"n": 1}))
    before = path.read_bytes()
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, (MORE, "DROP TABLE head", "INSERT INTO nowhere")))
    assert (await refused(path)).code == "database_unusable"
    assert path.read_bytes() == before
    monkeypatch.undo()
    await recorded(path, Entry("end", "a"))
    assert len(leaves(path)) == 3


async def test_a_new_file_whose_making_fails_half_way_is_made_by_the_next(path, monkeypatch):
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, (MORE, "INSERT INTO nowhere")))
    assert (await refused(path)).code == "database_unusable"
    assert rows(path, "SELECT name FROM sqlite_schema") == []
    monkeypatch.undo()
    await recorded(path, Entry("start", "a"))
    assert len(leaves(path)) == 2


async def test_a_migration_is_made_once_by_whoever_is_first(path, monkeypatch):
    await recorded(path, Entry("start", "a"))
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, (MORE,)))
    await asyncio.gather(*(recorded(path, Entry("outcome", "a", {"n": number})) for number in range(8)))
    assert rows(path, "PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
    assert len(leaves(path)) == 10


async def test_a_log_that_could_not_be_begun_is_begun_by_the_next_with_the_same_keys(path, monkeypatch):
    def fail(*_):
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(file_opening, "write_entries", fail)
        assert (await refused(path)).code == "database_unusable"
    keys = contents(path.parent)
    await recorded(path, Entry("start", "a"))
    assert len(leaves(path)) == 2
    for name in (KEY_FILE, MASTER_FILE):
        assert (path.parent / name).read_bytes() == keys[name]


# --- the clock ---


def put_clock(monkeypatch, microseconds):
    monkeypatch.setattr("mcp_bridge.ledger.log.transaction.time.time_ns", lambda: microseconds * 1000)


async def test_a_clock_that_is_put_back_a_little_holds_the_time(path, monkeypatch):
    start = time.time_ns() // 1000 + 1000 * SECOND
    async with Database(path) as database:
        for number, back in enumerate((0, 60 * SECOND, 1, 0, -1)):
            put_clock(monkeypatch, start - back)
            await SqliteRecorder(database).append(Entry("outcome", "a", {"n": number}))
    assert [leaf.time for leaf in leaves(path)[1:]] == [start] * 4 + [start + 1]


@pytest.mark.parametrize("opened", ["the same", "another"])
async def test_a_clock_that_is_put_back_far_stops_the_record_before_anything_is_written(path, monkeypatch, opened):
    start = time.time_ns() // 1000 + 1000 * SECOND
    put_clock(monkeypatch, start)
    async with Database(path) as database:
        await SqliteRecorder(database).append(Entry("start", "a"))
        if opened == "the same":
            put_clock(monkeypatch, start - 61 * SECOND)
            database.post("INSERT INTO reference_values (execution, id) VALUES ('a', 'x')", ())
            with pytest.raises(BridgeError, match="61 s behind") as caught:
                await SqliteRecorder(database).append(Entry("intent", "a"))
            assert (caught.value.code, "accept-clock" in caught.value.hint) == ("clock_went_back", True)
    put_clock(monkeypatch, start - 61 * SECOND)
    before = rows(path, "SELECT * FROM head")
    assert (await refused(path, Entry("intent", "a"))).code == "clock_went_back"
    assert rows(path, "SELECT * FROM head") == before
    assert rows(path, "SELECT * FROM reference_values") == []
    assert len(leaves(path)) == 2
    put_clock(monkeypatch, start)
    await recorded(path, Entry("intent", "a"))
    assert len(leaves(path)) == 3


# --- keys ---


@pytest.mark.parametrize("name", [KEY_FILE, MASTER_FILE])
@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "key_missing"), (b"", "key_unusable"), (b"short", "key_unusable"), (b"k" * 32, "key_unusable")],
    ids=["missing", "empty", "short", "another"],
)
async def test_a_key_that_is_not_the_log_s_is_said_and_nothing_is_overwritten(path, name, content, code):
    await recorded(path, Entry("start", "a", {"n": 1}))
    key = path.with_name(name)
    kept = key.read_bytes()
    if content is None:
        key.unlink()
    else:
        key.write_bytes(content)
    before = contents(path.parent)
    error = await refused(path, Entry("end", "a"))
    assert (error.code, "back" in error.hint) == (code, True)
    assert contents(path.parent) == before
    key.touch(0o600)
    key.write_bytes(kept)
    await recorded(path, Entry("end", "a"))
    assert len(leaves(path)) == 3


async def test_the_keys_of_another_log_are_no_good(path, tmp_path):
    other = tmp_path / "other" / FILE_NAME
    other.parent.mkdir()
    await recorded(other, Entry("start", "b"))
    await recorded(path, Entry("start", "a"))
    for name in (KEY_FILE, MASTER_FILE):
        kept = path.with_name(name).read_bytes()
        path.with_name(name).write_bytes(other.with_name(name).read_bytes())
        assert (await refused(path)).code == "key_unusable"
        path.with_name(name).write_bytes(kept)
    await recorded(path, Entry("end", "a"))


async def test_a_head_of_another_log_is_no_good(path, tmp_path):
    other = tmp_path / "other" / FILE_NAME
    other.parent.mkdir()
    await recorded(other, Entry("start", "b"))
    await recorded(path, Entry("start", "a"))
    ((size, root, note, vkey),) = rows(other, "SELECT size, root, note, vkey FROM head")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE head SET size = ?, root = ?, note = ?, vkey = ?", (size, root, note, vkey))
    assert (await refused(path)).code == "ledger_damaged"


async def test_the_master_key_may_come_from_a_command(path):
    command = [sys.executable, "-c", f"print({'5a' * 32!r})"]
    async with Database(path, command) as database:
        await SqliteRecorder(database).append(Entry("start", "a", {"n": 1}))
    assert sorted(child.name for child in path.parent.iterdir()) == [
        KEY_FILE,
        PUBLIC_KEY_FILE,
        "ledger.head",
        FILE_NAME,
    ]
    async with Database(path, command) as database:
        assert (await SqliteRecorder(database).read("a"))[0].entry.payload == {"n": 1}
    assert (await refused(path, master=[sys.executable, "-c", f"print({'5b' * 32!r})"])).code == "key_unusable"
    assert (await refused(path)).code == "key_missing"
    assert not path.with_name(MASTER_FILE).exists()


# --- rows beside the log ---


async def test_a_key_that_somebody_has_leaves_nothing_of_the_other_behind(path):
    async with Database(path) as database:
        store = ProgramStore(database)
        assert await store.add(execution("one"), {"r": "v"}, Entry("start", "one"))
        assert not await store.add(execution("two"), {"r": "v"}, Entry("start", "two"))
        assert await store.values("two") == {}
        assert (await store.by_key("me", "the key")).id == "one"
        assert await SqliteRecorder(database).read("two") == []
        for other in ("key", "THE KEY", "the key "):
            assert await store.by_key("me", other) is None
        assert await store.by_key("you", "the key") is None
    assert [leaf.execution for leaf in leaves(path)] == [LEDGER, "one"]


def execution(name, key="the key"):
    return StoredExecution(
        name, "program", "me", key, "r", "running", "hash", {"steps": []}, "agent", "owner", b"{}", None, None, 1.0
    )


async def test_values_behind_references_are_prepared_on_the_writers_thread_and_kept_in_their_order(path, monkeypatch):
    threads = set()

    def seal(*args):
        threads.add(threading.current_thread())
        return Seal(*args)

    monkeypatch.setattr(execution_store, "Seal", seal)
    values = {f"r{number}": number if number % 3 else f"é{number}" for number in range(3_000)}
    async with Database(path) as database:
        store = ProgramStore(database)
        assert await store.add(execution("one"))
        store.store_values("one", {"first": "a"})
        store.store_values("one", values)
        store.store_values("one", {"r1": "another"})
        await SqliteRecorder(database).append(Entry("intent", "one"))
        assert list((await store.values("one")).items()) == [("first", "a"), *values.items()]
    assert threads
    assert threading.current_thread() not in threads


async def test_every_write_of_a_row_renews_its_mac(path):
    async with Database(path) as database:
        store = ProgramStore(database)
        assert await store.add(execution("one"))
        await store.update("one", status="suspended", state=b"[]", record={"a": 1}, due=2.5)
        assert await store.take(await store.execution("one"), "another")
        assert await store.release_key(await store.execution("one"))
        found = await store.execution("one")
        assert (found.status, found.owner, found.record, found.due) == ("running", "another", {"a": 1}, 2.5)
        await store.ask("one", 1, {"message": "?"})
        (asked,) = await store.approvals()
        assert await store.decide(asked, {"approved": True}, Entry("decision", "one"))
        assert not await store.decide(asked, {"approved": False}, Entry("decision", "one"))
        assert [row.decision for row in await store.approvals()] == [{"approved": True}]
    assert [leaf.kind for leaf in leaves(path)] == ["key", "decision"]


# --- what is in the clear ---

SECRETS = ("arg-Qx82", "out-Jw41", "ask-Zp93", "key-Lm57", "why-Rt60", "state-Vb28", "saved-Hn15", "payload-Kd74")


def test_nothing_that_an_execution_was_given_or_gave_is_in_the_file_in_the_clear(desk):
    arg, out, ask, key, why, kept, saved, payload = SECRETS
    program = {
        "name": "p",
        "steps": [
            {"id": "look", "type": "tool", "tool": "look", "args": {"name": f"{arg} {out}"}},
            {"id": "ask", "type": "approval", "message": f"{ask} $name?"},
            {"id": "w", "type": "wait", "event": "e"},
            tool("broken"),
        ],
    }
    file = desk.write("p.json", program)
    desk.run(
        "program",
        "save",
        "kept",
        desk.write("saved.json", {"steps": [{"id": "a", "type": "approval", "message": saved}]}),
    )
    context = json.dumps({"name": kept})
    ident = desk.run("program", "run", file, "--context", context, "--key", key, "--json", code=5).json["trace_id"]
    seen = []

    async def look(database):
        """While the file is open: its write-ahead log is there."""
        await SqliteRecorder(database).append(to_entry(Denial("shop.pay", out), ident))
        files = [child for child in desk.state.iterdir() if child.name.startswith(FILE_NAME)]
        assert any(child.name.endswith("-wal") and child.stat().st_size for child in files)
        seen.extend(child.read_bytes() for child in files)

    desk.in_record(look)
    desk.run("approvals", "approve", ident, "--reason", why)
    desk.in_record(look)
    desk.run("execution", "resume", ident, code=5)
    desk.in_record(look)
    desk.run("execution", "resume", ident, "--payload", json.dumps(payload), code=1)
    desk.in_record(look)
    data = b"".join(seen)
    assert ident.encode() in data
    for secret in SECRETS:
        assert secret.encode() not in data, secret
    told = str(desk.entries(ident)) + desk.run("execution", "show", ident, "--json").out
    assert all(secret in told for secret in (arg, ask, why, kept, payload))
