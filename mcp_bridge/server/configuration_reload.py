"""The configuration's files, read when a bridge is opened and looked at before each call.

An open bridge keeps its configuration. If the files have changed since, it continues with the old configuration, minus
what the new one takes away: it never makes a call that the files didn't allow when it was opened.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import on_blocking_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.inputs.config import InputSource
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot
    from mcp_bridge.sandbox.packages.install_settings import InstallSettings
    from mcp_bridge.settings import Settings

logger = logging.getLogger(__name__)

INTERNAL_ERROR = BridgeError("internal_error", "The bridge met an internal error; its log has the details.")

CHANGED = (
    "mcp-bridge's configuration has changed since it was started. What that takes away holds from now on; what it adds "
    "or alters holds once mcp-bridge is started again"
)
BROKEN = "mcp-bridge's configuration has changed and can't be used, so what held before still does: {}"

NOT_USED = "The configuration has changed and can't be used, so what held before still does:"

SETTLE_SECONDS = 0.4
"""How long the files must say the same before it is applied: an editor may have them half-written, or taken away."""

MAX_LOOKS = 12
"""How often files that don't come to rest are looked at, while the calls that come wait."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The arguments of `open_bridge`."""

    settings: Settings
    specs: tuple[ServerSpec, ...]
    governance: Governance | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """The new state of the configuration's files after a change.

    Attributes:
        servers: The names of the servers that remain, including `local` for the operator's tools.
        policy: The new policy.
        principals: The principals that remain, by name.
        inputs: The inputs that there are, by name.
        differs: Whether anything differs from the state in which the bridge was opened.
        install: What scripts may have installed; None for what that was.
    """

    servers: frozenset[str]
    policy: PolicySnapshot
    principals: Mapping[str, Principal]
    inputs: Mapping[str, InputSource]
    differs: bool
    install: InstallSettings | None = None


class Source(Protocol):
    """The configuration's files. The methods may block and are called on a thread."""

    def configure(self) -> Configured:
        """Read the files.

        Raises:
            BridgeError: The configuration is invalid.
        """
        ...

    def change(self) -> Change | BridgeError | None:
        """The new state of the files, or the error, if it isn't what the last call has found; else None."""
        ...

    def report_error(self, error: BridgeError) -> None:
        """Tell the operator, in the log, why nothing can be run, or why a change doesn't hold."""
        ...


def configured(source: Source) -> Configured | BridgeError:
    """The configuration to open a bridge with, or the error."""
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


class ConfigurationReload:
    """Applies changes of the configuration's files to an open bridge.

    Args:
        source: The files.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._looking = anyio.Lock()
        self._changes: list[str] = []
        self.principals_changed: Callable[[Mapping[str, Principal]], None] = lambda _: None
        """Is told of the principals that remain."""

    def take_changes(self) -> list[str]:
        """Changes of the configuration to mention in the next answer; each is returned once."""
        changes, self._changes = self._changes, []
        return changes

    async def apply(self, bridge: Bridge) -> None:
        """Check the files for changes, and apply them; called before each call."""
        # Shielded: a change is reported once, and must not be lost if the call is cancelled.
        with anyio.CancelScope(shield=True):
            async with self._looking:
                change = await self._settled()
                if isinstance(change, BridgeError):
                    self._source.report_error(
                        BridgeError(change.code, f"{NOT_USED} {change.message}", hint=change.hint)
                    )
                    bridge.has_current_configuration = False
                    self._changes = [BROKEN.format(f"[{change.code}] {for_the_agent(change)}")]
                elif change is not None:
                    bridge.restrict(change.servers, change.policy, change.principals, change.inputs, change.install)
                    self.principals_changed(change.principals)
                    bridge.has_current_configuration = not change.differs
                    self._changes = [CHANGED] if change.differs else []
                    if change.differs:
                        logger.warning("%s", CHANGED)

    async def _settled(self) -> Change | BridgeError | None:
        """The new state of the files once it is the same at two looks.

        A part of a file may be valid, too, and lack a server or a principal.
        """
        change = later = await on_blocking_thread(_changed, self._source)
        for _ in range(MAX_LOOKS):
            if later is None:
                break
            await anyio.sleep(SETTLE_SECONDS)
            later = await on_blocking_thread(_changed, self._source)
            change = later or change
        return change


def for_the_agent(error: BridgeError) -> BridgeError:
    """The error without messages of operator's modules during their import, which may contain secrets."""
    bare = error.private.get("message")
    if bare is None:
        return error
    return BridgeError(error.code, bare, hint="What it says is on mcp-bridge's standard error.", **error.details)
