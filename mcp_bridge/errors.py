"""The exception type of the host side, which has a stable code.

Standard library only: all layers of the host import it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from io import UnsupportedOperation
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping
    from pathlib import Path

    from mcp_bridge.error_codes import Code


class ErrorRecord(TypedDict):
    """An error as a JSON object. It may have more members: the error's details.

    Attributes:
        code: The stable code.
        message: A sentence for people.
        hint: What to do about it.
        type: Of an exception of a script: its class.
        line: Of an exception of a script: the line of the script, or None.
        traceback: Of an exception of a script: the traceback as text.
    """

    code: str
    message: str
    hint: NotRequired[str]
    type: NotRequired[str]
    line: NotRequired[int | None]
    traceback: NotRequired[str]


TOO_LARGE_HINT = "Ask for less: narrow the arguments, or get it in parts if the tool can do that."
"""A hint for an answer that is too large."""


def joined(message: str, hint: str | None) -> str:
    """An error's message and hint as one text. After several lines, such as a list, the hint has its own."""
    if not hint:
        return message
    return message + ("\n" if "\n" in message else " ") + hint


def ended(sentence: str) -> str:
    """A sentence with its full stop, unless it ends with a question: `did you mean 'args'?`."""
    return sentence if sentence.endswith("?") else f"{sentence}."


def extra_hint(extra: str) -> str:
    """A hint for what needs an extra that isn't installed: a command that adds it to the Python that runs this.

    Args:
        extra: Its name, as in `mcp-code-bridge[NAME]`.
    """
    # Only what has failed already asks for them. The extra's libraries are named: the package itself may have come from
    # a wheel, and be on no index.
    import importlib.metadata  # noqa: PLC0415
    import importlib.util  # noqa: PLC0415
    import shlex  # noqa: PLC0415

    wanted = []
    with suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("mcp-code-bridge") or ():
            requirement, _, marker = line.partition(";")
            if marker.replace('"', "'").strip() == f"extra == '{extra}'":
                wanted.append(shlex.quote(requirement.strip()))
    install = f"Install mcp-code-bridge[{extra}]"
    if not wanted:
        # What runs is no installed package, or says nothing of this extra.
        return f"{install}."
    python = shlex.quote(sys.executable)
    # What `uv tool` and `uvx` have installed is without pip.
    has_pip = importlib.util.find_spec("pip") is not None
    command = f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"
    return f"{install}, or add to what is installed: {command} {' '.join(wanted)}"


class BridgeError(Exception):
    """An error that a user can understand and fix.

    Attributes:
        code: A stable code in snake_case, part of the public interface: `error_codes` describes each.
        message: One sentence that says what is wrong, and where.
        hint: How to fix it, or None.
        details: JSON-compatible data for programs (file, line, nearest names).
        private: JSON-compatible data for the operator alone, such as a server's stderr: it may contain secrets, and is
            neither in `details` nor in any text or record of the error.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        hint: str | None = None,
        private: Mapping[str, Any] | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details = details
        self.private = dict(private or {})

    def __str__(self) -> str:
        return joined(self.message, self.hint)

    def record(self) -> ErrorRecord:
        """The error as a JSON object: `code`, `message`, and `hint` and details if there are any."""
        out = ErrorRecord(code=self.code, message=self.message)
        if self.hint:
            out["hint"] = self.hint
        return cast("ErrorRecord", out | self.details)


class RunInterruptedError(BridgeError):
    """An execution that had begun was ended by an error of the bridge: what it had done stays done.

    Attributes:
        execution: The execution's id.
    """

    def __init__(self, execution: str, cause: BridgeError, again: str) -> None:
        """Take over the error's code, private data and details.

        Args:
            execution: The execution's id.
            cause: What has ended it.
            again: What asking for it again does: a sentence.
        """
        hint = f"{cause.hint} {again}" if cause.hint else again
        message = f"{cause.message} The execution {execution} had begun: what it had done stays done."
        super().__init__(
            cause.code, message, hint=hint, private=cause.private, **cause.details | {"execution": execution}
        )
        self.execution = execution


def log_failure(logger: logging.Logger, error: Exception, message: str, *args: object) -> None:
    """Log an error that is reported nowhere else: a `BridgeError` as a sentence, any other with its traceback.

    Args:
        logger: The logger.
        error: The error.
        message: What was attempted, a format string for `logging`.
        args: Arguments of the message.
    """
    if isinstance(error, BridgeError):
        logger.error(f"{message}: %s: %s", *args, error.code, error)  # noqa: G004
    else:
        logger.error(message, *args, exc_info=error)


def unreadable(file: Path, exc: OSError) -> BridgeError:
    """`bad_argument`: a file that somebody has named can't be read."""
    if isinstance(exc, UnsupportedOperation):
        # It would have to be read from its beginning again.
        why, hint = "it is a pipe", "Write it to a file first, and name that."
        return BridgeError("bad_argument", f"{file} can't be read: {why}.", hint=hint)
    return BridgeError("bad_argument", f"{file} can't be read: {exc.strerror or exc}.")
