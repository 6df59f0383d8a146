"""Supervised servers: real ones, and every fault that one of them can have."""

import asyncio
import functools
import json
import math
import os
import signal
import subprocess
import sys
from itertools import product
from types import SimpleNamespace
from typing import Annotated

import anyio
import pytest
from downstream_calls import call_tool
from mcp.shared.exceptions import MCPError
from mcp_types import ImageContent, TextContent
from pydantic import Field, TypeAdapter, ValidationError
from servers.specs import faulty

from mcp_bridge.downstream.catalog import catalog as catalog_module
from mcp_bridge.downstream.catalog import listing_limits
from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, ArgumentError, UncheckedError
from mcp_bridge.downstream.catalog.catalog import Catalog
from mcp_bridge.downstream.catalog.tool_results import convert
from mcp_bridge.downstream.client import mcp_connection as connection_module
from mcp_bridge.downstream.client import server_errors
from mcp_bridge.downstream.client import supervised_server as supervisor_module
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.client.log_tail import LogRing
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.downstream.transports.lines import LineSplitter, Oversized
from mcp_bridge.errors import BridgeError

# Far above what any of these takes; a test that runs into it hangs.
pytestmark = pytest.mark.timeout(60)
pytest_plugins = ["server_fixtures"]


async def value(fleet, server, tool, arguments=None, **options):
    info = await fleet.server(server).find_tool(tool)
    return convert(await call_tool(fleet, server, tool, arguments, **options), info)["value"]


async def failure(fleet, server, tool, arguments=None, timeout=None):  # noqa: ASYNC109 - it is what is tested
    with pytest.raises(BridgeError) as caught:
        await call_tool(fleet, server, tool, arguments, timeout)
    assert caught.value.details["server"] == server
    return caught.value


def shown(error):
    """All that the sandbox can come to see of an error."""
    return f"{error!s} {error!r} {error.hint} {error.details} {error.record()}"


