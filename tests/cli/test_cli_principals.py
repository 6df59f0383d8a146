"""The command line is the operator's: it lists everybody's executions and questions, and says whose each is."""

import json

import anyio
import pytest
from typer.testing import CliRunner

from mcp_bridge.cli.app import app
from mcp_bridge.governance.principals import Principal


@pytest.fixture
def desk(stores, tmp_path):
    store = stores()
    config = tmp_path / "mcp-bridge.toml"
    config.write_text(f'state_dir = "{store.state}"\nclient_configs = false\n')

    def run(*words):
        done = CliRunner().invoke(app, ["--config", str(config), *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    return store, run


def test_executions_of_all_principals_are_listed_and_those_of_one(desk):
    store, run = desk
    rows = json.loads(run("execution", "list", "--json"))["executions"]
    whose = {row["id"]: row["principal"] for row in rows}
    assert (whose[store.others], whose[store.works]) == ("somebody else", "local")
    assert "principal" in run("execution", "list").splitlines()[0]
    only = json.loads(run("execution", "list", "--principal", "somebody else", "--json"))["executions"]
    assert [row["id"] for row in only] == [store.others]
    own = run("execution", "list", "--principal", "local")
    assert "principal" not in own.splitlines()[0]
    assert store.others[:6] not in own
    assert json.loads(run("execution", "list", "--principal", "nobody", "--json")) == {"executions": []}


def test_questions_of_all_principals_are_listed_and_those_of_one(desk):
    store, run = desk
    rows = json.loads(run("approvals", "list", "--all", "--json"))["approvals"]
    assert {row["execution"]: row["principal"] for row in rows} == {store.asks: "local", store.others: "somebody else"}
    only = json.loads(run("approvals", "list", "--all", "--principal", "somebody else", "--json"))["approvals"]
    assert [row["execution"] for row in only] == [store.others]
    assert "asked by somebody else" in run("approvals", "show", f"{store.others}.1")


async def test_a_session_is_shown_and_ended_for_the_principal_whose_it_is(sandboxes, tmp_path):
    config = tmp_path / "mcp-bridge.toml"
    config.write_text(f'state_dir = "{sandboxes.settings.state_dir}"\nclient_configs = false\n')
    async with sandboxes.open() as bridge:
        await bridge.for_principal(Principal("anna")).run("1", session="s")

    async def run(*words):
        return await anyio.to_thread.run_sync(
            CliRunner().invoke, app, ["--config", str(config), "session", *words, "--json"]
        )

    for command in ("show", "end"):
        refused = await run(command, "s")
        assert refused.exit_code == 2
        assert "There is no session 's' of local, but of anna." in refused.output
        assert "--principal anna" in refused.output
    assert json.loads((await run("show", "s", "--principal", "anna")).stdout)["cells"][0]["cell"] == 1
    assert (await run("end", "s", "--principal", "anna")).exit_code == 0
    assert json.loads((await run("list")).stdout) == {"sessions": []}
