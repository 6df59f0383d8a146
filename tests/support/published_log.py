"""A log in memory whose holder may rewrite it, and a real HTTP server on loopback, for the tests of witnesses."""

import socket
import threading
from contextlib import contextmanager, suppress

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.entry_encoding import leaf_hash
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.proofs.notes import Checkpoint, open_checkpoint, sign_checkpoint
from mcp_bridge.ledger.proofs.signing import Signer

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


class Log:
    """A log of made-up entries. A copy with other entries is what a holder of its key could show to others.

    Args:
        size: How many entries.
        origin: Its name.
        fork: The first entry that differs from those of the log of that name, if any does.
        lasts: What targets have taken, by target id.

    Attributes:
        cosigned: The notes that another process has had cosigned.
    """

    def __init__(self, size, origin="mcp-code-bridge/log", *, fork=None, key=KEY, lasts=None):
        self.signer = Signer(origin, key)
        self.verifier = self.signer.verifier
        self.vkey = self.signer.vkey
        self.origin = origin
        self.fork = fork
        self.lasts = {} if lasts is None else lasts
        self.cosigned = []
        self.frontier = merkle.Frontier()
        self.nodes = []
        self.grow(size)

    def grow(self, count):
        for number in range(len(self.nodes), len(self.nodes) + count):
            other = self.fork is not None and number >= self.fork
            self.nodes.append(self.frontier.append(leaf_hash(f"{number} {other}".encode())))
        return self

    @property
    def size(self):
        return len(self.nodes)

    def _read(self, level, index):
        return self.nodes[((index + 1) << level) - 1][32 * level : 32 * level + 32]

    def note(self, size=None):
        size = self.size if size is None else size
        return sign_checkpoint(Checkpoint(self.origin, size, merkle.root(size, self._read)), self.signer)

    def proof(self, old, new=None):
        return merkle.consistency_proof(old, self.size if new is None else new, self._read) if old else []

    # What publishing asks of a log.

    async def newest(self):
        return self.note()

    async def roots(self, sizes):
        return [merkle.root(size, self._read) if size <= self.size else None for size in sizes]

    async def keys(self):
        return [self.verifier]

    async def rotations(self):
        return []

    async def is_cosigned(self, size, key):
        for note in self.cosigned:
            with suppress(BridgeError):
                return open_checkpoint(note, [key])[0].size >= size
        return False

    async def consistency(self, old, new):
        assert 0 < old < new
        return self.proof(old, new)

    def last(self, target):
        return self.lasts.get(target, 0)


@contextmanager
def serving(app):
    """An ASGI application on loopback; its address."""
    # With its protocol said, or asyncio doesn't turn off Nagle's algorithm, and every answer takes 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


class Replaceable:
    """An ASGI application that passes on to another, which every test sets anew: one server is enough for all."""

    def __init__(self):
        self.app = None

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)
