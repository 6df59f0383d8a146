"""The operator's own functions as tools: declaring them, their schemas, arguments and results."""

import asyncio
import copy
import dataclasses
import datetime as dt
import enum
import functools
import inspect
import json
import logging
import math
import os
import pickle
import subprocess
import sys
import threading
import typing
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator
from registered_fixtures import fault, one, own_declarations, refused, registry  # noqa: F401
from typing_extensions import TypedDict

import mcp_bridge
from mcp_bridge.downstream.catalog import describe, signatures
from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, ArgumentError
from mcp_bridge.errors import BridgeError
from mcp_bridge.registered.declaring import DECLARATIONS_NAME

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("own_declarations")]

HERE = Path(__file__).parents[1] / "support"


# The public names.


def test_importing_the_package_imports_nothing_of_the_host():
    code = (
        "import sys; before = set(sys.modules); import mcp_bridge;"
        "print(sorted(set(sys.modules) - before)); mcp_bridge.tool; print('pydantic' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    ran = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=env)
    assert ran.stdout.splitlines() == ["['mcp_bridge', 'mcp_bridge._version']", "False"]


def test_a_name_that_the_package_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tol'"):
        mcp_bridge.tol  # noqa: B018


def test_pending_is_one_object_through_copies_and_pickles():
    pending = mcp_bridge.PENDING
    assert repr(pending) == "mcp_bridge.PENDING"
    assert copy.copy(pending) is pending
    assert copy.deepcopy({"a": [pending]})["a"][0] is pending
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(pending, protocol)) is pending  # noqa: S301
    assert type(pending)() is pending


# Declaring.


def test_a_declared_function_is_still_the_function():
    def refund(order):
        return order

    assert mcp_bridge.tool(refund) is refund
    assert mcp_bridge.tool(name="other")(refund) is refund
    assert refund("a") == "a"


def test_a_tool_has_its_functions_name_and_whole_docstring():
    @mcp_bridge.tool
    def refund():
        """Give money back.

        Args:
            none
        """

    [row] = registry().listing().tools
    assert (row.server, row.server_alias, row.name, row.alias) == ("local", "local", "refund", "refund")
    assert row.description == "Give money back.\n\nArgs:\n    none"


def test_what_is_declared_wins_over_the_function_and_reaches_the_listing():
    @mcp_bridge.tool(name="money.back", description=" Refunds. ", capabilities=["a.b", "c", "a.b"], read_only=True)
    def refund():
        """Not this."""

    found = registry()
    [row] = found.listing().tools
    assert (row.name, row.alias, row.description) == ("money.back", "money_back", "Refunds.")
    assert row.annotations == {"readOnlyHint": True, "idempotentHint": False}
    assert found.tools["money.back"].declaration.capabilities == ("a.b", "c")


async def test_static_methods_bound_methods_and_partials_can_be_tools():
    class Desk:
        def __init__(self, fee):
            self.fee = fee

        @mcp_bridge.tool
        @staticmethod
        def above(x: int) -> int:
            return x

        @staticmethod
        @mcp_bridge.tool
        def below(x: int) -> int:
            return x

        def charge(self, x: int) -> int:
            return x + self.fee

    mcp_bridge.tool(Desk(5).charge)
    mcp_bridge.tool(name="fixed")(functools.partial(Desk(7).charge))
    found = registry()
    assert Desk.above(3) == 3
    assert {name: (await found.call(name, {"x": 1})).value for name in found.tools} == {
        "above": 1,
        "below": 1,
        "charge": 6,
        "fixed": 8,
    }


async def test_what_a_partial_binds_is_no_parameter_and_cannot_be_given():
    def charge(amount: int, account: str, memo: str = ""):
        return [amount, account, memo]

    mcp_bridge.tool(functools.partial(charge, account="house"))
    found = registry()
    assert list(found.tools["charge"].arguments.schema["properties"]) == ["amount", "memo"]
    assert (await found.call("charge", {"amount": 1, "memo": "m"})).value == [1, "house", "m"]
    error = await fault(found, "charge", {"amount": 1, "account": "mine"})
    assert error.code == "bad_arguments"
    assert "no parameter 'account'" in error.message


