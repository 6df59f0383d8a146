"""Entries of remote servers: what is accepted, what is refused, and what is never shown."""

import json

import pytest

from mcp_bridge.downstream.configuration.discovery import discover
from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
from mcp_bridge.downstream.configuration.remote_entries import (
    MAX_HEADER_CHARS,
    headers_problem,
    is_loopback,
    shown_origin,
    shown_url,
    url_problem,
)
from mcp_bridge.downstream.configuration.spec import TlsFiles
from mcp_bridge.errors import BridgeError
from mcp_bridge.workspace.folder_content import Content, content_of
from mcp_bridge.workspace.trust import TrustStore


@pytest.fixture
def find(tmp_path):
    """Run discovery over our own tables and the entries of the user's clients."""
    home, cwd = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    cwd.mkdir()

    def run(tables=None, *, user=None, environ=None, **options):
        (home / ".claude.json").write_text(json.dumps({"mcpServers": user or {}}))
        return discover(
            tables or {}, config_file=home / "b.toml", environ=environ or {}, cwd=cwd, home=home, **options
        ).servers

    return run


def test_a_remote_entry_of_our_own_file_is_decoded_and_expanded(find, tmp_path):
    table = {
        "url": "https://${HOST}/mcp?key=${KEY}",
        "type": "http",
        "headers": {"Authorization": "Bearer vault://secret/github", "X-Team": "${TEAM:-core}"},
        "ca_file": "${CERTS}/ca.pem",
        "client_cert": "me.pem",
        "client_key": "/keys/me.key",
        "oauth": {"client_id": "${ID}", "client_secret": "vault://secret/id", "scopes": ["repo"]},
    }
    spec = find({"gh": table}, environ={"HOST": "h", "KEY": "k", "CERTS": "/etc/ssl", "ID": "bridge"})["gh"]
    assert spec.problem is None
    assert spec.url == "https://h/mcp?key=k"
    assert spec.headers == {"Authorization": "Bearer vault://secret/github", "X-Team": "core"}
    assert spec.tls == TlsFiles("/etc/ssl/ca.pem", str(tmp_path / "home" / "me.pem"), "/keys/me.key")
    assert spec.oauth == OAuthSettings("bridge", "vault://secret/id", scopes=("repo",))
    assert spec.variables == {"HOST", "KEY", "CERTS", "ID"}, "not TEAM, which isn't set"
    assert spec.is_remote


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"type": "http", "url": "https://x/mcp"}, "http"),
        ({"type": "streamable-http", "url": "https://x/mcp"}, "http"),
        ({"type": "sse", "url": "https://x/sse"}, "sse"),
        ({"url": "https://x/mcp"}, "auto"),
    ],
)
def test_a_clients_entry_says_the_transport_or_leaves_it_to_the_server(find, entry, kind):
    spec = find(user={"s": entry | {"headers": {"Authorization": "Bearer ${TOKEN}"}}}, environ={"TOKEN": "t"})["s"]
    assert (spec.type, spec.problem, dict(spec.headers)) == (kind, None, {"Authorization": "Bearer t"})


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ({"url": "https://x", "args": ["a"]}, "servers.s.args has no meaning for a server of type auto", "nothing is"),
        ({"url": "https://x", "type": "sse", "env": {}}, "servers.s.env has no meaning", "nothing is started"),
        ({"command": "x", "headers": {"A": "b"}}, "servers.s.headers has no meaning for a stdio server", "url"),
        ({"command": "x", "oauth": {}}, "servers.s.oauth has no meaning for a stdio server", "url"),
        ({"url": "https://x", "headers": ["A: b"]}, "servers.s.headers must be a table of strings", "Authorization"),
        ({"url": "https://x", "headers": {"A": 1}}, "servers.s.headers must be a table of strings", "Authorization"),
        ({"url": "https://x", "ca_file": ""}, "servers.s.ca_file is empty", "/etc/ssl"),
        ({"url": "https://x", "ca_file": 1}, "servers.s.ca_file must be a string", "/etc/ssl"),
        ({"url": "https://x", "client_key": "k"}, "servers.s.client_cert is missing", "client_cert ="),
        ({"url": "https://x", "transport": "sse"}, "servers.s.transport is not a known key", "Did you mean type?"),
        ({"url": "https://x", "oauth": True}, "servers.s.oauth must be a table", "oauth ="),
        ({"url": "https://x", "oauth": {"id": "x"}}, "servers.s.oauth.id is not a known key", "client_id"),
        ({"url": "https://x", "oauth": {"scopes": "a b"}}, "servers.s.oauth.scopes must be an array", "scopes ="),
        (
            {"url": "https://x", "oauth": {"scopes": ['a"b']}},
            "servers.s.oauth.scopes must be an array",
            "scopes =",
        ),
        (
            {"url": "https://x", "oauth": {"grant": "client_credentials", "client_id": "x", "client_secret": "y"}},
            "servers.s.oauth.issuer is missing",
            "issuer =",
        ),
        (
            {"url": "https://x", "oauth": {"client_secret": "y"}},
            "servers.s.oauth.client_id is missing",
            "client_id =",
        ),
        (
            {"url": "https://x", "oauth": {"client_metadata_url": "http://x/y"}},
            "servers.s.oauth.client_metadata_url must be the https address",
            "client_metadata_url =",
        ),
        (
            {"url": "https://x", "oauth": {"redirect_uri": "https://elsewhere.example/callback"}},
            "servers.s.oauth.redirect_uri must be a http address of this machine",
            "redirect_uri =",
        ),
        (
            {"url": "https://x", "oauth": {"issuer": "auth.example.com"}},
            "servers.s.oauth.issuer must be an address",
            "issuer =",
        ),
        ({"url": "https://x", "oauth": {"grant": "password"}}, "servers.s.oauth.grant must be one of", "grant ="),
        (
            {"url": "https://x", "oauth": {"client_secret": ""}},
            "servers.s.oauth.client_secret must be",
            "client_secret",
        ),
    ],
)
def test_what_our_own_file_can_not_say_of_a_remote_server_is_an_error(table, message, hint):
    with pytest.raises(BridgeError) as caught:
        spec_from_toml("s", table, "bridge.toml")
    assert caught.value.code == "bad_config"
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://x/mcp", "https:// or http://"),
        ("//x/mcp", "https:// or http://"),
        ("x.example.com/mcp", "https:// or http://"),
        ("https://", "names no host"),
        ("https:///mcp", "names no host"),
        ("https://user:the-secret@x/", "a user or password"),
        ("https://x/#the-secret", "a fragment"),
        ("https://x/\r\nX-Evil: the-secret", "a control character"),
        ("https://x:99999/the-secret", "not a valid address"),
        ("https://[::1/the-secret", "not a valid address"),
        ("https://x/" + "the-secret" * 1000, "more than"),
    ],
)
def test_an_address_that_can_not_be_used_is_refused_without_being_quoted(find, url, why):
    assert why in (url_problem(url) or "")
    problem = find(user={"s": {"type": "http", "url": url}})["s"].problem
    assert why in problem
    assert "the-secret" not in problem


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"X\r\nY": "v"}, "no header may have"),
        ({"": "v"}, "no header may have"),
        ({"X": "the-secret\r\nY: z"}, "headers.X contains a line break"),
        ({"X": "the-secret \u2603"}, "headers.X contains"),
        ({"X": " the-secret"}, "headers.X begins or ends"),
        ({"X": "the-secret" * MAX_HEADER_CHARS}, "headers.X has more than"),
        ({"X": "a", "x": "b"}, "is there twice"),
        ({"Host": "the-secret"}, "headers.Host is set by the bridge"),
        ({"mcp-session-id": "the-secret"}, "is set by the bridge"),
        ({"Transfer-Encoding": "chunked"}, "is set by the bridge"),
        ({f"X-{number}": "v" for number in range(101)}, "more than 100"),
    ],
)
def test_headers_that_can_not_be_sent_are_refused_without_being_quoted(find, headers, why):
    assert why in (headers_problem(headers) or "")
    problem = find({"s": {"url": "https://x/mcp", "headers": headers}})["s"].problem
    assert why in problem
    assert "the-secret" not in problem


