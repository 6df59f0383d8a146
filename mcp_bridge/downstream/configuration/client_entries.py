"""Entries of servers in clients' files, decoded leniently: an error is the entry's `problem`, unknown keys are ignored.

Each client's own shape is first rewritten into Claude Code's, which `decode` then reads.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.configuration.client_file_reading import SWITCHED_OFF, merged
from mcp_bridge.downstream.configuration.entry_coverage import oauth_of
from mcp_bridge.downstream.configuration.oauth_settings import oauth_settings
from mcp_bridge.downstream.configuration.spec import CALL_TIMEOUT, START_TIMEOUT, Scope, ServerSpec, ServerType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcp_bridge.downstream.configuration.env_pass import EnvPass
    from mcp_bridge.downstream.configuration.known_clients import ClientName

Entry = dict[str, Any]

_TYPE_NAMES: dict[str, ServerType] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}

CODEX_VARIABLES = ("LANG", "LC_ALL", "TMPDIR", "TZ")
"""What Codex passes on to its servers besides what every server gets (`env_pass`) and its entry's `env_vars`."""


_LEAST_CLAUDE_CODE, _MOST_CLAUDE_CODE = 1000, 10**12
"""The milliseconds between which Claude Code's `timeout` counts."""


class EntryError(Exception):
    """An entry can't be read as its client reads it. The argument is the sentence for its `problem`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An entry in Claude Code's shape, and what that shape has no keys for.

    Attributes:
        entry: The entry: `type`, `command`, `args`, `env`, `cwd`, `url`, `headers`, `disabled`.
        call_timeout: Seconds, or None for the default.
        start_timeout: Seconds, or None for the default.
        include_tools: Patterns of the only tools that there are, or None for all.
        exclude_tools: Patterns of tools that there aren't.
        env_pass: As `ServerSpec.env_pass`.
        oauth: The settings of OAuth, as an `oauth` table of ours.
        left: Why some of its settings can't be used by the bridge, or None.
        unset: The variables that the server doesn't get.
    """

    entry: Entry
    call_timeout: float | None = None
    start_timeout: float | None = None
    include_tools: tuple[str, ...] | None = None
    exclude_tools: tuple[str, ...] = ()
    env_pass: EnvPass | None = None
    oauth: Entry = field(default_factory=dict)
    left: str | None = None
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryContext:
    """What an entry is read with.

    Attributes:
        name: The server's name.
        settings: The contents of the client's files that hold for the server, the lowest precedence first: the user's
            as one, then those of a folder, each of which can take away from what is left by those before it, and
            give nothing back.
        environ: The environment, for clients whose entries name variables.
        used: Receives the names of the variables whose values were put in.
    """

    name: str
    settings: Sequence[Mapping[str, Any]]
    environ: Mapping[str, str]
    used: set[str] = field(default_factory=set)

    def variable(self, name: str) -> str | None:
        """The value of a variable, or None."""
        value = self.environ.get(name)
        if value is not None:
            self.used.add(name)
        return value


def shape(client: ClientName, entry: Any, context: EntryContext) -> Shape:
    """A client's entry in Claude Code's shape.

    Raises:
        EntryError: It has a part that can't be read, or that the bridge doesn't support.
    """
    if not isinstance(entry, dict):
        raise EntryError("the entry is not an object.")
    if "envFile" in entry and client in {"cursor", "vscode"}:
        raise EntryError("envFile is not read: write its variables into env, for example as ${env:NAME}.")
    if entry.get("headersHelper") and client == "claude-code" and "url" in entry:
        raise EntryError("headersHelper is not read: write its headers into headers, for example as ${NAME}.")
    if entry.get("sandboxEnabled") and client == "vscode" and "command" in entry:
        raise EntryError("sandboxEnabled is VS Code's own: the bridge would start the server without that sandbox.")
    if client == "gemini" and entry.get("authProviderType", "dynamic_discovery") != "dynamic_discovery":
        raise EntryError("authProviderType is Gemini CLI's own: the bridge can't get that kind of token.")
    oauth, left = oauth_of(client, entry)
    return replace(_SHAPES.get(client, _common)(entry, context), oauth=oauth, left=left)