def process_state(pid):
    """The state of a process as `ps` shows it, or None when there is no such process."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return state[:1] or None


def is_gone(pid):
    """Whether a process has ended: zombies, which only init can reap, count as ended."""
    return process_state(pid) in {None, "Z"}


def children(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(child) for child in found.split()]


async def until(condition, seconds=10.0):
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - other processes announce nothing
            await anyio.sleep(0.01)


# Real servers.


async def test_the_everything_server_lists_and_calls(everything_server):
    async with Fleet([everything_server]) as fleet:
        tools = {tool.name: tool for tool in await fleet.server("everything").tools()}
        assert "echo" in tools
        assert await value(fleet, "everything", "echo", {"message": "hi"}) == "Echo: hi"
        assert "5" in str(await value(fleet, "everything", "get-sum", {"a": 2, "b": 3}))
        image = await value(fleet, "everything", "get-tiny-image")
        assert [block["mime_type"] for block in image if isinstance(block, dict)] == ["image/png"]
        assert (await fleet.server("everything").find_tool("get_sum")).name == "get-sum"
        assert (await failure(fleet, "everything", "get_sum", {"a": 2, "b": 3})).code == "unknown_tool", "an alias"
        assert fleet.server("everything").status().protocol == "2025-11-25"


async def test_the_filesystem_server_reads_a_file(filesystem_server):
    async with Fleet([filesystem_server]) as fleet:
        root = filesystem_server.cwd
        got = await value(fleet, "filesystem", "read_text_file", {"path": f"{root}/hello.txt"})
        assert "hello from a file" in str(got)
        answer = await call_tool(fleet, "filesystem", "read_text_file", {"path": "/etc/passwd"})
        assert answer.is_error


async def test_the_memory_server_keeps_what_it_is_told(memory_server):
    async with Fleet([memory_server]) as fleet:
        entity = {"name": "Ada", "entityType": "person", "observations": ["wrote programs"]}
        await value(fleet, "memory", "create_entities", {"entities": [entity]})
        assert (await value(fleet, "memory", "read_graph"))["entities"][0]["name"] == "Ada"
        error = await failure(fleet, "memory", "create_entities", {"entities": [{"name": "x"}]})
        assert error.code == "bad_arguments"
        assert "entities[0]: 'entityType' is a required property" in error.message


async def test_a_server_of_the_modern_era_is_spoken_to_in_it(git_server, git_repository):
    async with Fleet([git_server]) as fleet:
        log = await value(fleet, "git", "git_log", {"repo_path": str(git_repository)})
        assert "First commit" in str(log)
        assert fleet.server("git").status().protocol == "2026-07-28"


async def test_a_server_of_both_eras_can_be_held_to_the_old_one(git_server, git_repository):
    import dataclasses

    async with Fleet([dataclasses.replace(git_server, era="legacy")]) as fleet:
        assert "a.txt" not in str(await value(fleet, "git", "git_status", {"repo_path": str(git_repository)}))
        assert fleet.server("git").status().protocol == "2025-11-25"


@pytest.mark.parametrize("fixture", ["everything_server", "git_server", "time_server"])
async def test_a_real_server_killed_in_mid_call_serves_the_next_call(fixture, request):
    spec = request.getfixturevalue(fixture)
    async with Fleet([spec]) as fleet:
        server = fleet.server(spec.name)
        await server.start()
        pid = server.status().pid
        await anyio.sleep(0.3)  # some announce a change of their tools just after the start
        await server.tools()
        os.kill(pid, signal.SIGSTOP)  # so that the call is surely in flight when it dies
        await until(lambda: process_state(pid) == "T")
        async with anyio.create_task_group() as tasks:
            errors = []

            async def call():
                arguments = {"everything": {"message": "x"}, "git": {"repo_path": "/"}, "time": {"timezone": "UTC"}}
                tool = {"everything": "echo", "git": "git_status", "time": "get_current_time"}[spec.name]
                errors.append(await failure(fleet, spec.name, tool, arguments[spec.name]))

            tasks.start_soon(call)
            await anyio.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
        # And not `tool_timeout`: it isn't waited for.
        assert errors[0].code == "server_died"
        assert errors[0].details["exit"] == "signal SIGKILL"
        assert len(await server.tools()) > 1
        assert server.status().pid != pid


async def test_every_real_server_runs_beside_the_others(
    everything_server,
    filesystem_server,
    memory_server,
    git_server,
    time_server,
):
    specs = [everything_server, filesystem_server, memory_server, git_server, time_server]
    async with Fleet(specs) as fleet:
        counts = {}

        async def count(name):
            counts[name] = len(await fleet.server(name).tools())

        async with anyio.create_task_group() as tasks:
            for spec in specs:
                tasks.start_soon(count, spec.name)
        assert all(counts.values())
        pids = [status.pid for status in fleet.statuses()]
    assert all(map(is_gone, pids))


# Starting.


async def test_nothing_is_started_before_it_is_used():
    async with Fleet([faulty()]) as fleet:
        status = fleet.server("faulty").status()
        assert (status.state, status.pid, status.starts, status.tool_count) == ("idle", None, 0, None)


async def test_many_callers_start_a_server_once():
    async with Fleet([faulty(era="legacy")]) as fleet:
        pids = await asyncio.gather(*[value(fleet, "faulty", "pid") for _ in range(20)])
        assert len(set(pids)) == 1
        assert fleet.server("faulty").status().starts == 1


async def test_a_cancelled_caller_does_not_stop_the_start_others_wait_for():
    async with Fleet([faulty("slow", 0.5)]) as fleet:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call_tool, fleet, "faulty", "pid")
            await anyio.sleep(0.1)
            second = asyncio.create_task(value(fleet, "faulty", "pid"))
            tasks.cancel_scope.cancel()
        assert await second
        assert fleet.server("faulty").status().starts == 1


@pytest.mark.parametrize("mode", ["crash-on-unknown", "hang-on-unknown"])
async def test_an_old_server_that_the_era_probe_breaks_is_started_afresh_in_the_old_era(mode):
    async with Fleet([faulty(mode, start_timeout=4)]) as fleet:
        assert await value(fleet, "faulty", "echo", {"text": "hi"}) == "hi"
        server = fleet.server("faulty")
        assert server.status().starts == 2
        await failure(fleet, "faulty", "die")
        assert await value(fleet, "faulty", "echo", {"text": "again"}) == "again"
        assert server.status().starts == 3, "it is remembered which era it survives"


async def test_a_server_slower_than_the_probe_is_not_given_up():
    async with Fleet([faulty("slow", 1.2, start_timeout=2)]) as fleet:
        assert await value(fleet, "faulty", "echo", {"text": "hi"}) == "hi"


async def test_a_dead_server_says_why_and_delays_no_other():
    async with Fleet(
        [faulty("dead", name="dead"), faulty("silent", name="silent", start_timeout=300), faulty()]
    ) as fleet:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(failure, fleet, "silent", "echo")
            error = await failure(fleet, "dead", "echo")
            assert await value(fleet, "faulty", "echo", {"text": "hi"}) == "hi"
            assert "silent" in str([status for status in fleet.statuses() if status.state == "starting"])
            tasks.cancel_scope.cancel()
        assert error.code == "server_start_failed"
        assert "exit code 3" in error.message
        assert error.private["stderr"] == ["cannot find my configuration"]
        assert fleet.server("dead").log_tail() == ["cannot find my configuration"]


async def test_an_error_that_a_server_prints_before_how_it_is_used_is_told():
    script = """
