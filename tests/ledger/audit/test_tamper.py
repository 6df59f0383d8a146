# ruff: noqa: S608  (statements are made of this file's own names)
"""What becomes of a ledger's file in an attacker's hands, and what finds it. docs/tampering.md has this as a table."""

import asyncio
import dataclasses
import io
import json
import os
import random
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tampered_fixtures import (
    ANNA,
    ASKED,
    ENDED,
    HOLDER,
    REFERENCE,
    WAITING,
    Writer,
    at,
    build,
    dump,
    old,
    opened,
    rewrite,
    verdict,
)

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit import ledger_copies, proving, statistics
from mcp_bridge.ledger.audit.file_verification import verify_file
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.entry_encoding import Leaf
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.proofs.signing import Signer, Verifier
from mcp_bridge.ledger.publish.open_publisher import open_publisher
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME

CHANGES = int(os.environ.get("MCP_BRIDGE_TEST_TAMPER_CHANGES", "700"))
"""Of single bytes; 0 for every byte of the file, with every one of FLIPS."""

FLIPS = (0x01, 0x20, 0x80, 0xFF)
"""What a byte is XORed with: a digit or a length by one, a letter's case, a sign, everything."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The ledger with everything in it."""
    return asyncio.run(build(tmp_path_factory.mktemp("kept")))


@pytest.fixture
def copy(kept, tmp_path):
    """A copy of it to be changed."""
    return Path(shutil.copy(kept.path, tmp_path / FILE_NAME))


