"""The benchmarks of governed programs and of their record work: each runs with next to nothing, beside what it compares with."""

import shutil

import pytest

from benchmarks import calls, gateway, governed, http_server, kept, kernel, ledger, loop, parts, registered, store
from benchmarks.bridge import Bench
from benchmarks.measure import table


@pytest.fixture
def bench(sandbox_state_dir, tmp_path):
    # A state directory of its own, which knows the engine already.
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    for probed in sandbox_state_dir.glob("*.json"):
        shutil.copy(probed, state_dir)
    return Bench(state_dir=state_dir, work=tmp_path, quick=True, smoke=True)


@pytest.mark.parametrize(
    "measure",
    [
        registered.registered,
        kernel.kernel,
        governed.governed,
        gateway.gateway,
        ledger.ledger,
        store.store,
        kept.kept,
        parts.parts,
        loop.loop,
        calls.openapi,
        http_server.team,
    ],
    ids=lambda m: m.__name__,
)
async def test_every_row_has_both_figures(bench, measure):
    rows = await measure(bench)
    assert rows
    for row in rows:
        assert row.ours > 0, row
        assert row.peer > 0, row
        assert bool(row.goal) == (row.met is not None), row
    assert all(row.what in table(rows) for row in rows)
