"""After an erasure nothing that is left depends on what was erased, whoever has the state directory and every key.

Two histories that differ in one value alone are written with the same chance and the same clock. Once the value is
erased in both, their ledgers have the same rows: whoever holds them can't tell the one value from the other.
"""

import base64
import contextlib
import hashlib
import hmac
import io
import json
import os
import re
import secrets
import shutil
import sqlite3
import sys
import time
import zipfile
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from kept_files import kept_files
from tampered_fixtures import ANNA, HOLDER, Writer, dump, verdict

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import erasure_with_files
from mcp_bridge.executions.client import Client
from mcp_bridge.executions.idempotency.request_identity import Keys, script_macs
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import Principal
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.kernel.events import Resume
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.values import canonical
from mcp_bridge.ledger.audit import ledger_copies
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs import tlog_proof
from mcp_bridge.ledger.proofs.export_verification import verify_export
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage import file_opening
from mcp_bridge.ledger.storage.blind_indexes import key_mac
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME, migrate
from mcp_bridge.ledger.storage.sealing import MasterKey
from mcp_bridge.settings import Settings

CARDS = "4111 1111 1111 1111", "4242 4242 4242 4242"

GOLDEN = Path(__file__).parents[2] / "golden" / "ledger-0.1.0.zip"

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
async def bridge_in(folder, limits=None, **ledger):
    (folder / "tools").mkdir(exist_ok=True)
    # A name of its own: a process loads each once.
    (folder / "tools" / f"forgotten_{hashlib.sha256(bytes(folder)).hexdigest()}.py").write_text(TOOLS)
    tables = {"tools": {"path": ["tools"], "entry_points": False}, "projection": {"patterns": ["card"]}}
    if limits is not None:
        tables["policy"] = {"limits": limits}
    state = folder / "state"
    governance = load_governance(tables, None, folder, state)
    settings = Settings(state_dir=state, ledger=LedgerConfig(subject_fields=("customer",), **ledger))
    async with open_bridge(settings, (), governance) as bridge:
        yield bridge


async def erase(bridge, what, name):
    return await erasure_with_files.erase(bridge._database, bridge.files, what, name, by="me", reason=None)


def whole(state):
    with open_ledger(state / FILE_NAME) as ledger:
        vkey = ledger.vkey
    assert verdict(state / FILE_NAME, [vkey], (), MasterKey((state / "master.key").read_bytes())) is None


class Chance:
    """The same bytes each time, whatever is asked for first by whom: each line of the code has its own.

    Not each function: one that asks on two lines, once a commit, asks for more on each where a commit took more.
    """

    def __init__(self):
        self._drawn = {}

    def __call__(self, count):
        place = sys._getframe(1)
        name = f"{place.f_code.co_filename}:{place.f_lineno}".encode()
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
        tool("card", "$number", "e"),
    ]
    context = {"number": card, "customer": card}
    record = await bridge.run_program({"name": "p", "steps": steps}, context, key)
    assert record["status"] == "suspended"
    record = await bridge.resume_execution(record["trace_id"], Resume({"seen": [card]}))
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
    await bridge.cancel_execution(execution, f"not with {card}")
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
        files = {path.name: data for path, data in kept_files(folder / "state").items()}
        assert not any(card.encode() in data for data in files.values())
        left.append((dump(folder / "state" / FILE_NAME), {name for name in files if "." in name}))
    (one, names), (other, other_names) = left
    assert names == other_names
    for table, again in zip(one, other, strict=True):
        assert table == again


async def by_principal(bridge, card):
    """What a principal has used is counted beyond the erasure."""
    view = bridge.for_principal(Principal("anna"))
    record = await view.run_program({"steps": [tool("card", f"it is {card}"), tool("card", "$a", "b")]}, {}, "key")
    assert record["status"] == "success"
    await erase(bridge, "execution", record["trace_id"])


