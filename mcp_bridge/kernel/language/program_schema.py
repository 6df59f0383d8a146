"""The program format, defined once: the tables that the validator reads and the published JSON Schema is made from.

The fragments use a small part of JSON Schema (draft 2020-12), all of which `faults` understands: `type`, `enum`,
`minLength`, `maxLength`, `minimum`, `exclusiveMinimum`, `maximum`, `minItems`, `maxItems`, `items`, `properties`,
`required`, `additionalProperties: false`, `anyOf`. A step's fragment is chosen by its `type`.
"""

import functools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from mcp_bridge.kernel.values import canonical

Json = dict[str, Any]

MAX_STEPS = 100_000
MAX_COUNT = 10**12
MAX_NAME_CHARS = 200
MAX_PROMPT_CHARS = 1 << 20
MAX_ATTEMPTS = 1000
MAX_SECONDS = 10 * 366 * 86400


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


def _optional(fragment: Json) -> Json:
    """The fragment with null, which stands for a missing field."""
    if "anyOf" in fragment:
        return {"anyOf": [*fragment["anyOf"], {"type": "null"}]}
    if "enum" in fragment:
        return fragment | {"enum": [*fragment["enum"], None]}
    return fragment | {"type": [fragment["type"], "null"]}


_NAME: Json = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS}
_TEXT: Json = {"type": "string", "maxLength": MAX_PROMPT_CHARS}
_FULL_TEXT: Json = _TEXT | {"minLength": 1}
_COUNT: Json = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
_AT_LEAST_ONE: Json = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}
_SECONDS: Json = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS}
_DELAY: Json = {"type": "number", "minimum": 0, "maximum": MAX_SECONDS}
_OBJECT: Json = {"type": "object"}
_BOOLEAN: Json = {"type": "boolean"}
_REFERENCE: Json = {"type": "string", "minLength": 2, "maxLength": MAX_NAME_CHARS}

_COMPENSATE: Json = {
    "type": "object",
    "properties": {"tool": _NAME, "args": _OBJECT},
    "required": ["tool"],
    "additionalProperties": False,
}
_RETRY: Json = {
    "type": "object",
    "properties": {
        "schedule": {"type": "array", "items": _DELAY, "minItems": 1, "maxItems": MAX_ATTEMPTS},
        "max_attempts": {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS},
        "delay_seconds": _DELAY,
        "multiplier": {"type": "number", "minimum": 1, "maximum": 1000},
        "max_delay_seconds": _DELAY,
    },
    "required": [],
    "additionalProperties": False,
}

FIELDS: dict[str, tuple[Json, Any]] = {
    "id": (_NAME, None),
    "type": (_NAME, None),
    "on_error": ({"type": "string", "enum": ["fail", "skip", "retry"]}, "fail"),
    "max_retries": ({"type": "integer", "minimum": 0, "maximum": MAX_ATTEMPTS}, 3),
    "retry": (_optional(_RETRY), None),
    "timeout_seconds": (_optional(_SECONDS), None),
    "compensate": (_optional(_COMPENSATE), None),
    "is_terminal": (_BOOLEAN, False),
    "next_step": (_optional(_NAME), None),
    "output_key": (_optional(_NAME), None),
    "prompt": (_FULL_TEXT, None),
    "system": (_optional(_TEXT), None),
    "allowed_outputs": (_optional({"type": "array", "items": {"type": "string"}, "minItems": 1}), None),
    "on_timeout": ({"type": "string", "enum": ["fail", "fallback"]}, "fail"),
    "parse": (_optional({"enum": ["json"]}), None),
    "tool": (_NAME, None),
    "args": (_OBJECT, {}),
    "condition": (_FULL_TEXT, None),
    "then": (_optional(_NAME), None),
    "otherwise": (_optional(_NAME), None),
    "parallel_steps": ({"type": "array", "minItems": 1, "maxItems": MAX_STEPS}, []),
    "max_concurrency": (_optional(_AT_LEAST_ONE), None),
    "message": (_FULL_TEXT, None),
    "details": ({}, None),
    "seconds": (_optional({"anyOf": [_DELAY, _REFERENCE]}), None),
    "event": (_optional(_NAME), None),
    "over": ({"anyOf": [{"type": "array"}, _REFERENCE]}, None),
    "as": (_NAME, "item"),
    "step": (_OBJECT, None),
    "program": ({"anyOf": [_NAME, _OBJECT]}, None),
    "context": (_OBJECT, {}),
}
"""Every field of every type of step: its fragment and its default."""

_EFFECT = ("on_error", "max_retries", "retry", "timeout_seconds", "output_key")
_FLOW = ("is_terminal", "next_step")


