"""A small ledger with everything in it, as it was at several times, and what an attacker does to its file."""

import dataclasses
import hashlib
import random
import shutil
import sqlite3
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.admin import accepted_clock, key_rotation
from mcp_bridge.ledger.audit.file_verification import verify_file
from mcp_bridge.ledger.erasure import execution_erasure
from mcp_bridge.ledger.erasure.value_erasure import erase_behind
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.entry_encoding import decode, encode, leaf_hash
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.log.session_store import SessionStore
from mcp_bridge.ledger.log.usage_store import UsageStore
from mcp_bridge.ledger.proofs import merkle, notes
from mcp_bridge.ledger.proofs.notes import Checkpoint
from mcp_bridge.ledger.proofs.signing import COSIGNATURE, Signer, Verifier
from mcp_bridge.ledger.publish.protocol import Published, TargetState
from mcp_bridge.ledger.publish.target_state import PublishedLog
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore, SavedProgram, StoredExecution
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.storage.sealing import MasterKey

ASKED, ENDED, ANNA, HOLDER, WAITING = (f"{number:032x}" for number in range(0xA1, 0xA6))
"""Executions: one that a person was asked about, one that ended, one that is erased, one of which a reference is, and
one that is suspended."""

REFERENCE = "refofaholder"


def execution(ident, status="running", **more):
    made = StoredExecution(
        id=ident,
        kind="program",
        principal="local",
        key=None,
        request="r",
        status=status,
        program="h" * 8,
        bundle={"program": {"name": "p", "steps": []}, "uses": []},
        origin="agent",
        owner="x:1:2",
        state=b"began",
        record=None,
        due=None,
        started=time.time(),
    )
    return replace(made, **more)


def record(ident, status, **more):
    return {
        "trace_id": ident,
        "program": "p",
        "status": status,
        "output": "SECRET output",
        "error": None,
        "code": None,
        "steps": [],
        "waiting": [],
    } | more


class Writer:
    """What a bridge writes of executions."""

    def __init__(self, database):
        self.database = database
        self.store, self.recorder = ProgramStore(database), SqliteRecorder(database)
        self._random = random.Random(9)  # noqa: S311

    async def start(self, ident, values=None, **more):
        entry = Entry("start", ident, {"program": "SECRET program"}, None, "p" * 8, "h" * 8)
        assert await self.store.add(execution(ident, **more), values, entry)

    async def effect(self, ident, number=1, *, large=False):
        """With `large`, what is given and what comes back are kept as pieces of their payloads."""
        arguments, value = {"to": "SECRET arguments"}, "SECRET result"
        if large:
            more = [f"{self._random.random()}" for _ in range(200)]
            arguments, value = {**arguments, "more": more}, [value, f"{more}"]
        intent = {"effect": number, "kind": "tool", "tool": "pay", "arguments": arguments}
        await self.recorder.append(Entry("intent", ident, intent, "steps.pay"))
        await self.recorder.append(Entry("outcome", ident, {"effect": number, "status": "ok", "value": value}))

    async def suspend(self, ident, state):
        left = {"status": "suspended", "state": hashlib.sha256(state).hexdigest()}
        self.recorder.post(Entry("suspension", ident, left))
        await self.store.update(
            ident, status="suspended", state=state, record=record(ident, "suspended"), due=time.time() + 1e6
        )

    async def resume(self, ident):
        assert await self.store.take(await self.store.execution(ident), "y:1:2")
        self.recorder.post(Entry("resume", ident, {"recovered": False}))
        await self.database.flush()

    async def end(self, ident):
        self.recorder.post(Entry("end", ident, {"status": "success", "error": None}))
        await self.store.update(ident, status="success", state=None, record=record(ident, "success"), due=None)

    async def hold(self, holder, **of):
        self.store.hold(holder, **of)
        await self.database.flush()

    async def ask(self, ident, number):
        await self.store.ask(ident, number, {"message": "SECRET question", "step": "ask"})

    async def decide(self, ident, number):
        (row,) = [row for row in await self.store.approvals(ident) if row.effect == number]
        decision = {"approved": True, "by": "me", "comment": None}
        assert await self.store.decide(row, decision, Entry("decision", ident, row.question | decision, "ask"))

    async def save(self, name, version):
        await self.store.save_program("local", SavedProgram(name, "h", {"program": {"v": version}}, time.time()))

    def use(self, calls):
        UsageStore(self.database).add("anna", {"calls": calls})

    async def move(self, before, head):
        assert await SessionStore(self.database).begin_move("anna", "tour", before, head)()

    async def publish(self, size, note, cosignatures=()):
        log = PublishedLog(self.database, {})
        state = TargetState("file /mnt/notes", status="ok", size=size)
        await log.save(state, Published("file /mnt/notes", size, note, cosignatures))

    async def note(self):
        return (await self.database.read("SELECT note FROM head"))[0][0]


