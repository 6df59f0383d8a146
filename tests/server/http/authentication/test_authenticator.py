"""Who a request is from, by a token of ours or a proxy's word: asked over real HTTP, with what attackers send."""

import asyncio
import contextlib
import logging

import anyio
import pytest
from authenticating import authenticating, stream_of
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.principals import Principal, PrincipalLimits
from mcp_bridge.server.http import refusals
from mcp_bridge.server.http.authentication.wrong_credentials import FAILURES_PER_MINUTE
from mcp_bridge.server.http.rate_limits import RateLimits
from mcp_bridge.server.http.refusals import LOGGED_PER_MINUTE, Unauthenticated

ANNA = "[principals.anna]\n[principals.ben]\n"

PROXY = """
[principals.anna]
[principals.ben]

[authentication.proxy]
header = "X-Client-Subject"
trusted = ["127.0.0.1", "10.0.0.0/8"]
principals = { "CN=Anna,O=Example" = "anna" }
"""


# --- nothing configured ---


async def test_where_nothing_is_configured_everybody_is_the_local_principal(tmp_path):
    async with authenticating(tmp_path) as server:
        assert not server.authenticator.authenticates
        assert (await server.ask()).who == "local"
        assert (await server.bearer("anything")).who == "local"


async def test_the_first_token_that_is_made_ends_that_at_once_and_for_good(tmp_path):
    async with authenticating(tmp_path) as server:
        assert (await server.ask()).who == "local"

        made = server.tokens.add("anna", restricted=False)

        (await server.ask()).refused(401, "credentials_needed")
        assert (await server.bearer(made.text)).who == "anna"
        server.tokens.revoke("anna")
        (await server.ask()).refused(401, "credentials_needed")
        (tmp_path / "state" / "principal-tokens.json").unlink()
        (await server.ask()).refused(401, "credentials_needed")
        (await server.bearer(made.text)).refused(401, "bad_token")


@pytest.mark.parametrize("config", [ANNA, '[authentication.proxy]\nheader = "X-A"\ntrusted = ["::1"]'])
async def test_what_is_configured_without_a_token_lets_nobody_in(tmp_path, config):
    async with authenticating(tmp_path, config) as server:
        assert server.authenticator.authenticates
        (await server.ask()).refused(401, "credentials_needed")


# --- tokens ---


async def test_a_token_is_its_principals_until_it_is_revoked(tmp_path):
    async with authenticating(tmp_path, ANNA) as server:
        anna, ben = (server.tokens.add(name, restricted=True) for name in ("anna", "ben"))

        assert (await server.bearer(anna.text)).who == "anna"
        assert (await server.bearer(ben.text)).who == "ben"
        for scheme in ("bearer", "BEARER", "Bearer  "):
            assert (await server.ask(("authorization", f"{scheme} {anna.text}"))).who == "anna"
        server.tokens.revoke("anna")
        (await server.bearer(anna.text)).refused(401, "bad_token")
        assert (await server.bearer(ben.text)).who == "ben"


async def test_a_token_has_the_rights_of_its_table(tmp_path):
    config = "[principals.anna]\napprover = true\nrequests_per_minute = 7\n"
    async with authenticating(tmp_path, config) as server:
        anna, cara = (server.tokens.add(name, restricted=False) for name in ("anna", "cara"))

        def principal(token):
            scope = {"type": "http", "headers": [(b"authorization", f"Bearer {token.text}".encode())]}
            return server.authenticator.principal(HTTPConnection(scope))

        assert (await principal(anna)).may_approve
        assert (await principal(anna)).limits.requests_per_minute == 7
        cara = await principal(cara)
        assert cara.name == "cara"
        assert not cara.may_approve
        assert not cara.may_see_all


async def test_a_table_that_comes_while_it_serves_takes_from_who_had_everybodys_rights_and_gives_nothing(tmp_path):
    async with authenticating(tmp_path, ANNA) as server:
        cara = server.tokens.add("cara", restricted=False)
        table = Principal("cara", may_approve=True, servers=frozenset({"notes"}), limits=PrincipalLimits(3))
        server.authenticator.restrict({"anna": Principal("anna"), "cara": table})
        scope = {"type": "http", "headers": [(b"authorization", f"Bearer {cara.text}".encode())]}
        found = await server.authenticator.principal(HTTPConnection(scope))

        assert (found.may_approve, found.servers, found.limits.max_concurrent) == (False, {"notes"}, 3)


