"""Idempotency keys. An agent's key and the same key of an operator are two keys: each has its space.

A program that a script starts without a key has one of the script's id and the call's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.policy.secrets.value_references import fill_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcp_bridge.ledger.storage.blind_indexes import KeySpace
    from mcp_bridge.ledger.storage.execution_store import ProgramStore
    from mcp_bridge.policy.secrets.known_values import Scalar

MAX_KEY_CHARS = 1000
"""Longest idempotency key."""

MAX_OLD_TEXTS = 1000
"""Most texts by which version 0.1.0 may have stored one key: one for each reference to the values in it."""


def program_key(script: str, call: str | None) -> str | None:
    """The idempotency key of a program that a script's call starts without one.

    So a script that is run again from its record joins the program that it started, instead of starting another one. A
    script without a key has such keys too: it is given one when it is suspended.

    Args:
        script: The script's execution.
        call: The call's id; None for a call without one, whose program has no key.
    """
    return None if call is None else f"{script}/{call}"


class Key(NamedTuple):
    """An idempotency key.

    Attributes:
        text: The key as the client chose it, with references for sensitive values.
        space: The key's space: the same text in two spaces is two keys.
        whole: The text with its sensitive values; empty if it has none. Nothing of such a key is stored any more once
            its execution is erased.
        before: The texts by which version 0.1.0 may have stored it, with its references to the values.
    """

    text: str
    space: KeySpace
    whole: str = ""
    before: tuple[str, ...] = ()


async def whole_key(
    key: Key,
    project: Callable[[Any], Awaitable[Any]],
    values_behind: Callable[[Any], Mapping[str, Scalar]],
    old: ProgramStore | None = None,
) -> Key:
    """An idempotency key with both of its texts: the displayed one, and the one with sensitive values that is searched.

    Args:
        key: The key as a client sent it: with references, which differ the next time, or with values.
        project: Replaces sensitive values in a text by references.
        values_behind: Returns the values behind the references in a text.
        old: The store, if version 0.1.0 has stored keys in it.
    """
    behind = values_behind(key.text)
    whole = str(fill_in(key.text, behind))
    projected = await project(whole)
    if projected == key.text == whole:
        return key
    before = [key.text] if behind and old is not None else []
    for name, value in behind.items():
        if old is not None:
            known = await old.references_to(value)
            before = [text.replace(name, other) for text in before for other in known][:MAX_OLD_TEXTS]
    return Key(str(projected), key.space, whole, tuple(before))
