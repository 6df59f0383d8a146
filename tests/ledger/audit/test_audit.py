"""`mcp-bridge audit …` and `backup`: what they print, how they end, and what is left when they fail."""

import asyncio
import base64
import io
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from ledger_fixtures import SMALL, Log, signer
from tampered_fixtures import ASKED, ENDED, WAITING, Writer, verdict

from mcp_bridge.cli import terminal_output
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.admin import key_rotation
from mcp_bridge.ledger.audit import ledger_copies
from mcp_bridge.ledger.keys import signing_key_files
from mcp_bridge.ledger.keys.master_key_sources import FILE_NAME as MASTER_FILE
from mcp_bridge.ledger.keys.signing_key_files import KEY_FILE, PUBLIC_KEY_FILE
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.payloads import CallDecision, Question, QueuedDecision, StepDecision, to_entry
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs.export_verification import verify_export
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.storage.sealing import MasterKey

PUBLISHED = '{"size": 1, "status": "ok", "conflict": {"time": 1.7e9, "message": "m"}}'


def published(state):
    """The statement that keeps what there is to say of a target."""
    return f"INSERT INTO published VALUES ('file x', 0, '{state}', NULL)"  # noqa: S608


LIMIT = 64 << 10
"""Bytes that a file may have for a command whose disk is to be full; room for what SQLite makes to read."""


@pytest.fixture
def ledger(desk):
    """The desk, with a few executions recorded; `key` is its log's."""
    desk.run("program", "run", "clean", "--context", '{"name": "SECRET"}', code=5)
    desk.run("program", "run", desk.write("p.json", {"name": "once", "steps": [LOOK]}), "--context", '{"name": "b"}')
    desk.key = desk.run("audit", "stats", "--json").json["key"]
    desk.path = desk.state / FILE_NAME
    return desk


LOOK = {"id": "look", "type": "tool", "tool": "look", "args": {"name": "$name"}}


def size_of(desk):
    return desk.run("audit", "stats", "--json").json["entries"]


def kept_checkpoint(desk, name="kept.txt"):
    return desk.write(name, desk.run("audit", "checkpoint").out)


def more(desk):
    """One more execution."""
    desk.run("program", "run", desk.folder / "p.json", "--context", '{"name": "b"}')


# --- what they print ---


def test_verify_says_what_it_has_verified_by_what(ledger):
    told = ledger.run("audit", "verify")
    size = size_of(ledger)
    assert f"verified: {ledger.path}: {size} entries of mcp-code-bridge/" in told.err + told.out
    assert "not checked against a checkpoint stored elsewhere" in told.err + told.out
    kept = kept_checkpoint(ledger)
    more(ledger)
    told = ledger.run("audit", "verify", "--checkpoint", kept)
    assert "agrees with 1 checkpoints that were stored elsewhere" in told.err + told.out
    facts = ledger.run("audit", "verify", "--checkpoint", kept, "--json").json
    assert (facts["status"], facts["authenticated"], facts["compared"], facts["opened"]) == ("verified", True, 1, True)
    assert (facts["size"], facts["keys"], facts["executions"]) == (size_of(ledger), [ledger.key], 3)


def test_prove_writes_a_proof_that_verifies_with_the_key_alone(ledger, tmp_path, monkeypatch):
    proof = tmp_path / "3.tlog-proof"
    ledger.run("audit", "prove", "3", "--out", proof)
    assert ledger.run("audit", "prove", "3").out.encode() == proof.read_bytes()
    facts = ledger.run("audit", "verify", proof, "--key", ledger.key, "--json").json
    assert (facts["entry"]["sequence"], facts["authenticated"]) == (3, True)
    assert facts["payload"]
    told = ledger.run("audit", "verify", proof, "--key", ledger.key)
    assert "entry 3 (" in told.err + told.out
    assert "by no key: anybody may have made it" in (told := ledger.run("audit", "verify", proof)).err + told.out
    hidden = tmp_path / "hidden"
    ledger.run("audit", "prove", "3", "--no-payload", "--out", hidden)
    assert ledger.run("audit", "verify", hidden, "--key", ledger.key, "--json").json["payload"] is None


def test_an_export_verifies_anywhere_with_nothing_but_itself_and_the_key(ledger, tmp_path):
    plain, whole = tmp_path / "plain.jsonl", tmp_path / "whole.jsonl"
    told = ledger.run("audit", "export", plain)
    assert f"verify it with --key '{ledger.key}'" in told.err + told.out
    ledger.run("audit", "export", whole, "--payloads")
    assert ledger.run("audit", "export", "-").out.encode() == plain.read_bytes()
    assert b"SECRET" not in plain.read_bytes()
    assert b"SECRET" in whole.read_bytes()
    shutil.rmtree(ledger.state)
    for path in (plain, whole):
        facts = ledger.run("audit", "verify", path, "--key", ledger.key, "--json").json
        assert facts["authenticated"]
        assert (facts["undisclosed"] == 0) == (path == whole)
        done = subprocess.run([sys.executable, SMALL, path, "--key", ledger.key], check=True, capture_output=True)
        assert done.stdout.startswith(b"genuine")
    assert not ledger.state.exists()


def exported(desk, name="ledger.jsonl", *more_words):
    path = desk.folder / name
    desk.run("audit", "export", path, *more_words)
    return path


