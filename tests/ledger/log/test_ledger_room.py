"""How much room the record of executions takes: nothing twice, nothing over its limits, nothing after it was erased."""

import asyncio
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ledger_fixtures import large_says, small_says
from tampered_fixtures import ANNA, ASKED, ENDED, HOLDER, WAITING, Writer, verdict

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import artifacts, erasure_for_room, erasure_with_files
from mcp_bridge.executions.artifacts import ArtifactWriter, Files
from mcp_bridge.executions.memories import Memories, digest
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.call_recorder import CallRecorder
from mcp_bridge.executions.scripts.script_run import ScriptRun
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.ledger.admin import offline_compaction
from mcp_bridge.ledger.audit import ledger_copies, proving
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.ledger.erasure import execution_erasure, retention
from mcp_bridge.ledger.log import deduplication, record_limit
from mcp_bridge.ledger.log.deduplication import MIN_PIECE_BYTES, split
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.payloads import ScriptStart, to_entry
from mcp_bridge.ledger.log.quota import RESERVE_BYTES, Quota
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.log.record_limit import Allowance
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.proofs import tlog_proof
from mcp_bridge.ledger.proofs.export_verification import verify_export
from mcp_bridge.ledger.proofs.signing import COSIGNATURE, Signer, Verifier
from mcp_bridge.ledger.publish import target_state
from mcp_bridge.ledger.storage import database as databases
from mcp_bridge.ledger.storage import vacuum
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore, SavedProgram
from mcp_bridge.ledger.storage.schema import FILE_NAME, MIGRATIONS
from mcp_bridge.ledger.storage.sealing import MasterKey
from mcp_bridge.sandbox.ownership import owner_label
from mcp_bridge.settings import Settings

OLD = Path(__file__).parents[2] / "golden" / "ledger-0.1.0.zip"

MEBIBYTE = 1 << 20
DAY = 24 * 3600


@pytest.fixture(autouse=True)
def _unpacked(monkeypatch, request):
    """What takes how much is easier to say of what isn't packed."""
    if "packed" not in request.node.name:
        monkeypatch.setattr(deduplication, "_WORTH", 0)


def noise(size, seed=1):
    """A text of its own."""
    return random.Random(seed).randbytes(size // 2).hex()  # noqa: S311


def outcome(execution, number, value):
    payload = {"kind": "memory", "tool": "memory.load", "call": f"0#{number}", "status": "ok"}
    return Entry("outcome", execution, payload | {"value": {"found": True, "value": value}})


def size_of(path):
    """Bytes of a file and its write-ahead log, on the disk."""
    return sum(one.stat().st_size for one in (path, path.with_name(f"{path.name}-wal")) if one.exists())


def whole(path):
    """Verify a ledger with its keys."""
    with open_ledger(path) as ledger:
        vkey = ledger.vkey
    master = MasterKey((path.parent / "master.key").read_bytes())
    assert verdict(path, [vkey], (), master) is None
    return vkey, master


# --- once ---


async def test_what_is_recorded_again_takes_no_room_again(tmp_path):
    value, path = noise(MEBIBYTE), tmp_path / FILE_NAME
    async with Database(path) as database:
        recorder = SqliteRecorder(database)
        for number in range(30):
            await recorder.append(outcome(ENDED, number, value))
        assert size_of(path) < 4 * MEBIBYTE
        found = [row.entry.payload for row in await recorder.read(ENDED)]
    assert [payload["value"]["value"] for payload in found] == [value] * 30
    # Nor in the memory of whoever reads it.
    assert len({id(payload["value"]["value"]) for payload in found}) == 1
    assert path.stat().st_size < 2 * MEBIBYTE


async def test_what_can_be_packed_takes_less(tmp_path):
    rows = [{"id": number, "name": "a customer", "city": "Bern"} for number in range(20_000)]
    path = tmp_path / FILE_NAME
    async with Database(path) as database:
        await SqliteRecorder(database).append(outcome(ENDED, 1, rows))
        assert (await SqliteRecorder(database).read(ENDED))[0].entry.payload["value"]["value"] == rows
    assert path.stat().st_size < len(json.dumps(rows)) / 3


async def test_another_execution_has_its_own_and_an_erasure_takes_one_s_alone(tmp_path):
    value, path = noise(MEBIBYTE), tmp_path / FILE_NAME
    async with Database(path) as database:
        writer = Writer(database)
        for one in (ENDED, ASKED):
            await writer.start(one)
            await writer.recorder.append(outcome(one, 1, value), outcome(one, 2, value))
            await writer.end(one)
        await erasure_with_files.erase(database, Files(tmp_path), "execution", ENDED, by="me", reason=None)
        assert [row.entry.payload.get("erased") is None for row in await writer.recorder.read(ENDED)] == [False] * 4
        assert (await writer.recorder.read(ASKED))[2].entry.payload["value"]["value"] == value
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT execution, count(*) FROM pieces GROUP BY 1").fetchall() == [(ASKED, 1)]
        (sealed,) = connection.execute("SELECT sealed FROM pieces").fetchone()
        assert value.encode() not in sealed
    whole(path)


def values(rng, depth=0):
    """Any JSON value, with texts around the size of a piece, and texts that look like what stands for one."""
    kind = rng.randrange(9 if depth < 6 else 5)
    if kind == 0:
        return rng.choice([None, True, 0, -1.5, 10**30, "", "\0", "é\ud7ff", '"', "\1"])
    if kind < 5:
        length = rng.choice([1, 5, MIN_PIECE_BYTES - 3, MIN_PIECE_BYTES - 2, MIN_PIECE_BYTES, 3000])
        return rng.choice(["x", "é", '"', "\\", "\n"]) * length
    members = [values(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 5, 70 if depth > 3 else 3]))]
    if kind < 7:
        return members
    return {rng.choice(["a", "b", 'q"', "é" * 600]) + str(number): one for number, one in enumerate(members)}


