"""Checkpoints in files, at addresses and with witnesses: what is taken, what is refused, what is an alarm."""

import asyncio
import fcntl
import gzip
import hashlib
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest
from bridge_fixtures import until
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from published_log import Log, Replaceable, serving
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.ledger.admin.key_rotation import rotate_key
from mcp_bridge.ledger.audit import file_verification
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.proofs import note_files
from mcp_bridge.ledger.proofs.note_files import notes_in
from mcp_bridge.ledger.proofs.notes import Checkpoint, open_checkpoint, sign_checkpoint
from mcp_bridge.ledger.proofs.signing import COSIGNATURE, Signer, Verifier
from mcp_bridge.ledger.publish import checkpoints_seen as asking
from mcp_bridge.ledger.publish import publish_loop, target_requests, to_file
from mcp_bridge.ledger.publish.checkpoints_seen import check_targets
from mcp_bridge.ledger.publish.open_publisher import open_publisher as publishing_bridge
from mcp_bridge.ledger.publish.protocol import Published, TargetState
from mcp_bridge.ledger.publish.publish_loop import Publisher
from mcp_bridge.ledger.publish.target_state import PublishedLog, acknowledge, read_states
from mcp_bridge.ledger.publish.targets import PublishingConfig, Target
from mcp_bridge.ledger.publish.to_target import publish
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.witness.witness import open_witness
from mcp_bridge.server.witness_http import witness_app
from mcp_bridge.settings import Settings

WITNESS_KEY = Ed25519PrivateKey.from_private_bytes(b"w" * 32)
COSIGNER = Signer("witness.example/1", WITNESS_KEY, COSIGNATURE)
SEEN = 1_790_000_000
"""When it was, in seconds since 1970."""
YEAR = 31_557_600


async def refused(target, log, note=None):
    """The error that publishing ends with."""
    with pytest.raises(BridgeError) as caught:
        await publish(target, note or log.note(), log)
    assert str(caught.value)
    return caught.value


@pytest.fixture
def file(tmp_path):
    return Target(file=tmp_path / "storage.notes")


