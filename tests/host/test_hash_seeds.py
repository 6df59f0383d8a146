"""Seeds of the hashes of texts: none twice among many, by the bits that Python takes of them."""

import subprocess
import sys

from mcp_bridge.host import warm_pool
from mcp_bridge.host.warm_pool import new_hash_seed


def hashed(seed):
    """The hash of a text in an interpreter with this seed."""
    line = [sys.executable, "-c", "print(hash('text'))"]
    return subprocess.run(line, env={"PYTHONHASHSEED": str(seed)}, capture_output=True, check=True).stdout


def test_a_seed_with_the_hashes_of_an_earlier_one_is_drawn_again(monkeypatch):
    same = 5 + (1 << 24), 5 + (200 << 24)
    assert hashed(5) == hashed(same[0]) == hashed(same[1]) != hashed(6)
    drawn = [5, *same, 6, 5, 7]
    monkeypatch.setattr(warm_pool, "_drawn", {})
    monkeypatch.setattr(warm_pool.secrets, "randbits", lambda bits: drawn.pop(0) if bits == 32 else None)
    assert [new_hash_seed() for _ in range(3)] == [5, 6, 7]


def test_a_bounded_number_is_remembered(monkeypatch):
    monkeypatch.setattr(warm_pool, "_drawn", {})
    monkeypatch.setattr(warm_pool, "REMEMBERED_SEEDS", 100)
    seeds = [new_hash_seed() for _ in range(300)]
    assert list(warm_pool._drawn) == [seed & 0xFFFFFF for seed in seeds[-100:]]
