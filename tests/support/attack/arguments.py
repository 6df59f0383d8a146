"""What a caller passes: JSON with references in it.

A tree is JSON in which a text, or the name of a field, may also be a `Text`, whose parts stand for what isn't written
out: `Hidden` (a sensitive value behind `vault://ref/…`), `Secret`, and what has no value here: `Unknown`, `Erased`,
`Foreign`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Hidden:
    """A value that the bridge takes for sensitive: it is passed as what the bridge has made of it."""

    value: str | int


@dataclass(frozen=True)
class Secret:
    """A reference to a secret of the operator's."""

    name: str


@dataclass(frozen=True)
class Unknown:
    """A reference that was never given out."""

    id: str


@dataclass(frozen=True)
class Erased:
    """A reference to a value that was erased since."""

    value: str


@dataclass(frozen=True)
class Foreign:
    """A reference that another execution was given."""

    value: str


@dataclass(frozen=True)
class Text:
    """A text of parts; one of a single part that stands for a number is that number."""

    parts: tuple[Any, ...]


class UnsendableError(Exception):
    """No tool may get these arguments: something in them stands for no value."""


def mapped(tree: Any, text: Callable[[Text], Any]) -> Any:
    """The tree with something in the place of each `Text`."""
    if isinstance(tree, Text):
        return text(tree)
    if isinstance(tree, dict):
        return {mapped(name, text): mapped(value, text) for name, value in tree.items()}
    return [mapped(value, text) for value in tree] if isinstance(tree, list) else tree


def texts(tree: Any) -> list[Text]:
    """Every `Text` in a tree."""
    found: list[Text] = []
    mapped(tree, lambda text: found.append(text) or "")
    return found


def parts(tree: Any, kind: type[Any]) -> list[Any]:
    """Every part of a kind in a tree."""
    return [part for text in texts(tree) for part in text.parts if isinstance(part, kind)]


def joined(pieces: list[Any]) -> Any:
    """A single value as it is, several as a text."""
    return pieces[0] if len(pieces) == 1 else "".join(map(str, pieces))


def in_the_clear(tree: Any) -> Any:
    """The tree with sensitive values written out, and everything else that stands for something as its reference."""
    return mapped(tree, lambda text: joined([clear(part) for part in text.parts]))


def clear(part: Any) -> Any:
    match part:
        case Hidden(value):
            return value
        case Secret(name):
            return f"vault://secret/{name}"
        case Unknown(name):
            return f"vault://ref/{name}"
        case Erased() | Foreign():
            return "vault://ref/" + "a" * 16
    return part


def names(tree: Any) -> int:
    """How many names the objects in a tree have."""
    if isinstance(tree, dict):
        return len(tree) + sum(map(names, tree.values()))
    return sum(map(names, tree)) if isinstance(tree, list) else 0


def meant(tree: Any, plaintexts: dict[str, str]) -> Any:
    """What a tool is to get.

    Raises:
        UnsendableError: Nothing.
    """
    if any(parts(tree, kind) for kind in (Unknown, Erased, Foreign)):
        raise UnsendableError
    if names(in_the_clear(tree)) < names(tree):
        raise UnsendableError  # one of them twice
    told = plaintexts.__getitem__
    return mapped(tree, lambda text: joined([told(p.name) if isinstance(p, Secret) else clear(p) for p in text.parts]))