@pytest.fixture
async def database(tmp_path):
    async with Database(tmp_path / "ledger.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def web():
    replaceable = Replaceable()
    with serving(replaceable) as replaceable.address:
        yield replaceable


@pytest.fixture
def answers(web):
    """Has the server give these answers, one after the other and the last again; the requests that it got."""

    def give(*responses):
        requests = []
        left = list(responses)

        async def app(scope, receive, send):
            body = b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
            requests.append((scope["method"], scope["path"], dict(scope["headers"]), body))
            await (left.pop(0) if len(left) > 1 else left[0])(scope, receive, send)

        web.app = app
        return requests

    return give


# --- a file


async def test_a_file_gets_every_checkpoint_and_keeps_those_before(file):
    log = Log(0)
    notes = []
    for count in (1, 1, 5, 30):
        log.grow(count)
        notes.append(log.note())
        assert await publish(file, log.note(), log) == Published(file.id, log.size, log.note())
        # The last one, too, is a signed note as it stands there: nothing follows it.
        assert file.file.read_text() == "\n".join(notes)
    assert notes_in(file.file.read_text()) == notes


async def test_a_checkpoint_that_the_file_has_is_not_added_again_nor_is_an_older_one(file):
    log = Log(9)
    await publish(file, log.note(), log)
    before = file.file.read_bytes()
    assert (await publish(file, log.note(), log)).size == 9
    assert (await publish(file, log.note(5), log)).size == 9
    assert file.file.read_bytes() == before


async def test_a_file_that_somebody_began_with_one_checkpoint_goes_on(file):
    file.file.write_text(Log(3).note())
    await publish(file, Log(9).note(), Log(9))
    assert notes_in(file.file.read_text()) == [Log(3).note(), Log(9).note()]


async def test_what_a_crash_has_left_of_a_note_is_passed_over_wherever_it_was_cut(file):
    log = Log(9)
    whole = f"{log.note(3)}\n".encode()
    cut = f"{log.note(5)}\n".encode()
    for length in {*range(0, len(cut), 7), *range(len(cut) - 5, len(cut) + 1), cut.index(b"\n\n") + 1}:
        file.file.write_bytes(whole + cut[:length])
        await publish(file, log.note(), log)
        content = file.file.read_bytes()
        assert content.startswith(whole + cut[:length])
        notes = notes_in(content.decode(errors="replace"))
        # And `audit verify --checkpoint` finds nothing wrong with it.
        sizes = [open_checkpoint(note, [log.verifier])[0].size for note in notes]
        assert sizes == ([3, 5, 9] if length >= len(cut) - 2 else [3, 9])
    file.file.write_bytes(b"")
    for length in range(0, len(whole), 7):
        file.file.write_bytes(whole[:length])
        await publish(file, log.note(), log)
        assert notes_in(file.file.read_text(errors="replace"))[-1] == log.note()


@pytest.mark.parametrize("size", [5, 9, 20])
async def test_a_file_finds_that_a_holder_of_the_key_has_rewritten_the_log(file, size):
    await publish(file, Log(5).note(), Log(5))
    before = file.file.read_bytes()
    error = await refused(file, Log(size, fork=4))
    assert (error.code, error.details["size"]) == ("publish_conflict", 5)
    assert "rewritten" in error.message
    assert file.file.read_bytes() == before


@pytest.mark.parametrize("known", [0, 3, 5, 9])
async def test_a_file_finds_that_the_log_was_rolled_back(file, known):
    await publish(file, Log(9).note(), Log(9))
    before = file.file.read_bytes()
    error = await refused(file, Log(5, lasts={file.id: known}))
    assert error.code == "publish_conflict"
    assert "rolled back" in error.message
    assert file.file.read_bytes() == before


LINE_OF_OTHERS = Log(0, "others.example/log").signer.sign("else")


def unsigned(note):
    """A note as somebody writes it who has no key: with a signature line of the log's, and not the log's signature."""
    line = Log(0).signer.sign("something else")
    return f"{note.partition(chr(10) * 2)[0]}\n\n{line}"


@pytest.mark.parametrize(
    "added",
    [
        [Log(5).note()],
        [Log(5).note()] * 5000,
        [unsigned(Log(5).note())],
        [unsigned(Log(20, fork=0).note())],
        [Log(3, "mcp-code-bridge/other").note()],
        ["x" * 2_000_000],
        ["x\n" * 1_000_000],
        ["mcp-code-bridge/log\n5"],
        ["\n" * 2_000_000],
        ["\0" * 5000],
        [LINE_OF_OTHERS[:-1]],
        [LINE_OF_OTHERS],
        # Right behind the last signature, where there is no empty line.
        ["\u2014"],
        ["\u2014 x"],
        ["\u2014 x", "\u2014 y z"],
        ["\u2014 " + "x" * 2_000_000],
        ["\u2014 a " + "A" * 2_000_000],
        ["\u2014 a AAAAAAA="] * 100,
        ["\u2014 a AAAAAAA="] * 100_000,
        [unsigned(Log(10).note()).rpartition("\n\n")[2][:-1]] * 3,
    ],
)
@pytest.mark.parametrize("known", [0, 5])
async def test_who_can_only_add_to_a_file_hides_no_roll_back_and_raises_no_alarm(file, caplog, added, known):
    log = Log(10)
    for size in (5, 10):
        await publish(file, log.note(size), log)
    with file.file.open("a") as stream:
        stream.writelines(f"{each}\n" for each in added)
    before = file.file.read_bytes()
    error = await refused(file, Log(5, lasts={file.id: known}))
    assert (error.code, error.details["size"]) == ("publish_conflict", 10)
    assert "rolled back" in error.message
    error = await refused(file, Log(12, fork=7, lasts={file.id: known}))
    assert (error.code, error.details["size"]) == ("publish_conflict", 10)
    assert "rewritten" in error.message
    assert file.file.read_bytes() == before
    # The true log goes on.
    caplog.clear()
    assert (await publish(file, Log(12).note(), Log(12))).size == 12
    assert notes_in(file.file.read_text())[-1] == Log(12).note()
    assert ("none of its keys" in caplog.text) == (added == [unsigned(Log(20, fork=0).note())])


async def test_every_checkpoint_of_a_file_is_held_against_the_log_and_not_the_last_alone(file):
    # A holder of the key has added one that suits the history that was written anew.
    fork = Log(12, fork=4)
    file.file.write_text("".join(f"{note}\n" for note in (Log(3).note(), Log(5).note(), fork.note(10))))
    error = await refused(file, fork)
    assert (error.code, error.details["size"]) == ("publish_conflict", 5)


async def test_a_signature_that_is_added_to_a_note_whose_end_is_missing_does_not_spoil_it(file):
    file.file.write_text(Log(10).note() + Log(0).signer.sign("something else"))
    assert (await refused(file, Log(5))).code == "publish_conflict"


async def test_a_file_that_another_key_has_begun_is_an_alarm_though_the_log_knows_no_such_key(file):
    # Whoever writes the whole log anew names a key of his own in it.
    await publish(file, Log(5).note(), Log(5))
    rewritten = Log(9, fork=0, key=WITNESS_KEY)
    with file.file.open("a") as stream:
        stream.write(f"{rewritten.note(6)}\n")
    error = await refused(file, rewritten)
    assert error.code == "publish_conflict"
    assert "by a key that this log doesn't name" in error.message


async def test_a_roll_back_to_before_the_key_was_rotated_is_found(tmp_path, file):
    folder = tmp_path / "state"
    folder.mkdir()
    config = LedgerConfig(publish=(file,))

    async def published(work):
        async with Database(folder / "ledger.sqlite") as database:
            await work(database)
            return (await (await publishing_bridge(database, config, Path("/"))).publish_now())[file.id]

    async def grow(database):
        database.record(Entry("clock", LEDGER, {}))

    assert (await published(grow)).status == "ok"
    shutil.copytree(folder, tmp_path / "older")
    await published(rotate_key)
    # The log that is put back knows none of the later keys.
    for _ in range(2):
        state = await published(grow)
        assert state.status == "ok"
    found = file_verification.verify_file(folder / "ledger.sqlite", None, notes_in(file.file.read_text()))
    assert found.log.compared == len(notes_in(file.file.read_text())) == 5
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "older", folder)
    state = await published(grow)
    assert (state.status, state.conflict["size"]) == ("conflict", 3)


async def test_what_has_been_held_against_the_log_is_not_read_again_unless_the_file_is_another(file):
    asked = []

    class Asked(Log):
        async def roots(self, sizes):
            asked.append(list(sizes))
            return await super().roots(sizes)

    log, reads = Asked(60), {}
    file.file.write_text("".join(f"{log.note(size)}\n" for size in range(1, 41)))
    await publish(file, log.note(50), log, reads)
    assert asked == [list(range(1, 41))]
    asked.clear()
    for size in (51, 52):
        await publish(file, log.note(size), log, reads)
    assert asked == [[40], [50], [50], [51]]
    # A log that has another root than was seen is found all the same.
    fork = Log(60, fork=45)
    with pytest.raises(BridgeError, match="rewritten"):
        await publish(file, fork.note(), fork, reads)
    content = file.file.read_text().replace(log.note(30), Log(30, fork=20).note())
    file.file.unlink()
    file.file.write_text(content)
    with pytest.raises(BridgeError, match="first 30 entries"):
        await publish(file, log.note(), log, reads)
    file.file.write_text("".join(f"{log.note(size)}\n" for size in range(1, 60)))
    assert (await publish(file, log.note(), log, reads)).size == 60


