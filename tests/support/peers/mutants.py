"""What can be done to a ledger's files by somebody without its key, and by its holder.

Every mutant has a kind, its bytes, the keys that its reader trusts, and the checkpoints that the reader has kept.
"""

import base64
import json
from dataclasses import dataclass, replace

from peers.ledger_peer import COSIGNATURE, PROOF, leaf_hash
from peers.tlog_peer import START, Book, Signer, to_base64

WITNESS = Signer("witness.example/w1", "witness", COSIGNATURE)
OTHER_WITNESS = Signer("witness.example/w2", "another witness", COSIGNATURE)
STRANGER = Signer("mcp-code-bridge/0123456789abcdef", "a stranger")


@dataclass(frozen=True)
class Case:
    """A file and its reader.

    Attributes:
        kind: What was done.
        data: The file.
        vkeys: The keys that the reader trusts.
        kept: The notes that the reader has kept.
    """

    kind: str
    data: bytes
    vkeys: tuple = ()
    kept: tuple = ()

    @property
    def is_proof(self):
        return self.data.startswith(b"c2sp.org/")


# Without any key: bytes.


def a_byte(chance, data):
    at = chance.randrange(len(data))
    how = chance.randrange(6)
    if how == 0:
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if how == 1:
        return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    if how == 2:
        return data[:at] + data[at + 1 :]
    if how == 3:
        return data[:at] + bytes([chance.choice(b'0129aAfF +/="\\,:{}[]\n\r\t\x00\x7f\xe2\xff')]) + data[at:]
    if how == 4:
        return data[:at]
    other = chance.randrange(len(data))
    return data[:at] + data[other : other + chance.randrange(1, 9)] + data[at:]


