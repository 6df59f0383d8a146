"""A small container that reports from the inside which isolation features work.

An engine's claims are not sufficient: rootless Podman on version 1 control groups accepts `--memory` and `--pids-limit`
and ignores both. So the trial exceeds its limits and reports what stopped it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.engine import OWNER_LABEL, Limits, SandboxSpec
from mcp_bridge.sandbox.open_driver import open_engine
from mcp_bridge.sandbox.ownership import owner_label

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import ByteReceiveStream

    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice

TRIAL_SECONDS = 60.0
"""Bound on one trial: the first start may map or copy the image's layers."""

MEBIBYTE = 1024 * 1024
LIMITS = Limits(memory=64 * MEBIBYTE, pids=16, cpus=0.75, tmp=MEBIBYTE, workspace=MEBIBYTE, nofile=256, shm=MEBIBYTE)
"""Small limits, which are cheap to reach."""

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_OUTPUT_BYTES = 65536

PROGRAM = Template("""
import json, os, signal, socket
def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines() if ":" in line)
try:
    socket.socket(socket.AF_INET).close()
    network = 0
except OSError as error:
    network = error.errno
def memory_holds():
    pid = os.fork()
    if pid == 0:
        try:
            block = bytearray($twice)
            for i in range(0, len(block), 4096):
                block[i] = 1
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
def pids_hold():
    children, held = [], False
    try:
        for _ in range($pids):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    except OSError:
        held = True
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return held
def cpus_hold():
    for name in ("cpu", "cpu,cpuacct", "cpuacct,cpu"):
        if read("/sys/fs/cgroup/%s/cpu.cfs_quota_us" % name).strip() == str($quota):
            return True
    return read("/sys/fs/cgroup/cpu.max").split()[:1] == [str($quota)]
print(json.dumps({
    "seccomp": int(status.get("Seccomp", "0")) == 2 and network == 97,
    "no_new_privileges": status.get("NoNewPrivs", "").strip() == "1",
    "capabilities": max(int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")),
    "mapped": read("/proc/self/uid_map").split() != ["0", "0", "4294967295"],
    "security_module": read("/proc/self/attr/current").strip("\\0\\n"),
    "command_line": bool(read("/proc/cmdline")),
    "pids": pids_hold(),
    "cpus": cpus_hold(),
    "memory": memory_holds(),
}), flush=True)
""").substitute(twice=2 * LIMITS.memory, pids=2 * LIMITS.pids, quota=int(LIMITS.cpus * 100_000))


@dataclass(frozen=True, slots=True)
class Trial:
    """The report of a trial container.

    Attributes:
        seccomp: Whether our own seccomp profile is in force.
        no_new_privileges: Whether the flag is set.
        capabilities: The union of its capability sets, as a mask.
        mapped: Whether it is in a user namespace of its own.
        security_module: The AppArmor or SELinux label; empty for neither.
        command_line: Whether the host's kernel command line can be read.
        pids: Whether the limit on processes was enforced.
        cpus: Whether its control group has the CPU quota.
        memory: Whether a process that used twice the memory was killed.
    """

    seccomp: bool
    no_new_privileges: bool
    capabilities: int
    mapped: bool
    security_module: str
    command_line: bool
    pids: bool
    cpus: bool
    memory: bool

    @property
    def is_isolated(self) -> bool:
        """Whether every isolation feature works that isn't a limit."""
        return (
            self.seccomp and self.no_new_privileges and not self.capabilities and self.mapped and not self.command_line
        )


async def run_trial(choice: RuntimeChoice, image: str, state_dir: Path) -> Trial:
    """Start the trial container with the features of `choice`, and read its report.

    Raises:
        BridgeError: As for the start of any container; `sandbox_start_failed` if its report can't be read.
    """
    spec = SandboxSpec(
        image=image,
        name=f"mcp-bridge-trial-{uuid.uuid4().hex[:12]}",
        argv=["python3", "-S", "-E", "-c", PROGRAM],
        limits=LIMITS,
        labels={OWNER_LABEL: owner_label()},
        environment=_ENVIRONMENT,
    )
    process = await open_engine(choice, state_dir).start(spec)
    output, complaints = bytearray(), bytearray()
    try:
        with anyio.fail_after(TRIAL_SECONDS):
            await process.stdin.aclose()
            async with anyio.create_task_group() as group:
                group.start_soon(_collect, process.stdout, output)
                group.start_soon(_collect, process.stderr, complaints)
            await process.wait()
    except TimeoutError:
        raise BridgeError(
            "sandbox_start_failed",
            f"A trial container did not end within {TRIAL_SECONDS:.0f} s.",
            hint="The host may be overloaded, or the engine hangs.",
        ) from None
    finally:
        await process.aclose()
    return _decode(bytes(output), bytes(complaints))


async def _collect(stream: ByteReceiveStream, into: bytearray) -> None:
    async for chunk in stream:
        into += chunk
        del into[_OUTPUT_BYTES:]


def _decode(output: bytes, complaints: bytes) -> Trial:
    try:
        report: dict[str, Any] = json.loads(output)
        return Trial(
            capabilities=int(report["capabilities"]),
            security_module=str(report["security_module"]),
            **{name: report[name] is True for name in _FLAGS},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BridgeError(
            "sandbox_start_failed",
            "A trial container ended without its report.",
            hint="The image needs a working python3, version 3.11 or later.",
            report=(output + complaints).decode(errors="replace")[-2000:],
        ) from error


_FLAGS = ("seccomp", "no_new_privileges", "mapped", "command_line", "pids", "cpus", "memory")
