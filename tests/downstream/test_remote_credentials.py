"""What authenticates the bridge to a server over HTTP, and whom it trusts: headers, secrets, certificates, proxies."""

import asyncio
import datetime as dt
import ipaddress
import os
import socket
import ssl
import threading
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from downstream_calls import call_tool
from http_servers import ScriptedServer, remote, sdk_server, serving
from oauth_fixtures import login_store
from starlette.responses import JSONResponse, Response

from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.inherited_environment import InheritedEnvironment
from mcp_bridge.downstream.configuration.spec import TlsFiles
from mcp_bridge.downstream.http import http_client
from mcp_bridge.downstream.http.http_client import (
    Attempt,
    RemoteFailure,
    RequestFailedError,
    open_client,
    opened,
    tls_context,
)
from mcp_bridge.downstream.http.remote_auth import RemoteAccess, without_secrets
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.server_credentials import remote_access

pytestmark = pytest.mark.timeout(60)

SECRET = "ghp-7Xq2LmV9sKwT4zRb8NcYdE"  # noqa: S105 - of this test alone


async def text(fleet, tool="act", arguments=None):
    result = await call_tool(fleet, "remote", tool, arguments)
    return result.content[0].text


async def failure(fleet):
    with pytest.raises(BridgeError) as caught:
        await call_tool(fleet, "remote", "act")
    error = caught.value
    assert SECRET not in f"{error!s} {error!r} {error.hint} {error.details} {error.private} {error.record()}"
    return error


@pytest.fixture
def governance(tmp_path, monkeypatch):
    """The secret `github` from an environment variable, as the user's own configuration has it."""
    monkeypatch.setenv("GITHUB_SECRET", SECRET)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return load_governance({"secrets": {"github": {"env": "GITHUB_SECRET"}}}, None, tmp_path, state)


# Secrets.


async def test_a_secret_in_a_header_reaches_the_server_alone(governance, caplog):
    caplog.set_level("DEBUG")
    server = ScriptedServer()
    spec = remote(1, headers={"Authorization": "Bearer vault://secret/github", "X-Team": "core"})
    async with serving(server.app) as port:
        spec = remote(port, headers=spec.headers)
        async with Fleet([spec], access=remote_access(governance)) as fleet:
            assert await text(fleet) == "done"
            assert SECRET not in f"{fleet.statuses()} {fleet.server('remote').spec}"
    assert {headers["authorization"] for _, _, headers in server.seen} == {f"Bearer {SECRET}"}
    assert {headers["x-team"] for _, _, headers in server.seen} == {"core"}
    assert SECRET not in caplog.text


@pytest.mark.parametrize("mode", ["events", "json", "stateless"])
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_credential_that_a_server_repeats_is_hidden(tmp_path, governance, mode, era):
    headers = {"Authorization": "Bearer vault://secret/github", "X-Api-Key": f"k{SECRET}", "X-Team": "core-" + "x" * 30}
    with sdk_server(mode, tmp_path / "calls") as port:
        spec = remote(port, era=era, headers=headers)
        async with Fleet([spec], access=remote_access(governance)) as fleet:
            said = await text(fleet, "headers")
    assert SECRET not in said
    assert "[hidden]" in said
    assert "core-" + "x" * 30 in said, "no credential"


async def test_a_credential_that_can_be_guessed_is_not_confirmed_by_being_hidden(governance):
    async def repeats(_request, message, _number):
        return JSONResponse(server.result(message, "1234 is a number")) if message["method"] == "tools/call" else None

    server = ScriptedServer(repeats)
    async with serving(server.app) as port:
        spec = remote(port, headers={"X-Api-Key": "1234"})
        async with Fleet([spec], access=remote_access(governance)) as fleet:
            assert await text(fleet) == "1234 is a number"


