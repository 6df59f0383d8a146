"""Principals: who uses a bridge, what each may do, and which rules lie over everybody's for one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

PRINCIPAL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """How much one principal may ask of a bridge; None for no more than the bridge's own limits.

    Attributes:
        max_concurrent: Runs at a time.
        max_queued: Runs that wait for a place.
        requests_per_minute: MCP requests that are answered.
    """

    max_concurrent: int | None = None
    max_queued: int | None = None
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose executions, keys, programs, memories, artifacts and budgets are kept apart from others'.

    Attributes:
        name: What the ledger knows it by: 1 to 64 characters of a-z, 0-9, `-`, `_` and `.`, a letter or digit first.
        may_approve: Whether it decides what others' executions wait for.
        may_see_all: Whether it sees others' executions in the viewer.
        policy: A table as `[policy]`; a further layer over everybody's, which allows no more than that.
        secrets: Names of the vault's entries that its executions may use; None for all.
        limits: What it may ask of the bridge.
    """

    name: str
    may_approve: bool = False
    may_see_all: bool = False
    policy: Mapping[str, Any] = field(default_factory=dict)
    secrets: frozenset[str] | None = None
    limits: PrincipalLimits = PrincipalLimits()


LOCAL_PRINCIPAL = Principal("local", may_approve=True, may_see_all=True)
"""Whoever has started the bridge as a process of theirs, and who uses the command line."""
