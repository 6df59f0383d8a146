"""The wire alone: bytes in, messages out, and nothing but a WireError for whatever else comes."""

import enum
import json
import math
import sys
import time
from types import UnionType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_bridge.wire import jsonrpc, messages
from mcp_bridge.wire.annotations import Any, Literal
from mcp_bridge.wire.errors import LocalMessageError, WireError
from mcp_bridge.wire.framing import EXCERPT_BYTES, LineDecoder, excerpt
from mcp_bridge.wire.jsonrpc import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_ID,
    MAX_VALUES,
    ErrorResponse,
    Notification,
    Request,
    Response,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=5)
IDS = st.integers(1, MAX_ID)
MESSAGES = st.one_of(
    st.builds(Request, IDS, TEXT, OBJECTS),
    st.builds(Notification, TEXT, OBJECTS),
    st.builds(Response, IDS, JSON),
    st.builds(ErrorResponse, IDS, st.integers(), TEXT, OBJECTS),
)


def chunks_of(data, cuts):
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in zip(places, places[1:], strict=False)]


def nested(depth, opening=b"[", closing=b"]"):
    return opening * depth + closing * depth


def frame(body):
    return b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":' + body + b"}}"


def refused(line):
    with pytest.raises(WireError) as caught:
        jsonrpc.decode(line)
    return caught.value.code


# --- lines ---


@given(
    st.lists(st.binary(max_size=20).map(lambda part: part.replace(b"\n", b""))), st.binary(), st.lists(st.integers(0))
)
def test_lines_come_out_as_a_naive_split_gives_them_whatever_the_chunks(lines, rest, cuts):
    data = b"".join(line + b"\n" for line in lines) + rest
    decoder = LineDecoder()
    out = [line for chunk in chunks_of(data, cuts) for line in decoder.feed(chunk)]
    *expected, tail = data.split(b"\n")
    assert out == expected
    assert decoder.incomplete == tail


@pytest.mark.parametrize("ending", [b"", b"\n"])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_line_over_the_limit_is_refused_as_soon_as_it_is_complete_or_not(ending, size):
    data = b"x" * 101 + ending
    decoder = LineDecoder(100)
    with pytest.raises(WireError, match="100 bytes") as caught:
        for start in range(0, len(data), size):
            decoder.feed(data[start : start + size])
    assert caught.value.code == "frame_too_large"
    assert caught.value.excerpt.startswith("xxx")


def test_a_line_of_exactly_the_limit_passes():
    decoder = LineDecoder(100)
    assert decoder.feed(b"y" * 60) == []
    assert decoder.feed(b"y" * 40 + b"\nrest") == [b"y" * 100]
    assert decoder.incomplete == b"rest"


def test_a_line_that_comes_in_tiny_pieces_takes_linear_time():
    def seconds(size):
        decoder = LineDecoder()
        began = time.process_time()
        for _ in range(size):
            decoder.feed(b"ab")
        assert decoder.feed(b"\n") == [b"ab" * size]
        return time.process_time() - began

    seconds(1000)
    # Eight times the bytes: eight times the time, and sixty-four if every piece copied the line.
    assert seconds(400_000) < 30 * seconds(50_000) + 0.5


@given(st.binary())
def test_an_excerpt_is_short_printable_ascii(data):
    shown = excerpt(data).removesuffix("…")
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) <= 8 * EXCERPT_BYTES


# --- frames ---


@given(MESSAGES)
def test_what_is_encoded_is_decoded_to_the_same(message):
    line = jsonrpc.encode(message)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert jsonrpc.decode(line[:-1]) == message


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_a_wire_error(data):
    try:
        jsonrpc.decode(data)
    except WireError as exc:
        assert exc.code  # noqa: PT017 - not raising is right too


@settings(max_examples=300)
@given(MESSAGES, st.integers(0), st.binary(max_size=4), st.integers(0, 4))
def test_a_frame_with_some_bytes_changed_raises_nothing_but_a_wire_error(message, place, patch, removed):
    line = jsonrpc.encode(message)[:-1]
    place %= len(line)
    try:
        jsonrpc.decode(line[:place] + patch + line[place + removed :])
    except WireError as exc:
        assert exc.code in {"bad_frame", "frame_too_deep"}  # noqa: PT017


