"""The table audit: checks the other tables of the log's file against the entries.

Nobody without the master key can forge a row: each has a MAC, or is sealed. Old rows could be put back, or rows
removed; that is found if an entry tells of them. SECURITY.md lists what no entry tells of.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.deduplication import label_of, unpack
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.key_history import keys_of
from mcp_bridge.ledger.log.log_payloads import Erasure, KeyEvent
from mcp_bridge.ledger.log.payloads import (
    ProgramEnd,
    ProgramSuspension,
    QueuedDecision,
    ScriptEnd,
    ScriptSuspension,
    decode,
)
from mcp_bridge.ledger.log.transaction import check_row
from mcp_bridge.ledger.proofs import notes, signing
from mcp_bridge.ledger.proofs.checkpoints import check_against_log
from mcp_bridge.ledger.storage.log_head import WRITES, writes_of
from mcp_bridge.ledger.storage.schema import (
    CELLS_LINKED,
    ERASED,
    OLD_REQUESTS,
    OLD_REQUESTS_GONE,
    OLD_REQUESTS_LOST,
    UNFINISHED,
)
from mcp_bridge.ledger.storage.sealed_rows import check_sealed
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    import sqlite3

    from mcp_bridge.ledger.log.payloads import Decoded
    from mcp_bridge.ledger.log.reading import Ledger
    from mcp_bridge.ledger.proofs.export_format import EntryBatch, ReadEntry
    from mcp_bridge.ledger.storage.sealing import DataKey, MasterKey

_MAC_TABLES = ("executions", "approvals", "programs", "data_keys", "holders", "checkpoints", "published")

_ROW_KINDS = frozenset({"start", "suspension", "resume", "end", "decision"})
"""The kinds of entries that tell of rows of other tables, besides those about the log itself."""

_WITH_PIECES, _WITH_TOKENS, _WITH_USAGES, _WITH_SESSIONS = 2, 3, 4, 5
"""The schema versions that added pieces, tokens of erased references, principals' usage, and sessions."""