async def test_a_wrapped_function_keeps_its_own_signature():
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @mcp_bridge.tool
    @logged
    async def later(x: int) -> int:
        return x + 1

    assert (await registry().call("later", {"x": 1})).value == 2


def a_generator():
    yield 1


async def an_async_generator():
    yield 1


def takes_args(*values): ...


def positional_only(x, /): ...


class Methods:
    def method(self, x): ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (a_generator, "tool 'a_generator' is a generator"),
        (an_async_generator, "tool 'an_async_generator' is a generator"),
        (takes_args, r"takes \*values"),
        (positional_only, "takes 'x' by position only"),
        (Methods.method, "is a method, and there is no object"),
        (lambda: 1, "'<lambda>' can't be the name of a tool"),
        (Methods, "a type can't be a tool"),
        (len, "a builtin_function_or_method can't be a tool"),
        (classmethod(lambda cls: 1), "a class method can't be a tool"),
        (3, "a int can't be a tool"),
        ("refund", "the name of a tool is given by name"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_file_and_line(function, says):
    with refused(says) as caught:
        mcp_bridge.tool(function)
    error = caught.value
    assert error.code == "bad_tools"
    assert error.message.startswith(f"{error.details['file']}, line {error.details['line']}: ")
    assert error.details["file"] == __file__
    if inspect.isfunction(function):
        assert error.details["line"] == function.__code__.co_firstlineno
    assert DECLARATIONS_NAME not in globals()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "can't be the name"),
        ({"name": "a b"}, "can't be the name"),
        ({"name": "größe"}, "can't be the name"),
        ({"name": "x" * 129}, "can't be the name"),
        ({"name": 3}, "can't be the name"),
        ({"description": 3}, "description of tool 'refund' is no text"),
        ({"capabilities": "payments.capture"}, "a tuple of texts, not one text"),
        ({"capabilities": [""]}, "can't be a capability"),
        ({"capabilities": ["a b"]}, "can't be a capability"),
        ({"capabilities": 3}, "no tuple"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": None}, "timeout"),
        ({"idempotent": "yes"}, "idempotent of tool 'refund' must be True or False"),
        ({"read_only": 1}, "read_only"),
        ({"thread": 0}, "thread"),
    ],
)
def test_what_cannot_be_said_of_a_tool_is_refused(options, says):
    def refund(): ...

    with refused(says) as caught:
        mcp_bridge.tool(**options)(refund)
    assert caught.value.details["line"] == refund.__code__.co_firstlineno


def test_an_async_function_refuses_to_be_taken_out_of_its_thread():
    async def refund(): ...

    with refused("async, and runs in no thread"):
        mcp_bridge.tool(thread=False)(refund)


def test_two_tools_of_one_name_are_refused_with_both_places():
    @mcp_bridge.tool
    def refund(): ...

    first = refund.__code__.co_firstlineno

    @mcp_bridge.tool(name="refund")
    def other(): ...

    second = other.__code__.co_firstlineno
    with refused(f"line {second}: there is a tool 'refund' already, at .*line {first}") as caught:
        registry()
    assert caught.value.details["other"] == {"file": __file__, "line": first}


def test_names_that_differ_get_aliases_that_differ():
    for name in ("a-b", "a_b", "a.b"):
        mcp_bridge.tool(name=name)(lambda: 1)
    assert {row.name: row.alias for row in registry().listing().tools} == {
        "a-b": "a_b_d44362d6",
        "a.b": "a_b_2e7336dc",
        "a_b": "a_b",
    }


# Schemas.


