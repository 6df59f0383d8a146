"""Usage errors of the command line: one line with a code, and what to write instead."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from mcp_bridge import escaping
from mcp_bridge.cli import exit_statuses
from mcp_bridge.cli.commands import LazyCommands
from mcp_bridge.cli.streams import discard_output
from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import spelled_like

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_RULES = "A rule is a table [[policy.rules]] of the configuration; `mcp-bridge policy check` checks it."
_ERASED = "Write `mcp-bridge erase --execution ID`."
_REMOVED = "`mcp-bridge servers remove NAME` takes out a server, `mcp-bridge uninstall` removes the bridge."
_NEVER_SHOWN = "A secret is never shown. `mcp-bridge secret set NAME` replaces it."

INSTEAD = {
    "help": "Write `mcp-bridge --help`.",
    "start": "`mcp-bridge serve` serves a client; `mcp-bridge run FILE` runs a script.",
    "stop": "A bridge ends with the client that has started it.",
    "list": "`mcp-bridge servers list` has the servers, `mcp-bridge execution list` what was run.",
    "tools": "`mcp-bridge servers list --start` has the servers with the number of their tools.",
    "exec": "Write `mcp-bridge run -c CODE`.",
    "execute": "Write `mcp-bridge run -c CODE`.",
    "eval": "Write `mcp-bridge run -c CODE`.",
    "call": "A tool is called by a script: `mcp-bridge run -c 'from mcp.servers import SERVER; await SERVER.TOOL()'`.",
    "config": "The configuration is a file: `mcp-bridge doctor` says which one is read.",
    "init": "`mcp-bridge install CLIENT` puts it behind a client.",
    "add": "Write `mcp-bridge servers add NAME -- COMMAND ARGS`.",
    "import": "Write `mcp-bridge servers import CLIENT`.",
    "logs": "`mcp-bridge execution list` has what was run; log_file in the configuration has what is logged.",
    "history": "Write `mcp-bridge execution list`.",
    "status": "Write `mcp-bridge doctor`.",
    "check": "`mcp-bridge doctor` checks this machine, `mcp-bridge policy check` the policy.",
    "build": "Write `mcp-bridge image build`.",
    "prune": "Write `mcp-bridge image prune`.",
    "clean": "`mcp-bridge image prune` removes images, `mcp-bridge uninstall` all that the bridge has made.",
    "remove": _REMOVED,
    "update": "Write `uv tool upgrade mcp-code-bridge`.",
    "upgrade": "Write `uv tool upgrade mcp-code-bridge`.",
    "approve": "Write `mcp-bridge approvals approve ID`; `mcp-bridge approvals list` has the ids.",
    "deny": "Write `mcp-bridge approvals deny ID`; `mcp-bridge approvals list` has the ids.",
    "search": "Write `mcp-bridge servers search WORDS`.",
    "find": "Write `mcp-bridge servers search WORDS`.",
    "login": "Write `mcp-bridge servers login NAME`.",
    "logout": "Write `mcp-bridge servers logout NAME`.",
    "rm": _REMOVED,
    "ls": "`mcp-bridge servers list` has the servers, `mcp-bridge execution list` what was run.",
    "resume": "Write `mcp-bridge execution resume ID`.",
    "cancel": "Write `mcp-bridge execution cancel ID`.",
    "verify": "Write `mcp-bridge audit verify`.",
    "export": "Write `mcp-bridge audit export FILE`.",
    "delete": "`mcp-bridge erase` makes what was kept unreadable, `mcp-bridge uninstall` removes the bridge.",
    "validate": "`mcp-bridge program validate FILE` checks a program, `mcp-bridge policy check` the policy.",
    "servers start": "Write `mcp-bridge servers list --start`.",
    "servers show": "Write `mcp-bridge servers list`.",
    "servers get": "Write `mcp-bridge servers list`.",
    "servers tools": "Write `mcp-bridge servers search WORDS`.",
    "servers edit": "The configuration is a file: `mcp-bridge doctor` says which one is read.",
    "image update": "Write `mcp-bridge image build`.",
    "image pull": "No image is ever pulled. Write `mcp-bridge image build`.",
    "policy list": "Write `mcp-bridge policy show`.",
    "policy test": "Write `mcp-bridge policy explain SERVER.TOOL`.",
    **{f"policy {word}": _RULES for word in ("add", "allow", "deny", "remove", "set")},
    **{f"secret {word}": _NEVER_SHOWN for word in ("get", "read", "show", "view")},
    "secret rotate": "Write `mcp-bridge secret set NAME`, which replaces it.",
    "principal show": "Write `mcp-bridge principal list`.",
    "program new": "Write `mcp-bridge program save NAME FILE`, or `mcp-bridge program plan INTENT`.",
    "program start": "Write `mcp-bridge program run FILE|NAME`.",
    "execution start": "Write `mcp-bridge run FILE`, or `mcp-bridge program run FILE|NAME`.",
    "execution retry": "Write `mcp-bridge execution resume ID`.",
    "execution replay": "Write `mcp-bridge replay ID`.",
    **{f"execution {word}": _ERASED for word in ("delete", "erase", "remove", "rm")},
    **{f"session {word}": "Write `mcp-bridge session end NAME`." for word in ("delete", "remove", "rm")},
    "session new": "A call of run_python with a new session's name makes it: `mcp-bridge run --session NAME FILE`.",
    "event list": "`mcp-bridge execution list` has the executions that wait for an event.",
    "approvals add": "Write `mcp-bridge approvals approve ID`.",
    "audit list": "Write `mcp-bridge execution list`.",
    "audit show": "Write `mcp-bridge execution show ID`.",
}
"""Replacements for words that aren't commands, by the commands that precede them."""

