"""JSON values in normal form, and their canonical bytes against RFC 8785."""

import collections
import enum
import json
import math
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_bridge.kernel import values
from mcp_bridge.kernel.values import (
    MAX_DEPTH,
    MAX_INTEGER,
    ValueFaultError,
    canonical,
    digest,
    es6_number,
    normal,
    same,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
# Integral floats, powers of ten and numbers beside a border are where writers of numbers differ.
NUMBERS = st.one_of(
    FLOATS,
    st.integers(-(10**25), 10**25),
    st.integers(-(10**22), 10**22).map(float),
    st.builds(lambda digits, power: float(f"{digits}e{power}"), st.integers(-(10**17), 10**17), st.integers(-40, 40)),
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
# Few and close to each other, so that pairs are often equal, or equal to Python only.
CLOSE = st.recursive(
    st.sampled_from([0, 0.0, -0.0, False, None, "", "0", 1, 1.0, True, "1", 1e21, 10**21, 0.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)


def alike(one, other):
    """Equal, with equal types, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


def fault(value, path=""):
    with pytest.raises(ValueFaultError) as caught:
        normal(value, path)
    return caught.value


# --- RFC 8785 ---

APPENDIX_B = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), APPENDIX_B.items())
def test_numbers_are_written_as_in_appendix_b(bits, text):
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert es6_number(number) == text
    assert canonical(normal([number])).decode() == f"[{text}]"


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_what_appendix_b_has_no_text_for_is_refused(bits):
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert "is no JSON number" in fault(number).reason


def test_the_example_of_section_3_2_2():
    told = json.loads(
        r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
             "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
             "literals": [null, true, false]}"""
    )
    assert canonical(normal(told)).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )


def test_keys_are_sorted_by_utf_16_units_as_in_section_3_2_3():
    names = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(json.loads(canonical(normal(names))).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize("code", [*range(0x20), 0x22, 0x5C, 0x2F, 0x7F, 0x80, 0x2028, 0x2029, 0xFFFF])
@pytest.mark.parametrize("beside", ["", "\U0001f600"])
def test_only_what_section_3_2_2_2_escapes_is_escaped(code, beside):
    short = {8: r"\b", 9: r"\t", 10: r"\n", 12: r"\f", 13: r"\r", 0x22: r"\"", 0x5C: r"\\"}
    sign = chr(code)
    written = short.get(code, f"\\u{code:04x}" if code < 0x20 else sign)
    assert canonical(sign + beside).decode() == f'"{written}{beside}"'
    assert canonical({sign + beside: 0}).decode() == f'{{"{written}{beside}":0}}'


@settings(max_examples=400)
@given(JSON)
def test_another_implementation_of_the_rfc_writes_the_same_bytes(value):
    import rfc8785

    try:
        expected = rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        return  # beyond 2**53, where ours keeps the digits
    assert canonical(normal(value)) == expected


@given(st.integers(-MAX_INTEGER + 1, MAX_INTEGER - 1))
def test_integers_keep_all_of_their_digits(number):
    assert canonical(normal(number)) == str(number).encode()
    assert alike(normal(number), number)


# --- normal form ---


@settings(max_examples=400)
@given(JSON)
@example({"\U0001f600": 1e-7, "\ufb33": -0.0})
@example(1e20)
@example(123456789012345678901.0)
def test_what_is_written_reads_back_as_the_normal_value(value):
    plain = normal(value)
    read = json.loads(canonical(plain))
    assert alike(read, plain)
    assert alike(normal(read), plain)
    assert canonical(read) == canonical(plain)


@given(JSON)
def test_normal_values_stay_as_they_are(value):
    plain = normal(value)
    assert alike(normal(plain), plain)


@settings(max_examples=400)
@given(CLOSE.map(normal), CLOSE.map(normal))
@example(normal([1e21]), normal([10**21]))
@example(normal({"a": 0}), normal({"a": False}))
@example(normal({"a": 1, "b": 2}), normal({"b": 2, "a": 1}))
def test_equal_values_have_equal_bytes_and_others_other_bytes(one, other):
    equal = alike(one, other)
    assert (canonical(one) == canonical(other)) is equal
    assert (digest(one) == digest(other)) is equal
    assert same(one, other) is equal


@given(st.permutations(["a", "b", "é", "\U0001f600", "\ufb33"]))
def test_the_order_in_which_keys_came_leaves_no_trace(names):
    assert canonical({name: len(name) for name in names}) == canonical({name: len(name) for name in sorted(names)})


def test_floats_without_a_fraction_are_integers_and_minus_zero_is_zero():
    assert alike(normal([1.0, -0.0, -2.0, 1e20, 0.5]), [1, 0, -2, 10**20, 0.5])


def test_floats_from_ten_to_the_21st_stay_floats():
    assert alike(normal([1e21, -1e300]), [1e21, -1e300])


def test_tuples_and_subclasses_become_what_they_are_beneath():
    class Level(enum.IntEnum):
        HIGH = 3

    class Colour(enum.StrEnum):
        RED = "red"

    class Ratio(float):
        pass

    class Row(list):
        pass

    Pair = collections.namedtuple("Pair", "x y")  # noqa: PYI024
    value = {
        Colour.RED: Level.HIGH,
        "pair": Pair(1, (2,)),
        "ordered": collections.OrderedDict(b=1, a=Colour.RED),
        "counter": collections.Counter("aab"),
        "ratio": Ratio(2.0),
        "row": Row([Ratio(0.5)]),
    }
    plain = {
        "red": 3,
        "pair": [1, [2]],
        "ordered": {"b": 1, "a": "red"},
        "counter": {"a": 2, "b": 1},
        "ratio": 2,
        "row": [0.5],
    }
    assert alike(normal(value), plain)


def test_a_normal_value_shares_nothing_that_can_change_with_what_it_was_made_from():
    told = {"a": [1, {"b": []}]}
    plain = normal(told)
    told["a"][1]["b"].append(1)
    told["a"].append(2)
    assert plain == {"a": [1, {"b": []}]}


# --- refusals ---


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_are_refused(number):
    assert fault({"a": [0, number]}).path == "a[1]"


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), {1}, frozenset(), object(), 1j, range(3), len, Exception()])
def test_what_json_has_no_type_for_is_refused_by_name(value):
    refused = fault([value], "context")
    assert refused.path == "context[0]"
    assert refused.reason == f"a {type(value).__name__} is no JSON value"
    assert str(refused) == f"context[0]: {refused.reason}"


