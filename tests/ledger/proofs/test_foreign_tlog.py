"""Those who know the project by the C2SP specifications alone: a log that has its witness cosign, and a witness that it asks.

Both are `peers.tlog_peer`'s and share no code with the project.
"""

import base64
import collections
import hashlib
import json
import logging
import os
import random
import re
import shutil
import subprocess
import time
import uuid

import pytest
from cli_fixtures import COMMAND, TOOLS, Desk, tool
from ledger_fixtures import large_says, small_says
from peers import ledger_peer
from peers.ledger_peer import COSIGNATURE, ED25519, Note, parse_checkpoint, parse_vkey
from peers.tlog_peer import EMPTY_ROOT, Answer, Log, Signer, Witness, ask, request_body, serving, signed, to_base64
from typer.testing import CliRunner

from mcp_bridge.cli.app import app

# One worker's, which starts the witness that they share.
pytestmark = pytest.mark.xdist_group("foreign witness")

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))

LOGS = [f"foreign.example/log{number}" for number in range(100)]
"""The witness trusts a key of each: every test takes one that no other has."""

REQUESTS = 3000 if LONG else 300


# The project's witness, asked by a log of somebody else.


class Asked:
    """A witness that runs, and the logs that nobody has shown it yet."""

    def __init__(self, url, vkey):
        self.url, self.key = url, parse_vkey(vkey)
        self.logs = iter(LOGS)

    def log(self, size=0, fork=None):
        return Log(next(self.logs), size, fork)

    def add(self, body):
        return ask(self.url, body=body)

    def cosigned(self, body):
        """The moment of the cosignature that a checkpoint gets."""
        before = int(time.time())
        answer = self.add(body)
        assert answer.status == 200, answer
        note = body.decode().partition("\n\n")[2]
        assert Note(note + answer.body.decode()).signed_by(self.key)
        (line,) = answer.body.decode().splitlines()
        moment = int.from_bytes(base64.b64decode(line.split(" ")[2])[4:12], "big")
        assert before <= moment <= time.time()
        return moment

    def refused(self, body, status):
        answer = self.add(body)
        assert answer.status == status, answer
        assert self.key.name not in answer.body.decode()
        return answer


