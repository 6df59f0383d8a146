"""A bridge for all tests of a module, with a well-behaved script in it that must not notice what the others do.

A test that opens a bridge of its own may not be in the same module: at its end it would find this one's container.
"""

import contextlib
import json
import logging
from dataclasses import dataclass

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from execution_fixtures import Peak, Ticker, until
from servers.specs import faulty

from mcp_bridge.executions.record import ExecutionRecord

VICTIM = """
import asyncio
from mcp.servers import faulty
for number in range(400):
    assert await faulty.echo(str(number)) == str(number)
    progress(number)
    await asyncio.sleep(0.05)
"""

VICTIM_SECONDS = 100.0
"""For a victim's turns, most of which are waiting."""

ATTACK_SECONDS = 150.0
"""For one attack and what surrounds it, on a slow machine."""


@dataclass(frozen=True)
class Attack:
    """How an attack has ended.

    Attributes:
        growth: By how many bytes this process grew meanwhile, at its highest.
        longest: For how many seconds of its thread the event loop worked at one thing.
    """

    record: ExecutionRecord
    growth: int
    longest: float


class Victims:
    """A well-behaved script that is run again and again, and tells each of its turns as progress."""

    def __init__(self, bridge, code):
        self._bridge, self._code = bridge, code
        self._turns = 0
        self.harmed = None
        """How one has ended that should not have."""
        self.over = False
        """Set when the one that runs is to be the last."""

    async def live(self):
        while not self.over and self.harmed is None:
            record = await self._bridge.run(self._code, timeout=VICTIM_SECONDS, progress=self._turn)
            if record.status != "success":
                self.harmed = record.status, record.error, record.stderr[-2000:]

    def _turn(self, *_):
        self._turns += 1

    async def go_on(self):
        """Wait for two more turns. The test fails if one has ended as it should not."""
        before = self._turns
        await until(lambda: self.harmed or self._turns > before + 1)
        assert self.harmed is None, self.harmed


class Arena:
    """The bridge, in an event loop of its own: it goes on between tests, too."""

    def __init__(self, portal, bridge, engine):
        self._portal, self._bridge, self.engine = portal, bridge, engine
        self.victims = Victims(bridge, VICTIM)

    def attacked(self, code, *, timeout=5, language="python"):
        """The record of hostile code; the victim was at work before it, and is after it."""
        return self.measured(code, timeout=timeout, language=language).record

    def measured(self, code, *, timeout=5, language="python"):
        """The same, with what it took of this process."""
        return self._portal.call(self._attacked, code, timeout, language)

    async def _attacked(self, code, seconds, language):
        with anyio.fail_after(ATTACK_SECONDS):
            await self.victims.go_on()
            peak, ticker = Peak(), Ticker()
            async with ticker.watch():
                record = await self._bridge.run(code, timeout=seconds, language=language)
            await self.victims.go_on()
        # Whatever the guest claimed, it can be written down.
        json.dumps(record.to_json(), allow_nan=False).encode()
        return Attack(record, peak.growth, ticker.longest)


@contextlib.asynccontextmanager
async def _opened(sandboxes, portal):
    async with (
        sandboxes.open(faulty(), bounded=False) as bridge,
        anyio.create_task_group() as tasks,
    ):
        arena = Arena(portal, bridge, sandboxes.prepared.report.choice.engine)
        tasks.start_soon(arena.victims.live)
        yield arena
        tasks.cancel_scope.cancel()


@pytest.fixture(scope="module")
def arena(module_sandboxes):
    """An `Arena`."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_opened(module_sandboxes, portal)) as arena,
    ):
        yield arena


@pytest.fixture
def no_internal_errors(caplog):
    """Nothing that comes from a sandbox may be an internal error of the host."""
    yield
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR] == []
