"""Which servers there are: our own TOML and Claude Code's files, merged by name.

Precedence, highest first: our TOML, the user's own before a folder's; Claude Code's local scope (`projects[FOLDER]` of
`~/.claude.json`, of the working directory or the root of its git repository), project scope (`.mcp.json` in the working
directory and in the folders above it, the nearest first), user scope (`mcpServers` of `~/.claude.json`).

Servers of project scope come with the folder. They take part if the user has approved them in Claude Code, by what
Claude Code keeps in the home directory, or has trusted the file's exact content (see `workspace.trust`). What is in the
folder's own `.claude` approves of nothing: whoever made the folder wrote it. In a folder above, an approval counts for
a file that nobody else could have written.

Client files belong to another program, so they are read leniently: unknown keys are ignored, a broken file or
entry is a problem to report and never an exception. Our own TOML is read strictly (see `spec.spec_from_toml`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from mcp_bridge.downstream.configuration.runners import sheltered
from mcp_bridge.downstream.configuration.self_reference import runs_the_bridge
from mcp_bridge.downstream.configuration.spec import Scope, ServerSpec, ServerType, spec_from_toml
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
    """A configured server that was left out on purpose, and why; `itself` where it is this bridge."""

    name: str
    file: str
    reason: str
    itself: bool = False


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

    @property
    def missing(self) -> tuple[str, ...]:
        """A sentence for each file whose servers aren't there, for whoever looks for one; it names no folder."""
        return tuple(f"Servers of {Path(row.file).name} are missing: {row.message}" for row in self.problems)


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


def _approvals(local: Sequence[Mapping[str, Any]], home: Path, problems: list[Problem]) -> _Approvals:
    """By the project's parts of `~/.claude.json`, and by `~/.claude/settings.json`, which is for all projects.

    The latter counts where the user has accepted the folder in Claude Code, which starts none of its servers before.
    """
    general = _read_json(home / ".claude" / "settings.json", problems)
    accepted = any(part.get("hasTrustDialogAccepted") is True for part in local)
    sources = [*local, *([general] if accepted else [])]
    return _Approvals(
        any(source.get("enableAllProjectMcpServers") is True for source in sources),
        frozenset().union(*(_names(source, "enabledMcpjsonServers") for source in sources)),
        frozenset().union(*(_names(source, "disabledMcpjsonServers") for source in [*local, general])),
    )


def _claude_code(cwd: Path, home: Path, found: Discovery, trust: TrustStore | None) -> Iterator[ServerSpec]:
    """Claude Code's servers, highest precedence first."""
    user_file, problems = home / ".claude.json", found.problems
    user = _read_json(user_file, problems)
    projects = _object(user, "projects", user_file, problems)
    root = git_root(cwd)
    places = dict.fromkeys(str(place) for place in (cwd, cwd.resolve(), root) if place is not None)
    local = [part for place in places if (part := _object(projects, place, user_file, problems))]
    for part in local:
        for name, entry in _object(part, "mcpServers", user_file, problems).items():
            yield _spec_from_client(name, entry, str(user_file), "local")
    approvals = _approvals(local, home, problems)
    here = cwd.resolve()
    for folder in (here, *here.parents[:-1]):
        yield from _project(folder / PROJECT_NAME, here, approvals, found, trust)
    for name, entry in _object(user, "mcpServers", user_file, problems).items():
        yield _spec_from_client(name, entry, str(user_file), "user")


def _scripts(entry: Any, base: Path, files: Mapping[str, str], cwd: Path | None = None) -> dict[str, str]:
    """The folder's files that a server's command names where it is started, with what is trusted of them."""
    return {str(path): files.get(str(path), "not there") for path in scripts_of(entry, base, cwd)}


