"""What the README and the pages in docs say is so: their commands run, the table is the settings."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_bridge import __version__
from mcp_bridge.settings import NESTED, Settings

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text("utf-8")
PAGES = [README, *(page.read_text("utf-8") for page in sorted((REPOSITORY / "docs").glob("*.md")))]

WHEEL = f"mcp_code_bridge-{__version__}-py3-none-any.whl"

INSTALL = (REPOSITORY / "docs/install.md").read_text("utf-8")
BARE = re.findall(r"^((?:sudo|pipx|mkdir|test) .*)$", INSTALL, re.MULTILINE)
"""What the page has a new user do before the program is there. scripts/newcomer.py types it, with all others of that page."""

ELSEWHERE = {
    "mcp-bridge ui": "tests/support/ui_fixtures.py",
    "make demo": "scripts/bare-debian-test.sh",
    "make test": ".ci/run",
    "uv tool install mcp-code-bridge": "tests/project/test_repository.py",
    f"uv tool install ./dist/{WHEEL}": "tests/project/test_repository.py",
    "uvx mcp-code-bridge --version": "tests/project/test_repository.py",
    f"uvx --from /home/me/mcp-code-bridge/dist/{WHEEL} mcp-bridge --version": "tests/project/test_repository.py",
    'claude mcp add --scope user bridge -- "$(command -v mcp-bridge)"': "tests/project/test_repository.py",
    "claude mcp list": "tests/server/test_clients.py",
    "uv tool upgrade mcp-code-bridge": "tests/project/test_repository.py",
    f"uv tool install --force ./dist/{WHEEL}": "tests/project/test_repository.py",
    "mcp-bridge uninstall": "tests/cli/test_leaving.py",
    "claude mcp remove bridge": "tests/project/test_repository.py",
    "uv tool uninstall mcp-code-bridge": "tests/project/test_repository.py",
}
"""Commands that another file runs, since they need a machine or a client of their own."""


def sequences():
    """The commands of each block, which belong together in their order."""
    blocks = [block for page in PAGES for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    return [[line for line in block.splitlines() if line.strip()] for block in blocks]


def commands():
    return [command for sequence in sequences() for command in sequence]


def here():
    """Those that run here; what a page has from the README, or from a page before, is run once."""
    found, known = [], set()
    of_readme = len(re.findall(r"^```sh\n", README, re.MULTILINE))
    for number, sequence in enumerate(sequences()):
        fresh = [command for command in sequence if number < of_readme or command not in known]
        known.update(sequence)
        found.append([command for command in fresh if command not in {*ELSEWHERE, *BARE}])
    return [sequence for sequence in found if sequence]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MCP_BRIDGE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = kept | {"PATH": path, "HOME": str(home), "MCP_BRIDGE_TEST_README": "1"}
    # What is shown of the ledger needs something in it, whichever blocks run here.
    command = ["mcp-bridge", "run", "-c", "pass"]
    subprocess.run(command, cwd=REPOSITORY, env=found, capture_output=True, timeout=280, check=True)
    return found


def test_the_commands_run_elsewhere_are_in_the_readme_and_where_they_are_said_to_be():
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
def test_every_command_of_the_readme_succeeds(sequence, environment):
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
        if "--with" in words:
            engine = "docker" if os.environ.get("MCP_BRIDGE_RUNTIME") == "docker" else "podman"
            subprocess.run([engine, "rmi", result.stdout.strip()], capture_output=True, timeout=60, check=True)


def test_the_tables_name_every_setting_with_its_description():
    rows = dict(re.findall(r"^\| `([\w.]+)` \| [^|]* \| ([^|]*) \|$", README, re.MULTILINE))
    settings = {name: field.description for name, field in Settings.model_fields.items() if name not in NESTED}
    nested = {
        f"{table}.{name}": field.description
        for table in NESTED
        for name, field in Settings.model_fields[table].annotation.model_fields.items()
    }
    assert rows == settings | nested


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_configuration_in_the_readme_is_valid(tmp_path):
    from mcp_bridge import settings
    from mcp_bridge.downstream.configuration.spec import spec_from_toml
    from mcp_bridge.governance.governance import load_governance

    first, variables, policy, secrets, ledger = blocks("toml")
    file = tmp_path / "mcp-bridge.toml"
    file.write_text(first)
    loaded = settings.load(file, environ={})
    assert [spec_from_toml(name, table, file).name for name, table in loaded.layers[0].servers.items()] == [
        "git",
        "github",
    ]
    file.write_text(variables)
    loaded = settings.load(file, environ={})
    assert loaded.settings.env_pass == "minimal"  # noqa: S105
    [kubernetes] = [spec_from_toml(name, table, file) for name, table in loaded.layers[0].servers.items()]
    assert kubernetes.env_pass == ("KUBECONFIG", "SSL_CERT_*")
    example = REPOSITORY / "examples/payment"
    file.write_text(
        f"{policy}\n{secrets}\n[programs]\npath = ['{example}/programs']\n[tools]\npath = ['{example}/tools']"
    )
    governance = load_governance(settings.load(file, environ={}).layers[0].tables, file, tmp_path, tmp_path)
    assert governance.snapshot.preset == "approve-writes"
    assert governance.model.name
    file.write_text(ledger)
    assert len(settings.load(file, environ={}).settings.ledger.publish) == 3
    (logging,) = re.findall(r"^```toml\n(.*?)^```", "\n".join(PAGES[1:]), re.MULTILINE | re.DOTALL)
    file.write_text(logging)
    assert settings.load(file, environ={}).settings.log_file == Path("/home/me/mcp-bridge.log")


def test_the_program_in_the_readme_is_valid():
    import yaml

    from mcp_bridge.kernel.program import parse

    for text in blocks("yaml"):
        assert parse(yaml.safe_load(text)).warnings == ()


def test_the_python_in_the_readme_compiles():
    import ast

    for text in blocks("python"):
        compile(text, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
