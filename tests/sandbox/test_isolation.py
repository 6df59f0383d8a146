"""What a sandbox can't do, and what it must be able to do: seen from the inside of real containers."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from mcp_bridge.sandbox import seccomp_profile
from mcp_bridge.sandbox.engine import Limits
from mcp_bridge.sandbox.isolation_flags import MASKED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox_fixtures import Runner

    from mcp_bridge.sandbox.cli_engine import CliEngine
    from mcp_bridge.sandbox.oci.engine import OciEngine

# One worker's: its tests look at what a few containers have found.
pytestmark = pytest.mark.xdist_group("isolation")

PROGRAMS = Path(__file__).parents[1] / "support/sandbox_programs"
MEBIBYTE = 1024 * 1024
LIMITS = Limits(memory=256 * MEBIBYTE, pids=64, tmp=2 * MEBIBYTE, workspace=3 * MEBIBYTE, shm=MEBIBYTE, nofile=256)

# From standard input to a file, then become the interpreter of that file: as scripts usually run.
AS_FILE = (
    "import os, sys\n"
    "open('/tmp/program.py', 'wb').write(sys.stdin.buffer.read())\n"
    "os.execv(sys.executable, [sys.executable, '-E', '/tmp/program.py', *{arguments!r}])\n"
)


async def run_file(runner: Runner, name: str, arguments: list[str], limits: Limits) -> dict[str, Any]:
    source = (PROGRAMS / name).read_bytes()
    ended = await runner.run(AS_FILE.format(arguments=arguments), stdin=source, limits=limits)
    return ended.json()


@pytest.fixture(scope="module")
def host_socket() -> Iterator[str]:
    name = f"mcp-bridge-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        yield name


@pytest.fixture(scope="module")
def host_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("host") / "file"
    path.write_text("of the host")
    return path


@pytest.fixture(scope="module")
def inside(runner: Runner, host_socket: str, host_file: Path) -> dict[str, Any]:
    """One container that tried everything."""
    arguments = [host_socket, str(host_file), str(Path.home() / "."), "/var/run/docker.sock", "/proc/1000000"]
    return asyncio.run(run_file(runner, "inside.py", arguments, LIMITS))


@pytest.fixture(scope="module")
def working(runner: Runner) -> dict[str, Any]:
    return asyncio.run(run_file(runner, "working.py", [], Limits()))


# ---- privileges -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"])
def test_it_has_no_capability(inside: dict[str, Any], name: str) -> None:
    assert int(inside["status"][name], 16) == 0


def test_it_can_gain_no_privileges_and_is_filtered(inside: dict[str, Any]) -> None:
    assert inside["status"]["NoNewPrivs"] == "1"
    assert inside["status"]["Seccomp"] == "2"


def test_it_is_not_root_and_has_no_other_group(inside: dict[str, Any], engine: CliEngine | OciEngine) -> None:
    uids = set(inside["status"]["Uid"].split())
    assert uids == set(inside["status"]["Gid"].split())
    assert set(inside["status"]["Groups"].split()) <= uids
    (uid,) = uids
    assert int(uid) >= 20_000 if engine.choice.uid_per_container else int(uid) == 65534


def test_its_users_are_not_the_hosts_where_the_engine_can_map_them(
    inside: dict[str, Any], engine: CliEngine | OciEngine
) -> None:
    mapping = [line.split() for line in inside["files"]["/proc/self/uid_map"].splitlines()]
    if engine.choice.maps_users:
        assert mapping[0][1] != "0"
    else:
        assert engine.name == "docker"


@pytest.mark.parametrize("name", ["mount", "cgroup", "uts", "ipc", "user", "pid", "net"])
def test_it_can_make_no_namespace_by_clone(inside: dict[str, Any], name: str) -> None:
    assert inside["clone"][name] == "EPERM"


def test_clone3_whose_flags_can_not_be_seen_does_not_exist(inside: dict[str, Any]) -> None:
    assert inside["clone3"] == "ENOSYS"


def test_no_dangerous_system_call_gets_through(inside: dict[str, Any]) -> None:
    others = {name: answer for name, answer in inside["syscalls"].items() if answer not in {"EPERM", "ENOSYS"}}
    assert others == {}


def test_no_directory_can_be_watched_by_fcntl(inside: dict[str, Any]) -> None:
    assert inside["fcntl"] == {"get": "allowed", "notify": "EPERM", "notify, long": "EPERM"}


def test_every_number_of_prctl_that_changes_capabilities_is_refused(inside: dict[str, Any]) -> None:
    assert inside["prctl_ambient"] == "refused"
    assert inside["prctl_dumpable"] == 0


def test_foreign_tables_of_system_calls_end_the_process(inside: dict[str, Any]) -> None:
    if "native" not in inside:
        assert os.uname().machine != "x86_64"
        return
    assert int(inside["native"]) > 1
    assert inside["i386"] == "SIGSYS"
    assert inside["x32"] == "SIGSYS" or int(inside["x32"]) < 0


def test_it_can_make_no_device(inside: dict[str, Any]) -> None:
    assert inside["mknod"] == "EPERM"


# ---- the network and other ways out -----------------------------------------------------------------------------


def test_there_is_no_socket_but_of_the_unix_family(inside: dict[str, Any]) -> None:
    assert set(inside["families"].values()) == {"EAFNOSUPPORT"}
    assert set(inside["family_numbers"].values()) == {"EAFNOSUPPORT"}
    assert inside["socketpair"] == "EAFNOSUPPORT"


def test_there_is_no_interface_but_the_loop(inside: dict[str, Any]) -> None:
    assert inside["interfaces"] == ["lo"]


def test_an_abstract_socket_of_the_host_is_out_of_reach(inside: dict[str, Any]) -> None:
    assert inside["abstract"] == "ECONNREFUSED"


def test_it_sees_no_process_but_its_own(inside: dict[str, Any]) -> None:
    assert inside["processes"] == [1]


def test_its_streams_are_pipes_and_nothing_else_is_open(inside: dict[str, Any]) -> None:
    assert set(inside["descriptors"]) <= {"pipe", "socket"}


# ---- files ------------------------------------------------------------------------------------------------------


def test_it_can_write_to_its_scratch_directories_only(inside: dict[str, Any]) -> None:
    assert inside["writable"] == ["/dev/shm", "/tmp", "/workspace"]


def test_it_can_write_to_no_file_of_the_kernel(inside: dict[str, Any], engine: CliEngine | OciEngine) -> None:
    # A masked file is /dev/null, and takes anything.
    masked = {*MASKED, "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug"}
    masked |= {"/proc/interrupts", "/proc/timer_stats"}
    # Docker can't be told to mask the stall triggers, which a process may set on its own account only.
    masked |= {"/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/irq", "/proc/pressure/memory"} & (
        set(inside["writable_kernel_files"]) if engine.name == "docker" else set()
    )
    assert set(inside["writable_kernel_files"]) - masked == set()


def test_every_writable_mount_is_in_memory_and_neither_executable_nor_set_uid(inside: dict[str, Any]) -> None:
    mounts = {mount[0]: mount for mount in inside["mounts"]}
    for path in ("/tmp", "/workspace", "/dev/shm"):
        _, kind, options = mounts[path]
        assert kind == "tmpfs"
        assert {"noexec", "nosuid", "nodev"} <= set(options.split(","))
    assert "ro" in mounts["/"][2].split(",")


def test_of_the_engines_files_two_are_mounted_read_only_and_nothing_else_is(
    inside: dict[str, Any], engine: CliEngine | OciEngine
) -> None:
    kernels = ("/dev", "/proc", "/sys")
    own = {"/", "/tmp", "/workspace"}
    others = {
        point: options.split(",")
        for point, _, options in inside["mounts"]
        if point not in own and not point.startswith(kernels)
    }
    if engine.name != "docker":
        assert set(others) <= {"/run/.containerenv", "/etc/hostname"}
        assert all("ro" in options for options in others.values())
    else:
        assert set(others) <= {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}


def test_shared_memory_has_16_mebibytes_unless_it_is_told_otherwise() -> None:
    assert Limits().shm == 16 * MEBIBYTE


@pytest.mark.parametrize(
    ("path", "size"), [("/tmp", LIMITS.tmp), ("/workspace", LIMITS.workspace), ("/dev/shm", LIMITS.shm)]
)
def test_a_scratch_directory_is_full_at_its_size_and_the_sandbox_goes_on(
    inside: dict[str, Any], path: str, size: int
) -> None:
    answer, written = inside["full"][path]
    assert answer == "ENOSPC"
    assert written <= size
    assert written > size // 2


@pytest.mark.parametrize("path", ["/tmp", "/workspace", "/dev/shm"])
def test_nothing_that_it_writes_can_be_executed(inside: dict[str, Any], path: str) -> None:
    run, mapped = inside["execute"][path]
    assert run == "EACCES"
    assert mapped == "EPERM"


def test_its_devices_are_the_usual_harmless_ones(inside: dict[str, Any]) -> None:
    assert set(inside["devices"]) <= {
        "console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
        "tty", "urandom", "zero",
    }  # fmt: skip


def test_core_dumps_and_message_queues_are_off(inside: dict[str, Any]) -> None:
    assert inside["limits"]["CORE"] == [0, 0]
    assert inside["limits"]["MSGQUEUE"] == [0, 0]
    assert inside["limits"]["NOFILE"] == [256, 256]


# ---- what it knows of the host ----------------------------------------------------------------------------------


def test_no_file_of_the_host_is_there(inside: dict[str, Any]) -> None:
    assert True not in {found for path, found in inside["outside"].items() if path != "/"}


async def test_it_has_the_environment_it_was_given_and_a_host_name(runner: Runner) -> None:
    given = {"PATH": "/usr/local/bin", "HOME": "/workspace", "LC_ALL": "C.UTF-8", "A": "b c"}
    ended = await runner.run("import json, os; print(json.dumps(dict(os.environ)))", environment=given)
    assert ended.json() == given | {"HOSTNAME": "sandbox"}


def test_nothing_names_the_host(inside: dict[str, Any], engine: CliEngine | OciEngine) -> None:
    assert inside["hostname"] == "sandbox"
    host = socket.gethostname()
    for path in ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf"):
        assert host not in inside["files"][path].split()
    # Docker always brings these two; they must say nothing of the host's network.
    # Docker says in comments which lines are its own.
    resolving = [line for line in inside["files"]["/etc/resolv.conf"].splitlines() if not line.startswith("#")]
    assert set(" ".join(resolving).split()) <= {"ENOENT", "nameserver", "127.0.0.1", "search", "."}
    if engine.name != "docker":
        assert inside["files"]["/proc/cmdline"] == ""
        assert inside["files"]["/proc/version"] == ""


async def test_its_working_directory_is_the_workspace(runner: Runner) -> None:
    ended = await runner.run("import os; print(os.getcwd())")
    assert ended.stdout == "/workspace\n"


# ---- what has to work -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("threads", True),
        ("thread pool", [0, 1, 4, 9]),
        ("process pool", [0, 1, 4, 9]),
        ("processes by fork", ["put", [0, 1, 4, 9], 7]),
        ("processes by spawn", ["put", [0, 1, 4, 9], 7]),
        ("processes by fork server", ["put", [0, 1, 4, 9], 7]),
        ("shared memory", "abc"),
        ("subprocess", ["abab\n", 0]),
        ("asyncio", ["8\n", "hello", 9]),
        ("sqlite", ["wal", 499500]),
        ("files", "ab"),
        ("signals", ["alarm"]),
        ("no network", ["gaierror", True]),
        ("callback", 5),
        ("terminal", "x"),
        ("fork", 4),
        ("random", 2),
        ("affinity", True),
    ],
)
def test_the_standard_library_works(working: dict[str, Any], name: str, expected: Any) -> None:
    assert working[name] == expected


# ---- neighbours -------------------------------------------------------------------------------------------------

BOMB = """
import os, signal, sys
count = 0
while count < 2000:
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        signal.pause()
    count += 1
