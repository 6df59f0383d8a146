"""What the bridge has made is removed when somebody asks for that, and nothing else is; in a store of its own."""

import io
import json
import os
import shutil
import subprocess
import tarfile

import pytest
from bridge_fixtures import COMMAND
from typer.testing import CliRunner

from mcp_bridge.cli.app import app
from mcp_bridge.ledger.storage.live_bridges import Presence
from mcp_bridge.sandbox.engine import OWNER_LABEL
from mcp_bridge.sandbox.image import image, store
from mcp_bridge.sandbox.ownership import host_id
from mcp_bridge.sandbox.packages.cache import WheelCache
from mcp_bridge.sandbox.packages.install_settings import InstallSettings

NO_PROCESS = 4_194_305
"""A process id that Linux gives to none."""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A user with a Podman whose images nobody else has."""
    store = tmp_path / "storage.conf"
    store.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n', encoding="utf-8"
    )
    env = {
        "CONTAINERS_STORAGE_CONF": str(store),
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state"),
        "MCP_BRIDGE_RUNTIME": "podman",
    }
    (tmp_path / "home").mkdir()
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    podman("rm", "--all", "--force")
    podman("rmi", "--all", "--force")
    # Podman's own files, which pytest wouldn't get removed.
    shutil.rmtree(tmp_path / "graph", ignore_errors=True)


def podman(*arguments):
    ended = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def imported(folder, reference, *labels):
    """A tiny image that says that it is one of ours."""
    with tarfile.open(folder / "root.tar", "w") as tar:
        member = tarfile.TarInfo("hello")
        member.size = len(reference)
        tar.addfile(member, io.BytesIO(reference.encode()))
    said = [word for label in (f"{store.LABEL_RECIPE}=x", *labels) for word in ("--change", f"LABEL {label}")]
    podman("import", *said, str(folder / "root.tar"), reference)


def run(*words, status=0):
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == status, ended.output
    return ended.output


def test_images_that_are_not_in_force_are_removed_and_one_in_use_is_named(machine):
    wanted = image.image_reference(image.ImageRequest())
    old, used = f"{store.REPOSITORY}:base-old", f"{store.REPOSITORY}:base-used"
    for reference in (wanted, old, used):
        imported(machine, reference)
    podman("import", str(machine / "root.tar"), "localhost/not-ours:1")
    container = podman("create", used, "/hello")
    said = run("image", "prune", status=1)
    assert f"removed {old}" in said
    assert f"image_left: {used} could not be removed: " in said
    assert "End what uses it, and try again." in said
    podman("rm", container)
    assert json.loads(run("image", "prune", "--json")) == {"removed": [used], "left": []}
    assert run("image", "prune") == "No image to remove.\n"
    assert f"removed {wanted}" in run("image", "prune", "--all")
    assert podman("images", "--format", "{{.Repository}}") == "localhost/not-ours"


def test_nothing_is_kept_of_when_a_removed_image_of_packages_was_used(machine):
    imported(machine, f"{store.REPOSITORY}:set-old", f"{store.LABEL_SET}={'a' * 64}")
    cache = WheelCache(machine / "state", InstallSettings())
    for digest in ("a" * 64, "b" * 64):
        cache.image_used(digest)
    run("image", "prune")
    assert [file.name for file in (machine / "state/packages/images").iterdir()] == ["b" * 64]


def test_uninstall_names_what_the_keyring_may_have(machine):
    (machine / "config/mcp-bridge").mkdir(parents=True)
    (machine / "config/mcp-bridge/config.toml").write_text(
        'logins = "keyring"\n[ledger]\nmaster_key = "keyring"\n'
        '[secrets.STRIPE]\nkeyring = true\ntools = ["shop.*"]\n[secrets.OTHER]\nfile = true\ntools = ["shop.*"]\n'
    )
    said = run("uninstall", "--state", "--yes")
    assert "`mcp-bridge secret remove STRIPE`" in said
    assert "OTHER" not in said
    assert "left: logins to servers in the system's keyring" in said
    assert "left: 'ledger master key' of 'mcp-bridge' in the system's keyring" in said


def test_uninstall_removes_what_was_made_and_says_what_is_left(machine):
    state = machine / "state"
    run("program", "run", "nobody", status=2)
    (state / "catalog").mkdir(exist_ok=True)
    (state / "probe-abc.json").write_text("{}")
    (state / "notes.txt").write_text("mine")
    (machine / "config/mcp-bridge").mkdir(parents=True)
    (machine / "config/mcp-bridge/config.toml").write_text(f"timeout = 5\nlog_file = '{machine}/bridge.log'")
    (machine / "bridge.log").touch()
    (machine / "home/.claude.json").write_text(json.dumps({"mcpServers": {"bridge": {"command": "mcp-bridge"}}}))
    imported(machine, f"{store.REPOSITORY}:base-old")
    label = f"--label={OWNER_LABEL}={host_id()}:{NO_PROCESS}:1"
    dead = podman("create", label, f"{store.REPOSITORY}:base-old", "/hello")
    entries = {path.name for path in state.iterdir()}

    said = run("uninstall", status=4)
    assert "Write `mcp-bridge uninstall --yes`." in said
    present = Presence(state, "another bridge")
    assert "bridge_at_work" in run("uninstall", "--state", "--yes", status=4)
    present.leave()
    assert {path.name for path in state.iterdir()} | {"owners"} == entries | {"owners"}, "nothing was removed"

    said = run("uninstall", "--yes")
    assert f"container {dead[:12]} of podman" in said
    assert f"image {store.REPOSITORY}:base-old of podman" in said
    assert podman("ps", "--all", "--quiet") == podman("images", "--quiet") == ""
    left = {path.name for path in state.iterdir()}
    assert {"ledger.sqlite", "master.key", "checkpoint.key", "notes.txt"} <= left
    assert not left & {"catalog", "probe-abc.json"}
    assert f"left: {state}, the record with its keys. `mcp-bridge uninstall --state` removes it, too." in said
    assert f"left: {machine}/config/mcp-bridge/config.toml, your configuration." in said
    assert f"left: {machine}/bridge.log, the log." in said
    assert "`claude mcp remove bridge`" in said
    assert "`uv tool uninstall mcp-code-bridge`" in said

    said = run("uninstall", "--state", "--yes")
    assert "the whole record unreadable" in said
    assert f"left: {state}/notes.txt, which no bridge has made." in said
    assert [path.name for path in state.iterdir()] == ["notes.txt"]
    (state / "notes.txt").unlink()
    assert "state" not in run("uninstall", "--state", "--yes").replace(str(machine), "")
    assert not state.exists()


def test_a_persons_no_removes_nothing(machine):
    """At a terminal it asks, and only a yes is one."""
    (machine / "state").mkdir()
    (machine / "state/probe-abc.json").write_text("{}")
    ours, theirs = os.openpty()
    process = subprocess.Popen([COMMAND, "uninstall"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(ours, 4096)
    os.write(ours, b"n\n")
    _, complaint = process.communicate(timeout=60)
    os.close(theirs)
    os.close(ours)
    assert process.returncode == 4
    assert b"nothing was removed" in complaint
    assert b"cache" in shown
    assert (machine / "state/probe-abc.json").exists()
