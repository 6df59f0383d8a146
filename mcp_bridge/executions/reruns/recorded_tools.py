"""The tools of a script's recorded calls: run again, it can make these calls, whatever their servers list by now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.catalog.aliases import derive
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.tool_names import split

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_bridge.executions.scripts.call_history import CallHistory

_TYPES = {str: "str", bool: "bool", int: "int", float: "float", list: "list", dict: "dict", type(None): "None"}
"""Annotations of recorded values."""


class RecordedTools:
    """The tools that the recorded calls of a script are of.

    Args:
        history: Its calls.
        allowed: The servers that it may use, with their aliases.
    """

    def __init__(self, history: CallHistory, allowed: Mapping[str, str]) -> None:
        self._calls: dict[str, dict[str, list[tuple[dict[str, Any], bool]]]] = {}
        """By server and tool: the arguments, and whether the tool took them."""
        for call in history.calls.values():
            # What was no tool's name then is none now.
            if not call.has_failed_with("unknown_tool"):
                self._add(call.asked.kind, call.asked.name, call.asked.arguments, allowed, call)
        for asked in history.held.values():
            self._add(asked.kind, asked.name, asked.arguments, allowed, None)

    def _add(self, kind: str, name: str, arguments: Any, allowed: Mapping[str, str], call: Any) -> None:
        if kind != "tool" or not isinstance(arguments, dict):
            return
        try:
            server, tool = split(name, allowed)
        except BridgeError:
            return
        is_taken = call is None or not call.has_failed_with("bad_arguments")
        self._calls.setdefault(server, {}).setdefault(tool, []).append((arguments, is_taken))

    def repeatable(self, server: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of a server's tools, so that they take the recorded calls of these tools: the same where they do.

        A tool that isn't listed has a row from its calls. One that is listed takes the arguments that were passed, and
        needs none that wasn't.

        Args:
            server: Its configured name.
            rows: As `describe.proxy_row` makes them.
        """
        left = dict(self._calls.get(server, {}))
        made = []
        for row in rows:
            calls = left.pop(row["name"], []) + left.pop(row["alias"], [])
            made.append(_taking(row, calls) if calls else row)
        aliases = {row["alias"] for row in rows}
        for tool, calls in left.items():
            alias = derive(tool)
            while alias in aliases:
                alias += "_"
            aliases.add(alias)
            row = {"name": tool, "alias": alias, "params": [], "returns": "Any", "doc": "", "extra": False}
            made.append(_taking(row | {"recorded": True}, calls))
        return made


def _taking(row: dict[str, Any], calls: list[tuple[dict[str, Any], bool]]) -> dict[str, Any]:
    """A row that takes these calls: the same if it does."""
    known = {param["json"] for param in row["params"]}
    params = [
        param | {"required": False}
        if param["required"] and any(param["json"] not in each for each, _ in calls)
        else param
        for param in row["params"]
    ]
    if not row["extra"]:
        # Values may have been passed in order: that of the arguments, as they were taken.
        taken = _names(each for each, is_taken in calls if is_taken)
        first = taken if not known.issuperset(taken) else []
        names = list(dict.fromkeys([*first, *(param["json"] for param in params), *_names(each for each, _ in calls)]))
        by_name = {param["json"]: param for param in params}
        params = [by_name.get(name) or _unlisted(name) for name in names]
    if params == row["params"]:
        return row
    # By an annotation the guest tells a text from the JSON that it may hold.
    kinds = {param["json"]: _kinds(param["json"], calls) for param in params}
    typed = [param | ({"type": kinds[param["json"]]} if kinds[param["json"]] else {}) for param in params]
    return row | {"params": typed, "recorded": True}


def _names(calls: Iterable[dict[str, Any]]) -> list[str]:
    """The names of arguments, those of the call with the most of them first."""
    return list(dict.fromkeys(name for each in sorted(calls, key=len, reverse=True) for name in each))


def _unlisted(name: str) -> dict[str, Any]:
    return {"name": derive(name), "json": name, "type": "Any", "required": False}


def _kinds(name: str, calls: list[tuple[dict[str, Any], bool]]) -> str:
    """The annotation of the values that were passed by this name; empty if none was."""
    return " | ".join(sorted({_TYPES.get(type(each[name]), "Any") for each, _ in calls if name in each}))
