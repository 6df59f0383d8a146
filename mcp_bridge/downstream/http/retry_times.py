"""When a server wants to be asked again, as its `Retry-After` says."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER = 10.0**9
"""The most seconds of a `Retry-After` that are told on."""


def retry_after(value: str | None) -> float | None:
    """The seconds that a `Retry-After` header asks for (RFC 9110, section 10.2.3), or None."""
    if value is None:
        return None
    if re.fullmatch(r"[0-9]+", value.strip()):
        # However many digits: less would be taken for a server that names no time.
        return min(float(value.strip()), MAX_RETRY_AFTER)
    try:
        return min(max(0.0, parsedate_to_datetime(value).timestamp() - time.time()), MAX_RETRY_AFTER)
    except (ValueError, TypeError, OverflowError):
        return None