def small_run(*arguments):
    return subprocess.run([sys.executable, SMALL, *map(str, arguments)], check=False, capture_output=True)


def test_an_entry_is_proven_from_an_export_when_its_ledger_is_gone(ledger, tmp_path):
    whole, plain = exported(ledger, "whole.jsonl", "--payloads"), exported(ledger, "plain.jsonl")
    before = {words: ledger.run("audit", "prove", *words).out for words in (("3",), ("3", "--no-payload"))}
    key = ledger.write("ledger.pub", ledger.run("audit", "key").out)
    shutil.rmtree(ledger.state)
    for words, proof in before.items():
        for keys in ((), ("--key", key), ("--key", ledger.key)):
            assert ledger.run("audit", "prove", *words, whole, *keys).out == proof
    assert ledger.run("audit", "prove", "3", plain).out == before["3", "--no-payload"]
    proof = tmp_path / "proof"
    for export, payload in ((whole, True), (plain, False)):
        ledger.run("audit", "prove", "3", export, "--key", key, "--out", proof)
        facts = ledger.run("audit", "verify", proof, "--key", key, "--json").json
        assert (facts["status"], facts["entry"]["sequence"], facts["payload"] is not None) == ("verified", 3, payload)
        assert small_run(proof, "--key", key).stdout.startswith(b"genuine: entry 3 of mcp-code-bridge/")
        proof.unlink()
    # What the log says of itself is never hidden.
    ledger.run("audit", "prove", "0", plain, "--no-payload", "--out", proof)
    assert "made" in ledger.run("audit", "verify", proof, "--key", key, "--json").json["payload"]
    assert not ledger.state.exists()


def test_every_entry_of_an_export_can_be_proven(ledger, tmp_path):
    export, proof = exported(ledger), tmp_path / "proof"
    for entry in range(size_of(ledger)):
        assert (
            ledger.run("audit", "prove", str(entry), export).out
            == ledger.run("audit", "prove", str(entry), "--no-payload").out
        )
    ledger.says("audit", "prove", str(size_of(ledger)), export, "--out", proof, code=2, words=["unknown_entry"])
    ledger.says("audit", "prove", "--out", proof, "--", "-1", export, code=2, words=["unknown_entry"])
    assert not proof.exists()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data.replace(b"SECRET", b"SECRET!", 1), "tampered"),
        (lambda data: data.replace(b'\\"kind\\":\\"intent', b'\\"kind\\":\\"denial', 1), "tampered"),
        (lambda data: data[:-1], "bad_export"),
        (lambda data: b"\n".join(data.split(b"\n")[:-2]) + b"\n", "bad_export"),
        (lambda data: b"", "bad_export"),
    ],
)
def test_there_is_no_proof_from_an_export_that_was_changed(ledger, tmp_path, change, code):
    export = exported(ledger, "x.jsonl", "--payloads")
    data = export.read_bytes()
    assert change(data) != data
    export.write_bytes(change(data))
    for keys in ((), ("--key", ledger.key)):
        # Whichever entry is asked for.
        ledger.says("audit", "prove", "0", export, *keys, "--out", tmp_path / "proof", code=1, words=[code])
    assert not (tmp_path / "proof").exists()


def test_an_export_by_another_key_proves_nothing_to_who_names_one(ledger, tmp_path):
    export = exported(ledger)
    ledger.says("audit", "prove", "0", export, "--key", signer().vkey, code=1, words=["untrusted_key"])
    ledger.says("audit", "prove", "0", "--key", signer().vkey, code=1, words=["unknown_key"])
    new = ledger.run("audit", "rotate-key", "--json").json["key"]
    more(ledger)
    export = exported(ledger, "rotated.jsonl")
    # The export is genuine to who has the old key, and so is the proof of what that has signed.
    ledger.run("audit", "prove", "0", export, "--key", ledger.key)
    ledger.run("audit", "prove", "0", export, "--key", ledger.key, "--key", new)
    ledger.run("audit", "prove", "0", export, "--key", new)


def test_an_entry_is_proven_from_a_copy_of_the_file(ledger, tmp_path):
    copy, proof = tmp_path / "copy.sqlite", ledger.run("audit", "prove", "3").out
    ledger_copies.backup(ledger.path, copy, None, None)
    assert ledger.run("audit", "prove", "3", copy, "--key", ledger.key).out == proof
    hidden = ledger.run("audit", "prove", "3", copy, "--no-payload").out
    shutil.rmtree(ledger.state)
    # Without the master key its payloads stay closed.
    assert ledger.run("audit", "prove", "3", copy, "--key", ledger.key).out == hidden != proof
    ledger.says("audit", "prove", "99", copy, code=2, words=["unknown_entry"])
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER entries_are_not_changed")
        connection.execute('UPDATE entries SET entry = CAST(replace(entry, \'"kind":"\', \'"kind":"x\') AS BLOB)')
        connection.execute("UPDATE entries SET kind = 'x' || kind")
    ledger.says("audit", "prove", "3", copy, code=1, words=["bad_entry"])


