"""JSON read and written in short steps is what the standard library reads and writes, in steps that are short."""

import json
import math
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_bridge import large_json
from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.errors import WireError

ENCODERS = [
    json.JSONEncoder(),
    json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")),
]
DECODER = json.JSONDecoder()

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=40)


@contextmanager
def everything_is_large():
    """Steps of a few characters and values, so that small values have many."""
    before = {name: getattr(large_json, name) for name in ("LARGE_CHARS", "_PART_BYTES", "_STEP_CHARS", "_STEP_VALUES")}
    large_json.LARGE_CHARS, large_json._PART_BYTES, large_json._STEP_CHARS, large_json._STEP_VALUES = 0, 3, 7, 2
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(large_json, name, value)


@given(JSON, st.sampled_from(ENCODERS), st.sampled_from([None, 1]))
def test_what_is_written_and_read_in_steps_is_the_same(value, encoder, indent):
    with everything_is_large():
        assert large_json.dumps(value, encoder) == encoder.encode(value)
        text = json.dumps(value, indent=indent).encode()
        read = large_json.loads(text, DECODER)
    assert read == value
    assert json.dumps(read) == json.dumps(value)


@given(JSON, st.integers(0), st.sampled_from(list('[]{},:"\\ 1ae-.\n')), st.booleans())
@settings(max_examples=500)
def test_what_is_no_json_is_refused_as_the_standard_library_does(value, place, sign, removed):
    text = json.dumps(value)
    place %= len(text) + 1
    text = text[:place] + sign + text[place + removed :]
    try:
        wanted = json.dumps(json.loads(text))
    except json.JSONDecodeError as exc:
        wanted = exc
    with everything_is_large():
        try:
            found = json.dumps(large_json.loads(text.encode(), DECODER))
        except json.JSONDecodeError as exc:
            found = exc
    assert type(found) is type(wanted), (text, found, wanted)
    if isinstance(wanted, str):
        assert found == wanted
    else:
        assert found.pos <= len(text)


@pytest.mark.parametrize("cut", range(1, 5))
def test_text_that_is_cut_in_the_midst_of_a_character_is_read_and_half_a_character_refused(cut):
    data = '["a", "é€😀"]'.encode()
    with everything_is_large():
        assert large_json.loads(data, DECODER) == ["a", "é€😀"]
        with pytest.raises(UnicodeDecodeError):
            large_json.loads(data[: data.index("😀".encode()) + cut][: -1 if cut == 4 else None], DECODER)


def test_hooks_hold_in_every_step():
    def refuse(name):
        raise ValueError(name)

    decoder = json.JSONDecoder(parse_float=lambda text: "float " + text, parse_constant=refuse)
    with everything_is_large():
        assert large_json.loads(b"[[1.5, {}], 2e3]", decoder) == [["float 1.5", {}], "float 2e3"]
        for constant in (b"NaN", b"[1, -Infinity]", b'{"a": [Infinity]}'):
            with pytest.raises(ValueError, match=r"NaN|Infinity"):
                large_json.loads(constant, decoder)
    with pytest.raises(ValueError, match="not JSON compliant"), everything_is_large():
        large_json.dumps([1, [math.nan]], ENCODERS[1])


def test_a_name_that_is_given_twice_has_its_last_value_and_rows_share_their_names():
    rows = ",".join(json.dumps({"a long name": number, "x": "x" * 300}) for number in range(1000))
    read = large_json.loads(f'[{rows}, {{"a": 1, "a": 2, "x": [{"0," * 200}0]}}]'.encode(), DECODER)
    assert read[-1]["a"] == 2
    assert len({id(name) for row in read[:-1] for name in row}) == 2


@pytest.mark.parametrize("depth", [2000, 100_000])
def test_nesting_without_end_ends_in_one_error(depth):
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        data = opening * depth + b"0" + closing * depth + b" " * large_json.LARGE_CHARS
        with pytest.raises(RecursionError):
            large_json.loads(data, DECODER)
    with pytest.raises(WireError) as caught:
        jsonrpc.decode(b'{"params":' + b"[" * 100_000, loads=large_json.loads)
    assert caught.value.code == "frame_too_deep"


