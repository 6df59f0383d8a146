"""What isn't checked isn't called: a schema is held against all of the arguments, or the call is refused."""

import json
import threading
from decimal import Decimal

import anyio
import anyio.lowlevel
import pytest
from downstream_calls import call_tool
from hypothesis import example, given
from hypothesis import strategies as st
from servers.specs import faulty

from mcp_bridge.downstream.catalog import argument_check as arguments_module
from mcp_bridge.downstream.catalog.argument_check import MAX_STEPS, ArgumentCheck, ArgumentError, UncheckedError
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.errors import BridgeError

pytestmark = pytest.mark.timeout(120)

FORCE = {"properties": {"force": {"type": "boolean"}, "padding": {}}}


def fault(schema, arguments):
    with pytest.raises(ArgumentError) as caught:
        ArgumentCheck(schema).check(arguments)
    return caught.value


def unchecked(schema, arguments):
    error = fault(schema, arguments)
    assert isinstance(error, UncheckedError), error
    return str(error)


def wrong(schema, arguments):
    """Refused for what the arguments are."""
    error = fault(schema, arguments)
    assert not isinstance(error, UncheckedError), error
    return str(error)


# --- all faults at once ---

ZONES = {
    "properties": {
        "source_timezone": {"type": "string"},
        "time": {"type": "string"},
        "target_timezone": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
    },
    "required": ["source_timezone", "time", "target_timezone"],
}


@pytest.mark.parametrize("more", [{}, {"additionalProperties": False}], ids=["open", "closed"])
def test_every_fault_of_a_call_is_told_with_the_names_that_were_meant(more):
    told = wrong(ZONES | more, {"source": "UTC", "targetTimezone": "Asia/Tokyo", "time": 12, "days": 0})
    assert told.split("; ") == [
        "there is no parameter 'source' (did you mean source_timezone?)",
        "there is no parameter 'targetTimezone' (did you mean target_timezone?)",
        "time: 12 is not of type 'string'",
        "days: 0 is less than the minimum of 1",
        "arguments: 'source_timezone' is a required property",
        "arguments: 'target_timezone' is a required property",
    ]


def test_a_name_that_only_the_schema_allows_is_no_fault_by_itself():
    good = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "UTC"}
    ArgumentCheck(ZONES).check(good | {"format": "24h"})
    assert "no parameter 'format'" in wrong(ZONES | {"additionalProperties": False}, good | {"format": "24h"})
    for free in ({"additionalProperties": True}, {"patternProperties": {"^f": {}}}):
        assert "format" not in wrong(ZONES | free, {"format": "24h"})