def test_there_is_no_proof_of_an_entry_that_was_changed(ledger, tmp_path):
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER entries_are_not_changed")
        connection.execute("UPDATE entries SET entry = CAST(replace(entry, '\"time\":1', '\"time\":2') AS BLOB)")
    for words in ((), ("--key", ledger.key), (ledger.path,)):
        ledger.says("audit", "prove", "3", *words, "--no-payload", "--out", tmp_path / "p", code=1, words=["bad_proof"])
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("{key}\n", 0, []),
        ("{key}", 0, []),
        ("\n{other}\r\n\n{key}\n", 0, []),
        ("{other}\n", 1, ["untrusted_key"]),
        ("", 2, ["bad_argument", "no file with public keys"]),
        ("\n \n", 2, ["bad_argument", "no file with public keys"]),
        ("{key}\nmore\n", 2, ["bad_key"]),
        ("{key}\n" * 1000, 2, ["bad_argument", "no file with public keys"]),
        (b"\xff\xfe", 2, ["bad_key"]),
        (None, 2, ["bad_argument", "Is a directory"]),
        ("missing", 2, ["bad_key"]),
    ],
)
def test_keys_may_be_named_by_a_file(ledger, tmp_path, content, code, words):
    export, keys = exported(ledger), tmp_path / "keys"
    if content is None:
        keys.mkdir()
    elif content != "missing":
        text = content if isinstance(content, bytes) else content.format(key=ledger.key, other=signer().vkey).encode()
        keys.write_bytes(text)
    for given in (("--key", keys), ("--key", ledger.key, "--key", keys)):
        expected = 0 if code == 1 and len(given) > 2 else code
        for command in (("verify",), ("prove", "0")):
            ledger.says("audit", *command, export, *given, code=expected, words=words if expected else [])
        if "{key}\n" * 9 not in str(content):  # the small one has no limit
            assert small_run(export, *given).returncode == expected


def test_a_key_that_is_longer_than_a_file_s_name_is_a_key(desk):
    desk.says("audit", "verify", "x", "--key", f"{'a' * 250}+00000000+AAAA", code=2, words=["bad_key"])


def test_a_proof_is_held_against_a_checkpoint_that_was_kept(ledger, tmp_path):
    proof, kept = tmp_path / "proof", kept_checkpoint(ledger)
    ledger.run("audit", "prove", "3", "--out", proof)
    command = ("audit", "verify", proof, "--key", ledger.key, "--checkpoint")
    told = ledger.run(*command, kept).out
    assert "agrees with 1 checkpoints that were stored elsewhere" in told
    assert ledger.run(*command, kept, "--checkpoint", kept, "--json").json["compared"] == 2
    more(ledger)
    later = kept_checkpoint(ledger, "later.txt")
    told = ledger.says(*command, later, code=2, words=["bad_argument", "Hold an export against it"])
    # A file with all that were kept, as the bridge writes one.
    every = tmp_path / "every.txt"
    every.write_text(f"{Path(kept).read_text()}\n{Path(later).read_text()}")
    assert ledger.run(*command, every, "--json").json["compared"] == 1
    for checkpoint, code in ((kept, 0), (later, 2), (every, 0)):
        assert small_run(proof, "--key", ledger.key, "--checkpoint", checkpoint).returncode == code
    assert "not checked against a checkpoint" not in ledger.run(*command[:-1]).out


@pytest.mark.parametrize("words", [(), ("--key", "{key}")])
def test_the_status_says_whether_anybody_has_signed(ledger, tmp_path, words):
    words = [word.format(key=ledger.key) for word in words]
    export, proof, copy = exported(ledger), tmp_path / "proof", tmp_path / "copy"
    ledger.run("audit", "prove", "3", "--out", proof)
    ledger_copies.backup(ledger.path, copy, None, None)
    for file in (export, proof, copy):
        facts = ledger.run("audit", "verify", file, *words, "--json").json
        assert (facts["status"], facts["authenticated"]) == (
            ("verified", True) if words else ("unauthenticated", False)
        )


def test_a_checkpoint_is_shown_to_be_the_beginning_of_a_later_one(ledger):
    monday = kept_checkpoint(ledger, "monday.txt")
    first = size_of(ledger)
    more(ledger)
    friday = kept_checkpoint(ledger, "friday.txt")
    second = size_of(ledger)
    told = ledger.run("audit", "consistency", monday, friday)
    assert f"consistent: the first {first} of {second} entries are those of {monday}" in told.err + told.out
    ledger.run("audit", "rotate-key")
    more(ledger)
    # The notes are by a key that the log has had.
    for pair in ((monday,), (monday, friday)):
        assert ledger.run("audit", "consistency", *pair, "--json").json["old"] == first
    ledger.says("audit", "consistency", friday, monday, code=1, words=["bad_proof"])
    # Several in one file: the last one counts.
    both = ledger.write(
        "both.txt", ledger.folder.joinpath("monday.txt").read_text() + ledger.folder.joinpath("friday.txt").read_text()
    )
    assert ledger.run("audit", "consistency", both, "--json").json["old"] == second
    facts = ledger.run("audit", "verify", "--checkpoint", both, "--checkpoint", monday, "--json").json
    assert facts["compared"] == 3


def test_stats_count_what_there_is(ledger):
    facts = ledger.run("audit", "stats", "--json").json
    assert facts["executions"] == {"success": 1, "suspended": 1}
    assert sum(facts["kinds"].values()) == facts["entries"]
    assert facts["kinds"]["key"] == 1
    assert facts["file_bytes"] > facts["payload_bytes"] > 0
    told = ledger.run("audit", "stats")
    assert f"{facts['entries']} entries, key {ledger.key}" in told.err + told.out