class Color(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 2


class Address(BaseModel):
    street: str
    number: int = Field(1, alias="no")


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Options(TypedDict, total=False):
    deep: bool


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


WHEN = "2026-01-02T03:04:05Z"
NUMBER = "12345678-1234-5678-1234-567812345678"


async def test_arguments_arrive_as_the_annotated_types():
    seen = {}

    @mcp_bridge.tool
    async def everything(
        bare,
        maybe: Optional[str],  # noqa: UP045
        choice: Literal["x", "y"],
        color: Color,
        size: Size,
        address: Address,
        point: Point,
        options: Options,
        when: dt.datetime,
        day: dt.date,
        span: dt.timedelta,
        number: uuid.UUID,
        exact: Decimal,
        file: Path,
        pair: tuple[int, str],
        some: set[int],
        ratio: float,
        data: bytes,
        *,
        flag: bool = False,
        **rest: int,
    ) -> None:
        seen.update(locals())

    arguments = {
        "bare": {"a": [1]},
        "maybe": None,
        "choice": "x",
        "color": "red",
        "size": 2,
        "address": {"street": "s", "no": 3},
        "point": {"x": 1},
        "options": {"deep": True},
        "when": WHEN,
        "day": "2026-01-02",
        "span": "PT1H",
        "number": NUMBER,
        "exact": "1.50",
        "file": "/tmp",
        "pair": [1, "a"],
        "some": [1, 1],
        "ratio": 1,
        "data": "abc",
        "more": 4,
    }
    found = one(everything)
    await found.call("everything", arguments)
    del seen["seen"]
    assert seen == {
        "bare": {"a": [1]},
        "maybe": None,
        "choice": "x",
        "color": Color.RED,
        "size": Size.BIG,
        "address": Address(street="s", no=3),
        "point": Point(1, 0.0),
        "options": {"deep": True},
        "when": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "day": dt.date(2026, 1, 2),
        "span": dt.timedelta(hours=1),
        "number": uuid.UUID(NUMBER),
        "exact": Decimal("1.50"),
        "file": Path("/tmp"),
        "pair": (1, "a"),
        "some": {1},
        "ratio": 1.0,
        "data": b"abc",
        "flag": False,
        "rest": {"more": 4},
    }
    assert type(seen["size"]) is Size
    assert type(seen["ratio"]) is float
    schema = found.tools["everything"].arguments.schema
    assert schema["additionalProperties"] == {"type": "integer"}
    assert schema["required"] == list(arguments)[:-1]
    ArgumentCheck(schema).check(arguments | {"some": [1]})


def test_the_schema_has_descriptions_constraints_defaults_and_no_titles():
    @mcp_bridge.tool
    def refund(
        amount: Annotated[int, Field(gt=0, description="In cents")],
        reason: str = Field("none", description="Why"),
        source: str = Field("here", alias="from"),
        hidden: object = object(),
    ): ...

    schema = registry().tools["refund"].arguments.schema
    assert schema == {
        "type": "object",
        "properties": {
            "amount": {"type": "integer", "exclusiveMinimum": 0, "description": "In cents"},
            "reason": {"type": "string", "default": "none", "description": "Why"},
            "from": {"type": "string", "default": "here"},
            "hidden": {},
        },
        "required": ["amount"],
        "additionalProperties": False,
    }


async def test_an_alias_is_the_arguments_name_and_a_factory_makes_a_default_each_time():
    @mcp_bridge.tool
    def f(source: str = Field("here", alias="from"), rows: list[int] = Field(default_factory=list), seen: list = []):  # noqa: B006, B008
        rows.append(1)
        seen.append(1)
        return [source, rows, seen]

    found = one(f)
    assert (await found.call("f", {"from": "there"})).value == ["there", [1], [1]]
    assert (await found.call("f")).value == ["here", [1], [1]]


def test_an_annotation_that_cannot_be_resolved_is_refused():
    @mcp_bridge.tool
    def f(x: "Nowhere"): ...  # noqa: F821

    with refused("an annotation of tool 'f' can't be resolved: NameError: name 'Nowhere'") as caught:
        registry()
    assert caught.value.details["line"] == f.__code__.co_firstlineno


def test_an_annotation_that_json_has_no_form_for_is_refused_by_its_parameter():
    @mcp_bridge.tool
    def f(good: int, bad: threading.Thread): ...

    with refused("tool 'f' can't take 'bad': Unable to generate pydantic-core schema"):
        registry()


def test_a_callback_is_no_argument():
    @mcp_bridge.tool
    def f(call: "functools.partial[int]", back: type(len)): ...

    with refused("tool 'f' can't take 'call'"):
        registry()


@pytest.mark.parametrize("unpack", [typing.Unpack, typing_extensions.Unpack])
def test_unpacked_keywords_are_refused(unpack):
    def f(**options): ...

    f.__annotations__["options"] = unpack[Options]
    mcp_bridge.tool(f)
    with refused(r"unpacks a TypedDict into \*\*options"):
        registry()


def test_a_return_annotation_that_json_has_no_form_for_is_refused():
    @mcp_bridge.tool
    def f() -> threading.Thread: ...

    with refused("tool 'f' can't return what it is annotated with: Unable to generate"):
        registry()


class OnlyResult(BaseModel):
    result: int


@pytest.mark.parametrize(
    ("annotation", "shown"),
    [
        (int, "int"),
        (None, "None"),
        (Any, "Any"),
        (dict, "dict"),
        (list[Point], "list[dict(x: int, y: float)]"),
        (Address, "dict(street: str, no: int)"),
        (Address | None, "dict(street: str, no: int) | None"),
        (Tree, "dict(value: int, children: list[dict(value: int, children: list[dict(…)])])"),
        (OnlyResult, "dict(result: int)"),
        (dict[str, int], "dict[str, int]"),
        (Color, "Literal['red']"),
    ],
)
def test_the_described_return_type_is_the_value_that_comes_back(annotation, shown):
    def f(): ...

    f.__annotations__["return"] = annotation
    mcp_bridge.tool(f)
    [row] = registry().listing().tools
    rendered = signatures.signature(row).returns
    assert rendered.replace("?", "") == shown
    assert row.output_schema["type"] == "object"


def test_a_tool_without_return_annotation_returns_anything():
    @mcp_bridge.tool
    def f(): ...

    assert describe.render(registry().listing().tools[0]) == "await local.f() -> Any"


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "amount is required"),
        ({"amount": "5"}, "amount: should be a valid integer, not a string"),
        ({"amount": 1.5}, "amount: should be a valid integer, not a number"),
        ({"amount": True}, "amount: should be a valid integer, not a boolean"),
        ({"amount": None}, "amount: should be a valid integer, not null"),
        ({"amount": 0}, "amount: should be greater than 0"),
        ({"amount": 1, "flag": "yes"}, "flag: should be a valid boolean, not a string"),
        ({"amount": 1, "mode": "z"}, "mode: should be 'x' or 'y'"),
        ({"amount": 1, "to": {"street": 1}}, "to.street: should be a valid string, not a number"),
        ({"amount": 1, "to": {}}, "to.street is required"),
        ({"amount": 1, "rows": [1, "b"]}, r"rows\[1\]: should be a valid integer"),
        ({"amount": 1, "amuont": 2}, r"there is no parameter 'amuont' \(did you mean amount\?\)"),
        ({"amount": 1, "zzz": 2}, r"there is no parameter 'zzz' \(there are: amount, flag, mode, to, rows\)"),
        ({"amount": math.nan}, "not JSON"),
        ({"amount": 1, "mode": "\ud800"}, "lone surrogate"),
        ({"amount": dt.date(2026, 1, 1)}, "not JSON"),
        (
            {"flag": 1, "mode": 1, "rows": 1, "to": 1, "amuont": 5},
            r"amount is required; flag: .*; mode: .*; to: .*; rows: .*; there is no parameter 'amuont' \(did you mean amount\?\)\. It is "
            r"local\.f\(amount: int, flag: bool = False, mode: Literal\['x', 'y'\] = 'x', .*rows: list\[int\] = \[\]\) -> Any\.",
        ),
        ({"amount": 1, "rows": ["x"] * 30}, r"rows\[2\]: should be a valid integer, not a string; …\. It is "),
        ({"amount": 1, "rows": ["x"] * 30, "zzz": 1}, r"there is no parameter 'zzz' \(there are: .*\); …"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_by_parameter_and_expectation(arguments, says):
    ran = []

    @mcp_bridge.tool
    def f(
        amount: Annotated[int, Field(gt=0)],
        flag: bool = False,  # noqa: FBT001, FBT002
        mode: Literal["x", "y"] = "x",
        to: Address | None = None,
        rows: list[int] = [],  # noqa: B006
    ):
        ran.append(1)

    error = await fault(one(f), "f", arguments)
    assert error.code == "bad_arguments"
    assert error.message.startswith("local.f: ")
    with refused(says):
        raise error
    assert not ran


async def test_arguments_nested_without_end_are_refused():
    @mcp_bridge.tool
    def f(x): ...

    for depth in (300, 100_000):
        deep = []
        for _ in range(depth):
            deep = [deep]
        error = await fault(one(f), "f", {"x": deep})
        assert (error.code, error.message) == ("bad_arguments", "local.f: the arguments are nested too deeply.")


async def test_an_error_never_shows_the_arguments_value():
    @mcp_bridge.tool
    def f(amount: int, mode: Literal["x"], to: Address): ...

    error = await fault(one(f), "f", {"amount": "hunter2", "mode": "hunter2", "to": "hunter2"})
    assert "hunter2" not in json.dumps(error.record())


async def test_a_whole_float_is_an_integer_as_in_json():
    @mcp_bridge.tool
    def f(count: int, rows: list[int], ratio: float = 0.0):
        return [count, rows, ratio]

    called = await one(f).call("f", {"count": 2.0, "rows": [3.0], "ratio": 2.5})
    assert json.dumps(called.value) == "[2, [3], 2.5]"
    assert (await fault(one(f), "f", {"count": 1e300, "rows": []})).code == "bad_arguments"


async def test_a_validator_that_raises_is_the_tools_error():
    class Strange(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def check(cls, value):
            raise SystemExit(value)

    @mcp_bridge.tool
    def f(strange: Strange): ...

    error = await fault(one(f), "f", {"strange": {"x": 3}})
    assert (error.code, error.message) == ("tool_error", "local.f: SystemExit: 3")


SCHEMA_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-3, 3)
    | st.sampled_from(["red", "x", "2026-01-02", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["street", "no", "x", "y"]), inner),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e", "f", "g"]), SCHEMA_VALUES, max_size=4))
def test_the_check_never_accepts_what_the_published_schema_refuses(arguments):
    def f(
        a: int = 0,
        b: float = 0,
        c: str = "",
        d: Address | None = None,
        e: list[Point] = [],  # noqa: B006
        f: Color | bool = False,  # noqa: FBT001, FBT002
    ): ...

    mcp_bridge.tool(f)
    tool = one(f).tools["f"]
    globals().pop(DECLARATIONS_NAME)
    try:
        tool.arguments.check(arguments)
    except ValueError:
        return
    try:
        ArgumentCheck(tool.arguments.schema).check(arguments)
    except ArgumentError as error:
        pytest.fail(f"{arguments} breaks the schema: {error}")


# Results.


async def result_of(value, annotation=inspect.Signature.empty, **options):
    def f():
        return value

    if annotation is not inspect.Signature.empty:
        f.__annotations__["return"] = annotation
    mcp_bridge.tool(thread=False)(f)
    found = one(f, **options)
    return (await found.call("f")).value


class Celsius(float):
    pass


class Name(str):
    __slots__ = ()


class Kind(enum.StrEnum):
    A = "a"


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (None, None, None),
        ({"a": (1, 2)}, Any, {"a": [1, 2]}),
        ({Kind.A: Kind.A}, Any, {"a": "a"}),
        ([Celsius(1.5), Name("n"), Size.BIG], Any, [1.5, "n", 2]),
        ({"at": dt.date(2026, 1, 2), "p": Point(1), "u": uuid.UUID(NUMBER)}, dict[str, Any], None),
        (Address(street="s", no=2), Any, None),
        (Address(street="s", no=2), Address, {"street": "s", "no": 2}),
        ({1: "a"}, dict[int, str], {"1": "a"}),
        ({Color.RED: 1}, dict[Color, int], {"red": 1}),
        ({2, 1}, set[int], [1, 2]),
        (b"abc", bytes, "abc"),
        (Decimal("1.50"), Decimal, "1.50"),
        ([Point(1, 2.5)], list[Point], [{"x": 1, "y": 2.5}]),
    ],
)
async def test_results_become_plain_json(value, annotation, expected):
    got = await result_of(value, annotation)
    if expected is None and value is not None:
        expected = json.loads(json.dumps(got))
    assert got == expected
    assert json.loads(json.dumps(got, allow_nan=False)) == got
    plain = {dict, list, str, int, float, bool, type(None)}

    def check(part):
        assert type(part) in plain
        for item in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            check(item)

    check(got)


