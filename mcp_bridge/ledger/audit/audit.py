"""The audit of a ledger: that it is complete and unchanged, that an entry is in it, that it has only grown.

A file is verified like its export, by the same code, and then as a database: its schema with its triggers, the hashes
stored with the entries, its keys, erasures, and the tables that are not part of the log.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.atomic_files import create_private, rename_noreplace, sync_directory, sync_file
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit.parallel import checked_stretches
from mcp_bridge.ledger.audit.table_audit import TableAudit, check_master
from mcp_bridge.ledger.log.entry_encoding import LEDGER, decode
from mcp_bridge.ledger.log.reading import expected_schema, open_ledger, read_schema, unknown_entry
from mcp_bridge.ledger.proofs import merkle, notes, tlog_proof
from mcp_bridge.ledger.proofs.disclosures import Disclosed
from mcp_bridge.ledger.proofs.disclosures import encode as encode_disclosed
from mcp_bridge.ledger.proofs.exports import Picked, Signed, best_note, verify_export
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.publish.protocol import TargetState
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mcp_bridge.ledger.log.entry_encoding import Leaf
    from mcp_bridge.ledger.log.reading import Ledger
    from mcp_bridge.ledger.proofs.exports import Progress, Verdict
    from mcp_bridge.ledger.storage.position import PositionFile
    from mcp_bridge.ledger.storage.sealing import MasterKey


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The result of verifying a file.

    Attributes:
        log: The result for its log.
        erased: How many executions are erased.
        opened: Whether payloads, states and rows of other tables were decrypted and authenticated, which needs the
            master key.
    """

    log: Verdict
    erased: int
    opened: bool


def verify_file(
    path: Path,
    verifiers: Iterable[Verifier] | None,
    against: Sequence[str] = (),
    master: MasterKey | None = None,
    position: PositionFile | None = None,
    progress: Progress | None = None,
) -> FileVerdict:
    """Verify a ledger's file, all of it.

    Args:
        path: The file.
        verifiers: The keys that are trusted; None to trust none.
        against: Signed checkpoints of the log that were kept elsewhere.
        master: Opens payloads and other rows; None to leave them closed.
        position: The recorded position of the log, for the ledger in use.
        progress: As `verify_export`.

    Raises:
        BridgeError: As `open_ledger` and `verify_export`; `ledger_damaged`, `ledger_behind`, `ledger_head_damaged`.
    """
    if position is not None:
        position.load()
    with open_ledger(path, master) as ledger:
        # First: a foreign object in the schema could make the next check take long.
        _check_schema(ledger.connection)
        (verdict,) = ledger.connection.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise damaged(f"SQLite finds: {verdict}")
        if master is not None:
            check_master(ledger.connection, master)
        tables = TableAudit()
        with checked_stretches(ledger) as stretches:
            lines = ledger.checked_lines(tables.see, stretches or (), tables.see_stretch)
            log = verify_export(lines, verifiers, against, progress=progress)
        tables.check(ledger)
        if position is not None:
            position.check(ledger.connection)
        return FileVerdict(log, len(tables.erased), master is not None)


def _check_schema(connection: sqlite3.Connection) -> None:
    wanted = expected_schema(connection.execute("PRAGMA user_version").fetchone()[0])
    actual = read_schema(connection)
    for row in wanted:
        if row not in actual:
            raise damaged(f"the {row[0]} {row[1]} is missing or changed")
    for row in actual:
        if row not in wanted:
            raise damaged(f"there is a {row[0]!r:.20} {row[1]!r:.60} that doesn't belong there")


def checkpoint(ledger: Ledger) -> str:
    """The signed checkpoint of all entries, with the most signatures that there are.

    Raises:
        BridgeError: `ledger_damaged`: it isn't the log's, or isn't signed by the key that is said to sign it.
    """
    note = ledger.head_note()
    try:
        key = Verifier.parse(ledger.vkey)
        parsed, _ = notes.open_checkpoint(note, [key])
    except BridgeError as exc:
        raise damaged(f"its head can't be taken: {exc.message.rstrip('.')}") from None
    # The log's own note contains nothing else, and can be shown to anyone.
    if not note.startswith(f"{notes.checkpoint_text(parsed)}\n") or (parsed.origin, parsed.size) != (
        key.name,
        ledger.size,
    ):
        raise damaged("its head is another log's, or of another size")
    return note


def prove(ledger: Ledger, sequence: int, *, payload: bool) -> bytes:
    """Prove that an entry is in the log; returns a tlog-proof file.

    Args:
        ledger: The log.
        sequence: The entry's.
        payload: Whether its payload is disclosed, if it can be read.

    Raises:
        BridgeError: `unknown_entry`; `ledger_damaged`.
    """
    entry = ledger.entry(sequence)
    disclosed = Disclosed(entry.data, entry.payload, entry.salt)
    best = _best_note(ledger, sequence)
    hashes = merkle.inclusion_proof(sequence, best.checkpoint.size, ledger.node)
    return _proof(entry.leaf, disclosed, hashes, best.note, payload=payload)


