"""The sandbox's image: built for real, run under the sandbox's own flags. Fails where there is no podman."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import anyio
import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image import image, package_profiles, rootfs, store
from mcp_bridge.sandbox.image.elf import read_elf
from mcp_bridge.sandbox.image.host_tools import run_tool
from mcp_bridge.sandbox.image.image import (
    ImageRequest,
    build_image,
    ensure_image,
    image_reference,
    inspect_image,
)
from mcp_bridge.sandbox.image.store import ENVIRONMENT, EngineImages

# Builds look at every image there is: one after the other, with the other tests that build.
pytestmark = pytest.mark.xdist_group("images")

ENGINE = "podman"
IMAGES = EngineImages(ENGINE)
# crun refuses hybrid cgroups, which many a test machine has.
RUNTIME = ["--runtime", "runc"] if shutil.which("runc") else []
ROOT = Path(__file__).resolve().parents[2]
PYTHON = ["python3", "-I", "-S", "-E"]
TMPFS = "rw,noexec,nosuid,nodev,mode=1777,size="


def run(reference: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code under the flags of the sandbox."""
    argv = [ENGINE, *RUNTIME, "run", "--rm", "--interactive", "--pull", "never", "--network", "none"]
    argv += ["--read-only", "--read-only-tmpfs=false", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    argv += ["--user", "65534:65534", "--pids-limit", "128", "--memory", "512m", "--memory-swap", "512m"]
    argv += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--ulimit", "core=0:0", "--no-hosts"]
    argv += ["--hostname", "sandbox", "--tmpfs", f"/tmp:{TMPFS}64m", "--tmpfs", f"/workspace:{TMPFS}128m"]
    return subprocess.run(
        [*argv, reference, *PYTHON, "-"], input=code, capture_output=True, text=True, timeout=120, check=False
    )


def run_json(reference: str, code: str):
    done = run(reference, code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


async def images_of(request: ImageRequest) -> set[str]:
    """Ids of the images made for this request, named or not; what others build at the same time isn't among them."""
    recipe = image._recipe(request, rootfs.running_interpreter())
    return set(await IMAGES._ids(f"label={store.LABEL_RECIPE}={recipe}"))


def leftovers(state: Path) -> list[str]:
    return sorted(path.name for path in state.iterdir() if path.name != "image-build.lock")


@pytest.fixture
async def base(tmp_path):
    return await ensure_image(IMAGES, ImageRequest(), state_dir=tmp_path / "state")


@pytest.fixture
async def data(tmp_path):
    return await ensure_image(IMAGES, ImageRequest("data"), state_dir=tmp_path / "state")


# An image of its own name, so that no test touches the cached one.
@pytest.fixture
async def throwaway(monkeypatch):
    request = ImageRequest()
    monkeypatch.setattr(image, "_RECIPE_VERSION", f"test-{os.getpid()}")
    yield request
    await IMAGES.remove(image_reference(request))


# --- identity


def test_equal_requests_have_one_reference_and_other_requests_another():
    plain = image_reference(ImageRequest())
    assert re.fullmatch(r"localhost/mcp-code-bridge:base-[0-9a-f]{12}", plain)
    assert plain == image_reference(ImageRequest("base", ()))
    extras = image_reference(ImageRequest("base", ("Foo_Bar >= 1", "baz")))
    assert extras == image_reference(ImageRequest("base", ("baz", "foo-bar>=1")))
    assert len({plain, extras, image_reference(ImageRequest("data"))}) == 3


def test_an_upgraded_interpreter_asks_for_another_image(monkeypatch):
    before = image_reference(ImageRequest())
    found = rootfs.running_interpreter()
    monkeypatch.setattr(image, "running_interpreter", lambda: _with_version(found, "3.99.0"))
    assert image_reference(ImageRequest()) != before


def _with_version(interpreter, version):
    values = {name: getattr(interpreter, name) for name in interpreter.__slots__}
    return rootfs.Interpreter(**{**values, "version": version})


def test_an_unknown_profile_is_refused_with_the_nearest_name():
    with pytest.raises(BridgeError) as caught:
        image_reference(ImageRequest("dat"))
    assert caught.value.code == "unknown_profile"
    assert caught.value.details["nearest"] == ["data"]


@pytest.mark.parametrize(
    "package",
    [
        "--index-url=x",
        "-r other.txt",
        "./local",
        "a @ file:///etc/passwd",
        "git+ssh://h/r",
        "a b",
        "",
        "a; b",
        "a\n-e .",
    ],
)
def test_only_a_plain_requirement_is_handed_to_an_installer(package):
    with pytest.raises(BridgeError) as caught:
        package_profiles.normalise_requirements([package])
    assert caught.value.code == "packages_failed"


def test_every_pin_of_a_profile_is_exact_and_hashed_and_names_no_host():
    for name in package_profiles.profile_names():
        profile = package_profiles.load_profile(name)
        text = profile.path.read_text()
        requirements = re.findall(r"^[a-z0-9].*(?:\n    --hash=sha256:[0-9a-f]{64}.*)+", text, re.MULTILINE)
        assert len(requirements) == len(profile.pins) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE))
        assert "://" not in text
    assert {"numpy", "pandas", "scipy"} <= {pin.split("==")[0] for pin in package_profiles.load_profile("data").pins}


