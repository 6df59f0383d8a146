"""The channel's JSON against that of the standard library, which it has to equal."""

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_bridge.wire import json_codec

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def _refuse(name):
    raise ValueError(f"{name} is no JSON number")


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
DECODER = json.JSONDecoder(parse_constant=_refuse)


@pytest.fixture(params=["C", "package"])
def codec(request, monkeypatch):
    """Decoder and encoder, with the C parts of `json` and without."""
    if request.param == "package":
        monkeypatch.setattr(json_codec, "_json", None)
    return json_codec.Decoder(), json_codec.Encoder()


def told(function, argument):
    try:
        return function(argument)
    except (ValueError, TypeError, RecursionError) as exc:
        return type(exc), str(exc)


@given(VALUES)
def test_what_is_written_is_what_json_writes_and_is_read_back(value):
    written = json_codec.Encoder().encode(value)
    assert written == ENCODER.encode(value)
    assert json_codec.Decoder().decode(f" \t\r\n{written}\n ") == value


@given(st.text(alphabet=' \t\n[]{}:,"\\u0aeE+-.1tfn\x00é', max_size=20) | st.text())
@example(" \n")
@example(' {"a": 1}  x')
@example("[1,\u2003 2]")
@example("NaN")
@example("-Infinity")
def test_what_is_no_json_is_refused_as_json_refuses_it(text):
    assert told(json_codec.Decoder().decode, text) == told(DECODER.decode, text)


LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1, 2}, object, b"x", {(1, 2): 3}, LOOP, {"a": [1j]}],
    ids=lambda value: str(type(value)),
)
def test_what_json_cant_hold_is_refused_as_json_refuses_it(codec, value):
    _, encoder = codec
    assert told(encoder.encode, value) == told(ENCODER.encode, value)


@pytest.mark.parametrize("text", ["1e999", "-1e999", "[1e400]"])
def test_a_number_beyond_64_bits_is_refused(codec, text):
    decoder, _ = codec
    with pytest.raises(ValueError, match="too large for a 64-bit float"):
        decoder.decode(text)


@pytest.mark.parametrize("text", ["[1, 2.5e3, null]", '"é\\ud83d\\ude00"', '{"a": {"b": []}}', "[", "1 2", ""])
def test_with_and_without_the_c_parts_the_same_is_read(codec, text):
    decoder, _ = codec
    assert told(decoder.decode, text) == told(DECODER.decode, text)


def test_too_deep_a_value_is_a_recursion_error(codec):
    decoder, encoder = codec
    deep = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        encoder.encode(deep)
    with pytest.raises(RecursionError):
        decoder.decode("[" * 200_000)
    while deep:
        deep = deep.pop()


def test_the_channel_loads_neither_json_nor_re():
    check = "import sys; from mcp_bridge.wire import jsonrpc; jsonrpc.decode(jsonrpc.encode(jsonrpc.Response(1, {'a': [1.5]})))"
    check += "; print(sorted({'json', 're', 'enum'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-S", "-c", check], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"
