"""Verifies exports while they are read: every entry, every checkpoint, and the keys that have signed."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import plain_name
from mcp_bridge.ledger.log import entry_encoding
from mcp_bridge.ledger.log.key_history import KeyHistory
from mcp_bridge.ledger.log.log_payloads import AcceptedLoss, Erasure
from mcp_bridge.ledger.proofs import disclosures, merkle, notes, signing
from mcp_bridge.ledger.proofs.checkpoints import Signed, best_note, check_against_log, check_origin
from mcp_bridge.ledger.proofs.disclosures import Disclosed
from mcp_bridge.ledger.proofs.entry_checks import check_place, names_key
from mcp_bridge.ledger.proofs.export_format import (
    BATCH_ENTRIES,
    FORMAT,
    MAX_LINE_BYTES,
    ReadEntry,
    VerifiedBatch,
    entry_line,
)
from mcp_bridge.ledger.proofs.verified_log import Cosigned, Lost, VerifiedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mcp_bridge.error_codes import Code
    from mcp_bridge.ledger.proofs.export_format import Line
    from mcp_bridge.ledger.proofs.notes import Checkpoint
    from mcp_bridge.ledger.proofs.signing import Verifier

    Progress = Callable[[int, int], None]
    """Called with the number of entries that are done, and of all."""

_IN_MEMORY_BYTES = 16 << 20
"""Most bytes of the tree's hashes in memory, at 64 bytes an entry. More go to a temporary file."""

PROGRESS_ENTRIES = BATCH_ENTRIES
"""Entries between two calls of `Progress`."""

_MAX_ERASURE_BYTES = 4 << 20
"""Longest payload of an erasure that is parsed: parsing a longer one could fill the memory."""

_MAX_LOSSES = 1000
"""Most losses that are reported for one file."""

_MAX_LOSS_BYTES = 64 << 10
"""Longest payload of an accepted loss that is parsed."""


@dataclass(slots=True)
class EntryToProve:
    """An entry that is to be proven from an export; the rest is found as that is read.

    Attributes:
        sequence: The entry's.
        leaf: It.
        disclosed: Its bytes, and its payload where the export has it.
        hashes: The audit path, from its sibling up.
        note: The checkpoint that it leads to: see `best_note`.
        keys: The keys of the log that have signed that one.
    """

    sequence: int
    leaf: entry_encoding.Leaf | None = None
    disclosed: Disclosed | None = None
    hashes: tuple[bytes, ...] = ()
    note: str = ""
    keys: tuple[Verifier, ...] = ()


def verify_export(
    source: IO[bytes] | Iterable[Line],
    verifiers: Iterable[Verifier] | None,
    against: Sequence[str] = (),
    picked: EntryToProve | None = None,
    progress: Progress | None = None,
) -> VerifiedLog:
    """Verify an export while it is read. Memory grows only with the number of executions.

    Args:
        source: A binary file, or its lines, each with its newline; an entry may be a `ReadEntry`, and
            entries a `VerifiedBatch`.
        verifiers: The trusted keys of the log and of witnesses; None to trust none, which proves only that the file is
            consistent in itself.
        against: Signed checkpoints of the log that were kept elsewhere; each must agree with the file.
        picked: An entry to prove, which is filled in if the file has it; or None.
        progress: Called at intervals; or None.

    Raises:
        BridgeError: What is wrong, the number of the line, from 1, in its details as `line`. `bad_export`: it is no
            export, or cut off. `bad_entry`, `bad_checkpoint`, `bad_key`: a line is not what it should be. `tampered`:
            an entry, a payload or a root is another. `bad_signature`, `unknown_key`, `untrusted_key`: a checkpoint's
            signature is wrong, or by no known key of the log, or the last one's by no trusted one. `retired_key`: a
            checkpoint is signed with a key that another had replaced by then. `other_log`, `rolled_back`: a checkpoint
            kept elsewhere is of another log, or of more entries.
    """
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as nodes:
        return _Reader(source, verifiers, nodes, picked, progress).read(against)