# --- the base image


async def test_the_standard_library_works_inside_under_the_sandbox_flags(base):
    modules = ["ssl", "sqlite3", "ctypes", "zlib", "lzma", "bz2", "hashlib", "uuid", "multiprocessing", "zoneinfo"]
    modules += ["decimal", "asyncio", "readline", "curses"]
    here = [name for name in modules if _imports(name)]
    assert {"ssl", "sqlite3", "ctypes", "asyncio"} <= set(here)
    seen = run_json(
        base.reference,
        f"""
import importlib, json, os, pwd, sys, threading, locale
for name in {here!r}:
    importlib.import_module(name)
import asyncio, ctypes, multiprocessing, sqlite3, ssl, subprocess, zoneinfo
ctypes.CFUNCTYPE(None)(lambda: None)()
process = multiprocessing.Process(target=os._exit, args=(7,)); process.start(); process.join()
print(json.dumps(dict(
    version=sys.version.split()[0], user=pwd.getpwuid(os.getuid()).pw_name, cwd=os.getcwd(),
    locale=locale.setlocale(locale.LC_ALL, ""), utf8=sys.getfilesystemencoding(),
    zone=zoneinfo.ZoneInfo("Asia/Tokyo").utcoffset(None) is None,
    query=sqlite3.connect(":memory:").execute("select 6*7").fetchone()[0],
    awaited=asyncio.run(asyncio.to_thread(lambda: 3)), forked=process.exitcode,
    child=subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True).stdout,
    environment={{name: os.environ.get(name) for name in {list(ENVIRONMENT)!r}}},
    path=sys.path[-2:],
)))
""",
    )
    assert seen["version"] == base.python == sys.version.split()[0]
    assert (seen["user"], seen["cwd"], seen["locale"], seen["utf8"]) == ("nobody", "/workspace", "C.UTF-8", "utf-8")
    assert (seen["query"], seen["awaited"], seen["forked"], seen["child"]) == (42, 3, 7, "1\n")
    assert seen["environment"] == ENVIRONMENT
    assert all(path.startswith("/usr/local/") for path in seen["path"])


