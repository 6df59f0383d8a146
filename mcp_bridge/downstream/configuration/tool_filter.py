"""Which tools of a server the configuration lets through: `include_tools` and `exclude_tools`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_bridge.downstream.configuration.spec import ServerSpec


def lets_through(spec: ServerSpec, tool: str) -> bool:
    """Whether a server's tool of this name exists for the bridge. Excluded tools don't, even if they are included."""
    included = spec.include_tools is None or any(fnmatchcase(tool, pattern) for pattern in spec.include_tools)
    return included and not any(fnmatchcase(tool, pattern) for pattern in spec.exclude_tools)
