"""The tools that a script is told of when it is run again: those that it has called take these calls."""

import pytest

from mcp_bridge.executions.reruns.recorded_tools import RecordedTools
from mcp_bridge.executions.scripts.call_history import CallHistory, CallRequest, RecordedCall
from mcp_bridge.guest import proxies
from mcp_bridge.ledger.log.payloads import LOOKUP, CallOutcome, Failure, RequestOutcome, Success


def row(name, *params, required=(), extra=False, **types):
    made = [
        {"name": each, "json": each, "type": types.get(each, "str"), "required": each in required} for each in params
    ]
    return {"name": name, "alias": name, "params": made, "returns": "Any", "doc": "", "extra": extra}


def called(tool, arguments, result=None):
    outcome = CallOutcome(tool, None, result or Success(None))
    return RecordedCall("", CallRequest("tool", tool, arguments, raw=False), 1, 0.0, outcome)


def repeatable(rows, *calls, server="shop", checks=(), language="python"):
    history = CallHistory()
    history.language = language
    history.lookups = list(checks)
    history.calls = dict(enumerate(calls))
    made = RecordedTools(history, {"shop": "shop", "shop.eu": "shop_eu"}).repeatable(server, rows)
    for each in made:
        assert proxies.signature(each["params"], each["returns"], extra=each["extra"])
    return made


def checked(tool, result, server="shop"):
    asked = CallRequest(LOOKUP, "catalog.check", {"server": server, "tool": tool, "arguments": {}})
    return RecordedCall("lookup 1", asked, 1, 0.0, RequestOutcome(asked, "lookup 1", result))


def params(row):
    return [(param["json"], param["type"], param["required"]) for param in row["params"]]


REFUSED = Failure("bad_arguments", "no", None, {})


@pytest.mark.parametrize(
    "call",
    [
        called("shop.pay", {"a": "1"}),
        called("shop.pay", {"a": "1", "b": "2"}),
        called("shop.eu.pay", {"c": 1}),
        called("shop.free", {"anything": 1}),
        called("gone.pay", {"c": 1}),
        called("shop.nothing", {}, Failure("unknown_tool", "no", None, {})),
    ],
)
def test_where_the_tools_take_the_calls_they_are_told_of_as_they_are(call):
    rows = [row("pay", "a", "b", required=["a"]), row("free", extra=True)]
    assert repeatable(rows, call) == rows


def test_nothing_is_required_that_was_not_passed_and_what_was_passed_comes_first():
    calls = [called("shop.pay", {"to": "x", "more": {}}), called("shop.pay", {"to": "y"})]
    [pay] = repeatable([row("pay", "a", "b", required=["a"])], *calls)
    assert params(pay) == [("to", "str", False), ("more", "dict", False), ("a", "str", False), ("b", "str", False)]
    assert pay["recorded"]


def test_what_a_tool_has_refused_comes_last():
    [pay] = repeatable([row("pay", "a")], called("shop.pay", {"wrong": 1}, REFUSED))
    assert params(pay) == [("a", "str", False), ("wrong", "int", False)]


def test_a_tool_that_is_gone_has_a_row_of_its_calls_under_a_free_alias():
    [_, gone] = repeatable([row("a_b")], called("shop.a-b", {"x-y": None}), called("shop.a-b", {"x-y": "1"}))
    assert (gone["name"], gone["alias"], gone["recorded"]) == ("a-b", "a_b_2", True)
    assert gone["params"] == [{"name": "x_y", "json": "x-y", "type": "None | str", "required": False}]


@pytest.mark.parametrize("calls", [[{"amount": "1", "to": "x"}], [{"to": "x"}], [{"sum": 1, "to": "x"}, {"to": "x"}]])
@pytest.mark.parametrize("extra", [False, True])
def test_nothing_is_required_after_what_is_not(calls, extra):
    rows = [row("pay", "sum", "to", required=["sum", "to"], extra=extra)]
    [pay] = repeatable(rows, *(called("shop.pay", each) for each in calls))
    assert not any(required for _, _, required in params(pay))


