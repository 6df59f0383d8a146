"""A script's output while the script runs: to a client, as progress; to a terminal, as it is."""

import asyncio
import os
import pty
import re
import subprocess
from pathlib import Path

import anyio
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, OVER_BOTH, until
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from execution_fixtures import printed

from mcp_bridge.executions.scripts.limited_output import Outputs
from mcp_bridge.executions.scripts.live_output import LiveOutput
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.wire.messages import OutputWrite

pytestmark = pytest.mark.timeout(180)

UNTIL = "\nimport time\nwhile runtime.load_memory_sync({key!r}) is None: time.sleep(0.05)\n"
UNTIL_IN_JAVASCRIPT = """
while (await runtime.load_memory({key!r}) === undefined) await new Promise((done) => setTimeout(done, 50));
"""
"""The script goes on when whoever watches it has seen what it has printed, and says so."""


def said(key):
    return f"runtime.save_memory_sync({key!r}, 1)"


async def watched(bridge, code, key, expected, **options):
    """Run a script that waits until it was heard to have printed something; its record, and what was told of it."""
    told = {"stdout": "", "stderr": ""}
    heard = asyncio.Event()

    def tell(stream, text):
        told[stream] += text
        if expected in told["stdout"] + told["stderr"]:
            heard.set()

    async def answer():
        await heard.wait()
        assert (await bridge.run(said(key))).status == "success"

    task = asyncio.create_task(answer())
    record = await bridge.run(code, live=LiveOutput(tell, 0.01), **options)
    await asyncio.wait_for(task, DEADLINE_SECONDS)
    return record, told


async def test_what_is_printed_is_told_while_the_script_runs(bilingual, tmp_path):
    async with bilingual.open(state_dir=tmp_path) as opened:
        code = {
            "python": "import sys\nprint('ø one')\nprint('err', file=sys.stderr)"
            + UNTIL.format(key="k")
            + "print('two')",
            "javascript": "console.log('ø one');\nconsole.error('err');\n"
            + UNTIL_IN_JAVASCRIPT.format(key="k")
            + "console.log('two');",
        }[opened.language]
        record, told = await watched(opened.bridge, code, "k", "one\n", language=opened.language)
    assert printed(record) == "ø one\ntwo\n"
    assert told["stdout"].startswith("ø one\n")
    assert "ø one\ntwo\n".startswith(told["stdout"])


async def test_only_whole_lines_are_told_and_a_progress_bars_turns_are_lines(sandboxes, tmp_path):
    async with sandboxes.open(state_dir=tmp_path) as bridge:
        code = "print('half', end='')\nprint(' a line')\nprint('50%\\r', end='')\nprint('rest', end='', flush=True)"
        record, told = await watched(bridge, code + UNTIL.format(key="k"), "k", "50%")
    assert told["stdout"] == "half a line\n50%\r"
    assert printed(record) == "half a line\n50%\rrest"


def private_key():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, none = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, none).decode()


async def test_what_is_hidden_in_the_answer_is_hidden_while_it_runs(bilingual, tmp_path):
    tables = {"projection": {"patterns": ["card", "private_key"]}}
    governance = load_governance(tables, None, tmp_path, tmp_path)
    key = private_key().splitlines()
    slowly = "".join(f"print({line!r})\ntime.sleep(0.05)\n" for line in key)
    code = {
        "python": f"import time\nprint('card 4111 1111 1111 1111')\n{slowly}print('done')" + UNTIL.format(key="k"),
        "javascript": f"console.log('card 4111 1111 1111 1111');\nfor (const line of {key}) {{\n"
        "  console.log(line);\n  await new Promise((done) => setTimeout(done, 50));\n}\nconsole.log('done');"
        + UNTIL_IN_JAVASCRIPT.format(key="k"),
    }[bilingual.language]
    async with bilingual.open(state_dir=tmp_path, governance=governance) as opened:
        record, told = await watched(opened.bridge, code, "k", "done\n", language=opened.language)
    assert "4111" not in told["stdout"]
    assert re.match(r"card vault://ref/\S+\n", told["stdout"])
    assert told["stdout"].split("\n")[0] == printed(record).split("\n")[0], "the same reference"
    assert "done\n" in told["stdout"]
    for line in key[2:-1]:
        assert line not in printed(record)
        assert line not in told["stdout"]