@pytest.mark.parametrize("name", [1, 1.5, True, None, (), b"a"])
def test_keys_that_are_no_text_are_refused(name):
    refused = fault({"a": {name: math.nan}})
    assert (refused.path, refused.reason) == ("a", f"a key is a {type(name).__name__}, and JSON's are text")


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\udc00\ud800"])
def test_lone_surrogates_are_refused_in_texts_and_keys_and_told_in_text_that_can_be_written(text):
    for value in (text, [text], {text: 1}, {"a": {text: math.nan}}):
        refused = fault(value)
        assert "surrogate" in refused.reason
        assert str(refused).encode()


def test_integers_of_more_than_a_hundred_digits_are_refused():
    assert normal([10**100 - 1, -(10**100) + 1])
    for number in (10**100, -(10**100), 10**5000):
        assert "100 digits" in fault(number).reason


def nested(depth, inner=0):
    value = inner
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def test_nesting_is_bounded():
    assert canonical(normal(nested(MAX_DEPTH)))
    assert "nested deeper" in fault(nested(MAX_DEPTH + 1)).reason
    assert "nested deeper" in fault(nested(100_000)).reason


def test_a_value_that_contains_itself_is_refused():
    ring = []
    ring += [ring, ring, ring]
    assert "nested deeper" in fault(ring).reason
    loop = {}
    loop["a"] = loop["b"] = loop
    assert "nested deeper" in fault(loop).reason


def test_a_fault_says_where_without_repeating_names_of_a_megabyte():
    name = "k" * 1_000_000
    refused = fault({"items": [{name: [0] * 1000 + [math.nan]}]})
    assert refused.path == "items[0]." + "k" * 60 + "[1000]"


def test_two_faults_give_the_place_of_the_first():
    assert fault({"a": [1, {"b": math.inf}], "c": b""}).path == "a[1].b"


def test_canonical_bytes_of_an_abnormal_number_are_never_made():
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical([math.nan])


def test_the_fast_path_and_the_full_one_agree():
    value = normal({"z": [1, 0.25, "é", None], "a": {"k": True}})
    assert canonical(value) == values._canonical(value).encode()


# --- a text as a value ---
