"""What stays on the disk: bytes of the ledger and of the state directory, for a run and for a call."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.measure import Row
from benchmarks.tools import TABLES
from mcp_bridge import settings
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.ledger.keys.master_key_sources import master_key
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.storage.schema import FILE_NAME

if TYPE_CHECKING:
    from benchmarks.bridge import Bench

RUNS, CALLS = 20, 400

SCRIPT = """
from mcp.servers import local
for number in range({calls}):
    await local.audit(step=f"s{{number}}")
"""


class Kept(NamedTuple):
    """Bytes that a state directory has.

    Attributes:
        ledger: Of the ledger's file, without what is unused in its pages.
        files: Of what is beside it, without its write-ahead log, containers and images.
        content: Of the ledger's entries and their payloads alone.
    """

    ledger: int
    files: int
    content: int


async def kept(bench: Bench) -> list[Row]:
    """Runs of `pass`, each with its container; then one run with many calls."""
    runs, calls = bench.count(RUNS), bench.count(CALLS)
    bench.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench.state_dir) as folder:
        state = Path(folder) / "state"
        state.mkdir(mode=0o700)
        for probed in bench.state_dir.glob("*.json"):
            (state / probed.name).write_bytes(probed.read_bytes())
        configured = settings.Settings(state_dir=state, max_calls=1_000_000)
        async with open_bridge(configured, [], load_governance(TABLES, None, Path.cwd(), state)) as bridge:
            # The first run makes what is made once.
            await bridge.run("pass")
            points = [_kept(state)]
            for code, count in (("pass", runs), (SCRIPT.format(calls=calls), 1)):
                for _ in range(count):
                    answer = await bridge.run(code)
                    assert answer.status == "success", answer
                points.append(_kept(state))
    rows = []
    for what, before, after, count in (
        ('`run_python("pass")`', points[0], points[1], runs),
        ("call of a registered tool", points[1], points[2], calls),
    ):
        ledger, files, content = ((there - here) / count for here, there in zip(before, after, strict=True))
        against = "its entries and payloads alone"
        rows.append(Row(f"{what}, kept in the ledger", ledger, content, "B", against))
        rows.append(Row(f"{what}, kept in all", ledger + files, content, "B", against))
    return rows


def _kept(state: Path) -> Kept:
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        ((ledger,),) = connection.execute("SELECT sum(pgsize - unused) FROM dbstat")
    # Without what belongs to containers and images: it goes with the containers, or is there once.
    folders = [path for path in state.iterdir() if path.name not in {"run", "oci"} and FILE_NAME not in path.name]
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    files = sum(path.stat().st_size for path in paths if path.is_file())
    with open_ledger(state / FILE_NAME, master_key("file", state, make=False)) as opened:
        content = sum(len(entry.data) + len(entry.payload or b"") for entry in opened.entries())
    return Kept(ledger, files, content)
