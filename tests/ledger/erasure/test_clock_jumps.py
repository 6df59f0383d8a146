"""Erasure by age believes the clock, but not at once where that has jumped ahead."""

import functools
import time

import anyio
import pytest
from execution_fixtures import until
from tampered_fixtures import Writer

from mcp_bridge.executions import erasure_with_files
from mcp_bridge.executions.artifacts import Files
from mcp_bridge.host import upkeep
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.ledger.erasure import clock_jump_guard
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME

ONE = "1" * 32
HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A start of the bridge so many seconds from now; gives the execution's status, and whether its file is there."""
    files, real = Files(tmp_path), time.time

    async def start(ahead, days=30):
        config = LedgerConfig(keep_payloads_days=days, keep_files_days=min(days, 7))
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: real() + ahead)
            async with Database(tmp_path / FILE_NAME) as database:
                await erasure_with_files.tidy(database, files, config)
                await erasure_with_files.sweep(database, files, config)
                [stored] = await ProgramStore(database).executions(None, 10)
        return stored.status, (tmp_path / "files" / ONE / "a").exists()

    return start


@pytest.fixture
async def ended(tmp_path):
    async with Database(tmp_path / FILE_NAME) as database:
        writer = Writer(database)
        await writer.start(ONE)
        await writer.end(ONE)
    (tmp_path / "files" / ONE).mkdir(parents=True)
    (tmp_path / "files" / ONE / "a").write_bytes(b"x")


async def test_nothing_is_erased_by_age_for_an_hour_after_the_clock_has_jumped_ahead(started, ended, caplog):
    kept = ("success", True)
    assert await started(60 * DAY) == kept
    assert "the clock is 60 days ahead of when the ledger was used last" in caplog.text
    caplog.clear()
    assert await started(60 * DAY + HOUR / 2) == kept
    assert caplog.text == "", "it was said"
    assert await started(0) == kept, "the clock is right again"
    assert await started(50 * DAY) == kept, "it jumps another time"
    assert await started(50 * DAY + HOUR + 60) == ("erased", False)


async def test_a_clock_that_is_a_few_days_ahead_is_believed(started, ended):
    assert await started(6 * DAY, days=7) == ("success", True)
    assert await started(6 * DAY, days=5) == ("erased", False)


async def test_a_jump_while_a_bridge_serves_is_seen_though_entries_follow_at_once(tmp_path, ended, monkeypatch):
    real, real_ns, ahead, rounds, tidied = time.time, time.time_ns, 0, [], []
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + ahead * 10**9)
    monkeypatch.setattr(upkeep, "ROOM_SECONDS", 0.01)
    monkeypatch.setattr(upkeep, "TIDY_SECONDS", 0.5)

    async def keep_room(*_):
        rounds.append(ahead)

    async def tidy(*arguments):
        await erasure_with_files.tidy(*arguments)
        tidied.append(ahead)

    monkeypatch.setattr(upkeep, "keep_room", keep_room)
    monkeypatch.setattr(upkeep, "tidy", tidy)
    async with Database(tmp_path / FILE_NAME) as database, anyio.create_task_group() as tasks:
        begun = functools.partial(upkeep._tidy_at_intervals, is_tidy=True)
        tasks.start_soon(begun, database, Files(tmp_path), LedgerConfig())
        await until(lambda: rounds)
        ahead = 60 * DAY
        await Writer(database).start("2" * 32)
        await until(lambda: ahead in tidied)
        stored = await ProgramStore(database).execution(ONE)
        assert stored.status == "success"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("seen", "last", "doubted"),
    [
        (None, 993, False),
        (None, 992, True),
        # With entries of the time that is in doubt, too.
        (1000 - 0.02, 1000 - 0.01, True),
        # The hour is over, and nothing has been recorded since.
        (999, 900, False),
        (999, 998, False),
        # Entries since then, and another jump.
        (900, 901, True),
        # The clock was ahead when it was seen, and isn't any more.
        (1060, 999, False),
        (1060, 900, True),
    ],
)
def test_a_jump_is_doubted_for_an_hour_whatever_is_recorded_meanwhile(tmp_path, seen, last, doubted):
    file = tmp_path / clock_jump_guard.FILE_NAME
    if seen is not None:
        file.write_text(str(seen * DAY))
    assert clock_jump_guard._is_doubted(file, 1000 * DAY, last * DAY) is doubted
