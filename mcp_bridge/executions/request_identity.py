"""The identity of what is asked for under an idempotency key: a MAC, so that it is recognised and not kept."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.executions.idempotency_key import Key
from mcp_bridge.kernel.values import canonical
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.secrets.value_references import fill_in, ids_of, renamed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution
    from mcp_bridge.policy.secrets.value_references import Scalar


MAX_OLD_TEXTS = 1000
"""That one key may have been kept as by version 0.1.0: by that many references to the values in it."""


class Keys(NamedTuple):
    """Of the MACs.

    Attributes:
        now: Under the master key.
        before: That of version 0.1.0, which MACs of what it has kept are of; None where it has kept nothing.
    """

    now: bytes
    before: bytes | None = None


class ProgramIdentity:
    """A program and its context.

    References count as their values: whoever asks again may have other references for them.

    Args:
        keys: Of the MACs.
        program: The program's hash; or, if there are references in the program itself, all of it, without them.
        context: JSON, as it was given.
        values: Those behind the references in it, by their ids.
    """

    def __init__(self, keys: Keys, program: Any, context: Any, values: Mapping[str, Scalar]) -> None:
        self._keys = keys
        self._program = program
        self._context = context
        self._values = values
        self.mac = ""

    async def load(self) -> ProgramIdentity:
        """Compute its MAC."""
        self.mac = await off_loop(self._context, self._mac, self._keys.now)
        return self

    def _mac(self, key: bytes) -> str:
        return _mac(key, canonical({"program": self._program, "context": fill_in(self._context, self._values)}))

    async def is_of(self, known: StoredExecution, store: ProgramStore) -> bool:
        """Whether an execution was begun for it, by the MAC that is kept of what that was begun for.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        if known.request == self.mac:
            return True
        if self._keys.before is None:
            return False
        # Of version 0.1.0, by the references that it has had itself.
        own = ids_of(await store.values(known.id))
        context = await off_loop(self._context, renamed, self._context, self._values, own)
        asked = {"program": self._program, "context": context}
        return known.request == await off_loop(context, lambda: _mac(self._keys.before or b"", canonical(asked)))


def script_macs(keys: Keys, code: str) -> tuple[str, ...]:
    """MACs of a script's code; the first is the one to keep. With the kind of what is asked for: no program has one."""
    data = b"script\0" + code.encode()
    return tuple(_mac(key, data) for key in keys if key is not None)


async def whole_key(
    key: Key,
    project: Callable[[Any], Awaitable[Any]],
    values_behind: Callable[[Any], Mapping[str, Scalar]],
    old: ProgramStore | None = None,
) -> Key:
    """An idempotency key in two texts, where it has sensitive values in it: to be shown, and to be found by.

    Args:
        key: With the text as it was given: with references, which are others the next time, or values.
        project: Takes values out of a text.
        values_behind: What is behind the references in one.
        old: The store, if version 0.1.0 has kept keys in it.
    """
    behind = values_behind(key.text)
    whole = str(fill_in(key.text, behind))
    shown = await project(whole)
    if shown == key.text == whole:
        return key
    before = [key.text] if behind and old is not None else []
    for name, value in behind.items():
        if old is not None:
            known = await old.references_to(value)
            before = [text.replace(name, other) for text in before for other in known][:MAX_OLD_TEXTS]
    return Key(str(shown), key.space, whole, tuple(before))


def _mac(key: bytes, data: bytes) -> str:
    return hmac.digest(key, data, "sha256").hex()
