"""What a listing of saved programs, and one by its name, costs: what it needs, and no more."""

import json

import anyio
import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.programs import library as program_library
from mcp_bridge.executions.programs.library import MAX_DESCRIPTION_CHARS, ProgramLibrary
from mcp_bridge.kernel.language import program_parser as programs
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME


def program(number=0, **fields):
    return {
        "name": f"p{number}",
        "description": f"The {number}.",
        "steps": [{"id": "a", "type": "tool", "tool": "x.y"}],
    } | fields


class Counting(ProgramStore):
    """Counts the programs that are opened."""

    def __init__(self, database):
        super().__init__(database)
        self.opened = []

    async def program(self, principal, name):
        self.opened.append(name)
        return await super().program(principal, name)

    async def programs(self, principal):
        pytest.fail("all programs were opened")


@pytest.fixture
async def library(tmp_path):
    async with Database(tmp_path / FILE_NAME) as database:
        library = ProgramLibrary(Counting(database), {})
        for number in range(30):
            await library.save(f"p{number}", program(number), "me")
        library.store.opened.clear()
        yield library


@pytest.fixture
def parsed(monkeypatch):
    """The programs that are parsed."""
    found = []
    parse = programs.parse

    def counting(data, resolve=None):
        found.append(data)
        return parse(data, resolve)

    monkeypatch.setattr(programs, "parse", counting)
    programs._cached.cache_clear()
    return found


async def test_a_listing_parses_no_program_and_opens_each_once(library, parsed):
    rows = await library.listed("me")
    assert [row["name"] for row in rows] == sorted(f"p{number}" for number in range(30))
    assert rows[0] == {
        "name": "p0",
        "version": "1.0",
        "description": "The 0.",
        "hash": programs.parse(program(0)).hash,
        "owner": "agent",
    }
    parsed.clear()
    assert len(library.store.opened) == 30
    assert await library.listed("me") == rows
    assert len(library.store.opened) == 30
    assert parsed == []


async def test_a_listing_tells_of_what_has_changed_since(library):
    await library.listed("me")
    library.store.opened.clear()
    await library.save("p3", program(3, version="2.0"), "me")
    await library.save("new", program(99), "me")
    await library.delete("p4", "me")
    rows = {row["name"]: row for row in await library.listed("me")}
    assert rows["p3"]["version"] == "2.0"
    assert rows["new"]["description"] == "The 99."
    assert "p4" not in rows
    assert sorted(library.store.opened) == ["new", "p3"]
    assert await library.listed("you") == []


async def test_others_get_their_turn_between_the_programs_of_a_listing(library):
    turns = 0

    async def victim():
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(victim)
        await library.listed("me")
        tasks.cancel_scope.cancel()
    assert turns >= 30


async def test_one_program_by_its_name_is_opened_alone(library, parsed):
    found = await library.find("p7", "me")
    assert found.program.name == "p7"
    assert library.store.opened == ["p7"]
    assert len(parsed) == 1


async def test_a_program_that_runs_others_opens_those_alone(library, parsed):
    outer = {
        "steps": [{"id": "a", "type": "program", "program": "p5"}, {"id": "b", "type": "program", "program": "p5"}]
    }
    found = await library.find(outer, "me")
    assert set(found.program.uses) == {"p5"}
    assert library.store.opened == ["p5"]
    assert len(parsed) == 2


async def test_saving_and_deleting_open_none(library):
    await library.save("p1", program(100), "me")
    assert await library.delete("p2", "me") is True
    assert await library.delete("p2", "me") is False
    assert library.store.opened == []


async def test_a_name_that_there_is_not_opens_none(library):
    with pytest.raises(BridgeError) as caught:
        await library.find("p7x", "me")
    assert caught.value.code == "unknown_program"
    assert "p7" in caught.value.details["nearest"]
    assert library.store.opened == ["p7x"]


async def test_programs_that_are_too_large_together_are_not_opened(library, monkeypatch):
    monkeypatch.setattr(program_library, "MAX_USED_BYTES", 500)
    outer = {"steps": [{"id": f"s{n}", "type": "program", "program": f"p{n}"} for n in range(10)]}
    with pytest.raises(BridgeError) as caught:
        await library.find(outer, "me")
    assert caught.value.code == "programs_too_large"
    assert library.store.opened == []


async def test_a_listing_shows_the_beginning_of_a_long_description(library):
    await library.save("long", program(0, description="d" * 60_000), "me")
    row = next(row for row in await library.listed("me") if row["name"] == "long")
    assert row["description"] == "d" * MAX_DESCRIPTION_CHARS + "…"
    assert len(json.dumps(row)) < 2000


async def test_a_name_of_sixteen_megabytes_is_looked_for_nowhere(library):
    with pytest.raises(BridgeError) as caught:
        await library.find("x" * (16 << 20), "me")
    assert caught.value.code == "unknown_program"
    assert len(str(caught.value)) < 500
    with pytest.raises(BridgeError) as caught:
        await library.save("x" * (16 << 20), program(), "me")
    assert caught.value.code == "bad_request"
    assert library.store.opened == []
