"""What the HTTP libraries log."""

from __future__ import annotations

import logging


def log_no_requests() -> None:
    """Have no request logged: the lines contain addresses with their queries, in which credentials may be."""
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
