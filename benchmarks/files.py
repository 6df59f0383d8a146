"""Files: one of 100 MB handed into a script, and one kept of it, against the same bytes through a pipe."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from typing import TYPE_CHECKING

from benchmarks.bridge import COMMAND, Bench, client, run_python, without_pool
from benchmarks.measure import Row

if TYPE_CHECKING:
    from pathlib import Path

MEGABYTE = 1_000_000
MEGABYTES = 100

STREAM = """
import time
began = time.perf_counter()
count = 0
with runtime.open_input("data") as file:
    while part := file.read(1 << 20):
        count += len(part)
assert count == {size}
print(time.perf_counter() - began)
"""

COPY = """
import time
began = time.perf_counter()
runtime.input("data")
print(time.perf_counter() - began)
"""

KEEP = """
import time
with open("/workspace/data", "wb") as file:
    file.write(b"x" * {size})
began = time.perf_counter()
artifact("/workspace/data")
print(time.perf_counter() - began)
"""

LIMITS = 'memory = "1g"\nworkspace_size = "512m"\nmax_artifact_size = "1g"\nmax_call_size = "1g"\n'


async def files(bench: Bench) -> list[Row]:
    """A file in, as a stream and as a copy, and a file out."""
    size = bench.count(MEGABYTES) * MEGABYTE
    data = bench.work / "data"
    data.write_bytes(os.urandom(MEGABYTE) * (size // MEGABYTE))
    tables = f'{LIMITS}{without_pool()}\n[files]\ndata = "{data}"\n'
    rounds = bench.rounds(5)
    async with client([COMMAND], bench.environment(tables=tables), log=bench.work / "bridge.log") as bridge:
        took: dict[str, list[float]] = {}
        for _ in range(rounds):
            for what, code in (("stream", STREAM), ("copy", COPY), ("keep", KEEP)):
                told = await run_python(bridge, code.format(size=size))
                took.setdefault(what, []).append(float(told.split()[0]) * 1000)
            took.setdefault("pipe", []).append(_through_a_pipe(data) * 1000)
    pipe = statistics.median(took["pipe"])
    megabytes = size // MEGABYTE
    return [
        Row(f"{megabytes} MB {what}", statistics.median(took[name]), pipe, "ms", "cat through a pipe")
        for name, what in (
            ("stream", "read by a script as a stream"),
            ("copy", "copied into /workspace/in"),
            ("keep", "kept as an artifact"),
        )
    ]


def _through_a_pipe(data: Path) -> float:
    """Seconds for the file's bytes through `cat` and a pipe, hashed by nobody."""
    began = time.perf_counter()
    with subprocess.Popen(["cat", str(data)], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        while cat.stdout.read(1 << 20):
            pass
    return time.perf_counter() - began
