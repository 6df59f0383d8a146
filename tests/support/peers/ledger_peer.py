"""A verifier of the ledger's exports and proofs that shares no code with the project's two.

Written from what is published: RFC 6962 (Merkle trees), RFC 8785 (canonical JSON), C2SP signed-note, tlog-checkpoint,
tlog-cosignature and tlog-proof, and the page docs/ledger-format.md. Where it and the others disagree, one of them, or the page, is wrong.
"""

import base64
import hashlib
import hmac
import json
import re
import time
from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FORMAT = "mcp-code-bridge-ledger/1"
PROOF = "c2sp.org/tlog-proof@v1"
LEDGER = "ledger"
"""The execution of the entries that are about the log itself."""

ED25519, COSIGNATURE = 1, 4
"""Signature types of signed-note and tlog-cosignature."""

RETIRED = "a key has signed that had been replaced"
"""Why the files of somebody who has found or stolen an old key are refused."""

MAX_SIGNATURES = 64
MAX_AHEAD_SECONDS = 24 * 3600
"""How far a witness's clock may be ahead of the reader's."""
EARLIEST_SECONDS = 1_672_531_200
"""2023, the year of tlog-cosignature: there were none before."""

HASH = re.compile(r"[0-9a-f]{64}")
DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f]{0,4096}")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
KINDS = {
    "start", "intent", "outcome", "denial", "transition", "suspension", "resume", "decision", "event", "violation",
    "erasure", "key", "clock", "loss", "end",
}  # fmt: skip
ENTRY_FIELDS = {"commitment", "execution", "kind", "policy", "previous", "program", "sequence", "step", "time"}


class Refused(Exception):  # noqa: N818 - what a verifier does, and no fault of its
    """What was verified isn't what it says; why."""


def need(condition, what):
    if not condition:
        raise Refused(what)


# Canonical JSON, RFC 8785.


def decode(data):
    """The value of a canonical JSON text, which is refused if it is any other."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        need(canonical(value) == text, "the JSON is not canonical")
    except (ValueError, RecursionError):
        raise Refused("this is no JSON") from None
    return value


def _object(pairs):
    found = dict(pairs)
    need(len(found) == len(pairs), "a name is there twice")
    return found


def _constant(name):
    raise Refused(f"{name} is no number of JSON")


def canonical(value):
    """A value without fractions as RFC 8785 writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        need(abs(value) < 2**53, "a number is too large")
        return str(value)
    if isinstance(value, str):
        need(not any("\ud800" <= character <= "\udfff" for character in value), "half of a surrogate pair")
        return '"' + "".join(map(_escaped, value)) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    need(isinstance(value, dict), "no fractions are in what is hashed")
    names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return "{" + ",".join(f"{canonical(name)}:{canonical(value[name])}" for name in names) + "}"


def _escaped(character):
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
    if character in short:
        return short[character]
    return character if character >= " " else f"\\u{ord(character):04x}"


# Merkle trees, RFC 6962 section 2.1.


def leaf_hash(entry):
    return hashlib.sha256(b"\0" + entry).digest()


def node_hash(left, right):
    return hashlib.sha256(b"\1" + left + right).digest()


def split(size):
    """The largest power of two that is smaller than a size above 1."""
    return 1 << ((size - 1).bit_length() - 1)


class Tree:
    """A tree over leaf hashes; subtrees are computed once."""

    def __init__(self, leaves):
        self.leaves = list(leaves)
        self._whole = {}

    def root(self, size=None):
        size = len(self.leaves) if size is None else size
        return hashlib.sha256(b"").digest() if size == 0 else self.subtree(0, size)

    def subtree(self, start, end):
        if end - start == 1:
            return self.leaves[start]
        if (start, end) not in self._whole:
            middle = start + split(end - start)
            self._whole[start, end] = node_hash(self.subtree(start, middle), self.subtree(middle, end))
        return self._whole[start, end]

    def inclusion(self, index, size=None):
        """PATH(m, D[n]), from the leaf's sibling up."""
        return self._path(index, 0, len(self.leaves) if size is None else size)

    def _path(self, index, start, end):
        if end - start == 1:
            return []
        middle = start + split(end - start)
        if index < middle:
            return [*self._path(index, start, middle), self.subtree(middle, end)]
        return [*self._path(index, middle, end), self.subtree(start, middle)]

    def consistency(self, old, size=None):
        """PROOF(m, D[n])."""
        return self._growth(old, 0, len(self.leaves) if size is None else size, whole=True)

    def _growth(self, old, start, end, *, whole):
        if old == end:
            return [] if whole else [self.subtree(start, end)]
        middle = start + split(end - start)
        if old <= middle:
            return [*self._growth(old, start, middle, whole=whole), self.subtree(middle, end)]
        return [*self._growth(old, middle, end, whole=False), self.subtree(start, middle)]


