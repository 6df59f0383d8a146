"""Access tokens of an authorization server: the real one's, and everything that an attacker makes of them."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import logging
import time
from dataclasses import dataclass, field

import anyio
import httpx2
import jwt
import pytest
from authenticating import authenticating, stream_of
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from http_servers import serving
from hypothesis import given, settings
from hypothesis import strategies as st
from oauth_fixtures import (
    SECONDS,
    authorization_server,  # noqa: F401
    oauth_servers,  # noqa: F401
)
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from mcp_bridge.server.http.authentication import signing_keys
from mcp_bridge.server.http.authentication.access_tokens import LEEWAY_SECONDS, AccessTokens, BadAccessTokenError
from mcp_bridge.server.http.authentication.authentication_settings import OAuthResource
from mcp_bridge.server.http.authentication.signing_keys import KeysUnavailableError, SigningKeys, UnknownKeyError
from mcp_bridge.server.http.authentication.wrong_credentials import FAILURES_PER_MINUTE
from mcp_bridge.server.http.refusals import LOGGED_PER_MINUTE, Unauthenticated

AUDIENCE = "https://bridge.example.com/mcp"

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
SHORT_RSA = rsa.generate_private_key(65537, 1024)  # noqa: S505 - it has to be refused
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def jwk(key, kid, **more):
    public = key.public_key()
    algorithm = {rsa.RSAPrivateKey: "RS256", ec.EllipticCurvePrivateKey: "ES256", ed25519.Ed25519PrivateKey: "EdDSA"}
    (name,) = (name for kind, name in algorithm.items() if isinstance(key, kind))
    made = jwt.get_algorithm_by_name(name).to_jwk(public, as_dict=True)
    return {"kid": kid, **made, **more}


@dataclass
class Issuer:
    """An authorization server that does what the test says. It counts what it is asked for."""

    keys: list = field(default_factory=lambda: [jwk(RSA, "rsa"), jwk(EC, "ec"), jwk(ED, "ed")])
    behaviour: str = ""
    metadata: dict = field(default_factory=dict)
    port: int = 0
    asked: list = field(default_factory=list)
    slow: anyio.Event = field(default_factory=anyio.Event)
    stuck: anyio.Event = field(default_factory=anyio.Event)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def app(self):
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/keys", self._keys),
                Route("/{path:path}", self._elsewhere),
            ]
        )

    async def _metadata(self, request):
        self.asked.append(request.url.path)
        return JSONResponse({"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | self.metadata)

    async def _elsewhere(self, request):
        self.asked.append(request.url.path)
        return JSONResponse({"keys": [jwk(OTHER_RSA, "rsa")]})

    async def _keys(self, _):
        self.asked.append("/keys")
        match self.behaviour:
            case "down":
                return Response(status_code=503)
            case "slow":
                self.slow.set()
                await self.stuck.wait()
            case "huge":
                return Response(b'{"keys": ["' + b"a" * (1 << 20) + b'"]}', media_type="application/json")
            case "deep":
                return Response(b"[" * 100_000, media_type="application/json")
            case "redirect":
                return RedirectResponse("/elsewhere")
            case "redirect to a metadata address":
                return RedirectResponse("http://169.254.169.254/latest/meta-data")
            case "html":
                return Response("<p>proxy page</p>", media_type="text/html")
            case "no set":
                return JSONResponse([])
            case "no list":
                return JSONResponse({"keys": {"rsa": "x"}})
        return JSONResponse({"keys": self.keys})

    def token(self, key=RSA, algorithm="RS256", *, headers=None, **claims):
        said = {"iss": self.url, "aud": AUDIENCE, "sub": "anna", "exp": time.time() + 300, "scope": "mcp other"}
        said = {name: value for name, value in (said | claims).items() if value is not None}
        kid = {id(RSA): "rsa", id(OTHER_RSA): "rsa", id(EC): "ec", id(ED): "ed", id(SHORT_RSA): "short"}[id(key)]
        whole = {"typ": "at+jwt", "kid": kid} | (headers or {})
        return jwt.encode(said, key, algorithm, {name: value for name, value in whole.items() if value is not None})


def config(issuer, more=""):
    return f"""
