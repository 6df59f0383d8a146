"""Packages that scripts ask for, in real sandboxes: in the call, and while they run; kept the same when they run again."""

import json
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from dry_run_fixtures import ALLOWS, shop  # noqa: F401  (a fixture)
from execution_fixtures import lines, printed, until
from package_index import wheel
from packaging.tags import Tag, cpython_tags, platform_tags

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.lifecycle import new_execution
from mcp_bridge.executions.sessions.cell import Cell, is_same_packages
from mcp_bridge.governance.principals import Principal
from mcp_bridge.guest.advice import packages as guest_packages
from mcp_bridge.host.packages.missing_modules import OF_MCP
from mcp_bridge.ledger.log.payloads import ScriptStart, understood
from mcp_bridge.sandbox.image.store import LABEL_SET
from mcp_bridge.sandbox.open_driver import open_images
from mcp_bridge.sandbox.packages import package_set
from mcp_bridge.sandbox.packages.install_settings import InstallSettings
from mcp_bridge.sandbox.packages.package_set import LockedPackage, PackageSet

pytestmark = [pytest.mark.xdist_group("images"), pytest.mark.timeout(300)]

SHOP = {
    "shop/__init__.py": "from importlib.resources import files\ntext = files(__name__).joinpath('data.txt').read_text()\n",
    "shop/data.txt": "of the shop",
}


@asynccontextmanager
async def opened(sandboxes, *allow, pooled=False, **limits):
    settings = InstallSettings(allow=allow or ("shop", "till"), **limits)
    async with sandboxes.open(install=settings, pooled=pooled) as bridge:
        yield bridge


async def remove_images(prepared, state_dir):
    """Remove the images of package sets."""
    store = open_images(prepared.report.choice, state_dir)
    for image in await store.images():
        if LABEL_SET in image.labels:
            prepared.engine.release_image(image.reference)
            await store.remove(image.reference)


@pytest.fixture(scope="module", autouse=True)
def no_images_left(prepared, sandbox_state_dir):
    """Images of package sets are removed at the end: until then, tests that ask for the same wheels share one.

    What is about the making of an image has a wheel of its own, or removes the images first.
    """
    yield
    anyio.run(remove_images, prepared, sandbox_state_dir)


async def refused(bridge, code="1", **options):
    with pytest.raises(BridgeError) as caught:
        await bridge.run(code, **options)
    return caught.value


async def test_images_of_sets_are_labelled_and_the_oldest_go_when_there_are_too_many(index, sandboxes):
    store = open_images(sandboxes.prepared.report.choice, sandboxes.settings.state_dir)
    await remove_images(sandboxes.prepared, sandboxes.settings.state_dir)
    index.add(wheel("shop"), wheel("shop", "2.0"), wheel("shop", "3.0"))
    async with opened(sandboxes) as bridge:
        await bridge.run("import shop", packages=["shop==1.0"])
    images = {image.labels[LABEL_SET]: image for image in await store.images() if LABEL_SET in image.labels}
    [size] = {image.size for image in images.values() if "shop==1.0" in image.packages}
    async with opened(sandboxes, cache_size=int(size * 2.5)) as bridge:
        for version in ("2.0", "3.0"):
            await bridge.run("import shop", packages=[f"shop=={version}"])
    left = [image.packages for image in await store.images() if LABEL_SET in image.labels]
    assert sorted(pins for pins in left if any(pin.startswith("shop") for pin in pins)) == [
        ("shop==2.0",),
        ("shop==3.0",),
    ]


async def test_a_call_has_its_packages_read_only_and_others_have_not(index, sandboxes):
    index.add(wheel("shop", files=SHOP, requires=["till"]), wheel("till"))
    told = []
    async with opened(sandboxes) as bridge:
        record = await bridge.run(
            "import shop, till, errno\nprint(shop.text, till.version, shop.__file__)\n"
            "try: open(shop.__file__, 'a')\nexcept OSError as exc: print(errno.errorcode[exc.errno])",
            packages=["Shop"],
            notify=told.append,
        )
        assert lines(record) in [
            ["of the shop 1.0 /opt/site-packages/shop/__init__.py", why] for why in ("EROFS", "EACCES")
        ]
        assert any("Building" in one for one in told)
        told.clear()
        before = len(index.asked)
        assert printed(await bridge.run("import till; print(till.version)", packages=["shop"], notify=told.append))
        assert told == [], "its image is made once"
        assert len(index.asked) == before
        assert (await bridge.run("import shop")).error["type"] == "ModuleNotFoundError"


