"""The warm pool: containers that are started before there is an execution for them, with the guest loaded.

A container is checked out once and never comes back. Until then the guest has been sent nothing but our own modules,
and perhaps a heartbeat, and has sent nothing but `guest.ready`; a waiting container that says anything else, ends, or
closes its channel is removed and replaced. All containers of a pool are of one image and one set of limits, which is
all that a bridge has.

The pool's size follows the demand between a floor and a ceiling. It grows when an execution finds no container ready,
and shrinks when containers stay unused. Beyond the floor it grows only while the host has memory. A pool at its floor
sleeps: its only timer replaces a container after an hour.

Refilling competes with executions for the processors. So it waits, briefly, until no execution is under way, and until
the answer of the last one is on its way.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.pipes import PipeWriter
from mcp_bridge.wire import jsonrpc, messages
from mcp_bridge.wire.errors import WireError
from mcp_bridge.wire.framing import LineDecoder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.abc import ByteReceiveStream

    from mcp_bridge.sandbox.engine import SandboxProcess

logger = logging.getLogger(__name__)

MAX_WAITING_SECONDS = 3600.0
"""How long a container waits before it is replaced. If the host can't replace it, the guest ends itself later."""

IDLE_SECONDS = 60.0
"""After so long without a use of all its containers, a pool above its floor gives up one."""

PACE_SECONDS = 0.1
"""How long a refill waits, at most, for the executions under way."""

ANSWER_SECONDS = 0.02
"""How long the pool is quiet after an execution before a refill begins: the answer gets the processors first."""

STARTS_AT_ONCE = 2
"""Containers that are started at the same time."""

RETRY_SECONDS = 1.0
"""Pause before a container is started after two failures in a row; doubled for each further one."""

MAX_FAILURES = 6
"""Failures in a row after which nothing is started until an execution asks for a container."""

REPORT_SECONDS = 1.0
"""Pause between two reports of a changing pool."""

EXIT_AFTER_CLOSE_SECONDS = 2.0
"""How long to wait for the engine's report on a container whose channel has closed."""

MAX_AGES = 1000
"""Most ages kept for the figures."""


