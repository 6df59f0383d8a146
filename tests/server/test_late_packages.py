"""Packages whose `__init__` is postponed: the same names as of those that are imported at once."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcp_bridge.server.late_packages import postpone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SDK = """
import json, sys
from mcp_bridge.server.late_packages import postpone
if sys.argv[1] == "late":
    postpone("mcp", "mcp.server")
from mcp.server.lowlevel import Server
imported = [name for name in ("httpx2", "mcp.client", "mcp.server.mcpserver") if name in sys.modules]
import mcp
import mcp.server as served
names = {}
from mcp import Client
from mcp.server import MCPServer
assert served is mcp.server and mcp.server.Server is Server
for package in (mcp, served):
    names[package.__name__] = sorted((name, type(value).__name__) for name, value in vars(package).items())
print(json.dumps([imported, names, mcp.__all__, Client.__module__, issubclass(MCPServer, object)]))
"""


def test_the_sdk_has_the_same_names_and_its_client_comes_only_when_it_is_asked_for() -> None:
    told: dict[str, list[Any]] = {
        how: json.loads(
            subprocess.run([sys.executable, "-c", SDK, how], check=True, capture_output=True, text=True).stdout
        )
        for how in ("late", "at once")
    }
    assert told["late"][0] == []
    assert told["at once"][0] == ["httpx2", "mcp.client", "mcp.server.mcpserver"]
    assert told["late"][1:] == told["at once"][1:]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the `__init__` of the package `late_one`, in which there is the module `late_one.inner`."""
    package = tmp_path / "late_one"
    package.mkdir()
    (package / "inner.py").write_text("NUMBER = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> None:
        (package / "__init__.py").write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in ("late_one", "late_one.inner"):
        sys.modules.pop(name, None)


def test_a_submodule_is_imported_without_the_init_which_runs_once(
    written: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    written("print('ran')\nfrom late_one.inner import NUMBER\n__all__ = ['NUMBER']\n")
    postpone("late_one")
    package, inner = importlib.import_module("late_one"), importlib.import_module("late_one.inner")
    assert package.inner is inner
    assert not hasattr(package, "__wrapped__")
    assert capsys.readouterr().out == ""
    postpone("late_one")
    assert package.NUMBER == 1
    assert package.__all__ == ["NUMBER"]
    assert not hasattr(package, "no_such_name")
    assert sys.modules["late_one"] is package
    assert capsys.readouterr().out == "ran\n"


def test_an_init_that_fails_is_tried_again(written: Callable[[str], None]) -> None:
    written("import late_one.no_such_module\n")
    postpone("late_one")
    package = importlib.import_module("late_one")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            package.NUMBER  # noqa: B018
    written("NUMBER = 22\n")
    assert package.NUMBER == 22


def test_another_thread_waits_for_the_init(written: Callable[[str], None]) -> None:
    written("import threading\nthreading.late_one_runs.set()\nthreading.late_one_may_end.wait(60)\nNUMBER = 1\n")
    runs, may_end, found = threading.Event(), threading.Event(), []
    vars(threading).update(late_one_runs=runs, late_one_may_end=may_end)
    postpone("late_one")
    package = importlib.import_module("late_one")
    threads = [threading.Thread(target=lambda: found.append(package.NUMBER)) for _ in range(2)]
    try:
        threads[0].start()
        assert runs.wait(60)
        threads[1].start()
        may_end.set()
        for thread in threads:
            thread.join(60)
    finally:
        del vars(threading)["late_one_runs"], vars(threading)["late_one_may_end"]
    assert found == [1, 1]