async def test_what_a_call_was_given_is_recorded_and_a_run_that_goes_on_has_the_same(index, sandboxes):
    index.add(wheel("shop"))
    async with opened(sandboxes, fresh=0) as bridge:
        record = await bridge.run("import shop; print(shop.version)", packages=["shop"], key="k")
        assert lines(record) == ["1.0"]
        entries = await bridge.lifecycle.recorder.read(record.execution)
        [began] = [said for row in entries if isinstance(said := understood(row), ScriptStart)]
        recorded = PackageSet.from_rows(began.packages)
        assert recorded.pins == ("shop==1.0",)
        index.add(wheel("shop", "2.0"))
        assert lines(await bridge.run("import shop; print(shop.version)", packages=["shop"], key="k")) == ["1.0"]
        assert lines(await bridge.run("import shop; print(shop.version)", packages=["shop"])) == ["2.0"]
        stored = await bridge.lifecycle.stored(record.execution, "local")
        assert (await bridge.replay_execution(stored)).difference is None
        assert (await refused(bridge, "import shop; print(shop.version)", key="k")).code == "key_conflict"


async def test_a_session_has_the_packages_of_its_first_cell_also_when_it_is_rebuilt_or_forked(index, sandboxes):
    index.add(wheel("shop"), wheel("till"))
    async with opened(sandboxes, fresh=0) as bridge:
        await bridge.run("import shop; x = shop.version", session="s", packages=["shop"])
        index.add(wheel("shop", "2.0"))
        assert (await bridge.run("x", session="s", packages=["shop"])).value == "'1.0'"
        error = await refused(bridge, session="s", packages=["till"])
        assert error.code == "session_packages"
        bridge.end_sessions()
        again = await bridge.run("import shop; shop.version, x", session="s")
        assert (again.value, again.session["rebuilt"]) == ("('1.0', '1.0')", 2)
        forked = await bridge.run("import shop; shop.version, x", session="f", fork="s@1")
        assert forked.value == "('1.0', '1.0')"
        assert (await refused(bridge, session="f", packages=["shop==2.0"])).code == "session_packages"


NATIVE = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def with_other_python(monkeypatch, *platforms):
    """Have this Python for another one, from which on recorded packages are compared with that one's tags."""
    found = frozenset(cpython_tags((3, 99), ["cp399"], platforms or None)) | {Tag("py3", "none", "any")}
    monkeypatch.setattr(package_set, "tags_here", lambda: found)


@pytest.fixture
def compiled(index):
    index.add(wheel("shop", tag=f"{NATIVE}-{NATIVE}-{next(platform_tags())}"), wheel("till"))


WAITS = "import {0}\nfound = await runtime.wait_event('paid')\nprint({0}.version, found)"


async def test_a_run_with_compiled_packages_waits_on_until_the_bridge_has_its_python_again(
    compiled, sandboxes, monkeypatch
):
    async with opened(sandboxes) as bridge:
        [first, pure] = [
            await bridge.run(WAITS.format(name), packages=[name], key=name, timeout=30) for name in ("shop", "till")
        ]
        assert (first.status, pure.status) == ("suspended", "suspended")
        for record in (first, pure):
            await bridge.send_event(record.execution, "paid", 1, "tests", and_resume=False)
        before = await bridge.lifecycle.recorder.read(first.execution)
        with monkeypatch.context() as patched:
            with_other_python(patched)
            for go_on in (
                lambda: bridge.resume_execution(first.execution),
                lambda: bridge.run(WAITS.format("shop"), packages=["shop"], key="shop"),
            ):
                with pytest.raises(BridgeError, match=r"for Python 3\.\d+; this bridge has") as caught:
                    await go_on()
                assert caught.value.code == "packages_incompatible"
            stored = await bridge.lifecycle.stored(first.execution, "local")
            assert stored.status == "suspended"
            assert await bridge.lifecycle.recorder.read(first.execution) == before
            assert (await bridge.resume_execution(pure.execution))["stdout"] == "1.0 1\n", "it has no compiled modules"
        assert (await bridge.resume_execution(first.execution))["stdout"] == "1.0 1\n"


