"""A power cut, at any moment: what was acknowledged is there, and nothing is half there.

The workloads run once, in processes whose writes are taken down (`power_cut/shim.c`); then the directory is made as cuts
would have left it (`power_cut/disk.py`), and looked at. `MCP_BRIDGE_TEST_LONG=1` asks for many more cuts.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from crash_fixtures import BOUNDED, LONG
from generated_programs import chance
from ledger_looks import Look, look
from power_cut import keeping, shim
from power_cut.appending import payload
from power_cut.disk import Disk, journal

from mcp_bridge.executions.artifacts import Files
from mcp_bridge.executions.memories import Memories
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage import position_file
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.private_files import private_directory

HERE = Path(__file__).resolve().parents[2] / "support"

pytestmark = [BOUNDED, pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")]


def record(folder, *commands):
    """Run workloads at the same time over one directory; the operations they did."""
    root, log = folder / "disk", folder / "journal"
    root.mkdir()
    environment = os.environ | shim.environment(root, log)
    running = [
        subprocess.Popen([sys.executable, HERE / command[0], root, *command[1:]], env=environment)
        for command in commands
    ]
    assert [process.wait(120) for process in running] == [0] * len(running)
    return journal(log, root)


def cuts(operations, folder, count, seed=0):
    """Directories as power cuts would have left them, each with what had been acknowledged by then.

    Args:
        operations: Of the journal.
        folder: Where the directories are made.
        count: About how many: at least every so many operations there is one.
        seed: The same seed makes the same directories.
    """
    rng = chance(seed)
    disk = Disk()
    step = max(1, len(operations) // count)
    for number, operation in enumerate(operations):
        disk.apply(operation)
        if number % step == 0 or number == len(operations) - 1:
            for again in range(max(1, count // len(operations))):
                target = folder / f"cut{number}.{again}"
                target.mkdir()
                disk.cut(target, rng)
                yield target, list(disk.acknowledged)


# --- the simulation itself


def lost_rows(directory, acknowledged):
    """How many acknowledged rows a plain SQLite database has lost; -1 of one that is damaged."""
    with contextlib.closing(sqlite3.connect(directory / "database")) as connection:
        try:
            rows = dict(connection.execute("SELECT number, text FROM numbers").fetchall())
            (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
        except sqlite3.DatabaseError as error:
            if "no such table" not in str(error):
                return -1
            rows, sound = {}, "ok"
    if sound != "ok" or any(text != f"{number} " * (number * 37 % 500) for number, text in rows.items()):
        return -1
    return sum(int(number) not in rows for number in acknowledged)


@pytest.mark.parametrize(("synchronous", "keeps"), [("OFF", False), ("NORMAL", False), ("FULL", True)])
def test_the_simulation_finds_what_sqlite_loses_without_full_durability_and_only_that(
    tmp_path, synchronous, keeps, record_property
):
    operations = record(tmp_path, ("power_cut/plain.py", "sqlite", synchronous, "60"))
    lost = [lost_rows(*cut) for cut in cuts(operations, tmp_path, 1000 if LONG else 200)]
    record_property("cuts", len(lost))
    assert len(lost) >= 190
    assert not any(lost) if keeps else any(lost)
    # Without any sync a database may be damaged; with a sync of each checkpoint it only forgets.
    assert (-1 in lost) == (synchronous == "OFF")


@pytest.mark.parametrize(
    ("how", "keeps"), [("nothing", False), ("file", False), ("directory", False), ("file+directory", True)]
)
def test_the_simulation_finds_a_file_that_was_not_synced_or_whose_name_was_not(tmp_path, how, keeps):
    operations = record(tmp_path, ("power_cut/plain.py", "file", how, "20"))
    lost = []
    for directory, acknowledged in cuts(operations, tmp_path, 300):
        file = directory / "file"
        found = file.read_bytes() if file.exists() else b""
        number, _, rest = found.partition(b":")
        whole = rest == b"x" * 5000
        lost.append(bool(acknowledged) and not (whole and int(number) >= int(acknowledged[-1])))
    assert any(lost) != keeps


# --- the ledger


def check_ledger(directory, acknowledged):
    """Hold what a cut has left against what had been acknowledged; how many entries the log has."""
    told = [json.loads(line) for line in acknowledged]
    state = directory / "state"
    found = look(state, None) if state.exists() else Look()
    entries = {(row.entry.execution, row.entry.payload["number"]): row.entry.payload for row in found.rows}
    assert all(kept == payload(*of) for of, kept in entries.items())
    for what, *rest in told:
        if what == "entry":
            assert tuple(rest) in entries, "an acknowledged entry is gone"
        elif what == "execution":
            assert found.executions[rest[0]].bundle == {"program": rest[0]}
        elif what == "end":
            assert found.executions[rest[0]].record == {"of": rest[0]}
    # Nothing of an execution is there without all that went before it.
    for execution in {execution for execution, _ in entries}:
        numbers = sorted(number for of, number in entries if of == execution)
        assert numbers == list(range(len(numbers)))
    return len(entries)


async def goes_on(directory):
    """Whether the ledger can be used after the cut."""
    state = private_directory(directory / "state")
    async with Database(state / FILE_NAME) as database:
        recorder = SqliteRecorder(database)
        await recorder.append(Entry("intent", "after", payload("after", 0)))
        assert [row.entry.payload for row in await recorder.read("after")] == [payload("after", 0)]


WORKLOADS = {
    "one process": [("power_cut/appending.py", "a", "4", "9", "2")],
    "two processes": [("power_cut/appending.py", "a", "3", "9", "1"), ("power_cut/appending.py", "b", "3", "9", "1")],
}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_a_ledger_has_acknowledged_is_there_after_a_power_cut(tmp_path, monkeypatch, workload, record_property):
    operations = record(tmp_path, *WORKLOADS[workload])
    # A system without power starts anew.
    monkeypatch.setattr(position_file, "boot_id", lambda: "after the cut")
    sizes = []
    for number, (directory, acknowledged) in enumerate(cuts(operations, tmp_path, 1500 if LONG else 90)):
        sizes.append(check_ledger(directory, acknowledged))
        if LONG or number % 5 == 0:
            asyncio.run(goes_on(directory))
            check_ledger(directory, acknowledged)
        shutil.rmtree(directory)
    record_property("cuts", len(sizes))
    assert len(sizes) >= 60
    assert len(set(sizes)) > 5


def test_artifacts_and_memories_that_were_acknowledged_are_there_after_a_power_cut(tmp_path, record_property):
    operations = record(tmp_path, ("power_cut/keeping.py", "8"))
    checked = looked = 0
    for directory, acknowledged in cuts(operations, tmp_path, 1000 if LONG else 150):
        files, memories = Files(directory / "state"), Memories(directory / "state")
        told = [json.loads(line) for line in acknowledged]
        checked, looked = checked + bool(told), looked + 1
        forgotten = {number for what, number, *_ in told if what == "forgotten"}
        for what, *rest in told:
            if what == "artifact":
                execution, number = rest
                assert [files.read(f"artifact://{execution}/{name}").data for name in "ab"] == [
                    keeping.content(number)
                ] * 2
            elif what == "memory":
                (number,) = rest
                assert memories.load("same")[1]["number"] >= number
                if number in forgotten:
                    assert memories.load(f"m{number}") == (False, None)
                elif number % 2:
                    assert memories.load(f"m{number}") == (True, number)
        shutil.rmtree(directory)
    record_property("cuts", looked)
    assert checked > 50
