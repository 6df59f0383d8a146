"""Erasure: nothing of what was erased is left anywhere, and everything that was proven before still is."""

import asyncio
import io
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from erasing_host import POINTS
from tampered_fixtures import Writer, verdict

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import erasure_with_files
from mcp_bridge.executions.artifacts import Files
from mcp_bridge.host import upkeep
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.ledger.audit import ledger_copies, proving
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.ledger.erasure import execution_erasure, retention
from mcp_bridge.ledger.erasure.value_erasure import erase_behind
from mcp_bridge.ledger.log.entries import TOMBSTONE, Entry
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs import notes, tlog_proof
from mcp_bridge.ledger.proofs.export_verification import verify_export
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.storage.sealing import MasterKey
from mcp_bridge.policy.secrets.value_references import MemoryReferences
from mcp_bridge.sandbox.ownership import host_id, owner_label
from mcp_bridge.settings import Settings

ANNA, BEN = (f"{number:032x}" for number in (0xA1, 0xB1))

NESTED = "c" * 32

PLAIN = (b"SECRET", b"4111 1111", b"order of anna")

SEALED = {
    "data_keys": ("wrapped", "execution"),
    "payloads": ("sealed", "(SELECT execution FROM entries WHERE entries.sequence = payloads.sequence)"),
    "reference_values": ("value", "execution"),
    "executions": ("bundle, state, record", "id"),
    "approvals": ("question, decision", "execution"),
}
"""By table: what is kept encrypted, and whose it is."""


async def fill(state, *, seed=b"state"):
    """Two executions with everything that there can be of one."""
    async with Database(state / FILE_NAME) as database:
        writer = Writer(database)
        for ident, subject in ((ANNA, "anna"), (BEN, "ben")):
            await writer.start(
                ident, {"card": "4111 1111", f"only {subject}": 12345.5}, subject=subject, key=f"order of {subject}"
            )
            await writer.effect(ident)
            await writer.ask(ident, 2)
            await writer.decide(ident, 2)
            await writer.ask(ident, 3)
            await writer.suspend(ident, seed + b" SECRET")
            for root in ("files", "outputs"):
                (state / root / ident).mkdir(parents=True)
                (state / root / ident / "a.txt").write_bytes(b"SECRET")


@pytest.fixture
def state(tmp_path):
    """A state directory with a ledger."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    asyncio.run(fill(folder))
    return folder


def sealed(state, execution, tables=tuple(SEALED)):
    """The bytes that are kept encrypted of an execution, and those of its key."""
    found = []
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        for table in tables:
            column, whose = SEALED[table]
            query = f"SELECT {column} FROM {table} WHERE {whose} = ?"  # noqa: S608 - names of this file's own
            found += [value for row in connection.execute(query, (execution,)) for value in row if value is not None]
    assert len(found) > len(tables) or len(tables) < len(SEALED)
    return found


def places(folder, needles):
    """The files under a folder that have any of some bytes in them."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {path.name for path in files if any(needle[:40] in path.read_bytes() for needle in needles)}


def erased(state, what, name, **more):
    """Erase, as a command does."""

    async def work():
        async with Database(state / FILE_NAME) as database:
            return await erasure_with_files.erase(database, Files(state), what, name, by="me", reason=None, **more)

    return asyncio.run(work())


def started(state, config=None):
    """A start of the bridge."""

    async def work():
        async with Database(state / FILE_NAME) as database:
            await erasure_with_files.tidy(database, Files(state), config or LedgerConfig())

    asyncio.run(work())


def whole(state):
    """Verify the ledger with its keys."""
    with open_ledger(state / FILE_NAME) as ledger:
        vkey = ledger.vkey
    master = MasterKey((state / "master.key").read_bytes())
    assert verdict(state / FILE_NAME, [vkey], (), master) is None


def unfinished(state):
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        return connection.execute("SELECT name FROM meta WHERE name LIKE 'unfinished%'").fetchall()


# --- nothing is left ---


