"""Messages of clients that can't be read: which of them are answered, and with which id."""

import json

import mcp_types as types
import pytest

from mcp_bridge.downstream.transports import lines
from mcp_bridge.server.http.sessions import _decoded
from mcp_bridge.server.messages.decoding import BYTE_ORDER_MARK, UnreadableMessage, decode, outline


def refusal(line):
    with pytest.raises(UnreadableMessage) as caught:
        decode(line)
    return caught.value


def test_an_answer_with_half_an_emoji_has_a_replacement_character():
    spoilt = decode(b'{"jsonrpc":"2.0","id":5,"result":{"text":"a \\ud83d"}}').message
    assert isinstance(spoilt, types.JSONRPCResponse)
    assert spoilt.result == {"text": "a \ufffd"}


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":5,"result":{"text":' + b"[" * 3000 + b"]" * 3000 + b"}}",
        b'{"jsonrpc":"2.0","id":5,"error":{"code":1}}',
        b'{"jsonrpc":"2.0","id":5,"result":null}',
        b'{"jsonrpc":"2.0","id":5,"result":"x"}',
        b'{"id":5,"result":{}}',
        b'{"id":5,"method":null,"result":{}}',
        b'{"result":{"a":"b"c"},"jsonrpc":"2.0","id":5}',
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_to_whoever_has_asked(line):
    message, is_replaced = decode(line)
    assert isinstance(message, types.JSONRPCError)
    assert message.id == 5
    assert is_replaced


@pytest.mark.parametrize(
    "line",
    [
        b'{"result":{}}',
        b'{"id":1.5,"result":{}}',
        b'{"jsonrpc":"2.0","result":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","method":"notifications/x","params":[1]}',
    ],
)
def test_neither_an_answer_nor_a_notification_is_answered(line):
    assert refusal(line).answer() is None


CODE = b'"params":{"name":"run_python","arguments":{"code":"print("x"}}'


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (b'{"method":"tools/call",' + CODE + b',"jsonrpc":"2.0","id":3}', 3),
        (b'{"method":"tools/call",' + CODE + b',"id":3,"jsonrpc":"2.0"}', 3),
        # Cut off, it may be the id of anything.
        (b'{"jsonrpc":"2.0","method":"tools/call","params":{"a":{"id":7}', None),
        (b'{"jsonrpc":"2.0","method":"tools/call","params":{"a":{"id":7,"jsonrpc":"2.0"}', None),
        (b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"run_pyt', None),
        (b'{"jsonrpc":"2.0","\\u0069d":null,"method":"tools/call","params":{}}', None),
        (b'{"jsonrpc":"2.0","\\u0069d":1.5,"method":"tools/call","params":{}}', None),
        (b'{"jsonrpc":"2.0","method":"tools/call","params":{"a":"\\ud83d"}}', None),
        (b'{"jsonrpc":"2.0","method":"tools/list","params":[1]}', None),
    ],
)
def test_whatever_may_be_a_request_is_answered(line, number):
    answer = refusal(line).answer()
    assert isinstance(answer, types.JSONRPCError)
    assert answer.id == number


def test_half_an_emoji_beside_params_that_are_null_is_told_as_that():
    line = b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":null,"x":"\\ud800"}'
    assert "lone surrogate" in str(refusal(line))


def test_params_that_are_null_are_not_what_is_wrong():
    assert "jsonrpc" in str(refusal(b'{"id":3,"method":"ping","params":null}'))
    assert "method" in str(refusal(b'{"jsonrpc":"2.0","id":3,"method":7,"params":null}'))


def test_a_notification_may_say_that_it_has_no_id():
    message = decode(b'{"jsonrpc":"2.0","id":null,"method":"notifications/initialized"}').message
    assert isinstance(message, types.JSONRPCNotification)


def test_the_members_of_a_message_are_found_around_whatever_is_inside():
    inside = [[[{"id": 1}], {"id": [2]}], '"id":3}]', "\\", {"method": {"a": [[]]}}]
    line = json.dumps({"params": inside, "id": 4, "x": {"id": 5}, "method": "m"}).encode()
    assert lines.outer_members(line) == {b'"id"': b"4", b'"method"': b'"m"'}
    assert lines.outer_members(b'{"id":6,"result":[[["') == {b'"id"': b"6", b'"result"': b"["}


def test_the_search_for_members_ends_by_itself(monkeypatch):
    monkeypatch.setattr(lines, "_MAX_STEPS", 1000)
    assert outline(b'{"params":[' + b'1,"a",' * 5000 + b'],"id":4}').request_id == 4
    assert outline(b'{"params":' + b"[" * 5000 + b"]" * 5000 + b',"id":4}').request_id == 4
    assert outline(b'{"id":4,"params":[' + b"[]," * 5000).request_id == 4
    assert outline(b'{"params":[' + b"[]," * 5000 + b'],"id":4}').request_id is None


def test_a_mark_of_the_byte_order_alone_changes_nothing_of_what_a_session_reads():
    body = b'{"jsonrpc":"2.0","id":3,"method":"ping","params":{"x":1e999,"y":NaN}}'
    assert _decoded(BYTE_ORDER_MARK + body)[1] == body
    assert _decoded(body)[1] is body
    replaced = _decoded(b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"\\ud83d"}}')[1]
    assert json.loads(replaced)["params"] == {"a": "\ufffd"}
