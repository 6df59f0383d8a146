"""What a client's files permit a server and its tools: whether the client starts it, and which calls it asks about.

The bridge reads filters of tools, and takes them over. What a client asks a person about, or denies beside the server's
entry, is the client's own, and holds no longer once the server is behind the bridge.
"""

from __future__ import annotations

import os
import re
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.downstream.configuration import client_file_reading
from mcp_bridge.downstream.configuration.claude_code_approvals import Denials, folders_without
from mcp_bridge.downstream.configuration.client_entries import (
    EntryContext,
    EntryError,
    decode,
    opencode_rules,
    opencode_said,
    shape,
    shaped,
)
from mcp_bridge.downstream.configuration.git_root import claude_code_projects
from mcp_bridge.downstream.configuration.known_clients import claude_code_settings
from mcp_bridge.downstream.configuration.tool_filter import lets_through

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mcp_bridge.downstream.configuration.known_clients import Client
    from mcp_bridge.downstream.configuration.spec import ServerSpec

_FOLDER_SETTINGS = (".claude/settings.json", ".claude/settings.local.json")
"""Claude Code's settings in a folder."""


class Permission(NamedTuple):
    """What a client does before a call.

    Attributes:
        tool: The tool's name or pattern; `*` for all.
        effect: What does the same behind the bridge, in a rule of the policy: `approve` or `deny`.
    """

    tool: str
    effect: str


def why_not_started(
    client: Client, name: str, entry: Any, settings: Sequence[Mapping[str, Any]], tools: Collection[str]
) -> str | None:
    """Why a client doesn't give its model the bridge that has this entry, or None; the rest of a sentence.

    Args:
        client: The client.
        name: The entry's name.
        entry: The entry.
        settings: What the client's files say, as `EntryContext.settings`.
        tools: The bridge's tools that run code. One of them is enough.
    """
    try:
        found = shape(client.name, entry, EntryContext(name, settings, os.environ))
    except EntryError:
        return None
    content: Mapping[str, Any] = reduce(client_file_reading.merged, settings)
    if found.entry.get("disabled") is True:
        return f"{name!r} is disabled{_GEMINI_SWITCHES if client.name == 'gemini' else ' in it'}"
    spec = shaped(decode(name, found.entry, "", "config"), found)
    if client.name == "claude-code" and (why := why_switched_off(spec, content, claude_code_projects(Path.cwd()))):
        return f"{name!r} {why}"
    called = " or ".join(tools)
    if client.name == "opencode":
        shown = [tool for tool in tools if opencode_said(name, tool, content.get("tools")) is not False]
        permitted = [tool for tool in shown if opencode_said(name, tool, content.get("permission")) != "deny"]
    else:
        shown = [tool for tool in tools if lets_through(spec, tool)]
        denied = {rule.tool for rule in permissions(client, name, entry, content) if rule.effect == "deny"}
        permitted = [tool for tool in shown if not denied & {"*", tool}]
    if not shown:
        return f"{name!r} may not show its tool {called}"
    if not permitted:
        return f"{client.title}'s permissions deny {name!r} its tool {' or '.join(shown)}"
    return None


_GEMINI_SWITCHES = " (see mcp.allowed and mcp.excluded, and `gemini mcp enable`)"


def why_switched_off(spec: ServerSpec, content: Mapping[str, Any], folders: Collection[str] | None) -> str | None:
    """Why Claude Code doesn't start a server that it has, or None; the rest of a sentence.

    Args:
        spec: The server.
        content: Claude Code's file.
        folders: The folders that matter, as keys of `projects` in it; None for all.
    """
    if Denials.of(client_file_reading.read(claude_code_settings(Path.home(), os.environ), "json", [])).deny(spec):
        return "is denied there (deniedMcpServers)"
    projects = content.get("projects")
    off = folders_without(projects, spec.name) if isinstance(projects, dict) else []
    found = [folder for folder in off if folders is None or folder in folders]
    return f"is switched off there for {found[0]} (`/mcp` switches it on)" if found else None


def permissions(client: Client, name: str, entry: Any, content: Mapping[str, Any]) -> list[Permission]:
    """What a client asks about or denies of a server's tools, and that doesn't move along with it."""
    match client.name:
        case "codex":
            found = _codex(entry)
        case "claude-code":
            found = _claude_code(name)
        case "opencode":
            effects = {"ask": "approve", "deny": "deny"}
            found = (
                Permission(pattern, effects[said])
                for pattern, said in opencode_rules(name, content.get("permission"))
                if said in effects
            )
        case _:
            return []
    return list(dict.fromkeys(found))


def lost_protection(client: Client, name: str, entry: Any, content: Mapping[str, Any], config: Path) -> list[str]:
    """What is said of a server's permissions when it moves behind the bridge: one line for each effect."""
    found = permissions(client, name, entry, content)
    lines = []
    for effect, does in (("approve", "asks before it calls"), ("deny", "denies")):
        if tools := [rule.tool for rule in found if rule.effect == effect]:
            what = "every tool" if "*" in tools else ", ".join(tools)
            written = ", ".join(f'"{name}.{tool}"' for tool in (["*"] if "*" in tools else tools))
            lines.append(
                f"{client.title} {does} {what} of {name!r}, and has no say behind the bridge: write [[policy.rules]] "
                f'with tools = [{written}] and effect = "{effect}" into {config}.'
            )
    return lines


def _codex(entry: Any) -> Iterator[Permission]:
    if not isinstance(entry, dict):
        return
    if entry.get("default_tools_approval_mode") == "prompt":
        yield Permission("*", "approve")
    tools = entry.get("tools")
    for tool, settings in tools.items() if isinstance(tools, dict) else ():
        if isinstance(settings, dict) and settings.get("approval_mode") == "prompt":
            yield Permission(tool, "approve")


def _claude_code(name: str) -> Iterator[Permission]:
    called = "mcp__" + re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    files = [claude_code_settings(Path.home(), os.environ), *(Path.cwd() / path for path in _FOLDER_SETTINGS)]
    for file in files:
        settings = client_file_reading.member(client_file_reading.read(file, "json", []), "permissions", file, [])
        for key, effect in (("ask", "approve"), ("deny", "deny")):
            rules = settings.get(key)
            for rule in rules if isinstance(rules, list) else ():
                if rule == called:
                    yield Permission("*", effect)
                elif isinstance(rule, str) and rule.startswith(f"{called}__"):
                    yield Permission(rule.removeprefix(f"{called}__"), effect)
