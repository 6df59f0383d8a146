"""Who decides at the command line."""

from __future__ import annotations

import os
import pwd


def who() -> str:
    """The login name of whoever runs this: by the system's word, since the environment is anybody's."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
