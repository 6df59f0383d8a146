"""HTTP for remote servers: the client, its TLS and redirects, and what a failed request has done.

Whether a request may have reached the server is known from the connection itself (`Attempt.sent`), since a tool call
that may have had an effect is never sent twice. No text here repeats what the server, a proxy or the library says: that
may contain an address's query or a header. What a server says (`RemoteFailure.said`) is added where its credentials are
hidden.

Loads the MCP SDK's HTTP library: import this module only where a server is connected to.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import socket
import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.cookiejar import CookieJar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio.lowlevel
import anyio.to_thread
import h11
import httpx2

from mcp_bridge import __version__, fair_share
from mcp_bridge.atomic_files import stamp
from mcp_bridge.downstream.configuration.remote_entries import shown_url, value_problem
from mcp_bridge.downstream.http.no_proxy import unproxied
from mcp_bridge.downstream.http.remote_auth import SECRET_SCHEME, open_auth
from mcp_bridge.downstream.http.request_logging import log_no_requests
from mcp_bridge.downstream.http.response_heads import HeadBound
from mcp_bridge.downstream.http.retry_times import retry_after
from mcp_bridge.downstream.http.tls_renewal import TlsRenewal, load_certificate, stamps
from mcp_bridge.errors import BridgeError, log_failure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping
    from http.cookiejar import Cookie

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.http.remote_auth import RemoteAccess

# How long a TCP and TLS connection may take; servers in reach take less than a second.
CONNECT_TIMEOUT = 10.0

# Requests to one server at once; further ones wait. Every stream of events holds a connection.
_MAX_CONNECTIONS = 100

logger = logging.getLogger(__name__)

# How long an unused connection is kept: less than servers keep it (Node 5 s), since a request on a connection that the
# server closes at that moment may or may not have been read.
_KEEP_ALIVE_SECONDS = 3.0

# Redirects of one request, all within its origin.
_MAX_REDIRECTS = 5

# The cookies of one connection, and the characters of each: what browsers keep of a server (RFC 6265, section 6.1) is
# more. All of them are sent with every request.
_MAX_COOKIES = 20
_MAX_COOKIE_CHARS = 1024

CHUNK_SECONDS = 2e-5
"""The charge for a chunk of a body, which may be a byte."""

# How long what a server has sent is read without others having their turn.
_TURN_SECONDS = 0.005

# The longest address that an error shows.
_SHOWN_CHARS = 300

GATEWAY_STATUSES = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
"""Statuses of a gateway whose server may come back."""

FailureKind = Literal["unsent", "session", "busy", "unauthorized", "redirected", "refused", "lost", "bad_answer"]


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """Why a request got no answer: data of the error that replaces it. No peer can send one.

    Attributes:
        kind: `unsent`: no part of it was sent. `session`: the server doesn't know the session. `busy`: it takes no more
            requests for now. `unauthorized`: it wants other credentials. `redirected`: to an address that isn't
            followed. `refused`: another status from 400 to 499. `lost`: the connection broke, or a gateway or a
            redirect that says that it was done answered, after it was sent. `bad_answer`: the answer is not one to it.
        reason: What happened, to follow "the server".
        status: The HTTP status, or None.
        retry_after: Seconds after which the server wants to be asked again, or None.
        lasting: Whether trying again at once is useless.
        said: The beginning of what the server says of it, on one line and without credentials; or empty.
        settings: The settings of the server's entry that may mend it, where they aren't its `url`.
    """

    kind: FailureKind
    reason: str
    status: int | None = None
    retry_after: float | None = None
    lasting: bool = False
    said: str = ""
    settings: str = ""


class RequestFailedError(Exception):
    """A request that got no answer, with its `failure`."""

    def __init__(self, failure: RemoteFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class Attempt:
    """One attempt to have a request answered.

    Attributes:
        sent: Whether a part of it may have reached the server, and the server hasn't refused it.
        answered: Whether the head of a response has come.
    """

    __slots__ = ("_head", "answered", "sent")

    def __init__(self) -> None:
        self.sent = False
        self.answered = False
        self._head = HeadBound()

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note that the request begins to be written: httpcore's `trace` extension."""
        if event.endswith("send_request_headers.started"):
            self.sent, self.answered = True, False
        elif event.endswith("receive_response_headers.complete"):
            self.answered = True
        await self._head.trace(event, info)