@settings(max_examples=300)
@given(JSON | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"]), JSON | IDS))
def test_any_json_raises_nothing_but_a_wire_error(value):
    if isinstance(value, dict):
        value["jsonrpc"] = "2.0"
    try:
        jsonrpc.decode(json.dumps(value).encode())
    except WireError as exc:
        assert exc.code == "bad_frame"  # noqa: PT017


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b'[{"jsonrpc":"2.0","method":"m"}]',
        b'"jsonrpc"',
        b'{"method":"m"}',
        b'{"jsonrpc":"1.0","method":"m"}',
        b'{"jsonrpc":2.0,"method":"m"}',
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","method":7}',
        b'{"jsonrpc":"2.0","method":"m","params":[]}',
        b'{"jsonrpc":"2.0","method":"m","params":null}',
        b'{"jsonrpc":"2.0","method":"m","extra":1}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","result":1}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","result":1}',
        b'{"jsonrpc":"2.0","id":1,"error":"no"}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":true,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","data":[]}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","more":1}}',
        b'{"jsonrpc":"2.0","method":"m"}{"jsonrpc":"2.0","method":"m"}',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"m"}',
        '{"jsonrpc":"2.0","method":"m"}'.encode("utf-16"),
        b'{"jsonrpc":"2.0","method":"\xff"}',
        b'{"jsonrpc":"2.0","method":"\xed\xa0\x80"}',
    ],
)
def test_what_is_no_message_is_a_bad_frame(line):
    assert refused(line) == "bad_frame"


@pytest.mark.parametrize(
    "number", ["0", "-1", "1.0", "1e0", "true", "null", '"1"', "[1]", str(MAX_ID + 1), "9" * 5000, "NaN"]
)
def test_an_id_is_a_positive_integer_and_nothing_like_one(number):
    for rest in ('"method":"m"', '"result":1'):
        assert refused(f'{{"jsonrpc":"2.0","id":{number},{rest}}}'.encode()) == "bad_frame"


@pytest.mark.parametrize(
    "value",
    ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "01", "+1", ".5", '"\\ud800"', '"\\udc00\\ud800"',
     '{"\\ud800":1}', '"\x01"', "'a'", "[1,]", "undefined"],
)  # fmt: skip
def test_a_value_that_json_or_unicode_does_not_have_is_a_bad_frame(value):
    assert refused(frame(value.encode())) == "bad_frame"


def test_a_pair_of_surrogates_is_one_character():
    message = jsonrpc.decode(frame(b'"\\ud83d\\ude00"'))
    assert message.params == {"x": "\N{GRINNING FACE}"}


def test_a_long_number_within_pythons_limit_is_exact():
    assert jsonrpc.decode(frame(b"9" * 4000)).params["x"] == int("9" * 4000)


@pytest.mark.parametrize("opening", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_taken_to_the_limit_and_refused_beyond_it(opening):
    start, end = opening
    inside = MAX_DEPTH - 2
    whole = frame(start * inside + (b"1" if b"{" in start else b"") + end * inside)
    assert isinstance(jsonrpc.decode(whole), Request)
    deeper = frame(start * (inside + 1) + (b"1" if b"{" in start else b"") + end * (inside + 1))
    assert refused(deeper) == "frame_too_deep"


@pytest.mark.parametrize("depth", [1000, 100_000, 140_000])
def test_nesting_without_end_is_refused_and_breaks_nothing(depth):
    assert refused(frame(nested(depth))) == "frame_too_deep"
    assert refused(b"[" * depth) in {"frame_too_deep", "bad_frame"}
    assert refused(nested(depth, b'{"a":', b"}")) in {"frame_too_deep", "bad_frame"}


def test_a_megabyte_of_brackets_is_refused():
    assert refused(frame(nested(1 << 20))) == "frame_too_large"


@pytest.mark.parametrize("element", [b"[]", b"{}", b"1", b'"a"', b"[[]]"])
def test_more_values_than_the_limit_are_refused_before_they_take_memory(element):
    count = MAX_VALUES // (element.count(b"[") + element.count(b"{") + 1) + 10
    assert refused(frame(b"[" + b",".join([element] * count) + b"]")) == "frame_too_large"


@pytest.mark.parametrize("text", [b'"', b'"%s",' % (b"A" * 200_000), b'"%s\\"",' % (b"[" * 200_000)])
def test_a_long_text_in_front_of_what_is_too_much_or_too_deep_hides_nothing(text):
    deep = nested(MAX_DEPTH + 1)
    assert refused(frame(b"[%s%s]" % (text, deep))) in {"frame_too_deep", "bad_frame"}
    assert refused(frame(b"[%s%s]" % (text, b",".join([b"[]"] * MAX_VALUES)))) in {"frame_too_large", "bad_frame"}


@given(st.lists(JSON | st.text("A[{,.eE", min_size=200).map(lambda text: text * 500), min_size=1, max_size=3))
def test_a_frame_with_long_texts_is_what_json_says(values):
    line = jsonrpc.encode(Response(1, values))
    assert jsonrpc.decode(line).result == json.loads(line)["result"] == values


@pytest.mark.parametrize("part", ["[[", "{,[", '",[\\'])
def test_a_text_full_of_brackets_and_commas_is_one_value(part):
    text = part * MAX_VALUES
    line = jsonrpc.encode(Request(1, "m", {"x": text}))
    assert jsonrpc.decode(line[:-1]).params == {"x": text}


@pytest.mark.parametrize(
    "line", [b'"\\"' * 2_000_000 + b",", b'"' + b"\\" * 8_000_000 + b"[" * 2_000_000], ids=["quotes", "backslashes"]
)
def test_text_that_never_ends_is_refused_in_linear_time(line):
    began = time.process_time()
    refused(line)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (math.nan, "not_json"),
        (math.inf, "not_json"),
        ("\ud800", "not_json"),
        (object(), "not_json"),
        ({1, 2}, "not_json"),
        (b"bytes", "not_json"),
        ({(1, 2): 3}, "not_json"),
        (10**5000, "not_json"),
        (json.loads("[" * 100 + "]" * 100), "frame_too_deep"),
        ("x" * 2000, "frame_too_large"),
    ],
    ids=["nan", "inf", "surrogate", "object", "set", "bytes", "tuple key", "long number", "deep", "large"],
)
def test_what_no_frame_can_carry_is_refused_where_it_is_sent(value, code):
    with pytest.raises(LocalMessageError) as caught:
        jsonrpc.encode(Request(1, "m", {"x": value}), max_bytes=1000)
    assert caught.value.code == code


