"""Every setting: its name, type, default, and where its value came from.

A setting is a key of the TOML file and, in capitals after `MCP_BRIDGE_`, an environment variable, which wins; the
table `ledger` is in the file alone. The file
is the first there is of `--config`, `$MCP_BRIDGE_CONFIG`, `./mcp-bridge.toml` and the user's configuration directory.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import platformdirs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.sizes import Size, parse_size
from mcp_bridge.toml_lines import line_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Loaded", "Settings", "load", "parse_size"]

ENV_PREFIX = "MCP_BRIDGE_"
FILE_NAME = "mcp-bridge.toml"

ENV_ALIASES = {"OUTPUT_MODE": "output"}
"""Names of an earlier bridge that differ from ours."""

TABLES = ("policy", "tools", "programs", "secrets", "projection", "model")
"""Tables of the file besides `[servers.NAME]`; `bridge.governance` hands each to its part."""

NESTED = {"ledger"}
"""Settings that are tables, and so can't be set in the environment."""

ENV_OTHER = {"CONFIG", "NESTED"}
"""Variables with our prefix that are no settings."""


def _listed(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """The settings. Sizes are bytes, times are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: Annotated[str | None, Field(description="Local image to use instead of a built one; never pulled")] = None
    profile: Annotated[str, Field(description="Package profile of the built image: base or data")] = "base"
    packages: Annotated[
        tuple[str, ...], BeforeValidator(_listed), Field(description="More packages for the built image")
    ] = ()
    runtime: Annotated[Literal["auto", "podman", "docker"], Field(description="Container engine")] = "auto"
    oci_runtime: Annotated[str, Field(description="Low-level runtime, such as runc or crun")] = "auto"

    timeout: Annotated[Seconds, Field(description="A script's own running time, unless the call says otherwise")] = 30.0
    max_timeout: Annotated[Seconds, Field(description="The most a call may ask for")] = 120.0
    wall_timeout: Annotated[Seconds, Field(description="Bound on a run, waiting for tools included")] = 600.0
    sandbox_start_timeout: Annotated[Seconds, Field(description="Until a sandbox answers")] = 60.0

    memory: Annotated[Size, Field(description="A sandbox's memory")] = 512 << 20
    pids: Annotated[int, Field(ge=8, description="A sandbox's processes and threads")] = 128
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False, description="A sandbox's processors")] = 1.0
    tmp_size: Annotated[Size, Field(description="Size of /tmp")] = 64 << 20
    workspace_size: Annotated[Size, Field(description="Size of /workspace")] = 128 << 20
    container_user: Annotated[
        str, Field(pattern=r"^[1-9]\d*(:\d+)?$", description="uid[:gid] in the sandbox; never 0")
    ] = "65534:65534"

    output: Annotated[Literal["compact", "toon", "json"], Field(description="Form of the answer's text")] = "compact"
    structured: Annotated[
        Literal["auto", "always", "never"],
        Field(description="Structured content: auto leaves it out for clients that show it to the model"),
    ] = "auto"
    max_output_chars: Annotated[int, Field(ge=1000, description="Longest text that an answer carries")] = 30_000
    max_output_size: Annotated[Size, Field(description="Most a script may print before it is ended")] = 32 << 20
    max_artifact_size: Annotated[Size, Field(description="Most a run may keep in files")] = 64 << 20

    max_in_flight: Annotated[int, Field(ge=1, description="Tool calls of one run under way at once")] = 64
    max_calls: Annotated[int, Field(ge=1, description="Requests one run may make")] = 10_000
    max_call_size: Annotated[Size, Field(description="Bytes one run may send in requests")] = 256 << 20
    max_concurrent: Annotated[int, Field(ge=1, description="Runs at once; further ones wait")] = 8

    client_configs: Annotated[bool, Field(description="Read servers from Claude Code's and .mcp.json files")] = True
    allow_self_server: Annotated[bool, Field(description="Allow this bridge behind itself")] = False
    runtime_idle_timeout: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="Stop a server unused for so long; 0 for never")
    ] = 300.0

    state_dir: Annotated[Path, Field(description="Where the ledger, its keys, artifacts, memories and caches are")] = (
        Field(default_factory=lambda: platformdirs.user_state_path("mcp-bridge"))
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
        Field(description="What is logged to standard error"),
    ] = "warning"

    ledger: Annotated[LedgerConfig, Field(description="What is kept of executions; a table of the file")] = (
        LedgerConfig()
    )

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.timeout > self.max_timeout:
            raise ValueError(f"timeout ({self.timeout:g}) is over max_timeout ({self.max_timeout:g})")
        return self


class Loaded(BaseModel):
    """Settings with the servers' tables, which `downstream.discovery` reads.

    Attributes:
        file: The configuration file read, or None.
        servers: The `[servers.NAME]` tables, undecoded.
        tables: The other tables (`TABLES`) that the file has, undecoded: each belongs to a part of its own.
    """

    model_config = ConfigDict(frozen=True)

    settings: Settings
    file: Path | None
    servers: dict[str, dict[str, Any]]
    tables: dict[str, dict[str, Any]]


def load(explicit: Path | None = None, *, environ: Mapping[str, str] = os.environ, cwd: Path | None = None) -> Loaded:
    """Read the configuration.

    Args:
        explicit: The file of `--config`; it must exist.
        environ: The environment.
        cwd: Where `./mcp-bridge.toml` is looked for.

    Raises:
        BridgeError: `bad_config`, naming file, line and key; `config_missing` for a named file that isn't there.
    """
    file = _find(explicit, environ, cwd or Path.cwd())
    table = _read(file) if file else {}
    servers = table.pop("servers", {})
    if not isinstance(servers, dict) or not all(isinstance(entry, dict) for entry in servers.values()):
        raise _bad("servers are tables: write [servers.NAME]", file, "servers")
    tables = {name: table.pop(name) for name in TABLES if name in table}
    for name, value in tables.items():
        if not isinstance(value, dict):
            raise _bad(f"{name} is a table: write [{name}]", file, name)
    known = list(Settings.model_fields)
    for key in table:
        if key not in Settings.model_fields:
            raise _bad(f"there is no setting {key!r}", file, key, hint=_nearest(key, [*known, "servers", *TABLES]))
    values = table | _from_environment(environ, [name for name in known if name not in NESTED])
    try:
        settings = Settings.model_validate(values)
    except ValidationError as exc:
        raise _from_validation(exc, file, environ) from None
    return Loaded(settings=settings, file=file, servers=servers, tables=tables)


def _find(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    named = explicit or (Path(environ[ENV_PREFIX + "CONFIG"]) if environ.get(ENV_PREFIX + "CONFIG") else None)
    if named is not None:
        named = named.expanduser()
        if not named.is_file():
            raise BridgeError(
                "config_missing",
                f"There is no configuration file {named}.",
                hint="It was named by --config or MCP_BRIDGE_CONFIG.",
                file=str(named),
            )
        return named
    candidates = (cwd / FILE_NAME, platformdirs.user_config_path("mcp-bridge") / "config.toml")
    return next((path for path in candidates if path.is_file()), None)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except OSError as exc:
        raise BridgeError("bad_config", f"{file} can't be read: {exc.strerror}.", file=str(file)) from None
    except UnicodeDecodeError:
        raise BridgeError("bad_config", f"{file} is not UTF-8 text.", file=str(file)) from None
    except tomllib.TOMLDecodeError as exc:
        found = re.search(r"line (\d+)", str(exc))
        line = int(found[1]) if found else None
        raise BridgeError("bad_config", f"{file}: not TOML: {exc}.", file=str(file), line=line) from None


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
                hint=_nearest(short, choices, ENV_PREFIX),
                variable=name,
            )
        values[key] = text
    return values


def _from_validation(exc: ValidationError, file: Path | None, environ: Mapping[str, str]) -> BridgeError:
    first = exc.errors(include_url=False, include_context=False)[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    # Of a table, the key in it.
    path = tuple(str(part) for part in first["loc"][: 2 if key in NESTED else 1])
    message = f"{'.'.join(path)}: {first['msg']}" if key else first["msg"]
    for short in (key.upper(), *(alias for alias, field in ENV_ALIASES.items() if field == key)):
        if environ.get(ENV_PREFIX + short):
            return BridgeError("bad_config", f"{ENV_PREFIX}{short}: {first['msg']}.", variable=ENV_PREFIX + short)
    return _bad(message, file, *path)


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


def _nearest(name: str, known: list[str], prefix: str = "") -> str:
    """A hint; the prefix is shown and not compared, since what all have in common makes all seem near."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {prefix}{close[0]}?"
    return f"Settings: {', '.join(prefix + option for option in sorted(known))}."
