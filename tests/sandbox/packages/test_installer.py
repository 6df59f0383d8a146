"""Package sets: what is found in an index and fetched from it, and what a hostile index or wheel can't do."""

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import anyio
import pytest
from package_index import wheel

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.packages.allow_list import AllowList
from mcp_bridge.sandbox.packages.install_settings import InstallSettings
from mcp_bridge.sandbox.packages.installer import Installer, PackageRights
from mcp_bridge.sandbox.packages.package_set import PackageSet
from mcp_bridge.sandbox.packages.requirements import parse_requirements
from mcp_bridge.sandbox.packages.wheel_tree import overlay_packages

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(200)]


@pytest.fixture
def anyio_backend():
    return "asyncio"


def rights(*allow, only_listed=False):
    lists = (AllowList(allow),)
    return PackageRights(lists, lists if only_listed else ())


class Set:
    """An installer, and what it is asked for."""

    def __init__(self, state, **limits):
        self.state = state
        self.installer = Installer(state, InstallSettings(**limits))

    async def resolve(self, *asked, allow=None, only_listed=False, there=(), **options):
        allowed = rights(*(asked if allow is None else allow), only_listed=only_listed)
        return await self.installer.resolve(parse_requirements(asked), allowed, there, **options)

    async def get(self, *asked, **options):
        packages = await self.resolve(*asked, **options)
        return packages, await self.installer.fetch(packages)

    async def refused(self, *asked, **options):
        with pytest.raises(BridgeError) as caught:
            await self.get(*asked, **options)
        said = f"{caught.value.message} {caught.value.hint}"
        assert "127.0.0.1" not in said, "the index is the operator's affair"
        assert str(self.state.parent) not in said, "and so are its folders"
        return caught.value

    def tree(self, package):
        tree = self.installer.cache.tree(package)
        return {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}

    def left(self):
        """What is beside whole wheels."""
        return [path.name for path in (self.state / "packages/wheels").glob("*") if path.name.startswith(".")]


@pytest.fixture
def made(tmp_path):
    return Set(tmp_path / "state")


async def test_a_set_has_what_is_asked_for_with_what_that_needs_each_with_its_hash(index, made):
    index.add(wheel("shop", "1.2", requires=["till>=2"]), wheel("till", "1.0"), wheel("till", "2.1"))
    packages, files = await made.get("shop")
    assert packages.pins == ("shop==1.2", "till==2.1")
    assert [one.sha256 for one in packages.packages] == [
        hashlib.sha256(index.files[f"{name}-py3-none-any.whl"]).hexdigest() for name in ("shop-1.2", "till-2.1")
    ]
    assert [wheel_files.modules for wheel_files in files] == [("shop",), ("till",)]
    assert PackageSet.from_rows(json.loads(json.dumps(packages.rows()))) == packages


async def test_the_index_is_asked_once_for_a_set_however_many_ask_at_once(index, made):
    index.add(wheel("shop"))
    found = []

    async def one():
        found.append(await made.get("shop"))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(one)
    assert len({packages.digest for packages, _ in found}) == 1
    assert index.asked.count("/simple/shop/") == 2, "once to find it, once to fetch it"
    before = len(index.asked)
    again = Set(made.state)
    assert (await again.get("shop"))[0] == found[0][0]
    assert len(index.asked) == before, "another bridge on the same directory has it"