async def test_any_payload_is_read_as_it_was_recorded_and_its_bytes_are_those_of_json(tmp_path):
    rng = random.Random(7)  # noqa: S311
    payloads = [{"call": str(number), "value": values(rng)} for number in range(150)]
    async with Database(tmp_path / FILE_NAME) as database:
        recorder = SqliteRecorder(database)
        await recorder.append(*(Entry("outcome", ENDED, payload) for payload in payloads))
        assert [row.entry.payload for row in await recorder.read(ENDED)] == payloads
    _, master = whole(tmp_path / FILE_NAME)
    with open_ledger(tmp_path / FILE_NAME, master) as ledger:
        for payload, found in zip(payloads, list(ledger.entries())[1:], strict=True):
            assert found.payload == json.dumps(payload, separators=(",", ":")).encode() == b"".join(split(payload))
    assert any(len(split(payload)) > 3 for payload in payloads)


@pytest.mark.parametrize("size", [1, 300_000])
async def test_a_payload_that_cannot_be_written_is_its_own_trouble_and_not_the_ledgers(tmp_path, size):
    deep = ["x" * size]
    for _ in range(200_000):
        deep = [deep]
    async with Database(tmp_path / FILE_NAME) as database:
        recorder = SqliteRecorder(database)
        for payload in ({"value": deep}, {"rows": list(range(2000)), "value": deep}):
            with pytest.raises(RecursionError):
                await recorder.append(Entry("outcome", "deep", payload))
        await recorder.append(Entry("outcome", "other", {"value": "[{" * size}))
        recorded = await database.read("SELECT execution FROM entries WHERE kind = 'outcome'")
    assert recorded == [("other",)]


async def test_exports_and_proofs_have_the_whole_payload(tmp_path):
    value, path = noise(5000), tmp_path / FILE_NAME
    async with Database(path) as database:
        await SqliteRecorder(database).append(outcome(ENDED, 1, value), outcome(ENDED, 2, value))
    vkey, master = whole(path)
    with open_ledger(path, master) as ledger, (tmp_path / "export").open("wb") as file:
        ledger_copies.export(ledger, file, payloads=True)
        proof = proving.prove(ledger, 2, payload=True)
    text = (tmp_path / "export").read_text()
    assert text.count(value) == 2
    assert verify_export(io.BytesIO(text.encode()), [Verifier.parse(vkey)]).disclosed == 3
    assert value in tlog_proof.verify(proof, [Verifier.parse(vkey)]).disclosed.payload.decode()
    # By a program that knows nothing of this one.
    script = Path(__file__).parents[3] / "examples" / "verify_ledger.py"
    command = [sys.executable, str(script), str(tmp_path / "export"), "--key", vkey]
    done = await anyio.run_process(command, check=False)
    assert done.returncode == 0, done.stderr


async def test_who_goes_on_in_another_process_finds_what_is_there(tmp_path):
    value, path = noise(MEBIBYTE), tmp_path / FILE_NAME
    for number in range(4):
        async with Database(path) as database, Database(path) as other:
            await SqliteRecorder(database).append(outcome(ENDED, number, value))
            await SqliteRecorder(other).append(Entry("violation", ASKED))
            await SqliteRecorder(database).append(outcome(ENDED, 10 + number, value))
    assert size_of(path) < 2 * MEBIBYTE


# --- limits ---


async def test_a_run_that_has_recorded_its_limit_begins_nothing_more_and_what_had_begun_is_recorded(tmp_path):
    quota = Quota(max_run_bytes=4 * MEBIBYTE)
    async with Database(tmp_path / FILE_NAME, quota=quota) as database:
        recorder, run = SqliteRecorder(database), Allowance(database)
        run.counts(ENDED)
        made = 0
        with pytest.raises(BridgeError, match="recorded") as caught:
            while True:
                async with run.room():
                    made += 1
                    await recorder.append(Entry("intent", ENDED, {"call": str(made)}))
                recorder.post(outcome(ENDED, made, noise(MEBIBYTE, made)))
        assert caught.value.code == "record_limit"
        assert caught.value.details["limit"] == 4 * MEBIBYTE
        assert made == 4
        # What undoes is still done, and what has come of what was begun is recorded, as is the end.
        async with run.room(undoes=True):
            recorder.post(outcome(ENDED, 0, noise(MEBIBYTE, 99)))
        await recorder.append(Entry("end", ENDED))
        rows = await recorder.read(ENDED)
        assert [row.entry.kind for row in rows] == ["intent", "outcome"] * 4 + ["outcome", "end"]
        # Another run isn't held up.
        async with Allowance(database).room():
            pass


