"""`mcp-bridge demo`: the bridge's main use with real servers, step by step."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import anyio
from rich.console import Console
from rich.syntax import Syntax

from mcp_bridge import escaping
from mcp_bridge.cli import configuration_loading, exit_statuses
from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
from mcp_bridge.errors import BridgeError
from mcp_bridge.host.bridge import open_bridge

if TYPE_CHECKING:
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.settings import Settings

SCRIPTS = (
    (
        "An agent finds a tool among those of every server, without having their lists in its context:",
        """\
from mcp import runtime

print(runtime.discovered_servers())
print(await runtime.search("commit history"))
print(await runtime.describe("git.git_log"))
""",
    ),
    (
        "It calls several servers concurrently, works on the results in the sandbox, and prints what matters:",
        """\
import asyncio
from mcp.servers import filesystem, git, time

log, now = await asyncio.gather(
    git.git_log(repo_path=REPO, max_count=5),
    time.get_current_time(timezone="Europe/Oslo"),
)
await filesystem.write_file(path=f"{REPO}/HISTORY.md", content=f"# History\\n\\n{log}\\n")
listed = await filesystem.list_directory(path=REPO)
print(str(listed))
print(await git.git_status(repo_path=REPO))
""",
    ),
    (
        "The sandbox holds: no network, no files of the host, and no way to write to its own root:",
        """\
import os, socket

for attempt in (
    lambda: socket.create_connection(("192.0.2.1", 80), timeout=2),
    lambda: open("/etc/shadow").read(),
    lambda: open("/usr/local/lib/x", "w"),
):
    try:
        attempt()
        print("this should not have worked")
    except OSError as error:
        print(f"{type(error).__name__}: {error.strerror}")
print("uid", os.getuid(), "on host", os.uname().nodename)
""",
    ),
    (
        "An error says what and where; the script's end is the sandbox's end:",
        """\
from mcp.servers import git

await git.git_show(repo_path=REPO, revision="no-such-revision")
""",
    ),
)

PACKAGES = {
    "git": ("mcp-server-git", "uvx", ()),
    "time": ("mcp-server-time", "uvx", ("--local-timezone", "UTC")),
    "filesystem": ("mcp-server-filesystem", "npx", ("DIRECTORY",)),
}
"""For each server: its command, the package runner's command if it isn't installed, and its arguments."""


def demo(config: Path | None) -> int:
    """Run the demonstration; return the exit status."""
    console = Console(highlight=False)
    try:
        configuration = configuration_loading.configure(config)
        with tempfile.TemporaryDirectory(prefix="mcp-bridge-demo-") as directory:
            repository = Path(directory).resolve()
            make_repository(repository)
            records = anyio.run(_run, configuration.settings, demo_servers(repository), repository, console)
    except BridgeError as exc:
        return exit_statuses.print_error(exc)
    expected = ["success", "success", "success", "error"]
    if [record.status for record in records] != expected:
        console.print("\nThe demonstration did not go as it should.", style="red")
        return exit_statuses.FAILED
    console.print(
        "\nThat was the demonstration. This puts the bridge behind Claude Code, in whatever folder you are:\n"
    )
    sys.stdout.write(f"{shlex.join(['claude', 'mcp', 'add', '--scope', 'user', 'bridge', '--', *own_command()])}\n")
    sys.stdout.flush()
    return exit_statuses.OK


def own_command() -> list[str]:
    """The command that starts this bridge again, in any directory.

    A virtual environment made by `uvx` may have been removed by then, so `uvx` is asked for the same package again.
    """
    installed = Path(sys.executable).with_name("mcp-bridge")
    if "archive-v0" not in installed.parts and installed.is_file():
        return [str(installed)]
    direct_url = importlib.metadata.distribution("mcp-code-bridge").read_text("direct_url.json")
    place = urlsplit(json.loads(direct_url)["url"]) if direct_url else urlsplit("")
    package = unquote(place.path) if place.scheme == "file" else "mcp-code-bridge"
    return ["uvx", "--from", package, "mcp-bridge"]


def demo_servers(directory: Path) -> list[ServerSpec]:
    """Real servers: installed ones, or through package runners.

    Raises:
        BridgeError: `demo_needs_servers`.
    """
    specs = []
    for name, (command, runner, arguments) in PACKAGES.items():
        args = [str(directory) if argument == "DIRECTORY" else argument for argument in arguments]
        # Package runners use programs and settings of their working directory, which may be untrusted.
        table: dict[str, Any] = {"command": command, "args": args, "start_timeout": 120, "cwd": str(directory)}
        if shutil.which(command) is None:
            if shutil.which(runner) is None:
                raise BridgeError(
                    "demo_needs_servers",
                    f"The demonstration needs {command} or {runner}.",
                    hint="`make demo` in a checkout installs them.",
                )
            package = [command] if runner == "uvx" else ["-y", "@modelcontextprotocol/server-filesystem"]
            table |= {"command": runner, "args": [*package, *args]}
        specs.append(spec_from_toml(name, table, "the demonstration"))
    return specs


def make_repository(directory: Path) -> None:
    """Create a small git repository.

    Raises:
        BridgeError: `demo_needs_git`.
    """
    identity = ["-c", "user.name=Demo", "-c", "user.email=demo@example.org", "-c", "commit.gpgsign=false"]
    try:
        subprocess.run(["git", "init", "-q", str(directory)], check=True, cwd=directory)
        for number, subject in enumerate(("Begin", "Describe the plan", "Finish the plan"), 1):
            (directory / "plan.txt").write_text("step\n" * number)
            subprocess.run(["git", "-C", str(directory), "add", "plan.txt"], check=True)
            subprocess.run(["git", "-C", str(directory), *identity, "commit", "-q", "-m", subject], check=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        raise BridgeError("demo_needs_git", f"git could not make a repository: {exc}.") from None


async def _run(
    settings: Settings, specs: list[ServerSpec], repository: Path, console: Console
) -> list[ExecutionRecord]:
    records = []
    failure: BridgeError | None = None

    def echo_err(message: str) -> None:
        console.print(escaping.escape_controls(message), markup=False)

    async with open_bridge(settings, specs) as bridge:
        try:
            for title, script in SCRIPTS:
                console.print(f"\n{title}", style="bold")
                console.print(Syntax(script, "python", background_color="default"))
                record = await bridge.run(f"REPO = {str(repository)!r}\n" + script, timeout=60, notify=echo_err)
                records.append(record)
                printed = record.stdout.decode("utf-8", "backslashreplace").rstrip()
                console.print(escaping.escape_controls(printed), markup=False, style="green")
                if record.error:
                    text = record.error.get("traceback") or record.error["message"]
                    console.print(escaping.escape_controls(text), markup=False, style="yellow")
                console.print(
                    f"{record.duration_ms:.0f} ms, of which {record.start_ms:.0f} to start the container; "
                    f"{record.calls} tool calls",
                    style="dim",
                )
        except BridgeError as exc:
            failure = exc
    if failure:
        raise failure
    sys.stdout.flush()
    return records
