"""A remote server with a login, called from a sandbox: what the script is told, and where no token is ever found.

The bytes are searched: of every frame to and from the container, of the state directory and the opened ledger, of the
logs at their most talkative, of the answers and errors, and of the arguments of all processes.
"""

import logging
from pathlib import Path

from execution_fixtures import lines
from kept_files import kept_files
from ledger_fixtures import plaintext
from oauth_fixtures import (
    authorization_server,  # noqa: F401
    logged_in,
    login_store,
    oauth_servers,  # noqa: F401
    protected_server,  # noqa: F401
    server_spec,
)

from mcp_bridge.downstream.client import supervised_server
from mcp_bridge.downstream.oauth import token_renewal
from mcp_bridge.downstream.oauth.login_record import keep_login, read_login
from mcp_bridge.host.channel import HostChannel
from mcp_bridge.host.frame_writer import FrameWriter
from mcp_bridge.ledger.storage.schema import FILE_NAME

CALLS = """
from mcp import MCPError
from mcp.servers import guarded

for name in ("whoami", "leak"):
    try:
        print(await guarded[name]())
    except MCPError as exc:
        print(exc.code, exc, exc.details)
"""


def arguments_of_all_processes():
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(process.read_bytes())
        except OSError:
            continue
    return b"\n".join(found)


async def test_no_token_is_in_any_byte_that_leaves_the_host(  # noqa: PLR0915  (one story)
    sandboxes,
    authorization_server,
    protected_server,
    tmp_path,
    monkeypatch,
    caplog,
):
    # A person is slower than these waits.
    monkeypatch.setattr(supervised_server, "BACKOFF_BASE", 0.0)
    monkeypatch.setattr(token_renewal, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(token_renewal, "MAX_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(token_renewal, "REFUSED_PAUSE_SECONDS", 0.0)
    caplog.set_level(logging.DEBUG)
    frames = []
    post, take = FrameWriter.post, HostChannel._take

    def tapped_post(self, data, *arguments, **more):
        frames.append(data)
        post(self, data, *arguments, **more)

    async def tapped_take(self, line, tasks):
        frames.append(line)
        return await take(self, line, tasks)

    monkeypatch.setattr(FrameWriter, "post", tapped_post)
    monkeypatch.setattr(HostChannel, "_take", tapped_take)
    state = tmp_path / "state"
    spec, store = server_spec(protected_server), login_store(state)
    secrets, told, processes = set(), [], []

    async def note():
        tokens = (await read_login(store, spec)).tokens
        secrets.update(token.encode() for token in (tokens.access_token, tokens.refresh_token) if token)
        return tokens

    async def expire():
        login = await read_login(store, spec)
        await keep_login(store, spec, login.model_copy(update={"made_at": login.made_at - 86400}))

    async with sandboxes.open(spec, state_dir=state) as bridge:

        async def calls():
            record = await bridge.run(CALLS, timeout=60)
            processes.append(arguments_of_all_processes())
            told.append(str(record.to_json()).encode() + record.stdout + record.stderr)
            return lines(record)

        # Nobody has logged in: the script is told the command, nothing is registered.
        whoami, leak = await calls()
        assert whoami.startswith("login_needed ")
        assert "mcp-bridge servers login guarded" in whoami
        assert not authorization_server.events("registered")

        # The login of another process is there at the next call.
        await logged_in(spec, state)
        first = await note()
        whoami, leak = await calls()
        assert whoami == "somebody"
        assert leak == "the token is [hidden]."

        # Expired, and refused: another token each time, and each call is made once.
        await expire()
        whoami, leak = await calls()
        second = await note()
        assert (whoami, leak) == ("somebody", "the token is [hidden].")
        assert second.access_token != first.access_token
        authorization_server.forget(second.access_token)
        assert (await calls())[0] == "somebody"
        await note()
        assert protected_server.seen().count("whoami") == 3

        # No token to be had, for now and at all. The server is called by nobody.
        await expire()
        authorization_server.behave(token="down")  # noqa: S106
        assert (await calls())[0].startswith("login_unavailable ")
        authorization_server.behave(token="echo")  # noqa: S106
        whoami, leak = await calls()
        assert whoami.startswith("login_needed ")
        assert leak.startswith("login_needed ")
        assert protected_server.seen().count("whoami") == 3

    assert len(secrets) >= 6
    kept = kept_files(state)
    login_file = kept.pop(state / "logins.json")
    assert any(secret in login_file for secret in secrets), "the search doesn't find what is there"
    places = {
        "frames": frames,
        "files": [*kept.values(), plaintext(state / FILE_NAME)],
        "logs": [caplog.text.encode()],
        "answers": told,
        "processes": processes,
    }
    assert len(frames) > 20
    assert {name for name, found in places.items() for each in found for secret in secrets if secret in each} == set()