def _best_note(ledger: Ledger, sequence: int) -> Signed:
    """The stored checkpoint for an entry's proof: signed with the current key, and cosigned if one is."""
    key = Verifier.parse(ledger.vkey)
    candidates = []
    for note in ledger.checkpoints():
        text, signatures = notes.split_note(note)
        checkpoint = notes.parse_checkpoint(text)
        if sequence < checkpoint.size <= ledger.size:
            by_key = any((name, one[: len(key.key_id)]) == (key.name, key.key_id) for name, one in signatures)
            candidates.append(Signed(checkpoint, note, ((key, None),) if by_key else ()))
    if not candidates:
        raise damaged("its head is of another size than it says")
    return best_note(candidates, {ledger.vkey})


def prove_exported(
    source: IO[bytes],
    verifiers: Sequence[Verifier] | None,
    sequence: int,
    *,
    payload: bool,
    progress: Progress | None = None,
) -> bytes:
    """As `prove_by`, the proof alone."""
    return prove_by(source, verifiers, sequence, payload=payload, progress=progress).data


class Proven(NamedTuple):
    """A proof, and the keys of the log that have signed its checkpoint."""

    data: bytes
    keys: tuple[Verifier, ...]


def prove_by(
    source: IO[bytes],
    verifiers: Sequence[Verifier] | None,
    sequence: int,
    *,
    payload: bool,
    progress: Progress | None = None,
) -> Proven:
    """As `prove`, from an export, which is verified first.

    A checkpoint signed by a key of `verifiers` is preferred to one by another key that it vouches for.

    Args:
        source: The export.
        verifiers: The keys that are trusted; None to trust none.
        sequence: The entry's.
        payload: Whether its payload is disclosed, if the export has it.
        progress: As `verify_export`.

    Raises:
        BridgeError: `unknown_entry`; as `verify_export`.
    """
    picked = Picked(sequence)
    size = verify_export(source, verifiers, (), picked, progress).size
    if picked.leaf is None or picked.disclosed is None:
        raise unknown_entry(sequence, size)
    return Proven(_proof(picked.leaf, picked.disclosed, picked.hashes, picked.note, payload=payload), picked.keys)


def _proof(leaf: Leaf, disclosed: Disclosed, hashes: Sequence[bytes], note: str, *, payload: bool) -> bytes:
    # The log's own entries are about keys and clocks, and of no use without their payloads.
    content = disclosed if payload or leaf.execution == LEDGER else Disclosed(disclosed.entry)
    return tlog_proof.encode(tlog_proof.Proof(leaf.sequence, tuple(hashes), note, encode_disclosed(content)))


def export(ledger: Ledger, file: IO[bytes], *, payloads: bool) -> int:
    """Write the log as one file that can be verified by itself; returns the number of its entries.

    Raises:
        BridgeError: `ledger_damaged`.
        OSError: The file can't be written.
    """
    for line in ledger.lines(payloads=payloads):
        file.write(line)
    return ledger.size


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """Numbers of a ledger.

    Attributes:
        origin: The log's name.
        entries: How many entries it has.
        kinds: How many entries there are of each kind.
        executions: How many executions there are of each status.
        erased: How many executions are erased.
        payload_bytes, file_bytes: Sizes, in bytes.
        first, last: When the first and the last entry were written, in seconds since 1970; None if there is none.
        key: The public key that signs it.
        published: How publishing goes, by the ids of the targets.
    """

    origin: str
    entries: int
    kinds: dict[str, int]
    executions: dict[str, int]
    erased: int
    payload_bytes: int
    file_bytes: int
    first: float | None
    last: float | None
    key: str
    published: dict[str, TargetState]

    def to_json(self) -> dict[str, Any]:
        """The numbers as a JSON object, by these names."""
        return asdict(self)


def stats(ledger: Ledger) -> LedgerStats:
    """Count what is in a ledger.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    connection = ledger.connection

    def counts(query: str) -> dict[str, int]:
        numbers: dict[str, int] = dict(connection.execute(query).fetchall())
        if not all(isinstance(name, str) for name in numbers):
            raise damaged("a name in it is no text")
        return numbers

    first, last = (
        connection.execute(f"SELECT CAST(entry AS BLOB) FROM entries ORDER BY sequence {order} LIMIT 1").fetchone()  # noqa: S608
        for order in ("ASC", "DESC")
    )
    pages, page = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return LedgerStats(
        origin=ledger.origin,
        entries=ledger.size,
        kinds=counts("SELECT kind, count(*) FROM entries GROUP BY kind ORDER BY kind"),
        executions=counts("SELECT status, count(*) FROM executions GROUP BY status ORDER BY status"),
        erased=connection.execute("SELECT count(*) FROM data_keys WHERE wrapped IS NULL").fetchone()[0],
        payload_bytes=connection.execute("SELECT coalesce(sum(length(sealed)), 0) FROM payloads").fetchone()[0],
        file_bytes=pages * page,
        first=_time(first[0]) if first else None,
        last=_time(last[0]) if last else None,
        key=ledger.vkey,
        published=published(ledger),
    )


def published(ledger: Ledger) -> dict[str, TargetState]:
    """The states of the targets of its checkpoints, by their ids.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    rows = ledger.connection.execute("SELECT target, state FROM published ORDER BY target")
    return {target: _target_state(state) for target, state in rows}


