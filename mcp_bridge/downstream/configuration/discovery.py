"""Discovery of servers: our own TOML and Claude Code's files, merged by name.

Precedence, highest first: our TOML, the user's own before a folder's; Claude Code's local scope (`projects[FOLDER]` of
`~/.claude.json`, of the working directory or the root of its git repository), project scope (`.mcp.json` in the working
directory and in the folders above it, the nearest first), user scope (`mcpServers` of `~/.claude.json`).

Servers of project scope come with the folder. They are used if the user has approved them in Claude Code, according to
Claude Code's files in the home directory, or has trusted the file's exact content (see `workspace.trust`). The folder's
own `.claude` can't approve anything: the author of the folder wrote it. In a parent folder, an approval counts only for
a file that nobody else could have written.

Client files belong to another program, so they are read leniently: unknown keys are ignored, and a broken file or
entry is reported as a problem and never raised. Our own TOML is read strictly (see `spec.spec_from_toml`).
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

from mcp_bridge.downstream.configuration.remote_entries import headers_problem, url_problem
from mcp_bridge.downstream.configuration.runners import isolate_runner
from mcp_bridge.downstream.configuration.self_reference import runs_the_bridge
from mcp_bridge.downstream.configuration.spec import Scope, ServerSpec, ServerType, TlsFiles, spec_from_toml
from mcp_bridge.downstream.oauth.endpoints import may_carry_tokens
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
from mcp_bridge.workspace.trust import IgnoredFile, Status, TrustStore, ignored_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mcp_bridge.error_codes import Code

# `$VAR` is not expanded, as in Claude Code.
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
    """An invalid part of a configuration file, which was ignored.

    Attributes:
        code: A stable code, for example `bad_client_config`.
        file: The path of the file.
        line: The line number, counted from 1, or None if unknown.
        message: What is wrong, in one sentence.
    """

    code: Code
    file: str
    line: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A configured server that was left out on purpose, and why; `is_self` if it is this bridge."""

    name: str
    file: str
    reason: str
    is_self: bool = False


@dataclass(frozen=True, slots=True)
class Discovery:
    """The result of discovery. A server with a `problem` is in `servers` too: it is listed and never started.

    Attributes:
        servers: Servers by name.
        problems: Problems in client files.
        skipped: Servers that were left out.
        ignored_files: Files in the folder that are ignored, completely or for some of their servers.
    """

    servers: dict[str, ServerSpec] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    ignored_files: list[IgnoredFile] = field(default_factory=list)

    @property
    def folder_servers(self) -> frozenset[str]:
        """The names of servers that the folder configures, and not the user."""
        return frozenset(name for name, spec in self.servers.items() if spec.comes_with_folder)

    @property
    def missing(self) -> tuple[str, ...]:
        """One sentence for each file whose servers are ignored, for errors about unknown servers. Names no folder."""
        return tuple(f"Servers of {Path(row.file).name} are missing: {row.message}" for row in self.problems)


class _MissingVariableError(Exception):
    pass


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Expand `${VAR}` and `${VAR:-default}` once: the value of a variable is not expanded again.

    Raises:
        KeyError: A variable isn't set and has no default; the argument is its name.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        expanded = environ.get(name, default)
        if expanded is None:
            raise KeyError(name)
        return expanded

    return _VARIABLE.sub(value, text)


def _variables(text: str, environ: Mapping[str, str]) -> frozenset[str]:
    """The variables whose values a text is expanded with."""
    return frozenset(match.group(1) for match in _VARIABLE.finditer(text) if match.group(1) in environ)