@pytest.mark.parametrize("erased", [by_execution, by_subject, by_age, by_reference, by_principal])
async def test_not_even_its_length_is_left_of_what_was_erased(tmp_path, same, erased):
    left = []
    for card in (CARDS[0], "3782 822463 10005"):
        folder = tmp_path / card[:4]
        folder.mkdir()
        same()
        async with bridge_in(folder, limits={"principal": {"bytes": 100_000}}) as bridge:
            await erased(bridge, card)
        whole(folder / "state")
        left.append(dump(folder / "state" / FILE_NAME))
        with closing(sqlite3.connect(folder / "state" / FILE_NAME)) as connection:
            used = connection.execute("SELECT bytes > 0 FROM usages").fetchall()
        assert used == [(1,)] * (erased is by_principal)
    for table, again in zip(*left, strict=True):
        assert table == again


async def test_no_reference_is_left_of_what_was_erased_and_none_in_what_an_export_carries(tmp_path):
    async with bridge_in(tmp_path) as bridge:
        execution, other = [await suspended_with(bridge, CARDS[0]) for _ in range(2)]
        values, others = [await bridge.programs.store.values(one) for one in (execution, other)]
        assert not values.keys() & others.keys(), "equal values of two executions have two references"
        (name,) = [name for name, value in others.items() if value == CARDS[0]]
        await erase(bridge, "execution", execution)
        await erase(bridge, "reference", name)
        exported = tmp_path / "export"
        with open_ledger(tmp_path / "state" / FILE_NAME) as ledger, exported.open("wb") as file:
            ledger_copies.export(ledger, file, payloads=False)
        for line in exported.read_bytes().splitlines():
            payload = json.loads(line).get("payload") or ""
            # What was erased of it isn't said to be this one's.
            assert not any(one in str(payload) for one in (name, other))
        resumed = await bridge.resume_execution(other, Resume(1))
        assert (resumed["status"], resumed["code"]) == ("failed", "reference_erased")
        await erase(bridge, "execution", other)
    left = b"".join(kept_files(tmp_path / "state").values())
    assert not any(name.encode() in left for name in (*values, *others))
    whole(tmp_path / "state")


async def test_what_is_met_again_after_its_erasure_is_as_any_other_value(tmp_path):
    async with bridge_in(tmp_path) as bridge:
        execution = await suspended_with(bridge, CARDS[0])
        before = await bridge.programs.store.values(execution)
        for name in before:
            with contextlib.suppress(BridgeError):
                await erase(bridge, "reference", name)
        resumed = await bridge.resume_execution(execution, Resume([CARDS[0], CARDS[1]]))
        assert resumed["code"] == "reference_erased", "what it was given before is gone"
        after = await bridge.programs.store.values(execution)
        assert {name: after[name] for name in before} == dict.fromkeys(before)
        assert sorted(value for value in after.values() if value) == sorted(CARDS)


# --- what works as it did ---


def gate_of(bridge):
    return bridge.programs.effects(bridge.gate(os.urandom(8).hex(), Client()))


async def test_a_key_belongs_to_the_same_values_by_whatever_references_they_are_asked_for(tmp_path):
    async with bridge_in(tmp_path) as bridge:
        program = {"steps": [tool("card", "$number")]}
        ran = set()
        for card, key in ((CARDS[0], "one"), (CARDS[0], "one"), (CARDS[1], "two"), (CARDS[1], "two")):
            gate = gate_of(bridge)
            shown = await gate.project(card)
            # In the context, the program and the key.
            for asked, context, name in (
                (program, {"number": shown}, key),
                ({"steps": [tool("card", f"no {shown}")]}, {}, f"{key} in the program"),
                (program, {"number": card}, f"pay {shown}"),
            ):
                found = await bridge.programs.start(asked, context, name, "local", gate)
                ran.add(found.trace_id if hasattr(found, "trace_id") else getattr(found, "execution", None) or found.id)
                if hasattr(found, "drive"):
                    await bridge.programs.drive(found)
            with pytest.raises(BridgeError, match="belongs to another"):
                await bridge.programs.start(program, {"number": CARDS[card == CARDS[0]]}, key, "local", gate)
        assert len(ran) == 6


