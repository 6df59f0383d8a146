"""Keeps a bridge open for a server that stays up whatever the configuration is, or the reason why there is none.

A client shows its user nothing of a server that has ended but that the connection is closed. So the server answers
from the start, and a call is what tries again to open what couldn't be opened: once it is mended, the next call works.

A bridge that is open keeps what it was opened with. When the files have changed since, it goes on with that, less what
they take away: it never makes a call that the files had not allowed when it was opened.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.host.service import open_bridge
from mcp_bridge.offload import on_waiting_thread
from mcp_bridge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.host.service import Bridge
    from mcp_bridge.policy.rules.snapshot import PolicySnapshot

logger = logging.getLogger(__name__)

FIRST_SECONDS = 3.0
"""How long the server waits to be opened before it answers its client, which is told then what is behind it."""

CALL_SECONDS = 50.0
"""How long a call waits for that; clients give up after sixty."""

INTERNAL_ERROR = BridgeError("internal_error", "The bridge met an internal error; its log has the details.")

NOT_OPEN_YET = BridgeError(
    "not_open_yet",
    "The bridge is still being opened, so nothing was run.",
    hint="Call again; if that lasts, another process may hold its ledger: see its log, or `mcp-bridge doctor`.",
)

MEND = "Nothing was run. Tell your user; once it is mended, the next call works, and nothing has to be restarted."

CHANGED = (
    "mcp-bridge's configuration has changed since it was started. What that takes away holds from now on; what it adds "
    "or alters holds once mcp-bridge is started again"
)
BROKEN = "mcp-bridge's configuration has changed and can't be used, so what held before still does: {}"


@dataclass(frozen=True, slots=True)
class Configured:
    """What a bridge is opened with: the arguments of `open_bridge`."""

    settings: Settings
    specs: tuple[ServerSpec, ...]
    governance: Governance | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """What the configuration's files say now that they say something else than before.

    Attributes:
        servers: The names of the servers that they still have, `local` for the operator's tools among them.
        policy: What decides, by them.
        differs: Whether they say anything else than when the bridge was opened.
    """

    servers: frozenset[str]
    policy: PolicySnapshot
    differs: bool


class Source(Protocol):
    """The configuration's files. What it does may take a while: it is called on a thread."""

    def configure(self) -> Configured:
        """Read them.

        Raises:
            BridgeError: Something is wrong in them.
        """
        ...

    def change(self) -> Change | BridgeError | None:
        """What they say now, or why that can't be told, if it isn't what they said when this was last asked."""
        ...

    def complain(self, error: BridgeError) -> None:
        """Say on standard error why nothing can be run."""
        ...


def configured(source: Source) -> Configured | BridgeError:
    """What a bridge is to be opened with, or why there is nothing."""
    try:
        return source.configure()
    except BridgeError as exc:
        return exc
    except Exception:
        logger.exception("the configuration could not be read")
        return INTERNAL_ERROR


def _changed(source: Source) -> Change | BridgeError | None:
    try:
        return source.change()
    except Exception:
        logger.exception("the configuration could not be looked at")
        return INTERNAL_ERROR