async def test_what_is_there_already_counts_as_often_as_it_is_recorded_only_for_a_larger_limit(tmp_path):
    quota, value = Quota(max_run_bytes=2 * MEBIBYTE), noise(MEBIBYTE)
    async with Database(tmp_path / FILE_NAME, quota=quota) as database:
        recorder, run = SqliteRecorder(database), Allowance(database)
        run.counts(ENDED)
        made = 0
        with pytest.raises(BridgeError) as caught:
            while True:
                async with run.room():
                    made += 1
                recorder.post(outcome(ENDED, made, value))
        assert caught.value.code == "record_limit"
        assert made == record_limit.REPEATS * 2
        assert run.stored < 2 * MEBIBYTE


async def test_many_at_once_go_no_further_over_the_limit_than_what_is_kept_free_for_them(tmp_path, monkeypatch):
    monkeypatch.setattr(record_limit, "RESERVE_BYTES", 4 * MEBIBYTE)
    monkeypatch.setattr(record_limit, "MAX_OUTCOME_BYTES", 2 * MEBIBYTE)
    quota = Quota(max_run_bytes=8 * MEBIBYTE)
    refused = []
    async with Database(tmp_path / FILE_NAME, quota=quota) as database:
        recorder, run = SqliteRecorder(database), Allowance(database)
        run.counts(ENDED)

        async def call(number):
            try:
                async with run.room():
                    await recorder.append(Entry("intent", ENDED, {"call": str(number)}))
                    recorder.post(outcome(ENDED, number, noise(2 * MEBIBYTE, number)))
            except BridgeError as exc:
                refused.append(exc.code)

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(call, number)
        await database.flush()
        assert set(refused) == {"record_limit"}
        assert 8 * MEBIBYTE < run.stored < 12.5 * MEBIBYTE
        assert size_of(database.path) < 32 * MEBIBYTE


class Plain:
    """As the gate, of values that hold nothing sensitive."""

    async def project(self, value):
        return value

    def values_behind(self, value):
        return {}

    def keep(self, execution, value):
        pass


async def test_a_refused_call_is_recorded_without_what_it_was_given_and_is_refused_again(tmp_path):
    given = {"key": "k", "value": noise(MEBIBYTE)}
    async with Database(tmp_path / FILE_NAME, quota=Quota(max_run_bytes=1)) as database:
        recorder, run = SqliteRecorder(database), Allowance(database)
        run.counts(ENDED)
        await recorder.append(to_entry(ScriptStart("1", "h"), ENDED))

        def script(past=None, room=run.room):
            gate = SimpleNamespace(values=Plain(), room=room)
            return ScriptRun(ENDED, ProgramStore(database), recorder, gate, "", past, key="k")

        async def do():
            raise AssertionError

        async def saves(script, call, given):
            await script.answer(CallRecorder(script, call, "memory", "memory.save", given, NO_REQUEST), do)

        for number in range(5):
            with pytest.raises(BridgeError) as caught:
                await saves(script(), f"0#{number}", given)
            assert caught.value.code == "record_limit"
        await database.flush()
        assert size_of(database.path) < MEBIBYTE
        # Whoever runs it again is told the same, and something else under its name is another way.
        again = script(CallHistory(await recorder.read(ENDED)), room=Allowance(database).room)
        with pytest.raises(BridgeError, match="recorded") as caught:
            await saves(again, "0#1", given)
        assert caught.value.code == "record_limit"
        with anyio.move_on_after(5):
            await saves(again, "0#2", given | {"key": "other"})
        assert again.divergence_detector.divergence is not None


async def test_over_the_quota_nothing_new_begins_and_outcomes_are_recorded(tmp_path):
    async with Database(tmp_path / FILE_NAME, quota=Quota(max_bytes=2 * MEBIBYTE)) as database:
        recorder, run = SqliteRecorder(database), Allowance(database)
        await run.require()
        await recorder.append(outcome(ENDED, 1, noise(3 * MEBIBYTE)))
        with pytest.raises(BridgeError) as caught:
            await run.require()
        assert caught.value.code == "ledger_full"
        assert "erase" in caught.value.hint
        assert "max_size" in caught.value.hint
        await recorder.append(outcome(ENDED, 2, noise(MEBIBYTE, 2)), Entry("end", ENDED))
        assert len(await recorder.read(ENDED)) == 3


async def test_without_room_on_the_disk_nothing_new_begins(tmp_path):
    async with Database(tmp_path / FILE_NAME, quota=Quota(min_free_bytes=1 << 60)) as database:
        with pytest.raises(BridgeError) as caught:
            await Allowance(database).require()
        assert caught.value.code == "ledger_full"
        assert "min_free" in caught.value.hint


