"""One execution a key, whoever asks for it, however often, and in however many processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.programs.record import standing
from mcp_bridge.executions.scripts.held_calls import execution_of
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.ledger.storage.schema import ERASED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.storage.blind_indexes import KeySpace
    from mcp_bridge.ledger.storage.store import ProgramStore, StoredExecution

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

MAX_KEY_CHARS = 1000
"""Of an idempotency key."""

POLL_SECONDS = 0.2
"""How often to look whether another process has ended an execution that is waited for."""

UNENDED = frozenset({"running", "suspended", "interrupted"})


class Key(NamedTuple):
    """An idempotency key.

    Attributes:
        text: As it was given, without sensitive values.
        space: Whose it is: the same text in two spaces is two keys.
        whole: With them, if it has any; else empty. Of such a key nothing is kept once its execution is erased.
        before: As version 0.1.0 may have kept it, by the references that it had for them.
    """

    text: str
    space: KeySpace
    whole: str = ""
    before: tuple[str, ...] = ()


class Executions(Protocol[T_co]):
    """Executions of one kind."""

    async def begin(self) -> T_co | None:
        """Begin a new one; None if another process was quicker."""

    async def go_on(self, known: StoredExecution) -> T_co | None:
        """Go on with one whose process has died; None if another was quicker."""

    async def is_same(self, known: StoredExecution) -> bool:
        """Whether what is asked for now is what one was begun for: a key belongs to one thing."""

    async def can_go_on(self, known: StoredExecution) -> bool:
        """Whether a suspended one would get further now."""

    async def may_be_operators(self, known: StoredExecution) -> bool:
        """Whether one that version 0.1.0 has kept, which didn't say who began it, is what an operator asks for now."""


async def once(
    store: ProgramStore,
    principal: str,
    key: Key | None,
    executions: Executions[T],
    *,
    origin: str,
    under_way: Mapping[str, anyio.Event],
    retry_failed: bool = False,
    request: RequestContext = NO_REQUEST,
) -> T | StoredExecution:
    """A new execution, to be driven; or, of a key that has been used, the one that has it, when it has come to a stop.

    Args:
        store: Keeps them.
        principal: Whose key it is.
        key: The key, or None: then it is new every time.
        origin: Whose program that is: the same steps are allowed to do other things as another's.
        executions: Begins them.
        under_way: Those of this process, until they are left.
        retry_failed: Whether another may take the place of one that has failed.
        request: The request that it is for.

    Raises:
        BridgeError: `bad_key`, `key_conflict`, `erased`, `unknown_run`: one that was made for another's run; as
            `executions`.
    """
    if key is not None and not (0 < len(key.text) <= MAX_KEY_CHARS and key.text.isprintable()):
        raise BridgeError("bad_key", f"An idempotency key is 1 to {MAX_KEY_CHARS} printable characters.")
    waited_for = ""
    while True:
        known = None if key is None else await _known(store, principal, key)
        if key is None or known is None:
            if (begun := await executions.begin()) is not None:
                return begun
            continue
        if known.status == ERASED:
            raise BridgeError(
                "erased",
                f"What the execution {known.id} has given was erased.",
                hint="It isn't done again under this key; use another one to have it done anew.",
                execution=known.id,
            )
        if known.origin != origin or not await executions.is_same(known):
            raise BridgeError(
                "key_conflict",
                f"The idempotency key {key.text!r:.100} belongs to another program, another context or other code.",
                hint="Use a key for one thing only.",
            )
        if key.space == "operator" != known.key_space and not await executions.may_be_operators(known):
            raise BridgeError(
                "key_conflict",
                f"The idempotency key {key.text!r:.100} is of the execution {known.id}, which was begun before agents'"
                " keys and operators' were kept apart: perhaps by an agent.",
                hint=f"mcp-bridge execution show {known.id} has what it did. Use another key to have it done anew.",
                execution=known.id,
            )
        status = standing(known)
        if (ended := under_way.get(known.id)) is not None or status == "running":
            waited_for = known.id
            request.release_slot()
            await (ended.wait() if ended else anyio.sleep(POLL_SECONDS))
        elif status == "interrupted" or (status == "suspended" and await executions.can_go_on(known)):
            if (taken := await executions.go_on(known)) is not None:
                return taken
        elif (
            retry_failed
            and status not in UNENDED | {"success"}
            and known.id not in {waited_for, execution_of(key.text)}
        ):
            # Whoever releases it, or comes now, begins the next attempt: one of them. Who has waited for this one is
            # told of this one: or as many would try again, one after the other, as have asked at once. A key that was
            # made for a run is that run's alone.
            await store.release_key(known)
        else:
            return known


async def _known(store: ProgramStore, principal: str, key: Key) -> StoredExecution | None:
    """The execution that a key has; or else the one that version 0.1.0 has kept under it, or that it was made for.

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
