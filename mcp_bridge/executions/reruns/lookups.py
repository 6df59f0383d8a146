"""What a script has looked up: recorded, and answered from the record when the script is run again.

A lookup has no name of its own, as a call has. It is known by what it asks for and by how many of the script's lookups
had asked for the same before. One that isn't in the record is answered as things are now: nothing depends on its place
among the calls.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.call_history import CallRequest
from mcp_bridge.ledger.log.payloads import LOOKUP, Failure, RequestOutcome, Success
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.secrets.vault_uris import REFERENCE, REFERENCE_PREFIX
from mcp_bridge.wire.messages import NAMES, CatalogCheck

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mcp_bridge.executions.scripts.call_history import RecordedCall
    from mcp_bridge.ledger.log.payload_base import Payload
    from mcp_bridge.policy.secrets.known_values import Scalar

MAX_KEPT_BYTES = 4 << 20
"""Most that a run records of what it has looked up. What is looked up beyond it is answered as things are then."""

ENTRY_BYTES = 500
"""About what an entry takes besides what is asked and its answer."""


class LookupLog(Protocol):
    """The record of the script's execution. As `CallLog`."""

    live: bool

    def post(self, payload: Payload) -> None:
        """Record an entry, without waiting."""

    async def project(self, value: Any) -> Any:
        """The value without secrets and sensitive values, as it may be recorded."""

    def keep(self, value: Any) -> None:
        """Store the values behind the references of a value that is recorded next."""

    def values_behind(self, value: Any) -> Mapping[str, Scalar]:
        """The values behind the references in a value."""

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be recorded."""


class Lookups:
    """Answers the lookups of one run.

    Args:
        log: The record of the script's execution.
        recorded: What is recorded, in order.
    """

    def __init__(self, log: LookupLog, recorded: Sequence[RecordedCall]) -> None:
        self._log = log
        self._recorded = {(_shape(asked), one.call): (asked, one) for one in recorded for asked in [_kept(one.asked)]}
        self._asked: dict[bytes, int] = {}
        """How many lookups had asked for the same, by the digest of what that is."""
        self._kept: int | None = None
        """Bytes that are recorded of them; None until that counts."""

    async def answer(
        self, method: str, arguments: dict[str, Any], look: Callable[[], Awaitable[Any]], *, failures_only: bool = False
    ) -> Any:
        """Answer a lookup: from the record, or by looking.

        Args:
            method: The request's method.
            arguments: What it asks for.
            look: Looks.
            failures_only: Whether only a failure is recorded, and not what was found.

        Raises:
            BridgeError: The recorded one; as `look`.
        """
        whole = CallRequest(LOOKUP, method, await self._log.project(arguments))
        asked = await off_loop(arguments, _kept, whole)
        shape = await off_loop(asked.arguments, _shape, asked)
        number = self._asked[shape] = self._asked.get(shape, 0) + 1
        name = f"{LOOKUP} {number}"
        before, known = self._recorded.get((shape, name), (asked, None))
        if known is not None and before.is_same(asked, self._log.values_behind([before.arguments, asked.arguments])):
            return known.answer()
        try:
            found = await look()
        except BridgeError as exc:
            await self._keep(RequestOutcome(asked, name, Failure.of(exc)), exc.details)
            raise
        if not failures_only:
            await self._keep(RequestOutcome(asked, name, Success(found)), found)
        return found

    async def _keep(self, outcome: RequestOutcome, given: Any) -> None:
        if not self._log.live:
            return
        if self._kept is None:
            self._kept = sum(
                _size([one.asked.arguments, one.outcome and one.outcome.result.encode()])
                for _, one in self._recorded.values()
            )
        both = [outcome.request.arguments, given]
        size = await off_loop(both, _size, both)
        if self._kept + size > MAX_KEPT_BYTES or not self._log.has_room(size):
            return
        self._kept += size
        self._log.keep(both)
        self._log.post(outcome)


def _size(value: Any) -> int:
    return ENTRY_BYTES + len(json.dumps(value))


def _kept(asked: CallRequest) -> CallRequest:
    """What a lookup asks for, as it is recorded: of a call that is checked the arguments' digest. They may be large.

    Records of earlier builds have the arguments.
    """
    if asked.name != NAMES[CatalogCheck] or "arguments" not in asked.arguments:
        return asked
    kept = {name: value for name, value in asked.arguments.items() if name != "arguments"}
    passed = replace(asked, arguments=asked.arguments["arguments"])
    return replace(asked, arguments=kept | {"digest": passed.digested().digest})


def _shape(asked: CallRequest) -> bytes:
    """A digest of what a lookup asks for, with all references alike: run again, the same value may have another one."""
    text = json.dumps([asked.name, asked.arguments], sort_keys=True)
    return hashlib.sha256(REFERENCE.sub(REFERENCE_PREFIX, text).encode()).digest()
