"""Those whom the project meets, written from the C2SP specifications: a log with its client, a witness, and a ledger's writer.

`Signer` signs notes, `Book` writes exports and proofs that were never a bridge's, `ask` asks a witness as a log does,
`Witness` answers as one does, and `serving` has it, or somebody hostile, listen.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import http.server
import threading
import urllib.parse
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from peers.ledger_peer import (
    COSIGNATURE,
    DECIMAL,
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
    need,
    parse_checkpoint,
    roots_of_consistency,
)

START = 1_795_000_000_000_000
"""The time of a book's first entry, in microseconds since 1970."""

COSIGNED = 1_790_000_000
"""When witnesses have cosigned, in seconds since 1970."""


EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Of a tree without leaves, RFC 6962 section 2.1."""


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
            out.append(
                {
                    "entry": text,
                    "payload": entry["payload"] if told else None,
                    "salt": entry["salt"] if told else None,
                }
            )
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


# A log and a witness, and how they speak: tlog-witness.


class Log:
    """A log of made-up leaves. One with a `fork` has other leaves from that one on."""

    def __init__(self, origin, size=0, fork=None):
        self.origin, self.signer = origin, Signer(origin, origin)
        leaves = (f"{number} {fork is not None and number >= fork}" for number in range(size))
        self.tree = Tree(leaf_hash(leaf.encode()) for leaf in leaves)

    @property
    def size(self):
        return len(self.tree.leaves)

    def text(self, size=None):
        size = self.size if size is None else size
        return checkpoint_text(self.origin, size, self.tree.root(size))

    def note(self, size=None, *signers):
        return signed(self.text(size), *(signers or (self.signer,)))

    def request(self, old, size=None):
        """What is sent to have a checkpoint cosigned by who has cosigned one of the old size."""
        size = self.size if size is None else size
        path = self.tree.consistency(old, size) if 0 < old < size else []
        return request_body(old, path, self.note(size))


def request_body(old, path, note):
    return (f"old {old}\n" + "".join(f"{to_base64(part)}\n" for part in path) + "\n" + note).encode()


@dataclass(frozen=True)
class Answer:
    """What comes back over HTTP."""

    status: int
    kind: str = "text/plain"
    body: bytes = b""


def ask(url, path="/add-checkpoint", body=None):
    """Ask a witness: to add a checkpoint, or without a body what it has."""
    place = urllib.parse.urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(place.hostname, place.port, timeout=60)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheader("content-type") or "", answer.read())


class Witness:
    """A witness, its memory, and what it was asked.

    Args:
        signer: Its key.
        logs: The keys of the logs that it trusts.
        clock: The time of its cosignatures, in seconds since 1970.
    """

    def __init__(self, signer, logs, clock):
        self.signer, self.clock = signer, clock
        self.logs = {}
        for key in logs:
            self.logs.setdefault(key.name, []).append(key)
        self.seen, self.asked = {}, []

    def answer(self, body):
        """The answer to `POST /add-checkpoint`, its checks in the order of the specification."""
        self.asked.append(body)
        try:
            old, path, note = parse_request(body)
            point = parse_checkpoint(note.text)
        except Refused:
            return Answer(400)
        if point.origin not in self.logs:
            return Answer(404)
        try:
            # All of them: a wrong signature by one refutes it, whoever else has signed.
            signed = [note.signed_by(key) for key in self.logs[point.origin]]
            if not any(signed):
                return Answer(403)
        except Refused:
            return Answer(403)
        if old > point.size:
            return Answer(400)
        size, root = self.seen.get(point.origin, (0, EMPTY_ROOT))
        if old != size:
            return Answer(409, "text/x.tlog.size", b"%d\n" % size)
        if not self._has_grown(size, root, point, path):
            return Answer(422)
        self.seen[point.origin] = (point.size, point.root)
        return Answer(200, body=self.signer.line(note.text, self.clock()).encode())

    def _has_grown(self, size, root, point, path):
        if size == point.size:
            return not path and root == point.root
        if size == 0:
            return not path
        try:
            return roots_of_consistency(size, point.size, root, path) == (root, point.root)
        except Refused:
            return False


def parse_request(body):
    """The old size, the proof and the note of a request."""
    try:
        head, gap, rest = body.decode().partition("\n\n")
    except ValueError:
        raise Refused("the request is not UTF-8") from None
    first, *lines = head.split("\n")
    word, _, old = first.partition(" ")
    need(gap and word == "old" and DECIMAL.fullmatch(old), "this is no request")
    path = [from_base64(line) for line in lines]
    need(len(path) <= 63 and all(len(part) == 32 for part in path), "this is no proof")
    return int(old), path, Note(rest)


@contextlib.contextmanager
def serving(answer):
    """Have somebody answer over HTTP on loopback; the address.

    Args:
        answer: Takes a request's body and gives an `Answer`, or None to hang up.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            given = answer(self.rfile.read(int(self.headers.get("content-length") or 0)))
            self.close_connection = True
            if given is None:
                return
            with contextlib.suppress(OSError):  # whoever asked need not wait for all of it
                self.send_response(given.status)
                self.send_header("content-type", given.kind)
                self.send_header("content-length", str(len(given.body)))
                if given.status in range(300, 400):
                    self.send_header("location", "/elsewhere")
                self.end_headers()
                self.wfile.write(given.body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
