"""`mcp-bridge serve --transport http` for several principals: tokens, streams, sessions, limits, and a proxy's word."""

import contextlib
import itertools
import json

import anyio
import httpx2
import pytest
from bridge_fixtures import DEADLINE_SECONDS, setups, state_directory, until
from http_bridge import ACCEPT, kept_serving, serving
from http_servers import ScriptedServer, remote
from http_servers import serving as serving_app
from kept_files import kept_files
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from oauth_fixtures import (
    Visitor,
    authorization_server,  # noqa: F401
    free_port,
    logged_in,
    oauth_servers,  # noqa: F401
)
from servers.specs import faulty

from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("whole_ledgers")]

NEW = "2026-07-28"

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}

PRINCIPALS = "[principals.anna]\n[principals.ben]\nrequests_per_minute = 3\n"

OAUTH = """
[authentication.oauth]
issuer = "https://auth.example.com"
audience = "https://bridge.example.com/mcp"
"""

PROXY = """
[authentication.proxy]
header = "X-Client-Subject"
trusted = ["127.0.0.2"]
principals = { "CN=Anna" = "anna" }
"""


@pytest.fixture
def team(configure):
    """A bridge's `Setup` with these tables."""

    def make(tables=PRINCIPALS, *servers, **settings):
        setup = configure(*servers, **settings)
        setup.config.write_text(f"{setup.config.read_text()}\n{tables}")
        return setup

    return make


SHARED = pytest.mark.xdist_group("principals")
"""For tests of principals of their own at one bridge, whose configuration they leave as it is."""


@pytest.fixture(scope="module")
def shared_bridge(configure_for_module):
    setup = configure_for_module()
    others = "".join(f"[principals.{name}]\n" for name in ("carla", "dora", "emil", "finn", "gina"))
    setup.config.write_text(f"{setup.config.read_text()}\n{PRINCIPALS}{others}{OAUTH}{PROXY}")
    with kept_serving(setup) as bridge:
        yield bridge


def token_for(setup, name, *arguments):
    return setup.command("principal", "add", name, *arguments).out.strip()


def bearer(token):
    return ACCEPT | {"authorization": f"Bearer {token}"}


def code_of(answer):
    return answer.json()["error"]["data"]["code"]


async def opened(http, headers):
    """Open a session; the headers of its requests."""
    answer = await http.post("/mcp", json=INITIALIZE, headers=headers)
    assert answer.status_code == 200, answer.text
    return headers | {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}


@SHARED
async def test_each_principal_has_tokens_sessions_and_limits_of_its_own(shared_bridge):
    bridge, setup = shared_bridge, shared_bridge.setup
    anna = token_for(setup, "anna")
    async with bridge.http() as http:
        refused = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
        assert (refused.status_code, code_of(refused)) == (401, "credentials_needed")
        assert refused.headers["www-authenticate"].startswith("Bearer ")
        for path in ("/health", "/ready"):
            assert (await http.get(path)).status_code in {200, 503}
        annas = await opened(http, bearer(anna))

        # A token that is made while it serves is good at once.
        ben = token_for(setup, "ben")
        # Somebody else's session doesn't exist.
        stolen = annas | bearer(ben)
        for method in ("GET", "DELETE"):
            assert (await http.request(method, "/mcp", headers=stolen)).status_code == 404
        bens = await opened(http, bearer(ben))
        await http.get("/mcp", headers=stolen)
        limited = await http.post("/mcp", json=INITIALIZE, headers=bearer(ben))
        assert (limited.status_code, code_of(limited)) == (429, "too_many_requests")
        assert 1 <= int(limited.headers["retry-after"]) <= 20
        # It can still end its sessions, as often as it may ask for something.
        assert [(await http.delete("/mcp", headers=bens)).status_code for _ in range(3)] == [200, 404, 429]
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await http.post("/mcp", json=ping, headers=annas)).status_code == 200

        # And one that is revoked is good no more, neither for a session that it has opened.
        setup.command("principal", "revoke", "anna")
        for headers in (annas, bearer(anna)):
            gone = await http.post("/mcp", json=ping, headers=headers)
            assert (gone.status_code, code_of(gone)) == (401, "bad_token")
        assert anna.encode() not in bridge.logged
        assert b"Traceback" not in bridge.logged


