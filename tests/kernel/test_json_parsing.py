"""Texts that are parsed as JSON."""

import pytest

from mcp_bridge.kernel.json_parsing import MAX_PARSED_CHARS, NotJSONError, parsed
from mcp_bridge.kernel.values import MAX_DEPTH, canonical, normal


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[{"n": 61.0}]', [{"n": 61}]),
        (" \n{}\t", {}),
        ("7", 7),
        ('"7"', "7"),
        ("null", None),
        ("1e2", 100),
        ("-0.0", 0),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ("```\n[1]\n```\n", [1]),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, eval("[" * MAX_DEPTH + "]" * MAX_DEPTH)),  # noqa: S307
    ],
)
def test_a_text_is_read_as_the_normal_value_that_it_is_the_json_of(text, value):
    found = parsed(text)
    assert found == value
    assert canonical(found) == canonical(normal(found))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "{'a': 1}",
        "[1,]",
        "[1] [2]",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e999",
        "9" * 101,
        "9" * 5000,
        '"\\ud800"',
        '{"\\ud800": 1}',
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "[" * 100_000,
        "\ufeff{}",
        "```",
        "``````",
        "```python\n[1]\n```",
        "[" + "1," * MAX_PARSED_CHARS + "1]",
    ],
)
def test_what_is_no_json_is_refused_in_the_same_way_whatever_is_wrong_with_it(text):
    with pytest.raises(NotJSONError) as caught:
        parsed(text)
    assert str(caught.value) == "", "parsers of different versions find different faults"
