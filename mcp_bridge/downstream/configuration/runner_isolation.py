"""Keeps servers that a user has configured for every folder from running a folder's own code instead.

Such a server is started in the bridge's working directory, which may be untrusted, and some runners look there first:
`npx` takes a program from the folder's `node_modules` and a registry from its `.npmrc`, and `python -m` a module that
lies in it. The server itself still works in that folder, as clients expect.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.downstream.configuration.spec import ServerSpec

_PYTHON = re.compile(r"python[0-9.]*|pypy[0-9.]*")

_SAFE_PATH = "PYTHONSAFEPATH"
"""Tells Python 3.11 and later to leave the working directory out of `sys.path`."""


def isolate_runner(spec: ServerSpec, directory: Path) -> ServerSpec:
    """The server's configuration with options that keep its runner from using the folder in which it is started.

    Args:
        spec: A server that is configured for every folder.
        directory: An existing directory of the user's, in which `npx` looks instead of the folder.
    """
    if spec.type != "stdio" or spec.cwd is not None:
        return spec
    base = PurePath(spec.command).name
    if base == "npx" and "--prefix" not in spec.args and not any(arg.startswith("--prefix=") for arg in spec.args):
        return replace(spec, args=("--prefix", str(directory), *spec.args))
    if _PYTHON.fullmatch(base) and _imports_by_name(spec.args) and _SAFE_PATH not in spec.env:
        return replace(spec, env={**spec.env, _SAFE_PATH: "1"})
    return spec


def _imports_by_name(args: tuple[str, ...]) -> bool:
    """Whether an interpreter runs `-m` or `-c`, not a script: `sys.path` would begin with the working directory."""
    options = iter(args)
    for option in options:
        if not option.startswith("-") or option == "-":
            return False
        if option.startswith("--"):
            continue
        # Flags may be combined: -um.
        letters = re.match(r"-[A-Za-z]*?([mcWX])", option)
        if letters and letters[1] in "mc":
            return True
        if option in {"-W", "-X"}:
            next(options, None)
    return False
