"""`python -m benchmarks [NAME...] [--json] [--quick]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from benchmarks import (
    calls,
    gateway,
    governed,
    hostile,
    kernel,
    ledger,
    loop,
    peer,
    registered,
    start,
    store,
    tokens,
)
from benchmarks.bridge import Bench
from benchmarks.measure import Row, load, table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BENCHMARKS: dict[str, Callable[[Bench], Awaitable[list[Row]]]] = {
    "noop": calls.noop,
    "cold": calls.cold,
    "proxied": calls.proxied,
    "registered": registered.registered,
    "kernel": kernel.kernel,
    "governed": governed.governed,
    "gateway": gateway.gateway,
    "ledger": ledger.ledger,
    "store": store.store,
    "loop": loop.loop,
    "hostile": hostile.hostile,
    "tokens": tokens.tokens,
    "start": start.start,
    "memory": start.memory,
    "peer": peer.peer,
}


async def _measure(names: list[str], bench: Bench) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    loads = []
    for name in names:
        print(f"measuring {name} …", file=sys.stderr)
        before = load()
        rows += await BENCHMARKS[name](bench)
        loads.append(f"{name}: {before} before, {os.getloadavg()[0]:.1f} after")
    return rows, loads


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds: to see that it runs")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    with tempfile.TemporaryDirectory(prefix="mcp-bridge-bench-") as work:
        state = Path(os.environ.get("MCP_BRIDGE_STATE_DIR") or Path(work) / "state")
        bench = Bench(state_dir=state, work=Path(work), quick=arguments.quick)
        try:
            rows, loads = anyio.run(_measure, arguments.names or list(BENCHMARKS), bench)
        except BaseException:
            for log in sorted(Path(work).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
            raise
    if arguments.json:
        print(json.dumps({"rows": [row.record() for row in rows], "load": loads}))
    else:
        print(table(rows))
        print("\n".join(["", *loads]))


if __name__ == "__main__":
    main()