_ATTEMPT = "mcp_bridge.attempt"


async def _note_refusal(response: httpx2.Response) -> None:
    """Note that an attempt was refused by 401, even if an authentication flow goes on from there."""
    attempt = response.request.extensions.get(_ATTEMPT)
    if isinstance(attempt, Attempt) and response.status_code == HTTPStatus.UNAUTHORIZED:
        attempt.sent = False


class _FewCookies(CookieJar):
    """Cookies, which some servers find a session's machine by, as few as a request can carry."""

    def set_cookie(self, cookie: Cookie) -> None:
        if len(cookie.name) + len(cookie.value or "") + len(cookie.path) > _MAX_COOKIE_CHARS:
            return
        if len(self) < _MAX_COOKIES or any(_place(cookie) == _place(other) for other in self):
            super().set_cookie(cookie)


def _place(cookie: Cookie) -> tuple[str, str, str]:
    return cookie.domain, cookie.path, cookie.name


def open_client(spec: ServerSpec, access: RemoteAccess) -> httpx2.AsyncClient:
    """The client of one connection. Blocks (files, secrets): call it on a thread.

    Proxies come from the variables `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, and the system's store of
    certificate authorities can be replaced by `SSL_CERT_FILE` and `SSL_CERT_DIR`, as for any other program. A server on
    this machine is reached without a proxy: its requests may be in the clear.

    Raises:
        BridgeError: `secret_missing`, `secret_denied`; `server_unavailable`: a TLS file or a header can't be used.
    """
    log_no_requests()
    headers = _entry_headers(spec, access)
    # Before the files are read: what is written meanwhile is read again.
    read = stamps(spec.tls)
    tls = tls_context(spec)
    return httpx2.AsyncClient(
        headers={b"user-agent": f"mcp-code-bridge/{__version__}".encode()} | headers,
        cookies=_FewCookies(),
        mounts=unproxied(spec.url or ""),
        auth=open_auth(spec, access, tls),
        verify=tls,
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
        limits=httpx2.Limits(
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_CONNECTIONS,
            keepalive_expiry=_KEEP_ALIVE_SECONDS,
        ),
        follow_redirects=False,
        event_hooks={"request": [TlsRenewal(spec, tls, read).look], "response": [_note_refusal]},
    )


def _entry_headers(spec: ServerSpec, access: RemoteAccess) -> dict[bytes, bytes]:
    """The headers of an entry, with their secrets put in. Blocks."""
    headers = {name: access.resolve(spec, value) for name, value in spec.headers.items()}
    for name, value in headers.items():
        if wrong := value_problem(value):
            raise _unusable(spec, f"headers.{name} {wrong}")
    return {name.lower().encode(): value.encode("latin-1") for name, value in headers.items()}


async def renew_headers(
    client: httpx2.AsyncClient, spec: ServerSpec, access: RemoteAccess, sent: Collection[tuple[bytes, bytes]]
) -> bool:
    """Put the secrets of an entry's headers in again, after the server has refused them: they may have been replaced.

    Args:
        client: The connection's client.
        spec: The server.
        access: What its connection is authenticated with.
        sent: The client's headers when the request was made that was refused.

    Returns:
        Whether the headers are other ones by now. They stay as they are if a secret can't be had: the log says so, and
        the call's error is what the server has answered.
    """
    if not any(SECRET_SCHEME in value for value in spec.headers.values()):
        return False
    try:
        headers = await anyio.to_thread.run_sync(_entry_headers, spec, access)
    except BridgeError as error:
        log_failure(logger, error, "the headers of server %r can't be renewed", spec.name)
        return False
    client.headers.update(headers)
    return not headers.items() <= set(sent)


