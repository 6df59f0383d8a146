"""JSON-RPC 2.0 messages, encoded to and decoded from one line of UTF-8 (https://www.jsonrpc.org/specification).

Stricter than the specification to reduce the attack surface: ids are positive integers, parameters are objects, there
are no batches, numbers are finite, text is valid Unicode.
"""

import sys

from mcp_bridge.wire.annotations import Any, Callable, Iterator, NamedTuple, TypeAlias
from mcp_bridge.wire.errors import LocalMessageError, WireError
from mcp_bridge.wire.framing import MAX_FRAME_BYTES, excerpt
from mcp_bridge.wire.json_codec import Decoder, Encoder

MAX_DEPTH = 64
"""The deepest nesting of arrays and objects that either side accepts, including the message itself."""

MAX_VALUES = 500_000
"""The maximum number of values in a frame. An array or object counts as CONTAINER_WEIGHT, and a number with a fraction
or exponent as two. An empty list takes thirty times the memory of its three bytes: with a bound on the frame's bytes
alone, 16 MB could become half a gigabyte. Encoding and decoding JSON also holds the interpreter lock until it is done,
in any thread: about 30 ms for so many integers, and 60 to 100 ms for fractions and objects, of which a quarter to a
half as many are allowed."""

CONTAINER_WEIGHT = 3
"""The weight of an array or object, relative to a short number."""

MAX_ID = 2**53

MAX_DIGITS = 4300
"""Of an integer: what Python reads of a text unless it is told otherwise (`sys.int_info.default_max_str_digits`)."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)'
_PART_BYTES = 64 << 10
_FEW_QUOTES = 1000


class Request(NamedTuple):
    """A call that expects an answer."""

    id: int
    method: str
    params: dict[str, Any]


class Notification(NamedTuple):
    """A call that expects no answer."""

    method: str
    params: dict[str, Any]


class Response(NamedTuple):
    """The answer to a request."""

    id: int
    result: Any


class ErrorResponse(NamedTuple):
    """The answer to a request that failed; `data` contains our stable string code and details."""

    id: int
    code: int
    message: str
    data: dict[str, Any]


Message: TypeAlias = "Request | Notification | Response | ErrorResponse"

APPLICATION_ERROR = -32000
"""The only numeric code that we send: programs use the string code in `data`."""


_DECODER = Decoder()
_ENCODER = Encoder()


def _loads(line: bytes, decoder: Decoder) -> Any:
    return decoder.decode(line.decode())


def dumps(value: Any, encoder: Encoder) -> str:
    """Encode a value in one step."""
    return encoder.encode(value)


def depth_exceeds(value: Any, limit: int) -> bool:
    """Whether arrays and objects nest deeper than `limit` levels. Not recursive."""
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def values_exceed(line: bytes, limit: int) -> bool:
    """Whether a line of JSON has more values than a limit, weighted as for MAX_VALUES."""
    if CONTAINER_WEIGHT * len(line) <= limit or sum(map(_weight, parts(line))) <= limit:
        return False
    # The rest is exact: a long string may contain many commas.
    weight = 0
    for part in _without_texts(line):
        weight += _weight(part)
        if weight > limit:
            return True
    return False


def _values_only(line: bytes) -> bytes:
    """A long line of JSON without its strings, if these are few and have no escapes, such as a file's part in base64.

    Any other line is returned as it is. To look at what is left takes a fraction of the time.
    """
    if len(line) <= _PART_BYTES or b"\\" in line or sum(part.count(b'"') for part in parts(line)) > _FEW_QUOTES:
        return line
    return b"".join(line.split(b'"')[::2])


def parts(line: bytes) -> Iterator[bytes]:
    """A line, cut into parts of limited size: one pass over all of it would hold the interpreter lock."""
    if len(line) <= _PART_BYTES:
        yield line
        return
    for start in range(0, len(line), _PART_BYTES):
        yield line[start : start + _PART_BYTES]


def _without_texts(line: bytes) -> Iterator[bytes]:
    """A line of JSON without its strings, in parts."""
    import re  # noqa: PLC0415  (rarely needed, and slow to import)
    from collections import deque  # noqa: PLC0415  (likewise)

    # The closing quote is optional, so that an unterminated string matches too, and the search stays linear.
    texts = re.compile(_STRING, re.DOTALL)
    start = 0
    size = _PART_BYTES
    while start < len(line):
        part = line[start : start + size]
        last = deque(texts.finditer(part), maxlen=1)
        if not last or last[0][1] or start + size >= len(line):
            yield texts.sub(b"", part)
            start += size
            size = _PART_BYTES
            continue
        # A string continues beyond this part: the next part begins with it.
        if begins := last[0].start():
            yield texts.sub(b"", part[:begins])
            start += begins
            size = _PART_BYTES
        else:
            size *= 2


def _weight(line: bytes) -> int:
    """The estimated weight of the values in a line of JSON; too high if the line contains strings."""
    exponents = line.count(b"e") - line.count(b"true") - line.count(b"false") + line.count(b"E")
    containers = line.count(b"[") + line.count(b"{")
    return line.count(b",") + CONTAINER_WEIGHT * containers + line.count(b".") + exponents


def separators(line: bytes) -> int:
    """The estimated number of values in a line of JSON, including those inside its strings."""
    if len(line) <= _PART_BYTES:
        return line.count(b",") + _brackets(line)
    return sum(part.count(b",") + part.count(b"[") + part.count(b"{") for part in parts(line))


def _brackets(line: bytes) -> int:
    if len(line) <= _PART_BYTES:
        return line.count(b"[") + line.count(b"{")
    return sum(part.count(b"[") + part.count(b"{") for part in parts(line))


def may_hold_surrogates(line: bytes) -> bool:
    """Whether a line of JSON has an escaped surrogate: a lone one can't be encoded as UTF-8."""
    if len(line) <= _PART_BYTES:
        return b"\\ud" in line or b"\\uD" in line
    # Also across the boundaries of parts.
    return any(
        b"\\ud" in (piece := line[start : start + _PART_BYTES + 2]) or b"\\uD" in piece
        for start in range(0, len(line), _PART_BYTES)
    )


