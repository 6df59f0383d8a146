"""Names of servers and tools as scripts and programs write them."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from mcp_bridge.downstream.catalog.aliases import derive
from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import nearest
from mcp_bridge.policy.rules.globs import ToolNames

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo


def tool_names(tool: ToolInfo) -> ToolNames:
    """A tool's names, for the policy."""
    return _names(tool.server, tool.name, tool.server_alias, tool.alias)


@functools.lru_cache(maxsize=1024)
def _names(server: str, tool: str, server_alias: str, alias: str) -> ToolNames:
    # Every call asks for the names of its tool.
    return ToolNames(server, tool, server_alias, alias, derive(server, lower=True), derive(tool))


def resolve(name: str, allowed: Mapping[str, str]) -> str:
    """A configured name from a name or an alias.

    Raises:
        BridgeError: `unknown_server`, with the nearest names; it doesn't tell of servers outside `allowed`.
    """
    if (configured := _configured(name, allowed)) is not None:
        return configured
    known: Sequence[str] = [*allowed, *allowed.values()]
    close = nearest(name, known)
    if close:
        hint = f"Did you mean {', '.join(dict.fromkeys(close))}?"
    else:
        hint = f"Servers: {', '.join(sorted(allowed))}." if allowed else "None is configured."
    raise BridgeError(
        "unknown_server", f"There is no server {name[:100]!r}.", hint=hint, server=name[:100], nearest=close
    )


def _configured(name: str, allowed: Mapping[str, str]) -> str | None:
    """The configured name that a name or an alias stands for, regardless of case if nothing else fits."""
    if name in allowed:
        return name
    folded = name.casefold()
    for configured, alias in allowed.items():
        if folded in {alias.casefold(), configured.casefold()}:
            return configured
    return None


_MAX_LOOKED_AT = 1 << 20
"""Most characters of a script's code that are searched for names of servers."""

_IMPORTS = re.compile(
    r"\bmcp(?:\.sync)?\.servers"
    r"(?:\.(?P<module>\w{1,200})|[ \t]{1,9}import[ \t]{0,9}(?P<names>\([^)]{0,4000}|[^\n;(]{1,1000}))"
)
_COMMENT = re.compile(r"#[^\n]*")
_MENTIONS = re.compile(r"""\bmcp_servers\[\s?['"](?P<name>[^'"\n]{1,200})|\bmcp_(?P<alias>\w{1,200})""")


def servers_named(code: str, allowed: Mapping[str, str]) -> list[str]:
    """The configured names of the servers that a script imports or has by name, in their order, as far as a look tells.

    It may miss one, which is then started when it is used, and name one that the script won't get to.
    """
    by_alias = {alias: name for name, alias in allowed.items()}
    mentioned = (allowed_name for word in _words(code[:_MAX_LOOKED_AT]) if (allowed_name := by_alias.get(word)))
    named = (name for each in _MENTIONS.finditer(code[:_MAX_LOOKED_AT]) if (name := each["name"]) in allowed)
    return list(dict.fromkeys([*mentioned, *named]))


def _words(code: str) -> Iterator[str]:
    for match in _IMPORTS.finditer(code):
        if match["module"]:
            yield match["module"]
        for part in _COMMENT.sub("", match["names"] or "").split(","):
            # `git as g`: the first word.
            yield from re.findall(r"\w+", part)[:1]
    for match in _MENTIONS.finditer(code):
        if match["alias"]:
            yield match["alias"]


def dotted(name: str, allowed: Mapping[str, str]) -> str:
    """A tool's name as clients write it, `mcp__git__git_log` or `git__git_log`, with a dot behind its server."""
    bare = name.removeprefix("mcp__")
    for server in sorted({*allowed, *allowed.values()}, key=len, reverse=True):
        if bare.startswith(f"{server}__"):
            return f"{server}.{bare.removeprefix(f'{server}__')}"
    return name


def split(name: str, allowed: Mapping[str, str]) -> tuple[str, str]:
    """`git.git_log` into server and tool, the tool empty for a server alone.

    A server's own name may hold dots: the longest that fits wins.

    Raises:
        BridgeError: As `resolve`.
    """
    for cut in [len(name), *(index for index in range(len(name) - 1, 0, -1) if name[index] == ".")]:
        if (server := _configured(name[:cut], allowed)) is not None:
            return server, name[cut + 1 :]
    return resolve(name.partition(".")[0], allowed), ""
