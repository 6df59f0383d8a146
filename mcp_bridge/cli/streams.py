"""The process's three standard streams."""

from __future__ import annotations

import io
import os
import sys


def hold_streams() -> None:
    """Open the null device for every closed standard stream.

    Otherwise the next opened file would get its number, and be read or written as that stream: a database with
    descriptor 2 would receive all error messages of child processes.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # This returns the lowest free descriptor, which is the closed stream's.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        # As standard error: what the locale has no letter for is escaped.
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Redirect standard output to the null device, so that buffered data isn't flushed again at exit."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.close(sink)