@pytest.mark.parametrize(("what", "name"), [("execution", ANNA), ("subject", "anna"), ("age", float("inf"))])
def test_nothing_of_an_erased_execution_is_left_anywhere(state, tmp_path, what, name):
    if what == "age":

        async def end():
            async with Database(state / FILE_NAME) as database:
                await Writer(database).end(ANNA)

        asyncio.run(end())
    needles = sealed(state, ANNA)
    others = sealed(state, BEN)
    assert places(state, needles) == {FILE_NAME}
    assert erased(state, what, name).executions == (ANNA,)
    asyncio.run(asyncio.to_thread(ledger_copies.backup, state / FILE_NAME, tmp_path / "backup", None, None))
    export(state, tmp_path / "export")
    assert not places(tmp_path, needles)
    assert FILE_NAME in places(state, others)
    assert not (state / "files" / ANNA).exists()
    assert not (state / "outputs" / ANNA).exists()
    assert (state / "files" / BEN / "a.txt").exists()
    assert not unfinished(state)
    whole(state)
    # What is left in the clear is the other's, in its files and its export.
    erased(state, "execution", BEN)
    export(state, tmp_path / "export")
    assert not places(tmp_path, PLAIN)


def export(state, path):
    master = MasterKey((state / "master.key").read_bytes())
    with open_ledger(state / FILE_NAME, master) as ledger, path.open("wb") as file:
        ledger_copies.export(ledger, file, payloads=True)
    return path.read_bytes()


def test_nothing_of_an_erased_reference_is_left_and_the_rest_of_its_executions_is(state):
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        needles = [row[0] for row in connection.execute("SELECT value FROM reference_values WHERE id = 'card'")]
    assert len(needles) == 2
    assert erased(state, "reference", "card").references == 2
    assert not places(state, needles)
    whole(state)

    async def values():
        async with Database(state / FILE_NAME) as database:
            store = Writer(database).store
            return await store.values(ANNA), (await store.execution(ANNA)).state

    kept, left = asyncio.run(values())
    assert kept == {"card": None, "only anna": 12345.5}
    assert left == b"state SECRET"
    with pytest.raises(BridgeError, match="No value is stored for"):
        erased(state, "reference", "card")


def test_a_reference_deep_within_a_value_resolves_to_nothing_once_it_is_erased(state):
    """Erasure reaches nested references: they stay where they are, and nothing is behind them any more."""
    before = MemoryReferences()
    name = before.put("4111 1111").removeprefix("vault://ref/")
    nested = {"orders": [{"paid": {"with": [f"card vault://ref/{name}"]}}]}
    assert before.values_behind(nested) == {name: "4111 1111"}

    async def kept():
        async with Database(state / FILE_NAME) as database:
            writer = Writer(database)
            await writer.start(NESTED, before.values_behind(nested))
            await writer.recorder.append(Entry("outcome", NESTED, {"effect": 1, "status": "ok", "value": nested}))
            await writer.end(NESTED)
            await erasure_with_files.erase(database, Files(state), "reference", name, by="me", reason=None)
            rows = await writer.recorder.read(NESTED)
            return rows[1].entry.payload["value"], await writer.store.values(NESTED)

    value, values = asyncio.run(kept())
    after = MemoryReferences()
    after.adopt(values)
    assert value == nested
    assert after.resolve(name) == TOMBSTONE
    assert after.values_behind(nested) == {}
    # And the same value, met again, is another: nothing is left by which it could be known.
    assert name not in after.put("4111 1111")
    assert after.resolve(name) == TOMBSTONE


def test_no_key_and_no_value_is_left_of_many_that_are_erased_in_any_order(tmp_path):
    """Rows are moved between pages as others shrink: nothing may be left behind in what becomes free."""
    chosen = random.Random(46)  # noqa: S311
    names = [f"{number:032x}" for number in range(80)]

    async def work():
        needles = {}
        async with Database(tmp_path / FILE_NAME) as database:
            writer = Writer(database)
            for name in names:
                values = {
                    f"r{number}": "x" * chosen.choice((1, 20, 400, 3000)) for number in range(chosen.randrange(4))
                }
                await writer.start(
                    name, values, subject=chosen.choice(("", "anna")), state=b"s" * chosen.randrange(2000)
                )
                if chosen.random() < 0.5:
                    await writer.suspend(name, b"t" * chosen.randrange(3000))
            for name in names:
                needles[name] = sealed(tmp_path, name, ("data_keys", "reference_values"))
            chosen.shuffle(names)
            for count, name in enumerate(names, 1):
                await execution_erasure.erase(
                    database, "execution", name, by="me", reason=None, under_way=lambda *_: False
                )
                if not count % 20:
                    found = places(tmp_path, [needle for gone in names[:count] for needle in needles[gone]])
                    assert not found, count

    asyncio.run(work())


