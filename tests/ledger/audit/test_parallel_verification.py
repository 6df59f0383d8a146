# ruff: noqa: S608  (statements are made of this file's own numbers)
"""Verification by several processes: it finds what one finds, and says it in the same words."""

import asyncio
import dataclasses
import shutil
import sqlite3
from contextlib import closing

import pytest
from tampered_fixtures import Writer

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit import parallel_verification
from mcp_bridge.ledger.audit.file_verification import verify_file
from mcp_bridge.ledger.audit.table_audit import TableAudit
from mcp_bridge.ledger.erasure import execution_erasure
from mcp_bridge.ledger.keys.master_key_sources import master_key
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.entry_encoding import decode, encode, leaf_hash
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.proofs.export_format import BATCH_ENTRIES
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME

RUNS = [f"{number:032x}" for number in range(8)]

ROUNDS = 700
"""Of entries of the first executions: they and others come to four batches and a part of one."""


async def _fill(path):
    async with Database(path) as database:
        writer = Writer(database)
        for number, run in enumerate(RUNS):
            await writer.start(run, subject="anna" if number == 3 else "")
            if number == 1:
                for at in range(ROUNDS):
                    payload = {"effect": at, "kind": "tool", "tool": "pay", "arguments": {"to": "x" * (at % 50)}}
                    database.record(*(Entry("intent", each, payload, "steps.pay") for each in RUNS[:2]))
                await database.flush()
            for at in range(ROUNDS // 2):
                database.record(Entry("outcome", run, {"effect": at, "status": "ok", "value": at}))
            await writer.effect(run, large=True)
            await writer.end(run)
        erase = {"by": "me", "reason": "asked to", "under_way": lambda status, owner: False}
        await execution_erasure.erase(database, "subject", "anna", **erase)
        await execution_erasure.finish(database, lambda execution: None)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    asyncio.run(_fill(folder / FILE_NAME))
    return folder


@pytest.fixture
def path(kept, tmp_path):
    shutil.copytree(kept, tmp_path / "state")
    return tmp_path / "state" / FILE_NAME


@pytest.fixture
def accepted(monkeypatch):
    """The batches that are accepted without being read here."""
    found = []
    see = TableAudit.see_batch

    def counted(self, batch):
        found.append(batch)
        see(self, batch)

    monkeypatch.setattr(TableAudit, "see_batch", counted)
    return found


def outcome(path, monkeypatch, processes, *, opens=True):
    """What verification says with so many processes: its verdict, or all of its error."""
    monkeypatch.setattr(parallel_verification, "MIN_ENTRIES", 0)
    monkeypatch.setattr(parallel_verification, "_processors", lambda: processes)
    verifier = Verifier.parse(path.with_name("checkpoint.pub").read_text().strip())
    master = master_key("file", path.parent, make=False) if opens else None
    try:
        return verify_file(path, [verifier], (), master)
    except BridgeError as error:
        return error.code, error.message, error.hint, error.details


@pytest.mark.parametrize("opens", [True, False], ids=["opened", "sealed"])
@pytest.mark.parametrize("processes", [2, 3, 8])
def test_several_processes_verify_what_one_does(path, monkeypatch, accepted, processes, opens):
    alone = outcome(path, monkeypatch, 1, opens=opens)
    assert accepted == []
    assert outcome(path, monkeypatch, processes, opens=opens) == alone
    assert (alone.erased, alone.opened) == (1, opens)
    # All but the first, with the key of the log, and the last, which isn't complete and has the erasure.
    assert len(accepted) == alone.log.size // BATCH_ENTRIES - 1 >= 3


def _changed(entry, **fields):
    return encode(dataclasses.replace(decode(entry), **fields))


def _rehashed(connection, at, **fields):
    """Change an entry, and have all hashes beside entries fit; chains and the signature don't."""
    frontier = merkle.Frontier()
    for number, entry in connection.execute("SELECT sequence, entry FROM entries ORDER BY sequence").fetchall():
        changed = _changed(entry, **fields) if number == at else entry
        row = changed, frontier.append(leaf_hash(changed)), number
        connection.execute("UPDATE entries SET entry = ?, nodes = ? WHERE sequence = ?", row)


IN_A_BATCH, LAST_OF_ONE = 2 * BATCH_ENTRIES + 300, 3 * BATCH_ENTRIES - 1

CHANGES = {
    "a byte of an entry": "UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), 'time', 'tame') AS BLOB)"
    f" WHERE sequence = {IN_A_BATCH}",
    "another entry's bytes": "UPDATE entries SET entry = (SELECT entry FROM entries WHERE sequence = 5)"
    f" WHERE sequence = {IN_A_BATCH}",
    "a kind": f"UPDATE entries SET kind = 'end' WHERE sequence = {IN_A_BATCH}",
    "an execution": f"UPDATE entries SET execution = '{RUNS[7]}' WHERE sequence = {IN_A_BATCH}",
    "its hash": f"UPDATE entries SET nodes = zeroblob(length(nodes)) WHERE sequence = {IN_A_BATCH}",
    "a hash above a batch": "UPDATE entries SET nodes = CAST(substr(nodes, 1, length(nodes) - 32) || zeroblob(32) AS BLOB)"
    f" WHERE sequence = {4 * BATCH_ENTRIES - 1}",
    "a hash too many": f"UPDATE entries SET nodes = CAST(nodes || zeroblob(32) AS BLOB) WHERE sequence = {LAST_OF_ONE}",
    "an entry is gone": f"DELETE FROM entries WHERE sequence = {IN_A_BATCH}",
    "the end is gone": f"DELETE FROM entries WHERE sequence >= {IN_A_BATCH}",
    "an entry before the first": "INSERT INTO entries SELECT -5, execution, kind, entry, nodes FROM entries"
    " WHERE sequence = 7",
    "an entry after the last": "INSERT INTO entries SELECT 1000000, execution, kind, entry, nodes FROM entries"
    " WHERE sequence = 7",
    "a payload": f"UPDATE payloads SET sealed = zeroblob(60) WHERE sequence = {IN_A_BATCH}",
    "a payload is gone": f"DELETE FROM payloads WHERE sequence = {IN_A_BATCH}",
    "a key": f"UPDATE data_keys SET wrapped = zeroblob(60) WHERE execution = '{RUNS[2]}'",
    "a piece": "UPDATE pieces SET sealed = zeroblob(size)",
    "a row beside the log": f"DELETE FROM executions WHERE id = '{RUNS[2]}'",
}

REHASHED = {
    "a chain within a batch": {"previous": "ab" * 32},
    "an earlier time": {"time": 1},
    "another number": {"sequence": 3},
    "no chain": {"previous": None},
}


def _triggers(connection):
    return connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()


def tamper(path, change):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        triggers = _triggers(connection)
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("BEGIN")
        change(connection)
        connection.execute("COMMIT")
        for _, statement in triggers:
            connection.execute(statement)


@pytest.mark.parametrize("what", CHANGES)
def test_several_processes_find_what_one_finds(path, monkeypatch, what):
    tamper(path, lambda connection: connection.execute(CHANGES[what]))
    alone = outcome(path, monkeypatch, 1)
    assert isinstance(alone, tuple), "nothing was found"
    assert outcome(path, monkeypatch, 2) == alone


@pytest.mark.parametrize("sequence", [BATCH_ENTRIES + 1, IN_A_BATCH, LAST_OF_ONE, 2 * BATCH_ENTRIES])
@pytest.mark.parametrize("what", REHASHED)
def test_several_processes_find_what_is_wrong_although_its_hashes_fit(path, monkeypatch, what, sequence):
    tamper(path, lambda connection: _rehashed(connection, sequence, **REHASHED[what]))
    alone = outcome(path, monkeypatch, 1)
    assert alone[0] in {"tampered", "ledger_damaged"}
    assert outcome(path, monkeypatch, 2) == alone


def test_of_several_faults_the_first_is_told(path, monkeypatch):
    for sequence in (3 * BATCH_ENTRIES + 7, BATCH_ENTRIES + 9, 2 * BATCH_ENTRIES + 1):
        tamper(path, lambda connection, at=sequence: connection.execute(f"DELETE FROM payloads WHERE sequence = {at}"))
    alone = outcome(path, monkeypatch, 1)
    assert f"entry {BATCH_ENTRIES + 9}" in alone[1]
    assert outcome(path, monkeypatch, 3) == alone


@pytest.mark.parametrize(
    "loader", ["raise SystemExit", "import os; os.write(1, b'ab')", "print('x' * 4); import os; os.write(1, b'abcde')"]
)
def test_a_process_that_is_lost_is_done_without(path, monkeypatch, accepted, loader):
    alone = outcome(path, monkeypatch, 1)
    monkeypatch.setattr(parallel_verification, "_LOADER", loader)
    assert outcome(path, monkeypatch, 2) == alone
    assert accepted == []


def test_processes_that_cant_be_started_are_done_without(path, monkeypatch, accepted):
    alone = outcome(path, monkeypatch, 1)

    def refused(*_args, **_more):
        raise OSError

    monkeypatch.setattr(parallel_verification.subprocess, "Popen", refused)
    assert outcome(path, monkeypatch, 2) == alone
    assert accepted == []


def test_processes_that_see_another_state_of_the_file_are_done_without(path, monkeypatch, accepted):
    master = master_key("file", path.parent, make=False)
    monkeypatch.setattr(parallel_verification, "MIN_ENTRIES", 0)
    monkeypatch.setattr(parallel_verification, "_processors", lambda: 2)

    async def more():
        async with Database(path) as database:
            database.record(Entry("outcome", RUNS[7], {"effect": 1, "status": "ok", "value": 1}))

    with open_ledger(path, master) as ledger:
        asyncio.run(more())
        with parallel_verification.verified_batches(ledger) as batches:
            assert set(batches) == {None}
