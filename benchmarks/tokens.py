"""Row 9: what the tool list and a discovery cost a model, in tokens of o200k."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.bridge import CACHE, COMMAND, Bench, client, run_python
from benchmarks.measure import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

TOOLS = 577
"""As many as 24 public servers have together."""

NOUNS = [
    "file",
    "directory",
    "git",
    "repository",
    "entity",
    "relation",
    "node",
    "branch",
    "commit",
    "message",
    "resource",
    "time",
    "timezone",
    "graph",
    "text",
]
"""What the real servers' tools are about; each copy of them is about something else."""

THINGS = [
    "invoice",
    "customer",
    "ticket",
    "calendar",
    "contact",
    "order",
    "shipment",
    "recipe",
    "playlist",
    "booking",
    "sensor",
    "patient",
    "lecture",
    "contract",
    "donation",
    "vehicle",
]

SEARCHES = (
    "read a text file",
    "git commit history",
    "invoice list",
    "create booking",
    "convert time between timezones",
    "search nodes customer",
    "delete relation",
    "ticket move",
)
"""A model finds a tool by one of these, looks at the first hit's signature, and would then call it."""


CALL = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
"""The arguments of the conversation's call."""


def count(text: str) -> int:
    """Tokens of a text."""
    import bpe_openai  # noqa: PLC0415 - what else is here also serves where it isn't installed

    return len(bpe_openai.get_encoding("o200k_base").encode(text))


def minified(tools: Sequence[Any]) -> str:
    """A tool list as it is on the wire."""
    plain = [
        tool if isinstance(tool, dict) else tool.model_dump(mode="json", by_alias=True, exclude_unset=True)
        for tool in tools
    ]
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


async def tokens(bench: Bench) -> list[Row]:
    """The tool list, and discoveries among 577 tools on running servers."""
    sources = await _real_tools(bench)
    catalogue = synthetic(sources)
    servers = {}
    for name, tools in catalogue.items():
        path = bench.work / f"catalogue-{name}.json"
        path.write_text(json.dumps(tools))
        servers[name] = [sys.executable, "-m", "benchmarks.servers.catalogue", str(path)]
    everything = count(minified([tool for tools in catalogue.values() for tool in tools]))
    async with client([COMMAND], bench.environment(servers), log=bench.work / "bridge.log") as bridge:
        listed = count(minified((await bridge.list_tools()).tools))
        # The listings are made once and kept; a first search waits for servers never seen before.
        ready = "from mcp import runtime\nprint(len(await runtime.search('', 1000)), len(runtime.discovered_servers()))"
        await run_python(bridge, ready)
        counted = []
        for query in SEARCHES[: 3 if bench.quick else None]:
            hits, found = await _turn(bridge, f"from mcp import runtime\nawait runtime.search({query!r})")
            first = re.search(r"[\w.]+(?=\()", found)
            if first is None:
                raise RuntimeError(f"no hit for {query!r}: {found}")
            shown, _ = await _turn(bridge, f"from mcp import runtime\nprint(await runtime.describe({first[0]!r}))")
            counted.append(hits + shown)
        turns = (
            "from mcp import runtime\nawait runtime.search('convert a time to another timezone')",
            "from mcp import runtime\nprint(await runtime.describe('time.convert_time'))",
            f"from mcp.servers import time\nprint(await time.convert_time(**{CALL}))",
        )
        spoken = [await _turn(bridge, code) for code in turns]
    conversation = listed + sum(tokens for tokens, _ in spoken)
    direct = everything + count(json.dumps(CALL)) + count(spoken[-1][1])
    worst = SEARCHES[counted.index(max(counted))]
    note = (
        f"{TOOLS} tools on {len(servers)} servers, made from {sum(map(len, sources.values()))} real ones. Code and "
        f"answer of both calls; median of {len(counted)} queries, the worst {max(counted)} ({worst!r})."
    )
    median = statistics.median(counted)
    return [
        Row("9 tools/list", listed, None, "tokens", "", "≤ 200", listed <= 200),
        Row(
            "9 discovery: search, describe",
            median,
            everything,
            "tokens",
            "577 tools in context",
            "≤ 300",
            median <= 300,
            note,
        ),
        Row(
            "9 conversation: tool list, search, describe, call",
            conversation,
            direct,
            "tokens",
            "577 tools in context, the call and its result",
        ),
    ]


async def _turn(bridge: Any, code: str) -> tuple[int, str]:
    text = await run_python(bridge, code)
    return count(json.dumps({"code": code}, ensure_ascii=False)) + count(text), text


async def _real_tools(bench: Bench) -> dict[str, list[dict[str, Any]]]:
    """The tool lists of the real servers that tests use, those that are installed."""
    root = CACHE / "servers"
    node = shutil.which("node") or "node"
    modules = root / "npm/node_modules/@modelcontextprotocol"
    commands = {
        "everything": [node, str(modules / "server-everything/dist/index.js"), "stdio"],
        "filesystem": [node, str(modules / "server-filesystem/dist/index.js"), str(bench.work)],
        "memory": [node, str(modules / "server-memory/dist/index.js")],
        "git": [str(root / "mcp-server-git/bin/mcp-server-git")],
        "time": [str(root / "mcp-server-time/bin/mcp-server-time")],
    }
    out = {}
    for name, command in commands.items():
        async with client(command, bench.environment(), log=bench.work / f"{name}.log") as connected:
            listed = (await connected.list_tools()).tools
        out[name] = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]
    return out


def synthetic(sources: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """577 tools by server: the real ones as they are, then copies of them about other things."""
    out: dict[str, list[dict[str, Any]]] = {name: list(tools) for name, tools in sources.items()}
    left = TOOLS - sum(map(len, out.values()))
    for copy, thing in enumerate(THINGS):
        tools: list[dict[str, Any]] = []
        for tool in (tool for tools in sources.values() for tool in tools):
            name = about_thing(tool["name"], thing, copy)
            if len(tools) < left and name not in {other["name"] for other in tools}:
                tools.append(json.loads(about_thing(json.dumps(tool), thing, copy)) | {"name": name})
        if tools:
            out[thing] = tools
        left -= len(tools)
    if left:
        raise RuntimeError(f"{left} tools are missing: too few real servers")
    return out


def about_thing(text: str, thing: str, copy: int) -> str:
    """A text about another thing: every second of our nouns, and others in each copy, gives way to it."""
    for number, noun in enumerate(NOUNS):
        if (number + copy) % 2 == 0:
            text = re.sub(rf"(?<![a-z$]){noun}(?=s?(?![a-z]))", thing, text)
            text = re.sub(rf"(?<![a-z$]){noun.title()}(?=s?(?![a-z]))", thing.title(), text)
    return text
