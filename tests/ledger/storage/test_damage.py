"""Hosts killed with -9, then bytes of their ledger changed, then everything run again: nothing is done twice in silence.

SQLite takes a write-ahead log to end where a checksum fails, and an index that was damaged finds nothing: either way the
ledger would know less than it had said, and what it no longer knows would be done again. So of each damage: the next
host says so by a stable code, or it goes on as if nothing had been damaged. `MCP_BRIDGE_TEST_LONG=1` asks for many more.
"""

import collections
import json
import shutil

import pytest
from crash_fixtures import BOUNDED, ENDS, LONG, ended, lines, tool
from generated_programs import chance

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.admin.recorded_losses import accept_loss
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.storage.schema import FILE_NAME

pytestmark = BOUNDED

PROGRAM = {
    "name": "damaged",
    "steps": [
        tool("once", "a", compensate={"tool": "once", "args": {"step": "undo a"}}),
        {
            "id": "both",
            "type": "parallel",
            "parallel_steps": [tool("once", "b"), tool("again", "c"), tool("once", "d")],
        },
        {"id": "ask", "type": "approval", "message": "Go on?"},
        *(tool("once", f"e{number}", f"${'a' if not number else f'e{number - 1}'}") for number in range(4)),
    ],
}

REFUSALS = {
    *("ledger_behind", "ledger_head_damaged", "ledger_damaged", "database_unusable", "database_newer"),
    *("not_recorded", "key_unusable"),
}
"""What a host says that finds a damage."""

CASES = 32
"""Damages of what one kill has left: each kind twice."""

KILLS = 90 if LONG else 6


# --- damages: each changes the bytes of one file


def byte(data, rng):
    place = rng.randrange(len(data))
    data[place] ^= rng.choice((0x01, 0x20, 0x80, 0xFF, rng.randrange(1, 256)))


def bytes_(data, rng):
    for _ in range(rng.randint(2, 16)):
        byte(data, rng)


def head(data, rng):
    data[rng.randrange(min(64, len(data)))] ^= rng.randrange(1, 256)


def sector(data, rng):
    place = rng.randrange(len(data)) // 512 * 512
    data[place : place + 512] = rng.choice((bytes(512), rng.randbytes(512)))


def cut_off(data, rng):
    del data[rng.randrange(len(data)) :]


def last(data, rng):
    """A byte of the last commits."""
    place = max(0, len(data) - rng.randrange(1, 3 * 4120))
    data[place] ^= rng.randrange(1, 256)


DAMAGES = [
    *((damage, "-wal") for damage in (byte, byte, byte, bytes_, head, sector, cut_off, last)),
    *((damage, "") for damage in (byte, byte, bytes_, head, sector, cut_off)),
    *((damage, "-shm") for damage in (byte, sector)),
]


def damaged(one, number, rng):
    """A copy of a host's directory with a damage, and what that is; no copy, if nothing is changed by it."""
    there = [suffix for suffix in ("-wal", "", "-shm") if (one.state / f"{FILE_NAME}{suffix}").exists()]
    damages = [(damage, suffix) for damage, suffix in DAMAGES if suffix in there]
    damage, suffix = damages[number % len(damages)]
    copy = one.folder.with_name(f"{one.folder.name}.{number}")
    shutil.copytree(one.folder, copy)
    path = copy / "state" / f"{FILE_NAME}{suffix}"
    data = bytearray(path.read_bytes())
    before = bytes(data)
    damage(data, rng)
    path.write_bytes(data)
    return (copy if data != before else None), f"{damage.__name__} of {path.name}, number {number}"


def at(one, copy):
    """The same runs, in a copy."""
    moved = type(one).__new__(type(one))
    moved.__dict__ |= one.__dict__
    moved.folder, moved.state = copy, copy / "state"
    moved.effects, moved.acknowledged = copy / "effects", copy / "told"
    return moved


def check(one, told, what):
    """That nothing was done twice, and nothing is forgotten that somebody was told of."""
    begun = collections.Counter(
        # An undoing that was half done, as a person has said, is tried again, as another effect.
        (row["step"], row["effect"] if row["step"].startswith("undo") else None)
        for row in lines(one.effects)
        if row["did"] == "begin" and row["tool"] != "again"
    )
    assert all(count == 1 for count in begun.values()), (what, told, begun)
    if "status" not in told:
        assert told["code"] in REFUSALS, (what, told)
        assert told["hint"], (what, told)
        return told["code"]
    assert told["status"] in ENDS, (what, told)
    for record in (row for row in lines(one.acknowledged) if row["program"] == told["program"]):
        assert record["trace_id"] == told["trace_id"], (what, "what was acknowledged is gone")
        if record["status"] != "suspended":
            assert record == told, (what, "what was acknowledged is another")
    return ""


def ways(rng):
    """How the ledger of a case comes about: what is in the file, and where its last host is killed."""
    points = ("before durable intent", "before effect", "amid effect", "after effect", "before outcome", "before end")
    kill = {"point": rng.choice(points), "nth": rng.randint(1, 6)}
    return kill if rng.random() < 0.7 else {"seconds": rng.random() * 0.15}


@pytest.mark.parametrize("seed", range(KILLS))
def test_after_a_kill_and_a_damage_nothing_is_done_twice_in_silence(runs, seed, record_property):
    rng = chance(seed)
    one = runs(PROGRAM, {"x": "a"})
    if seed % 3 == 1:
        # Something of another host, that has left in order: the file has more than its first page.
        program, one.program = one.program, {"name": "other", "steps": [tool("again", "z")]}
        ended(one.start(key="other"))
        one.program = program
    for _ in range(1 + seed % 2):
        ended(one.start(ways(rng)))
    if seed % 3 == 2:
        # Ended, and left in order: all of it is in the file.
        assert ended(one.start())["status"] in ENDS
    if not (one.state / FILE_NAME).exists():
        # Killed before there was a ledger: nothing is there to be damaged.
        return
    started, codes = [], collections.Counter()
    for number in range(CASES):
        copy, what = damaged(one, number, rng)
        if copy is None:
            continue
        moved = at(one, copy)
        started.append((moved, moved.start(), what))
        if len(started) >= 4:
            codes[check_started(started.pop(0))] += 1
    for waiting in started:
        codes[check_started(waiting)] += 1
    record_property("cases", sum(codes.values()))
    print(codes)
    assert sum(codes.values()) > CASES // 2


def check_started(waiting):
    moved, out, what = waiting
    code = check(moved, ended(out), what)
    if code in {"ledger_behind", "ledger_head_damaged"} and (LONG or what.endswith(("0", "5"))):
        # A person's word is recorded; after that the log is one like any other.
        loss = accepted(moved.state)
        told = ended(moved.start())
        assert "status" in told or told["code"] in REFUSALS - {code}, (what, told)
        if loss is not None and "status" in told:
            assert losses(moved.state)[-1]["has"] == loss.has
    shutil.rmtree(moved.folder)
    return code


def accepted(state):
    """What a person has accepted; None where more is damaged than the end."""
    try:
        return accept_loss(state / FILE_NAME, "file", "anna")
    except BridgeError as error:
        if error.code not in REFUSALS:
            raise
    return None


def losses(state):
    with open_ledger(state / FILE_NAME) as ledger:
        return [json.loads(entry.payload) for entry in ledger.entries() if entry.leaf.kind == "loss"]
