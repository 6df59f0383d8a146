"""What the OCI driver uses of this host: control groups, user ids, a place to mount images."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.sandbox import subordinate_ids

if TYPE_CHECKING:
    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice

MOUNTS = "/mnt"
"""Where the supervisor mounts images, in its own mount namespace: every system has this directory, for temporary mounts
(Filesystem Hierarchy Standard 3.0, 3.12), and every user may pass it."""

USER_BASE, USER_COUNT = 1_879_113_728, 65_536
"""Host ids that nothing else allocates: above systemd-nspawn's (up to 1879048191), far above usual subuid ranges."""

_LEAST_IDS = 1024
"""With fewer subordinate ids, an id would soon be used a second time."""


def user_range(*, rootless: bool) -> tuple[int, int, int]:
    """The id of the sandboxes' user 0, and the first and the end of a range with a user for each.

    As root they are the host's ids; rootless they are those of the supervisor's user namespace.
    """
    if not rootless:
        return USER_BASE, USER_BASE + 1, USER_BASE + USER_COUNT
    (uids, gids) = subordinate_ids.ranges()
    return 1, 2, 1 + min(uids[1], gids[1])


def oom_score() -> int:
    """This process's `oom_score_adj`."""
    try:
        return int(Path("/proc/self/oom_score_adj").read_text())
    except (OSError, ValueError):
        return 0


def has_security_module() -> bool:
    """Whether SELinux or AppArmor is on, with which engines confine containers further."""
    try:
        on = Path("/sys/module/apparmor/parameters/enabled").read_text().startswith("Y")
    except OSError:
        on = False
    return on or Path("/sys/fs/selinux/enforce").exists()


def cgroup_mounts(choice: RuntimeChoice) -> list[str]:
    """The mount points of the hierarchies in which the sandboxes get control groups."""
    if not any((choice.enforced.memory, choice.enforced.pids, choice.enforced.cpus)):
        return []
    return [point for point, kind in _cgroups() if kind == "cgroup"] or [point for point, _ in _cgroups()]


def cgroup_version() -> str:
    """`1`, also where an empty version 2 hierarchy is mounted beside it, `2`, or nothing."""
    kinds = {kind for _, kind in _cgroups()}
    return "1" if "cgroup" in kinds else "2" if kinds else ""


@cache
def _cgroups() -> list[tuple[str, str]]:
    """The mount points of control groups, and `cgroup` or `cgroup2`."""
    out = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split()[0]
        if kind in {"cgroup", "cgroup2"}:
            out.append((before.split()[4], kind))
    return out


def plan(choice: RuntimeChoice, directory: Path) -> dict[str, Any]:
    """The supervisor's plan (`supervisor.Plan`)."""
    users: list[str] = []
    groups: list[str] = []
    if choice.rootless:
        (uids, gids) = subordinate_ids.ranges()
        users = [str(part) for part in (0, os.getuid(), 1, 1, *uids)]
        groups = [str(part) for part in (0, os.getgid(), 1, 1, *gids)]
    covered = [point for point, kind in _cgroups() if kind == "cgroup2"] if cgroup_version() == "1" else []
    groups_made = bool(cgroup_mounts(choice))
    # Otherwise crun tries to use the hierarchies all the same. runc goes on without them if it isn't root.
    without = ["--cgroup-manager=disabled"] if choice.oci_runtime == "crun" and not groups_made else []
    return {
        "runtime": [choice.path, *without],
        "state": str(directory / "runtime"),
        "mounts": MOUNTS,
        "cgroups": cgroup_mounts(choice),
        "covered": covered,
        "users": users,
        "groups": groups,
    }