def test_the_ledger_is_whole_and_has_something_of_everything(kept):
    assert kept.verdicts(kept.path) == [None, None, None]
    with closing(sqlite3.connect(kept.path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for table in tables:
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0], table
        kinds = {kind for (kind,) in connection.execute("SELECT kind FROM entries")}
    assert len(tables) == 15
    assert {"start", "intent", "outcome", "suspension", "resume", "decision", "end", "erasure", "key", "clock"} <= kinds
    for name, path in kept.copies.items():
        assert verdict(path, [kept.vkey], (), kept.master) == (
            None if name in {"rotated", "erased"} else "untrusted_key"
        )


# --- single bytes ---


def test_no_change_of_a_single_byte_alters_anything_and_is_not_found(kept, copy):
    """Of each: it is found, or the file is refused, or every row and the schema are what they were."""
    data, before = copy.read_bytes(), dump(copy)
    meaningful = [place for place, byte in enumerate(data) if byte]
    chosen = random.Random(4)  # noqa: S311
    positions = (
        [*range(100), *chosen.sample(meaningful, CHANGES - 200), *chosen.sample(range(len(data)), 100)]
        if CHANGES
        else range(len(data))
    )
    changes = [(place, flip) for place in positions for flip in ([chosen.choice(FLIPS)] if CHANGES else FLIPS)]
    classes = Counter()
    fd = os.open(copy, os.O_RDWR)
    try:
        for position, flip in changes:
            os.pwrite(fd, bytes([data[position] ^ flip]), position)
            code = verdict(copy, [kept.vkey], kept.elsewhere, kept.master)
            if code is None:
                assert dump(copy) == before, f"byte {position} ^ {flip:#x} is not found"
            classes[
                {None: "identical", "database_unusable": "refused", "database_newer": "refused"}.get(code, "found")
            ] += 1
            os.pwrite(fd, data[position : position + 1], position)
    finally:
        os.close(fd)
    print(dict(classes))
    assert copy.read_bytes() == data
    assert classes["found"] > classes["refused"] > 0


def test_a_changed_byte_is_an_error_of_ours_wherever_the_ledger_is_read(kept, copy):
    """Commands that don't verify everything: they may be deceived, and never crash."""
    for name in ("master.key", "checkpoint.key"):
        shutil.copy(kept.folder / name, copy.parent)
    data = copy.read_bytes()
    chosen = random.Random(5)  # noqa: S311
    meaningful = [place for place, byte in enumerate(data) if byte]
    for position in chosen.sample(meaningful, CHANGES // 12 or 3000):
        with copy.open("r+b") as file:
            file.seek(position)
            file.write(bytes([data[position] ^ chosen.choice(FLIPS)]))
        read_everything(copy, kept)
        copy.write_bytes(data)


def test_what_is_counted_is_seen_to_be_text(copy):
    # An execution of 32 characters and the kind `start` in a row's head, the kind as bytes instead.
    data = copy.read_bytes()
    assert b"\0\x4d\x17" in data
    copy.write_bytes(data.replace(b"\0\x4d\x17", b"\0\x4d\x16", 1))
    with pytest.raises(BridgeError, match="no text"), open_ledger(copy) as ledger:
        statistics.stats(ledger)


def test_an_entry_that_is_kept_as_text_is_read_all_the_same(kept, copy):
    before, after = io.BytesIO(), io.BytesIO()
    with open_ledger(copy) as ledger:
        ledger_copies.export(ledger, before, payloads=False)
    data = bytearray(copy.read_bytes())
    data[data.index(b"\0\x4d\x17") + 4] ^= 1
    copy.write_bytes(data)
    with open_ledger(copy) as ledger:
        (found,) = ledger.connection.execute("SELECT count(*) FROM entries WHERE typeof(entry) = 'text'").fetchone()
        ledger_copies.export(ledger, after, payloads=False)
    assert found == 1
    assert after.getvalue() == before.getvalue()
    # SQLite itself doesn't take it for a table's row.
    assert kept.verdicts(copy)[0] == "ledger_damaged"


@pytest.mark.parametrize("place", [5, 7], ids=["note", "key"])
async def test_a_head_that_is_no_text_is_an_error_of_ours(kept, copy, place):
    for name in ("master.key", "checkpoint.key"):
        shutil.copy(kept.folder / name, copy.parent)
    # A row's head: its length, `one`, the size, a root of 32 bytes; then the kinds of note and key, two bytes each.
    data = bytearray(copy.read_bytes())
    (at,) = [found.start() for found in re.finditer(rb"\x08\0\x01\x4c", data)]
    data[at + place] ^= 1
    copy.write_bytes(data)
    with pytest.raises(BridgeError, match=r"non-TEXT value in head|its head is invalid"):
        async with Database(copy):
            pass


def read_everything(path, kept):
    uses = (
        lambda ledger: json.dumps(statistics.stats(ledger).to_json()),
        lambda ledger: ledger_copies.export(ledger, io.BytesIO(), payloads=True),
        lambda ledger: proving.prove(ledger, 7, payload=True),
        lambda ledger: proving.consistency(ledger, kept.elsewhere[2], None, [Verifier.parse(kept.vkey)]),
    )
    for use in uses:
        with suppress(BridgeError), open_ledger(path, kept.master) as ledger:
            use(ledger)
    with suppress(BridgeError):
        asyncio.run(look_round(path))


async def look_round(path):
    """What a bridge reads of it."""
    async with Database(path) as database:
        store, recorder = ProgramStore(database), SqliteRecorder(database)
        for use in (
            lambda: store.executions(None, 10),
            store.approvals,
            lambda: store.programs("local"),
            lambda: store.values(HOLDER),
            lambda: recorder.read(WAITING),
            lambda: open_publisher(database, LedgerConfig(), path.parent),
            lambda: recorder.append(Entry("violation", WAITING)),
        ):
            with suppress(BridgeError):
                await use()


# --- whole rows ---


def execute(*statements):
    """An attack by statements alone."""

    def attack(connection, kept):
        for statement in statements:
            assert connection.execute(statement).rowcount != 0, statement

    return attack


def restored(name, *statements):
    """An attack with rows of an earlier copy, the schema `old`."""

    def attack(connection, kept):
        old(connection, kept, name)
        execute(*statements)(connection, kept)

    return attack


def rewritten(change, *, key=None):
    """Entries changed, all hashes anew; `key`: nobody's, the attacker's (`other`), the log's own (`own`), or the one
    that it had before (`replaced`)."""

    def attack(connection, kept):
        if key == "own":
            # Whoever has the key takes away what a witness has signed.
            execute("DELETE FROM checkpoints WHERE note LIKE '%witness%'")(connection, kept)
        signers = {None: None, "own": kept.signer, "replaced": kept.replaced}
        other = Signer(kept.vkey.partition("+")[0], Ed25519PrivateKey.from_private_bytes(b"o" * 32))
        rewrite(connection, kept, change, signer=signers.get(key, other))

    return attack


def changed(rows):
    place = at(rows, "intent", ENDED)
    rows[place][0] = replaced(rows[place][0], step="steps.another")


def removed(rows):
    del rows[at(rows, "outcome", ENDED)]


def inserted(rows):
    rows.append([replaced(rows[-1][0], kind="clock", execution="ledger", commitment=rows[0][0].commitment), rows[0][1]])


def swapped(rows):
    one, other = at(rows, "intent", ENDED), at(rows, "outcome", ENDED)
    rows[one], rows[other] = rows[other], rows[one]


def replaced(leaf, **over):
    assert isinstance(leaf, Leaf)
    return dataclasses.replace(leaf, **over)


def cut(connection, kept):
    """The last two entries, and the head that was signed before them."""
    old(connection, kept, "erased")
    size = connection.execute("SELECT size FROM old.head").fetchone()[0]
    execute(
        f"DELETE FROM entries WHERE sequence >= {size}",
        f"DELETE FROM payloads WHERE sequence >= {size}",
        "REPLACE INTO head SELECT * FROM old.head",
    )(connection, kept)


def unfinished(connection, kept):
    """Payloads that nobody can read are back, as if they were still to be removed."""
    old(connection, kept, "rotated")
    number, told = connection.execute(
        "SELECT sequence, substr(sealed, 33) FROM payloads JOIN entries USING (sequence) WHERE kind = 'erasure' LIMIT 1"
    ).fetchone()
    name = f"unfinished erasure {number}"
    connection.execute("INSERT INTO meta VALUES (?, ?)", (name, json.dumps(json.loads(told)["executions"])))
    connection.execute("INSERT OR IGNORE INTO payloads SELECT * FROM old.payloads")


def with_schema(*statements):
    """An attack on the schema itself."""

    def attack(path, kept):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            for statement in statements:
                connection.execute(statement)

    return attack


def rolled_back(name):
    """The whole file as it was."""

    def attack(path, kept):
        shutil.copy(kept.copies[name], path)

    return attack


VERIFY, MASTER, ELSEWHERE, NOTHING = (
    "`audit verify`",
    "with the master key",
    "a checkpoint kept elsewhere",
    "**nothing**",
)
"""What finds it first. Each includes those before it."""

CHANGED = "UPDATE {} SET {} WHERE {}"
ROW = "execution = '{}'"

ROWS = [
    # The log.
    ("log", "an entry's bytes are changed", execute("UPDATE entries SET entry = CAST(replace(entry, 'steps.pay', 'steps.pax') AS BLOB) WHERE sequence = 4"), VERIFY),
    ("log", "an entry is changed, all hashes computed anew", rewritten(changed), VERIFY),
    ("log", "an entry is removed, all hashes computed anew", rewritten(removed), VERIFY),
    ("log", "an entry is inserted, all hashes computed anew", rewritten(inserted), VERIFY),
    ("log", "two entries are swapped, all hashes computed anew", rewritten(swapped), VERIFY),
    ("log", "an entry is changed, and another key signs", rewritten(changed, key="other"), VERIFY),
    ("log", "an entry is changed, and the log's own key signs", rewritten(changed, key="own"), ELSEWHERE),
    ("log", "an entry is removed, and the log's own key signs", rewritten(removed, key="own"), ELSEWHERE),
    ("log", "an entry is inserted before the end, and the log's own key signs", rewritten(lambda rows: (inserted(rows), rows.insert(18, rows.pop())), key="own"), ELSEWHERE),
    ("log", "an entry is appended, and the log's own key signs", rewritten(inserted, key="own"), NOTHING),
    ("log", "an entry is appended, and a key that was replaced signs", rewritten(inserted, key="replaced"), VERIFY),
    ("log", "two entries are swapped, and the log's own key signs", rewritten(swapped, key="own"), ELSEWHERE),
    ("log", "a stored hash is changed", execute("UPDATE entries SET nodes = zeroblob(length(nodes)) WHERE sequence = 5"), VERIFY),
    ("log", "a column beside an entry is changed", execute("UPDATE entries SET kind = 'denial' WHERE kind = 'outcome'"), VERIFY),
    ("log", "the end is cut off, and the head put back that was signed before it", cut, ELSEWHERE),
    ("log", "the end is cut off, and the head stays", execute("DELETE FROM entries WHERE sequence = (SELECT max(sequence) FROM entries)"), VERIFY),
    (
        "log",
        "a second head is added",
        execute("PRAGMA ignore_check_constraints = ON", "INSERT INTO head SELECT 2, size, root, note, vkey FROM head"),
        VERIFY,
    ),
    ("log", "the head is removed", execute("DELETE FROM head"), VERIFY),
    ("log", "the head is that of an earlier size", restored("erased", "REPLACE INTO head SELECT * FROM old.head"), VERIFY),
    ("log", "the head names another key", restored("decided", "UPDATE head SET vkey = (SELECT vkey FROM old.head)"), VERIFY),
    ("log", "the checkpoint that vouches for the new key is removed", execute("DELETE FROM checkpoints WHERE size = (SELECT min(size) FROM checkpoints)"), VERIFY),
    ("log", "the checkpoint that vouches for the new key loses a signature", execute("UPDATE checkpoints SET note = substr(note, 1, length(note) - 30) || 'AAAAAAAAAAAAAAAAAAAAAAAAAAAA=' || char(10) WHERE size = (SELECT min(size) FROM checkpoints)"), VERIFY),
    ("log", "a cosigned checkpoint is removed", execute("DELETE FROM checkpoints WHERE note LIKE '%witness%'"), NOTHING),
    ("log", "a cosignature is changed", execute("UPDATE checkpoints SET note = replace(note, 'example/w1', 'example/w2')"), MASTER),
    # Payloads and keys.
    ("payloads", "a payload is changed", execute("UPDATE payloads SET sealed = zeroblob(length(sealed)) WHERE sequence = 6"), MASTER),
    ("payloads", "a payload is removed", execute("DELETE FROM payloads WHERE sequence = 6"), VERIFY),
    ("payloads", "two payloads of an execution are swapped", execute("UPDATE payloads SET sealed = (SELECT sealed FROM payloads AS other WHERE other.sequence = 11 - payloads.sequence) WHERE sequence IN (5, 6)"), MASTER),
    ("payloads", "payloads of two executions are swapped", execute("UPDATE payloads SET sealed = (SELECT sealed FROM payloads AS other WHERE other.sequence = 8 - payloads.sequence) WHERE sequence IN (2, 6)"), MASTER),
    ("payloads", "a payload of no entry is added", execute("INSERT INTO payloads VALUES (999, x'00')"), VERIFY),
    ("payloads", "the payload of an entry about the log is changed", execute("UPDATE payloads SET sealed = CAST(replace(sealed, 'asked to', 'asked no') AS BLOB) WHERE sequence IN (SELECT sequence FROM entries WHERE kind = 'erasure')"), VERIFY),
    ("payloads", "the payload of an entry about the log is taken away", execute("UPDATE payloads SET sealed = x'' WHERE sequence IN (SELECT sequence FROM entries WHERE kind = 'erasure')"), VERIFY),
    ("payloads", "an execution's payloads and key are destroyed without a word", execute(f"UPDATE data_keys SET wrapped = NULL WHERE {ROW.format(ENDED)}", f"DELETE FROM payloads WHERE sequence IN (SELECT sequence FROM entries WHERE {ROW.format(ENDED)})"), VERIFY),
    ("payloads", "an erased execution's payloads are put back without its key", restored("rotated", "INSERT OR IGNORE INTO payloads SELECT * FROM old.payloads"), VERIFY),
    ("payloads", "an erased execution's payloads are put back without its key, and its erasure is said to be unfinished", unfinished, NOTHING),
    ("pieces", "a piece of a payload is changed", execute("UPDATE pieces SET sealed = zeroblob(length(sealed)) WHERE id = (SELECT min(id) FROM pieces)"), MASTER),
    ("pieces", "a piece of a payload is removed", execute("DELETE FROM pieces WHERE id = (SELECT min(id) FROM pieces)"), MASTER),
    ("pieces", "two pieces of an execution are swapped", execute("CREATE TEMP TABLE swap AS SELECT id, name FROM pieces", "UPDATE pieces SET name = CAST(x'00' || name AS BLOB)", "UPDATE pieces SET name = (SELECT name FROM swap WHERE swap.id <> pieces.id)"), MASTER),
    ("pieces", "a piece is another execution's", execute(f"UPDATE pieces SET execution = '{HOLDER}' WHERE {ROW.format(ENDED)}"), MASTER),
    ("pieces", "a piece of nobody's is added", execute("INSERT INTO pieces SELECT 99, 'another', name, size, sealed FROM pieces LIMIT 1"), VERIFY),
    ("pieces", "a piece that no payload names is added", execute("INSERT INTO pieces SELECT 99, execution, zeroblob(16), size, sealed FROM pieces LIMIT 1"), MASTER),
    ("pieces", "the size beside a piece is changed", execute("UPDATE pieces SET size = size + 1"), VERIFY),
    ("pieces", "a piece of an erased execution is put back from an older copy", restored("rotated", f"INSERT INTO pieces SELECT id + 99, execution, name, size, sealed FROM old.pieces WHERE {ROW.format(ANNA)}"), VERIFY),
    ("keys", "a key is removed", execute(f"DELETE FROM data_keys WHERE {ROW.format(ENDED)}"), VERIFY),
    ("keys", "the key of saved programs is removed", execute("DELETE FROM data_keys WHERE execution LIKE 'programs/%'"), MASTER),
    ("keys", "a destroyed key is put back from an older copy", restored("rotated", f"REPLACE INTO data_keys SELECT * FROM old.data_keys WHERE {ROW.format(ANNA)}"), VERIFY),
    ("keys", "a destroyed key and its payloads are put back from an older copy", restored("rotated", f"REPLACE INTO data_keys SELECT * FROM old.data_keys WHERE {ROW.format(ANNA)}", "INSERT OR IGNORE INTO payloads SELECT * FROM old.payloads"), VERIFY),
    ("keys", "two keys are swapped", execute(f"UPDATE data_keys SET wrapped = (SELECT wrapped FROM data_keys AS other WHERE other.execution <> data_keys.execution AND other.execution IN ('{ENDED}', '{HOLDER}')) WHERE execution IN ('{ENDED}', '{HOLDER}')"), MASTER),
    ("keys", "a key is another subject's", execute(f"UPDATE data_keys SET subject = (SELECT subject FROM data_keys WHERE {ROW.format(ENDED)}) WHERE {ROW.format(HOLDER)}"), MASTER),
    ("keys", "a key is added", execute("INSERT INTO data_keys SELECT 'another', subject, wrapped, mac FROM data_keys LIMIT 1"), MASTER),
    ("keys", "what a script holds of another is changed", execute("UPDATE holders SET holder = 'another'"), MASTER),
    ("keys", "what a script holds of another is removed", execute("DELETE FROM holders"), NOTHING),
    # Executions.
    ("executions", "an execution is changed", execute(f"UPDATE executions SET status = 'failed' WHERE id = '{ENDED}'"), MASTER),
    ("executions", "an execution is removed", execute(f"DELETE FROM executions WHERE id = '{ENDED}'"), VERIFY),
    ("executions", "an execution is added", execute("INSERT INTO executions SELECT 'another', kind, principal, NULL, request, 'success', program, bundle, origin, owner, state, record, due, started, changed, mac FROM executions LIMIT 1"), MASTER),
    ("executions", "an execution that has ended is suspended again, as it was", restored("suspended", f"REPLACE INTO executions SELECT * FROM old.executions WHERE id = '{ASKED}'"), MASTER),
    ("executions", "a suspended execution has the state of an earlier suspension", restored("suspended", f"REPLACE INTO executions SELECT * FROM old.executions WHERE id = '{WAITING}'"), MASTER),
    ("executions", "an execution is down as running, as it was", restored("began", f"REPLACE INTO executions SELECT * FROM old.executions WHERE id = '{ASKED}'"), NOTHING),
    ("executions", "an erased execution is put back", restored("rotated", f"REPLACE INTO executions SELECT * FROM old.executions WHERE id = '{ANNA}'"), VERIFY),
    # Approvals.
    ("approvals", "an approval is changed", execute("UPDATE approvals SET status = 'denied' WHERE status = 'approved'"), MASTER),
    ("approvals", "a decided approval is removed", execute("DELETE FROM approvals WHERE status = 'approved'"), MASTER),
    ("approvals", "a decided approval is open again, as it was", restored("suspended", f"REPLACE INTO approvals SELECT * FROM old.approvals WHERE {ROW.format(ASKED)}"), MASTER),
    ("approvals", "an open approval is removed", execute("DELETE FROM approvals WHERE status = 'open'"), NOTHING),
    ("approvals", "an approval is added", execute("INSERT INTO approvals SELECT 99, execution, 99, asked, question, status, decided, decision, mac FROM approvals LIMIT 1"), MASTER),
    # Programs.
    ("programs", "a saved program is changed", execute("UPDATE programs SET hash = 'another'"), MASTER),
    ("programs", "a saved program has another name", execute("UPDATE programs SET name = 'another'"), MASTER),
    ("programs", "a saved program is as it was", restored("began", "REPLACE INTO programs SELECT * FROM old.programs"), NOTHING),
    ("programs", "a saved program is removed", execute("DELETE FROM programs"), NOTHING),
    # Values behind references.
    ("references", "a value is changed", execute("UPDATE reference_values SET value = zeroblob(length(value)) WHERE id = 'ref1'"), MASTER),
    ("references", "a value is that of another reference", execute("UPDATE reference_values SET value = (SELECT value FROM reference_values WHERE id = 'ref1') WHERE id = 'ref2'"), MASTER),
    ("references", "a value is erased without a word", execute("UPDATE reference_values SET value = NULL WHERE id = 'ref1'"), VERIFY),
    ("references", "a value is removed", execute("DELETE FROM reference_values WHERE id = 'ref1'"), NOTHING),
    ("references", "an erased value is put back from an older copy", restored("rotated", f"REPLACE INTO reference_values SELECT * FROM old.reference_values WHERE id = '{REFERENCE}'"), VERIFY),
    ("references", "an erased reference is removed", execute(f"DELETE FROM reference_values WHERE id = '{REFERENCE}'"), VERIFY),
    ("references", "an erased value is put back from an older copy, and its tombstone is taken for an erased execution's", restored("rotated", f"UPDATE reference_values SET execution = '', id = erased WHERE id = '{REFERENCE}'", f"INSERT INTO reference_values SELECT * FROM old.reference_values WHERE id = '{REFERENCE}'"), MASTER),
    ("references", "an erased reference is moved to another execution", execute(f"UPDATE reference_values SET execution = '{ASKED}' WHERE id = '{REFERENCE}'"), MASTER),
    ("references", "an erased reference has another id", execute(f"UPDATE reference_values SET id = 'another' WHERE id = '{REFERENCE}'"), MASTER),
    ("references", "an erased reference is taken for an erased execution's", execute(f"UPDATE reference_values SET execution = '', id = erased WHERE id = '{REFERENCE}'"), NOTHING),
    ("references", "an erased reference is taken for an erased execution's, under another id", execute(f"UPDATE reference_values SET execution = '' WHERE id = '{REFERENCE}'"), VERIFY),
    # What else there is.
    ("others", "the log's name is changed", execute("UPDATE meta SET value = 'mcp-code-bridge/0000000000000000' WHERE name = 'origin'"), VERIFY),
    ("others", "the master key's check is changed", execute("UPDATE meta SET value = value || '0' WHERE name = 'master'"), MASTER),
    ("others", "an erasure is said to be unfinished", execute("INSERT INTO meta VALUES ('unfinished erasure 5', '[\"00\"]')"), VERIFY),
    ("others", "the number of writes without an entry is changed", execute("REPLACE INTO meta VALUES ('writes', '12345')"), NOTHING),
    ("others", "the key of what earlier versions were asked for is another", execute("UPDATE meta SET value = '00' WHERE name = 'requests'"), MASTER),
    ("others", "what is known of a target is changed", execute("UPDATE published SET size = 1"), MASTER),
    ("others", "what is known of a target is as it was", restored("suspended", "REPLACE INTO published SELECT * FROM old.published"), NOTHING),
    ("others", "what is known of a target is removed", execute("DELETE FROM published"), NOTHING),
    ("others", "what a principal has used is changed", execute("UPDATE usages SET calls = 0"), MASTER),
    ("others", "what a principal has used is as it was", restored("suspended", "REPLACE INTO usages SELECT * FROM old.usages"), NOTHING),
    ("others", "what a principal has used is removed", execute("DELETE FROM usages"), NOTHING),
    ("others", "a session's last cell is another", execute("UPDATE sessions SET head = '1'"), MASTER),
    ("others", "a session's last cell is as it was", restored("suspended", "REPLACE INTO sessions SELECT * FROM old.sessions"), NOTHING),
    ("others", "a session is removed", execute("DELETE FROM sessions"), NOTHING),
]  # fmt: skip

FILES = [
    ("schema", "a trigger is dropped", with_schema("DROP TRIGGER entries_are_not_changed"), VERIFY),
    ("schema", "a trigger is changed", with_schema("UPDATE sqlite_schema SET sql = replace(sql, 'ABORT', 'IGNORE') WHERE type = 'trigger'"), VERIFY),
    ("schema", "a trigger is added", with_schema("CREATE TRIGGER more AFTER INSERT ON entries BEGIN DELETE FROM programs; END"), VERIFY),
    ("schema", "a trigger is added under a name like one of SQLite's own", with_schema("CREATE TRIGGER sqlite0stat AFTER INSERT ON entries BEGIN DELETE FROM programs; END"), VERIFY),
    ("schema", "an index is dropped", with_schema("DROP INDEX entries_of_execution"), VERIFY),
    ("schema", "a table is added", with_schema("CREATE TABLE more (x)"), VERIFY),
    ("schema", "a table's definition is changed", with_schema("UPDATE sqlite_schema SET sql = replace(sql, 'key TEXT', 'key ANY') WHERE name = 'executions'"), VERIFY),
    ("schema", "the version is raised", with_schema("PRAGMA user_version = 99"), VERIFY),
    ("schema", "the version is lowered", with_schema("PRAGMA user_version = 0"), VERIFY),
    ("file", "the whole file is an older copy of itself", rolled_back("erased"), ELSEWHERE),
    ("file", "the whole file is a copy from before the key was rotated", rolled_back("decided"), VERIFY),
    ("file", "the file is cut off", lambda path, kept: os.truncate(path, path.stat().st_size // 8192 * 4096), VERIFY),
    ("file", "the file is empty", lambda path, kept: os.truncate(path, 0), VERIFY),
]  # fmt: skip


def name(row):
    return f"{row[0]}: {row[1]}"


@pytest.mark.parametrize(("where", "what", "finder"), [(row[0], row[1], row[3]) for row in ROWS + FILES])
def test_the_table_of_what_is_found_says_so(where, what, finder):
    page = (Path(__file__).parents[3] / "docs/tampering.md").read_text("utf-8")
    assert f"| {where} | {what} | {finder} |" in page


@pytest.mark.parametrize(("where", "what", "attack", "finder"), ROWS, ids=map(name, ROWS))
def test_what_is_done_to_rows_is_found(kept, copy, where, what, attack, finder):
    before = dump(copy)
    with opened(copy) as connection:
        attack(connection, kept)
    assert dump(copy) != before
    assert found_by(kept, copy) == finder


@pytest.mark.parametrize(("where", "what", "attack", "finder"), FILES, ids=map(name, FILES))
def test_what_is_done_to_the_file_is_found(kept, copy, where, what, attack, finder):
    attack(copy, kept)
    assert found_by(kept, copy) == finder


def found_by(kept, path):
    codes = kept.verdicts(path)
    finders = [VERIFY, MASTER, ELSEWHERE]
    first = next((place for place, code in enumerate(codes) if code is not None), None)
    if first is None:
        return NOTHING
    assert None not in codes[first:], "what is found with less is found with more"
    return finders[first]


def test_another_logs_file_in_its_place_is_found(kept, tmp_path):
    async def other():
        async with Database(tmp_path / FILE_NAME) as database:
            await Writer(database).start(ASKED)

    asyncio.run(other())
    assert kept.verdicts(tmp_path / FILE_NAME)[0] == "untrusted_key"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET kind = 'end'",
        "DELETE FROM entries",
        "REPLACE INTO entries SELECT 3, execution, kind, entry, nodes FROM entries LIMIT 1",
        "UPDATE payloads SET sealed = x'00'",
        "DELETE FROM payloads",
        "REPLACE INTO payloads VALUES (3, x'00')",
        "UPDATE data_keys SET wrapped = x'00'",
        "UPDATE data_keys SET subject = ''",
        "DELETE FROM data_keys",
        "REPLACE INTO data_keys SELECT * FROM data_keys",
        "UPDATE pieces SET sealed = x'00'",
        "DELETE FROM pieces",
        "REPLACE INTO pieces SELECT * FROM pieces",
        "REPLACE INTO pieces SELECT 999, execution, name, size, x'00' FROM pieces",
        "UPDATE holders SET holder = 'x'",
        "DELETE FROM holders",
    ],
)
def test_triggers_refuse_what_changes_the_past(kept, copy, statement):
    before = dump(copy)
    with (
        closing(sqlite3.connect(copy)) as connection,
        pytest.raises(sqlite3.IntegrityError, match=r"ledger|never|before"),
    ):
        connection.execute(statement)
    assert dump(copy) == before


# --- the write-ahead log ---


async def crashed(kept, tmp_path):
    """A copy of file and write-ahead log while both are in use; the size before, and a checkpoint of what was written."""
    shutil.copytree(kept.folder, tmp_path / "live")
    async with Database(tmp_path / "live" / FILE_NAME) as database:
        writer = Writer(database)
        before = len(kept.elsewhere)
        for number in range(5):
            await writer.effect(WAITING, number)
        note = await writer.note()
        for suffix in ("", "-wal"):
            shutil.copy(f"{database.path}{suffix}", tmp_path / f"{FILE_NAME}{suffix}")
    assert before
    return tmp_path / FILE_NAME, note


@pytest.mark.parametrize(
    ("damage", "sound"),
    [
        (lambda data: data, True),
        (lambda data: data[: len(data) // 2], False),
        (lambda data: b"", False),
        (lambda data: data[:-2000] + bytes([data[-2000] ^ 1]) + data[-1999:], False),
        (lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:], False),
    ],
    ids=["nothing", "cut off", "removed", "a byte of the last frame", "a byte of the first frame"],
)
async def test_a_damaged_write_ahead_log_is_a_roll_back_that_a_checkpoint_kept_elsewhere_finds(
    kept, tmp_path, damage, sound
):
    path, note = await crashed(kept, tmp_path)
    wal = path.with_name(f"{FILE_NAME}-wal")
    wal.write_bytes(damage(wal.read_bytes()))
    # SQLite goes back to the last commit before the damage: a state that there was.
    assert verdict(path, [kept.vkey], kept.elsewhere, kept.master) is None
    assert verdict(path, [kept.vkey], [*kept.elsewhere, note], kept.master) == (None if sound else "rolled_back")


def test_pymerkle_finds_the_same_root(kept):
    from pymerkle import InmemoryTree

    tree = InmemoryTree(algorithm="sha256")
    with closing(sqlite3.connect(kept.path)) as connection:
        for (entry,) in connection.execute("SELECT entry FROM entries ORDER BY sequence"):
            tree.append_entry(entry)
        (root,) = connection.execute("SELECT root FROM head").fetchone()
    assert tree.get_root() == root == verify_file(kept.path, [Verifier.parse(kept.vkey)]).log.root