@dataclass
class TableAudit:
    """Gathers what the entries say about other tables while they are read, and checks those tables against it.

    Attributes:
        erased: The executions that are erased.
    """

    erased: set[str] = field(default_factory=set)
    _erasures: dict[int, list[str]] = field(default_factory=dict)
    _references: set[tuple[str, str]] = field(default_factory=set)
    """Erased references as entries of earlier versions name them: by executions and ids."""
    _tokens: Counter[str] = field(default_factory=Counter)
    """Erased references as later entries name them."""
    _withheld: Counter[int] = field(default_factory=Counter)
    """For entries about the log: how often a later one says that the payload is withheld, minus 1 if it is missing."""
    _keys: list[tuple[int, KeyEvent]] = field(default_factory=list)
    _left: dict[str, Decoded | None] = field(default_factory=dict)
    _decided: Counter[tuple[str, str]] = field(default_factory=Counter)
    _unfinished: set[str] = field(default_factory=set)
    """Erased executions whose unreadable payloads may still be stored."""

    def see(self, entry: ReadEntry) -> None:
        """Take the next entry.

        Raises:
            BridgeError: `ledger_damaged`, `bad_entry`: its payload can't be taken.
        """
        leaf = entry.leaf
        self._see(leaf.execution, leaf.kind, leaf.sequence, entry.payload)

    def see_batch(self, batch: EntryBatch) -> None:
        """Take the next entries, none of them about the log. As `see`."""
        for entry in batch.log_entries:
            self._see(*entry)

    def _see(self, execution: str, kind: str, sequence: int, data: bytes | None) -> None:
        try:
            self._take(execution, kind, sequence, data)
        except (ValueError, KeyError, TypeError, AttributeError):
            # Its hash may be right and its signature wrong: signatures are checked last.
            raise damaged(f"the payload of the entry {sequence} isn't of its kind") from None

    def _take(self, execution: str, kind: str, sequence: int, data: bytes | None) -> None:
        content = None if data is None else json.loads(data.decode())
        if not tells_of_tables(execution, kind):
            return
        payload = None if data is None else decode(kind, content)
        if execution == LEDGER:
            self._take_of_log(kind, sequence, payload, data)
        elif kind != "decision":
            self._left[execution] = payload
        elif isinstance(payload, QueuedDecision):
            self._decided[execution, _canonical(payload.encode())] += 1

    def _take_of_log(self, kind: str, sequence: int, payload: Decoded | None, data: bytes | None) -> None:
        if data is None:
            self._withheld[sequence] -= 1
        elif kind == "key":
            self._keys.append((sequence, KeyEvent.from_bytes(data)))
        elif isinstance(payload, Erasure):
            self._erasures[sequence] = list(payload.executions)
            self.erased.update(payload.executions)
            self._references.update((one, str(payload.reference)) for one in payload.holders or ())
            self._tokens.update(payload.references or ())
            self._withheld.update(payload.withheld or ())
        elif kind == "erasure":
            raise ValueError(kind)

    def artifacts(self) -> dict[str, dict[str, str]]:
        """SHA-256 of the artifacts that the ends of executions have recorded, by their executions and names."""
        return {
            execution: end.artifact_hashes
            for execution, end in self._left.items()
            if isinstance(end, ScriptEnd) and end.artifacts
        }

    def check(self, ledger: Ledger) -> None:
        """Check the file's other tables against the entries, as far as that is possible with or without the master key.

        Raises:
            BridgeError: `ledger_damaged`; as `notes`.
        """
        self._check_meta(ledger)
        self._check_head(ledger)
        self._check_keys(ledger)
        version = ledger.connection.execute("PRAGMA user_version").fetchone()[0]
        if version >= _WITH_PIECES:
            self._check_pieces(ledger)
        has_tokens = version >= _WITH_TOKENS and (bool(self._tokens) or _was_converted(ledger.connection))
        self._check_references(ledger, has_tokens=has_tokens)
        self._check_executions(ledger.connection)
        if ledger.master is not None:
            _check_rows(ledger.connection, ledger.master, version)
            self._check_decisions(ledger.connection, ledger.master)
            self._check_states(ledger.connection, ledger.master)

    def _check_meta(self, ledger: Ledger) -> None:
        for name, value in ledger.connection.execute("SELECT name, value FROM meta"):
            what, _, number = name.rpartition(" ")
            if what == UNFINISHED and number.isdecimal() and number == str(int(number)):
                if value == json.dumps(executions := self._erasures.get(int(number))):
                    self._unfinished.update(executions or ())
                    continue
            elif (
                name in {"origin", "master", OLD_REQUESTS}
                or (name == WRITES and value == str(writes_of(value)))
                or (name in {CELLS_LINKED, OLD_REQUESTS_LOST} and not value)
            ):
                continue
            raise damaged(f"there is an unknown {name!r:.60} in its table meta, or another than there was")

    def _check_head(self, ledger: Ledger) -> None:
        # A read-only connection doesn't check constraints, and its integrity_check doesn't either.
        (one, root, note), *more = ledger.connection.execute("SELECT one, root, note FROM head").fetchall()
        if one != 1 or more:
            raise damaged("it has another head, or more than one")
        text, _ = notes.split_note(note)
        if notes.parse_checkpoint(text) != notes.Checkpoint(ledger.origin, ledger.size, root):
            raise damaged("the columns next to its head don't match the head")
        if not self._keys or ledger.vkey != self._keys[-1][1].vkey:
            raise damaged("its head is signed with another key than its entries name")
        notes.open_checkpoint(note, [signing.Verifier.parse(ledger.vkey)])
        known = notes.keyring(keys_of(self._keys))
        stored: set[tuple[int, str | None]] = set()
        for size, note in ledger.connection.execute("SELECT size, note FROM checkpoints"):
            text, signatures = notes.split_note(note)
            checkpoint = notes.parse_checkpoint(text)
            of_log = [row for row in signatures if row[0] == ledger.origin]
            by = notes.in_use(checkpoint, notes.check_signatures(text, of_log, known))
            try:
                check_against_log(checkpoint, ledger.origin, ledger.size, ledger.node)
            except BridgeError:
                is_ours = False
            else:
                is_ours = checkpoint.size == size and len(by) == len(of_log)
            if not is_ours:
                raise damaged(f"a checkpoint that was kept, of {size} entries, is not this log's")
            stored.update((size, one.vkey) for one, _ in by)
        for sequence, event in self._keys:
            if event.event == "rotated" and not {(sequence + 1, event.vkey), (sequence + 1, event.before)} <= stored:
                raise damaged(f"the checkpoint is missing by which the key of entry {sequence} can be trusted")

    def _check_keys(self, ledger: Ledger) -> None:
        """Check that data keys and payloads exist until the log says that their execution is erased, and not after."""
        gone = {row[0] for row in ledger.connection.execute("SELECT execution FROM data_keys WHERE wrapped IS NULL")}
        if gone != self.erased:
            odd = min(gone ^ self.erased)
            said = "its key is there, and the log says it was destroyed" if odd in self.erased else "its key is gone"
            raise damaged(f"{odd} is erased and it isn't: {said}")
        for execution, wrapped in ledger.connection.execute(
            "SELECT execution, wrapped FROM entries LEFT JOIN payloads USING (sequence)"
            " LEFT JOIN data_keys USING (execution) WHERE (sealed IS NULL) <> (wrapped IS NULL) AND execution <> ?",
            (LEDGER,),
        ):
            if wrapped is not None or execution not in self._unfinished:
                raise damaged(f"{execution} has payloads without a key, or a key and not all payloads")
        count = "SELECT count(*) FROM payloads WHERE sequence NOT IN (SELECT sequence FROM entries)"
        if ledger.connection.execute(count).fetchone()[0]:
            raise damaged("there are payloads of no entry")

    def _check_pieces(self, ledger: Ledger) -> None:
        """Check that each piece is what its name says, and that its execution isn't erased."""
        connection, master = ledger.connection, ledger.master
        key: tuple[str, DataKey] | None = None
        for execution, name, size, sealed, wrapped in connection.execute(
            "SELECT execution, name, size, CAST(sealed AS BLOB), wrapped FROM pieces"
            " LEFT JOIN data_keys USING (execution) ORDER BY execution"
        ):
            if size != len(sealed) or (wrapped is None and execution not in self._unfinished):
                raise damaged(f"a piece of a payload of {execution!r:.60} is of another size, or its key is destroyed")
            if master is None or wrapped is None:
                continue
            if key is None or key[0] != execution:
                key = execution, master.open(execution, wrapped)
            if key[1].name(unpack(key[1].open(sealed, label_of(execution, name)))) != name:
                raise damaged(f"a piece of a payload of {execution} is another one")

    def _check_references(self, ledger: Ledger, *, has_tokens: bool) -> None:
        """Check that a value exists until the log says that it is erased, and not after."""
        if odd := [sequence for sequence, count in self._withheld.items() if count]:
            raise damaged(
                f"the payload of the entry {min(odd)} is missing, or present although the log says that it isn't"
            )
        if not has_tokens:
            self._check_old_references(ledger.connection)
            return
        known: Counter[str] = Counter()
        for execution, name, is_there, token in ledger.connection.execute(
            "SELECT execution, id, value IS NOT NULL, erased FROM reference_values"
        ):
            expected = None if ledger.master is None else ledger.master.erasure_token(execution, name)
            if token is not None:
                known[token] += 1
                # Once its execution is erased, the token is all that is left of it.
                if token != (expected or token if execution else name):
                    raise damaged(f"the erased reference {name!r:.60} of {execution!r:.60} is another one")
            was_restored = expected is not None and self._tokens[expected] > 0
            if is_there == (token is not None or execution in self.erased) or (is_there and was_restored):
                said = "is there, and the log says it was erased" if is_there else "is gone, and the log doesn't say so"
                raise damaged(f"the value behind the reference {name!r:.60} of {execution} {said}")
        if known != self._tokens or self._references:
            raise damaged("the erased references don't match those in the log")

    def _check_old_references(self, connection: sqlite3.Connection) -> None:
        """As `_check_references`, for a file whose entries are all of earlier versions."""
        known = set()
        for execution, name, is_there in connection.execute(
            "SELECT execution, id, value IS NOT NULL FROM reference_values"
        ):
            known.add((execution, name))
            if is_there == (execution in self.erased or (execution, name) in self._references):
                said = "is there, and the log says it was erased" if is_there else "is gone, and the log doesn't say so"
                raise damaged(f"the value behind the reference {name!r:.60} of {execution} {said}")
        if missing := self._references - known:
            raise damaged(f"the reference {min(missing)[1]!r:.60} is missing")

    def _check_executions(self, connection: sqlite3.Connection) -> None:
        """Check that each execution that has begun is stored, and that no row is older than its last suspension or end.

        One that is stored as running may have ended: its process died before it stored that. It is resumed from its
        entries, not from its row.
        """
        statuses = dict(connection.execute("SELECT id, status FROM executions"))
        for execution, status in statuses.items():
            if (status == ERASED) != (execution in self.erased):
                raise damaged(f"{execution} is down as {status}, and the log says otherwise")
        for execution, left in self._left.items():
            if execution not in statuses:
                raise damaged(f"the execution {execution} has begun, and is missing")
            status = statuses[execution]
            if status in {ERASED, "running"}:
                continue
            if (
                isinstance(left, ProgramSuspension | ScriptSuspension | ProgramEnd | ScriptEnd)
                and left.status != status
            ):
                raise damaged(f"the execution {execution} is down as {status}, and it was left as {left.status}")

    def _check_decisions(self, connection: sqlite3.Connection, master: MasterKey) -> None:
        """Check that each decision has its question, and each decided question its decision."""
        decided: Counter[tuple[str, str]] = Counter()
        for execution, effect, status, question, decision, wrapped in connection.execute(
            "SELECT execution, effect, status, question, decision, wrapped"
            " FROM approvals LEFT JOIN data_keys USING (execution)"
        ):
            if wrapped is None or status == "open":
                continue
            key = master.open(execution, wrapped)
            fields, said = (
                json.loads(key.open(sealed or b"", f"{execution}/{what}/{effect}".encode()))
                for what, sealed in (("question", question), ("decision", decision))
            )
            decided[execution, _canonical(fields | said)] += 1
        if decided != self._decided:
            odd = min((decided - self._decided) + (self._decided - decided))
            raise damaged(f"the decisions of {odd[0]} are not those that the log has")

    def _check_states(self, connection: sqlite3.Connection, master: MasterKey) -> None:
        """Check that each suspended execution has the state of its last suspension."""
        for execution, status, state, wrapped in connection.execute(
            "SELECT id, status, state, wrapped FROM executions JOIN data_keys ON id = execution WHERE state IS NOT NULL"
        ):
            left = self._left.get(execution)
            if isinstance(left, ProgramSuspension) and wrapped is not None:
                data = master.open(execution, wrapped).open(state, f"{execution}/state".encode())
                if status != "running" and hashlib.sha256(data).hexdigest() != left.state:
                    raise damaged(f"the state of {execution} is not the one that it was left in")


