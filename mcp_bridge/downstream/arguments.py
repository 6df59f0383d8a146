"""Arguments checked against a tool's schema on the host, before its server sees them."""

from __future__ import annotations

import json
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema.protocols import Validator

# Above this many bytes of JSON the server is left to judge: some keywords take quadratic time.
_CHECKED_BYTES = 256 * 1024

# Keywords looked at in one check, about a tenth of a second: the check runs where every execution is served, arguments
# come from scripts, and a schema that refers to itself twice takes exponential time. Then the server is left to judge.
_STEPS = 20_000

# `uniqueItems` takes quadratic time for objects.
_COMPARED_ITEMS = 100

# How many faults one message names.
_FAULTS_NAMED = 3

# How much of an offending value a message shows.
_VALUE_SHOWN = 80


class ArgumentError(ValueError):
    """Arguments that break the schema, or that no JSON can carry; the text names path and fault."""


class _TooManyStepsError(Exception):
    """A check took too long."""


_steps = threading.local()


class ArgumentCheck:
    """The compiled schema of one tool.

    A schema that is itself invalid, or that refers to another document, checks nothing: the server will
    judge. Regular expressions are left to the server as well: pattern and text would both come from parties
    that are not trusted, and Python's engine can be made to run for ever.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._validator: Validator | None = None
        self._compiled = False

    def check(self, arguments: dict[str, Any]) -> None:
        """Return if the arguments may be sent.

        Raises:
            ArgumentError: They may not; the message lists the first faults, each with its path.
        """
        size = json_size(arguments)
        if size > _CHECKED_BYTES:
            return
        if not self._compiled:
            self._validator = _compile(self._schema)
            self._compiled = True
        if self._validator is None:
            return
        _steps.left = _STEPS
        try:
            faults = _faults(self._validator, arguments)
        except (RecursionError, _TooManyStepsError):
            return  # a schema that refers to itself without end, or arguments that take too long
        except Exception as error:
            if type(error).__module__.startswith(("referencing", "jsonschema")):
                return  # a reference to another document: nothing is ever fetched
            raise
        if faults:
            raise ArgumentError("; ".join(faults))


def json_size(value: Any) -> int:
    """Bytes of the value as JSON.

    Raises:
        ArgumentError: No JSON can carry it: NaN, infinities, lone surrogates, depth, foreign types.
    """
    try:
        return len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except RecursionError:
        raise ArgumentError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ArgumentError("a string holds a lone surrogate, which is not Unicode text") from None
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"not JSON: {error}") from None


def _compile(schema: dict[str, Any]) -> Validator | None:
    try:
        from jsonschema.validators import validator_for  # noqa: PLC0415 - 100 ms that most commands never need
        from referencing import Registry  # noqa: PLC0415

        kind = validator_for(schema)
        kind.check_schema(schema)
        # The empty registry keeps jsonschema from fetching `$ref`s over the network.
        return _without_patterns(kind)(schema, registry=Registry())
    except Exception:  # noqa: BLE001 - any fault of the schema means: nothing is checked here
        return None


@cache
def _without_patterns(kind: Any) -> Any:
    from jsonschema.validators import extend  # noqa: PLC0415

    original = kind.VALIDATORS.get("additionalProperties")

    def nothing(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> Iterator[Any]:
        return iter(())

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if original is None or "patternProperties" in schema:
            return iter(())
        return iter(original(validator, value, instance, schema) or ())

    def unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(instance, list) or len(instance) > _COMPARED_ITEMS:
            return iter(())
        return iter(kind.VALIDATORS["uniqueItems"](validator, value, instance, schema) or ())

    ours = {
        "pattern": nothing,
        "patternProperties": nothing,
        "additionalProperties": additional,
        "unevaluatedProperties": nothing,
    }
    if "uniqueItems" in kind.VALIDATORS:
        ours["uniqueItems"] = unique
    return extend(kind, {name: _counted(keyword) for name, keyword in (kind.VALIDATORS | ours).items()})


def _counted(keyword: Any) -> Any:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _steps.left -= 1
        if _steps.left < 0:
            raise _TooManyStepsError
        return keyword(validator, value, instance, schema)

    return counted


def _faults(validator: Validator, arguments: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for error in validator.iter_errors(arguments):
        if len(found) == _FAULTS_NAMED:
            found.append("…")
            break
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        found.append(f"{path.lstrip('.') or 'arguments'}: {_told(error)}")
    return found


def _told(error: Any) -> str:
    """The validator's message, without the whole of a long value at its head."""
    message = str(error.message)
    shown = repr(error.instance)
    if len(shown) > _VALUE_SHOWN and message.startswith(shown):
        return f"{shown[:_VALUE_SHOWN]}…{message[len(shown) :]}"
    return message if len(message) <= 4 * _VALUE_SHOWN else f"{message[: 4 * _VALUE_SHOWN]}…"
