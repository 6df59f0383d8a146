"""Values of outcomes, and how a program refers to them."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mcp_bridge.kernel.language.references import Template, TextTooLongError
from mcp_bridge.kernel.values import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_VALUES = 20_000
"""Most values of one outcome that are looked at."""

MAX_TEXT_CHARS = 20_000
"""Longest text that is taken apart."""

GOES_ON = re.compile(r"\w|\.\w")
"""What follows a reference in a text and would be read as a part of it."""

_NAME = re.compile(r"\w+")
"""A name that a reference can have."""

Path: TypeAlias = tuple[str, ...]


class Output(NamedTuple):
    """The outcome of an earlier call.

    Attributes:
        of: Whose it is.
        root: The path by which it is referred to, from the step's id on.
        answered: The number of its entry: only calls that were made after it can have it.
        value: What it is.
    """

    of: str
    root: Path
    answered: int
    value: Any


class Place(NamedTuple):
    """A value within an outcome.

    Attributes:
        output: The outcome.
        path: Its place there.
    """

    output: Output
    path: Path

    @property
    def reference(self) -> str:
        """How a program refers to it."""
        return "$" + ".".join(self.output.root + self.path)

    def rank(self, name: str) -> tuple[bool, int, int]:
        """How likely it is the source of an argument of this name."""
        return is_named(self.path, name), self.output.answered, -len(self.path)


def gives(template: Any, value: Any, look_up: Callable[[str, Path], Any]) -> bool:
    """Whether a template, filled in, is the value."""
    try:
        return key(Template(template).fill(look_up)) == key(value)
    except TextTooLongError:
        return False


def key(value: Any) -> bytes:
    """Equal for equal values; texts and numbers are never equal."""
    return canonical(value)


def escaped_text(text: str) -> str:
    """A template without references for a text."""
    return text.replace("$", "$$")


def escaped(value: Any) -> Any:
    """A template without references for a value."""
    if isinstance(value, str):
        return escaped_text(value)
    if isinstance(value, dict):
        return {name: escaped(part) for name, part in value.items()}
    return [escaped(part) for part in value] if isinstance(value, list) else value


def parts(value: Any) -> Iterator[tuple[Path, Any]]:
    """The values in a value that a reference can lead to, with their places, the value itself first."""
    waiting: list[tuple[Path, Any]] = [((), value)]
    for _ in range(MAX_VALUES):
        if not waiting:
            return
        path, part = waiting.pop()
        yield path, part
        named: Iterable[tuple[str, Any]] = ()
        if isinstance(part, dict):
            named = ((name, inner) for name, inner in part.items() if _NAME.fullmatch(name))
        elif isinstance(part, list):
            named = ((str(number), inner) for number, inner in enumerate(part))
        waiting += [((*path, name), inner) for name, inner in named][::-1]


def is_named(path: Path, name: str) -> bool:
    """Whether the field at the end of a path has the name of an argument, or one that ends with the other."""
    return _are_alike(next((part for part in reversed(path) if not part.isdecimal()), ""), name)


@functools.lru_cache(1024)
def _are_alike(field: str, name: str) -> bool:
    one, other = (re.sub(r"[\W_]", "", text).lower() for text in (field, name))
    return min(len(one), len(other)) > 1 and (one.endswith(other) or other.endswith(one))