# --- what holds all the same ---


def test_every_proof_export_and_checkpoint_of_before_still_verifies(state, tmp_path):
    master = MasterKey((state / "master.key").read_bytes())
    with open_ledger(state / FILE_NAME, master) as ledger:
        trusted = [Verifier.parse(ledger.vkey)]
        made = [proving.prove(ledger, sequence, payload=True) for sequence in range(ledger.size)]
        note = ledger.head_note()
    exported = export(state, tmp_path / "before")
    erased(state, "execution", ANNA)
    for sequence, proof in enumerate(made):
        assert tlog_proof.verify(proof, trusted).leaf.sequence == sequence
    assert verify_export(io.BytesIO(exported), trusted, [note]).authenticated
    with open_ledger(state / FILE_NAME, master) as ledger:
        size = notes.open_checkpoint(note, trusted)[0].size
        assert proving.consistency(ledger, note, None, trusted).old == size == len(made)
    assert verify_export(io.BytesIO(export(state, tmp_path / "after")), trusted, [note]).undisclosed
    assert verdict(state / FILE_NAME, [trusted[0].vkey], [note], master) is None


def test_reads_show_a_tombstone(state):
    erased(state, "execution", ANNA)

    async def reads():
        async with Database(state / FILE_NAME) as database:
            writer = Writer(database)
            rows = await writer.recorder.read(ANNA)
            (execution,) = [row for row in await writer.store.executions("local", 10) if row.id == ANNA]
            return rows, execution, await writer.store.values(ANNA), await writer.store.approvals(ANNA)

    rows, execution, values, approvals = asyncio.run(reads())
    assert [row.entry.kind for row in rows] == ["start", "intent", "outcome", "decision", "suspension"]
    assert all(row.entry.payload == {"erased": TOMBSTONE} for row in rows)
    assert (execution.status, execution.key, execution.bundle, execution.state) == ("erased", None, {}, None)
    assert values == {}
    assert [row.question for row in approvals] == [{"message": TOMBSTONE}] * 2
    assert [row.decision for row in approvals] == [None, None]
    master = MasterKey((state / "master.key").read_bytes())
    with open_ledger(state / FILE_NAME, master) as ledger:
        proved = tlog_proof.verify(proving.prove(ledger, rows[0].sequence, payload=True), [Verifier.parse(ledger.vkey)])
    assert proved.disclosed.payload is None


def test_an_execution_is_not_erased_twice(state):
    erased(state, "execution", ANNA)
    for what, name in (("execution", ANNA), ("subject", "anna")):
        with pytest.raises(BridgeError, match="isn't erased"):
            erased(state, what, name)
    whole(state)


async def test_one_that_is_being_executed_is_refused_and_left_as_it_is(state):
    async with Database(state / FILE_NAME) as database:
        writer = Writer(database)
        await writer.store.take(await writer.store.execution(ANNA), "another:1:2")
        how = {"by": "me", "reason": None, "under_way": lambda status, owner: status == "running"}
        for erasing in (
            execution_erasure.erase(database, "execution", ANNA, **how),
            execution_erasure.erase(database, "subject", "anna", **how),
            erase_behind(database, "card", **how),
        ):
            with pytest.raises(BridgeError, match="being executed now"):
                await erasing
        assert (await writer.store.values(ANNA))["card"] == "4111 1111"
    whole(state)


async def age(database, ident):
    """Have it that an execution was left last in 1970."""
    database.post("UPDATE executions SET changed = 1 WHERE id = ?", (ident,))
    await database.transact(lambda transaction: transaction.authenticate(("executions", "id = ?", (ident,))))