def root_of_inclusion(index, size, leaf, path):
    """The root that an inclusion proof leads to, or None if it is of another length."""
    need(0 <= index < size, "the index is beyond the tree")

    def climb(index, size, path):
        if size == 1:
            need(not path, "the proof is too long")
            return leaf
        need(path, "the proof is too short")
        left = split(size)
        if index < left:
            return node_hash(climb(index, left, path[:-1]), path[-1])
        return node_hash(path[-1], climb(index - left, size - left, path[:-1]))

    return climb(index, size, list(path))


def roots_of_consistency(old, new, old_root, path):
    """The old and the new root that a consistency proof leads to."""
    need(0 < old < new, "these sizes need no proof")

    def climb(old, size, path, *, whole):
        if old == size:
            if whole:
                need(not path, "the proof is too long")
                return old_root, old_root
            need(len(path) == 1, "the proof has another length")
            return path[0], path[0]
        need(path, "the proof is too short")
        left = split(size)
        if old <= left:
            before, after = climb(old, left, path[:-1], whole=whole)
            return before, node_hash(after, path[-1])
        before, after = climb(old - left, size - left, path[:-1], whole=False)
        return node_hash(path[-1], before), node_hash(path[-1], after)

    return climb(old, new, list(path), whole=True)


# Signed notes, checkpoints, cosignatures.


def from_base64(text):
    """The bytes of standard base64, which only one text stands for."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Refused("this is no base64") from None
    need(base64.b64encode(data).decode() == text, "this is not how base64 is written")
    return data


def is_name(text):
    return 0 < len(text) < 256 and not any(c.isspace() or c == "+" or CONTROL.match(c) for c in text)


def key_id(name, kind, public):
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


@dataclass(frozen=True)
class Key:
    """A public key that somebody signs notes with."""

    name: str
    kind: int
    public: bytes

    @property
    def id(self):
        return key_id(self.name, self.kind, self.public)

    @property
    def vkey(self):
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(bytes([self.kind]) + self.public).decode()}"


def parse_vkey(text):
    parts = text.split("+", 2)
    need(len(parts) == 3 and is_name(parts[0]), "this is no verifier key")
    data = from_base64(parts[2])
    need(len(data) == 33 and data[0] in (ED25519, COSIGNATURE), "this is no Ed25519 key")
    key = Key(parts[0], data[0], data[1:])
    need(key.id.hex() == parts[1], "the key's id is another's")
    return key


@lru_cache(100_000)
def holds(public, signature, message):
    """Whether an Ed25519 signature is right."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class Note:
    """A signed note, taken apart and believed in nothing yet."""

    def __init__(self, data):
        try:
            whole = data.decode("utf-8") if isinstance(data, bytes) else data
            whole.encode()
        except ValueError:
            raise Refused("the note is not UTF-8") from None
        need(not any(c < " " and c != "\n" for c in whole), "a control character is in the note")
        text, gap, lines = whole.rpartition("\n\n")
        need(gap and text and lines.endswith("\n"), "this is no signed note")
        self.text = text + "\n"
        self.signatures = []
        for line in lines[:-1].split("\n"):
            mark, name, signature = (*line.split(" "), "", "")[:3]
            need(line.count(" ") == 2 and mark == "\u2014" and is_name(name), "a line is no signature")
            data = from_base64(signature)
            need(len(data) > 4, "a signature is empty")
            self.signatures.append((name, data[:4], data[4:]))
        need(len(self.signatures) <= MAX_SIGNATURES, "too many signatures")

    def signed_by(self, key, now=None):
        """Whether a key has signed it; refused if it says so and has not. A cosignature of no possible time is none."""
        found = False
        for name, ident, signature in self.signatures:
            if (name, ident) != (key.name, key.id):
                continue
            message, counts = self.text.encode(), True
            if key.kind == COSIGNATURE:
                need(len(signature) == 72, "a cosignature of another length")
                moment = int.from_bytes(signature[:8], "big")
                need(moment < 2**63, "a cosignature of no time")
                latest = (time.time() if now is None else now) + MAX_AHEAD_SECONDS
                counts = EARLIEST_SECONDS <= moment <= latest
                message = b"cosignature/v1\ntime %d\n" % moment + message
                signature = signature[8:]  # noqa: PLW2901
            need(len(signature) == 64 and holds(key.public, signature, message), f"a signature of {name} is false")
            found = found or counts
        return found


