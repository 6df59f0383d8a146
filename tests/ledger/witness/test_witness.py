"""The witness: every status of C2SP tlog-witness, the race that it warns of, its files, and the command."""

import base64
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ledger_fixtures import SMALL
from published_log import Log, Replaceable, serving
from typer.testing import CliRunner

from mcp_bridge.cli.app import app
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit import ledger_copies
from mcp_bridge.ledger.proofs.merkle import empty_root
from mcp_bridge.ledger.proofs.notes import Checkpoint, open_checkpoint, sign_checkpoint
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.witness import witness_files, witness_head
from mcp_bridge.ledger.witness.witness import MAX_BODY_BYTES, MAX_PROOF_LINES, open_witness
from mcp_bridge.server import witness_http as server
from mcp_bridge.server.witness_http import serve_witness, witness_app

COMMAND = [sys.executable, "-c", "from mcp_bridge.cli import main; main()", "witness"]
SIZE_TYPE = "text/x.tlog.size"


def body(note, old=0, proof=()):
    lines = "".join(f"{base64.b64encode(each).decode()}\n" for each in proof)
    return f"old {old}\n{lines}\n{note}".encode()


def growth(log, old, new=None):
    """The request that has a log grown from one size to another."""
    return body(log.note(new), old, log.proof(old, new))


def signed(text):
    """A note of any text by the log's key."""
    return f"{text}\n{Log(0).signer.sign(text)}"


@pytest.fixture
def witness(tmp_path):
    with open_witness(tmp_path, [Log(0).verifier]) as opened:
        yield opened


@pytest.fixture(scope="module")
def web():
    replaceable = Replaceable()
    with serving(replaceable) as address, httpx2.Client(base_url=address, trust_env=False) as client:
        client.app = replaceable
        yield client


@pytest.fixture
def post(web, witness):
    """Sends a request to the witness over HTTP."""
    web.app.app = witness_app(witness)
    return lambda content: web.post("/add-checkpoint", content=content)


def cosigned(witness, note, answer):
    """The time of the cosignature that an answer has of a note."""
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert answer.text.startswith("\u2014 ")
    assert answer.text.endswith("\n")
    assert answer.text.count("\n") == 1
    _, ((verifier, time),) = open_checkpoint(note + answer.text, [Verifier.parse(witness.vkey)])
    assert verifier.vkey == witness.vkey
    return time


# --- every status


def test_a_log_that_only_grows_is_cosigned_from_its_first_checkpoint_on(post, witness):
    log = Log(100)
    old = 0
    for size in (1, 2, 3, 7, 8, 64, 100):
        assert cosigned(witness, log.note(size), post(growth(log, old, size))) > 1_700_000_000
        old = size


def test_the_same_checkpoint_is_cosigned_again(post, witness):
    log = Log(5)
    post(growth(log, 0))
    assert cosigned(witness, log.note(), post(growth(log, 5)))


def test_an_empty_log_is_cosigned(post, witness):
    assert cosigned(witness, Log(0).note(), post(growth(Log(0), 0)))


def test_a_checkpoint_with_extension_lines_is_cosigned_with_them(post, witness):
    note = signed(Log(3).note().partition("\n\n")[0] + "\nmore\n")
    assert cosigned(witness, note, post(body(note)))


def test_other_signatures_and_keys_beside_the_logs_own_say_nothing(post, witness):
    text, own = Log(3).note().split("\n\n")
    others = [Log(0, "others.example/log"), Log(0, key=Ed25519PrivateKey.generate())]
    note = f"{text}\n\n{''.join(other.signer.sign('else') for other in others)}{own}"
    assert cosigned(witness, note, post(body(note)))


def test_a_rotated_keys_log_is_cosigned_under_both_keys(tmp_path):
    new = Log(5, key=Ed25519PrivateKey.generate())
    with open_witness(tmp_path, [Log(0).verifier, new.verifier]) as witness:
        assert witness.add_checkpoint(growth(Log(3), 0)).status == 200
        assert witness.add_checkpoint(growth(new, 3)).status == 200


NOTE = Log(3).note()
HASH = base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        NOTE.encode(),
        f"old 0\n{NOTE}".encode(),
        f"\nold 0\n\n{NOTE}".encode(),
        f"Old 0\n\n{NOTE}".encode(),
        f"old  0\n\n{NOTE}".encode(),
        f"old 0 \n\n{NOTE}".encode(),
        f"old 0\r\n\n{NOTE}".encode(),
        f"old 00\n\n{NOTE}".encode(),
        f"old 01\n\n{NOTE}".encode(),
        f"old -0\n\n{NOTE}".encode(),
        f"old +1\n\n{NOTE}".encode(),
        f"old 0x0\n\n{NOTE}".encode(),
        f"old \u0661\n\n{NOTE}".encode(),
        f"old {'9' * 5000}\n\n{NOTE}".encode(),
        f"old 0\n{HASH[:-1]}\n\n{NOTE}".encode(),
        f"old 0\n{HASH}=\n\n{NOTE}".encode(),
        f"old 0\n {HASH}\n\n{NOTE}".encode(),
        f"old 0\n{HASH[:-2]}B=\n\n{NOTE}".encode(),
        f"old 0\n{base64.b64encode(bytes(31)).decode()}\n\n{NOTE}".encode(),
        f"old 0\n{base64.urlsafe_b64encode(bytes([255]) * 32).decode()}\n\n{NOTE}".encode(),
        f"old 0\n\n{NOTE.rstrip()}".encode(),
        f"old 0\n\n{NOTE}\n".encode(),
        f"old 0\n\n{NOTE}x".encode(),
        f"old 0\n\n{NOTE.partition(chr(10) * 2)[0]}\n".encode(),
        b"old 0\n\n" + NOTE.encode().replace(b"\n3\n", b"\n\xff\n"),
        body(signed(f"{Log(0).origin}\n03\n{HASH}\n")),
        body(signed(f"{Log(0).origin}\n-3\n{HASH}\n")),
        body(signed(f"{Log(0).origin}\n{2**63}\n{HASH}\n")),
        body(signed(f"{Log(0).origin}\n3\n{HASH[:-4]}\n")),
        body(signed(f"{Log(0).origin}\n3\n")),
        body(NOTE, old=4),
        body(NOTE, proof=[bytes(32)] * (MAX_PROOF_LINES + 1)),
        b"old 0\n\n",
        b"old 0\n\nothers.example/log\n",
        body(signed("others.example/log\n")),
    ],
)
def test_400_for_what_is_no_request(post, content):
    assert post(content).status_code == 400
    assert post(growth(Log(3), 1)).text == "0\n"


