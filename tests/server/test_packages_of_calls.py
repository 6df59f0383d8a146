"""Packages as clients and the command line ask for them."""

import json

import pytest
from package_index import wheel

pytestmark = [pytest.mark.xdist_group("images"), pytest.mark.timeout(300)]


def text(result):
    return "\n".join(getattr(block, "text", "") for block in result.content)


async def test_the_tool_takes_packages_says_which_and_refuses_the_rest(configure, index):
    index.add(wheel("shop"))
    setup = configure(install={"allow": ["shop"]})
    setup.env["UV_DEFAULT_INDEX"] = f"{index.url}/simple"
    async with setup.client() as client:
        assert "shop" in (client.instructions or "")

        async def call(**arguments):
            return await client.call_tool("run_python", {"code": "import shop; print(shop.version)", **arguments})

        assert text(await call(packages=["shop"])).strip() == "1.0"
        refused = await call(packages=["other"])
        assert refused.is_error
        assert 'allow = ["shop", "other"]' in text(refused)
        for wrong in ("shop", [1], {"shop": 1}, ["shop"] * 99):
            refused = await call(packages=wrong)
            assert refused.is_error
            assert "bad_" in text(refused)
        assert "packages=['shop']" in text(await call()), "an import that fails says who has it"


def test_the_command_line_takes_packages(configure, index):
    index.add(wheel("shop"))
    setup = configure(install={"allow": ["shop"]})
    setup.env["UV_DEFAULT_INDEX"] = f"{index.url}/simple"
    ended = setup.run("run", "--package", "shop==1.0", "-c", "import shop; print(shop.version)")
    assert (ended.returncode, ended.stdout) == (0, b"1.0\n"), ended.stderr
    refused = setup.run("run", "--json", "--package", "other", "-c", "1")
    assert json.loads(refused.stdout)["error"]["code"] == "package_refused"
    assert refused.returncode != 0