def _expanded(spec: ServerSpec, environ: Mapping[str, str]) -> ServerSpec:
    variables: set[str] = set()

    def of(what: str, text: str) -> str:
        try:
            expanded = expand(text, environ)
        except KeyError as error:
            raise _MissingVariableError(
                f"{what} uses ${{{error.args[0]}}}, which is not set in the environment and has no default."
            ) from None
        variables.update(_variables(text, environ))
        return expanded

    def path(what: str, text: str | None) -> str | None:
        if text is None:
            return None
        try:
            return str(Path(spec.source).resolve().parent / Path(of(what, text)).expanduser())
        except RuntimeError:
            raise _MissingVariableError(f"{what} begins with the home directory of an unknown user.") from None

    try:
        if spec.is_remote:
            return _checked_remote(
                replace(
                    spec,
                    url=None if spec.url is None else of("url", spec.url),
                    headers={name: of(f"headers.{name}", value) for name, value in spec.headers.items()},
                    oauth=None if spec.oauth is None else spec.oauth.expanded(of),
                    tls=TlsFiles(
                        path("ca_file", spec.tls.ca_file),
                        path("client_cert", spec.tls.client_cert),
                        path("client_key", spec.tls.client_key),
                    ),
                    variables=frozenset(variables),
                )
            )
        return replace(
            spec,
            command=of("command", spec.command),
            args=tuple(of(f"args[{index}]", arg) for index, arg in enumerate(spec.args)),
            env={name: of(f"env.{name}", value) for name, value in spec.env.items()},
            cwd=None if spec.cwd is None else of("cwd", spec.cwd),
        )
    except _MissingVariableError as error:
        return replace(spec, problem=str(error))


def _checked_remote(spec: ServerSpec) -> ServerSpec:
    """A remote server's entry, with its `problem` if it can't be used."""
    problem = spec.problem
    if problem is None and spec.url is not None:
        problem = url_problem(spec.url) or headers_problem(spec.headers)
        if problem is None and spec.oauth is not None and not may_carry_tokens(spec.url):
            problem = "oauth needs a url that begins with https://."
    if problem is None and spec.comes_with_folder:
        # The files of a folder's entry are trusted with it; others are the user's, such as a private key.
        folder = Path(spec.source).resolve().parent
        outside = [path for path in spec.tls.paths if not Path(path).resolve().is_relative_to(folder)]
        problem = f"{Path(outside[0]).name} is not in the folder of the configuration." if outside else None
    return spec if problem is None else replace(spec, problem=problem)


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
    """One entry of a client's `mcpServers`; an error in it becomes its `problem`."""
    spec = ServerSpec(name=name, source=file, scope=scope)
    if not isinstance(entry, dict):
        return replace(spec, problem="the entry is not an object.")
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
        enabled=entry.get("disabled") is not True,
    )


_MAX_USER_BYTES = 256 << 20
"""Size limit for Claude Code's own file, which also stores histories."""


def _read_json(path: Path, problems: list[Problem]) -> dict[str, Any]:
    """The file's object; `{}` if the file doesn't exist or is invalid, which is reported."""
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
        # A number with thousands of digits.
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
    """The user's decisions in Claude Code about a project's servers. Claude Code stores names, without the commands.

    Attributes:
        every: Whether all servers are approved.
        names: The approved servers.
        refused: The servers that are never used.
    """

    every: bool
    names: frozenset[str]
    refused: frozenset[str]

    def allow(self, name: str) -> bool:
        return (self.every or name in self.names) and name not in self.refused


def _approvals(local: Sequence[Mapping[str, Any]], home: Path, problems: list[Problem]) -> _Approvals:
    """The approvals in the project's parts of `~/.claude.json` and, for all projects, in `~/.claude/settings.json`.

    The latter counts if the user has accepted the folder in Claude Code, which starts none of its servers before.
    """
    general = _read_json(home / ".claude" / "settings.json", problems)
    accepted = any(part.get("hasTrustDialogAccepted") is True for part in local)
    sources = [*local, *([general] if accepted else [])]
    return _Approvals(
        any(source.get("enableAllProjectMcpServers") is True for source in sources),
        frozenset().union(*(_names(source, "enabledMcpjsonServers") for source in sources)),
        frozenset().union(*(_names(source, "disabledMcpjsonServers") for source in [*local, general])),
    )


