"""Compiles a tool's signature: the JSON Schema of its arguments, and the validation of JSON into typed values.

Arguments are validated strictly, as JSON: a string is no number, and a number no string. So the function gets the same
values that the policy has checked; lax validation would turn the string "1000", which a rule has seen, into 1000.
Dates, enumerations, UUIDs and other types without a JSON equivalent are passed as strings.
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

from mcp_bridge.near_names import nearest
from mcp_bridge.registered.declaring import bad_tool, base_function, parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.registered.declaring import Declaration

# How many faults a message lists (a fault that isn't listed costs another call), how many of one kind at one place (the
# rows of a list are one place), and how many are examined.
_FAULTS_NAMED = 20
_FAULTS_ALIKE = 3
_FAULTS_SEEN = 200

# Of more faults, the first are parsed from pydantic's text, which is produced in a tenth of the time.
_FAULTS_LISTED = 1000

# Above this, a float no longer determines an integer.
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
    """Invalid arguments; the message names the parameters, and never a value, which may be a secret."""


class Schema(GenerateJsonSchema):
    """JSON Schema without the titles that repeat every name: models pay for them."""

    # A default that JSON can't encode is left out.
    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment]

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002, D102
        return False


class Arguments:
    """The compiled parameters of a tool.

    Attributes:
        schema: Their JSON Schema, an object.
    """

    def __init__(self, declaration: Declaration, hints: dict[str, Any]) -> None:
        """Compile a signature.

        Raises:
            BridgeError: `bad_tools`: an annotation has no JSON equivalent.
        """
        params = parameters(declaration)
        adapter, schema = _compiled(declaration, params, hints)
        self.schema: dict[str, Any] = schema
        self._validate = adapter.validator.validate_json

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Validate arguments and return the function's keyword arguments.

        Args:
            arguments: JSON values by the schema's names.

        Raises:
            ArgumentsError: They are invalid.
            Exception: Any exception of the operator's validators.
        """
        text = _json(arguments)
        try:
            return self._validate(text, strict=True)  # type: ignore[no-any-return]
        except ValidationError as error:
            first = error
        if _faults(first)[0]["type"] == "json_invalid":
            raise ArgumentsError(_TOO_DEEP)  # json has just encoded it, so this is the only possible fault
        # In JSON, 2.0 is the integer 2 (JSON Schema 2020-12 validation §6.1.1; RFC 8785 even writes it so).
        whole = _json(_integers(arguments))
        if whole != text:
            try:
                return self._validate(whole, strict=True)  # type: ignore[no-any-return]
            except ValidationError as error:
                first = error
        raise ArgumentsError(self._message(first))

    def _message(self, error: ValidationError) -> str:
        alike: Counter[tuple[Any, ...]] = Counter()
        messages: list[str] = []
        for fault in _faults(error):
            kind = (fault["type"], *(part for part in fault["loc"] if isinstance(part, str)))
            alike[kind] += 1
            if alike[kind] <= _FAULTS_ALIKE and len(messages) < _FAULTS_NAMED:
                messages.append(self._fault(fault))
        return "; ".join(messages if len(messages) == error.error_count() else [*messages, "…"])

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
    """The first faults. If there are very many, which pydantic takes a second to list at once, without the inputs."""
    if error.error_count() <= _FAULTS_LISTED:
        return list(error.errors(include_url=False, include_context=False)[:_FAULTS_SEEN])
    text = error.json(include_url=False, include_context=False, include_input=False)
    faults: list[Mapping[str, Any]] = []
    at = 1
    while len(faults) < _FAULTS_SEEN:
        fault, end = _DECODER.raw_decode(text, at)
        faults.append(fault)
        at = end + 1
    return faults


def resolved_hints(declaration: Declaration) -> dict[str, Any]:
    """The function's resolved annotations; the return type has the key `return`.

    Raises:
        BridgeError: `bad_tools`: one can't be resolved.
    """
    function = base_function(declaration.function)
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001 - annotations as text are code of any kind
        hint = "What an annotation names must be importable when the module is, not only under TYPE_CHECKING."
        raise bad_tool(
            declaration.location,
            f"an annotation of tool {declaration.name!r} can't be resolved: {type(error).__name__}: {error}",
            hint if isinstance(error, NameError) else None,
            tool=declaration.name,
        ) from None


def schema_of(adapter: TypeAdapter[Any], *, serialized: bool = False) -> dict[str, Any]:
    """The JSON Schema of a type, for validation or for serialization."""
    return adapter.json_schema(schema_generator=Schema, mode="serialization" if serialized else "validation")


def _compiled(
    declaration: Declaration, params: list[inspect.Parameter], hints: dict[str, Any]
) -> tuple[TypeAdapter[dict[str, Any]], dict[str, Any]]:
    for param in params:
        if typing_extensions.get_origin(hints.get(param.name)) in {typing.Unpack, typing_extensions.Unpack}:
            raise bad_tool(
                declaration.location,
                f"tool {declaration.name!r} unpacks a TypedDict into **{param.name}",
                "Write its keys as keyword-only parameters.",
                tool=declaration.name,
                parameter=param.name,
            )
    try:
        adapter = TypeAdapter(_collector(params, hints))
        return adapter, schema_of(adapter)
    except Exception as error:  # noqa: BLE001 - a foreign type's own schema hooks may raise anything
        culprit, cause = _culprit(params, hints, error)
        raise bad_tool(
            declaration.location,
            f"tool {declaration.name!r} can't take {culprit}: {first_line(cause)}",
            "Annotate it with what JSON can carry, a pydantic model, a dataclass or the like.",
            tool=declaration.name,
        ) from None


def _culprit(params: list[inspect.Parameter], hints: dict[str, Any], error: Exception) -> tuple[str, Exception]:
    for param in params:
        try:
            schema_of(TypeAdapter(_collector([param], hints)))
        except Exception as cause:  # noqa: BLE001 - as above
            return repr(param.name), cause
    return "its arguments", error


def _collector(given: list[inspect.Parameter], hints: dict[str, Any]) -> Any:
    """A function with the same parameters that returns them.

    Pydantic validates a call by making it. The tool itself is called later: its exceptions must not be taken for
    invalid arguments. With keyword-only parameters, every argument is returned by name.
    """

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    params = []
    for param in given:
        kind = param.kind if param.kind is param.VAR_KEYWORD else param.KEYWORD_ONLY
        params.append(param.replace(kind=kind, annotation=hints.get(param.name, param.empty)))
    # The last one is **kwargs, if present: keyword-only parameters need no order.
    vars(collect)["__signature__"] = inspect.Signature(params)
    collect.__annotations__ = {param.name: hints[param.name] for param in given if param.name in hints}
    return collect


def first_line(error: Exception) -> str:
    """The part of pydantic's message that isn't advice."""
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
    """The value with whole floats converted to integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict):
        return {key: _integers(item) for key, item in value.items()}
    return [_integers(item) for item in value] if isinstance(value, list) else value