class StepType(NamedTuple):
    """What a step of one type must and may have besides `id` and `type`.

    Attributes:
        required: Names of fields.
        optional: Names of fields.
        one_of: Names of which at least one must be given (and not null).
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    one_of: tuple[str, ...] = ()


TYPES: dict[str, StepType] = {
    "tool": StepType(("tool",), ("args", "parse", "compensate", *_EFFECT, *_FLOW)),
    "llm": StepType(("prompt",), ("system", "allowed_outputs", "on_timeout", "parse", *_EFFECT, *_FLOW)),
    "condition": StepType(("condition",), ("then", "otherwise", *_EFFECT, *_FLOW), ("then", "otherwise")),
    "parallel": StepType(("parallel_steps",), ("max_concurrency", *_EFFECT, *_FLOW)),
    "approval": StepType(("message",), ("details", "otherwise", "timeout_seconds", "output_key", *_FLOW)),
    "wait": StepType(
        (), ("seconds", "event", "timeout_seconds", "on_error", "output_key", *_FLOW), ("seconds", "event")
    ),
    "map": StepType(("over", "step"), ("as", "max_concurrency", *_EFFECT, *_FLOW)),
    "program": StepType(("program",), ("context", *_EFFECT, *_FLOW)),
}

PARALLEL_TYPES = ("tool", "llm")
"""Steps that may stand inside a parallel step."""

MAP_TYPES = ("tool", "llm", "program")
"""Steps that may be the body of a map step."""

PROGRAM: dict[str, tuple[Json, Any]] = {
    "name": ({"type": "string", "maxLength": MAX_NAME_CHARS}, "unnamed"),
    "description": (_TEXT, ""),
    "version": ({"type": "string", "maxLength": MAX_NAME_CHARS}, "1.0"),
    "steps": ({"type": "array", "minItems": 1, "maxItems": MAX_STEPS}, None),
    "max_steps": (_optional(_COUNT), None),
    "max_stalled_steps": (_optional(_COUNT), None),
    "max_tokens": (_optional(_COUNT), None),
}


Place = Literal["program", "parallel", "map"]
"""Where a step stands: in the list of a program, inside a parallel step, or as the body of a map step."""


@functools.cache
def step_fragment(kind: str, place: Place = "program") -> Json:
    """The fragment for a step of this type, without the steps inside it. Don't change it.

    A field that belongs to another type may be there with its default value, since some programs write whole records.
    A step inside another has no flow of its own, and the body of a map step needs no id.
    """
    spec = TYPES[kind]
    own = {"id", *spec.required, *spec.optional} - set(_FLOW if place != "program" else ())
    properties: Json = {"type": {"enum": [kind]}}
    for name, (fragment, default) in FIELDS.items():
        if name in own:
            properties[name] = fragment
        elif name != "type":
            properties[name] = {"enum": [None] if default is None else [default, None]}
    required = ["type", *([] if place == "map" else ["id"]), *spec.required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def json_schema() -> Json:
    """The JSON Schema (draft 2020-12) of a program: it accepts what the validator finds no fault of form in.

    It doesn't have what no schema can say: targets that exist, unique ids, valid conditions and references, known
    programs, how deep programs nest.
    """
    places: dict[Place, tuple[str, ...]] = {"program": tuple(TYPES), "parallel": PARALLEL_TYPES, "map": MAP_TYPES}
    definitions: Json = {}
    for place, kinds in places.items():
        for kind in kinds:
            definitions[f"{place}_{kind}"] = _published(kind, place)

    def steps_of(place: Place) -> Json:
        return {"oneOf": [{"$ref": f"#/$defs/{place}_{kind}"} for kind in places[place]]}

    parallel = definitions["program_parallel"]["properties"]
    parallel["parallel_steps"] = parallel["parallel_steps"] | {"items": steps_of("parallel")}
    definitions["program_map"]["properties"]["step"] = steps_of("map")
    properties = {name: fragment for name, (fragment, _) in PROGRAM.items()}
    properties["steps"] = properties["steps"] | {"items": steps_of("program")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A program of mcp-code-bridge",
        "type": "object",
        "properties": properties,
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _published(kind: str, place: Place) -> Json:
    fragment = step_fragment(kind, place)
    properties = dict(fragment["properties"])
    if "program" in TYPES[kind].required:
        properties["program"] = {"anyOf": [_NAME, {"$ref": "#"}]}
    if "retry" in TYPES[kind].optional:
        properties["retry"] = properties["retry"] | {"dependentSchemas": {"schedule": {"maxProperties": 1}}}
    published: Json = fragment | {"properties": properties}
    if one_of := TYPES[kind].one_of:
        given = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in one_of]
        published["oneOf" if kind == "wait" else "anyOf"] = given
    return published


# --- faults of form ---------------------------------------------------------------------------------------------------

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_OFTEN_MEANT = {
    "input": "args",
    "arguments": "args",
    "params": "args",
    "name": "id",
    "else": "otherwise",
    "next": "next_step",
    "timeout": "timeout_seconds",
}


def faults(value: Any, fragment: Json, path: str) -> Iterator[Fault]:
    """Where a normal value departs from a fragment."""
    if "anyOf" in fragment:
        if not any(next(faults(value, option, path), None) is None for option in fragment["anyOf"]):
            wanted = " or ".join(_described(option) for option in fragment["anyOf"] if option != {"type": "null"})
            yield Fault(path, "bad_type", f"{_shown(value)} should be {wanted}")
        return
    if "type" in fragment and not _is(value, fragment["type"]):
        yield Fault(path, "bad_type", f"{_shown(value)} should be {_described(fragment)}")
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
            yield Fault(where, "unknown_field", "there is no such field" + _nearest(name, properties))


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


def _nearest(name: str, names: Json) -> str:
    import difflib  # noqa: PLC0415  (few programs have a fault)

    meant = _OFTEN_MEANT.get(name)
    close = [meant] if meant in names else difflib.get_close_matches(name[:MAX_NAME_CHARS], names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