def test_404_for_a_log_that_it_does_not_know(post):
    assert post(growth(Log(3, "others.example/log"), 0)).status_code == 404
    note = NOTE.replace(Log(0).origin + "\n", "others.example/log\n", 1)
    assert post(body(note)).status_code == 404


@pytest.mark.parametrize(
    "note",
    [
        Log(3, key=Ed25519PrivateKey.generate()).note(),
        Log(3).note(3).replace("\n3\n", "\n2\n"),
        f"{NOTE.partition(chr(10) * 2)[0]}\n\n{Log(0, 'others.example/log').signer.sign('else')}",
        NOTE + Log(3).signer.sign("something else"),
    ],
    ids=["another key of that name", "another text", "another log's signature", "a wrong one beside the right one"],
)
def test_403_where_no_trusted_key_has_signed_the_checkpoint(post, witness, note):
    assert post(body(note)).status_code == 403
    assert witness.add_checkpoint(growth(Log(3), 0)).status == 200


@pytest.mark.parametrize("old", [0, 1, 4, 6, 9])
def test_409_with_the_witnesss_size_for_another_old_size(post, old):
    log = Log(9)
    post(growth(log, 0, 5))
    answer = post(growth(log, old))
    assert (answer.status_code, answer.headers["content-type"], answer.text) == (409, SIZE_TYPE, "5\n")


def test_409_with_size_0_for_a_log_that_was_never_cosigned(post):
    assert post(growth(Log(9), 3)).text == "0\n"


@pytest.mark.parametrize("note", [Log(5, fork=4).note(), Log(5, fork=0).note()])
def test_422_for_another_root_of_the_same_size_and_both_checkpoints_are_kept(post, tmp_path, note):
    post(growth(Log(5), 0))
    assert post(body(note, 5)).status_code == 422
    # Whoever asks with another size is told that first.
    answer = post(body(note, 4))
    assert (answer.status_code, answer.headers["content-type"], answer.text) == (409, SIZE_TYPE, "5\n")
    post(body(note, 5))
    with sqlite3.connect(tmp_path / witness_files.STATE_FILE) as database:
        kept = database.execute("SELECT cosigned, refused FROM conflicts").fetchall()
    database.close()
    assert kept == [(Log(5).note(), note)]


def test_422_for_an_empty_log_with_a_root_that_is_not_the_empty_trees(post, caplog):
    log = Log(0)
    note = sign_checkpoint(Checkpoint(log.origin, 0, bytes(32)), log.signer)
    assert post(body(note)).status_code == 422
    assert empty_root() != bytes(32)
    # Nothing was cosigned of which it is another history.
    assert "two different histories" not in caplog.text


@pytest.mark.parametrize(
    ("old", "log", "proof"),
    [
        (0, Log(9), [bytes(32)]),
        (5, Log(9), []),
        (5, Log(9), Log(9).proof(5)[:-1]),
        (5, Log(9), [*Log(9).proof(5), bytes(32)]),
        (5, Log(9), [bytes(32)] * MAX_PROOF_LINES),
        (5, Log(9), Log(9).proof(4)),
        (5, Log(5), [bytes(32)]),
        (5, Log(9, fork=4), Log(9, fork=4).proof(5)),
        (5, Log(9, fork=0), Log(9, fork=0).proof(5)),
        (5, Log(9, fork=4), Log(9).proof(5)),
    ],
)
def test_422_for_a_wrong_proof_and_nothing_has_changed(post, old, log, proof):
    if old:
        post(growth(Log(5), 0))
    assert post(body(log.note(), old, proof)).status_code == 422
    assert post(growth(Log(9), old + 1)).text == f"{old}\n"


def test_a_log_that_was_rolled_back_is_refused_whatever_it_claims(post):
    log = Log(9)
    post(growth(log, 0))
    for old in (0, 4, 5):
        assert post(growth(log, old, 5)).text == "9\n"
    assert post(body(log.note(5), 9)).status_code == 400


def newest(web, origin):
    return web.get(f"/{hashlib.sha256(origin.encode()).hexdigest()}/checkpoint")


def test_whoever_watches_a_log_gets_its_last_checkpoint_cosigned(web, post, witness):
    log = Log(9)
    assert newest(web, log.origin).status_code == 404
    for old, size in ((0, 5), (5, 9)):
        post(growth(log, old, size))
        answer = newest(web, log.origin)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        keys = [log.verifier, Verifier.parse(witness.vkey)]
        checkpoint, signers = open_checkpoint(answer.text, keys)
        assert checkpoint.size == size
        assert [by for by, _ in signers] == keys
    # A refused one isn't shown.
    post(body(Log(9, fork=4).note(), 9))
    assert newest(web, log.origin).text.startswith(log.note().partition("\n\n")[0])