async def test_a_token_that_was_made_under_a_table_is_not_good_without_it(tmp_path, caplog):
    async with authenticating(tmp_path, ANNA) as server:
        made = server.tokens.add("cara", restricted=True)

        (await server.bearer(made.text)).refused(401, "bad_token")

    assert "no [principals.cara]" in caplog.text
    assert made.text not in caplog.text


async def test_an_expired_token_is_refused(tmp_path):
    async with authenticating(tmp_path, ANNA) as server:
        made = server.tokens.add("anna", seconds=-1, restricted=True)

        (await server.bearer(made.text)).refused(401, "bad_token")


async def test_a_principal_is_known_while_anybody_could_authenticate_as_it(tmp_path, caplog):
    async with authenticating(tmp_path, PROXY) as server:
        knows = server.authenticator.knows
        # The proxy may name anna, and has no word for ben.
        assert [await knows(name) for name in ("local", "anna", "ben", "cara")] == [True, True, False, False]
        server.tokens.add("ben", seconds=-1, restricted=True)
        server.tokens.add("cara", restricted=True)
        assert not await knows("ben")
        assert not await knows("cara")
        for name in ("ben", "ben", "cara"):
            server.tokens.add(name, restricted=False)
        assert await knows("ben")
        assert await knows("cara")
        server.authenticator.restrict({"anna": Principal("anna")})
        assert [await knows(name) for name in ("anna", "ben", "cara")] == [True, False, True]
        server.authenticator.restrict({})
        assert not await knows("anna")
        server.tokens.revoke("cara")
        assert not await knows("cara")
        (tmp_path / "state" / "principal-tokens.json").write_text("no tokens")
        server.authenticator.restrict({"ben": Principal("ben")})
        assert not await knows("ben")
        assert "no token can be verified" in caplog.text


def variants(token):
    prefix, ident, secret = token.split("_", 2)
    head = f"{prefix}_{ident}"
    return {
        "truncated": token[:-1],
        "its prefix": "mcpb_",
        "its id": head,
        "another secret": f"{head}_{'A' * len(secret)}",
        "another id": f"mcpb_{'0' * 16}_{secret}",
        "longer": token + "A",
        "in capitals": token.upper(),
        "padded": token + "=",
        "in quotes": f'"{token}"',
        "twice": f"{token} {token}",
        "with a comma": f"{token},",
        "after white space": f"\t{token}",
        "with a tab": f"{token}\tx",
        "with a full width letter": ("\uff4d" + token[1:]).encode(),
        "in Latin-1": token[:-1].encode() + b"\xe9",
        "with a control character": token.encode()[:-1] + b"\x01",
        "nothing": "",
        "none": "null",
        "a JWT": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm5hIn0.",
        "oversized": "a" * 40_000,
        "oversized, of ours": token + "a" * 20_000,
    }


@pytest.mark.parametrize("variant", sorted(variants("mcpb_0_0")))
async def test_a_token_that_is_not_whole_is_refused_and_told_nothing(tmp_path, variant):
    async with authenticating(tmp_path, ANNA) as server:
        made = server.tokens.add("anna", restricted=True)

        answer = await server.bearer(variants(made.text)[variant])

        if answer.status == 400:
            # The HTTP server itself doesn't take it for a request.
            assert variant == "with a control character"
            return
        answer.refused(401, "bad_token")
        assert answer.headers["www-authenticate"] == 'Bearer realm="mcp-code-bridge", error="invalid_token"'
        assert answer.headers["cache-control"] == "no-store"
        assert made.text[:8].encode() not in answer.body


@pytest.mark.parametrize("scheme", ["Basic YTpi", "Digest x", "mcpb_0", "Negotiate", ""])
async def test_other_schemes_are_no_credentials(tmp_path, scheme):
    async with authenticating(tmp_path, ANNA) as server:
        answer = (await server.ask(("authorization", scheme))).refused(401, "credentials_needed")
        assert answer.headers["www-authenticate"] == 'Bearer realm="mcp-code-bridge"'


