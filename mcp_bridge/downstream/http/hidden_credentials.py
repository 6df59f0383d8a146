"""Credentials of remote servers are hidden where a server repeats them in an answer: a script must not see them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mcp_bridge.downstream.http.remote_auth import SECRET_SCHEME, RemoteAccess
from mcp_bridge.escaping import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx2

    from mcp_bridge.downstream.configuration.spec import ServerSpec

HIDDEN = b"[hidden]"
"""What stands for a credential that a server repeats."""

_CREDENTIAL_NAME = re.compile(r"auth|cookie|credential|key|pass|secret|signature|token", re.IGNORECASE)
"""Headers whose values are credentials, by their names. Another's value may be in an answer for good reason."""

# Characters of a part of an address's path that may be a credential, which nobody guesses.
_SECRET_PART_CHARS = 20

# Characters of a refusal's body that an error shows.
_SHOWN_CHARS = 500

# Values of credentials' headers that are remembered; a token is renewed every few minutes at most.
_MAX_CREDENTIALS = 1000


def plain_credentials(headers: Mapping[str, str]) -> list[str]:
    """The names of an entry's headers whose values are credentials, and are written out there."""
    return [
        name
        for name, value in headers.items()
        if _CREDENTIAL_NAME.search(name) and SECRET_SCHEME not in value and "${" not in value
    ]


class HiddenCredentials:
    """What the requests of one connection are authenticated with, hidden in what comes back.

    Args:
        spec: The server.
        access: What its connection is authenticated with, and whether a credential is hidden.
    """

    def __init__(self, spec: ServerSpec, access: RemoteAccess) -> None:
        self._access = access
        self._headers = {"authorization"} | {
            name.lower()
            for name, value in spec.headers.items()
            if _CREDENTIAL_NAME.search(name) or SECRET_SCHEME in value
        }
        self._credentials: set[bytes] = set()
        self._noted: set[str] = set()
        self._is_any_shown = any(not access.is_hidden(text) for text in _credentials_in(spec.address or ""))
        """Whether there is a credential that isn't hidden."""
        self._in_address = [text for text in _credentials_in(spec.address or "") if access.is_hidden(text)]

    async def note_request(self, request: httpx2.Request) -> None:
        """Know what a request is authenticated with: tokens change while a connection lasts."""
        for name in self._headers:
            value = request.headers.get(name)
            if value is None or value in self._noted:
                continue
            if len(self._noted) >= _MAX_CREDENTIALS:
                self._noted.clear()
            self._noted.add(value)
            # The scheme of `Authorization` is no secret: `Bearer`.
            self.note(value.partition(" ")[2].strip() or value if name == "authorization" else value)

    def note(self, credential: str) -> None:
        """Hide a credential from now on, unless that would confirm a guess."""
        if self._access.is_hidden(credential):
            self._credentials |= set(_written(credential))
        else:
            self._is_any_shown = True

    def hide(self, text: bytes) -> bytes:
        """The text without the credentials."""
        for credential in self._credentials:
            # A search of a message's bytes takes less than its parsing by orders of magnitude.
            if credential in text:
                text = text.replace(credential, HIDDEN)
        return text

    def shown(self, said: bytes) -> str:
        """The beginning of what a server says with a refusal, for an error: on one line, without the credentials.

        Empty where a credential isn't hidden, whatever is said: an error is logged, too.
        """
        if self._is_any_shown:
            return ""
        said = self.hide(said)
        for credential in self._in_address:
            said = said.replace(credential.encode(), HIDDEN)
        return one_line(said.decode("utf-8", "replace"), _SHOWN_CHARS)


def _credentials_in(address: str) -> Iterator[str]:
    """What of an address may be a credential, as it is there and decoded."""
    parts = urlsplit(address)
    fields = (field.partition("=") for field in parts.query.split("&"))
    named = [value for name, _, value in fields if value and _CREDENTIAL_NAME.search(name)]
    for text in (*named, *(part for part in parts.path.split("/") if len(part) >= _SECRET_PART_CHARS)):
        yield text
        yield unquote(text)


def _written(credential: str) -> Iterator[bytes]:
    """A credential as it is in a text, and as JSON writes it."""
    for text in (credential, json.dumps(credential)[1:-1], json.dumps(credential, ensure_ascii=False)[1:-1]):
        yield text.encode()
        yield text.replace("/", r"\/").encode()