def _unusable(spec: ServerSpec, problem: str) -> BridgeError:
    message = f"server {spec.name!r} is misconfigured: {problem}"
    return BridgeError("server_unavailable", message, server=spec.name, reason="misconfigured")


def tls_context(spec: ServerSpec) -> ssl.SSLContext:
    """How the certificates of a server, and of its authorization server, are verified. Blocks.

    Raises:
        BridgeError: `server_unavailable`: a TLS file can't be used.
    """
    files = spec.tls
    try:
        if files.ca_file is not None:
            context = ssl.create_default_context(cafile=files.ca_file)
        elif files.client_cert is not None:
            context = httpx2.create_ssl_context()
        else:
            context = _system_context(*_system_store())
    except (OSError, ssl.SSLError) as error:
        raise _unusable(spec, f"ca_file can't be used: {_reason(error)}.") from None
    try:
        load_certificate(context, files)
    except (OSError, ssl.SSLError) as error:
        why = _reason(error)
        if isinstance(error, ssl.SSLError) and error.reason is None:
            why = "they are no certificate and its key in PEM, or the key has a passphrase"
        raise _unusable(spec, f"client_cert or client_key can't be used: {why}.") from None
    return context


@functools.lru_cache(maxsize=1)
def _system_context(*_store: object) -> ssl.SSLContext:
    """The context of all servers that have no TLS file of their own: each takes 20 ms to make, and 0.9 MiB."""
    return httpx2.create_ssl_context()


def _system_store() -> Iterator[object]:
    """Where the system's certificate authorities are, and when each was changed: a bridge that runs takes new ones."""
    paths = ssl.get_default_verify_paths()
    for path in (
        os.environ.get("SSL_CERT_FILE"),
        os.environ.get("SSL_CERT_DIR"),
        paths.openssl_cafile,
        paths.openssl_capath,
    ):
        yield path
        yield path and stamp(Path(path))


@contextlib.asynccontextmanager
async def opened(
    client: httpx2.AsyncClient,
    method: str,
    url: str | httpx2.URL,
    *,
    headers: Mapping[str, str],
    attempt: Attempt,
    content: bytes | None = None,
    hide: Callable[[str], str],
    answers: bool = False,
    setting: str = "url",
    tenant: fair_share.Tenant | None = None,
) -> AsyncGenerator[httpx2.Response]:
    """Send a request and yield its response, whose body isn't read yet. Follows redirects within the origin.

    A redirect to another origin isn't followed: everything that is sent, credentials and arguments, is meant for the
    configured origin, and a public server could otherwise point at what only this machine can reach. Neither is one
    that would change the method, and lose the message.

    Args:
        client: The connection's client.
        method: The method.
        url: The address.
        headers: Beside the client's own.
        attempt: Is told what is known of the request.
        content: The body, or None.
        hide: Hides the credentials in an address that the server redirects to.
        answers: Whether a redirect that would change the method is an answer, which is yielded: the request was done,
            and the answer says where to look (RFC 9110, section 15.4.4).
        setting: The key of the server's entry that has the address.
        tenant: Who is charged for the response's chunks, and waits for its turn between them.

    Raises:
        RequestFailedError: There is no response, or it redirects elsewhere.
        BridgeError: From the authentication flow.
    """
    request = client.build_request(
        method,
        url,
        content=content,
        # Encoded bodies are refused: a small one may be decoded to a large one. Values are bytes, as the client's own:
        # the library encodes texts as ASCII, and a header's value may have all of Latin-1.
        headers={b"accept-encoding": b"identity"}
        | {name.encode(): value.encode("latin-1") for name, value in headers.items()},
        extensions={"trace": attempt.trace, _ATTEMPT: attempt},
    )
    with _failures(attempt):
        for _ in range(_MAX_REDIRECTS):
            response = await client.send(request, stream=True)
            following = response.next_request
            if following is None or (answers and following.method != method):
                break
            await response.aclose()
            attempt.sent = False
            if (
                following.method != method
                or not _within_origin(request.url, following.url)
                or following.url.userinfo != request.url.userinfo
            ):
                # Hidden before it is cut: the rest of a credential wouldn't be found.
                where = hide(shown_url(str(following.url)))[:_SHOWN_CHARS]
                # 303 says that the request was done, and where its outcome is (RFC 9110, section 15.4.4).
                is_done = response.status_code == HTTPStatus.SEE_OTHER and following.method != method
                raise RequestFailedError(
                    RemoteFailure(
                        "lost" if is_done else "redirected",
                        f"redirects to {where}, which isn't followed: "
                        f"if that is the server, write its address as {setting}",
                        response.status_code,
                        lasting=True,
                    )
                )
            request = following
        else:
            raise RequestFailedError(
                RemoteFailure("redirected", f"redirects more than {_MAX_REDIRECTS} times", lasting=True)
            )
    response.stream = _Paced(response.stream, tenant)
    try:
        yield response
    finally:
        await response.aclose()