async def test_what_others_have_filled_the_disk_with_since_the_last_write_counts(tmp_path, monkeypatch):
    async with Database(tmp_path / FILE_NAME, quota=Quota(min_free_bytes=MEBIBYTE)) as database:
        run = Allowance(database)
        await run.require()
        real = os.statvfs
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=255, f_frsize=4096))
        with pytest.raises(BridgeError) as caught:
            await run.require()
        assert caught.value.code == "ledger_full"
        monkeypatch.setattr(os, "statvfs", real)
        await run.require()


async def test_what_waits_to_be_written_is_bounded_by_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "MAX_QUEUED_BYTES", 2 * MEBIBYTE)
    async with Database(tmp_path / FILE_NAME) as database:
        run, most = Allowance(database), 0
        for number in range(20):
            async with run.room():
                SqliteRecorder(database).post(outcome(ENDED, number, noise(MEBIBYTE, number)))
            most = max(most, database._queued)
        assert most < 5 * MEBIBYTE


async def test_the_journal_is_emptied_when_it_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "MAX_WAL_BYTES", 2 * MEBIBYTE)
    async with Database(tmp_path / FILE_NAME) as database:
        await SqliteRecorder(database).append(outcome(ENDED, 1, noise(8 * MEBIBYTE)))
        # The caller doesn't wait for that; this is done after it.
        await database.measure()
        assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size < MEBIBYTE


# --- erased space ---


async def filled(folder, count=6, each=MEBIBYTE, **more):
    """Executions that have ended, a day between each; their ids."""
    names = [f"{number:032x}" for number in range(count)]
    async with Database(folder / FILE_NAME) as database:
        writer = Writer(database)
        for number, one in enumerate(names):
            await writer.start(one, **more)
            await writer.recorder.append(outcome(one, 1, noise(each, number)))
            await writer.end(one)
    return names


def aged(path, **days):
    """Have executions changed so many days ago, as far as their rows tell: their MACs are renewed."""
    master = MasterKey((path.parent / "master.key").read_bytes())
    from mcp_bridge.ledger.log.transaction import authenticate

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for one, number in days.items():
            ident = one.removeprefix("id")
            connection.execute("UPDATE executions SET changed = ? WHERE id = ?", (time.time() - number * DAY, ident))
            authenticate(connection, master, ("executions", "id = ?", (ident,)))


async def test_an_erasure_makes_the_file_smaller_by_what_was_erased(tmp_path):
    path = tmp_path / FILE_NAME
    names = await filled(tmp_path)
    before = size_of(path)
    assert before > 6 * MEBIBYTE
    async with Database(path) as database:
        for one in names[:5]:
            await erasure_with_files.erase(database, Files(tmp_path), "execution", one, by="me", reason=None)
        # While it is in use, too.
        assert size_of(path) < before - 4.9 * MEBIBYTE
    assert size_of(path) < 1.5 * MEBIBYTE
    whole(path)


async def test_others_write_while_much_is_erased(tmp_path, monkeypatch):
    monkeypatch.setattr(execution_erasure, "STEP_BYTES", MEBIBYTE)
    monkeypatch.setattr(execution_erasure, "PAGES_A_STEP", 64)
    (one,) = await filled(tmp_path, 1, 8 * MEBIBYTE)
    async with Database(tmp_path / FILE_NAME) as database:
        written = []

        async def write():
            while True:
                await SqliteRecorder(database).append(Entry("violation", ASKED))
                written.append(unread())

        def unread():
            with closing(sqlite3.connect(database.path)) as connection:
                return connection.execute("SELECT coalesce(sum(size), 0) FROM pieces").fetchone()[0]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await erasure_with_files.erase(database, Files(tmp_path), "execution", one, by="me", reason=None)
            tasks.cancel_scope.cancel()
    assert written[-1] == 0 or len(written) > 3
    whole(tmp_path / FILE_NAME)


async def test_an_erasure_that_is_cut_short_verifies_and_the_next_start_removes_what_is_left(tmp_path, monkeypatch):
    path = tmp_path / FILE_NAME
    one, other = await filled(tmp_path, 2)

    async def dies(database, executions):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(execution_erasure, "purge", dies)
        async with Database(path) as database:
            with pytest.raises(KeyboardInterrupt):
                await erasure_with_files.erase(database, Files(tmp_path), "execution", one, by="me", reason=None)
    whole(path)
    assert size_of(path) > 2 * MEBIBYTE
    async with Database(path) as database:
        await erasure_with_files.tidy(database, Files(tmp_path), LedgerConfig())
        assert len(await SqliteRecorder(database).read(other)) == 3
    assert size_of(path) < 1.5 * MEBIBYTE
    whole(path)


# --- what is kept how long ---


async def tidied(folder, config=None, quota=None):
    config = config or LedgerConfig()
    async with Database(folder / FILE_NAME, quota=quota) as database:
        await erasure_with_files.tidy(database, Files(folder), config)
        return {one.id: one.status for one in await ProgramStore(database).executions(None, 100)}


async def test_payloads_are_erased_after_thirty_days_unless_forever_is_said(tmp_path):
    names = await filled(tmp_path, 3, 2000)
    aged(tmp_path / FILE_NAME, **{f"id{names[0]}": 31, f"id{names[1]}": 29})
    kept = await tidied(tmp_path, LedgerConfig(keep_payloads_days="forever"))
    assert set(kept.values()) == {"success"}
    kept = await tidied(tmp_path)
    assert [kept[one] for one in names] == ["erased", "success", "success"]
    whole(tmp_path / FILE_NAME)