[principals.anna]
[principals.ben]
[authentication.oauth]
issuer = "{issuer.url}"
audience = "{AUDIENCE}"
scopes = ["mcp"]
{more}
"""


@contextlib.asynccontextmanager
async def issuing(**options):
    issuer = Issuer(**options)
    async with serving(issuer.app) as port:
        issuer.port = port
        yield issuer
        issuer.stuck.set()


@pytest.fixture
async def issuer():
    async with issuing() as issuer:
        yield issuer


@pytest.fixture
async def server(issuer, tmp_path):
    async with authenticating(tmp_path, config(issuer)) as server:
        yield server


# --- what is believed ---


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS256"), (EC, "ES256"), (ED, "EdDSA")])
async def test_a_token_of_the_issuer_is_its_subjects(server, issuer, key, algorithm):
    assert (await server.bearer(issuer.token(key, algorithm))).who == "anna"
    assert (await server.bearer(issuer.token(key, algorithm, sub="ben"))).who == "ben"


async def test_its_keys_are_fetched_once_for_many_requests(server, issuer):
    token = issuer.token()
    for _ in range(20):
        assert (await server.bearer(token)).who == "anna"
    assert issuer.asked == ["/.well-known/oauth-authorization-server", "/keys"]


async def test_many_at_once_fetch_the_keys_once(server, issuer):
    token = issuer.token()
    answers = await asyncio.gather(*(server.bearer(token) for _ in range(20)))
    assert {answer.who for answer in answers} == {"anna"}
    assert issuer.asked.count("/keys") == 1


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": [AUDIENCE, "https://other.example.com"]},
        {"scope": None, "scp": ["mcp"]},
        {"scope": None, "scp": "mcp other"},
        {"nbf": 1_790_000_000, "iat": 1_790_000_000},
        {"exp": 4e9},
    ],
    ids=str,
)
async def test_what_a_token_may_say_otherwise(server, issuer, claims):
    assert (await server.bearer(issuer.token(**claims))).who == "anna"


async def test_without_a_keys_id_the_only_key_for_its_algorithm_is_taken(server, issuer):
    assert (await server.bearer(issuer.token(headers={"kid": None}))).who == "anna"
    (await server.bearer(issuer.token(OTHER_RSA, headers={"kid": None}))).refused(401, "bad_token")


@pytest.mark.parametrize("kind", ["AT+JWT", "application/at+jwt"])
async def test_its_type_may_be_written_in_full_and_in_any_case(server, issuer, kind):
    assert (await server.bearer(issuer.token(headers={"typ": kind}))).who == "anna"


async def test_a_map_says_which_principal_a_claims_value_is(issuer, tmp_path):
    more = 'claim = "email"\nprincipals = { "anna@example.com" = "anna" }'
    async with authenticating(tmp_path, config(issuer, more)) as server:
        assert (await server.bearer(issuer.token(email="anna@example.com", sub="ben"))).who == "anna"
        for other in ("ben@example.com", "anna", "ANNA@example.com", "anna@example.com "):
            (await server.bearer(issuer.token(email=other))).refused(403, "not_a_principal")
        (await server.bearer(issuer.token())).refused(401, "bad_token")


async def test_a_map_says_which_principal_a_scope_is_for(issuer, tmp_path):
    more = 'claim = "scope"\nprincipals = { "mcp:read" = "anna", "mcp:look" = "anna", "mcp:build" = "ben" }'
    async with authenticating(tmp_path, config(issuer, more)) as server:
        for said in ({"scope": "mcp mcp:read other"}, {"scope": None, "scp": ["mcp", "mcp:read"]}):
            assert (await server.bearer(issuer.token(**said))).who == "anna"
        assert (await server.bearer(issuer.token(scope="mcp mcp:read mcp:look"))).who == "anna"
        assert (await server.bearer(issuer.token(scope="mcp:build mcp", sub=None))).who == "ben", "whoever has it"
        for scope in ("mcp", "mcp other", "mcp anna", "mcp mcp:READ", "mcp mcp:read mcp:build"):
            (await server.bearer(issuer.token(scope=scope))).refused(403, "not_a_principal")
        (await server.bearer(issuer.token(scope="mcp:read"))).refused(403, "insufficient_scope")


async def test_tokens_of_ours_are_good_beside_it(server, issuer):
    made = server.tokens.add("ben", restricted=True)
    assert (await server.bearer(made.text)).who == "ben"
    assert (await server.bearer(issuer.token())).who == "anna"
    assert issuer.asked.count("/keys") == 1


# --- what is refused ---


def segment(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(issuer, header, *, sign=None):
    """A token that no library would make."""
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "anna", "exp": int(time.time()) + 300, "scope": "mcp"}
    signed = f"{segment({'typ': 'at+jwt', 'kid': 'rsa'} | header)}.{segment(claims)}"
    return f"{signed}.{segment(sign(signed.encode()) if sign else b'')}"


def with_public_key(issuer, algorithm, encoding):
    """The public key as the secret of a symmetric signature."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    secret = json.dumps(jwk(RSA, "rsa")).encode() if encoding is None else RSA.public_key().public_bytes(encoding, form)
    return unsigned(
        issuer,
        {"alg": algorithm},
        sign=lambda data: hmac.new(
            secret, data, {"HS256": hashlib.sha256, "HS512": hashlib.sha512}[algorithm]
        ).digest(),
    )


PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER


def cut(token, part):
    parts = token.split(".")
    parts[part] = parts[part][:-4]
    return ".".join(parts)


def swapped(issuer):
    """The signature of one token under the claims of another."""
    mine, others = issuer.token(), issuer.token(sub="ben")
    return ".".join((*others.split(".")[:2], mine.split(".")[2]))


ATTACKS = {
    "no algorithm": lambda i: unsigned(i, {"alg": "none"}),
    "no algorithm, in another case": lambda i: unsigned(i, {"alg": "nOnE"}),
    "no algorithm, unnamed": lambda i: unsigned(i, {}),
    "an algorithm that is no text": lambda i: unsigned(i, {"alg": ["RS256"]}),
    "an algorithm that is null": lambda i: unsigned(i, {"alg": None}),
    "HS256 with the public key in PEM": lambda i: with_public_key(i, "HS256", PEM),
    "HS256 with the public key in DER": lambda i: with_public_key(i, "HS256", DER),
    "HS512 with the public key in PEM": lambda i: with_public_key(i, "HS512", PEM),
    "HS256 with the key as JSON": lambda i: with_public_key(i, "HS256", None),
    "RS256 named, HS256 made": lambda i: unsigned(
        i, {"alg": "RS256"}, sign=lambda d: hmac.digest(b"k" * 32, d, "sha256")
    ),
    "an algorithm that isn't on the list": lambda i: i.token(RSA, "RS512"),
    "an algorithm of another kind of key": lambda i: i.token(EC, "ES256", headers={"kid": "rsa"}),
    "no signature": lambda i: i.token().rpartition(".")[0] + ".",
    "a signature of zeros": lambda i: i.token().rpartition(".")[0] + "." + segment(bytes(256)),
    "an ECDSA signature of zeros": lambda i: i.token(EC, "ES256").rpartition(".")[0] + "." + segment(bytes(64)),
    "another's signature": swapped,
    "another's key": lambda i: i.token(OTHER_RSA),
    "a key that isn't there": lambda i: i.token(headers={"kid": "other"}),
    "a key's id that is a path": lambda i: i.token(headers={"kid": "../../../../dev/null"}),
    "a key's id that is a query": lambda i: i.token(headers={"kid": "rsa' OR '1'='1"}),
    "a key's id that is an address": lambda i: i.token(headers={"kid": "http://127.0.0.1:1/keys"}),
    "a key's id that is huge": lambda i: i.token(headers={"kid": "a" * 5000}),
    "a key's id that is no text": lambda i: unsigned(i, {"alg": "RS256", "kid": {"a": 1}}),
    "a key's id that is a list": lambda i: unsigned(i, {"alg": "RS256", "kid": ["rsa"]}),
    "its own key in jwk": lambda i: i.token(OTHER_RSA, headers={"jwk": jwk(OTHER_RSA, "rsa")}),
    "its own key at jku": lambda i: i.token(OTHER_RSA, headers={"jku": f"{i.url}/elsewhere"}),
    "its own key at x5u": lambda i: i.token(OTHER_RSA, headers={"x5u": f"{i.url}/elsewhere", "kid": "own"}),
    "an extension": lambda i: i.token(headers={"crit": ["exp"], "exp": 1}),
    "an unencoded payload": lambda i: unsigned(i, {"alg": "RS256", "b64": False, "crit": ["b64"]}),
    "the type of an identity token": lambda i: i.token(headers={"typ": "JWT"}),
    "no type": lambda i: unsigned(i, {"alg": "RS256", "typ": None}),
    "a type that is no text": lambda i: unsigned(i, {"alg": "RS256", "typ": ["at+jwt"]}),
    "expired": lambda i: i.token(exp=time.time() - LEEWAY_SECONDS - 1),
    "without an end": lambda i: i.token(exp=None),
    "an end that is a text": lambda i: i.token(exp="tomorrow"),
    "an end that is infinite": lambda i: i.token(exp=float("inf")),
    "an end that no clock reaches": lambda i: i.token(exp=10**400),
    "an end that is a number as a text": lambda i: i.token(exp=str(int(time.time()) + 300)),
    "an end in other digits": lambda i: i.token(exp=f"{4 * 10**9:_}".translate({48 + d: 0x660 + d for d in range(10)})),
    "a beginning that is a text": lambda i: i.token(nbf="1_790_000_000"),
    "made at a text": lambda i: i.token(iat="1790000000"),
    "an end that is not a number": lambda i: i.token(exp=float("nan")),
    "an end that is a list": lambda i: i.token(exp=[time.time() + 100]),
    "not yet good": lambda i: i.token(nbf=time.time() + 300),
    "made in the future": lambda i: i.token(iat=time.time() + 300),
    "another audience": lambda i: i.token(aud="https://other.example.com/mcp"),
    "the audience in another case": lambda i: i.token(aud=AUDIENCE.upper()),
    "the audience's beginning": lambda i: i.token(aud=AUDIENCE[:-1]),
    "more than the audience": lambda i: i.token(aud=AUDIENCE + "/x"),
    "no audience": lambda i: i.token(aud=None),
    "an empty audience": lambda i: i.token(aud=[]),
    "an audience that is an object": lambda i: i.token(aud={AUDIENCE: 1}),
    "audiences that are no texts": lambda i: i.token(aud=[AUDIENCE, 3]),
    "another issuer": lambda i: i.token(iss="https://evil.example.com"),
    "the issuer with a slash": lambda i: i.token(iss=i.url + "/"),
    "no issuer": lambda i: i.token(iss=None),
    "no subject": lambda i: i.token(sub=None),
    "an empty subject": lambda i: i.token(sub=""),
    "a subject that is huge": lambda i: i.token(sub="a" * 5000),
    "claims that are no object": lambda i: ".".join(
        (segment({"alg": "RS256", "typ": "at+jwt", "kid": "rsa"}), segment([1]), "")
    ),
    "claims that are no JSON": lambda i: ".".join(
        (segment({"alg": "RS256", "typ": "at+jwt", "kid": "rsa"}), segment(b"{"), "")
    ),
    "a header that is no object": lambda i: ".".join((segment([1]), segment({}), "")),
    "a header that nests": lambda _: ".".join((segment(b"[" * 10_000), segment({}), "")),
    "a header with a huge number": lambda _: ".".join((segment(b'{"alg":' + b"9" * 9000 + b"}"), segment({}), "")),
    "a header in Latin-1": lambda _: ".".join((segment(b'{"alg":"\xe9"}'), segment({}), "")),
    "five parts, encrypted": lambda i: i.token() + "..",
    "two parts": lambda i: i.token().rpartition(".")[0],
    "dots": lambda _: "..",
    "a header cut off": lambda i: cut(i.token(), 0),
    "claims cut off": lambda i: cut(i.token(), 1),
    "a signature cut off": lambda i: cut(i.token(), 2),
    "a longer signature": lambda i: i.token() + "AAAA",
    "in other base64": lambda i: i.token().replace("_", "/").replace("-", "+") + "=",
    "over the bound": lambda i: i.token(more="a" * 20_000),
    "not ASCII": lambda i: i.token().encode() + "é".encode(),
}


