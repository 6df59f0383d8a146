"""The faults of a schema are those that its metaschema finds, whatever the schema's size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import Draft7Validator, Draft201909Validator, Draft202012Validator

from mcp_bridge.downstream.catalog import schema_faults as faults_module
from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, UncheckedError
from mcp_bridge.downstream.catalog.schema_faults import schema_faults

DIALECTS = [Draft7Validator, Draft202012Validator]
KEYWORDS = sorted(
    faults_module._keywords(Draft7Validator) | faults_module._keywords(Draft202012Validator) | {"nullable", "example"}
)
NAMES = st.sampled_from(["a", "b", "type", "items", "properties", "#", "a-1", "string", "object"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, 1, -1, 1.0, 0.5]) | NAMES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES, inner, max_size=2)
        | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=3)
    ),
    max_leaves=12,
)
SCHEMAS = st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=4)


@given(SCHEMAS, st.sampled_from(DIALECTS))
def test_the_faults_are_those_that_the_metaschema_finds(schema, kind):
    expected = {tuple(error.absolute_path) for error in kind(kind.META_SCHEMA).iter_errors(schema)}
    found = set(schema_faults(kind, schema, 1000))
    # Of a value that may be one thing or the other the metaschema doesn't say where in it the fault is.
    assert all(any(path[: len(whole)] == whole for whole in expected) for path in found)
    assert all(any(path[: len(whole)] == whole for path in found) for whole in expected)


@pytest.fixture
def asked(monkeypatch):
    """What metaschemas are asked about."""
    parts = []

    class Counting:
        META_SCHEMA = Draft202012Validator.META_SCHEMA

        def __init__(self, _meta):
            self._meta = Draft202012Validator(self.META_SCHEMA)

        def iter_errors(self, part):
            parts.append(part)
            return self._meta.iter_errors(part)

    keywords = faults_module._keywords(Draft202012Validator)
    monkeypatch.setattr(faults_module, "_keywords", lambda _kind: keywords)
    return Counting, parts


def test_the_metaschema_is_asked_about_faults_alone_however_large_the_schema(asked):
    kind, parts = asked
    schema = {"type": "object", "properties": {"a": {"anyOf": [{} for _ in range(60_000)]}, "b": {"required": True}}}
    assert schema_faults(kind, schema, 100) == [("properties", "b", "required")]
    assert parts == [{"required": True}]


def test_of_many_faults_as_many_are_found_as_are_enough(asked):
    kind, parts = asked
    schema = {"anyOf": [{"required": True} for _ in range(1000)]}
    assert len(schema_faults(kind, schema, 100)) == 101
    assert len(parts) == 101


def test_a_schema_that_nests_deeply_is_looked_through():
    schema = {"title": 1}
    for _ in range(5000):
        schema = {"not": schema}
    ((*path, last),) = schema_faults(Draft202012Validator, schema, 100)
    assert (path, last) == (["not"] * 5000, "title")


def test_a_large_schema_of_a_dialect_that_takes_long_makes_its_tool_unusable():
    schema = {
        "$schema": Draft201909Validator.META_SCHEMA["$id"],
        "properties": {f"p{number}": {"type": "string"} for number in range(5000)},
    }
    with pytest.raises(UncheckedError, match="too large for a schema of its dialect"):
        ArgumentCheck(schema).check({"p1": "a"})
