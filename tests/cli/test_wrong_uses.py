"""Command lines and configurations as people write them: each is answered with what to write next.

They and their answers are in `wrong_uses.yaml`.
"""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from mcp_bridge.cli import configuration_loading
from mcp_bridge.cli.app import app
from mcp_bridge.cli.usage_errors import INSTEAD

TABLE = yaml.safe_load((Path(__file__).parent / "wrong_uses.yaml").read_text())
ROWS = [row for rows in TABLE.values() for row in rows]

NEXT = re.compile(
    r"[Ww]rite|Did you mean|Options of|Name |Call it|Raise|Say one|Use |Give |Run |such as|must be|should be|`mcp-bridge|"
    r"No image|\[\[policy|doctor|claude mcp|That|keep the value"
)
"""Words by which an answer says what to do."""


@pytest.fixture
def user(tmp_path, monkeypatch):
    """`user(row)`: the exit status and all that is said to somebody without an engine."""
    for name in [name for name in os.environ if name.startswith("MCP_BRIDGE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def answered(number, row):
        home, folder = tmp_path / f"home{number}", tmp_path / f"folder{number}"
        config = home / ".config/mcp-bridge/config.toml"
        config.parent.mkdir(parents=True)
        if "config" in row:
            config.write_text(row["config"])
        places = {"{folder}": str(folder), "{config}": str(config), "{home}": str(home)}
        for name, content in row.get("files", {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        folder.mkdir(exist_ok=True)
        env = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "XDG_STATE_HOME": str(home / ".state")}
        for name, value in row.get("env", {}).items():
            env[name] = value.replace("{folder}", str(folder))
        monkeypatch.setattr(configuration_loading, "_noticed", set())
        monkeypatch.chdir(folder)
        program, *words = shlex.split(row["write"])
        assert program == "mcp-bridge"
        ended = CliRunner().invoke(app, words, input=row.get("stdin", ""), env=env)
        assert isinstance(ended.exception, SystemExit), ended.exception
        said = ended.output
        for name, path in places.items():
            said = said.replace(path, name)
        return ended.exit_code, said

    return answered


@pytest.mark.parametrize("section", TABLE)
def test_a_wrong_use_is_told_what_to_write(user, section):
    for number, row in enumerate(TABLE[section]):
        status, said = user(number, row)
        assert row["answer"] in said, (row["write"], said)
        assert NEXT.search(said), (row["write"], said)
        assert status == row.get("status", 2), (row["write"], said)
        assert re.search(r"^mcp-bridge: [a-z_]+: ", said, re.MULTILINE), (row["write"], said)


def test_the_table_is_large_and_has_no_row_twice():
    assert len(ROWS) >= 80
    kinds = {(row["write"], row.get("config"), str(row.get("env")), str(row.get("files"))) for row in ROWS}
    assert len(kinds) == len(ROWS)
    for row in ROWS:
        assert set(row) <= {"meant", "write", "config", "files", "env", "stdin", "answer", "status"}, row


def test_what_is_to_be_written_in_place_of_a_word_is_a_command_and_the_word_is_none():
    def selected(words):
        command = get_command(app)
        for word in words:
            if not hasattr(command, "commands"):
                break
            command = command.commands.get(word)
            if command is None:
                return None
        return command

    for wrong, instead in INSTEAD.items():
        assert selected(wrong.split()) is None, wrong
        for written in re.findall(r"`mcp-bridge ([^`]*)`", instead):
            assert written.startswith("--") or selected(written.split()) is not None, (wrong, written)