async def test_a_principal_with_servers_of_its_own_is_told_of_those_and_reaches_no_other(team):
    tables = '[principals.anna]\nservers = ["one", "gone"]\n[principals.ben]\n'
    setup = team(tables, faulty(name="one"), faulty(name="other"))
    modes = ["legacy", "auto"]
    tokens = {name: token_for(setup, name) for name in ("anna", "ben")}
    reach = """
from mcp import programs, runtime
found = [sorted(runtime.discovered_servers()), sorted({row.server for row in await runtime.search("echo a text")})]
for call in (
    lambda: runtime.call_tool("other", "echo", {"text": "x"}),
    lambda: runtime.describe("other.echo"),
    lambda: programs.run({"steps": [{"id": "a", "type": "tool", "tool": "other.echo", "args": {"text": "x"}}]}),
):
    try:
        found.append(str(await call()))
    except Exception as exc:
        found.append(str(exc))
import json
print(json.dumps(found))
"""
    async with serving(setup) as bridge:

        async def told(name, mode):
            async with (
                httpx2.AsyncClient(headers=bearer(tokens[name]), timeout=DEADLINE_SECONDS) as http,
                Client(streamable_http_client(bridge.url, http_client=http), mode=mode) as client,
            ):
                said = (await client.call_tool("run_python", {"code": reach})).content[0].text
                return client.instructions.partition(".")[0], json.loads(said)

        for mode in modes:
            instructions, (servers, found, *others) = await told("anna", mode)
            assert instructions == "These MCP servers are behind it: one"
            assert (servers, found) == (["one"], ["one"])
            assert all("other" in other and "no server" in other.lower() for other in others), others
            instructions, (servers, found, *others) = await told("ben", mode)
            assert instructions == "These MCP servers are behind it: one, other"
            assert (servers, found) == (["one", "other"], ["one", "other"])
            assert not any("no server" in other.lower() for other in others), others

        # What a change adds waits for a restart, and what it takes away is gone.
        text = setup.config.read_text()
        changed = text.replace('["one", "gone"]', '["other", "one"]').replace(
            "[principals.ben]", '[principals.ben]\nservers = ["one"]'
        )
        written = setup.config.with_suffix(".new")
        written.write_text(changed)
        # At once: the bridge may read it at any moment.
        written.replace(setup.config)
        for name, mode in itertools.product(tokens, modes):
            _, (servers, found, *others) = await told(name, mode)
            assert (servers, found) == (["one"], ["one"]), name
            assert all("no server" in other.lower() for other in others), others
    assert b"principals.anna.servers: there is no server 'gone', now" in bridge.logged


@SHARED
@pytest.mark.parametrize(("command", "name", "another"), [("revoke", "carla", "dora"), ("rotate", "emil", "finn")])
async def test_the_open_stream_of_a_token_that_is_revoked_ends_and_its_clients_request_too(
    shared_bridge, command, name, another
):
    bridge, setup = shared_bridge, shared_bridge.setup
    token, other = token_for(setup, name), token_for(setup, another)
    async with contextlib.AsyncExitStack() as stack:
        streams = []
        for each in (token, other):
            http = await stack.enter_async_context(bridge.http())
            headers = await opened(http, bearer(each))
            stream = await stack.enter_async_context(http.stream("GET", "/mcp", headers=headers))
            assert stream.status_code == 200
            streams.append(stream)

        setup.command("principal", command, name)

        with anyio.fail_after(DEADLINE_SECONDS), contextlib.suppress(httpx2.RemoteProtocolError):
            await streams[0].aread()
        assert not streams[1].is_closed
        async with bridge.http() as http:
            assert (await http.post("/mcp", json=INITIALIZE, headers=bearer(token))).status_code == 401
        assert b"Traceback" not in bridge.logged