def tells_of_tables(execution: str, kind: str) -> bool:
    """Whether an entry of that execution and kind tells of other tables."""
    return execution == LEDGER or kind in _ROW_KINDS


def _was_converted(connection: sqlite3.Connection) -> bool:
    """Whether the references of earlier versions are replaced by tokens.

    That takes a transaction of its own, after the one that adds the column: a file may have the one and not the other.
    """
    (found,) = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM meta WHERE name = ?)"
        " OR EXISTS (SELECT 1 FROM reference_values WHERE erased IS NOT NULL)",
        (OLD_REQUESTS,),
    ).fetchone()
    return bool(found)


def _check_rows(connection: sqlite3.Connection, master: MasterKey, version: int) -> None:
    later = (("usages", _WITH_USAGES), ("sessions", _WITH_SESSIONS))
    for table in (*_MAC_TABLES, *(table for table, since in later if version >= since)):
        for row in connection.execute(f"SELECT * FROM {table}"):  # noqa: S608 - its names are those above
            check_row(master, table, row)
    for execution, wrapped in connection.execute("SELECT execution, wrapped FROM data_keys WHERE wrapped IS NOT NULL"):
        master.open(execution, wrapped)
    for (wrapped,) in connection.execute(
        "SELECT value FROM meta WHERE name = ? AND value NOT IN ('', ?)", (OLD_REQUESTS, OLD_REQUESTS_GONE)
    ):
        master.unwrap(wrapped, OLD_REQUESTS)
    check_sealed(connection, master)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
