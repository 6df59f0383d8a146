"""How far a ledger had come, kept beside its file: what it finds, what it must not take for a fault, and the way out."""

import asyncio
import errno
import fcntl
import functools
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from crash_fixtures import tool
from ledger_looks import look

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.admin import recorded_losses
from mcp_bridge.ledger.admin.accepted_clock import accept_clock
from mcp_bridge.ledger.admin.key_rotation import replace_lost_key, rotate_key
from mcp_bridge.ledger.admin.recorded_losses import accept_loss, is_behind
from mcp_bridge.ledger.audit.execution_queries import entries, newest
from mcp_bridge.ledger.audit.file_verification import verify_file
from mcp_bridge.ledger.keys.signing_key_files import own_vkey
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage import file_opening, position_file
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore, SavedProgram
from mcp_bridge.ledger.storage.file_opening import require_end
from mcp_bridge.ledger.storage.position_file import Position, PositionFile, position_of
from mcp_bridge.ledger.storage.schema import FILE_NAME

linux = pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")

APPENDING = (Path(__file__).parents[2] / "support/power_cut") / "appending.py"

FRAME, HEADER = 24 + 4096, 32
"""Bytes of a frame of the write-ahead log with its page, and of that log's head (sqlite.org/fileformat.html, section 4)."""


def saved(number):
    return SavedProgram(f"p{number}", "hash", {"number": number}, 0.0)


async def crashed(folder, work=None):
    """What a killed process leaves of a ledger of four entries; a copy, made while it was in use."""
    live = folder / "live"
    live.mkdir()
    async with Database(live / FILE_NAME) as database:
        for number in range(4):
            await SqliteRecorder(database).append(Entry("intent", f"e{number % 2}", {"number": number}))
        if work is not None:
            await work(database)
        shutil.copytree(live, folder / "state", ignore=shutil.ignore_patterns("*-shm"))
    return folder / "state"


async def error_of(state):
    """The error by which a ledger can't be written to."""
    try:
        async with Database(state / FILE_NAME) as database:
            await SqliteRecorder(database).append(Entry("intent", "x"))
    except BridgeError as error:
        return error.code if error.hint else f"{error.code} without a hint"
    return None


def contents(folder):
    """The bytes of what is in a directory, without what SQLite makes for whoever reads: no memory, no empty journal."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}
    return {name: data for name, data in found.items() if data or not name.endswith("-wal")}


@contextmanager
def changed(path, place):
    """One byte of a file is another."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    yield
    data[place] ^= 1
    path.write_bytes(data)


# --- what is found ---


