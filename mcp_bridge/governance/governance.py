"""What the operator has laid down besides settings and servers: policy, tools, programs, secrets, projections, model.

Each table of the configuration is decoded by the part that it belongs to; here they come together, once, at the start.

Where a folder's configuration lies over the user's own, its tools, programs and secrets are added, and the user's
policy, grants and patterns are a floor beneath the folder's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_name
from mcp_bridge.governance.principals import load_principals
from mcp_bridge.inputs.config import inputs_from_toml
from mcp_bridge.lookalikes import skeleton
from mcp_bridge.policy.redaction.patterns import projection_from_toml
from mcp_bridge.policy.rules.floor import layered
from mcp_bridge.policy.rules.globs import ToolGlob
from mcp_bridge.policy.rules.policy_settings import UNKNOWN_SOURCE, Policy, Source, read
from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot, freeze
from mcp_bridge.policy.secrets.vault import UNBOUNDED, Bounds, Vault, secrets_from_toml
from mcp_bridge.policy.secrets.vault_uris import SECRET_PREFIX
from mcp_bridge.registered.config import tools_config
from mcp_bridge.registered.loading import load_declarations
from mcp_bridge.registered.registry import Registry
from mcp_bridge.settings import Layer
from mcp_bridge.toml_files.decoding import bad_config, decode
from mcp_bridge.toml_files.line_numbers import line_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.inputs.config import InputSource
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.policy.redaction.patterns import Pattern
    from mcp_bridge.policy.secrets.vault import SecretConfig

LOCAL = "local"
"""The server that the operator's own tools are."""


@dataclass(frozen=True, slots=True)
class Governance:
    """The operator's word.

    Attributes:
        snapshot: The rules, frozen: what decides.
        registry: The operator's tools.
        programs: The operator's programs, by name.
        vault: The secrets.
        patterns: What is sensitive in outcomes.
        model: Which model answers; None for none.
        base: The folder that paths in the configuration are relative to.
        refuses_denied_steps: Whether a program with a step that the policy denies in any case isn't begun.
        principals: Who else than `local` may use the bridge, by name.
        inputs: The files that scripts may read, by name.
    """

    snapshot: PolicySnapshot
    registry: Registry
    programs: Mapping[str, Program]
    vault: Vault
    patterns: tuple[Pattern, ...]
    model: ModelConfig | None
    base: Path
    refuses_denied_steps: bool = False
    principals: Mapping[str, Principal] = field(default_factory=dict)
    inputs: Mapping[str, InputSource] = field(default_factory=dict)


def load_governance(tables: Mapping[str, Any], file: Path | None, base: Path, state_dir: Path) -> Governance:
    """Decode the tables, and load the tools and programs that they name.

    Args:
        tables: As `settings.Layer.tables`.
        file: Where they are from, for errors.
        base: The folder that their paths are relative to.
        state_dir: Where secrets are kept.

    Raises:
        BridgeError: `bad_config`, `bad_tools`, `bad_program`.
    """
    return govern((Layer(file, base, {}, tables),), state_dir)


def govern(layers: Sequence[Layer], state_dir: Path, folder_servers: AbstractSet[str] = frozenset()) -> Governance:
    """Decode the tables of all layers, and load the tools and programs that they name.

    Args:
        layers: As `settings.Loaded.layers`.
        state_dir: Where secrets are kept.
        folder_servers: The servers that the folder configures, and not the user.

    Raises:
        BridgeError: `bad_config`, `bad_tools`, `bad_program`, `folder_changed`.
    """
    policies = written_policies(layers, folder_servers)
    tools = [tools_config(layer.tables.get("tools", {}), layer.file) for layer in layers]
    entry_points = all(config.entry_points for config in tools)
    declarations = [
        declaration
        for config, layer in zip(tools, layers, strict=True)
        for declaration in load_declarations(
            config.model_copy(update={"entry_points": entry_points}), layer.base, layer.trusted
        )
    ]
    secrets, bounds = secrets_of(layers, folder_servers)
    model, base = _model(layers, secrets, bounds)
    return Governance(
        snapshot=snapshot_of(policies),
        registry=Registry(declarations),
        programs=policies[-1].programs,
        vault=Vault(secrets, state_dir, bounds=bounds),
        patterns=_patterns(layers),
        model=model,
        base=base,
        # A folder's word makes it no laxer than the user's.
        refuses_denied_steps=any(_refuses_denied_steps(layer) for layer in layers),
        principals=load_principals(layers),
        inputs=inputs_of(layers, state_dir),
    )


