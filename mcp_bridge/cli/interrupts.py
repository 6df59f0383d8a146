"""What SIGINT (Ctrl-C) does until something waits for it."""

from __future__ import annotations

import signal


def end_at_once() -> None:
    """Have SIGINT end the process at once, as SIGTERM does; one that ignores SIGINT goes on ignoring it.

    While modules are imported, a KeyboardInterrupt is either shown as a traceback or lost: it is raised wherever the
    interpreter is then, also in code that ignores exceptions.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> None:
    """Undo `end_at_once`: have SIGINT raise KeyboardInterrupt, for work that handles it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
