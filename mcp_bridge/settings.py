"""All settings: their names, types, defaults, and sources.

A setting is a key of the TOML file, and an environment variable with the key in capitals after `MCP_BRIDGE_`, which
takes precedence. The tables `ledger`, `search`, `telemetry`, `http`, `sessions` and `install` can only be set in the
file.

The file is the one given by `--config` or `$MCP_BRIDGE_CONFIG`, which a person has chosen; otherwise the user's own
`config.toml` in their configuration directory, overlaid by `./mcp-bridge.toml` if the user has trusted its content. A
limit in the user's own file can be lowered by the folder's, and not raised.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import platformdirs
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from mcp_bridge.configured_values import ConfiguredTable, HomePath, Size, parse_size
from mcp_bridge.downstream.configuration.env_pass import EnvPass
from mcp_bridge.downstream.configuration.env_pass import env_pass as chosen_variables
from mcp_bridge.downstream.configuration.known_clients import CLIENT_NAMES, ClientName
from mcp_bridge.downstream.search.config import SearchConfig
from mcp_bridge.errors import BridgeError
from mcp_bridge.http_settings import HttpSettings
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.near_names import suggestion
from mcp_bridge.sandbox.languages import Language  # noqa: TC001 - pydantic reads it
from mcp_bridge.sandbox.packages.install_settings import InstallSettings
from mcp_bridge.sandbox.session_limits import SessionSettings
from mcp_bridge.telemetry.config import TelemetryConfig
from mcp_bridge.toml_files import reader as toml_reader
from mcp_bridge.toml_files.line_numbers import line_of
from mcp_bridge.toml_files.refused_values import union_error_message
from mcp_bridge.workspace.folder_content import CONFIG_NAME, real_folder
from mcp_bridge.workspace.trust import IgnoredFile, TrustStore, trusted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.workspace.folder_content import Content

__all__ = ["Loaded", "Settings", "load", "parse_size"]

ENV_PREFIX = "MCP_BRIDGE_"
FILE_NAME = CONFIG_NAME

ENV_ALIASES = {"OUTPUT_MODE": "output"}
"""Names of an earlier bridge that differ from ours."""

TABLES = ("policy", "tools", "programs", "secrets", "files", "projection", "model", "principals", "authentication")
"""Tables of the file in addition to `[servers.NAME]`; `governance.governance` passes each to its decoder."""

OWN_TABLES = {
    "search": "its model would be sent your queries",
    "telemetry": "its collector would learn what you run",
    "http": "it would say who reaches your bridge, and how",
    "sessions": "it would say how many containers your bridge keeps",
    "install": "it would say what your bridge installs",
    "principals": "it would say who may use your bridge, and how",
    "authentication": "it would say whom your bridge believes",
}
"""Tables that a folder's file can't have, and why."""

NESTED = {"ledger", "search", "telemetry", "http", "sessions", "install"}
"""Settings that are tables, and so can't be set by environment variables."""

ENV_OTHER = {"CONFIG", "NESTED"}
"""Variables with our prefix that aren't settings."""

BOUNDS = (
    "max_timeout",
    "wall_timeout",
    "sandbox_start_timeout",
    "memory",
    "pids",
    "cpus",
    "tmp_size",
    "workspace_size",
    "max_output_size",
    "max_artifact_size",
    "max_in_flight",
    "max_calls",
    "max_call_size",
    "max_concurrent",
    "max_queued",
    "pool_min",
    "pool_max",
)
"""Settings for which the smaller value of the user's own file and the folder's applies."""

PERMISSIONS = ("allow_self_server", "resume_waits")
"""Settings that are off if the user's own file turns them off, whatever the folder's says."""


MAX_PIDS, MAX_CPUS = 1 << 22, 1 << 13
"""What the kernel's counters hold (`PID_MAX_LIMIT`, `NR_CPUS`); an engine's error for more tells nothing."""

MIN_CPUS = 0.01
"""The kernel's least quota: a millisecond of the hundred that a period has."""

