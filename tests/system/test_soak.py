"""Mixed traffic leaves nothing behind: `benchmarks.soak`, small. It is the benchmark that judges memory, over half an hour."""

import shutil

import pytest

from benchmarks.bridge import Bench
from benchmarks.soak import COUNTED, EXPECTED, Soak


@pytest.fixture
def soak(sandbox_state_dir, tmp_path):
    # A state directory of its own, which knows the engine already.
    known = tmp_path / "known"
    known.mkdir(mode=0o700)
    for probed in sandbox_state_dir.glob("*.json"):
        shutil.copy(probed, known)
    return Soak(Bench(state_dir=known, work=tmp_path, quick=True, smoke=True), rounds=2)


async def test_every_kind_of_traffic_ends_as_it_may_and_leaves_nothing_behind(soak):
    rows = {row.what: row for row in await soak.measure()}
    assert {name.partition(":")[0] for name in soak.outcomes} == EXPECTED.keys()
    assert not soak.unexpected
    assert rows["left behind"].ours == 0, rows["left behind"].note
    first, last = soak.samples
    # Not what only many rounds can tell.
    for name in COUNTED.keys() - {"rss", "rss over HTTP", "wal"}:
        # The pools have more or fewer containers from one round to the next, each with its three pipes and its watch.
        more = max(0, last["containers"] - first["containers"])
        of_containers = 4 * more if name.startswith("descriptors") else 0
        assert last[name] <= COUNTED[name].most(first[name]) + of_containers, soak.samples
    assert not soak.state_dir.exists()


def test_what_grows_with_each_round_is_found(soak):
    steady = dict.fromkeys(COUNTED, 10.0)
    soak.samples = [steady | {"descriptors": 10.0 + 2 * number} for number in range(9)]
    judged = {row.what: row.met for row in soak.rows()}
    assert [what for what, met in judged.items() if not met] == [COUNTED["descriptors"].what]


def test_what_is_taken_at_the_warm_up_and_kept_is_no_growth(soak):
    steady = dict.fromkeys(COUNTED, 10.0)
    soak.samples = [dict.fromkeys(COUNTED, 1.0), *[steady] * 8]
    assert all(row.met for row in soak.rows())
