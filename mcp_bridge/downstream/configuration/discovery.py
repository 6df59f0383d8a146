"""Discovery of servers: our own TOML and clients' files, merged by name.

Precedence, highest first: our TOML, the user's own before a folder's; then the clients in the order in which the
setting `client_configs` names them, by default Claude Code alone. Of Claude Code: local scope (`projects[FOLDER]` of
`~/.claude.json`, of the working directory or the root of its git repository), project scope (`.mcp.json` in the working
directory and in the folders above it, the nearest first), user scope (`mcpServers` of `~/.claude.json`). Of another
client: its files in the folder, then the user's. A server that a client's file has under another name, too, is one.

Servers of project scope come with the folder. They are used if the user has trusted the file's exact content (see
`workspace.trust`) or, of `.mcp.json`, has approved them in Claude Code, according to Claude Code's files in the home
directory. The folder's own `.claude` can't approve anything: the author of the folder wrote it. In a parent folder, an
approval counts only for a file that nobody else could have written. Approvals in other clients don't count.

The bridge itself is left out: a command that starts it, and, of clients' files, its address and whatever has a token of
a bridge's principal, since a script would act as that principal. In our own TOML an address is meant: it may be another
bridge's. What is this bridge after all is refused when it is connected to (`bridge_identity`).

Client files belong to another program, so they are read leniently: unknown keys are ignored, and a broken file or
entry is reported as a problem and never raised. Our own TOML is read strictly (`own_entries`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from mcp_bridge.downstream.configuration import client_file_reading
from mcp_bridge.downstream.configuration.claude_code_approvals import (
    ClaudeCodeApprovals,
    Denials,
    claude_code_approvals,
)
from mcp_bridge.downstream.configuration.client_entries import EntryContext, EntryError, decode, shape, shaped
from mcp_bridge.downstream.configuration.client_file_reading import Problem, member
from mcp_bridge.downstream.configuration.expansion import OPENCODE_FILE, Expander, UnexpandedError
from mcp_bridge.downstream.configuration.git_root import claude_code_projects, git_root
from mcp_bridge.downstream.configuration.known_clients import CLIENTS, claude_code_settings
from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
from mcp_bridge.downstream.configuration.remote_entries import headers_problem, url_problem
from mcp_bridge.downstream.configuration.runner_isolation import isolate_runner
from mcp_bridge.downstream.configuration.self_reference.addresses import OwnAddress, has_token, points_to_this_bridge
from mcp_bridge.downstream.configuration.self_reference.command_lines import runs_the_bridge
from mcp_bridge.downstream.configuration.spec import OWN_SCOPES, Scope, ServerSpec, TlsFiles
from mcp_bridge.downstream.oauth.endpoints import may_carry_tokens
from mcp_bridge.errors import BridgeError
from mcp_bridge.workspace.folder_content import (
    ENTRIES,
    MAX_FILE_BYTES,
    PROJECT_NAME,
    Content,
    content_of,
    folder_of,
    project_table,
    read_regular,
    scripts_of,
    why,
)
from mcp_bridge.workspace.trust import IgnoredFile, Status, TrustStore, ignored_file, trust_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mcp_bridge.downstream.configuration.client_file_reading import Table
    from mcp_bridge.downstream.configuration.known_clients import Client, ClientName
    from mcp_bridge.downstream.configuration.spec import OpenApiDocument


@dataclass(frozen=True, slots=True)
class Skipped:
    """A configured server that was left out on purpose, and why.

    Attributes:
        is_self: Whether it is this bridge.
    """

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


def _expanded(spec: ServerSpec, expander: Expander) -> ServerSpec:
    """The entry with its texts expanded; what can't be becomes its `problem`."""

    def of(what: str, text: str) -> str:
        try:
            return expander(text)
        except UnexpandedError as error:
            raise UnexpandedError(f"{what} {error}") from None

    def header(name: str, text: str) -> str:
        value = of(f"headers.{name}", text)
        if expander.empty and value != value.strip() and text == text.strip():
            empty = f"{' and '.join(expander.empty)} {'is' if len(expander.empty) == 1 else 'are'} empty"
            raise UnexpandedError(f"headers.{name} begins or ends with a space, because {empty}.")
        return value

    def path(what: str, text: str | None) -> str | None:
        if text is None:
            return None
        try:
            return str(Path(spec.source).resolve().parent / Path(of(what, text)).expanduser())
        except RuntimeError:
            raise UnexpandedError(f"{what} begins with the home directory of an unknown user.") from None

    def document(configured: OpenApiDocument) -> OpenApiDocument:
        credentials = {name: of(f"credentials.{name}", value) for name, value in configured.credentials.items()}
        expanded = replace(configured, location=of("openapi", configured.location), credentials=credentials)
        if expanded.is_remote:
            return expanded
        return replace(expanded, location=path("openapi", configured.location) or "")

    try:
        if spec.is_remote:
            remote = replace(
                spec,
                url=None if spec.url is None else of("url" if spec.openapi is None else "base_url", spec.url),
                openapi=None if spec.openapi is None else document(spec.openapi),
                headers={name: header(name, value) for name, value in spec.headers.items()},
                tls=TlsFiles(
                    path("ca_file", spec.tls.ca_file),
                    path("client_cert", spec.tls.client_cert),
                    path("client_key", spec.tls.client_key),
                ),
            )
            remote = _with_oauth(remote, of)
            return _checked_remote(replace(remote, variables=frozenset(expander.used)))
        return replace(
            spec,
            command=of("command", spec.command),
            args=tuple(of(f"args[{index}]", arg) for index, arg in enumerate(spec.args)),
            env={name: of(f"env.{name}", value) for name, value in spec.env.items()},
            cwd=None if spec.cwd is None else of("cwd", spec.cwd),
        )
    except UnexpandedError as error:
        return replace(spec, problem=str(error))


