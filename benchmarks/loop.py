"""What holds the event loop: the longest turn of it while a guest or a server does its worst, beside that of a no-op.

A turn is what the loop does between two waits for events, in processor time of its thread: another process's work isn't
in it. Nobody else is served meanwhile, so it is what a hostile guest can add to every other's calls.
"""

from __future__ import annotations

import logging
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Row
from mcp_bridge import settings
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.host.loop_watch import LoopStallMonitor, watched

if TYPE_CHECKING:
    from benchmarks.bridge import Bench
    from mcp_bridge.host.bridge import Bridge

REPOSITORY = Path(__file__).resolve().parent.parent

GOAL_MS = 100.0

HEAD = """
import asyncio
from mcp import programs, runtime
from mcp.runtime import call_tool
CARD = "4242424242424242 "
STEP = {"id": "a", "type": "tool", "tool": "floods.echo"}

async def refused(coroutine):
    try:
        return await coroutine
    except Exception as exc:
        print(type(exc).__name__, str(exc)[:200])
"""

GUEST = {
    "saved programs, listed": """
        for n in range({programs}):
            steps = [STEP | {{"id": f"s{{i}}", "args": {{"text": "x" * 40}}}} for i in range(500)]
            await programs.save(f"p{{n}}", {{"name": f"p{{n}}", "steps": steps}})
        await asyncio.gather(*(programs.list() for _ in range(8)))
    """,
    "12 MB of card numbers into a memory": "await refused(runtime.save_memory('k', CARD * 700_000))",
    "12 MB of card numbers into a context": "await refused(programs.run({{'steps': [STEP]}}, {{'x': CARD * 700_000}}))",
    "2 MB of card numbers into a memory": "await refused(runtime.save_memory('k', CARD * 120_000))",
    "2 MB of card numbers into a call": "await refused(call_tool('floods', 'echo', x=CARD * 120_000))",
    "a name of 15 MB": "await refused(programs.run('x' * 15_000_000))",
    "15 MB of text into a call": "await refused(call_tool('floods', 'echo', x='x' * 15_000_000))",
    "490,000 numbers into a call": "await refused(call_tool('floods', 'echo', x=list(range(490_000))))",
    "245,000 fractions into a call": "await refused(call_tool('floods', 'echo', x=[n / 7 for n in range(245_000)]))",
    "120,000 objects into a call": "await refused(call_tool('floods', 'echo', x=[{{'ab': 'cd'}}] * 120_000))",
    "120,000 objects in a tree into a call": """
        await refused(call_tool('floods', 'echo', x=[[[{{'a': n}} for n in range(50)] for _ in range(50)]] * 48))
    """,
    "480,000 numbers in a program": """
        await refused(programs.run({{'steps': [STEP | {{'args': {{'x': '$x'}}}}]}}, {{'x': list(range(480_000))}}))
    """,
    "240,000 fractions in a program": """
        x = [n / 7 for n in range(240_000)]
        await refused(programs.run({{'steps': [STEP | {{'args': {{'x': '$x'}}}}]}}, {{'x': x}}))
    """,
    "40 programs left unfinished": """
        program = {{'steps': [{{'id': 'a', 'type': 'approval', 'message': 'may it?'}}]}}
        await asyncio.gather(*(refused(programs.run(program, {{'x': 'y' * 30_000}})) for _ in range(40)))
    """,
    "a program of 5 MB": """
        steps = [STEP | {{"id": f"s{{i}}", "args": {{"text": "x" * 1000}}}} for i in range(5000)]
        await refused(programs.validate({{"name": "p", "steps": steps}}))
    """,
    "a program of 20,000 faults": """
        await refused(programs.validate({{"steps": [{{"id": f"s{{i}}", "type": "none"}} for i in range(20_000)]}}))
    """,
    "8 MB printed": "print('x' * 8_000_000)",
    "30 MB of artifacts": """
        from pathlib import Path
        Path('/tmp/a').write_bytes(bytes(30_000_000))
        artifact('/tmp/a')
    """,
    "1000 calls at once": "await asyncio.gather(*(refused(call_tool('floods', 'echo')) for _ in range(1000)))",
    "near names": "await refused(call_tool('floods', 'x' * 900))",
    "a search of many words": "await refused(runtime.search('tool ' * 150))",
    "every schema": "await refused(runtime.describe('floods', detail='schema'))",
    "every signature": "import mcp.servers.floods",
}
"""What a script does, by what it is called in the table."""

SERVER = ("text", "cards", "blocks", "values", "progress", "logs", "changes", "errors")
"""Tools of `servers.floods`, each called once."""


async def loop(bench: Bench) -> list[Row]:
    """Each case in a bridge of its own state, on the loop that this runs on."""
    configured = settings.Settings(state_dir=bench.state_dir)
    governance = load_governance({}, None, Path.cwd(), bench.state_dir)
    floods = ServerSpec(
        name="floods",
        command=sys.executable,
        args=("-m", "benchmarks.servers.floods"),
        cwd=str(REPOSITORY),
    )
    quiet = logging.getLogger("mcp_bridge")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        async with open_bridge(configured, [floods], governance) as bridge:
            # Not counted: what is found out and imported once.
            await _held(bridge, "await call_tool('floods', 'echo')\n")
            nothing = statistics.median([await _held(bridge, "pass\n") for _ in range(bench.rounds(5))])
            cases = {what: code.format(programs=bench.count(300)) for what, code in GUEST.items()}
            cases |= {f"a server's {name}": f"await refused(call_tool('floods', {name!r}))" for name in SERVER}
            rows = []
            for what, code in list(cases.items())[: 3 if bench.smoke else None]:
                held = await _held(bridge, code)
                rows.append(Row(what, held, nothing, "ms", "a script that does nothing", "≤ 100 ms", held <= GOAL_MS))
            return rows
    finally:
        quiet.setLevel(level)


async def _held(bridge: Bridge, code: str) -> float:
    """Processor milliseconds of the longest turn of the loop while a script runs."""
    lines = code.strip("\n").splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    with watched(LoopStallMonitor(held_seconds=0.0005)) as watch:
        record = await bridge.run(HEAD + "\n".join(line[margin:] for line in lines) + "\n", timeout=120)
    if record.status not in {"success", "error"} or (record.error and record.error.get("type") == "NameError"):
        raise RuntimeError(f"{record.status}: {record.error} {record.stderr[-500:]!r}")
    if "-v" in sys.argv:
        longest = max(watch.latest, key=lambda hold: hold.busy_seconds)
        print(
            f"{watch.busiest * 1000:7.1f} ms {longest.cause} {record.error} {record.stdout[-200:]!r}", file=sys.stderr
        )
    return watch.busiest * 1000