EITHER = {"properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
WAYS = [{"required": ["id"]}, {"required": ["name"]}]


def test_what_is_needed_in_one_of_several_ways_is_told():
    assert wrong(EITHER | {"oneOf": WAYS}, {}) == "arguments: give one of: id; name"
    assert wrong(EITHER | {"anyOf": WAYS}, {}) == "arguments: give at least one of: id; name"
    assert wrong(EITHER | {"oneOf": WAYS}, {"id": 1, "name": "a"}) == "arguments: give only one of: id; name"
    nested = {"properties": {"rows": {"items": EITHER | {"oneOf": WAYS}}}}
    assert wrong(nested, {"rows": [{"id": 1}, {}]}) == "rows[1]: give one of: id; name"


def test_arguments_that_name_one_of_several_ways_are_told_what_is_wrong_with_it():
    ways = [
        {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
        {"$ref": "#/$defs/Named"},
    ]
    schema = {
        "oneOf": ways,
        "$defs": {"Named": {"properties": {"name": {"type": "string"}}, "required": ["name", "at"]}},
    }
    assert wrong(schema, {"name": "x"}) == "arguments: give one of: id; at"
    assert wrong(schema, {"id": "7"}) == "id: '7' is not of type 'integer'"
    assert wrong(schema, {"name": 7, "at": 1}) == "name: 7 is not of type 'string'"
    nullable = {"properties": {"a": {"anyOf": [EITHER | {"required": ["id"]}, {"type": "null"}]}}}
    assert wrong(nullable, {"a": {}}) == "a: give id"
    assert wrong(nullable, {"a": {"id": "7"}}) == "a.id: '7' is not of type 'integer'"
    plain = {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    assert wrong(plain, {"a": {}}) == "a: {} is not valid under any of the given schemas"


CAT = {"properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
DOG = {
    "properties": {"kind": {"enum": ["dog"]}, "bark": {"type": "string"}, "size": {"enum": ["s", "l"]}},
    "required": ["kind", "bark"],
}
PETS = {"$defs": {"cat": CAT, "dog": DOG}}


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
@pytest.mark.parametrize("more", [[], [{"type": "null"}]], ids=["two", "nullable"])
@pytest.mark.parametrize(
    ("pet", "told"),
    [
        ({"kind": "dog"}, "pet: 'bark' is a required property"),
        ({"kind": "dog", "bark": 1}, "pet.bark: 1 is not of type 'string'"),
        ({"kind": "dog", "bark": "w", "size": "x"}, "pet.size: 'x' is not one of ['s', 'l']"),
        ({"kind": "cat", "lives": "9"}, "pet.lives: '9' is not of type 'integer'"),
        ({"kind": "bird"}, "pet.kind: 'cat' was expected"),
    ],
)
def test_of_alternatives_that_a_constant_tells_apart_the_one_that_is_meant_is_told(keyword, more, pet, told):
    options = [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}, *more]
    assert wrong(PETS | {"properties": {"pet": {keyword: options}}}, {"pet": pet}) == told


LINK = {"properties": {"url": {"type": "string"}}, "required": ["url"]}


@pytest.mark.parametrize(
    ("pet", "told"),
    [
        ({"kind": "cot", "lives": 9}, "pet.kind: 'cat' was expected"),
        ({"kind": "cat", "lives": "9"}, "pet.lives: '9' is not of type 'integer'"),
    ],
)
@pytest.mark.parametrize("link", [LINK, {"anyOf": [{"properties": {"kind": {"const": "page"}}, "required": ["url"]}]}])
def test_an_alternative_without_the_constant_that_tells_the_others_apart_is_not_meant(pet, told, link):
    assert wrong(PETS | {"properties": {"pet": {"anyOf": [{"$ref": "#/$defs/cat"}, link]}}}, {"pet": pet}) == told


def test_a_constant_is_found_behind_references():
    kind = {"kind": {"$ref": "#/$defs/kind"}}
    dog = {"allOf": [{"properties": kind}], "required": ["kind", "bark"]}
    schema = {
        "$defs": {"kind": {"const": "dog"}, "dog": dog},
        "properties": {"pet": {"oneOf": [CAT, {"$ref": "#/$defs/dog"}]}},
    }
    assert wrong(schema, {"pet": {"kind": "dog"}}) == "pet: 'bark' is a required property"


async def test_of_a_part_of_the_arguments_the_others_are_not_missed():
    check = ArgumentCheck({"oneOf": [CAT, DOG]})
    assert await check.faults_of_part({"kind": "dog"}) == []
    assert await check.faults_of_part({"kind": "dog", "size": "x"}) == ["size: 'x' is not one of ['s', 'l']"]
    assert await ArgumentCheck(EITHER | {"oneOf": WAYS}).faults_of_part({}) == []
    assert await ArgumentCheck(EITHER | {"oneOf": WAYS}).faults_of_part({"id": "7"}) == [
        "id: '7' is not of type 'integer'"
    ]


def test_names_within_an_argument_are_told_with_those_that_were_meant():
    entity = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "entityType": {"type": "string"}},
        "required": ["name", "entityType"],
        "additionalProperties": False,
    }
    schema = {"properties": {"entities": {"type": "array", "items": entity}}}
    told = wrong(schema, {"entities": [{"name": "Ada", "entity_type": "person"}, {"nmae": "Ben"}]})
    assert "entities[0]: there is no name 'entity_type' (did you mean entityType?)" in told
    assert "entities[0]: 'entityType' is a required property" in told
    assert "entities[1]: there is no name 'nmae' (did you mean name?)" in told
    assert "entities[1]: 'name' is a required property" in told


def test_rows_that_are_wrong_alike_are_told_a_few_times_and_hide_nothing_else():
    schema = {"properties": {"rows": {"items": {"type": "integer"}}, "to": {"type": "string"}}}
    told = wrong(schema, {"rows": ["x"] * 100, "to": 5})
    assert told.count("rows[") == 3
    assert "to: 5 is not of type 'string'" in told
    assert told.endswith("; …")


async def test_some_arguments_of_a_call_are_checked_for_themselves():
    check = ArgumentCheck(ZONES | {"additionalProperties": False})
    assert await check.faults_of_part({"time": "12:00", "odd": 1}) == []
    assert await check.faults_of_part({"time": 12}) == ["time: 12 is not of type 'string'"]


# --- what only the server checks ---

A, B = ({"type": "string", "pattern": pattern} for pattern in ("^a", "^b"))
KEYED = {"properties": {"k": {"type": "string", "pattern": "^x"}}, "required": ["k"]}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"type": "string", "not": {"pattern": "^-"}}, ["ok", "-"], [1]),
        ({"not": A}, ["a", "b", 1], []),
        ({"not": {"not": A}}, ["a", "b"], [1]),
        ({"not": {"anyOf": [A, {"const": "c"}]}}, ["a", "b"], ["c"]),
        ({"not": {"anyOf": [{"const": "c"}, A]}}, ["a", "b"], ["c"]),
        ({"not": {"allOf": [A, {"maxLength": 3}]}}, ["abc", "abcd"], []),
        ({"not": {"enum": ["a"]}}, ["b"], ["a"]),
        ({"not": {"type": "integer", "format": "int32"}}, [1, "a"], []),
        ({"oneOf": [A, B]}, ["a1", "c"], [1]),
        ({"oneOf": [A, B, {"const": "c"}]}, ["a1", "c"], [1]),
        ({"oneOf": [A, {"const": "c"}, {"maxLength": 1}]}, ["abc"], ["c"]),
        ({"oneOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]}, ["1.2.3.4"], [1]),
        ({"not": {"oneOf": [A, {"maxLength": 3}]}}, ["abc", "abcd"], []),
        ({"anyOf": [A, {"type": "integer"}]}, ["a", "b", 1], [None]),
        ({"if": KEYED, "then": {"required": ["n"]}}, [{"k": "a"}, {"k": "a", "n": 1}, {}, {"k": 1}], []),
        ({"if": KEYED, "then": {"required": ["n"]}, "else": {"required": ["m"]}}, [{"k": "a", "m": 1}], [{"k": "a"}]),
        ({"if": KEYED, "else": {"required": ["m"]}}, [{"k": "a"}], [{}]),
        ({"not": {"if": KEYED, "then": True, "else": False}}, [{"k": "a"}], []),
        ({"contains": A, "maxContains": 1}, [["a", "b"], [1, "a"]], [[1], []]),
        ({"contains": A, "minContains": 2}, [["a", "b", 1]], [["a", 1]]),
        ({"contains": {"const": 1}, "maxContains": 1}, [[1]], [[1, 1]]),
        ({"not": {"contains": A}}, [["a"], [1]], []),
        ({"not": {"contains": A, "minContains": 0}}, [], [["a"], [1]]),
        ({"not": {"propertyNames": {"pattern": "^a"}}}, [{"b": 1}], [{}]),
        ({"not": {"dependentSchemas": {"k": KEYED}}}, [{"k": "a"}, {"k": 1}], [{}]),
        ({"not": {"properties": {"k": A}, "additionalProperties": B}}, [{"k": "b"}, {"l": "a"}], [{}]),
        ({"not": {"prefixItems": [A], "items": B}}, [["b"], [1]], [[]]),
        ({"not": {"$ref": "#/$defs/named"}}, ["a", 1], []),
        ({"oneOf": [{"$ref": "#/$defs/named"}, {"$ref": "#/$defs/named"}]}, ["a"], [1]),
        (
            {"if": KEYED, "then": {"properties": {"n": {}}}, "else": {"properties": {"m": {}}}}
            | {"unevaluatedProperties": False},
            [{"k": "a", "m": 1}, {"k": "a", "n": 1}, {"m": 1}],
            [{"n": 1}],
        ),
        (
            {"anyOf": [KEYED, {"properties": {"m": {}}}], "unevaluatedProperties": False},
            [{"k": "a"}, {"m": 1}],
            [{"k": "a", "o": 1}],
        ),
        ({"not": {"minimum": "5"}}, [1, 7], []),
        ({"not": {"description": None}}, [], [1]),
    ],
)
def test_what_depends_on_what_only_the_server_checks_is_left_to_it(schema, taken, refused):
    check = ArgumentCheck({"properties": {"v": schema}, "$defs": {"named": A}})
    for value in taken:
        check.check({"v": value})
    for value in refused:
        with pytest.raises(ArgumentError):
            check.check({"v": value})