def test_nothing_shows_what_may_be_a_secret(find):
    table = {
        "url": "https://x/mcp?key=the-secret",
        "headers": {"X": "the-secret"},
        "oauth": {"client_id": "i", "client_secret": "the-secret"},
    }
    spec = find({"s": table})["s"]
    assert spec.problem is None
    assert "the-secret" not in f"{spec!r} {spec} {spec.oauth!r} {spec.fingerprint()}"
    assert shown_url("https://u:p@x:8443/a/b?key=the-secret#f") == "https://x:8443/a/b"
    assert shown_url("http://[::1]:1/m") == "http://[::1]:1/m"
    assert shown_url("http://[") == "an invalid address"
    assert shown_origin("https://u:p@x:8443/the-secret?key=the-secret#f") == "https://x:8443"
    assert shown_origin("http://[::1]:1/m") == "http://[::1]:1"
    assert shown_origin("http://[") == "an invalid address"


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:1/", True),
        ("http://a.localhost/", True),
        ("http://127.9.9.9/", True),
        ("http://[::1]/", True),
        ("http://10.0.0.1/", False),
        ("http://localhost.example.com/", False),
        ("http://[", False),
    ],
)
def test_loopback_addresses_are_known(url, local):
    assert is_loopback(url) is local


def test_a_folders_tls_files_are_in_the_folder_and_trusted_with_it(tmp_path):
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    (folder / "ca.pem").write_text("one")
    (home / "me.key").write_text("the user's")
    (folder / "link.pem").symlink_to(home / "me.key")
    tables = {
        "inside": {"url": "https://x/mcp", "ca_file": "ca.pem"},
        "outside": {"url": "https://x/mcp", "client_cert": str(home / "me.key")},
        "linked": {"url": "https://x/mcp", "client_cert": "link.pem"},
    }
    file = folder / "mcp-bridge.toml"
    trusted = content_of(file, b"", {"servers": tables})
    assert str(folder / "ca.pem") in trusted.files
    found = discover(
        {},
        config_file="own.toml",
        environ={},
        cwd=folder,
        home=home,
        folder=tables,
        trusted=Content(file, b"", trusted.files),
        trust=TrustStore(home / "state"),
    ).servers
    assert found["inside"].problem is None
    assert found["inside"].scripts == {str(folder / "ca.pem"): trusted.files[str(folder / "ca.pem")]}
    assert found["outside"].problem == "me.key is not in the folder of the configuration."
    assert found["linked"].problem == "link.pem is not in the folder of the configuration."


def test_a_remote_entry_that_comes_with_a_folder_takes_no_part_until_it_is_trusted(tmp_path):
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    file = folder / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"r": {"type": "http", "url": "https://x/mcp"}}}))

    def found(trust):
        return discover({}, config_file="own.toml", environ={}, cwd=folder, home=home, trust=trust)

    store = TrustStore(home / "state")
    assert found(None).servers == found(store).servers == {}
    assert [row.name for row in found(store).skipped] == ["r"]
    data = file.read_bytes()
    store.record(content_of(file, data, json.loads(data)))
    assert found(store).servers["r"].url == "https://x/mcp"
    file.write_bytes(data.replace(b"https://x/", b"https://y/"))
    assert found(store).servers == {}
