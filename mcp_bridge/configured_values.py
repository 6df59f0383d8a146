"""Values in the configuration with a notation of their own: sizes such as `512m`, and paths that begin with `~`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

MAX_SIZE = 1 << 50
"""More than any machine has, and less than the kernel's limits can hold."""

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


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0, le=MAX_SIZE)]


def expanded_home(path: Path) -> Path:
    """The path with `~` or `~USER` at its beginning replaced by that home folder.

    Raises:
        ValueError: There is no such user, or the user has no home folder.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home folder for {path.parts[0]!r}") from None


HomePath = Annotated[Path, AfterValidator(expanded_home)]
