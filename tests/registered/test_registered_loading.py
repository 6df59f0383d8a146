"""From the configuration to registered tools: folders, modules, entry points."""

import importlib
import logging
import sys
import tomllib
from pathlib import Path

import pytest
from registered_fixtures import own_declarations, refused  # noqa: F401

from mcp_bridge.errors import BridgeError
from mcp_bridge.registered import folders
from mcp_bridge.registered.config import ToolsConfig, tools_config
from mcp_bridge.registered.loading import ENTRY_POINTS, load_declarations
from mcp_bridge.registered.registry import Registry

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("own_declarations")]

HERE = Path(__file__).parents[1] / "support"


@pytest.fixture
def importing():
    """Imports of tool folders leave no trace."""
    modules, finders, known, path = dict(sys.modules), list(sys.meta_path), folders._finder.folders, list(sys.path)
    yield
    for name in set(sys.modules) - set(modules):
        if not name.startswith(("mcp_bridge", "mcp_types", "pydantic")):
            del sys.modules[name]
    sys.meta_path[:] = finders
    sys.path[:] = path
    folders._finder.folders = known


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


A_TOOL = "import mcp_bridge\n\n@mcp_bridge.tool\ndef {0}():\n    return 1\n"


def load(folder=None, *modules, base=HERE, entry_points=False):
    config = ToolsConfig(modules=modules, path=[folder] if folder else [], entry_points=entry_points)
    return Registry(load_declarations(config, base))


# Loading.


async def test_a_folder_is_loaded_whole_and_its_modules_import_each_other(importing, capsys):
    found = load("registered_tools")
    assert list(found.tools) == ["capture_payment", "check_status", "await-clearing", "takings"]
    called = await found.call("capture_payment", {"order": "a", "amount": 3, "currency": "USD"})
    assert called.value == {"order": "a", "amount": 1.5, "currency": "USD", "at": "2026-01-01T00:00:00Z"}
    assert (await found.call("await-clearing", {"order": "a"})).pending
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "the payment desk is open\n")


def test_only_the_named_modules_of_a_folder_are_loaded(importing):
    assert list(load("registered_tools", "desk_payments").tools) == [
        "capture_payment",
        "check_status",
        "await-clearing",
    ]


def test_a_module_inside_of_a_package_can_be_named(importing):
    assert list(load("registered_tools", "desk_reports.daily").tools) == ["takings"]


def test_loading_twice_gives_the_same_tools(importing):
    assert list(load("registered_tools").tools) == list(load("registered_tools").tools)


def test_a_module_named_twice_counts_once(importing):
    assert len(load("registered_tools", "desk_reports.daily", "desk_reports", "desk_reports").tools) == 1


