"""The report of a probe, and its cache on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from mcp_bridge._version import __version__
from mcp_bridge.atomic_files import write_private
from mcp_bridge.private_files import read_whole
from mcp_bridge.sandbox.isolation_flags import Enforced, EngineName, RuntimeChoice

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code

Level = Literal["ok", "warning", "error"]

_FORMAT = 2
_MAX_BYTES = 1 << 20
_KEPT_SECONDS = 30 * 24 * 3600.0
"""Reports are kept this long. The key contains the boot id, so every boot leaves a report behind."""

_DECISIVE = ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "CONTAINERS_CONF", "XDG_RUNTIME_DIR", "HOME")
"""Variables that select another engine, or another store of the same engine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a probe.

    Attributes:
        level: `error` if an isolation feature is missing or an engine can't be used, `warning` if one is weaker than it
            could be.
        code: A stable code in snake_case.
        message: One sentence in plain language.
        hint: How to fix it, if possible.
    """

    level: Level
    code: Code
    message: str
    hint: str | None = None

    def record(self) -> dict[str, str]:
        """The finding as a JSON object, without an empty hint."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The engine to use, and the findings."""

    choice: RuntimeChoice
    findings: tuple[Finding, ...]


def report_path(state_dir: Path, runtime: str, oci_runtime: str, image: str | None) -> Path:
    """The path of the cached report for a probe with these options on this host in its current state."""
    tools = [shutil.which(name) for name in ("podman", "docker", "runc", "crun", "newuidmap")]
    key = [
        _FORMAT, __version__, runtime, oci_runtime, image, os.getuid(), os.uname().release, _boot_id(),
        [_identity(tool) for tool in tools],
        [resource.getrlimit(which)[1] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)],
        [os.environ.get(name) for name in _DECISIVE],
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return state_dir / f"probe-{digest[:24]}.json"


def load_report(path: Path) -> ProbeReport | None:
    """The cached report, or None if there is none or it is invalid."""
    try:
        return _decode(json.loads(read_whole(path, _MAX_BYTES)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def store_report(path: Path, report: ProbeReport) -> None:
    """Save the report atomically, readable by its owner only. If the disk is full, the next probe has to run again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(asdict(report)).encode())
        _prune(path.parent)


def _prune(directory: Path) -> None:
    for old in directory.glob("probe-*.json"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                old.unlink()


def _decode(data: dict[str, Any]) -> ProbeReport:
    choice = data["choice"]
    if choice["engine"] not in get_args(EngineName):
        raise ValueError(choice["engine"])
    enforced = choice["enforced"]
    return ProbeReport(
        RuntimeChoice(
            engine=cast("EngineName", choice["engine"]),
            path=_text(choice["path"]),
            version=_text(choice["version"]),
            rootless=_truth(choice["rootless"]),
            global_args=tuple(_text(part) for part in choice["global_args"]),
            oci_runtime=_text(choice["oci_runtime"]),
            seccomp=_truth(choice["seccomp"]),
            userns=_text(choice["userns"]),
            enforced=Enforced(**{name: _truth(enforced[name]) for name in ("memory", "pids", "cpus")}),
            nofile_max=int(choice["nofile_max"]),
            nproc_max=int(choice["nproc_max"]),
            environment={_text(name): _text(value) for name, value in choice["environment"].items()},
        ),
        tuple(
            Finding(
                cast("Level", _text(row["level"])),
                cast("Code", _text(row["code"])),
                _text(row["message"]),
                None if row["hint"] is None else _text(row["hint"]),
            )
            for row in data["findings"]
        ),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _identity(path: str | None) -> list[Any]:
    if path is None:
        return []
    try:
        status = Path(path).stat()
    except OSError:
        return [path]
    return [path, status.st_mtime_ns, status.st_size]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
