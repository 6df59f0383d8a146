"""The chains of sessions: how much is read at once, and what of a chain need not be opened again."""

import pytest
from tampered_fixtures import Writer

from mcp_bridge.ledger.log import session_store
from mcp_bridge.ledger.log.session_store import SessionStore
from mcp_bridge.ledger.storage import cell_chains
from mcp_bridge.ledger.storage.cell_chains import KnownPrevious
from mcp_bridge.ledger.storage.database import Database

CELLS = [f"{number:016x}" for number in range(1, 8)]


@pytest.fixture
async def database(tmp_path):
    async with Database(tmp_path / "bridge.sqlite") as database:
        writer, previous = Writer(database), ""
        for cell in CELLS:
            bundle = {"code": "x", "cell": {"session": "s", "previous": previous}}
            await writer.start(cell, kind="script", key=cell, bundle=bundle)
            await writer.end(cell)
            previous = cell
        yield database


@pytest.fixture
def opened(monkeypatch):
    """The cells that were opened."""
    opened, read_cell = [], cell_chains.read_cell

    def counted(connection, master, execution):
        opened.append(execution)
        return read_cell(connection, master, execution)

    monkeypatch.setattr(cell_chains, "read_cell", counted)
    return opened


async def names(database, most=100):
    return [cell.execution for cell in await SessionStore(database).chain(CELLS[-1], most)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
async def test_a_chain_is_read_in_parts(database, monkeypatch, size):
    monkeypatch.setattr(session_store, "CELLS_OF_A_READ", size)
    reads, run_read = 0, Database.run_read

    async def counted(self, work):
        nonlocal reads
        reads += 1
        return await run_read(self, work)

    monkeypatch.setattr(Database, "run_read", counted)
    assert await names(database) == CELLS[::-1]
    assert reads == -(-len(CELLS) // size)
    assert await names(database, 3) == CELLS[:3:-1]


async def test_a_cell_is_opened_once_and_its_status_is_that_of_now(database, opened):
    await names(database)
    opened.clear()
    chain = await SessionStore(database).chain(CELLS[-1], 100)
    assert [cell.execution for cell in chain] == CELLS[::-1]
    assert {cell.status for cell in chain} == {"success"}
    assert opened == CELLS[:1], "a first cell, which names none"


async def test_a_cell_whose_key_is_gone_names_none_though_it_was_known(database):
    await names(database)
    await database.write("UPDATE data_keys SET wrapped = NULL WHERE execution = ?", (CELLS[3],))
    assert await names(database) == CELLS[:2:-1]


def test_what_is_kept_of_chains_is_bounded_by_use():
    known = KnownPrevious(2)
    known.put("b", "a")
    known.put("c", "b")
    assert known.get("b") == "a"
    known.put("d", "c")
    assert [known.get(cell) for cell in "bcd"] == ["a", None, "c"]
