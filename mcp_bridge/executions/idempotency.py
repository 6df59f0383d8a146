"""Idempotency: one execution a key, whoever asks for it, however often, and in however many processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.idempotency_key import MAX_KEY_CHARS, execution_of
from mcp_bridge.executions.readiness import may_go_on
from mcp_bridge.executions.status import UNFINISHED, effective_status
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.ledger.storage.schema import ERASED

if TYPE_CHECKING:
    from mcp_bridge.executions.idempotency_key import Key
    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.gate.admission import Asker
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

POLL_SECONDS = 0.2
"""How often to look whether another process has ended an execution that is waited for."""


class KeyedRequest(Protocol[T_co]):
    """What is asked for under a key, by a script or a program."""

    @property
    def asker(self) -> Asker | None:
        """Asks a person what a suspended execution of the key waits for."""

    async def start(self) -> T_co | None:
        """Start a new execution; None if another process was quicker."""

    async def resume(self, known: StoredExecution) -> T_co | None:
        """Go on with an execution that can; None if another process was quicker."""

    async def is_same(self, known: StoredExecution) -> bool:
        """Whether an execution was started for the same: a key belongs to one thing."""

    async def may_be_operators(self, known: StoredExecution) -> bool:
        """Whether an operator may have started an execution of version 0.1.0, which didn't record who did."""


async def find_or_start(
    lifecycle: Lifecycle,
    principal: str,
    key: Key | None,
    asked: KeyedRequest[T],
    *,
    origin: str,
    request: RequestContext = NO_REQUEST,
) -> T | StoredExecution:
    """A new execution, to be driven; or the one that has the key already, when it has come to a stop.

    Args:
        lifecycle: Of both kinds of executions.
        principal: Whose key it is.
        key: The key, or None: then the execution is new every time.
        asked: What is asked for.
        origin: Whose program that is: the same steps are allowed to do other things as another's.
        request: The request that it is for: it gives its slot away while it waits.

    Raises:
        BridgeError: `bad_key`, `key_conflict`, `erased`; `unknown_run`: the key was generated for another's run; as
            `asked`.
    """
    if key is not None and not (0 < len(key.text) <= MAX_KEY_CHARS and key.text.isprintable()):
        raise BridgeError("bad_key", f"An idempotency key is 1 to {MAX_KEY_CHARS} printable characters.")
    waited_for = ""
    while True:
        known = None if key is None else await _known(lifecycle.store, principal, key)
        if key is None or known is None:
            if (started := await asked.start()) is not None:
                return started
            continue
        if known.status == ERASED:
            raise BridgeError(
                "erased",
                f"What the execution {known.id} has given was erased.",
                hint="It isn't done again under this key; use another one to have it done anew.",
                execution=known.id,
            )
        if known.origin != origin or not await asked.is_same(known):
            raise BridgeError(
                "key_conflict",
                f"The idempotency key {key.text!r:.100} belongs to another program, another context or other code.",
                hint="Use a key for one thing only.",
            )
        if key.space == "operator" != known.key_space and not await asked.may_be_operators(known):
            raise BridgeError(
                "key_conflict",
                f"The idempotency key {key.text!r:.100} is of the execution {known.id}, which was begun before agents'"
                " keys and operators' were kept apart: perhaps by an agent.",
                hint=f"mcp-bridge execution show {known.id} has what it did. Use another key to have it done anew.",
                execution=known.id,
            )
        status = effective_status(known)
        if (left := lifecycle.under_way(known.id)) is not None or status == "running":
            waited_for = known.id
            request.release_slot()
            await (left.wait() if left else anyio.sleep(POLL_SECONDS))
        elif status == "interrupted" or (
            status == "suspended" and await may_go_on(lifecycle.store, known, asked.asker)
        ):
            if (resumed := await asked.resume(known)) is not None:
                return resumed
        elif (
            lifecycle.retry_failed
            and status not in UNFINISHED | {"success"}
            and known.id not in {waited_for, execution_of(key.text)}
        ):
            # One of those who ask from now on starts the next attempt. Whoever has waited for this one gets this one:
            # else as many attempts would follow each other as have asked at once. A generated key is its run's alone.
            await lifecycle.store.release_key(known)
        else:
            return known


async def _known(store: ProgramStore, principal: str, key: Key) -> StoredExecution | None:
    """The execution that has a key; or the one that version 0.1.0 kept under it, or that it was generated for.

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
    known = await store.execution(execution)
    is_own = known is not None and known.principal == principal
    if known is not None and is_own and (known.status == ERASED or (known.key, known.key_space) == (text, key.space)):
        return known
    # Under a key that was mistyped nothing is done anew: somebody waits for what was begun.
    raise BridgeError(
        "unknown_run",
        f"No run was given the key {text}.",
        hint="Keys like this one are made by the bridge. Ask without a key, or with one of your own.",
    )
