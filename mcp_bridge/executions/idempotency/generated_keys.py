"""Suspended runs of scripts without a key: each is given one, `waits-` and its id.

The run is also found by its code: a request for the same code, with the same servers and without a key, goes on with
the suspended run and gets its result once; only then is the same code run anew. Of several suspended runs of the same
code, each is given once, those first that have ended or can go on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_bridge.executions.readiness import can_resume
from mcp_bridge.executions.status import UNFINISHED, effective_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mcp_bridge.ledger.storage.blind_indexes import KeySpace
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

MAX_ALIKE = 8
"""Most suspended runs of the same code without a key that are found by the code alone."""

_GENERATED = re.compile(r"waits-[0-9a-f]{16}")


def generated_key(execution: str) -> str:
    """The key for a run that is suspended without one."""
    return f"waits-{execution}"


def execution_of(key: str) -> str | None:
    """The execution that a key was generated for; None for a key that a client chose."""
    return key.removeprefix("waits-") if _GENERATED.fullmatch(key) else None


def if_generated(key: str | None) -> str | None:
    """The key, if it was generated; else None."""
    return key if key is not None and execution_of(key) is not None else None


def names_of_code(request: str, servers: Iterable[str] | None, files: Iterable[str] | None = None) -> list[str]:
    """The names under which suspended runs of the same code with the same servers are stored, one for each run.

    Args:
        request: The MAC of the code. No key that a client chooses equals one of these names.
        servers: The servers' configured names; None for all.
        files: The names of the inputs; None for all.
    """
    among = "" if servers is None else " ".join(sorted(servers))
    if files is not None:
        # No server has a name that begins so: a space ends one.
        among += "".join(f" /{name}" for name in sorted(files)) or " /"
    return [f"waits {number} {request} {among}" for number in range(MAX_ALIKE)]


async def suspended_run_of_code(
    store: ProgramStore,
    principal: str,
    space: KeySpace,
    names: list[str],
    is_meant: Callable[[StoredExecution], Awaitable[bool]],
) -> StoredExecution | None:
    """A run of the same code that is suspended, or whose result nobody has been given.

    Args:
        store: The executions.
        principal: The run's owner.
        space: The space of its key.
        names: As `names_of_code` returns them.
        is_meant: Whether the request can be for a run that has these names.
    """
    suspended = [known for known in await store.by_keys(principal, names, space) if await is_meant(known)]
    for known in suspended:
        if effective_status(known) != "suspended" or await can_resume(store, known):
            return known
    return suspended[0] if suspended else None


async def assign_generated_key(store: ProgramStore, execution: str, key: str, space: KeySpace) -> None:
    """Store the key that was generated for a run, under one of the names of its code if one is free."""
    stored = await store.execution(execution)
    if stored is None:
        return
    named = replace(stored, key=key, key_space=space)
    for name in names_of_code(stored.request, stored.bundle["servers"], stored.bundle.get("files")):
        if await store.assign_key(named, name):
            return
    await store.assign_key(named)


async def release_generated_key(store: ProgramStore, execution: str, status: str) -> bool:
    """Release the generated key of an ended run, so that a request for the same code starts a new run.

    A run that can go on, whatever its record says of its sandbox, keeps its key and is still found by its code.
    Otherwise all of its calls would be made again.

    Args:
        store: The executions.
        execution: The run's id.
        status: The status in its record.

    Returns:
        Whether the key was released.
    """
    stored = await store.execution(execution)
    if stored is None or stored.status in UNFINISHED or stored.status != status:
        return False
    await store.release_key(stored)
    return True
