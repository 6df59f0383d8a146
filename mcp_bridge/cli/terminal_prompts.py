"""Asks the person at the terminal: for an approval while a script or program waits, for a yes, for a secret."""

from __future__ import annotations

import getpass
import os
import pwd
import select
import sys
import termios
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import anyio.to_thread

from mcp_bridge import escaping
from mcp_bridge.cli import terminal_output
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.ledger.log.payloads import QuestionFields

TERMINAL = "/dev/tty"

POLL_SECONDS = 0.1
"""How often an open question checks whether it is still needed."""

MAX_ANSWER_BYTES = 1024

MAX_SHOWN_CHARS = 4000
MAX_SHOWN_LINES = 100
"""Limits on a question: the beginning of a longer one would scroll away, and be approved unseen."""

_MAX_HIDDEN_BYTES = 1 << 20
"""How much is read of a secret, far more than its limit."""

_ANSWERS = {"y": True, "yes": True, "n": False, "no": False, "l": None, "later": None}


def terminal() -> Asker | None:
    """An asker for the terminal; None unless both standard input and standard error are a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    try:
        os.close(os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return None
    return Terminal()


class Terminal:
    """Implements `bridge.gate.Asker`. Asks one question at a time, and ignores input typed before it was displayed."""

    may_vanish = False
    """Who interrupts the command wants no more of it."""

    def __init__(self) -> None:
        self._turn = anyio.Lock()

    async def ask(self, question: QuestionFields) -> bool | None:
        """The person's decision; None for "later", if the terminal is gone, or if the question is too long."""
        lines = terminal_output.folded(terminal_output.question(question), sys.stderr)
        text = escaping.escape_controls("\n".join(lines))
        async with self._turn:
            if len(text) > MAX_SHOWN_CHARS or text.count("\n") >= MAX_SHOWN_LINES:
                terminal_output.echo_err(f"mcp-bridge: {_TOO_LONG}")
                return None
            # Not abandoned on cancellation: the thread would read the answer to the next question.
            return await anyio.to_thread.run_sync(_ask, text)


_TOO_LONG = (
    "approval needed, and the question is too long to be asked here."
    " `mcp-bridge approvals list` has it, once what asked is suspended."
)


def _ask(text: str) -> bool | None:
    try:
        fd = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        _write(fd, f"\nmcp-bridge: approval needed\n{text}\n")
        while True:
            # Input typed before the question was displayed is no answer to it.
            termios.tcflush(fd, termios.TCIFLUSH)
            _write(fd, "Approve? [y]es, [n]o, [l]ater: ")
            line = _line(fd)
            if line is None:
                return None
            answer = line.strip().lower()
            if answer in _ANSWERS:
                return _ANSWERS[answer]
    except (OSError, termios.error):
        return None
    finally:
        os.close(fd)


def _line(fd: int) -> str | None:
    """The next line; None at end of input."""
    while not select.select([fd], [], [], POLL_SECONDS)[0]:
        anyio.from_thread.check_cancelled()
    data = os.read(fd, MAX_ANSWER_BYTES)
    return data.decode("utf-8", "replace") if data else None


def _write(fd: int, text: str) -> None:
    view = memoryview(text.encode("utf-8", "backslashreplace"))
    while view:
        view = view[os.write(fd, view) :]


def confirm(question: str, refusal: BridgeError) -> bool:
    """Ask for confirmation; any answer but a yes means no.

    Args:
        question: The question.
        refusal: The error to raise if there is nobody to ask.

    Raises:
        BridgeError: `refusal`.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise refusal
    sys.stdout.flush()
    # Input typed before the question was displayed is no answer to it.
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    try:
        return sys.stdin.readline().strip().lower() in {"y", "yes"}
    except UnicodeDecodeError:
        return False


def read_secret(prompt: str, code: Code, *, twice: bool = True) -> str:
    """A secret, typed without echo or read from standard input, without a trailing newline.

    Args:
        prompt: The prompt at a terminal.
        code: The code of errors.
        twice: Whether it must be typed twice.

    Raises:
        BridgeError: With that code.
    """
    if sys.stdin.isatty():
        try:
            value = getpass.getpass(prompt)
            again = getpass.getpass("Again: ") if twice else value
        except EOFError:
            raise BridgeError(code, "Nothing was typed.") from None
        except UnicodeDecodeError:
            raise BridgeError(code, "What was typed is not UTF-8 text.", hint="Nothing was kept.") from None
        if value != again:
            raise BridgeError(code, "The two are not the same.", hint="Nothing was kept.")
        return value
    data = sys.stdin.buffer.read(_MAX_HIDDEN_BYTES)
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BridgeError(code, "Standard input is not UTF-8 text.", hint="Encode it, as base64 perhaps.") from None


def login_name() -> str:
    """The user's login name according to the system: the environment can be set by anyone."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
