"""What to do about a module that a script has not found: who has it, and how it is asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import spelled_like
from mcp_bridge.sandbox.image.package_profiles import load_profile, profile_names
from mcp_bridge.sandbox.packages.import_names import NAMESPACES, missing_module, package_of
from mcp_bridge.sandbox.packages.requirements import parse_requirement

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.ledger.storage.execution_store import Starter
    from mcp_bridge.sandbox.packages.cache import WheelCache
    from mcp_bridge.sandbox.packages.installer import PackageRights

OF_MCP = frozenset({"mcp_runtime", "mcp_servers", "programs", "runtime", "servers"})
"""Modules that scripts look for outside `mcp`; the guest says where they are."""

MISSPELT = 0.85
"""How similar a name is to the one that was meant: `requets` and `requests`, not `geopandas` and `pandas`."""

NEARLY_PYTHONS = 0.9
"""The same for Python's own modules, beside which many packages are named: `httpx` and `ujson`."""


def advice(
    record: ExecutionRecord,
    rights: PackageRights,
    cache: WheelCache,
    profile: str,
    starter: Starter,
    servers: Collection[str],
) -> str | None:
    """A sentence for a script that has ended since a module isn't there; None for another failed import.

    Args:
        record: How it has ended: by an ImportError.
        rights: What its principal's scripts may ask for.
        cache: Knows what packages have.
        profile: The profile in force.
        starter: Who has started it: the operator by a command, an agent by a call.
        servers: What scripts call the servers that there are.
    """
    module = None if record.error is None else missing_module(record.error["message"])
    if module is None:
        return None
    name = package_of(module, cache)
    if rights.allows(name):
        cached = ", and the cache has it" if any(files.name == name for _, files in cache.modules()) else ""
        return f"the operator's list has {name}{cached}: {_way(name, starter)}"
    if module in OF_MCP or module in servers or module in sys.stdlib_module_names:
        # It was no package that was looked for: nobody should allow one that somebody has named like it.
        return None
    if module in NAMESPACES:
        return _of_namespace(module, rights, starter)
    if near := spelled_like(name, [parse_requirement(entry).name for entry in rights.shown], cutoff=MISSPELT):
        return f"the operator's list has {near[0]}, and not {name}: {_way(near[0], starter)}"
    if _is_misspelt(module, name, profile):
        # The guest says what was meant. A package that is named like another one may be somebody's trap.
        return None
    said = ""
    if (found := _profile_with(name)) is not None and found != profile:
        said = f'the operator\'s setting profile = "{found}" brings {name}; '
    try:
        rights.require([parse_requirement(name)])
    except BridgeError as exc:
        return f"{said}{name} isn't on the operator's list. {exc.hint}"
    return None


def _is_misspelt(module: str, name: str, profile: str) -> bool:
    """Whether a module's name is nearly that of one which is there, of Python or of the profile."""
    if spelled_like(module, sys.stdlib_module_names, cutoff=NEARLY_PYTHONS):
        return True
    try:
        pins = [pin.partition("==")[0] for pin in load_profile(profile).pins]
    except (BridgeError, OSError):
        return False
    return bool(spelled_like(name, pins, cutoff=MISSPELT))


def _way(name: str, starter: Starter) -> str:
    """How a package is asked for."""
    way = f"run it with --package {name}" if starter == "operator" else f"ask for it in the call, packages=[{name!r}]"
    return f"{way}, or, if it has no compiled modules, write await runtime.install({name!r})"


def _of_namespace(module: str, rights: PackageRights, starter: Starter) -> str:
    listed = {parse_requirement(entry).name for entry in rights.shown}
    names = sorted(name for name in listed if name.startswith(f"{module}-") or name in NAMESPACES[module])
    shared = f"several packages share the namespace {module}"
    if not names:
        return f"{shared}, and the operator's list has none that is named after it"
    way = _way(names[0] if len(names) == 1 else "PACKAGE", starter)
    return f"{shared}, and the operator's list has {', '.join(names)}: {way}"


def _profile_with(name: str) -> str | None:
    try:
        for profile in profile_names():
            if any(pin.partition("==")[0].lower().replace("_", "-") == name for pin in load_profile(profile).pins):
                return profile
    except (BridgeError, OSError):
        return None
    return None
