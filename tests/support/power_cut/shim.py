"""Builds the shim, and tells a process's environment and its faults."""

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")

KILL = 0
"""In the place of an errno: the process is killed, before the operation."""

ALWAYS = -1


def build():
    """The shared object, compiled once for each version of its source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    built = SOURCE.parent.parent.parent / ".cache" / "power_cut" / f"{digest}.so"
    if not built.exists():
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler, "no C compiler: run make setup-test"
        built.parent.mkdir(parents=True, exist_ok=True)
        fresh = built.with_suffix(f".{os.getpid()}")
        command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", fresh, SOURCE]
        subprocess.run(command, check=True, capture_output=True)
        fresh.replace(built)
    return built


def environment(watched, journal=None):
    """What a process that is to be watched has in its environment besides."""
    found = {"LD_PRELOAD": str(build()), "POWER_CUT_WATCH": str(Path(watched).resolve())}
    return found | ({} if journal is None else {"POWER_CUT_JOURNAL": str(journal)})


def fail(operation, suffix, error, *, skip=0, times=ALWAYS):
    """In a process that has the shim: have an operation fail. The arguments are power_cut_fail's."""
    ctypes.CDLL(None).power_cut_fail(operation.encode(), suffix.encode(), skip, error, times)


def mend():
    """In a process that has the shim: no faults any more."""
    fail("", "", 1, times=0)
