import pytest
pytest_plugins = ["bridge_fixtures"]

@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
async def test_one(setup, mode):
    async with setup.client(mode) as client:
        print(await client.list_tools())
        print(await client.call_tool("run_python", {"code": "print('a')\n1+1"}))
        print(setup.server_pid())
async def test_wire(setup):
    async with setup.wire() as wire:
        print(await wire.initialize())
        n = await wire.started("while True: pass")
        print(await setup.containers(wire.pid))
        wire.process.kill()
        await setup.no_container_of(wire.pid)