@pytest.mark.parametrize("attack", sorted(ATTACKS))
async def test_a_token_that_is_not_the_issuers_for_us_and_for_now_is_refused(server, issuer, attack, caplog):
    caplog.set_level(logging.DEBUG, "mcp_bridge")
    token = ATTACKS[attack](issuer)

    answer = (await server.bearer(token)).refused(401, "bad_token")

    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "/elsewhere" not in issuer.asked
    text = token.decode("latin-1") if isinstance(token, bytes) else token
    for part in text.split("."):
        assert len(part) < 8 or part not in caplog.text
    # And a right one is good afterwards.
    assert (await server.bearer(issuer.token())).who == "anna"


async def test_why_tokens_are_refused_is_logged_some_times_a_minute_each(server, issuer, caplog):
    caplog.set_level(logging.INFO, "mcp_bridge")
    of_others, of_another_type = issuer.token(aud="https://elsewhere.example"), issuer.token(headers={"typ": "JWT"})

    for _ in range(LOGGED_PER_MINUTE + 5):
        await server.bearer(of_others)
    await server.bearer(of_another_type)

    said = [record.getMessage() for record in caplog.records if "access token is refused" in record.getMessage()]
    assert said[:-1] == ["an access token is refused: InvalidAudienceError"] * LOGGED_PER_MINUTE
    assert "type" in said[-1]


async def test_whose_token_has_ended_is_told_so_whoever_guesses_behind_the_same_address(server, issuer):
    for _ in range(FAILURES_PER_MINUTE + 1):
        wrong = await server.bearer(issuer.token(OTHER_RSA))
    wrong.refused(429, "too_many_failures")
    answer = (await server.bearer(ATTACKS["expired"](issuer))).refused(401, "bad_token")
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    # One that was never the issuer's is a guess, however old it says it is.
    (await server.bearer(issuer.token(OTHER_RSA, exp=1))).refused(429, "too_many_failures")


async def test_each_attack_is_one_by_its_own_change(server, issuer):
    """What the attacks change is a good token."""
    assert (await server.bearer(unsigned(issuer, {"alg": "RS256"}, sign=_signed))).who == "anna"


