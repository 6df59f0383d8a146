"""Remote servers as a script in a container calls them, by the command line: the whole way, and what is left behind."""

import json

import pytest
from http_servers import everything_server, remote, sdk_server
from kept_files import kept_files

pytestmark = pytest.mark.timeout(180)
pytest_plugins = ["bridge_fixtures", "server_fixtures"]

TOKEN = "tok-9fK2vLq8XwZ4mR7bT1yN"  # noqa: S105 - of this test alone


@pytest.mark.parametrize(("transport", "path"), [("streamableHttp", "/mcp"), ("sse", "/sse")])
def test_server_everything_is_called_from_inside(everything_server_spec, configure, transport, path):
    with everything_server(everything_server_spec, transport) as port:
        setup = configure(remote(port, path, name="everything", type="auto"))
        code = "from mcp.servers import everything\nprint(await everything.get_sum(a=40, b=2))"
        ended = setup.run("run", "-c", code)
        assert ended.returncode == 0, ended.stderr
        assert b"42" in ended.stdout


@pytest.fixture
def everything_server_spec(request):
    return request.getfixturevalue("everything_server")


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
def test_a_token_is_in_nothing_that_a_call_leaves_behind(tmp_path, configure, era):
    calls = tmp_path / "calls"
    with sdk_server("events", calls) as port:
        headers = {"Authorization": "Bearer ${REMOTE_TOKEN}"}
        setup = configure(remote(port, headers=headers, era=era), log_level="debug")
        code = (
            "from mcp.servers import remote\n"
            "print(await remote.headers())\n"
            "print(await remote.count(marker='once'))\n"
            "try:\n    await remote.count(marker=1)\nexcept Exception as error:\n    print(error)"
        )
        env = {"REMOTE_TOKEN": TOKEN}
        ended = setup.run("run", "--json", "-c", code, env=env)
        assert ended.returncode == 0, ended.stderr
        listed = setup.run("servers", "list", "--start", "--json", env=env)
        (row,) = json.loads(listed.stdout)["servers"]
        assert (row["state"], row["url"]) == ("ready", f"http://127.0.0.1:{port}/mcp")
        checked = setup.run("doctor", env=env)
    assert calls.read_text() == "once\n"
    assert b"[hidden]" in ended.stdout
    for said in (ended, listed, checked):
        assert TOKEN.encode() not in said.stdout + said.stderr
    assert [path for path, data in kept_files(setup.state_dir).items() if TOKEN.encode() in data] == []


def test_what_is_sent_in_the_clear_is_a_finding_of_doctor(configure):
    setup = configure(remote(1, url="http://mcp.example.com/mcp?key=hidden-in-the-query", headers={"X-Api-Key": "k"}))
    said = setup.run("doctor").stdout
    assert b"its headers are sent in the clear to http://mcp.example.com/mcp." in said.replace(b"\n", b" ")
    assert b"hidden-in-the-query" not in said
