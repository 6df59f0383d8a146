"""How containers are removed after their executions, with containers that do what a test has them do."""

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteSendStream

from mcp_bridge.errors import BridgeError
from mcp_bridge.host import container_removals
from mcp_bridge.host.container_removals import Removals
from mcp_bridge.sandbox.engine import ExitStatus


class Input(ByteSendStream):
    def __init__(self, container):
        self._container = container

    async def send(self, item):
        await anyio.lowlevel.checkpoint()
        if self._container.has_gone:
            raise anyio.BrokenResourceError
        self._container.heard += item
        self._container.told.set()

    async def aclose(self):
        pass


class Container:
    """A container whose guest leaves when it is told to, unless a test has it do something else."""

    def __init__(self, *, leaves=True, has_gone=False, failure=None):
        self.stdin, self.heard, self.told, self.closed = Input(self), b"", anyio.Event(), anyio.Event()
        self.leaves, self.has_gone, self.failure = leaves, has_gone, failure
        self.has_left = False

    async def wait(self):
        if self.failure is not None:
            raise self.failure
        if not self.has_gone:
            await self.told.wait()
            if not self.leaves:
                await anyio.sleep_forever()
        self.has_left = True
        return ExitStatus(0)

    async def aclose(self):
        await anyio.lowlevel.checkpoint()
        self.closed.set()


async def removed(container, remove):
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            under_way = Removals(tasks, 2)
            remove(under_way)
            assert under_way.under_way == 1
            await container.closed.wait()
    assert under_way.under_way == 0


async def test_a_guest_leaves_when_its_result_is_acknowledged_and_its_container_is_closed_then():
    container = Container()
    await removed(container, lambda removals: removals.leave(container, b"acknowledged\n"))
    assert (container.heard, container.has_left) == (b"acknowledged\n", True)


async def test_a_guest_is_not_dismissed_before_the_answer_is_on_its_way(monkeypatch):
    answered = anyio.Event()

    async def pause(seconds):
        assert seconds == container_removals.PAUSE_SECONDS
        await answered.wait()

    monkeypatch.setattr(container_removals.anyio, "sleep", pause)
    container = Container()
    async with anyio.create_task_group() as tasks:
        Removals(tasks, 1).leave(container, b"acknowledged\n")
        await anyio.wait_all_tasks_blocked()
        assert container.heard == b""
        answered.set()
    assert container.heard == b"acknowledged\n"


LOST = BridgeError("sandbox_start_failed", "The engine has lost it.")


@pytest.mark.parametrize(
    "options",
    [{"leaves": False}, {"has_gone": True}, {"failure": LOST}],
    ids=["stays", "has gone", "is lost by its engine"],
)
async def test_a_container_is_closed_whatever_its_guest_does(options, monkeypatch):
    monkeypatch.setattr(container_removals, "LEAVE_SECONDS", 0.05)
    container = Container(**options)
    await removed(container, lambda removals: removals.leave(container, b"acknowledged\n"))


async def test_a_container_that_is_to_be_ended_is_told_nothing():
    container = Container()
    await removed(container, lambda removals: removals.end(container))
    assert container.heard == b""


async def test_executions_wait_while_too_many_removals_are_under_way():
    container = Container()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            under_way = Removals(tasks, 1)
            under_way.leave(container, b"acknowledged\n")
            await under_way.room()
            assert container.closed.is_set()
