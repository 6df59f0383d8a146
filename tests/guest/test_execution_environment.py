"""What code finds in the interpreter, by itself."""

import multiprocessing.context

import pytest

from mcp_bridge.guest import execution_environment

DEFAULT = multiprocessing.context._default_context


@pytest.mark.parametrize("chosen", ["spawn", "forkserver"])
def test_a_process_begins_as_a_fork_whatever_python_would_choose(monkeypatch, chosen):
    monkeypatch.setattr(DEFAULT, "_actual_context", None)
    monkeypatch.setattr(DEFAULT, "_default_context", multiprocessing.get_context(chosen))
    execution_environment.fork_by_default()
    assert DEFAULT.get_start_method(allow_none=True) is None, "a script can't choose any more"
    assert DEFAULT.get_start_method() == "fork"
