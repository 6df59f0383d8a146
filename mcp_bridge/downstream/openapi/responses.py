"""A response as a tool's result: JSON as structured content, text as text, anything else as a file.

A status from 400 on is the tool's error, with the body's beginning; but one that a gateway gives in the service's place
leaves open whether the operation was done (`leaves_doubt`). What else is known of a response (its status and
headers) is in the result's `_meta`, which scripts see with `raw`.

Loads the MCP SDK: import this module only where a service is connected to.
"""

from __future__ import annotations

import base64
import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from encodings import normalize_encoding
from encodings.aliases import aliases
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)
from pydantic import Field

from mcp_bridge import large_json
from mcp_bridge.downstream.http.http_client import GATEWAY_STATUSES
from mcp_bridge.downstream.http.retry_times import retry_after
from mcp_bridge.downstream.openapi.compiled_service import is_json, is_text
from mcp_bridge.downstream.openapi.selection import READING
from mcp_bridge.downstream.transports.server_messages import OversizedResult
from mcp_bridge.offload import is_deep
from mcp_bridge.wire.jsonrpc import CONTAINER_WEIGHT, MAX_VALUES, may_hold_surrogates, values_exceed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

META_KEY = "mcp-code-bridge/http"
"""Where a result's `_meta` has the status and the headers of the response."""

ERROR_BYTES = 64 << 10
"""How much of the body of a refusal is read."""

_SHOWN_CHARS = 8000
"""How much of it an error shows."""

_MAX_HEADERS = 60
_MAX_HEADER_CHARS = 2000

_HIDDEN_HEADERS = frozenset(
    {"set-cookie", "set-cookie2", "www-authenticate", "authentication-info", "proxy-authenticate", "connection"}
    | {"keep-alive", "transfer-encoding", "trailer", "upgrade", "strict-transport-security", "alt-svc", "nel"}
)
"""Headers of a response that carry credentials, or mean nothing to a script."""


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is larger than any that a script has")
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Response:
    """A response whose body has been read.

    Attributes:
        status: Its status.
        headers: Its headers, names in lower case.
        body: The bytes, without the service's credentials.
        is_cut: Whether there was more, which wasn't read.
        hide: Hides the service's credentials in a text: an encoding can write them as other bytes.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    is_cut: bool = False
    hide: Callable[[str], str] = field(default=str, repr=False)

    @property
    def media_type(self) -> str:
        """The content type without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        """The encoding of a text."""
        for parameter in self.headers.get("content-type", "").split(";")[1:]:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "charset":
                return value.strip().strip('"')[:40] or "utf-8"
        return "utf-8"


class Refusal(CallToolResult):
    """The result of a call that the service refused.

    Attributes:
        body: What an error has as `body`. No part of the result itself, whose content has the same as text.
    """

    body: Any = Field(default=None, exclude=True)


def visible_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers of a response that scripts may see, names in lower case."""
    found: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in _HIDDEN_HEADERS or len(found) >= _MAX_HEADERS or len(value) > _MAX_HEADER_CHARS:
            continue
        found[lower] = f"{found[lower]}, {value}" if lower in found else value
    return found


_IN_ITS_PLACE = GATEWAY_STATUSES | {HTTPStatus.REQUEST_TIMEOUT, *range(520, 528)}
"""Statuses in place of a service's own; the last ones are Cloudflare's. 500 and 501 are a service's word on itself."""


def leaves_doubt(method: str, response: Response) -> bool:
    """Whether a response doesn't tell if an operation was done that may have had an effect."""
    return response.status in _IN_ITS_PLACE and method.lower() not in READING


def to_result(method: str, response: Response) -> CallToolResult:
    """A response as a tool's result.

    Raises:
        MCPError: With `OversizedResult`: its JSON has more values than a result may have.
        AnswerError: Its JSON is none.
    """
    meta = {META_KEY: {"status": response.status, "headers": response.headers}}
    if response.status >= HTTPStatus.BAD_REQUEST:
        return Refusal(content=[_text(said(response))], is_error=True, _meta=meta, body=_shown_body(response))
    if method == "HEAD" or response.status >= HTTPStatus.MULTIPLE_CHOICES:
        return CallToolResult(content=[], structured_content=meta[META_KEY], _meta=meta)
    if not response.body:
        return CallToolResult(content=[], _meta=meta)
    kind = response.media_type
    if is_json(kind):
        value = _decoded(response.body)
        return CallToolResult(content=[], structured_content=value, _meta=meta)
    return CallToolResult(content=[_block(response)], _meta=meta)


