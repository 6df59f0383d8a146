"""Scripts made at random from a seed: calls one after the other and at once, in tasks, threads and programs.

Each does the same whenever it is run, and calls every tool's step once. The tools are those of `crash_points.py`.
"""

import hashlib
import json

HEAD = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from mcp import programs, runtime
from mcp.servers import local
from mcp.sync.servers import local as blocking
"""


def script(rng):
    """The code.

    Args:
        rng: A generator of its own.
    """
    return HEAD + "".join(Blocks(rng).blocks(rng.randint(3, 5))) + 'print(await local.once(step="last", x=0))\n'


def succeeds(step, x):
    """Whether a call gives a value, as the tools decide it."""
    text = json.dumps([step, [x, None, None, None]], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()[0] >= 25


class Blocks:
    """Makes pieces of a script."""

    def __init__(self, rng):
        self._rng = rng
        self._steps = 0

    def blocks(self, count):
        kinds = ("one", "branch", "gather", "nested", "completed", "pool", "threads", "program", "memory")
        return [getattr(self, f"_{kind}")() for kind in self._rng.sample(kinds, count)]

    def _arguments(self):
        self._steps += 1
        step = f"s{self._steps}"
        x = next(x for x in range(100) if succeeds(step, x))
        return f'step="{step}", x={x}'

    def _call(self, tool=None):
        return f"local.{tool or self._rng.choice(('once', 'once', 'again'))}({self._arguments()})"

    def _calls(self):
        return ", ".join(self._call() for _ in range(self._rng.randint(2, 4)))

    def _one(self):
        return f"print(await {self._call()})\n"

    def _branch(self):
        return f"print(await {self._call()} if await {self._call()} else await {self._call()})\n"

    def _gather(self):
        return f"print(await asyncio.gather({self._calls()}))\n"

    def _nested(self):
        name = f"nested{self._steps}"
        head = f"async def {name}(deep):\n    first = await (deep or {self._call()})\n"
        body = (
            f"    async with asyncio.TaskGroup() as group:\n        rest = [group.create_task({name}({self._call()}))"
        )
        return (
            f"{head}    if deep:\n        return first\n{body}, group.create_task({name}({self._call()}))]\n"
            f"    return first, *(one.result() for one in rest)\nprint(await {name}(None))\n"
        )

    def _completed(self):
        return f"print(sorted([repr(await one) for one in asyncio.as_completed([{self._calls()}])]))\n"

    def _pool(self):
        jobs = ", ".join(f"lambda: blocking.once({self._arguments()})" for _ in range(3))
        return f"with ThreadPoolExecutor(2) as pool:\n    print(list(pool.map(lambda job: job(), [{jobs}])))\n"

    def _threads(self):
        jobs = ", ".join(f"asyncio.to_thread(blocking.once, {self._arguments()})" for _ in range(2))
        return f"print(await asyncio.gather({jobs}, {self._call()}))\n"

    def _program(self):
        # Nobody settles what of a program is in doubt.
        steps = ", ".join(
            f'{{"id": "p{number}", "type": "tool", "tool": "again", "args": dict({self._arguments()})}}'
            for number in range(2)
        )
        return f'trace = await programs.run({{"steps": [{steps}]}})\nprint(trace.status, trace.output)\n'

    def _memory(self):
        load = 'count = await runtime.load_memory("n", 0)'
        return f'{load}\nawait runtime.save_memory("n", count + 1)\nprint(count, await runtime.load_memory("n"))\n'
