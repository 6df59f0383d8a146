"""From the configuration to the registry: folders, modules, entry points.

A tool belongs to the module that declares it, or whose function it is; a package has the tools of its modules too, as
far as it imports them. A tool that a module merely imports from elsewhere is not loaded with it.

Whatever can't be loaded is an error: a tool that is silently missing would be found out by a program in the middle of
its work. What modules print while they are imported goes to standard error.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge.downstream.catalog.aliases import nearest
from mcp_bridge.errors import BridgeError
from mcp_bridge.registered import printing
from mcp_bridge.registered.declaring import NOTED_AS, Declaration, Place, bad_tool
from mcp_bridge.registered.folders import Folders
from mcp_bridge.registered.registry import Registry
from mcp_bridge.registered.results import MAX_RESULT_BYTES

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from types import ModuleType

    from mcp_bridge.registered.config import ToolsConfig
    from mcp_bridge.workspace.content import Content

ENTRY_POINTS = "mcp_bridge.tools"
"""The group of entry points, each the name of a module that declares tools."""

_NOT_THEIRS = ("<frozen importlib", str(importlib.__file__), str(Path(__file__).parent))


def load_registry(config: ToolsConfig, base: Path, *, max_result_bytes: int = MAX_RESULT_BYTES) -> Registry:
    """Import the operator's modules and compile their tools.

    Args:
        config: The table `[tools]`.
        base: The folder that relative paths start at: that of the configuration file.
        max_result_bytes: Bytes of JSON one result may have.

    Raises:
        BridgeError: As `declared`; `bad_tools`: a function that can't be a tool, two tools of one name.
    """
    return Registry(declared(config, base), max_result_bytes=max_result_bytes)


def declared(config: ToolsConfig, base: Path, trusted: Content | None = None) -> list[Declaration]:
    """Import the operator's modules; their tools.

    Args:
        config: The table `[tools]`.
        base: The folder that relative paths start at: that of the configuration file.
        trusted: What alone may be imported from its folders; None for everything.

    Raises:
        BridgeError: `folder_changed`; `bad_tools`: a folder or module that isn't there or can't be imported, one
            without tools that `modules` or an entry point names, a module that another hides.
    """
    folders = Folders(((base / path).resolve() for path in config.path), trusted)
    declarations: list[Declaration] = []
    # Declarations are noted in the modules, so one that is loaded twice gives the same ones again.
    for name in config.modules:
        module = _from_config(name, folders)
        found = _declared_in(module)
        if not found:
            raise _without_tools(f"module {name!r}, which tools.modules names,", module)
        declarations += found
    if not config.modules:
        for name in folders.names():
            declarations += _declared_in(_from_config(name, folders))
    if config.entry_points:
        for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
            declarations += _from_entry_point(entry)
    folders.warn_of_hidden()
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
    found = _declared_in(module)
    if not found:
        raise _without_tools(what, module)
    return found


def _import(name: str) -> ModuleType:
    """Import a module.

    Raises:
        ModuleNotFoundError: It isn't there.
        BridgeError: `bad_tools`: it, or what it imports, failed.
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
    """Where it happened, beginning with the imported module's own code."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)]


def _import_failed(name: str, error: BaseException, frames: list[traceback.FrameSummary]) -> BridgeError:
    place: Place | None = None
    problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        place = Place(error.filename, error.lineno or 1)
        problem = f"{type(error).__name__}: {error.msg}"
    elif frames:
        # The last line of the operator's own, not the library's that it called.
        home = Path(frames[0].filename).parent
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(home)]
        place = Place(own[-1].filename, own[-1].lineno or 1)
    hint = None
    if isinstance(error, ModuleNotFoundError):
        hint = "Install it in the environment that mcp-bridge runs in."
    shown = "".join(traceback.format_list(frames)).splitlines()
    failed = f"module {name!r} can't be imported"
    failure = bad_tool(place, f"{failed}: {problem}".rstrip("."), hint, module=name)
    failure.private["traceback"] = shown
    if not isinstance(error, SyntaxError | ModuleNotFoundError):
        # What a module says, with a password in an address for one, isn't for an agent.
        failure.private["message"] = bad_tool(place, f"{failed}: {type(error).__name__}", None).message
    return failure


def _declared_in(module: ModuleType) -> list[Declaration]:
    names = [module.__name__, *(name for name in sys.modules if name.startswith(f"{module.__name__}."))]
    found: dict[int, Declaration] = {}
    for name in names:
        for declaration in getattr(sys.modules.get(name), NOTED_AS, ()):
            found[id(declaration)] = declaration
    return list(found.values())


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
    declared = getattr(sys.modules.get(home), NOTED_AS, ())
    return any(declaration.function is value for declaration in declared)
