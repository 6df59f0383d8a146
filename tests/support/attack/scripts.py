"""The scripts by which attacks come to their calls in a real sandbox: what `harness` does without one, as an agent would."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .arguments import Erased, Hidden, clear, joined, mapped, parts
from .generator import SERVERS
from .programs import program_of
from .reference import aliases

if TYPE_CHECKING:
    from .generator import Attack

HEAD = """
import json
from mcp import programs, runtime
CASE = json.loads({case!r})
known = {{}}
for mark, value in CASE["hidden"].items():
    try:
        known[mark] = await runtime.call_tool("src", "give", {{"value": value}})
    except Exception:
        known[mark] = value

def filled(tree):
    if isinstance(tree, dict):
        return {{filled(name): filled(value) for name, value in tree.items()}}
    if isinstance(tree, list):
        return [filled(value) for value in tree]
    if isinstance(tree, str):
        for mark, value in known.items():
            tree = tree.replace(mark, str(value))
    return tree

args, traces, error = filled(CASE["arguments"]), [], None
try:
    {way}
except Exception as exc:
    error = getattr(exc, "code", type(exc).__name__)
print(json.dumps({{"error": error, "traces": traces}}))
"""

WAYS = {
    "call": "await runtime.call_tool({server!r}, {tool!r}, args)",
    "raw": "from mcp.servers import {alias}; await {alias}[{tool!r}].raw(**args)",
    "echoed": "from mcp.sync.servers import {alias}; {alias}[{tool!r}](**args)",
    "together": "import asyncio; await asyncio.gather(*(runtime.call_tool({server!r}, {tool!r}, args) for _ in '12'))",
    "left": "traces.append((await programs.run(CASE['program'], CASE['context'])).trace_id)",
    "session": "traces.append((await programs.run(CASE['program'], CASE['context'])).trace_id)",
}
"""By the paths of `generator.SCRIPT_PATHS`."""


def code_of(attack: Attack) -> str:
    """A script that makes an attack's call by its path, with what a tool has echoed in the place of sensitive values."""
    hidden: dict[Any, str] = {}
    for part in [part for kind in (Hidden, Erased) for part in parts(attack.arguments, kind)]:
        hidden.setdefault(part, f"@@{len(hidden)}@@")
    arguments = mapped(attack.arguments, lambda text: joined([hidden.get(part) or clear(part) for part in text.parts]))
    program, context = program_of(attack)
    case = {
        "arguments": arguments,
        "hidden": {mark: part.value for part, mark in hidden.items()},
        "program": program,
        "context": context,
    }
    # Under a name that the bridge doesn't know the script goes by another's module, and fails.
    alias = aliases([*SERVERS, "local"], lower=True).get(attack.server, attack.server.lower())
    way = WAYS[attack.path].format(server=attack.server, tool=attack.tool, alias=alias)
    return HEAD.format(case=json.dumps(case), way=way)
