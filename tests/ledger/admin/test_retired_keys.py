"""A key that another has replaced signs nothing after that, however it is tried: by both verifiers, and everywhere else."""

import io
import json
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from ledger_fixtures import CALM, SMALL, Log, large_says, lost, private_key, rotated, signer, small_says, witness
from published_log import Log as PublishedLog

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.keys.signing_key_files import KEY_FILE
from mcp_bridge.ledger.log import entry_encoding
from mcp_bridge.ledger.log.key_history import keys_of
from mcp_bridge.ledger.log.log_payloads import KeyEvent
from mcp_bridge.ledger.proofs import export_verification, notes
from mcp_bridge.ledger.proofs.signing import Signer, Verifier
from mcp_bridge.ledger.publish.targets import Target
from mcp_bridge.ledger.publish.to_file import publish_to_file
from mcp_bridge.ledger.storage.schema import FILE_NAME

FIRST, SECOND, THIRD = (signer(seed).vkey for seed in ("first", "second", "third"))
GIVEN = (None, (FIRST,), (SECOND,), (FIRST, SECOND), (FIRST, witness().vkey))


def both_say(data, vkeys, against=()):
    """What the large verifier says, if the small one says as much."""
    large = large_says(data, vkeys, against)
    assert (large is None) == (small_says(data, vkeys, against) is None), large
    return large


def replaced(*, is_lost=False):
    """A log whose key was replaced, with the checkpoint of that and one after it."""
    log = Log().fill(3)
    log.checkpoint()
    log.replace_key("second", lost=is_lost).fill(2).checkpoint()
    return log


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("is_lost", [False, True])
def test_an_entry_that_is_forged_after_the_key_was_replaced_is_refused(given, is_lost):
    log = replaced(is_lost=is_lost)
    log.append(payload=b'"forged"')
    log.checkpoint(signer("first"))
    assert both_say(log.export(), given) == "retired_key"


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("is_lost", [False, True])
def test_so_is_one_in_the_place_of_what_the_new_key_has_signed(given, is_lost):
    """With nothing in the file that the new key has signed: only the entry that names it."""
    log = Log().fill(3)
    log.replace_key("second", lost=is_lost)
    log.append(payload=b'"forged"')
    log.checkpoints = log.checkpoints[:1]
    log.checkpoint(signer("first"))
    assert both_say(log.export(), given) == "retired_key"


def test_a_rotated_key_last_signs_its_rotation_and_a_lost_key_the_entry_before():
    log = Log().fill(3)
    log.replace_key("second").checkpoints.clear()
    log.checkpoint(signer("first"))
    assert both_say(log.export(), (FIRST,)) is None
    log = Log().fill(3)
    log.replace_key("second", lost=True)
    log.checkpoint(signer("first"))
    assert both_say(log.export(), (FIRST,)) == "retired_key"


def test_a_replaced_key_is_put_in_use_again_by_nobody():
    log = replaced()
    log.append(kind="key", execution=entry_encoding.LEDGER, payload=KeyEvent("rotated", FIRST, SECOND).to_bytes())
    log.append(payload=b'"forged"')
    log.checkpoint(signer("first"))
    for vkeys in GIVEN:
        assert both_say(log.export(), vkeys) == "bad_entry"
    log.checkpoints.pop()
    log.checkpoint(signer("second"))
    assert both_say(log.export(), (SECOND,)) == "bad_entry"


def test_a_replaced_key_vouches_for_the_next_one_by_no_later_checkpoint():
    log = Log().fill(2)
    log.replace_key("second", vouched=False).fill(2)
    log.checkpoints = [log.checkpoint(signer("first"), size=5), log.checkpoint()]
    assert both_say(log.export(), (FIRST,)) == "retired_key"


def test_what_a_replaced_key_adds_to_the_next_ones_signature_says_nothing():
    log = replaced()
    log.fill(1).checkpoint(log.key, signer("first"))
    assert both_say(log.export(), (FIRST,)) is None
    assert both_say(log.export(), (SECOND,)) is None
    # And where the checkpoint that vouches is gone, it vouches for nothing.
    log.checkpoints = log.checkpoints[-1:]
    assert both_say(log.export(), (FIRST,)) == "untrusted_key"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_checkpoint_kept_elsewhere_that_a_replaced_key_has_signed_too_late_is_refused(is_lost):
    log = replaced(is_lost=is_lost)
    late = notes.sign_checkpoint(log.state(6), signer("first"))
    in_time = notes.sign_checkpoint(log.state(4 if is_lost else 5), signer("first"))
    given = (FIRST, SECOND)
    assert both_say(log.export(), given, (in_time,)) is None
    assert both_say(log.export(), given, (late,)) == "retired_key"
    assert both_say(log.export(), None, (late,)) == "retired_key"


