"""The bound on the memory of all the programs that one sandbox drives, and of what they were started with."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.language.references import measured
from mcp_bridge.offload import off_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_HELD_BYTES = 64 << 20
"""Most memory of all programs and contexts that one sandbox drives, as estimated by `held_bytes`. A single program may
take more: the limits of a program and a context bound it."""

_VALUE_BYTES = 200
"""Estimated memory of one value of any type, with what a program's machine makes of it."""


class HeldMemory:
    """The estimated memory of a sandbox's programs: of each that is driven, and of each that is being started."""

    def __init__(self) -> None:
        self._held: dict[object, int] = {}

    async def room_for(self, value: Any) -> contextlib.AbstractContextManager[None]:
        """Reserve memory for a program that is being started; a context manager that releases it.

        Args:
            value: What the program is started with.

        Raises:
            BridgeError: `too_many_programs`.
        """
        size = await held_bytes(value)
        held = sum(self._held.values())
        if held and held + size > MAX_HELD_BYTES:
            raise BridgeError(
                "too_many_programs",
                f"The programs that are under way take {held >> 20} MiB of the {MAX_HELD_BYTES >> 20} that they may.",
                hint="Await some of them, or start fewer with large contexts concurrently.",
            )
        return self._counted(object(), size)

    @contextlib.contextmanager
    def _counted(self, what: object, size: int) -> Iterator[None]:
        self._held[what] = size
        try:
            yield
        finally:
            del self._held[what]

    def hold(self, execution: str, size: int) -> None:
        """Count a program that is driven now.

        Args:
            execution: Its execution.
            size: Its memory, by `held_bytes`.
        """
        self._held[execution] = size

    def release(self, execution: str) -> None:
        """Count a program no more; nothing happens if it isn't counted."""
        self._held.pop(execution, None)


async def held_bytes(value: Any) -> int:
    """The estimated memory of a value. Takes no time of the event loop."""
    return await off_loop(value, _estimate, value)


def _estimate(value: Any) -> int:
    characters, values = measured(value)
    return characters + _VALUE_BYTES * values