def test_of_what_somebody_has_added_to_a_checkpoint_the_logs_own_is_shown_alone(web, post, witness):
    log, other = Log(3), Log(0, "others.example/log")
    post(body(log.note() + other.signer.sign("else") + log.signer.sign(log.note().partition("\n\n")[0] + "\n")))
    own, cosigned = newest(web, log.origin).text.removeprefix(log.note().partition("\n\n")[0] + "\n\n").splitlines()
    assert (f"{own}\n", cosigned.split(" ")[1]) == (log.note().rpartition("\n\n")[2], witness.name)


@pytest.mark.parametrize(
    "name",
    [
        hashlib.sha256(b"others.example/log").hexdigest(),
        "0" * 64,
        hashlib.sha256(Log(0).origin.encode()).hexdigest().upper(),
        hashlib.sha256(Log(0).origin.encode()).hexdigest()[:-1],
        "mcp-code-bridge%2Flog",
        "..",
    ],
)
def test_404_for_the_checkpoint_of_a_log_that_it_does_not_know(web, post, name):
    post(growth(Log(3), 0))
    answer = web.get(f"/{name}/checkpoint")
    assert answer.status_code == 404
    assert web.post(f"/{name}/checkpoint", content=b"").status_code in {404, 405}


# --- HTTP


def test_it_says_who_it_is(web, post, witness):
    assert web.get("/").json() == {"name": witness.name, "vkey": witness.vkey}
    assert web.get("/add-checkpoint").status_code == 405
    assert web.post("/", content=b"").status_code == 405
    assert web.get("/else").status_code == 404


def test_413_for_a_body_that_is_too_long_whether_it_says_so_or_not(post):
    long = growth(Log(3), 0) + b" " * MAX_BODY_BYTES
    assert post(long).status_code == 413
    assert post(iter([long[:1000], long[1000:]])).status_code == 413


def test_408_for_a_body_that_does_not_come(monkeypatch, web, post):
    monkeypatch.setattr(server, "READ_SECONDS", 0.1)
    with socket.create_connection((web.base_url.host, web.base_url.port)) as connection:
        connection.sendall(b"POST /add-checkpoint HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nold")
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")
    assert post(growth(Log(3), 0)).status_code == 200


def test_a_client_that_leaves_disturbs_nobody(web, post, caplog):
    with socket.create_connection((web.base_url.host, web.base_url.port)) as connection:
        connection.sendall(b"POST /add-checkpoint HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nold")
    assert post(growth(Log(3), 0)).status_code == 200
    assert not caplog.records


# --- races


def test_no_request_comes_between_the_check_and_the_record_of_another(tmp_path):
    # The race of the specification: A, with size 5, is checked; B, with size 9, is all done; A must not take it back.
    log = Log(9)
    answers = {}
    with open_witness(tmp_path, [log.verifier]) as b, open_witness(tmp_path, [log.verifier]) as a:
        other = threading.Thread(target=lambda: answers.update(b=b.add_checkpoint(growth(log, 3))))

        def in_the_middle():
            if not other.ident:
                other.start()
                other.join(0.3)
            return 0

        assert a.add_checkpoint(growth(log, 0, 3)).status == 200
        a._clock = in_the_middle
        answers["a"] = a.add_checkpoint(growth(log, 3, 5))
        other.join()
        assert {answer.status for answer in answers.values()} == {200, 409}
        size = 5 if answers["a"].status == 200 else 9
        assert a.add_checkpoint(growth(log, 0)).body == b"%d\n" % size


ORIGINS = [f"mcp-code-bridge/{number}" for number in range(8)]
RACERS = 4


def race(submit, racer):
    """Show each log with other entries than every other racer does; which of them were cosigned."""
    return [submit(growth(Log(3, origin, fork=None if racer == 0 else racer - 1), 0)) for origin in ORIGINS]


def race_over_http(address, racer):
    with httpx2.Client(trust_env=False) as client:
        return race(lambda content: client.post(f"{address}/add-checkpoint", content=content).status_code, racer)


def race_with_the_file(state_dir, racer):
    with open_witness(state_dir, [Log(0, origin).verifier for origin in ORIGINS]) as witness:
        return race(lambda content: witness.add_checkpoint(content).status, racer)


def test_of_racing_histories_exactly_one_is_cosigned_whether_threads_race_or_processes(web, tmp_path):
    # Four histories that differ: a fork at 0, 1 or 2, and none.
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    spawn = multiprocessing.get_context("spawn")
    with (
        open_witness(one, [Log(0, origin).verifier for origin in ORIGINS]) as witness,
        ProcessPoolExecutor(RACERS, spawn) as processes,
        ThreadPoolExecutor(RACERS) as threads,
    ):
        web.app.app = witness_app(witness)
        of_one = [threads.submit(race_over_http, str(web.base_url), racer) for racer in range(RACERS)]
        of_many = [processes.submit(race_with_the_file, many, racer) for racer in range(RACERS)]
        for racers in (of_one, of_many):
            for statuses in zip(*(racer.result() for racer in racers), strict=True):
                assert sorted(statuses) == [200, *[409] * (RACERS - 1)]


# --- its files