def inputs_of(layers: Sequence[Layer], state_dir: Path) -> dict[str, InputSource]:
    """The inputs of all layers. A folder's adds some of what is in the folder, and replaces none of the user's own.

    Raises:
        BridgeError: `bad_config`.
    """
    found: dict[str, InputSource] = {}
    for layer in layers:
        if "files" in layer.tables:
            within = None if layer.trusted is None else layer.base
            found = inputs_from_toml(layer.tables["files"], layer.file, layer.base, state_dir, within) | found
    return found


@dataclass(frozen=True, slots=True)
class WrittenPolicy:
    """The policy of one layer.

    Attributes:
        policy: As configured.
        source: Where it was written.
        snapshot: As it is frozen, by itself.
        programs: The operator's programs that there are: those of this layer and of those beneath it.
        layer: The layer.
    """

    policy: Policy
    source: Source
    snapshot: PolicySnapshot
    programs: Mapping[str, Program]
    layer: Layer


def written_policies(
    layers: Sequence[Layer],
    folder_servers: AbstractSet[str] = frozenset(),
    loaded: Mapping[str, Program] = MappingProxyType({}),
) -> tuple[WrittenPolicy, ...]:
    """The policies of all layers, with the programs that their rules may name, and without tools.

    Args:
        layers: As `settings.Loaded.layers`.
        folder_servers: The servers that the folder configures, and not the user.
        loaded: The programs that a bridge has already: its rules are about these, whatever their files say by now.

    Raises:
        BridgeError: `bad_config`, `bad_program`, `folder_changed`.
    """
    found: list[WrittenPolicy] = []
    programs: Mapping[str, Program] = {}
    sources = [
        Source(str(layer.file), functools.partial(line_of, layer.file)) if layer.file else UNKNOWN_SOURCE
        for layer in layers
    ]
    policies = [read(layer.tables.get("policy", {}), source) for layer, source in zip(layers, sources, strict=True)]
    for layer, source, written in zip(layers, sources, policies, strict=True):
        policy = written
        if layer.trusted is None:
            # The user has named servers of their own: a folder's of the same name is believed if both name it.
            unmeant = folder_servers - {
                name for other in policies if other is not written for name in other.trust_hints
            }
            hints = tuple(name for name in policy.trust_hints if name not in unmeant)
            policy = policy.model_copy(update={"trust_hints": hints})
        if "programs" in layer.tables:
            programs = {**programs, **_programs(layer, programs)}
        hashes = {name: program.hash for name, program in {**programs, **loaded}.items()}
        found.append(WrittenPolicy(policy, source, freeze(policy, hashes, source), programs, layer))
    return tuple(found)


def snapshot_of(policies: Sequence[WrittenPolicy]) -> PolicySnapshot:
    """What decides: the user's own policy, the folder's, or the folder's over the user's."""
    said = [written.snapshot for written in policies if "policy" in written.layer.tables]
    return functools.reduce(layered, said) if said else policies[0].snapshot


def policy_over(snapshot: PolicySnapshot, table: Mapping[str, Any], programs: Mapping[str, Program]) -> PolicySnapshot:
    """What decides for one principal: its own policy over everybody's.

    Args:
        snapshot: Everybody's.
        table: The principal's, as `[policy]`; empty for none.
        programs: The operator's programs, by name.

    Raises:
        BridgeError: `bad_config`.
    """
    if not table:
        return snapshot
    return layered(snapshot, freeze(read(table), {name: program.hash for name, program in programs.items()}))


