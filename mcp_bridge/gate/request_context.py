"""The context of a sandbox's request, for the work that is done for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RequestContext:
    """A request in progress. The channel creates it.

    This class itself is for work that no request waits for, such as a program that is driven without a sandbox: it has
    no slot to release, and nobody can cancel it.
    """

    __slots__ = ()

    @property
    def is_cancelled(self) -> bool:
        """Whether the guest itself no longer wants the answer."""
        return False

    def release_slot(self) -> None:
        """Give up the slot: from here on the request waits for others, which need slots themselves."""

    async def reacquire_slot(self) -> None:
        """Wait for a slot again after `release_slot`; does nothing while the request has one."""

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Register a callback for the moment when the guest cancels the request.

        That is before anything that the guest sends later is looked at, and also after the answer was sent: a guest
        that cancels a request has not had its answer. A request has one callback; a later one replaces it.
        """

    async def effect_begins(self) -> None:
        """The request is about to have an effect.

        From here on it is worked on until its outcome is known, even if its sandbox is lost meanwhile: whoever runs
        the script again finds an outcome and no doubt. A request that was cancelled has no effect: this raises.
        """

    def effect_ended(self) -> None:
        """The request's effect is over: without a sandbox, what follows is of no use."""


NO_REQUEST = RequestContext()