def decode(
    line: bytes,
    *,
    max_depth: int = MAX_DEPTH,
    loads: Callable[[bytes, Decoder], Any] = _loads,
    dumps: Callable[[Any, Encoder], str] = dumps,
) -> Message:
    """Decode one line.

    Args:
        line: The line, with or without its newline.
        max_depth: The maximum nesting of arrays and objects.
        loads: Decodes JSON; the host's implementation doesn't hold its interpreter lock.
        dumps: Encodes JSON, likewise.

    Raises:
        WireError: `bad_frame`, `frame_too_deep` or `frame_too_large`. No other exception, whatever the bytes.
    """
    values = _values_only(line)
    if values_exceed(values, MAX_VALUES):
        raise WireError("frame_too_large", f"a frame holds more than {MAX_VALUES} values", excerpt(line))
    try:
        value = loads(line, _DECODER)
        # A line with fewer brackets than the limit can't be too deep: this avoids walking most values.
        if _brackets(values) > max_depth and depth_exceeds(value, max_depth):
            raise WireError("frame_too_deep", f"a frame nests deeper than {max_depth} levels", excerpt(line))
        if values is line and may_hold_surrogates(line):
            dumps(value, _ENCODER).encode("utf-8")
    except RecursionError:
        raise WireError("frame_too_deep", f"a frame nests deeper than {max_depth} levels", excerpt(line)) from None
    except ValueError as exc:
        raise WireError("bad_frame", f"a frame is not JSON in UTF-8: {exc}", excerpt(line)) from None
    return _classify(value, line)