def _signed(data):
    return jwt.get_algorithm_by_name("RS256").sign(data, RSA)


async def test_too_few_scopes_are_told_which_are_missing(server, issuer):
    for scope in ("", "mcpx", "MCP", "mcp,other", "admin"):
        answer = (await server.bearer(issuer.token(scope=scope))).refused(403, "insufficient_scope")
        assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
        assert 'scope="mcp"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("scope", [None, 3, {"mcp": 1}, ["mcp"]])
async def test_scopes_in_another_form(server, issuer, scope):
    answer = await server.bearer(issuer.token(scope=scope))
    assert answer.status == (200 if scope == ["mcp"] else 403)


@pytest.mark.parametrize("name", ["cara", "local", "ANNA", "anna ", "ben\x00", "*", "__class__"])
async def test_who_is_none_of_the_principals_is_told_so(server, issuer, name):
    (await server.bearer(issuer.token(sub=name))).refused(403, "not_a_principal")


@settings(max_examples=150)
@given(
    header=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.sampled_from(["RS256", "none", "at+jwt"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["alg", "typ", "kid", "crit", "b64", "jwk", "x5c"]) | st.text(max_size=3),
                inner,
                max_size=6,
            )
        ),
        max_leaves=20,
    ),
    claims=st.dictionaries(
        st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "jti"]),
        st.none() | st.booleans() | st.floats() | st.text(max_size=10) | st.lists(st.integers(), max_size=2),
    ),
)
def test_no_token_is_a_fault_of_ours(header, claims):
    """The claims are signed: what is odd in them comes from the issuer."""

    class Keys:
        async def find(self, kid, algorithm):
            return (jwt.PyJWK(jwk(RSA, "rsa"), algorithm),)

        async def find_others(self, kid, algorithm, tried):
            return ()

    tokens = AccessTokens(OAuthResource(issuer="https://i.example", audience=AUDIENCE), Keys())
    whole = {"iss": "https://i.example", "aud": AUDIENCE, "sub": "anna", "exp": time.time() + 60} | claims
    head = segment({"alg": "RS256", "typ": "at+jwt"})
    for first, sign in ((segment(header), b""), (head, None)):
        signed = f"{first}.{segment(whole)}"
        text = f"{signed}.{segment(_signed(signed.encode()) if sign is None else sign)}"
        try:
            said = asyncio.run(tokens.verify(text))
        except BadAccessTokenError:
            continue
        assert sign is None
        assert said.value == whole["sub"]


# --- keys ---


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@contextlib.asynccontextmanager
async def keys_of(issuer, **options):
    clock = Clock()
    yield SigningKeys(issuer.url, options.get("jwks_uri"), ("RS256", "ES256"), clock), clock


async def test_a_new_key_is_found_when_a_token_names_it(issuer):
    async with keys_of(issuer) as (keys, clock):
        assert await keys.find("rsa", "RS256")
        issuer.keys = [jwk(OTHER_RSA, "new")]
        # It is too early to look: nobody can say yet that there is none.
        with pytest.raises(UnknownKeyError) as caught:
            await keys.find("new", "RS256")
        assert 0 < caught.value.retry_after <= signing_keys.PAUSE_SECONDS
        clock.now += signing_keys.PAUSE_SECONDS
        assert await keys.find("new", "RS256")
        assert not await keys.find("rsa", "RS256")


async def test_keys_that_do_not_exist_cost_the_issuer_one_request_in_a_while(issuer):
    async with keys_of(issuer, jwks_uri=f"{issuer.url}/keys") as (keys, clock):
        answers = []
        for number in range(100):
            try:
                answers.append(await keys.find(f"k{number}", "RS256"))
            except UnknownKeyError:
                answers.append(UnknownKeyError)
            clock.now += 0.5
        assert issuer.asked == ["/keys"] * 5
        assert answers == [(), *[UnknownKeyError] * 19] * 5


async def test_a_token_of_a_new_key_may_be_good_soon_and_whoever_sends_many_is_refused(tmp_path, issuer):
    async with authenticating(tmp_path, config(issuer)) as server:
        assert (await server.bearer(issuer.token())).who
        issuer.keys = [jwk(OTHER_RSA, "new")]
        for _ in range(FAILURES_PER_MINUTE):
            answer = (await server.bearer(issuer.token(OTHER_RSA, headers={"kid": "new"}))).refused(
                503, "authentication_unavailable"
            )
            assert 1 <= int(answer.headers["retry-after"]) <= signing_keys.PAUSE_SECONDS
        (await server.bearer(issuer.token(OTHER_RSA, headers={"kid": "new"}))).refused(429, "too_many_failures")
        assert issuer.asked.count("/keys") == 1