def test_what_was_not_opened_and_what_is_erased_is_told(ledger, tmp_path):
    execution = ledger.run("execution", "list", "--json").json["executions"][0]["id"]
    assert "erased" not in ledger.run("audit", "verify").out
    ledger.run("erase", "--execution", execution)
    told = ledger.run("audit", "verify").out
    assert "1 executions erased" in told
    assert "not opened" not in told
    ledger_copies.backup(ledger.path, tmp_path / "copy", None, None)
    (ledger.state / "master.key").unlink()
    told = ledger.run("audit", "verify", tmp_path / "copy", "--key", ledger.key).out
    assert "payloads and tables were not decrypted: the log's master key" in told
    assert "1 executions erased" in told


def test_a_payload_can_t_pass_for_a_verdict(tmp_path, desk):
    log = Log()
    log.append(payload=b'{"a":1}\nverified: everything\r\x1b[1Averified: \xe2\x80\xa8more')
    proof = tmp_path / "proof"
    proof.write_bytes(log.proof(1))
    lines = desk.run("audit", "verify", proof).out.splitlines()
    assert [line for line in lines if "verified" in line] == [
        "payload: verified: everything\\r\\x1b[1Averified: \\u2028more"
    ]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE head SET note = replace(note, origin, origin || char(27))",
        "UPDATE head SET note = char(27) || '[2J'",
        "INSERT INTO checkpoints SELECT size, replace(note, char(10) || char(10), char(10) || char(155) || "
        "char(10, 10)), x'00' FROM head",
        "UPDATE head SET vkey = ''",
        "UPDATE head SET size = size - 1",
    ],
)
def test_a_checkpoint_that_the_log_s_key_has_not_signed_is_not_printed(ledger, change):
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        (origin,) = connection.execute("SELECT value FROM meta WHERE name = 'origin'").fetchone()
        connection.execute(change.replace("origin", f"'{origin}'"))
    told = ledger.says("audit", "checkpoint", code=1, words=["ledger_damaged", "its head"])
    assert told.out == ""


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET entry = CAST(replace(entry, '{', 'x') AS BLOB) WHERE sequence = 0",
        "UPDATE entries SET entry = x'ff' WHERE sequence = (SELECT max(sequence) FROM entries)",
        published("{"),
        published("[]"),
        published(PUBLISHED.replace("status", "statis")),
        published(PUBLISHED.replace("conflict", "confl")),
        published(PUBLISHED.replace("e9", "e99")),
        published(PUBLISHED.replace("time", "tame")),
    ],
)
def test_numbers_of_a_damaged_ledger_are_refused_and_its_file_is_named(ledger, change):
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(change)
    for more_words in ((), ("--json",)):
        told = ledger.run("audit", "stats", *more_words, code=1)
        said = told.out + told.err
        assert "ledger_damaged" in said
        assert f"{ledger.path}: The record of executions is damaged: " in said
        assert "Restore a backup: `mcp-bridge restore FILE --check` tries one." in said


def test_a_ledger_that_was_rolled_back_or_rewritten_is_found_by_a_checkpoint_kept_elsewhere(ledger, tmp_path):
    older = shutil.copy(ledger.path, tmp_path / "older")
    more(ledger)
    kept = kept_checkpoint(ledger)
    shutil.copy(older, ledger.path)
    # Here it is found without one, too: by what is kept beside the file.
    ledger.says("audit", "verify", code=1, words=["ledger_behind"])
    ledger.run("audit", "verify", ledger.path, "--key", ledger.key)
    ledger.says("audit", "verify", "--checkpoint", kept, code=1, words=["rolled_back"])
    ledger.says("audit", "consistency", kept, code=1, words=["rolled_back"])
    # It goes on, another way, once a person has said so.
    ledger.says("program", "run", "clean", "--context", '{"name": "other"}', code=1, words=["ledger_behind"])
    # What is there can be looked at before that is decided.
    assert "clean" in ledger.run("execution", "list").out
    ledger.run("approvals", "list")
    ledger.run("audit", "accept-loss")
    ledger.run("program", "run", "clean", "--context", '{"name": "other"}', code=5)
    more(ledger)
    ledger.says("audit", "verify", "--checkpoint", kept, code=1, words=["tampered"])
    refused = ledger.run("audit", "verify", "--checkpoint", kept, "--json", code=1).json
    assert (refused["status"], refused["exit_code"], refused["error"]["code"]) == ("refused", 1, "tampered")