def test_age_erases_what_has_ended_long_ago_and_nothing_that_can_go_on(state):
    old, young, lost = (f"{number:032x}" for number in (0xC1, 0xC2, 0xC3))

    async def fill_up():
        async with Database(state / FILE_NAME) as database:
            writer = Writer(database)
            for ident in (old, young, lost):
                await writer.start(ident)
            await writer.end(old)
            await writer.end(young)
            for ident in (old, lost, ANNA):
                await age(database, ident)

    asyncio.run(fill_up())
    started(state, LedgerConfig(keep_payloads_days=1))

    async def statuses():
        async with Database(state / FILE_NAME) as database:
            return {row.id: row.status for row in await Writer(database).store.executions(None, 10)}

    assert asyncio.run(statuses()) == {
        ANNA: "suspended",
        BEN: "suspended",
        old: "erased",
        young: "success",
        lost: "running",
    }
    whole(state)


def test_age_erases_a_script_whose_process_died_if_it_can_t_go_on_and_none_under_way(state):
    names = {f"{number:032x}": more for number, more in enumerate(({}, {"key": "k"}, {"owner": owner_label()}), 0xD1)}

    async def fill_up():
        async with Database(state / FILE_NAME) as database:
            for ident, more in names.items():
                await Writer(database).start(ident, kind="script", **{"owner": f"{host_id()}:1:never", **more})
                await age(database, ident)

    asyncio.run(fill_up())
    started(state, LedgerConfig(keep_payloads_days=1))

    async def statuses():
        async with Database(state / FILE_NAME) as database:
            return [row.status for row in await Writer(database).store.executions(None, 10) if row.id in names]

    assert sorted(asyncio.run(statuses())) == ["erased", "running", "running"]


def test_age_erases_many_in_parts_and_others_write_in_between(state, monkeypatch):
    monkeypatch.setattr(execution_erasure, "EXECUTIONS_AN_ENTRY", 3)

    async def work():
        async with Database(state / FILE_NAME) as database, Database(state / FILE_NAME) as other:
            writer = Writer(database)
            for number in range(10):
                await writer.start(f"{number:032x}")
                await writer.end(f"{number:032x}")
            transact, parts = database.transact, []

            async def noted(work):
                parts.append(work)
                await Writer(other).recorder.append(Entry("violation", BEN, {"message": "in between"}))
                return await transact(work)

            monkeypatch.setattr(database, "transact", noted)
            more = {"by": "me", "reason": None}
            erased = await erasure_with_files.erase(database, Files(state), "age", time.time() + 1, **more)
            return len(erased.executions), len(parts)

    erased, parts = asyncio.run(work())
    assert erased == 10
    # Four with entries; what nobody can read any more is removed after them.
    assert parts > 4
    whole(state)


@pytest.mark.parametrize("by", ["age", "room"])
def test_what_executions_keep_is_removed_in_transactions_of_a_bounded_size(state, monkeypatch, by):
    monkeypatch.setattr(execution_erasure, "KEPT_BYTES", 2_000_000)
    names = [f"{number:032x}" for number in range(6)]

    async def work():
        async with Database(state / FILE_NAME) as database:
            writer = Writer(database)
            for name in names:
                await writer.start(name)
                record = await writer.store.sealed_record(
                    name, {"execution": name, "stdout": os.urandom(900_000).hex()}
                )
                await writer.store.update(name, status="success", state=None, record=record, due=None)
            await execution_erasure.empty_journal(database)
            grown, transact = [], database.transact

            async def noted(work):
                done = await transact(work)
                grown.append((state / f"{FILE_NAME}-wal").stat().st_size)
                await execution_erasure.empty_journal(database)
                return done

            monkeypatch.setattr(database, "transact", noted)
            if by == "age":
                more = {"by": "me", "reason": None}
                erased = (
                    await erasure_with_files.erase(database, Files(state), "age", time.time() + 1, **more)
                ).executions
            else:
                erased = []
                while left := [name for name in names if name not in erased]:
                    under_way = erasure_with_files.under_way(database)
                    now = await execution_erasure.erase_ended(database, left, by="max_size", under_way=under_way)
                    erased += now.executions
            return sorted(erased), grown

    erased, grown = asyncio.run(work())
    assert erased == names
    # Two at a time, and what the pages need besides.
    assert max(grown) < 3_000_000
    whole(state)


