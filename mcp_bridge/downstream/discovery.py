"""Which servers there are: our own TOML and Claude Code's files, merged by name.

Precedence, highest first: our TOML, the user's own before a folder's; Claude Code's local scope (`projects[cwd]` of
`~/.claude.json`), project scope (`.mcp.json` in the working directory), user scope (`mcpServers` of `~/.claude.json`).

Servers of project scope come with the folder. They take part if the user has approved them in Claude Code, by what
Claude Code keeps in the home directory, or has trusted the file's exact content (see `workspace.trust`). What is in the
folder's own `.claude` approves of nothing: whoever made the folder wrote it.

Client files belong to another program, so they are read leniently: unknown keys are ignored, a broken file or
entry is a problem to report and never an exception. Our own TOML is read strictly (see `spec.spec_from_toml`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from mcp_bridge.downstream.itself import runs_the_bridge
from mcp_bridge.downstream.runners import sheltered
from mcp_bridge.downstream.spec import Scope, ServerSpec, ServerType, spec_from_toml
from mcp_bridge.errors import BridgeError
from mcp_bridge.workspace.content import (
    MAX_FILE_BYTES,
    PROJECT_NAME,
    Content,
    content_of,
    project_table,
    read_regular,
    scripts_of,
    why,
)
from mcp_bridge.workspace.trust import PassedOver, Status, TrustStore, passed_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

# `$VAR` is left alone, as Claude Code leaves it.
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_TYPE_NAMES: dict[str, ServerType] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a configuration file that was passed over.

    Attributes:
        code: Stable, for example `bad_client_config`.
        file: The file it is in.
        line: Where in the file, counted from 1, or None where that isn't known.
        message: What is wrong, in one sentence.
    """

    code: str
    file: str
    line: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A configured server that was left out on purpose, and why."""

    name: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Discovery:
    """All that was found. A server with a `problem` is in `servers` too: it is listed, and never started.

    Attributes:
        servers: By name.
        problems: What was wrong in clients' files.
        skipped: What was left out.
        passed_over: Files that come with the folder and take no part, or not with all servers.
    """

    servers: dict[str, ServerSpec] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    passed_over: list[PassedOver] = field(default_factory=list)

    @property
    def strangers(self) -> frozenset[str]:
        """The servers that the folder configures, and not the user."""
        return frozenset(name for name, spec in self.servers.items() if spec.scope in {"folder", "project"})


class _MissingVariableError(Exception):
    pass


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${VAR}` and `${VAR:-default}`, once: what a variable holds is not expanded again.

    Raises:
        KeyError: A variable that isn't set and has no default; its name is the argument.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        found = environ.get(name, default)
        if found is None:
            raise KeyError(name)
        return found

    return _VARIABLE.sub(value, text)


def _expanded(spec: ServerSpec, environ: Mapping[str, str]) -> ServerSpec:
    def of(what: str, text: str) -> str:
        try:
            return expand(text, environ)
        except KeyError as error:
            raise _MissingVariableError(
                f"{what} uses ${{{error.args[0]}}}, which is not set in the environment and has no default."
            ) from None

    try:
        return replace(
            spec,
            command=of("command", spec.command),
            args=tuple(of(f"args[{index}]", arg) for index, arg in enumerate(spec.args)),
            env={name: of(f"env.{name}", value) for name, value in spec.env.items()},
            cwd=None if spec.cwd is None else of("cwd", spec.cwd),
            url=None if spec.url is None else of("url", spec.url),
            headers={name: of(f"headers.{name}", value) for name, value in spec.headers.items()},
        )
    except _MissingVariableError as error:
        return replace(spec, problem=str(error))


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


def _spec_from_client(name: str, entry: Any, file: str, scope: Scope) -> ServerSpec:
    """One entry of a client's `mcpServers`; what is wrong with it becomes its `problem`."""
    spec = ServerSpec(name=name, source=file, scope=scope)
    if not isinstance(entry, dict):
        return replace(spec, problem="the entry is not an object.")
    raw_type = entry.get("type")
    kind = _TYPE_NAMES.get(raw_type) if isinstance(raw_type, str) else None
    if raw_type is not None and kind is None:
        return replace(spec, problem=f"type {raw_type!r} is not one of stdio, http, sse.")
    command, args, cwd, url = entry.get("command"), entry.get("args"), entry.get("cwd"), entry.get("url")
    kind = kind or ("http" if command is None and url is not None else "stdio")
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
        enabled=entry.get("disabled") is not True,
    )