async def test_a_file_for_which_there_is_no_time_is_read_on_at_the_next_attempt(monkeypatch, file):
    monkeypatch.setattr(to_file, "_READING_SHARE", 0)
    monkeypatch.setattr(to_file, "CHUNK_BYTES", 1000)
    log, reads = Log(41), {}
    file.file.write_text("".join(f"{log.note(size)}\n" for size in range(1, 41)))
    size = file.file.stat().st_size
    for number in range(1, size // 1000 + 2):
        with pytest.raises(BridgeError, match=f"{min(1000 * number, size)} of its {size} bytes") as caught:
            await publish(file, log.note(), log, reads)
        assert caught.value.code == "publish_file_unusable"
    assert (await publish(file, log.note(), log, reads)).size == 41


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100, 1000])
def test_the_notes_of_a_file_are_the_same_in_whatever_parts_it_is_read(step):
    first, second = Log(3).note(), Log(5).note()
    for text in (
        first + second + first,
        f"{first}\n{second}\n",
        f"\n\n{first}\n\n\n{second}\n\n",
        f"{first[:40]}\n\n{second}\n{first[:-9]}\n\n{second[:-1]}",
        first + LINE_OF_OTHERS + second + LINE_OF_OTHERS + LINE_OF_OTHERS,
        f"\u2014 x\n\n\u2014\n\u2014y\n{first}\n{LINE_OF_OTHERS}\n{second}",
    ):
        data = text.encode()
        carried, found = note_files.CarriedOver(), []
        for at in range(0, len(data), step):
            notes, carried = carried.and_then(data[at : at + step])
            found += notes
        found += carried.last()
        notes, carried = note_files.CarriedOver().and_then(data)
        assert found == [*notes, *carried.last()]
        assert len(found) >= 1 + ("\n\n\n" in text)


@pytest.mark.parametrize("there", [True, False])
async def test_a_link_is_not_followed_and_nothing_is_made_behind_it(tmp_path, file, there):
    behind = tmp_path / "behind"
    if there:
        behind.touch()
    file.file.symlink_to(behind)
    error = await refused(file, Log(3))
    assert error.code == "publish_file_unusable"
    assert "symbolic link" in error.message
    assert (behind.read_bytes() if behind.exists() else None) == (b"" if there else None)


async def test_a_log_that_another_process_has_grown_meanwhile_is_no_conflict(file):
    log = Log(9)
    await publish(file, log.note(), log)
    log.lasts[file.id] = 9
    assert (await publish(file, log.note(5), log)).size == 9


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"somebody's notes\n", "publish_file_foreign"),
        (b"\0" * 100, "publish_file_foreign"),
        (b"\xff\xfe", "publish_file_foreign"),
        (Log(3).note().replace("\n3\n", "\n03\n").encode(), "publish_file_foreign"),
        (Log(3, "mcp-code-bridge/other").note().encode(), "publish_file_foreign"),
        (b"mcp-code-bridge/log" + b"x" * to_file.CHUNK_BYTES, "publish_file_foreign"),
    ],
)
async def test_a_file_of_something_else_is_left_as_it_is(file, content, code):
    file.file.write_bytes(content)
    assert (await refused(file, Log(9))).code == code
    assert file.file.read_bytes() == content


@pytest.mark.parametrize("left", [None, b"", f"{Log(3).note()}\n".encode()])
async def test_a_file_that_has_lost_what_it_had_taken_is_not_begun_anew(file, left):
    # As when the storage isn't mounted.
    if left is not None:
        file.file.write_bytes(left)
    assert (await refused(file, Log(9, lasts={file.id: 5}))).code == "publish_file_lost"
    assert (file.file.read_bytes() if file.file.exists() else None) == left


async def test_a_file_that_can_not_be_written_is_an_error_and_no_alarm(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing/notes", "folder", "pipe"):
        assert (await refused(Target(file=tmp_path / name), Log(3))).code == "publish_file_unusable"


async def test_a_full_storage_is_an_error(file):
    file = Target(file=Path("/dev/full"))
    assert (await refused(file, Log(3))).code == "publish_file_unusable"


async def test_a_file_that_another_process_keeps_locked_is_an_error(monkeypatch, file):
    monkeypatch.setattr(to_file, "LOCK_SECONDS", 0.05)
    file.file.touch()
    with file.file.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "locked" in (await refused(file, Log(3))).message
    await publish(file, Log(3).note(), Log(3))


async def test_a_storage_that_hangs_is_given_up(monkeypatch, file):
    gone = threading.Event()
    monkeypatch.setattr(to_file, "LOCK_SECONDS", 0)
    monkeypatch.setattr(to_file.os, "fsync", lambda _: gone.wait(30))
    # The one that was given up has the file locked, which is no other process's doing.
    for _ in range(2):
        error = await refused(file.model_copy(update={"timeout": 0.1}), Log(3))
        assert error.code == "publish_file_unusable"
        assert "0.1 s" in error.message
    gone.set()


@pytest.mark.parametrize("work", ["publish_to_file(target, Log(3).note(), Log(3))", "look_at_file(target, Log(3))"])
async def test_a_storage_that_hangs_does_not_keep_a_process_from_its_end(file, work):
    script = f"""
import os, sys, threading
sys.path.insert(0, {str(Path(__file__).parents[2] / "support")!r})
import anyio
from pathlib import Path
from published_log import Log
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.publish import to_file as publishing_file
from mcp_bridge.ledger.publish.to_file import look_at_file, publish_to_file
from mcp_bridge.ledger.publish.targets import Target

target = Target(file=Path({str(file.file)!r}), timeout=0.1)

async def ask():
    try:
        await {work}
    except BridgeError as exc:
        print(exc.code, flush=True)

publishing_file._held = lambda *_: threading.Event().wait()
anyio.run(ask)
"""
    file.file.touch()
    with anyio.fail_after(60):
        ended = await anyio.run_process([sys.executable, "-c", script], check=False)
    assert (ended.returncode, ended.stdout) == (0, b"publish_file_unusable\n"), ended.stderr


async def test_bridges_that_publish_one_log_at_once_leave_ascending_checkpoints(file):
    log = Log(40)
    async with anyio.create_task_group() as tasks:
        for size in range(40, 0, -3):
            tasks.start_soon(publish, file, log.note(size), log)
    notes = notes_in(file.file.read_text())
    sizes = [open_checkpoint(note, [log.verifier])[0].size for note in notes]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 40


# --- an address


async def test_an_address_gets_the_note_as_text(web, answers):
    requests = answers(Response(status_code=204))
    target = Target(url=f"{web.address}/notes")
    assert (await publish(target, Log(3).note(), Log(3))).size == 3
    ((method, path, headers, body),) = requests
    assert (method, path, body.decode()) == ("POST", "/notes", Log(3).note())
    assert headers[b"content-type"] == b"text/plain; charset=utf-8"


async def hanging(scope, receive, send):
    """A server that begins to answer, and goes no further until its client has gone."""
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"x", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


BAD_ANSWERS = [
    (RedirectResponse("/else", 301), "publish_refused"),
    (RedirectResponse("http://127.0.0.1:1/", 302), "publish_refused"),
    (RedirectResponse("/else", 307), "publish_refused"),
    (RedirectResponse("/else", 308), "publish_refused"),
    (Response(status_code=400), "publish_refused"),
    (Response(status_code=403), "publish_refused"),
    (Response(status_code=404), "publish_refused"),
    (Response(status_code=429), "publish_unreachable"),
    (Response(status_code=500), "publish_unreachable"),
    (Response(status_code=503), "publish_unreachable"),
    (Response(b"x" * 10_000_000), "publish_bad_answer"),
    (hanging, "publish_unreachable"),
]


@pytest.mark.parametrize(("answer", "code"), BAD_ANSWERS)
@pytest.mark.parametrize("kind", ["url", "witness"])
async def test_a_server_that_does_not_take_the_checkpoint_is_an_error_and_never_an_alarm(
    web, answers, kind, answer, code
):
    requests = answers(answer)
    key = {"key": COSIGNER.vkey} if kind == "witness" else {}
    error = await refused(Target(**{kind: web.address}, timeout=0.5 if answer is hanging else 30, **key), Log(3))
    assert error.code == code
    assert len(requests) == 1


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    ],
)
@pytest.mark.parametrize("kind", ["url", "witness"])
async def test_what_is_no_http_is_an_error(kind, said):
    async def answer(reader, writer):
        await reader.read(100)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    key = {"key": COSIGNER.vkey} if kind == "witness" else {}
    async with server:
        assert (await refused(Target(**{kind: address}, **key), Log(3))).code == "publish_unreachable"
    error = await refused(Target(**{kind: address}, **key), Log(3))
    assert error.code == "publish_unreachable"
    assert "retries automatically" in error.hint