class _Reader:
    def __init__(
        self,
        source: IO[bytes] | Iterable[Line],
        verifiers: Iterable[Verifier] | None,
        nodes: IO[bytes],
        picked: EntryToProve | None,
        progress: Progress | None,
    ) -> None:
        self._lines = _lines(source)
        self._line = 0
        self._given = None if verifiers is None else list(verifiers)
        self._nodes = nodes
        self._picked = picked
        self._progress = progress
        self._frontier = merkle.Frontier()
        self._size = 0
        self._heads: dict[str, str] = {}
        self._time = 0
        self._disclosed = 0
        self._undisclosed: Counter[str] = Counter()
        self._erased: set[str] = set()
        self._losses: list[Lost] = []

    def read(self, against: Sequence[str]) -> VerifiedLog:
        with self._at_line():
            origin, size = self._header()
        self._keys = KeyHistory(origin, self._given)
        for first in range(0, size, PROGRESS_ENTRIES):
            if self._progress is not None:
                self._progress(first, size)
            with self._at_line():
                while self._size < min(first + PROGRESS_ENTRIES, size):
                    found = self._next_found()
                    if isinstance(found, VerifiedBatch):
                        self._batch(found)
                    else:
                        self._entry(found)
        self._nodes.flush()
        last = notes.Checkpoint(origin, 0, merkle.empty_root())
        count = 0
        candidates: list[Signed] = []
        cosigned: list[Cosigned] = []
        while last.size < size:
            with self._at_line():
                note = self._checkpoint_line()
                checkpoint, signers = self._next_checkpoint(note, last, size)
                self._keys.sign(checkpoint.size, (by for by, _ in signers))
                cosigned += (Cosigned(checkpoint.size, time, by) for by, time in signers if time is not None)
                last, count = checkpoint, count + 1
                if self._picked is not None and self._picked.sequence < checkpoint.size:
                    candidates.append(Signed(checkpoint, note, tuple(signers)))
        trusted = self._keys.trusted()
        with self._at_line():
            if next(self._lines, b""):
                raise BridgeError("bad_export", "Something follows the last checkpoint.")
            if self._given is not None and not any(by.vkey in trusted for by, _ in signers):
                raise self._untrusted(signers)
        for elsewhere in against:
            self._compare(elsewhere, last)
        if self._picked is not None and self._picked.leaf is not None:
            best = best_note(candidates, None if self._given is None else {by.vkey for by in self._given})
            hashes = merkle.inclusion_proof(self._picked.sequence, best.checkpoint.size, self._node)
            self._picked.hashes, self._picked.note = tuple(hashes), best.note
            self._picked.keys = tuple(by for by, _ in best.signers if by.is_of_log(origin))
        return VerifiedLog(
            origin=origin,
            size=size,
            root=last.root,
            authenticated=self._given is not None,
            keys=tuple(trusted),
            executions=len(self._heads.keys() - {entry_encoding.LEDGER}),
            disclosed=self._disclosed,
            undisclosed=size - self._disclosed,
            withheld=sum(each for execution, each in self._undisclosed.items() if execution not in self._erased),
            erased=len(self._erased),
            checkpoints=count,
            compared=len(against),
            cosigned=tuple(cosigned),
            lost=tuple(self._keys.lost),
            losses=tuple(self._losses),
        )

    def _untrusted(self, signers: Iterable[tuple[Verifier, int | None]]) -> BridgeError:
        """The error for a last checkpoint that no trusted key has signed, by which keys are missing."""
        names = ", ".join(by.vkey for by, time in signers if time is None)
        if not self._keys.names_log:
            witnesses = ", ".join(plain_name(by.name) for by in self._given or ())
            return BridgeError(
                "untrusted_key",
                f"No key of the log was given, only of {witnesses}: the log is signed with {names}. What a witness has "
                "cosigned only grew; whose log it is, the log's own key says.",
                hint="Give that key too, from a source that you trust: `mcp-bridge audit key` prints it.",
            )
        lost = "; ".join(f"{new} took the place of {old} as lost, entry {entry}" for entry, old, new in self._keys.lost)
        return BridgeError(
            "untrusted_key",
            f"The last checkpoint is not signed by a trusted key of the log, but with {names}{lost and f' ({lost})'}.",
            hint="If the log's key was lost, its next one has to be given too, from a source that you trust.",
        )

    def _header(self) -> tuple[str, int]:
        try:
            form, origin, size = disclosures.decode_object(self._next_line(), ("format", "origin", "size"))
        except BridgeError as error:
            raise BridgeError("bad_export", "This is no export of a ledger: it has no header.") from error
        if form != FORMAT or not isinstance(origin, str) or not signing.is_key_name(origin):
            raise BridgeError("bad_export", f"This is no export of a ledger in the format {FORMAT}, or names no log.")
        if not isinstance(size, int) or not 0 < size <= entry_encoding.MAX_NUMBER:
            raise BridgeError("bad_export", "The header's size is no number of entries.")
        return origin, size

    def _entry(self, found: bytes | ReadEntry) -> None:
        if not isinstance(found, ReadEntry):
            disclosed, decoded = disclosures.decode(found)
            found = ReadEntry(decoded, disclosed.entry, disclosed.payload, disclosed.salt)
        leaf, data, payload, salt, nodes = found
        sequence = self._size
        check_place(leaf, sequence, self._heads.get(leaf.execution), self._time)
        if (key := names_key(leaf, payload)) is not None:
            self._keys.take(sequence, key)
        nodes = nodes or self._frontier.append(entry_encoding.leaf_hash(data))
        self._nodes.write(nodes)
        self._size += 1
        self._heads[leaf.execution], self._time = nodes[: merkle.HASH_BYTES].hex(), leaf.time
        self._disclosed += payload is not None
        if payload is None:
            self._undisclosed[leaf.execution] += 1
        elif leaf.kind == "erasure" and leaf.execution == entry_encoding.LEDGER:
            self._erased.update(self._heads.keys() & _erased_by(payload))
        if leaf.kind == "loss" and leaf.execution == entry_encoding.LEDGER and len(self._losses) < _MAX_LOSSES:
            self._losses.append(_lost(sequence, leaf.time, payload))
        if self._picked is not None and self._picked.sequence == sequence:
            self._picked.leaf, self._picked.disclosed = leaf, Disclosed(data, payload, salt)

    def _batch(self, found: VerifiedBatch) -> None:
        """Take entries that are checked but for what is before them; one by one if they don't follow that."""
        batch = found.batch
        follows = batch.began >= self._time and all(
            self._heads.get(execution) == previous for execution, previous in batch.begins.items()
        )
        try:
            if not follows or self._picked is not None:
                raise BridgeError("tampered", "A batch doesn't follow what is before it.")
            found.accept()
        except BridgeError:
            # Its entries tell which of them it is.
            self._lines = chain(found.entries(), self._lines)
            return
        self._nodes.write(batch.nodes)
        self._size += BATCH_ENTRIES
        self._line += BATCH_ENTRIES
        self._heads.update(batch.ends)
        self._time = batch.last
        self._disclosed += BATCH_ENTRIES - sum(batch.undisclosed.values())
        self._undisclosed.update(batch.undisclosed)

    def _checkpoint_line(self) -> str:
        try:
            (note,) = disclosures.decode_object(self._next_line(), ("checkpoint",))
        except BridgeError as error:
            if error.code == "bad_export":
                raise
            raise BridgeError("bad_checkpoint", "This is no line of a checkpoint.") from error
        if not isinstance(note, str):
            raise BridgeError("bad_checkpoint", "This is no line of a checkpoint.")
        return note

    def _signed_by(self, note: str, origin: str) -> tuple[Checkpoint, list[tuple[Verifier, int | None]]]:
        """The checkpoint of a note that a known key of the log has signed, and whose signatures hold."""
        text, signatures = notes.split_note(note)
        checkpoint = notes.parse_checkpoint(text)
        check_origin(checkpoint, origin)
        valid = notes.check_signatures(text, signatures, self._keys.known)
        of_log = [(by, time) for by, time in valid if by.is_of_log(origin)]
        if not of_log:
            raise BridgeError("unknown_key", "No key of the log has signed the checkpoint.")
        notes.in_use(checkpoint, of_log)
        return checkpoint, notes.in_use(checkpoint, valid)

    def _next_checkpoint(
        self, note: str, last: Checkpoint, size: int
    ) -> tuple[Checkpoint, list[tuple[Verifier, int | None]]]:
        """The file's checkpoint after `last`, if it is this log's."""
        checkpoint, signers = self._signed_by(note, last.origin)
        if checkpoint.size <= size:
            check_against_log(checkpoint, last.origin, size, self._node)
        if not last.size < checkpoint.size <= size:
            raise BridgeError(
                "bad_checkpoint",
                f"A checkpoint of {checkpoint.size} entries can't follow one of {last.size}, of {size} in all.",
            )
        return checkpoint, signers

    def _compare(self, note: str, last: Checkpoint) -> None:
        try:
            checkpoint, _ = self._signed_by(note, last.origin)
            check_against_log(checkpoint, last.origin, last.size, self._node)
        except BridgeError as error:
            raise _located(error, "A checkpoint kept elsewhere:") from error

    def _node(self, level: int, index: int) -> bytes:
        # Each leaf before has written its own hash, and one for each complete subtree that ends at it.
        row = ((index + 1) << level) - 1
        self._nodes.seek(merkle.HASH_BYTES * (2 * row - row.bit_count() + level))
        return self._nodes.read(merkle.HASH_BYTES)

    def _next_found(self) -> bytes | ReadEntry | VerifiedBatch:
        """The next entry, if it is decoded, or batch; otherwise the next line without its newline."""
        line = next(self._lines, b"")
        if isinstance(line, VerifiedBatch):
            return line
        self._line += 1
        if isinstance(line, ReadEntry):
            return line
        if not line.endswith(b"\n"):
            raise BridgeError("bad_export", f"The file is cut off, or a line has more than {MAX_LINE_BYTES} bytes.")
        if len(line) > MAX_LINE_BYTES:
            raise BridgeError("bad_export", f"A line has more than {MAX_LINE_BYTES} bytes.")
        return line[:-1]

    def _next_line(self) -> bytes:
        found = self._next_found()
        if isinstance(found, VerifiedBatch):
            raise BridgeError("bad_export", "An entry is in the place of something else.")
        return entry_line(*found[1:4])[:-1] if isinstance(found, ReadEntry) else found

    @contextmanager
    def _at_line(self) -> Iterator[None]:
        try:
            yield
        except BridgeError as error:
            raise _located(error, f"Line {self._line}:", line=self._line) from error


def _erased_by(payload: bytes) -> set[str]:
    """The executions that an erasure's payload lists; none if it is invalid."""
    if len(payload) > _MAX_ERASURE_BYTES:
        return set()
    try:
        return set(Erasure.decode(json.loads(payload)).executions)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def _lost(sequence: int, time: int, payload: bytes | None) -> Lost:
    """The loss of an entry. Its kind alone says that there was one; details may be unknown."""
    if payload is not None and len(payload) <= _MAX_LOSS_BYTES:
        with suppress(ValueError, AttributeError, RecursionError):
            loss = AcceptedLoss.decode(json.loads(payload))
            return Lost(sequence, time / 1e6, loss.restored, loss.had)
    return Lost(sequence, time / 1e6, None, None)


def _lines(source: IO[bytes] | Iterable[Line]) -> Iterator[Line]:
    readline = getattr(source, "readline", None)
    if readline is None:
        yield from source
    else:
        while line := readline(MAX_LINE_BYTES + 1):
            yield line


def _located(error: BridgeError, where: str, **details: Any) -> BridgeError:
    code: Code = "bad_checkpoint" if error.code == "bad_note" else error.code
    return BridgeError(code, f"{where} {error.message}", hint=error.hint, **{**error.details, **details})
