"""What a call's progress tells: everything that was reported, in order, and the last of it when the call ends."""

from types import SimpleNamespace

import anyio
import anyio.lowlevel
import pytest

from mcp_bridge.server.progress import MAX_LISTED, ProgressReporter

pytestmark = pytest.mark.timeout(30)


class Client:
    """Takes notifications, each after the others have had their turn."""

    def __init__(self):
        self.told = []
        self.values = []
        self.ctx = SimpleNamespace(session=self)

    async def report_progress(self, value, _total, message):
        for _ in range(4):
            await anyio.lowlevel.checkpoint()
        self.values.append(value)
        self.told.append(message)


async def told(work):
    client = Client()
    reporter = ProgressReporter(client)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reporter.report)
        await work(reporter)
        await reporter.finish()
        tasks.cancel_scope.cancel()
    assert all(before < after for before, after in zip(client.values, client.values[1:], strict=False))
    return client.told


async def test_messages_of_servers_and_of_the_script_do_not_replace_each_other():
    async def work(reporter):
        reporter.notify("one")
        reporter.notify("two")
        reporter.progress(1, 2, "mine")
        reporter.notify("three")

    assert await told(work) == ["one", "two", "three", "mine"]


async def test_what_comes_while_another_is_sent_is_not_kept_for_the_next_sign_of_life():
    async def work(reporter):
        for number in range(5):
            reporter.notify(str(number))
            await anyio.lowlevel.checkpoint()

    assert await told(work) == ["0", "1", "2", "3", "4"]


async def test_what_comes_while_the_last_is_sent_is_told_although_the_call_ends():
    async def work(reporter):
        reporter.progress(1, 2, "one")
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        reporter.notify("a server's")
        reporter.progress(2, 2, "two")

    assert await told(work) == ["one", "a server's", "two"]


async def test_of_more_than_the_client_takes_the_last_is_told():
    async def work(reporter):
        for number in range(1000):
            reporter.notify(str(number))

    assert await told(work) == [str(number) for number in range(1000 - MAX_LISTED, 1000)]


async def test_a_call_that_reports_nothing_ends_without_a_message():
    async def work(reporter):
        reporter.printed("stdout", "is in the answer")

    assert await told(work) == []