async def test_bodies_of_one_principal_shut_out_no_other(team):
    """Neither those of its open streams nor those that never arrive whole."""
    # Bodies that never arrive whole keep their room until the time for them is over.
    setup = team("[principals.anna]\n[principals.ben]\n", http={"read_timeout": 120.0})
    anna, ben = token_for(setup, "anna"), token_for(setup, "ben")
    size = 9 << 20
    async with serving(setup) as bridge, bridge.http() as http, contextlib.AsyncExitStack() as stack:
        headers = await opened(http, bearer(anna))
        async with http.stream("GET", "/mcp", headers=headers, content=b" " * size) as stream:
            assert stream.status_code == 413

        # A part of each body doesn't come.
        head = f"POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {anna}\r\ncontent-length: {size + 1}\r\n\r\n"
        for _ in range(8):
            _, writer = await stack.enter_async_context(bridge.connection())
            writer.write(head.encode() + b" " * size)

        large = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"filling": " " * size}}}

        async def has_no_room():
            answer = await http.post("/mcp", json=large, headers=headers)
            return (answer.status_code, answer.headers.get("retry-after", "")) == (503, "5")

        await until(has_no_room)
        bens = await opened(http, bearer(ben))
        assert (await http.post("/mcp", json=large, headers=bens)).status_code == 200
        assert b"Traceback" not in bridge.logged


async def test_a_principal_whose_table_is_taken_out_is_nobody_from_the_next_call_on(team):
    """Not somebody with everybody's rights, whenever its token was made."""
    setup = team("")
    early = token_for(setup, "anna")
    everybody = setup.config.read_text()
    setup.config.write_text(f"{everybody}[principals.anna]\n[principals.ben]\n")
    late, ben = token_for(setup, "anna"), token_for(setup, "ben")
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run_python", "arguments": {}}}
    async with serving(setup) as bridge, bridge.http() as http, bridge.http() as other:
        opened_early, opened_late = await opened(http, bearer(early)), await opened(http, bearer(late))
        async with other.stream("GET", "/mcp", headers=opened_late) as stream:
            assert stream.status_code == 200

            setup.config.write_text(f"{everybody}[principals.ben]\n")

            # The call that finds the change is refused, too, after it was authenticated.
            first = await http.post("/mcp", json=call, headers=opened_early)
            assert first.status_code == 401 or "[not_a_principal]" in first.text, first.text
            for headers in (opened_early, opened_late):
                gone = await http.post("/mcp", json=call, headers=headers)
                assert (gone.status_code, code_of(gone)) == (401, "bad_token")
            with anyio.fail_after(DEADLINE_SECONDS), contextlib.suppress(httpx2.RemoteProtocolError):
                await stream.aread()
        await opened(http, bearer(ben))
        setup.config.write_text(f"{everybody}[principals.anna]\n[principals.ben]\n")
        answer = await http.post("/mcp", json=call, headers=await opened(http, bearer(ben)))
        assert "bad_arguments" in answer.text
        assert (await http.post("/mcp", json=call, headers=opened_early)).status_code == 200
        assert b"Traceback" not in bridge.logged


async def test_a_rule_more_for_one_principal_holds_from_its_next_call_on(team):
    server = ScriptedServer()
    async with serving_app(server.app) as port:
        setup = team(PRINCIPALS, remote(port))
        anna, ben = token_for(setup, "anna"), token_for(setup, "ben")
        params = {"code": "from mcp.sync.servers import remote\nprint(remote.act())"}
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "run_python", "arguments": params},
        }
        denies = '[[principals.anna.policy.rules]]\nname = "none"\ntools = ["remote.*"]\neffect = "deny"\n'
        before = setup.config.read_text().replace("requests_per_minute = 3\n", "")
        setup.config.write_text(before)
        async with serving(setup) as bridge, bridge.http() as http:
            annas, bens = await opened(http, bearer(anna)), await opened(http, bearer(ben))
            assert "done" in (await http.post("/mcp", json=call, headers=annas)).text
            setup.config.write_text(f"{before}\n{denies}")
            assert "policy denies remote.act" in (await http.post("/mcp", json=call, headers=annas)).text
            assert "done" in (await http.post("/mcp", json=call, headers=bens)).text
            assert len(server.calls) == 2
            assert b"Traceback" not in bridge.logged


