"""Requirements: names and versions, and nothing else."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_bridge import settings
from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.packages.index_settings import index_environment
from mcp_bridge.sandbox.packages.requirements import MAX_REQUIREMENTS, parse_requirement, parse_requirements
from mcp_bridge.settings import load


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Polars", "polars"),
        ("ruamel.yaml", "ruamel-yaml"),
        ("requests >=2 , <3", "requests<3,>=2"),
        ("httpx[HTTP2,socks]==0.28.*", "httpx[http2,socks]==0.28.*"),
        ("zope_interface~=5.0", "zope-interface~=5.0"),
    ],
)
def test_a_requirement_has_one_form(text, normal):
    assert str(parse_requirement(text)) == normal
    assert str(parse_requirement(normal)) == normal


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "-e .", "--index-url=http://x", "-r requirements.txt", "./x", "/x", "../x", "x.whl/y"),
        *("x @ http://evil/x.whl", "x @ file:///etc", "git+https://evil/x", "http://evil/x.whl"),
        *("x\ny", "x\r--index-url y", "x\0", "x\u200b", "r\u0435quests", "x; python_version > '3'", "x==1 # y"),
        *("x===1", "x==", "x>=1;", "x[", "x" * 201, "${HOME}", "$(id)", "`id`", "x y"),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(BridgeError) as caught:
        parse_requirement(text)
    assert caught.value.code == "bad_package"
    assert "\n" not in caught.value.message


@given(st.text(max_size=40))
@example("0_")
def test_what_is_accepted_is_a_line_of_its_own_that_is_read_as_the_same(text):
    try:
        found = parse_requirement(text)
    except BridgeError:
        return
    line = str(found)
    assert line.isascii()
    assert not set(line) & set("\n\r \t/\\@;#'\"$`")
    assert not line.startswith("-")
    assert parse_requirement(line) == found


def test_a_request_is_bounded_and_has_each_requirement_once():
    assert [str(one) for one in parse_requirements(["b", "A", "a", "B"])] == ["a", "b"]
    for texts in ([], ["x"] * (MAX_REQUIREMENTS + 1)):
        with pytest.raises(BridgeError, match="package"):
            parse_requirements(texts)


def test_pips_index_is_taken_where_uv_has_none_of_its_own(tmp_path):
    home = tmp_path / "home"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = https://mirror/simple\nextra-index-url = https://other/simple\ncert = /ca.pem\n"
    )
    base = {"HOME": str(home), "PIP_CONFIG_FILE": str(home / ".config/pip/pip.conf"), "XDG_CONFIG_DIRS": str(tmp_path)}
    found = index_environment(base)
    assert (found["UV_DEFAULT_INDEX"], found["SSL_CERT_FILE"]) == ("https://mirror/simple", "/ca.pem")
    assert "https://other/simple" not in found.values()
    assert "UV_DEFAULT_INDEX" not in index_environment(base | {"UV_INDEX_URL": "https://own"})
    (home / ".config/uv").mkdir()
    (home / ".config/uv/uv.toml").write_text("")
    assert "UV_DEFAULT_INDEX" not in index_environment(base)


def test_a_wrong_list_is_an_error_of_the_configuration_that_names_its_line(tmp_path):
    file = tmp_path / "config.toml"
    for entry in ("polars @ http://evil/x.whl", "-r x", ""):
        file.write_text(f'\n[install]\nallow = ["requests", "{entry}"]\n')
        with pytest.raises(BridgeError) as caught:
            load(file, environ={})
        assert caught.value.code == "bad_config"
        assert "install.allow" in caught.value.message


def test_a_folders_file_lists_no_package(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "user_file", lambda: tmp_path / "none.toml")
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "mcp-bridge.toml"
    file.write_text('[install]\nallow = ["evil"]\n')
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    environ = {"MCP_BRIDGE_STATE_DIR": str(state)}
    assert load(environ=environ, cwd=folder).settings.install.allow == ()
