"""Principals: who uses a bridge, what each may do, and which rules lie over everybody's for one.

```toml
[principals.anna]
approver = true                 # decides what others' executions wait for
sees_all = true                 # sees others' executions in the viewer
servers = ["git", "linear"]     # all servers by default
secrets = ["github-token"]      # all of [secrets] by default
files = ["sales.csv"]           # all of [files] by default
packages = ["polars"]           # all that [install] allows by default
max_concurrent = 2
requests_per_minute = 120

[principals.anna.policy]        # as [policy]; allows no more than that
preset = "read-only"
```
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.rules.policy_settings import UNKNOWN_SOURCE, Source, read
from mcp_bridge.sandbox.packages.install_settings import Requirements
from mcp_bridge.toml_files.decoding import bad_config, decode
from mcp_bridge.toml_files.line_numbers import line_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_bridge.settings import Layer

MAX_PRINCIPALS = 10_000

PRINCIPAL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """How much one principal may ask of a bridge; None for no more than the bridge's own limits.

    Attributes:
        max_concurrent: Runs at a time.
        max_queued: Runs that wait for a place.
        requests_per_minute: MCP requests and requests for the metrics that are answered; beside these, as many that end
            a session.
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
        servers: Configured names of the servers that its executions may use, `local` among them; None for all.
        secrets: Names of the vault's entries that its executions may use; None for all.
        files: Names of the inputs that its executions may read; None for all.
        packages: Packages that its scripts may ask for, of those in `[install]`; None for all of these.
        limits: What it may ask of the bridge.
    """

    name: str
    may_approve: bool = False
    may_see_all: bool = False
    policy: Mapping[str, Any] = field(default_factory=dict)
    servers: frozenset[str] | None = None
    secrets: frozenset[str] | None = None
    packages: tuple[str, ...] | None = None
    limits: PrincipalLimits = PrincipalLimits()
    files: frozenset[str] | None = None


def restricted(start: Principal, now: Principal) -> Principal:
    """What a principal has of a running bridge: what its table of the start and that of now both allow.

    The policy is that of now, which `Bridge` lays over that of the start.
    """
    if start == now:
        return start
    return Principal(
        start.name,
        may_approve=start.may_approve and now.may_approve,
        may_see_all=start.may_see_all and now.may_see_all,
        policy=now.policy,
        servers=fewer(start.servers, now.servers),
        secrets=fewer(start.secrets, now.secrets),
        files=fewer(start.files, now.files),
        packages=now.packages,
        limits=PrincipalLimits(
            _lower(start.limits.max_concurrent, now.limits.max_concurrent),
            _lower(start.limits.max_queued, now.limits.max_queued),
            _lower(start.limits.requests_per_minute, now.limits.requests_per_minute),
        ),
    )


def fewer(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """The names in both sets, of which None has all."""
    return one if other is None else other if one is None else one & other


def _lower(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


LOCAL_PRINCIPAL = Principal("local", may_approve=True, may_see_all=True)
"""Whoever has started the bridge as a process of theirs, and who uses the command line."""


_NAME_RULE = "Use 1 to 64 of a-z, 0-9, '-', '_' and '.', a letter or digit first."


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_Names = Annotated[
    frozenset[str] | None, BeforeValidator(lambda value: frozenset(value) if _is_texts(value) else value)
]


_Requirements = Annotated[Requirements, BeforeValidator(lambda value: tuple(value) if _is_texts(value) else value)]


class PrincipalTable(BaseModel):
    """One `[principals.NAME]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    approver: bool = False
    sees_all: bool = False
    policy: dict[str, Any] = Field(default_factory=dict)
    servers: _Names = None
    secrets: _Names = None
    files: _Names = None
    packages: _Requirements | None = None
    max_concurrent: Annotated[int | None, Field(ge=1)] = None
    max_queued: Annotated[int | None, Field(ge=0)] = None
    requests_per_minute: Annotated[int | None, Field(ge=1)] = None


def load_principals(layers: Sequence[Layer]) -> dict[str, Principal]:
    """The principals of the user's own configuration, by name. A folder's file has none (`settings.OWN_TABLES`).

    Args:
        layers: As `settings.Loaded.layers`.

    Raises:
        BridgeError: `bad_config`.
    """
    own = layers[0]
    table = own.tables.get("principals", {})
    if len(table) > MAX_PRINCIPALS:
        raise bad_config(f"has more than {MAX_PRINCIPALS} principals", own.file, "principals")
    return {name: _principal(name, each, own.file) for name, each in table.items()}


def _principal(name: str, table: Any, file: Path | None) -> Principal:
    if not PRINCIPAL_NAME.fullmatch(name):
        raise bad_config("is no name for a principal", file, "principals", name, hint=_NAME_RULE)
    if name == LOCAL_PRINCIPAL.name:
        raise bad_config(
            "is the principal who starts the bridge and uses the command line, with all rights",
            file,
            "principals",
            name,
            hint="Use another name.",
        )
    config = decode(PrincipalTable, table, file, "principals", name)
    read(config.policy, policy_source(name, file))
    return Principal(
        name,
        may_approve=config.approver,
        may_see_all=config.sees_all,
        policy=config.policy,
        servers=config.servers,
        secrets=config.secrets,
        files=config.files,
        packages=config.packages,
        limits=PrincipalLimits(config.max_concurrent, config.max_queued, config.requests_per_minute),
    )


def policy_source(name: str, file: Path | None) -> Source:
    """Where the policy of a principal's table is written."""
    return Source(str(file), functools.partial(line_of, file, "principals", name)) if file else UNKNOWN_SOURCE


def check_principal_name(name: str) -> None:
    """Refuse what no principal over HTTP can be called.

    Raises:
        BridgeError: `bad_principal`.
    """
    if not PRINCIPAL_NAME.fullmatch(name):
        raise BridgeError("bad_principal", f"{name[:100]!r} is no name for a principal.", hint=_NAME_RULE)
    if name == LOCAL_PRINCIPAL.name:
        raise BridgeError(
            "bad_principal",
            f"{name!r} is the principal who starts the bridge and uses the command line.",
            hint="Use another name: what has all rights isn't given away by a token.",
        )
