"""The clients whose configuration files list servers: where the files are, and how each client writes and reads them.

What is said here of a client was read in its documentation or source, or seen of it, in November 2026; docs/clients.md
has it in a table. `directories` is no client, but directories that several programs read servers from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from mcp_bridge.errors import BridgeError
from mcp_bridge.workspace.folder_content import SERVERS_DIRECTORY, listing_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ClientName = Literal[
    "claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini", "opencode", "zed", "windsurf", "directories"
]
CLIENT_NAMES: tuple[ClientName, ...] = get_args(ClientName)

Syntax = Literal["json", "commented json", "jsonc", "toml"]
"""`commented json` has comments and no trailing commas; `jsonc` has both."""

Variables = Literal["none", "braces", "editor", "windsurf", "gemini", "opencode"]
"""How a client expands variables; see `expansion`."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client's configuration files.

    Attributes:
        name: Its name in our settings and commands.
        title: Its name as its makers write it.
        user_files: The user's files, the highest precedence first, from `{home}`, or a directory of
            `_DIRECTORIES` on. `*.json` stands for those of a directory, by name.
        servers: The keys that lead to the object of servers, in all of its files.
        new_file: The user's file to make if there is none.
        project_files: Its files in a folder, the highest precedence first, likewise; each is in
            `mcp_bridge.workspace.folder_content.CLIENT_FILES`, or in its `SERVERS_DIRECTORY`.
        upward: Whether its files in the folders above count too, up to the root of the git repository.
        merges: Whether an entry of one file changes a part of the one that a file beneath has: the user's files are
            beneath a folder's, and those of a folder above beneath those of one in it.
        switches: The user's file of servers that are switched off, from a directory as in `user_files`; or none.
        syntax: What its files are written in.
        variables: How it expands variables.
    """

    name: ClientName
    title: str
    user_files: tuple[str, ...]
    servers: tuple[str, ...] = ("mcpServers",)
    new_file: str = ""
    project_files: tuple[str, ...] = ()
    upward: bool = False
    merges: bool = False
    switches: str = ""
    syntax: Syntax = "json"
    variables: Variables = "none"

    def user_paths(self, home: Path, environ: Mapping[str, str]) -> list[Path]:
        """The paths of the user's files, whether or not they exist, the highest precedence first."""
        return [path for pattern in self.user_files for path in _expanded(_path(pattern, home, environ))]

    def project_paths(self, folder: Path) -> list[Path]:
        """The paths of its files in a folder, likewise."""
        return [path for name in self.project_files for path in _expanded(folder / name)]

    def watched_paths(self, home: Path, environ: Mapping[str, str], folders: Iterable[Path]) -> Iterator[Path]:
        """All that changes when its servers do: its files, of the user and in folders, and directories of them."""
        patterns = [_path(pattern, home, environ) for pattern in self.user_files]
        patterns += [folder / name for folder in folders for name in self.project_files]
        for pattern in patterns:
            if pattern.name == _ALL:
                yield pattern.parent
            yield from _expanded(pattern)
        if (switches := self.switches_path(home, environ)) is not None:
            yield switches

    def switches_path(self, home: Path, environ: Mapping[str, str]) -> Path | None:
        """The path of the file of servers that are switched off, whether or not it exists."""
        return _path(self.switches, home, environ) if self.switches else None

    @property
    def is_program(self) -> bool:
        """Whether it is a program, which the bridge can be put behind."""
        return self.name != "directories"

    def user_path(self, home: Path, environ: Mapping[str, str]) -> Path:
        """The user's file to write to: the first that exists, else the one to make."""
        existing = [path for path in self.user_paths(home, environ) if path.exists() or path.is_symlink()]
        return existing[0] if existing else _path(self.new_file or self.user_files[0], home, environ)

    def project_path(self, folder: Path) -> Path | None:
        """The file in a folder to write to, or None if the client has none."""
        if not self.project_files:
            return None
        paths = [folder / name for name in self.project_files]
        return next((path for path in paths if path.exists() or path.is_symlink()), paths[0])


_ALL = "*.json"


def _expanded(path: Path) -> list[Path]:
    return listing_files(path.parent) if path.name == _ALL else [path]


