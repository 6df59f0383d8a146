"""Clients that we did not write, those of npm: who does what is in `clients/matrix.py`."""

import asyncio
import dataclasses
import functools
import json
import re
import subprocess

import anyio
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, setups, state_directory
from clients.conversation import LIMIT, SCRIPTS, Place, program, recorded, recording
from clients.matrix import MATRIX
from http_bridge import serving
from server_fixtures import REPOSITORY

from mcp_bridge.offload import on_blocking_thread

pytestmark = pytest.mark.timeout(300)

FRAME_CHARS = 300
"""What a client puts around a text, at most."""


def claude(*arguments, setup):
    """Claude Code. Its wrapper finds the native binary also where npm ran no install script."""
    ended = subprocess.run(
        [*program("@anthropic-ai/claude-code/cli-wrapper.cjs"), *arguments],
        capture_output=True,
        text=True,
        env=setup.env,
        cwd=setup.home,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_claude_code_says_that_it_is_connected(setup):
    claude("mcp", "add", "bridge", "-e", f"MCP_BRIDGE_CONFIG={setup.config}", "--", COMMAND, setup=setup)
    assert (setup.home / ".claude.json").is_file(), "the test's own home directory was used"
    listed = claude("mcp", "list", setup=setup)
    (line,) = [line for line in listed.splitlines() if line.startswith("bridge:")]
    assert line.endswith("Connected")


async def test_claude_code_says_that_it_is_connected_over_http(setup):
    async with serving(setup) as bridge:
        told = ("mcp", "add", "--transport", "http", "bridge", bridge.url)
        await on_blocking_thread(functools.partial(claude, *told, setup=setup))
        listed = await on_blocking_thread(functools.partial(claude, "mcp", "list", setup=setup))
    (line,) = [line for line in listed.splitlines() if line.startswith("bridge:")]
    assert line.endswith("Connected")


@pytest.mark.parametrize("json_answers", [False, True], ids=["events", "json"])
async def test_inspector_calls_the_tool_over_http(configure, json_answers):
    setup = configure(http={"json_answers": json_answers})
    async with serving(setup) as bridge:
        method = ["--method", "tools/call", "--tool-name", "run_python", "--tool-arg", "code=print(6 * 7)"]
        process = await asyncio.create_subprocess_exec(
            *program("@modelcontextprotocol/inspector/clients/launcher/build/index.js"),
            *("--cli", bridge.url, "--transport", "http", *method),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=setup.env,
            cwd=setup.home,
        )
        with anyio.fail_after(DEADLINE_SECONDS):
            out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        assert json.loads(out)["content"][0]["text"] == "42"


def test_the_page_on_clients_names_the_versions_that_are_tried():
    table = (REPOSITORY / "docs/clients.md").read_text("utf-8").partition("## What your client shows its model")[2]
    packages = json.loads((REPOSITORY / "requirements/node-clients/package.json").read_text())
    versions = packages["dependencies"] | packages["optionalDependencies"]
    for row in MATRIX.values():
        version = ".".join(versions[row.package].split(".")[:2])
        assert f"{row.title} {version}" in table


# --- one conversation of each client, looked at check by check ---


def text_of(row, shown):
    """What the client was given, without what it has put around it."""
    found = re.fullmatch(row.frame, shown.texts[0] if row.record == "always" else shown.text, re.DOTALL)
    assert found, shown.text
    return found[1]


def lists_the_model_is_told_of_the_tool_and_what_it_takes(row, seen):
    first = json.dumps(seen.sent[0])
    assert f'"name": "{row.says}"' in first
    assert row.revision in first
    tool = seen.tool
    assert ".".join(filter(None, (tool.where, tool.name))) == row.tool
    assert tool.description.startswith("Run Python (standard library, no network)")
    assert tool.description.endswith("help(mcp.programs)")
    assert {"code", "servers", "timeout", "idempotency_key"} <= set(tool.schema["properties"])
    assert tool.schema["required"] == ["code"]
    assert ("These MCP servers are behind it: recording. run_python is" in seen.told) == row.instructions


def calls_the_model_is_shown_what_a_script_prints(row, seen):
    assert text_of(row, seen.shown["calls"]) == "answered: {'text': 'from a script'}"
    assert not seen.shown["calls"].failed


def errors_the_model_is_shown_the_traceback(row, seen):
    shown = seen.shown["errors"]
    assert "KeyError: 'a key'" in shown.text
    if row.record == "of errors":
        assert '\\"isError\\":true' in shown.text
    else:
        assert text_of(row, shown).startswith("before\nTraceback (most recent call last):\n  File")
    assert shown.failed == row.marks_errors


def images_the_model_is_shown_images_and_told_where_it_is_not(row, seen):
    shown = seen.shown["images"]
    assert "an image:" in shown.text
    assert row.image_note in shown.text
    assert shown.images == ["image/png"]
    failed = seen.shown["image_of_error"]
    assert "ZeroDivisionError" in failed.text
    assert failed.images == (["image/png"] if row.images_of_errors else [])
    told = "[image/png of 70 bytes: shown only where the script succeeds]" in failed.text
    assert told == (not row.images_of_errors)


def long_output_reaches_the_model_up_to_the_limit_with_what_reads_the_rest(row, seen):
    text = text_of(row, seen.shown["long_output"])
    assert text.startswith("beginxxx")
    assert "runtime.output(" in text
    assert LIMIT - FRAME_CHARS < len(text) <= LIMIT


def progress_is_asked_for_by_most_and_shown_by_some(row, seen):
    calls = seen.sent_of("tools/call")
    assert len(calls) == len(SCRIPTS)
    assert {"progressToken" in call["params"].get("_meta", {}) for call in calls} == {row.asks_progress}
    assert ("half of it" in seen.printed) == row.shows_progress
    assert "all of it" in seen.shown["progress"].text


def cancellation_leaves_no_container_and_no_process(row, seen):
    assert seen.left == []
    cancelled = {message["params"]["requestId"] for message in seen.sent_of("notifications/cancelled")}
    assert (seen.sent_of("tools/call")[-1]["id"] in cancelled) == row.cancels


def reached_the_model_is_no_more_than_the_limit_and_a_record_only_where_it_is_known(row, seen):
    everything = set(SCRIPTS) - {"cancellation"}
    assert set(seen.shown) == everything
    # A record that has to be shortened is no structured content.
    expected = {"never": set(), "of errors": {"errors", "image_of_error"}, "always": everything - {"long_output"}}
    assert {name for name, shown in seen.shown.items() if "exit_code" in shown.text} == expected[row.record]
    for name, shown in seen.shown.items():
        assert len(shown.text) <= LIMIT + FRAME_CHARS, name


CHECKS = (
    lists_the_model_is_told_of_the_tool_and_what_it_takes,
    calls_the_model_is_shown_what_a_script_prints,
    errors_the_model_is_shown_the_traceback,
    images_the_model_is_shown_images_and_told_where_it_is_not,
    long_output_reaches_the_model_up_to_the_limit_with_what_reads_the_rest,
    progress_is_asked_for_by_most_and_shown_by_some,
    cancellation_leaves_no_container_and_no_process,
    reached_the_model_is_no_more_than_the_limit_and_a_record_only_where_it_is_known,
)


@pytest.fixture
def place(tmp_path, engine, image, sandbox_state_dir):
    configure = setups(tmp_path, engine, state_directory(tmp_path, sandbox_state_dir))
    # Until it is interrupted, the last script has to run, however busy the machine is.
    return Place(configure(recording(tmp_path), max_output_chars=LIMIT, timeout=100), tmp_path)


def assert_checked(row, seen):
    failed = []
    for check in CHECKS:
        try:
            check(row, seen)
        except AssertionError as exc:
            failed.append(f"{check.__name__}: {exc}")
    assert not failed, "\n\n".join(failed)


@pytest.mark.parametrize("name", MATRIX)
def test_one_conversation_of_a_client_passes_every_check(name, place):
    assert_checked(MATRIX[name], MATRIX[name].held(place))


@pytest.mark.parametrize("name", MATRIX)
async def test_a_conversation_over_http_is_the_same(name, place):
    row = MATRIX[name]
    async with serving(place.setup) as bridge, recorded(bridge.url, place.sent) as url:
        seen = await on_blocking_thread(row.held, dataclasses.replace(place, url=url))
        if row.cancels:
            await place.setup.no_container_of(bridge.pid)
    # From 2026-07-28 on a call is cancelled by the end of its request.
    assert_checked(dataclasses.replace(row, cancels=row.cancels and row.revision < "2026-07-28"), seen)
