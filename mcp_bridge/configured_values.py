"""Values in the configuration: what no table takes, and those with a notation of their own (sizes, paths with `~`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

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
    try:
        return int(float(match[1]) * _UNITS[match[2].lower()])
    except OverflowError:
        raise ValueError("the size has too many digits") from None


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


class ConfiguredTable(BaseModel):
    """A table of the configuration. A flag is no number in it, and an empty text stands for nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_slips(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what would be taken for something that nobody meant: `true` for 1, an empty path for this folder."""
        kinds = _kinds(cls.model_fields[info.field_name or ""].annotation)
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError(f"must be a number, not {str(value).lower()}")
        if isinstance(value, str) and not value.strip() and kinds & {str, Path}:
            what = "names no file or folder: it " if Path in kinds else ""
            raise ValueError(f"{what}is empty; leave it out, or write a value")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """The types that a field's annotation unites; of a generic type, the type."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    inner = get_args(annotation)
    is_one = isinstance(get_origin(annotation), type) and get_origin(annotation) in {tuple, list, dict, frozenset}
    return {get_origin(annotation)} if is_one else set().union(*map(_kinds, inner)) if inner else {annotation}