def decode(name: str, entry: Any, file: str, scope: Scope) -> ServerSpec:
    """An entry in Claude Code's shape, with variables not expanded; an error in it becomes its `problem`."""
    spec = ServerSpec(name=name, source=file, scope=scope)
    if not isinstance(entry, dict):
        return replace(spec, problem="the entry is not an object.")
    spec = replace(spec, enabled=entry.get("disabled") is not True)
    raw_type = entry.get("type")
    kind = _TYPE_NAMES.get(raw_type) if isinstance(raw_type, str) else None
    if raw_type is not None and kind is None:
        return replace(spec, problem=f"type {raw_type!r} is not one of stdio, http, sse.")
    command, args, cwd, url = entry.get("command"), entry.get("args"), entry.get("cwd"), entry.get("url")
    kind = kind or ("auto" if command is None and url is not None else "stdio")
    env, headers = _text_map(entry.get("env")), _text_map(entry.get("headers"))
    wrong: str | None = None
    if kind == "stdio" and not (isinstance(command, str) and command):
        wrong = "command is missing or not a string."
    elif args is not None and not (isinstance(args, list) and all(isinstance(arg, str) for arg in args)):
        wrong = "args is not an array of strings."
    elif env is None or headers is None:
        wrong = f"{'env' if env is None else 'headers'} is not an object of strings."
    elif cwd is not None and not isinstance(cwd, str):
        wrong = "cwd is not a string."
    elif kind != "stdio" and not (isinstance(url, str) and url):
        wrong = "url is missing or not a string."
    if wrong is not None:
        return replace(spec, type=kind, problem=wrong)
    return replace(
        spec,
        type=kind,
        command=command if isinstance(command, str) else "",
        args=tuple(args or ()),
        env=env or {},
        cwd=cwd,
        url=url if isinstance(url, str) else None,
        headers=headers or {},
    )


def shaped(spec: ServerSpec, found: Shape) -> ServerSpec:
    """The configuration with what a `Shape` has besides its entry."""
    return replace(
        spec,
        call_timeout=found.call_timeout or CALL_TIMEOUT,
        start_timeout=found.start_timeout or START_TIMEOUT,
        include_tools=found.include_tools,
        exclude_tools=found.exclude_tools,
        env_pass=found.env_pass,
        oauth=oauth_settings(found.oauth) if found.oauth else None,
        unused=found.left,
        unset=found.unset,
    )


def _text_map(value: Any) -> dict[str, str] | None:
    if value is None:
        return {}
    if not isinstance(value, dict):
        return None
    out: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            return None
        out[name] = str(item)
    return out


def _common(entry: Entry, context: EntryContext) -> Shape:
    """Claude Desktop and Cursor: Claude Code's shape."""
    del context
    return Shape(entry)


def _claude_code(entry: Entry, context: EntryContext) -> Shape:
    del context
    value = entry.get("timeout")
    # It takes anything else, and less than a second (perhaps meant as seconds), for none.
    if isinstance(value, (int, float)) and _LEAST_CLAUDE_CODE <= value < _MOST_CLAUDE_CODE:
        return Shape(entry, call_timeout=value / 1000)
    return Shape(entry)


def _vscode(entry: Entry, context: EntryContext) -> Shape:
    del context
    # It falls back to server-sent events where streamable HTTP isn't spoken.
    flat = {key: value for key, value in entry.items() if (key, value) != ("type", "http")}
    env = entry.get("env")
    if not isinstance(env, dict):
        return Shape(flat)
    return Shape(flat | {"env": _set(env)}, unset=tuple(name for name, value in env.items() if value is None))


def _windsurf(entry: Entry, context: EntryContext) -> Shape:
    del context
    remote = {"url": entry["serverUrl"]} if "serverUrl" in entry else {}
    return Shape(entry | remote, exclude_tools=_literal(_names(entry, "disabledTools") or ()))


_ZED_TIMEOUT = "context_server_timeout"


def _zed(entry: Entry, context: EntryContext) -> Shape:
    command = entry.get("command")
    if command is None and "url" not in entry:
        raise EntryError("an extension of Zed's starts it, which has its command.")
    flat = dict(entry)
    if isinstance(command, dict):
        # The shape until 2025: {"command": {"path": …, "args": […], "env": {…}}}.
        flat |= {"command": command.get("path"), "args": command.get("args"), "env": command.get("env")}
    flat["disabled"] = entry.get("enabled") is False
    default = next((layer[_ZED_TIMEOUT] for layer in reversed(context.settings) if _ZED_TIMEOUT in layer), None)
    return Shape(flat, call_timeout=_seconds({"timeout": default} | _set(entry), "timeout"))


def _gemini(entry: Entry, context: EntryContext) -> Shape:
    flat = dict(entry)
    # An address counts before a command, and its older key before both. Without a type, server-sent events are what
    # it falls back to.
    if entry.get("httpUrl"):
        flat |= {"type": "http", "url": entry["httpUrl"], "command": None}
    elif entry.get("url"):
        flat |= {"type": entry.get("type") if entry.get("type") in {"http", "sse"} else None, "command": None}
    flat["disabled"] = _is_blocked(context)
    included = _names(entry, "includeTools")
    if included is not None:
        # "tool(argument)" allows the tool.
        included = tuple(name.partition("(")[0] for name in included)
    return Shape(
        flat,
        call_timeout=_seconds(entry, "timeout", scale=1000),
        include_tools=None if included is None else _literal(included),
        exclude_tools=_literal(_names(entry, "excludeTools") or ()),
    )