# --- a witness


@pytest.fixture
def witness(tmp_path):
    with open_witness(tmp_path, [Log(0).verifier]) as opened:
        yield opened


@pytest.fixture
def target(web, witness):
    web.app = witness_app(witness)
    return Target(witness=web.address, key=witness.vkey)


@pytest.mark.parametrize("remembered", [True, False], ids=["what it has taken is known", "it must be asked for"])
async def test_a_witness_cosigns_a_log_that_grows(target, witness, remembered):
    log = Log(0)
    for count in (1, 6, 0):
        log.grow(count)
        published = await publish(target, log.note(), log)
        (line,) = published.cosignatures
        assert (published.size, published.note) == (log.size, log.note() + line)
        checkpoint, signers = open_checkpoint(published.note, [log.verifier, Verifier.parse(witness.vkey)])
        assert checkpoint.size == log.size
        assert [signer.vkey for signer, _ in signers] == [log.vkey, witness.vkey]
        if remembered:
            log.lasts[target.id] = log.size


@pytest.mark.parametrize("known", [0, 5])
@pytest.mark.parametrize("size", [5, 9])
async def test_a_witness_finds_that_a_holder_of_the_key_has_rewritten_the_log(target, size, known):
    await publish(target, Log(5).note(), Log(5))
    error = await refused(target, Log(size, fork=4, lasts={target.id: known}))
    assert (error.code, error.details["size"]) == ("publish_conflict", 5)


@pytest.mark.parametrize("known", [0, 5, 9])
async def test_a_witness_finds_that_the_log_was_rolled_back(target, known):
    await publish(target, Log(9).note(), Log(9))
    error = await refused(target, Log(5, lasts={target.id: known}))
    assert error.code == "publish_conflict"
    assert "rolled back" in error.message


async def test_a_witness_that_has_seen_a_newer_checkpoint_of_another_process_is_no_conflict(target):
    log = Log(9)
    log.cosigned = [(await publish(target, log.note(), log)).note]
    assert await publish(target, log.note(5), log) == Published(target.id, 9, log.note(5))


async def test_the_newest_checkpoint_is_cosigned_where_nothing_here_shows_that_the_witness_has_seen_more(target):
    log = Log(9)
    await publish(target, log.note(8), log)
    published = await publish(target, log.note(5), log)
    assert (published.size, published.note) == (9, log.note() + "".join(published.cosignatures))
    assert published.cosignatures


@pytest.mark.parametrize(
    ("size", "signed_size", "key"),
    [(8, 7, COSIGNER), (8, 8, None), (9, 8, COSIGNER), (8, 8, COSIGNER), (8, 9, COSIGNER)],
)
async def test_a_size_is_believed_where_a_cosignature_of_as_much_is_kept_and_not_else(database, size, signed_size, key):
    """Of the ledger's own: what it keeps."""
    for _ in range(8):
        database.record(Entry("clock", LEDGER, {}))
    log = PublishedLog(database, {})
    ((root,),) = [await log.roots([signed_size])]
    note = sign_checkpoint(Checkpoint(database.log.origin, signed_size, root), database.log.signer)
    line = (key or OTHER).cosign(note.partition("\n\n")[0] + "\n", SEEN)
    await log.save(
        TargetState("witness x", "ok", signed_size), Published("witness x", signed_size, note + line, (line,))
    )
    is_known = key is not None and size <= signed_size
    assert await log.is_cosigned(size, COSIGNER.verifier) == is_known
    # And of another history it says nothing.
    note = sign_checkpoint(Checkpoint(database.log.origin, 9, bytes(32)), database.log.signer)
    line = COSIGNER.cosign(note.partition("\n\n")[0] + "\n", SEEN)
    await log.save(TargetState("witness x", "ok", 9), Published("witness x", 9, note + line, (line,)))
    assert await log.is_cosigned(size, COSIGNER.verifier) == is_known


