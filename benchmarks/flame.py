"""What the host computes, as a flame graph and as a list: `python -m benchmarks.flame [WORK] [--into FILE]`.

py-spy samples the bridge's process from outside. What is drawn is the thread that holds the interpreter lock: what is
computed in Python, and not what waits for a disk, a lock or a server. A stack is as wide as its share of the samples,
its callees above it. SVG without scripts; a frame's title has its name and share. The list has the same samples by the
package whose function was at work.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from benchmarks.bridge import CACHE, COMMAND, REPOSITORY, Bench, client, ours, over_http, run_python
from benchmarks.governed import TABLES
from benchmarks.processes import bridge_among, descendants
from benchmarks.runtime import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mcp import Client

INTO = REPOSITORY / "docs/benchmarks/host.svg"

SECONDS = 10.0

RATE = 200
"""Samples a second."""

CALLS = """
import asyncio, time
from mcp import programs
from mcp.servers import {server}
step = {{"type": "tool", "tool": "audit", "args": {{"step": "s1"}}}}
program = {{"name": "long", "steps": [step | {{"id": f"s{{number}}"}} for number in range(50)]}}
end = time.monotonic() + {seconds}
async def again():
    while time.monotonic() < end:
        await {call}
await asyncio.gather(*(again() for _ in range({width})))
"""


class Work(NamedTuple):
    """Something that a bridge does over and over.

    Attributes:
        title: What it is, in words.
        server: The name of the server that a script calls.
        call: What the script calls; empty where a client runs `pass` again and again.
        session: The session in which it does.
    """

    title: str
    server: str = ""
    call: str = ""
    session: str | None = None


WORKS = {
    "calls": Work("a script calls a no-op server's tool", "target", "target.noop()"),
    "http": Work("a script calls a no-op server's tool over HTTP", "target", "target.noop()"),
    "registered": Work("a script calls a registered tool", "local", "local.audit(step='s1')"),
    "steps": Work("a script runs a program of registered tools", "local", "programs.run(program)"),
    "runs": Work("a client runs a script that does nothing"),
    "turns": Work("a client runs a session's cell that does nothing", session="s"),
}

WIDTH, ROW, LEFT, TOP = 1200, 16, 10, 44

LEAST_SHARE = 0.002
"""Of all samples: narrower frames can't be seen."""

CHAR_WIDTH = 6.2
"""Of the font, in the drawing's units."""

OWN, OTHER = ("#e8743b", "#e98b4f", "#ee9f68"), ("#8fa8c0", "#9db4c9", "#aabfd2")
"""Colours of the project's frames, and of all others'."""


@dataclass
class Frame:
    """A function, called by those below it.

    Attributes:
        name: Function and module.
        count: Samples in it or in what it calls.
        callees: By their names.
    """

    name: str
    count: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)

    def add(self, stack: Iterable[str], count: int) -> None:
        """Count a stack, the outermost frame first."""
        self.count += count
        frame = self
        for name in stack:
            frame = frame.callees.setdefault(name, Frame(name))
            frame.count += count

    def depth(self, least: int) -> int:
        """Rows of those that have at least so many samples."""
        return 1 + max((callee.depth(least) for callee in self.callees.values() if callee.count >= least), default=0)


def frames(collapsed: str) -> Frame:
    """The tree of stacks as py-spy writes them: `outer (file:1);inner (file:2) 17`, one a line."""
    root = Frame("all")
    for line in collapsed.splitlines():
        stack, _, count = line.rpartition(" ")
        if stack and count.isdigit():
            root.add((_shortened(frame) for frame in stack.split(";")), int(count))
    return root


def _shortened(frame: str) -> str:
    """A frame's function and module, without a path of this machine; a thread without its number."""
    if frame.startswith("thread "):
        return re.sub(r"^thread \(?\w+\)?:? ?", "thread ", frame).strip()
    found = re.fullmatch(r"(.*) \((.*?)(?::\d+)?\)", frame)
    if found is None:
        return frame
    path = found[2].rpartition("site-packages/")[2]
    path = re.sub(r"^/.*/(?=mcp_bridge/|python3\.\d+/)", "", path)
    path = path.rpartition("/")[2] if path.startswith("/") else path
    return f"{found[1]} ({path})"