async def test_what_a_suspended_execution_may_ask_for_is_not_erased_by_age(tmp_path):
    names = await filled(tmp_path, 2, 2000)
    async with Database(tmp_path / FILE_NAME) as database:
        writer = Writer(database)
        await writer.start(WAITING)
        await writer.suspend(WAITING, b"state")
        await writer.hold(WAITING, execution=names[0])
    aged(tmp_path / FILE_NAME, **{f"id{one}": 100 for one in (*names, WAITING)})
    kept = await tidied(tmp_path)
    assert kept == {names[0]: "success", names[1]: "erased", WAITING: "suspended"}
    async with Database(tmp_path / FILE_NAME) as database:
        await Writer(database).resume(WAITING)
        await Writer(database).end(WAITING)
    kept = await tidied(tmp_path)
    assert kept[names[0]] == "erased"


async def test_a_full_ledger_erases_what_takes_much_and_then_what_ended_first(tmp_path, monkeypatch):
    path = tmp_path / FILE_NAME
    names = await filled(tmp_path, 5, 300_000)
    quota = Quota(max_bytes=8 * MEBIBYTE)
    config = LedgerConfig(max_size="8m")
    monkeypatch.setattr(erasure_for_room, "LARGE_SHARE", 4)
    monkeypatch.setattr(retention, "EXECUTIONS_AT_ONCE", 1)
    async with Database(path, quota=quota) as database:
        files = Files(tmp_path)

        async def reclaim():
            await erasure_for_room.make_room(database, files, config)

        database.reclaim = reclaim
        writer = Writer(database)
        await writer.start(WAITING)
        await writer.recorder.append(outcome(WAITING, 1, noise(MEBIBYTE, 51)))
        await writer.suspend(WAITING, b"state")
        for one in (ANNA, ASKED):
            await writer.start(one)
            await writer.recorder.append(outcome(one, 1, noise(3 * MEBIBYTE, 50)))
            await writer.end(one)
        await Allowance(database).require()
        kept = {one.id: one.status for one in await ProgramStore(database).executions(None, 100)}
        # One of the two large ones was enough, and it is the one that had ended first.
        assert kept == dict.fromkeys([*names, ASKED], "success") | {ANNA: "erased", WAITING: "suspended"}
        assert size_of(path) < 8 * MEBIBYTE
        await writer.start(HOLDER)
        await writer.recorder.append(
            outcome(HOLDER, 1, noise(2 * MEBIBYTE, 52)), outcome(HOLDER, 2, noise(1900000, 53))
        )
        await Allowance(database).require()
        kept = {one.id: one.status for one in await ProgramStore(database).executions(None, 100)}
        assert kept[ASKED] == "erased"
        assert kept[HOLDER] == "running"
    whole(path)


async def test_a_full_ledger_erases_nothing_if_forever_was_said(tmp_path):
    names = await filled(tmp_path, 4)
    config = LedgerConfig(max_size="3m", keep_payloads_days="forever")
    async with Database(tmp_path / FILE_NAME, quota=config.quota) as database:
        files = Files(tmp_path)

        async def reclaim():
            await erasure_for_room.make_room(database, files, config)

        database.reclaim = reclaim
        with pytest.raises(BridgeError) as caught:
            await Allowance(database).require()
        assert caught.value.code == "ledger_full"
        kept = {one.id: one.status for one in await ProgramStore(database).executions(None, 100)}
    assert kept == dict.fromkeys(names, "success")


def test_what_is_kept_how_long_is_said_in_a_sentence():
    assert "30 days" in LedgerConfig().retention()
    assert "4.0 GiB" in LedgerConfig().retention()
    told = LedgerConfig(keep_payloads_days="forever", max_size="unlimited", keep_files_days="forever").retention()
    assert "until somebody erases them" in told
    assert "of any size" in told


async def test_the_first_start_says_what_is_kept_how_long_and_the_next_one_nothing(tmp_path, caplog):
    for told in (["30 days"], []):
        caplog.clear()
        async with open_bridge(Settings(state_dir=tmp_path / "state"), []):
            pass
        assert [word for word in ["30 days"] if word in caplog.text] == told


async def test_only_the_newest_cosigned_checkpoints_are_kept_and_those_that_vouch_for_a_key(tmp_path, monkeypatch):
    monkeypatch.setattr(target_state, "MAX_COSIGNED", 3)
    async with Database(tmp_path / FILE_NAME) as database:
        writer = Writer(database)
        for number in range(8):
            await writer.recorder.append(Entry("violation", ASKED))
            await writer.publish(number + 2, await writer.note(), ("a line",))
        sizes = [size for (size,) in await database.read("SELECT size FROM checkpoints ORDER BY size")]
    assert sizes == [7, 8, 9]


