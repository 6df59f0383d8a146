"""Calls that a dry run lists, and the calls of such a list that a person has approved as a whole.

In a dry run, the gate makes no call but those that only read, by believed hints, and that the policy allows. Any other
call is listed (`PlannedCallError`), decided and checked as if it were made. In the run that follows an approval, a call
of the list is made without another question, as often as it is in the list; any other call that doesn't only read has a
person asked, even where the policy alone would allow it. What the policy denies at the time of the call is denied.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.rules.trusted_hints import only_reads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_bridge.downstream.catalog.bound_tool import BoundTool
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.policy.rules.call import Call
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot

RESULT_PLACEHOLDER = "<result of call "
"""Begins the text that stands for the result of a listed call, in the arguments of another one."""

NOT_IN_PLAN = "It isn't one of the calls that were approved as a whole, after a dry run of the script."
TOOL_CHANGED_SINCE_APPROVAL = "It was approved as a whole with others, but its server lists the tool otherwise since."


class PlannedCallError(BridgeError):
    """The call is of a dry run, and doesn't only read: it has been decided and checked, and isn't made.

    Attributes:
        question: As a person is asked about the call, projected.
        listed: As `listing_hash`; empty if the call isn't bound.
        asks: Whether the policy wants a person asked about it.
    """

    def __init__(self, question: QuestionFields, listed: str = "", *, asks: bool = False) -> None:
        super().__init__("dry_run", f"A dry run doesn't call {question['tool']}.", tool=question["tool"])
        self.question = question
        self.listed = listed
        self.asks = asks


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """One call that a person has approved with others.

    Attributes:
        tool: The tool's exact name, after its server's.
        arguments: What it gets, projected, as JSON: a 1 is equal to a true in Python, and means something else.
        announced: The tool's defaults that are left to it, likewise.
        listed: As `listing_hash`.
    """

    tool: str
    arguments: str
    announced: str
    listed: str

    @classmethod
    def of(cls, tool: str, arguments: Any, announced: Any, listed: str) -> ApprovedCall:
        """A call with these values, projected."""
        return cls(tool, _as_json(arguments), _as_json(announced), listed)

    def is_of(self, tool: str, arguments: Any) -> bool:
        """Whether it is a call of this tool with these arguments."""
        return self.tool == tool and self.arguments == _as_json(arguments)


class ApprovedCalls:
    """The calls that a person has approved as a whole, and that aren't made yet. Nothing here awaits.

    Args:
        calls: The calls; one that is in it twice may be made twice.
    """

    def __init__(self, calls: Iterable[ApprovedCall]) -> None:
        self.left = list(calls)

    def take(self, call: ApprovedCall) -> bool:
        """Use up the approval of a call; False if there is none (any more)."""
        if call not in self.left:
            return False
        self.left.remove(call)
        return True

    def give_back(self, call: ApprovedCall) -> None:
        """The call that an approval was taken for has not been made."""
        self.left.append(call)

    def why_not(self, call: ApprovedCall) -> str:
        """Why a person is asked about a call."""
        is_relisted = any((one.tool, one.arguments) == (call.tool, call.arguments) for one in self.left)
        return TOOL_CHANGED_SINCE_APPROVAL if is_relisted else NOT_IN_PLAN


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def is_read(snapshot: PolicySnapshot, tool: BoundTool, call: Call) -> bool:
    """Whether a call only reads: by the hints of a trusted server, or by what the operator's own tool says of itself.

    Args:
        snapshot: The policy, whose floor has to trust the server, too.
        tool: The tool as it is listed now.
        call: The call.
    """
    if not tool.is_operators:
        return only_reads(snapshot, call)
    return call.hints.get("readOnlyHint") is True and call.hints.get("destructiveHint") is not True


def listing_hash(tool: BoundTool) -> str:
    """SHA-256, in hexadecimal, of all that a server lists of a tool: a call is approved of the tool as it is then."""
    return hashlib.sha256(json.dumps(asdict(tool.info), sort_keys=True).encode()).hexdigest()


def depends_on_results(arguments: Any) -> bool:
    """Whether the result of a listed call is among the arguments of another one."""
    return RESULT_PLACEHOLDER in json.dumps(arguments)
