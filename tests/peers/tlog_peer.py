"""Those whom the project meets, written from the C2SP specifications: a log with its client, a witness, and a ledger's writer.

`Signer` signs notes, `Book` writes exports and proofs that were never a bridge's, `WitnessClient` asks a witness as a log
does, `serve` answers as a witness does, or as a hostile one.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import http.server
import socket
import threading
import urllib.parse
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from peers.ledger_peer import (
    COSIGNATURE,
    ED25519,
    FORMAT,
    LEDGER,
    PROOF,
    Key,
    Note,
    Refused,
    Tree,
    canonical,
    from_base64,
    leaf_hash,
    parse_checkpoint,
    roots_of_consistency,
)

START = 1_795_000_000_000_000
"""The time of a book's first entry, in microseconds since 1970."""

COSIGNED = 1_790_000_000
"""When witnesses have cosigned, in seconds since 1970."""


def to_base64(data):
    return base64.b64encode(data).decode()


class Signer:
    """A key that notes are signed with; two of the same seed are the same key."""

    def __init__(self, name, seed, kind=ED25519):
        self.private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed.encode()).digest())
        self.key = Key(name, kind, self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
        self.name, self.vkey = name, self.key.vkey

    def line(self, text, moment=COSIGNED):
        """A signature line of a note; a cosignature of a moment, if that is what the key is for."""
        if self.key.kind == COSIGNATURE:
            signature = self.private.sign(b"cosignature/v1\ntime %d\n" % moment + text.encode())
            signature = moment.to_bytes(8, "big") + signature
        else:
            signature = self.private.sign(text.encode())
        return f"\u2014 {self.name} {to_base64(self.key.id + signature)}\n"


def checkpoint_text(origin, size, root):
    return f"{origin}\n{size}\n{to_base64(root)}\n"


def signed(text, *signers):
    return text + "\n" + "".join(signer.line(text) for signer in signers)


@dataclass
class Book:
    """A ledger that no bridge has written, whose holder can do anything with it.

    Attributes:
        entries: The fields of its entries; with `payload`, `salt` and `told` (whether an export tells them).
        points: Its checkpoints: a size, and who signs.
        signers: Its keys, in order.
    """

    name: str = "book"
    origin: str = "mcp-code-bridge/0123456789abcdef"
    entries: list = field(default_factory=list)
    points: list = field(default_factory=list)
    signers: list = field(default_factory=list)

    def __post_init__(self):
        if not self.entries:
            self.signers.append(self.signer("first"))
            self.about_key({"event": "made", "vkey": self.signers[0].vkey})

    def signer(self, seed):
        return Signer(self.origin, f"{self.name} {seed}")

    @property
    def size(self):
        return len(self.entries)

    @property
    def vkey(self):
        return self.signers[-1].vkey

    def append(self, kind="outcome", execution="e1", payload="{}", *, told=True, **over):
        number = len(self.entries)
        salt = hashlib.sha256(f"{self.name} {number}".encode()).hexdigest()
        entry = {
            "execution": execution,
            "kind": kind,
            "policy": "p" * 8,
            "program": None,
            "sequence": number,
            "step": None,
            "time": START + 1000 * number,
            "payload": payload,
            "salt": salt,
            "told": told,
        }
        self.entries.append(entry | over)
        return self

    def fill(self, count):
        for _ in range(count):
            number = len(self.entries)
            text = f'{{"n":{number},"text":"Gr\u00fc\u00dfe \\"\U0001f600\\"\\u0007"}}'
            step = f"steps[{number}].\u00e4" if number % 2 else None
            self.append(execution=f"e{number % 3}", payload=text, told=number % 4 != 0, step=step)
        return self

    def about_key(self, event):
        return self.append("key", LEDGER, canonical(event))

    def replace_key(self, seed, event="rotated"):
        old, new = self.signers[-1], self.signer(seed)
        self.signers.append(new)
        self.about_key({"event": event, "from": old.vkey, "vkey": new.vkey})
        if event == "rotated":
            self.points.append((self.size, (old, new)))
        return self

    def checkpoint(self, *signers):
        self.points.append((self.size, signers or (self.signers[-1],)))
        return self

    def texts(self):
        """The entries as they are hashed, each with the hash of the one before of its execution."""
        heads, texts = {}, []
        for entry in self.entries:
            salt = bytes.fromhex(entry["salt"])
            made = {
                "commitment": hmac.new(salt, entry["payload"].encode(), hashlib.sha256).hexdigest(),
                "previous": heads.get(repr(entry["execution"])),
            }
            fields = {name: value for name, value in entry.items() if name not in ("payload", "salt", "told")}
            texts.append(canonical(made | fields))
            heads[repr(entry["execution"])] = leaf_hash(texts[-1].encode()).hex()
        return texts

    def tree(self):
        return Tree(leaf_hash(text.encode()) for text in self.texts())

    def note(self, size=None, *signers):
        tree, size = self.tree(), self.size if size is None else size
        return signed(checkpoint_text(self.origin, size, tree.root(size)), *(signers or (self.signers[-1],)))

    def lines(self):
        """An export, line by line."""
        out, tree = [{"format": FORMAT, "origin": self.origin, "size": self.size}], self.tree()
        for entry, text in zip(self.entries, self.texts(), strict=True):
            told = entry["told"]
            out.append({
                "entry": text,
                "payload": entry["payload"] if told else None,
                "salt": entry["salt"] if told else None,
            })
        for size, signers in self.points:
            text = checkpoint_text(self.origin, size, tree.root(size))
            out.append({"checkpoint": signed(text, *signers)})
        return [canonical(line).encode() + b"\n" for line in out]

    def export(self):
        return b"".join(self.lines())

    def proof(self, index, *signers, size=None, told=True):
        tree, entry = self.tree(), self.entries[index]
        size = self.size if size is None else size
        extra = {"entry": self.texts()[index], "payload": None, "salt": None}
        if told:
            extra |= {"payload": entry["payload"], "salt": entry["salt"]}
        return proof(extra, index, tree.inclusion(index, size), self.note(size, *signers))


def proof(extra, index, path, note):
    """A tlog-proof."""
    head = [PROOF, f"extra {to_base64(canonical(extra).encode())}", f"index {index}", *map(to_base64, path)]
    return ("\n".join(head) + "\n\n" + note).encode()