async def test_two_processes_share_one_download(index, made, tmp_path):
    index.add(wheel("shop"))
    code = (
        "import anyio, sys\nfrom pathlib import Path\n"
        "from mcp_bridge.sandbox.packages.install_settings import InstallSettings\n"
        "from mcp_bridge.sandbox.packages.installer import Installer, PackageRights\n"
        "from mcp_bridge.sandbox.packages.allow_list import AllowList\n"
        "from mcp_bridge.sandbox.packages.requirements import parse_requirements\n"
        "async def main():\n"
        "    one = Installer(Path(sys.argv[1]), InstallSettings())\n"
        "    found = await one.resolve(parse_requirements(['shop']), PackageRights((AllowList(['shop']),)))\n"
        "    await one.fetch(found)\n    print(found.digest)\n"
        "anyio.run(main)\n"
    )
    running = [
        subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", code, str(made.state)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert len({process.communicate(timeout=100)[0] for process in running}) == 1
    assert sum(path == "/simple/shop/" for path in index.asked) == 2, "once to find it, once to fetch it"
    assert made.left() == []


@pytest.mark.parametrize(
    ("asked", "allow", "says"),
    [
        ("shop", (), 'allow = ["shop"]'),
        ("shop", ("other",), 'allow = ["other", "shop"]'),
        ("shop==2.0", ("shop<2",), 'allow = ["shop<2", "shop==2.0"]'),
        ("shop[more]", ("shop",), 'allow = ["shop", "shop[more]"]'),
        ("sh0p", ("shop",), 'allow = ["shop", "sh0p"]'),
    ],
)
async def test_what_is_not_on_the_list_is_refused_with_the_line_that_the_operator_would_write(
    index, made, asked, allow, says
):
    index.add(wheel("shop"), wheel("shop", "2.0"), wheel("sh0p"))
    error = await made.refused(asked, allow=allow)
    assert error.code == "package_refused"
    assert error.hint == f"To allow it, the operator writes below [install]: {says}"
    assert index.asked == [], "the index hears of nothing that isn't allowed"


async def test_versions_of_the_list_hold_for_what_comes_along_too(index, made):
    index.add(wheel("shop", requires=["till"]), wheel("till", "1.0"), wheel("till", "3.0"))
    packages = await made.resolve("shop", allow=("shop", "till<2"))
    assert packages.pins == ("shop==1.0", "till==1.0")
    index.add(wheel("strict", requires=["till>=3"]))
    assert (await made.refused("strict", allow=("strict", "till<2"))).code == "package_unresolved"
    both = await made.resolve("strict", allow=("strict", "till<2", "till==3.0"))
    assert both.pins == ("strict==1.0", "till==3.0")


async def test_extras_are_had_in_the_versions_of_an_entry_that_has_them(index, made):
    index.add(wheel("shop", "1.0"), wheel("shop", "2.0"))
    allow = ("shop[all]<2", "shop>=2")
    assert (await made.refused("shop[all]==2.0", allow=allow)).code == "package_refused"
    error = await made.refused("shop[all]", allow=allow)
    assert error.code == "package_refused"
    assert "shop[all]==2.0" in error.hint
    assert (await made.resolve("shop[all]<2", allow=allow)).pins == ("shop==1.0",)
    assert (await made.resolve("shop", allow=allow)).pins == ("shop==2.0",)


async def test_with_dependencies_listed_only_what_is_listed_comes_along(index, made):
    index.add(wheel("shop", requires=["till"]), wheel("till"))
    error = await made.refused("shop", only_listed=True)
    assert error.code == "package_refused"
    assert 'allow = ["shop", "till"]' in error.hint
    assert (await made.resolve("shop", allow=("shop", "till"), only_listed=True)).pins == ("shop==1.0", "till==1.0")


async def test_an_address_among_the_dependencies_is_not_followed_and_nothing_is_built(index, made, tmp_path):
    ran = tmp_path / "ran"
    sdist = io_tar(
        {"evil-1.0/setup.py": f"open({str(ran)!r}, 'w')\n", "evil-1.0/PKG-INFO": "Name: evil\nVersion: 1.0\n"}
    )
    index.add(wheel("shop", requires=[f"evil @ {index.url}/files/evil-1.0.tar.gz"]), ("evil-1.0.tar.gz", sdist))
    assert (await made.refused("shop")).code == "package_unresolved"
    assert (await made.refused("evil")).code == "package_unresolved"
    index.add(wheel("other", requires=["evil"]))
    assert (await made.refused("other")).code == "package_unresolved"
    assert not ran.exists()
    assert "evil-1.0.tar.gz" not in index.downloads()


def io_tar(files):
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def entry(name, mode=0o644):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.create_system = 3
    return info


HOSTILE = {
    "parent": [(entry("../../../../escaped.py"), "x = 1")],
    "absolute": [(entry("/ABSOLUTE/escaped.py"), "x = 1")],
    "data": [(entry("hostile-1.0.data/data/../../../../escaped.py"), "x = 1")],
    "scripts": [(entry("hostile-1.0.data/scripts/../../../escaped.py"), "x = 1")],
    "link": [(entry("hostile_link", stat.S_IFLNK | 0o777), "/etc/passwd")],
    "link to a directory": [
        (entry("out", stat.S_IFLNK | 0o777), "ABSOLUTE"),
        (entry("out/escaped.py"), "x = 1"),
    ],
    "set-id": [(entry("hostile/tool", stat.S_IFREG | 0o6755), "x")],
    "fifo": [(entry("hostile/pipe", stat.S_IFIFO | 0o666), "")],
    "backslash": [(entry("..\\..\\escaped.py"), "x = 1")],
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_wheel_writes_nothing_outside_of_its_place_and_has_plain_files_only(index, made, tmp_path, kind):
    members = []
    for info, content in HOSTILE[kind]:
        info.filename = info.filename.replace("/ABSOLUTE", str(tmp_path))
        members.append((info, content.replace("ABSOLUTE", str(tmp_path)) if isinstance(content, str) else content))
    index.add(wheel("hostile", entries=members))
    before = {path for path in tmp_path.rglob("*") if "packages" not in path.parts}
    try:
        packages, _ = await made.get("hostile")
    except BridgeError as exc:
        assert exc.code == "bad_wheel", exc  # noqa: PT017
        assert str(tmp_path) not in exc.message, exc  # noqa: PT017
        assert made.left() == []
    else:
        tree = made.installer.cache.tree(packages.packages[0])
        for path in tree.rglob("*"):
            status = path.lstat()
            assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode), path
            assert not status.st_mode & 0o6000
    found = {path for path in tmp_path.rglob("*") if "packages" not in path.parts}
    assert {path.name for path in found - before} <= {"state"}
    assert not list(Path(tmp_path.anchor).glob("escaped.py"))
    cache = made.state / "packages"
    outside = [path for path in cache.rglob("escaped.py") if "tree" not in path.relative_to(cache).parts]
    assert outside == []


async def test_what_an_interpreter_would_run_by_itself_and_programs_are_left_out(index, made):
    files = {
        "good.py": "x = 1\n",
        "run.pth": "import os; os.abort()\n",
        "sitecustomize.py": "raise SystemExit\n",
        "usercustomize.py": "raise SystemExit\n",
        "usercustomize/__init__.py": "raise SystemExit\n",
        "sitecustomize.abi3.so": "",
        "good-1.0.data/scripts/good": "#!/bin/sh\n",
        "good-1.0.data/data/share/doc.txt": "text",
        "good-1.0.data/purelib/more.py": "y = 1\n",
        "good-1.0.dist-info/entry_points.txt": "[console_scripts]\ngood = good:main\n",
    }
    index.add(wheel("good", files=files))
    packages, [found] = await made.get("good")
    names = made.tree(packages.packages[0])
    assert {"good.py", "more.py"} <= names
    assert not {
        name for name in names if name.endswith(".pth") or "customize" in name or name.startswith(("bin", "share"))
    }
    assert found.modules == ("good", "more")


@pytest.mark.parametrize("files", [{"mcp_bridge/guest/runner.py": "x = 1\n"}, {"mcp_bridge.py": ""}])
async def test_a_wheel_with_modules_of_the_bridges_own_name_is_refused(index, made, files):
    index.add(wheel("shadow", files=files))
    assert (await made.refused("shadow")).code == "bad_wheel"


async def test_a_wheel_that_is_another_package_than_its_name_says_is_refused(index, made):
    index.add(wheel("shop", claims="other"))
    assert (await made.refused("shop")).code in {"bad_wheel", "package_unresolved"}


async def test_a_wheel_that_grows_when_it_is_unpacked_is_ended_and_nothing_is_left(index, tmp_path):
    small = Set(tmp_path / "state", max_size=1 << 20)
    index.add(wheel("bomb", files={"bomb.py": b"\0" * (64 << 20)}))
    assert (await small.refused("bomb")).code == "packages_too_large"
    index.add(wheel("bombs", files={f"bombs/{n}.py": b"\0" * (1 << 20) for n in range(40)}))
    assert (await small.refused("bombs")).code == "packages_too_large"
    assert small.left() == []


async def test_a_set_has_a_bounded_number_of_packages(index, tmp_path):
    few = Set(tmp_path / "state", max_packages=3)
    index.add(wheel("many", requires=[f"p{n}" for n in range(5)]), *(wheel(f"p{n}") for n in range(5)))
    assert (await few.refused("many")).code == "packages_too_large"


async def test_what_was_recorded_is_fetched_again_exactly_or_not_at_all(index, made):
    index.add(wheel("shop"))
    packages, _ = await made.get("shop")
    again = Set(made.state.parent / "other")
    index.yanked.add("shop-1.0-py3-none-any.whl")
    index.add(wheel("shop", "2.0"))
    await again.installer.fetch(packages)
    assert made.tree(packages.packages[0]) == again.tree(packages.packages[0]), "yanked or not, it is what was recorded"
    third = Set(made.state.parent / "third")
    index.add(wheel("shop", files={"shop.py": "raise SystemExit"}))
    with pytest.raises(BridgeError) as caught:
        await third.installer.fetch(packages)
    assert caught.value.code == "package_changed"
    assert third.left() == []


async def test_a_yanked_version_is_not_chosen(index, made):
    index.add(wheel("shop"), wheel("shop", "2.0"))
    index.yanked.add("shop-2.0-py3-none-any.whl")
    assert (await made.resolve("shop")).pins == ("shop==1.0",)


async def test_an_index_that_is_down_or_broken_is_told_as_that(index, made):
    index.add(wheel("shop"))
    index.status = 503
    assert (await made.refused("shop")).code == "index_unreachable"
    index.status = 200
    assert (await made.get("shop"))[0].pins == ("shop==1.0",), "a failure is not kept"


async def test_there_being_no_index_is_told_as_that(made, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    assert (await made.refused("shop")).code == "index_unreachable"


async def test_an_index_that_is_silent_is_given_up_in_time(index, tmp_path):
    quick = Set(tmp_path / "state", timeout=2.0)
    index.add(wheel("shop"))
    over = threading.Event()
    index.before = lambda _: over.wait(60)
    try:
        assert (await quick.refused("shop")).code in {"packages_timeout", "index_unreachable"}
    finally:
        over.set()
    assert quick.left() == []


async def test_a_host_that_is_killed_while_it_fetches_leaves_nothing_half_written(index, made):
    index.add(wheel("shop"))
    packages = await made.resolve("shop")
    asked, over = threading.Event(), threading.Event()

    def before(path):
        if path.startswith("/files/"):
            asked.set()
            over.wait(60)

    index.before = before
    code = (
        "import anyio, json, sys\nfrom pathlib import Path\n"
        "from mcp_bridge.sandbox.packages.install_settings import InstallSettings\n"
        "from mcp_bridge.sandbox.packages.installer import Installer\n"
        "from mcp_bridge.sandbox.packages.package_set import PackageSet\n"
        "anyio.run(Installer(Path(sys.argv[1]), InstallSettings()).fetch, PackageSet.from_rows(json.loads(sys.argv[2])))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(made.state), json.dumps(packages.rows())])  # noqa: ASYNC220
    try:
        assert await anyio.to_thread.run_sync(asked.wait, 60)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
    finally:
        over.set()
    index.before = lambda _: None
    assert made.left(), "the killed one has left its work"
    assert not made.installer.cache.has(packages.packages[0])
    # Its uv may still be ending.
    deadline = time.monotonic() + 60
    while made.left() and time.monotonic() < deadline:
        await made.installer.fetch(packages)
        await anyio.sleep(0.1)
    assert made.left() == []
    assert made.installer.cache.has(packages.packages[0])


async def test_the_cache_is_bounded_and_what_was_used_longest_ago_goes_first(index, tmp_path):
    small = Set(tmp_path / "state", cache_size=1_500_000)
    for number, name in enumerate(("first", "second", "third")):
        index.add(wheel(name, files={f"{name}.py": os.urandom(300_000).hex()}))
        packages, _ = await small.get(name)
        os.utime(small.installer.cache.folder(packages.packages[0]), (1000 + number,) * 2)
    await small.resolve("third")
    there = [files.name for _, files in small.installer.cache.modules()]
    assert sorted(there) == ["second", "third"]


async def test_what_the_sandbox_has_decides_what_comes_along(index, made):
    index.add(wheel("shop", requires=["till"]), wheel("till", "1.0"), wheel("till", "2.0"))
    assert (await made.resolve("shop", there=("till==1.0",))).pins == ("shop==1.0", "till==1.0")
    assert (await made.resolve("till==2.0", there=("till==1.0",))).pins == ("till==2.0",)
    assert (await made.resolve("till", there=("till==1.0",))).pins == ("till==1.0",)
    assert (await made.refused("till==2.0", there=("till==1.0",), replaces=False)).code == "package_unresolved"


async def test_without_uv_the_operator_is_told_what_to_install(index, made, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert (await made.refused("shop")).code == "packages_unavailable"


async def test_a_stranger_cannot_choose_the_index_by_the_folder_that_the_bridge_is_in(
    index, made, tmp_path, monkeypatch
):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("uv.toml", "pyproject.toml"):
        table = "[[index]]" if name == "uv.toml" else "[[tool.uv.index]]"
        (folder / name).write_text(f'{table}\nurl = "http://127.0.0.1:9/simple"\ndefault = true\n')
    monkeypatch.chdir(folder)
    inside = Set(folder / "state")
    index.add(wheel("shop"))
    assert (await inside.get("shop"))[0].pins == ("shop==1.0",)


async def test_the_disk_is_waited_for_a_few_times_for_a_set_and_before_any_wheel_counts_as_there(
    index, made, monkeypatch
):
    names = [f"part{number}" for number in range(12)]
    index.add(*(wheel(name) for name in names))
    sync, synced = os.sync, []

    def slow_sync():
        # What counts as there now was written before an earlier one began.
        there = len([*(made.state / "packages/wheels").glob("[!.]*/manifest.json")])
        sync()
        time.sleep(1)
        synced.append(there)

    monkeypatch.setattr(os, "sync", slow_sync)
    packages, files = await made.get(*names)
    assert [one.name for one in files] == [one.name for one in packages.packages]
    assert synced[0] == 0
    assert len(synced) < len(names) // 2, "one for each wheel"


async def test_a_set_ends_with_its_first_wheel_that_fails(index, made):
    index.add(*(wheel(f"part{number}") for number in range(20)), wheel("bad", files={"mcp_bridge.py": ""}))
    packages = await made.resolve("bad", *(f"part{number}" for number in range(20)))
    assert packages.packages[0].name == "bad"

    def slow(path):
        if "part" in path:
            time.sleep(1)

    index.before = slow
    index.asked.clear()
    with pytest.raises(BridgeError, match="the bridge's own name"):
        await made.installer.fetch(packages)
    assert not made.left()
    assert len(set(index.downloads())) < 20


def test_a_package_that_is_replaced_cannot_name_files_outside_of_its_folder_as_its_own(tmp_path):
    """What was installed before is removed by its own list of files."""
    outside, site, tree = tmp_path / "outside.txt", tmp_path / "image/site", tmp_path / "tree"
    beside, old = tmp_path / "image/beside.txt", site / "shop.py"
    info = site / "shop-1.0.dist-info"
    info.mkdir(parents=True)
    (tree / "shop").mkdir(parents=True)
    for path in (outside, beside, old, tree / "shop/__init__.py"):
        path.write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    listed = ("shop.py", str(outside), "../beside.txt", "shop-1.0.dist-info/METADATA")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in listed))
    overlay_packages(site, tree, "shop")
    assert not old.exists()
    assert outside.exists()
    assert beside.exists()
    assert (site / "shop/__init__.py").exists()


async def test_what_requests_stand_for_is_kept_of_a_bounded_number(index, made, monkeypatch):
    """A script can vary what it says that it has, and each variation is another request."""
    monkeypatch.setattr("mcp_bridge.sandbox.packages.cache.MAX_RESOLVED", 3)
    index.add(wheel("shop"))
    for number in range(6):
        await made.resolve("shop", there=(f"other=={number}",))
    assert len([*(made.state / "packages/resolved").iterdir()]) == 3