async def test_a_key_with_a_value_in_it_is_shown_without_it_and_is_free_once_it_is_erased(tmp_path):
    async with bridge_in(tmp_path) as bridge:
        program, ids = {"steps": [tool("card", "nothing")]}, []
        for key in (f"pay {CARDS[0]}", "order 17"):
            record = await bridge.run_program(program, {}, key)
            assert (await bridge.run_program(program, {}, key))["trace_id"] == record["trace_id"]
            ids.append(record["trace_id"])
        stored = [await bridge.programs.store.execution(one) for one in ids]
        assert stored[0].key.startswith("pay vault://ref/")
        assert stored[1].key == "order 17"
        for one in ids:
            await erase(bridge, "execution", one)
        assert (await bridge.run_program(program, {}, f"pay {CARDS[0]}"))["trace_id"] not in ids
        with pytest.raises(BridgeError) as caught:
            await bridge.run_program(program, {}, "order 17")
        assert caught.value.code == "erased"


async def test_after_a_value_of_it_is_erased_a_key_still_stands_for_what_was_done_and_for_nothing_else(tmp_path):
    async with bridge_in(tmp_path) as bridge:
        program = {"steps": [tool("card", "$number")]}
        context = {"number": CARDS[0], "text": f"{CARDS[0]} of anna", "left": CARDS[1]}
        record = await bridge.run_program(program, context, "key")
        (name,) = [
            name
            for name, value in (await bridge.programs.store.values(record["trace_id"])).items()
            if value == CARDS[0]
        ]
        await erase(bridge, "reference", name)
        assert (await bridge.run_program(program, context, "key"))["trace_id"] == record["trace_id"]
        gate = gate_of(bridge)
        shown = await gate.project(context)
        assert (await bridge.programs.start(program, shown, "key", "local", gate)).id == record["trace_id"]
        others = [
            {},
            context | {"text": f"{CARDS[0]} of ben"},
            context | {"text": f"{CARDS[1]} of anna"},
            context | {"number": "4111"},
            context | {"left": CARDS[0]},
            context | {"more": 1},
        ]
        for asked, other in (
            *((program, other) for other in others),
            ({"steps": [tool("card", "other")]}, context),
        ):
            with pytest.raises(BridgeError, match="belongs to another"):
                await bridge.run_program(asked, other, "key")


async def test_what_is_equal_is_equal_in_a_program_whoever_goes_on_with_it(tmp_path):
    steps = [
        {"id": "w", "type": "wait", "event": "go"},
        {"id": "i", "type": "condition", "condition": "$w.card == $number", "then": "yes", "otherwise": "no"},
        tool("card", "$number", "yes", next_step="again"),
        {"id": "again", "type": "condition", "condition": "$yes == $w.told", "then": "end", "otherwise": "no"},
        tool("later", "$number", "no"),
        tool("card", "end", "end"),
    ]
    async with bridge_in(tmp_path) as bridge:
        record = await bridge.run_program({"steps": steps}, {"number": CARDS[0]})
        gate = gate_of(bridge)
        # Met first elsewhere, by other references.
        payload = {"card": await gate.project(CARDS[0]), "told": await gate.project(f"it is {CARDS[0]}")}
        run = await bridge.programs.resume(record["trace_id"], Resume(payload), "local", gate)
        record = await bridge.programs.drive(run)
        assert (record["status"], record["output"]) == ("success", "it is end")
        assert len(await bridge.programs.store.values(record["trace_id"])) == 1


async def test_an_agents_program_is_kept_and_hashed_without_the_values_that_are_written_out_in_it(tmp_path):
    async with bridge_in(tmp_path) as bridge:
        asked = {"name": "p", "steps": [tool("card", CARDS[0]), tool("later", f"$a or {CARDS[0]}", "b")]}
        record = await bridge.run_program(asked, {}, "key")
        assert record["status"] == "suspended"
        stored = await bridge.programs.store.execution(record["trace_id"])
        assert CARDS[0] not in json.dumps(stored.bundle)
        assert (await bridge.run_program(asked, {}, "key"))["trace_id"] == record["trace_id"]
        # The tools got it.
        told = await bridge.programs.store.values(record["trace_id"])
        assert list(told.values()) == [CARDS[0]]
        written = hashlib.sha256(canonical(asked)).hexdigest()
        assert stored.program != written
        # Nor is it in what an entry has in the clear.
        record = await bridge.run_program({"steps": [tool("card", "x", "a 4111111111111111")]})
        assert record["status"] == "success"
        with pytest.raises(BridgeError) as caught:
            await bridge.run_program({"steps": [tool("card", "x", timeout_seconds=4111111111111111)]})
        assert caught.value.code in {"program_sensitive", "invalid_program"}
    assert b"4111111111111111" not in (tmp_path / "state" / FILE_NAME).read_bytes()


