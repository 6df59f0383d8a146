"""Daemon threads for synchronous tools, controlled by one event loop.

anyio's worker threads are not daemons: the interpreter waits for them at exit, so a tool that hangs would keep the host
from exiting. Everything but the work itself happens on the event loop, so no locks are needed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

T = TypeVar("T")

# Seconds after which a thread without work ends.
_IDLE = 10.0


class Job(Generic[T]):
    """A unit of work.

    Attributes:
        outcome: The work's return value, however late. Cancelled if the job was dropped before it started.
        started: Whether a thread has started it.
    """

    __slots__ = ("context", "loop", "outcome", "started", "work", "worker_lost")

    def __init__(self, work: Callable[[], T], context: Context) -> None:
        self.loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[T] = self.loop.create_future()
        self.work = work
        self.context = context
        self.started = False
        self.worker_lost = False


class Threads:
    """At most `size` threads, not counting abandoned ones; further jobs wait in order of their arrival."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._live = 0
        self._idle: list[_Worker] = []
        self._waiting: deque[Job[object]] = deque()

    def submit(self, work: Callable[[], T], context: Context) -> Job[T]:
        """Run `work`, which must not raise, in a thread with this context."""
        job = Job(work, context)
        self._waiting.append(job)  # type: ignore[arg-type]
        self._assign()
        return job

    def abandon(self, job: Job[T]) -> None:
        """Abandon a job. If it has started, its thread is lost until it ends; otherwise it never starts."""
        if job.started:
            job.worker_lost = True
            self._live -= 1
        else:
            self._waiting.remove(job)  # type: ignore[arg-type]
            job.outcome.cancel()
        self._assign()

    def _assign(self) -> None:
        while self._waiting and (self._idle or self._live < self._size):
            if self._idle:
                worker = self._idle.pop()
            else:
                worker = _Worker(self)
                try:
                    worker.start()
                except RuntimeError:
                    return  # No more threads are available: jobs wait as they do for busy threads.
                self._live += 1
            job = self._waiting.popleft()
            job.started = True
            worker.jobs.put(job)

    def finished(self, worker: _Worker, job: Job[T], outcome: T) -> None:
        """Handle a worker's finished job. Called on the event loop."""
        if not job.outcome.done():
            job.outcome.set_result(outcome)
        if job.worker_lost:
            worker.jobs.put(None)
        else:
            self._idle.append(worker)
            self._assign()

    def retire(self, worker: _Worker) -> None:
        """Handle a worker that was idle for a while; it may have a new job by now. Called on the event loop."""
        if worker in self._idle:
            self._idle.remove(worker)
            self._live -= 1
            worker.jobs.put(None)


class _Worker(threading.Thread):
    def __init__(self, threads: Threads) -> None:
        super().__init__(name="registered tool", daemon=True)
        self._threads = threads
        self.jobs: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()

    def run(self) -> None:
        loop: asyncio.AbstractEventLoop | None = None
        while True:
            try:
                job = self.jobs.get(timeout=_IDLE if loop else None)
            except queue.Empty:
                if loop is None or not _call_soon(loop, self._threads.retire, self):
                    return
                job = self.jobs.get()
            if job is None:
                return
            loop = job.loop
            outcome = job.context.run(job.work)
            if not _call_soon(loop, self._threads.finished, self, job, outcome):
                return
            del job, outcome


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> bool:
    """Call a function on the event loop; False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True
