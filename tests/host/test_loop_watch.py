"""The watch over the event loop: it counts what holds the loop, and names it."""

import logging
import threading
import time

import anyio
import anyio.lowlevel
import pytest

from mcp_bridge.host import loop_watch
from mcp_bridge.host.loop_watch import LoopStall, LoopStallMonitor, watched


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def spin_until(condition):
    """Hold the loop until something is so."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        pass


async def test_a_turn_that_holds_the_loop_is_counted_and_named(caplog):
    caplog.set_level(logging.INFO, "mcp_bridge")
    with watched() as watch:
        await anyio.lowlevel.checkpoint()
        # Until the thread has seen it: on a busy machine that may take more than the shortest hold.
        spin_until(lambda: watch._seen is not None and watch._seen[0] == watch._began)
        began = time.monotonic()
        spin_until(lambda: time.monotonic() - began > 0.15)
        await anyio.sleep(0.01)
        assert watch.count >= 1
        assert watch.longest > 0.1
        assert any("spin_until" in cause for cause in watch.causes), watch.causes
    assert any("spin_until" in record.getMessage() for record in caplog.records)


async def test_no_value_is_in_what_is_logged(caplog):
    caplog.set_level(logging.INFO, "mcp_bridge")
    value = "hunter2-hunter2"
    with watched() as watch:
        await anyio.lowlevel.checkpoint()

        def work(argument):
            spin_until(lambda: watch._seen is not None and watch._seen[0] == watch._began and bool(argument))
            began = time.monotonic()
            spin_until(lambda: time.monotonic() - began > 0.15)

        work(value)
        await anyio.sleep(0.01)
    assert watch.count >= 1
    assert not any(value in record.getMessage() for record in caplog.records)


def test_a_cause_is_logged_once_a_minute_and_counted_each_time(caplog):
    caplog.set_level(logging.INFO, "mcp_bridge")
    clock = Clock()
    watch = LoopStallMonitor(clock=clock)
    for _ in range(50):
        watch.begin()
        clock.now += 0.5
        watch.end()
    assert watch.count == 50
    assert watch.causes == {"unseen": 50}
    assert len(caplog.records) == 1
    clock.now += 60
    watch.begin()
    clock.now += 0.5
    watch.end()
    assert len(caplog.records) == 2
    assert watch.summary() == {"holds": 51, "longest_ms": 500, "causes": {"unseen": 51}}


@pytest.mark.parametrize(
    ("holds", "levels"),
    [
        ([0.05], ["INFO"]),  # the machine's fault, or the disk's
        ([0.2], ["INFO"]),  # an import
        ([0.2, 0.2, 0.2], ["INFO", "WARNING"]),
        ([0.05, 0.05], ["INFO"]),
        ([5.0], ["WARNING"]),
    ],
)
def test_what_keeps_the_loop_busy_again_or_for_long_is_warned_of(caplog, holds, levels):
    caplog.set_level(logging.INFO, "mcp_bridge")
    watch = LoopStallMonitor(clock=Clock())
    for busy in holds:
        watch._note(LoopStall(6.0, busy, "somebody"))
    assert [record.levelname for record in caplog.records] == levels
    assert watch.count == len(holds)


def test_a_turn_that_is_short_is_no_hold():
    clock = Clock()
    watch = LoopStallMonitor(clock=clock)
    for _ in range(50):
        watch.begin()
        clock.now += 0.09
        watch.end()
        clock.now += 100  # waiting for events is nobody's fault
    assert watch.count == 0


async def test_while_nothing_happens_neither_the_loop_nor_the_thread_wakes_up():
    looks = 0

    class Counting(LoopStallMonitor):
        def look(self):
            nonlocal looks
            wait = self._alarm.wait

            def counted():
                nonlocal looks
                looks += 1
                wait()

            self._alarm.wait = counted
            super().look()

    before = threading.active_count()
    with watched(Counting()) as watch:
        done = anyio.Event()

        async def sleeps():
            while not looks:  # noqa: ASYNC110 - nothing but time is waited for
                await anyio.sleep(1)
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleeps)
            with anyio.fail_after(60):
                await done.wait()
        assert watch.count == 0 or watch.busiest < 0.1
    with anyio.fail_after(10):
        while threading.active_count() > before:  # noqa: ASYNC110
            await anyio.sleep(0.01)


@pytest.mark.parametrize("has_timer", [True, False])
async def test_a_hold_is_named_although_the_thread_slept(monkeypatch, has_timer):
    if not has_timer:
        monkeypatch.setattr(loop_watch._Alarm, "open", lambda _: None)
    monkeypatch.setattr(loop_watch, "_QUIET_LOOKS", 1)
    slept, wait = [], loop_watch._Alarm.wait
    monkeypatch.setattr(loop_watch._Alarm, "wait", lambda self: slept.append(self) or wait(self))
    with watched() as watch:
        with anyio.fail_after(60):
            while not slept:  # noqa: ASYNC110 - the thread tells nobody
                await anyio.sleep(0.5)
        # A busy machine may have held the loop already, somewhere else.
        spin_until(lambda: watch._seen is not None and watch._seen[0] == watch._began)
        began = time.monotonic()
        spin_until(lambda: time.monotonic() - began > 0.15)
        await anyio.sleep(0.01)
        assert any("spin_until" in cause for cause in watch.causes), watch.causes


async def test_two_watches_of_one_loop_both_see_and_both_can_be_taken_off():
    with watched() as outer:
        with watched() as inner:
            await anyio.lowlevel.checkpoint()
            began = time.monotonic()
            spin_until(lambda: time.monotonic() - began > 0.15)
            await anyio.sleep(0.01)
        assert inner.count >= 1
        count = outer.count
        assert count >= 1
        await anyio.lowlevel.checkpoint()
        began = time.monotonic()
        spin_until(lambda: time.monotonic() - began > 0.15)
        await anyio.sleep(0.01)
        assert outer.count > count
    await anyio.lowlevel.checkpoint()