@pytest.mark.parametrize("mode", ["legacy", NEW])
async def test_an_approver_that_is_none_any_more_when_the_answer_comes_decides_nothing(team, mode):
    server = ScriptedServer()
    async with serving_app(server.app) as port:
        setup = team("[principals.anna]\napprover = true\n", remote(port))
        with setup.config.open("a") as file:
            file.write('[[policy.rules]]\ntools = ["remote.*"]\neffect = "approve"\n')
        token, text, asked = token_for(setup, "anna"), setup.config.read_text(), []

        async def answer(_, params):
            asked.append(params.message)
            if len(asked) > 1:
                setup.config.write_text(text.replace("approver = true", ""))
            return types.ElicitResult(action="accept", content={"approve": True})

        code = "from mcp.sync.servers import remote\nprint(remote.act(), %d)"
        async with (
            serving(setup, "--tools", "programs") as bridge,
            httpx2.AsyncClient(headers=bearer(token), timeout=DEADLINE_SECONDS) as http,
            Client(
                streamable_http_client(bridge.url, http_client=http), mode=mode, elicitation_callback=answer
            ) as client,
        ):

            async def told(tool, **arguments):
                return (await client.call_tool(tool, arguments)).content[0].text

            assert "done" in await told("run_python", code=code % 1)
            refused = await told("run_python", code=code % 2)
            assert "A person has to decide on remote.act" in refused
            assert "was not counted" in refused
            # Nor is it asked any more.
            assert "was not counted" not in await told("run_python", code=code % 3)
            assert len(asked) == 2
            setup.config.write_text(text)
            # The call that finds the change was authenticated before.
            await told("list_programs")
            steps = [{"id": "a", "type": "approval", "message": "Go on?"}]
            program = json.loads(await told("run_program", program={"steps": steps}))
            assert program["status"] == "suspended"
            assert "was not counted" in program["notices"][0]
        assert (len(server.calls), len(asked)) == (1, 3)
        waiting = setup.command("approvals", "list", "--json").json["approvals"]
        assert sorted(row["question"].get("tool", "") for row in waiting) == ["", "remote.act", "remote.act"]
        assert b"Traceback" not in bridge.logged


async def test_beyond_this_machine_it_serves_whom_it_knows(team):
    setup = team("")
    refused = setup.run("serve", "--transport", "http", "--host", "0.0.0.0", "--port", "0")  # noqa: S104
    assert refused.returncode == 4
    assert "authentication_needed" in refused.stderr.decode()
    token = token_for(setup, "anna")

    async with serving(setup, "--host", "0.0.0.0") as bridge, httpx2.AsyncClient(timeout=DEADLINE_SECONDS) as http:  # noqa: S104
        url = f"http://127.0.0.1:{bridge.port}/mcp"
        assert (await http.post(url, json=INITIALIZE, headers=ACCEPT)).status_code == 401
        assert (await http.post(url, json=INITIALIZE, headers=bearer(token))).status_code == 200


@SHARED
async def test_a_proxys_header_counts_from_the_proxy_alone_whatever_others_say_of_addresses(shared_bridge):
    subject = ACCEPT | {"x-client-subject": "CN=Anna"}
    spoofed = subject | {"x-forwarded-for": "127.0.0.2", "forwarded": "for=127.0.0.2", "x-real-ip": "127.0.0.2"}
    for address, headers, status in (
        ("127.0.0.2", subject, 200),
        ("127.0.0.2", ACCEPT, 401),
        ("127.0.0.2", subject | {"x-client-subject": "CN=Ben"}, 403),
        ("127.0.0.1", subject, 401),
        ("127.0.0.1", spoofed, 401),
    ):
        transport = httpx2.AsyncHTTPTransport(local_address=address)
        async with httpx2.AsyncClient(timeout=DEADLINE_SECONDS, transport=transport) as http:
            answer = await http.post(shared_bridge.url, json=INITIALIZE, headers=headers)
            assert answer.status_code == status, (address, headers, answer.text)