def _with_oauth(spec: ServerSpec, of: Callable[[str, str], str]) -> ServerSpec:
    """The entry with its settings for a login expanded.

    In a client's file they are for a login that may not be needed, and take no server away.

    Raises:
        UnexpandedError: They can't be, and are the bridge's own.
    """
    if spec.oauth is None:
        return spec
    if spec.scope in OWN_SCOPES:
        return replace(spec, oauth=spec.oauth.expanded(of))
    if takes_no_login(spec):
        return replace(spec, oauth=None)
    try:
        return replace(spec, oauth=spec.oauth.expanded(of))
    except UnexpandedError as error:
        return replace(spec, oauth=None, unused=str(error))


def _checked_remote(spec: ServerSpec) -> ServerSpec:
    """A remote server's entry, with its `problem` if it can't be used."""
    problem = spec.problem
    if problem is None and spec.url is not None:
        problem = url_problem(spec.url)
        if problem is not None and spec.openapi is not None:
            problem = problem.replace("url", "base_url", 1)
        if problem is None and spec.oauth is not None and not may_carry_tokens(spec.url):
            problem = "oauth needs a url that begins with https://."
    if problem is None and spec.openapi is not None:
        problem = _document_problem(spec, spec.openapi)
    elif problem is None and spec.url is not None:
        problem = headers_problem(spec.headers)
    if problem is None and spec.comes_with_folder:
        # The files of a folder's entry are trusted with it; others are the user's, such as a private key.
        folder = Path(spec.source).resolve().parent
        files = [*spec.tls.paths, *_document_files(spec)]
        outside = [path for path in files if not Path(path).resolve().is_relative_to(folder)]
        problem = f"{Path(outside[0]).name} is not in the folder of the configuration." if outside else None
    return spec if problem is None else replace(spec, problem=problem)


def takes_no_login(spec: ServerSpec) -> bool:
    """Whether a remote server is called without a login, whatever is configured for one."""
    has_own = any(name.lower() == "authorization" for name in spec.headers)
    return has_own or (spec.url is not None and not may_carry_tokens(spec.url))