@CALM
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=4),
    st.integers(0, 4),
    st.integers(0, 2),
    st.lists(st.integers(0, 4), max_size=2),
)
def test_a_log_is_accepted_by_who_trusts_its_first_key_where_the_key_of_then_has_signed(events, by, more, between):
    """Any keys one after the other, rotated or lost; any of them signs at last, and between."""
    log = Log().fill(1)
    for number, (count, is_lost) in enumerate(events):
        log.replace_key(f"k{number}", lost=is_lost).fill(count)
        if number in between:
            log.checkpoint(signer(f"k{min(between)}"))
    log.fill(more + 1)
    names = ["first", *(f"k{number}" for number in range(len(events)))]
    seed = names[min(by, len(names) - 1)]
    log.checkpoint(signer(seed))
    sizes = [int(note.split("\n")[1]) for note in log.checkpoints]
    said = both_say(log.export(), (FIRST,))
    if sizes != sorted(set(sizes)):
        return
    if seed != names[-1]:
        assert said is not None
    if said is None:
        assert not any(is_lost for _, is_lost in events)


def test_the_keys_of_a_log_are_good_for_as_long_as_they_were_in_use():
    events = [
        (0, KeyEvent("made", FIRST)),
        (5, KeyEvent("rotated", SECOND, FIRST)),
        (9, KeyEvent("lost", THIRD, SECOND)),
    ]
    found = keys_of(events)
    assert [(key.vkey, key.until) for key in found] == [(FIRST, 6), (SECOND, 9), (THIRD, None)]
    assert [found[0].may_sign(size) for size in (0, 6, 7)] == [True, True, False]


def test_a_verdict_names_a_key_that_was_replaced_as_lost():
    found = export_verification.verify_export(io.BytesIO(lost().export()), [Verifier.parse(SECOND)])
    assert found.lost == ((3, FIRST, SECOND),)
    assert export_verification.verify_export(io.BytesIO(rotated().export()), [Verifier.parse(THIRD)]).lost == ()


# --- with a ledger


@pytest.fixture
def replaced_ledger(desk):
    """A real ledger whose key was rotated; `old` is the private one of before, and `new` the public one of now."""
    desk.run("program", "run", "clean", "--context", '{"name": "a"}', code=5)
    desk.key = desk.run("audit", "key").out.strip()
    desk.old = Signer(
        desk.key.partition("+")[0],
        Ed25519PrivateKey.from_private_bytes((desk.state / KEY_FILE).read_bytes()),
    )
    assert desk.old.vkey == desk.key
    desk.new = desk.run("audit", "rotate-key", "--json").json["key"]
    desk.run("program", "run", "clean", "--context", '{"name": "b"}', code=5)
    return desk


def forge(desk, data):
    """An export with one more entry, signed with the old key."""
    lines = data.splitlines(keepends=True)
    header = json.loads(lines[0])
    size = header["size"]
    log = Log(origin=header["origin"])
    log.entries, log.payloads, log.rows, log.heads, log.frontier = [], [], [], {}, type(log.frontier)()
    for line in lines[1 : size + 1]:
        found = json.loads(line)
        entry = found["entry"].encode()
        leaf = entry_encoding.decode(entry)
        log.entries.append(entry)
        payload = found["payload"]
        log.payloads.append((payload and payload.encode(), found["salt"] and bytes.fromhex(found["salt"])))
        log.rows.append(log.frontier.append(entry_encoding.leaf_hash(entry)))
        log.heads[leaf.execution] = entry_encoding.leaf_hash(entry).hex()
    log.checkpoints = [json.loads(line)["checkpoint"] for line in lines[size + 1 :]]
    log.append(execution="forged", kind="start", payload=b'"forged"', time=leaf.time + 1)
    log.checkpoint(desk.old)
    return log


def test_what_is_forged_with_the_old_key_of_a_real_ledger_is_refused(replaced_ledger):
    desk = replaced_ledger
    export, forged = desk.folder / "x.jsonl", desk.folder / "forged.jsonl"
    desk.run("audit", "export", export)
    log = forge(desk, export.read_bytes())
    forged.write_bytes(log.export())
    for key in (desk.key, desk.new):
        desk.run("audit", "verify", export, "--key", key)
        desk.says("audit", "verify", forged, "--key", key, code=1, words=["retired_key", "another has replaced"])
        desk.says("audit", "prove", "1", forged, "--key", key, code=1, words=["retired_key"])
        small = subprocess.run([sys.executable, SMALL, forged, "--key", key], check=False, capture_output=True)
        assert (small.returncode, small.stdout[:11]) == (1, b"not genuine")
    kept = desk.write("kept.txt", log.checkpoints[-1])
    # By the ledger's own word of its keys, too.
    desk.says("audit", "consistency", kept, code=1, words=["retired_key"])
    desk.says("audit", "verify", "--checkpoint", kept, code=1, words=["retired_key"])