class Pace:
    """Lets others run in a loop that may find its next item without waiting: tens of thousands are in one read."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def give_way(self) -> None:
        """Have others run, if they have waited for a turn's time."""
        if time.monotonic() - self._began > _TURN_SECONDS:
            await anyio.lowlevel.checkpoint()
            self._began = time.monotonic()


class _Paced(httpx2.AsyncByteStream):
    """A response's body, whose chunks may have a byte each."""

    def __init__(
        self, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream, tenant: fair_share.Tenant | None
    ) -> None:
        assert isinstance(stream, httpx2.AsyncByteStream)  # of an asynchronous client
        self._stream = stream
        self._tenant = tenant

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pace = Pace()
        async for chunk in self._stream:
            if self._tenant is not None:
                self._tenant.charge(CHUNK_SECONDS)
            yield chunk
            await pace.give_way()
            if self._tenant is not None:
                await self._tenant.turn()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _within_origin(url: httpx2.URL, other: httpx2.URL) -> bool:
    """Whether an address has the same origin (RFC 6454), or is the same host's over TLS on the default ports."""
    if (url.scheme, url.host, url.port) == (other.scheme, other.host, other.port):
        return True
    upgraded = (url.scheme, other.scheme) == ("http", "https") and url.port is None and other.port is None
    return upgraded and url.host == other.host


def is_encoded(response: httpx2.Response) -> bool:
    """Whether a response's body has a content coding (RFC 9110, section 8.4). A list of none is empty."""
    codings = response.headers.get("content-encoding", "").lower().split(",")
    return any(coding.strip() not in {"", "identity"} for coding in codings)


class _failures:  # noqa: N801 - a context manager, as `contextlib.suppress`
    """Turns the library's exceptions into `RequestFailedError`."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or not isinstance(error, Exception) or isinstance(error, (RequestFailedError, BridgeError)):
            return
        raise RequestFailedError(failure_of(error, self._attempt)) from None


def failure_of(error: Exception, attempt: Attempt) -> RemoteFailure:
    """What an exception of a request means."""
    reason = _reason(error)
    if isinstance(error, UnicodeError) and not attempt.sent:
        # The request's fault, and not the server's, which another try would not mend.
        return RemoteFailure("refused", "was sent nothing: a letter of the request can't be sent", lasting=True)
    if isinstance(error, httpx2.ProxyError):
        return RemoteFailure("unsent", "can't be reached: the proxy refused the connection")
    # From TLS 1.3 on a server refuses a client's certificate after the client may have sent its request, unread.
    is_refused = not attempt.answered and _certificate_alert(error) is not None
    if is_refused or not attempt.sent:
        is_untrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error))
        settings = "client_cert and client_key" if is_refused else "ca_file" if is_untrusted else ""
        lasting = is_refused or is_untrusted
        return RemoteFailure("unsent", f"can't be reached: {reason}", lasting=lasting, settings=settings)
    if attempt.answered:
        return RemoteFailure("lost", f"broke off its answer: {reason}")
    return RemoteFailure("lost", f"didn't answer: {reason}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and what led to it, the innermost last; of a group, the first."""
    at: BaseException | None = error
    seen: set[int] = set()
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.exceptions[0] if isinstance(at, BaseExceptionGroup) else at.__cause__ or at.__context__


