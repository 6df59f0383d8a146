"""Ledgers of many entries: made, proved from and verified, with what that takes of time and memory."""

from __future__ import annotations

import hashlib
import random
import re
import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workers import work
from mcp_bridge.ledger.audit.file_verification import verify_file
from mcp_bridge.ledger.audit.ledger_copies import export
from mcp_bridge.ledger.audit.proving import prove
from mcp_bridge.ledger.keys.master_key_sources import master_key
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.log.transaction import Append, commit, posted
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.proofs.export_verification import verify_export
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage.file_opening import open_to_write
from mcp_bridge.ledger.storage.schema import FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.ledger.storage.sealing import MasterKey

EXPORT = "log.jsonl"

ENTRIES_AN_EXECUTION = 20

BATCH = 2000

PAYLOAD = {"kind": "tool", "tool": "local.audit", "arguments": {"step": "s1"}}

_POLICY, _PROGRAM = hashlib.sha256(b"policy").hexdigest(), hashlib.sha256(b"program").hexdigest()


def entry(execution: int) -> Entry:
    """An intent of a program's step."""
    return Entry("intent", f"{execution:016x}", PAYLOAD, "s1", _POLICY, _PROGRAM)


def grow(folder: Path, size: int) -> None:
    """Make a log, or add to one, until it has so many entries; and its export."""
    connection, log = open_to_write(folder / FILE_NAME, "file")
    with closing(connection):
        # Nobody needs it after a power cut.
        connection.execute("PRAGMA synchronous = OFF")
        (have,) = connection.execute("SELECT size FROM head").fetchone()
        for first in range(have, size, BATCH):
            batch = [
                Append(posted(entry(number // ENTRIES_AN_EXECUTION)))
                for number in range(first, min(size, first + BATCH))
            ]
            commit(connection, log, batch)
    with open_ledger(folder / FILE_NAME, _master(folder)) as ledger, (folder / EXPORT).open("wb") as file:
        export(ledger, file, payloads=True)


def _master(folder: Path) -> MasterKey:
    return master_key("file", folder, make=False)


def proofs(folder: Path, count: int) -> dict[str, float]:
    """Median microseconds of proofs of entries and sizes at random, and of reading as many rows."""
    with open_ledger(folder / FILE_NAME, _master(folder)) as ledger:
        size = ledger.size

        def reads() -> None:
            for _ in range(size.bit_length()):
                sequence = random.randrange(size)  # noqa: S311
                ledger.connection.execute("SELECT nodes FROM entries WHERE sequence = ?", (sequence,)).fetchone()

        measured: dict[str, Callable[[], object]] = {
            "inclusion": lambda: merkle.inclusion_proof(random.randrange(size), size, ledger.node),  # noqa: S311
            "consistency": lambda: merkle.consistency_proof(random.randrange(1, size), size, ledger.node),  # noqa: S311
            "prove": lambda: prove(ledger, random.randrange(size), payload=True),  # noqa: S311
            "reads": reads,
        }
        samples: dict[str, list[float]] = {name: [] for name in measured}
        for _ in range(count):
            for name, once in measured.items():
                began = time.perf_counter()
                once()
                samples[name].append((time.perf_counter() - began) * 1e6)
    return {name: statistics.median(found) for name, found in samples.items()}


def _verify_file(folder: Path) -> None:
    assert verify_file(folder / FILE_NAME, [_verifier(folder)], (), _master(folder)).log.authenticated


def _verify_export(folder: Path) -> None:
    with (folder / EXPORT).open("rb") as file:
        assert verify_export(file, [_verifier(folder)]).authenticated


def _verifier(folder: Path) -> Verifier:
    with open_ledger(folder / FILE_NAME) as ledger:
        return Verifier.parse(ledger.vkey)


def _hash_rows(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        rows = connection.execute("SELECT entry, sealed FROM entries LEFT JOIN payloads USING (sequence)")
        for data, sealed in rows:
            hashlib.sha256(data).digest()
            hashlib.sha256(sealed).digest()


def _hash_lines(folder: Path) -> None:
    with (folder / EXPORT).open("rb") as file:
        for line in file:
            hashlib.sha256(line).digest()


WORK: dict[str, Callable[[Path], None]] = {
    "file": _verify_file,
    "export": _verify_export,
    "rows": _hash_rows,
    "lines": _hash_lines,
    "nothing": lambda _: None,
}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """See `benchmarks.worker.Worker`."""
    folder = Path(asked["folder"])
    match asked["do"]:
        case "grow":
            grow(folder, asked["size"])
            return {}
        case "prove":
            return proofs(folder, asked["count"])
    began = time.perf_counter()
    WORK[asked["do"]](folder)
    return {"seconds": time.perf_counter() - began, "peak": _peak()}


def _peak() -> int:
    """The most memory that this process has had, in bytes; `ru_maxrss` knows what it was forked from, too."""
    return int(re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[0]) * 1024


if __name__ == "__main__":
    work.serve(answer)