print(count, flush=True)
sys.stdin.read()
"""

NPROC = resource.RLIMIT_NPROC

NEIGHBOUR = """
import subprocess, sys, threading
for line in sys.stdin:
    threads = [threading.Thread(target=int) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    code = subprocess.run([sys.executable, "-S", "-E", "-c", "pass"]).returncode
    print("fine" if code == 0 else code, flush=True)
"""


async def test_a_fork_bomb_is_contained_and_harms_no_neighbour(runner: Runner) -> None:
    limits = Limits(pids=32)
    # What no control group holds, the command inside has to.
    held = "" if runner.engine.choice.enforced.pids else f"import resource\nresource.setrlimit({NPROC}, (32, 32))\n"
    before = await runner.start(held + NEIGHBOUR, limits=limits)
    bomb = await runner.start(held + BOMB, limits=limits)
    after = None
    try:
        with anyio.fail_after(90):
            await before.stdin.send(b"\n")
            assert await before.stdout.receive() == b"fine\n"
            assert 8 <= int(await bomb.stdout.receive()) < 32
            await before.stdin.send(b"\n")
            assert await before.stdout.receive() == b"fine\n"
            after = await runner.start(held + NEIGHBOUR, limits=limits)
            await after.stdin.send(b"\n")
            assert await after.stdout.receive() == b"fine\n"
    finally:
        for process in (before, bomb, after):
            if process is not None:
                await process.aclose()


async def test_filling_its_memory_harms_no_neighbour(runner: Runner) -> None:
    neighbour = await runner.start(NEIGHBOUR)
    try:
        with anyio.fail_after(90):
            hog = await runner.run(
                "b = []\nwhile True: b.append(bytearray(1 << 20))", limits=Limits(memory=64 * MEBIBYTE)
            )
            assert hog.status.code in {1, 137}
            await neighbour.stdin.send(b"\n")
            assert await neighbour.stdout.receive() == b"fine\n"
    finally:
        await neighbour.aclose()


# ---- the profile itself -----------------------------------------------------------------------------------------


def test_the_committed_profile_is_the_tables_rendering() -> None:
    assert seccomp_profile.PROFILE.read_text() == seccomp_profile.render()


def test_the_profile_denies_by_default_and_admits_native_calls_only() -> None:
    profile = json.loads(seccomp_profile.PROFILE.read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert all(row["subArchitectures"] == [] for row in profile["archMap"])


def test_no_call_is_both_allowed_without_condition_and_refused() -> None:
    rules = json.loads(seccomp_profile.PROFILE.read_text())["syscalls"]
    free = [
        name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule for name in rule["names"]
    ]
    assert len(free) == len(set(free))
    refused = {
        name for rule in rules if rule["action"] != "SCMP_ACT_ALLOW" and "args" not in rule for name in rule["names"]
    }
    conditional = {name for rule in rules if "args" in rule for name in rule["names"]}
    assert not set(free) & (refused | conditional)