@pytest.mark.parametrize("name", ["nothing", "git"])
async def test_a_secret_that_there_is_not_is_an_error_and_nothing_is_sent(governance, name):
    server = ScriptedServer()
    async with serving(server.app) as port:
        spec = remote(port, headers={"Authorization": f"Bearer vault://secret/{name}"})
        async with Fleet([spec], access=remote_access(governance)) as fleet:
            assert (await failure(fleet)).code == "secret_missing"
        async with Fleet([spec]) as fleet:
            assert (await failure(fleet)).code == "secret_missing"
    assert server.seen == []


async def test_a_secret_that_no_header_may_have_is_an_error_and_nothing_is_sent(governance, monkeypatch):
    monkeypatch.setenv("GITHUB_SECRET", f"{SECRET}\r\nX-Evil: 1")
    server = ScriptedServer()
    async with serving(server.app) as port:
        spec = remote(port, headers={"Authorization": "Bearer vault://secret/github"})
        async with Fleet([spec], access=remote_access(governance)) as fleet:
            error = await failure(fleet)
    assert error.code == "server_unavailable"
    assert "headers.Authorization contains a line break" in error.message
    assert server.seen == []


@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key"])
@pytest.mark.parametrize("status", [401, 403])
async def test_a_secret_that_is_replaced_is_sent_once_the_old_one_is_refused(
    governance, monkeypatch, tmp_path, status, header
):
    valid = SECRET

    async def checks(request, _message, _number):
        return None if request.headers[header] == f"Bearer {valid}" else Response(status_code=status)

    server = ScriptedServer(checks)
    async with serving(server.app) as port:
        spec = remote(port, headers={header: "Bearer vault://secret/github"})
        async with Fleet([spec], access=remote_access(governance, login_store(tmp_path))) as fleet:
            assert await text(fleet) == "done"
            valid = SECRET[::-1]
            wants_a_login = (status, header) == (401, "X-Api-Key")
            assert (await failure(fleet)).code == ("login_needed" if wants_a_login else "server_unauthorized")
            monkeypatch.setenv("GITHUB_SECRET", valid)
            if status == 403:
                # It may be the tool's own answer: the call isn't sent again, and others have the new secret.
                calls = len(server.calls)
                assert (await failure(fleet)).code == "server_unauthorized"
                assert len(server.calls) == calls + 1
            async with asyncio.TaskGroup() as tasks:
                many = [tasks.create_task(text(fleet)) for _ in range(4)]
            assert {task.result() for task in many} == {"done"}
    assert server.sessions == 1, "the session goes on"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_secret_that_is_gone_when_the_server_refuses_the_old_one_hides_no_answer(
    governance, monkeypatch, tmp_path, status, caplog
):
    async def refuses(_request, message, _number):
        return Response("not yours", status_code=status) if message["method"] == "tools/call" else None

    server = ScriptedServer(refuses)
    async with serving(server.app) as port:
        spec = remote(port, headers={"Authorization": "Bearer vault://secret/github"})
        async with Fleet([spec], access=remote_access(governance, login_store(tmp_path))) as fleet:
            await fleet.server("remote").tools()
            monkeypatch.delenv("GITHUB_SECRET")
            error = await failure(fleet)
    assert (error.code, error.details["status"]) == ("server_unauthorized", status)
    assert "It says: not yours" in error.message
    assert ("The call may have happened." in error.message) == (status == 403)
    assert ("Nothing was called." in error.message) == (status == 401)
    assert "can't be renewed: secret_missing" in caplog.text


