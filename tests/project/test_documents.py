"""What the README and the pages in docs say is so: their commands run, their examples are valid, the table is the settings."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import GUIDES, REPOSITORY, blocks, text_of

from mcp_bridge import __version__
from mcp_bridge.models.config import ModelConfig
from mcp_bridge.settings import NESTED, Settings

WHEEL = f"mcp_code_bridge-{__version__}-py3-none-any.whl"

BARE = re.findall(r"^((?:sudo|pipx|mkdir|test) .*)$", text_of("docs/install.md"), re.MULTILINE)
"""What the page has a new user do before the program is there. scripts/newcomer.py types it, with all others of that page."""

ELSEWHERE = {
    "mcp-bridge ui": "tests/support/ui_fixtures.py",
    "mcp-bridge servers login github": "tests/cli/test_logins.py",
    "mcp-bridge servers logout github": "tests/cli/test_logins.py",
    "make demo": "scripts/bare-debian-test.sh",
    "make test": ".ci/run",
    "uv tool install mcp-code-bridge": "tests/project/test_repository.py",
    f"uv tool install ./dist/{WHEEL}": "tests/project/test_repository.py",
    "uvx mcp-code-bridge --version": "tests/project/test_repository.py",
    f"uvx --from /home/me/mcp-code-bridge/dist/{WHEEL} mcp-bridge --version": "tests/project/test_repository.py",
    'claude mcp add --scope user bridge -- "$(command -v mcp-bridge)"': "tests/project/test_repository.py",
    "claude mcp list": "tests/server/test_clients.py",
    "mcp-bridge image build --profile data": "tests/guest/test_images.py",
    "mcp-bridge install cursor": "tests/cli/test_install.py",
    "mcp-bridge install vscode --project": "tests/cli/test_install.py",
    "uv tool upgrade mcp-code-bridge": "tests/project/test_repository.py",
    f"uv tool install --force ./dist/{WHEEL}": "tests/project/test_repository.py",
    "mcp-bridge uninstall": "tests/cli/test_leaving.py",
    "claude mcp remove bridge": "tests/project/test_repository.py",
    "uv tool uninstall mcp-code-bridge": "tests/project/test_repository.py",
}
"""Commands that another file runs, since they need a machine or a client of their own, or have done a long piece of work for it."""


def sequences():
    """The commands of each block, which belong together in their order."""
    found = [block for page in GUIDES for block in blocks(page, "sh")]
    return [[line for line in block.splitlines() if line.strip()] for block in found]


def commands():
    return [command for sequence in sequences() for command in sequence]


def here():
    """Those that run here; what a block has from one before is run once."""
    found, known = [], {*ELSEWHERE, *BARE}
    for sequence in sequences():
        found.append([command for command in sequence if command not in known])
        known.update(sequence)
    return [sequence for sequence in found if sequence]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MCP_BRIDGE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = kept | {"PATH": path, "HOME": str(home)}
    # What is shown of the ledger needs something in it, whichever blocks run here.
    command = ["mcp-bridge", "run", "-c", "pass"]
    subprocess.run(command, cwd=REPOSITORY, env=found, capture_output=True, timeout=280, check=True)
    return found


def test_the_commands_run_elsewhere_are_in_a_page_and_where_they_are_said_to_be():
    for command, place in ELSEWHERE.items():
        assert command in commands()
        assert (REPOSITORY / place).is_file()
        assert command.split()[0] in (REPOSITORY / place).read_text("utf-8")


def test_what_a_page_has_installed_is_what_the_set_up_installs():
    (command,) = (command for command in BARE if command.startswith("sudo apt-get install "))
    setup = (REPOSITORY / "scripts/setup.sh").read_text("utf-8")
    assert re.search(r"^readonly ENGINE_PACKAGES=\((.*)\)$", setup, re.MULTILINE)[1] in command


@pytest.mark.xdist_group("images")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sequence", here(), ids=lambda sequence: sequence[0])
def test_every_command_of_a_page_succeeds(sequence, environment):
    for command in sequence:
        result = subprocess.run(
            ["sh", "-c", command],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert result.returncode == 0, (command, result.stderr)
        words = shlex.split(command)
        if "--json" in words:
            assert json.loads(result.stdout)
        # The driver without an engine has the image in the state directory, which goes with the test.
        if "--with" in words and not (Path(environment["HOME"]) / ".local/state/mcp-bridge/oci/images").is_dir():
            engine = "docker" if os.environ.get("MCP_BRIDGE_RUNTIME") == "docker" else "podman"
            reference = result.stdout.strip()
            # Without an engine it is in the test's own state directory.
            known = subprocess.run(
                [engine, "image", "inspect", reference], capture_output=True, timeout=60, check=False
            )
            if not known.returncode:
                subprocess.run([engine, "rmi", reference], capture_output=True, timeout=60, check=True)


def test_the_tables_name_every_setting_with_its_description():
    rows = dict(re.findall(r"^\| `([\w.]+)` \| [^|]* \| ([^|]*) \|$", text_of("docs/configuration.md"), re.MULTILINE))
    settings = {name: field.description for name, field in Settings.model_fields.items() if name not in NESTED}
    nested = {
        f"{table}.{name}": field.description
        for table in NESTED
        for name, field in Settings.model_fields[table].annotation.model_fields.items()
    }
    of_model = {name for name in rows if name.startswith("model.")}
    assert {name: rows[name] for name in rows.keys() - of_model} == settings | nested
    assert of_model == {f"model.{name}" for name in ModelConfig.model_fields}


def each(language, *, but=""):
    """Every block in a language, with its page."""
    return [pytest.param(page, text, id=page) for page in GUIDES if page != but for text in blocks(page, language)]


def loaded(file, text):
    from mcp_bridge import settings

    file.write_text(text)
    return settings.load(file, environ={})


@pytest.mark.parametrize(("page", "text"), each("toml"))
def test_every_configuration_in_a_page_is_valid(page, text, tmp_path):
    from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
    from mcp_bridge.governance.governance import load_governance
    from mcp_bridge.governance.principals import load_principals
    from mcp_bridge.server.http.authentication.authentication_settings import load_authentication

    file = tmp_path / "mcp-bridge.toml"
    example = REPOSITORY / "examples/payment"
    paths = f"[programs]\npath = ['{example}/programs']\n[tools]\npath = ['{example}/tools']\n"
    [layer] = loaded(file, f"{text}\n{paths}").layers
    for name, table in layer.servers.items():
        assert spec_from_toml(name, table, file).name == name
    assert load_governance(layer.tables, file, tmp_path, tmp_path)
    assert load_authentication([layer], load_principals([layer]))


def test_the_configurations_of_the_pages_mean_what_is_said_of_them(tmp_path):
    from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
    from mcp_bridge.downstream.configuration.tool_filter import lets_through
    from mcp_bridge.governance.governance import load_governance

    file = tmp_path / "mcp-bridge.toml"
    first, _, variables, tools = blocks("docs/configuration.md", "toml")
    assert list(loaded(file, first).layers[0].servers) == ["git", "github"]
    assert loaded(file, first).settings.clients == ("claude-code", "cursor")
    github = spec_from_toml("github", loaded(file, tools).layers[0].servers["github"], file)
    offered = ("get_me", "create_issue", "list_secrets", "delete_repository")
    assert [lets_through(github, name) for name in offered] == [True, True, False, False]
    assert loaded(file, variables).settings.env_pass == "minimal"  # noqa: S105
    [(name, table)] = loaded(file, variables).layers[0].servers.items()
    assert spec_from_toml(name, table, file).env_pass == ("KUBECONFIG", "SSL_CERT_*")
    [policy] = blocks("docs/policy-and-approvals.md", "toml")
    [secrets] = blocks("docs/secrets-and-erasure.md", "toml")
    example = REPOSITORY / "examples/payment"
    paths = f"[programs]\npath = ['{example}/programs']\n[tools]\npath = ['{example}/tools']"
    tables = loaded(file, f"{policy}\n{secrets}\n{paths}").layers[0].tables
    governance = load_governance(tables, file, tmp_path, tmp_path)
    assert governance.snapshot.preset == "approve-writes"
    assert governance.model.name
    [ledger] = blocks("docs/proof-and-audit.md", "toml")
    assert len(loaded(file, ledger).settings.ledger.publish) == 3
    [logging] = blocks("docs/troubleshooting.md", "toml")
    assert loaded(file, logging).settings.log_file == Path("/home/me/mcp-bridge.log")


# Those of the reference are run, with what comes of them, by test_program_language.py.
@pytest.mark.parametrize(("page", "text"), each("yaml", but="docs/program-language.md"))
def test_every_program_in_a_page_is_valid(page, text):
    import yaml

    from mcp_bridge.kernel.language import program_warnings
    from mcp_bridge.kernel.language.program_parser import parse

    assert program_warnings.warnings(parse(yaml.safe_load(text))) == ()


@pytest.mark.parametrize(("page", "text"), each("python"))
def test_all_python_in_a_page_compiles(page, text):
    import ast

    compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(("page", "text"), each("json"))
def test_all_json_in_a_page_is_a_clients_entry(page, text):
    assert json.loads(text)["mcpServers"]["bridge"]["command"].endswith("/mcp-bridge")
