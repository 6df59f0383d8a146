"""Variables in servers' entries, as the client that an entry is written for expands them. Each text is expanded once.

- `braces` (our own TOML, Claude Code): `${VAR}` and `${VAR:-default}`.
- `editor` (Cursor, VS Code): `${env:NAME}`, `${userHome}`, `${workspaceFolder}`, `${workspaceFolderBasename}`,
  `${cwd}`, `${pathSeparator}` and `${/}`. What only the editor knows, such as `${input:token}`, is a problem of the
  entry.
- `windsurf`: `${env:NAME}`.
- `gemini`: `$VAR`, `${VAR}` and `${VAR:-default}`; a variable that isn't set stays as it is written.
- `opencode`: `{env:NAME}` (empty if it isn't set) and `{file:path}`, the content of a file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge.workspace.folder_content import read_regular, why

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp_bridge.downstream.configuration.known_clients import Variables

# `$VAR` is not expanded, as in Claude Code.
_BRACES = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_EDITOR = re.compile(r"\$\{([^{}]*)\}")
_GEMINI = re.compile(r"\$(?:(\w+)|\{([^}]+?)(?::-([^}]*))?\})")
_OPENCODE = re.compile(r"\{(env|file):([^{}]+)\}")

OPENCODE_FILE = "{file:"
"""What a text of opencode's has that is to have a file read."""

_MAX_FILE_BYTES = 64 << 10
"""Size limit of a file that opencode's `{file:path}` names: it holds one value, such as a key."""

_ONLY_THE_EDITOR = (
    *("input:", "config:", "command:", "file", "relativeFile", "selectedText", "lineNumber", "columnNumber"),
    # Of several folders that are open, the one of this name.
    *("workspaceFolder:", "workspaceFolderBasename:", "cwd:"),
    *("execPath", "defaultBuildTask", "extensionInstallFolder:"),
)
"""Beginnings of the editors' variables that have no value outside of the editor."""


class UnexpandedError(Exception):
    """A text can't be expanded. The argument says why, and follows the name of the key."""


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

    return _BRACES.sub(value, text)


class Expander:
    """Expands the texts of one entry.

    Args:
        variables: How its client expands them.
        environ: The environment.
        workspace: The folder that a client has open; the working directory for the user's files.
        home: The home directory.
        file: The entry's file.
        own: Whether the file is the user's own. An entry that comes with a folder can't have other files read.
    """

    def __init__(
        self, variables: Variables, environ: Mapping[str, str], workspace: Path, home: Path, file: Path, *, own: bool
    ) -> None:
        self._variables = variables
        self._environ = environ
        self._workspace = workspace
        self._home = home
        self._file = file
        self._own = own
        self.used: set[str] = set()
        """The environment variables whose values were put in."""
        self.empty: list[str] = []
        """What was empty of the text that was expanded last."""

    def __call__(self, text: str) -> str:
        """The expanded text.

        Raises:
            UnexpandedError: A variable has no value here.
        """
        self.empty = []
        match self._variables:
            case "none":
                return text
            case "braces":
                return self._filled(text, _BRACES, self._braces)
            case "editor" | "windsurf":
                return self._filled(text, _EDITOR, self._editor)
            case "gemini":
                return self._filled(text, _GEMINI, self._gemini)
            case "opencode":
                return self._filled(text, _OPENCODE, self._opencode)

    def _filled(self, text: str, written: re.Pattern[str], value_of: Callable[[re.Match[str]], str]) -> str:
        def value(match: re.Match[str]) -> str:
            found = value_of(match)
            if not found:
                # Without a default, which may be a secret.
                self.empty.append(match.group().partition(":-")[0].strip("${}").removeprefix("env:"))
            return found

        return written.sub(value, text)

    def _environment(self, name: str) -> str | None:
        value = self._environ.get(name)
        if value is not None:
            self.used.add(name)
        return value

    def _braces(self, match: re.Match[str]) -> str:
        value = self._environment(match.group(1))
        if value is None:
            value = match.group(2)
        if value is None:
            raise _unset(match.group())
        return value

    def _editor(self, match: re.Match[str]) -> str:
        name = match.group(1)
        if name.startswith("env:"):
            value = self._environment(name.removeprefix("env:"))
            if value is None:
                raise _unset(match.group())
            return value
        if self._variables == "windsurf":
            return match.group()
        known = {
            "userHome": str(self._home),
            "workspaceFolder": str(self._workspace),
            "workspaceFolderBasename": self._workspace.name,
            "cwd": str(self._workspace),
            "pathSeparator": os.sep,
            "/": os.sep,
        }
        if name.startswith("input:"):
            raise UnexpandedError(
                f"uses {match.group()}, which the editor asks you for: put the value into an environment variable "
                "and write ${env:NAME} for it, or take it from the bridge's secrets in [servers.NAME]."
            )
        if name not in known and name.startswith(_ONLY_THE_EDITOR):
            raise UnexpandedError(f"uses {match.group()}, which only the editor knows.")
        return known.get(name, match.group())

    def _gemini(self, match: re.Match[str]) -> str:
        value = self._environment(match.group(1) or match.group(2))
        default: str | None = match.group(3)
        return value if value is not None else match.group() if default is None else default

    def _opencode(self, match: re.Match[str]) -> str:
        kind, name = match.group(1), match.group(2)
        if kind == "env":
            return self._environment(name) or ""
        if not self._own:
            raise UnexpandedError(f"uses {match.group()}: a folder's entry can't have files read.")
        path = Path(name).expanduser() if name.startswith("~/") else self._file.parent / name
        try:
            return read_regular(path, _MAX_FILE_BYTES).decode().strip()
        except (OSError, RuntimeError) as error:
            reason = why(error) if isinstance(error, OSError) else "there is no such home directory"
            raise UnexpandedError(f"uses {match.group()}, which can't be read: {reason}.") from None
        except UnicodeDecodeError:
            raise UnexpandedError(f"uses {match.group()}, which is no text.") from None
        except ValueError:
            raise UnexpandedError(f"uses {match.group()}, which is no path.") from None


def _unset(written: str) -> UnexpandedError:
    return UnexpandedError(f"uses {written}, which is not set in the environment and has no default.")
