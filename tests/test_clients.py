"""Clients that we did not write."""

import json
import shutil
import subprocess

import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS
from server_fixtures import cached

pytestmark = pytest.mark.timeout(180)


def javascript(script, *arguments, setup):
    node = shutil.which("node") or pytest.fail("node is not on the PATH", pytrace=False)
    return subprocess.run(
        [node, str(cached(f"clients/node_modules/{script}")), *arguments],
        capture_output=True,
        text=True,
        env=setup.env,
        cwd=setup.home,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def inspector(*arguments, setup):
    """The MCP Inspector's command line."""
    target = ["--cli", "-e", f"MCP_BRIDGE_CONFIG={setup.config}", COMMAND]
    ended = javascript(
        "@modelcontextprotocol/inspector/clients/launcher/build/index.js", *target, *arguments, setup=setup
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def claude(*arguments, setup):
    """Claude Code. Its wrapper finds the native binary also where npm ran no install script."""
    ended = javascript("@anthropic-ai/claude-code/cli-wrapper.cjs", *arguments, setup=setup)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_inspector_lists_and_calls_run_python(configure, time_server):
    setup = configure(time_server)
    listed = inspector("--method", "tools/list", setup=setup)
    assert [tool["name"] for tool in listed["tools"]] == ["run_python"]
    code = "from mcp.servers import time\nprint((await time.get_current_time('Asia/Tokyo'))['timezone'])"
    arguments = ("--method", "tools/call", "--tool-name", "run_python", "--tool-arg")
    result = inspector(*arguments, f"code={code}", setup=setup)
    assert result["content"] == [{"type": "text", "text": "Asia/Tokyo"}]
    assert result["structuredContent"]["status"] == "success"


def test_claude_code_says_that_it_is_connected(setup):
    claude("mcp", "add", "bridge", "-e", f"MCP_BRIDGE_CONFIG={setup.config}", "--", COMMAND, setup=setup)
    assert (setup.home / ".claude.json").is_file(), "the test's own home directory was used"
    listed = claude("mcp", "list", setup=setup)
    (line,) = [line for line in listed.splitlines() if line.startswith("bridge:")]
    assert line.endswith("Connected")
