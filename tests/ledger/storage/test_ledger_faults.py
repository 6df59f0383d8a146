"""What goes wrong with a ledger's file, its keys, its disk or the clock: each has its error, and what isn't recorded isn't done.

The tools of the hosts (`crash_points.py`) write down what they do. After each fault that is held against the log, and a
host without the fault goes on to the end.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_fixtures import Desk
from crash_fixtures import ended, lines, tool
from ledger_looks import look

from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import has_no_record_locks
from mcp_bridge.host import engine_setup
from mcp_bridge.ledger.admin.accepted_clock import accept_clock
from mcp_bridge.ledger.admin.key_rotation import rotate_key
from mcp_bridge.ledger.audit.file_verification import verify_file
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage import write_lock
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.storage.storage_errors import not_written, unusable
from mcp_bridge.settings import Settings

PROGRAM = {"name": "three", "steps": [tool("once", "a"), tool("again", "b"), tool("once", "c", on_error="skip")]}

linux = pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")


def done(one):
    """The steps whose effects have begun."""
    return [row["step"] for row in lines(one.effects) if row["did"] == "begin"]


def contents(folder):
    """The bytes of what is in a directory, but for the shared memory, which is none of the file's."""
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.name.endswith("-shm")
    }


def put(path, content):
    path.touch(0o600)
    path.write_bytes(content)


async def opened_and_written(state):
    """The code of the error by which a ledger can't be used."""
    try:
        async with Database(state / FILE_NAME) as database:
            await SqliteRecorder(database).append(Entry("intent", "x"))
    except BridgeError as error:
        return error.code if error.hint else f"{error.code} without a hint"
    return None


async def made(state, entries=3):
    state.mkdir(exist_ok=True)
    async with Database(state / FILE_NAME) as database:
        for number in range(entries):
            await SqliteRecorder(database).append(Entry("intent", f"e{number % 2}", {"number": number}))
    return state


# --- the disk


DISK = [
    ("write", "-wal", errno.ENOSPC, "The disk is full"),
    ("write", "-wal", errno.EIO, "The disk fails"),
    ("sync", "-wal", errno.EIO, "The disk fails"),
]


@linux
@pytest.mark.parametrize("point", ["before durable intent", "after durable intent", "before outcome", "before end"])
@pytest.mark.parametrize(("operation", "suffix", "error", "says"), DISK, ids=["full", "no write", "no sync"])
def test_a_disk_that_fails_stops_effects_before_they_start(runs, operation, suffix, error, says, point):
    one = runs(PROGRAM, {"x": "a"})
    at = {"point": point, "operation": operation, "suffix": suffix, "errno": error}
    told = one.run(fault=at)
    assert told["code"] == "not_recorded"
    assert says in told["hint"]
    begun = {"before durable intent": [], "before end": ["a", "b", "c"]}.get(point, ["a"])
    assert done(one) == begun
    record = one.finish()
    assert record["status"] == "success"
    assert done(one) == ["a", "b", "c"]


@linux
@pytest.mark.parametrize("skip", range(0, 40, 8))
def test_a_disk_that_is_full_for_a_while_leaves_a_log_that_verifies(runs, skip):
    one = runs(PROGRAM, {"x": "a"})
    told = one.run(
        fault={
            "point": "before add",
            "operation": "write",
            "suffix": "-wal",
            "errno": errno.ENOSPC,
            "skip": skip,
            "times": 2,
        }
    )
    assert told.get("code") == "not_recorded" or told["status"] == "success"
    assert one.finish()["status"] == "success"
    assert done(one) == ["a", "b", "c"]


@linux
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_what_is_in_the_journal_is_kept_though_it_can_not_be_moved_into_the_file(runs, operation):
    one = runs(PROGRAM, {"x": "a"})
    asyncio.run(made(one.state))
    told = one.run(fault={"point": "start", "operation": operation, "suffix": FILE_NAME, "errno": errno.EIO})
    assert told["status"] == "success"
    assert one.finish() == told