MAX_ID = (1 << 32) - 2
"""The maximum user or group id: the next one means none (chown(2))."""


def _listed(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _packages(value: Any) -> Any:
    if isinstance(value, dict):
        raise ValueError("is a list of packages for the image; what scripts may ask for is allow in [install]")  # noqa: TRY004
    return _listed(value)


def _user(value: Any) -> Any:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and not re.fullmatch(r"[1-9]\d*(:\d+)?", text, re.ASCII):
        raise ValueError("must be the number of a user, or of a user and a group, such as 1000 or 1000:1000; never 0")
    if isinstance(text, str) and max(map(int, text.split(":"))) > MAX_ID:
        raise ValueError(f"is over {MAX_ID}, the highest number that a user or a group can have")
    return text


def _clients(value: Any) -> Any:
    """A flag, or names of clients; each unknown name is an error that says what there is."""
    named = _listed(value)
    if isinstance(named, list) and len(named) == 1 and str(named[0]).lower() in _FLAGS:
        return _FLAGS[str(named[0]).lower()]
    for name in named if isinstance(named, (list, tuple)) else ():
        if name not in CLIENT_NAMES:
            raise ValueError(f"there is no client {name!r}; clients are {', '.join(CLIENT_NAMES)}")
    return named


_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
"""What stands for a flag in an environment variable, as pydantic has it."""


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(ConfiguredTable):
    """The settings. Sizes are bytes, times are seconds."""

    image: Annotated[str | None, Field(description="Local image to use instead of a built one; never pulled")] = None
    profile: Annotated[str, Field(description="Package profile of the built image: base or data")] = "base"
    packages: Annotated[
        tuple[str, ...], BeforeValidator(_packages), Field(description="More packages for the built image")
    ] = ()
    languages: Annotated[
        tuple[Language, ...],
        BeforeValidator(_listed),
        Field(min_length=1, description="What scripts may be written in: python, javascript"),
    ] = ("python",)
    runtime: Annotated[
        Literal["auto", "oci", "podman", "docker"],
        Field(description="Container engine; oci is crun or runc without one"),
    ] = "auto"
    oci_runtime: Annotated[str, Field(description="Low-level runtime, such as runc or crun")] = "auto"

    timeout: Annotated[Seconds, Field(description="A script's own running time, unless the call says otherwise")] = 30.0
    max_timeout: Annotated[Seconds, Field(description="The most a call may ask for")] = 120.0
    wall_timeout: Annotated[Seconds, Field(description="Bound on a run, waiting for tools included")] = 600.0
    sandbox_start_timeout: Annotated[Seconds, Field(description="Until a sandbox answers")] = 60.0

    memory: Annotated[Size, Field(description="A sandbox's memory")] = 512 << 20
    pids: Annotated[int, Field(ge=8, le=MAX_PIDS, description="A sandbox's processes and threads")] = 128
    cpus: Annotated[
        float, Field(ge=MIN_CPUS, le=MAX_CPUS, allow_inf_nan=False, description="A sandbox's processors")
    ] = 1.0
    tmp_size: Annotated[Size, Field(description="Size of /tmp")] = 64 << 20
    workspace_size: Annotated[Size, Field(description="Size of /workspace")] = 128 << 20
    container_user: Annotated[str, BeforeValidator(_user), Field(description="uid[:gid] in the sandbox; never 0")] = (
        "65534:65534"
    )

    output: Annotated[Literal["compact", "toon", "json"], Field(description="Form of the answer's text")] = "compact"
    structured: Annotated[
        Literal["auto", "always", "never"],
        Field(
            description="The record as structured content: auto (not where a model would be shown it), always, never"
        ),
    ] = "auto"
    max_output_chars: Annotated[
        int, Field(ge=1000, description="Most characters of one answer that a model can be shown")
    ] = 30_000
    max_output_size: Annotated[Size, Field(description="Most a script may print before it is ended")] = 32 << 20
    max_artifact_size: Annotated[Size, Field(description="Most a run may keep in files")] = 64 << 20

    max_in_flight: Annotated[int, Field(ge=1, description="Concurrent tool calls of one run")] = 64
    max_calls: Annotated[int, Field(ge=1, description="Requests one run may make")] = 10_000
    max_call_size: Annotated[Size, Field(description="Bytes one run may send in requests")] = 256 << 20
    max_concurrent: Annotated[int, Field(ge=1, description="Concurrent runs; further ones wait")] = 8
    resume_waits: Annotated[
        bool, Field(description="Whether a server automatically resumes executions whose wait is over")
    ] = True
    max_queued: Annotated[
        int, Field(ge=0, description="Runs of one principal that wait; further ones are refused as busy")
    ] = 100

    pool_min: Annotated[int, Field(ge=0, description="Sandboxes that a server keeps ready when it is idle")] = 1
    pool_max: Annotated[
        int, Field(ge=0, description="The most that it keeps ready under load, if over pool_min; 0 for no pool")
    ] = 4

    client_configs: Annotated[
        bool | tuple[ClientName, ...],
        BeforeValidator(_clients),
        Field(description="Clients whose files servers are read from; true is Claude Code alone, false none"),
    ] = True
    logins: Annotated[
        Literal["file", "keyring"],
        Field(description="Where logins to remote servers are kept: the state directory or the system's keyring"),
    ] = "file"
    allow_self_server: Annotated[
        bool,
        Field(description="Allow this bridge behind itself, as a process of its own, and bridges of clients' files"),
    ] = False
    env_pass: Annotated[
        EnvPass,
        BeforeValidator(chosen_variables),
        Field(description="Variables that servers get: all, minimal, or these; never the bridge's own"),
    ] = "all"  # noqa: S105 - no password
    runtime_idle_timeout: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="Stop a server unused for so long; 0 for never")
    ] = 300.0

    state_dir: Annotated[
        HomePath, Field(description="Where the ledger, its keys, artifacts, memories and caches are")
    ] = Field(default_factory=lambda: platformdirs.user_state_path("mcp-bridge"))
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
        Field(description="What is logged to standard error"),
    ] = "warning"
    log_format: Annotated[
        Literal["text", "json"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
        Field(description="Form of log records: text, or json with one object a line"),
    ] = "text"
    log_file: Annotated[HomePath | None, Field(description="A file that is logged to as well")] = None

    ledger: Annotated[LedgerConfig, Field(description="What is stored of executions; a table of the file")] = (
        LedgerConfig()
    )

    search: Annotated[SearchConfig, Field(description="How tools are searched; a table of the file")] = SearchConfig()

    telemetry: Annotated[TelemetryConfig, Field(description="Where traces and metrics go; a table of the file")] = (
        TelemetryConfig()
    )

    http: Annotated[HttpSettings, Field(description="How it is served over HTTP; a table of the file")] = HttpSettings()

    sessions: Annotated[SessionSettings, Field(description="What sessions may take; a table of the file")] = (
        SessionSettings()
    )

    install: Annotated[InstallSettings, Field(description="What scripts may have installed; a table of the file")] = (
        InstallSettings()
    )

    @property
    def clients(self) -> tuple[ClientName, ...]:
        """The clients whose files servers are read from, the highest precedence first."""
        if isinstance(self.client_configs, bool):
            return ("claude-code",) if self.client_configs else ()
        return self.client_configs

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.timeout > self.max_timeout:
            raise ValueError(f"timeout ({self.timeout:g}) is over max_timeout ({self.max_timeout:g})")
        return self


@dataclass(frozen=True, slots=True)
class Layer:
    """The content of one configuration file besides settings.

    Attributes:
        file: The file; None if there is none.
        base: The folder for relative paths in it.
        servers: The `[servers.NAME]` tables, undecoded.
        tables: The other tables (`TABLES`) in the file, undecoded: each has its own decoder.
        trusted: For a folder's file, the trusted content; None for a file that a person has chosen.
    """

    file: Path | None
    base: Path
    servers: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    tables: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    trusted: Content | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration.

    Attributes:
        settings: The settings.
        layers: The other content of the files: the user's own (or the chosen one) first, then the folder's, if it is
            trusted. One or two layers.
        named: Whether a person has chosen the file: then there is no other, and no floor.
        trust: The user's trust records.
        ignored_files: The folder's files that are ignored.
    """

    settings: Settings
    layers: tuple[Layer, ...]
    named: bool
    trust: TrustStore
    ignored_files: tuple[IgnoredFile, ...] = ()

    @property
    def file(self) -> Path | None:
        """The file with the highest precedence, or None."""
        return self.layers[-1].file

    @property
    def has_tables(self) -> bool:
        """Whether a file configures policy, tools, programs, secrets, projections or model."""
        return any(layer.tables for layer in self.layers)


def load(
    explicit: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    folder: bool = True,
) -> Loaded:
    """Read the configuration.

    Args:
        explicit: The file given by `--config`; it must exist.
        environ: The environment.
        cwd: The folder that may have a `mcp-bridge.toml`.
        folder: Whether to read it. Commands on files that may be anybody's don't.

    Raises:
        BridgeError: `bad_config`, naming file, line and key; `config_missing` for a chosen file that doesn't exist.
    """
    named = _named(explicit, environ)
    here = real_folder(cwd or Path.cwd())
    own_file = user_file()
    raw: list[_Raw] = []
    over: tuple[IgnoredFile, ...] = ()
    if named is not None:
        raw.append(_Raw(named, _read(named)))
        trust = TrustStore(trust_directory(environ, _own_state_dir(own_file)))
    else:
        if own_file.is_file():
            raw.append(_Raw(own_file, _read(own_file)))
        trust = TrustStore(trust_directory(environ, raw[0].table.get("state_dir") if raw else None))
        file = here / FILE_NAME
        trusted_file = trusted(file, trust, lambda data: _parsed(data, file)) if folder else None
        if isinstance(trusted_file, IgnoredFile):
            over = (trusted_file,)
        elif trusted_file is not None:
            raw.append(_Raw(file, trusted_file[1], trusted_file[0]))
    settings, layers = _decoded(raw, environ)
    return Loaded(settings, layers or (Layer(None, here),), named is not None, trust, over)


def user_file() -> Path:
    """The path of the user's own configuration, which may not exist."""
    return platformdirs.user_config_path("mcp-bridge") / "config.toml"


def trust_directory(environ: Mapping[str, str], own: object) -> Path:
    """The state directory with the trust records: the user's, independent of the folder.

    Args:
        environ: The environment.
        own: `state_dir` in the user's own file.
    """
    chosen = environ.get(ENV_PREFIX + "STATE_DIR")
    path = Path(os.path.expanduser(chosen)) if chosen else None  # noqa: PTH111  (an unknown user is told elsewhere)
    if path is None and isinstance(own, str):
        path = user_file().parent / os.path.expanduser(own)  # noqa: PTH111
    return path if path is not None and path.is_absolute() else platformdirs.user_state_path("mcp-bridge")


def _own_state_dir(file: Path) -> object:
    """`state_dir` in the user's own file if another file is used; errors in the user's file are then ignored."""
    try:
        return _read(file).get("state_dir") if file.is_file() else None
    except BridgeError:
        return None


@dataclass(frozen=True, slots=True)
class _Raw:
    """A parsed configuration file."""

    file: Path
    table: dict[str, Any]
    content: Content | None = None


def _decoded(raw: list[_Raw], environ: Mapping[str, str]) -> tuple[Settings, tuple[Layer, ...]]:
    """The settings of all files, the later ones overlaying the earlier, and the layers."""
    values: dict[str, Any] = {}
    layers = []
    for raw_layer in raw:
        layer, table = _layer(raw_layer)
        if layer.trusted is not None:
            for name in OWN_TABLES.keys() & {*table, *layer.tables}:
                raise _bad(
                    f"{name} is not a folder's to set: {OWN_TABLES[name]}",
                    layer.file,
                    name,
                    hint=f"Write [{name}] into your own configuration.",
                )
        layers.append(layer)
        # Validated one by one first, so that an error names the file that has it.
        _settings(table, raw_layer.file, environ)
        table = _anchored(table, layer.base)
        values = _laid_over(values, table) if layer.trusted else table
    file = raw[-1].file if raw else None
    return _settings(values, file, environ), tuple(layers)


def _layer(raw: _Raw) -> tuple[Layer, dict[str, Any]]:
    """The layer, and the table without the layer's parts.

    Raises:
        BridgeError: `bad_config`.
    """
    file, table = raw.file, dict(raw.table)
    servers = table.pop("servers", {})
    if not isinstance(servers, dict) or not all(isinstance(entry, dict) for entry in servers.values()):
        raise _bad("servers are tables: write [servers.NAME]", file, "servers")
    tables = {name: table.pop(name) for name in TABLES if name in table}
    for name, value in tables.items():
        if not isinstance(value, dict):
            raise _bad(f"{name} is a table: write [{name}]", file, name)
    known = sorted([*Settings.model_fields, "servers", *TABLES])
    for key, value in table.items():
        if isinstance(value, str) and "\0" in value:
            raise _bad(f"{key} holds a NUL character, which no path may", file, key)
        if key not in Settings.model_fields:
            servers = key.replace("_", "").lower() == "mcpservers"
            hint = "Write [servers.NAME]." if servers else _elsewhere(key) or suggestion(key, known, "Settings")
            raise _bad(f"there is no setting {key!r}", file, key, hint=hint)
    return Layer(file, file.absolute().parent, servers, tables, raw.content), table


def checked(data: bytes, file: Path) -> dict[str, Any]:
    """The undecoded content of a configuration file if its settings are valid. It isn't put in force.

    Raises:
        BridgeError: `bad_config`.
    """
    table = _parsed(data, file)
    _settings(_layer(_Raw(file, table))[1], file, {})
    return table


def _settings(table: dict[str, Any], file: Path | None, environ: Mapping[str, str]) -> Settings:
    values = table | _from_environment(environ, [name for name in Settings.model_fields if name not in NESTED])
    try:
        return Settings.model_validate(values)
    except ValidationError as exc:
        raise _from_validation(exc, file, environ) from None


def _laid_over(own: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """The user's own settings overlaid by a folder's; both are valid."""
    values = own | table
    for key in own.keys() & table.keys():
        if key in BOUNDS:
            values[key] = min(own[key], table[key], key=_number)
        elif key in PERMISSIONS:
            values[key] = own[key] if not _permits(key, own) else table[key]
    if "client_configs" in table:
        permitted = _read_clients(own.get("client_configs", True))
        values["client_configs"] = [name for name in _read_clients(table["client_configs"]) if name in permitted]
    if "languages" in own and "languages" in table:
        allowed, asked = _listed(own["languages"]), _listed(table["languages"])
        # With none in common, none of the folder's is allowed.
        values["languages"] = [language for language in allowed if language in asked] or allowed
    if "logins" in table:
        # The user's logins are kept where the user says.
        values["logins"] = own.get("logins", Settings.model_fields["logins"].default)
    if chosen_variables(own.get("env_pass", "all")) != "all":
        values["env_pass"] = own["env_pass"]
    if "timeout" in table and "max_timeout" in own:
        values["timeout"] = min(table["timeout"], own["max_timeout"], key=_number)
    if "ledger" in own and "ledger" in table:
        values["ledger"] = own["ledger"] | table["ledger"]
    return values


def _number(value: Any) -> float:
    """The number of a valid limit: a number, or a text that is a number or size."""
    try:
        return float(value)
    except ValueError:
        return float(parse_size(value))


def _read_clients(value: Any) -> tuple[ClientName, ...]:
    return Settings.model_validate({"client_configs": value}).clients


def _permits(key: str, own: dict[str, Any]) -> bool:
    return bool(getattr(Settings.model_validate({key: own[key]}), key))


def _anchored(table: dict[str, Any], base: Path) -> dict[str, Any]:
    """The valid table with its own files and folders resolved relative to its file's folder."""
    for name in ("state_dir", "log_file"):
        if name in table:
            table = table | {name: str(base / Path(table[name]).expanduser())}
    embeddings = table.get("search", {}).get("embeddings", "")
    if embeddings.startswith(("./", "../")):
        table = table | {"search": table["search"] | {"embeddings": str((base / embeddings).resolve())}}
    ledger = table.get("ledger", {})
    targets = [
        target | {"file": str(base / Path(target["file"]).expanduser())} if "file" in target else target
        for target in ledger.get("publish", ())
    ]
    return table | {"ledger": ledger | {"publish": targets}} if targets else table


def named_file(explicit: Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file chosen by `--config` or the environment, whether it exists or not."""
    named = explicit or (Path(environ[ENV_PREFIX + "CONFIG"]) if environ.get(ENV_PREFIX + "CONFIG") else None)
    # Of a user who isn't there, there is no file, either.
    with suppress(RuntimeError):
        named = named and named.expanduser()
    return named


def _named(explicit: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = named_file(explicit, environ)
    if named is None:
        return None
    if not named.is_file() and str(named) != os.devnull:
        whose = "--config" if explicit else "MCP_BRIDGE_CONFIG"
        raise BridgeError(
            "config_missing",
            f"{named} is a folder, and no configuration file."
            if named.is_dir()
            else f"There is no configuration file {named}.",
            hint=f"{whose} names it. Name a file, such as {named / FILE_NAME if named.is_dir() else FILE_NAME}.",
            file=str(named),
        )
    return named


def _read(file: Path) -> dict[str, Any]:
    try:
        data = file.read_bytes()
    except OSError as exc:
        hint = "See to its owner and mode, or name another file with --config."
        raise BridgeError("bad_config", f"{file} can't be read: {exc.strerror}.", hint=hint, file=str(file)) from None
    return _parsed(data, file)


def _parsed(data: bytes, file: Path) -> dict[str, Any]:
    try:
        return toml_reader.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        hint = "Save it as UTF-8."
        raise BridgeError("bad_config", f"{file} is not UTF-8 text.", hint=hint, file=str(file)) from None
    except RecursionError:
        raise BridgeError("bad_config", f"{file}: not TOML: it nests too deeply.", file=str(file)) from None
    except tomllib.TOMLDecodeError as exc:
        match = re.search(r"line (\d+)", str(exc))
        line = int(match[1]) if match else None
        hint = 'Write NAME = VALUE, with text in quotes ("text"), and tables as [servers.NAME].'
        if data.startswith(codecs.BOM_UTF8):
            hint = "It begins with a byte order mark, which editors don't show: save it as UTF-8 without one."
        raise BridgeError("bad_config", f"{file}: not TOML: {exc}.", hint=hint, file=str(file), line=line) from None


def _from_environment(environ: Mapping[str, str], known: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name.startswith(ENV_PREFIX + "TEST_"):
            continue
        short = name.removeprefix(ENV_PREFIX)
        key = ENV_ALIASES.get(short, short.lower())
        if short in ENV_OTHER or text == "":
            continue
        if key not in known:
            choices = [field.upper() for field in known] + list(ENV_ALIASES)
            raise BridgeError(
                "bad_config",
                f"The environment has {name}, and there is no such setting.",
                hint=suggestion(short, sorted(choices), "Settings", ENV_PREFIX),
                variable=name,
            )
        values[key] = text
    return values


def _from_validation(exc: ValidationError, file: Path | None, environ: Mapping[str, str]) -> BridgeError:
    first, *others = exc.errors(include_url=False, include_context=False)
    key = str(first["loc"][0]) if first["loc"] else ""
    # For a table, its key.
    depth = 2 if key in NESTED else 1
    path = tuple(str(part) for part in first["loc"][:depth])
    # Of a value that may be of several kinds, each has its error, whose place ends with the kind.
    of_kinds = [
        other
        for other in others
        if first["loc"] != other["loc"][:depth] == first["loc"][:depth]
        and all(len(error["loc"]) > depth and isinstance(error["loc"][depth], str) for error in (first, other))
    ]
    # Messages of our own validators are complete sentences.
    unknown = first["type"] == "extra_forbidden"
    wrong = "there is no such setting" if unknown else union_error_message([first, *of_kinds])
    message = f"{'.'.join(path)}: {wrong}" if key else wrong
    for short in (key.upper(), *(alias for alias, name in ENV_ALIASES.items() if name == key)):
        variable = ENV_PREFIX + short
        if environ.get(variable):
            return BridgeError("bad_config", f"{variable}: {wrong}.", hint=_example(path, variable), variable=variable)
    if not key:
        return _bad(message, file, hint="Raise the one, or lower the other.")
    return _bad(message, file, *path, hint=_example(path))


EXAMPLES: Mapping[str, Any] = MappingProxyType(
    {
        "image": "localhost/my-image:1",
        "packages": ["python-dateutil"],
        "env_pass": ["KUBECONFIG", "SSL_CERT_*"],
        "memory": "512m",
        "tmp_size": "64m",
        "workspace_size": "128m",
        "max_output_size": "32m",
        "max_artifact_size": "64m",
        "max_call_size": "256m",
        "state_dir": "/home/me/mcp-bridge-state",
        "log_file": "/home/me/mcp-bridge.log",
        "telemetry.otlp": "http://127.0.0.1:4318",
        "telemetry.listen": "127.0.0.1:9464",
        "install.allow": ["polars", "requests>=2,<3"],
        "install.max_size": "256m",
        "install.cache_size": "2g",
        "http.allowed_hosts": ["bridge.example.com"],
        "http.allowed_origins": ["https://app.example.com"],
        "ledger.max_size": "4g",
        "ledger.max_run_size": "512m",
        "ledger.max_files_size": "1g",
        "ledger.min_free": "256m",
        "ledger.subject_fields": ["customer"],
        "ledger.publish": [{"file": "/mnt/elsewhere/checkpoints.txt"}],
    }
)
"""Example values for settings whose defaults don't show the format."""


def _example(path: tuple[str, ...], variable: str | None = None) -> str:
    """What to write for a setting, or for its environment variable."""
    model: Any = Settings if len(path) == 1 else Settings.model_fields[path[0]].annotation
    field = model.model_fields.get(path[-1])
    if field is None:
        return _elsewhere(path[-1]) or suggestion(path[-1], sorted(model.model_fields), "Settings")
    value = EXAMPLES.get(".".join(path), field.default)
    if isinstance(value, BaseModel):
        return f"Write a table: [{path[-1]}]."
    if variable is not None:
        text = ",".join(value) if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else value
        return f"Write {variable}={text}: {field.description}."
    written = json.dumps(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        written = "[{ " + ", ".join(f"{name} = {json.dumps(each)}" for name, each in value[0].items()) + " }]"
    return f"Write {path[-1]} = {written}: {field.description}."


def _bad(message: str, file: Path | None, *path: str, hint: str | None = None) -> BridgeError:
    line = line_of(file, *path) if file and path else None
    where = f"{file}, line {line}: " if line else f"{file}: " if file else ""
    return BridgeError(
        "bad_config",
        f"{where}{message}.",
        hint=hint,
        file=str(file) if file else None,
        line=line,
        key=path[0] if path else "",
    )


def _elsewhere(key: str) -> str | None:
    """A hint for a key that is written in a wrong place: where it belongs; None if there is no such key anywhere."""
    if key in Settings.model_fields:
        return "Write it at the top of the file, above every [table]."
    from mcp_bridge.policy.rules.policy_settings import Policy  # noqa: PLC0415  (few keys are wrong)

    tables: dict[str, Any] = {name: Settings.model_fields[name].annotation for name in NESTED} | {"policy": Policy}
    having = [f"[{name}]" for name, model in sorted(tables.items()) if key in model.model_fields]
    return f"Write it below {' or '.join(having)}." if having else None
