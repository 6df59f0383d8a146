"""Backups: what is restored from any kind of one goes on as if nothing had been, or says at once what is missing."""

import asyncio
import base64
import contextlib
import errno
import fnmatch
import hmac
import io
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ledger_looks import look
from sandbox_fixtures import knows_the_sandbox
from tampered_fixtures import ASKED, WAITING, Writer

from mcp_bridge import system_keyring
from mcp_bridge.atomic_files import rename_noreplace
from mcp_bridge.backup import age, archive, restore, restore_placement
from mcp_bridge.backup import create as backups
from mcp_bridge.backup.create import OLD_KEY
from mcp_bridge.backup.restore import resumable
from mcp_bridge.cli.terminal_prompts import login_name
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import FOLDERS, Files
from mcp_bridge.executions.memories import Memories
from mcp_bridge.governance.principal_tokens import TokenStore
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.values import canonical
from mcp_bridge.ledger.admin import key_rotation
from mcp_bridge.ledger.audit import ledger_copies
from mcp_bridge.ledger.keys.signing_key_files import KEY_FILE, PUBLIC_KEY_FILE
from mcp_bridge.ledger.log.key_history import MAX_KEYS
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs.signing import Signer
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.restore_staging import PLACING, RESTORING
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.storage.sealing import MasterKey
from mcp_bridge.ledger.witness.witness_files import STATE_FILE as WITNESS_STATE
from mcp_bridge.ledger.witness.witness_files import open_files, private_key
from mcp_bridge.ledger.witness.witness_head import KEY_FILE as WITNESS_KEY
from mcp_bridge.ledger.witness.witness_head import Cosigned, WitnessHead
from mcp_bridge.policy.secrets.secret_stores import PRINCIPAL_TOKENS_FILE_NAME, SecretFile

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))
"""Whether many more damaged backups are wanted."""

PASSPHRASE = b"correct horse battery staple"
CARD = "4111 1111 1111 1111"
VALUE = "K7vq2Tz9XwLr4mNb8sYd"
RUN = "3f" * 8

KINDS = ("passphrase", "recipient", "without keys", "ledger alone")

TILL = f'''
import mcp_bridge


def _note(line):
    with open("till", "a") as file:
        print(line, file=file)


@mcp_bridge.tool
def card() -> str:
    _note("card")
    return "{CARD}"


@mcp_bridge.tool
def charge(number: str) -> str:
    _note("charge " + number)
    return "charged"
'''

PAY = {
    "name": "pay",
    "steps": [
        {"id": "card", "type": "tool", "tool": "card", "args": {}},
        {"id": "ask", "type": "approval", "message": "Pay?"},
        {"id": "charge", "type": "tool", "tool": "charge", "args": {"number": "$card"}},
    ],
}
ONCE = {"name": "once", "steps": [{"id": "charge", "type": "tool", "tool": "charge", "args": {"number": "$n"}}]}


@pytest.fixture(autouse=True)
def _quick_passphrases(monkeypatch):
    monkeypatch.setattr(age, "SCRYPT_LOG_N", 10)


@pytest.fixture(scope="module")
def begun():
    """What the first desk has made, of which the others have copies."""
    return {}


@pytest.fixture
def till(desk, begun, tmp_path_factory):
    """The desk, with all that a state directory can have; what its tools did is in the file `till`."""
    desk.write(f"tools/till_{os.urandom(4).hex()}.py", TILL)
    desk.write("programs/pay.json", PAY)
    desk.write("programs/once.json", ONCE)
    desk.configure('[projection]\npatterns = ["card"]\n')
    desk.path, desk.identity = desk.state / FILE_NAME, desk.folder / "backup.key"
    if not begun:
        begun.update(begin_till(desk), folder=tmp_path_factory.mktemp("begun"))
        for name in ("state", "till", "proof", "backup.key"):
            (shutil.copytree if name == "state" else shutil.copy)(desk.folder / name, begun["folder"] / name)
    else:
        for name in ("state", "till", "proof", "backup.key"):
            (shutil.copytree if name == "state" else shutil.copy)(begun["folder"] / name, desk.folder / name)
    for name in ("once", "waiting", "key", "recipient"):
        setattr(desk, name, begun[name])
    return desk


def begin_till(desk):
    found = {
        "once": desk.run("program", "run", "once", "--context", '{"n": "7"}', "--key", "order-7", "--json").json,
        "waiting": desk.run("program", "run", "pay", "--key", "order-8", "--json", code=5).json["trace_id"],
        "key": desk.run("audit", "stats", "--json").json["key"],
        "recipient": desk.run("backup-key", desk.identity).out.strip(),
    }
    desk.run("audit", "prove", "2", "--out", desk.folder / "proof")
    desk.run("secret", "set", "till", stdin=VALUE.encode())
    desk.run("principal", "add", "anna")
    Memories(desk.state).save("customer", {"name": "anna"}, update=False)
    Memories(desk.state, "ben").save("customer", {"name": "ben's"}, update=False)
    files = Files(desk.state, 1 << 30)
    files.save_output(RUN, "stdout.txt", b"printed")
    (files.directory(RUN) / ("ü" * 120)).write_bytes(b"kept")
    return found


def done(desk):
    return (desk.folder / "till").read_text().splitlines()


def made(desk, kind, name="backup"):
    """A backup of that kind; what `restore` needs besides, and its standard input."""
    target = desk.folder / name
    if kind == "passphrase":
        desk.run("backup", "--passphrase", target, stdin=PASSPHRASE + b"\n")
        return target, (), PASSPHRASE
    if kind == "recipient":
        desk.run("backup", "--recipient", desk.recipient, target)
        return target, ("--identity", desk.identity), b""
    if kind == "without keys":
        desk.run("backup", "--without-keys", target)
    else:
        # As 0.1.0 made one.
        ledger_copies.backup(desk.path, target, None, None)
    return target, ("--keys", desk.folder / "away"), b""


def put_away(desk):
    """Lose the state directory: only a copy of its keys is left."""
    away = desk.folder / "away"
    away.mkdir(mode=0o700)
    for name in ("master.key", KEY_FILE, OLD_KEY, "secrets.json", PRINCIPAL_TOKENS_FILE_NAME, WITNESS_KEY):
        if (desk.state / name).exists():
            shutil.copy(desk.state / name, away)
    shutil.rmtree(desk.state)


def kept_by_0_1_0(desk):
    """Have what is kept of a request, and the key that it was made by, as that version has left them."""
    key, ident = os.urandom(32), desk.once["trace_id"]
    asked = canonical({"program": parse(ONCE).hash, "context": {"n": "7"}})
    mac = hmac.digest(hmac.digest(key, b"requests", "sha256"), asked, "sha256").hex()

    async def keep():
        async with Database(desk.path) as database:
            database.post("UPDATE executions SET request = ? WHERE id = ?", (mac, ident))
            await database.transact(lambda writing: writing.authenticate(("executions", "id = ?", (ident,))))

    asyncio.run(keep())
    with closing(sqlite3.connect(desk.path)) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'requests'")
        connection.commit()
    (desk.state / OLD_KEY).touch(0o600)
    (desk.state / OLD_KEY).write_bytes(key)


def has_previous_result(desk, key="order-7"):
    """The order was made before the backup: asked for again, it has the result that it had."""
    again = desk.run("program", "run", "once", "--context", '{"n": "7"}', "--key", key, "--json").json
    assert again == desk.once | {"is_previous_result": True}


def goes_on(desk, kind, key="order-7"):
    """What must be so after a restore: keys, references, suspended executions, proofs, memories, files, secrets."""
    before = done(desk)
    has_previous_result(desk, key)
    assert done(desk) == before
    desk.says("program", "run", "once", "--context", '{"n": "8"}', "--key", key, code=2, words=["key_conflict"])
    desk.run("approvals", "approve", desk.waiting, "--resume")
    assert done(desk) == [*before, f"charge {CARD}"]
    assert desk.run("audit", "verify", "--key", desk.key, "--json").json["opened"]
    assert desk.run("audit", "verify", desk.folder / "proof", "--key", desk.key, "--json").json["authenticated"]
    desk.run("program", "run", "pay", "--json", code=5)
    kept = kind != "ledger alone"
    assert Memories(desk.state).load("customer") == (kept, {"name": "anna"} if kept else None)
    assert Memories(desk.state, "ben").load("customer") == (kept, {"name": "ben's"} if kept else None)
    files = Files(desk.state, 1 << 30)
    if kept:
        assert files.read(f"artifact://{RUN}/{'ü' * 120}").data == b"kept"
        assert (desk.state / "outputs" / RUN / "stdout.txt").read_bytes() == b"printed"
    assert SecretFile(desk.state).read() == {"till": VALUE}
    assert [token.principal for token in TokenStore(desk.state).read().values()] == ["anna"]
    for path in desk.state.rglob("*"):
        assert not path.stat().st_mode & 0o077, path
    look(desk.state)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_restored_goes_on(till, kind):
    file, options, stdin = made(till, kind)
    assert file.stat().st_mode & 0o777 == 0o600
    put_away(till)
    said = till.run("restore", file, *options, stdin=stdin).out
    assert "Executions that can be resumed: 1 suspended" in said
    assert not (till.state / RESTORING).exists()
    with open_ledger(till.path) as ledger:
        *before, last = ledger.entries()
    assert f"Its log says so in entry {len(before)}." in said
    told = json.loads(last.payload)
    assert (last.leaf.kind, last.leaf.execution) == ("loss", "ledger")
    assert isinstance(told.pop("made", None), float) is (kind != "ledger alone")
    assert told == {"has": len(before), "by": login_name(), "restored": True}
    goes_on(till, kind)
    (loss,) = till.run("audit", "verify", "--json").json["losses"]
    assert (loss["entry"], loss["restored"], loss["had"]) == (len(before), True, None)
    words = f"from a backup of its first {len(before)} entries: what came later isn't in it"
    assert words in till.run("audit", "verify").out
    # Whoever has an export alone is told as well, without any payload of an execution.
    till.run("audit", "export", till.folder / "export")
    assert words in till.run("audit", "verify", till.folder / "export", "--key", till.key).out


