"""Budgets of a principal that several bridges on one ledger use up together."""

import asyncio
import contextlib
import functools
import sys

import anyio
import pytest
from bridge_fixtures import DEADLINE_SECONDS

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.usage_store import UsageStore
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.policy.rules.budgets import Amounts, Budget, Usages
from mcp_bridge.policy.rules.policy_settings import read

pytestmark = pytest.mark.timeout(120)

CHILD = """
import asyncio, pathlib, sys
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.usage_store import UsageStore
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.policy.rules.budgets import Amounts, Budget, Usages
from mcp_bridge.policy.rules.policy_settings import read

async def main():
    async with Database(pathlib.Path(sys.argv[1])) as database:
        kept = UsageStore(database)
        usages = Usages(await kept.load(), kept)
        limits = read({"limits": {"principal": {"calls": 100_000}}}).limits

        async def calls():
            while True:
                # As the gate: the intent comes with the reservation, and both are durable before the call.
                with await Budget(limits, usages.of("anna")).reserve_persistent(Amounts(calls=1)) as reservation:
                    database.record(Entry("intent", "an execution", {}))
                    await database.flush()
                    await reservation.confirm()
                    print(flush=True)

        await asyncio.gather(*(calls() for _ in range(8)))

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def opened(path):
    """What principals have used by a ledger, which is open."""
    async with Database(path) as database:
        kept = UsageStore(database)
        yield Usages(await kept.load(), kept)


def budget(usages, **limits):
    return Budget(read({"limits": {"principal": limits}}).limits, usages.of("anna"))


async def used(path):
    async with Database(path) as database:
        return await UsageStore(database).used("anna")


@pytest.mark.parametrize("kind", ["calls", "bytes", "model_tokens"])
async def test_of_what_many_ask_for_at_once_by_two_ledgers_exactly_the_limit_passes(tmp_path, kind):
    path = tmp_path / "ledger.sqlite"
    one = Amounts(**{kind: 4})
    async with opened(path) as ours, opened(path) as theirs:
        passed, refused = [], []

        async def call(usages):
            held = budget(usages, **{kind: 102})
            try:
                with await held.reserve_persistent(one) as reservation:
                    await reservation.confirm()
                    passed.append(usages)
            except BridgeError as exc:
                refused.append(exc.details)

        async with anyio.create_task_group() as tasks:
            for number in range(80):
                tasks.start_soon(call, (ours, theirs)[number % 2])
        assert len(passed) == 25
        assert refused == [{"limit": kind}] * 55
        # Each knows by now what the other has used.
        for usages in (ours, theirs):
            with pytest.raises(BridgeError, match="is reached"):
                budget(usages, **{kind: 102}).reserve(one)
            budget(usages, **{kind: 104}).reserve(Amounts(**{kind: 1})).release()
    assert (await used(path))[kind] == 100


async def test_a_result_beyond_the_limit_is_counted_and_refused_whoever_has_used_the_rest(tmp_path):
    path = tmp_path / "ledger.sqlite"
    async with opened(path) as ours, opened(path) as theirs:
        passed = []

        async def call(usages):
            with contextlib.suppress(BridgeError):
                with await budget(usages, bytes=100).reserve_persistent(Amounts(calls=1)) as reservation:
                    await reservation.confirm()
                    await reservation.settle_persistent(Amounts(calls=1, bytes=30))
                passed.append(usages)

        async with anyio.create_task_group() as tasks:
            for usages in (ours, theirs) * 3:
                tasks.start_soon(call, usages)
        assert len(passed) == 3
    assert await used(path) == {"calls": 6, "bytes": 180, "model_tokens": 0, "model_cost_usd": 0}


async def test_what_another_bridge_gives_back_can_be_used(tmp_path):
    path = tmp_path / "ledger.sqlite"
    async with opened(path) as ours:
        held = await budget(ours, model_tokens=100).reserve_persistent(Amounts(model_tokens=90))
        await held.confirm()
        async with opened(path) as theirs:
            asks = functools.partial(budget(theirs, model_tokens=100).reserve_persistent, Amounts(model_tokens=50))
            with pytest.raises(BridgeError, match="tokens of models"):
                await asks()
            await held.settle_persistent(Amounts(model_tokens=20))
            # That is written a moment later, or before anything is read.
            await ours.of("anna").refresh()
            with await asks() as reservation:
                await reservation.confirm()
    assert (await used(path))["model_tokens"] == 70


async def test_a_killed_process_leaves_as_many_calls_counted_as_intents(tmp_path):
    path = tmp_path / "ledger.sqlite"
    async with Database(path):
        pass
    children = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, str(path), stdout=asyncio.subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        with anyio.fail_after(DEADLINE_SECONDS):
            for child in children:
                for _ in range(100):
                    assert await child.stdout.readline() == b"\n"
    finally:
        for child in children:
            child.kill()
            await child.wait()
    async with Database(path) as database:
        [(intents,)] = await database.read("SELECT count(*) FROM entries WHERE kind = 'intent'")
        assert intents >= 200
        assert (await UsageStore(database).load())["anna"]["calls"] == intents
