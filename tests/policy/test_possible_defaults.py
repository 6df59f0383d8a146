"""Where a schema may have a default that isn't put in. What that means to rules is in `gate/test_decided_as_sent.py`."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.policy.rules.possible_defaults import may_have_default
from mcp_bridge.policy.rules.schema_defaults import with_defaults

MODE = {"type": "object", "properties": {"mode": {"type": "string", "default": "rm"}}}
NONE = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"mode": {}}}, "mode"),
        (MODE, "mode"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"allOf": [MODE]}}}, "mode"),
        ({"$ref": "#/$defs/A%20b", "$defs": {"A b": MODE}}, "mode"),
        ({"properties": {"o": {"anyOf": [MODE, NONE]}}}, "o.mode"),
        ({"properties": {"o": {"anyOf": [MODE, NONE]}}}, "o"),
        ({"properties": {"rows": {"type": "array", "items": MODE}}}, "rows.0.mode"),
        ({"then": {"properties": {"mode": {"default": None}}}}, "mode"),
        ({"not": MODE}, "mode"),
        ({"then": MODE}, "other"),
        ({"then": {"properties": {"o": MODE}}}, "o"),
        ({"anyOf": [{"$ref": "#"}, {"properties": {"o": {"$ref": "#"}}}]}, "o.o.o.mode"),
        ({"properties": {"force": {"anyOf": [{"type": "boolean", "default": True}, NONE], "default": None}}}, "force"),
        ({"properties": {"force": {"anyOf": [{"type": "boolean", "default": True}, NONE], "default": 1}}}, "force"),
        ({"additionalProperties": {"type": "string", "default": ""}}, "mode"),
        ({"properties": {"o": {"unevaluatedProperties": {"default": ""}}}}, "o.mode"),
        ({}, "mode"),
    ],
)
def test_there_is_none_but_what_is_put_in(schema, path):
    assert not may_have_default(schema, tuple(path.split(".")))


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"else": MODE}, "mode"),
        ({"anyOf": [MODE, {"type": "object"}]}, "mode"),
        (
            {"anyOf": [{"$ref": "#"}, {"then": {"properties": {"o": {"$ref": "#"}, "mode": {"default": 1}}}}]},
            "o.o.mode",
        ),
        ({"properties": {"o": {"oneOf": [MODE, MODE]}}}, "o.mode"),
        ({"properties": {"o": {"properties": {"output": MODE}, "if": MODE}}}, "o.output.mode"),
        ({"properties": {"rows": {"prefixItems": [MODE]}}}, "rows.0.mode"),
        ({"properties": {"rows": {"items": [MODE]}}}, "rows.0.mode"),
        ({"unevaluatedProperties": MODE}, "x.mode"),
        ({"patternProperties": {"^m": {"default": 1}}}, "mode"),
        ({"additionalProperties": {"additionalProperties": {"then": MODE}}}, "x.y.mode"),
        ({"properties": {"mode": {"$ref": "https://example.com/mode"}}}, "mode"),
        ({"$recursiveRef": "#"}, "mode"),
    ],
)
def test_there_may_be_one_where_nothing_is_put_in(schema, path):
    assert may_have_default(schema, tuple(path.split(".")))


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{}] * 100_000},
        {"anyOf": [1] * 100_000},
        {"patternProperties": {str(number): {} for number in range(100_000)}},
        {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(100_000)}},
        {
            "patternProperties": {str(number): {"$ref": "#/$defs/A"} for number in range(1_000)},
            "$defs": {"A": {"patternProperties": {str(number): {} for number in range(1_000)}}},
        },
        {"$ref": "#/$defs/" + "A" * 1_000, "$defs": {"A" * 1_000: {}}},
    ],
)
def test_where_the_search_is_cut_there_may_be_one(schema):
    assert may_have_default(schema, ("a", "b", "c"))


SCHEMAS = st.recursive(
    st.sampled_from([{}, {"default": "x"}, {"type": "null"}, {"type": "object"}, {"$ref": "#"}, {"$ref": "#/$defs/A"}]),
    lambda inner: (
        st.dictionaries(st.sampled_from(["allOf", "anyOf", "oneOf"]), st.lists(inner, max_size=3), max_size=2)
        | st.dictionaries(st.sampled_from(["if", "then", "items"]), inner, max_size=2)
        | st.builds(lambda held: {"type": "object", "properties": held}, st.dictionaries(st.sampled_from("ab"), inner))
    ),
    max_leaves=12,
)


def defaults_in(schema, root, depth=0):
    """Whether there is a default anywhere of an object's member `a`, however far that is from certain."""
    if depth > 6 or not isinstance(schema, dict):
        return False
    here = schema.get("properties", {}).get("a", {})
    beside = [each for word in ("allOf", "anyOf", "oneOf") for each in schema.get(word, [])]
    beside += [schema[word] for word in ("if", "then") if word in schema]
    if "$ref" in schema:
        beside.append(root if schema["$ref"] == "#" else root.get("$defs", {}).get("A"))
    return has_default(here, root, depth + 1) or any(defaults_in(each, root, depth + 1) for each in beside)


def has_default(schema, root, depth):
    if depth > 6 or not isinstance(schema, dict):
        return False
    beside = [each for word in ("allOf", "anyOf", "oneOf") for each in schema.get(word, [])]
    beside += [schema[word] for word in ("if", "then") if word in schema]
    if "$ref" in schema:
        beside.append(root if schema["$ref"] == "#" else root.get("$defs", {}).get("A"))
    return "default" in schema or any(has_default(each, root, depth + 1) for each in beside)


@given(schema=SCHEMAS, named=SCHEMAS)
def test_every_default_is_put_in_or_may_be_there(schema, named):
    root = {**schema, "$defs": {"A": named}}
    if defaults_in(root, root):
        assert "a" in with_defaults(root, {}).arguments or may_have_default(root, ("a",))


def test_a_long_list_of_what_is_required_is_looked_through_once():
    names = [f"p{number}" for number in range(20_000)]
    schema = {
        "properties": {name: {} for name in names} | {"p0": {"default": 1}},
        "required": [*map("q".__add__, names), "p0"],
    }
    began = time.process_time()
    assert with_defaults(schema, {}, ()).arguments == {"p0": 1}
    assert with_defaults(schema, {"p0": 2}, ()).paths == ()
    # For each name, it would take half a minute.
    assert time.process_time() - began < 2
