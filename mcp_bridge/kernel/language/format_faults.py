"""Faults of form in a program: where it departs from what its fields may be (`step_fields`), in words."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from mcp_bridge.kernel.language.step_fields import FIELDS, MAX_NAME_CHARS, Json
from mcp_bridge.kernel.values import canonical


class Fault(NamedTuple):
    """One mistake in a program.

    Attributes:
        path: Where: `steps[2].then`; empty for the program itself.
        code: Stable: `unknown_field`, `missing_field`, `bad_type`, `bad_value`, `unknown_step`, `duplicate_id`,
            `bad_condition`, `bad_reference`, `unknown_program`, `program_cycle`, `not_json`, `too_large`.
        message: What is wrong, and what would be right.
    """

    path: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_UNQUOTABLE = (dict, list, type(None))
"""What no quotes make a text of."""

_OFTEN_MEANT: dict[str, tuple[str, ...]] = {
    "input": ("args", "context"),
    "inputs": ("args", "context"),
    "arguments": ("args",),
    "params": ("args",),
    "parameters": ("args",),
    "name": ("id", "tool"),
    "if": ("condition",),
    "else": ("otherwise",),
    "next": ("next_step",),
    "goto": ("next_step",),
    "timeout": ("timeout_seconds",),
    "items": ("over",),
    "for_each": ("over",),
    "steps": ("parallel_steps", "step"),
    "retries": ("max_retries",),
    "question": ("message",),
    "duration": ("seconds",),
    "save_as": ("output_key",),
}
"""What is meant by names of other languages: of several, the first that the step may have, and hasn't."""


def faults(value: Any, fragment: Json, path: str) -> Iterator[Fault]:
    """Where a normal value departs from a fragment."""
    if "anyOf" in fragment:
        if not any(next(faults(value, option, path), None) is None for option in fragment["anyOf"]):
            wanted = " or ".join(_described(option) for option in fragment["anyOf"] if option != {"type": "null"})
            yield Fault(path, "bad_type", f"{_shown(value)} should be {wanted}")
        return
    if "type" in fragment and not _is(value, fragment["type"]):
        is_text = fragment["type"] in ("string", ["string", "null"])
        hint = ": write it in quotes" if is_text and not isinstance(value, _UNQUOTABLE) else ""
        yield Fault(path, "bad_type", f"{_shown(value)} should be {_described(fragment)}{hint}")
    elif "enum" in fragment and not any(value is option or _equal(value, option) for option in fragment["enum"]):
        options = ", ".join(str(option) for option in fragment["enum"] if option is not None)
        yield Fault(
            path, "bad_value", f"{_shown(value)} should be one of {options}" if options else "this has no place here"
        )
    elif isinstance(value, dict):
        yield from _object_faults(value, fragment, path)
    elif isinstance(value, list):
        yield from _list_faults(value, fragment, path)
    elif value is not None and not _within(value, fragment):
        yield Fault(path, "bad_value", f"{_shown(value)} should be {_described(fragment)}")


def _object_faults(value: Json, fragment: Json, path: str) -> Iterator[Fault]:
    properties: Json = fragment.get("properties", {})
    for name in fragment.get("required", ()):
        if name not in value:
            yield Fault(path, "missing_field", f"{name!r} is missing")
    for name, item in value.items():
        shown = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
        where = f"{path}.{shown}" if path else shown
        if name in properties:
            yield from faults(item, properties[name], where)
        elif "additionalProperties" in fragment:
            yield Fault(where, "unknown_field", "there is no such field" + _nearest(name, properties, value))


def _list_faults(value: list[Any], fragment: Json, path: str) -> Iterator[Fault]:
    count = len(value)
    least, most = fragment.get("minItems", 0), fragment.get("maxItems", count)
    if not least <= count <= most:
        wanted = f"at least {least}" if count < least else f"at most {most}"
        yield Fault(path, "bad_value", f"a list of {count} should have {wanted}")
    if "items" in fragment:
        for index, item in enumerate(value):
            yield from faults(item, fragment["items"], f"{path}[{index}]")


def _is(value: Any, names: str | list[str]) -> bool:
    kinds = [kind for name in ([names] if isinstance(names, str) else names) for kind in _PYTHON_TYPES[name]]
    return type(value) in kinds


def _equal(value: Any, option: Any) -> bool:
    return type(value) is type(option) and bool(value == option)


def _within(value: Any, fragment: Json) -> bool:
    if isinstance(value, str):
        return bool(fragment.get("minLength", 0) <= len(value) <= fragment.get("maxLength", len(value)))
    low, above, high = fragment.get("minimum"), fragment.get("exclusiveMinimum"), fragment.get("maximum")
    return (low is None or value >= low) and (above is None or value > above) and (high is None or value <= high)


def _described(fragment: Json) -> str:
    names = fragment.get("type", [])
    kinds = [name for name in ([names] if isinstance(names, str) else names) if name != "null"]
    text = " or ".join(
        ("an " if kind[0] in "aeiou" else "a ") + ("text" if kind == "string" else kind) for kind in kinds
    )
    bounds = [words.format(fragment[key]) for key, words in _BOUNDS.items() if key in fragment]
    return " ".join([text, " and ".join(bounds)]).rstrip()


_BOUNDS = {
    "minLength": "of at least {} character(s)",
    "maxLength": "of at most {} characters",
    "minimum": "of at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "of at most {}",
}


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value) if isinstance(value, str) else canonical(value).decode()
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


_SHOWN_CHARS = 60


def _nearest(name: str, properties: Json, given: Json) -> str:
    """The field that was meant: none that is there already, or that only steps of other types have."""
    import difflib  # noqa: PLC0415  (few programs have a fault)

    free = [each for each, fragment in properties.items() if each not in given and not _is_of_others(each, fragment)]
    close = [each for each in _OFTEN_MEANT.get(name, ()) if each in free]
    close = close or difflib.get_close_matches(name[:MAX_NAME_CHARS], free, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_of_others(name: str, fragment: Json) -> bool:
    """Whether a field may only have its default value, since it belongs to steps of other types."""
    default = FIELDS[name][1] if name in FIELDS else None
    return "enum" in fragment and all(option in (default, None) for option in fragment["enum"])