async def test_a_replay_and_a_session_say_that_they_need_the_python_of_their_packages(compiled, sandboxes, monkeypatch):
    async with opened(sandboxes) as bridge:
        alone = await bridge.run("import shop", packages=["shop"])
        await bridge.run("import shop; x = shop.version", session="s", packages=["shop"])
        bridge.end_sessions()
        stored = await bridge.lifecycle.stored(alone.execution, "local")
        with monkeypatch.context() as patched:
            with_other_python(patched)
            with pytest.raises(BridgeError) as caught:
                await bridge.replay_execution(stored)
            assert caught.value.code == "packages_incompatible"
            assert (await refused(bridge, "x", session="s")).code == "packages_incompatible"
            assert (await refused(bridge, "x", session="f", fork="s")).code == "packages_incompatible"
        assert (await bridge.replay_execution(stored)).difference is None
        again = await bridge.run("x", session="s")
        assert (again.value, again.session["cell"]) == ("'1.0'", 2), "the cell that was refused has never been"


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ([f"{NATIVE}-{NATIVE}-{{}}"], None),
        (["cp39-abi3-{}", "py2.py3-none-any", "py3-none-{}"], None),
        (["cp39-cp39-{}"], "for Python 3.9; this bridge has"),
        (["cp312-cp312-{}", "cp396-abi3-{}"], "for Python 3.96; this bridge has"),
        (["cp311-abi3-manylinux_2_17_other"], "for another kind of machine than this one: p0-1-cp311"),
    ],
)
def test_recorded_packages_fit_by_their_tags(tags, said):
    files = [f"p{number}-1-{tag.format(next(platform_tags()))}.whl" for number, tag in enumerate(tags)]
    packages = PackageSet.of(LockedPackage(file.partition("-")[0], "1", file, "0" * 64) for file in files)
    if said is None:
        packages.require_fit()
        return
    with pytest.raises(BridgeError) as caught:
        packages.require_fit()
    assert (caught.value.code, said in caught.value.message) == ("packages_incompatible", True), caught.value.message


async def test_a_running_script_adds_packages_once_and_a_session_keeps_them_when_it_is_rebuilt(index, sandboxes):
    index.add(wheel("shop", files=SHOP, requires=["till"]), wheel("till"))
    async with opened(sandboxes, fresh=0) as bridge:
        first = await bridge.run(
            "print(list(await runtime.install('shop')))\nimport shop, till\nprint(shop.text)", session="s"
        )
        assert lines(first) == ["['shop==1.0', 'till==1.0']", "of the shop"]
        assert (await bridge.run("list(await runtime.install('till', 'shop'))", session="s")).value == "[]"
        index.add(wheel("shop", "2.0"), wheel("till", "2.0"))
        bridge.end_sessions()
        again = await bridge.run("import importlib; till.version, shop.text", session="s")
        assert (again.value, again.session["rebuilt"]) == ("('1.0', 'of the shop')", 2), again.error


async def test_a_rebuilding_fetches_what_the_cache_has_lost(index, sandboxes):
    index.add(wheel("shop"))
    async with opened(sandboxes, fresh=0) as bridge:
        await bridge.run("await runtime.install('shop')\nimport shop", session="s")
        bridge.end_sessions()
        index.add(wheel("shop", "2.0"))
        import shutil

        shutil.rmtree(sandboxes.settings.state_dir / "packages")
        assert (await bridge.run("shop.version", session="s")).value == "'1.0'"


INSTALL = """
from mcp import MCPError
for asked in {asked!r}:
    try:
        print(list(await runtime.install(asked)))
    except MCPError as exc:
        print(exc.code)
"""


async def test_what_a_running_script_may_not_have_is_refused_by_the_host(index, sandboxes):
    index.add(wheel("shop"), wheel("other"), wheel("till", tag="cp311-cp311-linux_x86_64"))
    index.add(wheel("mixed", files={"mixed.py": "", "mixed_c.so": b"\x7fELF"}))
    asked = [
        "other",
        "-r /etc/passwd",
        "shop @ file:///etc",
        "shop\n--index-url=x",
        "../shop",
        "mixed",
        "\u0445",
        "shop" * 99,
    ]
    async with opened(sandboxes, "shop", "till", "mixed") as bridge:
        found = lines(await bridge.run(INSTALL.format(asked=asked)))
        assert found == ["package_refused", *["bad_package"] * 4, "package_native", *["bad_package"] * 2]
        raw = (
            "from mcp_bridge.wire.messages import PackageInstall, PackageRead\n"
            "from mcp_bridge.guest.host_requests import MCPError\n"
            "ask = runtime.install_sync.__wrapped__.__self__._request\n"
            "for one in (PackageRead('0' * 64), PackageRead('../../x'), PackageInstall([1], []),\n"
            "            PackageInstall(['shop'], ['x'] * 5000), PackageInstall(['shop'], ['a @ http://x'])):\n"
            "    try:\n        print(ask(one))\n    except MCPError as exc:\n        print(exc.code)"
        )
        assert lines(await bridge.run(raw)) == ["bad_request", "bad_request", *["bad_package"] * 3]


