"""The host's free memory."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def available_memory() -> int:
    """Bytes that new processes can use without swapping (proc(5), MemAvailable); without /proc no limit is known."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return sys.maxsize
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else sys.maxsize
