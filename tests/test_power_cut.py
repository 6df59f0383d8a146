"""A power cut, at any moment: what was acknowledged is there, and nothing is half there.

The workloads run once, in processes whose writes are taken down (`power_cut/shim.c`); then the directory is made as cuts
would have left it (`power_cut/disk.py`), and looked at. `MCP_BRIDGE_LONG_TESTS=1` asks for many more cuts.
"""

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from generated_programs import chance
from power_cut import shim
from power_cut.disk import Disk, journal

HERE = Path(__file__).resolve().parent
LONG = bool(os.environ.get("MCP_BRIDGE_LONG_TESTS"))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")


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
def test_the_simulation_finds_what_sqlite_loses_without_full_durability_and_only_that(tmp_path, synchronous, keeps):
    operations = record(tmp_path, ("power_cut/plain.py", "sqlite", synchronous, "60"))
    lost = [lost_rows(*cut) for cut in cuts(operations, tmp_path, 1000 if LONG else 200)]
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