import sys
print("Error: unknown flag: --prot", *(f"usage {number}" for number in range(100)), sep="\\n", file=sys.stderr)
sys.exit(1)
"""
    spec = ServerSpec(name="cobra", command=sys.executable, args=("-c", script))
    async with Fleet([spec], mask_output=lambda _spec, _environment, text: text) as fleet:
        error = await failure(fleet, "cobra", "echo")
    assert error.details["output"][:2] == ["Error: unknown flag: --prot", "usage 0"]
    assert error.details["output"][4:6] == ["…", "usage 92"]
    assert "unknown flag: --prot" in error.message
    assert error.private["stderr"][0] == "Error: unknown flag: --prot"
    assert error.private["stderr"][-1] == "usage 99"


async def test_a_server_that_never_answers_fails_within_its_start_timeout():
    async with Fleet([faulty("silent", start_timeout=0.6)]) as fleet:
        error = await failure(fleet, "faulty", "echo")
        assert (error.code, "not ready after 0.6 s (its start_timeout)" in error.message) == (
            "server_start_failed",
            True,
        )
        assert "start_timeout" in error.hint


async def test_a_caller_in_backoff_is_told_when_it_is_tried_again_and_does_not_wait(monkeypatch):
    # Longer than a test may take.
    monkeypatch.setattr(supervisor_module, "BACKOFF_BASE", 600.0)
    monkeypatch.setattr(supervisor_module, "BACKOFF_CAP", 600.0)
    async with Fleet([faulty("dead")]) as fleet:
        first = await failure(fleet, "faulty", "echo")
        second = await failure(fleet, "faulty", "echo")
        assert (first.code, second.code, second.details["reason"]) == (
            "server_start_failed",
            "server_unavailable",
            "backoff",
        )
        assert 0 < second.details["retry_in"] <= supervisor_module.BACKOFF_BASE
        assert second.private["stderr"] == ["cannot find my configuration"]
        assert fleet.server("faulty").status().state == "failed"


async def test_backoff_doubles_up_to_its_cap(monkeypatch):
    monkeypatch.setattr(supervisor_module, "BACKOFF_BASE", 1000.0)
    monkeypatch.setattr(supervisor_module, "BACKOFF_CAP", 3000.0)
    waits = []
    async with Fleet([ServerSpec(name="s", command="/does/not/exist")]) as fleet:
        for _ in range(4):
            assert (await failure(fleet, "s", "x")).code == "server_start_failed"
            waits.append((await failure(fleet, "s", "x")).details["retry_in"])
            # As if more than that time, which is told rounded, had passed.
            fleet.server("s")._retry_at -= waits[-1] + 1
    # Some of it has passed by the time that it is told.
    assert [math.ceil(wait / 1000) for wait in waits] == [1, 2, 3, 3]


async def test_a_failed_server_works_once_what_it_lacked_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor_module, "BACKOFF_BASE", 0.01)
    async with Fleet([faulty("flaky", tmp_path / "ready")]) as fleet:
        assert (await failure(fleet, "faulty", "echo")).code == "server_start_failed"
        (tmp_path / "ready").touch()
        await anyio.sleep(0.02)
        assert await value(fleet, "faulty", "echo", {"text": "hi"}) == "hi"
        status = fleet.server("faulty").status()
        assert (status.state, status.error) == ("ready", None)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (ServerSpec(name="s", command="no-such-command-anywhere"), "there is no command 'no-such-command-anywhere'"),
        (ServerSpec(name="s", command="/no/such/folder/server"), "there is no 'server' at its command's path."),
        (ServerSpec(name="s", command="/etc/passwd"), "cannot be run: Permission denied"),
        (ServerSpec(name="s", command=sys.executable, cwd="/no/such/place"), "its working directory is not there"),
        (ServerSpec(name="s", command="nul\0byte"), "command has a character that no process can be given"),
        (ServerSpec(name="s", command=sys.executable, args=("-c", "\ud800")), "args[1] has a character"),
        (ServerSpec(name="s", command=sys.executable, env={"A": "1", "B": "a\0"}), "env.B has a character"),
        (
            ServerSpec(name="s", command=sys.executable, env={"A=B": "1"}),
            "the name of a variable in env has a character",
        ),
        (ServerSpec(name="s", command=sys.executable, cwd="/tmp/\0"), "cwd has a character"),
    ],
)
async def test_a_command_that_cannot_be_run_is_named(spec, part):
    async with Fleet([spec]) as fleet:
        error = await failure(fleet, "s", "x")
        assert error.code == "server_start_failed"
        assert part in error.message
        assert "/no/such" not in shown(error)
        assert fleet.server("s").status().starts == 1


@pytest.mark.parametrize("kind", ["path", "relative", "name"])
async def test_a_script_whose_interpreter_is_missing_is_told_from_a_missing_command(tmp_path, kind):
    script = tmp_path / "my-server"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    command = {"path": str(script), "relative": "./my-server", "name": "my-server"}[kind]
    spec = ServerSpec(name="s", command=command, cwd=str(tmp_path), env={"PATH": str(tmp_path)})
    async with Fleet([spec]) as fleet:
        error = await failure(fleet, "s", "x")
    assert "the interpreter that 'my-server' names in its first line (#!) isn't there" in error.message
    assert "Mend the first line of that file" in error.hint
    assert str(tmp_path) not in shown(error)


SECRET = "hunter2-of-the-server"  # noqa: S105 - invented


@pytest.mark.parametrize(
    ("mode", "codes"),
    [
        ("leak-dead", ["server_start_failed", "server_unavailable"]),
        ("leak-die", ["server_died", "server_died", "server_unavailable"]),
    ],
)
async def test_what_a_server_writes_to_stderr_is_for_the_operator_alone(mode, codes, caplog):
    caplog.set_level("INFO")
    source = "/home/someone/mcp-bridge.toml"
    async with Fleet([faulty(mode, env={"TOKEN": SECRET}, source=source)]) as fleet:
        for code in codes:
            error = await failure(fleet, "faulty", "die")
            assert error.code == code
            assert SECRET not in shown(error)
            assert source not in shown(error)
            assert SECRET in error.private["stderr"][-1]
        server = fleet.server("faulty")
        assert SECRET not in server.status().error
        assert SECRET in str(server.status().private)
        assert SECRET in server.log_tail()[-1]
    levels = {record.levelname for record in caplog.records if SECRET in record.getMessage()}
    assert levels == {"INFO"}, "the default level shows no secret"
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all("'faulty'" in line and source in line for line in told)
    assert told


async def test_no_hint_about_a_server_names_a_file_of_the_host():
    source = "/home/someone/mcp-bridge.toml"
    specs = [
        ServerSpec(name="wrong", command="x", problem="env.K is missing.", source=source),
        faulty("silent", name="slow", start_timeout=0.3, source=source),
    ]
    async with Fleet(specs) as fleet:
        for spec in specs:
            error = await failure(fleet, spec.name, "x")
            assert "servers list --start" in error.hint
            assert source not in shown(error)
            assert error.private["source"] == source


@pytest.mark.parametrize(
    ("settings", "state", "part"),
    [
        ({"command": "x", "problem": "env.K is missing."}, "misconfigured", "env.K is missing."),
        ({"command": "x", "problem": "env.K is missing.", "enabled": False}, "disabled", "is disabled"),
        ({"command": "x", "enabled": False}, "disabled", "disabled"),
    ],
)
async def test_a_server_that_cannot_be_used_is_listed_with_its_reason(settings, state, part):
    async with Fleet([ServerSpec(name="s", **settings)]) as fleet:
        status = fleet.server("s").status()
        assert (status.state, part in status.error) == (state, True)
        error = await failure(fleet, "s", "x")
        assert (error.code, error.details["reason"]) == ("server_unavailable", state)


async def test_a_child_gets_what_its_entry_and_the_operator_say_and_the_mark_of_nesting(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "hunter2")
    async with Fleet([faulty(env={"ADDED": "a"}, env_pass="minimal")]) as fleet:  # noqa: S106
        environment = json.loads(await value(fleet, "faulty", "environment"))
        assert environment["ADDED"] == "a"
        assert environment[connection_module.NESTED_VARIABLE] == "1"
        assert "MY_SECRET" not in environment
    for unset in ((), ("MY_SECRET",)):
        async with Fleet([faulty(env_pass="all", unset=unset)]) as fleet:  # noqa: S106
            assert ("MY_SECRET" in json.loads(await value(fleet, "faulty", "environment"))) is not bool(unset)


# What a server says by itself.


async def test_a_real_servers_progress_is_told_while_it_works(everything_server):
    told = []
    async with Fleet([everything_server]) as fleet:
        arguments = {"duration": 0.5, "steps": 5}
        answer = await call_tool(fleet, "everything", "trigger-long-running-operation", arguments, tell=told.append)
        assert not answer.is_error
    assert [line.split()[0] for line in told] == ["1/5", "2/5", "3/5", "4/5", "5/5"]


async def test_what_a_server_logs_is_told_to_the_calls_under_way_and_to_the_operator(caplog):
    caplog.set_level("INFO")
    told, others = [], []
    async with Fleet([faulty("talkative")]) as fleet:
        async with anyio.create_task_group() as tasks:
            call = functools.partial(call_tool, fleet)
            tasks.start_soon(functools.partial(call, "faulty", "sleep", {"seconds": 1}, tell=others.append))
            tasks.start_soon(functools.partial(call, "faulty", "talk", tell=told.append))
        assert told == others == ["reading", "warning: slow", '{"rows": 3}']
        del told[:]
        await call("faulty", "talk")
        assert not told, "nobody asked"
    lines = [record.getMessage() for record in caplog.records if "logs (" in record.getMessage()]
    assert lines[:2] == ["server 'faulty' logs (info): reading", "server 'faulty' logs (warning): slow"]
    assert not any("details" in line for line in lines), "debug is left out"


async def test_an_error_that_a_server_logs_is_told_behind_any_number_of_other_messages():
    told = []
    async with Fleet([faulty("noisy")]) as fleet:
        await call_tool(fleet, "faulty", "noise", tell=told.append)
    assert told[-1] == "error: the disk is full"


async def test_what_a_server_logs_is_told_to_no_principal_once_it_serves_several():
    anna, ben = [], []
    async with Fleet([faulty("talkative")]) as fleet:
        call = functools.partial(call_tool, fleet, "faulty")
        await call("talk", tell=anna.append, principal="anna")
        assert anna == ["reading", "warning: slow", '{"rows": 3}']
        # One whose calls nobody listens to is another principal, too.
        await call("echo", {"text": "x"}, principal="ben")
        await call("talk", tell=anna.append, principal="anna")
        await call("talk", tell=ben.append, principal="ben")
        assert (len(anna), ben) == (3, [])
        # Another process of the server has had no calls.
        fleet.servers["faulty"].stop()
        await fleet.servers["faulty"].wait_ended()
        await call("talk", tell=ben.append, principal="ben")
        assert len(ben) == 3


@pytest.mark.parametrize(("processors", "servers"), [(None, 2), (1, 2), (2, 4), (4, 8), (64, 8)])
def test_few_processors_start_few_servers_at_once(processors, servers):
    assert catalog_module.starts_at_once(processors) == servers
    assert catalog_module.starts_at_once(os.cpu_count()) == catalog_module._STARTS_AT_ONCE


async def test_servers_are_started_ahead_side_by_side_and_a_failure_is_told_to_whoever_comes(tmp_path, monkeypatch):
    # As where there are four processors or more.
    monkeypatch.setattr(catalog_module, "_STARTS_AT_ONCE", 8)
    names = [f"s{number}" for number in range(12)]
    # Each waits for seven others before it answers.
    meeting = [faulty("together", f"8:{tmp_path}", name=name) for name in names]
    async with Fleet([*meeting, faulty("dead", name="dead")]) as fleet:
        catalog = Catalog(fleet)
        catalog.start_ahead([*names, "no-such-server"])
        most = 0
        with anyio.fail_after(40):
            while not all(fleet.server(name).running for name in names):
                most = max(most, sum(status.state == "starting" for status in fleet.statuses()))
                await anyio.sleep(0.01)
        assert most == 8
        catalog.start_ahead(["dead"])
        await until(lambda: fleet.server("dead").status().state == "failed")
        error = await failure(fleet, "dead", "echo")
        assert (error.code, "exit code 3" in error.message) == ("server_start_failed", True)
        assert (await failure(fleet, "dead", "echo")).details["reason"] == "backoff"


async def test_a_failure_ahead_is_told_once_although_the_server_was_tried_again_since(monkeypatch):
    monkeypatch.setattr(supervisor_module, "BACKOFF_BASE", 1000.0)
    async with Fleet([ServerSpec(name="s", command="/does/not/exist")]) as fleet:
        server = fleet.server("s")
        await server.start_ahead()
        # As if it had passed: the call tries again, and is told of its own failure.
        server._retry_at = 0
        told = [await failure(fleet, "s", "x") for _ in range(2)]
        assert [error.code for error in told] == ["server_start_failed", "server_unavailable"]
        # Started ahead twice before anybody calls.
        server._retry_at = 0
        for _ in range(2):
            await server.start_ahead()
        told = [await failure(fleet, "s", "x") for _ in range(2)]
        assert [error.code for error in told] == ["server_start_failed", "server_unavailable"]


# Calling.


async def test_thirty_parallel_calls_run_at_the_same_time_and_get_their_own_answers():
    async with Fleet([faulty()]) as fleet:
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(call_tool, fleet, "faulty", "hang")
            slept = [value(fleet, "faulty", "sleep", {"seconds": 0.3}) for _ in range(30)]
            echoed = [value(fleet, "faulty", "echo", {"text": str(number)}) for number in range(30)]
            results = await asyncio.gather(*slept, *echoed)
            tasks.cancel_scope.cancel()
        assert results == ["slept"] * 30 + [str(number) for number in range(30)]
        assert len(json.loads(await value(fleet, "faulty", "cancelled"))) == 30


async def test_an_unknown_tool_or_server_is_named_with_the_nearest():
    async with Fleet([faulty()]) as fleet:
        error = await failure(fleet, "faulty", "ecko")
        assert (error.code, error.details["nearest"]) == ("unknown_tool", ["echo"])
        with pytest.raises(BridgeError) as caught:
            fleet.server("Faultyy")
        assert (caught.value.code, caught.value.details["nearest"]) == ("unknown_server", ["faulty"])


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "arguments: 'text' is a required property"),
        ({"text": 7}, "text: 7 is not of type 'string'"),
        ({"text": "x", "times": 0}, "times: 0 is less than the minimum of 1"),
        ({"text": "\ud800"}, "lone surrogate"),
        ({"text": "x", "extra": float("nan")}, "not JSON"),
    ],
)
async def test_arguments_that_break_the_schema_never_reach_the_server(arguments, part):
    async with Fleet([faulty()]) as fleet:
        error = await failure(fleet, "faulty", "echo", arguments)
        assert error.code == "bad_arguments"
        assert part in error.message
        assert await value(fleet, "faulty", "echo", {"text": "still here"}) == "still here"


async def test_an_error_result_is_a_result():
    async with Fleet([faulty()]) as fleet:
        result = convert(await call_tool(fleet, "faulty", "refuse"))
        assert (result["is_error"], result["value"]) == (True, "no, I will not")


async def test_an_answer_that_is_no_tool_result_is_an_error():
    async with Fleet([faulty("malformed")]) as fleet:
        error = await failure(fleet, "faulty", "echo", {"text": "x"})
        assert (error.code, "The call may have happened." in str(error)) == ("bad_result", True)
        assert error.details["reason"].endswith("content: list_type")
        assert "not a list" not in str(error.record())


async def test_an_error_about_the_kind_of_a_result_does_not_quote_the_answer():
    blocks = TypeAdapter(Annotated[TextContent | ImageContent, Field(discriminator="type")])
    with pytest.raises(ValidationError, match="of-nobody") as caught:
        blocks.validate_python({"type": "of-nobody"})
    tool = SimpleNamespace(name="echo")
    error = await server_errors.call_failure(faulty(), SimpleNamespace(), tool, caught.value, limit=1)
    assert (error.code, "of-nobody" in str(error.record())) == ("bad_result", False)


@pytest.mark.parametrize(
    ("data", "told"),
    [({"field": ["a"]}, {"field": ["a"]}), ("x" * 9000, '"' + "x" * 7999 + "…"), (None, None), (object(), None)],
)
async def test_the_data_of_a_protocol_error_is_among_its_details_and_bounded(data, told):
    connection = SimpleNamespace(stopping=None, transport=SimpleNamespace(closed=anyio.Event()))
    cause = MCPError(code=-32000, message="no", data=data)
    error = await server_errors.call_failure(faulty(), connection, SimpleNamespace(name="echo"), cause, limit=1)
    assert (error.code, error.details["rpc_code"], error.details.get("data")) == ("tool_failed", -32000, told)


async def test_an_answer_that_is_not_utf_8_is_read_with_replacement_characters_and_that_is_logged_once():
    async with Fleet([faulty("encoding")]) as fleet:
        for _ in range(2):
            assert await value(fleet, "faulty", "echo", {"text": "a LATIN"}) == "a caf\ufffd"
        tail = fleet.server("faulty").log_tail()
        assert sum("not UTF-8" in line for line in tail) == 1
        assert not any("caf" in line for line in tail), "it may be for nobody else"


@pytest.mark.parametrize(
    ("text", "placed"),
    [("a QUOTE b", ""), *product(["a SURROGATE", "HUGE", "DEEP"], ["", "id-inside", "id-as-text"])],
)
async def test_an_answer_that_is_no_message_fails_its_call_at_once_and_no_other(text, placed):
    async with Fleet([faulty("encoding", placed)]) as fleet:
        code = (await failure(fleet, "faulty", "echo", {"text": text})).code
        assert code == ("result_too_large" if text == "DEEP" else "bad_result")
        assert await value(fleet, "faulty", "echo", {"text": "still here"}) == "still here"


async def test_a_list_that_is_no_message_fails_the_server_at_once_and_says_why():
    async with Fleet([faulty("encoding", "list", call_timeout=50.0)]) as fleet:
        with anyio.fail_after(20):
            error = await failure(fleet, "faulty", "echo", {"text": "x"})
        assert "no JSON-RPC message" in str(error)


async def test_a_call_that_times_out_is_cancelled_and_the_server_stays():
    async with Fleet([faulty()]) as fleet:
        pid = await value(fleet, "faulty", "pid")
        error = await failure(fleet, "faulty", "sleep", {"seconds": 3000}, timeout=0.2)
        assert (error.code, error.details["timeout"]) == ("tool_timeout", 0.2)
        assert json.loads(await value(fleet, "faulty", "cancelled")) != []
        assert await value(fleet, "faulty", "pid") == pid


async def test_a_cancelled_caller_cancels_its_request():
    async with Fleet([faulty()]) as fleet:
        await fleet.server("faulty").start()
        with anyio.move_on_after(0.2):
            await call_tool(fleet, "faulty", "sleep", {"seconds": 30})
        assert json.loads(await value(fleet, "faulty", "cancelled")) != []


@pytest.mark.parametrize("mode", ["deaf", "stopped"])
async def test_a_server_that_answers_nothing_after_a_timeout_is_replaced(mode, monkeypatch):
    monkeypatch.setattr(supervisor_module, "LIVENESS_TIMEOUT", 0.3)
    async with Fleet([faulty(mode)]) as fleet:
        server = fleet.server("faulty")
        await server.start()
        pid = server.status().pid
        assert (await failure(fleet, "faulty", "hang", timeout=0.2)).code == "tool_timeout"
        await until(lambda: not server.running)
        assert await value(fleet, "faulty", "echo", {"text": "hi"}) == "hi"
        assert server.status().pid != pid
    assert is_gone(pid)


async def test_a_busy_server_is_not_replaced_while_an_earlier_call_may_still_end(monkeypatch):
    monkeypatch.setattr(supervisor_module, "LIVENESS_TIMEOUT", 0.1)
    async with Fleet([faulty("single")]) as fleet:
        await fleet.server("faulty").start()
        earlier = asyncio.create_task(value(fleet, "faulty", "sleep", {"seconds": 1.0}))
        await anyio.sleep(0.1)
        assert (await failure(fleet, "faulty", "echo", {"text": "x"}, timeout=0.1)).code == "tool_timeout"
        assert await earlier == "slept"
        assert fleet.server("faulty").status().starts == 1


async def test_a_server_that_stops_reading_does_not_hold_up_its_callers():
    async with Fleet([faulty("stopped"), faulty(name="other")]) as fleet:
        await fleet.server("faulty").start()
        os.kill(fleet.server("faulty").status().pid, signal.SIGSTOP)
        text = "x" * 3_000_000
        errors = await asyncio.gather(*[failure(fleet, "faulty", "echo", {"text": text}, 0.5) for _ in range(4)])
        assert {error.code for error in errors} == {"tool_timeout"}
        assert await value(fleet, "other", "echo", {"text": "hi"}) == "hi"


async def test_a_result_over_the_limit_is_refused_and_the_server_stays():
    async with Fleet([faulty()], max_result_bytes=100_000) as fleet:
        assert len(await value(fleet, "faulty", "big", {"bytes": 99_000})) == 99_000
        pid = await value(fleet, "faulty", "pid")
        error = await failure(fleet, "faulty", "big", {"bytes": 5_000_000})
        assert (error.code, error.details["limit"]) == ("result_too_large", 100_000)
        assert error.hint.startswith("Ask for less: narrow the arguments")
        assert await value(fleet, "faulty", "pid") == pid


async def test_a_server_that_dies_in_mid_call_fails_that_call_at_once_and_serves_the_next():
    async with Fleet([faulty()]) as fleet:
        for _ in range(3):
            assert await value(fleet, "faulty", "echo", {"text": "hi"}) == "hi"
            error = await failure(fleet, "faulty", "die")
            # And not `tool_timeout`: it isn't waited for.
            assert error.code == "server_died"
            assert error.private["stderr"][-1] == "dying as told"
            assert error.details["exit"] == "exit code 7"


async def test_a_first_early_death_costs_no_wait_and_a_series_does():
    async with Fleet([faulty()]) as fleet:
        codes = [(await failure(fleet, "faulty", "die")).code for _ in range(3)]
        assert codes == ["server_died", "server_died", "server_unavailable"]


async def test_a_death_is_noticed_while_a_grandchild_holds_the_pipes():
    async with Fleet([faulty("grandchild", 300)]) as fleet:
        server = fleet.server("faulty")
        await server.start()
        pid = server.status().pid
        grandchildren = children(pid)
        assert len(grandchildren) == 1
        assert (await failure(fleet, "faulty", "die")).code == "server_died"
        await until(lambda: all(map(is_gone, grandchildren)))


async def test_garbage_on_stdout_is_passed_over_and_kept_for_messages():
    async with Fleet([faulty("garbage")]) as fleet:
        for number in range(10):
            assert await value(fleet, "faulty", "echo", {"text": str(number)}) == str(number)
        assert any("Loading" in line for line in fleet.server("faulty").log_tail())


async def test_a_server_chatty_on_stderr_is_drained_and_only_its_last_lines_are_kept():
    async with Fleet([faulty()]) as fleet:
        assert await value(fleet, "faulty", "shout", {"bytes": 3_000_000}) == "shouted"
        await until(lambda: fleet.server("faulty").log_tail()[-1:] == ["the last line"])
        assert sum(map(len, fleet.server("faulty").log_tail(1000))) <= 64 * 1024


# Listing.


async def test_a_thousand_tools_in_pages_all_arrive():
    async with Fleet([faulty("many")]) as fleet:
        tools = await fleet.server("faulty").tools()
        assert len(tools) == 1_000
        assert await value(fleet, "faulty", "tool_0988", {"value": "x"}) == "called tool_0988"


@pytest.mark.parametrize(("mode", "most"), [("endless", listing_limits.MAX_TOOLS), ("circle", 22)])
async def test_a_listing_without_end_is_cut(mode, most):
    async with Fleet([faulty(mode)]) as fleet:
        assert 0 < len(await fleet.server("faulty").tools()) <= most
        assert "lists without end" in fleet.server("faulty").listing.notices[-1]


async def test_names_that_collide_are_told_apart_and_a_repeated_name_is_reported():
    async with Fleet([faulty("twins")]) as fleet:
        aliases = {tool.name: tool.alias for tool in await fleet.server("faulty").tools()}
        assert (aliases["a-b"], aliases["a_b"], aliases["a_b_2"], aliases["class"]) == (
            "a_b_3",
            "a_b",
            "a_b_2",
            "class_",
        )
        for name in ("a-b", "a_b", "a_b_2"):
            assert await value(fleet, "faulty", name) == f"called {name}"
            found = await fleet.server("faulty").find_tool(aliases[name])
            assert await value(fleet, "faulty", found.name) == f"called {name}"
        assert "more than one tool of the name a-b" in fleet.server("faulty").listing.notices[0]


async def test_an_announced_change_of_tools_is_seen_by_the_next_call():
    async with Fleet([faulty()]) as fleet:
        server = fleet.server("faulty")
        assert await value(fleet, "faulty", "grow") == "grown_0"
        await until(lambda: server.stale)
        assert await value(fleet, "faulty", "grown_0") == "called grown_0"
        assert not server.stale


async def test_a_change_announced_in_the_modern_era_is_seen_too(tmp_path):
    script = tmp_path / "modern.py"
    script.write_text(
        "from mcp.server import MCPServer, NotificationOptions\n"
        "from mcp.server.mcpserver import Context\n"
        "server = MCPServer('modern')\n"
        "def added() -> str:\n    return 'added'\n"
        "@server.tool()\n"
        "async def grow(ctx: Context) -> str:\n"
        "    server.add_tool(added)\n"
        "    await ctx.notify_tools_changed()\n"
        "    return 'grown'\n"
        "server.run()\n"
    )
    async with Fleet([ServerSpec(name="modern", command=sys.executable, args=(str(script),))]) as fleet:
        server = fleet.server("modern")
        assert await value(fleet, "modern", "grow") == "grown"
        assert server.status().protocol == "2026-07-28"
        await until(lambda: server.stale)
        assert await value(fleet, "modern", "added") == "added"


# Ending.


async def test_an_idle_server_is_stopped_and_started_again_when_used():
    async with Fleet([faulty()], idle_timeout=0.3) as fleet:
        server = fleet.server("faulty")
        pid = int(await value(fleet, "faulty", "pid"))
        assert await value(fleet, "faulty", "sleep", {"seconds": 0.6}) == "slept", "not while a call runs"
        await until(lambda: is_gone(pid))
        assert (server.status().state, server.status().error) == ("idle", None)
        assert int(await value(fleet, "faulty", "pid")) != pid


async def test_closing_ends_every_process_of_every_server_within_its_bound():
    specs = [faulty("stubborn", name="stubborn"), faulty("grandchild", 300, name="parent"), faulty()]
    async with Fleet(specs) as fleet:
        for spec in specs:
            await fleet.server(spec.name).start()
        pids = [status.pid for status in fleet.statuses()]
        for pid in list(pids):
            pids += children(pid)
        assert len(pids) == 4
    assert all(map(is_gone, pids))


async def test_closing_finishes_although_its_caller_is_cancelled():
    pids = []
    with anyio.CancelScope() as scope:
        async with Fleet([faulty()]) as fleet:
            pids.append(int(await value(fleet, "faulty", "pid")))
            scope.cancel()
    assert is_gone(pids[0])


async def test_a_call_in_flight_when_all_is_closed_is_cancelled_with_a_reason():
    async with anyio.create_task_group() as tasks:
        errors = []
        async with Fleet([faulty()]) as fleet:
            await fleet.server("faulty").start()

            async def call():
                errors.append(await failure(fleet, "faulty", "sleep", {"seconds": 30}))

            tasks.start_soon(call)
            await anyio.sleep(0.1)
    assert errors[0].code == "tool_cancelled"
    assert (await failure(fleet, "faulty", "pid")).code == "server_unavailable"


def test_importing_discovery_and_the_fleet_does_not_load_the_sdk():
    modules = ["configuration.discovery", "client.fleet", "catalog.catalog", "search.search"]
    modules += ["catalog.describe", "catalog.tool_results"]
    imports = "; ".join(f"import mcp_bridge.downstream.{module}" for module in modules)
    heavy = ("mcp", "mcp_types", "pydantic", "jsonschema")
    code = f"import sys; {imports}; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Parts.


def test_lines_arrive_whole_however_the_bytes_are_cut():
    data = b"one\n\ntwo and more\nrest"
    for size in range(1, len(data) + 1):
        splitter = LineSplitter(100)
        lines = [line for start in range(0, len(data), size) for line in splitter.feed(data[start : start + size])]
        assert lines == [b"one", b"", b"two and more"]
        assert splitter.buffered == 4


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":12,"result":{"x":"%s"}}', 12),
        (b'{"id": 3, "jsonrpc":"2.0","result":{"x":"%s"}}', 3),
        (b'{"result":{"x":"%s"},"jsonrpc":"2.0","id":7}', 7),
        (b'{"result":{"x":"%s"},"id":7,"jsonrpc":"2.0"}', 7),
        (b'{"jsonrpc":"2.0","result":{"x":"%s","id":9}}', None),
        (b'{"method":"x","params":{"id":9,"x":"%s"}}', None),
    ],
)
@pytest.mark.parametrize("chunk", [7, 1000])
def test_an_oversized_line_is_dropped_and_traced_to_its_request(line, request_id, chunk):
    splitter = LineSplitter(2_000)
    line %= b"y" * 5_000
    data = line + b"\nafter\n"
    out = [item for start in range(0, len(data), chunk) for item in splitter.feed(data[start : start + chunk])]
    assert out == [Oversized(len(line), request_id, is_answer=b"method" not in line), b"after"]
    assert splitter.buffered == 0


def test_the_log_ring_keeps_the_end():
    ring = LogRing(10)
    for number in range(100):
        ring.add(b"%02d\n" % number)
    assert ring.tail() == ["97", "98", "99"]
    ring.add(b"x" * 1000)
    assert ring.tail() == ["x" * 10]


def test_no_regular_expression_of_a_server_is_run_here():
    evil = "^(a+)+$"
    ArgumentCheck({"properties": {"x": {"type": "string", "pattern": evil}}}).check({"x": "a" * 40 + "!"})
    # Where types hang on it, what isn't checked isn't called.
    named = {"patternProperties": {evil: {"type": "integer"}}, "additionalProperties": False}
    with pytest.raises(UncheckedError):
        ArgumentCheck(named).check({"a" * 40 + "!": "y"})


def test_many_faults_are_summed_up_and_long_values_cut():
    schema = {"additionalProperties": {"type": "integer"}}
    with pytest.raises(ArgumentError) as caught:
        ArgumentCheck(schema).check(dict.fromkeys("abcdef", "v" * 500))
    assert str(caught.value).count("is not of type") == 6
    assert len(str(caught.value)) < 1000
    many = {f"name {number}": "v" * 500 for number in range(1000)}
    with pytest.raises(ArgumentError) as caught:
        ArgumentCheck(schema).check(many)
    assert str(caught.value).endswith("…")
    assert len(str(caught.value)) < 3000


def test_arguments_too_deep_for_json_are_refused():
    deep = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ArgumentError, match="nested too deeply"):
        ArgumentCheck({}).check(deep)


# --- what nests ---


@pytest.mark.parametrize("where", ["structured", "meta"])
@pytest.mark.parametrize("padding", [0, 300_000])
async def test_an_answer_that_nests_too_deep_is_refused_and_nobody_else_is_the_worse_for_it(where, padding):
    async with Fleet([faulty("deep")]) as fleet:
        pid = await value(fleet, "faulty", "pid")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call_tool, fleet, "faulty", "sleep", {"seconds": 1})
            for outer, inner in ((150, 150), (880, 110), (900, 90), (3, 900)):
                arguments = {"outer": outer, "padding": padding, "inner": inner, "where": where}
                error = await failure(fleet, "faulty", "deep", arguments)
                assert (error.code, error.details["limit"]) == ("result_too_large", "200 levels of nesting"), error
        # One that is just not too deep is converted, and can be written.
        found = await call_tool(fleet, "faulty", "deep", arguments | {"outer": 150, "inner": 40})
        assert json.dumps(convert(found))
        assert await value(fleet, "faulty", "pid") == pid


async def test_what_nests_too_deep_and_answers_nothing_is_passed_over():
    async with Fleet([faulty("deep")]) as fleet:
        pid = await value(fleet, "faulty", "pid")
        assert await value(fleet, "faulty", "bare") == "called bare"
        assert await value(fleet, "faulty", "pid") == pid