def test_the_bounds_of_what_a_list_contains_are_those_of_newer_dialects():
    bounded = {"properties": {"v": {"contains": {"const": 1}, "maxContains": 1}}}
    assert "at most 1" in wrong(bounded, {"v": [1, 1]})
    ArgumentCheck({"$schema": DRAFT_7} | bounded).check({"v": [1, 1]})
    wrong({"$schema": DRAFT_7} | bounded, {"v": [2]})


DIGITS = st.integers(-(10**14), 10**14)
PLACES = st.integers(0, 12)


@given(DIGITS, PLACES, st.integers(1, 999))
@example(1999, 2, 1)
@example(435, 2, 1)
@example(29, 2, 1)
@example(7, 2, 1)
def test_a_multiple_is_one_of_the_numbers_as_they_are_written(digits, places, step):
    number, divisor = (json.loads(str(Decimal(each).scaleb(-places))) for each in (digits, step))
    check = ArgumentCheck({"properties": {"x": {"multipleOf": divisor}}})
    if digits % step:
        with pytest.raises(ArgumentError, match="is not a multiple of"):
            check.check({"x": number})
    else:
        check.check({"x": number})


@pytest.mark.parametrize("dialect", [DRAFT_7, "http://json-schema.org/draft-04/schema#"])
def test_a_multiple_of_any_size_is_told_in_every_dialect(dialect):
    for step, taken, refused in (
        (0.01, [0, 1e300, 5e300, 10**400], [5e-324, 0.001]),
        (5e-324, [1.7976931348623157e308, 5e-324], []),
        (3, [3.0, 10**400 - 1], [1e300, 3.5]),
        # What Python reads as an infinity is more than it knows: the server decides.
        (float("inf"), [0, 7], []),
    ):
        check = ArgumentCheck({"$schema": dialect, "properties": {"x": {"multipleOf": step}}})
        for value in [*taken, *(True, "text")]:
            check.check({"x": value})
        for value in refused:
            with pytest.raises(ArgumentError):
                check.check({"x": value})


