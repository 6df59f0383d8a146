"""A script in Node beside the same in Python: its start, a container ready and not, and the memory it takes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.bridge import COMMAND, Bench, client, without_pool
from benchmarks.measure import Row, interleaved, timed

if TYPE_CHECKING:
    from mcp import Client

LANGUAGES = 'languages = ["python", "javascript"]'

NOTHING = {"run_python": "pass", "run_javascript": ";"}

MEMORY = {
    "run_python": """
import re
print(re.search(r"^Pss:\\s+(\\d+)", open("/proc/self/smaps_rollup").read(), re.M)[1])
""",
    # The guest that stands between Node and the host counts, too.
    "run_javascript": """
import fs from "node:fs";
const pss = (pid) => Number(/^Pss:\\s+(\\d+)/m.exec(fs.readFileSync(`/proc/${pid}/smaps_rollup`, "utf8"))[1]);
console.log(pss("self") + pss(process.ppid));
""",
}
"""Scripts that print the memory of their own processes in KiB."""


async def javascript(bench: Bench) -> list[Row]:
    """A script that does nothing, from the client's request to its answer; memory of one that has just begun."""
    p50: dict[str, float] = {}
    memory: dict[str, float] = {}
    for name, ready in (("ready", None), ("cold", 0)):
        tables = "\n".join([LANGUAGES, without_pool() if ready == 0 else ""])
        async with client([COMMAND], bench.environment(tables=tables), log=bench.work / f"{name}.log") as bridge:

            async def once(tool: str, bridge: Client = bridge, ready: int | None = ready) -> float:
                await bench.settled(ready)
                return await timed(lambda: _run(bridge, tool, NOTHING[tool]))

            measured = {f"{name} {tool}": functools.partial(once, tool) for tool in NOTHING}
            p50 |= await interleaved(bench.rounds(15), measured)
            memory = {tool: int(await _run(bridge, tool, code)) / 1024 for tool, code in MEMORY.items()}
    python = "the same in Python"
    return [
        Row("run_javascript, a container ready", p50["ready run_javascript"], p50["ready run_python"], "ms", python),
        Row("… cold", p50["cold run_javascript"], p50["cold run_python"], "ms", python),
        Row("… PSS of a script that has begun", memory["run_javascript"], memory["run_python"], "MiB", python),
    ]


async def _run(bridge: Client, tool: str, code: str) -> str:
    result = await bridge.call_tool(tool, {"code": code})
    text = "\n".join(getattr(block, "text", "") for block in result.content)
    if result.is_error:
        raise RuntimeError(text)
    return text
