"""Converts a tool's return value to plain JSON: the schema of the return annotation, and the conversion.

A result that doesn't match its annotation is passed on and logged: the tool has done its work, and an error would make
the caller believe that it hadn't. Only results that JSON can't encode are refused.
"""

from __future__ import annotations

import logging
import math
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from mcp_bridge.downstream.catalog.schema_types import resolve
from mcp_bridge.downstream.catalog.tool_results import is_wrapped
from mcp_bridge.registered.declaring import bad_tool
from mcp_bridge.registered.pending import PENDING
from mcp_bridge.registered.signatures import first_line, schema_of

if TYPE_CHECKING:
    from mcp_bridge.registered.declaring import Declaration

logger = logging.getLogger(__name__)

MAX_RESULT_BYTES = 8 << 20
"""The maximum size of a result, in bytes of JSON."""

# The maximum depth on the channel to a sandbox, less that of the message around the result.
_MAX_DEPTH = 48

_KEY_SHOWN = 60

_JSON = (Any, object, str, int, float, bool, dict, list, type(None))

_AS_IT_IS = frozenset({str, bool, type(None)})

# Python can't convert integers of more than 4,300 digits to text.
_MAX_BITS = 14_000


class ResultError(ValueError):
    """A result that JSON can't encode; the message names the part."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self._problem = problem
        self._path: list[str] = []

    def within(self, part: str | int) -> ResultError:
        """The same fault, with the path extended by an enclosing part."""
        self._path.append(f"[{part}]" if isinstance(part, int) else f"[{part[:_KEY_SHOWN]!r}]")
        return self

    def __str__(self) -> str:
        return f"result{''.join(reversed(self._path))} {self._problem}"


class Results:
    """The compiled return type of a tool.

    Attributes:
        schema: The JSON Schema of the result, always an object. A type that isn't an object is described as its
            property `result`, as SDKs do (`downstream.catalog.tool_results.is_wrapped`). Values are not wrapped.
    """

    def __init__(self, declaration: Declaration, hints: dict[str, Any], max_bytes: int = MAX_RESULT_BYTES) -> None:
        """Compile a return annotation.

        Raises:
            BridgeError: `bad_tools`: it has no JSON equivalent.
        """
        self._name = declaration.name
        self._max_bytes = max_bytes
        hint = hints.get("return", Any)
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(Any if hint is NoReturn else hint)
            self.schema = _as_object(schema_of(adapter, serialized=True))
        except Exception as error:  # noqa: BLE001 - a foreign type's own schema hooks may raise anything
            raise bad_tool(
                declaration.location,
                f"tool {declaration.name!r} can't return what it is annotated with: {first_line(error)}",
                "Annotate what JSON can carry, a pydantic model, a dataclass or the like, or leave the annotation out.",
                tool=declaration.name,
            ) from None
        self._adapter = None if _is_json(hint) else adapter

    def plain(self, value: Any) -> Any:
        """A copy of the result in JSON's own types: later changes by the tool have no effect.

        Keys of dictionaries must be strings, unless the return annotation declares a key type that pydantic serializes
        as a string.

        Raises:
            ResultError: JSON can't encode it, or it is too large.
            Exception: Any exception of the operator's serializers.
        """
        if self._adapter is not None and not isinstance(value, Iterator):
            value = self._dumped(self._adapter, value)
        value = _plain(value, 0)
        try:
            size = len(to_json(value))
        except PydanticSerializationError:
            raise ResultError("holds a lone surrogate, which is not Unicode") from None
        if size > self._max_bytes:
            raise ResultError(f"has {size} bytes as JSON; the limit is {self._max_bytes}")
        return value

    def _dumped(self, adapter: TypeAdapter[Any], value: Any) -> Any:
        try:
            return adapter.serializer.to_python(value, mode="json", by_alias=True, warnings="error")
        except PydanticSerializationError as error:
            mismatch = error
        except ValueError as error:
            raise _unserializable(error) from None
        try:
            dumped = adapter.serializer.to_python(value, mode="json", by_alias=True, warnings=False)
        except (PydanticSerializationError, ValueError) as error:
            raise _unserializable(error) from None
        kind = str(mismatch).partition("\n")[0]
        logger.warning("tool %r returned something other than its annotation says (%s)", self._name, kind)
        return dumped


def _unserializable(error: Exception) -> ResultError:
    return ResultError(f"is not JSON: {first_line(error)}")


def _plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is int:
        if value.bit_length() <= _MAX_BITS:
            return value
        raise ResultError("is an integer of more digits than JSON is written with")
    if kind is float:
        if math.isfinite(value):
            return value
        raise ResultError(f"is {value}, which JSON doesn't have")
    if depth > _MAX_DEPTH:
        raise ResultError(f"is nested more than {_MAX_DEPTH} deep, or holds itself")
    if isinstance(value, dict):
        return {_key(key): _part(key, item, depth) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_part(index, item, depth) for index, item in enumerate(value)]
    return _plain(_leaf(value), depth + 1)


def _part(key: str | int, value: Any, depth: int) -> Any:
    if type(value) in _AS_IT_IS:
        return value
    try:
        return _plain(value, depth + 1)
    except ResultError as error:
        raise error.within(key) from None


def _key(key: Any) -> str:
    if type(key) is str:
        return key
    if isinstance(key, str):
        return str(key.value if isinstance(key, Enum) else key)
    raise ResultError(f"has the key {repr(key)[:_KEY_SHOWN]}; keys are texts in JSON")


def _leaf(value: Any) -> Any:
    """Serialize other types by pydantic's rules: models, dataclasses, dates, enumerations, sets."""
    if value is PENDING:
        raise ResultError("is PENDING, which a tool must return alone and not inside of something")
    if isinstance(value, Iterator):
        raise ResultError(f"is a {type(value).__name__}; a list is needed")
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError:
        raise ResultError(f"is a {type(value).__name__}, which JSON can't carry") from None
    except ValueError as error:
        raise _unserializable(error) from None


def _is_json(hint: Any) -> bool:
    """Whether values of this type are plain JSON, so that nothing needs to be serialized."""
    if any(hint is known for known in _JSON):
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        return args[:1] == (str,) and _is_json(args[1])
    if origin is list or origin is typing.Union or isinstance(hint, types.UnionType):
        return all(_is_json(arg) for arg in args)
    return False


def _as_object(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with an object at its root, as MCP requires."""
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    reference = inner.get("$ref")
    whole = {**(resolve(schema, reference) or {}), **definitions} if isinstance(reference, str) else schema
    if whole.get("type") == "object" and not is_wrapped(whole):
        return whole
    return {"type": "object", "properties": {"result": inner}, "required": ["result"], **definitions}
