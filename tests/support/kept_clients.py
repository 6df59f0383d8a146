"""Clients that are connected once for all tests of a module, each to a bridge that is a process.

What a test does there, it does beside what the others have left: it may count no executions, and ends what it begins.
Tests with such a client share an event loop: `pytest.mark.asyncio(loop_scope="module")`.
"""

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import mcp_types as types
import pytest
import pytest_asyncio
from bridge_fixtures import Setup
from http_bridge import kept_serving
from ledger_looks import verify_ledgers

if TYPE_CHECKING:
    from mcp import Client

SOME_CLIENT = types.Implementation(name="some-client", version="1")


class Connection:
    """A client, and the `Setup` of the bridge that it is connected to."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.client: Client | None = None
        self._over = asyncio.Event()
        self._ready = asyncio.Event()
        self._holding: asyncio.Task | None = None

    async def open(self, connecting) -> None:
        self._holding = asyncio.create_task(self._hold(connecting))
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait([self._holding, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._holding.done():
            self._holding.result()

    async def _hold(self, connecting) -> None:
        # A connection ends in the task that has begun it; each test is one of its own.
        async with connecting as self.client:
            self._ready.set()
            await self._over.wait()

    async def close(self) -> None:
        self._over.set()
        await self._holding


class KeptClients:
    """What `connect` finds, or makes."""

    def __init__(self, configure, stack: ExitStack) -> None:
        self._configure = configure
        self._stack = stack
        self._bridge = None
        self._open: dict[tuple[str, str, str], Connection] = {}

    async def connection(self, transport, mode, client_info) -> Connection:
        key = transport, mode, client_info.name
        if key not in self._open:
            if transport == "http" and self._bridge is None:
                self._bridge = self._stack.enter_context(kept_serving(self._configure()))
            made = Connection(self._bridge.setup if transport == "http" else self._configure())
            reached = self._bridge if transport == "http" else made.setup
            await made.open(reached.client(mode, client_info=client_info))
            self._open[key] = made
        return self._open[key]

    async def close(self) -> None:
        for (transport, *_), one in self._open.items():
            await one.close()
            if transport == "stdio":
                verify_ledgers(one.setup.state_dir)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept_clients(kept_setup):
    """The module's; `kept_setup` is a fixture of its own, which makes the `Setup` of each bridge."""
    with ExitStack() as stack:
        kept = KeptClients(kept_setup, stack)
        yield kept
        await kept.close()


@pytest.fixture
def connect(kept_clients, transport):
    """Gives a client, and the `Setup` of its bridge: `await connect(MODE, client_info=…)`."""

    async def connect(mode="legacy", client_info=SOME_CLIENT):
        found = await kept_clients.connection(transport, mode, client_info)
        return found.client, found.setup

    return connect