# --- scripts ---


WRITTEN = f"""
from mcp.servers import local
number = "{CARDS[0]}"
made = "4242 4242 " + "4242 4242"
print(await local.card(text=number), await local.card(text=made), number, made, sep="; ")
"""


async def test_a_script_is_the_same_by_its_values_and_is_replayed_after_they_are_erased(sandboxes, tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / f"forgotten_{hashlib.sha256(bytes(tmp_path)).hexdigest()}.py").write_text(TOOLS)
    tables = {"tools": {"path": ["tools"], "entry_points": False}, "projection": {"patterns": ["card"]}}
    state = tmp_path / "state"
    governance = load_governance(tables, None, tmp_path, state)
    async with sandboxes.open(governance=governance, state_dir=state) as bridge:
        record = await bridge.run(WRITTEN, key=f"pay {CARDS[0]}")
        assert record.stdout.count(b"vault://ref/") == 4
        first, second, third, fourth = re.findall(rb"vault://ref/\w{16}", record.stdout)
        assert (first, second) == (third, fourth)
        store = bridge.programs.store

        async def replayed():
            return await bridge.replay_execution(await store.execution(record.execution))

        assert (await replayed()).difference is None
        assert (await bridge.run(WRITTEN, key=f"pay {CARDS[0]}")).execution == record.execution
        plain = await bridge.run(WRITTEN, key="plain")
        for name, value in (await store.values(record.execution)).items():
            assert value in CARDS
            await erase(bridge, "reference", name)
        assert set((await store.values(plain.execution)).values()) == {None}
        stored = await store.execution(record.execution)
        assert CARDS[0] not in stored.bundle["code"]
        assert (stored.request, stored.program) == ("", "")
        assert (await replayed()).difference is None
        assert (await bridge.run(WRITTEN, key="plain")).execution == plain.execution
        with pytest.raises(BridgeError, match="belongs to another"):
            await bridge.run(WRITTEN + "print()", key="plain")
        start = (await bridge.programs.recorder.read(plain.execution))[0].entry.payload
        assert start["hash"] == hashlib.sha256(start["code"].encode()).hexdigest()
        await erase(bridge, "execution", record.execution)
        await erase(bridge, "execution", plain.execution)
    whole(state)


WAITS = """
from mcp.servers import local
print(await local.card(text={}), await local.later(text="x"))
"""


async def test_of_a_script_that_waits_only_what_was_not_erased_is_left_to_find_it_by(sandboxes, tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / f"forgotten_{hashlib.sha256(bytes(tmp_path)).hexdigest()}.py").write_text(TOOLS)
    tables = {"tools": {"path": ["tools"], "entry_points": False}, "projection": {"patterns": ["card"]}}
    state = tmp_path / "state"
    governance = load_governance(tables, None, tmp_path, state)
    written, made = WAITS.format(f'"{CARDS[0]}"'), WAITS.format('"4242 4242 " + "4242 4242"')
    async with sandboxes.open(governance=governance, state_dir=state) as bridge:
        store, master = bridge.programs.store, bridge._database.master

        async def known_by(execution):
            ((key, request),) = await bridge._database.read(
                "SELECT key, request FROM executions WHERE id = ?", (execution,)
            )
            return key, request

        ids = []
        for code in (written, made):
            record = await bridge.run(code)
            assert (record.status, record.error["code"]) == ("suspended", "still_waiting")
            assert (await bridge.run(code)).execution == record.execution
            ids.append(record.execution)
        before = [await known_by(one) for one in ids]
        for one in ids:
            (name,) = await store.values(one)
            assert (await erase(bridge, "reference", name)).references == 1
        # Only the one in whose code the value was.
        own = key_mac(master, "local", f"waits-{ids[0]}", "agent")
        assert [await known_by(one) for one in ids] == [(own, ""), (before[1][0], "")]
        assert (await bridge.run(made)).execution == ids[1]
        assert (await bridge.run(written, key=f"waits-{ids[0]}")).execution == ids[0]
        assert (await erase(bridge, "age", float("inf"))).executions == (), "both can go on"
        for one in ids:
            assert (await bridge.resume_execution(one, Resume("y")))["status"] == "success"
        assert (await bridge.run(written, key=f"waits-{ids[0]}")).stdout.endswith(b" y\n")
        assert (await bridge.run(made)).execution == ids[1]

        ids = [(await bridge.run(code)).execution for code in (written, made)]
        for one in ids:
            await erase(bridge, "execution", one)
            assert await known_by(one) == (None, "")
            with pytest.raises(BridgeError) as caught:
                await bridge.run(written, key=f"waits-{one}")
            assert caught.value.code == "erased"
        assert (await bridge.run(made)).execution not in ids
    whole(state)