_MAX_USER_BYTES = 256 << 20
"""Of Claude Code's own file, which keeps histories too."""


def _read_json(path: Path, problems: list[Problem]) -> dict[str, Any]:
    """The file's object; `{}` when there is no such file, or it is broken (which is reported)."""
    try:
        data = read_regular(path, _MAX_USER_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        problems.append(Problem("bad_client_config", str(path), None, f"cannot be read: {why(error)}."))
        return {}
    return _parsed_json(data, path, problems)


def _parsed_json(data: bytes, path: Path, problems: list[Problem]) -> dict[str, Any]:
    def report(message: str, line: int | None = None) -> dict[str, Any]:
        problems.append(Problem("bad_client_config", str(path), line, message))
        return {}

    try:
        content = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        return report(f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno}).", error.lineno)
    except UnicodeDecodeError as error:
        return report(f"not valid UTF-8 at byte {error.start}.")
    except RecursionError:
        return report("not readable: nested too deeply.")
    except ValueError as error:
        # A number of thousands of digits.
        return report(f"not readable: {error}.")
    if not isinstance(content, dict):
        return report("not a JSON object.")
    return content


def _object(container: Mapping[str, Any], key: str, path: Path, problems: list[Problem]) -> dict[str, Any]:
    value = container.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        problems.append(Problem("bad_client_config", str(path), None, f"{key} is not an object."))
        return {}
    return cast("dict[str, Any]", value)


def _names(container: Mapping[str, Any], key: str) -> frozenset[str]:
    value = container.get(key)
    return frozenset(name for name in value if isinstance(name, str)) if isinstance(value, list) else frozenset()


@dataclass(frozen=True, slots=True)
class _Approvals:
    """What the user has said in Claude Code of a project's servers: it keeps names, and not what is behind them.

    Attributes:
        every: Whether all are approved of.
        names: Those that are.
        refused: Those that never take part.
    """

    every: bool
    names: frozenset[str]
    refused: frozenset[str]

    def allow(self, name: str) -> bool:
        return (self.every or name in self.names) and name not in self.refused


def _approvals(local: Mapping[str, Any], home: Path, problems: list[Problem]) -> _Approvals:
    """By the project's part of `~/.claude.json`, and by `~/.claude/settings.json`, which is for all projects.

    The latter counts where the user has accepted the folder in Claude Code, which starts none of its servers before.
    """
    general = _read_json(home / ".claude" / "settings.json", problems)
    accepted = local.get("hasTrustDialogAccepted") is True
    sources = [local, *([general] if accepted else [])]
    return _Approvals(
        any(source.get("enableAllProjectMcpServers") is True for source in sources),
        frozenset().union(*(_names(source, "enabledMcpjsonServers") for source in sources)),
        _names(local, "disabledMcpjsonServers") | _names(general, "disabledMcpjsonServers"),
    )


def _claude_code(cwd: Path, home: Path, found: Discovery, trust: TrustStore | None) -> Iterator[ServerSpec]:
    """Claude Code's servers, highest precedence first."""
    user_file, problems = home / ".claude.json", found.problems
    user = _read_json(user_file, problems)
    projects = _object(user, "projects", user_file, problems)
    local: dict[str, Any] = {}
    for directory in dict.fromkeys((str(cwd), str(cwd.resolve()))):
        local = local or _object(projects, directory, user_file, problems)
    for name, entry in _object(local, "mcpServers", user_file, problems).items():
        yield _spec_from_client(name, entry, str(user_file), "local")
    approvals = _approvals(local, home, problems)
    yield from _project(cwd, approvals, found, trust)
    for name, entry in _object(user, "mcpServers", user_file, problems).items():
        yield _spec_from_client(name, entry, str(user_file), "user")


def _scripts(entry: Any, base: Path, files: Mapping[str, str]) -> dict[str, str]:
    """The folder's files that a server's command names, with what is trusted of them."""
    return {str(path): files.get(str(path), "not there") for path in scripts_of(entry, base)}