def _is_blocked(context: EntryContext) -> bool:
    """Whether one of Gemini CLI's files excludes a server, or allows others alone; an empty list allows all.

    In a name, case counts, except in those that its own command has switched off.
    """
    for layer in context.settings:
        off, group = layer.get(SWITCHED_OFF), layer.get("mcp")
        # No file's key of that name has a set.
        if isinstance(off, frozenset) and context.name.lower().strip() in off:
            return True
        if not isinstance(group, dict):
            continue
        allowed, excluded = _names(group, "allowed"), _names(group, "excluded") or ()
        if (allowed and context.name not in allowed) or context.name in excluded:
            return True
    return False


def _opencode(entry: Entry, context: EntryContext) -> Shape:
    flat: Entry = {key: entry[key] for key in ("cwd", "url", "headers") if key in entry}
    flat["disabled"] = entry.get("enabled") is False or entry.get("disabled") is True
    kind, command = entry.get("type"), entry.get("command")
    if kind == "local":
        if not (isinstance(command, list) and command and all(isinstance(word, str) for word in command)):
            raise EntryError("command is not an array of strings.")
        flat |= {"type": "stdio", "command": command[0], "args": command[1:], "env": entry.get("environment")}
    elif kind == "remote":
        flat.pop("type", None)
    else:
        raise EntryError(f"type {kind!r} is not one of local, remote.")
    timeout = entry.get("timeout")
    if isinstance(timeout, dict):
        start, call = _seconds(timeout, "startup", scale=1000), _seconds(timeout, "request", scale=1000)
    else:
        start = call = _seconds(entry, "timeout", scale=1000)
    left: _Filter = (None, ())
    table: Any = {}
    for layer in context.settings:
        table = merged(table, layer.get("tools", {}))
        left = _both(left, _opencode_filter(context.name, table))
    included, excluded = left
    return Shape(flat, call, start, None if included is None else _shell(included), _shell(excluded))


def opencode_said(name: str, tool: str, table: Any) -> Any:
    """What a table of opencode's (`tools`, `permission`) says of one tool of a server's; None if it says nothing."""
    rules = opencode_rules(name, table)
    return next((said for pattern, said in reversed(rules) if _is_covered(tool, pattern)), None)


def opencode_rules(name: str, table: Any) -> list[tuple[str, Any]]:
    """What a table of opencode's says of a server's tools: patterns of their names, of which the last that fits counts.

    A pattern without a star comes after all that have one, wherever it is written. Left out is a pattern that says
    nothing, as a later one that is as wide says something else.
    """
    prefix = re.sub(r"[^a-zA-Z0-9_-]", "_", name) + "_"
    if isinstance(table, str):
        table = {"*": table}
    rules: list[tuple[str, Any]] = []
    for pattern, said in sorted(table.items() if isinstance(table, dict) else (), key=lambda rule: "*" not in rule[0]):
        # Of what a call is about, a server's call has no more than "*".
        value = said.get("*") if isinstance(said, dict) else said
        if isinstance(value, (str, bool)):
            rules += [(rest, value) for rest in _behind(prefix, pattern)]
    return [
        (pattern, said)
        for place, (pattern, said) in enumerate(rules)
        if not any(said != other and _is_covered(pattern, wider) for wider, other in rules[place + 1 :])
    ]


def _is_covered(pattern: str, wider: str) -> bool:
    """Whether one of opencode's patterns, or a name, fits nothing that the other doesn't fit."""
    return fnmatchcase(pattern, wider.replace("[", "[[]").replace("?", "[!*]"))


def _behind(prefix: str, pattern: str) -> list[str]:
    """The patterns of what follows a prefix in the names that a pattern fits."""
    places = {0}
    for letter in prefix:
        # A star may end here.
        for place in sorted(places):
            after = place
            while pattern[after : after + 1] == "*":
                after += 1
                places.add(after)
        fitting = {place for place in places if pattern[place : place + 1] in {letter, "*", "?"}}
        places = {place if pattern[place] == "*" else place + 1 for place in fitting}
    return [pattern[place:] for place in sorted(places) if place < len(pattern)]