def _project(
    file: Path, cwd: Path, approvals: _Approvals, found: Discovery, trust: TrustStore | None
) -> Iterator[ServerSpec]:
    """The servers of a `.mcp.json` that take part, and those that the user has refused, which are off.

    Args:
        file: In the working directory or in a folder above it.
        cwd: The working directory, where its servers are started, as Claude Code starts them.
        approvals: What the user has said in Claude Code.
        found: Gets what is wrong and what is left out.
        trust: What the user has trusted.
    """
    above = file.parent != cwd
    try:
        data = read_regular(file, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if not (above and isinstance(error, PermissionError)):
            found.problems.append(Problem("bad_client_config", str(file), None, f"cannot be read: {why(error)}."))
        return
    content = _parsed_json(data, file, found.problems)
    if content and "mcpServers" not in content:
        found.problems.append(Problem("bad_client_config", str(file), None, without_servers(content)))
    status, reason, files = _trusted(file, data, content, trust)
    meant = not above or _is_the_users(file)
    unapproved = []
    for name, entry in _object(content, "mcpServers", file, found.problems).items():
        spec = _spec_from_client(name, entry, str(file), "project")
        if name in approvals.refused:
            yield replace(spec, enabled=False)
        elif status == "trusted":
            yield replace(spec, scripts=_scripts(entry, file.parent, files, cwd))
        elif meant and approvals.allow(name):
            yield spec
        elif spec.problem is None and not runs_the_bridge(spec.command, spec.args):
            unapproved.append(name)
            why_not = "it comes with the folder: neither approved in Claude Code nor trusted (`mcp-bridge trust`)."
            found.skipped.append(Skipped(name, str(file), why_not))
    if unapproved:
        found.passed_over.append(passed_over(file, status, reason, tuple(unapproved), above=above))


def _trusted(
    file: Path, data: bytes, content: Mapping[str, Any], trust: TrustStore | None
) -> tuple[Status, str | None, Mapping[str, str]]:
    """Whether a project's file is trusted, why that can't be told, and the hashes of what it would have started."""
    if trust is None:
        return "untrusted", None, {}
    status, reason = trust.status(file, data)
    if status != "trusted":
        return status, reason, {}
    try:
        whole = content_of(file, data, project_table(content))
    except BridgeError as error:
        return "unusable", error.message.removesuffix("."), {}
    return ("trusted" if trust.agrees(whole) else "changed"), None, whole.files


def without_servers(content: Mapping[str, Any]) -> str:
    """What is wrong with a project's file that has no `mcpServers`."""
    if isinstance(content.get("servers"), dict):
        return (
            'it has no mcpServers, so none of its servers is there: "servers" is VS Code\'s key. Call it "mcpServers".'
        )
    entries = (value for value in content.values() if isinstance(value, dict))
    if any("command" in entry or "url" in entry for entry in entries):
        return 'it has no mcpServers, so none of its servers is there. Write {"mcpServers": {…}} around them.'
    return 'it has no mcpServers, so it has no server. Write {"mcpServers": {"NAME": {"command": …, "args": […]}}}.'


def _is_the_users(file: Path) -> bool:
    """Whether nobody but this user (or root) could have written a file, or put it there."""
    try:
        found = [file.lstat(), file.parent.stat()]
    except OSError:
        return False
    return all(status.st_uid in {os.geteuid(), 0} and not _others_write(status) for status in found)


def _others_write(status: os.stat_result) -> bool:
    # A group of the user's number is the user's own, as Debian and Fedora make them.
    by_group = status.st_mode & 0o020 and status.st_gid != status.st_uid
    return bool(by_group or status.st_mode & 0o002 or stat.S_ISLNK(status.st_mode))


_MAX_GIT_BYTES = 4096
"""Of a `.git` file, and of those that it leads to."""


def git_root(folder: Path) -> Path | None:
    """The root of the git repository that a folder is in; of a worktree, of the repository that it belongs to.

    Nothing is believed that the folder says alone: a worktree counts if its repository names it too, as git writes it.
    """
    here = folder.resolve()
    for place in (here, *here.parents):
        marker = place / ".git"
        if os.path.lexists(marker):
            try:
                return place if marker.is_dir() else _repository_of(marker) or place
            except (OSError, RuntimeError, ValueError):
                # A loop of links, or no path at all: whatever it is, the folder is nobody else's.
                return place
    return None


def _repository_of(marker: Path) -> Path | None:
    """The main working tree behind a worktree's `.git` file, if the two name each other."""
    word, _, told = _git_line(marker).partition(": ")
    if word != "gitdir" or not told:
        return None
    private = (marker.parent / told).resolve()
    common = (private / _git_line(private / "commondir")).resolve()
    named = Path(_git_line(private / "gitdir"))
    mutual = named.is_absolute() and named.resolve() == marker.resolve()
    return common.parent if mutual and private.parent == common / "worktrees" and common.name == ".git" else None


def _git_line(path: Path) -> str:
    try:
        return read_regular(path, _MAX_GIT_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _command_problem(spec: ServerSpec, environ: Mapping[str, str]) -> str | None:
    """What is wrong with a command that a shell would have understood, and nothing else does; None if nothing is."""
    command = spec.command
    if spec.type != "stdio" or not command:
        return None
    for key, text in (("command", command), ("cwd", spec.cwd or "")):
        if (text == "~" or text.startswith("~/")) and not Path(text).exists():
            return f"{key} begins with ~, which only a shell takes for the home directory: write ${{HOME}}{text[1:]}."
    words = command.split()
    if len(words) < 2 or shutil.which(command) or Path(command).exists():  # noqa: PLR2004
        return None
    path = spec.env.get("PATH", environ.get("PATH"))
    if shutil.which(words[0], path=path) is None:
        return None
    # The words after the first aren't repeated: they may hold a secret.
    return (
        "command is a whole command line, and has to be the program alone: "
        f"write {words[0]!r} there, and what follows it in args, each word by itself."
    )


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
        cwd: The working directory: its `.mcp.json` and those above it count, and its local scope.
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
        if spec.problem is None and (wrong := _command_problem(spec, environ)):
            spec = replace(spec, problem=wrong)
        if not allow_self_server and spec.type == "stdio" and runs_itself(spec.command, spec.args):
            found.skipped.append(
                Skipped(
                    name, file, "it is this bridge; a bridge behind itself would start itself for ever.", itself=True
                )
            )
            continue
        # A file above the working directory is about other folders, too.
        from_above = spec.scope == "project" and Path(file).parent != cwd.resolve()
        if shelter is not None and (spec.scope == "user" or from_above or (everywhere and spec.scope == "config")):
            spec = sheltered(spec, shelter)
        found.servers[name] = spec
    return found