def svg(root: Frame, title: str) -> str:
    """The drawing.

    Raises:
        ValueError: There is no sample.
    """
    if not root.count:
        raise ValueError("there is no sample")
    least = max(1, round(root.count * LEAST_SHARE))
    height = TOP + root.depth(least) * ROW + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="monospace" font-size="10" role="img" aria-label="{escape(title)}">'
    )
    parts = [head, f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>']
    parts.append(f'<text x="{LEFT}" y="20" font-family="sans-serif" font-size="13">{escape(title)}</text>')
    scale = (WIDTH - 2 * LEFT) / root.count
    parts += _drawn(root, root.count, LEFT, height - 10 - ROW, scale, least)
    return "\n".join([*parts, "</svg>\n"])


def _drawn(frame: Frame, total: int, x: float, y: float, scale: float, least: int) -> Iterator[str]:
    width = frame.count * scale
    colours = OWN if "(mcp_bridge/" in frame.name else OTHER
    colour = colours[sha256(frame.name.encode()).digest()[0] % len(colours)]
    name = escape(frame.name)
    room = int((width - 4) / CHAR_WIDTH)
    label = escape(frame.name if len(frame.name) <= room else frame.name[: room - 1] + "…") if room > 2 else ""
    drawn = max(width - 0.5, 0.5)
    yield (
        f"<g><title>{name} {frame.count / total:.1%}</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{drawn:.1f}" height="{ROW - 1}" fill="{colour}"/>'
        + (f'<text x="{x + 2:.1f}" y="{y + ROW - 5}">{label}</text>' if label else "")
        + "</g>"
    )
    for callee in sorted(frame.callees.values(), key=lambda each: each.name):
        if callee.count >= least:
            yield from _drawn(callee, total, x, y - ROW, scale, least)
        x += callee.count * scale


def shares(root: Frame) -> list[tuple[str, float]]:
    """The part of all samples in which a package's own function was at work, the largest first.

    The project's functions are told apart by their packages.
    """
    own: Counter[str] = Counter()

    def add(frame: Frame) -> None:
        own[_package(frame.name)] += frame.count - sum(callee.count for callee in frame.callees.values())
        for callee in frame.callees.values():
            add(callee)

    add(root)
    return [(name, count / root.count) for name, count in own.most_common() if count]


def _package(frame: str) -> str:
    """The package of a shortened frame's function."""
    path = frame.rpartition(" (")[2].removesuffix(")")
    parts = path.removesuffix(".py").split("/")
    if parts[0].startswith("python3."):
        # `python3.11/asyncio/events.py`, `python3.11/json/encoder.py`, `python3.11/threading.py`
        return parts[1]
    return "/".join(parts[: 2 if parts[0] == "mcp_bridge" else 1])


async def sampled(bench: Bench, work: Work, address: str | None, seconds: float, width: int) -> str:
    """Stacks of a bridge's process during so many seconds of work, as py-spy writes them.

    Args:
        bench: The benchmark's folders.
        work: What the bridge does.
        address: Where the no-op server listens; None has the bridge start one.
        seconds: How long.
        width: How much of it at a time.

    Raises:
        UnavailableError: py-spy isn't installed.
        RuntimeError: py-spy has failed.
    """
    profiler = CACHE / "bench/py-spy/bin/py-spy"
    if not profiler.exists():
        raise UnavailableError(f"there is no {profiler}: make setup-bench makes it")
    before = set(descendants(os.getpid()))
    into = bench.work / "stacks.txt"
    environment = bench.environment({"target": address or ours("noop")}, tables=f"max_calls = 10000000\n{TABLES}")

    async def done_for(bridge: Client, seconds: float, width: int) -> None:
        if work.call:
            await run_python(bridge, CALLS.format(**work._asdict(), seconds=seconds, width=width))
            return
        arguments = {} if work.session is None else {"session": work.session}
        end = anyio.current_time() + seconds
        while anyio.current_time() < end:
            await run_python(bridge, "pass", **arguments)

    async with client([COMMAND], environment, log=bench.work / "bridge.log", read_timeout=seconds + 60) as bridge:
        await done_for(bridge, 0.1, 1)
        pid = bridge_among(set(descendants(os.getpid())) - before)
        argv = [str(profiler), "record", "--pid", str(pid), "--format", "raw", "--output", str(into)]
        argv += [
            "--duration",
            str(max(1, round(seconds))),
            "--rate",
            str(RATE),
            "--full-filenames",
            "--threads",
            "--gil",
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(done_for, bridge, seconds + 2, width)
            await anyio.sleep(1)
            done = await anyio.run_process(argv, check=False, stdout=subprocess.DEVNULL)
    if done.returncode or not into.exists():
        raise RuntimeError(f"py-spy failed: {done.stderr.decode(errors='replace')[-500:]}")
    return into.read_text("utf-8")


async def _stacks(name: str, bench: Bench, seconds: float, width: int) -> str:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(over_http("noop")) if name == "http" else None
        return await sampled(bench, WORKS[name], address, seconds, width)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flame", description=__doc__)
    parser.add_argument("work", nargs="?", default="calls", choices=WORKS, help="what the bridge does (default calls)")
    parser.add_argument("--into", type=Path, help="a file for the drawing (default: docs/benchmarks/host.svg of calls)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of work (default {SECONDS:g})")
    parser.add_argument("--width", type=int, default=1, help="a script's calls at a time (default 1)")
    arguments = parser.parse_args()
    into = arguments.into or (INTO if arguments.work == "calls" else None)
    with tempfile.TemporaryDirectory(prefix="mcp-bridge-bench-") as work:
        known = os.environ.get("MCP_BRIDGE_STATE_DIR")
        bench = Bench(state_dir=Path(known) if known else Path(work) / "state", work=Path(work), quick=False)
        try:
            stacks = anyio.run(_stacks, arguments.work, bench, arguments.seconds, arguments.width)
        except (UnavailableError, RuntimeError) as exc:
            sys.exit(f"{exc}")
    what = "one by one" if arguments.width == 1 else f"{arguments.width} in flight"
    root = frames(stacks)
    title = f"The host while {WORKS[arguments.work].title}, {what}: {root.count:,} samples of Python code"
    print(title)
    for name, share in shares(root):
        if share >= LEAST_SHARE:
            print(f"{share:6.1%}  {name}")
    if into is not None:
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_text(svg(root, title), "utf-8")
        print(into)


if __name__ == "__main__":
    main()