# --- all of it ---


@pytest.mark.parametrize(
    "padding",
    ["x" * (300 << 10), "x" * (8 << 20), list(range(100_000)), {str(number): [number] for number in range(20_000)}],
    ids=["300 KB", "8 MB", "100,000 numbers", "20,000 objects"],
)
def test_large_arguments_are_checked_like_others(padding):
    assert "'true' is not of type 'boolean'" in wrong(FORCE, {"force": "true", "padding": padding})
    ArgumentCheck(FORCE).check({"force": True, "padding": padding})


def test_each_item_of_a_long_list_is_checked():
    schema = {"properties": {"x": {"items": {"type": "integer"}}}}
    assert "x[99999]" in wrong(schema, {"x": [1] * 99_999 + ["1"]})


def test_items_that_are_not_unique_are_found_however_many_there_are():
    schema = {"properties": {"x": {"uniqueItems": True}}}
    items = [{"n": number} for number in range(20_000)]
    ArgumentCheck(schema).check({"x": items})
    assert "non-unique" in wrong(schema, {"x": [*items, {"n": 7}]})


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, True], True),
        ([0, False], True),
        ([1, 1.0], False),
        ([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], False),
        ([[1], [True]], True),
        (["1", 1], True),
        ([None, None], False),
    ],
)
def test_equal_is_what_json_schema_calls_equal(items, unique):
    schema = {"properties": {"x": {"uniqueItems": True}}}
    if unique:
        ArgumentCheck(schema).check({"x": items})
    else:
        wrong(schema, {"x": items})