def test_an_installed_module_needs_no_folder(importing, tmp_path, monkeypatch):
    write(tmp_path / "site", installed_desk=A_TOOL.format("refund"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert list(load(None, "installed_desk").tools) == ["refund"]


def test_nothing_configured_is_an_empty_registry(importing):
    found = load()
    assert not found.tools
    assert found.listing().tools == ()


def test_tools_of_an_imported_module_are_not_loaded_with_the_one_that_imports_them(importing, tmp_path):
    write(tmp_path, desk_one=A_TOOL.format("one"), desk_two="from desk_one import one\n" + A_TOOL.format("two"))
    assert list(load(tmp_path, "desk_two").tools) == ["two"]


def test_a_tool_made_by_a_factory_belongs_to_the_module_that_declares_it(importing, tmp_path):
    write(
        tmp_path,
        _desk_factory="def make(n):\n    def f():\n        return n\n    return f\n",
        desk_made="import mcp_bridge\nfrom _desk_factory import make\n"
        "for n in (1, 2):\n    mcp_bridge.tool(name=f'made_{n}')(make(n))\n",
    )
    assert list(load(tmp_path, "desk_made").tools) == ["made_1", "made_2"]


def test_a_decorator_of_the_operators_own_may_do_the_declaring(importing, tmp_path):
    write(
        tmp_path,
        _desk_decorator="import mcp_bridge\npayment = mcp_bridge.tool(capabilities=('pay',))\n"
        "def other(f):\n    return mcp_bridge.tool(f)\n",
        desk_decorated="from _desk_decorator import payment, other\n"
        "@payment\ndef a():\n    return 1\n@payment\ndef b():\n    return 1\n@other\ndef c():\n    return 1\n",
    )
    found = load(tmp_path)
    assert list(found.tools) == ["a", "b", "c"]
    assert found.tools["b"].declaration.capabilities == ("pay",)


def test_future_annotations_may_name_what_comes_later_in_the_module(importing, tmp_path):
    write(
        tmp_path,
        desk_future="from __future__ import annotations\nimport mcp_bridge\nfrom pydantic import BaseModel\n"
        "@mcp_bridge.tool\ndef f(x: Later) -> list[Later]:\n    return [x]\nclass Later(BaseModel):\n    n: int\n",
    )
    assert load(tmp_path).tools["f"].arguments.schema["$defs"]["Later"]["properties"] == {"n": {"type": "integer"}}


BROKEN = [
    ("import nowhere_at_all\n", 1, "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ("x = 1\ny = x / 0\n", 2, "ZeroDivisionError: division by zero"),
    ("x = 1\ndef f(:\n", 2, "SyntaxError: invalid syntax"),
    ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
    ("import json\njson.loads('{')\n", 2, "JSONDecodeError: Expecting"),
    (
        "import mcp_bridge\n@mcp_bridge.tool(idempotant=True)\ndef f(): ...\n",
        2,
        "unexpected keyword argument 'idempotant'",
    ),
    ("class Strange(BaseException): ...\nraise Strange\n", 2, "Strange"),
    ("import desk_broken_inside.deeper\n", 1, "ModuleNotFoundError: No module named 'desk_broken_inside'"),
    ("def f():\n    raise ValueError('inner')\n\nf()\n", 2, "ValueError: inner"),
]


@pytest.mark.parametrize(("text", "line", "says"), BROKEN)
def test_a_broken_module_is_named_with_its_file_line_and_exception(importing, tmp_path, text, line, says):
    write(tmp_path, desk_fine=A_TOOL.format("fine"), desk_broken=text)
    for modules in ((), ("desk_broken",)):
        with pytest.raises(BridgeError) as caught:
            load(tmp_path, *modules)
        error = caught.value
        assert error.code == "bad_tools"
        assert error.message.startswith(f"{tmp_path / 'desk_broken.py'}, line {line}: module 'desk_broken' can't be ")
        assert says in error.message
        assert (error.details["file"], error.details["line"]) == (str(tmp_path / "desk_broken.py"), line)
        assert "mcp_bridge/registered" not in "".join(error.private["traceback"])
        assert "desk_broken" not in sys.modules


def test_a_module_of_bytes_that_are_no_source_is_named(importing, tmp_path):
    (tmp_path / "desk_bytes.py").write_bytes(b"\xff\x00\x01")
    with refused("module 'desk_bytes' can't be imported: SyntaxError") as caught:
        load(tmp_path)
    assert caught.value.code == "bad_tools"


def test_a_function_that_cannot_be_a_tool_ends_loading_with_its_place(importing, tmp_path):
    write(tmp_path, desk_bad="import mcp_bridge\n\n@mcp_bridge.tool\ndef f(*rest): ...\n")
    with refused(rf"{tmp_path}/desk_bad.py, line 3: tool 'f' takes \*rest"):
        load(tmp_path)


def test_ctrl_c_while_modules_are_imported_is_the_operators(importing, tmp_path):
    write(tmp_path, desk_slow="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path)


def test_a_module_that_is_not_there_is_named_with_where_it_was_looked_for(importing, tmp_path):
    write(tmp_path, desk_payments_two=A_TOOL.format("refund"))
    with refused("no module 'desk_payment_two'.* Did you mean desk_payments_two"):
        load(tmp_path, "desk_payment_two")
    with refused(f"no module 'zzz'.*looked for in {tmp_path}"):
        load(tmp_path, "zzz")
    with refused("no module 'zzz.y'.*no folder"):
        load(None, "zzz.y")
    with refused("no module 'desk_payments_two.x'"):
        load(tmp_path, "desk_payments_two.x")


def test_a_named_module_without_tools_is_an_error_and_a_helper_in_the_folder_is_none(importing, tmp_path):
    write(tmp_path, desk_empty="x = 1\n", desk_full=A_TOOL.format("refund"), desk_uses="from desk_full import refund\n")
    assert list(load(tmp_path).tools) == ["refund"]
    with refused("module 'desk_empty', which tools.modules names, declares no tool.*Put @mcp_bridge.tool"):
        load(tmp_path, "desk_empty")
    with refused("declares no tool. It imports refund of desk_full"):
        load(tmp_path, "desk_uses")


def test_a_folder_that_is_not_there_is_named(importing, tmp_path):
    with refused(f"tools.path names {tmp_path}/none: No such file"):
        load("none", base=tmp_path)
    (tmp_path / "file").touch()
    with refused("tools.path names .*file: Not a directory"):
        load("file", base=tmp_path)


def test_relative_folders_start_at_the_configurations_folder(importing, tmp_path, monkeypatch):
    write(tmp_path / "conf" / "tools", desk_rel=A_TOOL.format("refund"))
    monkeypatch.chdir(tmp_path)
    assert list(load("./tools", base=tmp_path / "conf").tools) == ["refund"]


@pytest.mark.parametrize("name", ["json", "sys", "mcp_bridge", "pydantic"])
def test_a_folder_cannot_shadow_the_standard_library_our_package_or_an_installed_one(importing, tmp_path, name):
    write(tmp_path, **{name: A_TOOL.format("evil")})
    before = sys.modules[name]
    with refused(rf"{tmp_path}/{name}.py can't be loaded: `import {name}` gives ") as caught:
        load(tmp_path)
    assert caught.value.code == "bad_tools"
    assert sys.modules[name] is before


def test_a_helper_that_is_shadowed_is_logged_and_does_no_harm(importing, tmp_path, caplog):
    write(tmp_path, colorsys="raise AssertionError\n", desk_ok="import colorsys\n" + A_TOOL.format("refund"))
    sys.modules.pop("colorsys", None)
    with caplog.at_level(logging.WARNING):
        assert list(load(tmp_path, "desk_ok").tools) == ["refund"]
    assert "colorsys.py is hidden: `import colorsys` gives the standard library's" in caplog.text
    assert str(tmp_path) not in sys.path


def test_two_folders_with_a_module_of_one_name_are_refused(importing, tmp_path):
    for folder in ("a", "b"):
        write(tmp_path / folder, desk_same=A_TOOL.format("refund"))
    with refused("two modules 'desk_same': .*/a/desk_same.py and .*/b/desk_same.py"):
        load_declarations(ToolsConfig(path=["a", "b"], entry_points=False), tmp_path)


def test_two_modules_with_a_tool_of_one_name_are_refused_with_both_places(importing, tmp_path):
    write(tmp_path, desk_p=A_TOOL.format("refund"), desk_q=A_TOOL.format("refund"))
    with refused(r"desk_q.py, line 3: there is a tool 'refund' already, at .*desk_p.py, line 3"):
        load(tmp_path)


def test_a_file_whose_name_no_module_can_have_is_refused(importing, tmp_path):
    (tmp_path / "my-tool.py").touch()
    with refused("my-tool.py can't be loaded: 'my-tool' is no module's name"):
        load(tmp_path)


def test_what_begins_with_an_underscore_or_is_no_package_is_left_alone(importing, tmp_path):
    write(tmp_path, _hidden="raise AssertionError\n", desk_seen=A_TOOL.format("refund"))
    write(tmp_path / "data", inner="raise AssertionError\n")
    (tmp_path / "notes.txt").touch()
    assert list(load(tmp_path).tools) == ["refund"]


def test_a_folder_that_is_on_the_path_anyway_is_no_conflict_with_itself(importing, tmp_path, monkeypatch):
    write(tmp_path, desk_both=A_TOOL.format("refund"))
    monkeypatch.syspath_prepend(tmp_path)
    assert list(load(tmp_path).tools) == ["refund"]


def install(tmp_path, monkeypatch, entry, **files):
    """A package whose entry point is `entry`, as an installer leaves it."""
    site = write(tmp_path / "site", **files)
    info = site / "desk_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: desk-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\ndesk = {entry}\n")
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()


def test_installed_packages_offer_tools_by_entry_points_unless_told_not_to(importing, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "desk_installed", desk_installed=A_TOOL.format("refund"))
    assert list(load(entry_points=True).tools) == ["refund"]
    assert not load(entry_points=False).tools
    assert list(load(None, "desk_installed", entry_points=True).tools) == ["refund"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("desk_nowhere", r"entry point 'desk' of desk-package \(desk_nowhere\) names a module that isn't there"),
        ("desk_installed:refund", "must name a module, without anything after a colon"),
        ("desk_blank", r"entry point 'desk' of desk-package \(desk_blank\) declares no tool"),
        ("desk_raises", r"desk_raises.py, line 1: module 'desk_raises' can't be imported: ZeroDivisionError"),
    ],
)
def test_a_broken_entry_point_is_named_with_its_package(importing, tmp_path, monkeypatch, entry, says):
    files = {"desk_installed": A_TOOL.format("refund"), "desk_blank": "", "desk_raises": "1 / 0\n"}
    install(tmp_path, monkeypatch, entry, **files)
    with refused(says) as caught:
        load(entry_points=True)
    assert caught.value.code == "bad_tools"


# The configuration.


def test_the_table_is_decoded():
    table = {"modules": ["payments", "a.b"], "path": ["./tools", "~/more"], "entry_points": False}
    config = tools_config(table)
    assert config.modules == ("payments", "a.b")
    assert config.path == (Path("tools"), Path.home() / "more")
    assert config.entry_points is False
    assert tools_config({}) == ToolsConfig()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('[tools]\nmodule = ["a"]\n', 2, "no setting 'tools.module'. Did you mean modules?"),
        ('[tools]\n\nmodules = ["pay.py"]\n', 3, "tools.modules: 'pay.py' is no module's name; did you mean 'pay'?"),
        ('[tools]\nmodules = ["./tools/pay.py"]\n', 2, "did you mean 'pay'?"),
        ('[tools]\nmodules = ["a..b"]\n', 2, "'a..b' is no module's name."),
        (
            '[tools]\nmodules = "payments"\n',
            2,
            'tools.modules: must be an array of texts. Write modules = ["my_tools"].',
        ),
        ('[tools]\npath = "tools"\n', 2, 'tools.path: must be an array of texts. Write path = ["./folder"].'),
        ('[tools]\npath = ["~nobody-of-this-name/x"]\n', 2, "no home folder for '~nobody-of-this-name'"),
        ('tools = "x"\n', 1, "tools: must be a table: write [tools]"),
    ],
)
def test_a_wrong_table_is_refused_with_file_line_and_key(tmp_path, text, line, says):
    file = tmp_path / "mcp-bridge.toml"
    file.write_text(text)
    with pytest.raises(BridgeError) as caught:
        tools_config(tomllib.loads(text)["tools"], file)
    assert caught.value.code == "bad_config"
    assert caught.value.details["line"] == line
    assert says in str(caught.value)
    assert "?." not in str(caught.value)
    assert str(caught.value).startswith(f"{file}, line {line}: ")
