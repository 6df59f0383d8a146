"""The formats of log records: what is in a line, and that nobody's text can be taken for a record."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from mcp_bridge.telemetry.execution_context import execution_scope
from mcp_bridge.telemetry.log_format import MAX_TEXT_CHARS, formatter


def logged(form, message, *args, dated=True, exc_info=None):
    """What is written for a message, without a logger: pytest can't report lone surrogates that it has captured."""
    handler = logging.StreamHandler(stream := io.StringIO())
    handler.setFormatter(formatter(form, dated=dated))
    handler.handle(logging.LogRecord("mcp_bridge.tested", logging.WARNING, "file.py", 1, message, args, exc_info))
    return stream.getvalue()


def test_a_json_record_is_one_object_on_one_line():
    line = logged("json", "the server %r\nsays", "a\u2028b")
    assert line.count("\n") == 1
    assert line.endswith("\n")
    record = json.loads(line)
    assert record["message"] == "the server 'a\\u2028b'\nsays"
    assert record["level"] == "warning"
    assert record["logger"] == "mcp_bridge.tested"
    assert record["time"].endswith("+00:00")
    assert "execution" not in record
    assert "exception" not in record


HOSTILE = '\x1b[31m\r\x85\u2029\u202e\udc80\x00"}\n{"level": "error", "message": "forged"}'


def test_hostile_text_stays_within_its_json_record():
    line = logged("json", "%s", HOSTILE)
    assert line.isprintable() or line[:-1].isprintable()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == HOSTILE


@pytest.mark.parametrize("dated", [True, False])
def test_hostile_text_can_not_control_a_terminal(dated):
    text = logged("text", "%s", HOSTILE, dated=dated)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert [line for line in text.split("\n") if line.startswith("{")] == []


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_record_names_the_execution_that_it_is_about(form):
    with execution_scope("ab12", "alice"):
        inside = logged(form, "begun")
    outside = logged(form, "over")
    assert "ab12" in inside
    assert "alice" in inside
    assert "ab12" not in outside
    if form == "json":
        record = json.loads(inside)
        assert (record["execution"], record["principal"]) == ("ab12", "alice")


def test_a_program_of_a_script_is_named_instead_of_the_script():
    with execution_scope("outer", "alice"):
        with execution_scope("inner", "alice"):
            assert json.loads(logged("json", "x"))["execution"] == "inner"
        assert json.loads(logged("json", "x"))["execution"] == "outer"


def test_a_json_record_is_bounded():
    try:
        raise ValueError("y" * 1_000_000)
    except ValueError:
        line = logged("json", "%s", "x" * 1_000_000, exc_info=sys.exc_info())
    assert len(line) < 3 * MAX_TEXT_CHARS
    record = json.loads(line)
    assert record["message"].startswith("xxx")
    assert record["message"].endswith("xxx")
    assert "992000 characters" in record["message"]
    assert record["exception"].endswith("yyy")


def test_a_traceback_is_a_member_of_its_record():
    try:
        raise ValueError("broken")
    except ValueError:
        record = json.loads(logged("json", "failed", exc_info=sys.exc_info()))
    assert record["message"] == "failed"
    assert "ValueError: broken" in record["exception"]