def secrets_of(
    layers: Sequence[Layer], folder_servers: AbstractSet[str] = frozenset()
) -> tuple[dict[str, SecretConfig], Bounds]:
    """The secrets of all layers. Of one that two of them name, the user's own word says where it comes from.

    Raises:
        BridgeError: `bad_config`.
    """
    own, *others = [secrets_from_toml(layer.tables.get("secrets", {}), layer.file) for layer in layers]
    if layers[0].trusted is not None:
        return own, UNBOUNDED
    grants = {
        name: tuple(map(ToolGlob, config.tools)) for other in others for name, config in other.items() if name in own
    }
    theirs = {name: config for other in others for name, config in other.items()}
    return theirs | own, Bounds(grants, frozenset(folder_servers), frozenset(own))


def credentials_of(
    layers: Sequence[Layer], state_dir: Path, folder_servers: AbstractSet[str] = frozenset()
) -> tuple[Vault, ModelConfig | None]:
    """The secrets and the model of all layers, as in `govern`, for commands that need no operator's tools.

    Raises:
        BridgeError: `bad_config`.
    """
    secrets, bounds = secrets_of(layers, folder_servers)
    return Vault(secrets, state_dir, bounds=bounds), _model(layers, secrets, bounds)[0]


def _patterns(layers: Sequence[Layer]) -> tuple[Pattern, ...]:
    """The patterns of all layers that say which: a folder's adds some, and takes away none of the user's own."""
    said = [layer for layer in layers if "projection" in layer.tables] or layers[:1]
    compiled = [projection_from_toml(layer.tables.get("projection", {}), layer.file).compiled() for layer in said]
    return tuple(dict.fromkeys(pattern for patterns in compiled for pattern in patterns))


# Loaded where they are used: a bridge without either starts sooner.


def _programs(layer: Layer, known: Mapping[str, Program]) -> Mapping[str, Program]:
    from mcp_bridge.governance.program_files import load_programs, programs_config  # noqa: PLC0415

    return load_programs(programs_config(layer.tables["programs"], layer.file), layer.base, layer.trusted, known)


def _refuses_denied_steps(layer: Layer) -> bool:
    if "programs" not in layer.tables:
        return False
    from mcp_bridge.governance.program_files import programs_config  # noqa: PLC0415

    return programs_config(layer.tables["programs"], layer.file).denied_steps == "refuse"


def _model(
    layers: Sequence[Layer], secrets: Mapping[str, SecretConfig], bounds: Bounds
) -> tuple[ModelConfig | None, Path]:
    """The model of the last layer that has one, and the folder that its paths are relative to.

    Raises:
        BridgeError: `bad_config`.
    """
    layer = next((layer for layer in reversed(layers) if "model" in layer.tables), None)
    if layer is None:
        return None, layers[-1].base
    from mcp_bridge.models.config import ModelConfig  # noqa: PLC0415

    config = decode(ModelConfig, layer.tables["model"], layer.file, "model")
    key = (config.api_key or "").removeprefix(SECRET_PREFIX)
    if layer.trusted is not None and key in secrets and key in bounds.owned:
        # Its base_url would get it.
        raise bad_config(
            f"names {key!r}, a secret of your own, which a folder's model doesn't get",
            layer.file,
            "model",
            "api_key",
            hint="Write [model] into your own configuration, or name another secret.",
        )
    return config, layer.base


def refuse_local(governance: Governance, specs: Sequence[ServerSpec]) -> None:
    """The operator's tools are the server `local`: no other may have that name beside them.

    Raises:
        BridgeError: `bad_config`.
    """
    for spec in specs:
        if governance.registry.tools and skeleton(spec.name) == skeleton(LOCAL):
            raise BridgeError(
                "bad_config",
                f"The server '{escape_name(spec.name)}' of {spec.source} has the name of the operator's own tools,"
                " or one that looks like it.",
                hint="Give the server another name.",
                file=spec.source,
            )
