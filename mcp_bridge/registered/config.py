"""The configuration table `[tools]`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from mcp_bridge.configured_values import ConfiguredTable, HomePath
from mcp_bridge.errors import BridgeError, ended
from mcp_bridge.near_names import nearest
from mcp_bridge.toml_files.line_numbers import line_of
from mcp_bridge.toml_files.refused_values import example, said

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def _module(name: str) -> str:
    if _MODULE.fullmatch(name) is None or name.endswith(".py"):
        meant = name.rpartition("/")[2].removesuffix(".py")
        more = f"; did you mean {meant!r}?" if meant != name and _MODULE.fullmatch(meant) else ""
        raise ValueError(f"{name!r} is no module's name{more}")
    return name


class ToolsConfig(ConfiguredTable):
    """What to load. Unknown keys are refused.

    Without `modules`, all top-level modules and packages of the folders in `path` are loaded, except those whose names
    begin with `_` or `.`.
    """

    modules: Annotated[
        tuple[Annotated[str, AfterValidator(_module)], ...],
        Field(description="Modules that declare tools: of the folders in path, or installed"),
    ] = ()
    path: Annotated[
        tuple[HomePath, ...],
        Field(description="Folders of such modules, from the configuration file's folder"),
    ] = ()
    entry_points: Annotated[
        bool, Field(description="Load what installed packages offer as entry points of the group mcp_bridge.tools")
    ] = True


def tools_config(table: Mapping[str, Any], file: Path | None = None) -> ToolsConfig:
    """Decode the table.

    Args:
        table: The decoded TOML table.
        file: The configuration file, for errors.

    Raises:
        BridgeError: `bad_config`, naming file, line and key.
    """
    try:
        return ToolsConfig.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    dotted = f"tools.{key}" if key else "tools"
    hint = None
    if first["type"] == "extra_forbidden":
        message = f"there is no setting {dotted!r}"
        known = list(ToolsConfig.model_fields)
        close = nearest(key, known)
        hint = f"Did you mean {close[0]}?" if close else f"Settings: {', '.join(known)}."
    else:
        message = f"{dotted}: {said(first) if key else 'must be a table: write [tools]'}"
        hint = example(first)
    line = line_of(file, "tools", key) if file else None
    where = f"{file}, line {line}: " if line else f"{file}: " if file else ""
    raise BridgeError(
        "bad_config",
        ended(f"{where}{message}"),
        hint=hint,
        file=str(file) if file else None,
        line=line,
        key=dotted,
    )
