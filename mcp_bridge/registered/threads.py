"""Daemon threads for synchronous tools, driven from one event loop.

anyio's worker threads are not daemons: the interpreter waits for them at its end, so a tool that hangs would keep the
host from ever leaving. Everything but the work itself happens on the event loop, so nothing here needs a lock.
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
    """A piece of work.

    Attributes:
        outcome: What the work returned, however late. Cancelled if the work was dropped before it began.
        started: Whether a thread has begun with it.
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
    """At most `size` threads that are not given up; further jobs wait their turn, first come, first served."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._live = 0
        self._idle: list[_Worker] = []
        self._waiting: deque[Job[object]] = deque()

    def submit(self, work: Callable[[], T], context: Context) -> Job[T]:
        """Have a thread do `work`, which must not raise, in this context."""
        job = Job(work, context)
        self._waiting.append(job)  # type: ignore[arg-type]
        self._hand_out()
        return job

    def give_up(self, job: Job[T]) -> None:
        """Don't wait for a job any longer. If it has begun its thread is lost until it ends; else it never begins."""
        if job.started:
            job.worker_lost = True
            self._live -= 1
        else:
            self._waiting.remove(job)  # type: ignore[arg-type]
            job.outcome.cancel()
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and (self._idle or self._live < self._size):
            if self._idle:
                worker = self._idle.pop()
            else:
                worker = _Worker(self)
                try:
                    worker.start()
                except RuntimeError:
                    return  # the system gives no more: jobs wait as they do behind busy threads
                self._live += 1
            job = self._waiting.popleft()
            job.started = True
            worker.jobs.put(job)

    def finished(self, worker: _Worker, job: Job[T], outcome: T) -> None:
        """On the event loop: a worker is done with a job."""
        if not job.outcome.done():
            job.outcome.set_result(outcome)
        if job.worker_lost:
            worker.jobs.put(None)
        else:
            self._idle.append(worker)
            self._hand_out()

    def retire(self, worker: _Worker) -> None:
        """On the event loop: a worker has had nothing to do for a while. By now it may have something again."""
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
                if loop is None or not _tell(loop, self._threads.retire, self):
                    return
                job = self.jobs.get()
            if job is None:
                return
            loop = job.loop
            outcome = job.context.run(job.work)
            if not _tell(loop, self._threads.finished, self, job, outcome):
                return
            del job, outcome


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> bool:
    """Have the event loop call this; False if the loop is no more."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True
