"""`mcp-bridge principal add|list|rotate|revoke`, as an operator types them."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from bridge_fixtures import COMMAND
from typer.testing import CliRunner

from mcp_bridge.cli.app import app
from mcp_bridge.governance.principal_tokens import TOKEN, TokenStore, find
from mcp_bridge.ledger.storage.live_bridges import Presence

CONFIG = "[principals.anna]\napprover = true\n"


class Operator:
    def __init__(self, folder):
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG)
        self.env = {"HOME": str(folder), "MCP_BRIDGE_STATE_DIR": str(self.state), "MCP_BRIDGE_CONFIG": str(self.config)}

    def run(self, *arguments, status=0):
        done = CliRunner().invoke(app, ["principal", *arguments], env=self.env)
        assert done.exit_code == status, (done.exit_code, done.output)
        return done

    def whose(self, text):
        import time

        found = find(TokenStore(self.state).read(), text, time.time())
        return found and found[1].principal


@pytest.fixture
def operator(tmp_path):
    return Operator(tmp_path)


def test_a_token_is_shown_once_and_alone_on_standard_output(operator):
    done = operator.run("add", "anna")

    token = done.stdout.strip()
    assert TOKEN.fullmatch(token)
    assert operator.whose(token) == "anna"
    assert token not in done.stderr
    assert "isn't shown again" in done.stderr
    listed = operator.run("list")
    assert "anna" in listed.stdout
    assert token.split("_")[1] in listed.stdout
    assert token.split("_", 2)[2] not in listed.output


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["", "json"])
def test_a_token_that_nobody_has_seen_is_none_and_the_old_ones_stay(operator, as_json):
    old = operator.run("add", "anna").stdout.strip()
    for command in ("add", "rotate"):
        with Path("/dev/full").open("w") as full:
            line = [COMMAND, "principal", command, "anna", *as_json]
            ended = subprocess.run(
                line, env=os.environ | operator.env, stdout=full, stderr=subprocess.PIPE, check=False
            )
        assert (ended.returncode, b"output_unwritable" in ended.stderr) == (1, True)
        [token] = json.loads(operator.run("list", "--json").stdout)["tokens"]
        assert (operator.whose(old), token["state"]) == ("anna", "good")


def test_who_has_no_table_gets_a_token_and_is_told_what_that_means(operator):
    done = operator.run("add", "ben")

    assert operator.whose(done.stdout.strip()) == "ben"
    assert "there is no [principals.ben]" in done.stderr


def test_a_list_names_everybody_and_what_is_wrong(operator):
    operator.run("add", "ben", "--expires", "90d")
    operator.run("add", "anna")
    operator.config.write_text("[principals.cara]\n")

    shown = json.loads(operator.run("list", "--json").stdout)

    assert [(row["principal"], row["state"]) for row in shown["tokens"]] == [
        ("anna", "refused: not configured"),
        ("ben", "good"),
    ]
    assert shown["tokens"][0]["expires"] is None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", shown["tokens"][1]["expires"])
    assert shown["without_tokens"] == ["cara"]
    assert "cara" in operator.run("list").stdout


def test_a_list_says_who_vouches_for_a_principal_without_a_token(operator):
    proxy = 'header = "x-subject"\ntrusted = ["127.0.0.1"]\nprincipals = { "CN=ben" = "ben" }'
    oauth = 'issuer = "https://issuer.example.com"\naudience = "https://bridge.example.com/mcp"'
    operator.config.write_text(
        "[principals.anna]\n[principals.ben]\n[principals.cara]\n"
        f'[authentication.oauth]\n{oauth}\nprincipals = {{ "a" = "anna", "b" = "ben" }}\n[authentication.proxy]\n{proxy}\n'
    )
    listed = operator.run("list").stdout
    for name, by in (("anna", "by its issuer"), ("ben", "by its issuer or by its certificate"), ("cara", "none")):
        assert re.search(rf"^{name} +{by} *$", listed, re.MULTILINE), listed
    operator.run("add", "anna")
    listed = operator.run("list").stdout
    # Times as all commands have them.
    assert re.search(
        r"^anna +[0-9a-f]{16} +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} +never +good", listed, re.MULTILINE
    )
    assert re.search(r"^anna +by its issuer *$", listed, re.MULTILINE), "it isn't out once its tokens are revoked"
    known = "anna is still known by its issuer, until [principals.anna] is removed"
    assert known in operator.run("revoke", "anna").stderr
    assert known in operator.run("revoke", "anna", status=2).stderr
    operator.run("add", "cara")
    assert operator.run("revoke", "cara").stderr == ""


def test_a_token_is_revoked_where_the_authentication_cant_be_used(operator):
    token = operator.run("add", "anna").stdout.strip()
    operator.config.write_text(f"{CONFIG}[authentication.oauth]\nissuer = 1\n")
    operator.run("revoke", "anna")
    assert operator.whose(token) is None


def test_a_token_of_a_table_that_a_serving_bridge_may_not_have_is_told(operator):
    words = "if [principals.anna] is new, the token is refused until that is started again"
    assert words not in operator.run("add", "anna").stderr
    presence = Presence(operator.state, "a bridge")
    try:
        presence.serve_at(8350)
        os.utime(operator.config, (1, 1))
        assert words not in operator.run("add", "anna").stderr
        later = time.time() + 60
        os.utime(operator.config, (later, later))
        assert words in operator.run("add", "anna").stderr
        assert words not in operator.run("add", "ben").stderr, "who has no table needs none"
    finally:
        presence.leave()
    assert words not in operator.run("add", "anna").stderr


def test_a_token_is_replaced_and_revoked(operator):
    first = json.loads(operator.run("add", "anna", "--json").stdout)
    second = json.loads(operator.run("rotate", "anna", "--json").stdout)

    assert second["replaced"] == 1
    assert operator.whose(first["token"]) is None
    assert operator.whose(second["token"]) == "anna"
    third = operator.run("rotate", "anna", "--grace", "1h")
    assert "in place of one token" in third.stderr
    assert operator.whose(second["token"]) == "anna"
    assert operator.run("revoke", "anna").stdout == "revoked 2 tokens of anna\n"
    assert operator.whose(third.stdout.strip()) is None
    assert "cara" not in operator.run("list").stdout


def test_one_token_of_several_is_revoked_by_its_id(operator):
    first, second = (json.loads(operator.run("add", "anna", "--json").stdout) for _ in range(2))

    operator.run("revoke", "anna", "--token", first["id"])

    assert operator.whose(first["token"]) is None
    assert operator.whose(second["token"]) == "anna"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["add", "Anna"], "bad_principal"),
        (["add", "a/../b"], "bad_principal"),
        (["add", "local"], "bad_principal"),
        (["add", ""], "bad_principal"),
        (["add", "a" * 65], "bad_principal"),
        (["add", "anna", "--expires", "soon"], "bad_argument"),
        (["add", "anna", "--expires", "0d"], "bad_argument"),
        (["add", "anna", "--expires", "-1d"], "bad_argument"),
        (["add", "anna", "--expires", "999999999w"], "bad_argument"),
        (["add", "anna", "--expires", "٣d"], "bad_argument"),
        (["rotate", "anna", "--grace", "1"], "bad_argument"),
        (["rotate", "anna"], "unknown_principal"),
        (["revoke", "anna"], "unknown_principal"),
    ],
)
def test_a_wrong_use_makes_nothing_and_says_why(operator, arguments, code):
    done = operator.run(*arguments, status=2)

    assert f"mcp-bridge: {code}: " in done.stderr
    assert TokenStore(operator.state).read() == {}


def test_a_time_beyond_the_bound_is_told_apart_from_none(operator):
    said = operator.run("add", "anna", "--expires", "3650000d", status=2).stderr
    assert "--expires is more than 100 years" in said


def test_who_has_only_tokens_that_have_ended_is_told_how_to_make_one(operator):
    operator.run("add", "anna", "--expires", "1s")
    expires = next(iter(TokenStore(operator.state).read().values())).expires
    while time.time() <= expires:
        time.sleep(0.1)
    said = operator.run("rotate", "anna", status=2).stderr
    assert "'anna' has no token that is good" in said
    assert "principal add anna" in said


def test_a_damaged_file_is_an_error_and_stays_as_it_is(operator):
    operator.run("add", "anna")
    file = operator.state / "principal-tokens.json"
    file.write_text("{")

    assert "secrets_file_damaged" in operator.run("add", "anna", status=1).stderr
    assert file.read_text() == "{"