def test_a_start_does_not_wait_for_all_that_is_to_be_erased(state, monkeypatch):
    monkeypatch.setattr(upkeep, "START_SECONDS", 0.0)
    monkeypatch.setattr(upkeep, "ROOM_SECONDS", 3600.0)

    async def work():
        async with Database(state / FILE_NAME) as database:
            await Writer(database).start("e" * 32)
            await Writer(database).end("e" * 32)
        monkeypatch.setattr(retention, "_DAY_SECONDS", -1.0)
        settings = Settings(state_dir=state, ledger=LedgerConfig(keep_payloads_days=1))
        async with open_bridge(settings, ()), Database(state / FILE_NAME) as database:
            with anyio.fail_after(20):
                while (await Writer(database).store.execution("e" * 32)).status != "erased":  # noqa: ASYNC110
                    await anyio.sleep(0.05)

    asyncio.run(work())
    whole(state)


def test_a_bridge_that_lives_long_erases_what_gets_old_while_it_does(state, monkeypatch):
    monkeypatch.setattr(upkeep, "TIDY_SECONDS", 0.1)

    async def work():
        settings = Settings(state_dir=state, ledger=LedgerConfig(keep_payloads_days=1))
        async with open_bridge(settings, ()), Database(state / FILE_NAME) as database:
            writer = Writer(database)
            await writer.start("e" * 32)
            await writer.end("e" * 32)
            assert (await writer.store.execution("e" * 32)).status == "success"
            monkeypatch.setattr(retention, "_DAY_SECONDS", -1.0)
            with anyio.fail_after(20):
                while (await writer.store.execution("e" * 32)).status != "erased":  # noqa: ASYNC110
                    await anyio.sleep(0.05)

    asyncio.run(work())
    whole(state)


def test_the_clock_can_be_put_right_although_something_is_to_be_erased(state, monkeypatch, caplog):
    async def old():
        async with Database(state / FILE_NAME) as database:
            await Writer(database).start("e" * 32)
            await Writer(database).end("e" * 32)

    asyncio.run(old())
    monkeypatch.setattr(retention, "_DAY_SECONDS", -7200.0)
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
    started(state, LedgerConfig(keep_payloads_days=1))
    assert "behind the last entry" in caplog.text


# --- what others have of it ---


@pytest.mark.parametrize(("what", "name"), [("execution", ANNA), ("subject", "anna")])
def test_who_holds_something_of_it_is_erased_with_it(state, what, name):
    holder, of_holder, stranger = ("d" * 31 + digit for digit in "123")

    async def fill_up():
        async with Database(state / FILE_NAME) as database:
            writer = Writer(database)
            for ident in (holder, of_holder, stranger):
                await writer.start(ident)
                await writer.effect(ident)
                await writer.end(ident)
            await writer.hold(holder, execution=ANNA)
            await writer.hold(of_holder, execution=holder)
            # One that holds itself ends no search.
            await writer.hold(holder, execution=of_holder)
            await writer.hold(stranger, execution=BEN, subject="ben")

    asyncio.run(fill_up())
    needles = sealed(state, holder) + sealed(state, of_holder)
    assert erased(state, what, name).executions == (ANNA, holder, of_holder)
    assert not places(state, needles)
    whole(state)
    # By whom alone it is about, too.
    assert erased(state, "subject", "ben").executions == (BEN, stranger)


@pytest.mark.parametrize(("what", "name"), [("execution", ANNA), ("subject", "anna")])
def test_who_has_read_of_it_is_erased_although_it_is_erased_already(state, what, name):
    async def fill_up():
        async with Database(state / FILE_NAME) as database:
            writer = Writer(database)
            await writer.start("d" * 32)
            await writer.end("d" * 32)
            await writer.hold("d" * 32, execution=ANNA)

    erased(state, "execution", ANNA)
    asyncio.run(fill_up())
    assert erased(state, what, name).executions == ("d" * 32,)
    with pytest.raises(BridgeError, match="isn't erased"):
        erased(state, what, name)
    whole(state)


async def test_one_that_holds_something_of_it_and_is_being_executed_keeps_it(state):
    async with Database(state / FILE_NAME) as database:
        writer = Writer(database)
        await writer.start("d" * 32, owner=owner_label())
        await writer.hold("d" * 32, execution=ANNA)
        with pytest.raises(BridgeError, match="is being executed now"):
            await erasure_with_files.erase(database, Files(state), "execution", ANNA, by="me", reason=None)
        assert (await writer.store.execution(ANNA)).status == "suspended"