def test_names_told_by_an_expression_are_checked_where_that_is_bounded():
    schema = {"patternProperties": {"^force_[a-z]+$": {"type": "boolean"}}, "additionalProperties": False}
    ArgumentCheck(schema).check({"force_it": True})
    assert "not of type 'boolean'" in wrong(schema, {"force_it": "true"})
    assert wrong(schema, {"other": 1}) == "there is no parameter 'other'; other names match '^force_[a-z]+$'"
    record = {"properties": {"x": {"patternProperties": {"^(.*)$": {"type": "integer"}}}}}
    assert "not of type" in wrong(record, {"x": {"a": "1"}})


def test_a_name_that_no_expression_tells_is_told_with_the_one_that_was_meant():
    named = {"properties": {"path": {"type": "string"}}, "patternProperties": {"^x-": {}, "^y_": {}}}
    closed = named | {"additionalProperties": False}
    told = "there is no parameter 'pth' (did you mean path?); other names match '^x-' or '^y_'"
    assert wrong(closed, {"pth": "a", "x-a": 1}) == told
    assert "to: there is no name 'pth' (did you mean path?)" in wrong(
        {"properties": {"to": closed}}, {"to": {"pth": "a"}}
    )
    told = "there is no parameter 'pth' (did you mean path?); arguments: 'path' is a required property"
    assert wrong(named | {"required": ["path"]}, {"pth": "a", "x-a": 1}) == told


@pytest.mark.parametrize("expression", ["^(a+)+$", "(a|aa)+$", "(?<name>a)", r"\p{L}", "a*a*a*b", r"(.)\1", "(?=a)a"])
def test_names_told_by_an_expression_that_may_run_for_ever_are_not_called(expression):
    schema = {"patternProperties": {expression: {"type": "boolean"}}}
    assert "tells names by the expression" in unchecked(schema, {"a" * 40 + "!": "true"})
    # No name is there to be told.
    ArgumentCheck(schema).check({})
    schema = {"properties": {"x": {"patternProperties": {expression: {"type": "boolean"}}}}}
    ArgumentCheck(schema).check({"y": 1})


def test_a_name_too_long_to_be_told_by_an_expression_is_not_called():
    assert "characters" in unchecked({"patternProperties": {"a*b*$": {}}}, {"a" * 5000: 1})


def test_what_is_unevaluated_is_checked_or_not_called():
    base = {"allOf": [{"properties": {"a": {"type": "integer"}}}]}
    assert "unevaluated" in wrong({**base, "unevaluatedProperties": False}, {"a": 1, "b": 2}).lower()
    assert "unevaluated and invalid" in wrong(
        {**base, "unevaluatedProperties": {"type": "boolean"}}, {"a": 1, "b": "x"}
    )
    twice = {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}
    doubling = {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}, "b": twice}}
    assert "unevaluated" in unchecked({**doubling, "unevaluatedProperties": {"type": "boolean"}}, {"x": "true"})


def test_unevaluated_properties_are_checked_against_both_branches_of_an_undecidable_if():
    otherwise = {"properties": {"c": {"type": "string"}}}
    schema = {"if": {"properties": {"a": A}}, "else": otherwise, "unevaluatedProperties": {"type": "integer"}}
    schema |= {"properties": {"a": {"type": "string"}}}
    for taken in ({"a": "q", "c": "str"}, {"a": "q", "c": 1}, {"a": "q", "d": 1}):
        ArgumentCheck(schema).check(taken)
    for refused in ({"a": "q", "c": []}, {"a": "q", "d": "x"}, {"a": 1, "c": 1}):
        wrong(schema, refused)
    assert "that only the server can decide" in unchecked(
        {"allOf": [{"if": schema["if"], "else": otherwise}], "unevaluatedProperties": {"type": "integer"}},
        {"a": "q", "c": "str"},
    )


# --- what can't be checked ---