async def test_a_package_that_is_too_large_for_a_running_sandbox_says_what_to_do(index, sandboxes):
    import os

    index.add(wheel("shop", files={"shop.py": "x = 1\n", "big.bin": os.urandom(3 << 20)}))
    async with opened(sandboxes) as bridge:
        bridge.settings.__dict__["tmp_size"] = 2 << 20
        record = await bridge.run(
            "from mcp import MCPError\ntry: await runtime.install('shop')\n"
            "except MCPError as exc: print(exc.code, \"packages=['shop==1.0']\" in str(exc))"
        )
        assert lines(record) == ["packages_too_large True"]


async def test_a_package_hides_nothing_of_pythons_or_the_bridges(index, sandboxes):
    files = dict.fromkeys(("json.py", "mcp.py", "asyncio.py", "shop.py", "runtime.py"), "raise SystemExit('hidden')\n")
    files["shop.py"] = "x = 1\n"
    index.add(wheel("shop", files=files))
    code = "{}import json, asyncio, shop, mcp\nfrom mcp import runtime\nprint(json.dumps([shop.x]), runtime.__name__)"
    async with opened(sandboxes) as bridge:
        assert lines(await bridge.run(code.format(""), packages=["shop"])) == ["[1] mcp.runtime"]
        assert lines(await bridge.run(code.format("await runtime.install('shop')\n"))) == ["[1] mcp.runtime"]


async def test_a_principal_may_ask_for_what_both_lists_have(index, sandboxes):
    index.add(wheel("shop"), wheel("till"))
    async with opened(sandboxes, "shop") as bridge:
        anna = bridge.for_principal(Principal("anna", packages=("till",)))
        for name in ("shop", "till"):
            assert (await refused(anna, packages=[name])).code == "package_refused"
        error = await refused(anna, packages=["shop"])
        assert error.hint == 'To allow it, the operator writes below [principals.anna]: packages = ["till", "shop"]'
        ben = bridge.for_principal(Principal("ben", packages=("shop==1.0",)))
        assert printed(await ben.run("import shop; print(1)", packages=["shop"]))
        assert lines(await ben.run(INSTALL.format(asked=["till", "shop"]))) == ["package_refused", "['shop==1.0']"]


async def test_the_pool_is_undisturbed_by_calls_with_packages(index, sandboxes):
    index.add(wheel("shop"))
    async with opened(sandboxes, pooled=True) as bridge:
        await bridge.run("1")
        figures = bridge.sandboxes.pool.figures
        before = replace(figures, ages=figures.ages.copy())
        await bridge.run("import shop", packages=["shop"])
        assert (figures.hits, figures.misses) == (before.hits, before.misses)


async def test_the_next_call_for_a_set_takes_a_container_that_waits(index, sandboxes):
    index.add(wheel("shop"), wheel("shop", "2.0"), wheel("till"))
    async with opened(sandboxes, pooled=True) as bridge:
        await bridge.run("import shop", packages=["shop==1.0"])
        _, pool = bridge.sandboxes.pools
        await until(lambda: pool.ready)
        assert printed(await bridge.run("import shop; print('there')", packages=["shop==1.0"])) == "there\n"
        assert (pool.figures.hits, pool.figures.misses) == (1, 1)
        await until(lambda: pool.ready)
        # A new set's image may need the place of that one, which is in use as long as a container waits on it.
        await bridge.run("import till", packages=["till"])
        assert pool.ended.is_set()
        assert pool.ready == 0
        assert printed(await bridge.run("import shop; print('again')", packages=["shop==1.0"])) == "again\n"
        # A call that is under way when the bridge ends begins no pool, which nobody would close.
        bridge.sandboxes.stop_pool()
        await bridge.run("import shop", packages=["shop==2.0"])
        assert all(pool._scope.cancel_called for pool in bridge.sandboxes.pools)


async def test_concurrent_calls_for_one_set_make_one_image(index, sandboxes):
    index.add(wheel("shop", "4.0"))
    told = []
    async with opened(sandboxes) as bridge, anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(
                lambda n=number: bridge.run(f"import shop; print({n})", packages=["shop"], notify=told.append)
            )
    assert sum("Building" in one for one in told) == 1
    assert sum(path == "/simple/shop/" for path in index.asked) == 2