@pytest.fixture
def small(tmp_path):
    """A file system of 900 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=900k,mode=700", "tmpfs", str(folder)]
    may = shutil.which("mount") and os.geteuid() == 0
    if not may or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only who may mount can have a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full_says_so(small):
    async def fill():
        async with Database(small / FILE_NAME) as database:
            recorder = SqliteRecorder(database)
            for number in range(1000):
                await recorder.append(Entry("intent", "x", {"number": number, "text": "x" * 3000}))
                durable.append(number)

    durable = []
    with pytest.raises(BridgeError, match="full") as raised:
        asyncio.run(fill())
    assert raised.value.code == "not_recorded"
    assert len(durable) > 10
    assert [row.entry.payload["number"] for row in look(small).rows][: len(durable)] == durable


def test_a_file_system_that_can_only_be_read_is_refused_and_its_ledger_can_be_verified(small):
    state = asyncio.run(made(small / "state"))
    before = contents(state)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    assert asyncio.run(opened_and_written(state)) == "database_unusable"
    assert contents(state) == before
    verify_file(state / FILE_NAME, None)


@pytest.mark.parametrize("left", ["in order", "with a journal and its index", "with a journal alone"])
def test_a_ledger_on_read_only_media_is_looked_at_in_place(small, tmp_path, left):
    async def killed():
        async with Database(small / "other" / FILE_NAME) as database:
            await SqliteRecorder(database).append(Entry("intent", "x"))
            shutil.copytree(small / "other", small / "state")

    desk = Desk(tmp_path)
    desk.write("mcp-bridge.toml", f'state_dir = "{small / "state"}"\nclient_configs = false\n')
    (small / "other").mkdir(mode=0o700)
    asyncio.run(made(small / "other"))
    asyncio.run(killed())
    if left == "in order":
        asyncio.run(opened_and_written(small / "state"))
    elif left == "with a journal alone":
        (small / "state" / f"{FILE_NAME}-shm").unlink()
    assert (small / "state" / f"{FILE_NAME}-wal").exists() == (left != "in order")
    before = contents(small / "state")
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    assert desk.run("audit", "verify", "--json").json["size"] == (6 if left == "in order" else 5)
    desk.run("audit", "stats")
    desk.run("audit", "prove", "1", "--out", tmp_path / "proof")
    desk.run("backup", "--without-keys", tmp_path / "backup")
    assert desk.run("execution", "list", "--json").json == {"executions": []}
    desk.run("approvals", "list")
    desk.says("audit", "rotate-key", code=1, words=["database_unusable"])
    assert contents(small / "state") == before


def test_a_ledger_on_a_full_disk_is_looked_at_and_whoever_would_write_is_told_why_not(small, tmp_path):
    state = asyncio.run(made(small / "state"))
    desk = Desk(tmp_path)
    desk.write("mcp-bridge.toml", f'state_dir = "{state}"\nclient_configs = false\n')
    fill(small)
    desk.run("audit", "verify")
    for kind in ("execution", "approvals", "session"):
        desk.run(kind, "list")
    desk.says("audit", "rotate-key", code=1, words=["The disk is full"])
    desk.run("audit", "verify")
    (small / "filling").unlink()
    desk.run("audit", "rotate-key")


def refusal(state):
    """The error by which a ledger can't be verified, or None."""
    try:
        verify_file(state / FILE_NAME, None)
    except BridgeError as error:
        return error
    return None


