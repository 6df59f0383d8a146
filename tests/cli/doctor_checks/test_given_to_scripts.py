"""What `mcp-bridge doctor` says of inputs and packages for scripts."""

import json

import pytest

from mcp_bridge.cli.commands import doctor
from mcp_bridge.cli.doctor_checks import input_and_package_checks
from mcp_bridge.errors import BridgeError
from mcp_bridge.inputs.config import InputSource


@pytest.fixture
def findings(tmp_path, monkeypatch, capsys):
    """Doctor's findings by their codes, of a configuration, on a machine without an engine."""
    file = tmp_path / "mcp-bridge.toml"
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    async def no_engine(*_, **__):
        raise BridgeError("no_runtime", "There is none.")

    monkeypatch.setattr(doctor, "prepare", no_engine)

    def found(text):
        file.write_text(text)
        assert doctor.doctor(file, as_json=True) == 3
        rows = json.loads(capsys.readouterr().out)["findings"]
        return {code: [row for row in rows if row["code"] == code] for code in {row["code"] for row in rows}}

    return found


def test_inputs_that_are_not_there_are_told_with_their_paths(findings, tmp_path):
    (tmp_path / "there.csv").write_text("a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("there.csv")
    text = '[files]\nthere = "there.csv"\nempty = "empty"\nlink = "link"\ngone = "no/such.csv"\n'
    rows = findings(text)["files"]
    assert {row["level"] for row in rows} == {"warning"}
    assert [row["message"].replace(str(tmp_path), "") for row in rows] == [
        "Input empty ([files]): /empty has no file that can be provided.",
        "Input gone ([files]): /no/such.csv isn't there.",
        "Input link ([files]): /link is a symbolic link.",
    ]
    assert findings('[files]\nthere = "there.csv"\n')["files"] == [
        {"level": "ok", "code": "files", "message": "1 inputs ([files]) are there for scripts."}
    ]
    assert "files" not in findings("")


def test_many_inputs_that_are_not_there_are_counted(tmp_path):
    sources = {f"n{number}": InputSource(f"n{number}", tmp_path / str(number)) for number in range(50)}
    found = list(input_and_package_checks.files(sources))
    assert len(found) == input_and_package_checks.MAX_LISTED + 1
    assert found[-1].message == "30 more inputs can't be provided."


def test_packages_are_allowed_in_vain_without_uv_or_with_an_image_of_the_operators(findings, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    table = '[install]\nallow = ["polars"]\n'
    [row] = findings(table)["packages_unavailable"]
    assert row["level"] == "warning"
    assert "pip install uv" in row["hint"]
    uv = tmp_path / "bin/uv"
    uv.write_text("#!/bin/sh\nexit 0\n")
    uv.chmod(0o755)
    [row] = findings(table)["install"]
    assert row["level"] == "ok"
    [row] = findings(f'image = "mine"\n{table}')["packages_unavailable"]
    assert "own image" in row["message"]
    assert findings("").keys() & {"install", "packages_unavailable"} == set()
