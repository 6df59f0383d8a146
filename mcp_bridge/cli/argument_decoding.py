"""Decodes command-line arguments once: JSON, program files, abbreviated ids."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

SHORT_CHARS = 6
"""The minimum length of a displayed id."""

MAX_JSON_BYTES = 64 << 20

_SHOWN_IDS = 5


def json_value(text: str, option: str) -> Any:
    """The normalised JSON value of an option: JSON, `@FILE`, or `@-` for standard input.

    Raises:
        BridgeError: `bad_argument`, which names the option.
    """
    from mcp_bridge.governance.program_files import unique_names
    from mcp_bridge.kernel.values import ValueFaultError, normal

    source = text if text.startswith("@") else option
    if text.startswith("@"):
        text = _read(text[1:], option)
    try:
        return normal(json.loads(text, parse_constant=_no_constant, object_pairs_hook=unique_names), "value")
    except ValueFaultError as exc:
        raise BridgeError("bad_argument", f"{option}: {exc}.") from None
    except RecursionError:
        raise BridgeError("bad_argument", f"{option}: {source} nests too deep.") from None
    except ValueError as exc:
        raise BridgeError(
            "bad_argument",
            f"{option}: {'this' if source == option else source} is not JSON: {exc}.",
            hint=f"Write {option} '{{\"name\": 1}}', or {option} @FILE.",
        ) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def json_object(text: str | None, option: str) -> dict[str, Any]:
    """As `json_value`, for an object; empty if the option is missing.

    Raises:
        BridgeError: `bad_argument`.
    """
    value = {} if text is None else json_value(text, option)
    if not isinstance(value, dict):
        raise BridgeError(
            "bad_argument", f"{option}: it is no object.", hint=f"Write names and values: {option} '{{\"name\": 1}}'."
        )
    return value


def _read(name: str, option: str) -> str:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_JSON_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise BridgeError("bad_argument", f"{option}: {name} has more than {MAX_JSON_BYTES} bytes.")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text, or no file's name"
        hint = f"Name a file that is there: {option} @FILE; @- is standard input."
        raise BridgeError("bad_argument", f"{option}: {name or 'the file'} can't be read: {why}.", hint=hint) from None


async def execution(store: ProgramStore, prefix: str) -> StoredExecution:
    """The execution whose id has this prefix.

    Raises:
        BridgeError: `unknown_trace`, `ambiguous_id`.
    """
    typed = prefix.strip().lower()
    ids = await store.ids(typed, _SHOWN_IDS + 1) if typed else []
    row = await store.execution(typed if typed in ids else ids[0]) if ids else None
    if row is None:
        raise BridgeError(
            "unknown_trace", f"There is no execution {prefix[:100]!r}.", hint="`mcp-bridge execution list` has them."
        )
    if len(ids) > 1 and row.id != typed:
        listed = ", ".join(ids[:_SHOWN_IDS]) + (", …" if len(ids) > _SHOWN_IDS else "")
        raise BridgeError(
            "ambiguous_id", f"Several executions begin with {typed!r}: {listed}.", hint="Write more of it."
        )
    return row


async def short_id(store: ProgramStore, execution_id: str) -> str:
    """The shortest displayed prefix of an id that identifies the execution."""
    length = SHORT_CHARS
    while length < len(execution_id) and len(await store.ids(execution_id[:length], 2)) > 1:
        length += 1
    return execution_id[:length]