@pytest.mark.parametrize("passed", [{"due-date": "x"}, {"due-date": "x", "due.date": "y"}])
def test_a_name_of_before_goes_before_the_same_one_of_now(passed):
    [pay] = repeatable([row("pay", "due_date", required=["due_date"])], called("shop.pay", passed))
    assert proxies.bind(pay, (), {"due_date": "x"}) == ({"due-date": "x"}, [])
    assert proxies.bind(pay, ("x",), {}) == ({"due-date": "x"}, [])
    assert proxies.bind(pay, (), dict(passed)) == (passed, [])


@pytest.mark.parametrize(
    ("arguments", "result", "args", "kwargs"),
    [
        ({"pth": "a"}, None, (), {"pth": "a"}),
        ({"arguments": {"path": "a"}}, REFUSED, (), {"arguments": {"path": "a"}}),
        ({"path": {"path": "a"}}, REFUSED, ({"path": "a"},), {}),
    ],
)
def test_a_tool_takes_the_names_that_it_took_before_their_beginnings_told_them(arguments, result, args, kwargs):
    listed = row("read", "path", extra=True) | {"beginnings": ["x-"]}
    [read] = repeatable([listed], called("shop.read", arguments, result))
    assert proxies.bind(read, args, kwargs) == (arguments, [])
    assert repeatable([listed], called("shop.read", {"path": "a", "x-a": 1})) == [listed]


class Counted(dict):
    """Counts how often something in it is looked at."""

    looks = 0

    def __contains__(self, name):
        Counted.looks += 1
        return super().__contains__(name)

    def __getitem__(self, name):
        Counted.looks += 1
        return super().__getitem__(name)

    def __iter__(self):
        Counted.looks += len(self)
        return super().__iter__()

    def items(self):
        Counted.looks += len(self)
        return super().items()


@pytest.mark.parametrize("result", [None, REFUSED])
def test_each_argument_is_looked_at_once_however_many_calls_there_are(result):
    Counted.looks = 0
    names, calls = 20_000, 2_000
    many = called("shop.pay", Counted({f"n{number}": 1 for number in range(names)}), result)
    [pay] = repeatable([row("pay", "a")], many, *[called("shop.pay", Counted({"a": "1"}))] * calls)
    assert len(pay["params"]) == 1 + (names if result is None else 100)
    assert Counted.looks == names + calls


UNKNOWN = Failure("unknown_tool", "no", None, {})


IN_JAVASCRIPT = [("javascript", name) for name in ("pay_all", "payAll", "pay-all")]


@pytest.mark.parametrize(("language", "name"), [("python", "pay_all"), *IN_JAVASCRIPT])
def test_a_tool_that_was_not_there_is_not_there_unless_it_was_called_later(language, name):
    rows = [row("pay"), row("pay_all")]
    assert repeatable(rows, checks=[checked(name, UNKNOWN)], language=language) == rows[:1]
    assert repeatable(rows, checks=[checked(name, UNKNOWN, server="shop.eu")], language=language) == rows
    assert repeatable(rows, called("shop.pay_all", {}), checks=[checked(name, UNKNOWN)], language=language) == rows


@pytest.mark.parametrize("name", ["payAll", "Pay_all", "pay-all", "pay_al"])
def test_what_a_misspelt_name_does_not_find_was_there(name):
    rows = [row("pay"), row("pay_all")]
    assert repeatable(rows, checks=[checked(name, UNKNOWN)]) == rows


def test_what_a_name_finds_in_javascript_now_and_was_told_of_then_was_there():
    """There were two of them then, of which neither was meant."""
    told = Failure("unknown_tool", "no", None, {"nearest": ["pay_all", "payall"]})
    for rows in ([row("pay_all"), row("payall")], [row("pay_all")]):
        assert repeatable(rows, checks=[checked("payAll", told)], language="javascript") == rows


@pytest.mark.parametrize("now", [[row("pay", "a", "b")], []])
def test_a_tool_that_a_call_did_not_fit_is_as_it_was_and_takes_the_calls_that_were_made(now):
    was = row("pay", "a")
    check = checked("pay", Success({"faults": [], "row": was}))
    assert repeatable(now, checks=[check]) == [was]
    [pay] = repeatable(now, called("shop.pay", {"c": 1}), checks=[check])
    assert params(pay) == [("c", "int", False), ("a", "str", False)]


def test_a_check_of_an_earlier_build_which_has_no_row_changes_nothing():
    rows = [row("pay", "a", "b")]
    assert repeatable(rows, checks=[checked("pay", Success({"faults": []}))]) == rows