def _claude_code(cwd: Path, home: Path, discovery: Discovery, trust: TrustStore | None) -> Iterator[ServerSpec]:
    """Claude Code's servers, the highest precedence first."""
    user_file, problems = home / ".claude.json", discovery.problems
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
        yield from _project(folder / PROJECT_NAME, here, approvals, discovery, trust)
    for name, entry in _object(user, "mcpServers", user_file, problems).items():
        yield _spec_from_client(name, entry, str(user_file), "user")


def _scripts(entry: Any, base: Path, files: Mapping[str, str], cwd: Path | None = None) -> dict[str, str]:
    """The folder's files that the server's command names from its working directory, with their trusted hashes."""
    return {str(path): files.get(str(path), "not there") for path in scripts_of(entry, base, cwd)}


def _project(
    file: Path, cwd: Path, approvals: _Approvals, discovery: Discovery, trust: TrustStore | None
) -> Iterator[ServerSpec]:
    """The active servers of a `.mcp.json`, and those that the user has refused, which are disabled.

    Args:
        file: A file in the working directory or a parent folder.
        cwd: The working directory, in which its servers are started, as in Claude Code.
        approvals: The user's decisions in Claude Code.
        discovery: Receives problems and skipped servers.
        trust: The user's trust records.
    """
    above = file.parent != cwd
    try:
        data = read_regular(file, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if not (above and isinstance(error, PermissionError)):
            discovery.problems.append(Problem("bad_client_config", str(file), None, f"cannot be read: {why(error)}."))
        return
    content = _parsed_json(data, file, discovery.problems)
    if content and "mcpServers" not in content:
        discovery.problems.append(Problem("bad_client_config", str(file), None, missing_servers_problem(content)))
    status, reason, files = _trusted(file, data, content, trust)
    meant = not above or _only_user_writable(file)
    unapproved = []
    for name, entry in _object(content, "mcpServers", file, discovery.problems).items():
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
            discovery.skipped.append(Skipped(name, str(file), why_not))
    if unapproved:
        discovery.ignored_files.append(ignored_file(file, status, reason, tuple(unapproved), above=above))


def _trusted(
    file: Path, data: bytes, content: Mapping[str, Any], trust: TrustStore | None
) -> tuple[Status, str | None, Mapping[str, str]]:
    """Whether a project's file is trusted, why that can't be told, and the hashes of the files that it would start."""
    if trust is None:
        return "untrusted", None, {}
    status, reason = trust.status(file, data)
    if status != "trusted":
        return status, reason, {}
    try:
        whole = content_of(file, data, project_table(content))
    except BridgeError as error:
        return "unusable", error.message.removesuffix("."), {}
    return ("trusted" if trust.is_trusted(whole) else "changed"), None, whole.files


def missing_servers_problem(content: Mapping[str, Any]) -> str:
    """What is wrong with a project file that has no `mcpServers`."""
    if isinstance(content.get("servers"), dict):
        return (
            'it has no mcpServers, so none of its servers is there: "servers" is VS Code\'s key. Call it "mcpServers".'
        )
    entries = (value for value in content.values() if isinstance(value, dict))
    if any("command" in entry or "url" in entry for entry in entries):
        return 'it has no mcpServers, so none of its servers is there. Write {"mcpServers": {…}} around them.'
    return 'it has no mcpServers, so it has no server. Write {"mcpServers": {"NAME": {"command": …, "args": […]}}}.'


def _only_user_writable(file: Path) -> bool:
    """Whether nobody but this user or root could have written the file or put it there."""
    try:
        statuses = [file.lstat(), file.parent.stat()]
    except OSError:
        return False
    return all(status.st_uid in {os.geteuid(), 0} and not _others_write(status) for status in statuses)


def _others_write(status: os.stat_result) -> bool:
    # A group with the user's own number is private to the user, as Debian and Fedora create it.
    by_group = status.st_mode & 0o020 and status.st_gid != status.st_uid
    return bool(by_group or status.st_mode & 0o002 or stat.S_ISLNK(status.st_mode))


_MAX_GIT_BYTES = 4096
"""Size limit of a `.git` file and of the files that it refers to."""


def git_root(folder: Path) -> Path | None:
    """The root of the git repository that contains a folder; for a worktree, the root of its main repository.

    The folder's own claims aren't believed: a worktree counts only if its repository names it too, as git writes it.
    """
    here = folder.resolve()
    for place in (here, *here.parents):
        marker = place / ".git"
        if os.path.lexists(marker):
            try:
                return place if marker.is_dir() else _repository_of(marker) or place
            except (OSError, RuntimeError, ValueError):
                # A symlink loop, or not a path: the folder belongs to no repository.
                return place
    return None


def _repository_of(marker: Path) -> Path | None:
    """The main working tree of a worktree's `.git` file, if the two refer to each other."""
    word, _, location = _git_line(marker).partition(": ")
    if word != "gitdir" or not location:
        return None
    private = (marker.parent / location).resolve()
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
    """Why a command is valid in a shell only, or None."""
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
    # Only the first word is quoted in the message: the others may contain a secret.
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
    safe_directory: Path | None = None,
    for_every_folder: bool = False,
) -> Discovery:
    """Find every configured server.

    Args:
        tables: The `[servers.NAME]` tables of our own TOML.
        config_file: The file that contains them.
        environ: Variables for `${VAR}`.
        cwd: The working directory: its `.mcp.json`, those of its parents, and its local scope are read.
        home: The home directory, whose `.claude.json` is read.
        client_configs: False to read nothing but `tables`.
        allow_self_server: Whether to include servers that are this bridge.
        runs_itself: Returns whether a command line runs this bridge.
        folder: The `[servers.NAME]` tables of the folder's TOML, which the user has trusted.
        trusted: The exact content of the folder that is trusted, including its configuration file.
        trust: The user's trust records; None for none.
        safe_directory: A directory of the user's, for servers that are configured for every folder (see `runners`).
        for_every_folder: Whether `tables` apply to every folder, too.

    Returns:
        Servers by name, what was wrong in clients' files, and what was left out.

    Raises:
        BridgeError: `bad_config`, for our own TOML only.
    """
    discovery = Discovery()
    own = [spec_from_toml(name, table, config_file) for name, table in tables.items()]
    for name, table in folder.items():
        assert trusted is not None  # noqa: S101 - a folder's tables are there with what is trusted
        spec = spec_from_toml(name, table, trusted.file)
        own.append(replace(spec, scope="folder", scripts=_scripts(table, trusted.file.parent, trusted.files)))
    theirs = list(_claude_code(cwd, home, discovery, trust)) if client_configs else []
    for unexpanded in [*own, *theirs]:
        name, file = unexpanded.name, unexpanded.source
        if name in discovery.servers:
            winner = discovery.servers[name]
            discovery.skipped.append(
                Skipped(name, file, f"{winner.scope} scope ({winner.source}) has a server of this name.")
            )
            continue
        spec = _expanded(unexpanded, environ)
        if spec.problem is None and (wrong := _command_problem(spec, environ)):
            spec = replace(spec, problem=wrong)
        if not allow_self_server and spec.type == "stdio" and runs_itself(spec.command, spec.args):
            discovery.skipped.append(
                Skipped(
                    name, file, "it is this bridge; a bridge behind itself would start itself for ever.", is_self=True
                )
            )
            continue
        # A file in a parent folder configures other folders, too.
        from_above = spec.scope == "project" and Path(file).parent != cwd.resolve()
        if safe_directory is not None and (
            spec.scope == "user" or from_above or (for_every_folder and spec.scope == "config")
        ):
            spec = isolate_runner(spec, safe_directory)
        discovery.servers[name] = spec
    return discovery
