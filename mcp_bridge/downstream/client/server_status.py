"""The status of a server, known without a request to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

State = Literal["idle", "starting", "ready", "failed", "misconfigured", "disabled"]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of a server, known without a request to it.

    Attributes:
        name: The configured name.
        alias: Its Python identifier.
        state: `idle` (not running; starts on first use), `starting`, `ready`, `failed` (the last start failed; retried
            on the next use after the backoff), `misconfigured`, `disabled`.
        tool_count: The number of tools in its last listing, or None if it was never listed.
        error: Why it isn't usable, or its last failure.
        protocol: The protocol version, while ready.
        pid: Its process id, while running; None for a remote server.
        starts: The number of processes started so far.
        source: The configuration file.
        scope: The kind of configuration file.
        url: The address of a remote server as it may be shown, or None.
        private: Further details of the last failure (`stderr`, paths), for the operator and never for the sandbox.
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
    url: str | None = None
    private: Mapping[str, Any] = field(default_factory=dict)
