"""After an erasure nothing that is left depends on what was erased, whoever has the state directory and every key.

Two histories that differ in one value alone are written with the same chance and the same clock. Once the value is
erased in both, their ledgers have the same rows: whoever holds them can't tell the one value from the other.
"""

import hashlib
import json
import os
import secrets
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tampered_fixtures import dump, verdict

from mcp_bridge.bridge import erasing
from mcp_bridge.bridge.governance import load_governance
from mcp_bridge.bridge.service import open_bridge
from mcp_bridge.kernel.events import Resume
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.ledger.reading import open_ledger
from mcp_bridge.ledger.schema import FILE_NAME
from mcp_bridge.ledger.sealing import MasterKey
from mcp_bridge.settings import Settings

CARDS = "4111 1111 1111 1111", "4242 4242 4242 4242"

GOLDEN = Path(__file__).parent / "golden" / "ledger-0.1.0.zip"

TOOLS = """
import mcp_bridge

@mcp_bridge.tool
def card(text: str) -> str:
    return f"it is {text}"

@mcp_bridge.tool
def later(text: str):
    return mcp_bridge.PENDING

@mcp_bridge.tool
def fails(text: str) -> str:
    raise ValueError(f"no card is {text}")
"""


def tool(name, text, step="a", **more):
    return {"id": step, "type": "tool", "tool": f"local.{name}", "args": {"text": text}, **more}


@asynccontextmanager
async def bridge_in(folder, **ledger):
    (folder / "tools").mkdir(exist_ok=True)
    # A name of its own: a process loads each once.
    (folder / "tools" / f"forgotten_{hashlib.sha256(bytes(folder)).hexdigest()}.py").write_text(TOOLS)
    tables = {"tools": {"path": ["tools"], "entry_points": False}, "projection": {"patterns": ["card"]}}
    state = folder / "state"
    governance = load_governance(tables, None, folder, state)
    settings = Settings(state_dir=state, ledger=LedgerConfig(subject_fields=("customer",), **ledger))
    async with open_bridge(settings, (), governance) as bridge:
        yield bridge


async def erase(bridge, what, name):
    return await erasing.erase(bridge._database, bridge.files, what, name, by="me", reason=None)


def whole(state):
    with open_ledger(state / FILE_NAME) as ledger:
        vkey = ledger.vkey
    assert verdict(state / FILE_NAME, [vkey], (), MasterKey((state / "master.key").read_bytes())) is None


class Chance:
    """The same bytes each time, whatever is asked for first by whom: each place in the code has its own."""

    def __init__(self):
        self._drawn = {}

    def __call__(self, count):
        place = sys._getframe(1)
        name = f"{place.f_code.co_filename}:{place.f_code.co_name}".encode()
        drawn = self._drawn.get(name, 0)
        self._drawn[name] = drawn + count
        return hashlib.shake_128(name).digest(drawn + count)[drawn:]

    def hex(self, count=16):
        return self(count).hex()


@pytest.fixture
def same(monkeypatch):
    """From now on everything is as it was when this was called last."""

    def begin():
        chance = Chance()
        monkeypatch.setattr(os, "urandom", chance)
        monkeypatch.setattr(secrets, "token_hex", chance.hex)
        monkeypatch.setattr(time, "time", lambda: 1_790_000_000.0)
        monkeypatch.setattr(time, "time_ns", lambda: 1_790_000_000_000_000_000)

    return begin


async def suspended_with(bridge, card, key=None):
    """A program to which a value came by its context, its tools, an error, an answer, a key, and whose it is."""
    steps = [
        tool("card", "$number"),
        tool("fails", "$a", "b", on_error="skip"),
        tool("later", "$number", "c"),
        tool("later", "$c and $number", "d"),
    ]
    context = {"number": card, "customer": card}
    record = await bridge.run_program({"name": "p", "steps": steps}, context, key)
    assert record["status"] == "suspended"
    record = await bridge.resume_program(record["trace_id"], Resume({"seen": [card]}))
    assert record["status"] == "suspended"
    assert card not in json.dumps(record)
    return record["trace_id"]


async def by_execution(bridge, card):
    execution = await suspended_with(bridge, card, f"pay {card}")
    written = await bridge.run_program({"steps": [tool("card", f"it is {card}"), tool("later", card, "b")]})
    assert (await erase(bridge, "execution", execution)).executions == (execution,)
    await erase(bridge, "execution", written["trace_id"])


async def by_subject(bridge, card):
    execution = await suspended_with(bridge, card)
    other = (await bridge.run_program({"steps": [tool("card", "no card")]}))["trace_id"]
    bridge.programs.store.hold(other, execution=execution)
    # By its name, and not by any reference to it.
    assert (await erase(bridge, "subject", card)).executions == tuple(sorted((execution, other)))


async def by_age(bridge, card):
    execution = await suspended_with(bridge, card)
    await bridge.cancel_program(execution, f"not with {card}")
    assert execution in (await erase(bridge, "age", float("inf"))).executions


async def by_reference(bridge, card):
    execution = await suspended_with(bridge, card, f"pay {card}")
    other = await suspended_with(bridge, card)
    values = await bridge.programs.store.values(execution)
    (name,) = [name for name, value in values.items() if value == card]
    # Under whatever reference it is known, wherever that is.
    assert (await erase(bridge, "reference", name)).references == 2
    for one in (execution, other):
        assert set((await bridge.programs.store.values(one)).values()) == {None}


@pytest.mark.parametrize("erased", [by_execution, by_subject, by_age, by_reference])
async def test_ledgers_that_differed_in_an_erased_value_alone_differ_in_nothing(tmp_path, same, erased):
    left = []
    for card in CARDS:
        folder = tmp_path / card[:4]
        folder.mkdir()
        same()
        async with bridge_in(folder) as bridge:
            await erased(bridge, card)
        whole(folder / "state")
        files = {path.name: path.read_bytes() for path in (folder / "state").rglob("*") if path.is_file()}
        assert not any(card.encode() in data for data in files.values())
        left.append((dump(folder / "state" / FILE_NAME), {name for name in files if "." in name}))
    (one, names), (other, other_names) = left
    assert names == other_names
    for table, again in zip(one, other, strict=True):
        assert table == again