async def test_a_key_that_takes_anothers_id_is_found_when_a_signature_is_none_of_the_others(issuer):
    async with keys_of(issuer) as (keys, clock):
        tokens = AccessTokens(OAuthResource(issuer=issuer.url, audience=AUDIENCE), keys)
        assert await tokens.verify(issuer.token())
        issuer.keys = [jwk(OTHER_RSA, "rsa")]
        new = issuer.token(OTHER_RSA)
        # It is too early to look; so a token with a bad signature costs the issuer one request in a while.
        with pytest.raises(BadAccessTokenError):
            await tokens.verify(new)
        clock.now += signing_keys.PAUSE_SECONDS
        assert await tokens.verify(new)
        with pytest.raises(BadAccessTokenError):
            await tokens.verify(issuer.token())
        assert issuer.asked.count("/keys") == 2


async def test_a_key_without_an_id_is_looked_for_again_when_a_signature_is_none_of_it(issuer):
    issuer.keys = [jwk(RSA, None)]
    async with keys_of(issuer) as (keys, clock):
        tokens = AccessTokens(OAuthResource(issuer=issuer.url, audience=AUDIENCE), keys)
        assert await tokens.verify(issuer.token(headers={"kid": None}))
        issuer.keys = [jwk(OTHER_RSA, None)]
        clock.now += signing_keys.PAUSE_SECONDS
        assert await tokens.verify(issuer.token(OTHER_RSA, headers={"kid": None}))


async def test_all_keys_of_one_id_are_tried(issuer):
    issuer.keys = [jwk(RSA, "rsa"), jwk(OTHER_RSA, "rsa")]
    async with keys_of(issuer) as (keys, _):
        tokens = AccessTokens(OAuthResource(issuer=issuer.url, audience=AUDIENCE), keys)
        assert await tokens.verify(issuer.token())
        assert await tokens.verify(issuer.token(OTHER_RSA))


async def test_keys_beyond_the_bound_are_told_of(issuer, caplog):
    issuer.keys = [jwk(EC, "b")] * 101
    async with keys_of(issuer) as (keys, _):
        assert await keys.find("b", "ES256")
    assert "has 101 keys: only the first 100 count" in caplog.text


async def test_a_key_that_the_issuer_withdraws_is_not_believed_for_long(issuer):
    async with keys_of(issuer) as (keys, clock):
        assert await keys.find("rsa", "RS256")
        issuer.keys = [jwk(EC, "ec")]
        clock.now += signing_keys.FRESH_SECONDS + 1
        assert not await keys.find("rsa", "RS256")


BAD_ENDPOINTS = ["down", "huge", "deep", "redirect", "redirect to a metadata address", "html", "no set", "no list"]


@pytest.mark.parametrize("behaviour", BAD_ENDPOINTS)
async def test_without_keys_nobody_gets_in_and_the_client_is_not_to_blame(tmp_path, behaviour, caplog):
    async with issuing(behaviour=behaviour) as issuer, authenticating(tmp_path, config(issuer)) as server:
        for _ in range(FAILURES_PER_MINUTE + 3):
            answer = (await server.bearer(issuer.token())).refused(503, "authentication_unavailable")
        assert 1 <= int(answer.headers["retry-after"]) <= signing_keys.PAUSE_SECONDS
        assert issuer.asked.count("/keys") == 1
        assert "/elsewhere" not in issuer.asked
        made = server.tokens.add("ben", restricted=True)
        assert (await server.bearer(made.text)).who == "ben"
    assert f"the keys of the authorization server {issuer.url} can't be had" in caplog.text


async def test_an_endpoint_that_does_not_answer_is_not_waited_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(signing_keys, "FETCH_SECONDS", 0.5)
    async with issuing(behaviour="slow") as issuer, authenticating(tmp_path, config(issuer)) as server:
        answers = await asyncio.gather(*(server.bearer(issuer.token()) for _ in range(5)))
        for answer in answers:
            answer.refused(503, "authentication_unavailable")
        # On a busy machine the time may be over before the first is sent.
        assert issuer.asked.count("/keys") <= 1


@pytest.mark.parametrize("behaviour", BAD_ENDPOINTS)
async def test_keys_that_were_fetched_are_good_for_a_while_when_the_endpoint_fails(issuer, behaviour):
    async with keys_of(issuer) as (keys, clock):
        assert await keys.find("rsa", "RS256")
        issuer.behaviour = behaviour
        clock.now += signing_keys.FRESH_SECONDS + 1
        assert await keys.find("rsa", "RS256")
        clock.now += signing_keys.STALE_SECONDS
        with pytest.raises(KeysUnavailableError):
            await keys.find("rsa", "RS256")
        issuer.behaviour = ""
        clock.now += signing_keys.PAUSE_SECONDS
        assert await keys.find("rsa", "RS256")