async def test_a_token_anywhere_but_in_its_header_is_not_looked_at(tmp_path):
    async with authenticating(tmp_path, ANNA) as server:
        made = server.tokens.add("anna", restricted=True)

        (await server.ask(path=f"/?access_token={made.text}")).refused(401, "credentials_needed")
        (await server.ask(("cookie", f"token={made.text}"))).refused(401, "credentials_needed")
        (await server.ask(("proxy-authorization", f"Bearer {made.text}"))).refused(401, "credentials_needed")


async def test_two_headers_are_refused_even_if_they_are_the_same(tmp_path):
    async with authenticating(tmp_path, ANNA) as server:
        anna, ben = (server.tokens.add(name, restricted=True) for name in ("anna", "ben"))

        for other in (anna.text, ben.text, "x"):
            headers = [("authorization", f"Bearer {token}") for token in (anna.text, other)]
            (await server.ask(*headers)).refused(400, "bad_credentials")


async def test_a_file_of_tokens_that_is_damaged_lets_nobody_in_and_is_no_fault_of_the_client(tmp_path, caplog):
    async with authenticating(tmp_path, ANNA) as server:
        made = server.tokens.add("anna", restricted=True)
        file = tmp_path / "state" / "principal-tokens.json"
        whole = file.read_text()
        assert (await server.bearer(made.text)).who == "anna"

        for damage in ("{", '{"format": 1, "secrets": {"x": "y"}}', '{"format": 2}', ""):
            file.write_text(damage)
            answer = (await server.bearer(made.text)).refused(503, "authentication_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            (await server.ask()).refused(401, "credentials_needed")
        file.write_text(whole)
        file.chmod(0o644)
        (await server.bearer(made.text)).refused(503, "authentication_unavailable")
        file.chmod(0o600)
        assert (await server.bearer(made.text)).who == "anna"

    # Once a minute, however often it is asked for.
    assert caplog.text.count("no token can be verified") == 1


def test_a_damaged_file_of_tokens_keeps_a_server_from_being_opened(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "principal-tokens.json").write_text("{")
    (tmp_path / "state" / "principal-tokens.json").chmod(0o600)

    async def opened():
        async with authenticating(tmp_path):
            pass

    with pytest.raises(BridgeError) as raised:
        asyncio.run(opened())
    assert raised.value.code == "secrets_file_damaged"


async def test_tokens_that_come_and_go_while_others_ask_are_never_taken_for_anothers(tmp_path):
    async with authenticating(tmp_path, ANNA) as server:
        made = server.tokens.add("ben", restricted=True)
        ended = anyio.Event()

        async def ask():
            while not ended.is_set():
                assert (await server.bearer(made.text)).who == "ben"

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
            for _ in range(20):
                anna = await anyio.to_thread.run_sync(lambda: server.tokens.add("anna", restricted=True))
                assert (await server.bearer(anna.text)).who == "anna"
                await anyio.to_thread.run_sync(server.tokens.revoke, "anna")
                # 401 until an address has had too many of them.
                assert (await server.bearer(anna.text)).status in {401, 429}
            ended.set()


# --- wrong credentials ---


async def test_many_wrong_tokens_are_slowed_and_right_ones_always_pass(tmp_path, caplog, monkeypatch):
    # As other tests' requests have left it: they are from the same address.
    monkeypatch.setattr(refusals, "_logged", RateLimits(10))
    async with authenticating(tmp_path, ANNA) as server:
        made = server.tokens.add("anna", restricted=True)
        brief = server.tokens.add("anna", seconds=-1, restricted=True)
        wrong = f"mcpb_{'0' * 16}_{'guess' * 8}xyz"

        answers = [await server.bearer(wrong) for _ in range(FAILURES_PER_MINUTE + 5)]

        assert [answer.status for answer in answers[:FAILURES_PER_MINUTE]] == [401] * FAILURES_PER_MINUTE
        answers[-1].refused(429, "too_many_failures")
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        assert (await server.bearer(made.text)).who == "anna"
        # Whose token has ended is told so, and gets a new one: others behind the same proxy may guess.
        ended = await server.bearer(brief.text)
        ended.refused(401, "bad_token")
        assert 'error="invalid_token"' in ended.headers["www-authenticate"]
        # Who has none yet is told where to get one.
        (await server.ask()).refused(401, "credentials_needed")

    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    # So many of a code: of wrong ones, of too many, and of none.
    assert len(warned) <= 2 * LOGGED_PER_MINUTE + 1
    assert "a request from 127.0.0.1 is refused (429 too_many_failures)" in caplog.text
    assert "a request from 127.0.0.1 is refused (401 credentials_needed)" in caplog.text
    assert "a request from 127.0.0.1 is refused (401 bad_token)" in caplog.text
    assert "guess" not in caplog.text


async def test_good_credentials_that_are_not_enough_are_told_so_however_many_come_and_whatever_others_guess(tmp_path):
    async with authenticating(tmp_path, PROXY) as server:
        ben = server.tokens.add("ben", restricted=True)

        async def are_told():
            (await server.ask(("x-client-subject", "CN=Eve,O=Example"))).refused(403, "not_a_principal")
            both = ("x-client-subject", "CN=Anna,O=Example"), ("authorization", f"Bearer {ben.text}")
            (await server.ask(*both)).refused(400, "bad_credentials")

        for _ in range(2 * FAILURES_PER_MINUTE):
            await are_told()
        for _ in range(FAILURES_PER_MINUTE):
            (await server.bearer("mcpb_guess")).refused(401, "bad_token")
        (await server.bearer("mcpb_guess")).refused(429, "too_many_failures")
        await are_told()


def test_a_rate_is_so_many_a_minute_and_of_each_name_its_own():
    now = 0.0
    limits = RateLimits(2, lambda: now)

    assert [limits.take("a", 3) for _ in range(3)] == [0, 0, 0]
    assert limits.take("a", 3) == pytest.approx(20)
    assert limits.take("b", 3) == 0
    now = 20.0
    assert limits.take("a", 3) == 0
    assert limits.take("a", 3) == pytest.approx(20)
    limits.take("c", 3)
    assert len(limits._buckets) == 2


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 100)), max_size=200), st.integers(1, 20))
def test_no_more_than_twice_the_rate_passes_in_any_minute(steps, rate):
    """What a bucket has saved, and what it gets meanwhile."""
    now = 0.0
    limits = RateLimits(10, lambda: now)
    passed = []
    for name, wait in steps:
        now += wait
        if name == "a" and not limits.take("a", rate):
            passed.append(now)
    for start in passed:
        assert sum(start <= at <= start + 60 for at in passed) <= 2 * rate


