"""What the warm pools of the bridges that serve are doing, for whoever looks from another process.

A bridge writes a small file into the state directory while its pool changes, and removes it when it ends. That of a
bridge that was killed is removed by whoever reads it next.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mcp_bridge.atomic_files import write_private
from mcp_bridge.private_files import read_whole
from mcp_bridge.sandbox.ownership import Owner, owner_label

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.host.warm_pool import WarmPool

logger = logging.getLogger(__name__)

MAX_REPORT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PoolReport:
    """One bridge's pools, together.

    Attributes:
        owner: The bridge's process, as in the label of its containers.
        ready: Containers that wait.
        starting: Containers that are being started.
        target: How many are to wait now.
        ceiling: How many may wait.
        hits: Executions that got a container that was ready.
        waits: Executions that got one that was being started.
        misses: Executions that found none.
        lost: Containers that ended before their execution.
        retired: Containers that were given up unused.
        age: How long the last thousand containers had waited when they were used, in seconds (median); 0 for none.
    """

    owner: str
    ready: int
    starting: int
    target: int
    ceiling: int
    hits: int
    waits: int
    misses: int
    lost: int
    retired: int
    age: float

    def __str__(self) -> str:
        owner = Owner.parse(self.owner)
        process = f"process {owner.pid}" if owner else "a process"
        return (
            f"The bridge of {process} has {self.ready} containers ready and starts {self.starting}; it keeps "
            f"{self.target}, and at most {self.ceiling}. Of its executions {self.hits} got one immediately, "
            f"{self.waits} waited for one, and {self.misses} found none. Containers had waited "
            f"{self.age:.0f} s (median); {self.lost} were lost, and {self.retired} given up."
        )


def report_of(pools: Sequence[WarmPool]) -> PoolReport:
    """What the pools of this process are doing."""
    figures = [pool.figures for pool in pools]
    ages = sorted(age for one in figures for age in one.ages)
    return PoolReport(
        owner_label(),
        sum(pool.ready for pool in pools),
        sum(pool.starting for pool in pools),
        sum(pool.target for pool in pools),
        sum(pool.ceiling for pool in pools),
        sum(one.hits for one in figures),
        sum(one.waits for one in figures),
        sum(one.misses for one in figures),
        sum(one.lost for one in figures),
        sum(one.retired for one in figures),
        # `statistics` would take an idle bridge a tenth of a mebibyte.
        round(ages[len(ages) // 2], 3) if ages else 0.0,
    )


def write_report(state_dir: Path, report: PoolReport) -> None:
    """Write the report of this process. A disk that is full or read-only costs the report and nothing else."""
    file = _file(state_dir)
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(file, json.dumps(asdict(report)).encode())
    except OSError as exc:
        logger.debug("the pool's report can't be written: %s", exc)


def remove_report(state_dir: Path) -> None:
    """Remove the report of this process, if there is one."""
    with contextlib.suppress(OSError):
        _file(state_dir).unlink()


def pool_reports(state_dir: Path) -> list[PoolReport]:
    """The reports of all bridges on this host that use this state directory and live."""
    found = []
    for file in sorted((state_dir / "run").glob("pool-*.json")):
        try:
            report = PoolReport(**json.loads(read_whole(file, MAX_REPORT_BYTES)))
        except (OSError, ValueError, TypeError):
            # Removed meanwhile, or of another version.
            continue
        owner = Owner.parse(str(report.owner))
        if owner is None or not owner.is_of_this_host():
            continue
        if not owner.is_orphaned():
            found.append(report)
        else:
            with contextlib.suppress(OSError):
                file.unlink()
    return found


def _file(state_dir: Path) -> Path:
    return state_dir / "run" / f"pool-{os.getpid()}.json"
