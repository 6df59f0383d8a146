"""Prints what a process has at its start, as JSON: for comparing how it was started."""

import json
import os
import signal
import sys
from pathlib import Path

umask = os.umask(0)
os.umask(umask)
around = Path("/proc/self")
with (around / "environ").open("rb") as file:
    environ = sorted(word.decode() for word in file.read().split(b"\0") if word)
print(
    json.dumps(
        {
            "arguments": sys.argv,
            "shown": [word.decode() for word in (around / "cmdline").read_bytes().split(b"\0") if word],
            "environment": dict(os.environ),
            "shown_environment": environ,
            "folder": str(Path.cwd()),
            "path": sys.path,
            "umask": umask,
            "descriptors": sorted(int(path.name) for path in around.joinpath("fd").iterdir() if path.exists()),
            "signals": {number.name: str(signal.getsignal(number)) for number in signal.valid_signals() if number < 32},
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "streams": [
                (each.encoding, each.errors, each.line_buffering, each.isatty())
                for each in (sys.stdin, sys.stdout, sys.stderr)
            ],
            "parent": os.getppid(),
            "leads_session": os.getsid(0) == os.getpid(),
            "session": os.getsid(0) if os.getsid(0) != os.getpid() else None,
            "group": os.getpgrp() if os.getpgrp() != os.getpid() else None,
            "read": sys.stdin.read(),
        }
    )
)
sys.exit(7)
