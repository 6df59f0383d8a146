"""Answers that are base64 alone, as the parts of files are: the same bytes as JSON's, encoded and decoded in one step.

Most of the time that a large file takes would be spent on looking at each character of it several times.
"""

from mcp_bridge.wire.jsonrpc import Response

_BEGIN = b'{"jsonrpc":"2.0","id":'
_RESULT = b',"result":{"base64":"'
_END = b'"}}'

_MAX_HEAD = 64
"""Bytes in which all before the base64 stands."""


class Base64(bytes):
    """A result `{"base64": ...}`, as the text in ASCII that it is on the wire."""

    __slots__ = ()


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