async def test_what_is_equal_is_equal_in_a_script_whoever_gives_it(sandboxes, tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / f"forgotten_{hashlib.sha256(bytes(tmp_path)).hexdigest()}.py").write_text(TOOLS)
    tables = {"tools": {"path": ["tools"], "entry_points": False}, "projection": {"patterns": ["card"]}}
    state = tmp_path / "state"
    governance = load_governance(tables, None, tmp_path, state)
    code = f"""
from mcp.servers import local
print(await local.card(text="{CARDS[0]}") == await local.later(text="x"))
"""
    async with sandboxes.open(governance=governance, state_dir=state) as bridge:
        record = await bridge.run(code)
        assert record.status == "suspended"
        await bridge.resume_execution(record.execution, Resume(f"it is {CARDS[0]}"))
        assert (await bridge.run(code)).stdout == b"True\n"
        assert len(await bridge.programs.store.values(record.execution)) == 1


# --- what version 0.1.0 has left ---


OLD_KEY = b"r" * 32


def old_reference(value):
    """As 0.1.0 made them."""
    key = hmac.digest(OLD_KEY, b"references\0local", "sha256")
    mac = hmac.digest(key, f"mcp-bridge reference\0str\0{value}".encode(), "sha256")[:10]
    return base64.b32encode(mac).decode().lower()


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    with zipfile.ZipFile(GOLDEN) as archive:
        archive.extractall(folder)
    for name in ("-wal", "-shm"):
        (folder / f"{FILE_NAME}{name}").unlink(missing_ok=True)
    (folder / "references.key").write_bytes(OLD_KEY)
    for path in folder.iterdir():
        path.chmod(0o600)
    return folder


def erased_by_old(state, execution, value):
    """An execution's value is erased, and its reference is left, as 0.1.0 leaves it."""
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        changed = connection.execute(
            "UPDATE reference_values SET id = ? WHERE execution = ? AND value IS NULL AND id NOT LIKE 'refof%'",
            (old_reference(value), execution),
        )
        assert changed.rowcount == 1
        connection.commit()


async def test_what_an_earlier_version_erased_stays_erased_and_its_references_are_gone(old):
    with open_ledger(old / FILE_NAME) as ledger:
        size = ledger.size
    erased_by_old(old, ANNA, "4333")
    exported, proof = (old / "export.jsonl").read_bytes(), (old / "entry-5.tlog-proof").read_bytes()
    needles = [old_reference("4333").encode(), b"refofaholder", OLD_KEY]
    async with bridge_in(old.parent) as bridge:
        store = bridge.programs.store
        assert await store.values(ANNA) == {}
        # Its program goes on, and has to be told that it is erased.
        assert (await store.values(HOLDER))["refofaholder"] is None
        assert (await store.values(HOLDER))["ref2"] == 3.5
        await erase(bridge, "execution", HOLDER)
    for path in ("export.jsonl", "entry-5.tlog-proof"):
        (old / path).unlink()
    assert not (old / "references.key").exists()
    left = b"".join(path.read_bytes() for path in old.rglob("*") if path.is_file())
    assert [needle for needle in needles if needle in left] == []
    whole(old)
    with open_ledger(old / FILE_NAME, MasterKey((old / "master.key").read_bytes())) as ledger:
        trusted = [Verifier.parse(ledger.vkey)]
        added = [json.loads(ledger.entry(number).payload) for number in range(size, ledger.size)]
        assert [ledger.entry(number).payload for number in added[0]["withheld"]] == [None]
        with (old / "again").open("wb") as file:
            ledger_copies.export(ledger, file, payloads=True)
    assert (added[0]["what"], len(added[0]["references"])) == ("reference", 1)
    # What was proven and exported then verifies, and the log goes on from it.
    assert tlog_proof.verify(proof, trusted).leaf.sequence == 5
    note = json.loads(exported.splitlines()[-1])["checkpoint"]
    assert verify_export(io.BytesIO((old / "again").read_bytes()), trusted, [note]).authenticated
    # Once: the next start changes nothing of it, and takes a key away that was put back.
    before = dump(old / FILE_NAME)
    (old / "references.key").write_bytes(OLD_KEY)
    async with Database(old / FILE_NAME):
        pass
    assert dump(old / FILE_NAME) == before
    assert not (old / "references.key").exists()


