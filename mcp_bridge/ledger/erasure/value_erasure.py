"""Erasure of one sensitive value: what is behind a reference, in every execution that had it, code that spells it too.

The executions stay readable otherwise. An entry of the log says that it was done.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.erasure.execution_erasure import Erased, append_erasure, empty_journal, running_of
from mcp_bridge.ledger.log.log_payloads import Erasure
from mcp_bridge.ledger.storage.blind_indexes import FORGETTABLE, OF_REQUEST, key_mac, subject_macs
from mcp_bridge.ledger.storage.old_references import erase_value
from mcp_bridge.ledger.storage.sealed_rows import label_of, open_sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.ledger.log.transaction import Transaction
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.sealing import DataKey

_REFERENCE = "vault://ref/"
"""Followed by an id, replaces a value that was written out in code."""


async def erase_behind(
    database: Database, reference: str, *, by: str, reason: str | None, under_way: Callable[[str, str], bool]
) -> Erased:
    """Erase a value. Returns when nothing of it is left in the file.

    Args:
        database: The store.
        reference: The id of a reference to the value.
        by: Who asks for it.
        reason: Why, or None.
        under_way: As `execution_erasure.erase`.

    Raises:
        BridgeError: As `execution_erasure.erase`.
    """
    erasure = Erasure("reference", by, reason, time.time(), ())
    erased = await database.transact(lambda transaction: _erase_behind(transaction, reference, erasure, under_way))
    await empty_journal(database)
    return erased


def _erase_behind(
    transaction: Transaction, reference: str, erasure: Erasure, under_way: Callable[[str, str], bool]
) -> Erased:
    """Erase the value behind a reference, with all references to it, in every execution."""
    found = _equal(transaction, reference)
    if not found:
        raise BridgeError(
            "nothing_to_erase",
            f"No value is stored for the reference {reference!r:.80}.",
            hint="mcp-bridge execution show prints references, as vault://ref/….",
        )
    if running := running_of(transaction, dict.fromkeys(execution for execution, _, _ in found), under_way):
        raise BridgeError(
            "execution_running",
            f"{running[0]} is being executed now, and knows the value.",
            hint="Erase it when it has ended.",
            executions=running,
        )
    for execution, name, value in found:
        _forget_value(transaction, execution, name, str(value))
    for text in {str(value) for _, _, value in found}:
        _forget_subject(transaction, subject_macs(transaction.log.master, text)[1])
    tokens = [erase_value(transaction.connection, transaction.log, execution, name) for execution, name, _ in found]
    append_erasure(transaction, replace(erasure, references=sorted(tokens)))
    return Erased((), len({execution for execution, _, _ in found}))


def _equal(transaction: Transaction, reference: str) -> list[tuple[str, str, Any]]:
    """Executions with references, and the values behind them, that equal the value behind one reference."""
    do, master = transaction.connection.execute, transaction.log.master
    values = (
        "SELECT execution, id, value, wrapped FROM reference_values JOIN data_keys USING (execution)"
        " WHERE value IS NOT NULL AND wrapped IS NOT NULL"
    )
    keys: dict[str, DataKey] = {}

    def opened(execution: str, name: str, sealed: bytes, wrapped: bytes) -> Any:
        if execution not in keys:
            keys[execution] = master.open(execution, wrapped)
        return open_sealed(keys[execution], sealed, label_of("value", execution, name))

    named = [(opened(*row), len(row[2])) for row in do(f"{values} AND id = ?", (reference,)).fetchall()]
    found = []
    for length in {length for _, length in named}:
        wanted = {(type(value), value) for value, _ in named}
        # Sealing keeps lengths: most other values needn't be opened.
        for row in do(f"{values} AND length(value) = ?", (length,)):
            value = opened(*row)
            if (type(value), value) in wanted:
                found.append((row[0], row[1], value))
    return found


def _forget_value(transaction: Transaction, execution: str, name: str, text: str) -> None:
    """Remove from an execution's row what tells about a value: the request's MAC, and the value written out in code."""
    do = transaction.connection.execute
    row = do(
        "SELECT bundle, wrapped, principal, executions.key FROM executions JOIN data_keys ON id = execution"
        " WHERE id = ?",
        (execution,),
    ).fetchone()
    if row is None:
        return
    master = transaction.log.master
    key, label = master.open(execution, row[1]), label_of(execution, "bundle")
    kept, found_by = open_sealed(key, row[0], label), row[3] or ""
    is_made_of_it = found_by.startswith(FORGETTABLE)
    if kept is not None and isinstance(code := kept["bundle"].get("code"), str) and text in code:
        is_made_of_it = is_made_of_it or found_by.startswith(OF_REQUEST)
        kept["bundle"]["code"] = code.replace(text, _REFERENCE + name)
    if is_made_of_it and kept is not None:
        # By its key as it is shown, without the value, its starter can still resume it.
        found_by = key_mac(master, row[2], kept["key"], kept.get("space", ""))
    do(
        "UPDATE executions SET request = '', program = CASE kind WHEN 'script' THEN '' ELSE program END,"
        " key = ?, bundle = ? WHERE id = ?",
        (found_by or None, None if kept is None else key.seal(json.dumps(kept).encode(), label), execution),
    )
    transaction.authenticate(("executions", "id = ?", (execution,)))


def _forget_subject(transaction: Transaction, subject: str) -> None:
    """Remove the MACs of an erased name, on which guesses could be tested. No data is found by it any more."""
    do, master = transaction.connection.execute, transaction.log.master
    for execution, wrapped in do("SELECT execution, wrapped FROM data_keys WHERE subject = ?", (subject,)).fetchall():
        mac = master.mac("data_keys", execution, "", wrapped)
        do("UPDATE data_keys SET subject = '', mac = ? WHERE execution = ?", (mac, execution))
    do("DELETE FROM holders WHERE subject = ?", (subject,))
