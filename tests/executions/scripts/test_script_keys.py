"""A script's idempotency key, as a client and the command line give it: what it does, it does once."""

import json
import sqlite3

import pytest
from bridge_fixtures import OVER_BOTH
from sandbox_fixtures import knows_the_sandbox

from mcp_bridge.executions.record import PREVIOUS_RESULT_NOTICE

pytestmark = pytest.mark.timeout(120)

TOOLS = '''
from pathlib import Path

import mcp_bridge


@mcp_bridge.tool
def pay(name: str) -> int:
    """Pay; how many payments there are now."""
    path = Path(__file__).with_name("paid")
    with path.open("a") as file:
        file.write(f"{name}\\n")
    return len(path.read_text().splitlines())
'''


@pytest.fixture
def desk(configure, tmp_path):
    """A bridge with a tool that counts what it does, and the list of that."""
    setup = configure(state_dir=str(tmp_path / "state"))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "desk.py").write_text(TOOLS)
    with setup.config.open("a") as file:
        file.write(f'\n[tools]\nmodules = ["desk"]\npath = [{json.dumps(str(tools))}]\nentry_points = false\n')
    knows_the_sandbox(tmp_path / "state", setup.state_dir)

    def paid():
        path = tools / "paid"
        return path.read_text().splitlines() if path.exists() else []

    return setup, paid, tmp_path / "state"


PAY = "from mcp.servers import local\nprint(await local.pay(name='anna'))"


async def called(client, code, **arguments):
    result = await client.call_tool("run_python", {"code": code, **arguments})
    return result.is_error, [block.text for block in result.content], result.structured_content


def as_before(again):
    """An answer that was given before, which says so once to whoever reads it, without what it says of that."""
    failed, [text, *blocks], record = again
    notice = PREVIOUS_RESULT_NOTICE.format(record["execution"])
    assert record["notices"] == [notice]
    assert text.endswith(f"\n[{notice}]")
    shown = text.removesuffix(f"\n[{notice}]")
    return failed, [shown, *blocks], {name: value for name, value in record.items() if name != "notices"}


@pytest.mark.parametrize(("transport", "mode"), [("stdio", "legacy"), ("http", "2026-07-28")], indirect=["transport"])
async def test_a_client_that_calls_again_with_its_key_is_given_what_it_was_and_nothing_is_done_again(desk, mode):
    setup, paid, state = desk
    async with setup.client(mode) as client:
        first = await called(client, PAY, idempotency_key="order-7")
        assert first[0] is False
        assert "notices" not in first[2]
        assert as_before(await called(client, PAY, idempotency_key="order-7")) == first
    async with setup.client(mode) as client:
        assert as_before(await called(client, PAY, idempotency_key="order-7")) == first
        assert paid() == ["anna"]
        # Without a key, and with another, it is done.
        await called(client, PAY)
        await called(client, PAY, idempotency_key="order-8")
    assert paid() == ["anna"] * 3
    with sqlite3.connect(state / "ledger.sqlite") as database:
        assert database.execute("SELECT count(*) FROM executions").fetchone() == (3,)


@OVER_BOTH
async def test_a_key_is_for_one_code_alone(desk):
    setup, paid, _ = desk
    async with setup.client() as client:
        await called(client, PAY, idempotency_key="order-7")
        failed, blocks, _ = await called(client, PAY.replace("anna", "bob"), idempotency_key="order-7")
        assert failed
        assert "key_conflict" in blocks[0]
        assert paid() == ["anna"]
        for bad in ("", "a\nb"):
            failed, blocks, _ = await called(client, PAY, idempotency_key=bad)
            assert (failed, "bad_key" in blocks[0]) == (True, True)
        failed, blocks, _ = await called(client, PAY, idempotency_key=7)
        assert failed
        assert "idempotency_key" in blocks[0]
    assert paid() == ["anna"]


@OVER_BOTH
async def test_a_failure_under_a_key_is_told_again_as_a_failure(desk):
    setup, paid, _ = desk
    code = f"{PAY}\nraise ValueError('after it was paid')"
    async with setup.client() as client:
        first = await called(client, code, idempotency_key="order-7")
        assert first[0] is True
        assert "after it was paid" in "".join(first[1])
        again = as_before(await called(client, code, idempotency_key="order-7"))
        assert (again[0], again[1][0], again[2]) == (True, first[1][0], first[2])
    assert paid() == ["anna"]


def test_the_command_with_a_key_does_it_once(desk):
    setup, paid, _ = desk
    first, again = (setup.run("run", "--key", "order-7", "--json", "-c", PAY) for _ in range(2))
    assert (first.returncode, json.loads(first.stdout)["stdout"]) == (0, "1\n"), first.stderr
    assert json.loads(again.stdout) == json.loads(first.stdout) | {"is_previous_result": True}
    shown = setup.run("run", "--key", "order-7", "-c", PAY)
    notice = PREVIOUS_RESULT_NOTICE.format(json.loads(first.stdout)["execution"])
    assert (shown.stdout, notice in shown.stderr.decode(), b"nothing was run" in first.stderr) == (b"1\n", True, False)
    assert paid() == ["anna"]
    other = setup.run("run", "--key", "order-7", "-c", "1")
    assert other.returncode != 0
    assert b"key_conflict" in other.stderr
    assert setup.run("run", "-c", PAY).stdout == b"2\n"
