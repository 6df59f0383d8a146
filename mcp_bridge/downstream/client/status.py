"""What is known of a server without asking it anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

State = Literal["idle", "starting", "ready", "failed", "unsupported", "misconfigured", "disabled"]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known of a server without asking it anything.

    Attributes:
        name: The configured name.
        alias: Its Python identifier.
        state: `idle` (not running; starts on first use), `starting`, `ready`, `failed` (the last start failed; tried
            again on the next use after the wait), `unsupported`, `misconfigured`, `disabled`.
        tool_count: Tools in its last listing, or None where it was never listed.
        error: Why it isn't usable, or its last failure.
        protocol: Protocol version, while ready.
        pid: Its process, while there is one.
        starts: Processes started so far.
        source: The file it is configured in.
        scope: Which kind of file that is.
        private: What else is known of the last failure (`stderr`, paths): for the operator, never for the sandbox.
    """

    name: str
    alias: str
    state: State
    tool_count: int | None
    error: str | None
    protocol: str | None
    pid: int | None
    starts: int
    source: str
    scope: str
    private: Mapping[str, Any] = field(default_factory=dict)
