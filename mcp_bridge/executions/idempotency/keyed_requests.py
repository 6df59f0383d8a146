"""Idempotency: one execution for each key, however often and from however many processes it is requested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.idempotency.generated_keys import execution_of
from mcp_bridge.executions.idempotency.keys import MAX_KEY_CHARS
from mcp_bridge.executions.readiness import can_resume_with_answers
from mcp_bridge.executions.status import UNFINISHED, effective_status
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.ledger.storage.schema import ERASED

if TYPE_CHECKING:
    from mcp_bridge.executions.idempotency.keys import Key
    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

POLL_SECONDS = 0.2
"""Interval for checking whether another process has ended an execution that is waited for."""


class KeyedRequest(Protocol[T_co]):
    """A request to run a script or a program under a key."""

    @property
    def asker(self) -> Asker | None:
        """Asks a person the questions that a suspended execution of the key waits for; or None."""

    async def start(self) -> T_co | None:
        """Start a new execution; None if another process was quicker."""

    async def resume(self, known: StoredExecution) -> T_co | None:
        """Resume an execution that can be resumed; None if another process was quicker."""

    async def is_same(self, known: StoredExecution) -> bool:
        """Whether an execution was started for an equal request: a key belongs to one request."""

    async def may_be_operators(self, known: StoredExecution) -> bool:
        """Whether an operator may have started an execution of version 0.1.0, which didn't record who did."""


async def find_or_start(
    lifecycle: Lifecycle,
    principal: str,
    key: Key | None,
    keyed: KeyedRequest[T],
    *,
    origin: str,
    request: RequestContext = NO_REQUEST,
) -> T | StoredExecution:
    """Start a new execution, resume the one that has the key, or wait until that one stops.

    Args:
        lifecycle: The lifecycle of executions.
        principal: The key's owner.
        key: The key; None for an execution that is always new.
        keyed: The script or program to run under the key.
        origin: The program's owner, `operator` or `agent`: the policy may decide the same steps differently.
        request: The request of the channel that this is done for. It releases its slot while it waits.

    Returns:
        What `keyed.start` or `keyed.resume` returned; or the stopped execution that has the key.

    Raises:
        BridgeError: `bad_key`, `key_conflict`, `erased`; `unknown_run`: the key was generated for a run that this
            principal doesn't have; as `keyed`.
    """
    if key is not None and not (0 < len(key.text) <= MAX_KEY_CHARS and key.text.isprintable()):
        raise BridgeError("bad_key", f"An idempotency key is 1 to {MAX_KEY_CHARS} printable characters.")
    waited_for = ""
    while True:
        known = None if key is None else await _known(lifecycle.store, principal, key)
        if key is None or known is None:
            if (started := await keyed.start()) is not None:
                return started
            continue
        if known.status == ERASED:
            raise BridgeError(
                "erased",
                f"The result of the execution {known.id} was erased.",
                hint="It won't run again under this key. Use another key to run it again.",
                execution=known.id,
            )
        if known.origin != origin or not await keyed.is_same(known):
            raise BridgeError(
                "key_conflict",
                f"The idempotency key {key.text!r:.100} belongs to another program, another context or other code.",
                hint="Use a key for one thing only.",
            )
        if key.space == "operator" != known.key_space and not await keyed.may_be_operators(known):
            raise BridgeError(
                "key_conflict",
                f"The idempotency key {key.text!r:.100} is of the execution {known.id}, which was begun before agents'"
                " keys and operators' were kept apart: perhaps by an agent.",
                hint=f"mcp-bridge execution show {known.id} has what it did. Use another key to run it again.",
                execution=known.id,
            )
        status = effective_status(known)
        if (left := lifecycle.under_way(known.id)) is not None or status == "running":
            waited_for = known.id
            request.release_slot()
            await (left.wait() if left else anyio.sleep(POLL_SECONDS))
        elif status == "interrupted" or (
            status == "suspended" and await can_resume_with_answers(lifecycle.store, known, keyed.asker)
        ):
            if (resumed := await keyed.resume(known)) is not None:
                return resumed
        elif (
            lifecycle.retry_failed
            and status not in UNFINISHED | {"success"}
            and known.id not in {waited_for, execution_of(key.text)}
        ):
            # The next request with the key starts the next attempt. A request that has waited for this attempt gets its
            # result: otherwise as many attempts would follow each other as there were concurrent requests. A generated
            # key belongs to its run alone.
            await lifecycle.store.release_key(known)
        else:
            return known


async def _known(store: ProgramStore, principal: str, key: Key) -> StoredExecution | None:
    """The execution that has a key: under its text, under the text of version 0.1.0, or the one it was generated for.

    Raises:
        BridgeError: `unknown_run`.
    """
    text = key.whole or key.text
    for name in (text, *key.before):
        known = await store.by_key(principal, name, key.space) or await store.by_key(principal, name)
        if known is not None:
            return known
    if (execution := execution_of(text)) is None:
        return None
    known = await store.execution(execution, principal)
    if known is not None and (known.status == ERASED or (known.key, known.key_space) == (text, key.space)):
        return known
    # A mistyped key must not start a new run: the client expects the result of the one that was started.
    raise BridgeError(
        "unknown_run",
        f"No run was given the key {text}.",
        hint="Keys like this one are made by the bridge. Ask without a key, or with one of your own.",
    )
