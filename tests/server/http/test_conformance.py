"""The official conformance suite of MCP against the bridge over HTTP, in both eras.

Many scenarios want a server with tools, prompts and resources of certain names. Of those the bridge can pass none, but
what they check of every message holds. The others pass whole.
"""

import re
import subprocess

import pytest
from bridge_fixtures import DEADLINE_SECONDS
from http_bridge import serving
from server_fixtures import cached

from mcp_bridge.offload import on_blocking_thread

pytestmark = pytest.mark.timeout(170)

WHOLE = {
    "2025-11-25": {
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "tools-list",
        "server-sse-polling",
        "server-sse-multiple-streams",
        "resources-list",
        "dns-rebinding-protection",
    },
    "2026-07-28": {
        "tools-list",
        "server-sse-multiple-streams",
        "resources-list",
        "sep-2164-resource-not-found",
        "dns-rebinding-protection",
        "http-header-validation",
        "input-required-result-missing-input-response",
        "input-required-result-unsupported-methods",
        "input-required-result-ignore-extra-params",
        "input-required-result-validate-input",
    },
}
"""Scenarios that need no server of their own, by the version of the specification."""

FIXTURES = {
    # Prompts, which the bridge has none of.
    "sep-2549-prompts-list-caching-hints",
    # A tool that wants a capability, and tools that log and ask.
    "sep-2575-server-rejects-undeclared-capability",
    "sep-2575-missing-capability-http-400",
    "sep-2575-http-server-no-independent-requests-on-stream",
    "sep-2575-server-no-log-without-loglevel",
}
"""Checks of the other scenarios that are not about the suite's own tools, and yet want something that isn't there."""


def suite(url, version):
    """Run every scenario of a version; what it printed."""
    program = cached("conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js")
    ended = subprocess.run(
        ["node", str(program), "server", "--url", url, "--suite", "all", "--spec-version", version],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=2 * DEADLINE_SECONDS,
        check=False,
    )
    return re.sub(r"\x1b\[\d*m", "", ended.stdout + ended.stderr)


@pytest.mark.parametrize("version", WHOLE)
async def test_every_scenario_without_fixtures_passes(setup, version):
    async with serving(setup) as bridge:
        told = await on_blocking_thread(suite, bridge.url, version)
    scenarios = re.findall(r"^([✓✗]) (\S+): \d+ passed, \d+ failed$", told, re.MULTILINE)
    assert {name for mark, name in scenarios if mark == "✓"} >= WHOLE[version], told[-4000:]
    checks = re.findall(r"^\S+ \[(\S+) *\] (SUCCESS|FAILURE|SKIPPED|WARNING)\b", told, re.MULTILINE)
    assert [found for name, found in checks if name == "wire-schema-valid"].count("FAILURE") == 0
    of_the_protocol = {
        name for name, found in checks if found == "FAILURE" and name.startswith(("sep-2575", "sep-2549"))
    }
    assert of_the_protocol <= FIXTURES
    assert b"Traceback" not in bridge.logged
