"""A server whose configuration, state directory or ledger is broken stays up, says why to every call, and goes on once
that is mended; one whose configuration changes while it serves never allows more than it did."""

import contextlib
import json
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, OVER_BOTH, toml, until
from cli_fixtures import run_here
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from sandbox_fixtures import RUNTIME
from servers.specs import faulty

from mcp_bridge import settings
from mcp_bridge.cli.commands.serve import ConfigurationFiles
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import snapshot_of, written_policies
from mcp_bridge.ledger.storage.live_bridges import Presence
from mcp_bridge.server.bridge_supervisor import BridgeSupervisor
from mcp_bridge.server.configuration_reload import Change, ConfigurationReload
from mcp_bridge.settings import Layer

pytestmark = [pytest.mark.timeout(120)]

ERAS = ["legacy", "2026-07-28"]

SAID = "what a module says"


def text(result):
    return result.content[0].text


async def call(client, code="", **arguments):
    """No code is a mistake that only an open bridge finds, and that starts no container."""
    return await client.call_tool("run_python", {"code": code, **arguments})


# --- what can be broken; each puts it back with what it returns ---


def config(more, *, mended=""):
    """The configuration with this after it."""

    def damage(setup):
        before = setup.config.read_bytes()
        after = more.encode() if isinstance(more, str) else more
        setup.config.write_bytes(before + after)
        return lambda: setup.config.write_bytes(before + mended.encode())

    return damage


def no_config(setup):
    moved = setup.config.rename(setup.config.with_suffix(".moved"))
    return lambda: moved.rename(setup.config)


def tools(module, mended):
    def damage(setup):
        folder = setup.config.parent / "tools"
        folder.mkdir(exist_ok=True)
        name = folder / "operators.py"
        name.write_text(module)
        put_back = config('[tools]\npath = ["tools"]\n', mended='[tools]\npath = ["tools"]\n')(setup)

        def mend():
            name.write_text(mended)
            put_back()

        return mend

    return damage


TOOL = "import mcp_bridge\n@mcp_bridge.tool\ndef {0}(x: int = 1) -> int:\n    return x\n"


def two_of_a_name(setup):
    """Each module by itself is fine, and stays imported."""
    mend = tools(TOOL.format("same"), TOOL.format("other"))(setup)
    (setup.config.parent / "tools" / "theirs.py").write_text(TOOL.format("same"))
    return mend


def program(setup):
    folder = setup.config.parent / "programs"
    folder.mkdir()
    (folder / "a.yaml").write_text("steps: [")
    return config('[programs]\npath = ["programs"]\n')(setup)


def state_is_a_file(setup):
    moved = setup.state_dir.rename(setup.state_dir.with_name("moved"))
    setup.state_dir.write_text("")

    def mend():
        setup.state_dir.unlink()
        moved.rename(setup.state_dir)

    return mend


def state_is_everybodys(setup):
    setup.state_dir.chmod(0o1777)
    return lambda: setup.state_dir.chmod(0o700)


def ledger(damaging):
    """A ledger that there is, damaged."""

    def damage(setup):
        setup.begin_ledger()
        kept = setup.config.parent / "kept"
        shutil.copytree(setup.state_dir, kept, symlinks=True)
        damaging(setup.state_dir)

        def mend():
            shutil.rmtree(setup.state_dir)
            kept.rename(setup.state_dir)

        return mend

    return damage