# --- what can't be done ---


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("audit", "prove", "999"), 2, ["unknown_entry", "999"]),
        (("audit", "prove", "9" * 40), 2, ["unknown_entry"]),
        (("audit", "prove", "--", "-1"), 2, ["unknown_entry"]),
        (("audit", "verify", "missing"), 2, ["bad_argument", "No such file"]),
        (("audit", "verify", "."), 2, ["bad_argument"]),
        (("audit", "verify", "noise"), 1, ["bad_export"]),
        (("audit", "verify", "empty"), 1, ["bad_export"]),
        (("audit", "verify", "p.json"), 1, ["bad_export"]),
        (("audit", "verify", "looks-like-sqlite"), 1, ["database_unusable"]),
        (("audit", "verify", "looks-like-a-proof"), 1, ["bad_proof"]),
        (("audit", "verify", "--key", "none"), 2, ["bad_key"]),
        (("audit", "verify", "--key", "mcp-code-bridge/0123456789abcdef+c2d3e4f5+AAAA"), 2, ["bad_key"]),
        (("audit", "verify", "--checkpoint", "missing"), 2, ["bad_argument"]),
        (("audit", "verify", "--checkpoint", "empty"), 2, ["bad_argument", "no checkpoint"]),
        (("audit", "verify", "--checkpoint", "noise"), 2, ["bad_argument", "no checkpoint"]),
        (("audit", "verify", "--checkpoint", "p.json"), 2, ["bad_argument", "no checkpoint"]),
        (("audit", "consistency", "missing"), 2, ["bad_argument"]),
        (("audit", "consistency", "p.json"), 2, ["bad_argument", "no checkpoint"]),
        (("audit", "export", "p.json"), 2, ["bad_argument", "File exists"]),
        (("audit", "export", "no/where"), 2, ["bad_argument"]),
        (("audit", "prove", "1", "--out", "p.json"), 2, ["bad_argument", "File exists"]),
        (("audit", "accept-clock"), 1, ["clock_is_right"]),
        (("audit", "publish"), 2, ["bad_argument", "ledger.publish"]),
        (("backup", "--without-keys", "p.json"), 2, ["backup_exists"]),
        (("backup", "--without-keys", "no/where"), 1, ["backup_failed"]),
        (("backup", "--without-keys", "."), 2, ["backup_exists"]),
    ],
)
def test_what_can_t_be_done_is_said_and_changes_nothing(ledger, command, code, words):
    ledger.write("noise", bytes(range(256)) * 4)
    ledger.write("empty", b"")
    ledger.write("looks-like-sqlite", b"SQLite format 3\0" + b"x" * 5000)
    ledger.write("looks-like-a-proof", b"c2sp.org/tlog-proof@v1\nindex 0\n")
    before = contents(ledger.folder)
    ledger.says(*command, code=code, words=words)
    assert contents(ledger.folder) == before