async def test_who_has_keys_does_not_wait_for_anothers_fetch(issuer):
    async with keys_of(issuer) as (keys, clock):
        assert await keys.find("rsa", "RS256")
        issuer.behaviour = "slow"
        clock.now += signing_keys.FRESH_SECONDS + 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keys.find, "rsa", "RS256")
            with anyio.fail_after(SECONDS):
                await issuer.slow.wait()
                assert await keys.find("rsa", "RS256")
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("keys", "kid", "found"),
    [
        ([jwk(RSA, "a")], "a", True),
        ([jwk(RSA, "a")], None, True),
        ([jwk(RSA, "a"), jwk(OTHER_RSA, "b")], None, False),
        ([jwk(RSA, "a"), jwk(EC, "b")], None, True),
        ([jwk(RSA, "a", use="enc")], "a", False),
        ([jwk(RSA, "a", use="sig")], "a", True),
        ([jwk(RSA, "a", use=["sig"])], "a", False),
        ([jwk(RSA, "a", key_ops=["encrypt"])], "a", False),
        ([jwk(RSA, "a", key_ops=["verify"])], "a", True),
        ([jwk(RSA, "a", alg="RS512")], "a", False),
        ([jwk(RSA, "a", alg="HS256")], "a", False),
        ([jwk(RSA, "a", alg=["RS256"])], "a", False),
        ([jwk(SHORT_RSA, "a")], "a", False),
        ([{"kid": "a", "kty": "oct", "k": "c2VjcmV0", "alg": "RS256"}], "a", False),
        ([{"kid": "a", "kty": "RSA", "n": "x", "e": "AQAB"}], "a", False),
        ([{"kid": "a", "kty": "RSA"}], "a", False),
        ([{"kid": "a", "kty": ["RSA"], "crv": {}}], "a", False),
        ([3, None, "x", [], jwk(RSA, "a")], "a", True),
        ([jwk(EC, "b")] * 100 + [jwk(RSA, "a")], "a", False),
        ([jwk(RSA, 7)], "7", False),
        ([], "a", False),
    ],
)
async def test_which_keys_are_usable(issuer, keys, kid, found):
    issuer.keys = keys
    async with keys_of(issuer) as (usable, _):
        assert bool(await usable.find(kid, "RS256")) == found


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example.com"},
        {"issuer": None},
        {"jwks_uri": None},
        {"jwks_uri": "http://169.254.169.254/keys"},
        {"jwks_uri": "http://keys.example.com/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "http://a b/"},
        {"jwks_uri": "http://user:password@127.0.0.1/keys"},
    ],
    ids=str,
)
async def test_metadata_leads_only_to_the_issuers_own_keys(issuer, metadata):
    issuer.metadata = metadata
    async with keys_of(issuer) as (keys, _):
        with pytest.raises(KeysUnavailableError):
            await keys.find("rsa", "RS256")
    assert "/keys" not in issuer.asked


async def test_a_private_key_that_the_issuer_publishes_is_used_as_its_public_one(issuer):
    whole = jwt.get_algorithm_by_name("RS256").to_jwk(RSA, as_dict=True)
    issuer.keys = [whole | {"kid": "rsa", "key_ops": ["sign", "verify"]}]
    assert "d" in issuer.keys[0]
    async with keys_of(issuer) as (keys, _):
        (found,) = await keys.find("rsa", "RS256")
        assert isinstance(found.key, rsa.RSAPublicKey)


# --- metadata, streams ---