def test_what_need_not_be_recorded_leaves_room_for_outcomes():
    file = SimpleNamespace(quota=Quota(max_run_bytes=100), has_room_for=lambda size: size <= RESERVE_BYTES + 50)
    allowance = Allowance(file)
    assert [allowance.has_room(50), allowance.has_room(51)] == [True, False]
    allowance.stored = 60
    assert [allowance.has_room(40), allowance.has_room(41)] == [True, False]


# --- files beside the ledger ---


def kept_file(files, execution, name, size, limit=1 << 30):
    writer = ArtifactWriter(files, execution, limit)
    return writer.write(name, b"x" * size, first=True, last=True)


def test_artifacts_and_outputs_of_all_runs_and_processes_are_limited_together(tmp_path):
    one, other = Files(tmp_path, 100_000), Files(tmp_path, 100_000)
    kept_file(one, "a" * 16, "1", 40_000)
    other.save_output("b" * 16, "stdout.txt", b"x" * 40_000)
    for write in (
        lambda: kept_file(one, "c" * 16, "2", 40_000),
        lambda: kept_file(other, "c" * 16, "2", 40_000),
        lambda: one.save_output("c" * 16, "stdout.txt", b"x" * 40_000),
    ):
        with pytest.raises(BridgeError) as caught:
            write()
        assert caught.value.code == "files_full"
    # What was refused is not there, and doesn't count.
    assert one.used() == 2 * (40_000 + artifacts.FILE_BYTES)
    assert not list((tmp_path / "files").glob("c*/*"))
    # Replaced, it counts once; removed, not any more.
    kept_file(one, "a" * 16, "1", 5000)
    assert one.used() == 45_000 + 2 * artifacts.FILE_BYTES
    one.remove("a" * 16)
    kept_file(other, "c" * 16, "2", 40_000)


def test_empty_files_count_too(tmp_path):
    files = Files(tmp_path, 10 * artifacts.FILE_BYTES)
    with pytest.raises(BridgeError) as caught:
        for number in range(100):
            kept_file(files, "a" * 16, str(number), 0)
    assert caught.value.code == "files_full"
    assert len(list((tmp_path / "files").rglob("*.*"))) <= 10


def test_what_somebody_who_was_killed_has_counted_wrongly_is_counted_anew(tmp_path):
    files = Files(tmp_path, 100_000)
    kept_file(files, "a" * 16, "1", 10_000)
    (tmp_path / artifacts.TOTAL_NAME).write_text("99999")
    with pytest.raises(BridgeError):
        kept_file(files, "b" * 16, "2", 10_000)
    files.sweep(0)
    assert files.used() == 10_000 + artifacts.FILE_BYTES
    kept_file(files, "b" * 16, "2", 10_000)


def test_what_a_killed_bridge_left_incomplete_counts_once_when_its_run_goes_on(tmp_path):
    killed = f"""
import os, signal
from pathlib import Path
from mcp_bridge.executions.artifacts import ArtifactWriter, Files
writer = ArtifactWriter(Files(Path({str(tmp_path)!r}), 100_000), "a" * 16, 1 << 30)
writer.write("1", b"x" * 40_000, first=True, last=False)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -signal.SIGKILL
    files = Files(tmp_path, 100_000)
    assert files.used() > 40_000
    for _ in range(2):
        row = kept_file(files, "a" * 16, "1", 40_000)
        assert files.used() == 40_000 + artifacts.FILE_BYTES
    assert [each.name for each in (tmp_path / "files" / ("a" * 16)).iterdir()] == [row["name"]]
    # Also if it is given up again.
    writer = ArtifactWriter(files, "a" * 16, 1 << 30)
    writer.write("2", b"x", first=True, last=False)
    writer.abort()
    assert files.used() == 40_000 + artifacts.FILE_BYTES


def test_what_a_killed_bridge_left_incomplete_is_swept_and_what_is_under_way_is_not(tmp_path):
    files = Files(tmp_path, 100_000)
    row = kept_file(files, "a" * 16, "1", 10)
    left = Path(row["path"]).with_name(".part")
    left.write_bytes(b"x" * 1000)
    os.utime(left, (0, time.time() - artifacts.INCOMPLETE_SECONDS - 1))
    writer = ArtifactWriter(files, "b" * 16, 1 << 30)
    writer.write("2", b"x", first=True, last=False)
    files.sweep(None)
    assert not left.exists()
    assert Path(row["path"]).exists()
    assert writer.write("2", b"x", first=False, last=True)["size"] == 2


@pytest.mark.parametrize("kept", [True, False])
def test_artifacts_of_a_run_may_be_written_at_the_same_time(tmp_path, kept):
    files = Files(tmp_path, 1 << 30)
    writer = ArtifactWriter(files if kept else None, "a" * 16, 1 << 30)
    for number in range(artifacts.MAX_OPEN):
        writer.write(str(number), b"a", first=True, last=False)
    with pytest.raises(BridgeError) as caught:
        writer.write("more", b"a", first=True, last=False)
    assert caught.value.code == "too_many_artifacts"
    assert files.used() == kept * artifacts.MAX_OPEN * (1 + artifacts.FILE_BYTES)
    # One that begins anew is another one.
    writer.write("0", b"bc", first=True, last=False)
    rows = [writer.write(str(number), b"d", first=False, last=True) for number in (1, 0)]
    assert [row["size"] for row in rows] == [2, 3]
    assert not kept or [Path(row["path"]).read_bytes() for row in rows] == [b"ad", b"bcd"]
    with pytest.raises(BridgeError) as caught:
        writer.write("0", b"d", first=False, last=True)
    assert caught.value.code == "bad_artifact"
    writer.abort()
    assert files.used() == kept * (5 + 2 * artifacts.FILE_BYTES)
    assert len(list((tmp_path / "files").glob("*/*"))) == 2 * kept


async def test_files_are_removed_after_a_week_but_those_of_what_can_go_on(tmp_path):
    files = Files(tmp_path, 1 << 30)
    async with Database(tmp_path / FILE_NAME) as database:
        writer = Writer(database)
        await writer.start(WAITING)
        await writer.suspend(WAITING, b"state")
        await writer.start(ENDED)
        await writer.end(ENDED)
        for one in (WAITING, ENDED):
            kept_file(files, one, "a", 10)
            os.utime(tmp_path / "files" / one, (0, time.time() - 8 * DAY))
        await erasure_with_files.sweep(database, files, LedgerConfig(keep_files_days="forever"))
        assert (tmp_path / "files" / ENDED).exists()
        await erasure_with_files.sweep(database, files, LedgerConfig())
    assert not (tmp_path / "files" / ENDED).exists()
    assert (tmp_path / "files" / WAITING / "a").exists()
    assert files.used() == 10 + artifacts.FILE_BYTES


MERGE = """
import sys
from pathlib import Path
from mcp_bridge.executions.memories import Memories
for number in range(40):
    Memories(Path(sys.argv[1])).save("one", {f"{sys.argv[2]}{number}": number}, update=True)