def test_a_panic_within_a_library_is_the_schemas_fault(monkeypatch):
    """Which schemas bring one about depends on how much of the stack is used."""
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

    def panics(*_, **__):
        raise panic

    monkeypatch.setattr(arguments_module, "faults_of", panics)
    with pytest.raises(UncheckedError, match="without end"):
        ArgumentCheck({"type": "object"}).check({})


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": 7}, "type is no part of a schema"),
        ({"$schema": "urn:unknown", "type": 7}, "type is no part of a schema"),
        ({"properties": {"force": {"type": "truth"}}}, "properties.force.type"),
        ({"properties": 5}, "properties is no part of a schema"),
        ({"properties": {"force": {"enum": 1}}}, "properties.force.enum"),
        ({"anyOf": []}, "anyOf"),
        ({"$ref": "https://example.org/schema.json"}, "refers to what isn't in it"),
        ({"$ref": "#/$defs/nowhere"}, "refers to what isn't in it"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"properties": {"force": {"$ref": "#/properties/force"}}}, "refers to itself without end"),
    ],
)
def test_a_schema_that_says_nothing_of_types_is_not_called(schema, says):
    assert says in unchecked(schema, {"force": "true"})


def test_what_the_arguments_do_not_reach_may_refer_elsewhere():
    schema = {"properties": {"a": {"type": "integer"}, "b": {"$ref": "https://example.org/schema.json"}}}
    ArgumentCheck(schema).check({"a": 1})
    unchecked(schema, {"a": 1, "b": 1})


@pytest.mark.parametrize("name", ["²", "%FF", "~2", "9" * 500, "no"])
def test_a_reference_to_what_is_no_index_of_a_list_leads_nowhere(name):
    schema = {"properties": {"a": {"$ref": f"#/$defs/A/anyOf/{name}"}}, "$defs": {"A": {"anyOf": [{"type": "string"}]}}}
    assert "its schema refers to what isn't in it" in unchecked(schema, {"a": 1})