async def test_no_byte_of_the_write_ahead_log_can_be_changed_unnoticed(tmp_path):
    state = await crashed(tmp_path)
    wal = state / f"{FILE_NAME}-wal"
    size = wal.stat().st_size
    assert (size - HEADER) % FRAME == 0
    frames = range(0, size // FRAME, max(1, size // FRAME // 6))
    places = [0, 20, 28, *(HEADER + FRAME * frame + (3, 10, 20, 4000)[frame % 4] for frame in frames)]
    places += [size - 1, size - FRAME]
    for number, place in enumerate(places):
        copy = shutil.copytree(state, tmp_path / f"{number}")
        with changed(copy / wal.name, place):
            before = contents(copy)
            assert await error_of(copy) == "ledger_behind", place
            assert contents(copy) == before, "what was refused was changed"
        shutil.rmtree(copy)
    assert await error_of(state) is None


@pytest.mark.parametrize("left", [0, 10, HEADER, HEADER + FRAME, -1])
async def test_a_write_ahead_log_that_was_cut_off_or_removed_is_found(tmp_path, left):
    state = await crashed(tmp_path)
    wal = state / f"{FILE_NAME}-wal"
    wal.write_bytes(wal.read_bytes()[:left]) if left else wal.unlink()
    assert await error_of(state) == "ledger_behind"


async def test_a_write_of_no_entry_that_is_lost_is_found(tmp_path):
    async def keep(database):
        await ProgramStore(database).save_program("local", saved(1))

    state = await crashed(tmp_path, keep)
    data = (state / f"{FILE_NAME}-wal").read_bytes()
    (state / f"{FILE_NAME}-wal").write_bytes(data[:-1])
    with open_ledger(state / FILE_NAME) as ledger:
        assert ledger.size == 5
    assert await error_of(state) == "ledger_behind"


@pytest.mark.parametrize("there", ["older", "none", "empty", "another", "rewritten"])
async def test_another_file_in_its_place_is_found_and_nothing_is_begun(tmp_path, there):
    folder = tmp_path / "state"
    folder.mkdir()
    assert await error_of(folder) is None
    older = shutil.copy(folder / FILE_NAME, tmp_path / "older")
    assert await error_of(folder) is None
    kept = contents(folder)
    path = folder / FILE_NAME
    path.unlink()
    if there == "older":
        shutil.copy(older, path)
    elif there == "empty":
        path.touch(0o600)
    elif there == "another":
        (tmp_path / "other").mkdir()
        for _ in range(4):
            await error_of(tmp_path / "other")
        shutil.copy(tmp_path / "other" / FILE_NAME, path)
    elif there == "rewritten":
        # As many entries, and others.
        shutil.copy(older, path)
        head = (folder / "ledger.head").read_bytes()
        (folder / "ledger.head").unlink()
        assert await error_of(folder) is None
        (folder / "ledger.head").write_bytes(head)
    before = contents(folder)
    assert await error_of(folder) == "ledger_behind"
    with pytest.raises(BridgeError) as caught:
        replace_lost_key(path, "file")
    # Another log's master key isn't the one that is here.
    refusal = {"empty": "database_unusable", "none": "database_unusable", "another": "key_unusable"}
    assert caught.value.code == refusal.get(there, "ledger_behind")
    assert contents(folder) == before
    shutil.copy(tmp_path / "older", path)
    path.write_bytes(kept[FILE_NAME])
    assert await error_of(folder) is None


async def test_an_index_that_was_damaged_is_found_before_anything_is_looked_up_by_it(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    await error_of(state)
    with closing(sqlite3.connect(state / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'entries_of_execution'"
        ).fetchone()
    # How many entries its page has: one fewer (sqlite.org/fileformat.html, section 1.6).
    data = bytearray((state / FILE_NAME).read_bytes())
    data[4096 * (root - 1) + 4] -= 1
    (state / FILE_NAME).write_bytes(data)
    assert await error_of(state) == "ledger_damaged"


@pytest.mark.parametrize("index", ["sqlite_autoindex_programs_1", "pieces_by_name"])
async def test_what_tells_what_was_done_is_looked_over_after_a_kill_in_a_file_of_any_size(tmp_path, monkeypatch, index):
    async def settle(database):
        await ProgramStore(database).save_program("local", saved(1))
        await SqliteRecorder(database).append(Entry("outcome", "e0", {"value": [f"{n}" * 40 for n in range(99)]}))
        with closing(sqlite3.connect(database.path)) as connection:
            assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
            (damaged.root,) = connection.execute(
                "SELECT rootpage FROM sqlite_schema WHERE name = ?", (index,)
            ).fetchone()
        await SqliteRecorder(database).append(Entry("intent", "e1", {"number": 9}))

    state = await crashed(tmp_path, settle)
    damaged(state / FILE_NAME)
    monkeypatch.setattr(file_opening, "MAX_LOOKED_OVER_BYTES", 0)
    assert await error_of(state) == ("ledger_damaged" if index != "pieces_by_name" else None)


def damaged(path):
    """An index's page has one entry fewer (sqlite.org/fileformat.html, section 1.6)."""
    data = bytearray(path.read_bytes())
    assert data[4096 * (damaged.root - 1) + 4]
    data[4096 * (damaged.root - 1) + 4] -= 1
    path.write_bytes(data)


@pytest.mark.parametrize("statement", ["DELETE FROM entries WHERE sequence = 2", "UPDATE entries SET entry = {}"])
async def test_no_history_is_taken_that_lacks_an_entry_or_has_another(tmp_path, statement):
    path = tmp_path / FILE_NAME
    async with Database(path) as database:
        await SqliteRecorder(database).append(*(Entry("intent", "a", {"number": n}, "step") for n in range(3)))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            other = "CAST(replace(CAST(entry AS TEXT), '\"step\"', '\"step\"') AS BLOB) WHERE sequence = 99"
            if "UPDATE" in statement:
                other = "CAST(replace(CAST(entry AS TEXT), ':\"step\"', ':\"pets\"') AS BLOB) WHERE sequence = 2"
            connection.execute(statement.format(other))
        with pytest.raises(BridgeError) as caught:
            await SqliteRecorder(database).read("a")
    assert caught.value.code == "ledger_damaged"


@pytest.mark.parametrize(
    ("table", "column"),
    [("head", "size"), ("head", "root"), ("head", "note"), ("head", "vkey"), ("meta", "value"), ("entries", "entry")],
)
@pytest.mark.parametrize("value", [b"", b"\xff", "x", -1, None])
async def test_a_value_of_another_type_is_a_damage_for_whoever_opens_or_looks(tmp_path, table, column, value):
    """As a changed byte makes it: SQLite takes a value's type from the row, whatever the table says."""
    state = tmp_path / "state"
    state.mkdir()
    await error_of(state)
    path, ahead = state / FILE_NAME, tmp_path / "ahead"
    shutil.copytree(state, ahead)
    await error_of(ahead)
    put(path, table, column, value)
    assert await error_of(state) in {"ledger_damaged", "ledger_behind", "key_unusable"}
    is_behind(path)
    shutil.copy(ahead / "ledger.head", state)
    for work in (
        lambda: verify_file(path, None, (), None, PositionFile(path)),
        lambda: accept_loss(path, "file", "anna"),
        lambda: replace_lost_key(path, "file"),
    ):
        with pytest.raises(BridgeError):
            work()
    with suppress(BridgeError):
        async with Database(path, reading=True) as database:
            await newest(database, "local", 10)
            await entries(database, "x")


def put(path, table, column, value):
    """Put a value into all rows of a table that says that it takes no such one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        kept = connection.execute("SELECT sql, name FROM sqlite_schema WHERE type = 'table'").fetchall()
        triggers = connection.execute("SELECT sql, name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for _, name in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(replace(sql, ' STRICT', ''), ' NOT NULL', '') WHERE name = ?",
            (table,),
        )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))  # noqa: S608
        connection.execute("PRAGMA writable_schema = ON")
        connection.executemany("UPDATE sqlite_schema SET sql = ? WHERE name = ?", kept)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement, _ in triggers:
            connection.execute(statement)


@pytest.mark.parametrize("there", ["link", "directory", "locked"])
async def test_a_record_that_can_not_be_opened_is_said_and_what_only_looks_goes_on(tmp_path, monkeypatch, there):
    state = await crashed(tmp_path)
    record = state / "ledger.head"
    monkeypatch.setattr(position_file.write_lock, "BUSY_SECONDS", 0.0)
    with record.open("rb") as held:
        if there == "locked":
            fcntl.flock(held, fcntl.LOCK_EX)
        else:
            record.unlink()
            record.mkdir() if there == "directory" else record.symlink_to(tmp_path / "elsewhere")
        for work in (PositionFile(state / FILE_NAME).load, functools.partial(require_end, state / FILE_NAME)):
            with pytest.raises(BridgeError, match=r"ledger\.head, which says how far") as caught:
                work()
            assert (caught.value.code, bool(caught.value.hint)) == ("database_unusable", True)
        assert await error_of(state) == "database_unusable"
        async with Database(state / FILE_NAME, reading=True) as database:
            assert await database.read("SELECT count(*) FROM entries") == [(5,)]


# --- what is no fault ---


async def test_a_ledger_without_a_record_goes_on_and_has_one_then(tmp_path):
    """As an earlier version leaves it, and a copy of the file alone."""
    state = await crashed(tmp_path)
    (state / "ledger.head").unlink()
    assert await error_of(state) is None
    assert (state / "ledger.head").stat().st_mode & 0o777 == 0o600
    (state / FILE_NAME).unlink()
    assert await error_of(state) == "ledger_behind"


async def test_a_record_that_was_behind_its_ledger_is_no_fault(tmp_path):
    """Of a power cut, of a process that was killed before it could write it, of an earlier version beside this one."""
    state = await crashed(tmp_path)
    held = (state / "ledger.head").read_bytes()
    assert await error_of(state) is None
    now = (state / "ledger.head").read_bytes()
    (state / "ledger.head").write_bytes(held)
    assert now != held
    assert await error_of(state) is None


@pytest.mark.parametrize("content", [b"", bytes(512), b"rubbish", "half", "byte"])
async def test_what_a_power_cut_leaves_of_a_record_counts_for_nothing_and_what_was_changed_since_is_found(
    tmp_path, monkeypatch, content
):
    state = await crashed(tmp_path)
    record = (state / "ledger.head").read_bytes()
    if isinstance(content, str):
        content = record[:100] if content == "half" else record.replace(b'"size":5', b'"size":4')
    (state / "ledger.head").write_bytes(content)
    if position_file.boot_id().encode() in content:
        assert await error_of(state) == "ledger_head_damaged"
        assert accept_loss(state / FILE_NAME, "file", "anna").had is None
        assert await error_of(state) is None
        (state / "ledger.head").write_bytes(content)
    with monkeypatch.context() as patched:
        patched.setattr(position_file, "boot_id", lambda: "another")
        assert await error_of(state) is None
    # It is whole again.
    PositionFile(state / FILE_NAME).load()


async def test_a_copy_of_the_directory_is_as_good_as_the_directory(tmp_path):
    state = await crashed(tmp_path)
    copy = shutil.copytree(state, tmp_path / "copy")
    assert await error_of(copy) is None
    assert await error_of(state) is None


def test_the_record_is_never_put_back_by_whoever_is_late(tmp_path):
    one, other = PositionFile(tmp_path / FILE_NAME), PositionFile(tmp_path / FILE_NAME)
    with closing(one), closing(other):
        one.advance(Position("log", 11, bytes(32), 2))
        other.advance(Position("log", 10, bytes(32), 2))
        other.load()
        assert other.known == Position("log", 11, bytes(32), 2)


def test_whoever_opens_a_ledger_while_others_write_finds_it_whole(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, APPENDING, tmp_path, name, "4", "61", "0", "2"], stdin=subprocess.DEVNULL)
        for name in "ab"
    ]
    opened = 0
    while any(writer.poll() is None for writer in writers):
        if (tmp_path / "acknowledged").exists():
            assert asyncio.run(error_of(tmp_path / "state")) is None
            opened += 1
    assert [writer.wait() for writer in writers] == [0, 0]
    assert opened
    with closing(sqlite3.connect(tmp_path / "state" / FILE_NAME)) as connection:
        here = PositionFile(tmp_path / "state" / FILE_NAME)
        here.load()
        assert here.known == position_of(connection)


@linux
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_who_is_killed_before_the_record_is_written_loses_nothing_and_is_not_refused(runs, nth):
    one = runs({"name": "two", "steps": [tool("once", "a"), tool("again", "b")]}, {"x": "a"})
    one.run({"operation": "write", "suffix": ".head", "nth": nth})
    assert one.kills == 1
    assert one.finish()["status"] == "success"


@linux
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("point", ["before durable intent", "before outcome"])
def test_what_can_not_be_taken_down_is_not_done(runs, point, error):
    one = runs({"name": "two", "steps": [tool("once", "a"), tool("again", "b")]}, {"x": "a"})
    told = one.run(fault={"point": point, "operation": "write", "suffix": ".head", "errno": error})
    assert (told["code"], "ledger.head" in told["message"]) == ("not_recorded", True)
    assert one.finish()["status"] == "success"


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fault", [full, lambda _fd, data, _at: len(data) // 2], ids=["no write", "half a write"])
async def test_an_effect_whose_outcome_cannot_be_recorded_is_reported_and_stops_the_run(tmp_path, monkeypatch, fault):
    state = tmp_path / "state"
    state.mkdir()
    async with Database(state / FILE_NAME) as database:
        with monkeypatch.context() as patched:
            patched.setattr(position_file.os, "pwrite", fault)
            with pytest.raises(BridgeError, match="was written, but its position can't be recorded") as caught:
                await rotate_key(database)
            assert caught.value.code == "not_recorded"
        with pytest.raises(BridgeError, match="its position can't be recorded"):
            await SqliteRecorder(database).append(Entry("intent", "x"))
    with open_ledger(state / FILE_NAME) as ledger:
        assert ledger.size == 2
        assert ledger.vkey == own_vkey(state / FILE_NAME)
    assert await error_of(state) is None
    look(state)


# --- the way out ---


async def test_what_was_lost_is_accepted_once_and_the_log_says_so(tmp_path):
    state = await crashed(tmp_path)
    wal = state / f"{FILE_NAME}-wal"
    wal.write_bytes(wal.read_bytes()[:-1])
    with pytest.raises(BridgeError) as caught:
        verify_file(state / FILE_NAME, None, (), None, PositionFile(state / FILE_NAME))
    assert caught.value.code == "ledger_behind"
    assert "it had 5 entries" in caught.value.message
    loss = accept_loss(state / FILE_NAME, "file", "anna")
    assert (loss.had, loss.has) == (5, 4)
    verify_file(state / FILE_NAME, None, (), None, PositionFile(state / FILE_NAME))
    with open_ledger(state / FILE_NAME) as ledger:
        *_, last = ledger.entries()
    payload = json.loads(last.payload)
    assert (last.leaf.kind, payload["had"], payload["has"], payload["by"]) == ("loss", 5, 4, "anna")
    assert await error_of(state) is None
    look(state)
    with pytest.raises(BridgeError) as caught:
        accept_loss(state / FILE_NAME, "file", "anna")
    assert caught.value.code == "nothing_is_lost"


async def test_of_a_ledger_that_is_gone_another_is_begun_when_that_is_accepted(tmp_path):
    state = await crashed(tmp_path)
    for suffix in ("", "-wal"):
        (state / f"{FILE_NAME}{suffix}").unlink()
    assert await error_of(state) == "ledger_behind"
    assert accept_loss(state / FILE_NAME, "file", "anna").had == 5
    assert await error_of(state) is None
    with open_ledger(state / FILE_NAME) as ledger:
        assert [entry.leaf.kind for entry in ledger.entries()] == ["key", "loss", "intent"]


async def signed_by_another(tmp_path):
    """A ledger of before its key was rotated, in the place of the one that is further."""
    state = tmp_path / "state"
    state.mkdir()
    await error_of(state)
    older = shutil.copy(state / FILE_NAME, tmp_path / "older")
    async with Database(state / FILE_NAME) as database:
        await rotate_key(database)
    await error_of(state)
    shutil.copy(older, state / FILE_NAME)
    return state


@pytest.mark.parametrize("record", ["whole", "damaged"])
async def test_a_loss_with_a_rotation_in_it_is_accepted_by_a_key_that_takes_the_lost_one_s_place(tmp_path, record):
    state = await signed_by_another(tmp_path)
    path, head = state / FILE_NAME, state / "ledger.head"
    code = "ledger_behind"
    if record == "damaged":
        head.write_bytes(head.read_bytes().replace(b'"writes"', b'"WRITES"'))
        code = "ledger_head_damaged"
    recorded = head.read_bytes()
    assert await error_of(state) == code
    with pytest.raises(BridgeError, match=r"rotate-key --lost"):
        accept_loss(path, "file", "anna")
    replace_lost_key(path, "file")
    assert head.read_bytes() == recorded
    assert await error_of(state) == code
    with pytest.raises(BridgeError) as caught:
        replace_lost_key(path, "file")
    assert caught.value.code == code, "the key is here"
    assert accept_loss(path, "file", "anna").has == 3
    assert await error_of(state) is None
    look(state)
    with open_ledger(path) as ledger:
        assert [entry.leaf.kind for entry in ledger.entries()] == ["key", "intent", "key", "loss", "intent"]


@pytest.mark.parametrize("lost", ["end", "end and key"])
async def test_a_loss_is_accepted_though_the_clock_was_ahead_when_its_last_entry_was_made(tmp_path, monkeypatch, lost):
    now = time.time_ns
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: now() + 10**9 * 86400)
        state = await crashed(tmp_path)
    wal = state / f"{FILE_NAME}-wal"
    wal.write_bytes(wal.read_bytes()[:-1])
    assert await error_of(state) == "ledger_behind"
    if lost == "end and key":
        (state / "checkpoint.key").unlink()
        replace_lost_key(state / FILE_NAME, "file")
    accept_loss(state / FILE_NAME, "file", "anna")
    assert await error_of(state) == "clock_went_back"
    async with Database(state / FILE_NAME) as database:
        await accept_clock(database, "anna")
    assert await error_of(state) is None
    look(state)


async def test_of_two_who_accept_a_loss_at_once_one_has_accepted_it(tmp_path, monkeypatch):
    state = await crashed(tmp_path)
    path, wal = state / FILE_NAME, state / f"{FILE_NAME}-wal"
    wal.write_bytes(wal.read_bytes()[:-1])
    opened = recorded_losses.open_to_write

    def late(*arguments, **more):
        """Somebody else comes between the look and the word."""
        monkeypatch.setattr(recorded_losses, "open_to_write", opened)
        assert accept_loss(path, "file", "anna").had == 5
        assert asyncio.run(error_of(state)) is None
        return opened(*arguments, **more)

    monkeypatch.setattr(recorded_losses, "open_to_write", late)
    with pytest.raises(BridgeError) as caught:
        await asyncio.to_thread(accept_loss, path, "file", "bert")
    assert caught.value.code == "nothing_is_lost"
    with open_ledger(path) as ledger:
        assert [entry.leaf.kind for entry in ledger.entries()][-2:] == ["loss", "intent"]
    here = PositionFile(path)
    here.load()
    assert here.known.size == 6
    assert await error_of(state) is None


def test_nobody_reads_or_writes_a_record_while_a_loss_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(position_file.write_lock, "BUSY_SECONDS", 0.0)
    one, other = PositionFile(tmp_path / FILE_NAME), PositionFile(tmp_path / FILE_NAME)
    with closing(one), closing(other), closing(sqlite3.connect(":memory:")) as nothing:
        one.advance(Position("log", 11, bytes(32), 2))
        assert one.accept(nothing) == Position("log", 11, bytes(32), 2)
        with pytest.raises(BridgeError, match="can't be"):
            other.advance(Position("log", 12, bytes(32), 2))
        one.advance(Position("log", 3, bytes(32), 0))
        other.load()
        assert other.known == Position("log", 3, bytes(32), 0)
        one.advance(Position("log", 2, bytes(32), 0))
        other.load()
        assert other.known == Position("log", 3, bytes(32), 0)
