"""Calls of registered tools: where they run, how they end, what they print."""

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from registered_fixtures import fault, one, own_declarations, registry  # noqa: F401

import mcp_bridge
from mcp_bridge import offload
from mcp_bridge.errors import BridgeError
from mcp_bridge.registered import calling, threads

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("own_declarations")]

HERE = Path(__file__).parents[1] / "support"


# Calling.


async def test_tools_are_found_by_name_and_alias_and_a_wrong_name_gets_the_nearest():
    @mcp_bridge.tool(name="capture-payment")
    def f():
        return 1

    found = registry()
    assert (await found.call("capture-payment")).value == (await found.call("capture_payment")).value == 1
    error = await fault(found, "capture_paymnt")
    assert error.code == "unknown_tool"
    assert "capture_payment" in error.hint


async def test_a_synchronous_tool_runs_in_a_daemon_thread_and_an_async_one_on_the_loop():
    @mcp_bridge.tool
    def in_thread():
        return [threading.current_thread() is threading.main_thread(), threading.current_thread().daemon]

    @mcp_bridge.tool
    async def on_loop():
        return threading.current_thread() is threading.main_thread()

    @mcp_bridge.tool(thread=False)
    def inline():
        return threading.current_thread() is threading.main_thread()

    found = registry()
    assert (await found.call("in_thread")).value == [False, True]
    assert (await found.call("on_loop")).value is True
    assert (await found.call("inline")).value is True


async def test_idle_threads_are_used_again():
    @mcp_bridge.tool
    def f():
        return threading.get_ident()

    found = one(f)
    assert len({(await found.call("f")).value for _ in range(20)}) == 1


class OddError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


RAISED = [
    (ValueError("no such order"), "ValueError: no such order"),
    (KeyError("a"), "KeyError: 'a'"),
    (ValueError(), "ValueError"),
    (OddError(), "OddError"),
    (StopIteration(3), "StopIteration: 3"),
    (SystemExit(2), "SystemExit: 2"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (asyncio.CancelledError(), "CancelledError"),
    (GeneratorExit(), "GeneratorExit"),
    (BridgeError("unknown_tool", "mine"), "BridgeError: mine"),
    (ValueError("\ud800"), "ValueError: ?"),
    (ValueError("x" * 5000), f"ValueError: {'x' * 2000}…"),
]


@pytest.mark.parametrize("kind", ["async", "thread", "inline"])
@pytest.mark.parametrize(
    ("exception", "says"), RAISED, ids=lambda value: str(value)[:20] if isinstance(value, str) else ""
)
async def test_what_a_tool_raises_is_its_error_and_ends_nothing_else(kind, exception, says):
    if kind == "async":

        @mcp_bridge.tool
        async def f(*, fail: bool):
            if fail:
                raise exception
            return "fine"

    else:

        @mcp_bridge.tool(thread=kind == "thread")
        def f(*, fail: bool):
            if fail:
                raise exception
            return "fine"

    found = one(f)
    error = await fault(found, "f", {"fail": True})
    assert error.code == "tool_error"
    expected = "RuntimeError: coroutine raised StopIteration" if kind == "async" and "Stop" in says else says
    assert error.message == f"local.f: {expected}"
    assert (await found.call("f", {"fail": False})).value == "fine"


async def test_the_debug_log_says_where_a_tool_failed_and_nothing_of_what_it_said(caplog):
    @mcp_bridge.tool
    async def f():
        try:
            raise KeyError("hunter2")
        except KeyError as error:
            raise ValueError("hunter2") from error

    with caplog.at_level(logging.DEBUG, logger="mcp_bridge"):
        error = await fault(one(f), "f")
    assert "traceback" not in json.dumps(error.record()).lower()
    assert f'File "{__file__}"' in caplog.text
    assert "calling.py" not in caplog.text.replace("calling.py:", "")
    assert "local.f raised ValueError" in caplog.text
    assert "KeyError:\n" in caplog.text
    assert not [line for line in caplog.text.splitlines() if "hunter2" in line and "raise" not in line]


async def test_a_synchronous_function_that_returns_a_coroutine_says_so():
    async def inner(): ...

    @mcp_bridge.tool
    def f():
        return inner()

    error = await fault(one(f), "f")
    assert error.code == "bad_tool_result"
    assert "declare the function itself async" in error.message


async def test_an_async_tool_that_hangs_is_cancelled_when_its_time_is_over():
    ended = []

    @mcp_bridge.tool(timeout=0.05)
    async def f():
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    error = await fault(one(f), "f")
    assert error.code == "tool_timeout"
    assert error.details["still_running"] is False
    assert error.details["timeout"] == 0.05
    assert ended == [True]


async def test_a_caller_can_shorten_the_time_but_not_lengthen_it():
    @mcp_bridge.tool(timeout=0.05)
    async def short():
        await anyio.sleep_forever()

    @mcp_bridge.tool(timeout=1000)
    async def long():
        await anyio.sleep_forever()

    found = registry()
    assert (await fault(found, "short", timeout=1000)).details["timeout"] == 0.05
    assert (await fault(found, "long", timeout=0.05)).details["timeout"] == 0.05


async def test_an_answer_given_while_cleaning_up_counts():
    @mcp_bridge.tool(timeout=0.05)
    async def f():
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            return "captured after all"

    assert (await one(f).call("f")).value == "captured after all"


async def test_what_an_async_tool_has_answered_in_time_waits_for_its_turn_beyond_it():
    @mcp_bridge.tool(timeout=0.05)
    async def f():
        return ["x"] * (offload.LARGE_VALUES + 1)

    begun, goes_on = threading.Event(), threading.Event()

    def elses():
        begun.set()
        goes_on.wait()

    async with anyio.create_task_group() as tasks:
        # Somebody else's large work is on the thread that the answer needs.
        tasks.start_soon(offload.on_thread, elses)
        await anyio.to_thread.run_sync(begun.wait)

        asyncio.get_running_loop().call_later(0.3, goes_on.set)
        try:
            assert len((await one(f).call("f")).value) == offload.LARGE_VALUES + 1
        finally:
            goes_on.set()


async def test_cancelling_the_caller_cancels_the_tool_and_waits_for_its_clean_up():
    running, ended = anyio.Event(), []

    @mcp_bridge.tool
    async def f():
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one(f).call, "f")
        await running.wait()
        tasks.cancel_scope.cancel()
    assert ended == [True]