def only_migrated(state):
    """As a start leaves the file that is killed, or finds the disk full, between its two transactions."""
    with closing(sqlite3.connect(state / FILE_NAME, isolation_level=None)) as connection:
        migrate(connection)


async def test_a_file_of_an_earlier_version_whose_first_start_was_cut_short_is_whole(old):
    only_migrated(old)
    whole(old)
    again = io.BytesIO()
    with open_ledger(old / FILE_NAME, MasterKey((old / "master.key").read_bytes())) as ledger:
        ledger_copies.export(ledger, again, payloads=True)
        trusted = [Verifier.parse(ledger.vkey)]
    assert verify_export(io.BytesIO(again.getvalue()), trusted).authenticated
    async with bridge_in(old.parent) as bridge:
        assert (await bridge.programs.store.values(HOLDER))["refofaholder"] is None
    whole(old)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE reference_values SET value = NULL WHERE id = 'ref1'",
        "UPDATE reference_values SET erased = 'x' WHERE id = 'ref1'",
        "UPDATE reference_values SET value = x'00' WHERE id = 'refofaholder'",
        "DELETE FROM reference_values WHERE id = 'refofaholder'",
    ],
)
def test_what_was_done_to_a_file_whose_first_start_was_cut_short_is_found(old, change):
    only_migrated(old)
    with closing(sqlite3.connect(old / FILE_NAME)) as connection:
        assert connection.execute(change).rowcount == 1
        connection.commit()
    with open_ledger(old / FILE_NAME) as ledger:
        vkey = ledger.vkey
    assert verdict(old / FILE_NAME, [vkey]) == "ledger_damaged"


async def test_a_file_of_this_version_is_not_taken_for_one_of_an_earlier(old):
    """What says so is taken away, and a value that was erased is put back."""
    async with bridge_in(old.parent):
        pass
    with closing(sqlite3.connect(old / FILE_NAME)) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'requests'")
        changed = connection.execute(
            "UPDATE reference_values SET value = x'00', erased = NULL WHERE erased IS NOT NULL"
        )
        assert changed.rowcount
        connection.commit()
    with open_ledger(old / FILE_NAME) as ledger:
        vkey = ledger.vkey
    assert verdict(old / FILE_NAME, [vkey]) == "ledger_damaged"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE reference_values SET value = NULL WHERE id = 'ref1'",
        "DELETE FROM reference_values WHERE id = 'refofaholder'",
    ],
)
async def test_what_was_done_to_the_file_of_an_earlier_version_is_found_when_it_was_opened_too(old, change):
    with closing(sqlite3.connect(old / FILE_NAME)) as connection:
        assert connection.execute(change).rowcount == 1
        connection.commit()
    for _ in range(2):
        with open_ledger(old / FILE_NAME) as ledger:
            vkey = ledger.vkey
        assert verdict(old / FILE_NAME, [vkey]) == "ledger_damaged"
        async with bridge_in(old.parent):
            pass


async def test_a_value_that_was_put_back_into_the_file_of_an_earlier_version_is_erased_again(old):
    with closing(sqlite3.connect(old / FILE_NAME)) as connection:
        connection.execute("UPDATE reference_values SET value = x'00' WHERE id = 'refofaholder'")
        connection.execute("INSERT INTO meta VALUES ('unfinished erasure 99', '[]')")
        connection.execute(
            "UPDATE meta SET name = 'unfinished erasure ' || (SELECT max(sequence) FROM entries WHERE kind = 'erasure') WHERE name LIKE '% 99'"
        )
        connection.commit()
    async with Database(old / FILE_NAME):
        pass
    whole(old)


