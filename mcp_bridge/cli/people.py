"""The identity of the person at the command line."""

from __future__ import annotations

import os
import pwd


def login_name() -> str:
    """The user's login name according to the system: the environment can be set by anyone."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