def _time(entry: bytes) -> float:
    try:
        return decode(entry).time / 1e6
    except BridgeError as exc:
        raise damaged(f"its first entry or its last one is none ({exc.message.rstrip('.')})") from None


def _target_state(record: str) -> TargetState:
    """The state of a stored record. Everything of it that is displayed has been checked."""
    try:
        state = TargetState.parse(record)
        alarm = state.conflict
        values = state.size, state.status, *((alarm["time"], alarm["message"]) if alarm is not None else ())
        if [type(value) for value in values] not in ([int, str], [int, str, float, str]):
            raise TypeError
        if alarm is not None:
            # A number that is no time can't be displayed as one.
            time.localtime(alarm["time"])
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        raise damaged("what it says of a target of its checkpoints can't be read") from None
    return state


def backup(path: Path, target: Path, verifiers: Sequence[Verifier] | None, master: MasterKey | None) -> FileVerdict:
    """Copy a ledger while it is in use, and verify the copy. The keys are not copied.

    Args:
        path: The file.
        target: The copy, which must not exist yet.
        verifiers: As `verify_file`, like `master`.
        master: Decrypts its content.

    Raises:
        BridgeError: `backup_exists`, `backup_failed`; as `verify_file`, of the copy. Nothing is left then.
    """
    if target.exists():
        raise BridgeError("backup_exists", f"{target} is there already.", hint="Name a file that isn't.")
    new = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
    try:
        # SQLite writes into the empty file, and keeps its mode.
        create_private(new).close()
        with open_ledger(path) as ledger:
            ledger.connection.execute("COMMIT")
            try:
                # A copy of the pages would contain deleted data.
                ledger.connection.execute("VACUUM INTO ?", (str(new),))
            except sqlite3.Error as exc:
                raise BridgeError("backup_failed", f"{target} can't be written: {exc}.") from None
        sync_file(new)
        verdict = verify_file(new, verifiers, (), master)
        rename_noreplace(new, target)
        sync_directory(target.parent)
    except FileExistsError:
        raise BridgeError("backup_exists", f"{target} is there already.", hint="Name a file that isn't.") from None
    except OSError as exc:
        raise BridgeError("backup_failed", f"{target} can't be written: {exc.strerror}.") from None
    finally:
        for leftover in (new, new.with_name(f"{new.name}-wal"), new.with_name(f"{new.name}-shm")):
            leftover.unlink(missing_ok=True)
    return verdict


class Consistency(NamedTuple):
    """The log of one checkpoint is the beginning of that of another.

    Attributes:
        old, new: The sizes of the two.
        proof: The consistency proof's hashes, in hex (RFC 6962, section 2.1.2).
    """

    old: int
    new: int
    proof: list[str]


def consistency(
    ledger: Ledger, old: str, new: str | None, verifiers: Sequence[Verifier], before: Sequence[Verifier] = ()
) -> Consistency:
    """Prove that the log of one checkpoint is a prefix of that of another, and both of this log.

    Args:
        ledger: The log.
        old: A signed note.
        new: A later one; None for the log's current one.
        verifiers: The keys that are trusted.
        before: Former keys of the log, valid for notes of the time when they were in use.

    Raises:
        BridgeError: `bad_note`, `unknown_key`, `bad_signature`, `retired_key`; `other_log`; `rolled_back`, `tampered`;
            `bad_proof`.
    """
    named = {by.vkey: by for by in ledger.signing_keys()}
    # With the validity that the log's entries give each key.
    known = {by.vkey: named.get(by.vkey, by) for by in (*verifiers, *before)}.values()
    earlier, _ = notes.open_checkpoint(old, known)
    later, _ = notes.open_checkpoint(ledger.note, verifiers) if new is None else notes.open_checkpoint(new, known)
    for checkpoint in (earlier, later):
        if checkpoint.origin != ledger.origin:
            raise BridgeError("other_log", f"This is a checkpoint of the log {checkpoint.origin!a}.")
        if checkpoint.size > ledger.size:
            raise BridgeError(
                "rolled_back", f"A checkpoint is of {checkpoint.size} entries; the log here has {ledger.size}."
            )
        if checkpoint.root != merkle.root(checkpoint.size, ledger.node):
            raise BridgeError("tampered", f"The first {checkpoint.size} entries have another root than was signed.")
    hashes = merkle.consistency_proof(earlier.size, later.size, ledger.node)
    merkle.verify_consistency(earlier.size, later.size, earlier.root, later.root, hashes)
    return Consistency(earlier.size, later.size, [each.hex() for each in hashes])