def of_a_later_version(state):
    with contextlib.closing(sqlite3.connect(state / "ledger.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 1000")


BROKEN = {
    "not TOML": (config("x = ["), "bad_config", ["mcp-bridge.toml", "not TOML"]),
    "not text": (config(b"\xff\xfe"), "bad_config", ["is not UTF-8 text"]),
    "not there": (no_config, "config_missing", ["mcp-bridge.toml"]),
    "an unknown key": (config("tiemout = 3\n"), "bad_config", ["line 5", "'tiemout'", "Did you mean timeout?"]),
    "a wrong type": (config("timeout = 'soon'\n"), "bad_config", ["line 5", "timeout"]),
    "a server's key": (config("[servers.x]\ncomand = 'y'\n"), "bad_config", ["servers.x.comand", "Did you mean"]),
    "a policy": (config("[policy]\npreset = 'opne'\n"), "bad_config", ["preset", "Did you mean open?"]),
    "secrets": (config("[secrets.token]\nfile = true\nenv = 'X'\n"), "bad_config", ["secrets.token"]),
    "no folder of tools": (config("[tools]\npath = ['nowhere']\n"), "bad_tools", ["tools.path names"]),
    "tools": (
        tools(f"import mcp_bridge\nraise ValueError({SAID!r})\n", TOOL.format("fine")),
        "bad_tools",
        ["operators.py, line 2", "ValueError", "standard error"],
    ),
    "tools of one name": (two_of_a_name, "bad_tools", ["same"]),
    "a program": (program, "bad_program", ["a.yaml"]),
    "a state directory that is a file": (state_is_a_file, "state_unusable", ["bridge-state"]),
    "a state directory that is everybody's": (state_is_everybodys, "state_unsafe", ["bridge-state"]),
    "a damaged ledger": (
        ledger(lambda state: (state / "ledger.sqlite").write_bytes(b"no database" * 1000)),
        "database_unusable",
        ["ledger.sqlite"],
    ),
    "a ledger of a later version": (ledger(of_a_later_version), "database_newer", ["ledger.sqlite"]),
    "a key that is gone": (ledger(lambda state: (state / "master.key").unlink()), "key_missing", ["master.key"]),
}


@contextlib.asynccontextmanager
async def connected(setup, mode, log, **env):
    """The SDK's client, and what the server writes to standard error."""
    with log.open("w") as file:
        async with setup.client(mode, log=file, env=env) as client:
            yield client


OF_THE_STATE = [name for name in BROKEN if "everybody" in name or "ledger" in name or "key that" in name]
"""Over HTTP a server whose configuration is wrong, or whose tokens can't be read, doesn't start: whoever starts it sees
that."""


@pytest.mark.parametrize(
    ("name", "mode", "transport"),
    [(name, ERAS[number % 2], "stdio") for number, name in enumerate(BROKEN)]
    + [(name, ERAS[number % 2], "http") for number, name in enumerate(OF_THE_STATE)],
    indirect=["transport"],
)
async def test_a_server_that_can_run_nothing_stays_up_says_why_and_goes_on_once_it_is_mended(
    setup, tmp_path, name, mode
):
    damage, code, words = BROKEN[name]
    mend = damage(setup)
    log = tmp_path / "errors"
    async with connected(setup, mode, log) as client:
        if mode == "legacy":
            assert f"[{code}] " in client.instructions
            assert len(client.instructions) <= 2048, "Claude Code cuts what is longer"
            with pytest.warns(MCPDeprecationWarning, match="ping"):
                await client.send_ping()
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "run_python"
        for _ in range(2):
            refused = await call(client, "print('it ran')")
            assert refused.is_error
            assert text(refused).startswith(f"[{code}] "), text(refused)
            assert all(word in text(refused) for word in words), text(refused)
            assert refused.structured_content["error"]["code"] == code
        # Claude Code leaves out the tools of a server of which a list is an error.
        assert (await client.list_resources()).resources == []
        assert (await client.list_resource_templates()).resource_templates
        with pytest.raises(MCPError, match=code):
            await client.read_resource("program://schema")
        said = log.read_text()
        assert said.count(f"{code}: ") == 1, "for the client's log, once"
        assert SAID not in text(refused) + (client.instructions or "")
        assert (SAID in said) == (name == "tools")
        mend()
        opened = await call(client)
        assert text(opened).startswith("[empty_code] "), text(opened)
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("how", ["removed", "moved"])
async def test_nothing_runs_unrecorded_once_the_state_directory_is_another(setup, tmp_path, how):
    setup.begin_ledger()
    async with connected(setup, "legacy", tmp_path / "errors") as client:
        assert text(await call(client, "print(1)")) == "1"
        setup.state_dir.rename(tmp_path / "moved")
        if how == "removed":
            shutil.rmtree(tmp_path / "moved")
        refused = await call(client, "print('it ran')")
        assert (refused.is_error, refused.structured_content["error"]["code"]) == (True, "not_recorded"), text(refused)
        assert str(setup.state_dir) in text(refused)
        # Another bridge begins a new one there.
        setup.state_dir.mkdir(0o700)
        setup.begin_ledger()
        refused = await call(client, "print('it ran')")
        assert refused.structured_content["error"]["code"] == "not_recorded", text(refused)
    assert (await setup.told("execution", "list"))["executions"] == []


async def test_a_server_whose_standard_error_cannot_be_written_says_to_each_call_what_is_wrong(setup):
    whole = setup.config.read_text()
    put_back = config("x = [")(setup)
    async with connected(setup, "legacy", Path("/dev/full")) as client:
        assert text(await call(client, "1")).startswith("[bad_config] ")
        put_back()
        assert text(await call(client)).startswith("[empty_code] ")
        setup.config.write_text(whole + "x = [")
        assert text(await call(client)).startswith("[empty_code] "), "what was read first holds"


async def test_a_server_whose_folder_is_removed_heeds_its_configuration_still(configure, tmp_path):
    setup = configure(faulty())
    here = tmp_path / "here"
    here.mkdir()
    parameters = setup.parameters()
    parameters.cwd = here
    async with Client(parameters, mode="legacy", read_timeout_seconds=DEADLINE_SECONDS) as client:
        assert text(await call(client, ECHO)) == "'x'"
        here.rmdir()
        setup.config.write_text(setup.config.read_text() + DENIES)
        assert "policy denies" in text(await call(client, ECHO))


def test_in_a_folder_that_was_removed_commands_say_so_and_the_server_serves(setup, tmp_path):
    gone = ["bash", "-c", 'mkdir gone; cd gone; rmdir ../gone; "$@"', "bash", COMMAND, "--config", str(setup.config)]
    quiet = {"cwd": tmp_path, "env": setup.env, "capture_output": True, "stdin": subprocess.DEVNULL, "text": True}
    for arguments, status, said in ([["execution", "list"], 2, "is gone"], [["serve"], 0, ""]):
        ended = subprocess.run([*gone, *arguments], timeout=DEADLINE_SECONDS, check=False, **quiet)
        assert (ended.returncode, said in ended.stderr, "Traceback" in ended.stderr) == (status, True, False), ended


@pytest.mark.parametrize("mode", ERAS)
async def test_one_breakage_after_the_other_is_told_as_it_is_then_and_at_last_the_script_runs(setup, tmp_path, mode):
    """In one process; a dozen calls at once wait for one attempt."""
    put_back = config("x = [")(setup)
    async with connected(setup, mode, tmp_path / "errors") as client:
        for name in ("not TOML", "an unknown key", "a policy", "tools", "a state directory that is a file"):
            put_back()
            damage, code, words = BROKEN[name]
            put_back = damage(setup)
            refused = await call(client, "1")
            assert text(refused).startswith(f"[{code}] "), text(refused)
            assert all(word in text(refused) for word in words)
        found = []

        async def one():
            found.append(text(await call(client)))

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(one)
        assert len({line.partition("]")[0] for line in found}) == 1
        put_back()
        result = await call(client, "6 * 7")
        assert (result.is_error, text(result)) == (False, "42")


async def test_a_call_is_told_of_the_attempt_that_it_has_waited_for():
    class Silent:
        def report_error(self, error):
            pass

    supervisor = BridgeSupervisor(Silent(), BridgeError("bad_config", "One."), lambda _bridge: None)
    told = []

    async def ask():
        with pytest.raises(BridgeError) as caught:
            await supervisor.bridge()
        told.append(caught.value.code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        supervisor._failed(BridgeError("state_unusable", "Two."))
        # Begins another attempt before the first call runs again.
        with anyio.move_on_after(0.01):
            await supervisor.bridge()
    assert told == ["state_unusable"]


async def test_tools_for_programs_say_why_in_their_own_form(setup, tmp_path):
    put_back = config("x = [")(setup)
    arguments = ["--config", str(setup.config), "serve", "--tools", "programs"]
    parameters = StdioServerParameters(command=COMMAND, args=arguments, env=setup.env, cwd=setup.home)
    with (tmp_path / "errors").open("w") as log:
        async with Client(stdio_client(parameters, errlog=log), mode="legacy") as client:
            assert len((await client.list_tools()).tools) == 7
            refused = await client.call_tool("list_programs", {})
            assert refused.is_error
            assert json.loads(text(refused))["code"] == "bad_config"
            put_back()
            assert not (await client.call_tool("list_programs", {})).is_error


@OVER_BOTH
async def test_an_engine_that_comes_later_is_found(setup, tmp_path):
    """The bridge opens without one; every call looks again."""
    for path in setup.state_dir.glob("probe-*.json"):
        path.unlink()
    places = {tmp_path / f"programs-{number}": place for number, place in enumerate(os.environ["PATH"].split(":"))}
    async with connected(setup, "legacy", tmp_path / "errors", PATH=":".join(map(str, places))) as client:
        refused = await call(client, "1")
        assert refused.is_error
        assert text(refused).startswith("[no_runtime] ")
        for path, place in places.items():
            path.symlink_to(place)
        assert text(await call(client, "6 * 7")) == "42"


@OVER_BOTH
async def test_a_ledger_that_somebody_holds_keeps_no_client_waiting(setup, tmp_path):
    """The server answers before it is opened; the call that comes meanwhile waits for that, and runs."""
    setup.begin_ledger()
    connection = sqlite3.connect(setup.state_dir / "ledger.sqlite", isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    async with connected(setup, "legacy", tmp_path / "errors") as client:
        assert client.instructions.startswith("MCP servers are behind it; runtime.discovered_servers() lists them.")
        assert len((await client.list_tools()).tools) == 1
        async with anyio.create_task_group() as tasks:
            found = []

            async def one():
                found.append(text(await call(client)))

            tasks.start_soon(one)
            await client.list_tools()
            assert not found
            connection.close()
        assert found[0].startswith("[empty_code] ")


# --- what still ends ---


def test_with_its_input_closed_it_ends_and_its_status_says_what_was_wrong(setup):
    config("x = [")(setup)
    ended = setup.run("serve")
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert b"bad_config" in ended.stderr


def test_an_option_that_there_is_not_is_a_usage_error(setup):
    ended = setup.run("serve", "--tols", "programs")
    assert (ended.returncode, ended.stdout) == (2, b"")


# --- at a terminal ---


@contextlib.contextmanager
def at_a_terminal(setup, *arguments, **environment):
    """The command with a terminal, and the terminal's other end."""
    here, there = pty.openpty()
    env = setup.env | {"MCP_BRIDGE_CONFIG": str(setup.config)} | environment
    terminal = {"stdin": there, "stdout": there, "stderr": there, "start_new_session": True}
    with subprocess.Popen([COMMAND, *arguments], env=env, cwd=setup.home, **terminal) as process:
        os.close(there)
        with os.fdopen(here, "rb", buffering=0) as shown:
            yield process, shown
        process.send_signal(signal.SIGKILL)


def read_until(shown, words):
    """What a terminal shows, until it has these words, or to its end."""
    found = b""
    with contextlib.suppress(OSError):
        while words not in found and (piece := shown.read(4096)):
            found += piece
    return found.decode()


@pytest.mark.parametrize("arguments", [[], ["--config", "nowhere.toml"]], ids=["bare", "with an option"])
def test_a_bare_command_at_a_terminal_says_that_it_waits_and_what_to_type_instead(setup, arguments):
    with at_a_terminal(setup, *arguments) as (process, shown):
        said = read_until(shown, b"claude mcp add")
        assert process.poll() is None, "it waits"
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_SECONDS)
    for words in ("is an MCP server", "waits", "a client", "mcp-bridge demo", "mcp-bridge doctor", "mcp-bridge run"):
        assert words in said


SLOW = """
import sys, time
print("importing", file=sys.stderr, flush=True)
try:
    time.sleep(60)
except BaseException:
    print("swallowed", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("arguments", [[], ["serve"], ["serve", "--transport", "http", "--port", "0"]], ids=" ".join)
def test_what_interrupts_the_start_ends_it_without_a_traceback(setup, arguments):
    """Also where code that is imported ignores exceptions, as the interpreter does in finalizers."""
    tools(SLOW, "")(setup)
    with at_a_terminal(setup, *arguments) as (process, shown):
        read_until(shown, b"importing")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == -signal.SIGINT
        assert "".join(read_until(shown, b"Traceback").split()) == ""


def test_what_interrupts_a_commands_imports_ends_it_without_a_traceback(setup, tmp_path):
    (tmp_path / "typer").mkdir()
    (tmp_path / "typer" / "__init__.py").write_text(SLOW)
    with at_a_terminal(setup, "doctor", PYTHONPATH=str(tmp_path)) as (process, shown):
        read_until(shown, b"importing")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == -signal.SIGINT
        assert "".join(read_until(shown, b"Traceback").split()) == ""


ENDING = """
import anyio
from mcp_bridge.server import app

async def end_slowly():
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app._end_on_signal, scope)
            await anyio.lowlevel.checkpoint()
            print("serving", flush=True)
            await anyio.sleep_forever()
    print("ending", flush=True)
    await anyio.sleep_forever()

anyio.run(end_slowly)
"""


def test_a_second_interrupt_ends_at_once_what_ends_slowly():
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", ENDING], text=True, **pipe) as process:
        for word in ("serving", "ending"):
            assert process.stdout.readline().strip() == word
            process.send_signal(signal.SIGINT)
        assert (process.wait(DEADLINE_SECONDS), process.stdout.read()) == (-signal.SIGINT, "")


def test_serving_at_a_terminal_says_that_it_waits_and_is_ended_there(setup):
    with at_a_terminal(setup, "serve") as (process, shown):
        assert "waiting for an MCP client" in read_until(shown, b"Ctrl-C")
        # What was typed before it listens isn't lost: a terminal keeps it.
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_SECONDS)


@pytest.mark.parametrize(("before", "ends"), [("", True), ("trap '' HUP; ", False)], ids=["", "nohup"])
async def test_a_terminal_that_goes_away_ends_a_bridge_in_an_orderly_way_unless_it_is_to_stay(
    setup, tmp_path, before, ends
):
    parameters = setup.parameters()
    line = f'{before}echo $$ > {tmp_path}/pid; exec "$@"'
    parameters.command, parameters.args = "bash", ["-c", line, "bash", COMMAND, *parameters.args]
    async with Client(parameters, mode="legacy", read_timeout_seconds=DEADLINE_SECONDS) as client:
        async with anyio.create_task_group() as tasks:
            answers = []

            async def run():
                with contextlib.suppress(MCPError):
                    answers.append(text(await call(client, "progress(1)\nimport time\ntime.sleep(2)\nprint('done')")))

            tasks.start_soon(run)
            rows = await until(lambda: listed(setup))
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGHUP)
        assert answers == ([] if ends else ["done"]), rows
    [row] = (await setup.told("execution", "list"))["executions"]
    assert row["status"] == ("cancelled" if ends else "success")


async def listed(setup):
    return (await setup.told("execution", "list"))["executions"]


# --- a configuration that changes while it serves ---

ECHO = "from mcp.servers import faulty\nawait faulty.echo('x')"
DENIES = '[[policy.rules]]\ntools = ["faulty.echo"]\neffect = "deny"\n'


@OVER_BOTH
@pytest.mark.parametrize("mode", ERAS)
async def test_what_a_change_takes_away_is_gone_at_the_next_call_and_what_it_adds_waits(configure, tmp_path, mode):
    setup = configure(faulty(), faulty(name="other"))
    whole = setup.config.read_text()
    both = "from mcp import runtime\nprint(sorted(runtime.discovered_servers()))"
    log = tmp_path / "errors"
    async with connected(setup, mode, log) as client:
        assert text(await call(client, ECHO)) == "'x'"

        setup.config.write_text(whole + "\n# nothing that matters\n")
        assert text(await call(client, both)) == "['faulty', 'other']"

        setup.config.write_text(whole + DENIES)
        denied = await call(client, ECHO)
        assert denied.is_error
        assert "policy denies" in text(denied)
        assert "has changed since it was started" in text(denied)
        assert "has changed" not in text(await call(client, ECHO)), "it is said once"

        setup.config.write_text(whole + DENIES + "[policy")
        broken = await call(client, ECHO)
        assert "policy denies" in text(broken), "a policy that is broken is no fewer rules"
        assert "can't be used, so what held before still does: [bad_config]" in text(broken)
        assert "can't be used" not in text(await call(client, ECHO))

        one, _, other = whole.partition('\n[servers."other"]')
        setup.config.write_text(one + '\n[servers."another"]' + other)
        result = await call(client, both)
        assert text(result).startswith("['faulty']\n["), "one is taken out, another waits"
        assert text(await call(client, ECHO)) == "'x'", "and the rule that wasn't there at the start is gone with it"

        setup.config.write_text(whole)
        assert text(await call(client, both)) == "['faulty', 'other']"
    assert log.read_text().count("bad_config") == 1
    assert "Traceback" not in log.read_text()


@OVER_BOTH
async def test_a_rule_that_is_taken_out_holds_until_a_restart(configure):
    setup = configure(faulty())
    whole = setup.config.read_text()
    setup.config.write_text(whole + DENIES)
    async with setup.client() as client:
        assert "policy denies" in text(await call(client, ECHO))
        for laxer in (whole, whole + DENIES.replace("deny", "allow"), whole + "[policy]\npreset = 'open'\n"):
            setup.config.write_text(laxer)
            assert "policy denies" in text(await call(client, ECHO)), laxer
    setup.config.write_text(whole)
    async with setup.client() as client:
        assert text(await call(client, ECHO)) == "'x'"


async def test_a_denial_that_is_added_holds_whatever_the_file_allows_before_and_after_it(configure):
    setup = configure(faulty())
    whole = setup.config.read_text()
    allows = DENIES.replace('"deny"', '"allow"\nmax_calls = 5')
    for denying in (whole + allows + DENIES, whole + DENIES + allows):
        setup.config.write_text(whole + allows)
        async with setup.client() as client:
            assert text(await call(client, ECHO)) == "'x'"
            setup.config.write_text(denying)
            assert "policy denies" in text(await call(client, ECHO))


async def test_a_call_that_is_taken_back_loses_no_change(configure):
    setup = configure(faulty())
    async with setup.wire() as wire:
        await wire.initialize()
        assert "'x'" in json.dumps(await wire.answer(await wire.call(ECHO)))
        setup.config.write_text(setup.config.read_text() + DENIES)
        number = await wire.call(ECHO)
        await wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        assert "policy denies" in json.dumps(await wire.answer(await wire.call(ECHO)))


async def test_of_a_folder_that_is_trusted_no_longer_nothing_can_be_called(setup, tmp_path):
    here = tmp_path / "checkout"
    (here / "tools").mkdir(parents=True)
    (here / "tools" / "theirs.py").write_text(TOOL.format("fine"))
    (here / "mcp-bridge.toml").write_text(toml({}, [faulty()]) + '[tools]\npath = ["tools"]\n')
    env = setup.env | {
        "MCP_BRIDGE_STATE_DIR": str(setup.state_dir),
        "MCP_BRIDGE_RUNTIME": RUNTIME,
        "MCP_BRIDGE_CLIENT_CONFIGS": "false",
    }

    def trust(*arguments):
        subprocess.run([COMMAND, "trust", *arguments], env=env, cwd=here, check=True, capture_output=True)

    trust("--yes")
    code = "from mcp import runtime\nprint(sorted(runtime.discovered_servers()))"
    parameters = StdioServerParameters(command=COMMAND, env=env, cwd=here)
    async with Client(parameters, mode="legacy") as client:
        assert text(await call(client, code)) == "['faulty', 'local']"
        module = here / "tools" / "theirs.py"
        module.write_text(TOOL.format("fine") + "# looked at by nobody\n")
        result = text(await call(client, code))
        assert result.startswith("['faulty', 'local']\n["), "what was trusted is what is loaded"
        trust("--revoke")
        assert text(await call(client, code)).startswith("[]")


# --- what is noticed of a folder's files, and of clients' ---


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that is trusted, in a home of its own; the working directory."""
    home, here = tmp_path / "home", tmp_path / "checkout"
    home.mkdir()
    here.mkdir()
    for name in [name for name in os.environ if name.startswith(("MCP_BRIDGE_", "XDG_", "CLAUDE_CONFIG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    (here / "mcp-bridge.toml").write_text('[servers.theirs]\ncommand = "true"\n' + DENIES)
    (here / ".mcp.json").write_text(json.dumps({"mcpServers": {"project": {"command": "true", "args": ["project"]}}}))
    trust("--yes")
    return here


def trust(*arguments):
    assert run_here(None, "trust", *arguments).code == 0


def rules(change):
    """The rules in force, whichever layer has them."""
    found, policy = [], change.policy
    while policy is not None:
        found += policy.rules
        policy = policy.floor
    return found


def test_a_file_that_is_no_longer_what_was_trusted_takes_no_server_away_but_revoking_does(folder):
    files = ConfigurationFiles(None)
    files.configure()
    assert files.change() is None
    changed = folder / "mcp-bridge.toml"
    changed.write_text(changed.read_text().replace('"true"', '"false"'))
    found = files.change()
    assert isinstance(found, Change)
    assert found.differs
    assert found.servers == {"theirs", "project", "local"}, "what runs is what was trusted"
    assert files.change() is None
    trust("--revoke")
    assert files.change().servers == {"local"}, "the operator's own tools, if there are any"


def test_clients_files_are_watched_and_what_is_of_no_concern_in_them_changes_nothing(folder):
    home = Path.home()
    files = ConfigurationFiles(None)
    files.configure()
    for count in range(2):
        (home / ".claude.json").write_text(json.dumps({"numStartups": count}))
        assert files.change() is None
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"new": {"command": "true", "args": ["new"]}}}))
    assert files.change().servers == {"theirs", "project", "new", "local"}
    # A client that is writing it: its servers stay.
    files = ConfigurationFiles(None)
    files.configure()
    (home / ".claude.json").write_text('{"mcpServers": {"ne')
    assert "new" in files.change().servers
    (folder / ".mcp.json").unlink()
    assert "project" not in files.change().servers


