"""The command line is the operator's: it lists everybody's executions and questions, and says whose each is."""

import json

import pytest
from typer.testing import CliRunner

from mcp_bridge.cli.app import app


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