def _imports(name: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0


async def test_nothing_of_the_host_but_python_is_inside_and_nothing_is_set_id_or_writable(base):
    seen = run_json(
        base.reference,
        """
import json, os, shutil, importlib.util
files, bad, writable = [], [], []
for top, names, found in os.walk("/"):
    if top == "/":
        names[:] = [name for name in names if name not in {"proc", "sys", "dev"}]
    if os.access(top, os.W_OK):
        writable.append(top)
    for name in found:
        path = os.path.join(top, name)
        status = os.lstat(path)
        files.append(path)
        if status.st_mode & 0o6000 or status.st_uid:
            bad.append(path)
print(json.dumps(dict(files=files, bad=bad, writable=writable, shell=shutil.which("sh"),
    absent=[name for name in ("pip", "tkinter", "idlelib", "ensurepip", "test", "sitecustomize")
            if importlib.util.find_spec(name)])))
""",
    )
    assert seen["bad"] == []
    assert seen["shell"] is None
    assert seen["absent"] == []
    assert sorted(seen["writable"]) == ["/tmp", "/workspace"]
    allowed = re.compile(
        r"/usr/local/bin/python|/usr/local/lib(64)?/python3|/(usr/)?lib(64|32)?/([a-z0-9_-]+/)?(lib[^/]+|ld-[^/]+)\.so"
        r"|/usr/share/zoneinfo/|/usr/lib/locale/C\."
        r"|/etc/(passwd|group|nsswitch\.conf|hostname|mtab|hosts|resolv\.conf)$|/run/\.containerenv$"
    )
    assert [path for path in seen["files"] if not allowed.match(path)] == []


async def test_every_module_inside_has_bytecode_that_is_never_checked_against_its_source(base):
    seen = run_json(
        base.reference,
        """
import importlib.util, json, os
library = os.path.dirname(os.__file__)
bare, checked = [], []
for top, _, files in os.walk(library):
    for name in files:
        if name.endswith(".py"):
            source = os.path.join(top, name)
            try:
                header = open(importlib.util.cache_from_source(source), "rb").read(16)
            except FileNotFoundError:
                bare.append(source); continue
            if header[:8] != importlib.util.MAGIC_NUMBER + bytes([1, 0, 0, 0]):
                checked.append(source)
print(json.dumps([[name for name in bare if "lib2to3" not in name], checked]))
""",
    )
    assert seen == [[], []]


async def test_a_present_image_is_used_and_says_what_it_is(base, tmp_path):
    told: list[str] = []
    again = await ensure_image(IMAGES, ImageRequest(), progress=told.append, state_dir=tmp_path / "unused")
    assert again == base
    assert told == []
    assert not (tmp_path / "unused").exists()
    assert base.reference == image_reference(ImageRequest())
    assert (base.profile, base.packages) == ("base", ())
    assert base.magic == rootfs.running_interpreter().magic
    assert base in await IMAGES.images()
    assert (await inspect_image(IMAGES, base.id)).id == base.id


async def test_a_configured_image_that_is_absent_is_an_error_and_never_pulled():
    with pytest.raises(BridgeError) as caught:
        await ensure_image(IMAGES, ImageRequest(), configured="localhost/no-such-image:1")
    assert caught.value.code == "image_missing"
    assert caught.value.hint is not None


async def test_a_missing_engine_is_no_runtime():
    with pytest.raises(BridgeError) as caught:
        await inspect_image(EngineImages("no-such-engine"), "x")
    assert caught.value.code == "no_runtime"


# --- building


async def test_a_forced_build_replaces_the_image_and_leaves_no_nameless_one(throwaway, tmp_path):
    first = await build_image(IMAGES, throwaway, state_dir=tmp_path)
    second = await build_image(IMAGES, throwaway, state_dir=tmp_path)
    assert first.reference == second.reference
    assert await images_of(throwaway) == {_full(second.id)}
    assert leftovers(tmp_path) == []


def _full(image_id: str) -> str:
    return image_id if image_id.startswith("sha256:") else f"sha256:{image_id}"


async def test_two_processes_that_ask_at_once_build_once(throwaway, tmp_path):
    told: list[str] = []
    found = []

    async def ask():
        found.append(await ensure_image(IMAGES, throwaway, progress=told.append, state_dir=tmp_path))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        group.start_soon(ask)
    assert found[0] == found[1]
    assert sum(text.startswith("Building") for text in told) == 1
    assert any(text.startswith("Waiting") for text in told)


async def test_the_root_file_system_is_the_same_bytes_twice(tmp_path):
    interpreter = rootfs.running_interpreter()
    site = tmp_path / "site"
    (site / "pkg" / "tests" / "data").mkdir(parents=True)
    for name in ("pkg/__init__.py", "pkg/tests/__init__.py", "pkg/tests/test_a.py", "pkg/tests/data/x.csv"):
        (site / name).write_text("answer = 42\n")
    (site / "outside").symlink_to("/etc/hostname")
    (site / "pkg" / "secret.txt").write_text("x")
    (site / "pkg" / "secret.txt").chmod(0o4777)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        await rootfs.write_root(tmp_path / f"{name}.tar", interpreter, work=tmp_path / name, site=site)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as tar:
        members = tar.getmembers()
    names = [member.name for member in members]
    assert names == sorted(names)
    assert {(member.uid, member.gid, member.mtime, member.mode & 0o6000) for member in members} == {
        (0, 0, 946684800, 0)
    }
    ours = {name.removeprefix("opt/site-packages/") for name in names if name.startswith("opt/site-packages/")}
    assert {"pkg/__init__.py", "pkg/tests/__init__.py", "pkg/secret.txt"} <= ours
    assert not ours & {"outside", "pkg/tests/test_a.py", "pkg/tests/data/x.csv"}
    assert any(name.startswith("pkg/__pycache__/__init__.") for name in ours)


@pytest.mark.parametrize("moment", ["begun", "written"])
async def test_a_cancelled_build_leaves_neither_image_nor_files(throwaway, tmp_path, monkeypatch, moment):
    scope = anyio.CancelScope()
    add = EngineImages.add

    async def cancelled_add(self, tar, reference, labels):
        assert tar.stat().st_size
        scope.cancel()
        await add(self, tar, reference, labels)

    def progress(said):
        if moment == "begun":
            scope.cancel()

    if moment == "written":
        monkeypatch.setattr(EngineImages, "add", cancelled_add)
    with scope:
        await build_image(IMAGES, throwaway, progress=progress, state_dir=tmp_path)
    assert scope.cancelled_caught
    assert leftovers(tmp_path) == []
    assert await images_of(throwaway) == set()


@pytest.mark.parametrize("seconds", [0.1, 0.4, 0.7])
async def test_a_build_cancelled_at_any_time_leaves_the_whole_image_or_nothing(throwaway, tmp_path, seconds):
    with anyio.move_on_after(seconds) as scope:
        await build_image(IMAGES, throwaway, state_dir=tmp_path)
    assert leftovers(tmp_path) == []
    found = await images_of(throwaway)
    assert found or scope.cancelled_caught
    # A quick machine has it by then; what is there has its name.
    assert found == {f"sha256:{image.id}" for image in await IMAGES.inspect([image_reference(throwaway)])}


async def test_a_build_cancelled_while_the_engine_imports_ends_the_engine(tmp_path):
    engine = tmp_path / "podman"
    # The descriptor that the sleeper holds reads end-of-file when it is dead, and no sooner.
    engine.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *import*) exec 9>{tmp_path}/alive; echo started >&9; sleep 60;; esac\n'
        'echo "no such image" >&2\nexit 1\n'
    )
    engine.chmod(0o755)
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(
                lambda: ensure_image(EngineImages(str(engine)), ImageRequest(), state_dir=tmp_path / "state")
            )
            with anyio.fail_after(20):
                await anyio.wait_readable(reader)
            assert os.read(reader, 100) == b"started\n"
            group.cancel_scope.cancel()
        with anyio.fail_after(5):
            await anyio.wait_readable(reader)
        assert os.read(reader, 100) == b""
        assert leftovers(tmp_path / "state") == []
    finally:
        os.close(reader)