def stubborn(until):
    async def f():
        while not until.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await until.wait()

    return f


async def test_an_async_tool_that_refuses_to_be_cancelled_is_left_behind(monkeypatch):
    monkeypatch.setattr(calling, "_CLEAN_UP", 0.05)
    release = asyncio.Event()
    found = one(mcp_bridge.tool(timeout=0.05)(stubborn(release)))
    error = await fault(found, "f")
    assert error.code == "tool_timeout"
    assert error.details["still_running"] is True
    assert found.tools["f"].abandoned == 1
    release.set()
    while found.tools["f"].abandoned:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (await found.call("f")).value is None


HANGS_FOR_EVER = """
import asyncio, sys, threading
import mcp_bridge
from mcp_bridge.errors import BridgeError
from mcp_bridge.registered import calling, threads
from mcp_bridge.registered.registry import Registry

calling._CLEAN_UP = 0.05

@mcp_bridge.tool(timeout=0.1)
def in_thread():
    threading.Event().wait()

@mcp_bridge.tool(timeout=0.1)
async def in_task():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def main():
    found = Registry(__mcp_bridge_tools__)
    for name in found.tools:
        try:
            await found.call(name)
        except BridgeError as error:
            print(error.code, error.details["still_running"])

asyncio.run(main())
"""


def test_tools_that_never_end_do_not_keep_the_host_from_ending():
    env = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, "-c", HANGS_FOR_EVER]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=30)
    assert ran.stdout.splitlines() == ["tool_timeout True"] * 2


async def test_a_synchronous_tool_that_hangs_is_refused_after_four_until_one_ends():
    release = threading.Semaphore(0)

    @mcp_bridge.tool(timeout=0.05)
    def f(*, hang: bool = True):
        if hang:
            release.acquire()
        return "done"

    @mcp_bridge.tool
    def other():
        return "fine"

    found = registry()
    try:
        for _ in range(calling.MAX_ABANDONED):
            error = await fault(found, "f")
            assert (error.code, error.details["still_running"]) == ("tool_timeout", True)
        error = await fault(found, "f", {"hang": False})
        assert error.code == "tool_unavailable"
        assert (await found.call("other")).value == "fine"
        release.release()
        while found.tools["f"].abandoned == calling.MAX_ABANDONED:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await found.call("f", {"hang": False})).value == "done"
    finally:
        release.release(calling.MAX_ABANDONED)


async def test_a_call_that_waits_for_a_thread_is_not_started_once_its_time_is_over():
    release, ran = threading.Event(), []

    @mcp_bridge.tool
    def busy():
        release.wait()
        return "done"

    @mcp_bridge.tool(timeout=0.05)
    def quick():
        ran.append(1)

    found = registry(max_threads=1)
    async with anyio.create_task_group() as tasks:

        async def call_busy():
            assert (await found.call("busy")).value == "done"

        tasks.start_soon(call_busy)
        await asyncio.sleep(0)
        error = await fault(found, "quick")
        release.set()
    assert error.code == "tool_busy"
    assert not ran
    assert (await found.call("quick")).value is None


