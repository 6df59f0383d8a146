"""A response's body without the token that its request had: a server may repeat what it was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MARKER = b"[REDACTED]"
"""As `policy.secrets.vault_uris.REDACTED`."""


class MaskedStream(httpx2.AsyncByteStream):
    """A stream of bytes in which a token is replaced, also where it is spread over several chunks.

    The token is found as it is, in JSON with escaped slashes, and percent-encoded. Bytes are held back only while they
    may be the beginning of the token, so events of a stream aren't delayed.

    Args:
        stream: The stream.
        token: The token.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, token: str) -> None:
        self._stream = stream
        forms = {token, token.replace("/", "\\/"), quote(token, safe="")}
        self._forms = sorted((form.encode() for form in forms), key=len, reverse=True)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The chunks."""
        held = b""
        async for chunk in self._stream:
            data = held + chunk
            for form in self._forms:
                data = data.replace(form, MARKER)
            begin = min(_beginning(data, form) for form in self._forms)
            data, held = data[:begin], data[begin:]
            if data:
                yield data
        if held:
            yield held

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


def _beginning(data: bytes, form: bytes) -> int:
    """Where the last bytes begin that may be the beginning of a form; the length of the data if there are none."""
    at = max(0, len(data) - len(form) + 1)
    while (at := data.find(form[:1], at)) != -1:
        if form.startswith(data[at:]):
            return at
        at += 1
    return len(data)


class NoBody(httpx2.AsyncByteStream):
    """An empty body in place of one that nobody needs, however large it is.

    Args:
        stream: The body, which is closed unread.
    """

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Nothing."""
        nothing: tuple[bytes, ...] = ()
        for chunk in nothing:
            yield chunk

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()