class Keeper:
    """Made by `kept`."""

    def __init__(
        self,
        source: Source,
        first: Configured | BridgeError,
        ahead: Callable[[Bridge], Coroutine[Any, Any, None]],
    ) -> None:
        self._source = source
        self._first = first
        self._ahead = ahead
        self.settings = Settings()
        """Those of the bridge; before they could be read, what they are by default."""
        self.error: BridgeError | None = None
        """Why there is no bridge."""
        self._bridge: Bridge | None = None
        self._tried = anyio.Event()
        self._wanted = anyio.Event()
        self._left = anyio.Event()
        self._looking = anyio.Lock()
        self._news: list[str] = []

    async def bridge(self) -> Bridge:
        """The bridge, for a call that comes now.

        Raises:
            BridgeError: There is none: as `Source.configure` and `open_bridge`; `not_open_yet`, `internal_error`.
        """
        if self._bridge is not None:
            await self._look()
            return self._bridge
        if self.error is not None:
            # Calls that come at the same time wait for one attempt.
            self.error, self._tried = None, anyio.Event()
            self._wanted.set()
        with anyio.move_on_after(CALL_SECONDS):
            await self._tried.wait()
        if self._bridge is None:
            # Without the frames that it was raised through before: they would become more with every call.
            raise (self.error or NOT_OPEN_YET).with_traceback(None)
        return self._bridge

    def news(self) -> list[str]:
        """What the next answer is to say of the configuration, once."""
        news, self._news = self._news, []
        return news

    def aliases(self) -> list[str] | None:
        """What scripts call the servers; None while that isn't known."""
        return self._bridge.aliases() if self._bridge is not None else None

    async def first(self) -> None:
        """Wait for the first attempt, for as long as a client can be kept waiting."""
        with anyio.move_on_after(FIRST_SECONDS):
            await self._tried.wait()

    async def keep(self) -> None:
        """Open the bridge, whenever a call comes and there is none, until `leave`."""
        found = self._first
        while not self._left.is_set():
            await self._open(found)
            await self._wanted.wait()
            self._wanted = anyio.Event()
            if not self._left.is_set():
                found = await on_waiting_thread(configured, self._source)

    def leave(self) -> None:
        """Close the bridge, as soon as it has no calls any more."""
        self._left.set()
        self._wanted.set()

    async def _open(self, found: Configured | BridgeError) -> None:
        if isinstance(found, BridgeError):
            self._failed(found)
            return
        self.settings = found.settings
        try:
            async with (
                open_bridge(found.settings, found.specs, found.governance, missing=found.missing) as bridge,
                anyio.create_task_group() as tasks,
            ):
                self._bridge, self.error = bridge, None
                self._tried.set()
                tasks.start_soon(self._ahead, bridge)
                await self._left.wait()
                tasks.cancel_scope.cancel()
        except Exception as exc:
            if self._bridge is not None:
                raise
            if not isinstance(exc, BridgeError):
                logger.exception("the bridge could not be opened")
            self._failed(exc if isinstance(exc, BridgeError) else INTERNAL_ERROR)

    def _failed(self, error: BridgeError) -> None:
        self._source.complain(error)
        told = _for_the_agent(error)
        hint = f"{told.hint} {MEND}" if told.hint else MEND
        self.error = BridgeError(told.code, told.message, hint=hint, **told.details)
        self._tried.set()

    async def _look(self) -> None:
        """Notice what has changed since the bridge was opened, before a call is made under it."""
        # To its end: what was found is told once, and a call that is taken back meanwhile mustn't lose it.
        with anyio.CancelScope(shield=True):
            async with self._looking:
                self._take_in(await on_waiting_thread(_changed, self._source))

    def _take_in(self, change: Change | BridgeError | None) -> None:
        assert self._bridge is not None  # noqa: S101 - only a bridge that is open is looked after
        if isinstance(change, BridgeError):
            self._source.complain(change)
            self._news = [BROKEN.format(f"[{change.code}] {_for_the_agent(change)}")]
        elif change is not None:
            self._bridge.restrict(change.servers, change.policy)
            self._news = [CHANGED] if change.differs else []
            if change.differs:
                logger.warning("%s", CHANGED)


def _for_the_agent(error: BridgeError) -> BridgeError:
    """The error without what an operator's module has said while it was imported, which may have a secret in it."""
    bare = error.private.get("message")
    if bare is None:
        return error
    return BridgeError(error.code, bare, hint="What it says is on mcp-bridge's standard error.", **error.details)


@asynccontextmanager
async def kept(
    source: Source, first: Configured | BridgeError, ahead: Callable[[Bridge], Coroutine[Any, Any, None]]
) -> AsyncGenerator[Keeper]:
    """Keep a bridge open. Leaving it ends every container and server, even under cancellation.

    Args:
        source: The configuration's files.
        first: What was read of them already, or why that can't be done.
        ahead: What to do with a bridge once it is open, before anybody waits for it.
    """
    keeper = Keeper(source, first, ahead)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.keep)
        await keeper.first()
        try:
            yield keeper
        finally:
            keeper.leave()
