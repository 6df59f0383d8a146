"""What is compared of the error of a script that is run again, and what may differ."""

import pytest

from mcp_bridge.executions.reruns.error_comparison import is_same_error, shown_error


def error(message="no", **changes):
    made = {"code": "script_error", "type": "ValueError", "message": message, "line": 3, "traceback": "..."}
    return made | changes


def is_same(recorded, now, values=None):
    return is_same_error(recorded, now, lambda _: values or {})


FORGOTTEN = "(line 2: f(...) was never awaited, so it never ran; write: await f(...))"

SAME = {
    "itself": (error(), error()),
    "another traceback": (error(traceback="here"), error(traceback="there")),
    "an address": (error("<C object at 0x7f0123456789>"), error("<C object at 0x55aa01234567>")),
    "an address in capitals": (error("<Image at 0x7F6C4B139210>"), error("<Image at 0x7F6C4B13A5F0>")),
    "a thread": (
        error("<_MainThread(MainThread, started 140119110187904)> <Thread(t, started daemon 140119110187905)>"),
        error("<_MainThread(MainThread, started 139919110187904)> <Thread(t, started daemon 139919110187905)>"),
    ),
    "recorded advice": (error("no\nwrite it otherwise"), error("no")),
    "recorded advice and a forgotten call": (
        error("no\nso (line 2: f(...) was never awaited, so it never ran; write: await f(...))"),
        error("no"),
    ),
    "recorded advice before a forgotten call that there is again": (
        error(f"no\nwrite: so; write: that {FORGOTTEN}"),
        error(f"no {FORGOTTEN}"),
    ),
    "a forgotten call that is on another line": (
        error(f"no {FORGOTTEN}"),
        error("no (in a thread, f(...) was never awaited, so it never ran; write: from mcp.sync.servers import f)"),
    ),
    "other tools that are near": (
        error("server 'git' has no tool 'x'; nearest: a, b"),
        error("server 'git' has no tool 'x'; there are: c"),
    ),
    "another signature": (
        error("git.log() got an unexpected keyword argument 'x'. It is log(y: int)"),
        error("git.log() got an unexpected keyword argument 'x'. It is log(y: int, z: int)"),
    ),
    "another argument that is missing, too": (
        error("shop.pay() missing required argument: 'to'. It is pay(to: str)", type="TypeError"),
        error("shop.pay() missing required arguments: 'sum', 'to'. It is pay(sum: int, to: str)", type="TypeError"),
    ),
    "the same in JavaScript": (
        error("shop.pay() missing required argument: 'to'. It is pay({to: string})", type="TypeError"),
        error("shop.pay() got an unexpected argument 'a'. It is pay({to: string})\nadvice", type="TypeError"),
    ),
    "another Python's folder": (
        error("cannot import name 'a' from 'b' (/usr/lib/python3.12/b.py)"),
        error("cannot import name 'a' from 'b' (/usr/lib/python3.14/b.py)"),
    ),
    "another Python's words for a syntax": (
        error("invalid syntax", code="syntax_error", type="SyntaxError"),
        error("expected ':'", code="syntax_error", type="SyntaxError"),
    ),
    "another line for a syntax": (
        error("Unexpected token", code="syntax_error", type="SyntaxError", line=1),
        error("Expected ','", code="syntax_error", type="SyntaxError", line=4),
    ),
    "a text that was cut elsewhere, for its advice": (
        error("a" * 50 + "\n… 100 characters cut …\n" + "b" * 30 + "\nadvice"),
        error("a" * 50 + "\n… 80 characters cut …\n" + "b" * 50),
    ),
    "limits of now": (
        {"code": "artifacts_full", "message": "over 10 bytes"},
        {"code": "artifacts_full", "message": "over 20 bytes"},
    ),
    "an older record with less": ({"code": "script_error", "message": "no"}, error()),
}

OTHER = {
    "code": (error(), error(code="artifacts_full")),
    "type": (error(), error(type="KeyError")),
    "line": (error(), error(line=4)),
    "a line that there wasn't": (error(line=None), error()),
    "text": (error("a"), error("b")),
    "text before a forgotten call": (error(f"a {FORGOTTEN}"), error(f"b {FORGOTTEN}")),
    "longer text": (error("a"), error("ab")),
    "shorter text": (error("ab"), error("a")),
    "another tool that a call doesn't fit": (
        error("shop.pay() missing required argument: 'to'. It is pay(to: str)", type="TypeError"),
        error("shop.ship() missing required argument: 'to'. It is ship(to: str)", type="TypeError"),
    ),
    "a function of the script's own that a call doesn't fit": (
        error("pay() missing 1 required positional argument: 'to'", type="TypeError"),
        error("pay() missing 2 required positional arguments: 'to' and 'a'", type="TypeError"),
    ),
    "text in brackets": (error("a (b)"), error("a")),
    "more lines": (error("a"), error("a\nb")),
    "another text that was cut": (
        error("a" * 50 + "\n… 100 characters cut …\n" + "b" * 50),
        error("c" * 50 + "\n… 100 characters cut …\n" + "b" * 50),
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_what_differs_between_two_runs_is_the_same_error(case):
    assert is_same(*SAME[case])


@pytest.mark.parametrize("case", OTHER)
def test_another_error_is_told(case):
    assert not is_same(*OTHER[case])


UNKNOWN = "server 'git' has no tool 'x'"

OF_ANOTHER_VERSION = {
    "another line": (error(), error(line=9), True),
    "another text": (error("a"), error("b"), False),
    "a text of the bridge": (error("a", type="MCPError"), error("b", type="MCPError"), True),
    "what is told of a name that is no tool's": (error(UNKNOWN), error(f"{UNKNOWN}. It has no tools: so"), True),
    "as a text that is quoted": (
        error(f'"{UNKNOWN}"', type="KeyError"),
        error(f'"{UNKNOWN}; why"', type="KeyError"),
        True,
    ),
    "another name that is no tool's": (error(UNKNOWN), error("server 'git' has no tool 'y'"), False),
    "another server": (error(UNKNOWN), error("server 'time' has no tool 'x'"), False),
    "another text after a name that is no tool's": (error(UNKNOWN), error("no"), False),
}


@pytest.mark.parametrize("case", OF_ANOTHER_VERSION)
def test_what_another_version_may_word_otherwise(case):
    recorded, now, same = OF_ANOTHER_VERSION[case]
    assert is_same_error(recorded, now, lambda _: {}, is_same_version=False) is same


def test_sensitive_values_are_compared_by_what_they_are():
    one, other = (f"vault://ref/{letter * 16}" for letter in "ab")
    values = {"a" * 16: "anna@example.com", "b" * 16: "anna@example.com"}
    before, now = error(f"{one} is unknown\nadvice"), error(f"{other} is unknown")
    assert is_same(before, now, values)
    assert not is_same(before, now, values | {"b" * 16: "bert@example.com"})


def test_an_error_is_shown_with_its_type_and_line():
    assert shown_error(error()) == "ValueError: no (line 3)"
    assert shown_error({"code": "exit", "message": "left"}) == "left"
    assert shown_error(None) is None
