"""What a call gives in a dry run that isn't made: a value that stands for its result."""

from mcp_bridge.wire.annotations import Any


class PlannedValueError(BaseException):
    """The value of a result that isn't there was needed: the dry run ends there.

    It is no `Exception`, so a script that expects calls to fail doesn't take another way than it would.
    """

    def __init__(self, shown: str) -> None:
        super().__init__(f"{shown} isn't known: a dry run doesn't make that call")


class Planned:
    """Stands for a result, or for a part of it. It can be printed, and given to other calls.

    Whatever else needs the value raises `PlannedValueError`.
    """

    __slots__ = ("_shown",)

    def __init__(self, number: int, path: str = "") -> None:
        self._shown = f"<result of call {number}>{path}"

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
        raise PlannedValueError(f"{self._shown}.{name}")


_NEED_IT = (
    "abs and add bool bytes call complex contains delitem divmod enter eq exit float floordiv ge gt hash iadd index"
    " int invert isub iter le len lshift lt matmul mod mul ne neg next or pos pow radd rand rdivmod reversed rfloordiv"
    " rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor setitem sub truediv trunc xor"
    " aiter anext aenter aexit await"
)
"""Python's methods of a value that can't be had without its result, without their underscores."""


def _needed(planned: Any, *_: Any) -> Any:
    raise PlannedValueError(str(planned))


for _name in _NEED_IT.split():
    setattr(Planned, f"__{_name}__", _needed)

for _public in (Planned, PlannedValueError):
    _public.__module__ = "mcp"