@SHARED
async def test_the_metadata_for_oauth_is_everybodys_and_a_configuration_that_is_wrong_is_an_error(shared_bridge, team):
    async with shared_bridge.http() as http:
        answer = await http.get("/.well-known/oauth-protected-resource/mcp")
        assert answer.json()["authorization_servers"] == ["https://auth.example.com"]
        refused = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
        assert "resource_metadata=" in refused.headers["www-authenticate"]
        assert (await http.post("/.well-known/oauth-protected-resource")).status_code == 405
    wrong = team(f'{PRINCIPALS}{OAUTH}algorithms = ["HS256"]')
    done = wrong.run("serve", "--transport", "http", "--port", "0")
    assert done.returncode == 2
    assert "authentication.oauth.algorithms" in done.stderr.decode()


@SHARED
async def test_a_request_that_is_answered_while_its_token_ends_is_answered_whole(shared_bridge):
    """Fast requests watch their credential, too: none is lost, and none is left behind."""
    token = token_for(shared_bridge.setup, "gina", "--expires", "1h")
    async with shared_bridge.http() as http:
        headers = await opened(http, bearer(token))
        for number in range(50):
            ping = {"jsonrpc": "2.0", "id": number, "method": "ping"}
            answer = await http.post("/mcp", json=ping, headers=headers)
            assert answer.status_code == 200
            assert f'"id":{number}' in answer.text.replace(" ", ""), json.dumps(answer.text)


