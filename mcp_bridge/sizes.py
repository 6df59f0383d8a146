"""Sizes in the configuration: bytes, or text such as `512m`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_size(value: Any) -> int:
    """Bytes from an integer or from text such as `512m`, `64 MiB`, `1g` (powers of 1024)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a size is a number of bytes, or text such as '512m' or '1g'")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def shown_size(size: int) -> str:
    """A number of bytes for people: `3.4 GiB`."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:  # noqa: PLR2004
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