@pytest.mark.parametrize("path", ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"])
async def test_the_bridge_says_where_tokens_come_from(server, issuer, path):
    refused = (await server.ask()).refused(401, "credentials_needed")
    assert refused.headers["www-authenticate"] == (
        'Bearer realm="mcp-code-bridge", scope="mcp",'
        ' resource_metadata="https://bridge.example.com/.well-known/oauth-protected-resource/mcp"'
    )

    answer = await server.ask(path=path)

    assert answer.status == 200
    assert json.loads(answer.body) == {
        "resource": AUDIENCE,
        "authorization_servers": [issuer.url],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["mcp"],
    }
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_an_audience_that_is_no_address_has_one_beside_it(issuer, tmp_path):
    text = config(issuer, 'resource = "https://bridge.example.com/team/mcp/"').replace(AUDIENCE, "api://bridge")
    async with authenticating(tmp_path, text) as server:
        answer = await server.ask(path="/.well-known/oauth-protected-resource/team/mcp")
        assert json.loads(answer.body)["resource"] == "https://bridge.example.com/team/mcp/"
        assert (await server.bearer(issuer.token(aud="api://bridge"))).who == "anna"
        (await server.bearer(issuer.token())).refused(401, "bad_token")


@pytest.mark.parametrize("where", ["/team%20a/mcp%C3%A9", "/%7Bx:foo%7D/mcp", "/%7Bx%7D/%7Bx%7D", "/%7Bx:int%7D"])
async def test_the_metadata_is_where_a_refusal_says_also_with_a_percent_in_its_path(issuer, tmp_path, where):
    text = config(issuer).replace(AUDIENCE, f"http://127.0.0.1{where}")
    async with authenticating(tmp_path, text) as server:
        said = (await server.ask()).refused(401, "credentials_needed").headers["www-authenticate"]
        path = said.partition('resource_metadata="http://127.0.0.1')[2].removesuffix('"')
        assert path == f"/.well-known/oauth-protected-resource{where}"
        answer = await server.ask(path=path)
        assert json.loads(answer.body)["resource"] == f"http://127.0.0.1{where}"
        assert (await server.ask(path=path + "x")).status == 404


@pytest.mark.parametrize("where", ["https://brücke.例え.jp/mcp", 'https://b.example/mc"p', "https://b.example/mc\\p"])
def test_an_address_that_no_header_can_hold_is_refused(where):
    for keys in ({"audience": where}, {"audience": "api://bridge", "resource": where}):
        with pytest.raises(ValueError, match="punycode"):
            OAuthResource(issuer="https://i.example", **keys)
    assert OAuthResource(issuer="https://i.example", audience=where, resource=AUDIENCE).address == AUDIENCE
    assert OAuthResource(issuer="https://i.example", audience="https://xn--brcke-lva.xn--r8jz45g.jp/mcp")


async def test_without_an_authorization_server_there_is_no_metadata(tmp_path):
    async with authenticating(tmp_path, "[principals.anna]") as server:
        assert (await server.ask(path="/.well-known/oauth-protected-resource")).status == 404


async def test_a_stream_ends_when_its_access_token_does(server, issuer, monkeypatch):
    end = time.time() + 300
    async with stream_of(server, issuer.token(exp=end)) as ended:
        assert not ended.is_set()
        monkeypatch.setattr(server.authenticator, "_clock", lambda: end + LEEWAY_SECONDS)
        with anyio.fail_after(SECONDS):
            await ended.wait()


async def test_a_token_is_not_kept_and_verified_each_time(server, issuer):
    # A busy machine may need longer than a token lasts to ask once.
    for lasts in (1, 5, 25):
        token = issuer.token(exp=time.time() - LEEWAY_SECONDS + lasts)
        if (answer := await server.bearer(token)).status == 200:
            break
    assert answer.who == "anna"
    with anyio.fail_after(SECONDS):
        while (await server.bearer(token)).status == 200:  # noqa: ASYNC110  (nothing announces it)
            await asyncio.sleep(0.1)


async def test_an_issuer_that_does_not_run_lets_nobody_in(tmp_path):
    async with issuing() as issuer:
        pass
    async with authenticating(tmp_path, config(issuer)) as server:
        (await server.bearer(issuer.token())).refused(503, "authentication_unavailable")
        request = HTTPConnection(
            {"type": "http", "headers": [(b"authorization", b"Bearer " + issuer.token().encode())]}
        )
        with pytest.raises(Unauthenticated):
            await server.authenticator.principal(request)


# --- a real authorization server ---


def token_of(server, resource=AUDIENCE, **behaviour):
    server.behave(format="jwt", **behaviour)
    answer = httpx2.post(
        f"{server.url}/token",
        data={
            "grant_type": "client_credentials",
            "client_id": "machine",
            "client_secret": "secret-of-the-machine-client-0815",
            "scope": "tools",
            "resource": resource,
        },
        timeout=SECONDS,
    )
    return answer.raise_for_status().json()["access_token"]


async def test_tokens_of_a_real_authorization_server(authorization_server, tmp_path):
    text = f"""
[principals.robot]
[authentication.oauth]
issuer = "{authorization_server.url}"
audience = "{AUDIENCE}"
scopes = ["tools"]
principals = {{ machine = "robot" }}
claim = "client_id"
"""
    async with authenticating(tmp_path, text) as server:
        token = await anyio.to_thread.run_sync(token_of, authorization_server)
        assert (await server.bearer(token)).who == "robot"
        others = await anyio.to_thread.run_sync(token_of, authorization_server, "https://other.example.com/")
        (await server.bearer(others)).refused(401, "bad_token")
        (await server.bearer(token[:-1])).refused(401, "bad_token")
        authorization_server.behave(format="opaque")
