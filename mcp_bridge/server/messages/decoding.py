"""Messages of clients, decoded; one that can't be read is refused with the id of its request, so that nobody waits.

JSON that RFC 8259 allows and no Unicode text can hold, the escape of a lone surrogate, is replaced where nothing runs
by it: in a notification, and in an answer. In a request it is refused: its code, or its key, would be another.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import mcp_types as types
from mcp.shared.dispatcher import as_request_id
from pydantic import ValidationError
from pydantic_core import from_json

from mcp_bridge.downstream.transports.lines import is_answer, outer_members
from mcp_bridge.wire.jsonrpc import may_hold_surrogates

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""RFC 8259 section 8.1 allows to ignore it."""

BATCH = "Batches of messages aren't taken. Send each message separately."

NO_ID = (
    "A request's id has to be a string or an integer. This request was not begun. Leave the id out of a notification, "
    "which isn't answered."
)

LONE_SURROGATE = (
    "A text of the request holds a lone surrogate, half of a pair such as that of an emoji (\\ud83d): it is no Unicode "
    "text. Nothing was run. Send the whole character, or leave it out; code can write it as an escape."
)

_MAX_ID_BYTES = 1000
_INTEGER = re.compile(rb"-?\d{1,18}")

# Beside the version it is the message's own, and none of something inside of a message that was cut off.
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID_AT_END = re.compile(
    rb'(?:%b\s*,\s*"id"\s*:\s*(\d{1,18})|"id"\s*:\s*(\d{1,18})\s*,\s*%b)\s*\}\s*$' % (_VERSION, _VERSION)
)