def _document_problem(spec: ServerSpec, document: OpenApiDocument) -> str | None:
    """Why a service's entry can't be used, or None."""
    if document.is_remote and (wrong := url_problem(document.location)):
        return wrong.replace("url", "openapi", 1)
    if spec.url is not None and urlsplit(spec.url).query:
        return "base_url contains a query (?…)."
    if spec.oauth is not None and spec.url is None:
        return "oauth needs a base_url."
    return headers_problem(spec.headers)


def _document_files(spec: ServerSpec) -> list[str]:
    return [] if spec.openapi is None or spec.openapi.is_remote else [spec.openapi.location]


@dataclass(frozen=True, slots=True)
class _Entry:
    """An undecoded entry of a client's file.

    Attributes:
        value: The entry, together with what is beneath it.
        file: The file that it, or its last part, is in.
        own: The user's file that it is of, which may have other files read; None if one of a folder's could have them
            read.
        scripts: As `ServerSpec.scripts`.
        borrows: Whether its command is of a file beneath, and so for other folders, too.
    """

    value: Any
    file: Path
    own: Path | None = None
    scripts: Mapping[str, str] = field(default_factory=dict)
    borrows: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """What takes part of one of a client's files, or of all of the user's.

    Attributes:
        scope: Whose it is.
        entries: Its entries by name.
        settings: What it says of servers beside them; see `EntryContext.settings`.
    """

    scope: Scope
    entries: dict[str, _Entry]
    settings: Sequence[Table] = ()