def _opencode_filter(name: str, table: Any) -> _Filter:
    """What a table of opencode's (`tools`) leaves of a server's tools.

    What a narrower pattern switches on again can be told of a whole server alone: `"gh_*": false, "gh_get": true`.
    """
    rules = [rule for rule in opencode_rules(name, table) if isinstance(rule[1], bool)]
    # From the last one that switches off the whole server.
    start = max((place for place, rule in enumerate(rules) if rule == ("*", False)), default=len(rules))
    switched_on = [pattern for pattern, is_on in rules[start:] if is_on]
    switched_off = [pattern for pattern, is_on in (rules[start + 1 :] if switched_on else rules) if not is_on]
    return tuple(switched_on) or None, tuple(switched_off)


def _shell(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns of opencode's, in which a bracket is one, as shell patterns."""
    return tuple(pattern.replace("[", "[[]") for pattern in patterns)


_Filter = tuple[tuple[str, ...] | None, tuple[str, ...]]
"""The patterns of the only tools that there are, or None for all, and of those that there aren't."""


def _both(one: _Filter, other: _Filter) -> _Filter:
    """A filter that lets through what both do; less than that, where two patterns overlap and neither is wider."""
    if one[0] is None or other[0] is None:
        included = one[0] if other[0] is None else other[0]
    else:
        pairs = [pair for a in one[0] for b in other[0] for pair in ((a, b), (b, a))]
        included = tuple(dict.fromkeys(pattern for pattern, wider in pairs if _is_covered(pattern, wider)))
    return included, tuple(dict.fromkeys((*one[1], *other[1])))


def _codex(entry: Entry, context: EntryContext) -> Shape:
    if "command" in entry and "url" in entry:
        raise EntryError("command and url are both set, and Codex takes one of them.")
    flat: Entry = {key: entry[key] for key in ("command", "args", "env", "cwd", "url") if key in entry}
    flat["disabled"] = entry.get("enabled") is False
    if "url" in entry:
        flat |= {"type": "http", "headers": _codex_headers(entry, context)}
    start = _seconds(entry, "startup_timeout_sec") or _seconds(entry, "startup_timeout_ms", scale=1000)
    included = _names(entry, "enabled_tools")
    return Shape(
        flat,
        _seconds(entry, "tool_timeout_sec"),
        start,
        None if included is None else _literal(included),
        _literal(_names(entry, "disabled_tools") or ()),
        (*CODEX_VARIABLES, *_codex_variables(entry)) if "command" in entry else None,
    )


def _codex_variables(entry: Entry) -> tuple[str, ...]:
    value = entry.get("env_vars")
    rows = value if isinstance(value, list) else []
    named = [row.get("name") if isinstance(row, dict) else row for row in rows]
    names = tuple(name for name in named if isinstance(name, str))
    if len(names) != len(named):
        raise EntryError("env_vars is not an array of names.")
    return names


def _codex_headers(entry: Entry, context: EntryContext) -> dict[str, str]:
    if "bearer_token" in entry:
        raise EntryError("bearer_token is not supported by Codex: write bearer_token_env_var.")
    headers, by_variable = _text_map(entry.get("http_headers")), _text_map(entry.get("env_http_headers"))
    if headers is None or by_variable is None:
        raise EntryError(f"{'http_headers' if headers is None else 'env_http_headers'} is not a table of strings.")
    for header, variable in by_variable.items():
        # Codex leaves out a header whose variable isn't set.
        if value := context.variable(variable):
            headers[header] = value
    named = entry.get("bearer_token_env_var")
    if isinstance(named, str):
        token = context.variable(named)
        if not token:
            raise EntryError(f"bearer_token_env_var names {named}, which is not set in the environment.")
        headers["Authorization"] = f"Bearer {token}"
    return headers


_SHAPES: dict[str, Callable[[Entry, EntryContext], Shape]] = {
    "claude-code": _claude_code,
    "vscode": _vscode,
    "windsurf": _windsurf,
    "zed": _zed,
    "gemini": _gemini,
    "opencode": _opencode,
    "codex": _codex,
}


def _set(entry: Entry) -> Entry:
    return {key: value for key, value in entry.items() if value is not None}


def _seconds(entry: Mapping[str, Any], key: str, scale: int = 1) -> float | None:
    """A time-out in seconds; None if there is none.

    Raises:
        EntryError: It isn't a number above 0.
    """
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise EntryError(f"{key} is not a number above 0.")
    try:
        return value / scale
    except OverflowError:
        raise EntryError(f"{key} is too large.") from None


def _names(entry: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Names of tools or servers; None if the key isn't there.

    Raises:
        EntryError: It isn't an array of strings. Read leniently, a filter would let through what it was to hold back.
    """
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise EntryError(f"{key} is not an array of strings.")
    return tuple(value)


def _literal(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names as patterns that match exactly them."""
    return tuple(re.sub(r"([*?\[])", r"[\1]", name) for name in names)
