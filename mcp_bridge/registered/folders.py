"""Imports of modules from the operator's folders that affect no other imports.

A folder isn't added to `sys.path`: at the beginning, a `json.py` in it would replace `json` for all code; at the end,
it would be silently ignored. Instead, a finder at the end of `sys.meta_path` searches the folders. Modules that Python
finds without it take precedence, and a module that should be loaded and is shadowed is an error.

Folders that come with a checkout are *guarded*: only source files whose bytes the user has trusted are imported from
them, now or later. Compiled code is never loaded from there, neither extension modules nor `__pycache__`: nobody has
reviewed it.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from importlib.machinery import FileFinder, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.registered.declaring import bad_tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from mcp_bridge.workspace.folder_content import Content

logger = logging.getLogger(__name__)

_RENAME = "Rename one of them."


MAX_MODULE_BYTES = 64 << 20
"""Size limit of a guarded module."""

_guarded: dict[str, Content] = {}
"""Maps guarded folders to their trusted content."""


def _guard_for(path: str) -> Content | None:
    """The trusted content if a path is in a guarded folder, else None."""
    location = Path(path)
    return next((content for folder, content in _guarded.items() if location.is_relative_to(folder)), None)


class _TrustedLoader(SourceFileLoader):
    """Loads source whose bytes are hashed before they are compiled: exactly the bytes that were hashed."""

    def get_data(self, path: str) -> bytes:
        content = _guard_for(path)
        if content is None:
            raise ImportError(f"{path} is in no folder that is trusted", path=path)
        return content.read(Path(path), MAX_MODULE_BYTES)

    def path_stats(self, path: str) -> Mapping[str, Any]:
        # If this fails, the import system neither reads nor writes bytecode.
        raise OSError(f"{path} has no bytecode")


class _GuardedFinder:
    """Finds submodules of packages in guarded folders. It comes first and is the only finder for these."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002 - the protocol of finders has it
    ) -> ModuleSpec | None:
        folders = [folder for folder in path or () if isinstance(folder, str)]
        if not any(_guard_for(folder) for folder in folders):
            return None
        for folder in folders:
            spec = _find_guarded(name, folder) if _guard_for(folder) else PathFinder.find_spec(name, [folder])
            if spec is not None:
                return spec
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


_guarded_finder = _GuardedFinder()


def _find_guarded(name: str, folder: str) -> ModuleSpec | None:
    spec = FileFinder(folder, (_TrustedLoader, [".py"])).find_spec(name)
    if spec is not None and spec.origin is not None:
        # No bytecode is read or written.
        spec.cached = None
    return spec


class _Finder:
    """Finds top-level modules only: submodules are found through their package."""

    def __init__(self) -> None:
        self.folders: list[str] = []

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002 - the protocol of finders has it
    ) -> ModuleSpec | None:
        return _find(name, self.folders) if path is None else None


_finder = _Finder()


def unload() -> None:
    """Unload all modules of the folders, so that they are imported again from the current files.

    Only for a process that holds none of their tools: objects of the old modules would continue to exist.
    """
    folders = [Path(folder) for folder in _finder.folders]
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if origin and any(Path(origin).is_relative_to(folder) for folder in folders):
            del sys.modules[name]
    _finder.folders = []
    importlib.invalidate_caches()


class Folders:
    """Folders of modules, which can import each other."""

    def __init__(self, folders: Iterable[str | Path], base: Path, trusted: Content | None = None) -> None:
        """Register the folders.

        Args:
            folders: Their paths.
            base: Where a relative path begins: the folder of the configuration file.
            trusted: The only content that may be imported from them; None for everything.

        Raises:
            BridgeError: `bad_tools`: one is not a folder, or can't be read.
        """
        self.folders = list(dict.fromkeys((base / folder).resolve() for folder in folders))
        self._entries: list[Path] = []
        for folder in self.folders:
            try:
                self._entries += sorted(folder.iterdir())
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                hint = "A relative path starts at the configuration file's folder."
                raise bad_tool(None, f"tools.path names {folder}: {why}", hint, file=str(folder)) from None
        ours = [str(folder) for folder in self.folders]
        if trusted is not None:
            _guarded.update(dict.fromkeys(ours, trusted))
            if ours and _guarded_finder not in sys.meta_path:
                sys.meta_path.insert(0, _guarded_finder)
        _finder.folders = [*ours, *(folder for folder in _finder.folders if folder not in ours)]
        if ours and _finder not in sys.meta_path:
            sys.meta_path.append(_finder)

    def names(self) -> list[str]:
        """The top-level modules and packages, sorted, without those whose names begin with `_` or `.`.

        Raises:
            BridgeError: `bad_tools`: a file whose name isn't a valid module name.
        """
        names = set()
        for entry, name in self._modules():
            if name.startswith(("_", ".")):
                continue
            if not name.isidentifier():
                hint = "Rename it, begin its name with _ to leave it out, or name what to load in tools.modules."
                raise bad_tool(None, f"{entry} can't be loaded: {name!r} is no module's name", hint, file=str(entry))
            names.add(name)
        return sorted(names)

    def spec(self, name: str) -> ModuleSpec | None:
        """The spec of a top-level module, or None if it doesn't exist.

        Raises:
            BridgeError: `bad_tools`: there are two of them, or Python finds another module with this name.
        """
        specs = [spec for folder in self.folders if (spec := _find(name, [str(folder)]))]
        if not specs:
            return None
        if len(specs) > 1:
            raise bad_tool(None, f"there are two modules {name!r}: {specs[0].origin} and {specs[1].origin}", _RENAME)
        hidden_by = _shadowed_by(name, specs[0])
        if hidden_by:
            raise bad_tool(
                None, f"{specs[0].origin} can't be loaded: `import {name}` gives {hidden_by}", _RENAME, module=name
            )
        return specs[0]

    def warn_of_shadowed(self) -> None:
        """Log which modules are shadowed and so can't be imported by others in the folders."""
        for entry, name in self._modules():
            spec = _find(name, [str(entry.parent)])
            hidden_by = _shadowed_by(name, spec) if spec else None
            if hidden_by:
                logger.warning("%s is hidden: `import %s` gives %s", entry, name, hidden_by)

    def _modules(self) -> Iterator[tuple[Path, str]]:
        for entry in self._entries:
            # os.path treats inaccessible entries as nonexistent.
            if os.path.isfile(entry / "__init__.py"):  # noqa: PTH113
                yield entry, entry.name
            elif entry.suffix == ".py":
                yield entry, entry.stem


def _find(name: str, folders: list[str]) -> ModuleSpec | None:
    spec = None
    for folder in folders:
        spec = spec or (_find_guarded(name, folder) if _guard_for(folder) else PathFinder.find_spec(name, [folder]))
    # A folder without an __init__.py would be a namespace package (PEP 420).
    return spec if spec is not None and spec.origin is not None else None


def _shadowed_by(name: str, spec: ModuleSpec) -> str | None:
    """A description of what Python imports instead of the module; None if Python imports the module."""
    other = _found_first(name)
    if other is None or (other.origin and spec.origin and Path(other.origin).resolve() == Path(spec.origin).resolve()):
        return None
    if name in sys.stdlib_module_names:
        return "the standard library's"
    return other.origin or next(iter(other.submodule_search_locations or ()), "another module")


def _found_first(name: str) -> ModuleSpec | None:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return getattr(loaded, "__spec__", None)
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None) if finder not in (_finder, _guarded_finder) else None
        if spec is not None:
            return spec
    return None