"""


def test_two_processes_that_merge_into_one_memory_lose_nothing(tmp_path):
    running = [subprocess.Popen([sys.executable, "-c", MERGE, tmp_path, name]) for name in "ab"]
    assert [process.wait(60) for process in running] == [0, 0]
    found, value = Memories(tmp_path).load("one")
    assert found
    assert len(value) == 80


UPDATE = """
import sys
from pathlib import Path
from mcp_bridge.executions.memories import Memories, digest
memories, told, made = Memories(Path(sys.argv[1])), None, 1
for number in range(40):
    while True:
        answer = memories.save_unless_changed("one", made, since=told, mark=f"{sys.argv[2]}{number}")
        told, made = digest(answer["value"], found=answer["found"]), (answer["value"] or 0) + 1
        if answer["saved"]:
            break
"""


def test_two_processes_that_count_in_one_memory_lose_nothing(tmp_path):
    running = [subprocess.Popen([sys.executable, "-c", UPDATE, tmp_path, name]) for name in "ab"]
    assert [process.wait(60) for process in running] == [0, 0]
    assert Memories(tmp_path).load("one") == (True, 80)


def test_a_conditional_save_that_was_done_already_is_not_done_again(tmp_path):
    memories = Memories(tmp_path)
    for number in range(3):
        told = digest(number, found=number > 0)
        assert memories.save_unless_changed("one", number + 1, since=told, mark=f"m{number}")["saved"]
    assert memories.save_unless_changed("one", 2, since=digest(1, found=True), mark="m1")["saved"]
    assert memories.load("one") == (True, 3)
    # Another value in its place has nothing of it any more.
    memories.save("one", 1, update=False)
    assert memories.save_unless_changed("one", 2, since=digest(1, found=True), mark="m1")["saved"]
    assert memories.load("one") == (True, 2)


def test_what_a_killed_process_was_writing_of_a_memory_is_removed(tmp_path):
    memories = Memories(tmp_path)
    memories.save("one", 1, update=False)
    left = tmp_path / "memory" / ".half.json.1.2"
    left.write_bytes(b"x" * 1000)
    memories.save("two", 2, update=False)
    assert not left.exists()
    assert memories.keys("") == ["one", "two"]


async def test_saved_programs_are_limited_whoever_saves_at_the_same_time(tmp_path):
    async with Database(tmp_path / FILE_NAME) as one, Database(tmp_path / FILE_NAME) as other:
        saved = []

        async def save(store, number):
            program = SavedProgram(f"p{number}", "h", {"n": number}, 0.0)
            saved.append(await store.save_program("local", program, 5, 10_000))

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(save, ProgramStore((one, other)[number % 2]), number)
        assert sum(saved) == 5
        store = ProgramStore(one)
        kept = [program.name for program in await store.programs("local")]
        assert len(kept) == 5
        # In its own place there is room.
        assert await store.save_program("local", SavedProgram(kept[0], "h2", {}, 0.0), 5, 10_000)
        assert not await store.save_program("local", SavedProgram(kept[0], "h2", {"n": "x" * 20_000}, 0.0), 5, 10_000)


# --- a ledger of 0.1.0 ---


@pytest.fixture
def old(tmp_path):
    """The state directory that 0.1.0 has left: `golden/ledger.py` says how."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    with zipfile.ZipFile(OLD) as archive:
        archive.extractall(folder)
    for name in ("master.key", "checkpoint.key", FILE_NAME):
        (folder / name).chmod(0o600)
    for name in ("-wal", "-shm"):
        (folder / f"{FILE_NAME}{name}").unlink(missing_ok=True)
    return folder


