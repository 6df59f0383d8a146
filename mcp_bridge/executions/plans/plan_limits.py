"""How many calls a dry run may list instead of making them: they are counted as they are listed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import off_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.executions.scripts.call_recorder import CallRecorder
    from mcp_bridge.gate.planned_calls import PlannedCallError
    from mcp_bridge.ledger.log.payloads import Planned

MAX_PLANNED = 1000
MAX_PLANNED_BYTES = 4 << 20
"""Most calls that a dry run lists, and most bytes of them as JSON. One that has more isn't asked about at all."""


class ListedCalls:
    """The list of one dry run.

    Args:
        listed: The calls that it has listed already.
    """

    def __init__(self, listed: Sequence[Planned]) -> None:
        self._count = len(listed)
        self._bytes = sum(_size(one.given) for one in listed)

    async def add(self, call: CallRecorder, planned: PlannedCallError) -> dict[str, Any]:
        """List a call. What is given for its result stands for it in the arguments of other calls.

        Raises:
            BridgeError: `plan_too_large`.
        """
        arguments = planned.question["arguments"]
        size = await off_loop(arguments, _size, arguments)
        if self._count >= MAX_PLANNED or self._bytes + size > MAX_PLANNED_BYTES:
            error = _too_large()
            await call.failed(error)
            raise error
        self._count += 1
        self._bytes += size
        return await call.planned(self._count, planned)


def _size(arguments: Any) -> int:
    """How much a call's arguments take of a list."""
    return len(json.dumps(arguments))


def _too_large() -> BridgeError:
    """The error for a call with which a list would be too large to be shown whole."""
    return BridgeError(
        "plan_too_large",
        f"A dry run lists at most {MAX_PLANNED} calls, and {MAX_PLANNED_BYTES} bytes of them.",
        hint="Nobody is asked to approve a list that can't be shown whole. Split the script.",
    )
