"""The stand-in for the result of a call that a dry run doesn't make."""

import sys

from mcp_bridge.wire.annotations import Any, Callable, NoReturn

MAY_ASK = ("mcp_bridge.", "logging")
"""How the names of modules begin that may ask for a stand-in's type: they show it, and take it for what it is."""

MAX_LOOKED = 10_000
"""The most values of a collection in which a result is looked for."""


class PlannedValueError(BaseException):
    """The value of a result that isn't there was needed: the dry run ends there, whatever would catch this.

    Only in a process that the script has forked it is raised as any other, and ends that. It is no `Exception`, so a
    script that expects calls to fail doesn't take another way there than it would.
    """

    def __init__(self, shown: str) -> None:
        super().__init__(f"{shown} isn't known: a dry run doesn't make that call")


def _stay(_: PlannedValueError) -> None:
    """Nothing is run dry."""


_end_script: Callable[[PlannedValueError], None] = _stay
"""What ends the dry run."""


def prepare(end: Callable[[PlannedValueError], None]) -> None:
    """Have a result that isn't there, and is needed, end the dry run.

    Args:
        end: Ends it. It returns where the error is to be raised all the same.
    """
    global _end_script  # noqa: PLW0603
    _end_script = end


def _end(shown: str) -> NoReturn:
    try:
        raise PlannedValueError(shown)
    except PlannedValueError as error:
        _end_script(error)
        raise


class Planned:
    """Stands for a result, or for a part of it. It can be printed, and given to other calls.

    Whatever else needs the value ends the dry run, with `PlannedValueError`.
    """

    __slots__ = ("_attributes", "_shown")

    def __init__(self, number: int, attributes: tuple[str, ...] = ()) -> None:
        self._shown = f"<result of call {number}>"
        self._attributes = attributes
        """The names of parts that are the result's attributes, as a trace has them."""

    @property  # type: ignore[misc]  # an object may say which class it is of
    def __class__(self) -> Any:
        # `isinstance`, and whatever else asks for the type in this way.
        frame: Any = sys._getframe(1)  # noqa: SLF001
        if frame.f_globals.get("__name__") == "abc" and frame.f_back is not None:
            # An abstract class asks for whoever has called `isinstance`.
            frame = frame.f_back
        if not str(frame.f_globals.get("__name__")).startswith(MAY_ASK):
            _needed(self)
        return Planned

    def __repr__(self) -> str:
        return self._shown

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        if spec:
            _needed(self)
        return self._shown

    def __getitem__(self, key: Any) -> "Planned":
        if isinstance(key, (Planned, slice)):
            _needed(self)
        part = Planned(0)
        part._shown = f"{self._shown}[{key!r}]"
        return part

    def get(self, key: Any, default: Any = None) -> "Planned":  # noqa: ARG002
        """As of a dict."""
        return self[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            # What libraries look for in any value.
            raise AttributeError(name)
        if name in self._attributes:
            return self[name]
        _end(f"{self._shown}.{name}")


_NEED_IT = (
    "abs and add bool bytes call complex contains delitem divmod enter eq exit float floordiv ge gt hash iadd index"
    " int invert isub iter le len lshift lt matmul mod mul ne neg next or pos pow radd rand rdivmod reversed rfloordiv"
    " rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor setitem sub truediv trunc xor"
    " aiter anext aenter aexit await"
)
"""Python's methods of a value that can't be had without its result, without their underscores."""


def _needed(planned: Any, *_: Any) -> Any:
    _end(str(planned))


def need(value: Any) -> Any:
    """A value whose identity or type decides what happens next.

    Raises:
        PlannedValueError: It isn't known.
    """
    if type(value) is Planned:
        _needed(value)
    return value


def need_all(value: Any) -> Any:
    """A value of which parts decide, too: those in lists, tuples and dicts.

    Raises:
        PlannedValueError: One of them isn't known.
    """
    waiting, looked = [value], 0
    while waiting and looked < MAX_LOOKED:
        one = waiting.pop()
        looked += 1
        need(one)
        if issubclass(type(one), (list, tuple)):
            waiting += one[:MAX_LOOKED]
        elif issubclass(type(one), dict):
            waiting += list(one.values())[:MAX_LOOKED]
    return value


for _name in _NEED_IT.split():
    setattr(Planned, f"__{_name}__", _needed)

for _public in (Planned, PlannedValueError):
    _public.__module__ = "mcp"