async def test_what_a_killed_build_left_is_swept_by_the_next(throwaway, tmp_path):
    script = (
        "import sys, anyio; from pathlib import Path; from mcp_bridge.sandbox.image import build_dir\n"
        "async def main():\n"
        "    async with build_dir.build_directory(Path(sys.argv[1]), print) as work:\n"
        "        (work / 'half.tar').write_bytes(b'x'); print('ready', flush=True); await anyio.sleep(60)\n"
        "anyio.run(main)\n"
    )
    async with await anyio.open_process([sys.executable, "-c", script, str(tmp_path)]) as process:
        assert process.stdout is not None
        assert (await process.stdout.receive()).startswith(b"ready")
        process.send_signal(signal.SIGKILL)
    assert len(leftovers(tmp_path)) == 1
    await ensure_image(IMAGES, throwaway, state_dir=tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("complaint", "code"), [("no space left on device", "disk_full"), ("storage is broken", "image_build_failed")]
)
async def test_an_engine_that_refuses_the_import_is_reported_in_its_own_words(tmp_path, complaint, code):
    engine = tmp_path / "podman"
    engine.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *import*) echo "Error: {complaint}" >&2;; *) echo "no such image" >&2;; esac\n'
        "exit 125\n"
    )
    engine.chmod(0o755)
    with pytest.raises(BridgeError) as caught:
        await ensure_image(EngineImages(str(engine)), ImageRequest(), state_dir=tmp_path / "state")
    assert caught.value.code == code
    assert code != "disk_full" or re.search(r"whose archive has [1-9]\d+ MB", caught.value.message)
    assert leftovers(tmp_path / "state") == []


