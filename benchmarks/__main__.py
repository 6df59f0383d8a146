"""`python -m benchmarks [NAME...] [--json] [--quick]`: figures beside their peers', kept for `benchmarks.history`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks import (
    calls,
    curves,
    files,
    gateway,
    governed,
    history,
    hostile,
    http_server,
    javascript,
    kept,
    kernel,
    ledger,
    loop,
    packages,
    parts,
    peer,
    registered,
    rest,
    sandboxes,
    search,
    sessions,
    start,
    store,
    sustained,
    tokens,
)
from benchmarks.bridge import Bench
from benchmarks.measure import Row, load, table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BENCHMARKS: dict[str, Callable[[Bench], Awaitable[list[Row]]]] = {
    "noop": calls.noop,
    "cold": calls.cold,
    "rest": rest.rest,
    "sustained": sustained.sustained,
    "proxied": calls.proxied,
    "http_server": http_server.http_server,
    "sessions": sessions.sessions,
    "waits": sessions.waits,
    "files": files.files,
    "packages": packages.packages,
    "javascript": javascript.javascript,
    "team": http_server.team,
    "openapi": calls.openapi,
    "registered": registered.registered,
    "kernel": kernel.kernel,
    "governed": governed.governed,
    "gateway": gateway.gateway,
    "ledger": ledger.ledger,
    "store": store.store,
    "kept": kept.kept,
    "parts": parts.parts,
    "loop": loop.loop,
    "hostile": hostile.hostile,
    "search": search.search,
    "tokens": tokens.tokens,
    "start": start.start,
    "memory": start.memory,
    "peer": peer.peer,
    "sandboxes": sandboxes.sandboxes,
    "callers": curves.callers,
    "steps": curves.steps,
    "entries": curves.entries,
    "servers": curves.servers,
    "payloads": curves.payloads,
}

HOURS = 2
"""Bound on one benchmark."""


async def _measure(names: list[str], bench: Bench) -> tuple[dict[str, list[Row]], list[str]]:
    """The rows of each benchmark. One that fails is a row that says so, so that the others' figures aren't lost."""
    rows: dict[str, list[Row]] = {}
    loads = []
    for name in names:
        print(f"measuring {name} …", file=sys.stderr)
        before = load()
        try:
            with anyio.fail_after(HOURS * 3600):
                rows[name] = await BENCHMARKS[name](bench)
        except Exception as exc:  # noqa: BLE001 - what it was is printed, and decides the exit status
            traceback.print_exc()
            for log in sorted(bench.work.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
            rows[name] = [Row(name, None, None, "", note=f"It failed: {type(exc).__name__}.", failed=True)]
        loads.append(f"{name}: {before} before, {os.getloadavg()[0]:.1f} after")
    return rows, loads


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds: to see that it runs")
    parser.add_argument(
        "--history", type=Path, default=history.FILE, metavar="FILE", help="where the run is added (default: in .cache)"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    with tempfile.TemporaryDirectory(prefix="mcp-bridge-bench-") as work:
        state = Path(os.environ.get("MCP_BRIDGE_STATE_DIR") or Path(work) / "state")
        bench = Bench(state_dir=state, work=Path(work), quick=arguments.quick)
        found, loads = anyio.run(_measure, arguments.names or list(BENCHMARKS), bench)
    rows = [row for measured in found.values() for row in measured]
    records = [row.record() | {"benchmark": name} for name, measured in found.items() for row in measured]
    run: dict[str, Any] = history.record(records, loads, quick=arguments.quick)
    history.keep(run, arguments.history)
    if arguments.json:
        print(json.dumps(run, ensure_ascii=False))
    else:
        print(table(rows))
        print("\n".join(["", *loads]))
    sys.exit(any(row.failed for row in rows))


if __name__ == "__main__":
    main()