@pytest.mark.parametrize(
    ("responses", "code"),
    [(["9"], "publish_conflict"), (["8"], "publish_refused"), (["8", "9"], "publish_unreachable")],
)
async def test_a_size_that_anybody_may_have_answered_is_no_cosignature(web, answers, responses, code):
    requests = answers(*map(at, responses))
    log = Log(9)
    assert (await refused(Target(witness=web.address, key=COSIGNER.vkey), log, log.note(5))).code == code
    assert len(requests) == 2


async def test_a_size_that_not_even_the_newest_checkpoint_has_is_a_bad_answer(web, answers, monkeypatch):
    answers(at(8))
    log = Log(9)

    async def put_back():
        return log.note(6)

    monkeypatch.setattr(log, "newest", put_back)
    error = await refused(Target(witness=web.address, key=COSIGNER.vkey), log, log.note(5))
    assert error.code == "publish_bad_answer"
    assert "retries automatically" in error.hint


async def test_a_witness_that_has_forgotten_is_told_anew_and_it_is_said(tmp_path, web, target, caplog):
    (tmp_path / "other").mkdir()
    log = Log(9, lasts={target.id: 5})
    await publish(target, log.note(), log)
    assert "has cosigned 5 before" in caplog.text


def at(size):
    return Response(f"{size}\n", 409, {"content-type": "text/x.tlog.size"})


def lines(*found):
    return Response("".join(found), 200)


LINE = COSIGNER.cosign(Log(9).note().partition("\n\n")[0] + "\n", SEEN)
OTHER = Signer("other.example/1", WITNESS_KEY, COSIGNATURE)


@pytest.mark.parametrize(
    "responses",
    [
        [lines()],
        [lines("garbage")],
        [lines(LINE[:-1])],
        [lines(LINE, "garbage\n")],
        [lines(LINE.replace(" ", "  "))],
        [lines("\n", LINE)],
        [Response(LINE.encode() + b"\xff\n")],
        [Response(gzip.compress(LINE.encode()), headers={"content-encoding": "gzip"})],
        [lines(Log(9).note())],
        [lines(OTHER.cosign(Log(9).note().partition("\n\n")[0] + "\n", SEEN))],
        [lines(COSIGNER.cosign(Log(8).note().partition("\n\n")[0] + "\n", SEEN))],
        [lines(LINE, COSIGNER.cosign("something else\n", SEEN))],
        [lines(*[LINE] * 65)],
        [lines(COSIGNER.cosign(Log(9).note().partition("\n\n")[0] + "\n", 0))],
        [lines(COSIGNER.cosign(Log(9).note().partition("\n\n")[0] + "\n", 1_672_531_199))],
        [lines(COSIGNER.cosign(Log(9).note().partition("\n\n")[0] + "\n", SEEN + 10 * YEAR))],
        [lines(LINE, COSIGNER.cosign(Log(9).note().partition("\n\n")[0] + "\n", 0))],
        [at(3), lines("garbage")],
    ],
)
async def test_an_answer_without_a_right_cosignature_by_the_key_is_none(web, answers, responses):
    answers(*responses)
    target = Target(witness=web.address, key=COSIGNER.vkey)
    assert (await refused(target, Log(9))).code == "publish_bad_answer"


async def test_cosignatures_by_other_keys_are_passed_over(web, answers):
    answers(lines(OTHER.cosign("else\n", SEEN), LINE))
    published = await publish(Target(witness=web.address, key=COSIGNER.vkey), Log(9).note(), Log(9))
    assert published.cosignatures == (LINE,)


@pytest.mark.parametrize(
    ("responses", "code", "count"),
    [
        ([at(5), at(6)], "publish_unreachable", 2),
        ([at(9), lines(LINE)], None, 2),
        ([at(9), at(9)], "publish_conflict", 2),
        ([at(9), Response(status_code=409)], "publish_conflict", 2),
        ([at(9), Response(status_code=422)], "publish_conflict", 2),
        ([at(5), at(5)], "publish_refused", 2),
        ([at(5), at(12)], "publish_conflict", 2),
        ([at(5), Response(status_code=422)], "publish_conflict", 2),
        ([Response(status_code=422)], "publish_refused", 1),
        ([at(2**63)], "publish_conflict", 1),
        ([at("9" * 30)], "publish_refused", 1),
        ([at("-1")], "publish_refused", 1),
        ([at("05")], "publish_refused", 1),
        ([at(0)], "publish_refused", 1),
        ([Response("garbage", 409)], "publish_refused", 1),
    ],
)
async def test_a_witness_is_asked_twice_at_most_and_an_alarm_needs_a_reason(web, answers, responses, code, count):
    requests = answers(*responses)
    target = Target(witness=f"{web.address}/prefix/", key=COSIGNER.vkey)
    if code is None:
        await publish(target, Log(9).note(), Log(9))
    else:
        assert (await refused(target, Log(9))).code == code
    assert [request[1] for request in requests] == ["/prefix/add-checkpoint"] * count


def shown(log, *more, size=None):
    """What a witness shows of a log: its note and these lines, by default the witness's own."""
    note = log.note(size)
    return Response(note + "".join(more or (COSIGNER.cosign(note.partition("\n\n")[0] + "\n", SEEN),)))


NOT_THERE = Response("none", 404)