_WAKE = jsonrpc.encode(messages.notification(messages.HostBeat()))


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The number of containers that wait.

    Attributes:
        floor: Without demand.
        ceiling: The most.
    """

    floor: int
    ceiling: int


@dataclass(slots=True)
class PoolFigures:
    """A pool's figures since it was created.

    Attributes:
        hits: Check-outs of a container that was ready.
        waits: Check-outs of a container that was being started.
        misses: Executions that got none.
        started: Containers started ahead.
        lost: Those of them that ended or failed before their check-out.
        retired: Those that were given up, for their age or because fewer were needed.
        ages: How long the last containers had been ready at their check-out, in seconds.
    """

    hits: int = 0
    waits: int = 0
    misses: int = 0
    started: int = 0
    lost: int = 0
    retired: int = 0
    ages: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_AGES))


HASH_SEED_BITS = 32
"""As many as PYTHONHASHSEED may have."""

EFFECTIVE_BITS = 24
"""Of a seed, the lower bits that make a difference. CPython takes bits 16 to 23 of each state of a linear congruence
modulo 2³² that begins with the seed (`lcg_urandom` in Python/bootstrap_hash.c), and these depend on its lower 24 alone.
Of 2,000 seeds drawn at random, two make the same hashes once in eight times."""

REMEMBERED_SEEDS = 1 << 13

_drawn: dict[int, None] = {}


def new_hash_seed() -> int:
    """A seed for the hashes of texts (PYTHONHASHSEED) that makes others than the last 8,192 drawn by this process."""
    while True:
        seed = secrets.randbits(HASH_SEED_BITS)
        effective = seed % (1 << EFFECTIVE_BITS)
        if effective not in _drawn:
            break
    _drawn[effective] = None
    if len(_drawn) > REMEMBERED_SEEDS:
        del _drawn[next(iter(_drawn))]
    return seed


class CheckedOut(NamedTuple):
    """A container that was waiting, and is its taker's now.

    Attributes:
        process: The container.
        unwatched: Set once the pool reads from it no more. Nobody else may read from it before; to write to it, nobody
            needs to wait.
    """

    process: SandboxProcess
    unwatched: anyio.Event


class _Waiting:
    """A container from its start to its check-out."""

    def __init__(self, process: SandboxProcess, hash_seed: int) -> None:
        self.process = process
        self.hash_seed = hash_seed
        self.scope = anyio.CancelScope()
        self.ready_at: float | None = None
        self.is_awake = False
        """Whether its guest was told that an execution is to be expected."""
        self.is_checked_out = False
        self.is_retired = False
        self.unwatched = anyio.Event()
        """Set when its streams are no longer read."""


class WarmPool:
    """Keeps containers ready.

    Args:
        start: Starts a container whose interpreter has a hash seed; raises BridgeError.
        bundle: The guest's modules, the first bytes that a container is sent.
        size: The number of containers that wait.
        start_seconds: How long a container may take to become ready.
        has_memory: Whether the host has memory for containers above the floor.
        on_change: Called after changes, at most once a second.

    Attributes:
        figures: What it has done.
        ended: Set once it is closed, and no container is left.
    """

    def __init__(
        self,
        start: Callable[[int], Awaitable[SandboxProcess]],
        bundle: bytes,
        size: PoolSize,
        start_seconds: float,
        has_memory: Callable[[], bool],
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._start = start
        self._bundle = bundle
        self._size = size
        self._start_seconds = start_seconds
        self._has_memory = has_memory
        self._on_change = on_change
        self.figures = PoolFigures()
        self.target = size.floor
        """The number of containers that the pool aims for."""
        self._ready: deque[_Waiting] = deque()
        self._starting = 0
        self._pausing = 0
        """Starts that are delayed after a failure."""
        self._failures = 0
        self._takers: deque[anyio.Event] = deque()
        self._executions = 0
        self._least_ready = 0
        """The fewest containers that were ready since the size was last adapted."""
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._asked = anyio.Event()
        self._grown = anyio.Event()
        self._quiet = anyio.Event()
        self._quiet.set()
        self._scope = anyio.CancelScope()
        self.ended = anyio.Event()

    @property
    def ready(self) -> int:
        """The number of containers that are ready."""
        return len(self._ready)

    @property
    def ceiling(self) -> int:
        """The most containers that may wait."""
        return self._size.ceiling

    @property
    def starting(self) -> int:
        """The number of containers that are being started."""
        return self._starting

    async def run(self) -> None:
        """Keep containers ready until `close`, then remove those that wait."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._adapt)
                    if self._on_change is not None:
                        tasks.start_soon(self._report, self._on_change)
                    while True:
                        self._wanted = anyio.Event()
                        while self._is_short() and self._starting < STARTS_AT_ONCE:
                            await self._pace()
                            if self._is_short():
                                self._starting += 1
                                tasks.start_soon(self._keep)
                        await self._wanted.wait()
        finally:
            self.ended.set()

    def close(self) -> None:
        """Start no more, and remove those that wait."""
        self._scope.cancel()

    @property
    def hash_seed(self) -> int | None:
        """The hash seed of a container that is ready, the one that will be taken last; None where there is none."""
        return self._ready[-1].hash_seed if self._ready else None

    async def take(self, hash_seed: int | None = None) -> CheckedOut | None:
        """Check a container out, which the caller then owns; None if none is ready or about to be.

        Args:
            hash_seed: The seed that its interpreter must have. None for any; only then a container that is about to be
                ready is waited for.
        """
        if hash_seed is not None:
            meant = next((waiting for waiting in self._ready if waiting.hash_seed == hash_seed), None)
            if meant is None:
                return None
            self._ready.remove(meant)
            self._ready.appendleft(meant)
        self._failures = 0
        self._asked.set()
        self._changed.set()
        has_waited = False
        while not self._ready:
            # Containers that are being started are promised to earlier callers.
            if self._scope.cancel_called or self._starting <= len(self._takers):
                self.figures.misses += 1
                self._grow()
                return None
            has_waited = True
            await self._one_more()
        waiting = self._ready.popleft()
        if waiting.process.has_ended():
            # Its process or its monitor has ended, and its channel doesn't show it yet.
            waiting.scope.cancel()
            return await self.take(hash_seed)
        waiting.is_checked_out = True
        self._least_ready = min(self._least_ready, len(self._ready))
        if has_waited:
            self.figures.waits += 1
            self._grow()
        else:
            self.figures.hits += 1
        self._wanted.set()
        self.figures.ages.append(time.monotonic() - (waiting.ready_at or 0))
        waiting.scope.cancel()
        return CheckedOut(waiting.process, waiting.unwatched)

    @contextlib.contextmanager
    def execution(self, *, is_pooled: bool = True) -> Iterator[None]:
        """Count an execution under way. Refilling waits for its end, briefly.

        Args:
            is_pooled: Whether it may take a container. The guest of one that is ready is woken then: it prepares itself
                while the execution is recorded.
        """
        if is_pooled:
            self._wake_one()
        self._executions += 1
        if self._quiet.is_set():
            self._quiet = anyio.Event()
        try:
            yield
        finally:
            self._executions -= 1
            if not self._executions:
                self._quiet.set()

    # --- the size ---

    def _is_short(self) -> bool:
        waiting = len(self._ready) + self._starting + self._pausing
        if waiting >= max(self.target, len(self._takers)):
            return False
        # Last: the system takes its time to count its free memory.
        return waiting < max(min(self.target, self._size.floor), len(self._takers)) or self._has_memory()

    def _grow(self) -> None:
        if self.target < self._size.ceiling and self._has_memory():
            self.target += 1
            self._grown.set()
        self._wanted.set()

    async def _adapt(self) -> None:
        """Give up a container after each period in which one was never used."""
        while True:
            if self.target <= self._size.floor:
                self._grown = anyio.Event()
                await self._grown.wait()
            self._least_ready = len(self._ready)
            await anyio.sleep(IDLE_SECONDS)
            if self._least_ready > 0 and self.target > self._size.floor:
                self.target -= 1
                if len(self._ready) > self.target:
                    self._ready.popleft().scope.cancel()

    async def _report(self, on_change: Callable[[], None]) -> None:
        while True:
            await self._changed.wait()
            await anyio.sleep(REPORT_SECONDS)
            self._changed = anyio.Event()
            on_change()

    async def _pace(self) -> None:
        """Wait for the executions under way, unless somebody waits for a container."""
        if not self._takers:
            with anyio.move_on_after(PACE_SECONDS):
                while True:
                    await self._quiet.wait()
                    await anyio.sleep(ANSWER_SECONDS)
                    if self._quiet.is_set():
                        return

    def _wake_one(self) -> None:
        for waiting in self._ready:
            if not waiting.is_awake:
                waiting.is_awake = True
                if isinstance(waiting.process.stdin, PipeWriter):
                    # It is shorter than what a pipe takes whole or not at all.
                    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        waiting.process.stdin.write_now(_WAKE)
                return

    async def _one_more(self) -> None:
        """Wait until a container is ready that isn't promised to an earlier caller, or a start has failed."""
        event = anyio.Event()
        self._takers.append(event)
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self._takers.remove(event)
                self._tell_next()
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._takers.remove(event)

    def _tell_next(self) -> None:
        """Wake as many waiters as there are containers ready."""
        for event, _ in zip(self._takers, self._ready, strict=False):
            event.set()

    # --- one container ---

    async def _keep(self) -> None:
        """Start a container, and watch it until it is checked out, ends, or is given up."""
        waiting: _Waiting | None = None
        failure = ""
        try:
            hash_seed = new_hash_seed()
            process = await self._start(hash_seed)
            self.figures.started += 1
            waiting = _Waiting(process, hash_seed)
            failure = await self._watch(waiting)
        except (BridgeError, OSError) as exc:
            # For example, no descriptors are left. No execution asked for this container, so none may be ended by it.
            failure = str(exc)
        finally:
            if waiting is None or waiting.ready_at is None:
                self._starting -= 1
                # One container fewer will be ready: the last waiter gets none.
                for event in list(self._takers)[max(self._starting, 0) :]:
                    event.set()
            elif waiting in self._ready:
                self._ready.remove(waiting)
            if waiting is not None:
                waiting.unwatched.set()
                if not waiting.is_checked_out:
                    await waiting.process.aclose()
        if waiting is not None and (waiting.is_checked_out or waiting.is_retired):
            self.figures.retired += waiting.is_retired
            self._wanted.set()
            return
        self._changed.set()
        self.figures.lost += 1
        self._failures += 1
        logger.log(
            logging.INFO if self._failures > 1 else logging.WARNING, "a container that was to wait is lost: %s", failure
        )
        await self._put_off()

    async def _put_off(self) -> None:
        """Schedule the next start: at once after one failure, later after several, and only on demand after many."""
        self._pausing += 1
        try:
            if self._failures > MAX_FAILURES:
                # Another start may be waiting already.
                if self._asked.is_set():
                    self._asked = anyio.Event()
                await self._asked.wait()
            elif self._failures > 1:
                await anyio.sleep(RETRY_SECONDS * 2 ** (self._failures - 2))
        finally:
            self._pausing -= 1
            self._wanted.set()

    async def _watch(self, waiting: _Waiting) -> str:
        """Load the guest into a container, and watch it while it waits. Returns why it can't be used."""
        process = waiting.process
        with waiting.scope:
            waiting.scope.deadline = anyio.current_time() + self._start_seconds
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await process.stdin.send(self._bundle)
            if await _is_ready(process.stdout):
                self._is_now_ready(waiting)
                waiting.scope.deadline = anyio.current_time() + MAX_WAITING_SECONDS
                with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    # Until its execution the guest sends nothing: anything that arrives is a fault.
                    await process.stdout.receive()
                with contextlib.suppress(ValueError):
                    self._ready.remove(waiting)
        if waiting.scope.cancelled_caught:
            if waiting.process.has_ended():
                return "its process or its monitor has ended"
            waiting.is_retired = waiting.ready_at is not None and not waiting.is_checked_out
            return "it was not ready in time"
        with anyio.move_on_after(EXIT_AFTER_CLOSE_SECONDS):
            return f"it ended with status {(await process.wait()).code}"
        return "its channel was closed"

    def _is_now_ready(self, waiting: _Waiting) -> None:
        self._changed.set()
        waiting.ready_at = time.monotonic()
        self._starting -= 1
        self._ready.append(waiting)
        self._tell_next()
        self._wanted.set()


async def _is_ready(stdout: ByteReceiveStream) -> bool:
    """Whether the guest's first message says that it is ready."""
    decoder = LineDecoder()
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, WireError):
        while True:
            lines = decoder.feed(await stdout.receive())
            if not lines:
                continue
            message = jsonrpc.decode(lines[0])
            if not isinstance(message, jsonrpc.Notification) or len(lines) > 1 or decoder.incomplete:
                return False
            return messages.method_params(message.method) is messages.GuestReady
    return False
