"""What people say with their decisions."""

from __future__ import annotations

from mcp_bridge.errors import BridgeError

MAX_TEXT_CHARS = 1000
"""Most characters of a comment that is stored with a decision."""


def check_text(text: str | None, name: str) -> None:
    """Whether a text can be kept with a decision.

    Args:
        text: The text, or None.
        name: Of the option or field that it came in.

    Raises:
        BridgeError: `bad_argument`, with that name.
    """
    if text is not None and (len(text) > MAX_TEXT_CHARS or not _is_text(text)):
        raise BridgeError("bad_argument", f"{name}: it is text of at most {MAX_TEXT_CHARS} characters.")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