async def test_an_image_that_was_removed_meanwhile_is_made_again(index, sandboxes):
    store = open_images(sandboxes.prepared.report.choice, sandboxes.settings.state_dir)
    index.add(wheel("shop"))
    async with opened(sandboxes) as bridge:
        await bridge.run("import shop", packages=["shop"])
    await remove_images(sandboxes.prepared, sandboxes.settings.state_dir)
    assert not any(LABEL_SET in image.labels for image in await store.images())
    async with opened(sandboxes) as bridge:
        assert lines(await bridge.run("import shop; print(shop.version)", packages=["shop"])) == ["1.0"]


async def test_the_operators_own_image_gets_nothing_added(index, sandboxes):
    index.add(wheel("shop"))
    async with sandboxes.open(
        install=InstallSettings(allow=("shop",)), image=sandboxes.prepared.image.reference
    ) as bridge:
        assert (await refused(bridge, packages=["shop"])).code == "packages_unavailable"
        assert lines(await bridge.run(INSTALL.format(asked=["shop"]))) == ["['shop==1.0']"]


async def test_a_module_that_is_not_there_is_told_with_who_has_it(index, sandboxes):
    index.add(wheel("till", files={"cash.py": "x = 1\n"}), wheel("shop", requires=["till"]))
    async with opened(sandboxes, "shop", "beautifulsoup4") as bridge:

        async def told(code):
            return [notice for notice in (await bridge.run(code)).notices if "operator's list" in notice]

        [notice] = await told("import bs4")
        assert "packages=['beautifulsoup4']" in notice
        assert "runtime.install('beautifulsoup4')" in notice
        notices = (await bridge.run("import bs4", starter="operator")).notices
        assert any("run it with --package beautifulsoup4, or" in notice for notice in notices)
        assert 'allow = ["shop", "beautifulsoup4", "polars"]' in (await told("from polars import x"))[0]
        assert 'profile = "data" brings pandas' in (await told("import pandas.core"))[0]
        assert 'allow = ["shop", "beautifulsoup4", "cash"]' in (await told("import cash"))[0]
        await bridge.run("await runtime.install('shop')")
        assert 'allow = ["shop", "beautifulsoup4", "till"]' in (await told("import cash"))[0], "the cache knows it"
        assert "and the cache has it" in (await told("import shop"))[0]
        assert await told("raise ImportError('No module named \\'x\\n[install]\\'')") == []
        assert await told("1 / 0") == []
        for said in ("`Import polars` failed. Use pip", "Missing optional dependency 'polars'. Use pip"):
            assert 'allow = ["shop", "beautifulsoup4", "polars"]' in (await told(f"raise ImportError({said!r})"))[0]


async def test_nobody_is_told_to_allow_a_package_that_is_a_misspelt_one_or_has_all_but_a_module(index, sandboxes):
    index.add(wheel("shop", files={"shop/__init__.py": ""}))
    async with opened(sandboxes, "shop") as bridge:

        async def told(code, **options):
            return [notice for notice in (await bridge.run(code, **options)).notices if "list" in notice]

        [notice] = await told("import shopp")
        assert "the operator's list has shop, and not shopp: ask for it in the call, packages=['shop']" in notice
        assert await told("import asynciio") == []
        assert await told("import json.tols") == []
        assert await told("import shop.till", packages=["shop"]) == []
        assert len(await told("import httpx")) == 1, "many packages are named almost as Python's modules"


async def test_nobody_is_told_to_allow_a_package_that_is_named_like_a_namespace_of_several(index, sandboxes):
    async with opened(sandboxes, "zope.interface>=5", "azure-identity", "azure-storage-blob") as bridge:

        async def told(code):
            [notice] = (await bridge.run(code)).notices
            assert "allow = [" not in notice
            return notice

        assert "the operator's list has zope-interface: ask for it in the call, packages=['zope-interface']" in (
            await told("import zope.interface")
        )
        assert "has azure-identity, azure-storage-blob: ask for it in the call, packages=['PACKAGE']" in (
            await told("from azure.identity import x")
        )
        assert "the operator's list has none that is named after it" in await told("from google.cloud import storage")


async def test_nobody_is_told_to_allow_a_package_that_is_named_like_a_server_or_a_module_of_python(
    sandboxes, git_server
):
    async with sandboxes.open(git_server, install=InstallSettings(allow=("shop",)), pooled=False) as bridge:
        for module in ("git", "tkinter", *OF_MCP):
            assert (await bridge.run(f"import {module}")).notices == [], module
        assert 'allow = ["shop", "till"]' in (await bridge.run("import till")).notices[0]


