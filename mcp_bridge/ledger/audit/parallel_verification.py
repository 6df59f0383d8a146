"""Entries of a file checked by several processes, a batch of them at a time.

A process gets a snapshot of its own, and batches that begin where a subtree of their length does. Of each it tells
what the others depend on: hashes, where the chains of its executions begin and end, payloads that tell of other tables.
What it finds wrong it doesn't tell: the reader checks such a batch again itself, as it does one with entries about
the log, and so finds the same, in the same order, as by itself. It does so where a process can't be had, is lost, or
sees another state of the file.

A process ends when its reader does: its pipes are closed then.
"""

from __future__ import annotations

import json
import marshal
import os
import sqlite3
import struct
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit.table_audit import tells_of_tables
from mcp_bridge.ledger.log.entry_encoding import LEDGER, leaf_hash
from mcp_bridge.ledger.log.reading import ENTRY_BYTES, Ledger, open_snapshot
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.proofs.entry_checks import check_place
from mcp_bridge.ledger.proofs.export_format import BATCH_ENTRIES, BATCH_LEVEL, EntryBatch
from mcp_bridge.ledger.storage.position_file import position_of
from mcp_bridge.ledger.storage.sealing import MasterKey

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MIN_ENTRIES = 1 << 16
"""A shorter log is verified before other processes have started: each takes a quarter of a second of a processor."""

MAX_PROCESSES = 8
"""Each takes some 50 MiB, and the reader's own part is a tenth of all."""

MAX_BATCH_RESULT_BYTES = 4 << 20
"""Most bytes of payloads that are told of a batch: what the reader holds is bounded."""

_LENGTH = struct.Struct(">I")

_LOADER = """
import json, sys
sys.path[:] = json.loads(sys.stdin.buffer.readline())
from mcp_bridge.ledger.audit.parallel_verification import serve
serve(sys.stdin.buffer, sys.stdout.buffer)
"""


@contextmanager
def verified_batches(ledger: Ledger) -> Generator[Iterator[EntryBatch | None] | None]:
    """A ledger's complete batches, in order, each None where the reader has to check it itself; None for no help.

    Args:
        ledger: Its schema is checked already.
    """
    count = min(_processors(), MAX_PROCESSES)
    if ledger.size < MIN_ENTRIES or count == 1 or not sys.executable:
        yield None
        return
    with ExitStack() as processes:
        try:
            started = [processes.enter_context(_started(ledger, at, count)) for at in range(count)]
        except OSError:
            yield None
            return
        yield _checked_elsewhere(started, ledger.size // BATCH_ENTRIES)


def _processors() -> int:
    """The number of processors that this process may use."""
    if sys.platform == "darwin":
        return os.cpu_count() or 1
    return len(os.sched_getaffinity(0))


@contextmanager
def _started(ledger: Ledger, at: int, of: int) -> Generator[BinaryIO]:
    """What a process tells that checks one in `of` batches, from number `at` on."""
    (_, _, path), *_ = ledger.connection.execute("PRAGMA database_list").fetchall()
    position = position_of(ledger.connection)
    # Isolated: the folder that it is started in, and its environment, are nobody's word for what is imported.
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _LOADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None  # as asked for
    assert process.stdout is not None  # likewise
    request = {
        "path": path,
        "master": None if ledger.master is None else ledger.master.key.hex(),
        "position": position and [position.origin, position.size, position.root.hex(), position.writes],
        "at": at,
        "of": of,
    }
    try:
        with process.stdin as stdin, suppress(BrokenPipeError):
            # In one write each, smaller than a pipe: nothing is waited for.
            stdin.write(f"{json.dumps(sys.path)}\n{json.dumps(request)}\n".encode())
        yield process.stdout  # type: ignore[misc]  # it is opened for bytes
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


def _checked_elsewhere(started: list[BinaryIO], batches: int) -> Iterator[EntryBatch | None]:
    lost = [False] * len(started)
    for number in range(batches):
        at = number % len(started)
        found = None if lost[at] else _received(started[at])
        lost[at] = lost[at] or found is None
        # What is empty was found wrong.
        yield EntryBatch(*marshal.loads(found)) if found else None  # noqa: S302 - of a process of ours


def _received(pipe: BinaryIO) -> bytes | None:
    """A message; None if the process has ended."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    return data if len(data) == length else None


# --- in the other process ---


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Check the batches that are asked for, and tell of each: an empty message of one that can't be accepted."""
    asked = json.loads(source.readline())
    master = None if asked["master"] is None else MasterKey(bytes.fromhex(asked["master"]))
    with suppress(BrokenPipeError), closing(open_snapshot(Path(asked["path"]))) as connection:
        ledger = Ledger(connection, master)
        position = position_of(connection)
        seen = position and [position.origin, position.size, position.root.hex(), position.writes]
        if seen != asked["position"]:
            # Somebody has written meanwhile. What is sent of another state would be taken for damage.
            return
        for number in range(asked["at"], ledger.size // BATCH_ENTRIES, asked["of"]):
            found = checked(ledger, number * BATCH_ENTRIES)
            data = b"" if found is None else marshal.dumps(tuple(found))
            target.write(_LENGTH.pack(len(data)) + data)
            target.flush()


def checked(ledger: Ledger, first: int) -> EntryBatch | None:
    """Check a batch as far as that needs nothing before it; None if its reader has to.

    Args:
        ledger: The ledger.
        first: The number of its first entry, a multiple of BATCH_ENTRIES.
    """
    try:
        return _checked(ledger, first)
    except (BridgeError, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _checked(ledger: Ledger, first: int) -> EntryBatch | None:
    if first == 0:
        # The log's first entry is about itself.
        return None
    frontier = merkle.Frontier()
    nodes: list[bytes] = []
    begins: dict[str, str | None] = {}
    ends: dict[str, str] = {}
    undisclosed: Counter[str] = Counter()
    log_entries: list[tuple[str, str, int, bytes | None]] = []
    began = last = 0
    size = 0
    for leaf, entry, payload, _, own in ledger.read(first, first + BATCH_ENTRIES):
        check_place(leaf, first + frontier.size, ends.get(leaf.execution, leaf.previous), last)
        expected = frontier.append(leaf_hash(entry))
        if (
            leaf.execution == LEDGER
            or leaf.kind == "key"
            # What the last one has of the tree above is checked by the reader.
            or (own != expected and not (frontier.size == BATCH_ENTRIES and own.startswith(expected)))
            or (payload is not None and len(payload) > ENTRY_BYTES)
        ):
            return None
        began, last = began or leaf.time, leaf.time
        begins.setdefault(leaf.execution, leaf.previous)
        ends[leaf.execution] = own[: merkle.HASH_BYTES].hex()
        nodes.append(own)
        if payload is None:
            undisclosed[leaf.execution] += 1
        if tells_of_tables(leaf.execution, leaf.kind):
            size += 0 if payload is None else len(payload)
            log_entries.append((leaf.execution, leaf.kind, leaf.sequence, payload))
        elif payload is not None:
            json.loads(payload.decode())
    if frontier.size != BATCH_ENTRIES or size > MAX_BATCH_RESULT_BYTES:
        return None
    above = nodes[-1][merkle.HASH_BYTES * (BATCH_LEVEL + 1) :]
    return EntryBatch(
        frontier.root(), above, b"".join(nodes), begins, ends, began, last, dict(undisclosed), log_entries
    )