def a_cycle():
    rows = []
    rows.append({"rows": rows})
    return rows


@pytest.mark.parametrize(
    ("value", "annotation", "says"),
    [
        ({"a": [1, math.nan]}, Any, r"result\['a'\]\[1\] is nan, which JSON doesn't have"),
        (math.inf, float, "result is inf"),
        (Point(1, math.nan), Point, r"result\['y'\] is nan"),
        ({"a": {1: 2}}, Any, r"result\['a'\] has the key 1; keys are texts"),
        ({None: 2}, dict, "has the key None"),
        (a_cycle(), Any, "holds itself"),
        (a_cycle(), list[dict[str, Any]], "holds itself"),
        (a_cycle(), list[dict[Color, Any]] | list[dict[str, Any]], "is not JSON: Circular reference"),
        ({"a": threading.Lock()}, Any, r"result\['a'\] is a lock, which JSON can't carry"),
        (object(), Address, "is not JSON: Unable to serialize unknown type"),
        ("\ud800", str, "lone surrogate"),
        ({"\ud800": 1}, Any, "lone surrogate"),
        pytest.param(10**5000, int, "more digits", id="digits"),
        (b"\xff", Any, "is not JSON: .*invalid utf-8"),
        (iter([1]), Any, "is a list_iterator; a list is needed"),
        ((x for x in [1]), list[int], "is a generator; a list is needed"),
        ({"a": mcp_bridge.PENDING}, Any, r"result\['a'\] is PENDING, which a tool must return alone"),
        (["x" * 100], Any, r"has 104 bytes as JSON; the limit is 100"),
    ],
)
async def test_what_json_cannot_carry_is_refused_by_its_place(value, annotation, says):
    with refused(says) as caught:
        await result_of(value, annotation, max_result_bytes=100)
    assert caught.value.code == "bad_tool_result"
    assert caught.value.message.startswith("local.f: result")