@pytest.mark.parametrize("most", [0, 640, 4300, 20_000])
def test_an_integer_is_as_long_as_the_other_side_reads_whatever_python_writes(most):
    before = sys.get_int_max_str_digits()
    longest = 10 ** (most if 0 < most < MAX_DIGITS else MAX_DIGITS) - 1
    sys.set_int_max_str_digits(most)
    try:
        for value in (longest + 1, [0, {"a": -longest - 1}], (longest**2,)):
            with pytest.raises(
                LocalMessageError, match=r"an integer of more than \d+ digits; write it as text"
            ) as caught:
                jsonrpc.encode(Request(1, "m", {"x": value}))
            assert caught.value.code == "not_json"
        line = jsonrpc.encode(Request(1, "m", {"x": [longest, {"a": -longest, "text": "9" * 9999}]}))
    finally:
        sys.set_int_max_str_digits(before)
    assert jsonrpc.decode(line).params["x"][1]["a"] == -longest


def test_a_value_that_holds_itself_is_refused_where_it_is_sent():
    around: list[Any] = []
    around.append(around)
    with pytest.raises(LocalMessageError):
        jsonrpc.encode(Request(1, "m", {"x": around}))


def test_too_many_values_are_refused_where_they_are_sent():
    with pytest.raises(LocalMessageError) as caught:
        jsonrpc.encode(Request(1, "m", {"x": [1] * (MAX_VALUES + 1)}))
    assert caught.value.code == "frame_too_large"


# --- parameters ---

VALUES: dict[Any, list[Any]] = {
    str: ["", "text"],
    int: [0, -1, 2**62],
    float: [0.5, 1, -2],
    bool: [True, False],
    list: [[], [1, "a"]],
    dict: [{}, {"a": 1}],
    messages.CallId: ["0#1", "0.2.t1#17"],
}
ODD = ["text", "", 1, 1.5, True, [1], {"a": 1}, None, 2**70]


def accepted(annotation):
    """The types and values that an annotation of `messages` takes, by rules written anew here."""
    if annotation is Any:
        return None
    if isinstance(annotation, UnionType):
        types = [kind for member in annotation.__args__ for kind in accepted(member)["types"]]
        return {"types": tuple(types)}
    origin = getattr(annotation, "__origin__", None)
    if origin is Literal:
        return {"values": annotation.__args__}
    if origin is not None:
        return {"types": (origin,)}
    if annotation is messages.CallId:
        return {"types": (messages.CallId,)}
    return {"types": (int, float) if annotation is float else (annotation,)}


def is_right(annotation, value):
    rule = accepted(annotation)
    if rule is None:
        return True
    if "values" in rule:
        return value in rule["values"]
    return type(value) in rule["types"] and not (type(value) is int and abs(value) >= 2**63)


def example(annotation):
    rule = accepted(annotation)
    if rule is None:
        return {"any": [1, None]}
    return rule["values"][0] if "values" in rule else VALUES[rule["types"][0]][-1]


ALL = sorted(messages.METHODS.items())