def test_of_an_erased_script_nothing_is_left_by_which_a_guess_could_be_tried(state):
    async def fill_up():
        async with Database(state / FILE_NAME) as database:
            await Writer(database).start("d" * 32, kind="script", program="a MAC", request="a MAC")
            await Writer(database).end("d" * 32)

    asyncio.run(fill_up())
    erased(state, "execution", "d" * 32)
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        row = connection.execute("SELECT request, program FROM executions WHERE id = ?", ("d" * 32,)).fetchone()
    assert row == ("", "")


# --- others who have the file open ---


async def test_whoever_has_it_open_writes_nothing_of_it_again(state):
    async with Database(state / FILE_NAME) as one, Database(state / FILE_NAME) as two:
        # The one that erases has its key at hand, and nobody writes in between.
        for database in (two, one):
            await Writer(database).recorder.append(Entry("violation", ANNA, {"message": "SECRET"}))
        needles = sealed(state, ANNA)
        await erasure_with_files.erase(one, Files(state), "execution", ANNA, by="me", reason=None)
        assert not places(state, needles)
        for database in (one, two):
            writer = Writer(database)
            await writer.recorder.append(Entry("violation", ANNA, {"message": "SECRET"}))
            await writer.store.update(ANNA, status="success", state=b"SECRET", record={"x": "SECRET"}, due=None)
            writer.store.store_values(ANNA, {"more": "SECRET"})
            await database.flush()
            assert (await writer.store.execution(ANNA)).status == "erased"
            assert all(row.entry.payload == {"erased": TOMBSTONE} for row in await writer.recorder.read(ANNA))
    whole(state)


async def test_of_two_who_erase_at_once_one_does(state):
    async with Database(state / FILE_NAME) as one, Database(state / FILE_NAME) as two:
        results = await asyncio.gather(
            *(
                erasure_with_files.erase(database, Files(state), "execution", ANNA, by="me", reason=None)
                for database in (one, two)
            ),
            return_exceptions=True,
        )
    assert sorted(getattr(result, "code", "done") for result in results) == ["done", "nothing_to_erase"]
    whole(state)