async def test_a_folders_entry_gets_none_of_the_users_secrets(tmp_path, monkeypatch):
    from mcp_bridge.governance.governance import govern
    from mcp_bridge.settings import Layer
    from mcp_bridge.workspace.folder_content import Content

    monkeypatch.setenv("GITHUB_SECRET", SECRET)
    tables = {"secrets": {"github": {"env": "GITHUB_SECRET", "tools": ["*.*"]}}}
    file = tmp_path / "folder" / "mcp-bridge.toml"
    own = Layer(tmp_path / "config.toml", tmp_path, tables=tables)
    folder = Layer(file, file.parent, tables={"secrets": {}}, trusted=Content(file, b""))
    (tmp_path / "state").mkdir(mode=0o700)
    governance = govern([own, folder], tmp_path / "state", frozenset({"remote"}))
    server = ScriptedServer()
    async with serving(server.app) as port:
        spec = remote(port, scope="folder", headers={"Authorization": "Bearer vault://secret/github"})
        async with Fleet([spec], access=remote_access(governance)) as fleet:
            assert (await failure(fleet)).code == "secret_denied"
    assert server.seen == []


@pytest.mark.parametrize("scope", ["folder", "project"])
async def test_a_folders_entry_gets_no_variable_that_its_servers_may_not_have(scope):
    given = InheritedEnvironment({"VAULTED": SECRET, "OPEN": "o", "MCP_BRIDGE_X": "x"}, "all", frozenset({"VAULTED"}))
    server = ScriptedServer()
    async with serving(server.app) as port:
        for variable in ("VAULTED", "MCP_BRIDGE_X"):
            spec = remote(port, scope=scope, headers={"X-Key": SECRET}, variables=frozenset({variable}))
            async with Fleet([spec], environment=given) as fleet:
                error = await failure(fleet)
                assert (error.code, error.details["reason"]) == ("server_unavailable", "misconfigured")
                assert variable in error.message
        assert server.seen == []
        for spec in (
            remote(port, scope=scope, variables=frozenset({"OPEN"})),
            remote(port, scope="user", variables=frozenset({"VAULTED"})),
        ):
            async with Fleet([spec], environment=given) as fleet:
                assert await text(fleet) == "done"


# Certificates.


