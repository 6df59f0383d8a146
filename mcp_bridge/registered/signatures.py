"""A tool's signature compiled: the JSON Schema of its arguments, and the check that turns JSON into typed values.

Arguments are checked strictly, as JSON: a text is no number, a number no text. What the policy has looked at is then
what the function gets; a lax check would make 1000 of the "1000" that a rule took for a text. Dates, enumerations,
UUIDs and the like, for which JSON has no types of their own, come as texts.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import typing_extensions
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from mcp_bridge.downstream.catalog.aliases import nearest
from mcp_bridge.registered.declaring import bad_tool, base_function, parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.registered.declaring import Declaration

# How many faults one message names (one that isn't told costs another call), how many of one kind at one place (rows of
# a list are one), and how many are looked at.
_FAULTS_NAMED = 20
_FAULTS_ALIKE = 3
_FAULTS_SEEN = 200

# Of more, the first are read from a text: that is made in a tenth of the time.
_FAULTS_LISTED = 1000

# Beyond this a float no longer tells which integer was meant.
_EXACT = 2**53

_JSON_KINDS: Final = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}

_TOO_DEEP = "the arguments are nested too deeply"

_DECODER = json.JSONDecoder()

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=True).encode


class ArgumentsError(ValueError):
    """Arguments that don't fit; the text names the parameters, never a value, which may be a secret by now."""


class Schema(GenerateJsonSchema):
    """JSON Schema without the titles that repeat every name: a model pays for them."""

    # A default that JSON can't carry is the function's own business.
    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment]

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002, D102
        return False


