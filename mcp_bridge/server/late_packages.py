"""Postpones what a package's `__init__` imports to the first use of a name that only the `__init__` has.

`mcp` and `mcp.server` import the SDK's client, its high-level server and an HTTP client. A bridge that runs scripts
alone uses nothing of them: a third of the processor time of the SDK's import, and 4 MiB. Their submodules are imported
without them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from types import ModuleType

_turn = threading.RLock()
"""As `importlib.util.LazyLoader` has one: other threads wait for an `__init__`, and find its names then."""

_running: set[str] = set()
"""The packages whose `__init__` is running, in the thread that has the turn."""


class _LatePackage(ModuleType):
    """A package whose `__init__` hasn't been run."""

    def __getattr__(self, name: str) -> object:
        # Python and its tools ask every module for names like `__wrapped__`.
        if name == "__all__" or not name.startswith("__"):
            self._run()
        return ModuleType.__getattribute__(self, name)

    def _run(self) -> None:
        with _turn:
            # Else it has been run while this thread waited, or it is this thread that runs it.
            if type(self) is _LatePackage and self.__name__ not in _running:
                _running.add(self.__name__)
                try:
                    importlib.reload(self)
                finally:
                    _running.remove(self.__name__)
                self.__class__ = ModuleType  # type: ignore[assignment]  # as `LazyLoader` does


def postpone(*packages: str) -> None:
    """Have these packages run their `__init__` once they are asked for a name that they don't have by then.

    Args:
        packages: Their names, a package before those in it. One that is imported already stays as it is.
    """
    for name in packages:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        assert spec is not None  # it is installed
        package = importlib.util.module_from_spec(spec)
        package.__class__ = _LatePackage
        sys.modules[name] = package
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, package)
