"""Calls in which there is nothing to hide, to resolve or to put in: one look says so, and says it of no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.policy.redaction.patterns import NAMES, ProjectionConfig
from mcp_bridge.policy.redaction.projection import PLAIN_CONTAINERS, Projector
from mcp_bridge.policy.rules import schema_defaults
from mcp_bridge.policy.rules.globs import ToolNames
from mcp_bridge.policy.rules.schema_defaults import is_plain, with_defaults
from mcp_bridge.policy.secrets.value_references import MemoryReferences
from mcp_bridge.policy.secrets.vault import Secrets

TOOL = ToolNames("shop", "pay", "shop", "pay")
CARD = "4242424242424242"


def projector():
    references = MemoryReferences()
    made = Projector(Secrets(), references, ProjectionConfig(patterns=NAMES).compiled())
    return made, references.put("a value")


TEXTS = st.sampled_from(
    [
        "",
        "a",
        "step",
        CARD,
        f"card {CARD}",
        "vault://",
        "vault://secret/x",
        "[REDACTED]",
        "a@example.com",
        "+47 22 33 44 55",
    ]
)
LEAVES = st.one_of(
    TEXTS, st.text(max_size=20), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), st.just(int(CARD))
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)


@given(arguments=st.dictionaries(TEXTS, VALUES, max_size=4), referred=st.booleans())
def test_what_is_plain_is_the_same_for_everybody(arguments, referred):
    made, reference = projector()
    if referred:
        arguments["reference"] = ["x", {reference: f"before {reference}"}]
    if made.is_plain(arguments):
        assert not referred
        assert made.trace(arguments) is arguments
        for projection in (made.named, made.judged, made.tool, made.person):
            assert projection(arguments, TOOL) is arguments


@pytest.mark.parametrize(
    "arguments",
    [{"a": CARD}, {CARD: 1}, {"a": int(CARD)}, {"a": [{"b": "vault://secret/x"}]}, {"vault://ref/" + "a" * 16: 1}],
    ids=str,
)
def test_what_is_to_be_hidden_or_resolved_is_not_plain(arguments):
    assert not projector()[0].is_plain(arguments)


def test_ordinary_arguments_are_plain_and_many_containers_are_not_looked_at():
    made, _ = projector()
    assert made.is_plain({"a": "text", "n": [1, 2.5, None, True]})
    assert made.is_plain({"a": [[] for _ in range(PLAIN_CONTAINERS - 2)]})
    assert not made.is_plain({"a": [[] for _ in range(PLAIN_CONTAINERS - 1)]})
    deep = []
    for _ in range(200):
        deep = [deep]
    assert not made.is_plain({"a": deep})


PROPERTIES = st.dictionaries(
    st.sampled_from(["a", "b", "default"]),
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "default": "x"},
            {"type": "object", "properties": {"c": {"type": "integer", "default": 1}}},
            {"type": "array", "items": {"$ref": "#/$defs/row"}},
            {"$ref": "#/$defs/row"},
        ]
    ),
    max_size=3,
)


@given(
    properties=PROPERTIES,
    row=st.sampled_from([{"type": "object"}, {"type": "object", "properties": {"d": {"default": 2}}}]),
    arguments=st.dictionaries(st.sampled_from(["a", "b", "default"]), VALUES, max_size=3),
)
def test_a_plain_schema_puts_nothing_in(properties, row, arguments):
    schema = {"type": "object", "properties": properties, "required": ["a"], "$defs": {"row": row}}
    if is_plain(schema):
        filled = with_defaults(schema, arguments)
        assert filled.arguments is arguments
        assert (filled.paths, filled.whole) == ((), True)
    assert is_plain(schema) == ("default" not in str(schema))


def test_large_schemas_are_neither_plain_nor_remembered(monkeypatch):
    monkeypatch.setattr(schema_defaults, "_plain", {})
    for large in ({"description": "x" * 10_000}, {"properties": {str(number): {} for number in range(200)}}):
        assert not is_plain(large)
    assert not schema_defaults._plain
    small = [{"title": str(number)} for number in range(schema_defaults._MAX_KNOWN + 1)]
    assert all(map(is_plain, small))
    assert 0 < len(schema_defaults._plain) <= schema_defaults._MAX_KNOWN