def _over(beneath: _Entry | None, entry: Any, file: Path, scripts: Mapping[str, str]) -> _Entry:
    """A trusted folder's entry, and what it changes a part of."""
    if beneath is None:
        return _Entry(entry, file, scripts=scripts)
    # What the user's part has read stays, and the folder's has nothing read.
    own = None if any(OPENCODE_FILE in text for text in _texts(entry)) else beneath.own
    borrows = isinstance(entry, dict) and "command" not in entry
    return _Entry(client_file_reading.merged(beneath.value, entry), file, own, scripts, borrows)


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds the servers in clients' files.

    Attributes:
        cwd: The working directory.
        home: The home directory.
        environ: The environment.
        discovery: Receives problems and skipped servers.
        trust: The user's trust records; None for none.
        borrowing: Receives the names and files of servers of the folder whose command is of another file.
    """

    cwd: Path
    home: Path
    environ: Mapping[str, str]
    discovery: Discovery
    trust: TrustStore | None
    borrowing: set[tuple[str, str]] = field(default_factory=set)

    def servers(self, client: Client) -> Iterator[ServerSpec]:
        """A client's servers, the highest precedence first, with variables expanded."""
        if client.name == "claude-code":
            yield from self._claude_code(client)
            return
        user = self._user_part(client)
        parts = [*self._folder_parts(client, user), user]
        settings = [layer for part in reversed(parts) for layer in part.settings]
        told: set[str] = set()
        for part in parts:
            for name, entry in part.entries.items():
                # What is beneath an entry is in it.
                if not (client.merges and name in told):
                    yield self._spec(client, name, entry, settings, part.scope)
            told.update(part.entries)

    def _folder_parts(self, client: Client, user: _Part, before: Path | None = None) -> list[_Part]:
        """What takes part of the folders' files, the nearest first; with `before`, of those beneath that file."""
        paths = list(self._folder_paths(client))
        if not client.merges:
            return [part for path in paths if (part := self._folder_part(client, path, None, {})) is not None]
        parts: list[_Part] = []
        beneath = user.entries
        for path in reversed(paths):
            if path == before:
                break
            if (part := self._folder_part(client, path, None, beneath)) is not None:
                parts.insert(0, part)
                beneath = beneath | part.entries
        return parts

    def beneath(self, client: Client, file: Path) -> dict[str, _Entry]:
        """The entries of which a folder's file of the client's can change a part."""
        if not client.merges:
            return {}
        user = self._user_part(client)
        parts = [user, *reversed(self._folder_parts(client, user, file))]
        return {name: entry for part in parts for name, entry in part.entries.items()}

    def _folder_paths(self, client: Client) -> Iterator[Path]:
        """The files in folders, whether or not they exist, the nearest first."""
        here = self.cwd.resolve()
        root = git_root(here) if client.upward else None
        above = (folder for folder in here.parents if root is not None and folder.is_relative_to(root))
        own = {path.resolve() for path in client.user_paths(self.home, self.environ)}
        for folder in (here, *above):
            # In the home directory, the folder's file is the user's.
            yield from (path for path in client.project_paths(folder) if path.resolve() not in own)

    def _claude_code(self, client: Client) -> Iterator[ServerSpec]:
        [user_file] = client.user_paths(self.home, self.environ)
        problems = self.discovery.problems
        user = client_file_reading.read(user_file, client.syntax, problems)
        projects = member(user, "projects", user_file, problems)
        keys = claude_code_projects(self.cwd)
        local = [part for key in keys if (part := member(projects, key, user_file, problems))]

        def own(part: Table, scope: Scope) -> _Part:
            entries = member(part, "mcpServers", user_file, problems)
            return _Part(scope, {name: _Entry(entry, user_file, user_file) for name, entry in entries.items()})

        general = client_file_reading.read(claude_code_settings(self.home, self.environ), "json", problems)
        approvals, denials = claude_code_approvals(local, general), Denials.of(general)
        here = self.cwd.resolve()
        files = [folder / PROJECT_NAME for folder in (here, *here.parents[:-1])]
        theirs = [found for file in files if (found := self._folder_part(client, file, approvals, {})) is not None]
        for each in (*(own(part, "local") for part in local), *theirs, own(user, "user")):
            for name, entry in each.entries.items():
                spec = self._spec(client, name, entry, (), each.scope)
                refused = each.scope == "project" and name in approvals.refused
                is_off = refused or name in approvals.switched_off or denials.deny(spec)
                yield replace(spec, enabled=False) if is_off else spec

    def _user_part(self, client: Client) -> _Part:
        problems = self.discovery.problems
        contents = client_file_reading.user_contents(client, self.home, self.environ, problems)
        found = client_file_reading.user_entries(client, contents, problems)
        settings = client_file_reading.user_settings(client, contents, self.home, self.environ, problems)
        return _Part("user", {name: _Entry(entry, path, path) for name, (entry, path) in found.items()}, settings)

    def user_servers(self, client: Client) -> Iterator[ServerSpec]:
        """The servers of the user's files."""
        part = self._user_part(client)
        for name, entry in part.entries.items():
            yield self._spec(client, name, entry, part.settings, "user")

    def _spec(self, client: Client, name: str, entry: _Entry, settings: Sequence[Table], scope: Scope) -> ServerSpec:
        """An entry with its variables expanded; an error in it becomes its `problem`."""
        context, file = EntryContext(name, settings, self.environ), entry.file
        if entry.borrows:
            self.borrowing.add((name, str(file)))
        try:
            found = shape(client.name, entry.value, context)
            spec = shaped(decode(name, found.entry, str(file), scope), found)
        except EntryError as error:
            return ServerSpec(name=name, source=str(file), scope=scope, problem=str(error))
        if spec.problem is not None:
            return spec
        workspace = self.cwd if scope != "project" else folder_of(file)
        expander = Expander(
            client.variables, self.environ, workspace, self.home, entry.own or file, own=entry.own is not None
        )
        expander.used |= context.used
        return replace(_expanded(spec, expander), scripts=entry.scripts)

    def _folder_part(
        self, client: Client, file: Path, approvals: ClaudeCodeApprovals | None, beneath: Mapping[str, _Entry]
    ) -> _Part | None:
        """What takes part of a folder's file: the servers that may be used or that the user has refused, if any.

        Args:
            client: The client whose file it is.
            file: A file of the working directory or of a folder above it.
            approvals: The user's decisions in Claude Code, for its file.
            beneath: The entries that those of the file change a part of, by name.
        """
        discovery, here = self.discovery, self.cwd.resolve()
        above = folder_of(file) != here
        try:
            data = read_regular(file, MAX_FILE_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if not (above and isinstance(error, PermissionError)):
                problem = Problem("bad_client_config", str(file), None, f"cannot be read: {why(error)}.")
                discovery.problems.append(problem)
            return None
        if client.syntax == "toml" and not self._may_be_parsed(client, file, data, above=above):
            return None
        content = client_file_reading.parse(data, file, client.syntax, discovery.problems)
        if content and file.name == PROJECT_NAME and content.get("mcpServers") is None:
            discovery.problems.append(Problem("bad_client_config", str(file), None, missing_servers_problem(content)))
        written = client_file_reading.entries(client, content, file, discovery.problems)
        under = {name: entry.value for name, entry in beneath.items()}
        status, reason, trusted = _trusted(client, file, data, content, self.trust, under)
        if trusted is not None:
            taken = {
                name: _over(
                    beneath.get(name),
                    entry,
                    file,
                    _scripts(trusted.servers.get(name), folder_of(file), trusted.files, here),
                )
                for name, entry in written.items()
            }
            return _Part("project", taken, [content])
        meant = not above or _only_user_writable(file)
        taken, unapproved = {}, []
        for name, entry in written.items():
            if approvals is not None and (name in approvals.refused or (meant and approvals.allow(name))):
                taken[name] = _Entry(entry, file)
            elif _can_be_used(entry):
                unapproved.append(name)
                approved = "neither approved in Claude Code nor" if approvals is not None else "not"
                reason_left_out = (
                    f"it comes with the folder: {approved} trusted (`{trust_command(file, above=above)}`)."
                )
                discovery.skipped.append(Skipped(name, str(file), reason_left_out))
        if unapproved or beneath.keys() & written.keys() or client_file_reading.folder_settings(client, content):
            discovery.ignored_files.append(ignored_file(file, status, reason, tuple(unapproved), above=above))
        return _Part("project", taken)

    def _may_be_parsed(self, client: Client, file: Path, data: bytes, *, above: bool) -> bool:
        """Whether a folder's TOML is trusted. If not, its servers have no names: it is ignored as a whole.

        The standard library's parser takes minutes for some short texts, such as a key of 100,000 parts.
        """
        status, reason = self.trust.status(file, data) if self.trust is not None else ("untrusted", None)
        if status != "trusted" and client.servers[0].encode() in data:
            self.discovery.ignored_files.append(ignored_file(file, status, reason, above=above))
        return status == "trusted"


def entries_beneath(
    client: Client, file: Path, *, environ: Mapping[str, str], home: Path, trust: TrustStore
) -> dict[str, Any]:
    """The undecoded entries, by name, of which a folder's file can change a part: the user's and trusted folders'."""
    finder = _Finder(folder_of(file), home, environ, Discovery(), trust)
    return {name: entry.value for name, entry in finder.beneath(client, file).items()}


def folder_table(
    client: Client, content: Table, file: Path, beneath: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Table]:
    """The part of a folder's file that is used: `mcpServers`, its servers in Claude Code's shape, and `ENTRIES`.

    The folder's own path is put in, so that the files that commands name are seen. No variable of the environment is:
    trust is in the text. An entry has what it changes a part of: `beneath`, as `entries_beneath` finds it.
    """
    if client.name == "claude-code":
        return project_table(content)
    expander = Expander(client.variables, {}, folder_of(file), Path.home(), file, own=False)

    def expanded(value: Any) -> Any:
        try:
            return expander(value) if isinstance(value, str) else value
        except UnexpandedError:
            return value

    servers: Table = {}
    wholes: Table = {}
    for name, part in client_file_reading.entries(client, content, file, []).items():
        entry = client_file_reading.merged(beneath.get(name), part)
        if entry != part or _was_read_otherwise(client, part):
            wholes[name] = hashlib.sha256(json.dumps(entry, sort_keys=True, default=str).encode()).hexdigest()
        try:
            flat = dict(shape(client.name, entry, EntryContext(name, (), {})).entry)
        except EntryError:
            servers[name] = entry
            continue
        for key in ("command", "cwd"):
            flat[key] = expanded(flat.get(key))
        if isinstance(flat.get("args"), list):
            flat["args"] = [expanded(arg) for arg in flat["args"]]
        servers[name] = {key: value for key, value in flat.items() if value is not None}
    return {"mcpServers": servers, ENTRIES: wholes}


def _was_read_otherwise(client: Client, entry: Any) -> bool:
    """Whether earlier versions took an entry for another server, so that their records of trust don't count for it.

    Of an address and a command of Gemini CLI's they started the command.
    """
    return client.name == "gemini" and isinstance(entry, dict) and len({"command", "url", "httpUrl"} & entry.keys()) > 1


def _scripts(entry: Any, base: Path, files: Mapping[str, str], cwd: Path | None = None) -> dict[str, str]:
    """The folder's files that the server's command names from its working directory, with their trusted hashes."""
    return {str(path): files.get(str(path), "not there") for path in scripts_of(entry, base, cwd)}


class _Trusted(NamedTuple):
    """A trusted file's servers in Claude Code's shape, and the hashes of the folder's files that they name."""

    servers: Table
    files: Mapping[str, str]


def _trusted(
    client: Client,
    file: Path,
    data: bytes,
    content: Table,
    trust: TrustStore | None,
    beneath: Mapping[str, Any],
) -> tuple[Status, str | None, _Trusted | None]:
    """Whether a folder's file is trusted, why that can't be told, and what it has. Of another, no entry is decoded."""
    if trust is None:
        return "untrusted", None, None
    status, reason = trust.status(file, data)
    if status != "trusted":
        return status, reason, None
    table = folder_table(client, content, file, beneath)
    try:
        whole = content_of(file, data, table)
    except BridgeError as error:
        return "unusable", error.message.removesuffix("."), None
    if not trust.is_trusted(whole):
        return "changed", None, None
    return "trusted", None, _Trusted(table["mcpServers"], whole.files)


def _can_be_used(entry: Any) -> bool:
    """Whether an entry that wasn't decoded names a command or an address, and isn't this bridge."""
    named = isinstance(entry, dict) and bool({"command", "url", "httpUrl", "serverUrl"} & entry.keys())
    return named and not starts_the_bridge(entry)


def starts_the_bridge(entry: Any) -> bool:
    """Whether an undecoded entry of any client's starts this bridge."""
    words = command_line(entry)
    return bool(words) and runs_the_bridge(words[0], words[1:])


def command_line(entry: Any) -> list[str]:
    """The command of an undecoded entry of any client's, and its arguments; empty if they are no texts."""
    if not isinstance(entry, dict):
        return []
    if isinstance(inner := entry.get("command"), dict):
        # As older versions of Zed have it.
        entry = {"command": inner.get("path"), "args": inner.get("args")}
    command, args = entry.get("command"), entry.get("args")
    words = [*(command if isinstance(command, list) else [command]), *(args if isinstance(args, list) else [])]
    return words if all(isinstance(word, str) for word in words) else []


def is_the_bridge(entry: Any, address: OwnAddress, environ: Mapping[str, str]) -> bool:
    """Whether an undecoded entry of any client's starts this bridge, or leads to one on this machine."""
    return starts_the_bridge(entry) or points_to_this_bridge(_texts(entry), address, environ)


def is_this_bridge(entry: Any, address: OwnAddress) -> bool:
    """Whether an undecoded entry of any client's starts this bridge, or has its address."""
    return starts_the_bridge(entry) or any(address.is_of(text) for text in _texts(entry))


def is_another_bridge(entry: Any, environ: Mapping[str, str]) -> bool:
    """Whether an undecoded entry of any client's has a token of a bridge's principal."""
    return has_token(_texts(entry), environ)


def _texts(value: Any) -> Iterator[str]:
    """All texts in an entry. Its depth is bounded where it was read."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


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


def command_problem(spec: ServerSpec, environ: Mapping[str, str]) -> str | None:
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


def user_servers(
    client: ClientName, *, environ: Mapping[str, str], cwd: Path, home: Path, own_address: OwnAddress
) -> tuple[list[ServerSpec], list[Problem]]:
    """The servers of a client's user's files, without bridges, and what is wrong with the files."""
    discovery = Discovery()
    finder = _Finder(cwd, home, environ, discovery, None)
    found = finder.user_servers(CLIENTS[client])
    return [spec for spec in found if _bridge(spec, runs_the_bridge, own_address) is None], discovery.problems


def _bridge(
    spec: ServerSpec, runs_itself: Callable[[str, tuple[str, ...]], bool], own_address: OwnAddress
) -> Skipped | None:
    """Why a server is left out because it is a bridge, or None."""
    if spec.type == "stdio" and runs_itself(spec.command, spec.args):
        reason = "it is this bridge; a bridge behind itself would start itself for ever."
        return Skipped(spec.name, spec.source, reason, is_self=True)
    if spec.scope in OWN_SCOPES:
        return None
    texts = [spec.url or "", spec.command, *spec.args, *spec.env.values(), *spec.headers.values()]
    if points_to_this_bridge(texts, own_address, {}):
        reason = "it is the address of a bridge on this machine, for clients."
        return Skipped(spec.name, spec.source, reason, is_self=True)
    if has_token(texts, {}):
        reason = "it has a token of a bridge's principal, for its client; to have that bridge behind this one, add it."
        return Skipped(spec.name, spec.source, reason)
    return None


def _same_or_shadowing(spec: ServerSpec, found: Mapping[str, ServerSpec]) -> str | None:
    """Why a server is left out for one that was found before, or None.

    Two entries of one file are never the same server: whoever wrote them wanted two.
    """
    if (winner := found.get(spec.name)) is not None:
        return f"{winner.scope} scope ({winner.source}) has a server of this name."
    if spec.scope in OWN_SCOPES or spec.problem is not None:
        return None
    for name, other in found.items():
        if other.source != spec.source and other.enabled and other.identity == spec.identity:
            return f"it is the same server as {name} of {other.scope} scope ({other.source})."
    return None


def discover(
    tables: Mapping[str, Mapping[str, Any]],
    *,
    config_file: str | Path,
    environ: Mapping[str, str],
    cwd: Path,
    home: Path,
    clients: Sequence[ClientName] = ("claude-code",),
    allow_self_server: bool = False,
    runs_itself: Callable[[str, tuple[str, ...]], bool] = runs_the_bridge,
    own_address: OwnAddress = OwnAddress(),  # noqa: B008 - it is frozen
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
        cwd: The working directory: its clients' files, and those above it as each client reads them.
        home: The home directory.
        clients: The clients whose files are read, the highest precedence first.
        allow_self_server: Whether to include servers that are this bridge, and bridges of clients' files.
        runs_itself: Returns whether a command line runs this bridge.
        own_address: Where this bridge serves over HTTP, if it does.
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
        assert trusted is not None  # a folder's tables are there with what is trusted
        spec = spec_from_toml(name, table, trusted.file)
        own.append(replace(spec, scope="folder", scripts=_scripts(table, trusted.file.parent, trusted.files)))
    expanded = [
        _expanded(spec, Expander("braces", environ, cwd, home, Path(spec.source), own=spec.scope == "config"))
        for spec in own
    ]
    finder = _Finder(cwd, home, environ, discovery, trust)
    for name in dict.fromkeys(clients):
        expanded += finder.servers(CLIENTS[name])
    found: dict[str, ServerSpec] = {}
    for spec in expanded:
        name, file = spec.name, spec.source
        if other := _same_or_shadowing(spec, found):
            discovery.skipped.append(Skipped(name, file, other))
            continue
        if not allow_self_server and (bridge := _bridge(spec, runs_itself, own_address)):
            discovery.skipped.append(bridge)
            continue
        configured = replace(
            spec,
            problem=spec.problem or command_problem(spec, environ),
            may_be_bridge=allow_self_server or spec.scope in OWN_SCOPES,
        )
        found[name] = configured
        # A file in a parent folder configures other folders, too.
        from_above = configured.scope == "project" and folder_of(Path(file)) != cwd.resolve()
        if safe_directory is not None and (
            configured.scope == "user"
            or from_above
            or (name, file) in finder.borrowing
            or (for_every_folder and configured.scope == "config")
        ):
            discovery.servers[name] = isolate_runner(configured, safe_directory)
        else:
            discovery.servers[name] = configured
    return discovery
