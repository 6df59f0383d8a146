"""The warm pool's size and its containers' way through it, with containers that do what a test has them do."""

import errno
import os
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteReceiveStream, ByteSendStream
from execution_fixtures import until

from mcp_bridge.errors import BridgeError
from mcp_bridge.host import warm_pool
from mcp_bridge.host.warm_pool import PoolSize, WarmPool
from mcp_bridge.sandbox.engine import ExitStatus
from mcp_bridge.sandbox.pipes import PipeWriter
from mcp_bridge.wire import jsonrpc, messages

READY = jsonrpc.encode(messages.notification(messages.GuestReady("3.11.0")))


class Input(ByteSendStream):
    def __init__(self):
        self.received = b""

    async def send(self, item):
        await anyio.lowlevel.checkpoint()
        self.received += item

    async def aclose(self):
        pass


class Output(ByteReceiveStream):
    """What the guest sends; empty bytes are the end."""

    def __init__(self):
        self.send, self._receive = anyio.create_memory_object_stream(100)

    async def receive(self, max_bytes=65536):
        data = await self._receive.receive()
        if not data:
            raise anyio.EndOfStream
        return data

    async def aclose(self):
        self.send.close()
        self._receive.close()


class Container:
    """A container whose guest says what a test has it say."""

    def __init__(self):
        self.stdin, self.stdout = Input(), Output()
        self.is_gone = self.is_closed = False

    def say(self, data):
        self.stdout.send.send_nowait(data)

    async def wait(self):
        return ExitStatus(137)

    def has_ended(self):
        return self.is_gone

    async def aclose(self):
        self.is_closed = True
        await self.stdout.aclose()


class Engine:
    """Starts such containers, and says that they are ready at once unless it is told otherwise."""

    def __init__(self, says=READY):
        self.says = says
        self.containers, self.hash_seeds = [], []
        self.error = None

    async def start(self, hash_seed):
        await anyio.lowlevel.checkpoint()
        self.hash_seeds.append(hash_seed)
        if self.error is not None:
            raise self.error
        self.containers.append(container := Container())
        if self.says is not None:
            container.say(self.says)
        return container

    @property
    def open(self):
        return [container for container in self.containers if not container.is_closed]


@asynccontextmanager
async def running(engine, floor=1, ceiling=1, has_memory=lambda: True):
    pool = WarmPool(engine.start, b"modules", PoolSize(floor, ceiling), 5.0, has_memory)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.run)
            yield pool
            pool.close()
    assert all(container.is_closed for container in engine.containers)


async def checked_out(pool):
    """A container that nobody else reads from any more, or None."""
    if (taken := await pool.take()) is None:
        return None
    await taken.unwatched.wait()
    return taken.process


async def test_a_container_is_sent_the_modules_waits_and_is_checked_out_once():
    async with running(engine := Engine()) as pool:
        await until(lambda: pool.ready)
        taken = await checked_out(pool)
        assert taken is engine.containers[0]
        assert taken.stdin.received == b"modules"
        await until(lambda: pool.ready)
        again = await checked_out(pool)
        assert again is engine.containers[1]
        assert not taken.is_closed
        await taken.aclose()
        await again.aclose()
    assert (pool.figures.hits, pool.figures.misses, len(pool.figures.ages)) == (2, 0, 2)


async def test_a_container_is_taken_by_its_hash_seed_where_it_waits():
    async with running(engine := Engine(), floor=3, ceiling=3) as pool:
        await until(lambda: pool.ready == 3)
        first, second, third = engine.hash_seeds
        assert pool.hash_seed == third
        assert await pool.take(second ^ 1) is None
        taken = await pool.take(second)
        assert taken.process is engine.containers[1]
        assert await pool.take(second) is None
        engine.containers[0].is_gone = True
        assert await pool.take(first) is None
        await taken.process.aclose()
    assert (pool.figures.hits, pool.figures.misses) == (1, 0)


async def test_an_execution_wakes_one_container_once_that_may_be_checked_out_or_not():
    engine, pipes = Engine(says=None), []
    start = engine.start

    async def with_a_pipe(hash_seed):
        container = await start(hash_seed)
        reading, writing = os.pipe()
        container.stdin = PipeWriter(writing)
        pipes.append(reading)
        container.say(READY)
        return container

    def said(number):
        return os.read(pipes[number], 1000).removeprefix(b"modules")

    engine.start = with_a_pipe
    beat = jsonrpc.encode(messages.notification(messages.HostBeat()))
    async with running(engine, floor=2, ceiling=2) as pool:
        await until(lambda: pool.ready == 2)
        with pool.execution(is_pooled=False):
            pass
        with pool.execution():
            assert said(0) == beat
        with pool.execution():
            assert said(1) == beat
            first = await checked_out(pool)
        assert first is engine.containers[0]
        with pool.execution():
            second = await checked_out(pool)
        for container, reading in zip((first, second), pipes[:2], strict=True):
            await container.stdin.aclose()
            assert os.read(reading, 1000) == b"", "a container that was woken is not woken again"
            await container.aclose()
    for container, reading in zip(engine.containers, pipes, strict=True):
        await container.stdin.aclose()
        os.close(reading)


