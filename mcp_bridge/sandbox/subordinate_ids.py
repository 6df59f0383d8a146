"""The subordinate user and group ids to which rootless Podman maps a sandbox's users (subuid(5), subgid(5))."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from pathlib import Path

from mcp_bridge.sandbox.probe_report import Finding

FILES = (Path("/etc/subuid"), Path("/etc/subgid"))

_FIRST, _COUNT = 100_000, 65_536
"""The first id that useradd allocates, and the number of ids for each user."""

_LINE = re.compile(r"([^:#\s]+):(\d{1,10}):(\d{1,10})", re.ASCII)


def missing() -> Finding | None:
    """A finding with the required lines if this user has no subordinate ids for rootless containers, else None."""
    name = _user_name()
    if not _has_ranges(name):
        first = free_range(_lines())
        last = first + _COUNT - 1
        return Finding(
            "error",
            "no_subordinate_ids",
            f"The user {name} has no ranges in /etc/subuid and /etc/subgid, so a sandbox can't have a user of its own.",
            f"As root: `usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {name}`, "
            f"then as {name}: `podman system migrate`.",
        )
    if shutil.which("newuidmap") is None:
        return Finding(
            "error",
            "no_newuidmap",
            "The program newuidmap, which gives a rootless container its users, is not installed.",
            "Install it, on Debian: `apt-get install uidmap`.",
        )
    return None


def ranges() -> tuple[tuple[int, int], tuple[int, int]]:
    """This user's first range of user ids, and of group ids: the first id and the number of ids.

    Raises:
        LookupError: It has none in the files.
    """
    names = {_user_name(), str(os.getuid())}
    found = []
    for path in FILES:
        rows = [match for line in _read(path) if (match := _LINE.match(line)) and match[1] in names]
        if not rows:
            raise LookupError(f"{path} has no range for the user {_user_name()}")
        found.append((int(rows[0][2]), int(rows[0][3])))
    return found[0], found[1]


def free_range(lines: list[str]) -> int:
    """The first id of an unallocated range, on useradd's own grid.

    Args:
        lines: The lines of both files.
    """
    taken = [(int(found[2]), int(found[2]) + int(found[3])) for line in lines if (found := _LINE.match(line))]
    first = _FIRST
    while any(begin < first + _COUNT and first < end for begin, end in taken):
        first += _COUNT
    return first


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A user that isn't in the user database: the files accept numbers, too.
        return str(os.getuid())


def _has_ranges(name: str) -> bool:
    for path in FILES:
        lines = _read(path)
        if not any(line.partition(":")[0] in {name, str(os.getuid())} for line in lines):
            # The ranges may come from a directory service.
            return any("subid:" in line for line in _read(Path("/etc/nsswitch.conf")))
    return True


def _lines() -> list[str]:
    return [line for path in FILES for line in _read(path)]


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
