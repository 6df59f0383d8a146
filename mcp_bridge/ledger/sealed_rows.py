"""What is kept encrypted in rows beside the log, each value bound to its place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_bridge.ledger.sealing import damaged
from mcp_bridge.ledger.transaction import Seal

if TYPE_CHECKING:
    import sqlite3

    from mcp_bridge.ledger.sealing import DataKey, MasterKey

LIBRARY = "programs/"
"""With a principal's name, the execution under whose key the programs are kept that it has saved."""


def label_of(*words: str) -> bytes:
    """Where a value belongs: it opens nowhere else."""
    # A text that is no Unicode is refused when it is written as a parameter of its own.
    return "/".join(words).encode(errors="surrogatepass")


def seal(execution: str, what: str, value: Any) -> Seal:
    """A value, to be kept encrypted for an execution as JSON."""
    return Seal(execution, json.dumps(value).encode(), label_of(execution, what))


def seal_bytes(execution: str, what: str, data: bytes) -> Seal:
    """Bytes, to be kept encrypted for an execution."""
    return Seal(execution, data, label_of(execution, what))


def open_sealed(key: DataKey | None, sealed: bytes | None, label: bytes) -> Any:
    """A value that was kept so; None where there is none, or its key is destroyed.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    if key is None or sealed is None:
        return None
    try:
        return json.loads(key.open(sealed, label))
    except ValueError as exc:
        raise damaged(str(exc)) from None


def check_sealed(connection: sqlite3.Connection, master: MasterKey) -> None:
    """Open whatever is kept encrypted beside the log, to see that it can be.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    for query, labels in _SEALED:
        for execution, wrapped, *columns in connection.execute(query):
            names, values = columns[: -len(labels)], columns[-len(labels) :]
            if wrapped is None:
                if any(value is not None for value in values):
                    raise damaged(f"{execution} is erased, and something of it is there")
                continue
            key = master.open(execution, wrapped)
            for label, value in zip(labels, values, strict=True):
                if value is not None:
                    key.open(value, label.format(execution, *names).encode())


_SEALED = (
    (
        "SELECT id, wrapped, bundle, state, record FROM executions LEFT JOIN data_keys ON id = execution",
        ("{0}/bundle", "{0}/state", "{0}/record"),
    ),
    (
        "SELECT execution, wrapped, effect, question, decision FROM approvals LEFT JOIN data_keys USING (execution)",
        ("{0}/question/{1}", "{0}/decision/{1}"),
    ),
    (
        "SELECT execution, wrapped, id, value FROM reference_values LEFT JOIN data_keys USING (execution)",
        ("value/{0}/{1}",),
    ),
    (
        "SELECT execution, wrapped, principal, name, data FROM programs"  # noqa: ISC004
        " LEFT JOIN data_keys ON execution = 'programs/' || principal",
        ("program/{1}/{2}",),
    ),
)
"""Of each table: an execution, its key, what else is in the labels, and what is sealed; and the labels."""