@pytest.fixture(scope="module")
def witness(tmp_path_factory):
    folder = tmp_path_factory.mktemp("witness")
    config = folder / "config.toml"
    config.write_text(f'state_dir = "{folder}/state"\nclient_configs = false\n')
    trusted = [argument for origin in LOGS for argument in ("--log", Log(origin).signer.vkey)]
    command = [
        COMMAND,
        "--config",
        str(config),
        "witness",
        "--listen",
        "127.0.0.1:0",
        "--name",
        "w.example/w",
        *trusted,
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MCP_BRIDGE_")}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        url = re.fullmatch(r"listening on (http://\S+)\n", process.stdout.readline())[1]
        yield Asked(url, re.fullmatch(r"key (\S+)\n", process.stdout.readline())[1])
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_log_of_somebody_else_is_cosigned_as_it_grows(witness):
    assert witness.key.kind == COSIGNATURE
    log, old, last = witness.log(300), 0, 0
    for size in (1, 2, 3, 4, 7, 8, 9, 64, 65, 255, 256, 300):
        moment = witness.cosigned(log.request(old, size))
        assert moment >= last
        old, last = size, moment
    # The same again, as after an answer that was lost.
    witness.cosigned(log.request(300))


def test_every_proof_between_small_sizes_is_taken(witness):
    for old in range(1, 6):
        for new in range(old, 8):
            log = witness.log(new)
            witness.cosigned(log.request(0, old))
            witness.cosigned(log.request(old, new))


def test_an_empty_log_is_cosigned_and_grows(witness):
    log = witness.log(2)
    witness.cosigned(log.request(0, 0))
    witness.cosigned(log.request(0, 0))
    witness.cosigned(log.request(0, 2))


@pytest.mark.parametrize("old", [0, 1, 4, 6, 7])
def test_409_with_the_size_for_another_old_size(witness, old):
    log = witness.log(7)
    witness.cosigned(log.request(0, 5))
    answer = witness.refused(log.request(old), 409)
    assert (answer.kind, answer.body) == ("text/x.tlog.size", b"5\n")
    # What it says is what is wanted.
    witness.cosigned(log.request(int(answer.body)))


def test_409_with_0_for_a_log_that_was_never_seen(witness):
    answer = witness.refused(witness.log(7).request(3), 409)
    assert (answer.kind, answer.body) == ("text/x.tlog.size", b"0\n")


def wrong_proofs(log, other):
    """By name: the old and the new size, the proof, and the log whose checkpoint is shown."""
    right = log.tree.consistency(3, 7)
    yield "none", 7, [], log
    yield "one hash less", 7, right[:-1], log
    yield "one hash more", 7, [*right, right[0]], log
    yield "another order", 7, right[::-1], log
    yield "another's", 7, log.tree.consistency(4, 7), log
    yield "of another size", 7, log.tree.consistency(3, 6), log
    yield "a forked log's", 7, other.tree.consistency(3, 7), other
    yield "another log's checkpoint", 7, right, other
    yield "of the same size", 3, right, log
    yield "a forked log's, of a power of two", 4, other.tree.consistency(3, 4), other


@pytest.mark.parametrize("name", [name for name, *_ in wrong_proofs(Log("x", 7), Log("x", 7, 1))])
def test_422_for_a_wrong_proof_and_nothing_has_changed(witness, name):
    log = witness.log(7)
    other = Log(log.origin, 7, fork=1)
    witness.cosigned(log.request(0, 3))
    ((size, path, shown),) = [case for found, *case in wrong_proofs(log, other) if found == name]
    witness.refused(request_body(3, path, shown.note(size)), 422)
    witness.cosigned(log.request(3))


def test_422_for_a_proof_that_begins_at_nothing(witness):
    log = witness.log(7)
    witness.refused(request_body(0, log.tree.consistency(3), log.note()), 422)
    witness.cosigned(log.request(0))


def test_422_for_another_root_of_the_same_size(witness):
    log = witness.log(7)
    witness.cosigned(log.request(0))
    witness.refused(request_body(7, [], Log(log.origin, 7, fork=5).note()), 422)
    witness.cosigned(log.request(7))


def test_422_for_an_empty_log_that_is_not_empty(witness):
    log = witness.log(7)
    text = log.text(0).replace(to_base64(EMPTY_ROOT), to_base64(log.tree.root()))
    witness.refused(request_body(0, [], signed(text, log.signer)), 422)
    witness.cosigned(log.request(0))


def test_404_for_a_log_that_it_does_not_know(witness):
    for origin in ("foreign.example/unknown", LOGS[0] + "/more", LOGS[0].upper()):
        witness.refused(Log(origin, 3).request(0), 404)
    # What is signed by a known log's key is another log's all the same.
    log = Log("foreign.example/unknown", 3)
    witness.refused(request_body(0, [], log.note(3, Log(LOGS[0]).signer)), 404)


def test_403_where_no_trusted_key_has_signed(witness):
    log = witness.log(3)
    stranger = Signer(log.origin, "a stranger")
    wrong = log.signer.line(log.text(2))
    for note in (
        log.note(3, stranger),
        log.note(3, Signer("foreign.example/other", log.origin)),
        signed(log.text()) + wrong,
        log.note(3, Signer(log.origin, log.origin, COSIGNATURE)),
        log.note(3, log.signer) + wrong,
    ):
        witness.refused(request_body(0, [], note), 403)
    # Signatures of others say nothing.
    witness.cosigned(request_body(0, [], log.note(3, stranger, log.signer, Signer("w.example/w", "x", COSIGNATURE))))


def bad_requests(log):
    good = log.request(2).decode()
    yield b""
    yield b"\n"
    yield good.encode("utf-16")
    yield good.encode() + b"\xff"
    yield good.replace("old 2", "old 02")
    yield good.replace("old 2", "old +2")
    yield good.replace("old 2", "old -2")
    yield good.replace("old 2", "old  2")
    yield good.replace("old 2", "old 2 ")
    yield good.replace("old 2", "old two")
    yield good.replace("old 2", "old \u0662")
    yield good.replace("old 2", "new 2")
    yield good.replace("old 2\n", "")
    yield good.replace("\n", "\r\n")
    yield good.replace("=\n", "\n", 1)
    yield good.replace("\n\n", "\nnot base64\n\n", 1)
    yield good.replace("\n\n", f"\n{to_base64(b'short')}\n\n", 1)
    yield good.replace("\n\n", "\n", 1)
    yield good.rstrip("\n")
    yield good + "\n"
    yield good.replace("\u2014 ", "-- ")
    for size in (f"0{log.size}", "many", "-1", ""):
        yield request_body(2, [], signed(log.text().replace(f"\n{log.size}\n", f"\n{size}\n"), log.signer))
    yield request_body(log.size + 1, [], log.note())
    yield request_body(2, [bytes(32)] * 64, log.note())


@pytest.mark.parametrize("number", range(len(list(bad_requests(Log("x", 6))))))
def test_400_for_what_is_no_request(witness, number):
    log = Log(LOGS[0], 6)
    body = list(bad_requests(log))[number]
    witness.refused(body.encode() if isinstance(body, str) else body, 400)


def test_an_extension_line_is_cosigned_with_the_rest(witness):
    log = witness.log(3)
    witness.cosigned(request_body(0, [], signed(log.text() + "an extension\n", log.signer)))


def test_anybody_can_ask_for_the_latest_checkpoint_of_a_log(witness):
    log = witness.log(9)
    path = f"/{hashlib.sha256(log.origin.encode()).hexdigest()}/checkpoint"
    assert ask(witness.url, path).status == 404
    for old, size in ((0, 3), (3, 9)):
        witness.cosigned(log.request(old, size))
        answer = ask(witness.url, path)
        assert answer.status == 200
        note = Note(answer.body)
        assert note.text == log.text(size)
        assert note.signed_by(log.signer.key)
        assert note.signed_by(witness.key)
    witness.refused(log.request(3), 409)
    # Cosigned anew, with the time of now.
    assert Note(ask(witness.url, path).body).text == log.text(9)
    assert ask(witness.url, path.upper()).status == 404


def test_whatever_it_is_asked_it_answers_as_another_witness_does(witness):
    """Logs that grow, fork, roll back and send nonsense; the status and the size told are those of `tlog_peer.Witness`."""
    chance = random.Random(11)  # noqa: S311
    origins = [next(witness.logs) for _ in range(4)]
    logs = {origin: [Log(origin, 24), Log(origin, 24, fork=chance.randrange(1, 12))] for origin in origins}
    other = Witness(Signer("o.example/o", "o", COSIGNATURE), [Log(origin).signer.key for origin in origins], lambda: 1)
    found = collections.Counter()
    for _ in range(REQUESTS):
        origin = chance.choice(origins)
        body = some_request(chance, chance.choice(logs[origin]), other.seen.get(origin, (0,))[0])
        expected, answer = other.answer(body), witness.add(body)
        found[expected.status] += 1
        assert answer.status == expected.status, (body, answer)
        if expected.status == 409:
            assert (answer.kind, answer.body) == (expected.kind, expected.body)
    assert set(found) >= {200, 400, 403, 409, 422}, found


def some_request(chance, log, seen):
    old = seen if chance.random() < 0.7 else chance.randrange(log.size + 1)
    size = min(log.size, seen + chance.randrange(3)) if chance.random() < 0.7 else chance.randrange(log.size + 1)
    path = log.tree.consistency(old, size) if 0 < old < size else []
    note = log.note(size)
    how = chance.randrange(12)
    if how == 0:
        path = [*path, bytes(32)]
    elif how == 1:
        path = path[1:]
    elif how == 2:
        note = log.note(size, Signer(log.origin, "a stranger"))
    elif how == 3:
        note = signed(log.text(size).replace("=\n", "\n", 1), log.signer)
    elif how == 4:
        note = signed(log.text(size)) + log.signer.line(log.text((size + 1) % log.size))
    return request_body(old, path, note)


# A witness of somebody else, asked by the project.


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A ledger with something in it, whose checkpoints may be published."""
    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("MCP_BRIDGE_"):
                patch.delenv(name)
        patch.setattr(logging, "basicConfig", lambda **_: None)
        patch.chdir(folder)
        desk = Desk(folder)
        desk.write(f"tools/desk_{uuid.uuid4().hex}.py", TOOLS)
        desk.write("programs/peek.yaml", {"name": "peek", "steps": [tool("look")]})
        desk.configure()
        run(desk)
        yield desk


def run(desk):
    """Have the ledger grow; nobody is told."""
    desk.configure()
    desk.run("program", "run", "peek", "--context", '{"name": "a"}')


@pytest.fixture
def log_key(desk):
    return parse_vkey(desk.run("audit", "key").out.strip())


class Somebody:
    """Who is asked as a witness: it does as one does, and then `twisted` makes something else of its answer."""

    def __init__(self, log_key, twisted=None):
        name = f"w.example/{uuid.uuid4().hex}"
        self.witness = Witness(Signer(name, name, COSIGNATURE), [log_key], lambda: int(time.time()))
        self.twisted = twisted

    @property
    def vkey(self):
        return self.witness.signer.vkey

    def answer(self, body):
        answer = self.witness.answer(body)
        return self.twisted(self, body, answer) if self.twisted else answer


def published(desk, somebody):
    """What is told of a target after publishing to it once."""
    with serving(somebody.answer) as url:
        desk.configure(f'[[ledger.publish]]\nwitness = "{url}"\nkey = "{somebody.vkey}"\ntimeout = 20')
        ended = CliRunner().invoke(app, ["--config", str(desk.config), "audit", "publish", "--json"])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    assert "Traceback" not in ended.stderr
    (target,) = json.loads(ended.stdout)["targets"]
    return ended.exit_code, target


def test_a_witness_of_somebody_else_cosigns(desk, log_key):
    somebody = Somebody(log_key)
    sizes = []
    for _ in range(3):
        code, target = published(desk, somebody)
        assert (code, target["status"], target["error"]) == (0, "ok", None)
        sizes.append(target["size"])
        export = exported(desk)
        found = ledger_peer.verify(export, [log_key.vkey, somebody.vkey])
        assert found.cosigned == {somebody.vkey: target["size"]}
        run(desk)
    # Each time it was asked once, with the size that it had cosigned before.
    assert [int(body.split(b"\n")[0].split(b" ")[1]) for body in somebody.witness.asked] == [0, *sizes[:-1]]


def exported(desk):
    """The ledger as a file, which all verifiers take."""
    path = desk.folder / f"{uuid.uuid4().hex}.jsonl"
    desk.run("audit", "export", path)
    key = desk.run("audit", "key").out.strip()
    data = path.read_bytes()
    assert large_says(data, [key]) is small_says(data, [key]) is None
    assert ledger_peer.verify(data, [key]).authentic
    return data


# What comes back in the place of an answer: of a good answer, or whatever else.

YEARS = 365 * 24 * 3600


def other_line(name=None, seed=None, kind=COSIGNATURE, after=0, change=None):
    """A signature line that isn't the one that is wanted."""

    def twisted(somebody, body, answer):
        own = somebody.witness.signer
        signer = Signer(name or own.name, seed or own.name, kind)
        text = change(note_of(body).text) if change else note_of(body).text
        return Answer(200, body=signer.line(text, int(time.time()) + after).encode())

    return twisted


def note_of(body):
    return Note(body.decode().partition("\n\n")[2])


def instead(status=200, body=b"", kind="text/plain"):
    return lambda somebody, asked, answer: Answer(status, kind, body)


def around(before=b"", after=b""):
    return lambda somebody, body, answer: Answer(answer.status, answer.kind, before + answer.body + after)


def bad_signature(somebody, body, answer):
    line = bytearray(answer.body)
    line[-10] = ord("A") if line[-10] != ord("A") else ord("B")
    return Answer(200, body=bytes(line))


STRANGERS = Signer("w.example/stranger", "s", COSIGNATURE).line("another text\n").encode()

GOOD = {
    "beside a stranger's": around(STRANGERS),
    "before a stranger's": around(after=STRANGERS),
    "beside a kind that nobody knows": around("\u2014 w.example/pq AAAAAAECAwQ=\n".encode()),
    "of another content type": lambda somebody, body, answer: Answer(200, "application/octet-stream", answer.body),
}
"""What is one all the same."""

HOSTILE = {
    "nothing": instead(),
    "no line": instead(body=b"thanks\n"),
    "not UTF-8": instead(body=b"\xff\xfe\x00\n"),
    "HTML": instead(body=b"<html><body>\xe2\x80\x94 hello</body></html>", kind="text/html"),
    "a stranger's alone": instead(body=STRANGERS),
    "another key's": other_line(seed="another"),
    "the key's, under another name": other_line(name="w.example/other"),
    "of another text": other_line(change=lambda text: text.replace("\n", "x\n", 1)),
    "of a greater size": other_line(change=lambda text: re.sub(r"\n(\d+)\n", r"\n9\1\n", text)),
    "a signature, and no cosignature": other_line(kind=ED25519),
    "a damaged signature": bad_signature,
    "twice, once damaged": lambda somebody, body, answer: Answer(
        200, body=answer.body + bad_signature(somebody, body, answer).body
    ),
    "without its end": lambda somebody, body, answer: Answer(200, body=answer.body[:-30]),
    "very much": instead(body=b"\xe2\x80\x94 a b\n" * 2_000_000),
    "a redirection": instead(302),
    "no content": instead(204),
    "a bad request": instead(400),
    "forbidden": instead(403),
    "not found": instead(404),
    "an error": instead(500, b"<html>"),
    "hangs up": lambda somebody, body, answer: None,
    "a conflict without a size": instead(409),
    "a conflict with a text": instead(409, b"seven\n", "text/x.tlog.size"),
    "a conflict with more than a size": instead(409, b"3\n\xe2\x80\x94\n", "text/x.tlog.size"),
    "a conflict with a size below 0": instead(409, b"-1\n", "text/x.tlog.size"),
    "a conflict with a size of many digits": instead(409, b"9" * 5000 + b"\n", "text/x.tlog.size"),
    "the same conflict again and again": instead(409, b"1\n", "text/x.tlog.size"),
}
"""What is no cosignature, and no reason for an alarm either."""


@pytest.mark.parametrize("name", GOOD)
def test_a_cosignature_is_taken_from_among_others(desk, log_key, name):
    run(desk)
    somebody = Somebody(log_key, GOOD[name])
    code, target = published(desk, somebody)
    assert (code, target["status"]) == (0, "ok")
    assert ledger_peer.verify(exported(desk), [log_key.vkey, somebody.vkey]).cosigned == {somebody.vkey: target["size"]}


@pytest.mark.parametrize(
    ("name", "twisted"),
    [
        *HOSTILE.items(),
        *(
            (name, other_line(after=after))
            for name, after in {
                "of the time 0": -int(time.time()),
                "of 1970": 3600 - int(time.time()),
                "of ten years ahead": 10 * YEARS,
            }.items()
        ),
    ],
)
def test_what_is_no_cosignature_is_not_kept_and_is_told(desk, log_key, name, twisted):
    somebody = Somebody(log_key, twisted)
    code, target = published(desk, somebody)
    assert (code, target["status"], target["conflict"]) == (1, "failing", None), target
    assert target["error"]["code"] in ("publish_bad_answer", "publish_refused", "publish_unreachable")
    assert len(target["error"]["message"]) < 1000
    # It was asked no more often than once again, and nothing of what it said is in what leaves.
    assert len(somebody.witness.asked) <= 2
    assert not ledger_peer.verify(exported(desk), [log_key.vkey, somebody.vkey]).cosigned
    # And the next answer, which is one, is taken.
    somebody.twisted, somebody.witness.seen = None, {}
    code, target = published(desk, somebody)
    assert (code, target["status"]) == (0, "ok")


def test_a_witness_that_has_seen_another_size_is_asked_with_that(desk, log_key):
    somebody = Somebody(log_key)
    published(desk, somebody)
    size, root = somebody.witness.seen[log_key.name]
    # It has cosigned more than it could tell: the answer was lost, or another bridge has asked.
    run(desk)
    note = Note(desk.run("audit", "checkpoint").out.rstrip("\n") + "\n")
    point = parse_checkpoint(note.text)
    somebody.witness.seen[log_key.name] = (point.size, point.root)
    run(desk)
    code, target = published(desk, somebody)
    assert (code, target["status"]) == (0, "ok")
    # And it was put back to an older state.
    somebody.witness.seen[log_key.name] = (size, root)
    run(desk)
    code, target = published(desk, somebody)
    assert (code, target["status"]) == (0, "ok")
    assert somebody.witness.seen[log_key.name][0] == target["size"] > point.size > size


def test_a_ledger_that_was_rolled_back_and_rewritten_is_an_alarm(desk, log_key):
    for path in desk.state.glob("ledger.sqlite*"):
        shutil.copy(path, desk.folder / path.name)
    somebody = Somebody(log_key)
    run(desk)
    published(desk, somebody)
    seen = somebody.witness.seen[log_key.name]
    for path in desk.state.glob("ledger.sqlite*"):
        path.unlink()
    for path in desk.folder.glob("ledger.sqlite*"):
        shutil.copy(path, desk.state)
    # Who rolls it back does so with what lies beside it.
    (desk.state / "ledger.head").unlink()
    said = [published(desk, somebody)]
    while parse_checkpoint(Note(desk.run("audit", "checkpoint").out.rstrip("\n") + "\n").text).size <= seen[0]:
        run(desk)
    said.append(published(desk, somebody))
    for code, target in said:
        assert (code, target["status"], target["error"]["code"]) == (1, "conflict", "publish_conflict"), target
    assert somebody.witness.seen[log_key.name] == seen


def test_what_several_witnesses_have_cosigned_leaves_with_the_ledger(desk, log_key):
    run(desk)
    sizes = {}
    for _ in range(2):
        somebody = Somebody(log_key)
        sizes[somebody.vkey] = published(desk, somebody)[1]["size"]
    assert len(set(sizes.values())) == 1
    for _ in range(2):
        assert ledger_peer.verify(exported(desk), [log_key.vkey, *sizes]).cosigned == sizes
        run(desk)
