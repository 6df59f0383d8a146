"""Credentials of remote servers are hidden where a server repeats them in an answer: a script must not see them."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mcp_bridge.downstream.http.escaped_text import replaced, unescaped
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

_AUTHENTICATION = re.compile(r"(?:basic|bearer|token) +(\S+)", re.IGNORECASE)
"""A header's value that begins with the name of a scheme."""

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
        self._credentials: frozenset[bytes] = frozenset()
        """Replaced, never changed: answers are searched on other threads."""
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
            for credential in _credentials_of(name, value):
                self.note(credential)

    def note(self, credential: str) -> None:
        """Hide a credential from now on, unless that would confirm a guess."""
        if self._access.is_hidden(credential):
            self._credentials |= frozenset(self._forms(credential))
        else:
            self._is_any_shown = True

    def _forms(self, credential: str) -> Iterator[bytes]:
        """What is looked for: the credential, as forms and JSON write it, without its padding, and as `unescaped`."""
        for text in (credential, credential.replace(" ", "+"), json.dumps(credential)[1:-1], credential.rstrip("=")):
            form = text.encode("utf-8", "surrogatepass")
            for each in (form, unescaped(form)):
                if self._access.is_hidden(each.decode("utf-8", "replace")):
                    yield each

    def hide(self, text: bytes) -> bytes:
        """The text without the credentials, however they are escaped there. Takes a time that grows with the text."""
        return replaced(text, self._credentials, HIDDEN)

    def hide_text(self, text: str) -> str:
        """As `hide`."""
        return self.hide(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def shown(self, said: bytes) -> str:
        """The beginning of what a server says with a refusal, for an error: on one line, without the credentials.

        Empty where a credential isn't hidden, whatever is said: an error is logged, too.
        """
        if self._is_any_shown:
            return ""
        in_address = {form for credential in self._in_address for form in self._forms(credential)}
        # UTF-16 writes a zero byte beside each of the credential's.
        said = replaced(said.replace(b"\0", b""), self._credentials | in_address, HIDDEN)
        return one_line(said.decode("utf-8", "replace"), _SHOWN_CHARS)


def _credentials_in(address: str) -> Iterator[str]:
    """What of an address may be a credential, as it is there and decoded."""
    parts = urlsplit(address)
    fields = (field.partition("=") for field in parts.query.split("&"))
    named = [value for name, _, value in fields if value and _CREDENTIAL_NAME.search(name)]
    for text in (*named, *(part for part in parts.path.split("/") if len(part) >= _SECRET_PART_CHARS)):
        yield text
        yield unquote(text)


def _credentials_of(name: str, value: str) -> Iterator[str]:
    """What of a header is a credential.

    Args:
        name: The header's name, in lower case.
        value: Its value.
    """
    if name == "authorization":
        # The scheme is no secret: `Bearer`.
        yield value.partition(" ")[2].strip() or value
    else:
        yield value
    if name == "cookie":
        yield from (text for pair in value.split(";") if (text := pair.partition("=")[2].strip()))
    if (found := _AUTHENTICATION.fullmatch(value)) is None:
        return
    if name != "authorization":
        yield found[1]
    if value[:5].lower() == "basic":
        yield from _user_and_password(found[1])


def _user_and_password(encoded: str) -> Iterator[str]:
    """What `Basic` authentication encodes (RFC 7617), and the password alone; nothing if it is something else."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    yield text
    if password := text.partition(":")[2]:
        yield password