def test_what_was_interrupted_without_a_key_is_not_counted_as_what_can_be_resumed():
    rows = [("script", key, status) for key in (None, "k") for status in ("running", "interrupted", "success")]
    rows += [("program", None, "running"), ("script", "k2", "suspended")]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE executions (kind, key, status)")
        connection.executemany("INSERT INTO executions VALUES (?, ?, ?)", rows)
        assert resumable(connection) == {"running": 2, "interrupted": 1, "suspended": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_is_tried_without_restoring_it(till, kind):
    file, options, stdin = made(till, kind)
    put_away(till)
    facts = till.run("restore", "--check", file, *options, "--json", stdin=stdin).json
    assert (facts["restored"], facts["missing"], facts["authenticated"]) == (None, [], True)
    assert facts["executions"] == {"suspended": 1}
    assert not till.state.exists()


def test_a_backup_without_keys_is_tried_where_its_ledger_is_and_where_nothing_is(till):
    file, _, _ = made(till, "without keys")
    facts = till.run("restore", "--check", file, "--json").json
    assert (facts["authenticated"], facts["missing"]) == (True, ["master.key", KEY_FILE])
    put_away(till)
    facts = till.run("restore", "--check", file, "--json").json
    assert facts["authenticated"] is False
    assert facts["missing"] == ["master.key", KEY_FILE]
    told = till.run("restore", "--check", file)
    assert "by no key that is here" in told.out
    assert "needed to restore it (--keys): master.key" in told.out


def test_age_and_tar_open_a_backup(till):
    """With what another program knows of the format: the identity's file, and the tar in it."""
    file, _, _ = made(till, "recipient")
    with file.open("rb") as opened:
        header = age.Header.read(opened)
        lines = till.identity.read_text().splitlines()
        assert lines[0] == f"# public key: {till.recipient}"
        content = age.Decrypted(opened, header.open_with([age.Identity.parse(lines[1])])).read(1 << 30)
    plain, _, _ = made(till, "without keys", "plain")
    for data, keys in ((content, True), (plain.read_bytes(), False)):
        with tarfile.open(fileobj=io.BytesIO(data)) as archived:
            names = archived.getnames()
            assert archived.extractfile(f"files/{RUN}/{'ü' * 120}").read() == b"kept"
        assert {FILE_NAME, "backup.json", "manifest.json"} <= set(names)
        assert set(names).issuperset({"master.key", KEY_FILE, "secrets.json"}) is keys
    for name in ("master.key", KEY_FILE):
        assert (till.state / name).read_bytes() in content
        assert (till.state / name).read_bytes() not in plain.read_bytes()
        assert (till.state / name).read_bytes() not in file.read_bytes()
    assert VALUE.encode() not in plain.read_bytes()


OTHERS_IDENTITY = "AGE-SECRET-KEY-1GU75UCTGRVV4DZJCSL66YD29XW2G6YZ6DNQ09GMQ5VKT2KFFE85QD0Z9KA"
OTHERS_WORDS = "pä ss"
BY_ANOTHER = (
    (
        "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSBLa0xhZlRobWc0UEw5dmxoVzZqc0k4Yk52R1dBWnl3ZHRoVFNkZjZoWFh3"
        "Ck5pTXNFL3lrbktZQkl2a0FOeVA3Y3BLb05zSmVhVW0xbmlKdElMRjRDNncKLT4gL0svKy1ncmVhc2UKcWlMZWoyQWdOdGN5NERN"
        "d3pRaVlRV25kd2tXOGF2eWpQWDF2RmVqZFVsS3JYcHYzMnNwb0lsbW5PQTdsNnhOVwo1MUNWTTZwaSt1RHQxQVIxRVEKLS0tIHJa"
        "Q3cwZXRjNStHTWtaOSs5Z2x5L1VlWEJvYXdPdEJaU3lWUjFHeFNkbnMKF4F+KweKNKl+t3hQwpCE85IImWnbv9gnCRo8UshD9CkZ"
        "PFgQGOAKC2V1RZi45suhM84="
    ),
    (
        "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IHNjcnlwdCBuVDQxSldHZWVxKzkxMk1RY1JsSWpnIDE2ClBNVGZ4Lyt0ZnllZVlUS1lz"
        "MER2RjloTHR3dEZvVkNIQk9rRFphN1NPbHcKLS0tIFdsamRoVTA3RmNlSnpKcUxGRml2T1FTbjYxcHNLVDRMMStEb0oxQXpUeE0K"
        "V0xbqTs0igLRx9d9nLtsKH1rAOsQ/R2UEhzjHxbvTKfqrOED22PdDhVhrgCcKSXLRvY="
    ),
)
"""What another implementation of age (pyrage 1.4.0) has made of `b"by another program"`: to the identity, and under the
secret. The first has a stanza that means nothing, as that one puts them there."""


def test_what_another_program_has_encrypted_is_read():
    sealed, secret = (io.BytesIO(base64.b64decode(each)) for each in BY_ANOTHER)
    header = age.Header.read(sealed)
    assert (
        age.Decrypted(sealed, header.open_with([age.Identity.parse(OTHERS_IDENTITY)])).read(99) == b"by another program"
    )
    header = age.Header.read(secret)
    assert header.wants_passphrase
    assert age.Decrypted(secret, header.open_with_passphrase(OTHERS_WORDS)).read(99) == b"by another program"
    # The example of the specification.
    one = age.Identity.parse("AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX")
    assert str(one.recipient) == "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 131072, 200_000])
def test_any_size_is_encrypted_and_read_again(size):
    new, data, file = age.Identity.new(), os.urandom(size), io.BytesIO()
    writer, key = age.encrypt(file, [age.Identity.new().recipient, new.recipient])
    writer.write(data[: size // 3])
    writer.write(data[size // 3 :])
    writer.close()
    file.seek(0)
    assert age.Header.read(file).open_with([new]) == key
    reader = age.Decrypted(file, key)
    assert reader.read(size // 2) + reader.read(size + 1) == data


def test_a_header_that_asks_for_too_much_is_refused():
    made = io.BytesIO()
    age.encrypt(made, "x")[0].close()
    for old, new in ((b" 10\n", b" 21\n"), (b" 10\n", b" 010\n"), (b"-> scrypt", b"-> " + b"x" * 2000)):
        header = age.INTRO + made.getvalue().removeprefix(age.INTRO).replace(old, new, 1)
        with pytest.raises(BridgeError) as caught:
            age.Header.read(io.BytesIO(header)).open_with_passphrase("x")
        assert caught.value.code == "backup_damaged"
    stanzas = made.getvalue().replace(b"--- ", b"-> a\n\n" * 200 + b"--- ", 1)
    with pytest.raises(BridgeError, match="damaged"):
        age.Header.read(io.BytesIO(stanzas))


PAYING = """
from pathlib import Path

import mcp_bridge


@mcp_bridge.tool
def pay(name: str) -> int:
    path = Path(__file__).with_name("paid")
    with path.open("a") as file:
        print(name, file=file)
    return len(path.read_text().splitlines())
"""
SAVING = """
from mcp.servers import local
await runtime.save_memory("customer", {"name": "anna"})
print(await local.pay(name="anna"))
"""
READING = "print(await runtime.load_memory('customer'))"


@pytest.mark.timeout(300)
def test_a_script_that_was_done_is_known_and_its_memory_is_read_where_it_is_restored(configure, tmp_path):
    """With real containers, and the command in processes of its own."""
    state, tools, copy = tmp_path / "state", tmp_path / "tools", str(tmp_path / "backup")
    setup = configure(state_dir=str(state))
    tools.mkdir()
    (tools / "desk.py").write_text(PAYING)
    with setup.config.open("a") as file:
        file.write(f'\n[tools]\nmodules = ["desk"]\npath = ["{tools}"]\nentry_points = false\n')
    knows_the_sandbox(state, setup.state_dir)

    def run(*arguments, stdin=b""):
        ended = setup.run(*arguments, stdin=stdin)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    first = run("run", "--key", "order-7", "-c", SAVING)
    run("backup", "--passphrase", copy, stdin=PASSPHRASE)
    shutil.rmtree(state)
    run("restore", copy, stdin=PASSPHRASE)
    assert run("run", "--key", "order-7", "-c", SAVING) == first == b"1\n"
    assert run("run", "-c", READING) == b"{'name': 'anna'}\n"
    assert (tools / "paid").read_text() == "anna\n"


# --- what is missing, and what is there ---


def listing(folder):
    return sorted(str(path) for path in folder.rglob("*")) if folder.exists() else None


@pytest.mark.parametrize("kind", ["without keys", "ledger alone"])
@pytest.mark.parametrize("name", ["master.key", KEY_FILE, OLD_KEY])
def test_a_missing_key_is_said_before_anything_is_made(till, kind, name):
    kept_by_0_1_0(till)
    file, options, _ = made(till, kind)
    put_away(till)
    (till.folder / "away" / name).unlink()
    till.says("restore", file, *options, code=1, words=["key_missing", f"no {name}", "--keys"])
    till.says("restore", file, code=1, words=["no master.key, no checkpoint.key, no references.key"])
    assert not till.state.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_what_0_1_0_has_left_is_restored_with_the_key_of_its_requests(till, kind):
    kept_by_0_1_0(till)
    file, options, stdin = made(till, kind)
    put_away(till)
    till.run("restore", file, *options, stdin=stdin)
    assert (till.state / OLD_KEY).exists()
    goes_on(till, kind)
    # Once it was opened, it is in the ledger, and so in the next backup.
    assert not (till.state / OLD_KEY).exists()
    file, options, stdin = made(till, kind, "again")
    shutil.rmtree(till.state)
    till.run("restore", file, *options, stdin=stdin)
    has_previous_result(till)


def test_a_key_that_0_1_0_has_left_and_nothing_needs_is_in_no_backup(till):
    """As a process leaves it that was killed before it could remove it: with it, erased values could be guessed."""
    (till.state / OLD_KEY).touch(0o600)
    (till.state / OLD_KEY).write_bytes(os.urandom(32))
    file, _, stdin = made(till, "passphrase")
    shutil.rmtree(till.state)
    assert OLD_KEY not in till.run("restore", file, "--json", stdin=stdin).json["keys"]
    assert not (till.state / OLD_KEY).exists()


def test_a_ledger_of_0_1_0_that_is_put_back_without_the_key_of_its_requests_does_nothing_again(till, caplog):
    """The way that 0.1.0 told people to go, which told of two keys."""
    kept_by_0_1_0(till)
    ledger_copies.backup(till.path, till.folder / "copy", None, None)
    put_away(till)
    till.state.mkdir(mode=0o700)
    for name in ("master.key", KEY_FILE):
        shutil.copy(till.folder / "away" / name, till.state)
    shutil.copy(till.folder / "copy", till.path)
    before = done(till)
    again = ("program", "run", "once", "--context", '{"n": "7"}', "--key", "order-7")
    for _ in range(2):
        till.says(*again, code=2, words=["key_conflict"])
    assert caplog.text.count("references.key is missing") == 1
    assert done(till) == before
    assert not (till.state / OLD_KEY).exists()
    till.run("audit", "verify")
    # A half of it is not taken, and not removed.
    whole = (till.folder / "away" / OLD_KEY).read_bytes()
    (till.state / OLD_KEY).touch(0o600)
    (till.state / OLD_KEY).write_bytes(whole[:20])
    till.says(*again, code=1, words=["key_unusable", "20 bytes"])
    assert (till.state / OLD_KEY).read_bytes() == whole[:20]
    # A backup lacks it, too.
    (till.state / OLD_KEY).unlink()
    assert till.run("backup", "--without-keys", till.folder / "lacks", "--json").json["apart"][2:] == [OLD_KEY]
    (till.state / OLD_KEY).touch(0o600)
    (till.state / OLD_KEY).write_bytes(whole)
    for name in ("secrets.json", PRINCIPAL_TOKENS_FILE_NAME):
        shutil.copy(till.folder / "away" / name, till.state)
    goes_on(till, "ledger alone")
    assert not (till.state / OLD_KEY).exists()


@pytest.mark.parametrize("emptied", [False, True])
def test_no_ledger_is_begun_where_one_is_gone(till, emptied):
    till.run("audit", "verify")
    till.path.unlink()
    if emptied:
        till.path.touch(0o600)
    # An earlier version has written nowhere how far it had come.
    for code in ("ledger_behind", "ledger_missing"):
        before = listing(till.state)
        for command in (
            ("program", "run", "once", "--context", '{"n": "7"}', "--key", "order-7"),
            ("execution", "list"),
        ):
            till.says(*command, code=1, words=[code, "mcp-bridge restore"])
        assert listing(till.state) == before
        (till.state / "ledger.head").unlink(missing_ok=True)


@pytest.mark.parametrize("name", [KEY_FILE, OLD_KEY])
@pytest.mark.parametrize("kind", ["without keys", "ledger alone"])
def test_what_is_lost_for_good_is_gone_on_without(till, name, kind):
    kept_by_0_1_0(till)
    file, options, _ = made(till, kind)
    put_away(till)
    (till.folder / "away" / name).unlink()
    told = till.run("restore", file, *options, "--lost", name).out
    assert ("checkpoint.key is a new one." if name == KEY_FILE else "Without references.key") in told
    before = done(till)
    if name == KEY_FILE:
        key = till.run("audit", "key").out.strip()
        assert key != till.key
        assert key in told
        till.says("audit", "verify", "--key", till.key, code=1, words=["untrusted_key", "lost"])
    else:
        words = ["key_conflict"]
        till.says("program", "run", "once", "--context", '{"n": "7"}', "--key", "order-7", code=2, words=words)
    till.run("approvals", "approve", till.waiting, "--resume")
    assert done(till) == [*before, f"charge {CARD}"]
    till.run("audit", "verify")
    # What is lost was said once: the next backup doesn't ask for it again.
    assert OLD_KEY not in till.run("backup", "--without-keys", till.folder / "next", "--json").json["apart"]
    file, _, stdin = made(till, "passphrase", "later")
    shutil.rmtree(till.state)
    till.run("restore", file, stdin=stdin)
    till.run("audit", "verify")


def test_what_is_there_is_not_lost_and_the_master_key_cannot_be(till):
    file, options, _ = made(till, "without keys")
    whole, _, _ = made(till, "passphrase", "whole")
    put_away(till)
    for words in (("master.key",), ("no-such.key",), (KEY_FILE,), (OLD_KEY,)):
        till.says("restore", file, *options, "--lost", *words, code=2, words=["bad_argument"])
    till.says("restore", whole, "--lost", KEY_FILE, code=2, stdin=PASSPHRASE, words=["bad_argument", "it is there"])
    assert not till.state.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_is_restored_over_nothing_that_is_there(till, kind):
    file, options, stdin = made(till, kind)
    if kind in {"without keys", "ledger alone"}:
        options = ("--keys", till.state)
    content = {path: path.read_bytes() for path in till.state.rglob("*") if path.is_file()}
    till.says("restore", file, *options, stdin=stdin, code=2, words=["restore_exists", "--keys"])
    assert {path: path.read_bytes() for path in till.state.rglob("*") if path.is_file()} == content
    # Nor over a part of it.
    for name in (FILE_NAME, "master.key", KEY_FILE, OLD_KEY, "secrets.json", f"{FILE_NAME}-wal", *FOLDERS):
        shutil.rmtree(till.state, ignore_errors=True)
        (till.state).mkdir(mode=0o700)
        if name in FOLDERS:
            (till.state / name / "x").mkdir(parents=True)
        else:
            (till.state / name).touch(0o600)
        till.says("restore", file, *options, stdin=stdin, code=2, words=["restore_exists", name])
        assert len(list(till.state.iterdir())) == 1


def test_what_is_found_out_anew_may_be_there(till):
    file, options, stdin = made(till, "recipient")
    put_away(till)
    till.state.mkdir(mode=0o700)
    (till.state / "memory").mkdir(mode=0o700)
    (till.state / "probe-1.json").touch(0o600)
    till.run("restore", file, *options, stdin=stdin)
    assert (till.state / "probe-1.json").exists()
    goes_on(till, "recipient")


def test_the_other_keys_and_passphrases_open_nothing(till):
    secret, _, _ = made(till, "passphrase")
    sealed, _, _ = made(till, "recipient", "sealed")
    other = till.folder / "other.key"
    till.run("backup-key", other)
    put_away(till)
    till.says("restore", secret, stdin=b"wrong", code=1, words=["wrong_passphrase", str(secret)])
    till.says("restore", secret, stdin=b"\xff", code=2, words=["bad_passphrase"])
    till.says("restore", sealed, "--identity", other, code=1, words=["wrong_identity", str(sealed)])
    till.says("restore", sealed, code=1, words=["wrong_identity", "--identity"])
    assert not till.state.exists()
    for words in (("verify",), ("prove", "1")):
        till.says("audit", *words, secret, code=2, words=["bad_argument", "restore --check"])
    # Several may be named, and be in one file.
    both = till.write("both", other.read_bytes() + b"\n# another\n" + till.identity.read_bytes())
    till.run("restore", sealed, "--identity", both)
    goes_on(till, "recipient")


def test_another_logs_keys_restore_nothing(till, tmp_path):
    file, options, _ = made(till, "without keys")
    alone, _, _ = made(till, "ledger alone", "alone")
    put_away(till)
    away = till.folder / "away"
    for name in ("master.key", KEY_FILE):
        kept = (away / name).read_bytes()
        (away / name).write_bytes(os.urandom(32))
        for each in (file, alone):
            till.says("restore", each, *options, code=1, words=["key_unusable"])
        (away / name).write_bytes(kept[:-1])
        till.says("restore", alone, *options, code=1, words=["key_unusable"])
        (away / name).write_bytes(kept)
    (away / "master.key").chmod(0o644)
    till.says("restore", file, *options, code=1, words=["key_unusable", "chmod 600"])
    (away / "master.key").chmod(0o600)
    assert not till.state.exists()
    other = Signer("mcp-code-bridge/0", Ed25519PrivateKey.generate()).vkey
    till.says("restore", file, *options, "--key", other, code=1, words=["untrusted_key"])
    assert not till.state.exists()
    till.run("restore", file, *options, "--key", till.key)


def test_bad_arguments_make_nothing(till):
    for words, code in (
        (("--passphrase", "--without-keys"), "bad_argument"),
        (("--recipient", "age1nothing"), "bad_recipient"),
        (("--recipient", "missing.pub"), "neither a file that is there"),
        (("--recipient", till.recipient[:-1] + ("p" if till.recipient.endswith("q") else "q")), "bad_recipient"),
        (("--recipient", till.identity), "bad_recipient"),
        (("--recipient", str(identity(till))), "bad_recipient"),
        (("--recipient", str(identity(till)).lower()), "bad_recipient"),
        (("--recipient", till.write("of another program", str(identity(till))[10:])), "bad_recipient"),
        (("--passphrase",), "bad_passphrase"),
        ((), "bad_argument"),
    ):
        ended = till.says("backup", *words, till.folder / "backup", code=2, words=[code])
        assert str(identity(till))[20:50].lower() not in f"{ended.out}{ended.err}".lower()
    till.says("backup", "--without-keys", till.identity, code=2, words=["backup_exists"])
    till.says("backup", "--without-keys", till.folder / "no" / "where", code=1, words=["backup_failed"])
    till.says("backup-key", till.identity, code=2, words=["bad_argument"])
    # A key whose public half nobody has seen is none.
    with Path("/dev/full").open("wb") as full:
        process = till.process("backup-key", till.folder / "unseen.key", stdout=full)
        assert b"output_unwritable" in process.communicate()[1]
    assert not (till.folder / "unseen.key").exists()
    assert not (till.folder / "backup").exists()
    till.says("restore", till.folder / "missing", code=2, words=["restore_exists"])
    put_away(till)
    for name, content in (("text", b"no backup"), ("empty", b""), ("age", b"age-encryption.org/v1\n")):
        file = till.write(name, content)
        till.says("restore", file, code=1, words=["backup_damaged" if name == "age" else "backup_unusable"])
    till.says("restore", till.folder / "missing", code=2, words=["bad_argument"])
    till.says("restore", till.folder, code=2, words=["bad_argument"])
    whole = till.folder / "x"
    till.says("restore", till.write("x", b""), "--identity", whole, code=2, words=["bad_argument"])
    ended = till.says("restore", whole, "--identity", identity(till), code=2, words=["--identity", "Name the file"])
    assert str(identity(till)) not in ended.err
    assert not till.state.exists()
    assert not [path for path in till.folder.iterdir() if path.name.startswith(".")]


def test_a_short_passphrase_is_warned_of(till):
    told = till.run("backup", "--passphrase", till.folder / "backup", stdin=b"1234")
    assert "guess a passphrase as short as this" in told.err


# --- where the master key is elsewhere ---


def test_a_master_key_that_is_added_is_put_into_an_empty_keyring(till, keyring):
    from mcp_bridge.ledger.keys import master_key_sources

    key = (till.state / "master.key").read_bytes()
    file, options, _ = made(till, "without keys")
    put_away(till)
    till.configure('[projection]\npatterns = ["card"]\n[ledger]\nmaster_key = "keyring"\n')
    till.run("restore", file, *options)
    assert keyring == {(system_keyring.SERVICE, master_key_sources.KEYRING_NAME): key.hex()}
    assert not (till.state / "master.key").exists()


@pytest.mark.parametrize("stale", [b"stale" * 6 + b"..", None], ids=["stale", "none"])
def test_keys_are_taken_from_where_a_rotation_died(till, stale):
    till.run("audit", "rotate-key")
    file, options, _ = made(till, "without keys")
    put_away(till)
    away = till.folder / "away"
    (away / KEY_FILE).rename(away / f"{KEY_FILE}.next")
    if stale is not None:
        (away / KEY_FILE).touch(0o600)
        (away / KEY_FILE).write_bytes(stale)
    till.run("restore", file, *options)
    goes_on(till, "without keys")


def test_a_key_that_was_rotated_away_is_lost_although_its_successor_is_there(till):
    file, options, _ = made(till, "without keys")
    till.run("audit", "rotate-key")
    put_away(till)
    for check in ((), ("--check",)):
        words = ["key_unusable", f"--lost {KEY_FILE}"]
        till.says("restore", *check, file, *options, code=1, words=words)
    till.run("restore", "--check", file, *options, "--lost", KEY_FILE)
    told = till.run("restore", file, *options, "--lost", KEY_FILE).out
    assert "checkpoint.key is a new one." in told
    till.run("audit", "verify")


def test_a_witness_key_is_not_restored_without_what_it_has_cosigned(till):
    file, options, _ = made(till, "without keys")
    open_files(till.state)[1].close()
    put_away(till)
    assert till.run("restore", file, *options, "--json").json["witness"] is False
    assert not (till.state / WITNESS_KEY).exists()
    # So another one can begin.
    open_files(till.state)[1].close()


def test_what_restore_refuses_for_what_is_lost_is_refused_where_it_is_only_tried(till):
    file, options, _ = made(till, "without keys")
    for lost, words in ((("master.key", KEY_FILE), "can be restored without it"), ((OLD_KEY,), "needs none")):
        given = [word for name in lost for word in ("--lost", name)]
        till.says("restore", "--check", file, *given, code=2, words=["bad_argument", words])
    put_away(till)
    till.says("restore", "--check", file, *options, "--lost", KEY_FILE, code=2, words=["it is there"])


def test_the_targets_that_refuse_what_is_restored_are_named(till):
    till.configure(f'[projection]\npatterns = ["card"]\n[[ledger.publish]]\nfile = "{till.folder}/notes"\n')
    till.run("audit", "publish")
    file, options, stdin = made(till, "passphrase")
    till.run("program", "run", "once", "--context", '{"n": "9"}')
    till.run("audit", "publish")
    put_away(till)
    told = till.run("restore", file, *options, stdin=stdin).out
    assert f"{till.folder}/notes" in told
    assert "[[ledger.publish]]" in told
    till.says("audit", "verify", code=1, words=["publish_conflict"])
    till.configure(f'[projection]\npatterns = ["card"]\n[[ledger.publish]]\nfile = "{till.folder}/new"\n')
    till.run("audit", "publish", "--acknowledge")
    till.run("audit", "verify")


def test_a_passphrase_is_asked_for_at_a_terminal_and_never_shown(till):
    words, file = PASSPHRASE.decode(), till.folder / "backup"
    code, shown = till.at_a_terminal("backup", file, typed=[words, f"{words}."])
    assert (code, "bad_passphrase" in shown, file.exists()) == (2, True, False), shown
    code, shown = till.at_a_terminal("backup", file, typed=["\udcff"])
    assert (code, "bad_passphrase: What was typed is not UTF-8" in shown, file.exists()) == (2, True, False), shown
    code, shown = till.at_a_terminal("backup", file, typed=[words, words])
    assert (code, "entries and" in shown, words in shown) == (0, True, False), shown
    put_away(till)
    code, shown = till.at_a_terminal("restore", file, typed=["another"])
    assert (code, "wrong_passphrase" in shown, words in shown) == (1, True, False), shown
    code, shown = till.at_a_terminal("restore", file, typed=[words])
    assert (code, "restored into" in shown, words in shown) == (0, True, False), shown
    goes_on(till, "passphrase")


def test_a_master_key_that_a_command_gives_stays_there(till):
    key = (till.state / "master.key").read_bytes()
    till.write("key.hex", key.hex())
    (till.state / "master.key").unlink()
    till.configure(f'[projection]\npatterns = ["card"]\n[ledger]\nmaster_key = ["cat", "{till.folder}/key.hex"]\n')
    file, options, stdin = made(till, "recipient")
    with file.open("rb") as opened:
        content = age.Decrypted(opened, age.Header.read(opened).open_with([identity(till)])).read(1 << 30)
    assert key not in content
    put_away(till)
    (till.folder / "key.hex").rename(till.folder / "gone.hex")
    till.says("restore", file, *options, stdin=stdin, code=1, words=["key_unusable", "gave no master key"])
    till.write("key.hex", os.urandom(32).hex())
    till.says("restore", file, *options, stdin=stdin, code=1, words=["key_unusable"])
    assert not till.state.exists()
    till.write("key.hex", key.hex())
    till.run("restore", file, *options, stdin=stdin)
    assert not (till.state / "master.key").exists()
    has_previous_result(till)


@pytest.mark.parametrize("written", [bytes.hex, lambda key: base64.b64encode(key).decode()])
def test_a_master_key_that_stands_where_a_command_is_meant_is_not_shown(till, written):
    key = written((till.state / "master.key").read_bytes())
    till.configure(f'[ledger]\nmaster_key = "{key}"\n')
    ended = till.says("backup", "--without-keys", till.folder / "backup", code=1, words=["key_unusable", "a command"])
    assert key not in ended.err


def identity(desk):
    return age.Identity.parse(desk.identity.read_text().splitlines()[1])


@pytest.fixture
def keyring(monkeypatch, tmp_path):
    """A keyring's library that keeps what it is given in a dictionary."""
    kept = {}

    class Keyring:
        @staticmethod
        def get_password(service, name):
            return kept.get((service, name))

        @staticmethod
        def set_password(service, name, value):
            kept[service, name] = value

    monkeypatch.setitem(sys.modules, "keyring", Keyring)
    return kept


def test_a_master_key_in_the_keyring_is_in_the_backup_and_comes_back_into_it(till, keyring):
    from mcp_bridge.ledger.keys import master_key_sources

    key = (till.state / "master.key").read_bytes()
    (till.state / "master.key").unlink()
    place = (system_keyring.SERVICE, master_key_sources.KEYRING_NAME)
    keyring[place] = key.hex()
    till.configure('[projection]\npatterns = ["card"]\n[ledger]\nmaster_key = "keyring"\n')
    file, options, stdin = made(till, "passphrase")
    put_away(till)
    keyring[place] = os.urandom(32).hex()
    till.says("restore", file, *options, stdin=stdin, code=1, words=["key_unusable", "another master key"])
    assert not till.state.exists()
    keyring.clear()
    till.run("restore", file, *options, stdin=stdin)
    assert keyring == {place: key.hex()}
    assert not (till.state / "master.key").exists()
    has_previous_result(till)


# --- every kind of directory ---


def test_after_a_rotation_the_key_that_signs_is_in_it(till):
    till.run("audit", "rotate-key")
    # As a rotation leaves it that has died before its end.
    (till.state / KEY_FILE).rename(till.state / f"{KEY_FILE}.next")
    (till.state / KEY_FILE).touch(0o600)
    (till.state / KEY_FILE).write_bytes(os.urandom(32))
    file, options, stdin = made(till, "passphrase")
    put_away(till)
    till.run("restore", file, *options, stdin=stdin)
    assert not (till.state / f"{KEY_FILE}.next").exists()
    goes_on(till, "passphrase")


@pytest.mark.parametrize("kind", KINDS)
def test_a_ledger_of_0_1_0_is_restored_as_it_was(desk, kind, tmp_path):
    desk.state.mkdir(mode=0o700)
    with zipfile.ZipFile(Path(__file__).parents[1] / "golden" / "ledger-0.1.0.zip") as golden:
        for name in (FILE_NAME, "master.key", KEY_FILE):
            golden.extract(name, desk.state)
            (desk.state / name).chmod(0o600)
        vkey, proof = golden.read("vkey").decode(), golden.read("entry-5.tlog-proof")
    (desk.state / OLD_KEY).touch(0o600)
    (desk.state / OLD_KEY).write_bytes(os.urandom(32))
    desk.path = desk.state / FILE_NAME
    desk.identity = desk.folder / "backup.key"
    desk.recipient = desk.run("backup-key", desk.identity).out.strip()
    file, options, stdin = made(desk, kind)
    put_away(desk)
    facts = desk.run("restore", file, *options, "--key", vkey, "--json", stdin=stdin).json
    assert facts["authenticated"]
    with closing(sqlite3.connect(desk.path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
    desk.run("execution", "list")
    assert desk.run("audit", "verify", "--key", vkey, "--json").json["opened"]
    desk.run("audit", "verify", desk.write("proof", proof), "--key", vkey)


def test_a_witness_comes_with_its_key_or_not_at_all(till):
    state = till.state
    open_files(state)[1].close()
    key = (state / WITNESS_KEY).read_bytes()
    # How much it knew is asked of what stayed where it was, and not of what a person restores.
    with closing(WitnessHead(state / WITNESS_STATE, private_key(state / WITNESS_KEY))) as record:
        record.advance(record.position({"a log": Cosigned(7, bytes(32))}, 0))
    head = (state / "witness.head").read_bytes()
    whole, _, stdin = made(till, "passphrase")
    bare, _, _ = made(till, "without keys", "bare")
    put_away(till)
    state.mkdir(mode=0o700)
    (state / "witness.head").write_bytes(head)
    assert till.run("restore", whole, "--json", stdin=stdin).json["witness"] is True
    assert (state / WITNESS_KEY).read_bytes() == key
    open_files(state)[1].close()
    with closing(sqlite3.connect(state / WITNESS_STATE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    shutil.rmtree(state)
    assert till.run("restore", bare, "--keys", till.folder / "away", "--json").json["witness"] is True
    shutil.rmtree(state)
    (till.folder / "away" / WITNESS_KEY).unlink()
    assert till.run("restore", bare, "--keys", till.folder / "away", "--json").json["witness"] is False
    assert not (state / WITNESS_STATE).exists()


def test_everything_in_a_state_directory_is_in_a_backup_or_left_out_by_name(till):
    """A new file there is decided on: it is one more name in `backup/create.py`."""
    till.run("trust", "--list")
    (till.state / "run").mkdir()
    taken = {*backups.KEYS, *backups.CREDENTIALS, *backups.DATABASES, *FOLDERS}
    for path in till.state.iterdir():
        assert path.name in taken or any(fnmatch.fnmatch(path.name, each) for each in backups.LEFT_OUT), path.name
    with made(till, "without keys")[0].open("rb") as source:
        names = {member.name.partition("/")[0] for member in archive.Reader(source).members()}
    assert names <= taken
    assert names >= {FILE_NAME, *FOLDERS}
    assert set(backups.OF_THIS_LEDGER) <= set(backups.LEFT_OUT)


def test_what_speaks_of_another_ledger_is_not_left_beside_a_restored_one(till, monkeypatch):
    file, options, stdin = made(till, "passphrase")
    till.run("program", "run", "once", "--context", '{"n": "9"}')
    further = {name: (till.state / name).read_bytes() for name in ("ledger.head", PUBLIC_KEY_FILE)}
    put_away(till)
    till.state.mkdir(mode=0o700)
    further[PUBLIC_KEY_FILE] = Signer("mcp-code-bridge/0", Ed25519PrivateKey.generate()).vkey.encode()
    for name, data in further.items():
        (till.state / name).write_bytes(data)

    def full(new, target):
        if target.name == FILE_NAME:
            raise OSError(28, "No space left on device")
        rename_noreplace(new, target)

    with monkeypatch.context() as patched:
        patched.setattr(restore_placement, "rename_noreplace", full)
        till.says("restore", file, *options, stdin=stdin, code=1, words=["restore_failed"])
    assert {path.name: path.read_bytes() for path in till.state.iterdir()} == further
    till.run("restore", file, *options, stdin=stdin)
    assert not [name for name in further if (till.state / name).exists()]
    till.run("audit", "verify")
    goes_on(till, "passphrase")
    assert (till.state / "ledger.head").exists()


def test_a_ledger_that_is_refused_is_backed_up_and_that_is_said(till, caplog):
    older = shutil.copy(till.path, till.folder / "older")
    till.run("program", "run", "once", "--context", '{"n": "9"}')
    shutil.copy(older, till.path)
    for name in ("-wal", "-shm"):
        till.path.with_name(f"{FILE_NAME}{name}").unlink(missing_ok=True)
    till.says("program", "run", "pay", code=1, words=["ledger_behind"])
    till.run("backup", "--passphrase", till.folder / "backup", stdin=PASSPHRASE)
    assert "entries; it had" in caplog.text
    till.run("audit", "accept-loss")
    caplog.clear()
    till.run("backup", "--passphrase", till.folder / "again", stdin=PASSPHRASE)
    assert "it had" not in caplog.text


def test_nothing_is_beside_a_backup_but_what_is_encrypted(small, monkeypatch):
    """A stick or a share can keep what was removed from it, and so can a process that is killed meanwhile."""
    folder, means = small
    (folder / "state" / backups.WORK).mkdir()
    (folder / "state" / backups.WORK / FILE_NAME).write_bytes(b"of one that was killed")
    open_files(folder / "state")[1].close()
    stick, seen = folder / "stick", []
    stick.mkdir()

    def looked(*arguments):
        seen.extend(path.read_bytes() for path in stick.iterdir())
        seen.append({path.name for path in (folder / "state" / backups.WORK).iterdir()})
        return read_again(*arguments)

    read_again = backups._read_again
    monkeypatch.setattr(backups, "_read_again", looked)
    backups.back_up(folder / "state", "file", stick / "backup", "pass")
    data, copied = seen
    assert data.startswith(age.INTRO)
    assert copied == {FILE_NAME, WITNESS_STATE}
    assert [path.name for path in stick.iterdir()] == ["backup"]
    assert not (folder / "state" / backups.WORK).exists()
    assert isinstance(outcome(stick / "backup", folder / "into", means), dict)


def test_a_state_directory_that_can_only_be_read_is_backed_up(small, monkeypatch):
    folder, means = small
    mkdir = Path.mkdir

    def refused(path, *arguments, **named):
        if path.name == backups.WORK:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        mkdir(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", refused)
    backups.back_up(folder / "state", "file", folder / "again", "pass")
    monkeypatch.undo()
    monkeypatch.setattr(age, "SCRYPT_LOG_N", 10)
    assert isinstance(outcome(folder / "again", folder / "into", means), dict)


def test_one_backup_is_made_at_a_time(small):
    import fcntl

    folder, _ = small
    fd = os.open(folder / "state", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(BridgeError) as caught:
            backups.back_up(folder / "state", "file", folder / "again", "pass")
    finally:
        os.close(fd)
    assert caught.value.code == "backup_busy"
    assert not (folder / "again").exists()


def test_a_backup_is_made_and_restored_where_there_are_no_links(small, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    folder, means = small
    monkeypatch.setattr(os, "link", no_links)
    backups.back_up(folder / "state", "file", folder / "again", "pass")
    assert isinstance(outcome(folder / "again", folder / "into", means), dict)
    assert isinstance(outcome(folder / "state" / FILE_NAME, folder / "into", means), dict)


def test_what_cannot_be_copied_is_named_and_a_link_is_left_out(small, monkeypatch):
    folder, means = small
    state = folder / "state"
    Files(state, 1 << 30).directory(RUN)
    (state / "files" / RUN / "link").symlink_to("link")
    backups.back_up(state, "file", folder / "again", "pass")
    assert not [name for name in outcome(folder / "again", folder / "into", means) if name.endswith("link")]
    kept, opened, listed = state / "files" / RUN / "kept", os.open, os.scandir
    kept.write_bytes(b"kept")

    def unreadable(wanted, work):
        def done(path, *arguments, **named):
            if str(path) == str(wanted):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return work(path, *arguments, **named)

        return done

    for name, work, wanted in (("open", opened, kept), ("scandir", listed, kept.parent)):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, unreadable(wanted, work))
            with pytest.raises(BridgeError, match=f"{wanted}: Permission denied") as caught:
                backups.back_up(state, "file", folder / "third", "pass")
        assert caught.value.code == "backup_failed"
    (state / WITNESS_STATE).write_bytes(b"no database" * 100)
    with pytest.raises(BridgeError, match=f"{state / WITNESS_STATE} can't be copied"):
        backups.back_up(state, "file", folder / "third", "pass")
    assert not (folder / "third").exists()


def test_a_damaged_key_that_signs_keeps_nobody_from_a_backup(till, caplog):
    whole = (till.state / KEY_FILE).read_bytes()
    for kept in (whole[:-1], os.urandom(32)):
        (till.state / KEY_FILE).write_bytes(kept)
        file = till.folder / f"backup{len(kept)}"
        told = till.run("backup", "--passphrase", file, stdin=PASSPHRASE)
        assert "missing or damaged" in told.out
        assert "Not in it, and needed to restore it: checkpoint.key" in told.out
        assert str(till.state / KEY_FILE) in caplog.text
        caplog.clear()
    # Where it is only to be made private again, it is not left out.
    (till.state / KEY_FILE).chmod(0o644)
    till.says("backup", "--passphrase", till.folder / "x", stdin=PASSPHRASE, code=1, words=["key_unusable", "chmod"])


def test_a_witness_alone_is_told_how_to_be_backed_up(tmp_path):
    open_files(tmp_path)[1].close()
    with pytest.raises(BridgeError) as caught:
        backups.back_up(tmp_path, "file", tmp_path / "backup", "x")
    assert caught.value.code == "witness_alone"
    assert WITNESS_STATE in caught.value.hint
    assert not (tmp_path / "backup").exists()


def test_a_pipe_is_no_backup_and_that_is_said(till):
    read, write = os.pipe()
    try:
        file = f"/dev/fd/{read}"
        shutil.rmtree(till.state)
        for words in (("restore", file), ("audit", "verify", file, "--key", till.key), ("audit", "prove", "1", file)):
            os.write(write, b"x" * 4000)
            ended = till.says(*words, code=2, words=["can't be read: it is a pipe. Write it to a file first"])
            assert "None" not in ended.err
    finally:
        os.close(read)
        os.close(write)


# --- in use ---


async def test_a_backup_of_what_is_in_use_is_whole_whatever_becomes_of_its_keys(tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    path = state / FILE_NAME
    sizes, overtaken = [], []
    async with Database(path) as one, Database(path) as two:
        ended = asyncio.Event()

        async def write(database, ident):
            writer = Writer(database)
            await writer.start(ident)
            while not ended.is_set():
                await writer.effect(ident)
                # Always at work, and little enough to verify.
                await asyncio.sleep(0.005)
            await writer.end(ident)

        async def rotate():
            for _ in range(MAX_KEYS - 1):
                if ended.is_set():
                    break
                await key_rotation.rotate_key(one)
                # Some in each backup, and room for one in between, however slow the machine is.
                await asyncio.sleep(0.05 * (1 + len(overtaken)))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write(one, ASKED))
            tasks.create_task(write(two, WAITING))
            tasks.create_task(rotate())
            for number in range(5):
                target = tmp_path / f"backup{number}"
                while len(sizes) == number:
                    try:
                        found = await asyncio.to_thread(backups.back_up, state, "file", target, "x")
                    except BridgeError as exc:
                        if exc.code != "backup_failed" or "rotated" not in exc.message:
                            raise
                        overtaken.append(number)
                    else:
                        sizes.append(found.size)
            ended.set()
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]
    for number, size in enumerate(sizes):
        into = tmp_path / f"restored{number}"
        found = restore.restore(tmp_path / f"backup{number}", into, "file", restore.RestoreOptions(lambda: "x"))
        assert (found.size, found.authenticated) == (size, True)
        async with Database(into / FILE_NAME) as database:
            await Writer(database).start("e" * 32)
    assert not [file.name for file in tmp_path.iterdir() if file.name.startswith(".")]


# --- damage ---


@pytest.fixture
def small(tmp_path):
    """A small state directory, its backups of each kind, and a copy of its keys."""
    state, away = tmp_path / "state", tmp_path / "away"
    state.mkdir(mode=0o700)
    away.mkdir(mode=0o700)

    async def fill():
        async with Database(state / FILE_NAME) as database:
            await Writer(database).start(ASKED)

    asyncio.run(fill())
    Memories(state).save("k", {"n": 1}, update=False)
    for name in ("master.key", KEY_FILE):
        shutil.copy(state / name, away)
    new = age.Identity.new()
    kinds = {"passphrase": "pass", "recipient": [new.recipient], "without keys": None}
    for kind, to in kinds.items():
        backups.back_up(state, "file", tmp_path / kind, to)
    means = restore.RestoreOptions(lambda: "pass", [new], away)
    return tmp_path, means


def outcome(file, into, means):
    """The code of what is wrong with a backup; None if nothing is."""
    try:
        restore.restore(file, into, "file", means)
    except BridgeError as exc:
        assert not into.exists()
        return exc.code
    found = contents(into)
    shutil.rmtree(into)
    return found


def contents(folder):
    """The bytes of what is in a directory; of a ledger that was restored, what was before the one entry that says so."""
    found = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    if found.get(folder / FILE_NAME):
        # It leaves no journal there, as whoever reads would.
        with closing(sqlite3.connect(f"{(folder / FILE_NAME).as_uri()}?immutable=1", uri=True)) as connection:
            kinds, entries = zip(*connection.execute("SELECT kind, entry FROM entries ORDER BY sequence"), strict=True)
        assert (kinds.count("loss"), kinds[-1]) == (1, "loss"), kinds
        found[folder / FILE_NAME] = b"".join(entries[:-1])
    return {str(path.relative_to(folder)): data for path, data in found.items()}


REFUSED = {"backup_damaged", "backup_unusable", "backup_newer", "wrong_passphrase", "wrong_identity"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["passphrase", "recipient", "without keys"])
def test_a_changed_byte_is_found_or_changes_nothing(small, kind):
    folder, means = small
    file, into, bad = folder / kind, folder / "into", folder / "bad"
    data = file.read_bytes()
    whole = outcome(
        file, into, means if kind == "without keys" else restore.RestoreOptions(means.passphrase, means.identities)
    )
    assert isinstance(whole, dict)
    chance = random.Random(kind)  # noqa: S311
    places = {chance.randrange(len(data)) for _ in range(2000 if LONG else 40)}
    # Where it says what it is, and where it ends.
    places |= {*range(0, 120, 11), *range(len(data) - 40, len(data), 9)}
    for at in sorted(places):
        bad.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
        found = outcome(bad, into, means)
        assert found in REFUSED if isinstance(found, str) else found == whole, (at, found)


@pytest.mark.parametrize("kind", ["passphrase", "recipient", "without keys"])
def test_what_was_cut_off_is_not_restored(small, kind):
    folder, means = small
    data = (folder / kind).read_bytes()
    ends = {0, 1, 100, 300, 512, 1024, len(data) // 2, *range(len(data) - 3000, len(data), 200), len(data) - 1}
    for end in sorted(ends):
        (folder / "bad").write_bytes(data[:end])
        assert outcome(folder / "bad", folder / "into", means) in REFUSED, end
    (folder / "bad").write_bytes(data + b"\0")
    assert outcome(folder / "bad", folder / "into", means) in REFUSED


@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "/etc/evil", "trust/x.json", "owners/x", "ledger.sqlite-wal", "files/../../x", "files/aa/.."),
        *("files/aa/b/c", "memory/x.json", f"memory/{'a' * 64}.json/x", "files.total", "", "files/aa/a\nb", "x" * 2000),
    ],
)
def test_no_name_leads_elsewhere(small, name):
    folder, means = small
    master = MasterKey((folder / "away" / "master.key").read_bytes())
    ledger = (folder / "state" / FILE_NAME).read_bytes()
    with (folder / "bad").open("wb") as file:
        writer = archive.Writer(file, {"needs": ["master.key"], "keys": []})
        writer.add(FILE_NAME, len(ledger), 0, io.BytesIO(ledger))
        writer.add(name, 1, 0, io.BytesIO(b"x"))
        writer.close({}, master)
    before = listing(folder)
    assert outcome(folder / "bad", folder / "into", means) == "backup_damaged"
    assert listing(folder) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_nothing_but_files_comes_out_of_a_backup(small, kind):
    """Though the manifest names it, and whoever wrote that had the key."""
    folder, means = small
    master = MasterKey((folder / "away" / "master.key").read_bytes())
    ledger = (folder / "state" / FILE_NAME).read_bytes()
    name = f"memory/{'a' * 64}.json"
    made = io.BytesIO()
    writer = archive.Writer(made, {"needs": ["master.key", KEY_FILE], "keys": []})
    writer.add(FILE_NAME, len(ledger), 0, io.BytesIO(ledger))
    at = made.tell()
    writer.add(name, 0, 0, io.BytesIO())
    writer.close({}, master)
    plain = made.getvalue()
    (folder / "bad").write_bytes(plain)
    assert isinstance(outcome(folder / "bad", folder / "into", means), dict)
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    (folder / "bad").write_bytes(plain[:at] + info.tobuf(tarfile.GNU_FORMAT) + plain[at + 512 :])
    assert outcome(folder / "bad", folder / "into", means) == "backup_damaged"


def test_what_was_put_into_a_backup_by_who_has_no_key_is_found(small):
    """Another memory, and a manifest that agrees."""
    folder, means = small
    with (folder / "bad").open("wb") as file, (folder / "without keys").open("rb") as source:
        reader = archive.Reader(source)
        writer = archive.Writer(file, {"needs": reader.first["needs"], "keys": []})
        for member in reader.members():
            data = reader.read(member.size)
            changed = data.replace(b'"n": 1', b'"n": 2')
            writer.add(member.name, len(changed), member.changed, io.BytesIO(changed))
        writer.close({"made": 1.0}, MasterKey(bytes(32)))
    assert outcome(folder / "bad", folder / "into", means) == "backup_damaged"


@pytest.mark.parametrize("seconds", [1e300, float("nan"), float("-inf"), 1e11, "x"])
def test_a_time_that_is_none_is_not_told(small, seconds):
    from mcp_bridge.cli.commands.backups import _lines

    folder, means = small
    master = MasterKey((folder / "away" / "master.key").read_bytes())
    with (folder / "bad").open("wb") as file, (folder / "without keys").open("rb") as source:
        reader = archive.Reader(source)
        writer = archive.Writer(file, {"needs": reader.first["needs"], "keys": []})
        for member in reader.members():
            writer.add(member.name, member.size, member.changed, reader)
        writer.close({"made": seconds}, master)
    found = restore.restore(folder / "bad", folder / "into", "file", means)
    assert found.made is None
    assert _lines(found, folder / "bad", folder / "into")


def test_a_name_that_is_no_text_is_refused_or_left_out(small):
    folder, means = small
    (folder / "state" / "files" / "aa").mkdir(parents=True)
    (folder / "state" / "files" / "aa" / os.fsdecode(b"\xff")).write_bytes(b"x")
    backups.back_up(folder / "state", "file", folder / "again", "pass")
    assert not [name for name in outcome(folder / "again", folder / "into", means) if name.startswith("files")]
    data = (folder / "without keys").read_bytes()
    info = tarfile.TarInfo("files/aa/x")
    info.name = os.fsdecode(b"files/aa/\xff")
    member = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    (folder / "bad").write_bytes(data[:1024] + member + data[1024:])
    assert outcome(folder / "bad", folder / "into", means) == "backup_damaged"


def test_a_later_versions_backup_is_left_alone(small):
    folder, means = small
    with (folder / "bad").open("wb") as file:
        writer = archive.Writer(file, {"version": 2})
        writer.close({}, MasterKey(bytes(32)))
    assert outcome(folder / "bad", folder / "into", means) == "backup_newer"


def test_a_full_disk_leaves_nothing(till):
    file, options, stdin = made(till, "recipient")
    put_away(till)
    script = f"""
import resource, signal, sys
sys.dont_write_bytecode = True
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
from mcp_bridge.cli import main
sys.argv = ["mcp-bridge", "--config", {str(till.config)!r}, *sys.argv[1:]]
main()
"""
    for words in (("restore", file, *options), ("restore", "--check", file, *options)):
        ended = subprocess.run(
            [sys.executable, "-c", script, *map(str, words)],
            env=till.env,
            cwd=till.folder,
            capture_output=True,
            check=False,
        )
        assert ended.returncode == 1, ended
        assert b"restore_failed" in ended.stderr
        assert b"Traceback" not in ended.stderr
        assert not till.state.exists()
    till.run("restore", file, *options, stdin=stdin)
    ended = subprocess.run(
        [sys.executable, "-c", script, "backup", "--recipient", till.recipient, "again"],
        env=till.env,
        cwd=till.folder,
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, b"backup_failed" in ended.stderr) == (1, True), ended
    assert not (till.folder / "again").exists()
    assert not [path for path in till.folder.iterdir() if path.name.startswith(".")]


# --- a restore that dies ---

DYING = """
import os, signal, sys
from pathlib import Path
from mcp_bridge.backup import restore_placement, restore

file, into, keys = map(Path, sys.argv[1:])
left = 0

def dying(work):
    def done(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **named)
    return done

for module, names in ((restore_placement, ("sync_directory", "sync_file", "write_private")), (restore, ("write_private", "_write"))):
    for name in names:
        setattr(module, name, dying(getattr(module, name)))
for name in ("link", "unlink", "rename"):
    setattr(os, name, dying(getattr(os, name)))
for line in sys.stdin:
    left = int(line)
    child = os.fork()
    if child == 0:
        restore.restore(file, into, "file", restore.RestoreOptions(lambda: "pass", (), keys))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""For each line a restore in a process of its own, which is killed as it comes to so many a step."""


OF_ANOTHER = {"ledger.head": b"mine", PUBLIC_KEY_FILE: b"mine, too", "witness.head": b"and this"}
"""What is beside a ledger and a witness that somebody has moved away."""


def with_what_another_has_left(into):
    into.mkdir(mode=0o700)
    for name, data in OF_ANOTHER.items():
        (into / name).write_bytes(data)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["passphrase", "without keys"])
def test_a_restore_that_died_is_done_again_or_was_done(small, kind):
    folder, means = small
    into = folder / "into"
    means = means if kind == "without keys" else restore.RestoreOptions(means.passphrase)
    reference = outcome(folder / kind, into, means)
    keys = folder / ("away" if kind == "without keys" else "nowhere")
    command = [sys.executable, "-c", DYING, str(folder / kind), str(into), str(keys)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for left in itertools.count(1):
            with_what_another_has_left(into)
            process.stdin.write(f"{left}\n")
            process.stdin.flush()
            ended = int(process.stdout.readline())
            if ended == 0:
                break
            assert ended == -signal.SIGKILL
            if (into / FILE_NAME).exists():
                placed = {name: data for name, data in contents(into).items() if not name.startswith(RESTORING)}
                assert placed == reference
                assert not OF_ANOTHER.keys() & {path.name for path in into.iterdir()}
            else:
                if (into / RESTORING).exists():
                    # No bridge begins a log there.
                    before = listing(into)
                    with pytest.raises(BridgeError) as caught:
                        asyncio.run(begin(into / FILE_NAME))
                    assert caught.value.code == "restore_unfinished"
                    assert listing(into) == before
                assert outcome(folder / kind, into, means) == reference
            shutil.rmtree(into, ignore_errors=True)
    assert left > 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_restore_that_is_interrupted_leaves_all_or_nothing(small, monkeypatch, error, again, after):
    """At each step, before it or once it is done; and where it is interrupted again and again, it can be done again."""
    folder, means = small
    file, into = folder / "without keys", folder / "into"
    reference = outcome(file, into, means)
    left = 0

    def failing(work):
        def done(*arguments, **named):
            nonlocal left
            left -= 1
            fails = left == 0 or (again and left < 0)
            if fails and not after:
                raise error(5, "Input/output error")
            result = work(*arguments, **named)
            if fails:
                raise error(5, "Input/output error")
            return result

        return done

    for steps in itertools.count(1):
        with_what_another_has_left(into)
        with monkeypatch.context() as patched:
            for name in ("link", "unlink", "rename", "mkdir"):
                patched.setattr(os, name, failing(getattr(os, name)))
            patched.setattr(restore_placement, "sync_directory", failing(restore_placement.sync_directory))
            left = steps
            with contextlib.suppress(error, BridgeError):
                restore.restore(file, into, "file", means)
        if left > 0:
            break
        if (into / FILE_NAME).exists():
            assert contents(into) | reference == contents(into)
            assert not OF_ANOTHER.keys() & {path.name for path in into.iterdir()}
        elif again:
            restore.restore(file, into, "file", means)
            assert contents(into) == reference
        else:
            assert contents(into) == OF_ANOTHER
        shutil.rmtree(into)
    assert steps > 10


async def begin(path):
    async with Database(path):
        pass


def test_a_restore_that_died_takes_nothing_of_others_with_it(small):
    folder, means = small
    into = folder / "into"
    (into / RESTORING).mkdir(parents=True, mode=0o700)
    into.chmod(0o700)
    (into / "secrets.json").write_text("mine")
    with pytest.raises(BridgeError) as caught:
        restore.restore(folder / "without keys", into, "file", means)
    assert caught.value.code == "restore_exists"
    assert (into / "secrets.json").read_text() == "mine"


def test_a_restore_that_died_does_not_take_away_how_far_another_ledger_had_come(small):
    """Whoever puts that ledger back, instead of restoring again, is told if it is an older copy."""
    folder, means = small
    into, torn = folder / "into", folder / "torn"
    (into / RESTORING).mkdir(parents=True, mode=0o700)
    into.chmod(0o700)
    (into / RESTORING / "before.ledger.head").write_text("mine")
    (into / RESTORING / FILE_NAME).write_text("not in its place yet")
    torn.write_bytes((folder / "without keys").read_bytes()[:-600])
    with pytest.raises(BridgeError) as caught:
        restore.restore(torn, into, "file", means)
    assert caught.value.code == "backup_damaged"
    assert [(path.name, path.read_text()) for path in into.iterdir()] == [("ledger.head", "mine")]


def killed(folder, into, at):
    """A restore of the small backup that was killed as it came to put something in its place."""
    command = [sys.executable, "-c", KILLED, str(folder / "without keys"), str(into), str(folder / "away"), at]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (into / RESTORING / PLACING).exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from mcp_bridge.backup import restore_placement, restore

file, into, keys = map(Path, sys.argv[1:4])

def dying(work):
    def done(one, *others):
        if Path(one).name == sys.argv[4]:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(one, *others)
    return done

restore_placement.rename_noreplace = dying(restore_placement.rename_noreplace)
restore_placement.shutil.rmtree = dying(restore_placement.shutil.rmtree)
restore.restore(file, into, "file", restore.RestoreOptions(lambda: "pass", (), keys))
"""


def test_what_a_restore_that_was_done_has_left_is_nobodys_reason_to_remove_anything(small):
    """It was killed as it was about to tidy up; the ledger is lost long after that."""
    folder, means = small
    into = folder / "into"
    killed(folder, into, RESTORING)
    (into / FILE_NAME).rename(folder / "lost")
    with pytest.raises(BridgeError) as caught:
        asyncio.run(begin(into / FILE_NAME))
    assert caught.value.code == "ledger_missing"
    before = contents(into)
    with pytest.raises(BridgeError) as caught:
        restore.restore(folder / "without keys", into, "file", means)
    assert caught.value.code == "restore_exists"
    assert contents(into) == before
    assert (into / "master.key").exists()


def test_a_bridge_removes_what_a_restore_that_was_done_has_left(small):
    folder, _ = small
    into = folder / "into"
    killed(folder, into, RESTORING)
    asyncio.run(begin(into / FILE_NAME))
    assert not (into / RESTORING).exists()
    assert {path.name for path in into.iterdir()} >= {FILE_NAME, "master.key", KEY_FILE, "memory"}


def test_what_was_made_since_a_restore_died_is_not_removed(small):
    folder, means = small
    into = folder / "into"
    file = folder / "with secrets"
    SecretFile(folder / "state").set("till", VALUE)
    backups.back_up(folder / "state", "file", file, "pass")
    shutil.copy(file, folder / "without keys")

    def another_secret():
        SecretFile(into).set("other", VALUE)

    def another_witness():
        open_files(into)[1].close()

    for at, change, made in (
        ("secrets.json", another_secret, "secrets"),
        (FILE_NAME, another_secret, "secrets"),
        (FILE_NAME, another_witness, "witness"),
    ):
        killed(folder, into, at)
        change()
        mine = {name: data for name, data in contents(into).items() if name.startswith(made)}
        with pytest.raises(BridgeError) as caught:
            restore.restore(file, into, "file", means)
        assert caught.value.code == "restore_exists"
        assert contents(into).items() >= mine.items(), at
        shutil.rmtree(into)


def test_a_ledger_that_is_put_back_where_a_restore_died_is_held_against_how_far_it_had_come(small):
    folder, _ = small
    into = folder / "into"
    shutil.copytree(folder / "state", into)
    older = shutil.copy(into / FILE_NAME, folder / "older")
    asyncio.run(run_once(into / FILE_NAME))
    away = folder / "elsewhere"
    away.mkdir()
    for name in ("master.key", KEY_FILE, FILE_NAME, *FOLDERS):
        if (into / name).exists():
            (into / name).rename(away / name)
    killed(folder, into, FILE_NAME)
    for name in ("master.key", KEY_FILE):
        (away / name).replace(into / name)
    shutil.copy(older, into / FILE_NAME)
    with pytest.raises(BridgeError) as caught:
        asyncio.run(begin(into / FILE_NAME))
    assert caught.value.code == "ledger_behind"
    assert not (into / RESTORING).exists()
    (away / FILE_NAME).replace(into / FILE_NAME)
    asyncio.run(begin(into / FILE_NAME))


async def run_once(path):
    async with Database(path) as database:
        await Writer(database).start("e" * 32)


def test_where_there_are_no_links_a_restore_is_done_again_likewise(small, monkeypatch):
    """There a file's place is taken by an empty one first."""
    folder, means = small
    file, into = folder / "without keys", folder / "into"
    reference = outcome(file, into, means)

    def no_links(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    def interrupted(source, target):
        if Path(target).name == FILE_NAME and Path(source).parent.name == RESTORING:
            # As it is killed: nothing is tidied up.
            stopped.append(contents(into))
            raise KeyboardInterrupt
        return rename(source, target)

    stopped, rename = [], os.replace
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", no_links)
        patched.setattr(os, "replace", interrupted)
        patched.setattr(restore_placement, "_undo", lambda *_: None)
        patched.setattr(restore_placement, "_clear", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            restore.restore(file, into, "file", means)
    assert stopped[0][FILE_NAME] == b""
    with pytest.raises(BridgeError) as caught:
        asyncio.run(begin(into / FILE_NAME))
    assert caught.value.code == "restore_unfinished"
    restore.restore(file, into, "file", means)
    assert contents(into) == reference


def test_two_restores_into_one_directory_do_not_meet(small):
    import fcntl

    folder, means = small
    into = folder / "into"
    into.mkdir(mode=0o700)
    fd = os.open(into, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(BridgeError) as caught:
            restore.restore(folder / "without keys", into, "file", means)
    finally:
        os.close(fd)
    assert caught.value.code == "restore_busy"
    assert not list(into.iterdir())