def test_its_files_are_for_its_user_alone_and_it_is_the_same_afterwards(tmp_path):
    with open_witness(tmp_path, []) as first:
        assert first.vkey.startswith("mcp-code-bridge/witness-")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes.pop(witness_head.KEY_FILE) == modes.pop(witness_files.STATE_FILE) == 0o600
    assert set(modes.values()) == {0o600}
    with open_witness(tmp_path, []) as second, open_witness(tmp_path, [], "witness.example/1") as named:
        assert second.vkey == first.vkey
        assert named.name == "witness.example/1"


def _without_state(folder):
    (folder / witness_files.STATE_FILE).unlink()


def _without_key(folder):
    (folder / witness_head.KEY_FILE).unlink()


def _key_for_others(folder):
    (folder / witness_head.KEY_FILE).chmod(0o640)


def _key_damaged(folder):
    (folder / witness_head.KEY_FILE).write_bytes(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")


def _key_a_pipe(folder):
    _without_key(folder)
    os.mkfifo(folder / witness_head.KEY_FILE, 0o600)


def _state_damaged(folder):
    (folder / witness_files.STATE_FILE).write_bytes(b"SQLite format 3\0" + b"x" * 5000)


def _state_a_directory(folder):
    _without_state(folder)
    (folder / witness_files.STATE_FILE).mkdir()


def _state_newer(folder):
    with sqlite3.connect(folder / witness_files.STATE_FILE) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (_without_state, "witness_forgot"),
        (_without_key, "witness_key_missing"),
        (_key_for_others, "witness_key_unsafe"),
        (_key_a_pipe, "witness_key_unsafe"),
        (_key_damaged, "witness_key_unusable"),
        (_state_damaged, "witness_unusable"),
        (_state_a_directory, "witness_unusable"),
        (_state_newer, "witness_newer"),
    ],
)
def test_what_is_wrong_with_its_files_is_said_and_nothing_is_overwritten(tmp_path, damage, code):
    with open_witness(tmp_path, [Log(0).verifier]) as witness:
        witness.add_checkpoint(growth(Log(3), 0))
    damage(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(BridgeError) as caught:
        open_witness(tmp_path, [Log(0).verifier])
    assert caught.value.code == code
    assert {path: path.read_bytes() for path in files} == files


def killed(folder):
    """What a witness that was killed has left, which had cosigned three checkpoints; a copy, made while it was in use."""
    live = folder / "live"
    live.mkdir()
    with open_witness(live, [Log(0).verifier]) as witness:
        for old, new in ((0, 3), (3, 7), (7, 20)):
            assert witness.add_checkpoint(growth(Log(new), old)).status == 200
        return shutil.copytree(live, folder / "left", ignore=shutil.ignore_patterns("*-shm"))


def asked(folder, log):
    """The status that a log of 50 entries gets, which begins where the witness says that it is."""
    with open_witness(folder, [Log(0).verifier]) as witness:
        size = int(witness.add_checkpoint(growth(log, 49)).body)
        return witness.add_checkpoint(growth(log, size)).status


FORK = Log(50, fork=1)
"""Another history under the same key."""


@pytest.mark.parametrize("left", [0, 100, 32 + 4120, -1, "the last commit", "the first"])
def test_a_witness_that_was_killed_cosigns_nothing_where_its_journal_has_lost_something(tmp_path, left):
    folder = killed(tmp_path)
    journal = folder / f"{witness_files.STATE_FILE}-wal"
    data = bytearray(journal.read_bytes())
    if isinstance(left, str):
        data[-2000 if left == "the last commit" else 2000] ^= 1
    journal.write_bytes(data if isinstance(left, str) else data[:left])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(BridgeError) as caught:
        asked(folder, FORK)
    assert caught.value.code in {"witness_behind", "witness_forgot"}
    assert caught.value.hint
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}
    assert kept == before, "what was refused was changed"


@pytest.mark.parametrize("there", ["older", "empty", "row", "index"])
def test_a_witness_cosigns_nothing_by_a_state_that_knows_less_than_it_did(tmp_path, there):
    with open_witness(tmp_path, [Log(0).verifier]) as witness:
        witness.add_checkpoint(growth(Log(3), 0))
    path = tmp_path / witness_files.STATE_FILE
    older = path.read_bytes()
    with open_witness(tmp_path, [Log(0).verifier]) as witness:
        assert witness.add_checkpoint(growth(Log(7), 3)).status == 200
    data = bytearray(path.read_bytes())
    if there == "older":
        data = older
    elif there == "empty":
        data = b""
    elif there == "row":
        # The root: what looks like growth from it is another history.
        data[data.index(base64.b64decode(Log(7).note().split("\n")[2]))] ^= 1
    else:
        with sqlite3.connect(path) as database:
            (page,) = database.execute(
                "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_cosigned_1'"
            ).fetchone()
        database.close()
        # How many entries its page has: none (sqlite.org/fileformat.html, section 1.6).
        data[4096 * (page - 1) + 4] -= 1
    path.write_bytes(data)
    with pytest.raises(BridgeError) as caught:
        asked(tmp_path, FORK)
    code = {"empty": "witness_forgot", "index": "witness_unusable"}.get(there, "witness_behind")
    assert caught.value.code == code


def test_what_a_witness_knew_is_no_longer_asked_of_what_has_begun_as_another(tmp_path):
    folder = killed(tmp_path)
    for name in (witness_head.KEY_FILE, witness_files.STATE_FILE, f"{witness_files.STATE_FILE}-wal"):
        (folder / name).unlink()
    with open_witness(folder, [Log(0).verifier]) as witness:
        assert witness.add_checkpoint(growth(Log(3), 0)).status == 200
    # And it is of that one from here on.
    (folder / witness_files.STATE_FILE).write_bytes(b"")
    with pytest.raises(BridgeError) as caught:
        asked(folder, FORK)
    assert caught.value.code == "witness_forgot"


