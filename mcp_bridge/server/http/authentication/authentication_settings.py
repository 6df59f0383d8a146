"""Whom a bridge believes over HTTP, besides the tokens of `mcp-bridge principal`: `[authentication]`, decoded.

```toml
[authentication.oauth]                              # access tokens of an authorization server (RFC 9068)
issuer = "https://auth.example.com"
audience = "https://bridge.example.com/mcp"
scopes = ["mcp"]                                    # what each request needs
claim = "sub"                                       # which claim says who it is, or "scope": one of its scopes,
principals = { "auth0|6f1c" = "anna" }              # and of which principal; by default its value is the name

[authentication.proxy]                              # what a proxy says of client certificates
header = "X-Client-Subject"
trusted = ["10.0.0.7/32"]                           # only from there
principals = { "CN=anna,O=Example" = "anna" }
```
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from mcp_bridge.downstream.configuration.remote_entries import is_loopback, url_problem
from mcp_bridge.toml_files.decoding import bad_config, decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.settings import Layer

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures with a private key (RFC 7518, RFC 8037). `none` and the symmetric ones are none of them."""

MAX_MAPPED = 10_000
MAX_VALUE_CHARS = 1_000

SCOPE_CLAIM = "scope"
"""The claim of a token's scopes (RFC 8693, section 4.2)."""

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,500}")
"""A scope (RFC 6749, section 3.3)."""

_URI = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
"""The characters of a URI (RFC 3986, section 2)."""

_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")

_HEADERS_OF_CLIENTS = frozenset(
    {"accept", "accept-encoding", "accept-language", "authorization", "cache-control", "connection", "content-length"}
    | {"content-type", "cookie", "expect", "host", "last-event-id", "mcp-protocol-version", "mcp-session-id", "origin"}
    | {"mcp-method", "mcp-name", "referer", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "via"}
    | {
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
        "traceparent",
        "tracestate",
    }
)
"""Headers that clients and proxies send of themselves, in lower case: they say nothing of a certificate."""