@pytest.mark.parametrize(
    ("responses", "found", "methods"),
    [
        ([shown(Log(9))], 9, ["GET"]),
        ([shown(Log(5))], 5, ["GET"]),
        ([shown(Log(12))], "rolled back", ["GET"]),
        ([shown(Log(9, fork=4))], "rewritten", ["GET"]),
        ([shown(Log(9, key=WITNESS_KEY))], 9, ["GET"]),
        ([shown(Log(12, key=WITNESS_KEY))], "rolled back", ["GET"]),
        # Who shows none is asked by what all witnesses have.
        ([NOT_THERE, lines(LINE)], 9, ["GET", "POST"]),
        ([NOT_THERE, at(5), lines(LINE)], 9, ["GET", "POST", "POST"]),
        ([NOT_THERE, at(12)], "rolled back", ["GET", "POST"]),
        ([NOT_THERE, at(9), Response(status_code=422)], "rewritten", ["GET", "POST", "POST"]),
        ([NOT_THERE, at(5), Response(status_code=422)], "rewritten", ["GET", "POST", "POST"]),
        ([NOT_THERE, NOT_THERE], "publish_refused", ["GET", "POST"]),
        # So is who shows something else.
        ([Response("<html>"), lines(LINE)], 9, ["GET", "POST"]),
        ([Response(b"\xff\xfe"), lines(LINE)], 9, ["GET", "POST"]),
        ([RedirectResponse("/"), lines(LINE)], 9, ["GET", "POST"]),
        ([Response("x" * 100_000), lines(LINE)], 9, ["GET", "POST"]),
        ([shown(Log(12), OTHER.cosign("else\n", SEEN)), lines(LINE)], 9, ["GET", "POST"]),
        (
            [shown(Log(12), COSIGNER.cosign(Log(12).note().partition("\n\n")[0] + "\n", 0)), lines(LINE)],
            9,
            ["GET", "POST"],
        ),
        ([shown(Log(12), COSIGNER.cosign("else\n", SEEN)), lines(LINE)], 9, ["GET", "POST"]),
        ([shown(Log(9, "others.example/log")), lines(LINE)], 9, ["GET", "POST"]),
        ([Response(status_code=503)], "publish_unreachable", ["GET"]),
    ],
)
async def test_a_witness_is_asked_what_it_has_seen_in_whichever_way_it_answers(web, answers, responses, found, methods):
    requests = answers(*responses)
    target = Target(witness=f"{web.address}/prefix/", key=COSIGNER.vkey)
    alarm = found in {"rolled back", "rewritten"}
    if alarm:
        with pytest.raises(BridgeError, match=found):
            await check_targets([target], Log(9))
    else:
        (asked,) = await check_targets([target], Log(9))
        code = asked.error and asked.error["code"]
        assert (asked.status, asked.size if code is None else code) == ("agrees" if code is None else "unasked", found)
    assert [request[0] for request in requests] == methods
    name = hashlib.sha256(Log(9).origin.encode()).hexdigest()
    assert [request[1] for request in requests] == [
        f"/prefix/{name}/checkpoint" if method == "GET" else "/prefix/add-checkpoint" for method in methods
    ]


async def test_a_file_is_asked_and_left_as_it_is(file, tmp_path):
    assert [one.record() for one in await check_targets([file], Log(9))] == [
        {"target": file.id, "status": "empty", "size": 0, "error": None}
    ]
    assert not file.file.exists()
    file.file.touch()
    # Why nothing has come to it is known since the last attempt.
    failing = TargetState(file.id, "failing", error={"code": "publish_file_unusable", "message": "no room"})
    (empty,) = await check_targets([file], Log(9), {file.id: failing})
    assert (empty.status, empty.error) == ("empty", failing.error)
    for size in (5, 9):
        await publish(file, Log(size).note(), Log(size))
    before = file.file.read_bytes()
    for log, size in ((Log(9), 9), (Log(12), 9)):
        assert [(one.status, one.size) for one in await check_targets([file], log)] == [("agrees", size)]
    for log, word in ((Log(5), "rolled back"), (Log(9, fork=7), "rewritten"), (Log(12, fork=3), "rewritten")):
        with pytest.raises(BridgeError, match=word) as caught:
            await check_targets([file], log)
        assert caught.value.code == "publish_conflict"
    # Somebody who has the file may keep it locked: looking needs no lock.
    with file.file.open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        assert [one.size for one in await check_targets([file], Log(9))] == [9]
    assert file.file.read_bytes() == before
    file.file.unlink()
    (lost,) = await check_targets([file], Log(9, lasts={file.id: 9}))
    assert (lost.status, lost.error["code"]) == ("unasked", "publish_file_lost")
    os.mkfifo(file.file)
    (odd,) = await check_targets([file], Log(9))
    assert (odd.status, odd.error["code"]) == ("unasked", "publish_file_unusable")


async def test_one_target_that_sees_another_history_is_enough_and_the_others_are_asked_all_the_same(
    web, answers, file, tmp_path, monkeypatch
):
    await publish(file, Log(12).note(), Log(12))
    answers(shown(Log(9)))
    witness = Target(witness=web.address, key=COSIGNER.vkey)
    nowhere = Target(file=tmp_path / "no" / "where")
    with pytest.raises(BridgeError, match="rolled back"):
        await check_targets([witness, file, nowhere], Log(9))
    file.file.unlink()
    found = await check_targets([witness, file, nowhere, Target(url=web.address)], Log(9))
    assert [one.status for one in found] == ["agrees", "empty", "unasked", "unasked"]
    assert "there is no folder" in found[2].error["message"]
    # All together have an end, too.
    monkeypatch.setattr(asking, "ASK_SECONDS", 0.0)
    assert [one.status for one in await check_targets([witness], Log(9))] == ["unasked"]


async def test_a_witness_that_is_asked_again_leaves_one_cosignature_of_a_size(database):
    log = PublishedLog(database, {})
    note = await log.newest()
    size = int(note.split("\n")[1])
    other = Signer("other.example/2", WITNESS_KEY, COSIGNATURE)
    for key, seconds in ((COSIGNER, SEEN), (COSIGNER, SEEN + 60), (other, SEEN + 120), (COSIGNER, SEEN + 180)):
        line = key.cosign(note.partition("\n\n")[0] + "\n", seconds)
        target = f"witness {key.vkey}"
        await log.save(TargetState(target, "ok", size), Published(target, size, note + line, (line,)))
    rows = await database.read("SELECT note FROM checkpoints")
    assert len(rows) == 2
    with open_ledger(database.path) as ledger:
        (kept,) = ledger.checkpoints()
    found = open_checkpoint(kept, [COSIGNER.verifier, other.verifier])[1]
    assert found == [(COSIGNER.verifier, SEEN), (other.verifier, SEEN + 120)]


