"""The public keys of an authorization server (JWKS, RFC 7517): fetched, kept for a while, and fetched again.

Anybody can send a token that names a key which isn't there. So requests to the authorization server are rate limited,
bounded in time and size, follow no redirect, and go only where `downstream.oauth.endpoints` allows.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from mcp_bridge.downstream.oauth.authorization_client import authorization_client
from mcp_bridge.downstream.oauth.login_errors import UnreachableError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from mcp_bridge.downstream.oauth.authorization_client import AuthorizationClient
    from mcp_bridge.server.http.authentication.authentication_settings import Algorithm

logger = logging.getLogger(__name__)

# All requests of one fetch together: a client waits for it. An authorization server needs less than a second.
FETCH_SECONDS = 5.0

# How long keys are used without looking again: so long may a key be believed that the server has withdrawn.
FRESH_SECONDS = 300.0

# How long they are used while the server can't be reached. Afterwards nobody gets in with its tokens.
STALE_SECONDS = 3600.0

# Between two fetches, whatever is asked for and whether the last one succeeded.
PAUSE_SECONDS = 10.0

# Of one set. Public sets have two to five.
MAX_KEYS = 100

# Of one id and algorithm. Each may have to be tried.
MAX_OF_ONE_ID = 4

# In bits. Fewer are broken (RFC 7518, section 3.3); more take long to verify with.
_MIN_RSA, _MAX_RSA = 2048, 8192

# By `kty` and `crv`, without the key's own `alg`.
_ALGORITHMS: Mapping[tuple[str, str | None], tuple[Algorithm, ...]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}

# The members of a public key: of a private one that somebody has published by mistake, nothing else is looked at.
_PUBLIC = ("kty", "crv", "n", "e", "x", "y")


class KeysUnavailableError(Exception):
    """There are no keys to verify with.

    Attributes:
        retry_after: Seconds until it is tried again.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__("the authorization server's keys can't be had")
        self.retry_after = retry_after


class UnknownKeyError(KeysUnavailableError):
    """A key isn't among those that were fetched, and it is too early to fetch them again: it may be a new one."""


Keys = dict[tuple[str | None, str], list[jwt.PyJWK]]
"""Keys by `kid` and algorithm. A key is bound to each algorithm that it may be used with, and to no other."""


