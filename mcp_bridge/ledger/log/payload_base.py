"""What every payload of an entry is: a type with its encoding as a JSON object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.ledger.log.entries import Kind

Object: TypeAlias = "Mapping[str, Any]"
"""A JSON object."""


class Payload(ABC):
    """The payload of an entry."""

    __slots__ = ()

    KIND: ClassVar[Kind]

    @abstractmethod
    def encode(self) -> dict[str, Any]:
        """The JSON object that is recorded."""

    @classmethod
    @abstractmethod
    def decode(cls, payload: Object) -> Self:
        """The payload of a JSON object.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: The object isn't one.
        """


def _given(**values: Any) -> dict[str, Any]:
    """The keys whose value isn't None."""
    return {name: value for name, value in values.items() if value is not None}


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)