async def test_a_listing_that_breaks_off_over_an_image_just_removed_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LISTING_DELAYS", (0.01, 0.01))
    gone = 'Error: reading image "da49": locating image with ID "da49": image not known'
    engine = tmp_path / "podman"
    engine.write_text(
        "#!/bin/sh\n"
        f'if [ $(wc -l < "{tmp_path}/tries") -lt 2 ]; then echo x >> "{tmp_path}/tries"; echo \'{gone}\' >&2; exit 125; fi\n'
        f'exec {shutil.which(ENGINE)} "$@"\n'
    )
    engine.chmod(0o755)
    tries = tmp_path / "tries"
    tries.write_text("")
    assert isinstance(await EngineImages(str(engine)).images(), list)
    assert tries.read_text() == "x\nx\n"
    tries.write_text("")
    monkeypatch.setattr(store, "LISTING_DELAYS", (0.01,))
    with pytest.raises(BridgeError, match="image not known"):
        await EngineImages(str(engine)).images()


async def test_a_build_does_not_fail_over_what_it_would_tidy_up(throwaway, tmp_path):
    engine = tmp_path / "podman"
    engine.write_text(
        "#!/bin/sh\n"
        'case "$*" in *"images --quiet"*) echo "Error: storage is busy" >&2; exit 125;; esac\n'
        f'exec {shutil.which(ENGINE)} "$@"\n'
    )
    engine.chmod(0o755)
    built = await ensure_image(EngineImages(str(engine)), throwaway, state_dir=tmp_path / "state")
    assert (await inspect_image(IMAGES, built.reference)).id == built.id


