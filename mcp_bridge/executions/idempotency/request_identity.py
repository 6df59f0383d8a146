"""The identity of a request under an idempotency key: a MAC, by which it is recognised without being stored."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.kernel.values import canonical
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.secrets.value_references import fill_in, ids_of, renamed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution
    from mcp_bridge.policy.secrets.known_values import Scalar
    from mcp_bridge.sandbox.languages import Language


class Keys(NamedTuple):
    """The keys of the MACs.

    Attributes:
        now: The key of new MACs, derived from the master key.
        before: The key of version 0.1.0, for the MACs that it stored; None if it stored none.
    """

    now: bytes
    before: bytes | None = None


class ProgramIdentity:
    """The identity of a program and its context.

    References count as their values: a repeated request may have other references to them.

    Args:
        keys: The keys of the MACs.
        program: The program's hash; or, if it contains references, the program with their values.
        context: The context as JSON, with references.
        values: The values behind the context's references, by the ids of the references.

    Attributes:
        mac: The MAC, in hex; empty before `load`.
    """

    def __init__(self, keys: Keys, program: Any, context: Any, values: Mapping[str, Scalar]) -> None:
        self._keys = keys
        self._program = program
        self._context = context
        self._values = values
        self.mac = ""

    async def load(self) -> ProgramIdentity:
        """Compute the MAC."""
        self.mac = await off_loop(self._context, self._mac, self._keys.now)
        return self

    def _mac(self, key: bytes) -> str:
        return _mac(key, canonical({"program": self._program, "context": fill_in(self._context, self._values)}))

    async def is_of(self, known: StoredExecution, store: ProgramStore) -> bool:
        """Whether an execution was started for an equal request, by the MAC that is stored with it.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        if known.request == self.mac:
            return True
        if self._keys.before is None:
            return False
        # Version 0.1.0 computed the MAC over the execution's own references.
        own = ids_of(await store.values(known.id))
        context = await off_loop(self._context, renamed, self._context, self._values, own)
        request = {"program": self._program, "context": context}
        return known.request == await off_loop(context, lambda: _mac(self._keys.before or b"", canonical(request)))


def script_macs(
    keys: Keys, code: str, session: str | None = None, requirements: Sequence[str] = (), language: Language = "python"
) -> tuple[str, ...]:
    """The MACs of a script's code; the first is the one to store. A program's MAC never equals one of these.

    Args:
        keys: The keys of the MACs.
        code: The code.
        session: What identifies the session of a cell: in another one, the same code is another request.
        requirements: The packages that are asked for, in their normal form: with others it is another request.
        language: What the code is written in: in another language, the same text is another request.
    """
    data = b"script\0" + code.encode() if session is None else f"cell\0{session}\0{code}".encode()
    if requirements:
        data = f"packages\0{' '.join(requirements)}\0".encode() + data
    if language != "python":
        data = language.encode() + b"\0" + data
    return tuple(_mac(key, data) for key in keys if key is not None)


def _mac(key: bytes, data: bytes) -> str:
    return hmac.digest(key, data, "sha256").hex()