async def test_a_container_that_has_just_ended_is_woken_in_vain():
    engine = Engine()
    async with running(engine) as pool:
        await until(lambda: pool.ready)
        reading, writing = os.pipe()
        os.close(reading)
        engine.containers[0].stdin = PipeWriter(writing)
        with pool.execution():
            taken = await checked_out(pool)
        await taken.stdin.aclose()
        await taken.aclose()


async def test_refilling_begins_when_the_last_answer_is_on_its_way(monkeypatch):
    monkeypatch.setattr(warm_pool, "PACE_SECONDS", 20.0)
    monkeypatch.setattr(warm_pool, "ANSWER_SECONDS", 20.0)
    async with running(engine := Engine()) as pool:
        await until(lambda: pool.ready)
        with pool.execution():
            taken = await checked_out(pool)
        await anyio.wait_all_tasks_blocked()
        assert len(engine.containers) == 1
        await taken.aclose()


async def test_nobody_else_reads_a_container_that_is_checked_out():
    async with running(Engine()) as pool:
        await until(lambda: pool.ready)
        taken = await checked_out(pool)
        taken.say(b"frame")
        assert await taken.stdout.receive() == b"frame"
        await taken.aclose()


async def test_of_several_takers_each_gets_another_container_or_none():
    async with running(engine := Engine(), floor=2) as pool:
        await until(lambda: pool.ready == 2)
        found = []

        async def take():
            found.append(await checked_out(pool))

        async with anyio.create_task_group() as takers:
            for _ in range(10):
                takers.start_soon(take)
        taken = [container for container in found if container is not None]
        assert len(found) == 10
        assert len(set(map(id, taken))) == len(taken) >= 2
        assert pool.figures.misses == 10 - len(taken)
        assert pool.figures.hits + pool.figures.waits == len(taken)
        for container in taken:
            await container.aclose()
    assert set(map(id, taken)) <= set(map(id, engine.containers))


async def test_a_taker_waits_for_a_container_that_is_being_started_and_the_next_goes_without():
    async with running(engine := Engine(says=None)) as pool:
        await until(lambda: engine.containers)
        async with anyio.create_task_group() as takers:
            found = []

            async def take():
                found.append(await checked_out(pool))

            takers.start_soon(take)
            await until(lambda: pool._takers)
            assert await checked_out(pool) is None
            engine.containers[0].say(READY)
        assert found == [engine.containers[0]]
        assert (pool.figures.waits, pool.figures.misses) == (1, 1)
        await found[0].aclose()


async def test_a_taker_that_waits_is_told_when_the_start_fails():
    async with running(engine := Engine(says=None)) as pool:
        await until(lambda: engine.containers)
        async with anyio.create_task_group() as takers:
            found = []

            async def take():
                found.append(await checked_out(pool))

            takers.start_soon(take)
            await until(lambda: pool._takers)
            engine.error = BridgeError("sandbox_start_failed", "no room")
            engine.containers[0].say(b"")
        assert found == [None]


async def test_a_taker_that_is_cancelled_takes_no_container_with_it():
    async with running(engine := Engine(says=None)) as pool:
        await until(lambda: engine.containers)
        async with anyio.create_task_group() as takers:
            takers.start_soon(pool.take)
            await until(lambda: pool._takers)
            # At the same moment: the container is ready, and nobody wants it any more.
            engine.containers[0].say(READY)
            takers.cancel_scope.cancel()
        await until(lambda: pool.ready)
        taken = await checked_out(pool)
        assert taken is engine.containers[0]
        await taken.aclose()


@pytest.mark.parametrize(
    "said", [b"", b"anything\n", READY, b"half"], ids=["its end", "a line", "ready again", "part of a line"]
)
async def test_a_waiting_container_that_says_anything_is_replaced(said):
    async with running(engine := Engine()) as pool:
        await until(lambda: pool.ready)
        engine.containers[0].say(said)
        await until(lambda: engine.containers[0].is_closed)
        await until(lambda: pool.ready)
        taken = await checked_out(pool)
        assert taken is engine.containers[1]
        assert pool.figures.lost == 1
        await taken.aclose()