def test_a_reader_keeps_it_unfinished_and_the_next_start_finishes_it(state, monkeypatch, caplog):
    monkeypatch.setattr(execution_erasure, "CHECKPOINT_SECONDS", 0.1)
    monkeypatch.setattr(erasure_with_files, "START_SECONDS", 0.1)
    needles = sealed(state, ANNA, ("data_keys",))
    with closing(sqlite3.connect(state / FILE_NAME)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchall()
        with pytest.raises(BridgeError, match="keeps its journal from being emptied"):
            erased(state, "execution", ANNA)
        assert places(state, needles)
        # Nobody else is kept from working by that: the bridge starts, and says it.
        started(state)
        assert "keeps its journal from being emptied" in caplog.text
        assert unfinished(state)
    started(state)
    assert not places(state, needles)
    assert not unfinished(state)
    whole(state)


def test_files_that_can_t_be_removed_are_removed_at_the_next_start(state, monkeypatch, caplog):
    def broken(files, execution):
        raise PermissionError(13, "Permission denied", str(state / "files" / execution))

    with monkeypatch.context() as patch:
        patch.setattr(Files, "remove", broken)
        with pytest.raises(BridgeError, match=r"can't be removed.*Permission denied"):
            erased(state, "execution", ANNA)
        started(state)
        assert "can't be removed" in caplog.text
    assert (state / "files" / ANNA).exists()
    started(state)
    assert not (state / "files" / ANNA).exists()
    assert not unfinished(state)


# --- kill -9 ---


@pytest.mark.parametrize("point", POINTS)
def test_an_erasure_that_was_killed_is_undone_or_finished_at_the_next_start(state, point):
    needles = sealed(state, ANNA)
    host = Path(__file__).parents[2] / "support/erasing_host.py"
    done = subprocess.run([sys.executable, str(host), str(state), ANNA, point], check=False, timeout=100)
    assert done.returncode == -signal.SIGKILL
    committed = point not in {"the key destroyed", "before it is recorded", "before the commit"}
    if point in {"committed", "before the journal is emptied"}:
        assert places(state, needles), "what is to be erased is still there"
    started(state)
    if not committed:
        assert FILE_NAME in places(state, needles)
        assert erased(state, "execution", ANNA).executions == (ANNA,)
    assert not places(state, needles)
    assert not (state / "files" / ANNA).exists()
    assert not unfinished(state)
    whole(state)


# --- at the command line ---


@pytest.mark.parametrize(
    "command",
    [
        ("execution", "resume", "{}"),
        ("execution", "resume", "{}", "--payload", "1"),
        ("execution", "cancel", "{}"),
        ("execution", "settle", "{}", "--happened"),
        ("approvals", "approve", "{}"),
        ("approvals", "deny", "{}.2"),
        ("replay", "{}"),
    ],
)
def test_what_is_erased_can_t_go_on_and_says_so(desk, command):
    execution = desk.suspended(name="SECRET")
    desk.run("erase", "--execution", execution)
    desk.says(*(word.format(execution) for word in command), code=1, words=["erased", execution])


def test_what_is_erased_is_shown_as_that(desk):
    execution = desk.suspended(name="SECRET")
    desk.run("erase", "--execution", execution[:8])
    shown = desk.run("execution", "show", execution, "--json")
    assert (shown.json["status"], shown.json["program"], shown.json["output"]) == ("erased", TOMBSTONE, TOMBSTONE)
    rows = desk.run("execution", "list", "--json").json["executions"]
    assert [(row["id"], row["status"]) for row in rows] == [(execution, "erased")]
    assert TOMBSTONE in desk.run("approvals", "list", "--all").out
    for command in (("execution", "show", execution), ("execution", "list"), ("approvals", "show", execution)):
        told = desk.run(*command)
        assert "erased" in told.out + told.err or TOMBSTONE in told.out + told.err
        assert "SECRET" not in told.out + told.err


def test_a_value_that_a_tool_gave_back_as_a_part_of_a_word_is_behind_its_reference_and_erased_with_it(desk):
    card = "4242424242424242"
    steps = [
        {"id": "look", "type": "tool", "tool": "look", "args": {"name": "x$card"}},
        {"id": "echo", "type": "tool", "tool": "delete", "args": {"name": "_$card"}},
    ]
    desk.write("programs/echo.json", {"name": "echo", "steps": steps})
    shown = desk.run("program", "run", "echo", "--context", json.dumps({"card": card}), "--json").json
    [reference] = set(re.findall("vault://ref/[a-z2-7]{16}", json.dumps(shown)))
    assert [step["output"] for step in shown["steps"]] == [f"saw x{reference}", f"deleted _{reference}"]
    desk.run("erase", "--ref", reference)
    told = desk.run("execution", "show", shown["trace_id"], "--json").out
    desk.run("audit", "export", "--payloads", desk.folder / "export")
    assert card not in told + (desk.folder / "export").read_text()
    desk.run("audit", "verify")


def test_one_subject_is_erased_by_name(desk):
    desk.configure('[ledger]\nsubject_fields = ["customer"]\n')
    of_anna = desk.suspended(name="x", customer="anna")
    of_ben = desk.suspended(name="x", customer="ben")
    told = desk.run("erase", "--subject", "anna", "--reason", "asked to", "--json")
    assert told.json == {"erased": {"executions": [of_anna], "references": 0}}
    statuses = {row["id"]: row["status"] for row in desk.run("execution", "list", "--json").json["executions"]}
    assert statuses == {of_anna: "erased", of_ben: "suspended"}
    desk.run("audit", "verify")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((), 2, ["bad_argument", "--subject"]),
        (("--subject", "a", "--ref", "b"), 2, ["bad_argument"]),
        (("--subject", "nobody"), 1, ["nothing_to_erase"]),
        (("--ref", "vault://ref/none"), 1, ["nothing_to_erase"]),
        (("--execution", "ffff"), 2, ["unknown_trace"]),
        (("--subject", "a", "--reason", "x" * 3000), 2, ["bad_argument", "--reason"]),
        (("--subject", "a\udcff"), 1, ["bad_text", "lone surrogate"]),
        (("--ref", "a\udcff"), 1, ["bad_text", "lone surrogate"]),
    ],
)
def test_what_can_t_be_erased_is_said(desk, options, code, words):
    desk.suspended()
    desk.says("erase", *options, code=code, words=words)
    desk.run("audit", "verify")
