"""What a flat schema accepts, its validator accepts too."""

import itertools

import pytest

from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, ArgumentError
from mcp_bridge.downstream.catalog.flat_schema import flat_schema

PROPERTIES = [
    {"type": "string"},
    {"type": "integer", "default": 3, "title": "N"},
    {"type": "number"},
    {"type": "boolean"},
    {"type": ["string", "null"], "description": "a text, or nothing"},
    {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    {"type": "array"},
    {"type": "object"},
    {},
]
VALUES = ["", "text", 0, 7, -1, 1.0, 1.5, True, False, None, [], [1], {}, {"a": 1}, 10**30]


def schema_of(described, **more):
    return {"type": "object", "properties": {"a": described, "b": {"type": "string"}}, **more}


def is_valid(schema, arguments):
    try:
        ArgumentCheck(schema).check(arguments)
    except ArgumentError:
        return False
    return True


@pytest.mark.parametrize("described", PROPERTIES, ids=str)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"required": ["a"]},
        {"additionalProperties": False, "required": ["a", "b"]},
        {"additionalProperties": True, "$schema": "http://json-schema.org/draft-07/schema#"},
        {"additionalProperties": {}, "$schema": "https://json-schema.org/draft/2020-12/schema"},
    ],
    ids=str,
)
def test_what_a_flat_schema_accepts_is_valid(described, more):
    schema = schema_of(described, **more)
    flat = flat_schema(schema)
    assert flat is not None
    accepted = 0
    for value, b, extra in itertools.product(VALUES, ({}, {"b": "x"}, {"b": 1}), ({}, {"c": 1})):
        for arguments in ({"a": value, **b, **extra}, {**b, **extra}):
            if flat.accepts(arguments):
                accepted += 1
                assert is_valid(schema, arguments), arguments
            elif is_valid(schema, arguments):
                # Of what is valid only this is left to the validator: a whole number that is written as a fraction.
                assert value == 1.0
                assert type(value) is float
    assert accepted


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array"},
        {"type": "object", "minProperties": 1},
        {"type": "object", "patternProperties": {}},
        {"type": "object", "allOf": [{"required": ["a"]}]},
        {"type": "object", "$ref": "#/$defs/x"},
        {"type": "object", "$schema": "http://json-schema.org/draft-04/schema#"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "required": [1]},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": []},
        *(
            schema_of(described)
            for described in (
                {"type": "string", "enum": ["x"]},
                {"type": "string", "pattern": "x"},
                {"type": "integer", "minimum": 0},
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "properties": {}},
                {"type": "str"},
                {"type": []},
                {"type": 1},
                {"const": 1},
                {"anyOf": []},
                {"anyOf": [{"type": "integer", "minimum": 1}]},
                {"anyOf": [{"type": "integer"}], "type": "integer"},
                {"anyOf": {"type": "integer"}},
                True,
            )
        ),
    ],
    ids=str,
)
def test_a_schema_that_says_more_is_left_to_the_validator(schema):
    assert flat_schema(schema) is None


async def test_a_schema_that_cannot_be_used_refuses_what_it_would_accept():
    check = ArgumentCheck({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False})
    await check.run({"a": "x"})
    await check.run({"a": "x"})
    assert check._flat is not None
    for arguments in ({"a": 1}, {"b": "x"}, {"a": "\ud800"}, {"a": float("nan")}):
        with pytest.raises(ArgumentError):
            await check.run(arguments)
