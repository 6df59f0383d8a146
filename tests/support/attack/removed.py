"""Mendings, taken out: with each of these the gate is as it was in 0.1.0 in one point, and the campaign has to see it.

What is put in the place of ours is the defect itself, as small as it can be: no case is made for it, and the judge
knows nothing of it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, json_size
from mcp_bridge.downstream.client.server_calls import DownstreamServer, ListedTool
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import approvals
from mcp_bridge.executions.programs.library import ProgramLibrary
from mcp_bridge.executions.programs.lifecycle import Programs
from mcp_bridge.gate import policy_check
from mcp_bridge.gate.execution_values import ExecutionValues
from mcp_bridge.gate.policy_check import Admission
from mcp_bridge.kernel.language.conditions import Condition
from mcp_bridge.policy.redaction import patterns
from mcp_bridge.policy.redaction.patterns import Span
from mcp_bridge.policy.redaction.projection import Projector
from mcp_bridge.policy.rules import rule_evaluation
from mcp_bridge.policy.rules.schema_defaults import Filled
from mcp_bridge.server import questions

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Removed(NamedTuple):
    """A mending, taken out.

    Attributes:
        remove: Takes it out.
        found: As which violations it has to be found.
        focus: What of there are to be more cases.
    """

    remove: Callable[[pytest.MonkeyPatch], None]
    found: set[str]
    focus: str = ""


# --- 1: what was judged, shown and recorded had references, and the tool got values ---


def judging_of_values(patch: pytest.MonkeyPatch) -> None:
    """Rules see references."""
    patch.setattr(Projector, "judged", lambda _self, arguments, _names: arguments)


def showing_of_values(patch: pytest.MonkeyPatch) -> None:
    """A person sees references."""
    patch.setattr(Projector, "person", lambda self, arguments, _names: self.trace(arguments))


def showing_of_kept_values(patch: pytest.MonkeyPatch) -> None:
    """A person who decides elsewhere sees references."""
    patch.setattr(approvals, "fill_in", lambda value, _values: value)


def recording_of_values(patch: pytest.MonkeyPatch) -> None:
    """What is behind the references in the record isn't kept."""
    patch.setattr(ExecutionValues, "keep", lambda _self, _execution, _value: None)


def looking_at_keys(patch: pytest.MonkeyPatch) -> None:
    """Whatever stands between two lines is a private key, if there is some base64 in it."""

    def lenient(text: str, match: re.Match[str]) -> list[Span]:
        end = text.find("-----END ", match.end())
        is_one = end >= 0 and re.search("[A-Za-z0-9+/=]{20}", text[match.end() : end])
        return [Span(match.start(), text.find("-----", end + 9) + 5)] if is_one else []

    pattern = dataclasses.replace(patterns.BUILT_IN["private_key"], values=lenient)
    patch.setitem(patterns.BUILT_IN, "private_key", pattern)


# --- 2: rules didn't see defaults ---


def filling_in_of_defaults(patch: pytest.MonkeyPatch) -> None:
    """Rules see what the caller has written."""
    patch.setattr(policy_check, "with_defaults", lambda _schema, arguments, *_: Filled(arguments))


# --- 3: judged by one name, called by another ---


def calling_of_what_was_judged(patch: pytest.MonkeyPatch) -> None:
    """What is called is what the server has under the name, or else under the alias, by then."""

    async def judged(self: ListedTool) -> Any:
        return self

    async def listed(self: DownstreamServer, name: str) -> Any:
        connection = await self._ready()
        if connection.stale:
            await self._relist(connection)
        return await self.find_tool(name), await self._ready()

    call = DownstreamServer.call_tool

    async def by_name(self: DownstreamServer, tool: Any, *others: Any, **more: Any) -> Any:
        return await call(self, (await self._listed(tool.name))[0], *others, **more)

    patch.setattr(ListedTool, "current", judged)
    patch.setattr(DownstreamServer, "_listed", listed)
    patch.setattr(DownstreamServer, "call_tool", by_name)