_KEY_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def _certificate(folder, name, issuer=None, *, names=(), is_authority=False):
    """Write NAME.pem and NAME.key; returns both as objects, to issue others."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issued_by, issuers_key = (issuer[0].subject, issuer[1]) if issuer else (subject, key)
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issued_by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers_key.public_key()), critical=False)
    )
    if is_authority:
        # From Python 3.13 on, an authority has to have it.
        signs = dict.fromkeys(_KEY_USES, False) | {"key_cert_sign": True, "crl_sign": True}
        built = built.add_extension(x509.KeyUsage(**signs), critical=True)
    if names:
        alternatives = [x509.IPAddress(ipaddress.ip_address(each)) for each in names]
        built = built.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    certificate = built.sign(issuers_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, key


@pytest.fixture
def certificates(tmp_path):
    authority = _certificate(tmp_path, "authority", is_authority=True)
    _certificate(tmp_path, "server", authority, names=["127.0.0.1"])
    _certificate(tmp_path, "elsewhere", authority, names=["127.0.0.2"])
    _certificate(tmp_path, "client", authority)
    _certificate(tmp_path, "renewed", authority)
    _certificate(tmp_path, "stranger", is_authority=True)
    return tmp_path


def _https(port, **settings):
    return remote(port, url=f"https://127.0.0.1:{port}/mcp", **settings)


async def test_a_server_is_trusted_by_the_authorities_of_its_entry_and_no_others(certificates):
    server = ScriptedServer()
    served = {"ssl_certfile": certificates / "server.pem", "ssl_keyfile": certificates / "server.key"}
    async with serving(server.app, **served) as port:
        async with Fleet([_https(port, tls=TlsFiles(str(certificates / "authority.pem")))]) as fleet:
            assert await text(fleet) == "done"
        seen = len(server.seen)
        for tls in (TlsFiles(), TlsFiles(str(certificates / "stranger.pem"))):
            async with Fleet([_https(port, tls=tls)]) as fleet:
                error = await failure(fleet)
            assert error.code == "server_start_failed"
            assert "certificate isn't trusted" in error.message
    assert len(server.seen) == seen


async def test_the_systems_authorities_are_read_once_for_all_servers_and_again_when_they_have_changed(
    certificates, monkeypatch
):
    store = certificates / "store.pem"
    store.write_bytes((certificates / "stranger.pem").read_bytes())
    os.utime(store, ns=(1, 1))
    monkeypatch.setenv("SSL_CERT_FILE", str(store))
    server = ScriptedServer()
    served = {"ssl_certfile": certificates / "server.pem", "ssl_keyfile": certificates / "server.key"}
    async with serving(server.app, **served) as port:
        spec = _https(port)
        async with Fleet([spec]) as fleet:
            assert "certificate isn't trusted" in (await failure(fleet)).message
        before = tls_context(spec)
        assert tls_context(_https(port + 1)) is before
        with_certificate = TlsFiles(None, str(certificates / "client.pem"), str(certificates / "client.key"))
        assert tls_context(_https(port, tls=with_certificate)) is not before
        store.write_bytes((certificates / "authority.pem").read_bytes())
        async with Fleet([spec]) as fleet:
            assert await text(fleet) == "done"


async def test_a_certificate_for_another_name_is_refused(certificates):
    server = ScriptedServer()
    served = {"ssl_certfile": certificates / "elsewhere.pem", "ssl_keyfile": certificates / "elsewhere.key"}
    tls = TlsFiles(str(certificates / "authority.pem"))
    async with serving(server.app, **served) as port, Fleet([_https(port, tls=tls)]) as fleet:
        assert "certificate isn't trusted" in (await failure(fleet)).message
    assert server.seen == []


async def test_a_client_certificate_is_shown_to_a_server_that_asks_for_one(certificates):
    server = ScriptedServer()
    served = {
        "ssl_certfile": certificates / "server.pem",
        "ssl_keyfile": certificates / "server.key",
        "ssl_ca_certs": certificates / "authority.pem",
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
    }
    authority, mine = str(certificates / "authority.pem"), str(certificates / "client")
    async with serving(server.app, **served) as port:
        async with Fleet([_https(port, tls=TlsFiles(authority, f"{mine}.pem", f"{mine}.key"))]) as fleet:
            assert await text(fleet) == "done"
        async with Fleet([_https(port, tls=TlsFiles(authority))]) as fleet:
            assert (await failure(fleet)).code == "server_start_failed"


@asynccontextmanager
async def _noting(certificates, port, shown):
    """TLS in front of a server: a port where the names of the clients' certificates are noted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "authority.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def serve(reader, writer):
        shown.append(writer.get_extra_info("peercert")["subject"][0][0][1])
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize(("scope", "last"), [("config", "renewed"), ("folder", "client")])
async def test_a_client_certificate_that_is_renewed_is_shown_on_the_next_connection_unless_a_folder_has_it(
    certificates, monkeypatch, caplog, scope, last
):
    # Each request has a connection of its own.
    monkeypatch.setattr(http_client, "_KEEP_ALIVE_SECONDS", 0)
    server, shown = ScriptedServer(), []
    tls = TlsFiles(*(str(certificates / name) for name in ("authority.pem", "client.pem", "client.key")))
    async with (
        serving(server.app) as plain,
        _noting(certificates, plain, shown) as port,
        Fleet([_https(port, tls=tls, scope=scope)]) as fleet,
    ):
        assert await text(fleet) == "done"
        (certificates / "client.pem").write_bytes((certificates / "renewed.pem").read_bytes())
        assert await text(fleet) == "done", "its key isn't there yet"
        assert set(shown) == {"client"}
        assert ("have changed and can't be used" in caplog.text) == (scope == "config")
        (certificates / "client.key").write_bytes((certificates / "renewed.key").read_bytes())
        assert await text(fleet) == "done"
        assert shown[-1] == last
    assert server.sessions == 1, "the session goes on"


