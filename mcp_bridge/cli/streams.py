"""The process's own three streams, whatever it was started with."""

from __future__ import annotations

import os
import sys


def hold_streams() -> None:
    """Put the null device where a standard stream is closed.

    The next file that is opened would get its number, and would be read or written as that stream: a database that is
    file 2 takes every message of a child's.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def discard_output() -> None:
    """Send standard output nowhere: what is left in its buffer must not be tried again when the interpreter ends."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.close(sink)
