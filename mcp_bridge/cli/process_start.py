"""What a process has at its start: what SIGINT (Ctrl-C) does until something waits for it, and its folder."""

from __future__ import annotations

import os
import signal


def end_at_sigint() -> None:
    """Have SIGINT end the process at once, as SIGTERM does; one that ignores SIGINT goes on ignoring it.

    While modules are imported, a KeyboardInterrupt is either shown as a traceback or lost: it is raised wherever the
    interpreter is then, also in code that ignores exceptions.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_at_sigint() -> None:
    """Undo `end_at_sigint`: have SIGINT raise KeyboardInterrupt, for work that handles it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_folder_gone() -> bool:
    """Whether the process's folder was removed."""
    try:
        os.getcwd()  # noqa: PTH109 - every start comes by here, and `pathlib` is half of what it imports
    except FileNotFoundError:
        return True
    return False
