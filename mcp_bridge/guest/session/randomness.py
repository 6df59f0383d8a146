"""Randomness from a seed: the cells of a session that run again in another container get the same.

The system's randomness as Python has it (`os.urandom`, `secrets`, `uuid4`, `random`, NumPy's generators) becomes the
output of a hash of the seed and a counter. The host makes the seed, from its system's randomness, for each session.
A forked process has a seed of its own, of its parent's and of which fork it is: no two of them draw the same.
What C libraries get from the kernel by themselves isn't replaced, and nothing in other programs.
"""

import os
import sys
import threading
from collections.abc import Callable

from mcp_bridge.wire.annotations import Any

BLOCK_BYTES = 32


def begin(seed: bytes) -> dict[str, Callable[[], None]]:
    """Replace the system's randomness. Returns what has to be called once a module of that name is there."""
    from hashlib import sha256

    # What interrupts a thread that holds it, as a handler of signals or a finalizer does, may draw or fork.
    lock = threading.RLock()
    count = forks = taken = 0

    def urandom(size: int, /) -> bytes:
        nonlocal count
        if size < 0:
            raise ValueError("negative argument not allowed")
        parts: list[bytes] = []
        with lock:
            for _ in range(-(-size // BLOCK_BYTES)):
                count += 1
                parts.append(sha256(seed + count.to_bytes(8, "big")).digest())
        return b"".join(parts)[:size]

    def getrandom(size: int, flags: int = 0) -> bytes:  # noqa: ARG001
        return urandom(size)

    def before_fork() -> None:
        nonlocal forks, taken
        # Held until both processes go on: another thread may draw, or fork.
        lock.acquire()
        taken += 1
        forks += 1

    def release() -> None:
        nonlocal taken
        # What failed before a fork doesn't keep it from happening.
        if taken:
            taken -= 1
            lock.release()

    def after_in_child() -> None:
        nonlocal seed, count, forks
        seed = sha256(b"".join([b"fork", seed, *(number.to_bytes(8, "big") for number in (count, forks))])).digest()
        count = forks = 0
        release()

    os.register_at_fork(before=before_fork, after_in_parent=release, after_in_child=after_in_child)
    os.urandom = urandom
    if hasattr(os, "getrandom"):
        os.getrandom = getrandom

    return {"_random": lambda: _follow_random(urandom)}


def _follow_random(urandom: Callable[[int], bytes]) -> None:
    """Replace the class of which `random` makes its generators, however often that module is imported or reloaded."""
    core: Any = sys.modules["_random"]
    plain: Any = core.Random

    class Random(plain):  # type: ignore[misc]
        __doc__ = plain.__doc__

        # Python's module calls it for each generator that is made, and for its own in a forked process.
        def seed(self, a: Any = None, /) -> None:
            super().seed(int.from_bytes(urandom(BLOCK_BYTES), "big") if a is None else a)

    Random.__module__, Random.__qualname__ = plain.__module__, plain.__qualname__
    core.Random = Random
