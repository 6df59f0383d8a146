"""Frames that are mostly base64 are the same bytes as JSON's, and are taken for nothing else."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.wire import base64_frames, jsonrpc
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.framing import MAX_FRAME_BYTES

NUMBERS = st.integers(1, jsonrpc.MAX_ID)


@given(NUMBERS, st.binary(max_size=2000))
def test_an_answer_is_what_json_would_be_and_is_decoded_to_the_same(number, data):
    text = base64.b64encode(data)
    line = base64_frames.encode(number, base64_frames.Base64(text))
    assert line == jsonrpc.encode(jsonrpc.Response(number, {"base64": text.decode()}))
    decoded = base64_frames.decode(line[:-1])
    assert (decoded.id, decoded.result) == (number, {"base64": text})


@given(NUMBERS, st.text(st.characters(exclude_categories=["Cs"])) | st.just('"base64":""'), st.binary(max_size=200))
def test_a_request_is_what_json_would_be(number, name, data):
    text = base64.b64encode(data)
    params = {"name": name, "base64": "", "first": True, "last": False}
    line = base64_frames.encode_request(number, "artifact.write", params, text)
    assert line == jsonrpc.encode(jsonrpc.Request(number, "artifact.write", params | {"base64": text.decode()}))


@given(st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_other_answers_are_not_taken_for_one(result):
    line = json.dumps({"jsonrpc": "2.0", "id": 5, "result": result}, separators=(",", ":")).encode()
    assert base64_frames.decode(line) is None


def test_a_frame_over_the_limit_is_refused():
    params = {"name": "n", "base64": "", "first": True, "last": True}
    with pytest.raises(LocalMessageError, match="the limit is"):
        base64_frames.encode_request(1, "artifact.write", params, b"A" * MAX_FRAME_BYTES)