def _classify(value: Any, line: bytes) -> Message:
    if not isinstance(value, dict) or value.pop("jsonrpc", None) != "2.0":
        raise _no_message(line, 'no object with "jsonrpc": "2.0"')
    keys = value.keys()
    if "id" in keys and not (type(value["id"]) is int and 0 < value["id"] <= MAX_ID):
        raise _no_message(line, "the id is no positive integer")
    if "method" in keys:
        method, params = value["method"], value.get("params", {})
        if not isinstance(method, str) or not isinstance(params, dict) or not keys <= {"id", "method", "params"}:
            raise _no_message(line, "a request has a method, parameters as an object, and an id")
        return Request(value["id"], method, params) if "id" in keys else Notification(method, params)
    if keys == {"id", "result"}:
        return Response(value["id"], value["result"])
    if keys == {"id", "error"}:
        error = value["error"]
        if (
            isinstance(error, dict)
            and error.keys() <= {"code", "message", "data"}
            and type(error.get("code")) is int
            and isinstance(error.get("message"), str)
            and isinstance(error.get("data", {}), dict)
        ):
            return ErrorResponse(value["id"], error["code"], error["message"], error.get("data", {}))
        raise _no_message(line, "an error has a code, a message and data as an object")
    raise _no_message(line, "neither a request nor a response")


def _no_message(line: bytes, why: str) -> WireError:
    return WireError("bad_frame", f"a frame is not a message of this channel: {why}", excerpt(line))


def encode(
    message: Message,
    *,
    max_bytes: int = MAX_FRAME_BYTES,
    max_depth: int = MAX_DEPTH,
    dumps: Callable[[Any, Encoder], str] = dumps,
) -> bytes:
    """Encode a message as one line with its newline. `dumps` as in `decode`.

    Raises:
        LocalMessageError: `not_json` (a type, a NaN, a lone surrogate), `frame_too_deep`, `frame_too_large`.
    """
    body: dict[str, Any] = {"jsonrpc": "2.0"}
    if isinstance(message, ErrorResponse):
        body["id"] = message.id
        body["error"] = {"code": message.code, "message": message.message, "data": message.data}
    else:
        body.update(zip(message._fields, message, strict=True))
    try:
        line = dumps(body, _ENCODER).encode("utf-8")
    except RecursionError:
        raise LocalMessageError("frame_too_deep", f"the value nests deeper than {max_depth} levels") from None
    except UnicodeEncodeError:
        raise LocalMessageError("not_json", "the text holds a lone surrogate, which UTF-8 can't carry") from None
    except (TypeError, ValueError) as exc:
        if str(exc).startswith("Exceeds the limit"):
            # Its text advises to raise the limit, which the other side would not know of.
            raise _too_long(sys.get_int_max_str_digits()) from None
        raise LocalMessageError("not_json", f"the value can't be written as JSON: {exc}") from None
    if len(line) > max_bytes:
        raise LocalMessageError("frame_too_large", f"the message has {len(line)} bytes; the limit is {max_bytes}")
    values = _values_only(line)
    if values_exceed(values, MAX_VALUES):
        raise LocalMessageError("frame_too_large", f"the message holds more than {MAX_VALUES} values")
    if _brackets(values) > max_depth and depth_exceeds(body, max_depth):
        raise LocalMessageError("frame_too_deep", f"the value nests deeper than {max_depth} levels")
    if not 0 < sys.get_int_max_str_digits() <= MAX_DIGITS and _has_long_integer(body):
        raise _too_long(MAX_DIGITS)
    return line + b"\n"


def _too_long(digits: int) -> LocalMessageError:
    why = f"an integer of more than {digits} digits; write it as text"
    return LocalMessageError("not_json", f"the value can't be written as JSON: {why}")


def _has_long_integer(value: Any) -> bool:
    """Whether an integer in a value has more than MAX_DIGITS digits. Not recursive."""
    first = 10**MAX_DIGITS
    level = [value]
    while level:
        following: list[Any] = []
        for node in level:
            for child in node.values() if isinstance(node, dict) else node:
                if isinstance(child, (dict, list, tuple)):
                    following.append(child)
                elif isinstance(child, int) and abs(child) >= first:
                    return True
        level = following
    return False