async def test_a_script_that_prints_without_end_is_told_of_and_ended(sandboxes, tmp_path):
    told = []
    async with sandboxes.open(state_dir=tmp_path, max_output_size=1 << 20) as bridge:
        live = LiveOutput(lambda _, text: told.append(text), 0.01)
        record = await bridge.run("while True: print('x' * 99)", live=live)
    assert record.status == "output_limit"
    assert record.stdout.decode().startswith("".join(told))


# --- a client ---


@OVER_BOTH
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_gets_output_as_progress_while_the_script_runs(setup, mode):
    heard = anyio.Event()
    seen = []

    async def note(progress, total, message):
        seen.append((progress, message))
        if message and message.endswith("xxx"):
            heard.set()

    key = f"live-{mode}"
    code = (
        "print('a line of output')\nprint('x' * 9000)"
        + UNTIL.format(key=key)
        + "runtime.delete_memory_sync('"
        + key
        + "')"
    )
    async with setup.client(mode) as client, asyncio.TaskGroup() as tasks:

        async def answer():
            await heard.wait()
            await client.call_tool("run_python", {"code": said(key)})

        tasks.create_task(answer())
        result = await client.call_tool("run_python", {"code": code}, progress_callback=note)
    assert not result.is_error
    messages = [message for _, message in seen if message]
    assert any(message.endswith("xxx") for message in messages)
    assert all(len(message) <= 2001 for message in messages)
    values = [progress for progress, _ in seen]
    assert all(before < after for before, after in zip(values, values[1:], strict=False)), values


# --- a terminal ---


def read_terminal(master, wanted):
    """What a terminal shows until it has shown something, or until nobody writes to it any more."""
    shown = b""
    while wanted is None or wanted not in shown:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    return shown


async def test_run_shows_output_on_a_terminal_while_the_script_runs_and_once(setup):
    key = "on-a-terminal"
    script = setup.home / "script.py"
    script.write_text(
        "import sys\nprint('first')\nprint('warned', file=sys.stderr)\nprint('half a', end='')"
        + UNTIL.format(key=key)
        + f"runtime.delete_memory_sync({key!r})\nprint(' line')\nprint('last')\n6 * 7"
    )
    master, slave = pty.openpty()
    process = subprocess.Popen(  # noqa: ASYNC220  (its streams are a terminal)
        [COMMAND, "--config", str(setup.config), "run", str(script)],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env=setup.env,
        cwd=setup.home,
    )
    os.close(slave)
    try:
        shown = await asyncio.to_thread(read_terminal, master, b"first")
        assert b"first" in shown, shown
        assert b"last" not in shown
        assert setup.run("run", "-c", said(key)).returncode == 0
        shown += await asyncio.to_thread(read_terminal, master, None)
        assert process.wait(DEADLINE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    text = shown.decode().replace("\r\n", "\n")
    for line in ("first\n", "half a line\n", "last\n", "42\n", "warned\n"):
        assert text.count(line) == 1, text


def test_run_shows_a_file_nothing_before_the_end(setup):
    """Byte for byte as before: only a terminal is shown output while a script runs."""
    out = Path(setup.home / "out")
    with out.open("wb") as file:
        ended = subprocess.run(
            [COMMAND, "--config", str(setup.config), "run", "-c", "import os\nprint('a')\n_ = os.write(1, b'\\xff')"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.DEVNULL,
            env=setup.env,
            cwd=setup.home,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    assert (ended.returncode, out.read_bytes()) == (0, b"a\n\xff")


async def test_a_sandbox_that_takes_the_place_of_a_lost_one_is_told_of_from_where_that_one_was():
    told = []
    heard = anyio.Event()

    def tell(stream, text):
        told.append((stream, text))
        if "c" in text:
            heard.set()

    async def as_it_is(value):
        return value

    live = LiveOutput(tell, 0)
    lost, again = Outputs(1000), Outputs(1000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live.follow, lost, as_it_is)
        lost.write(OutputWrite("stdout", "a\nb\nhal"))
        live.printed()
        await until(lambda: told)
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live.follow, again, as_it_is)
        for text in ("a\n", "b\n", "half\nc\n"):
            again.write(OutputWrite("stdout", text))
            live.printed()
        await heard.wait()
        tasks.cancel_scope.cancel()
    assert told[0] == ("stdout", "a\nb\n")
    assert "".join(text for _, text in told) == "a\nb\nhalf\nc\n"
