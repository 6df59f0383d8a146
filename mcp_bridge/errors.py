"""The one exception type of the host side, with a stable code.

Standard library only: every host layer may import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from mcp_bridge.error_codes import Code


class BridgeError(Exception):
    """Something a user can understand and mend.

    Attributes:
        code: Stable, and part of the public interface: `error_codes` describes each.
        message: One sentence: what is wrong, and where.
        hint: How to mend it, or None where nothing useful can be said.
        details: JSON-compatible extras for programs (file, line, nearest names).
        private: JSON-compatible extras for the operator alone, such as what a server wrote to stderr: they may hold
            secrets, and are neither in `details` nor in any text or record of the error.
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
        return f"{self.message} {self.hint}" if self.hint else self.message

    def record(self) -> dict[str, Any]:
        """The error as a JSON object: `code`, `message`, and `hint` and details where there are any."""
        out: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.hint:
            out["hint"] = self.hint
        return out | self.details


def log_failure(logger: logging.Logger, error: Exception, message: str, *args: object) -> None:
    """Log what nobody else is told: what a user can mend by its sentence, a fault of ours with its traceback.

    Args:
        logger: Where.
        error: What.
        message: What was tried, as `logging` formats it.
        args: For the message.
    """
    if isinstance(error, BridgeError):
        logger.error(f"{message}: %s: %s", *args, error.code, error)  # noqa: G004
    else:
        logger.error(message, *args, exc_info=error)