_ALIKE = (
    frozenset({"add", "create", "make", "new", "put", "register", "save", "set", "store"}),
    frozenset({"del", "delete", "drop", "erase", "prune", "remove", "revoke", "rm", "unset"}),
    frozenset({"abort", "cancel", "close", "end", "kill", "stop", "terminate"}),
    frozenset({"all", "list", "ls", "ps"}),
    frozenset({"cat", "describe", "get", "info", "inspect", "print", "read", "show", "view"}),
    frozenset({"find", "grep", "lookup", "query", "search"}),
    frozenset({"exec", "execute", "launch", "run", "start"}),
    frozenset({"emit", "fire", "post", "send", "trigger"}),
    frozenset({"accept", "allow", "approve", "confirm", "grant", "yes"}),
    frozenset({"decline", "deny", "no", "refuse", "reject"}),
    frozenset({"refresh", "regenerate", "reissue", "renew", "rotate", "rotate-key"}),
    frozenset({"auth", "authenticate", "authorize", "login", "signin"}),
    frozenset({"logout", "signout"}),
    frozenset({"continue", "restart", "resume"}),
    frozenset({"check", "lint", "test", "validate", "verify"}),
    frozenset({"explain", "why"}),
    frozenset({"draw", "graph", "plot"}),
    frozenset({"build", "create", "make", "new"}),
)
"""Usual words for one thing. Where a group has one command of a row, the others mean it; none of them is misspelt."""

_MISSPELT = 0.75
"""How similar a command is that is meant by a wrong word: `create` is 0.67 like `rotate`."""

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Error numbers for output that can't be written, which is a problem of its destination."""


_FEW = 3
"""How many commands are suggested for an option: more don't help."""