def test_an_entry_is_proven_to_who_has_the_old_key_alone(replaced_ledger):
    """Of what that key has signed, by itself; of what came after it, by the key that it vouches for, which is named."""
    desk = replaced_ledger
    export, proof = desk.folder / "x.jsonl", desk.folder / "proof"
    desk.run("audit", "export", export)
    entries = desk.run("audit", "stats", "--json").json["entries"]
    told = desk.run("audit", "prove", "1", export, "--key", desk.key, "--out", proof)
    assert "vouches" not in told.err
    for key in (desk.key, desk.new):
        assert desk.run("audit", "verify", proof, "--key", key, "--json").json["entry"]["sequence"] == 1
    proof.unlink()
    told = desk.run("audit", "prove", str(entries - 1), export, "--key", desk.key, "--out", proof)
    assert f"verifies with --key '{desk.new}', for which the key that was named vouches" in told.err
    desk.run("audit", "verify", proof, "--key", desk.new)
    desk.says("audit", "verify", proof, "--key", desk.key, code=1, words=["unknown_key"])


def test_a_ledger_says_which_of_its_keys_were_lost(desk):
    desk.run("program", "run", "clean", "--context", '{"name": "a"}', code=5)
    old = desk.run("audit", "key").out.strip()
    (desk.state / KEY_FILE).unlink()
    new = desk.run("audit", "rotate-key", "--lost", "--json").json["key"]
    told = desk.run("audit", "verify")
    assert f"the key {old} was replaced as lost with entry " in told.out
    assert new in told.out
    (found,) = desk.run("audit", "verify", "--json").json["lost"]
    assert (found["key"], found["by"]) == (old, new)
    export = desk.folder / "x.jsonl"
    desk.run("audit", "export", export)
    # Who has the old key is told which key it is that they do not know.
    desk.says(
        "audit",
        "verify",
        export,
        "--key",
        old,
        code=1,
        words=["untrusted_key", new, "as lost", f"entry {found['entry']}"],
    )
    small = subprocess.run([sys.executable, SMALL, export, "--key", new], check=True, capture_output=True, text=True)
    assert f"a key was replaced as lost with entry {found['entry']}" in small.stdout


def test_the_state_of_a_ledger_is_not_that_which_a_replaced_key_has_signed(desk):
    """A checkpoint put among those that are kept, by who has the old key and the file."""
    import sqlite3
    from contextlib import closing

    desk.run("program", "run", "clean", "--context", '{"name": "a"}', code=5)
    key = desk.run("audit", "key").out.strip()
    old = Signer(key.partition("+")[0], Ed25519PrivateKey.from_private_bytes((desk.state / KEY_FILE).read_bytes()))
    desk.run("audit", "rotate-key")
    desk.run("program", "run", "clean", "--context", '{"name": "b"}', code=5)
    text = desk.run("audit", "checkpoint").out.partition("\n\n")[0] + "\n"
    size = int(text.split("\n")[1])
    desk.run("program", "run", "clean", "--context", '{"name": "c"}', code=5)
    with closing(sqlite3.connect(desk.state / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("INSERT INTO checkpoints VALUES (?, ?, x'00')", (size, f"{text}\n{old.sign(text)}"))
    desk.says("audit", "verify", "--key", key, code=1, words=["retired_key"])


# --- with a published file


async def test_who_has_a_replaced_key_and_can_add_to_a_published_file_causes_no_alarm(tmp_path):
    old = private_key("old")
    log = PublishedLog(4, key=old)
    target = Target(file=tmp_path / "kept.notes")
    await publish_to_file(target, log.note(), log)
    rotation = log.grow(1).note()
    now = PublishedLog(7)

    async def keys():
        return [log.verifier.retired(5), now.verifier]

    async def rotations():
        return [notes.add_signature(rotation, now.signer.sign(rotation.partition("\n\n")[0] + "\n"))]

    now.keys, now.rotations = keys, rotations
    await publish_to_file(target, now.note(), now)
    forged = PublishedLog(6, key=old, fork=3)
    genuine = target.file.read_text()
    target.file.write_text(f"{genuine}\n{forged.note()}")
    assert (await publish_to_file(target, now.grow(1).note(), now)).size == 8
    # What it has signed while it was in use is the log's own word.
    target.file.write_text(f"{genuine}\n{forged.note(5)}")
    with pytest.raises(BridgeError, match="the log was rewritten") as caught:
        await publish_to_file(target, now.note(), now)
    assert caught.value.code == "publish_conflict"


def test_a_key_that_nobody_would_verify_any_more_is_not_made(monkeypatch, desk):
    monkeypatch.setattr("mcp_bridge.ledger.admin.key_rotation.MAX_KEYS", 2)
    monkeypatch.setattr("mcp_bridge.ledger.log.key_history.MAX_KEYS", 2)
    desk.suspended()
    desk.run("audit", "rotate-key")
    desk.says("audit", "rotate-key", code=1, words=["too_many_keys", "2 keys"])
    desk.run("audit", "verify")
