"""Advice on missing packages: what the image contains, which profile has the package, and alternatives."""

import difflib
import pkgutil
import re
import sys

from mcp_bridge.guest.advice.script_environment import ScriptEnvironment

DATA_PROFILE = frozenset(
    {"PIL", "joblib", "matplotlib", "numpy", "openpyxl", "pandas", "scipy", "sklearn", "tabulate", "tzdata", "yaml"}
)
"""Modules of the package profile `data`; a test compares them with the profile."""

NEED_NETWORK = frozenset(
    {"requests", "httpx", "aiohttp", "urllib3", "websockets", "websocket", "boto3", "botocore", "openai", "anthropic",
     "paramiko", "playwright", "selenium", "psycopg2", "psycopg", "asyncpg", "pymysql", "pymongo", "redis", "github",
     "slack_sdk", "googleapiclient", "yfinance", "feedparser"}
)  # fmt: skip
"""Packages that are useless without a network."""

SDK = frozenset({"fastmcp", "mcp_use", "mcp_client", "mcp_sdk", "mcpclient", "modelcontextprotocol"})

INSTEAD = {
    "pandas": "csv, sqlite3 and statistics",
    "numpy": "math, statistics and array",
    "scipy": "math and statistics",
    "sklearn": "statistics",
    "bs4": "html.parser",
    "lxml": "xml.etree.ElementTree",
    "yaml": "json",
    "pytz": "zoneinfo",
    "dateutil": "datetime",
    "toml": "tomllib",
    "tomli": "tomllib",
    "simplejson": "json",
    "ujson": "json",
    "orjson": "json",
    "regex": "re",
    "pydantic": "dataclasses",
    "aiofiles": "open(path), without await,",
    "anyio": "asyncio",
    "trio": "asyncio",
    "attr": "dataclasses",
    "loguru": "logging",
    "rich": "print",
    "termcolor": "print",
    "tabulate": "str.ljust",
    "tqdm": "progress(done, total)",
    "IPython": "display(x), which needs no import",
    "dotenv": "nothing: secrets stay outside, with the MCP servers",
    "six": "nothing",
    "typing_extensions": "typing",
}
"""Replacements in the standard library or the sandbox."""

OF_MCP = {
    "runtime": "from mcp import runtime",
    "programs": "from mcp import programs",
    "servers": "from mcp.servers import {0}",
    "mcp_servers": "from mcp.servers import {0}",
    "mcp_runtime": "from mcp import runtime",
}

MAX_SHOWN = 12

MISSPELT = 0.85
"""How similar a name is to the one that was meant: `numpyy` and `numpy`, not `geopandas` and `pandas`."""

_NOT_IN_MODULE = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")

_MOVED = {
    ("fractions", "gcd"): "Write `from math import gcd`.",
    ("time", "clock"): "Write `from time import perf_counter`.",
    ("inspect", "getargspec"): "Write `from inspect import getfullargspec`.",
}

_OPTIONAL = re.compile(r"`Import (\w+)` failed|Missing optional dependency '(\w+)'")
"""How pandas says that it needs a package for something."""


def not_in_module(exc: ImportError, environment: ScriptEnvironment) -> str | None:
    """Advice on a name that a module doesn't have, and on a library that needs a package which isn't there."""
    said = str(exc)
    if (found := _NOT_IN_MODULE.search(said)) is not None and not found[2].startswith("mcp"):
        if (now := moved(found[2], found[1])) is not None:
            return now
        module = sys.modules.get(found[2])
        if module is None or found[1] in dir(module):
            return None
        known = {*dir(module), *_submodules(found[2])}
        if sys.version_info >= (3, 12) and difflib.get_close_matches(found[1], dir(module)):
            # Python's own error names it.
            return None
        close = difflib.get_close_matches(found[1], [one for one in known if one[:1] != "_"], n=1, cutoff=0.7)
        return f"Did you mean: {close[0]!r}?" if close else None
    needed = _needed(exc, said)
    return None if needed is None else missing(needed, environment)


