"""The names of `typing` and `collections.abc` that the modules of every container's start use, without their imports.

The import of `typing`, and the making of some forty classes by it, took a fifth of the processor time of a container's
start. A type checker sees `typing`'s own. At run time they do what those modules need: stand in an annotation, and make
records. A record's constructor is compiled when it is first called, since most of them never are.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""As `typing`'s; type checkers know the name."""

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
    from typing import Any, Literal, NamedTuple, NoReturn, Self, TypeAlias, TypeVar
else:
    # The same without the package `collections`, which is another tenth.
    from _collections import _tuplegetter
    from _collections_abc import Callable, Coroutine, Generator, Iterator, Mapping
    from types import GenericAlias

    class _Name(type):
        """Is shown as `typing`'s, in error messages and by `help`."""

        def __new__(cls, name: str) -> type:
            return super().__new__(cls, name, (), {"__module__": "typing"})

        def __repr__(cls) -> str:
            return f"typing.{cls.__name__}"

    Any, NoReturn, TypeAlias = _Name("Any"), _Name("NoReturn"), _Name("TypeAlias")

    class Literal:
        """`Literal["a", "b"]` has the values as its `__args__`."""

        __module__ = "typing"
        __class_getitem__ = classmethod(GenericAlias)

    class TypeVar:
        """A name in annotations."""

        def __init__(self, name: str) -> None:
            self.__name__ = name

    class _RecordType(type):
        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            made = super().__new__(cls, name, bases, {"__slots__": ()} | namespace)
            if bases != (tuple,):
                made._fields = made.__match_args__ = fields = tuple(made.__annotations__)
                made._field_defaults = {field: namespace[field] for field in fields if field in namespace}
                for index, field in enumerate(fields):
                    setattr(made, field, _tuplegetter(index, ""))
            return made

    class NamedTuple(tuple, metaclass=_RecordType):
        """As `typing.NamedTuple`; a class has the fields that it declares itself."""

        __slots__ = ()

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            """Compile the class's own constructor, which takes this one's place, and call it."""
            names = {"create": tuple.__new__, "defaults": cls._field_defaults}
            parameters = (f"{name}=defaults[{name!r}]" if name in cls._field_defaults else name for name in cls._fields)
            values = "".join(f"{name}, " for name in cls._fields)
            construct = eval(f"lambda cls, {', '.join(parameters)}: create(cls, ({values}))", names)  # noqa: S307
            construct.__name__, construct.__qualname__ = "__new__", f"{cls.__qualname__}.__new__"
            cls.__new__ = construct
            return construct(cls, *args, **kwargs)

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes: Any) -> Self:
            return type(self)(**(self._asdict() | changes))

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            shown = (f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({', '.join(shown)})"


__all__ = [
    "TYPE_CHECKING",
    "Any",
    "Callable",
    "Coroutine",
    "Generator",
    "Iterator",
    "Literal",
    "Mapping",
    "NamedTuple",
    "NoReturn",
    "TypeAlias",
    "TypeVar",
]