def test_a_witness_of_before_there_was_a_record_goes_on_and_has_one_then(tmp_path):
    folder = killed(tmp_path)
    (folder / witness_head.HEAD_FILE).unlink()
    assert asked(folder, Log(50)) == 200
    assert (folder / witness_head.HEAD_FILE).stat().st_mode & 0o777 == 0o600


def test_a_record_that_was_changed_is_told_and_one_that_a_power_cut_has_left_counts_for_nothing(tmp_path):
    folder = killed(tmp_path)
    head = folder / witness_head.HEAD_FILE
    data = bytearray(head.read_bytes())
    data[-400] ^= 1
    head.write_bytes(data)
    with pytest.raises(BridgeError) as caught:
        asked(folder, FORK)
    assert caught.value.code == "witness_head_damaged"
    head.write_bytes(bytes(len(data)))
    assert asked(folder, Log(50)) == 200


def test_nothing_is_cosigned_that_can_not_be_taken_down(tmp_path, post, witness, caplog):
    witness._state._head.close()
    (tmp_path / witness_head.HEAD_FILE).unlink()
    (tmp_path / witness_head.HEAD_FILE).mkdir()
    answer = post(growth(Log(3), 0))
    assert (answer.status_code, "\u2014" in answer.text) == (503, False)
    assert "witness.head" in caplog.text
    (tmp_path / witness_head.HEAD_FILE).rmdir()
    assert post(growth(Log(7), 3)).status_code == 200


@pytest.mark.parametrize("statement", ["UPDATE cosigned SET size = 1", "DELETE FROM cosigned"])
def test_its_file_refuses_to_go_back(tmp_path, witness, statement):
    witness.add_checkpoint(growth(Log(3), 0))
    database = sqlite3.connect(tmp_path / witness_files.STATE_FILE)
    with pytest.raises(sqlite3.IntegrityError, match="a witness never"):
        database.execute(statement)
    database.close()


def test_503_and_no_cosignature_where_the_checkpoint_can_not_be_kept(post, tmp_path, witness, caplog):
    log = Log(9)
    post(growth(log, 0, 5))
    database = sqlite3.connect(tmp_path / witness_files.STATE_FILE)
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.close()
    witness._state._connection.execute(f"PRAGMA max_page_count = {pages}")
    # A full disk: the note needs pages of its own.
    large = body(signed(log.note().partition("\n\n")[0] + "\n" + "x" * 20_000 + "\n"), 5, log.proof(5))
    answer = post(large)
    assert answer.status_code == 503
    assert "\u2014" not in answer.text
    assert "witness.sqlite" in caplog.text
    assert post(growth(log, 0)).text == "5\n"
    witness._state._connection.execute("PRAGMA max_page_count = 100000")
    assert post(large).status_code == 200


# --- the command


class Process:
    """`mcp-bridge witness` on a free port."""

    def __init__(self, state_dir, *options, log=None):
        environment = os.environ | {"MCP_BRIDGE_STATE_DIR": str(state_dir)}
        command = [*COMMAND, "--listen", "127.0.0.1:0", "--log", log or Log(0).vkey, *options]
        self.process = subprocess.Popen(command, env=environment, cwd=state_dir, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().removeprefix("listening on ").strip()
        self.vkey = self.process.stdout.readline().removeprefix("key ").strip()

    def post(self, content):
        return httpx2.post(f"{self.address}/add-checkpoint", content=content, trust_env=False)

    def end(self, number):
        self.process.send_signal(number)
        self.process.stdout.close()
        return self.process.wait(30)


def test_a_witness_that_is_killed_remembers_what_it_has_cosigned(tmp_path):
    log = Log(9)
    first = Process(tmp_path, "--name", "witness.example/1")
    assert first.post(growth(log, 0, 5)).status_code == 200
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = Process(tmp_path, "--name", "witness.example/1")
    try:
        assert second.vkey == first.vkey
        assert second.post(growth(log, 0, 4)).text == "5\n"
        assert second.post(growth(Log(9, fork=4), 5)).status_code == 422
        assert second.post(growth(log, 5)).status_code == 200
    finally:
        assert second.end(signal.SIGTERM) == 0


def test_a_signal_that_comes_before_it_serves_ends_it_too(witness):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serve_witness(witness, listening, lambda: signal.raise_signal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_it_ends_well_on_sigint(tmp_path):
    assert Process(tmp_path).end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen", "nowhere", "--log", Log(0).vkey], "--listen: 'nowhere' is not HOST:PORT"),
        (["--listen", "127.0.0.1:99999", "--log", Log(0).vkey], "is not HOST:PORT"),
        (["--listen", "u@127.0.0.1:0", "--log", Log(0).vkey], "is not HOST:PORT"),
        (["--log", Log(0).vkey[:-1]], "--log: This is no key to verify with"),
        (["--log", Log(0).vkey, "--name", "a b"], "--name"),
        ([], "--log"),
    ],
)
def test_a_wrong_option_is_named(monkeypatch, tmp_path, options, says):
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    done = CliRunner().invoke(app, ["witness", *options])
    assert done.exit_code == 2
    assert says in done.stderr
    assert not (tmp_path / "state").exists()


