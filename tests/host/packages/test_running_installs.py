"""Packages that a running script asks for: what the host makes of a hostile one's requests."""

import anyio
import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.host.packages.running_installs import RunningInstalls
from mcp_bridge.sandbox.packages.allow_list import AllowList
from mcp_bridge.sandbox.packages.installer import PackageRights
from mcp_bridge.sandbox.packages.package_set import PackageSet

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class SlowInstaller:
    """Finds nothing, in its time; says what it was asked for."""

    def __init__(self):
        self.at_once = self.most = 0
        self.there = []

    async def resolve(self, requirements, rights, there, notify, *, replaces):
        self.there.append(there)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await anyio.sleep(0.01)
        self.at_once -= 1
        return PackageSet(())

    async def fetch(self, packages, notify):
        return []


async def test_a_script_that_asks_for_many_at_once_has_one_looked_for_at_a_time():
    installer = SlowInstaller()
    installs = RunningInstalls(installer, PackageRights((AllowList(["shop"]),)), ())
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(installs.resolve, ["shop"], [f"other=={number}"])
    assert len(installer.there) == 20
    assert installer.most == 1


async def test_a_package_that_the_call_has_replaced_is_there_once_however_its_name_is_written():
    installer = SlowInstaller()
    there = ["typing-extensions==4.9", "typing_extensions==4.12", "Rich==14"]
    installs = RunningInstalls(installer, PackageRights((AllowList(["shop"]),)), there)
    await installs.resolve(["shop"], ["rich==1", "till==2"])
    assert installer.there == [["typing-extensions==4.9", "rich==14", "till==2"]]
    with pytest.raises(BridgeError, match="requirement"):
        await installs.resolve(["shop"], ["http://evil/x.whl"])


async def test_a_part_that_no_file_has_is_refused():
    installs = RunningInstalls(SlowInstaller(), PackageRights((AllowList(["shop"]),)), ())
    row = {"name": "shop", "version": "1", "file": "shop-1-py3-none-any.whl", "sha256": "0" * 64}
    await installs.offer([row])
    for sha256, start in (("0" * 64, -1), ("0" * 64, 1 << 80), ("1" * 64, 0)):
        with pytest.raises(BridgeError) as caught:
            await installs.part(sha256, start)
        assert caught.value.code == "bad_request"