# --- streams ---


@pytest.mark.parametrize("how", ["revoke", "rotate", "expire", "damage"])
async def test_a_stream_ends_with_its_token_and_others_go_on(tmp_path, how):
    async with authenticating(tmp_path, ANNA) as server:
        anna = server.tokens.add("anna", seconds=2 if how == "expire" else 1000, restricted=True)
        ben = server.tokens.add("ben", restricted=True)
        async with stream_of(server, anna.text) as annas, stream_of(server, ben.text) as bens:
            assert not annas.is_set()
            match how:
                case "revoke":
                    server.tokens.revoke("anna")
                case "rotate":
                    server.tokens.rotate("anna", restricted=True)
                case "damage":
                    (tmp_path / "state" / "principal-tokens.json").write_text("{")
            with anyio.fail_after(30):
                await annas.wait()
            if how != "damage":
                assert not bens.is_set()


# --- a proxy's word ---


SUBJECT = ("x-client-subject", "CN=Anna,O=Example")


async def test_a_trusted_proxy_says_whose_the_certificate_is(tmp_path):
    async with authenticating(tmp_path, PROXY) as server:
        assert (await server.ask(SUBJECT)).who == "anna"
        assert (await server.ask(("X-CLIENT-SUBJECT", SUBJECT[1]))).who == "anna"
        (await server.ask(("x-client-subject", "CN=Ben"))).refused(403, "not_a_principal")
        (await server.ask(("x-client-subject", "anna"))).refused(403, "not_a_principal")
        (await server.ask(("x-client-subject", ""))).refused(401, "credentials_needed")
        (await server.ask()).refused(401, "credentials_needed")