class SigningKeys:
    """The signing keys of one authorization server.

    Args:
        issuer: The authorization server.
        jwks_uri: Where its keys are; None for where its metadata says (RFC 8414, OpenID Connect Discovery).
        algorithms: The algorithms that signatures may have.
        clock: A clock that only goes forward, in seconds.
    """

    def __init__(
        self,
        issuer: str,
        jwks_uri: str | None,
        algorithms: Sequence[Algorithm],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._configured_uri = jwks_uri
        self._algorithms = frozenset(algorithms)
        self._clock = clock
        self._lock = anyio.Lock()
        self._tls: ssl.SSLContext | None = None
        self._keys: Keys = {}
        self._withdrawn: set[str | None] = set()
        self._fetched: float | None = None
        self._tried: float | None = None

    async def find(self, kid: str | None, algorithm: str) -> Sequence[jwt.PyJWK]:
        """The keys of this id for this algorithm; without an id, the only one for it. Empty if there is none.

        Raises:
            KeysUnavailableError: The server can't be reached, and no keys are there that are new enough.
            UnknownKeyError: There may be such a key by now.
        """
        known = self._fetched
        now = self._clock()
        if self._fetched is None or now - self._fetched > FRESH_SECONDS:
            await self._refresh()
        found = self._lookup(kid, algorithm)
        if not found:
            # The server may have a new key.
            await self._refresh()
            found = self._lookup(kid, algorithm)
            if not found and kid is not None and self._fetched == known and not self._has_known(kid):
                raise UnknownKeyError(self._until_next())
        return found

    async def find_others(self, kid: str | None, algorithm: str, tried: Sequence[jwt.PyJWK]) -> Sequence[jwt.PyJWK]:
        """As `find`, after a signature that is none of these keys': the server may have put others in their place.

        Empty if it is too early to look for them.
        """
        if self._lookup(kid, algorithm) is tried:
            await self._refresh()
        found = self._lookup(kid, algorithm)
        return () if found is tried else found

    def _has_known(self, kid: str) -> bool:
        """Whether there is a key of this id, of any algorithm, or was before the last fetch."""
        return kid in self._withdrawn or any(kid == one for one, _ in self._keys)

    def _lookup(self, kid: str | None, algorithm: str) -> Sequence[jwt.PyJWK]:
        self._require_usable()
        if kid is not None:
            return self._keys.get((kid, algorithm), ())
        candidates = [keys for (_, of), keys in self._keys.items() if of == algorithm]
        return candidates[0] if len(candidates) == 1 and len(candidates[0]) == 1 else ()

    def _require_usable(self) -> None:
        if self._fetched is None or self._clock() - self._fetched > STALE_SECONDS:
            raise KeysUnavailableError(self._until_next())

    def _until_next(self) -> float:
        return 0.0 if self._tried is None else max(0.0, self._tried + PAUSE_SECONDS - self._clock())

    def _is_usable(self) -> bool:
        return self._fetched is not None and self._clock() - self._fetched <= STALE_SECONDS

    async def _refresh(self) -> None:
        """Fetch the keys, unless that was tried a moment ago. Whoever has keys doesn't wait for another one's fetch."""
        if self._until_next() > 0 or (self._lock.locked() and self._is_usable()):
            return
        async with self._lock:
            if self._until_next() > 0:
                return
            self._tried = self._clock()
            try:
                with anyio.fail_after(FETCH_SECONDS):
                    found = await self._fetch()
            except TimeoutError:
                self._log_failure(f"it has not answered in {FETCH_SECONDS:g} s")
            except (UnreachableError, _BadKeysError) as exc:
                self._log_failure(str(exc))
            else:
                self._withdrawn = {kid for kid, _ in self._keys} - {kid for kid, _ in found}
                self._keys = found
                self._fetched = self._clock()

    def _log_failure(self, why: str) -> None:
        logger.warning("the keys of the authorization server %s can't be had: %s", self._issuer, why)

    async def _fetch(self) -> Keys:
        if self._tls is None:
            # To read all certificates of the system takes a while.
            self._tls = await anyio.to_thread.run_sync(httpx2.create_ssl_context)
        async with authorization_client(self._issuer, self._tls) as client:
            uri = self._configured_uri or await self._discover(client)
            answer = await _get(client, uri)
        return await anyio.to_thread.run_sync(_keys, answer, self._algorithms)

    async def _discover(self, client: AuthorizationClient) -> str:
        # Loads the SDK's client.
        from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls  # noqa: PLC0415

        problem: Exception = _BadKeysError("it has no metadata")
        for url in build_oauth_authorization_server_metadata_discovery_urls(self._issuer, self._issuer):
            try:
                metadata = await _get(client, url)
            except (UnreachableError, _BadKeysError) as exc:
                problem = exc
                continue
            # Another one's metadata would name another one's keys (RFC 8414, section 3.3).
            if metadata.get("issuer") != self._issuer:
                problem = _BadKeysError("its metadata is that of another issuer")
                continue
            uri = metadata.get("jwks_uri")
            if isinstance(uri, str):
                return uri
            problem = _BadKeysError("its metadata names no jwks_uri")
        raise problem


class _BadKeysError(Exception):
    """What was fetched isn't what was asked for."""


async def _get(client: AuthorizationClient, url: str) -> dict[str, Any]:
    """The JSON object at an address.

    Raises:
        UnreachableError, _BadKeysError: There is none.
    """
    try:
        request = httpx2.Request("GET", url, headers={"accept": "application/json"})
    except (httpx2.InvalidURL, ValueError):
        raise _BadKeysError("an address that it names isn't one") from None
    answer = await client.send(request)
    if answer.status_code != httpx2.codes.OK:
        raise _BadKeysError(f"it has answered {answer.status_code}")
    try:
        found = await anyio.to_thread.run_sync(json.loads, answer.content)
    except (ValueError, RecursionError):
        raise _BadKeysError("its answer is no JSON") from None
    if not isinstance(found, dict):
        raise _BadKeysError("its answer is no JSON object")
    return found


def _keys(answer: dict[str, Any], algorithms: frozenset[Algorithm]) -> Keys:
    """The usable keys of a set. Others, such as symmetric ones, are left out.

    Raises:
        _BadKeysError: It is no set of keys.
    """
    members = answer.get("keys")
    if not isinstance(members, list):
        raise _BadKeysError("its answer is no set of keys")
    if len(members) > MAX_KEYS:
        logger.warning("an authorization server has %d keys: only the first %d count", len(members), MAX_KEYS)
    found: Keys = {}
    for member in members[:MAX_KEYS]:
        if not isinstance(member, dict):
            continue
        kid = member.get("kid")
        for algorithm in _algorithms(member, algorithms):
            alike = found.setdefault((kid if isinstance(kid, str) else None, algorithm), [])
            if len(alike) < MAX_OF_ONE_ID and (key := _bound(member, algorithm)) is not None:
                alike.append(key)
    return {of: alike for of, alike in found.items() if alike}


def _algorithms(member: dict[str, Any], allowed: frozenset[Algorithm]) -> list[Algorithm]:
    """The algorithms that a key may be used with: its own, if it names one, of those that fit it and are allowed."""
    use, operations = member.get("use"), member.get("key_ops")
    if use not in {None, "sig"} if isinstance(use, str | None) else True:
        return []
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return []
    kty, crv = member.get("kty"), member.get("crv")
    if not isinstance(kty, str) or not isinstance(crv, str | None):
        return []
    own = member.get("alg")
    fitting = _ALGORITHMS.get((kty, crv), ())
    return [each for each in fitting if each in allowed and own in {None, each}] if isinstance(own, str | None) else []


def _bound(member: dict[str, Any], algorithm: Algorithm) -> jwt.PyJWK | None:
    """A key, bound to an algorithm; None if it can't be used."""
    try:
        key = jwt.PyJWK({name: member[name] for name in _PUBLIC if name in member}, algorithm)
    except Exception:  # noqa: BLE001  (what a library raises for members of any type and size)
        return None
    if isinstance(key.key, RSAPublicKey) and not _MIN_RSA <= key.key.key_size <= _MAX_RSA:
        return None
    return key
