"""The records of the channel are named tuples, made without the import of `typing`."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import typing

import pytest

from mcp_bridge.host import guest_bundle
from mcp_bridge.wire import annotations, messages

SLOW = ("typing", "dataclasses", "asyncio", "inspect", "traceback", "ast", "ctypes")


class Typed(typing.NamedTuple):
    """What a record is held to."""

    name: str
    rest: dict[str, int]
    count: int = 3
    kind: str | None = None


class Record(annotations.NamedTuple):
    """The same, with the container's named tuples."""

    name: str
    rest: dict[str, int]
    count: int = 3
    kind: str | None = None


@pytest.mark.parametrize(
    ("args", "named"), [(("a", {"x": 1}), {}), (("a", {}, 4, "b"), {}), ((), {"rest": {}, "name": "n", "kind": ""})]
)
def test_a_record_is_made_and_read_as_a_named_tuple_is(args: tuple[typing.Any, ...], named: dict[str, object]) -> None:
    ours, theirs = Record(*args, **named), Typed(*args, **named)
    assert tuple(ours) == tuple(theirs)
    assert ours == theirs
    assert hash(Record("a", ())) == hash(Typed("a", ()))  # type: ignore[arg-type]
    assert (ours.name, ours.rest, ours.count, ours.kind) == tuple(theirs)
    assert ours._asdict() == theirs._asdict()
    assert tuple(ours._replace(count=9)) == tuple(theirs._replace(count=9))
    assert repr(ours) == repr(theirs).replace("Typed", "Record")
    assert type(copy.copy(ours)) is type(pickle.loads(pickle.dumps(ours))) is Record  # noqa: S301 - ours
    assert pickle.loads(pickle.dumps(ours)) == ours  # noqa: S301 - ours
    for name in ("_fields", "_field_defaults", "__match_args__"):
        assert getattr(Record, name) == getattr(Typed, name)
    with pytest.raises(AttributeError):
        ours.name = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        ours.other = "b"  # type: ignore[attr-defined]
    match ours:
        case Record(name, rest):
            assert (name, rest) == (theirs.name, theirs.rest)
        case _:
            pytest.fail("no match")


@pytest.mark.parametrize(
    ("args", "named"), [((), {}), (("a",), {}), (("a", {}), {"name": "b"}), (("a", {}, 1, "", 5), {}), ((), {"no": 1})]
)
@pytest.mark.parametrize("made_before", [False, True])
def test_a_record_refuses_what_a_named_tuple_refuses(
    args: tuple[typing.Any, ...], named: dict[str, object], *, made_before: bool
) -> None:
    class Own(annotations.NamedTuple):
        name: str
        rest: dict[str, int]
        count: int = 3
        kind: str | None = None

    if made_before:
        Own("a", {})
    with pytest.raises(TypeError):
        Typed(*args, **named)
    with pytest.raises(TypeError):
        Own(*args, **named)


def test_annotations_are_shown_as_typings() -> None:
    assert str(dict[str, annotations.Any]) == str(dict[str, typing.Any])
    assert inspect.formatannotation(annotations.Any) == inspect.formatannotation(typing.Any)
    assert inspect.formatannotation(annotations.NoReturn) == inspect.formatannotation(typing.NoReturn)
    assert str(messages.Stream) == str(typing.Literal["stdout", "stderr"])
    assert messages.Stream.__args__ == ("stdout", "stderr")


def test_a_containers_start_imports_nothing_slow() -> None:
    code = guest_bundle.loader().replace(
        "mcp_bridge.guest.init.main(sys.argv[1:])",
        f"import mcp_bridge.guest.main\nprint(*({SLOW!r} & sys.modules.keys()))".replace(repr(SLOW), repr(set(SLOW))),
    )
    python = [sys.executable, "-I", "-S", "-E", "-c", code]
    bundle = guest_bundle._bundle(compiled=True)
    done = subprocess.run(python, input=bundle, capture_output=True, check=True, timeout=60)
    assert done.stdout.split() == []