def _project(cwd: Path, approvals: _Approvals, found: Discovery, trust: TrustStore | None) -> Iterator[ServerSpec]:
    """The servers of the folder's `.mcp.json` that take part, and those that the user has refused, which are off."""
    file = cwd.resolve() / PROJECT_NAME
    try:
        data = read_regular(file, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        found.problems.append(Problem("bad_client_config", str(file), None, f"cannot be read: {why(error)}."))
        return
    content = _parsed_json(data, file, found.problems)
    status: Status = "untrusted"
    reason: str | None = None
    if trust is not None:
        status, reason = trust.status(file, data)
    files: Mapping[str, str] = {}
    if trust is not None and status == "trusted":
        try:
            whole = content_of(file, data, project_table(content))
            status = "trusted" if trust.agrees(whole) else "changed"
            files = whole.files
        except BridgeError as error:
            status, reason = "unusable", error.message.removesuffix(".")
    unapproved = []
    for name, entry in _object(content, "mcpServers", file, found.problems).items():
        spec = _spec_from_client(name, entry, str(file), "project")
        if name in approvals.refused:
            yield replace(spec, enabled=False)
        elif status == "trusted":
            yield replace(spec, scripts=_scripts(entry, file.parent, files))
        elif approvals.allow(name):
            yield spec
        elif spec.problem is None and not runs_the_bridge(spec.command, spec.args):
            unapproved.append(name)
            why_not = "it comes with the folder: neither approved in Claude Code nor trusted (`mcp-bridge trust`)."
            found.skipped.append(Skipped(name, str(file), why_not))
    if unapproved:
        found.passed_over.append(passed_over(file, status, reason, tuple(unapproved)))


def discover(
    tables: Mapping[str, Mapping[str, Any]],
    *,
    config_file: str | Path,
    environ: Mapping[str, str],
    cwd: Path,
    home: Path,
    client_configs: bool = True,
    allow_self_server: bool = False,
    runs_itself: Callable[[str, tuple[str, ...]], bool] = runs_the_bridge,
    folder: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    trusted: Content | None = None,
    trust: TrustStore | None = None,
    shelter: Path | None = None,
    everywhere: bool = False,
) -> Discovery:
    """Find every configured server.

    Args:
        tables: The `[servers.NAME]` tables of our own TOML.
        config_file: Where they came from.
        environ: For `${VAR}`.
        cwd: The working directory: whose `.mcp.json` and local scope count.
        home: The home directory: whose `.claude.json` counts.
        client_configs: False to read nothing but `tables`.
        allow_self_server: Keep servers that are this bridge.
        runs_itself: Tells whether a command line runs this bridge.
        folder: The `[servers.NAME]` tables of the folder's TOML, which the user has trusted.
        trusted: What exactly is trusted of the folder, its file included.
        trust: What the user has trusted; None for nothing.
        shelter: The user's own directory, for servers that are configured for every folder (see `runners`).
        everywhere: Whether `tables` are for every folder, too.

    Returns:
        Servers by name, what was wrong in clients' files, and what was left out.

    Raises:
        BridgeError: `bad_config`, for our own TOML only.
    """
    found = Discovery()
    own = [spec_from_toml(name, table, config_file) for name, table in tables.items()]
    for name, table in folder.items():
        assert trusted is not None  # noqa: S101 - a folder's tables are there with what is trusted
        spec = spec_from_toml(name, table, trusted.file)
        own.append(replace(spec, scope="folder", scripts=_scripts(table, trusted.file.parent, trusted.files)))
    theirs = list(_claude_code(cwd, home, found, trust)) if client_configs else []
    for unexpanded in [*own, *theirs]:
        name, file = unexpanded.name, unexpanded.source
        if name in found.servers:
            winner = found.servers[name]
            found.skipped.append(
                Skipped(name, file, f"{winner.scope} scope ({winner.source}) has a server of this name.")
            )
            continue
        spec = _expanded(unexpanded, environ)
        if not allow_self_server and spec.type == "stdio" and runs_itself(spec.command, spec.args):
            found.skipped.append(
                Skipped(name, file, "it is this bridge; a bridge behind itself would start itself for ever.")
            )
            continue
        if shelter is not None and (spec.scope == "user" or (everywhere and spec.scope == "config")):
            spec = sheltered(spec, shelter)
        found.servers[name] = spec
    return found
