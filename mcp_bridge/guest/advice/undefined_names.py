"""Advice on names that aren't defined."""

import builtins
import sys
from typing import Any

from mcp_bridge.guest.advice import packages, trees
from mcp_bridge.guest.advice.script_environment import ScriptEnvironment
from mcp_bridge.guest.runtime import USAGE

JAVASCRIPT = {
    "console": "print(...)",
    "true": "True",
    "false": "False",
    "null": "None",
    "undefined": "None",
    "JSON": "import json; json.loads(text), json.dumps(value)",
    "Promise": "import asyncio; await asyncio.gather(*calls)",
    "Math": "import math; or max, min, round, abs",
    "Object": "value.keys(), value.values(), value.items()",
    "Array": "list(x), isinstance(x, list)",
    "Date": "import datetime; datetime.datetime.now()",
    "parseInt": "int(text)",
    "parseFloat": "float(text)",
    "String": "str(x)",
    "Number": "float(x)",
    "setTimeout": "import asyncio; await asyncio.sleep(seconds)",
    "require": "import module",
    "process": "import sys, os",
    "module": "nothing: a script exports nothing",
    "NaN": "float('nan')",
}

SHELL = {"ls": "import os; os.listdir('.')", "pwd": "import os; os.getcwd()"}

IMPORTS = {
    "Path": "pathlib", "defaultdict": "collections", "Counter": "collections", "deque": "collections",
    "namedtuple": "collections", "OrderedDict": "collections", "dataclass": "dataclasses", "timedelta": "datetime",
    "timezone": "datetime", "partial": "functools", "reduce": "functools", "lru_cache": "functools",
    "chain": "itertools", "pprint": "pprint", "StringIO": "io", "BytesIO": "io", "sqrt": "math", "deepcopy": "copy",
    "gather": "asyncio", "ThreadPoolExecutor": "concurrent.futures", "ZoneInfo": "zoneinfo", "Any": "typing",
    "Optional": "typing", "List": "typing", "Dict": "typing", "Union": "typing",
}  # fmt: skip

SHORT = {"pd": "pandas", "np": "numpy", "plt": "matplotlib.pyplot"}

OF_MCP = frozenset({
    "ToolError", "MCPError", "McpError", "programs", "traces", "runtime", "display", "artifact", "progress",
})  # fmt: skip
OF_SDK = frozenset({"ClientSession", "StdioServerParameters", "stdio_client", "FastMCP", "Client", "session"})
OF_NOTEBOOKS = frozenset({"get_ipython", "In", "Out"})


def unknown(name: Any, environment: ScriptEnvironment) -> str | None:
    """Advice for a `NameError`."""
    if not isinstance(name, str):
        return None
    tree = trees.parse(environment.code)
    bound = _bound(tree)
    if (said := _elsewhere(name, environment)) is not None:
        return said
    if name in bound:
        # It is a name of the script that is not yet or no longer bound.
        return None
    if _is_unquoted_key(name, tree):
        return f"A dict's keys are quoted: write `{{{name!r}: …}}`, or a tool's arguments as `{name}=…`."
    if name in JAVASCRIPT:
        return f"That is JavaScript; in Python: `{JAVASCRIPT[name]}`."
    if name in SHELL:
        return f"There is no shell here; in Python: `{SHELL[name]}`."
    if (said := _importable(name, environment)) is not None:
        return said
    for server, tools in environment.tools().items():
        if name in tools:
            return f"`{name}` is a tool: write `from mcp.servers import {server}`, then `await {server}.{name}(...)`."
    close = trees.did_you_mean(name, [*bound, *(environment.kept or ()), *dir(builtins)])
    if close is None and environment.kept is not None:
        return f"No cell of this session has left it: define `{name}` first."
    return close or f"Nothing is kept from an earlier call: define `{name}` in this script."


def _elsewhere(name: str, environment: ScriptEnvironment) -> str | None:
    """Advice on a name of the bridge's API."""
    aliases = environment.aliases
    if name in aliases:
        return f"`{name}` is an MCP server: write `from mcp.servers import {aliases[name]}`."
    begins = [alias for full, alias in aliases.items() if full.startswith(f"{name}-")]
    if len(set(begins)) == 1 and f"{name}-" in environment.code:
        return f"A name has no hyphen: write `from mcp.servers import {begins[0]}`, then `{begins[0]}.TOOL`."
    if name in USAGE:
        return f"Write `from mcp import runtime`, then `{USAGE[name].format(environment.example)}`."
    if name in OF_MCP:
        return f"Write `from mcp import {name}`."
    if name in OF_SDK:
        return packages.sdk(environment)
    return None


def _importable(name: str, environment: ScriptEnvironment) -> str | None:
    if name == "__file__":
        return "A script has no file: write `/workspace`, its folder."
    if name == "_":
        return "The value of a last expression is shown, and not kept: give it a name, `x = ...`."
    if name in OF_NOTEBOOKS:
        return "This is no notebook: a script is Python alone, and `display(x)` shows what a cell would."
    if name in IMPORTS:
        return f"Write `from {IMPORTS[name]} import {name}`."
    if name in sys.stdlib_module_names and not name.startswith("_"):
        # In the words of later Python versions.
        return None if sys.version_info >= (3, 12) else f"Did you forget to import {name!r}?"
    if name in SHORT:
        package = SHORT[name].partition(".")[0]
        if package in environment.installed():
            return f"Write `import {SHORT[name]} as {name}`."
        return packages.missing(package, environment)
    return None


def _bound(tree: Any) -> set[str]:
    """The names that a script binds anywhere."""
    found: set[str] = set()
    for node in trees.walk(tree) if tree is not None else ():
        match trees.kind(node):
            case "Name" if trees.kind(node.ctx) == "Store":
                found.add(node.id)
            case "FunctionDef" | "AsyncFunctionDef" | "ClassDef":
                found.add(node.name)
            case "arg":
                found.add(node.arg)
            case "alias":
                found.add(node.asname or node.name.partition(".")[0])
            case "ExceptHandler" | "MatchAs" | "MatchStar" if node.name:
                found.add(node.name)
    return found


def _is_unquoted_key(name: str, tree: Any) -> bool:
    return tree is not None and any(
        trees.kind(node) == "Dict" and any(trees.kind(key) == "Name" and key.id == name for key in node.keys)
        for node in trees.walk(tree)
    )
