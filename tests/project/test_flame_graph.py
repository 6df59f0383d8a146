"""The flame graph of the host: what is made of a profiler's stacks."""

from xml.etree import ElementTree as ET

import pytest

from benchmarks import flame

STACKS = """\
thread (0x7F): MainThread;main (/somewhere/mcp_bridge/cli/__init__.py:7);run (/usr/lib/python3.11/asyncio/runners.py:1) 30
thread (0x7F): MainThread;main (/somewhere/mcp_bridge/cli/__init__.py:9) 10
thread (0x80): worker;<lambda> (/somewhere/.venv/lib/python3.11/site-packages/anyio/to_thread.py:3) 60
thread (0x80): worker;narrow (/home/somebody/tool.py:3) 1
"""


def titles(drawn):
    return [title.text for title in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}title")]  # noqa: S314


def test_a_frame_is_as_wide_as_its_samples_and_its_callees_are_above_it():
    root = flame.frames(STACKS)
    (main_thread,) = [frame for name, frame in root.callees.items() if "MainThread" in name]
    (main,) = main_thread.callees.values()
    assert (root.count, main_thread.count, main.count) == (101, 40, 40)
    assert [(callee.name, callee.count) for callee in main.callees.values()] == [
        ("run (python3.11/asyncio/runners.py)", 30)
    ]
    assert "main (mcp_bridge/cli/__init__.py) 39.6%" in titles(flame.svg(root, "title"))


def test_the_samples_are_listed_by_the_package_at_work():
    found = {name: round(share * 101) for name, share in flame.shares(flame.frames(STACKS))}
    assert found == {"anyio": 60, "asyncio": 30, "mcp_bridge/cli": 10, "tool": 1}


def test_no_path_of_the_machine_is_in_the_drawing():
    drawn = flame.svg(flame.frames(STACKS), "title")
    assert not any(path in drawn for path in ("/somewhere", "/usr", "/home", ".venv"))
    assert "tool.py" in drawn


def test_what_is_too_narrow_to_be_seen_is_left_out():
    many = flame.frames("wide (a.py:1) 9999\nnarrow (b.py:1) 1")
    assert titles(flame.svg(many, "title")) == ["all 100.0%", "wide (a.py) 100.0%"]


def test_a_profile_without_samples_is_refused():
    with pytest.raises(ValueError, match="no sample"):
        flame.svg(flame.frames("nothing here"), "title")