@pytest.mark.parametrize("said", [READY + READY, READY + b"{", b"{}\n", jsonrpc.encode(jsonrpc.Response(1, {}))])
async def test_a_container_that_begins_with_anything_but_ready_never_waits(said):
    async with running(engine := Engine(says=said)) as pool:
        await until(lambda: engine.containers and engine.containers[0].is_closed)
        engine.says = READY
        await until(lambda: pool.ready)
        taken = await checked_out(pool)
        assert taken not in {container for container in engine.containers if container.is_closed}
        await taken.aclose()


async def test_a_container_that_has_ended_unnoticed_is_not_checked_out():
    async with running(engine := Engine(), floor=2) as pool:
        await until(lambda: pool.ready == 2)
        engine.containers[0].is_gone = True
        taken = await checked_out(pool)
        assert taken is engine.containers[1]
        await until(lambda: engine.containers[0].is_closed)
        assert pool.figures.lost == 1
        await taken.aclose()


async def test_a_pool_grows_when_nothing_is_ready_and_shrinks_when_something_always_is(monkeypatch):
    monkeypatch.setattr(warm_pool, "IDLE_SECONDS", 0.02)
    async with running(engine := Engine(), ceiling=3) as pool:
        await until(lambda: pool.ready)
        taken = [await checked_out(pool) for _ in range(6)]
        assert pool.target > 1
        await until(lambda: pool.target == 1 and len(engine.open) == 1 + len([one for one in taken if one]))
        assert pool.ready == 1
        assert pool.figures.retired > 0
        for container in filter(None, taken):
            await container.aclose()


async def test_a_pool_grows_beyond_its_floor_only_with_memory_and_never_beyond_its_ceiling():
    for has_memory, most in ((lambda: False, 2), (lambda: True, 4)):
        async with running(engine := Engine(), floor=2, ceiling=4, has_memory=has_memory) as pool:
            for _ in range(10):
                if (taken := await checked_out(pool)) is not None:
                    await taken.aclose()
            await until(lambda pool=pool, most=most: pool.ready == most)
            await anyio.wait_all_tasks_blocked()
            assert len(engine.open) == most


async def test_an_engine_that_fails_is_not_asked_for_ever(monkeypatch):
    monkeypatch.setattr(warm_pool, "RETRY_SECONDS", 0.0001)
    engine = Engine()
    engine.error = BridgeError("sandbox_start_failed", "no room")
    async with running(engine) as pool:
        await until(lambda: pool.figures.lost == warm_pool.MAX_FAILURES + 1)
        await anyio.sleep(0.05)
        assert pool.figures.lost == warm_pool.MAX_FAILURES + 1
        engine.error = None
        # An execution that asks is a reason to try again.
        assert await checked_out(pool) is None
        await until(lambda: pool.ready)


async def test_all_starts_that_were_put_off_are_tried_again(monkeypatch):
    monkeypatch.setattr(warm_pool, "RETRY_SECONDS", 0.0001)
    engine = Engine()
    engine.error = BridgeError("sandbox_start_failed", "no room")
    async with running(engine, floor=2, ceiling=2) as pool:
        # The two that are started at a time fail at a time.
        await until(lambda: pool._pausing == 2 and pool.figures.lost > warm_pool.MAX_FAILURES)
        engine.error = None
        assert await checked_out(pool) is None
        await until(lambda: pool.ready == 2)


async def test_a_start_without_descriptors_ends_nothing_else():
    engine = Engine()
    engine.error = OSError(errno.EMFILE, "Too many open files")
    async with running(engine) as pool:
        await until(lambda: pool.figures.lost)
        engine.error = None
        await until(lambda: pool.ready)


async def test_refilling_waits_for_the_executions_under_way(monkeypatch):
    monkeypatch.setattr(warm_pool, "PACE_SECONDS", 20.0)
    async with running(engine := Engine()) as pool:
        await until(lambda: pool.ready)
        with pool.execution():
            taken = await checked_out(pool)
            await anyio.wait_all_tasks_blocked()
            assert len(engine.containers) == 1
        await until(lambda: pool.ready)
        await taken.aclose()


async def test_a_container_is_replaced_when_it_has_waited_for_long(monkeypatch):
    monkeypatch.setattr(warm_pool, "MAX_WAITING_SECONDS", 0.05)
    async with running(engine := Engine()) as pool:
        await until(lambda: len(engine.containers) > 2)
        assert engine.containers[0].is_closed
        assert pool.figures.retired >= 2
        assert pool.figures.lost == 0


async def test_a_pool_that_is_closed_gives_nothing_and_leaves_nothing():
    async with running(engine := Engine(), floor=2) as pool:
        await until(lambda: pool.ready == 2)
        pool.close()
        await until(lambda: not engine.open)
        assert await checked_out(pool) is None
