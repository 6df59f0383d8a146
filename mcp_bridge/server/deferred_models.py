"""Postpones the building of pydantic models to their first use, while the MCP SDK is imported.

The SDK has some five hundred models, of which a server uses a few dozen. Building the validators of all of them is a
third of the processor time of its import, and 5 MiB. pydantic builds a model on its first use where its configuration
says `defer_build`.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pydantic
from pydantic.errors import PydanticUserError

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_DEFER = "defer_build"


class _DeferredAdapter(pydantic.TypeAdapter[T], Generic[T]):  # type: ignore[misc]  # final for type checkers alone
    """A `TypeAdapter` that is built on its first use, with the names of the module that has made it."""

    def __init__(
        self,
        type: Any,  # noqa: A002 - pydantic's name
        *,
        config: pydantic.ConfigDict | None = None,
        _parent_depth: int = 2,
        module: str | None = None,
    ) -> None:
        maker = sys._getframe(_parent_depth - 1)  # noqa: SLF001 - as pydantic does
        if maker.f_globals.get("__name__") == "typing" and maker.f_back is not None:
            # `TypeAdapter[X](…)` is called by way of `typing`.
            maker = maker.f_back
        self._names = maker.f_globals
        deferred = pydantic.ConfigDict(defer_build=True)
        depth = _parent_depth + 1
        try:
            super().__init__(type, config={**deferred, **(config or {})}, _parent_depth=depth, module=module)
        except PydanticUserError:
            # A model's own configuration counts, and no other may be given.
            super().__init__(type, config=config, _parent_depth=depth, module=module)

    def rebuild(self, **how: Any) -> bool | None:
        """As `TypeAdapter.rebuild`, which would look for names where the adapter is used for the first time."""
        return super().rebuild(**{"_types_namespace": self._names, **how})


@contextmanager
def deferred_models() -> Iterator[None]:
    """Have every pydantic model and type adapter that is defined meanwhile built on its first use."""
    base: dict[str, Any] = pydantic.BaseModel.model_config  # type: ignore[assignment]  # models inherit its content
    adapter = pydantic.TypeAdapter
    base[_DEFER] = True
    pydantic.TypeAdapter = _DeferredAdapter  # type: ignore[misc]
    try:
        yield
    finally:
        pydantic.TypeAdapter = adapter  # type: ignore[misc]
        del base[_DEFER]
