"""Ledgers of a few entries, their exports and proofs, and the small verifier."""

import argparse
import functools
import hashlib
import importlib.util
import io
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import settings

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.keys import master_key_sources
from mcp_bridge.ledger.log import entry_encoding, reading
from mcp_bridge.ledger.log.log_payloads import KeyEvent
from mcp_bridge.ledger.proofs import disclosures, export_format, export_verification, merkle, notes, tlog_proof
from mcp_bridge.ledger.proofs.notes import Checkpoint
from mcp_bridge.ledger.proofs.signing import COSIGNATURE, ED25519, Signer, Verifier
from mcp_bridge.ledger.storage import sealed_rows

CALM = settings(deadline=None, database=None)
"""For properties: no time is part of what they say."""

ORIGIN = "mcp-code-bridge/0123456789abcdef"
SMALL = Path(__file__).resolve().parents[2] / "examples" / "verify_ledger.py"
TIME = 1_790_000_000_000_000


def private_key(seed):
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed.encode()).digest())


def signer(seed="first", name=ORIGIN, kind=ED25519):
    return Signer(name, private_key(seed), kind)


def witness(seed="witness"):
    return signer(seed, "witness.example/w1", COSIGNATURE)


class Log:
    """A log in memory, written as a store would write it."""

    def __init__(self, prefix="", origin=ORIGIN):
        """The seeds of its keys are the prefix, and "first" and so on."""
        self.prefix, self.origin, self.key = prefix, origin, signer(f"{prefix}first", origin)
        self.entries, self.payloads, self.whole, self.rows, self.heads, self.checkpoints = [], [], [], [], {}, []
        self.frontier = merkle.Frontier()
        self.append(kind="key", execution=entry_encoding.LEDGER, payload=KeyEvent("made", self.key.vkey).to_bytes())

    def append(self, *, kind="outcome", execution="e1", payload=b"{}", disclose=True, **over):
        sequence = len(self.entries)
        salt = hashlib.sha256(b"salt %d" % sequence).digest()
        values = {
            "commitment": disclosures.commitment(payload, salt),
            "execution": execution,
            "kind": kind,
            "policy": "p" * 8,
            "previous": self.heads.get(execution),
            "program": None,
            "sequence": sequence,
            "step": "steps.pay" if sequence % 2 else None,
            "time": TIME + 1000 * sequence,
        }
        values |= over
        entry = entry_encoding.encode(entry_encoding.Leaf(**values | {"policy": values["policy"] or ""}))
        if values["policy"] is None:
            # No entry of ours has none.
            entry = entry.replace(b'"policy":""', b'"policy":null')
        self.entries.append(entry)
        self.whole.append(payload)
        self.payloads.append((payload, salt) if disclose else (None, None))
        self.rows.append(self.frontier.append(entry_encoding.leaf_hash(entry)))
        self.heads[execution] = entry_encoding.leaf_hash(entry).hex()
        return sequence

    def fill(self, count, *, disclose=True):
        for _ in range(count):
            number = len(self.entries)
            text = f'{{"n":{number},"text":"Gr\u00fc\u00dfe \\"{"x" * (number % 5)}\\" \U0001f600"}}'
            self.append(execution=f"e{number % 3}", payload=text.encode(), disclose=disclose and number % 4 != 0)
        return self

    def replace_key(self, seed, *, lost=False, vouched=True):
        """Another key from here on; vouched: the checkpoint with its entry is signed by the one before."""
        before, self.key = self.key, signer(f"{self.prefix}{seed}", self.origin)
        event = KeyEvent("lost" if lost else "rotated", self.key.vkey, before.vkey)
        self.append(kind="key", execution=entry_encoding.LEDGER, payload=event.to_bytes())
        if vouched and not lost:
            self.checkpoint(before)
        return self

    def read(self, level, index):
        return self.rows[((index + 1) << level) - 1][32 * level : 32 * level + 32]

    def state(self, size=None):
        size = len(self.entries) if size is None else size
        return Checkpoint(self.origin, size, merkle.root(size, self.read))

    def checkpoint(self, *signers, size=None):
        """Sign the log as it is, and keep that for exports."""
        first, *more = signers or (self.key,)
        note = notes.sign_checkpoint(self.state(size), first)
        for each in more:
            line = notes.cosign(note, each, 1_790_000_000) if each.verifier.kind == COSIGNATURE else None
            note = notes.add_signature(note, line or each.sign(notes.split_note(note)[0]))
        self.checkpoints.append(note)
        return note

    def lines(self):
        out = [export_format.header_line(self.origin, len(self.entries))]
        for entry, (payload, salt) in zip(self.entries, self.payloads, strict=True):
            out.append(export_format.entry_line(entry, payload, salt))
        return out + [export_format.checkpoint_line(note) for note in self.checkpoints]

    def export(self):
        return b"".join(self.lines())

    def proof(self, index, *, disclose=True):
        note = self.checkpoint()
        self.checkpoints.pop()
        payload, salt = self.payloads[index] if disclose else (None, None)
        extra = disclosures.encode(disclosures.Disclosed(self.entries[index], payload, salt))
        hashes = merkle.inclusion_proof(index, len(self.entries), self.read)
        return tlog_proof.encode(tlog_proof.Proof(index, tuple(hashes), note, extra))


