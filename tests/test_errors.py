"""The exception type of the host side, and hints that several errors have."""

import importlib.metadata

import pytest

from mcp_bridge.errors import extra_hint


def test_a_hint_for_an_extra_names_its_libraries(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["one>=1; extra == 'x'", "two; extra == 'y'"])
    assert extra_hint("x").endswith(" 'one>=1'")


@pytest.mark.parametrize("requirements", [None, [], ["two; extra == 'y'"]])
def test_where_an_extras_libraries_arent_known_a_hint_has_no_half_a_command(monkeypatch, requirements):
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requirements)
    assert extra_hint("x") == "Install mcp-code-bridge[x]."
