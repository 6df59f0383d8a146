"""Frames that are mostly base64, as the parts of files are: the same bytes as JSON's, made and taken apart in one step.

Most of the time that a large file takes would be spent on looking at each character of it several times.
"""

from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.annotations import Any
from mcp_bridge.wire.framing import MAX_FRAME_BYTES
from mcp_bridge.wire.jsonrpc import Request, Response

_BEGIN = b'{"jsonrpc":"2.0","id":'
_RESULT = b',"result":{"base64":"'
_END = b'"}}'

_MAX_HEAD = 64
"""Bytes in which all before the base64 stands."""


class Base64(bytes):
    """A result `{"base64": ...}`, as the text in ASCII that it is on the wire."""

    __slots__ = ()


_EMPTY = b'"base64":""'


def encode_request(number: int, method: str, params: dict[str, Any], data: bytes) -> bytes:
    """The line of a request whose parameter `base64` is `data`, text in ASCII; in `params` it is empty.

    Raises:
        LocalMessageError: As `jsonrpc.encode`.
    """
    line = jsonrpc.encode(Request(number, method, params), max_bytes=MAX_FRAME_BYTES - len(data))
    # A quote within a text is escaped, so none looks like this.
    at = line.rindex(_EMPTY) + len(_EMPTY) - 1
    return b"".join((line[:at], data, line[at:]))


def encode(number: int, data: Base64) -> bytes:
    """The line of an answer, with its newline: what `jsonrpc.encode` would make of it."""
    return b"".join((_BEGIN, b"%d" % number, _RESULT, data, _END, b"\n"))


def decode(line: bytes) -> Response | None:
    """The answer of a line of the host's; None if it is anything else. The base64 stays bytes, and isn't looked at."""
    if not line.startswith(_BEGIN) or not line.endswith(_END):
        return None
    end = line.find(_RESULT, len(_BEGIN), _MAX_HEAD)
    number = line[len(_BEGIN) : end]
    if end < 0 or not number.isdigit():
        return None
    return Response(int(number), {"base64": line[end + len(_RESULT) : -len(_END)]})