class UnreadableMessage(Exception):  # noqa: N818 - it is what a client has sent
    """A message that can't be read.

    Attributes:
        code: JSON-RPC's code of the error.
        request_id: The id of the request, or None if there is none to be seen.
        is_answered: Whether it is answered: a notification isn't.
        is_call: Whether a text of a tool's arguments is all that is wrong. Its answer is the tool's: a model reads it.
        error_code: Our code of the error.
    """

    def __init__(
        self,
        code: int,
        message: str,
        request_id: types.RequestId | None = None,
        *,
        is_answered: bool = True,
        is_call: bool = False,
        error_code: Code = "bad_argument",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id
        self.is_answered = is_answered
        self.is_call = is_call
        self.error_code = error_code

    def answer(self) -> types.JSONRPCResponse | types.JSONRPCError | None:
        """The answer to it, if it has one."""
        if not self.is_answered:
            return None
        if self.is_call and self.request_id is not None:
            content = types.TextContent(type="text", text=f"[{self.error_code}] {self}")
            result = types.CallToolResult(content=[content], is_error=True)
            data = result.model_dump(mode="json", by_alias=True, exclude_none=True)
            return types.JSONRPCResponse(jsonrpc="2.0", id=self.request_id, result=data)
        error = types.ErrorData(code=self.code, message=str(self), data={"code": self.error_code})
        return types.JSONRPCError(jsonrpc="2.0", id=self.request_id, error=error)


class DecodedMessage(NamedTuple):
    """A message.

    Attributes:
        message: The message.
        is_replaced: Whether it differs from its bytes, so that nobody else may read these. A mark of the byte order
            doesn't count.
    """

    message: types.JSONRPCMessage
    is_replaced: bool


class Outline(NamedTuple):
    """What a line shows of its message, even if no parser takes it.

    Attributes:
        request_id: Its id, or None if there is none to be seen.
        is_answer: Whether it is an answer. That is never answered: its id is one of ours.
        is_notification: Whether it is a notification.
    """

    request_id: types.RequestId | None
    is_answer: bool
    is_notification: bool


def outline(line: bytes) -> Outline:
    """The outline of a line."""
    members = outer_members(line)
    number = _request_id(members.get(b'"id"'))
    if number is None and b'"jsonrpc"' not in members and (match := _ID_AT_END.search(line[-_MAX_ID_BYTES:])):
        number = int(match[1] or match[2])
    method = members.get(b'"method"', b"")
    return Outline(number, is_answer(members), number is None and method.startswith(b'"notifications/'))


def decode(data: bytes) -> DecodedMessage:
    """Decode a message.

    An answer that can't be read is replaced by an error with its id: whoever has asked gets that.

    Raises:
        UnreadableMessage: It can't be read, or is none.
    """
    line = data.removeprefix(BYTE_ORDER_MARK)
    is_replaced = False
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as exc:
        message = _second_look(line, exc)
        is_replaced = True
    # MCP has no other notifications. It is a request whose id is none, as 1.5 or null.
    if isinstance(message, types.JSONRPCNotification) and not message.method.startswith("notifications/"):
        raise UnreadableMessage(types.INVALID_REQUEST, NO_ID)
    return DecodedMessage(message, is_replaced)


def _second_look(line: bytes, error: ValidationError) -> types.JSONRPCMessage:
    """What is passed on in place of a message that can't be read.

    Raises:
        UnreadableMessage: It is no answer, or nothing says of which request.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] != "json_invalid":
        return _no_message(line)
    if may_hold_surrogates(line) and (message := _without_lone_surrogates(line)) is not None:
        return message
    shown = outline(line)
    why = f"Parse error: {first.get('ctx', {}).get('error', 'this is no JSON')}."
    if shown.is_answer:
        return no_answer(types.PARSE_ERROR, f"No answer. {why}", shown.request_id)
    if shown.is_notification:
        raise UnreadableMessage(types.PARSE_ERROR, why, is_answered=False)
    raise UnreadableMessage(types.PARSE_ERROR, f"{why} Nothing was run.", shown.request_id)


def no_answer(code: int, why: str, request_id: types.RequestId | None) -> types.JSONRPCError:
    """What is passed on in place of an answer that can't be taken.

    Args:
        code: JSON-RPC's code of the error.
        why: Why it can't be taken.
        request_id: The id of the request that it answers, or None if there is none to be seen.

    Raises:
        UnreadableMessage: Nothing says of which request it is.
    """
    if request_id is None:
        raise UnreadableMessage(code, why, is_answered=False)
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=types.ErrorData(code=code, message=why))


def unforeseen(line: bytes, error: Exception) -> UnreadableMessage:
    """The refusal of a message at which we have failed. It has the error's type alone: its text may hold a secret."""
    shown = outline(line)
    return UnreadableMessage(
        types.INTERNAL_ERROR,
        f"The bridge has failed to read the message ({type(error).__name__}). Nothing was run.",
        shown.request_id,
        is_answered=not (shown.is_answer or shown.is_notification),
        error_code="internal_error",
    )


def _without_lone_surrogates(line: bytes) -> types.JSONRPCMessage | None:
    """A notification or an answer with lone surrogates replaced; None if there are none, or it can't be read.

    Raises:
        UnreadableMessage: It is a request.
    """
    try:
        value = json.loads(line)
        text = json.dumps(value, ensure_ascii=False)
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if whole == text:
            return None
        message = types.jsonrpc_message_adapter.validate_json(whole, by_name=False)
    except (ValueError, RecursionError):
        return None
    if isinstance(message, types.JSONRPCRequest):
        number = message.id if message.id == value["id"] else None
        is_call = message.method == "tools/call" and _has_whole_text(_without_arguments(value))
        raise UnreadableMessage(types.INVALID_REQUEST, LONE_SURROGATE, number, is_call=is_call, error_code="bad_text")
    return message


def _without_arguments(value: dict[str, Any]) -> dict[str, Any]:
    # It may be null, as some serializers write one that has none.
    return {**value, "params": {**(value.get("params") or {}), "arguments": None}}


def _has_whole_text(value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") == text


def _no_message(line: bytes) -> types.JSONRPCError:
    """What is passed on in place of a JSON document that is no message.

    Raises:
        UnreadableMessage: It is no answer, or nothing says of which request. It says what is wrong.
    """
    value = from_json(line)
    code = types.INVALID_REQUEST
    if isinstance(value, list):
        raise UnreadableMessage(code, BATCH)
    if not isinstance(value, dict):
        raise UnreadableMessage(code, "A message is a JSON object.")
    number = as_request_id(value.get("id"))
    method = value.get("method")
    # First of all: the id of an answer is one of ours, and the client may have a request with the same.
    if method is None and ("result" in value or "error" in value):
        return no_answer(code, "This is no answer that JSON-RPC 2.0 knows.", number)
    is_notification = number is None and isinstance(method, str) and method.startswith("notifications/")
    if value.get("jsonrpc") != "2.0":
        why = 'A message has "jsonrpc": "2.0".'
    elif not isinstance(method, str):
        why = "A request has a method, which is a string."
    elif not isinstance(value.get("params"), dict | None):
        why = "The params of a request are an object."
    else:
        why = NO_ID
    raise UnreadableMessage(code, why, number, is_answered=not is_notification)


def _request_id(token: bytes | None) -> types.RequestId | None:
    if token is None or len(token) > _MAX_ID_BYTES:
        return None
    if _INTEGER.fullmatch(token):
        return int(token)
    try:
        value = json.loads(token)
        value.encode()
    except (AttributeError, ValueError):
        return None
    return str(value)
