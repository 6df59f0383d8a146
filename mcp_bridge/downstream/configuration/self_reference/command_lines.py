"""Detects whether a command line runs this bridge, which would start itself without end as its own server.

Only words that can be a command are examined: a file server for the directory `~/src/mcp-bridge` doesn't match.
Undetected cases are stopped by the variable `MCP_BRIDGE_NESTED`, which every child process inherits.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath

NAMES = frozenset({"mcp-bridge", "mcp-code-bridge", "mcp-server-code-execution-mode"})
MODULES = frozenset({"mcp_bridge", "mcp_server_code_execution_mode"})

MAX_NESTED = 16
"""So many programs may start one another; an entry of a folder may have been written to have many more looked at."""

MAX_SHELL_CHARS = 10_000
"""So long a command of a shell is looked at: `shlex` takes half a minute for a word of a million characters."""

_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PYTHON = re.compile(r"python[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish"})
_SHELL_COMMAND = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_SHELL_OPTIONS = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_ENV_OPTIONS = frozenset({"-u", "--unset", "-C", "--chdir"})

# Programs that start the one in their arguments, behind options and what they measure in: "-n 5", "1h".
_PREFIXES = frozenset({"exec", "command", "nohup", "setsid", "nice", "ionice", "stdbuf", "timeout"})
_OPTION_OR_MEASURE = re.compile(r"-.*|[0-9.]+[smhd]?")

# Options of `uv`, `uvx` and `pipx` that take the next word as their value; other options are taken to be flags.
_RUNNER_OPTIONS = frozenset(
    {
        "--from",
        "--spec",
        "--with",
        "--with-editable",
        "--with-requirements",
        "--python",
        "-p",
        "--index",
        "--index-url",
        "-i",
        "--extra-index-url",
        "--default-index",
        "--directory",
        "--project",
        "--env-file",
        "--cache-dir",
        "--extra",
        "--group",
        "--config-file",
        "--constraints",
        "-c",
        "--overrides",
        "--refresh-package",
        "--reinstall-package",
        "--upgrade-package",
        "-P",
        "--pip-args",
    }
)
_PYTHON_OPTIONS = frozenset({"-W", "-X", "--check-hash-based-pycs"})


def runs_the_bridge(command: str, args: tuple[str, ...] | list[str]) -> bool:
    """Whether a command starts this bridge: directly, as a module, or through package runners, shells and the like."""
    return _runs_it(command, list(args), MAX_NESTED)


def _runs_it(command: str, words: list[str], nested: int) -> bool:
    if not nested:
        return False
    base = PurePath(command).name.removesuffix(".exe").removesuffix(".py")
    if base in NAMES:
        return True
    if base == "env":
        return _env_runs_it(words, nested - 1)
    if base in _PREFIXES:
        start = next((at for at, word in enumerate(words) if not _OPTION_OR_MEASURE.fullmatch(word)), None)
        return start is not None and _runs_it(words[start], words[start + 1 :], nested - 1)
    if base in _SHELLS:
        return _shell_runs_it(words, nested - 1)
    if _PYTHON.fullmatch(base):
        return _python_runs_it(words)
    if base in {"uvx", "uv", "pipx"}:
        return _runner_runs_it(words, nested - 1)
    return False


def _env_runs_it(words: list[str], nested: int) -> bool:
    index = 0
    while index < len(words) and (words[index].startswith("-") or _ASSIGNMENT.match(words[index])):
        if words[index] in {"-S", "--split-string"}:
            return _shell_runs_it(["-c", *words[index + 1 : index + 2]], nested)
        index += 2 if words[index] in _ENV_OPTIONS else 1
    return index < len(words) and _runs_it(words[index], words[index + 1 :], nested)


def _shell_runs_it(words: list[str], nested: int) -> bool:
    index, has_command = 0, False
    while index < len(words) and words[index].startswith(("-", "+")):
        has_command |= _SHELL_COMMAND.fullmatch(words[index]) is not None
        index += 2 if words[index] in _SHELL_OPTIONS else 1
    if index >= len(words) or not has_command or len(words[index]) > MAX_SHELL_CHARS:
        return False
    lexer = shlex.shlex(words[index].replace("\n", ";"), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split, lexer.commenters = True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if not word.strip(";&|()"):
                commands.append([])
            elif commands[-1] or not _ASSIGNMENT.match(word):
                commands[-1].append(word)
    except ValueError:
        return False
    return any(inner and _runs_it(inner[0], inner[1:], nested) for inner in commands)


def _python_runs_it(words: list[str]) -> bool:
    index = 0
    while index < len(words):
        word = words[index]
        if word == "-m" and index + 1 < len(words):
            return words[index + 1].split(".")[0] in MODULES
        if word.startswith("-m") and len(word) > len("-m"):
            return word[len("-m") :].split(".")[0] in MODULES
        if word == "-c":
            return False
        if not word.startswith("-"):
            return PurePath(word).name.removesuffix(".py") in NAMES or PurePath(word).name in MODULES
        index += 2 if word in _PYTHON_OPTIONS else 1
    return False


def _runner_runs_it(words: list[str], nested: int) -> bool:
    index = 0
    while index < len(words):
        word = words[index]
        option, _, attached = word.partition("=")
        if word.startswith("-") and word != "--":
            takes_next = option in _RUNNER_OPTIONS and not attached
            value = words[index + 1] if takes_next and index + 1 < len(words) else attached
            if option in {"--from", "--spec"} and _is_requirement_of_it(value):
                return True
            if option == "-m" and index + 1 < len(words):
                return _python_runs_it(words[index:])
            index += 2 if takes_next else 1
        elif word in {"--", "run", "tool", "x"}:
            index += 1
        else:
            return _is_requirement_of_it(word) or _runs_it(word, words[index + 1 :], nested)
    return False


def _is_requirement_of_it(requirement: str) -> bool:
    """Match `mcp-code-bridge`, `mcp_code_bridge==1.2`, `mcp-code-bridge@latest`, or a path or URL that ends in it."""
    tail = PurePath(requirement.partition("#")[0].rstrip("/")).name.removesuffix(".git")
    match = _REQUIREMENT_NAME.match(tail)
    return match is not None and match.group().replace("_", "-").lower() in NAMES