def test_another_bridge_that_starts_and_ends_changes_nothing_here(folder):
    home = Path.home()
    entry = {"type": "http", "url": "http://127.0.0.1:8353/mcp"}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"code": entry}}))
    files = ConfigurationFiles(None)
    assert "code" in {spec.name for spec in files.configure().specs}
    other = Presence(settings.load().settings.state_dir, "another bridge")
    other.serve_at(8353)
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"code": entry}, "numStartups": 1}))
    assert files.change() is None
    again = ConfigurationFiles(None)
    assert "code" not in {spec.name for spec in again.configure().specs}
    other.leave()
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"code": entry}, "numStartups": 2}))
    assert files.change() is None
    assert again.change() is None


def test_claude_codes_files_are_watched_where_its_variable_says(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    files = ConfigurationFiles(None)
    files.configure()
    entry = {"command": "true", "args": ["new"]}
    (tmp_path / "elsewhere/.claude.json").write_text(json.dumps({"mcpServers": {"new": entry}}))
    assert "new" in files.change().servers


def test_the_files_of_every_client_that_is_read_are_watched(folder):
    own = Path.home() / ".config/mcp-bridge/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('client_configs = ["cursor", "codex"]\n')
    cursor, codex = Path.home() / ".cursor/mcp.json", Path.home() / ".codex/config.toml"
    cursor.parent.mkdir()
    codex.parent.mkdir()
    cursor.write_text(json.dumps({"mcpServers": {"mine": {"command": "true", "args": ["mine"]}}}))
    files = ConfigurationFiles(None)
    files.configure()
    assert files.change() is None
    cursor.unlink()
    assert "mine" not in files.change().servers
    codex.write_text('[mcp_servers.other]\ncommand = "true"\nargs = ["other"]\n')
    assert "other" in files.change().servers
    (Path.home() / ".gemini").mkdir()
    (Path.home() / ".gemini/settings.json").write_text(json.dumps({"mcpServers": {"no": {"command": "true"}}}))
    assert files.change() is None, "that client isn't read"


def test_an_own_policy_that_appears_holds_and_is_about_the_programs_that_there_are(folder):
    files = ConfigurationFiles(None)
    files.configure()
    own = Path.home() / ".config/mcp-bridge/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[[policy.rules]]\ntools = ["*.*"]\neffect = "deny"\n')
    assert len(rules(files.change())) == 2
    own.write_text('[[policy.rules]]\ntools = ["*.*"]\neffect = "program"\nprograms = ["none"]\n')
    assert files.change().code == "bad_config"
    assert files.change() is None


class Editor:
    """The configuration's files while somebody writes them: each look finds the next text."""

    def __init__(self, files, path, texts):
        self._files = files
        self._path = path
        self._texts = list(texts)
        self.printed = []

    def change(self):
        if self._texts:
            text = self._texts.pop(0)
            if text is None:
                self._path.unlink()
            else:
                self._path.write_text(text)
        return self._files.change()

    def report_error(self, error):
        self.printed.append(error.code)


class Restricted:
    """What an open bridge is told of its configuration."""

    def __init__(self):
        self.changes = []

    def restrict(self, servers, policy, principals, inputs, install):
        self.changes.append((set(servers), set(principals)))


OWN = '[servers.mine]\ncommand = "true"\n[principals.anna]\n[principals.ben]\n'


@pytest.mark.parametrize(
    "part",
    [OWN[:40], OWN[: OWN.index("[principals.ben]")], "", None],
    ids=["cut within a line", "cut between tables", "empty", "missing"],
)
@pytest.mark.parametrize("named", [True, False], ids=["named", "the user's own"])
async def test_a_configuration_that_is_half_written_for_a_moment_takes_nothing_away(folder, part, named):
    own = Path.home() / ".config/mcp-bridge/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text(OWN)
    files = ConfigurationFiles(own if named else None)
    files.configure()
    told, bridge = [], Restricted()
    editor = Editor(files, own, [part, OWN])
    reload = ConfigurationReload(editor)
    reload.principals_changed = lambda principals: told.append(set(principals))
    await reload.apply(bridge)
    assert own.read_text() == OWN, "it was looked at again"
    assert all("mine" in servers and principals == {"anna", "ben"} for servers, principals in bridge.changes)
    assert all(principals == {"anna", "ben"} for principals in told)
    assert (reload.take_changes(), editor.printed) == ([], [])


async def test_a_configuration_that_stays_broken_is_told_once_and_one_that_stays_shorter_holds(folder):
    own = Path.home() / ".config/mcp-bridge/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text(OWN)
    files = ConfigurationFiles(own)
    files.configure()
    bridge = Restricted()
    editor = Editor(files, own, ["[principals", "[principals.an"])
    reload = ConfigurationReload(editor)
    await reload.apply(bridge)
    assert (bridge.changes, editor.printed) == ([], ["bad_config"])
    [said] = reload.take_changes()
    assert "what held before still does" in said
    await reload.apply(bridge)
    assert (reload.take_changes(), editor.printed) == ([], ["bad_config"])
    own.write_text(OWN.replace("[principals.ben]\n", ""))
    await reload.apply(bridge)
    assert [principals for _, principals in bridge.changes] == [{"anna"}]


def test_rules_count_in_one_sequence_however_many_policies_lie_over_each_other():
    from mcp_bridge.policy.rules.floor import layered

    def rule(name):
        layer = Layer(
            None, Path.cwd(), {}, {"policy": {"rules": [{"tools": [name], "effect": "allow", "max_calls": 1}]}}
        )
        return snapshot_of(written_policies((layer,)))

    stacked = layered(layered(rule("a.a"), rule("b.b")), rule("c.c"))
    numbers = []
    while stacked is not None:
        numbers += [compiled.number for compiled in stacked.compiled.rules]
        stacked = stacked.floor
    assert numbers == [3, 2, 1]
