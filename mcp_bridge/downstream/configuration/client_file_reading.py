"""Configuration files of clients: read as their clients read them, and never written.

A broken file is a problem that names the file and the line, and none of its servers is there. Nothing is raised.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

from mcp_bridge.downstream.configuration import jsonc
from mcp_bridge.toml_files import reader as toml_reader
from mcp_bridge.workspace.folder_content import read_regular, why

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from mcp_bridge.downstream.configuration.known_clients import Client, ClientName, Syntax
    from mcp_bridge.error_codes import Code

Table = dict[str, Any]

MAX_USER_BYTES = 256 << 20
"""Size limit of a file in the home directory. Claude Code's also stores histories."""

SWITCHED_OFF = "switched off"
"""The key of a layer of `EntryContext.settings` for the servers that Gemini CLI's own command has switched off, in
lower case. They are a frozenset."""

_TOML_LINE = re.compile(r"at line (\d+)")


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


def read(path: Path, syntax: Syntax, problems: list[Problem]) -> Table:
    """The content of a user's file; `{}` if the file doesn't exist or is invalid, which is reported."""
    try:
        data = read_regular(path, MAX_USER_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            problems.append(Problem("bad_client_config", str(path), None, "is a link to a file that isn't there."))
        return {}
    except OSError as error:
        problems.append(Problem("bad_client_config", str(path), None, f"cannot be read: {why(error)}."))
        return {}
    return parse(data, path, syntax, problems)


def parse(data: bytes, path: Path, syntax: Syntax, problems: list[Problem]) -> Table:
    """The content of a file; `{}` if it is invalid, which is reported."""

    def report(message: str, line: int | None = None) -> Table:
        problems.append(Problem("bad_client_config", str(path), line, message))
        return {}

    try:
        content = loads(data, syntax)
    except json.JSONDecodeError as error:
        return report(f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno}).", error.lineno)
    except tomllib.TOMLDecodeError as error:
        line = _TOML_LINE.search(str(error))
        return report(f"not valid TOML: {error}.", int(line.group(1)) if line else None)
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


def loads(data: bytes, syntax: Syntax) -> Any:
    """Decode a file. A byte order mark is skipped. Editors leave an empty file empty: it is an empty object.

    Raises:
        ValueError: It is invalid: `json.JSONDecodeError`, `tomllib.TOMLDecodeError`, `UnicodeDecodeError`.
        RecursionError: It is nested too deeply.
    """
    text = data.decode("utf-8-sig")
    match syntax:
        case "toml":
            return toml_reader.loads(text)
        case "json":
            return json.loads(text)
        case "commented json":
            return jsonc.loads(text, trailing_commas=False)
        case "jsonc":
            return jsonc.loads(text) if jsonc.plain(text).strip() else {}


def member(container: Table, key: str, path: Path, problems: list[Problem]) -> Table:
    """An object in another; `{}` if it isn't there, or isn't one, which is reported."""
    value = container.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        problems.append(Problem("bad_client_config", str(path), None, f"{key} is not an object."))
        return {}
    return cast("Table", value)


def entries(client: Client, content: Table, path: Path, problems: list[Problem]) -> Table:
    """The undecoded entries of a file's servers by name."""
    found = content
    for key in client.servers:
        found = member(found, key, path, problems)
    if client.name == "opencode" and is_group(found.get("servers")):
        # Its second format has {"mcp": {"servers": {…}}}.
        return cast("Table", found["servers"])
    return found


def is_group(value: Any) -> bool:
    """Whether a value is an object of entries and not an entry, which may have the name `servers`."""
    return isinstance(value, dict) and not isinstance(value.get("type"), str) and "enabled" not in value


def merged(before: Any, after: Any) -> Any:
    """A value beneath another, as one: objects are merged, deeply; of anything else the later counts."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    return before | {key: merged(before[key], value) if key in before else value for key, value in after.items()}


def user_contents(
    client: Client, home: Path, environ: Mapping[str, str], problems: list[Problem]
) -> list[tuple[Path, Table]]:
    """The user's files and their contents, the lowest precedence first."""
    paths = reversed(client.user_paths(home, environ))
    return [(path, read(path, client.syntax, problems)) for path in paths]


def user_entries(
    client: Client, contents: Iterable[tuple[Path, Table]], problems: list[Problem]
) -> dict[str, tuple[Any, Path]]:
    """The undecoded entries of the user's servers by name, and the file that an entry, or its last part, is in."""
    found: dict[str, tuple[Any, Path]] = {}
    for path, content in contents:
        for name, entry in entries(client, content, path, problems).items():
            whole = merged(found[name][0], entry) if client.merges and name in found else entry
            found[name] = whole, path
    return found


def user_settings(
    client: Client,
    contents: Iterable[tuple[Path, Table]],
    home: Path,
    environ: Mapping[str, str],
    problems: list[Problem],
) -> list[Table]:
    """What the user has said of servers beside their entries; see `EntryContext.settings`."""
    layers: list[Table] = [reduce(merged, (content for _, content in contents), {})]
    path = client.switches_path(home, environ)
    switches = read(path, "json", problems) if path is not None else {}
    off = [name for name, said in switches.items() if isinstance(said, dict) and said.get("enabled") is False]
    if off:
        layers.append({SWITCHED_OFF: frozenset(name.lower().strip() for name in off)})
    return layers


def all_settings(client: Client, file: Path, content: Table, home: Path, environ: Mapping[str, str]) -> list[Table]:
    """What the user has said of servers, and what a file of the client's says of them, the user's or a folder's.

    Args:
        client: The client.
        file: The file.
        content: What is in it, or is to be.
        home: The home directory.
        environ: The environment.
    """
    paths = client.user_paths(home, environ)
    contents = [(path, content if path == file else read(path, client.syntax, [])) for path in reversed(paths)]
    return user_settings(client, contents, home, environ, []) + ([] if file in paths else [content])


_OF_SERVERS: dict[ClientName, dict[str, tuple[str, ...] | None]] = {
    "gemini": {"mcp": ("allowed", "excluded")},
    "opencode": {"tools": None},
}
"""Beside the entries, what switches servers or their tools off: keys, and those of their objects that do."""


def folder_settings(client: Client, content: Table) -> Table:
    """What a folder's file says of servers beside their entries."""
    found: Table = {}
    for key, parts in _OF_SERVERS.get(client.name, {}).items():
        value = content.get(key)
        if isinstance(value, dict) and parts is not None:
            value = {part: value[part] for part in parts if part in value}
        found |= {key: value} if value else {}
    return found