def version(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_a_ledger_of_0_1_0_is_verified_as_it_is(old):
    vkey, master = whole(old / FILE_NAME)
    assert version(old / FILE_NAME) == 1
    assert vkey == (old / "vkey").read_text()
    verifiers = [Verifier.parse(vkey)]
    again = io.BytesIO()
    with open_ledger(old / FILE_NAME, master) as ledger:
        ledger_copies.export(ledger, again, payloads=True)
    before = (old / "export.jsonl").read_bytes()
    # What it left out of an export is there now: the checkpoint of 25 entries that a witness has cosigned.
    lines = again.getvalue().splitlines(keepends=True)
    (cosigned,) = [line for line in lines if b"witness.example/w1" in line]
    assert b"".join(line for line in lines if line != cosigned) == before
    key = Signer("witness.example/w1", Ed25519PrivateKey.from_private_bytes(b"w" * 32), COSIGNATURE).verifier
    for data, count in ((before, 0), (again.getvalue(), 1)):
        found = verify_export(io.BytesIO(data), [*verifiers, key])
        assert found.disclosed > 10
        assert [(one.size, one.time) for one in found.cosigned] == [(25, 1_790_000_000)] * count
        assert large_says(data, (vkey, key.vkey)) is small_says(data, (vkey, key.vkey)) is None
    assert tlog_proof.verify((old / "entry-5.tlog-proof").read_bytes(), verifiers).disclosed.payload


async def test_a_ledger_of_0_1_0_is_read_written_and_erased(old):
    path, value = old / FILE_NAME, noise(5000)
    async with Database(path) as database:
        writer = Writer(database)
        rows = await writer.recorder.read(ENDED)
        assert [row.entry.kind for row in rows] == ["start", "intent", "outcome", "end", "outcome", "outcome"]
        assert rows[-1].entry.payload["value"]["value"] == "SECRET " * 1000
        assert (await writer.store.execution(WAITING)).state == b"second"
        await writer.recorder.append(outcome(WAITING, 1, value), outcome(WAITING, 2, value))
        await writer.resume(WAITING)
        await writer.end(WAITING)
        await erasure_with_files.erase(database, Files(old), "execution", ENDED, by="me", reason=None)
        assert (await writer.recorder.read(WAITING))[-3].entry.payload["value"]["value"] == value
    assert version(path) == len(MIGRATIONS)
    vkey, _ = whole(path)
    # What was proven then is proven by the same files now, and the log has what it had.
    verifiers = [Verifier.parse(vkey)]
    tlog_proof.verify((old / "entry-5.tlog-proof").read_bytes(), verifiers)
    with open_ledger(path) as ledger:
        before = [line for line in (old / "export.jsonl").read_bytes().splitlines() if b'"entry"' in line]
        entries = [json.loads(line)["entry"].encode() for line in before]
        assert [found.data for found in ledger.entries()][: len(entries)] == entries
        last = (old / "export.jsonl").read_bytes().splitlines()[-1]
        assert proving.consistency(ledger, json.loads(last)["checkpoint"], None, verifiers).old == len(entries)


async def test_a_small_ledger_of_0_1_0_gives_space_back_once_it_was_opened(old):
    async with Database(old / FILE_NAME) as database:
        assert database.measured.gives_back
        assert database.measured.unused == 0
    whole(old / FILE_NAME)


async def test_a_large_ledger_of_0_1_0_gives_space_back_when_it_was_compacted(old, monkeypatch):
    monkeypatch.setattr(vacuum, "AT_ONCE_BYTES", 0)
    path = old / FILE_NAME
    async with Database(path, owner=owner_label()) as database:
        writer = Writer(database)
        await writer.start("f" * 32)
        await writer.recorder.append(outcome("f" * 32, 1, noise(3 * MEBIBYTE)))
        await writer.end("f" * 32)
        await erasure_with_files.erase(database, Files(old), "execution", "f" * 32, by="me", reason=None)
        assert not (await database.measure()).gives_back
        assert size_of(path) > 3 * MEBIBYTE
        async with Database(path, owner="somebody:1:2"):
            with pytest.raises(BridgeError) as caught:
                await offline_compaction.compact(database, owner_label())
            assert caught.value.code == "ledger_in_use"
        before, after = await offline_compaction.compact(database, owner_label())
        assert before.unused >= 3 * MEBIBYTE > 10 * after.used
        assert after.gives_back
        assert size_of(path) < MEBIBYTE
    whole(path)


def test_a_ledger_that_was_migrated_and_one_that_is_new_are_the_same(old, tmp_path):
    asyncio.run(opened(old / FILE_NAME))
    asyncio.run(opened(tmp_path / FILE_NAME))
    schemas = []
    for path in (old / FILE_NAME, tmp_path / FILE_NAME):
        with closing(sqlite3.connect(path)) as connection:
            schemas.append(connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY 2").fetchall())
    assert schemas[0] == schemas[1]


async def opened(path):
    async with Database(path):
        pass