async def test_waiting_calls_are_refused_when_the_tool_has_got_stuck_meanwhile(monkeypatch):
    monkeypatch.setattr(calling, "MAX_ABANDONED", 1)
    release, ran = threading.Event(), []

    @mcp_bridge.tool(timeout=30)
    def f():
        ran.append(1)
        release.wait()

    found = one(f, max_threads=1)
    codes = []

    async def call(timeout):  # noqa: ASYNC109
        codes.append((await fault(found, "f", timeout=timeout)).code)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, 0.05)
            tasks.start_soon(call, 20)
    finally:
        release.set()
    assert codes == ["tool_timeout", "tool_unavailable"]
    assert ran == [1]


async def test_cancelling_the_caller_of_a_thread_returns_at_once_and_counts_it():
    release, running = threading.Event(), threading.Event()

    @mcp_bridge.tool
    def f():
        running.set()
        release.wait()

    found = one(f)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.call, "f")
            await anyio.to_thread.run_sync(running.wait)
            tasks.cancel_scope.cancel()
        assert found.tools["f"].abandoned == 1
    finally:
        release.set()


async def test_many_calls_at_once_each_get_their_own_answer():
    @mcp_bridge.tool
    def in_thread(x: int):
        return x

    @mcp_bridge.tool
    async def on_loop(x: int):
        await asyncio.sleep(0)
        return x

    found = registry(max_threads=4)

    async def call(name, x):
        return (await found.call(name, {"x": x})).value

    for name in found.tools:
        assert await asyncio.gather(*(call(name, x) for x in range(300))) == list(range(300))


async def test_one_tool_that_waits_does_not_hold_up_another():
    release = asyncio.Event()

    @mcp_bridge.tool
    async def waits():
        await release.wait()
        return "late"

    @mcp_bridge.tool
    async def frees():
        release.set()

    found = registry()
    late, _ = await asyncio.gather(found.call("waits"), found.call("frees"))
    assert late.value == "late"


async def test_a_thread_without_work_ends_and_the_next_call_gets_another(monkeypatch):
    monkeypatch.setattr(threads, "_IDLE", 0.01)
    used = []

    @mcp_bridge.tool
    def f():
        used.append(threading.current_thread())

    found = one(f)
    await found.call("f")
    await anyio.to_thread.run_sync(used[0].join)
    await found.call("f")
    assert used[0] is not used[1]


async def test_a_system_that_gives_no_thread_is_as_good_as_busy(monkeypatch):
    def start(_thread):
        raise RuntimeError("can't start new thread")

    @mcp_bridge.tool(timeout=0.05)
    def f(): ...

    found = one(f)
    with monkeypatch.context() as patch:
        patch.setattr(threads._Worker, "start", start)
        assert (await fault(found, "f")).code == "tool_busy"
    assert (await found.call("f")).value is None


def test_a_registry_serves_one_event_loop_after_another():
    @mcp_bridge.tool
    def in_thread(x: int):
        return x

    found = one(in_thread)
    assert [asyncio.run(found.call("in_thread", {"x": x})).value for x in range(3)] == [0, 1, 2]


# Printing.


async def test_what_tools_print_goes_to_standard_error_and_the_hosts_own_output_does_not(capsys):
    @mcp_bridge.tool
    def in_thread():
        print("from a thread")
        sys.stdout.write("written\n")

    @mcp_bridge.tool
    async def on_loop():
        print("from the loop")
        await asyncio.create_task(asyncio.to_thread(print, "from its own thread"))

    @mcp_bridge.tool(thread=False)
    def inline():
        print("from inline", flush=True)

    @mcp_bridge.tool
    async def fails():
        print("before it failed")
        raise ValueError

    found = registry()
    for name in ("in_thread", "on_loop", "inline"):
        await found.call(name)
        print("the host's")
    await fault(found, "fails")
    print("the end")
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["the host's"] * 3 + ["the end"]
    assert captured.err.splitlines() == [
        "from a thread",
        "written",
        "from the loop",
        "from its own thread",
        "from inline",
        "before it failed",
    ]


async def test_the_hosts_output_is_its_own_while_a_tool_is_waiting(capsys):
    waiting, release = asyncio.Event(), asyncio.Event()

    @mcp_bridge.tool
    async def f():
        print("tool")
        waiting.set()
        await release.wait()
        print("tool")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one(f).call, "f")
        await waiting.wait()
        print("host")
        release.set()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("host\n", "tool\ntool\n")