def simple(count=6, prefix=""):
    log = Log(prefix).fill(count)
    log.checkpoint()
    return log


def rotated(prefix=""):
    """Two keys after the first, each vouched for by the one before."""
    log = Log(prefix).fill(3)
    log.checkpoint()
    log.fill(1)
    log.replace_key("second").fill(3).checkpoint()
    log.fill(1).replace_key("third").fill(2).checkpoint()
    return log


def lost(prefix=""):
    log = Log(prefix).fill(2)
    log.checkpoint()
    log.replace_key("second", lost=True).fill(3).checkpoint()
    return log


def erased(prefix=""):
    log = Log(prefix).fill(4, disclose=False)
    log.append(kind="erasure", execution=entry_encoding.LEDGER, payload=b'{"executions":["e1"]}')
    log.fill(4).checkpoint(log.key, witness())
    return log


@functools.cache
def small():
    """The small verifier as a module of its own. Signatures that it has checked once are not checked again."""
    spec = importlib.util.spec_from_file_location("verify_ledger", SMALL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.check_signature = remembered(module.check_signature)
    return module


def remembered(function):
    found = {}

    def check(*arguments):
        if arguments not in found:
            if len(found) > 1000:
                found.clear()
            try:
                found[arguments] = function(*arguments)
            except ValueError as error:
                found[arguments] = str(error)
        if found[arguments] is not None:
            raise ValueError(found[arguments])

    return check


parsed = functools.cache(Verifier.parse)


def large_says(data, vkeys, against=(), *, proof=False):
    """The code of what the large verifier finds wrong, or None."""
    keys = None if vkeys is None else [parsed(vkey) for vkey in vkeys]
    try:
        if proof:
            tlog_proof.verify(data, keys, against)
        else:
            export_verification.verify_export(io.BytesIO(data), keys, against)
    except BridgeError as error:
        return error.code
    return None


def small_says(data, vkeys, against=()):
    """What the small verifier finds wrong, or None."""
    known = None if vkeys is None else {}
    try:
        for vkey in vkeys or ():
            small().add_key(known, vkey)
        small().verify(io.BytesIO(data), known, against)
    except (ValueError, argparse.ArgumentTypeError) as error:
        return str(error) or "wrong"
    return None


def plaintext(path):
    """Everything that is kept encrypted in a ledger's file, opened; as much as somebody with the master key can read."""
    master = master_key_sources.master_key("file", path.parent, make=False)
    found = []
    with reading.open_ledger(path, master) as ledger:
        found += [entry.payload for entry in ledger.entries() if entry.payload is not None]
        for query, labels in sealed_rows._SEALED:
            for execution, wrapped, *columns in ledger.connection.execute(query):
                names, values = columns[: -len(labels)], columns[-len(labels) :]
                for label, value in zip(labels, values, strict=True):
                    if wrapped is not None and value is not None:
                        key = master.open(execution, wrapped)
                        found.append(key.open(value, label.format(execution, *names).encode()))
    return b"\n".join(found)
