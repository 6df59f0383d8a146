"""What tests look at in a ledger's file, without the process that writes it."""

import contextlib
import json
import sqlite3
from dataclasses import dataclass, field

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit.file_verification import verify_file
from mcp_bridge.ledger.keys.master_key_sources import FILE_NAME as MASTER_FILE
from mcp_bridge.ledger.keys.signing_key_files import KEY_FILE
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.payloads import Damaged, Unknown, decoded
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.log.recorder import recorded
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage.execution_store import _execution
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.storage.sealing import MasterKey


@dataclass
class Look:
    """A verified log.

    Attributes:
        note: The checkpoint of all of it.
        vkey: The key it is signed with.
        rows: Its entries, as `Recorded`, without those about the log itself.
        executions: What is kept of them, by id.
    """

    note: str = ""
    vkey: str = ""
    rows: list = field(default_factory=list)
    executions: dict = field(default_factory=dict)


def begun(folder):
    """Whether there is a log: whoever made the file may not have lived to begin it."""
    if not (folder / FILE_NAME).exists():
        return False
    with contextlib.closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        try:
            return bool(connection.execute("SELECT count(*) FROM meta").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return False


def look(folder, vkey=None, against=()):
    """Verify a log, with its keys beside it, and read it.

    Args:
        folder: The state directory.
        vkey: The key that is trusted; by default the one that the log has itself.
        against: Checkpoints that were seen before.
    """
    if not begun(folder):
        assert not against, "the log is gone"
        return Look()
    assert len((folder / KEY_FILE).read_bytes()) == 32
    master = MasterKey((folder / MASTER_FILE).read_bytes())
    with open_ledger(folder / FILE_NAME, master) as ledger:
        found = Look(ledger.note, ledger.vkey)
        for entry in ledger.entries():
            if entry.leaf.execution != "ledger":
                content = None if entry.payload is None else json.loads(entry.payload)
                found.rows.append(recorded(entry.leaf, content))
        rows = ledger.connection.execute(
            "SELECT executions.*, wrapped FROM executions JOIN data_keys ON id = execution"
        )
        for *row, wrapped in rows:
            found.executions[row[0]] = _execution(row, None if wrapped is None else master.open(row[0], wrapped))
    verifiers = [Verifier.parse(vkey or found.vkey)]
    verify_file(folder / FILE_NAME, verifiers, against, master)
    return found


def verify_ledgers(folder):
    """The ledgers somewhere in a folder verify, and each entry is read as what was written; the test fails otherwise."""
    for file in folder.rglob(FILE_NAME):
        if (file.parent / KEY_FILE).exists() and (file.parent / MASTER_FILE).exists():
            try:
                for row in look(file.parent).rows:
                    said = decoded(row.entry)
                    assert not isinstance(said, Damaged | Unknown), f"nobody knows what {row} says"
                    assert json.dumps(said.encode()) == json.dumps(row.entry.payload), f"{row} is read as {said}"
            except (BridgeError, AssertionError, ValueError) as exc:
                pytest.fail(f"{file} doesn't verify: {exc}", pytrace=False)


async def decide(store, asked, *, approved=True, comment=None):
    """Take down anna's decision, and its entry; whether it was the first."""
    decision = {"approved": approved, "by": "anna", "comment": comment}
    entry = Entry("decision", asked.execution, asked.question | decision, asked.question.get("step"))
    return await store.decide(asked, decision, entry)
