"""Converts Python values that JSON has no type for. Imported when a message could not be encoded."""

import os
import sys
import types

from mcp_bridge.wire.annotations import Any

_LISTED = (range, map, filter, zip, types.GeneratorType, *map(type, ({}.keys(), {}.values(), {}.items())))
"""Types that are encoded as arrays: they give items in a defined order."""

_WRITE = {
    "bytes": "; write value.decode() for text, or base64.b64encode(value).decode()",
    "Decimal": "; write float(value), or str(value)",
    "timedelta": "; write value.total_seconds(), or str(value)",
    "DataFrame": "; write value.to_dict('records')",
    "function": "; call it, and give what it returns",
    "PendingCall": ": the call was not awaited; write await before it",
    "coroutine": ": it was not awaited; write await before it",
}
"""Advice on types that have no unique JSON equivalent."""


def plain(value: Any) -> Any:
    """The JSON equivalent of a value, if it is unique: ISO 8601 for a date, text for a path, an array for a set.

    Raises:
        TypeError: There is none, or more than one; the message says what to write.
        RecursionError: It is nested too deeply, or contains itself.
    """
    # If a type's module isn't imported, no values of the type exist.
    planned = sys.modules.get("mcp_bridge.guest.values.planned_values")
    if planned is not None and type(value) is planned.Planned:
        return str(value)
    collections, enum = map(sys.modules.get, ("collections", "enum"))
    if enum is not None and isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if value - value != 0:
            raise TypeError(f"{value} is no JSON number; write None, or leave it out")
        return value
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=_order)
    listed: tuple[type[Any], ...] = (list, tuple, *_LISTED)
    if collections is not None:
        listed = (*listed, collections.deque)
    return [plain(inner) for inner in value] if isinstance(value, listed) else _of_class(value)


def _of_class(value: Any) -> Any:
    datetime, uuid = map(sys.modules.get, ("datetime", "uuid"))
    if datetime is not None and isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if uuid is not None and isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, type):
        raise TypeError(f"{value.__name__} is a class; write a value")
    if isinstance(value, os.PathLike) and isinstance(path := os.fspath(value), str):
        return path
    kind = type(value)
    if isinstance(fields := getattr(kind, "__dataclass_fields__", None), dict):
        return {name: plain(getattr(value, name)) for name in fields}
    if kind.__module__.partition(".")[0] in {"numpy", "pandas"} and hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(kind, "model_dump") and hasattr(kind, "model_fields"):
        return value.model_dump(mode="json")
    name = kind.__name__
    raise TypeError(f"a {name} is no JSON value{_WRITE.get(name, '; write text, a number, a list or a dict')}")


def _order(item: Any) -> tuple[str, Any]:
    """A sort key that orders a set's items equally in every process: running a script again makes the same calls."""
    return type(item).__name__, item if isinstance(item, (str, int, float)) else repr(item)
