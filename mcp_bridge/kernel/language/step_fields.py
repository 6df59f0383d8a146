"""The fields of programs and of every type of step: what each may be, its default, and to which steps it belongs.

They are fragments of JSON Schema (draft 2020-12), of which they use a small part. `format_faults` understands all of
it: `type`, `enum`, `minLength`, `maxLength`, `minimum`, `exclusiveMinimum`, `maximum`, `minItems`, `maxItems`, `items`,
`properties`, `required`, `additionalProperties: false`, `anyOf`. A step's fragment is chosen by its `type`.
"""

import functools
from typing import Any, Literal, NamedTuple

Json = dict[str, Any]

MAX_STEPS = 100_000
MAX_COUNT = 10**12
MAX_NAME_CHARS = 200
MAX_PROMPT_CHARS = 1 << 20
MAX_ATTEMPTS = 1000
MAX_SECONDS = 10 * 366 * 86400


def _optional(fragment: Json) -> Json:
    """The fragment with null, which stands for a missing field."""
    if "anyOf" in fragment:
        return {"anyOf": [*fragment["anyOf"], {"type": "null"}]}
    if "enum" in fragment:
        return fragment | {"enum": [*fragment["enum"], None]}
    return fragment | {"type": [fragment["type"], "null"]}


NAME: Json = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS}
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
    "properties": {"tool": NAME, "args": _OBJECT},
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
    "id": (NAME, None),
    "type": (NAME, None),
    "on_error": ({"type": "string", "enum": ["fail", "skip", "retry"]}, "fail"),
    "max_retries": ({"type": "integer", "minimum": 0, "maximum": MAX_ATTEMPTS}, 3),
    "retry": (_optional(_RETRY), None),
    "timeout_seconds": (_optional(_SECONDS), None),
    "compensate": (_optional(_COMPENSATE), None),
    "is_terminal": (_BOOLEAN, False),
    "next_step": (_optional(NAME), None),
    "output_key": (_optional(NAME), None),
    "prompt": (_FULL_TEXT, None),
    "system": (_optional(_TEXT), None),
    "allowed_outputs": (_optional({"type": "array", "items": {"type": "string"}, "minItems": 1}), None),
    "on_timeout": ({"type": "string", "enum": ["fail", "fallback"]}, "fail"),
    "parse": (_optional({"enum": ["json"]}), None),
    "tool": (NAME, None),
    "args": (_OBJECT, {}),
    "condition": (_FULL_TEXT, None),
    "then": (_optional(NAME), None),
    "otherwise": (_optional(NAME), None),
    "parallel_steps": ({"type": "array", "minItems": 1, "maxItems": MAX_STEPS}, []),
    "max_concurrency": (_optional(_AT_LEAST_ONE), None),
    "message": (_FULL_TEXT, None),
    "details": ({}, None),
    "seconds": (_optional({"anyOf": [_DELAY, _REFERENCE]}), None),
    "event": (_optional(NAME), None),
    "over": ({"anyOf": [{"type": "array"}, _REFERENCE]}, None),
    "as": (NAME, "item"),
    "step": (_OBJECT, None),
    "program": ({"anyOf": [NAME, _OBJECT]}, None),
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
