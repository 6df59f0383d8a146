"""Loads the registry from the configuration: folders, modules, entry points.

A tool belongs to the module that declares it, or in which its function is defined. A package also has the tools of its
submodules that it imports. A tool that a module merely imports from elsewhere isn't loaded with it.

Anything that can't be loaded is an error: otherwise a program would notice a missing tool in the middle of its work.
Output of modules during their import goes to standard error.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import nearest
from mcp_bridge.registered import printing
from mcp_bridge.registered.declaring import DECLARATIONS_NAME, Declaration, SourceLocation, bad_tool
from mcp_bridge.registered.folders import Folders

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from types import ModuleType

    from mcp_bridge.registered.config import ToolsConfig
    from mcp_bridge.workspace.folder_content import Content

ENTRY_POINTS = "mcp_bridge.tools"
"""The group of entry points, each of which names a module that declares tools."""

_NOT_THEIRS = ("<frozen importlib", str(importlib.__file__), str(Path(__file__).parent))


def load_declarations(config: ToolsConfig, base: Path, trusted: Content | None = None) -> list[Declaration]:
    """Import the operator's modules and return their tools.

    Args:
        config: The table `[tools]`.
        base: The folder of the configuration file, for relative paths.
        trusted: The only content that may be imported from its folders; None for everything.

    Raises:
        BridgeError: `folder_changed`; `bad_tools`: a folder or module that doesn't exist or can't be imported, one
            without tools that `modules` or an entry point names, a module that is shadowed by another.
    """
    folders = Folders(config.path, base, trusted)
    declarations: list[Declaration] = []
    # Declarations are stored in the modules, so loading a module twice returns the same ones.
    for name in config.modules:
        module = _from_config(name, folders)
        declared = _declared_in(module)
        if not declared:
            raise _without_tools(f"module {name!r}, which tools.modules names,", module)
        declarations += declared
    if not config.modules:
        for name in folders.names():
            declarations += _declared_in(_from_config(name, folders))
    if config.entry_points:
        for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
            declarations += _from_entry_point(entry)
    folders.warn_of_shadowed()
    return declarations


def _from_config(name: str, folders: Folders) -> ModuleType:
    known = folders.spec(name.partition(".")[0])
    try:
        return _import(name)
    except ModuleNotFoundError:
        looked = ", ".join(map(str, folders.folders)) or "no folder, since tools.path is empty,"
        close = nearest(name, folders.names()) if known is None else []
        raise bad_tool(
            None,
            f"there is no module {name!r}, which tools.modules names",
            f"Did you mean {', '.join(close)}?" if close else f"It was looked for in {looked} and among the installed.",
            module=name,
        ) from None


def _from_entry_point(entry: EntryPoint) -> list[Declaration]:
    dist = entry.dist.name if entry.dist else "an installed package"
    what = f"entry point {entry.name!r} of {dist} ({entry.value})"
    if entry.attr:
        raise bad_tool(None, f"{what} must name a module, without anything after a colon", None, entry_point=entry.name)
    try:
        module = _import(entry.module)
    except ModuleNotFoundError:
        hint = f"Mend or remove {dist}, or set entry_points = false in [tools]."
        raise bad_tool(None, f"{what} names a module that isn't there", hint, entry_point=entry.name) from None
    declared = _declared_in(module)
    if not declared:
        raise _without_tools(what, module)
    return declared


def _import(name: str) -> ModuleType:
    """Import a module.

    Raises:
        ModuleNotFoundError: It doesn't exist.
        BridgeError: `bad_tools`: it failed, or a module that it imports.
    """
    try:
        with printing.as_tool():
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BridgeError:
        raise
    except BaseException as error:  # noqa: BLE001 - a module may do anything, leave the interpreter included
        frames = _frames(error)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if not frames and missing and f"{name}.".startswith(f"{missing}."):
            raise ModuleNotFoundError(name) from None
        raise _import_failed(name, error, frames) from None


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an exception, beginning with the imported module's own code."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)]


def _import_failed(name: str, error: BaseException, frames: list[traceback.FrameSummary]) -> BridgeError:
    location: SourceLocation | None = None
    problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        location = SourceLocation(error.filename, error.lineno or 1)
        problem = f"{type(error).__name__}: {error.msg}"
    elif frames:
        # The last line of the operator's own code, and not of a library that it called.
        home = Path(frames[0].filename).parent
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(home)]
        location = SourceLocation(own[-1].filename, own[-1].lineno or 1)
    hint = None
    if isinstance(error, ModuleNotFoundError):
        hint = "Install it in the environment that mcp-bridge runs in."
    lines = "".join(traceback.format_list(frames)).splitlines()
    failed = f"module {name!r} can't be imported"
    failure = bad_tool(location, f"{failed}: {problem}".rstrip("."), hint, module=name)
    failure.private["traceback"] = lines
    if not isinstance(error, SyntaxError | ModuleNotFoundError):
        # The exception's message isn't for agents: it may contain a password, for example in a URL.
        failure.private["message"] = bad_tool(location, f"{failed}: {type(error).__name__}", None).message
    return failure


def _declared_in(module: ModuleType) -> list[Declaration]:
    names = [module.__name__, *(name for name in sys.modules if name.startswith(f"{module.__name__}."))]
    declared: dict[int, Declaration] = {}
    for name in names:
        for declaration in getattr(sys.modules.get(name), DECLARATIONS_NAME, ()):
            declared[id(declaration)] = declaration
    return list(declared.values())


def _without_tools(what: str, module: ModuleType) -> BridgeError:
    others = [
        f"{name} of {home}"
        for name, value in vars(module).items()
        if (home := getattr(value, "__module__", None)) and home != module.__name__ and _is_declared(value, home)
    ]
    hint = "Put @mcp_bridge.tool above its functions."
    if others:
        hint = f"It imports {', '.join(sorted(others))}: a tool is loaded with the module that declares it."
    return bad_tool(None, f"{what} declares no tool", hint, module=module.__name__)


def _is_declared(value: object, home: str) -> bool:
    load_declarations = getattr(sys.modules.get(home), DECLARATIONS_NAME, ())
    return any(declaration.function is value for declaration in load_declarations)