def _reason(error: BaseException) -> str:
    """A failure in words that come from the system, and not from the server or from a request."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate isn't trusted ({cause.verify_message})"
        if isinstance(cause, socket.gaierror):
            return "its host name isn't known"
    if (alert := _certificate_alert(error)) is not None:
        refuses = (
            "it wants a client certificate" if alert == "CERTIFICATE_REQUIRED" else "it refuses the client certificate"
        )
        return f"{refuses} ({alert})"
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed ({cause.reason})"
        if isinstance(cause, OSError) and cause.errno:
            # Not its own text, to which libraries add addresses.
            words = os.strerror(cause.errno)
            return words[0].lower() + words[1:]
    if any(isinstance(cause, h11.RemoteProtocolError) for cause in _causes(error)):
        return "what it sent isn't HTTP, or isn't whole"
    return _BY_TYPE.get(type(error), f"the connection failed ({type(error).__name__})")


_CERTIFICATE_ALERT = re.compile(r"ALERT_(\w*CERTIFICATE\w*|UNKNOWN_CA)")
"""How OpenSSL names the alerts by which a server refuses a client's certificate."""


def _certificate_alert(error: BaseException) -> str | None:
    """The alert by which a server has refused the client's certificate, or None."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and (alert := _CERTIFICATE_ALERT.search(cause.reason or "")):
            return alert[1]
    return None


_BY_TYPE: dict[type[BaseException], str] = {
    httpx2.ConnectTimeout: f"no connection within {CONNECT_TIMEOUT:g} s",
    httpx2.ConnectError: "no connection could be made",
    httpx2.ReadError: "the connection broke",
    httpx2.WriteError: "the connection broke",
    httpx2.RemoteProtocolError: "it closed the connection, or doesn't speak HTTP",
}

# What servers say of a session that they don't know, and of nothing else, where they don't just answer as the
# specification says (404). A longer text may be about something that has happened.
_UNKNOWN_SESSION = re.compile(
    r"(bad request|not found|error)?[:,]?\s*("
    r"((no|invalid|unknown|missing|expired|valid)( or (invalid|unknown|missing|expired))?[ -]){1,2}"
    r"(mcp[ -])?session([ -]?id)?( provided| header)?"
    r"|(could not find |couldn't find |no such )(mcp[ -])?session"
    r"|(mcp[ -])?session([ -]?id)?( \S{1,100})? (is |was |has )?"
    r"(not found|unknown|invalid|expired|terminated|not recognized|no longer valid|doesn't exist|does not exist)"
    r"( or (not found|unknown|invalid|expired|terminated))?"
    r")[.!]?",
    re.IGNORECASE,
)


def refusal(response: httpx2.Response, said: str, *, in_session: bool, is_answer: bool = False) -> RemoteFailure:
    """What a status that is no success means.

    Args:
        response: The response.
        said: The message of the JSON-RPC error that is its body; else the beginning of that.
        in_session: Whether the request named a session.
        is_answer: Whether the body is the answer to the request, which then was read.
    """
    status = response.status_code
    answered = f"answered {status} {_phrase(status)}".rstrip()
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return RemoteFailure("unauthorized", answered, status, lasting=True)
    if in_session and (
        (status == HTTPStatus.NOT_FOUND and not is_answer)
        or (status in {HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST} and _UNKNOWN_SESSION.fullmatch(said.strip()))
    ):
        return RemoteFailure("session", f"{answered}: it doesn't know the session any more", status)
    if status == HTTPStatus.TOO_MANY_REQUESTS and not is_answer:
        return RemoteFailure("busy", answered, status, retry_after(response.headers.get("retry-after")))
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.REQUEST_TIMEOUT:
        return RemoteFailure("refused", answered, status, lasting=True)
    # A gateway may answer this after the server has got the request.
    return RemoteFailure("lost", answered, status)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
