"""What sessions are rebuilt from is left by the limits of age and of size, as long as they may go on."""

import random
import sqlite3
import time
from contextlib import closing

import pytest
from tampered_fixtures import Writer

from mcp_bridge.executions import erasure_for_room, erasure_with_files
from mcp_bridge.executions.artifacts import Files
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.ledger.erasure import session_cells
from mcp_bridge.ledger.log import deduplication
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.quota import Quota
from mcp_bridge.ledger.log.session_store import SessionStore
from mcp_bridge.ledger.log.transaction import authenticate
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.storage.sealing import MasterKey

MEBIBYTE = 1 << 20
DAY = 24 * 3600


@pytest.fixture(autouse=True)
def _unpacked(monkeypatch):
    """What takes how much is easier to say of what isn't packed."""
    monkeypatch.setattr(deduplication, "_WORTH", 0)


class Cells:
    """Writes cells of sessions, and other scripts."""

    def __init__(self, database):
        self._writer, self._heads = Writer(database), SessionStore(database)
        self._last = {}

    async def script(self, ident, size=0, *, waits=False, **more):
        await self._writer.start(ident, kind="script", key=ident, **more)
        if size:
            value = random.Random(ident).randbytes(size // 2).hex()  # noqa: S311
            payload = {"kind": "memory", "tool": "memory.load", "call": "0#1", "status": "ok"}
            await self._writer.recorder.append(Entry("outcome", ident, payload | {"value": value}))
        await (self._writer.suspend(ident, b"state") if waits else self._writer.end(ident))

    async def cell(self, session, ident, size=0, *, waits=False, origin=None):
        before = self._last.get(session, "")
        bundle = {"code": "x", "cell": {"session": session, "previous": origin or before}}
        await self.script(ident, size, waits=waits, bundle=bundle)
        assert await self._heads.begin_move("local", session, before, ident)()
        self._last[session] = ident


def aged(folder, days, *cells):
    """Have executions, and the sessions that end with them, used so many days ago, as far as their rows tell."""
    master, then = MasterKey((folder / "master.key").read_bytes()), time.time() - days * DAY
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as connection:
        for table, whose in (("executions", "id"), ("sessions", "head")):
            for one in cells:
                connection.execute(f"UPDATE {table} SET changed = ? WHERE {whose} = ?", (then, one))  # noqa: S608
                authenticate(connection, master, (table, f"{whose} = ?", (one,)))


async def left(database):
    """The executions that aren't erased."""
    found = await ProgramStore(database).executions(None, 1000)
    return {one.id for one in found if one.status != "erased"}


async def tidied(folder, config=None):
    async with Database(folder / FILE_NAME) as database:
        await erasure_with_files.tidy(database, Files(folder), config or LedgerConfig())
        return await left(database)


@pytest.mark.parametrize("step", [1, 100])
async def test_the_cells_before_one_that_waits_have_no_age(tmp_path, monkeypatch, step):
    monkeypatch.setattr(session_cells, "CELLS_A_STEP", step)
    async with Database(tmp_path / FILE_NAME) as database:
        cells = Cells(database)
        for one in ("a1", "a2"):
            await cells.cell("a", one)
        await cells.cell("a", "a3", waits=True)
        # A fork waits for its origin's cells, too.
        await cells.cell("b", "b1")
        await cells.cell("b", "b2")
        await cells.cell("fork", "c2", origin="b1", waits=True)
        await cells.script("other")
    aged(tmp_path, 100, "a1", "a2", "a3", "b1", "b2", "c2", "other")
    assert await tidied(tmp_path) == {"a1", "a2", "a3", "b1", "c2"}


async def test_a_session_is_kept_whole_while_it_was_used_within_the_age_limit_and_listed(tmp_path):
    async with Database(tmp_path / FILE_NAME) as database:
        cells = Cells(database)
        for session in ("used", "unused", "ended"):
            for number in (1, 2, 3):
                await cells.cell(session, f"{session}{number}")
        assert await SessionStore(database).remove("local", "ended3")
    aged(tmp_path, 100, "used1", "used2", "unused1", "ended1")
    aged(tmp_path, 31, "unused2", "unused3", "ended2")
    aged(tmp_path, 29, "used3", "ended3")
    assert await tidied(tmp_path) == {"used1", "used2", "used3", "ended3"}


async def test_a_session_that_goes_on_while_old_ones_are_erased_is_kept(tmp_path, monkeypatch):
    async with Database(tmp_path / FILE_NAME) as database:
        await Cells(database).cell("a", "a1")
    aged(tmp_path, 100, "a1")
    read = session_cells.SessionCells.read

    async with Database(tmp_path / FILE_NAME) as database:

        async def and_goes_on(self):
            await read(self)
            monkeypatch.setattr(session_cells.SessionCells, "read", read)
            cells = Cells(database)
            cells._last["a"] = "a1"
            await cells.cell("a", "a2")

        monkeypatch.setattr(session_cells.SessionCells, "read", and_goes_on)
        await erasure_with_files.tidy(database, Files(tmp_path), LedgerConfig())
        assert await left(database) == {"a1", "a2"}


async def made_room(database, folder, size):
    await erasure_for_room.make_room(database, Files(folder), LedgerConfig(max_size=f"{size}m"))
    return await left(database)


async def test_a_full_ledger_erases_what_sessions_are_rebuilt_from_after_all_else(tmp_path):
    async with Database(tmp_path / FILE_NAME, quota=Quota(max_bytes=8 * MEBIBYTE)) as database:
        cells = Cells(database)
        await cells.cell("daily", "d1", MEBIBYTE)
        await cells.cell("waits", "w1", MEBIBYTE // 4)
        await cells.cell("waits", "w2", waits=True)
        for number in range(6):
            await cells.script(f"s{number}", MEBIBYTE)
        await cells.cell("daily", "d2")
        # The oldest, and the large ones, are cells.
        assert {"d1", "d2", "w1", "w2", "s5"} <= await made_room(database, tmp_path, 8)
        assert (await database.measure()).used < 7 * MEBIBYTE


async def test_sessions_that_fill_the_ledger_are_kept_in_part_those_used_last_first(tmp_path):
    async with Database(tmp_path / FILE_NAME, quota=Quota(max_bytes=8 * MEBIBYTE)) as database:
        cells = Cells(database)
        await cells.script("first", 2000)
        for session in "abcde":
            await cells.cell(session, f"{session}1", 3 * MEBIBYTE // 2)
        kept = await made_room(database, tmp_path, 8)
        # Not what is small, and others'.
        assert "first" in kept
        assert "e1" in kept
        assert "a1" not in kept
        assert (await database.measure()).used < 0.9 * 8 * MEBIBYTE


async def test_what_a_suspended_execution_needs_does_not_keep_room_from_being_made_of_others(tmp_path):
    async with Database(tmp_path / FILE_NAME, quota=Quota(max_bytes=8 * MEBIBYTE)) as database:
        cells, writer = Cells(database), Writer(database)
        await cells.script("needed", 3 * MEBIBYTE)
        await cells.script("holder", waits=True)
        await writer.hold("holder", execution="needed")
        await cells.cell("a", "a1", MEBIBYTE)
        for number in range(3):
            await cells.script(f"s{number}", MEBIBYTE)
        assert {"needed", "holder", "a1"} <= await made_room(database, tmp_path, 8)
        assert (await database.measure()).used < 7 * MEBIBYTE


async def test_where_there_is_nothing_else_room_is_made_of_sessions(tmp_path, caplog):
    async with Database(tmp_path / FILE_NAME, quota=Quota(max_bytes=8 * MEBIBYTE)) as database:
        cells = Cells(database)
        await cells.script("waits", 6 * MEBIBYTE, waits=True)
        await cells.cell("a", "a1", MEBIBYTE)
        await cells.cell("b", "b1", MEBIBYTE // 2)
        assert "waits" in await made_room(database, tmp_path, 8)
        assert "a1" not in await left(database)
        assert "cells that sessions are rebuilt from" in caplog.text