@dataclass
class Kept:
    """A ledger as it was left, and as it was before.

    Attributes:
        folder: Its state directory.
        master: Its master key.
        vkey: The public key that it is signed with now.
        replaced: Signs with the key that was there before that.
        elsewhere: Checkpoints that were kept elsewhere.
        copies: The file at earlier times, by name.
    """

    folder: Path
    master: MasterKey = None
    vkey: str = ""
    replaced: Signer = None
    elsewhere: list = field(default_factory=list)
    copies: dict = field(default_factory=dict)

    @property
    def path(self):
        return self.folder / FILE_NAME

    @property
    def signer(self):
        seed = (self.folder / "checkpoint.key").read_bytes()
        return Signer(self.vkey.partition("+")[0], Ed25519PrivateKey.from_private_bytes(seed))

    def verdicts(self, path, vkeys=None):
        """The codes of what is found without the master key, with it, and with checkpoints kept elsewhere as well."""
        return [
            verdict(path, vkeys or [self.vkey], against, master)
            for against, master in (((), None), ((), self.master), (self.elsewhere, self.master))
        ]


def verdict(path, vkeys, against=(), master=None):
    """What is wrong with a file, by its code; None for nothing. Anything but a `BridgeError` is a fault of ours."""
    try:
        verify_file(path, [Verifier.parse(vkey) for vkey in vkeys], against, master)
    except BridgeError as error:
        return error.code
    return None


async def build(folder):  # noqa: PLR0915  (a long story, told once)
    """Make a ledger with everything in it."""
    kept = Kept(folder)

    @contextmanager
    def kept_as(name):
        yield
        # The last one to close it has left everything in the one file.
        assert not kept.path.with_name(f"{FILE_NAME}-wal").exists()
        kept.copies[name] = shutil.copy(kept.path, folder / f"{name}.copy")

    async def elsewhere(writer):
        kept.elsewhere.append(await writer.note())

    with kept_as("began"):
        async with Database(kept.path) as database:
            writer = Writer(database)
            await writer.start(ASKED, {"ref1": "4111"}, key="order 1")
            await writer.start(HOLDER, {REFERENCE: "4222", "ref2": 3.5})
            await writer.start(WAITING)
            await writer.hold(ASKED, execution=HOLDER, subject="carl")
            await writer.save("tidy", 1)
            await elsewhere(writer)
    with kept_as("suspended"):
        async with Database(kept.path) as database:
            writer = Writer(database)
            writer.use(1)
            await writer.move("", ASKED)
            await writer.effect(ASKED)
            await writer.ask(ASKED, 2)
            await writer.suspend(ASKED, b"it asks")
            await writer.suspend(WAITING, b"first")
            await writer.publish(5, await writer.note())
    with kept_as("decided"):
        async with Database(kept.path) as database:
            writer = Writer(database)
            writer.use(2)
            await writer.move(ASKED, WAITING)
            await writer.decide(ASKED, 2)
            await writer.resume(ASKED)
            await writer.end(ASKED)
            await writer.save("tidy", 2)
            await writer.start(ANNA, {"ref3": "4333"}, subject="anna")
            await writer.effect(ANNA, large=True)
            await writer.end(ANNA)
            await writer.end(HOLDER)
            await elsewhere(writer)
    with kept_as("rotated"):
        async with Database(kept.path) as database:
            writer = Writer(database)
            kept.replaced = database.log.signer
            kept.vkey = await key_rotation.rotate_key(database)
            await writer.start(ENDED, subject="bob", key="order 2")
            await writer.effect(ENDED, large=True)
            await writer.end(ENDED)
            await elsewhere(writer)
    with kept_as("erased"):
        async with Database(kept.path) as database:
            writer = Writer(database)
            erase = {"by": "me", "reason": "asked to", "under_way": lambda status, owner: False}
            await execution_erasure.erase(database, "subject", "anna", **erase)
            await erase_behind(database, REFERENCE, **erase)
            await execution_erasure.finish(database, lambda execution: None)
            await writer.resume(WAITING)
            await writer.ask(WAITING, 7)
            await writer.suspend(WAITING, b"second")
            note = await writer.note()
            witness = Signer("witness.example/w1", Ed25519PrivateKey.from_private_bytes(b"w" * 32), COSIGNATURE)
            size = notes.parse_checkpoint(notes.split_note(note)[0]).size
            line = notes.cosign(note, witness, 1_790_000_000)
            await writer.publish(size, notes.add_signature(note, line), (line,))
    async with Database(kept.path) as database:
        writer = Writer(database)
        now = time.time_ns
        try:
            time.time_ns = lambda: now() - 3600 * 10**9
            await accepted_clock.accept_clock(database, "me")
            writer.recorder.post(Entry("violation", WAITING, {"message": "SECRET"}))
            await writer.recorder.append(Entry("violation", WAITING, {"message": "SECRET"}))
        finally:
            time.time_ns = now
        await elsewhere(writer)
    kept.master = MasterKey((folder / "master.key").read_bytes())
    return kept