async def test_a_serializer_that_raises_is_the_tools_error():
    class Broken(BaseModel):
        def __getattribute__(self, name):
            if name == "__dict__":
                raise KeyError("broken")
            return super().__getattribute__(name)

    with pytest.raises(BridgeError) as caught:
        await result_of(Broken(), Any)
    assert caught.value.code in {"tool_error", "bad_tool_result"}


async def test_a_result_that_breaks_its_annotation_is_passed_on_and_logged(caplog):
    with caplog.at_level(logging.WARNING):
        assert await result_of({"street": 3}, Address) == {"street": 3}
    assert "tool 'f' returned something other than its annotation says" in caplog.text


async def test_what_a_tool_changes_later_is_not_seen():
    rows = [{"a": 1}]

    @mcp_bridge.tool
    async def f():
        return rows

    got = (await one(f).call("f")).value
    rows[0]["a"] = 2
    assert got == [{"a": 1}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_json_passes_through_unchanged_whether_annotated_or_not(value):
    for annotation in (Any, object, dict[str, Any] | list[Any] | str | float | bool | None):
        if value == "PENDING":
            continue
        got = asyncio.run(result_of(value, annotation))
        globals().pop(DECLARATIONS_NAME)
        assert json.dumps(got) == json.dumps(value)


@pytest.mark.parametrize("value", [mcp_bridge.PENDING, "PENDING"])
@pytest.mark.parametrize("annotation", [Any, Address, str])
async def test_pending_is_told_apart_from_a_result(value, annotation):
    def f():
        return value

    f.__annotations__["return"] = annotation
    mcp_bridge.tool(f)
    called = await one(f).call("f")
    assert (called.pending, called.value) == (True, None)


async def test_another_text_about_pending_is_a_result():
    called = await result_of("pending", str)
    assert called == "pending"