def deciding_anew(patch: pytest.MonkeyPatch) -> None:
    """What the server lists while a person is asked isn't looked at."""

    async def judged(self: ListedTool) -> Any:
        return self

    call = DownstreamServer.call_tool

    async def by_name(self: DownstreamServer, tool: Any, *others: Any, **more: Any) -> Any:
        return await call(self, (await self._listed(tool.name))[0], *others, **more)

    patch.setattr(ListedTool, "current", judged)
    patch.setattr(DownstreamServer, "call_tool", by_name)


def knowing_of_neighbours(patch: pytest.MonkeyPatch) -> None:
    """A rule for one spelling loses its tool to a neighbour that has that spelling."""
    names = policy_check.tool_names
    patch.setattr(policy_check, "tool_names", lambda tool: names(tool)._replace(derived="", server_derived=""))


# --- 4: an agent spent an operator's key ---


def knowing_whose_key(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks, it is an agent."""
    start = Programs.start

    async def anybody(
        self: Programs,
        asked: Any,
        context: Any,
        key: Any,
        principal: Any,
        effects: Any,
        starter: Any = "agent",
        *more: Any,
        **named: Any,
    ) -> Any:
        return await start(self, asked, context, key, principal, effects, "agent", *more, **named)

    patch.setattr(Programs, "start", anybody)


# --- 5: a question was cut, and names passed for others ---


def asking_what_can_be_shown(patch: pytest.MonkeyPatch) -> None:
    """What a question can't hold is left out of it."""
    worded = questions._question_text
    patch.setattr(questions, "_question_text", lambda question: worded(question)[:4000])


def telling_names_apart(patch: pytest.MonkeyPatch) -> None:
    """Only the very name of an operator's program is the operator's."""
    patch.setattr(ProgramLibrary, "_check_resemblance", lambda *_: None, raising=False)


# --- 6: arguments of other types ---


def checking_of_sizes(patch: pytest.MonkeyPatch) -> None:
    """What is large is for the server to judge."""
    check = ArgumentCheck.run

    async def lenient(self: ArgumentCheck, arguments: dict[str, Any]) -> None:
        if json_size(arguments) <= 256 * 1024:
            await check(self, arguments)

    patch.setattr(ArgumentCheck, "run", lenient)


def comparing_of_types(patch: pytest.MonkeyPatch) -> None:
    """Rules compare as Python does."""
    patch.setattr(rule_evaluation, "Condition", lambda text, *_: Condition(text))


# --- and the other way round ---


def allowing(patch: pytest.MonkeyPatch) -> None:
    """Nothing is ever called: no rule is broken by that, and it is no gate."""

    async def refused(*_: Any) -> Any:
        raise BridgeError("denied", "No.")

    patch.setattr(Admission, "admit", refused)


REMOVED = {
    "1: rules see values": Removed(judging_of_values, {"denied", "unasked"}),
    "1: a person sees values": Removed(showing_of_values, {"another question"}, "approvals"),
    "1: a person elsewhere sees values": Removed(showing_of_kept_values, {"another question"}, "approvals"),
    "1: the record has values": Removed(recording_of_values, {"not recorded"}),
    "1: a key is a key": Removed(looking_at_keys, {"mistaken"}),
    "2: defaults": Removed(filling_in_of_defaults, {"denied", "unasked"}),
    "3: the name that was judged": Removed(calling_of_what_was_judged, {"not recorded"}, "changes"),
    "3: the form that was judged": Removed(deciding_anew, {"denied", "unasked"}, "changes"),
    "3: neighbours": Removed(knowing_of_neighbours, {"denied", "unasked"}),
    "4: whose key it is": Removed(knowing_whose_key, {"key spent"}, "keys"),
    "5: whole questions": Removed(asking_what_can_be_shown, {"cut question"}, "sizes"),
    "5: names": Removed(telling_names_apart, {"passed off"}, "look-alikes"),
    "6: sizes": Removed(checking_of_sizes, {"unchecked"}, "sizes"),
    "6: types": Removed(comparing_of_types, {"denied", "unasked"}, "types"),
    "what is allowed is done": Removed(allowing, {"refused"}),
}