def contents(folder):
    """Every file's, but what SQLite makes beside a ledger to read it."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm"))]
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "command", ["verify", "checkpoint", "stats", "prove 0", "export x", "consistency kept.txt", "rotate-key --lost"]
)
def test_without_a_ledger_none_is_made(desk, command):
    signature = base64.b64encode(bytes(68)).decode()
    desk.write("kept.txt", f"mcp-code-bridge/0123456789abcdef\n1\nAAAA\n\n— a {signature}\n")
    desk.run("audit", *command.split(), code=1)
    assert not (desk.state / FILE_NAME).exists()
    assert not (desk.folder / "x").exists()


def test_another_machines_ledger_is_verified_without_its_payloads(ledger, tmp_path):
    copy = tmp_path / "copy.sqlite"
    ledger_copies.backup(ledger.path, copy, None, None)
    shutil.rmtree(ledger.state)
    facts = ledger.run("audit", "verify", copy, "--key", ledger.key, "--json").json
    assert (facts["authenticated"], facts["opened"]) == (True, False)
    # And where there is a ledger with another master key.
    more(ledger)
    facts = ledger.run("audit", "verify", copy, "--key", ledger.key, "--json").json
    assert (facts["authenticated"], facts["opened"]) == (True, False)


def test_with_another_ledgers_master_key_the_key_is_named_and_not_the_ledger(ledger):
    (ledger.state / "master.key").write_bytes(bytes(32))
    for command in (("verify",), ("prove", 2), ("export", "x", "--payloads")):
        told = ledger.says("audit", *command, code=1, words=["key_unusable", "Put the right one back"])
        assert "restore" not in told.err
    assert not (ledger.folder / "x").exists()
    # Without payloads none is needed.
    ledger.run("audit", "prove", 2, "--no-payload")
    ledger.run("audit", "export", "x")


def test_whatever_reads_a_ledger_that_is_behind_warns(ledger, caplog):
    ledger_copies.backup(ledger.path, ledger.folder / "earlier", None, None)
    kept = kept_checkpoint(ledger)
    commands = (("stats",), ("checkpoint",), ("export", "-"), ("prove", 2), ("consistency", kept))
    for command in commands:
        ledger.run("audit", *command)
    more(ledger)
    assert "it had" not in caplog.text
    for suffix in ("-wal", "-shm"):
        ledger.path.with_name(f"{FILE_NAME}{suffix}").unlink(missing_ok=True)
    (ledger.folder / "earlier").replace(ledger.path)
    for command in commands:
        caplog.clear()
        ledger.run("audit", *command)
        assert [(row.levelname, "it had" in row.message) for row in caplog.records] == [("WARNING", True)]
    head = ledger.state / "ledger.head"
    head.write_bytes(head.read_bytes().replace(b'"size"', b'"sizf"'))
    assert "WARNING" in ledger.start("audit", "stats").err


def test_a_key_of_another_log_is_no_key_of_this_one(ledger):
    ledger.says("audit", "verify", "--key", signer().vkey, code=1, words=["untrusted_key"])


def test_a_ledger_whose_key_isn_t_here_is_not_verified_by_its_own_word(ledger):
    (ledger.state / "checkpoint.key").write_bytes(b"k" * 32)
    for command in (("verify",), ("consistency", kept_checkpoint(ledger))):
        ledger.says("audit", *command, code=1, words=["key_unusable"])
    # Neither is a copy, which is made all the same, and says so.
    assert not ledger.run("backup", "--without-keys", "copy", "--json").json["authenticated"]
    (ledger.state / "checkpoint.key").unlink()
    # To verify, the public key is enough, which is beside it or is named.
    assert ledger.run("audit", "verify", "--json").json["keys"] == [ledger.key]
    assert ledger.run("audit", "key").out.strip() == ledger.key
    ledger.run("audit", "consistency", kept_checkpoint(ledger))
    (ledger.state / PUBLIC_KEY_FILE).write_text(f"{signer().vkey}\n")
    ledger.says("audit", "verify", code=1, words=["key_unusable", "checkpoint.pub", "--key"])
    for content in (b"", b"\xff" * 5000, None):
        if content is None:
            (ledger.state / PUBLIC_KEY_FILE).unlink()
        else:
            (ledger.state / PUBLIC_KEY_FILE).write_bytes(content)
        ledger.says("audit", "verify", code=1, words=["key_missing", "rotate-key --lost", "--key"])
    ledger.run("audit", "verify", "--key", ledger.key)
    ledger.run("audit", "stats")


def test_who_verifies_needs_no_private_key_and_no_master_key(ledger):
    for name in (KEY_FILE, "master.key"):
        (ledger.state / name).unlink()
    facts = ledger.run("audit", "verify", "--json").json
    assert (facts["status"], facts["keys"], facts["opened"]) == ("verified", [ledger.key], False)
    assert "payloads and tables were not decrypted" in ledger.run("audit", "verify").out


def test_the_public_key_is_that_of_now(ledger):
    public = ledger.state / PUBLIC_KEY_FILE
    assert public.read_text() == f"{ledger.key}\n"
    new = ledger.run("audit", "rotate-key", "--json").json["key"]
    assert public.read_text() == f"{new}\n"
    (ledger.state / KEY_FILE).unlink()
    lost = ledger.run("audit", "rotate-key", "--lost", "--json").json["key"]
    assert public.read_text() == f"{lost}\n"
    # As version 0.1.0 has left it, and as somebody else has.
    public.unlink()
    more(ledger)
    assert public.read_text() == f"{lost}\n"
    assert ledger.run("audit", "verify", "--json").json["foreign_public_key"] is None
    public.write_text(f"{signer().vkey}\n")
    assert ledger.run("audit", "verify", "--json").json["foreign_public_key"] == signer().vkey
    assert f"checkpoint.pub has another key, {signer().vkey}" in ledger.run("audit", "verify").out
    more(ledger)
    assert public.read_text() == f"{lost}\n"
    ledger.run("audit", "verify", "--key", public)


def test_what_is_withheld_is_told_apart_from_what_is_erased(ledger, tmp_path):
    plain, whole = exported(ledger, "plain.jsonl"), exported(ledger, "whole.jsonl", "--payloads")
    facts = ledger.run("audit", "verify", plain, "--json").json
    assert facts["withheld"] == facts["undisclosed"] > 0
    assert facts["erased"] == 0
    assert f"the payloads of {facts['withheld']} entries are withheld" in ledger.run("audit", "verify", plain).out
    assert "are withheld" not in ledger.run("audit", "verify", whole).out
    execution = ledger.run("execution", "list", "--json").json["executions"][0]["id"]
    ledger.run("erase", "--execution", execution)
    facts = ledger.run("audit", "verify", exported(ledger, "erased.jsonl", "--payloads"), "--json").json
    assert (facts["withheld"], facts["erased"]) == (0, 1)
    assert facts["undisclosed"] > 0
    both = ledger.run("audit", "verify", exported(ledger, "both.jsonl")).out
    assert "1 executions erased" in both
    assert "are withheld: not in this file, and not erased" in both


def test_a_long_verification_says_how_far_it_is(ledger, monkeypatch):
    export = exported(ledger)
    monkeypatch.setattr(terminal_output, "PROGRESS_SECONDS", 0.0)
    size = size_of(ledger)
    for words in (("verify",), ("verify", export), ("prove", "1", export)):
        assert f": 0 of {size} entries\n" in ledger.run("audit", *words).err
    monkeypatch.undo()
    assert " of " not in ledger.run("audit", "verify").err


def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


async def fill(path, size=40_000, count=8):
    async with Database(path) as database:
        writer = Writer(database)
        await writer.start(ENDED)
        for _ in range(count):
            await writer.recorder.append(Entry("violation", ENDED, {"message": "x" * size}))
        await writer.end(ENDED)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("audit", "export", "out", "--payloads"), b"disk_full"),
        (("backup", "--without-keys", "out"), b"backup_failed"),
    ],
)
def test_nothing_half_written_is_left_when_the_disk_is_full(ledger, command, code):
    asyncio.run(fill(ledger.path))
    before = sorted(path.name for path in ledger.folder.iterdir())
    # Bytecode is cut off at the limit without a word, and would be taken for whole by whoever comes next.
    ledger.env["PYTHONDONTWRITEBYTECODE"] = "1"
    process = ledger.process(*command, preexec_fn=limited)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1, said
    assert code in said
    assert b"Traceback" not in said
    assert sorted(path.name for path in ledger.folder.iterdir()) == before


def test_a_full_standard_output_is_said(ledger):
    with Path("/dev/full").open("wb") as full:
        process = ledger.process("audit", "export", "-", stdout=full)
        _, said = process.communicate(timeout=100)
    assert process.returncode == 1
    assert b"output_unwritable: Standard output can't be written: No space left on device." in said
    assert b"Traceback" not in said


# --- backup ---


async def test_a_backup_is_whole_while_two_write(tmp_path):
    path = tmp_path / FILE_NAME
    async with Database(path) as one, Database(path) as two:
        done = asyncio.Event()

        async def write(database, ident):
            writer = Writer(database)
            await writer.start(ident)
            while not done.is_set():
                await writer.effect(ident)
            await writer.end(ident)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write(one, ASKED))
            tasks.create_task(write(two, WAITING))
            sizes = []
            for number in range(5):
                found = await asyncio.to_thread(
                    ledger_copies.backup, path, tmp_path / f"backup{number}", None, one.master
                )
                sizes.append(found.log.size)
            done.set()
        vkey = one.log.signer.vkey
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]
    for number, size in enumerate(sizes):
        with open_ledger(tmp_path / f"backup{number}") as kept:
            assert (kept.size, kept.vkey) == (size, vkey)
            assert [row[1] for row in kept.connection.execute("PRAGMA table_list") if "sqlite" not in row[1]]
        assert (tmp_path / f"backup{number}").stat().st_mode & 0o777 == 0o600
    leftovers = [file.name for file in tmp_path.iterdir() if file.name.startswith(".")]
    assert not leftovers


def test_a_backup_that_is_put_back_goes_on(ledger, tmp_path):
    ledger_copies.backup(ledger.path, tmp_path / "backup.sqlite", None, None)
    suspended = next(
        row["id"]
        for row in ledger.run("execution", "list", "--json").json["executions"]
        if row["status"] == "suspended"
    )
    size = size_of(ledger)
    more(ledger)
    kept = kept_checkpoint(ledger)
    for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
        (ledger.state / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.sqlite", ledger.path)
    ledger.says("audit", "verify", "--checkpoint", kept, code=1, words=["rolled_back"])
    ledger.says("approvals", "approve", suspended, "--resume", code=1, words=["ledger_behind", "accept-loss"])
    assert f"the log has {size} entries" in ledger.run("audit", "accept-loss").out
    ledger.run("approvals", "approve", suspended, "--resume")
    assert size_of(ledger) > size
    assert ledger.run("audit", "verify", "--json").json["opened"]


# --- keys ---


def test_a_log_of_several_rotations_verifies_with_its_first_key(ledger, tmp_path):
    kept = kept_checkpoint(ledger)
    keys = [ledger.key]
    for _ in range(3):
        told = ledger.run("audit", "rotate-key")
        keys.append(told.err.split()[-1] if told.err else told.out.split()[-1])
        more(ledger)
    assert len(set(keys)) == 4
    ledger.run("audit", "export", tmp_path / "x.jsonl")
    facts = ledger.run("audit", "verify", tmp_path / "x.jsonl", "--key", keys[0], "--checkpoint", kept, "--json").json
    assert facts["keys"] == keys
    subprocess.run([sys.executable, SMALL, tmp_path / "x.jsonl", "--key", keys[0]], check=True, capture_output=True)
    assert ledger.run("audit", "verify", "--key", keys[0], "--json").json["authenticated"]
    assert ledger.run("audit", "verify", "--json").json["keys"] == [keys[-1]]
    ledger_copies.backup(ledger.path, tmp_path / "backup", None, None)
    assert ledger.run("audit", "verify", tmp_path / "backup", "--key", keys[0], "--json").json["keys"] == keys


def test_a_lost_key_is_replaced_and_nobody_trusts_the_new_one_by_the_old(ledger, tmp_path):
    (ledger.state / "checkpoint.key").unlink()
    ledger.says("program", "run", "p.json", "--context", '{"name": "b"}', code=1, words=["key_missing"])
    new = ledger.run("audit", "rotate-key", "--lost", "--json").json["key"]
    more(ledger)
    ledger.run("audit", "verify")
    ledger.says("audit", "verify", "--key", ledger.key, code=1, words=["untrusted_key", "lost"])
    ledger.run("audit", "verify", "--key", ledger.key, "--key", new)
    assert (ledger.state / "checkpoint.key").stat().st_mode & 0o777 == 0o600


async def test_another_bridge_goes_on_with_the_new_key(tmp_path):
    path = tmp_path / FILE_NAME
    async with Database(path) as one, Database(path) as two:
        writer = Writer(two)
        await writer.start(ASKED)
        first = two.log.signer.vkey
        keys = [first]
        for _ in range(3):
            keys.append(await key_rotation.rotate_key(one))
            await writer.effect(ASKED)
            assert two.log.signer.vkey == keys[-1]
        # And both at once.
        await asyncio.gather(key_rotation.rotate_key(one), key_rotation.rotate_key(two), writer.effect(ASKED))
        await writer.end(ASKED)
        master = one.master
    assert verdict(path, [first], (), master) is None
    async with Database(path) as database:
        await Writer(database).start(WAITING)
    assert not (tmp_path / signing_key_files.NEXT_KEY_FILE).exists()
    assert verdict(path, [first], (), master) is None


async def test_a_rotation_that_died_before_its_key_was_in_its_place_loses_no_key(tmp_path, monkeypatch):
    """Neither does the next one, which needs the same name and fails."""
    path = tmp_path / FILE_NAME
    died = SimpleNamespace(calls=0)

    def dying(connection, directory):
        died.calls += 1
        if died.calls == 2:
            raise BridgeError("died", "It died.")
        signing_key_files.take_next_key(connection, directory)

    async with Database(path) as database:
        first = database.log.signer.vkey
        with monkeypatch.context() as patch:
            patch.setattr(key_rotation, "take_next_key", dying)
            with pytest.raises(BridgeError, match="died"):
                await key_rotation.rotate_key(database)
    assert (tmp_path / signing_key_files.NEXT_KEY_FILE).exists()
    async with Database(path) as database:
        await Writer(database).start(ASKED)
        second = database.log.signer.vkey
        assert second != first
        with monkeypatch.context() as patch:
            patch.setattr(key_rotation, "_append", broken)
            with pytest.raises(BridgeError, match="can't be written"):
                await key_rotation.rotate_key(database)
    async with Database(path) as database:
        assert database.log.signer.vkey == second
        await Writer(database).effect(ASKED)
        third = await key_rotation.rotate_key(database)
        master = database.master
    assert verdict(path, [first], (), master) is verdict(path, [third], (), master) is None


def broken(*_):
    raise sqlite3.OperationalError("database or disk is full")


# --- the clock ---


def test_a_clock_that_was_put_back_is_accepted_and_it_goes_on(ledger, monkeypatch):
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
    ledger.says(
        "program", "run", "p.json", "--context", '{"name": "b"}', code=1, words=["clock_went_back", "accept-clock"]
    )
    told = ledger.run("audit", "accept-clock")
    assert "accepted: the clock is 3" in told.err + told.out
    more(ledger)
    ledger.run("audit", "verify")


# --- an independent implementation ---


def test_pymerkle_finds_the_root_of_every_size(tmp_path):
    from pymerkle import InmemoryTree

    asyncio.run(fill(tmp_path / FILE_NAME, size=10, count=40))
    tree = InmemoryTree(algorithm="sha256")
    with open_ledger(tmp_path / FILE_NAME) as ledger:
        from mcp_bridge.ledger.proofs import merkle

        for (entry,) in ledger.connection.execute("SELECT entry FROM entries ORDER BY sequence"):
            size = tree.append_entry(entry)
            assert tree.get_root() == merkle.root(size, ledger.node)
        assert size == ledger.size
    lines = io.BytesIO()
    with open_ledger(tmp_path / FILE_NAME) as ledger:
        ledger_copies.export(ledger, lines, payloads=False)
        vkey = ledger.vkey
    lines.seek(0)
    assert verify_export(lines, [Verifier.parse(vkey)]).root == tree.get_root()


def test_a_ledger_whose_key_is_lost_or_another_s_can_be_copied_which_is_said(ledger, tmp_path):
    key = ledger.state / KEY_FILE
    data = key.read_bytes()
    key.unlink()
    told = ledger.run("backup", "--without-keys", tmp_path / "unsigned", "--json")
    assert (told.code, told.json["authenticated"]) == (0, False)
    assert "checkpoint.key is missing" in ledger.run("backup", "--without-keys", tmp_path / "again").out
    key.touch(0o600)
    key.write_bytes(bytes(32))
    assert not ledger.run("backup", "--without-keys", tmp_path / "another's", "--json").json["authenticated"]
    key.write_bytes(data)
    assert ledger.run("backup", "--without-keys", tmp_path / "signed", "--json").json["authenticated"] is True


async def test_a_decision_is_held_against_the_questions_that_were_queued_if_it_is_about_one(tmp_path):
    """What the client's person decides at once has no row; version 0.1.0 didn't even say who it was."""
    call = Question({"tool": "shop.pay", "arguments": {"n": 1}, "why": "Rule 1 asks."})
    step = Question({"message": "Go?", "step": "ask", "program": "p"})
    at_once = (
        CallDecision(call, approved=True, by=None),
        CallDecision(call, approved=True, by="client"),
        StepDecision(step, approved=False, by="client"),
    )
    async with Database(tmp_path / FILE_NAME) as database:
        writer = Writer(database)
        await writer.start(ASKED)
        await writer.ask(ASKED, 1)
        await writer.decide(ASKED, 1)
        await writer.recorder.append(*(to_entry(said, ASKED) for said in at_once))
        vkey = database.log.signer.vkey
    master = MasterKey((tmp_path / MASTER_FILE).read_bytes())
    assert verdict(tmp_path / FILE_NAME, [vkey], master=master) is None
    async with Database(tmp_path / FILE_NAME) as database:
        await Writer(database).recorder.append(to_entry(QueuedDecision(call, approved=True, by="anna"), ASKED))
    assert verdict(tmp_path / FILE_NAME, [vkey], master=master) == "ledger_damaged"
