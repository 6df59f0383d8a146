"""The signals that ask a process to end in an orderly way."""

from __future__ import annotations

import signal


def terminations() -> tuple[signal.Signals, ...]:
    """SIGTERM, and SIGHUP (its terminal has gone) unless it is ignored, as `nohup` has it."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM,) if is_ignored else (signal.SIGTERM, signal.SIGHUP)