def moved(module: str, name: str) -> str | None:
    """Advice on a name that the standard library had elsewhere in earlier versions of Python."""
    if module == "collections" and name in sys.modules["collections.abc"].__all__:
        return f"Write `from collections.abc import {name}`."
    return _MOVED.get((module, name))


def _needed(exc: ImportError, said: str) -> str | None:
    """The module that a library misses, which tells how it would be installed elsewhere."""
    if isinstance(cause := exc.__cause__ or exc.__context__, ModuleNotFoundError) and cause.name:
        return cause.name
    found = _OPTIONAL.search(said)
    return None if found is None else found[1] or found[2]


def _submodules(package: str) -> set[str]:
    """The modules in a package that is loaded."""
    path = getattr(sys.modules[package], "__path__", ())
    loaded = {name.rpartition(".")[2] for name in list(sys.modules) if name.rpartition(".")[0] == package}
    return loaded | {found.name for found in pkgutil.iter_modules(path)}


def _no_submodule(package: str, name: str) -> str:
    if name in dir(sys.modules[package]):
        return f"`{name}` is no module: write `from {package} import {name}`."
    close = difflib.get_close_matches(name, _submodules(package), n=1, cutoff=0.7)
    return f"Did you mean: '{package}.{close[0]}'?" if close else f"`{package}` is there, and has no module `{name}`."


def missing(module: str, environment: ScriptEnvironment) -> str:
    """Advice on a module that can't be imported."""
    package, _, last = module.rpartition(".")
    if package in sys.modules:
        return _no_submodule(package, last)
    name = module.partition(".")[0]
    if name in environment.aliases:
        alias = environment.aliases[name]
        return f"`{name}` is an MCP server: write `from mcp.servers import {alias}`."
    if name in OF_MCP:
        return f"Write `{OF_MCP[name].format(environment.example)}`."
    if name in SDK:
        return sdk(environment)
    if name == "nest_asyncio":
        return "It isn't needed: top-level `await` works, also where a loop runs. Leave it out."
    if name in sys.stdlib_module_names:
        return f"The image leaves `{name}` out: here is no display, no installer and no network. Leave it out, too."
    if name in NEED_NETWORK:
        return (
            "There is no network here, so it would be of no use: call an MCP server's tool; "
            "`await runtime.search('fetch a web page')` finds one."
        )
    known = [one for one in {*sys.stdlib_module_names, *environment.installed()} if one[:1] != "_"]
    if name not in INSTEAD and (close := difflib.get_close_matches(name, known, n=1, cutoff=MISSPELT)):
        return f"Did you mean: {close[0]!r}?"
    said = f"The image has {_installed_packages(environment)}."
    if name in INSTEAD:
        said += f" Use {INSTEAD[name]} instead."
    if name in DATA_PROFILE:
        return f'{said} The operator\'s setting `profile = "data"` brings {name}.'
    return f"{said} More comes with the operator's setting `packages`."


def _installed_packages(environment: ScriptEnvironment) -> str:
    # Those that scripts ask for before what they bring along.
    there = sorted(environment.installed(), key=lambda name: name not in DATA_PROFILE)
    if not there:
        return "the standard library only"
    return f"the standard library, {', '.join(there[:MAX_SHOWN])}{', …' if len(there) > MAX_SHOWN else ''}"


def no_installing() -> str:
    """Explains why packages can't be installed, and who can install them."""
    return (
        "pip isn't here: there is no network. Use the standard library, or for what the operator allows "
        "`packages=['NAME']` of the call, or `await runtime.install('NAME')` where nothing is compiled; the operator's "
        'settings `profile = "data"` (numpy, pandas, matplotlib …) and `packages` bring more.'
    )


def sdk(environment: ScriptEnvironment) -> str:
    """Advice on taking the bridge's `mcp` package for the SDK."""
    return (
        f"`mcp` is the bridge here, not the SDK, and the servers are connected: write "
        f"`from mcp.servers import {environment.example}`, then `await {environment.example}.TOOL(...)`."
    )
