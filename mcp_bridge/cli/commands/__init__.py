"""The commands, one a module. A group of commands is imported when it, or the help of everything, is asked for."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUPS = {
    "program": "programs",
    "execution": "executions",
    "session": "sessions",
    "event": "events",
    "approvals": "approvals",
    "audit": "audit",
    "policy": "policy",
    "secret": "secrets",
    "principal": "principals",
    "servers": "servers",
    "image": "images",
}
"""The groups' names on the command line; their modules, and what they are called in them."""


class LazyCommands(UserDict[str, Any]):
    """Commands by name, of which a group is made when it is looked at: all of them take a fifth of a command's start.

    Args:
        commands: The commands that are there already.
    """

    def __init__(self, commands: Mapping[str, Any]) -> None:
        super().__init__(commands)
        self.update(dict.fromkeys(GROUPS))

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _group(name)
        return self.data[name]


def _group(name: str) -> Any:
    import typer  # a bridge that serves has no use for it

    module = GROUPS[name]
    if module == "servers":
        # It has commands in two modules.
        import_module(f"{__name__}.logins")
    above = typer.Typer()
    above.add_typer(getattr(import_module(f"{__name__}.{module}"), module), name=name)
    return typer.main.get_group(above).commands[name]