@dataclass(frozen=True)
class Checkpoint:
    origin: str
    size: int
    root: bytes


def parse_checkpoint(text):
    lines = text.split("\n")
    need(len(lines) >= 4 and lines[-1] == "" and all(lines[:-1]), "this is no checkpoint")
    need(DECIMAL.fullmatch(lines[1]), "the size is no number")
    root = from_base64(lines[2])
    need(len(root) == 32, "the root is no SHA-256")
    return Checkpoint(lines[0], int(lines[1]), root)


A_WHOLE_LINE = re.compile("\u2014 (?:[^\n]* )?(?:[A-Za-z0-9+/=]{4}){23,}")
"""What ends in something as long as a signature that an Ed25519 key makes."""


def notes_in(text):
    """The notes of a file that they were appended to, as text; what a crash has left of one is passed over.

    A note is some lines, empty ones, and lines of signatures, of which the last has to be whole.
    """
    found, lines, gap, signatures = [], [], False, []
    for line in [*text.split("\n"), "the end"]:
        signed = line.startswith("\u2014 ")
        if signed and gap:
            signatures.append(line)
        elif not line and lines and not signatures:
            gap = True
        else:
            if signatures and A_WHOLE_LINE.fullmatch(signatures[-1]):
                found.append("\n".join([*lines, "", *signatures, ""]))
            if gap or signed:
                lines, gap, signatures = [], False, []
            if line and not signed:
                lines.append(line)
    need(found, "there is no checkpoint")
    return found


# Entries.


def parse_entry(text):
    """An entry's fields."""
    entry = decode(text)
    need(isinstance(entry, dict) and set(entry) == ENTRY_FIELDS, "an entry has other fields")
    need(isinstance(entry["kind"], str) and entry["kind"] in KINDS, "an entry of no known kind")
    for name in ("execution", "policy", "program", "step"):
        bare = entry[name] is None and name in ("program", "step")
        need(bare or (isinstance(entry[name], str) and TEXT.fullmatch(entry[name])), f"{name} is no text")
    need(entry["execution"], "an entry of no execution")
    for name in ("sequence", "time"):
        need(type(entry[name]) is int and entry[name] >= 0, f"{name} is no number")
    need(_is_hash(entry["commitment"]), "the commitment is no hash")
    need(entry["previous"] is None or _is_hash(entry["previous"]), "previous is no hash")
    return entry


def _is_hash(value):
    return isinstance(value, str) and HASH.fullmatch(value) is not None


def check_payload(entry, payload, salt):
    """That a payload that is told is what the entry commits to."""
    if payload is None and salt is None:
        return
    need(isinstance(payload, str) and isinstance(salt, str) and HASH.fullmatch(salt), "payload and salt")
    try:
        told = payload.encode()
    except ValueError:
        raise Refused("the payload is no text") from None
    made = hmac.new(bytes.fromhex(salt), told, hashlib.sha256).hexdigest()
    need(hmac.compare_digest(made, entry["commitment"]), "the payload is not what the entry commits to")


# A log's keys.