async def test_a_clients_token_goes_to_no_server_and_into_no_file(team):
    server = ScriptedServer()
    async with serving_app(server.app) as port:
        setup = team(PRINCIPALS, remote(port))
        token = token_for(setup, "anna")
        async with serving(setup) as bridge, bridge.http() as http:
            headers = await opened(http, bearer(token))
            code = "import os\nfrom mcp.servers import remote\nprint(await remote.act(), dict(os.environ))"
            params = {"name": "run_python", "arguments": {"code": code}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            answer = await http.post("/mcp", json=call, headers=headers)

        assert "done" in answer.text
        assert server.calls
        secret = token.split("_", 2)[2]
        assert secret not in answer.text
        assert secret not in str(server.seen) + str(server.calls)
        assert not any("authorization" in seen for _, _, seen in server.seen)
        assert secret.encode() not in bridge.logged
        files = kept_files(setup.state_dir)
        assert files
        assert [path for path, data in files.items() if secret.encode() in data] == []


async def test_a_client_finds_the_authorization_server_by_the_bridges_word_and_a_person_logs_in(
    team, authorization_server, tmp_path
):
    """The client is the bridge's own for remote servers: discovery, registration, PKCE, consent, and the resource."""
    authorization_server.behave(format="jwt")
    port = free_port()
    oauth = {"issuer": authorization_server.url, "audience": f"http://127.0.0.1:{port}/mcp"}
    lines = "\n".join(f'{key} = "{value}"' for key, value in oauth.items())
    setup = team(
        f'[principals.anna]\n[authentication.oauth]\n{lines}\nscopes = ["tools"]\nprincipals = {{ somebody = "anna" }}'
    )
    async with serving(setup, "--port", str(port)) as bridge:
        spec = ServerSpec(name="bridge", type="http", url=bridge.url, oauth=OAuthSettings())
        login = await logged_in(spec, tmp_path / "client")
        async with bridge.http() as http:
            assert await opened(http, bearer(login.tokens.access_token))
        # Who is none of the principals can log in there, and is refused here.
        with pytest.raises(BridgeError, match=r"refuses the token \(403\)"):
            await logged_in(spec, tmp_path / "other", Visitor("stranger"))
        assert login.tokens.access_token.encode() not in bridge.logged


# --- a bridge behind a bridge ---


ERAS = ["auto", "legacy", "2026-07-28"]

ASKS = """
from mcp.runtime import call_tool

for name in NAMES:
    try:
        print(name, (await call_tool(name, "run_python", {"code": "print('ran')"}))["stdout"].strip())
    except Exception as error:
        print(name, error.code, error)
"""


@pytest.fixture
def another(tmp_path, engine, image, sandbox_state_dir):
    """The `Setup` of a bridge with a state directory of its own, where nobody has to say who they are."""
    folder = tmp_path / "another"
    folder.mkdir()
    return setups(folder, engine, state_directory(folder, sandbox_state_dir))()


def in_each_era(name, url, more=""):
    """Tables of a server for each era of MCP."""
    return "".join(f'[servers."{name}-{era}"]\nurl = "{url}"\nera = "{era}"\n{more}' for era in ERAS)


NESTS = """
from mcp.runtime import call_tool

inner = "from mcp.runtime import call_tool\\nawait call_tool('back-ERA', 'run_python', {'code': 'print(6 * 7)'})"
try:
    print(await call_tool("forth-ERA", "run_python", {"code": inner}))
except Exception as error:
    print(error.code, error)
"""


async def test_a_call_that_comes_back_by_way_of_another_bridge_is_refused_and_told_the_way(configure, another):
    """Both have the other as a server; what is behind them is listed all the same."""
    setup, port = configure(), free_port()
    with another.config.open("a") as file:
        file.write(in_each_era("back", f"http://127.0.0.1:{port}/mcp"))
    async with serving(another) as other:
        with setup.config.open("a") as file:
            file.write(in_each_era("forth", other.url))
        async with serving(setup, "--port", str(port)) as bridge:
            for era, session in itertools.product(["legacy", "2026-07-28"], [None, "s"]):
                async with bridge.client(era) as client:
                    more = {"session": f"{session}-{era}"} if session else {}
                    for _ in range(2):
                        answer = await client.call_tool("run_python", {"code": NESTS.replace("ERA", era), **more})
                        said = answer.content[0].text
                        assert "[bridge_cycle]" in said, said
                        assert f"The way is: 'forth-{era}' -> 'back-{era}'" in said, said
                    # Each is used as a server as before.
                    inner = {"code": "print(6 * 7)"}
                    code = f"from mcp.runtime import call_tool\nprint(await call_tool('forth-{era}', 'run_python', {inner}))"
                    assert "42" in (await client.call_tool("run_python", {"code": code})).content[0].text
        listed = setup.command("execution", "list", "--json").json["executions"]
    assert len(listed) == 12, "the calls that came back have run nothing"


async def test_a_bridge_is_never_behind_itself_and_another_only_where_it_is_named(configure, another):
    setup, port = configure(client_configs=True), free_port()
    anna, ben = token_for(setup, "anna"), token_for(setup, "ben")
    async with serving(another) as other:
        authorization = f'headers = {{ Authorization = "Bearer {anna}" }}\n'
        with setup.config.open("a") as file:
            file.write(in_each_era("own", f"http://localhost:{port}/mcp", authorization))
            file.write(in_each_era("team", other.url))
        # The first as docs/http.md has a user type it.
        typed = {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": f"Bearer {anna}"}}
        found = {"url": f"{other.url}?by=address"}
        entries = {"bridge": {"type": "http", **typed}, "found": {"type": "http", **found}}
        (setup.home / ".claude.json").write_text(json.dumps({"mcpServers": entries}))
        own, team = ([f"{name}-{era}" for era in ERAS] for name in ("own", "team"))
        async with serving(setup, "--port", str(port)) as bridge, bridge.http() as http:
            code = ASKS.replace("NAMES", repr([*own, *team, "found", "bridge"]))
            params = {"name": "run_python", "arguments": {"code": code}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            answer = await http.post("/mcp", json=call, headers=await opened(http, bearer(ben)))
            said = json.loads(answer.text.rpartition("data: ")[2])["result"]["content"][0]["text"].splitlines()
            annas = setup.command("execution", "list", "--principal", "anna", "--json").json["executions"]
    for name, line in zip(own, said[:3], strict=True):
        wrong = f"{name} server_unavailable server '{name}' is misconfigured: it is this bridge itself."
        assert line.startswith(wrong), said
    assert said[3:6] == [f"{name} ran" for name in team]
    assert said[6].startswith("found server_unavailable server 'found' is misconfigured: it is a bridge, which"), said
    assert said[7].startswith("bridge unknown_server"), said
    assert annas == [], "nothing ran as another principal"