def test_an_address_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        environment = os.environ | {"MCP_BRIDGE_STATE_DIR": str(tmp_path)}
        command = [*COMMAND, "--listen", address, "--log", Log(0).vkey]
        done = subprocess.run(
            command, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert f"cannot_listen: {address} can't be listened on" in done.stderr


# --- with a bridge


@pytest.fixture
def published(desk, tmp_path):
    """A desk that publishes to a file, by a relative path, and to a witness in a process of its own."""
    desk.run("program", "run", "clean", "--context", '{"name": "a"}', code=5)
    key = desk.run("audit", "key").out.strip()
    (tmp_path / "elsewhere").mkdir()
    witness = Process(tmp_path / "elsewhere", log=key)
    desk.configure(
        f"""
        [[ledger.publish]]
        file = "kept.notes"

        [[ledger.publish]]
        witness = "{witness.address}"
        key = "{witness.vkey}"
        """
    )
    desk.kept, desk.witness, desk.path = tmp_path / "kept.notes", witness, desk.state / FILE_NAME
    yield desk
    assert witness.end(signal.SIGTERM) == 0


def states(desk):
    return desk.run("audit", "stats", "--json").json["published"].values()


def test_what_audit_publish_has_published_finds_a_ledger_that_is_put_back(published, tmp_path):
    told = published.run("audit", "publish").out
    size = published.run("audit", "stats", "--json").json["entries"]
    assert told.count(f": ok, {size} entries") == 2
    assert [(state["status"], state["size"], state["conflict"]) for state in states(published)] == [
        ("ok", size, None)
    ] * 2
    # The export has what was cosigned: who knows the witness needs nobody else.
    published.run("audit", "export", tmp_path / "x.jsonl")
    keys = ["--key", published.run("audit", "key").out.strip(), "--key", published.witness.vkey]
    assert published.run("audit", "verify", tmp_path / "x.jsonl", *keys, "--json").json["witnesses"]
    shutil.copy(published.path, tmp_path / "older")
    published.run("program", "run", "clean", "--context", '{"name": "b"}', code=5)
    published.run("audit", "publish")
    told = published.run("audit", "verify", "--checkpoint", published.kept).out
    # Those of `audit publish`, and what the run has published when it began.
    kept = published.kept.read_text().count("\n\n\N{EM DASH} ")
    assert f"agrees with {kept} checkpoints that were stored elsewhere" in told
    whole = published.kept.read_bytes()

    for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", "ledger.head"):
        (published.state / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "older", published.path)
    published.says("audit", "verify", "--checkpoint", published.kept, code=1, words=["rolled_back"])
    assert published.run("audit", "publish", code=1).out.count(": conflict, ") == 2
    shown = published.run("audit", "stats").out
    assert shown.count("ALARM") == shown.count("rolled back") == 2
    # Another history of as many entries and more, in the place of the one that was seen.
    for name in ("c", "d"):
        published.run("program", "run", "clean", "--context", f'{{"name": "{name}"}}', code=5)
    published.says("audit", "verify", "--checkpoint", published.kept, code=1, words=["tampered"])
    assert published.run("audit", "publish", code=1).out.count("the log was rewritten") == 2
    assert published.kept.read_bytes() == whole


def test_an_alarm_is_shown_until_a_person_takes_it_away(published, tmp_path):
    shutil.copytree(published.state, tmp_path / "older")
    published.run("program", "run", "clean", "--context", '{"name": "b"}', code=5)
    published.run("audit", "publish")
    genuine = published.kept.read_text()
    # The same log, gone on another way under the same key.
    published.state.rename(tmp_path / "true")
    (tmp_path / "older").rename(published.state)
    published.run("program", "run", "clean", "--context", '{"name": "c"}', code=5)
    fork = published.run("audit", "checkpoint").out
    shutil.rmtree(published.state)
    (tmp_path / "true").rename(published.state)
    published.kept.write_text(genuine + fork)

    def alarms():
        return published.run("audit", "stats").out.count("ALARM")

    published.run("audit", "publish", code=1)
    assert alarms() == 1
    # While it is so it is found again, whoever has taken it away.
    published.run("audit", "publish", "--acknowledge", code=1)
    assert alarms() == 1
    published.kept.write_text(genuine)
    published.run("audit", "publish")
    assert alarms() == 1
    published.run("audit", "publish", "--acknowledge")
    assert alarms() == 0
    published.run("audit", "publish")
    assert alarms() == 0


# --- what a witness has cosigned goes with the log, and is asked for


def test_after_a_loss_was_accepted_the_targets_that_refuse_are_named_and_new_ones_take_over(published, tmp_path):
    ledger_copies.backup(published.path, tmp_path / "older", None, None)
    work(published, "b")
    published.run("audit", "publish")
    put_back(published, tmp_path / "older")
    told = published.run("audit", "accept-loss").out
    refusing = [f"file {published.kept}", f"witness {published.witness.vkey}"]
    assert f"Its checkpoints went to: {', '.join(refusing)}. " in told
    assert "name a new file or another witness" in told
    assert published.run("audit", "publish", code=1).out.count(": conflict, ") == 2
    published.says("audit", "verify", "--key", published.run("audit", "key").out.strip(), code=1, words=["an alarm"])
    alarms = [state["error"]["hint"] for state in states(published)]
    assert all("accepted a loss" in hint and "a new file or another witness" in hint for hint in alarms)

    published.configure('[[ledger.publish]]\nfile = "anew.notes"\n')
    published.run("audit", "publish", "--acknowledge")
    published.run("audit", "verify")
    shown = published.run("audit", "stats")
    assert shown.out.count(", conflict (no longer configured)\n") == 2
    assert shown.out.count(", ok\n") == 1
    kept = published.run("audit", "stats", "--json").json["published"]
    assert [name for name, state in kept.items() if state["configured"]] == [f"file {tmp_path / 'anew.notes'}"]


def work(desk, name):
    """One more execution, of which nothing is published: a bridge does so when it ends."""
    written = desk.config.read_text()
    desk.configure("")
    desk.run("program", "run", "clean", "--context", json.dumps({"name": name}), code=5)
    desk.config.write_text(written)


def small_says(*arguments):
    done = subprocess.run([sys.executable, SMALL, *map(str, arguments)], check=False, capture_output=True, text=True)
    return done.returncode, done.stdout


def put_back(desk, folder):
    """The whole ledger, as it was when the folder's copy was made; its journal is in the copy."""
    for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
        (desk.state / name).unlink(missing_ok=True)
    shutil.copy(folder, desk.path)


def configure(desk, *which):
    """Only these of the targets."""
    file = '[[ledger.publish]]\nfile = "kept.notes"\n'
    witness = f'[[ledger.publish]]\nwitness = "{desk.witness.address}"\nkey = "{desk.witness.vkey}"\n'
    desk.configure("".join({"file": file, "witness": witness}[each] for each in which))


def test_what_a_witness_has_cosigned_leaves_with_every_later_export(published, tmp_path):
    key, witness_key = published.run("audit", "key").out.strip(), published.witness.vkey
    keys = ["--key", key, "--key", witness_key]
    sizes = []
    for name in "abc":
        published.run("audit", "publish")
        sizes.append(published.run("audit", "stats", "--json").json["entries"])
        work(published, name)
    size = published.run("audit", "stats", "--json").json["entries"]
    export = tmp_path / "x.jsonl"
    published.run("audit", "export", export)
    for file in ((export,), ()):
        facts = published.run("audit", "verify", *file, *keys, "--json").json
        (witness,) = facts["witnesses"]
        assert (witness["key"], witness["size"], facts["size"], facts["checkpoints"]) == (
            witness_key,
            sizes[-1],
            size,
            4,
        )
        assert 1_700_000_000 < witness["time"] < 2**40
        told = published.run("audit", "verify", *file, *keys).out
        assert f"cosigned by {witness_key.partition('+')[0]}: the first {sizes[-1]} of {size} entries, 20" in told
        assert "not checked against a checkpoint" not in told
    code, said = small_says(export, *keys)
    assert code == 0
    assert f"; {witness_key.partition('+')[0]} cosigned {sizes[-1]} of them, 20" in said
    # Nothing of it is lost where a checkpoint is changed: all of them are held against the entries.
    lines = export.read_bytes().splitlines(keepends=True)
    kept = [at for at, line in enumerate(lines) if line.startswith(b'{"checkpoint"')]
    assert len(kept) == 4
    lines[kept[0]] = lines[kept[0]].replace(b"\\n%d\\n" % sizes[0], b"\\n%d\\n" % (sizes[0] + 1))
    export.write_bytes(b"".join(lines))
    published.says("audit", "verify", export, *keys, code=1, words=["bad_signature"])
    assert small_says(export, *keys)[0] == 1


def test_an_entry_is_proven_by_a_checkpoint_that_was_cosigned(published, tmp_path):
    key, witness_key = published.run("audit", "key").out.strip(), published.witness.vkey
    published.run("audit", "publish")
    size = published.run("audit", "stats", "--json").json["entries"]
    work(published, "b")
    export, proof = tmp_path / "x.jsonl", tmp_path / "proof"
    published.run("audit", "export", export)
    for words in (("1",), ("1", export), ("1", export, "--key", key, "--key", witness_key)):
        published.run("audit", "prove", *words, "--no-payload", "--out", proof)
        facts = published.run("audit", "verify", proof, "--key", key, "--key", witness_key, "--json").json
        assert [(row["key"], row["size"]) for row in facts["witnesses"]] == [(witness_key, size)]
        assert (
            f"; {witness_key.partition('+')[0]} cosigned {size} of them"
            in small_says(proof, "--key", key, "--key", witness_key)[1]
        )
        assert "withheld, or is erased" in published.run("audit", "verify", proof, "--key", key).out
        proof.unlink()
    # What came after it is in no checkpoint that was.
    published.run("audit", "prove", str(size), "--out", proof)
    told = published.run("audit", "verify", proof, "--key", key, "--key", witness_key).out
    assert f"cosigned nothing of this: {witness_key.partition('+')[0]}" in told


def test_a_witness_s_key_alone_is_refused_in_words_about_keys(published, tmp_path):
    published.run("audit", "publish")
    export, proof = tmp_path / "x.jsonl", tmp_path / "proof"
    published.run("audit", "export", export)
    published.run("audit", "prove", "1", "--out", proof)
    for file in ((export,), (proof,), ()):
        told = published.says(
            "audit",
            "verify",
            *file,
            "--key",
            published.witness.vkey,
            code=1,
            words=["untrusted_key", "No key of the log"],
        )
        assert "audit key" in told.err
        assert "Line" not in told.err
    code, said = small_says(export, "--key", published.witness.vkey)
    assert (code, "no trusted key of the log itself" in said) == (1, True)
    # What is wrong with the file is said first.
    export.write_bytes(export.read_bytes().replace(b'\\"kind\\":\\"intent', b'\\"kind\\":\\"denial', 1))
    published.says("audit", "verify", export, "--key", published.witness.vkey, code=1, words=["tampered"])


@pytest.mark.parametrize("which", [("witness",), ("file",), ("file", "witness")])
def test_audit_verify_finds_a_ledger_that_is_put_back_to_an_earlier_head_that_was_cosigned(published, tmp_path, which):
    configure(published, *which)
    published.run("audit", "publish")
    shutil.copy(published.path, tmp_path / "older")
    work(published, "b")
    published.run("audit", "publish")
    assert published.run("audit", "verify").out.count("agrees with the ") == len(which)
    put_back(published, tmp_path / "older")
    # Who puts it back does so with what lies beside it: else that is enough to know.
    published.says("audit", "verify", code=1, words=["ledger_behind"])
    published.path.with_suffix(".head").unlink()
    published.says("audit", "verify", code=1, words=["publish_conflict", "rolled back"])
    refused = published.run("audit", "verify", "--json", code=1).json
    assert (refused["status"], refused["error"]["code"]) == ("refused", "publish_conflict")
    # With the witness's key named, too.
    keys = ["--key", published.run("audit", "key").out.strip(), "--key", published.witness.vkey]
    published.says("audit", "verify", *keys, code=1, words=["publish_conflict"])
    # By itself the file is whole, and it is said that nobody was asked.
    told = published.run("audit", "verify", "--offline").out
    assert "verified: " in told
    assert "none of [[ledger.publish]] was asked" in told
    # It goes on another way, to as many entries and more.
    work(published, "c")
    work(published, "d")
    published.says("audit", "verify", code=1, words=["publish_conflict", "rewritten"])


def test_audit_verify_changes_nothing_and_alarms_nobody_while_a_bridge_works(published, tmp_path):
    published.run("audit", "publish")
    before = published.kept.read_bytes()
    work(published, "b")
    for _ in range(2):
        told = published.run("audit", "verify", "--json").json
        assert [row["status"] for row in told["targets"]] == ["agrees", "agrees"]
        assert {row["size"] for row in told["targets"]} < set(range(told["size"]))
    assert published.kept.read_bytes() == before
    # What another process publishes meanwhile is in the file by then.
    assert not any(state["conflict"] for state in states(published))


def test_audit_verify_says_nothing_of_being_whole_under_an_alarm(published, tmp_path):
    published.run("audit", "publish")
    genuine = published.kept.read_text()
    size = published.run("audit", "stats", "--json").json["entries"]
    origin = published.run("audit", "stats", "--json").json["origin"]
    shutil.copytree(published.state, tmp_path / "older")
    work(published, "b")
    fork = published.run("audit", "checkpoint").out
    shutil.rmtree(published.state)
    (tmp_path / "older").rename(published.state)
    work(published, "c")
    published.kept.write_text(f"{genuine}\n{fork}")
    published.says("audit", "verify", code=1, words=["publish_conflict", "rewritten"])
    published.run("audit", "publish", code=1)
    published.kept.write_text(genuine)
    published.run("audit", "publish")
    for words in ((), ("--offline",), ("--key", published.run("audit", "key").out.strip())):
        told = published.says(
            "audit", "verify", *words, code=1, words=["publish_conflict", "There is an alarm of 20", "--acknowledge"]
        )
        assert "verified" not in told.out
    # A copy has it, too, and can be made; an export has none.
    ledger_copies.backup(published.path, tmp_path / "copy", None, None)
    published.says("audit", "verify", tmp_path / "copy", code=1, words=["publish_conflict"])
    published.run("audit", "export", tmp_path / "x.jsonl")
    published.run("audit", "verify", tmp_path / "x.jsonl")
    assert size
    assert origin
    # It can be taken away where nothing is published any more.
    published.configure("")
    published.says("audit", "publish", code=2, words=["bad_argument"])
    assert "taken away" in published.run("audit", "publish", "--acknowledge").out
    published.run("audit", "verify")


def test_who_cannot_be_asked_is_told_and_holds_nothing_up(published, tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        nobody.listen()
        # Nobody accepts: the connection stands, and no answer comes.
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        published.configure(
            f"""
            [[ledger.publish]]
            witness = "{address}"
            key = "{published.witness.vkey}"
            timeout = 0.5

            [[ledger.publish]]
            url = "{address}/in"

            [[ledger.publish]]
            file = "nowhere/kept.notes"

            [[ledger.publish]]
            file = "begins-with-the-next-run.notes"
            """
        )
        told = published.run("audit", "verify").out
        assert told.startswith("verified: ")
        assert told.count("NOT compared with the ") == 4
        assert "it has not answered in 0.5 s" in told
        assert "takes notes and shows none" in told
        assert "there is no folder" in told
        assert "next-run.notes: it holds no checkpoint of this log yet" in told
        assert "not checked against a checkpoint stored elsewhere" in told
        facts = published.run("audit", "verify", "--json").json
        assert [row["status"] for row in facts["targets"]] == ["unasked", "unasked", "unasked", "empty"]
        offline = published.run("audit", "verify", "--offline", "--json").json
        assert (offline["targets"], offline["offline"]) == ([], True)


def test_a_file_that_has_lost_what_it_held_is_told(published):
    configure(published, "file")
    published.run("audit", "publish")
    published.kept.unlink()
    assert "NOT compared with the file " in published.run("audit", "verify").out
    published.kept.symlink_to(published.folder / "elsewhere")
    assert "symbolic link" in published.run("audit", "verify").out


def test_a_checkpoint_is_a_signed_note_to_the_byte(published):
    """Others take a note with a line too many for none."""
    told = published.run("audit", "checkpoint").out
    assert told == published.run("audit", "checkpoint", "--json").json["checkpoint"]
    assert told.endswith("=\n") or told[-2].isalnum() or told[-2] in "+/"
    assert not told.endswith("\n\n")
    published.run("audit", "publish")
    work(published, "b")
    published.run("audit", "publish")
    content = published.kept.read_text()
    assert not content.endswith("\n\n")
    assert "\n\n\n" not in content
    assert content.count("\n\n") == 3, "two notes, each with the empty line of its own, and one between"