def _array(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _mapped(value: dict[str, str] | None) -> dict[str, str] | None:
    if value is not None and len(value) > MAX_MAPPED:
        raise ValueError(f"it has more than {MAX_MAPPED} keys")
    return value


Mapped: TypeAlias = Annotated[dict[str, str] | None, AfterValidator(_mapped)]


def _address_problem(url: str) -> str | None:
    """Why an address can't be used, or None. It goes into headers."""
    if problem := url_problem(url):
        return problem.removesuffix(".")
    if not _URI.fullmatch(url):
        return (
            "write it as clients send it, in ASCII: a host as punycode (xn--…), other letters and signs percent-encoded"
        )
    return None


def _address(url: str) -> str:
    if problem := _address_problem(url):
        raise ValueError(problem)
    return url


Address: TypeAlias = Annotated[str, AfterValidator(_address)]


class OAuthResource(BaseModel):
    """`[authentication.oauth]`: the bridge as a resource server (RFC 6750, RFC 9068, RFC 9728).

    Attributes:
        issuer: The authorization server, exactly as `iss` of its tokens has it.
        audience: What has to be in `aud`: the bridge's own address (RFC 8707).
        resource: The bridge's address for its metadata, if the audience is no address.
        jwks_uri: Where the issuer's keys are; None for where its metadata says.
        algorithms: The algorithms that a signature may have.
        token_types: What `typ` may be; that of an access token is `at+jwt` (RFC 9068, section 2.1).
        scopes: The scopes that a token has to have, all of them.
        claim: The claim that says who it is; `SCOPE_CLAIM` for the one of its scopes that `principals` has.
        principals: The principal of each of its values; None if its value is the principal's name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    issuer: Address
    audience: Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARS)]
    resource: Address | None = None
    jwks_uri: Address | None = None
    algorithms: Annotated[tuple[Algorithm, ...], BeforeValidator(_array), Field(min_length=1)] = (
        "RS256",
        "PS256",
        "ES256",
        "EdDSA",
    )
    token_types: Annotated[tuple[str, ...], BeforeValidator(_array), Field(min_length=1)] = ("at+jwt",)
    scopes: Annotated[tuple[str, ...], BeforeValidator(_array)] = ()
    claim: Annotated[str, Field(min_length=1, max_length=200)] = "sub"
    principals: Mapped = None

    @field_validator("issuer", "jwks_uri")
    @classmethod
    def _is_encrypted(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith("https://") and not is_loopback(url):
            raise ValueError("it must begin with https://: otherwise anyone on the network could answer in its place")
        return url

    @field_validator("scopes")
    @classmethod
    def _are_scopes(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_SCOPE.fullmatch(scope) for scope in scopes):
            raise ValueError("a scope has no spaces, quotes or control characters")
        return scopes

    @field_validator("token_types")
    @classmethod
    def _are_types(cls, types: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(each.lower().removeprefix("application/") for each in types)

    @model_validator(mode="after")
    def _has_address(self) -> OAuthResource:
        if self.resource is None and (problem := _address_problem(self.audience)):
            raise ValueError(
                f'the audience is no address ({problem}): write resource = "https://…/mcp", the bridge\'s own'
            )
        return self

    @model_validator(mode="after")
    def _names_principals_of_scopes(self) -> OAuthResource:
        if self.claim == SCOPE_CLAIM and not self.principals:
            raise ValueError('claim = "scope" needs principals, which says whose each scope is')
        return self

    @property
    def address(self) -> str:
        """The bridge's address, for its metadata."""
        return self.resource or self.audience


def _networks(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return value
    networks = []
    for each in value:
        try:
            networks.append(ip_network(each))
        except ValueError:
            raise ValueError("write addresses and networks, such as 10.0.0.7 and 10.0.1.0/24") from None
    return tuple(networks)


class TrustedProxy(BaseModel):
    """`[authentication.proxy]`: a proxy that has verified the client's certificate, and says whose it is.

    Attributes:
        header: The header that it says it in, in lower case.
        trusted: The networks that it is believed from. From elsewhere the header is ignored.
        principals: The principal of each value; None if the value is the principal's name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    header: str
    trusted: Annotated[tuple[IPv4Network | IPv6Network, ...], BeforeValidator(_networks), Field(min_length=1)]
    principals: Mapped = None

    @field_validator("header")
    @classmethod
    def _is_a_header(cls, name: str) -> str:
        if not _HEADER.fullmatch(name) or name.lower() in _HEADERS_OF_CLIENTS:
            raise ValueError("write a header of its own, such as X-Client-Subject")
        return name.lower()


class Authentication(BaseModel):
    """`[authentication]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    oauth: OAuthResource | None = None
    proxy: TrustedProxy | None = None


def load_authentication(layers: Sequence[Layer], principals: Mapping[str, Principal]) -> Authentication:
    """`[authentication]` of the user's own configuration. A folder's file has none (`settings.OWN_TABLES`).

    Args:
        layers: As `settings.Loaded.layers`.
        principals: The principals that there are, by name.

    Raises:
        BridgeError: `bad_config`.
    """
    own = layers[0]
    if "authentication" not in own.tables:
        return Authentication()
    config = decode(Authentication, own.tables["authentication"], own.file, "authentication")
    for kind, mapped in (
        ("oauth", config.oauth and config.oauth.principals),
        ("proxy", config.proxy and config.proxy.principals),
    ):
        for value, name in (mapped or {}).items():
            if name not in principals:
                raise _unknown(own.file, kind, value, name)
    return config


def _unknown(file: Path | None, kind: str, value: str, name: str) -> Exception:
    return bad_config(
        f"names {name[:100]!r}, and there is no [principals.{name[:100]}]",
        file,
        "authentication",
        kind,
        "principals",
        value,
        hint=f"Write [principals.{name[:100]}], which may be empty.",
    )