class Commands(TyperGroup):
    """The root command group, which prints usage errors as `mcp-bridge: usage: what is wrong. What to write`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands(self.commands)

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Parse the arguments, run the command, and exit with its status."""
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **extra)
        words = sys.argv[1:] if args is None else list(args)
        try:
            status = self._answer(words, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe. Buffered output must not be flushed again at exit.
            discard_output()
            status = exit_statuses.FAILED
        except OSError as exc:
            if exc.errno not in UNWRITABLE or exc.filename is not None:
                raise
            discard_output()
            status = exit_statuses.print_error(
                BridgeError(
                    "output_unwritable",
                    f"Standard output can't be written: {exc.strerror}.",
                    hint="Send it to another file, or make room there.",
                ),
                exit_statuses.FAILED,
            )
        except typer.Abort:
            status = exit_statuses.INTERRUPTED
        sys.exit(status if isinstance(status, int) else exit_statuses.OK)

    def _answer(self, words: Sequence[str], **extra: Any) -> Any:
        try:
            return super().main(words, standalone_mode=False, **extra)
        except Exception as exc:
            # The parser's exception type has moved between versions of typer; its methods have stayed.
            if not hasattr(exc, "format_message"):
                raise
            return self._complain(exc, words)

    def _complain(self, exc: Any, words: Sequence[str]) -> int:
        if type(exc).__name__ == "NoArgsIsHelpError":
            exc.show()
            return exit_statuses.USAGE
        command, path, word = self._selected_command(words)
        # The parser's suggestions are part of our hint.
        said = exc.message if hasattr(exc, "possibilities") else exc.format_message()
        message = escaping.escape_line(said).replace("Value error, ", "").partition(" Did you mean")[0].strip()
        ended = message if message.endswith((".", "?", "!")) else f"{message}."
        hint = escaping.escape_line(self._hint(exc, command, path, word))
        error = BridgeError("usage", ended, hint=hint)
        context = getattr(exc, "ctx", None)
        params = context.command.params if context else ()
        if "--json" not in words or not any("--json" in param.opts for param in params):
            return exit_statuses.print_error(error)
        from mcp_bridge.cli.command_runner import print_json

        status = exit_statuses.exit_code(error)
        print_json(exit_statuses.error_record(error, status))
        return status

    def _selected_command(self, words: Sequence[str]) -> tuple[Any, str, str]:
        """The command that the words select, its path, and the first following word that isn't an option."""
        command, path, takes_value = self, "mcp-bridge", False
        for word in words:
            if takes_value:
                takes_value = False
            elif word.startswith("-"):
                named = [param for param in command.params if word in param.opts]
                takes_value = any(not getattr(param, "is_flag", False) for param in named)
            elif (further := getattr(command, "commands", {}).get(word)) is None:
                return command, path, word
            else:
                command, path = further, f"{path} {word}"
        return command, path, ""

    def _hint(self, exc: Any, command: Any, path: str, word: str) -> str:
        option = getattr(exc, "option_name", None)
        known = getattr(command, "commands", {})
        if hasattr(exc, "possibilities") and isinstance(option, str):
            return self._for_unknown_option(option, command, path)
        if isinstance(option, str):
            for param in command.params:
                if option in param.opts:
                    return f"Write `{path} {option} {param.metavar or 'VALUE'}`{_meaning(param)}"
        if known:
            return _for_unknown_command(word, list(known), path)
        param = getattr(exc, "param", None)
        if param is not None and getattr(param, "param_type_name", "") == "option":
            return f"Write `{path} {param.opts[0]} {param.metavar or 'VALUE'}`{_meaning(param)}"
        return f"Write `{_usage(command, path)}`{_example(command, path)}."

    def _for_unknown_option(self, option: str, command: Any, path: str) -> str:
        options = [name for param in command.params if param.param_type_name == "option" for name in param.opts]
        if option in options:
            return f"It goes after the command: `{path} {option}`."
        elsewhere = [
            f"`{where} {option}{f' {param.metavar}' if param.metavar else ''}`"
            for where, other in _commands(self, "mcp-bridge")
            for param in other.params
            if option in param.opts
        ]
        if elsewhere and len(elsewhere) <= _FEW:
            return f"It is an option of another command: {', '.join(elsewhere)}."
        # Of one letter, none is like another.
        close = spelled_like(option, options, cutoff=0.7) if option.startswith("--") else []
        if close:
            metavar = next((param.metavar for param in command.params if close[0] in param.opts), None)
            return f"Write `{path} {close[0]}{f' {metavar}' if metavar else ''}`. `{path} --help` has all options."
        return f"Options of `{path}`: {', '.join(options)}."


def _for_unknown_command(word: str, known: list[str], path: str) -> str:
    if word.endswith(".py") or _is_file(word):
        return f"Write `mcp-bridge run {word}`."
    within = " ".join([*path.split()[1:], word])
    if instead := INSTEAD.get(within):
        return instead
    close = _meant(word, known, path)
    if not close and any(char in word for char in "()=\n"):
        return "Code goes after -c: write `mcp-bridge run -c CODE`."
    listed = f"Commands: {', '.join(sorted(known))}. `{path} --help` describes them."
    return f"Write `{path} {close[0]}`. `{path} --help` has all commands." if close else listed


def _meant(word: str, known: list[str], path: str) -> list[str]:
    """The command of a group that a word means, or that is spelled like it."""
    rows = [row for row in _ALIKE if word.lower() in row]
    if not rows:
        return spelled_like(word, known, cutoff=_MISSPELT)
    # Without a group a word doesn't say what it is about.
    found = [[name for name in known if name in row] for row in rows] if " " in path else []
    return next((meant for meant in found if len(meant) == 1), [])


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:
        # It is too long for a name.
        return False


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command, f"{path} {name}")


def _usage(command: Any, path: str) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    required = [param for param in command.params if param.param_type_name == "option" and param.required]
    words = [f"{param.opts[0]} {param.metavar or 'VALUE'}" for param in required]
    for param in arguments:
        word = str(param.metavar or str(param.name).upper())
        words.append(word if param.required or word.startswith("[") else f"[{word}]")
    return " ".join([path, *words])


def _meaning(param: Any) -> str:
    return f": {param.help}" if getattr(param, "help", None) else "."


def _example(command: Any, path: str) -> str:
    """The first example in a command's help."""
    lines = (command.epilog or "").splitlines()
    example = next((line for line in lines if line.startswith("mcp-bridge ")), None)
    return f", such as `{example}`" if example else f"; `{path} --help` says more"