_REQUEST_IDS = ("x-request-id", "request-id", "x-correlation-id")
"""Headers by which a service's operator finds a request."""


def error_details(result: CallToolResult) -> dict[str, Any]:
    """What an error of a call tells scripts beside its message: `status`, `body`, `retry_in` (s), `request_id`."""
    found = (result.meta or {}).get(META_KEY, {})
    headers = found.get("headers", {})
    details = {"status": found["status"]} if "status" in found else {}
    if isinstance(result, Refusal) and result.body is not None:
        details["body"] = result.body
    if (wait := retry_after(headers.get("retry-after"))) is not None:
        details["retry_in"] = wait
    if (request_id := next((headers[name] for name in _REQUEST_IDS if name in headers), None)) is not None:
        details["request_id"] = request_id
    return details


def _shown_body(response: Response) -> Any:
    """The value of a refusal's JSON, or the beginning of its text; None for other bytes and for nothing."""
    if is_json(response.media_type) and not response.is_cut:
        with suppress(AnswerError, MCPError):
            return _decoded(response.body)
    return _beginning(response)


class AnswerError(Exception):
    """An answer isn't what its content type says. The message follows "the server"."""


def _decoded(body: bytes) -> Any:
    if CONTAINER_WEIGHT * len(body) > MAX_VALUES and values_exceed(body, MAX_VALUES):
        data = OversizedResult(len(body), f"{MAX_VALUES} values")
        raise MCPError(code=INTERNAL_ERROR, message="oversized", data=data)
    try:
        value = large_json.loads(body.removeprefix(b"\xef\xbb\xbf").strip(), _decoder)
        if is_deep(value, large_json.MAX_DEPTH):
            raise RecursionError
        if may_hold_surrogates(body):
            large_json.dumps(value, _encoder).encode()
    except RecursionError:
        data = OversizedResult(len(body), f"{large_json.MAX_DEPTH} levels of nesting")
        raise MCPError(code=INTERNAL_ERROR, message="oversized", data=data) from None
    except ValueError:
        raise AnswerError("sent an answer that isn't the JSON that it says it is") from None
    return value


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


_CHARSETS = frozenset(
    {"ascii", "utf_8", "utf_8_sig", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "latin_1"}
    | {f"iso8859_{part}" for part in (*range(2, 12), *range(13, 17))}
    | {f"cp{page}" for page in (437, 850, 866, 874, 932, 949, 950, *range(1250, 1259))}
    | {"koi8_r", "koi8_u", "mac_roman", "mac_cyrillic", "gb2312", "gbk", "gb18030", "big5", "big5hkscs"}
    | {"shift_jis", "euc_jp", "iso2022_jp", "euc_kr"}
)
"""The encodings of text that are decoded, as Python calls them. Python has others, some of which take a time that grows
with the square of the text (`punycode`), raise errors (`idna`) or make lone surrogates (`utf-7`, `unicode_escape`)."""


def _plain(response: Response) -> str:
    # Looked up here: Python would remember each name that it doesn't know.
    name = normalize_encoding(response.charset).lower()
    known = aliases.get(name, name)
    if known not in _CHARSETS or known == "utf_8":
        return response.body.decode("utf-8", "replace")
    return response.hide(response.body.decode(known, "replace"))


def said(response: Response) -> str:
    """What an error says: the status, and what the service has to say of it."""
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    head = f"HTTP {response.status} {phrase}".rstrip()
    if not response.body:
        return head
    text = _beginning(response)
    if text is None:
        return f"{head} ({len(response.body)} bytes of {response.media_type or 'an unknown type'})"
    return f"{head}: {text}"


def _beginning(response: Response) -> str | None:
    """The beginning of a body; None if it is no text, or there is none."""
    kind = response.media_type
    if not response.body or (not is_text(kind) and not (kind == "" and _looks_like_text(response.body))):
        return None
    text = _plain(response).strip()
    return f"{text[:_SHOWN_CHARS]}…" if len(text) > _SHOWN_CHARS or response.is_cut else text


def _looks_like_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return b"\x00" not in body


def _block(response: Response) -> ContentBlock:
    kind = response.media_type
    if is_text(kind) or (kind == "" and _looks_like_text(response.body)):
        return _text(_plain(response))
    data = base64.b64encode(response.body).decode()
    if kind.startswith("image/"):
        return ImageContent(type="image", data=data, mime_type=kind)
    if kind.startswith("audio/"):
        return AudioContent(type="audio", data=data, mime_type=kind)
    resource = BlobResourceContents(uri="response:body", mime_type=kind or "application/octet-stream", blob=data)
    return EmbeddedResource(type="resource", resource=resource)