def a_character(chance, data):
    """A character is another of its kind, so that the form stays right."""
    kinds = (b"0123456789", b"abcdef", b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
    at = chance.randrange(len(data))
    for kind in kinds:
        if data[at] in kind:
            return data[:at] + bytes([chance.choice(kind)]) + data[at + 1 :]
    return data[:at] + data[at : at + 1] + data[at:]


# Without any key: lines.


def a_line(chance, data, others):
    lines = data.split(b"\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    how = chance.randrange(9)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(other, lines[at])
    elif how == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif how == 3:
        lines.insert(other, lines.pop(at))
    elif how == 4:
        lines[at] = chance.choice(chance.choice(others).split(b"\n"))
    elif how == 5:
        lines.insert(at, chance.choice(chance.choice(others).split(b"\n")))
    elif how == 6:
        lines.insert(at, chance.choice((b"", b" ", b"\r", b"null", b"{}", b"[]", b"# comment")))
    elif how == 7:
        lines[at] = chance.choice((b" ", b"")) + lines[at] + chance.choice((b" ", b"\r", b"\t"))
    else:
        lines[at:other] = lines[at:other][::-1]
    return b"\n".join(lines)


# Without any key: JSON.

VALUES = (
    None, True, False, 0, 1, -1, 7, 2**53 - 1, 2**53, 2**63, 2**64, 10**400, 1.5, 1e300, -0.0, "", " ", "0", "1", "ledger",
    "key", "e1", "\u00e4", "\ud800", "a" * 64, "A" * 64, "0" * 63, "0" * 65, "\u0660" * 64, [], {}, [1], {"a": 1},
)  # fmt: skip


def _change(chance, value, extra=()):
    """A JSON object with something else in it."""
    value = dict(value)
    names = sorted(value)
    how = chance.randrange(7)
    if how == 0 and names:
        del value[chance.choice(names)]
    elif how == 1:
        value[chance.choice(("x", "", "Entry", "entry ", "checkpoint", "payload", "format", "sequence"))] = (
            chance.choice(VALUES)
        )
    elif how == 2 and len(names) > 1:
        one, two = chance.sample(names, 2)
        value[one], value[two] = value[two], value[one]
    elif how == 3 and names:
        name = chance.choice(names)
        value[chance.choice(("renamed", name.upper(), name + "s"))] = value.pop(name)
    elif how == 4 and names:
        name = chance.choice(names)
        if isinstance(value[name], int):
            value[name] += chance.choice((-1, 1, 10, -1000))
        elif isinstance(value[name], str):
            value[name] = chance.choice((value[name].upper(), value[name] + " ", value[name][:-1], value[name] * 2))
    elif names:
        value[chance.choice(names)] = chance.choice((*VALUES, *extra))
    return value


def _dump(chance, value):
    """JSON, now and then in another form that says the same."""
    how = chance.randrange(12)
    if how == 0:
        return json.dumps(value, sort_keys=True).encode()
    if how == 1:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    if how == 2 and isinstance(value, dict):
        return json.dumps(dict(reversed(value.items())), separators=(",", ":")).encode()
    if how == 3 and isinstance(value, dict) and value:
        name = chance.choice(sorted(value))
        twice = json.dumps({name: value[name]})[1:-1]
        return (json.dumps(value, separators=(",", ":"), sort_keys=True)[:-1] + "," + twice + "}").encode()
    if how == 4:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).replace("e", "\\u0065", 1).encode()
    if how == 5:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).replace("/", "\\/").encode()
    if how == 6:
        return json.dumps(value, separators=(",", ":"), sort_keys=True, indent=1).encode()
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def a_field(chance, data):
    """A field of a line, of an entry in it, or of what an entry about a key says."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines) - 1)
    try:
        value = json.loads(lines[at])
    except ValueError:
        return a_byte(chance, data)
    if not isinstance(value, dict):
        return a_byte(chance, data)
    how = chance.randrange(4)
    if how == 0 and isinstance(value.get("entry"), str):
        value["entry"] = _dump(chance, _change(chance, json.loads(value["entry"]))).decode("utf-8", "surrogatepass")
    elif how == 1 and "checkpoint" in value:
        value["checkpoint"] = a_note(chance, value["checkpoint"])
    elif how == 2 and "payload" in value:
        value |= chance.choice(({"payload": None, "salt": None}, {"payload": None}, {"salt": None}, {"payload": "{}"}))
    else:
        value = _change(chance, value)
    lines[at] = _dump(chance, value)
    return b"\n".join(lines)


def a_note(chance, note):  # noqa: C901, PLR0912  (many ways, none of them deep)
    """A note with something else in it; nobody's key is needed for that."""
    text, _, signatures = note.rpartition("\n\n")
    lines = signatures.split("\n")[:-1] or [""]
    fields = [*text.split("\n"), "", ""]
    how = chance.randrange(16)
    if how == 0:
        lines.append(chance.choice(lines))
    elif how == 1:
        lines.reverse()
    elif how == 2:
        lines.pop(chance.randrange(len(lines)))
    elif how == 3:
        lines.append(STRANGER.line(text + "\n").rstrip("\n"))
    elif how == 4:
        lines.append(OTHER_WITNESS.line(text + "\n").rstrip("\n"))
    elif how == 5:
        lines = [f"\u2014 {' '.join(line.split(' ')[1:2])} {line.split(' ')[-1][::-1]}" for line in lines]
    elif how == 6:
        fields[1] = chance.choice(("0" + fields[1], "+" + fields[1], fields[1] + " ", "\u0661", "-1", "1" * 30, "0"))
    elif how == 7:
        fields.insert(3, chance.choice(("extension", "", " ")))
    elif how == 8:
        fields[0] = chance.choice((fields[0] + " ", "", fields[0].upper(), "x"))
    elif how == 9:
        lines = [line.replace("\u2014", chance.choice(("-", "--", "\u2013", "\u2014 "))) for line in lines]
    elif how == 10:
        lines = [line.rstrip("=") for line in lines]
    elif how == 11:
        # Names and ids of keys that are known, with a signature that isn't theirs.
        lines.append(lines[-1][:-10] + "AAAAAAAA" + lines[-1][-2:])
    elif how == 12:
        lines = lines * 40
    elif how == 13:
        return note + chance.choice(("\n", " ", "x", "\n\n", note))
    elif how == 14:
        return note.rstrip("\n")
    else:
        lines.append("\u2014 unknown.example AAAAAAECAwQ=")
    text = "\n".join(fields[:-2])
    return f"{text}\n\n" + "".join(f"{line}\n" for line in lines)


def a_proofs_part(chance, data):
    """A proof's extra data, index, hashes or checkpoint."""
    head, _, note = data.decode().partition("\n\n")
    lines = head.split("\n")
    how = chance.randrange(9)
    if how == 0:
        lines[2] = chance.choice(
            (f"index {chance.randrange(12)}", "index 01", "index -1", "index  1", "index 1e0", "Index 1")
        )
    elif how == 1:
        del lines[1]
    elif how == 2:
        extra = json.loads(base64.b64decode(lines[1].split(" ")[1]))
        lines[1] = "extra " + to_base64(_dump(chance, _change(chance, extra)))
    elif how == 3:
        extra = json.loads(base64.b64decode(lines[1].split(" ")[1]))
        entry = _dump(chance, _change(chance, json.loads(extra["entry"]))).decode("utf-8", "surrogatepass")
        lines[1] = "extra " + to_base64(_dump(chance, extra | {"entry": entry}))
    elif how == 4 and len(lines) > 3:
        lines.pop(chance.randrange(3, len(lines)))
    elif how == 5:
        lines.insert(chance.randrange(3, len(lines) + 1), to_base64(bytes(chance.randrange(30, 34))))
    elif how == 6:
        lines[3:] = lines[3:][::-1]
    elif how == 7:
        lines[0] = chance.choice((PROOF + " ", "c2sp.org/tlog-proof@v2", PROOF.upper(), ""))
    else:
        note = a_note(chance, note)
    return ("\n".join(lines) + "\n\n" + note).encode("utf-8", "surrogatepass")