# --- the task


class Kept:
    """What a publisher has handed over; `wait` returns when it has handed over so much."""

    def __init__(self):
        self.states = []
        self.published = []
        self._changed = anyio.Event()

    async def __call__(self, state, published):
        self.states.append(state)
        if published is not None:
            self.published.append(published)
        self._changed.set()
        self._changed = anyio.Event()
        return state

    async def wait(self, condition):
        with anyio.fail_after(20):
            while not condition(self):
                await self._changed.wait()


def publishing(log, *targets, kept=None, **options):
    return Publisher(targets, log, log.newest, Kept() if kept is None else kept, **options)


async def test_the_newest_checkpoint_is_published_when_it_has_changed_and_once_more_at_the_end(file, target):
    log = Log(3)
    kept = Kept()
    task = publishing(log, file, target, kept=kept, interval=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task.run)
        await kept.wait(lambda kept: len(kept.published) == 2)
        log.grow(2)
        await kept.wait(lambda kept: len(kept.published) == 4)
        # Nothing new, however often it looks.
        looked = asyncio.Event()
        looks = itertools.count()

        def look():
            if next(looks) > 6:
                looked.set()
            return log.newest()

        task._newest = look
        await looked.wait()
        assert len(kept.published) == 4
        task._interval = 3600
        await anyio.sleep(0.05)
        log.grow(2)
        task.close()
    assert sorted(published.size for published in kept.published) == [3, 3, 5, 5, 7, 7]
    assert [len(notes_in(note)) for note in (file.file.read_text(),)] == [3]
    assert all(published.cosignatures for published in kept.published if published.target == target.id)
    assert {state.size for state in task.states.values()} == {7}


async def test_a_publisher_that_is_cancelled_publishes_once_more(file, target):
    log = Log(3)
    kept = Kept()
    task = publishing(log, file, target, kept=kept)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task.run)
        await kept.wait(lambda kept: len(kept.published) == 2)
        log.grow(2)
        tasks.cancel_scope.cancel()
    assert sorted(published.size for published in kept.published) == [3, 3, 5, 5]


async def test_nothing_is_published_of_an_empty_log(file):
    assert (await publishing(Log(0), file).publish_now())[file.id].status == "new"
    assert not file.file.exists()