class Arguments:
    """One tool's arguments.

    Attributes:
        schema: Their JSON Schema, an object.
    """

    def __init__(self, declaration: Declaration, hints: dict[str, Any]) -> None:
        """Compile a signature.

        Raises:
            BridgeError: `bad_tools`: an annotation that JSON has no form for.
        """
        given = parameters(declaration)
        adapter, schema = _compiled(declaration, given, hints)
        self.schema: dict[str, Any] = schema
        self._validate = adapter.validator.validate_json

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The function's keyword arguments.

        Args:
            arguments: JSON values by the names in the schema.

        Raises:
            ArgumentsError: They don't fit.
            Exception: Whatever a validator of the operator's raises.
        """
        text = _json(arguments)
        try:
            return self._validate(text, strict=True)  # type: ignore[no-any-return]
        except ValidationError as error:
            first = error
        if _faults(first)[0]["type"] == "json_invalid":
            raise ArgumentsError(_TOO_DEEP)  # what json has just written can have no other fault
        # In JSON 2.0 is the integer 2 (JSON Schema 2020-12 validation §6.1.1; RFC 8785 even writes it so).
        whole = _json(_integers(arguments))
        if whole != text:
            try:
                return self._validate(whole, strict=True)  # type: ignore[no-any-return]
            except ValidationError as error:
                first = error
        raise ArgumentsError(self._told(first))

    def _told(self, error: ValidationError) -> str:
        alike: Counter[tuple[Any, ...]] = Counter()
        told: list[str] = []
        for fault in _faults(error):
            kind = (fault["type"], *(part for part in fault["loc"] if isinstance(part, str)))
            alike[kind] += 1
            if alike[kind] <= _FAULTS_ALIKE and len(told) < _FAULTS_NAMED:
                told.append(self._fault(fault))
        return "; ".join(told if len(told) == error.error_count() else [*told, "…"])

    def _fault(self, fault: Mapping[str, Any]) -> str:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).lstrip(".")
        kind, message = fault["type"], fault["msg"]
        if kind.startswith("missing"):
            return f"{path} is required"
        if kind == "unexpected_keyword_argument":
            known = list(self.schema.get("properties", {}))
            close = nearest(path, known)
            more = f"did you mean {', '.join(close)}?" if close else f"there are: {', '.join(known) or 'none'}"
            return f"there is no parameter {path[:100]!r} ({more})"
        message = message.removeprefix("Input ").removeprefix("Value error, ").removeprefix("Assertion failed, ")
        was = _JSON_KINDS.get(type(fault["input"]), "") if kind.endswith("_type") and "input" in fault else ""
        return f"{path}: {message}{f', not {was}' if was else ''}"


def _faults(error: ValidationError) -> list[Mapping[str, Any]]:
    """The first faults; of very many, which pydantic would take a second to list in one piece, without the inputs."""
    if error.error_count() <= _FAULTS_LISTED:
        return list(error.errors(include_url=False, include_context=False)[:_FAULTS_SEEN])
    text = error.json(include_url=False, include_context=False, include_input=False)
    found: list[Mapping[str, Any]] = []
    at = 1
    while len(found) < _FAULTS_SEEN:
        fault, end = _DECODER.raw_decode(text, at)
        found.append(fault)
        at = end + 1
    return found


def resolved_hints(declaration: Declaration) -> dict[str, Any]:
    """The function's annotations as types, the returned one under `return`.

    Raises:
        BridgeError: `bad_tools`: one can't be resolved.
    """
    function = base_function(declaration.function)
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001 - annotations as text are code of any kind
        hint = "What an annotation names must be importable when the module is, not only under TYPE_CHECKING."
        raise bad_tool(
            declaration.place,
            f"an annotation of tool {declaration.name!r} can't be resolved: {type(error).__name__}: {error}",
            hint if isinstance(error, NameError) else None,
            tool=declaration.name,
        ) from None


def schema_of(adapter: TypeAdapter[Any], *, serialized: bool = False) -> dict[str, Any]:
    """The JSON Schema of a type, as it is read or as it is written."""
    return adapter.json_schema(schema_generator=Schema, mode="serialization" if serialized else "validation")


def _compiled(
    declaration: Declaration, given: list[inspect.Parameter], hints: dict[str, Any]
) -> tuple[TypeAdapter[dict[str, Any]], dict[str, Any]]:
    for param in given:
        if typing_extensions.get_origin(hints.get(param.name)) in {typing.Unpack, typing_extensions.Unpack}:
            raise bad_tool(
                declaration.place,
                f"tool {declaration.name!r} unpacks a TypedDict into **{param.name}",
                "Write its keys as keyword-only parameters.",
                tool=declaration.name,
                parameter=param.name,
            )
    try:
        adapter = TypeAdapter(_collector(given, hints))
        return adapter, schema_of(adapter)
    except Exception as error:  # noqa: BLE001 - a foreign type's own schema hooks may raise anything
        culprit, cause = _culprit(given, hints, error)
        raise bad_tool(
            declaration.place,
            f"tool {declaration.name!r} can't take {culprit}: {first_line(cause)}",
            "Annotate it with what JSON can carry, a pydantic model, a dataclass or the like.",
            tool=declaration.name,
        ) from None


def _culprit(given: list[inspect.Parameter], hints: dict[str, Any], error: Exception) -> tuple[str, Exception]:
    for param in given:
        try:
            schema_of(TypeAdapter(_collector([param], hints)))
        except Exception as cause:  # noqa: BLE001 - as above
            return repr(param.name), cause
    return "its arguments", error


def _collector(given: list[inspect.Parameter], hints: dict[str, Any]) -> Any:
    """A function of the same parameters that gives them back.

    pydantic validates a call by making it. The tool's own call comes later: what it raises must not be taken for a
    fault of its arguments. With parameters that are all keyword-only every argument comes back by its name.
    """

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    params = []
    for param in given:
        kind = param.kind if param.kind is param.VAR_KEYWORD else param.KEYWORD_ONLY
        params.append(param.replace(kind=kind, annotation=hints.get(param.name, param.empty)))
    # The last is **kwargs if there is one: the rest need no order when all are keyword-only.
    vars(collect)["__signature__"] = inspect.Signature(params)
    collect.__annotations__ = {param.name: hints[param.name] for param in given if param.name in hints}
    return collect


def first_line(error: Exception) -> str:
    """The part of pydantic's complaint that isn't advice."""
    if isinstance(error, PydanticUserError):
        error = Exception(error.message)
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _json(arguments: dict[str, Any]) -> bytes:
    try:
        return _encode(arguments).encode()
    except RecursionError:
        raise ArgumentsError(_TOO_DEEP) from None
    except UnicodeEncodeError:
        raise ArgumentsError("a text holds a lone surrogate, which is not Unicode") from None
    except (TypeError, ValueError) as error:
        raise ArgumentsError(f"the arguments are not JSON: {error}") from None


def _integers(value: Any) -> Any:
    """The value with whole floats as integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict):
        return {key: _integers(item) for key, item in value.items()}
    return [_integers(item) for item in value] if isinstance(value, list) else value
