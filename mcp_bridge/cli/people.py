"""Who decides at the command line, and what they say."""

from __future__ import annotations

import os
import pwd

from mcp_bridge.errors import BridgeError

MAX_TEXT_CHARS = 1000
"""Of what is kept with a decision."""


def who() -> str:
    """The login name of whoever runs this: by the system's word, since the environment is anybody's."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def check_text(text: str | None, option: str) -> None:
    """Whether a text can be kept with a decision.

    Raises:
        BridgeError: `bad_argument`, which names the option.
    """
    if text is not None and (len(text) > MAX_TEXT_CHARS or not _is_text(text)):
        raise BridgeError("bad_argument", f"{option}: it is text of at most {MAX_TEXT_CHARS} characters.")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