def imported(folder: Path, recipe: str, text: str) -> str:
    """The id of an image that has no name yet."""
    (folder / text).write_text(text)
    subprocess.run(["tar", "--create", "--file", folder / "root.tar", "--directory", folder, text], check=True)
    label = f"LABEL {store.LABEL_RECIPE}={recipe}"
    command = [ENGINE, "import", "--quiet", "--change", label, folder / "root.tar"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().removeprefix("sha256:")


async def test_an_image_that_another_build_is_about_to_name_is_not_taken_for_one_that_was_replaced(
    tmp_path, monkeypatch
):
    recipe = secrets.token_hex(8)
    name = f"localhost/mcp-bridge-test-{recipe}:1"
    replaced, named = imported(tmp_path, recipe, "replaced"), imported(tmp_path, recipe, "named")
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        await anyio.run_process([ENGINE, "tag", named, name])

    try:
        with monkeypatch.context() as patch:
            patch.setattr(store.anyio, "sleep", sleep)
            await IMAGES.remove_replaced(recipe)
        assert waits == [store.NAMING_SECONDS]
        assert [one.id.removeprefix("sha256:") for one in await IMAGES.inspect([name])] == [named]
        assert await IMAGES.inspect([replaced]) == []
    finally:
        await anyio.run_process([ENGINE, "image", "rm", "--force", named, replaced], check=False)


async def test_a_package_that_does_not_exist_is_reported_with_the_installers_words(tmp_path):
    request = ImageRequest("base", ("tabulate==0.0.999",))
    with pytest.raises(BridgeError) as caught:
        await ensure_image(IMAGES, request, state_dir=tmp_path)
    assert caught.value.code == "packages_failed"
    assert "tabulate" in caught.value.details["output"]
    assert leftovers(tmp_path) == []
    assert await images_of(request) == set()


async def test_an_extra_package_is_installed_where_the_guest_finds_it(tmp_path):
    request = ImageRequest("base", ("tabulate",))
    try:
        built = await ensure_image(IMAGES, request, state_dir=tmp_path)
        assert [name.split("==")[0] for name in built.packages] == ["tabulate"]
        code = (
            f"import sys; sys.path.append({rootfs.SITE_PACKAGES!r}); import tabulate; print(tabulate.tabulate([[42]]))"
        )
        assert "42" in run(built.reference, code).stdout
        assert run(built.reference, "import tabulate").returncode == 1
    finally:
        await IMAGES.remove(image_reference(request))


async def test_an_interpreter_elsewhere_without_bytecode_makes_a_working_image(tmp_path):
    """As a relocatable build is unpacked: another prefix, nothing compiled."""
    here = rootfs.running_interpreter()
    prefix = tmp_path / "unpacked"
    stdlib = prefix / sys.platlibdir / here.stdlib.name
    skipped = shutil.ignore_patterns("__pycache__", "site-packages", "dist-packages", "test", "config-*")
    shutil.copytree(here.stdlib, stdlib, ignore=skipped, symlinks=True)
    if not stdlib.joinpath("lib-dynload").is_dir():
        shutil.copytree(here.modules, stdlib / "lib-dynload")
    (prefix / "bin").mkdir()
    python = shutil.copy(here.executable, prefix / "bin" / "python3")
    script = (
        "import sys, json, anyio; from pathlib import Path; from mcp_bridge.sandbox.image.image import *\n"
        "from mcp_bridge.sandbox.image.store import EngineImages\n"
        "print(anyio.run(lambda: ensure_image(EngineImages('podman'), ImageRequest(), state_dir=Path(sys.argv[1]))).reference)"
    )
    path = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    done = await run_tool(
        [python, "-c", script, str(tmp_path / "state")],
        seconds=120,
        environment={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    reference = done.stdout.strip()
    try:
        assert reference != image_reference(ImageRequest())
        code = "import json, os, ssl, asyncio; print(json.dumps([json.__cached__, os.path.exists(json.__cached__)]))"
        cached, there = run_json(reference, code)
        assert cached.startswith("/usr/local/")
        assert there
        assert list(prefix.rglob("__pycache__")) == []
    finally:
        await IMAGES.remove(reference)


def test_a_file_that_is_no_elf_file_is_told_from_one(tmp_path):
    path = tmp_path / "x"
    for content in (b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 200):
        path.write_bytes(content)
        assert read_elf(path) is None
    elf = read_elf(rootfs.running_interpreter().executable)
    assert elf is not None
    assert elf.needed


# --- the data profile


@pytest.mark.timeout(400)
async def test_the_data_profile_computes_and_draws_within_the_sandbox_limits(data):
    seen = run_json(
        data.reference,
        f"""
import sys; sys.path.append({rootfs.SITE_PACKAGES!r})
import json, resource
import numpy as np, pandas as pd, scipy.optimize, sklearn.ensemble, sklearn.linear_model, PIL.Image
import matplotlib.pyplot as plt
groups = pd.DataFrame({{"k": ["a", "b", "a"], "v": [1.0, 2.0, 5.0]}}).groupby("k").v.mean().to_dict()
root = scipy.optimize.brentq(lambda x: x * x - 2, 0, 2)
x = np.arange(40.0).reshape(20, 2); y = x @ [2.0, 3.0]
score = sklearn.linear_model.LinearRegression().fit(x, y).score(x, y)
sklearn.ensemble.RandomForestRegressor(5, n_jobs=2).fit(x, y)
plt.plot([1, 2, 3]); plt.title("t"); plt.savefig("/tmp/figure.png")
pd.DataFrame(groups, index=[0]).to_excel("/tmp/sheet.xlsx", index=False)
png = open("/tmp/figure.png", "rb").read(8).hex()
print(json.dumps(dict(groups=groups, root=round(root, 6), score=round(score, 6), png=png,
    size=PIL.Image.open("/tmp/figure.png").size, excel=pd.read_excel("/tmp/sheet.xlsx").to_dict("records"),
    zone=str(pd.Timestamp("2026-01-01", tz="Europe/Berlin").utcoffset()))))
""",
    )
    assert seen["groups"] == {"a": 3.0, "b": 2.0}
    assert (seen["root"], seen["score"]) == (1.414214, 1.0)
    assert bytes.fromhex(seen["png"]) == b"\x89PNG\r\n\x1a\n"
    assert seen["size"] == [640, 480]
    assert seen["excel"] == [{"a": 3, "b": 2}]
    assert seen["zone"] == "1:00:00"
    assert any(name.startswith("pandas==") for name in data.packages)


# --- the Containerfile


def test_the_containerfile_agrees_with_what_the_host_builds():
    text = (package_profiles.image_directory() / "Containerfile").read_text()
    instructions = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    final = instructions[instructions.index("FROM scratch") :]
    declared = re.search(r"^ENV (.*)$", final, re.MULTILINE)
    assert declared is not None
    assert dict(item.split("=", 1) for item in declared[1].split()) == ENVIRONMENT
    for label in (store.LABEL_PROFILE, store.LABEL_RECIPE, store.LABEL_PYTHON):
        assert f"{label}=" in final
    assert "USER 65534:65534" in final
    assert "WORKDIR /workspace" in final
    assert f'CMD ["{rootfs.PYTHON}"]' in final
    assert f"--target {rootfs.SITE_PACKAGES}" in instructions
    assert "chmod 1777 /tmp /workspace" in instructions
    assert "pip uninstall" in instructions