class History:
    """The keys of a log, by its own word, and up to what size each of them signs.

    Args:
        origin: The log's name.
        events: (sequence, payload) of its entries about keys.

    Attributes:
        first: Its first key.
        rotations: Of each rotation the size with its entry, which is the last that the old key signs and the first
            that the new one does, the old key and the new one.
        limits: The largest size that a key signs; not of the last one.
    """

    def __init__(self, origin, events):
        need(events, "no entry says which key signs")
        self.rotations, self.limits, current = [], {}, None
        for sequence, text in events:
            event = decode(text)
            need(isinstance(event, dict) and isinstance(event.get("vkey"), str), "an entry about a key has none")
            key = parse_vkey(event["vkey"])
            need(key.kind == ED25519 and key.name == origin, "a key of another log")
            if current is None:
                need(sequence == 0 and event == {"event": "made", "vkey": key.vkey}, "the first key")
                self.first = key
            else:
                need(set(event) == {"event", "from", "vkey"}, "the fields of an entry about a key")
                need(event["event"] in ("rotated", "lost"), "an entry about a key")
                need(event["from"] == current.vkey, "a key takes the place of another than was there")
                need(key != current and key not in self.limits, RETIRED)
                if event["event"] == "rotated":
                    self.rotations.append((sequence + 1, current, key))
                self.limits[current] = sequence + (event["event"] == "rotated")
            current = key
        self.keys = {self.first, current, *self.limits}

    def signers(self, note, size, trusted, now):
        """Which keys have signed a note and may sign what has so many entries: the log's, and others that are trusted."""
        found = {key for key in self.keys | trusted if note.signed_by(key, now)}
        need(found, "no key of the log has signed a checkpoint")
        allowed = {key for key in found if size <= self.limits.get(key, size)}
        need(allowed, RETIRED)
        return allowed


# What is verified.


@dataclass(frozen=True)
class Verified:
    origin: str
    size: int
    authentic: bool
    """Whether a key that the reader trusts has signed; if not, it only agrees with itself."""
    cosigned: dict
    """Of each trusted witness that has cosigned: the size of the largest checkpoint that it has."""
    losses: tuple = ()
    """Of each loss that the log tells of: how many entries were left, and whether a backup was restored."""


def verify(data, vkeys=(), kept=(), now=None):
    """Verify an export or a proof.

    Args:
        data: The file's bytes.
        vkeys: The verifier keys that the reader trusts, of logs and witnesses.
        kept: Checkpoints that were kept elsewhere, each the text of a note.
        now: The time of the reader's clock, in seconds since 1970.

    Raises:
        Refused: It isn't what it says.
    """
    keys = [parse_vkey(vkey) for vkey in vkeys]
    notes = [Note(note) for note in kept]
    if data.startswith(PROOF.encode()):
        return _proof(data, keys, notes, now)
    return _export(data, keys, notes, now)


def _export(data, keys, kept, now):
    need(data.endswith(b"\n"), "the last line has no end")
    lines = [decode(line) for line in data[:-1].split(b"\n")]
    need(all(isinstance(line, dict) for line in lines), "a line is no object")
    head = lines[0]
    need(set(head) == {"format", "origin", "size"} and head["format"] == FORMAT, "this is no export")
    origin, size = head["origin"], head["size"]
    need(isinstance(origin, str) and type(size) is int and size > 0, "the first line")

    entries, notes = lines[1 : size + 1], lines[size + 1 :]
    need(len(entries) == size and notes, "lines are missing")
    leaves, heads, events, losses, before = [], {}, [], [], None
    for sequence, line in enumerate(entries):
        need(set(line) == {"entry", "payload", "salt"} and isinstance(line["entry"], str), "a line is no entry")
        entry = parse_entry(line["entry"])
        need(entry["sequence"] == sequence, "an entry has another's number")
        need(entry["previous"] == heads.get(entry["execution"]), "an entry follows another of its execution")
        check_payload(entry, line["payload"], line["salt"])
        if entry["kind"] == "key":
            need(entry["execution"] == LEDGER, "an entry of an execution is about the log's key")
            need(line["payload"] is not None, "which key signs is withheld")
        need(before is None or entry["time"] >= before or entry["kind"] == "clock", "time goes back")
        before = entry["time"]
        if entry["kind"] == "key":
            events.append((sequence, line["payload"]))
        if entry["kind"] == "loss" and entry["execution"] == LEDGER:
            losses.append((sequence, _is_restored(line["payload"])))
        leaves.append(leaf_hash(line["entry"].encode()))
        heads[entry["execution"]] = leaves[-1].hex()

    tree, history = Tree(leaves), History(origin, events)
    trusted = {key for key in keys if key.kind == ED25519 and key.name == origin}
    signed, cosigned, before = {}, {}, 0
    for line in notes:
        need(set(line) == {"checkpoint"} and isinstance(line["checkpoint"], str), "a line is no checkpoint")
        note = Note(line["checkpoint"])
        point = _held(note, tree, origin)
        need(point.size > before, "the checkpoints are not in the order of their sizes")
        signed[point.size] = history.signers(note, point.size, trusted, now)
        cosigned |= {key.vkey: point.size for key in keys if key.kind == COSIGNATURE and note.signed_by(key, now)}
        before = point.size
    need(before == size, "the last checkpoint is not that of all entries")
    for note in kept:
        history.signers(note, _held(note, tree, origin).size, trusted, now)

    if not keys:
        return Verified(origin, size, authentic=False, cosigned={}, losses=tuple(losses))
    # Who trusts a key trusts the one that it has handed over to, by signing the checkpoint that has the rotation.
    for rotation, old, new in history.rotations:
        if old in trusted and old in signed.get(rotation, ()):
            trusted.add(new)
    if not trusted & signed[size]:
        raise Refused(RETIRED if trusted & history.keys else "no key that is trusted has signed")
    return Verified(origin, size, authentic=True, cosigned=cosigned, losses=tuple(losses))