# By a holder of the log's key: everything is computed anew.


def a_book(chance):
    """A log with some keys, checkpoints and cosignatures, all of it right."""
    book = Book(chance.choice(("book", "another")))
    for _ in range(chance.randrange(1, 4)):
        book.fill(chance.randrange(1, 4))
        if chance.random() < 0.5:
            book.checkpoint(*(book.signers[-1:] + chance.choice(([], [], [WITNESS], [WITNESS, OTHER_WITNESS]))))
        if chance.random() < 0.5:
            book.fill(chance.randrange(2))
            book.replace_key(f"key {len(book.signers)}", chance.choice(("rotated", "rotated", "lost")))
    return book.fill(chance.randrange(1, 3)).checkpoint()


def readers(chance, book):
    """The keys that a reader may trust, and the notes that they may have kept."""
    keys = [signer.vkey for signer in book.signers]
    kept = []
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        size = chance.randrange(1, book.size + 1)
        kept.append(book.note(size, *chance.sample(book.signers, chance.randrange(1, len(book.signers) + 1))))
    pick = chance.sample(keys, chance.randrange(1, len(keys) + 1))
    pick += chance.choice(([], [], [], [WITNESS.vkey], [STRANGER.vkey], [OTHER_WITNESS.vkey]))
    return tuple(pick), tuple(kept)


def forge(chance, book):
    """What the holder of all of a log's keys has done to it; the kind of it."""
    kind = chance.choice(FORGERIES)
    kind(chance, book)
    return kind.__name__


def signed_by_an_old_key(chance, book):
    at = chance.randrange(len(book.points))
    size, _ = book.points[at]
    book.points[at] = (size, tuple(chance.sample(book.signers, chance.randrange(1, len(book.signers) + 1))))


def signed_by_a_stranger(chance, book):
    at = chance.randrange(len(book.points))
    size, signers = book.points[at]
    book.points[at] = (size, chance.choice(((STRANGER,), (*signers, STRANGER), (STRANGER, *signers), (WITNESS,))))


def other_checkpoints(chance, book):
    how = chance.randrange(5)
    if how == 0:
        chance.shuffle(book.points)
    elif how == 1:
        book.points.pop(chance.randrange(len(book.points)))
    elif how == 2:
        book.points.insert(chance.randrange(len(book.points) + 1), chance.choice(book.points))
    elif how == 3:
        size = chance.randrange(1, book.size + 1)
        book.points.insert(chance.randrange(len(book.points) + 1), (size, (chance.choice(book.signers),)))
    else:
        book.points = book.points[-1:]


def another_number(chance, book):
    chance.choice(book.entries)["sequence"] = chance.choice((0, 1, book.size, 2**53 - 1, -1))


def another_time(chance, book):
    entry = chance.choice(book.entries)
    entry["time"] = chance.choice((0, -1, START, START + 10**9, 2**53 - 1, entry["time"] - 1, entry["time"] + 1500))


def another_chain(chance, book):
    entry = chance.choice(book.entries)
    entry["previous"] = chance.choice((None, "0" * 64, leaf_hash(book.texts()[0].encode()).hex(), "A" * 64, "0", 0))


def another_field(chance, book):
    entry = chance.choice(book.entries)
    name = chance.choice(("execution", "kind", "policy", "program", "step", "commitment", "more"))
    values = ("", " ", "x", "x" * 5000, "ledger", "key", "made-up", "\u0000", "\u00e4", "0" * 64, None, 7, True, [], {})
    entry[name] = chance.choice(values)


def another_payload(chance, book):
    entry = chance.choice(book.entries)
    if entry["kind"] != "key":
        entry["payload"] = chance.choice(
            ("", "null", "{", '{"a":1,"a":2}', "\u0000", "x" * 5000, "1e999", " {} ", "\ufeff{}")
        )
        entry["told"] = True