async def test_a_subject_may_have_any_letters(tmp_path):
    async with authenticating(tmp_path, PROXY.replace("CN=Anna", "CN=Zoë")) as server:
        assert (await server.ask((b"x-client-subject", "CN=Zoë,O=Example".encode()))).who == "anna"
        assert (await server.ask((b"x-client-subject", "CN=Zoë,O=Example".encode("latin-1")))).who == "anna"


async def test_without_a_map_the_header_has_the_principals_name(tmp_path):
    config = PROXY.replace('principals = { "CN=Anna,O=Example" = "anna" }', "")
    async with authenticating(tmp_path, config) as server:
        assert (await server.ask(("x-client-subject", "ben"))).who == "ben"
        for other in ("cara", "local", "Anna", "anna, ben", "anna\t", "a" * 2000):
            answer = await server.ask(("x-client-subject", other))
            assert answer.status == 403 or (other.strip() == "anna" and answer.who == "anna")


async def test_several_copies_of_the_header_are_refused(tmp_path):
    async with authenticating(tmp_path, PROXY) as server:
        for other in (SUBJECT, ("X-Client-Subject", "CN=Ben"), ("x-client-subject", "")):
            (await server.ask(SUBJECT, other)).refused(400, "bad_credentials")


async def test_a_header_that_only_looks_like_it_is_not_it(tmp_path):
    async with authenticating(tmp_path, PROXY) as server:
        for name in ("x_client_subject", "x-client-subject-", "x-client--subject", "client-subject"):
            (await server.ask((name, SUBJECT[1]))).refused(401, "credentials_needed")


@pytest.mark.parametrize("forwarded", ["x-forwarded-for", "forwarded", "x-real-ip", "via"])
async def test_from_anywhere_else_the_header_is_nobodys_word(tmp_path, forwarded):
    config = PROXY.replace('"127.0.0.1", ', "")
    async with authenticating(tmp_path, config) as server:
        (await server.ask(SUBJECT)).refused(401, "credentials_needed")
        (await server.ask(SUBJECT, (forwarded, "10.0.0.1"))).refused(401, "credentials_needed")
        # Two of them are nobody's word either.
        (await server.ask(SUBJECT, SUBJECT)).refused(401, "credentials_needed")


@pytest.mark.parametrize(
    ("address", "is_trusted"),
    [
        ("10.255.0.1", True),
        ("11.0.0.1", False),
        ("::ffff:10.0.0.1", True),
        ("::10.0.0.1", False),
        ("fe80::1", False),
        ("", False),
        ("unix:", False),
        (None, False),
    ],
)
async def test_addresses_are_compared_as_addresses(tmp_path, address, is_trusted):
    async with authenticating(tmp_path, PROXY) as server:
        client = None if address is None else (address, 1)
        scope = {"type": "http", "client": client, "headers": [(b"x-client-subject", b"CN=Anna,O=Example")]}
        if is_trusted:
            assert (await server.authenticator.principal(HTTPConnection(scope))).name == "anna"
        else:
            with pytest.raises(Unauthenticated) as raised:
                await server.authenticator.principal(HTTPConnection(scope))
            assert raised.value.status == 401


async def test_a_token_and_a_certificate_have_to_be_the_same_ones(tmp_path):
    async with authenticating(tmp_path, PROXY) as server:
        anna, ben = (server.tokens.add(name, restricted=True) for name in ("anna", "ben"))

        assert (await server.ask(SUBJECT, ("authorization", f"Bearer {anna.text}"))).who == "anna"
        (await server.ask(SUBJECT, ("authorization", f"Bearer {ben.text}"))).refused(400, "bad_credentials")
        (await server.ask(SUBJECT, ("authorization", "Bearer x"))).refused(401, "bad_token")
        assert (await server.ask(("authorization", f"Bearer {ben.text}"))).who == "ben"