def test_the_modules_below_mcp_are_those_of_the_guests_advice():
    assert set(OF_MCP) == set(guest_packages.OF_MCP)


async def test_what_the_configuration_takes_away_holds_at_once_and_what_it_adds_does_not(index, sandboxes):
    index.add(wheel("shop"), wheel("till"))
    async with opened(sandboxes, "shop") as bridge:
        keep = (frozenset(), bridge._governance.snapshot)
        bridge.restrict(*keep, install=InstallSettings(allow=("till",)))
        for name in ("shop", "till"):
            assert (await refused(bridge, packages=[name])).code == "package_refused"
        bridge.restrict(*keep)
        assert printed(await bridge.run("import shop; print(1)", packages=["shop"]))


def test_rows_that_are_not_of_a_set_are_refused():
    for rows in ([{"name": "a"}], [{"name": "a", "version": "1", "file": "f", "sha256": "x"}], [{"name": 1}], ["x"]):
        with pytest.raises((TypeError, ValueError)):
            PackageSet.from_rows(json.loads(json.dumps(rows)))


ONE = LockedPackage("shop", "1.0", "shop-1.0-py3-none-any.whl", "0" * 64)


@pytest.mark.parametrize(
    ("bundle", "asked", "is_same"),
    [
        ({}, [], True),
        ({}, ["shop"], False),
        ({"packages": PackageSet((ONE,)).rows()}, ["Shop>=1"], True),
        ({"packages": PackageSet((ONE,)).rows()}, ["shop==2.0"], False),
        ({"packages": PackageSet((ONE,)).rows()}, [], False),
        ({"cell": Cell("s", 1, "", "00", PackageSet((ONE,))).to_bundle()}, [], False),
        ({"cell": Cell("s", 2, "a", "00", PackageSet((ONE,))).to_bundle()}, [], True),
        ({"cell": Cell("s", 2, "a", "00").to_bundle()}, ["shop"], False),
    ],
)
def test_a_request_of_which_values_are_erased_is_known_by_its_packages_too(bundle, asked, is_same):
    known = new_execution("script", "e", "local", None, request="", program="", bundle=bundle)
    assert is_same_packages(asked, known) is is_same


async def test_cells_that_are_run_dry_have_their_packages_and_are_then_run_with_the_same(index, sandboxes, shop):
    index.add(wheel("till"))
    settings = InstallSettings(allow=("till",), fresh=0)
    look = "import till\nresult = await mcp.servers.shop.put(what=till.version)\nprint(till.version)"
    async with shop.open(ALLOWS, install=settings) as bridge:
        first = await bridge.run(look, session="s", packages=["till"], dry_run=True)
        assert [row["arguments"] for row in first.planned] == [{"what": "1.0"}]
        assert shop.writes == []
        # What a person was shown is of this version.
        index.add(wheel("till", "2.0"))
        made = await bridge.run(look, session="s", packages=["till"])
        assert (made.execution, printed(made)) == (first.execution, "1.0\n")
        dry = await bridge.run(f"{look}\nprint(result)", session="s", packages=["till"], dry_run=True)
        assert [row["arguments"] for row in dry.planned] == [{"what": "1.0"}]
        assert shop.writes == [("put", {"what": "1.0"})]
        bridge.end_sessions()
        again = await bridge.run(f"{look}\nprint(result)", session="s", packages=["till"])
        assert (again.execution, again.session["rebuilt"]) == (dry.execution, 1)
        assert shop.writes == [("put", {"what": "1.0"})] * 2


async def test_a_cell_that_is_run_dry_adds_packages_to_its_copy_alone(index, sandboxes, shop):
    index.add(wheel("till"))
    settings = InstallSettings(allow=("till",), fresh=0)
    code = "await runtime.install('till')\nimport till\nawait mcp.servers.shop.put(what=till.version)\nx = 1"
    async with shop.open(ALLOWS, install=settings) as bridge:
        await bridge.run("x = 0", session="s")
        dry = await bridge.run(code, session="s", dry_run=True)
        assert [row["arguments"] for row in dry.planned] == [{"what": "1.0"}], dry.error
        made = await bridge.run(code, session="s")
        assert (made.execution, made.status) == (dry.execution, "success"), made.error
        assert shop.writes == [("put", {"what": "1.0"})]
        bridge.end_sessions()
        assert (await bridge.run("till.version, x", session="s")).value == "('1.0', 1)"