@pytest.mark.parametrize(
    ("tls", "part"),
    [
        (TlsFiles("/nowhere.pem"), "ca_file can't be used: no such file or directory"),
        (TlsFiles(__file__), "ca_file can't be used"),
        (TlsFiles(None, "/nowhere.pem"), "client_cert or client_key can't be used: no such file"),
        (
            TlsFiles(None, __file__),
            "can't be used: they are no certificate and its key in PEM, or the key has a passphrase",
        ),
    ],
)
async def test_a_file_that_is_no_certificate_is_an_error_and_nothing_is_sent(tls, part):
    server = ScriptedServer()
    async with serving(server.app) as port, Fleet([remote(port, tls=tls)]) as fleet:
        error = await failure(fleet)
    assert error.code == "server_unavailable"
    assert part in error.message
    assert server.seen == []


@contextmanager
def _refusing(certificates, version):
    """A server that has clients show a certificate, and refuses it; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "authority.pem")
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, version

    def serve():
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connection.settimeout(10)
                wrapped = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                with wrapped, suppress(OSError):
                    try:
                        wrapped.do_handshake()
                    finally:
                        # A connection that is closed with something unread is reset, and its client may miss the alert.
                        wrapped.shutdown(socket.SHUT_WR)
                        while wrapped.recv(1 << 16):
                            pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_request_whose_client_certificate_is_refused_was_not_sent(certificates, version):
    tls = TlsFiles(*(str(certificates / name) for name in ("authority.pem", "stranger.pem", "stranger.key")))
    with _refusing(certificates, version) as port:
        spec = _https(port, tls=tls)
        client = await asyncio.to_thread(open_client, spec, RemoteAccess(without_secrets))
        with pytest.raises(RequestFailedError) as caught:
            async with client, opened(client, "POST", spec.url, headers={}, attempt=Attempt(), hide=str):
                pass
    reason = "can't be reached: it refuses the client certificate (UNKNOWN_CA)"
    assert caught.value.failure == RemoteFailure("unsent", reason, lasting=True, settings="client_cert and client_key")


async def test_the_hint_names_the_setting_of_a_certificate_that_is_refused(certificates):
    authority, *stranger = (str(certificates / name) for name in ("authority.pem", "stranger.pem", "stranger.key"))
    with _refusing(certificates, ssl.TLSVersion.TLSv1_3) as port:
        for tls, settings in (
            (TlsFiles(authority, *stranger), "Check client_cert and client_key of its entry;"),
            (TlsFiles(), "Check ca_file of its entry;"),
        ):
            async with Fleet([_https(port, tls=tls)]) as fleet:
                error = await failure(fleet)
            assert error.code == "server_start_failed"
            assert error.hint.startswith(settings), error


# Proxies.


async def test_a_proxy_of_the_environment_is_used_and_no_proxy_is_heeded(monkeypatch):
    asked = []

    async def proxy(reader, writer):
        asked.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    def resolved(host, *rest, **options):
        return resolve("127.0.0.1" if host in {"mcp.example.com", b"mcp.example.com"} else host, *rest, **options)

    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    listening = await asyncio.start_server(proxy, "127.0.0.1", 0)
    server = ScriptedServer()
    monkeypatch.setenv("HTTP_PROXY", f"http://someone:{SECRET}@127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    monkeypatch.setenv("NO_PROXY", "elsewhere.example.com")
    async with listening, serving(server.app) as port:
        spec = remote(port, url=f"http://mcp.example.com:{port}/mcp")
        async with Fleet([spec]) as fleet:
            error = await failure(fleet)
            assert "answered 502 Bad Gateway" in error.message
        assert asked
        assert server.seen == []
        assert asked[0].startswith(f"POST http://mcp.example.com:{port}/mcp ")
        monkeypatch.setenv("NO_PROXY", "mcp.example.com")
        async with Fleet([spec]) as fleet:
            assert await text(fleet) == "done"