@pytest.mark.parametrize(("method", "kind"), ALL, ids=[name for name, _ in ALL])
def test_parameters_of_every_method_are_taken_strictly(method, kind):
    fields = kind.__annotations__
    whole = {name: example(annotation) for name, annotation in fields.items()}
    assert messages.method_params(method) is kind
    assert messages.decode_params(kind, dict(whole)) == kind(**whole)
    with pytest.raises(WireError, match="no parameter 'unheard'") as caught:
        messages.decode_params(kind, whole | {"unheard": 1})
    assert caught.value.code == "bad_params"
    for name, annotation in fields.items():
        less = {key: value for key, value in whole.items() if key != name}
        if name in kind._field_defaults:
            assert getattr(messages.decode_params(kind, less), name) == kind._field_defaults[name]
        else:
            with pytest.raises(WireError, match=f"needs '{name}'"):
                messages.decode_params(kind, less)
        for value in ODD:
            changed = whole | {name: value}
            if is_right(annotation, value):
                assert getattr(messages.decode_params(kind, changed), name) == value
            else:
                before = dict(changed)
                with pytest.raises(WireError, match=name):
                    messages.decode_params(kind, changed)
                assert changed == before


@pytest.mark.parametrize(("method", "kind"), ALL, ids=[name for name, _ in ALL])
def test_parameters_of_every_method_arrive_as_they_were_sent(method, kind):
    params = kind(**{name: example(annotation) for name, annotation in kind.__annotations__.items()})
    sent = messages.notification(params)
    assert sent.method == method
    back = jsonrpc.decode(jsonrpc.encode(sent)[:-1])
    assert messages.decode_params(messages.method_params(back.method), back.params) == params


def test_a_null_that_is_a_value_is_sent_and_one_that_means_nothing_is_not():
    assert messages.encode_params(messages.MemorySave("k", None)) == {"key": "k", "value": None, "update": False}
    assert messages.encode_params(messages.ProgressReport(1.0)) == {"done": 1.0}


def test_our_own_wrong_parameters_are_refused_before_they_are_sent():
    for params in (messages.ProgressReport("a"), messages.ToolCall(1, "t", {}), messages.CatalogDescribe("n", "odd")):
        with pytest.raises(LocalMessageError) as caught:
            messages.encode_params(params)
        assert caught.value.code == "bad_params"


def test_strings_and_numbers_of_their_own_types_are_sent_as_what_they_are():
    class Colour(str, enum.Enum):
        RED = "red"

    class Level(enum.IntEnum):
        HIGH = 3

    assert messages.encode_params(messages.MemoryLoad(Colour.RED)) == {"key": "red"}
    assert messages.encode_params(messages.ProgressReport(Level.HIGH)) == {"done": 3}


@given(st.text())
def test_an_unknown_method_is_named(name):
    if name not in messages.METHODS:
        with pytest.raises(WireError) as caught:
            messages.method_params(name)
        assert caught.value.code == "unknown_method"


def test_every_method_has_one_type_and_every_type_one_method():
    assert len(messages.NAMES) == len(messages.METHODS)


# --- bounds on texts ---


def texts():
    """Every field of every method that may be a text."""
    for kind in messages.NAMES:
        for field, annotation in kind.__annotations__.items():
            if annotation is str or annotation == str | None:
                yield kind, field


def arguments(kind, field, text):
    """Valid parameters of a method, but for one."""
    plain = {str: "x", int: 1, float: 1.0, bool: True, dict: {}, list: [], messages.CallId: "0#1"}
    given = {}
    for name, annotation in kind.__annotations__.items():
        if name not in kind._field_defaults:
            origin = getattr(annotation, "__origin__", annotation)
            given[name] = "stdout" if origin is Literal else plain.get(origin, "x")
    return given | {field: text}


@pytest.mark.parametrize(("kind", "field"), list(texts()), ids=lambda value: getattr(value, "__name__", value))
def test_every_text_of_every_message_has_a_bound(kind, field):
    limit = messages.LONG_TEXTS.get((kind, field), messages.MAX_NAME_CHARS)
    if limit is None:
        assert (kind, field) in messages.LONG_TEXTS  # the frame's own
        return
    fits = messages.decode_params(kind, arguments(kind, field, "x" * limit))
    assert messages.overlong(fits) is None
    over = messages.decode_params(kind, arguments(kind, field, "x" * (limit + 1)))
    assert f"{field!r} has {limit + 1} characters; the limit is {limit}" in messages.overlong(over)


def test_a_value_that_contains_itself_is_told_from_one_that_is_too_deep():
    loop: list[object] = []
    loop.append({"again": loop})
    with pytest.raises(LocalMessageError, match="Circular reference") as itself:
        jsonrpc.encode(jsonrpc.Response(1, loop))
    assert itself.value.code == "not_json"
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(LocalMessageError) as nested:
        jsonrpc.encode(jsonrpc.Response(1, deep))
    assert nested.value.code == "frame_too_deep"
    # A failure leaves nothing behind.
    assert json.loads(jsonrpc.encode(jsonrpc.Response(1, [{"é": 1.5}, None, True])))["result"] == [
        {"é": 1.5},
        None,
        True,
    ]