async def test_a_target_that_fails_holds_up_no_other_and_is_tried_again(caplog, tmp_path, web, file, witness):
    log = Log(3)
    kept = Kept()
    web.app = Response(status_code=500)
    target = Target(witness=web.address, key=witness.vkey)
    task = publishing(log, target, file, kept=kept, interval=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task.run)
        await kept.wait(lambda kept: kept.published)
        assert kept.published[0].target == file.id
        await kept.wait(lambda _: task.states[target.id].status == "failing")
        assert task.states[target.id].error["code"] == "publish_unreachable"
        web.app = witness_app(witness)
        await kept.wait(lambda _: task.states[target.id].status == "ok")
        task.close()
    assert task.states[target.id].error is None
    # Once, however often it has failed.
    assert [record.levelno for record in caplog.records if "500" in record.message] == [logging.WARNING]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_target_that_fails_is_tried_less_and_less_often(file):
    task = publishing(Log(3), file, interval=60)
    assert [task._pause(failures) for failures in range(9)] == [60, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert task._pause(10**6) == 3600
    assert publishing(Log(3), file, interval=7200)._pause(5) == 7200


async def test_a_conflict_is_an_alarm_that_stays(caplog, file, target):
    await publishing(Log(5), file, target).publish_now()
    kept = Kept()
    clock = itertools.count(100)
    # With another history, and with what was kept of before, as after a start.
    states = {each.id: TargetState(each.id, "ok", 5, 1.0) for each in (file, target)}
    fork = Log(9, fork=4, lasts={file.id: 5, target.id: 5})
    task = publishing(fork, file, target, kept=kept, states=states, clock=lambda: next(clock))
    await task.publish_now()
    assert [record.levelno for record in caplog.records if "ALARM" in record.message] == [logging.ERROR] * 2
    first = dict(task.states)
    for state in first.values():
        assert (state.status, state.size, state.conflict["code"]) == ("conflict", 5, "publish_conflict")
        assert state.conflict["size"] == 5
        assert TargetState.parse(json.dumps(state.record())) == state
    fork.grow(1)
    await task.publish_now()
    assert dict(task.states) == first
    assert len([record for record in caplog.records if "ALARM" in record.message]) == 2
    # What the true log says afterwards doesn't take it away.
    await publishing(Log(9, lasts=fork.lasts), file, target, kept=kept, states=first).publish_now()
    assert [(state.status, state.conflict["code"]) for state in kept.states[-2:]] == [("ok", "publish_conflict")] * 2


@pytest.mark.parametrize("size", [5, 9])
async def test_a_log_that_was_rewritten_to_the_size_it_had_is_found_at_the_next_start(file, target, size):
    await publishing(Log(9), file, target).publish_now()
    rolled_back = Log(size, fork=None if size == 5 else 4, lasts={file.id: size, target.id: size})
    states = {each.id: TargetState(each.id, "ok", size, 1.0) for each in (file, target)}
    found = await publishing(rolled_back, file, target, states=states).publish_now()
    assert {state.status for state in found.values()} == {"conflict"}


async def test_the_end_is_not_held_up_by_a_target_that_hangs(monkeypatch, web, file):
    monkeypatch.setattr(publish_loop, "CLOSE_SECONDS", 0.2)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hangs(scope, receive, send):
        loop.call_soon_threadsafe(asked.set)
        while (await receive())["type"] != "http.disconnect":
            pass

    web.app = hangs
    task = publishing(Log(3), Target(url=web.address, timeout=300), file)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(task.run)
            await asked.wait()
            while task.states[file.id].status != "ok":  # noqa: ASYNC110 - nothing announces it
                await anyio.sleep(0.01)
            task.close()
    assert task.states[file.id].status == "ok"


async def test_a_fault_of_the_log_or_of_what_keeps_the_state_ends_nothing(caplog, file):
    log = Log(3)

    async def broken(*_):
        raise ZeroDivisionError

    found = await Publisher([file], log, broken, broken).publish_now()
    assert found[file.id].error["code"] == "internal_error"
    found = await Publisher([file], log, log.newest, broken).publish_now()
    assert found[file.id].status == "ok"


def contradicting(database, size):
    """A checkpoint of another history, by the log's own key."""
    return sign_checkpoint(Checkpoint(database.log.origin, size, bytes(32)), database.log.signer)


async def test_an_alarm_that_was_taken_away_stays_away_while_the_bridge_goes_on(database, file):
    config = LedgerConfig(publish=(file,))
    running = await publishing_bridge(database, config, Path("/"))
    file.file.write_text(f"{contradicting(database, 1)}\n")
    assert (await running.publish_now())[file.id].status == "conflict"
    await acknowledge(database)
    file.file.unlink()
    assert (await running.publish_now())[file.id].status == "ok"
    assert (await read_states(database))[file.id].conflict is None
    # What is found afterwards is an alarm like any other, though the one before said the same.
    file.file.write_text(f"{contradicting(database, 1)}\n")
    database.record(Entry("clock", LEDGER, {}))
    await running.publish_now()
    alarm = (await read_states(database))[file.id].conflict
    # Another bridge, whose last word was before, takes it away as little as this one's next does.
    file.file.unlink()
    file.file.write_text(f"{await PublishedLog(database, {}).newest()}\n")
    other = await publishing_bridge(database, config, Path("/"))
    other._states[file.id] = TargetState(file.id)
    for one in (running, other):
        await one.publish_now()
        kept = (await read_states(database))[file.id]
        assert (kept.status, kept.conflict) == ("ok", alarm)
    assert alarm["code"] == "publish_conflict"


async def test_a_bridge_publishes_while_it_works_and_what_it_did_last_when_it_ends(tmp_path):
    config = LedgerConfig(publish=(Target(file="kept.notes"),), publish_interval=1)
    settings = Settings(state_dir=tmp_path / "state", ledger=config)

    def published():
        return (tmp_path / "kept.notes").exists() and notes_in((tmp_path / "kept.notes").read_text())

    def newest():
        with open_ledger(tmp_path / "state" / "ledger.sqlite") as ledger:
            return ledger.note

    async with open_bridge(settings, [], load_governance({}, None, tmp_path, settings.state_dir)) as bridge:
        await until(published)
        for _ in range(2):
            before = len(published())
            await bridge.run_program({"steps": [{"id": "rest", "type": "wait", "seconds": 0}]})
            await until(lambda before=before: len(published()) > before and published()[-1] == newest())
        await bridge.run_program({"steps": [{"id": "rest", "type": "wait", "seconds": 0}]})
    assert published()[-1] == newest()
    facts = file_verification.verify_file(tmp_path / "state" / "ledger.sqlite", None, published(), None)
    assert facts.log.compared == len(published()) >= 4


# --- the configuration


def test_a_configuration_is_read(tmp_path):
    config = PublishingConfig.model_validate(
        {
            "publish": [
                {"file": "notes"},
                {"url": "https://notes.example.com/in"},
                {"witness": "https://witness.example.com/", "key": COSIGNER.vkey, "timeout": 3},
            ],
            "publish_interval": 5,
        }
    )
    file, url, witness = (target.resolved(tmp_path) for target in config.publish)
    assert file.file == tmp_path / "notes"
    assert (url.id, witness.id) == ("url https://notes.example.com/in", f"witness {COSIGNER.vkey}")
    assert witness.witness == "https://witness.example.com"
    assert PublishingConfig().publish == ()
    assert PublishingConfig().publish_interval == 60
    assert Target(file="~/notes").resolved(tmp_path).file == Path.home() / "notes"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "one of file, url and witness"),
        ({"file": "a", "url": "https://a.example"}, "one of file, url and witness"),
        ({"file": ""}, "names no file"),
        ({"file": "/"}, "names no file"),
        ({"url": "ftp://a.example"}, "write an address"),
        ({"url": "https://"}, "write an address"),
        ({"url": "https://a.example:0"}, "write an address"),
        ({"url": "https://a.example:x"}, "write an address"),
        ({"url": "https://a.example/ b"}, "write an address"),
        ({"url": "https://u:p@a.example"}, "no user, password"),
        ({"url": "https://a.example/?token=x"}, "no user, password, query"),
        ({"url": "https://a.example", "key": COSIGNER.vkey}, "key is for a witness"),
        ({"witness": "https://a.example"}, "needs its key"),
        ({"witness": "https://a.example", "key": "x"}, "no key to verify with"),
        ({"witness": "https://a.example", "key": Log(0).vkey}, "a log's key"),
        ({"file": "a", "timeout": 0}, "greater than 0"),
        ({"file": "a", "timeout": float("inf")}, "finite"),
        ({"file": "a", "mode": "w"}, "Extra inputs"),
    ],
)
def test_a_table_that_can_not_be_meant_is_refused(table, says):
    with pytest.raises(ValidationError) as caught:
        PublishingConfig.model_validate({"publish": [table]})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "table", [{"publish_interval": 0}, {"publish": [{"file": "a"}] * 2}, {"publish": {"file": "a"}}]
)
def test_a_configuration_that_can_not_be_meant_is_refused(table):
    with pytest.raises(ValidationError):
        PublishingConfig.model_validate(table)


def test_no_http_client_is_loaded_before_it_is_used():
    code = "import sys, mcp_bridge.ledger.publish.publish_loop; assert not {'httpx2', 'starlette', 'uvicorn'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert target_requests.MAX_ANSWER_BYTES