@pytest.mark.parametrize("before", [0, 100, large_json.MAX_DEPTH - 1, large_json.MAX_DEPTH])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_is_read_to_one_depth_however_it_falls_into_steps(opening, before):
    closing = {"[": "]"}.get(opening, "}")

    def data(depth):
        inner = "0" if depth == before else f"{opening * (depth - before)}0{closing * (depth - before)}"
        if before:
            # So much text, and the rest is read in steps of its own.
            beside = json.dumps("x" * large_json.LARGE_CHARS)
            inner = f"{beside},{inner}" if opening == "[" else f'{beside},"b":{inner}'
        text = f"{opening * before}{inner}{closing * before}"
        return text.encode() + b" " * large_json.LARGE_CHARS

    deepest = data(large_json.MAX_DEPTH)
    assert large_json.loads(deepest, DECODER) == json.loads(deepest)
    with pytest.raises(RecursionError):
        large_json.loads(data(large_json.MAX_DEPTH + 1), DECODER)


class _Steps:
    """A decoder that notes how much each of its steps reads."""

    def __init__(self):
        self.most = 0

    def scan_once(self, text, at):
        value, end = DECODER.scan_once(text, at)
        if isinstance(value, (dict, list)):
            self.most = max(self.most, end - at)
        return value, end


@pytest.mark.parametrize(
    "value",
    [
        [[number] for number in range(50_000)],
        {f"name {number}": number for number in range(50_000)},
        [[["]"], list(range(50_000))], {"}": [{}] * 20_000}],
        [{"rows": [{"id": number, "of": [number]} for number in range(5_000)]}] * 5,
    ],
    ids=["lists", "names", "brackets in texts", "rows"],
)
def test_no_step_is_long(value, monkeypatch):
    steps = _Steps()
    assert large_json.loads(json.dumps(value).encode(), steps) == value
    assert steps.most <= large_json._STEP_CHARS
    written = []

    class Encoder(json.JSONEncoder):
        def encode(self, part):
            text = super().encode(part)
            written.append(text.count(",") + text.count(":"))
            return text

    assert large_json.dumps(value, Encoder()) == json.dumps(value)
    assert len(written) > 1
    assert max(written) < 4 * large_json._STEP_VALUES


# --- what is counted in a line ---


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b'"', b'\\"', b"\\\\", b",", b"[", b"{", b"true", b"1.5"])))
@settings(max_examples=500)
def test_the_parts_of_a_line_outside_its_texts_are_the_same_however_it_is_cut(pieces):
    line = b"".join(pieces)
    whole = b"".join(jsonrpc._without_texts(line))
    before = jsonrpc._PART_BYTES
    try:
        for size in (1, 2, 3, 7):
            jsonrpc._PART_BYTES = size
            assert b"".join(jsonrpc._without_texts(line)) == whole
            assert b"".join(jsonrpc.parts(line)) == line
            surrogates = b"\\ud" in line or b"\\uD" in line
            assert jsonrpc.may_hold_surrogates(line) is surrogates
    finally:
        jsonrpc._PART_BYTES = before


@pytest.mark.parametrize("place", range(12))
def test_half_a_character_is_found_over_a_cut(place, monkeypatch):
    monkeypatch.setattr(jsonrpc, "_PART_BYTES", 4)
    assert jsonrpc.may_hold_surrogates(b"x" * place + b"\\ud800" + b"x" * 9)
    assert not jsonrpc.may_hold_surrogates(b"x" * place + b"\\u00e9" + b"x" * 9)


@given(JSON, JSON)
def test_values_are_the_same_json_if_they_are_written_alike(one, other):
    for first, second in ((one, other), (one, json.loads(json.dumps(one)))):
        written = [json.dumps(value, sort_keys=True) for value in (first, second)]
        assert large_json.is_same_json(first, second) is (written[0] == written[1])


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (1, 1.0), ({"a": [1]}, {"a": [True]})])
def test_values_that_python_takes_for_equal_may_be_another_json(one, other):
    assert one == other
    assert not large_json.is_same_json(one, other)


def test_the_order_of_names_makes_no_other_json():
    assert large_json.is_same_json({"a": 1, "b": [True]}, {"b": [True], "a": 1})