# --- configuration ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("authentication = 3", "authentication is a table"),
        ("[authentication]\noauht = {}", "Did you mean oauth?"),
        ('[authentication.proxy]\nheader = "X-A"', "trusted"),
        ('[authentication.proxy]\nheader = "X-A"\ntrusted = []', "trusted"),
        ('[authentication.proxy]\nheader = "X-A"\ntrusted = ["10.0.0.1/8"]', "such as 10.0.0.7"),
        ('[authentication.proxy]\nheader = "X-A"\ntrusted = ["nginx"]', "such as 10.0.0.7"),
        ('[authentication.proxy]\nheader = "Authorization"\ntrusted = ["::1"]', "header of its own"),
        ('[authentication.proxy]\nheader = "Host"\ntrusted = ["::1"]', "header of its own"),
        ('[authentication.proxy]\nheader = "Mcp-Session-Id"\ntrusted = ["::1"]', "header of its own"),
        ('[authentication.proxy]\nheader = "X A"\ntrusted = ["::1"]', "header of its own"),
        (
            '[authentication.proxy]\nheader = "X-A"\ntrusted = ["::1"]\nprincipals = {CN = "cara"}',
            "Write [principals.cara]",
        ),
        ('[authentication.oauth]\nissuer = "https://a.example"', "audience"),
        ('[authentication.oauth]\nissuer = "http://a.example"\naudience = "https://b.example"', "https://"),
        ('[authentication.oauth]\nissuer = "a.example"\naudience = "https://b.example"', "issuer"),
        ('[authentication.oauth]\nissuer = "https://a.example"\naudience = "api"', "resource = "),
        *(
            (f'[authentication.oauth]\nissuer = "https://a.example"\naudience = "https://b.example"\n{more}', said)
            for more, said in (
                ('algorithms = ["none"]', "algorithms"),
                ('algorithms = ["HS256"]', "algorithms"),
                ('algorithms = ["RS256", "HS512"]', "algorithms"),
                ("algorithms = []", "algorithms"),
                ("token_types = []", "token_types"),
                ('scopes = ["a b"]', "scopes"),
                ('scopes = "mcp"', "scopes"),
                ('jwks_uri = "http://keys.example/jwks"', "https://"),
                ('claim = ""', "claim"),
                ('claim = "scope"', "needs principals"),
                ('principals = {x = "local"}', "principals.local"),
                ("principals = {x = 3}", "principals"),
            )
        ),
    ],
)
async def test_a_wrong_configuration_is_named_with_its_line(tmp_path, text, said):
    with pytest.raises(BridgeError) as raised:
        async with authenticating(tmp_path, text):
            pass
    assert raised.value.code == "bad_config"
    assert said in str(raised.value)
    assert "config.toml, line" in str(raised.value)


# --- whatever is sent ---


@settings(max_examples=200)
@given(
    headers=st.lists(
        st.tuples(
            st.sampled_from([b"authorization", b"x-client-subject", b"cookie"]),
            st.binary(max_size=60)
            | st.binary(max_size=60).map(lambda value: b"Bearer " + value)
            | st.binary(max_size=30).map(lambda value: b"Bearer mcpb_" + value)
            | st.just(b"CN=Anna,O=Example"),
        ),
        max_size=4,
    ),
    client=st.sampled_from([("127.0.0.1", 5), ("192.0.2.1", 5), None]),
)
def test_no_header_is_a_fault_of_ours_and_none_but_the_proxys_lets_anybody_in(headers, client, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")

    async def asked():
        async with authenticating_without_http(folder, PROXY) as authenticator:
            return await authenticator.principal(HTTPConnection({"type": "http", "headers": headers, "client": client}))

    try:
        principal = asyncio.run(asked())
    except Unauthenticated as refusal:
        if refusal.status not in {400, 401, 403}:
            raise
    else:
        assert principal.name == "anna"
        assert client == ("127.0.0.1", 5)
        assert (b"x-client-subject", b"CN=Anna,O=Example") in headers


@contextlib.asynccontextmanager
async def authenticating_without_http(folder, config):
    from mcp_bridge import settings as configuration
    from mcp_bridge.server.http.authentication.authenticator import open_authenticator

    file = folder / "config.toml"
    file.write_text(config)
    yield open_authenticator(configuration.load(file, environ={}).layers, folder / "state")


async def test_no_token_has_the_file_read_again(tmp_path):
    async with authenticating(tmp_path, ANNA) as server:
        made = server.tokens.add("anna", restricted=True)
        await server.bearer(made.text)
        reads = 0
        whole = server.authenticator._tokens.read

        def counted():
            nonlocal reads
            reads += 1
            return whole()

        server.authenticator._tokens.read = counted
        for text in variants(made.text).values():
            await server.bearer(text)
        assert reads == 0