async def test_a_key_of_an_earlier_version_that_can_t_be_removed_is_an_error(old, monkeypatch):
    unlink = Path.unlink

    def broken(path, **options):
        if path.name == "references.key":
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", broken)
        with pytest.raises(BridgeError, match=r"references\.key can't be removed: Permission denied") as caught:
            async with Database(old / FILE_NAME):
                pass
    assert caught.value.code == "key_unusable"
    assert (old / "references.key").read_bytes() == bytes(32)
    async with Database(old / FILE_NAME):
        pass
    assert not (old / "references.key").exists()


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_ledger_is_not_put_back_to_before_a_key_of_an_earlier_version_was_destroyed(
    tmp_path, monkeypatch, is_late
):
    """Nothing was erased, so no entry tells of it."""
    path, kept = tmp_path / FILE_NAME, tmp_path / "references.key"

    async def opened():
        async with Database(path):
            pass

    async with Database(path) as database:
        await Writer(database).start(ANNA, key="order 1")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE executions SET request = 'x'")
        connection.execute("DELETE FROM meta WHERE name = 'requests'")
        connection.commit()
    if is_late:
        await opened()
    older = shutil.copy(path, tmp_path / "older")
    kept.write_bytes(OLD_KEY)
    kept.chmod(0o600)
    known, remove = [], file_opening.remove_key

    def removed(directory):
        known.append((directory / "ledger.head").read_bytes())
        remove(directory)

    monkeypatch.setattr(file_opening, "remove_key", removed)
    await opened()
    assert not kept.exists()
    assert known == [(tmp_path / "ledger.head").read_bytes()], "it was destroyed before that was known"
    shutil.copy(older, path)
    with pytest.raises(BridgeError) as caught:
        await opened()
    assert caught.value.code == "ledger_behind"


async def test_under_a_key_of_an_earlier_version_nothing_is_done_again(tmp_path):
    program, name = {"steps": [tool("card", "$number")]}, old_reference(CARDS[0])
    digest = parse(program).hash
    requests = hmac.digest(OLD_KEY, b"requests", "sha256")
    macs = {}
    for key, context in (("by reference", {"number": f"vault://ref/{name}"}), ("plain", {"number": "none"})):
        macs[key] = hmac.digest(requests, canonical({"program": digest, "context": context}), "sha256").hex()
    script = hmac.digest(requests, b"script\0print(1)", "sha256").hex()
    async with bridge_in(tmp_path) as bridge:
        made = {key: (await bridge.run_program(program, {"number": "x"}, key))["trace_id"] for key in macs}
        # As it was given then: it is nobody's reference now.
        keyed = await bridge.run_program(program, {"number": "x"}, f"pay vault://ref/{name}")
    state = tmp_path / "state"
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        # As 0.1.0 has kept it.
        connection.execute("DELETE FROM meta WHERE name = 'requests'")
        connection.commit()
    (state / "references.key").write_bytes(OLD_KEY)
    async with bridge_in(tmp_path) as bridge:
        store = bridge.programs.store
        store.store_values(made["by reference"], {name: CARDS[0]})
        for key, mac in macs.items():
            bridge._database.post("UPDATE executions SET request = ? WHERE id = ?", (mac, made[key]))
            row = ("executions", "id = ?", (made[key],))
            await bridge._database.transact(lambda transaction, row=row: transaction.authenticate(row))
        gate = gate_of(bridge)
        for key, context in (("by reference", {"number": await gate.project(CARDS[0])}), ("plain", {"number": "none"})):
            found = await bridge.programs.start(program, context, key, "local", gate)
            assert found.id == made[key]
            with pytest.raises(BridgeError, match="belongs to another"):
                await bridge.programs.start(program, {"number": "y"}, key, "local", gate)
        shown = await gate.project(CARDS[0])
        found = await bridge.programs.start(program, {"number": "x"}, f"pay {shown}", "local", gate)
        assert found.id == keyed["trace_id"]
        assert script in script_macs(Keys(bridge._database.master.requests, bridge._database.old_requests), "print(1)")
    whole(state)