def _is_restored(payload):
    try:
        said = json.loads(payload or "null")
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("restored") is True


def _held(note, tree, origin):
    """The checkpoint of a note, held against the entries."""
    point = parse_checkpoint(note.text)
    need(point.origin == origin, "a checkpoint of another log")
    need(0 < point.size <= len(tree.leaves), "a checkpoint of entries that aren't there")
    need(tree.root(point.size) == point.root, "a checkpoint of other entries")
    return point


def _proof(data, keys, kept, now):
    try:
        text = data.decode("utf-8")
    except ValueError:
        raise Refused("the proof is not UTF-8") from None
    head, gap, rest = text.partition("\n\n")
    lines = head.split("\n")
    need(gap and lines[0] == PROOF and len(lines) > 2, "this is no proof")
    need(lines[1].startswith("extra "), "the proof has no entry")
    extra = decode(from_base64(lines[1].removeprefix("extra ")))
    need(isinstance(extra, dict) and set(extra) == {"entry", "payload", "salt"}, "the proof's entry")
    need(isinstance(extra["entry"], str), "the proof's entry")
    entry = parse_entry(extra["entry"])
    check_payload(entry, extra["payload"], extra["salt"])
    word, _, index = lines[2].partition(" ")
    need(word == "index" and DECIMAL.fullmatch(index), "the index")
    need(int(index) == entry["sequence"], "the entry has another number")
    path = [from_base64(line) for line in lines[3:]]
    need(all(len(part) == 32 for part in path), "a part of the proof is no SHA-256")
    note = Note(rest)
    point = parse_checkpoint(note.text)
    root = root_of_inclusion(int(index), point.size, leaf_hash(extra["entry"].encode()), path)
    need(root == point.root, "the entry is not in the tree")

    signed = {key for key in keys if (key.kind == COSIGNATURE or key.name == point.origin) and note.signed_by(key, now)}
    same = False
    for other in kept:
        elsewhere = parse_checkpoint(other.text)
        need(elsewhere.origin == point.origin, "a checkpoint of another log")
        known = [key for key in keys if key.kind == ED25519 and other.signed_by(key, now)]
        need(known or not keys, "a checkpoint of nobody's")
        if elsewhere.size == point.size:
            need(elsewhere.root == point.root, "another checkpoint of this size")
            same = True
    need(same or not kept, "no checkpoint of this size")
    if not keys:
        return Verified(point.origin, point.size, authentic=False, cosigned={})
    need(any(key.kind == ED25519 for key in signed), "no key that is trusted has signed")
    cosigned = {key.vkey: point.size for key in signed if key.kind == COSIGNATURE}
    return Verified(point.origin, point.size, authentic=True, cosigned=cosigned)
