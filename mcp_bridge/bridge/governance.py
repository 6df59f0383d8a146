"""What the operator has laid down besides settings and servers: policy, tools, programs, secrets, projections, model.

Each table of the configuration is decoded by the part that it belongs to; here they come together, once, at the start.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.bridge.lookalikes import skeleton
from mcp_bridge.bridge.shown import exactly
from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.patterns import projection_from_toml
from mcp_bridge.policy.rules import NOWHERE, Policy, Source, read
from mcp_bridge.policy.snapshot import freeze
from mcp_bridge.policy.toml_tables import decode
from mcp_bridge.policy.vault import Vault, secrets_from_toml
from mcp_bridge.registered.config import tools_config
from mcp_bridge.registered.loading import load_registry
from mcp_bridge.toml_lines import line_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_bridge.downstream.spec import ServerSpec
    from mcp_bridge.kernel.program import Program
    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.policy.patterns import Pattern
    from mcp_bridge.policy.snapshot import PolicySnapshot
    from mcp_bridge.registered.registry import Registry

LOCAL = "local"
"""The server that the operator's own tools are."""


@dataclass(frozen=True, slots=True)
class Governance:
    """The operator's word.

    Attributes:
        policy: The rules, as configured.
        snapshot: The rules, frozen: what decides.
        registry: The operator's tools.
        programs: The operator's programs, by name.
        vault: The secrets.
        patterns: What is sensitive in outcomes.
        model: Which model answers; None for none.
        base: The folder that paths in the configuration are relative to.
    """

    policy: Policy
    snapshot: PolicySnapshot
    registry: Registry
    programs: Mapping[str, Program]
    vault: Vault
    patterns: tuple[Pattern, ...]
    model: ModelConfig | None
    base: Path


def load_governance(tables: Mapping[str, Any], file: Path | None, base: Path, state_dir: Path) -> Governance:
    """Decode the tables, and load the tools and programs that they name.

    Args:
        tables: As `settings.Loaded.tables`.
        file: Where they are from, for errors.
        base: The folder that their paths are relative to.
        state_dir: Where secrets are kept.

    Raises:
        BridgeError: `bad_config`, `bad_tools`, `bad_program`.
    """
    source = Source(str(file), functools.partial(line_of, file)) if file else NOWHERE
    policy = read(tables.get("policy", {}), source)
    programs = _programs(tables["programs"], file, base) if "programs" in tables else {}
    return Governance(
        policy=policy,
        snapshot=freeze(policy, {name: program.hash for name, program in programs.items()}, source),
        registry=load_registry(tools_config(tables.get("tools", {}), file), base),
        programs=programs,
        vault=Vault(secrets_from_toml(tables.get("secrets", {}), file), state_dir),
        patterns=projection_from_toml(tables.get("projection", {}), file).compiled(),
        model=_model(tables["model"], file) if "model" in tables else None,
        base=base,
    )


# Loaded where they are used: a bridge without either starts sooner.


def _programs(table: Any, file: Path | None, base: Path) -> Mapping[str, Program]:
    from mcp_bridge.bridge.program_files import load_programs, programs_config  # noqa: PLC0415

    return load_programs(programs_config(table, file), base)


def _model(table: Any, file: Path | None) -> ModelConfig:
    from mcp_bridge.models.config import ModelConfig  # noqa: PLC0415

    return decode(ModelConfig, table, file, "model")


def refuse_local(governance: Governance, specs: Sequence[ServerSpec]) -> None:
    """The operator's tools are the server `local`: no other may have that name beside them.

    Raises:
        BridgeError: `bad_config`.
    """
    for spec in specs:
        if governance.registry.tools and skeleton(spec.name) == skeleton(LOCAL):
            raise BridgeError(
                "bad_config",
                f"The server '{exactly(spec.name)}' of {spec.source} has the name of the operator's own tools,"
                " or one that looks like it.",
                hint="Give the server another name.",
                file=spec.source,
            )