def withheld(chance, book):
    entry = chance.choice(book.entries)
    entry["told"] = not entry["told"]


def another_event(chance, book):
    at = chance.choice([number for number, entry in enumerate(book.entries) if entry["kind"] == "key"])
    entry = book.entries[at]
    event = json.loads(entry["payload"])
    how = chance.randrange(6)
    if how == 0:
        event = _change(chance, event, extra=[signer.vkey for signer in (*book.signers, STRANGER, WITNESS)])
    elif how == 1:
        event["vkey"] = chance.choice((*book.signers, STRANGER, WITNESS)).vkey
    elif how == 2:
        event["from"] = chance.choice((*book.signers, STRANGER, WITNESS)).vkey
    elif how == 3:
        event["event"] = chance.choice(("made", "rotated", "lost", "found", ""))
    elif how == 4:
        event |= {"vkey": event.get("from", event["vkey"]), "from": event["vkey"]}
    else:
        event["more"] = 1
    entry["payload"] = _dump(chance, event).decode("utf-8", "replace")


def an_event_elsewhere(chance, book):
    how = chance.randrange(4)
    keys = [entry for entry in book.entries if entry["kind"] == "key"]
    if how == 0:
        chance.choice(keys)["execution"] = "e1"
    elif how == 1:
        chance.choice(keys)["kind"] = "outcome"
    elif how == 2:
        chance.choice(keys)["told"] = False
    else:
        book.append("key", chance.choice(("ledger", "e1")), chance.choice(keys)["payload"]).checkpoint()


def about_the_log(chance, book):
    """Entries of the log's own, of other kinds than about keys."""
    kind = chance.choice(("erasure", "clock", "loss", "outcome", "start", "key"))
    book.append(
        kind,
        chance.choice(("ledger", "e1")),
        chance.choice(("{}", '{"executions":["e1"]}', "x")),
        told=chance.random() < 0.5,
    )
    book.checkpoint()


def cut_off(chance, book):
    del book.entries[chance.randrange(1, book.size + 1) :]
    book.points = [point for point in book.points if point[0] <= book.size]
    if chance.random() < 0.7:
        book.checkpoint(chance.choice(book.signers))


def another_size(chance, book):
    at = chance.randrange(len(book.points))
    book.points[at] = (chance.randrange(1, book.size + 1), book.points[at][1])


def nothing(chance, book):
    """It is genuine."""


FORGERIES = (
    signed_by_an_old_key, signed_by_a_stranger, other_checkpoints, another_number, another_time, another_chain,
    another_field, another_payload, withheld, another_event, an_event_elsewhere, about_the_log, cut_off, another_size, nothing,
)  # fmt: skip


def forged(chance):
    """A case that a holder of the keys has made: an export or a proof, and a reader of some sort."""
    book = a_book(chance)
    kind = forge(chance, book)
    keys, kept = readers(chance, book)
    if chance.random() < 0.3:
        index = chance.randrange(book.size)
        size = chance.randrange(index + 1, book.size + 1)
        signers = chance.sample([*book.signers, WITNESS, STRANGER], chance.randrange(1, len(book.signers) + 2))
        data = book.proof(index, *signers, size=size, told=chance.random() < 0.7)
    else:
        data = book.export()
    return Case(f"forged: {kind}", data, chance.choice((keys, keys, keys, None)), kept)


def mutant(chance, case, others):
    """Something done to a file by somebody without a key."""
    ways = [a_byte, a_character, a_line, a_proofs_part if case.is_proof else a_field]
    way = chance.choice(ways)
    data = way(chance, case.data, others) if way is a_line else way(chance, case.data)
    return replace(case, kind=way.__name__, data=data)


def in_notes(chance, notes):
    """A file of checkpoints, as it was appended to, with some damage."""
    text = chance.choice(("", "\n")).join(notes)
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(text))
        how = chance.randrange(6)
        if how == 0:
            text = text[:at] + chance.choice("\n\n \r\x85\u2028\x0b\x1c\u2014x\x00\ufeff") + text[at:]
        elif how == 1:
            text = text[:at] + text[at + chance.randrange(1, 60) :]
        elif how == 2:
            text = text[:at] + chance.choice("\u2014 \n+aB9=/") + text[at + 1 :]
        elif how == 3:
            # A crash has cut one off, and the next was appended.
            text = text[:at] + chance.choice(("", "\n", "\n\n")) + chance.choice(notes)
        elif how == 4:
            text = chance.choice(("# kept\n", "\n", "kept\n\n", "\u2014 kept\n")) + text
        else:
            text += a_note(chance, chance.choice(notes))
    return text