_DIRECTORIES = {
    "config": ("XDG_CONFIG_HOME", ".config"),
    "codex": ("CODEX_HOME", ".codex"),
    # Claude Code's file is beside its directory, unless the variable names one: then both are in that.
    "claude_file": ("CLAUDE_CONFIG_DIR", ""),
    "claude": ("CLAUDE_CONFIG_DIR", ".claude"),
    "gemini": ("GEMINI_CLI_HOME", ""),
}
"""Where clients keep files: the variable that names the directory, and its place in the home directory without one."""


def _path(pattern: str, home: Path, environ: Mapping[str, str]) -> Path:
    def directory(variable: str, default: str) -> str:
        # A relative path is invalid in XDG's. In the others it would lead into the folder, which others have made.
        value = environ.get(variable, "")
        return value if Path(value).is_absolute() else str(home / default)

    return Path(pattern.format(home=home, **{name: directory(*place) for name, place in _DIRECTORIES.items()}))


def claude_code_settings(home: Path, environ: Mapping[str, str]) -> Path:
    """Claude Code's settings of the user, in which servers can be approved for all projects."""
    return _path("{claude}/settings.json", home, environ)


_MAC = "{home}/Library/Application Support"

_CLIENTS = (
    Client(
        "claude-code",
        "Claude Code",
        ("{claude_file}/.claude.json",),
        project_files=(".mcp.json",),
        upward=True,
        variables="braces",
    ),
    Client(
        "claude-desktop",
        "Claude Desktop",
        ("{config}/Claude/claude_desktop_config.json", f"{_MAC}/Claude/claude_desktop_config.json"),
    ),
    Client(
        "cursor",
        "Cursor",
        ("{home}/.cursor/mcp.json",),
        project_files=(".cursor/mcp.json",),
        syntax="jsonc",
        variables="editor",
    ),
    Client(
        "vscode",
        "VS Code",
        ("{config}/Code/User/mcp.json", f"{_MAC}/Code/User/mcp.json"),
        servers=("servers",),
        project_files=(".vscode/mcp.json",),
        syntax="jsonc",
        variables="editor",
    ),
    Client(
        "codex",
        "Codex",
        ("{codex}/config.toml",),
        servers=("mcp_servers",),
        project_files=(".codex/config.toml",),
        upward=True,
        merges=True,
        syntax="toml",
    ),
    Client(
        "gemini",
        "Gemini CLI",
        ("{gemini}/.gemini/settings.json",),
        project_files=(".gemini/settings.json",),
        switches="{gemini}/.gemini/mcp-server-enablement.json",
        syntax="commented json",
        variables="gemini",
    ),
    Client(
        "opencode",
        "opencode",
        (
            "{config}/opencode/opencode.jsonc",
            "{config}/opencode/opencode.json",
            "{config}/opencode/config.json",
        ),
        servers=("mcp",),
        new_file="{config}/opencode/opencode.json",
        project_files=("opencode.jsonc", "opencode.json"),
        upward=True,
        merges=True,
        syntax="jsonc",
        variables="opencode",
    ),
    Client(
        "zed",
        "Zed",
        ("{config}/zed/settings.json",),
        servers=("context_servers",),
        project_files=(".zed/settings.json",),
        syntax="jsonc",
    ),
    Client(
        "windsurf",
        "Windsurf",
        ("{home}/.codeium/windsurf/mcp_config.json",),
        variables="windsurf",
    ),
    Client(
        "directories",
        "Directories of servers",
        ("{home}/MCPs/*.json", "{config}/mcp/servers/*.json"),
        new_file="{home}/MCPs/servers.json",
        project_files=(f"{SERVERS_DIRECTORY}/*.json",),
        variables="braces",
    ),
)

CLIENTS: Mapping[str, Client] = {client.name: client for client in _CLIENTS}

PROGRAMS: tuple[ClientName, ...] = tuple(client.name for client in _CLIENTS if client.is_program)
"""The names of those that are programs."""


def program_of(name: ClientName) -> Client:
    """The client of this name, whose own file a command reads or writes.

    Raises:
        BridgeError: `bad_argument`: it is no program.
    """
    client = CLIENTS[name]
    if not client.is_program:
        raise BridgeError(
            "bad_argument",
            f"{name!r} is no client that has a file of its own.",
            hint=f"A client_configs that names {name!r} has their servers read; the clients are {', '.join(PROGRAMS)}.",
        )
    return client