def fill(folder):
    """Leave no room on a disk."""
    with (folder / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


async def test_what_could_not_be_recorded_at_the_end_is_logged_by_a_sentence(small, monkeypatch, caplog):
    state = await made(small / "state")
    async with Database(state / FILE_NAME) as database:
        fill(small)
        SqliteRecorder(database).post(*(Entry("intent", "x", {"text": os.urandom(4000).hex()}) for _ in range(200)))
    (small / "filling").unlink()
    now = time.time_ns
    async with Database(state / FILE_NAME) as database:
        monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
        SqliteRecorder(database).post(Entry("intent", "x"))
    failed = [record for record in caplog.records if "the last entries were not recorded" in record.getMessage()]
    assert ["not_recorded" in failed[0].getMessage(), "clock_went_back" in failed[1].getMessage()] == [True, True]
    assert not any(record.exc_info for record in caplog.records)


async def test_of_a_clock_that_went_back_whoever_begins_something_is_told_and_what_is_lost_is_logged_in_a_line(
    tmp_path, monkeypatch, caplog
):
    state = await made(tmp_path / "state")
    now = time.time_ns
    async with Database(state / FILE_NAME) as database:
        monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
        # Nobody waits for this one.
        SqliteRecorder(database).post(Entry("intent", "y"))
        with pytest.raises(BridgeError) as caught:
            await SqliteRecorder(database).append(Entry("intent", "x"))
        assert caught.value.code == "clock_went_back"
        # What was posted isn't recorded, so this process is done, also when the clock is right again: the hint says so.
        monkeypatch.undo()
        with pytest.raises(BridgeError, match="Then restart the bridge") as caught:
            await SqliteRecorder(database).append(Entry("intent", "z"))
        assert caught.value.code == "clock_went_back"
    (line,) = caplog.records
    assert (line.levelname, line.getMessage()) == (
        "WARNING",
        "the last entries were not recorded (2): clock_went_back",
    )


@linux
@pytest.mark.parametrize(("operation", "suffix"), [("write", FILE_NAME), ("write", "-wal"), ("sync", "-wal")])
def test_who_is_killed_in_the_very_first_start_leaves_no_damage(runs, operation, suffix):
    unbegun = 0
    for nth in range(1, 9):
        one = runs(PROGRAM, {"x": "a"})
        # Nothing is held against the log: there need not be one.
        ended(one.start({"operation": operation, "suffix": suffix, "nth": nth}))
        if (said := refusal(one.state)) is not None:
            assert (said.code, "begins with the first run" in said.hint) == ("database_unusable", True), nth
            unbegun += 1
    assert unbegun
    assert one.finish()["status"] == "success"


@linux
@pytest.mark.parametrize(("operation", "suffix"), [("open", FILE_NAME), ("open", "-wal"), ("write", "-wal")])
@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_file_that_can_only_be_read_is_refused_and_left_as_it_is(runs, operation, suffix, error):
    one = runs(PROGRAM, {"x": "a"})
    asyncio.run(made(one.state))
    before = contents(one.state)
    told = one.run(fault={"point": "start", "operation": operation, "suffix": suffix, "errno": error})
    assert told["code"] in {"database_unusable", "not_recorded"}
    assert told["hint"]
    assert done(one) == []
    assert contents(one.state)[FILE_NAME] == before[FILE_NAME]


@pytest.mark.parametrize("words", [("execution", "list"), ("audit", "rotate-key"), ("program", "run", "p.json")])
def test_a_file_system_without_locks_is_named_at_once(tmp_path, monkeypatch, words):
    desk = Desk(tmp_path)
    monkeypatch.chdir(tmp_path)
    desk.write("p.json", {"name": "p", "steps": [tool("a", "local.none", {})]})
    desk.write("mcp-bridge.toml", f'state_dir = "{tmp_path}/state"\nclient_configs = false\n')
    asyncio.run(made(tmp_path / "state"))

    def refused(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refused)
    ended = desk.says(*words, code=1, words=["file locks"])
    assert "Put the state directory on a local file system" in ended.err


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EACCES])
def test_a_file_that_cant_be_made_says_nothing_of_locks(tmp_path, monkeypatch, error):
    def refused(**_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    assert not has_no_record_locks(tmp_path)


async def test_the_images_in_a_read_only_state_directory_can_be_looked_at(tmp_path, monkeypatch):
    async def found(*_, **__):
        return SimpleNamespace(choice="the engine")

    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    monkeypatch.setattr(engine_setup, "_probe", found)
    settings = Settings(state_dir=tmp_path)
    assert await engine_setup.choose_engine(settings) == "the engine"
    with pytest.raises(BridgeError, match="read-only file system"):
        await engine_setup.prepare(settings)


def test_a_read_only_file_system_is_named_and_no_owner_is_blamed(tmp_path, monkeypatch):
    desk = Desk(tmp_path)
    monkeypatch.chdir(tmp_path)
    desk.write("p.json", {"name": "p", "steps": [tool("a", "local.none", {})]})
    desk.write("mcp-bridge.toml", f'state_dir = "{tmp_path}/state"\nclient_configs = false\n')
    asyncio.run(made(tmp_path / "state"))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    ended = desk.says(
        "program", "run", "p.json", code=1, words=["state_unusable", f"{tmp_path}/state is on a read-only"]
    )
    assert "Mount it writable" in ended.err
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    assert "mount that writable" in unusable(tmp_path / "state" / FILE_NAME, error).hint


async def test_a_read_only_file_is_refused_by_its_mode(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write whatever its mode")
    state = await made(tmp_path / "state")
    (state / FILE_NAME).chmod(0o400)
    before = contents(state)
    assert await opened_and_written(state) == "database_unusable"
    # Who may only read can't take away the journal that reading has made.
    assert contents(state) in (before, before | {f"{FILE_NAME}-wal": b""})


# --- other processes, other versions


async def test_a_file_that_another_process_holds_is_busy(tmp_path, monkeypatch):
    state = await made(tmp_path / "state")
    monkeypatch.setattr(write_lock, "BUSY_SECONDS", 0.1)
    with contextlib.closing(sqlite3.connect(state / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert await opened_and_written(state) == "database_busy"
        other.execute("ROLLBACK")
    assert await opened_and_written(state) is None


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR])
def test_only_a_failed_write_wants_a_restart(tmp_path, code):
    # A server opens the file again at each call, and says that nothing has to be restarted.
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    path = tmp_path / FILE_NAME
    assert "restart" not in unusable(path, error).hint
    assert "Then the bridge has to be restarted." in not_written(path, error).hint


def test_effects_stop_while_another_process_holds_the_file(runs):
    one = runs(PROGRAM, {"x": "a"})
    hold = one.folder / "hold"
    out = one.start(busy=0.2, fault={"point": "before outcome", "hold": str(hold)})
    while not hold.with_name("hold.waits").exists():
        time.sleep(0.005)
    with contextlib.closing(sqlite3.connect(one.state / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        hold.touch()
        told = ended(out)
        other.execute("ROLLBACK")
    assert told["code"] == "not_recorded"
    assert "Another process holds the file" in told["hint"]
    assert done(one) == ["a"]
    assert one.finish()["status"] == "success"
    assert done(one) == ["a", "b", "c"]


@pytest.mark.parametrize("left_open", [False, True])
async def test_a_file_of_a_later_version_is_left_untouched(tmp_path, left_open):
    state = await made(tmp_path / "state")
    connection = sqlite3.connect(state / FILE_NAME, isolation_level=None)
    connection.execute("PRAGMA user_version = 1000")
    if left_open:
        # As its process leaves it when it is killed: with a log of changes that are not in the file yet.
        copy = tmp_path / "copy"
        shutil.copytree(state, copy, ignore=shutil.ignore_patterns("*-shm"))
        state = copy
    connection.close()
    before = contents(state)
    assert ("ledger.sqlite-wal" in before) == left_open
    assert await opened_and_written(state) == "database_newer"
    with pytest.raises(BridgeError) as raised:
        verify_file(state / FILE_NAME, None)
    assert raised.value.code == "database_newer"
    after = contents(state)
    assert {name: data for name, data in after.items() if data or name in before} == before


# --- keys


@pytest.mark.parametrize("name", ["checkpoint.key", "master.key"])
@pytest.mark.parametrize(
    ("content", "code"), [(None, "key_missing"), (b"short", "key_unusable"), (bytes(32), "key_unusable")]
)
def test_without_its_key_a_log_is_not_continued_and_no_other_key_is_made(runs, name, content, code):
    one = runs(PROGRAM, {"x": "a"})
    asyncio.run(made(one.state))
    key = (one.state / name).read_bytes()
    (one.state / name).unlink()
    if content is not None:
        put(one.state / name, content)
    before = contents(one.state)
    told = ended(one.start())
    assert told["code"] == code
    assert told["hint"]
    assert done(one) == []
    assert {at: data for at, data in contents(one.state).items() if at in before} == before
    assert (one.state / name).exists() == (content is not None)
    put(one.state / name, key)
    assert one.finish()["status"] == "success"


@pytest.mark.parametrize("then", ["renamed", "committed", "written"])
async def test_a_rotation_that_was_cut_short_can_be_followed_by_another_that_is(tmp_path, monkeypatch, then):
    """The key that the log is signed with is on the disk at every moment, whoever dies in the middle of a rotation."""
    state = await made(tmp_path / "state")

    def die(*_):
        raise OSError("died")

    async def rotate():
        async with Database(state / FILE_NAME) as database:
            await rotate_key(database)

    async def rotate_and_die(where):
        with monkeypatch.context() as patched:
            if where == "written":
                patched.setattr("mcp_bridge.ledger.admin.key_rotation._append", die)
            elif where == "committed":
                patched.setattr("mcp_bridge.ledger.log.log.Log.finish", die)
            else:
                replace = Path.replace
                patched.setattr(Path, "replace", lambda a, b: die() if b.name == "checkpoint.key" else replace(a, b))
            with pytest.raises(BridgeError):
                await rotate()

    await rotate_and_die("renamed")
    await rotate_and_die(then)
    assert await opened_and_written(state) is None
    await rotate()
    assert await opened_and_written(state) is None
    look(state)


# --- the clock


@pytest.mark.parametrize("seconds", [-3600, -61])
def test_a_clock_that_goes_back_stops_effects(runs, seconds):
    one = runs(PROGRAM, {"x": "a"})
    told = one.run(fault={"point": "before outcome", "clock": seconds})
    assert told["code"] == "clock_went_back"
    assert "accept-clock" in told["hint"]
    assert done(one) == ["a"]
    assert one.finish()["status"] == "success"
    assert done(one) == ["a", "b", "c"]


@pytest.mark.parametrize("seconds", [-30, 3600])
def test_a_clock_that_is_set_a_little_is_no_fault_and_no_time_goes_back(runs, seconds):
    one = runs(PROGRAM, {"x": "a"})
    assert one.run(fault={"point": "before outcome", "clock": seconds})["status"] == "success"
    times = [row.time for row in look(one.state).rows]
    assert times == sorted(times)


async def test_an_entry_that_has_waited_while_another_process_wrote_is_no_clock_that_went_back(tmp_path, monkeypatch):
    state = await made(tmp_path / "state")
    async with Database(state / FILE_NAME) as stopped, Database(state / FILE_NAME) as other:
        with monkeypatch.context() as patched:
            now = time.time_ns
            patched.setattr(time, "time_ns", lambda: now() - 10**9 * 3600)
            SqliteRecorder(stopped).post(Entry("intent", "before the pause"))
        await SqliteRecorder(other).append(Entry("intent", "during the pause"))
        await stopped.flush()
    look(state)


async def test_after_a_clock_in_the_future_a_person_accepts_the_right_one(tmp_path, monkeypatch):
    state = tmp_path / "state"
    with monkeypatch.context() as patched:
        now = time.time_ns
        patched.setattr(time, "time_ns", lambda: now() + 10**9 * 86400)
        await made(state)
    assert await opened_and_written(state) == "clock_went_back"
    async with Database(state / FILE_NAME) as database:
        assert await accept_clock(database, "anna") > 86000
    assert await opened_and_written(state) is None
    look(state)


# --- what was damaged


def pages(state):
    data = (state / FILE_NAME).read_bytes()
    return len(data) // 4096


async def test_a_page_that_is_damaged_is_never_taken_for_a_whole_one(tmp_path):
    whole = await made(tmp_path / "whole", entries=60)
    codes = set()
    for page in range(pages(whole)):
        state = tmp_path / f"page{page}"
        shutil.copytree(whole, state)
        data = bytearray((state / FILE_NAME).read_bytes())
        data[page * 4096 : page * 4096 + 4096] = bytes(4096) if page % 2 else os.urandom(4096)
        (state / FILE_NAME).write_bytes(data)
        with pytest.raises(BridgeError) as raised:
            look_at(state)
        assert raised.value.code in {"ledger_damaged", "database_unusable", "tampered", "bad_entry", "bad_export"}
        code = await opened_and_written(state)
        assert code in {None, "ledger_damaged", "database_unusable", "not_recorded"}
        codes.add(code)
        if code is not None:
            assert (state / FILE_NAME).read_bytes() == data, "a damaged file was written to"
    assert "ledger_damaged" in codes


def look_at(state):
    verify_file(state / FILE_NAME, None, (), None)


@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
async def test_a_file_that_is_no_database_is_not_overwritten(tmp_path, content):
    state = tmp_path
    (state / FILE_NAME).write_bytes(content)
    code = await opened_and_written(state)
    if content:
        assert code == "database_unusable"
        assert (state / FILE_NAME).read_bytes() == content
    else:
        assert code is None


# --- several at once


def run_all(*commands):
    running = [subprocess.Popen([sys.executable, *map(str, command)], stdin=subprocess.DEVNULL) for command in commands]
    return [process.wait(120) for process in running]


APPENDING = (Path(__file__).parents[2] / "support/power_cut") / "appending.py"


def test_two_processes_append_to_one_log_at_once(tmp_path):
    assert run_all(*((APPENDING, tmp_path, name, 8, 101, 2, 2) for name in "ab")) == [0, 0]
    found = look(tmp_path / "state")
    told = [json.loads(line) for line in (tmp_path / "acknowledged").read_text().splitlines()]
    entries = [(row.entry.execution, row.entry.payload["number"]) for row in found.rows]
    assert len(entries) == len(set(entries)) == 2 * 8 * 101
    assert {tuple(rest) for what, *rest in told if what == "entry"} == set(entries)
    writers = [execution[0] for execution, _ in entries]
    changes = sum(one != other for one, other in zip(writers, writers[1:], strict=False))
    assert changes > 5, "one had to wait until the other had done"


@linux
def test_a_bridge_goes_on_when_another_is_killed_in_the_middle_of_a_transaction(runs):
    for nth in (2, 9, 30):
        one = runs(PROGRAM, {"x": "a"})
        asyncio.run(made(one.state))
        other = subprocess.Popen([sys.executable, APPENDING, one.folder, "a", "4", "61"])
        one.run({"operation": "write", "suffix": "-wal", "nth": nth})
        assert one.kills == 1
        assert other.wait(120) == 0
        assert one.finish()["status"] == "success"


def test_fifty_callers_in_five_processes_with_one_key_get_one_run_and_one_answer(runs):
    one = runs(PROGRAM, {"x": "a"})
    outs = [one.start(callers=10) for _ in range(5)]
    told = [record for out in outs for record in ended(out)]
    assert len(told) == 50
    assert all(record == told[0] for record in told)
    assert told[0]["status"] == "success"
    assert done(one) == ["a", "b", "c"]
    one.check()
    one.program = {**PROGRAM, "name": "other"}
    assert ended(one.start())["code"] == "key_conflict"
    assert done(one) == ["a", "b", "c"]


def test_of_fifty_callers_whose_first_host_is_killed_one_goes_on_for_all(runs):
    one = runs(PROGRAM, {"x": "a"})
    outs = [one.start(callers=10, kill={"point": "after durable intent", "nth": 2})]
    outs += [one.start(callers=10) for _ in range(4)]
    told = [ended(out) for out in outs]
    records = [record for answers in told if answers for record in answers]
    assert len(records) >= 40
    assert all(record == records[0] for record in records)
    assert records[0]["status"] == "success"
    one.check()
    assert [step for step in done(one) if step != "b"] == ["a", "c"]