def dump(path):
    """All that a file says: its schema and every row, with types."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        tables = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2").fetchall()
        found = [connection.execute("PRAGMA user_version").fetchone(), tables]
        for kind, name, _, _ in tables:
            if kind == "table":
                found.append([*map(repr, connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2"))])  # noqa: S608
        return found


@contextmanager
def opened(path):
    """A file in an attacker's hands: without triggers, which are put back at the end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        for _, sql in triggers:
            connection.execute(sql)


def old(connection, kept, name):
    """An earlier copy of the file, as the schema `old`."""
    connection.execute("ATTACH ? AS old", (str(kept.copies[name]),))


def rewrite(connection, kept, change, *, signer=None):
    """Change entries and compute everything anew that can be.

    Args:
        connection: The attacker's.
        kept: The ledger.
        change: Is given all rows, each a list of a `Leaf` and the sealed payload, and changes them.
        signer: Signs the new head; without one the old signature stays.
    """
    rows = [
        [decode(data), sealed]
        for data, sealed in connection.execute(
            "SELECT entry, sealed FROM entries LEFT JOIN payloads USING (sequence) ORDER BY sequence"
        )
    ]
    change(rows)
    connection.execute("DELETE FROM entries")
    connection.execute("DELETE FROM payloads")
    frontier, heads = merkle.Frontier(), {}
    last = 0
    for sequence, (leaf, sealed) in enumerate(rows):
        last = leaf.time if leaf.kind == "clock" else max(leaf.time, last)
        changed = dataclasses.replace(leaf, sequence=sequence, previous=heads.get(leaf.execution), time=last)
        data = encode(changed)
        digest = leaf_hash(data)
        heads[leaf.execution] = digest.hex()
        values = (sequence, leaf.execution, leaf.kind, data, frontier.append(digest))
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", values)
        if sealed is not None:
            connection.execute("INSERT INTO payloads VALUES (?, ?)", (sequence, sealed))
    connection.execute("UPDATE head SET size = ?, root = ?", (frontier.size, frontier.root()))
    if signer is not None:
        checkpoint = Checkpoint(kept.vkey.partition("+")[0], frontier.size, frontier.root())
        note = notes.sign_checkpoint(checkpoint, signer)
        connection.execute("UPDATE head SET note = ?, vkey = ?", (note, signer.vkey))


def at(rows, kind, execution):
    """The place of an execution's first entry of a kind."""
    return next(place for place, (leaf, _) in enumerate(rows) if (leaf.kind, leaf.execution) == (kind, execution))
