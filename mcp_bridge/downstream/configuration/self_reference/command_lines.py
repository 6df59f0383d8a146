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

_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PYTHON = re.compile(r"python[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish"})

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
    """Whether a command starts this bridge: directly, as a module, or through a package runner or a shell."""
    words = list(args)
    base = PurePath(command).name.removesuffix(".exe").removesuffix(".py")
    if base in NAMES:
        return True
    if base == "env":
        while words and (words[0].startswith("-") or _ASSIGNMENT.match(words[0])):
            words.pop(0)
        return bool(words) and runs_the_bridge(words[0], words[1:])
    if base in _SHELLS:
        return _shell_runs_it(words)
    if _PYTHON.fullmatch(base):
        return _python_runs_it(words)
    if base in {"uvx", "uv", "pipx"}:
        return _runner_runs_it(words)
    return False


def _shell_runs_it(words: list[str]) -> bool:
    if "-c" not in words[:-1]:
        return False
    try:
        inner = shlex.split(words[words.index("-c") + 1])
    except ValueError:
        return False
    while inner and (inner[0] == "exec" or _ASSIGNMENT.match(inner[0])):
        inner.pop(0)
    return bool(inner) and runs_the_bridge(inner[0], inner[1:])


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


def _runner_runs_it(words: list[str]) -> bool:
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
            return _is_requirement_of_it(word) or runs_the_bridge(word, words[index + 1 :])
    return False


def _is_requirement_of_it(requirement: str) -> bool:
    """Match `mcp-code-bridge`, `mcp_code_bridge==1.2`, `mcp-code-bridge@latest`, or a path or URL that ends in it."""
    tail = PurePath(requirement.partition("#")[0].rstrip("/")).name.removesuffix(".git")
    match = _REQUIREMENT_NAME.match(tail)
    return match is not None and match.group().replace("_", "-").lower() in NAMES
