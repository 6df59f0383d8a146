"""The tools of a script's recorded calls: run again, it can make these calls, whatever their servers list by now.

And it can't make those that it could not make: a tool that wasn't there isn't, and one that a call didn't fit is as it
was.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.catalog.aliases import derive
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.tool_names import split
from mcp_bridge.ledger.log.payloads import Failure, Success
from mcp_bridge.wire.messages import NAMES, CatalogCheck

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mcp_bridge.executions.scripts.call_history import CallHistory, RecordedCall

_TYPES = {str: "str", bool: "bool", int: "int", float: "float", list: "list", dict: "dict", type(None): "None"}
"""Annotations of recorded values."""

_SEPARATORS = re.compile(r"[^a-z0-9]+")

MAX_REFUSED_NAMES = 100
"""Most names of a tool that it doesn't list, and has refused: they are anybody's."""


class RecordedTools:
    """The tools that the recorded calls of a script are of.

    Args:
        history: Its calls.
        allowed: The servers that it may use, with their aliases.
    """

    def __init__(self, history: CallHistory, allowed: Mapping[str, str]) -> None:
        self._calls: dict[str, dict[str, list[tuple[dict[str, Any], bool]]]] = {}
        """By server and tool: the arguments, and whether the tool took them."""
        self._listed: dict[str, set[str]] = {}
        """By server: other tools that it is known to have listed then."""
        for call in history.calls.values():
            # What was no tool's name then is none now.
            if not call.has_failed_with("unknown_tool"):
                self._add(call.asked.kind, call.asked.name, call.asked.arguments, allowed, call)
        for asked in (*history.held.values(), *history.taken_back.values()):
            self._add(asked.kind, asked.name, asked.arguments, allowed, None)
        self._language = history.language
        self._unknown: dict[str, set[str]] = {}
        """By server: the names that were no tool's."""
        self._unfit: dict[str, dict[str, dict[str, Any]]] = {}
        """By server and tool: the row that a call didn't fit."""
        for looked in history.lookups:
            if looked.asked.name == NAMES[CatalogCheck]:
                self._add_check(looked)

    def _add(self, kind: str, name: str, arguments: Any, allowed: Mapping[str, str], call: Any) -> None:
        if kind != "tool":
            return
        try:
            server, tool = split(name, allowed)
        except BridgeError:
            return
        if not isinstance(arguments, dict):
            # Recorded is a digest of them.
            self._listed.setdefault(server, set()).add(tool)
            return
        is_taken = call is None or not call.has_failed_with("bad_arguments")
        self._calls.setdefault(server, {}).setdefault(tool, []).append((arguments, is_taken))

    def _add_check(self, check: RecordedCall) -> None:
        server, tool = check.asked.arguments["server"], check.asked.arguments["tool"]
        match check.outcome and check.outcome.result:
            case Failure("unknown_tool", details=details):
                self._unknown.setdefault(server, set()).add(tool)
                # One that a misspelt name was told of was there.
                self._listed.setdefault(server, set()).update(details.get("nearest") or ())
            case Success({"row": dict(row)}):
                self._unfit.setdefault(server, {}).setdefault(row["name"], row)

    def _as_seen(self, server: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows as the script saw them when it could not make a call."""
        unfit = dict(self._unfit.get(server, {}))
        there = self._calls.get(server, {}).keys() | self._listed.get(server, set())
        absent = self._unknown.get(server, set())
        if self._language == "javascript":
            absent = absent | _found_by(absent, [row["alias"] for row in rows])
        seen = []
        for row in rows:
            names = {row["name"], row["alias"]}
            if names & there or names.isdisjoint(absent):
                seen.append(unfit.pop(row["name"], row))
        return seen + list(unfit.values())

    def repeatable(self, server: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of a server's tools, so that they take the recorded calls of these tools: the same where they do.

        A tool that wasn't there has none, and one that a call didn't fit has that of then.
        A tool that isn't listed has a row from its calls. One that is listed takes the arguments that were passed, and
        needs none that wasn't.

        Args:
            server: Its configured name.
            rows: As `describe.proxy_row` makes them.
        """
        rows = self._as_seen(server, rows)
        left = dict(self._calls.get(server, {}))
        made = []
        for row in rows:
            calls = left.pop(row["name"], []) + left.pop(row["alias"], [])
            made.append(_taking(row, calls) if calls else row)
        aliases = _Names()
        for row in rows:
            aliases.free(row["alias"])
        for tool, calls in left.items():
            row = {
                "name": tool,
                "alias": aliases.free(derive(tool)),
                "params": [],
                "returns": "Any",
                "doc": "",
                "extra": False,
            }
            made.append(_taking(row | {"recorded": True}, calls))
        return made


def _found_by(names: set[str], aliases: Sequence[str]) -> set[str]:
    """The aliases that JavaScript finds by other names: `list_all` by `listAll`, if there is one only (`sameName`)."""
    by_folded: dict[str, list[str]] = {}
    for alias in aliases:
        by_folded.setdefault(_folded(alias), []).append(alias)
    found = (by_folded.get(_folded(name), []) for name in names)
    return {same[0] for same in found if len(same) == 1}


def _folded(name: str) -> str:
    """As `folded` of `near_names.js`."""
    return _SEPARATORS.sub("", name.lower())


class _Passed:
    """The arguments that were passed to a tool, of which each is looked at once.

    Args:
        calls: The calls, each with whether the tool took it.
        known: The names that the tool lists.

    Attributes:
        taken: The names in calls that were taken, in order: those of the call with the most of them first.
        refused: Names that neither are listed nor were ever taken.
    """

    def __init__(self, calls: Sequence[tuple[dict[str, Any], bool]], known: Collection[str]) -> None:
        self._calls = len(calls)
        self._times: dict[str, int] = {}
        self._kinds: dict[str, set[str]] = {}
        taken: dict[str, None] = {}
        refused: dict[str, None] = {}
        for arguments, is_taken in sorted(calls, key=lambda call: len(call[0]), reverse=True):
            for name, value in arguments.items():
                if is_taken:
                    taken[name] = None
                elif name not in known and name not in refused:
                    if len(refused) >= MAX_REFUSED_NAMES:
                        continue
                    refused[name] = None
                self._times[name] = self._times.get(name, 0) + 1
                self._kinds.setdefault(name, set()).add(_TYPES.get(type(value), "Any"))
        self.taken = list(taken)
        self.refused = [name for name in refused if name not in taken]

    def is_always(self, name: str) -> bool:
        """Whether every call has passed an argument of this name."""
        return self._times.get(name, 0) == self._calls

    def kinds(self, name: str) -> str:
        """The annotation of the values that were passed by this name; empty if none was."""
        return " | ".join(sorted(self._kinds.get(name, ())))


def _taking(row: dict[str, Any], calls: Sequence[tuple[dict[str, Any], bool]]) -> dict[str, Any]:
    """A row that takes these calls: the same if it does."""
    by_name = {param["json"]: param for param in row["params"]}
    if "beginnings" in row and _took_any_name(row, calls):
        row = {key: value for key, value in row.items() if key != "beginnings"}
    passed = _Passed(calls, by_name.keys())
    names = list(by_name)
    if not row["extra"]:
        # Values may have been passed in order: that of the arguments, as they were taken.
        first = passed.taken if not by_name.keys() >= set(passed.taken) else []
        names = list(dict.fromkeys([*first, *names, *passed.refused]))
    params = []
    is_required, used = True, _Names()
    for name in names:
        param = by_name.get(name) or {"name": derive(name), "json": name, "type": "Any", "required": False}
        # What follows an optional parameter of a Python function is optional.
        is_required = is_required and param["required"] and passed.is_always(name)
        # Names of an earlier listing and of this one may be the same identifier.
        params.append(param | {"name": used.free(param["name"]), "required": is_required})
    if params == row["params"]:
        return row
    # By an annotation the guest tells a text from the JSON that it may hold.
    typed = [param | ({"type": kinds} if (kinds := passed.kinds(param["json"])) else {}) for param in params]
    return row | {"params": typed, "recorded": True}


def _took_any_name(row: dict[str, Any], calls: Sequence[tuple[dict[str, Any], bool]]) -> bool:
    """Whether the calls tell that this tool, whose names begin in certain ways, took any, and no dict for all of them.

    So it was before these ways were told apart.
    """
    known = {param[key] for param in row["params"] for key in ("json", "name")}
    first = row["params"][0]["json"] if row["params"] else ""
    for arguments, is_taken in calls:
        if not all(name in known or name.startswith(tuple(row["beginnings"])) for name in arguments):
            return True
        if not is_taken and isinstance(arguments.get(first), dict):
            return True
    return False


class _Names:
    """Names that are used."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def free(self, name: str) -> str:
        """The name, or else the next one that is free; used from now on."""
        made = name
        while made in self._used:
            number = self._next[name] = self._next.get(name, 1) + 1
            made = f"{name}_{number}"
        self._used.add(made)
        return made
