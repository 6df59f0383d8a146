"""Access tokens of an authorization server (JWT, RFC 9068): verified, and what they say of whoever sends them.

A token is believed if the issuer has signed it with an allowed algorithm and the key that it names, and if it is an
access token, for this bridge, and good now. Keys come from the issuer alone: what a token says of keys itself (`jku`,
`jwk`, `x5u`, `x5c`) isn't looked at.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jwt

from mcp_bridge.server.http.authentication.authentication_settings import MAX_VALUE_CHARS, SCOPE_CLAIM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.server.http.authentication.authentication_settings import OAuthResource
    from mcp_bridge.server.http.authentication.signing_keys import SigningKeys

LEEWAY_SECONDS = 30.0
"""How far the clocks of the issuer and of this machine may be apart."""

_LAST_SECOND = 253_402_300_799
"""The end of the year 9999. A later time is a mistake, and may be no time that this machine can count to."""

_TIMES = ("exp", "nbf", "iat")

_MAX_KID_CHARS = 500
_MAX_TYPE_CHARS = 100


class BadAccessTokenError(Exception):
    """A token that isn't believed; why is for the log alone, and repeats nothing of the token.

    Args:
        why: Why.
        has_ended: Whether it is the issuer's, and only too old.
    """

    def __init__(self, why: str, *, has_ended: bool = False) -> None:
        super().__init__(why)
        self.has_ended = has_ended


class _BadSignatureError(BadAccessTokenError):
    """The signature is none of the key's."""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """What a token says.

    Attributes:
        value: The value of the claim that says who it is, or the scope that does; None if no scope does, or several do
            and differ.
        scopes: What it is good for.
        expires: When it ends, in seconds since the epoch, with what clocks may differ.
    """

    value: str | None
    scopes: frozenset[str]
    expires: float


class AccessTokens:
    """Verifies access tokens.

    Args:
        settings: Which tokens are believed.
        keys: The issuer's keys.
    """

    def __init__(self, settings: OAuthResource, keys: SigningKeys) -> None:
        self._settings = settings
        self._keys = keys

    async def verify(self, text: str) -> AccessToken:
        """What a token says.

        Args:
            text: The token: ASCII, of bounded length.

        Raises:
            BadAccessTokenError: It isn't believed.
            KeysUnavailableError: It can't be verified now; `UnknownKeyError` for one whose key may be a new one.
        """
        algorithm, kid = self._header(text)
        keys = await self._keys.find(kid, algorithm)
        if not keys:
            raise BadAccessTokenError("it names a key that the issuer doesn't have")
        try:
            return self._read(self._claims_by_any(text, keys, algorithm))
        except _BadSignatureError:
            others = await self._keys.find_others(kid, algorithm, keys)
            if not others:
                raise
            return self._read(self._claims_by_any(text, others, algorithm))

    def _header(self, text: str) -> tuple[str, str | None]:
        """The algorithm and the key's id, which aren't verified yet."""
        try:
            header = jwt.get_unverified_header(text)
        except jwt.PyJWTError as exc:
            raise _bad(exc) from None
        algorithm, kind, kid = header.get("alg"), header.get("typ"), header.get("kid")
        if algorithm not in self._settings.algorithms:
            raise BadAccessTokenError("its algorithm isn't allowed")
        if (
            not isinstance(kind, str)
            or len(kind) > _MAX_TYPE_CHARS
            or kind.lower().removeprefix("application/") not in self._settings.token_types
        ):
            # Such as an identity token, which says who somebody is, to somebody else.
            raise BadAccessTokenError("its type isn't that of an access token")
        # No extension is understood here, and unencoded payloads are one (RFC 7515, section 4.1.11; RFC 7797).
        if "crit" in header or "b64" in header:
            raise BadAccessTokenError("it needs an extension")
        if kid is not None and (not isinstance(kid, str) or len(kid) > _MAX_KID_CHARS):
            raise BadAccessTokenError("its key's id is invalid")
        return algorithm, kid

    def _claims_by_any(self, text: str, keys: Sequence[jwt.PyJWK], algorithm: str) -> dict[str, Any]:
        *first, last = keys
        for key in first:
            with contextlib.suppress(_BadSignatureError):
                return self._claims(text, key, algorithm)
        return self._claims(text, last, algorithm)

    def _claims(self, text: str, key: jwt.PyJWK, algorithm: str) -> dict[str, Any]:
        settings = self._settings
        try:
            claims = jwt.decode(
                text,
                key,
                # The key is bound to this algorithm, which is on the operator's list.
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=LEEWAY_SECONDS,
                options={
                    "require": ["exp", "iss", "aud", *(() if settings.claim == SCOPE_CLAIM else (settings.claim,))]
                },
            )
        except jwt.PyJWTError as exc:
            raise _bad(exc) from None
        # The library takes texts for numbers, such as "4_000_000_000" (RFC 7519, section 2: a JSON number).
        for name in _TIMES:
            if (at := claims.get(name)) is not None and (type(at) not in {int, float} or at > _LAST_SECOND):
                raise BadAccessTokenError(f"its claim {name!r} is no time")
        return claims

    def _read(self, claims: dict[str, Any]) -> AccessToken:
        scopes, expires = _scopes(claims), int(claims["exp"]) + LEEWAY_SECONDS
        if self._settings.claim == SCOPE_CLAIM:
            return AccessToken(self._deciding(scopes), scopes, expires)
        value = claims[self._settings.claim]
        if not isinstance(value, str) or not 0 < len(value) <= MAX_VALUE_CHARS:
            raise BadAccessTokenError(f"its claim {self._settings.claim!r} is no text")
        return AccessToken(value, scopes, expires)

    def _deciding(self, scopes: frozenset[str]) -> str | None:
        """The scope that says who it is. None is more than another: a token for two principals is for none."""
        principals = self._settings.principals or {}
        named = {principals[scope]: scope for scope in scopes if scope in principals}
        return next(iter(named.values())) if len(named) == 1 else None


def _scopes(claims: dict[str, Any]) -> frozenset[str]:
    """The scopes: `scope` (RFC 8693, section 4.2), or `scp`, as some issuers have it, a text or an array."""
    said = claims.get("scope", claims.get("scp"))
    if isinstance(said, str):
        return frozenset(said.split(" "))
    return frozenset(each for each in said if isinstance(each, str)) if isinstance(said, list) else frozenset()


def _bad(error: jwt.PyJWTError) -> BadAccessTokenError:
    # Its own text may repeat the token's.
    kind = _BadSignatureError if isinstance(error, jwt.InvalidSignatureError) else BadAccessTokenError
    return kind(type(error).__name__, has_ended=isinstance(error, jwt.ExpiredSignatureError))