def test_a_reference_is_followed_up_to_a_length_and_takes_steps_for_it():
    def of(length):
        """A schema whose reference has so many characters, each of the last ones written as three."""
        name = "A" * ((length - len("#/$defs/")) // 3)
        return {
            "properties": {"a": {"items": {"$ref": "#/$defs/" + "%41" * len(name)}}},
            "$defs": {name: {"type": "string"}},
        }

    assert "is not of type 'string'" in wrong(of(900), {"a": [1]})
    assert "takes more than" in unchecked(of(900), {"a": ["x"] * 20_000})
    ArgumentCheck(of(100)).check({"a": ["x"] * 20_000})
    assert "a reference of more than 1000 characters" in unchecked(of(1100), {"a": ["x"]})


@pytest.mark.parametrize("dialect", [7, ["https://json-schema.org/draft/2020-12/schema"], None, {}])
def test_a_schema_of_a_dialect_that_is_no_text_is_not_called(dialect):
    assert "its $schema is no text" in unchecked({"$schema": dialect}, {})


def test_a_schema_that_refers_to_itself_twice_is_given_up_after_a_number_of_steps():
    schema = {"$defs": {}, "$ref": "#/$defs/d0"}
    for number in range(40):
        following = {"$ref": f"#/$defs/d{number + 1}"}
        schema["$defs"][f"d{number}"] = {"allOf": [following, following]}
    schema["$defs"]["d40"] = {"type": "object"}
    assert "takes more than 20020 steps" in unchecked(schema, {"a": 1})


@pytest.mark.parametrize(
    ("mended", "arguments", "says"),
    [
        ({"properties": {"force": {"type": "boolean", "required": True}}}, {"force": "true"}, "boolean"),
        ({"description": None, "properties": {"force": {"type": "boolean"}}}, {"force": "true"}, "boolean"),
        ({"properties": {"force": {"type": "bool"}}}, {"force": "true"}, "boolean"),
        ({"properties": {"force": {"type": ["bool", None]}}}, {"force": "true"}, "boolean"),
        ({"properties": {"x": {"type": "integer", "exclusiveMinimum": True}}}, {"x": "1"}, "integer"),
        ({"properties": {"x": {"items": [{"type": "integer"}]}}}, {"x": ["1"]}, "integer"),
        ({"properties": {"x": {"type": "string", "pattern": 7}}}, {"x": 1}, "string"),
        ({"properties": {"required": {"type": "boolean"}, "x": {"title": 1}}}, {"required": "true"}, "boolean"),
        ({"properties": {"x": {"type": "string", "pattern": r"\p{L}(?<n>"}}}, {"x": 1}, "string"),
    ],
)
def test_a_schema_with_a_harmless_fault_is_checked_all_the_same(mended, arguments, says):
    assert says in wrong(mended, arguments)
    ArgumentCheck(mended).check({})


def test_a_type_any_is_any():
    ArgumentCheck({"properties": {"x": {"type": "any"}}}).check({"x": [1]})


def test_mending_leaves_the_schema_of_the_listing_as_it_is():
    schema = {"properties": {"x": {"type": "int"}}}
    ArgumentCheck(schema).check({"x": 1})
    assert schema == {"properties": {"x": {"type": "int"}}}


def test_a_schema_of_json_schemas_own_is_known_without_the_network():
    schema = {"properties": {"x": {"$ref": "http://json-schema.org/draft-07/schema#"}}}
    ArgumentCheck(schema).check({"x": {"type": "integer"}})
    wrong(schema, {"x": {"type": 7}})


# --- off the loop ---


@pytest.fixture
def threads(monkeypatch):
    """The threads on which checks are made to their ends."""
    found = []
    check = ArgumentCheck.check

    def noted(self, arguments, steps=MAX_STEPS):
        if steps == MAX_STEPS:
            found.append(threading.get_ident())
        return check(self, arguments, steps)

    monkeypatch.setattr(ArgumentCheck, "check", noted)
    return found


async def test_small_arguments_are_checked_at_once(threads):
    await ArgumentCheck(FORCE).run({"force": True})
    assert threads == []


LONG = {"properties": {f"p{number}": {"type": "string"} for number in range(300)}}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (FORCE, {"force": True, "padding": "x" * 100_000}),
        (LONG, {"p1": "x"}),
        ({"properties": {"x": {"items": {"anyOf": [{"const": n} for n in range(50)]}}}}, {"x": [49] * 200}),
    ],
    ids=["large arguments", "a large schema", "many steps"],
)
async def test_what_takes_longer_is_checked_on_a_thread(threads, schema, arguments):
    await ArgumentCheck(schema).run(arguments)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_a_large_schema_is_compiled_once_and_then_checked_at_once(threads):
    check = ArgumentCheck(LONG)
    for _ in range(10):
        await check.run({"p1": "x"})
    assert len(threads) == 1


async def test_others_get_their_turn_while_a_schema_is_compiled(monkeypatch):
    let_go = threading.Event()
    compiled = arguments_module._compile

    def slowly(schema):
        assert let_go.wait(60)
        return compiled(schema)

    monkeypatch.setattr(arguments_module, "_compile", slowly)
    turns = 0

    async def victim():
        nonlocal turns
        for _ in range(100):
            turns += 1
            await anyio.lowlevel.checkpoint()
        let_go.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(victim)
        await ArgumentCheck(LONG).run({"p1": "x"})
    assert turns == 100


# --- a server ---


async def test_what_is_not_checked_does_not_reach_the_server():
    async with Fleet([faulty("unchecked")]) as fleet:
        server = fleet.server("faulty")
        for tool, arguments, code in (
            ("elsewhere", {"force": "true"}, "arguments_unchecked"),
            ("typeless", {"force": "true"}, "arguments_unchecked"),
            ("padded", {"force": "true", "padding": "x" * (300 << 10)}, "bad_arguments"),
        ):
            with pytest.raises(BridgeError) as caught:
                await call_tool(fleet, "faulty", tool, arguments)
            assert caught.value.code == code
            assert caught.value.details["tool"] == tool
        with pytest.raises(BridgeError) as caught:
            await server.check(await server.find_tool("typeless"), {"force": "true"})
        assert caught.value.code == "arguments_unchecked"
        assert "isn't called" in caught.value.message
        assert caught.value.message.endswith(".")
        assert caught.value.hint
        result = await call_tool(fleet, "faulty", "padded", {"force": True, "padding": "x" * (300 << 10)})
        assert result.content[0].text == "called padded"
