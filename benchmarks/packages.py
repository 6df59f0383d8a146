"""Packages that a call asks for: the first run with a set, and later ones."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import anyio.to_thread

from benchmarks.bridge import COMMAND, Bench, client, run_python, without_pool
from benchmarks.measure import Row, interleaved, timed

if TYPE_CHECKING:
    from pathlib import Path

WANTED = ("requests", "rich")
"""Nine packages, most of them small."""

CODE = "import requests, rich"


async def packages(bench: Bench) -> list[Row]:
    """The first run with a package set, with nothing cached, and the runs after it."""
    firsts, installs = [], []
    for _ in range(bench.rounds(3)):
        firsts.append(await _first(bench))
        installs.append(await timed(lambda: anyio.to_thread.run_sync(_install, bench.work)))
    tables = f"{without_pool()}\n[install]\nallow = {list(WANTED)}"
    async with client([COMMAND], bench.environment(tables=tables), log=bench.work / "bridge.log") as bridge:
        await run_python(bridge, CODE, packages=list(WANTED))
        p50 = await interleaved(
            bench.rounds(15),
            {
                "with": lambda: timed(lambda: run_python(bridge, "pass", packages=list(WANTED))),
                "without": lambda: timed(lambda: run_python(bridge, "pass")),
            },
        )
    return [
        Row(
            "the first run with a package set, nothing cached: found, fetched, its image made",
            statistics.median(firsts),
            statistics.median(installs),
            "ms",
            "uv pip install of the same, without a cache",
        ),
        Row(
            "a later run with it", p50["with"], p50["without"], "ms", "a run without packages, its container not ready"
        ),
    ]


async def _first(bench: Bench) -> float:
    """Milliseconds of the first run of a bridge whose cache of packages is empty; its base image is there."""
    tables = f"{without_pool()}\n[install]\nallow = {list(WANTED)}"
    shutil.rmtree(bench.state_dir / "packages", ignore_errors=True)
    subprocess.run(  # noqa: ASYNC221
        [COMMAND, "image", "prune"],
        env=bench.environment(tables=tables),
        capture_output=True,
        check=True,
    )
    async with client([COMMAND], bench.environment(tables=tables), log=bench.work / "bridge.log") as bridge:
        await run_python(bridge, "pass")
        return await timed(lambda: run_python(bridge, CODE, packages=list(WANTED)))


def _install(work: Path) -> None:
    target = work / f"target-{uuid.uuid4().hex}"
    try:
        subprocess.run(
            ["uv", "pip", "install", "--quiet", "--no-cache", "--python", sys.executable, "--target", target, *WANTED],
            cwd=work,
            check=True,
        )
    finally:
        shutil.rmtree(target, ignore_errors=True)
