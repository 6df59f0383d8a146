"""Servers that a user has configured for every folder, kept from running a folder's own code in their place.

Such a server is started where the bridge is, which may be anybody's folder, and some runners look there first: `npx`
takes a program from its `node_modules` and a registry from its `.npmrc`, `python -m` a module that lies in it. The
server itself still works in that folder, as its clients have it.
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
"""Python 3.11 and later leave the working directory out of the modules' path with it."""


def sheltered(spec: ServerSpec, directory: Path) -> ServerSpec:
    """The server with what keeps its runner from the folder that it is started in.

    Args:
        spec: A server that is configured for every folder.
        directory: The user's own, which is there: what `npx` may look at in place of the folder.
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
    """Whether an interpreter is given `-m` or `-c`, and no script: its path would begin where it is started."""
    options = iter(args)
    for option in options:
        if not option.startswith("-") or option == "-":
            return False
        if option.startswith("--"):
            continue
        # Flags may be written together: -um.
        letters = re.match(r"-[A-Za-z]*?([mcWX])", option)
        if letters and letters[1] in "mc":
            return True
        if option in {"-W", "-X"}:
            next(options, None)
    return False
